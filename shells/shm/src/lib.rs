//! polyrail over shared memory: a lane is a Unix socket, over which memory is handed out, not bytes.
//!
//! What the engines of one host move between them is copied once, by the side that can do so alone:
//!
//! | target's memory | write | read |
//! |---|---|---|
//! | shared (allocated by its engine) | the initiator copies into its mapping of it | the initiator copies out of it |
//! | private (registered by its program) | the initiator, by `process_vm_writev` or a descriptor of `/proc/PID/mem` | the same, by `process_vm_readv` |
//!
//! The initiator says on a mailbox that both sides map that it is inside a segment, copies, and says that it has left; the target
//! takes memory back from those who are not inside. A process is known by what only it has, within the call that copies
//! (`mark`), because its number could have become a stranger's. Works are copied while the endpoint is polled, and complete in that
//! poll. What the kernel does not write for the initiator it offers on the mailbox, which the target's threads
//! `polyrail-shm` work off, each the mailboxes of its own lanes: they pull, by `process_vm_readv`. Works of the same two segments are
//! copied together (`group`), by one call of the kernel, and what is long is cut over several threads of the engine. Either side
//! looks for what the other one writes on the mailbox while it is awake, and asks to be called by a message before it sleeps.
//!
//! A peer is on this host if its socket can be connected to: the socket has an abstract name, drawn at random and
//! told over the control plane, which means something in one network namespace only and leaves nothing behind. Each
//! side asks the kernel who the other one is, and lets in only processes of its own user.
//!
//! **Invariant:** an offer that was withdrawn is never pulled, however long the target sleeps. Taking and
//! withdrawing it are one compare-and-swap of the same word.
//!
//! **Invariant:** no byte is written to private memory that its owner was told to have back, nor to a process that has not the
//! right one's mark.
//!
//! **Invariant:** no memory of a peer is mapped that could become shorter, or whose pages could go away and not come back; and
//! a mailbox has all of its pages for good before it is touched.

mod copy_threads;
mod endpoint;
mod far;
mod group;
mod lane;
mod mailbox;
mod mapped;
mod mark;
mod process;
mod reach;
mod serve;
mod server;
mod stop;
mod sys;
mod wire;

pub use server::ShmTransport;

/// What the transport is called.
const NAME: &str = "shm";

/// Works that may be posted on a lane and not completed.
pub const WORKS_MAX: u16 = 256;

/// Bytes of the largest work.
pub const WORK_BYTES_MAX: u32 = 4 << 20;

/// Lanes that one session may have at a target, over its whole life.
pub const LANES_PER_SESSION_MAX: usize = 4096;

/// Bytes that are copied in a row, before others have their turn and reports their effect: the caches are full of what
/// was copied then, and whoever is next has to fetch all that it needs.
const TURN_BYTES: u64 = 2 << 20;

/// Bytes that a target pulls before it tells the initiator, who spins meanwhile for longer than that takes. To tell costs a
/// look after the peer's process.
const TELL_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests;
