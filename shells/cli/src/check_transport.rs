//! `polyrail check-transport`: whether a transport from a library keeps its promises.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use polyrail_conform::{PROMISES, Subject, check};
use polyrail_load::Library;

use crate::exit::Failure;

/// Tries out everything that a transport promises, with two ends of it in this process, and says which promise is
/// broken and how.
///
/// The library's code runs in this process. If that crashes, the promise that was on trial is the one printed last.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  polyrail check-transport ./libloopback.so")]
pub(crate) struct CheckTransportArgs {
    /// The shared library. A name without `/` is looked for where the system looks for libraries.
    library: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &CheckTransportArgs) -> Result<(), Failure> {
    let library = Library::open(&args.library);
    let library = library.map_err(|error| Failure::Usage(error.to_string()))?;
    say(format_args!("transport {}\n", library.name()))?;
    let subject = Subject::new(Arc::new(move |regions| library.make(regions)));
    let mut broken = 0;
    for promise in PROMISES {
        say(format_args!("{:<13} ", promise.name))?;
        match check(promise, &subject) {
            Ok(()) => say(format_args!("kept\n"))?,
            Err(how) => {
                broken += 1;
                say(format_args!(
                    "BROKEN: {how}\n{:<13} the promise: {}\n",
                    "", promise.text
                ))?;
            }
        }
    }
    match broken {
        0 => say(format_args!("ok: {} promises kept\n", PROMISES.len())),
        _ => {
            say(format_args!(
                "FAILED: {broken} of {} promises broken\n",
                PROMISES.len()
            ))?;
            Err(Failure::Verdict(format!(
                "{} is not fit for use",
                args.library.display()
            )))
        }
    }
}

/// Prints at once: what comes next may be the end of the process.
fn say(text: std::fmt::Arguments<'_>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_fmt(text)
        .and_then(|()| out.flush())
        .map_err(Failure::output)
}
