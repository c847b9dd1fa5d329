//! polyrail itself, as the others are measured.

use std::io;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::time::Duration;

use polyrail::{Access, Config, Engine, Payload, Request, SecurityConfig, SegmentId, Status};

use crate::cell::{BUFFER_BYTES, Cell, Op};
use crate::child::{self, Child};
use crate::measure::Initiator;
use crate::memory::Buffer;

/// Longer than any batch takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Rails between the two ends.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Shape {
    /// Loopback rails, one lane each.
    #[arg(long, default_value_t = 1)]
    rails: u8,
    /// Where the target's memory is, seen from the initiator.
    #[arg(long, default_value = "network")]
    memory: Memory,
    /// Workers of either end; 0: as many as engines have by themselves.
    #[arg(long, default_value_t = 0)]
    workers: usize,
    /// The file of a cluster's key, which both ends have.
    #[arg(long)]
    key: Option<PathBuf>,
    /// With the key: what goes over TCP is encrypted.
    #[arg(long, requires = "key")]
    encrypt: bool,
}

/// Where a target's memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Memory {
    /// Behind TCP, though on this host.
    Network,
    /// On this host, and its program's own.
    Private,
    /// On this host, and both sides map it.
    Shared,
}

impl Shape {
    fn config(&self, name: &str) -> Config {
        let rails = (1..=self.rails).map(|host| [127, 0, 0, host].into());
        let key_file = (self.key.as_deref()).map_or("", |key| key.to_str().unwrap_or_default());
        let config = Config {
            rails: rails.collect(),
            workers: self.workers,
            security: SecurityConfig {
                key_file: key_file.into(),
                payload: match self.encrypt {
                    true => Payload::Encrypt,
                    false => Payload::Off,
                },
                ..SecurityConfig::default()
            },
            ..Config::named(name)
        };
        match self.memory {
            Memory::Network => config.without("shm"),
            Memory::Private | Memory::Shared => config,
        }
    }
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

/// Registers a buffer with an engine.
fn register(engine: &Engine, buffer: &Buffer, access: Access) -> io::Result<SegmentId> {
    let base = NonNull::new(buffer.base()).ok_or_else(|| other("no memory"))?;
    // SAFETY: callers keep the buffer until the engine has ended.
    unsafe { engine.register("mem", base, BUFFER_BYTES as u64, access) }.map_err(other)
}

/// Serves the memory until the input ends.
pub(crate) fn serve(shape: Shape) -> io::Result<()> {
    let buffer = Buffer::new(2)?;
    let config = Config {
        listen: Some(([127, 0, 0, 1], 0).into()),
        ..shape.config("target")
    };
    let engine = Engine::new(config).map_err(other)?;
    let access = Access::RemoteReadWrite;
    match shape.memory {
        Memory::Network | Memory::Private => register(&engine, &buffer, access)?,
        Memory::Shared => {
            let bytes = BUFFER_BYTES as u64;
            engine.allocate("mem", bytes, access).map_err(other)?
        }
    };
    let address = engine.listening().ok_or_else(|| other("not listening"))?;
    child::say_address(address)?;
    child::wait_for_end()?;
    engine.shutdown();
    Ok(())
}

/// An engine with a target in another process. Declared in the order in which they may go.
pub(crate) struct Polyrail {
    engine: Engine,
    local: SegmentId,
    remote: SegmentId,
    requests: Vec<Request>,
    target: Child,
    _buffer: Buffer,
}

impl Polyrail {
    /// Starts both.
    pub(crate) fn start(shape: Shape) -> io::Result<Self> {
        let rails = format!("--rails={}", shape.rails);
        let memory = format!("--memory={:?}", shape.memory).to_lowercase();
        let workers = format!("--workers={}", shape.workers);
        let mut words = vec!["target".into(), "polyrail".into(), rails, memory, workers];
        words.extend((shape.key.iter()).map(|key| format!("--key={}", key.display())));
        words.extend(shape.encrypt.then(|| "--encrypt".into()));
        let target = Child::start(&words)?;
        let buffer = Buffer::new(1)?;
        let engine = Engine::new(shape.config("initiator")).map_err(other)?;
        let local = register(&engine, &buffer, Access::Local)?;
        let remote = engine.open_segment(&format!("{}/mem", target.address));
        Ok(Self {
            local,
            remote: remote.map_err(other)?,
            engine,
            requests: Vec::new(),
            target,
            _buffer: buffer,
        })
    }
}

impl Initiator for Polyrail {
    fn once(&mut self, cell: Cell) -> io::Result<()> {
        self.requests.clear();
        self.requests.extend((0..cell.batch).map(|index| Request {
            op: match cell.op {
                Op::Write => polyrail::Op::Write,
                Op::Read => polyrail::Op::Read,
            },
            local: self.local,
            local_offset: cell.offset(index) as u64,
            remote: self.remote,
            remote_offset: cell.offset(index) as u64,
            length: cell.block as u64,
        }));
        let batch = self.engine.submit(&self.requests).map_err(other)?;
        let ended = batch.wait(PATIENCE).map_err(other)?;
        match ended.status {
            Status::Completed => Ok(()),
            status => Err(other(format!("{cell} ended {status:?}"))),
        }
    }

    fn target_pid(&self) -> u32 {
        self.target.pid()
    }
}

impl Drop for Polyrail {
    fn drop(&mut self) {
        // The buffer is ours until the engine has ended.
        self.engine.shutdown();
    }
}
