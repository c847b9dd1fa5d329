//! What workers see of rails and devices.

extern crate std;

use super::estimate::{EstimateConfig, Observation, Sample};
use super::spray::Line;
use super::*;
use crate::sync::AtomicU64;
use crate::time::{Duration, Instant};
use crate::units::{DeviceId, PeerId, RailId, Rate};
use core::sync::atomic::Ordering::Relaxed;
use quickcheck::quickcheck;

#[test]
fn a_slice_waits_for_what_living_processes_have_in_flight() {
    use core::num::NonZeroU64;
    use diffusion::{Diffusion, DiffusionConfig, Geometry, ProcessId, Record, Weight};

    const SIZE: Geometry = Geometry {
        rows: 2,
        columns: 2,
    };
    const STALE_AFTER: Duration = Duration::from_millis(20);
    let (rails, devices) = ([const { Rail::EMPTY }; 2], [const { Device::EMPTY }; 2]);
    let shared = Shared::new(&rails, &devices, &[], 64);
    let [busy, idle] = [RailId(0), RailId(1)];
    for rail in [busy, idle] {
        let device = DeviceId(rail.0);
        let estimate = EstimateConfig {
            rate_nominal: Rate::from_bytes_per_sec(1_000_000_000),
            delay_base: Duration::ZERO,
            tier: 0,
            slice_span: Duration::ZERO,
            batch_span: Duration::ZERO,
        };
        let config = RailConfig {
            peer: PeerId(0),
            device,
            far: None,
            estimate,
        };
        assert!(shared.install_device(device, estimate) && shared.install_rail(rail, config));
    }
    let at = |millis| Instant::ZERO + Duration::from_millis(millis);
    let words: [_; SIZE.words()] = core::array::from_fn(|_| AtomicU64::new(0));
    let join = |pid, parts| {
        let config = DiffusionConfig {
            weight: Weight::new(parts).unwrap(),
            stale_after: STALE_AFTER,
        };
        let record = Record::new(&words, SIZE).unwrap();
        Diffusion::join(at(0), record, ProcessId::new(pid, 1).unwrap(), config).unwrap()
    };
    let (other, own) = (join(1, 1024), join(2, 512));
    let column = own.column(NonZeroU64::MIN).unwrap();
    assert!(other.publish(at(0), column, 2_000));
    let wait = |rail| shared.load(at(0), rail).unwrap().predicted(0).as_nanos();
    // Ours, on a rail that waits for its own queue anyway: what is ahead there is both.
    assert_eq!(shared.reserve(at(0), busy, 500, 1 << 20), Some(0));
    // (name, at ms, how long a slice waits where the other has bytes in flight)
    let cases = [
        ("the other's count half", 20, 1_500),
        ("it has died", 21, 500),
    ];
    for (name, millis, expected) in cases {
        let mut bytes = [0; 2];
        own.others(at(millis), &mut bytes);
        for (device, bytes) in (0..).zip(bytes) {
            assert!(shared.set_others(DeviceId(device), bytes));
        }
        assert_eq!((wait(busy), wait(idle)), (expected, 0), "{name}");
        let load = shared.load(at(millis), busy).unwrap();
        assert_eq!(load.inflight_bytes, 500, "{name}: the window is ours alone");
    }
    assert_eq!(shared.device_inflight_bytes(DeviceId(0)), 500);
    assert!(!shared.set_others(DeviceId(2), 1));
}

#[test]
fn a_device_knows_what_its_only_rail_has_learned_when_another_comes() {
    const NOMINAL: Rate = Rate::from_bytes_per_sec(1_000_000_000);
    let estimate = EstimateConfig {
        rate_nominal: NOMINAL,
        delay_base: Duration::from_micros(3),
        tier: 0,
        slice_span: Duration::ZERO,
        batch_span: Duration::ZERO,
    };
    let config = |device| RailConfig {
        peer: PeerId(0),
        device: DeviceId(device),
        far: None,
        estimate,
    };
    let (rails, devices) = ([const { Rail::EMPTY }; 4], [const { Device::EMPTY }; 2]);
    let shared = Shared::new(&rails, &devices, &[], 64);
    // The first device has one rail for now, the second one two from the start.
    for device in [0, 1] {
        assert!(shared.install_device(DeviceId(device), estimate));
    }
    for (rail, device) in [(0, 0), (1, 1), (2, 1)] {
        assert!(shared.install_rail(RailId(rail), config(device)));
    }
    let device_rate = |rail| {
        shared
            .load(Instant::ZERO, RailId(rail))
            .unwrap()
            .device_rate
    };
    // A tenth of the nominal rate, each behind the one before.
    let learn = |rails: [u16; 2], first: u64| {
        for number in first..first + 50 {
            let at = |number| Instant::from_nanos(1_000_000 * number);
            let seen = Observation::new(Sample {
                posted_at: at(number),
                seen_at: at(number + 1),
                ahead_bytes: 0,
                bytes: 100_000,
            });
            for rail in rails {
                shared.handle_observation(RailId(rail), &seen);
            }
        }
    };
    learn([0, 1], 1);
    assert!(device_rate(0).bytes_per_sec() < NOMINAL.bytes_per_sec() / 5);
    assert_eq!(device_rate(0), shared.rate(RailId(0)), "the only rail's");
    assert_eq!(device_rate(1), device_rate(0), "its own, of the same");
    assert!(shared.install_rail(RailId(3), config(0)));
    assert_eq!(device_rate(3), device_rate(1), "taken over");
    learn([3, 2], 60);
    assert_eq!(device_rate(0), device_rate(2), "its own from then on");
    assert_ne!(device_rate(0), shared.rate(RailId(3)));
}

#[test]
fn a_slice_waits_for_what_all_rails_to_a_peers_device_have_in_flight_there() {
    let (rails, devices) = ([const { Rail::EMPTY }; 3], [const { Device::EMPTY }; 5]);
    let shared = Shared::new(&rails, &devices, &[], 64);
    let config = a_rail();
    for device in 0..5 {
        assert!(shared.install_device(DeviceId(device), config.estimate));
    }
    // From the first local device to the two of the peer, and from the second one to its first.
    let [busy, beside, behind] = [0, 1, 2].map(RailId);
    for (rail, device, far) in [(busy, 0, 3), (beside, 0, 4), (behind, 1, 3)] {
        let config = RailConfig {
            device: DeviceId(device),
            far: Some(DeviceId(far)),
            ..config
        };
        assert!(shared.install_rail(rail, config));
    }
    let now = Instant::ZERO + Duration::from_millis(1);
    let wait = |rail| shared.load(now, rail).unwrap().predicted(0).as_nanos();
    assert_eq!([busy, beside, behind].map(wait), [0; 3]);
    assert_eq!(shared.reserve(now, busy, 500, u64::MAX), Some(0));
    assert_eq!([busy, beside, behind].map(wait), [500; 3]);
    assert_eq!(shared.reserve(now, behind, 1_000, u64::MAX), Some(0));
    assert_eq!([busy, beside, behind].map(wait), [1_500, 500, 1_500]);
    // The peer's device makes half of what was told of it.
    for number in 1..=200 {
        let end = |number| now + Duration::from_micros(2).times(number);
        let sample = Sample {
            posted_at: end(number - 1),
            seen_at: end(number),
            ahead_bytes: 0,
            bytes: 1_000,
        };
        shared.handle_observation(behind, &Observation::new(sample));
    }
    assert!(
        (2_800..3_100).contains(&wait(behind)),
        "{} ns",
        wait(behind)
    );
    for (rail, bytes) in [(busy, 500), (behind, 1_000)] {
        shared.release(rail, bytes);
    }
    assert_eq!([busy, beside, behind].map(wait), [0; 3]);
    // Rows that are not there, and one for both ends.
    for (device, far) in [(0, 5), (5, 3), (2, 2)] {
        let config = RailConfig {
            device: DeviceId(device),
            far: Some(DeviceId(far)),
            ..config
        };
        assert!(!shared.install_rail(busy, config), "{device} to {far}");
    }
}

#[test]
fn nothing_waits_for_what_has_left_a_device() {
    // Two devices at one of the peer's, all of 1 GB/s and a millisecond away, on which 100 kB are in flight.
    let (rails, devices) = ([const { Rail::EMPTY }; 2], [const { Device::EMPTY }; 3]);
    let shared = Shared::new(&rails, &devices, &[], 64);
    let [busy, beside] = [RailId(0), RailId(1)];
    let estimate = EstimateConfig {
        delay_base: Duration::from_millis(1),
        ..a_rail().estimate
    };
    for device in 0..3 {
        assert!(shared.install_device(DeviceId(device), estimate));
    }
    for rail in [busy, beside] {
        let config = RailConfig {
            device: DeviceId(rail.0),
            far: Some(DeviceId(2)),
            estimate,
            ..a_rail()
        };
        assert!(shared.install_rail(rail, config));
    }
    let at = |micros| Instant::from_nanos(1_000_000_000) + Duration::from_micros(micros);
    let waits = |micros| {
        [busy, beside].map(|rail| {
            let time = shared.load(at(micros), rail).unwrap().predicted(0);
            time.minus(estimate.delay_base).as_nanos() / 1_000
        })
    };
    assert_eq!(
        shared.reserve(at(0), busy, 100_000, u64::MAX),
        Some(0),
        "nothing was in flight"
    );
    // At both ends. A device sends it one after the other.
    for (micros, expected) in [(0, 100), (40, 60), (100, 0), (900, 0)] {
        assert_eq!(waits(micros), [expected; 2], "after {micros} us");
    }
    // More than passes in a millisecond cannot be on its way: so much is, if the device is slower than it seemed.
    assert_eq!(
        shared.reserve(at(900), busy, 3_900_000, u64::MAX),
        Some(100_000)
    );
    assert_eq!(waits(900), [3_900; 2]);
    assert_eq!(waits(10_000), [3_000; 2]);
    shared.release(busy, 4_000_000);
    assert_eq!(waits(10_000), [0; 2]);
}

#[test]
fn what_is_on_its_way_to_a_far_peer_keeps_nobody_from_a_near_one() {
    // The near rail was held to one slice at a time for as long as the far one was busy, and never learned better.
    let (rails, devices) = ([const { Rail::EMPTY }; 2], [const { Device::EMPTY }; 1]);
    let shared = Shared::new(&rails, &devices, &[], 64);
    let config = a_rail();
    let [near, far] = [0, 1].map(RailId);
    assert!(shared.install_device(DeviceId(0), config.estimate));
    let micros = Duration::from_micros;
    for (rail, delay_base) in [(near, micros(3)), (far, micros(100_000))] {
        let estimate = EstimateConfig {
            delay_base,
            ..config.estimate
        };
        assert!(shared.install_rail(rail, RailConfig { estimate, ..config }));
    }
    let now = Instant::ZERO + micros(1_000_000);
    let posted_at = Instant::ZERO + micros(900_000);
    let seen = |rail: RailId| {
        let sample = Sample {
            posted_at,
            seen_at: now,
            ahead_bytes: 0,
            bytes: 64,
        };
        shared.handle_observation(rail, &Observation::new(sample));
    };
    let room = || shared.healthy(near).map(|near| near.room(now, 64));
    let limit = || room().map(|room| room.device_limit);
    let before = limit();
    seen(far);
    let window = shared.window_bytes(far);
    assert!(before < Some(window), "{before:?} beside {window}");
    assert!(limit() >= Some(2 * window), "{:?} beside {window}", limit());
}

#[test]
fn a_device_that_is_kept_learns_how_much_is_on_its_way() {
    // It was held to what was believed to be on its way, and only a window that is full shows that this is not enough.
    const RAIL: RailId = RailId(0);
    const SLICE: u64 = 65_536;
    let (rails, devices) = ([Rail::EMPTY], [Device::EMPTY]);
    let shared = Shared::new(&rails, &devices, &[], SLICE as u32);
    let rate = Rate::from_bytes_per_sec(2_800_000_000);
    let delay = Duration::from_micros(150);
    let config = RailConfig {
        peer: PeerId(0),
        device: DeviceId(0),
        far: None,
        estimate: EstimateConfig {
            rate_nominal: rate,
            delay_base: Duration::from_micros(17),
            tier: 0,
            slice_span: Duration::ZERO,
            batch_span: Duration::ZERO,
        },
    };
    assert!(shared.install_device(DeviceId(0), config.estimate));
    assert!(shared.install_rail(RAIL, config));
    let mut now = Instant::ZERO;
    // When what is in flight completes, and when it was posted, behind how many bytes.
    let mut flight = std::collections::VecDeque::new();
    let mut free_at = Instant::ZERO;
    for _ in 0..20_000 {
        shared.keep(now, RAIL);
        let own_bytes = flight.len() as u64 * SLICE;
        let room = shared.healthy(RAIL).unwrap().room(now, own_bytes);
        if room.takes(SLICE as u32, Line::ALONE) {
            let ahead = shared.reserve(now, RAIL, SLICE, u64::MAX).unwrap();
            free_at = free_at.max(now) + rate.time_for(SLICE);
            flight.push_back((free_at + delay, now, ahead));
            continue;
        }
        let (seen_at, posted_at, ahead_bytes) = flight.pop_front().unwrap();
        now = seen_at;
        shared.release(RAIL, SLICE);
        let sample = Sample {
            posted_at,
            seen_at,
            ahead_bytes,
            bytes: SLICE,
        };
        shared.handle_observation(RAIL, &Observation::new(sample));
    }
    let room = shared.healthy(RAIL).unwrap().room(now, SLICE);
    let on_its_way = rate.bytes_in(delay);
    assert!(
        on_its_way <= room.device_limit && room.device_limit <= 3 * on_its_way,
        "{} bytes where {on_its_way} are on their way",
        room.device_limit
    );
}

#[test]
fn a_spare_changes_nothing_for_its_device() {
    let config = a_rail();
    let (rails, devices) = ([const { Rail::EMPTY }; 3], [const { Device::EMPTY }; 1]);
    let shared = Shared::new(&rails, &devices, &[], 64);
    let [rail, spare, none] = [0, 1, 3].map(RailId);
    assert!(shared.install_device(DeviceId(0), config.estimate));
    assert!(shared.install_spare(spare, rail, config));
    assert!(shared.install_rail(rail, config));
    assert!(!shared.install_spare(none, rail, config), "no such row");
    let only = || devices[0].only_rail.load(Relaxed);
    assert_eq!((only(), devices[0].is_shared()), (0, false));
    let fronts = || [rail, spare, none].map(|rail| shared.front_of(rail));
    assert_eq!(fronts(), [None, Some(rail), None]);
    let is_spare = |rail| shared.view(rail).map(|view| view.is_spare);
    assert_eq!(
        [rail, spare, none].map(is_spare),
        [Some(false), Some(true), None]
    );
    // Their rows are another peer's.
    assert!(shared.install_rail(rail, config) && shared.install_rail(spare, config));
    assert_eq!((fronts(), devices[0].is_shared()), ([None; 3], true));
}

#[test]
fn one_worker_looks_at_an_idle_rail() {
    let rows = [Rail::EMPTY];
    let shared = Shared::new(&rows, &[], &[], 1);
    let interval = Duration::from_millis(5);
    let at = |millis| Instant::ZERO + Duration::from_millis(millis);
    // Of a rail that others are used beside, the first look is due some time after somebody has asked, whenever that is.
    // (whether it is one of those in use, at ms, whether it may)
    let in_use = [
        (4, false),
        (5, false),
        (8, false),
        (9, true),
        (9, false),
        (13, false),
        (14, true),
    ];
    let late = [(400, false), (404, false), (405, true), (405, false)];
    let another = [(4, true), (4, false), (8, false), (9, true)];
    for (in_use, looks) in [(true, &in_use[..]), (true, &late), (false, &another)] {
        rows[0].speed.rate.store(1, Relaxed);
        rows[0].probed_at.store(0, Relaxed);
        for (millis, claimed) in looks {
            let claim = shared.claim_rate_probe(at(*millis), RailId(0), (interval, in_use));
            assert_eq!(claim.is_some(), *claimed, "{in_use} {millis}");
        }
    }
}

#[test]
fn looks_take_a_small_part_of_a_rails_time_but_the_first_one_is_not_put_off() {
    // A rail that was told to be slow was not looked at for as long as that would have made it.
    let rows = [Rail::EMPTY];
    let shared = Shared::new(&rows, &[], &[], 65_536);
    let rate = Rate::from_bytes_per_sec(1_000_000);
    rows[0].speed.rate.store(rate.to_bits(), Relaxed);
    let claims = |millis: u64| {
        let now = Instant::ZERO + Duration::from_millis(millis);
        let claim = shared.claim_rate_probe(now, RailId(0), (Duration::from_millis(5), true));
        claim.is_some()
    };
    let mut looks = (0..2_000).filter(|millis| claims(*millis));
    // 4 KiB take 4.1 ms.
    let looks: [_; 4] = core::array::from_fn(|_| looks.next());
    assert_eq!(looks, [Some(5), Some(825), Some(1_645), None]);
}

quickcheck! {
    /// A rail that had been slow was left alone for good where looks were seen half a millisecond late, as they are while
    /// a worker copies: 4 KiB in that time are 8 MB/s, whatever the rail makes.
    fn a_rail_that_is_fast_again_is_found_though_looks_are_seen_late(slow: u8, fast: u8, late_us: u16) -> bool {
        const RAIL: RailId = RailId(0);
        const SLICE: u64 = 65_536;
        let (rows, devices) = ([Rail::EMPTY], [Device::EMPTY]);
        let shared = Shared::new(&rows, &devices, &[], SLICE as u32);
        let slow = Rate::from_bytes_per_sec(1_000_000 * (1 + u64::from(slow) / 4));
        let fast = Rate::from_bytes_per_sec(100_000_000 * (10 + u64::from(fast)));
        let late = Duration::from_micros(u64::from(late_us % 1_500));
        let config = RailConfig {
            peer: PeerId(0),
            device: DeviceId(0),
            far: None,
            estimate: EstimateConfig {
                rate_nominal: Rate::from_bytes_per_sec(1_250_000_000),
                delay_base: Duration::from_micros(50),
                tier: 0,
                slice_span: Duration::ZERO,
                batch_span: Duration::ZERO,
            },
        };
        assert!(shared.install_rail(RAIL, config));
        let mut now = Instant::ZERO;
        for _ in 0..100 {
            let posted_at = now;
            now = posted_at + slow.time_for(SLICE);
            let sample = Sample { posted_at, seen_at: now, ahead_bytes: 0, bytes: SLICE };
            shared.handle_observation(RAIL, &Observation::new(sample));
        }
        assert!(shared.rate(RAIL).bytes_per_sec() < 2 * slow.bytes_per_sec());
        // What a slice makes in the time in which it is seen; half of that, as looks raise the rate halfway.
        let wanted = Rate::from_bytes_in(SLICE, late + fast.time_for(SLICE)).bytes_per_sec() / 2;
        let start = now;
        while now.since(start) < Duration::from_secs(10) && shared.rate(RAIL).bytes_per_sec() < wanted {
            now = now + Duration::from_millis(1);
            if let Some(bytes) = shared.claim_rate_probe(now, RAIL, (Duration::from_millis(5), true)) {
                let bytes = u64::from(bytes);
                let took = late + fast.time_for(bytes);
                now = now + took;
                shared.handle_rate_probe(now, RAIL, bytes, took);
            }
        }
        shared.rate(RAIL).bytes_per_sec() >= wanted
    }
}

#[test]
fn a_rail_that_has_just_been_looked_at_has_not_stood_idle() {
    // Where a look takes longer than a rail has to stand idle for one, the next followed at once, for ever, and no slice
    // that is longer than what a look leaves of the window had its turn.
    let rows = [Rail::EMPTY];
    let shared = Shared::new(&rows, &[], &[], 65_536);
    let now = Instant::ZERO + Duration::from_millis(30);
    shared.handle_rate_probe(now, RailId(0), 4_096, Duration::from_millis(20));
    let used_at = shared.healthy(RailId(0)).map(|row| row.used_at());
    assert_eq!(used_at, Some(now));
}

#[test]
fn workers_that_wait_are_woken_in_turn() {
    // (name, worker woken last, those who wait, whom worker 0 wakes)
    let cases = [
        ("nobody waits", 0, [false; 3], None),
        ("only itself", 0, [true, false, false], None),
        ("the next one", 0, [true, true, true], Some(1)),
        ("and the next", 1, [true, true, true], Some(2)),
        ("round, past itself", 2, [true, true, true], Some(1)),
        // It was passed over, so with two workers each was woken once in its life.
        ("the same one again", 1, [true, true, false], Some(1)),
    ];
    for (name, last, waits, woken) in cases {
        let rows = [const { Waiting::NO }; 3];
        let shared = Shared::new(&[], &[], &rows, 1);
        for (worker, waits) in (0..).zip(waits) {
            shared.set_waiting(worker, waits.then_some(Instant::ZERO));
        }
        assert_eq!(shared.next_waiting(last, 0), woken, "{name}");
    }
}
