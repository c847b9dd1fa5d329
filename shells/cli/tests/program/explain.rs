//! `explain`: which way a transfer would take.

use serde_json::Value;

use crate::harness::{Target, run};

fn explained(line: &str) -> Value {
    let text = run(&format!("explain {line} --json")).expect(0).stdout;
    serde_json::from_str(&text).expect("one object")
}

fn choice<'a>(explained: &'a Value, transport: &str) -> &'a Value {
    let mut all = explained["transports"].as_array().expect("a list").iter();
    let found = all.find(|choice| choice["transport"] == transport);
    found.unwrap_or_else(|| panic!("no {transport} in {explained}"))
}

#[test]
fn memory_of_this_host_is_reached_by_sharing_it_and_over_the_network_if_that_fails() {
    let target = Target::start("--name node-7 --memory 16MiB");
    let to = format!("{}/mem", target.address());
    let found = explained(&format!("--to {to} --length 16MiB"));
    assert_eq!(
        (&found["peer"], &found["staged"]),
        (&"node-7".into(), &false.into())
    );
    assert_eq!(
        (&found["length"], &found["slices"]),
        (&(16 << 20).into(), &256.into())
    );
    let shm = choice(&found, "shm");
    assert_eq!(
        (&shm["turn"], &shm["rails"][0]["used"]),
        (&0.into(), &true.into())
    );
    let tcp = choice(&found, "tcp");
    assert_eq!(
        (&tcp["turn"], &tcp["rails"][0]["used"]),
        (&1.into(), &false.into())
    );
    for own in ["uring", "pread"] {
        let choice = choice(&found, own);
        assert_eq!(choice["turn"], Value::Null, "{choice}");
        assert!(
            choice["why"].as_str().is_some_and(|why| !why.is_empty()),
            "{choice}"
        );
    }
    // And the same for people.
    let text = run(&format!("explain --to {to} --length 16MiB"))
        .expect(0)
        .stdout;
    for part in [
        "16MiB to ",
        "in 256 slices",
        "used    shm",
        "next 1  tcp",
        "unused  uring",
        "tier 0, healthy",
    ] {
        assert!(text.contains(part), "no {part} in {text}");
    }
}

#[test]
fn rails_that_are_asked_for_are_those_that_would_be_used() {
    let target = Target::start("--memory 1MiB --rails 127.0.0.1,127.0.0.2");
    let to = format!("{}/mem", target.address());
    let found = explained(&format!(
        "--from 127.0.0.1,127.0.0.2 --to {to} --length 1MiB"
    ));
    let rails = choice(&found, "tcp")["rails"].as_array().expect("a list");
    let used = rails.iter().filter(|rail| rail["used"] == true);
    let used: Vec<_> = used
        .map(|rail| rail["rail"].as_str().unwrap_or(""))
        .collect();
    assert_eq!(used, ["tcp:127.0.0.1>127.0.0.1", "tcp:127.0.0.2>127.0.0.2"]);
    // The flag leaves out what runs over no rail, and that is said.
    let shm = choice(&found, "shm");
    assert_eq!(shm["turn"], Value::Null, "{shm}");
    assert_eq!(shm["why"], "switched off in this engine's configuration");
}

#[test]
fn a_file_is_reached_through_slots() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    std::fs::write(&path, vec![7; 1 << 20]).expect("a file");
    let target = Target::start(&format!("--memory 1MiB --file {}", path.display()));
    let found = explained(&format!("--to {}/file --length 1MiB", target.address()));
    assert_eq!(found["staged"], true);
    assert_eq!(choice(&found, "shm")["turn"], 0);
}

#[test]
fn without_a_target_it_says_what_this_end_has_and_a_bad_question_is_named() {
    let here = explained("");
    assert_eq!(choice(&here, "tcp")["why"], "to be had here");
    let target = Target::start("--memory 1MiB");
    let at = target.address();
    // (words, exit code, what is named)
    let cases = [
        (format!("--to {at}"), 2, "HOST:PORT/SEGMENT"),
        (format!("--to {at}/none"), 2, "none"),
        (format!("--to {at}/mem --length 2MiB"), 2, "1048576 bytes"),
        ("--to 127.0.0.1:1/mem".to_owned(), 3, "127.0.0.1:1"),
        (format!("--from 192.0.2.1 --to {at}/mem"), 3, "192.0.2.1"),
    ];
    for (words, code, named) in cases {
        run(&format!("explain {words}"))
            .expect(code)
            .names(&[named]);
    }
}
