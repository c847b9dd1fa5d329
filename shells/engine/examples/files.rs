//! A file of one host to a file of another: the owner offers it, a peer opens it by name, and one request copies it.
//!
//! ```sh
//! cargo run --release -p polyrail --example files
//! ```

use std::error::Error;
use std::fs::{self, File};
use std::time::Duration;

use polyrail::{Access, Config, Engine, FileTerms, Op, Request, Status};

const BYTES: u64 = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("polyrail-files-{}", std::process::id()));
    fs::create_dir(&folder)?;
    let copied = copy(&folder);
    fs::remove_dir_all(&folder)?;
    copied
}

fn copy(folder: &std::path::Path) -> Result<(), Box<dyn Error>> {
    let (weights, copy) = (folder.join("weights.bin"), folder.join("copy.bin"));
    let content: Vec<u8> = (0..BYTES).map(|at| ((at * 7) >> 3) as u8).collect();
    fs::write(&weights, &content)?;

    // On the host that has the file.
    let owner = Engine::new(Config {
        listen: Some("127.0.0.1:0".parse()?),
        ..Config::named("owner")
    })?;
    let file = owner.open_file(
        &weights,
        &FileTerms {
            read_only: true,
            ..FileTerms::default()
        },
    )?;
    owner.offer_file(file, "weights.bin", Access::RemoteRead)?;
    let address = format!("{}/weights.bin", owner.listening().expect("it listens"));

    // On the host that wants it. The range of a new file is what it will have.
    let engine = Engine::new(Config::named("reader"))?;
    let remote = engine.open_segment(&address)?;
    let length = engine.segment_bytes(remote).expect("it is open");
    File::create_new(&copy)?;
    let local = engine.open_file(
        &copy,
        &FileTerms {
            bytes: Some(length),
            ..FileTerms::default()
        },
    )?;
    let request = Request {
        op: Op::Read,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length,
    };
    let batch = engine.submit(&[request])?;
    let status = batch.wait(PATIENCE)?;
    assert_eq!(
        status.status,
        Status::Completed,
        "{:?}",
        batch.first_failure()
    );
    // Written is in the file; synced survives a loss of power.
    engine.sync_file(local)?;
    assert!(fs::read(&copy)? == content);
    println!(
        "{} bytes were read from {address} into a file",
        status.delivered_bytes
    );
    Ok(())
}
