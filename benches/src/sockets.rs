//! The floor: put and get over bare TCP sockets, with nothing that a program could do without.
//!
//! A request is a header of [`HEADER_BYTES`], followed by the bytes if it puts. Puts are answered by one byte
//! for all of a connection's blocks together, gets by the bytes. One thread at either end; it waits in
//! `recv` or `poll`, or spins. A batch's blocks go over the connections by turns; a lone large block is cut
//! into equal pieces.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use crate::cell::{Cell, Op};
use crate::child::Child;
use crate::measure::Initiator;
use crate::memory::Buffer;

const HEADER_BYTES: usize = 24;

/// A lone block from here on is cut into a piece for each connection.
const CUT_FROM: usize = 1 << 20;

/// How both ends do it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::Args)]
pub(crate) struct Style {
    /// Never sleep.
    #[arg(long)]
    pub(crate) spin: bool,
    /// Connections.
    #[arg(long, default_value_t = 1)]
    pub(crate) connections: usize,
    /// The kernel encrypts, by keys that both ends know already.
    #[arg(long)]
    pub(crate) encrypt: bool,
}

/// An end of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Initiator,
    Target,
}

impl Style {
    /// Plain blocking calls do: nothing else can become ready meanwhile.
    fn blocks(self) -> bool {
        !self.spin && self.connections == 1
    }

    /// As lanes inside of a host are set: without pacing, if the kernel lets us choose.
    fn prepare(self, stream: &TcpStream, end: End) -> io::Result<()> {
        stream.set_nodelay(true)?;
        if self.encrypt {
            let [there, back] = [1, 2].map(|number| ([number; 16], [number; 12]));
            let (ours, theirs) = match end {
                End::Initiator => (&there, &back),
                End::Target => (&back, &there),
            };
            polyrail_tcp::ktls::encrypt(stream, (&ours.0, &ours.1), (&theirs.0, &theirs.1))?;
        }
        let _ = socket2::SockRef::from(stream).set_tcp_congestion(b"reno");
        stream.set_nonblocking(!self.blocks())
    }
}

/// Bytes of the memory, and whether they are the last ones of a connection's batch.
#[derive(Clone, Copy)]
struct Piece {
    op: Op,
    offset: usize,
    length: usize,
    last: bool,
}

impl Piece {
    fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&(self.offset as u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&(self.length as u64).to_le_bytes());
        bytes[16] = u8::from(self.op == Op::Read);
        bytes[20] = u8::from(self.last);
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        let number = |at: usize| {
            let bytes = bytes[at..].first_chunk().expect("24 bytes");
            u64::from_le_bytes(*bytes) as usize
        };
        Self {
            op: if bytes[16] == 0 { Op::Write } else { Op::Read },
            offset: number(0),
            length: number(8),
            last: bytes[20] != 0,
        }
    }
}

/// One end of a connection: what is to be sent and received, in order.
struct Connection {
    stream: TcpStream,
    outgoing: VecDeque<Outgoing>,
    /// Of the first outgoing one.
    sent: usize,
    header: [u8; HEADER_BYTES],
    incoming: Option<Piece>,
    /// Of the header, or of what is incoming.
    received: usize,
    /// What the initiator waits for, before its batch is done.
    expected: VecDeque<Piece>,
}

/// Something to send: so many bytes of the header, then bytes of the memory.
struct Outgoing {
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    offset: usize,
    length: usize,
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            outgoing: VecDeque::new(),
            sent: 0,
            header: [0; HEADER_BYTES],
            incoming: None,
            received: 0,
            expected: VecDeque::new(),
        }
    }

    /// Sends as much as the socket takes. Whether that was anything.
    fn send(&mut self, memory: &mut Buffer) -> io::Result<bool> {
        let mut moved = false;
        while let Some(first) = self.outgoing.front() {
            let payload = memory
                .range(first.offset, first.length)
                .ok_or(ErrorKind::InvalidData)?;
            let header = &first.header[..first.header_bytes];
            let total = header.len() + payload.len();
            let answer = if self.sent < header.len() {
                let parts = [IoSlice::new(&header[self.sent..]), IoSlice::new(payload)];
                self.stream.write_vectored(&parts)
            } else {
                self.stream.write(&payload[self.sent - header.len()..])
            };
            match answer {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(moved),
                Err(error) => return Err(error),
            }
            moved = true;
            if self.sent == total {
                self.outgoing.pop_front();
                self.sent = 0;
            }
        }
        Ok(moved)
    }

    /// Receives into `at`, after what was `received`. `true`: it is full.
    fn fill(stream: &mut TcpStream, at: &mut [u8], received: &mut usize) -> io::Result<bool> {
        match stream.read(&mut at[*received..])? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            bytes => {
                *received += bytes;
                Ok(*received == at.len())
            }
        }
    }

    /// The initiator: receives what is expected.
    fn receive_answers(&mut self, memory: &mut Buffer) -> io::Result<bool> {
        let mut moved = false;
        while let Some(first) = self.expected.front() {
            let mut byte = [0; 1];
            let at = match first.op {
                Op::Write => &mut byte[..],
                Op::Read => memory
                    .range(first.offset, first.length)
                    .ok_or(ErrorKind::InvalidData)?,
            };
            match Self::fill(&mut self.stream, at, &mut self.received) {
                Ok(true) => {
                    self.expected.pop_front();
                    self.received = 0;
                }
                Ok(false) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(moved),
                Err(error) => return Err(error),
            }
            moved = true;
        }
        Ok(moved)
    }

    /// The target: receives requests, and queues their answers.
    fn receive_requests(&mut self, memory: &mut Buffer) -> io::Result<bool> {
        let mut moved = false;
        loop {
            let at = match self.incoming {
                None => &mut self.header[..],
                Some(piece) => memory
                    .range(piece.offset, piece.length)
                    .ok_or(ErrorKind::InvalidData)?,
            };
            match Self::fill(&mut self.stream, at, &mut self.received) {
                Ok(full) => {
                    moved = true;
                    if full {
                        self.received = 0;
                        self.handle_whole();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(moved),
                Err(error) => return Err(error),
            }
        }
    }

    /// A header or a payload is there.
    fn handle_whole(&mut self) {
        let answer = |header_bytes, offset, length| Outgoing {
            header: [0; HEADER_BYTES],
            header_bytes,
            offset,
            length,
        };
        match self.incoming.take() {
            Some(piece) if piece.last => self.outgoing.push_back(answer(1, 0, 0)),
            Some(_) => {}
            None => {
                let piece = Piece::decode(&self.header);
                match piece.op {
                    Op::Write => self.incoming = Some(piece),
                    Op::Read => {
                        let answer = answer(0, piece.offset, piece.length);
                        self.outgoing.push_back(answer);
                    }
                }
            }
        }
    }
}

/// Serves the memory to whoever connects, until they hang up.
pub(crate) fn serve(style: Style) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    crate::child::say_address(listener.local_addr()?)?;
    let mut memory = Buffer::new(2)?;
    let mut connections = Vec::new();
    for _ in 0..style.connections {
        let (stream, _) = listener.accept()?;
        style.prepare(&stream, End::Target)?;
        connections.push(Connection::new(stream));
    }
    let ended = if style.blocks() {
        serve_blocking(&mut connections[0], &mut memory)
    } else {
        serve_many(style, &mut connections, &mut memory)
    };
    match ended {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(()),
        ended => ended,
    }
}

fn serve_blocking(connection: &mut Connection, memory: &mut Buffer) -> io::Result<()> {
    let stream = &mut connection.stream;
    loop {
        stream.read_exact(&mut connection.header)?;
        let piece = Piece::decode(&connection.header);
        let range = memory.range(piece.offset, piece.length);
        let range = range.ok_or(ErrorKind::InvalidData)?;
        match piece.op {
            Op::Read => stream.write_all(range)?,
            Op::Write => {
                stream.read_exact(range)?;
                if piece.last {
                    stream.write_all(&[0])?;
                }
            }
        }
    }
}

fn serve_many(style: Style, connections: &mut [Connection], memory: &mut Buffer) -> io::Result<()> {
    loop {
        let mut moved = false;
        for connection in &mut *connections {
            moved |= connection.receive_requests(memory)?;
            moved |= connection.send(memory)?;
        }
        if !moved {
            pause(style, connections, true)?;
        }
    }
}

/// Waits until a connection may move something.
fn pause(style: Style, connections: &[Connection], all: bool) -> io::Result<()> {
    if style.spin {
        std::hint::spin_loop();
        return Ok(());
    }
    let mut waits: Vec<libc::pollfd> = Vec::with_capacity(connections.len());
    for connection in connections {
        let mut events = 0;
        if all || !connection.expected.is_empty() {
            events |= libc::POLLIN;
        }
        if !connection.outgoing.is_empty() {
            events |= libc::POLLOUT;
        }
        waits.push(libc::pollfd {
            fd: connection.stream.as_raw_fd(),
            events,
            revents: 0,
        });
    }
    // SAFETY: the entries are exclusively ours and as many as said; the descriptors are open.
    let answer = unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as _, -1) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The initiator of the floor, with its target.
pub(crate) struct Sockets {
    style: Style,
    memory: Buffer,
    connections: Vec<Connection>,
    target: Child,
}

impl Sockets {
    /// Starts a target and connects to it.
    pub(crate) fn start(style: Style) -> io::Result<Self> {
        let mut words = vec!["target".into(), "sockets".into()];
        words.push(format!("--connections={}", style.connections));
        if style.spin {
            words.push("--spin".into());
        }
        if style.encrypt {
            words.push("--encrypt".into());
        }
        let target = Child::start(&words)?;
        let mut connections = Vec::new();
        for _ in 0..style.connections {
            let stream = TcpStream::connect(&target.address)?;
            style.prepare(&stream, End::Initiator)?;
            connections.push(Connection::new(stream));
        }
        Ok(Self {
            style,
            memory: Buffer::new(1)?,
            connections,
            target,
        })
    }

    /// The pieces of a batch, and the connection that each goes over.
    fn pieces(&self, cell: Cell) -> impl Iterator<Item = (usize, Piece)> + use<> {
        let connections = self.style.connections;
        let cut = cell.batch == 1 && cell.block >= CUT_FROM;
        let (pieces, length) = if cut {
            (connections, cell.block / connections)
        } else {
            (cell.batch, cell.block)
        };
        (0..pieces).map(move |index| {
            let offset = if cut {
                index * length
            } else {
                cell.offset(index)
            };
            let piece = Piece {
                op: cell.op,
                offset,
                length,
                last: index + connections >= pieces,
            };
            (index % connections, piece)
        })
    }

    fn once_blocking(&mut self, cell: Cell) -> io::Result<()> {
        let pieces = self.pieces(cell);
        let again = self.pieces(cell);
        let stream = &mut self.connections[0].stream;
        for (_, piece) in pieces {
            let header = piece.encode();
            if piece.op == Op::Read {
                stream.write_all(&header)?;
                continue;
            }
            let range = self.memory.range(piece.offset, piece.length);
            let range = range.ok_or(ErrorKind::InvalidData)?;
            let sent = stream.write_vectored(&[IoSlice::new(&header), IoSlice::new(range)])?;
            let rest = sent.checked_sub(header.len()).ok_or(ErrorKind::WriteZero)?;
            stream.write_all(&range[rest..])?;
        }
        if cell.op == Op::Write {
            return stream.read_exact(&mut [0]);
        }
        for (_, piece) in again {
            let range = self.memory.range(piece.offset, piece.length);
            stream.read_exact(range.ok_or(ErrorKind::InvalidData)?)?;
        }
        Ok(())
    }
}

impl Initiator for Sockets {
    fn once(&mut self, cell: Cell) -> io::Result<()> {
        if self.style.blocks() {
            return self.once_blocking(cell);
        }
        for (number, piece) in self.pieces(cell) {
            let connection = &mut self.connections[number];
            let (offset, length) = match piece.op {
                Op::Write => (piece.offset, piece.length),
                Op::Read => (0, 0),
            };
            connection.outgoing.push_back(Outgoing {
                header: piece.encode(),
                header_bytes: HEADER_BYTES,
                offset,
                length,
            });
            if piece.op == Op::Read || piece.last {
                connection.expected.push_back(piece);
            }
        }
        loop {
            let mut moved = false;
            let mut open = false;
            for connection in &mut self.connections {
                moved |= connection.send(&mut self.memory)?;
                moved |= connection.receive_answers(&mut self.memory)?;
                open |= !connection.expected.is_empty();
            }
            if !open {
                return Ok(());
            }
            if !moved {
                pause(self.style, &self.connections, false)?;
            }
        }
    }

    fn target_pid(&self) -> u32 {
        self.target.pid()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_are_written() {
        for (op, last) in [(Op::Write, true), (Op::Read, false)] {
            let piece = Piece {
                op,
                offset: 5 << 33,
                length: 77,
                last,
            };
            let read = Piece::decode(&piece.encode());
            assert_eq!(
                (read.op, read.offset, read.length, read.last),
                (op, 5 << 33, 77, last)
            );
        }
    }
}
