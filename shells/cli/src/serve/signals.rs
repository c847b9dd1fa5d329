//! What signals mean to a target: most end it in good order, a second one ends it without waiting for anybody, a third one
//! at once, and two only ask for something.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use polyrail::{Engine, Undrained};
use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU,
};
use signal_hook::iterator::Signals;
use signal_hook::low_level::{emulate_default_handler, signal_name};

use crate::exit::Failure;

/// All that would end a process that catches none, and can be caught: files are synced before it ends.
const ENDS: [i32; 7] = [
    SIGINT, SIGTERM, SIGQUIT, SIGUSR2, SIGALRM, SIGVTALRM, SIGXCPU,
];

/// What a target is asked to do.
pub(super) enum Asked {
    /// To end, for this reason.
    End(Reason),
    /// Nothing more than this is under way. No signal says so.
    Drained(Undrained),
    /// SIGHUP: to look at its configuration again.
    Reload,
    /// SIGUSR1: to say how it stands.
    Tell,
}

/// Why a target is to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// A signal, by its name.
    Signal(&'static str),
    /// Standard input has ended: so has whoever wanted it.
    Input,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Signal(name) => name,
            Self::Input => "standard input ended",
        })
    }
}

/// What a target is asked to do.
pub(super) struct Questions {
    pub(super) asked: Receiver<Asked>,
    /// How to ask it.
    ask: Sender<Asked>,
}

/// What a target is asked to do by signals, and by the end of standard input if that counts.
pub(super) fn asked(with_stdin: bool) -> Result<Questions, Failure> {
    let (tell, asked) = channel();
    let mut signals = Signals::new(ENDS.into_iter().chain([SIGHUP, SIGUSR1]))
        .map_err(|e| Failure::Environment(format!("cannot catch signals: {e}")))?;
    let by_signal = tell.clone();
    thread::spawn(move || {
        let mut ends = 0;
        for signal in signals.forever() {
            let what = match signal {
                SIGHUP => Asked::Reload,
                SIGUSR1 => Asked::Tell,
                // Whoever says it so often wants it whatever becomes of anything.
                signal if ends == 2 => {
                    let _ = emulate_default_handler(signal);
                    return;
                }
                signal => {
                    ends += 1;
                    Asked::End(Reason::Signal(signal_name(signal).unwrap_or("a signal")))
                }
            };
            // The receiver is gone only if we are ending already.
            let _ = by_signal.send(what);
        }
    });
    let ask = tell.clone();
    if with_stdin {
        thread::spawn(move || tell_at_end_of_stdin(&tell));
    }
    Ok(Questions { asked, ask })
}

/// Lets what is under way end, for so long at most. Whoever asks for the end once more does not want to wait.
pub(super) fn drain(engine: &Engine, within: Duration, questions: &Questions) {
    let Questions { asked, ask } = questions;
    thread::scope(|scope| {
        scope.spawn(|| ask.send(Asked::Drained(engine.drain(within))));
        loop {
            match asked.recv() {
                Ok(Asked::Drained(left)) if left.is_nothing() => return,
                Ok(Asked::Drained(left)) => {
                    return log::warn!("{left} are cut: they had not ended");
                }
                // Then nothing is drained any more.
                Ok(Asked::End(_)) | Err(_) => engine.shutdown(),
                Ok(Asked::Tell) => tell(engine),
                Ok(Asked::Reload) => log::warn!("SIGHUP: this target is ending"),
            }
        }
    });
}

fn tell_at_end_of_stdin(tell: &Sender<Asked>) {
    let mut ignored = [0; 64];
    // An error ends it as well: either way nobody holds the other end as agreed.
    while matches!(io::stdin().read(&mut ignored), Ok(1..)) {}
    let _ = tell.send(Asked::End(Reason::Input));
}

/// Says how the engine stands, on standard error, and writes the last calls on core to a file, if they are kept.
pub(super) fn tell(engine: &Engine) {
    // Nobody is left to be told if that fails.
    let _ = writeln!(io::stderr(), "{}", engine.stats());
    let _ = match engine.write_ring() {
        None => Ok(()),
        Some(Ok(file)) => writeln!(
            io::stderr(),
            "the last calls on core are in {}",
            file.display()
        ),
        Some(Err(error)) => writeln!(
            io::stderr(),
            "the last calls on core cannot be written: {error}"
        ),
    };
}
