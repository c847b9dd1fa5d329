//! Which process this is, and whether another one still lives.

use std::fs;
use std::io;

use polyrail_core::path::hint::Client;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// This process; `None` where the system does not tell.
pub fn own_process() -> Option<Client> {
    let stat = Stat::of("self").ok()?;
    // Another namespace's view of `/proc` numbers processes differently than the kernel does for us.
    (stat.pid == std::process::id()).then_some(Client {
        pid: stat.pid,
        started: stat.started,
    })
}

/// When the process that has this number now began, in clock ticks since the boot.
pub fn began(pid: u32) -> io::Result<u64> {
    Stat::of(&pid.to_string()).map(|stat| stat.started)
}

/// Whether the process of this number has ended for sure, or the number is another's by now: `is_it` tells by the
/// start, as [`began`] gives it. A process whose end nobody has waited for has ended.
///
/// In doubt it lives: no file in `/proc` proves nothing, because other users' processes may be hidden there.
pub fn is_gone(pid: u32, is_it: impl FnOnce(u64) -> bool) -> bool {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return true;
    };
    let ended = match pidfd_open(number, PidfdFlags::empty()) {
        Ok(watch) => {
            let mut ready = [PollFd::new(&watch, PollFlags::IN)];
            poll(&mut ready, Some(&Timespec::default())).is_ok_and(|count| count > 0)
        }
        Err(error) => error == Errno::SRCH,
    };
    ended || Stat::of(&pid.to_string()).is_ok_and(|stat| stat.dead || !is_it(stat.started))
}

/// Whether every thread of a process is on its way out: past its last instruction outside of the kernel, and past its
/// last system call. The process counts as alive until the kernel has also taken its memory apart, which takes a
/// second for some gigabytes.
///
/// In doubt it is not. A thread that had not been seen can only have been made by one that was not on its way out, so
/// the threads are listed again after all of them were found to be. To list some hundreds takes a millisecond, so the first
/// one is asked before.
pub fn is_exiting(pid: u32) -> bool {
    if !Stat::of(&pid.to_string()).is_ok_and(|first| first.exiting) {
        return false;
    }
    let threads = || -> io::Result<Vec<String>> {
        let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect()
    };
    let Ok(known) = threads() else {
        return false;
    };
    let exiting = |thread: &String| match Stat::of(&format!("{pid}/task/{thread}")) {
        Ok(stat) => stat.exiting,
        // It has gone since.
        Err(error) => matches!(
            Errno::from_io_error(&error),
            Some(Errno::NOENT | Errno::SRCH)
        ),
    };
    !known.is_empty()
        && known.iter().all(exiting)
        && threads().is_ok_and(|again| again.iter().all(|thread| known.contains(thread)))
}

/// What `/proc` says of a process or thread.
struct Stat {
    pid: u32,
    dead: bool,
    exiting: bool,
    /// In clock ticks since the boot.
    started: u64,
}

impl Stat {
    fn of(which: &str) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{which}/stat"))?;
        Self::parse(&text)
            .ok_or_else(|| io::Error::other(format!("/proc/{which}/stat makes no sense: {text:?}")))
    }

    fn parse(text: &str) -> Option<Self> {
        /// Fields between the state, the first one after the command's name (which may contain anything), and the
        /// kernel's flags.
        const TO_FLAGS: usize = 5;
        /// And between those and the start.
        const TO_STARTED: usize = 12;
        /// The kernel's `PF_EXITING`.
        const EXITING: u64 = 4;
        let (head, tail) = text.rsplit_once(')')?;
        let mut fields = tail.split_whitespace();
        let dead = matches!(fields.next()?, "Z" | "X" | "x");
        let flags: u64 = fields.nth(TO_FLAGS)?.parse().ok()?;
        Some(Self {
            pid: head.split(' ').next()?.parse().ok()?,
            dead,
            exiting: flags & EXITING != 0,
            started: fields.nth(TO_STARTED)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_gone_when_it_has_ended_or_its_number_is_anothers() {
        let own = own_process().unwrap();
        assert_eq!(began(own.pid).unwrap(), own.started);
        assert!(!is_gone(own.pid, |started| started == own.started));
        assert!(!is_gone(own.pid, |_| true));
        assert!(is_gone(own.pid, |_| false), "its number was another's");
        assert!(
            is_gone(0, |_| true) && is_gone(u32::MAX, |_| true),
            "no pids"
        );
        let mut child = Command::new("sleep")
            .arg("600")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        let started = began(pid).unwrap();
        let is_it = |found| found == started;
        assert!(!is_gone(pid, is_it) && !is_exiting(pid));
        child.kill().unwrap();
        // Before it is waited for: who does not wait must not hide it.
        while !is_gone(pid, is_it) {
            std::thread::yield_now();
        }
        assert!(Stat::of(&pid.to_string()).unwrap().dead && is_exiting(pid));
        child.wait().unwrap();
        assert!(is_gone(pid, is_it));
        assert!(!is_exiting(pid), "who is that?");
    }

    #[test]
    fn a_commands_name_may_look_like_the_fields_after_it() {
        let between = "0 ".repeat(12);
        for (flags, exiting) in [(4_194_304, false), (4_194_316, true)] {
            let text = format!("77 (a) Z 1 (b) S 1 2 3 4 5 {flags} {between}4711 0 0\n");
            let stat = Stat::parse(&text).unwrap();
            assert_eq!((stat.pid, stat.dead, stat.started), (77, false, 4711));
            assert_eq!(stat.exiting, exiting);
        }
        for text in ["", "77 (a", "77 (a) S 1 2", "x (a) S"] {
            assert!(Stat::parse(text).is_none(), "{text}");
        }
    }
}
