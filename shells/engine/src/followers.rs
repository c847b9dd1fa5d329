//! Who is to be told that a batch has ended, besides those that block.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use polyrail_core::batch::BatchReport;

use crate::completion::Tray;
use crate::ending::call;
use crate::wakers::Wakers;

/// What a program wants to be called.
pub(crate) type Callback = Box<dyn FnOnce(BatchReport) + Send>;

/// The tasks and callbacks that wait for one batch. Empty, it owns no memory.
#[derive(Default)]
pub(crate) struct Followers {
    /// Of the handles that are awaited, each at its own place.
    wakers: Wakers,
    callbacks: Vec<Callback>,
    /// Of the program's queues. Nothing of its code runs when they get what they wait for.
    trays: Vec<Tray>,
}

impl Followers {
    /// Notes whom to wake for the handle at `place`: see [`Wakers::set`].
    pub(crate) fn set_waker(&mut self, place: &mut Option<usize>, waker: &Waker) -> Option<Waker> {
        self.wakers.set(place, waker)
    }

    /// The handle at `place` is not awaited any more. To be dropped when no lock is held.
    pub(crate) fn take_waker(&mut self, place: usize) -> Option<Waker> {
        self.wakers.take(place)
    }

    pub(crate) fn add(&mut self, callback: Callback) {
        self.callbacks.push(callback);
    }

    pub(crate) fn add_tray(&mut self, tray: Tray) {
        self.trays.push(tray);
    }

    /// Fills the program's queues.
    pub(crate) fn fill_trays(&mut self, report: BatchReport) {
        self.trays.drain(..).for_each(|tray| tray.fill(report));
    }

    /// Whether the program's code is to be called.
    pub(crate) fn has_code(&self) -> bool {
        !self.callbacks.is_empty() || self.wakers.has_any()
    }

    /// Calls the program's code. No lock may be held: it may do anything.
    pub(crate) fn tell(mut self, report: BatchReport) {
        for waker in self.wakers.take_all() {
            guard("a waker", || waker.wake());
        }
        for callback in self.callbacks {
            guard("a callback", || callback(report));
        }
    }
}

/// Runs the program's code; if it panics, only that is lost.
pub(crate) fn guard(what: &str, run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(|| call(run))).is_err() {
        log::error!("{what} of the program panicked");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::*};
    use std::task::Wake;

    use polyrail_core::batch::Batch;

    use super::*;

    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    fn bell() -> (Arc<Bell>, Waker) {
        let bell = Arc::new(Bell::default());
        (bell.clone(), bell.into())
    }

    fn report() -> BatchReport {
        let mut batch = Batch::new(0);
        batch.seal();
        batch.report()
    }

    #[test]
    fn a_handle_has_one_place_and_the_last_waker_in_it_is_woken_once() {
        let (first, second) = (bell(), bell());
        let mut followers = Followers::default();
        let mut place = None;
        assert!(followers.set_waker(&mut place, &first.1).is_none());
        assert!(followers.set_waker(&mut place, &first.1).is_none());
        assert!(followers.set_waker(&mut place, &second.1).is_some());
        assert_eq!((place, followers.wakers.places()), (Some(0), 1));
        followers.tell(report());
        assert_eq!((first.0.0.load(SeqCst), second.0.0.load(SeqCst)), (0, 1));
    }

    #[test]
    fn places_of_handles_that_are_gone_are_used_again() {
        let (first, second) = (bell(), bell());
        let mut followers = Followers::default();
        for _ in 0..100 {
            let mut place = None;
            followers.set_waker(&mut place, &first.1);
            assert!(followers.take_waker(place.unwrap()).is_some());
        }
        let mut places = [None, None];
        followers.set_waker(&mut places[0], &first.1);
        followers.set_waker(&mut places[1], &second.1);
        assert_eq!(followers.wakers.places(), 2);
        followers.tell(report());
        assert_eq!((first.0.0.load(SeqCst), second.0.0.load(SeqCst)), (1, 1));
    }

    #[test]
    fn one_that_panics_does_not_keep_it_from_the_others() {
        struct Broken;
        impl Wake for Broken {
            fn wake(self: Arc<Self>) {
                panic!("on purpose");
            }
        }
        let (heard, waker) = bell();
        let mut followers = Followers::default();
        followers.set_waker(&mut None, &Arc::new(Broken).into());
        followers.set_waker(&mut None, &waker);
        followers.add(Box::new(|_| panic!("on purpose")));
        let called = Arc::new(AtomicUsize::new(0));
        let count = called.clone();
        followers.add(Box::new(move |_| {
            count.fetch_add(1, SeqCst);
        }));
        followers.tell(report());
        assert_eq!((heard.0.load(SeqCst), called.load(SeqCst)), (1, 1));
    }
}
