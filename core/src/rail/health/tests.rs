//! What a rail does in each state, and what it remembers.

extern crate std;
use super::Incident::{Error, Silence};
use super::*;
use RailState::{Healthy, Paused, Probing};
use quickcheck::quickcheck;
use std::vec::Vec;

fn ms(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Incident,
    Claim(u16),
    Good(u16),
    Bad(u16),
}
use Event::*;

/// A rail brought to a state at t = 0; a probe is due from 10 ms on.
fn rail(state: RailState) -> RailHealth {
    let health = RailHealth::new();
    if state != Healthy {
        assert!(health.handle_incident(ms(0), Silence));
    }
    if state == Probing {
        assert!(health.claim_probe(ms(10), 1));
    }
    health
}

#[test]
fn every_state_answers_every_event() {
    // (name, state before, event, at ms, whether it changed something, state after)
    let cases = [
        ("first incident pauses", Healthy, Incident, 5, true, Paused),
        ("nothing to claim", Healthy, Claim(1), 50, false, Healthy),
        ("late good probe", Healthy, Good(1), 50, false, Healthy),
        ("late bad probe", Healthy, Bad(1), 50, false, Healthy),
        (
            "an incident counts once",
            Paused,
            Incident,
            5,
            false,
            Paused,
        ),
        ("not due yet", Paused, Claim(1), 9, false, Paused),
        ("due", Paused, Claim(1), 10, true, Probing),
        ("a probe nobody claimed", Paused, Good(1), 50, false, Paused),
        (
            "a failure nobody claimed",
            Paused,
            Bad(1),
            50,
            false,
            Paused,
        ),
        (
            "incident while probing",
            Probing,
            Incident,
            50,
            false,
            Probing,
        ),
        ("one worker probes", Probing, Claim(2), 50, false, Probing),
        ("good probe re-admits", Probing, Good(1), 50, true, Healthy),
        (
            "good probe of a stranger",
            Probing,
            Good(2),
            50,
            false,
            Probing,
        ),
        ("bad probe pauses again", Probing, Bad(1), 50, true, Paused),
        (
            "bad probe of a stranger",
            Probing,
            Bad(2),
            50,
            false,
            Probing,
        ),
    ];
    for (name, before, event, at, changed, after) in cases {
        let health = rail(before);
        let did = match event {
            Incident => health.handle_incident(ms(at), Silence),
            Claim(worker) => health.claim_probe(ms(at), worker),
            Good(worker) => health.handle_probe_good(ms(at), worker),
            Bad(worker) => health.handle_probe_bad(ms(at), worker),
        };
        assert_eq!((did, health.state()), (changed, after), "{name}");
    }
}

#[test]
fn probes_come_less_often_the_longer_the_pause() {
    let health = rail(Paused);
    // (paused for ms, interval in ms)
    for (paused, interval) in [
        (0, 10),
        (900, 10),
        (10_000, 100),
        (50_000, 500),
        (3_600_000, 500),
    ] {
        assert_eq!(
            health.probe_interval(ms(paused)),
            Duration::from_millis(interval),
            "{paused}"
        );
    }
}

#[test]
fn a_failed_probe_is_followed_an_interval_after_it_was_claimed() {
    let health = rail(Paused);
    let claimed = ms(10_000);
    assert!(health.claim_probe(claimed, 1) && health.handle_probe_bad(claimed, 1));
    assert_eq!(
        health.probe_at(),
        Some(claimed + Duration::from_millis(100))
    );
}

#[test]
fn flaps_delay_the_first_probe_and_are_forgotten_one_by_one() {
    let health = RailHealth::new();
    let mut now = ms(0);
    for wait in [10, 20, 40, 80, 160, 320, 320] {
        now = now + FLAP_MEMORY.divided_by(2);
        assert!(health.handle_incident(now, Silence));
        let due = now + Duration::from_millis(wait);
        assert_eq!(health.probe_at(), Some(due));
        assert!(health.claim_probe(due, 1) && health.handle_probe_good(due, 1));
        now = due;
    }
    // Healthy for five spans: five of seven incidents are forgotten, the next is the third.
    now = now + FLAP_MEMORY.times(5);
    assert!(health.handle_incident(now, Silence));
    assert_eq!(
        (health.flaps(now), health.probe_at()),
        (3, Some(now + Duration::from_millis(40)))
    );
}

#[test]
fn caution_takes_a_tenth_of_the_time_that_a_rail_was_well() {
    // (well for ms, after so many outages in a row, wait in ms)
    for (well, outages, wait) in [
        (0, 7, 10),
        (50, 7, 10),
        (150, 1, 15),
        (200, 7, 20),
        (1_500, 7, 150),
        (9_000, 7, 320),
    ] {
        let health = RailHealth::new();
        let mut now = ms(0);
        for _ in 0..outages {
            assert!(health.handle_incident(now, Silence));
            now = health.probe_at().unwrap();
            assert!(health.claim_probe(now, 1) && health.handle_probe_good(now, 1));
        }
        now = now + Duration::from_millis(well);
        assert!(health.handle_incident(now, Silence));
        let expected = now + Duration::from_millis(wait);
        assert_eq!(health.probe_at(), Some(expected), "{well} {outages}");
    }
}

#[test]
fn one_error_is_looked_into_at_once_and_three_in_a_row_are_an_outage() {
    let health = RailHealth::new();
    // It errs at `at`, and a look takes 2 ms.
    let errs = |at: u64, good: bool| {
        assert!(health.handle_incident(ms(at), Error));
        assert!(!health.handle_incident(ms(at), Error), "another worker's");
        assert_eq!((health.state(), health.probe_at()), (Paused, Some(ms(at))));
        assert!(health.claim_probe(ms(at + 1), 1) && health.is_doubted());
        match good {
            true => assert!(health.handle_probe_good(ms(at + 2), 1)),
            false => assert!(health.handle_probe_bad(ms(at + 2), 1)),
        }
    };
    // Errors that come as long after a look as that took never are.
    for number in 1..100 {
        errs(number * 4, true);
        let stands = (health.state(), health.flaps(ms(number * 4)));
        assert_eq!(stands, (Healthy, 0));
    }
    // The third that comes sooner is.
    for at in [1_000, 1_003] {
        errs(at, true);
    }
    assert!(health.handle_incident(ms(1_006), Error) && !health.is_doubted());
    let stands = (health.flaps(ms(1_006)), health.probe_at());
    assert_eq!(stands, (1, Some(ms(1_016))));
    assert!(health.claim_probe(ms(1_016), 1) && health.handle_probe_good(ms(1_017), 1));
    // One whose look is bad is out since then.
    errs(5_000, false);
    let stands = (health.flaps(ms(5_002)), health.probe_at());
    assert_eq!(stands, (2, Some(ms(5_022))));
    assert!(!health.is_doubted());
}

#[test]
fn a_lone_rail_is_looked_at_sooner_and_never_later() {
    let health = rail(Paused);
    for (at, due) in [(0, 1), (5, 1), (300, 1)] {
        health.hasten_probe(ms(at) + health.lone_interval(ms(at)));
        assert_eq!(health.probe_at(), Some(ms(due)), "{at}");
    }
    // (out for ms, until the next look in ms)
    for (out, wait) in [(50, 1), (700, 7), (20_000, 200), (200_000, 500)] {
        let now = ms(out);
        assert!(health.claim_probe(now, 1));
        assert!(health.handle_probe_bad(now, 1));
        health.hasten_probe(now + health.lone_interval(now));
        assert_eq!(
            health.probe_at(),
            Some(now + Duration::from_millis(wait)),
            "{out}"
        );
    }
}

#[test]
fn reset_mode_follows_the_document() {
    let config = ResetConfig::DEFAULT;
    let secs = |secs: u64| ms(secs * 1000);
    let health = RailHealth::new();
    // Two errors and a success: nothing is remembered.
    assert!(!health.handle_error(secs(20), &config));
    assert!(!health.handle_error(secs(21), &config));
    assert!(!health.handle_success());
    // Two, and one that comes too late: it is the first again.
    for at in [30, 31, 42] {
        assert!(!health.handle_error(secs(at), &config), "{at}");
    }
    assert!(!health.handle_error(secs(43), &config));
    assert!(
        health.handle_error(secs(44), &config),
        "three within ten seconds"
    );
    assert_eq!(health.state(), Paused);
    assert_eq!(health.probe_at(), Some(secs(74)), "from the trip");
    // What was posted before goes on failing: a second trip doubles the pause, and so on up to the cap.
    for (trip, resume_at) in [(2, 44 + 60), (3, 44 + 120), (4, 44 + 240), (5, 44 + 300)] {
        for _ in 0..3 {
            assert!(
                !health.handle_error(secs(44), &config),
                "it was paused before"
            );
        }
        assert_eq!(health.probe_at(), Some(secs(resume_at)), "trip {trip}");
    }
    assert!(!health.handle_expiry(secs(343)));
    assert!(health.handle_expiry(secs(344)) && !health.handle_expiry(secs(344)));
    assert_eq!(health.state(), Healthy);
    // All is forgotten, so the next trip pauses for the first time again.
    for at in [350, 351] {
        assert!(!health.handle_error(secs(at), &config));
    }
    assert!(health.handle_error(secs(352), &config));
    assert_eq!(health.probe_at(), Some(secs(382)));
    assert!(health.handle_success(), "any success un-pauses");
    assert_eq!(health.state(), Healthy);
}

#[test]
fn the_word_holds_what_goes_in() {
    let record = Record {
        state: Probing,
        flaps: FLAPS_MAX,
        errors: ERRORS_MAX,
        wrongs: WRONGS_UNKNOWN_MAX,
        worker: u16::MAX,
        since_ms: (1 << 37) - 1,
    };
    assert_eq!(Record::unpack(record.pack()), record);
}

quickcheck! {
    fn any_record_survives_its_word(state: u8, flaps: u8, worker: u16, since: u64) -> bool {
        let record = Record {
            state: [Healthy, Paused, Probing][usize::from(state % 3)],
            flaps: flaps % 16,
            errors: flaps >> 6,
            wrongs: flaps >> 4 & 3,
            worker,
            since_ms: since >> 27,
        };
        Record::unpack(record.pack()) == record
    }

    fn only_who_claimed_a_probe_when_it_was_due_readmits(steps: Vec<(u8, u8, u16)>) -> bool {
        let health = RailHealth::new();
        // What a plain account of the same events says: the state, who probes, when the next one is due.
        let (mut state, mut prober, mut now) = (Healthy, 0, ms(1));
        steps.into_iter().all(|(event, worker, later)| {
            now = now + Duration::from_millis(u64::from(later));
            let worker = u16::from(worker % 3);
            let due = health.probe_at().is_some_and(|at| at <= now);
            let (did, expected) = match event % 4 {
                0 => (health.handle_incident(now, Silence), state == Healthy),
                1 => (health.claim_probe(now, worker), state == Paused && due),
                2 => (health.handle_probe_good(now, worker), state == Probing && prober == worker),
                _ => (health.handle_probe_bad(now, worker), state == Probing && prober == worker),
            };
            if did {
                state = [Paused, Probing, Healthy, Paused][usize::from(event % 4)];
                prober = worker;
            }
            let first_wait = event % 4 != 0 || !did || health.probe_at() >= Some(now + PROBE_INTERVAL_MIN);
            did == expected && health.state() == state && health.flaps(now) <= FLAPS_MAX && first_wait
        })
    }
}
