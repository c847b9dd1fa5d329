//! Lines of the log, on their way to Python's `logging`.
//!
//! Threads of the engine put them into a queue, and a thread of Python's takes them out. So no thread of the engine ever waits for
//! the interpreter, which may be busy, or at its end.

use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::*};
use std::sync::{Condvar, Mutex, PoisonError};

use log::{Level, LevelFilter, Log, Metadata, Record};
use pyo3::prelude::*;

use crate::engine::lock;

/// Lines that may wait. More are counted only.
const LINES_MAX: usize = 10_000;

/// The level as Python numbers it, who says it, and what.
type Line = (u32, String, String);

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lines: VecDeque<Line>,
    lost: usize,
    ended: bool,
}

/// The queue of this process. A forked child gets another one: somebody may hold the lock of its parent's for ever.
static QUEUE: AtomicPtr<Queue> = AtomicPtr::new(null_mut());

fn queue() -> &'static Queue {
    let known = QUEUE.load(Acquire);
    let queue = match known.is_null() {
        false => known,
        true => {
            let fresh = Box::into_raw(Box::<Queue>::default());
            match QUEUE.compare_exchange(null_mut(), fresh, AcqRel, Acquire) {
                Ok(_) => fresh,
                Err(other) => {
                    // SAFETY: made above, and nobody else knows it.
                    drop(unsafe { Box::from_raw(fresh) });
                    other
                }
            }
        }
    };
    // SAFETY: a queue that was put there is never freed.
    unsafe { &*queue }
}

struct ToQueue;

impl Log for ToQueue {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let level = match record.level() {
            Level::Error => 40,
            Level::Warn => 30,
            Level::Info => 20,
            Level::Debug | Level::Trace => 10,
        };
        let line = (level, name(record.target()), record.args().to_string());
        let queue = queue();
        let mut state = lock(&queue.state);
        if state.lines.len() < LINES_MAX {
            state.lines.push_back(line);
        } else {
            state.lost += 1;
        }
        drop(state);
        queue.changed.notify_one();
    }

    fn flush(&self) {}
}

/// The logger of a module: `polyrail.tcp.lane` of `polyrail_tcp::lane`.
fn name(target: &str) -> String {
    let dotted = target.replace("::", ".");
    match dotted.strip_prefix("polyrail_") {
        Some(rest) => format!("polyrail.{rest}"),
        None if dotted == "polyrail" || dotted.starts_with("polyrail.") => dotted,
        None => format!("polyrail.{dotted}"),
    }
}

/// Begins to log, if that has not begun, and looks which levels are asked for.
pub(crate) fn start(py: Python<'_>) -> PyResult<()> {
    py.import("polyrail._log")?.call_method0("start")?;
    Ok(())
}

/// Hands lines of this level, as Python numbers it, and above to the queue.
#[pyfunction]
pub(crate) fn log_to_queue(level: u32) {
    // Fails if this process runs the program `polyrail`, which logs for itself.
    let _ = log::set_logger(&ToQueue);
    log::set_max_level(match level {
        0..=10 => LevelFilter::Debug,
        11..=20 => LevelFilter::Info,
        21..=30 => LevelFilter::Warn,
        31..=40 => LevelFilter::Error,
        _ => LevelFilter::Off,
    });
}

/// Waits for a line. `None`: none will come any more.
#[pyfunction]
pub(crate) fn next_record(py: Python<'_>) -> Option<Line> {
    py.detach(|| {
        let queue = queue();
        let state = lock(&queue.state);
        let is_idle = |state: &mut State| state.lines.is_empty() && state.lost == 0 && !state.ended;
        let waited = queue.changed.wait_while(state, is_idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = state.lines.pop_front() {
            return Some(line);
        }
        match std::mem::take(&mut state.lost) {
            0 => None,
            lost => {
                let text = format!("{lost} lines were lost here, more than could wait");
                Some((30, "polyrail".into(), text))
            }
        }
    })
}

/// No lines will come any more.
#[pyfunction]
pub(crate) fn end_log() {
    let queue = queue();
    lock(&queue.state).ended = true;
    queue.changed.notify_all();
}

/// What a forked child begins with.
#[pyfunction]
pub(crate) fn forget_log() {
    let fresh = Box::into_raw(Box::<Queue>::default());
    // The old one stays where it is: threads of the parent may be in it.
    QUEUE.store(fresh, Release);
}
