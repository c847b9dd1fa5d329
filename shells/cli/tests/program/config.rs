//! Configuration: `check-config`, and `--config` and the environment where an engine is started.

use std::path::PathBuf;

use crate::harness::{Ended, Target, finish, polyrail, run};

/// A file that is gone with the test.
struct ConfigFile(PathBuf);

impl ConfigFile {
    fn new(name: &str, content: &str) -> Self {
        let name = format!("polyrail-config-{name}-{}.json", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, content).expect("a file");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a path in UTF-8")
    }
}

impl Drop for ConfigFile {
    fn drop(&mut self) {
        // A test that fails has other worries.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs the program with environment variables.
fn run_with(line: &str, variables: &[(&str, &str)]) -> Ended {
    let mut command = polyrail(line);
    let child = command.envs(variables.iter().copied()).spawn();
    finish(child.expect("the program starts"), line)
}

#[test]
fn every_problem_is_printed_with_its_place_and_the_exit_code_is_2() {
    let file = ConfigFile::new(
        "bad",
        "{\n  \"polcy\": \"spray\",\n  \"workers\": \"two\",\n  \"transports\": { \"tcp\": {\n    \
         \"rail_cooldown_secs\": 0 } }\n}\n",
    );
    let path = file.path();
    let ended = run(&format!("check-config {path}")).expect(2);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let expected = [
        format!("{path}:2:4: polcy: unknown key; the nearest known one is policy"),
        format!(
            "{path}:3:4: workers: \"two\" is a string; give a whole number of threads from 0 to 64"
        ),
        format!(
            "{path}:5:6: transports/tcp/rail_cooldown_secs: 0 is not possible; give a whole number of s \
             from 1 to 300"
        ),
    ];
    assert_eq!(lines, expected);
    ended.names(&["3 problems", path]);
    // Whoever starts an engine with it hears the same.
    for line in ["serve", "bench", "demo"] {
        let ended = run(&format!("{line} --config {path}")).expect(2);
        ended.names(&[&expected[0], &expected[1], &expected[2]]);
    }
}

#[test]
fn a_good_file_shows_what_differs_from_the_defaults() {
    let file = ConfigFile::new(
        "good",
        r#"{ "workers": 0, "health": { "fence_timeout_ms": 700 }, "transports": { "rdma": { "rail_cooldown_secs": 9 } } }"#,
    );
    let path = file.path();
    let variables = [("POLYRAIL_TRANSPORTS__TCP__RAIL_COOLDOWN_SECS", "10")];
    let ended = run_with(&format!("check-config {path}"), &variables).expect(0);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let mut expected = vec![
        format!("health/fence_timeout_ms = 700 (default 2000), from {path}:1:30"),
        "transports/tcp/rail_cooldown_secs = 10 (default 30), from environment \
         POLYRAIL_TRANSPORTS__TCP__RAIL_COOLDOWN_SECS"
            .to_owned(),
        format!("transports/verbs/rail_cooldown_secs = 9 (default 30), from {path}:1:83"),
        "note: transports/rdma is transports/verbs under its other name".to_owned(),
        "note: environment POLYRAIL_TRANSPORTS__TCP__RAIL_COOLDOWN_SECS: transports/tcp/rail_cooldown_secs \
         steers nothing: health/mode is not reset"
            .to_owned(),
    ];
    match cfg!(feature = "verbs") {
        true => expected.push(format!(
            "note: {path}:1:83: transports/rdma/rail_cooldown_secs steers nothing: health/mode is not reset"
        )),
        false => expected.insert(
            4,
            "note: transport verbs is not built into this program: what is said under transports/verbs steers \
             nothing"
                .to_owned(),
        ),
    }
    expected.push("ok".to_owned());
    assert_eq!(lines, expected);
}

#[test]
fn what_keeps_a_target_from_starting_on_this_host_is_noted() {
    let open = r#"{ "listen": "10.0.0.2:7000", "security": { "key_file": "/no/such.key" } }"#;
    let file = ConfigFile::new("hindered", open);
    let ended = run(&format!("check-config {}", file.path())).expect(0);
    for part in [
        "note: 10.0.0.2 is beyond",
        "--insecure",
        "note: no engine starts",
        "/no/such.key",
    ] {
        assert!(ended.stdout.contains(part), "{part}: {}", ended.stdout);
    }
}

#[test]
fn a_file_that_is_not_there_is_a_usage_error() {
    for line in ["check-config", "serve --config", "bench --config"] {
        let ended = run(&format!("{line} /no/such/file.json")).expect(2);
        let text = ended.stdout + &ended.stderr;
        assert!(
            text.contains("/no/such/file.json: cannot be opened"),
            "{text}"
        );
    }
}

#[test]
fn the_reference_is_the_committed_page() {
    let committed = include_str!("../../../../docs/config.md");
    assert!(run("check-config --reference").expect(0).stdout == committed);
}

/// The policy that `bench` says it measured.
fn policy(flags: &str, variables: &[(&str, &str)]) -> String {
    let line = format!("bench --buffer 1MiB --seconds 0.05 --json {flags}");
    let ended = run_with(&line, variables).expect(0);
    let cell: serde_json::Value = serde_json::from_str(&ended.stdout).expect("one object");
    cell["policy"].as_str().expect("a word").to_owned()
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let file = ConfigFile::new("order", r#"{ "policy": "documented" }"#);
    let baseline = ConfigFile::new(
        "baseline",
        r#"{ "transports": { "tcp": { "enable_smart_scheduling": false } } }"#,
    );
    let (documented, baseline) = (
        format!("--config {}", file.path()),
        format!("--config {}", baseline.path()),
    );
    let environment = [("POLYRAIL_POLICY", "round-robin")];
    // (flags, environment, policy)
    type Variables<'a> = &'a [(&'a str, &'a str)];
    let tcp = format!("{baseline} --rails 127.0.0.1");
    let cases: [(&str, Variables<'_>, &str); 6] = [
        (&documented, &[], "documented"),
        (&documented, &environment, "round-robin"),
        (
            &format!("{documented} --policy spray"),
            &environment,
            "spray",
        ),
        (&tcp, &[], "round-robin"),
        (&format!("{tcp} --policy spray"), &[], "spray"),
        // It is said of tcp, and shm carries the bytes.
        (&baseline, &[], "spray"),
    ];
    for (flags, variables, expected) in cases {
        assert_eq!(policy(flags, variables), expected, "{flags} {variables:?}");
    }
}

#[test]
fn a_target_takes_its_name_and_address_from_the_file_unless_flags_say_otherwise() {
    let file = ConfigFile::new(
        "serve",
        r#"{ "name": "from-file", "listen": "127.0.0.2:0" }"#,
    );
    let target = Target::start(&format!("--memory 1MiB --config {}", file.path()));
    assert!(
        target.line.starts_with("listening 127.0.0.2:") && target.line.contains("name=from-file"),
        "{target:?}"
    );
    let flags = "--name by-flag --listen 127.0.0.3:0 --memory 1MiB";
    let target = Target::start(&format!("{flags} --config {}", file.path()));
    assert!(
        target.line.starts_with("listening 127.0.0.3:") && target.line.contains("name=by-flag"),
        "{target:?}"
    );
    let beyond = ConfigFile::new("beyond", r#"{ "listen": "0.0.0.0:0" }"#);
    run(&format!("serve --config {}", beyond.path()))
        .expect(2)
        .names(&["0.0.0.0", "--insecure"]);
}
