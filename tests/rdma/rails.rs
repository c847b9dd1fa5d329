//! The wires, and what breaks them.

use std::io::Write as _;
use std::net::IpAddr;
use std::process::{Command, Stdio};

/// Rails between the two ends.
pub(crate) const RAILS: usize = 4;

/// The initiator's or the target's end of a wire.
pub(crate) fn address(rail: usize, target: bool) -> IpAddr {
    [10, 77, rail as u8, if target { 2 } else { 1 }].into()
}

pub(crate) fn addresses(target: bool) -> Vec<IpAddr> {
    (0..RAILS).map(|rail| address(rail, target)).collect()
}

fn call(program: &str, arguments: &[&str]) -> bool {
    let status = Command::new(program).args(arguments).status();
    status.expect("the virtual machine has it").success()
}

/// `rail VERB RAIL [ARGUMENT]`, as `tests/vm/vm` explains.
pub(crate) fn rail(verb: &str, rail: usize, argument: &str) {
    let number = rail.to_string();
    let arguments = [verb, &number, argument];
    let used = if argument.is_empty() { 2 } else { 3 };
    assert!(call("rail", &arguments[..used]), "{arguments:?}");
}

/// Takes the devices at both ends of a rail away, which nobody uses.
pub(crate) fn unmake_device(rail: usize) {
    for end in ["a", "b"] {
        assert!(call("rdma", &["link", "delete", &format!("rx{end}{rail}")]));
    }
}

/// Makes them again.
pub(crate) fn make_device(rail: usize) {
    for end in ["a", "b"] {
        let (name, interface) = (format!("rx{end}{rail}"), format!("{end}{rail}"));
        let words = ["link", "add", &name, "type", "rxe", "netdev", &interface];
        assert!(call("rdma", &words));
    }
}

/// Drops what RDMA sends, and nothing else, on a rail.
pub(crate) fn drop_rdma(rail: usize) {
    drop_from("a", rail);
    drop_answers(rail);
}

/// Drops what RDMA answers on a rail: what is written arrives.
pub(crate) fn drop_answers(rail: usize) {
    drop_from("b", rail);
}

fn drop_from(end: &str, rail: usize) {
    let device = format!("{end}{rail}");
    // Everything else goes to the first band. It is slow from the first line on, so that little passes before the last one.
    let commands = format!(
        "qdisc replace dev {device} root handle 1: tbf rate 16mbit burst 64kb limit 4mb\n\
         qdisc replace dev {device} parent 1:1 handle 10: prio\n\
         qdisc replace dev {device} parent 10:3 netem loss 100%\n\
         filter add dev {device} parent 10: protocol ip prio 1 u32 match ip protocol 17 0xff flowid 10:3\n\
         filter add dev {device} parent 10: protocol ip prio 2 u32 match ip protocol 6 0xff flowid 10:1\n"
    );
    // One process for all of them: each takes long to start in an emulated machine.
    let mut tc = Command::new("tc")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("the virtual machine has it");
    let mut input = tc.stdin.take().expect("it is piped");
    input.write_all(commands.as_bytes()).expect("tc reads it");
    drop(input);
    let ended = tc.wait().expect("tc ends");
    assert!(ended.success(), "tc of {commands}");
}

/// Makes all rails whole again.
pub(crate) fn clear() {
    for number in 0..RAILS {
        rail("clear", number, "");
        rail("up", number, "");
    }
}
