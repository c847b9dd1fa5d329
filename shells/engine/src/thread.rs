//! Threads of an engine, which end by themselves once they are told to.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a thread is waited for.
const JOIN_MAX: Duration = Duration::from_secs(1);

/// A thread, and what tells that it has ended.
pub(crate) struct Thread {
    handle: JoinHandle<()>,
    done: Receiver<()>,
}

impl Thread {
    pub(crate) fn start(name: String, run: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (alive, done) = sync_channel::<()>(0);
        let handle = std::thread::Builder::new().name(name).spawn(move || {
            run();
            drop(alive);
        })?;
        Ok(Self { handle, done })
    }

    /// Waits for its end, unless this is it. One that is in the program's code may stay there for as long as it likes, but
    /// does not keep the engine from ending: after [`JOIN_MAX`] it is left to itself.
    pub(crate) fn join(self) {
        if self.is_this() {
            return;
        }
        let name = self.handle.thread().name().unwrap_or("?").to_owned();
        if self.done.recv_timeout(JOIN_MAX) == Err(RecvTimeoutError::Timeout) {
            return log::warn!(
                "thread {name} is in the program's code; the engine ends without it"
            );
        }
        if self.handle.join().is_err() {
            log::error!("thread {name} has panicked");
        }
    }

    /// Whether it has ended, or is the one that asks.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_this() || self.handle.is_finished()
    }

    fn is_this(&self) -> bool {
        self.handle.thread().id() == std::thread::current().id()
    }
}
