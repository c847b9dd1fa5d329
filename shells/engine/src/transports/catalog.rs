//! What is known of the transports of an engine, and of those of its peers by what they offer.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use polyrail_control::codec::{TRANSPORT_ADDRESS_BYTES_MAX, TransportOffer};
use polyrail_core::transport::{Capabilities, MemoryKind, Offer, rank};
use polyrail_core::units::TransportId;
use polyrail_transport::ticket::SessionSecret;
use polyrail_transport::{Prior, SessionId, Transport};
use serde::Serialize;

use crate::known::{CUDA_IPC, SHM, STAGED};
use crate::peers::RailPair;

/// One transport, for whoever wants to know what an engine can use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TransportStatus {
    /// What it is called.
    #[serde(rename = "transport")]
    pub name: &'static str,
    /// Why the engine runs without it; `None`: it is there.
    pub missing: Option<String>,
}

/// What is known of an engine's transports, by number.
pub(crate) struct Catalog {
    rows: Vec<Row>,
    /// The transport that only goes on with what others have failed to do, if there is one.
    pub(crate) staged: Option<TransportId>,
}

/// One transport of a catalog.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) capabilities: Capabilities,
    pub(super) missing: Option<String>,
    /// Where peers reach it itself, if that is not at the rails' addresses.
    pub(super) address: Vec<u8>,
    pub(super) transport: Weak<dyn Transport>,
    /// It reaches what is this engine's own, and no peer.
    pub(super) own: bool,
}

/// The secret of a session, as lanes of this transport need it: what passes no wire is not encrypted.
pub(super) fn suited(secret: SessionSecret, transport: &dyn Transport) -> SessionSecret {
    match transport.is_within_host() {
        true => secret.within_host(),
        false => secret,
    }
}

/// Why bytes cannot be encrypted by a transport that has them go over a wire, if so.
pub(super) fn why_exposed(transport: &dyn Transport) -> Option<io::Error> {
    match transport.is_within_host() {
        true => None,
        false => transport.can_encrypt().err(),
    }
}

impl Catalog {
    /// Of transports in the order of their numbers.
    pub(super) fn new(rows: Vec<Row>) -> Self {
        let place = rows.iter().position(|row| row.name == STAGED);
        Self {
            rows,
            staged: place.map(|place| TransportId(place as u8)),
        }
    }

    /// What a transport is called.
    pub(crate) fn name(&self, transport: TransportId) -> &'static str {
        self.rows.get(transport.index()).map_or("?", |row| row.name)
    }

    /// All names, for errors.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.rows.iter().map(|row| row.name).collect()
    }

    pub(crate) fn status(&self) -> Vec<TransportStatus> {
        let status = |row: &Row| TransportStatus {
            name: row.name,
            missing: row.missing.clone(),
        };
        self.rows.iter().map(status).collect()
    }

    /// What a transport of this name can do here; `None`: it reaches no peer.
    pub(crate) fn offered(&self, name: &str) -> Option<Capabilities> {
        let row = self.rows.iter().find(|row| row.name == name && !row.own)?;
        Some(row.offered())
    }

    /// What peers are told, by an engine with these rails.
    pub(crate) fn offers(&self, rails: &[IpAddr]) -> Vec<TransportOffer> {
        let places = |row: &Row| {
            let transport = row.transport.upgrade();
            let places = transport.map(|transport| transport.places(rails));
            let places = places.filter(|places| places.len() <= TRANSPORT_ADDRESS_BYTES_MAX);
            places.unwrap_or_default()
        };
        let offer = |row: &Row| TransportOffer {
            name: row.name.into(),
            capabilities: row.offered().to_bits(),
            address: match row.address.is_empty() {
                true => places(row),
                false => row.address.clone(),
            },
        };
        let others = self.rows.iter().filter(|row| !row.own);
        others.map(offer).collect()
    }

    /// Those that move bytes of files of this host, the best first.
    pub(crate) fn of_files(&self) -> Vec<TransportId> {
        self.own_of(MemoryKind::File)
    }

    /// Those that copy to and from memory of this host's GPUs.
    pub(crate) fn of_gpus(&self) -> Vec<TransportId> {
        self.own_of(MemoryKind::Device)
    }

    /// A transport that carries memory of this process's GPUs without regard to what is in their streams, if there is one.
    pub(crate) fn unordered(&self) -> Option<&'static str> {
        let is_it = |row: &&Row| {
            let waits = row.own || [CUDA_IPC, STAGED].contains(&row.name);
            !waits && row.offered().allows_local(MemoryKind::Device)
        };
        self.rows.iter().find(is_it).map(|row| row.name)
    }

    fn own_of(&self, kind: MemoryKind) -> Vec<TransportId> {
        let here = |(_, row): &(usize, &Row)| row.own && row.offered().allows_remote(kind);
        let rows = self.rows.iter().enumerate().filter(here);
        rows.map(|(position, _)| TransportId(position as u8))
            .collect()
    }

    /// What of a peer's offers holds between it and this engine, which it has let into a session. Those that are
    /// reached at addresses of their own are tried out, which may take a moment.
    pub(crate) fn tried(
        &self,
        offers: &[TransportOffer],
        session: SessionId,
        secret: Option<&SessionSecret>,
    ) -> Vec<TransportOffer> {
        let encrypts = secret.is_some_and(SessionSecret::encrypts);
        let tried = |offer: &TransportOffer| {
            if encrypts && let Some(nothing) = self.unencrypted(offer) {
                return nothing;
            }
            let row = self.rows.iter().find(|row| row.name == offer.name);
            let row = row.filter(|row| !row.address.is_empty() && !offer.address.is_empty());
            let Some(transport) = row.and_then(|row| row.transport.upgrade()) else {
                return offer.clone();
            };
            let secret = secret.cloned().map(|secret| suited(secret, &*transport));
            let reached = transport.reach(&offer.address, session, secret.as_ref());
            let reached = reached.inspect_err(|why| {
                log::debug!("{} does not reach the peer: {why}", offer.name);
            });
            let offered = Capabilities::from_bits(offer.capabilities);
            let holds = offered.intersected(reached.unwrap_or(Capabilities::NONE));
            TransportOffer {
                capabilities: holds.to_bits(),
                ..offer.clone()
            }
        };
        offers.iter().map(tried).collect()
    }

    /// What is left of an offer, nothing, where bytes are to be encrypted and its transport cannot do that; `None`: it can, or no
    /// wire carries them.
    pub(crate) fn unencrypted(&self, offer: &TransportOffer) -> Option<TransportOffer> {
        let row = self.rows.iter().find(|row| row.name == offer.name);
        let present = row.filter(|row| row.missing.is_none() && offer.capabilities != 0);
        let transport = present.and_then(|row| row.transport.upgrade())?;
        let why = why_exposed(&*transport)?;
        log::warn!(
            "transport {} is not used with a peer, to which bytes are to be encrypted: {why}",
            offer.name
        );
        Some(TransportOffer {
            capabilities: Capabilities::NONE.to_bits(),
            ..offer.clone()
        })
    }

    /// The secret of a session, as lanes of a transport need it.
    pub(crate) fn secret_for(&self, id: TransportId, secret: SessionSecret) -> SessionSecret {
        match self.transport(id) {
            Some(transport) => suited(secret, &*transport),
            None => secret,
        }
    }

    /// Whether a transport has devices that may come while the engine runs.
    pub(crate) fn has_devices(&self) -> bool {
        self.present().any(|transport| transport.has_devices())
    }

    /// Has all look for devices that they did not have; `again`: also for those that could not be used. Whether there are rails
    /// now that there were not.
    pub(crate) fn look_for_devices(&self, again: bool) -> bool {
        let looks = self
            .present()
            .map(|transport| transport.look_for_devices(again));
        looks.fold(false, |before, this| before | this)
    }

    fn present(&self) -> impl Iterator<Item = Arc<dyn Transport>> {
        let present = self.rows.iter().filter(|row| row.missing.is_none());
        present.filter_map(|row| row.transport.upgrade())
    }

    /// Whether a rail's transport has a device where it starts.
    pub(crate) fn runs_at(&self, rail: &RailPair) -> bool {
        let transport = self.transport(rail.transport);
        transport.is_some_and(|transport| transport.runs_at(rail.local, rail.remote))
    }

    /// Whether a peer's transport can be reached at its rail in this position, by what the peer offers.
    pub(crate) fn serves(
        &self,
        transport: TransportId,
        theirs: &[TransportOffer],
        rail: usize,
    ) -> bool {
        let offer = theirs
            .iter()
            .find(|offer| offer.name == self.name(transport));
        let transport = self.transport(transport);
        transport
            .zip(offer)
            .is_none_or(|(transport, offer)| transport.serves(&offer.address, rail))
    }

    /// What is known of a rail before anything has moved on it.
    pub(crate) fn prior(&self, rail: &RailPair) -> Prior {
        let transport = self.transport(rail.transport);
        transport.map_or(Prior::default(), |transport| {
            transport.prior(rail.local, rail.remote)
        })
    }

    fn transport(&self, transport: TransportId) -> Option<Arc<dyn Transport>> {
        self.rows.get(transport.index())?.transport.upgrade()
    }

    /// Whether a transport has rails of its own, not those of the network: one to each peer.
    pub(crate) fn has_own_rail(&self, transport: TransportId) -> bool {
        let row = self.rows.get(transport.index());
        row.is_some_and(|row| !row.address.is_empty())
    }

    /// Whether a transport only goes on with what others have failed to do.
    pub(crate) fn stages(&self, transport: TransportId) -> bool {
        self.staged == Some(transport)
    }

    /// Whether a transport's endpoints carry works out at once.
    pub(crate) fn carries_at_once(&self, transport: TransportId) -> bool {
        self.name(transport) == SHM
    }

    /// Those that join memory of the host's, or of its GPUs, with such memory of a peer, the best first.
    pub(crate) fn common(&self, theirs: &[TransportOffer]) -> Vec<TransportId> {
        let mut common = Vec::new();
        for remote in [
            MemoryKind::Host,
            MemoryKind::Shared,
            MemoryKind::DeviceShared,
        ] {
            common.extend(self.rank(theirs, MemoryKind::Host, remote));
        }
        common.extend(self.rank(theirs, MemoryKind::Device, MemoryKind::Host));
        common.sort_unstable();
        common.dedup();
        common
    }

    /// Those that join memory here with memory of a peer that offers `theirs`, the best first. What stages is there if
    /// one of the two is a GPU's, and only behind another one.
    pub(crate) fn rank(
        &self,
        theirs: &[TransportOffer],
        local: MemoryKind,
        remote: MemoryKind,
    ) -> Vec<TransportId> {
        let ours = self.rows.iter().map(|row| Offer {
            name: row.name,
            capabilities: row.offered(),
        });
        let theirs: Vec<_> = theirs
            .iter()
            .map(|offer| Offer {
                name: &offer.name,
                capabilities: Capabilities::from_bits(offer.capabilities),
            })
            .collect();
        let mut ranked: Vec<_> = rank(ours, &theirs, local, remote)
            .into_iter()
            .map(|position| TransportId(position as u8))
            .collect();
        if ranked.len() < 2 || !(local.is_on_device() || remote.is_on_device()) {
            ranked.retain(|transport| !self.stages(*transport));
        }
        ranked
    }
}

impl Row {
    /// Nothing, if it is not there.
    fn offered(&self) -> Capabilities {
        match self.missing {
            None => self.capabilities,
            Some(_) => Capabilities::NONE,
        }
    }
}
