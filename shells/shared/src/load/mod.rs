//! The load record of this user's processes: where it is, who is in it, and who has ended.
//!
//! What is in it, and what is believed of it, is core's: [`polyrail_core::rail::diffusion`]. The record is a file in
//! memory, one for each user, pid namespace and network namespace, because numbers of processes and names of
//! interfaces mean the same only inside one. It is 34 KiB, and stays when everybody has gone: a row that is free costs nothing, and who removed it would leave those
//! alone who are just joining.

mod file;

use std::fmt;
use std::fs;
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use polyrail_core::rail::diffusion::{
    Diffusion, DiffusionConfig, Geometry, ProcessId, Record, RecordError,
};

pub use file::MapError;

use crate::{host_now, is_gone, own_process};

/// Where records are, but for tests.
pub const FOLDER: &str = "/dev/shm";

/// Devices that a record has room for.
pub const COLUMNS: u16 = 64;

/// Of all records of this version.
const GEOMETRY: Geometry = Geometry {
    rows: 64,
    columns: COLUMNS,
};

/// Why this process has no part in a record.
#[derive(Debug)]
pub enum JoinError {
    /// The system does not say which process this is.
    Unknown,
    /// The file cannot be mapped.
    Map(MapError),
    /// The file is something else.
    Record(RecordError),
    /// All rows are those of living processes.
    Full,
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("this process cannot say who it is"),
            Self::Map(error) => error.fmt(f),
            Self::Record(error) => error.fmt(f),
            Self::Full => write!(f, "{} processes share their load already", GEOMETRY.rows),
        }
    }
}

impl std::error::Error for JoinError {}

/// A device's name to all processes: FNV-1a of its name on this host.
pub fn device_name(name: &str) -> NonZeroU64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN)
}

/// Takes a row in the record in `folder` ([`FOLDER`]); makes the record if there is none. Give the row back with
/// [`Diffusion::leave`], in the process that took it: not in a child made by `fork`.
pub fn join(folder: &Path, config: DiffusionConfig) -> Result<Diffusion<'static>, JoinError> {
    let own = own_process().ok_or(JoinError::Unknown)?;
    let id = ProcessId::new(own.pid, own.started).ok_or(JoinError::Unknown)?;
    let user = rustix::process::geteuid().as_raw();
    let namespace = |path| {
        let found = fs::metadata(path).map_err(|_| JoinError::Unknown)?;
        Ok(found.ino())
    };
    let pids = namespace("/proc/self/ns/pid")?;
    let interfaces = namespace("/proc/thread-self/ns/net")?;
    let name = format!("polyrail-load-{user}-{pids}-{interfaces}");
    let words = file::words(&folder.join(name), GEOMETRY.words()).map_err(JoinError::Map)?;
    let record = Record::new(words, GEOMETRY).map_err(JoinError::Record)?;
    let take = || Diffusion::join(host_now(), record, id, config);
    take()
        .or_else(|| {
            bury(&record);
            take()
        })
        .ok_or(JoinError::Full)
}

/// Frees the rows of processes that have ended, and says how many: now and then, a second apart. Reads a few lines
/// from the kernel for each row.
pub fn bury(record: &Record<'_>) -> usize {
    let dead = record.holders().filter(|holder| {
        let process = holder.process;
        is_gone(process.pid(), |started| process.began(started)) && record.reclaim(holder)
    });
    dead.inspect(|holder| log::debug!("process {} has ended", holder.process.pid()))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_core::rail::diffusion::{WEIGHT_ONE, Weight};
    use polyrail_core::time::Duration;

    #[test]
    fn names_are_the_published_hash() {
        // From the FNV specification's test vectors.
        assert_eq!(device_name("").get(), 0xcbf2_9ce4_8422_2325);
        assert_eq!(device_name("foobar").get(), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_full_record_is_cleared_of_the_dead_only() {
        let folder = tempfile::tempdir().unwrap();
        let config = DiffusionConfig {
            weight: Weight::new(WEIGHT_ONE).unwrap(),
            stale_after: Duration::from_secs(10),
        };
        let own = join(folder.path(), config).unwrap();
        let record = own.record();
        // This process's number with another start: its owner of before. It cannot be joined for, so by hand.
        let dead = ProcessId::new(std::process::id(), 1).unwrap();
        let rows = usize::from(GEOMETRY.rows);
        for _ in 1..rows {
            Diffusion::join(host_now(), *record, dead, config).unwrap();
        }
        assert_eq!(record.holders().count(), rows);
        let second = join(folder.path(), config).unwrap();
        assert!(record.holders().all(|holder| holder.process != dead));
        assert_eq!(record.holders().count(), 2);
        let full: Vec<_> = (2..rows)
            .map(|_| join(folder.path(), config).unwrap())
            .collect();
        assert!(matches!(join(folder.path(), config), Err(JoinError::Full)));
        for one in full {
            one.leave();
        }
        second.leave();
        own.leave();
    }
}
