//! When lanes die one after the other while their bytes go again elsewhere, only what the receiver does not have goes
//! again: counted in bytes, over each transport between hosts and over shared memory.
//!
//! Each engine's transport is the shipped one behind a [`Watched`] that writes down what is handed to it, and says of a
//! lane now and then that it is broken. It does so while works are on their way that have arrived and of which nobody
//! has said so yet, and others that have not.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use polyrail::{Access, Config, Engine, Hooks, Op, Plugin, Region, Request, SegmentId, Status};
use polyrail_core::time::{Duration as CoreDuration, Instant as CoreInstant};
use polyrail_core::transport::Capabilities;
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef};
use polyrail_core::work::{Cause, LaneFact, Outcome, PostBatch, Posted, Scope, Stop, Work};
use polyrail_shm::ShmTransport;
use polyrail_tcp::TcpTransport;
use polyrail_transport::clock::Clock;
use polyrail_transport::memory::{RegionTable, TrustDomain};
use polyrail_transport::ticket::SessionSecret;
use polyrail_transport::{
    Endpoint, FenceAnswer, InboundLane, LaneReport, Polled, Prior, RailAddress, RemoteRegion,
    RetireAnswer, SessionId, Transport, Waits,
};
use polyrail_verbs::stub::{self, StubTransport};

/// Of the segments, and of no other that is named to an endpoint.
const BYTES: u64 = 16 << 20;

/// Longer than anything here takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

const BEFORE: u8 = 0x11;
const AFTER: u8 = 0xee;

/// After that long what has been offered has arrived.
const OFFERS_TAKE: Duration = Duration::from_secs(2);

/// The book is of all engines of this process.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

static BOOK: Mutex<Option<Book>> = Mutex::new(None);

fn book<T>(look: impl FnOnce(&mut Book) -> T) -> T {
    let mut book = BOOK.lock().unwrap_or_else(PoisonError::into_inner);
    look(book.get_or_insert_default())
}

type Life = (LaneId, Epoch);

/// What has been handed to endpoints, and what of it has arrived.
#[derive(Default)]
struct Book {
    /// Of each lane's epoch, in order.
    handed: HashMap<Life, Vec<Handed>>,
    /// Those that were broken, in order, and whose they are.
    broken: Vec<(Life, Kind)>,
    /// Of what those had been handed, what was not there when nothing of them could arrive any more.
    missing_bytes: HashMap<Life, u64>,
    /// And what was there when they broke, and had no answer: of those over shared memory, and of the others.
    unanswered_shm_bytes: u64,
    unanswered_bytes: u64,
    /// Lanes that are still to be broken.
    failures: usize,
    /// What broken lanes had taken without an answer: the next lane dies with some of it.
    unanswered: HashSet<(u64, u32)>,
    /// Where it is to arrive, while that is counted.
    there: Option<Arc<Region>>,
}

/// A work that an endpoint has taken.
#[derive(Clone, Copy)]
struct Handed {
    /// Of the segments, while that is counted; others go elsewhere.
    is_counted: bool,
    is_answered: bool,
    cookie: u64,
    offset: u64,
    length: u32,
}

impl Book {
    fn is_there(&self, work: &Handed) -> bool {
        let mut bytes = vec![0; work.length as usize];
        let there = self.there.as_ref().expect("it is counted");
        there.load(work.offset, &mut bytes).unwrap();
        is_pattern(AFTER, work.offset, &bytes)
    }

    /// Bytes of whole works of a lane's epoch that are there, or that are not; answered or not.
    fn bytes(&self, life: Life, is_it: impl Fn(bool, bool) -> bool) -> u64 {
        let handed = self.handed.get(&life).into_iter().flatten();
        let counted = handed.filter(|work| work.is_counted);
        let these = counted.filter(|work| is_it(self.is_there(work), work.is_answered));
        these.map(|work| u64::from(work.length)).sum()
    }

    /// A lane is said to be broken.
    fn handle_broken(&mut self, life: Life, kind: Kind) {
        let bytes = self.bytes(life, |is_there, is_answered| is_there && !is_answered);
        match kind {
            Kind::Shm => self.unanswered_shm_bytes += bytes,
            Kind::Tcp | Kind::Verbs => self.unanswered_bytes += bytes,
        }
    }

    /// Nothing of a lane's epoch arrives any more, says its transport, or another one that has no such lane.
    fn handle_ended(&mut self, life: Life, kind: Kind) {
        if self.broken.contains(&(life, kind)) && !self.missing_bytes.contains_key(&life) {
            let missing = self.bytes(life, |is_there, _| !is_there);
            self.missing_bytes.insert(life, missing);
        }
    }

    /// Whether a work of a lane's epoch has completed.
    fn is_in_use(&self, life: Life) -> bool {
        let mut handed = self.handed.get(&life).into_iter().flatten();
        handed.any(|work| work.is_answered && work.is_counted)
    }

    /// A lane's epoch is going to break, after it has taken this as well.
    fn handle_dying(&mut self, life: Life, kind: Kind, places: impl Iterator<Item = (u64, u32)>) {
        self.broken.push((life, kind));
        let handed = self.handed.get(&life).into_iter().flatten();
        let open = handed.filter(|work| work.is_counted && !work.is_answered);
        let open = open.map(|work| (work.offset, work.length));
        self.unanswered = open.chain(places).collect();
    }

    /// Works of a lane have completed: this one, and those before it too, if it covers them.
    fn handle_success(&mut self, life: Life, cookie: u64, covers: bool) {
        let handed = self.handed.entry(life).or_default();
        let Some(last) = handed.iter().rposition(|work| work.cookie == cookie) else {
            return;
        };
        let first = if covers { 0 } else { last };
        for work in &mut handed[first..=last] {
            work.is_answered = true;
        }
    }

    /// Bytes of the segments that were handed to endpoints.
    fn carried(&self) -> u64 {
        let handed = self.handed.values().flatten();
        let counted = handed.filter(|work| work.is_counted);
        counted.map(|work| u64::from(work.length)).sum()
    }
}

/// What an endpoint of this transport does while a lane of it is about to break.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// It goes on, and its answers are lost.
    Tcp,
    /// It has made its offers after one poll.
    Shm,
    /// Its device goes on by itself.
    Verbs,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "watched tcp",
            Self::Shm => "watched shm",
            Self::Verbs => "verbs",
        }
    }

    /// What engines have: this one, and what is next where that has one rail only.
    fn plugins(self) -> Vec<Plugin> {
        match self {
            Self::Shm => vec![self.plugin(), Self::Tcp.plugin()],
            Self::Tcp | Self::Verbs => vec![self.plugin()],
        }
    }

    fn plugin(self) -> Plugin {
        let make: fn(Arc<dyn RegionTable>) -> Arc<dyn Transport> = match self {
            Self::Tcp => |regions| {
                let name = Kind::Tcp.name();
                Watch::over(Kind::Tcp, TcpTransport::named(name, regions))
            },
            Self::Shm => |regions| Watch::over(Kind::Shm, ShmTransport::new(regions, 1).unwrap()),
            Self::Verbs => |regions| Watch::over(Kind::Verbs, StubTransport::new(regions).unwrap()),
        };
        let faults = None;
        Plugin { make, faults }
    }
}

/// A transport whose endpoints are [`Watched`].
struct Watch {
    kind: Kind,
    inner: Box<dyn Transport>,
}

impl Watch {
    fn over(kind: Kind, inner: impl Transport + 'static) -> Arc<dyn Transport> {
        let inner = Box::new(inner);
        Arc::new(Self { kind, inner })
    }
}

impl Transport for Watch {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn address(&self) -> Vec<u8> {
        self.inner.address()
    }

    fn reach(
        &self,
        address: &[u8],
        session: SessionId,
        secret: Option<&SessionSecret>,
    ) -> Result<Capabilities, String> {
        self.inner.reach(address, session, secret)
    }

    fn begin_session(
        &self,
        session: SessionId,
        domain: TrustDomain,
        secret: Option<SessionSecret>,
    ) {
        self.inner.begin_session(session, domain, secret);
    }

    fn runs_at(&self, local: Option<IpAddr>, remote: SocketAddr) -> bool {
        self.inner.runs_at(local, remote)
    }

    fn places(&self, rails: &[IpAddr]) -> Vec<u8> {
        self.inner.places(rails)
    }

    fn serves(&self, places: &[u8], rail: usize) -> bool {
        self.inner.serves(places, rail)
    }

    fn prior(&self, local: Option<IpAddr>, remote: SocketAddr) -> Prior {
        self.inner.prior(local, remote)
    }

    fn endpoint(&self, worker: u16, clock: Clock) -> io::Result<Box<dyn Endpoint>> {
        Ok(Box::new(Watched {
            kind: self.kind,
            inner: self.inner.endpoint(worker, clock)?,
            segment: None,
            dying: None,
        }))
    }

    fn admit(&self, lane: InboundLane) {
        self.inner.admit(lane);
    }

    fn fence_inbound(&self, session: SessionId, lane: LaneId, epoch: Epoch, answer: FenceAnswer) {
        let kind = self.kind;
        let answered = move |delivered| {
            book(|book| book.handle_ended((lane, epoch), kind));
            answer(delivered);
        };
        self.inner
            .fence_inbound(session, lane, epoch, Box::new(answered));
    }

    fn retire_session(&self, session: SessionId, answer: RetireAnswer) {
        self.inner.retire_session(session, answer);
    }
}

/// An endpoint of whose lanes some die.
struct Watched {
    kind: Kind,
    inner: Box<dyn Endpoint>,
    /// What bytes are counted of.
    segment: Option<SegmentRef>,
    dying: Option<Dying>,
}

/// A lane that is going to be broken.
struct Dying {
    life: Life,
    /// What is handed in once the first work has its answer.
    later: PostBatch,
    /// What has to arrive before.
    witness: Option<Handed>,
    /// Of the endpoint, since it has everything.
    polls: usize,
    since: Instant,
}

/// Some works of a batch.
fn part(batch: &PostBatch, range: Range<usize>) -> PostBatch {
    PostBatch {
        lane: batch.lane,
        epoch: batch.epoch,
        works: batch.works[range].iter().copied().collect(),
    }
}

impl Watched {
    /// Whether a work is of the segments.
    fn counts(&self, work: &Work) -> bool {
        Some(work.remote.segment) == self.segment
    }

    /// Whether a lane is to die with this batch.
    fn dies(&self, batch: &PostBatch) -> bool {
        let is_again = |book: &Book, work: &Work| {
            let place = (work.remote.offset, work.length);
            self.counts(work) && book.unanswered.contains(&place)
        };
        self.dying.is_none()
            && book(|book| {
                let is_due = match book.broken.is_empty() {
                    true => batch.works.iter().filter(|work| self.counts(work)).count() > 1,
                    false => batch.works.iter().any(|work| is_again(book, work)),
                };
                book.failures > book.broken.len() && book.there.is_some() && is_due
            })
    }

    /// Writes down what the endpoint has taken.
    fn note(&self, life: Life, works: &[Work]) -> Vec<Handed> {
        book(|book| {
            let counting = book.there.is_some();
            let handed = works.iter().map(|work| Handed {
                is_counted: counting && self.counts(work),
                is_answered: false,
                cookie: work.cookie,
                offset: work.remote.offset,
                length: work.length,
            });
            let handed: Vec<_> = handed.collect();
            book.handed.entry(life).or_default().extend(&handed);
            handed
        })
    }

    /// Gives the endpoint works of the lane that dies.
    fn hand_in(&mut self, batch: &PostBatch) -> Posted {
        if batch.works.is_empty() {
            return Posted {
                accepted: 0,
                stop: Stop::All,
            };
        }
        let posted = self.inner.post(batch);
        let taken = &batch.works[..posted.accepted];
        let handed = self.note((batch.lane, batch.epoch), taken);
        if let Some(dying) = &mut self.dying {
            dying.witness = handed.into_iter().rev().find(|work| work.is_counted);
        }
        posted
    }

    fn poll_inner(&mut self, now: CoreInstant, out: &mut Polled) {
        let mut heard = Polled::default();
        self.inner.poll(now, &mut heard);
        self.hear(&heard);
        out.completions.append(&mut heard.completions);
        out.lanes.append(&mut heard.lanes);
        out.visible.append(&mut heard.visible);
    }

    /// Writes down what it has said.
    fn hear(&self, heard: &Polled) {
        book(|book| {
            for done in &heard.completions {
                let life = (done.lane, done.epoch);
                if done.outcome == Outcome::Success {
                    book.handle_success(life, done.cookie, self.kind == Kind::Verbs);
                }
            }
            // Others are asked at the other end.
            for report in heard.lanes.iter().filter(|_| self.kind == Kind::Shm) {
                if let LaneFact::Fenced {
                    scope: Scope::Remote,
                    ..
                } = report.fact
                {
                    book.handle_ended((report.lane, report.epoch), self.kind);
                }
            }
        });
    }
}

impl Endpoint for Watched {
    fn attach_local(&mut self, segment: SegmentRef, region: Arc<Region>) {
        self.inner.attach_local(segment, region);
    }

    fn detach_local(&mut self, segment: SegmentRef) {
        self.inner.detach_local(segment);
    }

    fn attach_remote(&mut self, segment: SegmentRef, region: RemoteRegion) {
        if region.bytes == BYTES {
            self.segment = Some(segment);
        }
        self.inner.attach_remote(segment, region);
    }

    fn detach_remote(&mut self, segment: SegmentRef) {
        self.inner.detach_remote(segment);
    }

    fn attach_rail(&mut self, rail: RailId, address: RailAddress) {
        self.inner.attach_rail(rail, address);
    }

    fn forget_rail(&mut self, rail: RailId) {
        self.inner.forget_rail(rail);
    }

    fn open(&mut self, lane: LaneId, epoch: Epoch, by: CoreInstant) {
        self.inner.open(lane, epoch, by);
    }

    fn post(&mut self, batch: &PostBatch) -> Posted {
        let life = (batch.lane, batch.epoch);
        let full = |accepted| Posted {
            accepted,
            stop: Stop::Full,
        };
        if self.dying.as_ref().is_some_and(|dying| dying.life == life) {
            return full(0);
        }
        if !self.dies(batch) {
            let posted = self.inner.post(batch);
            self.note(life, &batch.works[..posted.accepted]);
            return posted;
        }
        // The others stay on this side, or are lost on the wire.
        let half = match batch.works.len() {
            1 if book(|book| book.broken.len() + 1 == book.failures) => 1,
            count => count / 2,
        };
        let asks_first = self.kind == Kind::Shm && !book(|book| book.is_in_use(life));
        let place = match asks_first {
            // Where that is; the others wait for the answer.
            true => batch.works[..half]
                .iter()
                .position(|work| self.counts(work)),
            false => half.checked_sub(1),
        };
        let first = part(batch, 0..place.map_or(0, |place| place + 1));
        let later = match first.works.is_empty() {
            true => PostBatch::default(),
            false => part(batch, first.works.len()..half),
        };
        self.dying = Some(Dying {
            life,
            later,
            witness: None,
            polls: 0,
            since: Instant::now(),
        });
        let posted = self.hand_in(&first);
        if posted.accepted < first.works.len() {
            // It has to ask something first; another one dies.
            self.dying = None;
            return posted;
        }
        if self.kind == Kind::Verbs {
            let lost = part(batch, half..batch.works.len());
            stub::cut(true);
            let posted = self.inner.post(&lost);
            stub::cut(false);
            self.note(life, &lost.works[..posted.accepted]);
        }
        let counted = batch.works.iter().filter(|work| self.counts(work));
        let places = counted.map(|work| (work.remote.offset, work.length));
        book(|book| book.handle_dying(life, self.kind, places));
        full(batch.works.len())
    }

    fn carry_at_once(
        &mut self,
        now: CoreInstant,
        lane: LaneId,
        epoch: Epoch,
        works: &[Work],
    ) -> bool {
        self.inner.carry_at_once(now, lane, epoch, works)
    }

    fn poll(&mut self, now: CoreInstant, out: &mut Polled) {
        let Some(dying) = &mut self.dying else {
            return self.poll_inner(now, out);
        };
        let life = dying.life;
        if !dying.later.works.is_empty() {
            if book(|book| book.is_in_use(life)) {
                let later = std::mem::take(&mut dying.later);
                dying.polls = 1;
                let posted = self.hand_in(&later);
                assert_eq!(posted.accepted, later.works.len(), "{posted:?}");
            }
            return self.poll_inner(now, out);
        }
        dying.polls += 1;
        let has_arrived = |work: &Handed| book(|book| book.is_there(work));
        // Over shared memory it comes only if there was room to offer all of them at once.
        let is_late = self.kind == Kind::Shm && dying.since.elapsed() > OFFERS_TAKE;
        if is_late || dying.polls > 1 && dying.witness.as_ref().is_none_or(has_arrived) {
            self.dying = None;
            let kind = self.kind;
            book(|book| book.handle_broken(life, kind));
            let (lane, epoch) = life;
            let fact = LaneFact::Broken(Cause::Reset);
            out.lanes.push(LaneReport { lane, epoch, fact });
            return;
        }
        match self.kind {
            Kind::Tcp => {
                let mut heard = Polled::default();
                self.inner.poll(now, &mut heard);
                let is_other = |of: Life| of != life;
                heard
                    .completions
                    .retain(|done| is_other((done.lane, done.epoch)));
                heard.lanes.retain(|said| is_other((said.lane, said.epoch)));
                self.hear(&heard);
                out.completions.append(&mut heard.completions);
                out.lanes.append(&mut heard.lanes);
                out.visible.append(&mut heard.visible);
            }
            Kind::Shm if dying.polls == 1 => self.poll_inner(now, out),
            Kind::Shm | Kind::Verbs => {}
        }
    }

    fn make_visible(&mut self, session: SessionId, ticket: u64) -> bool {
        self.inner.make_visible(session, ticket)
    }

    fn fence(&mut self, lane: LaneId, epoch: Epoch, scope: Scope) {
        self.inner.fence(lane, epoch, scope);
    }

    fn arrived(&mut self, lane: LaneId, epoch: Epoch, told: u32) -> u32 {
        self.inner.arrived(lane, epoch, told)
    }

    fn close(&mut self, lane: LaneId, epoch: Epoch) {
        self.inner.close(lane, epoch);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn waits(&self) -> Waits {
        self.inner.waits()
    }

    fn poll_timeout(&self) -> Option<CoreInstant> {
        match self.dying {
            Some(_) => Some(CoreInstant::ZERO),
            None => self.inner.poll_timeout(),
        }
    }

    fn arm(&mut self) {
        self.inner.arm();
    }

    fn announce(&mut self, spinning: bool) {
        self.inner.announce(spinning);
    }

    fn sleep(&mut self, call: BorrowedFd<'_>, longest: Option<CoreDuration>) -> io::Result<bool> {
        self.inner.sleep(call, longest)
    }
}

/// Content of a segment: no byte of it is the same before and after.
fn pattern(seed: u8, offset: u64, length: u64) -> Vec<u8> {
    let places = offset..offset + length;
    places
        .map(|place| (place as u32).wrapping_mul(0x9e37_79b9).to_be_bytes()[0] ^ seed)
        .collect()
}

fn is_pattern(seed: u8, offset: u64, bytes: &[u8]) -> bool {
    bytes == pattern(seed, offset, bytes.len() as u64)
}

/// A target and an initiator that have one transport in common.
struct Pair {
    initiator: Engine,
    local: SegmentId,
    remote: SegmentId,
    source: Arc<Region>,
    there: Arc<Region>,
    // Last: it outlives who writes to it.
    target: Engine,
}

impl Pair {
    fn new(kind: Kind) -> Self {
        let engine = |name, listen: Option<&str>| {
            let last = if kind == Kind::Verbs { 2 } else { 4 };
            let mut config = Config {
                listen: listen.map(|at| at.parse().unwrap()),
                rails: (1..=last).map(|last| [127, 0, 0, last].into()).collect(),
                workers: 1,
                ..Config::named(name).without("shm").without("tcp")
            };
            // However slow this machine is, what is late here is not lost.
            config.health.progress_floor = PATIENCE;
            config.health.fence_timeout = PATIENCE;
            let hooks = Hooks {
                transports: kind.plugins(),
                ..Hooks::default()
            };
            Engine::with_hooks(config, hooks).unwrap()
        };
        let target = engine("target", Some("127.0.0.1:0"));
        let initiator = engine("initiator", None);
        // Private, as what programs register.
        let memory = Arc::new(Region::allocate(BYTES, Access::Local).unwrap());
        let access = Access::RemoteReadWrite;
        // SAFETY: the memory stays mapped, and nothing of this test moves it.
        let mem = unsafe { target.register("mem", memory.base(), BYTES, access) }.unwrap();
        std::mem::forget(memory);
        let local = initiator.allocate("here", BYTES, Access::Local).unwrap();
        let at = target.listening().unwrap();
        Self {
            local,
            remote: initiator.open_segment(&format!("{at}/mem")).unwrap(),
            source: initiator.region(local).unwrap(),
            there: target.region(mem).unwrap(),
            initiator,
            target,
        }
    }

    fn write_all(&self, seed: u8) {
        self.source.store(&pattern(seed, 0, BYTES), 0).unwrap();
        let request = Request {
            op: Op::Write,
            local: self.local,
            local_offset: 0,
            remote: self.remote,
            remote_offset: 0,
            length: BYTES,
        };
        let batch = self.initiator.submit(&[request]).unwrap();
        let ended = batch.wait(PATIENCE).unwrap();
        assert_eq!(ended.status, Status::Completed);
        assert_eq!(batch.report(0).unwrap().delivered_bytes, BYTES);
        let mut bytes = vec![0; BYTES as usize];
        self.there.load(0, &mut bytes).unwrap();
        assert!(is_pattern(seed, 0, &bytes), "all bytes are right");
    }
}

/// Breaks so many lanes, one after the other, each while it carries what the one before it had taken.
fn only_the_missing_goes_again(kind: Kind) {
    let _turn = turn();
    for failures in [2, 3] {
        book(|book| *book = Book::default());
        let pair = Pair::new(kind);
        // Lanes open, and rates are learnt.
        pair.write_all(BEFORE);
        book(|book| {
            book.there = Some(pair.there.clone());
            book.failures = failures;
        });
        pair.write_all(AFTER);
        let until = Instant::now() + PATIENCE;
        while book(|book| book.missing_bytes.len()) < failures {
            assert!(Instant::now() < until, "not all has been answered");
            std::thread::yield_now();
        }
        let (carried, [shm, others], missing) = book(|book| {
            let missing: u64 = book.missing_bytes.values().sum();
            let unanswered = [book.unanswered_shm_bytes, book.unanswered_bytes];
            (book.carried(), unanswered, missing)
        });
        println!(
            "{kind:?}, {failures} failures: {carried} bytes carried for {BYTES}; {missing} had not arrived, {shm} over \
             shared memory and {others} otherwise had without an answer, {} went twice",
            carried - BYTES - missing
        );
        // What is written to memory of this host is answered at once, by who writes it. What is left may go over TCP.
        assert_eq!(shm, 0, "unanswered bytes");
        assert!(kind == Kind::Shm || others > 0, "no byte could go twice");
        assert_eq!(carried, BYTES + missing, "bytes that were there went again");
        book(|book| book.there = None);
        pair.initiator.shutdown();
        pair.target.shutdown();
    }
}

#[test]
fn over_tcp() {
    only_the_missing_goes_again(Kind::Tcp);
}

#[test]
fn over_shared_memory() {
    only_the_missing_goes_again(Kind::Shm);
}

#[test]
fn over_verbs() {
    only_the_missing_goes_again(Kind::Verbs);
}
