//! Processes that a test leads: words on standard input, lines of JSON on standard output.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A process that a test leads, which is told words and says lines of JSON; killed when dropped.
pub(crate) struct Party {
    child: Child,
    words: Option<ChildStdin>,
    lines: Receiver<Value>,
    /// How long it may take to say something.
    patience: Duration,
}

impl Party {
    /// Starts it. `patience`: how long it may take to say something.
    #[track_caller]
    pub(crate) fn start(mut command: Command, patience: Duration) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let stdout = child.stdout.take().expect("it is piped");
        let (say, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let value = serde_json::from_str(&line);
                // The test may have ended.
                let _ = say.send(value.unwrap_or(Value::String(line)));
            }
        });
        Self {
            words: child.stdin.take(),
            child,
            lines,
            patience,
        }
    }

    /// Tells it a word.
    #[track_caller]
    pub(crate) fn tell(&mut self, word: &str) {
        let words = self.words.as_mut().expect("it still listens");
        writeln!(words, "{word}").expect("it still listens");
    }

    /// What it says next, which has to be this.
    #[track_caller]
    pub(crate) fn hear(&mut self, key: &str) -> Value {
        let said = self.lines.recv_timeout(self.patience);
        let said = said.unwrap_or_else(|_| panic!("not within {:?}: \"{key}\"", self.patience));
        let value = said.get(key).cloned();
        value.unwrap_or_else(|| panic!("not \"{key}\" but {said}"))
    }

    /// The same, which has to be a text.
    #[track_caller]
    pub(crate) fn hear_text(&mut self, key: &str) -> String {
        let said = self.hear(key);
        said.as_str().expect("a text").to_owned()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        // It may have ended already.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Waits for its end, which has to be a good one.
    #[track_caller]
    pub(crate) fn finish(&mut self) {
        drop(self.words.take());
        let status = self.child.wait().expect("a child can be waited for");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
