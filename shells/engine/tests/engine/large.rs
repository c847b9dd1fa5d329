//! Requests beyond what 32 bits can say, at odd places, without the memory that they would take.

use std::ptr::NonNull;

use polyrail::{Access, Config, Engine, Op, Request, Status};

use crate::fixture::*;

/// What is really there.
const CHUNK: usize = 16 << 20;
const CHUNKS: usize = 257;
/// What it looks like: a little more than 4 GiB.
pub(crate) const BYTES: u64 = (CHUNK * CHUNKS) as u64;

/// One chunk of memory, mapped again and again, one behind the other.
pub(crate) struct Repeated {
    pub(crate) base: NonNull<u8>,
}

impl Repeated {
    pub(crate) fn new() -> Self {
        // SAFETY: a name that ends, and no flags that mean anything to other descriptors.
        let file = unsafe { libc::memfd_create(c"repeated".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(file >= 0);
        // SAFETY: the descriptor is ours.
        assert_eq!(unsafe { libc::ftruncate(file, CHUNK as i64) }, 0);
        let whole = CHUNK * CHUNKS;
        let map = |at: *mut libc::c_void, length, protection, flags, file| {
            // SAFETY: a new range that the kernel chooses, or a part of the one that it chose for us.
            let mapped = unsafe { libc::mmap(at, length, protection, flags, file, 0) };
            assert_ne!(mapped, libc::MAP_FAILED);
            mapped
        };
        let nothing = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let base = map(std::ptr::null_mut(), whole, libc::PROT_NONE, nothing, -1);
        for chunk in 0..CHUNKS {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let at = base.wrapping_byte_add(chunk * CHUNK);
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            map(at, CHUNK, protection, flags, file);
        }
        // SAFETY: the descriptor is ours, and the mappings keep what is behind it.
        unsafe { libc::close(file) };
        let base = NonNull::new(base.cast()).unwrap();
        Self { base }
    }

    fn chunk(&mut self) -> &mut [u8] {
        // SAFETY: mapped, and nobody else uses it now: no request runs.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), CHUNK) }
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        // SAFETY: all of what `new` mapped, and the engines that knew it have ended.
        unsafe { libc::munmap(self.base.as_ptr().cast(), CHUNK * CHUNKS) };
    }
}

#[test]
fn a_request_may_be_longer_than_4_gib() {
    let (mut there, mut here) = (Repeated::new(), Repeated::new());
    let target = target("target");
    let engine = Engine::new(Config::named("initiator")).unwrap();
    // SAFETY: both are mapped until after the engines have ended.
    let (_, local) = unsafe {
        let access = Access::RemoteReadWrite;
        (
            target.register("mem", there.base, BYTES, access).unwrap(),
            engine
                .register("here", here.base, BYTES, Access::Local)
                .unwrap(),
        )
    };
    let remote = engine.open_segment(&address(&target, "mem")).unwrap();
    let source = pattern(3, CHUNK as u64);
    for (op, shift) in [(Op::Write, 2), (Op::Read, CHUNK - 2)] {
        let (from, to) = match op {
            Op::Write => (&mut here, &mut there),
            Op::Read => (&mut there, &mut here),
        };
        from.chunk().copy_from_slice(&source);
        to.chunk().fill(0);
        let length = BYTES - 70_001;
        let request = Request {
            op,
            local,
            local_offset: 3,
            remote,
            remote_offset: 5,
            length,
        };
        let batch = engine.submit(&[request]).unwrap();
        completed(&batch);
        let report = batch.report(0).unwrap();
        assert_eq!(
            (report.status, report.delivered_bytes),
            (Status::Completed, length)
        );
        // Every byte went where it belongs, many times over: the places differ by two.
        let shifted = source.iter().cycle().skip(CHUNK - shift).take(CHUNK);
        assert!(to.chunk().iter().eq(shifted), "{op:?}");
    }
    engine.shutdown();
    target.shutdown();
}
