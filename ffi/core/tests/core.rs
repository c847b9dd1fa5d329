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

/// What a program in C says, built with the header and the library. It has to end well.
fn said_by(source: &str) -> String {
    let built = tempfile::tempdir().unwrap();
    let program = built.path().join("program");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut build = Command::new(compiler);
    build
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-I"])
        .arg(folder().join("include"))
        .arg(folder().join(source))
        .arg(library())
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program);
    let compiled = build.output().unwrap();
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        compiled.status.success(),
        "{build:?}: {}",
        words(&compiled.stderr)
    );
    let ran = Command::new(&program).output().unwrap();
    let said = words(&ran.stdout);
    assert!(ran.status.success(), "{}: {said}", ran.status);
    said
}

#[test]
fn an_answer_to_the_wrong_post_or_too_late_is_an_error_and_stops_nothing() {
    assert_eq!(said_by("tests/answers.c"), "ok\n");
}

#[test]
fn a_runtime_in_c_moves_every_byte_while_a_link_fails() {
    let said = said_by("examples/embedded.c");
    assert_eq!(said.matches("a request is done\n").count(), 3, "{said}");
    assert!(
        said.contains("a rail is paused: connection reset\n"),
        "{said}"
    );
    assert!(said.ends_with("ok\n"), "{said}");
}
