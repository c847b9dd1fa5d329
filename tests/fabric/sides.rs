//! The two ends of a link with delay: each has an engine and bare sockets, and the initiator's moves loads over one or
//! the other as it is told.

use std::error::Error;
use std::io::{self, stdin};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use polyrail::{Access, Config, Engine, Request, SegmentId, Status};
use serde_json::json;

use crate::bare::{self, Route, Sockets};
use crate::load::{self, GAP_BYTES, Load, MEMORY_BYTES, Span};
use crate::voice;

/// The name of the target's memory.
const MEMORY: &str = "mem";

/// Longer than anything that ends.
const GIVE_UP: Duration = Duration::from_secs(120);

/// Who moves the bytes.
pub(crate) const POLYRAIL: &str = "polyrail";
pub(crate) const BARE: &str = "bare";

/// Serves on these rails until standard input ends.
pub(crate) fn target(rails: &[IpAddr]) -> Result<(), Box<dyn Error>> {
    let first = *rails.first().ok_or("a target needs a rail")?;
    let mut config = Config {
        listen: Some(SocketAddr::new(first, 0)),
        insecure: true,
        ..Config::from_env()?
    };
    config.use_rails(rails);
    let engine = Engine::new(config)?;
    engine.allocate(MEMORY, MEMORY_BYTES, Access::RemoteReadWrite)?;
    let bare: Vec<SocketAddr> = rails
        .iter()
        .map(|rail| bare::serve(*rail))
        .collect::<Result<_, _>>()?;
    let address = engine.listening().ok_or("it listens")?;
    voice::say("listening", json!({"engine": address, "bare": bare}));
    io::copy(&mut stdin(), &mut io::sink())?;
    Ok(())
}

/// An engine with memory at both ends.
struct Course {
    engine: Engine,
    here: SegmentId,
    there: SegmentId,
}

impl Course {
    fn new(target: &str, rails: &[IpAddr]) -> Result<Self, Box<dyn Error>> {
        let mut config = Config::from_env()?;
        config.use_rails(rails);
        let engine = Engine::new(config)?;
        let here = engine.allocate("here", MEMORY_BYTES, Access::Local)?;
        let there = engine.open_segment(&format!("{target}/{MEMORY}"))?;
        if let Some(region) = engine.region(here) {
            region.store(&vec![1; MEMORY_BYTES as usize], 0)?;
        }
        Ok(Self {
            engine,
            here,
            there,
        })
    }

    /// Moves one batch.
    fn carry(&self, load: Load) -> io::Result<()> {
        let request = |block: u32| {
            let offset = u64::from(block) * (u64::from(load.block) + GAP_BYTES);
            Request {
                op: load.op(),
                local: self.here,
                local_offset: offset,
                remote: self.there,
                remote_offset: offset,
                length: load.block.into(),
            }
        };
        let requests: Vec<Request> = (0..load.batch).map(request).collect();
        let batch = self.engine.submit(&requests).map_err(io::Error::other)?;
        let ended = batch.wait(GIVE_UP).map_err(io::Error::other)?;
        if ended.status != Status::Completed {
            return Err(io::Error::other(format!("{ended:?}")));
        }
        Ok(())
    }

    /// Whether what is written is what is read.
    fn verify(&self) -> Result<bool, Box<dyn Error>> {
        let load = |is_read| Load {
            is_read,
            block: 1 << 20,
            batch: 4,
        };
        let region = self.engine.region(self.here).ok_or("it was allocated")?;
        let bytes: Vec<u8> = (0..5_u32 << 20).map(|at| (at % 251) as u8).collect();
        region.store(&bytes, 0)?;
        self.carry(load(false))?;
        region.store(&vec![0; bytes.len()], 0)?;
        self.carry(load(true))?;
        let mut read = vec![0; bytes.len()];
        region.load(0, &mut read)?;
        let block = (1 << 20) + GAP_BYTES as usize;
        let of = |bytes: &[u8]| -> Vec<u8> {
            let blocks = bytes.chunks(block).take(4);
            blocks.flat_map(|block| block[..1 << 20].to_vec()).collect()
        };
        Ok(of(&bytes) == of(&read))
    }
}

/// Moves what each line of standard input says: `polyrail` or `bare`, a load, and milliseconds or `once`.
pub(crate) fn initiator(
    target: &str,
    rails: &[IpAddr],
    routes: Vec<Route>,
) -> Result<(), Box<dyn Error>> {
    let course = Course::new(target, rails)?;
    let mut sockets = Sockets::new(routes);
    voice::say("ready", true);
    for line in stdin().lines() {
        let line = line?;
        if line == "verify" {
            voice::say("verified", course.verify()?);
            continue;
        }
        let words: Vec<&str> = line.split(' ').collect();
        let [side, load, span] = words[..] else {
            return Err(format!("not three words: \"{line}\"").into());
        };
        let load: Load = load.parse()?;
        let span = match span {
            "once" => Span::Once,
            millis => Span::Time(Duration::from_millis(millis.parse()?)),
        };
        let measured = match side {
            POLYRAIL => load::measure(load, span, || course.carry(load)),
            BARE => load::measure(load, span, || sockets.carry(load)),
            other => return Err(format!("nobody is called {other}").into()),
        };
        voice::say("measured", measured?);
    }
    Ok(())
}
