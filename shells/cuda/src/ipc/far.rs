//! Another process's memory, as far as lanes of one worker have opened it.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use polyrail_core::time::Instant;
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef};
use polyrail_core::work::{Cause, Op, Work};
use polyrail_transport::complain;
use polyrail_transport::mapping::Mapping;
use polyrail_transport::memory::RegionKey;
use polyrail_transport::numbered::Numbered;
use polyrail_transport::packets::{self, nonsense};
use polyrail_transport::remark;
use polyrail_transport::ticket::{Proving, Said, SessionSecret};
use polyrail_transport::{RailAddress, RemoteRegion, SessionId};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use super::process::is_hung_up;
use super::wire::{self, Answer, Memory, Request, VERSION};
use crate::driver::{End, HANDLE_BYTES, Handle, Sharing};
use crate::far::{Far, FarEnd, FarEvent, Kept, Opening, Pin};
use crate::gpus::Gpus;

const EVENTS_MAX: usize = 64;

/// Messages of one lane that are taken in a row.
const MESSAGES_MAX: usize = 64;

/// No lane has this number.
const WAKE: u64 = u64::MAX;

const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Memory of another process that is open here. Closed with the last reference.
enum Import {
    OnDevice { of: Allocation },
    OnHost { of: Mapped },
}

/// An allocation of a device's.
struct Allocation {
    gpus: Arc<Gpus>,
    ordinal: u32,
    address: u64,
    sharing: Sharing,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let driver = self.gpus.driver();
        if let Err(error) = driver.close(self.ordinal, self.address, self.sharing) {
            log::debug!("cuda-ipc: {error}");
        }
    }
}

/// Memory of the host's.
struct Mapped {
    gpus: Arc<Gpus>,
    /// `None`: no more.
    mapping: Option<Mapping>,
    /// The device that it is pinned for first; all others can use it.
    pinned: Mutex<Option<u32>>,
    is_pinned: AtomicBool,
}

impl Mapped {
    fn address(&self) -> u64 {
        let base = self.mapping.as_ref().map(|mapping| mapping.base().as_ptr());
        base.map_or(0, |base| base as u64)
    }

    /// Pins it for devices. Again: does nothing.
    fn pin(&self, ordinal: u32) {
        let mut pinned = lock(&self.pinned);
        let Some(mapping) = self.mapping.as_ref().filter(|_| pinned.is_none()) else {
            return;
        };
        let driver = self.gpus.driver();
        match driver.pin(ordinal, self.address(), mapping.bytes()) {
            Ok(is_ours) => {
                *pinned = is_ours.then_some(ordinal);
                self.is_pinned.store(true, Release);
            }
            Err(error) => remark!(
                "cuda-ipc: copies to and from {} bytes of a peer's host memory pass through slots: cannot pin it: {error}",
                mapping.bytes()
            ),
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let Some(ordinal) = lock(&self.pinned).take() else {
            return;
        };
        if let Err(error) = self.gpus.driver().unpin(ordinal, self.address()) {
            // The driver would take what comes to that place next for this.
            log::debug!("cuda-ipc: {error}");
            std::mem::forget(self.mapping.take());
        }
    }
}

/// A file of memory, by the numbers that the kernel gives it, and whether it is mapped for writing.
type File = (u64, u64, bool);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is open, so that the workers of an engine open it once.
#[derive(Default)]
pub(super) struct Imports {
    rows: Mutex<HashMap<Name, Weak<Import>>>,
    files: Mutex<HashMap<File, Weak<Import>>>,
    /// What a driver last refused to open on each rail. Scratch is never opened, so probes of it would say that all is
    /// well again, when it is not.
    refused: Mutex<Numbered<RailId, Wanted>>,
}

/// A region, and the device that it is wanted for: that of the near end, `None`: which is on the host.
type Wanted = (RegionKey, Option<u32>);

/// The device that something is open for, and the words that have opened it.
type Name = (u32, [u8; HANDLE_BYTES]);

impl Imports {
    fn refused(&self, rail: RailId) -> Option<Wanted> {
        lock(&self.refused).get(&rail).copied()
    }

    fn set_refused(&self, rail: RailId, wanted: Option<Wanted>) {
        let mut refused = lock(&self.refused);
        match wanted {
            Some(wanted) => refused.insert(rail, wanted),
            None => refused.remove(&rail),
        };
    }

    /// Opens memory for a near end.
    /// `wake` is written to when it has been closed again.
    fn open_for(
        &self,
        gpus: &Arc<Gpus>,
        near: Option<u32>,
        memory: &Memory,
        wake: &Arc<Wake>,
    ) -> io::Result<Opened> {
        let ordinal = from_where(gpus, near, memory)?;
        let (import, address) =
            self.open(gpus, ordinal, &memory.handle(), memory.allocation_bytes)?;
        Ok(Opened {
            near,
            ordinal: Some(ordinal),
            address: address + memory.offset,
            of: Use::new(gpus, import, wake),
        })
    }

    /// Maps memory of the host's that is in a file, and has it pinned for copies of a device.
    fn map_for(
        &self,
        gpus: &Arc<Gpus>,
        near: u32,
        file: &OwnedFd,
        (bytes, writable): (u64, bool),
        wake: &Arc<Wake>,
    ) -> io::Result<Opened> {
        let import = self.map(gpus, file, bytes, writable)?;
        let address = match &*import {
            Import::OnHost { of } => of.address(),
            Import::OnDevice { of } => of.address,
        };
        let of = Use::new(gpus, import, wake);
        let pins = of.clone();
        gpus.pin_in_background(move || pins.pin(near));
        Ok(Opened {
            near: Some(near),
            ordinal: None,
            address,
            of,
        })
    }

    fn map(
        &self,
        gpus: &Arc<Gpus>,
        file: &OwnedFd,
        bytes: u64,
        writable: bool,
    ) -> io::Result<Arc<Import>> {
        let found = rustix::fs::fstat(file)?;
        let name = (found.st_dev, found.st_ino, writable);
        let mut files = lock(&self.files);
        files.retain(|_, row| row.strong_count() > 0);
        let has_all = |import: &Arc<Import>| match &**import {
            Import::OnHost { of } => of.mapping.as_ref().is_some_and(|of| of.bytes() >= bytes),
            Import::OnDevice { .. } => false,
        };
        let known = files.get(&name).and_then(Weak::upgrade).filter(has_all);
        if let Some(known) = known {
            return Ok(known);
        }
        let of = Mapped {
            gpus: gpus.clone(),
            mapping: Some(Mapping::of_peer(file.as_fd(), bytes, writable)?),
            pinned: Mutex::new(None),
            is_pinned: AtomicBool::new(false),
        };
        let import = Arc::new(Import::OnHost { of });
        files.insert(name, Arc::downgrade(&import));
        Ok(import)
    }

    fn open(
        &self,
        gpus: &Arc<Gpus>,
        ordinal: u32,
        handle: &Handle,
        bytes: u64,
    ) -> io::Result<(Arc<Import>, u64)> {
        let mut rows = lock(&self.rows);
        rows.retain(|_, row| row.strong_count() > 0);
        let name = (ordinal, handle.bytes);
        let known = rows.get(&name).and_then(Weak::upgrade);
        if let Some(known) = known
            && let Import::OnDevice { of } = &*known
        {
            let address = of.address;
            return Ok((known, address));
        }
        gpus.attach(ordinal)?;
        let address = gpus.driver().import(ordinal, handle, bytes)?;
        let of = Allocation {
            gpus: gpus.clone(),
            ordinal,
            address,
            sharing: handle.sharing,
        };
        let import = Arc::new(Import::OnDevice { of });
        rows.insert(name, Arc::downgrade(&import));
        Ok((import, address))
    }
}

/// The device that opens memory: a context is half a gigabyte of a GPU's memory, so none is taken on a GPU that neither this
/// process nor the request has named.
fn from_where(gpus: &Gpus, near: Option<u32>, memory: &Memory) -> io::Result<u32> {
    if let Some(near) = near {
        return Ok(near);
    }
    // The peer may number devices in another way, and some of its may be hidden here.
    let mut known = gpus.gpus()?.iter();
    let own = known.find(|gpu| memory.is_on(gpu.uuid));
    let own = own.map(|gpu| gpu.ordinal);
    let taken = gpus.driver().contexts()?;
    if taken.is_empty() {
        return Ok(own.unwrap_or(0));
    }
    let Some(own) = own.filter(|own| !taken.contains(own)) else {
        return Ok(own.unwrap_or(taken[0]));
    };
    for other in taken {
        if gpus.driver().can_reach(other, own)? {
            return Ok(other);
        }
    }
    Err(io::Error::other(
        "it is on a GPU that none of those that this process uses reaches",
    ))
}

/// A lane's use of an import. When the last reference goes, nothing of the lane touches it, and it is closed if no other one does.
pub(crate) struct Use {
    gpus: Arc<Gpus>,
    import: Option<Arc<Import>>,
    /// It has not been closed, as far as this lane goes.
    open: Arc<()>,
    wake: Arc<Wake>,
}

impl Use {
    fn new(gpus: &Arc<Gpus>, import: Arc<Import>, wake: &Arc<Wake>) -> Arc<Self> {
        Arc::new(Self {
            gpus: gpus.clone(),
            import: Some(import),
            open: Arc::new(()),
            wake: wake.clone(),
        })
    }

    fn pin(&self, ordinal: u32) {
        if let Some(Import::OnHost { of }) = self.import.as_deref() {
            of.pin(ordinal);
        }
    }

    /// Whether a device copies it by itself.
    fn is_pinned(&self) -> bool {
        match self.import.as_deref() {
            Some(Import::OnHost { of }) => of.is_pinned.load(Acquire),
            Some(Import::OnDevice { .. }) | None => true,
        }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let (import, open, wake) = (self.import.take(), self.open.clone(), self.wake.clone());
        // The driver may wait for all that the device does before it has closed it.
        self.gpus.release(move || {
            drop(import);
            drop(open);
            wake.call();
        });
    }
}

/// How a worker hears that something has been closed.
struct Wake {
    fd: OwnedFd,
    called: AtomicBool,
}

impl Wake {
    fn call(&self) {
        // Full means that it was woken already.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        // Behind that: whoever sees it finds something to read.
        self.called.store(true, Release);
    }

    /// Whether it was called since the last time.
    fn hears(&self) -> bool {
        let called = self.called.load(Relaxed) && self.called.swap(false, AcqRel);
        if called {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
        called
    }
}

/// Memory of a peer's as it is open here, for near ends on one device or on the host.
struct Opened {
    near: Option<u32>,
    /// `None`: it is the host's.
    ordinal: Option<u32>,
    address: u64,
    of: Arc<Use>,
}

impl Opened {
    /// The far end of a work that lies in it.
    fn at(&self, work: &Work) -> FarEnd {
        FarEnd {
            end: End {
                address: self.address + work.remote.offset,
                ordinal: self.ordinal,
            },
            is_pinned: self.of.is_pinned(),
            kept: Kept::Import {
                of: self.of.clone(),
            },
        }
    }
}

/// What a lane knows of a key.
enum Known {
    /// For a near end that is there.
    Asked(Option<u32>),
    /// The same, and nobody wants to know any more.
    Forgotten(Option<u32>),
    Nothing,
    /// It is there, and one of the two drivers does not let it be opened.
    Locked,
    OnHost,
    /// The same, and mapped here.
    Mapped {
        bytes: u64,
        writable: bool,
        opened: Vec<Opened>,
    },
    Open {
        memory: Memory,
        opened: Vec<Opened>,
    },
}

struct Lane {
    epoch: Epoch,
    socket: OwnedFd,
    asking: Asking,
    is_open: bool,
    by: Instant,
    /// What has to be opened before the lane counts as open: it was refused when it was last tried on this rail.
    trial: Option<RegionKey>,
    /// See [`say_who_copies`].
    said_who_copies: bool,
    keys: HashMap<RegionKey, Known>,
    /// What the target wants back, while copies still use it.
    leaving: Vec<(RegionKey, Vec<Weak<()>>)>,
}

impl Lane {
    /// Notes what has become of a key that was asked for.
    fn learn(
        &mut self,
        key: RegionKey,
        known: Known,
        refused: &mut Option<Wanted>,
    ) -> io::Result<Option<Event>> {
        let is_locked = matches!(known, Known::Locked);
        let row = self.keys.get_mut(&key);
        let near = match row {
            Some(row @ &mut Known::Asked(near)) => {
                *row = known;
                near
            }
            Some(row @ &mut Known::Forgotten(near)) => {
                *row = known;
                self.forget(key)?;
                near
            }
            _ => return Err(nonsense("it answers what was not asked")),
        };
        *refused = match is_locked {
            true => Some((key, near)),
            false => refused.filter(|(refused, _)| *refused != key),
        };
        match self.trial.take_if(|trial| *trial == key) {
            None => Ok(Some(FarEvent::Again)),
            Some(_) if is_locked => Err(io::Error::other("what it offers still cannot be opened")),
            Some(_) => {
                self.is_open = true;
                Ok(Some(FarEvent::Opened))
            }
        }
    }

    /// Leaves what is behind a key as soon as no copy uses it.
    fn forget(&mut self, key: RegionKey) -> io::Result<()> {
        match self.keys.remove(&key) {
            Some(Known::Open { opened, .. } | Known::Mapped { opened, .. }) => {
                self.leaving.push((key, uses(&opened)));
            }
            Some(Known::Asked(near)) => drop(self.keys.insert(key, Known::Forgotten(near))),
            _ => {}
        }
        self.leave()
    }

    /// Says of each key that was to be left when it is.
    fn leave(&mut self) -> io::Result<()> {
        let is_left = |(_, uses): &mut (RegionKey, Vec<Weak<()>>)| {
            uses.iter().all(|of| of.strong_count() == 0)
        };
        let left: Vec<_> = self.leaving.extract_if(.., is_left).collect();
        for (key, _) in left {
            wire::send(&self.socket, &Request::Left { key })?;
        }
        Ok(())
    }
}

/// What goes when these have been closed.
fn uses(opened: &[Opened]) -> Vec<Weak<()>> {
    let open = opened.iter().map(|one| &one.of.open);
    open.map(Arc::downgrade).collect()
}

/// The far ends of one worker's lanes.
pub(super) struct Theirs {
    gpus: Arc<Gpus>,
    imports: Arc<Imports>,
    epoll: OwnedFd,
    /// Readable when something has been closed.
    wake: Arc<Wake>,
    rails: Numbered<RailId, RailAddress>,
    remotes: Numbered<SegmentRef, RemoteRegion>,
    lanes: Numbered<LaneId, Lane>,
}

impl Theirs {
    pub(super) fn new(gpus: Arc<Gpus>, imports: Arc<Imports>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = Arc::new(Wake {
            fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            called: AtomicBool::new(false),
        });
        epoll::add(&epoll, &wake.fd, EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Self {
            gpus,
            imports,
            epoll,
            wake,
            rails: Numbered::default(),
            remotes: Numbered::default(),
            lanes: Numbered::default(),
        })
    }

    fn try_open(&self, lane: LaneId, epoch: Epoch) -> io::Result<(OwnedFd, Asking)> {
        let address = self.rails.get(&lane.rail());
        let address = address.ok_or_else(|| nonsense("nobody has said where its rail runs"))?;
        let secret = address.secret.as_ref();
        let name = Some((lane.0, epoch.0));
        let (socket, asking) = greet(&address.own, address.session, secret, name)?;
        let data = EventData::new_u64(lane.0.into());
        epoll::add(&self.epoll, &socket, data, EventFlags::IN)?;
        Ok((socket, asking))
    }

    /// Takes what the target of a lane says.
    fn hear(&mut self, lane: LaneId, out: &mut Vec<FarEvent>) {
        let Some(row) = self.lanes.get_mut(&lane) else {
            return;
        };
        let epoch = row.epoch;
        for _ in 0..MESSAGES_MAX {
            let heard = packets::receive(&row.socket).and_then(|said| match said {
                None => Ok(None),
                Some((answer, file)) => {
                    let heard = row.asking.hear(&row.socket, answer)?;
                    Ok(Some(heard.map(|answer| (answer, file))))
                }
            });
            let heard = match heard {
                Ok(None) => return,
                Ok(Some(None)) => Ok(None),
                Ok(Some(Some((answer, file)))) => {
                    let before = self.imports.refused(lane.rail());
                    let mut refused = before;
                    let here = (&self.gpus, &*self.imports, &self.wake);
                    let heard = take(row, here, &mut refused, (answer, file));
                    if refused != before {
                        self.imports.set_refused(lane.rail(), refused);
                    }
                    heard
                }
                Err(error) => Err(error),
            };
            match heard {
                Ok(Some(event)) => out.push(event(lane, epoch)),
                Ok(None) => {}
                Err(error) => {
                    log::debug!("cuda-ipc: {lane:?} {epoch:?} ends: {error}");
                    let _ = epoll::delete(&self.epoll, &row.socket);
                    out.push(match std::mem::take(&mut row.is_open) {
                        true => FarEvent::Broken(lane, epoch),
                        false => FarEvent::Refused(lane, epoch),
                    });
                    return;
                }
            }
        }
    }
}

/// Connects to a target and asks to come in.
pub(super) fn greet(
    name: &[u8],
    session: SessionId,
    secret: Option<&SessionSecret>,
    lane: Option<(u32, u32)>,
) -> io::Result<(OwnedFd, Asking)> {
    let socket = packets::connect_to(name)?;
    packets::check_user(&socket)?;
    let version = VERSION;
    let proving = Proving::new(secret);
    let first = match proving.is_over() {
        false => Request::Challenge,
        true => Request::Hello {
            version,
            session: session.0,
            lane,
        },
    };
    wire::send(&socket, &first)?;
    let asking = Asking {
        session,
        lane,
        proving,
    };
    Ok((socket, asking))
}

/// A connection that is to come in, until both ends have proved themselves.
pub(super) struct Asking {
    session: SessionId,
    lane: Option<(u32, u32)>,
    proving: Proving,
}

impl Asking {
    /// Takes what the target says; gives back what is not about proofs.
    pub(super) fn hear(&mut self, socket: &OwnedFd, answer: Answer) -> io::Result<Option<Answer>> {
        let said = match answer {
            answer if self.proving.is_over() => return Ok(Some(answer)),
            Answer::Refused => return Ok(Some(answer)),
            Answer::Challenge { nonce } => Said::Challenge(nonce),
            Answer::Proved { proof } => Said::Proof(proof),
            _ => Said::Other,
        };
        let (session, lane) = (self.session, self.lane);
        if let Some(ticket) = self.proving.hear(&wire::entry(session, lane), said)? {
            let hello = Request::HelloProved {
                version: VERSION,
                session: session.0,
                lane,
                ticket,
            };
            wire::send(socket, &hello)?;
        }
        Ok(None)
    }
}

/// What is to be said of the lane.
type Event = fn(LaneId, Epoch) -> FarEvent;

/// What comes of an answer. `refused` is what could not be opened on the lane's rail when it was last tried.
fn take(
    row: &mut Lane,
    (gpus, imports, wake): (&Arc<Gpus>, &Imports, &Arc<Wake>),
    refused: &mut Option<Wanted>,
    (answer, file): (Answer, Option<OwnedFd>),
) -> io::Result<Option<Event>> {
    match answer {
        Answer::Ready if row.is_open || row.trial.is_some() => {
            Err(nonsense("it lets in who is in"))
        }
        Answer::Ready => match *refused {
            None => {
                row.is_open = true;
                Ok(Some(FarEvent::Opened))
            }
            Some((key, near)) => {
                wire::send(&row.socket, &Request::Open { key })?;
                row.keys.insert(key, Known::Asked(near));
                row.trial = Some(key);
                Ok(None)
            }
        },
        Answer::Refused => Err(io::Error::other("refused")),
        Answer::Challenge { .. } | Answer::Proved { .. } => {
            Err(nonsense("it proves what it was not asked for"))
        }
        Answer::Nothing { key } => row.learn(key, Known::Nothing, refused),
        Answer::Locked { key } => row.learn(key, Known::Locked, refused),
        Answer::IsOnHost { key } => match row.keys.get(&key) {
            // Which is of use to a device.
            Some(Known::Asked(Some(_))) => {
                wire::send(&row.socket, &Request::Map { key })?;
                Ok(None)
            }
            _ => row.learn(key, Known::OnHost, refused),
        },
        Answer::Maps {
            key,
            bytes,
            writable,
        } => {
            let near = match row.keys.get(&key) {
                Some(Known::Asked(Some(near)) | Known::Forgotten(Some(near))) => *near,
                _ => return Err(nonsense("it answers what was not asked")),
            };
            let file = file.ok_or_else(|| nonsense("a file is missing"))?;
            say_who_copies(row, gpus)?;
            let mapped = imports.map_for(gpus, near, &file, (bytes, writable), wake);
            let known = match mapped {
                Ok(opened) => Known::Mapped {
                    bytes,
                    writable,
                    opened: vec![opened],
                },
                Err(error) => {
                    complain!("cuda-ipc: a peer's memory cannot be mapped: {error}");
                    Known::Locked
                }
            };
            row.learn(key, known, refused)
        }
        Answer::Opens { key, memory } => {
            if !memory.is_sound() {
                return Err(nonsense("a region ends past its allocation"));
            }
            let near = match row.keys.get(&key) {
                Some(Known::Asked(near) | Known::Forgotten(near)) => *near,
                _ => return Err(nonsense("it answers what was not asked")),
            };
            say_who_copies(row, gpus)?;
            let known = match imports.open_for(gpus, near, &memory, wake) {
                Ok(opened) => Known::Open {
                    memory,
                    opened: vec![opened],
                },
                Err(error) => {
                    match refused {
                        // It is tried again and again.
                        Some(_) => log::debug!("cuda-ipc: still not opened: {error}"),
                        None => complain!("cuda-ipc: a peer's memory cannot be opened: {error}"),
                    }
                    Known::Locked
                }
            };
            row.learn(key, known, refused)
        }
        Answer::Leave { key } => {
            let uses = match row.keys.remove(&key) {
                Some(Known::Open { opened, .. } | Known::Mapped { opened, .. }) => uses(&opened),
                _ => Vec::new(),
            };
            row.leaving.push((key, uses));
            row.leave()?;
            Ok(Some(FarEvent::Again))
        }
    }
}

/// Says before the first copy of a lane whether the end of this process is that of its copies. CUDA is not started for that:
/// it is for what has just been told of.
fn say_who_copies(row: &mut Lane, gpus: &Gpus) -> io::Result<()> {
    if !std::mem::replace(&mut row.said_who_copies, true) && gpus.are_served() {
        wire::send(&row.socket, &Request::Served)?;
    }
    Ok(())
}

impl Far for Theirs {
    fn attach(&mut self, segment: SegmentRef, region: RemoteRegion) {
        self.remotes.insert(segment, region);
    }

    fn detach(&mut self, segment: SegmentRef) {
        let Some(region) = self.remotes.remove(&segment) else {
            return;
        };
        for row in self.lanes.values_mut() {
            // One that has hung up needs no word.
            let _ = row.forget(region.key);
        }
    }

    fn attach_rail(&mut self, rail: RailId, address: RailAddress) {
        self.rails.insert(rail, address);
    }

    fn open(&mut self, lane: LaneId, epoch: Epoch, by: Instant) -> Opening {
        self.end(lane);
        match self.try_open(lane, epoch) {
            Ok((socket, asking)) => {
                let row = Lane {
                    epoch,
                    socket,
                    asking,
                    is_open: false,
                    by,
                    trial: None,
                    said_who_copies: false,
                    keys: HashMap::new(),
                    leaving: Vec::new(),
                };
                self.lanes.insert(lane, row);
                Opening::Later
            }
            Err(error) => {
                log::debug!("cuda-ipc: {lane:?} {epoch:?} not opened: {error}");
                Opening::Failed
            }
        }
    }

    fn pin(&mut self, lane: LaneId, work: &Work, near: Option<u32>) -> Result<Pin, Cause> {
        let remote = self.remotes.get(&work.remote.segment);
        let key = remote.ok_or(Cause::RemoteAccess)?.key;
        let row = self.lanes.get_mut(&lane).ok_or(Cause::Flushed)?;
        let end = work.remote.offset.checked_add(work.length.into());
        let fits = |bytes: u64, writable: bool| {
            end.is_some_and(|end| end <= bytes) && (work.op == Op::Read || writable)
        };
        let (memory, opened) = match row.keys.get_mut(&key) {
            None => {
                wire::send(&row.socket, &Request::Open { key }).map_err(|_| Cause::Reset)?;
                row.keys.insert(key, Known::Asked(near));
                return Ok(Pin::Wait);
            }
            Some(Known::Asked(_)) => return Ok(Pin::Wait),
            Some(row @ &mut Known::Forgotten(near)) => {
                *row = Known::Asked(near);
                return Ok(Pin::Wait);
            }
            Some(Known::Nothing) => return Err(Cause::RemoteAccess),
            Some(Known::Locked) => return Err(self.refusal()),
            // Both ends are on the host.
            Some(Known::OnHost | Known::Mapped { .. }) if near.is_none() => {
                return Ok(Pin::Answered);
            }
            Some(row @ Known::OnHost) => {
                *row = Known::Asked(near);
                let socket = &self.lanes.get(&lane).ok_or(Cause::Flushed)?.socket;
                wire::send(socket, &Request::Map { key }).map_err(|_| Cause::Reset)?;
                return Ok(Pin::Wait);
            }
            Some(Known::Mapped {
                bytes,
                writable,
                opened,
            }) => {
                let one = opened.first().filter(|_| fits(*bytes, *writable));
                return Ok(Pin::There(one.ok_or(Cause::RemoteAccess)?.at(work)));
            }
            Some(Known::Open { memory, opened }) => (memory, opened),
        };
        if !fits(memory.bytes, memory.writable) {
            return Err(Cause::RemoteAccess);
        }
        let known = opened.iter().position(|one| one.near == near);
        let position = match known {
            Some(known) => known,
            None => {
                let one = self.imports.open_for(&self.gpus, near, memory, &self.wake);
                let one = one.map_err(|error| {
                    complain!("cuda-ipc: a peer's memory cannot be opened: {error}");
                    self.imports.set_refused(lane.rail(), Some((key, near)));
                    Cause::Refused
                });
                opened.push(one?);
                opened.len() - 1
            }
        };
        Ok(Pin::There(opened[position].at(work)))
    }

    /// Another transport may reach it, or it can be staged.
    fn refusal(&self) -> Cause {
        Cause::Refused
    }

    fn poll(&mut self, now: Instant, out: &mut Vec<FarEvent>) {
        self.wake.hears();
        if self.lanes.is_empty() {
            return;
        }
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut events, Some(&AT_ONCE)) {
            Ok((events, _)) => {
                for event in events {
                    match event.data.u64() {
                        // The next look takes it.
                        WAKE => {}
                        lane => self.hear(LaneId(lane as u32), out),
                    }
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => complain!("cuda-ipc: epoll_wait: {error}"),
        }
        for (lane, row) in &mut self.lanes {
            if !row.is_open && row.by <= now {
                row.by = Instant::MAX;
                out.push(FarEvent::Refused(*lane, row.epoch));
            }
            // One that has hung up needs no word.
            let _ = row.leave();
        }
    }

    fn is_sound(&self, lane: LaneId) -> bool {
        self.lanes
            .get(&lane)
            .is_some_and(|row| !is_hung_up(&row.socket))
    }

    /// Its socket closes behind the last word, and the target knows that nothing is under way.
    fn end(&mut self, lane: LaneId) {
        if let Some(row) = self.lanes.remove(&lane) {
            drop(row.keys);
            // Behind these.
            self.gpus.release(move || {
                let _ = wire::send(&row.socket, &Request::Over);
            });
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    /// Its socket closes without a word: then the target waits for the end of this process.
    fn abandon(&mut self, lane: LaneId) {
        self.lanes.remove(&lane);
    }

    fn due(&self) -> Option<Instant> {
        let opening = self.lanes.values().filter(|row| !row.is_open);
        opening.map(|row| row.by).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::Driver;
    use crate::gpus::Export;
    use crate::stub::{Machine, Stub};

    #[test]
    fn no_context_is_taken_on_a_gpu_that_nobody_has_named() {
        // Eight processes with a GPU each took 64 contexts.
        let known = Stub::new(Machine::default()).gpus().unwrap();
        let here = |ordinal: usize| known[ordinal].uuid;
        let elsewhere = [0xee; 16];
        // (name, taken contexts, reach each other, where the memory is, near end's device, which device opens it)
        type Case = (
            &'static str,
            &'static [u32],
            bool,
            [u8; 16],
            Option<u32>,
            Option<u32>,
        );
        let cases: [Case; 9] = [
            ("near end on a GPU", &[1], true, here(0), Some(1), Some(1)),
            (
                "one that is not used yet",
                &[],
                true,
                here(0),
                Some(1),
                Some(1),
            ),
            (
                "that does not reach it",
                &[1],
                false,
                here(0),
                Some(1),
                Some(1),
            ),
            ("host, no GPU in use", &[], true, here(1), None, Some(1)),
            (
                "host, that GPU in use",
                &[0, 1],
                true,
                here(1),
                None,
                Some(1),
            ),
            ("host, another in use", &[0], true, here(1), None, Some(0)),
            ("host, out of reach", &[0], false, here(1), None, None),
            (
                "host, on a hidden GPU",
                &[1],
                true,
                elsewhere,
                None,
                Some(1),
            ),
            (
                "host, hidden, none in use",
                &[],
                true,
                elsewhere,
                None,
                Some(0),
            ),
        ];
        for (name, taken, peers, uuid, near, expected) in cases {
            let stub = Arc::new(Stub::new(Machine {
                peers,
                ..Machine::default()
            }));
            let gpus = Gpus::over(stub.clone());
            for ordinal in taken {
                gpus.attach(*ordinal).unwrap();
            }
            let export = Export {
                ordinal: 0,
                handle: Handle {
                    sharing: Sharing::Process,
                    bytes: [0; HANDLE_BYTES],
                },
                offset: 0,
                bytes: 4096,
            };
            let memory = Memory::new(&export, uuid, 4096, true);
            assert_eq!(from_where(&gpus, near, &memory).ok(), expected, "{name}");
            let contexts: Vec<u32> = taken.into();
            assert_eq!(stub.contexts().unwrap(), contexts, "{name}: by asking");
        }
    }
}
