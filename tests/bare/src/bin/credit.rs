//! No panic: the credits of a lane's send queue, from reservation to release and through every end.
#![cfg_attr(target_os = "none", no_std, no_main)]

use core::hint::black_box;

use polyrail_core::send_queue::credit::{
    Amount, CreditLimits, Credits, Grant, Refused, Snapshot, Waiter,
};
use polyrail_core::time::Instant;
use polyrail_core::units::Epoch;

#[inline(never)]
fn new(limits: CreditLimits, epoch: Epoch) -> Credits {
    Credits::new(limits, epoch)
}

#[inline(never)]
fn reserve(credits: &Credits, amount: Amount) -> Result<Grant, Refused> {
    credits.reserve(amount)
}

#[inline(never)]
fn wait(waiter: &mut Waiter<'_>, now: Instant) -> Result<Grant, Refused> {
    waiter.poll(now)
}

#[inline(never)]
fn post(credits: &Credits, grant: Grant) -> Result<Grant, Refused> {
    credits.begin_post(grant).map(|(_, grant)| grant)
}

#[inline(never)]
fn release(credits: &Credits, mut grant: Grant, works: u16) -> bool {
    let part = grant.split_off(works);
    credits.release(part) && credits.release(grant)
}

#[inline(never)]
fn stand(credits: &Credits, epoch: Epoch) -> bool {
    credits.degrade() && credits.restore() && credits.terminate() && credits.reopen(epoch)
}

#[inline(never)]
fn look(credits: &Credits) -> (Snapshot, Epoch, usize, bool) {
    (
        credits.snapshot(),
        credits.epoch(),
        credits.waiting(),
        credits.is_drained(),
    )
}

fn credit() {
    let limits = CreditLimits {
        max: Amount { works: 8, reads: 2 },
        resume_watermark_works: 4,
    };
    let credits = black_box(new(black_box(limits), black_box(Epoch(1))));
    let amount = || black_box(Amount::writes(2));
    let grant = black_box(reserve(&credits, amount()));
    let mut waiter = black_box(credits.waiter(amount(), Instant::MAX));
    let waited = black_box(wait(&mut waiter, black_box(Instant::ZERO)));
    drop(black_box(waiter));
    for grant in [grant, waited].into_iter().flatten() {
        if let Ok(grant) = post(&credits, grant) {
            black_box(release(&credits, grant, black_box(1)));
        }
    }
    black_box(stand(&credits, black_box(Epoch(2))));
    black_box(look(&credits));
}

polyrail_tests_bare::no_panic!(credit);
