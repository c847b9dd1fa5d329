//! The examples do what they say. Cargo builds them beside the tests, unless it is told to build some tests only: then
//! `cargo build -p polyrail --examples` has to go before.

use std::path::Path;
use std::process::Command;

fn run(name: &str) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{name}.rs"));
    let source = std::fs::read_to_string(source).unwrap();
    let command = format!("cargo run --release -p polyrail --example {name}");
    assert!(
        source.contains(&command),
        "{name}.rs does not say how to run it"
    );
    // A test is TARGET/PROFILE/deps/this, an example TARGET/PROFILE/examples/NAME.
    let this = std::env::current_exe().unwrap();
    let program = this.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(
        program.exists(),
        "there is no {}: run `cargo build -p polyrail --examples` first",
        program.display()
    );
    let done = Command::new(program).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(
        done.status.success(),
        "{name}: {said}{}",
        String::from_utf8_lossy(&done.stderr)
    );
    said
}

#[test]
fn kv_push() {
    let said = run("kv_push");
    assert_eq!(said.matches("64 pages are there").count(), 8, "{said}");
}

#[test]
fn restart_of_a_peer() {
    assert_eq!(
        run("restart_of_a_peer"),
        "before: Completed\nkilled: PeerLost\nlost: target\nchanged: target\nagain: Completed\n"
    );
}

#[test]
fn files() {
    assert!(run("files").contains("16777216 bytes were read"));
}

#[test]
fn tokio_service() {
    assert_eq!(run("tokio_service"), "64 blocks were pushed and heard of\n");
}

#[test]
fn custom_transport() {
    let said = run("custom_transport");
    assert!(said.contains("16777216 bytes went over within:"), "{said}");
}
