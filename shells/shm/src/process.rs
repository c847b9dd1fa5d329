//! The process at the other end of a socket: whose it is, and whether it still is.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicU8;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::copy_threads::Task;
use crate::mark::{Page, mark_of};
use crate::sys::{Transfer, Way};
use crate::wire::Cookie;

/// Bytes that prove to be in this process, and behind them as many that peers write to, to see whether they can. They stay
/// where they are.
#[derive(Debug)]
pub(crate) struct OwnCookie {
    content: [u8; 16],
    there: Bytes,
}

/// Where they are.
#[derive(Debug)]
enum Bytes {
    /// On a page that only this process has.
    Marked(Page),
    /// Where forks of this process have them too.
    Plain(Box<[AtomicU8; 32]>),
}

impl Bytes {
    fn plain(content: &[u8; 16]) -> Self {
        let byte = |at| AtomicU8::new(*content.get(at).unwrap_or(&0));
        Self::Plain(Box::new(std::array::from_fn(byte)))
    }
}

impl OwnCookie {
    pub(crate) fn new() -> io::Result<Self> {
        let mut content = [0; 16];
        getrandom::fill(&mut content).map_err(|e| io::Error::other(e.to_string()))?;
        let there = Page::new(&content).map(Bytes::Marked);
        let there = there.unwrap_or_else(|error| {
            log::info!("shm: peers cannot tell this process from its forks at once: {error}");
            Bytes::plain(&content)
        });
        Ok(Self { content, there })
    }

    /// As where the kernel gives no such page.
    #[cfg(test)]
    pub(crate) fn unmarked() -> Self {
        let content = [7; 16];
        Self {
            content,
            there: Bytes::plain(&content),
        }
    }

    pub(crate) fn cookie(&self) -> Cookie {
        let content = self.content;
        match &self.there {
            Bytes::Marked(page) => Cookie {
                address: page.address(),
                content,
            },
            Bytes::Plain(bytes) => Cookie {
                address: bytes.as_ptr().addr() as u64,
                content,
            },
        }
    }
}

/// A peer's process.
pub(crate) struct Process {
    /// Its number here.
    pid: i32,
    /// What it has in its memory.
    cookie: Cookie,
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
        let pid = number;
        let process = Self { pid, cookie, end };
        let mut content = [0; 16];
        // SAFETY: as many bytes as are there.
        let read = unsafe {
            process
                .pull(cookie.address, content.as_mut_ptr())
                .piece(0..16)
        };
        match read {
            Ok(()) => Ok(process),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(NoPull::Stranger),
            Err(error) => Err(NoPull::Kernel(error)),
        }
    }

    /// A copy from its memory, as [`Self::way_from`] says.
    pub(crate) fn pull(&self, from: u64, to: *mut u8) -> Transfer {
        Transfer::One(self.way_from(from), to)
    }

    /// From this address of it on. Of one that is not [marked](Self::is_marked) what is copied counts only if it
    /// [is there](Self::is_there) afterwards.
    pub(crate) fn way_from(&self, address: u64) -> Way {
        Way::Pull(self.pid, self.cookie, address)
    }

    /// To this address of it and on, and to no other process. `None`: nothing marks it.
    pub(crate) fn way_to(&self, address: u64) -> Option<Way> {
        let mark = mark_of(&self.cookie)?;
        Some(Way::Push(self.pid, mark, address))
    }

    /// Whether what has its cookie is the process itself, not a fork of it that has taken its number.
    pub(crate) fn is_marked(&self) -> bool {
        mark_of(&self.cookie).is_some()
    }

    /// Whether the kernel lets this process write to its memory.
    pub(crate) fn is_pushed_to(&self) -> bool {
        let mut content = [0; 16];
        let scratch = self.cookie.address.wrapping_add(content.len() as u64);
        self.way_to(scratch).is_some_and(|way| {
            let push = Transfer::One(way, content.as_mut_ptr());
            // SAFETY: as many bytes as are there.
            unsafe { push.piece(0..16) }.is_ok()
        })
    }

    /// Whether all of its threads have ended, and with them all calls of the kernel that they have made.
    pub(crate) fn has_ended(&self) -> bool {
        let mut ready = [PollFd::new(&self.end, PollFlags::IN)];
        poll(&mut ready, Some(&Timespec::default())).is_ok() && !ready[0].revents().is_empty()
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

/// The memory of a process, and never another one's: when that process has ended, or executes another program, nothing is
/// behind the descriptor, whoever has the number then.
#[derive(Debug)]
pub(crate) struct OpenMemory(OwnedFd);

impl OpenMemory {
    /// That of a process, if the kernel lets this one read and write it: both are tried.
    pub(crate) fn of(process: &Process) -> io::Result<Self> {
        let cookie = &process.cookie;
        let path = format!("/proc/{}/mem", process.pid);
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let memory = Self(rustix::fs::open(path, flags, Mode::empty())?);
        let mut content = [0; 16];
        // SAFETY: as many bytes as are there.
        unsafe {
            Transfer::One(memory.way_from(cookie.address), content.as_mut_ptr()).piece(0..16)
        }?;
        if content != cookie.content {
            return Err(io::Error::other(NoPull::Stranger.to_string()));
        }
        let scratch = cookie.address.wrapping_add(content.len() as u64);
        // SAFETY: as above.
        unsafe { Transfer::One(memory.way_to(scratch), content.as_mut_ptr()).piece(0..16) }?;
        Ok(memory)
    }

    /// From this address of it on.
    pub(crate) fn way_from(&self, address: u64) -> Way {
        Way::Read(self.0.as_raw_fd(), address)
    }

    /// To this address of it and on.
    pub(crate) fn way_to(&self, address: u64) -> Way {
        Way::Write(self.0.as_raw_fd(), address)
    }
}

/// Whether the other end of a socket is closed. It may have left messages.
pub(crate) fn is_hung_up(socket: &OwnedFd) -> bool {
    let mut ready = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut ready, Some(&Timespec::default())).is_ok()
        && ready[0].revents().contains(PollFlags::HUP)
}
