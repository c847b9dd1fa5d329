//! The target's half: a thread that tells peers what opens a region, and sees that they leave it.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use polyrail_core::units::{Epoch, LaneId};
use polyrail_transport::acceptor::{Newcomer, Waiting};
use polyrail_transport::complain;
use polyrail_transport::lanes::Lanes;
use polyrail_transport::memory::{LOANS_MAX, Loan, Region, RegionKey, RegionTable, TrustDomain};
use polyrail_transport::mishap;
use polyrail_transport::numbered::Numbered;
use polyrail_transport::packets::{self, nonsense};
use polyrail_transport::service::Serve;
use polyrail_transport::ticket::{self, Nonce, SessionSecret, Ticket};
use polyrail_transport::{FenceAnswer, RetireAnswer, SessionId};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{Shutdown, shutdown};

use super::process::end_of;
use super::wire::{self, Answer, Memory, Request, VERSION};
use super::{CONNECTIONS_MAX, LANES_PER_SESSION_MAX};
use crate::gpus::Gpus;

const EVENTS_MAX: usize = 64;

/// Messages of one connection that are taken in a row.
const MESSAGES_MAX: usize = 64;

/// Regions that one connection may have open.
const GRANTS_MAX: usize = 1024;

const WAKE: u64 = 0;
/// Connections count from here, by twos: the socket, and the end of the process behind it.
const FIRST: u64 = 2;

pub(super) enum Command {
    /// Somebody of this user has connected.
    Accepted(Newcomer),
    Fence(SessionId, LaneId, Epoch, FenceAnswer),
    Retire(SessionId, RetireAnswer),
}

/// What the service thread and others share.
pub(super) struct Common {
    pub(super) gpus: Arc<Gpus>,
    pub(super) regions: Arc<dyn RegionTable>,
    /// Those that connections are let in of.
    sessions: Mutex<HashMap<SessionId, Session>>,
}

/// A session that connections are let in of.
#[derive(Clone)]
pub(super) struct Session {
    /// The trust domain that it is in.
    pub(super) domain: TrustDomain,
    /// What connections prove themselves with, if it has one.
    pub(super) secret: Option<SessionSecret>,
}

impl Common {
    pub(super) fn new(gpus: Arc<Gpus>, regions: Arc<dyn RegionTable>) -> Self {
        Self {
            gpus,
            regions,
            sessions: Mutex::default(),
        }
    }

    pub(super) fn sessions(&self) -> MutexGuard<'_, HashMap<SessionId, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A region that a peer has opened.
struct Grant {
    key: RegionKey,
    socket: Arc<OwnedFd>,
    /// The peer was asked to leave.
    said: AtomicBool,
    left: Mutex<bool>,
    changed: Condvar,
}

impl Grant {
    fn is_left(&self) -> bool {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_left(&self) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Asks the peer to leave, once. What does not fit into the socket now does once the peer reads: `false`.
    fn call_back(&self) -> bool {
        if self.said.load(Relaxed) {
            return true;
        }
        let said = wire::send(&self.socket, &Answer::Leave { key: self.key });
        let said = !said.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        self.said.store(said, Relaxed);
        said
    }
}

impl Loan for Grant {
    fn recall(&self) {
        self.call_back();
    }

    /// Waits for a peer that is in the midst of a copy: one that is stopped, or whose device has failed, does not say that
    /// it has left.
    fn end(&self, deadline: Instant) -> bool {
        let mut said = self.call_back();
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        while !*left {
            let now = Instant::now();
            if now >= deadline {
                return false;
            }
            let longest = match said {
                true => deadline - now,
                false => Duration::from_millis(1),
            };
            let waited = self.changed.wait_timeout(left, longest);
            left = waited.unwrap_or_else(PoisonError::into_inner).0;
            said = said || self.call_back();
        }
        true
    }

    /// It has left, or its process has ended.
    fn is_over(&self) -> bool {
        self.is_left()
    }
}

/// What is remembered of an inbound lane.
#[derive(Default)]
struct Record {
    /// The newest epoch that was admitted, and the newest that was fenced.
    admitted: Epoch,
    fenced: Epoch,
    /// The connection that is served, of epoch `admitted`.
    token: Option<u64>,
}

struct Connection {
    socket: Arc<OwnedFd>,
    /// Readable when the process behind it has ended.
    end: OwnedFd,
    /// What it was told to prove itself with.
    challenge: Option<Nonce>,
    /// `None`: it has not greeted.
    session: Option<SessionId>,
    /// Whose regions it reaches.
    domain: TrustDomain,
    lane: Option<LaneId>,
    grants: HashMap<RegionKey, Arc<Grant>>,
    /// Nothing more is opened for it.
    ending: bool,
    /// Its copies may outlive its process.
    served: bool,
    fences: Vec<FenceAnswer>,
}

impl Connection {
    /// Whether nothing is open to it.
    fn is_left(&self) -> bool {
        self.grants.values().all(|grant| grant.is_left())
    }

    /// Nothing more is opened for it, and what is open is called back.
    fn call_back(&mut self) {
        self.ending = true;
        for grant in self.grants.values() {
            grant.call_back();
        }
    }
}

/// The service thread.
pub(super) struct Service {
    common: Arc<Common>,
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    commands: Receiver<Command>,
    records: HashMap<SessionId, Lanes<Record>>,
    connections: Numbered<u64, Connection>,
    /// Sessions that wait for their connections to be left.
    retiring: Vec<(SessionId, RetireAnswer)>,
    /// Connections that were none of a lane when they came.
    waiting: Waiting,
    last: u64,
}

impl Service {
    pub(super) fn new(
        common: Arc<Common>,
        wake: Arc<OwnedFd>,
        commands: Receiver<Command>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Self {
            common,
            epoll,
            wake,
            commands,
            records: HashMap::new(),
            connections: Numbered::default(),
            retiring: Vec::new(),
            waiting: Waiting::default(),
            last: FIRST,
        })
    }

    /// Waits for something to happen, and takes it.
    fn wait(&mut self, longest: Option<Duration>) -> io::Result<()> {
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        let longest = longest.and_then(|longest| longest.try_into().ok());
        let ready = match epoll::wait(&self.epoll, &mut events, longest.as_ref()) {
            Ok((events, _)) => events,
            Err(rustix::io::Errno::INTR) => &mut [],
            Err(error) => return Err(error.into()),
        };
        for event in ready {
            mishap::check();
            match event.data.u64() {
                WAKE => {
                    let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
                }
                token if token % 2 == 0 => self.hear(token),
                // The process has ended: nothing moves for it any more.
                token => self.end(token - 1),
            }
        }
        self.expire();
        Ok(())
    }

    /// Ends connections that have not become a lane in time.
    fn expire(&mut self) {
        while let Some(token) = self.waiting.next_due() {
            let connection = self.connections.get(&token);
            if connection.is_some_and(|connection| connection.lane.is_none()) {
                self.end(token);
            }
        }
    }

    /// Does what was asked for meanwhile. `false`: nobody is left to ask.
    fn handle_commands(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Accepted(newcomer)) => self.connect(newcomer.take()),
                Ok(Command::Fence(session, lane, epoch, answer)) => {
                    self.fence(session, lane, epoch, answer);
                }
                Ok(Command::Retire(session, answer)) => {
                    self.records.remove(&session);
                    for connection in self.connections.values_mut() {
                        if connection.session == Some(session) {
                            connection.call_back();
                        }
                    }
                    self.retiring.push((session, answer));
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Begins to listen to a connection, if there is room for it.
    fn connect(&mut self, socket: OwnedFd) {
        if self.connections.len() >= CONNECTIONS_MAX {
            complain!(
                "cuda-ipc: {CONNECTIONS_MAX} connections, the limit; one more is turned away"
            );
            return;
        }
        let Some(end) = end_of(&socket) else {
            complain!(
                "cuda-ipc: a connection is turned away: the kernel does not say when its process ends"
            );
            return;
        };
        self.last += 2;
        let token = self.last;
        let data = EventData::new_u64(token);
        if let Err(error) = epoll::add(&self.epoll, &socket, data, EventFlags::IN) {
            complain!("cuda-ipc: a connection is turned away: {error}");
            return;
        }
        let connection = Connection {
            socket: Arc::new(socket),
            end,
            challenge: None,
            session: None,
            domain: TrustDomain::COMMON,
            lane: None,
            grants: HashMap::new(),
            ending: false,
            served: false,
            fences: Vec::new(),
        };
        self.connections.insert(token, connection);
        self.waiting.add(token);
    }

    /// Takes what a peer says.
    fn hear(&mut self, token: u64) {
        for _ in 0..MESSAGES_MAX {
            let Some(connection) = self.connections.get_mut(&token) else {
                return;
            };
            let heard = match wire::receive(&connection.socket) {
                Ok(None) => return,
                Ok(Some(request)) => self.take(token, request),
                // It has closed its socket with a word of this end's in it. What it said last is still to be heard.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => continue,
                Err(error) => Err(error),
            };
            if let Err(error) = heard {
                log::debug!("cuda-ipc: a connection ends: {error}");
                return self.hang_up(token);
            }
        }
    }

    fn take(&mut self, token: u64, request: Request) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&token) else {
            return Ok(());
        };
        match request {
            Request::Challenge if connection.challenge.is_none() => {
                let nonce = Nonce::draw()?;
                connection.challenge = Some(nonce);
                wire::send(&connection.socket, &Answer::Challenge { nonce })
            }
            Request::Hello {
                version,
                session,
                lane,
            } => self.greeted(token, version, (SessionId(session), lane), None),
            Request::HelloProved {
                version,
                session,
                lane,
                ticket,
            } => self.greeted(token, version, (SessionId(session), lane), Some(ticket)),
            Request::Open { key } if connection.lane.is_some() => {
                let answer = open(&self.common, connection, key)?;
                said(wire::send(&connection.socket, &answer))
            }
            Request::Map { key } if connection.lane.is_some() => map(&self.common, connection, key),
            Request::Left { key } => {
                if let Some(grant) = connection.grants.remove(&key) {
                    grant.set_left();
                }
                Ok(())
            }
            Request::Over => {
                self.end(token);
                Ok(())
            }
            Request::Served => {
                connection.served = true;
                Ok(())
            }
            Request::Challenge | Request::Open { .. } | Request::Map { .. } => {
                Err(nonsense("it is out of turn"))
            }
        }
    }

    /// Lets in who has greeted, unless it may not.
    fn greeted(
        &mut self,
        token: u64,
        version: u16,
        (session, lane): (SessionId, Option<(u32, u32)>),
        ticket: Option<Ticket>,
    ) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&token) else {
            return Ok(());
        };
        if connection.session.is_some() {
            return Err(nonsense("it is out of turn"));
        }
        let known = self.common.sessions().get(&session).cloned();
        let known = known.filter(|_| version == VERSION);
        let secret = known.as_ref().and_then(|known| known.secret.as_ref());
        let said = connection.challenge.zip(ticket.as_ref());
        let admitted = ticket::admit(secret, &wire::entry(session, lane), said);
        if let Err(denied) = &admitted {
            complain!("cuda-ipc: a connection is turned away: {denied}");
            let _ = wire::send(&connection.socket, &Answer::Refused);
        }
        let proof = admitted?;
        let known = known.filter(|_| lane.is_none_or(|lane| self.begins(token, session, lane)));
        let connection = self.connections.get_mut(&token);
        let connection = connection.ok_or_else(|| nonsense("it has gone"))?;
        let Some(known) = known else {
            let _ = wire::send(&connection.socket, &Answer::Refused);
            return Err(nonsense("it is not let in"));
        };
        connection.session = Some(session);
        connection.domain = known.domain;
        connection.lane = lane.map(|(lane, _)| LaneId(lane));
        if let Some(proof) = proof {
            wire::send(&connection.socket, &Answer::Proved { proof })?;
        }
        wire::send(&connection.socket, &Answer::Ready)
    }

    /// Whether a lane may begin. If so, its epoch counts as admitted and older ones are over.
    fn begins(&mut self, token: u64, session: SessionId, (lane, epoch): (u32, u32)) -> bool {
        let epoch = Epoch(epoch);
        let lanes = self.records.get(&session);
        if lanes.is_some_and(|lanes| epoch <= lanes.fenced(LaneId(lane))) {
            return false;
        }
        let Some(record) = self.record(session, LaneId(lane)) else {
            return false;
        };
        if epoch <= record.fenced.max(record.admitted) {
            return false;
        }
        record.admitted = epoch;
        if let Some(old) = record.token.replace(token)
            && let Some(old) = self.connections.get_mut(&old)
        {
            old.call_back();
        }
        true
    }

    /// What is remembered of a lane. `None`: there is no room, so it was never and will never be admitted.
    fn record(&mut self, session: SessionId, lane: LaneId) -> Option<&mut Record> {
        let lanes = self.records.entry(session).or_default();
        lanes.admit(lane, LANES_PER_SESSION_MAX, |fenced| Record {
            fenced,
            ..Record::default()
        })
    }

    /// A peer is not heard any more. It may still copy, until it has ended.
    fn hang_up(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let _ = epoll::delete(&self.epoll, &connection.socket);
        let _ = shutdown(&*connection.socket, Shutdown::Both);
        if connection.is_left() {
            return self.end(token);
        }
        connection.ending = true;
        if connection.served {
            return complain!(
                "cuda-ipc: memory of a lost peer stays in use until this process ends: under MPS its copies may go on when it \
                 has ended"
            );
        }
        let data = EventData::new_u64(token + 1);
        if let Err(error) = epoll::add(&self.epoll, &connection.end, data, EventFlags::IN) {
            complain!("cuda-ipc: memory of a lost peer stays in use: {error}");
        }
    }

    /// Nothing of a connection touches memory any more.
    fn end(&mut self, token: u64) {
        let Some(connection) = self.connections.remove(&token) else {
            return;
        };
        for grant in connection.grants.values() {
            grant.set_left();
        }
        for answer in connection.fences {
            answer(0);
        }
    }

    /// Ends a lane up to an epoch, and answers once it has left what was opened for it.
    fn fence(&mut self, session: SessionId, lane: LaneId, epoch: Epoch, answer: FenceAnswer) {
        let lanes = self.records.entry(session).or_default();
        let Some(record) = lanes.fence(lane, epoch) else {
            return answer(0);
        };
        record.fenced = record.fenced.max(epoch);
        let served = record.token.filter(|_| record.admitted <= epoch);
        match served.and_then(|token| self.connections.get_mut(&token)) {
            None => answer(0),
            Some(connection) => {
                connection.call_back();
                connection.fences.push(answer);
            }
        }
    }

    /// Answers where all was left.
    fn settle(&mut self) {
        for connection in self.connections.values_mut() {
            if connection.ending && connection.is_left() {
                for answer in connection.fences.drain(..) {
                    answer(0);
                }
            }
        }
        let connections = &self.connections;
        let is_over = |session: SessionId| {
            let mut of = connections
                .values()
                .filter(|connection| connection.session == Some(session));
            of.all(Connection::is_left)
        };
        let over = self
            .retiring
            .extract_if(.., |(session, _)| is_over(*session));
        for (_, answer) in over.collect::<Vec<_>>() {
            answer();
        }
    }
}

impl Serve for Service {
    fn serve(&mut self) -> io::Result<()> {
        loop {
            self.wait(self.waiting.left())?;
            if !self.handle_commands() {
                return Ok(());
            }
            self.settle();
        }
    }

    /// Whoever copies has to leave first.
    fn recover(&mut self) {
        let tokens: Vec<_> = self.connections.keys().copied().collect();
        for token in tokens {
            if let Some(connection) = self.connections.get_mut(&token) {
                connection.call_back();
            }
            self.hang_up(token);
        }
    }

    fn finish(mut self) {
        // Memory that peers have open may outlive the transport.
        for connection in self.connections.values_mut() {
            connection.call_back();
        }
        let until = Instant::now() + LOANS_MAX;
        while !self.connections.values().all(Connection::is_left) {
            let waited = self.wait(Some(Duration::from_millis(1)));
            if Instant::now() > until || waited.is_err() {
                log::warn!("cuda-ipc: a peer may still touch memory of this engine");
                // Nobody will hear of it any more, so it counts as lent for good.
                let grants = self.connections.values();
                let grants = grants.flat_map(|connection| connection.grants.values());
                for grant in grants.filter(|grant| !grant.is_left()) {
                    std::mem::forget(grant.clone());
                }
                return;
            }
        }
    }
}

/// What a peer said before it hung up is still to be heard.
fn said(sent: io::Result<()>) -> io::Result<()> {
    match sent {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        sent => sent,
    }
}

/// The region behind a key, if the peer may use it.
fn find(common: &Common, connection: &Connection, key: RegionKey) -> Option<Arc<Region>> {
    let region = common.regions.find(&key, connection.domain);
    let region = region.filter(|region| region.access().allows_remote_read());
    region.filter(|_| !connection.ending)
}

/// Whether one more region can be opened to a peer.
fn check_room(connection: &Connection, key: RegionKey) -> io::Result<()> {
    match connection.grants.len() >= GRANTS_MAX || connection.grants.contains_key(&key) {
        true => Err(nonsense("it opens too much")),
        false => Ok(()),
    }
}

/// Hands memory of the host to a peer, if it may use it and can map it.
fn map(common: &Common, connection: &mut Connection, key: RegionKey) -> io::Result<()> {
    check_room(connection, key)?;
    let region = find(common, connection, key).filter(|region| region.device().is_none());
    let lent = region.as_ref().and_then(|region| {
        let file = region.file()?;
        lend(connection, region, key).then_some((region, file))
    });
    let Some((region, file)) = lent else {
        return said(wire::send(&connection.socket, &Answer::Nothing { key }));
    };
    let maps = Answer::Maps {
        key,
        bytes: region.bytes(),
        writable: region.access().allows_remote_write(),
    };
    said(packets::send(&connection.socket, &maps, Some(file)))
}

/// Opens a region to a peer, if it may use it.
fn open(common: &Common, connection: &mut Connection, key: RegionKey) -> io::Result<Answer> {
    let nothing = Answer::Nothing { key };
    let Some(region) = find(common, connection, key) else {
        return Ok(nothing);
    };
    if region.device().is_none() {
        return Ok(Answer::IsOnHost { key });
    }
    check_room(connection, key)?;
    let address = region.base().as_ptr() as u64;
    let export = match common.gpus.export(address, region.bytes()) {
        Ok(export) => export,
        Err(error) => {
            // The peer tries again and again.
            log::debug!("cuda-ipc: {region:?} cannot be opened by peers: {error}");
            return Ok(Answer::Locked { key });
        }
    };
    if !lend(connection, &region, key) {
        return Ok(nothing);
    }
    let writable = region.access().allows_remote_write();
    let gpus = common.gpus.gpus().unwrap_or_default();
    let gpu = gpus.get(export.ordinal as usize);
    let uuid = gpu.map_or([0; 16], |gpu| gpu.uuid);
    let memory = Memory::new(&export, uuid, region.bytes(), writable);
    Ok(Answer::Opens { key, memory })
}

/// `false`: it has been revoked.
fn lend(connection: &mut Connection, region: &Region, key: RegionKey) -> bool {
    let grant = Arc::new(Grant {
        key,
        socket: connection.socket.clone(),
        said: AtomicBool::new(false),
        left: Mutex::new(false),
        changed: Condvar::new(),
    });
    let weak = Arc::downgrade(&grant);
    let lent = region.lend(weak);
    if lent {
        connection.grants.insert(key, grant);
    }
    lent
}
