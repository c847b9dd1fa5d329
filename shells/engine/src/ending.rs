//! How an engine ends.

use std::sync::atomic::{AtomicBool, Ordering::*};
use std::thread::JoinHandle;

use crate::engine::{Engine, Inner};
use crate::lock::lock;
use crate::post::Command;

/// Whether it has begun.
#[derive(Default)]
pub(crate) struct Ending {
    begun: AtomicBool,
}

impl Engine {
    /// Ends everything within a bound: what has not ended is reported `ShutDown`, or `Indeterminate` where it
    /// cannot be ended for sure. Later submissions are refused. Again: does nothing.
    pub fn shutdown(&self) {
        if self.inner.is_ours() {
            self.inner.shut_down();
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.inner.ending.begun.load(Acquire)
    }
}

impl Inner {
    fn shut_down(&self) {
        if self.ending.begun.swap(true, AcqRel) {
            return;
        }
        // First: what it stages is carried out by workers.
        if let Some(stager) = self.staging.cell.get() {
            stager.stop();
        }
        let workers = std::mem::take(&mut *lock(&self.crew.workers));
        for worker in &workers {
            worker.post.close_room();
            worker.post.send(Command::ShutDown);
        }
        for thread in workers.into_iter().filter_map(|worker| worker.thread) {
            join(thread);
        }
        if let Ok(gpus) = &self.hardware.gpus {
            gpus.unpin_all();
        }
        self.fabric.end_recording();
        if let Some(neighbours) = self.fabric.neighbours() {
            neighbours.leave();
        }
        self.sessions.plane.shutdown();
        self.mail.desk.inbox.close();
        self.errands.stop();
    }
}

/// Waits for a thread, unless it is this one: the last handle of an engine may be dropped by a call.
fn join(thread: JoinHandle<()>) {
    if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
        log::error!("a thread of the engine has panicked");
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shut_down();
    }
}
