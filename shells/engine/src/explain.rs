//! Which way a transfer would take, and why not the others.

use std::net::SocketAddr;

use polyrail_control::codec::TransportOffer;
use polyrail_core::rail::health::RailState;
use polyrail_core::transport::{Capabilities, MemoryKind};
use polyrail_core::work::Op;
use serde::{Serialize, Serializer};

use crate::engine::Engine;
use crate::error::SubmitError;
use crate::known::transports_without;
use crate::lock::lock;
use crate::peers::Peer;
use crate::request::Request;
use crate::segments::SegmentId;
use crate::staging::Route;

/// Which way a transfer would take. See [`Engine::explain`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// What the peer calls itself.
    pub peer: String,
    /// Where it was dialed.
    pub address: SocketAddr,
    /// Bytes to be moved.
    pub length: u64,
    /// How many slices that is, as they are usually cut.
    pub slices: u64,
    /// What the memory here is.
    pub local: &'static str,
    /// What the peer's is.
    pub remote: &'static str,
    /// It passes through slots in memory on its way, chunk by chunk; the transports are those between such slots.
    pub staged: bool,
    /// All transports, those that would be used first, in the order in which they are.
    pub transports: Vec<TransportChoice>,
}

/// What a transport has to do with a transfer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TransportChoice {
    /// What it is called.
    pub transport: String,
    /// 0: it is used; 1 and more: it is used in this turn when those before it fail; `None`: it is not used.
    pub turn: Option<usize>,
    /// Why.
    pub why: String,
    /// Its rails to the peer, the nearest first.
    pub rails: Vec<RailChoice>,
}

/// What a rail has to do with a transfer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RailChoice {
    /// `TRANSPORT:LOCAL>REMOTE`.
    pub rail: String,
    /// How far its device is from the memory: 0 is nearest.
    pub tier: u8,
    /// It carries bytes only while its device's first one is out.
    pub is_spare: bool,
    /// Where it stands.
    #[serde(serialize_with = "state")]
    pub state: RailState,
    /// How fast it is taken to be, in bytes per second.
    pub bytes_per_sec: u64,
    /// Whether slices would go there now.
    pub used: bool,
    /// Why.
    pub why: &'static str,
}

fn state<S: Serializer>(state: &RailState, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(state.name())
}

/// A kind of memory for people.
const fn kind(memory: MemoryKind) -> &'static str {
    match memory {
        MemoryKind::Host => "memory of the host that no other process maps",
        MemoryKind::Shared => "memory of the host that other processes can map",
        MemoryKind::Device => "memory of a GPU",
        MemoryKind::DeviceShared => "memory of a GPU that other processes can open",
        MemoryKind::File => "a file",
    }
}

impl Engine {
    /// Says which transports and rails a transfer of `length` bytes between these segments would take now, and why not the
    /// others. Moves nothing. The remote segment is a peer's.
    ///
    /// Example: [guide](crate::guide#looking-at-an-engine).
    pub fn explain(
        &self,
        local: SegmentId,
        remote: SegmentId,
        length: u64,
    ) -> Result<Explanation, SubmitError> {
        let inner = &self.inner;
        let stale = |segment| inner.segments.missing(0, segment);
        let lost = |peer| SubmitError::PeerLost {
            index: 0,
            segment: remote,
            peer,
        };
        let remote = inner.segments.leads_to(remote).map_err(lost)?;
        let here = inner.segments.local(local).ok_or_else(|| stale(local))?;
        let there = inner.segments.remote(remote).ok_or_else(|| stale(remote))?;
        let request = Request {
            op: Op::Write,
            local,
            local_offset: 0,
            remote,
            remote_offset: 0,
            length,
        };
        let staged = matches!(self.route(0, &request, false)?, Route::Staged { .. });
        let peer = lock(&inner.sessions.peers).get(there.peer).cloned();
        let peer = peer.ok_or_else(|| stale(remote))?;
        let kinds = match staged {
            // Slots are such memory at both ends.
            true => [MemoryKind::Shared; 2],
            false => [here.region.memory(), there.descriptor.memory],
        };
        let whereabouts = self.whereabouts(&here.region);
        let node = there.descriptor.numa_node;
        let plan = peer.plan_transports(
            &inner.transports,
            (kinds[0], &whereabouts),
            (kinds[1], node),
        );
        let mut transports = Vec::new();
        for (turn, planned) in plan.iter().enumerate() {
            let rails = planned.rails.iter();
            let mut rails: Vec<_> = rails
                .filter_map(|rail| self.rail_choice(rail.rail, rail.tier, turn == 0))
                .collect();
            rails.sort_by_key(|rail| (rail.is_spare, rail.tier));
            let why = match turn {
                0 => "the first of those that both ends have for such memory".to_owned(),
                _ => "goes on if those before it fail".to_owned(),
            };
            transports.push(TransportChoice {
                transport: inner.transports.name(planned.transport).to_owned(),
                turn: Some(turn),
                why,
                rails,
            });
        }
        let is_planned = |name: &str| transports.iter().any(|choice| choice.transport == name);
        let unused = self.unused(&peer, kinds).into_iter();
        let unused: Vec<_> = unused
            .filter(|choice| !is_planned(&choice.transport))
            .collect();
        transports.extend(unused);
        Ok(Explanation {
            peer: peer.name.escape_debug().to_string(),
            address: peer.dialed,
            length,
            slices: length.div_ceil(inner.config.slice_bytes.max(1).into()),
            local: kind(here.region.memory()),
            remote: match there.slots.is_some() {
                true => "a file, or memory of a GPU, that is reached through slots in memory",
                false => kind(there.descriptor.memory),
            },
            staged,
            transports,
        })
    }

    fn rail_choice(
        &self,
        rail: polyrail_core::units::RailId,
        tier: u8,
        is_first: bool,
    ) -> Option<RailChoice> {
        let view = self.inner.fabric.shared().view(rail)?;
        let (name, is_withdrawn) = {
            let peers = lock(&self.inner.sessions.peers);
            let is_withdrawn = peers.withdrawn_rails().contains(&rail);
            (peers.rail_name(rail).to_owned(), is_withdrawn)
        };
        let (used, why) = match (is_first, view.state, view.is_spare) {
            _ if is_withdrawn => (false, "withdrawn: an end of it is offered no more"),
            (false, ..) => (false, "its transport is not the first"),
            (_, RailState::Healthy, false) => (true, "takes its part of the slices"),
            (_, RailState::Healthy, true) => {
                (false, "a spare: only while its device's first is out")
            }
            _ => (false, "takes no slices until it is healthy again"),
        };
        Some(RailChoice {
            rail: name,
            tier,
            is_spare: view.is_spare,
            state: view.state,
            bytes_per_sec: view.rate.bytes_per_sec(),
            used,
            why,
        })
    }

    /// Why each transport would not be used, if it is not.
    fn unused(&self, peer: &Peer, kinds: [MemoryKind; 2]) -> Vec<TransportChoice> {
        let catalog = &self.inner.transports;
        let theirs = &peer.met.transports;
        let mut all = Vec::new();
        for status in catalog.status() {
            let offered = catalog.offered(status.name);
            let offer = theirs.iter().find(|offer| offer.name == status.name);
            let why = why_not(status.missing, offered, offer, kinds);
            all.push((status.name.to_owned(), why));
        }
        for (name, why) in transports_without(&catalog.names()) {
            all.push((name.to_owned(), why));
        }
        for offer in theirs {
            if !all.iter().any(|(name, _)| *name == offer.name) {
                let name = offer.name.escape_debug().to_string();
                all.push((name, "only the peer has it".to_owned()));
            }
        }
        let choice = |(transport, why)| TransportChoice {
            transport,
            turn: None,
            why,
            rails: Vec::new(),
        };
        all.into_iter().map(choice).collect()
    }
}

/// Why a transport is not used. `offered`: what it can do here; `None`: it reaches no peer.
fn why_not(
    missing: Option<String>,
    offered: Option<Capabilities>,
    theirs: Option<&TransportOffer>,
    [local, remote]: [MemoryKind; 2],
) -> String {
    if let Some(missing) = missing {
        return format!("not there: {missing}");
    }
    let Some(own) = offered else {
        return "reaches files and GPUs of this host, and no peer".into();
    };
    let Some(theirs) = theirs.map(|offer| Capabilities::from_bits(offer.capabilities)) else {
        return "the peer does not have it".into();
    };
    match () {
        () if theirs == Capabilities::NONE => {
            "the peer does not have it, or is not reached by it from here".into()
        }
        () if !own.allows_local(local) => format!("does not move {} here", kind(local)),
        () if !theirs.allows_remote(remote) => format!("does not reach {} there", kind(remote)),
        () => "only goes on with what others have failed to do".into(),
    }
}
