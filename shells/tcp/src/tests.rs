//! Both halves against each other, and each against somebody hostile, over real sockets.

mod keyed;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Instant as StdInstant;

use polyrail_control::codec::{self, Decoder, Frame, Greeting, Purpose, Refusal};
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef, TransportId};
use polyrail_core::work::{
    Cause, Completion, LaneFact, Op, Outcome, Place, PostBatch, Posted, Scope, Stop, Work,
};
use polyrail_transport::clock::Clock;
use polyrail_transport::fault::{FaultProxy, Faults};
use polyrail_transport::memory::{Access, Region, RegionKey, RegionTable, TrustDomain};
use polyrail_transport::{
    Endpoint, InboundLane, LaneReport, Polled, RailAddress, RemoteRegion, SessionId, Transport,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::wire::{ANSWER_BYTES, Answer, REQUEST_BYTES, Request, Status};
use crate::{LANES_PER_SESSION_MAX, TcpTransport, WORK_BYTES_MAX, WORKS_MAX};

const SESSION: SessionId = SessionId([9; 16]);
const LOCAL: SegmentRef = SegmentRef(1);
const REMOTE: SegmentRef = SegmentRef(2);
const ONE: Epoch = Epoch(1);
const TWO: Epoch = Epoch(2);
/// Far beyond what anything here takes.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// Of a peer in another trust domain.
const OTHER: SessionId = SessionId([8; 16]);
const ANOTHER: TrustDomain = TrustDomain(1);

/// Whoever looks for this one panics.
const BROKEN: RegionKey = RegionKey([0xbb; 16]);

#[derive(Default)]
struct Table(Mutex<HashMap<RegionKey, (TrustDomain, Arc<Region>)>>);

impl RegionTable for Table {
    fn find(&self, key: &RegionKey, domain: TrustDomain) -> Option<Arc<Region>> {
        assert_ne!(*key, BROKEN, "a fault in the thread that serves");
        let found = self.0.lock().unwrap().get(key).cloned();
        found
            .filter(|(of, _)| *of == domain)
            .map(|(_, region)| region)
    }
}

/// A target: transport, regions, and an acceptor in place of the control plane.
struct Target {
    transport: Arc<TcpTransport>,
    table: Arc<Table>,
    address: SocketAddr,
    /// While set, lanes are handed to the test instead of the transport.
    hold: Arc<AtomicBool>,
    held: mpsc::Receiver<InboundLane>,
    stop: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Target {
    fn start() -> Self {
        let table = Arc::new(Table::default());
        let transport = Arc::new(TcpTransport::new(Arc::clone(&table) as Arc<dyn RegionTable>));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let hold = Arc::new(AtomicBool::new(false));
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, held) = mpsc::channel();
        let acceptor = thread::spawn({
            let (transport, hold, stop) = (transport.clone(), hold.clone(), stop.clone());
            move || {
                loop {
                    let (stream, _) = listener.accept().unwrap();
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let Some(lane) = accept(stream) else {
                        continue;
                    };
                    if hold.load(Ordering::SeqCst) {
                        sender.send(lane).unwrap();
                    } else {
                        transport.admit(lane);
                    }
                }
            }
        });
        Self {
            transport,
            table,
            address,
            hold,
            held,
            stop,
            acceptor: Some(acceptor),
        }
    }

    fn register(&self, bytes: u64, access: Access) -> Arc<Region> {
        self.register_in(TrustDomain::COMMON, bytes, access)
    }

    fn register_in(&self, domain: TrustDomain, bytes: u64, access: Access) -> Arc<Region> {
        let region = Arc::new(Region::allocate(bytes, access).unwrap());
        let mut table = self.table.0.lock().unwrap();
        table.insert(region.key(), (domain, Arc::clone(&region)));
        region
    }

    fn fence(&self, lane: LaneId, epoch: Epoch) -> u32 {
        let (sender, answer) = mpsc::channel();
        self.transport.fence_inbound(
            SESSION,
            lane,
            epoch,
            Box::new(move |delivered| sender.send(delivered).unwrap()),
        );
        answer.recv_timeout(PATIENCE).unwrap()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        self.acceptor.take().unwrap().join().unwrap();
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
            let Frame::JoinLane {
                session,
                lane,
                epoch,
            } = frame
            else {
                return None;
            };
            stream.set_nonblocking(true).unwrap();
            return Some(InboundLane {
                transport: None,
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

/// An initiator: an endpoint, and everything that it has reported.
struct Initiator {
    endpoint: Box<dyn Endpoint>,
    clock: Clock,
    local: Arc<Region>,
    seen: Polled,
    /// It looks instead of sleeping.
    spinning: bool,
}

impl Initiator {
    fn new(address: SocketAddr, rails: u16, local_bytes: u64) -> Self {
        Self::with_faults(address, rails, local_bytes, Arc::default())
    }

    fn with_faults(address: SocketAddr, rails: u16, local_bytes: u64, faults: Arc<Faults>) -> Self {
        let clock = Clock::start();
        let table: Arc<dyn RegionTable> = Arc::new(Table::default());
        let endpoint = TcpTransport::new(table).endpoint(0, clock).unwrap();
        let mut endpoint: Box<dyn Endpoint> = Box::new(FaultProxy::new(endpoint, faults, clock));
        let local = Arc::new(Region::allocate(local_bytes, Access::Local).unwrap());
        endpoint.attach_local(LOCAL, Arc::clone(&local));
        for rail in 0..rails {
            let address = RailAddress {
                transport: TransportId(0),
                local: Some(Ipv4Addr::LOCALHOST.into()),
                remote: address,
                session: SESSION,
                secret: None,
                own: Arc::default(),
            };
            endpoint.attach_rail(RailId(rail), address);
        }
        Self {
            endpoint,
            clock,
            local,
            seen: Polled::default(),
            spinning: false,
        }
    }

    fn announce(&mut self, spinning: bool) {
        self.spinning = spinning;
        self.endpoint.announce(spinning);
    }

    fn name(&mut self, remote: &Region) {
        let (key, bytes) = (remote.key(), remote.bytes());
        self.endpoint
            .attach_remote(REMOTE, RemoteRegion { key, bytes });
    }

    fn poll(&mut self) {
        if !self.spinning {
            self.sleep();
        }
        self.endpoint.poll(self.clock.now(), &mut self.seen);
    }

    /// Until there is something, or for a while.
    fn sleep(&mut self) {
        self.endpoint.arm();
        let due = self.endpoint.poll_timeout();
        if due.is_none_or(|due| due > self.clock.now()) {
            let fd = self.endpoint.fd();
            let wait = Timespec {
                tv_sec: 0,
                tv_nsec: 20_000_000,
            };
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&wait)).unwrap();
        }
    }

    fn until(&mut self, what: &str, reached: impl Fn(&Polled) -> bool) {
        let start = StdInstant::now();
        while !reached(&self.seen) {
            assert!(start.elapsed() < PATIENCE, "{what}; seen: {:?}", self.seen);
            self.poll();
        }
    }

    /// Waits for a fact about a lane and takes it out of what was seen.
    fn fact(&mut self, lane: LaneId, epoch: Epoch) -> LaneFact {
        let is_it = |r: &LaneReport| r.lane == lane && r.epoch == epoch;
        self.until("a lane's fact", |seen| seen.lanes.iter().any(is_it));
        let at = self.seen.lanes.iter().position(is_it).unwrap();
        self.seen.lanes.remove(at).fact
    }

    fn begin_open(&mut self, lane: LaneId, epoch: Epoch) {
        let by = self.clock.now() + Duration::from_secs(20);
        self.endpoint.open(lane, epoch, by);
    }

    fn open(&mut self, lane: LaneId, epoch: Epoch) {
        self.begin_open(lane, epoch);
        let fact = self.fact(lane, epoch);
        assert!(matches!(fact, LaneFact::Opened { .. }), "{fact:?}");
    }

    fn post(&mut self, lane: LaneId, epoch: Epoch, works: &[Work]) -> Posted {
        let mut batch = PostBatch {
            lane,
            epoch,
            works: heapless::Vec::new(),
        };
        batch.works.extend_from_slice(works).unwrap();
        self.endpoint.post(&batch)
    }

    fn post_all(&mut self, lane: LaneId, epoch: Epoch, works: &[Work]) {
        let posted = self.post(lane, epoch, works);
        assert_eq!((posted.accepted, posted.stop), (works.len(), Stop::All));
    }

    /// Waits for so many completions and takes all there are.
    fn completions(&mut self, count: usize) -> Vec<Completion> {
        self.until("completions", |seen| seen.completions.len() >= count);
        std::mem::take(&mut self.seen.completions)
    }

    /// Posts one work, waits for its end.
    fn carry_out(&mut self, lane: LaneId, epoch: Epoch, work: Work) -> Outcome {
        self.post_all(lane, epoch, &[work]);
        let ended = self.completions(1);
        assert_eq!((ended.len(), ended[0].cookie), (1, work.cookie));
        ended[0].outcome
    }
}

fn lane(rail: u16) -> LaneId {
    LaneId::new(0, RailId(rail))
}

fn work(op: Op, cookie: u64, local: u64, remote: u64, length: u32) -> Work {
    let place = |segment, offset| Place { segment, offset };
    Work {
        cookie,
        op,
        local: place(LOCAL, local),
        remote: place(REMOTE, remote),
        length,
        signal: true,
    }
}

/// Target with a region, initiator with another of the same size that names it, one lane open.
fn pair(bytes: u64) -> (Target, Arc<Region>, Initiator) {
    let target = Target::start();
    let remote = target.register(bytes, Access::RemoteReadWrite);
    let mut initiator = Initiator::new(target.address, 4, bytes);
    initiator.name(&remote);
    initiator.open(lane(0), ONE);
    (target, remote, initiator)
}

fn fill(region: &Region, seed: u64) {
    let mut random = Random(seed);
    let mut bytes = vec![0; region.bytes() as usize];
    for eight in bytes.chunks_mut(8) {
        let word = random.next().to_le_bytes();
        eight.copy_from_slice(&word[..eight.len()]);
    }
    // SAFETY: as long as the region, which the test owns; races are what transports promise to avoid here.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), region.base().as_ptr(), bytes.len()) };
}

fn poison(region: &Region, byte: u8) {
    // SAFETY: as in `fill`.
    unsafe { ptr::write_bytes(region.base().as_ptr(), byte, region.bytes() as usize) };
}

fn content(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.bytes() as usize];
    // SAFETY: as in `fill`.
    unsafe { ptr::copy_nonoverlapping(region.base().as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
    bytes
}

fn is_all(region: &Region, byte: u8) -> bool {
    content(region) == vec![byte; region.bytes() as usize]
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

#[test]
fn bytes_arrive_where_they_should_and_nowhere_else() {
    const BYTES: u64 = 3 << 20;
    let (_target, remote, mut initiator) = pair(BYTES);
    // (local offset, remote offset, length)
    let cases = [
        (0, 0, 1),
        (7, 13, 1),
        (1, 3, 475),
        (5, 2, 476),
        (4097, 11, 477),
        (3, 4095, 65_537),
        (1, 1_000_001, 1 << 20),
        (0, 0, BYTES as u32),
        (BYTES - 1, BYTES - 1, 1),
    ];
    for (op, spinning, seed) in [
        (Op::Write, false, 1),
        (Op::Read, false, 2),
        (Op::Write, true, 3),
        (Op::Read, true, 4),
    ] {
        initiator.announce(spinning);
        for (local, far, length) in cases {
            fill(&initiator.local, seed);
            fill(&remote, seed + 10);
            let (mut here, mut there) = (content(&initiator.local), content(&remote));
            let outcome = initiator.carry_out(lane(0), ONE, work(op, 7, local, far, length));
            assert_eq!(outcome, Outcome::Success);
            let near = local as usize..local as usize + length as usize;
            let far = far as usize..far as usize + length as usize;
            match op {
                Op::Write => there[far].copy_from_slice(&here[near]),
                Op::Read => here[near].copy_from_slice(&there[far]),
            }
            assert!(content(&remote) == there, "{op:?} {length}: remote");
            assert!(content(&initiator.local) == here, "{op:?} {length}: local");
        }
    }
}

#[test]
fn many_works_on_many_lanes_match_a_model() {
    // Each lane owns a quarter of both regions. Writes go from its lower half to its lower half, reads from
    // its upper half to its upper half, so each lane's order decides what is where in the end.
    const QUARTER: u64 = 2 << 20;
    const HALF: u64 = QUARTER / 2;
    let (_target, remote, mut initiator) = pair(4 * QUARTER);
    for rail in 1..4 {
        initiator.open(lane(rail), ONE);
    }
    fill(&initiator.local, 3);
    fill(&remote, 4);
    let (mut here, mut there) = (content(&initiator.local), content(&remote));
    let mut random = Random(5);
    let mut in_flight = [0u64; 4];
    let (mut posted, mut ended) = (0u64, 0u64);
    while ended < 4_000 {
        initiator.announce(ended & 512 > 0);
        for rail in 0..4u64 {
            if posted == 4_000 || in_flight[rail as usize] == u64::from(WORKS_MAX) {
                continue;
            }
            let longest = if random.below(8) == 0 { 300_000 } else { 900 };
            let length = 1 + random.below(longest);
            let write = random.below(2) == 0;
            let half = rail * QUARTER + if write { 0 } else { HALF };
            let near = half + random.below(HALF - length);
            let far = half + random.below(HALF - length);
            let op = if write { Op::Write } else { Op::Read };
            let cookie = posted << 2 | rail;
            let item = work(op, cookie, near, far, length as u32);
            initiator.post_all(lane(rail as u16), ONE, &[item]);
            let (near, far, length) = (near as usize, far as usize, length as usize);
            if write {
                there[far..far + length].copy_from_slice(&here[near..near + length]);
            } else {
                here[near..near + length].copy_from_slice(&there[far..far + length]);
            }
            posted += 1;
            in_flight[rail as usize] += 1;
        }
        initiator.poll();
        for completion in std::mem::take(&mut initiator.seen.completions) {
            assert_eq!(completion.outcome, Outcome::Success);
            in_flight[(completion.cookie & 3) as usize] -= 1;
            ended += 1;
        }
    }
    assert!(initiator.seen.lanes.is_empty(), "{:?}", initiator.seen);
    assert!(content(&remote) == there, "writes landed");
    assert!(content(&initiator.local) == here, "reads landed");
}

#[test]
fn a_batch_larger_than_the_sockets_goes_in_parts() {
    const EACH: u64 = 1_100_003;
    const BYTES: u64 = 12 * EACH;
    let (_target, remote, mut initiator) = pair(BYTES);
    for op in [Op::Write, Op::Read] {
        fill(&initiator.local, 1);
        fill(&remote, 2);
        let bytes = match op {
            Op::Write => content(&initiator.local),
            Op::Read => content(&remote),
        };
        let item = |at| work(op, at, at * EACH, at * EACH, EACH as u32);
        let works: Vec<Work> = (0..12).map(item).collect();
        initiator.post_all(lane(0), ONE, &works);
        let ended = initiator.completions(12);
        assert!((0..12).eq(ended.iter().map(|c| c.cookie)), "{op:?}");
        assert!(content(&remote) == bytes, "{op:?}");
        assert!(content(&initiator.local) == bytes, "{op:?}");
    }
}

#[test]
fn faults_hold_bytes_up_and_lose_none() {
    const BYTES: u64 = 1 << 20;
    let target = Target::start();
    let remote = target.register(BYTES, Access::RemoteReadWrite);
    let faults = Arc::new(Faults::new());
    let mut initiator = Initiator::with_faults(target.address, 1, BYTES, Arc::clone(&faults));
    initiator.name(&remote);
    initiator.open(lane(0), ONE);
    fill(&initiator.local, 1);
    let item = |at| work(Op::Write, at, at << 15, at << 15, 1 << 15);
    let works: Vec<Work> = (0..32).map(item).collect();
    let rail = RailId(0);
    // (name, megabytes per second, delay in milliseconds, least milliseconds)
    let cases = [
        ("none", None, 0, 0),
        ("slow", Some(10), 0, 104),
        ("late", None, 60, 60),
    ];
    for (name, rate, delay, least) in cases {
        poison(&remote, 0);
        faults.slow(rail, rate.map(|rate| rate * 1_000_000));
        faults.delay(rail, Duration::from_millis(delay));
        let start = StdInstant::now();
        initiator.post_all(lane(0), ONE, &works);
        assert_eq!(initiator.completions(32).len(), 32, "{name}");
        let took = start.elapsed();
        assert!(took.as_millis() >= least, "{name}: {took:?}");
        assert!(content(&remote) == content(&initiator.local), "{name}");
    }
    faults.delay(rail, Duration::ZERO);
    poison(&remote, 0);
    faults.cut(rail);
    initiator.post_all(lane(0), ONE, &works);
    initiator.poll();
    assert!(is_all(&remote, 0));
    initiator.endpoint.fence(lane(0), ONE, Scope::Local);
    let fact = initiator.fact(lane(0), ONE);
    assert!(matches!(fact, LaneFact::Fenced { .. }), "{fact:?}");
    initiator.begin_open(lane(0), TWO);
    initiator.poll();
    assert_eq!(initiator.seen.lanes, []);
    faults.restore(rail);
    let fact = initiator.fact(lane(0), TWO);
    assert!(matches!(fact, LaneFact::Opened { .. }), "{fact:?}");
    assert!(is_all(&remote, 0), "what was fenced does not go on");
    initiator.post_all(lane(0), TWO, &works);
    initiator.completions(32);
    assert!(content(&remote) == content(&initiator.local));
}

#[test]
fn what_the_owner_forbids_fails_with_the_cause_and_touches_nothing() {
    const BYTES: u64 = 1 << 20;
    let target = Target::start();
    let open = target.register(BYTES, Access::RemoteReadWrite);
    let read_only = target.register(BYTES, Access::RemoteRead);
    let hidden = target.register(BYTES, Access::Local);
    let revoked = target.register(BYTES, Access::RemoteReadWrite);
    revoked.revoke();
    let all = [&open, &read_only, &hidden, &revoked];
    let unknown = RegionKey([3; 16]);
    // (name, operation, key, remote offset, length)
    let cases = [
        ("past the end", Op::Write, open.key(), BYTES - 10, 11),
        ("read past the end", Op::Read, open.key(), BYTES - 10, 11),
        ("far past the end", Op::Write, open.key(), u64::MAX - 11, 11),
        (
            "large, past the end",
            Op::Write,
            open.key(),
            1,
            BYTES as u32,
        ),
        ("unknown key", Op::Write, unknown, 0, 600_000),
        ("unknown key, read", Op::Read, unknown, 0, 600_000),
        ("write to read-only", Op::Write, read_only.key(), 0, 1),
        ("write to hidden", Op::Write, hidden.key(), 0, 1),
        ("read of hidden", Op::Read, hidden.key(), 0, 1),
        ("write to revoked", Op::Write, revoked.key(), 0, 1),
        (
            "large write to revoked",
            Op::Write,
            revoked.key(),
            0,
            900_000,
        ),
        ("read of revoked", Op::Read, revoked.key(), 0, 500),
    ];
    let mut initiator = Initiator::new(target.address, 1, BYTES);
    for (turn, (name, op, key, offset, length)) in cases.into_iter().enumerate() {
        let epoch = Epoch(turn as u32 + 1);
        for region in all {
            poison(region, 0xaa);
        }
        poison(&initiator.local, 0x55);
        initiator.open(lane(0), epoch);
        // The initiator believes that the segment is endless.
        let endless = RemoteRegion {
            key,
            bytes: u64::MAX,
        };
        initiator.endpoint.attach_remote(REMOTE, endless);
        let bad = work(op, 1, 0, offset, length);
        let neighbour = work(Op::Write, 2, 0, 0, 100);
        initiator.post_all(lane(0), epoch, &[bad, neighbour]);
        let ended = initiator.completions(1);
        let outcome = Outcome::Error(Cause::RemoteAccess);
        assert_eq!(ended[0].outcome, outcome, "{name}");
        assert_eq!(ended.len(), 1, "{name}: the neighbour has no answer");
        let refused = initiator.post(lane(0), epoch, &[neighbour]);
        assert_eq!(refused.stop, Stop::Rejected(Cause::Flushed), "{name}");
        assert_eq!(target.fence(lane(0), epoch), 0, "{name}");
        for region in all {
            assert!(is_all(region, 0xaa), "{name}");
        }
        assert!(is_all(&initiator.local, 0x55), "{name}");
        assert_eq!(initiator.seen.lanes, [], "{name}");
    }
    // What it may do still works.
    initiator.open(lane(0), Epoch(99));
    initiator.name(&read_only);
    let outcome = initiator.carry_out(lane(0), Epoch(99), work(Op::Read, 3, 0, 0, 100));
    assert_eq!(outcome, Outcome::Success);
}

#[test]
fn a_key_opens_nothing_to_peers_of_another_trust_domain() {
    const BYTES: u64 = 4096;
    let target = Target::start();
    let regions = [TrustDomain::COMMON, ANOTHER]
        .map(|domain| target.register_in(domain, BYTES, Access::RemoteReadWrite));
    for (own, session) in [SESSION, OTHER].into_iter().enumerate() {
        let mut initiator = Initiator::new(target.address, 1, BYTES);
        let rail = RailAddress {
            transport: TransportId(0),
            local: None,
            remote: target.address,
            session,
            secret: None,
            own: Arc::default(),
        };
        initiator.endpoint.attach_rail(RailId(0), rail);
        fill(&initiator.local, 1 + own as u64);
        for (turn, region) in regions.iter().enumerate() {
            for (attempt, op) in [Op::Write, Op::Read].into_iter().enumerate() {
                let epoch = Epoch((1 + 2 * turn + attempt) as u32);
                initiator.open(lane(0), epoch);
                initiator.name(region);
                let outcome = initiator.carry_out(lane(0), epoch, work(op, 1, 0, 0, 100));
                let expected = match turn == own {
                    true => Outcome::Success,
                    false => Outcome::Error(Cause::RemoteAccess),
                };
                assert_eq!(outcome, expected, "{session:?} {op:?} {turn}");
            }
        }
        let same = content(&regions[own])[..100] == content(&initiator.local)[..100];
        assert!(same, "only what is its own was written and read");
    }
    assert_ne!(content(&regions[0])[..100], content(&regions[1])[..100]);
}

#[test]
fn works_that_cannot_be_are_not_taken() {
    const BYTES: u64 = 128 << 20;
    let (_target, _remote, mut initiator) = pair(BYTES);
    let elsewhere = |mut item: Work, local: SegmentRef, remote: SegmentRef| {
        (item.local.segment, item.remote.segment) = (local, remote);
        item
    };
    let good = work(Op::Write, 1, 0, 0, 100);
    let nowhere = SegmentRef(77);
    let too_long = WORK_BYTES_MAX + 1;
    // (name, lane, epoch, work, cause)
    let cases = [
        ("old epoch", 0, Epoch(0), good, Cause::Flushed),
        ("new epoch", 0, TWO, good, Cause::Flushed),
        ("unopened lane", 1, ONE, good, Cause::Flushed),
        (
            "nothing",
            0,
            ONE,
            work(Op::Write, 1, 0, 0, 0),
            Cause::LocalLength,
        ),
        (
            "too long",
            0,
            ONE,
            work(Op::Read, 1, 0, 0, too_long),
            Cause::LocalLength,
        ),
        (
            "unknown source",
            0,
            ONE,
            elsewhere(good, nowhere, REMOTE),
            Cause::LocalProtection,
        ),
        (
            "source past the end",
            0,
            ONE,
            work(Op::Write, 1, BYTES, 0, 1),
            Cause::LocalProtection,
        ),
        (
            "unknown destination",
            0,
            ONE,
            elsewhere(good, LOCAL, nowhere),
            Cause::RemoteAccess,
        ),
        (
            "destination past the end",
            0,
            ONE,
            work(Op::Write, 1, 0, u64::MAX, 2),
            Cause::RemoteAccess,
        ),
    ];
    for (name, rail, epoch, item, cause) in cases {
        let posted = initiator.post(lane(rail), epoch, &[item, good]);
        assert_eq!(posted.accepted, 0, "{name}");
        assert_eq!(posted.stop, Stop::Rejected(cause), "{name}");
    }
    let bad = work(Op::Write, 1, 0, 0, 0);
    let posted = initiator.post(lane(0), ONE, &[good, good, bad, good]);
    assert_eq!(posted.accepted, 2, "those before a bad one are taken");
    initiator.completions(2);
}

#[test]
fn a_full_lane_says_so_and_takes_works_again_after_a_completion() {
    let (_target, _remote, mut initiator) = pair(1 << 20);
    let batch = [work(Op::Read, 1, 0, 0, 1000); 32];
    for _ in 0..WORKS_MAX / 32 - 1 {
        initiator.post_all(lane(0), ONE, &batch);
    }
    initiator.post_all(lane(0), ONE, &batch[..30]);
    let posted = initiator.post(lane(0), ONE, &batch[..5]);
    assert_eq!((posted.accepted, posted.stop), (2, Stop::Full));
    let posted = initiator.post(lane(0), ONE, &batch[..5]);
    assert_eq!((posted.accepted, posted.stop), (0, Stop::Full));
    assert_eq!(initiator.completions(256).len(), 256);
    initiator.post_all(lane(0), ONE, &batch);
    initiator.completions(32);
}

#[test]
fn after_the_answer_to_a_fence_no_byte_changes() {
    const BYTES: u64 = 32 << 20;
    let (target, remote, mut initiator) = pair(BYTES);
    poison(&initiator.local, 1);
    for round in 0..20u32 {
        let epoch = Epoch(round + 1);
        if round > 0 {
            initiator.open(lane(0), epoch);
        }
        poison(&remote, 0);
        initiator.announce(round % 2 == 1);
        // The first call sends a part; polling sends more, up to somewhere in the middle.
        let item = work(Op::Write, 1, 0, 0, BYTES as u32);
        initiator.post_all(lane(0), epoch, &[item]);
        for _ in 0..round {
            initiator.poll();
        }
        assert!(initiator.seen.completions.is_empty(), "too fast a machine");
        assert_eq!(target.fence(lane(0), epoch), 0);
        poison(&remote, 2);
        // The initiator, which knows nothing of the fence, goes on and finds the lane broken.
        let fact = initiator.fact(lane(0), epoch);
        assert_eq!(fact, LaneFact::Broken(Cause::Reset));
        assert!(is_all(&remote, 2), "round {round}");
    }
}

#[test]
fn an_initiator_that_spins_holds_up_nobody_else() {
    const BYTES: u64 = 1 << 20;
    let (target, remote, mut busy) = pair(BYTES);
    let mut other = Initiator::new(target.address, 4, BYTES);
    other.name(&remote);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let spinner = scope.spawn(|| {
            busy.announce(true);
            let mut rounds = 0;
            while !over.load(Ordering::Relaxed) {
                let outcome = busy.carry_out(lane(0), ONE, work(Op::Write, 1, 0, 0, 4096));
                assert_eq!(outcome, Outcome::Success);
                rounds += 1;
            }
            rounds
        });
        for round in 1..=20 {
            let epoch = Epoch(round);
            other.open(lane(1), epoch);
            let outcome = other.carry_out(lane(1), epoch, work(Op::Read, 2, 0, 0, 65_536));
            assert_eq!(outcome, Outcome::Success);
            assert_eq!(target.fence(lane(1), epoch), 1);
            assert_eq!(other.fact(lane(1), epoch), LaneFact::Broken(Cause::Reset));
        }
        over.store(true, Ordering::Relaxed);
        assert!(spinner.join().unwrap() > 0);
    });
}

#[test]
fn what_comes_on_a_lane_that_was_looked_at_all_the_time_is_heard_by_whoever_sleeps() {
    let (target, _remote, mut initiator) = pair(1 << 20);
    let item = || work(Op::Write, 1, 0, 0, 4096);
    let look_often = |initiator: &mut Initiator| {
        initiator.announce(true);
        for _ in 0..100 {
            let outcome = initiator.carry_out(lane(0), ONE, item());
            assert_eq!(outcome, Outcome::Success);
        }
    };
    let is_told = |initiator: &Initiator, what: &str| {
        let fd = initiator.endpoint.fd();
        let wait = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&wait)).unwrap();
        assert_eq!(ready, 1, "{what}");
    };
    for _ in 0..10 {
        look_often(&mut initiator);
        initiator.post_all(lane(0), ONE, &[item()]);
        initiator.endpoint.arm();
        is_told(&initiator, "the end of a work");
        assert_eq!(initiator.completions(1).len(), 1);
    }
    // Nobody sleeps, but nobody looks for long either.
    look_often(&mut initiator);
    let due = initiator.endpoint.poll_timeout();
    initiator
        .endpoint
        .poll(due.expect("it wants to be looked at"), &mut initiator.seen);
    assert_eq!(initiator.endpoint.poll_timeout(), None);
    assert_eq!(target.fence(lane(0), ONE), 10 * 101 + 100);
    is_told(&initiator, "the end of its lane");
    assert_eq!(initiator.fact(lane(0), ONE), LaneFact::Broken(Cause::Reset));
}

#[test]
fn a_local_fence_ends_reads_into_memory() {
    const BYTES: u64 = 32 << 20;
    let (target, remote, mut initiator) = pair(BYTES);
    poison(&remote, 1);
    let item = work(Op::Read, 1, 0, 0, BYTES as u32);
    initiator.post_all(lane(0), ONE, &[item]);
    let first = Arc::clone(&initiator.local);
    let start = StdInstant::now();
    while content(&first)[0] == 0 {
        assert!(start.elapsed() < PATIENCE);
        initiator.poll();
    }
    assert!(initiator.seen.completions.is_empty(), "too fast a machine");
    initiator.endpoint.fence(lane(0), ONE, Scope::Local);
    poison(&initiator.local, 2);
    let fenced = LaneFact::Fenced {
        scope: Scope::Local,
        delivered: None,
    };
    assert_eq!(initiator.fact(lane(0), ONE), fenced);
    // Again, of an epoch before, and of one that never was: answered all the same.
    for epoch in [ONE, Epoch(0), TWO] {
        initiator.endpoint.fence(lane(0), epoch, Scope::Local);
        assert_eq!(initiator.fact(lane(0), epoch), fenced);
    }
    initiator.endpoint.fence(lane(0), ONE, Scope::Remote);
    let scope = Scope::Remote;
    let fact = initiator.fact(lane(0), ONE);
    assert_eq!(fact, LaneFact::Unfenceable { scope });
    let posted = initiator.post(lane(0), ONE, &[item]);
    assert_eq!(posted.stop, Stop::Rejected(Cause::Flushed));
    assert_eq!(target.fence(lane(0), ONE), 1, "it had come");
    assert!(is_all(&initiator.local, 2));
    assert!(initiator.seen.completions.is_empty());
    // The lane lives on in a new epoch.
    initiator.open(lane(0), TWO);
    let outcome = initiator.carry_out(lane(0), TWO, work(Op::Read, 2, 0, 0, 10));
    assert_eq!(outcome, Outcome::Success);
}

#[test]
fn a_fence_counts_what_was_delivered_whole() {
    const BYTES: u64 = 32 << 20;
    let (target, remote, mut initiator) = pair(BYTES);
    let small = work(Op::Write, 1, 0, 0, 1000);
    initiator.post_all(lane(0), ONE, &[small; 5]);
    initiator.post_all(lane(0), ONE, &[work(Op::Read, 1, 0, 0, 1000); 2]);
    initiator.completions(7);
    // Of this one only a part is sent, because nobody polls.
    initiator.post_all(lane(0), ONE, &[work(Op::Write, 1, 0, 0, BYTES as u32)]);
    assert_eq!(target.fence(lane(0), ONE), 7);
    assert_eq!(target.fence(lane(0), ONE), 7, "asked again");
    initiator.fact(lane(0), ONE);
    // A read that its initiator does not take holds up neither the works behind it nor the count.
    initiator.open(lane(0), TWO);
    initiator.post_all(lane(0), TWO, &[small; 3]);
    initiator.completions(3);
    let stuck = work(Op::Read, 1, 0, 0, BYTES as u32);
    poison(&remote, 0);
    poison(&initiator.local, 1);
    let there = |place| work(Op::Write, 1, 0, place, 1000);
    initiator.post_all(lane(0), TWO, &[stuck, there(0), there(1000)]);
    let start = StdInstant::now();
    while !content(&remote)[..2000].iter().all(|byte| *byte == 1) {
        assert!(start.elapsed() < PATIENCE);
        thread::yield_now();
    }
    assert_eq!(target.fence(lane(0), ONE), 7, "asked late");
    assert_eq!(target.fence(lane(0), TWO), 6);
    assert_eq!(target.fence(lane(0), ONE), 7, "asked later");
    assert_eq!(target.fence(lane(0), Epoch(9)), 0, "never admitted");
    assert_eq!(target.fence(lane(3), ONE), 0, "never joined");
}

#[test]
fn lanes_of_several_rails_and_workers_are_counted_each_for_itself() {
    let target = Target::start();
    let remote = target.register(1 << 20, Access::RemoteReadWrite);
    let lanes = [(0, 0), (0, 1), (1, 0), (1, 1)];
    let lanes = lanes.map(|(worker, rail)| LaneId::new(worker, RailId(rail)));
    let mut initiators = [(); 2].map(|()| Initiator::new(target.address, 2, 1 << 20));
    for (index, lane) in lanes.into_iter().enumerate() {
        let initiator = &mut initiators[usize::from(lane.worker())];
        initiator.name(&remote);
        initiator.open(lane, ONE);
        let works = vec![work(Op::Write, 1, 0, 0, 1000); index + 1];
        initiator.post_all(lane, ONE, &works);
        initiator.completions(works.len());
    }
    for (index, lane) in lanes.into_iter().enumerate() {
        assert_eq!(target.fence(lane, ONE), index as u32 + 1, "{lane:?}");
    }
}

#[test]
fn a_lane_that_ended_by_itself_keeps_its_count() {
    let (target, _remote, mut initiator) = pair(1 << 20);
    initiator.post_all(lane(0), ONE, &[work(Op::Write, 1, 0, 0, 1000); 6]);
    initiator.completions(6);
    initiator.endpoint.close(lane(0), ONE);
    assert_eq!(target.fence(lane(0), ONE), 6);
}

#[test]
fn a_fenced_epoch_is_not_admitted_however_early_it_connected() {
    let (target, remote, mut initiator) = pair(1 << 20);
    initiator.open(lane(0), Epoch(3));
    let refused = LaneFact::OpenFailed(Cause::Refused);
    initiator.begin_open(lane(0), TWO);
    assert_eq!(initiator.fact(lane(0), TWO), refused, "older than current");
    // Connected and joined before the fence, handed over after it.
    target.hold.store(true, Ordering::SeqCst);
    initiator.begin_open(lane(0), Epoch(4));
    let start = StdInstant::now();
    let early = loop {
        assert!(start.elapsed() < PATIENCE);
        initiator.poll();
        if let Ok(early) = target.held.try_recv() {
            break early;
        }
    };
    assert_eq!(target.fence(lane(0), Epoch(4)), 0);
    target.transport.admit(early);
    assert_eq!(initiator.fact(lane(0), Epoch(4)), refused);
    target.hold.store(false, Ordering::SeqCst);
    initiator.begin_open(lane(0), Epoch(4));
    assert_eq!(initiator.fact(lane(0), Epoch(4)), refused, "and anew");
    initiator.open(lane(0), Epoch(5));
    initiator.name(&remote);
    let outcome = initiator.carry_out(lane(0), Epoch(5), work(Op::Write, 1, 0, 0, 9));
    assert_eq!(outcome, Outcome::Success);
    // The epoch in which something was delivered does not begin twice; its lane is not disturbed.
    let mut other = Initiator::new(target.address, 1, 1);
    other.begin_open(lane(0), Epoch(5));
    assert_eq!(other.fact(lane(0), Epoch(5)), refused);
    let outcome = initiator.carry_out(lane(0), Epoch(5), work(Op::Write, 1, 0, 0, 9));
    assert_eq!(outcome, Outcome::Success);
}

#[test]
fn a_newer_epoch_ends_the_older_connection() {
    let (target, _remote, mut initiator) = pair(1 << 20);
    let mut other = Initiator::new(target.address, 1, 1);
    other.open(lane(0), TWO);
    let fact = initiator.fact(lane(0), ONE);
    assert_eq!(fact, LaneFact::Broken(Cause::Reset));
}

#[test]
fn a_retired_session_is_over_on_all_lanes() {
    let (target, _remote, mut initiator) = pair(1 << 20);
    initiator.open(lane(1), ONE);
    let (sender, answer) = mpsc::channel();
    let retired = Box::new(move || sender.send(()).unwrap());
    target.transport.retire_session(SESSION, retired);
    answer.recv_timeout(PATIENCE).unwrap();
    for rail in 0..2 {
        let fact = initiator.fact(lane(rail), ONE);
        assert_eq!(fact, LaneFact::Broken(Cause::Reset));
    }
}

#[test]
fn a_service_thread_that_panics_ends_its_lanes_and_serves_on() {
    let (target, remote, mut initiator) = pair(1 << 20);
    initiator.open(lane(1), ONE);
    let (key, bytes) = (BROKEN, 1 << 20);
    let broken = RemoteRegion { key, bytes };
    initiator.endpoint.attach_remote(REMOTE, broken);
    initiator.post_all(lane(0), ONE, &[work(Op::Write, 1, 0, 0, 9)]);
    for number in 0..2 {
        let fact = initiator.fact(lane(number), ONE);
        assert_eq!(fact, LaneFact::Broken(Cause::Reset));
    }
    // What was promised before still holds: this epoch had something delivered, or was fenced.
    assert_eq!(target.fence(lane(1), ONE), 0);
    initiator.begin_open(lane(1), ONE);
    let fact = initiator.fact(lane(1), ONE);
    assert_eq!(fact, LaneFact::OpenFailed(Cause::Refused));
    initiator.name(&remote);
    initiator.open(lane(0), TWO);
    let outcome = initiator.carry_out(lane(0), TWO, work(Op::Write, 1, 0, 0, 9));
    assert_eq!(outcome, Outcome::Success);
}

#[test]
fn fences_of_lanes_that_never_were_leave_room_for_those_that_come() {
    let (target, _remote, mut initiator) = pair(1 << 20);
    let (sender, answer) = mpsc::channel();
    for number in 0..=LANES_PER_SESSION_MAX as u32 {
        let sender = sender.clone();
        let answer = Box::new(move |delivered| sender.send(delivered).unwrap());
        let lane = LaneId(0x10_0000 + number);
        target.transport.fence_inbound(SESSION, lane, ONE, answer);
    }
    for _ in 0..=LANES_PER_SESSION_MAX {
        assert_eq!(answer.recv_timeout(PATIENCE).unwrap(), 0);
    }
    // They hold, of each and of what is not remembered one by one.
    for number in [0x10_0000, 0x10_0003] {
        initiator.begin_open(LaneId(number), ONE);
        let fact = initiator.fact(LaneId(number), ONE);
        assert_eq!(fact, LaneFact::OpenFailed(Cause::Refused));
    }
    initiator.open(lane(2), TWO);
    let outcome = initiator.carry_out(lane(0), ONE, work(Op::Write, 1, 0, 0, 9));
    assert_eq!(outcome, Outcome::Success);
}

#[test]
fn memory_withdrawn_here_breaks_the_lane() {
    const BYTES: u64 = 32 << 20;
    for (op, detach) in [
        (Op::Write, false),
        (Op::Write, true),
        (Op::Read, false),
        (Op::Read, true),
    ] {
        let (_target, _remote, mut initiator) = pair(BYTES);
        let item = work(op, 1, 0, 0, BYTES as u32);
        initiator.post_all(lane(0), ONE, &[item]);
        if detach {
            initiator.endpoint.detach_local(LOCAL);
            assert_eq!(Arc::strong_count(&initiator.local), 1);
        } else {
            initiator.local.revoke();
        }
        poison(&initiator.local, 2);
        let fact = initiator.fact(lane(0), ONE);
        assert_eq!(fact, LaneFact::Broken(Cause::LocalProtection), "{op:?}");
        assert!(is_all(&initiator.local, 2), "{op:?}");
    }
}

#[test]
fn memory_withdrawn_there_ends_the_work_in_the_middle() {
    const BYTES: u64 = 32 << 20;
    let (target, remote, mut initiator) = pair(BYTES);
    let item = work(Op::Write, 1, 0, 0, BYTES as u32);
    poison(&initiator.local, 1);
    initiator.post_all(lane(0), ONE, &[item]);
    let start = StdInstant::now();
    while content(&remote)[0] == 0 {
        assert!(start.elapsed() < PATIENCE);
    }
    remote.revoke();
    poison(&remote, 2);
    let ended = initiator.completions(1);
    assert_eq!(ended[0].outcome, Outcome::Error(Cause::RemoteAccess));
    assert!(is_all(&remote, 2));
    // A read of which a part has been sent cannot be answered any more.
    let remote = target.register(BYTES, Access::RemoteReadWrite);
    initiator.name(&remote);
    initiator.open(lane(0), TWO);
    let item = work(Op::Read, 1, 0, 0, BYTES as u32);
    poison(&remote, 3);
    initiator.post_all(lane(0), TWO, &[item]);
    let start = StdInstant::now();
    while content(&initiator.local)[0] != 3 {
        assert!(start.elapsed() < PATIENCE);
        initiator.poll();
    }
    remote.revoke();
    let fact = initiator.fact(lane(0), TWO);
    assert_eq!(fact, LaneFact::Broken(Cause::Reset));
}

/// Accepts one lane and greets it as a target does, with a limit of the test's choosing.
fn play_target(listener: &TcpListener, frame: &Frame) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    let mut stream = accept(stream).unwrap().stream;
    stream.set_nonblocking(false).unwrap();
    let mut bytes = Greeting::ours(Purpose::Lane).encode().to_vec();
    codec::encode(frame, &mut bytes).unwrap();
    stream.write_all(&bytes).unwrap();
    stream
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

const READY: Frame = Frame::LaneReady {
    works_max: 8,
    work_bytes_max: 4096,
};

#[test]
fn a_target_that_answers_nonsense_breaks_the_lane() {
    let answer = |op, status, length, sequence| Answer {
        op,
        status,
        length,
        sequence,
    };
    let good = answer(Op::Read, Status::Done, 1000, 0);
    let mut noise = vec![0; 4096];
    let mut random = Random(1);
    noise.fill_with(|| random.next() as u8);
    // (name, bytes)
    let cases = [
        ("noise", noise),
        (
            "wrong sequence",
            Answer {
                sequence: 1,
                ..good
            }
            .encode()
            .to_vec(),
        ),
        (
            "other operation",
            Answer {
                op: Op::Write,
                ..good
            }
            .encode()
            .to_vec(),
        ),
        (
            "too short",
            Answer {
                length: 999,
                ..good
            }
            .encode()
            .to_vec(),
        ),
        (
            "too long",
            Answer {
                length: 1001,
                ..good
            }
            .encode()
            .to_vec(),
        ),
        ("too much payload", {
            let mut bytes = good.encode().to_vec();
            bytes.extend([0xee; 2000]);
            bytes
        }),
        ("answers nobody asked for", {
            let mut bytes = good.encode().to_vec();
            bytes.extend([0xee; 1000]);
            let second = Answer {
                sequence: 1,
                ..good
            };
            bytes.extend(second.encode());
            bytes
        }),
    ];
    for (name, bytes) in cases {
        let (listener, address) = listener();
        let hostile = thread::spawn(move || {
            let mut stream = play_target(&listener, &READY);
            stream.read_exact(&mut [0; REQUEST_BYTES]).unwrap();
            let _ = stream.write_all(&bytes);
            // Until the other side hangs up.
            let _ = stream.read(&mut [0; 64]);
        });
        let mut initiator = Initiator::new(address, 1, 4096);
        poison(&initiator.local, 0x11);
        let remote = Region::allocate(4096, Access::RemoteRead).unwrap();
        initiator.name(&remote);
        initiator.open(lane(0), ONE);
        initiator.post_all(lane(0), ONE, &[work(Op::Read, 1, 1000, 0, 1000)]);
        let fact = initiator.fact(lane(0), ONE);
        assert_eq!(fact, LaneFact::Broken(Cause::BadResponse), "{name}");
        let bytes = content(&initiator.local);
        let outside = bytes[..1000].iter().chain(&bytes[2000..]);
        assert!(outside.copied().all(|byte| byte == 0x11), "{name}");
        hostile.join().unwrap();
    }
}

#[test]
fn a_target_that_answers_too_early_breaks_the_lane() {
    const BYTES: u32 = 32 << 20;
    let (listener, address) = listener();
    let ready = Frame::LaneReady {
        works_max: 8,
        work_bytes_max: BYTES,
    };
    let hostile = thread::spawn(move || {
        let mut stream = play_target(&listener, &ready);
        stream.read_exact(&mut [0; REQUEST_BYTES]).unwrap();
        let answer = Answer {
            op: Op::Write,
            status: Status::Done,
            length: BYTES,
            sequence: 0,
        };
        stream.write_all(&answer.encode()).unwrap();
        let _ = stream.read(&mut [0; 1]);
        stream
    });
    let mut initiator = Initiator::new(address, 1, BYTES.into());
    let remote = Region::allocate(BYTES.into(), Access::RemoteReadWrite).unwrap();
    initiator.name(&remote);
    initiator.open(lane(0), ONE);
    initiator.post_all(lane(0), ONE, &[work(Op::Write, 1, 0, 0, BYTES)]);
    let fact = initiator.fact(lane(0), ONE);
    assert_eq!(fact, LaneFact::Broken(Cause::BadResponse));
    hostile.join().unwrap();
}

#[test]
fn a_target_that_greets_wrongly_is_not_opened() {
    let no_works = Frame::LaneReady {
        works_max: 0,
        work_bytes_max: 1,
    };
    let refused = Frame::Refused {
        reason: Refusal::SessionUnknown,
        text: "who are you?".into(),
    };
    for frame in [no_works, refused, Frame::Heartbeat] {
        let (listener, address) = listener();
        let hostile = thread::spawn(move || play_target(&listener, &frame));
        let mut initiator = Initiator::new(address, 1, 1);
        initiator.begin_open(lane(0), ONE);
        let fact = initiator.fact(lane(0), ONE);
        assert_eq!(fact, LaneFact::OpenFailed(Cause::Refused));
        hostile.join().unwrap();
    }
    // Nobody listens.
    let (listener, address) = listener();
    drop(listener);
    let mut initiator = Initiator::new(address, 1, 1);
    initiator.begin_open(lane(0), ONE);
    let fact = initiator.fact(lane(0), ONE);
    assert_eq!(fact, LaneFact::OpenFailed(Cause::Refused));
}

#[test]
fn nobody_answering_ends_in_time() {
    let (_listener, address) = listener();
    let mut initiator = Initiator::new(address, 1, 1);
    let by = initiator.clock.now() + Duration::from_millis(30);
    initiator.endpoint.open(lane(0), ONE, by);
    assert_eq!(initiator.endpoint.poll_timeout(), Some(by));
    initiator.endpoint.poll(Instant::ZERO, &mut initiator.seen);
    assert_eq!(initiator.seen.lanes, []);
    let fact = initiator.fact(lane(0), ONE);
    assert_eq!(fact, LaneFact::OpenFailed(Cause::Refused));
    assert!(initiator.clock.now() >= by);
    assert_eq!(initiator.endpoint.poll_timeout(), None);
}

/// Joins as an initiator does, and leaves the rest to the test.
fn play_initiator(target: &Target, lane: LaneId) -> TcpStream {
    let mut stream = TcpStream::connect(target.address).unwrap();
    let mut bytes = Greeting::ours(Purpose::Lane).encode().to_vec();
    let join = Frame::JoinLane {
        session: SESSION.0,
        lane: lane.0,
        epoch: 1,
    };
    codec::encode(&join, &mut bytes).unwrap();
    stream.write_all(&bytes).unwrap();
    let mut decoder = Decoder::default();
    let mut byte = [0];
    while decoder.pending_bytes() == 0 || decoder.next_greeting() == Ok(None) {
        stream.read_exact(&mut byte).unwrap();
        decoder.push(&byte);
    }
    let ready = loop {
        match decoder.next_frame().unwrap() {
            Some(frame) => break frame,
            None => stream.read_exact(&mut byte).unwrap(),
        }
        decoder.push(&byte);
    };
    assert!(matches!(ready, Frame::LaneReady { .. }), "{ready:?}");
    stream
}

#[test]
fn a_hostile_initiator_ends_its_own_lane_only() {
    let (target, remote, mut initiator) = pair(1 << 20);
    let good = Request {
        op: Op::Write,
        spinning: false,
        length: 1000,
        sequence: 0,
        key: remote.key(),
        offset: 0,
    };
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.encode().to_vec();
        bytes[at] = byte;
        bytes
    };
    // (name, bytes, whether the target hangs up by itself)
    let cases = [
        ("unknown kind", changed(0, 9), true),
        ("flags", changed(1, 9), true),
        ("huge length", changed(7, 0xff), true),
        (
            "no length",
            Request { length: 0, ..good }.encode().to_vec(),
            true,
        ),
        ("wrong sequence", changed(8, 1), true),
        ("noise", vec![0x5a; 100_000], true),
        ("half a header", good.encode()[..20].to_vec(), false),
        (
            "half a payload",
            [&good.encode()[..], &[0; 500]].concat(),
            false,
        ),
    ];
    poison(&remote, 7);
    for (number, (name, bytes, hangs_up)) in cases.into_iter().enumerate() {
        let mut stream = play_initiator(&target, lane(100 + number as u16));
        let _ = stream.write_all(&bytes);
        if hangs_up {
            let mut answer = [0; 64];
            assert!(matches!(stream.read(&mut answer), Ok(0) | Err(_)), "{name}");
        }
        drop(stream);
        let outcome = initiator.carry_out(lane(0), ONE, work(Op::Write, 1, 0, 2000, 10));
        assert_eq!(outcome, Outcome::Success, "{name}");
        assert_eq!(target.fence(lane(100 + number as u16), ONE), 0, "{name}");
    }
    assert!(content(&remote)[500..2000].iter().all(|byte| *byte == 7));
    assert!(content(&remote)[2010..].iter().all(|byte| *byte == 7));
}

#[test]
fn an_initiator_that_takes_no_answers_holds_up_only_itself() {
    const BYTES: u64 = 1 << 20;
    let (target, remote, mut initiator) = pair(BYTES);
    let mut stream = play_initiator(&target, lane(100));
    stream.set_nonblocking(true).unwrap();
    // Reads without end, until the target takes no more requests and the sockets are full.
    let mut bytes = Vec::new();
    for sequence in 0..200_000 {
        let read = Request {
            op: Op::Read,
            spinning: false,
            length: BYTES as u32,
            sequence,
            key: remote.key(),
            offset: 0,
        };
        bytes.extend(read.encode());
    }
    let mut sent = 0;
    let mut idle = 0;
    while idle < 20 {
        match stream.write(&bytes[sent..]) {
            Ok(more) => (sent, idle) = (sent + more, 0),
            Err(_) => idle += 1,
        }
        let outcome = initiator.carry_out(lane(0), ONE, work(Op::Write, 1, 0, 0, 100_000));
        assert_eq!(outcome, Outcome::Success);
    }
    assert!(sent < bytes.len(), "the target took everything");
    let delivered = target.fence(lane(100), ONE);
    // Those that wait for room, and the few that found some.
    assert!(delivered < 2 * u32::from(WORKS_MAX), "{delivered}");
}

#[test]
fn refusals_are_answered_before_the_connection_ends() {
    let (target, _remote, _initiator) = pair(1 << 20);
    let mut stream = play_initiator(&target, lane(100));
    let bad = Request {
        op: Op::Write,
        spinning: false,
        length: 1 << 20,
        sequence: 0,
        key: RegionKey([0; 16]),
        offset: 0,
    };
    // All of the payload comes in spite of the refusal, and a good work behind it is not carried out.
    stream.write_all(&bad.encode()).unwrap();
    stream.write_all(&vec![0; 1 << 20]).unwrap();
    let mut bytes = [0; ANSWER_BYTES];
    stream.read_exact(&mut bytes).unwrap();
    let answer = Answer::decode(&bytes).unwrap();
    assert_eq!(answer.status, Status::NotAllowed);
    assert_eq!((answer.sequence, answer.length), (0, 1 << 20));
    assert_eq!(target.fence(lane(100), ONE), 0);
}
