//! The process at the other end of a socket: whose it is, and whether it still is.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, geteuid, pidfd_open};

use crate::sys::{self, Transfer};
use crate::wire::Cookie;

/// Bytes that prove to be in this process. They stay where they are.
#[derive(Debug)]
pub(crate) struct OwnCookie(Box<[u8; 16]>);

impl OwnCookie {
    pub(crate) fn new() -> io::Result<Self> {
        let mut content = Box::new([0; 16]);
        getrandom::fill(&mut *content).map_err(|e| io::Error::other(e.to_string()))?;
        Ok(Self(content))
    }

    pub(crate) fn cookie(&self) -> Cookie {
        Cookie {
            address: self.0.as_ptr().addr() as u64,
            content: *self.0,
        }
    }
}

/// A peer's process.
pub(crate) struct Process {
    /// Its number here.
    pid: i32,
    /// Readable when it has ended.
    end: OwnedFd,
}

/// Why nothing can be pulled from a process.
#[derive(Debug)]
pub(crate) enum NoPull {
    /// It runs in another pid namespace, where its number says nothing here.
    Elsewhere,
    /// The kernel does not let this process read that one's memory, or has no descriptor for it.
    Kernel(io::Error),
    /// Somebody else has the number.
    Stranger,
}

impl fmt::Display for NoPull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elsewhere => f.write_str("it is in another pid namespace"),
            Self::Kernel(error) => write!(
                f,
                "the kernel forbids it: {error} (Yama's ptrace_scope, capabilities and seccomp decide)"
            ),
            Self::Stranger => f.write_str("its memory is not what it says"),
        }
    }
}

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

impl Process {
    /// The one at the other end of a socket, if its memory can be read. `cookie` is what it says is there.
    pub(crate) fn of(socket: &OwnedFd, cookie: Cookie) -> Result<Self, NoPull> {
        let kernel = |error: rustix::io::Errno| NoPull::Kernel(error.into());
        let pid = socket_peercred(socket).map_err(kernel)?.pid;
        // Numbers of other namespaces are 0 here.
        let number = pid.as_raw_pid();
        if number <= 0 {
            return Err(NoPull::Elsewhere);
        }
        // First the descriptor, then the look: what has the cookie has had the number since it connected.
        let end = pidfd_open(pid, PidfdFlags::empty()).map_err(kernel)?;
        let process = Self { pid: number, end };
        let mut content = [0; 16];
        // SAFETY: as many bytes as are there.
        unsafe { process.pull(cookie.address, content.as_mut_ptr(), content.len()) }
            .map_err(NoPull::Kernel)?;
        match content == cookie.content {
            true => Ok(process),
            false => Err(NoPull::Stranger),
        }
    }

    /// Copies from its memory. Counts only if [`Self::is_there`] afterwards.
    ///
    /// # Safety
    ///
    /// `to` is mapped for writing.
    pub(crate) unsafe fn pull(&self, from: u64, to: *mut u8, length: usize) -> io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { sys::pull(self.pid, from, to, length) }
    }

    /// A copy from its memory, with what [`Self::pull`] says of it.
    pub(crate) fn transfer(&self, from: u64, to: *mut u8) -> Transfer {
        Transfer::pull(self.pid, from, to)
    }

    /// Whether it has neither ended, so that its number has been its own until now, nor closed its end of `socket`.
    pub(crate) fn is_there(&self, socket: &OwnedFd) -> bool {
        let mut ready = [
            PollFd::new(&self.end, PollFlags::IN),
            PollFd::new(socket, PollFlags::empty()),
        ];
        poll(&mut ready, Some(&Timespec::default())).is_ok()
            && ready[0].revents().is_empty()
            && !ready[1].revents().contains(PollFlags::HUP)
    }
}

/// Whether the other end of a socket is closed. It may have left messages.
pub(crate) fn is_hung_up(socket: &OwnedFd) -> bool {
    let mut ready = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut ready, Some(&Timespec::default())).is_ok()
        && ready[0].revents().contains(PollFlags::HUP)
}
