//! Which devices are used, and how their queue pairs are made.

use super::*;
use crate::device::Device;
use crate::examine::examine_with;
use crate::ffi::raw::PORT_GRH_REQUIRED;
use crate::stub::Call;

/// The devices of the stub, with more files.
fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Sysfs) {
    let (root, sysfs) = stub::machine().unwrap();
    for (path, content) in files {
        let path = root.path().join("class/infiniband").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    (root, sysfs)
}

fn open(sysfs: &Sysfs, settings: Settings) -> std::io::Result<Device> {
    Device::open(&stub::calls(), sysfs, &sysfs.ports()[0], 0, settings)
}

/// EFA and others carry datagrams only. They had a thread each, and all memory was registered with them.
#[test]
fn a_device_without_reliable_queue_pairs_is_left_out_and_topo_says_so() {
    let _turn = turn();
    let (_root, sysfs) = machine(&[]);
    stub::fail(Call::CreateQp, libc::EOPNOTSUPP);
    let before = COUNTERS.live.load(SeqCst);
    let none = VerbsTransport::over(
        &stub::calls(),
        &sysfs,
        Arc::<Regions>::default(),
        Settings::default(),
    );
    let why = none.unwrap_err().to_string();
    assert!(
        why.contains("stub0 port 1: it makes no reliable connected queue pairs"),
        "{why}"
    );
    for seen in examine_with(&Ok(stub::calls()), &sysfs) {
        let why = seen.port.unusable.unwrap();
        assert!(why.contains("no reliable connected queue pairs"), "{why}");
    }
    assert_eq!(COUNTERS.live.load(SeqCst), before);
    stub::fail_nothing();
    assert!(
        examine_with(&Ok(stub::calls()), &sysfs)
            .iter()
            .all(|seen| seen.port.unusable.is_none())
    );
}

/// Ports that stand for virtual functions carry packets, and have no name.
#[test]
fn a_port_that_has_no_gid_is_left_out_unless_it_is_down() {
    let _turn = turn();
    let empty = "0000:0000:0000:0000:0000:0000:0000:0000\n";
    let files = |state| {
        [
            ("stub0/ports/1/gids/0", empty),
            ("stub0/ports/1/state", state),
            ("stub1/ports/1/gids/0", empty),
        ]
    };
    let over = |sysfs: &Sysfs| {
        let regions = Arc::<Regions>::default();
        VerbsTransport::over(&stub::calls(), sysfs, regions, Settings::default())
    };
    let (_root, sysfs) = machine(&files("4: ACTIVE\n"));
    let why = over(&sysfs).unwrap_err().to_string();
    assert!(
        why.contains("stub0: port 1 has no GID; stub1: port 1 has no GID"),
        "{why}"
    );
    // It may get one when it is up.
    let (_root, sysfs) = machine(&files("1: DOWN\n"));
    over(&sysfs).unwrap();
}

#[test]
fn packets_have_gids_where_the_port_wants_them_and_pairs_are_in_the_partition_that_is_named() {
    let _turn = turn();
    let files = [
        ("stub0/ports/1/link_layer", "InfiniBand\n"),
        ("stub0/ports/1/pkeys/0", "0x0000\n"),
        ("stub0/ports/1/pkeys/1", "0x7fff\n"),
        ("stub0/ports/1/pkeys/2", "0x8001\n"),
    ];
    let (_root, sysfs) = machine(&files);
    let address = [127, 0, 0, 1].into();
    // (flags of the port, partition, what comes of it)
    let cases = [
        (0, None, Ok((false, 2))),
        (PORT_GRH_REQUIRED, None, Ok((true, 2))),
        (0, Some(0xffff), Ok((false, 1))),
        (0, Some(0x0001), Ok((false, 2))),
        (
            0,
            Some(0x8002),
            Err(
                "stub0 port 1: partition 0x8002 (verbs/pkey) is not in its table of keys, which has: 0x7fff, 0x8001",
            ),
        ),
    ];
    for (flags, pkey, expected) in cases {
        stub::set_port_flags(flags);
        let settings = Settings {
            pkey,
            ..Settings::default()
        };
        let device = open(&sysfs, settings).unwrap();
        let way = device
            .way(address)
            .map(|(path, _)| (path.is_global, path.pkey_index));
        let way = way.map_err(|error| error.to_string());
        assert_eq!(way, expected.map_err(str::to_owned), "{flags} {pkey:x?}");
    }
    // Ethernet has one partition, and packets there have GIDs.
    let (_root, sysfs) = machine(&[]);
    stub::set_port_flags(0);
    let settings = Settings {
        pkey: Some(0x8002),
        ..Settings::default()
    };
    let (path, _) = open(&sysfs, settings).unwrap().way(address).unwrap();
    assert_eq!((path.is_global, path.pkey_index), (true, 0));
}

/// A write that was on its way to a queue pair landed through the next one of that number.
#[test]
fn a_number_of_a_queue_pair_that_has_ended_rests() {
    let _turn = turn();
    stub::reuse_keys(true);
    let mut pair = Pair::new();
    pair.opened(1);
    pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
    pair.completed(1);
    for epoch in 1..5 {
        fill(&pair.local, 7);
        stub::hold(true);
        pair.post(epoch, &[work(2, Op::Write, 100, 8, true)]);
        stub::hold(false);
        pair.fence(epoch);
        pair.fence_inbound(epoch);
        pair.opened(epoch + 1);
        stub::land();
        assert_eq!(byte(&pair.remote, 100), 0, "{epoch}");
        pair.post(epoch + 1, &[work(3, Op::Write, 0, 8, true)]);
        assert_eq!(pair.completed(1), [(3, SUCCESS)]);
    }
}
