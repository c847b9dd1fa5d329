//! What every transport promises, tried out: two ends of it in this process, and one promise after the other.
//!
//! The promises are those of [`Transport`] and [`Endpoint`](polyrail_transport::Endpoint); [`PROMISES`] lists them, and
//! our own transports are held to them by `tests/own.rs`. `polyrail check-transport` does the same for a library. A
//! transport that keeps them all can still be wrong: here nothing fails by itself, and nobody pulls a cable.

mod driven;
mod fences;
mod memory;
mod requests;
mod world;

pub use driven::Driven;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use polyrail_transport::Transport;
use polyrail_transport::memory::{Access, Region, RegionTable};

/// Makes the transport, over the memory that peers may touch. Called for both ends of each promise.
pub type Make = Arc<dyn Fn(Arc<dyn RegionTable>) -> io::Result<Arc<dyn Transport>> + Send + Sync>;

/// Makes memory for the target's end: so many bytes, for peers that may do so much.
pub type Memory = Arc<dyn Fn(u64, Access) -> io::Result<Region> + Send + Sync>;

/// A transport that is held to its promises.
#[derive(Clone)]
pub struct Subject {
    make: Make,
    memory: Memory,
    /// Of one that reaches what is this process's own, and no peer: how it is told where its rail leads.
    own_rail: Option<Vec<u8>>,
}

impl Subject {
    /// One that moves bytes between memories of hosts.
    pub fn new(make: Make) -> Self {
        Self::over(make, Arc::new(Region::allocate))
    }

    /// One whose target has such memory.
    pub fn over(make: Make, memory: Memory) -> Self {
        Self {
            make,
            memory,
            own_rail: None,
        }
    }

    /// It has no peers: both ends are one, and its rail leads to what `rail` says.
    pub fn without_peers(self, rail: Vec<u8>) -> Self {
        Self {
            own_rail: Some(rail),
            ..self
        }
    }

    fn has_peers(&self) -> bool {
        self.own_rail.is_none()
    }

    /// The promises that it makes, the simplest first.
    pub fn promises(&self) -> impl Iterator<Item = &'static Promise> {
        let has_peers = self.has_peers();
        PROMISES
            .iter()
            .filter(move |promise| has_peers || !promise.to_peers)
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Subject")
    }
}

/// How long one promise may take before it counts as broken.
const PATIENCE: Duration = Duration::from_secs(30);

/// One promise.
#[derive(Clone, Copy)]
pub struct Promise {
    /// A word for it.
    pub name: &'static str,
    /// What is promised.
    pub text: &'static str,
    /// It is made to peers: a transport that has none cannot break it.
    to_peers: bool,
    /// Tries it. `Err`: how it was broken.
    try_out: fn(&Subject) -> Result<(), String>,
}

impl fmt::Debug for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Promise({})", self.name)
    }
}

/// All promises, the simplest first.
pub const PROMISES: &[Promise] = &[
    Promise {
        name: "words",
        text: "it has a name, an address that can be told, and moves bytes between memories of hosts",
        to_peers: false,
        try_out: requests::words,
    },
    Promise {
        name: "opens",
        text: "a lane of a session that was let in opens, with limits that let something through",
        to_peers: false,
        try_out: requests::opens,
    },
    Promise {
        name: "strangers",
        text: "a lane of a session that nobody let in does not open",
        to_peers: true,
        try_out: requests::strangers,
    },
    Promise {
        name: "tickets",
        text: "where a session has a secret, lanes that prove themselves with it come in and no others, and whoever does not \
               know it is not taken for the target",
        to_peers: true,
        try_out: requests::tickets,
    },
    Promise {
        name: "writes",
        text: "a write moves its bytes, and no others, and completes under its cookie",
        to_peers: false,
        try_out: requests::writes,
    },
    Promise {
        name: "reads",
        text: "a read moves its bytes, and no others, and completes under its cookie",
        to_peers: false,
        try_out: requests::reads,
    },
    Promise {
        name: "at-once",
        text: "what it says it has carried out at once is there, is nothing else, and has no completion",
        to_peers: false,
        try_out: requests::at_once,
    },
    Promise {
        name: "largest",
        text: "a work of as many bytes as the lane's limits allow goes through",
        to_peers: false,
        try_out: requests::largest,
    },
    Promise {
        name: "once",
        text: "more works than a lane holds all go through, each completes once",
        to_peers: false,
        try_out: requests::once,
    },
    Promise {
        name: "order",
        text: "works of a lane are carried out in the order in which they were posted",
        to_peers: false,
        try_out: requests::order,
    },
    Promise {
        name: "descriptor",
        text: "who sleeps on the descriptor until it is readable, or the timeout is over, misses nothing",
        to_peers: false,
        try_out: requests::descriptor,
    },
    Promise {
        name: "epochs",
        text: "works of another epoch than the lane has are refused",
        to_peers: false,
        try_out: requests::epochs,
    },
    Promise {
        name: "remote-range",
        text: "a work that leaves the peer's segment fails, and moves nothing",
        to_peers: false,
        try_out: memory::remote_range,
    },
    Promise {
        name: "local-range",
        text: "a work that leaves the local segment, or names none, fails, and moves nothing",
        to_peers: false,
        try_out: memory::local_range,
    },
    Promise {
        name: "access",
        text: "the owner's word about what peers may do is kept, for each work",
        to_peers: true,
        try_out: memory::access,
    },
    Promise {
        name: "keys",
        text: "a key that opens nothing opens nothing",
        to_peers: false,
        try_out: memory::keys,
    },
    Promise {
        name: "revoked",
        text: "memory that its owner has taken back is not touched any more",
        to_peers: false,
        try_out: memory::revoked,
    },
    Promise {
        name: "local-fence",
        text: "after a local fence nothing touches the initiator's memory, and it is answered again if it is asked for again",
        to_peers: false,
        try_out: fences::local,
    },
    Promise {
        name: "remote-fence",
        text: "after the target's answer to a fence no byte of that epoch lands, and what it says was delivered was",
        to_peers: true,
        try_out: fences::remote,
    },
    Promise {
        name: "fenced-lanes",
        text: "a fenced epoch does not open again, a newer one does",
        to_peers: true,
        try_out: fences::reopening,
    },
    Promise {
        name: "neighbours",
        text: "a fence of one lane does not disturb another",
        to_peers: false,
        try_out: fences::neighbours,
    },
    Promise {
        name: "closing",
        text: "a lane that was closed says nothing about it, and opens again with a newer epoch",
        to_peers: false,
        try_out: fences::closing,
    },
    Promise {
        name: "retiring",
        text: "a session that was retired moves nothing any more, and its lanes do not open",
        to_peers: true,
        try_out: fences::retiring,
    },
];

/// Tries a promise out. `Err`: how it was broken, or that it was not known within half a minute.
pub fn check(promise: &Promise, subject: &Subject) -> Result<(), String> {
    let (answer, answered) = channel();
    let (try_out, subject) = (promise.try_out, subject.clone());
    let thread = thread::Builder::new()
        .name(promise.name.into())
        .spawn(move || {
            let _ = answer.send(try_out(&subject));
        });
    let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
    let hangs = || format!("it hangs: nothing came of it within {PATIENCE:?}");
    match answered.recv_timeout(PATIENCE) {
        // What it used has gone by now, or the thread hangs in that.
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => Err(hangs()),
        Err(RecvTimeoutError::Disconnected) => {
            let _ = thread.join();
            Err("it panicked".to_owned())
        }
    }
}
