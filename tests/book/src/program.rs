//! The program `polyrail`, built for the tests of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(polyrail_cli::run(std::env::args_os().collect(), Vec::new()))
}
