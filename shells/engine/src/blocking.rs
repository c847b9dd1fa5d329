//! What blocks, carried out on a thread of its own for a task that waits.

use std::future::Future;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::engine::Engine;
use crate::error::OpenError;
use crate::followers::guard;
use crate::fork::Owned;
use crate::lock::lock;
use crate::opening::OpenTerms;
use crate::segments::SegmentId;

/// How a blocking call stands.
enum State<T> {
    Running(Option<Waker>),
    Done(T),
    /// Nobody wants to know, or they do already.
    Over,
}

/// What becomes of what nobody awaits any more.
type Undo<T> = Box<dyn FnOnce(T) + Send>;

/// Something that a thread does, for whoever awaits it. It ends with `None` in a forked child, which has no such thread.
struct Blocking<T>(Owned<Mutex<Known<T>>>);

/// What both of them know.
struct Known<T> {
    state: State<T>,
    undo: Option<Undo<T>>,
}

impl<T: Send + 'static> Blocking<T> {
    /// Starts a thread of this name. What `run` gives goes to `undo` if nobody awaits it.
    fn start(
        name: &str,
        run: impl FnOnce() -> T + Send + 'static,
        undo: impl FnOnce(T) + Send + 'static,
    ) -> io::Result<Self> {
        let undo: Undo<T> = Box::new(undo);
        let blocking = Arc::new(Mutex::new(Known {
            state: State::Running(None),
            undo: Some(undo),
        }));
        let known = blocking.clone();
        let go = move || {
            let done = run();
            let mut known = lock(&known);
            match mem::replace(&mut known.state, State::Over) {
                State::Running(waker) => {
                    known.state = State::Done(done);
                    drop(known);
                    guard("a waker", || waker.map_or((), Waker::wake));
                }
                State::Done(_) | State::Over => {
                    let undo = known.undo.take();
                    drop(known);
                    if let Some(undo) = undo {
                        undo(done);
                    }
                }
            }
        };
        std::thread::Builder::new().name(name.into()).spawn(go)?;
        Ok(Self(Owned::new(blocking)))
    }
}

impl<T> Future for Blocking<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        if !self.0.is_ours() {
            return Poll::Ready(None);
        }
        let mut known = lock(&self.0);
        match mem::replace(&mut known.state, State::Over) {
            State::Done(done) => Poll::Ready(Some(done)),
            State::Running(old) => {
                known.state = State::Running(Some(context.waker().clone()));
                drop(known);
                drop(old);
                Poll::Pending
            }
            State::Over => Poll::Ready(None),
        }
    }
}

impl<T> Drop for Blocking<T> {
    fn drop(&mut self) {
        if !self.0.is_ours() {
            return;
        }
        let mut known = lock(&self.0);
        let state = mem::replace(&mut known.state, State::Over);
        if let State::Done(done) = state {
            let undo = known.undo.take();
            drop(known);
            if let Some(undo) = undo {
                undo(done);
            }
        }
    }
}

impl Engine {
    /// The same as [`Self::open_segment_with`] for tasks: a thread does it, from this call on. If the future is dropped, what is
    /// opened is closed again.
    ///
    /// Example: [guide](crate::guide#tasks).
    pub fn open_segment_async(
        &self,
        address: &str,
        terms: &OpenTerms,
    ) -> impl Future<Output = Result<SegmentId, OpenError>> + Send + 'static + use<> {
        let engine = self.aside();
        let (address, terms) = (address.to_owned(), *terms);
        let closer = self.aside();
        let blocking = Blocking::start(
            "polyrail-open",
            move || engine.open_segment_with(&address, &terms),
            move |opened| {
                if let Ok(segment) = opened {
                    let _ = closer.close_segment_later(segment);
                }
            },
        );
        async move {
            let blocking = blocking.map_err(|source| OpenError::System { source })?;
            blocking.await.unwrap_or(Err(OpenError::Forked))
        }
    }

    /// The same as [`Self::shutdown`] for tasks: a thread does it, from this call on, also if the future is dropped. Once it has
    /// ended, the last handle can be dropped in a task.
    ///
    /// Example: [guide](crate::guide#tasks).
    pub fn shutdown_async(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let engine = self.aside();
        let blocking = Blocking::start("polyrail-end", move || engine.shutdown(), drop);
        let blocking = blocking.map_err(|error| {
            log::error!("cannot start a thread for the end of an engine, which blocks: {error}");
            self.shutdown();
        });
        async move {
            if let Ok(blocking) = blocking {
                blocking.await;
            }
        }
    }
}
