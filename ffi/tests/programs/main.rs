//! Programs in C and C++, compiled, linked with the library and run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The library that cargo has built for this test: the newest one, because older ones are of older sources.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = std::fs::read_dir(test.parent().unwrap()).unwrap();
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libpolyrail_ffi-") && name.ends_with(".a")
    };
    let built = built.map(|entry| entry.unwrap().path()).filter(is_ours);
    let age = |path: &PathBuf| std::fs::metadata(path).unwrap().modified().unwrap();
    built
        .max_by_key(age)
        .expect("cargo builds it for this test")
}

/// What a program said; it has to have ended well.
fn said(what: &str, output: Output) -> String {
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (words(&output.stdout), words(&output.stderr));
    assert!(
        output.status.success(),
        "{what}: {}\n{out}{err}",
        output.status
    );
    out
}

fn compiler(variable: &str, usual: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| usual.to_owned())
}

fn compile_and_run(compiler: &str, standard: &str, source: &Path) -> String {
    let built = tempfile::tempdir().unwrap();
    let program = built.path().join("program");
    let mut build = Command::new(compiler);
    build
        .arg(standard)
        .args(["-Wall", "-Wextra", "-Werror", "-g", "-D_GNU_SOURCE", "-I"])
        .arg(folder().join("include"))
        .arg(source)
        .arg(library())
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program);
    said(&format!("{build:?}"), build.output().unwrap());
    said(
        &source.display().to_string(),
        Command::new(&program).output().unwrap(),
    )
}

fn run_c(source: &str) -> String {
    compile_and_run(&compiler("CC", "cc"), "-std=c11", &folder().join(source))
}

#[test]
fn bytes_go_there_and_back() {
    let said = run_c("examples/transfer.c");
    assert!(
        said.contains("Completed: 2 of 2 requests, 1048576 bytes\n"),
        "{said}"
    );
    assert!(
        said.contains("request 1: Completed, here released, there settled\n"),
        "{said}"
    );
    assert!(
        said.contains("the target was told \"both halves\" by \"initiator\"\n"),
        "{said}"
    );
    assert!(said.ends_with("ok\n"), "{said}");
}

#[test]
fn an_event_loop_sees_every_batch_end() {
    assert_eq!(run_c("examples/event_loop.c"), "ok: 100 batches\n");
}

#[test]
fn what_is_prepared_once_is_posted_many_times() {
    assert_eq!(run_c("examples/prepared.c"), "ok: 64 blocks, 50 times\n");
}

#[test]
fn whatever_a_program_does_wrong_it_is_told() {
    assert_eq!(run_c("tests/programs/misuse.c"), "ok\n");
}

/// A machine need not have a compiler for C++; that of `.ci/run` has.
#[test]
fn owners_in_cpp_free_what_they_own() {
    let compiler = compiler("CXX", "c++");
    let there = Command::new(&compiler).arg("--version").output().is_ok();
    if !there {
        let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(!must, "{compiler} is not there, and CI=true");
        eprintln!("skipped: {compiler} is not there");
        return;
    }
    let source = folder().join("examples/owners.cpp");
    let said = compile_and_run(&compiler, "-std=c++17", &source);
    assert!(
        said.contains("request 0: 1 bytes from offset 1048576 end past"),
        "{said}"
    );
    assert!(said.ends_with("ok\n"), "{said}");
}
