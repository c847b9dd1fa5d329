//! Variables of the systems that polyrail grew from, and what they are here.

use super::keys::{MORI, MPIB};

/// One variable of another system.
pub(super) struct Variable {
    pub(super) name: &'static str,
    /// Its default there.
    pub(super) default: &'static str,
    /// The key that steers the same, or why there is none.
    pub(super) here: &'static str,
    /// The title of what describes it.
    pub(super) source: &'static str,
}

const fn mori(name: &'static str, default: &'static str, here: &'static str) -> Variable {
    Variable {
        name,
        default,
        here,
        source: MORI,
    }
}

const fn mpib(name: &'static str, default: &'static str, here: &'static str) -> Variable {
    Variable {
        name,
        default,
        here,
        source: MPIB,
    }
}

const LATE: &str =
    "none: slices are bound to lanes that have room, so no chunk of a call waits for one";

pub(super) const VARIABLES: &[Variable] = &[
    mori(
        "MORI_IO_SQ_EXECUTOR_ADMISSION",
        "`0`",
        "`send_queue/admission`",
    ),
    mori(
        "MORI_IO_SQ_ADMISSION_TIMEOUT_US",
        "`1000000`",
        "`send_queue/admission_timeout_us`",
    ),
    mori(
        "MORI_IO_SQ_ADMISSION_RESUME_WATERMARK_WR",
        "`2048`",
        "`send_queue/admission_resume_watermark_works`",
    ),
    mori(
        "MORI_IO_SQ_SIGNAL_INTERVAL_WR",
        "`0`",
        "`send_queue/signal_interval_works`",
    ),
    mori(
        "MORI_IO_SQ_ADMISSION_WAIT_SLICE_US",
        "`100`",
        "none: who waits is woken, and looks every 100 µs beside",
    ),
    mori(
        "MORI_IO_SQ_BACKOFF_TIMEOUT_US",
        "`10000`",
        "none: a worker binds what fits and never waits for a lane",
    ),
    mori(
        "MORI_IO_SQ_RESUME_WATERMARK_WR",
        "`0`",
        "none, for the same reason",
    ),
    mori("MORI_IO_SQ_ADMISSION_CHUNK_WR", "`0`", LATE),
    mori(
        "MORI_IO_SQ_ADMISSION_MAX_CHUNKS_PER_CALL",
        "`0`",
        "none, for the same reason",
    ),
    mori(
        "MORI_IO_SQ_SPLIT_POLICY",
        "`static`",
        "`policy`, for slices instead of calls",
    ),
    mori(
        "MORI_IO_SQ_ENABLE_EXPERIMENTAL_CAPACITY",
        "`0`",
        "none: its policy is core's only",
    ),
    mpib(
        "MPIB_MODE",
        "`0`",
        "`path/mode`: `vanilla` for 0, `advanced` for 1",
    ),
    mpib(
        "MPIB_ISLAND_PREFIX_LEN",
        "`24`",
        "`path/island_prefix_ipv4`; `path/island_prefix_ipv6` beside it",
    ),
    mpib(
        "MPIB_HCA_SOUT",
        "required",
        "`rails`, those that `path/supplementary` does not name",
    ),
    mpib(
        "MPIB_HCA_SUP",
        "required",
        "`rails` and `path/supplementary`",
    ),
    mpib(
        "MPIB_SOUT_QP",
        "`2`",
        "none: as many lanes as there are primary rails",
    ),
    mpib(
        "MPIB_SUP_QP",
        "`4`",
        "none: as many lanes as there are supplementary rails",
    ),
    mpib(
        "MPIB_OOB_IF",
        "required",
        "none: control connections run over every reachable rail",
    ),
];
