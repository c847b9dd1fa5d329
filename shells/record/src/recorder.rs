//! Writing a recording: one sequence of calls for a whole engine.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use polyrail_core::rail::Shared;

use crate::block::{self, Kind};
use crate::call::{Answer, Install, Step};
use crate::cut::Cut;
use crate::header::Header;

/// A block goes to the file when it has so many bytes.
pub(crate) const BLOCK_BYTES: usize = 64 * 1024;
/// Blocks on their way to the file. When there are so many, the recording is cut.
pub(crate) const BLOCKS_MAX: usize = 512;
/// Blocks that are kept to be used again.
const SPARE_MAX: usize = 16;
/// What has been recorded is in the file at most this much later, as far as the disk follows.
const FLUSH_EVERY: Duration = Duration::from_millis(100);
/// How long whoever closes a recording waits for the disk.
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// Recordings of one name in one folder.
const FILES_MAX: u32 = 10_000;

/// Records one engine. Whoever calls core, or changes what workers share, does so through it, one at a time:
/// the order in which it happened is the order in the file.
///
/// A thread writes the file, and nobody else waits for the disk. When 32 megabytes are on their way, or the file cannot be
/// written, the recording is cut there: a replay cannot go on over a hole. That is logged, [`Self::cut`] tells why, and
/// the engine goes on.
#[derive(Debug)]
pub struct Recorder {
    shared: Arc<Recording>,
    writer: Mutex<Option<JoinHandle<()>>>,
    path: PathBuf,
}

/// What callers and the thread share.
#[derive(Debug)]
struct Recording {
    log: Mutex<Log>,
    /// The thread has ended.
    ended: Condvar,
}

impl Recording {
    /// Nobody holds it while it waits for the disk.
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What has been recorded and is not on its way to the file.
#[derive(Debug)]
pub(crate) struct Log {
    /// A block with `calls - first` calls in it.
    block: Vec<u8>,
    /// The number of the block's first call; of a recording that was cut, how many calls it has.
    first: u64,
    /// The number of the next call.
    calls: u64,
    /// To the thread; `None`: closed, or cut.
    blocks: Option<SyncSender<Vec<u8>>>,
    /// Blocks that have been written, to be used again.
    spare: Receiver<Vec<u8>>,
    cut: Option<Cut>,
    /// All that there will be is in the file, as far as it can be written.
    written: bool,
    /// Somebody has waited for that long enough.
    given_up: bool,
}

impl Recorder {
    /// Starts a recording in a new file of `folder`, which is made if it is not there. The file is called like
    /// the engine, with a number if there is such a recording already.
    pub fn create(folder: &Path, header: &Header) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let (file, path) = new_file(folder, &header.engine)?;
        Self::start(file, path, header)
    }

    /// Starts a recording into `file`; `path` is what it is called. Waits for the disk, as nobody does later.
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
        let (written, spare) = sync_channel(SPARE_MAX);
        let mut log = Log {
            block: Vec::new(),
            first: 0,
            calls: 0,
            blocks: Some(blocks),
            spare,
            cut: None,
            written: false,
            given_up: false,
        };
        log.begin();
        let shared = Arc::new(Recording {
            log: Mutex::new(log),
            ended: Condvar::new(),
        });
        let mut writer = Writer {
            file,
            to_write,
            written,
            shared: shared.clone(),
        };
        let called = path.display().to_string();
        let thread = std::thread::Builder::new()
            .name("polyrail-record".into())
            .spawn(move || writer.run(&called))?;
        Ok(Self {
            shared,
            writer: Mutex::new(Some(thread)),
            path,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why the file does not have all that happened, if so. `None`, once it is closed: it is whole.
    pub fn cut(&self) -> Option<Cut> {
        let log = self.log();
        let is_behind = log.blocks.is_none() && !log.written;
        log.cut.clone().or(is_behind.then_some(Cut::Behind))
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

    /// Ends the recording: all of it is in the file when this has returned, unless [`Self::cut`] says otherwise. Waits for the
    /// disk for 5 s at most; the thread goes on after that. What happens later is not recorded.
    pub fn close(&self) {
        self.close_within(CLOSE_MAX);
    }

    pub(crate) fn close_within(&self, longest: Duration) {
        let mut log = self.log();
        log.end();
        let behind = |log: &mut Log| !log.written && !log.given_up;
        let waited = self.shared.ended.wait_timeout_while(log, longest, behind);
        let (mut log, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_written = log.written;
        let is_first = !std::mem::replace(&mut log.given_up, true);
        drop(log);
        if !is_written {
            if is_first {
                let path = self.path.display();
                log::error!(
                    "the disk of the flight recording {path} does not answer: it may end early"
                );
            }
            return;
        }
        let writer = self.writer.lock();
        let writer = writer.unwrap_or_else(PoisonError::into_inner).take();
        if writer.is_some_and(|writer| writer.join().is_err()) {
            log::error!("the writer of {} has panicked", self.path.display());
        }
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        self.shared.lock()
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
            self.send();
        }
    }

    fn begin(&mut self) {
        block::begin(&mut self.block, Kind::Calls);
        self.block.extend_from_slice(&self.calls.to_le_bytes());
        self.first = self.calls;
    }

    /// The block so far goes to the thread, if there is something in it; another one is begun.
    fn send(&mut self) {
        let Some(blocks) = self.blocks.as_ref().filter(|_| self.first < self.calls) else {
            return;
        };
        let spare = self.spare.try_recv().unwrap_or_default();
        let mut block = std::mem::replace(&mut self.block, spare);
        block::finish(&mut block);
        match blocks.try_send(block) {
            Ok(()) => self.begin(),
            Err(TrySendError::Full(_)) => self.stop(Cut::Behind),
            // It has said why.
            Err(TrySendError::Disconnected(_)) => self.blocks = None,
        }
    }

    /// Nothing more is recorded.
    fn stop(&mut self, cut: Cut) {
        self.cut.get_or_insert(cut);
        self.blocks = None;
        self.block = Vec::new();
    }

    /// The last block goes to the thread, which ends then.
    fn end(&mut self) {
        self.send();
        self.blocks = None;
    }
}

/// The thread's side.
struct Writer<F> {
    file: F,
    to_write: Receiver<Vec<u8>>,
    written: SyncSender<Vec<u8>>,
    shared: Arc<Recording>,
}

impl<F: Write> Writer<F> {
    fn run(&mut self, called: &str) {
        let done = self.write_all();
        let mut log = self.shared.lock();
        if let Err(error) = done {
            log.stop(Cut::Failed(Arc::new(error)));
        }
        log.written = true;
        let cut = log.cut.clone();
        drop(log);
        if let Some(cut) = cut {
            log::error!("the flight recording {called} ends early: {cut}");
        }
    }

    fn write_all(&mut self) -> io::Result<()> {
        loop {
            match self.to_write.recv_timeout(FLUSH_EVERY) {
                Ok(block) => {
                    self.file.write_all(&block)?;
                    // Enough are kept, or nobody needs any.
                    let _ = self.written.try_send(block);
                }
                // It comes by the same way, behind those before it.
                Err(RecvTimeoutError::Timeout) => self.shared.lock().send(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.file.write_all(&self.last_block())?;
        self.file.flush()
    }

    /// How many calls there are, and whether there were more.
    fn last_block(&self) -> Vec<u8> {
        let log = self.shared.lock();
        let kind = match log.cut {
            None => Kind::End,
            Some(_) => Kind::Cut,
        };
        let mut last = Vec::new();
        block::begin(&mut last, kind);
        last.extend_from_slice(&log.first.to_le_bytes());
        block::finish(&mut last);
        last
    }
}

impl<F> Drop for Writer<F> {
    /// However the thread ends, nobody waits for it any more.
    fn drop(&mut self) {
        let mut log = self.shared.lock();
        if !log.written {
            log.stop(Cut::Failed(Arc::new(io::Error::other(
                "its writer has panicked",
            ))));
            log.written = true;
        }
        drop(log);
        self.shared.ended.notify_all();
    }
}

/// An engine's name as part of a file's.
pub(crate) fn safe_name(engine: &str) -> String {
    let safe = |c: char| match c {
        '-' | '_' => c,
        c if c.is_alphanumeric() => c,
        _ => '_',
    };
    engine.chars().map(safe).collect()
}

fn new_file(folder: &Path, engine: &str) -> io::Result<(File, PathBuf)> {
    let name = safe_name(engine);
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
