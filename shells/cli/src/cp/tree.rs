//! Directories: each file of one is a segment of a target, `DIRECTORY/PATH`.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::place::Segment;
use super::sink::Sink;
use super::{Copied, Copier, CpArgs};
use crate::calls::ask::Owner;
use crate::exit::Failure;
use crate::serve::SEGMENT;
use crate::source::{Source, walk};

/// Fetches all files that a target offers in a directory. One that is there takes them in under its name, as `cp -r` does.
pub(super) fn download(args: &CpArgs, from: &Segment, to: &Path) -> Result<Copied, Failure> {
    let copier = Copier::new(args)?;
    let listed = list(&copier, from)?;
    let into = match (to.is_dir(), Path::new(&from.name).file_name()) {
        (true, Some(name)) => to.join(name),
        _ => to.to_owned(),
    };
    let mut all = Copied::default();
    for (path, bytes) in listed {
        let file = into.join(&path);
        let folder = file.parent().unwrap_or(&into);
        fs::create_dir_all(folder).map_err(|e| {
            Failure::Environment(format!(
                "cannot make the directory {}: {e}",
                folder.display()
            ))
        })?;
        let sink = match args.resume {
            true => Sink::resume(&file)?,
            false => Sink::create(&file)?,
        };
        let segment = part(from, &path);
        all.add(match bytes {
            // No segment has no byte.
            0 => {
                sink.cut(0)?;
                sink.finish()?;
                Copied::default()
            }
            _ => copier.fetch(&segment, sink)?,
        });
    }
    Ok(all)
}

/// Sends all files of a directory to the segments of their names, which the target has to have.
pub(super) fn upload(args: &CpArgs, from: &Path, to: &Segment) -> Result<Copied, Failure> {
    let files = walk(from)?;
    let copier = Copier::new(args)?;
    let there = list(&copier, to)?;
    let mut wanted = Vec::new();
    // What does not fit is said before anything is written.
    for path in files {
        let file = from.join(&path);
        let source = Source::open(&file)?;
        let segment = part(to, &path);
        let size = there
            .iter()
            .find(|(known, _)| *known == path)
            .map(|(_, bytes)| *bytes);
        match size {
            Some(bytes) if bytes == source.bytes => {}
            Some(bytes) => {
                return Err(Failure::Usage(format!(
                    "{segment} has {bytes} bytes, and {} has {}: they have to be of one size",
                    file.display(),
                    source.bytes
                )));
            }
            None => {
                return Err(Failure::Usage(format!(
                    "there is no {segment} for {}: the target makes no files, it offers those of serve --file",
                    file.display()
                )));
            }
        }
        wanted.push((source, segment));
    }
    let mut all = Copied::default();
    for (source, segment) in &wanted {
        all.add(match source.bytes {
            0 => Copied::default(),
            _ => copier.send(source, segment)?,
        });
    }
    Ok(all)
}

/// The file of a directory.
fn part(of: &Segment, path: &Path) -> Segment {
    Segment {
        target: of.target.clone(),
        name: format!("{}/{}", of.name.trim_end_matches('/'), path.display()),
        offset: 0,
    }
}

/// The files of a directory that a target offers, and their sizes.
fn list(copier: &Copier<'_>, of: &Segment) -> Result<Vec<(PathBuf, u64)>, Failure> {
    let Segment {
        target,
        name,
        offset,
    } = of;
    if *offset > 0 {
        let text = format!("{of} is a directory with --recursive, and has no offset");
        return Err(Failure::Usage(text));
    }
    let memory = Segment {
        name: SEGMENT.to_owned(),
        ..of.clone()
    };
    let owner = Owner {
        engine: &copier.engine,
        remote: copier.open(&memory)?.remote,
        target,
    };
    let prefix = format!("{}/", name.trim_end_matches('/'));
    let listed = owner.list(&prefix)?;
    if listed.is_empty() {
        let text = format!(
            "target {target} offers no files in a directory {name}: serve --file DIRECTORY does"
        );
        return Err(Failure::Usage(text));
    }
    let path = |(name, bytes): (String, u64)| {
        let path = name.strip_prefix(&prefix).filter(|path| is_inside(path));
        let path = path.map(|path| (PathBuf::from(path), bytes));
        path.ok_or_else(|| {
            let name = name.escape_debug();
            Failure::Environment(format!(
                "target {target} names a file that is outside of {prefix}: \"{name}\""
            ))
        })
    };
    listed.into_iter().map(path).collect()
}

/// Whether a path leads nowhere else, whatever a target says.
fn is_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    !path.is_empty()
        && !path.contains('\0')
        && parts.all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_target_says_leads_nowhere_else() {
        for path in ["a", "a/b", "..a/b..", "a b"] {
            assert!(is_inside(path), "{path}");
        }
        for path in ["", "/a", "../a", "a/../b", "a/..", "./a", "a\0b"] {
            assert!(!is_inside(path), "{path:?}");
        }
    }
}
