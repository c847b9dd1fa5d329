//! What the lanes of all workers hold, asked of whoever drives them.

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use polyrail_core::orchestrator::LaneLoad;
use polyrail_core::time;

use crate::lock::lock;
use crate::post::{Command, Post};
use crate::stats::LaneStatus;

/// How long all workers together are waited for.
const PATIENCE: Duration = Duration::from_millis(50);

thread_local! {
    /// This thread holds a drive lock: what it asks for, only it could answer.
    static DRIVES: Cell<bool> = const { Cell::new(false) };
}

/// Says that this thread drives a worker, until it is dropped.
pub(crate) struct Driving(bool);

impl Driving {
    pub(crate) fn begin() -> Self {
        Self(DRIVES.replace(true))
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        DRIVES.set(self.0);
    }
}

/// A worker is asked for its lanes.
#[derive(Default)]
pub(crate) struct Question {
    answer: Mutex<Option<Vec<LaneLoad>>>,
    answered: Condvar,
}

impl Question {
    pub(crate) fn answer(&self, lanes: Vec<LaneLoad>) {
        *lock(&self.answer) = Some(lanes);
        self.answered.notify_all();
    }

    /// The answer, if it comes by then.
    fn wait(&self, until: Instant) -> Option<Vec<LaneLoad>> {
        let answer = lock(&self.answer);
        let left = until.saturating_duration_since(Instant::now());
        let waits = |answer: &mut Option<_>| answer.is_none();
        let waited = self.answered.wait_timeout_while(answer, left, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.take()
    }
}

/// The lanes of all workers. Those of a worker that does not answer are left out, and so are all if this thread drives one:
/// it may be a logger that is asked while something is said of a lane.
pub(crate) fn all(
    posts: &[Arc<Post>],
    now: time::Instant,
    rail_name: impl Fn(&LaneLoad) -> String,
) -> Vec<LaneStatus> {
    if DRIVES.get() {
        return Vec::new();
    }
    let until = Instant::now() + PATIENCE;
    let asked: Vec<_> = posts.iter().map(|post| ask(post)).collect();
    let ago = |at: time::Instant| Duration::from(now.since(at));
    let status = |(worker, load): (u16, LaneLoad)| LaneStatus {
        worker,
        rail: rail_name(&load),
        state: load.state,
        held: load.held_works,
        limit: load.limit_works.into(),
        held_bytes: load.held_bytes,
        held_high: load.held_works_high,
        completed: load.completed_at.map(ago),
        releases: load.releases,
        released: load.released_works,
        full_for: load.full_since.map(ago),
    };
    let lanes = (0..).zip(asked).flat_map(|(worker, question)| {
        let lanes = question.wait(until).unwrap_or_default();
        lanes.into_iter().map(move |load| (worker, load))
    });
    lanes.map(status).collect()
}

/// Asks a worker, and looks itself if nobody drives it.
fn ask(post: &Post) -> Arc<Question> {
    let question = Arc::new(Question::default());
    match post.look(|driven| driven.lanes()) {
        Ok(lanes) => question.answer(lanes),
        Err(_) if post.is_closed() => question.answer(Vec::new()),
        Err(_) => post.send(Command::Lanes(question.clone())),
    }
    question
}
