//! Promises about memory: whose it is, and what may be done with it.

use polyrail_core::units::SegmentRef;
use polyrail_core::work::{Op, Work};
use polyrail_transport::RemoteRegion;
use polyrail_transport::memory::{Access, RegionKey};

use crate::Subject;
use crate::world::*;

/// Another segment of the peer's.
const OTHER: SegmentRef = SegmentRef(5);
const LENGTH: u32 = 4096;

/// A try with works that cannot be, each over a lane of its own epoch: a lane whose work has failed takes no more.
struct Refused {
    world: World,
    epoch: u32,
}

impl Refused {
    fn new(subject: &Subject) -> Said<Self> {
        let world = World::new(subject)?;
        poison(&world.here, 0xaa);
        poison(&world.there, 0xee);
        Ok(Self { world, epoch: 0 })
    }

    fn try_out(&mut self, work: Work, why: &str) -> Said<()> {
        self.epoch += 1;
        let epoch = polyrail_core::units::Epoch(self.epoch);
        let world = &mut self.world;
        world.open_lane(lane(0), epoch)?;
        world.completions.clear();
        world.fails(lane(0), epoch, work, why)?;
        world.fence_local(lane(0), epoch)?;
        world.idle()?;
        untouched(
            &world.there,
            0xee,
            &format!("at the peer by a work that {why}"),
        )?;
        untouched(&world.here, 0xaa, &format!("here by a work that {why}"))
    }
}

pub(crate) fn remote_range(subject: &Subject) -> Said<()> {
    let mut refused = Refused::new(subject)?;
    for op in [Op::Write, Op::Read] {
        for (offset, why) in [
            (BYTES - 1, "ends past the peer's segment"),
            (BYTES, "begins behind the peer's segment"),
            (
                u64::MAX - 1,
                "is so far behind the peer's segment that its end overflows",
            ),
        ] {
            let mut work = work(1, op, 0, LENGTH);
            work.remote.offset = offset;
            refused.try_out(work, why)?;
        }
    }
    Ok(())
}

pub(crate) fn local_range(subject: &Subject) -> Said<()> {
    let mut refused = Refused::new(subject)?;
    for op in [Op::Write, Op::Read] {
        let mut beyond = work(1, op, 0, LENGTH);
        beyond.local.offset = BYTES - 1;
        refused.try_out(beyond, "ends past the local segment")?;
        let mut nameless = work(1, op, 0, LENGTH);
        nameless.local.segment = SegmentRef(77);
        refused.try_out(nameless, "names a local segment that was never attached")?;
    }
    refused.world.endpoint.detach_local(LOCAL);
    refused.try_out(
        work(1, Op::Write, 0, LENGTH),
        "names a local segment that was detached",
    )
}

pub(crate) fn access(subject: &Subject) -> Said<()> {
    let mut refused = Refused::new(subject)?;
    let on_it = |op| {
        let mut work = work(1, op, 0, LENGTH);
        work.remote.segment = OTHER;
        work
    };
    for access in [Access::RemoteRead, Access::Local] {
        let region = refused.world.add(access)?;
        poison(&region, 0xdd);
        refused.world.endpoint.attach_remote(OTHER, named(&region));
        refused.try_out(on_it(Op::Write), "writes what peers may not write")?;
        untouched(&region, 0xdd, "though peers may not write there")?;
        if !access.allows_remote_read() {
            refused.try_out(on_it(Op::Read), "reads what peers may not read")?;
        }
        refused.world.endpoint.detach_remote(OTHER);
        refused.world.table.remove(&region);
    }
    Ok(())
}

pub(crate) fn keys(subject: &Subject) -> Said<()> {
    let mut refused = Refused::new(subject)?;
    let nothing = RemoteRegion {
        key: RegionKey([1; 16]),
        bytes: BYTES,
    };
    refused.world.endpoint.attach_remote(OTHER, nothing);
    for op in [Op::Write, Op::Read] {
        let mut work = work(1, op, 0, LENGTH);
        work.remote.segment = OTHER;
        refused.try_out(work, "has a key that opens nothing")?;
    }
    Ok(())
}

pub(crate) fn revoked(subject: &Subject) -> Said<()> {
    let (mut world, _) = World::open(subject)?;
    // It has been used, so whatever a transport keeps of it is kept.
    world.carry_out(lane(0), ONE, &[work(1, Op::Write, 0, LENGTH)])?;
    let there = world.there.clone();
    world.table.remove(&there);
    // Whoever copies may be asked to leave first.
    let going = {
        let there = there.clone();
        std::thread::spawn(move || there.revoke())
    };
    world.until("the end of memory that is taken back", |_| {
        going.is_finished().then_some(())
    })?;
    poison(&there, 0xee);
    world.completions.clear();
    world.fails(
        lane(0),
        ONE,
        work(2, Op::Write, 0, LENGTH),
        "is for memory that its owner has taken back",
    )?;
    world.idle()?;
    untouched(&there, 0xee, "after its owner had taken the memory back")
}
