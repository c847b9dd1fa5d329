//! An engine of this process, and one of another.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use polyrail::cuda::Driver;
use polyrail::{Batch, Config, Engine, Hooks, Op, Request, SegmentId, Status};

use crate::target::{DIGEST, FILL, TAKE_BACK};

/// Memory that is checked: several slots, and a bit.
pub(crate) const BYTES: u64 = (5 << 20) + 4097;
/// Memory that is measured.
pub(crate) const MEASURED: u64 = 64 << 20;
/// A segment that says whether the target is there.
pub(crate) const PROBE: &str = "probe";
/// Longer than anything takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What went wrong.
pub(crate) type Wrong = Box<dyn std::error::Error>;

/// Bytes that tell by their value where they belong.
pub(crate) fn pattern(seed: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    for (index, word) in (0..).zip(bytes.chunks_mut(8)) {
        let mixed = (index ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64);
        word.copy_from_slice(&(mixed ^ mixed >> 29).to_le_bytes()[..word.len()]);
    }
    bytes
}

/// A number that other bytes have not.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// An engine over a driver, without some of its transports.
pub(crate) fn engine(driver: &Arc<dyn Driver>, without: &[&str]) -> Result<Engine, Wrong> {
    let config = Config::named("initiator");
    let config = without
        .iter()
        .fold(config, |config, name| config.without(name));
    let hooks = Hooks {
        cuda: Some(driver.clone()),
        ..Hooks::default()
    };
    Ok(Engine::with_hooks(config, hooks)?)
}

/// Both engines.
pub(crate) struct Ends {
    pub(crate) engine: Engine,
    pub(crate) target: Child,
    address: String,
}

impl Ends {
    /// Starts another process of this program.
    pub(crate) fn start(
        driver: &Arc<dyn Driver>,
        stub: bool,
        without: &[&str],
    ) -> Result<Self, Wrong> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("target").args(stub.then_some("--stub"));
        let mut target = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let says = target.stdout.take().ok_or("it is not piped")?;
        let mut address = String::new();
        BufReader::new(says).read_line(&mut address)?;
        // Made first, so that the process goes whatever comes now.
        let ends = Self {
            engine: engine(driver, without)?,
            target,
            address: address.trim().to_owned(),
        };
        match ends.address.is_empty() {
            true => Err("the other process did not begin".into()),
            false => Ok(ends),
        }
    }

    pub(crate) fn open(&self, name: &str) -> Result<SegmentId, Wrong> {
        Ok(self
            .engine
            .open_segment(&format!("{}/{name}", self.address))?)
    }

    fn call(&self, method: u16, name: &str, seed: u64) -> Result<Vec<u8>, Wrong> {
        let probe = self.open(PROBE)?;
        let body = [&seed.to_le_bytes(), name.as_bytes()].concat();
        Ok(self.engine.call(probe, method, &body, PATIENCE)?)
    }

    /// Fills the target's segment.
    pub(crate) fn fill(&self, name: &str, seed: u64) -> Result<(), Wrong> {
        self.call(FILL, name, seed).map(drop)
    }

    /// Has the target take a segment back: whether it is free.
    pub(crate) fn take_back(&self, name: &str) -> Result<bool, Wrong> {
        match &self.call(TAKE_BACK, name, 0)?[..] {
            b"free" => Ok(true),
            b"unprovable" => Ok(false),
            other => Err(String::from_utf8_lossy(other).into()),
        }
    }

    /// Whether the target's segment has these bytes.
    pub(crate) fn has(&self, name: &str, bytes: &[u8]) -> Result<bool, Wrong> {
        let said = self.call(DIGEST, name, 0)?;
        Ok(said == digest(bytes).to_le_bytes())
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        // Both fail only if it has ended and been reaped already.
        let _ = self.target.kill();
        let _ = self.target.wait();
    }
}

/// All of two segments.
pub(crate) fn whole(op: Op, local: SegmentId, remote: SegmentId, length: u64) -> Request {
    Request {
        op,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length,
    }
}

/// Waits for a batch to end well.
pub(crate) fn completed(batch: &Batch) -> Result<(), Wrong> {
    let status = batch.wait(PATIENCE)?.status;
    match status {
        Status::Completed => Ok(()),
        other => Err(format!("{other:?}: {:?}", batch.report(0)).into()),
    }
}

/// Moves bytes, and waits for it.
pub(crate) fn moved(engine: &Engine, request: Request) -> Result<(), Wrong> {
    completed(&engine.submit(&[request])?)
}
