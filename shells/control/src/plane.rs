//! The sockets under the language: one thread for all control connections of an engine, in both roles.
//!
//! A session has several TCP connections, one per rail, and losing any of them loses no control message,
//! also when it is lost without a word: fences go over all of them at once, and a question that is not
//! answered soon is asked again on the next one. A connection on which nothing is heard for a while is
//! closed and built anew, for as long as the session is wanted.
//!
//! The target carries a call out once however often it is asked, and says that it does not know a session
//! only when everything that belonged to it has ended: the initiator takes that for proof.
//!
//! Map: [`Plane`] is the handle that other threads hold; `mailbox` is the way from it to the control
//! thread, whose loop is `Reactor`; `wires` are its sockets, `target` and `initiator` the two roles.

mod error;
mod initiator;
mod mailbox;
mod target;
mod timers;
mod wires;

#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use polyrail_core::units::{Epoch, LaneId, PeerId};
use polyrail_transport::clock::Clock;
use polyrail_transport::{FenceAnswer, InboundLane, RetireAnswer, SessionId};

pub use self::error::{AskError, ConnectError, Ends, SessionLoss};
use self::initiator::Initiator;
use self::mailbox::{Command, Mailbox};
use self::target::Target;
use self::timers::Timer;
use self::wires::{Key, Owner, WireEvent, Wires, Woken};
use crate::codec::{FRAME_BYTES_MAX, NAME_BYTES_MAX, SegmentDescriptor};
use crate::connection::{ConnectionConfig, Hello};

/// The longest body of a call and of its answer: what a frame leaves after the numbers around it.
pub const CALL_BYTES_MAX: usize = FRAME_BYTES_MAX - 64;

/// The longest [`PlaneConfig::token`].
pub const TOKEN_BYTES_MAX: usize = 4096;

/// The most addresses in [`PlaneConfig::rails`].
pub const RAILS_MAX: usize = 1024;

/// Reads from one wire per wake-up, so that one peer cannot keep the thread from the others.
const READS_MAX: usize = 4;

/// How long goodbyes may take to go out at shutdown.
const GOODBYE_MAX: polyrail_core::time::Duration = polyrail_core::time::Duration::from_millis(200);

/// How long [`Plane::shutdown`] waits for the thread: the goodbyes, and a handler that is slow.
const JOIN_MAX: Duration = Duration::from_secs(2);

/// How much later than the control thread a blocked caller gives up by itself.
const GRACE: Duration = Duration::from_secs(1);

/// Stands for an address that is not known.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// What a [`Plane`] needs to know.
#[derive(Debug)]
pub struct PlaneConfig {
    /// This engine's name, at most [`NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// Drawn at random when the process started.
    pub incarnation: u64,
    /// Where to listen; empty: initiator only.
    pub listeners: Vec<TcpListener>,
    /// The addresses of this engine's rails, as announced to initiators. At most [`RAILS_MAX`].
    pub rails: Vec<SocketAddr>,
    /// Memory that peers' probes may write to.
    pub scratch: SegmentDescriptor,
    /// The engine's clock.
    pub clock: Clock,
    /// Shown to targets as proof of the right to come in. Not checked yet. At most [`TOKEN_BYTES_MAX`].
    pub token: Vec<u8>,
    /// How often a sign of life is sent on every connection. Not 0.
    pub heartbeat: Duration,
    /// How long a peer may be silent on a connection before that counts as dead. More than `heartbeat`.
    pub silence_max: Duration,
    /// How long a connection may take to come through the handshake. Not 0.
    pub handshake_max: Duration,
    /// How long a session without any connection is remembered for an initiator that may come back.
    pub session_linger: Duration,
}

impl PlaneConfig {
    /// A plane that does not listen, with the usual times: heartbeats every 500 ms, dead after 1.5 s,
    /// a handshake within 1 s, sessions remembered for 10 s.
    pub fn new(
        name: impl Into<String>,
        incarnation: u64,
        scratch: SegmentDescriptor,
        clock: Clock,
    ) -> Self {
        Self {
            name: name.into(),
            incarnation,
            listeners: Vec::new(),
            rails: Vec::new(),
            scratch,
            clock,
            token: Vec::new(),
            heartbeat: Duration::from_millis(500),
            silence_max: Duration::from_millis(1500),
            handshake_max: Duration::from_secs(1),
            session_linger: Duration::from_secs(10),
        }
    }

    fn check(&self) -> io::Result<()> {
        let limits = [
            ("bytes of name", self.name.len(), NAME_BYTES_MAX),
            ("bytes of token", self.token.len(), TOKEN_BYTES_MAX),
            ("rail addresses", self.rails.len(), RAILS_MAX),
            (
                "bytes of scratch name",
                self.scratch.name.len(),
                NAME_BYTES_MAX,
            ),
        ];
        for (what, got, limit) in limits {
            if got > limit {
                return Err(invalid(format!("{got} {what}; {limit} is the limit")));
            }
        }
        let times = [
            ("heartbeat", self.heartbeat),
            ("handshake_max", self.handshake_max),
        ];
        for (name, time) in times {
            if time.is_zero() {
                return Err(invalid(format!("{name} is 0; it must be more")));
            }
        }
        if self.silence_max <= self.heartbeat {
            return Err(invalid(format!(
                "silence_max {:?} must be more than heartbeat {:?}",
                self.silence_max, self.heartbeat
            )));
        }
        Ok(())
    }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("control plane: {text}"),
    )
}

/// Called when the program has carried out a peer's call.
pub type CallAnswer = Box<dyn FnOnce(Result<Vec<u8>, String>) + Send>;

/// What the plane asks of the engine, and what it tells it.
///
/// Called on the control thread: no call may block, and none may wait for [`Plane::connect`],
/// [`Plane::describe`] or [`Plane::call`]. Answers may be given at once or later, from any thread; an answer
/// that is dropped counts as "never".
pub trait Handler: Send + Sync {
    /// Target: what peers may know of the segment of this name.
    fn describe(&self, name: &str) -> Option<SegmentDescriptor>;

    /// Target: a lane of a session that exists. Hand it to its transport.
    fn lane(&self, lane: InboundLane);

    /// Target: let no write of this lane up to this epoch reach memory any more, then answer.
    fn fence(&self, session: SessionId, lane: LaneId, epoch: Epoch, answer: FenceAnswer);

    /// Target: carry out a peer's call. Called once per call, and one at a time per session.
    fn call(&self, session: SessionId, method: u16, body: Vec<u8>, answer: CallAnswer);

    /// Target: the session is over; no lane of it is handed over any more. Retire it in all transports, then
    /// answer. Only from then on is the session unknown to those who ask, which to them is proof.
    fn session_ended(&self, session: SessionId, retired: RetireAnswer);

    /// Initiator: the peer is alive.
    fn heard(&self, peer: PeerId);

    /// Initiator: the peer's last receive on the lane has returned.
    fn fenced(&self, peer: PeerId, lane: LaneId, epoch: Epoch, delivered: u32);

    /// Initiator: the peer does not know our session. It is forgotten here too, as by
    /// [`Plane::disconnect`]; [`Plane::connect`] asks for a new one.
    fn session_lost(&self, peer: PeerId, why: SessionLoss);
}

/// What a peer says of itself when it lets us in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Introduction {
    /// Its name.
    pub name: String,
    /// Drawn at random when its process started.
    pub incarnation: u64,
    /// The session.
    pub session: SessionId,
    /// Addresses of its rails.
    pub rails: Vec<SocketAddr>,
    /// Memory that probes may write to.
    pub scratch: SegmentDescriptor,
}

/// The control plane of an engine: a handle that can be cloned and shared. The last one that is dropped
/// shuts the plane down.
#[derive(Clone, Debug)]
pub struct Plane {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    mailbox: Arc<Mailbox>,
    thread: Mutex<Option<Thread>>,
}

#[derive(Debug)]
struct Thread {
    handle: JoinHandle<()>,
    /// Disconnects when the thread is about to end.
    done: Receiver<()>,
}

impl Plane {
    /// Starts the control thread.
    pub fn start(config: PlaneConfig, handler: Arc<dyn Handler>) -> io::Result<Self> {
        config.check()?;
        let mailbox = Arc::new(Mailbox::new()?);
        let name = config.name.clone();
        let reactor = Reactor::new(config, handler, mailbox.clone())?;
        let (alive, done) = sync_channel(0);
        let handle = std::thread::Builder::new()
            .name("polyrail-control".into())
            .spawn(move || reactor.run(alive))?;
        let thread = Mutex::new(Some(Thread { handle, done }));
        let inner = Inner {
            name,
            mailbox,
            thread,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Opens the first connection of a session with a peer, from `local` if given, and asks who the peer
    /// is. Blocks up to `timeout`. The connection is kept up until [`Self::maintain`] says otherwise.
    pub fn connect(
        &self,
        peer: PeerId,
        local: Option<IpAddr>,
        remote: SocketAddr,
        timeout: Duration,
    ) -> Result<Introduction, ConnectError> {
        let ends = || {
            Box::new(Ends {
                ours: self.inner.name.clone(),
                local,
                theirs: None,
                remote,
            })
        };
        let (reply, answer) = sync_channel(1);
        self.inner.mailbox.post(Command::Connect {
            peer,
            local,
            remote,
            timeout,
            reply,
        });
        match answer.recv_timeout(timeout.saturating_add(GRACE)) {
            Ok(result) => result,
            Err(RecvTimeoutError::Disconnected) => Err(ConnectError::ShutDown { ends: ends() }),
            Err(RecvTimeoutError::Timeout) => {
                // Somebody blocks the control thread: what it finds there later must not stay.
                self.disconnect(peer);
                Err(ConnectError::TimedOut {
                    ends: ends(),
                    after: timeout,
                })
            }
        }
    }

    /// From now on keeps one connection per rail (local and remote address), and rebuilds it for ever. A
    /// connection that exists counts as that of the rail with the same remote address.
    pub fn maintain(&self, peer: PeerId, rails: Vec<(Option<IpAddr>, SocketAddr)>) {
        self.inner.mailbox.post(Command::Maintain { peer, rails });
    }

    /// Says goodbye to a peer, which ends the session there, and forgets it.
    pub fn disconnect(&self, peer: PeerId) {
        self.inner.mailbox.post(Command::Disconnect { peer });
    }

    /// Asks a peer what its segment of this name is; `None`: it has none that peers may see. Blocks up to
    /// `timeout`.
    pub fn describe(
        &self,
        peer: PeerId,
        name: &str,
        timeout: Duration,
    ) -> Result<Option<SegmentDescriptor>, AskError> {
        let bytes = name.len();
        if bytes > NAME_BYTES_MAX {
            return Err(AskError::NameTooLong { bytes });
        }
        let name = name.to_owned();
        self.ask(timeout, |reply| Command::Describe {
            peer,
            name,
            timeout,
            reply,
        })
    }

    /// Asks a peer to fence a lane, over every open connection at once. [`Handler::fenced`] tells the
    /// answer. Repeat it until then: with no connection open, nothing goes out.
    pub fn fence(&self, peer: PeerId, lane: LaneId, epoch: Epoch) {
        self.inner
            .mailbox
            .post(Command::Fence { peer, lane, epoch });
    }

    /// Asks a peer's program to do something, and waits for its answer up to `timeout`. Calls to one peer
    /// are carried out one after the other; waiting for one's turn counts.
    pub fn call(
        &self,
        peer: PeerId,
        method: u16,
        body: Vec<u8>,
        timeout: Duration,
    ) -> Result<Vec<u8>, AskError> {
        let bytes = body.len();
        if bytes > CALL_BYTES_MAX {
            return Err(AskError::BodyTooLong { bytes });
        }
        self.ask(timeout, |reply| Command::Call {
            peer,
            method,
            body,
            timeout,
            reply,
        })
    }

    fn ask<T>(
        &self,
        timeout: Duration,
        command: impl FnOnce(SyncSender<Result<T, AskError>>) -> Command,
    ) -> Result<T, AskError> {
        let (reply, answer) = sync_channel(1);
        self.inner.mailbox.post(command(reply));
        match answer.recv_timeout(timeout.saturating_add(GRACE)) {
            Ok(result) => result,
            Err(RecvTimeoutError::Disconnected) => Err(AskError::ShutDown {
                ours: self.inner.name.clone(),
            }),
            Err(RecvTimeoutError::Timeout) => Err(AskError::Stuck {
                ours: self.inner.name.clone(),
                after: timeout,
            }),
        }
    }

    /// Says goodbye to all peers and ends the control thread. Waits for it, but not for ever. Whoever
    /// still waits for an answer is told so. Again: does nothing.
    pub fn shutdown(&self) {
        self.inner.shutdown();
    }
}

impl Inner {
    fn shutdown(&self) {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .take();
        let Some(Thread { handle, done }) = thread else {
            return;
        };
        self.mailbox.post(Command::Shutdown);
        if handle.thread().id() == std::thread::current().id() {
            // A handler dropped the last handle: the thread ends by itself once we return.
            return;
        }
        match done.recv_timeout(JOIN_MAX) {
            Err(RecvTimeoutError::Timeout) => {
                log::warn!(
                    "control: the thread of \"{}\" is stuck and left behind",
                    self.name
                );
            }
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                if handle.join().is_err() {
                    log::warn!("control: the thread of \"{}\" had panicked", self.name);
                }
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// What both roles need to know.
struct Context {
    name: String,
    incarnation: u64,
    rails: Vec<SocketAddr>,
    scratch: SegmentDescriptor,
    token: Vec<u8>,
    handler: Arc<dyn Handler>,
    mailbox: Arc<Mailbox>,
}

impl Context {
    fn hello(&self, session: Option<SessionId>) -> Hello {
        Hello {
            name: self.name.clone(),
            incarnation: self.incarnation,
            session,
            token: self.token.clone(),
        }
    }

    fn ends(&self, local: Option<IpAddr>, theirs: Option<String>, remote: SocketAddr) -> Box<Ends> {
        Box::new(Ends {
            ours: self.name.clone(),
            local,
            theirs,
            remote,
        })
    }

    fn no_peer(&self, peer: PeerId) -> AskError {
        AskError::NoPeer {
            ours: self.name.clone(),
            peer,
        }
    }
}

/// The control thread.
struct Reactor {
    ctx: Context,
    wires: Wires,
    target: Target,
    initiator: Initiator,
    /// Goodbyes are going out; the loop ends when they have.
    stopping: bool,
    /// Their time is over.
    stopped: bool,
}

impl Reactor {
    fn new(
        config: PlaneConfig,
        handler: Arc<dyn Handler>,
        mailbox: Arc<Mailbox>,
    ) -> io::Result<Self> {
        let connection = ConnectionConfig {
            heartbeat: config.heartbeat.into(),
            silence_max: config.silence_max.into(),
            handshake_max: config.handshake_max.into(),
        };
        let wires = Wires::new(config.clock, connection, config.listeners, mailbox.fd())?;
        let ctx = Context {
            name: config.name,
            incarnation: config.incarnation,
            rails: config.rails,
            scratch: config.scratch,
            token: config.token,
            handler,
            mailbox,
        };
        Ok(Self {
            ctx,
            wires,
            target: Target::new(config.session_linger.into()),
            initiator: Initiator::default(),
            stopping: false,
            stopped: false,
        })
    }

    /// The loop. `_alive` is dropped when it ends.
    fn run(mut self, _alive: SyncSender<()>) {
        while !self.is_done() {
            match self.wires.wait() {
                Ok(woken) => self.turn(woken),
                Err(error) => {
                    log::error!("control: waiting for sockets failed, the plane ends: {error}");
                    return;
                }
            }
        }
    }

    fn is_done(&self) -> bool {
        self.stopping && (self.stopped || self.wires.is_empty())
    }

    /// One round. Bytes go before timers: see [`crate::connection`].
    fn turn(&mut self, woken: Vec<Woken>) {
        for woken in woken {
            match woken {
                Woken::Mail => self.handle_mail(),
                Woken::Listener(index) => self.wires.accept(index),
                Woken::Wire(key) => self.handle_ready(key),
            }
        }
        self.settle();
        let now = self.wires.now();
        while let Some(timer) = self.wires.timers.pop_due(now) {
            self.handle_timer(timer);
        }
        self.settle();
    }

    fn handle_ready(&mut self, key: Key) {
        for _ in 0..READS_MAX {
            let more = self.wires.handle_ready(key);
            self.handle_events(key);
            if !more {
                return;
            }
        }
    }

    fn handle_events(&mut self, key: Key) {
        while let Some((owner, event)) = self.wires.poll_event(key) {
            let (ctx, wires) = (&self.ctx, &mut self.wires);
            match (owner, event) {
                (Owner::Outbound(peer), event) => {
                    self.initiator.handle_event(ctx, wires, peer, key, event);
                }
                (Owner::Inbound, WireEvent::Said(event)) => {
                    self.target.handle_event(ctx, wires, key, event);
                }
                // Nobody dialled it.
                (Owner::Inbound, WireEvent::DialFailed(_)) => {}
            }
        }
    }

    /// Writes what is to be written, until nothing is left that something was done to.
    fn settle(&mut self) {
        while let Some(key) = self.wires.pop_dirty() {
            self.wires.flush(key);
            self.handle_events(key);
            self.wires.settle(key);
        }
    }

    fn handle_timer(&mut self, timer: Timer) {
        let (ctx, wires) = (&self.ctx, &mut self.wires);
        match timer {
            Timer::Wire(key) => wires.handle_timeout(key),
            Timer::Peer(peer) => self.initiator.handle_timeout(ctx, wires, peer),
            Timer::Session(id) => self.target.handle_linger_over(ctx, wires, SessionId(id)),
            Timer::Listeners => wires.resume_listeners(),
            Timer::Shutdown => self.stopped = true,
        }
    }

    fn handle_mail(&mut self) {
        for command in self.ctx.mailbox.take() {
            self.handle_command(command);
        }
    }

    fn handle_command(&mut self, command: Command) {
        let (ctx, wires) = (&self.ctx, &mut self.wires);
        match command {
            Command::Connect {
                peer,
                local,
                remote,
                timeout,
                reply,
            } => {
                let route = (local, remote);
                self.initiator
                    .connect(ctx, wires, peer, route, timeout, reply);
            }
            Command::Maintain { peer, rails } => self.initiator.maintain(ctx, wires, peer, &rails),
            Command::Disconnect { peer } => self.initiator.disconnect(ctx, wires, peer),
            Command::Describe {
                peer,
                name,
                timeout,
                reply,
            } => self
                .initiator
                .describe(ctx, wires, peer, name, timeout, reply),
            Command::Call {
                peer,
                method,
                body,
                timeout,
                reply,
            } => self
                .initiator
                .call(ctx, wires, peer, method, body, timeout, reply),
            Command::Fence { peer, lane, epoch } => self.initiator.fence(wires, peer, lane, epoch),
            Command::FenceAnswered {
                session,
                lane,
                epoch,
                delivered,
            } => self
                .target
                .handle_fence_answer(wires, session, lane, epoch, delivered),
            Command::CallAnswered {
                session,
                number,
                result,
            } => self
                .target
                .handle_call_answer(wires, session, number, result),
            Command::Retired { session, proven } => self.target.handle_retired(session, proven),
            Command::Shutdown => self.begin_shutdown(),
        }
    }

    /// Drops all questions, which tells their askers, and says goodbye.
    fn begin_shutdown(&mut self) {
        self.stopping = true;
        self.initiator = Initiator::default();
        self.ctx.mailbox.close();
        self.wires.close_listeners();
        self.wires.goodbye_to_all();
        let at = self.wires.now() + GOODBYE_MAX;
        self.wires.timers.set(Timer::Shutdown, Some(at));
    }
}

impl Drop for Reactor {
    /// However the thread ends: nobody waits for it any more.
    fn drop(&mut self) {
        self.ctx.mailbox.close();
    }
}
