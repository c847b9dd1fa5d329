//! What a work that fails with each status says of itself and of the one before it, and what arrives of it afterwards.

use super::*;

/// Of the works here.
const LENGTH: u32 = 64 << 10;

/// The last byte of the one that fails.
const LAST: u64 = 2 * LENGTH as u64 - 1;

const STATUSES: [i32; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 19, 20, 21];

/// Those after which nothing of a write is on its way.
fn is_refusal(status: i32) -> bool {
    (9..=11).contains(&status)
}

/// Whether a status says that works before it have been carried out.
fn covers(status: i32) -> bool {
    (9..=13).contains(&status)
}

fn cause(status: i32) -> Cause {
    match status {
        1 => Cause::LocalLength,
        4 | 8 => Cause::LocalProtection,
        5 => Cause::Flushed,
        9 => Cause::RemoteInvalidRequest,
        10 => Cause::RemoteAccess,
        12 | 20 => Cause::RetryExceeded,
        13 => Cause::RnrRetryExceeded,
        _ => Cause::Fatal,
    }
}

/// With two works, one behind the other: the second one fails.
fn with_a_failure(status: i32, op: Op, signal: bool, held: bool) -> Pair {
    let mut pair = Pair::new();
    pair.opened(1);
    pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
    pair.completed(1);
    fill(&pair.local, 7);
    fill(&pair.remote, 9);
    let post = |pair: &mut Pair, work| assert_eq!(pair.post(1, &[work]).accepted, 1);
    stub::hold(held);
    post(&mut pair, work(2, op, 0, LENGTH, signal));
    stub::hold(false);
    stub::spoil(status);
    post(&mut pair, work(3, op, LENGTH.into(), LENGTH, true));
    pair
}

#[test]
fn each_status_speaks_for_itself_and_perhaps_for_what_was_before_it() {
    let _turn = turn();
    for (status, op, signal) in STATUSES
        .into_iter()
        .flat_map(|status| [(status, Op::Write), (status, Op::Read)])
        .flat_map(|(status, op)| [(status, op, true), (status, op, false)])
    {
        let name = format!("status {status}, {op:?}, signal {signal}");
        let mut pair = with_a_failure(status, op, signal, false);
        let failed = (3, Outcome::Error(cause(status)));
        let expected: &[_] = match (signal, covers(status)) {
            (true, _) | (false, true) => &[(2, SUCCESS), failed],
            (false, false) => &[failed],
        };
        assert_eq!(pair.completed(expected.len()), expected, "{name}");
        // Before the fence the rest arrives; after it nothing does.
        let end = [&pair.remote, &pair.local][usize::from(op == Op::Read)].clone();
        let before = byte(&end, LAST);
        let is_more = op == Op::Write && !is_refusal(status);
        assert_eq!(stub::land(), usize::from(is_more), "{name}");
        assert_eq!(byte(&end, LAST) != before, is_more, "{name}");
    }
}

#[test]
fn nothing_of_a_work_that_failed_arrives_after_both_fences() {
    let _turn = turn();
    for (status, op) in STATUSES
        .into_iter()
        .flat_map(|status| [(status, Op::Write), (status, Op::Read)])
    {
        let mut pair = with_a_failure(status, op, false, false);
        pair.until(|pair| !pair.completions.is_empty());
        pair.fence(1);
        let counted = pair.fence_inbound(1);
        assert!((1..=2).contains(&counted), "status {status}: {counted}");
        assert_eq!(stub::land(), 0, "status {status}, {op:?}");
        let last = (byte(&pair.remote, LAST), byte(&pair.local, LAST));
        assert_eq!(last, (9, 7), "status {status}, {op:?}");
    }
}

/// It used to be reported as read, whatever had failed behind it.
#[test]
fn a_read_without_an_answer_is_not_covered_by_what_this_side_meets_behind_it() {
    let _turn = turn();
    for status in STATUSES.into_iter().filter(|status| !covers(*status)) {
        let mut pair = with_a_failure(status, Op::Read, false, true);
        assert_eq!(
            pair.completed(1),
            [(3, Outcome::Error(cause(status)))],
            "status {status}"
        );
        // Its answer comes to a queue pair that takes none any more.
        assert_eq!(stub::land(), 0, "status {status}");
        assert_eq!(byte(&pair.local, 0), 7, "status {status}");
        pair.fence(1);
        assert_eq!(pair.fence_inbound(1), 1, "status {status}: but the first");
        assert!(pair.completions.is_empty(), "{:?}", pair.completions);
    }
}

/// Nobody heard of it: the peer's works were sent again and again, and its immediate was waited for.
#[test]
fn a_target_whose_queue_pair_takes_nothing_any_more_hangs_up() {
    let _turn = turn();
    for status in [1, 2, 4, 5, 21] {
        let mut pair = Pair::new();
        pair.opened(1);
        pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
        pair.completed(1);
        stub::spoil_immediate(status);
        assert!(pair.endpoint.make_visible(SESSION, 1));
        let fact = pair.fact();
        let broken = (Epoch(1), LaneFact::Broken(Cause::Reset));
        assert_eq!((fact.epoch, fact.fact), broken, "status {status}");
        assert_eq!(pair.visible, [], "status {status}");
        pair.fence(1);
        pair.opened(2);
    }
}

/// The kernel's file for a port's state was read for each work that failed, on the thread that carries all lanes.
#[test]
fn how_a_port_is_is_known_by_what_its_device_has_said() {
    let _turn = turn();
    let mut pair = Pair::new();
    pair.opened(1);
    pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
    pair.completed(1);
    // Whoever opens this waits for ever.
    let file = "class/infiniband/stub0/ports/1/state";
    let file = pair._root.path().join(file);
    std::fs::remove_file(&file).unwrap();
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
    rustix::fs::mknodat(rustix::fs::CWD, &file, kind, mode, 0).unwrap();
    stub::spoil(2);
    pair.post(1, &[work(2, Op::Write, 0, 8, true)]);
    assert_eq!(pair.completed(1), [(2, Outcome::Error(Cause::Fatal))]);
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, "4: ACTIVE\n").unwrap();
    pair.fence(1);
    for (epoch, what, cause) in [
        (2, stub::Happening::PortDown, Cause::DeviceDown),
        (3, stub::Happening::PortActive, Cause::Fatal),
    ] {
        pair.opened(epoch);
        stub::happen(0, what);
        pair.until(|pair| !pair.facts.is_empty());
        pair.facts.clear();
        stub::spoil(2);
        pair.post(epoch, &[work(3, Op::Write, 0, 8, true)]);
        assert_eq!(pair.completed(1), [(3, Outcome::Error(cause))], "{what:?}");
        pair.fence(epoch);
    }
}
