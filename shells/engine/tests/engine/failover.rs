//! Requests that leave a transport for another, on the real engine with two transports in each process.
//!
//! The first six are the end-to-end cases of the TENT failover document, under its names. They read: of a write
//! whose completion is spoilt the fence may prove that it arrived, and then it is complete wherever it went.

use std::sync::Arc;

use polyrail::{
    Access, Batch, Cause, Config, Counts, Engine, Faults, Hooks, Op, Plugin, RailId, Region,
    Request, SegmentId, Spoils, Status, TransportStatus,
};
use polyrail_tcp::TcpTransport;

use crate::fixture::*;
use crate::notes::{listen, logged};

const BYTES: u64 = 4 * MIB;

/// Two engines with one rail of each of two transports. The one called `rdma` is preferred.
pub(crate) struct Two {
    pub(crate) initiator: Engine,
    target: Engine,
    pub(crate) rdma: Arc<Faults>,
    pub(crate) tcp: Arc<Faults>,
    local: SegmentId,
    remote: SegmentId,
}

pub(crate) fn rdma(faults: Option<Arc<Faults>>) -> Plugin {
    Plugin {
        make: |regions| Arc::new(TcpTransport::named("rdma", regions)),
        faults,
    }
}

fn counted() -> Arc<Faults> {
    let faults = Faults::new();
    faults.spoil(Spoils::default());
    Arc::new(faults)
}

impl Two {
    fn with(max_failover_attempts: u8, on_rdma: Spoils) -> Self {
        Self::plugged(max_failover_attempts, rdma, on_rdma)
    }

    fn plugged(
        max_failover_attempts: u8,
        plugin: fn(Option<Arc<Faults>>) -> Plugin,
        on_plugin: Spoils,
    ) -> Self {
        let config = Config {
            max_failover_attempts,
            ..Config::default()
        };
        Self::configured(config, plugin, on_plugin)
    }

    /// With an initiator that is configured so.
    pub(crate) fn configured(
        config: Config,
        plugin: fn(Option<Arc<Faults>>) -> Plugin,
        on_plugin: Spoils,
    ) -> Self {
        let initiator = config;
        let hooks = Hooks {
            transports: vec![plugin(None)],
            ..Hooks::default()
        };
        let config = Config {
            listen: Some("127.0.0.1:0".parse().unwrap()),
            workers: 1,
            ..Config::named("target")
        };
        let target = Engine::with_hooks(config, hooks).unwrap();
        let (rdma, tcp) = (counted(), counted());
        rdma.spoil(on_plugin);
        let hooks = Hooks {
            transports: vec![plugin(Some(rdma.clone()))],
            faults: Some(tcp.clone()),
            ..Hooks::default()
        };
        let config = Config {
            name: "initiator".into(),
            workers: 1,
            ..initiator.without("shm")
        };
        let initiator = Engine::with_hooks(config, hooks).unwrap();
        target
            .allocate("mem", BYTES, Access::RemoteReadWrite)
            .unwrap();
        fill(&region(&target, "mem"), 7);
        let local = initiator.allocate("here", BYTES, Access::Local).unwrap();
        let remote = initiator.open_segment(&address(&target, "mem")).unwrap();
        Self {
            initiator,
            target,
            rdma,
            tcp,
            local,
            remote,
        }
    }

    fn submit(&self, op: Op, offset: u64, length: u64) -> Batch {
        let request = Request {
            op,
            local: self.local,
            local_offset: offset,
            remote: self.remote,
            remote_offset: offset,
            length,
        };
        self.initiator.submit(&[request]).unwrap()
    }

    pub(crate) fn read(&self, offset: u64, length: u64) -> Batch {
        self.submit(Op::Read, offset, length)
    }

    pub(crate) fn arrived(&self, offset: u64, length: u64) {
        let got = get(&region(&self.initiator, "here"), offset, length);
        let there = get(&region(&self.target, "mem"), offset, length);
        assert!(got == there, "{length} bytes at {offset}");
    }

    /// Switches of transports: from, to, how often.
    pub(crate) fn failovers(&self) -> Vec<(&'static str, &'static str, u64)> {
        let failovers = self.initiator.stats().failovers;
        failovers
            .iter()
            .map(|row| (row.from, row.to, row.count))
            .collect()
    }
}

fn region(engine: &Engine, name: &str) -> Arc<Region> {
    engine.region(engine.local_segment(name).unwrap()).unwrap()
}

/// All users' reads are said to have failed; probes, which write, are not.
pub(crate) fn every_read() -> Spoils {
    Spoils {
        poisons: Some(Arc::new(|work| work.op == Op::Read)),
        ..Spoils::default()
    }
}

fn failed_at_the_limit(batch: &Batch) {
    assert_eq!(ended(batch).status, Status::Failed);
    let report = batch.report(0).unwrap();
    assert_eq!(report.cause, Some(Cause::FailoverLimit), "{report:?}");
}

#[test]
#[allow(non_snake_case)]
fn StatusCorruptionTriggersFailoverToSecondary() {
    let corrupted = Spoils {
        status_corrupt_rate: 1.0,
        ..Spoils::default()
    };
    let two = Two::with(3, corrupted);
    completed(&two.read(0, BYTES));
    two.arrived(0, BYTES);
    assert_eq!(two.failovers(), [("rdma", "tcp", 1)]);
}

#[test]
#[allow(non_snake_case)]
fn BothTransportsFailExhaustsFailoverBudget() {
    let two = Two::with(3, every_read());
    two.tcp.spoil(every_read());
    failed_at_the_limit(&two.read(0, 1000));
    assert_eq!(two.failovers(), [("rdma", "tcp", 2), ("tcp", "rdma", 1)]);
}

#[test]
#[allow(non_snake_case)]
fn MixedFaultsAcrossManySubmissions() {
    let mixed = Spoils {
        status_corrupt_rate: 0.3,
        seed: 5,
        ..Spoils::default()
    };
    let two = Two::with(3, mixed);
    for index in 0..10 {
        completed(&two.read(index * 1000, 1000));
        two.arrived(index * 1000, 1000);
    }
    let (rdma, tcp) = (two.rdma.counts(), two.tcp.counts());
    let switches = two.initiator.stats().failovers_total();
    assert!(rdma.statuses_corrupted > 0, "{rdma:?}");
    // Every switch has a fault behind it, and every request that left was posted anew.
    assert!(switches <= rdma.statuses_corrupted, "{switches}: {rdma:?}");
    assert!(tcp.submits >= switches, "{switches}: {tcp:?}");
    assert_eq!(tcp.statuses_corrupted, 0);
}

#[test]
#[allow(non_snake_case)]
fn MaxFailoverAttemptsZeroDisablesFailover() {
    let two = Two::with(0, every_read());
    failed_at_the_limit(&two.read(0, 1000));
    assert_eq!(two.failovers(), []);
    assert_eq!(two.tcp.counts(), Counts::default(), "never touched");
}

#[test]
#[allow(non_snake_case)]
fn MaxFailoverAttemptsOneAllowsSingleFailover() {
    let two = Two::with(1, every_read());
    completed(&two.read(0, 1000));
    two.arrived(0, 1000);
    assert_eq!(two.failovers(), [("rdma", "tcp", 1)]);
}

#[test]
#[allow(non_snake_case)]
fn PerTaskFailoverCountsAreIndependent() {
    let first_only = || Spoils {
        poisons: Some(Arc::new(|work| {
            work.op == Op::Read && work.remote.offset < 1000
        })),
        ..Spoils::default()
    };
    let two = Two::with(1, first_only());
    two.tcp.spoil(first_only());
    let batches: Vec<_> = (0..8).map(|index| two.read(index * 1000, 1000)).collect();
    failed_at_the_limit(&batches[0]);
    for (index, batch) in (0..).zip(&batches).skip(1) {
        completed(batch);
        two.arrived(index * 1000, 1000);
    }
}

#[test]
fn what_is_refused_at_posting_goes_another_way() {
    let base = Spoils::default;
    let cases = [
        (
            "all",
            Spoils {
                submit_fail_rate: 1.0,
                ..base()
            },
        ),
        (
            "now and then",
            Spoils {
                submit_fail_rate: 0.3,
                seed: 1,
                ..base()
            },
        ),
        (
            "in part",
            Spoils {
                submit_partial_rate: 1.0,
                ..base()
            },
        ),
        (
            "after a while",
            Spoils {
                fail_after_n_submits: Some(5),
                ..base()
            },
        ),
    ];
    for (name, spoils) in cases {
        let two = Two::with(3, spoils);
        // How many posts that takes is the machine's affair: few, if it is slow, and then chance may spare them all.
        until(name, || {
            for op in [Op::Read, Op::Write] {
                completed(&two.submit(op, 0, BYTES));
                two.arrived(0, BYTES);
            }
            two.rdma.counts().submits_failed > 0
        });
    }
}

#[test]
fn a_transport_that_comes_back_is_preferred_again() {
    let two = Two::with(3, every_read());
    completed(&two.read(0, 1000));
    assert_eq!(two.failovers().len(), 1);
    two.rdma.spoil(Spoils::default());
    let on_rdma = || two.initiator.rails()[0].bytes;
    let before = on_rdma();
    until("rdma carries bytes again", || {
        completed(&two.read(0, 1000));
        on_rdma() > before
    });
    assert_eq!(two.failovers(), [("rdma", "tcp", 1)]);
}

#[test]
fn an_engine_starts_without_a_transport_that_cannot_be_installed() {
    let broken = Spoils {
        fail_install: true,
        ..Spoils::default()
    };
    let two = Two::with(3, broken);
    let [
        TransportStatus {
            name: "rdma",
            missing: Some(why),
        },
        TransportStatus {
            name: "tcp",
            missing: None,
        },
        // What moves bytes of files is no way to a peer.
        TransportStatus { name: "uring", .. },
        TransportStatus { name: "pread", .. },
    ] = &two.initiator.transports()[..]
    else {
        panic!("{:?}", two.initiator.transports());
    };
    assert!(!why.is_empty());
    completed(&two.read(0, BYTES));
    two.arrived(0, BYTES);
    let rails = two.initiator.rails();
    assert!(
        rails.iter().all(|rail| rail.name.starts_with("tcp:")),
        "{rails:?}"
    );
    assert_eq!(two.failovers(), []);
}

#[test]
fn only_what_both_ends_have_is_used() {
    let target = Engine::new(Config {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        ..Config::named("plain")
    })
    .unwrap();
    target
        .allocate("mem", 1000, Access::RemoteReadWrite)
        .unwrap();
    let hooks = Hooks {
        transports: vec![rdma(None)],
        ..Hooks::default()
    };
    let initiator = Engine::with_hooks(Config::named("rich").without("shm"), hooks).unwrap();
    initiator.open_segment(&address(&target, "mem")).unwrap();
    let names: Vec<_> = initiator
        .rails()
        .into_iter()
        .map(|rail| rail.name)
        .collect();
    assert_eq!(names.len(), 1);
    assert!(names[0].starts_with("tcp:"), "{names:?}");
}

#[test]
fn engines_without_a_common_transport_say_which_they_have() {
    let without_tcp = || {
        let faults = Faults::new();
        faults.spoil(Spoils {
            fail_install: true,
            ..Spoils::default()
        });
        Hooks {
            faults: Some(Arc::new(faults)),
            ..Hooks::default()
        }
    };
    let target = target("target");
    target
        .allocate("mem", 1000, Access::RemoteReadWrite)
        .unwrap();
    let initiator =
        Engine::with_hooks(Config::named("poor").without("shm"), without_tcp()).unwrap();
    let error = initiator
        .open_segment(&address(&target, "mem"))
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("no transport in common") && text.contains("\"tcp\""),
        "{text}"
    );
}

#[test]
fn the_log_says_what_the_document_says() {
    listen();
    // A name of its own, because all tests of this process log to one place.
    let plugin = |faults| Plugin {
        make: |regions| Arc::new(TcpTransport::named("logged", regions)),
        faults,
    };
    let two = Two::plugged(1, plugin, every_read());
    completed(&two.read(0, 1000));
    two.tcp.spoil(every_read());
    until("a request is at its limit", || {
        ended(&two.read(0, 1000)).status == Status::Failed
    });
    assert!(logged("Transport failover: logged -> tcp (attempt 1/1)"));
    assert!(logged("Task failover limit reached (1), last transport="));
    two.rdma.spoil(Spoils::default());
    two.tcp.spoil(Spoils::default());
    let recovered = "Rail recovered: local_nic=logged:* remote_nic=127.0.0.1 (un-paused by successful transfer)";
    until("the rail's recovery is logged", || logged(recovered));
}

#[test]
fn the_log_says_that_no_transport_is_left() {
    listen();
    let plugin = |faults| Plugin {
        make: |regions| Arc::new(TcpTransport::named("severed", regions)),
        faults,
    };
    let two = Two::plugged(3, plugin, Spoils::default());
    completed(&two.read(0, 1000));
    for (rail, faults) in (0..).zip([&two.rdma, &two.tcp]) {
        faults.cut(RailId(rail));
    }
    let batch = two.read(0, 1000);
    let ended = ended(&batch);
    assert_eq!(ended.status, Status::Failed);
    assert_eq!(batch.report(0).unwrap().cause, Some(Cause::NoRail));
    // Which one was the last depends on which look came last.
    let no_more = |last: &str| logged(&format!("No more transports available after {last} failed"));
    until("that is logged", || no_more("severed") || no_more("tcp"));
}
