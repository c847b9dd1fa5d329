//! A queue with a descriptor that is readable exactly while something is in it.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::wakers::{WakerThread, Wakers};

/// Items for a program, in order. Each is taken once, however many threads take.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
    /// Counts 1 while there are items, 0 otherwise: changed under the lock, at the edges only.
    ready: OwnedFd,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    closed: bool,
    /// Tasks that wait. They can be woken anywhere.
    wakers: Wakers,
}

/// Why nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nothing {
    /// Nothing came in time.
    TimedOut,
    /// Nothing is left, and nothing will come.
    Closed,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> io::Result<Self> {
        let state = State {
            items: VecDeque::new(),
            closed: false,
            wakers: Wakers::default(),
        };
        Ok(Self {
            state: Mutex::new(state),
            arrived: Condvar::new(),
            ready: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one at the end.
    pub(crate) fn push(&self, item: T) {
        self.push_within(usize::MAX, item, |_| {});
    }

    /// Adds one at the end, unless there are `most`: then the last is changed by `merge`.
    pub(crate) fn push_within(&self, most: usize, item: T, merge: impl FnOnce(&mut T)) {
        let mut state = self.state();
        if state.items.len() >= most {
            return state.items.back_mut().map_or((), merge);
        }
        if state.items.is_empty() {
            // Cannot fail: the counter is 0.
            let _ = rustix::io::write(&self.ready, &1_u64.to_ne_bytes());
        }
        state.items.push_back(item);
        let wakers = state.wakers.take_all();
        drop(state);
        self.arrived.notify_one();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Takes the first.
    pub(crate) fn pop(&self) -> Option<T> {
        self.take(&mut self.state())
    }

    /// Takes the first; waits for one if there is none.
    pub(crate) fn pop_timeout(&self, timeout: Duration) -> Result<T, Nothing> {
        let start = Instant::now();
        let mut state = self.state();
        loop {
            if let Some(item) = self.take(&mut state) {
                return Ok(item);
            }
            if state.closed {
                return Err(Nothing::Closed);
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(Nothing::TimedOut);
            }
            (state, _) = self
                .arrived
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn take(&self, state: &mut State<T>) -> Option<T> {
        let item = state.items.pop_front()?;
        if state.items.is_empty() {
            let mut count = [0; 8];
            // Cannot fail: the counter is 1.
            let _ = rustix::io::read(&self.ready, &mut count);
        }
        Some(item)
    }

    /// Nothing will come any more: nobody has to wait once it is empty.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let wakers = state.wakers.take_all();
        drop(state);
        self.arrived.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Takes the first, for a task; `None`: nothing is left, and nothing will come.
    pub(crate) fn next<'a>(&'a self, waker_thread: &'a Arc<WakerThread>) -> Next<'a, T> {
        Next {
            queue: self,
            waker_thread,
            place: None,
        }
    }
}

/// Ends with the first of a queue.
pub(crate) struct Next<'a, T> {
    queue: &'a EventQueue<T>,
    waker_thread: &'a Arc<WakerThread>,
    place: Option<usize>,
}

impl<T> Future for Next<'_, T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let Self {
            queue,
            waker_thread,
            place,
        } = &mut *self;
        let waker = waker_thread.defer(context.waker());
        let mut state = queue.state();
        if let Some(item) = queue.take(&mut state) {
            return Poll::Ready(Some(item));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        let old = state.wakers.set(place, &waker);
        drop(state);
        drop(old);
        Poll::Pending
    }
}

impl<T> Drop for Next<'_, T> {
    fn drop(&mut self) {
        let place = self.place.take();
        let waker = place.and_then(|place| self.queue.state().wakers.take(place));
        drop(waker);
    }
}

impl<T> AsFd for EventQueue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(queue: &EventQueue<u32>) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut fds = [PollFd::new(queue, PollFlags::IN)];
        poll(&mut fds, Some(&now)).unwrap() == 1
    }

    #[test]
    fn it_is_readable_exactly_while_something_is_in_it() {
        let queue = EventQueue::new().unwrap();
        assert!(!is_readable(&queue));
        for round in 0..3 {
            queue.push(round);
            queue.push(round + 10);
            assert!(is_readable(&queue) && is_readable(&queue));
            assert_eq!(queue.pop(), Some(round));
            assert!(is_readable(&queue), "one is left");
            assert_eq!(queue.pop_timeout(Duration::ZERO), Ok(round + 10));
            assert!(!is_readable(&queue));
            assert_eq!(queue.pop(), None);
        }
    }

    #[test]
    fn a_closed_one_gives_what_is_left_and_then_does_not_wait() {
        let queue = EventQueue::new().unwrap();
        queue.push(1);
        queue.close();
        let forever = Duration::MAX;
        assert_eq!(queue.pop_timeout(forever), Ok(1));
        assert_eq!(queue.pop_timeout(forever), Err(Nothing::Closed));
    }

    #[test]
    fn many_takers_get_each_item_once_and_none_waits_in_vain() {
        const ITEMS: u32 = 10_000;
        let queue = Arc::new(EventQueue::new().unwrap());
        let takers: Vec<_> = (0..4)
            .map(|_| {
                let queue = queue.clone();
                std::thread::spawn(move || {
                    let mut taken = Vec::new();
                    while let Ok(item) = queue.pop_timeout(Duration::from_secs(30)) {
                        taken.push(item);
                    }
                    taken
                })
            })
            .collect();
        (0..ITEMS).for_each(|item| queue.push(item));
        queue.close();
        let mut taken: Vec<_> = takers.into_iter().flat_map(|t| t.join().unwrap()).collect();
        taken.sort_unstable();
        assert!(taken.into_iter().eq(0..ITEMS));
        assert!(!is_readable(&queue));
    }
}
