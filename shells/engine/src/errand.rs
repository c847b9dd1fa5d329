//! Work that may block, off the control thread: peers' calls to the program, sessions to be made anew, and a look
//! at processes that may have ended.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use polyrail_control::plane::CallAnswer;
use polyrail_core::units::PeerId;
use polyrail_transport::mishap;

use crate::calls::Calls;
use crate::ending::call;
use crate::engine::{Engine, Inner};
use crate::lock::lock;
use crate::thread::Thread;

/// Time between tries to reach a peer again.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) enum Errand {
    /// A peer's program asks ours to do something.
    Call {
        method: u16,
        body: Vec<u8>,
        answer: CallAnswer,
    },
    /// A peer has forgotten our session: make a new one.
    Reconnect { peer: PeerId, incarnation: u64 },
    /// A peer's process has ended, or another one answers where it was.
    Lost { peer: PeerId, incarnation: u64 },
    /// Free what processes that have ended left in the host's load record.
    Bury,
    /// The engine is ending.
    Stop,
}

/// What runs errands for an engine.
pub(crate) struct Errands {
    pub(crate) queue: Sender<Errand>,
    runner: Mutex<Option<Thread>>,
    /// Carries out peers' calls; without it they are refused.
    pub(crate) calls: Option<Arc<dyn Calls>>,
}

impl Errands {
    pub(crate) fn new(queue: Sender<Errand>, calls: Option<Arc<dyn Calls>>) -> Self {
        Self {
            queue,
            runner: Mutex::default(),
            calls,
        }
    }

    /// Starts the thread that takes them from the queue.
    pub(crate) fn start(&self, queue: Receiver<Errand>, engine: Weak<Inner>) -> io::Result<()> {
        *lock(&self.runner) = Some(Thread::start("polyrail-errand".into(), move || {
            run(&queue, &engine);
        })?);
        Ok(())
    }

    /// Runs no more after the one that runs.
    pub(crate) fn stop(&self) {
        let _ = self.queue.send(Errand::Stop);
    }

    /// Waits for the thread, but not for as long as a program's call takes.
    pub(crate) fn join(&self) {
        let mut runner = lock(&self.runner);
        if let Some(runner) = runner.take() {
            runner.join();
        }
    }
}

/// Runs errands until the engine ends. One that panics takes no other one with it.
fn run(errands: &Receiver<Errand>, engine: &Weak<Inner>) {
    while let Ok(errand) = errands.recv() {
        if matches!(errand, Errand::Stop) {
            return;
        }
        let Some(engine) = engine.upgrade().map(Engine::from_inner) else {
            return;
        };
        if catch_unwind(AssertUnwindSafe(|| do_one(&engine, errand))).is_err() {
            log::error!("an errand of the engine has panicked: it is not carried out");
        }
    }
}

fn do_one(engine: &Engine, errand: Errand) {
    mishap::check();
    match errand {
        Errand::Call {
            method,
            body,
            answer,
        } => answer(carry_out(engine, method, &body)),
        Errand::Reconnect { peer, incarnation } => reconnect(engine, peer, incarnation),
        Errand::Lost { peer, incarnation } => engine.lose_peer(peer, incarnation),
        Errand::Bury => engine.bury(),
        Errand::Stop => {}
    }
}

/// Carries out a call. A program that panics there has failed that call, and nothing else.
fn carry_out(engine: &Engine, method: u16, body: &[u8]) -> Result<Vec<u8>, String> {
    let Some(engine) = engine.for_program() else {
        return Err("the engine is ending".into());
    };
    catch_unwind(AssertUnwindSafe(|| call(|| engine.carry_out(method, body))))
        .unwrap_or_else(|_| Err("the program panicked while it carried the call out".into()))
}

/// Tries to reach a peer again until it answers, without holding up other errands, or the engine's end.
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
