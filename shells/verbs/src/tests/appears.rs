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
    appear(root.path(), 0).unwrap();
    let transport = over(root.path());
    appear(root.path(), 1).unwrap();
    for tries in [1, 9, 10, 100] {
        stub::fail(Call::CreateQp, libc::EACCES);
        let folder = root.path().join("class/infiniband/stub1");
        let away = root.path().join("away");
        std::fs::rename(&folder, &away).unwrap();
        // Forgotten, as it is not there.
        assert!(!transport.look_for_devices(false));
        std::fs::rename(&away, &folder).unwrap();
        for _ in 0..tries {
            assert!(!transport.look_for_devices(false));
        }
        assert_eq!(runs(&transport), [true, false]);
        if tries < 100 {
            continue;
        }
        stub::fail_nothing();
        assert!(!transport.look_for_devices(false), "for ever");
        assert!(transport.look_for_devices(true));
    }
    assert_eq!(runs(&transport), [true, true]);
}

#[test]
fn a_port_is_used_when_it_has_a_name() {
    let _turn = turn();
    let root = tempfile::tempdir().unwrap();
    (0..2).for_each(|number| appear(root.path(), number).unwrap());
    let gid = root.path().join("class/infiniband/stub1/ports/1/gids/0");
    let name = std::fs::read_to_string(&gid).unwrap();
    std::fs::write(&gid, GID_NONE).unwrap();
    let transport = over(root.path());
    assert_eq!(runs(&transport), [true, false]);
    std::fs::write(&gid, name).unwrap();
    assert!(transport.look_for_devices(true));
    assert_eq!(runs(&transport), [true, true]);
}

/// The kernel tells of an address before the device has it. The rail was never made.
#[test]
fn an_address_that_comes_to_a_device_is_found_once_its_table_is_another() {
    let _turn = turn();
    let root = tempfile::tempdir().unwrap();
    (0..2).for_each(|number| appear(root.path(), number).unwrap());
    let gid = root.path().join("class/infiniband/stub1/ports/1/gids/0");
    let name = std::fs::read_to_string(&gid).unwrap();
    std::fs::write(&gid, "fe80:0000:0000:0000:0000:0000:0000:0002\n").unwrap();
    let transport = over(root.path());
    assert_eq!(runs(&transport), [true, false]);
    assert!(!transport.look_for_devices(true));
    std::fs::write(&gid, name).unwrap();
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
