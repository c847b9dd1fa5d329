//! The target's half: threads that hand memory out and pull what is offered.
//!
//! Each lane is one thread's, from its first greeting or fence to the end of its session, so that whoever ends it is also
//! the only one who would pull for it. The first thread hears all greetings, and passes on those of others' lanes. Lanes
//! go to the threads in turn. One more thread accepts connections, and hands over those of this user.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use polyrail_core::transport::Capabilities;
use polyrail_core::units::{Epoch, LaneId};
use polyrail_transport::acceptor::{self, Acceptor, Newcomer, Waiting};
use polyrail_transport::clock::Clock;
use polyrail_transport::complain;
use polyrail_transport::lanes::Lanes;
use polyrail_transport::memory::{LOANS_MAX, Loan, RegionTable, TrustDomain};
use polyrail_transport::mishap;
use polyrail_transport::numbered::Numbered;
use polyrail_transport::packets;
use polyrail_transport::service::{Caller, Serve, ServiceThread};
use polyrail_transport::ticket::{Nonce, SessionSecret};
use polyrail_transport::{Endpoint, FenceAnswer, InboundLane, RetireAnswer, SessionId, Transport};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::copy_threads::{CopyThreads, Member};
use crate::endpoint::ShmEndpoint;
use crate::far::Mappings;
use crate::process::OwnCookie;
use crate::serve::{Grant, Greeting, More, Said, Served};
use crate::wire::{Answer, LaneName};
use crate::{LANES_PER_SESSION_MAX, NAME, reach};

const EVENTS_MAX: usize = 64;

/// Looks for offers in a row that find none, before epoll is asked again.
const UNASKED_MAX: u32 = 16;

/// Connections, of all peers.
const CONNECTIONS_MAX: usize = 4096;

/// The most threads that serve lanes. Memory is busy with fewer copies than a large machine has processors.
const THREADS_MAX: usize = 4;

/// How often it is looked again whether an initiator has left memory that it may not touch any more.
const AGAIN: Duration = Duration::from_millis(2);

const WAKE: u64 = 0;
/// Connections count from here.
const FIRST: u64 = 1;

/// Shared memory as a transport. Dropping it ends all inbound lanes and waits for the service thread.
pub struct ShmTransport {
    common: Arc<Common>,
    mappings: Arc<Mappings>,
    /// What it is reached by, and the socket that listens there; or why there is none.
    listener: io::Result<(Vec<u8>, Arc<OwnedFd>)>,
    /// The threads, once a peer could come.
    services: Mutex<Services>,
}

/// The threads of a target; none, or all.
#[derive(Default)]
struct Services {
    /// Before the others: it hands them connections.
    acceptor: Option<Acceptor>,
    serve: Vec<ServiceThread<Command>>,
}

/// What the service thread and others share.
pub(crate) struct Common {
    pub(crate) regions: Arc<dyn RegionTable>,
    pub(crate) cookie: Arc<OwnCookie>,
    copy_threads: Arc<CopyThreads>,
    sessions: Mutex<Sessions>,
    /// Processors that this process may use.
    processors: usize,
    /// Service threads, once they run.
    threads: usize,
    /// Those that are at lanes, or look at them for offers.
    busy: AtomicUsize,
}

impl Common {
    pub(crate) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are processors for all service threads that are busy, and for as many initiators.
    pub(crate) fn has_processors(&self) -> bool {
        2 * self.busy.load(Relaxed) <= self.processors
    }

    /// Processors that neither service threads that are busy need nor their initiators; one of these, of the lane that asks,
    /// may be known not to look for answers.
    pub(crate) fn spare_processors(&self, is_awaited: bool) -> usize {
        // Who has just begun does not count yet.
        let busy = self.busy.load(Relaxed).max(1);
        let needed = 2 * busy - usize::from(!is_awaited);
        self.processors.saturating_sub(needed)
    }

    /// Whose a lane is that is to begin. `None`: its session is over or has too many, or this epoch of it is over.
    fn admit(&self, session: SessionId, name: LaneName) -> Option<usize> {
        self.sessions().admit(session, name, self.threads)
    }
}

/// A session that lanes may join.
#[derive(Debug)]
struct Session {
    domain: TrustDomain,
    /// What lanes prove themselves with, if it has one.
    secret: Option<SessionSecret>,
    /// Whose its lanes are.
    lanes: Lanes<usize>,
}

/// Sessions that lanes may join.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    sessions: HashMap<SessionId, Session>,
    /// Lanes that were given to a thread so far.
    given: usize,
}

impl Sessions {
    fn begin(&mut self, session: SessionId, domain: TrustDomain, secret: Option<SessionSecret>) {
        let new = Session {
            domain,
            secret,
            lanes: Lanes::default(),
        };
        self.sessions.entry(session).or_insert(new);
    }

    /// The trust domain that a session is in; `None`: there is no such session.
    fn domain(&self, session: SessionId) -> Option<TrustDomain> {
        Some(self.sessions.get(&session)?.domain)
    }

    /// What lanes of a session have to prove themselves with.
    fn secret(&self, session: SessionId) -> Option<SessionSecret> {
        self.sessions.get(&session)?.secret.clone()
    }

    fn admit(&mut self, session: SessionId, name: LaneName, threads: usize) -> Option<usize> {
        let (lane, epoch) = (LaneId(name.lane), Epoch(name.epoch));
        let lanes = &mut self.sessions.get_mut(&session)?.lanes;
        if let Some(thread) = lanes.get_mut(lane) {
            return Some(*thread);
        }
        if epoch <= lanes.fenced(lane) {
            return None;
        }
        let thread = self.given % threads;
        lanes.admit(lane, LANES_PER_SESSION_MAX, |_| thread)?;
        self.given += 1;
        Some(thread)
    }

    /// Whose a lane is that is to be fenced.
    fn fence(&mut self, session: SessionId, lane: LaneId, epoch: Epoch) -> Fencing {
        let Some(session) = self.sessions.get_mut(&session) else {
            return Fencing::Over;
        };
        match session.lanes.fence(lane, epoch) {
            Some(thread) => Fencing::Thread(*thread),
            None => Fencing::Noted,
        }
    }
}

/// What has to be done for a fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fencing {
    /// This thread ends the lane.
    Thread(usize),
    /// Nothing: it never was, and will not begin with that epoch.
    Noted,
    /// Its session has ended, or is ending.
    Over,
}

enum Command {
    /// Somebody of this user has connected.
    Accepted(Newcomer),
    /// Somebody has greeted, as a lane of this thread's.
    Greeted(OwnedFd, Greeting),
    Fence(SessionId, LaneId, Epoch, FenceAnswer),
    Retire(SessionId, RetireAnswer),
    /// Everything before this was done.
    Pass(RetireAnswer),
    /// The transport is no more.
    End,
}

/// As many answers as one that all of them give: the last one does.
fn shared_answer(answer: RetireAnswer, count: usize) -> impl Iterator<Item = RetireAnswer> {
    let answer = Arc::new(Mutex::new((count, Some(answer))));
    (0..count).map(move |_| {
        let answer = answer.clone();
        let one: RetireAnswer = Box::new(move || {
            let mut shared = answer.lock().unwrap_or_else(PoisonError::into_inner);
            shared.0 -= 1;
            let whole = (shared.0 == 0).then(|| shared.1.take()).flatten();
            // It may be the last one that holds the transport.
            drop(shared);
            if let Some(answer) = whole {
                answer();
            }
        });
        one
    })
}

impl ShmTransport {
    /// A transport that gives peers what `regions` names. Large copies are cut over so many threads, if there are
    /// processors for them.
    pub fn new(regions: Arc<dyn RegionTable>, copiers: usize) -> io::Result<Self> {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let common = Common {
            regions,
            cookie: Arc::new(OwnCookie::new()?),
            copy_threads: Arc::new(CopyThreads::new(copiers)),
            sessions: Mutex::default(),
            processors,
            threads: processors.min(THREADS_MAX),
            busy: AtomicUsize::new(0),
        };
        Ok(Self {
            common: Arc::new(common),
            mappings: Arc::default(),
            listener: listen(),
            services: Mutex::default(),
        })
    }

    /// The threads, started if need be. Without all of them nobody is let in.
    fn services(&self) -> MutexGuard<'_, Services> {
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        if let (true, Ok((_, listener))) = (services.serve.is_empty(), &self.listener) {
            match self.start(listener) {
                Ok(started) => *services = started,
                Err(error) => complain!("shm: cannot start the service threads: {error}"),
            }
        }
        services
    }

    fn start(&self, listener: &Arc<OwnedFd>) -> io::Result<Services> {
        let start = |others| {
            let common = self.common.clone();
            let make = |wake, commands| Service::new(common, wake, others, commands);
            ServiceThread::start("shm", make)
        };
        let others = (1..self.common.threads).map(|_| start(Vec::new()));
        let others = others.collect::<io::Result<Vec<_>>>()?;
        let first = start(others.iter().map(ServiceThread::caller).collect())?;
        let caller = first.caller();
        let hand = move |newcomer| caller.tell(Command::Accepted(newcomer));
        let acceptor = acceptor::start("shm-accept", NAME, listener.clone(), hand)?;
        Ok(Services {
            acceptor: Some(acceptor),
            serve: [first].into_iter().chain(others).collect(),
        })
    }
}

/// Hands something to all service threads. If there is none, none has ever been, and nothing was served.
fn tell_all(
    services: &[ServiceThread<Command>],
    answer: RetireAnswer,
    command: impl Fn(RetireAnswer) -> Command,
) {
    if services.is_empty() {
        return answer();
    }
    for (service, answer) in services.iter().zip(shared_answer(answer, services.len())) {
        service.tell(command(answer));
    }
}

/// Listens under a name that nobody can guess.
fn listen() -> io::Result<(Vec<u8>, Arc<OwnedFd>)> {
    let mut number = [0; 16];
    getrandom::fill(&mut number).map_err(|e| io::Error::other(e.to_string()))?;
    let name = format!("polyrail-{:032x}", u128::from_ne_bytes(number)).into_bytes();
    let socket = packets::listen_at(&name)?;
    Ok((name, Arc::new(socket)))
}

impl fmt::Debug for ShmTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShmTransport")
    }
}

impl Drop for ShmTransport {
    /// Service threads call each other, and would wait for ever until nobody does.
    fn drop(&mut self) {
        let services = self.services.get_mut();
        let services = services.unwrap_or_else(PoisonError::into_inner);
        services.acceptor = None;
        for service in &services.serve {
            service.tell(Command::End);
        }
    }
}

impl Transport for ShmTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn is_within_host(&self) -> bool {
        true
    }

    fn capabilities(&self) -> Capabilities {
        reach::ALL
    }

    fn address(&self) -> Vec<u8> {
        let name = self.listener.as_ref().map(|(name, _)| name.clone());
        name.unwrap_or_default()
    }

    fn reach(
        &self,
        address: &[u8],
        session: SessionId,
        secret: Option<&SessionSecret>,
    ) -> Result<Capabilities, String> {
        let reached = reach::reach(address, session, secret, &self.common.cookie);
        reached.map_err(|error| error.to_string())
    }

    fn begin_session(
        &self,
        session: SessionId,
        domain: TrustDomain,
        secret: Option<SessionSecret>,
    ) {
        self.common.sessions().begin(session, domain, secret);
        drop(self.services());
    }

    fn endpoint(&self, _worker: u16, clock: Clock) -> io::Result<Box<dyn Endpoint>> {
        if let Err(error) = &self.listener {
            return Err(io::Error::new(error.kind(), error.to_string()));
        }
        let (cookie, mappings) = (self.common.cookie.clone(), self.mappings.clone());
        let copy_threads = self.common.copy_threads.member();
        Ok(Box::new(ShmEndpoint::new(
            clock,
            cookie,
            mappings,
            copy_threads,
        )?))
    }

    /// Its lanes come over sockets of its own.
    fn admit(&self, lane: InboundLane) {
        complain!("shm: {:?} came over the network; dropped", lane.lane);
    }

    fn fence_inbound(&self, session: SessionId, lane: LaneId, epoch: Epoch, answer: FenceAnswer) {
        // Held until they are told: a session that is over here is over for whoever is told later.
        let services = self.services();
        let fencing = self.common.sessions().fence(session, lane, epoch);
        match fencing {
            Fencing::Thread(thread) => {
                if let Some(service) = services.serve.get(thread) {
                    service.tell(Command::Fence(session, lane, epoch, answer));
                }
            }
            // Answered by a thread all the same, as any other fence.
            Fencing::Noted => {
                let one = services.serve.get(..1).unwrap_or_default();
                tell_all(one, Box::new(move || answer(0)), Command::Pass);
            }
            Fencing::Over => tell_all(&services.serve, Box::new(move || answer(0)), Command::Pass),
        }
    }

    fn retire_session(&self, session: SessionId, answer: RetireAnswer) {
        let services = self.services();
        self.common.sessions().sessions.remove(&session);
        tell_all(&services.serve, answer, |answer| {
            Command::Retire(session, answer)
        });
    }
}

/// What a service thread remembers of an inbound lane.
#[derive(Debug, Default)]
struct Record {
    /// The newest epoch that was admitted, and the newest that was fenced.
    admitted: Epoch,
    fenced: Epoch,
    /// The connection that is served, of epoch `admitted`.
    token: Option<u64>,
}

enum Connection {
    /// It has not said who it is yet, but perhaps been told what to prove itself with.
    New(OwnedFd, Option<Nonce>),
    /// It only wanted to know whether it could; or it was refused.
    Idle(OwnedFd),
    Lane {
        session: SessionId,
        lane: LaneId,
        served: Served,
    },
}

/// A service thread.
struct Service {
    common: Arc<Common>,
    copy_threads: Member,
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    /// Of the first thread: those to whom it passes on, in order, what is theirs.
    others: Vec<Caller<Command>>,
    commands: Receiver<Command>,
    records: HashMap<SessionId, HashMap<LaneId, Record>>,
    connections: Numbered<u64, Connection>,
    /// Connections that have more to be pulled, or are looked at for it.
    pulling: VecDeque<u64>,
    /// Looks in a row that found nothing, since epoll was asked.
    unasked: u32,
    /// Whether it counts among those that are.
    busy: bool,
    /// Connections that are none of a lane.
    waiting: Waiting,
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
        others: Vec<Caller<Command>>,
        commands: Receiver<Command>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Self {
            copy_threads: common.copy_threads.member(),
            common,
            epoll,
            wake,
            others,
            commands,
            records: HashMap::new(),
            connections: Numbered::default(),
            pulling: VecDeque::new(),
            unasked: 0,
            busy: false,
            waiting: Waiting::default(),
            leaving: Vec::new(),
            retiring: Vec::new(),
            token_last: FIRST,
        })
    }

    /// Says whether it is at lanes, or looks at them.
    fn set_busy(&mut self, busy: bool) {
        if self.busy != busy {
            self.busy = busy;
            match busy {
                true => self.common.busy.fetch_add(1, Relaxed),
                false => self.common.busy.fetch_sub(1, Relaxed),
            };
        }
    }

    fn run(&mut self) -> io::Result<()> {
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        loop {
            self.set_busy(!self.pulling.is_empty());
            if !self.busy || self.unasked == 0 || self.unasked > UNASKED_MAX {
                let timeout = self.timeout().and_then(|at| Timespec::try_from(at).ok());
                let ready = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
                    Ok((events, _)) => events,
                    Err(rustix::io::Errno::INTR) => &mut [],
                    Err(error) => return Err(error.into()),
                };
                self.unasked = 0;
                for event in ready {
                    mishap::check();
                    match event.data.u64() {
                        WAKE => {
                            let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
                        }
                        token => self.hear(token),
                    }
                }
                self.expire();
            }
            self.unasked += 1;
            for _ in 0..self.pulling.len() {
                if let Some(token) = self.pulling.pop_front() {
                    self.pull(token);
                }
                // A fence waits for one lane's turn, not for everybody's.
                if !self.handle_commands() {
                    return Ok(());
                }
            }
            if !self.handle_commands() {
                return Ok(());
            }
            self.let_go();
        }
    }

    /// How long to wait for something to happen; `None`: as long as it takes.
    fn timeout(&self) -> Option<Duration> {
        if !self.pulling.is_empty() {
            return Some(Duration::ZERO);
        }
        let again = (!self.leaving.is_empty()).then_some(AGAIN);
        again.into_iter().chain(self.waiting.left()).min()
    }

    /// Ends connections that have not become a lane in time.
    fn expire(&mut self) {
        while let Some(token) = self.waiting.next_due() {
            if !matches!(self.connections.get(&token), Some(Connection::Lane { .. })) {
                self.end(token);
            }
        }
    }

    /// Does what was asked for meanwhile. `false`: nobody is left to ask.
    fn handle_commands(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Accepted(newcomer)) => {
                    self.connect(newcomer.take());
                }
                Ok(Command::Greeted(socket, greeting)) => self.take_over(socket, greeting),
                Ok(Command::Fence(session, lane, epoch, answer)) => {
                    answer(self.fence(session, lane, epoch));
                }
                Ok(Command::Pass(answer)) => answer(),
                Ok(Command::Retire(session, answer)) => self.retire(session, answer),
                Err(mpsc::TryRecvError::Empty) => return true,
                Ok(Command::End) | Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Begins to listen to a connection, if there is room for it. Its number then.
    fn connect(&mut self, socket: OwnedFd) -> Option<u64> {
        let most = CONNECTIONS_MAX / self.common.threads;
        if self.connections.len() >= most {
            complain!("shm: {most} connections, the limit; one more is turned away");
            return None;
        }
        self.token_last += 1;
        let data = EventData::new_u64(self.token_last);
        if let Err(error) = epoll::add(&self.epoll, &socket, data, EventFlags::IN) {
            complain!("shm: a connection is turned away: {error}");
            return None;
        }
        let new = Connection::New(socket, None);
        self.connections.insert(self.token_last, new);
        self.waiting.add(self.token_last);
        Some(self.token_last)
    }

    /// Goes on with who has greeted to another thread.
    fn take_over(&mut self, socket: OwnedFd, greeting: Greeting) {
        if let Some(token) = self.connect(socket)
            && let Err(error) = self.enter(token, greeting)
        {
            log::debug!("shm: a connection ends: {error}");
            self.end(token);
        }
    }

    /// Takes what a peer says.
    fn hear(&mut self, token: u64) {
        let heard = match self.connections.get_mut(&token) {
            None => return,
            Some(Connection::New(..)) => self.greeted(token),
            Some(Connection::Idle(socket)) => match packets::receive::<u8>(socket) {
                Ok(None) => Ok(false),
                Ok(Some(_)) => Err(packets::nonsense("it was not asked")),
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

    /// Lets in who has greeted, or passes it on to whose it is. Whether it has offered anything, which it has not.
    fn greeted(&mut self, token: u64) -> io::Result<bool> {
        let Some(Connection::New(socket, challenge)) = self.connections.get_mut(&token) else {
            return Ok(false);
        };
        let hello = match Said::receive(socket)? {
            None => return Ok(false),
            Some(Said::Challenge) if challenge.is_none() => {
                let nonce = Nonce::draw()?;
                *challenge = Some(nonce);
                return packets::send(socket, &Answer::Challenge { nonce }, None).map(|()| false);
            }
            Some(Said::Challenge) => return Err(packets::nonsense("it asks again")),
            Some(Said::Hello(hello)) => hello,
        };
        let secret = self.common.sessions().secret(hello.session);
        let greeting = match hello.admit(secret.as_ref(), *challenge) {
            Ok(proof) => hello.greeting(proof)?,
            Err(denied) => {
                complain!("shm: a connection is turned away: {denied}");
                return self.refuse(token, &denied.to_string());
            }
        };
        let name = greeting.lane.as_ref().map(|(name, _)| *name);
        let thread = name.and_then(|name| self.common.admit(greeting.session, name));
        if let Some(thread @ 1..) = thread
            && let Some(other) = self.others.get(thread - 1)
            && let Some(Connection::New(socket, _)) = self.connections.remove(&token)
        {
            epoll::delete(&self.epoll, &socket)?;
            other.tell(Command::Greeted(socket, greeting));
            return Ok(false);
        }
        self.enter(token, greeting)
    }

    /// Lets in who has greeted, unless it may not. Whether it has offered anything, which it has not.
    fn enter(&mut self, token: u64, greeting: Greeting) -> io::Result<bool> {
        let domain = self.common.sessions().domain(greeting.session);
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
        let Some(Connection::New(socket, _)) = self.connections.remove(&token) else {
            return Ok(());
        };
        let (process, ready) = greeting.answer(&socket, &self.common.cookie);
        let proved = greeting.proof.map_or(Ok(()), |proof| {
            packets::send(&socket, &Answer::Proved { proof }, None)
        });
        let sent = proved.and_then(|()| packets::send(&socket, &ready, None));
        let connection = match greeting.lane {
            None => Connection::Idle(socket),
            Some((name, mailbox)) => Connection::Lane {
                session: greeting.session,
                lane: LaneId(name.lane),
                served: Served::new(socket, mailbox, domain, process, self.copy_threads.clone()),
            },
        };
        self.connections.insert(token, connection);
        sent
    }

    fn refuse(&mut self, token: u64, text: &str) -> io::Result<bool> {
        if let Some(Connection::New(socket, _)) = self.connections.remove(&token) {
            log::debug!("shm: a connection is refused: {text}");
            let text = text.to_owned();
            let sent = packets::send(&socket, &Answer::Refused { text }, None);
            self.connections.insert(token, Connection::Idle(socket));
            sent?;
        }
        Ok(false)
    }

    /// Whether a lane may begin. If so, its epoch counts as admitted and older ones are over.
    fn begins(&mut self, token: u64, session: SessionId, name: LaneName) -> bool {
        let (lane, epoch) = (LaneId(name.lane), Epoch(name.epoch));
        if self.common.admit(session, name).is_none() {
            return false;
        }
        let record = self.record(session, lane);
        if epoch <= record.fenced.max(record.admitted) {
            return false;
        }
        record.admitted = epoch;
        if let Some(old) = record.token.replace(token) {
            self.end(old);
        }
        true
    }

    /// What is remembered of a lane.
    fn record(&mut self, session: SessionId, lane: LaneId) -> &mut Record {
        let lanes = self.records.entry(session).or_default();
        lanes.entry(lane).or_default()
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
        let record = self.record(session, lane);
        record.fenced = record.fenced.max(epoch);
        if record.admitted <= epoch
            && let Some(token) = record.token.take()
        {
            self.end(token);
        }
        0
    }

    fn retire(&mut self, session: SessionId, answer: RetireAnswer) {
        // First: it is answered also if the rest panics, because whoever recovers ends all lanes.
        self.retiring.push((session, answer));
        let lanes = self.records.remove(&session).unwrap_or_default();
        for token in lanes.values().filter_map(|record| record.token) {
            self.end(token);
        }
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

impl Serve for Service {
    fn serve(&mut self) -> io::Result<()> {
        self.run()
    }

    fn recover(&mut self) {
        self.pulling.clear();
        self.set_busy(false);
        let tokens: Vec<_> = self.connections.keys().copied().collect();
        tokens.into_iter().for_each(|token| self.end(token));
    }

    fn finish(mut self) {
        // Memory that peers were given may outlive the transport.
        self.recover();
        let deadline = Instant::now() + LOANS_MAX;
        self.leaving.retain(|(_, grant)| !grant.end(deadline));
        if !self.leaving.is_empty() {
            log::warn!(
                "shm: peers may still touch memory of this engine: {} uses have not ended",
                self.leaving.len()
            );
        }
        // Regions go on asking whether these are over.
        std::mem::forget(self.leaving);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_core::units::RailId;

    #[test]
    fn lanes_go_to_threads_in_turn_and_stay_there_as_long_as_their_session() {
        let (one, other) = (SessionId([1; 16]), SessionId([2; 16]));
        let first = |lane: LaneId| LaneName {
            lane: lane.0,
            epoch: 1,
        };
        let lane = |number| first(LaneId::new(number, RailId(0)));
        let mut sessions = Sessions::default();
        assert_eq!(sessions.admit(one, lane(0), 2), None, "no session");
        sessions.begin(one, TrustDomain::COMMON, None);
        sessions.begin(other, TrustDomain::COMMON, None);
        // (session, lane, thread)
        let cases = [
            (one, 0, 0),
            (one, 1, 1),
            (other, 0, 0),
            (one, 1, 1),
            (other, 1, 1),
            (one, 0, 0),
        ];
        for (session, number, thread) in cases {
            let found = sessions.admit(session, lane(number), 2);
            assert_eq!(found, Some(thread), "{session:?} {number}");
        }
        for number in 2..LANES_PER_SESSION_MAX as u16 {
            assert!(sessions.admit(one, lane(number), 2).is_some());
        }
        let last = first(LaneId(u32::MAX));
        assert_eq!(sessions.admit(one, last, 2), None, "full");
        assert!(sessions.admit(other, last, 2).is_some());
        sessions.sessions.remove(&one);
        assert_eq!(sessions.admit(one, lane(0), 2), None, "over");
    }

    #[test]
    fn an_answer_of_several_is_given_by_the_last() {
        for count in [1, 3] {
            let given = Arc::new(AtomicUsize::new(0));
            let counted = given.clone();
            let answer = Box::new(move || {
                counted.fetch_add(1, Relaxed);
            });
            for (index, one) in shared_answer(answer, count).enumerate() {
                assert_eq!(given.load(Relaxed), 0, "before {index} of {count}");
                one();
            }
            assert_eq!(given.load(Relaxed), 1);
        }
    }
}
