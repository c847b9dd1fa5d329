//! What can be looked at only in a process in which nobody has used CUDA before.

use std::process::{Command, ExitCode};
use std::ptr::NonNull;
use std::sync::Arc;

use polyrail::cuda::Driver;
use polyrail::cuda::binding::Cuda;
use polyrail::{Access, Config, Engine, Op};

use crate::checks::{ONLY_CUDA, put};
use crate::ends::{BYTES, Ends, Wrong, moved, whole};
use crate::program;

/// An engine that meets no GPU does not start CUDA.
pub(crate) const UNTOUCHED: &str = "untouched";
/// Memory of another process's GPU is reached from one's own.
pub(crate) const APART: &str = "apart";

/// Has another process look at it.
pub(crate) fn check(name: &str, stub: bool) -> Result<Option<&'static str>, Wrong> {
    if stub {
        return Ok(Some(ONLY_CUDA));
    }
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.args(["alone", name]).output()?;
    match output.status.success() {
        true => Ok(None),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().into()),
    }
}

/// Is that process.
pub(crate) fn run(name: &str) -> ExitCode {
    let said = match name {
        UNTOUCHED => untouched(),
        APART => apart(),
        other => Err(format!("there is no check \"{other}\"").into()),
    };
    match said {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn untouched() -> Result<(), Wrong> {
    let config = Config {
        listen: Some(([127, 0, 0, 1], 0).into()),
        ..Config::named("target")
    };
    let target = Engine::new(config)?;
    target.allocate("there", BYTES, Access::RemoteReadWrite)?;
    let engine = Engine::new(Config::named("initiator"))?;
    let mut own = vec![1_u8; BYTES as usize];
    let base = NonNull::new(own.as_mut_ptr()).ok_or("address 0")?;
    // SAFETY: it lives until the engine has ended.
    let near = unsafe { engine.register("own", base, BYTES, Access::Local) }?;
    let address = target.listening().ok_or("it does not listen")?;
    let far = engine.open_segment(&format!("{address}/there"))?;
    moved(&engine, whole(Op::Write, near, far, BYTES))?;
    if program::is_begun()? {
        return Err("CUDA was started, and nobody has asked for memory of a GPU".into());
    }
    engine.allocate_on_gpu("gpu", 0, 4096, Access::Local)?;
    engine.shutdown();
    match program::is_begun()? {
        true => Ok(()),
        false => Err("memory was allocated without CUDA".into()),
    }
}

/// The other process has its memory on `cuda:0`.
fn apart() -> Result<(), Wrong> {
    let driver: Arc<dyn Driver> = Arc::new(Cuda::load()?);
    let ends = Ends::start(&driver, false, &["shm", "tcp"])?;
    let near = ends
        .engine
        .allocate_on_gpu("near", 1, BYTES, Access::Local)?;
    let host = ends.engine.allocate("host", BYTES, Access::Local)?;
    let far = ends.open("gpu")?;
    for (seed, segment) in [(1, near), (2, host)] {
        let sent = put(&ends.engine, segment, seed)?;
        moved(&ends.engine, whole(Op::Write, segment, far, BYTES))?;
        if !ends.has("gpu", &sent)? {
            return Err("wrong bytes at the target".into());
        }
    }
    let contexts = driver.contexts()?;
    match contexts[..] {
        [1] => Ok(()),
        _ => Err(format!("contexts were taken on {contexts:?}, not on cuda:1 only").into()),
    }
}
