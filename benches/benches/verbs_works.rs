//! Instructions of a work on an RDMA lane: from the batch that core hands over to the completion that core is told.
//!
//! The devices are a libibverbs in this process that believes everything; what it does itself is part of the count. Divide
//! by [`WORKS`]. The limit fails the run 10 % above what was committed.

// The macros make public items without documentation.
#![allow(missing_docs)]

use std::hint::black_box;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use gungraun::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use polyrail_control::codec::{Decoder, Frame};
use polyrail_core::time::Duration;
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef, TransportId};
use polyrail_core::work::{LaneFact, Op, POST_MAX, Place, PostBatch, Stop, Work};
use polyrail_transport::clock::Clock;
use polyrail_transport::memory::{Access, Region, RegionKey, RegionTable, TrustDomain};
use polyrail_transport::{
    Endpoint, InboundLane, Polled, RailAddress, RemoteRegion, SessionId, Transport,
};
use polyrail_verbs::stub::{StubTransport, believe};

/// Works that are measured.
const WORKS: u64 = 32_000;
/// Instructions of one work when this was committed, in batches of 32 with one completion.
const BULK: u64 = 256;
/// The same, in batches of one, each with its completion.
const SINGLE: u64 = 1_994;

const BYTES: u64 = 1 << 20;
const LANE: LaneId = LaneId::new(0, RailId(0));
const EPOCH: Epoch = Epoch(1);

/// What the target offers.
struct Only(Arc<Region>);

impl RegionTable for Only {
    fn find(&self, _: &RegionKey, _: TrustDomain) -> Option<Arc<Region>> {
        Some(self.0.clone())
    }
}

/// A lane, and what it needs to live.
struct Rig {
    endpoint: Box<dyn Endpoint>,
    clock: Clock,
    batch: PostBatch,
    out: Polled,
    _ends: (Arc<StubTransport>, StubTransport),
}

impl Rig {
    fn new(works: usize) -> Self {
        let region = |access| Arc::new(Region::allocate(BYTES, access).expect("memory"));
        let remote = region(Access::RemoteReadWrite);
        let over = |region: &Arc<Region>| {
            StubTransport::new(Arc::new(Only(region.clone()))).expect("two devices")
        };
        let (target, initiator) = (Arc::new(over(&remote)), over(&remote));
        let listener = TcpListener::bind("127.0.0.2:0").expect("a port");
        let port = listener.local_addr().expect("it has one");
        let serves = target.clone();
        thread::spawn(move || {
            let (stream, _) = listener.accept().expect("one comes");
            serves.admit(joined(stream));
        });
        let clock = Clock::start();
        let mut endpoint = initiator.endpoint(0, clock).expect("an endpoint");
        endpoint.attach_local(SegmentRef(1), region(Access::Local));
        let key = remote.key();
        endpoint.attach_remote(SegmentRef(2), RemoteRegion { key, bytes: BYTES });
        let address = RailAddress {
            transport: TransportId(0),
            local: Some([127, 0, 0, 1].into()),
            remote: port,
            session: SessionId([1; 16]),
            secret: None,
            own: Arc::default(),
        };
        endpoint.attach_rail(RailId(0), address);
        endpoint.open(LANE, EPOCH, clock.now() + Duration::from_secs(30));
        let work = |index: usize| {
            let place = |segment| Place {
                segment: SegmentRef(segment),
                offset: 4096 * index as u64,
            };
            Work {
                cookie: index as u64,
                op: Op::Write,
                local: place(1),
                remote: place(2),
                // With a gap behind it at the peer, or else they would go as one.
                length: 2048,
                signal: index + 1 == works,
            }
        };
        let mut rig = Self {
            endpoint,
            clock,
            batch: PostBatch {
                lane: LANE,
                epoch: EPOCH,
                works: (0..works).map(work).collect(),
            },
            out: Polled::default(),
            _ends: (target, initiator),
        };
        rig.until(|out| {
            let mut facts = out.lanes.iter();
            facts.any(|report| matches!(report.fact, LaneFact::Opened { .. }))
        });
        // The first ones wait for what opens the region.
        while rig.endpoint.post(&rig.batch).stop != Stop::All {
            rig.until(|out| !out.lanes.is_empty());
        }
        rig.until(|out| !out.completions.is_empty());
        believe(true);
        rig
    }

    fn until(&mut self, is_so: impl Fn(&Polled) -> bool) {
        loop {
            self.out.completions.clear();
            self.out.lanes.clear();
            self.endpoint.poll(self.clock.now(), &mut self.out);
            if is_so(&self.out) {
                return;
            }
            thread::yield_now();
        }
    }

    fn run(&mut self, works: u64) {
        let mut moved = 0;
        while moved < works {
            let posted = self.endpoint.post(&self.batch);
            assert_eq!(posted.stop, Stop::All);
            moved += posted.accepted as u64;
            self.until(|out| !out.completions.is_empty());
        }
    }
}

/// Reads greeting and join, as the control plane does.
fn joined(mut stream: TcpStream) -> InboundLane {
    let mut decoder = Decoder::default();
    let mut byte = [0];
    let mut greeted = false;
    loop {
        if !greeted {
            greeted = decoder.next_greeting().expect("a greeting").is_some();
        } else if let Some(frame) = decoder.next_frame().expect("a frame") {
            let Frame::JoinLaneOf {
                transport,
                session,
                lane,
                epoch,
            } = frame
            else {
                panic!("it asks for {}", frame.kind());
            };
            return InboundLane {
                transport: Some(transport),
                session: SessionId(session),
                domain: TrustDomain::COMMON,
                lane: LaneId(lane),
                epoch: Epoch(epoch),
                stream,
                keys: None,
            };
        }
        // One at a time, so that nothing behind the join is lost.
        stream.read_exact(&mut byte).expect("more comes");
        decoder.push(&byte);
    }
}

fn limit(instructions: u64) -> LibraryBenchmarkConfig {
    let limit = instructions * WORKS * 11 / 10;
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(Callgrind::default().hard_limits([(EventKind::Ir, limit)]));
    config
}

#[library_benchmark(setup = Rig::new)]
#[bench::bulk(args = (POST_MAX), config = limit(BULK))]
#[bench::single(args = (1), config = limit(SINGLE))]
fn works(mut rig: Rig) -> Rig {
    rig.run(WORKS);
    black_box(rig)
}

library_benchmark_group!(
    name = verbs;
    benchmarks = works
);
main!(library_benchmark_groups = verbs);
