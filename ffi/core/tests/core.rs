//! The header, and a runtime in C around core.
//!
//! `include/polyrail_core.h` is what cbindgen makes of the sources. To make it anew:
//!
//! ```text
//! POLYRAIL_BLESS=1 cargo test -p polyrail-core-ffi
//! ```

#[path = "../../tests/generated/mod.rs"]
mod generated;

use std::path::PathBuf;
use std::process::Command;

/// The sources, in the order in which the header tells of them.
const SOURCES: [&str; 8] = [
    "memory", "fabric", "worker", "plan", "requests", "facts", "polls", "contract",
];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_header_is_what_the_sources_make() {
    generated::check(&folder(), "include/polyrail_core.h", &SOURCES);
}

/// The library that cargo has built for this test: the newest one, because older ones are of older sources.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = std::fs::read_dir(test.parent().unwrap()).unwrap();
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libpolyrail_core_ffi-") && name.ends_with(".a")
    };
    let built = built.map(|entry| entry.unwrap().path()).filter(is_ours);
    let age = |path: &PathBuf| std::fs::metadata(path).unwrap().modified().unwrap();
    built
        .max_by_key(age)
        .expect("cargo builds it for this test")
}

/// A program in C, built with the header and the library, in a folder of its own.
struct Program(tempfile::TempDir);

impl Program {
    fn new(source: &str) -> Self {
        let program = Self(tempfile::tempdir().unwrap());
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let mut build = Command::new(compiler);
        build
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-I"])
            .arg(folder().join("include"))
            .arg(folder().join(source))
            .arg(library())
            .args(["-lpthread", "-ldl", "-lm", "-o"])
            .arg(program.path());
        let compiled = build.output().unwrap();
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{build:?}: {said}");
        program
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("program")
    }

    /// What it says. It has to end well.
    fn says(&self, arguments: &[&str]) -> String {
        let ran = Command::new(self.path()).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(
            ran.status.success(),
            "{arguments:?}: {}: {said}",
            ran.status
        );
        said
    }
}

#[test]
fn an_answer_to_the_wrong_post_or_too_late_is_an_error_and_stops_nothing() {
    assert_eq!(Program::new("tests/answers.c").says(&[]), "ok\n");
}

#[test]
fn a_runtime_in_c_moves_every_byte_while_a_link_fails() {
    let said = Program::new("examples/embedded.c").says(&[]);
    assert_eq!(said.matches("a request is done\n").count(), 3, "{said}");
    assert!(
        said.contains("a rail is paused: connection reset\n"),
        "{said}"
    );
    assert!(said.ends_with("the contract is kept\nok\n"), "{said}");
}

#[test]
fn a_runtime_in_c_is_told_by_name_what_it_breaks() {
    let program = Program::new("tests/contract.c");
    let said = program.says(&[]);
    assert_eq!(said, "the contract is kept\n");
    // (the flaw, what has to be among what is told)
    let cases = [
        ("broken-first", "broken-first"),
        ("twice", "completed-twice"),
        ("never-posted", "completed-unknown"),
        ("opened-twice", "opened-twice"),
        ("time-back", "time-went-back"),
        ("more", "post-miscounted"),
        ("seldom", "timer-late"),
        ("wrong-cookies", "completed-unknown"),
        ("old-epochs", "epoch-wrong"),
        ("dropped", "post-unanswered"),
        ("full", "full-for-ever"),
        ("no-events", "not-drained"),
        ("silent-peer", "message-unanswered"),
        ("no-fence", "fence-unanswered"),
        ("no-open", "open-unanswered"),
        ("rogue", "touched-after-report"),
        ("future", "completed-in-future"),
    ];
    for (flaw, name) in cases {
        let said = program.says(&[flaw]);
        let told = format!("told {name}\n");
        let line = format!("{name}: ");
        assert!(
            said.contains(&told) && said.contains(&line),
            "{flaw}: {said}"
        );
    }
}
