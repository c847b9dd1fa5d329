//! What `docs/rails.md` says of routes: a host with two interfaces sends by one of them before the commands of the page, and by both
//! after them; through a router, and to a host in the same subnet.

mod namespaces;

use namespaces::Namespaces;
use polyrail_tests_book::Page;

/// Hosts `here` and `there`, and a router between all of their networks. Everything leaves `here` by `eth0`, as by the default
/// route of a host that nobody has told more.
const HOSTS: &str = "
for host in here there router; do ip netns add $host; ip -n $host link set lo up; done
join() {
    ip link add $2 netns $1 type veth peer name $1-$2 netns router
    ip -n $1 addr add $3/24 dev $2
    ip -n router addr add ${3%.*}.254/24 dev $1-$2
    ip -n $1 link set $2 up
    ip -n router link set $1-$2 up
}
join here eth0 10.0.0.1
join here eth1 10.0.1.1
join there eth0 10.9.0.2
join there eth1 10.9.1.2
ip netns exec router sysctl -qw net.ipv4.ip_forward=1
ip -n here route add default via 10.0.0.254
ip -n there route add default via 10.9.0.254
";

const SERVE: &str = "exec ip netns exec there polyrail serve --listen 10.9.0.2:7000 --rails 10.9.0.2,10.9.1.2 --memory 16MiB --insecure";

const BENCH: &str = "ip netns exec here polyrail bench --target 10.9.0.2:7000 --rails 10.0.0.1,10.0.1.1 --op write --block 1MiB \
    --batch 4 --buffer 8MiB --seconds 1 --verify";

/// Bytes that an interface of `here` has sent.
fn sent(hosts: &Namespaces, interface: &str) -> u64 {
    let command = format!("ip netns exec here cat /sys/class/net/{interface}/statistics/tx_bytes");
    hosts.run(&command).trim().parse().unwrap()
}

/// Bytes that leave by each interface while rails of both carry what they can.
fn carried(hosts: &Namespaces, bench: &str) -> [u64; 2] {
    let now = || ["eth0", "eth1"].map(|interface| sent(hosts, interface));
    let before = now();
    println!("{}", hosts.run(bench));
    let after = now();
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn each_rail_has_its_interface_after_the_commands_of_the_page() {
    let Some(mut hosts) = Namespaces::new() else {
        return;
    };
    hosts.run(HOSTS);
    hosts.start("there", SERVE, "security ");
    let route = "ip -n here route get 10.9.1.2 from 10.0.1.1";
    assert!(
        hosts.run(route).contains("dev eth0"),
        "{}",
        hosts.run(route)
    );

    let bytes = carried(&hosts, BENCH);
    assert!(bytes[1] < bytes[0] / 100, "{bytes:?}");

    let page = Page::read("docs/rails.md");
    let (_, routes) = page
        .text
        .split_once("\n## Routes on a host with several networks\n")
        .unwrap();
    let (routes, _) = routes.split_once("\n## ").unwrap();
    let blocks: Vec<_> = routes
        .split("```sh\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert_eq!(blocks.len(), 4, "{blocks:#?}");
    for block in blocks {
        // Each line is of the host that the page is about.
        for line in block.lines() {
            hosts.run(&format!("ip netns exec here {line}"));
        }
    }
    assert!(
        hosts.run(route).contains("dev eth1"),
        "{}",
        hosts.run(route)
    );
    let bytes = carried(&hosts, BENCH);
    assert!(bytes.iter().all(|bytes| *bytes > 1 << 20), "{bytes:?}");
}

/// Both interfaces of both hosts are in one subnet, on one switch.
const ONE_SUBNET: &str = "
for host in here there switch; do ip netns add $host; ip -n $host link set lo up; done
ip -n switch link add br0 type bridge
ip -n switch link set br0 up
join() {
    ip link add $2 netns $1 type veth peer name $1-$2 netns switch
    ip -n $1 addr add $3/24 dev $2
    ip -n switch link set $1-$2 master br0 up
    ip -n $1 link set $2 up
}
join here eth0 10.9.0.1
join here eth1 10.9.0.11
join there eth0 10.9.0.2
join there eth1 10.9.0.12
";

const SETTINGS: &str = "
of() {
    ip netns exec $1 sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 net.ipv4.conf.all.rp_filter=2
    ip -n $1 route add 10.9.0.0/24 dev eth0 src $2 table 101
    ip -n $1 rule add from $2 table 101
    ip -n $1 route add 10.9.0.0/24 dev eth1 src $3 table 102
    ip -n $1 rule add from $3 table 102
    ip -n $1 neigh flush all
}
of here 10.9.0.1 10.9.0.11
of there 10.9.0.2 10.9.0.12
";

#[test]
fn interfaces_of_one_subnet_speak_for_themselves_with_the_settings_of_the_page() {
    let Some(mut hosts) = Namespaces::new() else {
        return;
    };
    let page = Page::read("docs/rails.md");
    for setting in ["arp_ignore=1", "arp_announce=2", "rp_filter=2"] {
        assert!(page.text.contains(setting) && SETTINGS.contains(setting));
    }
    let bench = BENCH.replace("10.0.0.1,10.0.1.1", "10.9.0.1,10.9.0.11");
    hosts.run(ONE_SUBNET);
    hosts.start(
        "there",
        &SERVE.replace("10.9.1.2", "10.9.0.12"),
        "security ",
    );
    let bytes = carried(&hosts, &bench);
    assert!(bytes[1] < bytes[0] / 100, "{bytes:?}");
    hosts.run(SETTINGS);
    let bytes = carried(&hosts, &bench);
    assert!(bytes.iter().all(|bytes| *bytes > 1 << 20), "{bytes:?}");
}
