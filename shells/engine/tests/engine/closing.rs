//! Segments of peers that are closed, and limits that make room or say what is full.

use std::time::Duration;

use polyrail::{
    Access, CloseError, Config, Engine, LimitsConfig, Op, OpenError, RegisterError, Request,
    SegmentId, Status, SubmitError,
};

const PATIENCE: Duration = Duration::from_secs(30);
const BYTES: u64 = 64 << 10;

fn limited(name: &str, limits: LimitsConfig) -> Config {
    Config {
        workers: 1,
        limits,
        ..Config::named(name)
    }
}

fn target(names: &[&str]) -> (Engine, String) {
    let target = Engine::new(Config {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        ..limited("target", LimitsConfig::default())
    });
    let target = target.unwrap();
    for name in names {
        target
            .allocate(name, BYTES, Access::RemoteReadWrite)
            .unwrap();
    }
    let address = target.listening().unwrap().to_string();
    (target, address)
}

fn initiator(limits: LimitsConfig) -> (Engine, SegmentId) {
    let engine = Engine::new(limited("initiator", limits)).unwrap();
    let local = engine.allocate("here", BYTES, Access::Local).unwrap();
    (engine, local)
}

fn write(local: SegmentId, remote: SegmentId) -> Request {
    Request {
        op: Op::Write,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length: BYTES,
    }
}

fn moves(engine: &Engine, request: Request) {
    let batch = engine.submit(&[request]).unwrap();
    assert_eq!(batch.wait(PATIENCE).unwrap().status, Status::Completed);
}

#[test]
fn a_closed_segment_is_refused_and_can_be_opened_again() {
    let (target, address) = target(&["mem"]);
    let (engine, local) = initiator(LimitsConfig::default());
    let open = || engine.open_segment(&format!("{address}/mem")).unwrap();
    let remote = open();
    let mut prepared = engine.prepare_transfer(&[write(local, remote)]).unwrap();
    moves(&engine, write(local, remote));
    engine.close_segment(remote).unwrap();
    let stale = Err(SubmitError::Stale {
        index: 0,
        segment: remote,
    });
    assert_eq!(engine.submit(&[write(local, remote)]).map(drop), stale);
    assert_eq!(prepared.post().map(drop), stale);
    assert_eq!(engine.segment_bytes(remote), None);
    let closed = CloseError::Stale { segment: remote };
    assert_eq!(engine.close_segment(remote), Err(closed));
    let again = open();
    assert_ne!(again, remote);
    moves(&engine, write(local, again));
    // Opened twice, it is closed with the second time.
    assert_eq!(open(), again);
    engine.close_segment(again).unwrap();
    moves(&engine, write(local, again));
    engine.close_segment(again).unwrap();
    assert!(engine.submit(&[write(local, again)]).is_err());
    // What is this engine's own is not closed but unregistered.
    let own = CloseError::Own { segment: local };
    assert_eq!(engine.close_segment(local), Err(own));
    // The owner has it still.
    assert!(
        target
            .region(target.local_segment("mem").unwrap())
            .is_some()
    );
}

#[test]
fn a_segment_is_not_closed_under_a_request() {
    let faults = std::sync::Arc::new(polyrail::Faults::default());
    let (_target, address) = target(&["mem", "other"]);
    let hooks = polyrail::Hooks {
        faults: Some(faults.clone()),
        ..polyrail::Hooks::default()
    };
    let config = limited("initiator", LimitsConfig::default()).without("shm");
    let engine = Engine::with_hooks(config, hooks).unwrap();
    let local = engine.allocate("here", BYTES, Access::Local).unwrap();
    let remote = engine.open_segment(&format!("{address}/mem")).unwrap();
    moves(&engine, write(local, remote));
    // Its completion is late.
    faults.delay(polyrail::RailId(0), Duration::from_secs(1).into());
    let batch = engine.submit(&[write(local, remote)]).unwrap();
    let in_use = CloseError::InUse { requests: 1 };
    assert_eq!(engine.close_segment(remote), Err(in_use));
    // Who gives it up is not told. Opened meanwhile, it is not closed.
    engine.close_segment_later(remote).unwrap();
    let again = engine.open_segment(&format!("{address}/mem")).unwrap();
    assert_eq!(again, remote);
    assert_eq!(batch.wait(PATIENCE).unwrap().status, Status::Completed);
    moves(&engine, write(local, remote));
    let batch = engine.submit(&[write(local, remote)]).unwrap();
    engine.close_segment_later(remote).unwrap();
    assert_eq!(batch.wait(PATIENCE).unwrap().status, Status::Completed);
    // The next one that is closed takes it along.
    let other = engine.open_segment(&format!("{address}/other")).unwrap();
    assert_eq!(engine.segment_bytes(remote), None);
    engine.close_segment(other).unwrap();
}

#[test]
fn a_name_that_is_opened_anew_takes_the_place_of_what_it_meant() {
    let (target, address) = target(&[]);
    let (engine, local) = initiator(LimitsConfig {
        segments: 16,
        ..LimitsConfig::default()
    });
    let at = format!("{address}/kv");
    let mut before = None;
    let mut all = Vec::new();
    for _ in 0..3 {
        let own = target
            .allocate("kv", BYTES, Access::RemoteReadWrite)
            .unwrap();
        let remote = engine.open_segment(&at).unwrap();
        moves(&engine, write(local, remote));
        if let Some(before) = before.replace(remote) {
            assert_ne!(before, remote);
            // Its owner says that it is gone.
            let batch = engine.submit(&[write(local, before)]).unwrap();
            assert_eq!(batch.wait(PATIENCE).unwrap().status, Status::Failed);
            moves(&engine, write(local, remote));
            engine.close_segment(before).unwrap();
            assert!(engine.submit(&[write(local, before)]).is_err());
        }
        target.unregister(own).unwrap();
    }
    // As many as are kept, and more: nobody closes them, and none is in the way of the next.
    for _ in 0..14 {
        let own = target
            .allocate("kv", BYTES, Access::RemoteReadWrite)
            .unwrap();
        all.push(engine.open_segment(&at).unwrap());
        moves(&engine, write(local, all[all.len() - 1]));
        target.unregister(own).unwrap();
    }
    assert_eq!(engine.segment_bytes(all[0]), None);
    assert_eq!(engine.close_segment(all[0]), Ok(()));
}

#[test]
fn idle_pairs_of_segments_make_room_and_busy_ones_are_said() {
    // After as many pairs nothing could be submitted to a new one.
    let limits = LimitsConfig {
        pairs: 16,
        ..LimitsConfig::default()
    };
    let names: Vec<_> = (0..40).map(|number| number.to_string()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let (_target, address) = target(&names);
    let (engine, local) = initiator(limits);
    let remotes: Vec<_> = names
        .iter()
        .map(|name| engine.open_segment(&format!("{address}/{name}")).unwrap())
        .collect();
    let mut prepared = engine
        .prepare_transfer(&[write(local, remotes[0])])
        .unwrap();
    for _ in 0..3 {
        for remote in &remotes {
            moves(&engine, write(local, *remote));
        }
        let batch = prepared.post().unwrap();
        assert_eq!(batch.wait(PATIENCE).unwrap().status, Status::Completed);
    }
    let all: Vec<_> = remotes.iter().map(|remote| write(local, *remote)).collect();
    let refused = engine.submit(&all).map(drop);
    assert_eq!(refused, Err(SubmitError::Plans { limit: 16 }));
    assert!(refused.unwrap_err().to_string().contains("limits/pairs"));
    let batch = engine.submit(&all[..16]).unwrap();
    assert_eq!(batch.wait(PATIENCE).unwrap().status, Status::Completed);
}

#[test]
fn what_is_full_says_which_limit_and_who_has_it_all() {
    let limits = LimitsConfig {
        peers: 2,
        segments: 16,
        ..LimitsConfig::default()
    };
    let names: Vec<_> = (0..16).map(|number| number.to_string()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let (_target, address) = target(&names);
    let (engine, _) = initiator(limits);
    let mut opened = Vec::new();
    let full = loop {
        match engine.open_segment(&format!("{address}/{}", opened.len())) {
            Ok(remote) => opened.push(remote),
            Err(full) => break full,
        }
    };
    // This engine has scratch and memory, and the peer scratch.
    assert_eq!(opened.len(), 13);
    let text = full.to_string();
    assert!(matches!(full, OpenError::Full(_)), "{text}");
    let words = [
        "16 segments",
        "limits/segments",
        "2 of this engine",
        "14 of 1 peers",
    ];
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    let full = engine.allocate("more", BYTES, Access::Local).unwrap_err();
    assert!(matches!(full, RegisterError::Full(_)), "{full}");
    engine.close_segment(opened[3]).unwrap();
    engine.allocate("more", BYTES, Access::Local).unwrap();

    let others: Vec<_> = (0..2).map(|_| target_named("other")).collect();
    engine.close_segment(opened[4]).unwrap();
    engine.close_segment(opened[5]).unwrap();
    engine.open_segment(&others[0].1).unwrap();
    let text = engine.open_segment(&others[1].1).unwrap_err().to_string();
    let words = ["2 peers", "limits/peers", "\"target\"", &address];
    assert!(words.iter().all(|word| text.contains(word)), "{text}");

    let limits = LimitsConfig {
        rails: 1,
        ..LimitsConfig::default()
    };
    let engine = Engine::new(limited("narrow", limits).without("shm")).unwrap();
    engine.open_segment(&format!("{address}/0")).unwrap();
    let text = engine.open_segment(&others[0].1).unwrap_err().to_string();
    let words = ["1 rails", "limits/rails", "1 to 1 peers"];
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

fn target_named(segment: &str) -> (Engine, String) {
    let (target, address) = target(&[segment]);
    (target, format!("{address}/{segment}"))
}

#[test]
fn an_engine_opens_its_own_segments_like_a_peers() {
    let (engine, address) = target(&["mem"]);
    let mem = engine.local_segment("mem").unwrap();
    let local = engine.allocate("here", BYTES, Access::Local).unwrap();
    let here = engine.region(local).unwrap();
    let there = engine.region(mem).unwrap();
    for round in 1..4_u8 {
        let remote = engine.open_segment(&format!("{address}/mem")).unwrap();
        here.store(&[round; BYTES as usize], 0).unwrap();
        moves(&engine, write(local, remote));
        let mut seen = vec![0; BYTES as usize];
        there.load(0, &mut seen).unwrap();
        assert!(seen.iter().all(|byte| *byte == round));
        there.store(&[round + 100; BYTES as usize], 0).unwrap();
        let read = Request {
            op: Op::Read,
            ..write(local, remote)
        };
        moves(&engine, read);
        here.load(0, &mut seen).unwrap();
        assert!(seen.iter().all(|byte| *byte == round + 100));
        engine.close_segment(remote).unwrap();
    }
    let names: Vec<_> = engine.rails().into_iter().map(|rail| rail.name).collect();
    assert!(
        names.iter().any(|name| name.starts_with("shm:")),
        "{names:?}"
    );
    let remote = engine.open_segment(&format!("{address}/mem")).unwrap();
    moves(&engine, write(local, remote));
    engine.unregister(mem).unwrap();
    let batch = engine.submit(&[write(local, remote)]).unwrap();
    assert_eq!(batch.wait(PATIENCE).unwrap().status, Status::Failed);
}
