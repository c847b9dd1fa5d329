//! Requests that leave a transport for another, on the real engine with two transports in each process.
//!
//! The first six are the end-to-end cases of the TENT failover document, under its names. They read: of a write
//! whose completion is spoilt the fence may prove that it arrived, and then it is complete wherever it went.

use std::sync::{Arc, Mutex, Once};

use polyrail::{
    Access, Batch, Cause, Config, Counts, Engine, Faults, Hooks, Op, Plugin, Region, Request,
    SegmentId, Spoils, Status, TransportStatus,
};
use polyrail_tcp::TcpTransport;

use crate::fixture::*;

const BYTES: u64 = 4 * MIB;

/// Two engines with one rail of each of two transports. The one called `rdma` is preferred.
struct Two {
    initiator: Engine,
    target: Engine,
    rdma: Arc<Faults>,
    tcp: Arc<Faults>,
    local: SegmentId,
    remote: SegmentId,
}

fn rdma(faults: Option<Arc<Faults>>) -> Plugin {
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
            max_failover_attempts,
            workers: 1,
            ..Config::named("initiator").without("shm")
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

    fn read(&self, offset: u64, length: u64) -> Batch {
        self.submit(Op::Read, offset, length)
    }

    fn arrived(&self, offset: u64, length: u64) {
        let got = get(&region(&self.initiator, "here"), offset, length);
        let there = get(&region(&self.target, "mem"), offset, length);
        assert!(got == there, "{length} bytes at {offset}");
    }

    /// Switches of transports: from, to, how often.
    fn failovers(&self) -> Vec<(&'static str, &'static str, u64)> {
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
fn every_read() -> Spoils {
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
        for op in [Op::Read, Op::Write] {
            completed(&two.submit(op, 0, BYTES));
            two.arrived(0, BYTES);
        }
        assert!(two.rdma.counts().submits_failed > 0, "{name}");
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

/// Notes what is logged, from the first use on.
struct Notes(Mutex<Vec<String>>);

static NOTES: Notes = Notes(Mutex::new(Vec::new()));

impl log::Log for Notes {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

#[test]
fn the_log_says_what_the_document_says() {
    static LOGGER: Once = Once::new();
    LOGGER.call_once(|| {
        log::set_logger(&NOTES).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
    });
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
    let logged = |text: &str| {
        NOTES
            .0
            .lock()
            .unwrap()
            .iter()
            .any(|line| line.contains(text))
    };
    assert!(logged("Transport failover: logged -> tcp (attempt 1/1)"));
    assert!(logged("Task failover limit reached (1), last transport="));
    two.rdma.spoil(Spoils::default());
    two.tcp.spoil(Spoils::default());
    let recovered = "Rail recovered: local_nic=logged:* remote_nic=127.0.0.1 (un-paused by successful transfer)";
    until("the rail's recovery is logged", || logged(recovered));
}
