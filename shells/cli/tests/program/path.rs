//! An agent, a target and an initiator as processes: shares follow what the agent is told.

use serde_json::Value;

use crate::agent::Agent;
use crate::harness::{finish, polyrail};

/// Bytes that each rail's share may be off by, of all: what was bound by the built-in policy before the first look.
const SLACK: f64 = 0.04;

/// Runs `bench` under an agent, and gives the share of each of its two rails.
fn shares(agent: &Agent, more: &[(&str, &str)]) -> [f64; 2] {
    let line = "bench --rails 127.0.0.1,127.0.0.2 --buffer 16MiB --block 1MiB --batch 4 --seconds 0.5 --verify --json";
    let mut command = polyrail(line);
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
    let ended = finish(child, line).expect(0);
    let cell: Value = serde_json::from_str(ended.stdout.trim()).expect("one object");
    assert_eq!(cell["verified"], true, "{cell}");
    [0, 1].map(|rail| cell["rails"][rail]["share"].as_f64().expect("a share"))
}

#[test]
fn shares_are_what_the_agent_is_told() {
    let mut agent = Agent::start();
    let [_, alone] = shares(&agent, &[]);
    assert!(
        alone > 1.0 - SLACK,
        "nothing said, inside the island: {alone}"
    );
    for (line, expected) in [
        ("set supplementary=256", 0.25),
        ("set supplementary=768", 0.75),
        ("set supplementary=0", 0.0),
        ("set none", 1.0),
    ] {
        agent.tell(line);
        let [primary, supplementary] = shares(&agent, &[]);
        assert!(
            (supplementary - expected).abs() < SLACK,
            "{line}: {primary} and {supplementary}"
        );
    }
    agent.tell("set supplementary=1024");
    let small = ("POLYRAIL_PATH__ISLAND_PREFIX_IPV4", "0");
    let [_, supplementary] = shares(&agent, &[small]);
    assert!(
        supplementary > 1.0 - SLACK,
        "one island of all: {supplementary}"
    );
    let off = ("POLYRAIL_PATH__MODE", "vanilla");
    agent.tell("set supplementary=0");
    let [_, supplementary] = shares(&agent, &[off]);
    assert!(
        supplementary > 1.0 - SLACK,
        "it is not asked: {supplementary}"
    );
}
