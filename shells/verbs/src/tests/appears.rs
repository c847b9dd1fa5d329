//! Devices, and rights to open them, that come while the transport runs.

use super::*;
use crate::stub::{Call, appear};

const GID_NONE: &str = "0000:0000:0000:0000:0000:0000:0000:0000\n";

fn over(root: &std::path::Path) -> VerbsTransport {
    let regions = Arc::<Regions>::default();
    let sysfs = Sysfs::new(root);
    VerbsTransport::over(&stub::calls(), &sysfs, regions, Settings::default()).unwrap()
}

fn at(host: u8) -> IpAddr {
    [127, 0, 0, host].into()
}

/// Two devices, of which the second has this name for now: a transport over them, and what gives it its own.
fn renamed(name: &str) -> (tempfile::TempDir, VerbsTransport, impl FnOnce()) {
    let root = tempfile::tempdir().unwrap();
    (0..2).for_each(|number| appear(root.path(), number).unwrap());
    let gid = root.path().join("class/infiniband/stub1/ports/1/gids/0");
    let own = std::fs::read_to_string(&gid).unwrap();
    std::fs::write(&gid, name).unwrap();
    let transport = over(root.path());
    assert_eq!(runs(&transport), [true, false]);
    let rename = move || std::fs::write(&gid, own).unwrap();
    (root, transport, rename)
}

/// Whether it runs at 127.0.0.1 and at 127.0.0.2, as it tells peers too.
fn runs(transport: &VerbsTransport) -> [bool; 2] {
    let remote = SocketAddr::new(at(9), 1);
    let runs = [1, 2].map(|host| transport.runs_at(Some(at(host)), remote));
    let places = transport.places(&[at(1), at(2)]);
    let told = [0, 1].map(|rail| transport.serves(&places, rail));
    assert_eq!(runs, told);
    runs
}

#[test]
fn a_device_is_used_when_it_is_there() {
    let _turn = turn();
    let root = tempfile::tempdir().unwrap();
    appear(root.path(), 0).unwrap();
    let transport = over(root.path());
    assert!(!transport.look_for_devices(true));
    assert_eq!(runs(&transport), [true, false]);
    appear(root.path(), 1).unwrap();
    assert!(transport.look_for_devices(false));
    assert_eq!(runs(&transport), [true, true]);
    assert!(!transport.look_for_devices(true));
}

/// A driver, and whoever gives the right to open its device, are not one program.
#[test]
fn a_device_that_cannot_be_opened_at_first_is_tried_for_a_while_and_whenever_something_changes() {
    let _turn = turn();
    let root = tempfile::tempdir().unwrap();
    (0..2).for_each(|number| appear(root.path(), number).unwrap());
    let folder = root.path().join("class/infiniband/stub1");
    let away = root.path().join("away");
    // (tries in vain, whether it has gone and come since then, whether it is tried once more by itself)
    let cases = [
        (1, false, true),
        (9, false, true),
        (10, false, false),
        (100, false, false),
        (100, true, true),
    ];
    for (tries, is_another, again) in cases {
        std::fs::rename(&folder, &away).unwrap();
        let transport = over(root.path());
        std::fs::rename(&away, &folder).unwrap();
        stub::fail(Call::CreateQp, libc::EACCES);
        for _ in 0..tries {
            assert!(!transport.look_for_devices(false));
        }
        assert_eq!(runs(&transport), [true, false]);
        if is_another {
            std::fs::rename(&folder, &away).unwrap();
            assert!(!transport.look_for_devices(false));
            std::fs::rename(&away, &folder).unwrap();
        }
        stub::fail_nothing();
        assert_eq!(transport.look_for_devices(false), again, "{tries}");
        assert_eq!(transport.look_for_devices(true), !again, "{tries}");
        assert_eq!(runs(&transport), [true, true]);
    }
}

#[test]
fn a_port_is_used_when_it_has_a_name() {
    let _turn = turn();
    let (_root, transport, rename) = renamed(GID_NONE);
    rename();
    assert!(transport.look_for_devices(true));
    assert_eq!(runs(&transport), [true, true]);
}

/// The kernel tells of an address before the device has it. The rail was never made.
#[test]
fn an_address_that_comes_to_a_device_is_found_once_its_table_is_another() {
    let _turn = turn();
    let (_root, transport, rename) = renamed("fe80:0000:0000:0000:0000:0000:0000:0002\n");
    assert!(!transport.look_for_devices(true));
    rename();
    stub::happen(1, stub::Happening::GidChange);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !transport.look_for_devices(false) {
        assert!(
            std::time::Instant::now() < until,
            "its thread has not heard"
        );
        thread::yield_now();
    }
    assert_eq!(runs(&transport), [true, true]);
    assert!(!transport.look_for_devices(false), "once");
}
