//! Rules as rows, and calls on their way through admission.

extern crate std;
use std::ops::Range;
use std::vec::Vec;

use super::*;
use crate::send_queue::admission::Token;
use crate::send_queue::credit::{LINE_PLACES, Standing};
use crate::send_queue::dispatch::{Call, Dispatch, DispatchError, Step};
use crate::send_queue::failure::ends_lane;
use crate::send_queue::ledger::Slot;
use crate::send_queue::split::SplitPolicy;
use crate::table::Row;
use crate::work::Cause;

#[test]
fn what_a_newcomer_is_told() {
    const READS: Amount = Amount { works: 2, reads: 2 };
    let all = |credits: &Credits| drop_grant(credits.reserve(writes(8)));
    let reads = |credits: &Credits| drop_grant(credits.reserve(Amount { works: 3, reads: 3 }));
    let closed = |credits: &Credits| assert!(credits.degrade());
    let over = |credits: &Credits| assert!(credits.terminate());
    // (name, what happened before, asked for, answer: how many, or what is missing)
    type Before<'a> = &'a dyn Fn(&Credits);
    let cases: [(_, Before<'_>, _, Result<(), &str>); 12] = [
        ("all of an empty lane", &|_| (), writes(8), Ok(())),
        (
            "more than it can ever hold",
            &|_| (),
            writes(9),
            Err("TooLarge"),
        ),
        ("even when it is closed", &over, writes(9), Err("TooLarge")),
        (
            "more reads than ever",
            &|_| (),
            Amount { works: 5, reads: 5 },
            Err("TooLarge"),
        ),
        ("one too many", &all, writes(1), Err("Full")),
        ("nothing of a full lane", &all, writes(0), Ok(())),
        ("reads need their own", &reads, READS, Err("Full")),
        ("writes do not", &reads, writes(5), Ok(())),
        ("closed for now", &closed, writes(1), Err("Degraded")),
        ("over", &over, writes(1), Err("Terminal")),
        (
            "over is over",
            &|lane| assert!(lane.terminate() && !lane.degrade()),
            writes(1),
            Err("Terminal"),
        ),
        (
            "open again",
            &|lane| assert!(lane.degrade() && lane.restore()),
            writes(1),
            Ok(()),
        ),
    ];
    for (name, before, asked, expected) in cases {
        let credits = credits(8, 4);
        before(&credits);
        let held_before = credits.snapshot().held;
        let answer = credits.reserve(asked);
        let got = answer
            .as_ref()
            .map(|grant| assert_eq!(grant.amount(), asked));
        let text = std::format!("{got:?}");
        match expected {
            Ok(()) => assert_eq!(text, "Ok(())", "{name}"),
            Err(why) => {
                assert!(
                    text.starts_with(&std::format!("Err({why}")),
                    "{name}: {text}"
                );
                assert_eq!(
                    credits.snapshot().held,
                    held_before,
                    "{name}: nothing was taken"
                );
            }
        }
    }
}

fn drop_grant(answer: Result<Grant, Refused>) {
    let _held = answer.unwrap();
}

#[test]
fn never_negative_and_never_of_another_epoch() {
    let credits = credits(8, 0);
    let forged = |works, epoch| Grant {
        amount: writes(works),
        epoch: Epoch(epoch),
    };
    let grant = credits.reserve(writes(3)).unwrap();
    assert!(credits.release(forged(5, 1)));
    assert_eq!(held(&credits), 0);
    assert!(credits.release(grant));
    assert_eq!(held(&credits), 0);
    let revision = credits.revision();
    for late in [0, 2, 1 << 20] {
        assert!(!credits.release(forged(1, late)));
    }
    assert_eq!(
        credits.revision(),
        revision,
        "what is dropped changes nothing"
    );
    assert!(!credits.reopen(Epoch(2)), "it is not over");
    assert!(credits.terminate());
    assert!(!credits.reopen(Epoch(1)), "the same epoch is no rebuild");
    assert!(credits.reopen(Epoch(2)));
    let answer = credits.begin_post(forged(1, 1)).map(|_| ());
    assert_eq!(answer, Err(Refused::Rebuilt));
    let (_posting, grant) = credits.begin_post(forged(2, 2)).unwrap();
    assert_eq!(grant.epoch(), Epoch(2));
}

#[test]
fn a_grant_that_is_cut_takes_its_reads_along() {
    let credits = credits(8, 0);
    let reads = |amount| Amount {
        works: amount,
        reads: amount as u8,
    };
    let mut kept = credits.reserve(reads(4)).unwrap();
    let rest = kept.split_off(1);
    assert_eq!((kept.amount(), rest.amount()), (reads(1), reads(3)));
    assert_eq!(kept.split_off(300).amount(), Amount::default());
    assert!(credits.release(rest));
    assert_eq!(credits.snapshot().held, reads(1));
}

#[test]
fn every_change_has_its_revision() {
    let credits = credits(8, 0);
    let mut last = credits.revision();
    let mut changed = |name: &str, expected: bool| {
        assert_eq!(credits.revision() != last, expected, "{name}");
        last = credits.revision();
    };
    let grant = credits.reserve(writes(2)).unwrap();
    changed("reserve", true);
    let _ = credits.reserve(writes(7));
    changed("a refusal", false);
    let mut token = credits.admit(1, 1, None).unwrap();
    changed("admit", true);
    token.release();
    changed("release of a token", true);
    token.release();
    changed("again", false);
    let place = credits.admission_place();
    changed("a place", false);
    drop(place);
    changed("a place given up", true);
    let (posting, grant) = credits.begin_post(grant).unwrap();
    changed("a post", false);
    drop(posting);
    changed("the end of a post", true);
    credits.release(grant);
    changed("release", true);
    credits.restore();
    changed("opening what is open", false);
    credits.degrade();
    changed("degrade", true);
    credits.restore();
    changed("restore", true);
    credits.terminate();
    changed("terminate", true);
    credits.reopen(Epoch(2));
    changed("reopen", true);
}

#[test]
fn who_waits_is_served_in_turn() {
    let credits = credits(8, 0);
    let all = credits.reserve(writes(8)).unwrap();
    let mut large = credits.waiter(writes(6), Instant::MAX);
    let mut small = credits.waiter(writes(1), Instant::MAX);
    full(large.poll(us(0)));
    full(small.poll(us(0)));
    let mut all = all;
    credits.release(all.split_off(4));
    // Four are free, but the six came first.
    full(small.poll(us(1)));
    full(large.poll(us(1)));
    credits.release(all);
    let _first = large.poll(us(2)).unwrap();
    let _second = small.poll(us(2)).unwrap();
    // Who gives up lets the next one in.
    let mut first = credits.waiter(writes(8), Instant::MAX);
    let mut second = credits.waiter(writes(1), Instant::MAX);
    full(first.poll(us(3)));
    full(second.poll(us(3)));
    drop(first);
    let _third = second.poll(us(4)).unwrap();
}

#[test]
fn a_turn_outlasts_a_lane_that_is_closed_for_now() {
    let credits = credits(8, 0);
    let all = credits.reserve(writes(8)).unwrap();
    let mut waiter = credits.waiter(writes(1), us(100));
    full(waiter.poll(us(0)));
    credits.degrade();
    assert!(matches!(waiter.poll(us(1)), Err(Refused::Degraded(_))));
    credits.release(all);
    credits.restore();
    full(credits.reserve(writes(1)));
    let _one = waiter.poll(us(2)).unwrap();
    // But not its deadline.
    let mut late = credits.waiter(writes(8), us(100));
    full(late.poll(us(0)));
    credits.degrade();
    assert!(matches!(late.poll(us(100)), Err(Refused::Degraded(_))));
    assert_eq!(credits.waiting(), 0);
}

#[test]
fn a_full_line_refuses_and_is_not_overtaken() {
    let credits = credits(8, 0);
    let all = credits.reserve(writes(8)).unwrap();
    let mut waiters: Vec<_> = (0..=LINE_PLACES)
        .map(|_| credits.waiter(writes(8), Instant::MAX))
        .collect();
    for waiter in &mut waiters {
        full(waiter.poll(us(0)));
    }
    assert_eq!(credits.waiting(), LINE_PLACES);
    credits.release(all);
    let last = waiters.last_mut().unwrap();
    full(last.poll(us(1)));
    drop_grant(waiters[0].poll(us(1)));
    full(waiters.last_mut().unwrap().poll(us(2)));
    assert_eq!(credits.waiting(), LINE_PLACES, "now it has a place");
}

#[test]
fn a_token_waits_behind_who_waits_for_credits() {
    let credits = credits(8, 0);
    let token = credits.admit(2, 2, None).unwrap();
    let six = credits.reserve(writes(6)).unwrap();
    let mut waiter = credits.waiter(writes(4), Instant::MAX);
    full(waiter.poll(us(0)));
    let (token, refused) = token.reserve(0).unwrap_err();
    full::<()>(Err(refused));
    credits.release(six);
    let _four = waiter.poll(us(1)).unwrap();
    drop_grant(token.reserve(2).map_err(|(_, refused)| refused));
    assert_eq!(credits.snapshot().held, Amount { works: 6, reads: 2 });

    // And of a rebuilt lane it is worth nothing.
    let token = credits.admit(1, 1, None).unwrap();
    credits.terminate();
    credits.reopen(Epoch(2));
    let other = credits.admit(3, 3, None).unwrap();
    let (token, refused) = token.reserve(0).unwrap_err();
    assert_eq!(refused, Refused::Rebuilt);
    drop(token);
    assert_eq!(admitted(&credits), other.works());
}

#[test]
fn what_a_completion_covers() {
    #[derive(Clone, Copy)]
    enum Put {
        Unsignalled,
        Signalled,
        Tentative,
        Orphan,
    }
    use Put::*;
    // (name, records in the order of posting, which completes, which come out, works uncovered before)
    type Case<'a> = (&'a str, &'a [Put], usize, &'a [u32], u16);
    let cases: [Case<'_>; 7] = [
        ("itself", &[Signalled], 0, &[0], 0),
        (
            "those before it",
            &[Unsignalled, Unsignalled, Signalled],
            2,
            &[0, 1, 2],
            0,
        ),
        ("not those after it", &[Signalled, Unsignalled], 0, &[0], 1),
        (
            "nor those that ask for their own",
            &[Unsignalled, Signalled, Unsignalled, Signalled],
            3,
            &[0, 2, 3],
            0,
        ),
        (
            "faster than the answer to its post",
            &[Unsignalled, Tentative],
            1,
            &[0, 1],
            1,
        ),
        (
            "not what is orphaned",
            &[Orphan, Unsignalled, Signalled],
            2,
            &[1, 2],
            0,
        ),
        ("an orphan, only itself", &[Unsignalled, Orphan], 1, &[1], 1),
    ];
    for (name, puts, completes, expected, uncovered) in cases {
        let credits = credits(8, 0);
        let mut rows = [const { Row::EMPTY }; 4];
        let mut ledger: Ledger<'_, u32> = Ledger::new(&mut rows);
        let mut ids = Vec::new();
        for (owner, put) in (0..).zip(puts) {
            let record = Record {
                owner,
                grant: credits.reserve(writes(1)).unwrap(),
                requests: 1,
                signalled: matches!(put, Signalled | Tentative),
            };
            let id = ledger.insert(record).unwrap().id;
            ids.push(id);
            let put_so = match put {
                Unsignalled | Signalled => ledger.mark_posted(id),
                Tentative => true,
                Orphan => ledger.orphan(id),
            };
            assert!(put_so, "{name}");
        }
        assert_eq!(ledger.uncovered(), writes(uncovered), "{name}");
        let mut out = Vec::new();
        assert!(ledger.complete(ids[completes], |record| out.push(record.owner)));
        assert_eq!(out, expected, "{name}");
        assert_eq!(ledger.len(), puts.len() - expected.len(), "{name}");
    }
}

#[test]
fn which_causes_end_a_lane() {
    let ends = [
        Cause::RetryExceeded,
        Cause::RnrRetryExceeded,
        Cause::LocalOperation,
        Cause::RemoteAccess,
        Cause::RemoteInvalidRequest,
        Cause::Fatal,
        Cause::LocalProtection,
        Cause::LocalLength,
        Cause::RemoteOperation,
        Cause::BadResponse,
    ];
    let lives = [
        Cause::Flushed,
        Cause::Cancelled,
        Cause::DeadlineExceeded,
        Cause::ShutDown,
    ];
    assert!(ends.into_iter().all(ends_lane));
    assert!(!lives.into_iter().any(ends_lane));
}

fn call(requests: u32) -> Call {
    Call {
        requests,
        number: 1,
        post_works_max: 0,
    }
}

/// One work for each request.
fn each(requests: Range<u32>) -> usize {
    requests.len()
}

/// What a dispatch submits until it wants something else.
struct Submitted<'a> {
    chunks: Vec<(usize, Range<u32>)>,
    tokens: Vec<Token<'a>>,
    then: Step<'a>,
}

fn submitted<'a>(dispatch: &mut Dispatch<'a>, now: Instant) -> Submitted<'a> {
    let (mut chunks, mut tokens) = (Vec::new(), Vec::new());
    loop {
        match dispatch.poll(now, each) {
            Step::Submit {
                lane,
                requests,
                token,
            } => {
                chunks.push((lane, requests));
                tokens.push(token);
            }
            then => {
                return Submitted {
                    chunks,
                    tokens,
                    then,
                };
            }
        }
    }
}

#[test]
fn policies_send_chunks_to_their_lanes() {
    use SplitPolicy::{Capacity, LeastLoaded, Static};
    // Three lanes of 16, of which 8, 2 and 0 are held; chunks of at most 4, eight of them at once.
    // (name, policy, requests, chunks)
    type Chunks<'a> = &'a [(usize, u32, u32)];
    let cases: [(_, _, _, Chunks<'_>); 5] = [
        ("nothing", LeastLoaded, 0, &[]),
        ("one, by its number", Static, 1, &[(1, 0, 1)]),
        (
            "shares, one chunk each in turn",
            Static,
            18,
            &[
                (0, 0, 4),
                (1, 6, 10),
                (2, 12, 16),
                (0, 4, 6),
                (1, 10, 12),
                (2, 16, 18),
            ],
        ),
        (
            "to the least loaded",
            LeastLoaded,
            18,
            &[(2, 0, 4), (1, 4, 8), (2, 8, 12), (1, 12, 16), (0, 16, 18)],
        ),
        ("to the most room", Capacity, 6, &[(2, 0, 4), (1, 4, 6)]),
    ];
    for (name, split_policy, requests, expected) in cases {
        let lanes = [credits(16, 0), credits(16, 0), credits(16, 0)];
        drop_grant(lanes[0].reserve(writes(8)));
        drop_grant(lanes[1].reserve(writes(2)));
        let config = SendQueueConfig {
            admission_chunk_works: 4,
            admission_chunks_max: 8,
            split_policy,
            enable_experimental_capacity: true,
            ..config()
        };
        let mut dispatch = Dispatch::new(us(0), &config, lanes.iter(), call(requests));
        let Submitted {
            mut chunks,
            tokens: _tokens,
            ..
        } = submitted(&mut dispatch, us(0));
        // More than six at once are too many: two for each lane.
        if chunks.len() == 6 {
            dispatch.handle_answer(1, Ok(()));
            chunks.extend(submitted(&mut dispatch, us(0)).chunks);
        }
        let chunks: Vec<_> = chunks
            .into_iter()
            .map(|(lane, requests)| (lane, requests.start, requests.end))
            .collect();
        assert_eq!(chunks, expected, "{name}");
        let selections: u32 = lanes
            .iter()
            .map(|lane| lane.counters().report().load_selections)
            .sum();
        let by_load = if split_policy == Static {
            0
        } else {
            chunks.len() as u32
        };
        assert_eq!(selections, by_load, "{name}");
    }
}

#[test]
fn capacity_takes_no_more_than_the_room() {
    let lanes = [credits(16, 0), credits(16, 0)];
    drop_grant(lanes[0].reserve(writes(13)));
    drop_grant(lanes[1].reserve(writes(11)));
    let config = SendQueueConfig {
        split_policy: SplitPolicy::Capacity,
        enable_experimental_capacity: true,
        ..config()
    };
    let mut dispatch = Dispatch::new(us(0), &config, lanes.iter(), call(8));
    let Submitted {
        chunks,
        tokens: _tokens,
        then,
    } = submitted(&mut dispatch, us(0));
    assert_eq!(chunks, [(1, 0..5), (0, 5..8)]);
    assert!(matches!(then, Step::Collect));
}

#[test]
fn one_deadline_is_for_the_whole_call() {
    let config = SendQueueConfig {
        admission_timeout: Duration::from_micros(250),
        ..config()
    };
    let lane = credits(8, 0);
    let mut dispatch = Dispatch::new(us(0), &config, [&lane].into_iter(), call(12));
    let Submitted {
        chunks,
        mut tokens,
        then,
    } = submitted(&mut dispatch, us(0));
    assert_eq!(chunks, [(0, 0..8)]);
    assert!(matches!(then, Step::Collect), "one lane, one chunk at once");
    dispatch.handle_answer(8, Ok(()));

    // The lane is still full: waits in slices, the last one up to the deadline.
    for (now, end) in [(10, 110), (110, 210), (210, 250)] {
        let Step::Wait {
            lane: 0,
            revision,
            until,
        } = dispatch.poll(us(now), each)
        else {
            panic!("there is no room at {now}");
        };
        assert_eq!((revision, until), (lane.revision(), us(end)));
    }
    assert_eq!(lane.waiting_for_admission(), 1);
    // What is released is less than the watermark, as for anybody who has waited: a chunk.
    let token = tokens.pop().unwrap();
    let mut grant = token.reserve(0).unwrap();
    assert!(lane.release(grant.split_off(4)));
    assert!(matches!(dispatch.poll(us(249), each), Step::Wait { .. }));
    let Step::Done(Err(DispatchError::TimedOut {
        lane: 0,
        required_works: 8,
        at,
    })) = dispatch.poll(us(250), each)
    else {
        panic!("it was too late");
    };
    assert_eq!(
        (at.admissible_works(), lane.waiting_for_admission()),
        (4, 0)
    );
    let report = lane.counters().report();
    assert_eq!(
        (
            report.admission_waits,
            report.admission_timeouts,
            report.admission_waited
        ),
        (1, 1, Duration::from_micros(240))
    );
}

#[test]
fn who_waits_takes_the_lane_that_has_room_first() {
    let lanes = [credits(8, 0), credits(8, 0)];
    let mut held: Vec<Grant> = lanes
        .iter()
        .map(|lane| lane.reserve(writes(8)).unwrap())
        .collect();
    let mut dispatch = Dispatch::new(us(0), &config(), lanes.iter(), call(2));
    assert!(matches!(
        dispatch.poll(us(0), each),
        Step::Wait { lane: 0, .. }
    ));
    assert!(lanes.iter().all(|lane| lane.waiting_for_admission() == 1));
    full(lanes[1].admit(1, 1, None).map(drop));
    lanes[1].release(held.pop().unwrap());
    full(lanes[1].admit(1, 1, None).map(drop));
    let Step::Submit { lane: 1, token, .. } = dispatch.poll(us(1), each) else {
        panic!("it came first");
    };
    assert!(lanes.iter().all(|lane| lane.waiting_for_admission() == 0));
    drop((held, token));
}

#[test]
fn who_waits_looks_at_the_least_loaded_lane() {
    let lanes = [credits(16, 0), credits(8, 0)];
    drop_grant(lanes[0].reserve(writes(16)));
    drop_grant(lanes[1].reserve(writes(8)));
    let config = SendQueueConfig::MORI;
    let mut dispatch = Dispatch::new(us(0), &config, lanes.iter(), call(2));
    assert!(matches!(
        dispatch.poll(us(0), each),
        Step::Wait { lane: 1, .. }
    ));
}

#[test]
fn how_a_call_ends_early() {
    let closed = |standing| {
        let lane = credits(8, 0);
        match standing {
            Standing::Open => {}
            Standing::Degraded => assert!(lane.degrade()),
            Standing::Terminal => assert!(lane.terminate()),
        }
        lane
    };
    use SplitPolicy::{LeastLoaded, Static};
    use Standing::{Open, Terminal};
    let too_large = DispatchError::TooLarge {
        asked: writes(9),
        max: Amount { works: 8, reads: 4 },
    };
    // (name, policy, lanes, works of each request, error)
    type Lanes<'a> = &'a [Standing];
    let cases: [(_, _, Lanes<'_>, _, _); 6] = [
        ("no lane at all", LeastLoaded, &[], 1, DispatchError::NoLane),
        (
            "none that is open",
            LeastLoaded,
            &[Terminal, Standing::Degraded],
            1,
            DispatchError::NoLane,
        ),
        (
            "a share whose lane is over",
            Static,
            &[Terminal],
            1,
            DispatchError::LaneClosed { lane: 0 },
        ),
        (
            "a request too large for a lane",
            LeastLoaded,
            &[Open],
            9,
            too_large,
        ),
        ("and for a share's", Static, &[Open], 9, too_large),
        (
            "far too large",
            Static,
            &[Open],
            usize::MAX,
            DispatchError::TooLarge {
                asked: writes(u16::MAX),
                max: Amount { works: 8, reads: 4 },
            },
        ),
    ];
    for (name, split_policy, standings, works, error) in cases {
        let lanes: Vec<_> = standings.iter().map(|standing| closed(*standing)).collect();
        let config = SendQueueConfig {
            split_policy,
            ..config()
        };
        let mut dispatch = Dispatch::new(us(0), &config, lanes.iter(), call(1));
        match dispatch.poll(us(0), |requests| requests.len().saturating_mul(works)) {
            Step::Done(Err(got)) => assert_eq!(got, error, "{name}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn a_request_too_large_for_one_lane_goes_to_another() {
    let lanes = [credits(8, 0), credits(16, 0)];
    let mut dispatch = Dispatch::new(us(0), &config(), lanes.iter(), call(1));
    let Step::Submit { lane: 1, token, .. } = dispatch.poll(us(0), |_| 9) else {
        panic!("the second lane can hold it");
    };
    assert_eq!(token.works(), 9);
}

#[test]
fn a_failed_chunk_ends_the_call_when_the_others_are_answered() {
    let lanes = [credits(4, 0), credits(4, 0), credits(4, 0)];
    let mut dispatch = Dispatch::new(us(0), &config(), lanes.iter(), call(20));
    let Submitted { chunks, tokens, .. } = submitted(&mut dispatch, us(0));
    assert_eq!(chunks.len(), 3);
    drop(tokens);
    dispatch.handle_answer(4, Err(Cause::Flushed));
    assert!(matches!(dispatch.poll(us(1), each), Step::Collect));
    dispatch.handle_answer(4, Err(Cause::RemoteAccess));
    assert!(matches!(dispatch.poll(us(1), each), Step::Collect));
    dispatch.handle_answer(4, Ok(()));
    let Step::Done(Err(error)) = dispatch.poll(us(1), each) else {
        panic!("all have been answered");
    };
    assert_eq!(error, DispatchError::Chunk(Cause::RemoteAccess));
}

#[test]
fn who_cannot_take_its_turn_leaves_the_line() {
    let lanes = [credits(8, 0), credits(8, 0)];
    let all = lanes[1].reserve(writes(8)).unwrap();
    let config = SendQueueConfig {
        split_policy: SplitPolicy::Static,
        admission_chunk_works: 4,
        admission_chunks_max: 1,
        ..config()
    };
    let mut call = call(12);
    call.number = 0;
    let mut dispatch = Dispatch::new(us(0), &config, lanes.iter(), call);
    let Step::Submit { lane: 0, token, .. } = dispatch.poll(us(0), each) else {
        panic!("the first lane is empty");
    };
    dispatch.handle_answer(4, Ok(()));
    // The first lane takes the rest of its share, after a look at the second, which is full.
    let Step::Submit { lane: 0, .. } = dispatch.poll(us(1), each) else {
        panic!("there is room for two more");
    };
    assert_eq!(lanes[1].waiting_for_admission(), 1);
    assert!(matches!(dispatch.poll(us(2), each), Step::Collect));
    assert_eq!(lanes[1].waiting_for_admission(), 0);
    drop((all, token));
}

#[test]
fn a_chunk_of_many_works_is_shortened() {
    let lane = credits(16, 0);
    let config = SendQueueConfig {
        admission_chunk_works: 8,
        ..config()
    };
    let mut dispatch = Dispatch::new(us(0), &config, [&lane].into_iter(), call(10));
    let Step::Submit {
        requests, token, ..
    } = dispatch.poll(us(0), |requests| requests.len() * 3)
    else {
        panic!("the lane is empty");
    };
    assert_eq!((requests, token.works()), (0..2, 6));
}

#[test]
fn hundreds_of_lanes_fit_a_worker() {
    assert!(size_of::<Credits>() <= 128);
    assert!(size_of::<Row<Slot<u32>>>() <= 64);
}

#[test]
fn the_profile_is_the_documented_one() {
    let mori = SendQueueConfig::MORI;
    let times = (
        mori.reserve_timeout,
        mori.admission_timeout,
        mori.admission_wait_slice,
    );
    let micros = Duration::from_micros;
    assert_eq!(times, (micros(10_000), micros(1_000_000), micros(100)));
    let works = (
        mori.signal_interval_works,
        mori.resume_watermark_works,
        mori.admission_resume_watermark_works,
        mori.admission_chunk_works,
        mori.admission_chunks_max,
    );
    assert_eq!(works, (0, 0, 2048, 0, 0));
    assert_eq!(
        (
            mori.admission,
            mori.split_policy,
            mori.enable_experimental_capacity
        ),
        (false, SplitPolicy::Static, false)
    );
}
