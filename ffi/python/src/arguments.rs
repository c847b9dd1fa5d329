//! What a transfer is asked for with.

use std::sync::Arc;
use std::time::Duration;

use polyrail::{Op, Priority, Request, SegmentId, SubmitError};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::batch::What;
use crate::engine::Shared;
use crate::errors::{Raise, error};
use crate::patience::seconds;
use crate::ranges::{Numbers, whole};
use crate::segment::Segment;
use crate::words;

/// What is moved: requests between two segments.
pub(crate) struct Moves {
    op: Op,
    /// The local end, then the remote one.
    ends: [End; 2],
    length: Numbers,
    pub(crate) count: usize,
}

struct End {
    id: SegmentId,
    owner: Arc<Shared>,
    name: Arc<str>,
    bytes: u64,
    offset: Numbers,
}

impl Moves {
    /// `numbers`: the length, the offset here and the one there.
    pub(crate) fn new(
        op: &str,
        local: &Segment,
        remote: &Segment,
        [length, local_offset, remote_offset]: [Option<&Bound<'_, PyAny>>; 3],
    ) -> PyResult<Self> {
        let op = words::op(op)?;
        check_writable(op, local)?;
        let end = |segment: &Segment, name, offset| {
            let offset = Numbers::of(name, offset)?.unwrap_or(Numbers::One(0));
            PyResult::Ok(End {
                id: segment.id,
                owner: segment.shared.clone(),
                name: segment.name.clone(),
                bytes: segment.bytes,
                offset,
            })
        };
        let ends = [
            end(local, "local_offset", local_offset)?,
            end(remote, "remote_offset", remote_offset)?,
        ];
        let length = match Numbers::of("length", length)? {
            Some(length) => length,
            None => Numbers::One(rest(&ends)?),
        };
        let count = count(&[
            ("length", &length),
            ("local_offset", &ends[0].offset),
            ("remote_offset", &ends[1].offset),
        ])?;
        Ok(Self {
            op,
            ends,
            length,
            count,
        })
    }

    /// That both ends are segments of this engine.
    pub(crate) fn check_owner(&self, shared: &Arc<Shared>) -> PyResult<()> {
        let mut ends = self.ends.iter();
        ends.try_for_each(|End { owner, name, .. }| check_owner(owner, name, shared))
    }

    pub(crate) fn what(&self) -> What {
        What {
            op: self.op,
            names: self.ends.each_ref().map(|end| end.name.clone()),
            and_others: false,
        }
    }

    pub(crate) fn requests(&self) -> impl Iterator<Item = Request> {
        (0..self.count).map(|index| self.request(index))
    }

    pub(crate) fn request(&self, index: usize) -> Request {
        let [local, remote] = &self.ends;
        Request {
            op: self.op,
            local: local.id,
            local_offset: local.offset.at(index),
            remote: remote.id,
            remote_offset: remote.offset.at(index),
            length: self.length.at(index),
        }
    }

    /// The first request that names no bytes, or more than there are, in words.
    fn fault(&self) -> Option<String> {
        let fault = |index| {
            let Request {
                local_offset,
                remote_offset,
                length,
                ..
            } = self.request(index);
            if length == 0 {
                return Some(format!("request {index}: a length of 0 moves nothing"));
            }
            let ends = self.ends.iter().zip([local_offset, remote_offset]);
            let past = |(end, offset): &(&End, u64)| {
                offset
                    .checked_add(length)
                    .is_none_or(|last| last > end.bytes)
            };
            let (End { name, bytes, .. }, offset) = ends.clone().find(past)?;
            Some(format!(
                "request {index}: {length} bytes from offset {offset} end past \"{name}\" of {bytes} bytes"
            ))
        };
        (0..self.count).find_map(fault)
    }

    /// Why it was refused: with the names of its ends, if it is about a range of one.
    pub(crate) fn refused(&self, py: Python<'_>, why: SubmitError) -> PyErr {
        let is_range = matches!(
            why,
            SubmitError::Empty { .. } | SubmitError::OutOfRange { .. }
        );
        match is_range.then(|| py.detach(|| self.fault())).flatten() {
            Some(fault) => error(py, "Invalid", fault),
            None => error(py, why.class(), why),
        }
    }
}

/// That what is read can be written here.
pub(crate) fn check_writable(op: Op, local: &Segment) -> PyResult<()> {
    match op == Op::Read && local.readonly {
        false => Ok(()),
        true => Err(PyBufferError::new_err(format!(
            "{} is read-only memory: nothing can be read into it",
            local.name
        ))),
    }
}

/// That a segment is one of this engine.
pub(crate) fn check_owner(owner: &Arc<Shared>, name: &str, shared: &Arc<Shared>) -> PyResult<()> {
    match Arc::ptr_eq(owner, shared) {
        true => Ok(()),
        false => Err(PyValueError::new_err(format!(
            "segment \"{name}\" belongs to another engine"
        ))),
    }
}

/// What is left of both ends behind their offsets.
fn rest(ends: &[End; 2]) -> PyResult<u64> {
    let rest = |end: &End| match &end.offset {
        Numbers::One(offset) => end
            .bytes
            .checked_sub(*offset)
            .filter(|rest| *rest > 0)
            .ok_or_else(|| {
                let End { name, bytes, .. } = end;
                PyValueError::new_err(format!(
                    "offset {offset} is at or past the end of \"{name}\" of {bytes} bytes"
                ))
            }),
        Numbers::Many(_) => Err(PyValueError::new_err(
            "with an array of offsets, length is needed",
        )),
    };
    let [local, remote] = ends;
    match (rest(local)?, rest(remote)?) {
        (here, there) if here == there => Ok(here),
        (here, there) => Err(PyValueError::new_err(format!(
            "length is needed: \"{}\" has {here} bytes from its offset on, \"{}\" has {there}",
            local.name, remote.name
        ))),
    }
}

/// How many requests there are.
fn count(numbers: &[(&str, &Numbers)]) -> PyResult<usize> {
    let counts = numbers
        .iter()
        .filter_map(|(name, numbers)| Some((*name, numbers.count()?)));
    let counts: Vec<_> = counts.collect();
    let Some((_, count)) = counts.first() else {
        return Ok(1);
    };
    if let Some((name, other)) = counts.iter().find(|(_, other)| other != count) {
        let text = format!(
            "{} has {count} items and {name} {other}: as many are needed",
            counts[0].0
        );
        return Err(PyValueError::new_err(text));
    }
    match count {
        0 => Err(PyValueError::new_err(
            "the arrays are empty: nothing would be moved",
        )),
        count => Ok(*count),
    }
}

/// How it is treated.
pub(crate) struct Terms {
    pub(crate) priority: Priority,
    pub(crate) deadline: Option<Duration>,
    pub(crate) notification: Option<Vec<u8>>,
    pub(crate) arrival: Option<u64>,
    pub(crate) visible: bool,
    /// How long to wait for room; `None`: as configured.
    pub(crate) room: Option<Duration>,
}

impl Terms {
    pub(crate) fn new(
        priority: &str,
        deadline: Option<f64>,
        notify: Option<&Bound<'_, PyBytes>>,
        arrival: Option<i128>,
        room: Option<f64>,
    ) -> PyResult<Self> {
        Ok(Self {
            priority: words::priority(priority)?,
            deadline: seconds("deadline", deadline)?,
            notification: notify.map(|bytes| bytes.as_bytes().to_vec()),
            arrival: arrival.map(|tag| whole("arrival", tag)).transpose()?,
            visible: false,
            room: match room {
                Some(room) => Some(seconds("room", Some(room))?.unwrap_or(Duration::MAX)),
                None => None,
            },
        })
    }

    /// Whether all that was written has to be seen before it ends.
    pub(crate) fn seen(self, visible: bool) -> Self {
        Self { visible, ..self }
    }
}
