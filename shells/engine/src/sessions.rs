//! Sessions with peers: how they are made, made anew and given up.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use polyrail_control::codec::{NOTIFICATIONS, PARCELS, PATHS};
use polyrail_control::plane::{ConnectError, Ends, Introduction, Plane, Rails};
use polyrail_core::orchestrator::Proof;
use polyrail_core::rail::health::RailState;
use polyrail_core::units::{PeerId, RailId, TransportId};
use polyrail_transport::complaint::Lines;
use polyrail_transport::ticket::SessionSecret;
use polyrail_transport::{complain, remark};

use crate::engine::Engine;
use crate::error::OpenError;
use crate::fork::Owned;
use crate::leaving::Leaving;
use crate::lock::lock;
use crate::opening::{DESCRIBE_TIMEOUT, Until, resolve};
use crate::path::PeerPath;
use crate::peers::{News, Numbers, Peer, PeerRail, Peers, PlanRoom, RailPair};
use crate::post::Command;
use crate::segments::{SegmentId, TakenOut};
use crate::staging::Word;
use crate::task::Task;

/// How long a peer may take to let us in.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The same on each of several ways that are tried in turn.
const RECONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// What peers have said of their rails since it was last looked at.
pub(crate) type Said = Mutex<HashMap<PeerId, Rails>>;

/// The peers of an engine, and the control plane that reaches them.
pub(crate) struct Sessions {
    pub(crate) plane: Plane,
    pub(crate) peers: Arc<Mutex<Peers>>,
    /// Where peers reach this engine.
    pub(crate) listening: Option<SocketAddr>,
    /// Held until all workers know of a peer's segment that is new, so that it is not made known twice, and nobody names
    /// it before.
    pub(crate) opening: Mutex<()>,
    pub(crate) said: Arc<Said>,
    /// Where engines were that are waited for, because a segment of theirs stands.
    pub(crate) following: Mutex<HashSet<SocketAddr>>,
    /// What is told of peers.
    pub(crate) news: Owned<News>,
    /// By address, what is held while a session is made there, so that it is not made twice.
    dialing: Mutex<HashMap<SocketAddr, Arc<Mutex<()>>>>,
    /// What is said of peers that are lost: strangers cannot use it up.
    lines: Lines,
}

impl Sessions {
    pub(crate) fn new(
        plane: Plane,
        peers: Arc<Mutex<Peers>>,
        listening: Option<SocketAddr>,
        said: Arc<Said>,
        news: News,
    ) -> Self {
        Self {
            plane,
            peers,
            listening,
            said,
            opening: Mutex::default(),
            following: Mutex::default(),
            news: Owned::new(Arc::new(news)),
            dialing: Mutex::default(),
            lines: Lines::default(),
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
    pub(crate) fn peer_at(&self, remote: SocketAddr, until: Until) -> Result<Peer, OpenError> {
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
        // By whoever had this number before.
        lock(&inner.sessions.said).remove(&numbers.peer);
        let met = inner
            .sessions
            .plane
            .connect(
                numbers.peer,
                self.dials_from(remote),
                remote,
                until.within(CONNECT_TIMEOUT),
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
        numbers: Numbers,
        dialed: SocketAddr,
        met: &Introduction,
    ) -> Result<Peer, OpenError> {
        let inner = &self.inner;
        let met = &Introduction {
            transports: inner
                .transports
                .tried(&met.transports, met.session, met.secret.as_ref()),
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
                .workers
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
            (&numbers, &[]),
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
            secret: met.secret.clone(),
            incarnation: met.incarnation,
            rails,
            rails_wrong: None,
            met: Arc::new(met.clone()),
            scratch,
            notifies: met.features & NOTIFICATIONS != 0,
            parcels: met.features & PARCELS != 0,
            path,
        };
        self.attach_rails(&peer);
        peers.add(peer.clone());
        drop(peers);
        // There may be others since they were paired.
        self.look_at_rails(id);
        // What stands for its segments follows first, and then it is told.
        if !inner.segments.is_awaited(dialed) {
            self.tell_of_return(dialed);
        }
        Ok(peer)
    }

    /// What a peer is known for, with what it says of its rails now. Transports are those of the start: where on the network
    /// each is reached may be another, what was found out of the others holds.
    fn said_again(&self, before: &Introduction, said: Rails) -> Introduction {
        let catalog = &self.inner.transports;
        let is_own = |name: &str| {
            let position = catalog.names().iter().position(|known| *known == name);
            position.is_some_and(|position| catalog.has_own_rail(TransportId(position as u8)))
        };
        let encrypts = before.secret.as_ref().is_some_and(SessionSecret::encrypts);
        let mut met = before.clone();
        for offer in met
            .transports
            .iter_mut()
            .filter(|offer| !is_own(&offer.name))
        {
            let again = said
                .transports
                .iter()
                .find(|again| again.name == offer.name);
            let Some(again) = again else {
                continue;
            };
            let nothing = encrypts.then(|| catalog.unencrypted(again)).flatten();
            *offer = nothing.unwrap_or_else(|| again.clone());
        }
        Introduction {
            rails: said.addresses,
            rail_facts: said.facts,
            ..met
        }
    }

    /// Has it looked whether there are rails to a peer that are not used yet.
    pub(crate) fn look_at_rails(&self, id: PeerId) {
        let _ = self.inner.tasks.queue.send(Task::Rails(id));
    }

    /// Makes rails of what a peer and this host have now and had not when they met. Those whose ends are offered no more are
    /// withdrawn, the others stay as they are.
    pub(crate) fn renew_rails(&self, id: PeerId) {
        let inner = &self.inner;
        let found = lock(&inner.sessions.peers).get(id).cloned();
        let Some(peer) = found.filter(|peer| peer.path.is_none()) else {
            return;
        };
        let met = match lock(&inner.sessions.said).remove(&id) {
            None => peer.met.clone(),
            Some(said) => Arc::new(self.said_again(&peer.met, said)),
        };
        self.withdraw_rails(&peer, &met);
        let added = self.add_rails(&peer, met);
        let wrong = added.as_ref().err().map(OpenError::to_string);
        let before = lock(&inner.sessions.peers)
            .get_mut(id)
            .and_then(|known| std::mem::replace(&mut known.rails_wrong, wrong.clone()));
        // The peer says what it has on each of its connections.
        if let Some(wrong) = wrong.filter(|wrong| before.as_ref() != Some(wrong)) {
            log::info!("peer \"{}\": {wrong}", peer.name.escape_debug());
        }
        if let Ok(Some(peer)) = added {
            self.renew_plans(&peer);
        }
    }

    /// Has those rails to a peer carry nothing that are offered no more, and those carry again that are.
    fn withdraw_rails(&self, peer: &Peer, met: &Introduction) {
        let inner = &self.inner;
        let mut peers = lock(&inner.sessions.peers);
        let changed = peers.withdraw_rails(peer.id, &met.rails);
        if changed.is_empty() {
            return;
        }
        for (rail, is_used) in &changed {
            let (name, rail, is_used) = (peers.rail_name(*rail), *rail, *is_used);
            match is_used {
                true => log::info!("rail {name} is used again"),
                false => log::info!("rail {name} is withdrawn: an end of it is offered no more"),
            }
            inner.workers.tell(|| Command::Rail(rail, is_used));
        }
        if let Some(peer) = peers.get(peer.id) {
            inner.sessions.plane.maintain(peer.id, peer.ways());
        }
    }

    /// Installs the rails to a peer that are not there yet. `None`: there are none.
    fn add_rails(&self, peer: &Peer, met: Arc<Introduction>) -> Result<Option<Peer>, OpenError> {
        let inner = &self.inner;
        let (config, catalog) = (&inner.config, &inner.transports);
        let mut peers = lock(&inner.sessions.peers);
        let known = peers.get_mut(peer.id);
        let Some(known) = known.filter(|known| known.incarnation == peer.incarnation) else {
            return Ok(None);
        };
        known.met = met.clone();
        let (numbers, mut rails) = (known.numbers.clone(), known.rails.clone());
        let mut pairs = peers.pair_rails(peer.dialed, &met, config, catalog)?;
        let mut room = PlanRoom::beside(&rails);
        pairs.retain(|pair| {
            let is_there = rails.iter().any(|rail| rail.pair.is_of(pair));
            !is_there && pair.own.is_none() && room.take(pair)
        });
        if pairs.is_empty() {
            return Ok(None);
        }
        let (has, path) = (rails.len(), &config.path);
        let pairs = (pairs, met.round_trip);
        rails = peers.install_rails(&inner.fabric, (&numbers, &rails), pairs, path, catalog)?;
        let name = |rail: &PeerRail| peers.rail_name(rail.rail).to_owned();
        let names: Vec<_> = rails[has..].iter().map(name).collect();
        let known = peers.get_mut(peer.id).map(|known| {
            known.rails = rails;
            known.clone()
        });
        // Nobody makes the session anew meanwhile.
        known.iter().for_each(|peer| self.attach_rails(peer));
        drop(peers);
        for name in names {
            log::info!("rail {name} is used from now on");
        }
        Ok(known)
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
            self.inner.workers.tell(|| {
                let transports = &self.inner.transports;
                let secret = peer.secret.clone();
                let secret =
                    secret.map(|secret| transports.secret_for(rail.pair.transport, secret));
                let address = rail.pair.address(peer.session, secret);
                Command::AttachRail(rail.rail, address)
            });
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
                    self.renew_session(peer, met);
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

    fn renew_session(&self, mut peer: Peer, met: Introduction) {
        peer.session = met.session;
        peer.secret = met.secret;
        let said = Rails {
            addresses: met.rails,
            facts: met.rail_facts,
            transports: met.transports,
        };
        peer.met = Arc::new(self.said_again(&peer.met, said));
        let mut peers = lock(&self.inner.sessions.peers);
        let known = peers.get_mut(peer.id);
        let Some(known) = known.filter(|known| known.incarnation == peer.incarnation) else {
            // It was lost while it was dialed. Its number is still its own: `peer` has a share of it.
            return self.inner.sessions.plane.disconnect(peer.id);
        };
        known.session = peer.session;
        known.secret.clone_from(&peer.secret);
        known.met = peer.met.clone();
        // It may have got others.
        let peer = known.clone();
        self.attach_rails(&peer);
        drop(peers);
        self.look_at_rails(peer.id);
    }

    /// Gives up a peer whose process has ended, or whose address belongs to another one now. What is open with
    /// it ends by itself, and then its numbers are free.
    pub(crate) fn lose_peer(&self, id: PeerId, incarnation: u64) {
        if let Some(peer) = self.give_up(id, incarnation, false) {
            let (name, at) = (
                peer.name.escape_debug().to_string(),
                peer.dialed.to_string(),
            );
            complain!(by self.inner.sessions.lines; event = "peer_lost", peer = name.as_str(), address = at.as_str();
                "peer \"{name}\" at {at} is lost: open its segments anew");
            let incident = || format!("peer \"{name}\" at {at} is lost");
            self.inner.fabric.incident(incident);
        }
    }

    /// The same in good order, unless requests use its segments: whether it was done.
    pub(crate) fn leave_peer(&self, id: PeerId, incarnation: u64) -> bool {
        let left = self.give_up(id, incarnation, true);
        if let Some(peer) = &left {
            let (name, at) = (
                peer.name.escape_debug().to_string(),
                peer.dialed.to_string(),
            );
            remark!(event = "peer_left", peer = name.as_str(), address = at.as_str();
                "peer \"{name}\" at {at} was left before its end: open its segments anew once it has been started again");
        }
        left.is_some()
    }

    fn give_up(&self, id: PeerId, incarnation: u64, only_if_idle: bool) -> Option<Peer> {
        let inner = &self.inner;
        let remove = || lock(&inner.sessions.peers).remove(id, incarnation);
        let (peer, taken) = inner.segments.remove_peer(id, only_if_idle, remove)?;
        inner
            .sessions
            .plane
            .say_moved(id, peer.moved_bytes(&inner.fabric.shared()));
        inner.sessions.plane.disconnect(id);
        if let Some(stager) = inner.staging.cell.get() {
            stager.say(Word::PeerGone(id, None));
        }
        let TakenOut { segments, plans } = taken;
        let segments = segments.into_iter().map(SegmentId::segment_ref).collect();
        let lost = Leaving::new(peer.numbers.clone(), segments, plans, &inner.plans.ids);
        let lost = Arc::new(lost);
        self.inner
            .workers
            .tell(|| Command::ForgetPeer(lost.clone()));
        inner.sessions.news.lose(&peer);
        self.follow_away();
        Some(peer)
    }

    /// Takes the operator's word that the engine at `HOST:PORT` is gone and will write no more: as if its
    /// process had been seen to end. Requests to it end as `PeerLost`, and its segments are lost. `false`:
    /// there is no session with an engine there.
    ///
    /// Only right if it is true. What a process that does live still writes is written after its report.
    ///
    /// Example: [guide](crate::guide#changing-and-ending).
    pub fn declare_lost(&self, address: &str) -> Result<bool, OpenError> {
        let remote = resolve(address)?;
        let peer = lock(&self.inner.sessions.peers).at(remote).cloned();
        let Some(peer) = peer else {
            return Ok(false);
        };
        self.inner
            .workers
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

    use polyrail_core::work::Op;

    use crate::config::Config;
    use crate::error::SubmitError;
    use crate::request::Request;
    use polyrail_core::report::Status;

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

    #[test]
    fn lanes_of_a_session_that_is_made_anew_prove_themselves_with_its_secret() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("cluster.key");
        crate::keygen(&key).unwrap();
        let keyed = |config: Config| {
            let mut config = config;
            config.security.key_file = key.to_str().unwrap().into();
            Engine::new(config).unwrap()
        };
        let target = keyed(Config {
            listen: Some("127.0.0.1:0".parse().unwrap()),
            workers: 1,
            ..Config::named("target")
        });
        let access = Access::RemoteReadWrite;
        target.allocate("mem", 4096, access).unwrap();
        let at = target.listening().unwrap();
        let engine = keyed(Config {
            workers: 1,
            ..Config::named("initiator").without("shm")
        });
        let remote = engine.open_segment(&format!("{at}/mem")).unwrap();
        let local = engine.allocate("here", 4096, Access::Local).unwrap();
        let moves = || {
            let request = Request {
                op: Op::Write,
                local,
                local_offset: 0,
                remote,
                remote_offset: 0,
                length: 4096,
            };
            let batch = engine.submit(&[request]).unwrap();
            batch.wait(Duration::from_secs(30)).unwrap().status
        };
        assert_eq!(moves(), Status::Completed);
        let peer = lock(&engine.inner.sessions.peers).at(at).cloned().unwrap();
        for _ in 0..3 {
            engine.inner.sessions.plane.disconnect(peer.id);
            engine.reconnect(peer.id, peer.incarnation).unwrap();
            assert_eq!(moves(), Status::Completed);
        }
        let renewed = lock(&engine.inner.sessions.peers).at(at).cloned().unwrap();
        assert_ne!(renewed.session, peer.session);
        assert_eq!(engine.stats().lanes_denied, 0);
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

    #[test]
    fn who_submits_while_a_peer_is_given_up_hears_that_it_was_lost() {
        // While its segments were being taken out, a pair that had not met was told that they had been closed.
        for _ in 0..8 {
            let (_target, at, engine, remote) = pair(Vec::new());
            let allocate = |number: u32| {
                let allocated = engine.allocate(&format!("{number}"), 4096, Access::Local);
                allocated.unwrap()
            };
            let locals: Vec<_> = (0..200).map(allocate).collect();
            std::thread::scope(|scope| {
                let (meets, met) = std::sync::mpsc::sync_channel(0);
                let (engine, locals) = (&engine, &locals);
                scope.spawn(move || {
                    for (number, local) in locals.iter().enumerate() {
                        if number == 40 {
                            meets.send(()).unwrap();
                        }
                        let request = Request {
                            op: Op::Write,
                            local: *local,
                            local_offset: 0,
                            remote,
                            remote_offset: 0,
                            length: 4096,
                        };
                        match engine.submit(&[request]) {
                            Ok(_) | Err(SubmitError::PeerLost { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
                met.recv().unwrap();
                engine.declare_lost(&at.to_string()).unwrap();
            });
        }
    }
}
