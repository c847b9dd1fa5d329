//! Two processes and four Soft-RoCE rails between them, in a virtual machine: one boot, many cases.
//!
//! Started on a host, this program starts itself again in the virtual machine of `tests/vm`; there it is the initiator,
//! and starts itself once more as each target. Names of cases as arguments: only those.

mod cases;
mod ends;
mod rails;
mod records;
mod target;
mod wire;

use std::env;
use std::path::Path;
use std::process::{Command, ExitCode, exit};
use std::time::Instant;

/// Set in the virtual machine.
const INSIDE: &str = "RDMA_IN_VM";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    match (&arguments[..], env::var_os(INSIDE)) {
        ([role], Some(_)) if role == "target" => {
            env_logger::init();
            target::serve();
            ExitCode::SUCCESS
        }
        (names, Some(_)) => {
            env_logger::init();
            run(names)
        }
        (names, None) => exit(in_vm(names)),
    }
}

/// This program again, in the virtual machine. Its status.
fn in_vm(names: &[String]) -> i32 {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = env::current_exe().expect("this program has a path");
    let folder = program.parent().expect("it is in a folder");
    let status = Command::new(root.join("tests/vm/vm"))
        .args([
            "run",
            "--timeout",
            "900",
            "--env",
            &format!("{INSIDE}=1"),
            "--share",
        ])
        .arg(folder)
        .arg("--")
        .arg(&program)
        .args(names)
        .status();
    match status {
        Ok(status) => status.code().unwrap_or(125),
        Err(error) => {
            eprintln!("tests/vm/vm cannot be run: {error}");
            125
        }
    }
}

fn run(names: &[String]) -> ExitCode {
    let mut failed = 0;
    for (name, case) in cases::ALL {
        if !names.is_empty() && !names.iter().any(|wanted| wanted == name) {
            continue;
        }
        let start = Instant::now();
        let outcome = std::panic::catch_unwind(case);
        rails::clear();
        let seconds = start.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => println!("ok      {name} ({seconds:.1} s)"),
            Err(_) => {
                failed += 1;
                println!("FAILED  {name} ({seconds:.1} s)");
            }
        }
    }
    ExitCode::from(u8::from(failed > 0))
}
