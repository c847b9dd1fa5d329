//! The target's half: a thread that hands memory out and pulls what is offered.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use polyrail_core::transport::Capabilities;
use polyrail_core::units::{Epoch, LaneId};
use polyrail_transport::clock::Clock;
use polyrail_transport::memory::{Loan, RegionTable, TrustDomain};
use polyrail_transport::numbered::Numbered;
use polyrail_transport::service::ServiceThread;
use polyrail_transport::{Endpoint, FenceAnswer, InboundLane, RetireAnswer, SessionId, Transport};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::endpoint::ShmEndpoint;
use crate::far::Mappings;
use crate::process::{OwnCookie, check_user};
use crate::serve::{Grant, Greeting, More, Served};
use crate::wire::{Answer, LaneName};
use crate::{LANES_PER_SESSION_MAX, reach, socket};

const EVENTS_MAX: usize = 64;

/// Looks for offers in a row that find none, before epoll is asked again.
const UNASKED_MAX: u32 = 16;

/// Connections, of all peers.
const CONNECTIONS_MAX: usize = 4096;

/// How often it is looked again whether an initiator has left memory that it may not touch any more.
const AGAIN: Duration = Duration::from_millis(2);

const WAKE: u64 = 0;
const LISTEN: u64 = 1;
/// Connections count from here.
const FIRST: u64 = 2;

/// Shared memory as a transport. Dropping it ends all inbound lanes and waits for the service thread.
pub struct ShmTransport {
    common: Arc<Common>,
    mappings: Arc<Mappings>,
    /// What it is reached by, and the socket that listens there; or why there is none.
    listener: io::Result<(Vec<u8>, Arc<OwnedFd>)>,
    /// The service thread, once a peer could come.
    service: Mutex<Option<ServiceThread<Command>>>,
}

/// What the service thread and others share.
pub(crate) struct Common {
    pub(crate) regions: Arc<dyn RegionTable>,
    pub(crate) cookie: Arc<OwnCookie>,
    /// Those that lanes are admitted of, each with the trust domain that it is in.
    sessions: Mutex<HashMap<SessionId, TrustDomain>>,
}

impl Common {
    pub(crate) fn sessions(&self) -> MutexGuard<'_, HashMap<SessionId, TrustDomain>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Command {
    Fence(SessionId, LaneId, Epoch, FenceAnswer),
    Retire(SessionId, RetireAnswer),
}

impl ShmTransport {
    /// A transport that gives peers what `regions` names.
    pub fn new(regions: Arc<dyn RegionTable>) -> io::Result<Self> {
        let common = Common {
            regions,
            cookie: Arc::new(OwnCookie::new()?),
            sessions: Mutex::default(),
        };
        Ok(Self {
            common: Arc::new(common),
            mappings: Arc::default(),
            listener: listen(),
            service: Mutex::new(None),
        })
    }

    /// The service thread, started if need be. Without it nobody is let in.
    fn service(&self) -> MutexGuard<'_, Option<ServiceThread<Command>>> {
        let mut service = self.service.lock().unwrap_or_else(PoisonError::into_inner);
        if let (None, Ok((_, listener))) = (&*service, &self.listener) {
            let (common, listener) = (self.common.clone(), listener.clone());
            let make = |wake, commands| Service::new(common, wake, listener, commands);
            match ServiceThread::start("shm", make, Service::serve) {
                Ok(started) => *service = Some(started),
                Err(error) => log::error!("shm: cannot start the service thread: {error}"),
            }
        }
        service
    }

    /// Hands a command to the service thread. If there is none, it is dropped with its answer: nothing was proved.
    fn tell(&self, command: Command) {
        if let Some(service) = &*self.service() {
            service.tell(command);
        }
    }
}

/// Listens under a name that nobody can guess.
fn listen() -> io::Result<(Vec<u8>, Arc<OwnedFd>)> {
    let mut number = [0; 16];
    getrandom::fill(&mut number).map_err(|e| io::Error::other(e.to_string()))?;
    let name = format!("polyrail-{:032x}", u128::from_ne_bytes(number)).into_bytes();
    let socket = socket::listen_at(&name)?;
    Ok((name, Arc::new(socket)))
}

impl fmt::Debug for ShmTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShmTransport")
    }
}

impl Transport for ShmTransport {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn capabilities(&self) -> Capabilities {
        reach::ALL
    }

    fn address(&self) -> Vec<u8> {
        let name = self.listener.as_ref().map(|(name, _)| name.clone());
        name.unwrap_or_default()
    }

    fn reach(&self, address: &[u8], session: SessionId) -> Result<Capabilities, String> {
        reach::reach(address, session, &self.common.cookie).map_err(|error| error.to_string())
    }

    fn begin_session(&self, session: SessionId, domain: TrustDomain) {
        self.common.sessions().insert(session, domain);
        drop(self.service());
    }

    fn endpoint(&self, _worker: u16, clock: Clock) -> io::Result<Box<dyn Endpoint>> {
        if let Err(error) = &self.listener {
            return Err(io::Error::new(error.kind(), error.to_string()));
        }
        let (cookie, mappings) = (self.common.cookie.clone(), self.mappings.clone());
        Ok(Box::new(ShmEndpoint::new(clock, cookie, mappings)?))
    }

    /// Its lanes come over sockets of its own.
    fn admit(&self, lane: InboundLane) {
        log::warn!("shm: {:?} came over the network; dropped", lane.lane);
    }

    fn fence_inbound(&self, session: SessionId, lane: LaneId, epoch: Epoch, answer: FenceAnswer) {
        self.tell(Command::Fence(session, lane, epoch, answer));
    }

    fn retire_session(&self, session: SessionId, answer: RetireAnswer) {
        self.common.sessions().remove(&session);
        self.tell(Command::Retire(session, answer));
    }
}

/// What the service thread remembers of an inbound lane.
#[derive(Debug, Default)]
struct Record {
    /// The newest epoch that was admitted, and the newest that was fenced.
    admitted: Epoch,
    fenced: Epoch,
    /// The connection that is served, of epoch `admitted`.
    token: Option<u64>,
}

enum Connection {
    /// It has not said anything yet.
    New(OwnedFd),
    /// It only wanted to know whether it could; or it was refused.
    Idle(OwnedFd),
    Lane {
        session: SessionId,
        lane: LaneId,
        served: Served,
    },
}

/// The service thread.
struct Service {
    common: Arc<Common>,
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    listener: Arc<OwnedFd>,
    commands: Receiver<Command>,
    records: HashMap<SessionId, HashMap<LaneId, Record>>,
    connections: Numbered<u64, Connection>,
    /// Connections that have more to be pulled, or are looked at for it.
    pulling: VecDeque<u64>,
    /// Looks in a row that found nothing, since epoll was asked.
    unasked: u32,
    /// What initiators may not touch any more and have not left yet.
    leaving: Vec<(SessionId, Arc<Grant>)>,
    /// Sessions that wait for that.
    retiring: Vec<(SessionId, RetireAnswer)>,
    token_last: u64,
}

impl Service {
    fn new(
        common: Arc<Common>,
        wake: Arc<OwnedFd>,
        listener: Arc<OwnedFd>,
        commands: Receiver<Command>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let data = EventData::new_u64(LISTEN);
        epoll::add(&epoll, &listener, data, EventFlags::IN)?;
        Ok(Self {
            common,
            epoll,
            wake,
            listener,
            commands,
            records: HashMap::new(),
            connections: Numbered::default(),
            pulling: VecDeque::new(),
            unasked: 0,
            leaving: Vec::new(),
            retiring: Vec::new(),
            token_last: FIRST,
        })
    }

    fn serve(mut self) {
        self.run();
        // Memory that peers were given may outlive the transport.
        let tokens: Vec<_> = self.connections.keys().copied().collect();
        for token in tokens {
            self.end(token);
        }
        for (_, grant) in self.leaving {
            grant.end();
        }
    }

    fn run(&mut self) {
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        loop {
            if self.pulling.is_empty() || self.unasked == 0 || self.unasked > UNASKED_MAX {
                let timeout = self.timeout().and_then(|at| Timespec::try_from(at).ok());
                let ready = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
                    Ok((events, _)) => events,
                    Err(rustix::io::Errno::INTR) => &mut [],
                    Err(error) => {
                        log::error!("shm: epoll_wait: {error}; no inbound lane is served any more");
                        return;
                    }
                };
                self.unasked = 0;
                for event in ready {
                    match event.data.u64() {
                        WAKE => {
                            let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
                        }
                        LISTEN => self.accept(),
                        token => self.hear(token),
                    }
                }
            }
            self.unasked += 1;
            for _ in 0..self.pulling.len() {
                if let Some(token) = self.pulling.pop_front() {
                    self.pull(token);
                }
                // A fence waits for one lane's turn, not for everybody's.
                if !self.handle_commands() {
                    return;
                }
            }
            if !self.handle_commands() {
                return;
            }
            self.let_go();
        }
    }

    /// How long to wait for something to happen; `None`: as long as it takes.
    fn timeout(&self) -> Option<Duration> {
        if !self.pulling.is_empty() {
            return Some(Duration::ZERO);
        }
        (!self.leaving.is_empty()).then_some(AGAIN)
    }

    /// Does what was asked for meanwhile. `false`: nobody is left to ask.
    fn handle_commands(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Fence(session, lane, epoch, answer)) => {
                    answer(self.fence(session, lane, epoch));
                }
                Ok(Command::Retire(session, answer)) => self.retire(session, answer),
                Err(mpsc::TryRecvError::Empty) => return true,
                Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn accept(&mut self) {
        while let Ok(socket) = socket::accept(&self.listener) {
            if self.connections.len() >= CONNECTIONS_MAX {
                log::warn!(
                    "shm: {CONNECTIONS_MAX} connections, the limit; one more is turned away"
                );
                continue;
            }
            self.token_last += 1;
            let data = EventData::new_u64(self.token_last);
            let added = check_user(&socket)
                .and_then(|()| Ok(epoll::add(&self.epoll, &socket, data, EventFlags::IN)?));
            match added {
                Ok(()) => {
                    let new = Connection::New(socket);
                    self.connections.insert(self.token_last, new);
                }
                Err(error) => log::warn!("shm: a connection is turned away: {error}"),
            }
        }
    }

    /// Takes what a peer says.
    fn hear(&mut self, token: u64) {
        let heard = match self.connections.get_mut(&token) {
            None => return,
            Some(Connection::New(_)) => self.greeted(token),
            Some(Connection::Idle(socket)) => match socket::receive::<u8>(socket) {
                Ok(None) => Ok(false),
                Ok(Some(_)) => Err(socket::nonsense("it was not asked")),
                Err(error) => Err(error),
            },
            Some(Connection::Lane { served, .. }) => served.hear(&self.common),
        };
        match heard {
            Ok(true) => self.pulling.push_back(token),
            Ok(false) => {}
            Err(error) => {
                log::debug!("shm: a connection ends: {error}");
                self.end(token);
            }
        }
    }

    /// Lets in who has greeted. Whether it has offered anything, which it has not.
    fn greeted(&mut self, token: u64) -> io::Result<bool> {
        let Some(Connection::New(socket)) = self.connections.get(&token) else {
            return Ok(false);
        };
        let Some(greeting) = Greeting::receive(socket)? else {
            return Ok(false);
        };
        let domain = self.common.sessions().get(&greeting.session).copied();
        let text = match (&greeting.lane, domain) {
            (_, None) => "no such session",
            (Some((lane, _)), Some(_)) if !self.begins(token, greeting.session, *lane) => {
                "this epoch of the lane is over, or there are too many lanes"
            }
            (_, Some(domain)) => return self.admit(token, greeting, domain).map(|()| false),
        };
        self.refuse(token, text)
    }

    fn admit(&mut self, token: u64, greeting: Greeting, domain: TrustDomain) -> io::Result<()> {
        let Some(Connection::New(socket)) = self.connections.remove(&token) else {
            return Ok(());
        };
        let (process, ready) = greeting.answer(&socket, &self.common.cookie);
        let sent = socket::send(&socket, &ready, None);
        let connection = match greeting.lane {
            None => Connection::Idle(socket),
            Some((name, board)) => Connection::Lane {
                session: greeting.session,
                lane: LaneId(name.lane),
                served: Served::new(socket, board, domain, process),
            },
        };
        self.connections.insert(token, connection);
        sent
    }

    fn refuse(&mut self, token: u64, text: &str) -> io::Result<bool> {
        if let Some(Connection::New(socket)) = self.connections.remove(&token) {
            log::debug!("shm: a connection is refused: {text}");
            let text = text.to_owned();
            let sent = socket::send(&socket, &Answer::Refused { text }, None);
            self.connections.insert(token, Connection::Idle(socket));
            sent?;
        }
        Ok(false)
    }

    /// Whether a lane may begin. If so, its epoch counts as admitted and older ones are over.
    fn begins(&mut self, token: u64, session: SessionId, name: LaneName) -> bool {
        let epoch = Epoch(name.epoch);
        let Some(record) = self.record(session, LaneId(name.lane)) else {
            return false;
        };
        if epoch <= record.fenced || epoch < record.admitted {
            return false;
        }
        record.admitted = epoch;
        if let Some(old) = record.token.replace(token) {
            self.end(old);
        }
        true
    }

    /// What is remembered of a lane. `None`: there is no room, so it was never and will never be admitted.
    fn record(&mut self, session: SessionId, lane: LaneId) -> Option<&mut Record> {
        let lanes = self.records.entry(session).or_default();
        if lanes.len() >= LANES_PER_SESSION_MAX && !lanes.contains_key(&lane) {
            return None;
        }
        Some(lanes.entry(lane).or_default())
    }

    /// Carries out offers of one lane.
    fn pull(&mut self, token: u64) {
        let Some(Connection::Lane { served, .. }) = self.connections.get_mut(&token) else {
            return;
        };
        let more = served.pull(&self.common);
        if more == More::Perhaps {
            // It has taken its time, and so epoll's turn is next.
            self.unasked = 0;
        }
        if more != More::Nothing {
            self.pulling.push_back(token);
        }
    }

    /// Drops a connection: nothing is pulled for it any more, and what it was given is taken back.
    fn end(&mut self, token: u64) {
        let Some(Connection::Lane {
            session,
            lane,
            served,
        }) = self.connections.remove(&token)
        else {
            return;
        };
        let left = served.end();
        self.leaving
            .extend(left.into_iter().map(|grant| (session, grant)));
        let lanes = self.records.get_mut(&session);
        let record = lanes.and_then(|lanes| lanes.get_mut(&lane));
        if let Some(record) = record.filter(|record| record.token == Some(token)) {
            record.token = None;
        }
    }

    /// Ends a lane up to an epoch. Works that were delivered are not counted: none is certain.
    fn fence(&mut self, session: SessionId, lane: LaneId, epoch: Epoch) -> u32 {
        if let Some(record) = self.record(session, lane) {
            record.fenced = record.fenced.max(epoch);
            if record.admitted <= epoch
                && let Some(token) = record.token.take()
            {
                self.end(token);
            }
        }
        0
    }

    fn retire(&mut self, session: SessionId, answer: RetireAnswer) {
        let lanes = self.records.remove(&session).unwrap_or_default();
        for token in lanes.values().filter_map(|record| record.token) {
            self.end(token);
        }
        self.retiring.push((session, answer));
    }

    /// Forgets what initiators have left, and answers for sessions of which that is all.
    fn let_go(&mut self) {
        self.leaving.retain(|(_, grant)| !grant.is_left());
        let leaving = &self.leaving;
        let is_over = |session: SessionId| leaving.iter().all(|(of, _)| *of != session);
        let over = self
            .retiring
            .extract_if(.., |(session, _)| is_over(*session));
        for (_, answer) in over.collect::<Vec<_>>() {
            answer();
        }
    }
}
