//! Standing segments: requests that name them, and the thread that opens them anew once their owner is back.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::Duration;

use crate::engine::Engine;
use crate::error::SubmitError;
use crate::lock::lock;
use crate::opening::{Pauses, Until};
use crate::request::Request;

/// The longest pause between two looks at a place whose engine was lost.
const PAUSE_MAX: Duration = Duration::from_millis(500);

impl Engine {
    /// Carries `act` out on requests with what standing segments lead to in their place. Its error is said of what the program
    /// named.
    pub(crate) fn bound<R>(
        &self,
        named: &[Request],
        act: impl FnOnce(&[Request]) -> Result<R, SubmitError>,
    ) -> Result<R, SubmitError> {
        let segments = &self.inner.segments;
        if !segments.any_standing() {
            return act(named);
        }
        if !self.inner.is_ours() {
            return Err(SubmitError::Forked);
        }
        match segments.bound(named)? {
            Cow::Borrowed(requests) => act(requests),
            Cow::Owned(requests) => {
                act(&requests).map_err(|error| said_of(error, &requests, named))
            }
        }
    }

    /// Has the segments followed that stand for something of owners that are away.
    pub(crate) fn follow_away(&self) {
        for (owner, ..) in self.inner.segments.away() {
            if !lock(&self.inner.sessions.following).insert(owner) {
                continue;
            }
            let weak = self.downgrade();
            let spawned = std::thread::Builder::new()
                .name("polyrail-follow".into())
                .spawn(move || {
                    let mut pauses = Pauses::new(PAUSE_MAX);
                    while let Some(engine) = weak.upgrade().map(Self::from_inner) {
                        if engine.takes_nothing() || engine.has_followed(owner) {
                            return;
                        }
                        drop(engine);
                        std::thread::sleep(pauses.next());
                    }
                });
            if let Err(error) = spawned {
                lock(&self.inner.sessions.following).remove(&owner);
                log::error!("cannot start a thread to find the engine at {owner} again: {error}");
            }
        }
    }

    /// Tries to open what stands for something of an owner that is away. Whether nothing is left to be opened.
    fn has_followed(&self, owner: SocketAddr) -> bool {
        let inner = &self.inner;
        let away = || {
            let mut away = inner.segments.away();
            away.retain(|(at, ..)| *at == owner);
            away
        };
        for (_, standing, address) in away() {
            match self.open_once(&address, Until::never()) {
                Ok((at, now)) => {
                    if !inner.segments.follow(standing, at, now) {
                        // It was closed meanwhile, or the program has opened it.
                        let _ = self.close_remote(now, true);
                    }
                }
                Err(error) => log::debug!("{address} is not followed yet: {error}"),
            }
        }
        self.tell_of_return(owner);
        // Whoever is lost from now on finds this thread at work, or starts another one.
        let mut following = lock(&inner.sessions.following);
        let is_over = away().is_empty();
        if is_over {
            following.remove(&owner);
        }
        is_over
    }
}

/// An error about a segment that a request was bound to, said of what the program named.
pub(crate) fn said_of(error: SubmitError, bound: &[Request], named: &[Request]) -> SubmitError {
    let mut error = error;
    if let Some(segment) = error.segment_mut() {
        let mut both = bound.iter().zip(named);
        if let Some((_, named)) = both.find(|(bound, _)| bound.remote == *segment) {
            *segment = named.remote;
        }
    }
    error
}
