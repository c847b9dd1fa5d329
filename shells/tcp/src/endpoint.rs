//! The initiator's half: lanes of one worker, and one epoll over them.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use polyrail_core::time::{Duration as CoreDuration, Instant};
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef};
use polyrail_core::work::{Cause, Completion, LaneFact, PostBatch, Posted, Scope, Stop};
use polyrail_transport::clock::Clock;
use polyrail_transport::complain;
use polyrail_transport::memory::Region;
use polyrail_transport::numbered::Numbered;
use polyrail_transport::{
    Endpoint, LaneReport, Polled, RailAddress, RemoteRegion, Waits, timespec, until_ready,
};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use socket2::SockRef;

use crate::lane::{self, End, Lane, Locals};
use crate::opening::Opening;

/// Lanes that one [`Endpoint::poll`] looks at. The kernel hands out ready ones in turn.
const EVENTS_MAX: usize = 64;

/// Polls in a row that look at one lane only.
const UNASKED_MAX: u32 = 16;

/// So many polls in a row have to find something on one lane before it is taken out of epoll.
const ALONE_MIN: u32 = 16;

/// How long a lane stays out of epoll although nothing is found on it. Longer than a worker's thread leaves the work to
/// those who wait, so that it need not be called for that.
const ALONE_MAX: CoreDuration = CoreDuration::from_millis(8);

/// What epoll says for the descriptor of [`Endpoint::sleep`]. Epochs count from 1, so no lane's is so large.
const CALL: u64 = u64::MAX;

const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// The lanes of one worker.
pub(crate) struct TcpEndpoint {
    /// What its lanes ask for at a target.
    transport: &'static str,
    clock: Clock,
    epoll: OwnedFd,
    locals: Locals,
    remotes: Numbered<SegmentRef, RemoteRegion>,
    rails: Numbered<RailId, RailAddress>,
    /// Every lane that was ever opened, with its latest epoch.
    lanes: Numbered<LaneId, Slot>,
    /// How many of them are [`State::Opening`].
    opening: usize,
    /// How many lanes have works that are not completed.
    posting: usize,
    /// The lane that works were last posted on.
    posted_last: LaneId,
    /// Polls in a row that did not ask epoll.
    unasked: u32,
    /// Polls in a row that found something on that lane, and on no other.
    steady: u32,
    /// A lane that epoll does not know now, and when something was last found on it.
    ///
    /// Whatever comes for a socket that epoll knows is told to it, whether anybody sleeps there or not, on the
    /// processor of the sender and under a lock. While one lane is looked at all the time that is for nothing.
    alone: Option<(LaneId, Instant)>,
    /// What epoll said when it ended a sleep; the next poll starts with it.
    ready: heapless::Vec<u64, EVENTS_MAX>,
    /// The descriptor of whoever may end a sleep, as epoll knows it.
    call: Option<RawFd>,
    /// Whether whoever polls spins.
    spinning: bool,
    /// What the next poll says first.
    facts: VecDeque<LaneReport>,
}

/// A lane's latest epoch.
struct Slot {
    epoch: Epoch,
    /// What epoll was told to wait for.
    interest: EventFlags,
    /// Whether works on it are not completed.
    posting: bool,
    state: State,
}

enum State {
    Opening(Box<Opening>),
    Open(Lane),
    /// Failed, broken, fenced or closed: there is no socket any more.
    Over,
}

impl Slot {
    /// Notes whether works wait on it, in the number of lanes of which that is so.
    fn count(&mut self, posting: &mut usize) {
        let now = matches!(&self.state, State::Open(lane) if lane.is_posting());
        *posting = *posting + usize::from(now) - usize::from(self.posting);
        self.posting = now;
    }
}

impl State {
    fn stream(&self) -> Option<&TcpStream> {
        match self {
            Self::Opening(opening) => Some(&opening.stream),
            Self::Open(lane) => Some(&lane.stream),
            Self::Over => None,
        }
    }

    fn interest(&self) -> EventFlags {
        match self {
            Self::Opening(opening) => opening.interest(),
            Self::Open(lane) => lane.interest(),
            Self::Over => EventFlags::empty(),
        }
    }
}

impl TcpEndpoint {
    pub(crate) fn new(transport: &'static str, clock: Clock) -> io::Result<Self> {
        Ok(Self {
            transport,
            clock,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            locals: Numbered::default(),
            remotes: Numbered::default(),
            rails: Numbered::default(),
            lanes: Numbered::default(),
            opening: 0,
            posting: 0,
            posted_last: LaneId(0),
            unasked: 0,
            steady: 0,
            alone: None,
            ready: heapless::Vec::new(),
            call: None,
            spinning: false,
            facts: VecDeque::new(),
        })
    }

    fn try_open(&mut self, lane: LaneId, epoch: Epoch, by: Instant) -> io::Result<Slot> {
        let address = self.rails.get(&lane.rail());
        let address = address.ok_or_else(|| io::Error::other("its rail was not attached"))?;
        let state = State::Opening(Box::new(Opening::start(
            self.transport,
            address,
            lane,
            epoch,
            by,
        )?));
        let interest = state.interest();
        if let Some(stream) = state.stream() {
            epoll::add(&self.epoll, stream, token(lane, epoch), interest)?;
        }
        Ok(Slot {
            epoch,
            interest,
            posting: false,
            state,
        })
    }

    /// Carries on with one lane that the kernel has something for.
    fn turn(&mut self, lane: LaneId, epoch: Epoch, out: &mut Polled) {
        let Some(slot) = self.lanes.get_mut(&lane).filter(|slot| slot.epoch == epoch) else {
            return;
        };
        match &mut slot.state {
            State::Over => {}
            State::Opening(opening) => match opening.advance() {
                Ok(None) => self.rearm(lane),
                Ok(Some(limits)) => {
                    self.opening -= 1;
                    if let State::Opening(opening) = std::mem::replace(&mut slot.state, State::Over)
                    {
                        slot.state = State::Open(Lane::new(*opening, limits));
                    }
                    out.lanes
                        .push(report(lane, epoch, LaneFact::Opened { limits }));
                    self.rearm(lane);
                }
                Err(error) => {
                    log::debug!("tcp: {lane:?} {epoch:?} not opened: {error}");
                    self.end(lane);
                    let failed = LaneFact::OpenFailed(Cause::Refused);
                    out.lanes.push(report(lane, epoch, failed));
                }
            },
            State::Open(open) => {
                let mut at = None;
                let ended = open.turn(&self.locals, self.spinning, |cookie, outcome| {
                    out.completions.push(Completion {
                        lane,
                        epoch,
                        cookie,
                        at: lane::stamp(&mut at, || self.clock.now()),
                        outcome,
                    });
                });
                match ended {
                    Ok(()) => self.rearm(lane),
                    Err(End::Failed) => self.end(lane),
                    Err(End::Broken(cause)) => {
                        self.end(lane);
                        out.lanes.push(report(lane, epoch, LaneFact::Broken(cause)));
                    }
                }
            }
        }
    }

    /// Takes a lane out of epoll, if it is looked at often enough.
    fn leave_alone(&mut self, lane: LaneId, now: Instant) {
        match &mut self.alone {
            Some((_, since)) => *since = now,
            None => {
                let slot = self.lanes.get(&lane);
                let Some(stream) = slot.and_then(|slot| slot.state.stream()) else {
                    return;
                };
                match epoll::delete(&self.epoll, stream) {
                    Ok(()) => self.alone = Some((lane, now)),
                    Err(error) => complain!("tcp: epoll_ctl for {lane:?}: {error}"),
                }
            }
        }
    }

    /// Puts the lane that was taken out of epoll back.
    fn put_back(&mut self) {
        self.steady = 0;
        let Some((lane, _)) = self.alone.take() else {
            return;
        };
        let Some(slot) = self.lanes.get(&lane) else {
            return;
        };
        if let Some(stream) = slot.state.stream()
            && let Err(error) =
                epoll::add(&self.epoll, stream, token(lane, slot.epoch), slot.interest)
        {
            complain!("tcp: epoll_ctl for {lane:?}: {error}");
            let broken = report(lane, slot.epoch, LaneFact::Broken(Cause::Reset));
            self.end(lane);
            self.facts.push_back(broken);
        }
    }

    /// Tells epoll what a lane now waits for, if that changed.
    fn rearm(&mut self, lane: LaneId) {
        let Some(slot) = self.lanes.get_mut(&lane) else {
            return;
        };
        slot.count(&mut self.posting);
        let interest = slot.state.interest();
        let Some(stream) = slot.state.stream().filter(|_| interest != slot.interest) else {
            return;
        };
        if self.alone.is_some_and(|(alone, _)| alone == lane) {
            slot.interest = interest;
            return;
        }
        let token = token(lane, slot.epoch);
        match epoll::modify(&self.epoll, stream, token, interest) {
            Ok(()) => slot.interest = interest,
            // It stays registered as it was; a lane that then makes no progress is core's to notice.
            Err(error) => complain!("tcp: epoll_ctl for {lane:?}: {error}"),
        }
    }

    /// Takes a lane's socket away, with all it had not sent, and forgets its works.
    fn end(&mut self, lane: LaneId) {
        self.alone.take_if(|(alone, _)| *alone == lane);
        let Some(slot) = self.lanes.get_mut(&lane) else {
            return;
        };
        if let State::Opening(_) = slot.state {
            self.opening -= 1;
        }
        if let Some(stream) = slot.state.stream() {
            abort(stream);
        }
        // Drops the socket, which takes it out of epoll.
        slot.state = State::Over;
        slot.count(&mut self.posting);
    }

    /// Looks at the lane that most likely has something, and not at the others: `true` if that will do.
    ///
    /// While works wait on one lane only, its socket is asked itself, which saves asking epoll first. The
    /// other lanes' turn comes every few polls, and before every sleep.
    fn poll_last(&mut self, now: Instant, out: &mut Polled) -> bool {
        let will_do = self.posting <= 1 && self.opening == 0 && self.unasked < UNASKED_MAX;
        if !will_do {
            self.unasked = 0;
            return false;
        }
        self.unasked += 1;
        let lane = self.posted_last;
        let slot = self.lanes.get(&lane).filter(|slot| slot.posting);
        if let Some(epoch) = slot.map(|slot| slot.epoch) {
            let before = out.completions.len();
            self.turn(lane, epoch, out);
            if out.completions.len() > before {
                self.steady = self.steady.saturating_add(1);
                if self.spinning && self.steady >= ALONE_MIN {
                    self.leave_alone(lane, now);
                }
            }
        }
        true
    }

    /// Asks epoll who is ready.
    fn ask(&mut self, timeout: Option<&Timespec>) {
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut events, timeout) {
            Ok((events, _)) => {
                let tokens = events.iter().map(|event| event.data.u64());
                self.ready.extend(tokens.take(EVENTS_MAX));
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => complain!("tcp: epoll_wait: {error}"),
        }
    }

    fn expire_openings(&mut self, now: Instant, out: &mut Polled) {
        if self.opening == 0 {
            return;
        }
        for (&lane, slot) in &mut self.lanes {
            if let State::Opening(opening) = &slot.state
                && opening.by <= now
            {
                slot.state = State::Over;
                self.opening -= 1;
                let failed = LaneFact::OpenFailed(Cause::Refused);
                out.lanes.push(report(lane, slot.epoch, failed));
            }
        }
    }
}

impl Endpoint for TcpEndpoint {
    fn attach_local(&mut self, segment: SegmentRef, region: Arc<Region>) {
        self.locals.insert(segment, region);
    }

    fn detach_local(&mut self, segment: SegmentRef) {
        self.locals.remove(&segment);
    }

    fn attach_remote(&mut self, segment: SegmentRef, region: RemoteRegion) {
        self.remotes.insert(segment, region);
    }

    fn attach_rail(&mut self, rail: RailId, address: RailAddress) {
        self.rails.insert(rail, address);
    }

    fn detach_remote(&mut self, segment: SegmentRef) {
        self.remotes.remove(&segment);
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
        let slot = match self.try_open(lane, epoch, by) {
            Ok(slot) => {
                self.opening += 1;
                slot
            }
            Err(error) => {
                log::debug!("tcp: {lane:?} {epoch:?} not opened: {error}");
                let failed = LaneFact::OpenFailed(Cause::Refused);
                self.facts.push_back(report(lane, epoch, failed));
                Slot {
                    epoch,
                    interest: EventFlags::empty(),
                    posting: false,
                    state: State::Over,
                }
            }
        };
        self.lanes.insert(lane, slot);
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
        let mut posted = Posted {
            accepted: 0,
            stop: Stop::All,
        };
        for work in &batch.works {
            let local = self.locals.get(&work.local.segment);
            let remote = self.remotes.get(&work.remote.segment);
            match lane::check(work, open.limits(), local, remote) {
                Ok(key) if open.has_room() => open.push(*work, key),
                Ok(_) => posted.stop = Stop::Full,
                Err(cause) => posted.stop = Stop::Rejected(cause),
            }
            if posted.stop != Stop::All {
                break;
            }
            posted.accepted += 1;
        }
        // What stands in the way shows again in the next poll, which can report it.
        let _ = open.send(&self.locals, self.spinning);
        if self.posted_last != batch.lane {
            self.posted_last = batch.lane;
            self.put_back();
        }
        self.rearm(batch.lane);
        posted
    }

    fn poll(&mut self, now: Instant, out: &mut Polled) {
        out.lanes.extend(self.facts.drain(..));
        if self.ready.is_empty() && !self.poll_last(now, out) {
            self.ask(Some(&AT_ONCE));
            let alone = self
                .alone
                .and_then(|(lane, _)| self.lanes.get(&lane).map(|slot| (lane, slot.epoch)));
            if let Some((lane, epoch)) = alone {
                self.turn(lane, epoch, out);
            }
        }
        while let Some(token) = self.ready.pop() {
            self.turn(LaneId(token as u32), Epoch((token >> 32) as u32), out);
        }
        self.expire_openings(now, out);
        if self
            .alone
            .is_some_and(|(_, since)| now >= since + ALONE_MAX)
        {
            self.put_back();
        }
    }

    fn fence(&mut self, lane: LaneId, epoch: Epoch, scope: Scope) {
        let fact = match scope {
            Scope::Local => {
                // An older epoch ended when this one began; a newer one never began.
                if self.lanes.get(&lane).is_some_and(|s| s.epoch == epoch) {
                    self.end(lane);
                }
                LaneFact::Fenced {
                    scope,
                    delivered: None,
                }
            }
            Scope::Remote => LaneFact::Unfenceable { scope },
        };
        self.facts.push_back(report(lane, epoch, fact));
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
        match self.posting {
            0 => Waits::Nothing,
            _ => Waits::Short,
        }
    }

    fn announce(&mut self, spinning: bool) {
        self.spinning = spinning;
    }

    fn arm(&mut self) {
        self.put_back();
    }

    fn sleep(&mut self, call: BorrowedFd<'_>, longest: Option<CoreDuration>) -> io::Result<bool> {
        self.put_back();
        let number = call.as_raw_fd();
        if self.call != Some(number) {
            epoll::add(&self.epoll, call, EventData::new_u64(CALL), EventFlags::IN)?;
            self.call = Some(number);
        }
        let longest = until_ready(self.epoll.as_fd(), longest.map(timespec));
        self.ask(longest.as_ref());
        let called = self.ready.iter().position(|token| *token == CALL);
        called.map(|place| self.ready.swap_remove(place));
        Ok(called.is_some())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if !self.facts.is_empty() {
            return Some(Instant::ZERO);
        }
        let alone = self.alone.map(|(_, since)| since + ALONE_MAX);
        if self.opening == 0 {
            return alone;
        }
        let opening = self.lanes.values().filter_map(|slot| match &slot.state {
            State::Opening(opening) => Some(opening.by),
            State::Open(_) | State::Over => None,
        });
        opening.chain(alone).min()
    }
}

/// Makes the close of a socket drop what it has not sent.
pub(crate) fn abort(stream: &TcpStream) {
    if let Err(error) = SockRef::from(stream).set_linger(Some(Duration::ZERO)) {
        complain!("tcp: SO_LINGER: {error}");
    }
}

fn token(lane: LaneId, epoch: Epoch) -> EventData {
    EventData::new_u64(u64::from(epoch.0) << 32 | u64::from(lane.0))
}

fn report(lane: LaneId, epoch: Epoch, fact: LaneFact) -> LaneReport {
    LaneReport { lane, epoch, fact }
}
