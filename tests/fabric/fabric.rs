//! Two hosts, in network namespaces, and the shaped links between them.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::link::{Link, Shape};
use crate::tun;

/// Packets that wait at a device for its link to take them.
const QUEUE_PACKETS: u32 = 10_000;

/// Held by the fabric that exists.
static ALONE: Mutex<()> = Mutex::new(());

/// Ways to break a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// The far end goes down, and this end sees its carrier go.
    CarrierDown,
    /// Each end has a wrong hardware address for the other: all that is sent is lost, and nobody is told.
    Silent,
}

/// The end of a link. The initiator's are `10.77.I.1`, the target's `10.77.I.2`, all on devices `railI`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Initiator,
    Target,
}

/// A fabric; gone when dropped, with everything in it.
#[derive(Debug)]
pub(crate) struct Fabric {
    initiator: String,
    target: String,
    rails: usize,
    /// Those with delay; they go before their devices do.
    links: Vec<Link>,
    _alone: MutexGuard<'static, ()>,
}

impl Fabric {
    /// Lays one link per rate, in Mbit/s. `None`, with the reason printed, where that is not allowed.
    #[track_caller]
    pub(crate) fn new(rates_mbit: &[u32]) -> Option<Self> {
        let fabric = Self::hosts(rates_mbit.len())?;
        for (rail, rate) in rates_mbit.iter().enumerate() {
            fabric.lay(rail, *rate);
        }
        Some(fabric)
    }

    /// The same, but for one link, which comes later.
    #[track_caller]
    pub(crate) fn without(rates_mbit: &[u32], later: usize) -> Option<Self> {
        let fabric = Self::hosts(rates_mbit.len())?;
        let laid = rates_mbit.iter().enumerate();
        for (rail, rate) in laid.filter(|(rail, _)| *rail != later) {
            fabric.lay(rail, *rate);
        }
        Some(fabric)
    }

    /// Lays one link with delay per shape. `None`, with the reason printed, where that is not allowed. What is random
    /// about them follows from `seed`.
    #[track_caller]
    pub(crate) fn distant(shapes: &[Shape], seed: u64) -> Option<Self> {
        let mut fabric = Self::hosts(shapes.len())?;
        for (rail, shape) in shapes.iter().enumerate() {
            match fabric.stretch(rail, *shape, seed + rail as u64) {
                Ok(link) => fabric.links.push(link),
                Err(why) => {
                    skip(&format!("no TUN device: {why}"));
                    return None;
                }
            }
        }
        Some(fabric)
    }

    /// Two hosts without links.
    #[track_caller]
    fn hosts(rails: usize) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Whoever panicked while holding it has torn down its own fabric.
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(why) = allowed() {
            skip(&why);
            return None;
        }
        let name = format!(
            "prail{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let fabric = Self {
            initiator: format!("{name}i"),
            target: format!("{name}t"),
            rails,
            links: Vec::new(),
            _alone: alone,
        };
        for host in [&fabric.initiator, &fabric.target] {
            tool(&format!("ip netns add {host}"));
            tool(&format!("ip -n {host} link set lo up"));
        }
        Some(fabric)
    }

    /// Lays a link with delay. Devices are made here and then moved: the descriptors stay theirs.
    fn stretch(&self, rail: usize, shape: Shape, seed: u64) -> io::Result<Link> {
        let end = |end: End| {
            let (host, address) = (self.host(end), address(rail, end));
            let name = format!("pr{}x{rail}{}", std::process::id(), end as u8);
            let device = tun::open(&name)?;
            let mtu = shape.mtu;
            tool(&format!("ip link set {name} netns {host} name rail{rail}"));
            tool(&format!(
                "ip -n {host} address add {address}/24 dev rail{rail}"
            ));
            tool(&format!(
                "ip -n {host} link set rail{rail} mtu {mtu} txqueuelen {QUEUE_PACKETS} up"
            ));
            Ok::<_, io::Error>(device)
        };
        Link::start([end(End::Initiator)?, end(End::Target)?], shape, seed)
    }

    /// Lays a link that is not there.
    pub(crate) fn lay(&self, rail: usize, rate_mbit: u32) {
        let Self {
            initiator, target, ..
        } = self;
        tool(&format!(
            "ip -n {initiator} link add rail{rail} type veth peer name rail{rail} netns {target}"
        ));
        for end in [End::Initiator, End::Target] {
            let (host, address) = (self.host(end), address(rail, end));
            tool(&format!(
                "ip -n {host} address add {address}/24 dev rail{rail}"
            ));
            tool(&format!("ip -n {host} link set rail{rail} up"));
        }
        self.set_rate(rail, rate_mbit);
    }

    /// Makes a link carry so much, in Mbit/s.
    pub(crate) fn set_rate(&self, rail: usize, rate_mbit: u32) {
        for end in [End::Initiator, End::Target] {
            let host = self.host(end);
            tool(&format!(
                "tc -n {host} qdisc replace dev rail{rail} root \
                 tbf rate {rate_mbit}mbit burst 128kb latency 50ms"
            ));
        }
    }

    /// Runs `ip` on a host.
    pub(crate) fn ip(&self, end: End, words: &str) {
        tool(&format!("ip -n {} {words}", self.host(end)));
    }

    /// The namespace of a host.
    pub(crate) fn host(&self, end: End) -> &str {
        match end {
            End::Initiator => &self.initiator,
            End::Target => &self.target,
        }
    }

    /// The link with delay of a rail.
    pub(crate) fn link(&self, rail: usize) -> &Link {
        &self.links[rail]
    }

    /// How many links there are.
    pub(crate) fn rails(&self) -> usize {
        self.rails
    }

    /// All addresses of an end, as a flag takes them.
    pub(crate) fn addresses(&self, end: End) -> String {
        let addresses: Vec<String> = (0..self.rails).map(|rail| address(rail, end)).collect();
        addresses.join(",")
    }

    /// A program on one of the hosts. Its process id is that of the program itself.
    pub(crate) fn on(&self, end: End, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", self.host(end)])
            .arg(program.as_ref());
        command
    }

    /// Breaks a link.
    pub(crate) fn cut(&self, rail: usize, fault: Fault) {
        match fault {
            Fault::CarrierDown => self.set_far_end(rail, "down"),
            Fault::Silent => {
                self.neighbours(rail, "replace", " lladdr 02:00:00:00:00:99 nud permanent")
            }
        }
    }

    /// Mends it.
    pub(crate) fn restore(&self, rail: usize, fault: Fault) {
        match fault {
            Fault::CarrierDown => self.set_far_end(rail, "up"),
            Fault::Silent => self.neighbours(rail, "del", ""),
        }
    }

    fn set_far_end(&self, rail: usize, state: &str) {
        tool(&format!(
            "ip -n {} link set rail{rail} {state}",
            self.target
        ));
    }

    fn neighbours(&self, rail: usize, verb: &str, entry: &str) {
        for (end, other) in [(End::Initiator, End::Target), (End::Target, End::Initiator)] {
            let (host, address) = (self.host(end), address(rail, other));
            tool(&format!(
                "ip -n {host} neighbour {verb} {address} dev rail{rail}{entry}"
            ));
        }
    }

    /// Bytes that came out of each link, at both ends together. A silent rail still passes what nobody
    /// will take, so it stands still only when its senders have given up.
    pub(crate) fn carried(&self) -> Vec<u64> {
        let ends = [self.received(End::Initiator), self.received(End::Target)];
        (0..self.rails)
            .map(|rail| ends[0][rail] + ends[1][rail])
            .collect()
    }

    fn received(&self, end: End) -> Vec<u64> {
        let text = tool(&format!("ip -n {} -j -s link show", self.host(end)));
        let links: Value = serde_json::from_str(&text).expect("ip -j prints JSON");
        let links = links.as_array().expect("a list of links");
        let bytes = |rail: usize| {
            let name = format!("rail{rail}");
            let link = links.iter().find(|link| link["ifname"] == name.as_str());
            // One that is not there yet has carried nothing.
            link.map_or(0, |link| {
                let bytes = link["stats64"]["rx"]["bytes"].as_u64();
                bytes.expect("each link counts its bytes")
            })
        };
        (0..self.rails).map(bytes).collect()
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.links.clear();
        for host in [&self.initiator, &self.target] {
            // Goes on after an error: half a fabric has to go, too. Links go with their namespaces.
            let _ = Command::new("ip").args(["netns", "del", host]).output();
        }
    }
}

/// The address of an end of a link.
pub(crate) fn address(rail: usize, end: End) -> String {
    match end {
        End::Initiator => format!("10.77.{rail}.1"),
        End::Target => format!("10.77.{rail}.2"),
    }
}

/// Says why a test does not run. Where everything has to run, that is a failure.
#[track_caller]
pub(crate) fn skip(why: &str) {
    let strict = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(!strict, "cannot run: {why}");
    eprintln!("SKIPPED: {why}");
}

/// Whether namespaces can be made here.
fn allowed() -> Result<(), String> {
    let probe = format!("prail{}-probe", std::process::id());
    let add = || attempt(&format!("ip netns add {probe}"));
    let added = add().or_else(|why| {
        if !in_user_namespace() {
            return Err(why);
        }
        // Only in a user namespace with its own mounts: nobody else sees this directory.
        attempt("mount -t tmpfs tmpfs /run")?;
        add()
    });
    let cause = "run as root, or under unshare -Urnm";
    added.map_err(|why| format!("{cause}: {why}"))?;
    attempt(&format!("ip netns del {probe}")).map(drop)
}

/// Whether root here is somebody else outside.
fn in_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let whole = ["0", "0", "4294967295"];
    !map.split_whitespace().eq(whole)
}

/// Runs a tool that has to succeed; answers what it printed.
#[track_caller]
fn tool(line: &str) -> String {
    attempt(line).unwrap_or_else(|why| panic!("{why}"))
}

fn attempt(line: &str) -> Result<String, String> {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(program)
        .args(words)
        .output()
        .map_err(|e| format!("{line}: {e}"))?;
    if !status.success() {
        let stderr = String::from_utf8_lossy(&stderr);
        return Err(format!("{line}: {status}: {}", stderr.trim()));
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

#[test]
fn a_fabric_is_laid_breaks_heals_and_is_torn_down() {
    use std::time::Duration;

    use crate::waiting::until;

    let Some(fabric) = Fabric::new(&[400, 400]) else {
        return;
    };
    // A port that nobody listens on is refused at once, if one gets there at all.
    let reached = |rail: usize| {
        let connect = format!("exec 3<>/dev/tcp/{}/9", address(rail, End::Target));
        let mut bash = fabric.on(End::Initiator, "timeout");
        let output = bash
            .args(["1", "bash", "-c", &connect])
            .env("LC_ALL", "C")
            .output();
        let stderr = output.expect("bash can be run").stderr;
        String::from_utf8_lossy(&stderr).contains("refused")
    };
    assert!(reached(0) && reached(1));
    for fault in [Fault::CarrierDown, Fault::Silent] {
        fabric.cut(1, fault);
        assert!(reached(0) && !reached(1), "{fault:?}");
        fabric.restore(1, fault);
        let healed = || (reached(0) && reached(1)).then_some(());
        until("the link is whole again", Duration::from_secs(5), healed);
    }
    assert!(fabric.carried().iter().all(|bytes| *bytes > 0));
    let host = fabric.host(End::Target).to_owned();
    drop(fabric);
    assert!(!tool("ip netns list").contains(&host));
}
