//! One connection of an attacker's.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use polyrail_control::codec::{Decoder, Frame, Purpose};
use polyrail_transport::memory::RegionKey;
use socket2::SockRef;

use crate::VICTIM;
use crate::mutate::Chance;
use crate::speech;

const CONNECT_MAX: Duration = Duration::from_millis(500);
const READ_MAX: Duration = Duration::from_millis(10);
const WRITE_MAX: Duration = Duration::from_millis(100);

/// How long an answer is waited for.
const ANSWER_MAX: Duration = Duration::from_millis(500);

/// A connection, and what came on it.
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
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
            decoder: Decoder::default(),
            greeted: false,
        })
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub(crate) fn say_frame(&mut self, frame: &Frame) -> io::Result<()> {
        self.say(&speech::encoded(frame))
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
    pub(crate) victim: RegionKey,
    pub(crate) victim_bytes: u64,
    /// What shared memory is handed out at, if it is.
    pub(crate) inside: Option<Vec<u8>>,
}

impl Member {
    pub(crate) fn open(chance: &mut Chance, port: SocketAddr) -> io::Result<Self> {
        let mut wire = Wire::open(port)?;
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
                    let shm = transports.into_iter().find(|offer| offer.name == "shm");
                    inside = shm.map(|offer| offer.address);
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

    /// A lane of its session that is served.
    pub(crate) fn lane(&self, port: SocketAddr, lane: u32, epoch: u32) -> io::Result<Wire> {
        let mut wire = Wire::open(port)?;
        wire.say(&speech::greeting(Purpose::Lane))?;
        wire.say_frame(&Frame::JoinLane {
            session: self.session,
            lane,
            epoch,
        })?;
        match wire.answer()? {
            Frame::LaneReady { .. } => Ok(wire),
            _ => Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }
}
