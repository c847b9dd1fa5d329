//! `libpolyrail.so` and `libpolyrail.a`. Everything is in `polyrail-ffi`; this crate gives the files their name, which
//! the engine's crate has in Rust.
pub use polyrail_ffi::*;
