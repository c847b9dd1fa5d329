//! Completions of many batches in one place, for programs with an event loop.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use polyrail_core::batch::BatchReport;

use crate::batch::Batch;
use crate::fork::Owned;
use crate::queue::EventQueue;

/// Ended batches, in the order in which they ended. Clones are handles of the same queue.
///
/// Its descriptor ([`AsFd`]) is readable exactly while a completion waits to be taken, so it can be put in a
/// program's own epoll or poll, edge- or level-triggered: take with [`Self::poll`] until there is none. Only
/// look whether it is readable; reading or writing it breaks that promise.
///
/// A batch that was [added](Self::add) gives one completion. One queue can serve several engines.
///
/// ```
/// # use std::time::Duration;
/// # use polyrail::{Access, CompletionQueue, Config, Engine, Op, Request, Status};
/// # let target = Engine::new(Config { listen: Some("127.0.0.1:0".parse()?), ..Config::named("target") })?;
/// # target.allocate("mem", 1 << 20, Access::RemoteReadWrite)?;
/// # let engine = Engine::new(Config::named("initiator"))?;
/// # let local = engine.allocate("here", 1 << 20, Access::Local)?;
/// # let remote = engine.open_segment(&format!("{}/mem", target.listening().unwrap()))?;
/// # let request = Request { op: Op::Write, local, local_offset: 0, remote, remote_offset: 0, length: 65_536 };
/// let queue = CompletionQueue::new()?;
/// for tag in 0..10 {
///     queue.add(&engine.submit(&[request])?, tag);
/// }
/// let mut tags: Vec<u64> = (0..10)
///     .map(|_| {
///         let completion = queue.wait(Duration::from_secs(5)).expect("in time");
///         assert_eq!(completion.status.status, Status::Completed);
///         completion.tag
///     })
///     .collect();
/// tags.sort();
/// assert!(tags.into_iter().eq(0..10));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CompletionQueue {
    queue: Owned<EventQueue<Completion>>,
}

/// A batch has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// What the program called the batch when it added it.
    pub tag: u64,
    /// How it ended.
    pub status: BatchReport,
}

/// Where the completion of one batch goes.
pub(crate) struct Tray {
    queue: Owned<EventQueue<Completion>>,
    tag: u64,
}

impl Tray {
    pub(crate) fn fill(self, status: BatchReport) {
        let Self { queue, tag } = self;
        queue.push(Completion { tag, status });
    }
}

impl CompletionQueue {
    /// An empty queue. Takes one descriptor.
    ///
    /// Example: [guide](crate::guide#ends-of-batches).
    pub fn new() -> io::Result<Self> {
        let queue = Owned::new(Arc::new(EventQueue::new()?));
        Ok(Self { queue })
    }

    /// From when the batch has ended, which may be now, a completion with this tag waits here. The batch's
    /// handles can be dropped. Adding a batch twice gives two completions.
    ///
    /// Example: [guide](crate::guide#ends-of-batches).
    pub fn add(&self, batch: &Batch, tag: u64) {
        batch.fill(Tray {
            queue: self.queue.clone(),
            tag,
        });
    }

    /// Takes a completion if one waits. In a forked child: never.
    ///
    /// Example: [guide](crate::guide#ends-of-batches).
    pub fn poll(&self) -> Option<Completion> {
        self.queue.is_ours().then(|| self.queue.pop()).flatten()
    }

    /// Takes a completion; blocks until there is one. `None`: there was none in time. In a forked child:
    /// `None` at once.
    ///
    /// Example: [guide](crate::guide#ends-of-batches).
    pub fn wait(&self, timeout: Duration) -> Option<Completion> {
        if !self.queue.is_ours() {
            return None;
        }
        self.queue.pop_timeout(timeout).ok()
    }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

impl AsRawFd for CompletionQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionQueue(fd {})", self.as_raw_fd())
    }
}
