//! Files that a target offers: copies in memory.
//!
//! Not mappings: transports copy to and from registered memory, and a mapped file that somebody else shortens
//! would end the process with SIGBUS. So the file is read when the target starts, and what peers have written
//! goes back to it when the target ends well.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use polyrail::{Access, Engine, Region};

use crate::exit::Failure;
use crate::pattern::memory::{self, Span};
use crate::source::Source;

/// Bytes read or written at a time.
const CHUNK_BYTES: u64 = 1 << 20;

/// What to offer, as it is written on the command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FileArg {
    path: PathBuf,
    read_only: bool,
}

/// `PATH` or `PATH:ro`.
pub(super) fn file(text: &str) -> Result<FileArg, String> {
    let (path, read_only) = match text.strip_suffix(":ro") {
        Some(path) => (path, true),
        None => (text, false),
    };
    let path = PathBuf::from(path);
    match path.file_name() {
        Some(_) => Ok(FileArg { path, read_only }),
        None => Err(format!("\"{text}\" names no file; write PATH or PATH:ro")),
    }
}

/// A file that is offered.
pub(super) struct Offered {
    path: PathBuf,
    source: Source,
    region: Arc<Region>,
    /// To write it back.
    file: Option<File>,
}

impl Offered {
    /// Reads a file into memory of its own and offers that under the file's base name.
    pub(super) fn new(engine: &Engine, arg: &FileArg) -> Result<Self, Failure> {
        let FileArg { path, read_only } = arg;
        let shown = path.display();
        let usage = |why: &str| Failure::Usage(format!("cannot offer --file {shown}: {why}"));
        let source = Source::open(path)?;
        let file = match read_only {
            true => None,
            false => Some(File::options().write(true).open(path).map_err(|e| {
                Failure::Environment(format!(
                    "cannot write {shown}: {e}; {shown}:ro only reads it"
                ))
            })?),
        };
        if source.bytes == 0 {
            return Err(usage("it is empty, and a segment has at least a byte"));
        }
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| usage("its name is not UTF-8"))?;
        let access = match read_only {
            true => Access::RemoteRead,
            false => Access::RemoteReadWrite,
        };
        let bytes = source.bytes;
        let region = Region::allocate(bytes, access).map_err(|e| {
            Failure::Environment(format!(
                "cannot hold the {bytes} bytes of --file {shown}: {e}"
            ))
        })?;
        // Peers may be there already, so it is filled before they can see it.
        each_chunk(bytes, |span, chunk| {
            source.read(span.offset, chunk)?;
            memory::copy_in(&region, span, chunk).map_err(|e| usage(&e.to_string()))
        })?;
        let region = engine
            .register_region(name, region)
            .map_err(|e| usage(&e.to_string()))
            .map(|segment| engine.region(segment))?
            .ok_or_else(|| usage("the engine does not know it"))?;
        Ok(Self {
            path: path.clone(),
            source,
            region,
            file,
        })
    }

    /// Puts what peers have written into the file and on the disk. Call it when no peer can write any more.
    pub(super) fn write_back(&self) -> Result<(), Failure> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let bytes = file.metadata().map_err(|e| self.failed(&e))?.len();
        if bytes != self.source.bytes {
            return Err(self.failed(&format_args!(
                "it had {} bytes when it was read and has {bytes} now",
                self.source.bytes
            )));
        }
        let mut there = vec![0; CHUNK_BYTES as usize];
        each_chunk(bytes, |span, chunk| {
            let there = &mut there[..chunk.len()];
            memory::copy_out(&self.region, span, chunk).map_err(|e| self.failed(&e))?;
            self.source.read(span.offset, there)?;
            if there != chunk {
                file.write_all_at(chunk, span.offset)
                    .map_err(|e| self.failed(&e))?;
            }
            Ok(())
        })?;
        file.sync_all().map_err(|e| self.failed(&e))
    }

    fn failed(&self, why: &dyn std::fmt::Display) -> Failure {
        Failure::Environment(format!("{} is not up to date: {why}", self.path.display()))
    }
}

/// Calls `touch` with each chunk's place, and a buffer of its length.
fn each_chunk(
    bytes: u64,
    mut touch: impl FnMut(Span, &mut [u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut buffer = vec![0; CHUNK_BYTES as usize];
    for offset in (0..bytes).step_by(CHUNK_BYTES as usize) {
        let bytes = (bytes - offset).min(CHUNK_BYTES);
        touch(Span { offset, bytes }, &mut buffer[..bytes as usize])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_be_for_reading_only() {
        let expected = |path: &str, read_only| {
            Ok(FileArg {
                path: path.into(),
                read_only,
            })
        };
        assert_eq!(file("/data/weights"), expected("/data/weights", false));
        assert_eq!(file("weights:ro"), expected("weights", true));
        assert_eq!(file("a:rw"), expected("a:rw", false));
        for text in ["", "/", ":ro", ".."] {
            assert!(file(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_was_written_goes_back_only_to_a_file_of_the_same_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1; 3_000_000]).unwrap();
        let engine = Engine::new(polyrail::Config::default()).unwrap();
        let arg = file(path.to_str().unwrap()).unwrap();
        let offered = Offered::new(&engine, &arg).unwrap();
        let span = Span {
            offset: 2_000_000,
            bytes: 5,
        };
        memory::copy_in(&offered.region, span, &[2; 5]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), vec![1; 3_000_000]);
        offered.write_back().unwrap();
        let mut expected = vec![1; 3_000_000];
        expected[2_000_000..2_000_005].fill(2);
        assert!(std::fs::read(&path).unwrap() == expected);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(10)
            .unwrap();
        let failure = offered.write_back().unwrap_err();
        assert!(failure.to_string().contains("has 10 now"), "{failure}");
        assert_eq!(std::fs::read(&path).unwrap().len(), 10);
    }
}
