//! Our own transports keep every promise.

use std::io;
use std::sync::Arc;

use polyrail_conform::{Memory, Subject, check};
use polyrail_cuda::stub::{Machine, Stub};
use polyrail_cuda::{CudaIpcTransport, CudaTransport, Gpus, Sharing};
use polyrail_shm::ShmTransport;
use polyrail_tcp::TcpTransport;
use polyrail_verbs::stub::{self, StubTransport};

#[path = "../../engine/examples/custom_transport.rs"]
#[allow(dead_code)]
mod custom_transport;

fn keeps_all(subject: &Subject) {
    keeps(subject, |_| true);
}

/// Keeps those of these names.
fn keeps(subject: &Subject, is_meant: impl Fn(&str) -> bool) {
    let broken: Vec<_> = subject
        .promises()
        .filter(|promise| is_meant(promise.name))
        .filter_map(|promise| Some((promise.name, check(promise, subject).err()?)))
        .collect();
    assert_eq!(broken, []);
}

#[test]
fn tcp_keeps_every_promise() {
    keeps_all(&Subject::new(Arc::new(|regions| {
        Ok(Arc::new(TcpTransport::new(regions)))
    })));
}

#[test]
fn shm_keeps_every_promise() {
    for workers in [1, 3] {
        keeps_all(&Subject::new(Arc::new(move |regions| {
            Ok(Arc::new(ShmTransport::new(regions, workers)?))
        })));
    }
}

/// The one that authors of others begin with.
#[test]
fn the_example_keeps_every_promise() {
    keeps_all(&Subject::new(Arc::new(|regions| {
        Ok(Arc::new(custom_transport::Within::new(regions)))
    })));
}

/// GPUs over a driver in this process, and memory of one.
fn gpus() -> (Arc<Gpus>, Memory) {
    let gpus = Gpus::over(Arc::new(Stub::new(Machine::default())));
    let memory = {
        let gpus = gpus.clone();
        move |bytes, access| {
            let region = gpus.allocate(1, bytes, access, Sharing::Process);
            region.map_err(io::Error::from)
        }
    };
    (gpus, Arc::new(memory))
}

#[test]
fn cuda_ipc_keeps_every_promise() {
    let (gpus, memory) = gpus();
    keeps_all(&Subject::over(
        Arc::new(move |regions| Ok(Arc::new(CudaIpcTransport::new(gpus.clone(), regions)?))),
        memory,
    ));
}

#[test]
fn cuda_keeps_every_promise_that_is_not_made_to_peers() {
    let (gpus, memory) = gpus();
    let subject = Subject::over(
        Arc::new(move |regions| Ok(Arc::new(CudaTransport::new(gpus.clone(), regions)))),
        memory,
    );
    keeps_all(&subject.without_peers(1_u32.to_le_bytes().into()));
}

/// Over devices in this process, which carry works out while they are posted; what is promised of those that are on their way, over
/// such as take their time.
#[test]
fn verbs_keeps_every_promise() {
    let subject = Subject::new(Arc::new(|regions| {
        Ok(Arc::new(StubTransport::new(regions)?))
    }));
    keeps_all(&subject);
    stub::dawdle(1);
    let of_time = [
        "order",
        "descriptor",
        "revoked",
        "local-fence",
        "remote-fence",
        "neighbours",
        "retiring",
    ];
    keeps(&subject, |name| of_time.contains(&name));
    stub::be_honest();
}
