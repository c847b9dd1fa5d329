//! What was admitted and waits for its worker.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), phase 3, worker shutdown.

use heapless::Deque;

use super::admission::Token;
use crate::work::Cause;

/// A worker's queue of tasks with their tokens, `TASKS` at most. It belongs to the worker; a shell whose
/// threads share it puts it behind its own lock.
#[derive(Debug)]
pub struct Inbox<'a, T, const TASKS: usize> {
    tasks: Deque<(T, Token<'a>), TASKS>,
    running: bool,
}

/// A task that was not taken.
#[derive(Debug)]
pub enum Bounced<'a, T> {
    /// The queue is full; both come back. Try again when the worker has taken one.
    Full(T, Token<'a>),
    /// The worker has not started, or is shutting down. The token has been released; answer the task so.
    Stopped(T, Cause),
}

impl<'a, T, const TASKS: usize> Inbox<'a, T, TASKS> {
    /// Of a worker that has not started.
    pub const fn new() -> Self {
        Self {
            tasks: Deque::new(),
            running: false,
        }
    }

    /// The worker takes tasks from now on.
    pub const fn start(&mut self) {
        self.running = true;
    }

    /// Appends a task.
    pub fn submit(&mut self, task: T, mut token: Token<'a>) -> Result<(), Bounced<'a, T>> {
        if !self.running {
            token.release();
            return Err(Bounced::Stopped(task, Cause::ShutDown));
        }
        self.tasks
            .push_back((task, token))
            .map_err(|(task, token)| Bounced::Full(task, token))
    }

    /// The oldest task.
    pub fn take(&mut self) -> Option<(T, Token<'a>)> {
        self.tasks.pop_front()
    }

    /// Tasks in it.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The worker stops: every token is released, every task answered once, and no more are taken.
    pub fn shut_down(&mut self, mut answer: impl FnMut(T, Cause)) {
        self.running = false;
        while let Some((task, token)) = self.tasks.pop_front() {
            // First the token: who is told may submit elsewhere at once.
            drop(token);
            answer(task, Cause::ShutDown);
        }
    }
}

impl<T, const TASKS: usize> Default for Inbox<'_, T, TASKS> {
    fn default() -> Self {
        Self::new()
    }
}
