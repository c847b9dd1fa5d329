//! Flight recordings: left by real processes, replayed by another one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use polyrail_record::{Call, Reader, Recorder, Step};
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{BOUND, Target, finish, polyrail, run};

/// A folder that ends with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Relaxed);
        let name = format!("polyrail-record-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn text(&self) -> &str {
        self.0.to_str().expect("a path in UTF-8")
    }

    fn file(&self, name: &str) -> String {
        format!("{}/{name}.flight", self.text())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It is not there if the test failed early.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn json(file: &str, code: i32) -> Value {
    let ended = run(&format!("sim replay {file} --json")).expect(code);
    serde_json::from_str(&ended.stdout).expect("JSON")
}

#[test]
fn a_demonstration_with_a_cut_rail_is_replayed_to_the_same_answers() {
    let folder = Folder::new();
    let demo = run(&format!("demo --seconds 2 --record {}", folder.text())).expect(0);
    let file = folder.file("demo");
    assert!(demo.stdout.contains(&file), "{demo:?}");
    let text = run(&format!("sim replay {file}")).expect(0).stdout;
    let cut = "tcp:127.0.0.3>127.0.0.3 is paused: no completion in time";
    for part in ["engine \"demo\"", "Completed", cut, "longest silence"] {
        assert!(text.contains(part), "\"{part}\" is not in {text}");
    }
    assert!(text.ends_with("equal: core gives the same answers, byte for byte\n"));
    let events = run(&format!("sim replay {file} --events")).expect(0).stdout;
    let lines = events.lines().filter(|line| line.contains("worker 0"));
    assert!(lines.count() > 10 && events.contains(cut), "{events}");
    draws_all(&folder, &file);
}

/// The trace of that recording has what the replay counts, and shows what happened to the rail.
fn draws_all(folder: &Folder, file: &str) {
    let path = format!("{}/trace.json", folder.text());
    let line = format!("sim replay {file} --json --trace {path}");
    let replay: Value = serde_json::from_str(&run(&line).expect(0).stdout).expect("JSON");
    let trace = fs::read_to_string(&path).expect("a trace");
    let trace: Value = serde_json::from_str(&trace).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    let track = |event: &Value| (event["pid"].as_u64(), event["tid"].as_u64());
    let named: BTreeMap<_, _> = (events.iter())
        .filter(|event| event["name"] == "thread_name")
        .map(|event| {
            (
                track(event),
                event["args"]["name"].as_str().expect("a name"),
            )
        })
        .collect();
    let spans = |cat: &'static str| {
        let spans = events.iter().filter(|event| event["ph"] == "X");
        spans.filter(move |event| event["cat"] == cat)
    };
    let number = |value: &Value| value.as_f64().expect("a number");
    let mut ended: BTreeMap<_, f64> = BTreeMap::new();
    for span in events.iter().filter(|event| event["ph"] == "X") {
        assert!(
            number(&span["dur"]) >= 0.0 && named.contains_key(&track(span)),
            "{span}"
        );
        // Nothing of one track overlaps.
        let end = ended.entry(track(span)).or_insert(0.0);
        assert!(number(&span["ts"]) >= *end - 1e-3, "{span} before {end}");
        *end = number(&span["ts"]) + number(&span["dur"]);
    }
    assert_eq!(
        spans("request").count() as u64,
        replay["requests"].as_u64().expect("a count")
    );
    for rail in replay["rails"].as_array().expect("rails") {
        let name = rail["rail"].as_str().expect("a name");
        let of_rail = spans("slice").filter(|span| named[&track(span)].ends_with(name));
        let good = of_rail.filter(|span| span["name"] == "slice");
        let bytes: f64 = good.map(|span| number(&span["args"]["bytes"])).sum();
        assert_eq!(bytes, number(&rail["done_bytes"]), "{name}");
    }
    let cut = "tcp:127.0.0.3>127.0.0.3";
    let is_pause = |span: &&Value| {
        named[&track(span)] == format!("state of {cut}")
            && span["name"] == "paused: no completion in time"
    };
    let paused = spans("rail").find(is_pause).expect("the rail was paused");
    // While it was, nothing of a request arrived over it; its lane was fenced.
    let of_lane = |span: &&Value, what: &str| named[&track(span)] == format!("{what} on {cut}");
    let from = number(&paused["ts"]);
    let to = from + number(&paused["dur"]);
    let arrived = |span: &&Value| {
        let at = number(&span["ts"]) + number(&span["dur"]);
        of_lane(span, "slices") && span["name"] == "slice" && from < at && at < to
    };
    assert!(to > from);
    assert_eq!(spans("slice").find(arrived), None);
    let fence = |span: &&Value| {
        of_lane(span, "lane")
            && span["name"]
                .as_str()
                .is_some_and(|name| name.starts_with("fence of epoch"))
    };
    assert!(spans("lane").any(|span| fence(&span)));
    assert!(trace["otherData"]["note"].is_null());
}

#[test]
fn what_a_target_did_is_recorded_until_its_end() {
    let folder = Folder::new();
    let target = Target::start(&format!(
        "--name there --memory 1M --record {}",
        folder.text()
    ));
    let line = format!(
        "bench --target {} --seconds 0.1 --buffer 1M",
        target.address()
    );
    run(&line).expect(0);
    target.end(Signal::TERM).expect(0);
    let replay = json(&folder.file("there"), 0);
    assert_eq!(replay["equal"], true);
    assert_eq!(replay["complete"], true);
    assert_eq!(
        (&replay["engine"], &replay["requests"]),
        (&"there".into(), &0.into())
    );
}

#[test]
fn the_recording_of_a_killed_process_is_good_as_far_as_it_goes() {
    let folder = Folder::new();
    let line = format!("bench --seconds 60 --buffer 4M --record {}", folder.text());
    let mut child = polyrail(&line).spawn().expect("the program starts");
    let file = folder.file("bench");
    let until = Instant::now() + BOUND;
    while fs::metadata(&file).map_or(0, |file| file.len()) < 200_000 {
        assert!(Instant::now() < until, "nothing is recorded");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    child.kill().expect("a child can be killed");
    finish(child, &line);
    let replay = json(&file, 0);
    assert_eq!(
        (&replay["equal"], &replay["complete"]),
        (&true.into(), &false.into())
    );
    assert!(replay["slices"].as_u64() > Some(100), "{replay}");
    let text = run(&format!("sim replay {file}")).expect(0).stdout;
    assert!(
        text.contains(&format!("breaks off at byte {}", replay["bytes"])),
        "{text}"
    );
}

#[test]
fn what_was_changed_is_found() {
    let folder = Folder::new();
    // Over TCP: most of what passes in memory of one host the submitting thread copies, and core sees it end at once.
    let line = format!(
        "bench --seconds 0.1 --buffer 1M --rails 127.0.0.1 --record {}",
        folder.text()
    );
    run(&line).expect(0);
    let file = folder.file("bench");
    assert_eq!(json(&file, 0)["difference"], Value::Null);

    let changed = without_the_third_completion(Path::new(&file), &folder.0);
    let found = run(&format!("sim replay {changed}")).expect(1);
    let replay = json(&changed, 1);
    let (call, at) = (
        &replay["difference"]["call"],
        &replay["difference"]["offset"],
    );
    let found = found.names(&[&format!("at call {call}, byte {at}")]);
    for part in ["different: call", "recorded", "now"] {
        assert!(found.stdout.contains(part), "{found:?}");
    }

    let mut bytes = fs::read(&file).expect("the recording");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    // (what is in the file, what the error names)
    let cases: [(&[u8], &str); 4] = [
        (&bytes, "is not what was written"),
        (&bytes[..9], "breaks off at byte 0"),
        (b"name = \"x\"", "not a flight recording"),
        (b"", "breaks off at byte 0"),
    ];
    let bad = folder.file("bad");
    for (content, part) in cases {
        fs::write(&bad, content).expect("a file");
        run(&format!("sim replay {bad}"))
            .expect(2)
            .names(&["bad.flight", part]);
    }
    run("sim replay /nowhere.flight")
        .expect(2)
        .names(&["/nowhere.flight"]);
    run(&format!("sim replay {bad} --json --events")).expect(2);
}

/// A copy that lacks one call.
fn without_the_third_completion(file: &Path, folder: &Path) -> String {
    let input = BufReader::new(File::open(file).expect("the recording"));
    let mut reader = Reader::new(input).expect("a recording");
    let copy = Recorder::create(folder, reader.header()).expect("a file");
    let mut completions = 0;
    while let Some(entry) = reader.next_entry().expect("a call") {
        if let Step::Worker(_, Call::HandleCompletions { .. }) = entry.step {
            completions += 1;
            if completions == 3 {
                continue;
            }
        }
        copy.note(&entry.step, &entry.answer);
    }
    copy.path().display().to_string()
}

/// All else that its engine warns of `bench` leaves out.
#[test]
fn bench_names_the_file_with_its_last_calls_although_nobody_asked_for_a_log() {
    let folder = Folder::new();
    let target = Target::start("--memory 16MiB --metrics 127.0.0.1:0");
    let at = target.metrics.clone().expect("it says where");
    let line = format!(
        "bench --target {} --seconds 60 --buffer 4M --rails 127.0.0.1",
        target.address()
    );
    let mut command = polyrail(&line);
    command
        .env("POLYRAIL_RECORDING__RING_MB", "4")
        .env("POLYRAIL_RECORDING__FOLDER", folder.text());
    let child = command.spawn().expect("the program starts");
    let until = Instant::now() + BOUND;
    loop {
        let text = run(&format!("top {at} --once --json")).expect(0).stdout;
        let stats: Value = serde_json::from_str(&text).expect("one object");
        if stats["sessions"][0]["bytes"].as_u64() > Some(0) {
            break;
        }
        assert!(Instant::now() < until, "nothing moves: {stats}");
    }
    target.end(Signal::KILL);
    let ended = finish(child, &line).expect(3);
    // The program's own words are not its engine's.
    let lines = ended.stderr.lines().filter(|line| line.contains("WARN"));
    let mut lines = lines.filter(|line| !line.contains(" polyrail_cli::"));
    let warning = lines.next().expect("it is warned of");
    let (_, from) = warning
        .split_once("the last calls on core are in ")
        .expect("it names the file");
    let (file, _) = from.split_once(';').expect("more is said of it");
    assert_eq!(lines.next(), None, "{ended:?}");
    assert_eq!(json(file, 0)["equal"], true);
}

#[test]
fn a_recording_that_cannot_be_left_is_an_error_of_the_environment() {
    let folder = Folder::new();
    fs::write(&folder.0, "a file").expect("a file");
    for command in ["serve --record", "bench --seconds 0.1 --record"] {
        let line = format!("{command} {}", folder.text());
        run(&line).expect(3).names(&[folder.text()]);
    }
    fs::remove_file(&folder.0).expect("the file");
}
