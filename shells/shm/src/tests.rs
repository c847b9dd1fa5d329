//! Both halves against each other, and each against somebody who does not keep to the rules.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Instant as StdInstant;

use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef, TransportId};
use polyrail_core::work::{
    Cause, Completion, LaneFact, Op, Outcome, POST_MAX, Place, PostBatch, Posted, Scope, Stop, Work,
};
use polyrail_transport::clock::Clock;
use polyrail_transport::memory::{Access, Region, RegionKey, RegionTable, TrustDomain};
use polyrail_transport::packets;
use polyrail_transport::{
    Endpoint, LaneReport, Polled, RailAddress, RemoteRegion, SessionId, Transport, Waits,
};
use quickcheck::{Arbitrary, Gen};

use crate::copy_threads::CUT_BYTES_MIN;
use crate::lane::UNMARKED_BYTES_MAX;
use crate::mailbox::{Mailbox, Offer, Processor, Pulled};
use crate::process::OwnCookie;
use crate::reach::Asking;
use crate::stop::{self, Point};
use crate::wire::{Answer, Cookie, LaneName, Request, VERSION};
use crate::{ShmTransport, TURN_BYTES, WORK_BYTES_MAX, WORKS_MAX};

const SESSION: SessionId = SessionId([9; 16]);
const LOCAL: SegmentRef = SegmentRef(1);
const REMOTE: SegmentRef = SegmentRef(2);
const ONE: Epoch = Epoch(1);
const TWO: Epoch = Epoch(2);
/// Far beyond what anything here takes.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

fn lane() -> LaneId {
    LaneId::new(0, RailId(0))
}

/// Of a peer in another trust domain.
const OTHER: SessionId = SessionId([8; 16]);
const ANOTHER: TrustDomain = TrustDomain(1);

#[derive(Default)]
struct Table(Mutex<HashMap<RegionKey, (TrustDomain, Arc<Region>)>>);

impl RegionTable for Table {
    fn find(&self, key: &RegionKey, domain: TrustDomain) -> Option<Arc<Region>> {
        let found = self.0.lock().unwrap().get(key).cloned();
        found
            .filter(|(of, _)| *of == domain)
            .map(|(_, region)| region)
    }
}

/// A region that others can map, or not.
fn region(bytes: u64, access: Access, shared: bool) -> Arc<Region> {
    if shared || access == Access::Local {
        return Arc::new(Region::allocate(bytes, access).unwrap());
    }
    let memory = Arc::new(Region::allocate(bytes, Access::Local).unwrap());
    // SAFETY: the memory is mapped as long as its owner lives, which the region keeps.
    Arc::new(unsafe { Region::new(memory.base(), bytes, access, Some(memory.clone())) }.unwrap())
}

struct Target {
    transport: ShmTransport,
    table: Arc<Table>,
}

impl Target {
    fn start() -> Self {
        Self::with_copiers(1)
    }

    fn with_copiers(copiers: usize) -> Self {
        let table = Arc::new(Table::default());
        let transport = ShmTransport::new(table.clone(), copiers).unwrap();
        transport.begin_session(SESSION, TrustDomain::COMMON, None);
        transport.begin_session(OTHER, ANOTHER, None);
        Self { transport, table }
    }

    fn register(&self, bytes: u64, access: Access, shared: bool) -> Arc<Region> {
        self.register_in(TrustDomain::COMMON, bytes, access, shared)
    }

    fn register_in(
        &self,
        domain: TrustDomain,
        bytes: u64,
        access: Access,
        shared: bool,
    ) -> Arc<Region> {
        let region = region(bytes, access, shared);
        let mut table = self.table.0.lock().unwrap();
        table.insert(region.key(), (domain, region.clone()));
        region
    }

    fn fence(&self, epoch: Epoch) -> u32 {
        self.fence_lane(lane(), epoch)
    }

    fn fence_lane(&self, lane: LaneId, epoch: Epoch) -> u32 {
        let (sender, answer) = mpsc::channel();
        let told = Box::new(move |delivered| sender.send(delivered).unwrap());
        self.transport.fence_inbound(SESSION, lane, epoch, told);
        answer.recv_timeout(PATIENCE).unwrap()
    }

    fn retire(&self) {
        self.retire_session(SESSION);
    }

    fn retire_session(&self, session: SessionId) {
        let (sender, retired) = mpsc::channel();
        let answer = Box::new(move || sender.send(()).unwrap());
        self.transport.retire_session(session, answer);
        retired.recv_timeout(PATIENCE).unwrap();
    }

    /// Begins a session anew, so that the epochs of its lanes do too.
    fn renew(&self, session: SessionId, domain: TrustDomain) {
        self.retire_session(session);
        self.transport.begin_session(session, domain, None);
    }
}

/// An endpoint with one rail, and memory at either end.
struct Initiator {
    endpoint: Box<dyn Endpoint>,
    clock: Clock,
    local: Arc<Region>,
    seen: Polled,
    _transport: ShmTransport,
}

impl Initiator {
    fn new(address: Vec<u8>, remote: RemoteRegion, session: SessionId) -> Self {
        Self::with_copiers(1, address, remote, session)
    }

    fn with_copiers(
        copiers: usize,
        address: Vec<u8>,
        remote: RemoteRegion,
        session: SessionId,
    ) -> Self {
        let transport = ShmTransport::new(Arc::new(Table::default()), copiers).unwrap();
        let clock = Clock::start();
        let mut endpoint = transport.endpoint(0, clock).unwrap();
        let local = region(remote.bytes, Access::Local, false);
        endpoint.attach_local(LOCAL, local.clone());
        endpoint.attach_remote(REMOTE, remote);
        let rail = RailAddress {
            transport: TransportId(0),
            local: None,
            remote: ([127, 0, 0, 1], 1).into(),
            session,
            secret: None,
            own: address.into(),
        };
        endpoint.attach_rail(RailId(0), rail);
        Self {
            endpoint,
            clock,
            local,
            seen: Polled::default(),
            _transport: transport,
        }
    }

    /// One that reaches a region of a target, with a lane that is open.
    fn of(target: &Target, region: &Region) -> Self {
        Self::of_workers(1, target, region)
    }

    fn of_workers(workers: usize, target: &Target, region: &Region) -> Self {
        let address = target.transport.address();
        let mut initiator = Self::with_copiers(workers, address, far(region), SESSION);
        assert!(matches!(initiator.open(ONE), LaneFact::Opened { .. }));
        initiator
    }

    fn poll(&mut self) {
        self.endpoint.poll(self.clock.now(), &mut self.seen);
    }

    fn until(&mut self, what: &str, mut seen: impl FnMut(&Polled) -> bool) {
        let until = StdInstant::now() + PATIENCE;
        while !seen(&self.seen) {
            assert!(StdInstant::now() < until, "not seen: {what}");
            self.poll();
            thread::yield_now();
        }
    }

    fn open(&mut self, epoch: Epoch) -> LaneFact {
        let by = self.clock.now() + Duration::from_secs(20);
        self.endpoint.open(lane(), epoch, by);
        self.fact(epoch)
    }

    /// The next thing said of a lane.
    fn fact(&mut self, epoch: Epoch) -> LaneFact {
        self.until("a fact", |seen| !seen.lanes.is_empty());
        let LaneReport {
            lane: of,
            epoch: at,
            fact,
        } = self.seen.lanes.remove(0);
        assert_eq!((of, at), (lane(), epoch));
        fact
    }

    fn post(&mut self, epoch: Epoch, works: &[Work]) -> Posted {
        let batch = PostBatch {
            lane: lane(),
            epoch,
            works: works.iter().copied().collect(),
        };
        self.endpoint.post(&batch)
    }

    fn carries(&mut self, epoch: Epoch, work: Work) -> bool {
        let now = self.clock.now();
        self.endpoint.carry_at_once(now, lane(), epoch, &[work])
    }

    /// Posts works and waits for so many completions, or for the first one that fails.
    fn outcomes(&mut self, works: &[Work]) -> Vec<Outcome> {
        for part in works.chunks(POST_MAX) {
            let posted = self.post(ONE, part);
            assert_eq!((posted.accepted, posted.stop), (part.len(), Stop::All));
        }
        self.until("completions", |seen| {
            let has_failed = |done: &Completion| done.outcome != Outcome::Success;
            seen.completions.len() >= works.len() || seen.completions.iter().any(has_failed)
        });
        let done: Vec<Completion> = self.seen.completions.drain(..).collect();
        done.into_iter().map(|done| done.outcome).collect()
    }

    fn fence(&mut self, epoch: Epoch) -> [LaneFact; 2] {
        self.endpoint.fence(lane(), epoch, Scope::Local);
        [self.fact(epoch), self.fact(epoch)]
    }
}

const FENCED: [LaneFact; 2] = [
    LaneFact::Fenced {
        scope: Scope::Local,
        delivered: None,
    },
    LaneFact::Fenced {
        scope: Scope::Remote,
        delivered: None,
    },
];

fn far(region: &Region) -> RemoteRegion {
    RemoteRegion {
        key: region.key(),
        bytes: region.bytes(),
    }
}

fn work(op: Op, local: u64, remote: u64, length: u32) -> Work {
    Work {
        cookie: u64::from(length),
        op,
        local: Place {
            segment: LOCAL,
            offset: local,
        },
        remote: Place {
            segment: REMOTE,
            offset: remote,
        },
        length,
        signal: true,
    }
}

fn write(length: u32) -> Work {
    work(Op::Write, 0, 0, length)
}

/// A write to private memory that is offered, not made by the initiator itself.
fn long_write(cookie: u32) -> Work {
    Work {
        cookie: cookie.into(),
        ..write(UNMARKED_BYTES_MAX as u32 + cookie)
    }
}

fn put(region: &Region, bytes: &[u8]) {
    let entered = region.enter().unwrap();
    let to = entered.pointer(0, bytes.len() as u64).unwrap();
    // SAFETY: as many bytes are there while it is entered.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

fn bytes(region: &Region) -> Vec<u8> {
    let entered = region.enter().unwrap();
    let from = entered.pointer(0, region.bytes()).unwrap();
    let mut bytes = vec![0; region.bytes() as usize];
    // SAFETY: as in `put`.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    bytes
}

fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| (index as u32).wrapping_mul(0x9e37_79b9).to_be_bytes()[0] ^ seed)
        .collect()
}

#[test]
fn every_byte_goes_where_it_belongs_in_all_ways() {
    const BYTES: u64 = (1 << 20) + 11;
    for shared in [true, false] {
        let target = Target::start();
        let there = target.register(BYTES, Access::RemoteReadWrite, shared);
        let mut initiator = Initiator::of(&target, &there);
        for (round, length) in [1, 7, 4096, 65_537, BYTES as u32 - 5]
            .into_iter()
            .enumerate()
        {
            let seed = round as u8;
            for op in [Op::Write, Op::Read] {
                let (from, to) = match op {
                    Op::Write => (initiator.local.clone(), there.clone()),
                    Op::Read => (there.clone(), initiator.local.clone()),
                };
                let (from_at, to_at) = (3, 5);
                let (local, remote) = match op {
                    Op::Write => (from_at, to_at),
                    Op::Read => (to_at, from_at),
                };
                put(&from, &pattern(seed, BYTES as usize));
                put(&to, &vec![0xee; BYTES as usize]);
                let works = [work(op, local, remote, length)];
                assert_eq!(initiator.outcomes(&works), [Outcome::Success]);
                let mut expected = vec![0xee; BYTES as usize];
                let range = from_at as usize..from_at as usize + length as usize;
                let source = &pattern(seed, BYTES as usize)[range];
                expected[to_at as usize..to_at as usize + source.len()].copy_from_slice(source);
                assert!(bytes(&to) == expected, "{shared} {op:?} {length}");
            }
        }
    }
}

#[test]
fn what_this_side_can_copy_alone_is_carried_out_at_once() {
    const BYTES: u64 = (1 << 20) + 11;
    // (memory is shared, direction, goes at once)
    let cases = [
        (true, Op::Write, true),
        (true, Op::Read, true),
        (false, Op::Read, true),
        (false, Op::Write, true),
    ];
    for (shared, op, goes) in cases {
        let target = Target::start();
        let there = target.register(BYTES, Access::RemoteReadWrite, shared);
        let mut initiator = Initiator::of(&target, &there);
        let (from, to) = match op {
            Op::Write => (initiator.local.clone(), there.clone()),
            Op::Read => (there.clone(), initiator.local.clone()),
        };
        let all = pattern(1, BYTES as usize);
        put(&from, &all);
        let work = work(op, 5, 5, BYTES as u32 - 5);
        assert!(
            !initiator.carries(ONE, work),
            "nobody has asked for the key"
        );
        assert_eq!(initiator.outcomes(&[write(1)]), [Outcome::Success]);
        put(&to, &vec![0xee; BYTES as usize]);
        assert_eq!(initiator.carries(ONE, work), goes, "{shared} {op:?}");
        if goes {
            assert!(bytes(&to)[5..] == all[5..] && bytes(&to)[..5] == [0xee; 5]);
        } else {
            assert!(bytes(&to).iter().all(|byte| *byte == 0xee));
        }
        // Nothing is overtaken, and no other epoch's.
        assert!(!initiator.carries(TWO, work), "{shared} {op:?}");
        initiator.post(ONE, &[work]);
        assert!(!initiator.carries(ONE, work), "{shared} {op:?}");
        initiator.until("it", |seen| seen.completions.len() == 1);
        assert!(bytes(&to)[5..] == all[5..]);
        assert_eq!(initiator.carries(ONE, work), goes, "{shared} {op:?}");
        assert_eq!(initiator.fence(ONE), FENCED);
        assert!(!initiator.carries(ONE, work), "the lane has ended");
    }
}

#[test]
fn every_byte_of_a_copy_that_is_cut_goes_where_it_belongs() {
    const BYTES: usize = (7 << 20) + 11;
    const CUT: u32 = CUT_BYTES_MIN as u32;
    // Helpers are awake after it.
    const FIRST: u32 = 2 << 20;
    const FIRST_AT: u64 = 5 << 20;
    let patterns = [pattern(1, BYTES), pattern(2, BYTES)];
    // Lengths of works that go on where others end.
    let cases = [
        vec![CUT - 1],
        vec![CUT],
        vec![CUT + 1],
        vec![WORK_BYTES_MAX],
        vec![CUT / 2 + 1, CUT / 2 - 1],
        vec![2 * CUT + 4095, 1, CUT / 3, 4 * CUT + 77],
    ];
    for (workers, shared) in [(2, true), (2, false), (3, true), (3, false)] {
        let target = Target::with_copiers(workers);
        let there = target.register(BYTES as u64, Access::RemoteReadWrite, shared);
        let mut initiator = Initiator::of_workers(workers, &target, &there);
        for lengths in &cases {
            for op in [Op::Write, Op::Read] {
                let (from, to) = match op {
                    Op::Write => (initiator.local.clone(), there.clone()),
                    Op::Read => (there.clone(), initiator.local.clone()),
                };
                put(&from, &patterns[0]);
                put(&to, &patterns[1]);
                let mut expected = patterns[1].clone();
                let mut works = vec![work(op, FIRST_AT, FIRST_AT, FIRST)];
                let first = FIRST_AT as usize..FIRST_AT as usize + FIRST as usize;
                expected[first.clone()].copy_from_slice(&patterns[0][first]);
                let (mut from_at, mut to_at) = (3, 5);
                for &length in lengths {
                    works.push(match op {
                        Op::Write => work(op, from_at as u64, to_at as u64, length),
                        Op::Read => work(op, to_at as u64, from_at as u64, length),
                    });
                    let length = length as usize;
                    let source = &patterns[0][from_at..from_at + length];
                    expected[to_at..to_at + length].copy_from_slice(source);
                    (from_at, to_at) = (from_at + length, to_at + length);
                }
                let done = vec![Outcome::Success; works.len()];
                assert_eq!(initiator.outcomes(&works), done);
                let name = format!("{workers} {shared} {op:?} {lengths:?}");
                assert!(bytes(&to) == expected, "{name}");
            }
        }
    }
}

/// Moves blocks that lie apart at both ends: (gap before it here, gap before it there, its length), there in the order of their
/// numbers or the other way round.
fn move_blocks(op: Op, shared: bool, copiers: usize, blocks: &[(u8, u8, u16)], is_reversed: bool) {
    const BYTES: usize = 4 << 20;
    let target = Target::with_copiers(copiers);
    let there = target.register(BYTES as u64, Access::RemoteReadWrite, shared);
    let mut initiator = Initiator::of_workers(copiers, &target, &there);
    let (from, to) = match op {
        Op::Write => (initiator.local.clone(), there.clone()),
        Op::Read => (there.clone(), initiator.local.clone()),
    };
    let (source, mut expected) = (pattern(3, BYTES), pattern(4, BYTES));
    put(&from, &source);
    put(&to, &expected);
    let far_at = |at: usize, length: usize| match is_reversed {
        true => BYTES - at - length,
        false => at,
    };
    let (mut here, mut far) = (0, 0);
    let mut works = Vec::new();
    for &(gap, far_gap, length) in blocks {
        let length = usize::from(length).max(1);
        (here, far) = (here + usize::from(gap), far + usize::from(far_gap));
        let there = far_at(far, length);
        works.push(work(op, here as u64, there as u64, length as u32));
        let (from_at, to_at) = match op {
            Op::Write => (here, there),
            Op::Read => (there, here),
        };
        expected[to_at..to_at + length].copy_from_slice(&source[from_at..from_at + length]);
        (here, far) = (here + length, far + length);
    }
    let name = format!("{op:?}, shared: {shared}, {copiers} copiers, reversed: {is_reversed}");
    let done = vec![Outcome::Success; works.len()];
    assert_eq!(initiator.outcomes(&works), done, "{name}");
    assert!(bytes(&to) == expected, "{name}");
}

#[test]
fn every_byte_of_works_that_lie_apart_goes_where_it_belongs() {
    let mut random = Gen::new(usize::from(WORKS_MAX));
    for round in 0..24 {
        let mut blocks = Vec::<(u8, u8, u16)>::arbitrary(&mut random);
        blocks.resize(blocks.len().clamp(2, usize::from(WORKS_MAX)), (1, 1, 1));
        blocks.iter_mut().for_each(|block| block.2 %= 5000);
        // One of them is cut, and so one call ends within a block.
        blocks[0].2 = 60_000;
        let op = if round & 1 == 0 { Op::Write } else { Op::Read };
        let copiers = 1 + (round >> 3) % 3;
        move_blocks(op, round & 2 == 0, copiers, &blocks, round & 4 == 0);
    }
}

#[test]
fn works_that_lie_apart_are_written_together_once_the_target_has_let_them() {
    let target = Target::start();
    let there = target.register(1 << 20, Access::RemoteReadWrite, false);
    let mut initiator = Initiator::of(&target, &there);
    assert_eq!(initiator.outcomes(&[write(1)]), [Outcome::Success]);
    let entered = Arc::new(AtomicUsize::new(0));
    let counted = entered.clone();
    stop::on(move |point| {
        counted.fetch_add(usize::from(point == Point::Inside), SeqCst);
    });
    let apart = |number: u64| work(Op::Write, number * 300, number * 5000, 200);
    let works: Vec<_> = (0..POST_MAX as u64).map(apart).collect();
    assert_eq!(initiator.outcomes(&works), vec![Outcome::Success; POST_MAX]);
    assert_eq!(entered.load(SeqCst), 1);
    put(&initiator.local, &pattern(5, 1 << 20));
    let now = initiator.clock.now();
    assert!(initiator.endpoint.carry_at_once(now, lane(), ONE, &works));
    assert_eq!(entered.load(SeqCst), 2);
    let (here, far) = (pattern(5, 1 << 20), bytes(&there));
    for number in 0..POST_MAX {
        let (from, to) = (number * 300, number * 5000);
        assert!(far[to..to + 200] == here[from..from + 200], "{number}");
    }
}

#[test]
fn nothing_is_carried_out_at_once_that_would_be_refused_or_with_who_has_gone() {
    for shared in [true, false] {
        let target = Target::start();
        let there = target.register(4096, Access::RemoteReadWrite, shared);
        let readable = target.register(4096, Access::RemoteRead, shared);
        let mut initiator = Initiator::of(&target, &there);
        assert_eq!(initiator.outcomes(&[write(1)]), [Outcome::Success]);
        assert!(initiator.carries(ONE, work(Op::Read, 0, 0, 4096)));
        for (op, local, remote, length) in [
            (Op::Read, 0, 4000, 97),
            (Op::Read, 4000, 0, 97),
            (Op::Read, 0, u64::MAX, 1),
            (Op::Read, 0, 0, 0),
        ] {
            let beyond = work(op, local, remote, length);
            assert!(!initiator.carries(ONE, beyond), "{shared} {beyond:?}");
        }
        // A key that reads only.
        target.renew(SESSION, TrustDomain::COMMON);
        let mut reader = Initiator::of(&target, &readable);
        let read = work(Op::Read, 0, 0, 100);
        assert_eq!(reader.outcomes(&[read]), [Outcome::Success]);
        assert!(reader.carries(ONE, read), "{shared}");
        assert!(!reader.carries(ONE, write(100)), "{shared}");
        // The target takes its memory back, and then itself.
        there.revoke();
        assert!(
            !initiator.carries(ONE, work(Op::Read, 0, 0, 100)),
            "{shared}"
        );
        target.retire();
        let hung_up = |reader: &mut Initiator| !reader.carries(ONE, read);
        let until = StdInstant::now() + PATIENCE;
        while !hung_up(&mut reader) {
            assert!(StdInstant::now() < until, "{shared}: it goes on for ever");
        }
        // What is posted instead finds that out too.
        reader.post(ONE, &[read]);
        reader.until("its end", |seen| {
            !seen.lanes.is_empty() || !seen.completions.is_empty()
        });
        let done = reader.seen.completions.iter();
        assert!(
            done.clone().all(|done| done.outcome != Outcome::Success),
            "{shared}"
        );
    }
}

#[test]
fn one_poll_moves_no_more_than_a_turn_of_each_thread() {
    const BYTES: u64 = 4 * TURN_BYTES;
    const WORKS: u64 = BYTES / WORK_BYTES_MAX as u64;
    let target = Target::start();
    let there = target.register(BYTES, Access::RemoteReadWrite, true);
    let mut initiator = Initiator::of_workers(2, &target, &there);
    assert_eq!(initiator.outcomes(&[write(1)]), [Outcome::Success]);
    put(&initiator.local, &vec![1; BYTES as usize]);
    let works = (0..WORKS).map(|work| work * u64::from(WORK_BYTES_MAX));
    let works: Vec<_> = works
        .map(|at| work(Op::Write, at, at, WORK_BYTES_MAX))
        .collect();
    initiator.post(ONE, &works);
    let mut before = 0;
    while before < BYTES {
        initiator.poll();
        let moved = bytes(&there).iter().filter(|byte| **byte == 1).count() as u64;
        let turn = moved - before;
        let least = TURN_BYTES.min(BYTES - before);
        assert!((least..=2 * TURN_BYTES).contains(&turn), "{turn}");
        let whole = moved / u64::from(WORK_BYTES_MAX);
        assert_eq!(initiator.seen.completions.len() as u64, whole);
        before = moved;
    }
}

#[test]
fn many_works_complete_once_each_and_a_full_lane_says_so() {
    for shared in [true, false] {
        let target = Target::start();
        let there = target.register(1 << 20, Access::RemoteReadWrite, shared);
        let mut initiator = Initiator::of(&target, &there);
        let mut taken = 0;
        let stop = loop {
            let posted = initiator.post(ONE, &[write(1000); 32]);
            taken += posted.accepted;
            if posted.stop != Stop::All {
                break posted.stop;
            }
        };
        assert_eq!((taken, stop), (WORKS_MAX.into(), Stop::Full));
        initiator.until("all", |seen| seen.completions.len() == taken);
        initiator.seen.completions.clear();
        assert_eq!(initiator.outcomes(&[write(1)]), [Outcome::Success]);
    }
}

#[test]
fn one_poll_moves_no_more_than_a_turn() {
    const BYTES: u64 = 2 * TURN_BYTES;
    const PART: u64 = BYTES / 5;
    let target = Target::start();
    let there = target.register(BYTES, Access::RemoteReadWrite, true);
    let mut initiator = Initiator::of(&target, &there);
    // It knows the memory from now on.
    assert_eq!(initiator.outcomes(&[write(1)]), [Outcome::Success]);
    put(&initiator.local, &vec![1; BYTES as usize]);
    let parts = (0..5).map(|part| {
        let length = if part == 4 { BYTES - 4 * PART } else { PART };
        work(Op::Write, part * PART, part * PART, length as u32)
    });
    // The whole, and the same in parts that go on where others end: two and a half of them are a turn.
    let cases = [(vec![write(BYTES as u32)], 0), (parts.collect(), 2)];
    for (works, done_first) in cases {
        put(&there, &vec![0; BYTES as usize]);
        initiator.seen.completions.clear();
        initiator.post(ONE, &works);
        assert!(initiator.endpoint.poll_timeout().is_some());
        assert_eq!(initiator.endpoint.waits(), Waits::Short);
        for (turns, done) in [(1, done_first), (2, works.len())] {
            initiator.poll();
            let moved = bytes(&there).iter().filter(|byte| **byte == 1).count() as u64;
            assert_eq!(moved, turns * TURN_BYTES);
            assert_eq!(initiator.seen.completions.len(), done);
        }
    }
    assert_eq!(initiator.endpoint.poll_timeout(), None);
    assert_eq!(
        initiator.endpoint.waits(),
        Waits::Nothing,
        "nobody spins for it"
    );
}

#[test]
fn what_is_not_allowed_is_refused_and_touches_nothing() {
    for shared in [true, false] {
        let target = Target::start();
        let open = target.register(4096, Access::RemoteReadWrite, shared);
        let readable = target.register(4096, Access::RemoteRead, shared);
        let gone = region(4096, Access::RemoteReadWrite, shared);
        let longer = |region: &Region| RemoteRegion {
            bytes: 1 << 20,
            ..far(region)
        };
        // (name, what the initiator believes, work)
        let cases = [
            ("unknown key", far(&gone), write(1)),
            ("not to be written", far(&readable), write(1)),
            ("past the end", longer(&open), work(Op::Write, 0, 4096, 1)),
            ("over the end", longer(&open), work(Op::Write, 0, 4000, 97)),
            ("read over it", longer(&open), work(Op::Read, 0, 4000, 97)),
        ];
        for (name, remote, work) in cases {
            target.renew(SESSION, TrustDomain::COMMON);
            let mut initiator = Initiator::new(target.transport.address(), remote, SESSION);
            assert!(matches!(initiator.open(ONE), LaneFact::Opened { .. }));
            put(&initiator.local, &[7; 97]);
            let refused = Outcome::Error(Cause::RemoteAccess);
            assert_eq!(initiator.outcomes(&[work]), [refused], "{name}");
            // The lane takes nothing more.
            let posted = initiator.post(ONE, &[write(1)]);
            assert_eq!(
                (posted.accepted, posted.stop),
                (0, Stop::Rejected(Cause::Flushed))
            );
            assert_eq!(initiator.fence(ONE), FENCED, "{name}");
        }
        for region in [open, readable] {
            assert!(bytes(&region).iter().all(|byte| *byte == 0));
        }
    }
}

#[test]
fn a_key_opens_nothing_to_peers_of_another_trust_domain() {
    for shared in [true, false] {
        let target = Target::start();
        let regions = [TrustDomain::COMMON, ANOTHER]
            .map(|domain| target.register_in(domain, 4096, Access::RemoteReadWrite, shared));
        let sessions = [(SESSION, TrustDomain::COMMON), (OTHER, ANOTHER)];
        for (own, (session, domain)) in sessions.into_iter().enumerate() {
            for (turn, region) in regions.iter().enumerate() {
                target.renew(session, domain);
                let (address, far) = (target.transport.address(), far(region));
                let mut initiator = Initiator::new(address, far, session);
                assert!(matches!(initiator.open(ONE), LaneFact::Opened { .. }));
                put(&initiator.local, &[1 + own as u8; 100]);
                let expected = match turn == own {
                    true => Outcome::Success,
                    false => Outcome::Error(Cause::RemoteAccess),
                };
                let outcome = initiator.outcomes(&[write(100)]);
                assert_eq!(outcome, [expected], "{session:?} {turn}");
                assert_eq!(initiator.fence(ONE), FENCED);
            }
            assert_eq!(bytes(&regions[own])[..100], [1 + own as u8; 100]);
        }
        assert_eq!(bytes(&regions[0])[..100], [1; 100], "nobody else wrote");
    }
}

#[test]
fn what_makes_no_sense_is_rejected_before_it_is_posted() {
    let target = Target::start();
    let there = target.register(4096, Access::RemoteReadWrite, true);
    let mut initiator = Initiator::of(&target, &there);
    let elsewhere = Work {
        remote: Place {
            segment: SegmentRef(7),
            offset: 0,
        },
        ..write(1)
    };
    let cases = [
        (write(0), Cause::LocalLength),
        (write(WORK_BYTES_MAX + 1), Cause::LocalLength),
        (work(Op::Write, 4096, 0, 1), Cause::LocalProtection),
        (work(Op::Write, 0, u64::MAX, 2), Cause::RemoteAccess),
        (elsewhere, Cause::RemoteAccess),
    ];
    for (work, cause) in cases {
        let posted = initiator.post(ONE, &[work]);
        assert_eq!((posted.accepted, posted.stop), (0, Stop::Rejected(cause)));
    }
    assert_eq!(initiator.outcomes(&[write(4096)]), [Outcome::Success]);
}

#[test]
fn only_lanes_of_a_session_and_of_a_new_epoch_are_let_in() {
    let target = Target::start();
    let there = target.register(4096, Access::RemoteReadWrite, true);
    let address = target.transport.address();
    let refused = LaneFact::OpenFailed(Cause::Refused);
    let stranger = SessionId([1; 16]);
    assert_eq!(
        Initiator::new(address.clone(), far(&there), stranger).open(ONE),
        refused
    );
    assert_eq!(
        Initiator::new(b"polyrail-nobody".to_vec(), far(&there), SESSION).open(ONE),
        refused
    );
    let mut initiator = Initiator::of(&target, &there);
    assert_eq!(initiator.outcomes(&[write(1)]), [Outcome::Success]);
    assert_eq!(target.fence(ONE), 0);
    assert_eq!(initiator.fact(ONE), LaneFact::Broken(Cause::Reset));
    assert_eq!(initiator.fence(ONE), FENCED);
    assert_eq!(initiator.open(ONE), refused, "fenced");
    assert!(matches!(initiator.open(TWO), LaneFact::Opened { .. }));
}

#[test]
fn a_peer_is_reached_if_it_knows_the_session() {
    let target = Target::start();
    let own = ShmTransport::new(Arc::new(Table::default()), 1).unwrap();
    let address = target.transport.address();
    assert_eq!(own.reach(&address, SESSION, None), Ok(own.capabilities()));
    let stranger = own.reach(&address, SessionId([1; 16]), None).unwrap_err();
    assert!(stranger.contains("no such session"), "{stranger}");
    assert!(own.reach(b"polyrail-nobody", SESSION, None).is_err());
    target.retire();
    assert!(own.reach(&address, SESSION, None).is_err());
}

#[test]
fn a_segment_that_is_taken_back_is_touched_no_more() {
    for shared in [true, false] {
        let target = Target::start();
        let there = target.register(1 << 20, Access::RemoteReadWrite, shared);
        let mut initiator = Initiator::of(&target, &there);
        assert_eq!(initiator.outcomes(&[write(1000)]), [Outcome::Success]);
        let before = there.base();
        there.revoke();
        put(&initiator.local, &[7; 1000]);
        let refused = Outcome::Error(Cause::RemoteAccess);
        assert_eq!(initiator.outcomes(&[write(1000)]), [refused], "{shared}");
        // SAFETY: the region is alive, and nobody else's now.
        assert_eq!(unsafe { before.read() }, 0);
        assert_eq!(initiator.fence(ONE), FENCED);
    }
}

/// Whether this process maps shared memory of so many bytes more than once: the owner does, and the test's regions have
/// sizes of their own.
fn is_mapped_twice(bytes: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_it = |line: &&str| {
        let range = line
            .split(' ')
            .next()
            .and_then(|range| range.split_once('-'));
        let bounds = range.map(|(from, to)| [from, to].map(|at| u64::from_str_radix(at, 16)));
        let Some([Ok(from), Ok(to)]) = bounds else {
            return false;
        };
        line.contains("polyrail") && to - from == bytes
    };
    maps.lines().filter(is_it).count() > 1
}

#[test]
fn what_a_target_takes_back_is_unmapped_by_initiators_that_have_nothing_to_do() {
    // It stayed mapped, and so in the host's memory, until the peer was lost.
    let target = Target::start();
    let sizes: Vec<u64> = (0..4).map(|number| (7001 + number) * 4096).collect();
    let regions = sizes.iter();
    let regions: Vec<_> = regions
        .map(|bytes| target.register(*bytes, Access::RemoteReadWrite, true))
        .collect();
    let mut initiator = Initiator::of(&target, &regions[0]);
    for region in &regions {
        initiator.endpoint.attach_remote(REMOTE, far(region));
        assert_eq!(initiator.outcomes(&[write(1000)]), [Outcome::Success]);
    }
    // All but the last one.
    for (bytes, region) in sizes.iter().zip(&regions[..3]) {
        assert!(is_mapped_twice(*bytes));
        region.revoke();
        initiator.until("it is unmapped", |_| !is_mapped_twice(*bytes));
    }
    assert!(is_mapped_twice(sizes[3]));
    initiator.endpoint.attach_remote(REMOTE, far(&regions[3]));
    assert_eq!(initiator.outcomes(&[write(1000)]), [Outcome::Success]);
    initiator.endpoint.detach_remote(REMOTE);
    assert!(!is_mapped_twice(sizes[3]));
}

#[test]
fn what_an_initiator_is_too_busy_to_hear_of_is_unmapped_all_the_same() {
    // More than its socket has room for.
    const COUNT: u64 = 1000;
    let target = Target::start();
    let there = target.register(4096, Access::RemoteReadWrite, true);
    let mut initiator = Initiator::of(&target, &there);
    assert_eq!(initiator.outcomes(&[write(1000)]), [Outcome::Success]);
    let bytes = 7011 * 4096;
    let regions: Vec<_> = (0..COUNT)
        .map(|number| {
            let bytes = if number == COUNT - 1 { bytes } else { 4096 };
            let region = target.register(bytes, Access::RemoteReadWrite, true);
            initiator.endpoint.attach_remote(REMOTE, far(&region));
            assert_eq!(initiator.outcomes(&[write(1000)]), [Outcome::Success]);
            region
        })
        .collect();
    assert!(is_mapped_twice(bytes));
    for region in &regions {
        region.revoke();
    }
    initiator.until("all is unmapped", |_| !is_mapped_twice(bytes));
    let refused = Outcome::Error(Cause::RemoteAccess);
    assert_eq!(initiator.outcomes(&[write(1000)]), [refused]);
}

/// Somebody who listens, and does of a target's part just what the test says.
struct Fake {
    listener: OwnedFd,
    name: Vec<u8>,
    cookie: OwnCookie,
    /// As where the kernel gives no page for a mark.
    unmarked: OwnCookie,
}

impl Fake {
    fn new() -> Self {
        let mut number = [0; 8];
        getrandom::fill(&mut number).unwrap();
        let name = format!("polyrail-fake-{:x}", u64::from_ne_bytes(number)).into_bytes();
        Self {
            listener: packets::listen_at(&name).unwrap(),
            name,
            cookie: OwnCookie::new().unwrap(),
            unmarked: OwnCookie::unmarked(),
        }
    }

    /// Without a mark, so that what is long is offered to be pulled.
    fn cookie(&self) -> Cookie {
        self.unmarked.cookie()
    }

    fn receive(socket: &OwnedFd) -> (Request, Option<OwnedFd>) {
        let until = StdInstant::now() + PATIENCE;
        loop {
            if let Some(received) = packets::receive(socket).unwrap() {
                return received;
            }
            assert!(StdInstant::now() < until, "nothing is said");
            thread::yield_now();
        }
    }

    /// Lets an initiator in, and gives it `region` as private memory for the first thing that it asks for.
    fn admit(&self, initiator: &mut Initiator, region: &Region) -> (OwnedFd, Mailbox) {
        let by = initiator.clock.now() + Duration::from_secs(20);
        initiator.endpoint.open(lane(), ONE, by);
        let socket = packets::accept(&self.listener).unwrap();
        let (hello, file) = Self::receive(&socket);
        assert!(matches!(
            hello,
            Request::Hello {
                version: VERSION,
                ..
            }
        ));
        let mailbox = Mailbox::of_peer(&file.unwrap()).unwrap();
        let ready = Answer::Ready {
            cookie: self.cookie(),
            no_pull: None,
        };
        packets::send(&socket, &ready, None).unwrap();
        assert!(matches!(initiator.fact(ONE), LaneFact::Opened { .. }));
        initiator.post(ONE, &[long_write(100), long_write(200)]);
        initiator.poll();
        let (Request::Map { grant, .. }, None) = Self::receive(&socket) else {
            panic!("it asks for something else");
        };
        mailbox.open_grant(grant);
        let answer = Answer::Private {
            grant,
            bytes: region.bytes(),
            writable: true,
            address: region.base().as_ptr().addr() as u64,
        };
        packets::send(&socket, &answer, None).unwrap();
        (socket, mailbox)
    }
}

fn with_fake() -> (Initiator, OwnedFd, Mailbox, Arc<Region>) {
    let fake = Fake::new();
    let there = region(1 << 20, Access::RemoteReadWrite, false);
    let mut initiator = Initiator::new(fake.name.clone(), far(&there), SESSION);
    let (socket, mailbox) = fake.admit(&mut initiator, &there);
    while Fake::receive_now(&socket) != Some(Request::Offered) {
        initiator.poll();
    }
    (initiator, socket, mailbox, there)
}

impl Fake {
    fn receive_now(socket: &OwnedFd) -> Option<Request> {
        let received = packets::receive(socket).unwrap();
        received.map(|(request, _)| request)
    }
}

#[test]
fn offers_that_a_target_has_not_taken_are_withdrawn_by_a_fence() {
    let (mut initiator, _socket, mailbox, _there) = with_fake();
    assert_eq!(initiator.fence(ONE), FENCED);
    // However late it wakes.
    assert_eq!((mailbox.take(0), mailbox.take(1)), (None, None));
    assert!(initiator.seen.completions.is_empty());
}

#[test]
fn who_polls_is_not_called_and_who_sleeps_is() {
    let (mut initiator, _socket, mailbox, _there) = with_fake();
    initiator.poll();
    assert!(!mailbox.calls(), "it looks");
    let due = initiator.endpoint.poll_timeout();
    assert!(mailbox.calls(), "it is about to sleep: {due:?}");
    initiator.poll();
    assert!(!mailbox.calls(), "it looks again");
    mailbox.take(0).unwrap();
    mailbox.tell(0, Pulled::Done);
    // Nobody has called, and so it does not sleep.
    assert_eq!(initiator.endpoint.poll_timeout(), Some(Instant::ZERO));
    initiator.poll();
    assert_eq!(initiator.seen.completions.len(), 1);
}

#[test]
fn who_waits_is_told_to_spin_while_the_target_is_awake_elsewhere() {
    let (mut initiator, _socket, mailbox, _there) = with_fake();
    assert_eq!(initiator.endpoint.waits(), Waits::Short, "it was called");
    let waits = |initiator: &Initiator, at| {
        mailbox.set_looks(at);
        let before = Processor::here();
        let waits = initiator.endpoint.waits();
        // The kernel may move this thread in between.
        (before == Processor::here()).then_some(waits)
    };
    let until = |initiator: &Initiator, at: &dyn Fn() -> Option<Processor>, expected| {
        let patience = StdInstant::now() + PATIENCE;
        while waits(initiator, at()) != Some(expected) {
            assert!(StdInstant::now() < patience, "not {expected:?}");
        }
    };
    until(&initiator, &Processor::here, Waits::Here);
    until(&initiator, &|| Some(Processor::NONE), Waits::Near);
    mailbox.set_looks(None);
    mailbox.take(0).unwrap();
    mailbox.take(1).unwrap();
    mailbox.tell(0, Pulled::Done);
    mailbox.tell(1, Pulled::Done);
    initiator.poll();
    assert_eq!(initiator.endpoint.waits(), Waits::Nothing);
}

/// Puts offers on a lane's mailbox from this row on, side by side from the start of `there`, and calls. Whether anybody can
/// be called.
fn offer_all(
    (socket, mailbox): &(OwnedFd, Mailbox),
    row: usize,
    there: &Region,
    source: &[u8],
    each: usize,
) -> bool {
    for (index, from) in source.chunks(each).enumerate() {
        let offer = Offer {
            source: from.as_ptr().addr() as u64,
            length: from.len() as u32,
            key: there.key(),
            offset: (index * each) as u64,
        };
        mailbox.offer(row + index, &offer);
    }
    packets::send(socket, &Request::Offered, None).is_ok()
}

/// Waits until so many rows from this one on are answered, in order.
fn answers((_, mailbox): &(OwnedFd, Mailbox), row: usize, rows: usize) -> Vec<Pulled> {
    let until = StdInstant::now() + PATIENCE;
    let answer = |row| loop {
        if let Some(answer) = mailbox.answer(row) {
            return answer;
        }
        assert!(StdInstant::now() < until, "row {row}");
        thread::yield_now();
    };
    (row..row + rows).map(answer).collect()
}

#[test]
fn who_sleeps_is_called_once_a_turn_not_at_every_answer() {
    const EACH: usize = (TURN_BYTES / 2) as usize;
    let target = Target::start();
    let there = target.register(4 * EACH as u64, Access::RemoteReadWrite, false);
    let lane = raw(&target);
    let source = pattern(5, 4 * EACH);
    // Nobody has said that they look for answers.
    assert!(offer_all(&lane, 0, &there, &source, EACH));
    assert_eq!(answers(&lane, 0, 4), [Pulled::Done; 4]);
    assert!(bytes(&there) == source);
    // The fence's answer comes after its last call.
    assert_eq!(target.fence(ONE), 0);
    let mut calls = 0;
    while let Ok(said) = packets::receive::<Answer>(&lane.0) {
        calls += usize::from(matches!(said, Some((Answer::Pulled, _))));
    }
    assert_eq!(calls, 2);
}

#[test]
fn offers_are_pulled_by_several_threads_or_fail_at_one() {
    const BYTES: usize = (3 << 20) + 21;
    let target = Target::with_copiers(2);
    let there = target.register(BYTES as u64, Access::RemoteReadWrite, false);
    let lane = raw(&target);
    // Nobody looks for answers, so that a processor is free. Twice as long as a run, as long as one, and shorter.
    for (row, each) in [(0, 2 << 20), (2, 700_001), (7, 300_003)] {
        let source = pattern(row as u8, BYTES);
        let rows = source.chunks(each).len();
        assert!(offer_all(&lane, row, &there, &source, each));
        assert_eq!(answers(&lane, row, rows), vec![Pulled::Done; rows]);
        assert!(bytes(&there) == source, "{each}");
    }
    let hole = Offer {
        source: 4096,
        length: 2 << 20,
        key: there.key(),
        offset: 0,
    };
    lane.1.offer(18, &hole);
    assert!(packets::send(&lane.0, &Request::Offered, None).is_ok());
    assert_eq!(answers(&lane, 18, 1), [Pulled::Failed]);
}

#[test]
fn lanes_of_different_threads_are_served_and_fenced_each_for_itself() {
    const LANES: usize = 6;
    const EACH: usize = 70_000;
    let target = Target::start();
    let there = target.register(EACH as u64, Access::RemoteReadWrite, false);
    let number = |lane: usize| LaneId::new(lane as u16, RailId(0));
    let lanes: Vec<_> = (0..LANES).map(|l| raw_lane(&target, number(l))).collect();
    for fenced in 0..LANES {
        for (index, lane) in lanes.iter().enumerate().skip(fenced) {
            let source = pattern((7 * fenced + index) as u8, EACH);
            assert!(offer_all(lane, fenced, &there, &source, EACH));
            assert_eq!(answers(lane, fenced, 1), [Pulled::Done]);
            assert!(bytes(&there) == source, "lane {index}");
        }
        assert_eq!(target.fence_lane(number(fenced), ONE), 0);
        let source = pattern(200, EACH);
        offer_all(&lanes[fenced], fenced + 1, &there, &source, EACH);
        assert!(is_hung_up_soon(&lanes[fenced].0), "lane {fenced}");
    }
    for (index, (_, mailbox)) in lanes.iter().enumerate() {
        assert!(mailbox.take(index + 1).is_some(), "nobody has taken it");
    }
    assert!(bytes(&there) != pattern(200, EACH));
}

#[test]
fn a_session_has_ended_when_all_threads_have_ended_its_lanes() {
    let target = Target::start();
    let there = target.register(4096, Access::RemoteReadWrite, false);
    let number = |lane| LaneId::new(lane, RailId(0));
    let lanes: Vec<_> = (0..5).map(|l| raw_lane(&target, number(l))).collect();
    target.retire();
    for lane in &lanes {
        offer_all(lane, 0, &there, &pattern(1, 4096), 4096);
        assert!(is_hung_up_soon(&lane.0));
        assert!(lane.1.take(0).is_some(), "nobody has taken it");
    }
    assert!(bytes(&there).iter().all(|byte| *byte == 0));
    // Fences of a session that has ended hold, and it lets nobody in.
    assert_eq!(target.fence_lane(number(0), TWO), 0);
    assert_eq!(target.fence_lane(number(9), TWO), 0);
    let mut late = Initiator::new(target.transport.address(), far(&there), SESSION);
    assert_eq!(late.open(TWO), LaneFact::OpenFailed(Cause::Refused));
}

#[test]
fn a_transport_may_be_dropped_by_the_answer_of_a_service_thread() {
    for lane in 0..4 {
        let transport = Arc::new(ShmTransport::new(Arc::new(Table::default()), 1).unwrap());
        transport.begin_session(SESSION, TrustDomain::COMMON, None);
        let (sender, dropped) = mpsc::channel();
        let last = transport.clone();
        let (go, gone) = mpsc::channel();
        let answer = Box::new(move |_| {
            gone.recv_timeout(PATIENCE).unwrap();
            drop(last);
            sender.send(()).unwrap();
        });
        // So that lanes before it have taken the threads before its own.
        for before in 0..lane {
            let lane = LaneId::new(before, RailId(0));
            transport.fence_inbound(SESSION, lane, ONE, Box::new(|_| {}));
        }
        let lane = LaneId::new(lane, RailId(0));
        transport.fence_inbound(SESSION, lane, ONE, answer);
        drop(transport);
        go.send(()).unwrap();
        dropped.recv_timeout(PATIENCE).unwrap();
    }
}

/// Waits until the other end of a socket is closed, whatever it has said.
fn is_hung_up_soon(socket: &OwnedFd) -> bool {
    let until = StdInstant::now() + PATIENCE;
    while packets::receive::<Answer>(socket).is_ok() {
        if StdInstant::now() > until {
            return false;
        }
        thread::yield_now();
    }
    true
}

#[test]
fn offers_that_go_on_where_others_end_are_told_of_one_by_one() {
    let target = Target::start();
    let there = target.register(4096, Access::RemoteReadWrite, true);
    let (socket, mailbox) = raw(&target);
    let source = pattern(3, 4200);
    // Three in a row, of which the last one is too long, and one that does not go on.
    let offers = [(0, 4000), (4000, 96), (4096, 104), (50, 10)];
    for (row, (offset, length)) in offers.into_iter().enumerate() {
        let offer = Offer {
            source: source[offset as usize..].as_ptr().addr() as u64,
            length,
            key: there.key(),
            offset,
        };
        mailbox.offer(row, &offer);
    }
    packets::send(&socket, &Request::Offered, None).unwrap();
    let expected = [Pulled::Done, Pulled::Done, Pulled::Refused, Pulled::Done];
    let until = StdInstant::now() + PATIENCE;
    for (row, expected) in expected.into_iter().enumerate() {
        let answer = loop {
            if let Some(answer) = mailbox.answer(row) {
                break answer;
            }
            assert!(StdInstant::now() < until, "row {row}");
            thread::yield_now();
        };
        assert_eq!(answer, expected, "row {row}");
    }
    assert!(bytes(&there) == source[..4096]);
}

#[test]
fn a_fence_waits_for_the_offer_that_is_being_pulled() {
    let (mut initiator, _socket, mailbox, _there) = with_fake();
    assert_eq!(mailbox.take(0).unwrap().length, long_write(100).length);
    initiator.endpoint.fence(lane(), ONE, Scope::Local);
    let unfenceable = LaneFact::Unfenceable {
        scope: Scope::Local,
    };
    assert_eq!(initiator.fact(ONE), unfenceable);
    initiator.poll();
    assert!(initiator.seen.lanes.is_empty(), "not proved yet");
    assert!(initiator.endpoint.poll_timeout().is_some());
    mailbox.tell(0, Pulled::Done);
    assert_eq!([initiator.fact(ONE), initiator.fact(ONE)], FENCED);
    assert_eq!(mailbox.take(1), None);
    let done: Vec<_> = initiator.seen.completions.drain(..).collect();
    let done = done.iter().map(|done| (done.cookie, done.outcome));
    assert_eq!(done.collect::<Vec<_>>(), [(100, Outcome::Success)]);
}

#[test]
fn what_the_target_has_pulled_completes_although_the_lane_ends() {
    // (how it ends, how many facts that takes)
    type End = fn(&mut Initiator, OwnedFd);
    let by_a_fence: End = |initiator, _socket| {
        assert_eq!(initiator.fence(ONE), FENCED);
    };
    let by_its_target: End = |initiator, socket| {
        drop(socket);
        assert_eq!(initiator.fact(ONE), LaneFact::Broken(Cause::Reset));
        // What is known comes no later than that the lane is broken: it is not to be sent again.
        assert_eq!(initiator.seen.completions.len(), 2);
        assert_eq!(initiator.fence(ONE), FENCED);
    };
    for end in [by_a_fence, by_its_target] {
        let (mut initiator, socket, mailbox, _there) = with_fake();
        let posted = initiator.post(ONE, &[long_write(200), long_write(300), long_write(400)]);
        assert_eq!(posted.accepted, 3);
        initiator.poll();
        assert!(initiator.seen.completions.is_empty());
        let taken: Vec<_> = (0..2)
            .filter_map(|row| Some(mailbox.take(row)?.length))
            .collect();
        assert_eq!(taken, [100, 200].map(|cookie| long_write(cookie).length));
        (0..2).for_each(|row| mailbox.tell(row, Pulled::Done));
        end(&mut initiator, socket);
        let done = initiator.seen.completions.drain(..);
        let done: Vec<_> = done.map(|done| (done.cookie, done.outcome)).collect();
        assert_eq!(done, [(100, Outcome::Success), (200, Outcome::Success)]);
        assert_eq!(
            (mailbox.take(2), mailbox.take(3)),
            (None, None),
            "withdrawn"
        );
    }
}

#[test]
fn a_target_that_hangs_up_has_ended_its_pulls() {
    let (mut initiator, socket, mailbox, _there) = with_fake();
    assert!(mailbox.take(0).is_some());
    drop(socket);
    assert_eq!(initiator.fact(ONE), LaneFact::Broken(Cause::Reset));
    assert_eq!(initiator.fence(ONE), FENCED);
}

#[test]
fn nothing_is_said_to_be_done_to_a_target_that_has_hung_up() {
    let target = Target::start();
    let there = target.register(4096, Access::RemoteReadWrite, true);
    let mut initiator = Initiator::of(&target, &there);
    assert_eq!(initiator.outcomes(&[write(1)]), [Outcome::Success]);
    drop(target);
    // As long after the last look as it takes to look again.
    let looked = initiator.clock.now();
    while initiator.clock.now().since(looked) < Duration::from_millis(1) {
        thread::yield_now();
    }
    initiator.post(ONE, &[write(100)]);
    assert_eq!(initiator.fact(ONE), LaneFact::Broken(Cause::Reset));
    assert!(initiator.seen.completions.is_empty());
    assert_eq!(initiator.fence(ONE), FENCED);
}

#[test]
fn an_opening_that_nobody_answers_ends_in_time() {
    let fake = Fake::new();
    let there = region(4096, Access::RemoteReadWrite, true);
    let mut initiator = Initiator::new(fake.name.clone(), far(&there), SESSION);
    let by = initiator.clock.now() + Duration::from_millis(20);
    initiator.endpoint.open(lane(), ONE, by);
    assert_eq!(initiator.endpoint.poll_timeout(), Some(by));
    assert_eq!(initiator.fact(ONE), LaneFact::OpenFailed(Cause::Refused));
    assert!(initiator.clock.now() >= by);
}

mod ghosts;
mod hostile;
mod keyed;
mod strangers;

/// An initiator's end of a lane, of which the test does everything.
fn raw(target: &Target) -> (OwnedFd, Mailbox) {
    raw_lane(target, lane())
}

fn raw_lane(target: &Target, lane: LaneId) -> (OwnedFd, Mailbox) {
    let (mailbox, file) = Mailbox::new().unwrap();
    (raw_with(target, lane, &file), mailbox)
}

/// The same, with this for a mailbox.
fn raw_with(target: &Target, lane: LaneId, file: &OwnedFd) -> OwnedFd {
    let cookie = OwnCookie::new().unwrap();
    let name = LaneName {
        lane: lane.0,
        epoch: 1,
    };
    let address = target.transport.address();
    let asking = Asking::greet(&address, SESSION, None, &cookie, Some((name, file)));
    let mut asking = asking.unwrap();
    let until = StdInstant::now() + PATIENCE;
    while asking.hear(&cookie).is_ok_and(|answer| answer.is_none()) {
        assert!(StdInstant::now() < until, "no answer");
        thread::yield_now();
    }
    // It is read with whatever is pulled.
    std::mem::forget(cookie);
    asking.socket
}

#[test]
fn memory_is_taken_back_once_nobody_is_in_it() {
    let target = Target::start();
    let there = target.register(4096, Access::RemoteReadWrite, true);
    let (socket, mailbox) = raw(&target);
    let key = there.key();
    packets::send(&socket, &Request::Map { key, grant: 3 }, None).unwrap();
    let until = StdInstant::now() + PATIENCE;
    while packets::receive::<Answer>(&socket).unwrap().is_none() {
        assert!(StdInstant::now() < until, "no answer");
        thread::yield_now();
    }
    assert!(mailbox.enter(3));
    thread::scope(|scope| {
        let revoked = scope.spawn(|| there.revoke());
        while mailbox.enter(3) {
            assert!(!revoked.is_finished(), "while somebody was inside");
            thread::yield_now();
        }
        // Who was turned away is outside.
        drop(socket);
    });
}

#[test]
fn nonsense_ends_a_connection_and_harms_nobody() {
    let target = Target::start();
    let there = target.register(4096, Access::RemoteReadWrite, true);
    let hello = |version, lane| Request::Hello {
        version,
        session: SESSION.0,
        cookie: OwnCookie::new().unwrap().cookie(),
        lane,
    };
    let name = LaneName { lane: 5, epoch: 1 };
    let key = there.key();
    // Nothing of these comes with a mailbox.
    let cases = [
        vec![Request::Offered],
        vec![hello(VERSION + 1, None)],
        vec![hello(VERSION, Some(name))],
        vec![hello(VERSION, None), Request::Map { key, grant: 1 }],
    ];
    for requests in cases {
        let socket = packets::connect_to(&target.transport.address()).unwrap();
        for request in &requests {
            // It may hang up before it has heard all.
            let _ = packets::send(&socket, request, None);
        }
        let until = StdInstant::now() + PATIENCE;
        while packets::receive::<Answer>(&socket).is_ok() {
            assert!(StdInstant::now() < until, "{requests:?}");
            thread::yield_now();
        }
    }
    let (socket, mailbox) = raw(&target);
    for grant in [u16::MAX, 4096] {
        let _ = packets::send(&socket, &Request::Map { key, grant }, None);
    }
    let until = StdInstant::now() + PATIENCE;
    while packets::receive::<Answer>(&socket).is_ok() {
        assert!(StdInstant::now() < until, "a grant that there is not");
        thread::yield_now();
    }
    drop(mailbox);
    let mut initiator = Initiator::new(target.transport.address(), far(&there), SESSION);
    assert!(matches!(initiator.open(TWO), LaneFact::Opened { .. }));
    let posted = initiator.post(TWO, &[write(9)]);
    assert_eq!(posted.accepted, 1);
    initiator.until("it is served", |seen| seen.completions.len() == 1);
}
