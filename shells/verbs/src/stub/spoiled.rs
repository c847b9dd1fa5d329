//! Works that fail in the middle because a test wants them to.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering::*};

use crate::ffi::raw::{self, SendWr};

use super::{FAILED, State, with};

/// The status that the next work gets; 0: none.
static NEXT: AtomicI32 = AtomicI32::new(0);

/// Makes the next read or write fail with this status, and at once, whatever of the works before it is on its way, or the next
/// one before which nothing is, where the status is one that peers give. Half of its
/// bytes have arrived then. The rest of a write is on its way, as [`hold`](super::hold) has it, unless the peer has refused it.
/// 0: none fails any more.
pub fn spoil(status: c_int) {
    NEXT.store(status, SeqCst);
}

/// The status that the next immediate is told of with at the target; 0: it does well.
static NEXT_IMMEDIATE: AtomicI32 = AtomicI32::new(0);

/// Makes the place of the next immediate that arrives fail with this status.
#[cfg(test)]
pub(crate) fn spoil_immediate(status: c_int) {
    NEXT_IMMEDIATE.store(status, SeqCst);
}

/// The status that an immediate is told of with.
pub(super) fn of_immediate() -> c_int {
    NEXT_IMMEDIATE.swap(0, SeqCst)
}

/// Whether some work is to fail.
pub(super) fn is_due() -> bool {
    NEXT.load(Relaxed) != 0
}

/// The status that this work of a queue pair is to fail with now.
pub(super) fn taken(number: u32, work: &SendWr) -> Option<c_int> {
    let next = NEXT.load(Relaxed);
    if next == 0 || work.opcode == raw::WR_RDMA_WRITE_WITH_IMM {
        return None;
    }
    // What a peer says is of the oldest work that has no answer.
    if (9..=13).contains(&next) && with(|state| state.has_flying(number)) {
        return None;
    }
    Some(NEXT.swap(0, SeqCst)).filter(|status| *status != 0)
}

/// Whether the peer's device has said so, and takes nothing more of the queue pair.
pub(super) fn is_refusal(status: c_int) -> bool {
    matches!(status, 9..=11)
}

impl State {
    /// A work fails. Its status.
    ///
    /// # Safety
    ///
    /// The work has as many ranges as it says, and what is registered is mapped.
    pub(super) unsafe fn spoil(&mut self, number: u32, work: &SendWr, status: c_int) -> c_int {
        // SAFETY: the caller's promise.
        if let Some(mut flying) = unsafe { self.launch(number, work) } {
            let half = flying.bytes.len() / 2;
            let rest = flying.bytes.split_off(half);
            // SAFETY: the caller's promise.
            unsafe { self.arrive_in_part(&flying) };
            if work.opcode == raw::WR_RDMA_WRITE && !is_refusal(status) {
                flying.remote += half as u64;
                flying.bytes = rest;
                // Its completion has come.
                flying.says = false;
                self.keep(flying);
            }
        }
        let own = self.pairs.get_mut(&number);
        let peer = own.map(|own| {
            own.state = FAILED;
            own.peer
        });
        if let Some(peer) = peer.and_then(|peer| self.pairs.get_mut(&peer))
            && is_refusal(status)
        {
            peer.state = FAILED;
        }
        status
    }
}
