//! The engine over links with delay moves at least a good part of what bare sockets do, whatever start it has.
//!
//! These are outer bounds, for machines that do something else beside; `distance` has the whole table and its worst runs.

use std::path::Path;
use std::time::Duration;

use crate::course::{Course, Kind, Links};
use crate::fabric::skip;
use crate::load::Load;
use crate::sides::BARE;

/// Starts of each link.
const STARTS: u64 = 3;

/// The least part of what bare sockets move, in the better of two turns.
const LEAST: f64 = 0.5;

/// What the kernel and a busy machine may add to a round trip.
const ADDED: Duration = Duration::from_millis(3);

fn start(links: Links, seed: u64) -> Option<Course> {
    if !Path::new("/dev/net/tun").exists() {
        skip("there is no /dev/net/tun");
        return None;
    }
    Course::start(Path::new(env!("CARGO_BIN_EXE_distance")), links, seed)
}

fn load(text: &str) -> Load {
    text.parse().expect("a load")
}

fn links(rails: usize, delay_ms: u64, kind: Kind) -> Links {
    let delay = Duration::from_millis(delay_ms);
    Links { rails, delay, kind }
}

#[test]
fn a_link_has_the_delay_that_it_was_given() {
    for (delay, kind, most) in [
        (2, Kind::Plain, 1),
        (20, Kind::Plain, 1),
        (10, Kind::All, 3),
    ] {
        let links = links(1, delay, kind);
        let Some(mut course) = start(links, 1) else {
            return;
        };
        let ping = course.carry(BARE, load("write-4096x1"), Some(links.time()));
        let round_trip = Duration::from_secs_f64(ping.p50_us / 1e6);
        let least = links.delay * 2;
        assert!(round_trip >= least, "{links}: {round_trip:?}");
        assert!(
            round_trip <= least * most + ADDED,
            "{links}: {round_trip:?}"
        );
    }
}

#[test]
fn no_start_over_a_link_with_delay_is_unlucky() {
    for links in [
        // So many processors as send, carry and receive at once are not there, so the link is what limits.
        links(1, 1, Kind::Rate),
        links(1, 10, Kind::Rate),
        links(4, 1, Kind::Jitter),
    ] {
        for seed in 0..STARTS {
            let Some(mut course) = start(links, seed) else {
                return;
            };
            for load in ["write-1048576x16", "read-1048576x16"].map(load) {
                // Something else may have had the processors meanwhile.
                let turn = |swapped| course.compare(load, Some(links.time()), swapped).ratio();
                let best = [false, true].map(turn).into_iter().fold(0.0, f64::max);
                println!("{links}, {load}, start {seed}: {best:.2} of bare sockets");
                assert!(best >= LEAST, "{links}, {load}, start {seed}: {best:.2}");
            }
            assert!(course.verify(), "other bytes are read than were written");
        }
    }
}

#[test]
fn connections_that_are_reset_under_way_lose_and_change_nothing() {
    let links = links(4, 1, Kind::Loss);
    let Some(mut course) = start(links, 1) else {
        return;
    };
    let time = Duration::from_secs(2);
    for load in ["write-1048576x16", "read-1048576x16"].map(load) {
        // A request that fails ends the initiator, and nothing is measured.
        let moved = course.carry_reset(load, time, Duration::from_millis(100));
        assert!(moved.gbytes_per_sec > 0.0);
        assert!(
            course.verify(),
            "{load}: other bytes are read than were written"
        );
    }
}
