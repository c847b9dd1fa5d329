//! `pread` and `pwrite` of registered memory.
//!
//! # Safety
//!
//! Memory is only touched by the kernel, during one system call, through the address of a [`Transfer`], which keeps it
//! pinned, and its file open, for as long as it lives.

use polyrail_core::work::Op;
use rustix::io::Errno;

use crate::endpoint::last_error;
use crate::transfer::Transfer;

/// Moves the next piece of a transfer, and waits for it. The answer is bytes, 0 at the end of the file.
pub(crate) fn carry_out(transfer: &Transfer) -> Result<u32, Errno> {
    let call = transfer.call();
    let (address, bytes) = (call.address.cast(), call.bytes as usize);
    let offset = call.offset as libc::off64_t;
    // SAFETY: `bytes` from `address` on are pinned, and the descriptor is open, while the transfer is borrowed.
    let answer = unsafe {
        match call.op {
            Op::Read => libc::pread64(call.fd, address, bytes, offset),
            Op::Write => libc::pwrite64(call.fd, address, bytes, offset),
        }
    };
    u32::try_from(answer).map_err(|_| last_error())
}
