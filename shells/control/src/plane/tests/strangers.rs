//! What strangers can do to a target that others use: take its sessions, its time and its memory.

use std::io::ErrorKind;

use super::*;

fn hello(name: &str, session: Option<SessionId>) -> Frame {
    Frame::Hello {
        name: name.into(),
        incarnation: 1,
        session: session.map(|session| session.0),
        token: vec![],
    }
}

/// Frames as bytes.
fn bytes(frames: &[Frame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames {
        codec::encode(frame, &mut bytes).unwrap();
    }
    bytes
}

/// A stranger on a connection.
struct Stranger {
    stream: TcpStream,
    decoder: Decoder,
}

impl Stranger {
    /// Comes in from any address of loopback; what he is told first.
    fn come(from: &str, to: SocketAddr, session: Option<SessionId>) -> (Self, Frame) {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let from: SocketAddr = from.parse().unwrap();
        socket.bind(&from.into()).unwrap();
        socket.connect(&to.into()).unwrap();
        let mut stream: TcpStream = socket.into();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let hello = greeted(Purpose::Control, &[hello("stranger", session)]);
        stream.write_all(&hello).unwrap();
        let mut stranger = Self {
            stream,
            decoder: Decoder::default(),
        };
        while stranger.decoder.next_greeting().unwrap().is_none() {
            assert!(stranger.read() > 0, "hung up on");
        }
        let first = stranger.next();
        (stranger, first)
    }

    fn enters(from: &str, to: SocketAddr) -> (Self, SessionId) {
        match Self::come(from, to, None) {
            (stranger, Frame::Welcome { session, .. }) => (stranger, SessionId(session)),
            (_, other) => panic!("{other:?}"),
        }
    }

    fn read(&mut self) -> usize {
        let mut buffer = [0; 4096];
        let bytes = self.stream.read(&mut buffer).unwrap();
        self.decoder.push(&buffer[..bytes]);
        bytes
    }

    fn next(&mut self) -> Frame {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return frame;
            }
            assert!(self.read() > 0, "hung up on");
        }
    }

    /// Whether the other end has hung up, after what it had said.
    fn is_hung_up_on(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => return true,
            }
        }
    }

    /// Says as much as goes out. Whether it still can.
    fn says(&mut self, bytes: &[u8]) -> bool {
        match self.stream.write_all(bytes) {
            Ok(()) => true,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }
}

fn small_target(sessions: usize) -> Engine {
    let target = Engine::start("beta", &["127.0.0.2:0"], |config| {
        config.sessions_max = sessions;
        config.handshake_max = PATIENCE;
    });
    target.retires.store(true, Ordering::SeqCst);
    target
}

#[test]
fn strangers_that_come_and_go_keep_nobody_out() {
    let target = small_target(16);
    let fair = Engine::initiator();
    fair.connect(target.listens[0]);
    fair.describe_works();
    for round in 0..200 {
        let from = format!("127.0.0.{}:0", 3 + round % 4);
        let (_stranger, _) = Stranger::enters(&from, target.listens[0]);
    }
    let newcomer = Engine::initiator();
    newcomer.connect(target.listens[0]);
    newcomer.describe_works();
    fair.describe_works();
}

#[test]
fn a_session_that_has_said_nothing_makes_room_for_one_that_will() {
    let target = small_target(16);
    let fair = Engine::initiator();
    let session = fair.connect(target.listens[0]).session;
    fair.describe_works();
    let mut silent: Vec<_> = (0..32)
        .map(|round| {
            let from = format!("127.0.0.{}:0", 3 + round % 4);
            Stranger::enters(&from, target.listens[0]).0
        })
        .collect();
    // 15 of them are left: it was the oldest that had to go, and none that works.
    for stranger in &mut silent[..17] {
        assert!(stranger.is_hung_up_on());
    }
    let (_, first) = Stranger::come("127.0.0.1:0", target.listens[0], Some(session));
    assert!(
        matches!(
            first,
            Frame::Refused {
                reason: Refusal::Protocol,
                ..
            }
        ),
        "known: {first:?}"
    );
    fair.describe_works();
}

#[test]
fn ghosts_make_room_for_those_who_come_back() {
    let target = small_target(8);
    // All work, and end without a word; their sessions would be kept for 10 s.
    for round in 0..4 {
        let crowd: Vec<_> = (0..4)
            .map(|from| {
                let from = format!("127.0.0.{}:0", 3 + 4 * (round % 2) + from);
                let (mut stranger, _) = Stranger::enters(&from, target.listens[0]);
                assert!(stranger.says(&bytes(&[Frame::Describe {
                    question: 1,
                    name: "mem".into(),
                }])));
                while !matches!(stranger.next(), Frame::Description { .. }) {}
                stranger
            })
            .collect();
        drop(crowd);
    }
    let fair = Engine::initiator();
    until("there is room", || {
        fair.plane
            .connect(PEER, None, target.listens[0], PATIENCE)
            .is_ok()
    });
    fair.describe_works();
}

#[test]
fn one_address_takes_half_of_the_sessions_at_most() {
    let target = small_target(8);
    let working = |from: &str| {
        let (mut stranger, first) = Stranger::come(from, target.listens[0], None);
        let is_in = matches!(first, Frame::Welcome { .. });
        if is_in {
            assert!(stranger.says(&bytes(&[Frame::Describe {
                question: 1,
                name: "mem".into(),
            }])));
            while !matches!(stranger.next(), Frame::Description { .. }) {}
        }
        (stranger, first, is_in)
    };
    let own: Vec<_> = (0..4).map(|_| working("127.0.0.3:0")).collect();
    assert!(own.iter().all(|(.., is_in)| *is_in));
    let refused = |first: Frame| match first {
        Frame::Refused {
            reason: Refusal::Full,
            text,
        } => text,
        other => panic!("{other:?}"),
    };
    let (_stranger, first, _) = working("127.0.0.3:0");
    let text = refused(first);
    assert!(
        text.contains("4 sessions of this address") && text.contains("control/sessions_max"),
        "{text}"
    );
    let others: Vec<_> = (0..4).map(|_| working("127.0.0.4:0")).collect();
    assert!(others.iter().all(|(.., is_in)| *is_in));
    let (_stranger, first, _) = working("127.0.0.5:0");
    let text = refused(first);
    assert!(
        text.contains("8 sessions, the limit (control/sessions_max)"),
        "{text}"
    );
}

#[test]
fn a_control_connection_too_many_is_refused_in_words() {
    let target = Engine::start("beta", &["127.0.0.2:0"], |config| {
        config.connections_max = 4
    });
    let (stranger, session) = Stranger::enters("127.0.0.3:0", target.listens[0]);
    let further: Vec<_> = (0..3)
        .map(|_| Stranger::come("127.0.0.3:0", target.listens[0], Some(session)))
        .collect();
    assert!(
        further
            .iter()
            .all(|(_, first)| matches!(first, Frame::Welcome { .. }))
    );
    let (_, first) = Stranger::come("127.0.0.3:0", target.listens[0], Some(session));
    let Frame::Refused { reason, text } = first else {
        panic!("{first:?}");
    };
    assert_eq!(reason, Refusal::Full);
    assert!(
        text.contains("4 control connections, the limit (control/connections_max)"),
        "{text}"
    );
    drop((stranger, further));
    until("one that has gone makes room", || {
        let (_, first) = Stranger::come("127.0.0.3:0", target.listens[0], Some(session));
        matches!(first, Frame::Welcome { .. })
    });
}

#[test]
fn questions_of_strangers_hold_up_nobodys_heartbeat() {
    let target = Engine::start("beta", &["127.0.0.2:0"], |config| {
        config.heartbeat = Duration::from_millis(50);
        config.silence_max = PATIENCE;
    });
    let fences: Vec<_> = (0..4000)
        .map(|lane| Frame::Fence { lane, epoch: 1 })
        .collect();
    let flood = bytes(&fences);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _at_the_end = Stop(&stop);
        for _ in 0..4 {
            scope.spawn(|| {
                let mut crowd: Vec<_> = (0..8)
                    .map(|_| Stranger::enters("127.0.0.3:0", target.listens[0]).0)
                    .collect();
                for stranger in &mut crowd {
                    stranger.stream.set_nonblocking(true).unwrap();
                }
                while !stop.load(Ordering::SeqCst) {
                    // A frame that is cut in two makes no sense any more, and its stranger is hung up on.
                    crowd.retain_mut(|stranger| !stranger.is_hung_up_on() && stranger.says(&flood));
                    while crowd.len() < 8 {
                        crowd.push(Stranger::enters("127.0.0.3:0", target.listens[0]).0);
                        let last = crowd.last_mut().unwrap();
                        last.stream.set_nonblocking(true).unwrap();
                    }
                    std::thread::yield_now();
                }
            });
        }
        let (mut fair, _) = Stranger::enters("127.0.0.4:0", target.listens[0]);
        let began = Instant::now();
        let mut heard = began;
        let mut longest = Duration::ZERO;
        while began.elapsed() < Duration::from_secs(2) {
            assert!(fair.says(&bytes(&[Frame::Heartbeat])));
            fair.next();
            longest = longest.max(heard.elapsed());
            heard = Instant::now();
        }
        println!("the longest silence was {longest:?}");
        // Also on a machine that is busy with other things.
        assert!(longest < Duration::from_secs(3), "{longest:?}");
    });
}

/// Says so when it goes, however that is.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn what_strangers_make_a_target_hold_is_bounded_and_fair_peers_do_not_pay() {
    const STRANGERS: usize = 640;
    let target = Engine::start("beta", &["127.0.0.2:0"], |config| {
        config.silence_max = PATIENCE;
        config.heartbeat = Duration::from_millis(100);
    });
    let fair = Engine::initiator();
    fair.connect(target.listens[0]);
    // The first 60 KiB of a call that never comes whole: 38 MiB in all, of which 32 are held.
    let call = Frame::Call {
        number: 1,
        method: 1,
        body: vec![7; CALL_BYTES_MAX],
    };
    let half = &bytes(&[call])[..60 * 1024];
    let mut crowd = Vec::new();
    for index in 0..STRANGERS {
        let from = format!("127.0.0.{}:0", 3 + index % 8);
        let (mut stranger, _) = Stranger::enters(&from, target.listens[0]);
        stranger.stream.write_all(half).unwrap();
        crowd.push(stranger);
    }
    let mut cut = 0;
    until("some are cut", || {
        let so_far = crowd.iter_mut().filter_map(|stranger| {
            stranger.stream.set_nonblocking(true).unwrap();
            stranger.is_hung_up_on().then_some(())
        });
        cut = so_far.count();
        cut * half.len() > STRANGERS * half.len() - (34 << 20)
    });
    assert!(cut < STRANGERS / 2, "only as many as have to: {cut}");
    let handle = std::thread::spawn({
        let plane = fair.plane.clone();
        move || plane.call(PEER, 1, vec![1; CALL_BYTES_MAX], PATIENCE)
    });
    let (_, body, answer) = target.told_call();
    answer(Ok(body));
    assert_eq!(handle.join().unwrap().unwrap().len(), CALL_BYTES_MAX);
}

#[test]
fn who_says_nothing_does_not_keep_others_from_the_door() {
    let target = Engine::target();
    let crowd: Vec<_> = (0..100)
        .map(|_| TcpStream::connect(target.listens[0]).unwrap())
        .collect();
    let began = Instant::now();
    let (_, first) = Stranger::come("127.0.0.9:0", target.listens[0], None);
    assert!(matches!(first, Frame::Welcome { .. }));
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
    drop(crowd);
}
