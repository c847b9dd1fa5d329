//! The file that holds the record: who makes it, who may use it, when it goes.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use polyrail_core::path::hint::{MAGIC, SLOTS_MAX, words_for};
use rustix::fs::{
    FallocateFlags, FileType, FlockOperation, Mode, OFlags, Stat, fallocate, flock, fstat, open,
    stat, unlink,
};
use rustix::io::{Errno, pread};
use rustix::process::geteuid;

use super::HintFileError;
use crate::foreign_owner;
use crate::mapping::Mapping;

const WORD_BYTES: u64 = size_of::<u64>() as u64;
/// How often a file may be replaced under our hands before we give up.
const REPLACED_MAX: usize = 8;

/// Where agent and clients of one user meet if nobody says otherwise.
pub fn default_path() -> PathBuf {
    let user = geteuid().as_raw();
    PathBuf::from(format!("/dev/shm/polyrail-hint-{user}"))
}

/// The agent's file: locked against other agents, and gone when this is dropped.
#[derive(Debug)]
pub struct AgentFile {
    mapping: Mapping,
    path: PathBuf,
    /// Holds the lock.
    file: OwnedFd,
}

impl AgentFile {
    /// Makes the file, for so many connections. One that an agent left behind when it was killed is taken over, so
    /// that clients that have it mapped notice; anything else at that place is left alone.
    pub fn create(path: &Path, slots: u32) -> Result<Self, HintFileError> {
        let bytes = words_for(slots.min(SLOTS_MAX)) as u64 * WORD_BYTES;
        for _ in 0..REPLACED_MAX {
            let file = open_at(path, OFlags::CREATE)?;
            let size = regular(path, &file)?;
            lock(path, &file)?;
            // Its agent may have ended, and removed it, before we had the lock.
            if !is_at(path, &file) {
                continue;
            }
            if size > 0 && !is_record(&file) {
                let path = path.to_owned();
                return Err(HintFileError::NotARecord { path });
            }
            if size > 0 && size != bytes {
                unlink(path).map_err(|e| system(path, "remove", e))?;
                continue;
            }
            // Not a hole: memory that is short must not be noticed by a signal.
            fallocate(&file, FallocateFlags::empty(), 0, bytes)
                .map_err(|e| system(path, "reserve memory for", e))?;
            let mapping = Mapping::new(file.as_fd(), (bytes / WORD_BYTES) as usize)
                .map_err(|e| system(path, "map", e))?;
            return Ok(Self {
                mapping,
                path: path.to_owned(),
                file,
            });
        }
        Err(system(path, "keep", Errno::BUSY))
    }
}

impl Deref for AgentFile {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.mapping
    }
}

impl Drop for AgentFile {
    fn drop(&mut self) {
        if is_at(&self.path, &self.file) {
            // Nobody is left to be told; a record without an agent harms nobody.
            let _ = unlink(&self.path);
        }
    }
}

/// A client's view of an agent's file.
#[derive(Debug)]
pub struct ClientFile {
    mapping: Mapping,
}

impl ClientFile {
    /// Opens an agent's file. After [`NoHint::Absent`](polyrail_core::path::hint::NoHint::Absent) or `Restarted` from
    /// a reader, open it anew: another agent may have made another one at the same place.
    pub fn open(path: &Path) -> Result<Self, HintFileError> {
        let file = open_at(path, OFlags::empty())?;
        let words = (regular(path, &file)? / WORD_BYTES).min(words_for(SLOTS_MAX) as u64);
        if words == 0 {
            let path = path.to_owned();
            return Err(HintFileError::NotARecord { path });
        }
        let mapping =
            Mapping::new(file.as_fd(), words as usize).map_err(|e| system(path, "map", e))?;
        Ok(Self { mapping })
    }
}

impl Deref for ClientFile {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.mapping
    }
}

fn open_at(path: &Path, flags: OFlags) -> Result<OwnedFd, HintFileError> {
    let flags = flags | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|error| {
        // Who it is that does not let us is what has to be known to do something about it.
        let owner = foreign_owner(path).filter(|_| error == Errno::ACCESS);
        match owner {
            Some(owner) => HintFileError::Foreign {
                path: path.to_owned(),
                owner,
            },
            None => system(path, "open", error),
        }
    })
}

/// The size of a file that is one, and ours or the administrator's: nobody else can make it shorter.
fn regular(path: &Path, file: &OwnedFd) -> Result<u64, HintFileError> {
    let Stat {
        st_uid: owner,
        st_mode,
        st_size,
        ..
    } = fstat(file).map_err(|e| system(path, "look at", e))?;
    let path = path.to_owned();
    if FileType::from_raw_mode(st_mode) != FileType::RegularFile {
        return Err(HintFileError::NotARecord { path });
    }
    if owner != geteuid().as_raw() && owner != 0 {
        return Err(HintFileError::Foreign { path, owner });
    }
    Ok(u64::try_from(st_size).unwrap_or(0))
}

fn lock(path: &Path, file: &OwnedFd) -> Result<(), HintFileError> {
    flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        Errno::WOULDBLOCK => HintFileError::InUse {
            path: path.to_owned(),
        },
        other => system(path, "lock", other),
    })
}

/// Whether this path leads to that file.
fn is_at(path: &Path, file: &OwnedFd) -> bool {
    let id = |stat: Stat| (stat.st_dev, stat.st_ino);
    matches!((stat(path), fstat(file)), (Ok(there), Ok(ours)) if id(there) == id(ours))
}

fn is_record(file: &OwnedFd) -> bool {
    let mut word = [0; WORD_BYTES as usize];
    matches!(pread(file, &mut word, 0), Ok(read) if read == word.len())
        && u64::from_ne_bytes(word) == MAGIC
}

fn system(path: &Path, what: &'static str, error: Errno) -> HintFileError {
    HintFileError::System {
        path: path.to_owned(),
        what,
        error: io::Error::from(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{host_now, own_process};
    use polyrail_core::path::hint::{Connection, HintReader, HintWriter, NoHint};
    use polyrail_core::path::share::Shares;
    use polyrail_core::time::Duration;
    use std::fs;
    use std::os::unix::fs::symlink;

    const CONNECTION: Connection = Connection {
        own: std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        peer: std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
    };

    fn start(path: &Path) -> HintWriter<AgentFile> {
        HintWriter::start(AgentFile::create(path, 4).unwrap(), host_now()).unwrap()
    }

    fn attach(path: &Path) -> HintReader<ClientFile> {
        let file = ClientFile::open(path).unwrap();
        let age_max = Duration::from_secs(600);
        HintReader::attach(file, own_process().unwrap(), CONNECTION, age_max).unwrap()
    }

    #[test]
    fn what_the_agent_writes_the_client_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hints");
        let mut agent = start(&path);
        let half = Some(Shares::pair(512));
        agent.set_all(half);
        let reader = attach(&path);
        assert_eq!(reader.read(host_now()), half);
        let lease = agent.leases().next().unwrap();
        assert_eq!(lease.client(), own_process());
        drop(agent);
        assert_eq!(reader.try_read(host_now()), Err(NoHint::Absent));
        assert!(!path.exists());
        assert!(ClientFile::open(&path).is_err());
    }

    #[test]
    fn a_file_has_one_agent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hints");
        let agent = start(&path);
        let refused = AgentFile::create(&path, 4).unwrap_err();
        assert!(matches!(refused, HintFileError::InUse { .. }), "{refused}");
        drop(agent);
        start(&path);
    }

    #[test]
    fn what_a_killed_agent_left_is_taken_over_or_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hints");
        let other = folder.path().join("other");
        for slots in [4, 8] {
            // As if killed: the file stays at its place.
            let agent = start(&other);
            fs::rename(&other, &path).unwrap();
            drop(agent);
            let agent = AgentFile::create(&path, slots).unwrap();
            assert_eq!(agent.len(), words_for(slots));
            let agent = HintWriter::start(agent, host_now()).unwrap();
            assert_eq!(agent.leases().count(), 0);
            attach(&path);
        }
    }

    #[test]
    fn of_a_file_of_another_user_it_is_said_whose_it_is_and_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hints");
        fs::write(&path, "").unwrap();
        crate::tests::as_another_user(folder.path(), |user| {
            for error in [
                AgentFile::create(&path, 4).unwrap_err(),
                ClientFile::open(&path).unwrap_err(),
            ] {
                let error = error.to_string();
                let expected = format!("{} belongs to user 0, not {user}", path.display());
                assert!(
                    error.starts_with(&expected) && error.contains("remove"),
                    "{error}"
                );
            }
        });
    }

    #[test]
    fn what_is_no_record_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name| folder.path().join(name);
        fs::write(place("letter"), "to whom it may concern").unwrap();
        symlink(place("nowhere"), place("link")).unwrap();
        // (name, part of the error)
        let cases = [
            ("letter", "no hint record"),
            ("link", "open"),
            (".", "open"),
            ("missing/hints", "open"),
        ];
        for (name, part) in cases {
            let error = AgentFile::create(&place(name), 4).unwrap_err().to_string();
            assert!(error.contains(part), "{name}: {error}");
        }
        assert_eq!(
            fs::read(place("letter")).unwrap(),
            b"to whom it may concern"
        );
        assert!(!place("nowhere").exists());
        fs::write(place("empty"), "").unwrap();
        let error = ClientFile::open(&place("empty")).unwrap_err();
        assert!(matches!(error, HintFileError::NotARecord { .. }), "{error}");
        AgentFile::create(&place("empty"), 4).unwrap();
    }
}
