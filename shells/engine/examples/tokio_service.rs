//! A service on tokio: it opens, submits, takes notifications and ends in one thread, which nothing holds up.
//!
//! ```sh
//! cargo run --release -p polyrail --example tokio_service
//! ```

use std::error::Error;
use std::time::Duration;

use polyrail::{
    Access, BatchReport, Config, DeliveryStatus, Engine, Op, OpenTerms, Request, SegmentId, Status,
    SubmitError, Terms,
};

const BLOCKS: u64 = 64;
const BLOCK_BYTES: u64 = 256 << 10;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(serve_and_push())
}

async fn serve_and_push() -> Result<(), Box<dyn Error + Send + Sync>> {
    let target = Engine::new(Config {
        listen: Some("127.0.0.1:0".parse()?),
        ..Config::named("target")
    })?;
    target.allocate("mem", BLOCKS * BLOCK_BYTES, Access::RemoteReadWrite)?;
    let mail = target.notifications();

    let engine = Engine::new(Config::named("initiator"))?;
    let local = engine.allocate("here", BLOCK_BYTES, Access::Local)?;
    // The peer may not be there yet.
    let terms = OpenTerms {
        within: Some(Duration::from_secs(10)),
        ..OpenTerms::default()
    };
    let address = format!("{}/mem", target.listening().expect("it listens"));
    let remote = engine.open_segment_async(&address, &terms).await?;

    let pushes: Vec<_> = (0..BLOCKS)
        .map(|block| tokio::spawn(push(engine.clone(), local, remote, block)))
        .collect();
    for _ in 0..BLOCKS {
        let told = mail.next().await.expect("its engine has not ended");
        assert_eq!(told.from, "initiator");
    }
    for push in pushes {
        assert_eq!(push.await??.status, Status::Completed);
    }
    println!("{BLOCKS} blocks were pushed and heard of");

    engine.shutdown_async().await;
    target.shutdown_async().await;
    Ok(())
}

/// Writes one block, and tells the target's program of it.
async fn push(
    engine: Engine,
    local: SegmentId,
    remote: SegmentId,
    block: u64,
) -> Result<BatchReport, SubmitError> {
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
    loop {
        // Made before it is tried, so that no room that comes back in between is missed.
        let room = engine.room();
        match engine.submit_with(&[request], &terms) {
            Err(SubmitError::Full(_)) => room.await,
            Err(error) => return Err(error),
            Ok(batch) => {
                let delivery = batch.delivery().expect("it carries a notification");
                let report = batch.await;
                if report.status == Status::Completed {
                    assert_eq!(delivery.await, DeliveryStatus::Delivered);
                }
                return Ok(report);
            }
        }
    }
}
