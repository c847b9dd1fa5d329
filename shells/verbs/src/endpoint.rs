//! The initiator's half: lanes of one worker.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use polyrail_core::time::Instant;
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef};
use polyrail_core::work::{
    Cause, Completion, LaneFact, Op, Outcome, PostBatch, Posted, Scope, Stop,
};
use polyrail_transport::clock::Clock;
use polyrail_transport::complain;
use polyrail_transport::memory::Region;
use polyrail_transport::numbered::Numbered;
use polyrail_transport::{
    Endpoint, LaneReport, Polled, RailAddress, RemoteRegion, SessionId, Waits,
};
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::cause::{cause, covers};
use crate::completion::{Queue, QueueRoom};
use crate::ffi::raw::Wc;
use crate::lane::{Ends, Lane, Unready};
use crate::list::List;
use crate::mailbox::{Made, Mailbox, Said};
use crate::outbound::Opening;
use crate::packets::{Reached, Tally};
use crate::registry::Registered;
use crate::server::Common;
use crate::service::Order;
use crate::sight::{IMMEDIATE, Unseen, Wanted};

/// Completions that are taken at once.
const TAKE: usize = 32;

/// The lanes of one worker.
pub(crate) struct VerbsEndpoint {
    clock: Clock,
    common: Arc<Common>,
    mailbox: Arc<Mailbox>,
    epoll: OwnedFd,
    locals: Numbered<SegmentRef, Arc<Registered>>,
    remotes: Numbered<SegmentRef, RemoteRegion>,
    rails: Numbered<RailId, RailAddress>,
    /// Every lane that was ever opened, with its latest epoch.
    lanes: Numbered<LaneId, Slot>,
    /// Open lanes by their serial.
    serials: Numbered<u32, LaneId>,
    serial_last: u32,
    /// How many lanes are [`State::Opening`].
    opening: usize,
    /// Lanes that have ended, and whose queue pairs are not known to be destroyed yet.
    ending: Vec<Ending>,
    queues: Vec<Queue>,
    /// Some queue may have to be given up.
    tidies: bool,
    /// Works that are posted and not completed.
    posted: usize,
    /// Some lane's peer may have been asked something that it has not answered.
    asking: bool,
    /// What the next poll says first.
    facts: VecDeque<LaneReport>,
    /// And what lanes that have ended had to say.
    rest: Polled,
    /// Who waits for what was written to be seen, and on how many lanes.
    tickets: HashMap<u64, usize>,
    /// Of those, what the next poll says.
    visible: Vec<u64>,
    /// Lanes that are over, and of whose writes nobody has proved that they can be seen.
    unseen: Vec<Unseen>,
    immediate_last: u32,
    /// Room for what is being posted.
    list: Box<List>,
}

/// A lane's latest epoch.
struct Slot {
    epoch: Epoch,
    state: State,
    /// Once it is open no more: its packets.
    tally: Option<Tally>,
}

enum State {
    Opening {
        device: usize,
        by: Instant,
    },
    Open(Box<Lane>),
    /// Failed, fenced or closed.
    Over,
}

/// A lane's epoch that is over here, and may not be for its device.
struct Ending {
    lane: LaneId,
    epoch: Epoch,
    /// Its room in its completion queue, until there is an answer of the device.
    room: Option<QueueRoom>,
    /// Somebody waits for its end.
    awaited: bool,
    /// The device did not prove that it has ended. It may be known later.
    unproven: bool,
}

impl VerbsEndpoint {
    pub(crate) fn new(clock: Clock, common: Arc<Common>) -> io::Result<Self> {
        let mailbox = Arc::new(Mailbox::new()?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, mailbox.fd(), EventData::new_u64(0), EventFlags::IN)?;
        Ok(Self {
            clock,
            common,
            mailbox,
            epoll,
            locals: Numbered::default(),
            remotes: Numbered::default(),
            rails: Numbered::default(),
            lanes: Numbered::default(),
            serials: Numbered::default(),
            serial_last: 0,
            opening: 0,
            ending: Vec::new(),
            queues: Vec::new(),
            tidies: false,
            posted: 0,
            asking: false,
            facts: VecDeque::new(),
            rest: Polled::default(),
            tickets: HashMap::new(),
            visible: Vec::new(),
            unseen: Vec::new(),
            immediate_last: 0,
            list: Box::new(List::new()),
        })
    }

    /// Ends a lane on this side, unless it has ended. What has completed until now has.
    fn end(&mut self, lane: LaneId) {
        self.take_all(lane);
        let Some(slot) = self.lanes.get_mut(&lane) else {
            return;
        };
        let epoch = slot.epoch;
        let (device, open) = match std::mem::replace(&mut slot.state, State::Over) {
            State::Over => return,
            // Nothing was posted, so nobody waits.
            State::Opening { device, .. } => {
                self.opening -= 1;
                (device, None)
            }
            State::Open(open) => {
                let mut open = self.uncount(*open);
                self.leave_unseen(open.sight.end(lane, epoch));
                if let Some(slot) = self.lanes.get_mut(&lane) {
                    slot.tally = Some(open.tally);
                }
                self.serials.remove(&open.serial);
                self.ending.push(Ending {
                    lane,
                    epoch,
                    room: Some(open.room),
                    awaited: false,
                    unproven: false,
                });
                let open_still = (Box::new(open.qp), self.mailbox.clone());
                (open.device.number, Some(open_still))
            }
        };
        let service = self.common.services.at(device);
        service.desk.order(Order::End(lane, epoch, open));
    }

    /// Takes all completions of an open lane's queue.
    fn take_all(&mut self, lane: LaneId) {
        let Some(Slot {
            state: State::Open(open),
            ..
        }) = self.lanes.get(&lane)
        else {
            return;
        };
        let index = self.queues.iter().position(|queue| queue.is_of(&open.room));
        let mut rest = std::mem::take(&mut self.rest);
        while index.is_some_and(|index| self.take(index, &mut rest) > 0) {}
        self.rest = rest;
    }

    /// A lane has ended, and may have written what cannot be seen yet.
    fn leave_unseen(&mut self, ended: Option<Unseen>) {
        let Some(ended) = ended else { return };
        match self
            .unseen
            .iter_mut()
            .find(|unseen| unseen.lane == ended.lane)
        {
            // Who waits for both waits for the later one.
            Some(unseen) => unseen.join(ended),
            None => self.unseen.push(ended),
        }
    }

    /// All that a lane has written up to this epoch can be seen, or nobody is left to see it.
    fn has_been_seen(&mut self, lane: LaneId, epoch: Epoch) {
        let is_it = |unseen: &mut Unseen| unseen.lane == lane && unseen.epoch <= epoch;
        let seen: Vec<_> = self.unseen.extract_if(.., is_it).collect();
        for unseen in seen {
            self.answered(unseen.tickets);
        }
    }

    /// On one lane less these have to wait.
    fn answered(&mut self, tickets: Vec<u64>) {
        for ticket in tickets {
            if let Some(lanes) = self.tickets.get_mut(&ticket) {
                *lanes -= 1;
                if *lanes == 0 {
                    self.tickets.remove(&ticket);
                    self.visible.push(ticket);
                }
            }
        }
    }

    /// Posts an immediate on an open lane, for those that want it. If it cannot be posted the lane is of no use any more, and its
    /// end is what they wait for.
    fn post_immediate(&mut self, lane: LaneId) {
        self.immediate_last = self.immediate_last.wrapping_add(1);
        let now = self.clock.now();
        let Some(Slot {
            state: State::Open(open),
            epoch,
            ..
        }) = self.lanes.get_mut(&lane)
        else {
            return;
        };
        if !open.post_immediate(now, self.immediate_last) {
            let broken = LaneFact::Broken(Cause::Fatal);
            return self.facts.push_back(report(lane, *epoch, broken));
        }
        self.asking = true;
        if let Some(queue) = self.queues.iter_mut().find(|queue| queue.is_of(&open.room)) {
            queue.posted += 1;
        }
        self.posted += 1;
    }

    /// Its works are not waited for any more.
    fn uncount(&mut self, lane: Lane) -> Lane {
        self.posted -= lane.posted();
        if let Some(queue) = self.queue_of(&lane.room) {
            queue.posted -= lane.posted();
        }
        lane
    }

    fn queue_of(&mut self, room: &QueueRoom) -> Option<&mut Queue> {
        self.queues.iter_mut().find(|queue| queue.is_of(room))
    }

    /// A device has answered that it was to destroy a lane's queue pair.
    fn ended(&mut self, lane: LaneId, epoch: Epoch, is_proven: bool) {
        let is_it = |ending: &Ending| (ending.lane, ending.epoch) == (lane, epoch);
        let Some(place) = self.ending.iter().position(is_it) else {
            return;
        };
        let ending = &mut self.ending[place];
        // Nothing more comes of it, or it is of a device that is of no use any more.
        let room = ending.room.take();
        if ending.awaited {
            self.facts.push_back(match is_proven {
                true => fenced(lane, epoch),
                false => unfenceable(lane, epoch),
            });
        }
        match is_proven {
            true => drop(self.ending.swap_remove(place)),
            false => ending.unproven = true,
        }
        if let Some(room) = room
            && let Some(queue) = self.queue_of(&room)
        {
            // Until what the lane left there has been taken.
            queue.leave(room);
            self.tidies = true;
        }
    }

    /// Lets go of queues that no lane is on, nor will be: those of a device that has failed.
    fn tidy(&mut self) {
        self.tidies = self.queues.iter().any(Queue::is_left);
        for queue in self.queues.extract_if(.., |queue| queue.is_forgotten()) {
            let shared = queue.shared().clone();
            // Its descriptor may outlive it.
            if let Err(error) = epoll::delete(&self.epoll, shared.cq.fd()) {
                complain!("verbs: epoll_ctl: {error}");
            }
            let device = shared.device;
            drop(queue);
            let service = self.common.services.at(device);
            service.desk.order(Order::LetGo(shared));
        }
    }

    /// What devices' threads have said.
    fn hear(&mut self, out: &mut Polled) {
        for said in self.mailbox.take() {
            match said {
                Said::Opened(lane, epoch, made) => self.opened(lane, epoch, made, out),
                Said::OpenFailed(lane, epoch) => {
                    if let Some(slot) = self.lanes.get_mut(&lane)
                        && slot.epoch == epoch
                        && matches!(slot.state, State::Opening { .. })
                    {
                        slot.state = State::Over;
                        self.opening -= 1;
                        let failed = LaneFact::OpenFailed(Cause::Refused);
                        out.lanes.push(report(lane, epoch, failed));
                    }
                }
                Said::Told(lane, epoch, key, answer) => {
                    let now = self.clock.now();
                    let open = open_lane(&mut self.lanes, lane, epoch);
                    if open.is_some_and(|open| open.told(now, key, answer)) {
                        self.unblock(lane, out);
                    }
                }
                Said::Seen(lane, epoch, number) => {
                    let Some(open) = open_lane(&mut self.lanes, lane, epoch) else {
                        continue;
                    };
                    let (tickets, again) = (open.sight.seen(number), open.sight.wants_another());
                    self.answered(tickets);
                    if again {
                        self.post_immediate(lane);
                    }
                }
                Said::Broken(lane, epoch, cause) => {
                    if open_lane(&mut self.lanes, lane, epoch).is_some() {
                        out.lanes.push(report(lane, epoch, LaneFact::Broken(cause)));
                    }
                }
                Said::Ended(lane, epoch) => self.ended(lane, epoch, true),
                Said::Unproven(lane, epoch) => self.ended(lane, epoch, false),
                Said::Forgotten => self.tidies = true,
                Said::PortActive(device) => self.port_active(device, out),
                Said::Registered => {
                    let lanes: Vec<_> = self.serials.values().copied().collect();
                    for lane in lanes {
                        self.unblock(lane, out);
                    }
                }
            }
        }
    }

    /// Lanes of rails that start at this device may be opened again.
    fn port_active(&mut self, device: usize, out: &mut Polled) {
        for (lane, slot) in &self.lanes {
            let address = self.rails.get(&lane.rail());
            let service = address.and_then(|address| {
                let services = &self.common.services;
                services.last_between(address.local, address.remote).ok()
            });
            if service.is_some_and(|service| service.site.device().number == device) {
                out.lanes
                    .push(report(*lane, slot.epoch, LaneFact::PortActive));
            }
        }
    }

    /// What a lane waited for may be there.
    fn unblock(&mut self, lane: LaneId, out: &mut Polled) {
        let Some(slot) = self.lanes.get_mut(&lane) else {
            return;
        };
        if let State::Open(open) = &mut slot.state
            && std::mem::take(&mut open.blocked)
        {
            out.lanes.push(report(lane, slot.epoch, LaneFact::Writable));
        }
    }

    fn opened(&mut self, lane: LaneId, epoch: Epoch, made: Box<Made>, out: &mut Polled) {
        let slot = self.lanes.get_mut(&lane).filter(|slot| slot.epoch == epoch);
        let Some(Slot {
            state: state @ State::Opening { .. },
            ..
        }) = slot
        else {
            // Given up meanwhile, which its device's thread has been told: this is the only handle.
            let service = self.common.services.at(made.device.number);
            return service.desk.order(Order::LetGoPair(made));
        };
        self.serial_last = self.serial_last.wrapping_add(1);
        let serial = self.serial_last;
        if !self.queues.iter().any(|queue| queue.is_of(&made.room)) {
            let shared = made.room.queue().clone();
            let data = EventData::new_u64(0);
            if let Err(error) = epoll::add(&self.epoll, shared.cq.fd(), data, EventFlags::IN) {
                complain!("verbs: nobody is woken by a completion queue: epoll_ctl: {error}");
            }
            self.queues.push(Queue::new(shared));
        }
        let limits = made.device.limits;
        *state = State::Open(Box::new(Lane::new(*made, serial)));
        self.serials.insert(serial, lane);
        self.opening -= 1;
        out.lanes
            .push(report(lane, epoch, LaneFact::Opened { limits }));
    }

    /// Takes completions of one queue. How many.
    fn take(&mut self, index: usize, out: &mut Polled) -> usize {
        let mut taken = [Wc::default(); TAKE];
        let queue = self.queues.get_mut(index);
        let count = queue.map_or(0, |queue| queue.take(&mut taken));
        if count > 0 {
            let now = self.clock.now();
            for wc in &taken[..count] {
                self.completed(wc, now, out);
            }
        }
        count
    }

    fn completed(&mut self, wc: &Wc, now: Instant, out: &mut Polled) {
        // Of a queue pair that is no more, if it is not known.
        let Some(&lane) = self.serials.get(&((wc.wr_id >> 32) as u32)) else {
            return;
        };
        let Some(slot) = self.lanes.get_mut(&lane) else {
            return;
        };
        let State::Open(open) = &mut slot.state else {
            return;
        };
        let before = open.posted();
        let say = |cookie, outcome| Completion {
            lane,
            epoch: slot.epoch,
            cookie,
            at: now,
            outcome,
        };
        if wc.status == 0 {
            match open.complete(wc.wr_id) {
                Some(IMMEDIATE) => {}
                Some(cookie) => out.completions.push(say(cookie, Outcome::Success)),
                None => return,
            }
        } else {
            let Some(failed) = open.fail(wc.wr_id) else {
                return;
            };
            let device = &open.device;
            let cause = cause(wc.status, device.is_down());
            if cause != Cause::Flushed {
                log::debug!(
                    "verbs: {lane:?} {:?} on {}: {cause} (status {}, vendor's {:#x})",
                    slot.epoch,
                    device.name,
                    wc.status,
                    wc.vendor_err,
                );
            }
            // Otherwise what completed before it has said so itself, and of the rest the fence does.
            if covers(wc.status) {
                let covered = failed.before.filter(|cookie| *cookie != IMMEDIATE);
                out.completions
                    .extend(covered.map(|cookie| say(cookie, Outcome::Success)));
            }
            if failed.cookie == IMMEDIATE {
                out.lanes
                    .push(report(lane, slot.epoch, LaneFact::Broken(cause)));
            } else {
                out.completions
                    .push(say(failed.cookie, Outcome::Error(cause)));
            }
            let flushed = Outcome::Error(Cause::Flushed);
            let rest = failed.rest.into_iter();
            out.completions
                .extend(rest.map(|cookie| say(cookie, flushed)));
        }
        let ended = before - open.posted();
        self.posted -= ended;
        if let Some(queue) = self.queues.iter_mut().find(|queue| queue.is_of(&open.room)) {
            queue.posted -= ended;
        }
    }

    /// Gives up lanes whose peers do not answer. They would wait for ever, and nothing posted would show it.
    fn expire_asking(&mut self, now: Instant, out: &mut Polled) {
        if !std::mem::take(&mut self.asking) {
            return;
        }
        for (lane, slot) in &mut self.lanes {
            let State::Open(open) = &mut slot.state else {
                continue;
            };
            match open.answer_due() {
                Some(by) if by <= now => {
                    open.give_up_asking();
                    let broken = LaneFact::Broken(Cause::Silent);
                    out.lanes.push(report(*lane, slot.epoch, broken));
                }
                Some(_) => self.asking = true,
                None => {}
            }
        }
    }

    /// Asks peers to end lanes whose end somebody waits for.
    fn ask_for_ends(&mut self, now: Instant, out: &mut Polled) {
        for unseen in &mut self.unseen {
            if unseen.asks(now) {
                out.fences.push((unseen.lane, unseen.epoch));
            }
        }
    }

    fn expire_openings(&mut self, now: Instant, out: &mut Polled) {
        if self.opening == 0 {
            return;
        }
        let late = |(lane, slot): (&LaneId, &Slot)| match slot.state {
            State::Opening { by, .. } if by <= now => Some((*lane, slot.epoch)),
            _ => None,
        };
        let late: Vec<_> = self.lanes.iter().filter_map(late).collect();
        for (lane, epoch) in late {
            self.end(lane);
            let failed = LaneFact::OpenFailed(Cause::Refused);
            out.lanes.push(report(lane, epoch, failed));
        }
    }

    /// Whether there are as many lanes on a device as there may be, without one that is to be opened.
    fn is_crowded(&self, device: usize) -> bool {
        let is_there = |slot: &&Slot| match &slot.state {
            State::Open(open) => open.device.number == device,
            State::Opening {
                device: opened_on, ..
            } => *opened_on == device,
            _ => false,
        };
        let count = self.lanes.values().filter(is_there).count();
        count >= usize::from(self.common.settings.lanes_max)
    }

    fn start(&mut self, lane: LaneId, epoch: Epoch) -> io::Result<usize> {
        let address = self.rails.get(&lane.rail());
        let address =
            address.ok_or_else(|| io::Error::other("nobody has said where its rail runs"))?;
        let service = self
            .common
            .services
            .last_between(address.local, address.remote)?;
        service.desk.order(Order::Open(Box::new(Opening {
            lane,
            epoch,
            address: address.clone(),
            mailbox: self.mailbox.clone(),
        })));
        Ok(service.site.device().number)
    }
}

impl Endpoint for VerbsEndpoint {
    fn attach_local(&mut self, segment: SegmentRef, region: Arc<Region>) {
        let Common {
            registry, services, ..
        } = &*self.common;
        let registered = registry.register(&region, services, &self.mailbox);
        self.locals.insert(segment, registered);
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
            // With the session everything of it has ended.
            self.has_been_seen(lane, Epoch(u32::MAX));
        }
        self.rails.remove(&rail);
    }

    fn open(&mut self, lane: LaneId, epoch: Epoch, by: Instant) {
        self.end(lane);
        let state = match self.start(lane, epoch) {
            Ok(device) => {
                if self.is_crowded(device) {
                    self.facts.push_back(report(lane, epoch, LaneFact::Crowded));
                }
                self.opening += 1;
                State::Opening { device, by }
            }
            Err(error) => {
                log::debug!("verbs: {lane:?} {epoch:?} not opened: {error}");
                let failed = LaneFact::OpenFailed(Cause::Refused);
                self.facts.push_back(report(lane, epoch, failed));
                State::Over
            }
        };
        let tally = None;
        self.lanes.insert(
            lane,
            Slot {
                epoch,
                state,
                tally,
            },
        );
    }

    fn post(&mut self, batch: &PostBatch) -> Posted {
        let Some(open) = open_lane(&mut self.lanes, batch.lane, batch.epoch) else {
            return Posted {
                accepted: 0,
                stop: Stop::Rejected(Cause::Flushed),
            };
        };
        let list = &mut *self.list;
        list.clear();
        let writes = open.qp.extras.ranges;
        let reads = writes.min(open.device.read_ranges);
        let mut count = 0;
        let mut stop = Stop::All;
        let mut last: Option<Ends> = None;
        for work in &batch.works {
            if !last.as_ref().is_some_and(|ends| ends.hold(work)) {
                let local = self.locals.get(&work.local.segment);
                let remote = self.remotes.get(&work.remote.segment);
                match open.ends(work, local, remote) {
                    Ok(ends) => last = Some(ends),
                    Err(unready) => {
                        if let Unready::Ask(key) = unready {
                            open.asks(self.clock.now(), key);
                            self.asking = true;
                            let ask = Order::Ask(batch.lane, batch.epoch, key);
                            let service = self.common.services.at(open.device.number);
                            service.desk.order(ask);
                        }
                        stop = match unready {
                            Unready::Not(cause) => Stop::Rejected(cause),
                            Unready::Ask(_) | Unready::Wait => {
                                open.blocked = true;
                                Stop::Full
                            }
                        };
                        break;
                    }
                }
            }
            if let Some(ends) = &last {
                let ranges_max = match work.op {
                    Op::Write => writes,
                    Op::Read => reads,
                };
                let id = open.id(count);
                count += 1;
                list.add(id, &batch.works[..count], ends, ranges_max);
            }
        }
        if count == 0 {
            return Posted { accepted: 0, stop };
        }
        let cookies = batch.works.iter().map(|work| work.cookie);
        list.carry(open.qp.extras, &batch.works, |work| {
            self.locals.get(&work.local.segment)?.region()
        });
        let posted = open.post(list, cookies, stop);
        if let Some(queue) = self.queues.iter_mut().find(|queue| queue.is_of(&open.room)) {
            queue.posted += posted.accepted;
        }
        self.posted += posted.accepted;
        posted
    }

    fn poll(&mut self, now: Instant, out: &mut Polled) {
        out.completions.append(&mut self.rest.completions);
        out.lanes.append(&mut self.rest.lanes);
        out.lanes.extend(self.facts.drain(..));
        for index in 0..self.queues.len() {
            if self.queues[index].wants_a_look() {
                self.take(index, out);
            }
        }
        // After completions: those of a lane that is said to be broken came before that.
        self.hear(out);
        if self.tidies {
            self.tidy();
        }
        // What was just heard may have said something.
        if !self.facts.is_empty() {
            out.lanes.extend(self.facts.drain(..));
        }
        self.expire_openings(now, out);
        self.expire_asking(now, out);
        self.ask_for_ends(now, out);
        out.visible.append(&mut self.visible);
    }

    fn make_visible(&mut self, session: SessionId, ticket: u64) -> bool {
        let mut wanted = Vec::new();
        for (lane, slot) in &mut self.lanes {
            let rail = self.rails.get(&lane.rail());
            let is_there = rail.is_some_and(|rail| rail.session == session);
            if let State::Open(open) = &mut slot.state
                && is_there
            {
                match open.sight.want(ticket) {
                    Wanted::Nothing => {}
                    other => wanted.push((*lane, other)),
                }
            }
        }
        let mut lanes = wanted.len();
        for unseen in &mut self.unseen {
            let rail = self.rails.get(&unseen.lane.rail());
            if rail.is_some_and(|rail| rail.session == session) {
                unseen.tickets.push(ticket);
                lanes += 1;
            }
        }
        if lanes == 0 {
            return false;
        }
        self.tickets.insert(ticket, lanes);
        for (lane, wanted) in wanted {
            if wanted == Wanted::Post {
                self.post_immediate(lane);
            }
        }
        true
    }

    fn fence(&mut self, lane: LaneId, epoch: Epoch, scope: Scope) {
        if scope == Scope::Remote {
            let fact = LaneFact::Unfenceable { scope };
            return self.facts.push_back(report(lane, epoch, fact));
        }
        if self.lanes.get(&lane).is_some_and(|s| s.epoch == epoch) {
            self.end(lane);
        }
        let is_it = |ending: &&mut Ending| (ending.lane, ending.epoch) == (lane, epoch);
        match self.ending.iter_mut().find(is_it) {
            Some(ending) => {
                ending.awaited = true;
                if ending.unproven {
                    self.facts.push_back(unfenceable(lane, epoch));
                }
            }
            // It is over, or never began.
            None => self.facts.push_back(fenced(lane, epoch)),
        }
    }

    fn arrived(&mut self, lane: LaneId, epoch: Epoch, told: u32) -> u32 {
        // Its queue pair has ended there, and all before that can be seen.
        self.has_been_seen(lane, epoch);
        let slot = self.lanes.get(&lane).filter(|slot| slot.epoch == epoch);
        let tally = slot.and_then(|slot| match &slot.state {
            State::Open(open) => Some(&open.tally),
            State::Opening { .. } | State::Over => slot.tally.as_ref(),
        });
        let arrived = tally.map(|tally| {
            let arrived = tally.arrived(Reached::of_word(told));
            log::debug!("verbs: {lane:?} {epoch:?}: {arrived} works have arrived of {tally}");
            arrived
        });
        arrived.unwrap_or(0)
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
        match self.posted {
            0 => Waits::Nothing,
            _ => Waits::Short,
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let says = !self.facts.is_empty() || !self.visible.is_empty();
        let says =
            says || !self.rest.completions.is_empty() || !self.rest.lanes.is_empty() || self.tidies;
        if says || self.queues.iter().any(Queue::wakes_nobody) {
            return Some(Instant::ZERO);
        }
        let waits = self.opening > 0 || self.asking;
        let lanes = waits.then(|| self.lanes.values());
        let asks = self.unseen.iter().filter_map(Unseen::ask_at);
        let opening = lanes
            .into_iter()
            .flatten()
            .filter_map(|slot| match &slot.state {
                State::Opening { by, .. } => Some(*by),
                State::Open(open) => open.answer_due(),
                State::Over => None,
            });
        opening.chain(asks).min()
    }
}

impl Drop for VerbsEndpoint {
    /// Queue pairs go in their own time; memory is deregistered with `locals`, and so out of their reach.
    fn drop(&mut self) {
        let lanes: Vec<_> = self.lanes.keys().copied().collect();
        for lane in lanes {
            self.end(lane);
        }
    }
}

fn open_lane(lanes: &mut Numbered<LaneId, Slot>, lane: LaneId, epoch: Epoch) -> Option<&mut Lane> {
    let slot = lanes.get_mut(&lane).filter(|slot| slot.epoch == epoch)?;
    match &mut slot.state {
        State::Open(open) => Some(open),
        State::Opening { .. } | State::Over => None,
    }
}

fn report(lane: LaneId, epoch: Epoch, fact: LaneFact) -> LaneReport {
    LaneReport { lane, epoch, fact }
}

/// Its queue pair may not have been destroyed.
fn unfenceable(lane: LaneId, epoch: Epoch) -> LaneReport {
    let scope = Scope::Local;
    report(lane, epoch, LaneFact::Unfenceable { scope })
}

/// Its queue pair has been destroyed.
fn fenced(lane: LaneId, epoch: Epoch) -> LaneReport {
    let fact = LaneFact::Fenced {
        scope: Scope::Local,
        delivered: None,
    };
    report(lane, epoch, fact)
}
