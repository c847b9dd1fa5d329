//! The numbers of a peer and its rails, and how they come free.

use std::sync::{Arc, Mutex};

use polyrail_core::units::{PeerId, RailId};

use super::Peers;
use crate::error::Limit;
use crate::lock::lock;

/// Peers that are named where there are too many.
const NAMED_MAX: usize = 3;

/// The numbers of a peer and its rails. They mean it for as long as anybody has a share of this; then they are
/// free, for another.
#[derive(Debug)]
pub(crate) struct Numbers {
    pub(crate) peer: PeerId,
    rails: Mutex<Vec<RailId>>,
    freed: Arc<Freed>,
}

/// Numbers that nobody has a share of any more. A lock of its own, which nothing is dropped under.
pub(super) type Freed = Mutex<Vec<(PeerId, Vec<RailId>)>>;

impl Numbers {
    /// The rails that have been given to it until now.
    pub(crate) fn rails(&self) -> Vec<RailId> {
        lock(&self.rails).clone()
    }

    pub(super) fn add_rail(&self, rail: RailId) {
        lock(&self.rails).push(rail);
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        let rails = std::mem::take(&mut *lock(&self.rails));
        lock(&self.freed).push((self.peer, rails));
    }
}

impl Peers {
    /// Takes a number for a new peer: in turn, so that one that is free is not used again at once.
    pub(crate) fn take_numbers(&mut self) -> Result<Numbers, Limit> {
        self.gather_freed();
        let limit = self.limits.peers as u16;
        let next = (1..=limit)
            .map(|step| (self.last + step) % limit)
            .find(|id| !self.taken.contains(id));
        let id = next.ok_or_else(|| self.peers_limit())?;
        self.taken.insert(id);
        self.last = id;
        Ok(Numbers {
            peer: PeerId(id),
            rails: Mutex::default(),
            freed: self.freed.clone(),
        })
    }

    /// Peers and rails that have numbers.
    pub(crate) fn used(&mut self) -> (usize, usize) {
        self.gather_freed();
        (
            self.taken.len(),
            self.rail_names.len() - self.free_rails.len(),
        )
    }

    /// That there can be no more peers, and who they are.
    fn peers_limit(&self) -> Limit {
        let name =
            |peer: &super::Peer| format!("\"{}\" at {}", peer.name.escape_debug(), peer.dialed);
        let first: Vec<_> = self.peers.iter().take(NAMED_MAX).map(name).collect();
        let others = self.taken.len() - first.len();
        let and = if first.is_empty() { "" } else { ", and " };
        Limit {
            what: "peers",
            most: self.limits.peers,
            key: "limits/peers",
            held_by: format!(
                "{}{and}{others} others, with disks and GPUs of this host and those that are just leaving",
                first.join(", ")
            ),
        }
    }

    pub(super) fn gather_freed(&mut self) {
        for (peer, rails) in lock(&self.freed).drain(..) {
            self.taken.remove(&peer.0);
            self.free_rails.extend(rails.iter().map(|rail| rail.0));
        }
    }
}
