//! The sockets of the control thread: each with its [`Channel`], in one epoll set.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};

use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::PeerId;
use polyrail_transport::SessionId;
use polyrail_transport::clock::Clock;
use polyrail_transport::complain;
use polyrail_transport::memory::TrustDomain;
use polyrail_transport::place::Place;
use polyrail_transport::ticket::{Proof, SessionSecret};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::crowd::Crowd;
use super::door::Arrival;
use super::line::Line;
use super::reactor::Context;
use super::timers::{Timer, Timers};
use super::watches::{FIRST_WATCH, Watched, Watches};
use crate::codec::{CodecError, Frame, Refusal};
use crate::connection::{Connection, ConnectionConfig, Event, Hello, Welcome};
use crate::process::Process;
use crate::security::channel::Channel;
use crate::security::{Fingerprint, Keyring};

/// Names a socket in this process; never used twice. An older socket has a smaller key.
pub(super) type Key = u64;

/// Keys below this are not sockets of connections.
const FIRST_KEY: Key = 1 << 32;

/// The key of the wake-up descriptor; listeners have those after it.
const WAKE_KEY: Key = 0;

/// What a connection may hold without being looked at.
const HELD_UNSEEN: usize = 4096;

/// Connections accepted per listener and wake-up.
const ACCEPTS_MAX: usize = 64;

/// Readiness events taken per wake-up.
const EVENTS_MAX: usize = 256;

/// Bytes of one read.
const READ_BYTES: usize = 16 * 1024;

/// How long nothing is accepted after the system had no descriptor or memory for it.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who made a connection, and for whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// A peer that connected to us.
    Inbound,
    /// We, to reach this peer.
    Outbound(PeerId),
}

/// What happened on a wire.
pub(super) enum WireEvent {
    /// The conversation went on.
    Said(Event),
    /// The address could not be reached.
    DialFailed(io::Error),
}

/// What woke the thread.
pub(super) enum Woken {
    /// Commands wait.
    Mail,
    /// Somebody connects to the listener of this index.
    Listener(usize),
    /// Something can be read, written or found broken.
    Wire(Key),
    /// A process may have ended; see [`Wires::exited`].
    Exited(Key),
}

/// How connections talk.
#[derive(Clone)]
pub(super) struct Talk {
    pub(super) times: ConnectionConfig,
    /// The cluster's key, if they are to be within TLS.
    pub(super) keyring: Keyring,
}

struct Wire {
    stream: TcpStream,
    owner: Owner,
    remote: SocketAddr,
    stage: Stage,
    interest: EventFlags,
    /// Whether our half has been shut down.
    half_closed: bool,
    /// A dialling that failed and was not told yet.
    failed: Option<io::Error>,
    /// How long the kernel took to connect it.
    round_trip: Duration,
    held: Held,
}

/// What an inbound connection makes us hold.
#[derive(Clone, Copy, Default)]
struct Held {
    bytes: usize,
    /// Since when it has held much without getting on; `None`: it does not.
    since: Option<Instant>,
    /// A frame was whole, or something was written, since that was last looked at.
    heard: bool,
    wrote: bool,
}

enum Stage {
    /// The kernel is connecting.
    Dialling {
        since: Instant,
        by: Instant,
        hello: Hello,
    },
    /// Connected.
    Talking(Channel),
    /// Never got that far.
    Failed,
}

/// All sockets.
///
/// Whatever is done to a wire makes it dirty; [`Self::pop_dirty`], [`Self::flush`] and [`Self::settle`]
/// bring socket, epoll interest and timer in line again before the thread waits.
pub(super) struct Wires {
    epoll: OwnedFd,
    clock: Clock,
    talk: Talk,
    listeners: Vec<TcpListener>,
    wires: HashMap<Key, Wire>,
    watches: Watches,
    /// Inbound wires that have not been let in, or were refused.
    crowd: Crowd,
    /// Those of them whose handshake has to wait for its turn.
    line: Line,
    /// Inbound wires that are neither.
    members: usize,
    /// Bytes that inbound wires hold.
    held: usize,
    held_max: usize,
    /// Those that hold much, by how long.
    holders: BTreeSet<(Instant, Key)>,
    dirty: BTreeSet<Key>,
    pub(super) timers: Timers,
    next_key: Key,
    buffer: Box<[u8]>,
}

impl Wires {
    pub(super) fn new(
        clock: Clock,
        talk: Talk,
        listeners: Vec<TcpListener>,
        wake: BorrowedFd<'_>,
        (crowd, held_max): (usize, usize),
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, wake, EventData::new_u64(WAKE_KEY), EventFlags::IN)?;
        for (key, listener) in (WAKE_KEY + 1..).zip(&listeners) {
            listener.set_nonblocking(true)?;
            epoll::add(&epoll, listener, EventData::new_u64(key), EventFlags::IN)?;
        }
        Ok(Self {
            epoll,
            clock,
            talk,
            listeners,
            wires: HashMap::new(),
            watches: Watches::new(),
            crowd: Crowd::new(crowd),
            line: Line::default(),
            members: 0,
            held: 0,
            held_max,
            holders: BTreeSet::new(),
            dirty: BTreeSet::new(),
            timers: Timers::default(),
            next_key: FIRST_KEY,
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
        })
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Sleeps until something happens or the first timer is due. A process that was stopped meanwhile is told what has
    /// happened, and not merely that it is late.
    /// `at_once`: it does not sleep.
    pub(super) fn wait(&self, at_once: bool) -> io::Result<Vec<Woken>> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            let timeout = match at_once {
                true => Some(Timespec::default()),
                false => self.timers.next().map(|at| self.left_until(at)),
            };
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(events
            .iter()
            .map(|event| match event.data.u64() {
                WAKE_KEY => Woken::Mail,
                watch @ FIRST_WATCH.. => Woken::Exited(watch),
                key @ FIRST_KEY.. => Woken::Wire(key),
                listener => Woken::Listener((listener - 1) as usize),
            })
            .collect())
    }

    fn left_until(&self, at: Instant) -> Timespec {
        let left = self.clock.until(at);
        Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        }
    }

    /// The sockets that there are.
    pub(super) fn keys(&self) -> Vec<Key> {
        self.wires.keys().copied().collect()
    }

    /// Watches the process that the peer at the other end of a wire says it is. `None`: there is no telling
    /// from here, and its end shows in its silence only.
    pub(super) fn watch(
        &mut self,
        key: Key,
        process: Process,
        own: Option<Process>,
        whose: Watched,
    ) -> Option<Key> {
        let remote = self.wires.get(&key)?.remote;
        let address = remote.ip().to_canonical();
        match self.watches.add(&self.epoll, process, own, address, whose) {
            Ok(watch) => Some(watch),
            Err(why) => {
                let pid = process.pid;
                log::debug!("control: process {pid} of {remote} is not watched: {why}");
                None
            }
        }
    }

    /// Whose process has ended, if that of a watch has.
    pub(super) fn exited(&mut self, watch: Key) -> Vec<Watched> {
        let now = self.now();
        self.watches
            .ended(&self.epoll, &mut self.timers, now, watch)
    }

    /// Ends a watch for one of those whose process it is.
    pub(super) fn unwatch(&mut self, watch: Key, whose: Watched) {
        self.watches.take(&mut self.timers, watch, whose);
    }

    /// Ends all watches.
    pub(super) fn unwatch_all(&mut self) {
        self.watches.clear(&mut self.timers);
    }

    /// Takes connections that wait at a listener.
    pub(super) fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPTS_MAX {
            let Some(accepted) = self.listeners.get(listener).map(TcpListener::accept) else {
                return;
            };
            match accepted {
                Ok((stream, remote)) => self.adopt(stream, remote),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    // Gone before we came.
                    io::ErrorKind::Interrupted
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::ConnectionReset => {}
                    _ => return self.pause_listeners(&error),
                },
            }
        }
    }

    /// Level-triggered, a listener that cannot accept would wake us for ever.
    fn pause_listeners(&mut self, error: &io::Error) {
        complain!("control: cannot accept connections, next try in {ACCEPT_PAUSE:?}: {error}");
        self.listen(EventFlags::empty());
        let at = self.now() + ACCEPT_PAUSE;
        self.timers.set(Timer::Listeners, Some(at));
    }

    /// Accepts there too.
    pub(super) fn add_listener(&mut self, listener: TcpListener) {
        let data = EventData::new_u64(WAKE_KEY + 1 + self.listeners.len() as Key);
        let added = listener
            .set_nonblocking(true)
            .and_then(|()| Ok(epoll::add(&self.epoll, &listener, data, EventFlags::IN)?));
        match added {
            Ok(()) => self.listeners.push(listener),
            Err(error) => log::error!("control: cannot accept at one address more: {error}"),
        }
    }

    /// Accepts again after a pause.
    pub(super) fn resume_listeners(&mut self) {
        self.listen(EventFlags::IN);
    }

    fn listen(&mut self, interest: EventFlags) {
        for (key, listener) in (WAKE_KEY + 1..).zip(&self.listeners) {
            if let Err(error) =
                epoll::modify(&self.epoll, listener, EventData::new_u64(key), interest)
            {
                log::warn!("control: cannot change interest in a listener: {error}");
            }
        }
    }

    fn adopt(&mut self, stream: TcpStream, remote: SocketAddr) {
        let place = Place::of(remote.ip());
        if let Some(oldest) = self.crowd.makes_room(place) {
            complain!(
                "control: too many connections wait for a handshake ({} of an address, twice as many in all are the limit: \
                 control/handshakes_max), the oldest makes room for {remote}",
                self.crowd.share()
            );
            self.remove(oldest);
        }
        let channel = Channel::inbound(self.now(), self.talk.times, &self.talk.keyring);
        let added = stream
            .set_nonblocking(true)
            .and_then(|()| stream.set_nodelay(true))
            .and_then(|()| {
                self.add(
                    stream,
                    remote,
                    Owner::Inbound,
                    Stage::Talking(channel),
                    EventFlags::IN,
                )
            });
        match added {
            Ok(key) => {
                self.crowd.insert(key, place);
            }
            Err(error) => log::debug!("control: connection from {remote}: {error}"),
        }
    }

    /// Takes over somebody who has come in by the door.
    pub(super) fn take_over(&mut self, arrival: Arrival) -> io::Result<(Key, Event)> {
        let Arrival {
            stream,
            remote,
            channel,
            said,
        } = arrival;
        let stage = Stage::Talking(channel);
        let key = self.add(stream, remote, Owner::Inbound, stage, EventFlags::IN)?;
        self.members += 1;
        Ok((key, said))
    }

    /// Inbound connections that were let in.
    pub(super) fn members(&self) -> usize {
        self.members
    }

    /// Starts to connect. What comes of it is told by [`Self::poll_event`].
    pub(super) fn dial(
        &mut self,
        owner: PeerId,
        local: Option<IpAddr>,
        remote: SocketAddr,
        by: Instant,
        hello: Hello,
    ) -> io::Result<Key> {
        let socket = Socket::new(
            Domain::for_address(remote),
            Type::STREAM.nonblocking().cloexec(),
            Some(Protocol::TCP),
        )?;
        socket.set_tcp_nodelay(true)?;
        if let Some(local) = local {
            socket.bind(&SocketAddr::new(local, 0).into())?;
        }
        match socket.connect(&remote.into()) {
            Ok(()) => {}
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        self.add(
            socket.into(),
            remote,
            Owner::Outbound(owner),
            Stage::Dialling {
                since: self.clock.now(),
                by,
                hello,
            },
            EventFlags::OUT,
        )
    }

    fn add(
        &mut self,
        stream: TcpStream,
        remote: SocketAddr,
        owner: Owner,
        stage: Stage,
        interest: EventFlags,
    ) -> io::Result<Key> {
        let key = self.next_key;
        epoll::add(&self.epoll, &stream, EventData::new_u64(key), interest)?;
        self.next_key += 1;
        let wire = Wire {
            stream,
            owner,
            remote,
            stage,
            interest,
            half_closed: false,
            failed: None,
            round_trip: Duration::ZERO,
            held: Held::default(),
        };
        self.wires.insert(key, wire);
        self.dirty.insert(key);
        Ok(key)
    }

    /// Goes on with a wire that the kernel says is ready. `true`: there may be more to read.
    pub(super) fn handle_ready(&mut self, key: Key) -> bool {
        let now = self.now();
        let Some(wire) = self.wires.get_mut(&key) else {
            return false;
        };
        self.dirty.insert(key);
        match &mut wire.stage {
            Stage::Dialling { .. } => {
                wire.finish_dialling(now, &self.talk);
                false
            }
            Stage::Talking(channel) => {
                let read = (&wire.stream).read(&mut self.buffer);
                match read {
                    Ok(0) => channel.handle_closed(None),
                    Ok(bytes) => {
                        channel.handle_bytes(now, self.buffer.get(..bytes).unwrap_or_default());
                        if channel.waits() {
                            self.line.join(key, Place::of(wire.remote.ip()));
                        }
                        return bytes == self.buffer.len();
                    }
                    Err(error) if is_transient(&error) => {}
                    Err(error) => channel.handle_closed(Some(error.kind())),
                }
                false
            }
            Stage::Failed => false,
        }
    }

    /// Answers who has waited for his handshake, so many of them; whom.
    pub(super) fn begin_handshakes(&mut self, most: usize) -> Vec<Key> {
        let now = self.now();
        let next = std::iter::from_fn(|| self.line.next());
        let keys: Vec<_> = next.take(most).collect();
        for key in &keys {
            if let Some(wire) = self.wires.get_mut(key)
                && let Stage::Talking(channel) = &mut wire.stage
            {
                channel.begin(now);
                self.dirty.insert(*key);
            }
        }
        keys
    }

    /// Who is at the other end of a wire has proved himself.
    pub(super) fn note_proved(&mut self, key: Key) {
        let place = self.place(key);
        self.line.note_proved(place);
    }

    /// Whether somebody waits for his handshake.
    pub(super) fn has_a_line(&self) -> bool {
        !self.line.is_empty()
    }

    /// A wire's timer is due.
    pub(super) fn handle_timeout(&mut self, key: Key) {
        let now = self.now();
        let Some(wire) = self.wires.get_mut(&key) else {
            return;
        };
        self.dirty.insert(key);
        match &mut wire.stage {
            Stage::Dialling { by, .. } if *by <= now => {
                wire.fail(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
            }
            Stage::Talking(channel) => channel.connection_mut().handle_timeout(now),
            Stage::Dialling { .. } | Stage::Failed => {}
        }
    }

    /// What happened on a wire.
    pub(super) fn poll_event(&mut self, key: Key) -> Option<(Owner, WireEvent)> {
        let now = self.clock.now();
        let wire = self.wires.get_mut(&key)?;
        if let Some(error) = wire.failed.take() {
            return Some((wire.owner, WireEvent::DialFailed(error)));
        }
        let Stage::Talking(channel) = &mut wire.stage else {
            return None;
        };
        let event = channel.connection_mut().poll_event(now)?;
        wire.held.heard |= matches!(event, Event::Frame(_));
        self.dirty.insert(key);
        Some((wire.owner, WireEvent::Said(event)))
    }

    /// A wire that something was done to.
    pub(super) fn pop_dirty(&mut self) -> Option<Key> {
        self.dirty.pop_first()
    }

    /// Writes what can be written.
    pub(super) fn flush(&mut self, key: Key) {
        let Some(Wire {
            stream,
            stage: Stage::Talking(channel),
            half_closed,
            held,
            ..
        }) = self.wires.get_mut(&key)
        else {
            return;
        };
        channel.seal();
        while !channel.transmit().is_empty() {
            match (&*stream).write(channel.transmit()) {
                Ok(bytes) => {
                    held.wrote = true;
                    channel.handle_transmitted(bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => return channel.handle_closed(Some(error.kind())),
            }
        }
        if channel.connection().is_draining() && !*half_closed {
            *half_closed = true;
            if let Err(error) = stream.shutdown(Shutdown::Write) {
                channel.handle_closed(Some(error.kind()));
            }
        }
    }

    /// Brings epoll interest and timer of a wire in line with its state, or closes it if it is over.
    pub(super) fn settle(&mut self, key: Key) {
        let Some(wire) = self.wires.get_mut(&key) else {
            return;
        };
        if wire.is_over() {
            return self.remove(key);
        }
        let interest = wire.wanted_interest();
        if interest != wire.interest {
            match epoll::modify(&self.epoll, &wire.stream, EventData::new_u64(key), interest) {
                Ok(()) => wire.interest = interest,
                Err(error) => log::warn!("control: interest in {}: {error}", wire.remote),
            }
        }
        self.timers.set(Timer::Wire(key), wire.poll_timeout());
        self.count(key);
    }

    /// Looks at what an inbound wire holds. If all of them hold too much, whoever has held something for longest without
    /// getting on with it is cut: a fair peer's frames are whole, and its answers read, in no time.
    fn count(&mut self, key: Key) {
        let now = self.now();
        let Some(wire) = self.wires.get_mut(&key) else {
            return;
        };
        let Stage::Talking(channel) = &wire.stage else {
            return;
        };
        if wire.owner != Owner::Inbound {
            return;
        }
        let (inward, outward) = (channel.pending_bytes(), channel.outgoing_bytes());
        let before = wire.held;
        let holds_much = inward.max(outward) > HELD_UNSEEN;
        let gets_on =
            (inward <= HELD_UNSEEN || before.heard) && (outward <= HELD_UNSEEN || before.wrote);
        wire.held = Held {
            bytes: inward + outward,
            since: match before.since {
                _ if !holds_much => None,
                Some(since) if !gets_on => Some(since),
                _ => Some(now),
            },
            ..Held::default()
        };
        self.held = self.held - before.bytes + wire.held.bytes;
        if before.since != wire.held.since {
            before.since.map(|since| self.holders.remove(&(since, key)));
            wire.held
                .since
                .map(|since| self.holders.insert((since, key)));
        }
        while self.held > self.held_max
            && let Some((since, holder)) = self.holders.first().copied()
        {
            complain!(
                "control: connections hold {} bytes, {} are the limit; that of {}, which has not got on for {:?}, ends",
                self.held,
                self.held_max,
                self.remote(holder),
                now.since(since)
            );
            self.cut(holder);
        }
    }

    /// Ends a wire at once, as if it had broken.
    fn cut(&mut self, key: Key) {
        let Some(wire) = self.wires.get_mut(&key) else {
            return;
        };
        let held = std::mem::take(&mut wire.held);
        self.held -= held.bytes;
        held.since.map(|since| self.holders.remove(&(since, key)));
        if let Some(connection) = self.connection(key) {
            connection.handle_closed(Some(io::ErrorKind::OutOfMemory));
        }
    }

    /// Closes a socket at once and says nothing.
    pub(super) fn remove(&mut self, key: Key) {
        self.detach(key);
    }

    /// Gives a lane's socket away, once its ticket has been answered. `None`: it does not take so few bytes.
    pub(super) fn take_stream(&mut self, key: Key, proof: Option<Proof>) -> Option<TcpStream> {
        if let (Some(proof), Some(connection)) = (proof, self.connection(key)) {
            connection.prove(proof);
            self.flush(key);
        }
        let wire = self.detach(key)?;
        let is_said = match &wire.stage {
            Stage::Talking(channel) => channel.outgoing_bytes() == 0,
            Stage::Dialling { .. } | Stage::Failed => false,
        };
        is_said.then_some(wire.stream)
    }

    /// The secret of a session that begins on this wire, between these incarnations. `None`: it goes in clear.
    pub(super) fn secret(
        &self,
        ctx: &Context,
        key: Key,
        session: SessionId,
        (initiator, target): (u64, u64),
    ) -> io::Result<Option<SessionSecret>> {
        let Some(Stage::Talking(channel)) = self.wires.get(&key).map(|wire| &wire.stage) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let Some(exported) = channel.export(&session.0)? else {
            return Ok(None);
        };
        let denied = ctx.lanes_denied.clone();
        let secret = SessionSecret::new(&exported, session, initiator, target, denied)?;
        Ok(Some(match channel.connection().encrypts() {
            true => secret.encrypting(),
            false => secret,
        }))
    }

    /// Gives a connection away, with its socket.
    pub(super) fn take_whole(&mut self, key: Key) -> Option<(TcpStream, SocketAddr, Channel)> {
        let wire = self.detach(key)?;
        match wire.stage {
            Stage::Talking(channel) => Some((wire.stream, wire.remote, channel)),
            Stage::Dialling { .. } | Stage::Failed => None,
        }
    }

    fn detach(&mut self, key: Key) -> Option<Wire> {
        self.dirty.remove(&key);
        self.timers.set(Timer::Wire(key), None);
        let wire = self.wires.remove(&key)?;
        self.line.leave(key, Place::of(wire.remote.ip()));
        if wire.owner == Owner::Inbound && !self.crowd.remove(key) {
            self.members = self.members.saturating_sub(1);
        }
        self.held -= wire.held.bytes;
        wire.held
            .since
            .map(|since| self.holders.remove(&(since, key)));
        if let Err(error) = epoll::delete(&self.epoll, &wire.stream) {
            log::warn!("control: forgetting {}: {error}", wire.remote);
        }
        Some(wire)
    }

    /// Sends a frame, if the wire is open.
    pub(super) fn send(&mut self, key: Key, frame: &Frame) -> Result<(), CodecError> {
        let now = self.now();
        match self.connection(key) {
            Some(connection) => connection.send(now, frame),
            None => Ok(()),
        }
    }

    /// Lets an inbound connection in.
    pub(super) fn welcome(&mut self, key: Key, welcome: Welcome) {
        let now = self.now();
        if let Some(connection) = self.connection(key) {
            connection.welcome(now, welcome);
        }
    }

    /// Says no and closes the wire in good order.
    pub(super) fn refuse(&mut self, key: Key, reason: Refusal, text: String) {
        let now = self.now();
        if let Some(connection) = self.connection(key) {
            connection.refuse(now, reason, text);
        }
        self.send_away(key);
    }

    /// Says that the session is unknown, and who says so.
    pub(super) fn refuse_session(&mut self, key: Key, name: String, incarnation: u64) {
        let now = self.now();
        if let Some(connection) = self.connection(key) {
            connection.refuse_session(now, name, incarnation);
        }
        self.send_away(key);
    }

    /// Of those who were refused only so many may take their time to leave.
    fn send_away(&mut self, key: Key) {
        let Some(wire) = self.wires.get(&key) else {
            return;
        };
        if wire.owner != Owner::Inbound {
            return;
        }
        let place = Place::of(wire.remote.ip());
        if let Some(oldest) = self.crowd.makes_room(place) {
            self.remove(oldest);
        }
        if self.crowd.insert(key, place) {
            self.members = self.members.saturating_sub(1);
        }
    }

    /// Says goodbye and closes the wire in good order; at once if it is not open yet.
    pub(super) fn goodbye(&mut self, key: Key) {
        let now = self.now();
        match self.connection(key) {
            Some(connection) if connection.is_open() => connection.goodbye(now),
            Some(connection) if connection.is_draining() => {}
            _ => self.remove(key),
        }
    }

    /// Says goodbye to everybody.
    pub(super) fn goodbye_to_all(&mut self) {
        for key in self.keys() {
            self.goodbye(key);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.wires.is_empty()
    }

    /// The feature bits in force on a wire.
    pub(super) fn features(&self, key: Key) -> u64 {
        match self.wires.get(&key).map(|wire| &wire.stage) {
            Some(Stage::Talking(channel)) => channel.connection().features(),
            _ => 0,
        }
    }

    /// Who is at the other end, in words.
    pub(super) fn remote(&self, key: Key) -> String {
        let remote = self.wires.get(&key).map(|wire| wire.remote);
        remote.map_or("an unknown address".into(), |remote| remote.to_string())
    }

    /// Where a wire comes from, for limits of each address.
    pub(super) fn place(&self, key: Key) -> Place {
        let nowhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Place::of(
            self.wires
                .get(&key)
                .map_or(nowhere, |wire| wire.remote.ip()),
        )
    }

    /// The trust domain of a member, or of somebody without a name, at the address that a wire comes from.
    pub(super) fn domain(&self, ctx: &Context, key: Key, member: Option<&str>) -> TrustDomain {
        let remote = self.wires.get(&key).map(|wire| wire.remote);
        remote.map_or(TrustDomain::COMMON, |remote| {
            ctx.handler.domain_of(remote.ip().to_canonical(), member)
        })
    }

    /// What people tell the key by that handshakes begin with now.
    pub(super) fn current_key(&self) -> Option<Fingerprint> {
        self.talk.keyring.get().map(|key| key.fingerprint())
    }

    /// What people tell the key by that a wire's TLS began with at this end.
    pub(super) fn fingerprint(&self, key: Key) -> Option<Fingerprint> {
        match &self.wires.get(&key)?.stage {
            Stage::Talking(channel) => channel.fingerprint(),
            Stage::Dialling { .. } | Stage::Failed => None,
        }
    }

    /// Whom the certificate names that was shown on a wire.
    pub(super) fn member(&self, key: Key) -> Option<String> {
        match &self.wires.get(&key)?.stage {
            Stage::Talking(channel) => channel.member(),
            Stage::Dialling { .. } | Stage::Failed => None,
        }
    }

    /// How long it took to connect a wire that was dialled.
    pub(super) fn round_trip(&self, key: Key) -> Duration {
        let wire = self.wires.get(&key);
        wire.map_or(Duration::ZERO, |wire| wire.round_trip)
    }

    /// Whether the kernel has connected a wire that was dialled.
    pub(super) fn is_connected(&self, key: Key) -> bool {
        let wire = self.wires.get(&key);
        wire.is_some_and(|wire| matches!(wire.stage, Stage::Talking(_)))
    }

    /// The times that connections live by.
    pub(super) fn times(&self) -> ConnectionConfig {
        self.talk.times
    }

    /// Asks the other end of a wire whether it is alive: without any sign of it until `by` the wire is gone.
    pub(super) fn ask(&mut self, key: Key, by: Instant) {
        if let Some(connection) = self.connection(key) {
            connection.ask(by);
        }
    }

    /// Whether the other end of a wire has been asked and nothing has come since.
    pub(super) fn is_asking(&self, key: Key) -> bool {
        match self.wires.get(&key).map(|wire| &wire.stage) {
            Some(Stage::Talking(channel)) => channel.connection().is_asking(),
            _ => false,
        }
    }

    fn connection(&mut self, key: Key) -> Option<&mut Connection> {
        let wire = self.wires.get_mut(&key)?;
        self.dirty.insert(key);
        match &mut wire.stage {
            Stage::Talking(channel) => Some(channel.connection_mut()),
            Stage::Dialling { .. } | Stage::Failed => None,
        }
    }
}

impl Wire {
    /// The kernel has something to say about the attempt to connect.
    fn finish_dialling(&mut self, now: Instant, talk: &Talk) {
        match self.dialled() {
            Ok(false) => {}
            Ok(true) => {
                if let Stage::Dialling { since, hello, .. } =
                    std::mem::replace(&mut self.stage, Stage::Failed)
                {
                    self.round_trip = now.since(since);
                    let channel =
                        Channel::outbound(now, talk.times, hello, talk.keyring.get().as_ref());
                    self.stage = Stage::Talking(channel);
                }
            }
            Err(error) => self.fail(error),
        }
    }

    /// Whether the kernel has connected.
    fn dialled(&self) -> io::Result<bool> {
        if let Some(error) = self.stream.take_error()? {
            return Err(error);
        }
        let remote = match self.stream.peer_addr() {
            Ok(remote) => remote,
            Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(false),
            Err(error) => return Err(error),
        };
        if self.stream.local_addr()? == remote {
            // Nobody listens, and the kernel happened to choose that very port for us: TCP then connects
            // a socket to itself. Reset it, or the port stays taken when its owner comes back.
            SockRef::from(&self.stream).set_linger(Some(std::time::Duration::ZERO))?;
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Ok(true)
    }

    fn fail(&mut self, error: io::Error) {
        self.stage = Stage::Failed;
        self.failed = Some(error);
    }

    fn is_over(&self) -> bool {
        match &self.stage {
            Stage::Dialling { .. } => false,
            Stage::Talking(channel) => channel.connection().is_closed(),
            Stage::Failed => self.failed.is_none(),
        }
    }

    fn wanted_interest(&self) -> EventFlags {
        match &self.stage {
            Stage::Dialling { .. } => EventFlags::OUT,
            Stage::Talking(channel) if !channel.transmit().is_empty() => {
                EventFlags::IN | EventFlags::OUT
            }
            Stage::Talking(_) => EventFlags::IN,
            Stage::Failed => EventFlags::empty(),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Dialling { by, .. } => Some(*by),
            Stage::Talking(channel) => channel.connection().poll_timeout(),
            Stage::Failed => None,
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
