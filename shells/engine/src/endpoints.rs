//! The endpoints of all transports of one worker, as one: a rail says which of them it belongs to.

mod ways;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef, TransportId};
use polyrail_core::work::{Cause, LaneFact, PostBatch, Posted, Scope, Stop, Work};
use polyrail_transport::memory::Region;
use polyrail_transport::{
    Endpoint, LaneReport, Polled, RailAddress, RemoteRegion, SessionId, Waits,
};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use ways::Ways;

/// One endpoint for each transport, by its number; `None`: that transport is not there.
pub(crate) struct Joined {
    rows: Vec<Option<Box<dyn Endpoint>>>,
    ways: Ways,
    /// Readable when one of them is.
    poller: OwnedFd,
    /// Openings that no transport could be asked for, and what became of lanes with the addresses where they start.
    facts: Vec<LaneReport>,
    /// What several endpoints were asked to make visible, and how many have not said that it is.
    awaited: Vec<(u64, usize)>,
    /// The endpoint that works were last posted to.
    posted_last: usize,
    /// For a sleep on each of them.
    asides: Vec<Aside>,
}

/// What wakes a sleep on one endpoint besides itself.
enum Aside {
    /// Not needed yet.
    New,
    /// Readable when somebody calls, with this descriptor, or another endpoint has something. Kept, because endpoints
    /// know it by its number.
    Made(RawFd, OwnedFd),
    /// Another endpoint watches this one while that sleeps, and the kernel lets no two descriptors watch each other.
    Impossible,
}

impl Joined {
    /// One endpoint over those of a worker's transports.
    pub(crate) fn new(rows: Vec<Option<Box<dyn Endpoint>>>) -> io::Result<Self> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for endpoint in rows.iter().flatten() {
            let readable = epoll::EventFlags::IN;
            epoll::add(
                &poller,
                endpoint.fd(),
                epoll::EventData::new_u64(0),
                readable,
            )?;
        }
        Ok(Self {
            poller,
            ways: Ways::default(),
            facts: Vec::new(),
            awaited: Vec::new(),
            posted_last: 0,
            // Nothing is allocated by whoever sleeps first.
            asides: rows.iter().map(|_| Aside::New).collect(),
            rows,
        })
    }

    fn of(&mut self, rail: RailId) -> Option<&mut Box<dyn Endpoint>> {
        let transport = self.ways.transport(rail)?;
        self.rows.get_mut(transport.index())?.as_mut()
    }

    /// Makes what wakes a sleep on the endpoint that works were last posted to, besides itself. Whether it is for `call`.
    fn set_aside(&mut self, call: BorrowedFd<'_>) -> io::Result<bool> {
        let of = self.posted_last;
        match self.asides.get(of) {
            Some(Aside::Made(number, _)) => return Ok(*number == call.as_raw_fd()),
            Some(Aside::New) => {}
            Some(Aside::Impossible) | None => return Ok(false),
        }
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let others = self.rows.iter().enumerate().filter(|(row, _)| *row != of);
        let others = others.filter_map(|(_, endpoint)| Some(endpoint.as_ref()?.fd()));
        for fd in others.chain([call]) {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&poller, fd, data, epoll::EventFlags::IN)?;
        }
        self.asides[of] = Aside::Made(call.as_raw_fd(), poller);
        Ok(true)
    }

    /// Says of lanes what was found out here. What was being opened is given up.
    fn say_of_lanes(&mut self, reports: impl IntoIterator<Item = LaneReport>) {
        for report in reports {
            if let LaneFact::OpenFailed(_) = report.fact
                && let Some(endpoint) = self.of(report.lane.rail())
            {
                endpoint.close(report.lane, report.epoch);
            }
            self.facts.push(report);
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Box<dyn Endpoint>> {
        self.rows.iter_mut().flatten()
    }
}

impl Endpoint for Joined {
    fn attach_local(&mut self, segment: SegmentRef, region: Arc<Region>) {
        for endpoint in self.all() {
            endpoint.attach_local(segment, region.clone());
        }
    }

    fn detach_local(&mut self, segment: SegmentRef) {
        for endpoint in self.all() {
            endpoint.detach_local(segment);
        }
    }

    fn attach_remote(&mut self, segment: SegmentRef, region: RemoteRegion) {
        for endpoint in self.all() {
            endpoint.attach_remote(segment, region.clone());
        }
    }

    fn detach_remote(&mut self, segment: SegmentRef) {
        for endpoint in self.all() {
            endpoint.detach_remote(segment);
        }
    }

    fn forget_rail(&mut self, rail: RailId) {
        if let Some(endpoint) = self.of(rail) {
            endpoint.forget_rail(rail);
        }
        self.ways.forget(rail);
    }

    fn arm(&mut self) {
        for endpoint in self.all() {
            endpoint.arm();
        }
    }

    fn announce(&mut self, spinning: bool) {
        for endpoint in self.all() {
            endpoint.announce(spinning);
        }
    }

    fn attach_rail(&mut self, rail: RailId, address: RailAddress) {
        self.ways.attach(rail, &address);
        if let Some(endpoint) = self.of(rail) {
            endpoint.attach_rail(rail, address);
        }
    }

    fn open(&mut self, lane: LaneId, epoch: Epoch, by: Instant) {
        let cause = match self.ways.open(lane, epoch) {
            true => Cause::Refused,
            false => Cause::DeviceDown,
        };
        match self.of(lane.rail()) {
            Some(endpoint) if cause == Cause::Refused => endpoint.open(lane, epoch, by),
            _ => self.facts.push(LaneReport {
                lane,
                epoch,
                fact: LaneFact::OpenFailed(cause),
            }),
        }
    }

    fn set_there(&mut self, address: IpAddr, is_there: bool) {
        let reports = self.ways.set_there(address, is_there);
        self.say_of_lanes(reports);
    }

    fn set_used(&mut self, rail: RailId, is_used: bool) {
        let report = self.ways.set_used(rail, is_used);
        self.say_of_lanes(report);
    }

    fn post(&mut self, batch: &PostBatch) -> Posted {
        let transport = self.ways.transport(batch.lane.rail());
        let row = transport.map(TransportId::index);
        self.posted_last = row.filter(|row| *row < self.rows.len()).unwrap_or(0);
        match self.of(batch.lane.rail()) {
            Some(endpoint) => endpoint.post(batch),
            None => Posted {
                accepted: 0,
                stop: Stop::Rejected(Cause::Flushed),
            },
        }
    }

    fn carry_at_once(&mut self, now: Instant, lane: LaneId, epoch: Epoch, works: &[Work]) -> bool {
        let endpoint = self.of(lane.rail());
        endpoint.is_some_and(|endpoint| endpoint.carry_at_once(now, lane, epoch, works))
    }

    fn poll(&mut self, now: Instant, out: &mut Polled) {
        out.lanes.append(&mut self.facts);
        let told = out.lanes.len();
        for endpoint in self.all() {
            endpoint.poll(now, out);
        }
        for report in &out.lanes[told..] {
            self.ways.hear(report);
        }
        if !self.awaited.is_empty() {
            out.visible.retain(|ticket| {
                let place = self.awaited.iter().position(|(other, _)| other == ticket);
                let Some(place) = place else { return true };
                self.awaited[place].1 -= 1;
                let is_last = self.awaited[place].1 == 0;
                if is_last {
                    self.awaited.swap_remove(place);
                }
                is_last
            });
        }
    }

    fn make_visible(&mut self, session: SessionId, ticket: u64) -> bool {
        let asked = self
            .all()
            .map(|endpoint| endpoint.make_visible(session, ticket));
        let asked = asked.filter(|asked| *asked).count();
        if asked > 1 {
            self.awaited.push((ticket, asked));
        }
        asked > 0
    }

    fn fence(&mut self, lane: LaneId, epoch: Epoch, scope: Scope) {
        if scope == Scope::Local {
            self.ways.end(lane, epoch);
        }
        if let Some(endpoint) = self.of(lane.rail()) {
            endpoint.fence(lane, epoch, scope);
        }
    }

    fn arrived(&mut self, lane: LaneId, epoch: Epoch, told: u32) -> u32 {
        let endpoint = self.of(lane.rail());
        endpoint.map_or(0, |endpoint| endpoint.arrived(lane, epoch, told))
    }

    fn close(&mut self, lane: LaneId, epoch: Epoch) {
        self.ways.end(lane, epoch);
        if let Some(endpoint) = self.of(lane.rail()) {
            endpoint.close(lane, epoch);
        }
    }

    fn waits(&self) -> Waits {
        let rows = self.rows.iter().flatten();
        let waits = rows.map(|endpoint| endpoint.waits());
        waits.max().unwrap_or(Waits::Nothing)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// On the endpoint that most likely has something: what it waits for wakes it more directly than through another
    /// descriptor.
    fn sleep(&mut self, call: BorrowedFd<'_>, longest: Option<Duration>) -> io::Result<bool> {
        let knows = self.set_aside(call)?;
        let last = self.rows.get_mut(self.posted_last).and_then(Option::as_mut);
        let aside = self.asides.get(self.posted_last).filter(|_| knows);
        let (Some(last), Some(Aside::Made(_, aside))) = (last, aside) else {
            return polyrail_transport::sleep(self.poller.as_fd(), call, longest);
        };
        let woken = match last.sleep(aside.as_fd(), longest) {
            Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                self.asides[self.posted_last] = Aside::Impossible;
                return polyrail_transport::sleep(self.poller.as_fd(), call, longest);
            }
            woken => woken?,
        };
        let mut ready = [PollFd::from_borrowed_fd(call, PollFlags::IN)];
        Ok(woken && poll(&mut ready, Some(&Timespec::default()))? > 0)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let endpoints = self.rows.iter().flatten();
        let facts = (!self.facts.is_empty()).then_some(Instant::ZERO);
        endpoints
            .filter_map(|endpoint| endpoint.poll_timeout())
            .chain(facts)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use polyrail_tcp::TcpTransport;
    use polyrail_transport::Transport;
    use polyrail_transport::clock::Clock;
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::segments::Segments;

    #[test]
    fn a_sleep_on_any_of_several_endpoints_ends_when_somebody_calls() {
        let transport = TcpTransport::new(Arc::new(Segments::default()));
        let row = || transport.endpoint(0, Clock::start()).map(Some);
        let rows = [row(), row(), row()].into_iter().collect::<io::Result<_>>();
        let mut joined = Joined::new(rows.unwrap()).unwrap();
        let call = eventfd(0, EventfdFlags::empty()).unwrap();
        let short = Some(Duration::from_millis(1));
        // By turns, as requests go on with another transport and come back.
        for posted_last in [0, 1, 2, 1, 0] {
            joined.posted_last = posted_last;
            assert!(!joined.sleep(call.as_fd(), short).unwrap(), "{posted_last}");
            rustix::io::write(&call, &1_u64.to_ne_bytes()).unwrap();
            assert!(joined.sleep(call.as_fd(), None).unwrap(), "{posted_last}");
            rustix::io::read(&call, &mut [0; 8]).unwrap();
        }
    }
}
