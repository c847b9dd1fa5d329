//! What whoever stages has taken in: it begins, ends and is told of by itself, whatever becomes of the rest.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use polyrail::{
    Access, Batch, CompletionQueue, Config, Engine, Faults, FileTerms, Op, RailId, Request,
    SegmentId, Status, Terms,
};

use crate::fixture::*;
use crate::silence::Link;

/// Requests that a worker holds, and whoever stages.
const REQUESTS: usize = 16_384;
/// More than are staged at the same time.
const MANY: usize = 2_500;
const BYTES: u64 = 4096;

/// An initiator with a file and memory, and whoever it reaches.
struct Near {
    _folder: tempfile::TempDir,
    engine: Engine,
    faults: Arc<Faults>,
    file: SegmentId,
    memory: SegmentId,
}

impl Near {
    fn new() -> Self {
        Self::with(Self::config())
    }

    fn config() -> Config {
        Config {
            workers: 1,
            ..Config::named("initiator").without("shm")
        }
    }

    fn with(config: Config) -> Self {
        let faults = Arc::new(Faults::new());
        let engine = initiator_with(config, &faults, None);
        let (folder, file) = file();
        let file = engine.register_file(file, &FileTerms::default()).unwrap();
        let memory = engine.allocate("here", BYTES, Access::Local).unwrap();
        Self {
            _folder: folder,
            engine,
            faults,
            file,
            memory,
        }
    }

    fn request(&self, op: Op, local: SegmentId, remote: SegmentId) -> Request {
        Request {
            op,
            local,
            local_offset: 0,
            remote,
            remote_offset: 0,
            length: BYTES,
        }
    }

    /// Changes every rail that there is by now.
    fn each_rail(&self, change: impl Fn(&Faults, RailId)) {
        let rails = self.engine.rails();
        let tcp = (0..)
            .zip(&rails)
            .filter(|(_, rail)| rail.name.starts_with("tcp:"));
        for (number, _) in tcp {
            change(&self.faults, RailId(number));
        }
    }
}

/// A file with something in it.
fn file() -> (tempfile::TempDir, File) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false);
    let file = file.open(path).unwrap();
    file.write_all_at(&pattern(1, BYTES), 0).unwrap();
    (folder, file)
}

/// An engine that is reached over a link, a file that it offers as `file`, and the name of that.
fn behind_a_link() -> (Engine, Link, tempfile::TempDir, String) {
    let target = Engine::new(Config {
        // A wildcard is no address that a peer could use, so it keeps to the link.
        listen: Some("0.0.0.0:0".parse().unwrap()),
        insecure: true,
        workers: 1,
        ..Config::named("behind a link")
    });
    let target = target.unwrap();
    let (folder, file) = file();
    let there = target.register_file(file, &FileTerms::default()).unwrap();
    target
        .offer_file(there, "file", Access::RemoteReadWrite)
        .unwrap();
    let port = target.listening().unwrap().port();
    let link = Link::to(([127, 0, 0, 1], port).into());
    let name = format!("{}/file", link.address());
    (target, link, folder, name)
}

/// One that is reached as usual, with memory that it offers as `mem`.
fn beside(name: &str) -> Engine {
    let target = Engine::new(Config {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        workers: 1,
        ..Config::named(name)
    });
    let target = target.unwrap();
    target
        .allocate("mem", BYTES, Access::RemoteReadWrite)
        .unwrap();
    target
}

struct Nothing;

impl Wake for Nothing {
    fn wake(self: Arc<Self>) {}
}

/// Tells the channel when it is woken.
struct Tells(std::sync::mpsc::Sender<()>);

impl Wake for Tells {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

fn poll_with(batch: &mut Batch, waker: &Waker) -> Poll<polyrail::BatchStatus> {
    std::pin::Pin::new(batch).poll(&mut Context::from_waker(waker))
}

#[test]
fn who_does_not_look_is_told_of_a_batch_that_met_a_full_worker() {
    // What is not staged waited for room that nobody told of: until somebody waited for a staged batch, or submitted one.
    let near = Near::new();
    let slow = beside("slow");
    let far = near.engine.open_segment(&address(&slow, "mem")).unwrap();
    let direct = near.request(Op::Write, near.memory, far);
    completed(&near.engine.submit(&[direct]).unwrap());
    near.each_rail(|faults, rail| faults.cut(rail));
    let filler = near.engine.submit(&vec![direct; REQUESTS]).unwrap();

    let quick = beside("quick");
    let beyond = near.engine.open_segment(&address(&quick, "mem")).unwrap();
    let mixed = [near.request(Op::Write, near.file, beyond), direct];
    let mut batches: Vec<_> = (0..3)
        .map(|_| near.engine.submit(&mixed).unwrap())
        .collect();
    let (tell, called) = channel();
    batches[0].on_done(move |status| {
        let _ = tell.send(status);
    });
    let queue = CompletionQueue::new().unwrap();
    queue.add(&batches[1], 7);
    let (tell, woken) = channel();
    let waker = Waker::from(Arc::new(Tells(tell)));
    assert!(poll_with(&mut batches[2], &waker).is_pending());
    until("what is staged has ended", || {
        batches[0].report(0).unwrap().status == Status::Completed
    });
    near.each_rail(|faults, rail| faults.restore(rail));

    let status = called.recv_timeout(PATIENCE).unwrap();
    assert_eq!((status.status, status.ended), (Status::Completed, 2));
    assert_eq!(queue.wait(PATIENCE).unwrap().tag, 7);
    woken.recv_timeout(PATIENCE).unwrap();
    let waker = Waker::from(Arc::new(Nothing));
    assert!(poll_with(&mut batches[2], &waker).is_ready());
    completed(&filler);
}

#[test]
fn more_than_are_staged_at_the_same_time_end_by_themselves() {
    // All that had been begun ended at once; the rest waited for somebody to come by.
    let (_target, link, _folder, name) = behind_a_link();
    let near = Near::new();
    let far = near.engine.open_segment(&name).unwrap();
    let read = near.request(Op::Read, near.memory, far);
    completed(&near.engine.submit(&[read]).unwrap());
    // It is asked for slots and does not answer, so that no hop begins.
    link.cut();
    let terms = Terms {
        deadline: Some(Duration::from_millis(300)),
        ..Terms::default()
    };
    let batch = near.engine.submit_with(&vec![read; MANY], &terms).unwrap();
    let (tell, called) = channel();
    batch.on_done(move |status| {
        let _ = tell.send(status);
    });
    let status = called.recv_timeout(PATIENCE).unwrap();
    assert_eq!((status.ended, status.failed), (MANY as u32, MANY as u32));
    for index in 0..MANY {
        let report = batch.report(index).unwrap();
        assert_eq!(report.status, Status::DeadlineExceeded, "{index}");
    }
}

#[test]
fn what_is_cancelled_does_not_begin() {
    // Those that waited for others to end were begun after that, and carried out.
    let near = Near::new();
    let target = beside("target");
    let far = near.engine.open_segment(&address(&target, "mem")).unwrap();
    let direct = near.request(Op::Write, near.memory, far);
    completed(&near.engine.submit(&[direct]).unwrap());
    near.each_rail(|faults, rail| faults.cut(rail));
    let write = near.request(Op::Write, near.file, far);
    let batch = near.engine.submit(&vec![write; MANY]).unwrap();
    batch.cancel();
    until("some have ended", || batch.status().ended > 0);
    near.each_rail(|faults, rail| faults.restore(rail));
    assert_eq!(ended(&batch).requests, MANY as u32);
    for index in 0..MANY {
        let status = batch.report(index).unwrap().status;
        assert_eq!(status, Status::Cancelled, "{index}");
    }
    // It is as good as before.
    completed(&near.engine.submit(&vec![write; 100]).unwrap());
}

#[test]
fn who_does_not_answer_holds_up_nobody_else() {
    // As many requests as are staged at the same time waited for one peer, and those to others stood behind them.
    let (_target, link, _folder, name) = behind_a_link();
    let mut config = Near::config();
    // Longer than this test.
    config.health.fence_timeout = 4 * PATIENCE;
    let near = Near::with(config);
    let silent = near.engine.open_segment(&name).unwrap();
    let good = beside("good");
    let far = near.engine.open_segment(&address(&good, "mem")).unwrap();
    let read = near.request(Op::Read, near.memory, silent);
    completed(&near.engine.submit(&[read]).unwrap());
    link.cut();
    let waits = near.engine.submit(&vec![read; MANY]).unwrap();
    for _ in 0..10 {
        let write = near.request(Op::Write, near.file, far);
        completed(&near.engine.submit(&[write, write]).unwrap());
    }
    assert_eq!(waits.status().status, Status::Pending);
    waits.cancel();
    let status = ended(&waits);
    assert_eq!(
        (status.ended, status.status),
        (MANY as u32, Status::Cancelled)
    );
}
