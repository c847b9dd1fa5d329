//! Memory of GPUs, checked and measured on a machine that has some: build it elsewhere, copy it there, run it.
//!
//! ```text
//! cargo build --release -p polyrail-tests-gpu
//! target/release/gpu            # checks and measurements; without a GPU it says so and ends with 3
//! target/release/gpu --stub     # the checks over a driver in this process
//! target/release/gpu killed     # checks and measurements with this in their names
//! ```
//!
//! It ends with 0 if all is good, 1 if something was wrong, 2 if it was called wrongly, 3 without a GPU.

mod alone;
mod checks;
mod ends;
mod measure;
mod program;
mod target;

use std::process::ExitCode;
use std::sync::Arc;

use polyrail::cuda::binding::Cuda;
use polyrail::cuda::stub::{Machine, Stub};
use polyrail::cuda::{CudaError, Driver};

const USAGE: u8 = 2;
const ENVIRONMENT: u8 = 3;

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("error")).init();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (is_target, stub, part) = match words[..] {
        [] => (false, false, ""),
        ["--stub"] => (false, true, ""),
        ["target"] => (true, false, ""),
        ["target", "--stub"] => (true, true, ""),
        ["alone", name] => return alone::run(name),
        [part] if is_in_a_name(part) => (false, false, part),
        ["--stub", part] if is_in_a_name(part) => (false, true, part),
        _ => {
            eprintln!("usage: gpu [--stub] [PART OF THE NAME OF A CHECK OR MEASUREMENT]");
            return ExitCode::from(USAGE);
        }
    };
    let driver = match driver(stub) {
        Ok(driver) => driver,
        Err(error) => {
            println!("no GPU can be used here: {error}");
            println!("nothing was checked and nothing measured; --stub checks without a GPU");
            return ExitCode::from(ENVIRONMENT);
        }
    };
    match is_target {
        true => target::run(driver),
        false => run(driver, stub, part),
    }
}

/// Whether some check or measurement is meant.
fn is_in_a_name(part: &str) -> bool {
    let mut names = (checks::ALL.iter().map(|(name, _)| *name))
        .chain(measure::ALL.iter().map(|(name, _)| *name));
    names.any(|name| name.contains(part))
}

fn driver(stub: bool) -> Result<Arc<dyn Driver>, CudaError> {
    if stub {
        let machine = Machine {
            fabric: true,
            dma_buf: true,
            ..Machine::default()
        };
        return Ok(Arc::new(Stub::new(machine)));
    }
    let driver: Arc<dyn Driver> = Arc::new(Cuda::load()?);
    match driver.gpus()?.is_empty() {
        true => Err(CudaError::NoDevice {
            ordinal: 0,
            devices: 0,
        }),
        false => Ok(driver),
    }
}

fn run(driver: Arc<dyn Driver>, stub: bool, part: &str) -> ExitCode {
    for gpu in driver.gpus().unwrap_or_default() {
        let gib = gpu.bytes as f64 / f64::from(1 << 30);
        let shared = if gpu.is_served { ", shared by MPS" } else { "" };
        println!(
            "cuda:{} {} at {}, {}, {gib:.1} GiB{shared}",
            gpu.ordinal,
            gpu.name,
            gpu.pci,
            gpu.uuid_text()
        );
    }
    let mut failed = 0;
    let checks: Vec<_> = (checks::ALL.iter())
        .filter(|(name, _)| name.contains(part))
        .collect();
    for (name, check) in &checks {
        match check(&driver, stub) {
            Ok(None) => println!("ok      {name}"),
            Ok(Some(why)) => println!("skipped {name}: {why}"),
            Err(error) => {
                println!("FAILED  {name}: {error}");
                failed += 1;
            }
        }
    }
    if stub {
        println!("skipped all measurements: a stub has no speed");
    } else {
        for (name, measure) in measure::ALL {
            if !name.contains(part) {
                continue;
            }
            match measure(&driver) {
                Ok(text) => println!("{name}: {text}"),
                Err(error) => {
                    println!("FAILED  {name}: {error}");
                    failed += 1;
                }
            }
        }
    }
    match failed {
        0 => {
            println!("ok: {} checks", checks.len());
            ExitCode::SUCCESS
        }
        failed => {
            println!("FAILED: {failed}");
            ExitCode::FAILURE
        }
    }
}
