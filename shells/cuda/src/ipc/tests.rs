//! Targets and what strangers may get out of them.

mod host;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use polyrail_core::units::{RailId, SegmentRef, TransportId};
use polyrail_core::work::{Cause, LaneFact, Op, Outcome, Place, PostBatch, Scope, Stop, Work};
use polyrail_transport::memory::{Access, Region, RegionKey, TrustDomain};
use polyrail_transport::{Polled, RailAddress, RemoteRegion};

use super::wire::{Memory, Request, VERSION};
use super::*;
use crate::driver::Sharing;
use crate::stub::{Machine, Stub};

const SESSION: SessionId = SessionId([7; 16]);
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Regions(Mutex<HashMap<RegionKey, Arc<Region>>>);

impl RegionTable for Regions {
    fn find(&self, key: &RegionKey, _: TrustDomain) -> Option<Arc<Region>> {
        self.0.lock().unwrap().get(key).cloned()
    }
}

struct Target {
    stub: Arc<Stub>,
    gpus: Arc<Gpus>,
    regions: Arc<Regions>,
    transport: CudaIpcTransport,
}

impl Target {
    fn new() -> Self {
        let stub = Arc::new(Stub::new(Machine::default()));
        let gpus = Gpus::over(stub.clone());
        let regions = Arc::new(Regions::default());
        let transport = CudaIpcTransport::new(gpus.clone(), regions.clone()).unwrap();
        transport.begin_session(SESSION, TrustDomain::COMMON, None);
        Self {
            stub,
            gpus,
            regions,
            transport,
        }
    }

    fn add(&self, region: Region) -> (RegionKey, Arc<Region>) {
        let region = Arc::new(region);
        let key = region.key();
        self.regions.0.lock().unwrap().insert(key, region.clone());
        (key, region)
    }

    fn gpu(&self, access: Access) -> (RegionKey, Arc<Region>) {
        let region = self.gpus.allocate(0, 4096, access, Sharing::Process);
        self.add(region.unwrap())
    }

    fn lane(&self, session: SessionId, lane: (u32, u32)) -> Peer {
        let socket = far::greet(&self.transport.address(), session, None, Some(lane));
        Peer(socket.unwrap().0)
    }

    /// One that was let in.
    fn let_in(&self, lane: (u32, u32)) -> Peer {
        let peer = self.lane(SESSION, lane);
        assert_eq!(peer.hear(), Some(Answer::Ready));
        peer
    }

    fn fence(&self, lane: u32, epoch: u32) -> Receiver<u32> {
        let (tell, told) = channel();
        let answer = Box::new(move |count| tell.send(count).unwrap());
        self.transport
            .fence_inbound(SESSION, LaneId(lane), Epoch(epoch), answer);
        told
    }
}

/// A peer that says what it likes.
struct Peer(OwnedFd);

impl Peer {
    fn say(&self, request: &Request) {
        wire::send(&self.0, request).unwrap();
    }

    /// The next answer; `None`: it has been hung up on.
    fn hear(&self) -> Option<Answer> {
        let longest = Timespec::try_from(PATIENCE).unwrap();
        let mut ready = [PollFd::new(&self.0, PollFlags::IN)];
        assert_eq!(poll(&mut ready, Some(&longest)).unwrap(), 1, "no answer");
        wire::receive(&self.0).ok().flatten()
    }

    fn open(&self, key: RegionKey) -> Option<Answer> {
        self.say(&Request::Open { key });
        self.hear()
    }
}

#[test]
fn nobody_gets_in_who_should_not() {
    let target = Target::new();
    let stranger = target.lane(SessionId([8; 16]), (1, 1));
    assert_eq!(stranger.hear(), Some(Answer::Refused));
    assert_eq!(stranger.hear(), None);
    assert!(ask(&target.transport.address(), SESSION, None).is_ok());
    assert!(ask(&target.transport.address(), SessionId([8; 16]), None).is_err());
    let (key, _region) = target.gpu(Access::RemoteReadWrite);
    let session = SESSION.0;
    // (name, what it says first)
    let cases = [
        ("it does not greet", Request::Open { key }),
        (
            "another version",
            Request::Hello {
                version: VERSION + 1,
                session,
                lane: Some((1, 1)),
            },
        ),
    ];
    for (name, first) in cases {
        let peer = Peer(packets::connect_to(&target.transport.address()).unwrap());
        peer.say(&first);
        let answer = peer.hear();
        assert!(matches!(answer, None | Some(Answer::Refused)), "{name}");
    }
    // Who only asked whether it could has no lane, and opens nothing.
    let asked = far::greet(&target.transport.address(), SESSION, None, None);
    let asking = Peer(asked.unwrap().0);
    assert_eq!(asking.hear(), Some(Answer::Ready));
    assert_eq!(asking.open(key), None);
    // An epoch that is over stays over.
    let told = target.fence(1, 5);
    assert_eq!(told.recv_timeout(PATIENCE), Ok(0));
    assert_eq!(target.lane(SESSION, (1, 5)).hear(), Some(Answer::Refused));
    let _peer = target.let_in((1, 6));
}

#[test]
fn who_does_not_become_a_lane_is_hung_up_on() {
    let target = Target::new();
    let lane = target.let_in((1, 1));
    let silent = Peer(packets::connect_to(&target.transport.address()).unwrap());
    let half = Peer(packets::connect_to(&target.transport.address()).unwrap());
    half.say(&Request::Challenge);
    assert!(matches!(half.hear(), Some(Answer::Challenge { .. })));
    let asked = far::greet(&target.transport.address(), SESSION, None, None);
    let asked = Peer(asked.unwrap().0);
    assert_eq!(asked.hear(), Some(Answer::Ready));
    for (name, peer) in [("silent", silent), ("half", half), ("asked", asked)] {
        assert_eq!(peer.hear(), None, "{name}");
    }
    // Who is a lane came before them, and stays.
    let (key, _region) = target.gpu(Access::RemoteReadWrite);
    assert!(matches!(lane.open(key), Some(Answer::Opens { .. })));
}

#[test]
fn only_what_peers_may_use_is_opened() {
    let target = Target::new();
    let peer = target.let_in((1, 1));
    let unknown = RegionKey([9; 16]);
    let (private, _kept) = target.gpu(Access::Local);
    for key in [unknown, private] {
        assert_eq!(peer.open(key), Some(Answer::Nothing { key }));
    }
    let host = Region::allocate(4096, Access::RemoteReadWrite).unwrap();
    let (key, _host) = target.add(host);
    assert_eq!(peer.open(key), Some(Answer::IsOnHost { key }));
    for (access, writable) in [(Access::RemoteRead, false), (Access::RemoteReadWrite, true)] {
        let (key, _region) = target.gpu(access);
        match peer.open(key) {
            Some(Answer::Opens { key: of, memory }) => {
                assert_eq!((of, memory.writable, memory.bytes), (key, writable, 4096));
            }
            other => panic!("{other:?}"),
        }
    }
    let (key, _region) = target.gpu(Access::RemoteRead);
    assert!(matches!(peer.open(key), Some(Answer::Opens { .. })));
    assert_eq!(peer.open(key), None, "it asks twice");
}

#[test]
fn memory_is_taken_back_when_the_peer_has_left_it() {
    let target = Target::new();
    let peer = target.let_in((1, 1));
    let (key, region) = target.gpu(Access::RemoteReadWrite);
    assert!(matches!(peer.open(key), Some(Answer::Opens { .. })));
    std::thread::scope(|scope| {
        let going = scope.spawn(|| region.revoke());
        assert_eq!(peer.hear(), Some(Answer::Leave { key }));
        assert!(!going.is_finished());
        peer.say(&Request::Left { key });
    });
    target.regions.0.lock().unwrap().remove(&key);
    drop(region);
    assert_eq!(target.stub.counts().allocations, 0);
    assert_eq!(peer.open(key), Some(Answer::Nothing { key }));
}

#[test]
fn memory_that_a_peer_does_not_leave_is_lent_until_it_has() {
    let target = Target::new();
    let peer = target.let_in((1, 1));
    let (key, region) = target.gpu(Access::RemoteReadWrite);
    assert!(matches!(peer.open(key), Some(Answer::Opens { .. })));
    region.recall();
    assert_eq!(peer.hear(), Some(Answer::Leave { key }));
    region.end_loans(std::time::Instant::now());
    assert!(region.is_lent() && region.is_touched());
    peer.say(&Request::Left { key });
    let until = std::time::Instant::now() + PATIENCE;
    while region.is_lent() {
        assert!(std::time::Instant::now() < until);
        std::thread::yield_now();
    }
    // One that is left when the transport ends is never known to be over.
    let (key, region) = target.gpu(Access::RemoteReadWrite);
    assert!(matches!(peer.open(key), Some(Answer::Opens { .. })));
    region.recall();
    region.end_loans(std::time::Instant::now());
    let Target {
        stub,
        regions,
        transport,
        ..
    } = target;
    drop((transport, peer));
    assert!(region.is_lent());
    regions.0.lock().unwrap().clear();
    let allocations = stub.counts().allocations;
    drop(region);
    assert_eq!(stub.counts().allocations, allocations, "it was freed");
}

#[test]
fn a_fence_is_answered_when_all_is_left_and_a_closed_socket_is_no_answer() {
    let target = Target::new();
    let (key, _region) = target.gpu(Access::RemoteReadWrite);
    // (name, how the peer ends, whether that says that it has left)
    type End = fn(Peer, RegionKey);
    let cases: [(&str, End, bool); 3] = [
        (
            "it leaves",
            |peer, key| peer.say(&Request::Left { key }),
            true,
        ),
        ("it is over", |peer, _| peer.say(&Request::Over), true),
        ("it hangs up", |peer, _| drop(peer), false),
    ];
    for (lane, (name, end, answers)) in (1..).zip(cases) {
        let peer = target.let_in((lane, 1));
        assert!(matches!(peer.open(key), Some(Answer::Opens { .. })));
        let told = target.fence(lane, 1);
        assert_eq!(peer.hear(), Some(Answer::Leave { key }), "{name}");
        let silent = told.recv_timeout(Duration::from_millis(20));
        assert_eq!(silent, Err(RecvTimeoutError::Timeout), "{name}");
        end(peer, key);
        match answers {
            true => assert_eq!(told.recv_timeout(PATIENCE), Ok(0), "{name}"),
            false => {
                // The process, which is this one, still lives.
                let silent = told.recv_timeout(Duration::from_millis(100));
                assert_eq!(silent, Err(RecvTimeoutError::Timeout), "{name}");
            }
        }
    }
}

/// Where the child of the next test finds its target, and what it says there.
const CHILD: &str = "POLYRAIL_TEST_CHILD";

/// The child: a lane that opens memory, and a process that ends without a word.
#[test]
fn a_child_that_opens_memory_and_ends() {
    let Ok(told) = std::env::var(CHILD) else {
        return;
    };
    let words: Vec<&str> = told.split(' ').collect();
    let [name, key, lane, served] = words[..] else {
        panic!("{told}");
    };
    let lane = (lane.parse().unwrap(), 1);
    let socket = far::greet(name.as_bytes(), SESSION, None, Some(lane));
    let peer = Peer(socket.unwrap().0);
    assert_eq!(peer.hear(), Some(Answer::Ready));
    let key = u128::from_str_radix(key, 16).unwrap();
    let opened = peer.open(RegionKey(key.to_be_bytes()));
    assert!(matches!(opened, Some(Answer::Opens { .. })));
    if served == "true" {
        peer.say(&Request::Served);
    }
    std::process::exit(0);
}

#[test]
fn the_end_of_a_process_is_that_of_its_copies_unless_a_server_carries_them_out() {
    let target = Target::new();
    let (key, region) = target.gpu(Access::RemoteReadWrite);
    let name = String::from_utf8(target.transport.address()).unwrap();
    let number = u128::from_be_bytes(key.0);
    for (lane, served) in [(1, false), (2, true)] {
        let ended = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "ipc::tests::a_child_that_opens_memory_and_ends"])
            .env(CHILD, format!("{name} {number:032x} {lane} {served}"))
            .stdout(std::process::Stdio::null())
            .status();
        assert!(ended.unwrap().success());
        let told = target.fence(lane, 1);
        match served {
            false => assert_eq!(told.recv_timeout(PATIENCE), Ok(0)),
            true => {
                let silent = told.recv_timeout(Duration::from_millis(100));
                assert_eq!(silent, Err(RecvTimeoutError::Timeout));
            }
        }
        region.end_loans(std::time::Instant::now());
        assert_eq!(region.is_lent(), served, "served: {served}");
    }
}

#[test]
fn what_a_peer_said_before_it_hung_up_is_heard() {
    // A lane that was fenced before it had heard what opens its memory: the target could not tell it, and waited for the
    // end of its process, though the peer had said that the lane was over.
    let target = Target::new();
    let (key, region) = target.gpu(Access::RemoteReadWrite);
    let peer = target.let_in((1, 1));
    let (go_on, waits) = channel::<()>();
    let (tell, held) = channel();
    let hold = Box::new(move |_| {
        tell.send(()).unwrap();
        waits.recv().unwrap();
    });
    let transport = &target.transport;
    transport.fence_inbound(SESSION, LaneId(9), Epoch(1), hold);
    held.recv_timeout(PATIENCE).unwrap();
    peer.say(&Request::Open { key });
    peer.say(&Request::Over);
    drop(peer);
    go_on.send(()).unwrap();
    let told = target.fence(1, 1);
    assert_eq!(told.recv_timeout(PATIENCE), Ok(0));
    target.regions.0.lock().unwrap().remove(&key);
    region.revoke();
    drop(region);
    assert_eq!(target.stub.counts().allocations, 0);
}

/// The kernel tells of a socket that was closed with something unread in it before what came over it is read.
#[test]
fn the_last_word_of_a_peer_is_heard_that_did_not_wait_for_an_answer() {
    let target = Target::new();
    let (key, region) = target.gpu(Access::RemoteReadWrite);
    let peer = target.let_in((1, 1));
    assert!(matches!(peer.open(key), Some(Answer::Opens { .. })));
    // A newer one begins, and the older one is called back, which it does not read.
    let newer = target.let_in((1, 2));
    let mut ready = [PollFd::new(&peer.0, PollFlags::IN)];
    poll(&mut ready, None).unwrap();
    // The target does something else while the older one ends.
    let (go_on, waits) = channel::<()>();
    let answer = Box::new(move |_| waits.recv().unwrap());
    target
        .transport
        .fence_inbound(SESSION, LaneId(9), Epoch(1), answer);
    peer.say(&Request::Over);
    drop((peer, newer));
    go_on.send(()).unwrap();
    target.regions.0.lock().unwrap().remove(&key);
    assert!(region.revoke(), "it counts as open still");
}

#[test]
fn a_session_is_over_when_all_of_its_lanes_have_left() {
    let target = Target::new();
    let (key, _region) = target.gpu(Access::RemoteReadWrite);
    let peers = [target.let_in((1, 1)), target.let_in((2, 1))];
    for peer in &peers {
        assert!(matches!(peer.open(key), Some(Answer::Opens { .. })));
    }
    let (tell, told) = channel();
    target
        .transport
        .retire_session(SESSION, Box::new(move || tell.send(()).unwrap()));
    for peer in peers {
        assert_eq!(peer.hear(), Some(Answer::Leave { key }));
        assert!(told.try_recv().is_err());
        peer.say(&Request::Over);
    }
    assert_eq!(told.recv_timeout(PATIENCE), Ok(()));
    assert_eq!(target.lane(SESSION, (3, 1)).hear(), Some(Answer::Refused));
}

/// An initiator's endpoint with one lane to a target that says what it likes, on whose memory it has a copy under way.
struct Initiator {
    stub: Arc<Stub>,
    endpoint: Box<dyn Endpoint>,
    listener: OwnedFd,
    /// The target's end.
    peer: Peer,
    key: RegionKey,
    memory: Memory,
    lane: LaneId,
    clock: Clock,
    polled: Polled,
}

/// A lane that an initiator has just connected.
fn greeted(listener: &OwnedFd, lane: (u32, u32)) -> Peer {
    let peer = Peer(packets::accept(listener).unwrap());
    let hello = Request::Hello {
        version: VERSION,
        session: SESSION.0,
        lane: Some(lane),
    };
    assert_eq!(wire::receive(&peer.0).unwrap(), Some(hello));
    peer
}

impl Initiator {
    fn new() -> Self {
        let mut initiator = Self::asking(|_| Region::allocate(4096, Access::Local).unwrap());
        let (key, memory) = (initiator.key, initiator.memory);
        initiator.stub.hold();
        initiator.tell(&Answer::Opens { key, memory });
        while initiator.stub.counts().copies == 0 {
            initiator.poll();
        }
        initiator
    }

    /// One that reads into memory of a device, and has asked what opens the far end.
    fn on_device() -> Self {
        Self::asking(|gpus| {
            let region = gpus.allocate(0, 4096, Access::Local, Sharing::Process);
            region.unwrap()
        })
    }

    /// The same, into this memory.
    fn asking(near: impl FnOnce(&Arc<Gpus>) -> Region) -> Self {
        Self::on(Machine::default(), near)
    }

    /// The same, on this machine.
    fn on(machine: Machine, near: impl FnOnce(&Arc<Gpus>) -> Region) -> Self {
        let stub = Arc::new(Stub::new(machine));
        let gpus = Gpus::over(stub.clone());
        let transport = CudaIpcTransport::new(gpus.clone(), Arc::new(Regions::default())).unwrap();
        let name = RegionKey::random().unwrap().0;
        let listener = packets::listen_at(&name).unwrap();
        let clock = Clock::start();
        let mut endpoint = transport.endpoint(0, clock).unwrap();
        endpoint.attach_local(SegmentRef(1), Arc::new(near(&gpus)));
        let key = RegionKey([5; 16]);
        let bytes = 4096;
        endpoint.attach_remote(SegmentRef(2), RemoteRegion { key, bytes });
        let lane = LaneId::new(0, RailId(0));
        let address = RailAddress {
            transport: TransportId(0),
            local: None,
            remote: ([0, 0, 0, 0], 0).into(),
            session: SESSION,
            secret: None,
            own: name.as_slice().into(),
        };
        endpoint.attach_rail(RailId(0), address);
        let base = gpus
            .driver()
            .allocate(0, 8192, Sharing::Process)
            .and_then(|address| gpus.export(address + 100, 4096));
        let memory = Memory::new(&base.unwrap(), gpus.gpus().unwrap()[0].uuid, 4096, false);
        endpoint.open(lane, Epoch(1), clock.now() + PATIENCE.into());
        let mut initiator = Self {
            stub,
            endpoint,
            peer: greeted(&listener, (lane.0, 1)),
            listener,
            key,
            memory,
            lane,
            clock,
            polled: Polled::default(),
        };
        initiator.tell(&Answer::Ready);
        assert!(matches!(initiator.fact(), LaneFact::Opened { .. }));
        assert_eq!(initiator.post(), Stop::All);
        assert_eq!(initiator.hears(), Some(Request::Open { key }));
        initiator
    }

    fn tell(&self, answer: &Answer) {
        wire::send(&self.peer.0, answer).unwrap();
    }

    fn hears(&self) -> Option<Request> {
        wire::receive(&self.peer.0).unwrap()
    }

    /// The next request, once it comes.
    fn heard(&mut self) -> Request {
        loop {
            if let Some(request) = self.hears() {
                return request;
            }
            self.poll();
        }
    }

    /// A read of some bytes.
    fn post(&mut self) -> Stop {
        let place = |segment| Place {
            segment: SegmentRef(segment),
            offset: 0,
        };
        let work = Work {
            cookie: 1,
            op: Op::Read,
            local: place(1),
            remote: place(2),
            length: 4096,
            signal: true,
        };
        let batch = PostBatch {
            lane: self.lane,
            epoch: Epoch(1),
            works: [work].into_iter().collect(),
        };
        self.endpoint.post(&batch).stop
    }

    fn poll(&mut self) {
        let now = self.clock.now();
        self.endpoint.poll(now, &mut self.polled);
    }

    fn fact(&mut self) -> LaneFact {
        while self.polled.lanes.is_empty() {
            self.poll();
        }
        self.polled.lanes.remove(0).fact
    }
}

#[test]
fn who_copies_by_a_server_says_so_before_the_first_copy() {
    for served in [false, true] {
        let machine = Machine {
            served,
            ..Machine::default()
        };
        let mut initiator =
            Initiator::on(machine, |_| Region::allocate(4096, Access::Local).unwrap());
        initiator.stub.hold();
        let (key, memory) = (initiator.key, initiator.memory);
        initiator.tell(&Answer::Opens { key, memory });
        while initiator.stub.counts().copies == 0 {
            initiator.poll();
        }
        let said = initiator.hears();
        assert_eq!(said, served.then_some(Request::Served));
        initiator.stub.go_on();
    }
}

#[test]
fn what_ends_behind_a_target_that_has_gone_is_not_reported() {
    let mut initiator = Initiator::new();
    rustix::net::shutdown(&initiator.peer.0, rustix::net::Shutdown::Both).unwrap();
    // The copy is over before anybody has heard of the end.
    initiator.stub.go_on();
    assert_eq!(initiator.fact(), LaneFact::Broken(Cause::Reset));
    let lane = initiator.lane;
    initiator.endpoint.fence(lane, Epoch(1), Scope::Local);
    let fenced = |fact| matches!(fact, LaneFact::Fenced { .. });
    while !fenced(initiator.fact()) {}
    assert_eq!(initiator.polled.completions, []);
    while initiator.stub.counts().imported > 0 {
        std::thread::yield_now();
    }
}

/// The driver closes memory once the device is idle: a worker stood still with all of its lanes until the program's kernels had ended.
#[test]
fn memory_that_takes_long_to_close_holds_up_nothing_and_is_left_behind_that() {
    let mut initiator = Initiator::new();
    let key = initiator.key;
    initiator.stub.hold_releases(true);
    initiator.tell(&Answer::Leave { key });
    initiator.stub.go_on();
    while initiator.stub.releases_held() == 0 || initiator.polled.completions.is_empty() {
        initiator.poll();
    }
    assert_eq!(initiator.stub.counts().imported, 1);
    // What comes later goes on: it asks anew, opens, and copies.
    initiator.polled.completions.clear();
    assert_eq!(initiator.post(), Stop::All);
    assert_eq!(
        initiator.heard(),
        Request::Open { key },
        "it is said to be left"
    );
    let memory = initiator.memory;
    initiator.tell(&Answer::Opens { key, memory });
    while initiator.polled.completions.is_empty() {
        initiator.poll();
    }
    assert_eq!(initiator.polled.completions[0].outcome, Outcome::Success);
    assert_eq!(initiator.hears(), None, "it is open still");
    // Neither does the end of the lane wait, nor is it said to be over.
    let lane = initiator.lane;
    initiator.endpoint.fence(lane, Epoch(1), Scope::Local);
    while !matches!(initiator.fact(), LaneFact::Fenced { .. }) {}
    assert_eq!(initiator.hears(), None);
    initiator.stub.hold_releases(false);
    assert_eq!(initiator.heard(), Request::Over);
    assert_eq!(initiator.stub.counts().imported, 0);
}

#[test]
fn memory_is_left_when_the_last_copy_is_over_and_no_sooner() {
    let mut initiator = Initiator::new();
    let key = initiator.key;
    initiator.tell(&Answer::Leave { key });
    for _ in 0..100 {
        initiator.poll();
        assert_eq!(initiator.hears(), None, "it still copies");
    }
    assert_eq!(initiator.stub.counts().imported, 1);
    initiator.stub.go_on();
    while initiator.polled.completions.is_empty() {
        initiator.poll();
    }
    assert_eq!(initiator.heard(), Request::Left { key });
    assert_eq!(initiator.stub.counts().imported, 0);
    // What comes later asks anew.
    assert_eq!(initiator.post(), Stop::All);
    assert_eq!(initiator.heard(), Request::Open { key });
    initiator.tell(&Answer::Nothing { key });
    initiator.polled.completions.clear();
    while initiator.polled.completions.is_empty() {
        initiator.poll();
    }
    let outcome = initiator.polled.completions[0].outcome;
    assert_eq!(outcome, Outcome::Error(Cause::RemoteAccess));
}

#[test]
fn memory_that_nobody_here_names_any_more_is_left_when_the_last_copy_is_over() {
    // It stayed open until the target wanted it back.
    let mut initiator = Initiator::new();
    let key = initiator.key;
    let region = || RemoteRegion { key, bytes: 4096 };
    let remote = SegmentRef(2);
    initiator.endpoint.detach_remote(remote);
    for _ in 0..100 {
        initiator.poll();
        assert_eq!(initiator.hears(), None, "it still copies");
    }
    initiator.stub.go_on();
    while initiator.polled.completions.is_empty() {
        initiator.poll();
    }
    assert_eq!(initiator.heard(), Request::Left { key });
    assert_eq!(initiator.stub.counts().imported, 0);
    // It is asked for anew then, and an answer that comes too late opens nothing that stays open.
    initiator.endpoint.attach_remote(remote, region());
    assert_eq!(initiator.post(), Stop::All);
    assert_eq!(initiator.heard(), Request::Open { key });
    initiator.endpoint.detach_remote(remote);
    let memory = initiator.memory;
    initiator.tell(&Answer::Opens { key, memory });
    initiator.polled.completions.clear();
    while initiator.polled.completions.is_empty() {
        initiator.poll();
    }
    // It is said once it is so.
    assert_eq!(initiator.heard(), Request::Left { key });
    assert_eq!(initiator.stub.counts().imported, 0);
}

#[test]
fn what_the_driver_refuses_to_open_is_tried_before_its_rail_counts_as_good_again() {
    let mut initiator = Initiator::new();
    let (key, lane) = (initiator.key, initiator.lane);
    let opens = Answer::Opens {
        key,
        memory: initiator.memory,
    };
    initiator.tell(&Answer::Leave { key });
    initiator.stub.go_on();
    while initiator.polled.completions.is_empty() {
        initiator.poll();
    }
    assert_eq!(initiator.heard(), Request::Left { key });
    initiator.polled.completions.clear();
    // Its own driver refuses.
    initiator.stub.set_closed(true);
    assert_eq!(initiator.post(), Stop::All);
    assert_eq!(initiator.heard(), Request::Open { key });
    initiator.tell(&opens);
    while initiator.polled.completions.is_empty() {
        initiator.poll();
    }
    let outcome = initiator.polled.completions[0].outcome;
    assert_eq!(outcome, Outcome::Error(Cause::Refused));
    // (epoch, what the target says, whether the initiator's driver still refuses, whether the lane opens)
    let cases = [
        (2, opens, true, false),
        (3, Answer::Locked { key }, false, false),
        (4, opens, false, true),
    ];
    for (epoch, says, closed, is_open) in cases {
        initiator
            .endpoint
            .fence(lane, Epoch(epoch - 1), Scope::Local);
        while !matches!(initiator.fact(), LaneFact::Fenced { .. }) {}
        initiator.polled.lanes.clear();
        initiator.stub.set_closed(closed);
        let by = initiator.clock.now() + PATIENCE.into();
        initiator.endpoint.open(lane, Epoch(epoch), by);
        initiator.peer = greeted(&initiator.listener, (lane.0, epoch));
        initiator.tell(&Answer::Ready);
        let asked = loop {
            initiator.poll();
            if let Some(asked) = initiator.hears() {
                break asked;
            }
        };
        assert_eq!(asked, Request::Open { key }, "{epoch}");
        assert_eq!(initiator.polled.lanes, [], "{epoch}");
        initiator.tell(&says);
        let opened = matches!(initiator.fact(), LaneFact::Opened { .. });
        assert_eq!(opened, is_open, "{epoch}");
    }
    assert_eq!(initiator.stub.counts().imported, 1);
}

#[test]
fn a_lane_that_is_over_says_so_behind_its_last_copy() {
    let mut initiator = Initiator::new();
    let lane = initiator.lane;
    initiator.endpoint.fence(lane, Epoch(1), Scope::Local);
    for _ in 0..100 {
        initiator.poll();
        assert_eq!(initiator.hears(), None, "it still copies");
    }
    initiator.stub.go_on();
    let fenced = |fact| matches!(fact, LaneFact::Fenced { .. });
    assert!(fenced(initiator.fact()));
    assert_eq!(initiator.polled.completions.len(), 1);
    assert_eq!(initiator.heard(), Request::Over);
    assert!(wire::receive::<Request>(&initiator.peer.0).is_err());
}

#[test]
fn a_target_that_says_nonsense_loses_its_lane() {
    let key = RegionKey([6; 16]);
    // (name, what it says)
    let cases = [
        ("it was not asked", Answer::Nothing { key }),
        ("it lets in twice", Answer::Ready),
    ];
    for (name, answer) in cases {
        let mut initiator = Initiator::new();
        initiator.tell(&answer);
        assert_eq!(initiator.fact(), LaneFact::Broken(Cause::Reset), "{name}");
        initiator.stub.go_on();
    }
    // And what is not writable is not written, whatever the work says; nor what lies behind the end.
    let mut initiator = Initiator::new();
    let place = |segment, offset| Place {
        segment: SegmentRef(segment),
        offset,
    };
    for (op, offset) in [(Op::Write, 0), (Op::Read, 4095)] {
        let work = Work {
            cookie: 2,
            op,
            local: place(1, 0),
            remote: place(2, offset),
            length: 2,
            signal: true,
        };
        let batch = PostBatch {
            lane: initiator.lane,
            epoch: Epoch(1),
            works: [work].into_iter().collect(),
        };
        let refused = Stop::Rejected(Cause::RemoteAccess);
        assert_eq!(initiator.endpoint.post(&batch).stop, refused, "{op:?}");
    }
    initiator.stub.go_on();
}

#[test]
fn a_session_with_a_secret_lets_in_who_proves_it_and_believes_no_one_else() {
    use polyrail_transport::ticket::{EXPORTED_BYTES, NONCE_BYTES, Nonce, PROOF_BYTES, Proof};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    let secret = |byte| {
        let denied = Arc::<AtomicU64>::default();
        let keyed = SessionId([6; 16]);
        let secret =
            SessionSecret::new(&[byte; EXPORTED_BYTES], keyed, 1, 2, denied.clone()).unwrap();
        (keyed, secret, denied)
    };
    let target = Target::new();
    let (keyed, ours, denied) = secret(1);
    let begins = Some(ours.clone());
    target
        .transport
        .begin_session(keyed, TrustDomain::COMMON, begins);
    let address = target.transport.address();
    assert!(ask(&address, keyed, Some(&ours)).is_ok());
    let name = (1, 1);
    let entry = wire::entry(keyed, Some(name));
    let proved = |ticket| Request::HelloProved {
        version: VERSION,
        session: keyed.0,
        lane: Some(name),
        ticket,
    };
    let challenge = |peer: &Peer| {
        peer.say(&Request::Challenge);
        match peer.hear() {
            Some(Answer::Challenge { nonce }) => nonce,
            other => panic!("{other:?}"),
        }
    };
    let connect = || Peer(packets::connect_to(&address).unwrap());
    let fair = connect();
    let recorded = ours.ticket(&entry, challenge(&fair)).unwrap();
    fair.say(&proved(recorded));
    let Some(Answer::Proved { proof }) = fair.hear() else {
        panic!("no proof");
    };
    assert_eq!(fair.hear(), Some(Answer::Ready));
    let (key, _) = target.gpu(Access::RemoteReadWrite);
    let works = |name: &str| {
        let opens = fair.open(key);
        assert!(
            matches!(opens, Some(Answer::Opens { .. })),
            "{name}: {opens:?}"
        );
        fair.say(&Request::Left { key });
    };
    works("the fair one");
    // Who says no ticket, an old one, the target's proof, or one of another secret or lane.
    let other = secret(2).1;
    let of_other_lane = wire::entry(keyed, Some((2, 1)));
    type Makes<'a> = Box<dyn Fn(Nonce) -> Request + 'a>;
    let cases: Vec<(&str, Makes<'_>)> = vec![
        (
            "none",
            Box::new(|_| Request::Hello {
                version: VERSION,
                session: keyed.0,
                lane: Some((1, 2)),
            }),
        ),
        ("an old one", Box::new(|_| proved(recorded))),
        (
            "the target's proof",
            Box::new(|_| proved(polyrail_transport::ticket::Ticket { proof, ..recorded })),
        ),
        (
            "another secret",
            Box::new(|nonce| proved(other.ticket(&entry, nonce).unwrap())),
        ),
        (
            "another lane",
            Box::new(|nonce| proved(ours.ticket(&of_other_lane, nonce).unwrap())),
        ),
    ];
    for (turn, (name, makes)) in cases.iter().enumerate() {
        let peer = connect();
        let nonce = challenge(&peer);
        peer.say(&makes(nonce));
        assert_eq!(peer.hear(), Some(Answer::Refused), "{name}");
        assert_eq!(denied.load(Relaxed), 1 + turn as u64, "{name}");
        works(name);
    }
    // A target that proves nothing is asked for nothing.
    let (_, ours, denied) = secret(1);
    let at = format!("polyrail-cuda-keyed-{}", std::process::id());
    let listener = packets::listen_at(at.as_bytes()).unwrap();
    for (turn, answers) in [
        vec![Answer::Ready],
        vec![
            Answer::Challenge {
                nonce: Nonce([1; NONCE_BYTES]),
            },
            Answer::Proved {
                proof: Proof([2; PROOF_BYTES]),
            },
        ],
    ]
    .into_iter()
    .enumerate()
    {
        let asked = far::greet(at.as_bytes(), keyed, Some(&ours), Some(name));
        let (socket, mut asking) = asked.unwrap();
        let impostor = packets::accept(&listener).unwrap();
        assert_eq!(wire::receive(&impostor).unwrap(), Some(Request::Challenge));
        let heard = answers
            .iter()
            .try_for_each(|answer| asking.hear(&socket, *answer).map(drop));
        assert!(heard.is_err());
        assert_eq!(denied.load(Relaxed), 1 + turn as u64);
    }
}
