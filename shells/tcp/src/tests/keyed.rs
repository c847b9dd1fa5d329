//! Lanes between engines with a cluster key, over the control plane as it is: who has seen everything and has not the
//! session's secret reads and writes nothing.

use std::net::{IpAddr, Shutdown};

use polyrail_control::codec::{SegmentDescriptor, SegmentKind};
use polyrail_control::plane::{
    CallAnswer, Guest, Handler, Introduction, Notifier, Party, Plane, PlaneConfig, Rails,
    SessionEnd, SessionLoss,
};
use polyrail_control::security::{ClusterKey, Secret};
use polyrail_core::path::view::PathView;
use polyrail_core::stage::StageMessage;
use polyrail_core::transport::MemoryKind;
use polyrail_core::units::PeerId;
use polyrail_transport::ticket::{NONCE_BYTES, Nonce, PROOF_BYTES, Proof, Ticket};
use polyrail_transport::{FenceAnswer, RetireAnswer};

use super::*;

const PEER: PeerId = PeerId(1);

/// Hands lanes over, and does nothing else.
struct Lanes(Arc<TcpTransport>);

impl Handler for Lanes {
    fn lane(&self, lane: InboundLane) {
        self.0.admit(lane);
    }

    fn domain_of(&self, _: IpAddr, _: Option<&str>) -> TrustDomain {
        TrustDomain::COMMON
    }

    fn describe(&self, _: &str, _: TrustDomain) -> Option<SegmentDescriptor> {
        None
    }

    fn see_path(&self, _: &[(IpAddr, IpAddr)]) -> Option<PathView> {
        None
    }

    fn session_began(&self, _: &Guest<'_>) {}

    fn moved(&self, _: SessionId, _: u64) {}

    fn moved_with(&self, _: PeerId) -> Option<u64> {
        None
    }

    fn is_idle(&self, _: PeerId) -> bool {
        true
    }

    fn leaves(&self, _: PeerId) {}

    fn fence(&self, _: SessionId, _: LaneId, _: Epoch, _: FenceAnswer) {}

    fn call(&self, _: SessionId, _: u16, _: Vec<u8>, _: CallAnswer) {}

    fn notify(&self, _: &Notifier<'_>, _: Vec<u8>) -> bool {
        false
    }

    fn staged(&self, _: Party, _: StageMessage) {}

    fn session_ended(&self, _: SessionId, _: SessionEnd, retired: RetireAnswer) {
        retired();
    }

    fn heard(&self, _: PeerId) {}

    fn fenced(&self, _: PeerId, _: LaneId, _: Epoch, _: u32) {}

    fn has_rails(&self, _: PeerId, _: Rails) {}

    fn session_lost(&self, _: PeerId, _: SessionLoss) {}
}

fn plane(
    name: &str,
    key: Option<&Arc<ClusterKey>>,
    transport: Arc<TcpTransport>,
    listener: Option<TcpListener>,
) -> Plane {
    let scratch = SegmentDescriptor {
        name: "scratch".into(),
        generation: 1,
        bytes: 1,
        key: RegionKey([1; 16]),
        access: Access::RemoteReadWrite,
        memory: MemoryKind::Host,
        kind: SegmentKind::Memory,
        numa_node: None,
    };
    let mut config = PlaneConfig::new(name, 1, scratch, Clock::start());
    config.listeners.extend(listener);
    config.key = key.cloned();
    Plane::start(config, Arc::new(Lanes(transport))).unwrap()
}

/// A target with a key, and a member with a session and a region of it that it reaches.
struct Cluster {
    target: Plane,
    at: SocketAddr,
    region: Arc<Region>,
    member: Plane,
    met: Introduction,
}

impl Cluster {
    fn start(bytes: u64) -> Self {
        let key = Arc::new(ClusterKey::new(&Secret::draw().unwrap()).unwrap());
        Self::with(bytes, Some(&key))
    }

    fn with(bytes: u64, key: Option<&Arc<ClusterKey>>) -> Self {
        let table = Arc::new(Table::default());
        let region = Arc::new(Region::allocate(bytes, Access::RemoteReadWrite).unwrap());
        let known = (TrustDomain::COMMON, region.clone());
        table.0.lock().unwrap().insert(region.key(), known);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let transport = Arc::new(TcpTransport::new(table));
        let target = plane("target", key, transport, Some(listener));
        let nothing = Arc::new(TcpTransport::new(Arc::new(Table::default())));
        let member = plane("member", key, nothing, None);
        let met = member.connect(PEER, None, at, PATIENCE).unwrap();
        Self {
            target,
            at,
            region,
            member,
            met,
        }
    }

    fn initiator(&self, remote: SocketAddr) -> Initiator {
        let mut initiator = Initiator::new(remote, 0, self.region.bytes());
        let address = RailAddress {
            transport: TransportId(0),
            local: None,
            remote,
            session: self.met.session,
            secret: self.met.secret.clone(),
            own: Arc::default(),
        };
        for rail in 0..2 {
            let address = address.clone();
            initiator.endpoint.attach_rail(RailId(rail), address);
        }
        initiator.name(&self.region);
        initiator
    }

    /// A write of all that a stranger has seen, with his byte.
    fn forged(&self, sequence: u32) -> Vec<u8> {
        let request = Request {
            op: Op::Write,
            spinning: false,
            length: 1,
            sequence,
            key: self.region.key(),
            offset: self.region.bytes() - 1,
        };
        [&request.encode()[..], &[0xbd]].concat()
    }

    fn joins(&self, lane: LaneId, epoch: Epoch, ticket: Ticket) -> Vec<u8> {
        let join = Frame::JoinLaneProved {
            transport: "tcp".into(),
            session: self.met.session.0,
            lane: lane.0,
            epoch: epoch.0,
            ticket,
        };
        let mut bytes = Vec::new();
        codec::encode(&join, &mut bytes).unwrap();
        bytes
    }
}

fn greet(to: SocketAddr) -> (TcpStream, Nonce) {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(&Greeting::ours(Purpose::Lane).encode())
        .unwrap();
    let mut decoder = Decoder::default();
    let mut byte = [0];
    let mut greeted = false;
    loop {
        stream.read_exact(&mut byte).unwrap();
        decoder.push(&byte);
        greeted = greeted || decoder.next_greeting().unwrap().is_some();
        if greeted && let Some(Frame::LaneChallenge { nonce }) = decoder.next_frame().unwrap() {
            return (stream, nonce);
        }
    }
}

/// What is said until the other end hangs up.
fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    // A reset is an end too.
    let _ = stream.read_to_end(&mut said);
    said
}

/// Writes this byte and reads it back, and looks at every byte of the region.
fn works(cluster: &Cluster, initiator: &mut Initiator, epoch: Epoch, byte: u8) {
    let bytes = initiator.local.bytes();
    let last = bytes - 1;
    poison(&initiator.local, byte);
    let write = work(Op::Write, 1, 0, 0, last as u32);
    assert_eq!(initiator.carry_out(lane(0), epoch, write), Outcome::Success);
    poison(&initiator.local, 0xee);
    let read = work(Op::Read, 2, 0, 0, bytes as u32);
    assert_eq!(initiator.carry_out(lane(0), epoch, read), Outcome::Success);
    for region in [&initiator.local, &cluster.region] {
        let mut expected = vec![byte; bytes as usize];
        // Where strangers write.
        expected[last as usize] = 0;
        assert_eq!(content(region), expected);
    }
}

/// Lets lanes through to an address, and keeps all that their initiators say.
fn tap(to: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let all = heard.clone();
    thread::spawn(move || {
        while let Ok((mut from, _)) = listener.accept() {
            let mut there = TcpStream::connect(to).unwrap();
            let number = {
                let mut all = all.lock().unwrap();
                all.push(Vec::new());
                all.len() - 1
            };
            let (mut back, mut forth) = (there.try_clone().unwrap(), from.try_clone().unwrap());
            thread::spawn(move || {
                let _ = std::io::copy(&mut back, &mut forth);
                let _ = forth.shutdown(Shutdown::Both);
            });
            let all = all.clone();
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(length @ 1..) = from.read(&mut bytes) {
                    all.lock().unwrap()[number].extend_from_slice(&bytes[..length]);
                    if there.write_all(&bytes[..length]).is_err() {
                        break;
                    }
                }
                let _ = there.shutdown(Shutdown::Both);
            });
        }
    });
    (at, heard)
}

#[test]
fn members_move_bytes_over_lanes_that_have_proved_themselves() {
    let cluster = Cluster::start(10_000);
    let mut initiator = cluster.initiator(cluster.at);
    initiator.open(lane(0), ONE);
    works(&cluster, &mut initiator, ONE, 1);
    // The next epoch ends this one, and each begins once.
    initiator.open(lane(0), TWO);
    works(&cluster, &mut initiator, TWO, 2);
    let mut late = cluster.initiator(cluster.at);
    for epoch in [ONE, TWO] {
        late.begin_open(lane(0), epoch);
        let fact = late.fact(lane(0), epoch);
        assert_eq!(fact, LaneFact::OpenFailed(Cause::Refused), "{epoch:?}");
    }
    works(&cluster, &mut initiator, TWO, 3);
    assert_eq!(cluster.target.lanes_denied(), 0);
    assert_eq!(cluster.member.lanes_denied(), 0);
}

#[test]
fn a_million_forged_operations_write_nothing_and_a_member_works_beside_them() {
    const STRANGERS: usize = 1000;
    const EACH: u32 = 1000;
    let cluster = Cluster::start(10_000);
    let mut initiator = cluster.initiator(cluster.at);
    initiator.open(lane(0), ONE);
    let made_up = Ticket {
        protection: 0,
        nonce: Nonce([1; NONCE_BYTES]),
        proof: Proof([2; PROOF_BYTES]),
    };
    let operations: Vec<u8> = (0..EACH)
        .flat_map(|number| cluster.forged(number))
        .collect();
    let clear = Frame::JoinLane {
        session: cluster.met.session.0,
        lane: lane(0).0,
        epoch: 9,
    };
    let mut without = Vec::new();
    codec::encode(&clear, &mut without).unwrap();
    let joins = cluster.joins(lane(0), Epoch(9), made_up);
    let mut sent = 0;
    for number in 0..STRANGERS {
        let (mut stream, _) = greet(cluster.at);
        // With a ticket, without, or with none of both.
        let first: &[u8] = match number % 3 {
            0 => &joins,
            1 => &without,
            _ => &[],
        };
        // The other end may have hung up by then.
        let _ = stream.write_all(&[first, &operations].concat());
        sent += EACH;
        let _ = stream.shutdown(Shutdown::Write);
        let said = rest(stream);
        assert!(said.len() < 300, "no answer to an operation: {said:?}");
        if number % 100 == 0 {
            works(&cluster, &mut initiator, ONE, number as u8);
        }
    }
    assert_eq!(sent, 1_000_000);
    works(&cluster, &mut initiator, ONE, 7);
    assert_eq!(cluster.target.lanes_denied(), STRANGERS as u64 / 3);
}

#[test]
fn a_lane_that_was_recorded_is_of_no_use_again() {
    let cluster = Cluster::start(10_000);
    let (through, heard) = tap(cluster.at);
    let mut initiator = cluster.initiator(through);
    initiator.open(lane(0), ONE);
    works(&cluster, &mut initiator, ONE, 1);
    let recorded = heard.lock().unwrap()[0].clone();
    let shows = |what: &[u8]| recorded.windows(what.len()).any(|bytes| bytes == what);
    assert!(shows(&cluster.region.key().0), "lanes go in clear");
    drop(initiator);
    for turn in 1..4 {
        // All of it, at once and after the challenge.
        let mut stream = TcpStream::connect(cluster.at).unwrap();
        let _ = stream.write_all(&recorded);
        rest(stream);
        let (mut stream, _) = greet(cluster.at);
        let join = polyrail_control::codec::GREETING_BYTES;
        let length = 4 + usize::from(recorded[join]);
        stream.write_all(&recorded[join..join + length]).unwrap();
        let said = String::from_utf8_lossy(&rest(stream)).into_owned();
        assert!(said.contains("its proof is not one"), "{said:?}");
        assert_eq!(cluster.target.lanes_denied(), turn);
    }
    let mut initiator = cluster.initiator(cluster.at);
    initiator.open(lane(0), TWO);
    works(&cluster, &mut initiator, TWO, 2);
}

#[test]
fn nothing_is_asked_of_a_target_that_has_not_proved_itself() {
    let cluster = Cluster::start(10_000);
    let (nonce, proof) = (Nonce([3; NONCE_BYTES]), Proof([4; PROOF_BYTES]));
    let ready = Frame::LaneReady {
        works_max: 256,
        work_bytes_max: 1 << 20,
    };
    let challenge = Frame::LaneChallenge { nonce };
    // (name, what an impostor says at once)
    let cases: [(&str, Vec<Frame>); 3] = [
        ("in, without a ticket", vec![ready.clone()]),
        (
            "a proof that is none",
            vec![
                challenge.clone(),
                Frame::LaneProved { proof },
                ready.clone(),
            ],
        ),
        ("in, and no proof", vec![challenge, ready]),
    ];
    for (turn, (name, frames)) in cases.into_iter().enumerate() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut initiator = cluster.initiator(listener.local_addr().unwrap());
        initiator.begin_open(lane(0), ONE);
        let (mut stream, _) = listener.accept().unwrap();
        let mut says = Greeting::ours(Purpose::Lane).encode().to_vec();
        for frame in &frames {
            codec::encode(frame, &mut says).unwrap();
        }
        says.extend(Greeting::ours(Purpose::Lane).encode());
        stream.write_all(&says).unwrap();
        let fact = initiator.fact(lane(0), ONE);
        assert_eq!(fact, LaneFact::OpenFailed(Cause::Refused), "{name}");
        assert_eq!(
            initiator
                .post(lane(0), ONE, &[work(Op::Write, 1, 0, 0, 1)])
                .accepted,
            0
        );
        let heard = rest(stream);
        let mut decoder = Decoder::default();
        decoder.push(&heard);
        decoder.next_greeting().unwrap().unwrap();
        if let Some(frame) = decoder.next_frame().unwrap() {
            assert!(
                matches!(frame, Frame::JoinLaneProved { .. }),
                "{name}: {frame:?}"
            );
        }
        assert_eq!(decoder.pending_bytes(), 0, "{name}: nothing but who it is");
        assert_eq!(cluster.member.lanes_denied(), 1 + turn as u64, "{name}");
    }
}

/// Prints how long it takes; `docs/performance.md` has the figures of a release build.
#[test]
fn a_lane_with_a_ticket_is_open_in_no_time() {
    const LANES: u32 = 300;
    let clusters = [Cluster::with(10_000, None), Cluster::start(10_000)];
    let mut initiators = clusters.each_ref().map(|it| it.initiator(it.at));
    let mut spent = [const { Vec::new() }; 2];
    for epoch in 1..=LANES {
        for (initiator, spent) in initiators.iter_mut().zip(&mut spent) {
            let start = StdInstant::now();
            initiator.open(lane(0), Epoch(epoch));
            spent.push(start.elapsed());
        }
    }
    let [without, with] = spent.map(|mut spent| {
        spent.sort();
        spent[spent.len() / 2].as_secs_f64() * 1e6
    });
    eprintln!("a lane is open in {with:.0} µs with a ticket, {without:.0} µs without");
    // Far from what it takes: others may have the processors.
    assert!(with < 100_000.0, "{with} µs");
}
