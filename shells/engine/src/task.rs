//! Work that may block, off the control thread: peers' calls to the program, sessions to be made anew, and a look
//! at processes that may have ended.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use polyrail_control::plane::CallAnswer;
use polyrail_core::units::PeerId;
use polyrail_transport::mishap;

use crate::calls::{Caller, Calls};
use crate::ending::call;
use crate::engine::{Engine, Inner};
use crate::lock::lock;
use crate::thread::Thread;

/// Time between tries to reach a peer again.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) enum Task {
    /// A peer's program asks ours to do something.
    Call {
        caller: Arc<Caller>,
        method: u16,
        body: Vec<u8>,
        answer: CallAnswer,
        room: Room,
    },
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

/// Bytes of calls that may wait to be carried out: whoever has a session may send one, and the program takes its time.
const CALLS_BYTES_MAX: usize = 16 << 20;

/// The room that calls take while they wait.
#[derive(Clone, Default)]
pub(crate) struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    /// Room for one more of so many bytes. `None`: there is none.
    pub(crate) fn take(&self, bytes: usize) -> Option<Room> {
        let fits = |held: usize| Some(held + bytes).filter(|sum| *sum <= CALLS_BYTES_MAX);
        let taken = self.0.fetch_update(Relaxed, Relaxed, fits);
        taken.ok().map(|_| Room {
            waiting: self.clone(),
            bytes,
        })
    }
}

/// Room that a call has. Dropping it gives it back.
pub(crate) struct Room {
    waiting: Waiting,
    bytes: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.waiting.0.fetch_sub(self.bytes, Relaxed);
    }
}

/// What runs tasks for an engine.
pub(crate) struct Tasks {
    pub(crate) queue: Sender<Task>,
    runner: Mutex<Option<Thread>>,
    /// Carries out peers' calls; without it they are refused.
    pub(crate) calls: Option<Arc<dyn Calls>>,
}

impl Tasks {
    pub(crate) fn new(queue: Sender<Task>, calls: Option<Arc<dyn Calls>>) -> Self {
        Self {
            queue,
            runner: Mutex::default(),
            calls,
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

    /// Waits for the thread, but not for as long as a program's call takes.
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
        Task::Call {
            caller,
            method,
            body,
            answer,
            room,
        } => {
            let result = carry_out(engine, &caller, method, &body);
            drop((body, room));
            answer(result);
        }
        Task::Reconnect { peer, incarnation } => reconnect(engine, peer, incarnation),
        Task::Lost { peer, incarnation } => engine.lose_peer(peer, incarnation),
        Task::Leaves(peer) => engine.see_off(peer),
        Task::Rails(peer) => engine.renew_rails(peer),
        Task::Bury => engine.bury(),
        // It has ended the loop.
        Task::Stop => {}
    }
}

/// Carries out a call. A program that panics there has failed that call, and nothing else.
fn carry_out(
    engine: &Engine,
    caller: &Caller,
    method: u16,
    body: &[u8],
) -> Result<Vec<u8>, String> {
    let Some(calls) = &engine.inner.tasks.calls else {
        let name = &engine.inner.config.name;
        return Err(format!("the program of engine \"{name}\" takes no calls"));
    };
    let Some(engine) = engine.for_program() else {
        return Err("the engine is ending".into());
    };
    let carry_out = || calls.call(&engine, caller, method, body);
    catch_unwind(AssertUnwindSafe(|| call(carry_out)))
        .unwrap_or_else(|_| Err("the program panicked while it carried the call out".into()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_wait_have_so_much_room_and_give_it_back() {
        let waiting = Waiting::default();
        let half = waiting.take(CALLS_BYTES_MAX / 2);
        let rest = waiting.take(CALLS_BYTES_MAX / 2);
        assert!(half.is_some() && rest.is_some());
        assert!(waiting.take(1).is_none() && waiting.take(0).is_some());
        drop(half);
        assert!(waiting.take(CALLS_BYTES_MAX / 2).is_some());
        assert!(waiting.take(CALLS_BYTES_MAX).is_none());
    }
}
