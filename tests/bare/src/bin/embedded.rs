//! The embedder's runtime of `core/examples/embedded`, whole, on a bare machine: it needs no `std` and no allocator.
#![cfg_attr(target_os = "none", no_std, no_main)]

use core::hint::black_box;

use polyrail_core::report::Status;
use polyrail_embedded::device::Device;
use polyrail_embedded::{RATES, TOTAL_BYTES, Tables, boot};

/// A console that nobody reads.
struct Nowhere;

impl core::fmt::Write for Nowhere {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        black_box(text);
        Ok(())
    }
}

fn run() -> Option<Status> {
    let mut ours = [1; TOTAL_BYTES];
    let mut theirs = [0; TOTAL_BYTES];
    let mut device = Device::new(&mut ours, &mut theirs, RATES);
    boot(&mut Tables::new(), |shared, mut core| {
        polyrail_embedded::run(shared, &mut core, &mut device, &mut Nowhere)
    })
}

#[cfg(target_os = "none")]
mod bare {
    use core::hint::{black_box, spin_loop};

    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        loop {
            spin_loop();
        }
    }

    // SAFETY: nothing else in the program has this name.
    #[unsafe(no_mangle)]
    extern "C" fn _start() -> ! {
        black_box(super::run());
        loop {
            spin_loop();
        }
    }
}

#[cfg(not(target_os = "none"))]
fn main() {
    assert_eq!(run(), Some(Status::Completed));
}
