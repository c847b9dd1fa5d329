//! `check-transport`: a library that keeps its promises, one that does not, and what is no library.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::run;

/// Builds the transport of `tests/transports`, perhaps broken.
fn build(folder: &Path, defines: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let library = folder.join("libloopback.so");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut build = Command::new(compiler);
    build
        .args(["-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC", "-I"])
        .arg(root.join("shells/load/include"))
        .args(defines.iter().map(|define| format!("-D{define}")))
        .arg(root.join("tests/transports/loopback.c"))
        .args(["-lpthread", "-o"])
        .arg(&library);
    let built = build.output().expect("a compiler");
    let words = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{words}");
    library
}

#[test]
fn a_good_transport_is_good() {
    let folder = tempfile::tempdir().unwrap();
    let library = build(folder.path(), &[]);
    let ended = run(&format!("check-transport {}", library.display())).expect(0);
    assert!(
        ended.stdout.starts_with("transport loopback\n"),
        "{}",
        ended.stdout
    );
    assert!(
        ended.stdout.ends_with(" promises kept\n"),
        "{}",
        ended.stdout
    );
    assert!(!ended.stdout.contains("BROKEN"), "{}", ended.stdout);
}

#[test]
fn a_broken_promise_is_named_with_how_and_the_exit_code_is_1() {
    let folder = tempfile::tempdir().unwrap();
    let library = build(folder.path(), &["BREAK_ACCESS"]);
    let path = library.display().to_string();
    let ended = run(&format!("check-transport {path}")).expect(1);
    let broken: Vec<&str> = ended
        .stdout
        .lines()
        .filter(|line| line.contains("BROKEN"))
        .collect();
    assert_eq!(
        broken,
        ["access        BROKEN: a work that writes what peers may not write ended well"]
    );
    assert!(
        ended.stdout.contains("the promise: the owner's word"),
        "{}",
        ended.stdout
    );
    assert!(ended.stdout.contains("FAILED: 1 of "), "{}", ended.stdout);
    ended.names(&[&path]);
}

#[test]
fn what_is_no_library_has_exit_code_2() {
    run("check-transport /no/such/library.so")
        .expect(2)
        .names(&["/no/such/library.so"]);
    run("check-transport ./Cargo.toml")
        .expect(2)
        .names(&["./Cargo.toml"]);
}
