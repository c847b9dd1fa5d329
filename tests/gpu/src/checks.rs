//! What has to be true.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;

use polyrail::cuda::driver::{Driver, End, Sharing};
use polyrail::cuda::{CudaError, Gpus};
use polyrail::{
    Access, Engine, FileTerms, Op, RegisterError, Request, SegmentId, Status, SubmitError,
};

use crate::ends::{BYTES, Ends, PATIENCE, Wrong, engine, moved, pattern, whole};

/// `Ok(Some(why))`: it cannot be checked here.
type Check = fn(&Arc<dyn Driver>, bool) -> Result<Option<&'static str>, Wrong>;

/// All of them, by what they say.
pub(crate) const ALL: [(&str, Check); 11] = [
    ("host and GPU, at odd sizes and offsets", |driver, _| {
        let engine = engine(driver, &[])?;
        let near = engine.allocate("host", BYTES, Access::Local)?;
        let far = engine.allocate_on_gpu("gpu", 0, BYTES, Access::Local)?;
        exchange_here(&engine, near, far)?;
        Ok(None)
    }),
    ("two allocations of one GPU", |driver, _| {
        let engine = engine(driver, &[])?;
        let near = engine.allocate_on_gpu("one", 0, BYTES, Access::Local)?;
        let far = engine.allocate_on_gpu("two", 0, BYTES, Access::Local)?;
        exchange_here(&engine, near, far)?;
        Ok(None)
    }),
    ("two GPUs", |driver, _| {
        if driver.gpus()?.len() < 2 {
            return Ok(Some("there is one GPU"));
        }
        let engine = engine(driver, &[])?;
        let near = engine.allocate_on_gpu("one", 0, BYTES, Access::Local)?;
        let far = engine.allocate_on_gpu("two", 1, BYTES, Access::Local)?;
        exchange_here(&engine, near, far)?;
        Ok(None)
    }),
    ("memory that the program has allocated", program_memory),
    ("memory for other hosts, over NVLink", fabric_memory),
    ("GPU and file", file),
    ("GPUs of two processes, directly", |driver, stub| {
        let ends = Ends::start(driver, stub, &["shm", "tcp"])?;
        exchange_far(&ends, "gpu", "cuda-ipc:")
    }),
    ("GPUs of two processes, staged over TCP", |driver, stub| {
        let ends = Ends::start(driver, stub, &["shm", "cuda-ipc"])?;
        exchange_far(&ends, "gpu", "tcp:")?;
        exchange_far(&ends, "host", "tcp:")
    }),
    (
        "GPUs of two processes, staged over shared memory",
        |driver, stub| {
            let ends = Ends::start(driver, stub, &["cuda-ipc"])?;
            exchange_far(&ends, "gpu", "shm:")?;
            exchange_far(&ends, "host", "shm:")
        },
    ),
    ("the other process killed", killed),
    ("failures told apart", failures),
];

/// Pieces, at offsets and of lengths that nothing is aligned to.
const PIECES: [(u64, u64, u64); 7] = [
    (3, 0, 1),
    (0, 1, 2),
    (7, 4096, 4095),
    (4097, 8191, 65_537),
    (123_457, 200_003, (1 << 20) + 1),
    (1 << 20, 2 << 20, 3 << 20),
    (BYTES - 1, BYTES - 1, 1),
];

fn pieces(op: Op, local: SegmentId, remote: SegmentId) -> Vec<Request> {
    let piece = |(local_offset, remote_offset, length): (u64, u64, u64)| Request {
        op,
        local,
        local_offset,
        remote,
        remote_offset,
        length,
    };
    PIECES.into_iter().map(piece).collect()
}

/// What a destination has once all pieces have come.
fn expected(op: Op, from: &[u8], mut to: Vec<u8>) -> Vec<u8> {
    for (local, remote, length) in PIECES {
        let (source, destination) = match op {
            Op::Write => (local, remote),
            Op::Read => (remote, local),
        };
        let [source, destination, length] = [source, destination, length].map(|n| n as usize);
        to[destination..destination + length].copy_from_slice(&from[source..source + length]);
    }
    to
}

fn put(engine: &Engine, segment: SegmentId, seed: u64) -> Result<Vec<u8>, Wrong> {
    let region = engine.region(segment).ok_or("no such segment")?;
    let bytes = pattern(seed, region.bytes());
    region.store(&bytes, 0)?;
    Ok(bytes)
}

fn get(engine: &Engine, segment: SegmentId) -> Result<Vec<u8>, Wrong> {
    let region = engine.region(segment).ok_or("no such segment")?;
    let mut bytes = vec![0; region.bytes() as usize];
    region.load(0, &mut bytes)?;
    Ok(bytes)
}

fn same(what: &str, got: &[u8], expected: &[u8]) -> Result<(), Wrong> {
    let wrong = got.iter().zip(expected).position(|(a, b)| a != b);
    match wrong {
        None if got.len() == expected.len() => Ok(()),
        at => Err(format!("{what}: a wrong byte at {at:?}").into()),
    }
}

/// All bytes, then pieces, both ways, between segments of one engine.
fn exchange_here(engine: &Engine, near: SegmentId, far: SegmentId) -> Result<(), Wrong> {
    for (seed, op) in [(1, Op::Write), (3, Op::Read)] {
        let (from, to) = match op {
            Op::Write => (near, far),
            Op::Read => (far, near),
        };
        let sent = put(engine, from, seed)?;
        moved(engine, whole(op, near, far, BYTES))?;
        same("all", &get(engine, to)?, &sent)?;
        let before = put(engine, to, seed + 1)?;
        for request in pieces(op, near, far) {
            moved(engine, request)?;
        }
        same("pieces", &get(engine, to)?, &expected(op, &sent, before))?;
    }
    Ok(())
}

/// The same between a GPU here and a segment of the other process, and that this transport has carried it.
fn exchange_far(ends: &Ends, name: &str, rail: &str) -> Result<Option<&'static str>, Wrong> {
    let engine = &ends.engine;
    let near = match engine.local_segment("near") {
        Some(near) => near,
        None => engine.allocate_on_gpu("near", 0, BYTES, Access::Local)?,
    };
    let far = ends.open(name)?;
    let carried = || {
        let rails = engine.rails();
        let of = rails.iter().filter(|status| status.name.starts_with(rail));
        of.map(|status| status.bytes).sum::<u64>()
    };
    let before = carried();
    let sent = put(engine, near, 1)?;
    moved(engine, whole(Op::Write, near, far, BYTES))?;
    if !ends.has(name, &sent)? {
        return Err("write: wrong bytes at the target".into());
    }
    ends.fill(name, 2)?;
    for request in pieces(Op::Write, near, far) {
        moved(engine, request)?;
    }
    if !ends.has(name, &expected(Op::Write, &sent, pattern(2, BYTES)))? {
        return Err("pieces written: wrong bytes at the target".into());
    }
    ends.fill(name, 3)?;
    let there = pattern(3, BYTES);
    moved(engine, whole(Op::Read, near, far, BYTES))?;
    same("read", &get(engine, near)?, &there)?;
    let mine = put(engine, near, 4)?;
    for request in pieces(Op::Read, near, far) {
        moved(engine, request)?;
    }
    let now = expected(Op::Read, &there, mine);
    same("pieces read", &get(engine, near)?, &now)?;
    match carried() - before >= 2 * BYTES {
        true => Ok(None),
        false => Err(format!("not over {rail} but {:?}", engine.rails()).into()),
    }
}

/// An address says by itself where its memory is, and a stream of the program's is waited for.
fn program_memory(driver: &Arc<dyn Driver>, _: bool) -> Result<Option<&'static str>, Wrong> {
    driver.attach(0)?;
    let address = driver.allocate(0, BYTES + 100, Sharing::Process)?;
    let engine = engine(driver, &[])?;
    let host = engine.allocate("host", BYTES, Access::Local)?;
    let base = NonNull::new((address + 100) as *mut u8).ok_or("address 0")?;
    // SAFETY: allocated until the engine has ended.
    let gpu = unsafe { engine.register("own", base, BYTES, Access::Local) }?;
    let on = engine
        .region(gpu)
        .and_then(|region| Some(region.device()?.ordinal()));
    if on != Some(0) {
        return Err(format!("it is taken to be on {on:?}").into());
    }
    exchange_here(&engine, host, gpu)?;
    // Its own stream writes to it, and we read what that has written.
    let stream = driver.stream(0)?;
    let mut made = pattern(9, BYTES);
    let from = End {
        address: made.as_mut_ptr() as u64,
        ordinal: None,
    };
    let to = End {
        address: address + 100,
        ordinal: Some(0),
    };
    for _ in 0..16 {
        // SAFETY: both live until the stream is finished below.
        unsafe { driver.copy(0, stream, to, from, BYTES) }?;
    }
    engine.order_after(gpu, stream.0)?;
    let read = moved(&engine, whole(Op::Read, host, gpu, BYTES));
    driver.finish(0, stream)?;
    driver.end_stream(0, stream);
    read?;
    same("after a stream", &get(&engine, host)?, &made)?;
    drop(engine);
    driver.free(0, address)?;
    Ok(None)
}

fn fabric_memory(driver: &Arc<dyn Driver>, _: bool) -> Result<Option<&'static str>, Wrong> {
    let gpus = Gpus::over(driver.clone())?;
    let region = gpus.allocate(0, BYTES, Access::Local, Sharing::Fabric);
    let region = match region {
        Err(CudaError::Unsupported { .. }) => {
            return Ok(Some("this GPU, driver or fabric has none"));
        }
        region => region?,
    };
    let engine = engine(driver, &[])?;
    let host = engine.allocate("host", BYTES, Access::Local)?;
    let gpu = engine.register_region("gpu", region)?;
    exchange_here(&engine, host, gpu)?;
    Ok(None)
}

fn file(driver: &Arc<dyn Driver>, _: bool) -> Result<Option<&'static str>, Wrong> {
    let engine = engine(driver, &[])?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("file");
    std::fs::write(&path, pattern(1, BYTES))?;
    let file = File::options().read(true).write(true).open(&path)?;
    let near = engine.allocate_on_gpu("gpu", 0, BYTES, Access::Local)?;
    let far = engine.register_file(file.try_clone()?, &FileTerms::default())?;
    let mut bytes = vec![0; BYTES as usize];
    moved(&engine, whole(Op::Read, near, far, BYTES))?;
    same("read", &get(&engine, near)?, &pattern(1, BYTES))?;
    let sent = put(&engine, near, 2)?;
    moved(&engine, whole(Op::Write, near, far, BYTES))?;
    file.read_exact_at(&mut bytes, 0)?;
    same("write", &bytes, &sent)?;
    for request in pieces(Op::Write, near, far) {
        moved(&engine, request)?;
    }
    file.read_exact_at(&mut bytes, 0)?;
    same("pieces", &bytes, &expected(Op::Write, &sent, sent.clone()))?;
    Ok(None)
}

/// Whatever was under way ends, and nothing is said to have gone to who is not there any more.
fn killed(driver: &Arc<dyn Driver>, stub: bool) -> Result<Option<&'static str>, Wrong> {
    for without in [&["shm", "tcp"][..], &["shm", "cuda-ipc"]] {
        let mut ends = Ends::start(driver, stub, without)?;
        let near = ends
            .engine
            .allocate_on_gpu("near", 0, BYTES, Access::Local)?;
        let far = ends.open("gpu")?;
        let write = whole(Op::Write, near, far, BYTES);
        moved(&ends.engine, write)?;
        let batches: Result<Vec<_>, _> = (0..8).map(|_| ends.engine.submit(&[write])).collect();
        let batches = batches?;
        ends.target.kill()?;
        ends.target.wait()?;
        for batch in &batches {
            let status = batch.wait(PATIENCE)?.status;
            if status == Status::Pending {
                return Err(format!("without {without:?}: {status:?}").into());
            }
        }
        // From here on it is known to be gone.
        let status = match ends.engine.submit(&[write]) {
            Ok(batch) => batch.wait(PATIENCE)?.status,
            Err(SubmitError::PeerLost { .. }) => Status::PeerLost,
            Err(error) => return Err(error.into()),
        };
        if matches!(status, Status::Pending | Status::Completed) {
            return Err(format!("after the end, without {without:?}: {status:?}").into());
        }
        ends.engine.unregister(near)?;
    }
    Ok(None)
}

fn failures(driver: &Arc<dyn Driver>, _: bool) -> Result<Option<&'static str>, Wrong> {
    let gpus = driver.gpus()?;
    let engine = engine(driver, &[])?;
    let told = |ordinal, bytes| {
        let allocated = engine.allocate_on_gpu("too much", ordinal, bytes, Access::Local);
        match allocated {
            Err(RegisterError::Gpu(error)) => Ok(error),
            other => Err(Wrong::from(format!("{other:?}"))),
        }
    };
    let devices = gpus.len() as u32;
    let too_much = gpus.first().ok_or("no GPU")?.bytes * 2;
    // (what was said, what should have been)
    let cases = [
        (
            told(0, too_much)?,
            CudaError::OutOfMemory { bytes: too_much },
        ),
        (
            told(devices, 1)?,
            CudaError::NoDevice {
                ordinal: devices,
                devices,
            },
        ),
    ];
    for (said, expected) in cases {
        if said != expected {
            return Err(format!("\"{said}\" in place of \"{expected}\"").into());
        }
    }
    // Memory that does not end where it is said to.
    let address = driver.allocate(0, 4096, Sharing::Process)?;
    let base = NonNull::new(address as *mut u8).ok_or("address 0")?;
    // SAFETY: it is refused.
    let past = unsafe { engine.register("past", base, 1 << 46, Access::Local) };
    let refused = matches!(
        past,
        Err(RegisterError::Gpu(CudaError::ForeignPointer { .. }))
    );
    driver.free(0, address)?;
    match refused {
        true => Ok(None),
        false => Err(format!("{past:?}").into()),
    }
}
