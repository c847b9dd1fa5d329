//! The sockets under the language: one thread for all control connections of an engine, in both roles.
//!
//! A session has several TCP connections, one per rail, and losing any of them loses no control message,
//! also when it is lost without a word: fences go over all of them at once, and a question that is not
//! answered soon is asked again on the next one. A connection on which nothing is heard for a while is
//! closed and built anew, for as long as the session is wanted.
//!
//! Notifications are confirmed by number and sent again until they are, so that each arrives once and in
//! order, whatever happens to connections, as long as the session lives.
//!
//! The target carries a call out once however often it is asked, and says that it does not know a session
//! only when everything that belonged to it has ended: the initiator takes that for proof.
//!
//! Both sides say which process they are; on one host each watches the other's ([`crate::process`]), so that a
//! session ends with the process at either end, whatever its connections look like.
//!
//! Map: [`Plane`] is the handle that other threads hold; `mailbox` is the way from it to the control
//! thread, whose loop is `reactor`; `wires` are its sockets, `target` and `initiator` the two roles. `door` is a thread of
//! its own, where whoever connects has to say who he is first; `crowd` are those who have not yet.

mod crowd;
mod door;
mod error;
mod initiator;
mod line;
mod mailbox;
mod notification;
mod peer;
mod question;
mod reactor;
mod target;
mod timers;
mod watches;
mod wires;

#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use polyrail_core::path::view::PathView;
use polyrail_core::stage::StageMessage;
use polyrail_core::units::{Epoch, LaneId, PeerId};
use polyrail_transport::clock::Clock;
use polyrail_transport::memory::TrustDomain;
use polyrail_transport::ticket::SessionSecret;
use polyrail_transport::{FenceAnswer, InboundLane, RetireAnswer, SessionId};

pub use self::error::{AskError, ConnectError, Ends, SessionLoss};
use self::mailbox::{Asker, Command, Mailbox};
use self::notification::Notification;
pub use self::notification::{Delivery, DeliveryAnswer};
use self::reactor::Reactor;
use crate::codec::{
    FRAME_BYTES_MAX, NAME_BYTES_MAX, NOTIFICATION_BYTES_MAX, RailFact, SegmentDescriptor,
    TRANSPORT_ADDRESS_BYTES_MAX, TransportOffer,
};
use crate::process::Process;
use crate::security::{ClusterKey, Keyring};

/// The longest body of a call and of its answer: what a frame leaves after the numbers around it.
pub const CALL_BYTES_MAX: usize = FRAME_BYTES_MAX - 64;

/// The longest [`PlaneConfig::token`].
pub const TOKEN_BYTES_MAX: usize = 4096;

/// The most transports in [`PlaneConfig::transports`].
pub const TRANSPORTS_MAX: usize = 64;

/// The most addresses in [`PlaneConfig::rails`].
pub const RAILS_MAX: usize = 1024;

/// The most bytes of names in [`PlaneConfig::rail_facts`] together, so that a frame holds them.
pub const DEVICE_NAMES_BYTES_MAX: usize = 16 * 1024;

/// Sessions that a target may have, unless [`PlaneConfig::sessions_max`] says otherwise.
pub const SESSIONS_MAX: usize = 10_000;

/// Control connections that a target may have, unless [`PlaneConfig::connections_max`] says otherwise: of 1,024 peers with
/// 8 rails each, and as many again.
pub const CONNECTIONS_MAX: usize = 16_384;

/// Connections that may wait for a handshake, unless [`PlaneConfig::handshakes_max`] says otherwise.
pub const HANDSHAKES_MAX: usize = 4_096;

/// How long [`Plane::shutdown`] waits for the thread: the goodbyes, and a handler that is slow.
const JOIN_MAX: Duration = Duration::from_secs(2);

/// How much later than the control thread a blocked caller gives up by itself.
const GRACE: Duration = Duration::from_secs(1);

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
    /// The devices behind those addresses, in the same order, as far as they are known. Each name has at most
    /// [`NAME_BYTES_MAX`] bytes, and all together [`DEVICE_NAMES_BYTES_MAX`].
    pub rail_facts: Vec<RailFact>,
    /// The transports of this engine, as announced to initiators. At most [`TRANSPORTS_MAX`].
    pub transports: Vec<TransportOffer>,
    /// Memory that peers' probes may write to.
    pub scratch: SegmentDescriptor,
    /// The engine's clock.
    pub clock: Clock,
    /// Shown to targets, and not checked: reserved. At most [`TOKEN_BYTES_MAX`].
    pub token: Vec<u8>,
    /// How often a peer is asked for a sign of life. Not 0.
    pub heartbeat: Duration,
    /// The same while nothing is in flight with it, if that is longer.
    pub idle_heartbeat: Duration,
    /// How long a peer may be silent on a connection before that counts as dead. More than `heartbeat`.
    pub silence_max: Duration,
    /// Whether lanes of its sessions are to be encrypted. Only with a cluster key, and where that
    /// [can be](polyrail_transport::Transport::can_encrypt).
    pub encrypts: bool,
    /// How long a connection may take to come through the handshake. Not 0.
    pub handshake_max: Duration,
    /// How long a session without any connection is remembered for an initiator that may come back.
    pub session_linger: Duration,
    /// Sessions that peers may have with us. One address may have half of them. Not 0.
    pub sessions_max: usize,
    /// Control connections that peers may have with us. Not 0.
    pub connections_max: usize,
    /// Connections that may wait for a handshake, but no more than a quarter of this process's descriptors. One address
    /// may have half of them. Not 0.
    pub handshakes_max: usize,
    /// The cluster's key: with it control connections are within TLS, and only who holds it too is spoken with. `None`:
    /// everything goes in clear, and nobody is asked.
    pub key: Option<Arc<ClusterKey>>,
    /// What peers on this host are told, so that they can see this process end; `None`: nothing, and this
    /// side watches none either.
    pub process: Option<Process>,
}

impl PlaneConfig {
    /// A plane that does not listen, with the usual times: heartbeats every 500 ms, or every second while nothing is in
    /// flight, dead after 1.5 s,
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
            rail_facts: Vec::new(),
            transports: Vec::new(),
            scratch,
            clock,
            token: Vec::new(),
            heartbeat: Duration::from_millis(500),
            idle_heartbeat: Duration::from_secs(1),
            encrypts: false,
            silence_max: Duration::from_millis(1500),
            handshake_max: Duration::from_secs(1),
            session_linger: Duration::from_secs(10),
            sessions_max: SESSIONS_MAX,
            connections_max: CONNECTIONS_MAX,
            handshakes_max: HANDSHAKES_MAX,
            key: None,
            process: Process::own(),
        }
    }

    fn check(&self) -> io::Result<()> {
        let names = || self.rail_facts.iter().map(|fact| fact.device.len());
        let addresses = self.transports.iter().map(|offer| offer.address.len());
        let limits = [
            ("bytes of name", self.name.len(), NAME_BYTES_MAX),
            ("bytes of token", self.token.len(), TOKEN_BYTES_MAX),
            ("rail addresses", self.rails.len(), RAILS_MAX),
            ("rail facts", self.rail_facts.len(), self.rails.len()),
            (
                "bytes of a device's name",
                names().max().unwrap_or(0),
                NAME_BYTES_MAX,
            ),
            (
                "bytes of devices' names",
                names().sum(),
                DEVICE_NAMES_BYTES_MAX,
            ),
            ("transports", self.transports.len(), TRANSPORTS_MAX),
            (
                "bytes of a transport's address",
                addresses.max().unwrap_or(0),
                TRANSPORT_ADDRESS_BYTES_MAX,
            ),
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
        let least = [
            ("sessions_max", self.sessions_max),
            ("connections_max", self.connections_max),
            ("handshakes_max", self.handshakes_max),
        ];
        for (name, most) in least {
            if most == 0 {
                return Err(invalid(format!("{name} is 0; it must be more")));
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
    /// Target: the trust domain of whoever comes from this address, and whom a certificate names so, if one was shown.
    fn domain_of(&self, address: IpAddr, member: Option<&str>) -> TrustDomain;

    /// Target: what peers of this trust domain may know of the segment of this name.
    fn describe(&self, name: &str, domain: TrustDomain) -> Option<SegmentDescriptor>;

    /// Target: how this side sees the connection whose rails join these addresses, its own first; `None`: it does
    /// no path isolation.
    fn see_path(&self, rails: &[(IpAddr, IpAddr)]) -> Option<PathView>;

    /// Target: a session that transports may admit lanes of, until [`Self::session_ended`].
    fn session_began(&self, guest: &Guest<'_>);

    /// Target: so many bytes have been moved with the initiator of a session since it met us, as it counts them. Said again and
    /// again.
    fn moved(&self, session: SessionId, bytes: u64);

    /// Target: a lane of a session that exists. Hand it to its transport.
    fn lane(&self, lane: InboundLane);

    /// Target: let no write of this lane up to this epoch reach memory any more, then answer.
    fn fence(&self, session: SessionId, lane: LaneId, epoch: Epoch, answer: FenceAnswer);

    /// Target: carry out a peer's call. Called once per call, and one at a time per session.
    fn call(&self, session: SessionId, method: u16, body: Vec<u8>, answer: CallAnswer);

    /// Target: a notification of the session's program for ours, in order and once. `false`: there is no room.
    /// It then comes again after [`Plane::notification_room`], or in a while.
    fn notify(&self, from: &Notifier<'_>, body: Vec<u8>) -> bool;

    /// Either: a question about a staging slot of ours, from a session, or an answer about one of a peer's. It may come
    /// twice, late or never.
    fn staged(&self, from: Party, message: StageMessage);

    /// Target: the session is over; no lane of it is handed over any more. Retire it in all transports, then
    /// answer. Only from then on is the session unknown to those who ask, which to them is proof.
    fn session_ended(&self, session: SessionId, why: SessionEnd, retired: RetireAnswer);

    /// Initiator: the peer is alive.
    fn heard(&self, peer: PeerId);

    /// Initiator: the peer's last receive on the lane has returned.
    fn fenced(&self, peer: PeerId, lane: LaneId, epoch: Epoch, delivered: u32);

    /// Initiator: how many bytes have gone to the peer and come from it, for it to know.
    fn moved_with(&self, peer: PeerId) -> Option<u64>;

    /// Initiator: whether nothing is in flight with the peer.
    fn is_idle(&self, peer: PeerId) -> bool;

    /// Initiator: the peer is about to end. May be told several times. [`Plane::disconnect`] it when nothing is under way
    /// with it any more.
    fn leaves(&self, peer: PeerId);

    /// Initiator: the peer has other rails now than it has said before. May be told several times.
    fn has_rails(&self, peer: PeerId, rails: Rails);

    /// Initiator: the session is over, because the peer does not know it or has ended. It is forgotten here
    /// too, as by [`Plane::disconnect`]; [`Plane::connect`] asks for a new one.
    fn session_lost(&self, peer: PeerId, why: SessionLoss);
}

/// What an engine says of its rails. The same limits hold as in [`PlaneConfig`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rails {
    /// Their addresses.
    pub addresses: Vec<SocketAddr>,
    /// The devices behind those addresses, in the same order, as far as they are known.
    pub facts: Vec<RailFact>,
    /// The engine's transports.
    pub transports: Vec<TransportOffer>,
}

/// Who the other end of a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Party {
    /// A target of ours.
    Peer(PeerId),
    /// An initiator's session with us.
    Session(SessionId),
}

/// Who has a session with us that has just begun.
#[derive(Clone, Debug)]
pub struct Guest<'a> {
    /// The session.
    pub session: SessionId,
    /// The trust domain of it.
    pub domain: TrustDomain,
    /// What the peer calls itself.
    pub name: &'a str,
    /// Whom its certificate names, if it has shown one.
    pub member: Option<&'a str>,
    /// Where it came from.
    pub address: &'a str,
    /// What its lanes prove themselves with, if there is a cluster key.
    pub secret: Option<SessionSecret>,
}

/// Why a session with us is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionEnd {
    /// The peer said goodbye.
    Goodbye,
    /// The peer's process has ended.
    Exited,
    /// It had no connection for too long.
    Deserted,
    /// Another one needed its room.
    MadeRoom,
    /// It began with a key that was replaced some time ago.
    OldKey,
}

impl std::fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Goodbye => "it said goodbye",
            Self::Exited => "its process has ended",
            Self::Deserted => "it had no connection for too long",
            Self::MadeRoom => "another one needed its room",
            Self::OldKey => "it began with a key that was replaced",
        })
    }
}

/// Whose notification it is.
#[derive(Clone, Copy, Debug)]
pub struct Notifier<'a> {
    /// The session that it came in.
    pub session: SessionId,
    /// What the peer calls itself.
    pub name: &'a str,
    /// Drawn at random when the peer's process started.
    pub incarnation: u64,
    /// Feature bits in force.
    pub features: u64,
}

/// What a peer says of itself when it lets us in.
#[derive(Clone, Debug)]
pub struct Introduction {
    /// Its name: its own word.
    pub name: String,
    /// Whom its certificate names, if it showed one. All its connections show one with that name.
    pub member: Option<String>,
    /// Drawn at random when its process started.
    pub incarnation: u64,
    /// The session.
    pub session: SessionId,
    /// What its lanes prove themselves with, if there is a cluster key.
    pub secret: Option<SessionSecret>,
    /// Addresses of its rails.
    pub rails: Vec<SocketAddr>,
    /// The devices behind those addresses, in the same order, as far as it says. Not to be relied on.
    pub rail_facts: Vec<RailFact>,
    /// The transports that it has.
    pub transports: Vec<TransportOffer>,
    /// Memory that probes may write to.
    pub scratch: SegmentDescriptor,
    /// Feature bits in force: [`crate::codec::NOTIFICATIONS`] and whatever else both ends offer.
    pub features: u64,
    /// How long its host took to answer when it was dialled: the way there and back, and a little.
    pub round_trip: polyrail_core::time::Duration,
}

impl Introduction {
    /// Its transports' names, for errors.
    pub fn transport_names(&self) -> Vec<String> {
        self.transports
            .iter()
            .map(|offer| offer.name.clone())
            .collect()
    }
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
    lanes_denied: Arc<AtomicU64>,
    thread: Mutex<Option<Thread>>,
    keyring: Keyring,
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
        let keyring = Keyring::new(config.key.clone());
        let lanes_denied = Arc::<AtomicU64>::default();
        let reactor = Reactor::new(
            config,
            keyring.clone(),
            handler,
            mailbox.clone(),
            lanes_denied.clone(),
        )?;
        let (alive, done) = sync_channel(0);
        let handle = std::thread::Builder::new()
            .name("polyrail-control".into())
            .spawn(move || reactor.run(alive))?;
        let thread = Mutex::new(Some(Thread { handle, done }));
        let inner = Inner {
            name,
            mailbox,
            lanes_denied,
            thread,
            keyring,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Lanes, and answers to them, that did not prove that they are of their session, of all transports.
    pub fn lanes_denied(&self) -> u64 {
        self.inner.lanes_denied.load(Relaxed)
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
                    connected: false,
                })
            }
        }
    }

    /// From now on keeps one connection per rail (local and remote address), and rebuilds it for ever. A
    /// connection that exists counts as that of the rail with the same remote address.
    pub fn maintain(&self, peer: PeerId, rails: Vec<(Option<IpAddr>, SocketAddr)>) {
        self.inner.mailbox.post(Command::Maintain { peer, rails });
    }

    /// Tells all peers that have a session with us, and those that come later, that these are our rails from now on.
    pub fn announce(&self, rails: Rails) {
        self.inner.mailbox.post(Command::Announce { rails });
    }

    /// Lets peers come in here too.
    pub fn listen(&self, listener: TcpListener) {
        self.inner.mailbox.post(Command::Listen(listener));
    }

    /// Tells all peers that have a session with us that this engine is about to end, and lets no new one in from now on.
    /// Those that have one come and go as before; see [`Handler::leaves`] for what they do.
    pub fn leave(&self) {
        self.inner.mailbox.post(Command::Leave);
    }

    /// Target: has room for so many sessions and control connections from now on. Those that are there stay.
    pub fn limit(&self, sessions_max: usize, connections_max: usize) {
        self.inner.mailbox.post(Command::Limit {
            sessions: sessions_max.max(1),
            connections: connections_max.max(1),
        });
    }

    /// Uses another cluster key for connections that begin from now on. Sessions of peers that began with the one before end
    /// after this time, if one is said, and their peers make new ones if they have the new key; else they stay. `false`: there
    /// is no key, and whether connections are within TLS does not change.
    pub fn replace_key(&self, key: Arc<ClusterKey>, ends_old: Option<Duration>) -> bool {
        let Some(before) = self.inner.keyring.replace(key) else {
            return false;
        };
        if let Some(within) = ends_old {
            let key = before.fingerprint();
            self.inner.mailbox.post(Command::LeaveKey { key, within });
        }
        true
    }

    /// Tells a peer how many bytes have been moved with it: see [`Handler::moved`].
    pub fn say_moved(&self, peer: PeerId, bytes: u64) {
        self.inner.mailbox.post(Command::Moved { peer, bytes });
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
        self.ask(timeout, |asker| Command::Describe { peer, name, asker })
    }

    /// Asks a peer how it sees the connection over these rails, its own address first; `None`: it does no path
    /// isolation. Only of a peer with the feature [`crate::codec::PATHS`]. Blocks up to `timeout`.
    pub fn see_path(
        &self,
        peer: PeerId,
        rails: Vec<(IpAddr, IpAddr)>,
        timeout: Duration,
    ) -> Result<Option<PathView>, AskError> {
        self.ask(timeout, |asker| Command::SeePath { peer, rails, asker })
    }

    /// Asks a peer to fence a lane, over every open connection at once. [`Handler::fenced`] tells the
    /// answer. Repeat it until then: with no connection open, nothing goes out.
    pub fn fence(&self, peer: PeerId, lane: LaneId, epoch: Epoch) {
        self.inner
            .mailbox
            .post(Command::Fence { peer, lane, epoch });
    }

    /// Says something about a staging slot over one of the open connections, by turns. Nothing goes out if there is none,
    /// or if the other end does not stage: questions are repeated by whoever asks.
    pub fn stage(&self, to: Party, message: StageMessage) {
        self.inner.mailbox.post(Command::Stage { to, message });
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
        self.ask(timeout, |asker| Command::Call {
            peer,
            method,
            body,
            asker,
        })
    }

    /// Tells a peer's program something, after what was told it before: once, or never if the session ends.
    /// Does not block; `answer` is called once, when it is known what became of it. At most
    /// [`NOTIFICATION_BYTES_MAX`] bytes, and only to a peer with the feature; otherwise it is `Undelivered`.
    pub fn notify(&self, peer: PeerId, body: Vec<u8>, answer: DeliveryAnswer) {
        self.notify_in_parts(peer, vec![body], answer);
    }

    /// The same in several parts, one behind the other and all in one session; the answer is that to the last one.
    pub fn notify_in_parts(&self, peer: PeerId, parts: Vec<Vec<u8>>, answer: DeliveryAnswer) {
        let fit = parts
            .iter()
            .all(|part| part.len() <= NOTIFICATION_BYTES_MAX);
        let last = parts.len().saturating_sub(1);
        let mut answer = Some(answer);
        let mut answer_to = |index| match answer.take_if(|_| index == last) {
            Some(answer) => answer,
            None => Box::new(|_| ()),
        };
        let parts = parts.into_iter().enumerate();
        let notifications = parts.map(|(index, body)| Notification::new(body, answer_to(index)));
        let notifications: Vec<_> = notifications.collect();
        if fit {
            let command = Command::Notify {
                peer,
                notifications,
            };
            self.inner.mailbox.post(command);
        }
    }

    /// Hands in what has come on all connections before this call, then calls `told` on the control thread: for who has
    /// stood still, and wants to know what was said meanwhile before it counts anybody as silent. `told` may be dropped
    /// instead, when the plane ends.
    pub fn hear(&self, told: impl FnOnce() + Send + 'static) {
        let told = Box::new(told);
        self.inner.mailbox.post(Command::Hear { told });
    }

    /// Target: there is room again for the notifications of a session that there was none for.
    pub fn notification_room(&self, session: SessionId) {
        self.inner
            .mailbox
            .post(Command::NotificationRoom { session });
    }

    fn ask<T>(
        &self,
        timeout: Duration,
        command: impl FnOnce(Asker<T>) -> Command,
    ) -> Result<T, AskError> {
        let (reply, answer) = sync_channel(1);
        self.inner.mailbox.post(command(Asker { timeout, reply }));
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
