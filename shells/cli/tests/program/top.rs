//! `serve --metrics`, and `top`, which looks at it.

use std::net::TcpListener;

use rustix::process::Signal;

use crate::harness::{Target, polyrail, run};

/// An address of this host that nobody listens at.
fn free() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").to_string()
}

#[test]
fn a_running_target_is_to_be_seen() {
    let at = free();
    let target = Target::start(&format!("--name node-7 --memory 1MiB --metrics {at}"));
    let screen = run(&format!("top {at} --once --interval 0.05"))
        .expect(0)
        .stdout;
    for part in [
        "node-7",
        target.address(),
        "no rails",
        "no sessions",
        "segments 2 of 131072",
    ] {
        assert!(screen.contains(part), "no {part} in {screen}");
    }
    let text = run(&format!("top {at} --once --json")).expect(0).stdout;
    let stats: serde_json::Value = serde_json::from_str(&text).expect("one object");
    assert_eq!(stats["name"], "node-7");
    assert_eq!(stats["listening"], target.address());
    // Another target cannot have the port, and says so.
    run(&format!("serve --memory 1MiB --metrics {at}"))
        .expect(3)
        .names(&[&at, "metrics"]);
    target.end(Signal::TERM).expect(0);
    run(&format!("top {at} --once"))
        .expect(3)
        .names(&[&at, "serve --metrics"]);
}

/// The variable is for all engines of a host, and one of them has the port.
#[test]
fn metrics_of_a_configuration_are_told_of_as_well_and_a_taken_port_is_no_end() {
    let start = |at: &str| {
        let mut command = polyrail("serve --memory 1MiB");
        let child = command.env("POLYRAIL_METRICS", at).spawn();
        Target::of(child.expect("the program starts"))
    };
    let first = start("127.0.0.1:0");
    let at = first.metrics.clone().expect("it says where");
    run(&format!("top {at} --once")).expect(0);
    let second = start(&at);
    assert_eq!(second.metrics, None);
    let second = second.end(Signal::TERM).expect(0);
    second.names(&[&at, "the engine runs without"]);
    first.end(Signal::TERM).expect(0);
}

#[test]
fn nobody_elsewhere_reads_metrics_unless_it_is_asked_for() {
    run("serve --memory 1MiB --metrics 0.0.0.0:0")
        .expect(2)
        .names(&["0.0.0.0", "metrics", "--insecure"]);
}

#[test]
fn what_is_no_metrics_port_is_named() {
    let target = Target::start("--memory 1MiB");
    let at = target.address();
    run(&format!("top {at} --once")).expect(3).names(&[at]);
}

#[test]
fn the_list_of_metrics_is_the_committed_page() {
    let committed = include_str!("../../../../docs/metrics.md");
    let printed = run("top --reference").expect(0).stdout;
    assert!(
        printed == committed,
        "docs/metrics.md is out of date: polyrail top --reference > docs/metrics.md"
    );
}
