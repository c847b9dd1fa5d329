//! The target's process: memory, and answers about what is in it.

use std::io::{BufRead, Write};

use polyrail::{Access, Config, Engine, IsolationMode};

use crate::ends::{ISLAND, MEMORY, PATIENCE, common, pattern};
use crate::rails::{address, addresses};

/// Bytes that nobody wrote.
pub(crate) const POISON: u8 = 0xA5;

/// Serves memory until its input ends, and answers one line for each.
pub(crate) fn serve() {
    let mut config = Config {
        listen: Some((address(0, true), 0).into()),
        rails: addresses(true),
        insecure: true,
        ..common("target")
    };
    let isolated = std::env::var(ISLAND).unwrap_or_default();
    if let Some((mode, bits)) = isolated.split_once(' ') {
        config.path.mode = match mode {
            "advanced" => IsolationMode::Advanced,
            _ => IsolationMode::Vanilla,
        };
        config.path.supplementary = [2, 3].map(|number| address(number, true)).to_vec();
        config.path.island_prefix.v4_bits = bits.parse().expect("a number of bits");
    }
    let engine = Engine::new(config).expect("a target starts");
    let memory = engine.allocate("mem", MEMORY, Access::RemoteReadWrite);
    let memory = memory.expect("memory for peers");
    let region = engine.region(memory).expect("it is registered");
    let base = region.base().as_ptr();
    // SAFETY: the region is mapped as long as it is held; peers write it meanwhile, which raw accesses survive.
    let read = |offset: u64| unsafe { base.add(offset as usize).read_volatile() };
    let say = |text: String| {
        println!("{text}");
        std::io::stdout().flush().expect("the initiator listens");
    };
    say(engine.listening().expect("it listens").to_string());
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("the initiator speaks text");
        let words: Vec<&str> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<u64>().expect("a number");
        say(match words[0] {
            "poison" => {
                // SAFETY: as above.
                unsafe { base.write_bytes(POISON, MEMORY as usize) };
                "done".into()
            }
            "fill" => {
                for offset in 0..MEMORY {
                    // SAFETY: as above.
                    unsafe {
                        base.add(offset as usize)
                            .write_volatile(pattern(number(1), offset))
                    };
                }
                "done".into()
            }
            "check" => {
                let (seed, from, length) = (number(1), number(2), number(3));
                match (from..from + length).find(|at| read(*at) != pattern(seed, *at)) {
                    None => "good".into(),
                    Some(at) => format!("byte {at} is {:#x}", read(at)),
                }
            }
            "untouched" => {
                let (from, length) = (number(1), number(2));
                match (from..from + length).find(|at| read(*at) != POISON) {
                    None => "good".into(),
                    Some(at) => format!("byte {at} was written: {:#x}", read(at)),
                }
            }
            "count" => {
                let wanted = number(1) as u8;
                (0..MEMORY)
                    .filter(|at| read(*at) == wanted)
                    .count()
                    .to_string()
            }
            // What it is told of has to be there when it is told.
            "told" => {
                let told = engine.notifications().wait(PATIENCE).expect("it comes");
                let (seed, length) = (u64::from(told.bytes[0]), number(1));
                match (0..length).find(|at| read(*at) != pattern(seed, *at)) {
                    None => format!("good {seed}"),
                    Some(at) => format!("byte {at} is {:#x}", read(at)),
                }
            }
            "drop" => {
                engine.unregister(memory).expect("nobody uses it");
                "dropped".into()
            }
            _ => format!("what is {line}?"),
        });
    }
}
