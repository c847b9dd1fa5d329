//! Sessions with peers: how they are made, made anew and given up.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use polyrail_control::codec::{NOTIFICATIONS, PARCELS, PATHS};
use polyrail_control::plane::{ConnectError, Ends, Introduction, Plane};
use polyrail_core::orchestrator::Proof;
use polyrail_core::rail::health::RailState;
use polyrail_core::units::{PeerId, RailId};
use polyrail_transport::SessionId;

use crate::engine::Engine;
use crate::error::OpenError;
use crate::leaving::Leaving;
use crate::lock::lock;
use crate::opening::{DESCRIBE_TIMEOUT, resolve};
use crate::path::PeerPath;
use crate::peers::{Numbers, Peer, Peers, RailPair};
use crate::post::Command;
use crate::segments::{SegmentId, TakenOut};
use crate::staging::Word;

/// How long a peer may take to let us in.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The same on each of several ways that are tried in turn.
const RECONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// The peers of an engine, and the control plane that reaches them.
pub(crate) struct Sessions {
    pub(crate) plane: Plane,
    pub(crate) peers: Arc<Mutex<Peers>>,
    /// Where peers reach this engine.
    pub(crate) listening: Option<SocketAddr>,
    /// Held until all workers know of a peer's segment that is new, so that it is not made known twice, and nobody names
    /// it before.
    pub(crate) opening: Mutex<()>,
    /// By address, what is held while a session is made there, so that it is not made twice.
    dialing: Mutex<HashMap<SocketAddr, Arc<Mutex<()>>>>,
}

impl Sessions {
    pub(crate) fn new(
        plane: Plane,
        peers: Arc<Mutex<Peers>>,
        listening: Option<SocketAddr>,
    ) -> Self {
        Self {
            plane,
            peers,
            listening,
            opening: Mutex::default(),
            dialing: Mutex::default(),
        }
    }

    /// What whoever makes a session at an address holds meanwhile. Others wait only for their own.
    fn turn_at(&self, address: SocketAddr) -> Arc<Mutex<()>> {
        let mut dialing = lock(&self.dialing);
        dialing.retain(|_, turn| Arc::strong_count(turn) > 1);
        dialing.entry(address).or_default().clone()
    }
}

impl Engine {
    /// The peer at an address; a new session if there is none.
    pub(crate) fn peer_at(&self, remote: SocketAddr) -> Result<Peer, OpenError> {
        let inner = &self.inner;
        let known = || lock(&inner.sessions.peers).at(remote).cloned();
        if self.is_closing() {
            return Err(OpenError::ShutDown);
        }
        if let Some(peer) = known() {
            return Ok(peer);
        }
        let turn = self.inner.sessions.turn_at(remote);
        let _dialing = lock(&turn);
        if let Some(peer) = known() {
            return Ok(peer);
        }
        let numbers = lock(&inner.sessions.peers).take_numbers()?;
        let met = inner
            .sessions
            .plane
            .connect(
                numbers.peer,
                self.dials_from(remote),
                remote,
                CONNECT_TIMEOUT,
            )
            .map_err(OpenError::Connect)?;
        self.add_peer(numbers, remote, &met)
    }

    /// Where a peer is dialed from; `None`: where the kernel chooses. On loopback it chooses one address for all, and who
    /// has rails at another would be taken for somebody else there.
    fn dials_from(&self, remote: SocketAddr) -> Option<IpAddr> {
        let mut rails = self.inner.config.rails.iter();
        let near = |rail: &&IpAddr| rail.is_loopback() && rail.is_ipv4() == remote.is_ipv4();
        remote
            .ip()
            .is_loopback()
            .then(|| rails.find(near).copied())?
    }

    /// Adds the peer that has just introduced itself. If it is one that has told us that this is an address of
    /// its own while it was dialed, it is that one.
    fn add_peer(
        &self,
        mut numbers: Numbers,
        dialed: SocketAddr,
        met: &Introduction,
    ) -> Result<Peer, OpenError> {
        let inner = &self.inner;
        let met = &Introduction {
            transports: inner.transports.tried(&met.transports, met.session),
            ..met.clone()
        };
        let id = numbers.peer;
        let scratch = self
            .add_segment(id, met.scratch.clone(), None)
            .inspect_err(|_| inner.sessions.plane.disconnect(id))?;
        let forget = || {
            inner.sessions.plane.disconnect(id);
            inner.segments.remove_remote(scratch);
            self.inner
                .crew
                .tell(|| Command::DetachRemote(scratch.segment_ref()));
        };
        // The peers are locked only now: whoever makes a plan holds the segments while it looks for the peer. Rails
        // are numbered once nobody else can add the same peer: what is not numbered need not be given back.
        let pairs =
            lock(&inner.sessions.peers).pair_rails(dialed, met, &inner.config, &inner.transports);
        let pairs = pairs.inspect_err(|_| forget())?;
        let path = self.compare_paths(id, dialed, met, &pairs);
        let path = path.inspect_err(|_| forget())?;
        let mut peers = lock(&inner.sessions.peers);
        if let Some(known) = peers.met(dialed, met.incarnation).cloned() {
            drop(peers);
            forget();
            return Ok(known);
        }
        let installed = peers.install_rails(
            &inner.fabric,
            &mut numbers,
            (pairs, met.round_trip),
            &inner.config.path,
            &inner.transports,
        );
        let rails = match installed {
            Ok(rails) => rails,
            Err(error) => {
                drop(peers);
                forget();
                return Err(error.into());
            }
        };
        let peer = Peer {
            id,
            numbers: Arc::new(numbers),
            name: met.name.clone(),
            dialed,
            session: met.session,
            incarnation: met.incarnation,
            rails,
            offers: met.transports.clone(),
            scratch,
            notifies: met.features & NOTIFICATIONS != 0,
            parcels: met.features & PARCELS != 0,
            path,
        };
        self.attach_rails(&peer);
        peers.add(peer.clone());
        Ok(peer)
    }

    /// How this end sees a connection, if the other one sees it so too.
    fn compare_paths(
        &self,
        id: PeerId,
        dialed: SocketAddr,
        met: &Introduction,
        pairs: &[RailPair],
    ) -> Result<Option<PeerPath>, OpenError> {
        let address = |pair: &RailPair| Some((pair.local?, pair.remote.ip()));
        // Transports have the same addresses; each counts once.
        let counts = |pair: &&RailPair| pair.own.is_none() && !pair.is_spare();
        let mut networked = pairs.iter().filter(counts).peekable();
        let first = networked.peek().map(|pair| pair.transport);
        let of_first = networked.filter(|pair| Some(pair.transport) == first);
        let ends: Vec<_> = of_first.filter_map(address).collect();
        let seen = self.inner.config.path.see(&ends);
        let seen = seen.map_err(|error| OpenError::PathRails {
            peer: dialed,
            error,
        })?;
        let Some(path) = seen else {
            return Ok(None);
        };
        let theirs = match met.features & PATHS {
            0 => None,
            _ => {
                let view = self
                    .inner
                    .sessions
                    .plane
                    .see_path(id, ends, DESCRIBE_TIMEOUT);
                view.map_err(OpenError::Ask)?
            }
        };
        let theirs = theirs.ok_or_else(|| OpenError::PathUnknown {
            peer: dialed,
            ours: Box::new(path.view),
        })?;
        let agreed = path.view.agree(&theirs);
        agreed.map_err(|mismatch| OpenError::PathMismatch {
            peer: dialed,
            mismatch: Box::new(mismatch),
        })?;
        Ok(Some(path))
    }

    fn attach_rails(&self, peer: &Peer) {
        for rail in &peer.rails {
            self.inner
                .crew
                .tell(|| Command::AttachRail(rail.rail, rail.pair.address(peer.session)));
        }
        self.inner.sessions.plane.maintain(peer.id, peer.ways());
    }

    /// Makes a new session with a peer that has forgotten the old one, over whichever of its addresses
    /// answers. Good also if there is nothing to do any more.
    pub(crate) fn reconnect(&self, id: PeerId, incarnation: u64) -> Result<(), ConnectError> {
        let find = || {
            let peers = lock(&self.inner.sessions.peers);
            let peer = peers.get(id);
            peer.filter(|peer| peer.incarnation == incarnation).cloned()
        };
        let Some(peer) = find() else {
            return Ok(());
        };
        let turn = self.inner.sessions.turn_at(peer.dialed);
        let _dialing = lock(&turn);
        let Some(peer) = find() else {
            return Ok(());
        };
        // What is staged in the old session names slots that are others' by now.
        if !self.inner.staging.wait_until_clear(id, CONNECT_TIMEOUT) {
            return Err(ConnectError::TimedOut {
                ends: Box::new(Ends {
                    ours: self.inner.config.name.clone(),
                    local: None,
                    theirs: Some(peer.name),
                    remote: peer.dialed,
                }),
                after: CONNECT_TIMEOUT,
                connected: false,
            });
        }
        let ways = self.ways_to(&peer);
        let timeout = match ways.len() {
            1 => CONNECT_TIMEOUT,
            _ => RECONNECT_TIMEOUT,
        };
        let mut failed = None;
        let mut is_another = false;
        for (local, remote) in ways {
            match self
                .inner
                .sessions
                .plane
                .connect(id, local, remote, timeout)
            {
                Ok(met) if met.incarnation == incarnation => {
                    self.renew_session(peer, met.session);
                    return Ok(());
                }
                Ok(_) => {
                    log::warn!("another engine answers at {remote} now");
                    self.inner.sessions.plane.disconnect(id);
                    is_another = true;
                }
                // Somebody else has made the session.
                Err(ConnectError::Busy { .. }) => return Ok(()),
                // It was given up while it was dialed.
                Err(_) if find().is_none() => return Ok(()),
                Err(error) => {
                    log::debug!("{error}");
                    failed = failed.or(Some(error));
                }
            }
        }
        if is_another {
            self.lose_peer(id, incarnation);
            return Ok(());
        }
        failed.map_or(Ok(()), Err)
    }

    /// Every address that a peer was ever reached at, those first that look best.
    fn ways_to(&self, peer: &Peer) -> Vec<(Option<IpAddr>, SocketAddr)> {
        let shared = self.inner.fabric.shared();
        let is_healthy = |rail: RailId| {
            let view = shared.view(rail);
            view.is_some_and(|view| view.state == RailState::Healthy)
        };
        let mut rails: Vec<_> = peer.rails.iter().collect();
        rails.sort_by_key(|rail| !is_healthy(rail.rail));
        let mut ways: Vec<_> = rails
            .iter()
            .filter(|rail| rail.pair.own.is_none())
            .map(|rail| (rail.pair.local, rail.pair.remote))
            .collect();
        if !ways.iter().any(|(_, remote)| *remote == peer.dialed) {
            ways.insert(0, (None, peer.dialed));
        }
        ways
    }

    fn renew_session(&self, mut peer: Peer, session: SessionId) {
        peer.session = session;
        let mut peers = lock(&self.inner.sessions.peers);
        let known = peers.get_mut(peer.id);
        let Some(known) = known.filter(|known| known.incarnation == peer.incarnation) else {
            // It was lost while it was dialed. Its number is still its own: `peer` has a share of it.
            return self.inner.sessions.plane.disconnect(peer.id);
        };
        known.session = session;
        self.attach_rails(&peer);
    }

    /// Gives up a peer whose process has ended, or whose address belongs to another one now. What is open with
    /// it ends by itself, and then its numbers are free.
    pub(crate) fn lose_peer(&self, id: PeerId, incarnation: u64) {
        let inner = &self.inner;
        let Some(peer) = lock(&inner.sessions.peers).remove(id, incarnation) else {
            return;
        };
        log::warn!(
            "peer \"{}\" at {} is lost: open its segments anew",
            peer.name.escape_debug(),
            peer.dialed
        );
        inner.sessions.plane.disconnect(id);
        if let Some(stager) = inner.staging.cell.get() {
            stager.say(Word::PeerGone(id, None));
        }
        let TakenOut { segments, plans } = inner.segments.remove_peer(id, peer.dialed);
        let segments = segments.into_iter().map(SegmentId::segment_ref).collect();
        let lost = Leaving::new(peer.numbers, segments, plans, &inner.plans.ids);
        let lost = Arc::new(lost);
        self.inner.crew.tell(|| Command::ForgetPeer(lost.clone()));
    }

    /// Takes the operator's word that the engine at `HOST:PORT` is gone and will write no more: as if its
    /// process had been seen to end. Requests to it end as `PeerLost`, and its segments are lost. `false`:
    /// there is no session with an engine there.
    ///
    /// Only right if it is true. What a process that does live still writes is written after its report.
    pub fn declare_lost(&self, address: &str) -> Result<bool, OpenError> {
        let remote = resolve(address)?;
        let peer = lock(&self.inner.sessions.peers).at(remote).cloned();
        let Some(peer) = peer else {
            return Ok(false);
        };
        self.inner
            .crew
            .tell(|| Command::PeerGone(peer.id, Proof::ProcessGone));
        if let Some(stager) = self.inner.staging.cell.get() {
            stager.say(Word::PeerGone(peer.id, Some(Proof::ProcessGone)));
        }
        self.lose_peer(peer.id, peer.incarnation);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use polyrail_transport::memory::Access;

    use crate::config::Config;

    /// A target with these rails and where it listens, and an engine that has opened a segment there.
    fn pair(rails: Vec<IpAddr>) -> (Engine, SocketAddr, Engine, SegmentId) {
        let target = Engine::new(Config {
            listen: Some("127.0.0.1:0".parse().unwrap()),
            rails,
            workers: 1,
            ..Config::named("target")
        });
        let target = target.unwrap();
        let access = Access::RemoteReadWrite;
        target.allocate("mem", 4096, access).unwrap();
        let at = target.listening().unwrap();
        let engine = Engine::new(Config {
            workers: 1,
            ..Config::named("initiator").without("shm")
        });
        let engine = engine.unwrap();
        let segment = engine.open_segment(&format!("{at}/mem")).unwrap();
        (target, at, engine, segment)
    }

    #[test]
    fn a_session_is_made_anew_over_any_address_of_the_peer() {
        // Only the address that was dialed first was tried, for ever.
        let rails = [[127, 0, 0, 1], [127, 0, 0, 2]].map(IpAddr::from).to_vec();
        let (_target, at, engine, segment) = pair(rails);
        let nobody = {
            let listener = std::net::TcpListener::bind("127.0.0.9:0").unwrap();
            listener.local_addr().unwrap()
        };
        let peer = {
            let mut peers = lock(&engine.inner.sessions.peers);
            let id = peers.at(at).unwrap().id;
            let peer = peers.get_mut(id).unwrap();
            peer.dialed = nobody;
            peer.rails[0].pair.remote = nobody;
            peer.clone()
        };
        engine.inner.sessions.plane.disconnect(peer.id);
        engine.reconnect(peer.id, peer.incarnation).unwrap();
        let mem = engine
            .inner
            .sessions
            .plane
            .describe(peer.id, "mem", DESCRIBE_TIMEOUT);
        assert_eq!(mem.unwrap().unwrap().bytes, 4096);
        assert_eq!(engine.segment_bytes(segment), Some(4096), "it is not lost");
        let renewed = lock(&engine.inner.sessions.peers)
            .get(peer.id)
            .unwrap()
            .session;
        assert_ne!(renewed, peer.session);
        // A peer that this engine does not have any more needs no session.
        engine.lose_peer(peer.id, peer.incarnation);
        engine.reconnect(peer.id, peer.incarnation).unwrap();
    }

    /// Who lets connections through to an address, one after the other, until it is told to cut each.
    fn relay(to: SocketAddr) -> (SocketAddr, std::sync::mpsc::Receiver<std::net::TcpStream>) {
        use std::net::{TcpListener, TcpStream};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let (sender, connections) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            while let Ok((from, _)) = listener.accept() {
                let there = TcpStream::connect(to).unwrap();
                let ends = [(&from, &there), (&there, &from)];
                for (from, to) in
                    ends.map(|(a, b)| (a.try_clone().unwrap(), b.try_clone().unwrap()))
                {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut &from, &mut &to);
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
                if sender.send(from).is_err() {
                    return;
                }
            }
        });
        (at, connections)
    }

    #[test]
    fn a_session_without_rails_on_the_network_is_connected_again() {
        // Its only connection was never made anew: nobody could open another segment, and the peer counted as silent.
        let (target, at, ..) = pair(Vec::new());
        target
            .allocate("other", 4096, Access::RemoteReadWrite)
            .unwrap();
        let (through, connections) = relay(at);
        let engine = Engine::new(Config {
            workers: 1,
            ..Config::named("initiator").without("tcp")
        });
        let engine = engine.unwrap();
        engine.open_segment(&format!("{through}/mem")).unwrap();
        let connection = connections.recv().unwrap();
        connection.shutdown(std::net::Shutdown::Both).unwrap();
        let _again = connections.recv_timeout(Duration::from_secs(30)).unwrap();
        engine.open_segment(&format!("{through}/other")).unwrap();
    }

    #[test]
    fn a_peer_that_is_given_up_while_it_is_dialed_needs_no_session() {
        // Who opened a segment of a target that was being started anew was told that its own engine was shut down.
        let (_target, at, engine, _) = pair(Vec::new());
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = {
            let mut peers = lock(&engine.inner.sessions.peers);
            let id = peers.at(at).unwrap().id;
            let peer = peers.get_mut(id).unwrap();
            peer.dialed = silent.local_addr().unwrap();
            for rail in &mut peer.rails {
                rail.pair.remote = peer.dialed;
            }
            peer.clone()
        };
        engine.inner.sessions.plane.disconnect(peer.id);
        std::thread::scope(|scope| {
            let dialing = scope.spawn(|| engine.reconnect(peer.id, peer.incarnation));
            let _dialed = silent.accept().unwrap();
            engine.lose_peer(peer.id, peer.incarnation);
            dialing.join().unwrap().unwrap();
        });
    }
}
