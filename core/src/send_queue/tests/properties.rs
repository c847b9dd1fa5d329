//! What holds however calls interleave.

extern crate std;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::thread;
use std::vec::Vec;

use super::*;
use crate::send_queue::admission::Token;
use crate::send_queue::credit::Waiter;
use crate::send_queue::failure::{Entry, Recovery};
use crate::table::Row;
use crate::work::Cause;
use quickcheck::{Arbitrary, Gen, quickcheck};

#[derive(Clone, Copy, Debug)]
enum Do {
    Reserve(u16, bool),
    Release(usize),
    Split(usize, u16),
    Admit(u16),
    Convert(usize),
    Forget(usize),
    Degrade,
    Restore,
    Terminate,
    Reopen,
}

impl Arbitrary for Do {
    fn arbitrary(g: &mut Gen) -> Self {
        let which = usize::from(u8::arbitrary(g));
        let works = u16::arbitrary(g) % 10;
        match u8::arbitrary(g) % 24 {
            0..5 => Self::Reserve(works, bool::arbitrary(g)),
            5..10 => Self::Release(which),
            10..12 => Self::Split(which, works),
            12..16 => Self::Admit(works),
            16..19 => Self::Convert(which),
            19 => Self::Forget(which),
            20 => Self::Degrade,
            21 => Self::Restore,
            22 => Self::Terminate,
            _ => Self::Reopen,
        }
    }
}

quickcheck! {
    // Held is the sum of what has been given and not come back; so is admitted; both fit the lane.
    fn credits_are_conserved(ops: Vec<Do>) -> bool {
        let credits = credits(16, 3);
        let (mut grants, mut tokens): (Vec<Grant>, Vec<(Token<'_>, Epoch)>) = Default::default();
        let mut epoch = EPOCH;
        for op in ops {
            match op {
                Do::Reserve(works, reads) => {
                    let reads = if reads { works.min(255) as u8 } else { 0 };
                    grants.extend(credits.reserve(Amount { works, reads }));
                }
                Do::Release(which) if !grants.is_empty() => {
                    let grant = grants.swap_remove(which % grants.len());
                    let current = grant.epoch() == epoch || grant.amount() == Amount::default();
                    if credits.release(grant) != current {
                        return false;
                    }
                }
                Do::Split(which, works) if !grants.is_empty() => {
                    let index = which % grants.len();
                    let before = grants[index].amount();
                    let rest = grants[index].split_off(works);
                    let sum = grants[index].amount().plus(rest.amount());
                    if sum != before {
                        return false;
                    }
                    grants.push(rest);
                }
                Do::Admit(works) => tokens.extend(credits.admit(works, works, None).map(|token| (token, epoch))),
                Do::Convert(which) if !tokens.is_empty() => {
                    let (token, of) = tokens.swap_remove(which % tokens.len());
                    match token.reserve(0) {
                        Ok(grant) => grants.push(grant),
                        Err((token, _)) => tokens.push((token, of)),
                    }
                }
                Do::Forget(which) if !tokens.is_empty() => {
                    tokens.swap_remove(which % tokens.len()).0.release();
                }
                Do::Degrade => { credits.degrade(); },
                Do::Restore => { credits.restore(); },
                Do::Terminate => { credits.terminate(); },
                Do::Reopen => {
                    let next = Epoch(epoch.0 + 1);
                    if credits.reopen(next) {
                        epoch = next;
                    }
                }
                _ => {}
            }
            let of_now = |grant: &&Grant| grant.epoch() == epoch;
            let given = grants.iter().filter(of_now).fold(Amount::default(), |sum, grant| sum.plus(grant.amount()));
            let promised: u16 = tokens.iter().filter(|(_, of)| *of == epoch).map(|(token, _)| token.works()).sum();
            let at = credits.snapshot();
            if at.held != given || at.admitted_works != promised || given.works > 16 || given.reads > 4 {
                return false;
            }
        }
        true
    }

    // What was admitted always finds its credits while everybody comes by admission.
    fn admission_keeps_its_promise(ops: Vec<(bool, u16)>) -> bool {
        let credits = credits(16, 0);
        let mut tokens = Vec::new();
        let mut grants = Vec::new();
        for (admits, works) in ops {
            if admits {
                tokens.extend(credits.admit(works % 8, 0, None));
            } else if let Some(token) = tokens.pop() {
                match token.reserve(0) {
                    Ok(grant) => grants.push(grant),
                    Err(_) => return false,
                }
            }
            if works % 3 == 0 && let Some(grant) = grants.pop() {
                credits.release(grant);
            }
        }
        true
    }

    // However small requests keep coming, who waits is served before all that came later.
    fn nobody_starves(sizes: Vec<u16>, watermark: u16) -> bool {
        let lane = credits(16, watermark % 20);
        let mut waiting: Vec<(usize, Waiter<'_>)> = Vec::new();
        let mut running = std::collections::VecDeque::new();
        let mut served = Vec::new();
        for (number, size) in sizes.iter().take(40).enumerate() {
            waiting.push((number, lane.waiter(writes(size % 16 + 1), Instant::MAX)));
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
                lane.release(grant);
            }
        }
        // Whoever is left is served once works end, one after the other.
        for _ in 0..sizes.len() {
            for grant in running.drain(..) {
                lane.release(grant);
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

    // Every record comes out once: by a completion, by the answer to its post, or as an orphan; with its credits.
    fn every_owner_is_told_once(ops: Vec<(u8, u8, bool)>, gone: bool) -> bool {
        let credits = credits(500, 0);
        let mut rows = [const { Row::EMPTY }; 24];
        let mut ledger = Ledger::new(&mut rows);
        let mut outstanding: BTreeMap<char, u32> = BTreeMap::new();
        let mut told: BTreeMap<char, u32> = BTreeMap::new();
        let mut posted = Vec::new();
        let mut grants = Vec::new();
        for (op, pick, signalled) in ops {
            let owner = char::from(b'a' + pick % 5);
            match op % 4 {
                0 | 1 => {
                    let works = u16::from(op % 7) + 1;
                    let Ok(grant) = credits.reserve(writes(works)) else { continue };
                    let entered = match ledger.insert(record(owner, grant, signalled)) {
                        Ok(entered) => entered,
                        Err(record) => { credits.release(record.grant); continue }
                    };
                    *outstanding.entry(owner).or_default() += u32::from(works);
                    let accepted = usize::from(pick) % (usize::from(works) + 1);
                    let cut = op % 4 == 1;
                    let stop = if cut { Stop::Full } else { Stop::All };
                    let accepted = if cut { accepted } else { usize::from(works) };
                    ledger.settle_post(&[entered], took(accepted, stop), accepted as u32, |record| {
                        *told.entry(record.owner).or_default() += record.requests;
                        grants.push(record.grant);
                    });
                    if accepted == usize::from(works) && signalled {
                        posted.push(entered.id);
                    }
                }
                2 if !posted.is_empty() => {
                    let id = posted.remove(usize::from(pick) % posted.len());
                    ledger.complete(id, |record| {
                        *told.entry(record.owner).or_default() += record.requests;
                        grants.push(record.grant);
                    });
                }
                _ => {}
            }
        }
        let cause = Cause::Fatal;
        let entry = if gone { Entry::DeviceGone { cause } } else { Entry::CompletionFailed { owner: 'c', cause } };
        let Some(recovery) = Recovery::begin(&credits, &mut ledger, entry) else { return false };
        let mut owners = Vec::new();
        let done = recovery.poll(&credits, &mut ledger, |grant| grants.push(grant), |failed| {
            owners.push(failed.orphans.owner);
            *told.entry(failed.orphans.owner).or_default() += failed.orphans.requests;
        });
        // What is left has a signal behind it, and is flushed.
        for id in posted {
            ledger.complete(id, |record| {
                *told.entry(record.owner).or_default() += record.requests;
                grants.push(record.grant);
            });
        }
        let distinct: std::collections::BTreeSet<_> = owners.iter().collect();
        let culprit_first = gone || !owners.contains(&'c') || owners.first() == Some(&'c');
        let returned = grants.into_iter().all(|grant| credits.release(grant));
        done.is_ok() && returned && culprit_first && distinct.len() == owners.len()
            && outstanding == told && held(&credits) == 0 && ledger.is_empty()
    }
}

/// Threads reserve, post and release until the lane has been closed and rebuilt often enough.
#[test]
fn threads_conserve_credits_across_rebuilds() {
    const REBUILDS: u32 = if cfg!(miri) { 10 } else { 300 };
    let credits = credits(8, 3);
    let (rebuilt, posts) = (AtomicU32::new(0), AtomicU32::new(0));
    // Instead of a panic, which would leave the others waiting for ever.
    let wrong = AtomicU32::new(0);
    let over = || rebuilt.load(SeqCst) >= REBUILDS || wrong.load(SeqCst) > 0;
    thread::scope(|scope| {
        for works in [1, 3, 5] {
            let (credits, posts, wrong) = (&credits, &posts, &wrong);
            scope.spawn(move || {
                let mut waiter = credits.waiter(writes(works), Instant::MAX);
                while !over() {
                    let Ok(grant) = waiter.poll(us(0)) else {
                        thread::yield_now();
                        continue;
                    };
                    if let Ok((_posting, grant)) = credits.begin_post(grant) {
                        posts.fetch_add(1, SeqCst);
                        // While somebody posts, the lane is not rebuilt.
                        let same = credits.epoch() == grant.epoch();
                        wrong.fetch_add(u32::from(!same || !credits.release(grant)), SeqCst);
                    }
                    let token = credits.admit(1, 1, None);
                    let fits = credits.snapshot().held.works <= 8;
                    wrong.fetch_add(u32::from(!fits), SeqCst);
                    drop(token);
                }
            });
        }
        while !over() {
            let before = posts.load(SeqCst);
            while posts.load(SeqCst) == before && !over() {
                thread::yield_now();
            }
            credits.terminate();
            let next = Epoch(credits.epoch().0 + 1);
            while !credits.reopen(next) && !over() {
                thread::yield_now();
            }
            rebuilt.fetch_add(1, SeqCst);
        }
    });
    assert_eq!(wrong.load(SeqCst), 0);
    let at = credits.snapshot();
    assert_eq!((at.held, at.admitted_works), (Amount::default(), 0));
    assert_eq!(credits.epoch(), Epoch(1 + REBUILDS));
    assert_eq!((credits.is_drained(), credits.waiting()), (true, 0));
}

/// A waiter that sleeps until the revision differs from the one it was given always wakes up.
#[test]
fn no_wake_up_is_lost_between_threads() {
    const EACH: u32 = if cfg!(miri) { 40 } else { 5_000 };
    /// Far more than three preempted threads need.
    const LOST: std::time::Duration = std::time::Duration::from_secs(60);
    let credits = credits(2, 0);
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
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let mut waiter = credits.waiter(writes(2), Instant::MAX);
                    let grant = loop {
                        match waiter.poll(us(0)) {
                            Ok(grant) => break grant,
                            Err(Refused::Full { at, .. }) => assert!(wait(at), "lost"),
                            Err(other) => panic!("{other:?}"),
                        }
                    };
                    credits.release(grant);
                }
            });
        }
    });
    assert_eq!((held(&credits), credits.waiting()), (0, 0));
}
