//! The lanes of one worker: copies between memories that this process can name, of which one is on a device.
//!
//! # Safety
//!
//! What a copy reads and writes is pinned until its event is over, and for ever if that cannot be known. That of a work whose
//! parts pass through slots is pinned until the last part is over.

mod detour;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef};
use polyrail_core::work::{
    Cause, Completion, LaneFact, LaneLimits, Op, Outcome, PostBatch, Posted, Scope, Stop, Work,
};
use polyrail_transport::clock::Clock;
use polyrail_transport::complain;
use polyrail_transport::memory::Region;
use polyrail_transport::numbered::Numbered;
use polyrail_transport::{Endpoint, LaneReport, Polled, RailAddress, RemoteRegion, Waits};
use rustix::event::{EventfdFlags, eventfd};

use crate::background::Hurry;
use crate::driver::{CudaError, Driver, End, Event, Stream};
use crate::far::{Far, FarEvent, Kept, Opening, Pin};
use crate::gpus::Gpus;
use crate::slots::{Detour, Landing, Slots};
use crate::{END_MAX, PATIENCE_MS, WORK_BYTES_MAX, WORKS_MAX};

const LIMITS: LaneLimits = LaneLimits {
    patience_ms: PATIENCE_MS,
    ..LaneLimits::new(WORKS_MAX, WORK_BYTES_MAX)
};

/// How long it takes at least until copies that are under way are looked at again.
const LOOK_MIN: Duration = Duration::from_micros(20);
/// And at most.
const LOOK_MAX: Duration = Duration::from_millis(1);
/// Whoever waits for a copy looks at it without a pause for so long: more than 64 MiB take between host and device.
pub(crate) const SHORT: Duration = Duration::from_millis(2);

/// Where bytes go, seen from the device that copies.
const INTO: usize = 0;
const OUT_OF: usize = 1;
const WITHIN: usize = 2;
const STREAMS: usize = 3;

/// One copy, of one work or of several that follow each other at both ends.
struct Run {
    ordinal: u32,
    stream: usize,
    to: End,
    from: End,
    bytes: u64,
    cookies: Vec<u64>,
    kept: Vec<Kept>,
    next: Next,
    /// One end is memory of the host that is not pinned as a whole.
    takes_detour: bool,
}

/// Why a copy is not on its way, or may not be.
enum Failed {
    /// It is not.
    Before(CudaError),
    /// It may be, and nothing will say that it is over.
    Unknown(CudaError),
}

/// What a work comes to.
enum Turn {
    Run(Run),
    /// Its far end is not known yet.
    Wait,
    /// It is done, with nothing to copy.
    Done,
}

/// What a work has to be like to go on with a run.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Next {
    op: Op,
    local: (SegmentRef, u64),
    remote: (SegmentRef, u64),
}

impl Next {
    fn at(work: &Work) -> Self {
        Self {
            op: work.op,
            local: (work.local.segment, work.local.offset),
            remote: (work.remote.segment, work.remote.offset),
        }
    }

    fn after(work: &Work) -> Self {
        let length = u64::from(work.length);
        Self {
            op: work.op,
            local: (work.local.segment, work.local.offset + length),
            remote: (work.remote.segment, work.remote.offset + length),
        }
    }
}

/// A copy on its way.
struct Flight {
    lane: LaneId,
    event: Event,
    /// Works that have ended when it is over, and how.
    ends: Vec<(u64, Outcome)>,
    kept: Vec<Kept>,
    /// It is to or from a slot.
    landing: Option<Landing>,
    posted_at: Instant,
    /// The event is behind the copy. The driver may have refused that while it took the copy: then it is asked again.
    is_marked: bool,
}

/// What a device does for this worker.
struct Queues {
    ordinal: u32,
    streams: [Stream; STREAMS],
    /// The last order that each stream waits for.
    seen: [u64; STREAMS],
    flights: [VecDeque<Flight>; STREAMS],
    /// When a copy of each stream was last seen to be over: the next one has begun then.
    over_at: [Instant; STREAMS],
    /// Works that pass through slots, of which a part is not on its way yet.
    detours: VecDeque<Detour>,
    /// Once a work has needed one.
    slots: Option<Slots>,
    spare: Vec<Event>,
}

impl Queues {
    /// Forgets all that is on its way or was to be: whose it is, and what has kept its memory.
    fn clear(&mut self) -> Vec<(LaneId, Vec<Kept>)> {
        let flights = self.flights.iter_mut().flat_map(|line| line.drain(..));
        let flights = flights.map(|flight| (flight.lane, flight.kept));
        let detours = self.detours.drain(..);
        flights
            .chain(detours.map(|detour| (detour.lane, detour.kept)))
            .collect()
    }
}

/// Memory of the host or of a device.
struct Near {
    region: Arc<Region>,
    /// It is known to be pinned as a whole, if it is on the host.
    is_pinned: bool,
}

/// A lane's latest epoch.
struct Slot {
    epoch: Epoch,
    open: bool,
    posted: u16,
    /// Those of them whose far end is not known yet, and what is behind them.
    waiting: VecDeque<Work>,
    /// It is to be told when nothing is posted any more.
    fencing: bool,
    /// The context of its device was lost while works were posted: they never end.
    haunted: bool,
}

pub(crate) struct CudaEndpoint {
    gpus: Arc<Gpus>,
    driver: Arc<dyn Driver>,
    far: Box<dyn Far>,
    clock: Clock,
    locals: Numbered<SegmentRef, Near>,
    rails: Numbered<RailId, u32>,
    lanes: Numbered<LaneId, Slot>,
    devices: Vec<Queues>,
    /// Devices whose context is lost.
    lost: Vec<u32>,
    facts: VecDeque<LaneReport>,
    /// And these completions.
    done: Vec<Completion>,
    /// Lanes whose works wait because the driver said "not now".
    put_off: Vec<LaneId>,
    events: Vec<FarEvent>,
    /// Never readable: copies are looked at.
    fd: OwnedFd,
}

impl CudaEndpoint {
    pub(crate) fn new(gpus: Arc<Gpus>, far: Box<dyn Far>, clock: Clock) -> io::Result<Self> {
        Ok(Self {
            driver: gpus.driver().clone(),
            gpus,
            far,
            clock,
            locals: Numbered::default(),
            rails: Numbered::default(),
            lanes: Numbered::default(),
            devices: Vec::new(),
            lost: Vec::new(),
            facts: VecDeque::new(),
            done: Vec::new(),
            put_off: Vec::new(),
            events: Vec::new(),
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// What it takes to carry a work out.
    fn turn(&mut self, lane: LaneId, work: &Work) -> Result<Turn, Cause> {
        let length = u64::from(work.length);
        let local = self.locals.get_mut(&work.local.segment);
        let on = local
            .as_ref()
            .and_then(|local| Some(local.region.device()?.ordinal()));
        let far = match self.far.pin(lane, work, on)? {
            Pin::There(far) => far,
            Pin::Wait => return Ok(Turn::Wait),
            Pin::Answered => return Ok(Turn::Done),
        };
        let local = local.ok_or(Cause::LocalProtection)?;
        local.is_pinned = local.is_pinned || on.is_none() && self.gpus.is_pinned(&local.region);
        let is_pinned = far.is_pinned && (on.is_some() || local.is_pinned);
        let takes_detour = !is_pinned && length > 0;
        let pinned = local.region.pin_any(work.local.offset, length);
        let pinned = pinned.ok_or(Cause::LocalProtection)?;
        let near = End {
            address: pinned.address().as_ptr() as u64,
            ordinal: on,
        };
        let (to, from) = match work.op {
            Op::Write => (far.end, near),
            Op::Read => (near, far.end),
        };
        let (ordinal, stream) = match (to.ordinal, from.ordinal) {
            (Some(_), Some(from)) => (from, WITHIN),
            (None, Some(from)) => (from, OUT_OF),
            (Some(to), None) => (to, INTO),
            (None, None) => return Err(Cause::LocalProtection),
        };
        if self.lost.contains(&ordinal) {
            return Err(self.far.refusal());
        }
        Ok(Turn::Run(Run {
            ordinal,
            stream,
            to,
            from,
            bytes: length,
            cookies: vec![work.cookie],
            kept: vec![Kept::Region { pinned }, far.kept],
            next: Next::after(work),
            takes_detour,
        }))
    }

    /// The streams of a device.
    fn queues(&mut self, ordinal: u32) -> Result<usize, CudaError> {
        let known = self.devices.iter().position(|of| of.ordinal == ordinal);
        if let Some(known) = known {
            return Ok(known);
        }
        self.gpus.attach(ordinal)?;
        let mut streams = [Stream(0); STREAMS];
        for position in 0..STREAMS {
            let made = self.driver.stream(ordinal).inspect_err(|_| {
                for made in &streams[..position] {
                    self.driver.end_stream(ordinal, *made);
                }
            });
            streams[position] = made?;
        }
        self.devices.push(Queues {
            ordinal,
            streams,
            seen: [0; STREAMS],
            flights: Default::default(),
            over_at: [Instant::ZERO; STREAMS],
            detours: VecDeque::new(),
            slots: None,
            spare: Vec::new(),
        });
        Ok(self.devices.len() - 1)
    }

    /// What has to be there before a copy is put into its stream. An error leaves nothing in it.
    fn make_ready(&mut self, run: &Run) -> Result<(usize, Event), CudaError> {
        let position = self.queues(run.ordinal)?;
        if let (Some(to), Some(from)) = (run.to.ordinal, run.from.ordinal) {
            // If it cannot, the driver goes through the host by itself.
            self.driver.reach(from, to)?;
        }
        let queues = &mut self.devices[position];
        let stream = queues.streams[run.stream];
        let ends = [run.to.ordinal, run.from.ordinal].into_iter().flatten();
        for ordinal in ends {
            let mut other = 0;
            let seen = match ordinal == run.ordinal {
                true => &mut queues.seen[run.stream],
                // Rare enough to be looked at in full each time.
                false => &mut other,
            };
            self.gpus.take_orders(ordinal, stream, seen)?;
        }
        let event = match queues.spare.pop() {
            Some(event) => event,
            None => self.driver.event(run.ordinal)?,
        };
        Ok((position, event))
    }

    /// Puts a copy into its stream.
    fn launch(&mut self, lane: LaneId, run: Run, at: Instant) -> Result<(), Failed> {
        let (position, event) = self.make_ready(&run).map_err(Failed::Before)?;
        let queues = &mut self.devices[position];
        let stream = queues.streams[run.stream];
        // SAFETY: both ends are pinned by `run.kept`, or kept by the lane, and `kept` goes only when the event is over.
        let copied = unsafe {
            self.driver
                .copy(run.ordinal, stream, run.to, run.from, run.bytes)
        };
        let said = match copied {
            Ok(()) => self.driver.record(run.ordinal, event, stream),
            Err(error @ CudaError::ContextLost { .. }) => Err(error),
            Err(error) => {
                queues.spare.push(event);
                return Err(Failed::Before(error));
            }
        };
        match said {
            Ok(()) | Err(CudaError::Busy { .. } | CudaError::Driver { .. }) => {
                let well = |cookie| (cookie, Outcome::Success);
                queues.flights[run.stream].push_back(Flight {
                    lane,
                    event,
                    ends: run.cookies.into_iter().map(well).collect(),
                    kept: run.kept,
                    landing: None,
                    posted_at: at,
                    is_marked: said.is_ok(),
                });
                Ok(())
            }
            Err(error) => {
                // It may be on its way, and nothing will ever say that it is over.
                self.gpus.note_leftovers();
                keep_for_ever(run.kept);
                Err(Failed::Unknown(error))
            }
        }
    }

    /// Notes that a device's context is lost: what it had to do has no known end.
    fn lose(&mut self, ordinal: u32, error: &CudaError) {
        if self.lost.contains(&ordinal) {
            return;
        }
        log::error!("{error}");
        self.lost.push(ordinal);
        let queues = self.devices.iter_mut().filter(|of| of.ordinal == ordinal);
        for (lane, kept) in queues.flat_map(Queues::clear) {
            self.gpus.note_leftovers();
            keep_for_ever(kept);
            if let Some(slot) = self.lanes.get_mut(&lane) {
                slot.haunted = true;
            }
        }
        for (&lane, slot) in &mut self.lanes {
            let is_of = self.rails.get(&lane.rail()) == Some(&ordinal);
            let epoch = slot.epoch;
            if slot.open && (is_of || slot.haunted) {
                slot.open = false;
                let fact = LaneFact::Broken(Cause::Fatal);
                self.facts.push_back(LaneReport { lane, epoch, fact });
            }
            if slot.haunted && std::mem::take(&mut slot.fencing) {
                self.facts.extend(unfenceable(lane, epoch));
            }
        }
    }

    /// Lets go of a lane's far end, so far as nothing of it is on its way.
    fn leave(&mut self, lane: LaneId) {
        let is_over = |slot: &Slot| !slot.haunted && slot.posted == slot.waiting.len() as u16;
        match self.lanes.get(&lane).is_none_or(is_over) {
            true => self.far.end(lane),
            false => self.far.abandon(lane),
        }
    }

    /// Looks which copies are over.
    fn look(&mut self, at: Instant, out: &mut Polled) {
        let mut lost = None;
        let mut over = Vec::new();
        let first = out.completions.len();
        for queues in &mut self.devices {
            let ordinal = queues.ordinal;
            for (position, line) in queues.flights.iter_mut().enumerate() {
                let stream = queues.streams[position];
                while let Some(first) = line.front_mut() {
                    match is_over(&*self.driver, ordinal, stream, first) {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(error @ CudaError::ContextLost { .. }) => {
                            lost = lost.or(Some((ordinal, error)));
                            break;
                        }
                        // It does not say that the copy is over, nor that it never will be.
                        Err(error) => {
                            if !matches!(error, CudaError::Busy { .. }) {
                                complain!("cuda: whether a copy is over is asked again: {error}");
                            }
                            break;
                        }
                    }
                    let Some(flight) = line.pop_front() else {
                        break;
                    };
                    queues.over_at[position] = at;
                    queues.spare.push(flight.event);
                    if let (Some(slots), Some(landing)) = (&mut queues.slots, flight.landing) {
                        if let Some(to) = landing.to {
                            // SAFETY: the copy into the slot is over, and the work's range is pinned: by this flight, or
                            // by what comes behind it.
                            unsafe { slots.empty(landing.slot, to, landing.bytes) };
                        }
                        slots.give(landing.slot);
                    }
                    drop(flight.kept);
                    let Some(slot) = self.lanes.get_mut(&flight.lane) else {
                        continue;
                    };
                    let (lane, epoch) = (flight.lane, slot.epoch);
                    slot.posted -= flight.ends.len() as u16;
                    let ends = flight.ends.into_iter();
                    out.completions
                        .extend(ends.map(|(cookie, outcome)| Completion {
                            lane,
                            epoch,
                            cookie,
                            at,
                            outcome,
                        }));
                    if slot.posted == 0 && std::mem::take(&mut slot.fencing) {
                        over.push((lane, epoch));
                    }
                }
            }
        }
        self.doubt(first, out);
        for (lane, epoch) in over {
            self.far.end(lane);
            self.facts.extend(fenced(lane, epoch));
        }
        if let Some((ordinal, error)) = lost {
            self.lose(ordinal, &error);
        }
        self.feed(at);
    }

    /// Takes back what has completed since the `first` of these on lanes whose far end has gone meanwhile.
    fn doubt(&mut self, first: usize, out: &mut Polled) {
        let mut last = None;
        let mut gone = Vec::new();
        for Completion { lane, .. } in &out.completions[first..] {
            // Those of one lane mostly come together.
            if last.replace(*lane) != Some(*lane) && !self.far.is_sound(*lane) {
                gone.push(*lane);
            }
        }
        for lane in gone {
            let Some(slot) = self.lanes.get_mut(&lane) else {
                continue;
            };
            out.completions.retain(|done| done.lane != lane);
            if std::mem::take(&mut slot.open) {
                let epoch = slot.epoch;
                let fact = LaneFact::Broken(Cause::Reset);
                self.facts.push_back(LaneReport { lane, epoch, fact });
            }
        }
    }

    /// Hears what far ends say.
    fn hear(&mut self, now: Instant, out: &mut Polled) {
        let mut events = std::mem::take(&mut self.events);
        self.far.poll(now, &mut events);
        for event in events.drain(..) {
            let (FarEvent::Opened(lane, epoch)
            | FarEvent::Refused(lane, epoch)
            | FarEvent::Broken(lane, epoch)
            | FarEvent::Again(lane, epoch)) = event;
            let slot = self.lanes.get_mut(&lane);
            let Some(slot) = slot.filter(|slot| slot.epoch == epoch) else {
                continue;
            };
            let fact = match event {
                FarEvent::Opened(..) => {
                    slot.open = true;
                    LaneFact::Opened { limits: LIMITS }
                }
                FarEvent::Refused(..) => {
                    self.far.end(lane);
                    LaneFact::OpenFailed(Cause::Refused)
                }
                FarEvent::Broken(..) if std::mem::take(&mut slot.open) => {
                    LaneFact::Broken(Cause::Reset)
                }
                FarEvent::Broken(..) => continue,
                FarEvent::Again(..) => {
                    self.go_on(lane);
                    continue;
                }
            };
            self.facts.push_back(LaneReport { lane, epoch, fact });
        }
        self.events = events;
        out.completions.append(&mut self.done);
    }

    /// Posts works that have waited.
    fn go_on(&mut self, lane: LaneId) {
        let Some(slot) = self.lanes.get_mut(&lane).filter(|slot| slot.open) else {
            return;
        };
        let epoch = slot.epoch;
        let mut waiting = std::mem::take(&mut slot.waiting);
        let posted = self.post_all(lane, waiting.make_contiguous(), usize::MAX);
        let rest = waiting.split_off(posted.accepted);
        let at = self.clock.now();
        let Some(slot) = self.lanes.get_mut(&lane) else {
            return;
        };
        match posted.stop {
            Stop::All | Stop::Full => slot.waiting.extend(rest),
            // Those that were taken have to end; of these, nothing has begun.
            Stop::Rejected(cause) => {
                slot.posted -= rest.len() as u16;
                let causes = std::iter::once(cause).chain(std::iter::repeat(Cause::Flushed));
                let failed = rest.iter().zip(causes).map(|(work, cause)| Completion {
                    lane,
                    epoch,
                    cookie: work.cookie,
                    at,
                    outcome: Outcome::Error(cause),
                });
                self.done.extend(failed);
            }
            // Broken was said; they never end.
            Stop::Unknown => {}
        }
    }

    /// When each copy or work has begun that is next to end, at the latest.
    fn begun(&self) -> impl Iterator<Item = Instant> {
        self.devices.iter().flat_map(|queues| {
            let streams = queues.flights.iter().zip(queues.over_at);
            let flights =
                streams.filter_map(|(line, over_at)| Some(line.front()?.posted_at.max(over_at)));
            flights.chain(queues.detours.front().map(|detour| detour.posted_at))
        })
    }

    /// Begins works from the first one on, until one cannot be. Those that wait count as such.
    fn post_all(&mut self, lane: LaneId, works: &[Work], room: usize) -> Posted {
        let at = self.clock.now();
        let mut accepted = 0;
        let stop = loop {
            let Some(first) = works.get(accepted) else {
                break Stop::All;
            };
            if accepted >= room {
                break Stop::Full;
            }
            let mut run = match self.turn(lane, first) {
                Ok(Turn::Run(run)) => run,
                Ok(Turn::Done) => {
                    self.complete(lane, first, at);
                    accepted += 1;
                    continue;
                }
                Ok(Turn::Wait) => break Stop::Full,
                Err(cause) => break Stop::Rejected(cause),
            };
            for work in works[accepted + 1..].iter().take(room - accepted - 1) {
                if run.takes_detour || Next::at(work) != run.next {
                    break;
                }
                let Ok(Turn::Run(more)) = self.turn(lane, work) else {
                    break;
                };
                run.bytes += more.bytes;
                run.cookies.extend(more.cookies);
                run.kept.extend(more.kept);
                run.next = more.next;
            }
            let (ordinal, count) = (run.ordinal, run.cookies.len());
            let begun = match run.takes_detour {
                true => self.divert(lane, run, at),
                false => self.launch(lane, run, at),
            };
            match begun {
                Ok(()) => accepted += count,
                Err(Failed::Before(error @ CudaError::ContextLost { .. })) => {
                    self.lose(ordinal, &error);
                    break Stop::Rejected(Cause::Fatal);
                }
                Err(Failed::Unknown(error)) => {
                    if let Some(slot) = self.lanes.get_mut(&lane) {
                        slot.haunted = true;
                    }
                    self.lose(ordinal, &error);
                    break Stop::Unknown;
                }
                Err(Failed::Before(CudaError::Busy { .. })) => {
                    if !self.put_off.contains(&lane) {
                        self.put_off.push(lane);
                    }
                    break Stop::Full;
                }
                Err(Failed::Before(error)) => {
                    complain!("a copy was not begun: {error}");
                    break Stop::Rejected(self.far.refusal());
                }
            }
        };
        self.feed(at);
        Posted { accepted, stop }
    }

    /// A work is done without a copy.
    fn complete(&mut self, lane: LaneId, work: &Work, at: Instant) {
        if let Some(slot) = self.lanes.get_mut(&lane) {
            slot.posted = slot.posted.wrapping_sub(1);
            self.done.push(Completion {
                lane,
                epoch: slot.epoch,
                cookie: work.cookie,
                at,
                outcome: Outcome::Success,
            });
        }
    }
}

/// Whether a copy is over.
fn is_over(
    driver: &dyn Driver,
    ordinal: u32,
    stream: Stream,
    flight: &mut Flight,
) -> Result<bool, CudaError> {
    if !flight.is_marked {
        // What has come into the stream since is waited for as well.
        driver.record(ordinal, flight.event, stream)?;
        flight.is_marked = true;
    }
    driver.is_over(ordinal, flight.event)
}

/// Memory that a device may touch until the process ends.
fn keep_for_ever(kept: Vec<Kept>) {
    for kept in kept {
        match kept {
            Kept::Region { pinned } => pinned.forsake(),
            Kept::Import { of } => std::mem::forget(of),
        }
    }
}

/// The copy is over on both sides at once.
fn fenced(lane: LaneId, epoch: Epoch) -> [LaneReport; 2] {
    [Scope::Local, Scope::Remote].map(|scope| {
        let fact = LaneFact::Fenced {
            scope,
            delivered: None,
        };
        LaneReport { lane, epoch, fact }
    })
}

fn unfenceable(lane: LaneId, epoch: Epoch) -> [LaneReport; 2] {
    [Scope::Local, Scope::Remote].map(|scope| {
        let fact = LaneFact::Unfenceable { scope };
        LaneReport { lane, epoch, fact }
    })
}

impl Endpoint for CudaEndpoint {
    fn attach_local(&mut self, segment: SegmentRef, region: Arc<Region>) {
        let _hurry = Hurry::begin();
        let near = Near {
            region,
            is_pinned: false,
        };
        self.locals.insert(segment, near);
    }

    fn detach_local(&mut self, segment: SegmentRef) {
        let _hurry = Hurry::begin();
        self.locals.remove(&segment);
    }

    fn attach_remote(&mut self, segment: SegmentRef, region: RemoteRegion) {
        let _hurry = Hurry::begin();
        self.far.attach(segment, region);
    }

    fn detach_remote(&mut self, segment: SegmentRef) {
        let _hurry = Hurry::begin();
        self.far.detach(segment);
    }

    fn attach_rail(&mut self, rail: RailId, address: RailAddress) {
        let _hurry = Hurry::begin();
        if let Ok(ordinal) = <[u8; 4]>::try_from(&*address.own) {
            self.rails.insert(rail, u32::from_le_bytes(ordinal));
        }
        self.far.attach_rail(rail, address);
    }

    fn forget_rail(&mut self, rail: RailId) {
        let _hurry = Hurry::begin();
        let lanes: Vec<_> = self.lanes.keys().copied().collect();
        for lane in lanes.into_iter().filter(|lane| lane.rail() == rail) {
            self.leave(lane);
            self.lanes.remove(&lane);
        }
        self.rails.remove(&rail);
    }

    fn open(&mut self, lane: LaneId, epoch: Epoch, by: Instant) {
        let _hurry = Hurry::begin();
        self.leave(lane);
        let ordinal = self.rails.get(&lane.rail());
        let lost = ordinal.is_some_and(|ordinal| self.lost.contains(ordinal));
        let opening = match lost {
            true => Opening::Failed,
            false => self.far.open(lane, epoch, by),
        };
        let slot = Slot {
            epoch,
            open: matches!(opening, Opening::Now),
            posted: 0,
            waiting: VecDeque::new(),
            fencing: false,
            haunted: false,
        };
        self.lanes.insert(lane, slot);
        let fact = match opening {
            Opening::Now => LaneFact::Opened { limits: LIMITS },
            Opening::Later => return,
            Opening::Failed if lost => LaneFact::OpenFailed(Cause::Fatal),
            Opening::Failed => LaneFact::OpenFailed(Cause::Refused),
        };
        self.facts.push_back(LaneReport { lane, epoch, fact });
    }

    fn post(&mut self, batch: &PostBatch) -> Posted {
        let _hurry = Hurry::begin();
        let is_open = |row: &&Slot| row.open && row.epoch == batch.epoch;
        let row = self.lanes.get(&batch.lane).filter(is_open);
        let Some((room, waits)) =
            row.map(|row| (usize::from(WORKS_MAX - row.posted), !row.waiting.is_empty()))
        else {
            return Posted {
                accepted: 0,
                stop: Stop::Rejected(Cause::Flushed),
            };
        };
        let mut posted = match waits {
            // Behind those that were there before.
            true => Posted {
                accepted: 0,
                stop: Stop::Full,
            },
            false => self.post_all(batch.lane, &batch.works, room),
        };
        let Some(row) = self.lanes.get_mut(&batch.lane) else {
            return posted;
        };
        if posted.stop == Stop::Full && posted.accepted < room {
            let rest = batch.works[posted.accepted..]
                .iter()
                .take(room - posted.accepted);
            row.waiting.extend(rest.clone());
            posted.accepted += rest.len();
            if posted.accepted == batch.works.len() {
                posted.stop = Stop::All;
            }
        }
        row.posted = row.posted.wrapping_add(posted.accepted as u16);
        posted
    }

    fn poll(&mut self, now: Instant, out: &mut Polled) {
        let _hurry = Hurry::begin();
        if self.begun().next().is_some() {
            let at = self.clock.now();
            self.look(at, out);
        }
        for lane in std::mem::take(&mut self.put_off) {
            self.go_on(lane);
        }
        self.hear(now, out);
        out.lanes.extend(self.facts.drain(..));
    }

    fn fence(&mut self, lane: LaneId, epoch: Epoch, _: Scope) {
        let _hurry = Hurry::begin();
        if let Some(row) = self.lanes.get_mut(&lane).filter(|row| row.epoch == epoch) {
            row.open = false;
            if row.haunted {
                return self.facts.extend(unfenceable(lane, epoch));
            }
            row.posted -= row.waiting.len() as u16;
            row.waiting.clear();
            row.fencing = row.posted > 0;
            if row.fencing {
                return;
            }
            self.far.end(lane);
        }
        self.facts.extend(fenced(lane, epoch));
    }

    fn close(&mut self, lane: LaneId, epoch: Epoch) {
        let _hurry = Hurry::begin();
        if let Some(row) = self.lanes.get_mut(&lane).filter(|row| row.epoch == epoch) {
            row.open = false;
            self.leave(lane);
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.far.fd().unwrap_or(self.fd.as_fd())
    }

    fn waits(&self) -> Waits {
        let Some(latest) = self.begun().max() else {
            return Waits::Nothing;
        };
        match self.clock.now().since(latest) <= SHORT {
            true => Waits::Device,
            false => Waits::Long,
        }
    }

    /// The longer a copy takes, the later it may be seen to be over.
    fn poll_timeout(&self) -> Option<Instant> {
        if !(self.facts.is_empty() && self.done.is_empty()) {
            return Some(Instant::ZERO);
        }
        let now = self.clock.now();
        let looks = self.begun().map(|begun| {
            let span = Duration::from_nanos(now.since(begun).as_nanos() / 8);
            now + span.clamp(LOOK_MIN, LOOK_MAX)
        });
        let again = (!self.put_off.is_empty()).then(|| now + LOOK_MAX);
        looks.chain(again).chain(self.far.due()).min()
    }
}

impl Drop for CudaEndpoint {
    /// Waits for what is on its way, for a while; else it is left as it is.
    fn drop(&mut self) {
        let until = std::time::Instant::now() + END_MAX;
        let mut out = Polled::default();
        while self.begun().next().is_some() && std::time::Instant::now() < until {
            self.look(Instant::ZERO, &mut out);
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        let lanes: Vec<_> = self.lanes.keys().copied().collect();
        for lane in lanes {
            self.leave(lane);
        }
        for mut queues in self.devices.drain(..) {
            let ordinal = queues.ordinal;
            let gates = queues.detours.iter().filter_map(|detour| detour.gate);
            let flights = queues.flights.iter().flatten().map(|flight| flight.event);
            for event in gates.chain(flights) {
                self.driver.end_event(ordinal, event);
            }
            for (_, kept) in queues.clear() {
                self.gpus.note_leftovers();
                keep_for_ever(kept);
            }
            for stream in queues.streams {
                self.driver.end_stream(ordinal, stream);
            }
            for event in queues.spare {
                self.driver.end_event(ordinal, event);
            }
        }
    }
}
