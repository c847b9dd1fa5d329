//! Writing a recording: one sequence of calls for a whole engine.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use polyrail_core::rail::Shared;

use crate::block::{self, Kind};
use crate::call::{Answer, Install, Step};
use crate::header::Header;

/// A block goes to the file when it has so many bytes.
const BLOCK_BYTES: usize = 64 * 1024;
/// Blocks on their way to the file. When there are so many, calls wait for the disk.
const BLOCKS_MAX: usize = 64;
/// What has been recorded is in the file at most this much later, as far as the disk follows.
const FLUSH_EVERY: Duration = Duration::from_millis(100);
/// Recordings of one name in one folder.
const FILES_MAX: u32 = 10_000;

/// Records one engine. Whoever calls core, or changes what workers share, does so through it, one at a time:
/// the order in which it happened is the order in the file.
///
/// A thread writes the file. Calls wait for it only when four megabytes are on their way. If the file cannot be
/// written, that is logged, the recording ends there, and the engine goes on.
#[derive(Debug)]
pub struct Recorder {
    log: Arc<Mutex<Log>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    path: PathBuf,
}

/// What has been recorded and is not on its way to the file.
#[derive(Debug)]
pub(crate) struct Log {
    /// A block with `calls - first` calls in it.
    block: Vec<u8>,
    /// The number of the block's first call.
    first: u64,
    /// The number of the next call.
    calls: u64,
    /// To the thread; `None`: closed, or the file cannot be written.
    blocks: Option<SyncSender<Vec<u8>>>,
    /// Blocks that have been written, to be used again.
    spare: Receiver<Vec<u8>>,
}

impl Recorder {
    /// Starts a recording in a new file of `folder`, which is made if it is not there. The file is called like
    /// the engine, with a number if there is such a recording already.
    pub fn create(folder: &Path, header: &Header) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let (file, path) = new_file(folder, &header.engine)?;
        Self::start(file, path, header)
    }

    /// Starts a recording into `file`; `path` is what it is called.
    pub fn start(
        mut file: impl Write + Send + 'static,
        path: PathBuf,
        header: &Header,
    ) -> io::Result<Self> {
        let mut bytes = Vec::new();
        block::begin(&mut bytes, Kind::Header);
        block::append(&mut bytes, header);
        block::finish(&mut bytes);
        file.write_all(&block::start())?;
        file.write_all(&bytes)?;
        let (blocks, to_write) = sync_channel(BLOCKS_MAX);
        let (written, spare) = channel();
        let mut log = Log {
            block: Vec::new(),
            first: 0,
            calls: 0,
            blocks: Some(blocks),
            spare,
        };
        log.begin();
        let log = Arc::new(Mutex::new(log));
        let writer = Writer {
            file,
            to_write,
            written,
            log: log.clone(),
        };
        let called = path.display().to_string();
        let thread = std::thread::Builder::new()
            .name("polyrail-record".into())
            .spawn(move || writer.run(&called))?;
        Ok(Self {
            log,
            writer: Mutex::new(Some(thread)),
            path,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts something into what workers share.
    pub fn install(&self, shared: &Shared<'_>, install: Install<'_>) -> bool {
        let mut log = self.log();
        let fits = install.apply(shared);
        log.note(&Step::Shared(install), &Answer::Bool(fits));
        fits
    }

    /// Writes down a call that was made elsewhere: for tools that cut recordings, or change them.
    pub fn note(&self, step: &Step<'_>, answer: &Answer<'_>) {
        self.log().note(step, answer);
    }

    /// Ends the recording: all of it is in the file when this has returned. What happens later is not recorded.
    pub fn close(&self) {
        let writer = self.writer.lock();
        let Some(writer) = writer.unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        self.log().end();
        if writer.join().is_err() {
            log::error!("the writer of {} has panicked", self.path.display());
        }
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.close();
    }
}

impl Log {
    /// Writes down a call that has just been made.
    pub(crate) fn note(&mut self, step: &Step<'_>, answer: &Answer<'_>) {
        if self.blocks.is_none() {
            return;
        }
        block::append(&mut self.block, step);
        block::append(&mut self.block, answer);
        self.calls += 1;
        if self.block.len() >= BLOCK_BYTES {
            let block = self.take_block();
            self.send(block);
        }
    }

    fn begin(&mut self) {
        block::begin(&mut self.block, Kind::Calls);
        self.block.extend_from_slice(&self.calls.to_le_bytes());
        self.first = self.calls;
    }

    fn is_empty(&self) -> bool {
        self.first == self.calls
    }

    /// The block so far, complete; another one is begun.
    fn take_block(&mut self) -> Vec<u8> {
        let spare = self.spare.try_recv().unwrap_or_default();
        let mut block = std::mem::replace(&mut self.block, spare);
        block::finish(&mut block);
        self.begin();
        block
    }

    fn send(&mut self, block: Vec<u8>) {
        let sent = self.blocks.as_ref().map(|blocks| blocks.send(block));
        if let Some(Err(_)) = sent {
            self.blocks = None;
        }
    }

    fn end(&mut self) {
        if !self.is_empty() {
            let block = self.take_block();
            self.send(block);
        }
        let mut end = Vec::new();
        block::begin(&mut end, Kind::End);
        end.extend_from_slice(&self.calls.to_le_bytes());
        block::finish(&mut end);
        self.send(end);
        self.blocks = None;
    }
}

/// The thread's side.
struct Writer<F> {
    file: F,
    to_write: Receiver<Vec<u8>>,
    written: Sender<Vec<u8>>,
    log: Arc<Mutex<Log>>,
}

impl<F: Write> Writer<F> {
    fn run(mut self, called: &str) {
        let done = self.write_all();
        if let Err(error) = done.and_then(|()| self.file.flush()) {
            log::error!("the flight recording {called} ends early, it cannot be written: {error}");
        }
    }

    fn write_all(&mut self) -> io::Result<()> {
        loop {
            match self.to_write.recv_timeout(FLUSH_EVERY) {
                Ok(block) => self.write(block)?,
                Err(RecvTimeoutError::Timeout) => self.write_rest()?,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    fn write(&mut self, block: Vec<u8>) -> io::Result<()> {
        self.file.write_all(&block)?;
        // Nobody needs it if the recorder is gone.
        let _ = self.written.send(block);
        Ok(())
    }

    /// Writes what is not a whole block yet.
    fn write_rest(&mut self) -> io::Result<()> {
        // Whoever has the lock may wait for room on its way to us, so it is not waited for.
        let log = self.log.clone();
        let Ok(mut log) = log.try_lock() else {
            return Ok(());
        };
        if log.is_empty() {
            return Ok(());
        }
        let rest = log.take_block();
        // Those sent before it go first; no other can be sent while we have the lock.
        while let Ok(block) = self.to_write.try_recv() {
            self.write(block)?;
        }
        drop(log);
        self.write(rest)
    }
}

fn new_file(folder: &Path, engine: &str) -> io::Result<(File, PathBuf)> {
    let safe = |c: char| match c {
        '-' | '_' => c,
        c if c.is_alphanumeric() => c,
        _ => '_',
    };
    let name: String = engine.chars().map(safe).collect();
    for number in 1..=FILES_MAX {
        let name = match number {
            1 => format!("{name}.flight"),
            _ => format!("{name}-{number}.flight"),
        };
        let path = folder.join(name);
        match File::create_new(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AlreadyExists,
        format!("there are {FILES_MAX} recordings of this name already"),
    ))
}
