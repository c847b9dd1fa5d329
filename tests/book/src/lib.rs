//! The pages in `docs/` and the README, as the tests of this crate look at them.
//!
//! Rust code on the pages below is compiled as tests of the documentation.

mod page;
mod prose;
mod sources;

pub use page::{Link, Page, all, root};
pub use prose::{Fault, faults, sentences, wrapped};
pub use sources::sources;

/// Its programs compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Its program runs.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/quickstart.md")]
struct Quickstart;

/// Its programs compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust.md")]
struct Rust;
