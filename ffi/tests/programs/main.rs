//! Programs in C and C++, compiled, linked with the library and run; and one in Python.

#[cfg(feature = "cuda")]
mod torch;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use polyrail::{Access, Config, Engine};

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

fn compile_and_run(compiler: &str, standard: &str, source: &Path, words: &[String]) -> String {
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
        Command::new(&program).args(words).output().unwrap(),
    )
}

fn run_c(source: &str) -> String {
    let source = folder().join(source);
    compile_and_run(&compiler("CC", "cc"), "-std=c11", &source, &[])
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
fn cpp() -> Option<String> {
    let compiler = compiler("CXX", "c++");
    if Command::new(&compiler).arg("--version").output().is_ok() {
        return Some(compiler);
    }
    let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(!must, "{compiler} is not there, and CI=true");
    eprintln!("skipped: {compiler} is not there");
    None
}

#[test]
fn owners_in_cpp_free_what_they_own() {
    let Some(compiler) = cpp() else { return };
    let source = folder().join("examples/owners.cpp");
    let said = compile_and_run(&compiler, "-std=c++17", &source, &[]);
    assert!(
        said.contains("request 0: 1 bytes from offset 1048576 end past"),
        "{said}"
    );
    assert!(said.ends_with("ok\n"), "{said}");
}

/// The block of `docs/c.md` in this language, in a file of its own, writes to a target that is not its own.
fn run_of_the_page(compiler: &str, standard: &str, language: &str) {
    let page = std::fs::read_to_string(folder().join("../docs/c.md")).unwrap();
    let fence = format!("\n```{language}\n");
    let (_, block) = page.split_once(&fence).expect("the page has a program");
    let (program, _) = block.split_once("\n```\n").unwrap();
    let written = tempfile::tempdir().unwrap();
    let source = written.path().join(format!("initiator.{language}"));
    std::fs::write(&source, program).unwrap();
    let target = Engine::new(Config {
        listen: Some(([127, 0, 0, 1], 0).into()),
        ..Config::named("target")
    });
    let target = target.unwrap();
    let name = "offered";
    target
        .allocate(name, 65_536, Access::RemoteReadWrite)
        .unwrap();
    let address = format!("{}/{name}", target.listening().unwrap());
    let said = compile_and_run(compiler, standard, &source, &[address]);
    assert_eq!(said, "Completed: 65536 bytes\n");
}

#[test]
fn the_programs_of_the_page_write_to_who_they_are_told() {
    run_of_the_page(&compiler("CC", "cc"), "-std=c11", "c");
    if let Some(compiler) = cpp() {
        run_of_the_page(&compiler, "-std=c++17", "cpp");
    }
}
