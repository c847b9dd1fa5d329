//! A target in chaos: segments that come and go at a word.

use std::error::Error;
use std::io::stdin;
use std::net::{IpAddr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use polyrail::{Access, Config, Engine, SegmentId};

use crate::ledger::SEGMENT_BYTES;
use crate::voice;

/// Segments of a target.
pub(crate) const SEGMENTS: usize = 2;

/// The name of a segment.
pub(crate) fn name(number: usize) -> String {
    format!("mem{number}")
}

/// Serves over these rails until standard input ends. Each line of that is the number of a segment to make anew.
pub(crate) fn run(port: u16, rails: &[IpAddr]) -> Result<(), Box<dyn Error>> {
    let first = *rails.first().ok_or("a target needs a rail")?;
    let config = Config {
        listen: Some(SocketAddr::new(first, port)),
        rails: rails.to_vec(),
        insecure: true,
        ..Config::named("target")
    };
    let engine = Engine::new(config)?;
    let mut segments = Vec::new();
    for number in 0..SEGMENTS {
        segments.push(make(&engine, number)?);
    }
    voice::say("serves", true);
    for word in stdin().lines() {
        let number: usize = word?.parse()?;
        engine.unregister(segments[number])?;
        segments[number] = make(&engine, number)?;
        voice::say("anew", number);
    }
    engine.shutdown();
    Ok(())
}

/// A new segment: a stamp that no other has, and zeros.
fn make(engine: &Engine, number: usize) -> Result<SegmentId, Box<dyn Error>> {
    let access = Access::RemoteReadWrite;
    // With the stamp in it before anybody can find it.
    let region = polyrail::Region::allocate(SEGMENT_BYTES, access)?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let stamp = since.as_nanos() as u64;
    region.store(&stamp.to_le_bytes(), 0)?;
    Ok(engine.register_region(&name(number), region)?)
}
