//! Which process an engine runs in, so that a peer on the same host can see it end.
//!
//! A connection that breaks proves nothing about the process behind it; the kernel's word that the process
//! has ended does: no thread of it can copy another byte. [`Process`] is what an engine says of itself; if the
//! claim can be about a process that this one sees, the kernel is asked for a descriptor that tells of its end.
//!
//! That comes late: a process that is killed first gives its memory back, a second for some gigabytes, and its sockets
//! break after that too. But all of its threads except one end before, and descriptors of threads tell of that. So some
//! threads are watched as well: the engine's if they are found soon, or else those that have lived longest. When one
//! has ended, the others are looked at: if every thread is past the kernel's `PF_EXITING`, that proves as much as the
//! end itself. A thread sets it in `do_exit`, on its way out of its last system call, and never runs anything of the
//! program again; so no receive into memory is under way, and none will begin. What an exiting thread still writes is
//! its own: the futex words that tell of its end. Disk I/O that the kernel carries on by itself would not be covered;
//! no transport lets peers start any.
//!
//! What a peer says of itself may be a lie. It gains nothing by it that it could not have without: naming a
//! process that ends early makes this side believe that writes to the *liar's own* memory have settled, which
//! it could claim by answering a fence too early as well; this side's memory is released by this side's own
//! fence, whatever peers say. Naming one that never ends leaves the bounds of silence in force, as for a peer
//! on another host. It may learn that a process of a number and start time that it guessed has ended, from
//! this side hanging up.
//!
//! A claim is believed only if all of these hold, or there is no watch: the boot id is ours and the process
//! lives in our pid namespace, so that its number means the same here; it lives in our network namespace, and
//! the connection leads to or comes from an address of this host, because virtual machines that were cloned from one
//! snapshot share boot id, namespaces and numbers; the number's present owner began when the claim says.

use std::fmt;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use polyrail_shared::{began, is_exiting, own_process};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, RawDir, open};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

/// A process, as it names itself to peers that may see it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Process {
    /// The kernel's random id of this boot.
    pub boot: u128,
    /// The pid namespace's inode number.
    pub pid_namespace: u64,
    /// The network namespace's inode number.
    pub net_namespace: u64,
    /// Its number in the pid namespace.
    pub pid: u32,
    /// When it began, in clock ticks since the boot.
    pub started: u64,
}

/// Why there is no watch on a process.
#[derive(Debug)]
pub(crate) enum NoWatch {
    /// This process cannot say who it is itself.
    Unknown,
    /// It is this very process.
    Ourselves,
    /// It runs on another host or in another namespace.
    Elsewhere {
        /// What differs.
        what: &'static str,
    },
    /// The connection leads to another host.
    Remote(IpAddr),
    /// Its number belongs to another process, or to none.
    NotThere(String),
    /// The system has no descriptor for it.
    System(io::Error),
}

impl fmt::Display for NoWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("this process cannot say who it is"),
            Self::Ourselves => f.write_str("it is this process"),
            Self::Elsewhere { what } => write!(f, "it has another {what}"),
            Self::Remote(address) => write!(f, "{address} is no address of this host"),
            Self::NotThere(text) => f.write_str(text),
            Self::System(error) => error.fmt(f),
        }
    }
}

/// Threads of a process that are watched. All but one of those that end together say so at once.
const THREADS_MAX: usize = 3;

/// What the names begin with of those threads that every engine has and that live as long as it does. The kernel keeps 15
/// bytes of a name.
const THREAD_NAMES: [&str; 2] = ["polyrail-contro", "polyrail-work-"];

/// `PIDFD_THREAD`, which is `O_EXCL`: a descriptor of a thread, from Linux 6.9 on.
const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0o200);

/// The end of a process, as the kernel tells of it.
#[derive(Debug)]
pub(crate) struct Watch {
    pid: u32,
    /// Readable when it has ended.
    end: OwnedFd,
    /// Each readable when a thread of it has.
    threads: Vec<OwnedFd>,
}

impl Watch {
    /// The descriptors to wait for. When one is readable, [`Self::has_ended`] is to be asked.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(&self.end)
            .chain(&self.threads)
            .map(AsFd::as_fd)
    }

    /// Watches as many threads as it can in place of those that it watched; those.
    pub(crate) fn choose_threads(&mut self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.threads = watch_threads(self.pid);
        self.threads.iter().map(AsFd::as_fd)
    }

    /// Whether the process has ended, or never does anything again. Threads that have ended are watched no more.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.threads.retain(|thread| !is_readable(thread));
        is_readable(&self.end) || is_exiting(self.pid)
    }
}

fn is_readable(watch: &OwnedFd) -> bool {
    let mut watches = [PollFd::new(watch, PollFlags::IN)];
    poll(&mut watches, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Threads that are looked at. The control thread looks, and whoever says which process he is may have any number of
/// them.
const LOOKED_AT_MAX: usize = 32;

/// Some of a process's threads: an engine's, or else those that have lived longest. None on an older kernel: then only
/// the end of all of them is seen.
fn watch_threads(pid: u32) -> Vec<OwnedFd> {
    let (mut engines, mut others) = (Vec::new(), Vec::new());
    for thread in oldest_threads(pid) {
        match is_engines(pid, thread) {
            true => engines.push(thread),
            false => others.push(thread),
        }
        if engines.len() == THREADS_MAX {
            break;
        }
    }
    let watches = engines.into_iter().chain(others);
    let watches = watches.filter_map(|thread| pidfd_open(thread, THREAD).ok());
    let alive = watches.filter(|watch| !is_readable(watch));
    alive.take(THREADS_MAX).collect()
}

/// The threads that a process has had for longest, [`LOOKED_AT_MAX`] at most, but its first one: the kernel may say
/// nothing of the end of that before all others have ended. No more of them are listed, which takes the kernel time for
/// each.
fn oldest_threads(pid: u32) -> Vec<Pid> {
    /// Bytes of an entry whose name is a number.
    const ENTRY_BYTES: usize = 32;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = open(format!("/proc/{pid}/task"), flags, Mode::empty()) else {
        return Vec::new();
    };
    let mut buffer = [MaybeUninit::uninit(); LOOKED_AT_MAX * ENTRY_BYTES];
    let mut entries = RawDir::new(&folder, &mut buffer);
    let mut threads = Vec::new();
    while threads.len() < LOOKED_AT_MAX
        && let Some(Ok(entry)) = entries.next()
    {
        let number = entry.file_name().to_str().ok();
        let number = number.and_then(|number| number.parse().ok());
        let thread = number.filter(|number| *number as u32 != pid);
        threads.extend(thread.and_then(Pid::from_raw));
    }
    threads
}

/// Whether it is one of those threads that every engine has.
fn is_engines(pid: u32, thread: Pid) -> bool {
    let thread = thread.as_raw_pid();
    let name = fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm"));
    name.is_ok_and(|name| THREAD_NAMES.iter().any(|start| name.starts_with(start)))
}

impl Process {
    /// This process; `None` where the system does not tell.
    pub fn own() -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let boot = u128::from_str_radix(&boot.trim().replace('-', ""), 16).ok()?;
        let own = own_process()?;
        Some(Self {
            boot,
            pid_namespace: fs::metadata("/proc/self/ns/pid").ok()?.ino(),
            net_namespace: fs::metadata("/proc/thread-self/ns/net").ok()?.ino(),
            pid: own.pid,
            started: own.started,
        })
    }

    /// Whether a peer that is connected from or at `address` can be this process, and is not this engine's own, which
    /// is `own` as [`Self::own`] tells it.
    pub(crate) fn check(&self, own: Option<Self>, address: IpAddr) -> Result<(), NoWatch> {
        let own = own.ok_or(NoWatch::Unknown)?;
        if *self == own {
            return Err(NoWatch::Ourselves);
        }
        let same = [
            ("boot id", self.boot == own.boot),
            ("pid namespace", self.pid_namespace == own.pid_namespace),
            ("network namespace", self.net_namespace == own.net_namespace),
        ];
        if let Some((what, _)) = same.into_iter().find(|(_, same)| !same) {
            return Err(NoWatch::Elsewhere { what });
        }
        // Only addresses of this host can be bound.
        UdpSocket::bind((address, 0)).map_err(|_| NoWatch::Remote(address))?;
        Ok(())
    }

    /// A watch on the end of this process, if it was [checked](Self::check).
    pub(crate) fn watch(&self) -> Result<Watch, NoWatch> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| NoWatch::NotThere(format!("{} is no pid", self.pid)))?;
        // First the descriptor, then the look: what it stands for has the number from then on, or is dead.
        let end = pidfd_open(pid, PidfdFlags::empty()).map_err(|e| NoWatch::System(e.into()))?;
        let started = began(self.pid).map_err(NoWatch::System)?;
        if started != self.started {
            let text = format!(
                "process {} began at tick {started}, not {}",
                self.pid, self.started
            );
            return Err(NoWatch::NotThere(text));
        }
        Ok(Watch {
            pid: self.pid,
            end,
            threads: watch_threads(self.pid),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// A process that runs until it is killed, and what it would say of itself.
    pub(crate) fn sleeper() -> (Child, Process) {
        let child = Command::new("sleep")
            .arg("600")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        let started = began(pid).unwrap();
        let own = Process::own().unwrap();
        (
            child,
            Process {
                pid,
                started,
                ..own
            },
        )
    }

    /// How many threads a process of [`Threads`] is to have: an engine's after others.
    const ROLE: &str = "POLYRAIL_TEST_THREADS";

    /// Is that process, if it was started for it.
    #[test]
    fn child() {
        let Ok(role) = std::env::var(ROLE) else {
            return;
        };
        let (others, engines) = role.split_once(' ').unwrap();
        let (others, engines): (u32, u32) = (others.parse().unwrap(), engines.parse().unwrap());
        let names = (0..others).map(|number| format!("other-{number}"));
        let names = names.chain((0..engines).map(|number| format!("polyrail-work-{number}")));
        let begin = |name: String| {
            let (end, ended) = channel::<()>();
            let (begun, has_begun) = channel();
            let run = move || {
                begun.send(()).unwrap();
                // Until the other end has gone.
                let _ = ended.recv();
            };
            let thread = std::thread::Builder::new().name(name).spawn(run).unwrap();
            has_begun.recv().unwrap();
            Some((thread, end))
        };
        let mut threads: Vec<_> = names.map(begin).collect();
        println!("\nthreads");
        for line in std::io::stdin().lines() {
            let number: usize = line.unwrap().parse().unwrap();
            let (thread, end) = threads[number].take().unwrap();
            drop(end);
            thread.join().unwrap();
        }
    }

    /// A process with threads that end when they are to.
    pub(crate) struct Threads {
        child: Child,
        input: ChildStdin,
        _output: BufReader<ChildStdout>,
        pub(crate) process: Process,
    }

    impl Threads {
        /// So many threads of an engine after so many others. The first one of the program, and of the test's harness,
        /// come before.
        pub(crate) fn start(others: u32, engines: u32) -> Self {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "process::tests::child"])
                .args(["--nocapture", "--test-threads=1"])
                .env(ROLE, format!("{others} {engines}"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut output = BufReader::new(child.stdout.take().unwrap());
            let mut line = String::new();
            while line != "threads\n" {
                line.clear();
                assert_ne!(output.read_line(&mut line).unwrap(), 0, "it has ended");
            }
            let pid = child.id();
            let process = Process {
                pid,
                started: began(pid).unwrap(),
                ..Process::own().unwrap()
            };
            Self {
                input: child.stdin.take().unwrap(),
                _output: output,
                child,
                process,
            }
        }

        /// Has a thread end.
        pub(crate) fn end(&mut self, number: u32) {
            writeln!(self.input, "{number}").unwrap();
        }
    }

    impl Drop for Threads {
        fn drop(&mut self) {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }

    /// Whether this kernel has descriptors of threads: they came with Linux 6.9.
    pub(crate) fn has_threads() -> bool {
        pidfd_open(rustix::thread::gettid(), THREAD).is_ok()
    }

    /// Waits until all threads that are watched have ended.
    fn all_end(watch: &Watch) {
        for thread in &watch.threads {
            let mut watches = [PollFd::new(thread, PollFlags::IN)];
            let longest = Timespec::try_from(Duration::from_secs(20)).unwrap();
            assert_eq!(
                poll(&mut watches, Some(&longest)),
                Ok(1),
                "it has not ended"
            );
        }
    }

    #[test]
    fn other_threads_are_watched_in_place_of_those_that_ended() {
        if !has_threads() {
            return;
        }
        let mut threads = Threads::start(5, 9);
        let mut watch = threads.process.watch().unwrap();
        // An engine's threads, three at a time.
        for three in [5..8, 8..11, 11..14] {
            assert_eq!(watch.threads.len(), THREADS_MAX);
            assert!(!watch.threads.iter().any(is_readable), "{three:?} live");
            for number in three {
                threads.end(number);
            }
            all_end(&watch);
            assert!(!watch.has_ended(), "others live");
            assert_eq!(watch.threads.len(), 0);
            watch.choose_threads().for_each(drop);
        }
        assert_eq!(watch.threads.len(), THREADS_MAX, "any will do");
    }

    #[test]
    fn of_a_process_with_many_threads_few_are_looked_at_and_some_are_watched() {
        if !has_threads() {
            return;
        }
        let threads = Threads::start(100, 3);
        let pid = threads.process.pid;
        let oldest = oldest_threads(pid);
        assert_eq!(oldest.len(), LOOKED_AT_MAX);
        assert!(oldest.iter().all(|thread| !is_engines(pid, *thread)));
        assert!(
            oldest
                .iter()
                .all(|thread| thread.as_raw_pid() as u32 != pid)
        );
        let watch = threads.process.watch().unwrap();
        assert_eq!(watch.threads.len(), THREADS_MAX);
        drop(threads);
        all_end(&watch);
    }

    fn watch_at(process: Process, own: Option<Process>, address: IpAddr) -> Result<Watch, NoWatch> {
        process.check(own, address)?;
        process.watch()
    }

    /// Waits until a watch says that its process has ended.
    fn has_ended(watch: &mut Watch, within: Duration) -> bool {
        let until = Instant::now() + within;
        loop {
            if watch.has_ended() {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            // What the threads have said once is not said again.
            let left = left.min(Duration::from_millis(1));
            let fds = watch
                .descriptors()
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let mut fds: Vec<_> = fds.collect();
            poll(&mut fds, Some(&Timespec::try_from(left).unwrap())).unwrap();
        }
    }

    #[test]
    fn the_end_of_a_process_is_seen() {
        let (mut child, process) = sleeper();
        let mut watch = watch_at(process, Process::own(), HERE).unwrap();
        assert!(!has_ended(&mut watch, Duration::ZERO));
        child.kill().unwrap();
        // Before it is reaped: a parent that does not wait must not hide it.
        assert!(has_ended(&mut watch, Duration::from_secs(20)));
        child.wait().unwrap();
        let gone = watch_at(process, Process::own(), HERE).unwrap_err();
        assert!(
            matches!(gone, NoWatch::System(_) | NoWatch::NotThere(_)),
            "{gone}"
        );
    }

    #[test]
    fn claims_about_what_cannot_be_seen_are_not_believed() {
        let (mut child, process) = sleeper();
        let own = Process::own().unwrap();
        let far = IpAddr::from([192, 0, 2, 1]);
        // (name, claim, address, part of the reason)
        let cases = [
            ("this process", own, HERE, "this process"),
            (
                "other boot",
                Process {
                    boot: own.boot ^ 1,
                    ..process
                },
                HERE,
                "boot id",
            ),
            (
                "other pids",
                Process {
                    pid_namespace: 1,
                    ..process
                },
                HERE,
                "pid namespace",
            ),
            (
                "other network",
                Process {
                    net_namespace: 1,
                    ..process
                },
                HERE,
                "network namespace",
            ),
            ("other host", process, far, "192.0.2.1"),
            (
                "recycled pid",
                Process {
                    started: process.started + 1,
                    ..process
                },
                HERE,
                "began",
            ),
            ("no process", Process { pid: 0, ..process }, HERE, "no pid"),
            (
                "no number",
                Process {
                    pid: u32::MAX,
                    ..process
                },
                HERE,
                "no pid",
            ),
        ];
        for (name, claim, address, part) in cases {
            let error = watch_at(claim, Some(own), address).unwrap_err().to_string();
            assert!(error.contains(part), "{name}: {error}");
        }
        assert!(watch_at(process, None, HERE).is_err(), "who are we?");
        assert!(watch_at(process, Some(own), HERE).is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
