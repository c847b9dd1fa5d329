//! Driving a worker, on its own thread or on that of somebody who waits for a batch.

use std::os::fd::AsFd;
use std::slice;
use std::sync::atomic::{Ordering::*, fence};

use polyrail_core::orchestrator::{AtOnce, Request};
use polyrail_core::time::{Duration, Instant};
use polyrail_core::work::POST_MAX;

use super::Loop;
use super::serve::Turn;
use crate::batch::Shared as BatchShared;
use crate::neighbours::Neighbours;
use crate::post::{NOBODY, THREAD, WAITER};
use crate::spin::Idle;
use crate::stats::{End, Over};

impl Loop<'_> {
    /// Drives on the worker's thread, until there is nothing to do or somebody who waits asks for the drive lock.
    pub(super) fn run(&mut self) -> Turn {
        let post = self.post;
        post.alarm.asleep.store(NOBODY, Relaxed);
        post.alarm.leased.store(false, Relaxed);
        // Who submits either sees that, or is seen in the first round.
        fence(SeqCst);
        // A call for a waiter that was awake already: unheard, it would keep the endpoint's descriptor ready.
        let _ = rustix::io::read(&post.alarm.wake_waiter, &mut [0; 8]);
        let mut idle_since = None;
        loop {
            let (busy, now) = self.round(self.around.clock.now());
            if self.is_due_to_close(now) {
                self.close();
                return Turn::Over;
            }
            if !self.afterwards.is_empty() {
                return Turn::Tell;
            }
            if self.ending.at.is_none() && post.waiters.asking.load(Relaxed) > 0 {
                post.alarm.asleep.store(THREAD, Relaxed);
                return Turn::Lease;
            }
            let idle = self.idle(THREAD);
            if !self.spins(now, busy, idle, &mut idle_since) && self.may_sleep(THREAD) {
                self.endpoint.arm();
                let until = self.due();
                let looks_at = until.unwrap_or(Instant::MAX);
                post.alarm.looks_at.store(looks_at.as_nanos(), Relaxed);
                return Turn::Sleep(until);
            }
        }
    }

    /// Drives from `start`, which is now, on the thread of somebody who waits for a batch, `at_once` after something was
    /// submitted. Whether the worker's thread is needed then.
    pub(crate) fn drive(
        &mut self,
        batch: &BatchShared,
        start: std::time::Instant,
        timeout: std::time::Duration,
        at_once: bool,
    ) -> bool {
        let post = self.post;
        post.alarm.asleep.store(NOBODY, Relaxed);
        post.waiters.drives.store(true, Relaxed);
        post.waiters.turns.fetch_add(1, Relaxed);
        // Whoever had the drive lock before may have read the clock later.
        let mut now = self.around.clock.at(start).max(self.wait_policy.looked);
        let until = now + Duration::from(timeout);
        let comes_back = self.wait_policy.begin(now, at_once);
        self.endpoint.announce(self.wait_policy.is_spinning());
        let mut idle_since = None;
        let mut peeking = false;
        let mut is_first = true;
        loop {
            let busy;
            (busy, now) = self.round(now);
            if std::mem::take(&mut peeking) {
                self.wait_policy.peek.tell(self.wait_policy.moved);
            }
            // It may have ended before the drive lock was free; since then it ends in a round that has something to do.
            let over = (busy || is_first) && !batch.is_pending();
            is_first = false;
            // A shutdown is the thread's business, because it ends with it.
            if over || self.ending.at.is_some() {
                break;
            }
            if now >= until || !self.afterwards.is_empty() {
                break;
            }
            if self.wait_policy.count(now) {
                self.endpoint.announce(self.wait_policy.is_spinning());
            }
            let idle = self.idle(WAITER);
            if !self.spins(now, busy, idle, &mut idle_since) {
                // On one core the peer may have run while something was posted, and its answer be there.
                peeking = busy && !self.wait_policy.moved && self.wait_policy.peek.is_due();
                if !peeking && self.may_sleep(WAITER) {
                    let due = self.due().unwrap_or(Instant::MAX).min(until);
                    self.wait_policy.sleeps();
                    self.sleep_here(due.since(now));
                    post.alarm.asleep.store(NOBODY, Relaxed);
                    idle_since = None;
                }
            }
            now = self.around.clock.now();
        }
        self.wait_policy.end();
        post.waiters.drives.store(false, Relaxed);
        let may_sleep = self.may_sleep(THREAD);
        post.alarm.asleep.store(THREAD, Relaxed);
        let due = self.due().unwrap_or(Instant::MAX).as_nanos();
        post.alarm.due_at.store(due, Relaxed);
        // It is told once: from then on it looks by then.
        let looks_late = due < post.alarm.looks_at.load(Relaxed);
        if looks_late {
            post.alarm.looks_at.fetch_min(due, Relaxed);
        }
        !may_sleep || self.ending.at.is_some() || post.needs_thread(comes_back) || looks_late
    }

    /// Moves what requests are about, past all tables, if core and the lanes' endpoints agree to that: several at once, where one
    /// lane can. Whether they have.
    pub(crate) fn carry_at_once(
        &mut self,
        now: Instant,
        requests: impl Iterator<Item = Option<Request>>,
    ) -> bool {
        if self.ending.at.is_some() {
            return false;
        }
        let mut ways = heapless::Vec::<AtOnce, POST_MAX>::new();
        for request in requests {
            let Some(way) = request.and_then(|request| self.core.at_once(&request)) else {
                return false;
            };
            let is_other = |first: &AtOnce| (first.lane, first.epoch) != (way.lane, way.epoch);
            if ways.is_full() || ways.first().is_some_and(is_other) {
                if !self.carry_ways(now, &ways) {
                    return false;
                }
                ways.clear();
            }
            let _ = ways.push(way);
        }
        self.carry_ways(now, &ways)
    }

    /// Does so with what goes over one lane. Now and then core learns how long it takes.
    fn carry_ways(&mut self, now: Instant, ways: &[AtOnce]) -> bool {
        let Some(first) = ways.first() else {
            return true;
        };
        let start = first.is_measured.then(|| self.around.clock.now());
        let many: heapless::Vec<_, POST_MAX>;
        let works = match ways {
            [_] => slice::from_ref(&first.work),
            _ => {
                many = ways.iter().map(|way| way.work).collect();
                &many
            }
        };
        if !self
            .endpoint
            .carry_at_once(now, first.lane, first.epoch, works)
        {
            return false;
        }
        let took = start.map(|start| self.around.clock.now().since(start));
        let bytes: u64 = works.iter().map(|work| u64::from(work.length)).sum();
        for (index, way) in ways.iter().enumerate() {
            let length = u64::from(way.work.length);
            // Its part of the time that all of them took.
            let part = |took: Duration| took.times(length).divided_by(bytes.max(1));
            let took = took.filter(|_| index == 0).map(part);
            let report = self.core.handle_at_once(now, way, took);
            let end = End {
                over: Over::Transport(way.transport),
                op: way.work.op,
                length,
                status: report.status,
                delivered_bytes: report.delivered_bytes,
                took,
            };
            self.post.requests.count(&end, 1);
        }
        true
    }

    /// Sleeps without releasing the drive lock.
    pub(super) fn sleep_here(&mut self, longest: Duration) {
        self.endpoint.arm();
        let call = &self.post.alarm.wake_waiter;
        match self.endpoint.sleep(call.as_fd(), Some(longest)) {
            Ok(false) => {}
            Ok(true) => {
                let _ = rustix::io::read(call, &mut [0; 8]);
            }
            Err(error) => {
                log::error!("a waiter cannot sleep: {error}");
                std::thread::yield_now();
            }
        }
    }

    pub(super) fn idle(&self, who: u8) -> Idle {
        self.wait_policy
            .idle(who, self.endpoint.waits(), self.around.posts)
    }

    /// Whether to look again instead of sleeping.
    pub(super) fn spins(
        &self,
        now: Instant,
        busy: bool,
        idle: Idle,
        idle_since: &mut Option<Instant>,
    ) -> bool {
        let due = || self.endpoint.poll_timeout().is_some_and(|at| at <= now);
        self.wait_policy.spins(now, busy, idle, due, idle_since)
    }

    /// Announces who is going to sleep. `false`: something came before that, and it is withdrawn.
    pub(super) fn may_sleep(&self, who: u8) -> bool {
        self.post.alarm.asleep.store(who, Relaxed);
        fence(SeqCst);
        let may = !self.post.has_news() && !self.intake.is_ready();
        match may {
            true => self.post.pulse.sleeps(),
            false => self.post.alarm.asleep.store(NOBODY, Relaxed),
        }
        may
    }

    /// When there is something to do by itself.
    pub(super) fn due(&mut self) -> Option<Instant> {
        let core = match self.catch_up.due() {
            None => self.core.poll_timeout().map(|(at, _)| at),
            by => by,
        };
        let leaving = self.lost.due();
        let neighbours = self.around.neighbours();
        let heartbeat = neighbours.and_then(Neighbours::poll_timeout);
        let endpoint = self.endpoint.poll_timeout();
        let handover = self.handover.due();
        let held = self.intake.due();
        let unseen = self.unseen_batches.due();
        let own = [core, handover, held, self.ending.at, leaving, unseen];
        let others = [endpoint, heartbeat];
        own.into_iter().chain(others).flatten().min()
    }
}
