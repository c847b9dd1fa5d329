//! A lane on its way: connect, greet, join, prove, wait for the answer.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use polyrail_control::codec::{Decoder, Frame, Purpose};
use polyrail_control::security::Joining;
use polyrail_core::time::Instant;
use polyrail_core::units::{Epoch, LaneId};
use polyrail_core::work::LaneLimits;
use polyrail_transport::RailAddress;
use rustix::event::epoll::EventFlags;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::{ktls, tune};

/// A connection that is not a lane yet.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    /// When to give up.
    pub(crate) by: Instant,
    joining: Joining,
    /// What is to be said before the lane is open, and how much of it the socket took.
    hello: Vec<u8>,
    sent: usize,
    decoder: Decoder,
    greeted: bool,
    /// Whether what the socket takes is encrypted.
    pub(crate) encrypted: bool,
}

impl Opening {
    /// Starts to connect, to a transport of this name.
    pub(crate) fn start(
        transport: &str,
        address: &RailAddress,
        lane: LaneId,
        epoch: Epoch,
        by: Instant,
    ) -> io::Result<Self> {
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(
            Domain::for_address(address.remote),
            kind,
            Some(Protocol::TCP),
        )?;
        tune::prepare(SockRef::from(&socket), address.remote.ip())?;
        if let Some(local) = address.local {
            socket.bind(&SocketAddr::new(local, 0).into())?;
        }
        match socket.connect(&address.remote.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
            _ => {}
        }
        let (joining, hello) = Joining::start(transport, address, lane, epoch)?;
        Ok(Self {
            stream: socket.into(),
            peer: address.remote,
            by,
            joining,
            hello,
            sent: 0,
            decoder: Decoder::default(),
            greeted: false,
            encrypted: false,
        })
    }

    /// What to wait for.
    pub(crate) fn interest(&self) -> EventFlags {
        if self.sent < self.hello.len() {
            EventFlags::IN | EventFlags::OUT
        } else {
            EventFlags::IN
        }
    }

    /// Goes on as far as the socket lets it. `None`: not there yet.
    pub(crate) fn advance(&mut self) -> io::Result<Option<LaneLimits>> {
        let mut bytes = [0; 256];
        loop {
            while self.sent < self.hello.len() {
                match (&self.stream).write(&self.hello[self.sent..]) {
                    Ok(sent) => self.sent += sent,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
            let wants = self.joining.wants();
            if let Some(keys) = self.joining.take_keys() {
                ktls::encrypt(&self.stream, keys.of_initiator(), keys.of_target())?;
                self.encrypted = true;
            }
            let room = match wants {
                0 => &mut bytes[..],
                wants => &mut bytes[..wants.min(256)],
            };
            if wants == 0
                && let Some(limits) = self.understand()?
            {
                return Ok(Some(limits));
            }
            match (&self.stream).read(room) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(received) if wants == 0 => self.decoder.push(&bytes[..received]),
                Ok(received) => self.hello.extend(self.joining.handle(&bytes[..received])?),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn understand(&mut self) -> io::Result<Option<LaneLimits>> {
        if !self.greeted {
            let Some(greeting) = self.decoder.next_greeting().map_err(nonsense)? else {
                return Ok(None);
            };
            greeting.check_version().map_err(nonsense)?;
            if greeting.purpose != Purpose::Lane {
                return Err(nonsense("it answered for another purpose"));
            }
            self.greeted = true;
        }
        match self.decoder.next_frame().map_err(nonsense)? {
            None => Ok(None),
            Some(Frame::LaneReady {
                works_max: works_max @ 1..,
                work_bytes_max: work_bytes_max @ 1..,
            }) if self.decoder.pending_bytes() == 0 => Ok(Some(LaneLimits {
                counts: true,
                ..LaneLimits::new(works_max.min(crate::WORKS_MAX), work_bytes_max)
            })),
            Some(Frame::Refused { reason, text }) => {
                Err(nonsense(format!("refused: {reason:?}, {text:?}")))
            }
            Some(_) => Err(nonsense("its answer is not one to a join")),
        }
    }
}

fn nonsense(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
