//! The seam between core and a policy, from another crate: one of its own, and what core's own costs without the others.

use std::mem::size_of;

use polyrail_core::orchestrator::{Config, Event, LaneAction, Orchestrator, Request, Store};
use polyrail_core::path::class::RailClass;
use polyrail_core::plan::{Plan, PlanRail, PlanTransport};
use polyrail_core::rail::chooser::{Chooser, Sharing, Spray};
use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::rail::policies::Policies;
use polyrail_core::rail::select::Candidate;
use polyrail_core::rail::{Device, Rail, RailConfig, Shared, Waiting};
use polyrail_core::report::Status;
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{DeviceId, PeerId, PlanId, RailId, Rate, SegmentRef, TransportId};
use polyrail_core::work::{
    Completion, LaneFact, LaneLimits, Op, Outcome, Place, PostBatch, Priority, Stop,
};

const RAILS: u16 = 4;
const SLICE_BYTES: u32 = 65_536;
const SLICES: u64 = 12;
const PLAN: PlanId = PlanId {
    index: 0,
    generation: 1,
};

/// Ours: slices go to every other rail in turn, and it counts them.
#[derive(Debug)]
struct EveryOther {
    last: RailId,
    chosen: u32,
}

impl Sharing for EveryOther {}

impl Chooser for EveryOther {
    fn choose(&mut self, _: TransportId, rails: &[Candidate], length: u32) -> Option<usize> {
        assert_eq!(length, SLICE_BYTES);
        let next = RailId((self.last.0 + 2) % RAILS);
        rails
            .iter()
            .position(|rail| rail.rail == next && rail.has_room)
    }

    fn took(&mut self, _: TransportId, rail: RailId) {
        self.last = rail;
        self.chosen += 1;
    }
}

fn estimate() -> EstimateConfig {
    EstimateConfig {
        rate_nominal: Rate::from_bytes_per_sec(1_000_000_000),
        delay_base: Duration::ZERO,
        tier: 0,
        slice_span: Duration::ZERO,
        batch_span: Duration::ZERO,
    }
}

fn plan() -> Plan {
    let place = |segment| Place {
        segment: SegmentRef(segment),
        offset: 0,
    };
    let rail = |number| PlanRail {
        rail: RailId(number),
        tier: 0,
        class: RailClass::PRIMARY,
    };
    Plan {
        peer: PeerId(0),
        local: SegmentRef(1),
        remote: SegmentRef(2),
        transports: [PlanTransport {
            transport: TransportId(0),
            rails: (0..RAILS).map(rail).collect(),
        }]
        .into_iter()
        .collect(),
        scratch_local: place(8),
        scratch_remote: place(9),
        scratch_bytes: SLICE_BYTES,
        path: None,
    }
}

/// Moves twelve slices over rails on which everything arrives at once. Slices of each rail.
fn carried<P: Chooser>(core: &mut Orchestrator<'_, P>) -> [u32; RAILS as usize] {
    let mut now = Instant::ZERO;
    assert!(core.install_plan(now, PLAN, &plan()));
    let batch = core.open_batch(7).expect("a row");
    let request = Request {
        tag: 1,
        plan: PLAN,
        batch,
        local_offset: 0,
        remote_offset: 0,
        length: SLICES * u64::from(SLICE_BYTES),
        deadline: Instant::MAX,
        op: Op::Write,
        priority: Priority::Normal,
    };
    let id = core.submit(now, &request).expect("room for it");
    let mut slices = [0; RAILS as usize];
    let mut out = PostBatch::default();
    for _ in 0..200 {
        now = now + Duration::from_micros(100);
        let mut arrived = Vec::new();
        while let Some(post) = core.poll_post(now, &mut out) {
            let (lane, epoch) = (out.lane, out.epoch);
            for work in &out.works {
                slices[lane.rail().index()] += u32::from(work.remote.segment == SegmentRef(2));
                arrived.push(Completion {
                    lane,
                    epoch,
                    cookie: work.cookie,
                    outcome: Outcome::Success,
                    at: now,
                });
            }
            assert!(core.handle_posted(now, post, out.works.len(), Stop::All));
        }
        while let Some(action) = core.poll_lane() {
            if let LaneAction::Open { lane, epoch, .. } = action {
                let limits = LaneLimits::new(64, 1 << 20);
                core.handle_lane(now, lane, epoch, LaneFact::Opened { limits });
            }
        }
        core.handle_completions(now, &arrived);
        core.handle_timeout(now);
        while let Some(event) = core.poll_event() {
            if let Event::RequestDone { request, .. } = event {
                assert_eq!(request, id);
                let report = core.take(id).expect("it has ended");
                assert_eq!(report.status, Status::Completed);
                return slices;
            }
        }
    }
    panic!("it has not ended: {slices:?}");
}

/// A core over rails of this test's own.
fn with_core<P: Chooser>(policy: P, look: impl FnOnce(&mut Orchestrator<'_, P>)) {
    let rails = [const { Rail::EMPTY }; RAILS as usize];
    let (devices, waiting) = ([const { Device::EMPTY }; RAILS as usize], [Waiting::NO]);
    let shared = Shared::new(&rails, &devices, &waiting, SLICE_BYTES);
    for number in 0..RAILS {
        let config = RailConfig {
            peer: PeerId(0),
            device: DeviceId(number),
            far: None,
            estimate: estimate(),
        };
        assert!(shared.install_device(DeviceId(number), estimate()));
        assert!(shared.install_rail(RailId(number), config));
    }
    let mut store: Store<1, 1, { RAILS as usize }, 4, 64, 2> = Store::new();
    let config = Config::new(0, policy);
    look(&mut Orchestrator::new(config, &shared, store.tables()));
}

#[test]
fn another_crates_policy_chooses_the_rails() {
    let ours = EveryOther {
        last: RailId(1),
        chosen: 0,
    };
    with_core(ours, |core| {
        assert_eq!(carried(core), [0, 6, 0, 6]);
        assert_eq!(core.policy().chosen, SLICES as u32);
    });
}

#[test]
fn core_compiled_for_spray_has_no_field_for_the_others() {
    let (sprays, any) = (
        size_of::<Orchestrator<'_>>(),
        size_of::<Orchestrator<'_, Policies<'_>>>(),
    );
    assert_eq!(size_of::<Spray>(), 0);
    assert!(
        any >= sprays + size_of::<Policies<'_>>(),
        "{sprays} bytes, {any} bytes with all policies"
    );
}
