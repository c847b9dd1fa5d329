//! What peers name memory by, which means nothing else later.

use std::alloc::Layout;
use std::ptr::NonNull;

use super::*;
use crate::device::Device;
use crate::ffi::{Mr, Reach};

/// Memory that can be registered again and again.
struct Memory(NonNull<u8>, Layout);

// SAFETY: an address, and who allocated it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(bytes: usize) -> Arc<Self> {
        let layout = Layout::from_size_align(bytes, 4096).unwrap();
        // SAFETY: of some bytes.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        Arc::new(Self(NonNull::new(base).unwrap(), layout))
    }

    fn region(self: &Arc<Self>, access: Access) -> Arc<Region> {
        // SAFETY: the region keeps it, and tests accept what happens to it.
        let region =
            unsafe { Region::new(self.0, self.1.size() as u64, access, Some(self.clone())) };
        Arc::new(region.unwrap())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated above, and no region has it any more.
        unsafe { std::alloc::dealloc(self.0.as_ptr(), self.1) };
    }
}

#[test]
fn memory_is_named_anew_each_time_where_large_pages_stay_large() {
    let _turn = turn();
    stub::reuse_keys(true);
    let (_root, sysfs) = stub::machine().unwrap();
    let port = &sysfs.ports()[0];
    let device = Device::open(&stub::calls(), &sysfs, port, 0, Settings::default()).unwrap();
    let theirs = device.theirs(TrustDomain::COMMON).unwrap();
    // Nothing touches it.
    const GIB: u64 = 1 << 30;
    // (bytes, what addresses are congruent modulo)
    for (bytes, congruent_to) in [(4096, 2 << 20), (5 << 20, 2 << 20), (GIB + 4096, GIB)] {
        let region = Arc::new(Region::allocate(bytes, Access::RemoteReadWrite).unwrap());
        let own = region.base().as_ptr() as u64;
        let mut seen = Vec::new();
        let mut keys = Vec::new();
        for reach in [Reach::Read, Reach::ReadWrite] {
            for _ in 0..8 {
                let opened = Mr::new(&theirs, &region, (0, bytes), reach, false).unwrap();
                let address = opened.address();
                assert_eq!(address % congruent_to, own % congruent_to);
                assert!(address.checked_add(bytes).is_some());
                seen.push(address);
                keys.push(opened.remote_key());
            }
        }
        keys.dedup();
        assert_eq!(keys.len(), 1, "the device gives the key out again");
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 16, "{bytes}");
        let ours = Mr::new(&device.ours, &region, (0, bytes), Reach::Own, false).unwrap();
        assert_eq!(ours.address(), own);
    }
}

/// Once, such a write landed in the next segment that had the same memory and, by the device's choice, the same key.
#[test]
fn a_write_that_was_meant_for_what_was_there_before_does_not_land() {
    let _turn = turn();
    stub::reuse_keys(true);
    let mut pair = Pair::new();
    let memory = Memory::new(BYTES as usize);
    let mut write = work(1, Op::Write, 0, 8, true);
    write.remote.segment = SegmentRef(9);
    let offer = |pair: &mut Pair| {
        let region = memory.region(Access::RemoteReadWrite);
        let described = RemoteRegion {
            key: region.key(),
            bytes: BYTES,
        };
        pair.regions.0.lock().unwrap().push(region.clone());
        pair.endpoint.attach_remote(SegmentRef(9), described);
        region
    };
    let first = offer(&mut pair);
    pair.opened(1);
    fill(&pair.local, 7);
    pair.post(1, &[write]);
    assert_eq!(pair.completed(1), [(1, SUCCESS)]);
    assert_eq!(byte(&first, 0), 7);
    fill(&first, 0);
    stub::hold(true);
    pair.post(1, &[write, write]);
    stub::hold(false);
    assert!(first.revoke());
    pair.endpoint.detach_remote(SegmentRef(9));
    // Another peer's lane has opened the new one, on the same device and with the same key.
    let second = offer(&mut pair);
    let other = LaneId::new(0, RailId(1));
    pair.endpoint.attach_rail(RailId(1), pair.address.clone());
    let by = pair.clock.now() + Duration::from_secs(20);
    pair.endpoint.open(other, Epoch(1), by);
    assert!(matches!(pair.fact().fact, LaneFact::Opened { .. }));
    let batch = |work| PostBatch {
        lane: other,
        epoch: Epoch(1),
        works: [work].into_iter().collect(),
    };
    let mut read = write;
    (read.op, read.cookie) = (Op::Read, 5);
    while pair.endpoint.post(&batch(read)).accepted == 0 {
        assert_eq!(pair.fact().fact, LaneFact::Writable);
    }
    assert_eq!(pair.completed(1), [(5, SUCCESS)]);
    assert_eq!(stub::land(), 0);
    assert_eq!(byte(&second, 0), 0);
    let refused = (1, Outcome::Error(Cause::RemoteAccess));
    assert_eq!(pair.completed(1)[0], refused);
}

/// `cargo test -p polyrail-tests-rdma` tries the same on Soft-RoCE, whose keys are others each time.
#[test]
fn works_of_what_was_registered_before_are_refused_whatever_key_it_has_now() {
    let _turn = turn();
    for reuses in [false, true] {
        stub::reuse_keys(reuses);
        let (_root, sysfs) = stub::machine().unwrap();
        let ends = [("stub0", 1), ("stub1", 2)].map(|(name, at)| (name, [127, 0, 0, at].into()));
        let cut = |is_cut| {
            stub::hold(is_cut);
            if !is_cut {
                stub::land();
            }
        };
        crate::replay::over(&stub::calls(), &sysfs, ends, cut).unwrap();
    }
}
