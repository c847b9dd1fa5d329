//! Which process a client is, and whether it still is.

use std::fs;
use std::io::{self, ErrorKind};

use polyrail_core::path::hint::Client;

/// This process; `None` where the system does not tell.
pub fn own_process() -> Option<Client> {
    let stat = Stat::of("self").ok()?;
    // Another namespace's view of `/proc` numbers processes differently than the kernel does for us.
    (stat.pid == std::process::id()).then_some(Client {
        pid: stat.pid,
        started: stat.started,
    })
}

/// Whether the process of this number that began at this time has ended, waited for or not. `None` as the time: any
/// process of this number. In doubt it has not.
pub fn is_gone(pid: u32, started: Option<u64>) -> bool {
    match Stat::of(&pid.to_string()) {
        Ok(stat) => stat.dead || started.is_some_and(|started| started != stat.started),
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

/// What `/proc` says of a process.
struct Stat {
    pid: u32,
    dead: bool,
    /// In clock ticks since the boot.
    started: u64,
}

impl Stat {
    fn of(which: &str) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{which}/stat"));
        // It ended between opening and reading.
        let text = text.map_err(|error| match error.raw_os_error() {
            Some(code) if code == rustix::io::Errno::SRCH.raw_os_error() => {
                ErrorKind::NotFound.into()
            }
            _ => error,
        })?;
        Self::parse(&text)
            .ok_or_else(|| io::Error::other(format!("/proc/{which}/stat makes no sense: {text:?}")))
    }

    fn parse(text: &str) -> Option<Self> {
        /// The field of the start, counted from the one after the command's name, which may contain anything.
        const STARTED: usize = 19;
        let (head, tail) = text.rsplit_once(')')?;
        let mut fields = tail.split_whitespace();
        let dead = matches!(fields.next()?, "Z" | "X" | "x");
        Some(Self {
            pid: head.split(' ').next()?.parse().ok()?,
            dead,
            started: fields.nth(STARTED - 1)?.parse().ok()?,
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
        assert!(!is_gone(own.pid, Some(own.started)));
        assert!(!is_gone(own.pid, None));
        assert!(is_gone(own.pid, Some(own.started + 1)));
        // Larger than any process number.
        assert!(is_gone(u32::MAX, None));
        let mut child = Command::new("sleep")
            .arg("600")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        let started = Stat::of(&pid.to_string()).unwrap().started;
        assert!(!is_gone(pid, Some(started)));
        child.kill().unwrap();
        // Before it is waited for: who does not wait must not hide it.
        while !is_gone(pid, Some(started)) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(is_gone(pid, Some(started)));
    }

    #[test]
    fn a_commands_name_may_look_like_the_fields_after_it() {
        let tail = "0 ".repeat(18);
        let text = format!("77 (a) Z 1 (b) S {tail}4711 0 0\n");
        let stat = Stat::parse(&text).unwrap();
        assert_eq!((stat.pid, stat.dead, stat.started), (77, false, 4711));
        for text in ["", "77 (a", "77 (a) S 1 2", "x (a) S"] {
            assert!(Stat::parse(text).is_none(), "{text}");
        }
    }
}
