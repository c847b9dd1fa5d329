//! Who holds what, and since when: in `Stats`, in errors and in the log.

use std::time::{Duration, Instant};

use polyrail::{
    Backlog, LaneState, LaneStatus, Pressure, RailId, RailState, RailStatus, Request, SubmitError,
    Terms, WaitError,
};

use crate::fixture::*;
use crate::notes::{listen, logged, logged_with};

/// Requests that a worker holds; each [`Pair`] has one worker.
const REQUESTS: usize = 16_384;

fn lane_bytes(pair: &Pair) -> u64 {
    let lanes = pair.initiator.stats().lanes;
    lanes.iter().map(|lane| lane.held_bytes).sum()
}

#[test]
fn lanes_say_what_they_hold_and_what_has_ended_on_them() {
    let pair = Pair::new(8 * MIB);
    pair.warm_up();
    // On a busy machine a rail may be out for a moment.
    let mut open = Vec::new();
    until("each rail has carried something and holds nothing", || {
        completed(&pair.submit(pair.write_all()));
        let lanes = pair.initiator.stats().lanes.into_iter();
        open = lanes.filter(|lane| lane.state == LaneState::Open).collect();
        let is_done = |lane: &LaneStatus| lane.completed.is_some() && lane.held == 0;
        open.len() == RAILS && open.iter().all(is_done)
    });
    for lane in &open {
        assert_eq!((lane.worker, lane.held), (0, 0), "{lane}");
        assert!(lane.rail.starts_with("tcp:127.0.0."), "{lane}");
        assert!(
            lane.held_high >= 1 && lane.held_high <= lane.limit,
            "{lane}"
        );
        assert!(
            lane.releases >= 1 && lane.released >= lane.releases,
            "{lane}"
        );
        assert!(
            lane.completed.is_some() && lane.full_for.is_none(),
            "{lane}"
        );
    }
    // All is held on what is cut, and that grows old.
    pair.each_rail(|faults, rail| faults.cut(rail));
    let batch = pair.submit(pair.write_all());
    until("something is on its way", || lane_bytes(&pair) > 0);
    let load = pair.initiator.stats().workers[0];
    assert_eq!(
        (load.worker, load.held, load.limit),
        (Some(0), 1, REQUESTS as u32)
    );
    assert!(load.completions > 0 && load.looked.is_some(), "{load}");
    let waited = batch.wait(Duration::from_millis(20)).unwrap_err();
    let text = waited.to_string();
    assert!(
        matches!(waited, WaitError::TimedOut { load, .. } if load.held == 1),
        "{text}"
    );
    assert!(
        text.contains("worker 0 holds 1 of 16384 requests"),
        "{text}"
    );
    pair.each_rail(|faults, rail| faults.restore(rail));
    completed(&batch);
    until("nothing is under way", || lane_bytes(&pair) == 0);
    assert_eq!(pair.initiator.stats().workers[0].held, 0);
}

#[test]
fn who_finds_no_room_is_told_who_has_it_since_when_and_why_it_does_not_end() {
    listen();
    let pair = Pair::new(MIB);
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.cut(rail));
    let request = pair.write(0, 1);
    // One fewer than there is room for, so that what is logged is this test's.
    const HELD: usize = REQUESTS - 1;
    let batch = pair.initiator.submit(&vec![request; HELD]).unwrap();
    let refused = |requests: &[Request], within: Duration| -> Backlog {
        let terms = Terms {
            room_within: Some(within),
            ..Terms::default()
        };
        let error = pair.initiator.submit_with(requests, &terms).unwrap_err();
        let SubmitError::Full(Some(backlog)) = &error else {
            panic!("{error}");
        };
        assert!(error.to_string().contains("submit again"), "{error}");
        **backlog
    };
    let at_once = refused(&[request; 2], Duration::ZERO);
    assert_eq!(
        (at_once.load.held, at_once.load.admission_waits),
        (HELD as u32, 0)
    );
    // The rails' looks go on, and nothing ends.
    let patience = Duration::from_millis(60);
    let start = Instant::now();
    let backlog = refused(&[request; 3], patience);
    assert!(
        backlog.waited >= patience && backlog.waited <= start.elapsed(),
        "{backlog}"
    );
    let load = backlog.load;
    assert_eq!(
        (backlog.asked, backlog.ended, load.held),
        (3, 0, HELD as u32)
    );
    assert_eq!((load.admission_waits, load.admission_timeouts), (1, 1));
    assert!(
        load.full_for >= Some(patience) && load.admission_waited >= patience,
        "{backlog}"
    );
    assert_eq!(load.held_high, HELD as u32);
    assert_eq!(backlog.pressure(), Pressure::SlowDrain, "{backlog}");
    assert!(logged(
        "submissions are held back: worker 0 holds 16383 of 16384 requests"
    ));
    let text = backlog.to_string();
    assert!(text.contains("no room for 3 requests after"), "{text}");
    pair.each_rail(|faults, rail| faults.restore(rail));
    completed(&batch);
    until("that is over", || {
        logged_with(
            "submissions are taken again after",
            "(16383 at most so far)",
        )
    });
    completed(&pair.submit(request));
    let load = pair.initiator.stats().workers[0];
    assert_eq!(
        (load.full_for, load.waiting, load.held),
        (None, 0, 0),
        "{load}"
    );
}

#[test]
fn a_program_may_ask_while_it_is_told_of_an_end() {
    let pair = Pair::new(MIB);
    pair.warm_up();
    let (tell, told) = std::sync::mpsc::channel();
    let engine = pair.initiator.clone();
    let batch = pair.submit(pair.write(0, 1000));
    batch.on_done(move |_| {
        let _ = tell.send(engine.stats().lanes.len());
    });
    let lanes = told.recv_timeout(PATIENCE).unwrap();
    assert!(lanes >= RAILS, "{lanes}");
}

/// How long a rail has carried nothing.
fn out(rail: &RailStatus) -> Duration {
    let states = rail.in_states.iter();
    let out = states.filter(|(state, _)| **state != "healthy");
    out.map(|(_, time)| *time).sum()
}

#[test]
fn a_rail_says_how_long_it_was_out_what_for_and_what_was_sent_again() {
    let pair = Pair::new(8 * MIB);
    pair.warm_up();
    until("the rail is in use", || {
        completed(&pair.submit(pair.write_all()));
        pair.rail_bytes(1) > 0
    });
    pair.each_rail(|faults, rail| faults.slow(rail, Some(10_000_000)));
    let before = pair.moved_bytes();
    let batch = pair.submit(pair.write_all());
    until("some has moved", || pair.moved_bytes() > before + 500_000);
    pair.faults.cut(RailId(1));
    let rail = |number: usize| pair.initiator.rails()[number].clone();
    until("it is out", || rail(1).state != RailState::Healthy);
    until("it is out for a while", || {
        let rail = rail(1);
        rail.state != RailState::Healthy && out(&rail) > Duration::from_millis(40)
    });
    pair.faults.restore(RailId(1));
    pair.each_rail(|faults, rail| faults.slow(rail, None));
    completed(&batch);
    pair.until_used(1, pair.write_all());
    until("it is back", || rail(1).state == RailState::Healthy);

    let (cut, whole) = (rail(1), rail(0));
    assert!(out(&cut) >= Duration::from_millis(40), "{cut:?}");
    assert!(cut.state_for < cut.in_states["healthy"], "{cut:?}");
    assert!(cut.pauses.values().sum::<u64>() >= 1, "{cut:?}");
    let again = |rail: &RailStatus| rail.sent_again;
    let all: u64 = pair.initiator.rails().iter().map(again).sum();
    assert!(all > 0, "what was on its way there went again: {cut:?}");
    let text = pair.initiator.metrics();
    for row in [
        format!(
            "polyrail_rail_state_seconds_total{{rail=\"{}\",state=\"healthy\"}}",
            whole.name
        ),
        format!("polyrail_rail_pauses_total{{rail=\"{}\",cause=\"", cut.name),
        format!("polyrail_rail_sent_again_total{{rail=\"{}\"}}", whole.name),
    ] {
        assert!(text.contains(&row), "{row} is not in {text}");
    }
}
