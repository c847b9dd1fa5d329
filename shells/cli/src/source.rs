//! A file or block device whose bytes are taken.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use crate::exit::Failure;

/// What is read, as long as it was when it was opened.
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    path: PathBuf,
    pub(crate) bytes: u64,
}

impl Source {
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let cannot = |e: io::Error| {
            let text = format!("cannot read {}: {e}", path.display());
            Failure::from_engine(e.kind() == io::ErrorKind::NotFound, text)
        };
        // Looked at first: to open a pipe would wait for somebody to write to it.
        let kind = std::fs::metadata(path).map_err(cannot)?.file_type();
        if !(kind.is_file() || kind.is_block_device()) {
            return Err(Failure::Usage(format!(
                "cannot read {}: it is no regular file and no block device",
                path.display()
            )));
        }
        let file = File::open(path).map_err(cannot)?;
        let bytes = length(&file).map_err(cannot)?;
        Ok(Self {
            file,
            path: path.to_owned(),
            bytes,
        })
    }

    /// Reads all of `to` from `offset` on.
    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Failure> {
        let mut read = 0;
        while read < to.len() {
            match self.file.read_at(&mut to[read..], offset + read as u64) {
                Ok(0) => return Err(self.truncated(offset + read as u64)),
                Ok(bytes) => read += bytes,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    return Err(Failure::Environment(format!(
                        "cannot read {} at {}: {e}",
                        self.path.display(),
                        offset + read as u64
                    )));
                }
            }
        }
        Ok(())
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The same file, for somebody else who reads it.
    pub(crate) fn handle(&self) -> Result<File, Failure> {
        self.file.try_clone().map_err(|error| self.failed(&error))
    }

    /// Somebody else could not read it.
    pub(crate) fn failed(&self, why: &dyn std::fmt::Display) -> Failure {
        match length(&self.file) {
            Ok(now) if now < self.bytes => self.truncated(now),
            _ => Failure::Environment(format!("cannot read {}: {why}", self.path.display())),
        }
    }

    /// It has no byte at `end`, although it had once.
    fn truncated(&self, end: u64) -> Failure {
        let now = length(&self.file).unwrap_or(end);
        Failure::Environment(format!(
            "{} was truncated while it was read: it had {} bytes and has {now} now",
            self.path.display(),
            self.bytes
        ))
    }
}

/// The regular files of a directory and of those in it, by their paths in it, in order. Links are not followed.
pub(crate) fn walk(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    let mut left = vec![PathBuf::new()];
    while let Some(inner) = left.pop() {
        let folder = directory.join(&inner);
        let cannot = |e: io::Error| {
            let text = format!("cannot read the directory {}: {e}", folder.display());
            Failure::from_engine(e.kind() == io::ErrorKind::NotFound, text)
        };
        for entry in std::fs::read_dir(&folder).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            let kind = entry.file_type().map_err(cannot)?;
            let path = inner.join(entry.file_name());
            if kind.is_dir() {
                left.push(path);
            } else if kind.is_file() {
                found.push(path);
            } else {
                log::warn!(
                    "{} is left out: it is no regular file",
                    directory.join(path).display()
                );
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// How long it is now. Block devices have no length in their metadata; nobody uses the position that this changes.
fn length(mut file: &File) -> io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_shrinks_is_an_error_that_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 1000]).unwrap();
        let source = Source::open(&path).unwrap();
        let mut bytes = [0; 600];
        assert_eq!(source.read(400, &mut bytes), Ok(()));
        assert_eq!(bytes, [7; 600]);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(700)
            .unwrap();
        let failure = source.read(400, &mut bytes).unwrap_err();
        let text = failure.to_string();
        assert!(
            matches!(failure, Failure::Environment(_))
                && text.contains("1000")
                && text.contains("700"),
            "{text}"
        );
    }

    #[test]
    fn only_files_and_block_devices_are_opened() {
        // (path, usage error)
        for (path, usage) in [("/no/such/file", true), ("/", true), ("/dev/null", true)] {
            let failure = Source::open(Path::new(path)).unwrap_err();
            assert_eq!(matches!(failure, Failure::Usage(_)), usage, "{failure}");
            assert!(failure.to_string().contains(path), "{failure}");
        }
    }
}
