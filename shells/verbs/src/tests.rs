//! Both halves over a libibverbs in this process.

use std::cell::Cell;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use polyrail_control::codec::{Decoder, Frame};
use polyrail_core::time::Duration;
use polyrail_core::transport::MemoryKind;
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef, TransportId};
use polyrail_core::work::{
    Cause, Completion, LaneFact, LaneLimits, Op, Outcome, Place, PostBatch, Posted, Scope, Stop,
    Work,
};
use polyrail_transport::clock::Clock;
use polyrail_transport::memory::{
    Access, DeviceMemory, DmaBuf, Region, RegionKey, RegionTable, TrustDomain,
};
use polyrail_transport::{
    Endpoint, InboundLane, LaneReport, Polled, RailAddress, RemoteRegion, SessionId, Transport,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::discover::Sysfs;
use crate::ffi::raw::Calls;
use crate::lock::lock;
use crate::stub::{self, COUNTERS};
use crate::{Settings, VerbsTransport};

mod appears;
mod causes;
mod comes_up;
mod keyed;
mod names;
mod slow;
mod unanswered;
mod unproven;

const SESSION: SessionId = SessionId([3; 16]);
const LANE: LaneId = LaneId::new(0, RailId(0));
const LOCAL: SegmentRef = SegmentRef(1);
const REMOTE: SegmentRef = SegmentRef(2);
const BYTES: u64 = 1 << 20;
/// More than any test here opens.
const DESCRIPTORS_MAX: u64 = 1 << 16;

thread_local! {
    static HAS_TURN: Cell<bool> = const { Cell::new(false) };
}

/// Whose turn it is, as long as it lives.
pub(crate) struct Turn {
    _others: MutexGuard<'static, ()>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        HAS_TURN.set(false);
    }
}

/// The devices are the process's, so tests take turns.
pub(crate) fn turn() -> Turn {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = Turn {
        _others: TURN.lock().unwrap_or_else(PoisonError::into_inner),
    };
    HAS_TURN.set(true);
    stub::cut(false);
    stub::hold(false);
    stub::land();
    stub::fail_nothing();
    stub::spoil(0);
    stub::set_registration_max(0);
    stub::refuse_registrations(None);
    (0..2).for_each(|device| stub::unplug(device, false));
    stub::be_plain(false);
    stub::reuse_keys(false);
    stub::set_port_flags(0);
    stub::hold_registrations(u64::MAX);
    stub::hold_deregistrations(false);
    stub::hold_destructions(false);
    stub::set_completions_max(None);
    stub::expect(stub::Expects::Next);
    turn
}

/// What one target offers.
#[derive(Default)]
struct Regions(Mutex<Vec<Arc<Region>>>);

/// Of a peer in another trust domain, to which all regions are closed.
const OTHER: SessionId = SessionId([4; 16]);
const ANOTHER: TrustDomain = TrustDomain(1);

impl RegionTable for Regions {
    fn find(&self, key: &RegionKey, domain: TrustDomain) -> Option<Arc<Region>> {
        if domain != TrustDomain::COMMON {
            return None;
        }
        self.0
            .lock()
            .unwrap()
            .iter()
            .find(|region| region.key() == *key)
            .cloned()
    }
}

/// Two transports on one machine, a target's port, and an endpoint.
struct Pair {
    regions: Arc<Regions>,
    target: Arc<VerbsTransport>,
    initiator: Arc<VerbsTransport>,
    endpoint: Box<dyn Endpoint>,
    clock: Clock,
    local: Arc<Region>,
    remote: Arc<Region>,
    completions: Vec<Completion>,
    visible: Vec<u64>,
    fences: Vec<(LaneId, Epoch)>,
    facts: Vec<LaneReport>,
    acceptor: Option<thread::JoinHandle<()>>,
    port: SocketAddr,
    address: RailAddress,
    _root: tempfile::TempDir,
}

impl Pair {
    fn new() -> Self {
        Self::with(Settings::default(), Access::RemoteReadWrite)
    }

    fn with(settings: Settings, access: Access) -> Self {
        Self::of(BYTES, settings, access)
    }

    /// With segments of so many bytes.
    fn of(bytes: u64, settings: Settings, access: Access) -> Self {
        Self::on(stub::machine().unwrap(), bytes, settings, access)
    }

    /// On this machine.
    fn on(
        (root, sysfs): (tempfile::TempDir, Sysfs),
        bytes: u64,
        settings: Settings,
        access: Access,
    ) -> Self {
        assert!(HAS_TURN.get(), "the devices are another test's");
        let regions = Arc::new(Regions::default());
        let over = |regions: Arc<Regions>| {
            VerbsTransport::over(&stub::calls(), &sysfs, regions, settings).unwrap()
        };
        let target = Arc::new(over(regions.clone()));
        let initiator = Arc::new(over(Arc::default()));
        let listener = TcpListener::bind("127.0.0.2:0").unwrap();
        let port = listener.local_addr().unwrap();
        let acceptor = thread::spawn({
            let target = target.clone();
            move || {
                for stream in listener.incoming() {
                    match accept(stream.unwrap()) {
                        Some(lane) => target.admit(lane),
                        None => return,
                    }
                }
            }
        });
        let clock = Clock::start();
        let mut endpoint = initiator.endpoint(0, clock).unwrap();
        let local = Arc::new(Region::allocate(bytes, Access::Local).unwrap());
        let remote = Arc::new(Region::allocate(bytes, access).unwrap());
        regions.0.lock().unwrap().push(remote.clone());
        endpoint.attach_local(LOCAL, local.clone());
        let described = RemoteRegion {
            key: remote.key(),
            bytes,
        };
        endpoint.attach_remote(REMOTE, described);
        let address = RailAddress {
            transport: TransportId(0),
            local: Some(IpAddr::from([127, 0, 0, 1])),
            remote: port,
            session: SESSION,
            secret: None,
            own: Arc::default(),
        };
        endpoint.attach_rail(RailId(0), address.clone());
        Self {
            regions,
            target,
            initiator,
            endpoint,
            clock,
            local,
            remote,
            completions: Vec::new(),
            visible: Vec::new(),
            fences: Vec::new(),
            facts: Vec::new(),
            acceptor: Some(acceptor),
            port,
            address,
            _root: root,
        }
    }

    fn poll(&mut self) {
        let mut out = Polled::default();
        self.endpoint.poll(self.clock.now(), &mut out);
        self.completions.append(&mut out.completions);
        self.visible.append(&mut out.visible);
        self.fences.append(&mut out.fences);
        self.facts.append(&mut out.lanes);
    }

    /// Polls, asleep while there is nothing, until something is so.
    fn until(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) {
        let (wakes, _keep) = std::os::unix::net::UnixStream::pair().unwrap();
        let patience = self.clock.now() + Duration::from_secs(30);
        loop {
            self.poll();
            if is_so(self) {
                return;
            }
            assert!(
                self.clock.now() < patience,
                "{:?} {:?}",
                self.facts,
                self.completions
            );
            let due = self
                .endpoint
                .poll_timeout()
                .unwrap_or(patience)
                .min(patience);
            let longest = due.since(self.clock.now());
            let call = std::os::fd::AsFd::as_fd(&wakes);
            self.endpoint.sleep(call, Some(longest)).unwrap();
        }
    }

    fn fact(&mut self) -> LaneReport {
        self.until(|pair| !pair.facts.is_empty());
        self.facts.remove(0)
    }

    fn open(&mut self, epoch: u32) -> LaneFact {
        let by = self.clock.now() + Duration::from_secs(20);
        self.endpoint.open(LANE, Epoch(epoch), by);
        let report = self.fact();
        assert_eq!((report.lane, report.epoch), (LANE, Epoch(epoch)));
        report.fact
    }

    /// Opens the lane in this epoch or a later one, which it returns: a device that has failed refuses lanes for a moment after it was
    /// tried.
    fn opened_in_time(&mut self, first: u32) -> u32 {
        for epoch in first.. {
            match self.open(epoch) {
                LaneFact::Opened { .. } => return epoch,
                LaneFact::OpenFailed(Cause::Refused) => {}
                other => panic!("{other:?}"),
            }
        }
        unreachable!("there are as many epochs as it takes")
    }

    fn opened(&mut self, epoch: u32) -> LaneLimits {
        match self.open(epoch) {
            LaneFact::Opened { limits } => limits,
            other => panic!("{other:?}"),
        }
    }

    /// Posts, and again what was not taken because something was awaited.
    fn post(&mut self, epoch: u32, works: &[Work]) -> Posted {
        let mut batch = PostBatch {
            lane: LANE,
            epoch: Epoch(epoch),
            works: works.iter().copied().collect(),
        };
        loop {
            let posted = self.endpoint.post(&batch);
            if posted.stop != Stop::Full {
                return posted;
            }
            assert_eq!(posted.accepted, 0);
            let fact = self.fact().fact;
            assert_eq!(fact, LaneFact::Writable);
            batch.epoch = Epoch(epoch);
        }
    }

    fn completed(&mut self, count: usize) -> Vec<(u64, Outcome)> {
        self.until(|pair| pair.completions.len() >= count);
        self.completions
            .drain(..)
            .map(|c| (c.cookie, c.outcome))
            .collect()
    }

    /// Fences an epoch. A device that has failed proves nothing before it has been opened again.
    fn fence(&mut self, epoch: u32) {
        self.endpoint.fence(LANE, Epoch(epoch), Scope::Local);
        let scope = Scope::Local;
        let mut fact = self.fact();
        while fact.fact == (LaneFact::Unfenceable { scope }) {
            fact = self.fact();
        }
        let delivered = None;
        let fenced = LaneFact::Fenced { scope, delivered };
        assert_eq!((fact.epoch, fact.fact), (Epoch(epoch), fenced));
    }

    /// Asks the target to fence an epoch, and waits until it has. How many works have arrived.
    fn fence_inbound(&mut self, epoch: u32) -> u32 {
        let (answer, answered) = mpsc::channel();
        let tell = move |delivered| answer.send(delivered).unwrap();
        self.target
            .fence_inbound(SESSION, LANE, Epoch(epoch), Box::new(tell));
        let told = answered.recv().unwrap();
        self.endpoint.arrived(LANE, Epoch(epoch), told)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // A connection that says nothing.
        drop(TcpStream::connect(self.port));
        let acceptor = self.acceptor.take().map(thread::JoinHandle::join);
        if !thread::panicking() {
            acceptor.unwrap().unwrap();
        }
    }
}

/// Reads greeting and join, as the control plane does.
fn accept(mut stream: TcpStream) -> Option<InboundLane> {
    let mut decoder = Decoder::default();
    let mut byte = [0];
    let mut greeted = false;
    loop {
        if !greeted {
            greeted = decoder.next_greeting().ok()?.is_some();
        } else if let Some(frame) = decoder.next_frame().ok()? {
            let Frame::JoinLaneOf {
                transport,
                session,
                lane,
                epoch,
            } = frame
            else {
                return None;
            };
            return Some(InboundLane {
                transport: Some(transport),
                session: SessionId(session),
                domain: match SessionId(session) == OTHER {
                    true => ANOTHER,
                    false => TrustDomain::COMMON,
                },
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

fn work(cookie: u64, op: Op, offset: u64, length: u32, signal: bool) -> Work {
    let place = |segment| Place { segment, offset };
    Work {
        cookie,
        op,
        local: place(LOCAL),
        remote: place(REMOTE),
        length,
        signal,
    }
}

fn fill(region: &Region, byte: u8) {
    // SAFETY: the region is mapped, and nothing is posted on it now.
    unsafe {
        region
            .base()
            .as_ptr()
            .write_bytes(byte, region.bytes() as usize)
    };
}

fn byte(region: &Region, offset: u64) -> u8 {
    // SAFETY: inside the region, which is mapped.
    unsafe { region.base().as_ptr().add(offset as usize).read_volatile() }
}

const SUCCESS: Outcome = Outcome::Success;

#[test]
fn bytes_go_both_ways_and_nowhere_else() {
    let _turn = turn();
    let mut pair = Pair::new();
    let limits = pair.opened(1);
    assert_eq!(
        (limits.works_max, limits.reads_max, limits.covers),
        (128, 48, true)
    );
    fill(&pair.local, 7);
    let posted = pair.post(1, &[work(1, Op::Write, 100, 33, true)]);
    assert_eq!(
        posted,
        Posted {
            accepted: 1,
            stop: Stop::All
        }
    );
    assert_eq!(pair.completed(1), [(1, SUCCESS)]);
    let around = [99, 100, 132, 133].map(|at| byte(&pair.remote, at));
    assert_eq!(around, [0, 7, 7, 0]);
    fill(&pair.remote, 9);
    pair.post(1, &[work(2, Op::Read, 200, 5, true)]);
    assert_eq!(pair.completed(1), [(2, SUCCESS)]);
    let around = [199, 200, 204, 205].map(|at| byte(&pair.local, at));
    assert_eq!(around, [7, 9, 9, 7]);
}

#[test]
fn a_batch_rings_once_and_one_completion_covers_it() {
    let _turn = turn();
    let mut pair = Pair::new();
    pair.opened(1);
    pair.post(1, &[work(0, Op::Write, 0, 8, true)]);
    pair.completed(1);
    let before = [&COUNTERS.doorbells, &COUNTERS.completions].map(|count| count.load(SeqCst));
    let works: Vec<_> = (0..32)
        .map(|i| work(i, Op::Write, 64 * i, 64, i == 31))
        .collect();
    pair.post(1, &works);
    assert_eq!(pair.completed(1), [(31, SUCCESS)]);
    let after = [&COUNTERS.doorbells, &COUNTERS.completions].map(|count| count.load(SeqCst));
    assert_eq!([after[0] - before[0], after[1] - before[1]], [1, 1]);
}

/// A work from one place to another.
fn from_to(cookie: u64, op: Op, local: u64, remote: u64, length: u32, signal: bool) -> Work {
    let mut work = work(cookie, op, local, length, signal);
    work.remote.offset = remote;
    work
}

/// Fills a region so that no two of its words of four bytes are alike.
fn number(region: &Region) {
    for word in 0..region.bytes() / 4 {
        // SAFETY: inside the region, which is mapped, and nothing is posted on it now.
        unsafe {
            region
                .base()
                .cast::<u32>()
                .add(word as usize)
                .write(word as u32)
        };
    }
}

fn word(region: &Region, offset: u64) -> u32 {
    // SAFETY: inside the region, which is mapped.
    unsafe {
        region
            .base()
            .cast::<u32>()
            .add(offset as usize / 4)
            .read_volatile()
    }
}

const KIB: u64 = 1024;

#[test]
fn short_works_that_lie_together_at_the_peer_go_as_one() {
    let _turn = turn();
    let mut pair = Pair::new();
    pair.opened(1);
    pair.post(1, &[work(99, Op::Read, 0, 8, true)]);
    pair.completed(1);
    number(&pair.local);
    // From every other page here, backwards, to one page after the other there.
    let page = |op, index: u64, signal| {
        from_to(
            index,
            op,
            (100 - 2 * index) * 4 * KIB,
            index * 4 * KIB,
            4096,
            signal,
        )
    };
    let write = |index, signal| page(Op::Write, index, signal);
    let read = |index, signal| page(Op::Read, index, signal);
    let same = |index: u64| from_to(index, Op::Write, index * 64, index * 64, 64, index == 31);
    let slice = |index: u64| {
        from_to(
            index,
            Op::Write,
            index * 64 * KIB,
            index * 64 * KIB,
            65_536,
            index == 3,
        )
    };
    let mixed = |index: u64| page([Op::Write, Op::Read][index as usize % 2], index, index == 5);
    // (name, works, works of the device's, ranges)
    let cases: [(&str, Vec<Work>, u64, u64); 8] = [
        (
            "as many ranges as there may be",
            (0..8).map(|i| write(i, i == 7)).collect(),
            1,
            8,
        ),
        ("one more", (0..9).map(|i| write(i, i == 8)).collect(), 2, 9),
        (
            "reads have fewer",
            (0..7).map(|i| read(i, i == 6)).collect(),
            3,
            7,
        ),
        (
            "who asks for a completion ends a work",
            (0..6).map(|i| write(i, i == 2 || i == 5)).collect(),
            2,
            6,
        ),
        ("another kind", (0..6).map(mixed).collect(), 6, 6),
        ("together on both sides", (0..32).map(same).collect(), 1, 1),
        (
            "slices are works by themselves",
            (0..4).map(slice).collect(),
            4,
            4,
        ),
        ("a gap", vec![write(0, false), write(2, true)], 2, 2),
    ];
    for (name, works, count, ranges) in cases {
        fill(&pair.remote, 0);
        if works[0].op == Op::Read {
            number(&pair.remote);
            fill(&pair.local, 0);
        }
        let before = [&COUNTERS.works, &COUNTERS.ranges].map(|count| count.load(SeqCst));
        let posted = pair.post(1, &works);
        assert_eq!(
            (posted.accepted, posted.stop),
            (works.len(), Stop::All),
            "{name}"
        );
        let after = [&COUNTERS.works, &COUNTERS.ranges].map(|count| count.load(SeqCst));
        let seen = [after[0] - before[0], after[1] - before[1]];
        assert_eq!(seen, [count, ranges], "{name}");
        let signals: Vec<_> = works.iter().filter(|work| work.signal).collect();
        let told: Vec<_> = signals.iter().map(|work| (work.cookie, SUCCESS)).collect();
        assert_eq!(pair.completed(told.len()), told, "{name}");
        if name != "another kind" {
            for work in &works {
                for at in [0, work.length as u64 - 4] {
                    let ends = (
                        word(&pair.local, work.local.offset + at),
                        word(&pair.remote, work.remote.offset + at),
                    );
                    let from = match work.op {
                        Op::Write => work.local.offset,
                        Op::Read => work.remote.offset,
                    };
                    let expected = ((from + at) / 4) as u32;
                    assert_eq!(ends, (expected, expected), "{name}");
                }
            }
        }
        number(&pair.local);
    }
}

#[test]
fn of_works_that_went_as_one_the_first_fails_and_the_others_are_flushed() {
    let _turn = turn();
    let mut pair = Pair::with(Settings::default(), Access::RemoteRead);
    pair.opened(1);
    let read = |cookie, at: u64| from_to(cookie, Op::Read, at * 3000, at * 1000, 1000, false);
    let write = |cookie, at: u64| from_to(cookie, Op::Write, at * 3000, at * 1000, 1000, false);
    let works = [
        read(1, 0),
        read(2, 1),
        write(3, 2),
        write(4, 3),
        write(5, 4),
        read(6, 5),
    ];
    let posted = pair.post(1, &works);
    assert_eq!((posted.accepted, posted.stop), (6, Stop::All));
    let flushed = Outcome::Error(Cause::Flushed);
    let ended = [
        (2, SUCCESS),
        (3, Outcome::Error(Cause::RemoteAccess)),
        (4, flushed),
        (5, flushed),
        (6, flushed),
    ];
    assert_eq!(pair.completed(5), ended);
    assert_eq!(byte(&pair.remote, 2500), 0);
}

#[test]
fn a_queue_that_is_full_took_whole_works_of_the_devices() {
    let _turn = turn();
    let settings = Settings {
        queue_depth: 4,
        ..Settings::default()
    };
    let mut pair = Pair::with(settings, Access::RemoteReadWrite);
    pair.opened(1);
    pair.post(1, &[work(99, Op::Write, 0, 8, true)]);
    pair.completed(1);
    // Pairs that go as one, with gaps between them: of six works of the device's five fit.
    let works: Vec<_> = (0..12)
        .map(|i| {
            from_to(
                i,
                Op::Write,
                i * 300,
                i / 2 * 1000 + i % 2 * 100,
                100,
                false,
            )
        })
        .collect();
    let posted = pair.endpoint.post(&PostBatch {
        lane: LANE,
        epoch: Epoch(1),
        works: works.into_iter().collect(),
    });
    assert_eq!((posted.accepted, posted.stop), (10, Stop::Full));
}

#[test]
fn short_writes_carry_their_bytes_where_the_device_can() {
    let _turn = turn();
    let inline = || COUNTERS.inline.load(SeqCst);
    // (bytes by configuration, whether the device does neither, bytes of the longest that does)
    for (inline_bytes, plain, longest) in [
        (64, false, 64),
        (256, false, 96),
        (0, false, 0),
        (64, true, 0),
    ] {
        stub::be_plain(plain);
        let settings = Settings {
            inline_bytes,
            ..Settings::default()
        };
        let mut pair = Pair::with(settings, Access::RemoteReadWrite);
        pair.opened(1);
        pair.post(1, &[work(99, Op::Read, 0, 8, true)]);
        pair.completed(1);
        number(&pair.local);
        let before = inline();
        let mut count = 0;
        for length in [1, 63, 64, 65, 96, 97, 256, 300] {
            let write = from_to(7, Op::Write, 4096 + 4, 1000, length, true);
            pair.post(1, &[write]);
            assert_eq!(pair.completed(1), [(7, SUCCESS)]);
            count += u64::from(length <= longest);
            assert_eq!(
                inline() - before,
                count,
                "{length} of {inline_bytes}, {plain}"
            );
            for at in [0, u64::from(length) - 1] {
                let own = byte(&pair.local, 4096 + 4 + at);
                assert_eq!(byte(&pair.remote, 1000 + at), own, "{length}");
            }
        }
        // Not if it is a part of one that is longer, nor into a read.
        pair.post(
            1,
            &[
                from_to(1, Op::Write, 0, 0, 48, false),
                from_to(2, Op::Write, 48, 48, 48, true),
            ],
        );
        pair.post(1, &[from_to(3, Op::Read, 0, 0, 8, true)]);
        assert_eq!(pair.completed(2), [(2, SUCCESS), (3, SUCCESS)]);
        assert_eq!(inline() - before, count);
    }
    // What has been taken away is not looked at.
    let mut pair = Pair::new();
    pair.opened(1);
    pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
    pair.completed(1);
    let before = inline();
    pair.local.revoke();
    let posted = pair.post(1, &[work(2, Op::Write, 0, 8, true)]);
    assert_eq!(posted.stop, Stop::Rejected(Cause::LocalProtection));
    assert_eq!(inline(), before);
}

#[test]
fn what_was_written_is_seen_before_it_is_said_to_be() {
    let _turn = turn();
    let mut pair = Pair::new();
    pair.opened(1);
    let immediates = || COUNTERS.immediates.load(SeqCst);
    let before = immediates();
    assert!(
        !pair.endpoint.make_visible(SESSION, 1),
        "nothing was written"
    );
    pair.post(1, &[work(1, Op::Read, 0, 8, true)]);
    pair.completed(1);
    assert!(!pair.endpoint.make_visible(SESSION, 2), "but read");
    let works: Vec<_> = (0..128)
        .map(|i| work(i, Op::Write, 0, 8, i == 127))
        .collect();
    for round in 1..=3 {
        for works in works.chunks(32) {
            assert_eq!(pair.post(1, works).stop, Stop::All);
        }
        pair.completed(1);
        assert!(!pair.endpoint.make_visible(SessionId([2; 16]), 3));
        // Of three that ask together, each is told, by one immediate or two.
        let asked = [10, 11, 12].map(|ticket| pair.endpoint.make_visible(SESSION, ticket));
        assert_eq!(asked, [true; 3]);
        pair.until(|pair| pair.visible.len() == 3);
        pair.visible.sort_unstable();
        assert_eq!(std::mem::take(&mut pair.visible), [10, 11, 12]);
        assert_eq!(immediates() - before, round);
    }
    assert!(pair.fences.is_empty(), "{:?}", pair.fences);
}

/// A notification used to go out as soon as a lane had ended that was to tell when it may, or had before it was asked.
#[test]
fn what_a_lane_has_written_that_is_over_is_seen_once_its_peer_has_ended_it_too() {
    let _turn = turn();
    // (name, whether somebody waits while the lane is open)
    for (name, asks_before) in [("the immediate is lost", true), ("asked later", false)] {
        let mut pair = Pair::new();
        pair.opened(1);
        pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
        pair.completed(1);
        stub::cut(true);
        if asks_before {
            assert!(pair.endpoint.make_visible(SESSION, 1), "{name}");
        }
        pair.fence(1);
        stub::cut(false);
        if !asks_before {
            pair.poll();
            assert!(pair.fences.is_empty(), "{name}: nobody waits");
            assert!(pair.endpoint.make_visible(SESSION, 1), "{name}");
        }
        // Another lane is no proof of what the first one wrote, whatever it says itself.
        pair.opened(2);
        pair.post(2, &[work(2, Op::Write, 0, 8, true)]);
        pair.completed(1);
        assert!(pair.endpoint.make_visible(SESSION, 2), "{name}");
        // The peer is asked until it answers.
        pair.until(|pair| pair.fences.len() == 2);
        assert_eq!(pair.fences, [(LANE, Epoch(1)); 2], "{name}");
        assert!(pair.visible.is_empty(), "{name}: {:?}", pair.visible);
        pair.fence_inbound(1);
        pair.until(|pair| pair.visible.len() == 2);
        pair.fences.clear();
        // It is over, and was not asked after the lane that goes on.
        assert!(!pair.endpoint.make_visible(SESSION, 3), "{name}");
        pair.post(2, &[work(3, Op::Write, 0, 8, true)]);
        assert_eq!(pair.completed(1), [(3, SUCCESS)], "{name}");
        // With the rail goes the session, and who waited.
        pair.fence(2);
        assert!(pair.endpoint.make_visible(SESSION, 4), "{name}");
        pair.endpoint.forget_rail(RailId(0));
        pair.visible.clear();
        pair.until(|pair| pair.visible == [4]);
    }
}

/// A peer that hung, and whose answers went elsewhere, was waited for 5 s, and then all was as if it had answered.
#[test]
fn a_peer_that_does_not_say_what_it_sees_costs_the_lane_and_proves_nothing() {
    let _turn = turn();
    let mut pair = Pair::new();
    pair.opened(1);
    pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
    pair.completed(1);
    stub::cut(true);
    assert!(pair.endpoint.make_visible(SESSION, 1));
    let later = pair.clock.now() + Duration::from_secs(6);
    let mut out = Polled::default();
    pair.endpoint.poll(later, &mut out);
    let facts: Vec<_> = out.lanes.iter().map(|report| report.fact).collect();
    assert_eq!(facts, [LaneFact::Broken(Cause::Silent)]);
    assert!(out.visible.is_empty());
    let mut out = Polled::default();
    pair.endpoint.poll(later, &mut out);
    assert!(out.lanes.is_empty(), "once: {:?}", out.lanes);
    stub::cut(false);
    pair.fence(1);
    pair.until(|pair| !pair.fences.is_empty());
    assert!(pair.visible.is_empty());
    pair.fence_inbound(1);
    pair.until(|pair| pair.visible == [1]);
}

#[test]
fn what_is_not_allowed_is_refused_before_or_by_the_device() {
    let _turn = turn();
    let mut pair = Pair::with(Settings::default(), Access::RemoteRead);
    pair.opened(1);
    let other = SegmentRef(77);
    let forged = SegmentRef(78);
    let key = RegionKey([0xAB; 16]);
    pair.endpoint
        .attach_remote(forged, RemoteRegion { key, bytes: BYTES });
    let good = work(1, Op::Read, 0, 8, true);
    let with = |change: fn(&mut Work)| {
        let mut work = good;
        change(&mut work);
        work
    };
    // (name, work, why)
    let cases = [
        (
            "an unknown local segment",
            with(|w| w.local.segment = SegmentRef(77)),
            Cause::LocalProtection,
        ),
        (
            "an unknown remote segment",
            with(|w| w.remote.segment = SegmentRef(77)),
            Cause::RemoteAccess,
        ),
        (
            "past the local end",
            with(|w| w.local.offset = BYTES - 7),
            Cause::LocalProtection,
        ),
        (
            "past the remote end",
            with(|w| w.remote.offset = BYTES - 7),
            Cause::RemoteAccess,
        ),
        (
            "an offset that overflows",
            with(|w| w.remote.offset = u64::MAX),
            Cause::RemoteAccess,
        ),
        (
            "a forged key",
            with(|w| w.remote.segment = SegmentRef(78)),
            Cause::RemoteAccess,
        ),
    ];
    assert_ne!(other, forged);
    for (name, work, why) in cases {
        let posted = pair.post(1, &[work]);
        let refused = Posted {
            accepted: 0,
            stop: Stop::Rejected(why),
        };
        assert_eq!(posted, refused, "{name}");
    }
    pair.post(1, &[good]);
    assert_eq!(pair.completed(1), [(1, SUCCESS)]);
    // Memory that peers may only read.
    let works = [
        work(2, Op::Read, 0, 8, false),
        work(3, Op::Write, 0, 8, false),
        work(4, Op::Read, 0, 8, true),
    ];
    pair.post(1, &works);
    let ended = [
        (2, SUCCESS),
        (3, Outcome::Error(Cause::RemoteAccess)),
        (4, Outcome::Error(Cause::Flushed)),
    ];
    assert_eq!(pair.completed(3), ended);
}

#[test]
fn peers_of_another_trust_domain_are_told_of_nothing() {
    let _turn = turn();
    let mut pair = Pair::new();
    pair.opened(1);
    pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
    assert_eq!(pair.completed(1), [(1, SUCCESS)]);
    let address = RailAddress {
        session: OTHER,
        ..pair.address.clone()
    };
    pair.endpoint.attach_rail(RailId(0), address);
    pair.opened(2);
    for op in [Op::Write, Op::Read] {
        let posted = pair.post(2, &[work(2, op, 0, 8, true)]);
        assert_eq!(posted.stop, Stop::Rejected(Cause::RemoteAccess), "{op:?}");
    }
}

/// What a peer that guesses would do: it posts works itself, with a key that it was not told.
#[test]
fn a_guessed_key_of_another_trust_domain_opens_nothing() {
    use crate::device::Device;
    use crate::ffi::raw::{Sge, Wc};
    use crate::ffi::{Cq, Extras, Mr, Qp, Reach, Source, Work};
    let _turn = turn();
    let (_root, sysfs) = stub::machine().unwrap();
    let ports = sysfs.ports();
    let device = |number: usize| {
        let opened = Device::open(
            &stub::calls(),
            &sysfs,
            &ports[number],
            number,
            Settings::default(),
        );
        opened.unwrap()
    };
    let (peer, target) = (device(0), device(1));
    let region = |access| Arc::new(Region::allocate(4096, access).unwrap());
    let (local, remote) = (region(Access::Local), region(Access::RemoteReadWrite));
    fill(&local, 7);
    let whole = (0, 4096);
    let own = Mr::new(&peer.ours, &local, whole, Reach::Own, false).unwrap();
    let theirs = target.theirs(TrustDomain::COMMON).unwrap();
    let opened = Mr::new(&theirs, &remote, whole, Reach::ReadWrite, false).unwrap();
    // (whose peer, the status of its write)
    for (domain, status) in [(ANOTHER, 10), (TrustDomain::COMMON, 0)] {
        let queues = [&peer, &target].map(|of| Arc::new(Cq::new(&of.context, 16).unwrap()));
        let (path, mut ours) = peer.way([127, 0, 0, 1].into()).unwrap();
        let (back, mut its) = target.way([127, 0, 0, 2].into()).unwrap();
        let out = Qp::new(&peer.ours, &queues[0], (4, 0), Extras::NONE).unwrap();
        let inbound = target.theirs(domain).unwrap();
        let inbound = Qp::new(&inbound, &queues[1], (1, 1), Extras::NONE).unwrap();
        (ours.queue_pair, its.queue_pair) = (out.number(), inbound.number());
        out.init(&path, false).unwrap();
        inbound.init(&back, true).unwrap();
        out.connect(&ours, &its, &path).unwrap();
        inbound.connect(&its, &ours, &back).unwrap();
        let range = Sge {
            addr: local.base().as_ptr() as u64,
            length: 8,
            lkey: own.local_key(),
        };
        let write = Work {
            id: 1,
            op: Op::Write,
            source: Source::Range(range),
            joined: 1,
            remote_address: opened.address(),
            remote_key: opened.remote_key(),
            signal: true,
        };
        let (accepted, result) = out.post(&[write], &[], &[]);
        assert_eq!((accepted, result.is_ok()), (1, true));
        let mut seen = [Wc::default(); 2];
        assert_eq!(queues[0].poll(&mut seen).unwrap(), 1);
        assert_eq!(seen[0].status, status, "{domain:?}");
        let arrived = u8::from(status == 0) * 7;
        assert_eq!(byte(&remote, 0), arrived, "{domain:?}");
    }
}

#[test]
fn a_region_that_was_taken_away_is_not_touched() {
    let _turn = turn();
    let mut pair = Pair::new();
    pair.opened(1);
    pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
    assert_eq!(pair.completed(1), [(1, SUCCESS)]);
    // Deregistered when this returns, although the peer still has its key.
    pair.remote.revoke();
    fill(&pair.local, 5);
    pair.post(1, &[work(2, Op::Write, 0, 8, true)]);
    assert_eq!(
        pair.completed(1),
        [(2, Outcome::Error(Cause::RemoteAccess))]
    );
    assert_eq!(byte(&pair.remote, 0), 0);
    pair.fence(1);
    pair.opened(2);
    let posted = pair.post(2, &[work(3, Op::Write, 0, 8, true)]);
    assert_eq!(posted.stop, Stop::Rejected(Cause::RemoteAccess));
    pair.local.revoke();
    let posted = pair.post(2, &[work(4, Op::Write, 0, 8, true)]);
    assert_eq!(posted.stop, Stop::Rejected(Cause::LocalProtection));
}

#[test]
fn a_region_larger_than_a_device_registers_at_once_is_registered_in_pieces() {
    let _turn = turn();
    const MIB: u64 = 1 << 20;
    stub::set_registration_max(40 * MIB);
    let bytes = 100 * MIB + 5;
    let mut pair = Pair::of(bytes, Settings::default(), Access::RemoteReadWrite);
    pair.opened(1);
    // Pieces of 40 MiB that overlap by 16 begin 24 MiB after one another.
    let length = 16 * MIB as u32;
    let edges = [0, 24, 40, 48, 64, 72, 84].map(|at| at * MIB);
    let near = edges
        .iter()
        .flat_map(|at| [at.saturating_sub(3), *at, at + 5]);
    for (cookie, offset) in (1..).zip(near) {
        for at in [offset, offset + u64::from(length) - 1] {
            // SAFETY: inside the region, which is mapped, and nothing is posted on it now.
            unsafe {
                pair.local
                    .base()
                    .as_ptr()
                    .add(at as usize)
                    .write(cookie as u8)
            };
        }
        pair.post(1, &[work(cookie, Op::Write, offset, length, true)]);
        assert_eq!(pair.completed(1), [(cookie, SUCCESS)], "at {offset}");
        for at in [offset, offset + u64::from(length) - 1] {
            assert_eq!(byte(&pair.remote, at), cookie as u8, "at {at}");
        }
    }
    let past = work(99, Op::Write, bytes - 7, 8, true);
    let refused = Stop::Rejected(Cause::LocalProtection);
    assert_eq!(pair.post(1, &[past]).stop, refused);
    // One batch may lie in several pieces at both ends.
    let works: Vec<_> = (0..20)
        .map(|i| work(i, Op::Read, i * 5 * MIB, 4096, i == 19))
        .collect();
    assert_eq!(pair.post(1, &works).stop, Stop::All);
    assert_eq!(pair.completed(1), [(19, SUCCESS)]);
}

/// Memory that only its device may touch, as far as this process says.
struct Gpu {
    shared: Option<std::fs::File>,
}

impl DeviceMemory for Gpu {
    fn ordinal(&self) -> u32 {
        0
    }

    fn numa_node(&self) -> Option<u16> {
        None
    }

    fn load(&self, _: u64, _: &mut [u8]) -> std::io::Result<()> {
        Err(std::io::Error::other("nobody asks for it"))
    }

    fn store(&self, _: &[u8], _: u64) -> std::io::Result<()> {
        Err(std::io::Error::other("nobody asks for it"))
    }

    fn dma_buf(&self) -> Option<DmaBuf<'_>> {
        self.shared.as_ref().map(|file| DmaBuf {
            fd: file.as_fd(),
            offset: 4096,
            len: BYTES,
        })
    }
}

#[test]
fn memory_of_a_gpu_is_registered_through_its_dma_buf_else_by_its_address_where_the_kernel_lets() {
    let _turn = turn();
    let settings = Settings {
        gpu_memory: true,
        ..Settings::default()
    };
    // (signs of a module of the kernel's, whether the memory has a DMA-BUF, whether it is registered)
    let cases = [
        ("", true, true),
        ("", false, false),
        ("module/nvidia_peermem", true, true),
        ("module/nvidia_peermem", false, true),
        ("kernel/mm/memory_peers/nv_mem", false, true),
        ("kernel/mm/memory_peers/nv_mem_nc", false, true),
    ];
    for (sign, has_dma_buf, is_registered) in cases {
        let (root, sysfs) = stub::machine().unwrap();
        if !sign.is_empty() {
            std::fs::create_dir_all(root.path().join(sign)).unwrap();
        }
        stub::take_dma_bufs();
        let mut pair = Pair::on((root, sysfs), BYTES, settings, Access::RemoteReadWrite);
        let capabilities = pair.target.capabilities();
        assert!(capabilities.allows_local(MemoryKind::Device));
        assert!(capabilities.allows_remote(MemoryKind::Device));
        pair.opened(1);
        let shared = has_dma_buf.then(|| tempfile::tempfile().unwrap());
        let fd = shared.as_ref().map(|file| file.as_raw_fd());
        let behind = Region::allocate(BYTES, Access::Local).unwrap();
        let base = behind.base();
        let owner: Arc<dyn std::any::Any + Send + Sync> = Arc::new(behind);
        let gpu = Arc::new(Gpu { shared });
        // SAFETY: the owner keeps the range mapped.
        let region = unsafe { Region::of_device(base, BYTES, Access::Local, gpu, Some(owner)) };
        let segment = SegmentRef(7);
        pair.endpoint
            .attach_local(segment, Arc::new(region.unwrap()));
        let mut write = work(1, Op::Write, 16, 8, true);
        write.local.segment = segment;
        let posted = pair.post(1, &[write]);
        if !is_registered {
            assert_eq!(posted.stop, Stop::Rejected(Cause::Fatal), "{sign}");
            continue;
        }
        assert_eq!(pair.completed(1), [(1, SUCCESS)], "{sign}");
        let mut seen = Vec::new();
        // With both devices.
        pair.until(|_| {
            seen.append(&mut stub::take_dma_bufs());
            seen.len() == 2 || !has_dma_buf
        });
        let expected = fd.map(|fd| vec![(4096, BYTES, fd); 2]);
        assert_eq!(seen, expected.unwrap_or_default(), "{sign}");
    }
}

#[test]
fn gpus_are_served_where_the_library_or_the_kernel_registers_their_memory() {
    let _turn = turn();
    let settings = Settings {
        gpu_memory: true,
        ..Settings::default()
    };
    // (whether the library registers DMA-BUFs, whether the kernel takes addresses, whether GPUs are served)
    let cases = [
        (true, false, true),
        (false, true, true),
        (false, false, false),
    ];
    for (library, kernel, serves) in cases {
        let (root, sysfs) = stub::machine().unwrap();
        if kernel {
            std::fs::create_dir_all(root.path().join("module/nvidia_peermem")).unwrap();
        }
        let mut calls = stub::calls();
        calls.reg_dmabuf_mr = calls.reg_dmabuf_mr.filter(|_| library);
        let regions = Arc::<Regions>::default();
        let transport = VerbsTransport::over(&calls, &sysfs, regions, settings).unwrap();
        let can = transport.capabilities().allows_local(MemoryKind::Device);
        assert_eq!(can, serves, "library {library}, kernel {kernel}");
    }
}

#[test]
fn a_device_that_cannot_register_memory_counts_against_its_rail() {
    let _turn = turn();
    for (device, whose) in [(0, "ours"), (1, "the peer's")] {
        stub::refuse_registrations(Some(device));
        let mut pair = Pair::new();
        pair.opened(1);
        let posted = pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
        assert_eq!(posted.stop, Stop::Rejected(Cause::Fatal), "{whose}");
        // Once there is room for it again it is tried again, on a lane that opens later: a rail used to stay out for as long as the
        // engine lived.
        stub::refuse_registrations(None);
        let mut works = Stop::Rejected(Cause::Fatal);
        let mut epoch = 1;
        let until = pair.clock.now() + Duration::from_secs(30);
        while works == Stop::Rejected(Cause::Fatal) {
            assert!(pair.clock.now() < until, "{whose}");
            pair.fence(epoch);
            epoch += 1;
            pair.opened(epoch);
            works = pair.post(epoch, &[work(1, Op::Write, 0, 8, true)]).stop;
        }
        assert_eq!(works, Stop::All, "{whose}");
        assert_eq!(pair.completed(1), [(1, SUCCESS)], "{whose}");
    }
}

#[test]
fn a_fence_holds_when_the_queue_pair_is_gone() {
    let _turn = turn();
    let mut pair = Pair::new();
    pair.opened(1);
    pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
    pair.completed(1);
    stub::cut(true);
    pair.post(1, &[work(2, Op::Write, 0, 8, true)]);
    // Twice: both are answered, and none before the queue pair is destroyed.
    pair.endpoint.fence(LANE, Epoch(1), Scope::Local);
    pair.fence(1);
    pair.fence(1);
    assert!(pair.completions.is_empty());
    let refused = pair.post(1, &[work(3, Op::Write, 0, 8, true)]);
    assert_eq!(refused.stop, Stop::Rejected(Cause::Flushed));
    stub::cut(false);
    pair.opened(2);
    pair.post(2, &[work(4, Op::Write, 0, 8, true)]);
    assert_eq!(pair.completed(1), [(4, SUCCESS)]);
}

#[test]
fn a_session_that_has_its_share_of_lanes_gets_another_one_when_it_has_ended_one() {
    let _turn = turn();
    let mut pair = Pair::new();
    let shares = pair.target.common.services.shares.clone();
    let elsewhere = std::net::Ipv6Addr::LOCALHOST.into();
    let descriptors = getrlimit(Resource::Nofile).current;
    let share = descriptors.map_or(0, |of| of.min(DESCRIPTORS_MAX)) / 8;
    let limit = Rlimit {
        current: Some(8 * share),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    (0..share).for_each(|_| lock(&shares).add(SESSION, elsewhere));
    assert!(matches!(pair.open(1), LaneFact::OpenFailed(_)));
    lock(&shares).remove(SESSION, elsewhere);
    pair.opened(2);
    (1..share).for_each(|_| lock(&shares).remove(SESSION, elsewhere));
    assert!(!lock(&shares).is_empty());
    pair.fence(2);
    pair.fence_inbound(2);
    assert!(lock(&shares).is_empty());
}

#[test]
fn a_fenced_epoch_writes_no_more_and_is_not_let_in_again() {
    let _turn = turn();
    let mut pair = Pair::new();
    pair.opened(1);
    pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
    pair.completed(1);
    assert_eq!(pair.fence_inbound(1), 1);
    let epoch = Epoch(1);
    let broken = LaneFact::Broken(Cause::Reset);
    assert_eq!(
        pair.fact(),
        LaneReport {
            lane: LANE,
            epoch,
            fact: broken
        }
    );
    fill(&pair.local, 5);
    pair.post(1, &[work(2, Op::Write, 0, 8, true)]);
    assert_eq!(
        pair.completed(1),
        [(2, Outcome::Error(Cause::RetryExceeded))]
    );
    assert_eq!(byte(&pair.remote, 0), 0);
    pair.fence(1);
    assert_eq!(
        pair.fence_inbound(1),
        1,
        "asked again, and after the end here"
    );
    assert_eq!(pair.fence_inbound(3), 0);
    let refused = LaneFact::OpenFailed(Cause::Refused);
    assert_eq!([pair.open(2), pair.open(3)], [refused, refused]);
    pair.opened(4);
}

#[test]
fn a_fence_counts_works_that_arrived_whole_whatever_they_were_made_of() {
    let _turn = turn();
    let mut pair = Pair::new();
    pair.opened(1);
    pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
    assert_eq!(pair.completed(1), [(1, SUCCESS)]);
    // Several packets, an immediate, some of core's works that go as one, a read.
    pair.post(1, &[work(2, Op::Write, 0, 9000, false)]);
    assert!(pair.endpoint.make_visible(SESSION, 7));
    let joined: Vec<_> = (0..4)
        .map(|index| {
            from_to(
                3 + index,
                Op::Write,
                index * 200,
                index * 100,
                100,
                index == 3,
            )
        })
        .collect();
    let before = COUNTERS.works.load(SeqCst);
    pair.post(1, &joined);
    assert!(COUNTERS.works.load(SeqCst) - before < 4, "they go as one");
    pair.post(1, &[work(7, Op::Read, 0, 9000, false)]);
    stub::cut(true);
    pair.post(1, &[work(8, Op::Write, 0, 8, false)]);
    // What has completed is known here before the fence.
    pair.endpoint.fence(LANE, Epoch(1), Scope::Local);
    pair.poll();
    let done: Vec<_> = pair.completions.drain(..).map(|done| done.cookie).collect();
    assert_eq!(done, [6]);
    assert_eq!(pair.fact().epoch, Epoch(1));
    assert_eq!(pair.fence_inbound(1), 7, "the last one was lost");
    stub::cut(false);
    // An epoch in which nothing arrived.
    pair.opened(2);
    stub::cut(true);
    pair.post(2, &[work(1, Op::Write, 0, 8, true)]);
    assert_eq!(pair.fence_inbound(2), 0);
}

#[test]
fn a_device_that_does_not_say_which_packet_comes_next_counts_what_has_completed() {
    let _turn = turn();
    for says in [
        stub::Expects::Nothing,
        stub::Expects::First,
        stub::Expects::Zero,
    ] {
        stub::expect(says);
        let mut pair = Pair::new();
        pair.opened(1);
        pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
        assert_eq!(pair.completed(1), [(1, SUCCESS)]);
        pair.post(1, &[work(2, Op::Write, 0, 8, false)]);
        assert_eq!(pair.fence_inbound(1), 1, "{says:?}");
    }
    stub::expect(stub::Expects::Next);
}

#[test]
fn a_lane_over_a_way_that_nobody_has_is_not_opened() {
    let _turn = turn();
    let mut pair = Pair::new();
    let address = |local: [u8; 4], remote: SocketAddr| RailAddress {
        transport: TransportId(0),
        local: Some(local.into()),
        remote,
        session: SESSION,
        secret: None,
        own: Arc::default(),
    };
    let nobody = TcpListener::bind("127.0.0.2:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let cases = [
        ("no device here", address([127, 0, 0, 9], pair.port)),
        ("nobody listens", address([127, 0, 0, 1], nobody)),
    ];
    for (epoch, (name, address)) in (1..).zip(cases) {
        pair.endpoint.attach_rail(RailId(0), address);
        let refused = LaneFact::OpenFailed(Cause::Refused);
        assert_eq!(pair.open(epoch), refused, "{name}");
    }
}

#[test]
fn what_devices_say_unasked_is_acted_on() {
    use crate::stub::Happening::*;
    let _turn = turn();
    // (name, whose device, what happens, what becomes of the lane, whether another can be opened)
    let cases = [
        ("our port", 0, PortDown, Cause::DeviceDown, true),
        ("our queue pair", 0, PairFatal, Cause::Fatal, true),
        ("our completion queue", 0, QueueFatal, Cause::Fatal, true),
        ("our device", 0, DeviceFatal, Cause::Fatal, false),
        ("the peer's queue pair", 1, PairFatal, Cause::Reset, true),
        ("the peer's queue", 1, QueueFatal, Cause::Reset, true),
        ("the peer's device", 1, DeviceFatal, Cause::Reset, false),
    ];
    for (name, device, what, cause, opens) in cases {
        let mut pair = Pair::new();
        pair.opened(1);
        pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
        assert_eq!(pair.completed(1), [(1, SUCCESS)], "{name}");
        stub::unplug(device, what == DeviceFatal);
        stub::happen(device, what);
        let fact = pair.fact();
        let broken = (Epoch(1), LaneFact::Broken(cause));
        assert_eq!((fact.epoch, fact.fact), broken, "{name}");
        let mut epoch = 2;
        if !opens {
            let refused = LaneFact::OpenFailed(Cause::Refused);
            assert_eq!(pair.open(epoch), refused, "{name}");
            stub::unplug(device, false);
            pair.fence(1);
            // It is not looked for at each try.
            epoch += 1;
            while pair.open(epoch) == refused {
                epoch += 1;
            }
        } else {
            pair.fence(1);
            pair.opened(epoch);
        }
        fill(&pair.local, 9);
        pair.post(epoch, &[work(2, Op::Write, 0, 8, true)]);
        assert_eq!(pair.completed(1), [(2, SUCCESS)], "{name}");
        assert_eq!(byte(&pair.remote, 7), 9, "{name}");
        pair.fence_inbound(1);
        assert!(pair.endpoint.make_visible(SESSION, 1), "{name}");
        pair.until(|pair| pair.visible.pop() == Some(1));
        // What is registered later is known to the device that is there now.
        let other = SegmentRef(9);
        pair.endpoint.attach_local(other, pair.local.clone());
        let mut read = work(3, Op::Read, 0, 8, true);
        read.local.segment = other;
        pair.post(epoch, &[read]);
        assert_eq!(pair.completed(1), [(3, SUCCESS)], "{name}");
        // And it is heard.
        stub::happen(device, PairFatal);
        let fact = pair.fact();
        assert!(matches!(fact.fact, LaneFact::Broken(_)), "{name}: {fact:?}");
    }
}

#[test]
fn a_port_that_is_active_again_is_told_of_each_lane_over_it() {
    use crate::stub::Happening::*;
    let _turn = turn();
    let mut pair = Pair::new();
    pair.opened(1);
    // Another port of the device is nothing to it, either.
    stub::happen(0, OtherPortDown);
    pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
    assert_eq!(pair.completed(1), [(1, SUCCESS)]);
    stub::happen(0, PortDown);
    let down = LaneFact::Broken(Cause::DeviceDown);
    assert_eq!(pair.fact().fact, down);
    assert!(pair.facts.is_empty(), "{:?}", pair.facts);
    pair.fence(1);
    // The other device's is nothing to it.
    stub::happen(1, PortActive);
    for event in [PortActive, GidChange] {
        stub::happen(0, event);
        let fact = pair.fact();
        let told = (fact.lane, fact.epoch, fact.fact);
        assert_eq!(told, (LANE, Epoch(1), LaneFact::PortActive));
    }
    pair.opened(2);
    assert!(pair.facts.is_empty(), "{:?}", pair.facts);
}

#[test]
fn a_device_that_came_back_leaves_nothing_of_the_one_before() {
    let _turn = turn();
    let before = COUNTERS.live.load(SeqCst);
    let mut pair = Pair::new();
    pair.opened(1);
    pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
    assert_eq!(pair.completed(1), [(1, SUCCESS)]);
    let mut epoch = 1;
    for _ in 0..3 {
        for device in [0, 1] {
            stub::happen(device, stub::Happening::DeviceFatal);
            assert!(matches!(pair.fact().fact, LaneFact::Broken(_)));
            pair.fence(epoch);
            epoch = pair.opened_in_time(epoch + 1);
            pair.post(epoch, &[work(1, Op::Write, 0, 8, true)]);
            assert_eq!(pair.completed(1), [(1, SUCCESS)]);
        }
    }
    // Two devices, at either end.
    pair.until(|_| stub::contexts() == 4);
    pair.remote.revoke();
    pair.local.revoke();
    drop(pair);
    assert_eq!(COUNTERS.live.load(SeqCst), before);
}

#[test]
fn a_lane_for_which_an_idle_one_is_to_make_room_says_so() {
    let _turn = turn();
    let settings = Settings {
        lanes_max: 2,
        ..Settings::default()
    };
    let mut pair = Pair::with(settings, Access::RemoteReadWrite);
    let lanes = [0, 1, 2].map(|rail| LaneId::new(0, RailId(rail)));
    let by = pair.clock.now() + Duration::from_secs(20);
    for rail in 1..3 {
        pair.endpoint
            .attach_rail(RailId(rail), pair.address.clone());
    }
    let expect = |pair: &mut Pair, lane, epoch, fact| {
        let seen = pair.fact();
        assert_eq!((seen.lane, seen.epoch, seen.fact), (lane, epoch, fact));
    };
    let (first, second) = (Epoch(1), Epoch(2));
    let limits = pair.opened(1);
    let opened = LaneFact::Opened { limits };
    pair.endpoint.open(lanes[1], first, by);
    expect(&mut pair, lanes[1], first, opened);
    pair.endpoint.open(lanes[2], first, by);
    expect(&mut pair, lanes[2], first, LaneFact::Crowded);
    // Whether one of the others goes is not its business: there may be more for a while.
    expect(&mut pair, lanes[2], first, opened);
    for lane in [lanes[0], lanes[1]] {
        pair.endpoint.fence(lane, first, Scope::Local);
        let fenced = LaneFact::Fenced {
            scope: Scope::Local,
            delivered: None,
        };
        expect(&mut pair, lane, first, fenced);
    }
    pair.endpoint.open(lanes[1], second, by);
    expect(&mut pair, lanes[1], second, opened);
}

#[test]
fn queues_shorter_than_wished_for_are_said_to_be_so() {
    let _turn = turn();
    let settings = Settings {
        queue_depth: 4,
        reads_max: 200,
        ..Settings::default()
    };
    let mut pair = Pair::with(settings, Access::RemoteReadWrite);
    let limits = pair.opened(1);
    assert_eq!((limits.works_max, limits.reads_max), (4, 4));
    let works: Vec<_> = (0..4).map(|i| work(i, Op::Write, 0, 8, i == 3)).collect();
    for _ in 0..10 {
        assert_eq!(pair.post(1, &works).stop, Stop::All);
        assert_eq!(pair.completed(1), [(3, SUCCESS)]);
    }
}

/// A queue was given to 1,024 queue pairs, however short it was.
#[test]
fn a_short_queue_is_for_as_many_queue_pairs_of_peers_as_it_has_room_for() {
    let _turn = turn();
    stub::set_completions_max(Some(16));
    let mut pair = Pair::new();
    let by = pair.clock.now() + Duration::from_secs(20);
    let before = COUNTERS.queues.load(SeqCst);
    for rail in 0..9 {
        pair.endpoint
            .attach_rail(RailId(rail), pair.address.clone());
        let lane = LaneId::new(0, RailId(rail));
        pair.endpoint.open(lane, Epoch(1), by);
        assert!(matches!(pair.fact().fact, LaneFact::Opened { .. }));
    }
    // One for each lane at this end. At the other one there are four places for each of two immediates.
    assert_eq!(COUNTERS.queues.load(SeqCst) - before, 9 + 3);
}

/// Works of a lane may complete until its queue pair is gone, and it used to have no room for them any more.
#[test]
fn a_completion_queue_keeps_a_lanes_room_until_its_queue_pair_is_known_to_be_gone() {
    let _turn = turn();
    // For one lane.
    stub::set_completions_max(Some(16));
    let mut pair = Pair::new();
    pair.opened(1);
    let other = LaneId::new(0, RailId(1));
    pair.endpoint.attach_rail(RailId(1), pair.address.clone());
    let by = pair.clock.now() + Duration::from_secs(20);
    let queues = COUNTERS.queues.load(SeqCst);
    let queue_pairs = COUNTERS.queue_pairs.load(SeqCst);
    pair.endpoint.close(LANE, Epoch(1));
    pair.endpoint.open(other, Epoch(1), by);
    // The device's thread has answered both, and nobody has heard of the first.
    while COUNTERS.queue_pairs.load(SeqCst) == queue_pairs {
        thread::yield_now();
    }
    assert_eq!(COUNTERS.queues.load(SeqCst) - queues, 1, "another queue");
    let opened = pair.fact();
    assert_eq!(opened.lane, other);
    pair.poll();
    pair.opened(2);
    assert_eq!(COUNTERS.queues.load(SeqCst) - queues, 1, "now it has room");
}

#[test]
fn nothing_is_left_behind() {
    let _turn = turn();
    let before = COUNTERS.live.load(SeqCst);
    let mut pair = Pair::new();
    for epoch in 1..6 {
        pair.opened(epoch);
        pair.post(epoch, &[work(1, Op::Write, 0, 8, true)]);
        assert_eq!(pair.completed(1), [(1, SUCCESS)]);
        pair.fence(epoch);
    }
    let (answer, answered) = mpsc::channel();
    pair.target
        .retire_session(SESSION, Box::new(move || answer.send(()).unwrap()));
    answered.recv().unwrap();
    pair.remote.revoke();
    pair.regions.0.lock().unwrap().clear();
    drop(pair);
    assert_eq!(COUNTERS.live.load(SeqCst), before);
}

#[test]
fn registered_memory_stays_this_processs_when_it_forks() {
    let _turn = turn();
    let (_root, sysfs) = stub::machine().unwrap();
    let over = |calls: &_| {
        let regions = Arc::new(Regions::default());
        VerbsTransport::over(calls, &sysfs, regions, Settings::default()).unwrap()
    };
    let unable = Calls {
        is_fork_initialized: None,
        ..stub::calls()
    };
    // (name, whether the kernel forgets, the library, how often it is told so for two transports)
    let cases = [
        ("a kernel that keeps it", false, stub::calls(), 0),
        ("one that does not", true, stub::calls(), 1),
        ("a library that does not say", true, unable, 2),
    ];
    for (name, forgets, calls, times) in cases {
        stub::forget_forks(forgets);
        drop((over(&calls), over(&calls)));
        assert_eq!(stub::forget_forks(false), times, "{name}");
    }
}

#[test]
fn a_machine_without_devices_says_so() {
    let _turn = turn();
    let root = tempfile::tempdir().unwrap();
    let none = VerbsTransport::over(
        &stub::calls(),
        &Sysfs::new(root.path()),
        Arc::new(Regions::default()),
        Settings::default(),
    );
    assert_eq!(
        none.unwrap_err().to_string(),
        "this machine has no RDMA device"
    );
    let unknown = root.path().join("class/infiniband/mlx5_9/ports/1");
    std::fs::create_dir_all(&unknown).unwrap();
    std::fs::write(unknown.join("state"), "1: DOWN\n").unwrap();
    let none = VerbsTransport::over(
        &stub::calls(),
        &Sysfs::new(root.path()),
        Arc::new(Regions::default()),
        Settings::default(),
    );
    assert_eq!(
        none.unwrap_err().to_string(),
        "mlx5_9 port 1: no such device"
    );
}
