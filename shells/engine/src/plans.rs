//! Plans: how bytes move between two segments.

use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex};

use polyrail_core::plan::Plan;
use polyrail_core::slice::SLICE_BYTES;
use polyrail_core::transport::MemoryKind;
use polyrail_core::units::{PlanId, SegmentRef};
use polyrail_core::work::Place;

use crate::engine::Engine;
use crate::error::SubmitError;
use crate::lock::lock;
use crate::machine::Whereabouts;
use crate::peers::Peer;
use crate::post::Command;
use crate::request::Request;
use crate::segments::{LocalSegment, NoPlan, RemoteSegment, SegmentId};

/// What all plans of an engine share.
pub(crate) struct Plans {
    pub(crate) ids: Arc<Mutex<PlanIds>>,
    /// The memory that probes come from and go to.
    pub(crate) scratch: SegmentId,
    /// Some plan has a transport that carries works out at once. Without, nobody looks for it on every submission.
    pub(crate) carries_at_once: AtomicBool,
}

impl Plans {
    /// None yet, and so many pairs of segments at a time.
    pub(crate) fn new(scratch: SegmentId, most: usize) -> Self {
        Self {
            ids: Arc::new(Mutex::new(PlanIds::new(most))),
            scratch,
            carries_at_once: AtomicBool::new(false),
        }
    }
}

/// Numbers for plans, reused with a new generation.
pub(crate) struct PlanIds {
    /// How many there can be.
    most: usize,
    last: u32,
    free: Vec<PlanId>,
}

impl PlanIds {
    fn new(most: usize) -> Self {
        Self {
            most,
            last: 0,
            free: Vec::new(),
        }
    }

    /// Lets others have the numbers of plans that are retired.
    pub(crate) fn free(&mut self, plans: impl IntoIterator<Item = PlanId>) {
        self.free.extend(plans);
    }

    /// How many are in use.
    pub(crate) fn used(&self) -> usize {
        self.last as usize - self.free.len()
    }

    fn take(&mut self) -> Option<PlanId> {
        if let Some(PlanId { index, generation }) = self.free.pop() {
            return Some(PlanId {
                index,
                generation: generation.wrapping_add(1),
            });
        }
        let index = self.last;
        ((index as usize) < self.most).then(|| {
            self.last += 1;
            PlanId {
                index,
                generation: 1,
            }
        })
    }
}

impl Engine {
    /// The plan of a request's two segments, made if there is none.
    pub(crate) fn pair(&self, index: usize, request: &Request) -> Result<PlanId, SubmitError> {
        let inner = &self.inner;
        let stale = |segment| inner.segments.missing(index, segment);
        let local = inner
            .segments
            .local(request.local)
            .ok_or_else(|| stale(request.local))?;
        let remote = inner
            .segments
            .remote(request.remote)
            .ok_or_else(|| stale(request.remote))?;
        // Before anything is locked.
        let whereabouts = self.whereabouts(&local.region);
        self.pin_for_gpu(&local, &remote);
        let ids = (request.local, request.remote);
        inner
            .segments
            .plan(
                ids,
                || self.make_plan(ids, (&local, &whereabouts), &remote),
                |idle| self.retire_plans(idle),
            )
            .map_err(|why| match why {
                NoPlan::Stale(segment) => stale(segment),
                NoPlan::Full => SubmitError::Plans {
                    limit: inner.config.limits.pairs,
                },
            })
    }

    fn make_plan(
        &self,
        ids: (SegmentId, SegmentId),
        (local, whereabouts): (&LocalSegment, &Whereabouts),
        remote: &RemoteSegment,
    ) -> Result<PlanId, NoPlan> {
        let inner = &self.inner;
        let known = lock(&inner.sessions.peers).get(remote.peer).cloned();
        let plan = match known {
            Some(peer) => {
                let here = (local.region.memory(), whereabouts);
                let there = (remote.descriptor.memory, remote.descriptor.numa_node);
                Some(self.plan_to(&peer, ids, here, there))
            }
            None => self.plan_to_disk(remote.peer, ids),
        };
        // The peer is lost, and its segments have gone with it.
        let plan = plan.ok_or(NoPlan::Stale(ids.1))?;
        let id = lock(&inner.plans.ids).take().ok_or(NoPlan::Full)?;
        let mut transports = plan.transports.iter();
        if transports.any(|row| inner.transports.carries_at_once(row.transport)) {
            inner.plans.carries_at_once.store(true, Relaxed);
        }
        self.inner
            .workers
            .tell(|| Command::InstallPlan(id, Box::new(plan.clone())));
        Ok(id)
    }

    /// How bytes move between a segment whose memory is `here`, of that kind and in that place, and one of a peer, on the node
    /// that it has told.
    fn plan_to(
        &self,
        peer: &Peer,
        (local, remote): (SegmentId, SegmentId),
        here: (MemoryKind, &Whereabouts),
        there: (MemoryKind, Option<u16>),
    ) -> Plan {
        let inner = &self.inner;
        let place = |segment: SegmentRef| Place { segment, offset: 0 };
        Plan {
            peer: peer.id,
            local: local.segment_ref(),
            remote: remote.segment_ref(),
            transports: peer.plan_transports(&inner.transports, here, there),
            scratch_local: place(inner.plans.scratch.segment_ref()),
            scratch_remote: place(peer.scratch.segment_ref()),
            scratch_bytes: SLICE_BYTES,
            path: peer.path.map(|path| path.plan),
        }
    }

    /// Has the plans to a peer name all of its rails. Requests that have them use those for what is not on its way yet.
    pub(crate) fn renew_plans(&self, peer: &Peer) {
        let segments = &self.inner.segments;
        for ids in segments.pairs_with(peer.id) {
            let (Some(local), Some(remote)) = (segments.local(ids.0), segments.remote(ids.1))
            else {
                continue;
            };
            // Before anything is locked.
            let whereabouts = self.whereabouts(&local.region);
            let here = (local.region.memory(), &whereabouts);
            let there = (remote.descriptor.memory, remote.descriptor.numa_node);
            let plan = self.plan_to(peer, ids, here, there);
            // Its number means this pair as long as nobody can retire it.
            let known = segments.known();
            if let Some(pair) = known.pair(ids) {
                let plan = || Command::InstallPlan(pair.plan, Box::new(plan.clone()));
                self.inner.workers.tell(plan);
            }
        }
    }

    pub(crate) fn retire_plans(&self, plans: Vec<PlanId>) {
        for plan in &plans {
            self.inner.workers.tell(|| Command::RetirePlan(*plan));
        }
        lock(&self.inner.plans.ids).free(plans);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::net::SocketAddr;
    use std::time::Duration;

    use polyrail_core::work::Op;
    use polyrail_transport::memory::Access;

    use polyrail_core::plan::PlanRail;
    use polyrail_core::topology::RailMap;
    use polyrail_cuda::Distance;
    use polyrail_cuda::stub::{Machine as StubMachine, Stub};

    use crate::config::Config;
    use crate::machine::{Device, DeviceState, Machine};
    use crate::peers::Peers;
    use crate::start::Hooks;

    const GIGABIT: u64 = 1_000_000_000;

    /// A machine with memory on node 1 and these devices: last number of the address, name, node, speed.
    fn machine(devices: &[(u8, &str, Option<u16>, Option<u64>)]) -> Machine {
        let device = |(host, name, numa_node, speed): &(u8, &str, _, _)| Device {
            name: (*name).into(),
            state: DeviceState::Up,
            speed_bits_per_sec: *speed,
            numa_node: *numa_node,
            addresses: vec![[127, 0, 0, *host].into()],
        };
        Machine {
            devices: devices.iter().map(device).collect(),
            memory_node: |_| Some(1),
            // By the last letter of its name, so that each can be had.
            gpu_distance: |gpu, name| {
                assert_eq!(gpu, "ffff:01:00.0");
                match name.chars().last()? {
                    's' => Some(Distance::Switch),
                    'b' => Some(Distance::Bridge),
                    'n' => Some(Distance::Node),
                    'y' => Some(Distance::System),
                    _ => None,
                }
            },
        }
    }

    /// An engine there that uses these addresses, mapped to the nearest ones.
    fn engine_on(machine: Machine, hosts: &[u8], listen: bool) -> Engine {
        engine_with(machine, hosts, listen, Hooks::default())
    }

    fn engine_with(machine: Machine, hosts: &[u8], listen: bool, hooks: Hooks) -> Engine {
        let config = Config {
            listen: listen.then(|| SocketAddr::from(([127, 0, 0, hosts[0]], 0))),
            rails: hosts.iter().map(|host| [127, 0, 0, *host].into()).collect(),
            rail_map: RailMap::Nearest,
            workers: 1,
            ..Config::named("one of two").without("shm")
        };
        Engine::on(machine, config, hooks).unwrap()
    }

    /// The rails of an engine that knows `here` to one that knows `there`: their names, tiers, and the rates in
    /// Gbit/s that they are assumed to have.
    fn rails_between(here: (Machine, &[u8]), there: (Machine, &[u8])) -> Vec<(String, u8, u64)> {
        let target = engine_on(there.0, there.1, true);
        let access = Access::RemoteReadWrite;
        target.allocate("mem", 4096, access).unwrap();
        let at = target.listening().unwrap();
        let engine = engine_on(here.0, here.1, false);
        let local = engine.allocate("here", 4096, Access::Local).unwrap();
        let remote = engine.open_segment(&format!("{at}/mem")).unwrap();
        let peer = lock(&engine.inner.sessions.peers).at(at).unwrap().clone();
        let region = engine.region(local).unwrap();
        let place = engine.whereabouts(&region);
        let there = engine.inner.segments.remote(remote).unwrap();
        let plan = engine.plan_to(
            &peer,
            (local, remote),
            (MemoryKind::Host, &place),
            (MemoryKind::Host, there.descriptor.numa_node),
        );
        let shared = engine.inner.fabric.shared();
        let rails = plan
            .all_rails()
            .map(|PlanRail { rail, tier, .. }| {
                let rate = shared.view(rail).unwrap().rate.bytes_per_sec();
                let name = lock(&engine.inner.sessions.peers)
                    .rail_name(rail)
                    .to_owned();
                (name, tier, rate * 8 / GIGABIT)
            })
            .collect();
        // And bytes move.
        let batch = engine.submit(&[Request {
            op: Op::Write,
            local,
            local_offset: 0,
            remote,
            remote_offset: 0,
            length: 4096,
        }]);
        let report = batch.unwrap().wait(Duration::from_secs(5)).unwrap();
        assert_eq!(report.status, polyrail_core::report::Status::Completed);
        rails
    }

    #[test]
    fn rails_have_the_tier_and_rate_of_their_device() {
        let here = machine(&[
            (1, "eth0", Some(0), Some(100 * GIGABIT)),
            (2, "eth1", Some(1), Some(25 * GIGABIT)),
            (3, "eth2", None, None),
        ]);
        let rails = rails_between((here, &[1, 2, 3, 4]), (machine(&[]), &[1, 2, 3, 4]));
        let devices = [(1, 1, 100), (2, 0, 25), (3, 0, 10), (4, 0, 10)];
        let to = |there: fn(u8) -> u8| {
            let name = move |host| format!("tcp:127.0.0.{host}>127.0.0.{}", there(host));
            devices.map(|(host, tier, rate)| (name(host), tier, rate))
        };
        // Each, and its spare.
        let expected = [to(|host| host), to(|host| host % 4 + 1)].concat();
        assert_eq!(rails, expected);
    }

    #[test]
    fn the_way_from_the_device_to_the_memory_counts_on_both_sides() {
        let [near, far] = ["eth0", "eth1"];
        let two = || machine(&[(1, near, Some(0), None), (2, far, Some(1), None)]);
        let silent = || Machine {
            memory_node: |_| None,
            ..two()
        };
        // Memory is on node 1, where that is known; of each device its rail, then their spares.
        let cases = [
            ("both know", two(), two(), [2, 0, 1, 1]),
            ("only this side", two(), silent(), [1, 0, 1, 0]),
            ("only the peer", silent(), two(), [1, 0, 0, 1]),
            ("nobody", silent(), silent(), [0; 4]),
        ];
        for (name, here, there, tiers) in cases {
            let rails = rails_between((here, &[1, 2]), (there, &[1, 2]));
            let seen: Vec<_> = rails.iter().map(|(_, tier, _)| *tier).collect();
            assert_eq!(seen, tiers, "{name}: {rails:?}");
        }
    }

    #[test]
    fn tiers_of_a_gpus_memory_go_by_the_way_on_the_bus() {
        let names = ["mlx-s", "mlx-b", "mlx-n", "mlx-y", "eth0", "eth1"];
        let nodes = [0, 0, 0, 0, 0, 1].map(Some);
        let devices: Vec<_> = (1..)
            .zip(names)
            .zip(nodes)
            .map(|((host, name), node)| (host, name, node, None))
            .collect();
        let hosts = [1, 2, 3, 4, 5, 6];
        let target = engine_on(machine(&[]), &hosts, true);
        let access = Access::RemoteReadWrite;
        target.allocate("mem", 4096, access).unwrap();
        let at = target.listening().unwrap();
        let hooks = Hooks {
            cuda: Some(Arc::new(Stub::new(StubMachine::default()))),
            ..Hooks::default()
        };
        let engine = engine_with(machine(&devices), &hosts, false, hooks);
        let gpu = engine.allocate_on_gpu("gpu", 1, 4096, Access::Local);
        let gpu = gpu.unwrap();
        let remote = engine.open_segment(&format!("{at}/mem")).unwrap();
        let peer = lock(&engine.inner.sessions.peers).at(at).unwrap().clone();
        let place = engine.whereabouts(&engine.region(gpu).unwrap());
        let here = (MemoryKind::Host, &place);
        let there = (MemoryKind::Host, None);
        let plan = engine.plan_to(&peer, (gpu, remote), here, there);
        let tiers: Vec<_> = plan.all_rails().map(|rail| rail.tier).collect();
        // Where the bus says nothing, the node does, which is 1 for all memory here.
        let (rails, spares) = tiers.split_at(6);
        assert_eq!((rails, spares), (&[0, 0, 1, 2, 1, 0][..], rails));
    }

    #[test]
    fn what_an_operator_says_of_rails_counts_more_than_their_devices() {
        let spray = |gbps| Config {
            spray: crate::config::SprayConfig {
                nominal_bandwidth_gbps: gbps,
                ..Default::default()
            },
            ..Config::default()
        };
        assert!(Config::default().asks_devices() && spray(10.0).asks_devices());
        assert!(!spray(40.0).asks_devices());
        let eth0 = machine(&[(1, "eth0", None, Some(100 * GIGABIT))]);
        for (asks_devices, gigabits) in [(true, 100), (false, 10)] {
            let peers = Peers::new(
                Config::default().estimate(),
                Arc::new(eth0.clone()),
                asks_devices,
                &Config::default().limits,
                Vec::new(),
            );
            let rate = peers.estimate(Some([127, 0, 0, 1].into())).rate_nominal;
            assert_eq!(rate.bytes_per_sec() * 8 / GIGABIT, gigabits);
        }
    }

    #[test]
    fn nothing_is_far_on_a_machine_that_says_nothing() {
        let rails = rails_between((machine(&[]), &[1, 2]), (machine(&[]), &[1, 2]));
        assert!(
            rails
                .iter()
                .all(|(_, tier, rate)| (*tier, *rate) == (0, 10)),
            "{rails:?}"
        );
    }

    #[test]
    fn rails_lead_to_the_devices_that_face_each_other() {
        let here = machine(&[
            (1, "eth0", Some(0), None),
            (2, "eth1", Some(1), None),
            (3, "ib0", Some(1), None),
        ]);
        // It lists them in another order, and calls one something else.
        let there = machine(&[(5, "mlx0", Some(1), None), (6, "eth0", Some(0), None)]);
        let rails = rails_between((here, &[1, 2, 3]), (there, &[5, 6]));
        let names: Vec<_> = rails.iter().map(|(name, ..)| &name[..]).collect();
        let expected = [
            "tcp:127.0.0.1>127.0.0.6",
            "tcp:127.0.0.2>127.0.0.5",
            "tcp:127.0.0.3>127.0.0.5",
            "tcp:127.0.0.1>127.0.0.5",
            "tcp:127.0.0.2>127.0.0.6",
            "tcp:127.0.0.3>127.0.0.6",
        ];
        assert_eq!(names, expected);
    }
}
