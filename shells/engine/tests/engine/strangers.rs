//! Something else where a peer should be.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::sync::mpsc::{TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use polyrail::{Access, Config, Engine, EngineError, OpenError};

use crate::fixture::*;

/// More than an engine waits for anybody, on a busy machine.
const BOUND: Duration = Duration::from_secs(8);

/// Listens and does this with whoever comes, for as long as the test runs.
fn stranger(meet: impl Fn(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().flatten().for_each(meet));
    address
}

/// Says something, then waits for the other end to hang up.
fn says(bytes: &'static [u8]) -> SocketAddr {
    stranger(move |mut stream| {
        // The other end may have left already.
        let _ = stream.write_all(bytes);
        let _ = stream.read_to_end(&mut Vec::new());
    })
}

/// An address where nobody ever answers: its queue of connections is full.
fn black_hole() -> (SocketAddr, Vec<TcpStream>, socket2::Socket) {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let patience = Duration::from_millis(200);
    let full = std::iter::from_fn(|| TcpStream::connect_timeout(&address, patience).ok());
    (address, full.collect(), socket)
}

fn initiator() -> Engine {
    let config = Config {
        workers: 1,
        ..Config::named("initiator").without("shm")
    };
    Engine::new(config).unwrap()
}

#[test]
fn a_stranger_at_the_port_is_an_error_that_says_where_and_what_was_seen() {
    const GREETING: &[u8] = b"polyrail\x01\0\x01\0\0\0\0\0\0\0\0\0";
    let huge = [GREETING, &[0xff; 4]].concat().leak();
    let nonsense = [GREETING, &[3, 0, 0, 0, 0xff, 0xff, 0xff]].concat().leak();
    let (nowhere, _waiting, _socket) = black_hole();
    // (name, address, what the error says)
    let cases = [
        (
            "a web server",
            says(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
            "\"HTTP/1.1\" instead of \"polyrail\"",
        ),
        (
            "a mail server",
            says(b"220 mail.example ESMTP\r\n"),
            "instead of \"polyrail\"",
        ),
        ("one that says nothing", says(b""), "was accepted, but"),
        ("half a greeting", says(b"polyrail"), "was accepted, but"),
        ("one that hangs up", stranger(drop), "connection"),
        (
            "another version",
            says(b"polyrail\x07\0\x01\0\0\0\0\0\0\0\0\0"),
            "version 7",
        ),
        (
            "a lane's greeting",
            says(b"polyrail\x01\0\x02\0\0\0\0\0\0\0\0\0"),
            "a lane's greeting",
        ),
        (
            "unknown purpose",
            says(b"polyrail\x01\0\x63\0\0\0\0\0\0\0\0\0"),
            "unknown purpose 99",
        ),
        (
            "four gigabytes",
            says(huge),
            "frame of 4294967295 bytes; 65536 is the limit",
        ),
        (
            "a frame of nonsense",
            says(nonsense),
            "frame of 3 bytes has no valid content",
        ),
        (
            "an echo",
            stranger(|mut stream| {
                let mut other = stream.try_clone().unwrap();
                // Until the other end has had enough.
                let _ = std::io::copy(&mut stream, &mut other);
            }),
            "Hello came, Welcome expected",
        ),
        (
            "one byte at a time",
            stranger(|mut stream| {
                for byte in GREETING.iter().cycle() {
                    if stream.write_all(&[*byte]).is_err() {
                        return;
                    }
                    thread::park_timeout(Duration::from_millis(100));
                }
            }),
            "was accepted, but",
        ),
        ("nobody", nowhere, "no answer within 3s"),
    ];
    let engine = initiator();
    let target = target("target");
    target
        .allocate("mem", MIB, Access::RemoteReadWrite)
        .unwrap();
    for (name, at, part) in cases {
        let start = Instant::now();
        let error = engine.open_segment(&format!("{at}/mem")).unwrap_err();
        let took = start.elapsed();
        let text = error.to_string();
        assert!(took < BOUND, "{name}: {took:?}");
        assert!(matches!(error, OpenError::Connect(_)), "{name}: {text}");
        assert!(!error.is_usage(), "{name}");
        assert!(
            text.contains(part) && text.contains(&at.to_string()),
            "{name}: {text}"
        );
    }
    // None of them has left anything behind, and who is no stranger is met.
    assert!(engine.rails().is_empty());
    engine.open_segment(&address(&target, "mem")).unwrap();
}

#[test]
fn who_waits_for_one_that_does_not_answer_holds_up_nobody_else() {
    let (nowhere, _waiting, _socket) = black_hole();
    let engine = initiator();
    let target = target("target");
    target
        .allocate("mem", MIB, Access::RemoteReadWrite)
        .unwrap();
    let (tell, told) = channel();
    let waits = engine.clone();
    let waiter = thread::spawn(move || {
        tell.send(()).unwrap();
        let error = waits.open_segment(&format!("{nowhere}/mem")).unwrap_err();
        tell.send(()).unwrap();
        error
    });
    told.recv().unwrap();
    for _ in 0..20 {
        engine.open_segment(&address(&target, "mem")).unwrap();
    }
    assert_eq!(
        told.try_recv(),
        Err(TryRecvError::Empty),
        "it waits three seconds"
    );
    let error = waiter.join().unwrap();
    assert!(matches!(error, OpenError::Connect(_)), "{error}");
}

#[test]
fn two_ways_to_one_engine_make_one_session() {
    let target = target("target");
    target
        .allocate("mem", MIB, Access::RemoteReadWrite)
        .unwrap();
    let port = target.listening().unwrap().port();
    let engine = initiator();
    let ids = thread::scope(|scope| {
        let opened = rails().into_iter().map(|rail| {
            let engine = &engine;
            scope.spawn(move || engine.open_segment(&format!("{rail}:{port}/mem")).unwrap())
        });
        let opened: Vec<_> = opened.collect();
        let ids = opened.into_iter().map(|opened| opened.join().unwrap());
        ids.collect::<Vec<_>>()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(engine.rails().len(), RAILS);
}

#[test]
fn a_segment_that_several_open_at_once_is_one() {
    const ROUNDS: usize = 500;
    const OPENERS: usize = 4;
    let target = target("target");
    let engine = initiator();
    let turn = Barrier::new(OPENERS);
    for round in 0..ROUNDS {
        let name = format!("mem{round}");
        target
            .allocate(&name, 64 << 10, Access::RemoteReadWrite)
            .unwrap();
        let at = address(&target, &name);
        let open = || {
            turn.wait();
            engine.open_segment(&at).unwrap()
        };
        let ids = thread::scope(|scope| {
            let opened = [(); OPENERS].map(|()| scope.spawn(open));
            opened.map(|opened| opened.join().unwrap())
        });
        assert_eq!(ids, [ids[0]; OPENERS], "{name}");
    }
}

#[test]
fn a_second_engine_on_a_port_is_told_which_is_taken() {
    let first = target("first");
    let at = first.listening().unwrap();
    let second = Engine::new(Config {
        listen: Some(at),
        ..target_config("first")
    });
    let error = second.err().unwrap();
    assert!(
        matches!(error, EngineError::Listen { address, .. } if address == at),
        "{error}"
    );
    assert!(error.to_string().contains("in use"), "{error}");
}
