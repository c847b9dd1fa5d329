//! The last calls of an engine in memory, written to a file when something has gone wrong.
//!
//! A ring is made of segments. Each begins with what workers share, as it stood then, and each worker's core as it stood
//! before its first call in it. So what is left when the oldest segments are gone can be replayed, and all of it is checked.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use polyrail_core::orchestrator::Orchestrator;
use polyrail_core::rail::Shared;
use polyrail_core::rail::policies::Policies;
use polyrail_core::units::RailId;

use crate::block::{self, Kind};
use crate::call::{Answer, Call, Install, Step};
use crate::header::Header;
use crate::recorder::{BLOCK_BYTES, safe_name};

/// So much the last call of a block is usually longer than the block may be.
const LAST_CALL_BYTES: usize = 4 * 1024;
/// Segments that a ring holds before it lets go of the oldest one.
const SEGMENTS: usize = 4;
/// Incidents write one file in this time at most.
const INCIDENTS_EVERY: Duration = Duration::from_secs(60);
/// Files of one engine's name in its folder; the oldest go first.
pub const RING_FILES_MAX: usize = 10;
/// What their names end with.
const SUFFIX: &str = ".ring.flight";

/// Keeps the last calls of one engine, as a [`Recorder`](crate::Recorder) writes all of them.
#[derive(Debug)]
pub struct Ring {
    log: Arc<Inside>,
    /// To the thread that writes; `None`: closed.
    incidents: Mutex<Option<SyncSender<String>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Inside {
    header: Header,
    folder: PathBuf,
    calls: Mutex<Calls>,
    /// When an incident was last written down.
    written_at: Mutex<Option<Instant>>,
}

/// What is kept.
#[derive(Debug)]
pub(crate) struct Calls {
    segments: VecDeque<Segment>,
    /// Bytes of all of their blocks.
    bytes: usize,
    bytes_max: usize,
    /// A block of the last segment with calls in it.
    block: Vec<u8>,
    /// The number of the next call.
    calls: u64,
    /// Segments that have been begun.
    begun: u64,
    /// Bytes of calls in the last segment, without what it began with.
    segment_bytes: usize,
    /// The next call on a core begins a segment.
    is_due: bool,
    /// Blocks that have been let go of, to be used again.
    spare: Vec<Vec<u8>>,
    /// What rails are called, by number.
    names: Vec<String>,
    /// Segments that probes write to.
    scratch: Vec<u32>,
}

/// Calls in a row that can be replayed without those before.
#[derive(Debug, Default)]
struct Segment {
    /// The number of its first call.
    first: u64,
    blocks: Vec<Arc<Vec<u8>>>,
}

impl Ring {
    /// A ring of `bytes` of calls, which is written to new files of `folder`. The folder is made when there is something to write.
    pub fn start(folder: &Path, bytes: usize, header: Header) -> io::Result<Self> {
        let mut calls = Calls {
            segments: VecDeque::from([Segment::default()]),
            bytes: 0,
            bytes_max: bytes.max(SEGMENTS * BLOCK_BYTES),
            block: Vec::new(),
            calls: 0,
            begun: 0,
            segment_bytes: 0,
            is_due: false,
            spare: Vec::new(),
            names: Vec::new(),
            scratch: Vec::new(),
        };
        calls.begin_block();
        let log = Arc::new(Inside {
            header,
            folder: folder.to_owned(),
            calls: Mutex::new(calls),
            written_at: Mutex::new(None),
        });
        // One waits while one is written; more are of the same minute.
        let (incidents, to_write) = sync_channel(1);
        let inside = log.clone();
        let writer = std::thread::Builder::new()
            .name("polyrail-record".into())
            .spawn(move || inside.run(&to_write))?;
        Ok(Self {
            log,
            incidents: Mutex::new(Some(incidents)),
            writer: Mutex::new(Some(writer)),
        })
    }

    /// Something has gone wrong: what led to it is to be written. By somebody else, and not if another incident was within
    /// the last minute.
    pub fn incident(&self, why: impl FnOnce() -> String) {
        let mut written_at = lock(&self.log.written_at);
        let now = Instant::now();
        if written_at.is_some_and(|at| now.duration_since(at) < INCIDENTS_EVERY) {
            return;
        }
        *written_at = Some(now);
        drop(written_at);
        if let Some(incidents) = &*lock(&self.incidents) {
            // If it is full, one is about to be written.
            let _ = incidents.try_send(why());
        }
    }

    /// Writes what there is to a new file, whatever was written before. Waits for the disk.
    pub fn write(&self) -> io::Result<PathBuf> {
        self.log.write().map_err(|error| {
            let folder = self.log.folder.display();
            io::Error::new(error.kind(), format!("{folder}: {error}"))
        })
    }

    /// Puts something into what workers share.
    pub(crate) fn install(&self, shared: &Shared<'_>, install: Install<'_>) -> bool {
        let mut calls = self.calls();
        let fits = install.apply(shared);
        calls.note(&Step::Shared(install), &Answer::Bool(fits));
        fits
    }

    /// Nothing is written by incidents any more; what one has asked for is in its file when this returns.
    pub fn close(&self) {
        lock(&self.incidents).take();
        if let Some(writer) = lock(&self.writer).take()
            && writer.join().is_err()
        {
            log::error!("the writer of flight recordings has panicked");
        }
    }

    pub(crate) fn calls(&self) -> MutexGuard<'_, Calls> {
        lock(&self.log.calls)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.close();
    }
}

impl Calls {
    /// Begins a segment if one is due, and writes down how this worker's core stands if it has made no call in this segment
    /// yet. `seen`: the segment of its last call. Before a call is made.
    #[inline]
    pub(crate) fn before(
        &mut self,
        worker: u16,
        seen: &mut u64,
        core: &Orchestrator<'_, Policies<'_>>,
    ) {
        if self.is_due || *seen != self.begun {
            self.begin(worker, seen, core);
        }
    }

    #[cold]
    fn begin(&mut self, worker: u16, seen: &mut u64, core: &Orchestrator<'_, Policies<'_>>) {
        if self.is_due {
            self.is_due = false;
            self.end_block();
            self.begun += 1;
            self.segments.push_back(Segment {
                first: self.calls,
                blocks: Vec::new(),
            });
            self.begin_block();
            let state = block::bytes(&core.snapshot_shared());
            let call = Call::RestoreShared {
                state: state.into(),
                names: self.names.as_slice().into(),
                scratch: self.scratch.as_slice().into(),
            };
            block::append(&mut self.block, &Step::Worker(worker, call));
            block::append(&mut self.block, &Answer::Bool(true));
            self.calls += 1;
        }
        if *seen != self.begun {
            *seen = self.begun;
            let state = block::bytes(&core.snapshot());
            let call = Call::Restore {
                state: state.into(),
            };
            self.append(&Step::Worker(worker, call), &Answer::Bool(true));
        }
    }

    /// Writes down a call that has just been made.
    #[inline]
    pub(crate) fn note(&mut self, step: &Step<'_>, answer: &Answer<'_>) {
        self.learn(step);
        let before = self.block.len();
        self.append(step, answer);
        self.segment_bytes += self.block.len().saturating_sub(before);
        if self.block.len() >= BLOCK_BYTES {
            self.end_block();
            self.begin_block();
            if self.segment_bytes >= self.bytes_max / SEGMENTS {
                self.segment_bytes = 0;
                self.is_due = true;
            }
        }
    }

    fn learn(&mut self, step: &Step<'_>) {
        match step {
            Step::Shared(Install::Rail(rail, _, name) | Install::Spare(rail, _, _, name)) => {
                self.call_rail(*rail, name);
            }
            Step::Worker(_, Call::InstallPlan { plan, .. }) => {
                let segment = plan.scratch_remote.segment.0;
                if !self.scratch.contains(&segment) {
                    self.scratch.push(segment);
                }
            }
            _ => {}
        }
    }

    fn append(&mut self, step: &Step<'_>, answer: &Answer<'_>) {
        block::append(&mut self.block, step);
        block::append(&mut self.block, answer);
        self.calls += 1;
    }

    fn call_rail(&mut self, rail: RailId, name: &str) {
        if self.names.len() <= rail.index() {
            self.names.resize_with(rail.index() + 1, String::new);
        }
        if let Some(known) = self.names.get_mut(rail.index()) {
            name.clone_into(known);
        }
    }

    fn begin_block(&mut self) {
        let spare = self.spare.pop();
        self.block = spare.unwrap_or_else(|| Vec::with_capacity(BLOCK_BYTES + LAST_CALL_BYTES));
        block::begin(&mut self.block, Kind::Calls);
        self.block.extend_from_slice(&self.calls.to_le_bytes());
    }

    /// The block goes to the last segment; the oldest segments go, as long as there is more than there may be.
    fn end_block(&mut self) {
        let mut ended = std::mem::take(&mut self.block);
        block::finish(&mut ended);
        self.bytes += ended.len();
        if let Some(last) = self.segments.back_mut() {
            last.blocks.push(Arc::new(ended));
        }
        while self.bytes > self.bytes_max && self.segments.len() > 1 {
            let oldest = self.segments.pop_front().unwrap_or_default();
            for block in oldest.blocks {
                self.bytes -= block.len();
                // Unless it is being written to a file.
                self.spare.extend(Arc::into_inner(block));
            }
        }
    }

    /// All that there is: the number of its first call, its blocks, and how many calls there have been.
    fn all(&self) -> (u64, Vec<Arc<Vec<u8>>>, u64) {
        let first = self.segments.front().map_or(0, |segment| segment.first);
        let blocks = self.segments.iter().flat_map(|segment| &segment.blocks);
        let mut blocks: Vec<_> = blocks.cloned().collect();
        let mut last = self.block.clone();
        block::finish(&mut last);
        blocks.push(Arc::new(last));
        (first, blocks, self.calls)
    }
}

impl Inside {
    fn run(&self, incidents: &Receiver<String>) {
        while let Ok(why) = incidents.recv() {
            match self.write() {
                Ok(path) => log::warn!(
                    event = "recording_written", file = path.display().to_string().as_str(), why = why.as_str();
                    "{why}: the last calls on core are in {}; `polyrail sim replay` makes them again",
                    path.display()
                ),
                Err(error) => log::warn!(
                    "{why}: the last calls on core cannot be written to {}: {error}",
                    self.folder.display()
                ),
            }
        }
    }

    fn write(&self) -> io::Result<PathBuf> {
        let (first, blocks, calls) = lock(&self.calls).all();
        let header = Header {
            before: first,
            ..self.header.clone()
        };
        fs::create_dir_all(&self.folder)?;
        let name = safe_name(&self.header.engine);
        let (file, path) = new_file(&self.folder, &name)?;
        let written = write(file, &header, &blocks, calls);
        if let Err(error) = written {
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        remove_oldest(&self.folder, &name);
        Ok(path)
    }
}

fn write(file: File, header: &Header, blocks: &[Arc<Vec<u8>>], calls: u64) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    file.write_all(&block::start())?;
    file.write_all(&block::whole(Kind::Header, |bytes| {
        block::append(bytes, header);
    }))?;
    for block in blocks {
        file.write_all(block)?;
    }
    file.write_all(&block::whole(Kind::End, |bytes| {
        bytes.extend_from_slice(&calls.to_le_bytes());
    }))?;
    file.flush()
}

/// A file that is not there yet, named by the time so that the oldest sorts first.
fn new_file(folder: &Path, name: &str) -> io::Result<(File, PathBuf)> {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let mut millis = since_1970.map_or(0, |time| time.as_millis());
    loop {
        let path = folder.join(format!("{name}-{millis:014}{SUFFIX}"));
        match File::create_new(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => millis += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Lets go of the oldest files of this name.
fn remove_oldest(folder: &Path, name: &str) {
    let is_ours = |file: &str| {
        let number = file.strip_prefix(name)?.strip_prefix('-')?;
        let number = number.strip_suffix(SUFFIX)?;
        number
            .bytes()
            .all(|byte| byte.is_ascii_digit())
            .then_some(())
    };
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut ours: Vec<_> = names.filter(|file| is_ours(file).is_some()).collect();
    ours.sort();
    let surplus = ours.len().saturating_sub(RING_FILES_MAX);
    for file in ours.iter().take(surplus) {
        let _ = fs::remove_file(folder.join(file));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
