//! An agent, a target and an initiator as processes: shares follow what the agent is told.

use serde_json::Value;

use crate::agent::Agent;
use crate::harness::{finish, polyrail};

/// Bytes that each rail's share may be off by, of all: what was bound by the built-in policy before the first look.
const SLACK: f64 = 0.04;
/// A busy machine may keep the agent from its first look for longer than [`SLACK`] of a short run: then a longer one follows.
const SECONDS: [&str; 3] = ["0.5", "2", "8"];

/// The part of the bytes that the supplementary rail carries under an agent is `expected`.
fn carries(agent: &Agent, expected: f64, more: &[(&str, &str)], why: &str) {
    let mut seen = Vec::new();
    for seconds in SECONDS {
        let part = supplementary(agent, seconds, more);
        if (part - expected).abs() < SLACK {
            return;
        }
        seen.push(part);
    }
    panic!("{why}: {seen:?} in {SECONDS:?} s, and not {expected}");
}

/// Runs `bench` under an agent, and gives the share of the second of its two rails.
fn supplementary(agent: &Agent, seconds: &str, more: &[(&str, &str)]) -> f64 {
    let line = format!(
        "bench --rails 127.0.0.1,127.0.0.2 --buffer 16MiB --block 1MiB --batch 4 --seconds {seconds} --verify --json"
    );
    let mut command = polyrail(&line);
    command
        .env("POLYRAIL_PATH__MODE", "advanced")
        .env("POLYRAIL_PATH__SUPPLEMENTARY", "127.0.0.2")
        .env("POLYRAIL_PATH__HINT_FILE", agent.file())
        .env("POLYRAIL_PATH__HINT_STRICT", "true")
        // A busy machine may keep the agent from beating.
        .env("POLYRAIL_PATH__HINT_AGE_MAX_MS", "30000");
    for (key, value) in more {
        command.env(key, value);
    }
    let child = command.spawn().expect("the program starts");
    let ended = finish(child, &line).expect(0);
    let cell: Value = serde_json::from_str(ended.stdout.trim()).expect("one object");
    assert_eq!(cell["verified"], true, "{cell}");
    cell["rails"][1]["share"].as_f64().expect("a share")
}

#[test]
fn shares_are_what_the_agent_is_told() {
    let mut agent = Agent::start();
    carries(&agent, 1.0, &[], "nothing said, inside the island");
    for (line, expected) in [
        ("set supplementary=256", 0.25),
        ("set supplementary=768", 0.75),
        ("set supplementary=0", 0.0),
        ("set none", 1.0),
    ] {
        agent.tell(line);
        carries(&agent, expected, &[], line);
    }
    agent.tell("set supplementary=1024");
    let small = ("POLYRAIL_PATH__ISLAND_PREFIX_IPV4", "0");
    carries(&agent, 1.0, &[small], "one island of all");
    let off = ("POLYRAIL_PATH__MODE", "vanilla");
    agent.tell("set supplementary=0");
    carries(&agent, 1.0, &[off], "it is not asked");
}
