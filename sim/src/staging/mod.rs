//! Staged routes in conversation: two hosts whose GPUs' memory the network cannot reach, over core's [`stage`].
//!
//! GPU memory → slot → network → slot → GPU memory. Each hop is a server that works at its rate, one after the other;
//! messages take their time, get lost, come twice and overtake each other; hops fail, with proof or without, and what
//! has no proof moves its bytes later, when nobody expects it. After each event core's own `audit` runs, and the
//! content of every byte range is followed: no destination gets another's bytes, none is written and no source read
//! after a report that says otherwise, and a slot that something may still touch is nobody else's. In the end
//! everything has been reported and every slot is free or quarantined.
//!
//! [`stage`]: polyrail_core::stage

mod check;
mod expect;
mod figures;
mod hop;
mod memory;
mod random;
pub(crate) mod scenario;
mod session;
mod setup;

use std::collections::BTreeMap;

use polyrail_core::report::{Local, Remote, Report};
use polyrail_core::stage::{
    Claim, Event, Line, PeerStaging, Request, Slot, Stage, StageMessage, Staged, StagedTables,
    Unproven,
};
use polyrail_core::table::Row;
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{PeerId, StagedId};
use polyrail_core::work::Op;

use crate::model::agenda::Agenda;
use crate::model::chance::Chance;
use crate::spans::Spans;
use hop::{Fate, Hops, servers};
use memory::{Content, Memory, Owner};
use scenario::FaultKind;
use session::Session;
use setup::{Setting, Thread};

pub use expect::misses;
pub(crate) use figures::COLUMNS;
pub use figures::{Figures, row};
pub use random::draw;
pub use setup::Setup;

/// The other host, as each one numbers it: as whose slots it uses, and as who uses its slots.
const PEER: PeerId = PeerId(0);
const GUEST: PeerId = PeerId(1);
const PEERS: usize = 2;
/// Attempts without proof that each host remembers: too few for the worst of what is drawn.
const UNPROVEN: usize = 32;
/// Where no hop begins or ends for so long while no host is stopped, and no request is reported, nothing ever will.
const STUCK_NS: u64 = 20_000_000_000;
/// A run of more events than this does not end.
const EVENTS_MAX: u64 = 20_000_000;
/// The streams of chance: what goes wrong, and one for each server.
const TROUBLE_STREAM: u64 = 5 << 32;
const SERVER_STREAM: u64 = 6 << 32;

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
    /// Of each request that has ended.
    pub(crate) request_ns: Vec<u64>,
    /// What was delivered: when its request began, how many bytes, and from which host they came.
    arrived: Vec<(u64, u64, usize)>,
    requests: u64,
    failed_requests: u64,
    staging_lost: u64,
    hops: u64,
    failed_hops: u64,
    unfenced_hops: u64,
    /// Hops that the requests that completed need at least.
    needed_hops: u64,
    /// How many were begun for requests that did not complete, or might have been.
    spoilt_hops: u64,
    messages: u64,
    quarantined_slots: u64,
    restored_slots: u64,
    /// Sessions that were over before their host knew, and requests that were settled after their report.
    forgotten: u64,
    settled: u64,
    /// Bytes a microsecond that each server passes.
    pub(crate) passed: Spans,
    violations: u64,
    violation: Option<String>,
}

/// Something that will happen.
#[derive(Clone, Copy, Debug)]
enum What {
    /// A thread begins a request.
    Begins { thread: usize },
    /// A message of a session arrives.
    Message {
        to: usize,
        message: StageMessage,
        session: Session,
    },
    /// A hop has ended.
    Ends {
        host: usize,
        stage: Stage,
        fate: Fate,
    },
    /// What nobody waits for any more moves its bytes all the same: those that it has read before, or what is there.
    Late {
        host: usize,
        stage: Stage,
        read: Option<Content>,
        /// Of a hop between the hosts: what it was begun in. It moves nothing after that.
        session: Session,
    },
    /// There is proof that nothing touches what hops of this host without proof had touched.
    Proof { host: usize },
    /// A program gives up a request.
    Cancels { host: usize, id: StagedId },
    /// A host's timer.
    Timer { host: usize },
    /// The other host ends its session with a host, and everything in it.
    SessionOver { of: usize },
    /// A host hears of that.
    Forgotten { host: usize },
    /// It makes a new session.
    Renews { host: usize },
}

struct World<'a> {
    setup: &'a Setup,
    setting: &'a Setting,
    now: u64,
    agenda: Agenda<What>,
    hosts: [Staged<'a>; 2],
    /// When each host's timer is set to go off.
    timers: [u64; 2],
    hops: Hops,
    /// Of each host with the other one.
    sessions: [session::Sides; 2],
    memory: Memory,
    chance: Chance,
    /// Requests that each thread has begun.
    begun: Vec<u64>,
    under_way: BTreeMap<Owner, Begun>,
    reports: BTreeMap<Owner, Report>,
    /// When a hop last began or ended, or a request was reported.
    moved_at: u64,
    history: History,
}

/// A request that has begun and has not been reported.
#[derive(Clone, Copy, Debug)]
struct Begun {
    thread: usize,
    at: u64,
    /// Its number in [`Memory`].
    number: u64,
}

/// The memory of one host's staging.
struct Tables {
    peers: Vec<PeerStaging>,
    claims: Vec<Claim>,
    requests: Vec<Row<Request>>,
    slots: Vec<Slot>,
    lines: Vec<Line>,
    unproven: Vec<Unproven>,
}

impl Tables {
    fn new(setup: &Setup, setting: &Setting) -> Self {
        fn rows<T>(count: usize, row: impl Fn() -> T) -> Vec<T> {
            (0..count).map(|_| row()).collect()
        }
        Self {
            peers: rows(PEERS, || PeerStaging::EMPTY),
            claims: rows(2 * PEERS * setting.tickets as usize, || Claim::EMPTY),
            // A peer has as many as are left for others.
            requests: rows(2 * setup.threads.len(), || Row::EMPTY),
            slots: rows(2 * setting.slots as usize, || Slot::EMPTY),
            lines: rows(2 * 2 * PEERS, || Line::EMPTY),
            unproven: rows(UNPROVEN, || Unproven::EMPTY),
        }
    }

    fn staged(&mut self, setup: &Setup, setting: &Setting) -> Option<Staged<'_>> {
        let tables = StagedTables {
            peers: &mut self.peers,
            claims: &mut self.claims,
            requests: &mut self.requests,
            slots: &mut self.slots,
            lines: &mut self.lines,
            unproven: &mut self.unproven,
        };
        Staged::new(tables, &memory::pools(setup, setting), setting.config)
    }
}

/// What carries out hops, by name.
pub(crate) fn hop_names() -> impl Iterator<Item = &'static str> {
    servers::NAMES.into_iter()
}

/// Runs one history under the setting of this number.
pub fn run(setup: &Setup, setting: usize) -> Run {
    let setting = &setup.settings[setting.min(setup.settings.len() - 1)];
    let mut tables = [(); 2].map(|()| Tables::new(setup, setting));
    let mut history = History {
        passed: Spans::new(servers::COUNT),
        ..History::default()
    };
    let [first, second] = &mut tables;
    if let (Some(first), Some(second)) =
        (first.staged(setup, setting), second.staged(setup, setting))
    {
        let mut world = World {
            setup,
            setting,
            now: 0,
            agenda: Agenda::default(),
            hosts: [first, second],
            timers: [u64::MAX; 2],
            hops: Hops::new(setup),
            sessions: Default::default(),
            memory: Memory::default(),
            chance: Chance::new(setup.seed, TROUBLE_STREAM),
            begun: vec![0; setup.threads.len()],
            under_way: BTreeMap::new(),
            reports: BTreeMap::new(),
            moved_at: 0,
            history,
        };
        world.go();
        world.rest();
        history = world.history;
    }
    Run {
        outcome: figures::outcome(setup, &setting.name, &history),
        history,
    }
}

impl World<'_> {
    /// What a host's clock shows, which stands while its process does.
    fn instant(&self, host: usize) -> Instant {
        Instant::from_nanos(self.now - self.setup.stopped_ns(host, self.now))
    }

    fn go(&mut self) {
        for thread in 0..self.setup.threads.len() {
            self.agenda.enter(0, What::Begins { thread });
        }
        self.plan_sessions();
        let stuck_ns = STUCK_NS + self.setup.all_stopped_ns();
        for _ in 0..EVENTS_MAX {
            let Some((at, what)) = self.agenda.next() else {
                return;
            };
            if at > self.moved_at + stuck_ns || self.history.violations > 0 {
                return;
            }
            self.now = at;
            let host = self.host_of(&what);
            if let Some(until) = host.and_then(|host| self.setup.stopped_until(host, at)) {
                self.agenda.enter(until, what);
                continue;
            }
            self.happen(what);
            for host in 0..2 {
                if self.setup.stopped_until(host, at).is_some() {
                    continue;
                }
                self.drain(host);
                self.audit(host);
            }
        }
        self.violate("it does not end".to_owned());
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Begins { thread } => self.begin(thread),
            What::Message {
                to,
                message,
                session,
            } => self.hear(to, &message, session),
            What::Ends { host, stage, fate } => self.end_hop(host, &stage, fate),
            What::Late {
                host,
                stage,
                read,
                session,
            } => self.move_late(host, &stage, read, session),
            What::Proof { host } => self.prove(host),
            What::Cancels { host, id } => {
                let now = self.instant(host);
                self.hosts[host].cancel(now, id);
            }
            What::Timer { host } => {
                if self.timers[host] <= self.now {
                    self.timers[host] = u64::MAX;
                    let now = self.instant(host);
                    self.hosts[host].handle_timeout(now);
                }
            }
            What::SessionOver { of } => self.end_session(of),
            What::Forgotten { host } => self.hear_of_end(host),
            What::Renews { host } => self.renew_session(host),
        }
    }

    fn begin(&mut self, thread: usize) {
        let Thread {
            host, op, count, ..
        } = self.setup.threads[thread];
        if self.begun[thread] >= count || self.now >= self.setup.ends_at {
            return;
        }
        let number = self.memory.numbers();
        let request = memory::request(self.setup, self.setting, thread, number);
        self.begun[thread] += 1;
        match self.hosts[host].submit(self.instant(host), &request) {
            Ok(id) => {
                self.memory.own((host, id), op);
                let at = self.now;
                self.under_way
                    .insert((host, id), Begun { thread, at, number });
                if self.happens(self.setup.trouble.cancelled_one_in) {
                    let at = self.now + self.chance.below(2_000_000);
                    self.agenda.enter(at, What::Cancels { host, id });
                }
            }
            Err(refused) => self.violate(format!(
                "a request of thread {thread} is not taken: {refused:?}"
            )),
        }
    }

    fn drain(&mut self, host: usize) {
        let now = self.instant(host);
        while let Some(id) = self.hosts[host].poll_revoke() {
            self.call_back(host, id);
        }
        while let Some(stage) = self.hosts[host].poll_stage() {
            self.begin_hop(host, stage);
        }
        while let Some((_, message)) = self.hosts[host].poll_message(now) {
            self.send(1 - host, message);
        }
        while let Some(event) = self.hosts[host].poll_event() {
            match event {
                Event::Ended { request, report } => self.reported((host, request), report),
                Event::Settled {
                    request,
                    local,
                    remote,
                } => self.settled((host, request), local, remote),
            }
        }
        if let Some(at) = self.hosts[host].poll_timeout() {
            let at = at.as_nanos() + self.setup.stopped_ns(host, self.now);
            let at = at.max(self.now);
            if at < self.timers[host] {
                self.timers[host] = at;
                self.agenda.enter(at, What::Timer { host });
            }
        }
    }

    fn send(&mut self, to: usize, message: StageMessage) {
        self.history.messages += 1;
        let trouble = self.setup.trouble;
        let mute = self.setup.faults.iter().any(|fault| {
            fault.kind == FaultKind::Mute
                && fault.host == 1 - to
                && (fault.from..fault.to).contains(&self.now)
        });
        let copies = u32::from(!mute && !self.happens(trouble.lost_one_in))
            + u32::from(!mute && self.happens(trouble.repeated_one_in));
        for _ in 0..copies {
            let spread = u64::from(trouble.message_spread_us) * 1_000;
            let at = self.now + self.setup.message_ns + self.chance.below(spread);
            let session = self.session_of(to, &message);
            let arrives = What::Message {
                to,
                message,
                session,
            };
            self.agenda.enter(at, arrives);
        }
    }

    fn reported(&mut self, owner: Owner, report: Report) {
        let Some(begun) = self.under_way.remove(&owner) else {
            return self.violate(format!("{owner:?} is reported twice, or was never begun"));
        };
        self.count(owner, begun, &report);
        self.reports.insert(owner, report);
        self.moved_at = self.now;
        let thread = begun.thread;
        self.agenda.enter(self.now, What::Begins { thread });
    }

    /// More is known of a request than was reported.
    fn settled(&mut self, owner: Owner, local: Local, remote: Remote) {
        let report = self.reports.get_mut(&owner);
        let open =
            report.filter(|report| report.local == Local::Held || report.remote == Remote::Unknown);
        let Some(report) = open else {
            return self.violate(format!("{owner:?} is settled, and nothing of it was open"));
        };
        (report.local, report.remote) = (local, remote);
        self.history.settled += u64::from((local, remote) == (Local::Released, Remote::Settled));
        self.moved_at = self.now;
    }

    /// One in so many; none if that is 0.
    fn happens(&mut self, one_in: u32) -> bool {
        one_in != 0 && self.chance.below(u64::from(one_in)) == 0
    }

    /// Up to so long from now.
    fn soon(&mut self, within: Duration) -> u64 {
        self.now + self.chance.below(within.as_nanos())
    }
}

/// Which host bytes of a request come from.
fn source(host: usize, op: Op) -> usize {
    match op {
        Op::Write => host,
        Op::Read => 1 - host,
    }
}
