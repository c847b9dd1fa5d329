//! Transfers between absolute addresses: which segment an address lies in, on either side.

use std::sync::{Arc, Mutex};

use polyrail::{Op, Request, SegmentId};
use pyo3::exceptions::{PyLookupError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arguments::{Terms, check_owner};
use crate::batch::{Batch, Core, What};
use crate::engine::{Engine, Shared, lock};
use crate::errors::{Raise, error};
use crate::segment::Segment;
use crate::submission::with_room;
use crate::words;

/// A range of addresses, and the segment that it is.
struct Range {
    start: u64,
    bytes: u64,
    segment: SegmentId,
    /// Keeps the segment open.
    owner: Py<Segment>,
}

impl Range {
    fn holds(&self, address: u64, bytes: u64) -> bool {
        let end = address.checked_add(bytes);
        self.start <= address && end.is_some_and(|end| end - self.start <= self.bytes)
    }
}

/// Ranges by their starts, which may overlap.
#[derive(Default)]
struct Ranges {
    sorted: Vec<Range>,
    /// The most bytes that a range has had: one that starts further below an address does not hold it.
    longest: u64,
}

impl Ranges {
    /// One that holds all of these bytes. `near`: where the last one was found, as the next one is there more often than not.
    fn find(&self, address: u64, bytes: u64, near: &mut usize) -> Option<&Range> {
        if let Some(range) = self
            .sorted
            .get(*near)
            .filter(|range| range.holds(address, bytes))
        {
            return Some(range);
        }
        let behind = self.sorted.partition_point(|range| range.start <= address);
        for index in (0..behind).rev() {
            let range = &self.sorted[index];
            if address - range.start > self.longest {
                return None;
            }
            if range.holds(address, bytes) {
                *near = index;
                return Some(range);
            }
        }
        None
    }
}

/// Which segments the addresses of one process are.
#[pyclass(frozen, module = "polyrail")]
pub(crate) struct Regions(Mutex<Ranges>);

#[pymethods]
impl Regions {
    #[new]
    fn new() -> Self {
        Self(Mutex::default())
    }

    /// From `address` on, so many bytes are those of a segment.
    fn add(&self, address: u64, bytes: u64, segment: Py<Segment>) {
        let mut ranges = lock(&self.0);
        let place = ranges
            .sorted
            .partition_point(|range| range.start <= address);
        let range = Range {
            start: address,
            bytes,
            segment: segment.get().id,
            owner: segment,
        };
        ranges.sorted.insert(place, range);
        ranges.longest = ranges.longest.max(bytes);
    }

    /// Takes a range away: whether it was there.
    fn remove(&self, address: u64, segment: &Bound<'_, Segment>) -> bool {
        let id = segment.get().id;
        let mut ranges = lock(&self.0);
        let is_it = |range: &Range| range.start == address && range.segment == id;
        let Some(place) = ranges.sorted.iter().position(is_it) else {
            return false;
        };
        let range = ranges.sorted.remove(place);
        drop(ranges);
        drop(range);
        true
    }

    /// Which of these ranges no segment holds, by their places in the lists.
    fn missing(&self, addresses: Integers, lengths: Integers) -> Vec<usize> {
        let ranges = lock(&self.0);
        let mut near = 0;
        let both = addresses.0.iter().zip(&lengths.0).enumerate();
        let missing = both.filter(|(_, (address, bytes))| {
            **bytes > 0 && ranges.find(**address, **bytes, &mut near).is_none()
        });
        missing.map(|(index, _)| index).collect()
    }

    fn __len__(&self) -> usize {
        lock(&self.0).sorted.len()
    }
}

/// A sequence of whole numbers from 0 on; what else is no list of addresses is a `TypeError`.
pub(crate) struct Integers(Vec<u64>);

impl<'a, 'py> FromPyObject<'a, 'py> for Integers {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let numbers: PyResult<Vec<u64>> = object.extract();
        numbers.map(Self).map_err(|why| {
            let text = format!("a list of whole numbers from 0 to 2^64 - 1 expected: {why}");
            PyTypeError::new_err(text)
        })
    }
}

/// Starts to move bytes between addresses. `None`: there are none to move. `LookupError`: no segment holds an address, which
/// side's and which one are its arguments.
#[pyfunction]
#[pyo3(signature = (engine, op, here, there, buffers, addresses, lengths, *, deadline=None, notify=None, room=None))]
#[expect(clippy::too_many_arguments, reason = "they have names in Python")]
pub(crate) fn submit_at(
    py: Python<'_>,
    engine: &Bound<'_, Engine>,
    op: &str,
    here: &Bound<'_, Regions>,
    there: &Bound<'_, Regions>,
    buffers: Integers,
    addresses: Integers,
    lengths: Integers,
    deadline: Option<f64>,
    notify: Option<&Bound<'_, PyBytes>>,
    room: Option<f64>,
) -> PyResult<Option<Py<Batch>>> {
    let shared = engine.get().shared();
    let terms = Terms::new("normal", deadline, notify, None, room)?;
    let sides = [here.get(), there.get()];
    let places = [buffers.0, addresses.0];
    if here.is(there) || places.iter().any(|place| place.len() != lengths.0.len()) {
        let text = "two tables of regions, and lists of equal length, expected";
        return Err(PyValueError::new_err(text));
    }
    let (requests, what) = requests(py, words::op(op)?, shared, sides, &places, &lengths.0)?;
    let Some(what) = what else {
        return Ok(None);
    };
    shared.check_process(py)?;
    let batch = with_room(py, shared, &terms, |terms| {
        shared.engine.submit_with(&requests, terms)
    })?;
    let batch = batch.map_err(|why| error(py, why.class(), why))?;
    Batch::new(py, shared, Core::new(what, requests.len(), batch)).map(Some)
}

/// What is asked for, by segments; those of no bytes are left out.
fn requests(
    py: Python<'_>,
    op: Op,
    shared: &Arc<Shared>,
    [here, there]: [&Regions; 2],
    [buffers, addresses]: &[Vec<u64>; 2],
    lengths: &[u64],
) -> PyResult<(Vec<Request>, Option<What>)> {
    // In this order everywhere.
    let (here, there) = (lock(&here.0), lock(&there.0));
    let (mut near_here, mut near_there) = (0, 0);
    let mut requests = Vec::with_capacity(lengths.len());
    let mut first = None;
    for (index, &length) in lengths
        .iter()
        .enumerate()
        .filter(|(_, length)| **length > 0)
    {
        let (buffer, address) = (buffers[index], addresses[index]);
        let missing = |side: &'static str| PyLookupError::new_err((side, index));
        let local = here.find(buffer, length, &mut near_here);
        let local = local.ok_or_else(|| missing("here"))?;
        let remote = there.find(address, length, &mut near_there);
        let remote = remote.ok_or_else(|| missing("there"))?;
        first.get_or_insert((local, remote));
        requests.push(Request {
            op,
            local: local.segment,
            local_offset: buffer - local.start,
            remote: remote.segment,
            remote_offset: address - remote.start,
            length,
        });
    }
    let Some((local, remote)) = first else {
        return Ok((requests, None));
    };
    let ends = [local, remote].map(|range| range.owner.bind(py).get());
    for end in ends {
        check_owner(&end.shared, &end.name, shared)?;
    }
    let is_other =
        |request: &Request| (request.local, request.remote) != (local.segment, remote.segment);
    let what = What {
        op,
        names: ends.map(|end| end.name.clone()),
        and_others: requests.iter().any(is_other),
    };
    Ok((requests, Some(what)))
}
