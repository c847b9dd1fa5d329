//! Our own transports keep every promise.

use std::sync::Arc;

use polyrail_conform::{Make, PROMISES, check};
use polyrail_shm::ShmTransport;
use polyrail_tcp::TcpTransport;

fn keeps_all(make: Make) {
    let broken: Vec<_> = PROMISES
        .iter()
        .filter_map(|promise| Some((promise.name, check(promise, &make).err()?)))
        .collect();
    assert_eq!(broken, []);
}

#[test]
fn tcp_keeps_every_promise() {
    keeps_all(Arc::new(|regions| Ok(Arc::new(TcpTransport::new(regions)))));
}

#[test]
fn shm_keeps_every_promise() {
    keeps_all(Arc::new(|regions| {
        Ok(Arc::new(ShmTransport::new(regions)?))
    }));
}
