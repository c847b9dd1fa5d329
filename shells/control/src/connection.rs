//! One control connection as a state machine, without I/O.
//!
//! The shell hands in what came ([`Connection::handle_bytes`], [`Connection::handle_closed`]) and the time,
//! then drains [`Connection::poll_event`] until it is empty, writes what [`Connection::poll_transmit`] has,
//! and comes back at [`Connection::poll_timeout`]. Hand in bytes before timeouts: a process that was stopped
//! for two seconds finds its peer's heartbeats waiting and must not take it for dead.
//!
//! A connection that this side refuses or leaves *drains*: what is to be said still goes out, what comes is
//! thrown away, and the socket is closed when the peer closes it or after a while. To close at once would
//! reset it, and a reset can overtake the refusal.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{Epoch, LaneId};
use polyrail_transport::SessionId;
use polyrail_transport::ticket::{Nonce, Proof, Ticket};

use crate::codec::{
    self, ANSWERED, CodecError, Decoder, ENCRYPTION, ENCRYPTS, FEATURES, FRAME_BYTES_MAX, Frame,
    Greeting, LEAVING, MOVED, NAME_BYTES_MAX, NODES, NOTIFICATION_BYTES_MAX, NOTIFICATIONS, PATHS,
    PROTOCOL_VERSION, Purpose, RAILS, RailFact, Refusal, STAGING, SegmentDescriptor, TICKETS,
    TransportOffer,
};
use crate::security::Distrust;

/// Bytes that may wait to be written. A peer that lets more pile up is given up.
pub const OUT_BYTES_MAX: usize = 256 * 1024;

/// The longest frame that somebody may introduce himself with: names and a token fit.
const INTRODUCTION_BYTES_MAX: usize = 8 * 1024;

/// The longest silence that a target can ask for by announcing rare heartbeats.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Characters that are kept of a peer's refusal.
const TEXT_CHARS_MAX: usize = 512;

/// The times a connection lives by.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionConfig {
    /// How often a heartbeat is sent.
    pub heartbeat: Duration,
    /// How long the peer may say nothing before it counts as dead, once it has been asked; several heartbeats.
    pub silence_max: Duration,
    /// How long it may take from the connection to the welcome; also how long a connection drains.
    pub handshake_max: Duration,
    /// Whether lanes of sessions that begin here are to be encrypted. Only with a cluster key.
    pub encrypts: bool,
}

/// What an initiator says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Its name.
    pub name: String,
    /// Drawn at random when its process started.
    pub incarnation: u64,
    /// The session to join; `None` asks for a new one.
    pub session: Option<SessionId>,
    /// Reserved, and empty.
    pub token: Vec<u8>,
}

/// What a target says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// Its name.
    pub name: String,
    /// Drawn at random when its process started.
    pub incarnation: u64,
    /// The session.
    pub session: SessionId,
    /// Addresses of its rails.
    pub rails: Vec<SocketAddr>,
    /// The devices behind those addresses, no more than there are addresses.
    pub rail_facts: Vec<RailFact>,
    /// The transports that it has.
    pub transports: Vec<TransportOffer>,
    /// Memory that probes may write to.
    pub scratch: SegmentDescriptor,
}

/// What an inbound lane says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Join {
    /// The transport that it is of; `None`: it does not say.
    pub transport: Option<String>,
    /// The session that it wants to join; not checked.
    pub session: SessionId,
    /// The initiator's number for it.
    pub lane: LaneId,
    /// Its epoch.
    pub epoch: Epoch,
    /// What it was asked to prove itself with, and how it does; not checked. `None`: this engine has no cluster key.
    pub ticket: Option<(Nonce, Ticket)>,
}

/// What a connection tells the shell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Inbound: answer with [`Connection::welcome`], [`Connection::refuse`] or
    /// [`Connection::refuse_session`]. Nothing more comes before that.
    Hello(Hello),
    /// Inbound: the connection is a lane and belongs to a transport from now on, unless it is refused.
    /// Its greeting has not been answered.
    Join(Join),
    /// Outbound: the connection is open.
    Welcome(Welcome),
    /// A frame that the peer may send in its role on an open connection.
    Frame(Frame),
    /// The connection is of no use any more. The last event. Not told of ends that the shell brought
    /// about itself.
    Ended(Ended),
}

/// Why a connection ended.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Ended {
    /// What came could not be read. [`CodecError::Version`]: the peer speaks another version.
    Codec(CodecError),
    /// A frame that has no place there.
    Unexpected {
        /// Its kind.
        frame: &'static str,
        /// What would have been right.
        expected: &'static str,
    },
    /// More bytes came after the one frame of a lane that has not been answered yet.
    LaneBytes {
        /// How many.
        bytes: usize,
    },
    /// A name longer than [`NAME_BYTES_MAX`].
    NameTooLong {
        /// Its length.
        bytes: usize,
    },
    /// A notification longer than [`NOTIFICATION_BYTES_MAX`].
    NotificationTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The peer said no.
    Refused {
        /// Which no.
        reason: Refusal,
        /// In the peer's words.
        text: String,
    },
    /// The peer does not know the session.
    SessionUnknown {
        /// The peer's name.
        name: String,
        /// The peer's incarnation.
        incarnation: u64,
    },
    /// The peer went away in good order.
    Goodbye,
    /// The peer said nothing for too long.
    Silent {
        /// How long it may be silent.
        silence_max: Duration,
    },
    /// The peer did not come through the handshake in time.
    HandshakeOverdue {
        /// How long that may take.
        handshake_max: Duration,
    },
    /// More than [`OUT_BYTES_MAX`] waited to be written.
    Overflow {
        /// How much it was.
        bytes: usize,
    },
    /// The peer has not proved that it holds the cluster's key.
    Distrusted(Distrust),
    /// The peer holds the cluster's key and does not know tickets of lanes: it is an older engine.
    NoTickets,
    /// An end wants lanes to be encrypted, and the peer does not know how: it is an older engine.
    NoEncryption,
    /// The socket broke, or (`None`) the peer closed it.
    Lost(Option<io::ErrorKind>),
}

impl Ended {
    /// Whether one side has a cluster key and the other has none, or another: what somebody has to set right.
    pub fn is_about_keys(&self) -> bool {
        match self {
            Self::Distrusted(_) | Self::NoTickets | Self::NoEncryption => true,
            Self::Refused { reason, .. } => *reason == Refusal::Key,
            Self::Codec(error) => error.is_tls(),
            _ => false,
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Codec(error) => error.fmt(f),
            Self::Unexpected { frame, expected } => write!(f, "{frame} came, {expected} expected"),
            Self::LaneBytes { bytes } => {
                write!(f, "{bytes} bytes came on a lane before its answer")
            }
            Self::NameTooLong { bytes } => {
                write!(f, "name of {bytes} bytes; {NAME_BYTES_MAX} is the limit")
            }
            Self::NotificationTooLong { bytes } => write!(
                f,
                "notification of {bytes} bytes; {NOTIFICATION_BYTES_MAX} is the limit"
            ),
            Self::Refused { reason, text } => {
                write!(f, "refused: {reason}: {}", text.escape_debug())
            }
            Self::SessionUnknown { name, incarnation } => write!(
                f,
                "\"{}\" (incarnation {incarnation:016x}) does not know the session",
                name.escape_debug()
            ),
            Self::Goodbye => f.write_str("the peer said goodbye"),
            Self::Silent { silence_max } => write!(f, "nothing heard for {silence_max:?}"),
            Self::HandshakeOverdue { handshake_max } => {
                write!(f, "no handshake within {handshake_max:?}")
            }
            Self::Overflow { bytes } => write!(
                f,
                "{bytes} bytes wait to be read by the peer; {OUT_BYTES_MAX} is the limit"
            ),
            Self::Distrusted(why) => why.fmt(f),
            Self::NoTickets => f.write_str(NO_TICKETS),
            Self::NoEncryption => f.write_str(NO_ENCRYPTION),
            Self::Lost(Some(kind)) => kind.fmt(f),
            Self::Lost(None) => f.write_str("the peer closed the connection"),
        }
    }
}

/// What is wrong with a member that is older than tickets of lanes.
const NO_TICKETS: &str = "its polyrail is older than tickets of lanes, which engines with a cluster key need of each other: upgrade it";

/// What is wrong with a member that is older than lanes that are encrypted.
const NO_ENCRYPTION: &str = "its polyrail is older than lanes that are encrypted, which this engine wants (security/payload): upgrade it";

/// Which side of the connection this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// Who connected asks.
    Initiator,
    /// Who listens answers.
    Target,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Waits for the peer's greeting.
    Greeting { by: Instant },
    /// Greeted; waits for the frame that introduces the peer.
    Introduction { by: Instant },
    /// [`Event::Hello`] or [`Event::Join`] was told; the shell decides.
    Deciding { by: Instant },
    /// Open for frames.
    Open(Signs),
    /// Over: the rest goes out.
    Draining { by: Instant },
    /// Over.
    Closed,
}

/// How each end of an open connection knows that the other is alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Signs {
    /// By [`Frame::Alive`]: something last came at `heard`. `dead`: we have asked, and it is over if nothing comes until then.
    Answered {
        heard: Instant,
        dead: Option<Instant>,
    },
    /// By heartbeats that both send unasked, the next at `beat`, since the peer does not know [`Frame::Alive`]. It is over if
    /// nothing comes until `dead`.
    Unasked { beat: Instant, dead: Instant },
}

/// What is around the conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Surroundings {
    /// Nothing, and this engine has no key.
    Clear,
    /// Nothing, although this engine has a key: only a lane may greet so, and has to prove itself with this.
    ClearThoughKeyed { challenge: Nonce },
    /// TLS with somebody who has proved that he holds the key.
    Tls,
}

/// One control connection, of either side. See the module for the order of calls.
#[derive(Debug)]
pub struct Connection {
    config: ConnectionConfig,
    role: Role,
    /// What it is for, as the initiator greeted.
    purpose: Purpose,
    surroundings: Surroundings,
    /// What both ends offer.
    features: u64,
    /// Whether either end wants lanes to be encrypted.
    encrypts: bool,
    state: State,
    decoder: Decoder,
    /// What is to be written, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// Whether our greeting is in `out` or past it.
    greeted: bool,
    /// An end that was not told yet.
    ended: Option<Ended>,
}

impl Connection {
    /// A connection that somebody made to us.
    pub fn inbound(now: Instant, config: ConnectionConfig) -> Self {
        Self::new(now, config, Role::Target)
    }

    /// A connection that we made, with what we say first.
    pub fn outbound(now: Instant, config: ConnectionConfig, hello: Hello) -> Self {
        let mut connection = Self::new(now, config, Role::Initiator);
        connection.greet();
        connection.push(&Frame::Hello {
            name: hello.name,
            incarnation: hello.incarnation,
            session: hello.session.map(|session| session.0),
            token: hello.token,
        });
        connection
    }

    fn new(now: Instant, config: ConnectionConfig, role: Role) -> Self {
        let by = now + config.handshake_max;
        Self {
            config,
            role,
            purpose: Purpose::Control,
            surroundings: Surroundings::Clear,
            features: 0,
            encrypts: config.encrypts,
            state: State::Greeting { by },
            decoder: Decoder::default(),
            out: Vec::new(),
            sent: 0,
            greeted: false,
            ended: None,
        }
    }

    /// Says what is around it; before anything comes.
    pub(crate) fn set_surroundings(&mut self, surroundings: Surroundings) {
        self.surroundings = surroundings;
    }

    /// Takes bytes that came. Drain [`Self::poll_event`] before the next call.
    pub fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) {
        match self.state {
            State::Draining { .. } | State::Closed => return,
            State::Open(signs) => self.set_state(State::Open(self.heard(now, signs))),
            State::Greeting { .. } | State::Introduction { .. } | State::Deciding { .. } => {}
        }
        self.decoder.push(bytes);
    }

    /// The socket broke, or (`None`) the peer closed it.
    pub fn handle_closed(&mut self, error: Option<io::ErrorKind>) {
        self.close(Ended::Lost(error));
    }

    /// The peer closed the socket before it had proved that it holds the key.
    pub(crate) fn handle_gone(&mut self) {
        self.close(Ended::Distrusted(Distrust::Gone));
    }

    /// Ends it, because who is there does not hold the key, or the bytes are not its own. What had come and was not told is
    /// not told any more; what is around it may still say why.
    pub(crate) fn distrust(&mut self, now: Instant, why: Distrust) {
        if matches!(self.state, State::Draining { .. } | State::Closed) {
            return;
        }
        self.close(Ended::Distrusted(why));
        let by = now + self.config.handshake_max;
        self.set_state(State::Draining { by });
    }

    /// Does what is due. Calling early or twice changes nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        match self.state {
            State::Greeting { by } | State::Introduction { by } | State::Deciding { by } => {
                if by <= now {
                    let handshake_max = self.config.handshake_max;
                    self.close(Ended::HandshakeOverdue { handshake_max });
                }
            }
            State::Open(
                Signs::Unasked { dead, .. }
                | Signs::Answered {
                    dead: Some(dead), ..
                },
            ) if dead <= now => {
                let silence_max = self.config.silence_max;
                self.close(Ended::Silent { silence_max });
            }
            State::Open(Signs::Unasked { beat, dead }) if beat <= now => {
                let beat = now + self.config.heartbeat;
                self.set_state(State::Open(Signs::Unasked { beat, dead }));
                self.push(&Frame::Heartbeat);
            }
            State::Draining { by } if by <= now => self.set_state(State::Closed),
            State::Open(_) | State::Draining { .. } | State::Closed => {}
        }
    }

    /// When to call [`Self::handle_timeout`]. `None`: it is over, or open and nothing is asked.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Greeting { by }
            | State::Introduction { by }
            | State::Deciding { by }
            | State::Draining { by } => Some(by),
            State::Open(Signs::Unasked { beat, dead }) => Some(beat.min(dead)),
            State::Open(Signs::Answered { dead, .. }) => dead,
            State::Closed => None,
        }
    }

    /// What happened; `None` when all has been told.
    pub fn poll_event(&mut self, now: Instant) -> Option<Event> {
        match self.step(now) {
            Ok(Some(event)) => return Some(event),
            Ok(None) => {}
            Err(ended) => self.fail(now, ended),
        }
        self.ended.take().map(Event::Ended)
    }

    /// What to write next.
    pub fn poll_transmit(&self) -> &[u8] {
        self.out.get(self.sent..).unwrap_or_default()
    }

    /// So many bytes of [`Self::poll_transmit`] were written.
    pub fn handle_transmitted(&mut self, bytes: usize) {
        self.sent = (self.sent + bytes).min(self.out.len());
        if self.sent == self.out.len() {
            self.out = Vec::new();
            self.sent = 0;
        } else if self.sent > self.out.len() / 2 {
            // Or a peer that never quite catches up would let what is long gone pile up.
            self.out.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Sends a frame if the connection is open; one that has ended forgets it, as the wire would. Where nothing has come for
    /// a while it also asks whether the peer is alive.
    pub fn send(&mut self, now: Instant, frame: &Frame) -> Result<(), CodecError> {
        let State::Open(signs) = self.state else {
            return Ok(());
        };
        codec::encode(frame, &mut self.out)?;
        self.check_room();
        if let Signs::Answered { heard, .. } = signs
            && heard + self.config.heartbeat <= now
        {
            self.ask(now + self.config.silence_max);
        }
        Ok(())
    }

    /// Asks whether the peer is alive, if it has not been asked: without any sign of it until `by` the connection is over.
    /// A peer that does not answer heartbeats sends its own.
    pub fn ask(&mut self, by: Instant) {
        let State::Open(Signs::Answered { heard, dead }) = self.state else {
            return;
        };
        let sooner = Some(dead.map_or(by, |dead| dead.min(by)));
        self.set_state(State::Open(Signs::Answered {
            heard,
            dead: sooner,
        }));
        if dead.is_none() {
            self.push(&Frame::Heartbeat);
        }
    }

    /// Whether it has asked and nothing has come since.
    pub fn is_asking(&self) -> bool {
        matches!(
            self.state,
            State::Open(Signs::Answered { dead: Some(_), .. })
        )
    }

    /// Answers [`Event::Hello`] with yes.
    pub fn welcome(&mut self, now: Instant, welcome: Welcome) {
        if !matches!(self.state, State::Deciding { .. }) {
            return;
        }
        self.open(now);
        let heartbeat_ms = self.config.heartbeat.as_nanos() / 1_000_000;
        self.push(&Frame::Welcome {
            name: welcome.name,
            incarnation: welcome.incarnation,
            session: welcome.session.0,
            rails: welcome.rails,
            rail_facts: welcome.rail_facts,
            transports: welcome.transports,
            scratch: welcome.scratch,
            heartbeat_ms: u32::try_from(heartbeat_ms).unwrap_or(u32::MAX),
        });
    }

    /// Answers the ticket of [`Event::Join`] with a proof; the transport says the rest.
    pub fn prove(&mut self, proof: Proof) {
        if matches!(self.state, State::Deciding { .. }) {
            self.push(&Frame::LaneProved { proof });
        }
    }

    /// Says no and drains. Works in every state in which something can still be said.
    pub fn refuse(&mut self, now: Instant, reason: Refusal, text: String) {
        self.leave(now, &Frame::Refused { reason, text });
    }

    /// Answers [`Event::Hello`] with: I do not know that session, and this is who I am.
    pub fn refuse_session(&mut self, now: Instant, name: String, incarnation: u64) {
        self.leave(now, &Frame::SessionUnknown { name, incarnation });
    }

    /// Leaves in good order.
    pub fn goodbye(&mut self, now: Instant) {
        self.leave(now, &Frame::Goodbye);
    }

    /// The feature bits in force: what both ends offer, once the peer has greeted.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Whether either end wants lanes to be encrypted, once the peer has greeted.
    pub fn encrypts(&self) -> bool {
        self.encrypts
    }

    /// Whether frames can be sent.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Whether nothing more will be written once [`Self::poll_transmit`] is empty: the shell then shuts
    /// its half of the socket down.
    pub fn is_draining(&self) -> bool {
        matches!(self.state, State::Draining { .. })
    }

    /// Whether the socket can be closed.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Bytes that came and no frame has taken yet.
    pub fn pending_bytes(&self) -> usize {
        self.decoder.pending_bytes()
    }

    /// One step through what came. `Ok(None)`: more must come first.
    fn step(&mut self, now: Instant) -> Result<Option<Event>, Ended> {
        if let State::Greeting { by } = self.state {
            let Some(greeting) = self.decoder.next_greeting().map_err(Ended::Codec)? else {
                return Ok(None);
            };
            self.handle_greeting(by, greeting)?;
        }
        match self.state {
            State::Introduction { by } => {
                let most = match self.role {
                    Role::Target => INTRODUCTION_BYTES_MAX,
                    Role::Initiator => FRAME_BYTES_MAX,
                };
                let next = self.decoder.next_frame_within(most);
                let Some(frame) = next.map_err(Ended::Codec)? else {
                    return Ok(None);
                };
                match (self.role, self.purpose) {
                    (Role::Target, Purpose::Control) => self.handle_hello(by, frame),
                    (Role::Target, Purpose::Lane) => self.handle_join(by, frame),
                    (Role::Initiator, _) => self.handle_answer(now, frame),
                }
                .map(Some)
            }
            State::Open(signs) => {
                let Some(frame) = self.decoder.next_frame().map_err(Ended::Codec)? else {
                    return Ok(None);
                };
                // What has come counts as heard until it has had its turn.
                self.set_state(State::Open(self.heard(now, signs)));
                self.handle_frame(frame).map(Some)
            }
            State::Greeting { .. }
            | State::Deciding { .. }
            | State::Draining { .. }
            | State::Closed => Ok(None),
        }
    }

    fn handle_greeting(&mut self, by: Instant, greeting: Greeting) -> Result<(), Ended> {
        self.purpose = greeting.purpose;
        self.features = greeting.features & FEATURES;
        self.encrypts |= greeting.features & ENCRYPTS != 0;
        greeting.check_version().map_err(Ended::Codec)?;
        match (self.surroundings, self.purpose) {
            (Surroundings::ClearThoughKeyed { .. }, Purpose::Control) => {
                return Err(Ended::Distrusted(Distrust::Clear));
            }
            (Surroundings::Tls, Purpose::Lane) => {
                return Err(Ended::Unexpected {
                    frame: "a lane's greeting within TLS",
                    expected: "a control greeting",
                });
            }
            (Surroundings::Tls, Purpose::Control) if !self.has(TICKETS) => {
                return Err(Ended::NoTickets);
            }
            (Surroundings::Tls, Purpose::Control) if self.encrypts && !self.has(ENCRYPTION) => {
                return Err(Ended::NoEncryption);
            }
            _ => {}
        }
        match (self.role, self.purpose) {
            (Role::Target, Purpose::Control) => self.greet(),
            (Role::Target, Purpose::Lane) => match self.surroundings {
                Surroundings::ClearThoughKeyed { challenge } => {
                    self.greet();
                    self.push(&Frame::LaneChallenge { nonce: challenge });
                }
                // The transport answers, or who refuses the lane.
                Surroundings::Clear | Surroundings::Tls => {}
            },
            (Role::Initiator, Purpose::Control) => {}
            (Role::Initiator, Purpose::Lane) => {
                return Err(Ended::Unexpected {
                    frame: "a lane's greeting",
                    expected: "a control greeting",
                });
            }
        }
        self.set_state(State::Introduction { by });
        Ok(())
    }

    fn handle_hello(&mut self, by: Instant, frame: Frame) -> Result<Event, Ended> {
        let Frame::Hello {
            name,
            incarnation,
            session,
            token,
        } = frame
        else {
            return Err(unexpected(&frame, "Hello"));
        };
        check_name(&name)?;
        self.set_state(State::Deciding { by });
        Ok(Event::Hello(Hello {
            name,
            incarnation,
            session: session.map(SessionId),
            token,
        }))
    }

    fn handle_join(&mut self, by: Instant, frame: Frame) -> Result<Event, Ended> {
        let challenge = match self.surroundings {
            Surroundings::ClearThoughKeyed { challenge } => Some(challenge),
            Surroundings::Clear | Surroundings::Tls => None,
        };
        let (transport, session, lane, epoch, ticket) = match (frame, challenge) {
            (Frame::JoinLane { .. } | Frame::JoinLaneOf { .. }, Some(_)) => {
                return Err(Ended::Distrusted(Distrust::NoTicket));
            }
            (
                Frame::JoinLane {
                    session,
                    lane,
                    epoch,
                },
                None,
            ) => (None, session, lane, epoch, None),
            (
                Frame::JoinLaneOf {
                    transport,
                    session,
                    lane,
                    epoch,
                },
                None,
            ) => (Some(transport), session, lane, epoch, None),
            (
                Frame::JoinLaneProved {
                    transport,
                    session,
                    lane,
                    epoch,
                    ticket,
                },
                Some(challenge),
            ) => {
                let ticket = Some((challenge, ticket));
                (Some(transport), session, lane, epoch, ticket)
            }
            (frame, None) => return Err(unexpected(&frame, "JoinLane")),
            (frame, Some(_)) => return Err(unexpected(&frame, "JoinLaneProved")),
        };
        transport.as_deref().map_or(Ok(()), check_name)?;
        let bytes = self.decoder.pending_bytes();
        if bytes > 0 {
            return Err(Ended::LaneBytes { bytes });
        }
        self.set_state(State::Deciding { by });
        Ok(Event::Join(Join {
            transport,
            session: SessionId(session),
            lane: LaneId(lane),
            epoch: Epoch(epoch),
            ticket,
        }))
    }

    /// What a target says to our Hello.
    fn handle_answer(&mut self, now: Instant, frame: Frame) -> Result<Event, Ended> {
        match frame {
            Frame::Welcome {
                name,
                incarnation,
                session,
                rails,
                mut rail_facts,
                transports,
                scratch,
                heartbeat_ms,
            } => {
                check_name(&name)?;
                check_facts(&rails, &mut rail_facts)?;
                self.stretch_silence(heartbeat_ms);
                self.open(now);
                Ok(Event::Welcome(Welcome {
                    name,
                    incarnation,
                    session: SessionId(session),
                    rails,
                    rail_facts,
                    transports,
                    scratch,
                }))
            }
            Frame::SessionUnknown { name, incarnation } => {
                check_name(&name)?;
                Err(Ended::SessionUnknown { name, incarnation })
            }
            Frame::Refused { reason, text } => Err(refused(reason, &text)),
            Frame::Goodbye => Err(Ended::Goodbye),
            other => Err(unexpected(&other, "Welcome")),
        }
    }

    /// A frame on an open connection: what each role may say.
    fn handle_frame(&mut self, frame: Frame) -> Result<Event, Ended> {
        if frame == Frame::Heartbeat && self.has(ANSWERED) {
            self.push(&Frame::Alive);
        }
        match (self.role, frame) {
            (_, frame @ (Frame::Heartbeat | Frame::Process(_)))
            | (
                Role::Target,
                frame @ (Frame::Describe { .. } | Frame::Fence { .. } | Frame::Call { .. }),
            )
            | (
                Role::Initiator,
                frame @ (Frame::Description { .. } | Frame::Fenced { .. } | Frame::Answer { .. }),
            ) => Ok(Event::Frame(frame)),
            (_, Frame::Alive) if self.has(ANSWERED) => Ok(Event::Frame(Frame::Alive)),
            (Role::Target, Frame::Notify { number, body }) if self.has(NOTIFICATIONS) => {
                check_notification(&body)?;
                Ok(Event::Frame(Frame::Notify { number, body }))
            }
            (Role::Initiator, frame @ Frame::Notified { .. }) if self.has(NOTIFICATIONS) => {
                Ok(Event::Frame(frame))
            }
            (Role::Initiator, frame @ Frame::DescriptionAt { .. }) if self.has(NODES) => {
                Ok(Event::Frame(frame))
            }
            (Role::Initiator, frame @ Frame::Leaving) if self.has(LEAVING) => {
                Ok(Event::Frame(frame))
            }
            (Role::Target, frame @ Frame::Moved { .. }) if self.has(MOVED) => {
                Ok(Event::Frame(frame))
            }
            (
                Role::Initiator,
                Frame::Rails {
                    rails,
                    mut rail_facts,
                    transports,
                },
            ) if self.has(RAILS) => {
                check_facts(&rails, &mut rail_facts)?;
                Ok(Event::Frame(Frame::Rails {
                    rails,
                    rail_facts,
                    transports,
                }))
            }
            (Role::Target, frame @ Frame::SeePath { .. })
            | (Role::Initiator, frame @ Frame::PathSeen { .. })
                if self.has(PATHS) =>
            {
                Ok(Event::Frame(frame))
            }
            (role, Frame::Stage(message))
                if self.has(STAGING) && message.is_question() == (role == Role::Target) =>
            {
                Ok(Event::Frame(Frame::Stage(message)))
            }
            (_, Frame::Goodbye) => Err(Ended::Goodbye),
            (_, Frame::Refused { reason, text }) => Err(refused(reason, &text)),
            (Role::Target, other) => Err(unexpected(&other, "a question")),
            (Role::Initiator, other) => Err(unexpected(&other, "an answer")),
        }
    }

    fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// A target that beats more rarely than we do may be silent for longer.
    fn stretch_silence(&mut self, heartbeat_ms: u32) {
        let wanted = Duration::from_millis(u64::from(heartbeat_ms)).times(3);
        let ours = self.config.silence_max;
        self.config.silence_max = ours.max(wanted.min(SILENCE_MAX));
    }

    fn open(&mut self, now: Instant) {
        let signs = match self.has(ANSWERED) {
            true => Signs::Answered {
                heard: now,
                dead: None,
            },
            false => Signs::Unasked {
                beat: now + self.config.heartbeat,
                dead: now + self.config.silence_max,
            },
        };
        self.set_state(State::Open(signs));
    }

    /// Something has come.
    fn heard(&self, now: Instant, signs: Signs) -> Signs {
        match signs {
            Signs::Answered { .. } => Signs::Answered {
                heard: now,
                dead: None,
            },
            Signs::Unasked { beat, .. } => Signs::Unasked {
                beat,
                dead: now + self.config.silence_max,
            },
        }
    }

    fn greet(&mut self) {
        self.greeted = true;
        let mut greeting = Greeting::ours(self.purpose);
        if self.config.encrypts {
            greeting.features |= ENCRYPTS;
        }
        self.out.extend_from_slice(&greeting.encode());
    }

    /// Writes one of our own small frames.
    fn push(&mut self, frame: &Frame) {
        match codec::encode(frame, &mut self.out) {
            Ok(()) => self.check_room(),
            Err(error) => self.close(Ended::Codec(error)),
        }
    }

    fn check_room(&mut self) {
        let bytes = self.out.len() - self.sent;
        if bytes > OUT_BYTES_MAX {
            self.close(Ended::Overflow { bytes });
        }
    }

    /// Ends the connection for a reason that the peer gave, and tells it where that helps.
    fn fail(&mut self, now: Instant, ended: Ended) {
        let refusal = match &ended {
            Ended::Codec(CodecError::Version { .. }) if self.role == Role::Target => {
                Some(Refusal::Version)
            }
            // A peer without a key, and one with a key where there is none here: both find the words at the beginning.
            Ended::Distrusted(Distrust::Clear | Distrust::NoTicket) => Some(Refusal::Key),
            Ended::NoTickets | Ended::NoEncryption => Some(Refusal::Version),
            Ended::Codec(error) if error.is_tls() && self.role == Role::Target => {
                Some(Refusal::Key)
            }
            // Whoever that is does not speak our language: silence is the answer it can understand.
            Ended::Codec(
                CodecError::NotPolyrail { .. }
                | CodecError::UnknownPurpose { .. }
                | CodecError::Version { .. },
            ) => None,
            Ended::Codec(_)
            | Ended::Unexpected { .. }
            | Ended::LaneBytes { .. }
            | Ended::NameTooLong { .. }
            | Ended::NotificationTooLong { .. } => Some(Refusal::Protocol),
            _ => None,
        };
        match refusal {
            Some(reason) => {
                self.refuse(now, reason, refusal_text(&ended));
                self.ended = Some(ended);
            }
            None => self.close(ended),
        }
    }

    /// Says the last word and drains.
    fn leave(&mut self, now: Instant, last: &Frame) {
        if matches!(self.state, State::Draining { .. } | State::Closed) {
            return;
        }
        if !self.greeted {
            self.greet();
        }
        self.decoder = Decoder::default();
        let by = now + self.config.handshake_max;
        self.set_state(State::Draining { by });
        self.push(last);
    }

    /// Over at once: nothing more goes out.
    fn close(&mut self, ended: Ended) {
        if self.is_open() || self.is_handshaking() {
            self.ended = Some(ended);
        }
        self.decoder = Decoder::default();
        self.out = Vec::new();
        self.sent = 0;
        self.set_state(State::Closed);
    }

    fn is_handshaking(&self) -> bool {
        matches!(
            self.state,
            State::Greeting { .. } | State::Introduction { .. } | State::Deciding { .. }
        )
    }

    /// The only place that writes `state`.
    fn set_state(&mut self, next: State) {
        self.state = next;
    }
}

/// What a peer is told about its mistake.
fn refusal_text(ended: &Ended) -> String {
    match ended {
        Ended::Codec(CodecError::Version { theirs, .. }) => {
            format!("this side speaks protocol version {PROTOCOL_VERSION}, not {theirs}")
        }
        Ended::Distrusted(Distrust::NoTicket) => "this engine has a cluster key, and a lane needs a ticket".into(),
        Ended::NoTickets => "this polyrail has tickets of lanes, which engines with a cluster key need of each other: upgrade \
                             the other one"
            .into(),
        Ended::NoEncryption => "this engine wants lanes to be encrypted (security/payload), which the other one is too old for: \
                                upgrade it"
            .into(),
        Ended::Distrusted(_) => "this engine has a cluster key, or certificates, and lets nobody in who speaks in clear: \
                                 name the same there (security/key_file, or security/certificate)"
            .into(),
        Ended::Codec(error) if error.is_tls() => {
            "this engine has no cluster key: name the same one here (security/key_file, or security/certificate), or none \
             there"
                .into()
        }
        other => other.to_string(),
    }
}

/// What a peer said, as far as it fits a line of a log.
fn refused(reason: Refusal, text: &str) -> Ended {
    let text = text.chars().take(TEXT_CHARS_MAX).collect();
    Ended::Refused { reason, text }
}

fn unexpected(frame: &Frame, expected: &'static str) -> Ended {
    Ended::Unexpected {
        frame: frame.kind(),
        expected,
    }
}

/// What is said of devices, of no more than there are addresses.
fn check_facts(rails: &[SocketAddr], facts: &mut Vec<RailFact>) -> Result<(), Ended> {
    facts.truncate(rails.len());
    facts.iter().try_for_each(|fact| check_name(&fact.device))
}

fn check_name(name: &str) -> Result<(), Ended> {
    let bytes = name.len();
    if bytes > NAME_BYTES_MAX {
        return Err(Ended::NameTooLong { bytes });
    }
    Ok(())
}

fn check_notification(body: &[u8]) -> Result<(), Ended> {
    let bytes = body.len();
    if bytes > NOTIFICATION_BYTES_MAX {
        return Err(Ended::NotificationTooLong { bytes });
    }
    Ok(())
}

// One frame of any size must fit, or an answer of legal size could end a connection.
const _: () = assert!(OUT_BYTES_MAX >= 2 * FRAME_BYTES_MAX);

#[cfg(test)]
mod tests {
    use polyrail_core::stage::StageMessage;
    use polyrail_core::transport::MemoryKind;
    use polyrail_core::units::{PoolId, Ticket};
    use polyrail_transport::memory::{Access, RegionKey};
    use quickcheck::quickcheck;

    use super::*;

    const CONFIG: ConnectionConfig = ConnectionConfig {
        heartbeat: Duration::from_millis(500),
        silence_max: Duration::from_millis(1500),
        handshake_max: Duration::from_secs(1),
        encrypts: false,
    };

    const SESSION: SessionId = SessionId([7; 16]);

    fn ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn hello() -> Hello {
        Hello {
            name: "alpha".into(),
            incarnation: 1,
            session: None,
            token: vec![],
        }
    }

    fn welcome() -> Welcome {
        Welcome {
            name: "beta".into(),
            incarnation: 2,
            session: SESSION,
            rails: vec!["127.0.0.2:7000".parse().unwrap()],
            rail_facts: vec![RailFact {
                device: "eth1".into(),
                numa_node: Some(1),
            }],
            transports: vec![TransportOffer {
                name: "tcp".into(),
                capabilities: 257,
                address: vec![7],
            }],
            scratch: SegmentDescriptor {
                name: "scratch".into(),
                generation: 1,
                bytes: 4096,
                key: RegionKey([3; 16]),
                access: Access::RemoteReadWrite,
                memory: MemoryKind::Host,
                kind: codec::SegmentKind::Memory,
                numa_node: None,
            },
        }
    }

    fn bytes_of(frames: &[Frame]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for frame in frames {
            codec::encode(frame, &mut bytes).unwrap();
        }
        bytes
    }

    fn greeted(purpose: Purpose, frames: &[Frame]) -> Vec<u8> {
        let greeting = Greeting::ours(purpose).encode();
        [&greeting[..], &bytes_of(frames)].concat()
    }

    fn hello_frame() -> Frame {
        Frame::Hello {
            name: "alpha".into(),
            incarnation: 1,
            session: None,
            token: vec![],
        }
    }

    fn join() -> Frame {
        Frame::JoinLane {
            session: SESSION.0,
            lane: 5,
            epoch: 6,
        }
    }

    /// All that `connection` has to write.
    fn transmit(connection: &mut Connection) -> Vec<u8> {
        let bytes = connection.poll_transmit().to_vec();
        connection.handle_transmitted(bytes.len());
        bytes
    }

    /// What `connection` says, read by a peer.
    fn said(connection: &mut Connection) -> (Option<Greeting>, Vec<Frame>) {
        let mut decoder = Decoder::default();
        decoder.push(&transmit(connection));
        if decoder.pending_bytes() == 0 {
            return (None, vec![]);
        }
        let greeting = decoder.next_greeting().unwrap();
        let frames = std::iter::from_fn(|| decoder.next_frame().unwrap()).collect();
        (greeting, frames)
    }

    fn events(connection: &mut Connection, now: Instant) -> Vec<Event> {
        std::iter::from_fn(|| connection.poll_event(now)).collect()
    }

    /// Both ends of an open connection, with nothing under way.
    fn pair() -> (Connection, Connection) {
        let mut initiator = Connection::outbound(ms(0), CONFIG, hello());
        let mut target = Connection::inbound(ms(0), CONFIG);
        target.handle_bytes(ms(0), &transmit(&mut initiator));
        assert_eq!(events(&mut target, ms(0)), [Event::Hello(hello())]);
        target.welcome(ms(0), welcome());
        initiator.handle_bytes(ms(0), &transmit(&mut target));
        assert_eq!(events(&mut initiator, ms(0)), [Event::Welcome(welcome())]);
        (initiator, target)
    }

    /// What an initiator makes of a welcome.
    fn welcomed(welcome: Welcome) -> Vec<Event> {
        let mut initiator = Connection::outbound(ms(0), CONFIG, hello());
        let mut target = Connection::inbound(ms(0), CONFIG);
        target.handle_bytes(ms(0), &transmit(&mut initiator));
        events(&mut target, ms(0));
        target.welcome(ms(0), welcome);
        initiator.handle_bytes(ms(0), &transmit(&mut target));
        events(&mut initiator, ms(0))
    }

    #[test]
    fn facts_of_a_welcome_need_not_be_as_many_as_its_rails() {
        let fact = |bytes: usize| RailFact {
            device: "e".repeat(bytes),
            numa_node: None,
        };
        // (name, bytes of the names of devices, what is left of them); one rail
        let cases = [
            ("none", &[][..], Ok(&[][..])),
            ("the longest name", &[255], Ok(&[255])),
            ("a name too long", &[256], Err(256)),
            ("one too many", &[3, 4], Ok(&[3])),
            ("one too many, whatever it is", &[3, 256], Ok(&[3])),
        ];
        for (name, said, expected) in cases {
            let facts = |bytes: &[usize]| bytes.iter().map(|bytes| fact(*bytes)).collect();
            let expected = match expected {
                Ok(left) => Event::Welcome(Welcome {
                    rail_facts: facts(left),
                    ..welcome()
                }),
                Err(bytes) => Event::Ended(Ended::NameTooLong { bytes }),
            };
            let said = Welcome {
                rail_facts: facts(said),
                ..welcome()
            };
            assert_eq!(welcomed(said), [expected], "{name}");
        }
    }

    #[test]
    fn a_conversation() {
        let (mut initiator, mut target) = pair();
        let fence = Frame::Fence { lane: 1, epoch: 2 };
        initiator.send(ms(1), &fence).unwrap();
        target.handle_bytes(ms(1), &transmit(&mut initiator));
        assert_eq!(events(&mut target, ms(1)), [Event::Frame(fence)]);
        initiator.goodbye(ms(2));
        target.handle_bytes(ms(2), &transmit(&mut initiator));
        assert_eq!(events(&mut target, ms(2)), [Event::Ended(Ended::Goodbye)]);
        assert!(target.is_closed() && initiator.is_draining());
        initiator.handle_closed(None);
        assert_eq!(events(&mut initiator, ms(3)), []);
        assert!(initiator.is_closed());
    }

    #[test]
    fn what_a_stranger_may_do() {
        use Refusal::{Protocol, Version};
        let other_version = Greeting {
            version: 9,
            ..Greeting::ours(Purpose::Control)
        };
        let long_name = Frame::Hello {
            name: "n".repeat(NAME_BYTES_MAX + 1),
            incarnation: 1,
            session: None,
            token: vec![],
        };
        // (name, what comes, what is told, the refusal that goes out)
        let cases = [
            (
                "another version is answered with ours",
                other_version.encode().to_vec(),
                Ended::Codec(CodecError::Version { ours: 1, theirs: 9 }),
                Some(Version),
            ),
            (
                "another language is not answered",
                b"GET / HTTP/1.1\r\n".to_vec(),
                Ended::Codec(CodecError::NotPolyrail { got: *b"GET / HT" }),
                None,
            ),
            (
                "a question before Hello",
                greeted(Purpose::Control, &[Frame::Heartbeat]),
                Ended::Unexpected {
                    frame: "Heartbeat",
                    expected: "Hello",
                },
                Some(Protocol),
            ),
            (
                "Hello on a lane",
                greeted(Purpose::Lane, &[hello_frame()]),
                Ended::Unexpected {
                    frame: "Hello",
                    expected: "JoinLane",
                },
                Some(Protocol),
            ),
            (
                "more than JoinLane on a lane",
                [greeted(Purpose::Lane, &[join()]), vec![0]].concat(),
                Ended::LaneBytes { bytes: 1 },
                Some(Protocol),
            ),
            (
                "a huge frame",
                [greeted(Purpose::Control, &[]), vec![255; 4]].concat(),
                Ended::Codec(CodecError::TooLong {
                    bytes: u32::MAX as usize,
                    most: INTRODUCTION_BYTES_MAX,
                }),
                Some(Protocol),
            ),
            (
                "a long name",
                greeted(Purpose::Control, &[long_name]),
                Ended::NameTooLong { bytes: 256 },
                Some(Protocol),
            ),
        ];
        for (name, bytes, expected, refusal) in cases {
            let mut target = Connection::inbound(ms(0), CONFIG);
            target.handle_bytes(ms(0), &bytes);
            assert_eq!(
                events(&mut target, ms(0)),
                [Event::Ended(expected)],
                "{name}"
            );
            let (greeting, frames) = said(&mut target);
            match refusal {
                Some(expected) => {
                    assert_eq!(greeting.unwrap().version, PROTOCOL_VERSION, "{name}");
                    assert!(
                        matches!(&frames[..], [Frame::Refused { reason, .. }] if *reason == expected),
                        "{name}: {frames:?}"
                    );
                    assert!(target.is_draining(), "{name}");
                }
                None => {
                    assert_eq!((greeting, frames), (None, vec![]), "{name}");
                    assert!(target.is_closed(), "{name}");
                }
            }
        }
    }

    #[test]
    fn frames_that_have_no_place_on_an_open_connection_end_it() {
        let ticket = Ticket::from_bits(1);
        // (name, whether the initiator says it, what)
        let cases = [
            ("a second Hello", true, hello_frame()),
            (
                "an answer from an initiator",
                true,
                Frame::Fenced {
                    lane: 1,
                    epoch: 1,
                    delivered: 0,
                },
            ),
            ("JoinLane on a control connection", true, join()),
            (
                "a question from a target",
                false,
                Frame::Fence { lane: 1, epoch: 1 },
            ),
            (
                "a notification from a target",
                false,
                Frame::Notify {
                    number: 1,
                    body: vec![],
                },
            ),
            (
                "an initiator that confirms a notification",
                true,
                Frame::Notified {
                    number: 1,
                    room: true,
                },
            ),
            (
                "an initiator that answers about a slot",
                true,
                Frame::Stage(StageMessage::Freed { ticket }),
            ),
            (
                "a target that asks for a slot",
                false,
                Frame::Stage(StageMessage::Reserve {
                    ticket,
                    pool: PoolId(0),
                }),
            ),
            (
                "LaneReady on a control connection",
                false,
                Frame::LaneReady {
                    works_max: 1,
                    work_bytes_max: 1,
                },
            ),
        ];
        for (name, from_initiator, frame) in cases {
            let (initiator, target) = pair();
            let (mut from, mut to) = if from_initiator {
                (initiator, target)
            } else {
                (target, initiator)
            };
            from.send(ms(1), &frame).unwrap();
            to.handle_bytes(ms(1), &transmit(&mut from));
            let told = events(&mut to, ms(1));
            assert!(
                matches!(&told[..], [Event::Ended(Ended::Unexpected { frame: kind, .. })] if *kind == frame.kind()),
                "{name}: {told:?}"
            );
            from.handle_bytes(ms(1), &transmit(&mut to));
            let told = events(&mut from, ms(1));
            assert!(
                matches!(
                    &told[..],
                    [Event::Ended(Ended::Refused {
                        reason: Refusal::Protocol,
                        ..
                    })]
                ),
                "{name}: {told:?}"
            );
        }
    }

    #[test]
    fn notifications_need_the_feature_on_both_sides_and_have_a_size() {
        let notify = |bytes| Frame::Notify {
            number: 1,
            body: vec![0; bytes],
        };
        // (name, the peer's features, bytes, what comes of it)
        let cases = [
            (
                "both have it",
                u64::MAX,
                NOTIFICATION_BYTES_MAX,
                Ok(FEATURES),
            ),
            ("the peer does not", !NOTIFICATIONS, 1, Err("expected")),
            (
                "too long",
                u64::MAX,
                NOTIFICATION_BYTES_MAX + 1,
                Err("1025"),
            ),
        ];
        for (name, features, bytes, outcome) in cases {
            let mut target = Connection::inbound(ms(0), CONFIG);
            let greeting = Greeting {
                features,
                ..Greeting::ours(Purpose::Control)
            };
            target.handle_bytes(ms(0), &greeting.encode());
            target.handle_bytes(ms(0), &bytes_of(&[hello_frame()]));
            assert_eq!(events(&mut target, ms(0)), [Event::Hello(hello())]);
            target.welcome(ms(0), welcome());
            target.handle_bytes(ms(0), &bytes_of(&[notify(bytes)]));
            let told = events(&mut target, ms(0));
            match (&told[..], outcome) {
                ([Event::Frame(frame)], Ok(features)) => {
                    assert_eq!((frame, target.features()), (&notify(bytes), features));
                }
                ([Event::Ended(why)], Err(text)) => {
                    assert!(why.to_string().contains(text), "{name}: {why}");
                    assert!(target.is_draining(), "{name}: the peer is told");
                }
                _ => panic!("{name}: {told:?}"),
            }
        }
    }

    #[test]
    fn a_lane_is_told_and_not_answered() {
        let of = |transport: &str| Frame::JoinLaneOf {
            transport: transport.into(),
            session: SESSION.0,
            lane: 5,
            epoch: 6,
        };
        let mut target = Connection::inbound(ms(0), CONFIG);
        for (frame, transport) in [(of("verbs"), Some("verbs")), (join(), None)] {
            target = Connection::inbound(ms(0), CONFIG);
            let bytes = greeted(Purpose::Lane, &[frame]);
            let mut told = vec![];
            for piece in bytes.chunks(3) {
                target.handle_bytes(ms(0), piece);
                told.extend(events(&mut target, ms(0)));
            }
            let expected = Event::Join(Join {
                transport: transport.map(str::to_owned),
                session: SESSION,
                lane: LaneId(5),
                epoch: Epoch(6),
                ticket: None,
            });
            assert_eq!(told, [expected]);
        }
        assert!(target.poll_transmit().is_empty());
        target.refuse(ms(0), Refusal::SessionUnknown, "no".into());
        let (greeting, frames) = said(&mut target);
        assert_eq!(greeting, Some(Greeting::ours(Purpose::Lane)));
        assert_eq!(frames.len(), 1);
    }

    #[test]
    fn what_an_initiator_is_told() {
        let unknown = Frame::SessionUnknown {
            name: "beta".into(),
            incarnation: 2,
        };
        let refused = Frame::Refused {
            reason: Refusal::Full,
            text: "full".into(),
        };
        let long = Frame::Refused {
            reason: Refusal::Full,
            text: "ä".repeat(10_000),
        };
        let old = Greeting {
            version: 9,
            ..Greeting::ours(Purpose::Control)
        };
        // (name, what comes, what is told)
        let cases = [
            (
                "another version",
                old.encode().to_vec(),
                Ended::Codec(CodecError::Version { ours: 1, theirs: 9 }),
            ),
            (
                "not one of ours",
                b"SSH-2.0-OpenSSH".to_vec(),
                Ended::Codec(CodecError::NotPolyrail { got: *b"SSH-2.0-" }),
            ),
            (
                "a no",
                greeted(Purpose::Control, &[refused]),
                Ended::Refused {
                    reason: Refusal::Full,
                    text: "full".into(),
                },
            ),
            (
                "a long no",
                greeted(Purpose::Control, &[long]),
                Ended::Refused {
                    reason: Refusal::Full,
                    text: "ä".repeat(TEXT_CHARS_MAX),
                },
            ),
            (
                "an unknown session",
                greeted(Purpose::Control, &[unknown]),
                Ended::SessionUnknown {
                    name: "beta".into(),
                    incarnation: 2,
                },
            ),
        ];
        for (name, bytes, expected) in cases {
            let mut initiator = Connection::outbound(ms(0), CONFIG, hello());
            initiator.handle_bytes(ms(0), &bytes);
            assert_eq!(
                events(&mut initiator, ms(0)),
                [Event::Ended(expected)],
                "{name}"
            );
            assert!(initiator.is_closed(), "{name}");
        }
    }

    #[test]
    fn a_heartbeat_is_answered_and_silence_after_it_kills() {
        let (mut initiator, mut target) = pair();
        assert_eq!(
            (initiator.poll_timeout(), target.poll_timeout()),
            (None, None)
        );
        initiator.ask(ms(2000));
        initiator.ask(ms(3000));
        assert_eq!(initiator.poll_timeout(), Some(ms(2000)), "the sooner");
        let asked = transmit(&mut initiator);
        assert_eq!(asked, bytes_of(&[Frame::Heartbeat]), "once");
        target.handle_bytes(ms(501), &asked);
        let told = events(&mut target, ms(501));
        assert_eq!(told, [Event::Frame(Frame::Heartbeat)]);
        initiator.handle_bytes(ms(1999), &transmit(&mut target));
        let told = events(&mut initiator, ms(1999));
        assert_eq!(told, [Event::Frame(Frame::Alive)]);
        assert!(
            transmit(&mut initiator).is_empty(),
            "answers are not answered"
        );
        initiator.handle_timeout(ms(60_000));
        assert!(
            initiator.is_open() && !initiator.is_asking(),
            "nobody asked"
        );
        initiator.ask(ms(61_000));
        initiator.handle_timeout(ms(60_999));
        assert_eq!(events(&mut initiator, ms(60_999)), []);
        initiator.handle_timeout(ms(61_000));
        let silence_max = CONFIG.silence_max;
        let silent = Event::Ended(Ended::Silent { silence_max });
        assert_eq!(events(&mut initiator, ms(61_000)), [silent]);
    }

    #[test]
    fn what_is_said_after_a_silence_asks_for_a_sign_of_life() {
        let fence = Frame::Fence { lane: 1, epoch: 2 };
        let (mut initiator, _) = pair();
        initiator.send(ms(499), &fence).unwrap();
        assert_eq!(
            transmit(&mut initiator),
            bytes_of(std::slice::from_ref(&fence))
        );
        for _ in 0..2 {
            initiator.send(ms(500), &fence).unwrap();
        }
        let said = bytes_of(&[fence.clone(), Frame::Heartbeat, fence]);
        assert_eq!(transmit(&mut initiator), said);
        assert_eq!(initiator.poll_timeout(), Some(ms(2000)));
    }

    #[test]
    fn both_send_heartbeats_to_a_peer_that_does_not_answer_them() {
        let mut target = Connection::inbound(ms(0), CONFIG);
        let old = Greeting {
            features: FEATURES & !ANSWERED,
            ..Greeting::ours(Purpose::Control)
        };
        target.handle_bytes(
            ms(0),
            &[&old.encode()[..], &bytes_of(&[hello_frame()])].concat(),
        );
        events(&mut target, ms(0));
        target.welcome(ms(0), welcome());
        transmit(&mut target);
        target.ask(ms(1));
        assert_eq!(target.poll_timeout(), Some(ms(500)), "it would not answer");
        target.handle_timeout(ms(499));
        assert!(target.poll_transmit().is_empty());
        target.handle_timeout(ms(500));
        target.handle_timeout(ms(500));
        let beat = bytes_of(&[Frame::Heartbeat]);
        assert_eq!(transmit(&mut target), beat, "one heartbeat per interval");
        target.handle_bytes(ms(501), &beat);
        let told = events(&mut target, ms(501));
        assert_eq!(told, [Event::Frame(Frame::Heartbeat)]);
        assert!(transmit(&mut target).is_empty());
        target.handle_timeout(ms(2000));
        assert!(target.is_open(), "heard of 1499 ms ago");
        target.handle_timeout(ms(2001));
        assert!(target.is_closed());
        // And an answer that nobody offered to understand ends the connection.
        let mut target = Connection::inbound(ms(0), CONFIG);
        target.handle_bytes(
            ms(0),
            &[&old.encode()[..], &bytes_of(&[hello_frame()])].concat(),
        );
        events(&mut target, ms(0));
        target.welcome(ms(0), welcome());
        target.handle_bytes(ms(1), &bytes_of(&[Frame::Alive]));
        let told = events(&mut target, ms(1));
        let frame = "Alive";
        assert!(
            matches!(&told[..], [Event::Ended(Ended::Unexpected { frame: got, .. })] if *got == frame),
            "{told:?}"
        );
    }

    #[test]
    fn the_handshake_has_a_deadline() {
        for mut connection in [
            Connection::inbound(ms(0), CONFIG),
            Connection::outbound(ms(0), CONFIG, hello()),
        ] {
            // A greeting that comes byte by byte buys no time.
            for at in 0..10 {
                let greeting = Greeting::ours(Purpose::Control).encode();
                connection.handle_bytes(ms(at * 100), &greeting[at as usize..=at as usize]);
                assert_eq!(events(&mut connection, ms(at * 100)), []);
            }
            assert_eq!(connection.poll_timeout(), Some(ms(1000)));
            connection.handle_timeout(ms(1000));
            let handshake_max = CONFIG.handshake_max;
            let overdue = Event::Ended(Ended::HandshakeOverdue { handshake_max });
            assert_eq!(events(&mut connection, ms(1000)), [overdue]);
        }
    }

    #[test]
    fn draining_ends_at_last() {
        let (mut initiator, _) = pair();
        initiator.goodbye(ms(0));
        initiator.handle_bytes(ms(1), &[1; 100]);
        assert_eq!(events(&mut initiator, ms(1)), []);
        assert_eq!(initiator.pending_bytes(), 0);
        let end = initiator.poll_timeout().unwrap();
        initiator.handle_timeout(end);
        assert!(initiator.is_closed());
        assert_eq!(initiator.poll_timeout(), None);
    }

    #[test]
    fn a_peer_that_does_not_read_is_given_up() {
        let (mut initiator, _) = pair();
        let call = Frame::Call {
            number: 1,
            method: 1,
            body: vec![0; 60_000],
        };
        for _ in 0..4 {
            initiator.send(ms(1), &call).unwrap();
            assert_eq!(events(&mut initiator, ms(1)), []);
        }
        initiator.send(ms(1), &call).unwrap();
        let told = events(&mut initiator, ms(1));
        assert!(
            matches!(&told[..], [Event::Ended(Ended::Overflow { .. })]),
            "{told:?}"
        );
        assert!(initiator.is_closed() && initiator.poll_transmit().is_empty());
    }

    #[test]
    fn a_peer_that_reads_slowly_costs_no_more_than_one_that_stops() {
        let (mut initiator, _) = pair();
        let call = Frame::Call {
            number: 1,
            method: 1,
            body: vec![0; 60_000],
        };
        initiator.send(ms(1), &call).unwrap();
        for _ in 0..100 {
            initiator.send(ms(1), &call).unwrap();
            initiator.handle_transmitted(60_000);
            assert!(initiator.is_open() && initiator.out.capacity() <= 4 * OUT_BYTES_MAX);
        }
    }

    #[test]
    fn a_target_that_beats_rarely_may_be_silent_longer_within_a_limit() {
        for (heartbeat_ms, dead) in [(100, 1500), (2000, 6000), (u32::MAX, 30_000)] {
            let mut initiator = Connection::outbound(ms(0), CONFIG, hello());
            initiator.stretch_silence(heartbeat_ms);
            initiator.open(ms(0));
            initiator.handle_timeout(ms(dead - 1));
            assert!(initiator.is_open(), "{heartbeat_ms}");
            initiator.handle_timeout(ms(dead));
            assert!(initiator.is_closed(), "{heartbeat_ms}");
        }
    }

    /// Feeds bytes in pieces and drains; false if memory grew.
    fn survives(mut connection: Connection, bytes: &[u8], cuts: &[u8]) -> bool {
        for (at, piece) in (0..).zip(codec::tests::pieces(bytes, cuts)) {
            connection.handle_bytes(ms(at), piece);
            for event in events(&mut connection, ms(at)) {
                if matches!(event, Event::Hello(_)) {
                    connection.welcome(ms(at), welcome());
                }
            }
            connection.handle_timeout(ms(at));
            if connection.pending_bytes() > FRAME_BYTES_MAX + 4
                || connection.poll_transmit().len() > OUT_BYTES_MAX
            {
                return false;
            }
        }
        true
    }

    #[test]
    fn one_end_that_wants_lanes_encrypted_is_enough_and_an_older_one_is_refused_in_words() {
        let config = |encrypts| ConnectionConfig { encrypts, ..CONFIG };
        for (ours, theirs) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut target = Connection::inbound(ms(0), config(theirs));
            let mut initiator = Connection::outbound(ms(0), config(ours), hello());
            target.set_surroundings(Surroundings::Tls);
            initiator.set_surroundings(Surroundings::Tls);
            target.handle_bytes(ms(1), &transmit(&mut initiator));
            assert_eq!(target.poll_event(ms(1)), Some(Event::Hello(hello())));
            target.welcome(ms(1), welcome());
            initiator.handle_bytes(ms(2), &transmit(&mut target));
            assert!(matches!(
                initiator.poll_event(ms(2)),
                Some(Event::Welcome(_))
            ));
            let agreed = [initiator.encrypts(), target.encrypts()];
            assert_eq!(agreed, [ours || theirs; 2]);
        }
        let mut old = Greeting::ours(Purpose::Control);
        old.features &= !ENCRYPTION;
        let bytes = [&old.encode()[..], &bytes_of(&[hello_frame()])].concat();
        for (wanted, ended) in [(true, true), (false, false)] {
            let mut target = Connection::inbound(ms(0), config(wanted));
            target.set_surroundings(Surroundings::Tls);
            target.handle_bytes(ms(1), &bytes);
            let event = target.poll_event(ms(1));
            let expected = match ended {
                true => Event::Ended(Ended::NoEncryption),
                false => Event::Hello(hello()),
            };
            assert_eq!(event, Some(expected));
        }
        let words = refusal_text(&Ended::NoEncryption);
        assert!(words.contains("security/payload"), "{words}");
    }

    #[test]
    fn a_member_that_is_older_than_tickets_is_told_so_and_one_without_a_key_is_not_asked() {
        let mut old = Greeting::ours(Purpose::Control);
        old.features &= !TICKETS;
        let bytes = [&old.encode()[..], &bytes_of(&[hello_frame()])].concat();
        let mut target = Connection::inbound(ms(0), CONFIG);
        target.set_surroundings(Surroundings::Tls);
        target.handle_bytes(ms(1), &bytes);
        assert_eq!(
            target.poll_event(ms(1)),
            Some(Event::Ended(Ended::NoTickets))
        );
        let mut decoder = Decoder::default();
        decoder.push(&transmit(&mut target));
        decoder.next_greeting().unwrap().unwrap();
        match decoder.next_frame().unwrap() {
            Some(Frame::Refused { reason, text }) => {
                assert_eq!(reason, Refusal::Version);
                assert!(text.contains("upgrade the other one"), "{text}");
            }
            other => panic!("{other:?}"),
        }
        let mut initiator = Connection::outbound(ms(0), CONFIG, hello());
        initiator.set_surroundings(Surroundings::Tls);
        initiator.handle_bytes(ms(1), &old.encode());
        let ended = initiator.poll_event(ms(1));
        assert_eq!(ended, Some(Event::Ended(Ended::NoTickets)));
        assert!(Ended::NoTickets.to_string().contains("upgrade it"));
        let mut clear = Connection::inbound(ms(0), CONFIG);
        clear.handle_bytes(ms(1), &bytes);
        assert_eq!(clear.poll_event(ms(1)), Some(Event::Hello(hello())));
    }

    quickcheck! {
        fn random_bytes_never_panic_and_never_pile_up(
            bytes: Vec<u8>, cuts: Vec<u8>, start: u8
        ) -> bool {
            let (connection, start) = match start % 5 {
                0 => (Connection::inbound(ms(0), CONFIG), vec![]),
                1 => (Connection::inbound(ms(0), CONFIG), greeted(Purpose::Control, &[])),
                2 => (Connection::inbound(ms(0), CONFIG), greeted(Purpose::Lane, &[])),
                3 => (
                    Connection::inbound(ms(0), CONFIG),
                    greeted(Purpose::Control, &[hello_frame()]),
                ),
                _ => (
                    Connection::outbound(ms(0), CONFIG, hello()),
                    greeted(Purpose::Control, &[]),
                ),
            };
            survives(connection, &[start, bytes].concat(), &cuts)
        }

        fn random_frames_never_panic_and_never_pile_up(
            frames: Vec<Frame>, cuts: Vec<u8>, inbound: bool
        ) -> bool {
            if inbound {
                let bytes = greeted(Purpose::Control, &frames);
                survives(Connection::inbound(ms(0), CONFIG), &bytes, &cuts)
            } else {
                let (initiator, _) = pair();
                survives(initiator, &bytes_of(&frames), &cuts)
            }
        }
    }
}
