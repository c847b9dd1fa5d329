//! Scenario files: the fabrics of the paper's testbeds, and loads on them.

use std::fmt::Write;

/// Two hosts of two sockets. Each has four rails of 200 Gb/s near the first socket, and four near the second, with
/// `far_gbits` and 2 µs more for whoever comes from the first.
pub(super) fn eight_rails(far_gbits: u64) -> String {
    let devices = [
        ("a", "near", 0, 200, 1.5),
        ("a", "far", 1, far_gbits, 3.5),
        ("b", "near", 0, 200, 1.5),
        ("b", "far", 1, far_gbits, 1.5),
    ];
    let mut text = hosts();
    for (host, name, numa, gbits, delay_us) in devices {
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "[[device]]\nhost = \"{host}\"\nname = \"{name}\"\nnuma = {numa}\ncount = 4\n\
             rate_gbits_per_sec = {gbits}\ndelay_us = {delay_us}\n"
        );
    }
    for name in ["near", "far"] {
        let _ = write!(text, "[[rail]]\nfrom = \"a/{name}*\"\nto = \"b/{name}*\"\n");
    }
    text
}

/// A GPU with one near rail of 200 Gb/s, and three farther ones that share 320 Gb/s on the way to it.
pub(super) fn gpu_tiers() -> String {
    let mut text = hosts();
    text += "[[device]]\nhost = \"a\"\nname = \"near\"\nnuma = 0\nrate_gbits_per_sec = 200\ndelay_us = 1.5\n\
             [[device]]\nhost = \"a\"\nname = \"far\"\nnuma = 1\ncount = 3\nrate_gbits_per_sec = 200\ndelay_us = 3.5\n\
             [[device]]\nhost = \"b\"\nname = \"nic\"\ncount = 4\nrate_gbits_per_sec = 200\ndelay_us = 1.5\n\
             [[bottleneck]]\nname = \"switch\"\nrate_gbits_per_sec = 320\nmembers = [\"a/far*\"]\n";
    let rails = [("near", 0), ("far0", 1), ("far1", 2), ("far2", 3)];
    for (from, to) in rails {
        let _ = write!(text, "[[rail]]\nfrom = \"a/{from}\"\nto = \"b/nic{to}\"\n");
    }
    text
}

/// Eight rails alike.
pub(super) fn eight_alike() -> String {
    let mut text = hosts();
    for host in ["a", "b"] {
        let _ = write!(
            text,
            "[[device]]\nhost = \"{host}\"\nname = \"nic\"\ncount = 8\nrate_gbits_per_sec = 200\ndelay_us = 1.5\n"
        );
    }
    text + "[[rail]]\nfrom = \"a/nic*\"\nto = \"b/nic*\"\n"
}

fn hosts() -> String {
    "[[host]]\nname = \"a\"\nnuma = 2\n[[host]]\nname = \"b\"\nnuma = 2\n".to_owned()
}

/// Submitters, each of which has one batch under way.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) op: &'static str,
    pub(super) block: u64,
    pub(super) batch: u64,
    pub(super) threads: u64,
    /// The socket that their memory is on; `None`: all rails are as near.
    pub(super) numa: Option<u64>,
}

impl Load {
    pub(super) const fn new(op: &'static str, block: u64, threads: u64) -> Self {
        Self {
            op,
            block,
            batch: 1,
            threads,
            numa: Some(0),
        }
    }
}

/// A scenario: what precedes the tables of the fabric, and the loads.
pub(super) fn scenario(duration_ms: u64, workers: u64, fabric: &str, loads: &[Load]) -> String {
    let mut text = format!(
        "name = \"figure\"\nduration_ms = {duration_ms}\n[engine]\nworkers = {workers}\n{fabric}"
    );
    for load in loads {
        let Load {
            op,
            block,
            batch,
            threads,
            numa,
        } = load;
        let _ = write!(
            text,
            "[[workload]]\nfrom = \"a\"\nto = \"b\"\nop = \"{op}\"\nblock = {block}\nbatch = {batch}\n\
             threads = {threads}\n"
        );
        if let Some(numa) = numa {
            let _ = writeln!(text, "numa = {numa}");
        }
    }
    text
}

/// How long to simulate blocks of this size: some hundreds of them in each submitter.
pub(super) const fn duration_ms(block: u64) -> u64 {
    match block {
        0..=0x4_0000 => 4,
        0x4_0001..=0x40_0000 => 20,
        _ => 80,
    }
}

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;
