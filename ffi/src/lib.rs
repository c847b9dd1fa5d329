//! polyrail for C and C++: what `polyrail.h` declares.
//!
//! The rules are those of the header, and they hold for every function here:
//!
//! * A function that can fail answers 0 or one of the negative codes in [`words`]. Its last argument, which may be
//!   null, takes what went wrong in words ([`failure`]).
//! * A structure begins with its size, so that programs and libraries of different versions go together ([`sized`]).
//! * A handle names one thing of one kind. One that is null, of another kind, freed, or inherited over a `fork` is an
//!   error ([`handle`]).
//! * Nothing unwinds into C: a guard (`failure`) is around each body, and `tests/header.rs` looks that it is.
//!
//! # Safety
//!
//! All functions share one contract, so the unsafe ones do not repeat it. A pointer is null, where the function says
//! that it may be, or it leads to as many initialised, aligned elements as the arguments beside it say, which nobody
//! changes during the call; where it is written, nobody else uses it during the call. Texts end with a zero. Callbacks
//! may be called from any thread, and until the function that took them says otherwise.
#![allow(non_camel_case_types)]
#![deny(missing_docs)]
// The contract above.
#![allow(clippy::missing_safety_doc)]

pub mod batch;
pub mod call;
pub mod engine;
pub mod failure;
pub mod handle;
pub mod log;
pub mod notification;
pub mod paged;
pub mod peer;
pub mod prepared;
pub mod queue;
pub mod segment;
pub mod sized;
pub mod stats;
mod text;
pub mod transfer;
pub mod words;
