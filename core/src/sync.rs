//! The atomics that workers share: core's own, or loom's where a model tries every interleaving
//! (`RUSTFLAGS="--cfg loom"`).

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, fence};

#[cfg(loom)]
pub(crate) use {
    lazy::{AtomicU32, AtomicU64},
    loom::sync::atomic::fence,
};

/// Loom's atomics, which only a running model can make, behind a constructor that constants can call: each one
/// is made when it is first used. Loom takes that for a write of the using thread, so a model has to use each one
/// before it starts threads.
#[cfg(loom)]
mod lazy {
    use std::ops::Deref;
    use std::sync::OnceLock;

    macro_rules! atomic {
        ($name:ident, $int:ty) => {
            #[allow(unreachable_pub)] // part of public signatures, as core's own are
            #[derive(Debug)]
            pub struct $name {
                initial: $int,
                made: OnceLock<loom::sync::atomic::$name>,
            }

            impl $name {
                pub(crate) const fn new(initial: $int) -> Self {
                    Self {
                        initial,
                        made: OnceLock::new(),
                    }
                }
            }

            impl Deref for $name {
                type Target = loom::sync::atomic::$name;

                fn deref(&self) -> &Self::Target {
                    self.made
                        .get_or_init(|| loom::sync::atomic::$name::new(self.initial))
                }
            }
        };
    }

    atomic!(AtomicU32, u32);
    atomic!(AtomicU64, u64);
}
