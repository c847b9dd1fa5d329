//! Real engines in one process, over loopback: what a program may rely on.

mod calls;
mod cancel;
mod errors;
mod faults;
mod fixture;
mod registration;
mod restart;
mod room;
mod seat;
mod shutdown;
mod silence;
mod transfers;
