//! What a worker's thread does with a loop that others may drive too: it drives, sleeps, or leaves it to those who wait.

use std::sync::atomic::Ordering::*;

use polyrail_core::time::{Duration, Instant};
use polyrail_transport::clock::Clock;

use super::sleeper::Sleeper;
use crate::drive_lock::NotDriven;
use crate::post::Post;

/// How long a worker's thread leaves the work to those who wait, before it looks whether they still do.
const LEASE_MIN: Duration = Duration::from_millis(1);
/// The same, if they did whenever it looked: each look disturbs them. It bounds the delay of a batch that is
/// submitted after many that were waited for, and is neither waited for nor looked at. Core's usual timers are
/// longer: if the thread slept past one of them, whoever releases the drive lock would have to wake it.
const LEASE_MAX: Duration = Duration::from_millis(4);

/// What the thread does with a loop that others may drive too.
pub(super) fn serve(post: &Post, mut sleeper: Sleeper, clock: Clock) {
    let mut drives = 0;
    let mut called = true;
    let mut lease = LEASE_MIN;
    loop {
        let before = std::mem::replace(&mut drives, post.waiters.turns.load(Relaxed));
        let due = Instant::from_nanos(post.alarm.due_at.load(Relaxed));
        let is_driven = before != drives && clock.now() < due;
        let leave_it =
            !called && post.alarm.leased.load(Relaxed) && is_driven && !post.is_left_alone();
        let turn = match leave_it {
            true => Ok(Turn::Lease),
            false => post.while_driving(|driven| driven.run()),
        };
        called = match turn {
            Ok(Turn::Over) | Err(NotDriven::Gone) => return,
            Ok(Turn::Tell) => true,
            Ok(Turn::Sleep(until)) => {
                lease = LEASE_MIN;
                sleeper.heed_endpoint(true);
                sleeper.sleep(until.map(|at| at.since(clock.now())))
            }
            Ok(Turn::Lease) | Err(NotDriven::Taken) => {
                lease = match called {
                    true => LEASE_MIN,
                    false => (lease + lease).min(LEASE_MAX),
                };
                let now = clock.now();
                let due = Instant::from_nanos(post.alarm.due_at.load(Relaxed));
                // What is overdue is done by whoever has the drive lock.
                let looks_at = match due > now {
                    true => due.min(now + lease),
                    false => now + lease,
                };
                post.alarm.looks_at.store(looks_at.as_nanos(), Relaxed);
                post.alarm.leased.store(true, Relaxed);
                sleeper.heed_endpoint(false);
                sleeper.sleep(Some(looks_at.since(now)))
            }
        };
    }
}

/// How the thread's turn ended.
pub(super) enum Turn {
    /// There is nothing to do until then, unless it is called or the endpoint moves.
    Sleep(Option<Instant>),
    /// Somebody who waits takes over.
    Lease,
    /// The program was told something.
    Tell,
    /// The worker has ended.
    Over,
}
