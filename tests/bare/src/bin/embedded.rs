//! The embedder's runtime of `core/examples/embedded`, whole, on a bare machine: it needs no `std` and no allocator.
#![cfg_attr(target_os = "none", no_std, no_main)]

#[path = "../../../../core/examples/embedded/device.rs"]
mod device;
#[path = "../../../../core/examples/embedded/runtime.rs"]
mod runtime;

use core::hint::black_box;

use polyrail_core::report::Status;

/// A console that nobody reads.
struct Nowhere;

impl core::fmt::Write for Nowhere {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        black_box(text);
        Ok(())
    }
}

fn run() -> Option<Status> {
    let mut ours = [1; runtime::TOTAL_BYTES];
    let mut theirs = [0; runtime::TOTAL_BYTES];
    let mut tables = runtime::Tables::new();
    let mut device = device::Device::new(&mut ours, &mut theirs, runtime::RATES);
    runtime::run(&mut tables, &mut device, &mut Nowhere)
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
