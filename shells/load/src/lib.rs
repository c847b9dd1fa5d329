//! Transports of others: a shared library in C, or in anything that can look like it, behind
//! [`Transport`](polyrail_transport::Transport).
//!
//! [`Library::open`] loads one and looks whether it is a transport; [`Library::make`] makes it one of an engine. `abi` is
//! the table of functions, and what `include/polyrail_transport.h` is made of; `host` is what the engine does for the
//! library, `target` and `endpoint` are the two halves of the trait over the table.
//!
//! What the library says is checked on its way in, as far as numbers can be: a count, code or cause that cannot be is
//! logged, and taken for the worst that it could mean. What it does to memory cannot be checked: it runs in this process,
//! and whoever loads it trusts it. `polyrail check-transport` tries out whether it keeps its promises.
//!
//! A library is never unloaded: its threads, or what it left with others, may outlive whoever asked for it.

pub mod abi;
mod endpoint;
mod host;
mod library;
mod target;

pub use library::{Library, LoadError};
