//! One attacker: draws attacks until it is stopped, and keeps some connections open for ever.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::attack::{ALL, Tally};
use crate::mutate::Chance;
use crate::wire::Wire;

/// Connections that an attacker holds open at most.
const HELD_MAX: usize = 60;

/// Sessions that may be deserted in [`LINGER`], by all together: a target has room for a thousand, and good
/// peers want in, too.
const DESERTED_MAX: usize = 400;

/// How long a target keeps a session that was deserted.
const LINGER: Duration = Duration::from_secs(12);

/// The sessions that were deserted lately.
pub(crate) struct Desertion(Mutex<VecDeque<Instant>>);

impl Desertion {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }

    /// Whether one more may be.
    fn take(&self) -> bool {
        let mut times = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let now = Instant::now();
        while times.front().is_some_and(|at| *at + LINGER < now) {
            times.pop_front();
        }
        let room = times.len() < DESERTED_MAX;
        if room {
            times.push_back(now);
        }
        room
    }
}

pub(crate) struct Attacker<'a> {
    pub(crate) chance: Chance,
    ports: Vec<SocketAddr>,
    held: VecDeque<Wire>,
    /// The same, inside the host.
    held_inside: VecDeque<OwnedFd>,
    desertion: &'a Desertion,
}

impl<'a> Attacker<'a> {
    pub(crate) fn new(
        ports: Vec<SocketAddr>,
        seed: u64,
        index: u64,
        desertion: &'a Desertion,
    ) -> Self {
        Self {
            chance: Chance::new(seed, index),
            ports,
            held: VecDeque::new(),
            held_inside: VecDeque::new(),
            desertion,
        }
    }

    /// Attacks; answers what it did.
    pub(crate) fn attack_until(mut self, stop: &AtomicBool) -> Tally {
        let mut tally = Tally::default();
        while !stop.load(Ordering::Relaxed) {
            let index = self.chance.below(ALL.len());
            let attack = ALL[index];
            if attack.may_desert && !self.desertion.take() {
                continue;
            }
            // That the target hangs up in the middle is what it should do.
            let whole = (attack.run)(&mut self).is_ok();
            tally.count(index, whole);
        }
        tally
    }

    /// One of the ports.
    pub(crate) fn port(&mut self) -> SocketAddr {
        *self.chance.choose(&self.ports)
    }

    /// Leaves a connection in one of the ways there are.
    pub(crate) fn leave(&mut self, wire: Wire) {
        match self.chance.below(4) {
            0 => wire.reset(),
            1 => self.hold(wire),
            2 => {
                // It may have been hung up already.
                let _ = wire.stream.shutdown(std::net::Shutdown::Write);
                self.hold(wire);
            }
            _ => drop(wire),
        }
    }

    /// The same for one inside the host.
    pub(crate) fn hold_inside(&mut self, socket: OwnedFd) {
        if self.held_inside.len() == HELD_MAX {
            self.held_inside.pop_front();
        }
        self.held_inside.push_back(socket);
    }

    /// Keeps a connection until there are too many.
    pub(crate) fn hold(&mut self, wire: Wire) {
        if self.held.len() == HELD_MAX {
            self.held.pop_front();
        }
        self.held.push_back(wire);
    }
}
