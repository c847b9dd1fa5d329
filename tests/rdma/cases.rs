//! What has to hold.

use std::time::{Duration, Instant};

use polyrail::{
    Access, Config, Engine, IsolationMode, Local, Op, Payload, RailState, Remote, Request, Status,
};
use polyrail_core::path::hint::HintWriter;
use polyrail_core::path::share::Shares;
use polyrail_shared::hint::AgentFile;
use polyrail_shared::host_now;

use crate::ends::{LOCAL, MEMORY, PATIENCE, Pair, common, initiator, initiator_with_tcp, until};
use crate::rails::{RAILS, address, drop_answers, drop_rdma, make_device, rail, unmake_device};
use crate::records::changed_records;
use crate::wire::{MARK, Wire};

/// All cases, in order.
pub(crate) const ALL: &[(&str, fn())] = &[
    ("ports-are-listed", ports_are_listed),
    ("every-size-and-alignment", every_size_and_alignment),
    ("scattered-blocks", scattered_blocks),
    ("four-workers", four_workers),
    ("short-queues", short_queues),
    ("notifications", notifications),
    ("dropped-region", dropped_region),
    ("old-works-replayed", old_works_replayed),
    ("devices-that-come", devices_that_come),
    ("shares-follow-rates", shares_follow_rates),
    ("path-isolation", path_isolation),
    ("hints-shift-traffic", hints_shift_traffic),
    ("cut-and-restored", cut_and_restored),
    ("failover-to-tcp", failover_to_tcp),
    ("only-answers-lost", only_answers_lost),
    ("no-ghost-writes", no_ghost_writes),
    ("nothing-left", nothing_left),
    ("encrypted-lanes", encrypted_lanes),
    ("changed-records", changed_records),
    ("target-stopped", target_stopped),
    ("target-killed", target_killed),
    ("beside-ib-write-bw", beside_ib_write_bw),
];

const MIB: u64 = 1 << 20;

/// So long the transport waits for what peers are asked.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// What `polyrail topo` shows: all ports, their names, and why one is not used.
fn ports_are_listed() {
    let ports = || polyrail::rdma_ports();
    let all = ports();
    assert_eq!(all.len(), 2 * RAILS, "{all:?}");
    for (number, end) in (0..RAILS).flat_map(|number| [(number, "a"), (number, "b")]) {
        let name = format!("rx{end}{number}");
        let port = all.iter().find(|port| port.device == name);
        let port = port.expect("it is listed");
        assert_eq!((port.unusable.as_deref(), port.active), (None, true));
        let gid = format!("::ffff:{}", address(number, end == "b"));
        assert!(
            port.gids.iter().any(|row| row.gid == gid && row.v2),
            "{port:?}"
        );
        assert!(port.speed_bits_per_sec.is_some(), "{port:?}");
    }
    rail("down", 3, "");
    until("the reason", || {
        let down = ports();
        let down = down.iter().find(|port| port.device == "rxb3");
        down.is_some_and(|port| port.unusable.as_deref() == Some("port 1 is DOWN"))
    });
    rail("up", 3, "");
    until("it is back", || {
        ports().iter().all(|port| port.unusable.is_none())
    });
}

/// Works that name memory as it was registered before do not change what it is registered anew as: neither those that were on their
/// way, nor with the key that it has now, as on devices which give keys out again.
fn old_works_replayed() {
    let ends = [("rxa0", address(0, false)), ("rxb0", address(0, true))];
    let cut = |is_cut| match is_cut {
        true => drop_rdma(0),
        false => rail("clear", 0, ""),
    };
    polyrail_verbs::replay(ends, cut).expect("they are refused");
}

/// Devices that are not there when engines start carry memory that was registered before they came.
fn devices_that_come() {
    unmake_device(RAILS - 1);
    let mut pair = Pair::start();
    pair.fill(31, 0, 0, 8 * MIB);
    pair.complete(&[pair.request(Op::Write, 0, 0, 8 * MIB)]);
    assert_eq!(pair.bytes("verbs").len(), RAILS - 1);
    make_device(RAILS - 1);
    until("bytes on the new rail", || {
        pair.complete(&[pair.request(Op::Write, 0, 0, 8 * MIB)]);
        let bytes = pair.bytes("verbs");
        bytes.len() == RAILS && bytes.iter().all(|bytes| *bytes > 0)
    });
    assert_eq!(pair.target.ask(&format!("check 31 0 {}", 8 * MIB)), "good");
}

/// Sizes around powers of two, and all small ones.
fn sizes() -> Vec<u64> {
    let around = [256, 1024, 4096, 65536, 1 << 18];
    let around = around
        .into_iter()
        .flat_map(|size| [size - 1, size, size + 1]);
    (1..=65)
        .chain(around)
        .chain([(64 << 10) * 5 / 4 + 1, 700_001])
        .collect()
}

fn every_size_and_alignment() {
    let mut pair = Pair::start();
    assert_eq!(pair.target.ask("poison"), "done");
    for (seed, (here, there)) in [(0, 0), (1, 0), (0, 1), (3, 7), (63, 65)]
        .into_iter()
        .enumerate()
    {
        let seed = seed as u64;
        assert_eq!(pair.target.ask("poison"), "done");
        let (mut local, mut remote, mut gap) = (here, 64 + there, 0);
        let mut requests = Vec::new();
        for size in sizes() {
            pair.fill(seed, local, remote, size);
            requests.push((pair.request(Op::Write, local, remote, size), gap));
            gap = remote + size;
            // The next one begins as far from a multiple of 64 as this one.
            let step = (size + 127) / 64 * 64;
            (local, remote) = (local + step, remote + step);
        }
        let writes: Vec<Request> = requests.iter().map(|(request, _)| *request).collect();
        pair.complete(&writes);
        for (write, gap) in &requests {
            let (from, length) = (write.remote_offset, write.length);
            let untouched = format!("untouched {gap} {}", from - gap);
            assert_eq!(pair.target.ask(&untouched), "good", "before {write:?}");
            let check = format!("check {seed} {from} {length}");
            assert_eq!(pair.target.ask(&check), "good", "{write:?}");
        }
        pair.set(0);
        let reads = writes.iter().map(|write| Request {
            op: Op::Read,
            ..*write
        });
        let reads: Vec<_> = reads.collect();
        pair.complete(&reads);
        for read in &reads {
            pair.check(seed, read.local_offset, read.remote_offset, read.length);
        }
    }
    assert_eq!(pair.bytes("verbs").len(), RAILS);
    until("bytes on each rail", || {
        pair.complete(&[pair.request(Op::Write, 0, 0, 8 * MIB)]);
        pair.bytes("verbs").iter().all(|bytes| *bytes > 0)
    });
}

/// Blocks from all over this side that lie together at the peer: several of them go as one work, with as many ranges.
fn scattered_blocks() {
    let mut pair = Pair::start();
    for (seed, block) in [(21, 4096), (22, 24), (23, 777)] {
        assert_eq!(pair.target.ask("poison"), "done");
        let blocks = 1021;
        // In another order on this side, with gaps, so that neighbours there are none here.
        let place = |index: u64| index * 389 % blocks * 3 * block;
        let requests = |pair: &Pair, op| {
            let one = |index| pair.request(op, place(index), 64 + index * block, block);
            (0..blocks).map(one).collect::<Vec<_>>()
        };
        for index in 0..blocks {
            pair.fill(seed, place(index), 64 + index * block, block);
        }
        pair.complete(&requests(&pair, Op::Write));
        let end = 64 + blocks * block;
        let questions = [
            "untouched 0 64".to_owned(),
            format!("check {seed} 64 {}", blocks * block),
            format!("untouched {end} 4096"),
        ];
        for question in questions {
            assert_eq!(pair.target.ask(&question), "good", "{question}");
        }
        pair.set(0);
        pair.complete(&requests(&pair, Op::Read));
        for index in 0..blocks {
            pair.check(seed, place(index), 64 + index * block, block);
        }
    }
}

fn four_workers() {
    let mut config = initiator();
    config.workers = 4;
    let mut pair = Pair::with(config);
    let share = 2 * MIB;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let pair = &pair;
            scope.spawn(move || {
                let from = thread * share;
                pair.fill(thread, from, from, share);
                let slices = 8;
                let requests: Vec<_> = (0..slices)
                    .map(|index| {
                        let at = from + index * (share / slices);
                        pair.request(Op::Write, at, at, share / slices)
                    })
                    .collect();
                pair.complete(&requests);
            });
        }
    });
    for thread in 0..4 {
        let check = format!("check {thread} {} {share}", thread * share);
        assert_eq!(pair.target.ask(&check), "good");
    }
}

fn short_queues() {
    let mut config = initiator();
    config.verbs.queue_depth = 4;
    config.spray.merge_requests = false;
    let mut pair = Pair::with(config);
    let (count, size) = (1000, 4096);
    pair.fill(9, 0, 0, count * size);
    let requests: Vec<_> = (0..count)
        .map(|index| pair.request(Op::Write, index * size, index * size, size))
        .collect();
    pair.complete(&requests);
    assert_eq!(
        pair.target.ask(&format!("check 9 0 {}", count * size)),
        "good"
    );
}

/// A write is seen when its notification is; immediates on all queue pairs see to it.
fn notifications() {
    let mut pair = Pair::start();
    let length = 2 * MIB;
    pair.complete(&[pair.request(Op::Write, 0, 0, length)]);
    for seed in 1..=5_u8 {
        pair.fill(seed.into(), 0, 0, length);
        let write = pair.request(Op::Write, 0, 0, length);
        let start = Instant::now();
        let batch = pair.engine.submit_notifying(&[write], &[seed]);
        let batch = batch.expect("a good request");
        assert_eq!(
            pair.target.ask(&format!("told {length}")),
            format!("good {seed}")
        );
        let took = start.elapsed();
        let report = batch.wait(PATIENCE).expect("it ends in time");
        assert_eq!(report.status, Status::Completed, "{report:?}");
        // As long as one of them is not answered, the lane is given up.
        assert!(took < ANSWER_MAX, "an immediate was not answered: {took:?}");
    }
    until("bytes on each rail", || {
        pair.complete(&[pair.request(Op::Write, 0, 0, length)]);
        pair.bytes("verbs").iter().all(|bytes| *bytes > 0)
    });
}

fn dropped_region() {
    let mut pair = Pair::start();
    pair.complete(&[pair.request(Op::Write, 0, 0, MIB)]);
    assert_eq!(pair.target.ask("drop"), "dropped");
    for op in [Op::Write, Op::Read] {
        let report = pair.run(&[pair.request(op, 0, 0, MIB)]);
        assert_eq!(report.status, Status::Failed, "{report:?}");
    }
}

fn shares_follow_rates() {
    let pair = Pair::start();
    for number in 0..RAILS {
        rail("rate", number, &format!("{}mbit", 20 * (number + 1)));
    }
    // It learns first, for as long as this machine, which emulates all of it, needs.
    pair.complete(&[pair.request(Op::Write, 0, 0, LOCAL)]);
    until("shares that follow the rates", || {
        let before = pair.bytes("verbs");
        pair.complete(&[pair.request(Op::Write, 0, 0, LOCAL)]);
        let after = pair.bytes("verbs");
        let moved = after.iter().zip(&before);
        let moved: Vec<_> = moved.map(|(after, before)| after - before).collect();
        let total: u64 = moved.iter().sum();
        let share = |bytes: &u64| *bytes as f64 / total as f64;
        let shares: Vec<_> = moved.iter().map(share).collect();
        println!("        shares {shares:.2?} for 0.1, 0.2, 0.3, 0.4");
        let ideals = (1..=RAILS).map(|number| 0.1 * number as f64);
        let mut both = shares.iter().zip(ideals);
        both.all(|(share, ideal)| (share - ideal).abs() < 0.1)
    });
}

/// Reliable connected queue pairs of the initiator's devices, rail by rail.
fn queue_pairs() -> Vec<usize> {
    let shown = std::process::Command::new("rdma")
        .args(["resource", "show", "qp"])
        .output();
    let shown = String::from_utf8_lossy(&shown.expect("there is an rdma").stdout).into_owned();
    let of = |number: usize| {
        let port = format!("link rxa{number}/1 ");
        let lines = shown.lines().filter(|line| line.contains(&port));
        lines.filter(|line| line.contains("type RC")).count()
    };
    (0..RAILS).map(of).collect()
}

/// Rails 0 and 1 are of the primary fabric, 2 and 3 of the supplementary one. In an island only these carry bytes;
/// between islands they have no queue pairs.
fn path_isolation() {
    for (prefix, used) in [("inside an island", [2, 3]), ("between islands", [0, 1])] {
        let mut config = initiator();
        config.path.mode = IsolationMode::Vanilla;
        if prefix == "between islands" {
            config.path.island_prefix.v4_bits = 32;
        }
        let pair = Pair::isolated(config);
        // One may have carried all before the other one has opened its lane.
        until("bytes on each rail of the fabric", || {
            pair.complete(&[pair.request(Op::Write, 0, 0, 8 * MIB)]);
            let bytes = pair.bytes("verbs");
            used.iter().all(|number| bytes[*number] > 0)
        });
        let (bytes, pairs) = (pair.bytes("verbs"), queue_pairs());
        println!("        {prefix}: bytes {bytes:?}, queue pairs {pairs:?}");
        let name = |number: &usize| format!("verbs:10.77.{number}.1>10.77.{number}.2");
        for rail in pair.engine.rails() {
            let is_used = used.iter().any(|number| rail.name == name(number));
            assert_eq!(rail.bytes > 0, is_used, "{prefix}: {}", rail.name);
        }
        for (number, count) in pairs.into_iter().enumerate() {
            assert_eq!(count > 0, used.contains(&number), "{prefix}: rail {number}");
        }
    }
}

/// An agent says how much the supplementary rails carry, also while bytes are on their way; but not over those that are
/// down.
fn hints_shift_traffic() {
    let file = std::env::temp_dir().join("hints");
    let mut config = initiator();
    config.path.mode = IsolationMode::Advanced;
    config.path.hint_file = file.display().to_string();
    config.path.hint_strict = true;
    config.path.hint_age_max = Duration::from_secs(600);
    let mut pair = Pair::isolated(config);
    let agent = AgentFile::create(&file, 4).expect("a file for hints");
    let mut agent = HintWriter::start(agent, host_now()).expect("a fresh file");
    // What has moved since, over primary and over supplementary rails.
    let since = |pair: &Pair, before: &[u64]| {
        let after = pair.bytes("verbs");
        let moved = |rails: [usize; 2]| rails.map(|rail| after[rail] - before[rail]);
        [moved([0, 1]), moved([2, 3])].map(|rails| rails.iter().sum::<u64>())
    };
    let share = |[primary, other]: [u64; 2]| other * 1024 / (primary + other).max(1);
    let all = || pair.request(Op::Write, 0, 0, 8 * MIB);
    for wanted in [256, 768, 0] {
        agent.set_all(Some(Shares::pair(wanted)));
        until("the share", || {
            let before = pair.bytes("verbs");
            pair.complete(&[all()]);
            share(since(&pair, &before)).abs_diff(u64::from(wanted)) < 48
        });
    }
    // In the midst of one write.
    pair.fill(4, 0, 0, LOCAL);
    let before = pair.bytes("verbs");
    let write = pair.request(Op::Write, 0, 0, LOCAL);
    let batch = pair.engine.submit(&[write]).expect("a good request");
    until("the first bytes", || since(&pair, &before)[0] > 2 * MIB);
    agent.set_all(Some(Shares::pair(1024)));
    let report = batch.wait(PATIENCE).expect("it ends in time");
    assert_eq!(report.status, Status::Completed, "{report:?}");
    let [primary, other] = since(&pair, &before);
    println!("        {primary} bytes before the hint shifted, {other} after");
    assert!(primary > 0 && other > LOCAL / 4, "{primary} and {other}");
    assert_eq!(pair.target.ask(&format!("check 4 0 {LOCAL}")), "good");
    // Health overrides: nothing goes where nothing arrives.
    (2..RAILS).for_each(drop_rdma);
    pair.complete(&[pair.request(Op::Write, 0, 0, 8 * MIB)]);
    let before = pair.bytes("verbs");
    pair.complete(&[pair.request(Op::Write, 0, 0, 8 * MIB)]);
    assert_eq!(since(&pair, &before), [8 * MIB, 0]);
    crate::rails::clear();
    until("the supplementary rails", || {
        let before = pair.bytes("verbs");
        pair.complete(&[pair.request(Op::Write, 0, 0, 8 * MIB)]);
        share(since(&pair, &before)) == 1024
    });
    drop(agent);
}

/// What perftest moves over one rail and what this moves over four. Emulation is noise, so nothing is asked of either but
/// that it moves bytes.
fn beside_ib_write_bw() {
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new("ib_write_bw");
        command.args(["-x", "1", "-F", "-s", "65536", "-n", "256", "-p", "18515"]);
        command.args(arguments).stdout(std::process::Stdio::piped());
        command.spawn().expect("the virtual machine has it")
    };
    let mut server = run(&["-d", "rxb0"]);
    until("its server", || {
        // In /proc/net/tcp: port 18515, listening.
        let ports = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
        let six = std::fs::read_to_string("/proc/net/tcp6").unwrap_or_default();
        let listens = |line: &str| line.contains(":4853 ") && line.contains(" 0A ");
        ports.lines().chain(six.lines()).any(listens)
    });
    let client = run(&["-d", "rxa0", "10.77.0.2"]).wait_with_output();
    let client = client.expect("it ends");
    assert!(server.wait().expect("it ends").success() && client.status.success());
    let text = String::from_utf8_lossy(&client.stdout).into_owned();
    let row = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mean = row
        .filter(|row| row.first() == Some(&"65536"))
        .find_map(|row| row.get(3)?.parse::<f64>().ok());
    let mean = mean.expect("it says how fast it was");
    let pair = Pair::start();
    pair.complete(&[pair.request(Op::Write, 0, 0, 4 * MIB)]);
    let start = Instant::now();
    pair.complete(&[pair.request(Op::Write, 0, 0, 16 * MIB)]);
    let ours = 16.0 * 1.048_576 / start.elapsed().as_secs_f64();
    println!(
        "        ib_write_bw over one rail {:.1} MB/s, polyrail over four {ours:.1} MB/s",
        mean * 1.048_576
    );
    assert!(mean > 0.0);
}

/// Whether the verbs rail of this number can be used.
fn is_healthy(pair: &Pair, number: usize) -> bool {
    let name = format!("verbs:10.77.{number}.1>10.77.{number}.2");
    let rails = pair.engine.rails();
    let rail = rails
        .iter()
        .find(|rail| rail.name == name)
        .expect("it has this rail");
    matches!(rail.state, RailState::Healthy)
}

/// Writes and checks all of the memory, again and again, while something happens to the rails.
fn cut_and_restored() {
    let mut pair = Pair::start();
    pair.complete(&[pair.request(Op::Write, 0, 0, 4 * MIB)]);
    for end in ["far", "near"] {
        pair.fill(1, 0, 0, MEMORY);
        let all = pair.request(Op::Write, 0, 0, MEMORY);
        let before: u64 = pair.bytes("verbs").iter().sum();
        let batch = pair.engine.submit(&[all]).expect("a good request");
        until("the first bytes", || {
            pair.bytes("verbs").iter().sum::<u64>() > before
        });
        match end {
            "far" => rail("down", 1, ""),
            _ => {
                let down = std::process::Command::new("rail")
                    .args(["down", "a1"])
                    .status();
                assert!(down.expect("there is a rail").success());
            }
        }
        let report = batch.wait(PATIENCE).expect("it ends in time");
        assert_eq!(report.status, Status::Completed, "{end} end: {report:?}");
        assert_eq!(pair.target.ask(&format!("check 1 0 {MEMORY}")), "good");
        until("the pause", || {
            pair.complete(&[pair.request(Op::Write, 0, 0, MIB)]);
            !is_healthy(&pair, 1)
        });
        rail("up", 1, "");
        until("the rail's return", || is_healthy(&pair, 1));
        let before = pair.bytes("verbs")[1];
        until("bytes on it", || {
            pair.complete(&[pair.request(Op::Write, 0, 0, 4 * MIB)]);
            pair.bytes("verbs")[1] > before
        });
    }
}

fn failover_to_tcp() {
    let mut pair = Pair::with(initiator_with_tcp());
    pair.complete(&[pair.request(Op::Write, 0, 0, MIB)]);
    pair.fill(2, 0, 0, 8 * MIB);
    (0..RAILS).for_each(drop_rdma);
    let start = Instant::now();
    pair.complete(&[pair.request(Op::Write, 0, 0, 8 * MIB)]);
    let over_tcp = start.elapsed();
    assert_eq!(pair.target.ask(&format!("check 2 0 {}", 8 * MIB)), "good");
    assert!(pair.bytes("tcp").iter().sum::<u64>() > 0);
    crate::rails::clear();
    let start = Instant::now();
    until("RDMA", || {
        (0..RAILS).all(|number| is_healthy(&pair, number))
    });
    let back = start.elapsed();
    println!("        over TCP after {over_tcp:.1?}, all rails back after {back:.1?}");
    // Emulated devices may look slow beside TCP for a while, by what was learned in the outage.
    until("a write without TCP", || {
        let before = pair.bytes("tcp");
        pair.complete(&[pair.request(Op::Write, 0, 0, 8 * MIB)]);
        pair.bytes("tcp") == before
    });
}

/// What is written arrives, and nobody hears of it: when the queue pairs give up, the target says what it has, and only the
/// rest goes over TCP.
fn only_answers_lost() {
    let mut config = initiator_with_tcp();
    // However late its word comes.
    config.health.progress_floor = Duration::from_secs(100);
    let mut pair = Pair::with(config);
    pair.complete(&[pair.request(Op::Write, 0, 0, MIB)]);
    assert_eq!(pair.target.ask("poison"), "done");
    pair.fill(2, 0, 0, 8 * MIB);
    (0..RAILS).for_each(drop_answers);
    pair.complete(&[pair.request(Op::Write, 0, 0, 8 * MIB)]);
    assert_eq!(pair.target.ask(&format!("check 2 0 {}", 8 * MIB)), "good");
    let over_tcp = pair.bytes("tcp").iter().sum::<u64>();
    println!("        {over_tcp} of {} bytes went over TCP", 8 * MIB);
    assert!(over_tcp < 8 * MIB, "what had arrived went again");
}

/// The link is cut in the midst of a write that would be retried for long, the write is cancelled, its memory used for
/// something else, and the link restored.
fn no_ghost_writes() {
    const REUSED: u8 = 0xEE;
    let mut config = initiator();
    // Half a minute of retries.
    (config.verbs.ack_timeout, config.verbs.retry_count) = (20, 6);
    config.health.progress_floor = Duration::from_secs(100);
    let mut pair = Pair::with(config);
    assert_eq!(pair.target.ask("poison"), "done");
    pair.set(0x11);
    let write = pair.request(Op::Write, 0, 0, LOCAL);
    // A quarter of a minute's work, so that it cannot end while the links are being cut.
    (0..RAILS).for_each(|number| rail("rate", number, "4mbit"));
    let batch = pair.engine.submit(&[write]).expect("a good request");
    until("the first bytes", || {
        pair.bytes("verbs").iter().sum::<u64>() > 0
    });
    (0..RAILS).for_each(drop_rdma);
    batch.cancel();
    let ended = batch.wait(PATIENCE).expect("it ends in time");
    assert_eq!(ended.status, Status::Cancelled, "{ended:?}");
    let report = batch.report(0).expect("it has one");
    assert_eq!(
        (report.local, report.remote),
        (Local::Released, Remote::Settled)
    );
    pair.set(REUSED);
    crate::rails::clear();
    // What could still come has time to: longer than a packet waits to be sent again.
    until("RDMA", || {
        (0..RAILS).all(|number| is_healthy(&pair, number))
    });
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(pair.target.ask(&format!("count {REUSED}")), "0");
}

fn nothing_left() {
    // TCP has other ways in one kernel, which no wire is part of.
    let pair = Pair::with(initiator());
    pair.complete(&[pair.request(Op::Write, 0, 0, MIB)]);
    (0..RAILS).for_each(|number| rail("rate", number, "8mbit"));
    let write = pair.request(Op::Write, 0, 0, LOCAL);
    let before: u64 = pair.bytes("verbs").iter().sum();
    let batch = pair.engine.submit(&[write]).expect("a good request");
    until("the first bytes", || {
        pair.bytes("verbs").iter().sum::<u64>() > before
    });
    (0..RAILS).for_each(|number| rail("down", number, ""));
    let report = batch.wait(PATIENCE).expect("it ends in time");
    println!("        all rails down: {:?}", report.status);
    assert!(
        matches!(report.status, Status::Failed | Status::Indeterminate),
        "{report:?}"
    );
}

fn target_stopped() {
    let mut pair = Pair::start();
    pair.complete(&[pair.request(Op::Write, 0, 0, MIB)]);
    pair.target.signal("-STOP");
    // The device goes on without the process, until the peer counts as silent.
    let report = pair.run(&[pair.request(Op::Write, 0, 0, LOCAL)]);
    println!("        target stopped: {:?}", report.status);
    assert!(
        matches!(
            report.status,
            Status::Completed | Status::Indeterminate | Status::Failed
        ),
        "{report:?}"
    );
    pair.target.signal("-CONT");
    pair.fill(3, 0, 0, 4 * MIB);
    until("the target", || {
        pair.run(&[pair.request(Op::Write, 0, 0, 4 * MIB)]).status == Status::Completed
    });
    assert_eq!(pair.target.ask(&format!("check 3 0 {}", 4 * MIB)), "good");
}

fn target_killed() {
    let mut pair = Pair::start();
    pair.complete(&[pair.request(Op::Write, 0, 0, MIB)]);
    let before: u64 = pair.bytes("verbs").iter().sum();
    let batch = pair.engine.submit(&[pair.request(Op::Write, 0, 0, LOCAL)]);
    let batch = batch.expect("a good request");
    until("the first bytes", || {
        pair.bytes("verbs").iter().sum::<u64>() > before
    });
    pair.target.process.kill().expect("it lives");
    let ended = batch.wait(PATIENCE).expect("it ends in time");
    assert_eq!(ended.status, Status::PeerLost, "{ended:?}");
    let report = batch.report(0).expect("it has one");
    assert_eq!(
        (report.local, report.remote),
        (Local::Released, Remote::Settled)
    );
}

/// Where an end asks for it, no byte of a request can be read on the wire, of writes or of reads, and all arrive.
fn encrypted_lanes() {
    let folder = std::env::temp_dir();
    let key = folder.join("encrypted-lanes.key");
    let _ = std::fs::remove_file(&key);
    polyrail::keygen(&key).expect("a key");
    let key = key.to_string_lossy().into_owned();
    // (whether the initiator asks for it, and the target)
    for (ours, theirs) in [(false, false), (true, false), (false, true)] {
        let with_key = |name: &str, asks| {
            let mut config = Config {
                rails: vec![address(0, name == "target")],
                ..common(name).without("verbs")
            };
            config.security.key_file.clone_from(&key);
            if asks {
                config.security.payload = Payload::Encrypt;
            }
            config
        };
        let target = Engine::new(Config {
            listen: Some((address(0, true), 0).into()),
            insecure: true,
            ..with_key("target", theirs)
        });
        let target = target.expect("a target starts");
        let there = target.allocate("mem", MIB, Access::RemoteReadWrite);
        let there = target.region(there.expect("memory")).expect("it is there");
        let engine = Engine::new(with_key("initiator", ours)).expect("an engine starts");
        let local = engine.allocate("local", 2 * MIB, Access::Local);
        let local = local.expect("memory");
        let here = engine.region(local).expect("it is there");
        let text = MARK.repeat(MIB as usize / MARK.len());
        here.store(&text, 0).expect("it is in the region");
        let name = format!("{}/mem", target.listening().expect("it listens"));
        // Handshakes may take longer on emulated processors than a target waits.
        let mut opened = None;
        until("the target", || {
            opened = engine.open_segment(&name).ok();
            opened.is_some()
        });
        let remote = opened.expect("it is there");
        let wire = Wire::listen();
        for (op, local_offset) in [(Op::Write, 0), (Op::Read, MIB)] {
            let request = Request {
                op,
                local,
                local_offset,
                remote,
                remote_offset: 0,
                length: MIB,
            };
            let batch = engine.submit(&[request]).expect("a good request");
            let report = batch.wait(PATIENCE).expect("it ends in time");
            assert_eq!(report.status, Status::Completed, "{report:?}");
        }
        let (frames, with_mark) = wire.heard();
        let mut copy = vec![0; MIB as usize];
        there.load(0, &mut copy).expect("it is in the region");
        assert!(copy == text, "what was written is there");
        here.load(MIB, &mut copy).expect("it is in the region");
        assert!(copy == text, "what was read is here");
        assert!(frames > 0, "the wire was listened to");
        assert_eq!(with_mark == 0, ours || theirs, "{with_mark} of {frames}");
    }
}
