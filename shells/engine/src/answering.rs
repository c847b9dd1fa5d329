//! Peers' calls on their way to the program, and the thread that carries them out: nothing of the engine's own waits
//! behind them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use polyrail_control::plane::CallAnswer;
use polyrail_transport::place::Place;
use polyrail_transport::{SessionId, mishap};

use crate::calls::{Caller, Calls};
use crate::ending::call;
use crate::engine::{Engine, Inner};
use crate::lock::lock;
use crate::thread::Thread;

/// Bytes of calls that may wait to be carried out: whoever has a session may send one, and the program takes its time.
const CALLS_BYTES_MAX: usize = 16 << 20;

/// Those of one address.
const PLACE_BYTES_MAX: usize = CALLS_BYTES_MAX / 2;

/// What a call takes beside its body.
const CALL_BYTES: usize = 256;

/// What a peer asks of the program.
pub(crate) struct Asked {
    pub(crate) session: SessionId,
    pub(crate) caller: Arc<Caller>,
    pub(crate) method: u16,
    pub(crate) body: Vec<u8>,
    pub(crate) answer: CallAnswer,
}

impl Asked {
    fn bytes(&self) -> usize {
        self.body.len() + CALL_BYTES
    }

    /// Where it came from. Sessions of one address are one here: whoever wants more turns would open more of them.
    fn place(&self) -> Option<Place> {
        let address: SocketAddr = self.caller.address.parse().ok()?;
        Some(Place::of(address.ip()))
    }
}

/// Calls of one address, in the order in which they came.
#[derive(Default)]
struct Line {
    calls: VecDeque<Asked>,
    bytes: usize,
}

#[derive(Default)]
struct Lines {
    lines: BTreeMap<Option<Place>, Line>,
    /// Whose turn it was last.
    last: Option<Place>,
    bytes: usize,
    /// The engine is ending: nothing is carried out any more.
    has_ended: bool,
}

impl Lines {
    /// Takes a call in, or gives it back: there is no room.
    fn add(&mut self, asked: Asked) -> Result<(), Asked> {
        let (place, bytes) = (asked.place(), asked.bytes());
        let held = self.lines.get(&place).map_or(0, |line| line.bytes);
        if self.has_ended || self.bytes + bytes > CALLS_BYTES_MAX || held + bytes > PLACE_BYTES_MAX
        {
            return Err(asked);
        }
        self.bytes += bytes;
        let line = self.lines.entry(place).or_default();
        line.bytes += bytes;
        line.calls.push_back(asked);
        Ok(())
    }

    /// Takes out the call whose turn it is: addresses take turns.
    fn next(&mut self) -> Option<Asked> {
        let behind = (Bound::Excluded(self.last), Bound::Unbounded);
        let next = self.lines.range(behind).next();
        let place = *next.or_else(|| self.lines.iter().next())?.0;
        self.last = place;
        let line = self.lines.get_mut(&place)?;
        let asked = line.calls.pop_front()?;
        let bytes = asked.bytes();
        line.bytes -= bytes;
        self.bytes -= bytes;
        if line.calls.is_empty() {
            self.lines.remove(&place);
        }
        Some(asked)
    }
}

/// Where calls wait.
#[derive(Default)]
pub(crate) struct Waiting {
    lines: Mutex<Lines>,
    /// There is a call, or nothing more is carried out.
    came: Condvar,
}

impl Waiting {
    /// Takes a call in, or answers that there is no room.
    pub(crate) fn add(&self, asked: Asked) {
        let added = lock(&self.lines).add(asked);
        match added {
            Ok(()) => self.came.notify_one(),
            Err(refused) => (refused.answer)(Err("too many calls wait to be carried out".into())),
        }
    }

    /// Waits for a call. `None`: nothing is carried out any more.
    fn take(&self) -> Option<Asked> {
        let mut lines = lock(&self.lines);
        loop {
            if lines.has_ended {
                return None;
            }
            if let Some(asked) = lines.next() {
                return Some(asked);
            }
            let waited = self.came.wait(lines);
            lines = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Carries nothing out any more after what is being carried out.
    fn end(&self) {
        let left = {
            let mut lines = lock(&self.lines);
            lines.has_ended = true;
            std::mem::take(&mut lines.lines)
        };
        self.came.notify_all();
        // Dropped unanswered; the callers have timeouts.
        drop(left);
    }
}

/// What carries peers' calls out for an engine.
pub(crate) struct Answering {
    calls: Arc<dyn Calls>,
    waiting: Arc<Waiting>,
    thread: Mutex<Option<Thread>>,
}

impl Answering {
    pub(crate) fn new(calls: Arc<dyn Calls>, waiting: Arc<Waiting>) -> Self {
        Self {
            calls,
            waiting,
            thread: Mutex::default(),
        }
    }

    /// Starts the thread that carries calls out.
    pub(crate) fn start(&self, engine: Weak<Inner>) -> io::Result<()> {
        let (calls, waiting) = (self.calls.clone(), self.waiting.clone());
        let run = move || run(&*calls, &waiting, &engine);
        *lock(&self.thread) = Some(Thread::start("polyrail-call".into(), run)?);
        Ok(())
    }

    /// Carries nothing out any more after what is being carried out.
    pub(crate) fn stop(&self) {
        self.waiting.end();
    }

    /// Waits for the thread, but not for as long as a program's call takes.
    pub(crate) fn join(&self) {
        if let Some(thread) = lock(&self.thread).take() {
            thread.join();
        }
    }
}

/// Carries calls out until the engine ends. One that panics takes no other one with it.
fn run(calls: &dyn Calls, waiting: &Waiting, engine: &Weak<Inner>) {
    while let Some(asked) = waiting.take() {
        let Some(engine) = engine.upgrade().map(Engine::from_inner) else {
            return;
        };
        // Those that come after it do not depend on it.
        if catch_unwind(AssertUnwindSafe(|| carry_out(calls, &engine, asked))).is_err() {
            let name = &engine.inner.config.name;
            log::error!("a call to engine \"{name}\" has panicked");
        }
    }
}

/// Carries a call out. A program that panics there has failed that call, and nothing else.
fn carry_out(calls: &dyn Calls, engine: &Engine, asked: Asked) {
    mishap::check();
    // Nobody hears what comes of it: a peer that comes and goes leaves no work.
    if engine.inner.guests.who(asked.session).is_none() {
        return;
    }
    let Some(engine) = engine.for_program() else {
        return (asked.answer)(Err("the engine is ending".into()));
    };
    let Asked {
        caller,
        method,
        body,
        answer,
        ..
    } = asked;
    let carry_out = || call(|| calls.call(&engine, &caller, method, &body));
    let result = catch_unwind(AssertUnwindSafe(carry_out));
    drop(body);
    answer(
        result.unwrap_or_else(|_| Err("the program panicked while it carried the call out".into())),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    use polyrail_transport::memory::TrustDomain;

    /// A call of a session from an address, with a body of so many bytes.
    fn asked(address: &str, session: u8, method: u16, bytes: usize) -> Asked {
        let caller = Caller {
            peer: String::new(),
            member: None,
            address: address.to_owned(),
            domain: None,
            trust: TrustDomain::COMMON,
        };
        Asked {
            session: SessionId([session; 16]),
            caller: Arc::new(caller),
            method,
            body: vec![0; bytes],
            answer: Box::new(|_| {}),
        }
    }

    #[test]
    fn addresses_take_turns_and_each_has_its_calls_carried_out_in_order() {
        let mut lines = Lines::default();
        let add = |lines: &mut Lines, address: &str, methods: std::ops::Range<u16>| {
            for method in methods {
                let asked = asked(address, method as u8, method, 10);
                assert!(lines.add(asked).is_ok());
            }
        };
        add(&mut lines, "10.0.0.1:1", 0..4);
        add(&mut lines, "10.0.0.1:2", 4..6);
        add(&mut lines, "10.0.0.2:1", 10..12);
        assert_eq!(lines.next().map(|asked| asked.method), Some(0));
        // Whoever comes later waits for one call of each other address.
        add(&mut lines, "10.0.0.3:1", 20..21);
        let order = std::iter::from_fn(|| lines.next()).map(|asked| asked.method);
        let order: Vec<_> = order.collect();
        assert_eq!(order, [10, 20, 1, 11, 2, 3, 4, 5]);
        assert_eq!((lines.bytes, lines.lines.len()), (0, 0));
    }

    #[test]
    fn calls_that_wait_have_so_much_room_and_an_address_has_half_of_it() {
        let mut lines = Lines::default();
        let whole = 64 << 10;
        let body = whole - CALL_BYTES;
        let fill = |lines: &mut Lines, address: &str| {
            let calls = std::iter::from_fn(|| lines.add(asked(address, 1, 1, body)).ok());
            calls.count() * whole
        };
        assert_eq!(fill(&mut lines, "10.0.0.1:1"), PLACE_BYTES_MAX);
        assert_eq!(fill(&mut lines, "10.0.0.2:1"), PLACE_BYTES_MAX);
        assert_eq!(fill(&mut lines, "10.0.0.3:1"), 0);
        // Calls without a body take room too.
        assert!(lines.add(asked("10.0.0.3:1", 1, 1, 0)).is_err());
        drop(lines.next());
        assert_eq!(fill(&mut lines, "10.0.0.3:1"), whole);
    }
}
