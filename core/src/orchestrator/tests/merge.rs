//! Small neighbours that go as one.

use super::*;

pub(super) const KIB: u64 = 1024;

/// A request of a row: its place, in KiB from the end of the one before, and what it is otherwise.
#[derive(Clone, Copy)]
pub(super) struct Next {
    pub(super) gap_kib: u64,
    pub(super) kib: u64,
    pub(super) op: Op,
    pub(super) priority: Priority,
    pub(super) deadline: Instant,
}

pub(super) const NEXT: Next = Next {
    gap_kib: 0,
    kib: 4,
    op: Op::Write,
    priority: Priority::Normal,
    deadline: Instant::MAX,
};

impl World<'_> {
    /// Submits a row of requests, tags from 0 on, in one batch.
    pub(super) fn submit_row(&mut self, row: &[Next]) -> Vec<RequestId> {
        let batch = self.core.open_batch(0).expect("a free batch");
        let mut end = 0;
        let mut ids = Vec::new();
        for (tag, next) in (0..).zip(row) {
            let offset = end + next.gap_kib * KIB;
            end = offset + next.kib * KIB;
            self.owners.insert(tag, offset..end);
            let request = Request {
                tag,
                plan: PLAN,
                batch,
                local_offset: offset,
                remote_offset: offset,
                length: next.kib * KIB,
                deadline: next.deadline,
                priority: next.priority,
                op: next.op,
            };
            ids.push(self.core.submit(self.now, &request).expect("submit"));
        }
        self.core.seal_batch(batch);
        ids
    }
}

/// A world whose only lane is open, and idle.
fn open_world() -> World<'static> {
    let mut world = World::new(Policy::Spray, 1);
    world.submit(99, Op::Write, 1);
    world.run_until_reported(1, Duration::from_millis(100));
    world.reports.clear();
    world.arrived.clear();
    world.owners.clear();
    world
}

#[test]
fn what_lies_together_and_is_alike_goes_as_one() {
    let later = ms(5_000);
    let deadline = Next {
        deadline: later,
        ..NEXT
    };
    let read = Next {
        op: Op::Read,
        ..NEXT
    };
    let high = Next {
        priority: Priority::High,
        ..NEXT
    };
    let big = Next { kib: 60, ..NEXT };
    let far = Next { gap_kib: 4, ..NEXT };
    let slice = Next { kib: 64, ..NEXT };
    // (name, requests, works)
    let cases: [(_, &[Next], _); 12] = [
        ("one", &[NEXT], 1),
        ("two", &[NEXT, NEXT], 1),
        ("as many as make a slice", &[NEXT; 16], 1),
        ("and no more", &[NEXT; 17], 2),
        ("up to the last byte of it", &[big, NEXT, NEXT], 2),
        ("whole slices go alone", &[slice, NEXT, NEXT], 2),
        ("not over a gap", &[NEXT, far, NEXT], 2),
        ("reads too", &[read, read], 1),
        ("not a read and a write", &[NEXT, read], 2),
        ("of one priority", &[NEXT, high, high], 2),
        ("of one deadline", &[deadline, deadline, NEXT], 2),
        ("urgent ones", &[high, high], 1),
    ];
    for (name, row, works) in cases {
        let mut world = open_world();
        world.submit_row(row);
        world.run_until_reported(row.len(), Duration::from_millis(100));
        assert_eq!(world.arrived.len(), works, "{name}");
        assert_eq!(world.reports.len(), row.len(), "{name}");
        for (tag, next) in (0..).zip(row) {
            let report = world.reports[&tag];
            assert_eq!(report.status, Status::Completed, "{name}");
            assert_eq!(report.delivered_bytes, next.kib * KIB, "{name}");
        }
        assert_eq!(world.core.requests(), 0, "{name}");
    }
}

#[test]
fn what_is_on_its_way_is_not_added_to() {
    let mut world = open_world();
    world.submit_row(&[NEXT; 2]);
    world.drain();
    let offset = 8 * KIB;
    world.submit_at(PLAN, 2, Op::Write, offset, 4 * KIB, Priority::Normal);
    world.run_until_reported(3, Duration::from_millis(100));
    assert_eq!(world.arrived, [(0, offset), (offset, 4 * KIB)].into());
}

#[test]
fn longer_ones_are_made_where_a_lane_takes_few() {
    // One read at a time of 50 us over 1 GB/s, and any number of writes. Those that are longer than a slice alone went alone.
    let cases = [
        (Op::Read, 12, 16, 1..=2),
        (Op::Write, 12, 16, 4..=4),
        (Op::Read, 96, 4, 2..=3),
        (Op::Write, 96, 4, 8..=8),
    ];
    for (op, kib, count, works) in cases {
        let mut world = World::new(Policy::Spray, 1);
        world.limits[0].reads_max = 1;
        world.submit(99, Op::Write, 1);
        world.run_until_reported(1, Duration::from_millis(100));
        world.reports.clear();
        world.arrived.clear();
        let row = Next { kib, op, ..NEXT };
        world.submit_row(&vec![row; count]);
        world.run_until_reported(count, Duration::from_millis(100));
        assert!(
            works.contains(&world.arrived.len()),
            "{op:?} {kib}: {:?}",
            world.arrived
        );
        assert_eq!(world.reports.len(), count);
        for report in world.reports.values() {
            assert_eq!(report.status, Status::Completed, "{op:?} {kib}");
            assert_eq!(report.delivered_bytes, kib * KIB, "{op:?} {kib}");
        }
    }
}

#[test]
fn merging_can_be_turned_off() {
    let mut config = Config::new(0, Policy::Spray);
    config.merge_requests = false;
    let mut world = World::with(config, &[0]);
    world.submit_row(&[NEXT; 16]);
    world.run_until_reported(16, Duration::from_millis(100));
    assert_eq!(world.arrived.len(), 16);
}

#[test]
fn a_cancelled_name_waits_for_the_bytes_of_the_others() {
    // (name, cancelled, works that arrive, statuses)
    let (done, cancelled) = (Status::Completed, Status::Cancelled);
    let cases: [(_, &[usize], _, [Status; 3]); 3] = [
        ("none", &[], 1, [done; 3]),
        // Its bytes went with the others, and it says so.
        ("one", &[1], 1, [done; 3]),
        ("all", &[0, 1, 2], 0, [cancelled; 3]),
    ];
    for (name, marked, works, statuses) in cases {
        let mut world = open_world();
        let ids = world.submit_row(&[NEXT; 3]);
        for index in marked {
            let answer = world.core.cancel(world.now, ids[*index]);
            assert_eq!(answer, Cancelled::Marked, "{name}");
            let again = world.core.cancel(world.now, ids[*index]);
            assert_ne!(again, Cancelled::Stale, "{name}");
        }
        world.run_until_reported(3, Duration::from_millis(300));
        assert_eq!(world.arrived.len(), works, "{name}");
        let seen = [0, 1, 2].map(|tag| world.reports[&tag].status);
        assert_eq!(seen, statuses, "{name}");
        assert_eq!(world.core.requests(), 0, "{name}");
    }
}

#[test]
fn names_end_at_their_deadline_together() {
    let mut world = open_world();
    world.links[0].cut = true;
    let row = [Next {
        deadline: ms(60),
        ..NEXT
    }; 3];
    world.submit_row(&row);
    world.run_until_reported(3, Duration::from_secs(5));
    for tag in 0..3 {
        let report = world.reports[&tag];
        assert_eq!(report.cause, Some(Cause::DeadlineExceeded), "{report:?}");
    }
}

#[test]
fn names_share_what_becomes_of_their_bytes() {
    let mut world = open_world();
    world.ends_after = Duration::from_secs(6);
    world.submit_row(&[NEXT; 3]);
    world.drain();
    // Posted, and the peer stops: nobody can prove that nothing of it will land.
    world.stopped = true;
    world.run_until_reported(3, Duration::from_secs(5));
    for tag in 0..3 {
        let report = world.reports[&tag];
        assert_eq!(report.status, Status::Indeterminate);
        assert_eq!(
            (report.delivered_bytes, report.local, report.remote),
            (0, Local::Held, Remote::Unknown)
        );
    }
    assert_eq!(world.known, []);
    world.run(world.now + Duration::from_secs(10));
    let free = [0, 1, 2].map(|tag| (tag, Local::Released, Remote::Unknown));
    assert_eq!(world.known, free);
    world.stopped = false;
    world.run(world.now + Duration::from_secs(2));
    assert_eq!(world.settled, [0, 1, 2]);
    assert_eq!(world.core.requests(), 0, "a row is left behind");
}

#[test]
fn a_transfer_that_one_name_is_to_blame_for_is_taken_apart() {
    // What the first name's bytes do to any work that they are in.
    let poisoned: fn(RailId, &Work) -> Option<Cause> =
        |_, work| (work.remote.offset == 0).then_some(Cause::RemoteAccess);
    let mut world = open_world();
    world.corrupts = poisoned;
    world.submit_row(&[NEXT; 3]);
    world.run_until_reported(3, Duration::from_secs(5));
    let seen = [0, 1, 2].map(|tag| (world.reports[&tag].status, world.reports[&tag].cause));
    let good = (Status::Completed, None);
    assert_eq!(
        seen,
        [(Status::Failed, Some(Cause::RemoteAccess)), good, good]
    );
    world.run(world.now + Duration::from_secs(1));
    assert_eq!(world.core.requests(), 0, "a row is left behind");
}

#[test]
fn a_transfer_is_taken_apart_once() {
    let mut world = open_world();
    world.submit_row(&[NEXT; 3]);
    world.drain();
    // Two copies of it may fail one after the other.
    let is_transfer = |(_, row): &(RequestId, &request::RequestRow)| !row.role.is_submitted();
    let (id, _) = world
        .core
        .requests
        .iter()
        .find(is_transfer)
        .expect("a transfer");
    for _ in 0..2 {
        world.core.fail_request(world.now, id, Cause::RemoteAccess);
        world.drain();
    }
    world.run_until_reported(3, Duration::from_secs(1));
    let completed = |report: &Report| report.status == Status::Completed;
    assert!(world.reports.len() == 3 && world.reports.values().all(completed));
}

#[test]
fn a_lost_rail_is_no_matter() {
    let mut world = World::new(Policy::Spray, 2);
    world.submit_row(&[NEXT; 3]);
    world.run(ms(1));
    world.submit_at(PLAN, 3, Op::Write, 1 << 30, 4 * KIB, Priority::Normal);
    world.submit_at(
        PLAN,
        4,
        Op::Write,
        (1 << 30) + 4 * KIB,
        4 * KIB,
        Priority::Normal,
    );
    world.drain();
    world.links.iter_mut().for_each(|link| link.cut = true);
    world.run(ms(20));
    world.links[1].cut = false;
    world.run_until_reported(5, Duration::from_secs(5));
    let completed = |report: &Report| report.status == Status::Completed;
    assert!(world.reports.len() == 5 && world.reports.values().all(completed));
}

#[test]
fn without_a_row_for_the_transfer_each_goes_alone() {
    let mut world = open_world();
    let many = [Next { gap_kib: 4, ..NEXT }; 62];
    let mut row = Vec::from(many);
    // The last rows of the table are the two that would go together.
    row.extend([Next { gap_kib: 4, ..NEXT }, NEXT]);
    world.submit_row(&row);
    world.run_until_reported(16, Duration::from_millis(100));
    assert_eq!(world.arrived.len(), 64);
}
