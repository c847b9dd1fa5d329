//! Tasks of the program that wait: their wakers, who calls them, and the word that there is room again.
//!
//! A waker is the program's code and may do anything. What happens to an engine happens on threads that hold locks or that
//! others wait for, so a waker is not called there but on a thread of its own, which there is from the first task on that waits.
//! Wakers of batches are the exception: the driver calls those itself, once it has released its drive lock (`afterwards`).

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::engine::Engine;
use crate::followers::guard;
use crate::fork::Owned;
use crate::lock::lock;

/// The tasks that wait for one thing, each at its own place. Empty, it owns no memory.
#[derive(Debug, Default)]
pub(crate) struct Wakers(Vec<Option<Waker>>);

impl Wakers {
    /// Notes whom to wake for whoever is at `place`, which they get with the first call. Gives the waker that was there: to be
    /// dropped when no lock is held, since that may run anything.
    pub(crate) fn set(&mut self, place: &mut Option<usize>, waker: &Waker) -> Option<Waker> {
        let known = place.and_then(|place| self.0.get_mut(place));
        match known {
            Some(Some(known)) if known.will_wake(waker) => None,
            Some(known) => known.replace(waker.clone()),
            None => {
                let free = self.0.iter().position(Option::is_none);
                let index = free.unwrap_or(self.0.len());
                if free.is_none() {
                    self.0.push(None);
                }
                *place = Some(index);
                self.0[index].replace(waker.clone())
            }
        }
    }

    /// Nobody waits at this place any more. To be dropped when no lock is held.
    pub(crate) fn take(&mut self, place: usize) -> Option<Waker> {
        self.0.get_mut(place).and_then(Option::take)
    }

    /// Takes all, who keep their places.
    pub(crate) fn take_all(&mut self) -> Vec<Waker> {
        self.0.iter_mut().filter_map(Option::take).collect()
    }

    /// Whether somebody waits.
    pub(crate) fn has_any(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }

    #[cfg(test)]
    pub(crate) fn places(&self) -> usize {
        self.0.len()
    }
}

/// What calls wakers, and tells those who wait for room.
#[derive(Default)]
pub(crate) struct WakerThread {
    calls: Mutex<Calls>,
    vacancy: Mutex<Vacancy>,
    /// Tasks that wait for room. Without, nobody takes a lock for it.
    waiting: AtomicUsize,
}

#[derive(Default)]
enum Calls {
    #[default]
    NotYet,
    On(Sender<Waker>),
    /// The engine has ended, or the system refused a thread.
    Gone,
}

#[derive(Default)]
struct Vacancy {
    /// Counts how often room has come back.
    turn: u64,
    wakers: Wakers,
}

/// A waker of the program's, to be called elsewhere.
struct Deferred {
    waker: Waker,
    waker_thread: Arc<WakerThread>,
}

impl Wake for Deferred {
    fn wake(self: Arc<Self>) {
        self.waker_thread.call(self.waker.clone());
    }
}

impl WakerThread {
    /// A waker that can be called anywhere: it has this one called on a thread of its own.
    pub(crate) fn defer(self: &Arc<Self>, waker: &Waker) -> Waker {
        let mut calls = lock(&self.calls);
        if let Calls::NotYet = *calls {
            *calls = start();
        }
        drop(calls);
        Waker::from(Arc::new(Deferred {
            waker: waker.clone(),
            waker_thread: self.clone(),
        }))
    }

    fn call(&self, waker: Waker) {
        let waker = match &*lock(&self.calls) {
            Calls::On(calls) => match calls.send(waker) {
                Ok(()) => return,
                Err(back) => back.0,
            },
            Calls::NotYet | Calls::Gone => waker,
        };
        guard("a waker", || waker.wake());
    }

    /// The engine has ended, and all who waited have been told.
    pub(crate) fn close(&self) {
        *lock(&self.calls) = Calls::Gone;
    }

    /// Room has come back.
    pub(crate) fn room_came(&self) {
        // Whoever begins to wait does so before it looks for room, and that was given back before this.
        if self.waiting.load(SeqCst) == 0 {
            return;
        }
        let mut vacancy = lock(&self.vacancy);
        vacancy.turn += 1;
        let wakers = vacancy.wakers.take_all();
        drop(vacancy);
        wakers.into_iter().for_each(Waker::wake);
    }
}

fn start() -> Calls {
    let (calls, wakers) = channel::<Waker>();
    let spawned = std::thread::Builder::new()
        .name("polyrail-wake".into())
        .spawn(move || {
            for waker in wakers {
                guard("a waker", || waker.wake());
            }
        });
    match spawned {
        Ok(_) => Calls::On(calls),
        Err(error) => {
            log::error!("cannot start a thread to wake tasks on; they are woken in place: {error}");
            Calls::Gone
        }
    }
}

/// Ends when room has come back since it was made: see [`Engine::room`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct RoomAgain {
    waker_thread: Owned<WakerThread>,
    turn: u64,
    place: Option<usize>,
}

impl Engine {
    /// A future that ends when some room has come back since this call: for requests, or for notifications. It is for tasks,
    /// which [`Terms::room_within`](crate::Terms::room_within) would block. Make it before the submission that may be refused,
    /// so that nothing that comes back in between is missed:
    ///
    /// ```
    /// # use polyrail::{Batch, Engine, Request, SubmitError, Terms};
    /// # use std::time::Duration;
    /// async fn submit(engine: &Engine, requests: &[Request]) -> Result<Batch, SubmitError> {
    ///     let terms = Terms { room_within: Some(Duration::ZERO), ..Terms::default() };
    ///     loop {
    ///         let room = engine.room();
    ///         match engine.submit_with(requests, &terms) {
    ///             Err(SubmitError::Full(_)) => room.await,
    ///             submitted => return submitted,
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// All who wait are woken, and whoever is first has the room. It ends too when the engine does.
    pub fn room(&self) -> RoomAgain {
        let waker_thread = self.inner.waker_thread.clone();
        let turn = match waker_thread.is_ours() {
            true => {
                waker_thread.waiting.fetch_add(1, SeqCst);
                lock(&waker_thread.vacancy).turn
            }
            false => 0,
        };
        RoomAgain {
            waker_thread,
            turn,
            place: None,
        }
    }
}

impl Future for RoomAgain {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self {
            waker_thread,
            turn,
            place,
        } = &mut *self;
        if !waker_thread.is_ours() {
            return Poll::Ready(());
        }
        let waker = waker_thread.defer(context.waker());
        let mut vacancy = lock(&waker_thread.vacancy);
        if vacancy.turn != *turn {
            return Poll::Ready(());
        }
        let old = vacancy.wakers.set(place, &waker);
        drop(vacancy);
        drop(old);
        Poll::Pending
    }
}

impl Drop for RoomAgain {
    fn drop(&mut self) {
        if !self.waker_thread.is_ours() {
            return;
        }
        let place = self.place.take();
        let waker = place.and_then(|place| lock(&self.waker_thread.vacancy).wakers.take(place));
        self.waker_thread.waiting.fetch_sub(1, SeqCst);
        drop(waker);
    }
}
