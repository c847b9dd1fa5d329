//! Send queues in conversation: threads of a program, workers and a poller over core's [`send_queue`], in virtual time.
//!
//! A shell as core's contract wants it, made of virtual threads. *Callers* make calls of many requests. With admission
//! each call goes through a [`Dispatch`] and waits there; without, its shares go to the workers at once, and they
//! wait. *Workers* take chunks from their inboxes, reserve, look once more, enter records, post, and settle what the
//! post said. A *poller* takes completions, releases credits and tells owners; it also ends queue pairs, in the way
//! of [`failure`]. A queue pair works off what is posted at its rate, holds so many works and no more, and forgets a
//! work when a completion that covers it has been polled. Every wait ends by a changed revision or by time.
//!
//! After each event all counts are compared with a book that is kept beside core: credits and admissions are what has
//! been given and not come back, no queue pair holds more than it can, every request is told of once, and no call ends
//! while something of it can still move. In the end all of it is back.
//!
//! [`send_queue`]: polyrail_core::send_queue
//! [`Dispatch`]: polyrail_core::send_queue::dispatch::Dispatch
//! [`failure`]: polyrail_core::send_queue::failure

mod call;
mod checks;
mod ending;
mod expect;
mod faults;
mod figures;
mod pair;
mod poller;
mod post;
mod random;
mod scenario;
mod session;
mod setup;
mod task;
mod wait;
mod work;
mod worker;

use polyrail_core::send_queue::SendQueueConfig;
use polyrail_core::send_queue::credit::{Amount, CreditLimits, Credits};
use polyrail_core::send_queue::ledger::Slot;
use polyrail_core::send_queue::session::{Session, Sessions};
use polyrail_core::table::Row;
use polyrail_core::time::Instant;
use polyrail_core::units::Epoch;

use crate::model::agenda::Agenda;
use crate::model::chance::Chance;
use crate::settings;
use crate::spans::Spans;
use call::Caller;
use pair::Pair;
use poller::{Completion, Poller};
use task::{Task, TaskId};
use wait::{Blocked, Thread};
use worker::Worker;

pub use expect::misses;
pub use figures::{Figures, header, row};
pub use random::draw;
pub use setup::Setup;

/// Queue pairs of one session.
const LANES: usize = polyrail_core::send_queue::dispatch::DISPATCH_LANES_MAX;
/// What is not over so long after the last call has begun hangs.
const HANGS_NS: u64 = 60_000_000_000;
/// A run of more events than this does not end.
const EVENTS_MAX: u64 = 20_000_000;
/// The streams of chance: one for each queue pair and caller, from these on, and one for the rest.
const PAIR_STREAM: u64 = 1 << 32;
const CALLER_STREAM: u64 = 2 << 32;
const TROUBLE_STREAM: u64 = 3 << 32;

/// A run under one setting: its numbers, and how it went.
#[derive(Clone, Debug)]
pub struct Run {
    /// The numbers.
    pub outcome: crate::Outcome,
    pub(crate) history: History,
}

/// How a run went.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) began_at: u64,
    pub(crate) ended_at: u64,
    /// Of each call that has ended.
    pub(crate) call_ns: Vec<u64>,
    /// Requests that have arrived: when their call began, and how many bytes.
    arrived: Vec<(u64, u64)>,
    requests: u64,
    failed_requests: u64,
    pair_bytes: Vec<u64>,
    works: u64,
    completions: u64,
    queue_full_errors: u64,
    reserve_waits: u64,
    reserve_waited_ns: u64,
    admission_waits: u64,
    admission_waited_ns: u64,
    ended_queue_pairs: u64,
    root_causes: u64,
    flushed_requests: u64,
    /// Spread of the depths times nanoseconds, and the nanoseconds in which there was any depth.
    spread: (f64, u64),
    /// Works held and admitted times nanoseconds, of each queue pair.
    pub(crate) depths: Spans,
    diagnosis: Option<String>,
    violations: u64,
    violation: Option<String>,
}

/// What a test breaks in the shell, to see that the checks notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Broken {
    /// Nothing.
    #[default]
    Nothing,
    /// Covered works are taken out, and their credits are not given back.
    KeepsCredits,
    /// Owners hear of a failure before the fence.
    TellsEarly,
}

/// Something that will happen.
#[derive(Clone, Copy, Debug)]
enum What {
    /// A thread goes on, if it still waits for this.
    Goes { thread: Thread, turn: u64 },
    /// A worker's post has reached the device.
    Rings { worker: usize },
    /// The device has answered a worker's post.
    Answers { worker: usize },
    /// A queue pair has carried out what it was at, if it still is that.
    Served { pair: usize, turn: u64 },
    /// A completion reaches the completion queue.
    Completes { completion: Completion },
    /// The poller looks.
    Polls,
    /// A device tells that a queue pair is gone.
    Noticed { pair: usize, epoch: Epoch },
    /// A queue pair can move nothing any more.
    Fenced { pair: usize, epoch: Epoch },
    /// A queue pair has been built anew, or not.
    Opens { pair: usize, epoch: Epoch },
    /// A fault of the scenario begins, or ends.
    Fault { fault: usize, ends: bool },
}

struct World<'a> {
    setup: &'a Setup,
    config: SendQueueConfig,
    broken: Broken,
    credits: &'a [Credits],
    now: u64,
    agenda: Agenda<What>,
    pairs: Vec<Pair<'a>>,
    workers: Vec<Worker<'a>>,
    callers: Vec<Caller<'a>>,
    tasks: Vec<Task>,
    poller: Poller,
    sessions: Sessions<'a, u8, LANES>,
    refill: session::Building,
    blocked: Vec<Blocked>,
    turns: u64,
    chance: Chance,
    history: History,
}

/// Runs one history under the setting of this number.
pub fn run(setup: &Setup, setting: usize) -> Run {
    run_broken(setup, setting, Broken::Nothing)
}

/// Runs one history in a shell that is wrong. A simulator that does not notice would be of no use.
pub fn run_broken(setup: &Setup, setting: usize, broken: Broken) -> Run {
    let (name, config) = &setup.settings[setting.min(setup.settings.len() - 1)];
    let credits: Vec<Credits> = (setup.pairs.iter())
        .map(|pair| {
            let max = Amount {
                works: pair.depth,
                reads: pair.reads_max,
            };
            let limits = CreditLimits {
                max,
                resume_watermark_works: config.resume_watermark_works,
            };
            Credits::new(limits, Epoch(1))
        })
        .collect();
    let mut records: Vec<Vec<Row<Slot<TaskId>>>> = (setup.pairs.iter())
        .map(|pair| (0..pair::records(pair.depth)).map(|_| Row::EMPTY).collect())
        .collect();
    let mut sessions: Vec<Row<Session<u8, LANES>>> =
        (0..setup.callers.len() + 2).map(|_| Row::EMPTY).collect();
    let pairs = (records.iter_mut().enumerate())
        .map(|(index, rows)| Pair::new(setup, index, rows, config.signal_interval_works))
        .collect();
    let workers = usize::from(*setup.engine.workers.get_ref());
    let mut world = World {
        setup,
        config: *config,
        broken,
        credits: &credits,
        now: 0,
        agenda: Agenda::default(),
        pairs,
        workers: (0..workers).map(|_| Worker::new()).collect(),
        callers: (0..setup.callers.len())
            .map(|index| Caller::new(setup, index))
            .collect(),
        tasks: Vec::new(),
        poller: Poller::default(),
        sessions: Sessions::new(&mut sessions),
        refill: session::Building::default(),
        blocked: Vec::new(),
        turns: 0,
        chance: Chance::new(setup.seed, TROUBLE_STREAM),
        history: History {
            began_at: setup
                .callers
                .iter()
                .map(|caller| caller.starts_at)
                .min()
                .unwrap_or(0),
            pair_bytes: vec![0; setup.pairs.len()],
            depths: Spans::new(setup.pairs.len()),
            ..History::default()
        },
    };
    world.go();
    world.rest();
    let history = world.history;
    Run {
        outcome: figures::outcome(setup, name, &history),
        history,
    }
}

impl World<'_> {
    fn instant(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    fn go(&mut self) {
        for caller in 0..self.callers.len() {
            let at = self.setup.callers[caller].starts_at;
            self.wake_at(at, Thread::Caller(caller));
        }
        for (fault, row) in self.setup.faults.iter().enumerate() {
            let at = settings::ns(row.at_ms);
            self.agenda.enter(at, What::Fault { fault, ends: false });
            if let Some(for_ms) = row.for_ms {
                let at = at + settings::ns(for_ms);
                self.agenda.enter(at, What::Fault { fault, ends: true });
            }
        }
        for _ in 0..EVENTS_MAX {
            let Some((at, what)) = self.agenda.next() else {
                return;
            };
            if at > self.setup.ends_at + HANGS_NS || self.history.violations > 0 {
                return;
            }
            self.pass(at);
            self.happen(what);
            self.recover();
            self.wake();
            self.check();
        }
        self.violate("it does not end".to_owned());
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Goes { thread, turn } => {
                if !self.unblock(thread, turn) {
                    return;
                }
                match thread {
                    Thread::Caller(caller) => self.call(caller),
                    Thread::Worker(worker) => self.work(worker),
                }
            }
            What::Rings { worker } => self.ring(worker),
            What::Answers { worker } => self.answered(worker),
            What::Served { pair, turn } => self.served(pair, turn),
            What::Completes { completion } => self.completes(completion),
            What::Polls => self.poll(),
            What::Noticed { pair, epoch } => self.noticed(pair, epoch),
            What::Fenced { pair, epoch } => self.fenced(pair, epoch),
            What::Opens { pair, epoch } => self.opens(pair, epoch),
            What::Fault { fault, ends } => self.fault(fault, ends),
        }
    }

    /// One in so many; none if that is 0.
    fn happens(&mut self, one_in: u32) -> bool {
        one_in != 0 && self.chance.below(u64::from(one_in)) == 0
    }
}
