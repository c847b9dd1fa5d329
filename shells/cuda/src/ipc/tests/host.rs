//! Memory of the host's, which devices of another process copy to and from.

use std::os::fd::AsFd;

use polyrail_conform::Driven;
use polyrail_transport::mapping::Mapping;

use super::*;

const DEVICE: SegmentRef = SegmentRef(1);
const THEIRS: SegmentRef = SegmentRef(2);
const HOST: SegmentRef = SegmentRef(3);
const LANE: LaneId = LaneId(1);
const EPOCH: Epoch = Epoch(1);
/// Of several rounds through all slots.
const BYTES: u64 = (5 << 20) + 4097;

/// A process with a device, and a lane to a target.
struct Pair {
    target: Target,
    stub: Arc<Stub>,
    driven: Driven,
    device: Arc<Region>,
}

impl Pair {
    /// Their segment is this.
    fn over(theirs: Region) -> (Self, Arc<Region>) {
        let target = Target::new();
        let (key, region) = target.add(theirs);
        let stub = Arc::new(Stub::new(Machine::default()));
        let gpus = Gpus::over(stub.clone());
        let transport = CudaIpcTransport::new(gpus.clone(), Arc::new(Regions::default())).unwrap();
        let clock = Clock::start();
        let mut endpoint = transport.endpoint(0, clock).unwrap();
        endpoint.attach_rail(
            LANE.rail(),
            RailAddress {
                transport: TransportId(0),
                local: None,
                remote: ([0, 0, 0, 0], 0).into(),
                session: SESSION,
                secret: None,
                own: target.transport.address().as_slice().into(),
            },
        );
        let device = gpus.allocate(0, BYTES, Access::Local, Sharing::Process);
        let device = Arc::new(device.unwrap());
        endpoint.attach_local(DEVICE, device.clone());
        let host = Region::allocate(4096, Access::Local).unwrap();
        endpoint.attach_local(HOST, Arc::new(host));
        let bytes = region.bytes();
        endpoint.attach_remote(THEIRS, RemoteRegion { key, bytes });
        let mut driven = Driven::new(endpoint, clock, LANE, EPOCH);
        driven.open();
        let pair = Self {
            target,
            stub,
            driven,
            device,
        };
        (pair, region)
    }

    fn new() -> (Self, Arc<Region>) {
        Self::over(Region::allocate(BYTES, Access::RemoteReadWrite).unwrap())
    }

    /// Copies until what is mapped is pinned too: then it is one copy, and needs no slots.
    fn until_pinned(&mut self) {
        let until = std::time::Instant::now() + PATIENCE;
        loop {
            let before = self.stub.counts().copies;
            let length = crate::slots::SLOT_BYTES + 1;
            assert_eq!(self.run(Op::Read, (0, 0), length), Outcome::Success);
            if self.stub.counts().copies - before == 1 {
                return;
            }
            assert!(std::time::Instant::now() < until);
        }
    }

    fn run(&mut self, op: Op, (here, there): (u64, u64), length: u64) -> Outcome {
        self.driven.run(&[work(op, (DEVICE, here), there, length)])[0]
    }
}

fn work(op: Op, (segment, offset): (SegmentRef, u64), there: u64, length: u64) -> Work {
    Work {
        cookie: 1,
        op,
        local: Place { segment, offset },
        remote: Place {
            segment: THEIRS,
            offset: there,
        },
        length: length as u32,
        signal: true,
    }
}

fn pattern(seed: u64, length: u64) -> Vec<u8> {
    let byte = |at: u64| (at.wrapping_mul(31).wrapping_add(seed) % 251) as u8;
    (0..length).map(byte).collect()
}

fn bytes(region: &Region, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    region.load(offset, &mut bytes).unwrap();
    bytes
}

/// Copies both ways, and looks at every byte and at those around them. `parts`: in how many copies of the device so many bytes go.
fn copies(pair: &mut Pair, theirs: &Region, name: &str, parts: impl Fn(u64) -> u64) {
    let device = pair.device.clone();
    for (seed, size) in (0..).zip([1, 255, 4096, 4097, 300_001, BYTES - 4096]) {
        for (at, to) in [(0, 0), (1, 13), (4088, 3)] {
            for op in [Op::Write, Op::Read] {
                let (from, from_at, into, into_at) = match op {
                    Op::Write => (&*device, at, theirs, to),
                    Op::Read => (theirs, to, &*device, at),
                };
                let sent = pattern(seed, size);
                from.store(&sent, from_at).unwrap();
                let around = [0xa5; 8];
                into.store(&around, into_at + size).unwrap();
                let before = pair.stub.counts();
                assert_eq!(pair.run(op, (at, to), size), Outcome::Success);
                let after = pair.stub.counts();
                let case = format!("{name}: {op:?}, {size} bytes, {at} to {to}");
                assert_eq!(after.unpinned, before.unpinned, "{case}: a copy waited");
                assert_eq!(after.copies - before.copies, parts(size), "{case}");
                assert!(bytes(into, into_at, size) == sent, "{case}");
                assert_eq!(bytes(into, into_at + size, 8), around, "{case}");
            }
        }
    }
}

#[test]
fn a_device_copies_to_and_from_memory_that_another_process_has_on_the_host() {
    let (mut pair, theirs) = Pair::new();
    pair.until_pinned();
    copies(&mut pair, &theirs, "pinned", |_| 1);
}

#[test]
fn what_cannot_be_pinned_passes_through_slots() {
    let (mut pair, theirs) = Pair::new();
    pair.stub.refuse_pins_above(4 << 20);
    copies(&mut pair, &theirs, "not pinned", |size| {
        size.div_ceil(crate::slots::SLOT_BYTES)
    });
}

#[test]
fn it_is_taken_back_when_the_last_copy_is_over_and_no_sooner() {
    let (mut pair, theirs) = Pair::new();
    pair.until_pinned();
    let pinned = pair.stub.counts().pinned;
    pair.stub.hold();
    let posted = pair.driven.post(&[work(Op::Write, (DEVICE, 0), 0, 4096)]);
    assert_eq!(posted.stop, Stop::All);
    let key = theirs.key();
    std::thread::scope(|scope| {
        let going = scope.spawn(|| theirs.revoke());
        for _ in 0..1000 {
            pair.driven.poll();
        }
        assert!(!going.is_finished() && pair.driven.polled.completions.is_empty());
        pair.stub.go_on();
        while !going.is_finished() {
            pair.driven.poll();
        }
    });
    assert_eq!(pair.driven.polled.completions.len(), 1);
    assert_eq!(pair.stub.counts().pinned, pinned - 1, "it is pinned still");
    pair.driven.polled.completions.clear();
    pair.target.regions.0.lock().unwrap().remove(&key);
    let refused = Outcome::Error(Cause::RemoteAccess);
    assert_eq!(pair.run(Op::Write, (0, 0), 1), refused);
}

#[test]
fn what_peers_may_only_read_is_not_written() {
    let (mut pair, theirs) = Pair::over(Region::allocate(BYTES, Access::RemoteRead).unwrap());
    let sent = pattern(1, 4096);
    theirs.store(&sent, 100).unwrap();
    assert_eq!(pair.run(Op::Read, (7, 100), 4096), Outcome::Success);
    assert!(bytes(&pair.device, 7, 4096) == sent);
    for (name, op, there, length) in [
        ("written", Op::Write, 0, 1),
        ("past its end", Op::Read, BYTES - 4, 5),
    ] {
        let posted = pair.driven.post(&[work(op, (DEVICE, 0), there, length)]);
        assert_eq!(posted.stop, Stop::Rejected(Cause::RemoteAccess), "{name}");
    }
}

#[test]
fn a_probe_is_answered_whether_the_memory_is_mapped_or_not() {
    let (mut pair, _theirs) = Pair::new();
    let probe = work(Op::Write, (HOST, 0), 0, 64);
    assert_eq!(pair.driven.run(&[probe]), [Outcome::Success]);
    // What was learnt for the host's end is asked anew for the device's.
    pair.until_pinned();
    let copies = pair.stub.counts().copies;
    assert_eq!(pair.driven.run(&[probe]), [Outcome::Success]);
    assert_eq!(pair.stub.counts().copies, copies, "it copied");
}

#[test]
fn only_what_peers_may_use_and_can_map_is_handed_out() {
    let target = Target::new();
    let peer = target.let_in((1, 1));
    let map = |key| {
        peer.say(&Request::Map { key });
        peer.hear()
    };
    let (local, _local) = target.add(Region::allocate(4096, Access::Local).unwrap());
    let (on_gpu, _on_gpu) = target.gpu(Access::RemoteReadWrite);
    let mut memory = vec![0_u8; 4096];
    let base = std::ptr::NonNull::new(memory.as_mut_ptr()).unwrap();
    // SAFETY: the vector outlives the region, and nobody else touches it.
    let private = unsafe { Region::new(base, 4096, Access::RemoteReadWrite, None) };
    let (private, _private) = target.add(private.unwrap());
    for key in [RegionKey([9; 16]), local, on_gpu, private] {
        assert_eq!(map(key), Some(Answer::Nothing { key }));
    }
    for (access, writable) in [(Access::RemoteRead, false), (Access::RemoteReadWrite, true)] {
        let (key, _region) = target.add(Region::allocate(4096, access).unwrap());
        let bytes = 4096;
        let maps = Answer::Maps {
            key,
            bytes,
            writable,
        };
        assert_eq!(map(key), Some(maps));
        peer.say(&Request::Left { key });
    }
    let (key, _region) = target.add(Region::allocate(4096, Access::RemoteRead).unwrap());
    assert!(matches!(map(key), Some(Answer::Maps { .. })));
    assert_eq!(map(key), None, "it asks twice");
    drop(memory);
}

#[test]
fn a_target_that_lies_about_a_file_harms_nobody() {
    let short = Mapping::in_file(4096).unwrap().1;
    let open = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    // (name, the file, whether the lane goes on)
    let cases = [
        ("no file", None, false),
        ("one that is shorter", Some(short.as_fd()), true),
        ("one that can shrink", Some(open.as_fd()), true),
        ("no memory", Some(null.as_fd()), true),
    ];
    for (name, file, goes_on) in cases {
        let mut initiator = Initiator::on_device();
        let key = initiator.key;
        initiator.tell(&Answer::IsOnHost { key });
        assert_eq!(initiator.heard(), Request::Map { key }, "{name}");
        let maps = Answer::Maps {
            key,
            bytes: 8192,
            writable: true,
        };
        packets::send(&initiator.peer.0, &maps, file).unwrap();
        match goes_on {
            false => assert_eq!(initiator.fact(), LaneFact::Broken(Cause::Reset), "{name}"),
            true => {
                while initiator.polled.completions.is_empty() {
                    initiator.poll();
                }
                let outcome = initiator.polled.completions[0].outcome;
                assert_eq!(outcome, Outcome::Error(Cause::Refused), "{name}");
            }
        }
    }
    // Nobody has asked it for anything.
    let mut initiator = Initiator::new();
    let key = initiator.key;
    let maps = Answer::Maps {
        key,
        bytes: 4096,
        writable: true,
    };
    packets::send(&initiator.peer.0, &maps, Some(short.as_fd())).unwrap();
    assert_eq!(initiator.fact(), LaneFact::Broken(Cause::Reset));
    initiator.stub.go_on();
}
