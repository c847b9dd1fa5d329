//! A provider that lies in time, as a seed says: works take long or short, and pass those of other queue pairs; completions come late
//! or not at all; works fail with any status, half done; what was acknowledged is put into memory later; and calls that
//! end things hang.
//!
//! Works of one queue pair arrive in order, each once, and nothing does behind one that has not arrived: so it is on a wire. Packets
//! that have left go on, whatever becomes of the queue pair that sent them.

use std::collections::{HashMap, HashSet};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::ffi::raw::{self, SendWr};

use super::failing::Chance;
use super::held::Flying;
use super::spoiled::is_refusal;
use super::{FAILED, FLUSHED, LOCAL_PROTECTION, State, arrive, state, with};

static LYING: AtomicBool = AtomicBool::new(false);
static NEWS: Condvar = Condvar::new();
static THREAD: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);

/// One work in so many fails.
const FAILS_ONE_IN: u64 = 200;
/// One completion in so many is lost.
const LOST_ONE_IN: u64 = 300;
/// One work, or call that ends something, in so many takes long.
const LONG_ONE_IN: u64 = 64;
/// What that is, in microseconds; and what others take, at most.
const LONG_US: u64 = 30_000;
const SHORT_US: u64 = 300;
/// What they take where nothing fails, at most: longer than a fence does.
const DAWDLES_US: u64 = 100_000;
/// Packets of this many bytes are whole at every MTU.
const WHOLE_PACKETS: usize = 4096;

/// What is on its way while the provider lies.
pub(super) struct Lies {
    dice: Chance,
    /// Acknowledged bytes are put into memory later.
    places_late: bool,
    /// No work fails, and no completion is lost.
    is_mild: bool,
    flights: Vec<Flight>,
    /// Completions: when, of which work, with which status.
    answers: Vec<(Instant, Flying, c_int)>,
    unplaced: Vec<Unplaced>,
    /// When the last work, completion or bytes of a queue pair are due.
    last: HashMap<(Kind, u32), Instant>,
    /// Queue pairs whose wire has a gap.
    gaps: HashSet<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Arrives,
    Answers,
    Places,
}

/// A work, or a part of one.
struct Flight {
    at: Instant,
    flying: Flying,
    /// It has not left yet: it is read from memory when it arrives, if its queue pair still works then.
    is_live: bool,
    /// The status that it fails with; 0: it does not.
    fails: c_int,
}

/// Bytes that were acknowledged and are not in memory.
struct Unplaced {
    at: Instant,
    /// The queue pair that they came to.
    pair: u32,
    key: u32,
    to: u64,
    bytes: Vec<u8>,
}

/// From now on the provider lies as this seed says. `places_late`: also about what is in memory.
pub fn lie(seed: u64, places_late: bool) {
    begin(seed, places_late, false);
}

/// The same about time only, and more: all works do well, and say so.
pub fn dawdle(seed: u64) {
    begin(seed, false, true);
}

fn begin(seed: u64, places_late: bool, is_mild: bool) {
    be_honest();
    with(|state| {
        state.lies = Some(Lies {
            dice: Chance::new(seed, 0),
            places_late,
            is_mild,
            flights: Vec::new(),
            answers: Vec::new(),
            unplaced: Vec::new(),
            last: HashMap::new(),
            gaps: HashSet::new(),
        });
    });
    LYING.store(true, SeqCst);
    let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
    *thread = Some(thread::spawn(run));
}

/// It does not any more; what is on its way arrives.
pub fn be_honest() {
    LYING.store(false, SeqCst);
    NEWS.notify_all();
    let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(thread) = thread.take()
        && let Err(panic) = thread.join()
    {
        std::panic::resume_unwind(panic);
    }
}

pub(super) fn is_lying() -> bool {
    LYING.load(Relaxed)
}

/// A call that ends something takes its time.
pub(super) fn hang() {
    if !is_lying() {
        return;
    }
    let long = with(|state| {
        state
            .lies
            .as_mut()
            .is_some_and(|lies| lies.dice.one_in(LONG_ONE_IN))
    });
    if long {
        thread::sleep(Duration::from_micros(LONG_US));
    }
}

/// Lets what is on its way arrive, each when it is due; all of it, once nobody lies any more.
fn run() {
    loop {
        let honest = !LYING.load(SeqCst);
        let mut guard = state();
        let Some(of) = guard.as_mut() else { return };
        let now = Instant::now();
        // SAFETY: what is registered is mapped.
        let (next, waits) = unsafe { of.pass(now, honest) };
        if waits {
            // Whoever posts has the lock of a completion queue, and wants this one.
            drop(guard);
            thread::yield_now();
            continue;
        }
        if honest && next.is_none() {
            of.lies = None;
            return;
        }
        let longest = next.map_or(Duration::from_millis(20), |at| {
            at.saturating_duration_since(now)
        });
        drop(NEWS.wait_timeout(guard, longest));
    }
}

impl Lies {
    /// When something of a queue pair is due that comes behind all that did before.
    fn due(&mut self, kind: Kind, pair: u32) -> Instant {
        let us = match self.dice.one_in(LONG_ONE_IN) {
            true => LONG_US,
            false if self.is_mild && kind == Kind::Arrives => self.dice.draw() % DAWDLES_US,
            false => self.dice.draw() % SHORT_US,
        };
        let at = Instant::now() + Duration::from_micros(us);
        let last = self.last.entry((kind, pair)).or_insert(at);
        *last = at.max(*last);
        *last
    }

    /// All that is on its way.
    pub(super) fn flying(&self) -> impl Iterator<Item = &Flying> {
        self.flights.iter().map(|flight| &flight.flying)
    }

    /// Whether something that was posted to a queue pair has not been answered.
    pub(super) fn is_busy(&self, pair: u32) -> bool {
        let flies = self.flights.iter().any(|flight| flight.flying.own == pair);
        flies || self.answers.iter().any(|(_, flying, _)| flying.own == pair)
    }
}

impl State {
    /// A work leaves. `false`: it is to be looked at at once.
    ///
    /// # Safety
    ///
    /// The work has as many ranges as it says, and what is registered is mapped.
    pub(super) unsafe fn take_off(&mut self, number: u32, work: &SendWr) -> bool {
        // SAFETY: the caller's promise.
        let launched = unsafe { self.launch(number, work) };
        let is_ready = self
            .pairs
            .get(&number)
            .is_some_and(|own| own.state == raw::QPS_RTS);
        let Some(lies) = &mut self.lies else {
            return false;
        };
        let flying = match launched {
            Some(flying) => flying,
            // It is answered behind those before it.
            None if lies.is_busy(number) => {
                let status = if is_ready { LOCAL_PROTECTION } else { FLUSHED };
                Flying::refused(number, work, status)
            }
            None => return false,
        };
        let is_inline = work.send_flags & raw::SEND_INLINE != 0;
        let is_plain = flying.refused == 0 && flying.opcode != raw::WR_RDMA_WRITE_WITH_IMM;
        let fails = match is_plain && !lies.is_mild && lies.dice.one_in(FAILS_ONE_IN) {
            true => [1, 2, 4, 7, 9, 10, 11, 12, 13, 21][lies.dice.draw() as usize % 10],
            false => 0,
        };
        let is_live = is_plain && !is_inline && lies.dice.one_in(2);
        let mut parts = vec![flying];
        let whole = parts[0].bytes.len() / WHOLE_PACKETS * WHOLE_PACKETS;
        let is_cut = is_plain && !is_live && fails == 0 && parts[0].opcode == raw::WR_RDMA_WRITE;
        if is_cut && whole > 0 && whole < parts[0].bytes.len().max(whole + 1) && lies.dice.one_in(2)
        {
            let at = WHOLE_PACKETS * (1 + lies.dice.draw() as usize % (whole / WHOLE_PACKETS));
            parts = parts.remove(0).cut(at);
        }
        for flying in parts {
            let at = lies.due(Kind::Arrives, number);
            lies.flights.push(Flight {
                at,
                flying,
                is_live,
                fails,
            });
        }
        NEWS.notify_all();
        true
    }

    /// Does what is due, or all of it. When something is next; and whether an answer waits for a lock.
    ///
    /// # Safety
    ///
    /// What is registered is mapped.
    unsafe fn pass(&mut self, now: Instant, all: bool) -> (Option<Instant>, bool) {
        loop {
            let Some(lies) = &mut self.lies else {
                return (None, false);
            };
            // The first of those that are due first, so that those of one queue pair are in order.
            let first = (0..lies.flights.len()).min_by_key(|place| lies.flights[*place].at);
            match first.filter(|place| all || lies.flights[*place].at <= now) {
                Some(place) => {
                    let flight = lies.flights.remove(place);
                    // SAFETY: the caller's promise.
                    unsafe { self.come_down(flight) };
                }
                None => break,
            }
        }
        let Some(lies) = &mut self.lies else {
            return (None, false);
        };
        let is_due = |at: Instant| all || at <= now;
        lies.answers.sort_by_key(|(at, ..)| *at);
        while let Some(lies) = &mut self.lies
            && lies.answers.first().is_some_and(|(at, ..)| is_due(*at))
        {
            let (at, flying, status) = lies.answers.remove(0);
            if !self.say(&flying, status) {
                let lies = self.lies.as_mut();
                lies.into_iter()
                    .for_each(|lies| lies.answers.insert(0, (at, flying.clone(), status)));
                return (None, true);
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.place(|unplaced| is_due(unplaced.at)) };
        let Some(lies) = &self.lies else {
            return (None, false);
        };
        let flights = lies.flights.iter().map(|flight| flight.at);
        let answers = lies.answers.iter().map(|(at, ..)| *at);
        let unplaced = lies.unplaced.iter().map(|unplaced| unplaced.at);
        (flights.chain(answers).chain(unplaced).min(), false)
    }

    /// Puts acknowledged bytes into memory, in the order in which they came.
    ///
    /// # Safety
    ///
    /// What is registered is mapped.
    unsafe fn place(&mut self, is_it: impl Fn(&Unplaced) -> bool) {
        let Some(lies) = &mut self.lies else { return };
        let due: Vec<_> = lies
            .unplaced
            .extract_if(.., |unplaced| is_it(unplaced))
            .collect();
        for Unplaced { key, to, bytes, .. } in due {
            // Whatever deregisters memory has placed what was for it.
            if self.memory.contains_key(&key) {
                // SAFETY: it is registered, and so mapped.
                unsafe { bytes.as_ptr().copy_to(to as *mut u8, bytes.len()) };
            }
        }
    }

    /// All that has come to a queue pair is placed.
    ///
    /// # Safety
    ///
    /// What is registered is mapped.
    pub(super) unsafe fn place_of(&mut self, pair: u32) {
        // SAFETY: the caller's promise.
        unsafe { self.place(|unplaced| unplaced.pair == pair) };
    }

    /// All that has come to a device is.
    ///
    /// # Safety
    ///
    /// What is registered is mapped.
    pub(super) unsafe fn place_at(&mut self, device: usize) {
        let of_it = |(_, memory): &(&u32, &super::Memory)| memory.device == device;
        let keys = self.memory.iter().filter(of_it).map(|(key, _)| *key);
        let keys: HashSet<u32> = keys.collect();
        // SAFETY: the caller's promise.
        unsafe { self.place(|unplaced| keys.contains(&unplaced.key)) };
    }

    /// All that is for some memory is.
    ///
    /// # Safety
    ///
    /// What is registered is mapped.
    pub(super) unsafe fn place_in(&mut self, key: u32) {
        // SAFETY: the caller's promise.
        unsafe { self.place(|unplaced| unplaced.key == key) };
    }

    /// A work arrives, or a part of one.
    ///
    /// # Safety
    ///
    /// What is registered is mapped.
    unsafe fn come_down(&mut self, flight: Flight) {
        let Flight {
            mut flying,
            is_live,
            fails,
            ..
        } = flight;
        let own = flying.own;
        let is_ready = self
            .pairs
            .get(&own)
            .is_some_and(|own| own.state == raw::QPS_RTS);
        let has_gap = self
            .lies
            .as_ref()
            .is_some_and(|lies| lies.gaps.contains(&own));
        // What comes behind a failure is on its way already.
        let mut status = if has_gap && !flying.is_tail || is_live && !is_ready {
            FLUSHED
        // SAFETY: the caller's promise.
        } else if is_live && !unsafe { self.read_anew(&mut flying) } {
            LOCAL_PROTECTION
        } else {
            flying.refused
        };
        if status == 0 && fails != 0 {
            status = fails;
            let half = flying.bytes.len() / 2;
            // What is on its way behind the failure: nothing, if the peer refused it.
            let rest = flying
                .clone()
                .cut(half)
                .pop()
                .filter(|_| !is_refusal(fails));
            flying.bytes.truncate(half);
            // SAFETY: the caller's promise.
            unsafe { self.arrive_in_part(&flying) };
            if let Some(mut rest) = rest.filter(|rest| rest.opcode == raw::WR_RDMA_WRITE)
                && let Some(lies) = &mut self.lies
            {
                rest.says = false;
                rest.is_tail = true;
                let at = lies.due(Kind::Arrives, own);
                lies.flights.push(Flight {
                    at,
                    flying: rest,
                    is_live: false,
                    fails: 0,
                });
            }
            if let Some(peer) = self.pairs.get_mut(&flying.peer)
                && is_refusal(fails)
            {
                peer.state = FAILED;
            }
        } else if status == 0 {
            // SAFETY: the caller's promise.
            status = unsafe { self.come_in(&flying) };
        }
        if flying.is_tail {
            return;
        }
        let Some(lies) = &mut self.lies else { return };
        if status != 0 {
            lies.gaps.insert(own);
        }
        let is_lost = status == 0 && !lies.is_mild && lies.dice.one_in(LOST_ONE_IN);
        if flying.says && !is_lost || status != 0 {
            let at = lies.due(Kind::Answers, own);
            lies.answers.push((at, flying, status));
        }
    }

    /// The bytes of a work that leaves now are those that are there now. `false`: what it names is not registered any more.
    ///
    /// # Safety
    ///
    /// What is registered is mapped.
    unsafe fn read_anew(&self, flying: &mut Flying) -> bool {
        let (from, at) = match flying.opcode {
            raw::WR_RDMA_READ => {
                let length = flying.bytes.len() as u64;
                match self.find(
                    flying.peer,
                    flying.opcode,
                    flying.key,
                    flying.remote,
                    length,
                ) {
                    Ok(from) => (vec![(from, flying.bytes.len())], &mut flying.bytes),
                    Err(status) => {
                        flying.refused = status;
                        return true;
                    }
                }
            }
            _ => {
                let place = |(address, length, key): &(u64, u64, u32)| {
                    let found = self.memory.get(key)?.find(*address, *length)?;
                    Some((found, *length as usize))
                };
                match flying.ranges.iter().map(place).collect::<Option<Vec<_>>>() {
                    Some(from) => (from, &mut flying.bytes),
                    None => return false,
                }
            }
        };
        at.clear();
        for (from, length) in from {
            // SAFETY: registered.
            at.extend_from_slice(unsafe { std::slice::from_raw_parts(from as *const u8, length) });
        }
        true
    }

    /// A work, or a part, that was not lost on its way. Its status.
    ///
    /// # Safety
    ///
    /// What is registered is mapped.
    unsafe fn come_in(&mut self, flying: &Flying) -> c_int {
        if flying.refused != 0 {
            return flying.refused;
        }
        match flying.opcode {
            raw::WR_RDMA_WRITE_WITH_IMM => {
                // SAFETY: the caller's promise; queue pairs hold their queues.
                unsafe {
                    self.place_of(flying.peer);
                    arrive(self, flying.own, flying.immediate)
                }
            }
            raw::WR_RDMA_WRITE if self.lies.as_ref().is_some_and(|lies| lies.places_late) => {
                let to = match self.landing(flying) {
                    Ok(to) => to,
                    Err(status) => return status,
                };
                if let Some(lies) = &mut self.lies {
                    let at = lies.due(Kind::Places, flying.peer);
                    lies.unplaced.push(Unplaced {
                        at,
                        pair: flying.peer,
                        key: flying.key,
                        to,
                        bytes: flying.bytes.clone(),
                    });
                }
                super::count_packets(self, flying.own, flying.bytes.len() as u64);
                0
            }
            opcode => {
                // SAFETY: the caller's promise.
                let status = unsafe { self.arrive_in_part(flying) };
                if status == 0 && opcode == raw::WR_RDMA_WRITE && !flying.is_tail {
                    super::count_packets(self, flying.own, flying.bytes.len() as u64);
                }
                status
            }
        }
    }

    /// A queue pair gets a number: what was said of that before was of another one.
    pub(super) fn begin_number(&mut self, number: u32) {
        if let Some(lies) = &mut self.lies {
            lies.gaps.remove(&number);
        }
    }
}
