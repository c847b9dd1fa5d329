//! A post of a prepared transfer allocates nothing, on its way through the functions for C either.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::{null, null_mut};

use polyrail_ffi::batch::*;
use polyrail_ffi::engine::*;
use polyrail_ffi::failure::*;
use polyrail_ffi::prepared::*;
use polyrail_ffi::segment::*;
use polyrail_ffi::transfer::*;
use polyrail_ffi::words::*;

struct Counting;

thread_local! {
    /// Allocations of this thread.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all calls go to the system's allocator as they came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const REQUESTS: usize = 16;
const LENGTH: u64 = 64 << 10;

fn start(config: &std::ffi::CStr) -> polyrail_engine {
    let options = polyrail_options {
        size: size_of::<polyrail_options>() as u32,
        environment: 0,
        config_file: null(),
        config: config.as_ptr(),
        recording: null(),
        answer: None,
        context: null_mut(),
        lets_in_later: 0,
        reserved: 0,
        parameters: null(),
        parameter_count: 0,
    };
    let mut engine = polyrail_engine { bits: 0 };
    // SAFETY: everything is this function's.
    let code = unsafe { polyrail_engine_start(&options, &mut engine, null_mut()) };
    assert_eq!(code, 0);
    engine
}

#[test]
fn a_post_allocates_nothing() {
    let target = start(cr#"{ "name": "target", "listen": "127.0.0.1:0", "workers": 1 }"#);
    let engine = start(
        cr#"{ "name": "initiator", "workers": 1, "transports": { "shm": { "enable": false } } }"#,
    );
    let bytes = REQUESTS as u64 * LENGTH;
    let mut segments = [polyrail_segment { bits: 0 }; 3];
    let [offered, local, remote] = &mut segments;
    let mut address = [0_u8; 160];
    let mut length = 0;
    let error = null_mut();
    // SAFETY: everything is this function's, and as long as it says.
    unsafe {
        let access = POLYRAIL_ACCESS_REMOTE_READ_WRITE;
        let name = c"mem".as_ptr();
        assert_eq!(
            polyrail_segment_allocate(target, name, bytes, access, offered, error),
            0
        );
        let name = c"here".as_ptr();
        assert_eq!(
            polyrail_segment_allocate(engine, name, bytes, 0, local, error),
            0
        );
        let to = address.as_mut_ptr().cast();
        assert_eq!(
            polyrail_engine_listening(target, to, 128, &mut length, error),
            0
        );
        address[length..length + 4].copy_from_slice(b"/mem");
        assert_eq!(polyrail_segment_open(engine, to, remote, error), 0);
    }
    let request = |index| polyrail_request {
        size: size_of::<polyrail_request>() as u32,
        op: POLYRAIL_WRITE,
        local: segments[1],
        local_offset: index * LENGTH,
        remote: segments[2],
        remote_offset: index * LENGTH,
        length: LENGTH,
    };
    let requests: Vec<_> = (0..REQUESTS as u64).map(request).collect();
    let first = requests.as_ptr();
    let mut batch = polyrail_batch { bits: 0 };
    let mut said = polyrail_error {
        size: size_of::<polyrail_error>() as u32,
        code: 0,
        index: 0,
        message: [0; POLYRAIL_MESSAGE_BYTES],
    };
    let wait_and_free = |batch| {
        // SAFETY: null is nowhere to write to.
        unsafe {
            assert_eq!(
                polyrail_batch_wait(batch, POLYRAIL_FOREVER, null_mut(), null_mut()),
                0
            );
            assert_eq!(polyrail_batch_free(batch, null_mut()), 0);
        }
    };
    // Tables and buffers grow to what it takes; so this also shows that allocations are seen.
    let before = COUNT.get();
    for _ in 0..20 {
        // SAFETY: everything is this function's.
        let code = unsafe { polyrail_submit(engine, first, REQUESTS, null(), &mut batch, error) };
        assert_eq!(code, 0);
        wait_and_free(batch);
    }
    assert!(COUNT.get() >= before + 20, "a submission allocates");
    let mut prepared = polyrail_prepared { bits: 0 };
    // SAFETY: everything is this function's.
    let code = unsafe { polyrail_prepare(engine, first, REQUESTS, &mut prepared, error) };
    assert_eq!(code, 0);
    drop(requests);
    let before = COUNT.get();
    for _ in 0..20 {
        // SAFETY: everything is this function's.
        let code = unsafe { polyrail_prepared_post(prepared, null(), &mut batch, &mut said) };
        assert_eq!(code, 0);
        wait_and_free(batch);
    }
    assert_eq!(COUNT.get(), before);
    // The same without a batch where there is nothing to wait for; here a batch that goes on each time.
    let mut status = polyrail_status {
        size: size_of::<polyrail_status>() as u32,
        status: POLYRAIL_STATUS_PENDING,
        requests: 0,
        ended: 0,
        failed: 0,
        reserved: 0,
        delivered_bytes: 0,
    };
    for _ in 0..20 {
        // SAFETY: everything is this function's.
        let code = unsafe {
            let terms = null();
            polyrail_prepared_post_or_finish(prepared, terms, &mut batch, &mut status, &mut said)
        };
        assert_eq!((code, status.requests as usize), (0, REQUESTS));
        wait_and_free(batch);
    }
    assert_eq!(COUNT.get(), before);
    // SAFETY: as above.
    unsafe {
        assert_eq!(polyrail_prepared_free(prepared, error), 0);
        let code = polyrail_prepared_post(prepared, null(), &mut batch, &mut said);
        assert_eq!(code, POLYRAIL_ERROR_HANDLE);
        assert_eq!(polyrail_engine_free(engine, error), 0);
        assert_eq!(polyrail_engine_free(target, error), 0);
    }
}
