//! What is said of a configuration that is wrong.

use std::time::Duration;

use super::*;

#[test]
fn what_is_wrong_is_said_with_place_value_and_what_would_be_right() {
    // (configuration, the one problem's text begins, and names)
    let cases: [(&str, &str, &[&str]); 38] = [
        ("", "f.json:1:1: no JSON", &["EOF"]),
        ("[]", "f.json:1:1: a configuration is an object", &["{"]),
        ("{\"policy\": \"spray\"", "f.json:1:18: no JSON", &[]),
        // Unknown keys.
        (
            r#"{"polcy": 1}"#,
            "f.json:1:3: polcy: unknown key",
            &["nearest known one is policy"],
        ),
        (
            "{\n  \"transports\": {\n    \"tcp\": { \"rail_cooldwn_secs\": 1 } } }",
            "f.json:3:15: transports/tcp/rail_cooldwn_secs: unknown key",
            &["transports/tcp/rail_cooldown_secs"],
        ),
        (
            r#"{"transports": {"tpc": {}}}"#,
            "f.json:1:18: transports/tpc: unknown key",
            &["is transports/tcp"],
        ),
        (
            r#"{"rail_cooldown_secs": 3}"#,
            "f.json:1:3: rail_cooldown_secs: unknown key",
            &["is transports/tcp/rail_cooldown_secs"],
        ),
        (
            r#"{"helth": {"mode": "decay"}}"#,
            "f.json:1:3: helth: unknown key",
            &["is health"],
        ),
        (
            r#"{"health": {"peer_silence": 5}}"#,
            "f.json:1:14: health/peer_silence: unknown key",
            &["is health/peer_silence_ms"],
        ),
        (
            r#"{"security": {"domains": {"red": {"peer": []}}}}"#,
            "f.json:1:36: security/domains/red/peer: unknown key",
            &["is security/domains/NAME/peers"],
        ),
        (
            r#"{"security": {"domains": {"Red": {"peers": []}}}}"#,
            "f.json:1:28: security/domains/Red: unknown key",
            &["security/domains/NAME"],
        ),
        (
            r#"{"security": {"domains": {"red": {"peers": ["10.0.0.0/33"]}}}}"#,
            "f.json:1:36: security/domains/red/peers: ",
            &["10.0.0.0/33", "is not possible", "10.0.1.0/24"],
        ),
        (
            r#"{"security": {"domains": {"red": {"peers": ["10.0.0.9/8"]}, "green": {"peers": ["10.0.0.0/8"]}}}}"#,
            "f.json:1:72: security/domains/red/peers: 10.0.0.0/8 is said of domain green too",
            &["whose it is"],
        ),
        (
            r#"{"Policy": "spray"}"#,
            "f.json:1:3: Policy: unknown key",
            &["is policy"],
        ),
        (
            r#"{"health/mode": "decay"}"#,
            "f.json:1:3: health/mode: a key with '/'",
            &["nest"],
        ),
        (
            r#"{"policy": "spray", "policy": "spray"}"#,
            "f.json:1:22: policy: said twice",
            &[],
        ),
        // Wrong types.
        (
            r#"{"health": 3}"#,
            "f.json:1:3: health: is a section",
            &["object", "fence_timeout_ms"],
        ),
        (
            r#"{"name": 7}"#,
            "f.json:1:3: name: 7 is a number",
            &["ASCII"],
        ),
        (
            r#"{"name": "two words"}"#,
            "f.json:1:3: name: \"two words\" is not",
            &["without spaces"],
        ),
        (
            r#"{"listen": "7000"}"#,
            "f.json:1:3: listen: \"7000\" is not",
            &["127.0.0.1:7000"],
        ),
        (
            r#"{"listen": null}"#,
            "f.json:1:3: listen: null is nothing",
            &["ADDRESS:PORT"],
        ),
        (
            r#"{"rails": "10.0.0.1"}"#,
            "f.json:1:3: rails: \"10.0.0.1\" is a string",
            &["list"],
        ),
        (
            r#"{"rails": ["eth0"]}"#,
            "f.json:1:3: rails: [\"eth0\"] is not",
            &["10.0.0.1"],
        ),
        (
            r#"{"rails": ["127.0.0.1", "127.0.0.1"]}"#,
            "f.json:1:3: rails: 127.0.0.1 is listed twice",
            &[],
        ),
        (
            r#"{"policy": "best"}"#,
            "f.json:1:3: policy: \"best\" is not",
            &["spray, round-robin, documented"],
        ),
        (
            r#"{"insecure": "yes"}"#,
            "f.json:1:3: insecure: \"yes\" is a string",
            &["true or false"],
        ),
        (
            r#"{"insecure": {}}"#,
            "f.json:1:3: insecure: {} is an object",
            &["true or false"],
        ),
        (
            r#"{"workers": 1.5}"#,
            "f.json:1:3: workers: 1.5 is not whole",
            &["from 0 to 64"],
        ),
        // Out of range.
        (
            r#"{"workers": 65}"#,
            "f.json:1:3: workers: 65 is not",
            &["from 0 to 64"],
        ),
        (
            r#"{"workers": -1}"#,
            "f.json:1:3: workers: -1 is not",
            &["from 0 to 64"],
        ),
        (
            r#"{"limits": {"requests": 63}}"#,
            "f.json:1:14: limits/requests: 63 is not",
            &["of requests from 64 to 32704"],
        ),
        (
            r#"{"limits": {"requests": 32705}}"#,
            "f.json:1:14: limits/requests: 32705 is not",
            &["of requests from 64 to 32704"],
        ),
        (
            r#"{"transports": {"rdma": {"rail_cooldown_secs": 301}}}"#,
            "f.json:1:27: transports/rdma/rail_cooldown_secs: 301 is not",
            &["of s from 1 to 300"],
        ),
        (
            r#"{"transports": {"tcp": {"bandwidth_learning_rate": 1.01}}}"#,
            "f.json:1:26: transports/tcp/bandwidth_learning_rate: 1.01 is not",
            &["from 0 to 1"],
        ),
        (
            r#"{"transports": {"tcp": {"numa_penalties": [1, 0]}}}"#,
            "f.json:1:26: transports/tcp/numa_penalties: [1,0] is not",
            &["1 to 3 numbers", "above 0"],
        ),
        // What does not go together.
        (
            r#"{"health": {"heartbeat_ms": 700}}"#,
            "f.json:1:14: health/peer_silence_ms: is less than twice",
            &["heartbeat_ms"],
        ),
        (
            r#"{"rails": ["10.0.0.1", "10.9.0.1"], "path": {"supplementary": ["10.9.0.2"]}}"#,
            "f.json:1:3: path/supplementary: has an address that `rails` has not",
            &[],
        ),
        (
            r#"{"transports": {"tcp": {"min_bandwidth_gbps": 900}}}"#,
            "f.json:1:26: transports/tcp/min_bandwidth_gbps: is more than",
            &["max_bandwidth_gbps"],
        ),
    ];
    for (json, begins, names) in cases {
        let found = problems(json);
        assert_eq!(found.len(), 1, "{json}: {found:?}");
        assert!(found[0].starts_with(begins), "{json}: {found:?}");
        for part in names {
            assert!(found[0].contains(part), "\"{part}\" in {found:?}");
        }
    }
}

#[test]
fn all_problems_are_said_in_the_order_of_the_text() {
    let found = problems(
        r#"{
            "workers": 99,
            "health": { "mode": 1, "x": 2 },
            "transports": { "tcp": { "score_epsilon": "small" }, "udp": {} }
        }"#,
    );
    let keys: Vec<_> = found
        .iter()
        .map(|line| line.split(": ").nth(1).unwrap())
        .collect();
    let expected = [
        "workers",
        "health/mode",
        "health/x",
        "transports/tcp/score_epsilon",
        "transports/udp",
    ];
    assert_eq!(keys, expected, "{found:?}");
}

#[test]
fn what_a_program_sets_is_checked_as_well() {
    let mut config = Config {
        workers: 65,
        ..Config::named("two words are no trouble here")
    };
    config.health.fence_timeout = Duration::ZERO;
    config.spray.nominal_bandwidth_gbps = f64::NAN;
    config.transports.insert("udp".into(), Default::default());
    let keys: Vec<_> = config
        .check()
        .unwrap_err()
        .problems
        .into_iter()
        .map(|p| p.key)
        .collect();
    let expected = [
        "workers",
        "health/fence_timeout_ms",
        "spray/nominal_bandwidth_gbps",
        "transports/udp",
    ];
    assert_eq!(keys, expected);
}

#[test]
fn files_that_are_no_text_are_refused() {
    // (file, what the error says)
    let cases = [
        ("/no/such/file.json", "cannot be opened"),
        ("/", "cannot be read"),
        ("/dev/zero", "more than 1048576 bytes"),
    ];
    for (path, said) in cases {
        let error = Config::from_file(path).unwrap_err().to_string();
        assert!(error.starts_with(path) && error.contains(said), "{error}");
    }
}
