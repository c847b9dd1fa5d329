//! Every interleaving of a small model of an engine's end: a worker's thread, somebody who waits and takes the drive lock, a callback
//! that ends the engine on whichever of them it runs, and the program that does so at the same time. The drive lock, and what is
//! done once for all who ask, are the engine's own files; locks and atomics are loom's.

#![allow(dead_code)] // of the engine's files, what the model does not use

#[path = "../src/drive_lock.rs"]
mod drive_lock;
#[path = "../src/once.rs"]
mod once;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, Ordering};
    pub(crate) use loom::sync::{Condvar, Mutex};
    pub(crate) use std::sync::{PoisonError, TryLockError};
}

/// What a thread that asks for lanes is not to wait for; nobody asks here.
mod lanes {
    pub(crate) struct Driving;

    impl Driving {
        pub(crate) fn begin() -> Self {
            Self
        }
    }
}

mod worker {
    use super::Engine;

    /// What a worker does, as far as its end is concerned.
    pub(crate) struct Loop<'a> {
        pub(crate) engine: &'a Engine,
        pub(crate) is_closed: bool,
        /// A callback is due.
        pub(crate) tells: bool,
        pub(crate) rounds: u32,
    }

    impl Loop<'_> {
        pub(crate) fn is_closed(&self) -> bool {
            self.is_closed
        }

        /// It moves bytes; in the first round a batch ends.
        pub(crate) fn round(&mut self) {
            assert!(!self.is_closed, "driven after its end");
            self.engine.memory.touch();
            self.tells |= self.rounds == 0;
            self.rounds += 1;
            if self.engine.is_told() {
                self.end();
            }
        }

        /// Lets go of the memory.
        pub(crate) fn end(&mut self) {
            self.is_closed = true;
            self.engine.close();
        }
    }
}

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering::*};
use loom::thread;

use drive_lock::{DriveLock, NotDriven};
use once::Once;
use worker::Loop;

/// Memory that a program has registered. Loom notices if two use it at the same time.
struct Memory(UnsafeCell<u64>);

// SAFETY: loom looks whether uses meet.
unsafe impl Sync for Memory {}

impl Memory {
    /// The engine moves bytes.
    fn touch(&self) {
        // SAFETY: as above.
        self.0.with_mut(|word| unsafe { *word += 1 });
    }

    /// The program has it to itself.
    fn look(&self) {
        // SAFETY: as above.
        self.0.with(|word| unsafe { assert!(*word < 100) });
    }
}

struct Engine {
    drive_lock: DriveLock,
    once: Once,
    told: AtomicBool,
    closed: AtomicBool,
    memory: Memory,
}

impl Engine {
    fn new() -> Self {
        Self {
            drive_lock: DriveLock::default(),
            once: Once::default(),
            told: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            memory: Memory(UnsafeCell::new(0)),
        }
    }

    fn is_told(&self) -> bool {
        self.told.load(Acquire)
    }

    fn close(&self) {
        self.closed.store(true, Release);
    }

    /// As `Inner::shut_down` and `Post::end` do it.
    fn shut_down(&self) {
        let tells = self.once.run(|| {
            self.told.store(true, Release);
            loop {
                let ended = self.drive_lock.drive(|driven| {
                    driven.end();
                    std::mem::take(&mut driven.tells)
                });
                match ended {
                    Ok(tells) => return tells,
                    Err(_) if self.closed.load(Acquire) => return false,
                    Err(_) => thread::yield_now(),
                }
            }
        });
        self.memory.look();
        if tells == Some(true) {
            self.shut_down();
        }
    }

    /// Drives, and calls back once the drive lock is free. Whether there is more to come.
    fn drive(&self) -> Result<(), NotDriven> {
        let tells = self.drive_lock.drive(|driven| {
            driven.round();
            std::mem::take(&mut driven.tells)
        })?;
        if tells {
            self.shut_down();
        }
        Ok(())
    }

    /// The worker's thread.
    fn serve(&self) {
        let mut driven = Loop {
            engine: self,
            is_closed: false,
            tells: false,
            rounds: 0,
        };
        let published = self.drive_lock.publish(&mut driven);
        while self.drive() != Err(NotDriven::Gone) {
            thread::yield_now();
        }
        drop(published);
        assert!(driven.is_closed, "left without its end");
    }
}

#[test]
fn every_end_comes_to_its_end_with_memory_free() {
    let mut model = loom::model::Builder::new();
    // `.ci/deep` asks for more (LOOM_MAX_PREEMPTIONS).
    model.preemption_bound = model.preemption_bound.or(Some(3));
    model.check(|| {
        let engine = Arc::new(Engine::new());
        let worker = {
            let engine = engine.clone();
            thread::spawn(move || engine.serve())
        };
        let waiter = {
            let engine = engine.clone();
            thread::spawn(move || engine.drive().is_ok())
        };
        engine.shut_down();
        worker.join().unwrap();
        waiter.join().unwrap();
    });
}
