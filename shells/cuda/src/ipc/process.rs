//! The process at the other end of a socket.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, geteuid, pidfd_open};

/// Whether the process at the other end of a socket is of this process's user.
pub(crate) fn check_user(socket: &OwnedFd) -> io::Result<()> {
    let theirs = socket_peercred(socket)?.uid;
    match theirs == geteuid() {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "it is a process of user {}, not {}",
            theirs.as_raw(),
            geteuid().as_raw()
        ))),
    }
}

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
