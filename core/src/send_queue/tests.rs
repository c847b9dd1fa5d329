//! Credits, those who wait for them, and the cases that the flow-control rework lists of its controller, by its names. Its cases
//! of works on a queue pair are in the orchestrator's tests (`listed`), that of a worker's end in the engine's.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), "Test plan".

extern crate std;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::thread;
use std::vec::Vec;

use super::credit::{CreditLimits, Credits, Grant, LINE_PLACES, Refused, Snapshot, Waiter};
use crate::time::{Duration, Instant};
use quickcheck::{Arbitrary, Gen, quickcheck};

fn us(micros: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(micros)
}

fn credits(max_works: u16, resume_watermark_works: u16) -> Credits {
    Credits::new(CreditLimits {
        max_works,
        resume_watermark_works,
    })
}

fn held(credits: &Credits) -> u16 {
    credits.snapshot().held_works
}

/// What a refusal for lack of room saw.
fn full<T: core::fmt::Debug>(answer: Result<T, Refused>) -> (u16, Snapshot) {
    match answer {
        Err(Refused::Full { required_works, at }) => (required_works, at),
        other => panic!("not full: {other:?}"),
    }
}

#[test]
fn sq_controller_reserve_release_wait() {
    let credits = credits(10, 8);
    let first = credits.reserve(6).unwrap();
    let second = credits.reserve(4).unwrap();
    let mut waiter = credits.waiter(2, us(100));
    let (required, at) = full(waiter.poll(us(0)));
    assert_eq!(
        (required, at.held_works, at.revision),
        (2, 10, credits.revision())
    );

    // The release is seen by its revision. It would do for a newcomer, but not for who has once not fit.
    credits.release(second);
    assert_ne!(credits.revision(), at.revision);
    let (required, at) = full(waiter.poll(us(1)));
    assert_eq!((required, at.free_works()), (8, 4));
    // Nor for a newcomer, who would come first.
    full(credits.reserve(2));
    credits.release(first);
    assert_eq!(waiter.poll(us(2)).unwrap().works(), 2);

    // In vain: it tells what it saw, and gives up its turn.
    let _rest = credits.reserve(8).unwrap();
    full(waiter.poll(us(90)));
    assert_eq!(credits.waiting(), 1);
    let Err(Refused::TimedOut {
        required_works: 8,
        waited,
        ..
    }) = waiter.poll(us(100))
    else {
        panic!("it is time");
    };
    assert_eq!((waited, credits.waiting()), (Duration::from_micros(10), 0));
}

#[test]
fn sq_controller_terminal_degraded() {
    let credits = credits(8, 0);
    let grant = credits.reserve(8).unwrap();
    let mut waiter = credits.waiter(1, us(100));
    let (_, at) = full(waiter.poll(us(0)));
    assert!(credits.close() && !credits.close());
    assert_ne!(credits.revision(), at.revision, "who waits hears of it");
    assert_eq!(waiter.poll(us(1)), Err(Refused::Closed));
    assert_eq!(credits.waiting(), 0);
    // What comes back opens nothing.
    credits.release(grant);
    assert!(credits.is_free());
    assert_eq!(credits.reserve(1), Err(Refused::Closed));
}

#[test]
fn sq_controller_admission_counters() {
    let credits = credits(10, 4);
    let four = credits.reserve(4).unwrap();
    let two = credits.reserve(2).unwrap();
    let mut waiter = credits.waiter(5, us(100));
    let (required, at) = full(waiter.poll(us(10)));
    assert_eq!((required, at.free_works()), (5, 4));
    // Looks and what comes back are noted while somebody waits.
    credits.polled(us(20));
    credits.release(two);
    let served = waiter.poll(us(30)).unwrap();
    let first = credits.counters().report();
    assert_eq!(
        (first.polled_at, first.released_at),
        (Some(us(20)), Some(us(20)))
    );
    assert_eq!((first.recent_releases, first.recent_released_works), (1, 2));
    assert_eq!(
        (first.waits, first.waited, first.timeouts),
        (1, Duration::from_micros(20), 0)
    );
    assert_eq!(first.held_works_high, 9);
    // Nobody waits any more.
    credits.polled(us(40));
    credits.release(served);
    assert_eq!(credits.counters().report().polled_at, Some(us(20)));
    let _all = credits.reserve(6).unwrap();
    let mut late = credits.waiter(1, us(50));
    full(late.poll(us(45)));
    assert!(matches!(late.poll(us(50)), Err(Refused::TimedOut { .. })));
    let last = credits.counters().report();
    assert_eq!(
        (last.waits, last.timeouts, last.held_works_high),
        (2, 1, 10)
    );
    credits.release(four);
    assert_eq!(
        credits.reserve(11),
        Err(Refused::TooLarge {
            asked_works: 11,
            max_works: 10
        })
    );
}

#[test]
fn sq_controller_admission_degraded() {
    let credits = credits(8, 0);
    let before = credits.reserve(2).unwrap();
    assert!(credits.close());
    assert_eq!(credits.reserve(1), Err(Refused::Closed));
    assert_eq!(credits.waiter(1, us(9)).poll(us(0)), Err(Refused::Closed));
    assert_eq!(held(&credits), 2, "what was admitted before stays so");
    credits.release(before);
    assert_eq!(held(&credits), 0);
}

#[test]
fn sq_controller_admission_mark_degraded_wakes() {
    let credits = credits(4, 0);
    let _all = credits.reserve(4).unwrap();
    let (_, at) = full(credits.reserve(1));
    assert_eq!(credits.revision(), at.revision, "nothing to wake up for");
    assert!(credits.close());
    assert_ne!(credits.revision(), at.revision);
}

#[test]
fn admission_token_move_releases_once() {
    let credits = credits(8, 0);
    let grant = credits.reserve(3).unwrap();
    let other = credits.reserve(2).unwrap();
    let mut moved = grant;
    // As a batch gives it back: for each request one, and the last one the rest.
    let rest = moved.split_off(1);
    assert_eq!((moved.works(), rest.works(), held(&credits)), (1, 2, 5));
    credits.release(moved);
    assert_eq!(held(&credits), 4);
    credits.release(rest);
    credits.release(Grant::default());
    assert_eq!(held(&credits), 2);
    let mut place = other;
    let taken = core::mem::take(&mut place);
    credits.release(place);
    assert_eq!(held(&credits), 2, "it has been taken from there");
    credits.release(taken);
    assert!(credits.is_free());
}

#[test]
fn what_a_newcomer_is_told() {
    let all = |credits: &Credits| {
        let _held = credits.reserve(8).unwrap();
    };
    let over = |credits: &Credits| assert!(credits.close());
    // (name, what happened before, asked for, answer: taken, or what is missing)
    type Before<'a> = &'a dyn Fn(&Credits);
    let cases: [(_, Before<'_>, _, Result<(), &str>); 6] = [
        ("all there is", &|_| (), 8, Ok(())),
        ("more than there is", &|_| (), 9, Err("TooLarge")),
        ("even when it is closed", &over, 9, Err("TooLarge")),
        ("one too many", &all, 1, Err("Full")),
        ("nothing", &all, 0, Ok(())),
        ("closed", &over, 1, Err("Closed")),
    ];
    for (name, before, asked, expected) in cases {
        let credits = credits(8, 4);
        before(&credits);
        let held_before = held(&credits);
        let got = credits
            .reserve(asked)
            .map(|grant| assert_eq!(grant.works(), asked));
        match expected {
            Ok(()) => assert_eq!(got, Ok(()), "{name}"),
            Err(why) => {
                let text = std::format!("{got:?}");
                assert!(
                    text.starts_with(&std::format!("Err({why}")),
                    "{name}: {text}"
                );
                assert_eq!(held(&credits), held_before, "{name}: nothing was taken");
            }
        }
    }
}

#[test]
fn every_change_has_its_revision() {
    let credits = credits(8, 0);
    let mut last = credits.revision();
    let mut changed = |name: &str, expected: bool| {
        assert_eq!(credits.revision() != last, expected, "{name}");
        last = credits.revision();
    };
    let grant = credits.reserve(2).unwrap();
    changed("reserve", true);
    let _ = credits.reserve(7);
    changed("a refusal", false);
    let mut waiter = credits.waiter(7, Instant::MAX);
    full(waiter.poll(us(0)));
    changed("a place in line", false);
    drop(waiter);
    changed("a place given up", true);
    credits.release(grant);
    changed("release", true);
    credits.release(Grant::default());
    changed("release of nothing", false);
    credits.close();
    changed("close", true);
    credits.close();
    changed("again", false);
}

#[test]
fn who_waits_is_served_in_turn() {
    let credits = credits(8, 0);
    let mut all = credits.reserve(8).unwrap();
    let mut large = credits.waiter(6, Instant::MAX);
    let mut small = credits.waiter(1, Instant::MAX);
    full(large.poll(us(0)));
    full(small.poll(us(0)));
    credits.release(all.split_off(4));
    // Four are free, but the six came first.
    full(small.poll(us(1)));
    full(large.poll(us(1)));
    credits.release(all);
    let _first = large.poll(us(2)).unwrap();
    let _second = small.poll(us(2)).unwrap();
    // Who gives up lets the next one in.
    let mut first = credits.waiter(8, Instant::MAX);
    let mut second = credits.waiter(1, Instant::MAX);
    full(first.poll(us(3)));
    full(second.poll(us(3)));
    drop(first);
    let _third = second.poll(us(4)).unwrap();
}

#[test]
fn a_full_line_refuses_and_is_not_overtaken() {
    let credits = credits(8, 0);
    let all = credits.reserve(8).unwrap();
    let mut waiters: Vec<_> = (0..=LINE_PLACES)
        .map(|_| credits.waiter(8, Instant::MAX))
        .collect();
    for waiter in &mut waiters {
        full(waiter.poll(us(0)));
    }
    assert_eq!(credits.waiting(), LINE_PLACES);
    credits.release(all);
    full(waiters[LINE_PLACES].poll(us(1)));
    let _first = waiters[0].poll(us(1)).unwrap();
    full(waiters[LINE_PLACES].poll(us(2)));
    assert_eq!(credits.waiting(), LINE_PLACES, "now it has a place");
}

#[derive(Clone, Copy, Debug)]
enum Do {
    Reserve(u16),
    Release(usize),
    Split(usize, u16),
    Close,
}

impl Arbitrary for Do {
    fn arbitrary(g: &mut Gen) -> Self {
        let which = usize::from(u8::arbitrary(g));
        let works = u16::arbitrary(g) % 10;
        match u8::arbitrary(g) % 40 {
            0..16 => Self::Reserve(works),
            16..32 => Self::Release(which),
            32..39 => Self::Split(which, works),
            _ => Self::Close,
        }
    }
}

quickcheck! {
    // Held is the sum of what has been given and not come back, and never more than there is.
    fn credits_are_conserved(ops: Vec<Do>) -> bool {
        let credits = credits(16, 3);
        let mut grants: Vec<Grant> = Vec::new();
        let mut is_closed = false;
        for op in ops {
            match op {
                Do::Reserve(works) => {
                    let taken = credits.reserve(works);
                    if taken.is_ok() && is_closed {
                        return false;
                    }
                    grants.extend(taken);
                }
                Do::Release(which) if !grants.is_empty() => {
                    credits.release(grants.swap_remove(which % grants.len()));
                }
                Do::Split(which, works) if !grants.is_empty() => {
                    let index = which % grants.len();
                    let before = grants[index].works();
                    let rest = grants[index].split_off(works);
                    if grants[index].works() + rest.works() != before {
                        return false;
                    }
                    grants.push(rest);
                }
                Do::Close => {
                    is_closed = true;
                    credits.close();
                }
                _ => {}
            }
            let given: u16 = grants.iter().map(Grant::works).sum();
            if held(&credits) != given || given > 16 {
                return false;
            }
        }
        true
    }

    // However small requests keep coming, who waits is served before all that came later.
    fn nobody_starves(sizes: Vec<u16>, watermark: u16) -> bool {
        let credits = credits(16, watermark % 20);
        let mut waiting: Vec<(usize, Waiter<'_>)> = Vec::new();
        let mut running = std::collections::VecDeque::new();
        let mut served = Vec::new();
        for (number, size) in sizes.iter().take(40).enumerate() {
            waiting.push((number, credits.waiter(size % 16 + 1, Instant::MAX)));
            let mut refused = Vec::new();
            // Asked in the wrong order, each time.
            for (number, mut waiter) in waiting.drain(..).rev() {
                match waiter.poll(us(0)) {
                    Ok(grant) => { running.push_back(grant); served.push(number); }
                    Err(_) => refused.push((number, waiter)),
                }
            }
            refused.reverse();
            waiting = refused;
            if size % 2 == 0 && let Some(grant) = running.pop_front() {
                credits.release(grant);
            }
        }
        // Whoever is left is served once works end, one after the other.
        for _ in 0..sizes.len() {
            for grant in running.drain(..) {
                credits.release(grant);
            }
            if let Some((number, waiter)) = waiting.first_mut() {
                match waiter.poll(us(0)) {
                    Ok(grant) => { running.push_back(grant); served.push(*number); waiting.remove(0); }
                    Err(_) => return false,
                }
            }
        }
        waiting.is_empty() && served.is_sorted() && served.len() == sizes.len().min(40)
    }
}

/// A waiter that sleeps until the revision differs from the one it was given always wakes up, and no more is ever held than
/// there is.
#[test]
fn no_wake_up_is_lost_between_threads() {
    const EACH: u32 = if cfg!(miri) { 40 } else { 5_000 };
    /// Far more than three preempted threads need.
    const LOST: std::time::Duration = std::time::Duration::from_secs(60);
    let credits = credits(5, 3);
    // Instead of a panic, which would leave the others waiting for ever.
    let wrong = AtomicU32::new(0);
    // Nobody else's change helps: with one lost all three wait for ever.
    let wait = |seen: Snapshot| {
        let since = std::time::Instant::now();
        while credits.revision() == seen.revision {
            if since.elapsed() > LOST {
                return false;
            }
            thread::yield_now();
        }
        true
    };
    thread::scope(|scope| {
        for works in [3, 4, 5] {
            let (credits, wrong, wait) = (&credits, &wrong, &wait);
            scope.spawn(move || {
                for _ in 0..EACH {
                    let mut waiter = credits.waiter(works, Instant::MAX);
                    let grant = loop {
                        match waiter.poll(us(0)) {
                            Ok(grant) => break grant,
                            Err(Refused::Full { at, .. }) => assert!(wait(at), "lost"),
                            Err(other) => panic!("{other:?}"),
                        }
                    };
                    wrong.fetch_add(u32::from(held(credits) > 5), SeqCst);
                    credits.release(grant);
                }
            });
        }
    });
    assert_eq!(wrong.load(SeqCst), 0);
    assert_eq!((held(&credits), credits.waiting()), (0, 0));
}
