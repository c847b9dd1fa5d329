//! No panic: credits, from reservation to release, who waits for them, and why there were none.
#![cfg_attr(target_os = "none", no_std, no_main)]

use core::hint::black_box;

use polyrail_core::send_queue::credit::{CreditLimits, Credits, Grant, Refused, Snapshot, Waiter};
use polyrail_core::send_queue::diagnostics::{Diagnosis, Pressure};
use polyrail_core::time::Instant;

#[inline(never)]
fn new(limits: CreditLimits) -> Credits {
    Credits::new(limits)
}

#[inline(never)]
fn reserve(credits: &Credits, works: u16) -> Result<Grant, Refused> {
    credits.reserve(works)
}

#[inline(never)]
fn wait(waiter: &mut Waiter<'_>, now: Instant) -> Result<Grant, Refused> {
    waiter.poll(now)
}

#[inline(never)]
fn release(credits: &Credits, mut grant: Grant, works: u16) {
    let part = grant.split_off(works);
    credits.release(part);
    credits.release(grant);
}

#[inline(never)]
fn verdict(credits: &Credits, now: Instant, refused: &Refused) -> Option<Pressure> {
    Diagnosis::of(now, credits, 2, refused).map(|diagnosis| diagnosis.pressure())
}

#[inline(never)]
fn look(credits: &Credits, now: Instant) -> (Snapshot, usize, bool) {
    credits.polled(now);
    (credits.snapshot(), credits.waiting(), credits.is_free())
}

fn credit() {
    let limits = CreditLimits {
        max_works: 8,
        resume_watermark_works: 4,
    };
    let credits = black_box(new(black_box(limits)));
    let works = || black_box(2);
    let grant = black_box(reserve(&credits, works()));
    let mut waiter = black_box(credits.waiter(works(), Instant::MAX));
    let waited = black_box(wait(&mut waiter, black_box(Instant::ZERO)));
    black_box(look(&credits, black_box(Instant::ZERO)));
    drop(black_box(waiter));
    for answer in [grant, waited] {
        match answer {
            Ok(grant) => release(&credits, grant, black_box(1)),
            Err(refused) => {
                black_box(verdict(&credits, black_box(Instant::ZERO), &refused));
            }
        }
    }
    black_box(credits.close());
    black_box(look(&credits, black_box(Instant::ZERO)));
}

polyrail_tests_bare::no_panic!(credit);
