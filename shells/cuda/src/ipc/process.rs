//! The process at the other end of a socket.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};

/// What is readable when that process has ended, its devices' work included. `None`: the kernel does not say.
pub(crate) fn end_of(socket: &OwnedFd) -> Option<OwnedFd> {
    let pid = socket_peercred(socket).ok()?.pid;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Whether the other end of a socket is closed.
pub(crate) fn is_hung_up(socket: &OwnedFd) -> bool {
    let mut ready = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut ready, Some(&Timespec::default())).is_ok()
        && ready[0].revents().contains(PollFlags::HUP)
}
