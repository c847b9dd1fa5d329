//! The keys and values that the source documents show, where they show them.

use polyrail_core::rail::documented::DocumentedConfig;

use super::*;

/// The notes on a file that says something of `rdma`, without those on the build.
fn load(json: &str) -> Loaded {
    let mut loaded = Sources::new().json("f", json).load().unwrap();
    loaded.notes.retain(|note| !note.contains("not built into"));
    loaded
}

const ALIAS: &str = "transports/rdma is transports/verbs under its other name";

#[test]
fn what_the_documents_show_is_taken_as_it_is_and_steers_verbs() {
    const DEFAULT: DocumentedConfig = DocumentedConfig::DEFAULT;
    let numa = |numa_penalties, bandwidth_learning_rate| DocumentedConfig {
        numa_penalties,
        bandwidth_learning_rate,
        ..DEFAULT
    };
    let baseline = DocumentedConfig {
        enable_smart_scheduling: false,
        ..DEFAULT
    };
    let conservative = DocumentedConfig {
        score_jitter_range: 1e-12,
        ..numa([1.0, 10.0, 100.0], 0.001)
    };
    // (name, what is said of rdma, what that makes of verbs)
    let cases = [
        (
            "smart scheduling",
            r#""enable_smart_scheduling": true"#,
            DEFAULT,
        ),
        (
            "penalties",
            r#""numa_penalties": [1.0, 5.0, 10.0]"#,
            DEFAULT,
        ),
        (
            "bandwidth estimation",
            r#""bandwidth_learning_rate": 0.01, "ewma_min_bandwidth_multiplier": 0.1,
               "ewma_max_bandwidth_multiplier": 10.0"#,
            DEFAULT,
        ),
        (
            "scoring",
            r#""score_jitter_range": 1e-9, "score_epsilon": 1e-12"#,
            DEFAULT,
        ),
        (
            "bandwidth constants",
            r#""default_bandwidth_gbps": 400.0, "min_bandwidth_gbps": 10.0, "max_bandwidth_gbps": 800.0"#,
            DEFAULT,
        ),
        (
            "latency-sensitive",
            r#""enable_smart_scheduling": true, "numa_penalties": [1.0, 100.0, 1000.0],
               "bandwidth_learning_rate": 0.001"#,
            numa([1.0, 100.0, 1000.0], 0.001),
        ),
        (
            "bulk",
            r#""enable_smart_scheduling": true, "numa_penalties": [1.0, 2.0, 3.0],
               "bandwidth_learning_rate": 0.1"#,
            numa([1.0, 2.0, 3.0], 0.1),
        ),
        ("baseline", r#""enable_smart_scheduling": false"#, baseline),
        (
            "first steps of tuning",
            r#""numa_penalties": [1.0, 2.0, 5.0], "bandwidth_learning_rate": 0.01"#,
            numa([1.0, 2.0, 5.0], 0.01),
        ),
        (
            "worse than the baseline",
            r#""bandwidth_learning_rate": 0.001, "numa_penalties": [1.0, 10.0, 100.0],
               "score_jitter_range": 1e-12"#,
            conservative,
        ),
    ];
    for (name, said, expected) in cases {
        let json =
            format!(r#"{{ "policy": "documented", "transports": {{ "rdma": {{ {said} }} }} }}"#);
        let Loaded { config, notes, .. } = load(&json);
        assert_eq!(notes, [ALIAS], "{name}");
        let found = config.core_transport("verbs");
        assert_eq!(found.documented, expected, "{name}");
        assert_eq!(found.policy, expected.policy(), "{name}");
        let tcp = config.core_transport("tcp");
        assert_eq!(
            (tcp.documented, tcp.policy),
            (DEFAULT, Policy::Documented),
            "{name}"
        );
    }
}

#[test]
fn the_failover_documents_file_steers_verbs_in_mode_reset() {
    let file = r#"{
        "max_failover_attempts": 3,
        "transports": { "rdma": {
            "rail_error_threshold": 3, "rail_error_window_secs": 10, "rail_cooldown_secs": 30 } }
    }"#;
    let Loaded {
        config,
        notes,
        effective,
    } = load(file);
    assert_eq!(effective, [], "all of it is default");
    assert_eq!(config.max_failover_attempts, 3);
    let idle = notes
        .iter()
        .filter(|note| note.contains("health/mode is not reset"));
    assert_eq!(
        idle.count(),
        if cfg!(feature = "verbs") { 3 } else { 0 },
        "{notes:?}"
    );
    let reset = file
        .replacen('{', r#"{ "health": { "mode": "reset" },"#, 1)
        .replace("3, \"rail", "2, \"rail");
    let Loaded { config, notes, .. } = load(&reset);
    assert_eq!(notes, [ALIAS]);
    let CoreHealthMode::Reset(verbs) = config.core_transport("verbs").health else {
        panic!("it was said");
    };
    let expected = ResetConfig {
        rail_error_threshold: 2,
        ..ResetConfig::DEFAULT
    };
    assert_eq!(verbs, expected);
    let tcp = config.core_transport("tcp").health;
    assert_eq!(tcp, CoreHealthMode::Reset(ResetConfig::DEFAULT));
}

#[test]
fn what_is_shown_without_its_section_is_refused_with_where_it_belongs() {
    let found = problems(r#"{ "bandwidth_learning_rate": 0.001 }"#);
    assert!(
        found.len() == 1 && found[0].contains("transports/tcp/bandwidth_learning_rate"),
        "{found:?}"
    );
}

#[test]
fn two_names_of_one_key_are_one_key() {
    let both = r#"{ "transports": { "verbs": { "rail_cooldown_secs": 3 }, "rdma": { "rail_cooldown_secs": 4 } } }"#;
    let found = problems(both);
    assert!(
        found.len() == 1
            && found[0].contains("transports/rdma/rail_cooldown_secs: says the same as")
            && found[0].contains("transports/verbs/rail_cooldown_secs"),
        "{found:?}"
    );
    // A later source wins, whatever it calls the key.
    let later = variables(&[("POLYRAIL_TRANSPORTS__VERBS__RAIL_COOLDOWN_SECS", "5")]);
    let file = r#"{ "transports": { "rdma": { "rail_cooldown_secs": 4 } } }"#;
    let loaded = Sources::new()
        .json("f", file)
        .variables(later)
        .load()
        .unwrap();
    for name in ["verbs", "rdma"] {
        let transport = loaded.config.transport(name);
        assert_eq!(transport.rail_cooldown, Duration::from_secs(5), "{name}");
    }
    let mut program = Config::default();
    let said = program.transports.entry("rdma".into()).or_default();
    said.rail_error_threshold = 9;
    assert_eq!(program.transport("verbs").rail_error_threshold, 9);
    assert_eq!(program.check(), Ok(()));
    assert!(!program.without("rdma").transport("verbs").enable);
}

#[test]
fn every_variable_of_the_other_documents_is_in_the_reference() {
    const MORI: [&str; 11] = [
        "BACKOFF_TIMEOUT_US",
        "SIGNAL_INTERVAL_WR",
        "RESUME_WATERMARK_WR",
        "EXECUTOR_ADMISSION",
        "ADMISSION_TIMEOUT_US",
        "ADMISSION_RESUME_WATERMARK_WR",
        "ADMISSION_WAIT_SLICE_US",
        "ADMISSION_CHUNK_WR",
        "ADMISSION_MAX_CHUNKS_PER_CALL",
        "SPLIT_POLICY",
        "ENABLE_EXPERIMENTAL_CAPACITY",
    ];
    const MPIB: [&str; 7] = [
        "MODE",
        "ISLAND_PREFIX_LEN",
        "SOUT_QP",
        "SUP_QP",
        "HCA_SOUT",
        "HCA_SUP",
        "OOB_IF",
    ];
    let page = reference();
    let mori = MORI.iter().map(|name| format!("| `MORI_IO_SQ_{name}` |"));
    let mpib = MPIB.iter().map(|name| format!("| `MPIB_{name}` |"));
    for row in mori.chain(mpib) {
        assert!(page.contains(&row), "{row}");
    }
}
