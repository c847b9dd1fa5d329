//! Real engines in one process, over loopback: what a program may rely on.

mod calls;
mod cancel;
mod domains;
mod ends;
mod errors;
mod failover;
mod faults;
mod files;
mod fixture;
mod gpu;
mod large;
mod notifications;
mod path;
mod prepared;
mod recording;
mod registration;
mod restart;
mod room;
mod seat;
mod shutdown;
mod silence;
mod staged;
mod strangers;
mod terms;
mod transfers;
mod waiting;
