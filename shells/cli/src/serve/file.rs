//! Files that a target offers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use polyrail::{Access, Engine, FileError, FileTerms, SegmentId};

use crate::exit::Failure;
use crate::source::{Source, walk};

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
#[derive(Clone)]
pub(super) struct Offered {
    path: PathBuf,
    name: String,
    read_only: bool,
    source: Arc<Source>,
}

impl Offered {
    /// Opens a file to read it, or all files of a directory.
    pub(super) fn all(arg: &FileArg) -> Result<Vec<Self>, Failure> {
        let FileArg { path, read_only } = arg;
        if !path.is_dir() {
            return Ok(vec![Self::open(arg)?]);
        }
        let base = path.file_name().and_then(|name| name.to_str());
        let base = base.ok_or_else(|| refused(path, &"its name is not UTF-8"))?;
        let one = |inner: PathBuf| {
            let name = inner.to_str().map(|inner| format!("{base}/{inner}"));
            let path = path.join(&inner);
            let name = name.ok_or_else(|| refused(&path, &"its name is not UTF-8"))?;
            Ok(Self {
                source: Arc::new(Source::open(&path)?),
                path,
                name,
                read_only: *read_only,
            })
        };
        walk(path)?.into_iter().map(one).collect()
    }

    /// Opens a file to read it.
    fn open(arg: &FileArg) -> Result<Self, Failure> {
        let FileArg { path, read_only } = arg;
        let source = Source::open(path)?;
        if source.bytes == 0 {
            return Err(refused(
                path,
                &"it is empty, and a segment has at least a byte",
            ));
        }
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| refused(path, &"its name is not UTF-8"))?;
        Ok(Self {
            path: path.clone(),
            name: name.to_owned(),
            read_only: *read_only,
            source: Arc::new(source),
        })
    }

    /// Its name and what is in it, for checksums.
    pub(super) fn summed(&self) -> (String, Arc<Source>) {
        (self.name.clone(), self.source.clone())
    }

    /// Offers it under its base name, in a directory under that and its path there. `None`: it has no byte, and no segment is
    /// so short; who asks what there is hears of it all the same.
    pub(super) fn offer(&self, engine: &Engine) -> Result<Option<SegmentId>, Failure> {
        if self.source.bytes == 0 {
            return Ok(None);
        }
        let (shown, read_only) = (self.path.display(), self.read_only);
        let terms = FileTerms {
            read_only,
            ..FileTerms::default()
        };
        let segment = engine.open_file(&self.path, &terms).map_err(|e| match e {
            FileError::Open { source, .. } if !read_only => Failure::Environment(format!(
                "cannot write {shown}: {source}; {shown}:ro only reads it"
            )),
            other => refused(&self.path, &other),
        })?;
        let access = match read_only {
            true => Access::RemoteRead,
            false => Access::RemoteReadWrite,
        };
        let offered = engine.offer_file(segment, &self.name, access);
        offered.map_err(|e| refused(&self.path, &e))?;
        Ok(Some(segment))
    }

    /// Puts what peers have written on the disk. Call it when no peer can write any more.
    pub(super) fn sync(&self, engine: &Engine, segment: SegmentId) -> Result<(), Failure> {
        if self.read_only {
            return Ok(());
        }
        engine.sync_file(segment).map_err(|e| {
            Failure::Environment(format!(
                "{} may not be on the disk: {e}",
                self.path.display()
            ))
        })
    }
}

fn refused(path: &Path, why: &dyn std::fmt::Display) -> Failure {
    let shown = path.display();
    Failure::Usage(format!("cannot offer --file {shown}: {why}"))
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
}
