//! Transfers of blocks: pages by a table, as those of a KV cache, or rows at equal distances.

use std::sync::Arc;

use polyrail::{Op, Places, SubmitError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arguments::{check_owner, check_writable};
use crate::batch::What;
use crate::engine::Shared;
use crate::errors::{Raise, error};
use crate::ranges::{Array, NoPage, whole};
use crate::segment::Segment;
use crate::words;

/// Where the blocks of one end lie.
#[pyclass(frozen, module = "polyrail")]
pub(crate) struct Blocks {
    segment: Py<Segment>,
    base: u64,
    stride: u64,
    table: Table,
}

/// Which pages or rows they are.
enum Table {
    Pages(Vec<u32>),
    Rows(usize),
}

impl Blocks {
    fn asked(&self) -> polyrail::Blocks<'_> {
        polyrail::Blocks {
            segment: self.segment.get().id,
            base: self.base,
            stride: self.stride,
            places: match &self.table {
                Table::Pages(table) => Places::Pages(table),
                Table::Rows(count) => Places::Rows(*count),
            },
        }
    }
}

#[pymethods]
impl Blocks {
    #[new]
    #[pyo3(signature = (segment, pages=None, *, stride, rows=None, base=0))]
    fn new(
        py: Python<'_>,
        segment: Py<Segment>,
        pages: Option<&Bound<'_, PyAny>>,
        stride: i128,
        rows: Option<i128>,
        base: i128,
    ) -> PyResult<Self> {
        let table = match (pages, rows) {
            (Some(pages), None) => {
                let array = Array::of("pages", pages)?;
                Table::Pages(py.detach(|| array.pages()).map_err(no_page)?)
            }
            (None, Some(rows)) => Table::Rows(whole("rows", rows)? as usize),
            _ => {
                let text = "blocks are given by pages, or by rows: one of them is needed";
                return Err(PyValueError::new_err(text));
            }
        };
        let blocks = Self {
            segment,
            base: whole("base", base)?,
            stride: whole("stride", stride)?,
            table,
        };
        match blocks.__len__() {
            0 => Err(PyValueError::new_err(
                "there are no pages or rows: nothing would be moved",
            )),
            _ => Ok(blocks),
        }
    }

    fn __len__(&self) -> usize {
        match &self.table {
            Table::Pages(table) => table.len(),
            Table::Rows(count) => *count,
        }
    }

    fn __repr__(&self) -> String {
        let (count, name) = (self.__len__(), &self.segment.get().name);
        let kind = match &self.table {
            Table::Pages(_) => "pages",
            Table::Rows(_) => "rows",
        };
        format!("<polyrail.Blocks: {count} {kind} of {name:?}>")
    }
}

fn no_page(NoPage { index, number }: NoPage) -> PyErr {
    let text = format!(
        "pages[{index}] is {number}: the number of a page, from 0 to {}, expected",
        u32::MAX
    );
    PyValueError::new_err(text)
}

/// One read or write of blocks.
#[pyclass(frozen, module = "polyrail")]
pub(crate) struct PagedRequest {
    op: Op,
    local: Py<Blocks>,
    remote: Py<Blocks>,
    length: u64,
}

impl PagedRequest {
    fn asked(&self) -> polyrail::PagedRequest<'_> {
        polyrail::PagedRequest {
            op: self.op,
            local: self.local.get().asked(),
            remote: self.remote.get().asked(),
            length: self.length,
        }
    }

    /// The local end, then the remote one.
    fn segments(&self) -> [&Segment; 2] {
        [&self.local, &self.remote].map(|blocks| blocks.get().segment.get())
    }
}

#[pymethods]
impl PagedRequest {
    #[new]
    fn new(op: &str, local: Py<Blocks>, remote: Py<Blocks>, length: i128) -> PyResult<Self> {
        let op = words::op(op)?;
        check_writable(op, local.get().segment.get())?;
        Ok(Self {
            op,
            local,
            remote,
            length: whole("length", length)?,
        })
    }

    fn __repr__(&self) -> String {
        let [local, remote] = self.segments().map(|segment| &segment.name);
        let Self { op, length, .. } = self;
        let count = self.local.get().__len__();
        format!(
            "<polyrail.PagedRequest {op:?} of {count} blocks of {length} bytes between {local:?} and {remote:?}>"
        )
    }
}

/// What is moved: requests for blocks, at least one.
pub(crate) struct Paged(Vec<Py<PagedRequest>>);

impl Paged {
    pub(crate) fn new(requests: Vec<Py<PagedRequest>>, shared: &Arc<Shared>) -> PyResult<Self> {
        if requests.is_empty() {
            return Err(PyValueError::new_err(
                "there are no requests: nothing would be moved",
            ));
        }
        for segment in requests.iter().flat_map(|request| request.get().segments()) {
            check_owner(&segment.shared, &segment.name, shared)?;
        }
        Ok(Self(requests))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// As the engine takes them.
    pub(crate) fn requests(&self) -> Vec<polyrail::PagedRequest<'_>> {
        self.0.iter().map(|request| request.get().asked()).collect()
    }

    pub(crate) fn what(&self) -> What {
        let key = |request: &PagedRequest| {
            let ids = request.segments().map(|segment| segment.id);
            (request.op, ids)
        };
        let first = self.0[0].get();
        What {
            op: first.op,
            names: first.segments().map(|segment| segment.name.clone()),
            and_others: self.0.iter().any(|other| key(other.get()) != key(first)),
        }
    }

    /// Why it was refused: with the segment's name, if it is about a block.
    pub(crate) fn refused(&self, py: Python<'_>, why: SubmitError) -> PyErr {
        let SubmitError::BlockOutOfRange {
            index,
            block,
            number,
            segment,
            offset,
            length,
            segment_bytes,
        } = why
        else {
            return error(py, why.class(), why);
        };
        let segments = self.0.get(index).map(|request| request.get().segments());
        let mut named = segments.into_iter().flatten();
        let Some(Segment { name, .. }) = named.find(|one| one.id == segment) else {
            return error(py, why.class(), why);
        };
        let text = format!(
            "request {index}: its block {block}, page or row {number}, of {length} bytes from offset {offset} ends past \"{name}\" of {segment_bytes} bytes"
        );
        error(py, why.class(), text)
    }
}
