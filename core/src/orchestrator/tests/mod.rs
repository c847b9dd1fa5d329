//! A small world of rails that are slow, break, go silent and land bytes late, driven as a shell would.

extern crate std;
use std::boxed::Box;
use std::collections::BTreeMap;
use std::ops::Range;
use std::vec::Vec;
use std::{format, vec};

use quickcheck::{Arbitrary, Gen, QuickCheck};

use super::*;
use crate::path::class::RailClass;
use crate::plan::{PlanRail, PlanTransport};
use crate::rail::chooser::Sharing;
use crate::rail::documented::Shares;
use crate::rail::estimate::EstimateConfig;
use crate::rail::health::HealthMode;
use crate::rail::policies::{Given, Policies, PoliciesConfig, PolicyTables, TransportConfig};
use crate::rail::select::Policy;
use crate::rail::{Device, Rail, RailConfig, Waiting};
use crate::report::{Local, Remote, Status};
use crate::units::{DeviceId, Rate, SegmentRef};
use crate::work::{Cause, LaneLimits, Outcome, Place, Priority, Work};

mod at_once;
mod barren;
mod cut;
mod deadline;
mod denied;
mod ending;
mod failover;
mod grow;
mod handover;
mod health;
mod lies;
mod lines;
mod listed;
mod load;
mod merge;
mod path;
mod port;
mod post;
mod priority;
mod resend;
mod reset;
mod room;
mod settings;
mod signal;
mod spare;
mod wrap;

const RAILS: usize = 4;
const PEER: PeerId = PeerId(0);
const PLAN: PlanId = PlanId {
    index: 0,
    generation: 1,
};
const SLICE: u32 = 64 * 1024;
const LIMITS: LaneLimits = LaneLimits {
    counts: true,
    ..LaneLimits::new(64, 1 << 20)
};
const REQUESTS: usize = 64;
type TestStore = Store<16, 2, RAILS, REQUESTS, 512, 16>;
type Config<P = Policy> = super::Config<P>;
type Orchestrator<'a> = super::Orchestrator<'a, Policies<'a>>;

impl From<TransportConfig> for PoliciesConfig {
    fn from(usual: TransportConfig) -> Self {
        Self { usual, seed: 0 }
    }
}

impl From<Policy> for PoliciesConfig {
    fn from(policy: Policy) -> Self {
        TransportConfig::new(policy).into()
    }
}

/// What a rail does to bytes.
#[derive(Clone, Copy, Debug)]
struct Link {
    rate: Rate,
    delay: Duration,
    /// So long a lane takes to open.
    opens_after: Duration,
    /// Nothing passes; what was on its way waits.
    cut: bool,
    free_at: Instant,
}

/// One epoch of a lane, as the far side knows it.
#[derive(Debug, Default)]
struct FarLane {
    /// Posted and not landed, in order.
    on_its_way: Vec<(Instant, Work)>,
    landed: u32,
    /// The peer has promised that nothing more lands.
    fenced: bool,
    /// The near side has let go; completions are not seen any more.
    aborted: bool,
}

#[derive(Debug)]
enum Happening {
    Opened(LaneId, Epoch),
    Fact(LaneId, Epoch, LaneFact),
    /// A fence message reaches the peer.
    FenceArrives(LaneId, Epoch),
    Frame(Frame),
}

struct World<'a> {
    now: Instant,
    core: Orchestrator<'a>,
    /// What the lanes of each rail take.
    limits: [LaneLimits; RAILS],
    links: [Link; RAILS],
    lanes: BTreeMap<(LaneId, Epoch), FarLane>,
    future: BTreeMap<(Instant, u64), Happening>,
    counter: u64,
    /// The peer's process does nothing, not even say that it lives.
    stopped: bool,
    next_heartbeat: Instant,
    /// Of what is submitted from now on.
    deadline: Instant,
    /// Tag → (report, when).
    reports: BTreeMap<u64, Report>,
    settled: Vec<u64>,
    /// What became known of requests that had been reported.
    known: Vec<(u64, Local, Remote)>,
    /// What was handed over, and what was called back of it.
    handed: Vec<(u64, RequestId)>,
    called_back: Vec<u64>,
    /// Tag, transport left, transport taken, number of the switch.
    failovers: Vec<(u64, u8, u8, u8)>,
    batches: u32,
    /// Lengths of what has arrived at the destination, by offset; of copies that are cut differently the longest.
    arrived: BTreeMap<u64, u64>,
    /// Places in the destination, by tag.
    owners: BTreeMap<u64, Range<u64>>,
    /// Whether a work that arrived is said to have failed, and why.
    corrupts: fn(RailId, &Work) -> Option<Cause>,
    /// Whether the completion of a work that arrived is never seen.
    loses: fn(RailId, &Work) -> bool,
    /// Whether a rail's lane refuses what is posted, and why.
    refuses: fn(RailId) -> Option<Cause>,
    log: Vec<std::string::String>,
    /// What was posted.
    posted: Counts,
    /// Bytes of users' memory in works that were posted.
    sent_bytes: u64,
    /// The peer answers when it is asked for a fence.
    answers_fences: bool,
    /// So long this side takes to end a lane that is fenced.
    ends_after: Duration,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    posts: usize,
    works: usize,
    signals: usize,
}

/// What rails are told here: 1 GB/s, 50 us.
fn of_tier(tier: u8) -> EstimateConfig {
    EstimateConfig {
        rate_nominal: Rate::from_bytes_per_sec(1_000_000_000),
        delay_base: Duration::from_micros(50),
        tier,
        slice_span: Duration::ZERO,
        batch_span: Duration::ZERO,
    }
}

fn shared(tiers: &[u8], workers: usize) -> &'static Shared<'static> {
    let row: &'static [Rail] = Vec::leak((0..RAILS).map(|_| Rail::EMPTY).collect());
    let devices: &'static [Device] = Vec::leak((0..RAILS).map(|_| Device::EMPTY).collect());
    let waiting: &'static [Waiting] = Vec::leak((0..workers).map(|_| Waiting::NO).collect());
    let shared = Box::leak(Box::new(Shared::new(row, devices, waiting, SLICE)));
    for (i, tier) in (0..).zip(tiers) {
        let estimate = of_tier(*tier);
        assert!(shared.install_device(DeviceId(i), estimate));
        assert!(shared.install_rail(
            RailId(i),
            RailConfig {
                peer: PEER,
                device: DeviceId(i),
                far: None,
                estimate
            }
        ));
    }
    shared
}

/// A transport whose rails are numbered from `first`.
fn transport(number: u8, first: u16, tiers: &[u8]) -> PlanTransport {
    let rails = (first..).zip(tiers).map(|(rail, tier)| PlanRail {
        rail: RailId(rail),
        tier: *tier,
        class: RailClass::PRIMARY,
    });
    PlanTransport {
        transport: TransportId(number),
        rails: rails.collect(),
    }
}

impl World<'_> {
    fn new(policy: Policy, rails: u16) -> Self {
        Self::with(Config::new(0, policy), &[0; RAILS][..usize::from(rails)])
    }

    /// A world with one rail of each tier.
    fn with<C: Into<PoliciesConfig>>(config: Config<C>, tiers: &[u8]) -> Self {
        Self::with_attempts(config, tiers, usize::MAX)
    }

    /// One whose core has a table of so many attempts.
    fn with_attempts<C: Into<PoliciesConfig>>(
        config: Config<C>,
        tiers: &[u8],
        attempts: usize,
    ) -> Self {
        Self::among(1, config, tiers, attempts)
    }

    /// One whose core is one of so many workers, of which the others do nothing.
    fn among<C: Into<PoliciesConfig>>(
        workers: usize,
        config: Config<C>,
        tiers: &[u8],
        attempts: usize,
    ) -> Self {
        Self::of(workers, config, &[], tiers, attempts)
    }

    /// One whose first transports have settings of their own.
    fn among_with<C: Into<PoliciesConfig>>(
        workers: usize,
        config: Config<C>,
        own: &'static [TransportConfig],
        tiers: &[u8],
    ) -> Self {
        Self::of(workers, config, own, tiers, usize::MAX)
    }

    fn of<C: Into<PoliciesConfig>>(
        workers: usize,
        config: Config<C>,
        own: &'static [TransportConfig],
        tiers: &[u8],
        attempts: usize,
    ) -> Self {
        let store: &'static mut TestStore = Box::leak(Box::new(Store::new()));
        let mut tables = store.tables();
        let attempts = attempts.min(tables.attempts.len());
        tables.attempts = &mut tables.attempts[..attempts];
        let shared = shared(tiers, workers);
        let rows = PolicyTables {
            rails: Box::leak(Box::new([Given::NOTHING; RAILS])),
            shares: Box::leak(Box::new([Shares::NONE; REQUESTS])),
        };
        let policies = |policy: C| Policies::new(policy.into(), shared, rows).with_transports(own);
        let mut core = Orchestrator::new(config.map_policy(policies), shared, tables);
        let plan = Plan {
            peer: PEER,
            local: SegmentRef(1),
            remote: SegmentRef(2),
            transports: [transport(0, 0, tiers)].into_iter().collect(),
            scratch_local: Place {
                segment: SegmentRef(8),
                offset: 0,
            },
            scratch_remote: Place {
                segment: SegmentRef(9),
                offset: 0,
            },
            scratch_bytes: SLICE,
            path: None,
        };
        assert!(core.install_plan(Instant::ZERO, PLAN, &plan));
        let link = Link {
            rate: Rate::from_bytes_per_sec(1_000_000_000),
            delay: Duration::from_micros(50),
            opens_after: Duration::from_micros(100),
            cut: false,
            free_at: Instant::ZERO,
        };
        World {
            now: Instant::ZERO,
            core,
            limits: [LIMITS; RAILS],
            links: [link; RAILS],
            lanes: BTreeMap::new(),
            future: BTreeMap::new(),
            counter: 0,
            stopped: false,
            next_heartbeat: Instant::ZERO,
            deadline: Instant::MAX,
            reports: BTreeMap::new(),
            settled: Vec::new(),
            known: Vec::new(),
            handed: Vec::new(),
            called_back: Vec::new(),
            failovers: Vec::new(),
            batches: 0,
            arrived: BTreeMap::new(),
            owners: BTreeMap::new(),
            corrupts: |_, _| None,
            loses: |_, _| false,
            refuses: |_| None,
            log: Vec::new(),
            posted: Counts::default(),
            sent_bytes: 0,
            answers_fences: true,
            ends_after: Duration::from_micros(1),
        }
    }

    /// One whose plan ranks transports with so many rails each.
    fn ranked<C: Into<PoliciesConfig>>(config: Config<C>, rails: &[usize]) -> Self {
        Self::ranked_with(config, &[], rails)
    }

    /// The same, with settings of their own.
    fn ranked_with<C: Into<PoliciesConfig>>(
        config: Config<C>,
        own: &'static [TransportConfig],
        rails: &[usize],
    ) -> Self {
        let tiers = [0; RAILS];
        let mut world = Self::among_with(1, config, own, &tiers[..rails.iter().sum()]);
        let mut plan = world.core.plan(PLAN).expect("the plan").clone();
        plan.transports.clear();
        let mut first = 0;
        for (number, count) in (0..).zip(rails) {
            let row = transport(number, first, &tiers[..*count]);
            plan.transports.push(row).expect("as many as fit");
            first += *count as u16;
        }
        assert!(world.core.install_plan(world.now, PLAN, &plan));
        world
    }

    /// A batch of one request; its tag is also its place in the destination, in MiB.
    fn submit(&mut self, tag: u64, op: Op, length: u64) -> RequestId {
        self.submit_with(PLAN, tag, op, length)
    }

    fn submit_with(&mut self, plan: PlanId, tag: u64, op: Op, length: u64) -> RequestId {
        self.submit_as(plan, tag, op, length, Priority::Normal)
    }

    fn submit_as(
        &mut self,
        plan: PlanId,
        tag: u64,
        op: Op,
        length: u64,
        priority: Priority,
    ) -> RequestId {
        self.submit_at(plan, tag, op, tag << 30, length, priority)
    }

    /// The same, for another place in the destination.
    fn submit_at(
        &mut self,
        plan: PlanId,
        tag: u64,
        op: Op,
        offset: u64,
        length: u64,
        priority: Priority,
    ) -> RequestId {
        let batch = self.core.open_batch(tag).expect("a free batch");
        let request = Request {
            tag,
            plan,
            batch,
            local_offset: offset,
            remote_offset: offset,
            length,
            deadline: self.deadline,
            priority,
            op,
        };
        let id = self.core.submit(self.now, &request).expect("submit");
        self.core.seal_batch(batch);
        self.owners.insert(tag, offset..offset + length);
        id
    }

    fn later(&mut self, after: Duration, what: Happening) {
        self.counter += 1;
        self.future.insert((self.now + after, self.counter), what);
    }

    /// A rail on its own device is installed anew, and told this.
    fn tell(&self, rail: u16, estimate: EstimateConfig) {
        let config = RailConfig {
            peer: PEER,
            device: DeviceId(rail),
            far: None,
            estimate,
        };
        assert!(self.core.shared.install_rail(RailId(rail), config));
    }

    /// Breaks every lane on a rail: error completions, as a reset gives.
    fn reset_rail(&mut self, rail: u16) {
        let broken: Vec<_> = self
            .lanes
            .iter()
            .filter(|((lane, _), far)| lane.rail() == RailId(rail) && !far.fenced && !far.aborted)
            .map(|(key, _)| *key)
            .collect();
        for (lane, epoch) in broken {
            self.later(
                Duration::ZERO,
                Happening::Fact(lane, epoch, LaneFact::Broken(Cause::Reset)),
            );
        }
    }

    fn run(&mut self, until: Instant) {
        while self.now < until {
            self.drain();
            let next = self.next_time().min(until);
            assert!(next >= self.now);
            self.now = if next == self.now {
                self.now + Duration::from_nanos(1)
            } else {
                next
            };
            self.happen();
        }
        self.drain();
    }

    fn run_until_reported(&mut self, tags: usize, limit: Duration) {
        let until = self.now + limit;
        while self.reports.len() < tags && self.now < until {
            let step = (self.now + Duration::from_millis(1)).min(until);
            self.run(step);
        }
    }

    fn next_time(&self) -> Instant {
        let mut next = self.next_heartbeat;
        if let Some(((at, _), _)) = self.future.first_key_value() {
            next = next.min(*at);
        }
        if let Some((at, _)) = self.core.poll_timeout() {
            next = next.min(at.max(self.now));
        }
        for ((lane, _), far) in &self.lanes {
            if let Some((at, _)) = far.on_its_way.first()
                && !self.links[lane.rail().index()].cut
                && !self.stopped
                && !far.fenced
            {
                next = next.min((*at).max(self.now));
            }
        }
        next
    }

    fn happen(&mut self) {
        if self.next_heartbeat <= self.now {
            self.next_heartbeat = self.now + Duration::from_millis(500);
            if !self.stopped && self.links.iter().any(|link| !link.cut) {
                self.core.handle_frame(self.now, PEER, &Frame::Alive);
            }
        }
        self.land();
        while let Some(entry) = self.future.first_entry()
            && entry.key().0 <= self.now
        {
            let happening = entry.remove();
            self.one(happening);
        }
        self.core.handle_timeout(self.now);
    }

    fn one(&mut self, happening: Happening) {
        match happening {
            Happening::Opened(lane, epoch) => {
                if self.links[lane.rail().index()].cut || self.stopped {
                    return; // the SYN is lost; the deadline ends it
                }
                self.lanes.insert((lane, epoch), FarLane::default());
                let limits = self.limits[lane.rail().index()];
                self.core
                    .handle_lane(self.now, lane, epoch, LaneFact::Opened { limits });
            }
            Happening::Fact(lane, epoch, fact) => {
                self.core.handle_lane(self.now, lane, epoch, fact)
            }
            Happening::FenceArrives(lane, epoch) => {
                if self.stopped || !self.answers_fences {
                    return;
                }
                let far = self.lanes.entry((lane, epoch)).or_default();
                far.fenced = true;
                let frame = Frame::Fenced {
                    lane,
                    epoch,
                    delivered: far.landed,
                };
                self.later(Duration::from_micros(50), Happening::Frame(frame));
            }
            Happening::Frame(frame) => self.core.handle_frame(self.now, PEER, &frame),
        }
    }

    /// Bytes reach the destination, and completions the initiator.
    fn land(&mut self) {
        let mut completions = Vec::new();
        let mut landed = Vec::new();
        for ((lane, epoch), far) in &mut self.lanes {
            if self.links[lane.rail().index()].cut || self.stopped || far.fenced {
                continue;
            }
            while let Some((at, work)) = far.on_its_way.first().copied()
                && at <= self.now
            {
                far.on_its_way.remove(0);
                far.landed = far.landed.wrapping_add(1);
                landed.push(work);
                let outcome =
                    (self.corrupts)(lane.rail(), &work).map_or(Outcome::Success, Outcome::Error);
                let is_told = work.signal
                    || !self.limits[lane.rail().index()].covers
                    || outcome != Outcome::Success;
                if !far.aborted && is_told && !(self.loses)(lane.rail(), &work) {
                    completions.push(Completion {
                        lane: *lane,
                        epoch: *epoch,
                        cookie: work.cookie,
                        at,
                        outcome,
                    });
                }
            }
        }
        for work in landed {
            self.landed(work);
        }
        self.core.handle_completions(self.now, &completions);
    }

    fn landed(&mut self, work: Work) {
        if work.remote.segment != SegmentRef(2) {
            return; // scratch
        }
        let length = u64::from(work.length);
        let (from, to) = (work.remote.offset, work.remote.offset + length);
        for (tag, owner) in &self.owners {
            let report = self
                .reports
                .get(tag)
                .filter(|_| work.op == Op::Write && owner.start < to && from < owner.end);
            let Some(report) = report else {
                continue;
            };
            assert!(
                report.remote == Remote::Unknown || self.settled.is_empty(),
                "a byte of request {tag} landed after {report:?}"
            );
            assert_eq!(
                report.remote,
                Remote::Unknown,
                "a byte of request {tag} landed after its report"
            );
        }
        let longest = self.arrived.entry(work.remote.offset).or_default();
        *longest = length.max(*longest);
    }

    fn drain(&mut self) {
        let mut batch = PostBatch::default();
        for _ in 0..10_000 {
            let mut idle = true;
            let quiet = self.core.is_quiet();
            while let Some(post) = self.core.poll_post(self.now, &mut batch) {
                idle = false;
                if let Some(cause) = (self.refuses)(post.lane().rail()) {
                    let stop = Stop::Rejected(cause);
                    self.core.handle_posted(self.now, post, 0, stop);
                    continue;
                }
                self.post(post.lane(), &batch);
                self.core
                    .handle_posted(self.now, post, batch.works.len(), Stop::All);
            }
            while let Some(action) = self.core.poll_lane() {
                idle = false;
                self.act(action);
            }
            while let Some(Message::Fence { lane, epoch, .. }) = self.core.poll_message(self.now) {
                idle = false;
                // Over every way there is: one that works is enough.
                if self.links.iter().any(|link| !link.cut) {
                    self.later(
                        Duration::from_micros(50),
                        Happening::FenceArrives(lane, epoch),
                    );
                }
            }
            while let Some(event) = self.core.poll_event() {
                idle = false;
                self.event(event);
            }
            assert!(idle || !quiet, "quiet at {:?}, but not idle", self.now);
            if idle {
                self.core
                    .audit()
                    .unwrap_or_else(|violation| panic!("{:?}: {violation}", self.now));
                return;
            }
        }
        panic!("the drain does not end at {:?}", self.now);
    }

    fn post(&mut self, lane: LaneId, batch: &PostBatch) {
        let link = &mut self.links[lane.rail().index()];
        let far = self
            .lanes
            .get_mut(&(lane, batch.epoch))
            .expect("posted on a lane that is not open");
        assert!(!far.aborted && !far.fenced, "posted on a fenced lane");
        self.posted.posts += 1;
        self.posted.works += batch.works.len();
        self.posted.signals += batch.works.iter().filter(|work| work.signal).count();
        for work in &batch.works {
            let most = self.limits[lane.rail().index()].work_bytes_max;
            assert!(work.length > 0 && work.length <= most);
            if work.remote.segment == SegmentRef(2) {
                self.sent_bytes += u64::from(work.length);
            }
            link.free_at = link.free_at.max(self.now) + link.rate.time_for(u64::from(work.length));
            far.on_its_way.push((link.free_at + link.delay, *work));
        }
        let (works, most) = (
            far.on_its_way.len(),
            self.limits[lane.rail().index()].works_max,
        );
        assert!(
            works <= usize::from(most),
            "{works} works on a lane that takes {most}"
        );
    }

    fn act(&mut self, action: LaneAction) {
        self.log.push(format!("{:?} {action:?}", self.now));
        match action {
            LaneAction::Open { lane, epoch, .. } => {
                let after = self.links[lane.rail().index()].opens_after;
                self.later(after, Happening::Opened(lane, epoch));
            }
            LaneAction::Fence { lane, epoch, scope } => {
                if let Some(far) = self.lanes.get_mut(&(lane, epoch)) {
                    far.aborted = true;
                }
                let fact = LaneFact::Fenced {
                    scope,
                    delivered: None,
                };
                self.later(self.ends_after, Happening::Fact(lane, epoch, fact));
            }
            LaneAction::Close { .. } => {}
        }
    }

    fn event(&mut self, event: Event) {
        self.log.push(format!("{:?} {event:?}", self.now));
        match event {
            Event::RequestDone { request, tag } => {
                let report = self.core.take(request).expect("a report");
                assert!(
                    self.reports.insert(tag, report).is_none(),
                    "request {tag} reported twice"
                );
                let open = report.local == Local::Held || report.remote == Remote::Unknown;
                assert_eq!(report.status == Status::Indeterminate, open, "{report:?}");
                if report.status == Status::Completed {
                    self.assert_all_arrived(tag);
                }
            }
            Event::BatchDone { batch, .. } => {
                assert!(self.core.take_batch(batch).is_some());
                self.batches += 1;
            }
            Event::Settled { tag, local, remote } => {
                if (local, remote) == (Local::Released, Remote::Settled) {
                    self.settled.push(tag);
                }
                self.known.push((tag, local, remote));
            }
            Event::HandedOver { request, tag } => self.handed.push((tag, request)),
            Event::CalledBack { tag, .. } => self.called_back.push(tag),
            Event::Failover {
                tag,
                from,
                to,
                attempt,
            } => self.failovers.push((tag, from.0, to.0, attempt)),
            Event::RailChanged { .. } | Event::PeerChanged { .. } | Event::WakeWorker { .. } => {}
        }
    }

    fn assert_all_arrived(&self, tag: u64) {
        let Range { start, end } = self.owners[&tag];
        let mut at = start;
        while at < end {
            let before = self.arrived.range(..=at).next_back();
            let until = before.map_or(0, |(offset, length)| offset + length);
            assert!(until > at, "request {tag} lacks byte {}", at - start);
            at = until;
        }
    }

    fn done_bytes(&self, rail: u16) -> u64 {
        self.core.shared.view(RailId(rail)).unwrap().done_bytes
    }
}

fn ms(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

#[test]
fn bytes_arrive_and_each_request_is_reported_once() {
    for policy in Policy::ALL {
        let mut world = World::new(policy, 4);
        for (tag, length) in [(0, 1), (1, 64 << 10), (2, 10 << 20), (3, 4097)] {
            let op = if tag % 2 == 0 { Op::Write } else { Op::Read };
            world.submit(tag, op, length);
        }
        world.run_until_reported(4, Duration::from_secs(1));
        assert_eq!(world.reports.len(), 4, "{policy:?}");
        assert!(
            world
                .reports
                .values()
                .all(|report| report.status == Status::Completed)
        );
        assert_eq!(world.batches, 4);
        assert_eq!(world.core.requests(), 0);
    }
}

#[test]
fn shares_follow_the_rates_of_the_rails() {
    let mut world = World::new(Policy::Spray, 4);
    world.links[3].rate = Rate::from_bytes_per_sec(250_000_000);
    world.submit(0, Op::Write, 256 << 20);
    world.run_until_reported(1, Duration::from_secs(2));
    assert_eq!(world.reports[&0].status, Status::Completed);
    let total: u64 = (0..4).map(|rail| world.done_bytes(rail)).sum();
    let slow = world.done_bytes(3) * 1000 / total;
    // 0.25 of 3.25 is 77 in a thousand.
    assert!(
        (67..=87).contains(&slow),
        "slow rail carried {slow} of 1000"
    );
    // And nothing was wasted: within 3 % of 3.25 GB/s.
    let ideal = (256 << 20) * 1000 / 3_250_000;
    assert!(
        world.now.as_nanos() / 1000 < ideal * 103 / 100 + 1000,
        "{:?} for {ideal} us",
        world.now
    );
}

#[test]
fn a_rail_that_is_far_farther_away_than_told_carries_something_too() {
    // It was suspected before its first completion, and each look at it was given up before the answer.
    for millis in [20, 50, 150] {
        let mut world = World::new(Policy::Spray, 2);
        world.links[0].rate = Rate::from_bytes_per_sec(10_000_000);
        world.links[1].delay = Duration::from_millis(millis);
        let mut tag = 0;
        while world.now < Instant::ZERO + Duration::from_secs(5) {
            while tag < world.reports.len() as u64 + 7 {
                world.submit(tag, Op::Write, 1 << 20);
                tag += 1;
            }
            world.run(world.now + Duration::from_millis(10));
        }
        let [near, far] = [0, 1].map(|rail| world.done_bytes(rail));
        assert!(far > near, "{millis} ms: {far} beside {near}");
    }
}

#[test]
fn round_robin_waits_for_the_slowest() {
    let mut world = World::new(Policy::RoundRobin, 4);
    world.links[3].rate = Rate::from_bytes_per_sec(250_000_000);
    world.submit(0, Op::Write, 64 << 20);
    world.run_until_reported(1, Duration::from_secs(2));
    let bytes: Vec<u64> = (0..4).map(|rail| world.done_bytes(rail)).collect();
    let spread = bytes.iter().max().unwrap() - bytes.iter().min().unwrap();
    // The first lane had its window to itself while the others opened.
    assert!(spread <= 4 * u64::from(SLICE), "{bytes:?}");
}

#[test]
fn a_reset_rail_is_routed_around_and_comes_back() {
    let mut world = World::new(Policy::Spray, 4);
    world.submit(0, Op::Write, 512 << 20);
    world.run(ms(20));
    world.reset_rail(1);
    world.run(ms(20) + Duration::from_micros(100));
    let state = |world: &World<'_>| world.core.shared.view(RailId(1)).unwrap().state;
    assert_eq!(state(&world), RailState::Paused);
    let before = world.done_bytes(1);
    world.run(ms(22));
    assert_eq!(state(&world), RailState::Healthy, "a look was enough");
    world.run_until_reported(1, Duration::from_secs(2));
    assert_eq!(world.reports[&0].status, Status::Completed);
    assert!(
        world.done_bytes(1) > before + (20 << 20),
        "used again: {}",
        world.done_bytes(1) - before
    );
}

#[test]
fn the_only_rail_gets_its_slices_again_after_a_reset() {
    // Copies had to avoid the rail of the original for ever, also when the original had ended and there was
    // no other rail: the request was never reported.
    let mut world = World::new(Policy::Spray, 1);
    world.submit(0, Op::Write, 16 << 20);
    world.run(ms(5));
    world.reset_rail(0);
    world.run_until_reported(1, Duration::from_secs(1));
    assert_eq!(world.reports[&0].status, Status::Completed);
}

#[test]
fn requests_outlive_the_retirement_of_their_plan() {
    // They were failed with `NoRail`, and all others to the peer waited behind them until then.
    let mut world = World::new(Policy::Spray, 2);
    world.submit(0, Op::Write, 16 << 20);
    world.run(ms(2));
    world.core.retire_plan(PLAN);
    world.run_until_reported(1, Duration::from_secs(4));
    assert_eq!(world.reports[&0].status, Status::Completed);
}

#[test]
fn a_lane_that_cannot_be_opened_is_not_asked_for_at_once_again() {
    // For a cause that speaks against no rail it was, as fast as the shell could refuse.
    let mut world = World::new(Policy::Spray, 1);
    world.submit(0, Op::Write, 1);
    let mut opens = 0;
    for _ in 0..10 {
        assert_eq!(world.core.poll_post(ms(1), &mut PostBatch::default()), None);
        while let Some(action) = world.core.poll_lane() {
            if let LaneAction::Open { lane, epoch, .. } = action {
                opens += 1;
                let fact = LaneFact::OpenFailed(Cause::BadResponse);
                world.core.handle_lane(ms(1), lane, epoch, fact);
            }
        }
    }
    let state = world.core.shared.view(RailId(0)).unwrap().state;
    assert_eq!((opens, state), (1, RailState::Paused));
}

#[test]
fn a_probe_that_finds_no_row_is_tried_again() {
    // The rail was left probing for ever, for all workers: there was a claim, but no work to end it.
    let config = Config::new(0, Policy::Spray);
    let mut world = World::with_attempts(config, &[0, 0], 3);
    world.submit(0, Op::Write, 8 << 20);
    world.run(ms(2));
    world.links[1].rate = Rate::from_bytes_per_sec(20_000_000);
    world.reset_rail(0);
    world.run_until_reported(1, Duration::from_secs(1));
    assert_eq!(world.reports[&0].status, Status::Completed);
    world.run(world.now + Duration::from_millis(100));
    let state = world.core.shared.view(RailId(0)).unwrap().state;
    assert_eq!(state, RailState::Healthy);
}

#[test]
fn copies_that_no_rail_takes_hold_up_no_other_request() {
    let mut world = World::new(Policy::Spray, 2);
    world.links[1].cut = true;
    world.links[0].rate = Rate::from_bytes_per_sec(5_000_000);
    // Two slices of 13 ms each; they get copies, which must avoid the only rail there is.
    world.submit(0, Op::Write, 2 << 16);
    world.run(ms(8));
    let second = world.submit(1, Op::Write, 1);
    world.run(ms(9));
    assert!(world.reports.is_empty());
    assert_eq!(world.core.requests.get(second).unwrap().held, 1);
}

#[test]
fn a_worker_whose_requests_are_cancelled_waits_no_more() {
    // It did until its next timer, and the others left it its share of their windows.
    let mut world = World::among(2, Config::new(0, Policy::Spray), &[0], usize::MAX);
    let id = world.submit(0, Op::Write, 1);
    world.drain();
    assert_eq!(world.core.shared.line(0).waiting, 1);
    world.core.cancel(world.now, id);
    world.drain();
    assert_eq!(world.core.shared.line(0).waiting, 0);
}

#[test]
fn a_worker_that_others_have_waited_longer_than_takes_its_share_of_a_window() {
    // It took all of it where nobody had anything on a rail, and one look told that this was worth it.
    let mut world = World::among(3, Config::new(0, Policy::Spray), &[0], usize::MAX);
    world.submit(0, Op::Write, 64 << 16);
    world.run_until_reported(1, Duration::from_secs(1));
    for other in [1, 2] {
        world.core.shared.set_waiting(other, Some(Instant::ZERO));
    }
    world.submit(1, Op::Write, 1 << 28);
    for _ in 0..1_000 {
        world.run(world.now + Duration::from_micros(10));
        let taken = world.core.lanes[0].inflight_bytes;
        let window = world.core.shared.window_bytes(RailId(0));
        // A third, or what that was before the last completions.
        let share = (window / 2).max(SLICE.into());
        assert!(taken <= share, "{taken} of {window}");
    }
}

#[test]
fn a_full_lane_that_never_says_it_is_writable_is_tried_again() {
    // Nothing was posted, so neither a completion nor a timer came, and the request hung.
    let mut world = World::new(Policy::Spray, 1);
    world.submit(0, Op::Write, 1);
    let mut batch = PostBatch::default();
    assert_eq!(world.core.poll_post(world.now, &mut batch), None);
    while let Some(action) = world.core.poll_lane() {
        world.act(action);
    }
    world.now = ms(1);
    world.happen();
    let post = world.core.poll_post(world.now, &mut batch).expect("a work");
    world.core.handle_posted(world.now, post, 0, Stop::Full);
    world.run_until_reported(1, Duration::from_secs(1));
    assert_eq!(world.reports[&0].status, Status::Completed);
}

#[test]
fn no_more_works_are_posted_than_a_lane_takes() {
    // A read between two writes was bound without the open rails on which the second write then saw room.
    let mut world = World::new(Policy::Spray, 1);
    world.limits = [LaneLimits::new(2, 1 << 20); RAILS];
    world.submit(0, Op::Write, 1);
    world.run_until_reported(1, Duration::from_secs(1));
    world.run(world.now + Duration::from_millis(10));
    let ops = [Op::Write, Op::Read, Op::Write];
    for (tag, op) in (1..).zip(ops) {
        world.submit(tag, op, u64::from(SLICE));
    }
    world.run_until_reported(4, Duration::from_secs(1));
    assert_eq!(world.reports.len(), 4);
}

#[test]
fn works_are_as_short_as_lanes_want_them() {
    // A slice that no lane could take had no room anywhere, for ever.
    for policy in Policy::ALL {
        let mut world = World::new(policy, 4);
        for limits in &mut world.limits {
            limits.work_bytes_max = 10_000;
        }
        world.submit(0, Op::Write, 1 << 20);
        world.submit(1, Op::Read, 40 << 16);
        world.run_until_reported(2, Duration::from_secs(1));
        assert_eq!(world.reports.len(), 2, "{policy:?}");
    }
}

#[test]
fn a_request_without_a_rail_takes_no_other_with_it() {
    // It stopped the line, and when its time was over all that had waited behind it failed too.
    for policy in [Policy::Spray, Policy::Documented] {
        let mut world = World::new(policy, 2);
        let second = PlanId { index: 1, ..PLAN };
        let mut plan = world.core.plan(PLAN).unwrap().clone();
        plan.transports[0]
            .rails
            .retain(|rail| rail.rail == RailId(1));
        assert!(world.core.install_plan(world.now, second, &plan));
        world.links[1].cut = true;
        world.core.shared.handle_incident(
            world.now,
            RailId(1),
            HealthMode::Decay,
            crate::rail::health::Incident::Silence,
        );
        world.submit_with(second, 0, Op::Write, 1);
        for tag in 1..4 {
            world.submit(tag, Op::Write, 8 << 20);
        }
        world.run(ms(1));
        assert!(world.done_bytes(0) > 0, "{policy:?}");
        world.run_until_reported(4, Duration::from_secs(3));
        let ends: Vec<_> = world.reports.values().map(|report| report.status).collect();
        let good = Status::Completed;
        assert_eq!(ends, [Status::Failed, good, good, good], "{policy:?}");
        assert_eq!(world.reports[&0].cause, Some(Cause::NoRail));
    }
}

#[test]
fn a_request_that_more_rails_would_shorten_opens_their_lanes() {
    // One at a time went over one of four rails for ever. 16 KiB take 16 us there, of 50 us of delay.
    for (kib, lanes) in [(64, 4), (16, 1)] {
        let mut world = World::new(Policy::Spray, 4);
        for tag in 0..3 {
            world.submit(tag, Op::Write, kib << 10);
            world.run_until_reported(tag as usize + 1, Duration::from_millis(100));
        }
        let opened = world.log.iter().filter(|line| line.contains("Open"));
        assert_eq!(opened.count(), lanes, "{kib} KiB: {:?}", world.log);
    }
}

#[test]
fn a_lane_that_holds_all_its_works_takes_the_next_one_a_delay_later() {
    // An arena found it: a slice waited for the fast rail, which was to end it sooner, but could not take it yet. In turn a lane
    // of two works takes a round trip for two of four slices; both lanes together take one for all.
    let mut world = World::new(Policy::Spray, 2);
    for (number, divisor) in [(0, 1), (1, 5)] {
        let link = &mut world.links[usize::from(number)];
        link.delay = Duration::from_millis(1);
        link.rate = Rate::from_bytes_per_sec(link.rate.bytes_per_sec() / divisor);
        let estimate = EstimateConfig {
            delay_base: link.delay,
            ..of_tier(0)
        };
        world.tell(number, estimate);
        world.limits[usize::from(number)].works_max = 2;
    }
    for tag in 0..20 {
        world.submit(tag, Op::Write, 4 << 16);
        let submitted_at = world.now;
        world.run_until_reported(tag as usize + 1, Duration::from_millis(100));
        let took = world.now.since(submitted_at);
        // The slow one passes two slices in 660 us. Time is counted in whole milliseconds.
        let bound = Duration::from_millis(2);
        assert!(tag < 10 || took <= bound, "{tag}: {took:?}");
    }
}

#[test]
fn small_requests_one_at_a_time_do_not_stay_on_a_rail_that_crawls() {
    // An arena found it: no other lane was opened, as a request of one slice is no shorter on several. 4 KiB take 4 us elsewhere, and
    // 50 us of delay come on top: another rail would take less than half as long from a 15th of the rate down.
    for (slower, lanes) in [(400, 4), (100, 4), (25, 4), (18, 4), (12, 1), (2, 1)] {
        let mut world = World::new(Policy::Spray, 4);
        let link = &mut world.links[0];
        link.rate = Rate::from_bytes_per_sec(link.rate.bytes_per_sec() / slower);
        for tag in 0..40 {
            world.submit(tag, Op::Write, 4 << 10);
            world.run_until_reported(tag as usize + 1, Duration::from_millis(100));
        }
        let opened = world.log.iter().filter(|line| line.contains("Open"));
        assert_eq!(opened.count(), lanes, "{slower}: {:?}", world.log);
        let others: u64 = (1..4).map(|rail| world.done_bytes(rail)).sum();
        assert_eq!(
            others > 30 * (4 << 10),
            lanes > 1,
            "{slower}: {others} bytes"
        );
    }
}

#[test]
fn a_silent_rail_is_fenced_and_used_again_after_its_return() {
    let mut world = World::new(Policy::Spray, 4);
    world.submit(0, Op::Write, 1 << 30);
    world.run(ms(20));
    world.links[2].cut = true;
    world.run(ms(50));
    assert_ne!(
        world.core.shared.view(RailId(2)).unwrap().state,
        RailState::Healthy
    );
    let before = world.done_bytes(2);
    world.run(ms(100));
    world.links[2].cut = false;
    world.run(ms(220));
    assert_eq!(
        world.core.shared.view(RailId(2)).unwrap().state,
        RailState::Healthy
    );
    assert!(world.done_bytes(2) > before);
    world.run_until_reported(1, Duration::from_secs(2));
    assert_eq!(world.reports[&0].status, Status::Completed);
}

#[test]
fn the_only_lane_does_not_stand_still_for_ever() {
    // With one rail nothing else moves, and with the peer alive over control nothing was ever fenced.
    let mut world = World::new(Policy::Spray, 1);
    world.submit(0, Op::Write, 16 << 20);
    world.run(ms(5));
    world.links[0].cut = true;
    world.run(ms(2_500));
    world.links[0].cut = false;
    world.run_until_reported(1, Duration::from_secs(2));
    assert_eq!(world.reports[&0].status, Status::Completed);
    assert!(world.log.iter().any(|line| line.contains("Fence")));
    world.submit(1, Op::Write, 16 << 20);
    world.run(world.now + Duration::from_millis(2));
    world.links[0].cut = true;
    world.run(world.now + Duration::from_secs(5));
    let report = world.reports[&1];
    assert_eq!(
        (report.status, report.cause),
        (Status::Failed, Some(Cause::NoRail))
    );
}

#[test]
fn a_lane_that_stalls_by_nature_is_not_suspected_while_others_move() {
    // A disk stood still while a peer's lane moved, and was given up for the way around, which led to the same disk.
    for (patience_ms, suspected) in [(0, true), (500, false)] {
        let mut world = World::new(Policy::Spray, 2);
        world.limits[1].patience_ms = patience_ms;
        world.submit(0, Op::Write, 64 << 20);
        world.run(ms(5));
        world.links[1].cut = true;
        world.run(ms(300));
        let rail = world.core.shared.view(RailId(1)).unwrap();
        assert_eq!(rail.state != RailState::Healthy, suspected, "{patience_ms}");
        world.links[1].cut = false;
        world.run_until_reported(1, Duration::from_secs(2));
        assert_eq!(world.reports[&0].status, Status::Completed);
    }
}

#[test]
fn that_memory_here_is_free_is_told_before_there_is_proof_from_the_peer() {
    let mut world = World::new(Policy::Spray, 4);
    world.ends_after = Duration::from_secs(4);
    world.submit(0, Op::Write, 1 << 29);
    world.run(ms(20));
    world.stopped = true;
    world.run_until_reported(1, Duration::from_secs(3));
    let report = world.reports[&0];
    assert_eq!(
        (report.status, report.local, report.remote),
        (Status::Indeterminate, Local::Held, Remote::Unknown)
    );
    assert_eq!(world.known, []);
    // Whoever gave the memory may use it again, also if the peer never comes back.
    world.run(world.now + Duration::from_secs(5));
    assert_eq!(world.known, [(0, Local::Released, Remote::Unknown)]);
    world.stopped = false;
    world.run(world.now + Duration::from_secs(2));
    assert_eq!((&world.settled[..], world.known.len()), (&[0][..], 2));
    assert_eq!(world.core.requests(), 0, "a row is left behind");
}

#[test]
fn that_a_peer_would_count_as_silent_can_be_seen_before_it_does() {
    let mut world = World::new(Policy::Spray, 4);
    world.submit(0, Op::Write, 1 << 29);
    world.run(ms(20));
    world.stopped = true;
    let start = world.now;
    world.run(start + Duration::from_millis(100));
    // It has been heard at most half a second before.
    let after = |ms: u64| start + Duration::from_millis(ms);
    assert!(!world.core.finds_silence(after(699)));
    assert!(world.core.finds_silence(after(1_201)));
    world.core.handle_frame(after(101), PEER, &Frame::Alive);
    assert!(!world.core.finds_silence(after(1_300)));
    assert!(world.core.finds_silence(after(1_302)));
    world.core.handle_timeout(after(1_302));
    assert!(
        !world.core.finds_silence(after(9_000)),
        "it counts as silent"
    );
}

#[test]
fn a_stopped_peer_ends_in_indeterminate_writes_failed_reads_and_a_late_proof() {
    let mut world = World::new(Policy::Spray, 4);
    world.submit(0, Op::Write, 1 << 29);
    world.submit(1, Op::Read, 1 << 29);
    world.run(ms(20));
    world.stopped = true;
    world.run(ms(2_600));
    let (write, read) = (world.reports[&0], world.reports[&1]);
    assert_eq!(
        (write.status, write.remote, write.local),
        (Status::Indeterminate, Remote::Unknown, Local::Released)
    );
    assert_eq!(
        (read.status, read.cause),
        (Status::Failed, Some(Cause::PeerSilent))
    );
    assert!(write.delivered_bytes > 0 && write.delivered_bytes < 1 << 29);
    world.stopped = false;
    world.run(ms(4_000));
    assert_eq!(world.settled, [0], "the proof came late, but it came");
    assert_eq!(world.core.requests(), 0);
    world.submit(2, Op::Write, 1 << 20);
    world.run_until_reported(3, Duration::from_secs(2));
    assert_eq!(
        world.reports[&2].status,
        Status::Completed,
        "a clean start after the return"
    );
}

#[test]
fn a_peer_that_nothing_goes_to_may_be_quiet_for_longer() {
    // It is asked once a second then, and a fifth of a second without a processor ended its lanes.
    for (busy, silence_ms) in [(true, 1_200), (false, 2_200)] {
        let mut world = ending::warmed(World::new(Policy::Spray, 2));
        world.stopped = true;
        if busy {
            world.submit(1, Op::Write, 1 << 20);
        }
        let heard_at = world.core.peers[PEER.index()].heard_at();
        while !world.core.is_silent(PEER) {
            world.run(world.now + Duration::from_millis(1));
            assert!(world.now < heard_at + Duration::from_secs(3), "{busy}");
        }
        let after = world.now.since(heard_at).as_nanos() / 1_000_000;
        assert!(
            (silence_ms..silence_ms + 5).contains(&after),
            "{busy}: {after}"
        );
    }
}

#[test]
fn what_comes_to_a_dead_peer_is_reported_within_the_bound_whenever_it_comes() {
    for (op, dead_ms) in [Op::Write, Op::Read]
        .into_iter()
        .flat_map(|op| [0, 600, 1_150, 1_250, 1_700, 2_150, 2_250, 4_000].map(|ms| (op, ms)))
    {
        let mut world = ending::warmed(World::new(Policy::Spray, 2));
        world.stopped = true;
        world.run(world.now + Duration::from_millis(dead_ms));
        world.submit(1, op, 1 << 20);
        let submitted_at = world.now;
        world.run_until_reported(1, Duration::from_secs(3));
        assert_eq!(world.reports.len(), 1, "{op:?} after {dead_ms} ms");
        let after = world.now.since(submitted_at);
        let bound = Duration::from_millis(2_005);
        assert!(after <= bound, "{op:?} after {dead_ms} ms: {after:?}");
    }
}

#[test]
fn without_any_rail_requests_fail_within_the_bound() {
    let mut world = World::new(Policy::Spray, 2);
    for link in &mut world.links[..2] {
        link.cut = true;
    }
    world.submit(0, Op::Write, 1 << 20);
    // The links that are left (2 and 3) keep the peer's heartbeat alive but are no rails of its.
    world.run(ms(6_000));
    let report = world.reports[&0];
    assert_eq!(
        (report.status, report.cause),
        (Status::Failed, Some(Cause::NoRail))
    );
    assert_eq!(
        (report.delivered_bytes, report.remote),
        (0, Remote::Settled)
    );
}

#[test]
fn a_cancelled_request_ends_when_its_posted_attempts_have() {
    let mut world = World::new(Policy::Spray, 4);
    let id = world.submit(0, Op::Write, 1 << 29);
    world.run(ms(10));
    assert_eq!(world.core.cancel(world.now, id), Cancelled::Marked);
    world.run(ms(11));
    let report = world.reports[&0];
    assert_eq!(
        (report.status, report.remote),
        (Status::Cancelled, Remote::Settled)
    );
    assert_eq!(world.core.cancel(world.now, id), Cancelled::Stale);
    // Nobody's lane was fenced for it.
    assert!(
        (0..4)
            .all(|rail| world.core.shared.view(RailId(rail)).unwrap().state == RailState::Healthy)
    );
}

#[test]
fn a_cancelled_request_on_a_dead_lane_is_fenced_after_the_grace_time() {
    let mut world = World::new(Policy::Spray, 1);
    let id = world.submit(0, Op::Write, 1 << 29);
    world.run(ms(10));
    world.links[0].cut = true;
    world.core.cancel(world.now, id);
    world.run(ms(200));
    assert_eq!(world.reports[&0].status, Status::Cancelled);
}

#[test]
fn a_deadline_ends_a_request() {
    let mut world = World::new(Policy::Spray, 1);
    let batch = world.core.open_batch(0).unwrap();
    let request = Request {
        tag: 0,
        plan: PLAN,
        batch,
        local_offset: 0,
        remote_offset: 0,
        length: 1 << 30,
        deadline: ms(30),
        priority: Priority::Normal,
        op: Op::Write,
    };
    world.core.submit(world.now, &request).unwrap();
    world.core.seal_batch(batch);
    world.run(ms(40));
    let report = world.reports[&0];
    assert_eq!(report.status, Status::DeadlineExceeded);
    assert!(report.delivered_bytes > 0);
}

#[test]
fn what_is_wrong_with_a_submission_is_said() {
    let mut world = World::new(Policy::Spray, 1);
    let batch = world.core.open_batch(0).unwrap();
    let good = Request {
        tag: 0,
        plan: PLAN,
        batch,
        local_offset: 0,
        remote_offset: 0,
        length: 1,
        deadline: Instant::MAX,
        priority: Priority::Normal,
        op: Op::Write,
    };
    let stale = PlanId {
        generation: 7,
        ..PLAN
    };
    let no_batch = BatchId {
        index: 9,
        generation: 0,
    };
    let cases = [
        (
            "stale plan",
            Request {
                plan: stale,
                ..good
            },
            SubmitError::PlanMissing,
        ),
        (
            "no batch",
            Request {
                batch: no_batch,
                ..good
            },
            SubmitError::BatchMissing,
        ),
        (
            "no bytes",
            Request { length: 0, ..good },
            SubmitError::Empty,
        ),
        (
            "past the end of offsets",
            Request {
                remote_offset: u64::MAX,
                length: 2,
                ..good
            },
            SubmitError::Overflow,
        ),
    ];
    for (name, request, error) in cases {
        assert_eq!(world.core.submit(world.now, &request), Err(error), "{name}");
    }
    let full = (0..).find_map(|_| world.core.submit(world.now, &good).err());
    assert_eq!(full, Some(SubmitError::Full));
    world.core.retire_plan(PLAN);
    assert_eq!(
        world.core.submit(world.now, &good),
        Err(SubmitError::PlanMissing)
    );
}

#[test]
fn a_peer_that_is_gone_ends_its_requests_with_peer_lost() {
    let mut world = World::new(Policy::Spray, 4);
    world.submit(0, Op::Write, 1 << 29);
    world.run(ms(10));
    world.stopped = true;
    world
        .core
        .handle_peer_gone(world.now, PEER, Proof::ProcessGone);
    world.run(ms(12));
    let report = world.reports[&0];
    assert_eq!(
        (report.status, report.remote),
        (Status::PeerLost, Remote::Settled)
    );
    world.submit(1, Op::Read, 100);
    world.run(ms(13));
    assert_eq!(world.reports[&1].status, Status::PeerLost);
}

#[test]
fn facts_of_an_old_epoch_change_nothing() {
    let mut world = World::new(Policy::Spray, 1);
    world.submit(0, Op::Write, 1 << 20);
    world.run(ms(1));
    let lane = LaneId::new(0, RailId(0));
    for fact in [
        LaneFact::Broken(Cause::Reset),
        LaneFact::OpenFailed(Cause::Refused),
    ] {
        world.core.handle_lane(world.now, lane, Epoch(0), fact);
        world.core.handle_lane(world.now, lane, Epoch(9), fact);
    }
    let stray = Completion {
        lane,
        epoch: Epoch(1),
        cookie: u64::MAX,
        at: world.now,
        outcome: Outcome::Success,
    };
    world.core.handle_completions(world.now, &[stray]);
    world.run(ms(20));
    assert_eq!(world.reports[&0].status, Status::Completed);
}

#[test]
fn a_lane_that_takes_only_some_works_gets_the_rest_later() {
    let mut world = World::new(Policy::Spray, 1);
    world.submit(0, Op::Write, 1 << 20);
    let mut batch = PostBatch::default();
    let mut taken = 0;
    for step in 0..200_u64 {
        while let Some(action) = world.core.poll_lane() {
            world.act(action);
        }
        while let Some(post) = world.core.poll_post(world.now, &mut batch) {
            let some = batch.works.len().min(1);
            assert_eq!(
                world.core.poll_post(world.now, &mut PostBatch::default()),
                None,
                "unanswered"
            );
            batch.works.truncate(some);
            world.post(post.lane(), &batch);
            taken += some;
            world.core.handle_posted(world.now, post, some, Stop::Full);
            world.core.audit().unwrap();
        }
        world.now = ms(step);
        world.happen();
        while let Some(event) = world.core.poll_event() {
            world.event(event);
        }
    }
    assert_eq!((world.reports[&0].status, taken), (Status::Completed, 16));
}

#[test]
fn an_unknown_post_is_an_orphan_and_is_fenced_before_the_report() {
    let mut world = World::new(Policy::Spray, 2);
    world.submit(0, Op::Write, 1 << 20);
    let mut batch = PostBatch::default();
    let mut unknown = true;
    for step in 0..500_u64 {
        while let Some(post) = world.core.poll_post(world.now, &mut batch) {
            world.post(post.lane(), &batch);
            let (accepted, stop) = if core::mem::take(&mut unknown) {
                (0, Stop::Unknown)
            } else {
                (32, Stop::All)
            };
            let accepted = accepted.min(batch.works.len());
            world.core.handle_posted(world.now, post, accepted, stop);
        }
        world.drain();
        world.now = world.now + Duration::from_micros(100 + step);
        world.happen();
    }
    assert_eq!(world.reports[&0].status, Status::Completed);
    assert!(world.log.iter().any(|line| line.contains("Fence")));
}

#[test]
fn a_failed_write_is_waited_for_like_its_neighbours() {
    // The simulator found it: all of a lane's works fail, their slices are sent elsewhere, the request is
    // reported, and then the rail comes back and what was on its way lands after the report.
    let mut world = World::new(Policy::Spray, 4);
    world.submit(0, Op::Write, 64 << 20);
    world.run(ms(5));
    let lane = LaneId::new(0, RailId(1));
    world.links[1].cut = true;
    let stuck: Vec<Work> = world.lanes[&(lane, Epoch(1))]
        .on_its_way
        .iter()
        .map(|(_, work)| *work)
        .collect();
    assert!(stuck.len() > 1);
    for (index, work) in stuck.iter().enumerate() {
        let cause = match index {
            0 => Cause::RetryExceeded,
            _ => Cause::Flushed,
        };
        let completion = Completion {
            lane,
            epoch: Epoch(1),
            cookie: work.cookie,
            at: world.now,
            outcome: Outcome::Error(cause),
        };
        world.core.handle_completions(world.now, &[completion]);
    }
    // The first fence message is lost, so the rest is moved before the peer hears of it. Then the rail is back.
    for link in &mut world.links {
        link.cut = true;
    }
    world.run(world.now + Duration::from_micros(1));
    for rail in [0, 2, 3] {
        world.links[rail].cut = false;
    }
    world.run(world.now + Duration::from_millis(19));
    world.links[1].cut = false;
    world.run_until_reported(1, Duration::from_secs(1));
    world.run(world.now + Duration::from_millis(20));
    assert_eq!(world.reports[&0].status, Status::Completed);
    assert!(
        world
            .log
            .iter()
            .any(|line| line.contains("Fence") && line.contains("LaneId(1)"))
    );
}

#[test]
fn a_write_that_failed_by_the_callers_fault_is_waited_for_too() {
    // What a device met in the middle of a work says nothing of the packets that it had sent before.
    for (back, status, remote) in [
        (true, Status::Failed, Remote::Settled),
        (false, Status::Indeterminate, Remote::Unknown),
    ] {
        let mut world = World::new(Policy::Spray, 1);
        world.submit(0, Op::Write, 4 << 20);
        world.run_until_reported(1, Duration::from_secs(1));
        world.links.iter_mut().for_each(|link| link.cut = true);
        world.submit(1, Op::Write, 100);
        world.drain();
        let lane = LaneId::new(0, RailId(0));
        let stuck = &world.lanes[&(lane, Epoch(1))].on_its_way;
        let [(_, work)] = stuck[..] else {
            panic!("{}", stuck.len());
        };
        let completion = Completion {
            lane,
            epoch: Epoch(1),
            cookie: work.cookie,
            at: world.now,
            outcome: Outcome::Error(Cause::LocalProtection),
        };
        // Said twice, it is the same.
        world
            .core
            .handle_completions(world.now, &[completion, completion]);
        world.run(world.now + Duration::from_millis(10));
        assert_eq!(world.reports.len(), 1, "nothing is proved");
        world.links.iter_mut().for_each(|link| link.cut = !back);
        world.run_until_reported(2, Duration::from_secs(5));
        let report = world.reports[&1];
        assert_eq!((report.status, report.remote), (status, remote));
        assert_eq!(report.cause, Some(Cause::LocalProtection));
    }
}

#[test]
fn a_refused_key_fails_the_request_and_not_the_rail() {
    let mut world = World::new(Policy::Spray, 2);
    world.submit(0, Op::Write, 1 << 20);
    world.submit(1, Op::Write, 1 << 20);
    world.drain();
    world.now = ms(1);
    world.happen();
    let mut batch = PostBatch::default();
    let post = world
        .core
        .poll_post(world.now, &mut batch)
        .expect("something to post");
    let (lane, first) = (post.lane(), batch.works[0]);
    world.post(lane, &batch);
    world
        .core
        .handle_posted(world.now, post, batch.works.len(), Stop::All);
    let outcome = Outcome::Error(Cause::RemoteAccess);
    let completion = Completion {
        lane,
        epoch: batch.epoch,
        cookie: first.cookie,
        at: world.now,
        outcome,
    };
    world
        .lanes
        .get_mut(&(lane, batch.epoch))
        .unwrap()
        .on_its_way
        .remove(0);
    world.core.handle_completions(world.now, &[completion]);
    world.run_until_reported(2, Duration::from_secs(1));
    let failed = first.remote.offset >> 30;
    assert_eq!(
        (world.reports[&failed].status, world.reports[&failed].cause),
        (Status::Failed, Some(Cause::RemoteAccess))
    );
    assert_eq!(
        world.reports[&(1 - failed)].status,
        Status::Completed,
        "its neighbour is sent again"
    );
    assert_eq!(
        world.core.shared.view(lane.rail()).unwrap().state,
        RailState::Healthy
    );
}

fn shares_of_four(world: &World<'_>, id: RequestId) -> Vec<u16> {
    let shares = world.core.shares_of(id);
    (0..RAILS).map(|position| shares.count(position)).collect()
}

#[test]
fn documented_fixes_shares_when_a_request_is_submitted() {
    // (name, tiers, bytes, shares)
    let cases = [
        ("a slice goes to one", [0, 1, 1, 1], 1, [1, 0, 0, 0]),
        ("penalties count", [0, 1, 2, 2], 4 << 20, [47, 9, 4, 4]),
        (
            "fewer slices go to one",
            [0, 1, 1, 1],
            8 << 16,
            [8, 0, 0, 0],
        ),
    ];
    for (name, tiers, length, expected) in cases {
        let mut world = World::with(Config::new(0, Policy::Documented), &tiers);
        let id = world.submit(0, Op::Write, length);
        let mut shares = shares_of_four(&world, id);
        shares[1..].sort_unstable_by(|a, b| b.cmp(a));
        assert_eq!(shares, expected, "{name}");
        world.core.audit().unwrap();
        world.run_until_reported(1, Duration::from_secs(1));
        assert_eq!(world.reports[&0].status, Status::Completed, "{name}");
    }
}

#[test]
fn documented_gives_later_requests_other_rails() {
    let mut world = World::new(Policy::Documented, 4);
    let ids: Vec<_> = (0..4)
        .map(|tag| world.submit(tag, Op::Write, 100))
        .collect();
    let mut sum = vec![0; RAILS];
    for id in ids {
        for (sum, count) in sum.iter_mut().zip(shares_of_four(&world, id)) {
            *sum += count;
        }
    }
    assert_eq!(sum, [1; RAILS], "what is assigned counts as in flight");
}

#[test]
fn documented_moves_the_shares_of_a_paused_rail_to_the_best() {
    let mut world = World::new(Policy::Documented, 4);
    let id = world.submit(0, Op::Write, 256 << 20);
    world.run(ms(5));
    let before = shares_of_four(&world, id);
    let rail = before.iter().position(|count| *count > 0);
    let rail = rail.expect("more slices than the lanes take");
    world.reset_rail(rail as u16);
    world.run(ms(6));
    let after = shares_of_four(&world, id);
    assert_eq!(after[rail], 0, "{before:?} {after:?}");
    world.run_until_reported(1, Duration::from_secs(2));
    assert_eq!(world.reports[&0].status, Status::Completed);
}

#[test]
fn documented_lets_no_request_wait_for_the_rails_of_another() {
    let config = Config {
        progress_floor: Duration::from_secs(10),
        ..Config::new(0, Policy::Documented)
    };
    let mut world = World::with(config, &[0, 0]);
    world.links[0].rate = Rate::from_bytes_per_sec(1_000_000);
    // Half of the first one is to go over a rail that stands nearly still.
    world.submit(0, Op::Write, 64 << 20);
    world.run(ms(40));
    for tag in 1..9 {
        world.submit(tag, Op::Write, 100);
    }
    world.run(ms(60));
    assert!(!world.reports.contains_key(&0));
    assert_eq!(world.reports.len(), 8);
}

#[test]
fn documented_cuts_slices_to_what_a_lane_takes() {
    // 64 slices of 4 MiB would be four times as long as a work can be.
    let mut world = World::new(Policy::Documented, 4);
    world.submit(0, Op::Write, 256 << 20);
    world.run_until_reported(1, Duration::from_secs(2));
    assert_eq!(world.reports[&0].status, Status::Completed);
    assert!(
        world
            .arrived
            .values()
            .all(|length| *length <= u64::from(LIMITS.work_bytes_max))
    );
}

#[test]
fn documented_learns_and_its_baseline_mode_is_round_robin() {
    let documented = crate::rail::documented::DocumentedConfig {
        min_bandwidth_gbps: 1.0,
        ..TransportConfig::new(Policy::Documented).documented
    };
    let of = |documented| TransportConfig {
        documented,
        ..TransportConfig::new(Policy::Documented)
    };
    let mut world = World::with(Config::new(0, of(documented)), &[0]);
    let bandwidth =
        |world: &World<'_>| (world.core.config.policy).bandwidth(TransportId(0), RailId(0));
    let nominal = bandwidth(&world);
    assert!((0.99e9..1.01e9).contains(&nominal), "{nominal}");
    world.submit(0, Op::Write, 64 << 10);
    world.run_until_reported(1, Duration::from_secs(1));
    // 64 KiB in 65.5 us and 50 us of delay: latency counts as slowness.
    let learned = bandwidth(&world);
    assert!((0.56e9..0.58e9).contains(&learned), "{learned}");

    let documented = crate::rail::documented::DocumentedConfig {
        enable_smart_scheduling: false,
        ..documented
    };
    let world = World::with(Config::new(0, of(documented)), &[0]);
    let policy = world.core.config.policy.of(TransportId(0)).policy();
    assert_eq!(policy, Policy::RoundRobin);
}

#[test]
fn fixed_policies_use_their_rails_and_no_others() {
    // (policy, tiers, rails that carry bytes)
    let cases = [
        (Policy::RoundRobin, [1, 0, 0, 2], vec![1, 2]),
        (Policy::FixedTier1, [1, 0, 0, 2], vec![1, 2]),
        (Policy::FixedTier1, [1, 2, 2, 2], vec![0]),
        (Policy::BestTwo, [1, 0, 0, 2], vec![0, 1]),
        (Policy::Documented, [1, 0, 0, 2], vec![0, 1, 2, 3]),
        (Policy::Spray, [1, 0, 0, 2], vec![0, 1, 2, 3]),
    ];
    for (policy, tiers, rails) in cases {
        let mut world = World::with(Config::new(0, policy), &tiers);
        world.submit(0, Op::Write, 64 << 20);
        world.run_until_reported(1, Duration::from_secs(1));
        let used: Vec<u16> = (0..4).filter(|rail| world.done_bytes(*rail) > 0).collect();
        assert_eq!(used, rails, "{policy:?}");
    }
}

#[test]
fn a_fixed_policy_goes_on_with_the_next_tier_while_the_nearest_is_paused() {
    let mut world = World::with(Config::new(0, Policy::FixedTier1), &[0, 1]);
    world.submit(0, Op::Write, 64 << 20);
    world.run(ms(5));
    world.links[0].cut = true;
    world.reset_rail(0);
    world.run_until_reported(1, Duration::from_secs(1));
    assert_eq!(world.reports[&0].status, Status::Completed);
    assert!(world.done_bytes(1) > 32 << 20);
}

/// Something that happens to a world at some time.
#[derive(Clone, Copy, Debug)]
enum Step {
    Submit {
        write: bool,
        kib: u16,
    },
    /// Some small ones that lie together.
    Row {
        write: bool,
        kib: u8,
        count: u8,
    },
    Cut(u8),
    Restore(u8),
    Reset(u8),
    Slow(u8, u16),
    Stop,
    Resume,
    Cancel(u8),
    Wait(u16),
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        match u8::arbitrary(g) % 16 {
            0 => Self::Row {
                write: bool::arbitrary(g),
                kib: u8::arbitrary(g) % 40,
                count: u8::arbitrary(g) % 6,
            },
            1..=3 => Self::Submit {
                write: bool::arbitrary(g),
                kib: u16::arbitrary(g) % 8_000 + 1,
            },
            4 | 5 => Self::Cut(u8::arbitrary(g)),
            6 | 7 => Self::Restore(u8::arbitrary(g)),
            8 => Self::Reset(u8::arbitrary(g)),
            9 => Self::Slow(u8::arbitrary(g), u16::arbitrary(g)),
            10 => {
                if u8::arbitrary(g) % 4 == 0 {
                    Self::Stop
                } else {
                    Self::Resume
                }
            }
            11 => Self::Cancel(u8::arbitrary(g)),
            _ => Self::Wait(u16::arbitrary(g) % 400),
        }
    }
}

/// Safety while faults last, liveness once they stop.
fn survives(policy: Policy, steps: Vec<Step>) -> bool {
    survives_with(LIMITS, policy, steps)
}

fn survives_with(limits: LaneLimits, policy: Policy, steps: Vec<Step>) -> bool {
    let mut world = World::new(policy, 4);
    world.limits = [limits; RAILS];
    let mut ids = Vec::new();
    for step in steps {
        match step {
            Step::Submit { write, kib } if ids.len() < 40 && world.core.batches.len() < 16 => {
                let op = if write { Op::Write } else { Op::Read };
                ids.push(world.submit(ids.len() as u64, op, u64::from(kib) * 1024 + 1));
            }
            Step::Submit { .. } => {}
            Step::Row { write, kib, count } => {
                let op = if write { Op::Write } else { Op::Read };
                let length = u64::from(kib) * 1024 + 1;
                let first = (ids.len() as u64) << 30;
                for number in 0..u64::from(count) {
                    if ids.len() == 40 || world.core.batches.len() == 16 {
                        break;
                    }
                    let (tag, offset) = (ids.len() as u64, first + number * length);
                    ids.push(world.submit_at(PLAN, tag, op, offset, length, Priority::Normal));
                }
            }
            Step::Cut(rail) => world.links[usize::from(rail) % RAILS].cut = true,
            Step::Restore(rail) => world.links[usize::from(rail) % RAILS].cut = false,
            Step::Reset(rail) => world.reset_rail(u16::from(rail) % RAILS as u16),
            Step::Slow(rail, mb) => {
                let rate = Rate::from_bytes_per_sec((u64::from(mb) % 2_000 + 1) * 1_000_000);
                world.links[usize::from(rail) % RAILS].rate = rate;
            }
            Step::Stop => world.stopped = true,
            Step::Resume => world.stopped = false,
            Step::Cancel(which) => {
                if let Some(id) = ids.get(usize::from(which)) {
                    world.core.cancel(world.now, *id);
                }
            }
            Step::Wait(tenths) => {
                world.run(world.now + Duration::from_micros(u64::from(tenths) * 100))
            }
        }
    }
    world.stopped = false;
    for link in &mut world.links {
        link.cut = false;
        link.rate = Rate::from_bytes_per_sec(1_000_000_000);
        link.free_at = link.free_at.min(world.now + Duration::from_millis(500));
    }
    world.run_until_reported(ids.len(), Duration::from_secs(30));
    assert_eq!(
        world.reports.len(),
        ids.len(),
        "not all requests were reported; {:#?}",
        world.core
    );
    world.run(world.now + Duration::from_secs(10));
    assert_eq!(world.core.requests(), 0, "a row is left behind");
    assert_eq!(world.core.attempts.len(), 0, "an attempt is left behind");
    assert!((0..4).all(|rail| world.core.shared.view(RailId(rail)).unwrap().inflight_bytes == 0));
    assert!((0..4).all(|rail| world.core.config.policy.assigned_bytes(RailId(rail)) == 0));
    true
}

type Property = fn(Vec<Step>) -> bool;

#[test]
fn nothing_is_lost_whatever_happens_to_the_rails() {
    let policies: [(Policy, u64, Property); 6] = [
        (Policy::Spray, 100, |steps| survives(Policy::Spray, steps)),
        (Policy::Spray, 60, |steps| {
            survives_with(signal::SELECTIVE, Policy::Spray, steps)
        }),
        (Policy::RoundRobin, 40, |steps| {
            survives(Policy::RoundRobin, steps)
        }),
        (Policy::Documented, 40, |steps| {
            survives(Policy::Documented, steps)
        }),
        (Policy::FixedTier1, 20, |steps| {
            survives(Policy::FixedTier1, steps)
        }),
        (Policy::BestTwo, 20, |steps| {
            survives(Policy::BestTwo, steps)
        }),
    ];
    for (policy, tests, property) in policies {
        let tests = if cfg!(miri) { 1 } else { tests };
        std::println!("{policy:?}");
        QuickCheck::new()
            .rng(Gen::from_size_and_seed(60, 20_261_120))
            .tests(tests)
            .quickcheck(property);
    }
}

#[test]
fn slices_are_longer_on_rails_that_want_it_while_enough_is_left_for_the_others() {
    // (bytes of the request, rails, longest slice in usual ones)
    let cases = [
        (64 << 20, 2, 15),
        // One rail alone has nothing to even out with.
        (1 << 20, 1, 16),
        (1 << 20, 4, 2),
        (4 << 16, 4, 1),
    ];
    for (length, rails, longest) in cases {
        let mut world = World::new(Policy::Spray, rails);
        for rail in 0..rails {
            let estimate = EstimateConfig {
                slice_span: Duration::from_millis(1),
                ..of_tier(0)
            };
            world.tell(rail, estimate);
        }
        world.submit(0, Op::Write, length);
        world.run_until_reported(1, Duration::from_secs(1));
        assert_eq!(world.reports[&0].status, Status::Completed);
        let seen = world.arrived.values().max().copied().unwrap_or(0);
        let longest = longest * u64::from(SLICE);
        assert!(seen <= longest, "{length}: {seen}, at most {longest}");
        assert!(
            longest == u64::from(SLICE) || seen > u64::from(SLICE),
            "{length}: {seen}"
        );
    }
}

/// The same plan for another peer on the same rails.
fn plan_of(peer: PeerId) -> Plan {
    let place = |segment| Place {
        segment: SegmentRef(segment),
        offset: 0,
    };
    Plan {
        peer,
        local: SegmentRef(1),
        remote: SegmentRef(2),
        transports: [transport(0, 0, &[0])].into_iter().collect(),
        scratch_local: place(8),
        scratch_remote: place(9),
        scratch_bytes: SLICE,
        path: None,
    }
}

/// Gives a peer up and goes on until nothing refers to it any more.
fn forget(world: &mut World<'_>, limit: Duration) {
    let until = world.now + limit;
    while !world.core.forget_peer(world.now, PEER) {
        assert!(world.now < until, "something still refers to the peer");
        let step = world.now + Duration::from_millis(1);
        world.run(step);
        world.core.audit().unwrap();
    }
    world.core.audit().unwrap();
}

#[test]
fn a_peer_that_is_forgotten_leaves_its_rows_to_another() {
    let mut world = World::new(Policy::Spray, 1);
    world.submit(0, Op::Write, 1 << 20);
    world.run_until_reported(1, Duration::from_millis(100));
    forget(&mut world, Duration::from_millis(100));
    assert!(world.core.forget_peer(world.now, PEER), "again");
    // Its plan is gone with it: what comes late for that has ended.
    let batch = world.core.open_batch(1).unwrap();
    let request = Request {
        tag: 1,
        plan: PLAN,
        batch,
        local_offset: 0,
        remote_offset: 0,
        length: 1,
        deadline: Instant::MAX,
        priority: Priority::Normal,
        op: Op::Write,
    };
    world.core.submit(world.now, &request).unwrap();
    world.core.seal_batch(batch);
    world.drain();
    assert_eq!(world.reports.remove(&1).unwrap().status, Status::Failed);
    // Peer and rail are others now; what is said of the old lane's epochs means nothing to the new one.
    let epoch_before = world.lanes.keys().map(|(_, epoch)| *epoch).max().unwrap();
    let plan = PlanId {
        generation: 2,
        ..PLAN
    };
    assert!(world.core.install_plan(world.now, plan, &plan_of(PEER)));
    world.submit_with(plan, 2, Op::Write, 1 << 20);
    world.run(world.now + Duration::from_micros(60));
    let lane = LaneId::new(0, RailId(0));
    let stale = LaneFact::Broken(Cause::Reset);
    world.core.handle_lane(world.now, lane, epoch_before, stale);
    world.run_until_reported(2, Duration::from_millis(100));
    assert_eq!(world.reports[&2].status, Status::Completed);
    assert!(
        world
            .lanes
            .keys()
            .all(|(_, epoch)| *epoch <= Epoch(epoch_before.0 + 1))
    );
}

#[test]
fn a_peer_that_dies_is_forgotten_at_once() {
    let mut world = World::new(Policy::Spray, 2);
    world.submit(0, Op::Write, 10 << 20);
    world.submit(1, Op::Read, 10 << 20);
    world.run(ms(2));
    world.stopped = true;
    world
        .core
        .handle_peer_gone(world.now, PEER, Proof::ProcessGone);
    forget(&mut world, Duration::from_millis(10));
    for tag in [0, 1] {
        let report = world.reports[&tag];
        assert_eq!(
            (report.status, report.local, report.remote),
            (Status::PeerLost, Local::Released, Remote::Settled)
        );
    }
}

#[test]
fn a_peer_that_is_lost_without_proof_is_forgotten_after_the_bound() {
    let mut world = World::new(Policy::Spray, 2);
    world.submit(0, Op::Write, 10 << 20);
    world.submit(1, Op::Read, 10 << 20);
    world.run(ms(2));
    world.stopped = true;
    assert!(
        !world.core.forget_peer(world.now, PEER),
        "writes are on their way"
    );
    // One that comes now ends at once, and does not claim a proof.
    world.submit(2, Op::Write, 100);
    world.run(ms(3));
    let late = world.reports[&2];
    assert_eq!(
        (late.status, late.cause, late.remote),
        (Status::Failed, Some(Cause::PeerGone), Remote::Settled)
    );
    forget(&mut world, Duration::from_millis(2_100));
    let write = world.reports[&0];
    assert_eq!(
        (write.status, write.local, write.remote),
        (Status::Indeterminate, Local::Released, Remote::Unknown)
    );
    assert_eq!(world.reports[&1].status, Status::Failed);
    // Nobody waits for the proof any more, and no row does.
    assert_eq!((world.core.requests(), world.settled.len()), (0, 0));
}

#[test]
fn polling_a_quiet_core_changes_nothing() {
    let mut world = World::new(Policy::Spray, 2);
    assert!(!world.core.is_quiet(), "a plan is news");
    world.drain();
    assert!(world.core.is_quiet());
    world.submit(1, Op::Write, 1 << 20);
    assert!(!world.core.is_quiet(), "there is something to bind");
    world.run_until_reported(1, Duration::from_secs(1));
    assert!(world.core.is_quiet());
    let before = format!("{:?}", world.core);
    let later = world.now + Duration::from_micros(1);
    assert_eq!(world.core.poll_post(later, &mut PostBatch::default()), None);
    assert_eq!(world.core.poll_lane(), None);
    assert_eq!(world.core.poll_message(later), None);
    assert_eq!(world.core.poll_event(), None);
    assert_eq!(format!("{:?}", world.core), before);
}

#[test]
fn a_peer_that_is_known_again_has_its_paused_rails_probed() {
    // Nobody looked at them until a request came, or the peer would have been silent for too long.
    let mut world = World::new(Policy::Spray, 1);
    world.submit(0, Op::Write, 1 << 20);
    world.run(Instant::ZERO + Duration::from_micros(300));
    world.links[0].cut = true;
    world.reset_rail(0);
    world.run(ms(5));
    let plan = world.core.plan(PLAN).expect("the plan").clone();
    world
        .core
        .handle_peer_gone(world.now, PEER, Proof::ProcessGone);
    world.links[0].cut = false;
    world.run(ms(40));
    assert!(!world.core.is_healthy(RailId(0)));
    assert!(world.core.install_plan(world.now, PLAN, &plan));
    world.run(ms(60));
    assert!(world.core.is_healthy(RailId(0)));
}
