//! Our bindings to libibverbs, and what it is for one of their types to be one of ibverbs-sys's.
//!
//! What is compared is the source that `shells/verbs` is built from, not a copy of it.

#![allow(unreachable_pub)] // it is `pub(crate)` there, and one crate with this here

#[cfg(test)]
mod calls;
#[cfg(test)]
mod complete;
#[cfg(test)]
mod constants;
#[cfg(test)]
mod layouts;
#[path = "../../../shells/verbs/src/ffi/raw.rs"]
#[allow(dead_code)]
mod raw;
#[cfg(test)]
mod same;
