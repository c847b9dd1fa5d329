//! polyrail's core for C: what `polyrail_core.h` declares.
//!
//! A runtime in C gives memory, hands in facts with the time, and drains what is to be done, as `docs/embedding.md` says.
//! Nothing here decides: each function is one of [`Orchestrator`](polyrail_core::orchestrator::Orchestrator)'s, with
//! numbers checked on their way in.
//!
//! # Safety
//!
//! All functions share one contract, so they do not repeat it. A pointer leads to as many initialised, aligned elements
//! as the arguments beside it say, and nobody else uses it during the call; null is an error. A `polyrail_core_worker` or
//! `polyrail_core_fabric` is what its `create` gave, and its memory is as that left it; a core is used by one thread at a
//! time, and not after its fabric's memory has gone.
//!
//! # Panics
//!
//! Numbers that a caller gets wrong are answered with a code. Should core itself be at fault, it does not unwind into C:
//! on a machine with an operating system the process is aborted, without one `polyrail_core_panic` is called, which the
//! program has to define and which does not return.
#![no_std]
#![allow(non_camel_case_types)]
#![deny(missing_docs)]
// The contract above.
#![allow(clippy::missing_safety_doc)]

// For its panic handler, and for nothing else.
#[cfg(not(target_os = "none"))]
extern crate std;

pub mod contract;
pub mod fabric;
pub mod facts;
pub mod memory;
pub mod plan;
pub mod polls;
pub mod requests;
pub mod worker;

#[cfg(target_os = "none")]
mod bare {
    unsafe extern "C" {
        /// The program's.
        safe fn polyrail_core_panic() -> !;
    }

    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        polyrail_core_panic()
    }
}
