//! The initiator's half: lanes of one worker.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef};
use polyrail_core::work::{
    Cause, Completion, LaneFact, LaneLimits, POST_MAX, PostBatch, Posted, Scope, Stop, Work,
};
use polyrail_transport::clock::Clock;
use polyrail_transport::complain;
use polyrail_transport::memory::Region;
use polyrail_transport::numbered::Numbered;
use polyrail_transport::{Endpoint, LaneReport, Polled, RailAddress, RemoteRegion, Waits};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::copy_threads::Member;
use crate::far::Mappings;
use crate::lane::{self, End, Lane, Locals, Peer};
use crate::mailbox::{Mailbox, Processor, Withdrawn};
use crate::process::{OwnCookie, Process, is_hung_up};
use crate::reach::Asking;
use crate::wire::{Cookie, LaneName};
use crate::{TURN_BYTES, WORK_BYTES_MAX, WORKS_MAX};

const EVENTS_MAX: usize = 64;

/// Polls in a row that do not ask epoll, while nothing is waited for.
const UNASKED_MAX: u32 = 16;

/// How often the peer of a lane that copies is looked at. One that was killed is noticed so late after its socket
/// has closed.
const LOOK_INTERVAL: Duration = Duration::from_micros(100);

/// How often it is looked again for what nothing tells about: a taken offer of a lane that has ended, or a message
/// that did not fit.
const AGAIN: Duration = Duration::from_millis(1);

/// How long a lane may stand still. A thread that copies waits for a processor where others want them all; and a lane that is given
/// up by mistake has to be asked for anew, of a process that may be stopped.
const PATIENCE_MS: u16 = 250;

const LIMITS: LaneLimits = LaneLimits {
    // What the target has carried out completes before the facts of a fence: the count is nothing more.
    counts: true,
    patience_ms: PATIENCE_MS,
    ..LaneLimits::new(WORKS_MAX, WORK_BYTES_MAX)
};

const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// The lanes of one worker.
pub(crate) struct ShmEndpoint {
    clock: Clock,
    cookie: Arc<OwnCookie>,
    mappings: Arc<Mappings>,
    copy_threads: Member,
    epoll: OwnedFd,
    locals: Locals,
    remotes: Numbered<SegmentRef, RemoteRegion>,
    rails: Numbered<RailId, RailAddress>,
    /// Every lane that was ever opened, with its latest epoch.
    lanes: Numbered<LaneId, Slot>,
    /// How many of them are [`State::Opening`].
    opening: usize,
    /// Lanes with works that are not completed; the first one's turn is next.
    posting: VecDeque<LaneId>,
    /// Lanes that have ended while the target was pulling.
    ending: Vec<Ending>,
    /// Polls in a row that did not ask epoll.
    unasked: u32,
    /// Whoever drives this may have slept since the last poll, and been called to an answer.
    slept: Cell<bool>,
    /// What the next poll says first.
    facts: VecDeque<LaneReport>,
    /// And before that: what lanes that have ended had carried out.
    completions: Vec<Completion>,
}

/// A lane's latest epoch.
struct Slot {
    epoch: Epoch,
    /// When its peer was last seen.
    looked: Instant,
    state: State,
}

enum State {
    Opening {
        asking: Asking<Arc<OwnedFd>>,
        mailbox: Mailbox,
        /// What the mailbox is a mapping of.
        file: Arc<OwnedFd>,
        by: Instant,
    },
    Open(Box<Lane>),
    /// Failed, broken, fenced or closed.
    Over,
}

/// A lane of which the target has taken an offer and not answered: it may still read the source.
struct Ending {
    lane: LaneId,
    epoch: Epoch,
    was: Box<Lane>,
    /// Core has asked for the proof.
    is_awaited: bool,
}

impl Ending {
    /// Whether nothing of it is under way. A target that has hung up has returned from its last pull before.
    fn is_over(&self) -> bool {
        self.was.withdraw() == Withdrawn::All || is_hung_up(&self.was.socket)
    }

    /// Completes the works that the target has carried out by now.
    fn collect(&mut self, at: Instant, completions: &mut Vec<Completion>) {
        let Self { lane, epoch, .. } = *self;
        // One that was refused or has failed is an answer as well, and the last.
        let _ = self.was.collect(&mut |cookie, outcome| {
            completions.push(Completion {
                lane,
                epoch,
                cookie,
                at,
                outcome,
            });
        });
    }
}

impl ShmEndpoint {
    pub(crate) fn new(
        clock: Clock,
        cookie: Arc<OwnCookie>,
        mappings: Arc<Mappings>,
        copy_threads: Member,
    ) -> io::Result<Self> {
        Ok(Self {
            clock,
            cookie,
            mappings,
            copy_threads,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            locals: Locals::default(),
            remotes: Numbered::default(),
            rails: Numbered::default(),
            lanes: Numbered::default(),
            opening: 0,
            posting: VecDeque::new(),
            ending: Vec::new(),
            unasked: 0,
            slept: Cell::new(false),
            facts: VecDeque::new(),
            completions: Vec::new(),
        })
    }

    fn try_open(&self, lane: LaneId, epoch: Epoch, by: Instant) -> io::Result<State> {
        let address = self
            .rails
            .get(&lane.rail())
            .ok_or_else(|| io::Error::other("nobody has said where its rail runs"))?;
        let (mailbox, file) = Mailbox::new()?;
        let name = LaneName {
            lane: lane.0,
            epoch: epoch.0,
        };
        let file = Arc::new(file);
        let asking = Asking::greet(
            &address.own,
            address.session,
            address.secret.as_ref(),
            &self.cookie,
            Some((name, file.clone())),
        )?;
        let data = token(lane, epoch);
        epoll::add(&self.epoll, &asking.socket, data, EventFlags::IN)?;
        Ok(State::Opening {
            asking,
            mailbox,
            file,
            by,
        })
    }

    /// Asks epoll who has said something.
    fn ask(&mut self, out: &mut Polled) {
        self.unasked = 0;
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut events, Some(&AT_ONCE)) {
            Ok((events, _)) => {
                for event in events {
                    let token = event.data.u64();
                    self.hear(LaneId(token as u32), Epoch((token >> 32) as u32), out);
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => complain!("shm: epoll_wait: {error}"),
        }
    }

    /// Takes what the target of a lane says.
    fn hear(&mut self, lane: LaneId, epoch: Epoch, out: &mut Polled) {
        let Some(slot) = self.lanes.get_mut(&lane).filter(|slot| slot.epoch == epoch) else {
            return;
        };
        match &mut slot.state {
            State::Over => {}
            State::Opening {
                asking,
                mailbox,
                file,
                ..
            } => match answer(asking, &self.cookie, mailbox, file) {
                Ok(None) => {}
                Ok(Some((cookie, no_pull))) => {
                    let process = Process::of(&asking.socket, cookie).ok();
                    let peer = |process| Peer::new(process, no_pull.is_none());
                    self.opened(lane, process.and_then(peer), out);
                }
                Err(error) => {
                    log::debug!("shm: {lane:?} {epoch:?} not opened: {error}");
                    self.end(lane);
                    let failed = LaneFact::OpenFailed(Cause::Refused);
                    out.lanes.push(report(lane, epoch, failed));
                }
            },
            State::Open(open) => {
                if let Err(error) = open.hear(&self.mappings) {
                    log::debug!("shm: {lane:?} {epoch:?} broken: {error}");
                    self.broken(lane, epoch, End::Broken(Cause::Reset), out);
                }
            }
        }
    }

    fn opened(&mut self, lane: LaneId, peer: Option<Peer>, out: &mut Polled) {
        let Some(slot) = self.lanes.get_mut(&lane) else {
            return;
        };
        if let State::Opening {
            asking, mailbox, ..
        } = std::mem::replace(&mut slot.state, State::Over)
        {
            let open = Lane::new(asking.socket, mailbox, peer, self.copy_threads.clone());
            slot.state = State::Open(Box::new(open));
            self.opening -= 1;
            let opened = LaneFact::Opened { limits: LIMITS };
            out.lanes.push(report(lane, slot.epoch, opened));
        }
    }

    /// Gives lanes with works their turn, one after the other, until so much was moved.
    fn work(&mut self, out: &mut Polled) {
        let mut budget = TURN_BYTES;
        for _ in 0..self.posting.len() {
            let Some(lane) = self.posting.pop_front() else {
                return;
            };
            let goes_on = self.turn(lane, &mut budget, out);
            if goes_on {
                self.posting.push_back(lane);
            }
            if budget == 0 {
                return;
            }
        }
    }

    /// Carries on with one lane. Whether it has works left.
    fn turn(&mut self, lane: LaneId, budget: &mut u64, out: &mut Polled) -> bool {
        let Some(slot) = self.lanes.get_mut(&lane) else {
            return false;
        };
        let epoch = slot.epoch;
        let State::Open(open) = &mut slot.state else {
            return false;
        };
        let completion = |cookie, outcome| Completion {
            lane,
            epoch,
            cookie,
            at: Instant::ZERO,
            outcome,
        };
        let all = out.completions.len();
        let answered = open.collect(&mut |cookie, outcome| {
            out.completions.push(completion(cookie, outcome));
        });
        // What the target has said to be done is, whatever has become of it.
        let before = out.completions.len();
        let ended = answered.and_then(|()| {
            open.turn(&self.locals, budget, |cookie, outcome| {
                out.completions.push(completion(cookie, outcome));
            })
        });
        let now = self.clock.now();
        for done in &mut out.completions[all..] {
            done.at = now;
        }
        let looks = now.since(slot.looked) >= LOOK_INTERVAL;
        let ended = match looks && !open.is_sound() {
            // What was moved since the last look may not have been to or from the peer.
            true => {
                out.completions.truncate(before);
                Err(End::Broken(Cause::Reset))
            }
            false => ended,
        };
        if looks {
            slot.looked = now;
        }
        match ended {
            Ok(()) => open.is_posting(),
            Err(end) => {
                self.broken(lane, epoch, end, out);
                false
            }
        }
    }

    fn broken(&mut self, lane: LaneId, epoch: Epoch, end: End, out: &mut Polled) {
        self.end(lane);
        if let End::Broken(cause) = end {
            out.lanes.push(report(lane, epoch, LaneFact::Broken(cause)));
        }
    }

    /// Ends a lane: it touches nothing any more, unless the target is pulling for it. What that has pulled has completed.
    fn end(&mut self, lane: LaneId) {
        let Some(slot) = self.lanes.get_mut(&lane) else {
            return;
        };
        match std::mem::replace(&mut slot.state, State::Over) {
            State::Opening { .. } => self.opening -= 1,
            State::Over => {}
            State::Open(open) => {
                self.posting.retain(|other| *other != lane);
                let withdrawn = open.withdraw();
                let mut ending = Ending {
                    lane,
                    epoch: slot.epoch,
                    was: open,
                    is_awaited: false,
                };
                ending.collect(self.clock.now(), &mut self.completions);
                if withdrawn == Withdrawn::TakenMeanwhile {
                    // Its hanging up would keep epoll's descriptor ready.
                    let _ = epoll::delete(&self.epoll, &ending.was.socket);
                    self.ending.push(ending);
                }
            }
        }
    }

    fn check_ending(&mut self) {
        let Self {
            clock,
            facts,
            completions,
            ..
        } = self;
        self.ending.retain_mut(|ending| {
            let over = ending.is_over();
            if over {
                ending.collect(clock.now(), completions);
            }
            if over && ending.is_awaited {
                facts.extend(fenced(ending.lane, ending.epoch));
            }
            !over
        });
    }

    fn expire_openings(&mut self, now: Instant, out: &mut Polled) {
        if self.opening == 0 {
            return;
        }
        for (&lane, slot) in &mut self.lanes {
            if matches!(slot.state, State::Opening { by, .. } if by <= now) {
                slot.state = State::Over;
                self.opening -= 1;
                let failed = LaneFact::OpenFailed(Cause::Refused);
                out.lanes.push(report(lane, slot.epoch, failed));
            }
        }
    }

    fn open_lanes(&self) -> impl Iterator<Item = &Lane> {
        self.posting
            .iter()
            .filter_map(|lane| match &self.lanes.get(lane)?.state {
                State::Open(open) => Some(&**open),
                State::Opening { .. } | State::Over => None,
            })
    }
}

impl Endpoint for ShmEndpoint {
    fn attach_local(&mut self, segment: SegmentRef, region: Arc<Region>) {
        self.locals.insert(segment, region);
    }

    fn detach_local(&mut self, segment: SegmentRef) {
        self.locals.remove(&segment);
    }

    fn attach_remote(&mut self, segment: SegmentRef, region: RemoteRegion) {
        self.remotes.insert(segment, region);
    }

    fn detach_remote(&mut self, segment: SegmentRef) {
        let Some(region) = self.remotes.remove(&segment) else {
            return;
        };
        for slot in self.lanes.values_mut() {
            if let State::Open(open) = &mut slot.state {
                open.forget(region.key);
            }
        }
    }

    fn attach_rail(&mut self, rail: RailId, address: RailAddress) {
        self.rails.insert(rail, address);
    }

    fn forget_rail(&mut self, rail: RailId) {
        let lanes: Vec<_> = self.lanes.keys().copied().collect();
        for lane in lanes.into_iter().filter(|lane| lane.rail() == rail) {
            self.end(lane);
            self.lanes.remove(&lane);
        }
        self.rails.remove(&rail);
    }

    fn open(&mut self, lane: LaneId, epoch: Epoch, by: Instant) {
        self.end(lane);
        let state = match self.try_open(lane, epoch, by) {
            Ok(opening) => {
                self.opening += 1;
                opening
            }
            Err(error) => {
                log::debug!("shm: {lane:?} {epoch:?} not opened: {error}");
                let failed = LaneFact::OpenFailed(Cause::Refused);
                self.facts.push_back(report(lane, epoch, failed));
                State::Over
            }
        };
        let looked = Instant::ZERO;
        self.lanes.insert(
            lane,
            Slot {
                epoch,
                looked,
                state,
            },
        );
    }

    fn post(&mut self, batch: &PostBatch) -> Posted {
        let slot = self.lanes.get_mut(&batch.lane);
        let Some(Slot {
            state: State::Open(open),
            ..
        }) = slot.filter(|slot| slot.epoch == batch.epoch)
        else {
            return Posted {
                accepted: 0,
                stop: Stop::Rejected(Cause::Flushed),
            };
        };
        if !open.is_posting() {
            self.posting.push_back(batch.lane);
        }
        let mut posted = Posted {
            accepted: 0,
            stop: Stop::All,
        };
        for work in &batch.works {
            let local = self.locals.get(&work.local.segment);
            let remote = self.remotes.get(&work.remote.segment);
            match lane::check(work, local, remote) {
                Ok(key) if open.has_room() => open.push(*work, key),
                Ok(_) => posted.stop = Stop::Full,
                Err(cause) => posted.stop = Stop::Rejected(cause),
            }
            if posted.stop != Stop::All {
                break;
            }
            posted.accepted += 1;
        }
        posted
    }

    fn carry_at_once(&mut self, now: Instant, lane: LaneId, epoch: Epoch, works: &[Work]) -> bool {
        let slot = self.lanes.get_mut(&lane);
        let Some(slot) = slot.filter(|slot| slot.epoch == epoch) else {
            return false;
        };
        let State::Open(open) = &mut slot.state else {
            return false;
        };
        let mut checked = heapless::Vec::<_, POST_MAX>::new();
        for work in works {
            let local = self.locals.get(&work.local.segment);
            let remote = self.remotes.get(&work.remote.segment);
            let Ok(key) = lane::check(work, local, remote) else {
                return false;
            };
            if checked.push(lane::Posted::new(*work, key)).is_err() {
                return false;
            }
        }
        if !open.carry_at_once(&checked, &self.locals) {
            return false;
        }
        if now.since(slot.looked) >= LOOK_INTERVAL {
            // If it is not sound, the turn of what is posted instead looks too, and says so.
            if !open.is_sound() {
                return false;
            }
            slot.looked = now;
        }
        true
    }

    fn poll(&mut self, now: Instant, out: &mut Polled) {
        self.check_ending();
        out.lanes.extend(self.facts.drain(..));
        out.completions.append(&mut self.completions);
        let mut waits = self.slept.take() || self.opening > 0;
        for lane in self.open_lanes() {
            lane.look();
            waits |= lane.awaits_message();
        }
        self.unasked += 1;
        if waits || self.unasked >= UNASKED_MAX {
            self.ask(out);
        }
        self.work(out);
        // Of lanes that have broken just now.
        out.completions.append(&mut self.completions);
        self.expire_openings(now, out);
    }

    fn fence(&mut self, lane: LaneId, epoch: Epoch, scope: Scope) {
        // An older epoch ended when this one began; a newer one never began.
        if self.lanes.get(&lane).is_some_and(|s| s.epoch == epoch) {
            self.end(lane);
        }
        self.check_ending();
        let is_it = |ending: &&mut Ending| (ending.lane, ending.epoch) == (lane, epoch);
        match self.ending.iter_mut().find(is_it) {
            Some(ending) => {
                ending.is_awaited = true;
                let fact = LaneFact::Unfenceable { scope };
                self.facts.push_back(report(lane, epoch, fact));
            }
            // Copies of this side have returned, and what was offered is nobody's to pull any more.
            None => self.facts.extend(fenced(lane, epoch)),
        }
    }

    fn close(&mut self, lane: LaneId, epoch: Epoch) {
        if self.lanes.get(&lane).is_some_and(|s| s.epoch == epoch) {
            self.end(lane);
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn waits(&self) -> Waits {
        let here = Processor::here();
        let lanes = self.open_lanes().map(|lane| lane.waits(here));
        lanes.max().unwrap_or(Waits::Nothing)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let says = !self.facts.is_empty() || !self.completions.is_empty();
        if says || self.open_lanes().any(Lane::is_runnable) {
            return Some(Instant::ZERO);
        }
        let mut answered = false;
        for lane in self.open_lanes().filter(|lane| lane.is_offering()) {
            self.slept.set(true);
            answered |= lane.look_no_more();
        }
        if answered {
            return Some(Instant::ZERO);
        }
        let lanes = (self.opening > 0).then(|| self.lanes.values());
        let opening = lanes
            .into_iter()
            .flatten()
            .filter_map(|slot| match slot.state {
                State::Opening { by, .. } => Some(by),
                State::Open(_) | State::Over => None,
            });
        let again = !self.ending.is_empty() || self.open_lanes().any(Lane::is_unsent);
        let again = again.then(|| self.clock.now() + AGAIN);
        opening.chain(again).min()
    }
}

/// What the target says to a greeting. Once it has mapped the mailbox, that is fixed.
fn answer(
    asking: &mut Asking<Arc<OwnedFd>>,
    own: &OwnCookie,
    mailbox: &Mailbox,
    file: &OwnedFd,
) -> io::Result<Option<(Cookie, Option<String>)>> {
    let answer = asking.hear(own)?;
    if answer.is_some() {
        mailbox.fix(file)?;
    }
    Ok(answer)
}

fn token(lane: LaneId, epoch: Epoch) -> EventData {
    EventData::new_u64(u64::from(epoch.0) << 32 | u64::from(lane.0))
}

fn report(lane: LaneId, epoch: Epoch, fact: LaneFact) -> LaneReport {
    LaneReport { lane, epoch, fact }
}

/// Both facts of a fence: whoever copies for a lane is this side, or has answered.
fn fenced(lane: LaneId, epoch: Epoch) -> [LaneReport; 2] {
    [Scope::Local, Scope::Remote].map(|scope| {
        let delivered = None;
        report(lane, epoch, LaneFact::Fenced { scope, delivered })
    })
}
