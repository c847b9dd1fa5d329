//! Callers: threads of the program that make one call after the other, through admission or past it.

use std::collections::VecDeque;
use std::ops::Range;

use polyrail_core::send_queue::admission::Token;
use polyrail_core::send_queue::dispatch::{self, Dispatch, DispatchError, Step};
use polyrail_core::send_queue::inbox::Bounced;
use polyrail_core::send_queue::split::{self, Share};
use polyrail_core::units::SessionId;
use polyrail_core::work::Cause;

use super::session::Found;
use super::setup::Setup;
use super::task::{Task, TaskId};
use super::wait::Thread;
use super::{CALLER_STREAM, World, work};
use crate::model::chance::Chance;

/// A caller whose session cannot be had tries again after this.
const NO_SESSION_NS: u64 = 1_000_000;

/// A thread of the program.
pub(super) struct Caller<'a> {
    begun: u64,
    /// Since when it wants a session for its next call.
    wants_since: Option<u64>,
    call: Option<Call<'a>>,
    chance: Chance,
}

struct Call<'a> {
    began_at: u64,
    requests: u32,
    session: SessionId,
    /// Its queue pairs, by their position in the session.
    lanes: Vec<usize>,
    way: Way<'a>,
    /// Chunks that have been handed over and not collected, the oldest first.
    outstanding: VecDeque<TaskId>,
    /// Requests that have arrived.
    arrived: u32,
}

enum Way<'a> {
    Admission(Box<Dispatch<'a>>),
    /// Each lane's share at once.
    Shares(VecDeque<Share>),
}

impl Caller<'_> {
    pub(super) fn new(setup: &Setup, index: usize) -> Self {
        Self {
            begun: 0,
            wants_since: None,
            call: None,
            chance: Chance::new(setup.seed, CALLER_STREAM + index as u64),
        }
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.call.is_none() && self.wants_since.is_none()
    }
}

impl<'a> World<'a> {
    /// A caller goes on.
    pub(super) fn call(&mut self, caller: usize) {
        let call = self.callers[caller].call.take();
        let Some(mut call) = call.or_else(|| self.begin_call(caller)) else {
            return;
        };
        while let Some(task) = call.outstanding.front() {
            let task = &self.tasks[*task as usize];
            let Some(answer) = task.answer else {
                break;
            };
            call.arrived += task.count() - task.failed;
            if let Way::Admission(dispatch) = &mut call.way {
                dispatch.handle_answer(task.count(), answer);
            }
            call.outstanding.pop_front();
        }
        let row = &self.setup.callers[caller];
        let next = match &mut call.way {
            Way::Admission(dispatch) => {
                let setup = self.setup;
                dispatch.poll(self.instant(), |range| work::count(setup, row, range))
            }
            Way::Shares(shares) => match shares.pop_front() {
                Some(share) => {
                    let lane = usize::from(share.lane);
                    match self.credits[call.lanes[lane]].admit(0, 0, None) {
                        Ok(token) => Step::Submit {
                            lane,
                            requests: share.requests,
                            token,
                        },
                        // The lane is closed, and its share fails; the others go on.
                        Err(_) => {
                            self.callers[caller].call = Some(call);
                            return self.wake_at(self.now, Thread::Caller(caller));
                        }
                    }
                }
                None if call.outstanding.is_empty() => Step::Done(Ok(())),
                None => Step::Collect,
            },
        };
        match next {
            Step::Submit {
                lane,
                requests,
                token,
            } => {
                let task = self.submit(caller, call.lanes[lane], requests, token);
                call.outstanding.push_back(task);
                self.wake_at(
                    self.now + self.setup.engine.submit_ns,
                    Thread::Caller(caller),
                );
            }
            Step::Collect => self.wait_for_call(Thread::Caller(caller)),
            Step::Wait {
                lane,
                revision,
                until,
            } => self.wait_for_change(Thread::Caller(caller), call.lanes[lane], revision, until),
            Step::Done(result) => return self.end_call(caller, &call, result),
        }
        self.callers[caller].call = Some(call);
    }

    fn begin_call(&mut self, caller: usize) -> Option<Call<'a>> {
        let plan = &self.setup.callers[caller];
        let row = &mut self.callers[caller];
        if row.wants_since.is_none() && (row.begun >= plan.calls || self.now >= self.setup.ends_at)
        {
            return None;
        }
        let began_at = *row.wants_since.get_or_insert(self.now);
        let session = match self.find_session(caller) {
            Found::Session(session) => session,
            Found::Wait => return None,
            Found::Short => {
                self.wake_at(self.now + NO_SESSION_NS, Thread::Caller(caller));
                return None;
            }
        };
        self.sessions.begin_transfer(session);
        let lanes = self.sessions.lanes(session).unwrap_or_default();
        let lanes: Vec<usize> = lanes.iter().map(|lane| lane.lane.0 as usize).collect();
        let row = &mut self.callers[caller];
        row.wants_since = None;
        row.begun += 1;
        let (least, most) = plan.batch;
        let requests = least + row.chance.below(u64::from(most - least) + 1) as u32;
        let number = (row.begun - 1) * self.callers.len() as u64 + caller as u64;
        let way = if self.config.admission {
            let call = dispatch::Call {
                requests,
                number,
                post_works_max: self.setup.engine.post_works_max,
            };
            let all = self.credits;
            let credits = lanes.iter().map(move |pair| &all[*pair]);
            let dispatch = Dispatch::new(self.instant(), &self.config, credits, call);
            Way::Admission(Box::new(dispatch))
        } else {
            Way::Shares(split::shares(requests, lanes.len() as u16, number).collect())
        };
        Some(Call {
            began_at,
            requests,
            session,
            lanes,
            way,
            outstanding: VecDeque::new(),
            arrived: 0,
        })
    }

    /// Hands a chunk to the worker of its queue pair.
    fn submit(
        &mut self,
        caller: usize,
        pair: usize,
        requests: Range<u32>,
        token: Token<'a>,
    ) -> TaskId {
        let id = self.tasks.len() as TaskId;
        let works = token.works();
        let row = &mut self.pairs[pair];
        row.admitted_works += u32::from(works);
        let task = Task::new(caller, pair, requests, (works, row.epoch));
        let count = task.count();
        self.tasks.push(task);
        let (pairs, workers) = (self.pairs.len(), self.workers.len());
        // Queue pairs are dealt out to workers, or workers to queue pairs if there are more.
        let worker = match workers / pairs {
            0 | 1 => pair % workers,
            each => pair + pairs * (id as usize % each),
        };
        match self.workers[worker].inbox.submit(id, token) {
            Ok(()) => {
                if std::mem::take(&mut self.workers[worker].idle) {
                    let at = self.now + self.setup.engine.wake_ns;
                    self.wake_at(at, Thread::Worker(worker));
                }
            }
            Err(Bounced::Stopped(_, cause)) => {
                self.unadmit(id, works);
                self.fail_unposted(id, count, cause);
            }
            Err(Bounced::Full(..)) => self.violate(format!("the inbox of worker {worker} is full")),
        }
        id
    }

    /// A worker stops or starts; what waits for it is answered.
    pub(super) fn stop_worker(&mut self, worker: usize, starts: bool) {
        if starts {
            return self.workers[worker].inbox.start();
        }
        let mut answered: Vec<(TaskId, Cause)> = Vec::new();
        self.workers[worker]
            .inbox
            .shut_down(|task, cause| answered.push((task, cause)));
        for (task, cause) in answered {
            let row = &self.tasks[task as usize];
            let (works, count) = (row.admitted.0, row.count());
            self.unadmit(task, works);
            self.fail_unposted(task, count, cause);
        }
    }

    fn end_call(&mut self, caller: usize, call: &Call<'_>, result: Result<(), DispatchError>) {
        if !call.outstanding.is_empty() {
            self.violate(format!("a call of caller {caller} ends before its chunks"));
        }
        if result.is_ok() && self.config.admission && call.arrived != call.requests {
            self.violate(format!(
                "a call of caller {caller} ends well with requests missing"
            ));
        }
        if let Err(DispatchError::TimedOut {
            lane,
            required_works,
            at,
        }) = result
        {
            self.queue_full(
                call.lanes[lane],
                required_works,
                required_works,
                at,
                call.began_at,
            );
        }
        self.sessions.end_transfer(call.session);
        let plan = &self.setup.callers[caller];
        let history = &mut self.history;
        history.call_ns.push(self.now - call.began_at);
        history.requests += u64::from(call.requests);
        history.failed_requests += u64::from(call.requests - call.arrived);
        history
            .arrived
            .push((call.began_at, u64::from(call.arrived) * plan.block));
        history.ended_at = self.now;
        self.wake_at(self.now + plan.pause_ns, Thread::Caller(caller));
    }
}
