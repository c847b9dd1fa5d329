//! The target's half: a thread that serves inbound lanes, and what it remembers of each.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use polyrail_control::codec::{self, Frame, Greeting, Purpose, Refusal};
use polyrail_core::transport::Capabilities;
use polyrail_core::units::{Epoch, LaneId};
use polyrail_transport::clock::Clock;
use polyrail_transport::complain;
use polyrail_transport::lanes::Lanes;
use polyrail_transport::memory::RegionTable;
use polyrail_transport::mishap;
use polyrail_transport::numbered::Numbered;
use polyrail_transport::service::{Serve, ServiceThread};
use polyrail_transport::shares::Shares;
use polyrail_transport::{Endpoint, FenceAnswer, InboundLane, RetireAnswer, SessionId, Transport};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use socket2::SockRef;

use crate::endpoint::{TcpEndpoint, abort};
use crate::place::Place;
use crate::serve::{End, Served};
use crate::{LANES_PER_SESSION_MAX, NAME, WORK_BYTES_MAX, WORKS_MAX, ktls, tune};

const EVENTS_MAX: usize = 64;

/// How long the thread looks again for an initiator that spins.
const SPIN: Duration = Duration::from_micros(50);

/// Looks in a row at one lane only.
const UNASKED_MAX: u32 = 16;

/// So often in a row something has to move on one lane before it is taken out of epoll.
const ALONE_MIN: u32 = 16;

const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// The token of the descriptor that says that a command has come. Lanes count from 1.
const WAKE: u64 = 0;

/// Ended epochs of a lane whose counts are remembered, for fences that are repeated.
const COUNTS_MAX: usize = 8;

/// TCP as a transport. Dropping it ends all inbound lanes and waits for the service thread.
///
/// Answers to fences and to retired sessions are given on that thread, so they must not block: no inbound
/// lane is served meanwhile.
pub struct TcpTransport {
    name: &'static str,
    regions: Arc<dyn RegionTable>,
    /// The service thread, once a first command needed one.
    service: Mutex<Option<ServiceThread<Command>>>,
}

enum Command {
    Admit(InboundLane),
    Fence(SessionId, LaneId, Epoch, FenceAnswer),
    Retire(SessionId, RetireAnswer),
}

impl TcpTransport {
    /// A transport that gives peers what `regions` names.
    pub fn new(regions: Arc<dyn RegionTable>) -> Self {
        Self::named(NAME, regions)
    }

    /// The same under another name: one more transport, for tests of several.
    pub fn named(name: &'static str, regions: Arc<dyn RegionTable>) -> Self {
        Self {
            name,
            regions,
            service: Mutex::new(None),
        }
    }

    /// Hands a command to the service thread, and starts that if need be. If it cannot be started, the
    /// command is dropped with its answer: nothing was proved. Only a session that is to end has ended then: nothing was
    /// ever served.
    fn tell(&self, command: Command) {
        let mut service = self.service.lock().unwrap_or_else(|e| e.into_inner());
        if service.is_none() {
            if let Command::Retire(_, answer) = command {
                drop(service);
                return answer();
            }
            let regions = self.regions.clone();
            let make = |wake, commands| Service::new(regions, wake, commands);
            match ServiceThread::start("tcp", make) {
                Ok(started) => *service = Some(started),
                Err(error) => complain!("tcp: cannot start the service thread: {error}"),
            }
        }
        if let Some(service) = &*service {
            service.tell(command);
        }
    }
}

impl fmt::Debug for TcpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TcpTransport")
    }
}

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        self.name
    }

    fn can_encrypt(&self) -> io::Result<()> {
        ktls::try_out()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::HOST
    }

    fn endpoint(&self, _worker: u16, clock: Clock) -> io::Result<Box<dyn Endpoint>> {
        Ok(Box::new(TcpEndpoint::new(self.name, clock)?))
    }

    fn admit(&self, lane: InboundLane) {
        self.tell(Command::Admit(lane));
    }

    fn fence_inbound(&self, session: SessionId, lane: LaneId, epoch: Epoch, answer: FenceAnswer) {
        self.tell(Command::Fence(session, lane, epoch, answer));
    }

    fn retire_session(&self, session: SessionId, answer: RetireAnswer) {
        self.tell(Command::Retire(session, answer));
    }
}

/// What the service thread remembers of an inbound lane.
#[derive(Debug, Default)]
struct Record {
    /// The newest epoch that was admitted.
    admitted: Epoch,
    /// The newest epoch that was fenced.
    fenced: Epoch,
    /// The connection that is served, of epoch `admitted`.
    token: Option<u64>,
    /// What was delivered in epochs that ended, the newest last.
    counts: VecDeque<(Epoch, u32)>,
}

impl Record {
    fn handle_ended(&mut self, delivered: u32) {
        self.token = None;
        if self.counts.len() == COUNTS_MAX {
            self.counts.pop_front();
        }
        self.counts.push_back((self.admitted, delivered));
    }

    /// What was delivered in an epoch that ended; 0 if there was none such, or too long ago.
    fn delivered(&self, epoch: Epoch) -> u32 {
        let count = self.counts.iter().rev().find(|(of, _)| *of == epoch);
        count.map_or(0, |(_, delivered)| *delivered)
    }
}

/// A connection, whose it is, and what epoll was told to wait for.
struct Inbound {
    session: SessionId,
    lane: LaneId,
    interest: EventFlags,
    served: Served,
}

/// Looks again for a while before it sleeps, if an initiator does.
#[derive(Default)]
struct Spin {
    /// The lane of that initiator that something moved on last, and when; none, if it does not spin.
    last: Option<(u64, Instant)>,
    /// How often in a row something moved on that lane, after the first time.
    steady: u32,
    /// Looks in a row at that lane only.
    unasked: u32,
}

impl Spin {
    /// Something moved on a lane.
    fn moved(&mut self, token: u64, spinning: bool) {
        let again = self.last.is_some_and(|(last, _)| last == token);
        self.steady = if again {
            self.steady.saturating_add(1)
        } else {
            0
        };
        self.last = spinning.then(|| (token, Instant::now()));
    }

    /// The lane that was looked at in vain for so long that it is time to sleep. Says so once.
    fn gives_up(&mut self) -> Option<u64> {
        let (token, _) = self.last.take_if(|(_, at)| at.elapsed() >= SPIN)?;
        Some(token)
    }

    /// Whether to look again. Sleeping is for later then.
    fn goes_on(&self) -> bool {
        self.last.is_some()
    }

    /// The lane to look at without asking who is ready, if that will be the same one again. The others' turn comes
    /// every few looks.
    fn unasked(&mut self) -> Option<u64> {
        let (token, _) = self.last.filter(|_| self.steady > 0)?;
        self.unasked = (self.unasked + 1) % UNASKED_MAX;
        (self.unasked > 0).then_some(token)
    }

    /// The lane that is looked at so often that epoll need not be told what comes on it.
    fn alone(&self) -> Option<u64> {
        let (token, _) = self.last.filter(|_| self.steady >= ALONE_MIN)?;
        Some(token)
    }
}

/// The service thread.
struct Service {
    regions: Arc<dyn RegionTable>,
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    commands: Receiver<Command>,
    records: HashMap<SessionId, Lanes<Record>>,
    inbound: Numbered<u64, Inbound>,
    shares: Shares,
    token_last: u64,
    /// A lane that epoll does not know now.
    ///
    /// Whatever comes for a socket that epoll knows is told to it, whether anybody sleeps there or not, on the
    /// processor of the sender and under a lock. While one lane is looked at all the time that is for nothing.
    alone: Option<u64>,
    place: Place,
}

impl Service {
    fn new(
        regions: Arc<dyn RegionTable>,
        wake: Arc<OwnedFd>,
        commands: Receiver<Command>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Self {
            regions,
            epoll,
            wake,
            commands,
            records: HashMap::new(),
            inbound: Numbered::default(),
            shares: Shares::default(),
            token_last: WAKE,
            alone: None,
            place: Place::default(),
        })
    }

    fn run(&mut self) -> io::Result<()> {
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        let mut spin = Spin::default();
        loop {
            mishap::check();
            if let Some(token) = spin.gives_up()
                && self.makes_room(token)
            {
                spin.last = Some((token, Instant::now()));
            }
            let spinning = spin.goes_on();
            self.leave_alone(spin.alone());
            if let Some(token) = spin.unasked() {
                self.look(token, &mut spin);
                if !self.handle_commands() {
                    return Ok(());
                }
                continue;
            }
            let timeout = spinning.then_some(&AT_ONCE);
            let events: &[epoll::Event] = match epoll::wait(&self.epoll, &mut events, timeout) {
                Ok((events, _)) => events,
                Err(rustix::io::Errno::INTR) => &[],
                Err(error) => return Err(error.into()),
            };
            for event in events {
                match event.data.u64() {
                    WAKE => {
                        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
                    }
                    token => self.look(token, &mut spin),
                }
                // A fence waits for one lane's turn, not for everybody's.
                if !self.handle_commands() {
                    return Ok(());
                }
            }
        }
    }

    /// Lets the initiator of a lane have this processor, if both are on one. Whether that was so.
    fn makes_room(&mut self, token: u64) -> bool {
        let inbound = self.inbound.get(&token);
        inbound.is_some_and(|inbound| {
            let Served { stream, peer, .. } = &inbound.served;
            self.place.leave_to(*peer, stream)
        })
    }

    /// Takes this lane out of epoll, and puts back the one that is out of it.
    fn leave_alone(&mut self, token: Option<u64>) {
        if self.alone == token {
            return;
        }
        if let Some(back) = self.alone.take()
            && let Some(inbound) = self.inbound.get(&back)
        {
            let stream = &inbound.served.stream;
            let data = EventData::new_u64(back);
            if let Err(error) = epoll::add(&self.epoll, stream, data, inbound.interest) {
                complain!(
                    "tcp: {}: {error}; {:?} closed",
                    inbound.served.peer,
                    inbound.lane
                );
                self.end(back);
            }
        }
        if let Some(inbound) = token.and_then(|token| self.inbound.get(&token)) {
            match epoll::delete(&self.epoll, &inbound.served.stream) {
                Ok(()) => self.alone = token,
                Err(error) => complain!("tcp: epoll_ctl for {:?}: {error}", inbound.lane),
            }
        }
    }

    /// Gives a lane its turn.
    fn look(&mut self, token: u64, spin: &mut Spin) {
        if self.turn(token) {
            let served = self.inbound.get(&token);
            spin.moved(
                token,
                served.is_some_and(|inbound| inbound.served.is_spinning()),
            );
        }
    }

    /// Does what was asked for meanwhile. `false`: nobody is left to ask.
    fn handle_commands(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Admit(lane)) => self.admit(lane),
                Ok(Command::Fence(session, lane, epoch, answer)) => {
                    answer(self.fence(session, lane, epoch));
                }
                Ok(Command::Retire(session, answer)) => {
                    self.retire(session);
                    answer();
                }
                Err(mpsc::TryRecvError::Empty) => return true,
                Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Carries on with one lane. Whether anything moved.
    fn turn(&mut self, token: u64) -> bool {
        let Some(inbound) = self.inbound.get_mut(&token) else {
            return false;
        };
        let ended = match inbound.served.turn(&*self.regions) {
            Ok(moved) => {
                let interest = inbound.served.interest();
                if interest == inbound.interest {
                    return moved;
                }
                inbound.interest = interest;
                if self.alone == Some(token) {
                    return moved;
                }
                let stream = &inbound.served.stream;
                epoll::modify(&self.epoll, stream, EventData::new_u64(token), interest)
                    .map(|()| moved)
                    .map_err(|error| error.to_string())
            }
            Err(End::Over) => {
                self.end(token);
                return true;
            }
            Err(end) => Err(end.to_string()),
        };
        match ended {
            Ok(moved) => moved,
            Err(text) => {
                let Inbound { lane, served, .. } = inbound;
                complain!("tcp: {}: {text}; {lane:?} closed", served.peer);
                self.end(token);
                true
            }
        }
    }

    /// Drops a connection: nothing is received for it any more.
    fn end(&mut self, token: u64) {
        let Some(inbound) = self.inbound.remove(&token) else {
            return;
        };
        self.alone.take_if(|alone| *alone == token);
        let address = inbound.served.peer.ip();
        self.shares.remove(inbound.session, address);
        abort(&inbound.served.stream);
        let lanes = self.records.get_mut(&inbound.session);
        if let Some(record) = lanes.and_then(|lanes| lanes.get_mut(inbound.lane)) {
            record.handle_ended(inbound.served.delivered());
        }
    }

    /// What is remembered of a lane. `None`: there is no room, so it was never and will never be admitted.
    fn record(&mut self, session: SessionId, lane: LaneId) -> Option<&mut Record> {
        let lanes = self.records.entry(session).or_default();
        lanes.admit(lane, LANES_PER_SESSION_MAX, |fenced| Record {
            fenced,
            ..Record::default()
        })
    }

    /// Whether a lane was fenced up to this epoch before it ever came.
    fn is_fenced(&self, lane: &InboundLane) -> bool {
        let lanes = self.records.get(&lane.session);
        lanes.is_some_and(|lanes| lane.epoch <= lanes.fenced(lane.lane))
    }

    fn admit(&mut self, lane: InboundLane) {
        let over = || {
            (
                Refusal::EpochFenced,
                "this epoch of the lane is over".into(),
            )
        };
        let refusal = if self.is_fenced(&lane) {
            Some(over())
        } else if self.record(lane.session, lane.lane).is_none() {
            Some((Refusal::Full, "this session has too many lanes".into()))
        } else if !self.begins(&lane) {
            Some(over())
        } else {
            self.has_its_share(&lane).map(|text| (Refusal::Full, text))
        };
        let frame = match refusal {
            None => Frame::LaneReady {
                works_max: WORKS_MAX,
                work_bytes_max: WORK_BYTES_MAX,
            },
            Some((reason, text)) => Frame::Refused { reason, text },
        };
        let is_served = matches!(frame, Frame::LaneReady { .. });
        let (session, number) = (lane.session, lane.lane);
        let answered = greet(&lane, &frame).and_then(|()| match is_served {
            true => self.serve(lane),
            false => Ok(()),
        });
        if let Err(error) = answered {
            log::debug!("tcp: {number:?} of {session:?} not admitted: {error}");
        }
    }

    /// Whether a lane may begin. If so, its epoch counts as admitted and older ones are over. Each begins once.
    fn begins(&mut self, lane: &InboundLane) -> bool {
        let Some(record) = self.record(lane.session, lane.lane) else {
            return false;
        };
        let (admitted, fenced, token) = (record.admitted, record.fenced, record.token);
        if lane.epoch <= fenced.max(admitted) {
            return false;
        }
        if let Some(token) = token {
            self.end(token);
        }
        // Before it is greeted: from then on the initiator relies on older epochs being over.
        if let Some(record) = self.record(lane.session, lane.lane) {
            record.admitted = lane.epoch;
        }
        true
    }

    /// Why its session, or where it comes from, may have no more lanes.
    fn has_its_share(&self, lane: &InboundLane) -> Option<String> {
        let address = lane.stream.peer_addr().ok()?.ip();
        let text = self.shares.refusal(lane.session, address, None)?;
        complain!("tcp: a lane from {address} is refused: {text}");
        Some(text)
    }

    fn serve(&mut self, lane: InboundLane) -> io::Result<()> {
        let InboundLane {
            session,
            domain,
            lane,
            stream,
            ..
        } = lane;
        let peer = stream.peer_addr()?;
        let interest = EventFlags::IN;
        self.token_last += 1;
        let token = self.token_last;
        epoll::add(&self.epoll, &stream, EventData::new_u64(token), interest)?;
        if let Some(record) = self.record(session, lane) {
            record.token = Some(token);
        }
        let inbound = Inbound {
            session,
            lane,
            interest,
            served: Served::new(stream, peer, domain),
        };
        self.inbound.insert(token, inbound);
        self.shares.add(session, peer.ip());
        Ok(())
    }

    fn fence(&mut self, session: SessionId, lane: LaneId, epoch: Epoch) -> u32 {
        let lanes = self.records.entry(session).or_default();
        let Some(record) = lanes.fence(lane, epoch) else {
            return 0;
        };
        record.fenced = record.fenced.max(epoch);
        let served = record.token.filter(|_| record.admitted <= epoch);
        if let Some(token) = served {
            self.end(token);
        }
        let lanes = self.records.get_mut(&session);
        let record = lanes.and_then(|lanes| lanes.get_mut(lane));
        record.map_or(0, |record| record.delivered(epoch))
    }

    fn retire(&mut self, session: SessionId) {
        let lanes = self.records.remove(&session).unwrap_or_default();
        for token in lanes.values().filter_map(|record| record.token) {
            self.end(token);
        }
    }
}

impl Serve for Service {
    fn serve(&mut self) -> io::Result<()> {
        self.run()
    }

    fn recover(&mut self) {
        let tokens: Vec<_> = self.inbound.keys().copied().collect();
        tokens.into_iter().for_each(|token| self.end(token));
    }

    fn finish(self) {}
}

/// Answers an inbound lane's greeting. A fresh connection has room for so few bytes; one that has not is
/// not worth waiting for.
fn greet(lane: &InboundLane, frame: &Frame) -> io::Result<()> {
    lane.stream.set_nonblocking(true)?;
    tune::prepare(SockRef::from(&lane.stream), lane.stream.peer_addr()?.ip())?;
    if let Some(keys) = &lane.keys {
        ktls::encrypt(&lane.stream, keys.of_target(), keys.of_initiator())?;
    }
    let mut bytes = Greeting::ours(Purpose::Lane).encode().to_vec();
    codec::encode(frame, &mut bytes).map_err(io::Error::other)?;
    (&lane.stream).write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lane_is_looked_at_alone_only_if_it_moves_again_and_again() {
        // (name, lanes that something moved on, whether the last one's initiator spins, looks of 32 without asking)
        let cases = [
            ("nothing yet", &[][..], true, 0),
            ("the first time", &[1], true, 0),
            ("again", &[1, 1], true, 30),
            ("by turns", &[1, 2, 1], true, 0),
            ("its initiator sleeps", &[1, 1, 1], false, 0),
        ];
        for (name, moves, spinning, unasked) in cases {
            let mut spin = Spin::default();
            for (index, token) in moves.iter().enumerate() {
                spin.moved(*token, spinning || index + 1 < moves.len());
            }
            let looks = (0..32).filter_map(|_| spin.unasked());
            assert_eq!(looks.count(), unasked, "{name}");
        }
    }
}
