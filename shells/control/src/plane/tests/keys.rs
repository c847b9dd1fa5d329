//! A cluster's key: who has it comes in, and nobody else, whatever he tries.

use std::collections::VecDeque;

use rustls::{ClientConnection, ServerConnection};

use super::*;
use crate::security::{ClusterKey, Distrust, Secret};

/// More than a refusal may take; a handshake that is waited for would take longer.
const AT_ONCE: Duration = Duration::from_millis(900);

pub(super) fn new_key() -> Arc<ClusterKey> {
    Arc::new(ClusterKey::new(&Secret::draw().unwrap()).unwrap())
}

pub(super) fn target(key: Option<&Arc<ClusterKey>>) -> Engine {
    let target = Engine::start("beta", &["127.0.0.2:0"], |config| config.key = key.cloned());
    target.retires.store(true, Ordering::SeqCst);
    target
}

pub(super) fn initiator(key: Option<&Arc<ClusterKey>>) -> Engine {
    Engine::start("alpha", &[], |config| config.key = key.cloned())
}

/// Why it does not come in, which it hears at once.
fn refused(initiator: &Engine, to: SocketAddr) -> ConnectError {
    let start = Instant::now();
    let error = initiator
        .plane
        .connect(PEER, None, to, PATIENCE)
        .unwrap_err();
    assert!(start.elapsed() < AT_ONCE, "{:?}: {error}", start.elapsed());
    error
}

pub(super) fn begun(target: &Engine) -> usize {
    target.began.load(Ordering::SeqCst)
}

/// What the kernel still brings until the other end hangs up.
pub(super) fn rest(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut rest = Vec::new();
    // A reset is an end too.
    let _ = stream.read_to_end(&mut rest);
    rest
}

/// The first message of somebody with this key.
pub(super) fn client_hello(key: &ClusterKey) -> Vec<u8> {
    let mut client = ClientConnection::new(key.client.clone(), "x".try_into().unwrap()).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    hello
}

#[test]
fn members_meet_and_say_whatever_there_is_to_say() {
    let key = new_key();
    let (target, initiator) = (target(Some(&key)), initiator(Some(&key)));
    initiator.connect(target.listens[0]);
    initiator.describe_works();
    // As long as it can be: several records, there and back.
    let body: Vec<u8> = (0..CALL_BYTES_MAX).map(|i| (i % 251) as u8).collect();
    std::thread::scope(|scope| {
        let call = || initiator.plane.call(PEER, 7, body.clone(), PATIENCE);
        let calls = scope.spawn(call);
        let (method, got, answer) = target.told_call();
        assert_eq!((method, &got), (7, &body));
        answer(Ok(got));
        assert_eq!(calls.join().unwrap().unwrap(), body);
    });
    initiator.plane.fence(PEER, LANE, EPOCH);
    let fenced = initiator.told("fenced", |told| match told {
        Told::Fenced(peer, lane, epoch, delivered) => Some((peer, lane, epoch, delivered)),
        _ => None,
    });
    assert_eq!(fenced, (PEER, LANE, EPOCH, DELIVERED));
    initiator.plane.disconnect(PEER);
    until("the session ends", || {
        begun(&target) == 1 && initiator.plane.describe(PEER, "mem", PATIENCE).is_err()
    });
}

#[test]
fn a_session_lives_on_while_its_connections_are_cut() {
    let key = new_key();
    let (target, initiator) = (target(Some(&key)), initiator(Some(&key)));
    let forwarder = Forwarder::start("127.0.0.3:0", target.listens[0]);
    initiator.connect(forwarder.address);
    initiator
        .plane
        .maintain(PEER, vec![(None, forwarder.address)]);
    for _ in 0..3 {
        let before = forwarder.accepted();
        forwarder.cut();
        initiator.describe_works();
        assert!(forwarder.accepted() > before);
    }
    assert_eq!(begun(&target), 1, "the same session each time");
}

#[test]
fn nothing_that_is_said_goes_by_in_clear() {
    let key = new_key();
    let target = target(Some(&key));
    let tap = TcpListener::bind("127.0.0.3:0").unwrap();
    let address = tap.local_addr().unwrap();
    let to = target.listens[0];
    let seen = Arc::new(Mutex::new(Vec::new()));
    let writes = seen.clone();
    std::thread::spawn(move || {
        let (from, _) = tap.accept().unwrap();
        let to = TcpStream::connect(to).unwrap();
        let pass = |mut from: TcpStream, mut to: TcpStream, seen: Arc<Mutex<Vec<u8>>>| {
            let mut buffer = [0; 4096];
            while let Ok(bytes @ 1..) = from.read(&mut buffer) {
                seen.lock().unwrap().extend_from_slice(&buffer[..bytes]);
                to.write_all(&buffer[..bytes]).unwrap();
            }
        };
        let back = (
            to.try_clone().unwrap(),
            from.try_clone().unwrap(),
            writes.clone(),
        );
        std::thread::spawn(move || pass(back.0, back.1, back.2));
        pass(from, to, writes);
    });
    let initiator = initiator(Some(&key));
    let met = initiator.connect(address);
    initiator.describe_works();
    let seen = seen.lock().unwrap().clone();
    let shows = |what: &[u8]| seen.windows(what.len()).any(|bytes| bytes == what);
    assert!(seen.len() > 1000);
    // (what, the bytes)
    let secrets: [(&str, &[u8]); 5] = [
        ("the session", &met.session.0),
        ("its name", b"alpha"),
        ("the target's name", b"beta"),
        ("a segment's name", b"scratch"),
        ("a region's key", &[9; 16]),
    ];
    for (name, bytes) in secrets {
        assert!(!shows(bytes), "{name}");
    }
}

#[test]
fn another_key_is_refused_in_words_at_both_ends_and_has_no_effect() {
    let (ours, theirs) = (new_key(), new_key());
    let target = target(Some(&ours));
    let member = initiator(Some(&ours));
    member.connect(target.listens[0]);
    let stranger = initiator(Some(&theirs));
    let error = refused(&stranger, target.listens[0]);
    let text = error.to_string();
    // It names both, so that people find the host that has the wrong one.
    assert!(text.contains(&ours.fingerprint().to_string()), "{text}");
    assert!(text.contains(&theirs.fingerprint().to_string()), "{text}");
    assert!(text.contains("security/key_file"), "{text}");
    assert!(
        matches!(
            error,
            ConnectError::Distrusted {
                why: Distrust::OtherKey { .. },
                ..
            }
        ),
        "{text}"
    );
    member.describe_works();
    assert_eq!(begun(&target), 1);
}

#[test]
fn one_without_a_key_is_refused_at_a_port_with_one() {
    let key = new_key();
    let target = target(Some(&key));
    let error = refused(&initiator(None), target.listens[0]);
    let text = error.to_string();
    assert!(
        matches!(
            error,
            ConnectError::Refused {
                reason: Refusal::Key,
                ..
            }
        ),
        "{text}"
    );
    assert!(
        text.contains("has a cluster key") && text.contains("security/key_file"),
        "{text}"
    );
    assert_eq!(begun(&target), 0);
}

#[test]
fn one_with_a_key_says_nothing_to_a_port_without() {
    let key = new_key();
    let target = target(None);
    let error = refused(&initiator(Some(&key)), target.listens[0]);
    let text = error.to_string();
    assert!(
        matches!(
            error,
            ConnectError::Distrusted {
                why: Distrust::Clear,
                ..
            }
        ),
        "{text}"
    );
    assert!(
        text.contains("in clear") && text.contains("security/key_file"),
        "{text}"
    );
    assert_eq!(begun(&target), 0);
    // Who has no key is served as ever.
    let fair = initiator(None);
    fair.connect(target.listens[0]);
    fair.describe_works();
}

/// Listens once, hears the first message, answers with these bytes and hears what is said to that.
fn impostor(answer: Vec<u8>) -> (SocketAddr, JoinHandle<[Vec<u8>; 2]>) {
    let listener = TcpListener::bind("127.0.0.4:0").unwrap();
    let address = listener.local_addr().unwrap();
    let heard = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut first = vec![0; 4096];
        let bytes = stream.read(&mut first).unwrap();
        first.truncate(bytes);
        stream.write_all(&answer).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        [first, rest(stream)]
    });
    (address, heard)
}

#[test]
fn nobody_talks_a_member_into_less() {
    let key = new_key();
    let welcome = Frame::Goodbye;
    let alert = |description: u8| vec![0x15, 3, 3, 0, 2, 2, description];
    // (name, what an impostor answers)
    let cases = [
        ("a greeting in clear", greeted(Purpose::Control, &[welcome])),
        ("TLS 1.2 is all there is", alert(70)),
        ("no handshake", alert(40)),
        ("a record of nothing", vec![0x16, 3, 3, 0, 0]),
        ("noise", vec![0xff; 64]),
        ("another program", b"SSH-2.0-OpenSSH\r\n".to_vec()),
        ("silence and an end", vec![]),
    ];
    for (name, answer) in cases {
        let (address, heard) = impostor(answer);
        let error = refused(&initiator(Some(&key)), address);
        assert!(
            matches!(error, ConnectError::Distrusted { .. }),
            "{name}: {error}"
        );
        let [first, rest] = heard.join().unwrap();
        assert_eq!(first[0], 0x16, "{name}: it begins with TLS");
        let said = [first, rest].concat();
        for secret in [&b"alpha"[..], b"polyrail\x01"] {
            assert!(
                !said.windows(secret.len()).any(|bytes| bytes == secret),
                "{name}"
            );
        }
    }
}

#[test]
fn other_kinds_of_tls_are_refused_at_a_port_with_a_key() {
    let key = new_key();
    let target = target(Some(&key));
    let hello = client_hello(&key);
    // Of TLS 1.2, as the version that is spoken is in an extension: without it.
    let mut old = hello.clone();
    let versions = old
        .windows(7)
        .position(|bytes| bytes == [0, 43, 0, 3, 2, 3, 4])
        .unwrap();
    old[versions + 5..versions + 7].copy_from_slice(&[3, 3]);
    let mut long = hello.clone();
    long[3..5].copy_from_slice(&16_384_u16.to_be_bytes());
    let cases = [("TLS 1.2", old), ("a long first message", long)];
    for (name, first) in cases {
        let mut stream = TcpStream::connect(target.listens[0]).unwrap();
        stream.write_all(&first).unwrap();
        let start = Instant::now();
        let said = rest(stream);
        assert!(start.elapsed() < AT_ONCE, "{name}: hung up on at once");
        // An alert or nothing; no handshake.
        assert_ne!(said.first(), Some(&0x16), "{name}");
    }
    // With certificates instead of raw keys.
    let mut config = (*key.client).clone();
    config.client_auth_cert_resolver = Arc::new(Nothing { raw: false });
    let client = ClientConnection::new(Arc::new(config), "x".try_into().unwrap()).unwrap();
    let stream = TcpStream::connect(target.listens[0]).unwrap();
    let error = talk(stream, client, &[]).unwrap_err();
    assert!(error.contains("HandshakeFailure"), "{error}");
    assert_eq!(begun(&target), 0);
}

/// Does the client's part of TLS on a socket, and says so much in clear text. What it hears, decrypted.
pub(super) fn talk(
    mut stream: TcpStream,
    mut client: ClientConnection,
    says: &[u8],
) -> Result<Vec<u8>, String> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    client.writer().write_all(says).unwrap();
    let mut heard = Vec::new();
    loop {
        while client.wants_write() {
            client
                .write_tls(&mut stream)
                .map_err(|error| error.to_string())?;
        }
        match client.read_tls(&mut stream) {
            Ok(0) => return Ok(heard),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
        client
            .process_new_packets()
            .map_err(|error| error.to_string())?;
        // At the end of what is there it would block.
        let _ = client.reader().read_to_end(&mut heard);
    }
}

#[test]
fn who_takes_any_target_for_his_own_is_not_taken_for_a_member() {
    let (ours, theirs) = (new_key(), new_key());
    let target = target(Some(&ours));
    // It accepts our proof, as if it had our public key from somewhere, and shows the proof of its own key.
    let mut config = (*ours.client).clone();
    config.client_auth_cert_resolver = theirs.client.client_auth_cert_resolver.clone();
    let client = ClientConnection::new(Arc::new(config), "x".try_into().unwrap()).unwrap();
    let stream = TcpStream::connect(target.listens[0]).unwrap();
    let hello = greeted(Purpose::Control, &[hello_frame(None)]);
    let error = talk(stream, client, &hello).unwrap_err();
    assert!(error.contains("CertificateUnknown"), "{error}");
    // And one that shows nothing.
    let mut config = (*ours.client).clone();
    config.client_auth_cert_resolver = Arc::new(Nothing { raw: true });
    let client = ClientConnection::new(Arc::new(config), "x".try_into().unwrap()).unwrap();
    let stream = TcpStream::connect(target.listens[0]).unwrap();
    let error = talk(stream, client, &hello).unwrap_err();
    assert!(error.contains("CertificateRequired"), "{error}");
    assert_eq!(begun(&target), 0);
}

/// Shows no key.
#[derive(Debug)]
struct Nothing {
    /// Says that it would be a raw one.
    raw: bool,
}

impl rustls::client::ResolvesClientCert for Nothing {
    fn resolve(
        &self,
        _: &[&[u8]],
        _: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn only_raw_public_keys(&self) -> bool {
        self.raw
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// What a target has said first, behind its greeting.
pub(super) fn first_frame(said: &[u8]) -> Option<Frame> {
    let mut decoder = Decoder::default();
    decoder.push(said);
    decoder.next_greeting().unwrap().unwrap();
    decoder.next_frame().unwrap()
}

pub(super) fn hello_frame(session: Option<SessionId>) -> Frame {
    Frame::Hello {
        name: "alpha".into(),
        incarnation: 1,
        session: session.map(|session| session.0),
        token: vec![],
    }
}

#[test]
fn a_stolen_session_is_of_no_use_without_the_key() {
    let (ours, theirs) = (new_key(), new_key());
    let target = target(Some(&ours));
    let member = initiator(Some(&ours));
    let session = member.connect(target.listens[0]).session;
    // Everything that the member has said, and in clear.
    let hello = greeted(Purpose::Control, &[hello_frame(Some(session))]);
    let mut stream = TcpStream::connect(target.listens[0]).unwrap();
    stream.write_all(&hello).unwrap();
    let said = rest(stream);
    let frame = first_frame(&said);
    assert!(
        matches!(
            frame,
            Some(Frame::Refused {
                reason: Refusal::Key,
                ..
            })
        ),
        "{frame:?}"
    );
    // With another key.
    let client = ClientConnection::new(theirs.client.clone(), "x".try_into().unwrap()).unwrap();
    let stream = TcpStream::connect(target.listens[0]).unwrap();
    assert!(talk(stream, client, &hello).is_err());
    // A lane has no place within TLS, whoever has the key.
    let client = ClientConnection::new(ours.client.clone(), "x".try_into().unwrap()).unwrap();
    let stream = TcpStream::connect(target.listens[0]).unwrap();
    let join = Frame::JoinLane {
        session: session.0,
        lane: LANE.0,
        epoch: EPOCH.0,
    };
    let said = talk(stream, client, &greeted(Purpose::Lane, &[join])).unwrap();
    let frame = first_frame(&said);
    assert!(
        matches!(
            frame,
            Some(Frame::Refused {
                reason: Refusal::Protocol,
                ..
            })
        ),
        "{frame:?}"
    );
    member.describe_works();
    assert_eq!(begun(&target), 1);
}

/// Of members of one authority, by their names.
pub(super) fn certified<const N: usize>(names: [&str; N]) -> [Arc<ClusterKey>; N] {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = params.self_signed(&key).unwrap().pem();
    let authority = Issuer::new(params, key);
    names.map(|name| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.into()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap().pem();
        let (certificate, key) = (certificate.as_bytes(), key.serialize_pem());
        let made = ClusterKey::certified(certificate, key.as_bytes(), root.as_bytes(), &[]);
        Arc::new(made.unwrap())
    })
}

#[test]
fn a_stolen_session_is_of_no_use_to_a_member_of_another_name() {
    let [alpha, mallory] = certified(["alpha.example", "mallory.example"]);
    let target = target(Some(&alpha));
    let member = initiator(Some(&alpha));
    let session = member.connect(target.listens[0]).session;
    // Everything that the member has said, with a certificate that is as good.
    let hello = greeted(Purpose::Control, &[hello_frame(Some(session))]);
    let client = ClientConnection::new(mallory.client.clone(), "x".try_into().unwrap()).unwrap();
    let stream = TcpStream::connect(target.listens[0]).unwrap();
    let said = talk(stream, client, &hello).unwrap();
    match first_frame(&said) {
        Some(Frame::Refused {
            reason: Refusal::Key,
            text,
        }) => assert!(text.contains("another name than mallory.example"), "{text}"),
        frame => panic!("{frame:?}"),
    }
    member.describe_works();
    assert_eq!(begun(&target), 1);
}

#[test]
fn half_handshakes_in_thousands_take_nothing_from_members() {
    const EACH: usize = 2000;
    let key = new_key();
    let target = Engine::start("beta", &["127.0.0.2:0"], |config| {
        config.key = Some(key.clone());
        config.handshakes_max = 1024;
        // As an engine listens.
        for listener in &config.listeners {
            socket2::SockRef::from(listener).listen(1024).unwrap();
        }
        // No stranger goes of himself.
        config.handshake_max = PATIENCE;
    });
    let member = initiator(Some(&key));
    member.connect(target.listens[0]);
    let hello = client_hello(&key);
    // (name, what is said and nothing after it)
    let cases: [(&str, &[u8]); 5] = [
        ("nothing", &[]),
        ("one byte", &hello[..1]),
        ("half of a first message", &hello[..hello.len() / 2]),
        ("a whole first message", &hello),
        (
            "a greeting in clear",
            &Greeting::ours(Purpose::Control).encode(),
        ),
    ];
    // More than the target keeps.
    let mut strangers = VecDeque::new();
    for (from, (name, says)) in cases.into_iter().enumerate() {
        for number in 0..EACH {
            // The member is served all the while, and the kernel's queue does not run over.
            if number % 64 == 0 {
                member.describe_works();
            }
            let from: SocketAddr = format!("127.0.0.{}:0", 10 + from).parse().unwrap();
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
            let socket = socket.unwrap();
            socket.bind(&from.into()).unwrap();
            socket.connect(&target.listens[0].into()).unwrap();
            let mut stream: TcpStream = socket.into();
            // It may have had to make room already.
            let _ = stream.write_all(says);
            strangers.push_back(stream);
            if strangers.len() > 2048 {
                strangers.pop_front();
            }
        }
        let start = Instant::now();
        member.describe_works();
        let newcomer = initiator(Some(&key));
        newcomer.connect(target.listens[0]);
        newcomer.describe_works();
        assert!(
            start.elapsed() < PATIENCE / 4,
            "{name}: {:?}",
            start.elapsed()
        );
    }
    assert_eq!(begun(&target), 1 + cases.len());
}

#[test]
fn an_older_target_that_just_hangs_up_is_told_of_in_words() {
    let key = new_key();
    let (address, _heard) = impostor(vec![]);
    let error = refused(&initiator(Some(&key)), address);
    let text = error.to_string();
    assert!(
        matches!(
            error,
            ConnectError::Distrusted {
                why: Distrust::Gone,
                ..
            }
        ),
        "{text}"
    );
    assert!(
        text.contains("has it a cluster key (security/key_file)"),
        "{text}"
    );
}

#[test]
fn both_sides_of_tls_are_1_3_and_forget_everything() {
    let key = new_key();
    let mut client = ClientConnection::new(key.client.clone(), "x".try_into().unwrap()).unwrap();
    let mut server = ServerConnection::new(key.server.clone()).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        server.read_tls(&mut bytes.as_slice()).unwrap();
        server.process_new_packets().unwrap();
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        if !bytes.is_empty() {
            client.read_tls(&mut bytes.as_slice()).unwrap();
            let state = client.process_new_packets().unwrap();
            assert_eq!(state.plaintext_bytes_to_read(), 0);
        }
    }
    assert_eq!(
        client.protocol_version(),
        Some(rustls::ProtocolVersion::TLSv1_3)
    );
    assert_eq!(
        server.protocol_version(),
        Some(rustls::ProtocolVersion::TLSv1_3)
    );
    assert_eq!(client.tls13_tickets_received(), 0);
    assert_eq!(client.handshake_kind(), Some(rustls::HandshakeKind::Full));
}

#[test]
fn another_key_counts_for_connections_that_begin_later() {
    let (old, new) = (new_key(), new_key());
    let target = target(Some(&old));
    let (before, after) = (initiator(Some(&old)), initiator(Some(&new)));
    let at = target.listens[0];
    before.connect(at);
    refused(&after, at);
    assert!(target.plane.replace_key(new.clone(), None));
    after.connect(at);
    after.describe_works();
    // Who is in stays in; who comes anew needs the new one.
    before.describe_works();
    let late = initiator(Some(&old));
    refused(&late, at);
    assert!(late.plane.replace_key(new.clone(), None));
    late.connect(at);
    assert!(
        !Engine::initiator().plane.replace_key(new, None),
        "there was none"
    );
}
