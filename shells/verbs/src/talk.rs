//! The connection beside a queue pair: messages of one size, both ways.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use crate::wire::{BYTES, Message};

/// What may wait to be sent. A peer that asks and does not listen is not worth more.
const UNSENT_MAX: usize = 64 << 10;

/// One connection, non-blocking.
pub(crate) struct Talk {
    pub(crate) stream: TcpStream,
    unsent: Vec<u8>,
    received: [u8; BYTES],
    filled: usize,
}

impl Talk {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            unsent: Vec::new(),
            received: [0; BYTES],
            filled: 0,
        }
    }

    pub(crate) fn say(&mut self, message: &Message) -> io::Result<()> {
        self.send(&message.encode())
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.unsent.len() > UNSENT_MAX {
            return Err(io::Error::other("the peer asks and does not listen"));
        }
        self.unsent.extend_from_slice(bytes);
        self.flush()
    }

    /// Whether it waits for the socket to take more.
    pub(crate) fn is_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) => match error.kind() {
                    // Also what a socket says that is still connecting.
                    io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected => return Ok(()),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// The next message, if all of it has come.
    pub(crate) fn hear(&mut self) -> io::Result<Option<Message>> {
        if !self.fill(BYTES)? {
            return Ok(None);
        }
        self.filled = 0;
        let bad = |(field, value)| nonsense(format!("a message's {field} is {value}"));
        Message::decode(&self.received).map(Some).map_err(bad)
    }

    /// Some of the next bytes, no more than so many.
    pub(crate) fn hear_some(&mut self, most: usize) -> io::Result<Option<&[u8]>> {
        let most = most.min(BYTES);
        if !self.fill(most)? {
            return Ok(None);
        }
        self.filled = 0;
        Ok(self.received.get(..most))
    }

    /// The next so many bytes, if all have come.
    pub(crate) fn hear_bytes<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        if !self.fill(N)? {
            return Ok(None);
        }
        self.filled = 0;
        Ok(self.received.first_chunk().copied())
    }

    fn fill(&mut self, wanted: usize) -> io::Result<bool> {
        while self.filled < wanted {
            match self.stream.read(&mut self.received[self.filled..wanted]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(received) => self.filled += received,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected => return Ok(false),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(true)
    }
}

pub(crate) fn nonsense(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
