//! What sockets carry by themselves: one connection for each rail, blocking, all of a batch asked for ahead, and each
//! connection's part of it chosen by somebody who knows the links.

use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;

use crate::load::{Load, MEMORY_BYTES};

/// One byte that is 1 for reads, and the length of the block as four.
const HEADER_BYTES: usize = 8;
const ANSWER_BYTES: usize = 8;

/// What a connection's part of a batch is a multiple of.
const GRAIN_BYTES: u64 = 4096;

/// Takes and gives blocks, over any number of connections, as long as this process lives.
pub(crate) fn serve(address: IpAddr) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((address, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A connection ends when its initiator does.
            thread::spawn(move || serve_one(stream));
        }
    });
    Ok(address)
}

fn serve_one(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut memory = vec![1; MEMORY_BYTES as usize];
    let mut offset = 0;
    loop {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header)?;
        let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        if offset + length > memory.len() {
            offset = 0;
        }
        let block = &mut memory[offset..offset + length];
        offset += length;
        if header[0] == 1 {
            stream.write_all(block)?;
        } else {
            stream.read_exact(block)?;
            stream.write_all(&[0; ANSWER_BYTES])?;
        }
    }
}

/// A link as the one who splits batches knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) target: SocketAddr,
    /// In any unit.
    pub(crate) rate: f64,
    /// In seconds, times that unit gives bytes.
    pub(crate) round_trip: f64,
}

/// The initiator's connections.
pub(crate) struct Sockets {
    routes: Vec<Route>,
    /// Made by the first batch, as an engine's lanes are.
    streams: Vec<TcpStream>,
    memory: Vec<u8>,
}

impl Sockets {
    pub(crate) fn new(routes: Vec<Route>) -> Self {
        Self {
            routes,
            streams: Vec::new(),
            memory: vec![1; MEMORY_BYTES as usize],
        }
    }

    /// Moves one batch.
    pub(crate) fn carry(&mut self, load: Load) -> io::Result<()> {
        if self.streams.is_empty() {
            self.streams = thread::scope(|scope| {
                let connects = |route: &Route| {
                    let target = route.target;
                    scope.spawn(move || connect(target))
                };
                let threads: Vec<_> = self.routes.iter().map(connects).collect();
                let joined = threads.into_iter().map(|thread| thread.join());
                joined
                    .map(|done| done.unwrap_or(Err(io::ErrorKind::Other.into())))
                    .collect::<io::Result<_>>()
            })?;
        }
        let parts = split(&self.routes, load.bytes());
        if let ([stream], [part]) = (&mut self.streams[..], &parts[..]) {
            return exchange(stream, load, &mut self.memory[..*part as usize]);
        }
        let mut rest = &mut self.memory[..];
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for (stream, part) in self.streams.iter_mut().zip(&parts) {
                let (mine, others) = std::mem::take(&mut rest).split_at_mut(*part as usize);
                rest = others;
                threads.push(scope.spawn(move || exchange(stream, load, mine)));
            }
            let mut joined = threads.into_iter().map(|thread| thread.join());
            joined.try_for_each(|done| done.unwrap_or(Err(io::ErrorKind::Other.into())))
        })
    }
}

fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(target)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Moves one connection's part.
fn exchange(stream: &mut TcpStream, load: Load, memory: &mut [u8]) -> io::Result<()> {
    let blocks = memory.chunks(load.block as usize).len();
    for block in memory.chunks(load.block as usize) {
        let mut header = [0; HEADER_BYTES];
        header[0] = load.is_read.into();
        header[4..].copy_from_slice(&(block.len() as u32).to_le_bytes());
        if load.is_read {
            stream.write_all(&header)?;
            continue;
        }
        let sent = stream.write_vectored(&[IoSlice::new(&header), IoSlice::new(block)])?;
        stream.write_all(&header[sent.min(HEADER_BYTES)..])?;
        stream.write_all(&block[sent.saturating_sub(HEADER_BYTES)..])?;
    }
    if load.is_read {
        return stream.read_exact(memory);
    }
    stream.read_exact(&mut vec![0; ANSWER_BYTES * blocks])
}

/// How many bytes go over each route so that all end together.
fn split(routes: &[Route], bytes: u64) -> Vec<u64> {
    let within = |time: f64| {
        routes
            .iter()
            .map(move |route| route.rate * (time - route.round_trip).max(0.0))
    };
    let (mut low, mut high) = (0.0, 1e6);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if within(middle).sum::<f64>() < bytes as f64 {
            low = middle;
        } else {
            high = middle;
        }
    }
    let mut parts: Vec<u64> = within(high)
        .map(|part| (part as u64) / GRAIN_BYTES * GRAIN_BYTES)
        .collect();
    let mut left = bytes.saturating_sub(parts.iter().sum());
    // What rounding left over goes to the route with the most.
    if let Some(most) = parts.iter_mut().max() {
        *most += std::mem::take(&mut left);
    }
    parts
}
