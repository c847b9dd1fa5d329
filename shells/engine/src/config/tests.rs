//! Rules of configurations, one row each.

use std::ffi::OsString;
use std::time::Duration;

use super::*;

/// All problems of a text, as lines.
fn problems(json: &str) -> Vec<String> {
    match Sources::new().json("f.json", json).load() {
        Ok(_) => Vec::new(),
        Err(ConfigError { problems }) => problems.iter().map(ToString::to_string).collect(),
    }
}

fn variables(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    let os = |(name, value): &(&str, &str)| (OsString::from(name), OsString::from(value));
    pairs.iter().map(os).collect()
}

#[test]
fn what_is_wrong_is_said_with_place_value_and_what_would_be_right() {
    // (configuration, the one problem's text begins, and names)
    let cases: [(&str, &str, &[&str]); 35] = [
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
fn both_documents_files_are_taken_as_they_are() {
    let failover = r#"{
        "max_failover_attempts": 3,
        "transports": { "rdma": {
            "rail_error_threshold": 3, "rail_error_window_secs": 10, "rail_cooldown_secs": 30 } }
    }"#;
    let spraying = r#"{ "transports": { "rdma": {
        "enable_smart_scheduling": true, "numa_penalties": [1.0, 5.0, 10.0],
        "bandwidth_learning_rate": 0.01, "ewma_min_bandwidth_multiplier": 0.1,
        "ewma_max_bandwidth_multiplier": 10.0, "score_jitter_range": 1e-9, "score_epsilon": 1e-12,
        "default_bandwidth_gbps": 400.0, "min_bandwidth_gbps": 10.0, "max_bandwidth_gbps": 800.0 } } }"#;
    for json in [failover, spraying] {
        let Loaded {
            config,
            notes,
            effective,
        } = Sources::new().json("f", json).load().unwrap();
        assert_eq!(effective, [], "all of it is default");
        assert_eq!(config.transport("rdma"), config.transport("tcp"));
        assert!(
            notes.len() == 1 && notes[0].contains("rdma is not built in"),
            "{notes:?}"
        );
    }
}

#[test]
fn the_environment_wins_over_files_and_says_where_it_was_said() {
    let file = r#"{ "name": "file", "workers": 2,
        "transports": { "tcp": { "rail_cooldown_secs": 20, "rail_error_threshold": 4 } } }"#;
    let environment = variables(&[
        ("POLYRAIL_WORKERS", "3"),
        ("POLYRAIL_TRANSPORTS__TCP__RAIL_COOLDOWN_SECS", "10"),
        ("polyrail_workers", "4"),
        ("OTHER", "x"),
    ]);
    let sources = Sources::new().json("f", file).variables(environment);
    let loaded = sources.load().unwrap();
    let tcp = loaded.config.transport("tcp");
    assert_eq!(
        (loaded.config.name.as_str(), loaded.config.workers),
        ("file", 3)
    );
    assert_eq!(tcp.rail_cooldown, Duration::from_secs(10));
    assert_eq!(tcp.rail_error_threshold, 4);
    let lines: Vec<_> = loaded
        .effective
        .iter()
        .map(|e| format!("{}={} ({}) {}", e.key, e.value, e.default, e.place))
        .collect();
    let expected = [
        "name=\"file\" (\"polyrail\") f:1:4",
        "workers=3 (0) environment POLYRAIL_WORKERS",
        "transports/tcp/rail_error_threshold=4 (3) f:2:61",
        "transports/tcp/rail_cooldown_secs=10 (30) environment POLYRAIL_TRANSPORTS__TCP__RAIL_COOLDOWN_SECS",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn variables_are_read_by_the_type_of_their_key() {
    // (variable, value, how the configuration shows it)
    let cases = [
        ("POLYRAIL_NAME", "7", "name: \"7\""),
        (
            "POLYRAIL_LISTEN",
            "127.0.0.1:7000",
            "listen: Some(127.0.0.1:7000)",
        ),
        (
            "POLYRAIL_RAILS",
            "127.0.0.1, ::1",
            "rails: [127.0.0.1, ::1]",
        ),
        ("POLYRAIL_RAILS", "[\"127.0.0.1\"]", "rails: [127.0.0.1]"),
        ("POLYRAIL_RAIL_MAP", "all", "rail_map: All"),
        ("POLYRAIL_RAIL_MAP", "nearest", "rail_map: Nearest"),
        ("POLYRAIL_POLICY", "documented", "policy: Documented"),
        ("POLYRAIL_INSECURE", "true", "insecure: true"),
        ("POLYRAIL_INSECURE", "1", "insecure: true"),
        ("POLYRAIL_Workers", "9", "workers: 9"),
        (
            "POLYRAIL_HEALTH__FENCE_TIMEOUT_MS",
            "250",
            "fence_timeout: 250ms",
        ),
        (
            "POLYRAIL_TRANSPORTS__TCP__NUMA_PENALTIES",
            "1,2,3",
            "[1.0, 2.0, 3.0]",
        ),
        (
            "POLYRAIL_TRANSPORTS__TCP__NUMA_PENALTIES",
            "[1]",
            "[1.0, 1.0, 1.0]",
        ),
    ];
    for (name, value, shown) in cases {
        let sources = Sources::new().variables(variables(&[(name, value)]));
        let config = format!("{:?}", sources.load().unwrap().config);
        assert!(config.contains(shown), "{name}={value}: {config}");
    }
    // (variable, value, what the error says)
    let wrong = [
        (
            "POLYRAIL_WORKERS",
            "many",
            "environment POLYRAIL_WORKERS: workers: \"many\" is a string",
        ),
        ("POLYRAIL_INSECURE", "", "insecure: \"\" is a string"),
        ("POLYRAIL_RAILS", "", "rails: [\"\"] is not possible"),
        (
            "POLYRAIL_HEALTH__MOOD",
            "x",
            "the nearest known one is health/mode",
        ),
    ];
    for (name, value, said) in wrong {
        let sources = Sources::new().variables(variables(&[(name, value)]));
        let error = sources.load().unwrap_err().to_string();
        assert!(error.contains(said), "{name}={value}: {error}");
    }
}

#[test]
fn a_word_that_is_no_key_may_be_anybodys_variable() {
    let service = variables(&[("POLYRAIL_PORT", "tcp://10.0.0.1:7000")]);
    let loaded = Sources::new().variables(service).load().unwrap();
    assert_eq!(loaded.config, Config::default());
    assert!(
        loaded.notes[0].contains("POLYRAIL_PORT"),
        "{:?}",
        loaded.notes
    );
}

#[test]
fn without_smart_scheduling_the_policy_is_round_robin() {
    const OFF: &str = r#""transports": { "tcp": { "enable_smart_scheduling": false } }"#;
    // (the rest of the file, the environment, policy)
    let cases = [
        ("", None, Policy::RoundRobin),
        (r#", "policy": "documented""#, None, Policy::RoundRobin),
        (r#", "policy": "round-robin""#, None, Policy::RoundRobin),
        ("", Some(("POLYRAIL_POLICY", "spray")), Policy::Spray),
        (
            "",
            Some(("POLYRAIL_TRANSPORTS__TCP__ENABLE_SMART_SCHEDULING", "true")),
            Policy::Spray,
        ),
    ];
    for (rest, variable, policy) in cases {
        let json = format!("{{ {OFF}{rest} }}");
        let sources = Sources::new()
            .json("f", &json)
            .variables(variables(variable.as_slice()));
        let loaded = sources.load().unwrap();
        assert_eq!(loaded.config.policy, policy, "{json} {variable:?}");
    }
    let contradiction = problems(&format!("{{ \"policy\": \"spray\", {OFF} }}"));
    assert!(
        contradiction[0].contains("contradicts"),
        "{contradiction:?}"
    );
    let elsewhere = Config::from_json(&format!("{{ {} }}", OFF.replace("tcp", "rdma"))).unwrap();
    assert_eq!(
        elsewhere.policy,
        Policy::Spray,
        "that is another transport's"
    );
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
fn trust_domains_are_called_what_one_likes() {
    let file = r#"{ "security": { "domains": { "red": { "peers": ["10.0.0.0/8"] } } } }"#;
    let environment = variables(&[(
        "POLYRAIL_SECURITY__DOMAINS__BLUE-2__PEERS",
        "192.0.2.7, fd00::/8",
    )]);
    let sources = Sources::new().json("f", file).variables(environment);
    let Loaded {
        config, effective, ..
    } = sources.load().unwrap();
    let peers = |name: &str| config.security.domains[name].peers.clone();
    assert_eq!(peers("red"), ["10.0.0.0/8".parse().unwrap()]);
    let blue = ["192.0.2.7/32", "fd00::/8"].map(|prefix| prefix.parse().unwrap());
    assert_eq!(peers("blue-2"), blue);
    let keys: Vec<_> = effective.iter().map(|e| &e.key[..]).collect();
    let expected = [
        "security/domains/blue-2/peers",
        "security/domains/red/peers",
    ];
    assert_eq!(keys, expected);
    let mut program = Config::default();
    let domains = &mut program.security.domains;
    domains.insert("No Name".into(), DomainConfig::default());
    let text = program.check().unwrap_err().to_string();
    assert!(text.contains("\"No Name\" cannot name"), "{text}");
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

#[test]
fn core_gets_what_is_configured() {
    let config = Config::from_json(
        r#"{
            "policy": "documented",
            "health": { "progress_floor_ms": 7, "open_timeout_ms": 8, "heartbeat_ms": 45,
                "peer_silence_ms": 90, "fence_timeout_ms": 11, "cancel_grace_ms": 12 },
            "spray": { "nominal_bandwidth_gbps": 100, "base_delay_us": 4,
                "diffusion_weight": 0.0001, "diffusion_stale_ms": 13, "priority_promotion_ms": 14,
                "merge_requests": false },
            "send_queue": { "signal_interval_works": 15 },
            "transports": { "tcp": { "max_slice_count": 32, "numa_penalties": [1, 2] } }
        }"#,
    )
    .unwrap();
    let core = config.core(3);
    let documented = DocumentedConfig {
        max_slice_count: 32,
        numa_penalties: [1.0, 2.0, 2.0],
        ..DocumentedConfig::DEFAULT
    };
    let expected = CoreConfig {
        progress_floor: CoreDuration::from_millis(7),
        open_timeout: CoreDuration::from_millis(8),
        peer_silence: CoreDuration::from_millis(90),
        priority_promotion: CoreDuration::from_millis(14),
        merge_requests: false,
        signal_interval_works: 15,
        fence_timeout: CoreDuration::from_millis(11),
        cancel_grace: CoreDuration::from_millis(12),
        documented,
        ..CoreConfig::new(3, Policy::Documented)
    };
    assert_eq!(format!("{core:?}"), format!("{expected:?}"));
    assert_eq!(config.connection_silence(), Duration::from_millis(135));
    let EstimateConfig {
        rate_nominal,
        delay_base,
        ..
    } = config.estimate();
    assert_eq!(rate_nominal, Rate::from_bits_per_sec(100_000_000_000));
    assert_eq!(delay_base, CoreDuration::from_micros(4));
    let diffusion = DiffusionConfig {
        weight: Weight::new(1).unwrap(),
        stale_after: CoreDuration::from_millis(13),
    };
    assert_eq!(config.diffusion(), Some(diffusion), "as little as there is");
    assert_eq!(Config::default().diffusion(), None);
}

#[test]
fn the_default_is_within_all_limits() {
    assert_eq!(Config::default().check(), Ok(()));
    assert_eq!(Config::from_json("{}"), Ok(Config::default()));
}
