//! A target of our own: a second process of this program that serves.

use std::io::{self, BufRead, BufReader};
use std::net::IpAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use crate::exit::Failure;
use crate::kind::MemoryKind;
use crate::settings::ConfigArgs;

/// How long a target may take until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A target process. It is killed and reaped when this is dropped, and ends by itself should we be killed:
/// its standard input is a pipe that only we hold.
#[derive(Debug)]
pub(crate) struct OwnTarget {
    child: Child,
}

impl OwnTarget {
    /// Starts one that offers so many bytes of memory of that kind, and waits until it listens. Answers its `HOST:PORT` too.
    pub(crate) fn start(
        rails: &[IpAddr],
        memory: (u64, MemoryKind),
        settings: &ConfigArgs,
    ) -> Result<(Self, String), Failure> {
        let child = command(rails, memory, settings)
            .and_then(|mut command| command.spawn())
            .map_err(|e| Failure::Environment(format!("cannot start a target of our own: {e}")))?;
        let mut target = Self { child };
        let address = target.address()?;
        Ok((target, address))
    }

    /// The address in the target's first line.
    fn address(&mut self) -> Result<String, Failure> {
        let line = self.child.stdout.take().and_then(first_line);
        let address = line.as_deref().and_then(listening_address);
        address
            .map(str::to_owned)
            .ok_or_else(|| self.never_listened())
    }

    /// Why there is no address. The target has said more on standard error, which it shares with us.
    fn never_listened(&mut self) -> Failure {
        const USAGE: Option<i32> = Some(2);
        match self.child.try_wait() {
            Ok(Some(status)) => {
                let text = format!("the target that was started here did not listen: {status}");
                Failure::from_engine(status.code() == USAGE, text)
            }
            _ => Failure::Environment(format!(
                "the target that was started here did not listen within {} s",
                START_TIMEOUT.as_secs()
            )),
        }
    }
}

impl Drop for OwnTarget {
    fn drop(&mut self) {
        // Both fail only if it has ended and been reaped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(
    rails: &[IpAddr],
    (bytes, kind): (u64, MemoryKind),
    settings: &ConfigArgs,
) -> io::Result<Command> {
    let mut command = this_program()?;
    // What a configuration may say about listening is not about this one.
    command
        .args(["serve", "--end-with-stdin", "--listen", "127.0.0.1:0"])
        .args(["--memory", &bytes.to_string()])
        .args(["--memory-kind", &kind.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    if !rails.is_empty() {
        let texts: Vec<String> = rails.iter().map(IpAddr::to_string).collect();
        command.args(["--rails", &texts.join(",")]);
    }
    if let Some(path) = &settings.config {
        command.arg("--config").arg(path);
    }
    Ok(command)
}

/// This program once more.
fn this_program() -> io::Result<Command> {
    let Some((first, others)) = crate::PROGRAM.get().and_then(|words| words.split_first()) else {
        return Ok(Command::new(std::env::current_exe()?));
    };
    let mut command = Command::new(first);
    command.args(others);
    Ok(command)
}

/// The first line, if it comes in time. What a target says behind it has come with it, and it writes nothing more.
fn first_line(out: ChildStdout) -> Option<String> {
    let (tell, line) = channel();
    thread::spawn(move || {
        let mut text = String::new();
        if BufReader::new(out).read_line(&mut text).is_ok() {
            // Nobody listens any more if it came too late.
            let _ = tell.send(text);
        }
    });
    line.recv_timeout(START_TIMEOUT).ok()
}

/// The address in `listening HOST:PORT name=NAME`.
fn listening_address(line: &str) -> Option<&str> {
    line.strip_prefix("listening ")?.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_the_second_word_of_the_first_line() {
        let address = listening_address("listening 127.0.0.1:7000 name=x\n");
        assert_eq!(address, Some("127.0.0.1:7000"));
        assert_eq!(listening_address(""), None);
        assert_eq!(listening_address("error: no"), None);
    }
}
