//! The file that is copied to. It has its name only once all of it is there and on the disk; until then it has none, and
//! goes with the process, however that ends. Where a file system knows no such files it is a hidden one beside it, which
//! goes when the copy fails. Who may want to go on later has it under a name beside it from the beginning.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, linkat};
use tempfile::{Builder, TempPath};

use crate::exit::Failure;

/// How hidden files are called.
const HIDDEN: &str = ".polyrail-cp-";

/// What is behind the name of a file that is not all there.
const PART: &str = ".polyrail-part";

/// The name that a file has until all of it is there.
#[derive(Debug)]
enum Own {
    /// None.
    Nothing,
    /// One that goes with the copy.
    Hidden(TempPath),
    /// One that stays if the copy fails.
    Part(PathBuf),
}

/// A file that is being written.
#[derive(Debug)]
pub(super) struct Sink {
    file: File,
    own: Own,
    /// What it will be called.
    path: PathBuf,
    folder: PathBuf,
}

impl Sink {
    /// Begins a file that is to be called `path`; one that is there already stays as it is until the end.
    pub(super) fn create(path: &Path) -> Result<Self, Failure> {
        let (path, folder, permissions) = looked_at(path)?;
        let (file, own) = match without_name(&folder, &permissions) {
            Some(file) => (file, Own::Nothing),
            None => {
                let named = Builder::new()
                    .prefix(HIDDEN)
                    .permissions(permissions)
                    .tempfile_in(&folder)
                    .map_err(|e| cannot(&path, &e))?;
                let (file, hidden) = named.into_parts();
                (file, Own::Hidden(hidden))
            }
        };
        Ok(Self {
            file,
            own,
            path,
            folder,
        })
    }

    /// Goes on with the part of such a file that an earlier copy has left, or begins one: it is called like the file, with
    /// [`PART`] behind, and stays if this copy fails.
    pub(super) fn resume(path: &Path) -> Result<Self, Failure> {
        let (path, folder, permissions) = looked_at(path)?;
        let mut part = path.clone().into_os_string();
        part.push(PART);
        let part = PathBuf::from(part);
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&part)
            .map_err(|e| cannot(&part, &e))?;
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        locked.map_err(|_| cannot(&part, &"another copy writes it just now"))?;
        let allowed = file.set_permissions(permissions);
        allowed.map_err(|e| cannot(&part, &e))?;
        Ok(Self {
            file,
            own: Own::Part(part),
            path,
            folder,
        })
    }

    /// Where it will be.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What is there of it, to be read.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Cuts off what an earlier copy, of more bytes, has left behind.
    pub(super) fn cut(&self, bytes: u64) -> Result<(), Failure> {
        let cut = |before: fs::Metadata| match before.len() > bytes {
            true => self.file.set_len(bytes),
            false => Ok(()),
        };
        let cut = self.file.metadata().and_then(cut);
        cut.map_err(|error| self.failed(&error))
    }

    /// The same file, for whoever writes it.
    pub(super) fn handle(&self) -> Result<File, Failure> {
        let file = self.file.try_clone();
        file.map_err(|error| self.failed(&error))
    }

    /// It could not be written. A full disk is a common reason.
    pub(super) fn failed(&self, why: &dyn std::fmt::Display) -> Failure {
        cannot(&self.path, why)
    }

    /// Puts it on the disk and gives it its name.
    pub(super) fn finish(self) -> Result<(), Failure> {
        let Self {
            file,
            own,
            path,
            folder,
        } = self;
        file.sync_all().map_err(|e| cannot(&path, &e))?;
        // What is there already can only be replaced by a file that has a name.
        let hidden = match own {
            Own::Part(part) => {
                fs::rename(part, &path).map_err(|e| cannot(&path, &e))?;
                None
            }
            Own::Hidden(hidden) => Some(hidden),
            Own::Nothing => Some(name(&file, &folder).map_err(|e| cannot(&path, &e))?),
        };
        if let Some(hidden) = hidden {
            hidden.persist(&path).map_err(|e| cannot(&path, &e.error))?;
        }
        // Some file systems cannot sync a directory; the bytes are safe by now.
        if let Err(e) = File::open(&folder).and_then(|folder| folder.sync_all()) {
            log::debug!("cannot sync {}: {e}", folder.display());
        }
        Ok(())
    }
}

/// Where a file will be, its folder, and who may do what with it; an error if it cannot be there.
fn looked_at(path: &Path) -> Result<(PathBuf, PathBuf, fs::Permissions), Failure> {
    let usage = |text: String| Failure::Usage(format!("cannot write {}: {text}", path.display()));
    // Through a link, so that the copy is where the link leads.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let before = fs::metadata(path).ok();
    if before.as_ref().is_some_and(|before| !before.is_file()) {
        return Err(usage("it is no regular file".into()));
    }
    let (Some(_), Some(folder)) = (path.file_name(), path.parent()) else {
        return Err(usage("it names no file".into()));
    };
    let folder = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    };
    if !folder.is_dir() {
        return Err(usage(format!("there is no directory {}", folder.display())));
    }
    let permissions = before.map_or(fs::Permissions::from_mode(0o666), |b| b.permissions());
    Ok((path.to_owned(), folder.to_owned(), permissions))
}

/// A file in a folder, but without a name. `None`: the file system has no such files.
fn without_name(folder: &Path, permissions: &fs::Permissions) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(permissions.mode());
    let file = rustix::fs::open(folder, flags, mode);
    Some(file.ok()?.into())
}

/// Gives it a hidden one.
fn name(file: &File, folder: &Path) -> std::io::Result<TempPath> {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = |to: &Path| Ok(linkat(CWD, &*from, CWD, to, AtFlags::SYMLINK_FOLLOW)?);
    let named = Builder::new().prefix(HIDDEN).make_in(folder, link)?;
    Ok(named.into_temp_path())
}

fn cannot(path: &Path, why: &dyn std::fmt::Display) -> Failure {
    Failure::Environment(format!("cannot write {}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn write(sink: &Sink, offset: u64, bytes: &[u8]) {
        let file = sink.handle().unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_file_has_its_name_and_its_old_mode_only_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "before").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let sink = Sink::create(&path).unwrap();
        write(&sink, 3, b"er");
        write(&sink, 0, b"aft");
        assert_eq!(fs::read(&path).unwrap(), b"before");
        if matches!(sink.own, Own::Nothing) {
            let nothing_else = vec!["file".to_owned()];
            assert_eq!(names(folder.path()), nothing_else, "a kill leaves nothing");
        }
        sink.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"after");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(
            (mode & 0o777, names(folder.path())),
            (0o640, vec!["file".into()])
        );
    }

    #[test]
    fn nothing_is_left_of_a_file_that_was_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let sink = Sink::create(&folder.path().join("file")).unwrap();
        write(&sink, 0, b"half");
        drop(sink);
        assert_eq!(names(folder.path()), [""; 0]);
    }

    #[test]
    fn a_part_stays_for_who_goes_on_with_it_and_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let sink = Sink::resume(&path).unwrap();
        write(&sink, 0, b"half");
        let failure = Sink::resume(&path).unwrap_err();
        assert!(failure.to_string().contains("another copy"), "{failure}");
        drop(sink);
        assert_eq!(names(folder.path()), ["file.polyrail-part"]);
        let sink = Sink::resume(&path).unwrap();
        write(&sink, 4, b" and half");
        sink.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"half and half");
        assert_eq!(names(folder.path()), ["file"]);
    }

    #[test]
    fn a_file_system_without_nameless_files_will_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let (file, hidden) = Builder::new()
            .prefix(HIDDEN)
            .tempfile_in(&folder)
            .unwrap()
            .into_parts();
        let sink = Sink {
            file,
            own: Own::Hidden(hidden),
            path: path.clone(),
            folder: folder.path().to_owned(),
        };
        write(&sink, 0, b"after");
        sink.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"after");
        assert_eq!(names(folder.path()), ["file"]);
    }

    #[test]
    fn the_copy_is_where_a_link_leads() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "before").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let sink = Sink::create(&link).unwrap();
        write(&sink, 0, b"after");
        sink.finish().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"after");
    }

    #[test]
    fn only_regular_files_in_directories_are_written() {
        for path in ["/", "/tmp", "/dev/null", "/no/such/folder/file", ".."] {
            let failure = Sink::create(Path::new(path)).unwrap_err();
            assert!(matches!(failure, Failure::Usage(_)), "{path}: {failure}");
        }
    }
}
