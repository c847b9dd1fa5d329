//! `polyrail sim`: what scripts rely on.

use crate::harness::{finish, polyrail, run};

#[test]
fn the_list_is_one_name_a_line_and_each_can_be_described() {
    let names = run("sim list").expect(0).stdout;
    assert!(names.lines().any(|name| name == "fig10-rail-fails"));
    assert!(names.lines().all(|name| !name.contains(' ')));
    let long = run("sim list --long").expect(0).stdout;
    for (name, line) in names.lines().zip(long.lines()) {
        assert!(line.starts_with(name) && line.len() > name.len(), "{line}");
    }
}

#[test]
fn a_run_is_one_json_object_with_all_fields_and_the_same_again() {
    let once = run("sim run small-requests --json --seed 5")
        .expect(0)
        .stdout;
    assert_eq!(
        once,
        run("sim run small-requests --json --seed 5")
            .expect(0)
            .stdout
    );
    let object: serde_json::Value = serde_json::from_str(&once).expect("JSON");
    let names: Vec<_> = object
        .as_object()
        .expect("an object")
        .keys()
        .cloned()
        .collect();
    let mut expected = [
        "scenario",
        "policy",
        "seed",
        "gbytes_per_sec",
        "fluid_limit_gbytes_per_sec",
        "efficiency",
        "p50_us",
        "p99_us",
        "p999_us",
        "requests",
        "failed_requests",
        "violations",
        "dips",
        "rails",
        "goodput_gbytes_per_sec",
        "max_us",
        "workloads",
    ];
    expected.sort_unstable();
    assert_eq!(names, expected);
    assert_eq!(
        (&object["seed"], &object["violations"]),
        (&5.into(), &0.into())
    );
}

#[test]
fn a_comparison_has_a_row_for_each_scenario_and_policy() {
    let table = run("sim compare small-requests fig6-gpu-tiers --policies spray,round-robin")
        .expect(0)
        .stdout;
    assert_eq!(table.lines().count(), 5, "{table}");
    let json = run("sim compare small-requests --json").expect(0).stdout;
    assert!(json.lines().all(|line| line.starts_with('{')));
}

#[test]
fn scenarios_without_rails_compare_their_settings() {
    let table = run("sim compare sq-slow-rank staged-gpu small-requests --policies spray")
        .expect(0)
        .stdout;
    // A header for each kind, and of each scenario the usual setting.
    assert_eq!(table.lines().count(), 6, "{table}");
    assert!(
        table.contains("sq-slow-rank             spray") && table.contains("8-slots"),
        "{table}"
    );
    let once = run("sim run sq-slow-rank --policy static --json")
        .expect(0)
        .stdout;
    let object: serde_json::Value = serde_json::from_str(&once).expect("JSON");
    assert_eq!(
        (&object["policy"], &object["violations"]),
        (&"static".into(), &0.into())
    );
    assert!(
        object["send_queue"]["depth_spread_works"].as_f64() > Some(0.0),
        "{once}"
    );
    // Programs that choose rails by themselves can be had on every fabric.
    run("sim run small-requests --policy least-loaded").expect(0);
    run("sim run small-requests --policy busiest")
        .expect(2)
        .names(&["spray", "capacity"]);
    // Queue-full errors are failed requests, and so the verdict is bad.
    run("sim run sq-burst-1024 --policy no-admission").expect(1);
    run("sim run sq-burst-1024 --policy fastest")
        .expect(2)
        .names(&["fastest", "no-admission"]);
    run("sim run staged-gpu --trace nowhere.json")
        .expect(2)
        .names(&["trace"]);
}

#[test]
fn a_swarm_says_how_many_seeds_were_run() {
    let told = run("sim swarm --seeds 20 --start 100").expect(0).stdout;
    assert!(told.starts_with("20 seeds from 100"), "{told}");
}

#[test]
fn many_seeds_of_a_scenario_give_a_spread() {
    let told = run("sim run small-requests --seeds 3 --seed 5")
        .expect(0)
        .stdout;
    assert!(
        told.starts_with("small-requests under spray, 3 seeds from 5"),
        "{told}"
    );
    assert!(told.contains("p99_us") && told.contains("median"), "{told}");
    let json = run("sim run small-requests --seeds 3 --seed 5 --json")
        .expect(0)
        .stdout;
    let seeds = json.lines().map(|line| {
        let object: serde_json::Value = serde_json::from_str(line).expect("JSON");
        object["seed"].as_u64()
    });
    assert_eq!(seeds.collect::<Vec<_>>(), [Some(5), Some(6), Some(7)]);
    run("sim run small-requests --seeds 0")
        .expect(2)
        .names(&["--seeds"]);
}

#[test]
fn the_arena_compares_policies_and_leaves_the_files_of_the_worst() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("worst");
    let told = run(&format!(
        "sim arena --seeds 4 --start 3 --out {}",
        out.display()
    ))
    .expect(0)
    .stdout;
    assert!(told.starts_with("4 trials of seeds 3 to 6"), "{told}");
    for seen in ["of the better of both", "≤ 1.25", "delay to", "seed 3:"] {
        assert!(told.contains(seen), "{seen}: {told}");
    }
    // A file that repeats one, which is what is printed of its seed.
    let file = std::fs::read_to_string(out.join("arena-3.toml")).expect("a file");
    let printed = run("sim arena --start 3 --print").expect(0).stdout;
    let scenario = |text: &str| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(scenario(&file), scenario(&printed));
    run(&format!(
        "sim compare {}",
        out.join("arena-3.toml").display()
    ))
    .names(&[]);
    let json = run("sim arena --seeds 2 --json").expect(0).stdout;
    assert_eq!(json.lines().count(), 3);
    for line in json.lines() {
        let object: serde_json::Value = serde_json::from_str(line).expect("JSON");
        assert!(object["of_both"].is_number() || object["of_both"]["median"].is_number());
    }
}

#[test]
fn the_arena_s_bounds_are_a_verdict() {
    run("sim arena --seeds 2 --at-least 0,0,0,0").expect(0);
    run("sim arena --seeds 2 --at-least 1.1,0,0,0")
        .expect(1)
        .names(&["median", "1.1"]);
    run("sim arena --seeds 2 --at-least 0.9")
        .expect(2)
        .names(&["four numbers"]);
    run("sim arena --seeds 2 --feature nonsense")
        .expect(2)
        .names(&["feature"]);
}

#[test]
fn a_run_leaves_a_page_and_a_trace() {
    let dir = tempfile::tempdir().expect("a folder");
    let (page, trace) = (dir.path().join("page.html"), dir.path().join("trace.json"));
    let flags = format!("--html {} --trace {}", page.display(), trace.display());
    run(&format!("sim run small-requests {flags}")).expect(0);
    let page = std::fs::read_to_string(page).expect("a page");
    for policy in [
        "spray",
        "round-robin",
        "documented",
        "fixed-tier1",
        "best-two",
    ] {
        assert!(page.contains(policy), "{policy}");
    }
    let trace = std::fs::read_to_string(trace).expect("a trace");
    let trace: serde_json::Value = serde_json::from_str(&trace).expect("JSON");
    assert!(trace["traceEvents"].as_array().expect("events").len() > 1_000);
    run("sim run small-requests --html /nowhere/page.html")
        .expect(3)
        .names(&["/nowhere"]);
}

#[test]
fn the_guide_s_file_and_commands_are_right() {
    let guide = include_str!("../../../../docs/simulator.md");
    let blocks = |language: &'static str| {
        let parts = guide.split("```").skip(1).step_by(2);
        parts.filter_map(move |block| block.strip_prefix(language))
    };
    let dir = tempfile::tempdir().expect("a folder");
    let file: String = blocks("toml\n").collect();
    std::fs::write(dir.path().join("mine.toml"), file).expect("a file");
    let mut commands = 0;
    for line in blocks("sh\n").map(str::trim) {
        let words = line.strip_prefix("polyrail ").expect("our program");
        let mut command = polyrail(words);
        let child = command.current_dir(dir.path()).spawn();
        finish(child.expect("the program starts"), line).expect(0);
        commands += 1;
    }
    assert_eq!(commands, 4);
    let page = std::fs::read_to_string(dir.path().join("mine.html")).expect("a page");
    // Both faults are in the picture, and so is what the engine made of one of them.
    for seen in ["× 0.2", "silent", "paused"] {
        assert!(page.contains(&format!("<title>{seen}</title>")), "{seen}");
    }
    assert!(dir.path().join("mine.json").exists());
}

#[test]
fn a_wrong_file_is_a_usage_error_with_its_line() {
    let path = std::env::temp_dir().join(format!("polyrail-sim-{}.toml", std::process::id()));
    let file = path.to_str().expect("a path in UTF-8");
    // (content, what the error names)
    let cases = [
        (
            "name = \"x\"\nduration_ms = 1\nspeed = 3\n",
            ["line 3", "speed"],
        ),
        (
            "name = \"x\"\nduration_ms = 1\nhost = [{ name = \"a\" }]\ndevice = []\nrail = []\nworkload = [{ from = \"a\", to = \"b\", op = \"write\", block = 1 }]\n",
            ["line 6", "no host"],
        ),
    ];
    for (content, parts) in cases {
        std::fs::write(&path, content).expect("a file");
        run(&format!("sim run {file}")).expect(2).names(&parts);
    }
    std::fs::remove_file(&path).expect("the file");
}

#[test]
fn a_figure_is_a_page_and_its_points() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("made");
    let folder = folder.to_str().expect("a path in UTF-8");
    run(&format!("sim figures {folder} --only 11"))
        .expect(2)
        .names(&["--only 11", "9-batches"]);
    let told = run(&format!("sim figures {folder} --only 6"))
        .expect(0)
        .stdout;
    assert!(told.contains("holds      Small blocks stay"), "{told}");
    let read = |kind: &str| std::fs::read_to_string(format!("{folder}/figure-6.{kind}"));
    let page = read("html").expect("a page");
    assert!(page.contains("near rail") && page.contains("<svg"));
    let points = read("csv").expect("its points");
    // Three charts, four policies, seven sizes.
    assert_eq!(points.lines().count(), 1 + 3 * 4 * 7);
}

#[test]
fn all_orders_without_faults_are_counted() {
    let told = run("sim exhaust --faults 0").expect(0).stdout;
    assert!(
        told.contains(" states, ") && told.contains("fence: remote"),
        "{told}"
    );
}
