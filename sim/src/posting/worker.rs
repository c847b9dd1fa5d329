//! Workers: a chunk at a time, for which they reserve, wait, post, or give up.

use std::collections::VecDeque;

use polyrail_core::send_queue::admission::Token;
use polyrail_core::send_queue::credit::{Amount, Grant, Refused, Waiter};
use polyrail_core::send_queue::failure::Entry;
use polyrail_core::send_queue::inbox::Inbox;
use polyrail_core::work::Cause;

use super::World;
use super::post::Post;
use super::setup::INBOX_TASKS;
use super::task::TaskId;
use super::wait::Thread;
use super::work::{self, Work};

/// A thread that posts.
pub(super) struct Worker<'a> {
    pub(super) inbox: Inbox<'a, TaskId, INBOX_TASKS>,
    pub(super) job: Option<Job<'a>>,
    pub(super) post: Option<Post<'a>>,
    pub(super) idle: bool,
}

/// The chunk that a worker is at.
pub(super) struct Job<'a> {
    pub(super) task: TaskId,
    pub(super) pair: usize,
    pub(super) reads: bool,
    token: Option<Token<'a>>,
    waiter: Option<Waiter<'a>>,
    waits_since: u64,
    /// Credits in hand, in the order of the works that they are for.
    pub(super) grants: VecDeque<Grant>,
    /// Works that are still to be posted.
    pub(super) rest: VecDeque<Work>,
}

impl Worker<'_> {
    pub(super) fn new() -> Self {
        let mut inbox = Inbox::new();
        inbox.start();
        Self {
            inbox,
            job: None,
            post: None,
            idle: true,
        }
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.inbox.is_empty() && self.job.is_none() && self.post.is_none()
    }
}

impl Job<'_> {
    pub(super) fn in_hand(&self) -> u16 {
        self.grants.iter().map(|grant| grant.amount().works).sum()
    }

    pub(super) fn amount(&self, works: u16) -> Amount {
        let reads = if self.reads {
            works.min(u16::from(u8::MAX)) as u8
        } else {
            0
        };
        Amount { works, reads }
    }
}

impl<'a> World<'a> {
    /// A worker goes on.
    pub(super) fn work(&mut self, worker: usize) {
        let Some(mut job) = self.workers[worker]
            .job
            .take()
            .or_else(|| self.next_job(worker))
        else {
            self.workers[worker].idle = true;
            return;
        };
        if job.in_hand() == 0 {
            match self.reserve(worker, &mut job) {
                Ok(true) => {}
                Ok(false) => return self.workers[worker].job = Some(job),
                Err((cause, entry)) => return self.give_up(worker, job, cause, entry),
            }
        }
        let row = &mut self.pairs[job.pair];
        if *row.poster.get_or_insert(worker) == worker {
            self.post(worker, job);
        } else {
            row.posters.push_back(worker);
            self.workers[worker].job = Some(job);
        }
    }

    fn next_job(&mut self, worker: usize) -> Option<Job<'a>> {
        let (task, token) = self.workers[worker].inbox.take()?;
        let row = &self.tasks[task as usize];
        let caller = &self.setup.callers[row.caller];
        let rest: VecDeque<Work> = work::build(self.setup, caller, row.requests.clone()).into();
        if token.works() > 0 && usize::from(token.works()) != rest.len() {
            let (admitted, built) = (token.works(), rest.len());
            self.violate(format!("{admitted} works were admitted, and {built} built"));
        }
        Some(Job {
            task,
            pair: self.tasks[task as usize].pair,
            reads: caller.reads,
            token: Some(token),
            waiter: None,
            waits_since: 0,
            grants: VecDeque::new(),
            rest,
        })
    }

    /// Works that one post of a job may have.
    pub(super) fn post_works_max(&self, job: &Job<'_>) -> u16 {
        let pair = &self.setup.pairs[job.pair];
        let posts = match self.setup.engine.post_works_max {
            0 => pair.depth,
            max => max.min(pair.depth),
        };
        if job.reads {
            posts.min(u16::from(pair.reads_max))
        } else {
            posts
        }
    }

    /// Credits for the next post of a job. `false`: it waits for them.
    fn reserve(
        &mut self,
        worker: usize,
        job: &mut Job<'a>,
    ) -> Result<bool, (Cause, Entry<TaskId>)> {
        let works = (job.rest.len() as u16).min(self.post_works_max(job));
        let amount = job.amount(works);
        if let Some(token) = job.token.take()
            && let Some(grant) = self.convert(job, token, amount)
        {
            job.grants.push_back(grant);
            return Ok(true);
        }
        let credits = &self.credits[job.pair];
        let now = self.instant();
        if job.waiter.is_none() {
            job.waits_since = self.now;
            self.pairs[job.pair].has_walk_ins = true;
        }
        let deadline = now + self.config.reserve_timeout;
        let waiter = job
            .waiter
            .get_or_insert_with(|| credits.waiter(amount, deadline));
        let seen = match waiter.poll(now) {
            Ok(grant) => {
                self.took(job.pair, grant.amount());
                job.grants.push_back(grant);
                self.end_wait(job);
                return Ok(true);
            }
            Err(Refused::Full { at, .. }) => at.revision,
            Err(Refused::Degraded(revision)) if now < waiter.poll_timeout() => revision,
            Err(Refused::TimedOut { required_works, at }) => {
                self.end_wait(job);
                self.queue_full(job.pair, works, required_works, at, job.waits_since);
                return Err((Cause::DeadlineExceeded, Entry::ReserveFailed));
            }
            Err(_) => {
                self.end_wait(job);
                return Err((Cause::Flushed, Entry::ReserveFailed));
            }
        };
        let until = waiter.poll_timeout();
        self.wait_for_change(Thread::Worker(worker), job.pair, seen, until);
        Ok(false)
    }

    fn end_wait(&mut self, job: &mut Job<'_>) {
        job.waiter = None;
        let waited = self.now - job.waits_since;
        self.history.reserve_waits += u64::from(waited > 0);
        self.history.reserve_waited_ns += waited;
    }

    /// From admitted to held; `None`: it has to be waited for.
    fn convert(&mut self, job: &Job<'_>, token: Token<'a>, amount: Amount) -> Option<Grant> {
        let (task, works) = (job.task, token.works());
        self.unadmit(task, works);
        if works != amount.works {
            return None;
        }
        match token.reserve(amount.reads) {
            Ok(grant) => {
                self.took(job.pair, grant.amount());
                Some(grant)
            }
            // Reads are not admitted, so what is may lack their credits.
            Err((_, Refused::Full { .. })) if !job.reads && !self.pairs[job.pair].has_walk_ins => {
                self.violate(format!("chunk {task} was admitted and finds no credits"));
                None
            }
            Err(_) => None,
        }
    }

    /// What is left of a job fails.
    pub(super) fn give_up(
        &mut self,
        worker: usize,
        mut job: Job<'a>,
        cause: Cause,
        entry: Entry<TaskId>,
    ) {
        job.waiter = None;
        for grant in job.grants.drain(..) {
            self.release(job.pair, grant);
        }
        self.unlock(worker, job.pair);
        let requests = job.rest.iter().map(|work| work.requests).sum();
        self.fail_unposted(job.task, requests, cause);
        self.begin_recovery(job.pair, entry);
        self.wake_at(self.now, Thread::Worker(worker));
    }

    pub(super) fn unlock(&mut self, worker: usize, pair: usize) {
        let row = &mut self.pairs[pair];
        if row.poster == Some(worker) {
            row.poster = row.posters.pop_front();
            if let Some(next) = row.poster {
                self.wake_at(self.now, Thread::Worker(next));
            }
        }
    }
}
