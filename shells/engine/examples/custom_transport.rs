//! A transport of the program's own: engines of one process copy from and to each other's memory, and the kernel has no part in it.
//!
//! It is the thinnest one that keeps all that [`Transport`] and [`Endpoint`] promise, which the tests of `shells/conform` try out. A
//! work is carried out while it is posted, so that nothing is ever on its way and a fence has nothing to wait for. One over a device
//! hands works to that instead, and says in `poll` what came of them.
//!
//! ```sh
//! cargo run --release -p polyrail --example custom_transport
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use polyrail::{Access, Config, Engine, Hooks, Op, Plugin, RailId, Region, Request, Status};
use polyrail_core::time::Instant;
use polyrail_core::transport::Capabilities;
use polyrail_core::units::{Epoch, LaneId, SegmentRef};
use polyrail_core::work::{
    Cause, Completion, LaneFact, LaneLimits, Outcome, PostBatch, Posted, Scope, Stop, Work,
};
use polyrail_transport::clock::Clock;
use polyrail_transport::lanes::Lanes;
use polyrail_transport::memory::{RegionKey, RegionTable, TrustDomain};
use polyrail_transport::ticket::{self, Denied, Entry, Nonce, SessionSecret};
use polyrail_transport::{
    Endpoint, FenceAnswer, InboundLane, LaneReport, Polled, RailAddress, RemoteRegion,
    RetireAnswer, SessionId, Transport,
};
use rustix::event::{EventfdFlags, eventfd};

const NAME: &str = "within";
/// Lanes of one session.
const LANES_MAX: usize = 4096;
/// A lane takes so many works at a time, each of so many bytes at most.
const LIMITS: LaneLimits = LaneLimits::new(256, 1 << 20);

/// What this process serves. An engine says its number to its peers as the address of this transport.
static TARGETS: Mutex<Vec<(u64, Weak<Target>)>> = Mutex::new(Vec::new());

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The transport, of one engine.
pub(crate) struct Within {
    number: u64,
    target: Arc<Target>,
}

/// The half of it that peers reach.
struct Target {
    regions: Arc<dyn RegionTable>,
    sessions: Mutex<HashMap<SessionId, Arc<Session>>>,
}

struct Session {
    /// Its lanes reach regions of this one only.
    domain: TrustDomain,
    secret: Option<SessionSecret>,
    /// Locked while bytes move: whoever ends a lane has it too, and then nothing moves any more.
    inbound: Mutex<Inbound>,
}

#[derive(Default)]
struct Inbound {
    is_over: bool,
    lanes: Lanes<Served>,
}

#[derive(Default)]
struct Served {
    admitted: Epoch,
    fenced: Epoch,
}

impl Within {
    /// One that gives peers what `regions` names.
    pub(crate) fn new(regions: Arc<dyn RegionTable>) -> Self {
        let target = Arc::new(Target {
            regions,
            sessions: Mutex::default(),
        });
        let mut targets = lock(&TARGETS);
        targets.retain(|(_, target)| target.strong_count() > 0);
        let number = 1 + targets.last().map_or(0, |(number, _)| *number);
        targets.push((number, Arc::downgrade(&target)));
        Self { number, target }
    }
}

/// The one that a peer's address leads to.
fn target(address: &[u8]) -> io::Result<Arc<Target>> {
    let number = address.try_into().map(u64::from_le_bytes).ok();
    let targets = lock(&TARGETS);
    let found = targets.iter().find(|(of, _)| Some(*of) == number);
    let found = found.and_then(|(_, target)| target.upgrade());
    found.ok_or_else(|| io::Error::other("the peer is in another process, or has ended"))
}

impl Target {
    /// Lets a lane of a session in, or says that it would without one. Where the session has a secret, each end proves to the
    /// other one that it knows it. Over a wire the nonce, the ticket and the proof are a message each.
    fn admit(
        &self,
        id: SessionId,
        lane: Option<(LaneId, Epoch)>,
        secret: Option<&SessionSecret>,
    ) -> io::Result<Arc<Session>> {
        let session = lock(&self.sessions).get(&id).cloned();
        let session = session.ok_or_else(|| io::Error::other("nobody has let this session in"))?;
        let entry = Entry {
            transport: NAME,
            session: id,
            lane,
        };
        let nonce = Nonce::draw()?;
        let ticket = secret.map(|secret| secret.ticket(&entry, nonce));
        let ticket = ticket.transpose()?;
        let said = ticket.as_ref().map(|ticket| (nonce, ticket));
        let proof = ticket::admit(session.secret.as_ref(), &entry, said)?;
        match (secret, said, proof) {
            (Some(secret), Some((nonce, ticket)), Some(proof)) => {
                secret.check(&entry, nonce, ticket, &proof)?;
            }
            (Some(secret), ..) => return Err(secret.deny(Denied::Missing).into()),
            (None, ..) => {}
        }
        if let Some((lane, epoch)) = lane {
            session.begin(lane, epoch)?;
        }
        Ok(session)
    }
}

impl Session {
    /// An epoch of a lane begins. It has to be newer than those that began before it, or were fenced.
    fn begin(&self, lane: LaneId, epoch: Epoch) -> io::Result<()> {
        let mut inbound = lock(&self.inbound);
        let new = |fenced| Served {
            fenced,
            ..Served::default()
        };
        let record = inbound.lanes.admit(lane, LANES_MAX, new);
        let record = record.ok_or_else(|| io::Error::other("the session has too many lanes"))?;
        if epoch <= record.admitted.max(record.fenced) {
            return Err(io::Error::other("this epoch of the lane is over"));
        }
        record.admitted = epoch;
        Ok(())
    }

    /// An epoch of a lane, and all before it, end.
    fn fence(&self, lane: LaneId, epoch: Epoch) {
        if let Some(served) = lock(&self.inbound).lanes.fence(lane, epoch) {
            served.fenced = served.fenced.max(epoch);
        }
    }
}

impl Transport for Within {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::HOST
    }

    fn is_within_host(&self) -> bool {
        true
    }

    fn address(&self) -> Vec<u8> {
        self.number.to_le_bytes().into()
    }

    fn reach(
        &self,
        address: &[u8],
        session: SessionId,
        secret: Option<&SessionSecret>,
    ) -> Result<Capabilities, String> {
        let asked = target(address).and_then(|target| target.admit(session, None, secret));
        let asked = asked.map_err(|error| error.to_string());
        asked.map(|_| self.capabilities())
    }

    fn begin_session(
        &self,
        session: SessionId,
        domain: TrustDomain,
        secret: Option<SessionSecret>,
    ) {
        let begun = Session {
            domain,
            secret,
            inbound: Mutex::default(),
        };
        lock(&self.target.sessions).insert(session, Arc::new(begun));
    }

    fn endpoint(&self, _worker: u16, clock: Clock) -> io::Result<Box<dyn Endpoint>> {
        Ok(Box::new(Initiator {
            clock,
            locals: HashMap::new(),
            remotes: HashMap::new(),
            rails: HashMap::new(),
            lanes: HashMap::new(),
            says: Polled::default(),
            ready: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        }))
    }

    /// Lanes that come over the network are other transports'.
    fn admit(&self, _: InboundLane) {}

    fn fence_inbound(&self, session: SessionId, lane: LaneId, epoch: Epoch, answer: FenceAnswer) {
        let session = lock(&self.target.sessions).get(&session).cloned();
        if let Some(session) = session {
            session.fence(lane, epoch);
        }
        // How many works have arrived is for lanes that count, as `LaneLimits::counts` says.
        answer(0);
    }

    fn retire_session(&self, session: SessionId, answer: RetireAnswer) {
        let session = lock(&self.target.sessions).remove(&session);
        if let Some(session) = session {
            lock(&session.inbound).is_over = true;
        }
        answer();
    }
}

/// The initiator's half of one worker.
struct Initiator {
    clock: Clock,
    locals: HashMap<SegmentRef, Arc<Region>>,
    remotes: HashMap<SegmentRef, RegionKey>,
    rails: HashMap<RailId, RailAddress>,
    lanes: HashMap<LaneId, Lane>,
    /// For the next `poll`.
    says: Polled,
    /// Readable while there is something to say.
    ready: OwnedFd,
}

struct Lane {
    epoch: Epoch,
    target: Arc<Target>,
    session: Arc<Session>,
    /// A work on it has failed: it takes no other one before it has been fenced.
    has_failed: bool,
}

impl Lane {
    fn carry_out(
        &self,
        lane: LaneId,
        local: Option<&Arc<Region>>,
        key: Option<&RegionKey>,
        work: &Work,
    ) -> Result<(), Cause> {
        let mut inbound = lock(&self.session.inbound);
        let served = inbound.lanes.get_mut(lane);
        let is_on = served
            .is_some_and(|served| served.admitted == self.epoch && served.fenced < self.epoch);
        if inbound.is_over || !is_on {
            return Err(Cause::Reset);
        }
        let find = |key| self.target.regions.find(key, self.session.domain);
        let remote = key.and_then(find).ok_or(Cause::RemoteAccess)?;
        if !remote.access().allows(work.op) {
            return Err(Cause::RemoteAccess);
        }
        // Nobody takes either memory back while it is entered.
        let length = u64::from(work.length);
        let here = local.and_then(|local| local.enter());
        let here = here.as_ref().ok_or(Cause::LocalProtection)?;
        let there = remote.enter().ok_or(Cause::RemoteAccess)?;
        let here = here.pointer(work.local.offset, length);
        let here = here.ok_or(Cause::LocalProtection)?;
        let there = there.pointer(work.remote.offset, length);
        let there = there.ok_or(Cause::RemoteAccess)?;
        let (from, to) = match work.op {
            Op::Write => (here, there),
            Op::Read => (there, here),
        };
        // SAFETY: so many bytes lie in both regions, which stay mapped while they are entered. What the program writes to them
        // meanwhile comes as it comes, as over every transport.
        unsafe { std::ptr::copy(from, to, work.length as usize) };
        Ok(())
    }
}

impl Initiator {
    /// There is something to poll.
    fn wake(&self) {
        let _ = rustix::io::write(&self.ready, &1_u64.to_ne_bytes());
    }

    fn say(&mut self, lane: LaneId, epoch: Epoch, fact: LaneFact) {
        self.says.lanes.push(LaneReport { lane, epoch, fact });
        self.wake();
    }

    fn try_open(&self, lane: LaneId, epoch: Epoch) -> io::Result<Lane> {
        let rail = self.rails.get(&lane.rail());
        let rail = rail.ok_or_else(|| io::Error::other("a rail that nobody has named"))?;
        let target = target(&rail.own)?;
        let session = target.admit(rail.session, Some((lane, epoch)), rail.secret.as_ref())?;
        Ok(Lane {
            epoch,
            target,
            session,
            has_failed: false,
        })
    }
}

impl Endpoint for Initiator {
    fn attach_local(&mut self, segment: SegmentRef, region: Arc<Region>) {
        self.locals.insert(segment, region);
    }

    fn detach_local(&mut self, segment: SegmentRef) {
        self.locals.remove(&segment);
    }

    fn attach_remote(&mut self, segment: SegmentRef, region: RemoteRegion) {
        self.remotes.insert(segment, region.key);
    }

    fn detach_remote(&mut self, segment: SegmentRef) {
        self.remotes.remove(&segment);
    }

    fn attach_rail(&mut self, rail: RailId, address: RailAddress) {
        self.rails.insert(rail, address);
    }

    fn forget_rail(&mut self, rail: RailId) {
        self.rails.remove(&rail);
    }

    fn open(&mut self, lane: LaneId, epoch: Epoch, _by: Instant) {
        let fact = match self.try_open(lane, epoch) {
            Ok(open) => {
                self.lanes.insert(lane, open);
                LaneFact::Opened { limits: LIMITS }
            }
            Err(_) => LaneFact::OpenFailed(Cause::Refused),
        };
        self.say(lane, epoch, fact);
    }

    fn post(&mut self, batch: &PostBatch) -> Posted {
        let (lane, epoch) = (batch.lane, batch.epoch);
        let mut posted = Posted {
            accepted: 0,
            stop: Stop::All,
        };
        let mut open = self.lanes.get_mut(&lane).filter(|open| open.epoch == epoch);
        for work in &batch.works {
            let Some(open) = open.as_mut().filter(|open| !open.has_failed) else {
                posted.stop = Stop::Rejected(Cause::Flushed);
                break;
            };
            let local = self.locals.get(&work.local.segment);
            let key = self.remotes.get(&work.remote.segment);
            let outcome = match open.carry_out(lane, local, key, work) {
                Ok(()) => Outcome::Success,
                Err(cause) => Outcome::Error(cause),
            };
            open.has_failed = outcome != Outcome::Success;
            posted.accepted += 1;
            self.says.completions.push(Completion {
                lane,
                epoch,
                cookie: work.cookie,
                at: self.clock.now(),
                outcome,
            });
        }
        self.wake();
        posted
    }

    fn poll(&mut self, _now: Instant, out: &mut Polled) {
        out.completions.append(&mut self.says.completions);
        out.lanes.append(&mut self.says.lanes);
        let _ = rustix::io::read(&self.ready, &mut [0; 8]);
    }

    fn fence(&mut self, lane: LaneId, epoch: Epoch, scope: Scope) {
        self.close(lane, epoch);
        let delivered = None;
        self.say(lane, epoch, LaneFact::Fenced { scope, delivered });
    }

    fn close(&mut self, lane: LaneId, epoch: Epoch) {
        self.lanes
            .retain(|of, open| *of != lane || open.epoch > epoch);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

const BYTES: u64 = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

/// In a program that has it, each engine has it.
fn engine(config: Config) -> Result<Engine, Box<dyn Error>> {
    let hooks = Hooks {
        transports: vec![Plugin {
            make: |regions| Arc::new(Within::new(regions)),
            faults: None,
        }],
        ..Hooks::default()
    };
    Ok(Engine::with_hooks(config, hooks)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let target = engine(Config {
        listen: Some("127.0.0.1:0".parse()?),
        ..Config::named("target")
    })?;
    let pool = target.allocate("pool", BYTES, Access::RemoteReadWrite)?;
    let address = format!("{}/pool", target.listening().expect("it listens"));

    let initiator = engine(Config::named("initiator"))?;
    let local = initiator.allocate("local", BYTES, Access::Local)?;
    let content: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    initiator
        .region(local)
        .expect("it is ours")
        .store(&content, 0)?;
    let remote = initiator.open_segment(&address)?;
    let batch = initiator.submit(&[Request {
        op: Op::Write,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length: BYTES,
    }])?;
    assert_eq!(batch.wait(PATIENCE)?.status, Status::Completed);

    let mut arrived = vec![0; BYTES as usize];
    target
        .region(pool)
        .expect("it is ours")
        .load(0, &mut arrived)?;
    assert!(arrived == content);
    let rails = initiator.rails();
    for rail in rails.iter().filter(|rail| rail.bytes > 0) {
        println!("{} bytes went over {}", rail.bytes, rail.name);
    }
    Ok(())
}
