//! Notifications over real sockets: once, in order, whatever happens to connections.

use super::*;
use crate::codec::{NOTIFICATION_BYTES_MAX, NOTIFICATIONS};

/// Sends a notification; what comes of it.
fn notify(initiator: &Engine, body: impl Into<Vec<u8>>) -> Receiver<Delivery> {
    let (answer, answered) = channel();
    let tell = move |delivery| answer.send(delivery).unwrap();
    initiator.plane.notify(PEER, body.into(), Box::new(tell));
    answered
}

fn told_notification(target: &Engine) -> (SessionId, String, Vec<u8>) {
    target.told("notification", |told| match told {
        Told::Notify(session, name, body) => Some((session, name, body)),
        _ => None,
    })
}

/// Everything that is waited for is delivered, and nothing else was told.
fn all_delivered(target: &Engine, answers: &[Receiver<Delivery>]) {
    for answer in answers {
        assert_eq!(answer.recv_timeout(PATIENCE), Ok(Delivery::Delivered));
        assert!(answer.try_recv().is_err(), "answered once");
    }
    assert!(
        !target
            .told
            .try_iter()
            .any(|told| matches!(told, Told::Notify(..))),
        "told twice"
    );
}

#[test]
fn they_arrive_once_and_in_order_while_rails_come_and_go() {
    const COUNT: u32 = 600;
    let quick = |config: &mut PlaneConfig| {
        config.heartbeat = Duration::from_millis(50);
        config.silence_max = Duration::from_millis(300);
    };
    let target = Engine::start("beta", &["127.0.0.2:0"], quick);
    let initiator = Engine::start("alpha", &[], quick);
    let rails = two_rails(&target, &initiator);
    let mut answers = Vec::new();
    for number in 0..COUNT {
        match number % 100 {
            // A connection is reset, all are reset, one goes silent in the middle of it.
            10 => rails[0].cut(),
            30 => rails.iter().for_each(Forwarder::cut),
            50 => rails[1].swallow(true),
            // Nothing of this is known to have arrived before the other rail has carried it.
            60 => {
                told_until(&target, &mut answers, number);
                rails[1].swallow(false);
                rails[1].cut();
            }
            _ => {}
        }
        answers.push((number, notify(&initiator, number.to_le_bytes())));
        if number % 7 == 0 {
            told_until(&target, &mut answers, number + 1);
        }
    }
    told_until(&target, &mut answers, COUNT);
    all_delivered(&target, &[]);

    fn told_until(target: &Engine, answers: &mut Vec<(u32, Receiver<Delivery>)>, end: u32) {
        for (number, answer) in answers.drain(..) {
            assert!(number < end);
            assert_eq!(told_notification(target).2, number.to_le_bytes());
            assert_eq!(answer.recv_timeout(PATIENCE), Ok(Delivery::Delivered));
        }
    }
}

#[test]
fn a_repeated_number_is_confirmed_and_not_told_and_a_gap_is_not_taken() {
    let target = Engine::target();
    let hello = Frame::Hello {
        name: "alpha".into(),
        incarnation: 1,
        session: None,
        token: vec![],
    };
    let notify = |number| Frame::Notify {
        number,
        body: vec![number as u8],
    };
    let frames = [0, 1, 1, 3, u64::MAX, 2, 1, 3].map(notify);
    // The last has no place there: the target says what it has to say, and closes.
    let said = [&[hello][..], &frames[..], &[join(NOBODY)]].concat();
    let mut stream = say(target.listens[0], &greeted(Purpose::Control, &said));
    let (_, answers) = read_all(&mut stream);
    let confirmed: Vec<_> = answers
        .iter()
        .filter_map(|frame| match frame {
            Frame::Notified { number, room: true } => Some(*number),
            _ => None,
        })
        .collect();
    assert_eq!(confirmed, [0, 1, 1, 2, 2, 3]);
    for number in [1, 2, 3] {
        assert_eq!(told_notification(&target).2, [number]);
    }
    all_delivered(&target, &[]);
}

#[test]
fn a_target_without_room_gets_them_later_with_and_without_a_word() {
    let (target, initiator) = (Engine::target(), Engine::initiator());
    let session = initiator.connect(target.listens[0]).session;
    for says_so in [true, false] {
        target.room.store(3, Ordering::SeqCst);
        let answers: Vec<_> = (0..200_u8).map(|n| notify(&initiator, [n])).collect();
        for number in 0..3 {
            let told = told_notification(&target);
            assert_eq!(told, (session, "alpha".into(), vec![number]));
        }
        for answer in &answers[..3] {
            assert_eq!(answer.recv_timeout(PATIENCE), Ok(Delivery::Delivered));
        }
        // Other conversation goes on meanwhile.
        initiator.describe_works();
        assert!(answers[3..].iter().all(|answer| answer.try_recv().is_err()));
        target.room.store(usize::MAX, Ordering::SeqCst);
        if says_so {
            target.plane.notification_room(session);
        }
        for number in 3..200 {
            assert_eq!(told_notification(&target).2, [number]);
        }
        all_delivered(&target, &answers[3..]);
    }
}

#[test]
fn what_a_session_leaves_behind_is_answered_truthfully() {
    let (target, initiator) = (Engine::target(), Engine::initiator());
    let nobody = notify(&initiator, *b"no peer");
    assert_eq!(nobody.recv_timeout(PATIENCE), Ok(Delivery::Undelivered));
    initiator.connect(target.listens[0]);
    let long = notify(&initiator, vec![0; NOTIFICATION_BYTES_MAX + 1]);
    assert_eq!(long.recv_timeout(PATIENCE), Ok(Delivery::Undelivered));
    let longest = notify(&initiator, vec![7; NOTIFICATION_BYTES_MAX]);
    assert_eq!(told_notification(&target).2.len(), NOTIFICATION_BYTES_MAX);
    assert_eq!(longest.recv_timeout(PATIENCE), Ok(Delivery::Delivered));

    target.room.store(0, Ordering::SeqCst);
    let answers: Vec<_> = (0..100).map(|n| notify(&initiator, [n])).collect();
    initiator.describe_works();
    initiator.plane.disconnect(PEER);
    let ends: Vec<_> = answers
        .iter()
        .map(|answer| answer.recv_timeout(PATIENCE).unwrap())
        .collect();
    assert_eq!(ends[0], Delivery::Unknown, "it was sent");
    assert_eq!(
        ends[99],
        Delivery::Undelivered,
        "it was not, beyond the window"
    );
    initiator.connect(target.listens[0]);
    target.room.store(usize::MAX, Ordering::SeqCst);
    let fresh = notify(&initiator, *b"fresh");
    assert_eq!(told_notification(&target).2, b"fresh");
    all_delivered(&target, &[fresh]);

    initiator.plane.shutdown();
    let late = notify(&initiator, *b"late");
    assert_eq!(late.recv_timeout(PATIENCE), Ok(Delivery::Undelivered));
}

#[test]
fn what_is_told_in_parts_is_told_in_one_session_and_answered_once() {
    let (target, initiator) = (Engine::target(), Engine::initiator());
    initiator.connect(target.listens[0]);
    let parts = |sizes: &[usize]| {
        let (answer, answered) = channel();
        let tell = move |delivery| answer.send(delivery).unwrap();
        let parts = sizes.iter().map(|bytes| vec![7; *bytes]).collect();
        let plane = &initiator.plane;
        plane.notify_in_parts(PEER, parts, Box::new(tell));
        answered
    };
    let one_too_long = parts(&[1, NOTIFICATION_BYTES_MAX + 1, 2]);
    assert_eq!(
        one_too_long.recv_timeout(PATIENCE),
        Ok(Delivery::Undelivered)
    );
    let whole = parts(&[1, 2, 3]);
    for bytes in [1, 2, 3] {
        assert_eq!(told_notification(&target).2.len(), bytes);
    }
    all_delivered(&target, &[whole]);
    // The session ends with the first of them told: the others are not for the next one.
    target.room.store(1, Ordering::SeqCst);
    let torn = parts(&[4; 100]);
    assert_eq!(told_notification(&target).2.len(), 4);
    initiator.plane.disconnect(PEER);
    assert_eq!(torn.recv_timeout(PATIENCE), Ok(Delivery::Undelivered));
    initiator.connect(target.listens[0]);
    target.room.store(usize::MAX, Ordering::SeqCst);
    let fresh = notify(&initiator, *b"fresh");
    assert_eq!(told_notification(&target).2, b"fresh");
    all_delivered(&target, &[fresh]);
}

/// Welcomes the first who connects, says `frames`, and hears it out.
fn fake_target(features: u64, frames: Vec<Frame>) -> (SocketAddr, Receiver<Vec<Frame>>) {
    let listener = TcpListener::bind("127.0.0.7:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, heard) = channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let greeting = Greeting {
            features,
            ..Greeting::ours(Purpose::Control)
        };
        let welcome = Frame::Welcome {
            name: "fake".into(),
            incarnation: 9,
            session: [1; 16],
            rails: vec![],
            rail_facts: vec![],
            transports: vec![],
            scratch: segment("scratch"),
            heartbeat_ms: 1000,
        };
        let mut bytes = greeting.encode().to_vec();
        for frame in [welcome].iter().chain(&frames) {
            codec::encode(frame, &mut bytes).unwrap();
        }
        stream.write_all(&bytes).unwrap();
        sender.send(read_all(&mut stream).1).unwrap();
    });
    (address, heard)
}

#[test]
fn a_peer_that_confirms_what_was_not_sent_is_not_believed() {
    let number = u64::MAX;
    let frames = [true, false].map(|room| Frame::Notified { number, room });
    let (address, heard) = fake_target(NOTIFICATIONS, frames.to_vec());
    let initiator = Engine::initiator();
    initiator.connect(address);
    until("it has lied", || {
        initiator.heard.load(Ordering::Relaxed) >= 3
    });
    let answer = notify(&initiator, *b"true");
    assert!(
        answer.recv_timeout(Duration::from_millis(300)).is_err(),
        "nobody has confirmed it"
    );
    initiator.plane.disconnect(PEER);
    assert_eq!(answer.recv_timeout(PATIENCE), Ok(Delivery::Unknown));
    let heard = heard.recv_timeout(PATIENCE).unwrap();
    let first = Frame::Notify {
        number: 1,
        body: b"true".to_vec(),
    };
    assert!(heard.contains(&first), "{heard:?}");
}

#[test]
fn a_peer_of_an_older_build_is_not_told_what_it_does_not_understand() {
    let (address, heard) = fake_target(0, vec![]);
    let initiator = Engine::initiator();
    assert_eq!(initiator.connect(address).features, 0);
    let answer = notify(&initiator, *b"new");
    assert_eq!(answer.recv_timeout(PATIENCE), Ok(Delivery::Undelivered));
    initiator.plane.disconnect(PEER);
    let heard = heard.recv_timeout(PATIENCE).unwrap();
    assert!(
        !heard
            .iter()
            .any(|frame| matches!(frame, Frame::Notify { .. })),
        "{heard:?}"
    );
}
