//! A target of the dark experiment: it offers memory, and writes down what is in it when it is asked.

use std::error::Error;
use std::io::stdin;
use std::net::{IpAddr, SocketAddr};

use polyrail::{Access, Config, Engine};

use crate::case::Transports;
use crate::marks::{self, STREAMS};
use crate::transports::hooks;
use crate::voice;

/// The name of its memory.
pub(crate) const MEMORY: &str = "mem";

/// Serves over these rails until standard input ends. Each line of that is a file to write the memory to.
pub(crate) fn run(rails: &[IpAddr], transports: Transports) -> Result<(), Box<dyn Error>> {
    let first = *rails.first().ok_or("a target needs a rail")?;
    let config = Config {
        listen: Some(SocketAddr::new(first, 0)),
        rails: rails.to_vec(),
        insecure: true,
        ..Config::named("target")
    };
    let engine = Engine::with_hooks(config, hooks(transports))?;
    let bytes = marks::memory_bytes();
    let memory = engine.allocate(MEMORY, bytes as u64, Access::RemoteReadWrite)?;
    let memory = engine.region(memory).ok_or("it has just been allocated")?;
    for (number, stream) in STREAMS.iter().enumerate() {
        for slot in 0..stream.slots() {
            let offset = marks::offset(number) + stream.slot_offset(slot);
            memory.store(&marks::pattern(number, slot, 0), offset as u64)?;
        }
    }
    let address = engine.listening().ok_or("it listens")?;
    voice::say("listening", address.to_string());
    for file in stdin().lines() {
        let mut found = vec![0; bytes];
        memory.load(0, &mut found)?;
        std::fs::write(file?, found)?;
        voice::say("written", true);
    }
    Ok(())
}
