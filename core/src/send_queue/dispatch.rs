//! How the requests of one call get through admission: chunk by chunk, to the lanes that the policy names.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), phase 3. We differ: a chunk that makes more works
//! than it may is shortened before it is admitted, and who waits keeps its turn in the line of every lane it
//! could use.

use core::ops::Range;

use super::admission::Token;
use super::config::SendQueueConfig;
use super::credit::{Credits, Refused};
use super::levels::{Snapshot, Standing};
use super::line::Place;
use super::promise::{Answer, Promise};
use super::split::{self, SplitPolicy};
pub use super::step::{Call, DispatchError, Step};
use crate::time::Instant;

/// Lanes that one call can use; more are left out.
pub const DISPATCH_LANES_MAX: usize = 16;

/// Requests that are still to be admitted, to one lane or to any.
#[derive(Clone, Debug)]
struct Cursor {
    requests: Range<u32>,
    lane: Option<usize>,
    /// It was refused once since it last got on.
    pressed: bool,
}

/// One lane, for this call.
#[derive(Debug)]
struct Target<'a> {
    credits: &'a Credits,
    place: Option<Place<'a>>,
}

/// A refusal that time may mend.
#[derive(Clone, Copy, Debug)]
struct Full {
    lane: usize,
    required_works: u16,
    at: Snapshot,
}

/// One call on its way through admission. Owned by the thread that submits.
#[derive(Debug)]
pub struct Dispatch<'a> {
    config: SendQueueConfig,
    policy: SplitPolicy,
    targets: heapless::Vec<Target<'a>, DISPATCH_LANES_MAX>,
    cursors: heapless::Vec<Cursor, DISPATCH_LANES_MAX>,
    /// Where the next look begins.
    turn: usize,
    post_works_max: u16,
    outstanding: u16,
    outstanding_max: u16,
    promise: Promise,
    deadline: Instant,
    /// Since when it waits, and for which lane first.
    waiting: Option<(Instant, usize)>,
    error: Option<DispatchError>,
}

impl<'a> Dispatch<'a> {
    /// A call that begins now. One deadline, `config.admission_timeout` from now, is for all of it.
    pub fn new(
        now: Instant,
        config: &SendQueueConfig,
        lanes: impl Iterator<Item = &'a Credits>,
        call: Call,
    ) -> Self {
        let targets: heapless::Vec<_, DISPATCH_LANES_MAX> = lanes
            .take(DISPATCH_LANES_MAX)
            .map(|credits| Target {
                credits,
                place: None,
            })
            .collect();
        let lanes = targets.len() as u16;
        let policy = config.policy();
        let cursor = |requests, lane| Cursor {
            requests,
            lane,
            pressed: false,
        };
        let cursors = match policy {
            SplitPolicy::Static => split::shares(call.requests, lanes, call.number)
                .map(|share| cursor(share.requests, Some(usize::from(share.lane))))
                .collect(),
            SplitPolicy::LeastLoaded | SplitPolicy::Capacity => {
                core::iter::once(cursor(0..call.requests, None)).collect()
            }
        };
        Self {
            config: *config,
            policy,
            targets,
            cursors,
            turn: 0,
            post_works_max: call.post_works_max,
            outstanding: 0,
            outstanding_max: split::outstanding_max(config, lanes),
            promise: Promise::new(call.requests),
            deadline: now + config.admission_timeout,
            waiting: None,
            error: (call.requests > 0 && lanes == 0).then_some(DispatchError::NoLane),
        }
    }

    /// The oldest chunk, of so many requests, has been answered. A failure ends the call as soon as all
    /// others are.
    pub fn handle_answer(&mut self, requests: u32, answer: Answer) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.promise.handle_end(requests, answer);
    }

    /// What to do now. `works_of` estimates how many works a range of requests makes.
    pub fn poll(&mut self, now: Instant, works_of: impl Fn(Range<u32>) -> usize) -> Step<'a> {
        let all_submitted = self.cursors.iter().all(|cursor| cursor.requests.is_empty());
        if self.failure().is_some() || all_submitted {
            return self.finish(now, false);
        }
        if self.outstanding >= self.outstanding_max {
            // Who cannot use its turn must not hold up others.
            self.leave_lines();
            return Step::Collect;
        }
        match self.pass(now, works_of) {
            Ok(step) => step,
            Err(full) if now < self.deadline => self.wait(now, full),
            Err(full) => {
                self.error = Some(DispatchError::TimedOut {
                    lane: full.lane,
                    required_works: full.required_works,
                    at: full.at,
                });
                self.finish(now, true)
            }
        }
    }

    /// When it gives up.
    pub const fn poll_timeout(&self) -> Instant {
        self.deadline
    }

    fn failure(&self) -> Option<DispatchError> {
        let chunk = self.promise.failure().map(DispatchError::Chunk);
        self.error.or(chunk)
    }

    fn fail(&mut self, now: Instant, error: DispatchError) -> Step<'a> {
        self.error = Some(error);
        self.finish(now, false)
    }

    /// Nothing more is submitted; what was still has to be answered.
    fn finish(&mut self, now: Instant, timed_out: bool) -> Step<'a> {
        self.end_wait(now, timed_out);
        self.leave_lines();
        match self.outstanding {
            0 => Step::Done(self.failure().map_or(Ok(()), Err)),
            _ => Step::Collect,
        }
    }

    /// Looks once at every cursor, in turn, and at every lane that it may use. `Err`: none had room; the least
    /// loaded of those that had not.
    fn pass(
        &mut self,
        now: Instant,
        works_of: impl Fn(Range<u32>) -> usize,
    ) -> Result<Step<'a>, Full> {
        let mut nearest: Option<Full> = None;
        let mut error = DispatchError::NoLane;
        for offset in 0..self.cursors.len() {
            let index = (self.turn + offset) % self.cursors.len();
            let Some(cursor) = self.cursors.get(index).cloned() else {
                continue;
            };
            let mut tried = 0;
            while let Some(lane) = self.next_lane(&cursor, tried) {
                tried |= 1 << lane;
                match self.admit(&cursor, lane, &works_of) {
                    Ok((token, requests)) => {
                        self.handle_admitted(now, index, requests.end, lane);
                        return Ok(Step::Submit {
                            lane,
                            requests,
                            token,
                        });
                    }
                    Err(Refused::Full { required_works, at }) => {
                        let full = Full {
                            lane,
                            required_works,
                            at,
                        };
                        if nearest.is_none_or(|other| at.load() < other.at.load()) {
                            nearest = Some(full);
                        }
                        self.press(index, lane);
                    }
                    // Too large for this one, or closed a moment ago. Others may do, but not for a share.
                    Err(refused) => {
                        error = match refused {
                            Refused::TooLarge { asked, max } => {
                                DispatchError::TooLarge { asked, max }
                            }
                            _ => DispatchError::LaneClosed { lane },
                        };
                        if cursor.lane.is_some() {
                            return Ok(self.fail(now, error));
                        }
                    }
                }
            }
        }
        match nearest {
            Some(full) => Err(full),
            None => Ok(self.fail(now, error)),
        }
    }

    fn next_lane(&self, cursor: &Cursor, tried: u64) -> Option<usize> {
        let unfinished = !cursor.requests.is_empty();
        match cursor.lane {
            Some(lane) => (unfinished && tried == 0).then_some(lane),
            None => {
                let lanes = self.targets.iter().map(|target| target.credits.snapshot());
                split::next_lane(self.policy, lanes, tried)
            }
        }
    }

    fn admit(
        &self,
        cursor: &Cursor,
        lane: usize,
        works_of: impl Fn(Range<u32>) -> usize,
    ) -> Result<(Token<'a>, Range<u32>), Refused> {
        let Some(target) = self.targets.get(lane) else {
            return Err(Refused::Terminal);
        };
        let max = target.credits.max().works;
        let budget = self.chunk_works(cursor, target.credits);
        let (requests, works) = chunk(cursor.requests.clone(), budget, works_of);
        let required = split::required_works(&self.config, works, cursor.pressed, max, budget);
        target
            .credits
            .admit(works, required, target.place.as_ref())
            .map(|token| (token, requests))
    }

    /// What the lane may be given at once: by policy `capacity` no more than its room; by `least_loaded` no
    /// more than any open lane may, since the chunk is cut before the lane is known.
    fn chunk_works(&self, cursor: &Cursor, credits: &Credits) -> u16 {
        let of = |credits: &Credits| {
            split::chunk_works(&self.config, credits.max().works, self.post_works_max)
        };
        match (self.policy, cursor.lane) {
            (SplitPolicy::LeastLoaded, None) => {
                let open =
                    |target: &&Target<'_>| target.credits.snapshot().standing == Standing::Open;
                let open = self.targets.iter().filter(open);
                open.map(|target| of(target.credits))
                    .fold(of(credits), u16::min)
            }
            (SplitPolicy::Capacity, None) => match credits.snapshot().admissible_works() {
                0 => of(credits),
                room => room.min(of(credits)),
            },
            _ => of(credits),
        }
    }

    fn handle_admitted(&mut self, now: Instant, index: usize, end: u32, lane: usize) {
        if let Some(cursor) = self.cursors.get_mut(index) {
            cursor.requests.start = end;
            cursor.pressed = false;
            if cursor.lane.is_none()
                && let Some(target) = self.targets.get(lane)
            {
                target.credits.counters().handle_selection();
            }
        }
        self.turn = index + 1;
        self.outstanding += 1;
        self.end_wait(now, false);
        match self.policy {
            // Other shares may still wait for theirs.
            SplitPolicy::Static => {
                if let Some(target) = self.targets.get_mut(lane) {
                    target.place = None;
                }
            }
            SplitPolicy::LeastLoaded | SplitPolicy::Capacity => self.leave_lines(),
        }
    }

    /// It was refused there: from now on it needs the watermark, and has its place in line.
    fn press(&mut self, index: usize, lane: usize) {
        if let Some(cursor) = self.cursors.get_mut(index) {
            cursor.pressed = true;
        }
        if let Some(target) = self.targets.get_mut(lane)
            && target.place.is_none()
        {
            target.place = target.credits.admission_place();
        }
    }

    fn wait(&mut self, now: Instant, full: Full) -> Step<'a> {
        if self.waiting.is_none() {
            self.waiting = Some((now, full.lane));
            if let Some(target) = self.targets.get(full.lane) {
                target.credits.counters().handle_admission_wait();
            }
        }
        let slice_end = now + self.config.admission_wait_slice;
        Step::Wait {
            lane: full.lane,
            revision: full.at.revision,
            until: slice_end.min(self.deadline),
        }
    }

    fn end_wait(&mut self, now: Instant, timed_out: bool) {
        if let Some((since, lane)) = self.waiting.take()
            && let Some(target) = self.targets.get(lane)
        {
            let counters = target.credits.counters();
            counters.handle_admission_end(now.since(since), timed_out);
        }
    }

    fn leave_lines(&mut self) {
        for target in &mut self.targets {
            target.place = None;
        }
    }
}

/// The first requests of `rest` that make at most `budget` works, at least one of them; and how many works.
fn chunk(
    rest: Range<u32>,
    budget: u16,
    works_of: impl Fn(Range<u32>) -> usize,
) -> (Range<u32>, u16) {
    let mut count = (rest.end - rest.start).min(u32::from(budget)).max(1);
    loop {
        let requests = rest.start..rest.start + count;
        let works = u16::try_from(works_of(requests.clone())).unwrap_or(u16::MAX);
        if works <= budget || count == 1 {
            return (requests, works);
        }
        count /= 2;
    }
}
