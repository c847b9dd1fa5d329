//! Who goes first, and that nobody is forgotten.

use super::super::line::Held;
use super::*;

const BIG: u64 = 64 << 20;

/// A world in which one request, which takes 67 ms, has been on its way for a while.
fn busy(priority: Priority) -> World<'static> {
    let mut world = World::new(Policy::Spray, 1);
    world.submit_as(PLAN, 0, Op::Write, BIG, priority);
    world.run(Instant::ZERO + Duration::from_millis(5));
    world
}

#[test]
fn who_comes_later_and_matters_more_goes_first() {
    use Priority::{High, Low, Normal};
    let slice = u64::from(SLICE);
    // (name, priority of the big one, of the other, its bytes, whether it overtakes)
    let cases = [
        ("high before normal", Normal, High, 4 * slice, true),
        ("high before low", Low, High, 4 * slice, true),
        ("normal before low", Low, Normal, 4 * slice, true),
        ("a short one before a long one", Normal, Normal, slice, true),
        ("not of the same kind", Normal, Normal, 2 * slice, false),
        ("low after normal", Normal, Low, slice, false),
        ("normal after high", High, Normal, slice, false),
    ];
    for (name, big, other, length, overtakes) in cases {
        let mut world = busy(big);
        let since = world.now;
        world.submit_as(PLAN, 1, Op::Write, length, other);
        // As long as a window of the big one and itself take.
        world.run(since + Duration::from_micros(900));
        assert_eq!(world.reports.contains_key(&1), overtakes, "{name}");
        assert!(!world.reports.contains_key(&0), "{name}");
        world.run_until_reported(2, Duration::from_secs(1));
        assert!(
            world
                .reports
                .values()
                .all(|report| report.status == Status::Completed)
        );
    }
}

/// When a request of four slices is reported that is submitted while others of higher priority keep coming, if it
/// is within 200 ms.
fn under_pressure(promotion: Duration) -> Option<Duration> {
    let mut config = Config::new(0, Policy::Spray);
    config.priority_promotion = promotion;
    let mut world = World::with(config, &[0]);
    let length = 4 * u64::from(SLICE);
    let until = world.now + Duration::from_millis(200);
    let mut tag = 1;
    while world.now < until && !world.reports.contains_key(&0) {
        while world.core.requests() < 8 {
            world.submit_as(PLAN, tag, Op::Write, length, Priority::High);
            tag += 1;
            if tag == 4 {
                world.submit_as(PLAN, 0, Op::Write, length, Priority::Low);
            }
        }
        world.run(world.now + Duration::from_micros(100));
    }
    world
        .reports
        .contains_key(&0)
        .then(|| world.now.since(Instant::ZERO))
}

#[test]
fn nothing_starves() {
    let took = under_pressure(Duration::from_millis(10));
    // Three steps up, and its turn in the first class.
    let bound = Duration::from_millis(35);
    assert!(took.is_some_and(|took| took <= bound), "{took:?}");
    assert_eq!(
        under_pressure(Duration::MAX),
        None,
        "without promotion it does"
    );
}

#[test]
fn what_is_urgent_finds_room_above_full_windows() {
    let posted = |priority: Priority| {
        let mut world = busy(Priority::Normal);
        let before = world.core.shared.inflight_bytes(RailId(0));
        world.submit_as(PLAN, 1, Op::Write, u64::from(SLICE), priority);
        world.drain();
        world.core.shared.inflight_bytes(RailId(0)) - before
    };
    assert_eq!(posted(Priority::High), u64::from(SLICE));
    assert_eq!(posted(Priority::Normal), 0);
}

#[test]
fn what_holds_rows_goes_before_what_waits_for_one() {
    // One that had moved up already stayed behind those that there was no row for, and never got its slices sent again.
    for policy in Policy::ALL {
        let mut config = Config::new(0, policy);
        config.priority_promotion = Duration::from_millis(1);
        let mut world = World::with_attempts(config, &[0, 0], 4);
        let length = 16 * u64::from(SLICE);
        world.submit(0, Op::Write, length);
        world.run(Instant::ZERO + Duration::from_micros(200));
        world.links[0].cut = true;
        world.submit_as(PLAN, 1, Op::Write, length, Priority::High);
        world.run(Instant::ZERO + Duration::from_millis(4));
        world.reset_rail(0);
        world.run_until_reported(2, Duration::from_secs(1));
        let done = world.reports.values();
        let done = done.filter(|report| report.status == Status::Completed);
        assert_eq!(done.count(), 2, "{policy:?}");
    }
}

#[test]
fn what_is_not_urgent_stays_in_the_windows_behind_what_is() {
    // Both are bound in one go, the urgent one first, and above the window.
    let posted = |priority: Priority| {
        let mut world = busy(Priority::Normal);
        world.submit_as(PLAN, 1, Op::Write, u64::from(SLICE), priority);
        world.drain();
        world.core.shared.inflight_bytes(RailId(0))
    };
    let slice = u64::from(SLICE);
    assert_eq!(posted(Priority::High), posted(Priority::Low) + slice);
    let mut world = busy(Priority::Normal);
    let room = world
        .core
        .shared
        .healthy(RailId(0))
        .expect("it is healthy")
        .room(world.now, 0);
    for tag in 1..10 {
        world.submit_as(PLAN, tag, Op::Write, slice, Priority::High);
        world.drain();
    }
    let inflight = world.core.shared.inflight_bytes(RailId(0));
    assert!(
        inflight > room.window_bytes,
        "urgent ones are above the window"
    );
    // One of them at a time ends now, and the long one is behind them: it must wait until the window has room.
    let mut above = 0;
    for _ in 0..40 {
        let next = world.next_time();
        world.now = next;
        world.happen();
        let before = world.core.shared.inflight_bytes(RailId(0));
        let window = world.core.shared.window_bytes(RailId(0));
        let urgent = world.core.urgent;
        world.drain();
        let after = world.core.shared.inflight_bytes(RailId(0));
        above += usize::from(before > window);
        assert!(
            urgent > 0 || after == before || after <= window,
            "{before} {after} {window}"
        );
    }
    assert!(above > 0, "it came to that");
}

/// The lines of a peer as they would be written down, one for reads and one for writes: the requests of each class.
#[derive(Default)]
struct Written([[Vec<u32>; 5]; 2]);

impl Written {
    fn len(&self) -> usize {
        self.0.iter().flatten().map(Vec::len).sum()
    }

    fn remove(&mut self, request: u32) {
        for class in self.0.iter_mut().flatten() {
            class.retain(|other| *other != request);
        }
    }

    /// Those that may go first, of both lines: the first of the best class that a line has.
    fn first(&self) -> Vec<u32> {
        let of_class = |class: usize| self.0.iter().filter_map(move |line| line[class].first());
        let best = (0..5).map(|class| of_class(class).copied().collect::<Vec<_>>());
        best.into_iter()
            .find(|first| !first.is_empty())
            .unwrap_or_default()
    }

    /// All of a line, in the order in which they go.
    fn in_order(&self, line: usize) -> Vec<u32> {
        self.0[line].concat()
    }
}

/// Does random things to the lines of a peer, and asks each time who goes first, and who goes after whom.
fn lines_are_as_written(steps: Vec<(u8, u8)>) -> bool {
    let mut world = World::new(Policy::Spray, 1);
    let mut written = Written::default();
    for (tag, (step, pick)) in (0..).zip(steps.into_iter().take(60)) {
        let (line, class) = (usize::from(pick / 8 % 2), usize::from(pick % 4) + 1);
        let of_class = &written.0[line][class];
        let picked =
            (!of_class.is_empty()).then(|| of_class[usize::from(step / 4) % of_class.len()]);
        match (step % 4, picked) {
            (0 | 1, _) if written.len() < 16 => {
                let (priority, length) = match class {
                    1 => (Priority::High, 1),
                    2 => (Priority::Normal, 1),
                    3 => (Priority::Normal, 1 << 20),
                    _ => (Priority::Low, 1),
                };
                let batch = world.core.open_batch(tag).unwrap_or_default();
                let request = Request {
                    tag,
                    plan: PLAN,
                    batch,
                    // Apart, so that none are merged.
                    local_offset: tag << 30,
                    remote_offset: tag << 30,
                    length,
                    deadline: Instant::MAX,
                    priority,
                    op: [Op::Read, Op::Write][line],
                };
                let Ok(id) = world.core.submit(world.now, &request) else {
                    break;
                };
                written.0[line][class].push(id.index);
            }
            (2, Some(request)) => {
                world.core.leave_line(PEER, request);
                written.remove(request);
            }
            (3, Some(request)) => {
                let route = world.core.route_of(request).unwrap();
                let pending = &mut world.core.peers[0].pending;
                pending.push_first(&mut world.core.requests, request, route);
                written.remove(request);
                written.0[line][0].insert(0, request);
            }
            _ => {}
        }
        let pending = &world.core.peers[0].pending;
        let first = pending.first(&world.core.requests, Held::default());
        let allowed = written.first();
        if pending.len() != written.len()
            || !first.map_or(allowed.is_empty(), |first| allowed.contains(&first))
        {
            return false;
        }
        for line in 0..2 {
            let order = written.in_order(line);
            for (at, request) in order.iter().enumerate() {
                let behind = pending.behind(&mut world.core.requests, *request);
                if behind != order.get(at + 1).copied() {
                    return false;
                }
            }
        }
    }
    true
}

#[test]
fn lines_are_as_if_they_were_written_down() {
    QuickCheck::new().quickcheck(lines_are_as_written as fn(Vec<(u8, u8)>) -> bool);
}

#[test]
fn slices_to_be_sent_again_keep_nothing_urgent_waiting() {
    // A long request of low priority has copies that no rail takes; one of high priority comes, for which there is room
    // above the window.
    let bound = |low: u64| {
        let mut world = World::new(Policy::Spray, 2);
        world.links[1].cut = true;
        world.links[0].rate = Rate::from_bytes_per_sec(5_000_000);
        // Slices of 13 ms each. After 5 ms they get copies, which must avoid the only rail there is.
        world.submit_as(PLAN, 0, Op::Write, low, Priority::Low);
        world.run(ms(8));
        let urgent = world.submit_as(PLAN, 1, Op::Write, u64::from(SLICE), Priority::High);
        world.run(ms(9));
        world.core.requests.get(urgent).map_or(1, |row| row.held)
    };
    assert_eq!(bound(2 << 16), 1, "all of the low one is on its way");
    assert_eq!(bound(64 << 16), 1, "the low one has slices left");
}

#[test]
fn who_stands_in_front_because_of_copies_sends_nothing_new_from_there() {
    let config = Config {
        priority_promotion: Duration::from_secs(3600),
        ..Config::new(0, Policy::Spray)
    };
    let mut world = World::with(config, &[0, 0]);
    world.links[1].cut = true;
    world.links[0].rate = Rate::from_bytes_per_sec(5_000_000);
    let low = world.submit_as(PLAN, 0, Op::Write, 64 << 16, Priority::Low);
    // Slices of 13 ms each. After 5 ms they get copies, which must avoid the only rail there is.
    world.run(ms(8));
    assert!(
        !world.core.requests.get(low).unwrap().waiting.is_empty(),
        "the scenario"
    );
    let normal = world.submit_as(PLAN, 1, Op::Write, 8 << 16, Priority::Normal);
    let cursor = |world: &World<'_>, id| world.core.requests.get(id).map(|row| row.cursor);
    let before = cursor(&world, low);
    while cursor(&world, normal).is_some_and(|bound| bound < 8 << 16) {
        world.run(world.now + Duration::from_millis(1));
        assert_eq!(cursor(&world, low), before, "at {:?}", world.now);
        assert!(world.now < ms(2_000));
    }
}
