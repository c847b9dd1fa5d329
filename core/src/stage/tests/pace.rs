//! How fast it goes, and for whom.

use super::*;
use quickcheck::{TestResult, quickcheck};

/// How many chunks it takes until beginning and end count for little, and how busy the slowest hop is then. Under Miri
/// each chunk takes so long that a few have to do.
const CHUNKS: u64 = if cfg!(miri) { 4 } else { 64 };
const BUSY_MIN: f64 = if cfg!(miri) { 0.5 } else { 0.9 };

/// Hops of three speeds: this host's copies, the network's, the other host's copies; as the world wants them, a plain
/// function, so they are constants.
fn paced<const NEAR: u64, const NETWORK: u64, const FAR: u64>((host, network, _): Server) -> u64 {
    match (network, host) {
        (true, _) => NETWORK,
        (false, 0) => NEAR,
        (false, _) => FAR,
    }
}

/// Which part of the time the slowest hop is busy.
fn busiest(service_us: fn(Server) -> u64, route: Route, slots: u32, chunks: u64, seed: u64) -> f64 {
    let tickets = slots as usize + 2;
    let hosts = [0, 1].map(|_| staged(1, tickets, 1, [slots, slots], StagedConfig::DEFAULT));
    let mut world = World::new(hosts, seed);
    world.service_us = service_us;
    world.faults.delay_max_us = 2;
    let request = request(route, 0, 0, chunks * u64::from(SLOT_BYTES), slots);
    let id = world.hosts[0].submit(world.now, &request).unwrap();
    world.run(Instant::from_nanos(60_000_000_000));
    assert_eq!(world.reports[0][&id].status, Status::Completed);
    assert!(world.is_right(0, &request));
    let ended = world.busy.values().map(|(until, _)| *until).max().unwrap();
    let busiest = world.busy.values().map(|(_, total)| *total).max().unwrap();
    busiest.as_nanos() as f64 / ended.as_nanos() as f64
}

quickcheck! {
    fn the_slowest_hop_never_waits_for_long(kind: u8, slots: u8, chunks: u8, seed: u64) -> TestResult {
        let speeds: [fn(Server) -> u64; 6] = [
            paced::<50, 50, 50>,
            paced::<100, 20, 20>,
            paced::<20, 100, 20>,
            paced::<20, 20, 100>,
            paced::<100, 90, 20>,
            paced::<60, 80, 100>,
        ];
        let speed = speeds[usize::from(kind % 6)];
        let route = if kind % 2 == seed as u8 % 2 { WRITE } else { READ };
        let (slots, chunks) = (4 + u32::from(slots % 5), CHUNKS + u64::from(chunks) % (4 * CHUNKS));
        let busy = busiest(speed, route, slots, chunks, seed);
        match busy >= BUSY_MIN {
            true => TestResult::passed(),
            false => TestResult::error(std::format!("busy {busy}: {route:?}, {slots} slots, {chunks} chunks")),
        }
    }
}

#[test]
fn one_slot_takes_the_hops_one_after_the_other() {
    // So the measure of the property above does tell a pipeline from none.
    let busy = busiest(paced::<50, 50, 50>, WRITE, 1, CHUNKS, 1);
    assert!(busy < 0.5, "{busy}");
}

#[test]
fn a_small_request_passes_a_large_one() {
    let hosts = [0, 1].map(|_| staged(1, 6, 4, [4, 4], StagedConfig::DEFAULT));
    let mut world = World::new(hosts, 1);
    // The large one goes on for longer than the small one takes.
    let (chunks, begun) = match cfg!(miri) {
        true => (20, Instant::ZERO + Duration::from_micros(20)),
        false => (1_000, ms(1)),
    };
    let large = request(WRITE, 0, 0, chunks * u64::from(SLOT_BYTES), 4);
    let small = request(WRITE, 0, 1 << 20, 5 * u64::from(SLOT_BYTES), 4);
    let large = world.hosts[0].submit(world.now, &large).unwrap();
    world.run(begun);
    world.now = begun;
    let small = world.hosts[0].submit(world.now, &small).unwrap();
    let before = world.started;
    while !world.reports[0].contains_key(&small) {
        let until = world.now + Duration::from_micros(10);
        world.run(until);
        world.now = until;
    }
    // Five chunks in turn with five others, behind the six that had rows, three hops each.
    let meanwhile = world.started - before;
    assert!(meanwhile <= 3 * (6 + 5 + 5 + 1), "{meanwhile}");
    assert!(!world.reports[0].contains_key(&large));
}
