//! How fast it is, beside what it is made of. Rounds of both go by turns, and medians are compared.

use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail::cuda::driver::{Driver, End};
use polyrail::{Access, Engine, Op, SegmentId, Status};

use crate::ends::{Ends, MEASURED, Wrong, completed, engine, moved, whole};

type Measure = fn(&Arc<dyn Driver>) -> Result<String, Wrong>;

/// All of them, by what they compare.
pub(crate) const ALL: [(&str, Measure); 13] = [
    ("host to GPU, 4 KiB", |driver| {
        copies(driver, Op::Write, false, 4 << 10)
    }),
    ("GPU to host, 4 KiB", |driver| {
        copies(driver, Op::Read, false, 4 << 10)
    }),
    ("host to GPU, 64 KiB", |driver| {
        copies(driver, Op::Write, false, 64 << 10)
    }),
    ("host to GPU, 1 MiB", |driver| {
        copies(driver, Op::Write, false, 1 << 20)
    }),
    ("GPU to GPU, 1 MiB", |driver| {
        copies(driver, Op::Write, true, 1 << 20)
    }),
    ("host to GPU, 4 KiB, while nobody waits for it", unattended),
    ("host to GPU, 64 MiB, aim 0.97 of a plain copy", |driver| {
        copies(driver, Op::Write, false, MEASURED)
    }),
    ("GPU to host, 64 MiB, aim 0.97 of a plain copy", |driver| {
        copies(driver, Op::Read, false, MEASURED)
    }),
    ("GPU to GPU, 64 MiB, aim 0.97 of a plain copy", |driver| {
        copies(driver, Op::Write, true, MEASURED)
    }),
    ("GPU to a GPU of another process, 64 MiB", between),
    (
        "GPU, host, TCP, host, GPU, 64 MiB, aim 0.9 of the slowest stage",
        staged,
    ),
    ("GPU to host memory of another process, 64 MiB", |driver| {
        to_host(driver, Op::Write)
    }),
    ("host memory of another process to GPU, 64 MiB", |driver| {
        to_host(driver, Op::Read)
    }),
];

const ROUNDS: usize = 41;
const WARM_UP: usize = 8;

/// The median time of each of several, by turns.
fn by_turns<const N: usize>(
    mut each: [&mut dyn FnMut() -> Result<(), Wrong>; N],
) -> Result<[Duration; N], Wrong> {
    let mut times: [Vec<Duration>; N] = std::array::from_fn(|_| Vec::new());
    for round in 0..WARM_UP + ROUNDS {
        for (one, times) in each.iter_mut().zip(&mut times) {
            let begun = Instant::now();
            one()?;
            if round >= WARM_UP {
                times.push(begun.elapsed());
            }
        }
    }
    Ok(times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    }))
}

/// In GB/s.
fn rate(time: Duration) -> f64 {
    MEASURED as f64 / 1e9 / time.as_secs_f64()
}

fn beside(time: Duration, plain: Duration) -> String {
    format!(
        "{:.2} GB/s beside {:.2}: {:.3}",
        rate(time),
        rate(plain),
        plain.as_secs_f64() / time.as_secs_f64()
    )
}

/// The same for what is too short for a rate.
fn beside_short(time: Duration, plain: Duration) -> String {
    let [time, plain] = [time, plain].map(|time| time.as_secs_f64() * 1e6);
    format!("{time:.1} us beside {plain:.1}: {:.2}", plain / time)
}

fn end(engine: &Engine, segment: SegmentId) -> Result<End, Wrong> {
    let region = engine.region(segment).ok_or("no such segment")?;
    Ok(End {
        address: region.base().as_ptr() as u64,
        ordinal: region.device().map(|device| device.ordinal()),
    })
}

/// One request beside one copy between the same memories.
fn copies(driver: &Arc<dyn Driver>, op: Op, within: bool, bytes: u64) -> Result<String, Wrong> {
    let engine = engine(driver, &[])?;
    let near = match within {
        true => engine.allocate_on_gpu("near", 0, MEASURED, Access::Local)?,
        false => engine.allocate("near", MEASURED, Access::Local)?,
    };
    let far = engine.allocate_on_gpu("far", 0, MEASURED, Access::Local)?;
    // Both touch the memory, and pin it, before anything counts.
    moved(&engine, whole(op, near, far, MEASURED))?;
    let (near_end, far_end) = (end(&engine, near)?, end(&engine, far)?);
    let (to, from) = match op {
        Op::Write => (far_end, near_end),
        Op::Read => (near_end, far_end),
    };
    let stream = driver.stream(0)?;
    let mut plain = || {
        // SAFETY: both ends are segments of `engine`, which outlives the copy.
        unsafe { driver.copy(0, stream, to, from, bytes) }?;
        Ok(driver.finish(0, stream)?)
    };
    let mut ours = || moved(&engine, whole(op, near, far, bytes));
    let [plain, ours] = by_turns([&mut plain, &mut ours])?;
    driver.end_stream(0, stream);
    Ok(match bytes {
        MEASURED => beside(ours, plain),
        _ => beside_short(ours, plain),
    })
}

/// A program that looks at its batch from time to time, and one that waits for it.
fn unattended(driver: &Arc<dyn Driver>) -> Result<String, Wrong> {
    let engine = engine(driver, &[])?;
    let near = engine.allocate("near", MEASURED, Access::Local)?;
    let far = engine.allocate_on_gpu("far", 0, MEASURED, Access::Local)?;
    let write = whole(Op::Write, near, far, 4 << 10);
    let mut waits = || moved(&engine, write);
    let mut looks = || {
        let batch = engine.submit(&[write])?;
        while batch.status().status == Status::Pending {
            std::hint::spin_loop();
        }
        completed(&batch)
    };
    let [waits, looks] = by_turns([&mut waits, &mut looks])?;
    Ok(beside_short(looks, waits))
}

/// To or from memory that a cache of another process has on the host.
fn to_host(driver: &Arc<dyn Driver>, op: Op) -> Result<String, Wrong> {
    let ends = Ends::start(driver, false, &[])?;
    let engine = &ends.engine;
    let host = engine.allocate("host", MEASURED, Access::Local)?;
    let near = engine.allocate_on_gpu("near", 0, MEASURED, Access::Local)?;
    let far = ends.open("host-large")?;
    let here = match op {
        Op::Write => Op::Read,
        Op::Read => Op::Write,
    };
    let mut here = || moved(engine, whole(here, host, near, MEASURED));
    let mut there = || moved(engine, whole(op, near, far, MEASURED));
    let [here, there] = by_turns([&mut here, &mut there])?;
    Ok(format!("{}, that within this process", beside(there, here)))
}

fn between(driver: &Arc<dyn Driver>) -> Result<String, Wrong> {
    let ends = Ends::start(driver, false, &["shm", "tcp"])?;
    let engine = &ends.engine;
    let near = engine.allocate_on_gpu("near", 0, MEASURED, Access::Local)?;
    let own = engine.allocate_on_gpu("own", 0, MEASURED, Access::Local)?;
    let far = ends.open("gpu-large")?;
    let mut here = || moved(engine, whole(Op::Write, near, own, MEASURED));
    let mut there = || moved(engine, whole(Op::Write, near, far, MEASURED));
    let [here, there] = by_turns([&mut here, &mut there])?;
    Ok(format!("{}, that within this process", beside(there, here)))
}

fn staged(driver: &Arc<dyn Driver>) -> Result<String, Wrong> {
    let ends = Ends::start(driver, false, &["shm", "cuda-ipc"])?;
    let engine = &ends.engine;
    let host = engine.allocate("host", MEASURED, Access::Local)?;
    let near = engine.allocate_on_gpu("near", 0, MEASURED, Access::Local)?;
    let far = ends.open("gpu-large")?;
    let far_host = ends.open("host-large")?;
    // The last stage is a copy into a GPU too, of the other process; here it is ours.
    let mut out = || moved(engine, whole(Op::Read, host, near, MEASURED));
    let mut over = || moved(engine, whole(Op::Write, host, far_host, MEASURED));
    let mut into = || moved(engine, whole(Op::Write, host, near, MEASURED));
    let mut all = || moved(engine, whole(Op::Write, near, far, MEASURED));
    let [out, over, into, all] = by_turns([&mut out, &mut over, &mut into, &mut all])?;
    let slowest = out.max(over).max(into);
    Ok(format!(
        "{} (GPU to host {:.2}, TCP {:.2}, host to GPU {:.2})",
        beside(all, slowest),
        rate(out),
        rate(over),
        rate(into)
    ))
}
