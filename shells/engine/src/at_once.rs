//! Batches that are over when `submit` returns: what the thread that submits can copy by itself, without a word from
//! anybody, it copies there and then, if nothing else is under way with its worker.
//!
//! Whether a request may go so is for core to say, and whether it can be copied for the transport. Whatever does not fit,
//! or goes wrong on the way, is submitted as usual, all of it: then some bytes are moved twice, and nobody was told of
//! the first time.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use polyrail_core::orchestrator::Request as CoreRequest;
use polyrail_core::time::Instant;
use polyrail_core::units::{BatchId, PlanId};

use crate::engine::Engine;
use crate::post::Post;
use crate::request::{Request, Terms, check_request};
use crate::segments::Pairs;

/// What a request takes of [`Config::at_once_bytes`](crate::Config::at_once_bytes) at least: as long as so many bytes
/// does what has to be done beside copying.
const LEAST_BYTES: u64 = 4096;

/// The most that goes as one.
const RUN_BYTES_MAX: u64 = 1 << 20;

impl Engine {
    /// Carries out requests, all of them, and says whose worker would have. `None`: they are to be submitted as usual; if
    /// something is wrong with them, that says what.
    pub(crate) fn carry_at_once(
        &self,
        requests: &[Request],
        terms: &Terms<'_>,
    ) -> Option<&Arc<Post>> {
        if !self.inner.plans.carries_at_once.load(Relaxed) {
            return None;
        }
        let most = self.inner.config.at_once_bytes;
        let taken = requests.iter().try_fold(0_u64, |sum, request| {
            sum.checked_add(request.length.max(LEAST_BYTES))
        })?;
        let has_terms = terms.deadline.is_some() || terms.tells();
        if taken > most || has_terms {
            return None;
        }
        let post = self.inner.workers.idle()?;
        let known = self.inner.segments.known();
        let mut pairs = Pairs::of(&known);
        // Nothing moves if one of them may not.
        for (index, request) in requests.iter().enumerate() {
            let pair = pairs.find((request.local, request.remote))?;
            check_request(pair, index, request).ok()?;
        }
        let now = self.inner.clock.now();
        let carried = post.drive_idle(|driven| {
            let as_core_sees = runs(requests).map(|run| {
                let pair = pairs.find((run.local, run.remote))?;
                Some(core_request(pair.plan, &run, terms))
            });
            driven.carry_at_once(now, as_core_sees)
        });
        (carried == Some(true)).then_some(post)
    }
}

/// Requests, those as one that go on where the one before ends, at both ends.
fn runs(requests: &[Request]) -> impl Iterator<Item = Request> {
    let mut rest = requests;
    std::iter::from_fn(move || {
        let (first, mut behind) = rest.split_first()?;
        let mut run = *first;
        while let Some((next, further)) = behind.split_first()
            && goes_on(&run, next)
            && run.length + next.length <= RUN_BYTES_MAX
        {
            run.length += next.length;
            behind = further;
        }
        rest = behind;
        Some(run)
    })
}

/// Whether a request that was checked is followed by another one.
fn goes_on(run: &Request, next: &Request) -> bool {
    let ends = |request: &Request| (request.op, request.local, request.remote);
    let offsets = (next.local_offset, next.remote_offset);
    let end = (
        run.local_offset + run.length,
        run.remote_offset + run.length,
    );
    ends(run) == ends(next) && offsets == end
}

/// A request as core sees one that has neither row nor batch.
fn core_request(plan: PlanId, request: &Request, terms: &Terms<'_>) -> CoreRequest {
    CoreRequest {
        tag: 0,
        plan,
        batch: BatchId::default(),
        local_offset: request.local_offset,
        remote_offset: request.remote_offset,
        length: request.length,
        deadline: Instant::MAX,
        op: request.op,
        priority: terms.priority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::BufReader;
    use std::sync::atomic::{AtomicU32, Ordering::*};
    use std::time::{Duration, Instant as StdInstant};

    use polyrail_core::work::Op;
    use polyrail_record::Reader;
    use polyrail_sim::replay::{Flight, replay};
    use polyrail_transport::memory::{Access, Region};
    use quickcheck::quickcheck;

    use crate::batch::{Batch, Shared};
    use crate::{
        Blocks, Config, Hooks, Local, PagedRequest, Places, Posted, Remote, SegmentId, Status,
        SubmitError,
    };

    /// Longer than anything here takes; only a failing test waits for it.
    const PATIENCE: Duration = Duration::from_secs(30);
    const KIB: u64 = 1 << 10;
    const BYTES: u64 = 4 << 20;

    /// Two engines of this process, and memory at either end that both can map.
    struct Pair {
        target: Engine,
        engine: Engine,
        local: SegmentId,
        remote: SegmentId,
        /// The same, as its owner names it.
        own: SegmentId,
        here: Arc<Region>,
        there: Arc<Region>,
    }

    fn config(name: &str) -> Config {
        Config {
            workers: 1,
            ..Config::named(name)
        }
    }

    impl Pair {
        fn new(config: Config) -> Self {
            Self::with(config, Hooks::default())
        }

        fn with(initiator: Config, hooks: Hooks) -> Self {
            let target = Engine::new(Config {
                listen: Some("127.0.0.1:0".parse().unwrap()),
                ..config("target")
            })
            .unwrap();
            let access = Access::RemoteReadWrite;
            let own = target.allocate("mem", BYTES, access).unwrap();
            let engine = Engine::with_hooks(initiator, hooks).unwrap();
            let local = engine.allocate("here", BYTES, Access::Local).unwrap();
            let address = format!("{}/mem", target.listening().unwrap());
            let pair = Self {
                remote: engine.open_segment(&address).unwrap(),
                here: engine.region(local).unwrap(),
                there: target.region(own).unwrap(),
                own,
                local,
                target,
                engine,
            };
            // A lane is open, and the memory mapped, from now on.
            pair.moves(&[pair.write(0, 1)]);
            pair
        }

        fn moves(&self, requests: &[Request]) {
            let batch = self.engine.submit(requests).unwrap();
            assert_eq!(batch.wait(PATIENCE).unwrap().status, Status::Completed);
        }

        fn request(&self, op: Op, offset: u64, length: u64) -> Request {
            Request {
                op,
                local: self.local,
                local_offset: offset,
                remote: self.remote,
                remote_offset: offset,
                length,
            }
        }

        fn write(&self, offset: u64, length: u64) -> Request {
            self.request(Op::Write, offset, length)
        }

        fn try_carry(&self, requests: &[Request], terms: &Terms<'_>) -> Option<Batch> {
            let post = self.engine.carry_at_once(requests, terms)?;
            let carried = Shared::carried(requests, None);
            Some(Batch::new(Arc::new(carried), post.clone()))
        }

        /// Once the worker's thread sleeps.
        fn carry(&self, requests: &[Request]) -> Batch {
            let until = StdInstant::now() + PATIENCE;
            loop {
                if let Some(batch) = self.try_carry(requests, &Terms::default()) {
                    return batch;
                }
                assert!(StdInstant::now() < until, "it is not carried out at once");
                std::thread::yield_now();
            }
        }

        fn never_carries(&self, requests: &[Request], terms: &Terms<'_>, why: &str) {
            for _ in 0..200 {
                assert!(self.try_carry(requests, terms).is_none(), "{why}");
                std::thread::yield_now();
            }
        }
    }

    fn fill(region: &Region, value: u8) {
        region.store(&vec![value; BYTES as usize], 0).unwrap();
    }

    fn bytes(region: &Region) -> Vec<u8> {
        let mut bytes = vec![0; BYTES as usize];
        region.load(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_this_thread_can_copy_is_there_when_it_is_submitted() {
        let pair = Pair::new(config("initiator"));
        let carried = || {
            pair.engine
                .rails()
                .iter()
                .map(|rail| rail.bytes)
                .sum::<u64>()
        };
        for (seed, op, lengths) in [
            (1, Op::Write, &[1][..]),
            (2, Op::Read, &[4097]),
            (3, Op::Write, &[1 << 20]),
            (4, Op::Read, &[64 * KIB; 16]),
            (5, Op::Write, &[5, 65_537, 4096, 3]),
        ] {
            let (from, to) = match op {
                Op::Write => (&pair.here, &pair.there),
                Op::Read => (&pair.there, &pair.here),
            };
            fill(from, seed);
            fill(to, 0xee);
            let before = carried();
            // With a gap behind the second.
            let mut at = 11;
            let mut moved = vec![0xee; BYTES as usize];
            let requests: Vec<_> = (0..)
                .zip(lengths)
                .map(|(index, length)| {
                    let request = pair.request(op, at, *length);
                    moved[at as usize..][..*length as usize].fill(seed);
                    at += length + u64::from(index == 1);
                    request
                })
                .collect();
            let batch = pair.carry(&requests);
            let sum = lengths.iter().sum::<u64>();
            assert!(bytes(to) == moved, "{op:?} {lengths:?}");
            assert_eq!(carried() - before, sum, "{op:?} {lengths:?}");
            let status = batch.status();
            let requests = lengths.len() as u32;
            assert_eq!((status.status, status.ended), (Status::Completed, requests));
            assert_eq!((status.requests, status.failed), (requests, 0));
            assert_eq!(status.delivered_bytes, sum);
            for (index, length) in lengths.iter().enumerate() {
                let report = batch.report(index).unwrap();
                assert_eq!(report.delivered_bytes, *length);
                assert_eq!((report.status, report.cause), (Status::Completed, None));
                let sides = (report.local, report.remote);
                assert_eq!(sides, (Local::Released, Remote::Settled));
            }
            assert!(batch.report(lengths.len()).is_none());
        }
        pair.engine.unregister(pair.local).unwrap();
    }

    #[test]
    fn all_ways_to_learn_of_its_end_know_it() {
        let pair = Pair::new(config("initiator"));
        let batch = pair.carry(&[pair.write(0, 4096)]);
        assert_eq!(
            batch.wait(Duration::ZERO).unwrap().status,
            Status::Completed
        );
        assert!(batch.wait_released(Duration::ZERO).is_ok());
        let calls = Arc::new(AtomicU32::new(0));
        let count = calls.clone();
        batch.on_done(move |report| {
            assert_eq!(report.status, Status::Completed);
            count.fetch_add(1, SeqCst);
        });
        assert_eq!(calls.load(SeqCst), 1, "on this thread, at once");
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut handle = batch.clone();
        let polled = std::future::Future::poll(std::pin::Pin::new(&mut handle), &mut context);
        assert!(polled.is_ready());
        batch.cancel();
        assert!(batch.delivery().is_none());
        pair.moves(&[pair.write(0, 8 << 10)]);
        assert_eq!(batch.status().status, Status::Completed);
    }

    #[test]
    fn each_post_of_a_prepared_transfer_moves_what_the_memory_holds_then() {
        let pair = Pair::new(config("initiator"));
        let requests = [pair.write(0, 4096), pair.write(4100, 50)];
        let mut transfer = pair.engine.prepare_transfer(&requests).unwrap();
        let mut batches = Vec::new();
        for seed in 1..100 {
            fill(&pair.here, seed);
            let batch = transfer.post().unwrap();
            assert_eq!(batch.wait(PATIENCE).unwrap().delivered_bytes, 4146);
            assert_eq!(bytes(&pair.there)[4095..4101], [seed, 0, 0, 0, 0, seed]);
            // Some of them are kept, and not used again.
            batches.push((seed % 3 == 0).then_some(batch));
        }
        let kept = batches.iter().flatten();
        assert!(
            kept.clone()
                .all(|batch| batch.status().delivered_bytes == 4146)
        );
        drop(transfer);
        pair.engine.unregister(pair.local).unwrap();
    }

    #[test]
    fn a_post_that_is_finished_at_once_has_no_batch_and_says_the_same() {
        let pair = Pair::new(config("initiator"));
        let rows = |segment| Blocks {
            segment,
            base: 0,
            stride: 100,
            places: Places::Rows(3),
        };
        let paged = PagedRequest {
            op: Op::Write,
            local: rows(pair.local),
            remote: rows(pair.remote),
            length: 50,
        };
        let requests = [pair.write(0, 4096), pair.write(4100, 50)];
        let engine = &pair.engine;
        // (transfer, its requests, its bytes, where its first and its last byte are)
        let transfers = [
            (
                engine.prepare_transfer(&requests).unwrap(),
                2,
                4146,
                (0, 4149),
            ),
            (engine.prepare_paged(&[paged]).unwrap(), 1, 150, (0, 249)),
        ];
        for (mut transfer, requests, delivered, (first, last)) in transfers {
            let (mut finished, mut seed) = (0, 0);
            let until = StdInstant::now() + PATIENCE;
            while finished < 20 {
                assert!(StdInstant::now() < until, "it is not carried out at once");
                seed = (seed + 1) % 251;
                fill(&pair.here, seed);
                let report = match transfer.post_or_finish(&Terms::default()).unwrap() {
                    Posted::Finished(report) => {
                        finished += 1;
                        report
                    }
                    Posted::Going(batch) => batch.wait(PATIENCE).unwrap(),
                };
                let there = bytes(&pair.there);
                assert_eq!((there[first], there[last]), (seed, seed));
                assert_eq!((report.status, report.failed), (Status::Completed, 0));
                assert_eq!((report.requests, report.ended), (requests, requests));
                assert_eq!(report.delivered_bytes, delivered);
            }
            // With a deadline it is the worker's.
            let terms = Terms {
                deadline: Some(PATIENCE),
                ..Terms::default()
            };
            let posted = transfer.post_or_finish(&terms).unwrap();
            let Posted::Going(batch) = posted else {
                panic!("{posted:?}")
            };
            assert_eq!(batch.wait(PATIENCE).unwrap().delivered_bytes, delivered);
        }
        pair.engine.unregister(pair.local).unwrap();
    }

    #[test]
    fn what_does_not_fit_is_submitted_as_usual() {
        let pair = Pair::new(config("initiator"));
        let usual = Terms::default();
        let small = pair.write(0, 4096);
        let large = [pair.write(0, (1 << 20) + 1)];
        pair.never_carries(&large, &usual, "too many bytes");
        pair.never_carries(&[pair.write(0, 1); 257], &usual, "too many requests");
        let due = Terms {
            deadline: Some(PATIENCE),
            ..Terms::default()
        };
        pair.never_carries(&[small], &due, "a deadline");
        let telling = Terms {
            notification: Some(b"done"),
            ..Terms::default()
        };
        pair.never_carries(&[small], &telling, "a notification");
        // Something else is with the worker.
        let post = &pair.engine.inner.workers.posts[0];
        let room = post.room.take(&pair.engine.inner.clock, 1, PATIENCE, || {});
        pair.never_carries(&[small], &usual, "the worker has something to do");
        post.room.give_back(room.unwrap());
        pair.carry(&[small]);

        let off = Pair::new(Config {
            at_once_bytes: 0,
            ..config("initiator")
        });
        off.never_carries(&[off.write(0, 1)], &usual, "it is off");
        off.moves(&[off.write(0, 4096)]);
        pair.engine.shutdown();
        pair.never_carries(&[small], &usual, "the engine has ended");
    }

    #[test]
    fn what_is_carried_at_once_is_in_a_recording_and_is_decided_so_again() {
        let folder = tempfile::tempdir().unwrap();
        let hooks = Hooks {
            recording: Some(folder.path().to_owned()),
            ..Hooks::default()
        };
        let pair = Pair::with(config("initiator"), hooks);
        for offset in [0, 4096] {
            pair.carry(&[pair.write(offset, 4096)]);
        }
        pair.engine.shutdown();
        let file = File::open(pair.engine.recording().unwrap()).unwrap();
        let mut reader = Reader::new(BufReader::new(file)).unwrap();
        let mut flight = Flight::default();
        let replayed = replay(&mut reader, None, Some(&mut flight)).unwrap();
        assert!(replayed.equal, "{:#?}", replayed.difference);
        let drawn = flight.text(&replayed);
        assert_eq!(drawn.matches(r#""cat":"request""#).count(), 3);
        // The first one was perhaps queued.
        assert!(drawn.contains("requests at once"), "{drawn}");
        let story = replayed.story;
        assert_eq!((story.requests, story.request_bytes), (3, 1 + 2 * 4096));
        assert_eq!(story.reports["Completed"], 3);
        assert_eq!(story.slice_bytes, story.request_bytes);
    }

    #[test]
    fn nothing_moves_of_a_batch_that_has_something_wrong() {
        let pair = Pair::new(config("initiator"));
        fill(&pair.here, 7);
        fill(&pair.there, 0);
        let beyond = pair.write(BYTES - 1, 2);
        let requests = [pair.write(0, 4096), beyond];
        pair.never_carries(&requests, &Terms::default(), "out of range");
        let error = pair.engine.submit(&requests).unwrap_err();
        assert!(
            matches!(error, SubmitError::OutOfRange { index: 1, .. }),
            "{error:?}"
        );
        assert!(bytes(&pair.there).iter().all(|byte| *byte == 0));
        // Memory that was taken back is not written to, and the peer's word for that arrives.
        pair.target.unregister(pair.own).unwrap();
        let refused = pair.engine.submit(&[pair.write(0, 4096)]).unwrap();
        assert_eq!(refused.wait(PATIENCE).unwrap().status, Status::Failed);
    }

    quickcheck! {
        fn runs_are_the_requests_in_their_order(steps: Vec<(u8, u8, bool, bool)>) -> bool {
            let mut at = 0;
            let requests: Vec<_> = steps.iter().map(|(length, gap, reads, far)| {
                let length = (1 + u64::from(*length)) * if *far { 8 * KIB } else { 1 };
                at += u64::from(*gap % 2);
                let offset = at;
                at += length;
                Request {
                    op: if *reads { Op::Read } else { Op::Write },
                    local: SegmentId(1),
                    local_offset: offset,
                    remote: SegmentId(2),
                    remote_offset: 5 + offset,
                    length,
                }
            }).collect();
            let runs: Vec<_> = runs(&requests).collect();
            let bytes = |requests: &[Request]| -> Vec<_> {
                requests.iter().map(|one| (one.op, one.local_offset, one.local_offset + one.length)).collect()
            };
            // Cut where runs end, the requests are the runs.
            let mut left = bytes(&requests).into_iter();
            runs.iter().all(|run| {
                let mut end = run.local_offset;
                let run_end = run.local_offset + run.length;
                while end < run_end {
                    match left.next() {
                        Some((op, from, to)) if op == run.op && from == end && to <= run_end => end = to,
                        _ => return false,
                    }
                }
                run.remote_offset == run.local_offset + 5
                    && (run.length <= RUN_BYTES_MAX || requests.iter().any(|one| one.length == run.length))
            }) && left.next().is_none()
        }
    }

    #[test]
    fn neighbours_go_as_one() {
        let request = |at: u64, length| Request {
            op: Op::Write,
            local: SegmentId(1),
            local_offset: at,
            remote: SegmentId(2),
            remote_offset: at,
            length,
        };
        let row = |lengths: &[u64]| -> Vec<_> {
            let mut at = 0;
            let mut next = |length: &u64| {
                at += length;
                request(at - length, *length)
            };
            lengths.iter().map(&mut next).collect()
        };
        // (lengths of requests one behind the other, of runs)
        let cases: [(&[u64], &[u64]); 4] = [
            (&[1], &[1]),
            (&[64 * KIB; 16], &[1024 * KIB]),
            (&[64 * KIB; 17], &[1024 * KIB, 64 * KIB]),
            (&[1, 1024 * KIB, 5, 6], &[1, 1024 * KIB, 11]),
        ];
        for (lengths, expected) in cases {
            let got: Vec<_> = runs(&row(lengths)).map(|run| run.length).collect();
            assert_eq!(got, expected, "{lengths:?}");
        }
        let apart = [
            request(0, 4),
            request(4, 4),
            Request {
                op: Op::Read,
                ..request(8, 4)
            },
        ];
        let got: Vec<_> = runs(&apart).map(|run| run.length).collect();
        assert_eq!(got, [8, 4], "another direction");
    }
}
