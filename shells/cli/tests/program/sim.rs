//! `polyrail sim`: what scripts rely on.

use std::collections::BTreeSet;

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
    let expected = [
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
    let missing = expected.iter().find(|name| object.get(name).is_none());
    assert_eq!(missing, None, "scripts rely on it");
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
    // (flags, what the error names)
    let wrong = [
        ("--seeds 0", "--seeds"),
        ("--seeds 3..1", "1 is before 3"),
        ("--seeds 1..3 --seed 5", "--seed"),
        ("--seeds 3 --html x.html", "--html"),
    ];
    for (flags, part) in wrong {
        run(&format!("sim run small-requests {flags}"))
            .expect(2)
            .names(&[part]);
    }
}

/// Its header, and its rows.
fn csv(text: &str) -> (Vec<&str>, Vec<Vec<&str>>) {
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    (lines.next().expect("a header"), lines.collect())
}

#[test]
fn a_sweep_is_a_row_for_each_value_and_seed() {
    let line =
        "sim run slowed-rail --set duration_ms=40 --set fault.0.factor=0.05,0.5 --seeds 1..3 --csv";
    let told = run(line).expect(0).stdout;
    let (header, rows) = csv(&told);
    let place = |name: &str| {
        header
            .iter()
            .position(|column| *column == name)
            .expect(name)
    };
    let cell = |row: &Vec<&str>, name: &str| row[place(name)].to_owned();
    let of = |row: &Vec<&str>| (cell(row, "fault.0.factor"), cell(row, "seed"));
    let expected = ["0.05", "0.5"]
        .map(|factor| ["1", "2", "3"].map(|seed| (factor.to_owned(), seed.to_owned())));
    assert_eq!(rows.iter().map(of).collect::<Vec<_>>(), expected.concat());
    // What was set is what was run: a rail that is slower leaves less to be reached.
    let limit = |row: &Vec<&str>| {
        cell(row, "fluid_limit_gbytes_per_sec")
            .parse::<f64>()
            .expect("a number")
    };
    assert!(limit(&rows[0]) < limit(&rows[3]), "{told}");
    assert!(rows.iter().all(|row| row.len() == header.len()));
    // Each row is what the run by itself says.
    let alone =
        run("sim run slowed-rail --set duration_ms=40 --set fault.0.factor=0.5 --seed 2 --json")
            .expect(0)
            .stdout;
    let alone: serde_json::Value = serde_json::from_str(&alone).expect("JSON");
    for name in ["gbytes_per_sec", "p99_us", "max_us", "requests"] {
        let number = cell(&rows[4], name).parse::<f64>().ok();
        assert_eq!(alone[name].as_f64(), number, "{name}");
    }
    assert_eq!(alone["set"]["fault.0.factor"], 0.5);
}

#[test]
fn a_comparison_can_be_a_sweep() {
    let line = "sim compare small-requests --policies spray,round-robin --set workload.0.threads=1,2 --seeds 2 --csv";
    let told = run(line).expect(0).stdout;
    let (header, rows) = csv(&told);
    assert_eq!(
        header[..4],
        ["scenario", "policy", "seed", "workload.0.threads"]
    );
    let keys: Vec<_> = rows.iter().map(|row| (row[1], row[3])).collect();
    for key in [
        ("spray", "1"),
        ("round-robin", "1"),
        ("spray", "2"),
        ("round-robin", "2"),
    ] {
        assert_eq!(
            keys.iter().filter(|other| **other == key).count(),
            2,
            "{key:?}"
        );
    }
    // For people: a table for each value, or a spread for each cell.
    let tables = run("sim compare small-requests --policies spray --set workload.0.threads=1,2")
        .expect(0)
        .stdout;
    assert!(tables.contains("workload.0.threads=2\n"), "{tables}");
    let spreads =
        run("sim compare small-requests --policies spray --set workload.0.threads=1,2 --seeds 2")
            .expect(0)
            .stdout;
    assert!(
        spreads.contains("2 seeds from 1, workload.0.threads=2"),
        "{spreads}"
    );
}

#[test]
fn what_cannot_be_set_is_named_with_what_would_be_right() {
    // (what is set, what the error names)
    let cases: [(&str, &[&str]); 6] = [
        (
            "fault.0.factr=1",
            &["--set fault.0.factr=1", "the nearest known one is factor"],
        ),
        (
            "falt.0.factor=1",
            &["falt.0.factor", "the nearest known one is fault"],
        ),
        ("fault.7.factor=1", &["fault.7.factor", "fault.0"]),
        (
            "fault.0.factor=little",
            &["fault.0.factor=little", "expected a number"],
        ),
        (
            "device.0.rate_gbits_per_sec=0",
            &[
                "device.0.rate_gbits_per_sec=0",
                "`rate_gbits_per_sec = 0`",
                "0.001 to 100000",
            ],
        ),
        ("fault.0.factor", &["PATH=VALUE"]),
    ];
    for (set, parts) in cases {
        run(&format!("sim run slowed-rail --set {set}"))
            .expect(2)
            .names(parts);
    }
}

/// The paths of all values of a JSON object, those of arrays with `[]`.
fn paths(value: &serde_json::Value, here: &str, found: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                let path = match here {
                    "" => name.clone(),
                    _ => format!("{here}.{name}"),
                };
                paths(value, &path, found);
            }
        }
        serde_json::Value::Array(rows) => {
            found.insert(here.to_owned());
            for row in rows.iter().filter(|row| row.is_object()) {
                paths(row, &format!("{here}[]"), found);
            }
        }
        _ => {
            found.insert(here.to_owned());
        }
    }
}

#[test]
fn the_guide_explains_every_column_and_field_and_no_others() {
    let guide = include_str!("../../../../docs/simulator.md");
    let section = guide
        .split("## What the columns mean")
        .nth(1)
        .expect("the section");
    let section = section.split("\n## ").next().expect("its end");
    let cells = |place: usize| -> BTreeSet<String> {
        let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
        let cells = rows.map(|row| row.split('|').nth(place).unwrap_or_default());
        cells
            .flat_map(|cell| cell.split('`').skip(1).step_by(2))
            .map(str::to_owned)
            .collect()
    };
    let columns = polyrail_sim::report::tables()
        .into_iter()
        .flat_map(|table| table.1);
    assert_eq!(cells(1), columns.map(str::to_owned).collect());

    let one_value = "sim run slowed-rail --set fault.0.factor=0.5";
    let header = run(&format!("{one_value} --csv")).expect(0).stdout;
    let header = header
        .lines()
        .next()
        .expect("a header")
        .replace("fault.0.factor,", "");
    assert!(
        section.contains(&format!("```csv\n{header}\n```")),
        "{header}"
    );

    let mut found = BTreeSet::new();
    // Between them they have all: what was set, a rail that came back, a dip, send queues, staging.
    for line in [
        "silent-rail --set name=silent",
        "sq-slow-rank",
        "staged-gpu",
    ] {
        let told = run(&format!("sim run {line} --json")).expect(0).stdout;
        paths(&serde_json::from_str(&told).expect("JSON"), "", &mut found);
    }
    found.remove("set.name");
    found.insert("set".to_owned());
    found.extend(header.split(',').map(str::to_owned));
    assert_eq!(cells(2), found);
}

#[test]
fn what_the_charts_draw_is_in_the_json_and_has_bounds() {
    let told = run("sim run silent-rail --json").expect(0).stdout;
    let object: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let timeline = object["timeline"].as_array().expect("a timeline");
    let rails = object["rails"].as_array().expect("rails");
    assert!((20..=200).contains(&timeline.len()), "{}", timeline.len());
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    for moment in timeline {
        let parts = moment["rails"].as_array().expect("rails");
        assert_eq!(parts.len(), rails.len());
        let sum: f64 = parts.iter().map(number).sum();
        assert!(
            (sum - number(&moment["gbytes_per_sec"])).abs() < 0.01,
            "{moment}"
        );
    }
    // The rail that is silent is seen to carry nothing meanwhile, to be paused, and to come back.
    let fault = &object["faults"][0];
    let place = rails
        .iter()
        .position(|rail| rail["rail"] == fault["rail"])
        .expect("it has a row");
    let within = |moment: &&serde_json::Value| {
        let ms = number(&moment["ms"]);
        ms > number(&fault["from_ms"]) && ms + 2.0 < number(&fault["to_ms"])
    };
    let silent: Vec<_> = timeline.iter().filter(within).collect();
    assert!(
        !silent.is_empty()
            && silent
                .iter()
                .all(|moment| number(&moment["rails"][place]) == 0.0)
    );
    let states = object["states"].as_array().expect("states");
    assert!(
        states
            .iter()
            .any(|row| row["rail"] == fault["rail"] && row["state"] == "paused")
    );
    assert!(number(&object["returns"][0]["found_ms"]) > 0.0);
    // Many rails have fewer spans, not a longer line.
    let told = run("sim run sixty-four-rails --set duration_ms=4 --json")
        .expect(0)
        .stdout;
    assert!(told.len() < 200_000, "{}", told.len());
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
        // Two seeds show that the command is right.
        let words = words.replace("--seeds 1..20", "--seeds 1..2");
        let mut command = polyrail(&words);
        let child = command.current_dir(dir.path()).spawn();
        finish(child.expect("the program starts"), line).expect(0);
        commands += 1;
    }
    assert_eq!(commands, 6);
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
            ["line 3", "unknown key speed; the nearest known one is seed"],
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
