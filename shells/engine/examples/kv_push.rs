//! KV cache from a prefill engine to a decode engine: each layer's pages are pushed to the places that a block table names,
//! and a notification behind each layer tells decode that all of it is there.
//!
//! ```sh
//! cargo run --release -p polyrail --example kv_push
//! ```

use std::error::Error;
use std::time::Duration;

use polyrail::{Access, Blocks, Config, Engine, Op, PagedRequest, Places, Status, Terms};

const LAYERS: u64 = 8;
const PAGES: u64 = 64;
const PAGE_BYTES: u64 = 32 << 10;
const LAYER_BYTES: u64 = PAGES * PAGE_BYTES;
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    // On the decode host. Its engine owns the pool of pages.
    let decode = Engine::new(Config {
        listen: Some("127.0.0.1:0".parse()?),
        ..Config::named("decode")
    })?;
    let pool = decode.allocate("kv", LAYERS * LAYER_BYTES, Access::RemoteReadWrite)?;
    let address = format!("{}/kv", decode.listening().expect("it listens"));

    // On the prefill host. One layer is computed at a time; here each page holds its number.
    let prefill = Engine::new(Config::named("prefill"))?;
    let layer = prefill.allocate("layer", LAYER_BYTES, Access::Local)?;
    let remote = prefill.open_segment(&address)?;
    // Which of the 64 pages of decode's pool this sequence has, in order.
    let table: Vec<u32> = (0..PAGES as u32)
        .map(|page| (page * 29 + 7) % PAGES as u32)
        .collect();
    let computed = prefill.region(layer).expect("it is ours");

    for number in 0..LAYERS {
        for page in 0..PAGES {
            let content = vec![(number * PAGES + page) as u8; PAGE_BYTES as usize];
            computed.store(&content, page * PAGE_BYTES)?;
        }
        let request = PagedRequest {
            op: Op::Write,
            local: Blocks {
                segment: layer,
                base: 0,
                stride: PAGE_BYTES,
                places: Places::Rows(PAGES as usize),
            },
            remote: Blocks {
                segment: remote,
                base: number * LAYER_BYTES,
                stride: PAGE_BYTES,
                places: Places::Pages(&table),
            },
            length: PAGE_BYTES,
        };
        let terms = Terms {
            deadline: Some(PATIENCE),
            notification: Some(&number.to_le_bytes()),
            ..Terms::default()
        };
        let batch = prefill.submit_paged(&[request], &terms)?;
        // The next layer overwrites this one, so all of it has to be gone first.
        let status = batch.wait(PATIENCE)?;
        assert_eq!(
            status.status,
            Status::Completed,
            "{:?}",
            batch.first_failure()
        );
    }

    // On the decode host again: what a notification tells of is there.
    let notifications = decode.notifications();
    let cache = decode.region(pool).expect("it is ours");
    for _ in 0..LAYERS {
        let told = notifications.wait(PATIENCE)?;
        let number = u64::from_le_bytes(told.bytes[..].try_into()?);
        let mut page = vec![0; PAGE_BYTES as usize];
        for (index, place) in table.iter().enumerate() {
            cache.load(
                number * LAYER_BYTES + u64::from(*place) * PAGE_BYTES,
                &mut page,
            )?;
            let expected = (number * PAGES + index as u64) as u8;
            assert!(
                page.iter().all(|byte| *byte == expected),
                "layer {number}, page {index}"
            );
        }
        println!("layer {number} from {}: {PAGES} pages are there", told.from);
    }
    Ok(())
}
