//! The other process: an engine with memory of every kind, that fills it and says what is in it.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use polyrail::cuda::Driver;
use polyrail::{Access, Caller, Calls, Config, Engine, Hooks, RegisterError, SegmentId};

use crate::ends::{BYTES, MEASURED, PROBE, digest, pattern};

/// Fill a segment with the pattern of a seed, say what is in it, or take it back.
pub(crate) const FILL: u16 = 1;
pub(crate) const DIGEST: u16 = 2;
pub(crate) const TAKE_BACK: u16 = 3;

/// Host memory that peers may only read.
pub(crate) const HOST_READ: &str = "host-read";

/// Segments that are being taken back, by name.
type Going = Mutex<HashMap<String, SegmentId>>;

#[derive(Default)]
struct Filler {
    going: Going,
}

impl Filler {
    /// An error says why it is not free.
    fn take_back(&self, engine: &Engine, name: &str) -> Result<Vec<u8>, String> {
        let mut going = self.going.lock().map_err(|e| e.to_string())?;
        let known = going.get(name).copied();
        let segment = known.or_else(|| engine.local_segment(name));
        let segment = segment.ok_or("no such segment")?;
        going.insert(name.to_owned(), segment);
        match engine.unregister(segment) {
            Ok(()) => Ok(b"free".to_vec()),
            Err(RegisterError::Unprovable { .. }) => Ok(b"unprovable".to_vec()),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Calls for Filler {
    fn call(
        &self,
        engine: &Engine,
        _: &Caller,
        method: u16,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        let (seed, name) = body.split_first_chunk().ok_or("too short")?;
        let name = std::str::from_utf8(name).map_err(|e| e.to_string())?;
        if method == TAKE_BACK {
            return self.take_back(engine, name);
        }
        let region = engine
            .local_segment(name)
            .and_then(|segment| engine.region(segment))
            .ok_or("no such segment")?;
        match method {
            FILL => {
                let bytes = pattern(u64::from_le_bytes(*seed), region.bytes());
                region.store(&bytes, 0).map_err(|e| e.to_string())?;
                Ok(Vec::new())
            }
            DIGEST => {
                let mut bytes = vec![0; region.bytes() as usize];
                region.load(0, &mut bytes).map_err(|e| e.to_string())?;
                Ok(digest(&bytes).to_le_bytes().to_vec())
            }
            _ => Err("no such method".into()),
        }
    }
}

pub(crate) fn run(driver: Arc<dyn Driver>) -> ExitCode {
    match serve(driver) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the target has failed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves until the input ends.
fn serve(driver: Arc<dyn Driver>) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let config = Config {
        listen: Some(([127, 0, 0, 1], 0).into()),
        ..Config::named("target")
    };
    let hooks = Hooks {
        calls: Some(Arc::new(Filler::default())),
        cuda: Some(driver),
        ..Hooks::default()
    };
    let engine = Engine::with_hooks(config, hooks).map_err(|e| text(&e))?;
    let access = Access::RemoteReadWrite;
    for (name, bytes) in [("gpu", BYTES), ("gpu-large", MEASURED), (PROBE, 4096)] {
        let allocated = engine.allocate_on_gpu(name, 0, bytes, access);
        allocated.map_err(|e| text(&e))?;
    }
    for (name, bytes) in [("host", BYTES), ("host-large", MEASURED)] {
        engine.allocate(name, bytes, access).map_err(|e| text(&e))?;
    }
    let read = engine.allocate(HOST_READ, BYTES, Access::RemoteRead);
    read.map_err(|e| text(&e))?;
    let address = engine.listening().ok_or("it does not listen")?;
    println!("{address}");
    io::stdout().flush().map_err(|e| text(&e))?;
    let mut ignored = [0; 64];
    while matches!(io::stdin().read(&mut ignored), Ok(1..)) {}
    engine.shutdown();
    Ok(())
}
