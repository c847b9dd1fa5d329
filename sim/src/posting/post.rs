//! Posts: the last look, the records, the doorbell, and what the device answers.

use polyrail_core::send_queue::credit::{Amount, Grant, Posting, Refused};
use polyrail_core::send_queue::failure::Entry;
use polyrail_core::send_queue::ledger::{Entered, PostOutcome, Record};
use polyrail_core::work::{Cause, Posted, Stop};

use super::pair::Item;
use super::wait::Thread;
use super::work::Work;
use super::worker::Job;
use super::{What, World};

/// After a post that was taken in part it is tried again after this.
const RETRY_NS: u64 = 10_000;

/// A post that is under way.
pub(super) struct Post<'a> {
    posting: Posting<'a>,
    entered: Vec<Entered>,
    items: Vec<Item>,
    works: Vec<Work>,
    answer: Posted,
}

impl<'a> World<'a> {
    /// With the lock of posting: the last look, the records, the doorbell.
    pub(super) fn post(&mut self, worker: usize, mut job: Job<'a>) {
        let credits = &self.credits[job.pair];
        let Some(first) = job.grants.pop_front() else {
            return self.give_up(worker, job, Cause::Flushed, Entry::RecheckFailed);
        };
        let (amount, epoch) = (first.amount(), first.epoch());
        let (posting, first) = match credits.begin_post(first) {
            Ok(begun) => begun,
            Err(refused) => {
                self.gave_back(job.pair, epoch, amount);
                return self.recheck_failed(worker, job, refused);
            }
        };
        job.grants.push_front(first);
        let works_max = self.post_works_max(&job);
        let works = job.in_hand().min(works_max);
        let later = (job.rest.len() as u16 - works).min(works_max);
        if job.in_hand() == works && later > 0 {
            let amount = job.amount(later);
            if let Ok(grant) = credits.reserve(amount) {
                self.took(job.pair, amount);
                job.grants.push_back(grant);
            }
        }
        let Some(post) = self.enter(&mut job, posting, works) else {
            return self.violate("the ledger has no room".to_owned());
        };
        let at = self.now + self.setup.engine.post_ns * u64::from(works);
        self.workers[worker].job = Some(job);
        self.workers[worker].post = Some(post);
        self.agenda.enter(at, What::Rings { worker });
    }

    fn recheck_failed(&mut self, worker: usize, mut job: Job<'a>, refused: Refused) {
        if refused == Refused::Terminal {
            return self.give_up(worker, job, Cause::Flushed, Entry::RecheckFailed);
        }
        for grant in job.grants.drain(..) {
            self.release(job.pair, grant);
        }
        self.unlock(worker, job.pair);
        self.workers[worker].job = Some(job);
        self.wake_at(self.now, Thread::Worker(worker));
    }

    /// Enters the next `works` of a job, one record for each run up to a signalled one.
    fn enter(&mut self, job: &mut Job<'a>, posting: Posting<'a>, works: u16) -> Option<Post<'a>> {
        let row = &mut self.pairs[job.pair];
        let free = self.credits[job.pair].snapshot().free();
        // Credits in hand are left, too, for the works that come after.
        let later = job.in_hand() - works;
        let mut post = Post {
            posting,
            entered: Vec::new(),
            items: Vec::new(),
            works: job.rest.drain(..usize::from(works)).collect(),
            answer: Posted {
                accepted: 0,
                stop: Stop::All,
            },
        };
        let mut begin = 0;
        while begin < post.works.len() {
            let mut grant = job.grants.pop_front()?;
            let room = usize::from(grant.amount().works).min(post.works.len() - begin);
            let mut end = begin;
            let mut signalled = false;
            while end < begin + room && !signalled {
                end += 1;
                // With credits in hand for what follows, the queue pair does not go idle.
                let last = end == post.works.len()
                    && grant.amount().works as usize == end - begin
                    && job.grants.is_empty();
                let in_hand = works - end as u16 + later;
                let left = Amount {
                    works: free.works + in_hand,
                    reads: free.reads.saturating_add(job.amount(in_hand).reads),
                };
                signalled = row.cadence.next(job.reads, left, last);
            }
            let rest = grant.split_off((end - begin) as u16);
            if rest.amount().works > 0 {
                job.grants.push_front(rest);
            }
            let run = post.works.get(begin..end)?;
            let record = Record {
                owner: job.task,
                grant,
                requests: run.iter().map(|work| work.requests).sum(),
                signalled,
            };
            let entered = row.ledger.insert(record).ok()?;
            self.tasks[job.task as usize].recorded += run.len() as u32;
            post.entered.push(entered);
            let item = |(index, work): (usize, &Work)| Item {
                task: job.task,
                cookie: entered.id.to_bits(),
                bytes: work.bytes,
                signalled: signalled && begin + index + 1 == end,
            };
            post.items.extend(run.iter().enumerate().map(item));
            begin = end;
        }
        Some(post)
    }

    /// The doorbell: the device takes what it takes.
    pub(super) fn ring(&mut self, worker: usize) {
        let Some(mut post) = self.workers[worker].post.take() else {
            return;
        };
        let Some(pair) = self.workers[worker].job.as_ref().map(|job| job.pair) else {
            return;
        };
        let count = post.items.len();
        let trouble = self.setup.trouble;
        let stop = if self.happens(trouble.partial_one_in) {
            Stop::Full
        } else if self.happens(trouble.rejected_one_in) {
            Stop::Rejected(Cause::LocalProtection)
        } else if self.happens(trouble.unknown_one_in) {
            Stop::Unknown
        } else {
            Stop::All
        };
        let accepted = match stop {
            Stop::All => count,
            _ => self.chance.below(count as u64) as usize,
        };
        // What a transport cannot vouch for it may have taken all the same.
        let unsaid = match stop {
            Stop::Unknown => self.chance.below((count - accepted) as u64 + 1) as usize,
            _ => 0,
        };
        post.answer = Posted { accepted, stop };
        for item in post.items.drain(..accepted + unsaid) {
            self.take(pair, item);
        }
        self.history.works += accepted as u64;
        self.workers[worker].post = Some(post);
        let at = self.now + self.setup.engine.answer_ns;
        self.agenda.enter(at, What::Answers { worker });
    }

    /// The post has returned.
    pub(super) fn answered(&mut self, worker: usize) {
        let (Some(post), Some(mut job)) = (
            self.workers[worker].post.take(),
            self.workers[worker].job.take(),
        ) else {
            return;
        };
        let Posted { accepted, stop } = post.answer;
        let requests = post.works[..accepted]
            .iter()
            .map(|work| work.requests)
            .sum();
        let row = &mut self.pairs[job.pair];
        let mut returned = Vec::new();
        let outcome = row
            .ledger
            .settle_post(&post.entered, post.answer, requests, |record| {
                returned.push(record);
            });
        if outcome != PostOutcome::Whole {
            let uncovered = row.ledger.uncovered();
            row.cadence.handle_partial_post(uncovered);
        }
        drop(post.posting);
        // A record that an error was faster about is gone with all its works; only what comes back is to be posted.
        let grants: Vec<Grant> = returned.into_iter().map(|record| record.grant).collect();
        let back: u16 = grants.iter().map(|grant| grant.amount().works).sum();
        self.tasks[job.task as usize].recorded -= u32::from(back);
        let untaken = &post.works[post.works.len() - usize::from(back)..];
        match stop {
            Stop::All => self.posted(worker, job, 0),
            Stop::Full => {
                // Nobody else may have the credits of works that come right behind those that are out.
                for grant in grants.into_iter().rev() {
                    job.grants.push_front(grant);
                }
                for work in untaken.iter().rev() {
                    job.rest.push_front(*work);
                }
                self.posted(worker, job, RETRY_NS);
            }
            Stop::Rejected(cause) => {
                job.grants.extend(grants);
                job.rest.extend(untaken);
                let owner = job.task;
                self.give_up(worker, job, cause, Entry::PostFailed { owner, cause });
            }
            Stop::Unknown => {
                let cause = Cause::Fatal;
                self.give_up(worker, job, cause, Entry::PostUnknown { cause });
            }
        }
    }

    fn posted(&mut self, worker: usize, job: Job<'a>, after_ns: u64) {
        self.unlock(worker, job.pair);
        if !job.rest.is_empty() {
            self.workers[worker].job = Some(job);
        }
        self.wake_at(self.now + after_ns, Thread::Worker(worker));
    }
}
