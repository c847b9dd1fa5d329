//! `topo`: on whatever machine this runs.

use serde_json::Value;

use crate::harness::run;

#[test]
fn it_is_one_json_object_that_knows_loopback_and_tcp() {
    let ended = run("topo --json").expect(0);
    assert_eq!(ended.stdout.lines().count(), 1, "{ended:?}");
    let object: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let list = |key: &str| object[key].as_array().expect("a list").clone();
    let loopback = list("devices").into_iter().find(|device| {
        let addresses = device["addresses"].as_array().expect("a list").iter();
        addresses.into_iter().any(|address| address == "127.0.0.1")
    });
    let name = loopback.expect("a device has 127.0.0.1")["name"].clone();
    let near = list("tiers")
        .into_iter()
        .find(|tier| tier["device"] == name);
    assert_eq!(near.expect("it has a tier")["tier"], 0);
    // As many as there are; none in a build without RDMA.
    for port in list("rdma") {
        assert!(
            port["device"].is_string() && port["gids"].is_array(),
            "{port}"
        );
    }
    let transports = list("transports");
    assert_eq!(
        (
            &transports[0]["name"],
            &transports[0]["available"],
            &transports[0]["reason"]
        ),
        (&"tcp".into(), &true.into(), &Value::Null)
    );
    let shm = transports
        .iter()
        .find(|transport| transport["name"] == "shm");
    assert_eq!(shm.expect("it is listed")["available"], true);
    for (name, there) in [
        ("verbs", cfg!(feature = "verbs")),
        ("cuda", cfg!(feature = "cuda")),
    ] {
        let listed = transports.iter().find(|row| row["name"] == name);
        let reason = &listed.expect("it is listed")["reason"];
        assert_eq!(reason != "not built in", there, "{name}: {reason}");
    }
}

#[test]
fn people_get_a_page_with_every_section() {
    let page = run("topo").expect(0).stdout;
    for part in ["devices", "tiers", "transports", "127.0.0.1", "available"] {
        assert!(page.contains(part), "\"{part}\" in {page}");
    }
}
