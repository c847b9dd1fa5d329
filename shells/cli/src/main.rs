//! The program `polyrail`: see its library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(polyrail_cli::run(std::env::args_os().collect(), Vec::new()))
}
