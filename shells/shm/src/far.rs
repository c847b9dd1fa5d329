//! A target's memory, as far as it is known here.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use polyrail_transport::memory::RegionKey;

use crate::mapped::Mapped;

/// Files of peers' memory that are kept for first writes, at most: each takes a descriptor.
const FILES_MAX: usize = 256;

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
    Shared(Arc<Mapped>),
    /// It is the target's only.
    Private(Private),
}

/// Memory that only the target maps.
#[derive(Debug)]
pub(crate) struct Private {
    /// Where it begins there.
    pub(crate) address: u64,
    /// The kernel has not written to it for this side, as to memory of a device: the target pulls instead.
    pub(crate) is_pulled: Cell<bool>,
}

/// What is mapped of peers' memory, so that the workers of an engine map it once.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    rows: Mutex<HashMap<RegionKey, Row>>,
}

#[derive(Debug)]
struct Row {
    writable: bool,
    mapped: Weak<Mapped>,
}

impl Mappings {
    /// The memory behind a key, which is in `file`. It is unmapped with the last reference.
    pub(crate) fn map(
        &self,
        key: RegionKey,
        file: &OwnedFd,
        bytes: u64,
        writable: bool,
    ) -> io::Result<Arc<Mapped>> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.retain(|_, row| row.mapped.strong_count() > 0);
        let known = rows
            .get(&key)
            .filter(|row| row.writable == writable)
            .and_then(|row| row.mapped.upgrade())
            .filter(|mapped| mapped.bytes() == bytes);
        if let Some(mapped) = known {
            return Ok(mapped);
        }
        let all = rows.values().filter_map(|row| row.mapped.upgrade());
        let files = all.filter(|mapped| mapped.keeps_file());
        let keeps = files.count() < FILES_MAX;
        let mapped = Arc::new(Mapped::of(file, bytes, writable, keeps)?);
        let row = Row {
            writable,
            mapped: Arc::downgrade(&mapped),
        };
        rows.insert(key, row);
        Ok(mapped)
    }
}
