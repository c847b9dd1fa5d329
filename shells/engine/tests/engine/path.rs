//! Path isolation between two engines: a primary rail and a supplementary one, and an agent that steers.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use polyrail::{
    Access, Batch, Config, Engine, IsolationMode, OpenError, PathConfig, Request, SegmentId,
};
use polyrail_core::path::hint::HintWriter;
use polyrail_core::path::share::Shares;
use polyrail_shared::hint::AgentFile;
use polyrail_shared::host_now;

use crate::fixture::*;
use IsolationMode::{Advanced, Off, Vanilla};

/// A primary rail's address and a supplementary one's.
const NEAR: [[u8; 4]; 2] = [[127, 0, 0, 1], [127, 0, 0, 2]];
/// Those of a host in another island.
const FAR: [[u8; 4]; 2] = [[127, 0, 9, 1], [127, 0, 9, 2]];
const BYTES: u64 = 8 * MIB;
/// Bytes of the longest transfer.
const LONGEST: u64 = 64 * MIB;

fn addresses(host: [[u8; 4]; 2]) -> Vec<IpAddr> {
    host.map(IpAddr::from).to_vec()
}

fn config(host: [[u8; 4]; 2], mode: IsolationMode) -> Config {
    Config {
        rails: addresses(host),
        workers: 1,
        path: PathConfig {
            mode,
            supplementary: addresses(host)[1..].to_vec(),
            // A busy machine may keep anybody from anything for long.
            hint_age_max: Duration::from_secs(600),
            ..PathConfig::default()
        },
        ..Config::named("initiator").without("shm")
    }
}

fn listening(config: Config) -> Engine {
    let listen = Some((config.rails[0], 0).into());
    let engine = Engine::new(Config { listen, ..config }).unwrap();
    let access = Access::RemoteReadWrite;
    engine.allocate("mem", LONGEST, access).unwrap();
    engine
}

/// An initiator with its memory and that of a target, which it holds.
struct Joined {
    initiator: Engine,
    _target: Engine,
    local: SegmentId,
    remote: SegmentId,
}

impl Joined {
    fn new(initiator: Config, target: Config) -> Self {
        let target = listening(target);
        let initiator = Engine::new(initiator).unwrap();
        let local = initiator.allocate("here", LONGEST, Access::Local).unwrap();
        let remote = initiator.open_segment(&address(&target, "mem")).unwrap();
        Self {
            initiator,
            _target: target,
            local,
            remote,
        }
    }

    fn submit(&self, length: u64) -> Batch {
        let request = Request {
            op: polyrail::Op::Write,
            local: self.local,
            local_offset: 0,
            remote: self.remote,
            remote_offset: 0,
            length,
        };
        self.initiator.submit(&[request]).unwrap()
    }

    /// Moves some bytes, and tells how many went over each rail.
    fn moved(&self, length: u64) -> [u64; 2] {
        let bytes = || {
            let rails = self.initiator.rails();
            [0, 1].map(|rail| rails.get(rail).map_or(0, |rail| rail.bytes))
        };
        let before = bytes();
        completed(&self.submit(length));
        let after = bytes();
        [after[0] - before[0], after[1] - before[1]]
    }
}

#[test]
fn the_topology_says_which_rails_bytes_take() {
    // (target, bytes, what each rail moves)
    let cases = [
        (NEAR, BYTES, [0, BYTES]),
        (NEAR, 1, [0, 1]),
        (FAR, BYTES, [BYTES, 0]),
    ];
    for (host, length, moved) in cases {
        let joined = Joined::new(config(NEAR, Vanilla), config(host, Vanilla));
        assert_eq!(joined.moved(length), moved, "{host:?}");
    }
}

#[test]
fn ends_that_see_their_connection_differently_are_told_both_views() {
    let prefix = |bits| {
        let mut config = config(FAR, Vanilla);
        config.path.island_prefix.v4_bits = bits;
        config
    };
    let mut one_class = config(NEAR, Vanilla);
    one_class.path.supplementary.clear();
    // (name, target, what the error names)
    let cases: [(_, _, &[&str]); 4] = [
        (
            "prefix",
            prefix(16),
            &[
                "this one inter-island (vanilla",
                "the peer intra-island",
                "/24",
                "/16",
            ],
        ),
        (
            "mode",
            config(NEAR, Advanced),
            &[
                "this one intra-island (vanilla",
                "the peer intra-island (advanced",
            ],
        ),
        ("rails", one_class, &["queue pairs 1+1", "queue pairs 2)"]),
        (
            "off",
            config(NEAR, Off),
            &[
                "does no path isolation",
                "intra-island (vanilla",
                "path/mode",
            ],
        ),
    ];
    for (name, target, parts) in cases {
        let target = listening(target);
        let initiator = Engine::new(config(NEAR, Vanilla)).unwrap();
        let error = initiator
            .open_segment(&address(&target, "mem"))
            .unwrap_err();
        assert!(error.is_usage(), "{name}: {error}");
        for part in parts {
            assert!(error.to_string().contains(part), "{name}: {error}");
        }
        // Nothing of it stays: with what fits, the same target is reached.
        if name == "off" {
            let fitting = Engine::new(config(NEAR, Off)).unwrap();
            assert!(fitting.open_segment(&address(&target, "mem")).is_ok());
        }
    }
}

#[test]
fn without_a_primary_rail_nothing_is_isolated() {
    let target = listening(config(NEAR, Vanilla));
    let mut all = config(NEAR, Vanilla);
    all.path.supplementary = all.rails.clone();
    let initiator = Engine::new(all).unwrap();
    let error = initiator
        .open_segment(&address(&target, "mem"))
        .unwrap_err();
    assert!(matches!(error, OpenError::PathRails { .. }), "{error}");
}

fn agent(file: &Path) -> HintWriter<AgentFile> {
    HintWriter::start(AgentFile::create(file, 4).unwrap(), host_now()).unwrap()
}

#[test]
fn an_agent_steers_while_it_lives() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hints");
    let mut steered = config(NEAR, Advanced);
    steered.path.hint_file = file.display().to_string();
    let joined = Joined::new(steered, config(NEAR, Advanced));
    let all = BYTES;
    let until_moved = |what: &str, share: Option<u64>| {
        let expected = share.map_or(BYTES, |share| BYTES * share / 1024);
        until(what, || {
            let supplementary = joined.moved(all)[1];
            supplementary.abs_diff(expected) <= 64 << 10
        });
    };
    // Without an agent all is as in the other mode.
    assert_eq!(joined.moved(all), [0, BYTES]);
    let mut agent = agent(&file);
    for share in [256, 768, 0, 512] {
        agent.set_all(Some(Shares::pair(share as u32)));
        until_moved("a share", Some(share));
    }
    let first = joined.initiator.stats().hint.expect("it is heard");
    let lease = agent.leases().next().expect("the engine has a slot");
    let ends = lease.details.expect("and says whose").1;
    assert_eq!((ends.own, ends.peer), (NEAR[0].into(), NEAR[0].into()));
    agent.set_all(None);
    until_moved("nothing said", None);
    agent.set_all(Some(Shares::pair(0)));
    until_moved("said again", Some(0));
    drop(agent);
    until_moved("the agent has ended", None);
    assert_eq!(joined.initiator.stats().hint, None);
    let mut agent = self::agent(&file);
    agent.set_all(Some(Shares::pair(256)));
    until_moved("another agent", Some(256));
    let second = joined.initiator.stats().hint.expect("it is heard");
    for hint in [first, second] {
        assert!(hint.generation > 0, "{hint:?}");
        assert!(hint.age < Duration::from_secs(60), "{hint:?}");
    }
}

/// An engine that an agent steers with its defaults, and the agent, which is heard.
fn steered(file: &Path, share: u32) -> (Joined, HintWriter<AgentFile>) {
    let mut agent = agent(file);
    agent.set_all(Some(Shares::pair(share)));
    let mut steered = config(NEAR, Advanced);
    steered.path.hint_file = file.display().to_string();
    let joined = Joined::new(steered, config(NEAR, Advanced));
    until("the hint is heard", || joined.moved(BYTES)[0] > 0);
    (joined, agent)
}

#[test]
fn shares_are_kept_while_bytes_queue() {
    const FOUR_SLICES: u64 = 4 * 64 * 1024;
    let folder = tempfile::tempdir().unwrap();
    for share in [128, 512] {
        let file = folder.path().join(share.to_string());
        let (joined, _agent) = steered(&file, share);
        for length in [64 << 10, 256 << 10, MIB, 4 * MIB, 16 * MIB, LONGEST] {
            let transfers = (BYTES / length).max(1);
            let moved = (0..transfers).map(|_| joined.moved(length)[1]);
            let (supplementary, all) = (moved.sum::<u64>(), transfers * length);
            let wanted = all * u64::from(share) / 1024;
            println!("{share}/1024 of {transfers} x {length}: {supplementary}, wanted {wanted}");
            assert!(
                supplementary.abs_diff(wanted) <= FOUR_SLICES,
                "{share}/1024 of {transfers} times {length} bytes: {supplementary}, not {wanted}"
            );
        }
    }
}

#[test]
fn nobody_opens_the_hint_file_unless_an_agent_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hints");
    let mut agent = agent(&file);
    agent.set_all(Some(Shares::pair(0)));
    for mode in [Off, Vanilla] {
        let mut deaf = config(NEAR, mode);
        deaf.path.hint_file = file.display().to_string();
        let joined = Joined::new(deaf, config(NEAR, mode));
        let supplementary = joined.moved(BYTES)[1];
        assert!(supplementary > 0, "{mode:?}");
        assert_eq!(agent.leases().count(), 0, "{mode:?}");
    }
}
