//! Two ends of a transport, and memory on both sides.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as StdInstant};

use polyrail_control::codec::{self, Decoder, Frame, Greeting, Purpose};
use polyrail_core::time::Instant;
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef, TransportId};
use polyrail_core::work::{
    Completion, LaneFact, LaneLimits, Op, Outcome, POST_MAX, Place, PostBatch, Posted, Scope, Stop,
    Work,
};
use polyrail_transport::clock::Clock;
use polyrail_transport::memory::{Access, Region, RegionKey, RegionTable, TrustDomain};
use polyrail_transport::ticket::{
    Denied, EXPORTED_BYTES, Entry, NONCE_BYTES, Nonce, SessionSecret,
};
use polyrail_transport::{
    Endpoint, InboundLane, Polled, RailAddress, RemoteRegion, SessionId, Transport,
};
use rustix::event::{PollFd, PollFlags};

use crate::{Memory, Subject};

/// Bytes of each memory.
pub(crate) const BYTES: u64 = 4 << 20;
/// The memory on this side.
pub(crate) const LOCAL: SegmentRef = SegmentRef(1);
/// The memory of the target.
pub(crate) const REMOTE: SegmentRef = SegmentRef(2);
/// The session that the target lets in.
pub(crate) const SESSION: SessionId = SessionId([7; 16]);
/// The session that the target lets in with a secret, and one that it does as well, with another.
pub(crate) const KEYED: SessionId = SessionId([6; 16]);
pub(crate) const OTHER: SessionId = SessionId([5; 16]);
/// The rail that lanes run on.
pub(crate) const RAIL: RailId = RailId(3);
/// The first epoch.
pub(crate) const ONE: Epoch = Epoch(1);
/// The next one.
pub(crate) const TWO: Epoch = Epoch(2);
/// How long a single thing may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a target may take to answer a fence while nobody polls the other end.
const UNPOLLED: Duration = Duration::from_millis(100);
/// Looks at an endpoint that should have nothing to do any more.
const IDLE_LOOKS: usize = 200;

/// What can go wrong, in words.
pub(crate) type Said<T> = Result<T, String>;

/// A lane of this world's worker. Each is on a rail of its own.
pub(crate) fn lane(number: u16) -> LaneId {
    LaneId::new(0, RailId(RAIL.0 + number))
}

/// A secret, and how many did not prove that they have it.
pub(crate) struct Keyed {
    pub(crate) secret: SessionSecret,
    pub(crate) denied: Arc<AtomicU64>,
}

/// The secret that comes of such bytes.
pub(crate) fn secret(byte: u8) -> Said<Keyed> {
    let denied = Arc::<AtomicU64>::default();
    let secret = SessionSecret::new(&[byte; EXPORTED_BYTES], KEYED, 1, 2, denied.clone());
    let secret = secret.map_err(|error| format!("no secret: {error}"))?;
    Ok(Keyed { secret, denied })
}

/// The memory of an end.
#[derive(Default)]
pub(crate) struct Table(Mutex<HashMap<RegionKey, Arc<Region>>>);

impl RegionTable for Table {
    fn find(&self, key: &RegionKey, _: TrustDomain) -> Option<Arc<Region>> {
        let regions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        regions.get(key).cloned()
    }
}

impl Table {
    fn add(&self, region: Arc<Region>) {
        let mut regions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        regions.insert(region.key(), region);
    }

    pub(crate) fn remove(&self, region: &Region) {
        let mut regions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        regions.remove(&region.key());
    }
}

/// Everything of one try.
pub(crate) struct World {
    pub(crate) endpoint: Box<dyn Endpoint>,
    pub(crate) target: Arc<dyn Transport>,
    pub(crate) table: Arc<Table>,
    pub(crate) here: Arc<Region>,
    pub(crate) there: Arc<Region>,
    pub(crate) completions: Vec<Completion>,
    memory: Memory,
    clock: Clock,
    polled: Polled,
    facts: Vec<(LaneId, Epoch, LaneFact)>,
    address: RailAddress,
    initiator: Arc<dyn Transport>,
    /// Of the session [`KEYED`].
    pub(crate) keyed: Keyed,
    acceptor: Option<Acceptor>,
}

impl World {
    pub(crate) fn new(subject: &Subject) -> Said<Self> {
        let made = |table: &Arc<Table>| {
            let made = (subject.make)(table.clone());
            made.map_err(|error| format!("it cannot be made: {error}"))
        };
        let table = Arc::new(Table::default());
        let target = made(&table)?;
        let (initiator, own) = match &subject.own_rail {
            None => (made(&Arc::default())?, target.address()),
            Some(rail) => (target.clone(), rail.clone()),
        };
        let keyed = secret(1)?;
        let theirs = secret(2)?.secret;
        target.begin_session(SESSION, TrustDomain::COMMON, None);
        for (session, secret) in [(KEYED, &keyed.secret), (OTHER, &theirs)] {
            target.begin_session(session, TrustDomain::COMMON, Some(secret.clone()));
        }
        let acceptor = match own.is_empty() {
            true => Some(Acceptor::start(target.clone(), keyed.secret.clone())?),
            false => None,
        };
        if subject.has_peers() && !own.is_empty() {
            let reached = initiator.reach(&own, SESSION, None);
            reached.map_err(|why| format!("it does not reach the other end: {why}"))?;
        }
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let address = RailAddress {
            transport: TransportId(0),
            local: None,
            remote: acceptor
                .as_ref()
                .map_or(nowhere, |acceptor| acceptor.address),
            session: SESSION,
            secret: None,
            own: own.into(),
        };
        let clock = Clock::start();
        let endpoint = initiator.endpoint(0, clock);
        let mut endpoint = endpoint.map_err(|error| format!("it has no endpoint: {error}"))?;
        let here = allocated(Region::allocate(BYTES, Access::Local))?;
        let there = allocated((subject.memory)(BYTES, Access::RemoteReadWrite))?;
        table.add(there.clone());
        endpoint.attach_local(LOCAL, here.clone());
        endpoint.attach_remote(REMOTE, named(&there));
        for number in 0..2 {
            endpoint.attach_rail(lane(number).rail(), address.clone());
        }
        Ok(Self {
            endpoint,
            target,
            table,
            here,
            there,
            completions: Vec::new(),
            memory: subject.memory.clone(),
            clock,
            polled: Polled::default(),
            facts: Vec::new(),
            address,
            initiator,
            keyed,
            acceptor,
        })
    }

    /// A world with its first lane open.
    pub(crate) fn open(subject: &Subject) -> Said<(Self, LaneLimits)> {
        let mut world = Self::new(subject)?;
        let limits = world.open_lane(lane(0), ONE)?;
        Ok((world, limits))
    }

    /// More memory of the target.
    pub(crate) fn add(&self, access: Access) -> Said<Arc<Region>> {
        let region = allocated((self.memory)(BYTES, access))?;
        self.table.add(region.clone());
        Ok(region)
    }

    /// Says that the rail of a lane is of a session with this secret, or none.
    pub(crate) fn use_secret(
        &mut self,
        lane: LaneId,
        session: SessionId,
        secret: Option<&SessionSecret>,
    ) -> Said<()> {
        let address = RailAddress {
            session,
            secret: secret.cloned(),
            ..self.address.clone()
        };
        self.endpoint.attach_rail(lane.rail(), address);
        if let Some(acceptor) = &self.acceptor {
            acceptor.is_keyed.store(session != SESSION, Release);
        }
        Ok(())
    }

    /// Whether the target says that it is reached so. Those at addresses of the network are not asked.
    pub(crate) fn reaches(&self, session: SessionId, secret: Option<&SessionSecret>) -> bool {
        let own = &self.address.own;
        !own.is_empty() && self.initiator.reach(own, session, secret).is_ok()
    }

    /// Says that the rails are of another session.
    pub(crate) fn use_session(&mut self, session: SessionId) {
        let address = RailAddress {
            session,
            ..self.address.clone()
        };
        self.endpoint.attach_rail(lane(0).rail(), address);
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Looks once at what the endpoint has to say.
    pub(crate) fn look(&mut self) -> Said<()> {
        let now = self.clock.now();
        self.endpoint.poll(now, &mut self.polled);
        // What it is handed in with.
        let now = self.clock.now();
        if let Some(early) = self.polled.completions.iter().find(|done| done.at > now) {
            return Err(format!(
                "the completion of cookie {} is of a time that has not come: {:?} from now",
                early.cookie,
                early.at.since(now)
            ));
        }
        self.completions.append(&mut self.polled.completions);
        let facts = self.polled.lanes.drain(..);
        self.facts
            .extend(facts.map(|report| (report.lane, report.epoch, report.fact)));
        Ok(())
    }

    /// Looks often enough that whatever was going to happen has.
    pub(crate) fn idle(&mut self) -> Said<()> {
        for _ in 0..IDLE_LOOKS {
            self.look()?;
            self.wait(Duration::from_micros(100))?;
        }
        Ok(())
    }

    /// Waits for the descriptor, so long at most. Whether it is readable.
    pub(crate) fn wait(&mut self, longest: Duration) -> Said<bool> {
        self.endpoint.arm();
        let mut waits = [PollFd::from_borrowed_fd(self.endpoint.fd(), PollFlags::IN)];
        let longest = polyrail_transport::timespec(longest.into());
        match rustix::event::poll(&mut waits, Some(&longest)) {
            Ok(_) => Ok(!waits[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(format!("its descriptor cannot be polled: {error}")),
        }
    }

    /// Looks until there is something, which `what` says in words.
    pub(crate) fn until<T>(
        &mut self,
        what: impl std::fmt::Display,
        mut find: impl FnMut(&mut Self) -> Option<T>,
    ) -> Said<T> {
        let start = StdInstant::now();
        loop {
            self.look()?;
            if let Some(found) = find(self) {
                return Ok(found);
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("{what} did not come within {PATIENCE:?}"));
            }
            self.wait(Duration::from_millis(1))?;
        }
    }

    /// The next fact about a lane's epoch.
    pub(crate) fn fact(&mut self, lane: LaneId, epoch: Epoch, what: &str) -> Said<LaneFact> {
        self.until(format_args!("the answer to {what} {lane:?}"), |world| {
            let mut facts = world.facts.iter();
            let place = facts.position(|(of, at, _)| (*of, *at) == (lane, epoch))?;
            Some(world.facts.remove(place).2)
        })
    }

    /// Facts that nobody has asked for.
    pub(crate) fn facts(&self) -> &[(LaneId, Epoch, LaneFact)] {
        &self.facts
    }

    /// Opens a lane, which has to go well.
    pub(crate) fn open_lane(&mut self, lane: LaneId, epoch: Epoch) -> Said<LaneLimits> {
        match self.try_open(lane, epoch)? {
            LaneFact::Opened { limits } => Ok(limits),
            other => Err(format!("{lane:?} did not open: {other:?}")),
        }
    }

    /// Asks for a lane, and gives the answer.
    pub(crate) fn try_open(&mut self, lane: LaneId, epoch: Epoch) -> Said<LaneFact> {
        let by = self.now() + polyrail_core::time::Duration::from_secs(2);
        self.endpoint.open(lane, epoch, by);
        self.fact(lane, epoch, "opening")
    }

    /// Posts works, all of which have to be taken at some time.
    pub(crate) fn post_all(&mut self, lane: LaneId, epoch: Epoch, works: &[Work]) -> Said<()> {
        let mut rest = works;
        let start = StdInstant::now();
        while !rest.is_empty() {
            let batch = batch(lane, epoch, rest);
            let posted = self.endpoint.post(&batch);
            check_posted(posted, batch.works.len())?;
            if let Stop::Rejected(cause) = posted.stop {
                return Err(format!("a good work was refused: {cause}"));
            }
            if posted.stop == Stop::Unknown {
                return Err("nobody knows what became of good works".to_owned());
            }
            rest = &rest[posted.accepted..];
            self.look()?;
            if start.elapsed() > PATIENCE {
                return Err(format!(
                    "{} works were not taken within {PATIENCE:?}",
                    rest.len()
                ));
            }
        }
        Ok(())
    }

    /// Carries works out, all of which have to end well, each once.
    pub(crate) fn carry_out(&mut self, lane: LaneId, epoch: Epoch, works: &[Work]) -> Said<()> {
        let before = self.completions.len();
        self.post_all(lane, epoch, works)?;
        let what = format!("completions of {} works", works.len());
        self.until(what, |world| {
            (world.completions.len() >= before + works.len()).then_some(())
        })?;
        for work in works {
            let mut same = self.completions[before..]
                .iter()
                .filter(|done| done.cookie == work.cookie);
            let done = same
                .next()
                .ok_or_else(|| format!("the work of cookie {} did not complete", work.cookie))?;
            if (done.lane, done.epoch) != (lane, epoch) {
                return Err(format!(
                    "a completion of {lane:?} says that it is {:?}",
                    done.lane
                ));
            }
            if let Outcome::Error(cause) = done.outcome {
                return Err(format!("a good work failed: {cause}"));
            }
            if same.next().is_some() {
                return Err(format!(
                    "the work of cookie {} completed twice",
                    work.cookie
                ));
            }
        }
        Ok(())
    }

    /// Carries out a work that cannot be: it has to fail by its own fault, when it is posted or by a completion.
    pub(crate) fn fails(&mut self, lane: LaneId, epoch: Epoch, work: Work, why: &str) -> Said<()> {
        let what = format!("room for a work that {why}");
        let posted = self.until(what, |world| {
            let posted = world.endpoint.post(&batch(lane, epoch, &[work]));
            (posted.stop != Stop::Full).then_some(posted)
        })?;
        check_posted(posted, 1)?;
        let cause = match posted.stop {
            Stop::Rejected(cause) => cause,
            _ => {
                let what = format!("the end of a work that {why}");
                let outcome = self.until(what, |world| {
                    let mut done = world.completions.iter();
                    let done = done.find(|done| done.cookie == work.cookie);
                    done.map(|done| done.outcome)
                })?;
                match outcome {
                    Outcome::Error(cause) => cause,
                    Outcome::Success => return Err(format!("a work that {why} ended well")),
                }
            }
        };
        match cause.is_callers() {
            true => Ok(()),
            false => Err(format!(
                "a work that {why} failed with \"{cause}\", which does not speak against the request: the engine \
                 would try it again"
            )),
        }
    }

    /// Fences a lane on this side.
    pub(crate) fn fence_local(&mut self, lane: LaneId, epoch: Epoch) -> Said<()> {
        self.endpoint.fence(lane, epoch, Scope::Local);
        loop {
            match self.fact(lane, epoch, "a local fence of")? {
                LaneFact::Fenced {
                    scope: Scope::Local,
                    ..
                } => return Ok(()),
                // It broke before it was fenced, or its end is known on both sides.
                LaneFact::Broken(_) | LaneFact::Writable | LaneFact::Fenced { .. } => {}
                other => return Err(format!("a local fence was answered with {other:?}")),
            }
        }
    }

    /// Retires the session, as an engine does: it lets none of its lanes in any more, and then says so.
    pub(crate) fn retire(&mut self) -> Said<()> {
        if let Some(acceptor) = &self.acceptor {
            acceptor.lets_in.store(false, Release);
        }
        let (sender, answer) = channel();
        let tell = move || {
            let _ = sender.send(());
        };
        self.target.clone().retire_session(SESSION, Box::new(tell));
        self.until("the answer to the end of a session", |_| {
            answer.try_recv().ok()
        })
    }

    /// Fences a lane at the target: how many works it says were delivered. The endpoint is only polled meanwhile if it
    /// takes long: what it has not moved by then is to stay where it is.
    pub(crate) fn fence_remote(&mut self, lane: LaneId, epoch: Epoch) -> Said<u32> {
        let (sender, answer) = channel();
        let tell = move |delivered| {
            let _ = sender.send(delivered);
        };
        let target = self.target.clone();
        target.fence_inbound(SESSION, lane, epoch, Box::new(tell));
        let told = match answer.recv_timeout(UNPOLLED) {
            Ok(told) => told,
            Err(_) => self.until("the target's answer to a fence", |_| answer.try_recv().ok())?,
        };
        Ok(self.endpoint.arrived(lane, epoch, told))
    }
}

fn allocated(region: std::io::Result<Region>) -> Said<Arc<Region>> {
    let region = region.map_err(|error| format!("no memory: {error}"))?;
    Ok(Arc::new(region))
}

/// A peer's memory, as an endpoint knows it.
pub(crate) fn named(region: &Region) -> RemoteRegion {
    RemoteRegion {
        key: region.key(),
        bytes: region.bytes(),
    }
}

/// A work between the two memories, at the same place in both.
pub(crate) fn work(cookie: u64, op: Op, offset: u64, length: u32) -> Work {
    let place = |segment| Place { segment, offset };
    Work {
        cookie,
        op,
        local: place(LOCAL),
        remote: place(REMOTE),
        length,
        signal: true,
    }
}

/// As many works as one post takes.
pub(crate) fn batch(lane: LaneId, epoch: Epoch, works: &[Work]) -> PostBatch {
    let works = works.iter().take(POST_MAX).copied().collect();
    PostBatch { lane, epoch, works }
}

/// Whether the answer to a post can be.
pub(crate) fn check_posted(posted: Posted, count: usize) -> Said<()> {
    let good = match posted.stop {
        Stop::All => posted.accepted == count,
        Stop::Full | Stop::Rejected(_) => posted.accepted < count,
        Stop::Unknown => posted.accepted <= count,
    };
    match good {
        true => Ok(()),
        false => Err(format!(
            "a post of {count} works was answered with {posted:?}"
        )),
    }
}

/// Fills a memory with bytes that say where they are, and whose they are.
pub(crate) fn fill(region: &Region, seed: u8) {
    write(region, |place| (place % 251) as u8 ^ seed);
}

/// Fills a memory with one byte.
pub(crate) fn poison(region: &Region, byte: u8) {
    write(region, |_| byte);
}

fn write(region: &Region, byte: impl Fn(u64) -> u8) {
    let base = region.base().as_ptr();
    if let Some(device) = region.device() {
        let bytes: Vec<u8> = (0..region.bytes()).map(byte).collect();
        let stored = device.store(&bytes, base as u64);
        return stored.expect("the device takes what its memory is filled with");
    }
    for place in 0..region.bytes() {
        // SAFETY: inside the memory, which lives as long as the region; nothing else is to touch it now, and a
        // transport that does is what is looked for.
        unsafe { base.add(place as usize).write_volatile(byte(place)) };
    }
}

/// What is in a memory, also after it has been taken back.
pub(crate) fn content(region: &Region) -> Vec<u8> {
    let base = region.base().as_ptr();
    if let Some(device) = region.device() {
        let mut bytes = vec![0; region.bytes() as usize];
        let loaded = device.load(base as u64, &mut bytes);
        loaded.expect("the device tells what is in its memory");
        return bytes;
    }
    // SAFETY: as above.
    let is = |place: u64| unsafe { base.add(place as usize).read_volatile() };
    (0..region.bytes()).map(is).collect()
}

/// The first byte of a memory that is not as it should be.
pub(crate) fn wrong(region: &Region, should: impl Fn(u64) -> u8) -> Option<u64> {
    let mut bytes = (0..).zip(content(region));
    let wrong = bytes.find(|(place, is)| *is != should(*place));
    wrong.map(|(place, _)| place)
}

/// Whether a memory still is what it was filled with.
pub(crate) fn untouched(region: &Region, byte: u8, why: &str) -> Said<()> {
    match wrong(region, |_| byte) {
        None => Ok(()),
        Some(place) => Err(format!("byte {place} was written {why}")),
    }
}

/// What the engine's port does for lanes of a transport that has no address of its own.
struct Acceptor {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    /// Whether the session is one of the engine's.
    lets_in: Arc<AtomicBool>,
    /// Whether it has a cluster key.
    is_keyed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    fn start(target: Arc<dyn Transport>, secret: SessionSecret) -> Said<Self> {
        let cannot = |error: std::io::Error| format!("cannot listen: {error}");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let stop = Arc::new(AtomicBool::new(false));
        let lets_in = Arc::new(AtomicBool::new(true));
        let is_keyed = Arc::new(AtomicBool::new(false));
        let (stopped, open, keyed) = (stop.clone(), lets_in.clone(), is_keyed.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Acquire) {
                    return;
                }
                // The engine lets only lanes of its sessions through.
                let secret = keyed.load(Acquire).then_some(&secret);
                let lane = stream.ok().and_then(|stream| accept(stream, secret));
                let known = [SESSION, KEYED];
                let lane = lane.filter(|lane| known.contains(&lane.session) && open.load(Acquire));
                if let Some(lane) = lane {
                    target.admit(lane);
                }
            }
        });
        Ok(Self {
            address,
            stop,
            lets_in,
            is_keyed,
            thread: Some(thread),
        })
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop.store(true, Release);
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What lanes are to prove themselves with. The control plane draws one for each.
const CHALLENGE: Nonce = Nonce([4; NONCE_BYTES]);

/// Reads greeting and join, as the control plane does.
fn accept(mut stream: TcpStream, secret: Option<&SessionSecret>) -> Option<InboundLane> {
    let mut decoder = Decoder::default();
    let (mut byte, mut greeted) = ([0], false);
    loop {
        if !greeted {
            greeted = decoder.next_greeting().ok()?.is_some();
            if greeted && secret.is_some() {
                let mut says = Greeting::ours(Purpose::Lane).encode().to_vec();
                codec::encode(&Frame::LaneChallenge { nonce: CHALLENGE }, &mut says).ok()?;
                stream.write_all(&says).ok()?;
            }
        } else if let Some(frame) = decoder.next_frame().ok()? {
            let (transport, session, lane, epoch) = match frame {
                Frame::JoinLane {
                    session,
                    lane,
                    epoch,
                } if secret.is_none() => (None, session, lane, epoch),
                Frame::JoinLaneOf {
                    transport,
                    session,
                    lane,
                    epoch,
                } if secret.is_none() => (Some(transport), session, lane, epoch),
                Frame::JoinLaneProved {
                    transport,
                    session,
                    lane,
                    epoch,
                    ticket,
                } => {
                    let entry = Entry {
                        transport: &transport,
                        session: SessionId(session),
                        lane: Some((LaneId(lane), Epoch(epoch))),
                    };
                    let proof = secret?.admit(&entry, CHALLENGE, &ticket).ok()?;
                    let mut says = Vec::new();
                    codec::encode(&Frame::LaneProved { proof }, &mut says).ok()?;
                    stream.write_all(&says).ok()?;
                    (Some(transport), session, lane, epoch)
                }
                Frame::JoinLane { .. } | Frame::JoinLaneOf { .. } => {
                    secret?.deny(Denied::Missing);
                    return None;
                }
                _ => return None,
            };
            stream.set_nonblocking(true).ok()?;
            return Some(InboundLane {
                transport,
                session: SessionId(session),
                domain: TrustDomain::COMMON,
                lane: LaneId(lane),
                epoch: Epoch(epoch),
                stream,
                keys: None,
            });
        }
        // One at a time, so that nothing behind the join is lost.
        stream.read_exact(&mut byte).ok()?;
        decoder.push(&byte);
    }
}
