//! The plane over real sockets on loopback.

mod beats;
mod impostors;
mod keys;
mod notifications;
mod staging;
mod strangers;
mod tickets;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use polyrail_core::path::config::PathConfig;
use polyrail_core::transport::MemoryKind;
use polyrail_transport::memory::{Access, RegionKey, TrustDomain};

use super::*;
use crate::codec::{
    self, CodecError, Decoder, Frame, GREETING_BYTES, Greeting, PATH_RAILS_MAX, Purpose, Refusal,
    SegmentKind,
};

/// Longer than anything here takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(20);
const PEER: PeerId = PeerId(3);
const LANE: LaneId = LaneId(5);
const EPOCH: Epoch = Epoch(6);
const NOBODY: SessionId = SessionId([0; 16]);

/// What a handler was told.
enum Told {
    Lane(InboundLane),
    /// With the answer to give, if fences are held.
    Fence(LaneId, Epoch, Option<FenceAnswer>),
    Call(u16, Vec<u8>, CallAnswer),
    Notify(SessionId, String, Vec<u8>),
    Staged(Party, StageMessage),
    Ended(SessionId, RetireAnswer),
    Fenced(PeerId, LaneId, Epoch, u32),
    Rails(PeerId, Rails),
    Moved(SessionId, u64),
    Leaves(PeerId),
    Lost(PeerId, SessionLoss),
}

/// Works that a fenced lane had delivered.
const DELIVERED: u32 = 7;

/// Passes on what it is told. Descriptions it answers itself, and fences unless they are held.
struct Recorder {
    told: Mutex<Sender<Told>>,
    hold_fences: Arc<AtomicBool>,
    /// Sessions that are over have ended at once.
    retires: Arc<AtomicBool>,
    /// Notifications that are still taken.
    room: Arc<AtomicUsize>,
    heard: Arc<AtomicUsize>,
    /// Nothing is in flight with any peer.
    idle: Arc<AtomicBool>,
    /// Sessions that have begun.
    began: Arc<AtomicUsize>,
    /// Bytes that were moved with the peer.
    moved: Arc<AtomicU64>,
}

impl Recorder {
    fn tell(&self, told: Told) {
        // The test may have seen enough.
        let _ = self.told.lock().unwrap().send(told);
    }
}

impl Handler for Recorder {
    fn has_rails(&self, peer: PeerId, rails: Rails) {
        self.tell(Told::Rails(peer, rails));
    }

    fn see_path(&self, rails: &[(IpAddr, IpAddr)]) -> Option<PathView> {
        let path = PathConfig::DEFAULT;
        (!rails.is_empty()).then(|| PathView::new(&path, rails.iter().copied()))
    }

    /// Whoever comes from 127.0.0.N is of domain N from 100 on.
    fn domain_of(&self, address: IpAddr, _: Option<&str>) -> TrustDomain {
        match address {
            IpAddr::V4(address) if address.octets()[3] >= 100 => {
                TrustDomain(address.octets()[3].into())
            }
            _ => TrustDomain::COMMON,
        }
    }

    fn describe(&self, name: &str, domain: TrustDomain) -> Option<SegmentDescriptor> {
        let own = format!("of {}", domain.0);
        (name == "mem" || name == own).then(|| segment(name))
    }
    fn lane(&self, lane: InboundLane) {
        self.tell(Told::Lane(lane));
    }
    fn fence(&self, _: SessionId, lane: LaneId, epoch: Epoch, answer: FenceAnswer) {
        if self.hold_fences.load(Ordering::SeqCst) {
            return self.tell(Told::Fence(lane, epoch, Some(answer)));
        }
        self.tell(Told::Fence(lane, epoch, None));
        answer(DELIVERED);
    }
    fn call(&self, _: SessionId, method: u16, body: Vec<u8>, answer: CallAnswer) {
        self.tell(Told::Call(method, body, answer));
    }
    fn notify(&self, from: &Notifier<'_>, body: Vec<u8>) -> bool {
        let less = |room: usize| room.checked_sub(1);
        let room = self
            .room
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        if room.is_ok() {
            self.tell(Told::Notify(from.session, from.name.into(), body));
        }
        room.is_ok()
    }
    fn session_began(&self, _: &Guest<'_>) {
        self.began.fetch_add(1, Ordering::SeqCst);
    }
    fn moved(&self, session: SessionId, bytes: u64) {
        self.tell(Told::Moved(session, bytes));
    }
    fn moved_with(&self, _: PeerId) -> Option<u64> {
        match self.moved.load(Ordering::SeqCst) {
            0 => None,
            bytes => Some(bytes),
        }
    }
    fn is_idle(&self, _: PeerId) -> bool {
        self.idle.load(Ordering::SeqCst)
    }
    fn leaves(&self, peer: PeerId) {
        self.tell(Told::Leaves(peer));
    }
    fn staged(&self, from: Party, message: StageMessage) {
        self.tell(Told::Staged(from, message));
    }
    fn session_ended(&self, session: SessionId, _: SessionEnd, retired: RetireAnswer) {
        match self.retires.load(Ordering::SeqCst) {
            true => retired(),
            false => self.tell(Told::Ended(session, retired)),
        }
    }
    fn heard(&self, _: PeerId) {
        self.heard.fetch_add(1, Ordering::Relaxed);
    }
    fn fenced(&self, peer: PeerId, lane: LaneId, epoch: Epoch, delivered: u32) {
        self.tell(Told::Fenced(peer, lane, epoch, delivered));
    }
    fn session_lost(&self, peer: PeerId, why: SessionLoss) {
        self.tell(Told::Lost(peer, why));
    }
}

/// A plane with what its handler was told.
struct Engine {
    plane: Plane,
    told: Receiver<Told>,
    heard: Arc<AtomicUsize>,
    idle: Arc<AtomicBool>,
    began: Arc<AtomicUsize>,
    moved: Arc<AtomicU64>,
    hold_fences: Arc<AtomicBool>,
    retires: Arc<AtomicBool>,
    room: Arc<AtomicUsize>,
    listens: Vec<SocketAddr>,
}

impl Engine {
    fn start(name: &str, listens: &[&str], change: impl FnOnce(&mut PlaneConfig)) -> Self {
        let listeners: Vec<_> = listens
            .iter()
            .map(|at| TcpListener::bind(at).unwrap())
            .collect();
        let listens: Vec<_> = listeners.iter().map(|l| l.local_addr().unwrap()).collect();
        let mut config = PlaneConfig::new(name, 1, segment("scratch"), Clock::start());
        config.listeners = listeners;
        config.rails.clone_from(&listens);
        change(&mut config);
        let (sender, told) = channel();
        let heard = Arc::default();
        let idle = Arc::default();
        let began = Arc::default();
        let moved = Arc::default();
        let hold_fences = Arc::default();
        let retires = Arc::default();
        let room = Arc::new(AtomicUsize::new(usize::MAX));
        let handler = Recorder {
            told: Mutex::new(sender),
            hold_fences: Arc::clone(&hold_fences),
            retires: Arc::clone(&retires),
            room: Arc::clone(&room),
            heard: Arc::clone(&heard),
            idle: Arc::clone(&idle),
            began: Arc::clone(&began),
            moved: Arc::clone(&moved),
        };
        let plane = Plane::start(config, Arc::new(handler)).unwrap();
        Self {
            plane,
            told,
            heard,
            idle,
            began,
            moved,
            hold_fences,
            retires,
            room,
            listens,
        }
    }

    /// A target on one address.
    fn target() -> Self {
        Self::start("beta", &["127.0.0.2:0"], |_| {})
    }

    fn initiator() -> Self {
        Self::start("alpha", &[], |_| {})
    }

    fn connect(&self, to: SocketAddr) -> Introduction {
        let start = Instant::now();
        let met = self.plane.connect(PEER, None, to, PATIENCE).unwrap();
        // It was the first of what was done.
        let most = start.elapsed().as_nanos() as u64;
        assert!((1..=most).contains(&met.round_trip.as_nanos()), "{met:?}");
        met
    }

    fn describe_works(&self) {
        let got = self.plane.describe(PEER, "mem", PATIENCE).unwrap();
        assert_eq!(got, Some(segment("mem")));
    }

    /// The first thing told that `pick` wants; others are dropped.
    fn told<T>(&self, what: &str, mut pick: impl FnMut(Told) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let told = self.told.recv_timeout(left);
            let told = told.unwrap_or_else(|_| panic!("not told in time: {what}"));
            if let Some(found) = pick(told) {
                return found;
            }
        }
    }

    fn told_call(&self) -> (u16, Vec<u8>, CallAnswer) {
        self.told("call", |told| match told {
            Told::Call(method, body, answer) => Some((method, body, answer)),
            _ => None,
        })
    }

    fn told_ended(&self) -> (SessionId, RetireAnswer) {
        self.told("session ended", |told| match told {
            Told::Ended(session, retired) => Some((session, retired)),
            _ => None,
        })
    }

    fn told_lost(&self) -> SessionLoss {
        self.told("session lost", |told| match told {
            Told::Lost(PEER, loss) => Some(loss),
            _ => None,
        })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.plane.shutdown();
    }
}

fn segment(name: &str) -> SegmentDescriptor {
    SegmentDescriptor {
        name: name.into(),
        generation: 4,
        bytes: 1 << 20,
        key: RegionKey([9; 16]),
        access: Access::RemoteReadWrite,
        memory: MemoryKind::Host,
        kind: SegmentKind::Memory,
        numa_node: None,
    }
}

#[test]
fn peers_are_told_of_rails_that_come_later() {
    let (target, initiator) = (Engine::target(), Engine::initiator());
    let at = target.listens[0];
    let met = initiator.connect(at);
    let fact = RailFact {
        device: "eth1".into(),
        numa_node: Some(1),
    };
    let rails = Rails {
        addresses: vec![at, "127.0.0.9:7".parse().unwrap()],
        facts: vec![RailFact::default(), fact],
        transports: met.transports.clone(),
    };
    assert_ne!(met.rails, rails.addresses);
    target.plane.announce(rails.clone());
    let told = initiator.told("rails", |told| match told {
        Told::Rails(PEER, rails) => Some(rails),
        _ => None,
    });
    assert_eq!(told, rails);
    // Who comes later hears it when he is let in.
    let late = Engine::initiator().connect(at);
    assert_eq!(
        (late.rails, late.rail_facts),
        (rails.addresses, rails.facts)
    );
}

/// Looks again and again until `seen`, for a while.
fn until(what: &str, mut seen: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !seen() {
        assert!(Instant::now() < deadline, "not seen in time: {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// Passes bytes on between whoever connects and a target, until told to swallow them: then both sides
/// hear nothing any more, as from a link that was cut.
struct Forwarder {
    address: SocketAddr,
    switch: Arc<Switch>,
}

#[derive(Default)]
struct Switch {
    swallow: AtomicBool,
    stop: AtomicBool,
    accepted: AtomicUsize,
    /// Bytes, both ways.
    passed: AtomicUsize,
    streams: Mutex<Vec<TcpStream>>,
}

impl Forwarder {
    fn start(at: &str, target: SocketAddr) -> Self {
        let listener = TcpListener::bind(at).unwrap();
        let address = listener.local_addr().unwrap();
        let switch = Arc::<Switch>::default();
        let theirs = switch.clone();
        std::thread::spawn(move || theirs.serve(&listener, target));
        Self { address, switch }
    }

    fn swallow(&self, on: bool) {
        self.switch.swallow.store(on, Ordering::SeqCst);
    }

    fn accepted(&self) -> usize {
        self.switch.accepted.load(Ordering::SeqCst)
    }

    fn passed(&self) -> usize {
        self.switch.passed.load(Ordering::SeqCst)
    }

    /// Ends all connections that there are, with a word.
    fn cut(&self) {
        for stream in self.switch.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.switch.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        self.cut();
    }
}

impl Switch {
    fn serve(self: Arc<Self>, listener: &TcpListener, target: SocketAddr) {
        for stream in listener.incoming() {
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let (Ok(near), Ok(far)) = (stream, TcpStream::connect(target)) else {
                continue;
            };
            let mut streams = self.streams.lock().unwrap();
            streams.extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
            drop(streams);
            self.accepted.fetch_add(1, Ordering::SeqCst);
            let (near2, far2) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let (there, back) = (self.clone(), self.clone());
            std::thread::spawn(move || there.pass(near, far));
            std::thread::spawn(move || back.pass(far2, near2));
        }
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = [0; 4096];
        while let Ok(bytes @ 1..) = from.read(&mut buffer) {
            let swallow = self.swallow.load(Ordering::SeqCst);
            self.passed.fetch_add(bytes, Ordering::SeqCst);
            if !swallow && to.write_all(&buffer[..bytes]).is_err() {
                break;
            }
        }
        // The end of a connection is swallowed too.
        if !self.swallow.load(Ordering::SeqCst) {
            let _ = to.shutdown(Shutdown::Write);
        }
    }
}

/// Whatever a socket says until it is closed, as greeting and frames.
fn read_all(stream: &mut TcpStream) -> (Option<Greeting>, Vec<Frame>) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = Vec::new();
    // A reset ends it as well; a timeout does not.
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_ne!(
            error.kind(),
            io::ErrorKind::WouldBlock,
            "not closed in time"
        );
    }
    if bytes.is_empty() {
        return (None, vec![]);
    }
    let mut decoder = Decoder::default();
    decoder.push(&bytes);
    let greeting = decoder.next_greeting().unwrap();
    let frames = std::iter::from_fn(|| decoder.next_frame().unwrap()).collect();
    (greeting, frames)
}

fn say(to: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

fn greeted(purpose: Purpose, frames: &[Frame]) -> Vec<u8> {
    let mut bytes = Greeting::ours(purpose).encode().to_vec();
    for frame in frames {
        codec::encode(frame, &mut bytes).unwrap();
    }
    bytes
}

fn join(session: SessionId) -> Frame {
    Frame::JoinLane {
        session: session.0,
        lane: LANE.0,
        epoch: EPOCH.0,
    }
}

fn frame_bytes(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::encode(frame, &mut bytes).unwrap();
    bytes
}

/// Connects two rails through forwarders and waits until both are open.
fn two_rails(target: &Engine, initiator: &Engine) -> [Forwarder; 2] {
    let rails = [
        Forwarder::start("127.0.0.11:0", target.listens[0]),
        Forwarder::start("127.0.0.12:0", target.listens[0]),
    ];
    initiator.connect(rails[0].address);
    let routes = rails.iter().map(|rail| (None, rail.address)).collect();
    initiator.plane.maintain(PEER, routes);
    until_two_are_open(initiator);
    rails
}

/// Waits until a fence is answered on two connections.
fn until_two_are_open(initiator: &Engine) {
    let mut epoch = 0;
    until("both rails are open", || {
        epoch += 1;
        initiator.plane.fence(PEER, LANE, Epoch(epoch));
        let deadline = Instant::now() + Duration::from_millis(100);
        let mut answers = 0;
        while answers < 2 {
            let left = deadline.saturating_duration_since(Instant::now());
            match initiator.told.recv_timeout(left) {
                Ok(Told::Fenced(PEER, LANE, Epoch(of), DELIVERED)) if of == epoch => answers += 1,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
        true
    });
}

#[test]
fn two_engines_meet() {
    let target = Engine::start("beta", &["127.0.0.2:0", "127.0.0.3:0"], |config| {
        config.incarnation = 77;
    });
    let initiator = Engine::initiator();
    let local = Some("127.0.0.9".parse().unwrap());
    let beta = initiator
        .plane
        .connect(PEER, local, target.listens[0], PATIENCE)
        .unwrap();
    assert_eq!((&*beta.name, beta.incarnation), ("beta", 77));
    assert_eq!(beta.rails, target.listens);
    assert_eq!(beta.scratch, segment("scratch"));
    assert_ne!(beta.session, NOBODY);
    initiator.describe_works();
    let none = initiator.plane.describe(PEER, "none", PATIENCE);
    assert_eq!(none, Ok(None));

    initiator.plane.fence(PEER, LANE, EPOCH);
    target.told("fence", |told| {
        matches!(told, Told::Fence(LANE, EPOCH, None)).then_some(())
    });
    initiator.told("fenced", |told| {
        matches!(told, Told::Fenced(PEER, LANE, EPOCH, DELIVERED)).then_some(())
    });
    assert!(initiator.heard.load(Ordering::Relaxed) > 0);

    std::thread::scope(|scope| {
        let call = |body: &[u8]| initiator.plane.call(PEER, 1, body.to_vec(), PATIENCE);
        let asker = scope.spawn(move || call(b"ping"));
        let (method, body, answer) = target.told_call();
        assert_eq!((method, &*body), (1, &b"ping"[..]));
        answer(Ok(b"pong".to_vec()));
        assert_eq!(asker.join().unwrap(), Ok(b"pong".to_vec()));
        let asker = scope.spawn(move || call(b"fail"));
        target.told_call().2(Err("no such page".into()));
        let error = asker.join().unwrap().unwrap_err().to_string();
        for part in ["\"alpha\"", "\"beta\"", "no such page"] {
            assert!(error.contains(part), "{error}");
        }
    });
}

#[test]
fn calls_of_any_legal_size_come_through_and_dropped_ones_are_answered() {
    let (target, initiator) = (Engine::target(), Engine::initiator());
    initiator.connect(target.listens[0]);
    std::thread::scope(|scope| {
        let call = |bytes| initiator.plane.call(PEER, 1, vec![5; bytes], PATIENCE);
        let asker = scope.spawn(move || call(CALL_BYTES_MAX));
        let (_, body, answer) = target.told_call();
        assert_eq!(body.len(), CALL_BYTES_MAX);
        answer(Ok(body));
        assert_eq!(asker.join().unwrap().unwrap().len(), CALL_BYTES_MAX);
        // (name, what the program does with the answer, a part of the error)
        type Deed = fn(CallAnswer);
        let cases: [(&str, Deed, &str); 3] = [
            ("dropped", drop, "unanswered"),
            (
                "too long",
                |answer| answer(Ok(vec![0; CALL_BYTES_MAX + 1])),
                "limit",
            ),
            (
                "long error text",
                |answer| answer(Err("ä".repeat(CALL_BYTES_MAX))),
                "ä",
            ),
        ];
        for (name, deed, part) in cases {
            let asker = scope.spawn(move || call(1));
            deed(target.told_call().2);
            let error = asker.join().unwrap().unwrap_err().to_string();
            assert!(error.contains(part), "{name}: {error}");
        }
    });
    let too_long = vec![0; CALL_BYTES_MAX + 1];
    assert_eq!(
        initiator.plane.call(PEER, 1, too_long, PATIENCE),
        Err(AskError::BodyTooLong {
            bytes: CALL_BYTES_MAX + 1
        })
    );
}

#[test]
fn a_silent_rail_loses_nothing_and_is_rebuilt() {
    let quick = |config: &mut PlaneConfig| {
        config.heartbeat = Duration::from_millis(100);
        config.silence_max = Duration::from_millis(400);
    };
    let target = Engine::start("beta", &["127.0.0.2:0"], quick);
    let initiator = Engine::start("alpha", &[], quick);
    let rails = two_rails(&target, &initiator);
    for silent in [0, 1] {
        let before = rails[silent].accepted();
        rails[silent].swallow(true);
        for _ in 0..4 {
            initiator.describe_works();
        }
        std::thread::scope(|scope| {
            for round in 0..3_u8 {
                let plane = &initiator.plane;
                let asker = scope.spawn(move || plane.call(PEER, 1, vec![round], PATIENCE));
                let (_, body, answer) = target.told_call();
                assert_eq!(body, [round], "carried out once, in order");
                answer(Ok(body));
                assert_eq!(asker.join().unwrap(), Ok(vec![round]));
            }
        });
        initiator.plane.fence(PEER, LANE, EPOCH);
        initiator.told("fenced over the other rail", |told| {
            matches!(told, Told::Fenced(PEER, LANE, EPOCH, DELIVERED)).then_some(())
        });
        until("the silent rail is given up", || {
            rails[silent].accepted() > before
        });
        rails[silent].swallow(false);
        until_two_are_open(&initiator);
    }
}

#[test]
fn a_question_on_a_silent_rail_is_asked_on_the_next_before_the_rail_is_dead() {
    let patient = |config: &mut PlaneConfig| config.silence_max = PATIENCE * 10;
    let target = Engine::start("beta", &["127.0.0.2:0"], patient);
    let initiator = Engine::start("alpha", &[], patient);
    let rails = two_rails(&target, &initiator);
    for rail in &rails {
        rail.swallow(true);
        initiator.describe_works();
        std::thread::scope(|scope| {
            let asker = scope.spawn(|| initiator.plane.call(PEER, 1, vec![], PATIENCE));
            target.told_call().2(Ok(vec![1]));
            assert_eq!(asker.join().unwrap(), Ok(vec![1]));
        });
        // What was swallowed is lost for good, so the rail is of no use any more.
        rail.cut();
        rail.swallow(false);
        until_two_are_open(&initiator);
    }
}

#[test]
fn a_silent_rail_costs_one_question_its_patience_and_not_every_one() {
    // Questions once began on the oldest connection, whatever was known of it: with the first rail cut, a
    // program that called in a loop crawled until the connection was declared dead.
    let forgiving = |config: &mut PlaneConfig| config.silence_max = PATIENCE * 2;
    let target = Engine::start("beta", &["127.0.0.2:0"], forgiving);
    let initiator = Engine::start("alpha", &[], forgiving);
    let rails = two_rails(&target, &initiator);
    for cut in [0, 1] {
        rails[cut].swallow(true);
        initiator.describe_works();
        let start = Instant::now();
        let questions = 40;
        for _ in 0..questions {
            initiator.describe_works();
        }
        let patience = Duration::from(super::question::AGAIN_MIN);
        let took = start.elapsed();
        assert!(took < patience * questions / 2, "rail {cut} cut: {took:?}");
        // What was swallowed is lost to the connection, so it cannot go on: a new one is made.
        rails[cut].cut();
        rails[cut].swallow(false);
        until_two_are_open(&initiator);
    }
}

#[test]
fn an_answer_whose_connection_died_comes_over_another() {
    let (target, initiator) = (Engine::target(), Engine::initiator());
    let rails = two_rails(&target, &initiator);
    for round in 0..4_u8 {
        std::thread::scope(|scope| {
            let plane = &initiator.plane;
            let asker = scope.spawn(move || plane.call(PEER, 1, vec![round], PATIENCE));
            let (_, body, answer) = target.told_call();
            rails[usize::from(round % 2)].cut();
            answer(Ok(body));
            assert_eq!(asker.join().unwrap(), Ok(vec![round]));
        });
        let again = target
            .told
            .try_iter()
            .any(|told| matches!(told, Told::Call(..)));
        assert!(!again, "carried out twice");
    }
}

#[test]
fn a_fence_answered_late_comes_over_what_is_left() {
    let (target, initiator) = (Engine::target(), Engine::initiator());
    let rails = two_rails(&target, &initiator);
    target.hold_fences.store(true, Ordering::SeqCst);
    let held = |told| match told {
        Told::Fence(LANE, EPOCH, answer) => answer,
        _ => None,
    };
    initiator.plane.fence(PEER, LANE, EPOCH);
    // An answer that will not come makes room for the question when it is repeated.
    drop(target.told("fence", held));
    let mut answer = None;
    until("asked again", || {
        initiator.plane.fence(PEER, LANE, EPOCH);
        answer = target.told.try_iter().find_map(held);
        answer.is_some()
    });
    rails[0].cut();
    answer.unwrap()(DELIVERED);
    // The other connection's question may have come only now, as one of its own.
    until("fenced", || {
        for answer in target.told.try_iter().filter_map(held) {
            answer(DELIVERED);
        }
        let mut told = initiator.told.try_iter();
        told.any(|told| matches!(told, Told::Fenced(PEER, LANE, EPOCH, DELIVERED)))
    });
}

#[test]
fn the_last_handle_that_is_dropped_says_goodbye() {
    let (target, initiator) = (Engine::target(), Engine::initiator());
    initiator.connect(target.listens[0]);
    let (sender, told) = channel();
    let other = Plane::start(
        PlaneConfig::new("gamma", 1, segment("scratch"), Clock::start()),
        Arc::new(Recorder {
            told: Mutex::new(sender),
            hold_fences: Arc::default(),
            retires: Arc::default(),
            room: Arc::default(),
            heard: Arc::default(),
            idle: Arc::default(),
            moved: Arc::default(),
            began: Arc::default(),
        }),
    )
    .unwrap();
    let its = other
        .connect(PEER, None, target.listens[0], PATIENCE)
        .unwrap()
        .session;
    drop(other.clone());
    drop(other);
    assert_eq!(target.told_ended().0, its);
    assert!(told.recv().is_err(), "the thread and its handler are gone");
    initiator.describe_works();
}

#[test]
fn a_session_without_connections_is_joined_again() {
    let (target, initiator) = (Engine::target(), Engine::initiator());
    let rail = Forwarder::start("127.0.0.13:0", target.listens[0]);
    let session = initiator.connect(rail.address).session;
    for _ in 0..3 {
        rail.cut();
        initiator.describe_works();
    }
    assert!(rail.accepted() >= 3);
    // The same session: its lanes are let in.
    let _lane = say(target.listens[0], &greeted(Purpose::Lane, &[join(session)]));
    let lane = target.told("lane", |told| match told {
        Told::Lane(lane) => Some(lane),
        _ => None,
    });
    assert_eq!(
        (lane.session, lane.lane, lane.epoch),
        (session, LANE, EPOCH)
    );
}

#[test]
fn a_session_is_unknown_only_when_all_of_it_has_ended() {
    let target = Engine::start("beta", &["127.0.0.2:0"], |config| {
        config.session_linger = Duration::from_millis(50);
    });
    let initiator = Engine::initiator();
    let rail = Forwarder::start("127.0.0.14:0", target.listens[0]);
    let session = initiator.connect(rail.address).session;
    rail.swallow(true);
    let (ended, retired) = target.told_ended();
    assert_eq!(ended, session);
    rail.swallow(false);
    rail.cut();
    let before = rail.accepted();
    until("it was turned away twice", || rail.accepted() >= before + 3);
    assert!(initiator.told.try_recv().is_err(), "lost without proof");
    retired();
    let loss = initiator.told_lost();
    assert!(loss.is_proof(), "{loss}");
    let text = loss.to_string();
    assert!(
        text.contains("\"alpha\"") && text.contains("\"beta\""),
        "{text}"
    );
    let gone = initiator.plane.describe(PEER, "mem", PATIENCE);
    assert!(matches!(gone, Err(AskError::NoPeer { .. })), "{gone:?}");
    assert_ne!(initiator.connect(rail.address).session, session);
}

#[test]
fn another_process_at_the_address_is_no_proof() {
    let first = Engine::target();
    let at = first.listens[0].to_string();
    let initiator = Engine::initiator();
    initiator.connect(first.listens[0]);
    drop(first);
    let _second = Engine::start("gamma", &[&at], |config| config.incarnation = 2);
    let loss = initiator.told_lost();
    assert!(!loss.is_proof(), "{loss}");
    let text = loss.to_string();
    for part in ["\"alpha\"", "\"beta\"", "\"gamma\"", &at] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_rail_that_leads_to_somebody_else_harms_no_session() {
    let (target, initiator) = (Engine::target(), Engine::initiator());
    let stranger = Engine::start("gamma", &["127.0.0.4:0"], |config| config.incarnation = 2);
    let rail = Forwarder::start("127.0.0.15:0", stranger.listens[0]);
    let (here, there) = (target.listens[0], rail.address);
    initiator.connect(here);
    initiator
        .plane
        .maintain(PEER, vec![(None, here), (None, there)]);
    until("it was tried twice", || rail.accepted() >= 2);
    initiator.describe_works();
    assert!(initiator.told.try_recv().is_err());
}

#[test]
fn goodbye_ends_the_session_at_once() {
    let (target, initiator) = (Engine::target(), Engine::initiator());
    let session = initiator.connect(target.listens[0]).session;
    initiator.plane.disconnect(PEER);
    assert_eq!(target.told_ended().0, session);
    let session = initiator.connect(target.listens[0]).session;
    initiator.plane.shutdown();
    assert_eq!(target.told_ended().0, session);
    let error = initiator.plane.describe(PEER, "mem", PATIENCE);
    assert!(matches!(error, Err(AskError::ShutDown { .. })), "{error:?}");
    let error = initiator
        .plane
        .connect(PEER, None, target.listens[0], PATIENCE);
    assert!(matches!(error, Err(ConnectError::ShutDown { .. })));
}

#[test]
fn who_is_in_is_told_of_an_end_to_come_and_nobody_new_is_let_in() {
    let (target, initiator, late) = (Engine::target(), Engine::initiator(), Engine::initiator());
    let at = target.listens[0];
    let session = initiator.connect(at).session;
    target.plane.leave();
    let leaves = |told| match told {
        Told::Leaves(PEER) => Some(()),
        _ => None,
    };
    initiator.told("that it leaves", leaves);
    let error = late.plane.connect(PEER, None, at, PATIENCE).unwrap_err();
    assert!(
        matches!(
            &error,
            ConnectError::Refused {
                reason: Refusal::ShuttingDown,
                ..
            }
        ),
        "{error:?}"
    );
    // Whoever is in goes on, also over connections that come later, and is told there too.
    initiator.describe_works();
    initiator
        .plane
        .maintain(PEER, vec![(None, at), (Some([127, 0, 0, 3].into()), at)]);
    initiator.told("that it leaves, on the new connection", leaves);
    initiator.plane.disconnect(PEER);
    assert_eq!(target.told_ended().0, session);
}

#[test]
fn peers_come_in_at_an_address_that_is_listened_at_later() {
    let (target, initiator) = (Engine::target(), Engine::initiator());
    let later = TcpListener::bind("127.0.0.4:0").unwrap();
    let at = later.local_addr().unwrap();
    target.plane.listen(later);
    initiator.connect(at);
    initiator.describe_works();
    // And at the others as before.
    let others = Engine::initiator();
    others.connect(target.listens[0]);
    // Also where nobody could come in.
    let later = TcpListener::bind("127.0.0.4:0").unwrap();
    let at = later.local_addr().unwrap();
    others.plane.listen(later);
    target.connect(at);
    target.describe_works();
}

#[test]
fn a_target_hears_how_much_was_moved_before_the_end_of_the_session_and_now_and_then() {
    let (target, initiator) = (Engine::target(), Engine::initiator());
    let session = initiator.connect(target.listens[0]).session;
    let moved = || {
        target.told("bytes", |told| match told {
            Told::Moved(of, bytes) => Some((of, bytes)),
            _ => None,
        })
    };
    initiator.moved.store(7, Ordering::SeqCst);
    assert_eq!(moved(), (session, 7), "at a heartbeat");
    initiator.plane.say_moved(PEER, 9);
    initiator.plane.disconnect(PEER);
    assert_eq!(moved(), (session, 9));
    assert_eq!(target.told_ended().0, session);
}

#[test]
fn there_is_room_for_as_many_sessions_as_was_said_last() {
    let (target, initiator) = (Engine::target(), Engine::initiator());
    let others = [Engine::initiator(), Engine::initiator()];
    let at = target.listens[0];
    initiator.connect(at);
    // What is posted to the target's thread is done by when it has answered somebody.
    target.plane.limit(1, 16);
    initiator.describe_works();
    let error = others[0]
        .plane
        .connect(PEER, None, at, PATIENCE)
        .unwrap_err();
    assert!(
        matches!(
            &error,
            ConnectError::Refused {
                reason: Refusal::Full,
                ..
            }
        ),
        "{error:?}"
    );
    target.plane.limit(4, 16);
    initiator.describe_works();
    others[1].connect(at);
}

#[test]
fn shutdown_frees_who_waits() {
    let (target, initiator) = (Engine::target(), Engine::initiator());
    initiator.connect(target.listens[0]);
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| initiator.plane.call(PEER, 1, vec![], PATIENCE));
        let _unanswered = target.told_call();
        initiator.plane.shutdown();
        let error = asker.join().unwrap();
        assert!(matches!(error, Err(AskError::ShutDown { .. })), "{error:?}");
    });
}

#[test]
fn who_connects_a_peer_that_is_disconnected_is_told_so() {
    let initiator = Engine::initiator();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| initiator.plane.connect(PEER, None, at, PATIENCE));
        let _connected = silent.accept().unwrap();
        initiator.plane.disconnect(PEER);
        let error = connecting.join().unwrap().unwrap_err();
        assert!(
            matches!(error, ConnectError::Disconnected { .. }),
            "{error}"
        );
    });
}

#[test]
fn a_call_that_takes_too_long_does_not_block_the_next() {
    let (target, initiator) = (Engine::target(), Engine::initiator());
    initiator.connect(target.listens[0]);
    let short = Duration::from_millis(50);
    let error = initiator.plane.call(PEER, 1, vec![], short).unwrap_err();
    assert!(
        matches!(error, AskError::TimedOut { connections: 1, .. }),
        "{error}"
    );
    let text = error.to_string();
    for part in ["\"alpha\"", "\"beta\"", "50ms"] {
        assert!(text.contains(part), "{text}");
    }
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| initiator.plane.call(PEER, 2, vec![], PATIENCE));
        target.told_call().2(Ok(vec![1]));
        let (method, _, answer) = target.told_call();
        assert_eq!(method, 2);
        answer(Ok(vec![2]));
        assert_eq!(asker.join().unwrap(), Ok(vec![2]));
    });
}

/// Listens and says `bytes` to the first who connects.
fn impostor(bytes: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.5:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(bytes);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    address
}

#[test]
fn errors_of_connect_name_both_ends() {
    let free = {
        let listener = TcpListener::bind("127.0.0.6:0").unwrap();
        listener.local_addr().unwrap()
    };
    let other_version = b"polyrail\x09\0\x01\0\0\0\0\0\0\0\0\0";
    let local: Option<IpAddr> = Some("127.0.0.9".parse().unwrap());
    let foreign = Some("192.0.2.1".parse().unwrap());
    type Right = fn(&ConnectError) -> bool;
    // (name, local, remote, the variant, a part of the text)
    let cases: [(&str, Option<IpAddr>, SocketAddr, Right, &str); 6] = [
        (
            "nobody listens",
            local,
            free,
            |e| matches!(e, ConnectError::Unreachable { error, .. } if error.kind() == io::ErrorKind::ConnectionRefused),
            "refused",
        ),
        (
            "an address that is not ours",
            foreign,
            free,
            |e| matches!(e, ConnectError::Unreachable { error, .. } if error.kind() == io::ErrorKind::AddrNotAvailable),
            "192.0.2.1",
        ),
        (
            "another version",
            local,
            impostor(other_version),
            |e| {
                matches!(
                    e,
                    ConnectError::Version {
                        ours: 1,
                        theirs: 9,
                        ..
                    }
                )
            },
            "version 9, this side speaks 1",
        ),
        (
            "another language",
            local,
            impostor(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            |e| matches!(e, ConnectError::NotPolyrail { .. }),
            "not a polyrail connection",
        ),
        (
            "silence",
            local,
            impostor(b""),
            |e| {
                matches!(
                    e,
                    ConnectError::TimedOut {
                        connected: true,
                        ..
                    }
                )
            },
            "within 200ms; does another program listen there, or is it not ready yet?",
        ),
        (
            "half a greeting",
            local,
            impostor(b"polyrail"),
            |e| {
                matches!(
                    e,
                    ConnectError::TimedOut {
                        connected: true,
                        ..
                    }
                )
            },
            "within 200ms",
        ),
    ];
    let initiator = Engine::initiator();
    for (name, local, remote, right, part) in cases {
        let timeout = Duration::from_millis(200);
        let error = initiator
            .plane
            .connect(PEER, local, remote, timeout)
            .unwrap_err();
        assert!(right(&error), "{name}: {error:?}");
        let (text, local) = (error.to_string(), local.unwrap().to_string());
        for part in ["\"alpha\"", &local, &remote.to_string(), part] {
            assert!(text.contains(part), "{name}: {text}");
        }
    }
}

#[test]
fn a_peer_is_connected_once() {
    let (target, initiator) = (Engine::target(), Engine::initiator());
    initiator.connect(target.listens[0]);
    let error = initiator
        .plane
        .connect(PEER, None, target.listens[0], PATIENCE);
    assert!(matches!(error, Err(ConnectError::Busy { peer: PEER, .. })));
    initiator.describe_works();
}

#[test]
fn strangers_are_answered_by_their_mistake() {
    let target = Engine::target();
    let initiator = Engine::initiator();
    let session = initiator.connect(target.listens[0]).session;
    let mut other_version = Greeting::ours(Purpose::Control);
    other_version.version = 9;
    let too_much = [greeted(Purpose::Lane, &[join(session)]), vec![1]].concat();
    let huge = [greeted(Purpose::Control, &[]), vec![255; 4]].concat();
    // (name, what is said, the refusal)
    let cases = [
        (
            "another version",
            other_version.encode().to_vec(),
            Some(Refusal::Version),
        ),
        (
            "a lane of no session",
            greeted(Purpose::Lane, &[join(NOBODY)]),
            Some(Refusal::SessionUnknown),
        ),
        ("more than JoinLane", too_much, Some(Refusal::Protocol)),
        ("a huge frame", huge, Some(Refusal::Protocol)),
        ("another language", b"GET / HTTP/1.1\r\n\r\n".to_vec(), None),
    ];
    for (name, bytes, refusal) in cases {
        let (greeting, frames) = read_all(&mut say(target.listens[0], &bytes));
        let got = frames.iter().map(|frame| match frame {
            Frame::Refused { reason, .. } => *reason,
            other => panic!("{name}: {other:?}"),
        });
        assert_eq!(got.collect::<Vec<_>>(), Vec::from_iter(refusal), "{name}");
        assert_eq!(greeting.is_some(), refusal.is_some(), "{name}");
    }
    let somebody = Frame::Hello {
        name: "alpha".into(),
        incarnation: 1,
        session: Some(NOBODY.0),
        token: vec![],
    };
    let bytes = greeted(Purpose::Control, &[somebody]);
    let (_, frames) = read_all(&mut say(target.listens[0], &bytes));
    let unknown = Frame::SessionUnknown {
        name: "beta".into(),
        incarnation: 1,
    };
    assert_eq!(frames, [unknown]);
    initiator.describe_works();
}

#[test]
fn a_session_cannot_be_joined_under_another_name() {
    let target = Engine::target();
    let initiator = Engine::initiator();
    let session = initiator.connect(target.listens[0]).session;
    let thief = Frame::Hello {
        name: "mallory".into(),
        incarnation: 1,
        session: Some(session.0),
        token: vec![],
    };
    let bytes = greeted(Purpose::Control, &[thief]);
    let (_, frames) = read_all(&mut say(target.listens[0], &bytes));
    assert!(
        matches!(
            &frames[..],
            [Frame::Refused {
                reason: Refusal::Protocol,
                ..
            }]
        ),
        "{frames:?}"
    );
    initiator.describe_works();
}

#[test]
fn a_peer_knows_and_is_known_in_its_own_trust_domain_only() {
    let (target, initiator) = (Engine::target(), Engine::initiator());
    let local = Some("127.0.0.100".parse().unwrap());
    let to = target.listens[0];
    let connected = initiator.plane.connect(PEER, local, to, PATIENCE);
    let session = connected.unwrap().session;
    let described = |name| initiator.plane.describe(PEER, name, PATIENCE).unwrap();
    assert_eq!(described("of 100"), Some(segment("of 100")));
    assert_eq!(described("of 0"), None);

    // Slots are not for it, and its word about them goes nowhere.
    let question = StageMessage::Free {
        ticket: polyrail_core::units::Ticket {
            index: 1,
            generation: 1,
        },
        fenced: true,
    };
    initiator.plane.stage(Party::Peer(PEER), question);
    initiator.plane.fence(PEER, LANE, EPOCH);
    let first = target.told.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(first, Told::Fence(LANE, EPOCH, None)));

    // Who comes from elsewhere is not let into the session, neither with a connection nor with a lane.
    let again = Frame::Hello {
        name: "alpha".into(),
        incarnation: 1,
        session: Some(session.0),
        token: vec![],
    };
    for (purpose, frame) in [(Purpose::Control, again), (Purpose::Lane, join(session))] {
        let (_, frames) = read_all(&mut say(to, &greeted(purpose, &[frame])));
        let Some(Frame::Refused { reason, text }) = frames.first() else {
            panic!("{frames:?}");
        };
        assert_eq!(*reason, Refusal::Protocol);
        assert!(text.contains("127.0.0.1:"), "{text}");
        assert!(text.contains("another trust domain"), "{text}");
    }
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let near: SocketAddr = "127.0.0.100:0".parse().unwrap();
    socket.bind(&near.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    let bytes = greeted(Purpose::Lane, &[join(session)]);
    stream.write_all(&bytes).unwrap();
    let lane = target.told("lane", |told| match told {
        Told::Lane(lane) => Some(lane),
        _ => None,
    });
    assert_eq!((lane.session, lane.domain), (session, TrustDomain(100)));
}

#[test]
fn garbage_on_the_port_harms_nobody() {
    let (target, initiator) = (Engine::target(), Engine::initiator());
    initiator.connect(target.listens[0]);
    let hello = Frame::Hello {
        name: "mallory".into(),
        incarnation: 5,
        session: None,
        token: vec![],
    };
    let valid = greeted(Purpose::Control, &[hello, Frame::Heartbeat]);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..300_usize {
        let mut bytes = valid.clone();
        for _ in 0..64 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            bytes.extend_from_slice(&random.to_le_bytes());
        }
        // Cut anywhere, and from some round on with one byte wrong.
        bytes.truncate(random as usize % bytes.len());
        if let Some(byte) = bytes.get_mut(round % (2 * valid.len())) {
            *byte ^= 1 << (random % 8);
        }
        let start = if round % 3 == 0 { GREETING_BYTES } else { 0 };
        let _ = say(target.listens[0], bytes.get(start..).unwrap_or_default());
    }
    initiator.describe_works();
    let other = Engine::initiator();
    other.connect(target.listens[0]);
    other.describe_works();
}

#[test]
fn a_silent_stranger_is_closed() {
    let target = Engine::start("beta", &["127.0.0.2:0"], |config| {
        config.handshake_max = Duration::from_millis(100);
    });
    let began = Instant::now();
    let (greeting, frames) = read_all(&mut say(target.listens[0], b""));
    assert_eq!((greeting, frames), (None, vec![]));
    assert!(began.elapsed() >= Duration::from_millis(100));
}

#[test]
fn a_crowd_of_strangers_keeps_nobody_out() {
    let target = Engine::start("beta", &["127.0.0.2:0"], |config| {
        config.handshake_max = PATIENCE * 10;
        config.handshakes_max = 512;
    });
    let mut crowd: Vec<_> = (0..400)
        .map(|_| TcpStream::connect(target.listens[0]).unwrap())
        .collect();
    let initiator = Engine::initiator();
    initiator.connect(target.listens[0]);
    initiator.describe_works();
    for oldest in &mut crowd[..144] {
        assert_eq!(read_all(oldest), (None, vec![]), "made room");
    }
    let newest = crowd.last_mut().unwrap();
    newest.write_all(b"GET").unwrap();
    assert_eq!(read_all(newest), (None, vec![]), "still listened to");
}

/// Counts what the plane complains about when it cannot accept.
struct Complaints;

static COMPLAINTS: AtomicUsize = AtomicUsize::new(0);

impl log::Log for Complaints {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        let complains = record.args().to_string().contains("cannot accept");
        COMPLAINTS.fetch_add(usize::from(complains), Ordering::SeqCst);
    }
    fn flush(&self) {}
}

/// Limits how many descriptors this process may open.
fn limit_descriptors(current: Option<u64>) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = current;
    setrlimit(Resource::Nofile, limit).unwrap();
}

#[test]
fn without_descriptors_it_waits_instead_of_spinning() {
    const CHILD: &str = "POLYRAIL_TEST_CHILD";
    if std::env::var_os(CHILD).is_none() {
        // The limit holds for a whole process, so this test needs one of its own.
        let name = "plane::tests::without_descriptors_it_waits_instead_of_spinning";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(
            child.status.success() && text.contains("1 passed"),
            "{text}"
        );
        return;
    }
    log::set_logger(&Complaints).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let target = Engine::target();
    let mut stranger =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let usual = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit_descriptors(Some(3));
    let began = Instant::now();
    stranger.connect(&target.listens[0].into()).unwrap();
    until("it complained four times", || {
        COMPLAINTS.load(Ordering::SeqCst) >= 4
    });
    assert!(
        began.elapsed() >= Duration::from_millis(300),
        "it paused three times"
    );
    limit_descriptors(usual);
    stranger.write_all(b"GET").unwrap();
    assert_eq!(read_all(&mut stranger.into()), (None, vec![]), "served");
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    type Change = fn(&mut PlaneConfig);
    let cases: [(&str, Change); 4] = [
        ("256 bytes of name", |c| c.name = "n".repeat(256)),
        ("heartbeat is 0", |c| c.heartbeat = Duration::ZERO),
        ("silence_max", |c| c.silence_max = c.heartbeat),
        ("bytes of token", |c| c.token = vec![0; TOKEN_BYTES_MAX + 1]),
    ];
    for (part, change) in cases {
        let mut config = PlaneConfig::new("alpha", 1, segment("scratch"), Clock::start());
        change(&mut config);
        let (sender, _) = channel();
        let handler = Recorder {
            told: Mutex::new(sender),
            hold_fences: Arc::default(),
            retires: Arc::default(),
            room: Arc::default(),
            heard: Arc::default(),
            idle: Arc::default(),
            moved: Arc::default(),
            began: Arc::default(),
        };
        let error = Plane::start(config, Arc::new(handler)).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn the_end_of_a_peers_process_is_told_at_once_and_is_proof() {
    let (mut child, process) = crate::process::tests::sleeper();
    let target = Engine::start("beta", &["127.0.0.2:0"], |config| {
        config.process = Some(process);
    });
    let initiator = Engine::initiator();
    initiator.connect(target.listens[0]);
    // What the target said of itself came before this answer.
    initiator.describe_works();
    child.kill().unwrap();
    let loss = initiator.told_lost();
    let SessionLoss::Exited { pid, .. } = &loss else {
        panic!("{loss}");
    };
    assert_eq!(*pid, process.pid);
    assert!(
        loss.is_proof() && loss.to_string().contains("\"beta\""),
        "{loss}"
    );
    // Forgotten: asked again, it is nobody.
    let asked = initiator.plane.describe(PEER, "mem", PATIENCE);
    assert!(matches!(asked, Err(AskError::NoPeer { .. })), "{asked:?}");
    child.wait().unwrap();
}

#[test]
fn the_session_of_an_initiator_ends_with_its_process() {
    let (mut child, process) = crate::process::tests::sleeper();
    let target = Engine::target();
    let initiator = Engine::start("alpha", &[], |config| config.process = Some(process));
    let met = initiator.connect(target.listens[0]);
    initiator.describe_works();
    child.kill().unwrap();
    // Its connections are as good as ever, and a session without any would have lingered for ten seconds.
    let (session, retired) = target.told_ended();
    assert_eq!(session, met.session);
    retired();
    child.wait().unwrap();
}

#[test]
fn a_peer_that_says_nothing_of_its_process_is_watched_by_its_silence_only() {
    let (mut child, process) = crate::process::tests::sleeper();
    let target = Engine::start("beta", &["127.0.0.2:0"], |config| {
        let elsewhere = process.boot ^ 1;
        config.process = Some(Process {
            boot: elsewhere,
            ..process
        });
    });
    let initiator = Engine::initiator();
    initiator.connect(target.listens[0]);
    initiator.describe_works();
    child.kill().unwrap();
    child.wait().unwrap();
    // Long enough for a watch to have spoken.
    let heard = initiator.heard.load(Ordering::SeqCst);
    until("a heartbeat", || {
        initiator.heard.load(Ordering::SeqCst) > heard
    });
    initiator.describe_works();
}

/// An initiator's connection that has said which process it is, and was heard.
fn initiator_in(process: Process, target: &Engine) -> TcpStream {
    let frames = [
        Frame::Hello {
            name: "alpha".into(),
            incarnation: 1,
            session: None,
            token: vec![],
        },
        Frame::Process(process),
    ];
    let mut stream = say(target.listens[0], &greeted(Purpose::Control, &frames));
    // Its answer comes after the claim was seen.
    let describe = Frame::Describe {
        question: 1,
        name: "mem".into(),
    };
    stream.write_all(&frame_bytes(&describe)).unwrap();
    let mut decoder = Decoder::default();
    let mut bytes = [0; 4096];
    let mut greeted = false;
    let mut answered = false;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    while !answered {
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0, "the target hung up");
        decoder.push(&bytes[..count]);
        greeted = greeted || decoder.next_greeting().unwrap().is_some();
        while let Some(frame) = greeted.then(|| decoder.next_frame().unwrap()).flatten() {
            answered |= matches!(frame, Frame::Description { .. });
        }
    }
    stream
}

#[test]
fn each_engine_of_a_process_is_gone_when_it_ends_and_none_before() {
    let (mut child, process) = crate::process::tests::sleeper();
    // Nothing ends by silence here.
    let target = Engine::start("beta", &["127.0.0.2:0"], |config| {
        config.silence_max = PATIENCE * 10;
    });
    let mut streams: Vec<_> = (0..3).map(|_| initiator_in(process, &target)).collect();
    // One leaves, and the others are watched still.
    streams[0].write_all(&frame_bytes(&Frame::Goodbye)).unwrap();
    let left = target.told_ended().0;
    child.kill().unwrap();
    child.wait().unwrap();
    let ended = [target.told_ended().0, target.told_ended().0];
    assert!(ended[0] != ended[1] && !ended.contains(&left));
}

#[test]
fn what_a_process_said_before_its_end_still_counts() {
    let (mut child, process) = crate::process::tests::sleeper();
    let target = Engine::target();
    let mut stream = initiator_in(process, &target);
    // More than one turn of the control thread reads, and the process ends right after it.
    let mut calls = Vec::new();
    let body = vec![7; CALL_BYTES_MAX];
    let call = |number, body: &[u8]| Frame::Call {
        number,
        method: number as u16,
        body: body.into(),
    };
    codec::encode(&call(1, &body), &mut calls).unwrap();
    for _ in 0..3 {
        // Repetitions, which are not carried out again.
        codec::encode(&call(1, &body), &mut calls).unwrap();
    }
    codec::encode(&Frame::Fence { lane: 5, epoch: 6 }, &mut calls).unwrap();
    stream.write_all(&calls).unwrap();
    child.kill().unwrap();
    // Told of the fence, and only then of the end.
    target.told("the fence", |told| match told {
        Told::Fence(LANE, EPOCH, _) => Some(()),
        Told::Ended(..) => panic!("ended before it was heard out"),
        _ => None,
    });
    let (_, retired) = target.told_ended();
    retired();
    child.wait().unwrap();
}

#[test]
fn a_peer_says_how_it_sees_a_connection() {
    let target = Engine::target();
    let initiator = Engine::initiator();
    initiator.connect(target.listens[0]);
    let rail = |own: &str, peer: &str| (own.parse().unwrap(), peer.parse().unwrap());
    let see = |rails| initiator.plane.see_path(PEER, rails, PATIENCE).unwrap();
    let ours = PathView::new(&PathConfig::DEFAULT, [rail("10.0.1.2", "10.0.1.3")]);
    let view = see(vec![rail("10.0.1.2", "10.0.1.3")]).unwrap();
    assert_eq!(
        (view.own, view.peer),
        (ours.peer, ours.own),
        "from its side"
    );
    assert!(ours.agree(&view).is_ok());
    let other = see(vec![rail("10.0.1.2", "10.0.2.3")]).unwrap();
    assert!(ours.agree(&other).is_err());
    assert_eq!(see(vec![]), None);
    let too_many = vec![rail("10.0.1.2", "10.0.1.3"); PATH_RAILS_MAX + 1];
    assert_eq!(see(too_many), None);
}
