//! A target's memory, as far as it is known here.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use polyrail_transport::mapping::Mapping;
use polyrail_transport::memory::RegionKey;

/// What is behind a key.
#[derive(Debug)]
pub(crate) enum Far {
    /// Nothing, any more.
    Nothing,
    /// Something that can be touched under the grant of this number, so many bytes of it.
    There {
        grant: u16,
        bytes: u64,
        writable: bool,
        memory: Memory,
    },
}

/// How it can be touched.
#[derive(Debug)]
pub(crate) enum Memory {
    /// It is mapped here too.
    Shared(Arc<Mapping>),
    /// It begins at this address of the target's.
    Private(u64),
}

/// What is mapped of peers' memory, so that the workers of an engine map it once.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    rows: Mutex<HashMap<RegionKey, Row>>,
}

#[derive(Debug)]
struct Row {
    writable: bool,
    mapping: Weak<Mapping>,
}

impl Mappings {
    /// The memory behind a key, which is in `file`. It is unmapped with the last reference.
    pub(crate) fn map(
        &self,
        key: RegionKey,
        file: &OwnedFd,
        bytes: u64,
        writable: bool,
    ) -> io::Result<Arc<Mapping>> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.retain(|_, row| row.mapping.strong_count() > 0);
        let known = rows
            .get(&key)
            .filter(|row| row.writable == writable)
            .and_then(|row| row.mapping.upgrade())
            .filter(|mapping| mapping.bytes() == bytes);
        if let Some(mapping) = known {
            return Ok(mapping);
        }
        let mapping = Arc::new(Mapping::of_peer(file.as_fd(), bytes, writable)?);
        let row = Row {
            writable,
            mapping: Arc::downgrade(&mapping),
        };
        rows.insert(key, row);
        Ok(mapping)
    }
}
