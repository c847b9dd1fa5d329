//! The program itself, on machines without GPUs.

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
    assert!(text.contains("\nok: 11 checks\n"), "{text}");
    assert!(text.contains("skipped all measurements"), "{text}");
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
