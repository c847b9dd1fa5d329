//! Another process's device memory, as far as lanes of one worker have opened it.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use polyrail_core::time::Instant;
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef};
use polyrail_core::work::{Cause, Op, Work};
use polyrail_transport::memory::RegionKey;
use polyrail_transport::numbered::Numbered;
use polyrail_transport::packets;
use polyrail_transport::{RailAddress, RemoteRegion};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::process::{check_user, is_hung_up};
use super::wire::{self, Answer, Memory, Request, VERSION, nonsense};
use crate::driver::{End, HANDLE_BYTES, Handle, Sharing};
use crate::far::{Far, FarEnd, FarEvent, Kept, Opening, Pin};
use crate::gpus::Gpus;

const EVENTS_MAX: usize = 64;

/// Messages of one lane that are taken in a row.
const MESSAGES_MAX: usize = 64;

const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Another process's allocation that is open here. Closed with the last reference.
struct Import {
    gpus: Arc<Gpus>,
    ordinal: u32,
    address: u64,
    sharing: Sharing,
}

impl Drop for Import {
    fn drop(&mut self) {
        let driver = self.gpus.driver();
        if let Err(error) = driver.close(self.ordinal, self.address, self.sharing) {
            log::debug!("cuda-ipc: {error}");
        }
    }
}

/// What is open, so that the workers of an engine open it once.
#[derive(Default)]
pub(super) struct Imports {
    rows: Mutex<HashMap<Name, Weak<Import>>>,
    /// What a driver last refused to open on each rail. Scratch is never opened, so probes of it would say that all is
    /// well again, when it is not.
    refused: Mutex<Numbered<RailId, RegionKey>>,
}

/// The device that something is open for, and the words that have opened it.
type Name = (u32, [u8; HANDLE_BYTES]);

impl Imports {
    fn refused(&self, rail: RailId) -> Option<RegionKey> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.get(&rail).copied()
    }

    fn set_refused(&self, rail: RailId, key: Option<RegionKey>) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        match key {
            Some(key) => refused.insert(rail, key),
            None => refused.remove(&rail),
        };
    }

    fn open(
        &self,
        gpus: &Arc<Gpus>,
        ordinal: u32,
        handle: &Handle,
        bytes: u64,
    ) -> io::Result<Arc<Import>> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.retain(|_, row| row.strong_count() > 0);
        let name = (ordinal, handle.bytes);
        if let Some(known) = rows.get(&name).and_then(Weak::upgrade) {
            return Ok(known);
        }
        gpus.attach(ordinal)?;
        let address = gpus.driver().import(ordinal, handle, bytes)?;
        let import = Arc::new(Import {
            gpus: gpus.clone(),
            ordinal,
            address,
            sharing: handle.sharing,
        });
        rows.insert(name, Arc::downgrade(&import));
        Ok(import)
    }
}

/// A lane's use of an import. When the last reference goes, nothing of the lane touches it.
pub(crate) struct Use {
    _import: Arc<Import>,
}

/// What a lane knows of a key.
enum Known {
    Asked,
    /// The same, and nobody wants to know any more.
    Forgotten,
    Nothing,
    /// It is there, and one of the two drivers does not let it be opened.
    Locked,
    OnHost,
    Open {
        of: Arc<Use>,
        ordinal: u32,
        address: u64,
        memory: Memory,
    },
}

struct Lane {
    epoch: Epoch,
    socket: OwnedFd,
    is_open: bool,
    by: Instant,
    /// What has to be opened before the lane counts as open: it was refused when it was last tried on this rail.
    trial: Option<RegionKey>,
    keys: HashMap<RegionKey, Known>,
    /// What the target wants back, while copies still use it.
    leaving: Vec<(RegionKey, Weak<Use>)>,
}

impl Lane {
    /// Notes what has become of a key that was asked for.
    fn learn(
        &mut self,
        key: RegionKey,
        known: Known,
        refused: &mut Option<RegionKey>,
    ) -> io::Result<Option<Event>> {
        let is_locked = matches!(known, Known::Locked);
        match self.keys.get_mut(&key) {
            Some(row @ Known::Asked) => *row = known,
            Some(row @ Known::Forgotten) => {
                *row = known;
                self.forget(key)?;
            }
            _ => return Err(nonsense("it answers what was not asked")),
        }
        *refused = match is_locked {
            true => Some(key),
            false => refused.filter(|refused| *refused != key),
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
            Some(Known::Open { of, .. }) => self.leaving.push((key, Arc::downgrade(&of))),
            Some(Known::Asked) => drop(self.keys.insert(key, Known::Forgotten)),
            _ => {}
        }
        self.leave()
    }

    /// Says of each key that was to be left when it is.
    fn leave(&mut self) -> io::Result<()> {
        let is_left = |(_, of): &mut (RegionKey, Weak<Use>)| of.strong_count() == 0;
        let left: Vec<_> = self.leaving.extract_if(.., is_left).collect();
        for (key, _) in left {
            wire::send(&self.socket, &Request::Left { key })?;
        }
        Ok(())
    }
}

/// The far ends of one worker's lanes.
pub(super) struct Theirs {
    gpus: Arc<Gpus>,
    imports: Arc<Imports>,
    epoll: OwnedFd,
    rails: Numbered<RailId, RailAddress>,
    remotes: Numbered<SegmentRef, RemoteRegion>,
    lanes: Numbered<LaneId, Lane>,
}

impl Theirs {
    pub(super) fn new(gpus: Arc<Gpus>, imports: Arc<Imports>) -> io::Result<Self> {
        Ok(Self {
            gpus,
            imports,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            rails: Numbered::default(),
            remotes: Numbered::default(),
            lanes: Numbered::default(),
        })
    }

    fn try_open(&self, lane: LaneId, epoch: Epoch) -> io::Result<OwnedFd> {
        let address = self.rails.get(&lane.rail());
        let address = address.ok_or_else(|| nonsense("nobody has said where its rail runs"))?;
        let socket = greet(&address.own, address.session.0, Some((lane.0, epoch.0)))?;
        let data = EventData::new_u64(lane.0.into());
        epoll::add(&self.epoll, &socket, data, EventFlags::IN)?;
        Ok(socket)
    }

    /// Takes what the target of a lane says.
    fn hear(&mut self, lane: LaneId, out: &mut Vec<FarEvent>) {
        let Some(row) = self.lanes.get_mut(&lane) else {
            return;
        };
        let epoch = row.epoch;
        for _ in 0..MESSAGES_MAX {
            let heard = match wire::receive(&row.socket) {
                Ok(None) => return,
                Ok(Some(answer)) => {
                    let before = self.imports.refused(lane.rail());
                    let mut refused = before;
                    let heard = take(row, &self.gpus, &self.imports, &mut refused, answer);
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
    session: [u8; 16],
    lane: Option<(u32, u32)>,
) -> io::Result<OwnedFd> {
    let socket = packets::connect_to(name)?;
    check_user(&socket)?;
    let version = VERSION;
    let hello = Request::Hello {
        version,
        session,
        lane,
    };
    wire::send(&socket, &hello)?;
    Ok(socket)
}

/// What is to be said of the lane.
type Event = fn(LaneId, Epoch) -> FarEvent;

/// What comes of an answer. `refused` is what could not be opened on the lane's rail when it was last tried.
fn take(
    row: &mut Lane,
    gpus: &Arc<Gpus>,
    imports: &Imports,
    refused: &mut Option<RegionKey>,
    answer: Answer,
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
            Some(key) => {
                wire::send(&row.socket, &Request::Open { key })?;
                row.keys.insert(key, Known::Asked);
                row.trial = Some(key);
                Ok(None)
            }
        },
        Answer::Refused => Err(io::Error::other("refused")),
        Answer::Nothing { key } => row.learn(key, Known::Nothing, refused),
        Answer::Locked { key } => row.learn(key, Known::Locked, refused),
        Answer::IsOnHost { key } => row.learn(key, Known::OnHost, refused),
        Answer::Opens { key, memory } => {
            if !memory.is_sound() {
                return Err(nonsense("a region ends past its allocation"));
            }
            let handle = memory.handle();
            // The peer may number devices in another way. One that is hidden here is reached from the first.
            let mut known = gpus.gpus().iter();
            let here = known.find(|gpu| memory.is_on(&gpu.pci));
            let ordinal = here.map_or(0, |gpu| gpu.ordinal);
            let opened = imports.open(gpus, ordinal, &handle, memory.allocation_bytes);
            let known = match opened {
                Ok(import) => Known::Open {
                    ordinal: import.ordinal,
                    address: import.address + memory.offset,
                    of: Arc::new(Use { _import: import }),
                    memory,
                },
                Err(error) => {
                    // It is tried again and again.
                    let level = match refused {
                        Some(_) => log::Level::Debug,
                        None => log::Level::Warn,
                    };
                    log::log!(level, "cuda-ipc: a peer's memory cannot be opened: {error}");
                    Known::Locked
                }
            };
            row.learn(key, known, refused)
        }
        Answer::Leave { key } => {
            let of = match row.keys.remove(&key) {
                Some(Known::Open { of, .. }) => Arc::downgrade(&of),
                _ => Weak::new(),
            };
            row.leaving.push((key, of));
            row.leave()?;
            Ok(Some(FarEvent::Again))
        }
    }
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
            Ok(socket) => {
                let row = Lane {
                    epoch,
                    socket,
                    is_open: false,
                    by,
                    trial: None,
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

    fn pin(&mut self, lane: LaneId, work: &Work) -> Result<Pin, Cause> {
        let remote = self.remotes.get(&work.remote.segment);
        let key = remote.ok_or(Cause::RemoteAccess)?.key;
        let row = self.lanes.get_mut(&lane).ok_or(Cause::Flushed)?;
        match row.keys.get_mut(&key) {
            None => {
                wire::send(&row.socket, &Request::Open { key }).map_err(|_| Cause::Reset)?;
                row.keys.insert(key, Known::Asked);
                Ok(Pin::Wait)
            }
            Some(row @ (Known::Asked | Known::Forgotten)) => {
                *row = Known::Asked;
                Ok(Pin::Wait)
            }
            Some(Known::Nothing) => Err(Cause::RemoteAccess),
            Some(Known::Locked) => Err(self.refusal()),
            Some(Known::OnHost) => Ok(Pin::Answered),
            Some(Known::Open {
                of,
                ordinal,
                address,
                memory,
            }) => {
                let end = work.remote.offset.checked_add(work.length.into());
                let fits = end.is_some_and(|end| end <= memory.bytes);
                if !fits || work.op == Op::Write && !memory.writable {
                    return Err(Cause::RemoteAccess);
                }
                Ok(Pin::There(FarEnd {
                    end: End {
                        address: *address + work.remote.offset,
                        ordinal: Some(*ordinal),
                    },
                    kept: Kept::Import { of: of.clone() },
                }))
            }
        }
    }

    /// Another transport may reach it, or it can be staged.
    fn refusal(&self) -> Cause {
        Cause::Refused
    }

    fn poll(&mut self, now: Instant, out: &mut Vec<FarEvent>) {
        if self.lanes.is_empty() {
            return;
        }
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut events, Some(&AT_ONCE)) {
            Ok((events, _)) => {
                for event in events {
                    self.hear(LaneId(event.data.u64() as u32), out);
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => log::error!("cuda-ipc: epoll_wait: {error}"),
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
            let _ = wire::send(&row.socket, &Request::Over);
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
