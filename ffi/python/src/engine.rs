//! The engine as Python holds it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use polyrail::{FileTerms, Hooks, ReceiveError, SegmentId};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::arguments::{Moves, Terms};
use crate::batch::{Batch, Core};
use crate::errors::{Raised, error};
use crate::keep::{Keep, Lent};
use crate::notification::{Delivery, Notifications};
use crate::paged::{Paged, PagedRequest};
use crate::patience::{self, seconds};
use crate::peer::{self, PeerEvents};
use crate::prepared::Prepared;
use crate::ranges::whole;
use crate::segment::{File, Memory, Remote, Segment};
use crate::{config, log, stats, submission, words};

/// An engine, and what it has to keep for the program.
pub(crate) struct Shared {
    pub(crate) engine: polyrail::Engine,
    /// How long a submission waits for room unless it says so itself.
    pub(crate) patience: Duration,
    closed: AtomicBool,
    /// Names given to segments that have none.
    unnamed: AtomicU64,
    /// Who the memory of segments belongs to.
    keeps: Mutex<HashMap<SegmentId, Keep>>,
    /// Batches that the program has let go of before all was known of them.
    parked: Mutex<Vec<Arc<Core>>>,
}

/// All engines that have not gone.
static ENGINES: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// The lock's content, also after a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// That this process made it: what a forked child holds is a copy.
    pub(crate) fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        match self.engine.is_ours() {
            true => Ok(()),
            false => Err(error(
                py,
                "Forked",
                "it belongs to the process that this one was forked from; make an engine in this process",
            )),
        }
    }

    /// That it can be used: here, and still.
    fn check_usable(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process(py)?;
        match self.is_closed() {
            false => Ok(()),
            true => Err(error(py, "Closed", "the engine is closed")),
        }
    }

    /// Keeps the owner of a segment's memory.
    fn keep(&self, segment: SegmentId, keep: Keep) {
        let old = lock(&self.keeps).insert(segment, keep);
        drop(old);
    }

    /// Takes a segment back, and lets go of its memory.
    pub(crate) fn unregister(&self, py: Python<'_>, segment: SegmentId) -> PyResult<()> {
        self.check_process(py)?;
        let region = self.engine.region(segment);
        match py.detach(|| self.engine.unregister(segment)) {
            // The engine has ended, and has let go of everything.
            Err(polyrail::RegisterError::Stale { .. }) if self.is_closed() => {}
            answer => answer.raised(py)?,
        }
        let keep = lock(&self.keeps).remove(&segment);
        // The engine has said so in the log.
        if region.is_some_and(|region| region.is_touched()) {
            std::mem::forget(keep);
        }
        Ok(())
    }

    /// Closes a segment of a peer's.
    pub(crate) fn close_remote(&self, py: Python<'_>, segment: SegmentId) -> PyResult<()> {
        self.check_process(py)?;
        match py.detach(|| self.engine.close_segment(segment)) {
            // The engine has ended, and has let go of everything.
            Err(polyrail::CloseError::Stale { .. }) if self.is_closed() => Ok(()),
            answer => answer.raised(py),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// Ends the engine and lets go of all memory that nothing can touch any more.
    fn close(&self, py: Python<'_>) {
        self.closed.store(true, Relaxed);
        py.detach(|| self.engine.shutdown());
        if !self.engine.is_ours() {
            return;
        }
        let mut keeps = std::mem::take(&mut *lock(&self.keeps));
        let is_touched = |id: &SegmentId| {
            let region = self.engine.region(*id);
            region.is_some_and(|region| region.is_touched())
        };
        let held: HashMap<_, _> = keeps.extract_if(|id, _| is_touched(id)).collect();
        // Their owners stay where they are, for as long as the process.
        std::mem::forget(held);
        drop(keeps);
        lock(&self.parked).clear();
    }

    /// Notes a batch that nobody looks at any more and of which something is open.
    pub(crate) fn park(&self, core: Arc<Core>) {
        let mut parked = lock(&self.parked);
        if parked.len() == parked.capacity() {
            parked.retain(|core| core.may_hold());
        }
        parked.push(core);
    }

    fn name(&self, name: Option<String>) -> String {
        name.unwrap_or_else(|| format!("unnamed-{}", self.unnamed.fetch_add(1, Relaxed)))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Without an interpreter, its objects have gone as well.
        Python::try_attach(|py| self.close(py));
    }
}

/// Ends all engines, the last one first, because it may use those before it: what the package does when the interpreter ends.
#[pyfunction]
pub(crate) fn close_all(py: Python<'_>) {
    let engines = std::mem::take(&mut *lock(&ENGINES));
    for engine in engines.iter().rev().filter_map(Weak::upgrade) {
        engine.close(py);
    }
}

/// Moves bytes between memory and files here and at peers.
#[pyclass(frozen, weakref, module = "polyrail")]
pub(crate) struct Engine {
    shared: Arc<Shared>,
    name: String,
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (config=None, *, lets_in_later=false, **keys))]
    fn new(
        py: Python<'_>,
        config: Option<&Bound<'_, PyAny>>,
        lets_in_later: bool,
        keys: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        log::start(py)?;
        let config = config::load(config, keys, py)?;
        let name = config.name.clone();
        let patience = match config.send_queue.admission {
            true => config.send_queue.admission_timeout,
            false => Duration::ZERO,
        };
        let hooks = Hooks {
            lets_in_later,
            ..Hooks::default()
        };
        let engine = py.detach(|| polyrail::Engine::with_hooks(config, hooks));
        let engine = engine.raised(py)?;
        let shared = Arc::new(Shared {
            engine,
            patience,
            closed: AtomicBool::new(false),
            unnamed: AtomicU64::new(0),
            keeps: Mutex::default(),
            parked: Mutex::default(),
        });
        let mut engines = lock(&ENGINES);
        engines.retain(|engine| engine.strong_count() > 0);
        engines.push(Arc::downgrade(&shared));
        drop(engines);
        Ok(Self { shared, name })
    }

    /// What it calls itself to peers.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// `"HOST:PORT"` where it listens; `None`: it does not.
    #[getter]
    fn listening(&self) -> Option<String> {
        self.shared
            .engine
            .listening()
            .map(|address| address.to_string())
    }

    /// Lets peers in, where `lets_in_later` has kept them out.
    fn let_in(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.check_usable(py)?;
        self.shared.engine.let_in();
        Ok(())
    }

    /// Whether `close` has been called.
    #[getter]
    fn closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// Makes memory of the program a segment.
    #[pyo3(signature = (buffer, name=None, access=None, *, domain=None))]
    fn register(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        name: Option<String>,
        access: Option<&str>,
        domain: Option<&str>,
    ) -> PyResult<Py<Memory>> {
        let shared = &self.shared;
        shared.check_usable(py)?;
        let lent = Lent::of(buffer)?;
        let place = lent.place;
        let access = access.unwrap_or(match (&name, place.readonly) {
            (None, _) => "local",
            (Some(_), true) => "read",
            (Some(_), false) => "read-write",
        });
        let allowed = words::access(access)?;
        if place.readonly && allowed.allows_remote_write() {
            let text = "it is read-only memory, which peers cannot be let write: access=\"read\" or \"local\"";
            return Err(PyBufferError::new_err(text));
        }
        if place.on_gpu {
            check_host(domain)?;
            self.check_gpu(py)?;
        }
        let base = NonNull::new(place.address as *mut u8);
        let base = base.ok_or_else(|| PyValueError::new_err("memory at address 0"))?;
        let base = Address(base);
        let name = shared.name(name);
        let register = || {
            let Address(base) = { base };
            let bytes = place.bytes;
            match domain {
                // SAFETY: `keep` stays until the engine has let go of the segment; for a bare address the program answers.
                None => unsafe { shared.engine.register(&name, base, bytes, allowed) },
                Some(domain) => {
                    let domain = shared.engine.domain(domain)?;
                    // SAFETY: as above, and it is memory of the host.
                    unsafe { domain.register(&name, base, bytes, allowed) }
                }
            }
        };
        let id = py.detach(register).raised(py)?;
        shared.keep(id, lent.keep);
        Memory::new(py, Segment::new(shared, id, name, place.readonly), false)
    }

    /// Allocates memory and makes it a segment.
    #[pyo3(signature = (bytes, name=None, access=None, device="cpu", *, domain=None))]
    fn allocate(
        &self,
        py: Python<'_>,
        bytes: u64,
        name: Option<String>,
        access: Option<&str>,
        device: &str,
        domain: Option<&str>,
    ) -> PyResult<Py<Memory>> {
        let shared = &self.shared;
        shared.check_usable(py)?;
        let access = access.unwrap_or(if name.is_some() {
            "read-write"
        } else {
            "local"
        });
        let access = words::access(access)?;
        let gpu = gpu_number(device)?;
        if gpu.is_some() {
            check_host(domain)?;
        }
        let name = shared.name(name);
        let id = py.detach(|| match (gpu, domain) {
            (None, None) => shared.engine.allocate(&name, bytes, access),
            (None, Some(domain)) => shared.engine.domain(domain)?.allocate(&name, bytes, access),
            (Some(gpu), _) => shared.engine.allocate_on_gpu(&name, gpu, bytes, access),
        });
        let id = id.raised(py)?;
        Memory::new(py, Segment::new(shared, id, name, false), gpu.is_none())
    }

    /// Opens a segment of a peer.
    #[pyo3(signature = (address, *, within=None, standing=false))]
    fn open(
        &self,
        py: Python<'_>,
        address: String,
        within: Option<f64>,
        standing: bool,
    ) -> PyResult<Py<Remote>> {
        let shared = &self.shared;
        let id = peer::open(py, shared, &address, standing, within)?;
        Remote::new(py, Segment::new(shared, id, address, false))
    }

    /// The same as `open`.
    #[pyo3(signature = (address, *, within=None, standing=false))]
    fn open_segment(
        &self,
        py: Python<'_>,
        address: String,
        within: Option<f64>,
        standing: bool,
    ) -> PyResult<Py<Remote>> {
        self.open(py, address, within, standing)
    }

    /// Makes bytes of a file or block device a segment.
    #[pyo3(signature = (path, offset=0, length=None, read_only=false, cached=false))]
    fn file(
        &self,
        py: Python<'_>,
        path: PathBuf,
        offset: u64,
        length: Option<u64>,
        read_only: bool,
        cached: bool,
    ) -> PyResult<Py<File>> {
        let shared = &self.shared;
        let terms = FileTerms {
            offset,
            bytes: length,
            read_only,
            cached,
        };
        let id = py
            .detach(|| shared.engine.open_file(&path, &terms))
            .raised(py)?;
        let name = path.display().to_string();
        File::new(py, Segment::new(shared, id, name, read_only))
    }

    /// Starts to move bytes from here to there.
    #[pyo3(signature = (local, remote, length=None, *, local_offset=None, remote_offset=None, priority="normal", deadline=None, notify=None, arrival=None, visible=false, room=None))]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn write(
        &self,
        py: Python<'_>,
        local: &Bound<'_, Segment>,
        remote: &Bound<'_, Segment>,
        length: Option<&Bound<'_, PyAny>>,
        local_offset: Option<&Bound<'_, PyAny>>,
        remote_offset: Option<&Bound<'_, PyAny>>,
        priority: &str,
        deadline: Option<f64>,
        notify: Option<&Bound<'_, PyBytes>>,
        arrival: Option<i128>,
        visible: bool,
        room: Option<f64>,
    ) -> PyResult<Py<Batch>> {
        let numbers = [length, local_offset, remote_offset];
        let moves = Moves::new("write", local.get(), remote.get(), numbers)?;
        let terms = Terms::new(priority, deadline, notify, arrival, room)?.seen(visible);
        submission::submit(py, &self.shared, moves, &terms)
    }

    /// Starts to move bytes from there to here.
    #[pyo3(signature = (local, remote, length=None, *, local_offset=None, remote_offset=None, priority="normal", deadline=None, notify=None, arrival=None, visible=false, room=None))]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn read(
        &self,
        py: Python<'_>,
        local: &Bound<'_, Segment>,
        remote: &Bound<'_, Segment>,
        length: Option<&Bound<'_, PyAny>>,
        local_offset: Option<&Bound<'_, PyAny>>,
        remote_offset: Option<&Bound<'_, PyAny>>,
        priority: &str,
        deadline: Option<f64>,
        notify: Option<&Bound<'_, PyBytes>>,
        arrival: Option<i128>,
        visible: bool,
        room: Option<f64>,
    ) -> PyResult<Py<Batch>> {
        let numbers = [length, local_offset, remote_offset];
        let moves = Moves::new("read", local.get(), remote.get(), numbers)?;
        let terms = Terms::new(priority, deadline, notify, arrival, room)?.seen(visible);
        submission::submit(py, &self.shared, moves, &terms)
    }

    /// Checks a transfer once, to be posted many times.
    #[pyo3(signature = (op, local, remote, length=None, *, local_offset=None, remote_offset=None))]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn prepare(
        &self,
        py: Python<'_>,
        op: &str,
        local: &Bound<'_, Segment>,
        remote: &Bound<'_, Segment>,
        length: Option<&Bound<'_, PyAny>>,
        local_offset: Option<&Bound<'_, PyAny>>,
        remote_offset: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Prepared> {
        let numbers = [length, local_offset, remote_offset];
        let moves = Moves::new(op, local.get(), remote.get(), numbers)?;
        Prepared::new(py, &self.shared, moves)
    }

    /// Starts to move blocks.
    #[pyo3(signature = (requests, *, priority="normal", deadline=None, notify=None, arrival=None, visible=false, room=None))]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn submit_paged(
        &self,
        py: Python<'_>,
        requests: Vec<Py<PagedRequest>>,
        priority: &str,
        deadline: Option<f64>,
        notify: Option<&Bound<'_, PyBytes>>,
        arrival: Option<i128>,
        visible: bool,
        room: Option<f64>,
    ) -> PyResult<Py<Batch>> {
        let paged = Paged::new(requests, &self.shared)?;
        let terms = Terms::new(priority, deadline, notify, arrival, room)?.seen(visible);
        submission::submit_paged(py, &self.shared, &paged, &terms)
    }

    /// Checks a transfer of blocks once, to be posted many times.
    fn prepare_paged(&self, py: Python<'_>, requests: Vec<Py<PagedRequest>>) -> PyResult<Prepared> {
        let paged = Paged::new(requests, &self.shared)?;
        Prepared::of_blocks(py, &self.shared, &paged)
    }

    /// How many batches of peers have arrived with a tag.
    fn arrivals(&self, py: Python<'_>, tag: i128) -> PyResult<u64> {
        self.shared.check_process(py)?;
        Ok(self.shared.engine.arrivals(whole("tag", tag)?))
    }

    /// Waits until so many have.
    #[pyo3(signature = (tag, count=1, timeout=None))]
    fn wait_arrivals(
        &self,
        py: Python<'_>,
        tag: i128,
        count: i128,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        self.shared.check_process(py)?;
        let tag = whole("tag", tag)?;
        let count = whole("count", count)?;
        let timeout = seconds("timeout", timeout)?;
        let engine = &self.shared.engine;
        let seen = patience::wait(py, timeout, |slice| {
            match engine.wait_arrivals(tag, count, slice) {
                Err(ReceiveError::TimedOut { .. }) => None,
                seen => Some(seen),
            }
        })?;
        match seen {
            Some(Ok(seen)) => Ok(seen),
            Some(Err(why)) => Err(error(py, "Closed", why)),
            None => {
                let (seen, after) = (engine.arrivals(tag), timeout.unwrap_or_default());
                let text = format!(
                    "{seen} of {count} batches have arrived with tag {tag} after {after:?}"
                );
                Err(error(py, "TimedOut", text))
            }
        }
    }

    /// Waits in an event loop until so many have.
    #[pyo3(signature = (tag, count=1))]
    fn arrived<'py>(
        this: &Bound<'py, Self>,
        tag: i128,
        count: i128,
    ) -> PyResult<Bound<'py, PyAny>> {
        let aio = this.py().import("polyrail._aio")?;
        aio.call_method1("arrived", (this, tag, count))
    }

    /// Begins to count a tag anew: how many had arrived.
    fn forget_arrivals(&self, py: Python<'_>, tag: i128) -> PyResult<u64> {
        self.shared.check_process(py)?;
        Ok(self.shared.engine.forget_arrivals(whole("tag", tag)?))
    }

    /// Tells the program of the peer that owns `remote` something.
    fn notify(
        &self,
        py: Python<'_>,
        remote: &Bound<'_, Remote>,
        data: &[u8],
    ) -> PyResult<Delivery> {
        let id = remote.as_super().get().id;
        let delivery = py
            .detach(|| self.shared.engine.notify(id, data))
            .raised(py)?;
        Ok(Delivery::new(&self.shared, delivery))
    }

    /// What programs of peers tell this one.
    fn notifications(&self) -> Notifications {
        Notifications::new(&self.shared)
    }

    /// The peers whose segments it has opened, in dictionaries.
    fn peers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.shared.check_process(py)?;
        stats::peers(py, &self.shared.engine)
    }

    /// What happens to them.
    fn peer_events(&self) -> PeerEvents {
        PeerEvents::new(&self.shared)
    }

    /// What it has done, in dictionaries.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.shared.check_process(py)?;
        stats::of(py, &self.shared.engine)
    }

    /// Batches that the program has let go of while memory here was held.
    fn held(&self, py: Python<'_>) -> PyResult<Vec<Py<Batch>>> {
        self.shared.check_process(py)?;
        let parked = {
            let mut parked = lock(&self.shared.parked);
            parked.retain(|core| core.may_hold());
            parked.clone()
        };
        let held = parked.into_iter().filter(|core| core.is_held());
        held.map(|core| Batch::of(py, &self.shared, core)).collect()
    }

    /// Says, on the operator's word, that the process at this address has ended.
    fn declare_lost(&self, py: Python<'_>, address: String) -> PyResult<bool> {
        self.shared.check_usable(py)?;
        py.detach(|| self.shared.engine.declare_lost(&address))
            .raised(py)
    }

    /// Ends everything within some seconds.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.close(py);
        py.import("polyrail._aio")?.call_method0("engine_closed")?;
        Ok(())
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_why))]
    fn __exit__(&self, py: Python<'_>, _why: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let Self { shared, name } = self;
        let end = if shared.is_closed() { ", closed" } else { "" };
        match shared.engine.listening() {
            Some(address) => format!("<polyrail.Engine {name:?} listening on {address}{end}>"),
            None => format!("<polyrail.Engine {name:?}{end}>"),
        }
    }
}

impl Engine {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Without a driver, addresses of a GPU would be taken for the host's.
    fn check_gpu(&self, py: Python<'_>) -> PyResult<()> {
        let transports = self.shared.engine.transports();
        let missing = match transports
            .into_iter()
            .find(|transport| transport.name == "cuda")
        {
            Some(cuda) => cuda.missing,
            None => Some(match py.detach(polyrail::gpus) {
                Ok(_) => "this engine's transport cuda is switched off".into(),
                Err(why) => why.to_string(),
            }),
        };
        match missing {
            None => Ok(()),
            Some(why) => {
                let text = format!("memory of a GPU cannot be registered: {why}");
                Err(error(py, "Unavailable", text))
            }
        }
    }
}

/// An address that goes to another thread's hands.
struct Address(NonNull<u8>);

// SAFETY: nobody dereferences it there but the engine, by its contract.
unsafe impl Send for Address {}

/// Refuses a trust domain for memory of a GPU.
fn check_host(domain: Option<&str>) -> PyResult<()> {
    match domain {
        None => Ok(()),
        Some(domain) => Err(PyValueError::new_err(format!(
            "domain is \"{}\": memory of GPUs is for the common domain only",
            domain.escape_debug()
        ))),
    }
}

/// The number of `cuda:N`; `None`: the host's memory.
fn gpu_number(device: &str) -> PyResult<Option<u32>> {
    let number = match device {
        "cpu" => return Ok(None),
        "cuda" => Some(0),
        _ => device
            .strip_prefix("cuda:")
            .and_then(|number| number.parse().ok()),
    };
    let unknown = || {
        let device = device.escape_debug();
        PyValueError::new_err(format!(
            "device is \"{device}\": \"cpu\" or \"cuda:N\" expected"
        ))
    };
    number.map(Some).ok_or_else(unknown)
}
