//! The file of a record that all processes of a user make together, and nobody owns.
//!
//! Its pages are allocated before it is mapped, so a full file system is an error here and no signal later. A file
//! that is made shorter while it is mapped ends with SIGBUS whoever touches it. Therefore only files are mapped that
//! nobody but this user can write to, who might as well kill the process.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::process::geteuid;

use crate::foreign_owner;
use crate::mapping::Mapping;

/// Why a file is not mapped.
#[derive(Debug)]
pub enum MapError {
    /// The system said no.
    System(io::Error),
    /// It is another user's. That user or root can remove it.
    Foreign {
        /// Which file.
        path: PathBuf,
        /// The number of that user.
        owner: u32,
    },
    /// It is not a plain file that nobody else may touch.
    NotOurs {
        /// What is wrong.
        what: &'static str,
    },
    /// It has another size: another program's, or another version's.
    OtherSize {
        /// Its bytes.
        bytes: u64,
        /// The bytes asked for.
        expected: u64,
    },
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) => error.fmt(f),
            Self::Foreign { path, owner } => write!(
                f,
                "{} belongs to user {owner}, not {}: that user or root can remove it",
                path.display(),
                geteuid().as_raw()
            ),
            Self::NotOurs { what } => f.write_str(what),
            Self::OtherSize { bytes, expected } => {
                write!(f, "{bytes} bytes instead of {expected}")
            }
        }
    }
}

impl std::error::Error for MapError {}

impl From<io::Error> for MapError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// What this process has mapped already.
static MAPPED: Mutex<BTreeMap<PathBuf, &'static [AtomicU64]>> = Mutex::new(BTreeMap::new());

/// The file as so many words, for as long as this process lives; a new file is zeros. Mapped once, however often it is
/// asked for.
pub(super) fn words(path: &Path, count: usize) -> Result<&'static [AtomicU64], MapError> {
    let mut mapped = MAPPED
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(words) = mapped.get(path).filter(|words| words.len() == count) {
        return Ok(words);
    }
    let bytes = count * size_of::<AtomicU64>();
    let file = open(path, bytes as u64)?;
    let mapping = Mapping::new(file.as_fd(), count).map_err(io::Error::from)?;
    let words: &'static [AtomicU64] = Box::leak(Box::new(mapping));
    mapped.insert(path.to_owned(), words);
    Ok(words)
}

/// Opens or makes the file. Two processes that do so at once both find it with the size that both want.
fn open(path: &Path, bytes: u64) -> Result<File, MapError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
        .open(path);
    let foreign = |owner| MapError::Foreign {
        path: path.to_owned(),
        owner,
    };
    let file = file.map_err(|error| {
        let owner = foreign_owner(path).filter(|_| error.kind() == io::ErrorKind::PermissionDenied);
        owner.map_or(MapError::System(error), foreign)
    })?;
    let found = file.metadata()?;
    let wrong = [
        ("no plain file", !found.is_file()),
        ("open to other users", found.mode() & 0o077 != 0),
        ("of several names", found.nlink() != 1),
    ];
    if found.uid() != geteuid().as_raw() {
        return Err(foreign(found.uid()));
    }
    if let Some((what, _)) = wrong.into_iter().find(|(_, wrong)| *wrong) {
        return Err(MapError::NotOurs { what });
    }
    if found.len() != 0 && found.len() != bytes {
        return Err(MapError::OtherSize {
            bytes: found.len(),
            expected: bytes,
        });
    }
    fallocate(&file, FallocateFlags::empty(), 0, bytes).map_err(io::Error::from)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::Ordering::*;

    #[test]
    fn a_file_is_mapped_once_and_keeps_what_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("words");
        let first = words(&path, 100).unwrap();
        assert_eq!(first.iter().map(|word| word.load(Relaxed)).max(), Some(0));
        first[99].store(7, Relaxed);
        assert!(std::ptr::eq(first, words(&path, 100).unwrap()));
        let written = fs::read(&path).unwrap();
        assert_eq!(
            (written.len(), &written[792..]),
            (800, &7_u64.to_ne_bytes()[..])
        );
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn of_a_file_of_another_user_it_is_said_whose_it_is_and_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("words");
        fs::write(&path, [0; 16]).unwrap();
        let refused = |ours: u32| {
            let error = words(&path, 2).unwrap_err().to_string();
            let expected = format!("{} belongs to user 0, not {ours}", path.display());
            assert!(
                error.starts_with(&expected) && error.contains("remove"),
                "{error}"
            );
        };
        crate::tests::as_another_user(folder.path(), refused);
        // As of one that everybody may write to.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        crate::tests::as_another_user(folder.path(), refused);
    }

    #[test]
    fn what_others_could_touch_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("open"), []).unwrap();
        fs::set_permissions(path("open"), fs::Permissions::from_mode(0o620)).unwrap();
        fs::write(path("long"), [0; 8]).unwrap();
        fs::set_permissions(path("long"), fs::Permissions::from_mode(0o600)).unwrap();
        words(&path("once"), 1).unwrap();
        fs::hard_link(path("once"), path("twice")).unwrap();
        std::os::unix::fs::symlink(path("target"), path("link")).unwrap();
        // (name, what is said of it)
        let cases = [
            ("open", "open to other users"),
            ("long", "8 bytes instead of 16"),
            ("twice", "of several names"),
            ("link", "Too many levels of symbolic links"),
            ("missing/file", "No such file"),
            ("", "Is a directory"),
        ];
        for (name, text) in cases {
            let error = words(&path(name), 2).unwrap_err().to_string();
            assert!(error.contains(text), "{name}: {error}");
        }
        assert!(!path("target").exists());
    }
}
