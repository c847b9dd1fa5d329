//! The rails to a peer: what they join, and how they are numbered and installed.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use polyrail_control::plane::Introduction;
use polyrail_core::path::class::RailClass;
use polyrail_core::plan::{PLAN_RAILS_MAX, PLAN_TRANSPORTS_MAX, PlanRail, PlanTransport};
use polyrail_core::rail::RailConfig;
use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::time::Duration;
use polyrail_core::topology::{self, DeviceFacts, RailMap, Spare};
use polyrail_core::units::{DeviceId, PeerId, RailId, Rate, TransportId};
use polyrail_transport::ticket::SessionSecret;
use polyrail_transport::{RailAddress, SessionId};

use super::devices::LocalDevice;
use super::{Numbers, Peers};
use crate::config::{Config, PathConfig};
use crate::error::{Limit, OpenError};
use crate::fabric::Fabric;
use crate::machine::facts_of;
use crate::transports::Catalog;

/// What a rail joins.
#[derive(Clone, Debug)]
pub(crate) struct RailPair {
    pub(crate) transport: TransportId,
    pub(crate) local: Option<IpAddr>,
    pub(crate) remote: SocketAddr,
    /// The NUMA node of its local device.
    pub(crate) node: Option<u16>,
    /// The NUMA node of its remote device.
    pub(crate) remote_node: Option<u16>,
    /// The remote address of the rail of the same transport and local address that it stands in for; `None`: it is no spare.
    pub(crate) stands_in_for: Option<SocketAddr>,
    /// Where the peer's transport itself is, if that is not on the network; the address above only names the peer.
    pub(crate) own: Option<Arc<[u8]>>,
}

/// What two engines know of each other's devices and transports.
struct Ends<'a> {
    dialed: SocketAddr,
    locals: &'a [IpAddr],
    remotes: &'a [SocketAddr],
    here: Vec<DeviceFacts<'a>>,
    there: Vec<DeviceFacts<'a>>,
    introduction: &'a Introduction,
    catalog: &'a Catalog,
}

impl Ends<'_> {
    /// Which devices are joined, by their positions.
    fn pairs(&self, map: RailMap) -> Result<Vec<(usize, usize)>, OpenError> {
        let pairs = map.pairs(&self.here, &self.there);
        let pairs: Vec<_> = pairs
            .map_err(|mismatch| OpenError::Rails {
                peer: self.dialed,
                mismatch,
            })?
            .collect();
        match pairs.len() > PLAN_RAILS_MAX {
            true => Err(OpenError::Full(Limit {
                what: "rails to one peer",
                most: PLAN_RAILS_MAX,
                key: "",
                held_by: "rails and rail_map ask for more".into(),
            })),
            false => Ok(pairs),
        }
    }

    /// Spares for pairs, on the fabric of each: who is on another one cannot be reached.
    fn spares(&self, pairs: &[(usize, usize)], path: &PathConfig) -> Vec<Spare> {
        let class = |at: &usize| path.class(self.locals.get(pairs[*at].0).copied());
        let mut spares = Vec::new();
        for fabric in RailClass::all() {
            let of_pairs = (0..pairs.len()).filter(|at| class(at) == fabric);
            let positions: Vec<_> = of_pairs.collect();
            let on: Vec<_> = positions.iter().map(|at| pairs[*at]).collect();
            let found = topology::spares(&on, &self.here, &self.there);
            spares.extend(found.iter().map(|spare| Spare {
                of: positions[spare.of],
                ..*spare
            }));
        }
        spares.truncate(PLAN_RAILS_MAX.saturating_sub(pairs.len()));
        spares
    }

    fn rail(&self, transport: TransportId, (local, remote): (usize, usize)) -> RailPair {
        RailPair {
            transport,
            local: self.locals.get(local).copied(),
            remote: self.remotes[remote],
            node: self.here.get(local).and_then(|device| device.node),
            remote_node: self.there[remote].node,
            stands_in_for: None,
            own: None,
        }
    }

    /// The rail of a transport that is not on the network.
    fn own_rail(&self, transport: TransportId) -> Option<RailPair> {
        let name = self.catalog.name(transport);
        let mut offers = self.introduction.transports.iter();
        let address = &offers.find(|offer| offer.name == name)?.address;
        let has_own = self.catalog.has_own_rail(transport);
        has_own.then(|| RailPair {
            transport,
            local: None,
            remote: self.dialed,
            node: None,
            remote_node: None,
            stands_in_for: None,
            own: Some(address.as_slice().into()),
        })
    }

    /// Whether a transport works between these two.
    fn carries(&self, transport: TransportId, at: (usize, usize)) -> bool {
        let offers = &self.introduction.transports;
        self.catalog.serves(transport, offers, at.1)
            && self.catalog.runs_at(&self.rail(transport, at))
    }

    /// The rails of a transport.
    fn rails(&self, transport: TransportId, pairs: &[(usize, usize)]) -> Vec<RailPair> {
        if let Some(own) = self.own_rail(transport) {
            return vec![own];
        }
        let carried = pairs.iter().filter(|at| self.carries(transport, **at));
        carried.map(|at| self.rail(transport, *at)).collect()
    }

    /// The spares of a transport: of those of these rails that are its. Nobody is asked again whether it has them: a device may
    /// have come since, and what stands in for no rail would be one.
    fn stand_ins(
        &self,
        transport: TransportId,
        pairs: &[(usize, usize)],
        (spares, rails): (&[Spare], &[RailPair]),
    ) -> Vec<RailPair> {
        let stand_in = |spare: &Spare| {
            let (local, partner) = pairs[spare.of];
            let at = (local, spare.remote);
            let stand_in = RailPair {
                stands_in_for: Some(self.remotes[partner]),
                ..self.rail(transport, at)
            };
            let is_one = rails.iter().any(|rail| stand_in.may_stand_in_for(rail))
                && self.carries(transport, at);
            is_one.then_some(stand_in)
        };
        spares.iter().filter_map(stand_in).collect()
    }
}

/// Connecting may take this long on a busy host without a peer being far. A delay believed too long makes the first bytes look
/// as if they had taken no time.
const FAR_ROUND_TRIP: Duration = Duration::from_millis(2);

impl RailPair {
    pub(crate) fn address(&self, session: SessionId, secret: Option<SessionSecret>) -> RailAddress {
        RailAddress {
            transport: self.transport,
            local: self.local,
            remote: self.remote,
            session,
            secret,
            own: self.own.clone().unwrap_or_default(),
        }
    }

    /// The two addresses that it joins, if it is on the network.
    fn ends(&self) -> Option<(Option<IpAddr>, SocketAddr)> {
        self.own.is_none().then_some((self.local, self.remote))
    }

    /// Whether it joins the same two ends, as a rail or as a spare.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        let ends = |pair: &Self| (pair.transport, pair.local, pair.remote);
        ends(self) == ends(other)
    }

    /// Whether it is used only while another one is out.
    pub(crate) fn is_spare(&self) -> bool {
        self.stands_in_for.is_some()
    }

    /// Whether that is this one.
    fn may_stand_in_for(&self, other: &Self) -> bool {
        let ends = |pair: &Self, remote| (pair.transport, pair.local, remote);
        !other.is_spare()
            && other.own.is_none()
            && self.stands_in_for.map(|remote| ends(self, remote))
                == Some(ends(other, other.remote))
    }

    /// `TRANSPORT:LOCAL>REMOTE`; `*` where the kernel chooses.
    fn name(&self, transport: &str) -> String {
        match self.local {
            Some(local) => format!("{transport}:{local}>{}", self.remote.ip()),
            None => format!("{transport}:*>{}", self.remote.ip()),
        }
    }
}

/// The peer's device that a rail ends at, with others: as one of these knows it, or else in a row of its own.
fn far_device(
    fabric: &Fabric,
    others: &[PeerRail],
    rail: RailId,
    pair: &RailPair,
    estimate: EstimateConfig,
) -> Option<DeviceId> {
    let mut there = others
        .iter()
        .filter(|other| other.pair.remote == pair.remote);
    there.find_map(|other| other.far).or_else(|| {
        let far = fabric.far_device(rail)?;
        fabric.install_device(far, estimate, None);
        Some(far)
    })
}

/// One rail of a peer.
#[derive(Clone, Debug)]
pub(crate) struct PeerRail {
    pub(crate) rail: RailId,
    pub(crate) pair: RailPair,
    /// The fabric of its local device.
    pub(crate) class: RailClass,
    /// The peer's device that it ends at, if one from another local device ended there when it came.
    far: Option<DeviceId>,
    /// An operator has taken one of its ends out of use since.
    pub(crate) is_withdrawn: bool,
}

/// How many rails each transport has, of as many as a plan can name.
pub(crate) struct PlanRoom(Vec<TransportId>);

impl PlanRoom {
    /// What is left beside these.
    pub(crate) fn beside(rails: &[PeerRail]) -> Self {
        Self(rails.iter().map(|rail| rail.pair.transport).collect())
    }

    /// Takes room for one more. `false`: there is none.
    pub(crate) fn take(&mut self, pair: &RailPair) -> bool {
        let of_transport = self.0.iter().filter(|taken| **taken == pair.transport);
        let fits = of_transport.count() < PLAN_RAILS_MAX;
        if fits {
            self.0.push(pair.transport);
        }
        fits
    }
}

impl Peers {
    pub(crate) fn rail_names(&self) -> &[String] {
        &self.rail_names
    }

    /// What a rail is called.
    pub(crate) fn rail_name(&self, rail: RailId) -> &str {
        self.rail_names
            .get(rail.index())
            .map_or("?", String::as_str)
    }

    /// Rails that an operator has taken an end of out of use.
    pub(crate) fn withdrawn_rails(&self) -> BTreeSet<RailId> {
        let rails = self.peers.iter().flat_map(|peer| &peer.rails);
        let withdrawn = rails.filter(|rail| rail.is_withdrawn);
        withdrawn.map(|rail| rail.rail).collect()
    }

    /// The rails to a peer that has introduced itself, of every transport that both ends have; behind them their spares.
    pub(crate) fn pair_rails(
        &self,
        dialed: SocketAddr,
        introduction: &Introduction,
        config: &Config,
        catalog: &Catalog,
    ) -> Result<Vec<RailPair>, OpenError> {
        let locals = &self.locals;
        let remotes = match introduction.rails.is_empty() {
            true => std::slice::from_ref(&dialed),
            false => &introduction.rails[..],
        };
        let fact = |position| facts_of(introduction.rail_facts.get(position));
        let ends = Ends {
            dialed,
            locals,
            remotes,
            here: (locals.iter().map(|local| self.machine.facts(*local))).collect(),
            there: (0..remotes.len()).map(fact).collect(),
            introduction,
            catalog,
        };
        let pairs = ends.pairs(config.rail_map)?;
        let common = catalog.common(&introduction.transports);
        if common.is_empty() {
            return Err(OpenError::NoTransport {
                peer: dialed,
                ours: catalog.names(),
                theirs: introduction.transport_names(),
            });
        }
        let spares = ends.spares(&pairs, &config.path);
        let transports = || common.iter().copied();
        let rails = transports().flat_map(|transport| ends.rails(transport, &pairs));
        let mut rails: Vec<_> = rails.collect();
        let of = (&spares[..], &rails[..]);
        let spares = transports().flat_map(|transport| ends.stand_ins(transport, &pairs, of));
        let spares: Vec<_> = spares.collect();
        rails.extend(spares);
        Ok(rails)
    }

    /// Finds out which rails to a peer are withdrawn, now that it offers these addresses: an end of such a rail is offered no
    /// more. The answer is those that are withdrawn now, or used again.
    pub(crate) fn withdraw_rails(
        &mut self,
        id: PeerId,
        offered: &[SocketAddr],
    ) -> Vec<(RailId, bool)> {
        let Self { locals, peers, .. } = self;
        let is_offered = |pair: &RailPair| {
            let here = pair.local.is_none_or(|local| locals.contains(&local));
            let there = offered.is_empty() || offered.contains(&pair.remote);
            pair.own.is_some() || here && there
        };
        let rails = peers.iter_mut().filter(|peer| peer.id == id);
        let changed = rails.flat_map(|peer| &mut peer.rails).filter_map(|rail| {
            let is_used = is_offered(&rail.pair);
            let was_used = !std::mem::replace(&mut rail.is_withdrawn, !is_used);
            (is_used != was_used).then_some((rail.rail, is_used))
        });
        changed.collect()
    }

    /// Numbers the rails to a peer behind those that it `has`, and installs them. It is known how long the way there and back
    /// took. The answer is all of them.
    pub(crate) fn install_rails(
        &mut self,
        fabric: &Fabric,
        (numbers, has): (&Numbers, &[PeerRail]),
        (mut pairs, round_trip): (Vec<RailPair>, Duration),
        path: &PathConfig,
        catalog: &Catalog,
    ) -> Result<Vec<PeerRail>, Limit> {
        self.gather_freed();
        let room = self.rails_room();
        // They come last. Most of all rails are not for them, so that they are in no peer's way.
        let room_with_spares = room.saturating_sub(self.limits.rails / 8 * 7);
        while pairs.len() > room_with_spares && pairs.pop_if(|pair| pair.is_spare()).is_some() {}
        if pairs.len() > room {
            return Err(self.rails_limit());
        }
        let mut devices = Vec::new();
        for pair in &pairs {
            devices.push(self.device(fabric, LocalDevice::of(pair, catalog))?);
        }
        let mut rails = has.to_vec();
        let all = rails.iter().map(|rail| &rail.pair).chain(&pairs);
        let ends: Vec<_> = all.filter_map(RailPair::ends).collect();
        for (pair, device) in pairs.into_iter().zip(devices) {
            let rail = self.take_rail();
            numbers.add_rail(rail);
            let estimate = self.rail_estimate(&pair, round_trip, catalog);
            let meets = |end: &(_, _)| end.1 == pair.remote && end.0 != pair.local;
            let far = match pair.own.is_none() && ends.iter().any(meets) {
                true => far_device(fabric, &rails, rail, &pair, estimate),
                false => None,
            };
            let config = RailConfig {
                peer: numbers.peer,
                device,
                far,
                estimate,
            };
            let name = pair.name(catalog.name(pair.transport));
            let of = rails
                .iter()
                .find(|other| pair.may_stand_in_for(&other.pair));
            self.install_rail(fabric, (rail, of.map(|of| of.rail)), config, name);
            rails.push(PeerRail {
                rail,
                class: path.class(pair.local),
                far,
                is_withdrawn: false,
                pair,
            });
        }
        Ok(rails)
    }

    /// Installs a rail, or a spare for another one.
    fn install_rail(
        &mut self,
        fabric: &Fabric,
        (rail, of): (RailId, Option<RailId>),
        config: RailConfig,
        name: String,
    ) {
        match of {
            Some(of) => fabric.install_spare(rail, of, config, &name),
            None => fabric.install_rail(rail, config, &name),
        }
        match self.rail_names.get_mut(rail.index()) {
            Some(old) => *old = name,
            None => self.rail_names.push(name),
        }
    }

    /// Numbers the rails to a disk, one for each of its transports, and installs them. They are called
    /// `TRANSPORT:DISK`.
    pub(crate) fn install_disk(
        &mut self,
        fabric: &Fabric,
        numbers: &Numbers,
        disk: &str,
        estimate: EstimateConfig,
        transports: &[(TransportId, &'static str)],
    ) -> Result<heapless::Vec<PlanTransport, PLAN_TRANSPORTS_MAX>, Limit> {
        self.gather_freed();
        if transports.len() > self.rails_room() {
            return Err(self.rails_limit());
        }
        let device = self.take_device(fabric, LocalDevice::Disk(disk.into()), estimate, None)?;
        let rails = transports.iter().map(|(transport, name)| {
            let rail = self.take_rail();
            numbers.add_rail(rail);
            let config = RailConfig {
                peer: numbers.peer,
                device,
                far: None,
                estimate,
            };
            self.install_rail(fabric, (rail, None), config, format!("{name}:{disk}"));
            self.disk_rails.push((device, rail));
            let rail = PlanRail {
                rail,
                tier: 0,
                class: RailClass::PRIMARY,
            };
            PlanTransport {
                transport: *transport,
                rails: [rail].into_iter().collect(),
            }
        });
        Ok(rails.collect())
    }

    /// How many rails there can be besides those in use.
    fn rails_room(&self) -> usize {
        self.limits.rails + self.free_rails.len() - self.rail_names.len()
    }

    /// That there can be no more rails, and who has them.
    fn rails_limit(&self) -> Limit {
        let of_peers: usize = self.peers.iter().map(|peer| peer.rails.len()).sum();
        let others = self.limits.rails - self.rails_room() - of_peers;
        let peers = self.peers.len();
        Limit {
            what: "rails",
            most: self.limits.rails,
            key: "limits/rails",
            held_by: format!(
                "{of_peers} to {peers} peers, and {others} to disks and GPUs of this host and to peers that are just leaving"
            ),
        }
    }

    /// A number for a rail: the lowest that is free, or a new one.
    fn take_rail(&mut self) -> RailId {
        let free = self.free_rails.pop_first();
        RailId(free.unwrap_or(self.rail_names.len() as u16))
    }

    /// The same for a rail, whose transport may know more of it.
    ///
    /// A window that is too short for the way there and back does more than slow the rail for a while: congestion control
    /// that goes by rates, such as BBR, takes what the window lets through for what the network can carry, and then needs
    /// seconds to find out. What is too long is corrected by the first completion.
    fn rail_estimate(
        &self,
        pair: &RailPair,
        round_trip: Duration,
        catalog: &Catalog,
    ) -> EstimateConfig {
        let mut estimate = self.estimate(pair.local);
        if pair.own.is_none() && round_trip >= FAR_ROUND_TRIP {
            estimate.delay_base = estimate.delay_base.max(round_trip);
        }
        let prior = catalog.prior(pair);
        if let Some(speed) = prior.bits_per_sec.filter(|_| self.asks_devices) {
            estimate.rate_nominal = Rate::from_bits_per_sec(speed);
        }
        if prior.carries_itself {
            estimate.slice_span = Duration::ZERO;
        }
        estimate.batch_span = prior.batch_span;
        estimate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::time::Instant;

    use polyrail_core::transport::Capabilities;
    use polyrail_core::units::{Epoch, LaneId};
    use polyrail_tcp::TcpTransport;
    use polyrail_transport::clock::Clock;
    use polyrail_transport::memory::Access;
    use polyrail_transport::{Endpoint, FenceAnswer, InboundLane, RetireAnswer, Transport};

    use crate::Hooks;
    use crate::engine::Engine;
    use crate::fabric::DEVICES_MAX;
    use crate::lock::lock;
    use crate::transports::Plugin;

    const FIRST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const SECOND: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));

    /// How often it is still to be asked for the second device until that is there.
    static QUESTIONS_LEFT: AtomicU32 = AtomicU32::new(0);

    /// A transport whose second device comes while it is asked for it.
    struct Late(TcpTransport);

    impl Transport for Late {
        fn name(&self) -> &'static str {
            "late"
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities::HOST
        }

        fn runs_at(&self, local: Option<IpAddr>, _: SocketAddr) -> bool {
            let one_less = |left: u32| left.checked_sub(1);
            local != Some(SECOND)
                || QUESTIONS_LEFT
                    .fetch_update(Relaxed, Relaxed, one_less)
                    .is_err()
        }

        fn endpoint(&self, worker: u16, clock: Clock) -> io::Result<Box<dyn Endpoint>> {
            self.0.endpoint(worker, clock)
        }

        fn admit(&self, lane: InboundLane) {
            self.0.admit(lane);
        }

        fn fence_inbound(
            &self,
            session: SessionId,
            lane: LaneId,
            epoch: Epoch,
            answer: FenceAnswer,
        ) {
            self.0.fence_inbound(session, lane, epoch, answer);
        }

        fn retire_session(&self, session: SessionId, answer: RetireAnswer) {
            self.0.retire_session(session, answer);
        }
    }

    #[test]
    fn a_device_that_comes_while_it_is_asked_for_gets_a_rail_and_spares_and_no_spare_is_a_rail() {
        let start = |name: &str, listen| {
            let config = Config {
                listen,
                workers: 1,
                rails: vec![FIRST, SECOND],
                ..Config::named(name).without("shm")
            };
            let plugin = Plugin {
                make: |regions| Arc::new(Late(TcpTransport::named("late", regions))),
                faults: None,
            };
            let hooks = Hooks {
                transports: vec![plugin],
                ..Hooks::default()
            };
            Engine::with_hooks(config, hooks).unwrap()
        };
        let target = start("target", Some((FIRST, 0).into()));
        target.allocate("mem", 4096, Access::RemoteRead).unwrap();
        let at = target.listening().unwrap();
        for questions in 0..12 {
            let engine = start("initiator", None);
            QUESTIONS_LEFT.store(questions, Relaxed);
            engine.open_segment(&format!("{at}/mem")).unwrap();
            // As many looks as a thread that follows devices may take.
            let begin = Instant::now();
            let rails = loop {
                engine.tell_of_rails();
                let rails = engine.rails().into_iter();
                let rails = rails.filter(|rail| rail.name.starts_with("late"));
                let rails: Vec<_> = rails.map(|rail| (rail.name, rail.is_spare)).collect();
                if QUESTIONS_LEFT.load(Relaxed) == 0 && rails.len() == 4 {
                    break rails;
                }
                let patience = std::time::Duration::from_secs(20);
                assert!(begin.elapsed() < patience, "{questions}: {rails:?}");
                std::thread::yield_now();
            };
            for (here, there) in [
                (FIRST, FIRST),
                (FIRST, SECOND),
                (SECOND, FIRST),
                (SECOND, SECOND),
            ] {
                let wanted = (format!("late:{here}>{there}"), here != there);
                assert!(rails.contains(&wanted), "{questions}: {rails:?}");
            }
        }
    }

    #[test]
    fn rails_from_several_devices_know_the_device_of_the_peer_that_they_end_at() {
        // By local and remote device, in order, and those of the peer's devices that rails share.
        let cases = [
            (
                "paired",
                RailMap::Paired,
                vec![(1, 1), (2, 2), (1, 2)],
                vec![None; 3],
            ),
            (
                "all",
                RailMap::All,
                vec![(1, 1), (1, 2), (2, 1), (2, 2)],
                vec![Some(0), Some(1), Some(0), Some(1)],
            ),
            (
                "some",
                RailMap::Nearest,
                vec![(1, 1), (2, 2), (3, 1)],
                vec![Some(0), None, Some(0)],
            ),
            (
                "one here",
                RailMap::All,
                vec![(1, 1), (1, 2)],
                vec![None; 2],
            ),
        ];
        for (name, rail_map, ends, expected) in cases {
            let engine = Engine::new(Config {
                workers: 1,
                rail_map,
                ..Config::named(name)
            });
            let engine = engine.unwrap();
            let inner = &engine.inner;
            let (fabric, path, catalog) = (&inner.fabric, &inner.config.path, &inner.transports);
            let pair = |(local, remote): &(u8, u8)| RailPair {
                transport: TransportId(0),
                local: Some([127, 0, 0, *local].into()),
                remote: SocketAddr::from(([127, 0, 1, *remote], 7)),
                node: None,
                remote_node: None,
                stands_in_for: None,
                own: None,
            };
            let mut peers = lock(&inner.sessions.peers);
            let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
            for _ in 0..3 {
                let numbers = peers.take_numbers().unwrap();
                let pairs = (ends.iter().map(pair).collect(), Duration::ZERO);
                let rails = peers.install_rails(fabric, (&numbers, &[]), pairs, path, catalog);
                let rails = rails.unwrap();
                let first = DEVICES_MAX as u16 + rails[0].rail.0;
                let shared: Vec<_> = rails.iter().map(|rail| rail.far).collect();
                let wanted: Vec<_> = expected
                    .iter()
                    .map(|of| of.map(|of: u16| DeviceId(first + of)))
                    .collect();
                assert_eq!(shared, wanted, "{name}");
                // Each peer's are its own.
                for far in shared.into_iter().flatten().collect::<BTreeSet<_>>() {
                    assert!(seen.insert(far), "{name}: {far:?} of another peer");
                }
                all.push(numbers);
            }
        }
    }

    #[test]
    fn as_many_peers_as_a_cluster_has_get_eight_rails_each() {
        // There was room for 64 of them, and for 32 with spares.
        let engine = Engine::new(Config {
            workers: 1,
            ..Config::named("one of many")
        });
        let engine = engine.unwrap();
        let (fabric, catalog) = (&engine.inner.fabric, &engine.inner.transports);
        let path = &engine.inner.config.path;
        let tcp = catalog.names().iter().position(|name| *name == "tcp");
        let transport = TransportId(tcp.unwrap() as u8);
        let rail = |number: u8| RailPair {
            transport,
            local: Some([127, 0, 0, number].into()),
            remote: SocketAddr::from(([127, 0, 1, number], 7)),
            node: None,
            remote_node: None,
            stands_in_for: None,
            own: None,
        };
        let spare = |number: u8| RailPair {
            remote: SocketAddr::from(([127, 0, 1, number % 8 + 1], 7)),
            stands_in_for: Some(rail(number).remote),
            ..rail(number)
        };
        let mut peers = lock(&engine.inner.sessions.peers);
        let mut all = Vec::new();
        while let Ok(numbers) = peers.take_numbers() {
            let pairs: Vec<_> = (1..=8).map(rail).chain((1..=8).map(spare)).collect();
            let pairs = (pairs, Duration::ZERO);
            let rails = peers.install_rails(fabric, (&numbers, &[]), pairs, path, catalog);
            let rails = rails.unwrap();
            let spares = rails.iter().filter(|rail| rail.pair.is_spare()).count();
            assert_eq!(rails.len(), 8 + spares, "peer {}", all.len());
            all.push((numbers, spares));
        }
        assert_eq!(all.len(), 1024);
        assert_eq!((all[0].1, all[1023].1), (8, 0));
        // Those that go make room, also for spares.
        all.clear();
        let numbers = peers.take_numbers().unwrap();
        let pairs = (vec![rail(1), spare(1)], Duration::ZERO);
        let rails = peers.install_rails(fabric, (&numbers, &[]), pairs, path, catalog);
        assert_eq!(rails.unwrap().len(), 2);
    }
}
