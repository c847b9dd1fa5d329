//! The examples in `shells/engine/examples` run by the one command that they name.

use std::process::Command;

use polyrail_tests_book::root;

fn run(name: &str) -> String {
    let command = format!("cargo run --release -p polyrail --example {name}");
    let source =
        std::fs::read_to_string(root().join(format!("shells/engine/examples/{name}.rs"))).unwrap();
    assert!(
        source.contains(&command),
        "{name}.rs does not say how to run it"
    );
    // Unoptimised here, because that is built already.
    let done = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "-p", "polyrail", "--example", name])
        .current_dir(root())
        .output()
        .unwrap();
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
