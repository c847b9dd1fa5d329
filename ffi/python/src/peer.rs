//! What happens to peers.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail::{OpenError, OpenTerms, PeerStatus, SegmentId};
use pyo3::prelude::*;

use crate::engine::Shared;
use crate::errors::{Raised, error};
use crate::notification::receive;
use crate::patience::{self, seconds};

/// The first pause between two tries to open a segment; doubles, up to a second.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Opens a segment of a peer; within a time, if there is one, so that signals are heard meanwhile.
pub(crate) fn open(
    py: Python<'_>,
    shared: &Shared,
    address: &str,
    standing: bool,
    within: Option<f64>,
) -> PyResult<SegmentId> {
    let terms = OpenTerms {
        within: None,
        standing,
    };
    let open = || shared.engine.open_segment_with(address, &terms);
    let Some(within) = within else {
        return py.detach(open).raised(py);
    };
    let within = seconds("within", Some(within))?;
    let (mut tries, mut pause) = (1, PAUSE_MIN);
    let mut last = match py.detach(open) {
        Err(error) if error.may_pass() => error,
        opened => return opened.raised(py),
    };
    let mut due = Instant::now() + pause;
    let opened = patience::wait(py, within, |slice| {
        std::thread::sleep(slice.min(due.saturating_duration_since(Instant::now())));
        if Instant::now() < due {
            return None;
        }
        tries += 1;
        pause = (pause * 2).min(Duration::from_secs(1));
        due = Instant::now() + pause;
        match open() {
            Err(error) if error.may_pass() => {
                last = error;
                None
            }
            opened => Some(opened),
        }
    })?;
    let within = within.unwrap_or(Duration::MAX);
    let in_vain = || OpenError::NotInTime {
        within,
        tries,
        last: Box::new(last),
    };
    opened.unwrap_or_else(|| Err(in_vain())).raised(py)
}

/// Something has happened to a peer.
#[pyclass(frozen, module = "polyrail")]
pub(crate) struct PeerEvent {
    what: &'static str,
    /// `None`: events were dropped.
    peer: Option<PeerStatus>,
    missed: u64,
}

impl From<polyrail::PeerEvent> for PeerEvent {
    fn from(event: polyrail::PeerEvent) -> Self {
        let of = |what, peer| Self {
            what,
            peer: Some(peer),
            missed: 0,
        };
        match event {
            polyrail::PeerEvent::Lost(peer) => of("lost", peer),
            polyrail::PeerEvent::Back(peer) => of("back", peer),
            polyrail::PeerEvent::Changed(peer) => of("changed", peer),
            polyrail::PeerEvent::Missed(missed) => Self {
                what: "missed",
                peer: None,
                missed,
            },
            // One that this module does not know yet.
            _ => Self {
                what: "missed",
                peer: None,
                missed: 1,
            },
        }
    }
}

#[pymethods]
impl PeerEvent {
    /// `"lost"`, `"back"`, `"changed"` or `"missed"`.
    #[getter]
    fn what(&self) -> &str {
        self.what
    }

    /// What the peer calls itself; empty if events were missed.
    #[getter]
    fn name(&self) -> &str {
        self.peer.as_ref().map_or("", |peer| &peer.name)
    }

    /// `"HOST:PORT"` where it was first reached.
    #[getter]
    fn address(&self) -> String {
        let peer = self.peer.as_ref();
        peer.map_or(String::new(), |peer| peer.address.to_string())
    }

    /// Tells processes at one address apart.
    #[getter]
    fn incarnation(&self) -> u64 {
        self.peer.as_ref().map_or(0, |peer| peer.incarnation)
    }

    /// How many events were dropped here.
    #[getter]
    fn missed(&self) -> u64 {
        self.missed
    }

    fn __repr__(&self) -> String {
        match &self.peer {
            Some(peer) => format!(
                "<polyrail.PeerEvent {}: {:?} at {}>",
                self.what, peer.name, peer.address
            ),
            None => format!("<polyrail.PeerEvent missed: {} events>", self.missed),
        }
    }
}

/// What happens to peers, in the order in which it happened.
#[pyclass(frozen, weakref, module = "polyrail")]
pub(crate) struct PeerEvents {
    shared: Arc<Shared>,
    events: polyrail::PeerEvents,
}

impl PeerEvents {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: shared.clone(),
            events: shared.engine.peer_events(),
        }
    }

    /// `Ok(None)`: there was none in time.
    fn take(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<Option<PeerEvent>> {
        let taken = receive(py, &self.shared, timeout, |slice| self.events.wait(slice))?;
        Ok(taken.map(PeerEvent::from))
    }
}

#[pymethods]
impl PeerEvents {
    /// Takes one; waits for it.
    #[pyo3(signature = (timeout=None))]
    fn get(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<PeerEvent> {
        let timeout = seconds("timeout", timeout)?;
        let none = || {
            let text = format!(
                "no event of a peer within {:?}",
                timeout.unwrap_or_default()
            );
            error(py, "TimedOut", text)
        };
        self.take(py, timeout)?.ok_or_else(none)
    }

    /// Takes one if there is one.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<PeerEvent>> {
        self.take(py, Some(Duration::ZERO))
    }

    /// Readable exactly while one waits. Only to be looked at.
    fn fileno(&self) -> RawFd {
        self.events.as_raw_fd()
    }

    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PeerEvent>> {
        match self.take(py, None) {
            Err(_) if self.shared.is_closed() => Ok(None),
            taken => taken,
        }
    }

    fn __aiter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __anext__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let aio = this.py().import("polyrail._aio")?;
        aio.call_method1("next_event", (this,))
    }

    fn __repr__(&self) -> String {
        format!("<polyrail.PeerEvents, descriptor {}>", self.fileno())
    }
}
