//! What the links give to plain TCP, all at once.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::fabric::{End, Fabric, address};

const SECONDS: &str = "3";

/// Whether iperf3 can be run.
pub(crate) fn is_installed() -> bool {
    Command::new("iperf3").arg("--version").output().is_ok()
}

/// Goodput of one connection on each link at the same time, in GB/s, all together.
#[track_caller]
pub(crate) fn gbytes_per_sec(fabric: &Fabric) -> f64 {
    let servers: Vec<Child> = (0..fabric.rails())
        .map(|rail| server(fabric, rail))
        .collect();
    let clients: Vec<Child> = (0..fabric.rails())
        .map(|rail| client(fabric, rail))
        .collect();
    let sum = clients.into_iter().map(goodput).sum();
    for mut server in servers {
        server.wait().expect("a server that serves once ends");
    }
    sum
}

/// A server that serves one client. It listens when this returns.
fn server(fabric: &Fabric, rail: usize) -> Child {
    let mut child = fabric
        .on(End::Target, "iperf3")
        .args([
            "--server",
            "--one-off",
            "--forceflush",
            "--bind",
            &address(rail, End::Target),
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("iperf3 can be run");
    let stdout = BufReader::new(child.stdout.as_mut().expect("it is piped"));
    let listens = stdout
        .lines()
        .map_while(Result::ok)
        .any(|line| line.contains("listening"));
    assert!(listens, "iperf3 does not listen on rail {rail}");
    // Nobody reads on, but it says too little to fill a pipe.
    child
}

fn client(fabric: &Fabric, rail: usize) -> Child {
    fabric
        .on(End::Initiator, "iperf3")
        .args([
            "--client",
            &address(rail, End::Target),
            "--bind",
            &address(rail, End::Initiator),
        ])
        // The first second, in which TCP finds its window, does not count.
        .args(["--time", SECONDS, "--omit", "1", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("iperf3 can be run")
}

fn goodput(client: Child) -> f64 {
    let output = client
        .wait_with_output()
        .expect("a child can be waited for");
    let json: Value = serde_json::from_slice(&output.stdout).expect("iperf3 prints JSON");
    let bits = json["end"]["sum_received"]["bits_per_second"].as_f64();
    bits.unwrap_or_else(|| panic!("no goodput in {json}")) / 8e9
}
