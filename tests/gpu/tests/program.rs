//! The program itself, on machines without GPUs.

use std::path::Path;
use std::process::{Command, Output};

fn gpu(words: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_gpu");
    Command::new(program).args(words).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn all_checks_pass_over_the_stub_driver() {
    let output = gpu(&["--stub"]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("\nok: 18 checks\n"), "{text}");
    assert!(text.contains("skipped all measurements"), "{text}");
}

#[test]
fn a_part_of_a_name_chooses_checks() {
    let some = gpu(&["--stub", "killed"]);
    assert!(text(&some).contains("\nok: 1 checks\n"), "{some:?}");
    let none = gpu(&["--stub", "no such check"]);
    assert_eq!(none.status.code(), Some(2), "{none:?}");
}

/// A folder with a library in C in place of CUDA's driver.
fn stand_in() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda.c");
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"])
        .args(["-shared", "-fPIC", "-o"])
        .arg(folder.path().join("libcuda.so.1"))
        .arg(source)
        .arg("-lpthread")
        .status();
    assert!(compiled.unwrap().success());
    folder
}

/// What calls CUDA's driver calls a library in C in its place, which is as strict as it can be.
#[test]
fn all_checks_pass_over_a_library_in_place_of_cudas() {
    let folder = stand_in();
    let program = env!("CARGO_BIN_EXE_gpu");
    let output = Command::new(program)
        .env("LD_LIBRARY_PATH", folder.path())
        .env("STAND_IN_STRICT", "1")
        .env("RUST_LOG", "polyrail_cuda=info,error")
        .output()
        .unwrap();
    let text = text(&output);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{said}");
    // What is mapped for reading only is pinned too.
    assert!(!said.contains("of a peer's host memory"), "{said}");
    assert!(
        text.starts_with("cuda:0 Stand-in 0 at ffff:00:00.0"),
        "{text}"
    );
    assert!(text.contains("\nok: 18 checks\n"), "{text}");
    // It measures too; what comes of that says nothing here.
    assert_eq!(text.matches(" beside ").count(), 13, "{text}");
}

/// Instances of one GPU, and what MPS serves, are told apart in what is said.
#[test]
fn instances_and_mps_are_told() {
    let folder = stand_in();
    let pipes = tempfile::tempdir().unwrap();
    let first = |variables: &[(&str, &str)]| {
        let output = Command::new(env!("CARGO_BIN_EXE_gpu"))
            .arg("two allocations")
            .env("LD_LIBRARY_PATH", folder.path())
            .env("CUDA_MPS_PIPE_DIRECTORY", pipes.path())
            .envs(variables.iter().copied())
            .output();
        let text = text(&output.unwrap());
        assert!(text.contains("\nok: 1 checks\n"), "{text}");
        text.lines().next().unwrap_or_default().to_owned()
    };
    let whole = first(&[]);
    assert!(
        whole.contains("GPU-50505050-5050-") && !whole.contains("MPS"),
        "{whole}"
    );
    let second = first(&[("STAND_IN_MIG", "2")]);
    assert!(
        second.contains(" MIG 1g.10gb at ffff:00:00.0, MIG-52525252-"),
        "{second}"
    );
    assert!(first(&[("STAND_IN_MPS", "1")]).ends_with(", shared by MPS"));
    // A driver that is not asked for it says nothing; what it looks for itself does.
    assert!(!first(&[("STAND_IN_MPS", "old")]).contains("MPS"));
    std::fs::write(pipes.path().join("control"), []).unwrap();
    assert!(first(&[("STAND_IN_MPS", "old")]).ends_with(", shared by MPS"));
    assert!(!first(&[]).contains("MPS"), "the driver knows better");
}

/// Where there is a GPU the program itself is what is to be run.
#[test]
fn without_a_gpu_it_says_so() {
    if std::path::Path::new("/dev/nvidiactl").exists() {
        return;
    }
    let output = gpu(&[]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.starts_with("no GPU can be used here: "), "{text}");
}

#[test]
fn it_is_told_how_to_call_it() {
    let output = gpu(&["--fast"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("usage"));
}
