//! One connection of an attacker's.

use std::env;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use polyrail_control::codec::{Decoder, Frame, Purpose, TransportOffer};
use polyrail_control::connection::{ConnectionConfig, Event, Hello};
use polyrail_control::security::channel::Channel;
use polyrail_control::security::{ClusterKey, Joining, Secret};
use polyrail_core::time;
use polyrail_core::units::{Epoch, LaneId, TransportId};
use polyrail_transport::memory::RegionKey;
use polyrail_transport::ticket::SessionSecret;
use polyrail_transport::{RailAddress, SessionId};
use socket2::SockRef;

use crate::VICTIM;
use crate::mutate::Chance;
use crate::speech;

const CONNECT_MAX: Duration = Duration::from_millis(500);
const READ_MAX: Duration = Duration::from_millis(10);
const WRITE_MAX: Duration = Duration::from_millis(100);

/// How long an answer is waited for.
const ANSWER_MAX: Duration = Duration::from_millis(500);

/// What the target and those who use it have, if the environment names it: then attackers are members as well.
fn key() -> Option<&'static Arc<ClusterKey>> {
    static KEY: OnceLock<Option<Arc<ClusterKey>>> = OnceLock::new();
    let read = || {
        let path = env::var_os("POLYRAIL_SECURITY__KEY_FILE")?;
        // Without it the target does not start.
        let secret = Secret::read(Path::new(&path)).ok()?;
        ClusterKey::new(&secret).ok().map(Arc::new)
    };
    KEY.get_or_init(read).as_ref()
}

/// A connection, and what came on it.
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    /// TLS around it.
    channel: Option<Box<Channel>>,
    decoder: Decoder,
    greeted: bool,
}

impl Wire {
    pub(crate) fn open(port: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&port, CONNECT_MAX)?;
        stream.set_read_timeout(Some(READ_MAX))?;
        stream.set_write_timeout(Some(WRITE_MAX))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            channel: None,
            decoder: Decoder::default(),
            greeted: false,
        })
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub(crate) fn say_frame(&mut self, frame: &Frame) -> io::Result<()> {
        match &mut self.channel {
            None => self.say(&speech::encoded(frame)),
            Some(channel) => {
                // One that is too large is not said.
                let _ = channel.connection_mut().send(time::Instant::ZERO, frame);
                self.flush()
            }
        }
    }

    /// Says what is to be said within TLS.
    fn flush(&mut self) -> io::Result<()> {
        let Some(channel) = &mut self.channel else {
            return Ok(());
        };
        channel.seal();
        while !channel.transmit().is_empty() {
            let bytes = self.stream.write(channel.transmit())?;
            channel.handle_transmitted(bytes);
        }
        Ok(())
    }

    /// What is heard next within TLS, if anything is in time.
    fn event(&mut self) -> io::Result<Event> {
        let until = Instant::now() + ANSWER_MAX;
        let mut bytes = [0; 4096];
        while Instant::now() < until {
            self.flush()?;
            let Some(channel) = &mut self.channel else {
                break;
            };
            if let Some(event) = channel.connection_mut().poll_event(time::Instant::ZERO) {
                return Ok(event);
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => channel.handle_bytes(time::Instant::ZERO, &bytes[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// The next bytes, so many at most, if any come in time.
    fn take(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let until = Instant::now() + ANSWER_MAX;
        let mut bytes = vec![0; most];
        while Instant::now() < until {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => {
                    bytes.truncate(length);
                    return Ok(bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Reads something, or nothing if nothing comes soon.
    pub(crate) fn listen(&mut self) {
        // Whether it was hung up shows at the next write.
        let _ = self.stream.read(&mut [0; 4096]);
    }

    /// The next frame, if one comes in time.
    pub(crate) fn answer(&mut self) -> io::Result<Frame> {
        let until = Instant::now() + ANSWER_MAX;
        let mut bytes = [0; 4096];
        while Instant::now() < until {
            if !self.greeted {
                let greeting = self.decoder.next_greeting().map_err(io::Error::other)?;
                self.greeted = greeting.is_some();
            }
            if self.greeted
                && let Some(frame) = self.decoder.next_frame().map_err(io::Error::other)?
            {
                return Ok(frame);
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.decoder.push(&bytes[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Closes it so that the other side is told of a reset.
    pub(crate) fn reset(self) {
        // Otherwise it is a quiet end, which is as good.
        let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }
}

/// A control connection that was let in, and what it learned.
pub(crate) struct Member {
    pub(crate) wire: Wire,
    pub(crate) session: [u8; 16],
    /// What lanes of it prove themselves with, if there is a key.
    pub(crate) secret: Option<SessionSecret>,
    pub(crate) victim: RegionKey,
    pub(crate) victim_bytes: u64,
    /// What shared memory is handed out at, if it is.
    pub(crate) inside: Option<Vec<u8>>,
}

impl Member {
    pub(crate) fn open(chance: &mut Chance, port: SocketAddr) -> io::Result<Self> {
        let mut wire = Wire::open(port)?;
        if let Some(key) = key() {
            return Self::open_with(chance, wire, key);
        }
        wire.say(&speech::greeting(Purpose::Control))?;
        wire.say_frame(&speech::hello(chance, None))?;
        wire.say_frame(&Frame::Describe {
            question: 1,
            name: VICTIM.into(),
        })?;
        let (mut session, mut inside) = (None, None);
        loop {
            match (wire.answer()?, session) {
                (
                    Frame::Welcome {
                        session: ours,
                        transports,
                        ..
                    },
                    _,
                ) => {
                    session = Some(ours);
                    inside = inside_of(transports);
                }
                (
                    Frame::Description {
                        segment: Some(segment),
                        ..
                    },
                    Some(session),
                ) => {
                    return Ok(Self {
                        wire,
                        session,
                        secret: None,
                        victim: segment.key,
                        victim_bytes: segment.bytes,
                        inside,
                    });
                }
                (Frame::Refused { .. }, _) => return Err(io::ErrorKind::ConnectionRefused.into()),
                _ => {}
            }
        }
    }

    /// The same with somebody who has the key.
    fn open_with(chance: &mut Chance, mut wire: Wire, key: &Arc<ClusterKey>) -> io::Result<Self> {
        let hello = Hello {
            name: "fuzz".into(),
            incarnation: chance.number(),
            session: None,
            token: Vec::new(),
        };
        let own = hello.incarnation;
        let times = ConnectionConfig {
            heartbeat: time::Duration::from_secs(1),
            silence_max: time::Duration::from_secs(60),
            handshake_max: time::Duration::from_secs(60),
            encrypts: false,
        };
        let channel = Channel::outbound(time::Instant::ZERO, times, hello, Some(key));
        wire.channel = Some(Box::new(channel));
        let mut known = None;
        loop {
            let segment = match wire.event()? {
                Event::Welcome(welcome) => {
                    let session = welcome.session;
                    let exported = match &wire.channel {
                        Some(channel) => channel.export(&session.0)?,
                        None => None,
                    };
                    let exported = exported.ok_or(io::ErrorKind::NotConnected)?;
                    let theirs = welcome.incarnation;
                    let secret =
                        SessionSecret::new(&exported, session, own, theirs, Arc::default())?;
                    known = Some((session, secret, inside_of(welcome.transports)));
                    wire.say_frame(&Frame::Describe {
                        question: 1,
                        name: VICTIM.into(),
                    })?;
                    continue;
                }
                Event::Frame(
                    Frame::Description {
                        segment: Some(segment),
                        ..
                    }
                    | Frame::DescriptionAt { segment, .. },
                ) => segment,
                Event::Ended(_) => return Err(io::ErrorKind::ConnectionRefused.into()),
                _ => continue,
            };
            let (session, secret, inside) = known.ok_or(io::ErrorKind::InvalidData)?;
            return Ok(Self {
                wire,
                session: session.0,
                secret: Some(secret),
                victim: segment.key,
                victim_bytes: segment.bytes,
                inside,
            });
        }
    }

    /// A lane of its session that is served.
    pub(crate) fn lane(&self, port: SocketAddr, lane: u32, epoch: u32) -> io::Result<Wire> {
        let mut wire = Wire::open(port)?;
        let address = RailAddress {
            transport: TransportId(0),
            local: None,
            remote: port,
            session: SessionId(self.session),
            secret: self.secret.clone(),
            own: [].into(),
        };
        let (mut joining, says) = Joining::start("tcp", &address, LaneId(lane), Epoch(epoch))?;
        wire.say(&says)?;
        while let wants @ 1.. = joining.wants() {
            let bytes = wire.take(wants)?;
            wire.say(&joining.handle(&bytes)?)?;
        }
        match wire.answer()? {
            Frame::LaneReady { .. } => Ok(wire),
            _ => Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }
}

/// What shared memory is handed out at, if it is.
fn inside_of(transports: Vec<TransportOffer>) -> Option<Vec<u8>> {
    let shm = transports.into_iter().find(|offer| offer.name == "shm");
    shm.map(|offer| offer.address)
}
