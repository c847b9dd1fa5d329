//! Targets and what strangers may get out of them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

use polyrail_transport::memory::{Access, Region, RegionKey};

use super::wire::{Request, VERSION};
use super::*;
use crate::driver::Sharing;
use crate::stub::{Machine, Stub};

const SESSION: SessionId = SessionId([7; 16]);
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Regions(Mutex<HashMap<RegionKey, Arc<Region>>>);

impl RegionTable for Regions {
    fn find(&self, key: &RegionKey) -> Option<Arc<Region>> {
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
        let gpus = Gpus::over(stub.clone()).unwrap();
        let regions = Arc::new(Regions::default());
        let transport = CudaIpcTransport::new(gpus.clone(), regions.clone()).unwrap();
        transport.begin_session(SESSION);
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
        let socket = far::greet(&self.transport.address(), session.0, Some(lane));
        Peer(socket.unwrap())
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
    assert!(ask(&target.transport.address(), SESSION).is_ok());
    assert!(ask(&target.transport.address(), SessionId([8; 16])).is_err());
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
        let peer = Peer(wire::connect_to(&target.transport.address()).unwrap());
        peer.say(&first);
        let answer = peer.hear();
        assert!(matches!(answer, None | Some(Answer::Refused)), "{name}");
    }
    // Who only asked whether it could has no lane, and opens nothing.
    let asking = Peer(far::greet(&target.transport.address(), session, None).unwrap());
    assert_eq!(asking.hear(), Some(Answer::Ready));
    assert_eq!(asking.open(key), None);
    // An epoch that is over stays over.
    let told = target.fence(1, 5);
    assert_eq!(told.recv_timeout(PATIENCE), Ok(0));
    assert_eq!(target.lane(SESSION, (1, 5)).hear(), Some(Answer::Refused));
    let _peer = target.let_in((1, 6));
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
