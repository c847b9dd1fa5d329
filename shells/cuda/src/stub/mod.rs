//! A CUDA driver in this process, for tests on machines without GPUs.
//!
//! Memory of a device has addresses that nobody but this driver can follow: the range is reserved, and raises a signal if
//! it is touched. Copies are carried out by a thread, in the order of their streams, as long as it is not
//! [held](Stub::hold). What CUDA leaves undefined ends the context here.
//!
//! # Safety
//!
//! `memory` has the mappings. The thread follows host addresses that were handed to [`Driver::copy`], whose caller
//! promises that they may be followed until the copy is over.

mod memory;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use self::memory::Memory;
use crate::driver::{
    Answer, CudaError, Driver, End, Event, Gpu, HANDLE_BYTES, Handle, Location, Sharing, Stream,
};

/// The code that a context has once an address could not be followed.
pub const ILLEGAL_ADDRESS: u32 = 700;

/// What the stub pretends to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    /// GPUs.
    pub gpus: u32,
    /// Memory of each, in bytes.
    pub bytes: u64,
    /// Whether they reach each other's memory.
    pub peers: bool,
    /// Whether memory can be shared with other hosts.
    pub fabric: bool,
    /// Whether DMA-BUFs are given.
    pub dma_buf: bool,
    /// Bytes of the host's pages.
    pub page_bytes: u64,
    /// Whether the GPUs are instances of one (MIG).
    pub instances: bool,
    /// Whether a server carries out what processes put into streams (MPS).
    pub served: bool,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            gpus: 2,
            bytes: 1 << 30,
            peers: true,
            fabric: false,
            dma_buf: false,
            page_bytes: 4096,
            instances: false,
            served: false,
        }
    }
}

/// What was asked of it so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Copies that were put into streams.
    pub copies: u64,
    /// Bytes of the largest one.
    pub copy_bytes_max: u64,
    /// Copies to or from host memory that is not pinned.
    pub unpinned: u64,
    /// Allocations of devices that exist now.
    pub allocations: u64,
    /// Ranges of the host that are pinned now.
    pub pinned: u64,
    /// Streams that exist now.
    pub streams: u64,
    /// Events that exist now.
    pub events: u64,
    /// Allocations of other processes that are open now.
    pub imported: u64,
    /// CUDA has been started.
    pub begun: bool,
    /// Devices whose context was taken.
    pub contexts: u64,
}

/// The driver.
pub struct Stub {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    machine: Machine,
    state: Mutex<State>,
    /// Something is to be carried out, or has been.
    changed: Condvar,
}

struct Allocation {
    ordinal: u32,
    memory: Arc<Memory>,
    /// Bytes that are mapped as one: all, unless the program has put it together.
    unit: u64,
    imported: Option<Sharing>,
    sharing: Sharing,
}

enum Step {
    Copy { to: End, from: End, bytes: u64 },
    Mark(u64),
    Wait(u64),
}

struct Queue {
    ordinal: u32,
    steps: VecDeque<Step>,
    /// The driver is told to forget it once it is empty.
    ended: bool,
}

#[derive(Default)]
struct State {
    allocations: BTreeMap<u64, Allocation>,
    /// The newest goes first, so that what should wait and does not is seen.
    streams: BTreeMap<u64, Queue>,
    /// The mark that each event stands for; `None`: never recorded.
    events: HashMap<u64, Option<u64>>,
    /// Marks that have not been passed.
    ahead: BTreeSet<u64>,
    pinned: BTreeMap<u64, u64>,
    lost: HashMap<u32, u32>,
    last: u64,
    held: bool,
    holds_releases: bool,
    releases_held: u32,
    full: bool,
    pin_bytes_max: Option<u64>,
    /// Memory is shared with no other process.
    closed: bool,
    ended: bool,
    /// A copy is under way, outside the lock.
    busy: bool,
    /// It was started.
    begun: bool,
    /// Devices whose context was taken.
    attached: BTreeSet<u32>,
    /// Streams that are being captured, and whether that is spoilt.
    captures: HashMap<u64, bool>,
    /// Whatever has to do with streams and events is answered so, while copies go on.
    refused: Option<CudaError>,
    /// And this is what events are answered that are to be recorded.
    marks_refused: Option<CudaError>,
    /// And this those who want to copy.
    copies_refused: Option<CudaError>,
    copies: u64,
    copy_bytes_max: u64,
    unpinned: u64,
}

impl State {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn check(&self, ordinal: u32) -> Answer<()> {
        match self.lost.get(&ordinal) {
            Some(&code) => Err(CudaError::ContextLost { ordinal, code }),
            None => Ok(()),
        }
    }

    fn check_streams(&self, ordinal: u32) -> Answer<()> {
        self.check(ordinal)?;
        self.refused.clone().map_or(Ok(()), Err)
    }

    /// The allocation that has an address, and how far into it that is.
    fn find(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (base, found) = self.allocations.range(..=address).next_back()?;
        let offset = address - base;
        (offset < found.memory.bytes()).then_some((offset, found))
    }

    /// What keeps the range, and where its bytes can be followed to.
    fn resolve(&self, end: End, bytes: u64) -> Option<(Option<Arc<Memory>>, *mut u8)> {
        let on_device = self.find(end.address);
        match (end.ordinal, on_device) {
            (None, None) => Some((None, end.address as *mut u8)),
            (Some(ordinal), Some((offset, found))) if found.ordinal == ordinal => {
                let fits = offset.checked_add(bytes)? <= found.memory.bytes();
                fits.then(|| (Some(found.memory.clone()), found.memory.at(offset)))
            }
            _ => None,
        }
    }

    /// Whether an end can be copied by a device alone; `None`: a part of it.
    fn is_pinned(&self, end: End, bytes: u64) -> Option<bool> {
        if end.ordinal.is_some() {
            return Some(true);
        }
        let last = end.address + bytes;
        let mut before = self.pinned.range(..last);
        match before.next_back() {
            Some((base, length)) if *base <= end.address && last <= base + length => Some(true),
            Some((base, length)) if base + length > end.address => None,
            _ => Some(false),
        }
    }

    /// The next step that can be carried out: of a healthy device, in a stream that does not wait.
    fn next_step(&mut self) -> Option<(u64, u32, Step)> {
        let State {
            streams,
            ahead,
            lost,
            ..
        } = self;
        let ready = streams.iter_mut().rev().find(|(_, queue)| {
            let first = queue.steps.front();
            let waits = |mark: &u64| ahead.contains(mark);
            !lost.contains_key(&queue.ordinal)
                && first.is_some_and(|step| !matches!(step, Step::Wait(mark) if waits(mark)))
        });
        let (number, queue) = ready?;
        let step = queue.steps.pop_front()?;
        Some((*number, queue.ordinal, step))
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    shared.state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Carries out what is in the streams.
fn work(shared: &Shared) {
    let mut state = lock(shared);
    loop {
        if state.ended {
            return;
        }
        let step = match state.held {
            true => None,
            false => state.next_step(),
        };
        let Some((stream, ordinal, step)) = step else {
            let waited = shared.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        match step {
            Step::Copy { to, from, bytes } => {
                let ends = (state.resolve(to, bytes), state.resolve(from, bytes));
                let (Some((to_kept, to)), Some((from_kept, from))) = ends else {
                    state.lost.insert(ordinal, ILLEGAL_ADDRESS);
                    shared.changed.notify_all();
                    continue;
                };
                state.busy = true;
                drop(state);
                // SAFETY: both ends were looked up: an allocation, kept meanwhile, with so many bytes from there on; or
                // host memory, as the caller of `copy` promised. They may overlap.
                unsafe { std::ptr::copy(from, to, bytes as usize) };
                drop((to_kept, from_kept));
                state = lock(shared);
                state.busy = false;
            }
            Step::Mark(mark) => {
                state.ahead.remove(&mark);
            }
            Step::Wait(_) => {}
        }
        let is_gone = |queue: &Queue| queue.ended && queue.steps.is_empty();
        if state.streams.get(&stream).is_some_and(is_gone) {
            state.streams.remove(&stream);
        }
        shared.changed.notify_all();
    }
}

impl Stub {
    /// A driver of such a machine.
    pub fn new(machine: Machine) -> Self {
        let shared = Arc::new(Shared {
            machine,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let works = shared.clone();
        let thread = std::thread::Builder::new()
            .name("stub-gpu".into())
            .spawn(move || work(&works));
        Self {
            shared,
            thread: thread.ok(),
        }
    }

    /// Nothing in any stream goes on, from now on.
    pub fn hold(&self) {
        let mut state = lock(&self.shared);
        state.held = true;
        while state.busy {
            let waited = self.shared.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// It goes on.
    pub fn go_on(&self) {
        lock(&self.shared).held = false;
        self.shared.changed.notify_all();
    }

    /// Calls that free or close memory of a device wait, from now on or not any more, as CUDA's do while a device is busy.
    pub fn hold_releases(&self, held: bool) {
        lock(&self.shared).holds_releases = held;
        self.shared.changed.notify_all();
    }

    /// How many calls wait so.
    pub fn releases_held(&self) -> u32 {
        lock(&self.shared).releases_held
    }

    /// A device's context fails.
    pub fn lose(&self, ordinal: u32, code: u32) {
        lock(&self.shared).lost.insert(ordinal, code);
        self.shared.changed.notify_all();
    }

    /// Carries out what was on its way on a device whose context has failed, as the hardware may: the number of copies.
    pub fn haunt(&self, ordinal: u32) -> usize {
        let mut state = lock(&self.shared);
        let steps: Vec<_> = state
            .streams
            .values_mut()
            .filter(|queue| queue.ordinal == ordinal)
            .flat_map(|queue| queue.steps.drain(..))
            .collect();
        let mut copies = 0;
        for step in steps {
            if let Step::Copy { to, from, bytes } = step
                && let (Some((_to, to)), Some((_from, from))) =
                    (state.resolve(to, bytes), state.resolve(from, bytes))
            {
                // SAFETY: as in `work`; a copy that never ended is one whose caller still keeps its promise.
                unsafe { std::ptr::copy(from, to, bytes as usize) };
                copies += 1;
            }
        }
        copies
    }

    /// From now on there is no room for allocations, or there is again.
    pub fn set_full(&self, full: bool) {
        lock(&self.shared).full = full;
    }

    /// From now on nothing longer than this is pinned.
    pub fn refuse_pins_above(&self, bytes: u64) {
        lock(&self.shared).pin_bytes_max = Some(bytes);
    }

    /// From now on memory of other processes is neither opened nor copied, and theirs not let open this one's, or it is
    /// again: as where a driver forbids it, between containers for instance.
    pub fn set_closed(&self, closed: bool) {
        lock(&self.shared).closed = closed;
    }

    /// Memory that the program has put together from `count` pieces of `unit` bytes each, which nobody can share.
    pub fn allocate_mapped(&self, ordinal: u32, unit: u64, count: u64) -> Answer<u64> {
        self.add(ordinal, unit * count, unit, Sharing::Process)
    }

    /// What was asked of it so far.
    pub fn counts(&self) -> Counts {
        let state = lock(&self.shared);
        let imported = state.allocations.values();
        let imported = imported.filter(|known| known.imported.is_some()).count() as u64;
        Counts {
            copies: state.copies,
            copy_bytes_max: state.copy_bytes_max,
            unpinned: state.unpinned,
            allocations: state.allocations.len() as u64 - imported,
            pinned: state.pinned.len() as u64,
            streams: state.streams.values().filter(|queue| !queue.ended).count() as u64,
            events: state.events.len() as u64,
            imported,
            begun: state.begun,
            contexts: state.attached.len() as u64,
        }
    }

    /// The program begins to capture what it puts into a stream.
    pub fn begin_capture(&self, stream: Stream) {
        lock(&self.shared).captures.insert(stream.0, false);
    }

    /// It ends that. Whether there is a graph: nobody has touched the stream meanwhile, or waited for it.
    pub fn end_capture(&self, stream: Stream) -> bool {
        lock(&self.shared).captures.remove(&stream.0) == Some(false)
    }

    /// From now on calls that concern streams and events are answered so, and do nothing; `None`: they are not any more.
    pub fn set_refused(&self, error: Option<CudaError>) {
        lock(&self.shared).refused = error;
    }

    /// From now on no copy is taken; `None`: they are taken again.
    pub fn refuse_copies(&self, error: Option<CudaError>) {
        lock(&self.shared).copies_refused = error;
    }

    /// From now on no event is recorded, though copies are taken; `None`: they are recorded again.
    pub fn refuse_marks(&self, error: Option<CudaError>) {
        lock(&self.shared).marks_refused = error;
    }

    /// Takes the context of a device, as each call in it does.
    fn ordinal(&self, ordinal: u32) -> Answer<()> {
        let devices = self.shared.machine.gpus;
        let mut state = lock(&self.shared);
        state.begun = true;
        match ordinal < devices {
            true => {
                state.attached.insert(ordinal);
                Ok(())
            }
            false => Err(CudaError::NoDevice { ordinal, devices }),
        }
    }

    fn add(&self, ordinal: u32, bytes: u64, unit: u64, sharing: Sharing) -> Answer<u64> {
        self.ordinal(ordinal)?;
        let mut state = lock(&self.shared);
        state.check(ordinal)?;
        if sharing == Sharing::Fabric && !self.shared.machine.fabric {
            return Err(CudaError::Unsupported {
                what: "share memory over NVLink",
            });
        }
        let of_device = state
            .allocations
            .values()
            .filter(|known| known.ordinal == ordinal && known.imported.is_none());
        let used: u64 = of_device.map(|known| known.memory.bytes()).sum();
        let full = state.full || bytes > self.shared.machine.bytes.saturating_sub(used);
        let memory = match full {
            true => None,
            false => Memory::new(bytes).ok(),
        };
        let memory = Arc::new(memory.ok_or(CudaError::OutOfMemory { bytes })?);
        let address = memory.address();
        let allocation = Allocation {
            ordinal,
            memory,
            unit,
            imported: None,
            sharing,
        };
        state.allocations.insert(address, allocation);
        Ok(address)
    }

    fn remove(&self, ordinal: u32, address: u64, imported: bool) -> Answer<()> {
        let mut state = lock(&self.shared);
        if state.holds_releases {
            state.releases_held += 1;
            while state.holds_releases {
                let waited = self.shared.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
            }
            state.releases_held -= 1;
        }
        state.check(ordinal)?;
        let known = state.allocations.get(&address);
        let known = known.filter(|known| known.imported.is_some() == imported);
        if known.is_none_or(|known| known.ordinal != ordinal) {
            return Err(CudaError::ForeignPointer { address });
        }
        state.allocations.remove(&address);
        Ok(())
    }

    fn push(&self, ordinal: u32, stream: Stream, step: Step) -> Answer<()> {
        let mut state = lock(&self.shared);
        state.check_streams(ordinal)?;
        if let Some(is_spoilt) = state.captures.get_mut(&stream.0) {
            *is_spoilt = true;
            return Err(busy(900));
        }
        let queue = state.streams.get_mut(&stream.0);
        let queue = queue.ok_or(CudaError::Driver {
            call: "cuStreamQuery",
            code: 400,
        })?;
        queue.steps.push_back(step);
        self.shared.changed.notify_all();
        Ok(())
    }
}

/// What a driver says while a graph is being captured.
fn busy(code: u32) -> CudaError {
    let call = "cuStreamQuery";
    CudaError::Busy { call, code }
}

/// What a driver says that forbids something.
fn not_permitted(call: &'static str) -> CudaError {
    CudaError::Driver { call, code: 800 }
}

impl Drop for Stub {
    fn drop(&mut self) {
        lock(&self.shared).ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Driver for Stub {
    fn gpus(&self) -> Answer<Vec<Gpu>> {
        let machine = &self.shared.machine;
        let gpu = |ordinal: u32| {
            let (name, place) = match machine.instances {
                true => ("Stub GPU MIG 1g.10gb", 0),
                false => ("Stub GPU", ordinal),
            };
            let mut uuid = *b"of a stub       ";
            uuid[12..].copy_from_slice(&ordinal.to_be_bytes());
            Gpu {
                ordinal,
                name: name.into(),
                uuid,
                pci: format!("ffff:{place:02x}:00.0"),
                bytes: machine.bytes,
                is_served: machine.served,
            }
        };
        lock(&self.shared).begun = true;
        Ok((0..self.shared.machine.gpus).map(gpu).collect())
    }

    fn attach(&self, ordinal: u32) -> Answer<()> {
        self.ordinal(ordinal)?;
        lock(&self.shared).check(ordinal)
    }

    fn contexts(&self) -> Answer<Vec<u32>> {
        let attached = lock(&self.shared).attached.clone();
        Ok(attached.into_iter().collect())
    }

    fn can_reach(&self, ordinal: u32, other: u32) -> Answer<bool> {
        Ok(ordinal == other || self.shared.machine.peers)
    }

    fn locate(&self, address: u64) -> Answer<Option<Location>> {
        let state = lock(&self.shared);
        let found = state.find(address);
        Ok(found.map(|(offset, found)| Location {
            ordinal: found.ordinal,
            base: address - offset % found.unit,
            bytes: found.unit,
            is_managed: false,
        }))
    }

    fn allocate(&self, ordinal: u32, bytes: u64, sharing: Sharing) -> Answer<u64> {
        self.add(ordinal, bytes, bytes, sharing)
    }

    fn free(&self, ordinal: u32, address: u64) -> Answer<()> {
        self.remove(ordinal, address, false)
    }

    fn pin(&self, ordinal: u32, address: u64, bytes: u64) -> Answer<bool> {
        let mut state = lock(&self.shared);
        state.check(ordinal)?;
        if state.full || state.pin_bytes_max.is_some_and(|most| bytes > most) {
            return Err(CudaError::OutOfMemory { bytes });
        }
        let (page, end) = (|at: u64| at / 4096, address + bytes);
        let shares = |base: u64, length: u64| {
            page(base) <= page(end - 1) && page(base + length - 1) >= page(address)
        };
        let mut known = state.pinned.iter();
        let shared = known.find(|(base, length)| shares(**base, **length));
        match shared {
            None => {
                state.pinned.insert(address, bytes);
                Ok(true)
            }
            Some((base, length)) if *base <= address && end <= base + length => Ok(false),
            Some(_) => Err(CudaError::Unsupported {
                what: "pin memory of which a part is pinned already",
            }),
        }
    }

    fn unpin(&self, ordinal: u32, address: u64) -> Answer<()> {
        let mut state = lock(&self.shared);
        let known = state.pinned.remove(&address).is_some();
        state.check(ordinal)?;
        match known {
            true => Ok(()),
            false => Err(CudaError::ForeignPointer { address }),
        }
    }

    fn stream(&self, ordinal: u32) -> Answer<Stream> {
        self.ordinal(ordinal)?;
        let mut state = lock(&self.shared);
        state.check_streams(ordinal)?;
        let number = state.next();
        let queue = Queue {
            ordinal,
            steps: VecDeque::new(),
            ended: false,
        };
        state.streams.insert(number, queue);
        Ok(Stream(number))
    }

    fn end_stream(&self, _: u32, stream: Stream) {
        let mut state = lock(&self.shared);
        let is_empty = state.streams.get_mut(&stream.0).map(|queue| {
            queue.ended = true;
            queue.steps.is_empty()
        });
        if is_empty == Some(true) {
            state.streams.remove(&stream.0);
        }
    }

    fn event(&self, ordinal: u32) -> Answer<Event> {
        self.ordinal(ordinal)?;
        let mut state = lock(&self.shared);
        state.check_streams(ordinal)?;
        let number = state.next();
        state.events.insert(number, None);
        Ok(Event(number))
    }

    fn end_event(&self, _: u32, event: Event) {
        lock(&self.shared).events.remove(&event.0);
    }

    unsafe fn copy(
        &self,
        ordinal: u32,
        stream: Stream,
        to: End,
        from: End,
        bytes: u64,
    ) -> Answer<()> {
        let mut state = lock(&self.shared);
        let is_foreign = |end: End| {
            let found = state.find(end.address);
            found.is_some_and(|(_, found)| found.imported.is_some())
        };
        if state.closed && (is_foreign(to) || is_foreign(from)) {
            return Err(not_permitted("cuMemcpyAsync"));
        }
        state.check_streams(ordinal)?;
        state.copies_refused.clone().map_or(Ok(()), Err)?;
        let pinned = [to, from].map(|end| state.is_pinned(end, bytes));
        let [Some(to_pinned), Some(from_pinned)] = pinned else {
            return Err(CudaError::Driver {
                call: "cuMemcpyAsync",
                code: 1,
            });
        };
        let waits = !(to_pinned && from_pinned);
        state.copies += 1;
        state.copy_bytes_max = state.copy_bytes_max.max(bytes);
        state.unpinned += u64::from(waits);
        drop(state);
        self.push(ordinal, stream, Step::Copy { to, from, bytes })?;
        match waits {
            true => self.finish(ordinal, stream),
            false => Ok(()),
        }
    }

    fn record(&self, ordinal: u32, event: Event, stream: Stream) -> Answer<()> {
        let mut state = lock(&self.shared);
        state.check_streams(ordinal)?;
        state.marks_refused.clone().map_or(Ok(()), Err)?;
        if let Some(is_spoilt) = state.captures.get_mut(&stream.0) {
            *is_spoilt = true;
            return Err(busy(900));
        }
        let mark = state.next();
        let known = state.events.get_mut(&event.0);
        *known.ok_or(CudaError::Driver {
            call: "cuEventRecord",
            code: 400,
        })? = Some(mark);
        state.ahead.insert(mark);
        drop(state);
        self.push(ordinal, stream, Step::Mark(mark))
    }

    fn is_over(&self, ordinal: u32, event: Event) -> Answer<bool> {
        let state = lock(&self.shared);
        state.check_streams(ordinal)?;
        let mark = state.events.get(&event.0).copied().flatten();
        Ok(mark.is_none_or(|mark| !state.ahead.contains(&mark)))
    }

    fn wait(&self, ordinal: u32, stream: Stream, event: Event) -> Answer<()> {
        let mark = lock(&self.shared).events.get(&event.0).copied().flatten();
        match mark {
            Some(mark) => self.push(ordinal, stream, Step::Wait(mark)),
            None => Ok(()),
        }
    }

    fn finish(&self, ordinal: u32, stream: Stream) -> Answer<()> {
        let mut state = lock(&self.shared);
        loop {
            state.check(ordinal)?;
            let rest = state.streams.get(&stream.0);
            if rest.is_none_or(|queue| queue.steps.is_empty()) && !state.busy {
                return Ok(());
            }
            let waited = self.shared.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The default stream waits for all others.
    fn is_capturing(&self, ordinal: u32, stream: Stream) -> Answer<bool> {
        let state = lock(&self.shared);
        state.check(ordinal)?;
        let captures = &state.captures;
        Ok(captures.contains_key(&stream.0) || stream.0 == 0 && !captures.is_empty())
    }

    fn reach(&self, ordinal: u32, other: u32) -> Answer<bool> {
        if self.can_reach(ordinal, other)? {
            self.ordinal(ordinal)?;
            self.ordinal(other)?;
        }
        self.can_reach(ordinal, other)
    }

    fn export(&self, ordinal: u32, base: u64) -> Answer<Handle> {
        let state = lock(&self.shared);
        state.check(ordinal)?;
        if state.closed {
            return Err(not_permitted("cuIpcGetMemHandle"));
        }
        let known = state.allocations.get(&base);
        let known = known.filter(|known| known.unit == known.memory.bytes());
        let known = known.ok_or(CudaError::Unsupported {
            what: "share this allocation with another process",
        })?;
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..4].copy_from_slice(&std::process::id().to_le_bytes());
        bytes[4..8].copy_from_slice(&known.memory.file().as_raw_fd().to_le_bytes());
        bytes[8..12].copy_from_slice(&ordinal.to_le_bytes());
        let sharing = known.sharing;
        Ok(Handle { sharing, bytes })
    }

    fn import(&self, ordinal: u32, handle: &Handle, bytes: u64) -> Answer<u64> {
        self.ordinal(ordinal)?;
        let mut state = lock(&self.shared);
        state.check(ordinal)?;
        if state.closed {
            return Err(not_permitted("cuIpcOpenMemHandle"));
        }
        let number = |at: usize| {
            let word = handle.bytes[at..at + 4].try_into().unwrap_or([0; 4]);
            u32::from_le_bytes(word)
        };
        if !self.can_reach(ordinal, number(8))? {
            return Err(CudaError::Driver {
                call: "cuIpcOpenMemHandle",
                code: 217,
            });
        }
        let path = format!("/proc/{}/fd/{}", number(0), number(4));
        let file = File::options().read(true).write(true).open(path);
        let memory = file.and_then(|file| Memory::of(file.into(), bytes));
        let memory = memory.map_err(|_| CudaError::Driver {
            call: "cuIpcOpenMemHandle",
            code: 400,
        })?;
        let address = memory.address();
        let allocation = Allocation {
            ordinal,
            unit: memory.bytes(),
            memory: Arc::new(memory),
            imported: Some(handle.sharing),
            sharing: handle.sharing,
        };
        state.allocations.insert(address, allocation);
        Ok(address)
    }

    fn close(&self, ordinal: u32, address: u64, _: Sharing) -> Answer<()> {
        self.remove(ordinal, address, true)
    }

    fn dma_buf(&self, ordinal: u32, address: u64, bytes: u64) -> Answer<OwnedFd> {
        let state = lock(&self.shared);
        state.check(ordinal)?;
        let unsupported = CudaError::Unsupported {
            what: "give a DMA-BUF of this memory",
        };
        let found = state.find(address).filter(|(offset, found)| {
            let is_whole = (address | bytes).is_multiple_of(self.page_bytes());
            self.shared.machine.dma_buf && is_whole && offset + bytes <= found.memory.bytes()
        });
        let (_, found) = found.ok_or(unsupported.clone())?;
        found.memory.file().try_clone().map_err(|_| unsupported)
    }

    fn page_bytes(&self) -> u64 {
        self.shared.machine.page_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(bytes: &mut [u8]) -> End {
        End {
            address: bytes.as_mut_ptr() as u64,
            ordinal: None,
        }
    }

    fn device(address: u64) -> End {
        End {
            address,
            ordinal: Some(0),
        }
    }

    #[test]
    fn a_stream_goes_on_in_order_and_only_while_it_is_not_held() {
        let stub = Stub::new(Machine::default());
        let memory = stub.allocate(0, 64, Sharing::Process).unwrap();
        let stream = stub.stream(0).unwrap();
        let events = [stub.event(0).unwrap(), stub.event(0).unwrap()];
        let mut here = [[7_u8; 64], [0; 64]];
        assert!(stub.pin(0, here.as_mut_ptr() as u64, 128).unwrap());
        stub.hold();
        // SAFETY: both live until `finish` has returned.
        unsafe {
            stub.copy(0, stream, device(memory), host(&mut here[0]), 64)
                .unwrap();
            stub.record(0, events[0], stream).unwrap();
            stub.copy(0, stream, host(&mut here[1]), device(memory), 63)
                .unwrap();
            stub.record(0, events[1], stream).unwrap();
        }
        let over = |event| stub.is_over(0, event).unwrap();
        assert!(!over(events[0]) && !over(events[1]));
        stub.go_on();
        stub.finish(0, stream).unwrap();
        assert!(over(events[0]) && over(events[1]));
        assert_eq!((here[1][62], here[1][63]), (7, 0));
        let counts = stub.counts();
        assert_eq!((counts.copies, counts.copy_bytes_max), (2, 64));
        assert_eq!(counts.unpinned, 0);
    }

    #[test]
    fn a_stream_waits_for_another_ones_event() {
        let stub = Stub::new(Machine::default());
        let memory = stub.allocate(0, 1, Sharing::Process).unwrap();
        let [first, second] = [stub.stream(0).unwrap(), stub.stream(0).unwrap()];
        let event = stub.event(0).unwrap();
        let mut here = [[7_u8], [0]];
        assert!(stub.pin(0, here.as_mut_ptr() as u64, 2).unwrap());
        stub.hold();
        // SAFETY: both live until `finish` has returned.
        unsafe {
            stub.copy(0, first, device(memory), host(&mut here[0]), 1)
                .unwrap();
            stub.record(0, event, first).unwrap();
            stub.wait(0, second, event).unwrap();
            stub.copy(0, second, host(&mut here[1]), device(memory), 1)
                .unwrap();
        }
        stub.go_on();
        stub.finish(0, second).unwrap();
        assert_eq!(here[1], [7]);
    }

    #[test]
    fn what_cuda_leaves_undefined_ends_the_context() {
        let stub = Stub::new(Machine::default());
        let memory = stub.allocate(0, 64, Sharing::Process).unwrap();
        let stream = stub.stream(0).unwrap();
        let mut from = [7_u8; 65];
        assert!(stub.pin(0, from.as_mut_ptr() as u64, 65).unwrap());
        // SAFETY: it lives until `finish` has returned.
        unsafe { stub.copy(0, stream, device(memory), host(&mut from), 65) }.unwrap();
        let lost = CudaError::ContextLost {
            ordinal: 0,
            code: ILLEGAL_ADDRESS,
        };
        assert_eq!(stub.finish(0, stream), Err(lost.clone()));
        assert_eq!(stub.allocate(0, 1, Sharing::Process), Err(lost));
        assert!(stub.stream(1).is_ok(), "the other device goes on");
    }

    #[test]
    fn memory_of_the_host_that_is_not_pinned_as_a_whole_is_no_devices() {
        let stub = Arc::new(Stub::new(Machine::default()));
        let memory = stub.allocate(0, 8192, Sharing::Process).unwrap();
        let stream = stub.stream(0).unwrap();
        let mut from = [7_u8; 16_384];
        // From a page's beginning on.
        let at = from.as_mut_ptr().align_offset(4096);
        let from = &mut from[at..at + 8192];
        let address = from.as_mut_ptr() as u64;
        assert_eq!(stub.pin(0, address, 100), Ok(true));
        assert_eq!(stub.pin(0, address + 10, 90), Ok(false));
        for (first, bytes) in [(address + 10, 91), (address + 200, 10), (address, 8192)] {
            let error = stub.pin(0, first, bytes).unwrap_err();
            assert!(matches!(error, CudaError::Unsupported { .. }), "{error}");
        }
        // SAFETY: it lives until the stream is finished below.
        let copy = |from: &mut [u8]| unsafe {
            let bytes = from.len() as u64;
            stub.copy(0, stream, device(memory), host(from), bytes)
        };
        let refused = CudaError::Driver {
            call: "cuMemcpyAsync",
            code: 1,
        };
        assert_eq!(copy(&mut from[50..150]), Err(refused));
        stub.hold();
        copy(&mut from[10..100]).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| copy(&mut from[4096..]));
            while stub.counts().copies < 2 {
                std::thread::yield_now();
            }
            assert!(!waits.is_finished(), "it is over when it has returned");
            stub.go_on();
            waits.join().unwrap().unwrap();
        });
        stub.finish(0, stream).unwrap();
        assert_eq!(stub.counts().unpinned, 1);
    }

    #[test]
    fn memory_is_found_by_any_address_in_it_and_nowhere_else() {
        let stub = Stub::new(Machine::default());
        let memory = stub.allocate(1, 100, Sharing::Process).unwrap();
        let whole = Location {
            ordinal: 1,
            base: memory,
            bytes: 100,
            is_managed: false,
        };
        assert_eq!(stub.locate(memory + 99), Ok(Some(whole)));
        assert_eq!(stub.locate(memory + 100), Ok(None));
        assert_eq!(stub.locate(&raw const whole as u64), Ok(None));
        stub.free(1, memory).unwrap();
        assert_eq!(stub.locate(memory), Ok(None));
        let pieces = stub.allocate_mapped(0, 4096, 3).unwrap();
        let piece = Location {
            ordinal: 0,
            base: pieces + 4096,
            bytes: 4096,
            is_managed: false,
        };
        assert_eq!(stub.locate(pieces + 5000), Ok(Some(piece)));
    }

    #[test]
    fn there_is_only_so_much_memory() {
        let stub = Stub::new(Machine {
            bytes: 100,
            ..Machine::default()
        });
        let first = stub.allocate(0, 60, Sharing::Process).unwrap();
        let none = Err(CudaError::OutOfMemory { bytes: 60 });
        assert_eq!(stub.allocate(0, 60, Sharing::Process), none);
        stub.free(0, first).unwrap();
        stub.set_full(true);
        assert_eq!(stub.allocate(0, 60, Sharing::Process), none);
        stub.set_full(false);
        assert!(stub.allocate(0, 60, Sharing::Process).is_ok());
    }
}
