//! What polyrail's processes of one host share: memory, a clock, and the sight of who is alive.
//!
//! [`load`] is what each of them has in flight, [`hint`] the record in which an agent says which rails to use. Core
//! decides what is written there and what is believed of it; here are the files, the mapping, the clock and the
//! kernel's word about processes. All `unsafe` is in `mapping`.

mod clock;
pub mod hint;
pub mod load;
mod mapping;
mod process;

pub use clock::host_now;
pub use process::{began, is_exiting, is_gone, own_process};
