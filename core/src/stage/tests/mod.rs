//! Two hosts that stage towards each other, over messages and hops that fail as a test likes.

extern crate std;
mod asking;
mod ending;
mod hosts;
mod owning;
mod pace;
mod session;
mod share;
mod talk;

use super::claim::Run;
use super::*;
use crate::orchestrator::Proof;
use crate::random::Random;
use crate::report::{Local, Remote, Status};
use crate::table::Row;
use crate::time::Duration;
use crate::units::{SegmentRef, Ticket};
use crate::work::{Op, Place, Priority};
use std::boxed::Box;
use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

pub(super) const SLOT_BYTES: u32 = 100;
/// Segments as a host numbers its own, and the same ones as the other host numbers them.
const USER: SegmentRef = SegmentRef(0);
const POOL: SegmentRef = SegmentRef(1);
const FAR: u32 = 10;
/// The pools of every host.
pub(super) const IN: PoolId = PoolId(0);
pub(super) const OUT: PoolId = PoolId(1);
/// Where requests write to, in either host's memory.
const DESTINATION: u64 = 1 << 40;

pub(super) fn ms(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

pub(super) fn pool(direction: Direction, slots: u32) -> PoolConfig {
    let segment = SegmentRef(POOL.0 + u32::from(direction == Direction::Out));
    PoolConfig {
        direction,
        first: Place { segment, offset: 0 },
        slot_bytes: SLOT_BYTES,
        slots,
    }
}

/// The other host's pool, as this one sees it.
pub(super) fn remote_pool(direction: Direction, slots: u32) -> RemotePool {
    let mut config = pool(direction, slots);
    config.first.segment.0 += FAR;
    RemotePool {
        pool: if direction == Direction::In { IN } else { OUT },
        slots: config,
    }
}

pub(super) fn staged(
    peers: usize,
    tickets: usize,
    requests: usize,
    slots: [u32; 2],
    config: StagedConfig,
) -> Staged<'static> {
    let pools = [
        pool(Direction::In, slots[0]),
        pool(Direction::Out, slots[1]),
    ];
    let slots = (slots[0] + slots[1]) as usize;
    fn rows<T>(count: usize, row: impl Fn() -> T) -> &'static mut [T] {
        Box::leak(
            (0..count)
                .map(|_| row())
                .collect::<Vec<_>>()
                .into_boxed_slice(),
        )
    }
    let tables = StagedTables {
        peers: rows(peers, || PeerStaging::EMPTY),
        claims: rows(2 * peers * tickets, || Claim::EMPTY),
        requests: rows(requests, || Row::EMPTY),
        slots: rows(slots, || Slot::EMPTY),
        lines: rows(2 * peers * 2, || Line::EMPTY),
        unproven: rows(8, || Unproven::EMPTY),
    };
    Staged::new(tables, &pools, config).unwrap()
}

/// Through which pools a request goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) op: Op,
    pub(super) local: bool,
    pub(super) remote: bool,
}

pub(super) const WRITE: Route = Route {
    op: Op::Write,
    local: true,
    remote: true,
};
pub(super) const READ: Route = Route {
    op: Op::Read,
    ..WRITE
};

/// A request to the peer with this number, whose pools have so many slots.
pub(super) fn request(
    route: Route,
    peer: u16,
    base: u64,
    length: u64,
    slots: u32,
) -> StagedRequest {
    let (near, far) = match route.op {
        Op::Write => (base, DESTINATION + base),
        Op::Read => (DESTINATION + base, base),
    };
    let (ours, theirs) = match route.op {
        Op::Write => (OUT, Direction::In),
        Op::Read => (IN, Direction::Out),
    };
    StagedRequest {
        peer: PeerId(peer),
        op: route.op,
        local: Place {
            segment: USER,
            offset: near,
        },
        remote: Place {
            // Whoever touches it numbers it.
            segment: SegmentRef(if route.remote { USER.0 } else { FAR }),
            offset: far,
        },
        length,
        local_pool: route.local.then_some(ours),
        remote_pool: route.remote.then(|| remote_pool(theirs, slots)),
        deadline: None,
        priority: Priority::Normal,
    }
}

pub(super) fn report(status: Status, cause: Option<Cause>) -> Report {
    let open = status == Status::Indeterminate;
    Report {
        status,
        delivered_bytes: 0,
        cause,
        local: if open { Local::Held } else { Local::Released },
        remote: if open {
            Remote::Unknown
        } else {
            Remote::Settled
        },
    }
}

pub(super) fn good() -> Report {
    report(Status::Completed, None)
}

/// How often what goes wrong, of 256 times.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) lost: u8,
    pub(super) doubled: u8,
    /// Messages take up to so many microseconds, in any order.
    pub(super) delay_max_us: u64,
    pub(super) failed: u8,
    pub(super) unfenced: u8,
}

#[derive(Clone, Copy, Debug)]
enum Happens {
    Message(usize, StageMessage),
    Ends(usize, Stage, Fate),
    /// What nobody waits for any more moves its bytes all the same: those that it has read before, or what is there.
    Late(usize, Stage, Option<Content>),
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Good,
    Failed,
    Unfenced,
}

/// Host, segment and offset.
type Spot = (usize, u32, u64);

/// A byte range's content: whose memory it came from, and from where.
type Content = (usize, u64, u32);

/// A hop's server: (host that drives it, network, towards that host).
pub(super) type Server = (usize, bool, bool);

pub(super) struct World {
    pub(super) now: Instant,
    pub(super) hosts: [Staged<'static>; 2],
    pub(super) faults: Faults,
    /// How long each hop takes; one stage at a time.
    pub(super) service_us: fn(Server) -> u64,
    pub(super) busy: BTreeMap<Server, (Instant, Duration)>,
    pub(super) reports: [BTreeMap<StagedId, Report>; 2],
    pub(super) order: Vec<(usize, StagedId)>,
    pub(super) started: u64,
    /// Whose the destination is, by the megabyte.
    pub(super) owners: Vec<(usize, StagedId)>,
    random: Random,
    agenda: BTreeMap<(Instant, u64), Happens>,
    sequence: u64,
    memory: BTreeMap<Spot, Content>,
    /// What is being carried out, by host.
    running: [BTreeSet<StageId>; 2],
}

impl World {
    pub(super) fn new(hosts: [Staged<'static>; 2], seed: u64) -> Self {
        Self {
            now: Instant::ZERO,
            hosts,
            faults: Faults::default(),
            service_us: |_| 10,
            busy: BTreeMap::new(),
            reports: [BTreeMap::new(), BTreeMap::new()],
            order: Vec::new(),
            started: 0,
            owners: Vec::new(),
            random: Random::new(seed),
            agenda: BTreeMap::new(),
            sequence: 0,
            memory: BTreeMap::new(),
            running: [BTreeSet::new(), BTreeSet::new()],
        }
    }

    fn happens(&mut self, of_256: u8) -> bool {
        self.random.next_u64() % 256 < u64::from(of_256)
    }

    fn later(&mut self, at: Instant, event: Happens) {
        self.sequence += 1;
        self.agenda.insert((at, self.sequence), event);
    }

    /// Runs until nothing is left to happen, or `until`.
    pub(super) fn run(&mut self, until: Instant) {
        loop {
            for host in 0..2 {
                self.drain(host);
            }
            let event = self.agenda.keys().next().copied();
            let timeouts = self.hosts.iter().filter_map(Staged::poll_timeout);
            let timeout = timeouts.min().unwrap_or(Instant::MAX);
            let next = event.map_or(Instant::MAX, |(at, _)| at).min(timeout);
            if next > until || next == Instant::MAX {
                return;
            }
            self.now = self.now.max(next);
            match event.filter(|(at, _)| *at <= self.now) {
                Some(key) => {
                    let event = self.agenda.remove(&key).unwrap();
                    self.happen(event);
                }
                None => {
                    for host in &mut self.hosts {
                        host.handle_timeout(self.now);
                    }
                }
            }
        }
    }

    fn happen(&mut self, event: Happens) {
        match event {
            Happens::Message(to, message) => {
                // Late and doubled ones may be refused; nothing else may follow from them.
                let _ = self.hosts[to].handle_message(self.now, PeerId(0), &message);
            }
            Happens::Late(host, stage, None) => self.move_bytes(host, &stage),
            Happens::Late(host, stage, Some(content)) => self.write(host, &stage, content),
            Happens::Ends(host, stage, fate) => {
                let report = match fate {
                    Fate::Good => {
                        self.move_bytes(host, &stage);
                        good()
                    }
                    Fate::Failed => report(Status::Failed, Some(Cause::Reset)),
                    Fate::Unfenced => self.leave_unfenced(host, stage),
                };
                assert!(self.running[host].remove(&stage.id));
                let now = self.now;
                assert_eq!(
                    self.hosts[host].handle_stage(now, stage.id, &report),
                    Ok(())
                );
            }
        }
    }

    fn drain(&mut self, host: usize) {
        while let Some(stage) = self.hosts[host].poll_stage() {
            self.started += 1;
            assert!(
                self.running[host].insert(stage.id),
                "one at a time in a row"
            );
            self.start(host, stage);
        }
        while let Some((_, message)) = self.hosts[host].poll_message(self.now) {
            let copies = u8::from(!self.happens(self.faults.lost))
                + u8::from(self.happens(self.faults.doubled));
            for _ in 0..copies {
                let delay = self.random.next_u64() % (self.faults.delay_max_us + 1);
                let at = self.now + Duration::from_micros(delay);
                self.later(at, Happens::Message(1 - host, message));
            }
        }
        while let Some(event) = self.hosts[host].poll_event() {
            match event {
                Event::Ended { request, report } => {
                    let twice = self.reports[host].insert(request, report);
                    assert_eq!(twice, None, "reported once");
                    self.order.push((host, request));
                }
                Event::Settled {
                    request,
                    local,
                    remote,
                } => {
                    let report = self.reports[host].get_mut(&request).unwrap();
                    let before = (report.local, report.remote);
                    assert_ne!((local, remote), before, "nothing new");
                    (report.local, report.remote) = (local, remote);
                }
            }
        }
        // What is called back ends as it would have.
        while let Some(id) = self.hosts[host].poll_revoke() {
            assert!(self.running[host].contains(&id));
        }
        self.check(host);
    }

    fn start(&mut self, host: usize, stage: Stage) {
        let is_network = stage.hop != Hop::Copy;
        let inwards = match stage.hop {
            Hop::Copy => stage.local.segment == POOL,
            Hop::Network { .. } => stage.op == Op::Read,
        };
        let server = (host, is_network, inwards);
        let service = Duration::from_micros((self.service_us)(server));
        let (until, total) = self.busy.entry(server).or_default();
        *until = (*until).max(self.now) + service;
        *total += service;
        let until = *until;
        let fate = match () {
            () if self.happens(self.faults.unfenced) => Fate::Unfenced,
            () if self.happens(self.faults.failed) => Fate::Failed,
            () => Fate::Good,
        };
        self.later(until, Happens::Ends(host, stage, fate));
    }

    /// A place as whoever owns the memory numbers it.
    fn spot(host: usize, place: Place) -> Spot {
        match place.segment.0.checked_sub(FAR) {
            None => (host, place.segment.0, place.offset),
            Some(segment) => (1 - host, segment, place.offset),
        }
    }

    /// An attempt ends without proof of one kind or both; what is not proven happens.
    fn leave_unfenced(&mut self, host: usize, stage: Stage) -> Report {
        let mut open = report(Status::Indeterminate, Some(Cause::Silent));
        let at = self.now + Duration::from_micros(self.random.next_u64() % 300);
        let is_network_write = stage.hop != Hop::Copy && stage.op == Op::Write;
        if stage.hop != Hop::Copy && stage.op == Op::Read {
            open.remote = Remote::Settled;
        } else if is_network_write && self.happens(80) {
            open.remote = Remote::Settled;
            return open;
        }
        let read = (is_network_write && self.happens(128)).then(|| self.read(host, &stage));
        if read.is_some() {
            open.local = Local::Released;
        }
        self.later(at, Happens::Late(host, stage, read));
        open
    }

    fn move_bytes(&mut self, host: usize, stage: &Stage) {
        let content = self.read(host, stage);
        self.write(host, stage, content);
    }

    fn read(&self, host: usize, stage: &Stage) -> Content {
        let from = match stage.op {
            Op::Write => Self::spot(host, stage.local),
            Op::Read => Self::spot(host, stage.remote),
        };
        if from.1 == USER.0 {
            (from.0, from.2, stage.length)
        } else {
            *self.memory.get(&from).unwrap()
        }
    }

    fn write(&mut self, host: usize, stage: &Stage, content: Content) {
        let to = match stage.op {
            Op::Write => Self::spot(host, stage.remote),
            Op::Read => Self::spot(host, stage.local),
        };
        if to.1 == USER.0 {
            let (owner, report) = self.owner_of(to.2);
            let source = to.2 - DESTINATION;
            assert_eq!(
                (content.1, content.2),
                (source, stage.length),
                "another chunk's bytes"
            );
            let over = report.is_some_and(|report| report.status != Status::Indeterminate);
            assert!(!over, "written after its report: {owner:?}");
        }
        self.memory.insert(to, content);
    }

    /// Whose destination it is, and how that ended.
    fn owner_of(&self, offset: u64) -> (Option<(usize, StagedId)>, Option<Report>) {
        let owner = self
            .owners
            .get(((offset - DESTINATION) >> 20) as usize)
            .copied();
        (
            owner,
            owner.and_then(|(host, id)| self.reports[host].get(&id).copied()),
        )
    }

    /// What has to hold at any time.
    fn check(&self, host: usize) {
        // Under Miri this takes nearly all the time, and adds nothing to what that looks for.
        if cfg!(miri) && !self.sequence.is_multiple_of(16) {
            return;
        }
        let staged = &self.hosts[host];
        staged.audit().unwrap();
        for id in &self.running[host] {
            let claim = staged.claim(id.index).unwrap();
            assert_eq!((claim.attempt, claim.run), (id.generation, Run::Out));
            let route = staged.route_of(id.index);
            let needs_slot = route.is_none_or(|route| route.local_pool.is_some());
            assert_eq!(
                claim.slot.is_some(),
                needs_slot,
                "a slot that is named is kept"
            );
        }
    }

    /// Whether a request's bytes are all there.
    pub(super) fn is_right(&self, host: usize, request: &StagedRequest) -> bool {
        let (source, from, target, to) = match request.op {
            Op::Write => (host, request.local, 1 - host, request.remote),
            Op::Read => (1 - host, request.remote, host, request.local),
        };
        (0..request.length.div_ceil(SLOT_BYTES.into())).all(|chunk| {
            let done = chunk * u64::from(SLOT_BYTES);
            let length = (request.length - done).min(SLOT_BYTES.into()) as u32;
            self.memory.get(&(target, USER.0, to.offset + done))
                == Some(&(source, from.offset + done, length))
        })
    }

    /// Nothing has anything any more.
    pub(super) fn assert_idle(&self) {
        for staged in &self.hosts {
            for pool in [IN, OUT] {
                assert_eq!(staged.pool(pool).unwrap().used, 0, "{staged:#?}");
            }
            for peer in &*staged.peers {
                assert_eq!(peer.idle.len(), staged.tickets as usize, "{staged:#?}");
            }
        }
    }
}
