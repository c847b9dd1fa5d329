//! How an engine ends: once, whoever asks for it, and for all who ask.
//!
//! Whoever asks first does it, on its own thread: it drives each worker to its end if nobody else does, so that it waits for
//! no thread that may be waiting for it. The program's code runs only when memory is free: callbacks that are due are kept
//! until then. Threads of the engine are waited for after that, and only by those who are not called by one.

use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::sync::{OnceLock, Weak};
use std::time::{Duration, Instant};

use polyrail_transport::memory::LOANS_MAX;

use crate::afterwards::Afterwards;
use crate::answering::Answering;
use crate::config::HealthConfig;
use crate::engine::{Engine, Inner, Program};
use crate::once::Once;
use crate::post::Begun;

/// What a shutdown waits beyond the grace time and the time for proof, in which core has ended all that it ends.
const MARGIN: Duration = Duration::from_millis(400);
/// How long for memory that the kernel or a device has, once nobody here uses it any more.
const RETIRE_MAX: Duration = Duration::from_millis(500);

thread_local! {
    /// This thread runs the program's code for the engine: a callback, a waker, a call.
    static CALLED: Cell<bool> = const { Cell::new(false) };
}

/// Whether the program's code that runs here was called by an engine.
pub(crate) fn is_called() -> bool {
    CALLED.get()
}

/// Runs the program's code on the engine's behalf.
pub(crate) fn call<R>(code: impl FnOnce() -> R) -> R {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            CALLED.set(self.0);
        }
    }
    let _before = Before(CALLED.replace(true));
    code()
}

/// How long a shutdown waits for what passes through slots, and then for what is in flight with workers.
fn shutdown_max(health: &HealthConfig) -> Duration {
    health.cancel_grace + health.fence_timeout + MARGIN
}

/// How far it has come.
#[derive(Default)]
pub(crate) struct Ending {
    once: Once,
    /// It is about to: see [`Engine::drain`].
    pub(crate) drains: AtomicBool,
    /// The handles of the program.
    pub(crate) program: OnceLock<Weak<Program>>,
}

impl Ending {
    /// Whether memory is the program's alone.
    pub(crate) fn is_over(&self) -> bool {
        self.once.is_over()
    }
}

impl Engine {
    /// Ends everything within a bound, which is `health/cancel_grace_ms` and `health/fence_timeout_ms` and 400 ms for what is in
    /// flight, and as long, or twice that, for what passes through slots before: what has not ended is reported `ShutDown`, or `Indeterminate` where it
    /// cannot be ended for sure. Later submissions are refused. When it has returned, nothing of the engine touches memory
    /// that was registered, but what a report says is `Held`, and a line in the log. The same is so once the last handle has
    /// been dropped.
    ///
    /// Any thread may call it, in callbacks, wakers and calls of peers too, again and at the same time: whoever comes later
    /// waits for the first. Callbacks that are due are called before it returns, here or on threads of the engine; one that is
    /// running goes on if it takes longer than a second, or if it is what called this.
    ///
    /// Example: [guide](crate::guide#changing-and-ending).
    pub fn shutdown(&self) {
        if self.inner.is_ours() {
            self.inner.shut_down();
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.inner.ending.once.has_begun()
    }
}

impl Inner {
    pub(crate) fn shut_down(&self) {
        if let Some(afterwards) = self.ending.once.run(|| self.end()) {
            afterwards.carry_out();
        }
        // Whoever is called by a thread of the engine would wait for itself, or for another one that waits so.
        if !is_called() {
            self.workers.join();
            self.staging.join();
            self.tasks.join();
            self.answering.iter().for_each(Answering::join);
            self.watch.join();
        }
    }

    /// Ends all but the threads. Afterwards the program may do as it likes.
    fn end(&self) -> Afterwards {
        // First: what it stages is carried out by workers.
        let longest = shutdown_max(&self.config.health);
        self.staging
            .stop(self.clock.now() + longest.into(), 2 * longest);
        let until = self.clock.now() + longest.into();
        self.workers.close(until);
        let mut afterwards = self.workers.end(&self.clock, until);
        self.retire_memory();
        // What nobody has ended is told now that memory is known to be free.
        let plane = &self.sessions.plane;
        let staging = self.staging.post();
        let go_on = self.workers.goes_on();
        for post in self.workers.posts.iter().chain(staging) {
            // Of one that is still in the program's code, all may have begun.
            if !post.is_closed() {
                post.close(|_| Begun::All);
            }
            afterwards.append(post.abandon(go_on, |ticket| ticket.go(plane)));
        }
        if let Ok(gpus) = &self.hardware.gpus {
            gpus.unpin_all();
        }
        self.fabric.end_recording();
        if let Some(neighbours) = self.fabric.neighbours() {
            neighbours.leave();
        }
        plane.shutdown();
        self.mail.desk.inbox.close();
        self.sessions.news.close();
        self.tasks.stop();
        self.answering.iter().for_each(Answering::stop);
        self.watch.stop();
        // Whoever waits for room hears that there is none.
        self.waker_thread.room_came();
        self.waker_thread.close();
        afterwards
    }

    /// Takes all memory back from the transports, those included that serve peers. One deadline for all of it.
    fn retire_memory(&self) {
        let regions = self.segments.regions();
        regions.iter().for_each(|(_, region)| region.recall());
        let deadline = Instant::now() + LOANS_MAX;
        for (_, region) in &regions {
            region.end_loans(deadline);
        }
        let deadline = Instant::now() + RETIRE_MAX;
        for (name, region) in &regions {
            if !region.retire(deadline) {
                let name = name.escape_debug();
                log::error!(
                    "memory of segment \"{name}\" is still used by the kernel, a device or a process of this host: keep it registered, or until the process ends"
                );
            }
        }
    }
}

impl Drop for Inner {
    /// Of one that was never whole, or whose program's handles have gone.
    fn drop(&mut self) {
        self.shut_down();
    }
}
