//! Peers that come back: segments that stand, waiting for a peer, and what is told of it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use polyrail::{
    Access, CallError, CloseError, Config, Engine, Hooks, NotifyError, Op, OpenError, OpenTerms,
    PeerEvent, PeerState, Request, SegmentId, Status, SubmitError,
};

use crate::fixture::*;

const BYTES: u64 = 4096;
const STANDING: OpenTerms = OpenTerms {
    within: Some(PATIENCE),
    standing: true,
};

/// A target at an address, with memory of this size and access, which whoever finds it finds there.
fn serve(at: SocketAddr, bytes: u64, access: Access) -> (Engine, SegmentId) {
    let config = Config {
        listen: Some(at),
        workers: 1,
        ..Config::named("target")
    };
    let hooks = Hooks {
        lets_in_later: true,
        ..Hooks::default()
    };
    let engine = Engine::with_hooks(config, hooks).unwrap();
    let there = engine.allocate("mem", bytes, access).unwrap();
    engine.let_in();
    (engine, there)
}

/// One that starts a target anew, and an initiator that has opened its segment to stand.
struct Stand {
    target: Engine,
    there: SegmentId,
    at: SocketAddr,
    initiator: Engine,
    local: SegmentId,
    remote: SegmentId,
}

impl Stand {
    fn new() -> Self {
        let (target, there) = serve(
            "127.0.0.1:0".parse().unwrap(),
            BYTES,
            Access::RemoteReadWrite,
        );
        let at = target.listening().unwrap();
        let initiator = Engine::new(Config {
            workers: 1,
            ..Config::named("initiator")
        });
        let initiator = initiator.unwrap();
        let local = initiator.allocate("here", BYTES, Access::Local).unwrap();
        let remote = initiator.open_segment_with(&format!("{at}/mem"), &STANDING);
        Self {
            remote: remote.unwrap(),
            target,
            there,
            at,
            initiator,
            local,
        }
    }

    fn request(&self, op: Op, length: u64) -> Request {
        Request {
            op,
            local: self.local,
            local_offset: 0,
            remote: self.remote,
            remote_offset: 0,
            length,
        }
    }

    /// Ends the target, and has this known.
    fn end(&self) {
        self.target.shutdown();
        self.initiator.declare_lost(&self.at.to_string()).unwrap();
    }

    fn serve_again(&mut self, bytes: u64, access: Access) {
        (self.target, self.there) = serve(self.at, bytes, access);
    }

    /// The next event, without what it says of the peer besides its state.
    fn event(&self) -> (&'static str, PeerState, u64) {
        let event = self.initiator.peer_events().wait(PATIENCE).unwrap();
        let (what, peer) = match event {
            PeerEvent::Lost(peer) => ("lost", peer),
            PeerEvent::Back(peer) => ("back", peer),
            PeerEvent::Changed(peer) => ("changed", peer),
            other => panic!("{other:?}"),
        };
        assert_eq!((peer.address, &peer.name[..]), (self.at, "target"));
        (what, peer.state, peer.incarnation)
    }
}

#[test]
fn a_segment_that_stands_leads_to_each_next_process_and_no_batch_of_an_old_one_completes_wrongly() {
    let mut stand = Stand::new();
    let write = stand.request(Op::Write, BYTES);
    let here = stand.initiator.region(stand.local).unwrap();
    let mut transfer = stand.initiator.prepare_transfer(&[write]).unwrap();
    let mut seed = 0;
    let mut incarnations = Vec::new();
    for round in 0..4 {
        // The loss goes unnoticed at first in every second round, and what is submitted then goes nowhere.
        let (mut by_post, mut by_submit) = (false, false);
        until("both go on", || {
            seed += 1;
            fill(&here, seed);
            let posted = seed % 2 == 0;
            let batch = match posted {
                true => transfer.post(),
                false => stand.initiator.submit(&[write]),
            };
            match batch {
                Ok(batch) if ended(&batch).status == Status::Completed => {
                    let there = stand.target.region(stand.there).unwrap();
                    assert!(bytes(&there) == pattern(seed, BYTES), "round {round}");
                    *(if posted { &mut by_post } else { &mut by_submit }) = true;
                }
                Ok(_) | Err(SubmitError::PeerLost { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            by_post && by_submit
        });
        assert_eq!(transfer.requests(), [write]);
        let peers = stand.initiator.peers();
        assert_eq!(peers.len(), 1, "{peers:?}");
        assert_eq!(peers[0].state, PeerState::Present);
        if round > 0 {
            let (what, _, lost) = stand.event();
            assert_eq!((what, Some(&lost)), ("lost", incarnations.last()));
            let (what, state, incarnation) = stand.event();
            assert_eq!((what, state), ("changed", PeerState::Present));
            assert_eq!(incarnation, peers[0].incarnation);
        }
        incarnations.push(peers[0].incarnation);
        match round % 2 {
            0 => stand.end(),
            _ => stand.target.shutdown(),
        }
        stand.serve_again(BYTES, Access::RemoteReadWrite);
    }
}

#[test]
fn while_its_peer_is_away_nothing_begins_and_afterwards_it_goes_on() {
    let mut stand = Stand::new();
    let write = stand.request(Op::Write, BYTES);
    let mut transfer = stand.initiator.prepare_transfer(&[write]).unwrap();
    stand.end();
    let (remote, at) = (stand.remote, stand.at);
    let lost = SubmitError::PeerLost {
        index: 0,
        segment: remote,
        peer: at,
    };
    assert_eq!(stand.initiator.submit(&[write]).unwrap_err(), lost);
    assert_eq!(transfer.post().unwrap_err(), lost);
    let error = stand.initiator.prepare_transfer(&[write]).unwrap_err();
    assert_eq!(error, lost);
    let error = stand.initiator.notify(remote, b"lost").unwrap_err();
    assert!(
        matches!(error, NotifyError::PeerLost { segment, peer } if (segment, peer) == (remote, at))
    );
    let error = stand.initiator.call(remote, 1, &[], PATIENCE).unwrap_err();
    assert!(
        matches!(error, CallError::PeerLost { segment, peer } if (segment, peer) == (remote, at))
    );
    assert_eq!(stand.initiator.segment_bytes(remote), None);
    assert_eq!(stand.initiator.peers()[0].state, PeerState::Lost);
    assert_eq!(stand.event().0, "lost");
    assert_eq!(stand.initiator.peer_events().poll(), None);
    stand.serve_again(BYTES, Access::RemoteReadWrite);
    // What stands goes on when it is told, not only later.
    assert_eq!(stand.event().0, "changed");
    completed(&transfer.post().unwrap());
    completed(&stand.initiator.submit(&[write]).unwrap());
    stand.initiator.notify(remote, b"again").unwrap();
    let told = stand.target.notifications().wait(PATIENCE).unwrap();
    assert_eq!(told.bytes, b"again");
}

#[test]
fn a_peer_that_was_lost_and_lives_is_back() {
    let stand = Stand::new();
    let incarnation = stand.initiator.peers()[0].incarnation;
    stand.initiator.declare_lost(&stand.at.to_string()).unwrap();
    assert_eq!(stand.event(), ("lost", PeerState::Lost, incarnation));
    assert_eq!(stand.event(), ("back", PeerState::Present, incarnation));
    let write = stand.request(Op::Write, BYTES);
    completed(&stand.initiator.submit(&[write]).unwrap());
}

#[test]
fn what_a_new_process_does_not_have_or_allow_is_refused_in_words() {
    let mut stand = Stand::new();
    let (remote, at) = (stand.remote, stand.at);
    let (write, read) = (
        stand.request(Op::Write, BYTES),
        stand.request(Op::Read, BYTES),
    );
    let mut transfer = stand.initiator.prepare_transfer(&[write]).unwrap();
    completed(&transfer.post().unwrap());
    stand.end();
    stand.serve_again(BYTES / 2, Access::RemoteReadWrite);
    assert_eq!([stand.event().0, stand.event().0], ["lost", "changed"]);
    let beyond = SubmitError::OutOfRange {
        index: 0,
        segment: remote,
        offset: 0,
        length: BYTES,
        segment_bytes: BYTES / 2,
    };
    for _ in 0..2 {
        assert_eq!(stand.initiator.submit(&[write]).unwrap_err(), beyond);
        assert_eq!(transfer.post().unwrap_err(), beyond);
    }
    assert_eq!(stand.initiator.segment_bytes(remote), Some(BYTES / 2));
    let half = stand.request(Op::Write, BYTES / 2);
    completed(&stand.initiator.submit(&[half]).unwrap());
    stand.end();
    stand.serve_again(BYTES, Access::RemoteRead);
    assert_eq!([stand.event().0, stand.event().0], ["lost", "changed"]);
    let forbidden = SubmitError::Forbidden {
        index: 0,
        segment: remote,
    };
    assert_eq!(stand.initiator.submit(&[write]).unwrap_err(), forbidden);
    assert_eq!(transfer.post().unwrap_err(), forbidden);
    completed(&stand.initiator.submit(&[read]).unwrap());
    // A process without such a segment is waited for until it has one.
    stand.end();
    stand.target = Engine::new(Config {
        listen: Some(at),
        workers: 1,
        ..Config::named("target")
    })
    .unwrap();
    assert_eq!([stand.event().0, stand.event().0], ["lost", "changed"]);
    let error = stand.initiator.submit(&[write]).unwrap_err();
    assert!(matches!(error, SubmitError::PeerLost { segment, .. } if segment == remote));
    let access = Access::RemoteReadWrite;
    stand.target.allocate("mem", BYTES, access).unwrap();
    until("it is followed", || transfer.post().is_ok());
}

#[test]
fn a_segment_that_stands_is_closed_as_often_as_it_was_opened() {
    let mut stand = Stand::new();
    let address = format!("{}/mem", stand.at);
    let again = stand.initiator.open_segment_with(&address, &STANDING);
    assert_eq!(again.unwrap(), stand.remote);
    let plain = stand.initiator.open_segment(&address).unwrap();
    assert_ne!(plain, stand.remote);
    stand.initiator.close_segment(stand.remote).unwrap();
    let write = stand.request(Op::Write, BYTES);
    completed(&stand.initiator.submit(&[write]).unwrap());
    stand.initiator.close_segment(stand.remote).unwrap();
    let error = stand.initiator.submit(&[write]).unwrap_err();
    assert!(matches!(error, SubmitError::Stale { .. }), "{error}");
    let error = stand.initiator.close_segment(stand.remote).unwrap_err();
    assert!(matches!(error, CloseError::Stale { .. }), "{error}");
    // The other one is as it was, and all that is left.
    let write = Request {
        remote: plain,
        ..write
    };
    completed(&stand.initiator.submit(&[write]).unwrap());
    stand.initiator.close_segment(plain).unwrap();
    let error = stand.initiator.submit(&[write]).unwrap_err();
    assert!(matches!(error, SubmitError::Stale { .. }), "{error}");
    // One whose peer is away is closed too, and followed no more.
    stand.remote = stand
        .initiator
        .open_segment_with(&address, &STANDING)
        .unwrap();
    stand.end();
    stand.initiator.close_segment(stand.remote).unwrap();
    let error = stand.initiator.submit(&[stand.request(Op::Write, 1)]);
    assert!(matches!(error, Err(SubmitError::Stale { .. })));
}

#[test]
fn who_opens_within_a_time_waits_for_the_peer_and_its_segment() {
    let engine = Engine::new(Config::named("initiator")).unwrap();
    let at = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let open = |name: &str, within: Duration| {
        let terms = OpenTerms {
            within: Some(within),
            ..OpenTerms::default()
        };
        engine.open_segment_with(&format!("{at}/{name}"), &terms)
    };
    let start = Instant::now();
    let error = open("mem", Duration::from_millis(200)).unwrap_err();
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
    let OpenError::NotInTime { tries, last, .. } = &error else {
        panic!("{error}");
    };
    assert!(*tries > 1 && matches!(**last, OpenError::Connect(_)));
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(!error.is_usage());
    // Waiting does not mend this.
    let start = Instant::now();
    let error = open("", PATIENCE).unwrap_err();
    assert!(matches!(error, OpenError::BadAddress { .. }), "{error}");
    assert!(start.elapsed() < PATIENCE / 2);
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| open("mem", PATIENCE));
        let (target, _) = serve(at, BYTES, Access::RemoteReadWrite);
        opened.join().unwrap().unwrap();
        let error = open("late", Duration::from_millis(50)).unwrap_err();
        assert!(error.is_usage(), "{error}");
        assert!(error.to_string().contains("\"late\""), "{error}");
        let opened = scope.spawn(|| open("late", PATIENCE));
        target
            .allocate("late", BYTES, Access::RemoteReadWrite)
            .unwrap();
        opened.join().unwrap().unwrap();
        target.shutdown();
    });
}
