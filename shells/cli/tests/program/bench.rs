//! `bench`: good runs, targets that are not there, and targets that lie.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use polyrail::{Access, Caller, Calls, Config, Engine, Hooks};
use serde_json::Value;

use crate::harness::{Ended, Target, run};

/// The cells of `--json`.
fn cells(ended: &Ended) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).expect("each line is an object");
    ended.stdout.lines().map(parse).collect()
}

#[test]
fn it_starts_and_ends_its_own_target_and_prints_a_line_per_cell() {
    let line = "bench --block 4K..8K --batch 1..2 --buffer 1MiB --seconds 0.2 --verify --json";
    let cells = cells(&run(line).expect(0));
    assert_eq!(cells.len(), 4);
    for cell in cells {
        assert_eq!(cell["op"], "write");
        // On a busy machine TCP helps out where the target does not come to its turn.
        let transport = cell["transport"].as_str().unwrap();
        assert!(["shm", "shm+tcp"].contains(&transport), "{cell}");
        assert_eq!(cell["policy"], "spray");
        assert_eq!(cell["verified"], true);
        assert_eq!(cell["failed_requests"], 0);
        assert!(cell["requests"].as_u64().unwrap() > 0, "{cell}");
        assert!(cell["gbytes_per_sec"].as_f64().unwrap() > 0.0, "{cell}");
        assert!(
            cell["p50_us"].as_f64() <= cell["p999_us"].as_f64(),
            "{cell}"
        );
        assert!(cell["cpu_seconds_target"].as_f64().unwrap() > 0.0, "{cell}");
        let shares = cell["rails"].as_array().unwrap().iter();
        let sum: f64 = shares.map(|rail| rail["share"].as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{cell}");
    }
}

#[test]
fn threads_rails_reads_and_a_timeline() {
    let line = "bench --op read --threads 3 --rails 127.0.0.1,127.0.0.2 --buffer 16MiB --seconds 0.5 \
        --timeline 100 --verify --json --policy round-robin";
    let cell = cells(&run(line).expect(0)).remove(0);
    assert_eq!(
        (&cell["threads"], &cell["verified"]),
        (&3.into(), &true.into())
    );
    assert_eq!(cell["policy"], "round-robin");
    // Behind them a spare is named only once it has carried bytes, as it may have where a busy machine lets a rail stand still.
    let rails = cell["rails"].as_array().unwrap();
    assert!(rails.len() >= 2, "{cell}");
    for (rail, address) in rails.iter().zip(["127.0.0.1", "127.0.0.2"]) {
        let name = rail["rail"].as_str().unwrap();
        let is_own = name.starts_with(&format!("tcp:{address}>{address}"));
        assert!(is_own, "{name}");
    }
    let timeline = cell["timeline"].as_array().unwrap();
    assert!(timeline.len() >= 3, "{cell}");
    assert!(timeline[0]["rails"].as_array().unwrap().len() >= 2);
}

#[test]
fn people_get_a_table_and_cells_that_do_not_fit_are_said_to_be_skipped() {
    let ended = run("bench --block 512K..1M --batch 2 --buffer 1MiB --seconds 0.2").expect(0);
    assert!(ended.stdout.contains("GB/s"), "{ended:?}");
    assert_eq!(
        ended
            .stdout
            .lines()
            .filter(|line| line.starts_with("write"))
            .count(),
        1
    );
    ended.names(&["skipped", "1MiB × 2"]);
}

#[test]
fn a_buffer_is_no_larger_than_the_targets_memory() {
    let target = Target::start("--memory 1MiB");
    let line = format!(
        "bench --target {} --block 1M..2M --seconds 0.1",
        target.address()
    );
    run(&line).expect(0).names(&["skipped", "2MiB"]);
}

#[test]
fn a_closed_port_is_the_environments_fault_and_both_ends_are_named() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    run(&format!("bench --target {closed} --rails 127.0.0.1"))
        .expect(3)
        .names(&[&closed, "from 127.0.0.1"]);
}

#[test]
fn a_stranger_that_never_answers_is_given_up() {
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = stranger.local_addr().unwrap().to_string();
    run(&format!("bench --target {address}"))
        .expect(3)
        .names(&[&address]);
}

#[test]
fn a_stranger_that_answers_nonsense_is_named() {
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = stranger.local_addr().unwrap().to_string();
    // Ends with the test's process.
    thread::spawn(move || {
        for stream in stranger.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.write_all(&[0xa5; 4096]);
            let _ = stream.read(&mut [0; 4096]);
        }
    });
    run(&format!("bench --target {address}"))
        .expect(3)
        .names(&[&address]);
}

/// Says that all was done, and does nothing.
struct Liar {
    /// The answer to a check.
    checked: Vec<u8>,
}

impl Calls for Liar {
    fn call(&self, _: &Engine, _: &Caller, method: u16, _: &[u8]) -> Result<Vec<u8>, String> {
        const CHECK: u16 = 3;
        const CPU_TIME: u16 = 4;
        Ok(match method {
            CHECK => self.checked.clone(),
            CPU_TIME => 1.0f64.to_le_bytes().to_vec(),
            _ => Vec::new(),
        })
    }
}

/// A target in this process with a liar as its owner.
fn lying_target(checked: Vec<u8>) -> (Engine, String) {
    let config = Config {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        ..Config::default()
    };
    let hooks = Hooks {
        calls: Some(Arc::new(Liar { checked })),
        ..Hooks::default()
    };
    let engine = Engine::with_hooks(config, hooks).expect("loopback can be listened on");
    engine
        .allocate("mem", 1 << 20, Access::RemoteReadWrite)
        .expect("a MiB can be had");
    let address = engine.listening().expect("it listens").to_string();
    (engine, address)
}

#[test]
fn a_wrong_byte_that_the_owner_found_is_reported() {
    // Some(offset 5, expected 6, got 7, 8 wrong bytes)
    let (_engine, address) = lying_target(vec![1, 5, 6, 7, 8]);
    let ended = run(&format!(
        "bench --target {address} --seconds 0.2 --verify --json"
    ))
    .expect(1)
    .names(&["offset 5", "0x06", "0x07", &address]);
    assert_eq!(cells(&ended)[0]["verified"], false);
}

#[test]
fn a_wrong_byte_that_was_read_is_reported() {
    // Nothing was filled, so zeros are read where the pattern should be.
    let (_engine, address) = lying_target(vec![0]);
    run(&format!(
        "bench --op read --target {address} --seconds 0.2 --verify"
    ))
    .expect(1)
    .names(&["offset", "got 0x00", &address]);
}
