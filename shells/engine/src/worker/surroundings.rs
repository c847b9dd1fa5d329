//! What a worker knows of the engine that it is part of.

use std::sync::{Arc, Mutex};

use polyrail_control::plane::Plane;
use polyrail_core::rail::health::RailState;
use polyrail_core::report::{Report, Status};
use polyrail_core::time::Instant;
use polyrail_core::units::{PeerId, RailId, TransportId};
use polyrail_core::work::Cause;
use polyrail_record::Recorded;
use polyrail_transport::clock::Clock;
use polyrail_transport::complain;
use polyrail_transport::complaint::Lines;
use polyrail_transport::fault::Faults;

use crate::fabric::Fabric;
use crate::hints::{Hints, READ_INTERVAL};
use crate::lock::lock;
use crate::neighbours::Neighbours;
use crate::peers::Peers;
use crate::post::Post;
use crate::stats::Failovers;
use crate::transports::Catalog;

/// What all workers of an engine share.
pub(super) struct Surroundings<'a> {
    pub(super) clock: Clock,
    pub(super) fabric: &'a Fabric,
    pub(super) plane: Plane,
    pub(super) posts: &'a [Arc<Post>],
    pub(super) peers: Arc<Mutex<Peers>>,
    pub(super) transports: Arc<Catalog>,
    pub(super) failovers: Arc<Failovers>,
    pub(super) failover_attempts_max: u8,
    pub(super) faults: Option<Arc<Faults>>,
    /// What is said of rails, peers and requests: strangers cannot use it up.
    pub(super) lines: Lines,
}

/// What an agent says, if one is asked, and when to read it again.
pub(super) struct Steering {
    hints: Option<Arc<Hints>>,
    at: Instant,
}

impl Surroundings<'_> {
    /// The other processes of this host, if they count.
    pub(super) fn neighbours(&self) -> Option<&Neighbours> {
        self.fabric.neighbours()
    }

    /// See [`Faults::ignore_fences`]: only in tests.
    pub(super) fn fences_ignored(&self) -> bool {
        let faults = self.faults.as_ref();
        faults.is_some_and(|faults| faults.fences_ignored())
    }

    /// A request has left a transport for another.
    pub(super) fn count_failover(&self, from: TransportId, to: TransportId, attempt: u8) {
        self.failovers.add(from, to);
        complain!(
            by self.lines;
            "Transport failover: {} -> {} (attempt {attempt}/{})",
            self.transports.name(from),
            self.transports.name(to),
            self.failover_attempts_max,
        );
    }

    pub(super) fn log_rail(
        &self,
        rail: RailId,
        state: RailState,
        cause: Option<Cause>,
        expired: bool,
    ) {
        self.fabric.times.changed(rail, state, cause);
        // Without the lock: the program's logger may ask for it.
        let name = lock(&self.peers).rail_name(rail).to_owned();
        match (state, cause) {
            (_, Some(cause)) => {
                let why = cause.to_string();
                complain!(by self.lines; event = "rail_paused", rail = name.as_str(), why = why.as_str();
                    "rail {name} is paused: {cause}");
                self.fabric
                    .incident(|| format!("rail {name} is paused: {cause}"));
            }
            (RailState::Healthy, None) => {
                let (local, remote) = name.split_once('>').unwrap_or((&name, "?"));
                let how = match expired {
                    true => "cooldown expired",
                    false => "un-paused by successful transfer",
                };
                complain!(by self.lines; event = "rail_recovered", rail = name.as_str(), why = how;
                    "Rail recovered: local_nic={local} remote_nic={remote} ({how})");
            }
            (state, None) => log::debug!("rail {name} is {}", state.name()),
        }
    }

    /// The words that the TENT failover document gives to a request that no transport is left for.
    pub(super) fn log_end(&self, last: Option<TransportId>, report: &Report) {
        if let Status::Indeterminate | Status::PeerLost = report.status {
            let status = report.status.name();
            self.fabric
                .incident(|| format!("a request has ended as {status}"));
        }
        let last = last.map_or("?", |transport| self.transports.name(transport));
        match report.cause {
            Some(Cause::FailoverLimit) => complain!(
                by self.lines;
                "Task failover limit reached ({}), last transport={last}",
                self.failover_attempts_max,
            ),
            Some(Cause::NoRail) => {
                complain!(by self.lines; "No more transports available after {last} failed")
            }
            _ => {}
        }
    }

    pub(super) fn log_peer(&self, peer: PeerId, silent: bool) {
        let known = lock(&self.peers)
            .get(peer)
            .map(|peer| (peer.name.escape_debug().to_string(), peer.dialed));
        let Some((name, address)) = known else {
            return;
        };
        let at = address.to_string();
        let (event, what) = match silent {
            true => ("peer_silent", "silent"),
            false => ("peer_heard", "heard again"),
        };
        complain!(by self.lines; event = event, peer = name.as_str(), address = at.as_str();
            "peer \"{name}\" at {address} is {what}");
    }
}

impl Steering {
    pub(super) fn new(hints: Option<Arc<Hints>>) -> Self {
        Self {
            hints,
            at: Instant::ZERO,
        }
    }

    /// Tells core what an agent wants, now and then.
    pub(super) fn heed(&mut self, now: Instant, peers: &Mutex<Peers>, core: &mut Recorded<'_>) {
        let Some(hints) = &self.hints else {
            return;
        };
        if now < self.at {
            return;
        }
        self.at = now + READ_INTERVAL;
        let peers = lock(peers).steered();
        for (peer, hint) in hints.read(peers) {
            core.handle_hint(now, peer, hint);
        }
    }
}
