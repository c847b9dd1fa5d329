//! Work of the engine's own that may block, off the control thread: sessions to be made anew, rails that are others now,
//! and a look at processes that may have ended.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Mutex, Weak};
use std::time::Duration;

use polyrail_core::units::PeerId;
use polyrail_transport::mishap;

use crate::engine::{Engine, Inner};
use crate::lock::lock;
use crate::thread::Thread;

/// Time between tries to reach a peer again.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) enum Task {
    /// A peer has forgotten our session: make a new one.
    Reconnect { peer: PeerId, incarnation: u64 },
    /// A peer's process has ended, or another one answers where it was.
    Lost { peer: PeerId, incarnation: u64 },
    /// A peer is about to end.
    Leaves(PeerId),
    /// A peer, or this host, has other rails than before.
    Rails(PeerId),
    /// Free what processes that have ended left in the host's load record.
    Bury,
    /// The engine is ending.
    Stop,
}

/// What runs tasks for an engine.
pub(crate) struct Tasks {
    pub(crate) queue: Sender<Task>,
    runner: Mutex<Option<Thread>>,
}

impl Tasks {
    pub(crate) fn new(queue: Sender<Task>) -> Self {
        Self {
            queue,
            runner: Mutex::default(),
        }
    }

    /// Starts the thread that takes them from the queue.
    pub(crate) fn start(&self, queue: Receiver<Task>, engine: Weak<Inner>) -> io::Result<()> {
        *lock(&self.runner) = Some(Thread::start("polyrail-task".into(), move || {
            run(&queue, &engine);
        })?);
        Ok(())
    }

    /// Runs no more after the one that runs.
    pub(crate) fn stop(&self) {
        let _ = self.queue.send(Task::Stop);
    }

    /// Waits for the thread.
    pub(crate) fn join(&self) {
        let mut runner = lock(&self.runner);
        if let Some(runner) = runner.take() {
            runner.join();
        }
    }
}

/// Runs tasks until the engine ends. One that panics takes no other one with it.
fn run(tasks: &Receiver<Task>, engine: &Weak<Inner>) {
    while let Ok(task) = tasks.recv() {
        if matches!(task, Task::Stop) {
            return;
        }
        let Some(engine) = engine.upgrade().map(Engine::from_inner) else {
            return;
        };
        // Those that come after it do not depend on it.
        if catch_unwind(AssertUnwindSafe(|| run_one(&engine, task))).is_err() {
            log::error!(
                "a task of engine \"{}\" has panicked",
                engine.inner.config.name
            );
        }
    }
}

fn run_one(engine: &Engine, task: Task) {
    mishap::check();
    match task {
        Task::Reconnect { peer, incarnation } => reconnect(engine, peer, incarnation),
        Task::Lost { peer, incarnation } => engine.lose_peer(peer, incarnation),
        Task::Leaves(peer) => engine.see_off(peer),
        Task::Rails(peer) => engine.renew_rails(peer),
        Task::Bury => engine.bury(),
        // It has ended the loop.
        Task::Stop => {}
    }
}

/// Tries to reach a peer again until it answers, without holding up other tasks, or the engine's end.
fn reconnect(engine: &Engine, peer: PeerId, incarnation: u64) {
    let weak = engine.downgrade();
    let spawned = std::thread::Builder::new()
        .name("polyrail-dial".into())
        .spawn(move || {
            while let Some(engine) = weak.upgrade().map(Engine::from_inner) {
                if engine.is_closing() || engine.reconnect(peer, incarnation).is_ok() {
                    return;
                }
                drop(engine);
                std::thread::sleep(RECONNECT_INTERVAL);
            }
        });
    if let Err(error) = spawned {
        log::error!(
            "cannot start a thread to reach peer {} again: {error}",
            peer.0
        );
    }
}
