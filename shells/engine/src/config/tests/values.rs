//! What becomes of one that is right.

use std::time::Duration;

use polyrail_core::rail::documented::DocumentedConfig;

use super::*;

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
fn pairs_are_read_as_variables_are_and_a_wrong_key_is_an_error() {
    let pairs = [
        ("workers", "3"),
        ("rails", "127.0.0.1,127.0.0.2"),
        ("transports/tcp/numa_penalties", "1,2,3"),
        ("transports/shm/enable", "0"),
        ("transports/own/library", "/libown.so"),
        ("transports/own/rail_error_threshold", "9"),
        ("workers", "4"),
    ];
    let sources = Sources::new().json("f", r#"{ "workers": 2, "policy": "round-robin" }"#);
    let config = sources.pairs("the call", pairs).load().unwrap().config;
    assert_eq!((config.workers, config.policy), (4, Policy::RoundRobin));
    assert_eq!(config.rails.len(), 2);
    assert!(!config.transport("shm").enable);
    let numa = config.transport("tcp").documented.numa_penalties;
    assert_eq!(numa, [1.0, 2.0, 3.0]);
    assert_eq!(config.transport("own").library, "/libown.so");

    let wrong = [("wokers", "3"), ("workers", ""), ("policy", "best")];
    let error = Sources::new().pairs("the call", wrong).load().unwrap_err();
    let places = error.problems.iter().map(ToString::to_string);
    let places: Vec<_> = places.collect();
    assert!(places[0].starts_with("the call: wokers:") && places[0].contains("workers"));
    assert!(places[1].starts_with("the call: workers:") && places[1].contains("\"\""));
    assert!(places[2].starts_with("the call: policy:") && places[2].contains("best"));
    assert_eq!(places.len(), 3);
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
fn without_smart_scheduling_a_transports_policy_is_round_robin() {
    use Policy::*;
    const OFF: &str = r#""transports": { "tcp": { "enable_smart_scheduling": false } }"#;
    // (the rest of the file, the environment, policies of tcp and shm)
    let cases = [
        ("", None, [RoundRobin, Spray]),
        (r#", "policy": "spray""#, None, [RoundRobin, Spray]),
        (
            r#", "policy": "documented""#,
            None,
            [RoundRobin, Documented],
        ),
        (r#", "policy": "round-robin""#, None, [RoundRobin; 2]),
        ("", Some(("POLYRAIL_POLICY", "spray")), [Spray; 2]),
        (
            "",
            Some(("POLYRAIL_TRANSPORTS__TCP__ENABLE_SMART_SCHEDULING", "true")),
            [Spray; 2],
        ),
    ];
    for (rest, variable, policies) in cases {
        let json = format!("{{ {OFF}{rest} }}");
        let sources = Sources::new()
            .json("f", &json)
            .variables(variables(variable.as_slice()));
        let Loaded { config, notes, .. } = sources.load().unwrap();
        let found = ["tcp", "shm"].map(|name| config.policy_of(name));
        assert_eq!(found, policies, "{json} {variable:?}");
        let gave_way = variable.is_some_and(|(name, _)| name == "POLYRAIL_POLICY");
        let is_told = notes
            .iter()
            .any(|note| note.contains("gives way to the policy"));
        assert_eq!(is_told, gave_way, "{json} {variable:?}: {notes:?}");
    }
    let mut config = Config::from_json(&format!("{{ {OFF} }}")).unwrap();
    config.use_policy(Documented);
    assert_eq!(config.policy_of("tcp"), Documented, "a flag's");
}

#[test]
fn each_transport_has_its_own_values() {
    let config = Config::from_json(
        r#"{ "health": { "mode": "reset" }, "policy": "documented", "transports": {
            "tcp": { "rail_error_threshold": 5 },
            "shm": { "rail_error_threshold": 7, "rail_cooldown_secs": 2, "numa_penalties": [3] },
            "verbs": { "enable_smart_scheduling": false } } }"#,
    )
    .unwrap();
    let found = config.core_transports(&["shm", "uring", "verbs", "tcp"]);
    let [shm, uring, verbs, tcp] = &found[..] else {
        panic!("{found:?}");
    };
    let reset = |core: &CoreTransport| match core.health {
        CoreHealthMode::Reset(config) => (config.rail_error_threshold, config.rail_cooldown),
        CoreHealthMode::Decay => panic!("it was said"),
    };
    let seconds = CoreDuration::from_secs;
    assert_eq!(reset(shm), (7, seconds(2)));
    assert_eq!(reset(uring), (3, seconds(30)), "nothing is said of it");
    assert_eq!(reset(tcp), (5, seconds(30)));
    assert_eq!(shm.documented.numa_penalties, [3.0; 3]);
    assert_eq!(tcp.documented.numa_penalties, [1.0, 5.0, 10.0]);
    assert_eq!(
        [shm, verbs, tcp].map(|core| core.policy),
        [Policy::Documented, Policy::RoundRobin, Policy::Documented]
    );
    let of_all = r#"{ "transports": { "tcp": { "enable": true } } }"#;
    let of_all = Config::from_json(of_all).unwrap();
    assert_eq!(of_all.core_transports(&["shm", "tcp"]), [], "all alike");
}

#[test]
fn what_steers_nothing_is_said() {
    // (configuration, what is said of which key; nothing: it steers)
    let cases: [(&str, Option<(&str, &str)>); 16] = [
        (
            r#"{"transports": {"tcp": {"rail_error_threshold": 4}}}"#,
            Some(("transports/tcp/rail_error_threshold", "not reset")),
        ),
        (
            r#"{"health": {"mode": "reset"}, "transports": {"tcp": {"rail_error_threshold": 4}}}"#,
            None,
        ),
        (
            r#"{"transports": {"shm": {"numa_penalties": [1, 2]}}}"#,
            Some(("transports/shm/numa_penalties", "not documented")),
        ),
        (
            r#"{"policy": "documented", "transports": {"shm": {"numa_penalties": [1, 2]}}}"#,
            None,
        ),
        (
            r#"{"policy": "documented", "transports": {"shm": {"numa_penalties": [1, 2], "enable_smart_scheduling": false}}}"#,
            Some(("transports/shm/numa_penalties", "not documented")),
        ),
        (
            r#"{"policy": "round-robin", "transports": {"tcp": {"enable_smart_scheduling": true}}}"#,
            Some(("transports/tcp/enable_smart_scheduling", "round-robin")),
        ),
        (
            r#"{"transports": {"shm": {"enable": false, "rail_cooldown_secs": 3}}}"#,
            Some(("transport shm is off", "steers nothing")),
        ),
        (r#"{"transports": {"shm": {"enable": false}}}"#, None),
        (
            r#"{"path": {"hint_strict": true}}"#,
            Some(("path/hint_strict", "not advanced")),
        ),
        (
            r#"{"path": {"mode": "vanilla", "small_bytes_max": 5}}"#,
            Some(("path/small_bytes_max", "not advanced")),
        ),
        (
            r#"{"path": {"island_prefix_ipv4": 16}}"#,
            Some(("path/island_prefix_ipv4", "off")),
        ),
        (
            r#"{"send_queue": {"admission": false, "admission_timeout_us": 5}}"#,
            Some(("send_queue/admission_timeout_us", "admission is false")),
        ),
        (
            r#"{"spray": {"diffusion_stale_ms": 5}}"#,
            Some(("spray/diffusion_stale_ms", "diffusion_weight is 0")),
        ),
        (
            r#"{"policy": "round-robin", "spray": {"idle_look_us": 5000}}"#,
            Some(("spray/idle_look_us", "no transport's policy is spray")),
        ),
        (
            r#"{"policy": "documented", "spray": {"merge_requests": true}}"#,
            Some(("spray/merge_requests", "documented")),
        ),
        (r#"{"policy": "documented", "slice_bytes": 131072}"#, None),
    ];
    for (json, said) in cases {
        let notes = Sources::new().json("f", json).load().unwrap().notes;
        match said {
            None => assert_eq!(notes, [""; 0], "{json}"),
            Some((key, why)) => assert!(
                notes.len() == 1 && notes[0].contains(key) && notes[0].contains(why),
                "{json}: {notes:?}"
            ),
        }
    }
    let notes = Sources::new().json("f", cases[0].0).load().unwrap().notes;
    assert!(notes[0].starts_with("f:1:"), "with its place: {notes:?}");
    let of_verbs = Sources::new().json("f", r#"{"verbs": {"queue_depth": 64}}"#);
    let notes = of_verbs.load().unwrap().notes;
    assert_eq!(notes.is_empty(), cfg!(feature = "verbs"), "{notes:?}");
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
fn core_gets_what_is_configured() {
    let config = Config::from_json(
        r#"{
            "policy": "documented",
            "health": { "progress_floor_ms": 7, "open_timeout_ms": 8, "heartbeat_ms": 45,
                "peer_silence_ms": 90, "fence_timeout_ms": 11, "cancel_grace_ms": 12 },
            "spray": { "nominal_bandwidth_gbps": 100, "base_delay_us": 4,
                "diffusion_weight": 0.0001, "diffusion_stale_ms": 13, "priority_promotion_ms": 14,
                "idle_look_us": 2500, "merge_requests": false },
            "slice_bytes": 131072,
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
        idle_look: CoreDuration::from_micros(2_500),
        merge_requests: false,
        signal_interval_works: 15,
        fence_timeout: CoreDuration::from_millis(11),
        cancel_grace: CoreDuration::from_millis(12),
        ..CoreConfig::new(
            3,
            PoliciesConfig {
                usual: CoreTransport {
                    documented,
                    ..CoreTransport::new(Policy::Documented)
                },
                seed: 3,
            },
        )
    };
    assert_eq!(format!("{core:?}"), format!("{expected:?}"));
    assert_eq!(config.connection_silence(), Duration::from_millis(225));
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
