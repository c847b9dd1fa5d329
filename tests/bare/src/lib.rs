//! What has to link for a machine without an operating system, by a stable compiler: `.ci/run` builds every
//! program here for `x86_64-unknown-none` with the profile `bare`. A symbol of `std` or of an allocator would
//! be missing there.
//!
//! [`no_panic!`] asks for more: its panic handler calls a function that nobody defines, so a program links only
//! if the optimiser has found every panic in it to be impossible. The functions in question are reached through
//! others that are never inlined, with arguments that it knows nothing of. `deliberate` shows that this can fail.
//!
//! Built for a host, each program just runs its calls.
#![no_std]

/// Makes a program of these functions, each called once, in which no panic may be left.
#[macro_export]
macro_rules! no_panic {
    ($($proof:path),+ $(,)?) => {
        fn calls() {
            $($proof();)+
        }

        #[cfg(target_os = "none")]
        mod bare {
            unsafe extern "C" {
                /// Defined nowhere.
                safe fn polyrail_a_panic_survived() -> !;
            }

            #[panic_handler]
            fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
                polyrail_a_panic_survived()
            }

            // SAFETY: nothing else in the program has this name.
            #[unsafe(no_mangle)]
            extern "C" fn _start() -> ! {
                super::calls();
                loop {
                    core::hint::spin_loop();
                }
            }
        }

        #[cfg(not(target_os = "none"))]
        fn main() {
            calls();
        }
    };
}
