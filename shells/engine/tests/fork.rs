//! What a forked child may do with an engine of its parent: nothing, and nobody is harmed by the attempt.
//!
//! A test binary of its own, so that no other test's sockets live on in a child for a moment.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use polyrail::{
    Access, Batch, CallError, CompletionQueue, Config, Delivery, DeliveryError, DeliveryStatus,
    Engine, Faults, Hooks, Notifications, NotifyError, Op, OpenError, RailId, ReceiveError,
    RegisterError, ReleaseError, Request, SegmentId, Status, SubmitError, WaitError,
};

const BYTES: u64 = 1 << 20;
/// Longer than anything here takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// An engine with everything that a program can hold of it, and a batch under way.
struct Held {
    _target: Engine,
    engine: Engine,
    faults: Arc<Faults>,
    address: String,
    local: SegmentId,
    remote: SegmentId,
    queue: CompletionQueue,
    notifications: Notifications,
    /// Does not end before the rail is restored.
    pending: Batch,
    awaited: Batch,
    ended: Batch,
    delivery: Delivery,
}

fn request(local: SegmentId, remote: SegmentId) -> Request {
    Request {
        op: Op::Write,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length: BYTES,
    }
}

fn completed(batch: &Batch) {
    assert_eq!(batch.wait(PATIENCE).unwrap().status, Status::Completed);
}

fn poll_once(batch: &mut Batch) -> Poll<polyrail::BatchStatus> {
    Pin::new(batch).poll(&mut Context::from_waker(Waker::noop()))
}

fn held() -> Held {
    let target = Engine::new(Config {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        ..Config::named("target")
    })
    .unwrap();
    target
        .allocate("mem", BYTES, Access::RemoteReadWrite)
        .unwrap();
    let faults = Arc::new(Faults::new());
    let hooks = Hooks {
        faults: Some(faults.clone()),
        ..Hooks::default()
    };
    let mut config = Config::named("parent").without("shm");
    // What is pending stays so, however long children take.
    config.health.fence_timeout = PATIENCE;
    let engine = Engine::with_hooks(config, hooks).unwrap();
    let local = engine.allocate("here", BYTES, Access::Local).unwrap();
    let address = format!("{}/mem", target.listening().unwrap());
    let remote = engine.open_segment(&address).unwrap();
    let write = [request(local, remote)];
    let ended = engine.submit(&write).unwrap();
    completed(&ended);
    faults.cut(RailId(0));
    let pending = engine.submit_notifying(&write, b"after the data").unwrap();
    let queue = CompletionQueue::new().unwrap();
    queue.add(&pending, 1);
    queue.add(&ended, 0);
    let mut awaited = pending.clone();
    assert!(poll_once(&mut awaited).is_pending());
    Held {
        delivery: pending.delivery().unwrap(),
        notifications: target.notifications(),
        _target: target,
        engine,
        faults,
        address,
        local,
        remote,
        queue,
        pending,
        awaited,
        ended,
    }
}

impl Held {
    /// Tries everything, as a child. The first line that is not as it should be, or 0.
    fn is_refused(&mut self) -> u32 {
        let write = [request(self.local, self.remote)];
        let Self { engine, local, .. } = &*self;
        let called = Arc::new(AtomicBool::new(false));
        let calls = called.clone();
        self.pending.on_done(move |_| calls.store(true, SeqCst));
        self.pending.cancel();
        engine.shutdown();
        let short = Duration::from_millis(1);
        let access = Access::Local;
        // (line, whether it is as it should be)
        let seen = [
            (line!(), is(engine.submit(&write), SubmitError::Forked)),
            (
                line!(),
                is(engine.submit_notifying(&write, b""), SubmitError::Forked),
            ),
            (
                line!(),
                is(engine.notify(self.remote, b""), NotifyError::Forked),
            ),
            (
                line!(),
                matches!(engine.open_segment(&self.address), Err(OpenError::Forked)),
            ),
            (
                line!(),
                matches!(
                    engine.allocate("new", BYTES, access),
                    Err(RegisterError::Forked)
                ),
            ),
            (
                line!(),
                matches!(engine.unregister(*local), Err(RegisterError::Forked)),
            ),
            (
                line!(),
                matches!(
                    engine.call(self.remote, 0, b"", PATIENCE),
                    Err(CallError::Forked)
                ),
            ),
            (line!(), engine.region(*local).is_none()),
            (line!(), engine.local_segment("here").is_none()),
            (line!(), engine.segment_bytes(self.remote).is_none()),
            (line!(), engine.rails().is_empty()),
            (
                line!(),
                self.pending.status().status == Status::Indeterminate,
            ),
            (line!(), is(self.pending.wait(PATIENCE), WaitError::Forked)),
            (line!(), is(self.ended.wait(PATIENCE), WaitError::Forked)),
            (
                line!(),
                is(self.pending.wait_released(PATIENCE), ReleaseError::Forked),
            ),
            (line!(), self.pending.report(0).is_none()),
            (line!(), poll_once(&mut self.awaited).is_ready()),
            (line!(), !called.load(SeqCst)),
            (line!(), self.queue.poll().is_none()),
            (line!(), self.queue.wait(PATIENCE).is_none()),
            (line!(), self.notifications.poll().is_none()),
            (
                line!(),
                self.notifications.wait(PATIENCE) == Err(ReceiveError::Forked),
            ),
            (
                line!(),
                self.delivery.wait(short) == Err(DeliveryError::Forked),
            ),
            (line!(), self.delivery.status() == DeliveryStatus::Unknown),
        ];
        let wrong = seen.iter().find(|(_, right)| !right);
        wrong.map_or(0, |(line, _)| *line)
    }

    /// Nothing that a child did is to be noticed.
    fn is_unharmed(&self) {
        assert_eq!(self.queue.wait(PATIENCE).unwrap().tag, 0);
        assert_eq!(self.queue.poll(), None);
        assert_eq!(self.notifications.poll(), None);
        assert_eq!(self.pending.status().status, Status::Pending);
        self.faults.restore(RailId(0));
        completed(&self.pending);
        assert_eq!(self.queue.wait(PATIENCE).unwrap().tag, 1);
        let told = self.notifications.wait(PATIENCE).unwrap();
        assert_eq!(told.bytes, b"after the data");
        assert_eq!(self.delivery.wait(PATIENCE), Ok(DeliveryStatus::Delivered));
        let write = [request(self.local, self.remote)];
        completed(&self.engine.submit(&write).unwrap());
        // The same session, or this would be another segment.
        assert_eq!(
            self.engine.open_segment(&self.address).unwrap(),
            self.remote
        );
    }
}

/// Ends what waits for it, however its test ends.
struct StopsOnDrop<'a>(&'a AtomicBool);

impl Drop for StopsOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn is<T, E: PartialEq>(result: Result<T, E>, expected: E) -> bool {
    result.err() == Some(expected)
}

/// What `child` gives, run in a forked child that then ends without a word.
fn forked(child: impl FnOnce() -> u32) -> u32 {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(made, 0);
    // SAFETY: the child runs `child` and ends; glibc keeps its allocator usable there.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let answer = child().to_ne_bytes();
        // SAFETY: writes those bytes, then ends without running anything of the parent's.
        unsafe {
            libc::write(ends[1], answer.as_ptr().cast(), answer.len());
            libc::_exit(0)
        }
    }
    assert!(pid > 0);
    reap(pid);
    let mut answer = [0; 4];
    // SAFETY: reads into `answer`; both descriptors are ours and closed once.
    let bytes = unsafe {
        libc::close(ends[1]);
        let bytes = libc::read(ends[0], answer.as_mut_ptr().cast(), answer.len());
        libc::close(ends[0]);
        bytes
    };
    assert_eq!(bytes, 4, "the child died");
    u32::from_ne_bytes(answer)
}

/// Waits for a child, and does not let it hang for ever.
fn reap(pid: i32) {
    let deadline = Instant::now() + PATIENCE;
    // SAFETY: the child is ours, and nobody else waits for it.
    while unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) } == 0 {
        if Instant::now() > deadline {
            // SAFETY: it has not been waited for, so the number is still its own.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, std::ptr::null_mut(), 0);
            }
            panic!("the child hangs");
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

#[test]
fn a_child_is_refused_everything_and_its_parent_notices_nothing() {
    let mut held = held();
    assert_eq!(forked(|| held.is_refused()), 0, "the line of the check");
    held.is_unharmed();
}

#[test]
fn a_child_that_drops_everything_ends_nothing() {
    let held = held();
    let mut inherited = Some(held);
    let start = Instant::now();
    let code = forked(|| {
        let before = Instant::now();
        inherited.take();
        u32::from(before.elapsed() > Duration::from_secs(1))
    });
    assert_eq!(code, 0, "dropping waited for something");
    assert!(start.elapsed() < PATIENCE);
    inherited.unwrap().is_unharmed();
}

#[test]
fn a_child_of_a_busy_parent_finds_no_lock_in_its_way() {
    let mut held = held();
    assert_eq!(held.queue.poll().unwrap().tag, 0);
    let (engine, pending) = (held.engine.clone(), held.pending.clone());
    let (queue, delivery) = (held.queue.clone(), held.delivery.clone());
    let notifications = held.notifications.clone();
    let stop = AtomicBool::new(false);
    let (local, remote) = (held.local, held.remote);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (engine, pending, queue) = (&engine, &pending, &queue);
            let (notifications, delivery, stop) = (&notifications, &delivery, &stop);
            scope.spawn(move || {
                // Every lock that there is, again and again.
                while !stop.load(SeqCst) {
                    match thread {
                        0 => drop((pending.status(), pending.wait(Duration::ZERO))),
                        1 => drop((engine.rails(), engine.region(local))),
                        2 => drop((queue.poll(), notifications.poll(), delivery.status())),
                        _ => drop(engine.submit(&[request(remote, remote)])),
                    }
                }
            });
        }
        let _stops = StopsOnDrop(&stop);
        let lines: Vec<_> = (0..40).map(|_| forked(|| held.is_refused())).collect();
        assert!(lines.iter().all(|line| *line == 0), "{lines:?}");
    });
    held.queue.add(&held.ended, 0);
    held.is_unharmed();
}

#[test]
fn a_child_can_have_an_engine_of_its_own() {
    /// Moves something with it; the line of what went wrong, or 0.
    fn own(held: &Held) -> Result<(), u32> {
        let engine = Engine::new(Config::named("child")).map_err(|_| line!())?;
        let local = engine.allocate("here", BYTES, Access::Local);
        let local = local.map_err(|_| line!())?;
        let remote = engine.open_segment(&held.address).map_err(|_| line!())?;
        let batch = engine.submit(&[request(local, remote)]);
        let batch = batch.map_err(|_| line!())?;
        let queue = CompletionQueue::new().map_err(|_| line!())?;
        queue.add(&batch, 5);
        let completion = queue.wait(PATIENCE).ok_or(line!())?;
        let good = (completion.tag, completion.status.status) == (5, Status::Completed);
        // With its own engine and queue it learns nothing of its parent's either.
        queue.add(&held.pending, 6);
        queue.add(&held.ended, 7);
        let nothing = queue.poll().is_none();
        let refused = is(held.engine.submit(&[]), SubmitError::Forked);
        (good && nothing && refused).then_some(()).ok_or(line!())
    }
    let held = held();
    let code = forked(|| own(&held).err().unwrap_or(0));
    assert_eq!(code, 0, "the line of the check");
    held.is_unharmed();
}

#[test]
fn descriptors_do_not_outlive_exec() {
    let held = held();
    let mut seen = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        // Other threads of this process open and close some meanwhile.
        let Ok(what) = std::fs::read_link(&path) else {
            continue;
        };
        let what = what.to_string_lossy().into_owned();
        let fd: i32 = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
        if fd > 2 && (what.starts_with("socket:") || what.starts_with("anon_inode:[event")) {
            // SAFETY: asks for flags only.
            let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
            assert!(flags < 0 || flags & libc::FD_CLOEXEC != 0, "{fd}: {what}");
            seen += 1;
        }
    }
    assert!(
        seen >= 10,
        "only {seen} descriptors: where are the engines'?"
    );
    held.is_unharmed();
}
