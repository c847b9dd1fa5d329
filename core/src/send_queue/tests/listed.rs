//! The unit cases that the flow-control rework lists, by its names, and the classes of its follow-ups.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), "Test plan" and "Follow-ups".

extern crate std;
use std::vec::Vec;

use super::*;
use crate::send_queue::credit::Standing;
use crate::send_queue::failure::{Entry, Failed, Recovery};
use crate::send_queue::inbox::{Bounced, Inbox};
use crate::send_queue::ledger::{Orphans, PostOutcome, RecordState};
use crate::send_queue::promise::Promise;
use crate::send_queue::session::{Refill, RefillStep, SessionError, SessionLane, Sessions};
use crate::send_queue::signal::Cadence;
use crate::table::Row;
use crate::units::{LaneId, RailId};
use crate::work::Cause;

fn failed(owner: char, requests: u32, cause: Cause) -> Failed<char> {
    Failed {
        orphans: Orphans { owner, requests },
        cause,
    }
}

/// Everything that a recovery hands out; nobody is posting.
fn recover(
    recovery: Recovery<char>,
    credits: &Credits,
    ledger: &mut Ledger<'_, char>,
) -> (Vec<Failed<char>>, Vec<Grant>) {
    let (mut told, mut grants) = (Vec::new(), Vec::new());
    recovery
        .poll(
            credits,
            ledger,
            |grant| grants.push(grant),
            |failed| told.push(failed),
        )
        .unwrap();
    (told, grants)
}

#[test]
fn submission_ledger_basic() {
    let credits = credits(64, 0);
    let mut rows = [const { Row::EMPTY }; 4];
    let mut ledger = Ledger::new(&mut rows);
    let mut out = Vec::new();

    // In before the post; a completion that is faster than its answer finds it.
    let fast = enter(&credits, &mut ledger, 'a', 3, true);
    assert_eq!(ledger.state(fast.id), Some(RecordState::Tentative));
    assert!(ledger.complete(fast.id, |record| out.push(record)));
    assert!(!ledger.mark_posted(fast.id), "it is gone");
    assert!(!ledger.complete(fast.id, |record| out.push(record)), "late");
    assert_eq!(out.len(), 1);

    // Only what is tentative can be cancelled, and comes back whole.
    let cancelled = enter(&credits, &mut ledger, 'a', 2, true);
    let record = ledger.cancel_tentative(cancelled.id).unwrap();
    assert_eq!(
        (record.owner, record.grant.amount(), record.requests),
        ('a', writes(2), 2)
    );
    assert_eq!(ledger.cancel_tentative(cancelled.id), None);
    let posted = post(&credits, &mut ledger, 'a', 1, true);
    assert!(!ledger.mark_posted(posted.id), "only once");
    assert_eq!(ledger.cancel_tentative(posted.id), None);

    // Orphans come out once, and the rest stays.
    let orphan = post(&credits, &mut ledger, 'b', 5, false);
    assert!(ledger.orphan(orphan.id) && !ledger.orphan(orphan.id));
    assert_eq!(ledger.cancel_tentative(orphan.id), None);
    assert!(ledger.has_orphans());
    let orphans = ledger.take_orphans(None, |grant| assert_eq!(grant.amount(), writes(5)));
    assert_eq!(
        orphans,
        Some(Orphans {
            owner: 'b',
            requests: 5
        })
    );
    assert_eq!(ledger.take_orphans(None, |_| ()), None);
    assert_eq!((ledger.has_orphans(), ledger.len()), (false, 1));

    // It never moves credits: all that was reserved is still held.
    assert_eq!(held(&credits), 3 + 2 + 1 + 5);
}

#[test]
fn sq_controller_reserve_release_wait() {
    let credits = credits(10, 8);
    let first = credits.reserve(writes(6)).unwrap();
    let second = credits.reserve(writes(4)).unwrap();
    let mut waiter = credits.waiter(writes(2), us(100));
    let (required, at) = full(waiter.poll(us(0)));
    assert_eq!(
        (required, at.held.works, at.revision),
        (2, 10, credits.revision())
    );

    // The release is seen by its revision. It would do for a newcomer, but not for who has once not fit.
    assert!(credits.release(second));
    assert_ne!(credits.revision(), at.revision);
    let (required, at) = full(waiter.poll(us(1)));
    assert_eq!((required, at.free().works), (8, 4));
    // Nor for a newcomer, who would come first.
    full(credits.reserve(writes(2)));
    assert!(credits.release(first));
    assert_eq!(waiter.poll(us(2)).unwrap().amount(), writes(2));

    // In vain: it tells what it saw, and gives up its turn.
    let _rest = credits.reserve(writes(8)).unwrap();
    full(waiter.poll(us(99)));
    assert_eq!(credits.waiting(), 1);
    assert!(matches!(
        waiter.poll(us(100)),
        Err(Refused::TimedOut {
            required_works: 8,
            ..
        })
    ));
    assert_eq!(credits.waiting(), 0);
}

#[test]
fn sq_controller_terminal_degraded() {
    let credits = credits(8, 0);
    let grant = credits.reserve(writes(8)).unwrap();
    let mut waiter = credits.waiter(writes(1), us(100));
    let (_, at) = full(waiter.poll(us(0)));
    assert!(credits.terminate() && !credits.terminate());
    assert_ne!(credits.revision(), at.revision, "who waits hears of it");
    assert_eq!(waiter.poll(us(1)), Err(Refused::Terminal));
    // Credits of drained orphans go back, and open nothing.
    assert!(credits.release(grant));
    assert_eq!(held(&credits), 0);
    assert_eq!(credits.reserve(writes(1)), Err(Refused::Terminal));
    assert!(!credits.restore(), "there is no way back but a rebuild");
    assert!(credits.reopen(Epoch(2)));
    assert_eq!(credits.reserve(writes(1)).unwrap().epoch(), Epoch(2));
}

#[test]
fn sq_controller_recheck_rolls_back() {
    let credits = credits(8, 0);
    for (close, refused) in [
        (Standing::Degraded, Refused::Degraded(credits.revision())),
        (Standing::Terminal, Refused::Terminal),
    ] {
        let grant = credits.reserve(writes(5)).unwrap();
        let closed = match close {
            Standing::Degraded => credits.degrade(),
            _ => credits.terminate(),
        };
        assert!(closed);
        let answer = credits.begin_post(grant).map(|_| ()).unwrap_err();
        let same = core::mem::discriminant(&answer) == core::mem::discriminant(&refused);
        assert!(same, "{answer:?}");
        assert_eq!(held(&credits), 0, "{close:?}: given back by itself");
        assert!(credits.is_drained(), "{close:?}");
        credits.restore();
    }
}

#[test]
fn sq_controller_admission_counters() {
    let credits = credits(10, 0);
    let mut token = credits.admit(4, 4, None).unwrap();
    assert_eq!((admitted(&credits), held(&credits)), (4, 0));
    // What is held and what is admitted fill the lane together.
    let grant = credits.reserve(writes(4)).unwrap();
    let (required, at) = full(credits.admit(3, 3, None).map(drop));
    assert_eq!((required, at.load(), at.admissible_works()), (3, 8, 2));
    let small = credits.admit(2, 2, None).unwrap();
    assert_eq!(credits.counters().report().admitted_works_high, 6);
    // A watermark asks for more than the works.
    full(credits.admit(1, 4, None).map(drop));
    token.release();
    assert_ne!(credits.revision(), at.revision);
    drop(credits.admit(1, 4, None).unwrap());
    // Admitted works ask for nothing that is not theirs: from soft to hard in one step.
    let hard = small.reserve(0).unwrap();
    assert_eq!((admitted(&credits), held(&credits)), (0, 6));
    assert!(credits.release(hard) && credits.release(grant));
    assert!(matches!(
        credits.admit(11, 11, None),
        Err(Refused::TooLarge {
            asked: Amount { works: 11, .. },
            ..
        })
    ));
}

#[test]
fn sq_controller_admission_degraded() {
    let credits = credits(8, 0);
    let token = credits.admit(2, 2, None).unwrap();
    assert!(credits.degrade());
    assert!(matches!(
        credits.admit(1, 1, None),
        Err(Refused::Degraded(_))
    ));
    assert!(credits.terminate());
    assert!(matches!(credits.admit(1, 1, None), Err(Refused::Terminal)));
    let (token, refused) = token.reserve(0).unwrap_err();
    assert_eq!((token.works(), refused), (2, Refused::Terminal));
    drop(token);
    assert_eq!(admitted(&credits), 0);
}

#[test]
fn sq_controller_admission_mark_degraded_wakes() {
    for close in [Credits::degrade, Credits::terminate] {
        let credits = credits(4, 0);
        let _all = credits.admit(4, 4, None).unwrap();
        let (_, at) = full(credits.admit(1, 1, None).map(drop));
        assert_eq!(credits.revision(), at.revision, "nothing to wake up for");
        assert!(close(&credits));
        assert_ne!(credits.revision(), at.revision);
    }
}

#[test]
fn admission_token_move_releases_once() {
    let credits = credits(8, 0);
    let token = credits.admit(3, 3, None).unwrap();
    let other = credits.admit(2, 2, None).unwrap();
    let mut moved = token;
    assert_eq!((moved.works(), admitted(&credits)), (3, 5));
    moved.release();
    moved.release();
    assert_eq!((moved.works(), admitted(&credits)), (0, 2));
    drop(moved);
    assert_eq!(admitted(&credits), 2);
    // Assigning over a token releases what was in it.
    let mut place = other;
    place = {
        let next = credits.admit(1, 1, None).unwrap();
        drop(place);
        next
    };
    assert_eq!(admitted(&credits), 1);
    drop(place);
    assert_eq!(admitted(&credits), 0);
}

#[test]
fn worker_shutdown_drains_tokens_and_promises() {
    let credits = credits(8, 0);
    let token = || credits.admit(2, 2, None).unwrap();
    let mut inbox: Inbox<'_, usize, 2> = Inbox::new();
    let mut promises = [Promise::new(1); 4];
    let mut answers = Vec::new();
    let mut answer =
        |task: usize, cause| answers.push((task, promises[task].handle_end(1, Err(cause))));

    match inbox.submit(0, token()) {
        Err(Bounced::Stopped(task, cause)) => answer(task, cause),
        other => panic!("not started yet: {other:?}"),
    }
    assert_eq!(admitted(&credits), 0);
    inbox.start();
    inbox.submit(1, token()).unwrap();
    inbox.submit(2, token()).unwrap();
    let Err(Bounced::Full(3, back)) = inbox.submit(3, token()) else {
        panic!("there are two places");
    };
    assert_eq!(admitted(&credits), 6);
    let mut still_admitted = Vec::new();
    inbox.shut_down(|task, cause| {
        still_admitted.push(admitted(&credits));
        answer(task, cause);
    });
    assert_eq!(
        still_admitted,
        [4, 2],
        "its token goes back before it is told"
    );
    assert_eq!(
        admitted(&credits),
        2,
        "that of the task which was not taken"
    );
    match inbox.submit(3, back) {
        Err(Bounced::Stopped(task, cause)) => answer(task, cause),
        other => panic!("shut down: {other:?}"),
    }
    inbox.shut_down(&mut answer);
    let shut_down = Some(Err(Cause::ShutDown));
    assert_eq!(
        answers,
        [
            (0, shut_down),
            (1, shut_down),
            (2, shut_down),
            (3, shut_down)
        ]
    );
    assert_eq!((admitted(&credits), inbox.is_empty()), (0, true));
}

#[test]
fn pending_unsignaled_recheck_failure_orphans() {
    let credits = credits(16, 0);
    let mut rows = [const { Row::EMPTY }; 4];
    let mut ledger = Ledger::new(&mut rows);
    post(&credits, &mut ledger, 'a', 3, false);
    let grant = credits.reserve(writes(2)).unwrap();
    assert!(credits.terminate());
    assert!(credits.begin_post(grant).is_err());
    let recovery = Recovery::begin(&credits, &mut ledger, Entry::RecheckFailed).unwrap();
    let (told, grants) = recover(recovery, &credits, &mut ledger);
    assert_eq!(told, [failed('a', 3, Cause::Flushed)]);
    assert_eq!(held(&credits), 3, "orphans keep their credits");
    assert!(grants.into_iter().all(|grant| credits.release(grant)));
    assert_eq!((held(&credits), ledger.len()), (0, 0));
}

#[test]
fn pending_unsignaled_reserve_failure_orphans() {
    // Two lanes of one call; a neighbour's works are among those that no signal covers.
    let lanes = [credits(8, 0), credits(8, 0)];
    let mut rows = [[const { Row::EMPTY }; 4], [const { Row::EMPTY }; 4]];
    let [one, two] = &mut rows;
    let mut ledgers = [Ledger::new(one), Ledger::new(two)];
    post(&lanes[0], &mut ledgers[0], 'a', 2, false);
    post(&lanes[0], &mut ledgers[0], 'b', 1, false);
    post(&lanes[0], &mut ledgers[0], 'a', 3, false);
    post(&lanes[1], &mut ledgers[1], 'a', 4, true);
    post(&lanes[1], &mut ledgers[1], 'a', 4, false);
    let (mut a, mut b) = (Promise::new(13), Promise::new(1));
    assert!(lanes[1].waiter(writes(1), us(0)).poll(us(0)).is_err());

    let mut told = Vec::new();
    for (credits, ledger) in lanes.iter().zip(&mut ledgers) {
        let recovery = Recovery::begin(credits, ledger, Entry::ReserveFailed).unwrap();
        told.extend(recover(recovery, credits, ledger).0);
    }
    let silent = Cause::Silent;
    assert_eq!(
        told,
        [
            failed('a', 5, silent),
            failed('b', 1, silent),
            failed('a', 4, silent)
        ]
    );
    // What has a signal behind it is left to its completion.
    assert_eq!((ledgers[0].len(), ledgers[1].len()), (0, 1));
    let mut answers = Vec::new();
    for failed in told {
        let promise = if failed.orphans.owner == 'a' {
            &mut a
        } else {
            &mut b
        };
        answers.push(promise.handle_end(failed.orphans.requests, Err(failed.cause)));
    }
    assert_eq!(answers, [None, Some(Err(silent)), None]);
    assert_eq!(
        a.handle_end(4, Err(Cause::Flushed)),
        Some(Err(silent)),
        "once, with the root"
    );

    // Without such works nothing has to end.
    let (fresh, mut rows) = (credits(8, 0), [const { Row::EMPTY }; 1]);
    let mut ledger = Ledger::new(&mut rows);
    post(&fresh, &mut ledger, 'a', 8, true);
    assert_eq!(
        Recovery::begin(&fresh, &mut ledger, Entry::ReserveFailed),
        None
    );
    assert_eq!(fresh.snapshot().standing, Standing::Open);
}

#[test]
fn pending_unsignaled_orphaning_closes_admission_before_recovery() {
    let credits = credits(16, 0);
    let mut rows = [const { Row::EMPTY }; 4];
    let mut ledger = Ledger::new(&mut rows);
    let grant = credits.reserve(writes(1)).unwrap();
    let (posting, grant) = credits.begin_post(grant).unwrap();
    post(&credits, &mut ledger, 'a', 2, false);
    let cause = Cause::Fatal;
    let entry = Entry::PostFailed { owner: 'a', cause };
    let recovery = Recovery::begin(&credits, &mut ledger, entry).unwrap();
    // Somebody is still posting: closed for all others already, but nothing is collected.
    assert!(matches!(credits.admit(1, 1, None), Err(Refused::Terminal)));
    let revision = recovery
        .poll(
            &credits,
            &mut ledger,
            |_| panic!("early"),
            |_| panic!("early"),
        )
        .unwrap_err();
    assert!(
        !credits.reopen(Epoch(2)),
        "nor is it rebuilt under their feet"
    );
    let late = ledger.insert(record('b', grant, false)).unwrap();
    ledger.mark_posted(late.id);
    drop(posting);
    assert_ne!(
        credits.revision(),
        revision,
        "the end of the post is heard of"
    );
    let (told, _) = recover(recovery, &credits, &mut ledger);
    assert_eq!(
        told,
        [failed('a', 2, cause), failed('b', 1, Cause::Flushed)]
    );
    let (again, _) = recover(recovery, &credits, &mut ledger);
    assert_eq!(again, []);
}

fn lane(rail: u16, epoch: u32) -> SessionLane {
    SessionLane {
        lane: LaneId::new(0, RailId(rail)),
        epoch: Epoch(epoch),
    }
}

/// Lane of rail `i` has the credits at `i`; under another epoch it is another lane.
fn is_over(lanes: &[Credits]) -> impl FnMut(SessionLane) -> bool {
    move |session_lane| {
        let credits = &lanes[session_lane.lane.rail().index()];
        credits.snapshot().standing == Standing::Terminal || credits.epoch() != session_lane.epoch
    }
}

#[test]
fn rdma_session_alive_checks_terminal_sq() {
    let lanes = [credits(8, 0), credits(8, 0)];
    let mut rows = [const { Row::EMPTY }; 2];
    let mut sessions: Sessions<'_, u8, 2> = Sessions::new(&mut rows);
    let id = sessions.insert(7, &[lane(0, 1), lane(1, 1)]).unwrap();
    assert!(sessions.is_alive(id, is_over(&lanes)));
    lanes[1].degrade();
    assert!(
        sessions.is_alive(id, is_over(&lanes)),
        "closed for now is not over"
    );
    lanes[1].terminate();
    assert!(!sessions.is_alive(id, is_over(&lanes)));
    // And it stays so: a rebuilt lane is another one.
    lanes[1].reopen(Epoch(2));
    assert!(!sessions.is_alive(id, is_over(&lanes)));
}

#[test]
fn unhealthy_session_is_evicted_at_look_up_and_made_anew() {
    let lanes = [credits(8, 0), credits(8, 0)];
    let mut rows = [const { Row::EMPTY }; 2];
    let mut sessions: Sessions<'_, u8, 2> = Sessions::new(&mut rows);
    let old = sessions.insert(7, &[lane(0, 1), lane(1, 1)]).unwrap();
    let other = sessions.insert(8, &[lane(0, 1)]).unwrap();
    assert_eq!(sessions.insert(7, &[lane(0, 1)]), Err(SessionError::Exists));
    assert_eq!(sessions.look_up(7, is_over(&lanes)), Some(old));
    assert!(sessions.begin_transfer(old));
    lanes[1].terminate();

    // A look-up of any key evicts it. The transfer that is under way keeps its lanes to its end.
    assert_eq!(sessions.look_up(8, is_over(&lanes)), Some(other));
    assert_eq!(sessions.look_up(7, is_over(&lanes)), None);
    assert!(!sessions.begin_transfer(old), "for new ones it is gone");
    assert_eq!(sessions.lanes(old), Some(&[lane(0, 1), lane(1, 1)][..]));

    // Its row is not free yet.
    assert_eq!(sessions.insert(7, &[lane(0, 1)]), Err(SessionError::Full));
    assert!(sessions.end_transfer(old));
    assert_eq!(sessions.lanes(old), None);
    assert!(!sessions.end_transfer(old));

    // Only what is missing is built.
    let mut refill = Refill::new(2);
    let healthy = |lanes: &[Credits]| {
        let open = lanes
            .iter()
            .filter(|lane| lane.snapshot().standing == Standing::Open);
        open.count() as u16
    };
    assert_eq!(refill.poll(healthy(&lanes)), RefillStep::Build(1));
    assert!(lanes[1].reopen(Epoch(2)));
    assert_eq!(refill.poll(healthy(&lanes)), RefillStep::Enough);
    let fresh = sessions.insert(7, &[lane(0, 1), lane(1, 2)]).unwrap();
    assert_eq!(sessions.look_up(7, is_over(&lanes)), Some(fresh));
    assert!(!sessions.end_transfer(fresh), "alive without transfers");
}

#[test]
fn refill_gives_up_with_numbers() {
    // (lanes wanted, healthy ones, rounds)
    for (wanted, healthy, rounds) in [(1, 0, 2), (4, 3, 8)] {
        let mut refill = Refill::new(wanted);
        for _ in 0..rounds {
            assert_eq!(refill.poll(healthy), RefillStep::Build(wanted - healthy));
        }
        let short = RefillStep::Short {
            wanted,
            healthy,
            rounds,
        };
        assert_eq!(refill.poll(healthy), short);
        assert_eq!(
            refill.poll(wanted),
            RefillStep::Enough,
            "late is not too late"
        );
    }
}

#[test]
fn partial_post_no_work_posted() {
    let credits = credits(8, 0);
    let mut rows = [const { Row::EMPTY }; 4];
    let mut ledger = Ledger::new(&mut rows);
    let entered = [
        enter(&credits, &mut ledger, 'a', 2, false),
        enter(&credits, &mut ledger, 'a', 2, true),
    ];
    let mut back = Vec::new();
    let cause = Cause::LocalLength;
    let answer = took(0, Stop::Rejected(cause));
    let outcome = ledger.settle_post(&entered, answer, 0, |record| back.push(record));
    assert_eq!((outcome, back.len()), (PostOutcome::Nothing, 2));
    for record in back {
        assert!(credits.release(record.grant));
    }
    assert_eq!((held(&credits), ledger.len()), (0, 0));
    // Nothing is out, so the lane lives.
    let entry = Entry::PostFailed { owner: 'a', cause };
    assert_eq!(Recovery::begin(&credits, &mut ledger, entry), None);
    assert_eq!(credits.snapshot().standing, Standing::Open);
}

#[test]
fn partial_post_unsignaled_head_posted() {
    let credits = credits(16, 0);
    let mut rows = [const { Row::EMPTY }; 4];
    let mut ledger = Ledger::new(&mut rows);
    let mut cadence = Cadence::new(0);
    let entered = [
        enter(&credits, &mut ledger, 'a', 3, false),
        enter(&credits, &mut ledger, 'b', 4, true),
    ];
    let mut back = Vec::new();
    let outcome = ledger.settle_post(&entered, took(5, Stop::Full), 5, |record| back.push(record));
    assert_eq!(outcome, PostOutcome::Uncovered);
    let rest = back.pop().unwrap();
    assert_eq!(
        (
            rest.owner,
            rest.grant.amount(),
            rest.requests,
            rest.signalled
        ),
        ('b', writes(2), 2, true)
    );
    assert!(credits.release(rest.grant));
    assert_eq!(held(&credits), 5);
    // Nothing has to end: the next work is signalled, and covers all.
    cadence.handle_partial_post(ledger.uncovered());
    assert_eq!(cadence.unsignalled(), writes(5));
    assert!(cadence.next(false, credits.snapshot().free(), false));
    let next = post(&credits, &mut ledger, 'c', 1, true);
    let mut released = Vec::new();
    assert!(ledger.complete(next.id, |record| {
        released.push((record.owner, record.requests))
    }));
    assert_eq!(released, [('a', 3), ('b', 2), ('c', 1)]);
}

/// The simulator posted works again that an error had told the owner of already.
#[test]
fn partial_post_that_an_error_was_faster_than() {
    let credits = credits(16, 0);
    let mut rows = [const { Row::EMPTY }; 4];
    let mut ledger = Ledger::new(&mut rows);
    let entered = [
        enter(&credits, &mut ledger, 'a', 3, true),
        enter(&credits, &mut ledger, 'b', 4, true),
    ];
    let mut told = Vec::new();
    let mut tell = |record: Record<char>| told.push((record.owner, record.requests));
    assert!(ledger.complete(entered[0].id, &mut tell));
    // Of the first record one work had gone out, and it is the one that failed; all three are told.
    let outcome = ledger.settle_post(&entered, took(1, Stop::Full), 1, &mut tell);
    assert_eq!(outcome, PostOutcome::Uncovered);
    assert_eq!(told, [('a', 3), ('b', 4)], "once each");
    assert_eq!((ledger.len(), ledger.uncovered()), (0, Amount::default()));
}

#[test]
fn partial_post_signaled_tail_posted() {
    let credits = credits(16, 0);
    let mut rows = [const { Row::EMPTY }; 4];
    let mut ledger = Ledger::new(&mut rows);
    let entered = [
        enter(&credits, &mut ledger, 'a', 3, true),
        enter(&credits, &mut ledger, 'a', 4, true),
    ];
    let mut back = Vec::new();
    let cause = Cause::LocalLength;
    let answer = took(3, Stop::Rejected(cause));
    let outcome = ledger.settle_post(&entered, answer, 3, |record| back.push(record.requests));
    assert_eq!((outcome, &back[..]), (PostOutcome::Covered, &[4][..]));
    // The completion owns what went out; the lane lives.
    let entry = Entry::PostFailed { owner: 'a', cause };
    assert_eq!(Recovery::begin(&credits, &mut ledger, entry), None);
    assert_eq!(ledger.state(entered[0].id), Some(RecordState::Posted));
}

#[test]
fn partial_post_of_unknown_extent() {
    let credits = credits(16, 0);
    let mut rows = [const { Row::EMPTY }; 4];
    let mut ledger = Ledger::new(&mut rows);
    let entered = [
        enter(&credits, &mut ledger, 'a', 2, true),
        enter(&credits, &mut ledger, 'b', 2, true),
        enter(&credits, &mut ledger, 'c', 2, true),
    ];
    // What the transport vouches for is posted; of the rest nobody knows.
    let answer = took(3, Stop::Unknown);
    let outcome = ledger.settle_post(&entered, answer, 3, |record| panic!("{record:?}"));
    assert_eq!(outcome, PostOutcome::Unknown);
    let cause = Cause::DeviceDown;
    let entry = Entry::PostUnknown { cause };
    let recovery = Recovery::begin(&credits, &mut ledger, entry).unwrap();
    let (told, _) = recover(recovery, &credits, &mut ledger);
    assert_eq!(told, [failed('b', 2, cause), failed('c', 2, cause)]);
    assert_eq!(ledger.len(), 1);
}

#[test]
fn partial_post_fatal_completion_ends_the_lane_until_it_is_rebuilt() {
    let credits = credits(16, 0);
    let mut rows = [const { Row::EMPTY }; 4];
    let mut ledger = Ledger::new(&mut rows);
    let first = post(&credits, &mut ledger, 'a', 2, true);
    let second = post(&credits, &mut ledger, 'b', 2, true);
    post(&credits, &mut ledger, 'c', 1, false);
    post(&credits, &mut ledger, 'a', 1, false);
    let cause = Cause::RetryExceeded;
    let mut grants = Vec::new();
    assert!(ledger.complete(first.id, |record| grants.push(record.grant)));
    let entry = Entry::CompletionFailed { owner: 'a', cause };
    let recovery = Recovery::begin(&credits, &mut ledger, entry).unwrap();
    let (told, orphaned) = recover(recovery, &credits, &mut ledger);
    // Who caused it comes first, though its orphan is the younger one.
    assert_eq!(
        told,
        [failed('a', 1, cause), failed('c', 1, Cause::Flushed)]
    );
    // The neighbour's signalled works are flushed, each by its own completion, which ends nothing more.
    assert!(ledger.complete(second.id, |record| grants.push(record.grant)));
    let flushed = Entry::CompletionFailed {
        owner: 'b',
        cause: Cause::Flushed,
    };
    assert_eq!(Recovery::begin(&credits, &mut ledger, flushed), None);
    grants.extend(orphaned);
    let late = grants.pop().unwrap();
    assert!(grants.into_iter().all(|grant| credits.release(grant)));
    // Rebuilt, the lane has all its credits, and what comes late from before moves none.
    assert!(credits.reopen(Epoch(2)));
    let _all = credits.reserve(writes(16)).unwrap();
    assert!(!credits.release(late));
    assert_eq!(held(&credits), 16);
}

#[test]
fn a_device_that_is_gone_orphans_signalled_works_too() {
    let credits = credits(16, 0);
    let mut rows = [const { Row::EMPTY }; 4];
    let mut ledger = Ledger::new(&mut rows);
    let posted = post(&credits, &mut ledger, 'a', 2, true);
    let cause = Cause::DeviceDown;
    let gone = Entry::DeviceGone { cause };
    let recovery = Recovery::begin(&credits, &mut ledger, gone).unwrap();
    let (told, _) = recover(recovery, &credits, &mut ledger);
    assert_eq!(told, [failed('a', 2, cause)]);
    assert!(!ledger.complete(posted.id, |_| ()), "late");
}
