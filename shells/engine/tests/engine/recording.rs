//! Recorded engines: their recordings are replayed to the same answers, whatever happened to them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use polyrail::{Config, Engine, Policy, RailId, Status};
use polyrail_core::work::{Cause, Outcome};
use polyrail_record::{Answer, Call, Reader, Recorder, Step};
use polyrail_sim::replay::{Replay, replay};

use crate::fixture::*;

const BYTES: u64 = 4 * MIB;
/// So that a transfer lasts long enough for something to happen to it.
const PACE_BYTES_PER_SEC: u64 = 15_000_000;

/// A folder that ends with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Relaxed);
        let name = format!("polyrail-recording-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    /// A pair whose initiator is recorded.
    fn pair(&self, policy: Policy, workers: usize) -> Pair {
        let config = Config {
            policy,
            workers,
            ..initiator_config()
        };
        Pair::with(BYTES, |faults| {
            initiator_with(config, faults, Some(self.0.clone()))
        })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It is not there if the engine was not.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn reader(file: &Path) -> Reader<BufReader<File>> {
    Reader::new(BufReader::new(File::open(file).unwrap())).unwrap()
}

/// Ends the engine and replays what it did.
fn replayed(engine: &Engine) -> Replay {
    engine.shutdown();
    assert!(engine.recording_cut().is_none());
    let file = engine.recording().unwrap();
    let replayed = replay(&mut reader(file), None).unwrap();
    let length = std::fs::metadata(file).unwrap().len();
    assert!(replayed.equal, "{:#?}", replayed.difference);
    assert!(replayed.complete && replayed.bytes == length, "{length}");
    replayed
}

/// How many calls each worker made on its core.
fn calls_by_worker(file: &Path) -> BTreeMap<u16, u64> {
    let (mut calls, mut reader) = (BTreeMap::new(), reader(file));
    while let Some(entry) = reader.next_entry().unwrap() {
        if let Step::Worker(worker, _) = entry.step {
            *calls.entry(worker).or_default() += 1;
        }
    }
    calls
}

/// Several transfers at a time; a rail is cut in the middle of them, and comes back.
fn cut_in_the_middle(pair: &Pair) {
    until("the rail is in use", || {
        pair.exchange(2);
        pair.rail_bytes(1) > 0
    });
    pair.each_rail(|faults, rail| faults.slow(rail, Some(PACE_BYTES_PER_SEC)));
    fill(&pair.source(), 1);
    let before = pair.moved_bytes();
    let batches: Vec<_> = (0..4).map(|_| pair.submit(pair.write_all())).collect();
    until("some has moved", || pair.moved_bytes() > before + 500_000);
    pair.faults.cut(RailId(1));
    batches.iter().for_each(completed);
    pair.faults.restore(RailId(1));
    pair.each_rail(|faults, rail| faults.slow(rail, None));
    pair.until_used(1, pair.write_all());
    assert!(bytes(&pair.destination()) == pattern(1, pair.bytes));
}

/// Seen to fail with three workers in two of four runs, when `Recorded` took its lock only after the call.
#[test]
fn a_cut_rail_is_replayed_under_every_policy_with_one_worker_and_with_three() {
    for policy in Policy::ALL {
        for workers in [1, 3] {
            let folder = Folder::new();
            let pair = folder.pair(policy, workers);
            cut_in_the_middle(&pair);
            let story = replayed(&pair.initiator).story;
            let name = policy.name();
            assert_eq!((story.workers, story.policy.as_str()), (workers, name));
            assert!(story.fences > 0, "{name}");
            let names: Vec<_> = story.rails.iter().map(|rail| &rail.rail).collect();
            let expected = pair.initiator.rails();
            assert!(
                names
                    .iter()
                    .copied()
                    .eq(expected.iter().map(|rail| &rail.name))
            );
            let states: Vec<_> = story.changes.iter().map(|change| change.state).collect();
            assert!(states.contains(&"healthy"), "{name}: {states:?}");
            assert_eq!(
                story.rails.iter().map(|rail| rail.done_bytes).sum::<u64>(),
                pair.moved_bytes()
            );
            let calls = calls_by_worker(pair.initiator.recording().unwrap());
            assert!(calls.values().all(|calls| *calls > 50), "{name}: {calls:?}");
            assert_eq!(calls.len(), workers, "{name}: {calls:?}");
        }
    }
}

#[test]
fn a_cancelled_request_is_replayed() {
    for workers in [1, 3] {
        let folder = Folder::new();
        let pair = folder.pair(Policy::Spray, workers);
        pair.warm_up();
        pair.each_rail(|faults, rail| faults.slow(rail, Some(500_000)));
        let before = pair.moved_bytes();
        let batch = pair.submit(pair.write_all());
        until("some has moved", || pair.moved_bytes() > before + 100_000);
        batch.cancel();
        assert_eq!(ended(&batch).status, Status::Cancelled);
        let story = replayed(&pair.initiator).story;
        assert_eq!((story.cancels, story.reports["Cancelled"]), (1, 1));
    }
}

#[test]
fn a_target_that_ends_is_replayed() {
    let folder = Folder::new();
    let pair = folder.pair(Policy::Spray, 3);
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.slow(rail, Some(500_000)));
    let before = pair.moved_bytes();
    let batches: Vec<_> = (0..3).map(|_| pair.submit(pair.write_all())).collect();
    until("some has moved", || pair.moved_bytes() > before + 100_000);
    pair.target.shutdown();
    let bad = batches.iter().map(ended);
    assert!(bad.into_iter().all(|end| end.status != Status::Completed));
    let story = replayed(&pair.initiator).story;
    assert!(story.reports.keys().any(|status| *status != "Completed"));
}

#[test]
fn a_shutdown_in_the_middle_is_replayed_on_both_sides() {
    let (here, there) = (Folder::new(), Folder::new());
    let pair = here.pair(Policy::Spray, 3);
    // The peer of a peer: it moves nothing itself, and is recorded all the same.
    let idle = initiator_with(target_config("idle"), &pair.faults, Some(there.0.clone()));
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.slow(rail, Some(500_000)));
    let before = pair.moved_bytes();
    let batch = pair.submit(pair.write_all());
    until("some has moved", || pair.moved_bytes() > before + 100_000);
    let story = replayed(&pair.initiator).story;
    assert_eq!(ended(&batch).status, Status::ShutDown);
    assert_eq!(story.reports["ShutDown"], 1);
    assert_eq!(replayed(&idle).story.requests, 0);
}

#[test]
fn who_does_not_ask_for_a_recording_gets_none() {
    let pair = Pair::new(MIB);
    assert_eq!(pair.initiator.recording(), None);
    // A file where the folder should be.
    let folder = Folder::new();
    std::fs::write(&folder.0, "").unwrap();
    let hooks = polyrail::Hooks {
        recording: Some(folder.0.clone()),
        ..Default::default()
    };
    let error = Engine::with_hooks(initiator_config(), hooks).err().unwrap();
    let named = folder.0.display().to_string();
    assert!(error.to_string().contains(&named), "{error}");
    std::fs::remove_file(&folder.0).unwrap();
}

/// Copies a recording, but for what `change` does to each call; `false`: leaves it out.
fn changed(
    from: &Path,
    folder: &Folder,
    mut change: impl FnMut(&mut Step<'static>, &mut Answer<'static>) -> bool,
) -> PathBuf {
    let mut reader = reader(from);
    let recorder = Recorder::create(&folder.0, reader.header()).unwrap();
    while let Some(mut entry) = reader.next_entry().unwrap() {
        if change(&mut entry.step, &mut entry.answer) {
            recorder.note(&entry.step, &entry.answer);
        }
    }
    recorder.path().to_owned()
}

#[test]
fn a_changed_recording_is_different() {
    let folder = Folder::new();
    let pair = folder.pair(Policy::Spray, 1);
    pair.warm_up();
    pair.exchange(7);
    assert!(replayed(&pair.initiator).equal);
    let original = pair.initiator.recording().unwrap();
    let verdict = |file: &Path| replay(&mut reader(file), None).unwrap();

    let same = changed(original, &folder, |_, _| true);
    assert!(verdict(&same).equal);

    let mut flipped = false;
    let file = changed(original, &folder, |step, _| {
        if let Step::Worker(_, Call::HandleCompletions { completions, .. }) = step
            && !flipped
        {
            flipped = true;
            completions.to_mut()[0].outcome = Outcome::Error(Cause::Reset);
        }
        true
    });
    let found = verdict(&file).difference.expect("a work failed");
    assert!(found.expected != found.got, "{found:?}");

    // Whichever call that hands in something is left out, it is missed.
    type IsKind = fn(&Call<'_>) -> bool;
    let kinds: [(&str, IsKind); 4] = [
        ("completions", |call| {
            matches!(call, Call::HandleCompletions { .. })
        }),
        ("a request", |call| matches!(call, Call::Submit { .. })),
        ("a plan", |call| matches!(call, Call::InstallPlan { .. })),
        ("an answer", |call| {
            matches!(call, Call::HandlePosted { .. })
        }),
    ];
    for (name, is_kind) in kinds {
        let mut dropped = false;
        let file = changed(original, &folder, |step, _| {
            let hit = matches!(step, Step::Worker(_, call) if is_kind(call)) && !dropped;
            dropped |= hit;
            !hit
        });
        assert!(dropped && !verdict(&file).equal, "without {name}");
    }
}
