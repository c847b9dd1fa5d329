//! Conversations between the parts; what one part does alone is tested beside it.

mod listed;
mod properties;
mod tables;

use super::SendQueueConfig;
use super::credit::{Amount, CreditLimits, Credits, Grant, Refused, Snapshot};
use super::ledger::{Entered, Ledger, Record};
use crate::time::{Duration, Instant};
use crate::units::Epoch;
use crate::work::{Posted, Stop};

const EPOCH: Epoch = Epoch(1);

fn us(micros: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(micros)
}

fn writes(works: u16) -> Amount {
    Amount::writes(works)
}

fn credits(works: u16, resume_watermark_works: u16) -> Credits {
    let max = Amount { works, reads: 4 };
    Credits::new(
        CreditLimits {
            max,
            resume_watermark_works,
        },
        EPOCH,
    )
}

fn held(credits: &Credits) -> u16 {
    credits.snapshot().held.works
}

fn admitted(credits: &Credits) -> u16 {
    credits.snapshot().admitted_works
}

/// What a refusal for lack of room saw.
fn full<T: core::fmt::Debug>(answer: Result<T, Refused>) -> (u16, Snapshot) {
    match answer {
        Err(Refused::Full { required_works, at }) => (required_works, at),
        other => panic!("not full: {other:?}"),
    }
}

fn record(owner: char, grant: Grant, signalled: bool) -> Record<char> {
    Record {
        owner,
        requests: u32::from(grant.amount().works),
        grant,
        signalled,
    }
}

/// Reserves and enters `works` of `owner`.
fn enter(
    credits: &Credits,
    ledger: &mut Ledger<'_, char>,
    owner: char,
    works: u16,
    signalled: bool,
) -> Entered {
    let grant = credits.reserve(writes(works)).unwrap();
    ledger.insert(record(owner, grant, signalled)).unwrap()
}

/// And posts them.
fn post(
    credits: &Credits,
    ledger: &mut Ledger<'_, char>,
    owner: char,
    works: u16,
    signalled: bool,
) -> Entered {
    let entered = enter(credits, ledger, owner, works, signalled);
    assert!(ledger.mark_posted(entered.id));
    entered
}

const fn took(accepted: usize, stop: Stop) -> Posted {
    Posted { accepted, stop }
}

const fn config() -> SendQueueConfig {
    SendQueueConfig::DEFAULT
}
