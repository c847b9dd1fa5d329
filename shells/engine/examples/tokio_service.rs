//! A service on tokio: it takes notifications from an engine's descriptor, and awaits many batches, without a thread for either.
//!
//! ```sh
//! cargo run --release -p polyrail --example tokio_service
//! ```

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use polyrail::{
    Access, BatchReport, Config, Engine, Notification, Notifications, Op, Request, SegmentId,
    Status, SubmitError, Terms,
};
use tokio::io::unix::AsyncFd;
use tokio::sync::Semaphore;

const BLOCKS: u64 = 64;
const BLOCK_BYTES: u64 = 256 << 10;
/// Batches in flight: less than an engine has room for, so that a submission never waits.
const IN_FLIGHT: usize = 16;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(serve_and_push())
}

async fn serve_and_push() -> Result<(), Box<dyn Error + Send + Sync>> {
    let target = Engine::new(Config {
        listen: Some("127.0.0.1:0".parse()?),
        ..Config::named("target")
    })?;
    target.allocate("mem", BLOCKS * BLOCK_BYTES, Access::RemoteReadWrite)?;
    // SAFETY: the descriptor is open, and the same, for as long as there is a handle of the queue, and `mail` owns one.
    let mail = unsafe { AsyncFd::register(target.notifications()) }?;

    let engine = Engine::new(Config::named("initiator"))?;
    let local = engine.allocate("here", BLOCK_BYTES, Access::Local)?;
    // Opening asks the peer and may wait for it: not on a thread of the runtime.
    let (opener, address) = (
        engine.clone(),
        format!("{}/mem", target.listening().expect("it listens")),
    );
    let remote = tokio::task::spawn_blocking(move || opener.open_segment(&address)).await??;

    let room = Arc::new(Semaphore::new(IN_FLIGHT));
    let pushes: Vec<_> = (0..BLOCKS)
        .map(|block| tokio::spawn(push(engine.clone(), room.clone(), local, remote, block)))
        .collect();
    for _ in 0..BLOCKS {
        let told = next(&mail).await?;
        assert_eq!(told.from, "initiator");
    }
    for push in pushes {
        assert_eq!(push.await??.status, Status::Completed);
    }
    println!("{BLOCKS} blocks were pushed and heard of");

    // The end of the last handle joins threads.
    tokio::task::spawn_blocking(move || {
        engine.shutdown();
        target.shutdown();
    })
    .await?;
    Ok(())
}

/// Writes one block, and tells the target's program of it.
async fn push(
    engine: Engine,
    room: Arc<Semaphore>,
    local: SegmentId,
    remote: SegmentId,
    block: u64,
) -> Result<BatchReport, SubmitError> {
    let _place = room.acquire_owned().await;
    let request = Request {
        op: Op::Write,
        local,
        local_offset: 0,
        remote,
        remote_offset: block * BLOCK_BYTES,
        length: BLOCK_BYTES,
    };
    let terms = Terms {
        notification: Some(&block.to_le_bytes()),
        deadline: Some(Duration::from_secs(10)),
        // `Full` instead of a wait that would hold up the runtime's thread.
        room_within: Some(Duration::ZERO),
        ..Terms::default()
    };
    Ok(engine.submit_with(&[request], &terms)?.await)
}

/// The next notification: its descriptor is readable exactly while one waits.
async fn next(mail: &AsyncFd<Notifications>) -> io::Result<Notification> {
    loop {
        let mut ready = mail.readable().await?;
        match mail.get_ref().poll() {
            Some(told) => return Ok(told),
            None => ready.clear_ready(),
        }
    }
}
