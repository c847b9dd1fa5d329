//! Descriptors of the process: as many as the system allows, and some of them kept for connections.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::error::Limit;

/// What is kept for connections, threads and the like: a part of all, so many at least and at most.
const KEPT_PART: u64 = 8;
const KEPT_MIN: u64 = 32;
const KEPT_MAX: u64 = 1024;

/// Raises the soft limit to `wanted`, or to the hard one if that is less. It is never lowered.
pub(crate) fn raise(wanted: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    let Some(soft) = limit.current else {
        return;
    };
    let most = limit.maximum.map_or(wanted, |hard| hard.min(wanted));
    if most <= soft {
        return;
    }
    limit.current = Some(most);
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => log::debug!("the soft limit of descriptors is {most} now, and was {soft}"),
        Err(error) => log::warn!("the soft limit of descriptors stays {soft}: {error}"),
    }
}

/// Whether a descriptor that a new segment is to keep may be kept: the kernel gives the lowest that is free, so all below it
/// are in use. What fails first is then a segment, and no connection.
pub(crate) fn check(file: BorrowedFd<'_>) -> Result<(), Limit> {
    let Some(most) = getrlimit(Resource::Nofile).current else {
        return Ok(());
    };
    let kept = kept_of(most);
    let number = u64::try_from(file.as_raw_fd()).unwrap_or(u64::MAX);
    if number < most.saturating_sub(kept) {
        return Ok(());
    }
    Err(Limit {
        what: "descriptors",
        most: usize::try_from(most).unwrap_or(usize::MAX),
        key: "limits/descriptors, up to the hard limit of the process, ulimit -Hn",
        held_by: format!(
            "this process has all but the {kept} that are kept for connections; each file, and each segment that peers may \
             map, takes one"
        ),
    })
}

/// How many are open, and how many may be. `None`: the system does not say.
pub(crate) fn used() -> Option<(usize, usize)> {
    let most = usize::try_from(getrlimit(Resource::Nofile).current?).ok()?;
    // Since Linux 6.2 the folder's length is their number; before, it has to be read.
    let open = match std::fs::metadata("/proc/self/fd").ok()?.len() {
        0 => std::fs::read_dir("/proc/self/fd").ok()?.count(),
        count => usize::try_from(count).ok()?,
    };
    Some((open, most))
}

fn kept_of(most: u64) -> u64 {
    (most / KEPT_PART).clamp(KEPT_MIN, KEPT_MAX)
}
