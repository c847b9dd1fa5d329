//! What has to be true.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use polyrail::cuda::driver::{Driver, End, Sharing};
use polyrail::cuda::{CudaError, Gpus};
use polyrail::{
    Access, Engine, FileTerms, Op, RegisterError, Request, SegmentId, Status, SubmitError,
};

use crate::ends::{BYTES, Ends, PATIENCE, Wrong, completed, engine, moved, pattern, whole};
use crate::target::HOST_READ;
use crate::{alone, program};

/// Why a check is skipped that needs calls besides ours.
pub(crate) const ONLY_CUDA: &str = "the stub driver takes no calls but ours";

/// `Ok(Some(why))`: it cannot be checked here.
type Check = fn(&Arc<dyn Driver>, bool) -> Result<Option<&'static str>, Wrong>;

/// All of them, by what they say.
pub(crate) const ALL: [(&str, Check); 18] = [
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
    ("memory for network devices, as a DMA-BUF", dma_buf),
    ("GPU and file", file),
    ("GPUs of two processes, directly", |driver, stub| {
        let ends = Ends::start(driver, stub, &["shm", "tcp"])?;
        exchange_far(&ends, "gpu", "cuda-ipc:")
    }),
    (
        "GPU and host memory of another process, directly",
        |driver, stub| {
            let ends = Ends::start(driver, stub, &["shm", "tcp"])?;
            read_far(&ends)?;
            exchange_far(&ends, "host", "cuda-ipc:")
        },
    ),
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
    ("a graph captured meanwhile", captured),
    ("a kernel that takes long", held),
    ("CUDA is started when it is needed", |_, stub| {
        alone::check(alone::UNTOUCHED, stub)
    }),
    (
        "contexts on GPUs that are named only",
        |driver, stub| match driver.gpus()?.len() {
            0 | 1 => Ok(Some("there is one GPU")),
            _ if !driver.can_reach(1, 0)? => Ok(Some("cuda:1 does not reach cuda:0")),
            _ => alone::check(alone::APART, stub),
        },
    ),
    ("memory taken back behind a kernel", taken_back),
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

pub(crate) fn put(engine: &Engine, segment: SegmentId, seed: u64) -> Result<Vec<u8>, Wrong> {
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

/// Memory of the other process's that is mapped for reading only.
fn read_far(ends: &Ends) -> Result<(), Wrong> {
    let engine = &ends.engine;
    let near = engine.allocate_on_gpu("reads", 0, BYTES, Access::Local)?;
    let far = ends.open(HOST_READ)?;
    // The first ones are there before it is pinned.
    for seed in 5..15 {
        ends.fill(HOST_READ, seed)?;
        moved(engine, whole(Op::Read, near, far, BYTES))?;
        same("read only", &get(engine, near)?, &pattern(seed, BYTES))?;
    }
    Ok(())
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

/// Whatever the engine does while the program captures a graph, it gets its graph, and we our bytes.
fn captured(driver: &Arc<dyn Driver>, stub: bool) -> Result<Option<&'static str>, Wrong> {
    if stub {
        return Ok(Some(ONLY_CUDA));
    }
    let engine = engine(driver, &[])?;
    let far = engine.allocate_on_gpu("gpu", 0, BYTES, Access::Local)?;
    let stream = driver.stream(0)?;
    program::begin_capture(stream)?;
    let during = (|| {
        let near = engine.allocate("host", BYTES, Access::Local)?;
        let more = engine.allocate_on_gpu("more", 0, BYTES, Access::Local)?;
        exchange_here(&engine, near, far)?;
        exchange_here(&engine, more, far)?;
        match engine.order_after(far, stream.0) {
            Err(RegisterError::Gpu(CudaError::Capturing)) => {}
            other => return Err(format!("order_after says {other:?}").into()),
        }
        engine.unregister(near)?;
        engine.unregister(more)?;
        Ok::<_, Wrong>(())
    })();
    program::end_capture(stream)?;
    during?;
    engine.order_after(far, stream.0)?;
    let near = engine.allocate("host", BYTES, Access::Local)?;
    exchange_here(&engine, near, far)?;
    driver.end_stream(0, stream);
    Ok(None)
}

/// A kernel of the program's holds up what was to wait for it, and nothing else: also where the memory of the host is not
/// pinned, because a part of it is already.
fn held(driver: &Arc<dyn Driver>, stub: bool) -> Result<Option<&'static str>, Wrong> {
    if stub {
        return Ok(Some(ONLY_CUDA));
    }
    // Of two segments that share a page; dropped after the engine.
    let mut own = vec![0_u8; 2 * BYTES as usize];
    let ends = Ends::start(driver, stub, &["shm", "cuda-ipc"])?;
    let engine = &ends.engine;
    let gpu = engine.allocate_on_gpu("gpu", 0, BYTES, Access::Local)?;
    let other = engine.allocate("other", BYTES, Access::Local)?;
    let far = ends.open("host")?;
    let mut register = |name, offset: u64| {
        let address = own.as_mut_ptr().wrapping_add(offset as usize);
        let base = NonNull::new(address).ok_or("address 0")?;
        // SAFETY: it lives until the engine has ended.
        Ok::<_, Wrong>(unsafe { engine.register(name, base, BYTES, Access::Local) }?)
    };
    let hosts = [register("one", 0)?, register("two", BYTES)?];
    for host in hosts {
        exchange_here(engine, host, gpu)?;
    }
    let sent = put(engine, gpu, 1)?;
    let stream = driver.stream(0)?;
    let kernel = program::hold(stream)?;
    engine.order_after(gpu, stream.0)?;
    let reads = hosts.map(|host| whole(Op::Read, host, gpu, BYTES));
    let waits = reads.map(|read| engine.submit(&[read]));
    for seed in 3..6 {
        let sent = put(engine, other, seed)?;
        moved(engine, whole(Op::Write, other, far, BYTES))?;
        if !ends.has("host", &sent)? {
            return Err("wrong bytes at the target meanwhile".into());
        }
    }
    let [one, two] = waits;
    let waits = [one?, two?];
    if waits
        .iter()
        .any(|waits| waits.status().status != Status::Pending)
    {
        return Err("it did not wait".into());
    }
    drop(kernel);
    for waits in &waits {
        completed(waits)?;
    }
    for host in hosts {
        same("after the kernel", &get(engine, host)?, &sent)?;
    }
    driver.finish(0, stream)?;
    driver.end_stream(0, stream);
    engine.shutdown();
    Ok(None)
}

/// What a peer is still to copy to is not free, and is once it has been copied.
fn taken_back(driver: &Arc<dyn Driver>, stub: bool) -> Result<Option<&'static str>, Wrong> {
    if stub {
        return Ok(Some(ONLY_CUDA));
    }
    let ends = Ends::start(driver, stub, &["shm", "tcp"])?;
    let near = ends
        .engine
        .allocate_on_gpu("near", 0, BYTES, Access::Local)?;
    let write = whole(Op::Write, near, ends.open("gpu")?, BYTES);
    moved(&ends.engine, write)?;
    let stream = driver.stream(0)?;
    let kernel = program::hold(stream)?;
    ends.engine.order_after(near, stream.0)?;
    let batch = ends.engine.submit(&[write])?;
    for _ in 0..2 {
        if ends.take_back("gpu")? {
            return Err("it is said to be free while a copy waits for the kernel".into());
        }
    }
    drop(kernel);
    batch.wait(PATIENCE)?;
    let until = Instant::now() + PATIENCE;
    while !ends.take_back("gpu")? {
        if Instant::now() > until {
            return Err("it is never said to be free".into());
        }
    }
    driver.finish(0, stream)?;
    driver.end_stream(0, stream);
    Ok(None)
}

/// What a network device would register: pages of the host's size, of memory that we and that the program has allocated.
fn dma_buf(driver: &Arc<dyn Driver>, _: bool) -> Result<Option<&'static str>, Wrong> {
    let gpus = Gpus::over(driver.clone());
    let page = driver.page_bytes();
    let whole = gpus.allocate(0, 4 << 20, Access::Local, Sharing::Process)?;
    let Some(shared) = whole.dma_buf() else {
        return Ok(Some("the driver gives no DMA-BUF"));
    };
    if (shared.offset, shared.len) != (0, 4 << 20) {
        return Err(format!("it has {shared:?}").into());
    }
    let address = driver.allocate(0, 4 << 20, Sharing::Process)?;
    let part = |begins: u64, bytes: u64| {
        // SAFETY: allocated above, and freed below.
        let region = unsafe { gpus.register(address + begins, bytes, Access::Local) };
        let region = region.map_err(|error| error.to_string())?;
        match region.dma_buf() {
            Some(shared) if (shared.offset, shared.len) == (begins % page, bytes) => Ok(()),
            other => Err(format!(
                "{bytes} bytes at {begins} on pages of {page}: {other:?}"
            )),
        }
    };
    let parts = [
        (100, 5000),
        (page - 1, 2),
        (page, page),
        (2 * page + 7, 3 * page),
    ];
    let parts = parts
        .into_iter()
        .try_for_each(|(begins, bytes)| part(begins, bytes));
    driver.free(0, address)?;
    parts?;
    Ok(None)
}

fn fabric_memory(driver: &Arc<dyn Driver>, _: bool) -> Result<Option<&'static str>, Wrong> {
    let gpus = Gpus::over(driver.clone());
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
