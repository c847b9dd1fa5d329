//! A target that dies, and whose number another process takes: at every step of a write to its memory.
//!
//! The stranger is a fork of the target, so that it has all that was not kept from forks, at the same addresses: whoever only
//! knew the number would reach it, which the test shows first.

use std::cell::Cell;
use std::rc::Rc;

use super::*;
use crate::copy_threads::Task;
use crate::process::Process;
use crate::stop::{self, Point};

/// As much goes by the descriptor of the target's memory, and as much by its mark.
const SHORT: u32 = 4096;
const BYTES: u32 = 1 << 20;
/// What the stranger keeps in its memory.
const ITS_OWN: u8 = 0x55;

/// Runs a test in a process of its own: forks keep copies of all sockets, and other tests wait for the ends of theirs.
fn alone(name: &str, test: impl FnOnce()) {
    const ALONE: &str = "POLYRAIL_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return test();
    }
    let path = format!("{}::{name}", module_path!().split_once("::").unwrap().1);
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let command = command.args(["--exact", &path, "--nocapture"]);
    let output = command.env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && said.contains("1 passed");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(passed, "{said}{error}");
}

/// A fork of the test. It ends with this.
struct Fork(libc::pid_t);

impl Fork {
    /// Runs that in a child, which has the number `pid` if the kernel lets this process say so.
    fn start(pid: Option<libc::pid_t>, run: impl FnOnce()) -> io::Result<Self> {
        // SAFETY: the child calls `run` and waits for its end; it never returns to the test.
        let child = unsafe {
            match pid {
                None => libc::fork(),
                Some(pid) => fork_as(pid),
            }
        };
        match child {
            0 => {
                run();
                loop {
                    // SAFETY: it waits for a signal.
                    unsafe { libc::pause() };
                }
            }
            1.. => Ok(Self(child)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Fork {
    /// Its number is free afterwards.
    fn drop(&mut self) {
        // SAFETY: it is a child that nobody else waits for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// `fork`, to this number.
unsafe fn fork_as(pid: libc::pid_t) -> libc::pid_t {
    let numbers = [pid];
    // SAFETY: all zeros are a value of it.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.exit_signal = libc::SIGCHLD as u64;
    arguments.set_tid = numbers.as_ptr().addr() as u64;
    arguments.set_tid_size = 1;
    let bytes = size_of_val(&arguments);
    // SAFETY: without shared memory it is a fork; the arguments are as long as said.
    unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, bytes) as libc::pid_t }
}

/// Takes the number of a process that has ended. Where nobody may choose numbers, processes are made until it comes round.
fn take_number(pid: libc::pid_t, run: impl Fn()) -> Fork {
    match Fork::start(Some(pid), &run) {
        Ok(fork) => return fork,
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}"),
    }
    loop {
        let fork = Fork::start(None, &run).unwrap();
        if fork.0 == pid {
            return fork;
        }
    }
}

/// A target in a process of its own, with a region at an address that this one has as well.
struct Peer {
    fork: Fork,
    name: Vec<u8>,
    there: Arc<Region>,
    /// What they tell each other: see [`DIE`] and the others.
    flag: Arc<Region>,
}

/// The target has died, and the stranger is to take its number; it has; it is to end.
const DIE: u8 = 1;
const TAKEN: u8 = 2;
const END: u8 = 3;

impl Peer {
    fn start() -> Self {
        let there = region(BYTES.into(), Access::RemoteReadWrite, false);
        let flag = region(1, Access::RemoteReadWrite, true);
        let mut number = [0; 8];
        getrandom::fill(&mut number).unwrap();
        let name = format!("polyrail-fork-{:x}", u64::from_ne_bytes(number)).into_bytes();
        let fork = Fork::start(None, || {
            let cookie = OwnCookie::new().unwrap();
            wait_to_be_a_stranger(&flag, &there);
            serve_one(&name, &cookie, &there);
            std::mem::forget(cookie);
        });
        let fork = fork.unwrap();
        Self {
            fork,
            name,
            there,
            flag,
        }
    }

    /// An initiator that has written to it.
    fn initiator(&self) -> Initiator {
        let mut initiator = Initiator::new(self.name.clone(), far(&self.there), SESSION);
        let until = StdInstant::now() + PATIENCE;
        while !matches!(initiator.open(ONE), LaneFact::Opened { .. }) {
            assert!(StdInstant::now() < until, "it does not listen");
            thread::yield_now();
        }
        put(&initiator.local, &[7; BYTES as usize]);
        assert_eq!(initiator.outcomes(&[write(BYTES)]), [Outcome::Success]);
        assert_eq!(read_of(self.fork.0, &self.there), [7; BYTES as usize]);
        initiator
    }
}

/// Forks who takes the number of this process when that has died.
fn wait_to_be_a_stranger(flag: &Region, there: &Region) {
    // SAFETY: it only answers.
    let pid = unsafe { libc::getpid() };
    let waiting = Fork::start(None, || {
        wait_for(flag, DIE);
        let stranger = take_number(pid, || {
            put(there, &[ITS_OWN; BYTES as usize]);
            put(flag, &[TAKEN]);
        });
        wait_for(flag, END);
        drop(stranger);
        // SAFETY: nothing of it is needed any more.
        unsafe { libc::_exit(0) };
    });
    std::mem::forget(waiting);
}

/// The target's part for one initiator and one segment.
fn serve_one(name: &[u8], cookie: &OwnCookie, there: &Region) {
    let listener = packets::listen_at(name).unwrap();
    let socket = loop {
        match packets::accept(&listener) {
            Ok(socket) => break socket,
            Err(_) => thread::yield_now(),
        }
    };
    let (_, file) = Fake::receive(&socket);
    let mailbox = Mailbox::of_peer(&file.unwrap()).unwrap();
    let (cookie, no_pull) = (cookie.cookie(), None);
    packets::send(&socket, &Answer::Ready { cookie, no_pull }, None).unwrap();
    let (Request::Map { grant, .. }, _) = Fake::receive(&socket) else {
        return;
    };
    mailbox.open_grant(grant);
    let answer = Answer::Private {
        grant,
        bytes: there.bytes(),
        writable: true,
        address: there.base().as_ptr().addr() as u64,
    };
    packets::send(&socket, &answer, None).unwrap();
    // It keeps the lane until its end.
    std::mem::forget((listener, socket, mailbox));
}

/// What the process has, whichever it is, that has a number now: where `there` is.
fn read_of(pid: libc::pid_t, there: &Region) -> Vec<u8> {
    let mut bytes = vec![0; there.bytes() as usize];
    let range = |base: *mut u8| libc::iovec {
        iov_base: base.cast(),
        iov_len: there.bytes() as usize,
    };
    let (to, from) = (range(bytes.as_mut_ptr()), range(there.base().as_ptr()));
    // SAFETY: as many bytes are there.
    let read = unsafe { libc::process_vm_readv(pid, &to, 1, &from, 1, 0) };
    assert_eq!(read, bytes.len() as isize);
    bytes
}

/// Lets a target die and a stranger take its number.
fn replace(peer: Fork, flag: &Region, there: &Region) {
    let pid = peer.0;
    drop(peer);
    put(flag, &[DIE]);
    wait_for(flag, TAKEN);
    // The number leads to it, at the same address.
    assert_eq!(read_of(pid, there), [ITS_OWN; BYTES as usize]);
}

#[test]
fn no_write_hits_a_stranger_that_has_taken_the_targets_number_at_any_step() {
    alone(
        "no_write_hits_a_stranger_that_has_taken_the_targets_number_at_any_step",
        || {
            for length in [SHORT, BYTES] {
                for point in [Point::Outside, Point::Inside, Point::Written, Point::Left] {
                    write_while_replaced(length, point, false);
                    write_while_replaced(length, point, true);
                }
            }
        },
    );
}

fn write_while_replaced(length: u32, point: Point, at_once: bool) {
    let name = format!("{length} {point:?}, at once: {at_once}");
    let peer = Peer::start();
    let mut initiator = peer.initiator();
    put(&initiator.local, &[8; BYTES as usize]);
    let (pid, flag, there) = (peer.fork.0, peer.flag.clone(), peer.there.clone());
    let mut dies = Some(peer.fork);
    let was_there = Rc::new(Cell::new(false));
    let hook = {
        let (flag, there, was_there) = (flag.clone(), there.clone(), was_there.clone());
        move |at| {
            if at == point
                && let Some(dies) = dies.take()
            {
                replace(dies, &flag, &there);
                was_there.set(true);
            }
        }
    };
    stop::on(hook);
    let carried = at_once && initiator.carries(ONE, write(length));
    if !carried {
        initiator.post(ONE, &[write(length)]);
        assert_eq!(
            initiator.fact(ONE),
            LaneFact::Broken(Cause::Reset),
            "{name}"
        );
    }
    assert!(was_there.get(), "{name}");
    assert_eq!(read_of(pid, &there), [ITS_OWN; BYTES as usize], "{name}");
    // What had been written to who lived counts, and nothing else.
    let done = carried || !initiator.seen.completions.is_empty();
    let lived = matches!(point, Point::Written | Point::Left);
    assert!(lived || !done, "{name}");
    // The lane ends, and whatever is posted on it.
    assert_eq!(initiator.fence(ONE), FENCED, "{name}");
    assert_eq!(read_of(pid, &there), [ITS_OWN; BYTES as usize], "{name}");
    stop::on(|_| {});
    put(&flag, &[END]);
}

#[test]
fn nothing_is_read_of_a_stranger_that_has_taken_the_targets_number() {
    alone(
        "nothing_is_read_of_a_stranger_that_has_taken_the_targets_number",
        || {
            for length in [SHORT, BYTES] {
                let peer = Peer::start();
                let mut initiator = peer.initiator();
                let read = work(Op::Read, 0, 0, length);
                assert!(initiator.carries(ONE, read), "{length}");
                replace(peer.fork, &peer.flag, &peer.there);
                // It may not have been looked for since.
                assert!(!initiator.carries(ONE, read), "{length}");
                initiator.post(ONE, &[read]);
                assert_eq!(initiator.fact(ONE), LaneFact::Broken(Cause::Reset));
                assert!(initiator.seen.completions.is_empty(), "{length}");
                put(&peer.flag, &[END]);
            }
        },
    );
}

#[test]
fn a_stranger_is_not_taken_for_the_target_when_its_memory_is_opened() {
    alone(
        "a_stranger_is_not_taken_for_the_target_when_its_memory_is_opened",
        open_late,
    );
}

fn open_late() {
    let peer = Peer::start();
    let cookie = OwnCookie::new().unwrap();
    let name = LaneName { lane: 0, epoch: 1 };
    let (_mailbox, file) = Mailbox::new().unwrap();
    let until = StdInstant::now() + PATIENCE;
    let mut asking = loop {
        let lane = Some((name, &file));
        if let Ok(asking) = Asking::greet(&peer.name, SESSION, None, &cookie, lane) {
            break asking;
        }
        assert!(StdInstant::now() < until, "it does not listen");
    };
    let theirs = loop {
        if let Some((theirs, _)) = asking.hear(&cookie).unwrap() {
            break theirs;
        }
        assert!(StdInstant::now() < until, "no answer");
    };
    let process = Process::of(&asking.socket, theirs).unwrap();
    let opens = |process: &Process| crate::process::OpenMemory::of(process).is_ok();
    assert!(process.is_marked() && process.is_pushed_to() && opens(&process));
    assert!(!process.has_ended());
    let from = peer.there.base().as_ptr().addr() as u64;
    let mut bytes = [0; 16];
    let mut reads = || {
        let pull = process.pull(from, bytes.as_mut_ptr());
        // SAFETY: as many bytes are there.
        unsafe { pull.piece(0..16) }.is_ok()
    };
    assert!(reads());
    replace(peer.fork, &peer.flag, &peer.there);
    assert!(process.has_ended());
    // By itself each of these tells, whoever looks or not.
    assert!(!reads() && !process.is_pushed_to() && !opens(&process));
    assert!(Process::of(&asking.socket, theirs).is_err());
    put(&peer.flag, &[END]);
}

/// Waits for a byte that forks share.
fn wait_for(flag: &Region, value: u8) {
    let until = StdInstant::now() + PATIENCE;
    while bytes(flag)[0] != value {
        assert!(StdInstant::now() < until, "not {value}");
        thread::yield_now();
    }
}

#[test]
fn a_peer_that_has_died_inside_has_left_whoever_keeps_its_socket() {
    alone(
        "a_peer_that_has_died_inside_has_left_whoever_keeps_its_socket",
        die_inside,
    );
}

fn die_inside() {
    let target = Target::start();
    let there = target.register(BYTES.into(), Access::RemoteReadWrite, false);
    let flag = region(1, Access::RemoteReadWrite, true);
    let peer = Fork::start(None, || {
        let (socket, mailbox) = raw(&target);
        let (answer, _) = hostile::map(&socket, there.key(), 3);
        assert!(matches!(answer, Answer::Private { .. }) && mailbox.enter(3));
        // It keeps the socket until it is told to end.
        let keeper = Fork::start(None, || {
            put(&flag, &[1]);
            wait_for(&flag, 2);
            // SAFETY: nothing of it is needed any more.
            unsafe { libc::_exit(0) };
        });
        std::mem::forget((socket, mailbox, keeper));
    });
    let peer = peer.unwrap();
    wait_for(&flag, 1);
    there.revoke();
    assert!(there.is_lent(), "it may go on at any time");
    drop(peer);
    assert!(!there.is_lent(), "it has ended");
    put(&flag, &[2]);
}
