//! The floor of a crowd: as many bare connections, over which the same bytes go by the same turns, with nothing that a
//! program could do without.
//!
//! A message is its length and so many bytes, and is answered by one byte. One thread serves the target.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::process::{Resource, Rlimit};

use super::{BATCH, BLOCK, Initiator};
use crate::child;

const HEADER_BYTES: usize = 8;
const BYTES: usize = (BLOCK * BATCH) as usize;
/// What is received of one connection before it is the next one's turn, as the engine's target does.
const TURN_BYTES: usize = 512 << 10;

/// As lanes inside of a host are set.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let _ = socket2::SockRef::from(stream).set_tcp_congestion(b"reno");
    stream.set_nonblocking(true)
}

/// `None`: not now.
fn moved(answer: io::Result<usize>) -> io::Result<Option<usize>> {
    match answer {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// An inbound connection.
struct Inbound {
    stream: TcpStream,
    header: [u8; HEADER_BYTES],
    /// Of the header and what follows it.
    received: usize,
}

impl Inbound {
    /// Receives what there is, and answers what is whole.
    fn turn(&mut self, memory: &mut [u8]) -> io::Result<()> {
        let mut budget = TURN_BYTES;
        while budget > 0 {
            let is_header = self.received < HEADER_BYTES;
            let length = u64::from_le_bytes(self.header) as usize;
            let at = match is_header {
                true => &mut self.header[self.received..],
                false => memory
                    .get_mut(self.received - HEADER_BYTES..length)
                    .ok_or(ErrorKind::InvalidData)?,
            };
            let asked = at.len();
            let Some(bytes) = moved(self.stream.read(at))? else {
                return Ok(());
            };
            self.received += bytes;
            budget = budget.saturating_sub(bytes);
            if !is_header && bytes == asked {
                self.received = 0;
                self.stream.write_all(&[0])?;
            } else if bytes < asked {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Lets this process have as many descriptors as it may.
fn raise_limit() -> io::Result<()> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        ..limit
    };
    Ok(rustix::process::setrlimit(Resource::Nofile, most)?)
}

/// Takes bytes until the input ends.
pub(crate) fn serve() -> io::Result<()> {
    raise_limit()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let token = EventData::new_u64(u64::MAX);
    epoll::add(&epoll, &listener, token, EventFlags::IN)?;
    std::thread::spawn(move || -> io::Result<()> {
        let mut memory = vec![1; BYTES];
        let mut all: Vec<Option<Inbound>> = Vec::new();
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 64];
        loop {
            let (ready, _) = epoll::wait(&epoll, &mut events, None)?;
            for event in ready {
                let number = event.data.u64();
                let Some(place) = all.get_mut(number as usize) else {
                    while let Ok((stream, _)) = listener.accept() {
                        prepare(&stream)?;
                        let token = EventData::new_u64(all.len() as u64);
                        epoll::add(&epoll, &stream, token, EventFlags::IN)?;
                        all.push(Some(Inbound {
                            stream,
                            header: [0; HEADER_BYTES],
                            received: 0,
                        }));
                    }
                    continue;
                };
                let ended = place.as_mut().map(|inbound| inbound.turn(&mut memory));
                if ended.is_some_and(|ended| ended.is_err()) {
                    *place = None;
                }
            }
        }
    });
    child::say_address(address)?;
    child::wait_for_end()
}

/// One initiator: connections, of which each thread has its share.
pub(crate) struct Bare {
    connections: Vec<Mutex<TcpStream>>,
    memory: Vec<u8>,
    next: AtomicUsize,
}

impl Bare {
    pub(crate) fn new(target: &str, rails: u8, batches: usize) -> io::Result<Self> {
        raise_limit()?;
        let connect = |_| {
            let stream = TcpStream::connect(target)?;
            prepare(&stream)?;
            Ok(Mutex::new(stream))
        };
        Ok(Self {
            connections: (0..rails).map(connect).collect::<io::Result<_>>()?,
            memory: vec![1; BYTES * batches],
            next: AtomicUsize::new(0),
        })
    }
}

impl Initiator for Bare {
    fn batches(&self) -> usize {
        self.memory.len() / BYTES
    }

    fn once(&self, thread: usize, threads: usize) -> io::Result<u64> {
        let place = self.next.fetch_add(1, Ordering::Relaxed) % self.batches();
        let memory = &self.memory[place * BYTES..][..BYTES];
        let mine = self.connections.iter().skip(thread).step_by(threads);
        let mut mine: Vec<_> = mine
            .map(|connection| connection.lock().unwrap_or_else(|e| e.into_inner()))
            .collect();
        let each = BYTES / mine.len().max(1);
        let header = (each as u64).to_le_bytes();
        // Bytes that are out, and whether the answer has come.
        let mut state = vec![(0, false); mine.len()];
        loop {
            let mut waits = Vec::new();
            let mut any = false;
            for (index, (stream, (sent, done))) in mine.iter_mut().zip(&mut state).enumerate() {
                let part = &memory[index * each..][..each];
                while *sent < HEADER_BYTES + each {
                    let first = &header[(*sent).min(HEADER_BYTES)..];
                    let rest = &part[sent.saturating_sub(HEADER_BYTES)..];
                    let parts = [IoSlice::new(first), IoSlice::new(rest)];
                    match moved(stream.write_vectored(&parts))? {
                        Some(bytes) => *sent += bytes,
                        None => break,
                    }
                    any = true;
                }
                let is_out = *sent == HEADER_BYTES + each;
                if is_out && !*done && moved(stream.read(&mut [0]))?.is_some() {
                    *done = true;
                    any = true;
                }
                if !*done {
                    waits.push(libc::pollfd {
                        fd: stream.as_raw_fd(),
                        events: if is_out { libc::POLLIN } else { libc::POLLOUT },
                        revents: 0,
                    });
                }
            }
            if waits.is_empty() {
                return Ok((each * mine.len()) as u64);
            }
            if !any {
                // SAFETY: the entries are exclusively ours and as many as said; the descriptors are open.
                let answer = unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as _, -1) };
                if answer < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
        }
    }
}
