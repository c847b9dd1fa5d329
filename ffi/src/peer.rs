//! Peers: who is there, and what happens to them.

use std::ffi::{c_char, c_int};
use std::os::fd::AsRawFd;

use polyrail::{PeerEvent, PeerState, PeerStatus, ReceiveError};

use crate::engine::{self, polyrail_engine};
use crate::failure::{Failure, guard, polyrail_error, write};
use crate::notification::{POLYRAIL_NAME_BYTES, not_received};
use crate::sized::{self, Structure};
use crate::stats::POLYRAIL_LABEL_BYTES;
use crate::text;
use crate::words::*;

/// There is a session with it. It may be silent all the same.
pub const POLYRAIL_PEER_PRESENT: u32 = 0;
/// It is about to end: nothing more begins with it.
pub const POLYRAIL_PEER_LEAVING: u32 = 1;
/// It was lost, and nobody has answered at its address since.
pub const POLYRAIL_PEER_LOST: u32 = 2;

/// It is lost, and its segments with it. One that is only silent is not lost.
pub const POLYRAIL_EVENT_LOST: u32 = 0;
/// It was lost, and the same process is there again.
pub const POLYRAIL_EVENT_BACK: u32 = 1;
/// Another process is there in its place.
pub const POLYRAIL_EVENT_CHANGED: u32 = 2;
/// Events were dropped here, because the program had not taken those before.
pub const POLYRAIL_EVENT_MISSED: u32 = 3;

/// A peer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_peer {
    /// `sizeof(polyrail_peer)`.
    pub size: u32,
    /// `POLYRAIL_PEER_PRESENT`, `_LEAVING` or `_LOST`.
    pub state: u32,
    /// Tells processes at one address apart.
    pub incarnation: u64,
    /// `HOST:PORT` where this engine first reached it.
    pub address: [c_char; POLYRAIL_LABEL_BYTES],
    /// What its engine calls itself. Its own word, not proof of who it is.
    pub name: [c_char; POLYRAIL_NAME_BYTES],
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_peer {
    const DEFAULT: Self = Self {
        size: 0,
        state: POLYRAIL_PEER_PRESENT,
        incarnation: 0,
        address: [0; POLYRAIL_LABEL_BYTES],
        name: [0; POLYRAIL_NAME_BYTES],
    };
}

/// Something has happened to a peer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_peer_event {
    /// `sizeof(polyrail_peer_event)`.
    pub size: u32,
    /// One of `POLYRAIL_EVENT_…`.
    pub kind: u32,
    /// How many events were dropped; 0 unless `kind` says so. Nothing else is said then.
    pub missed: u64,
    /// Tells processes at one address apart.
    pub incarnation: u64,
    /// `HOST:PORT` where this engine first reached it.
    pub address: [c_char; POLYRAIL_LABEL_BYTES],
    /// What its engine calls itself.
    pub name: [c_char; POLYRAIL_NAME_BYTES],
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_peer_event {
    const DEFAULT: Self = Self {
        size: 0,
        kind: POLYRAIL_EVENT_LOST,
        missed: 0,
        incarnation: 0,
        address: [0; POLYRAIL_LABEL_BYTES],
        name: [0; POLYRAIL_NAME_BYTES],
    };
}

fn row(peer: &PeerStatus) -> polyrail_peer {
    let mut row = polyrail_peer {
        state: match peer.state {
            PeerState::Present => POLYRAIL_PEER_PRESENT,
            PeerState::Leaving => POLYRAIL_PEER_LEAVING,
            _ => POLYRAIL_PEER_LOST,
        },
        incarnation: peer.incarnation,
        ..polyrail_peer::DEFAULT
    };
    write(&mut row.address, &peer.address.to_string());
    write(&mut row.name, &peer.name);
    row
}

/// An event; `None`: it is of a kind that this interface does not know.
fn told(event: &PeerEvent) -> Option<polyrail_peer_event> {
    let (kind, peer) = match event {
        PeerEvent::Lost(peer) => (POLYRAIL_EVENT_LOST, peer),
        PeerEvent::Back(peer) => (POLYRAIL_EVENT_BACK, peer),
        PeerEvent::Changed(peer) => (POLYRAIL_EVENT_CHANGED, peer),
        PeerEvent::Missed(missed) => {
            return Some(polyrail_peer_event {
                kind: POLYRAIL_EVENT_MISSED,
                missed: *missed,
                ..polyrail_peer_event::DEFAULT
            });
        }
        _ => return None,
    };
    let polyrail_peer {
        incarnation,
        address,
        name,
        ..
    } = row(peer);
    Some(polyrail_peer_event {
        kind,
        incarnation,
        address,
        name,
        ..polyrail_peer_event::DEFAULT
    })
}

/// The peers whose segments this engine has opened, and up to 256 that were lost and have not come back. Fills rows like
/// `polyrail_engine_rails`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_peers(
    engine: polyrail_engine,
    rows: *mut polyrail_peer,
    capacity: usize,
    count: *mut usize,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let peers = engine::get(engine)?.peers();
        // SAFETY: the contract of the crate.
        unsafe { sized::write_all(rows, capacity, count, peers.iter().map(row)) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Takes what has happened to a peer, and waits so long for it; 0: it only looks. `POLYRAIL_ERROR_EMPTY`: nothing has. 1,024
/// events wait; what comes while they do is counted, and told as `POLYRAIL_EVENT_MISSED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peer_event_take(
    engine: polyrail_engine,
    timeout_ns: u64,
    event: *mut polyrail_peer_event,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let events = engine::get(engine)?.peer_events();
        // SAFETY: the contract of the crate. Before anything is taken, which would be lost.
        unsafe { sized::write(event, polyrail_peer_event::DEFAULT) }?;
        let taken = match timeout_ns {
            0 => events.poll().ok_or(ReceiveError::TimedOut {
                after: text::span(0),
            }),
            nanos => events.wait(text::span(nanos)),
        };
        let taken = taken.map_err(|error| not_received(&error, POLYRAIL_ERROR_EMPTY))?;
        let unknown = || Failure::new(POLYRAIL_ERROR_EMPTY, "no event that this library knows");
        // SAFETY: the contract of the crate.
        unsafe { sized::write(event, told(&taken).ok_or_else(unknown)?) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// A descriptor that polls readable exactly while an event of a peer waits to be taken. Only to be looked at, and only until
/// the engine is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_peer_event_descriptor(
    engine: polyrail_engine,
    descriptor: *mut c_int,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        // SAFETY: the contract of the crate.
        let descriptor = unsafe { text::out("descriptor", descriptor) }?;
        *descriptor = engine::get(engine)?.peer_events().as_raw_fd();
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}
