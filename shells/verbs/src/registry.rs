//! Memory that is registered with devices, each in its own time and all at once.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::*};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};
use std::{io, thread};

use polyrail_transport::complain;
use polyrail_transport::memory::{Loan, Region, RegionKey, TrustDomain};
use polyrail_transport::numbered::Numbered;

use crate::device::{Device, OVERLAP};
use crate::ffi::{Mr, Pd, Reach};
use crate::limit;
use crate::lock::lock;
use crate::mailbox::{Mailbox, Said};
use crate::services::Services;
use crate::wire::{Grant, Granted};

/// A region as devices know it. Devices let go of it when it is revoked or this is dropped.
pub(crate) struct Registered {
    base: u64,
    pub(crate) bytes: u64,
    region: Weak<Region>,
    /// By the places of devices. Those that come later have theirs behind the others.
    slots: RwLock<Vec<Arc<Slot>>>,
    /// It cannot be used any more.
    ended: AtomicBool,
    /// Workers that wait for it.
    waiting: Mutex<Vec<Weak<Mailbox>>>,
}

/// A region as one device knows it.
struct Slot {
    /// Which opening of the device.
    opening: u32,
    /// One of [`PENDING`], [`READY`], [`FAILED`], [`GONE`].
    state: AtomicU8,
    /// Once it is ready: how far pieces begin after one another, and the local key of each.
    keys: OnceLock<(u64, Box<[u32]>)>,
    held: Mutex<Held>,
    /// When it could not be registered.
    failed_at: OnceLock<Instant>,
}

/// How long it takes until what a device could not register is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

const PENDING: u8 = 0;
const READY: u8 = 1;
const FAILED: u8 = 2;
const GONE: u8 = 3;

enum Held {
    Pending,
    /// In pieces: where each begins.
    Ready(Vec<(u64, Mr)>),
    /// It could not be, or it is no more.
    Gone,
}

impl Slot {
    fn new(opening: u32) -> Self {
        Self {
            opening,
            state: AtomicU8::new(PENDING),
            keys: OnceLock::new(),
            held: Mutex::new(Held::Pending),
            failed_at: OnceLock::new(),
        }
    }

    /// It has been taken away, if it ever was there. What is being registered is deregistered once that is done; its memory is
    /// pinned until then.
    fn give_up(&self) {
        self.state.store(GONE, Release);
        let before = std::mem::replace(&mut *lock(&self.held), Held::Gone);
        // Deregisters, which takes long, and nobody waits for the lock.
        drop(before);
    }
}

/// What a worker may do with a region on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Key {
    /// Wait.
    Pending,
    /// Name it by this, from so many of its bytes on, up to so many.
    Ready(u32, u64, u64),
    /// Use another device: this one could not register it.
    Failed,
    /// Nothing.
    Gone,
}

impl Registered {
    fn new(region: &Arc<Region>, devices: &[Arc<Device>]) -> Arc<Self> {
        let slot = |device: &Arc<Device>| Arc::new(Slot::new(device.opening));
        Arc::new(Self {
            base: region.base().as_ptr() as u64,
            bytes: region.bytes(),
            region: Arc::downgrade(region),
            slots: RwLock::new(devices.iter().map(slot).collect()),
            ended: AtomicBool::new(false),
            waiting: Mutex::default(),
        })
    }

    /// The region, while anybody has it.
    pub(crate) fn region(&self) -> Option<Arc<Region>> {
        self.region.upgrade()
    }

    /// The address of one of its bytes.
    pub(crate) fn address(&self, offset: u64) -> u64 {
        self.base.wrapping_add(offset)
    }

    /// What a device may do with the piece that a work which begins there lies in.
    pub(crate) fn key(&self, device: &Device, offset: u64) -> Key {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let Some(slot) = slots.get(device.number) else {
            // The device has just come.
            return Key::Pending;
        };
        match slot.opening.cmp(&device.opening) {
            Ordering::Less => return Key::Pending,
            Ordering::Equal => {}
            // The device of an older opening is of no use any more.
            Ordering::Greater => return Key::Failed,
        }
        match (slot.state.load(Acquire), slot.keys.get()) {
            (PENDING, _) => Key::Pending,
            (READY, Some((step, keys))) => {
                let last = keys.len() - 1;
                let index = usize::try_from(offset / step).unwrap_or(last).min(last);
                let begin = *step * u64::from(index > 0) * index as u64;
                let end = match index == last {
                    true => self.bytes,
                    false => begin + step + OVERLAP,
                };
                Key::Ready(keys[index], begin, end)
            }
            (FAILED, _) => Key::Failed,
            _ => Key::Gone,
        }
    }

    fn register(&self, slot: &Slot, device: &Device, region: &Arc<Region>, whose: Whose) {
        if slot.state.load(Acquire) == GONE {
            return;
        }
        let relaxed = device.settings.relaxed_ordering;
        let (step, count) = device.pieces(self.bytes);
        let (domain, reach) = match whose {
            Whose::Ours => (Ok(device.ours.clone()), Reach::Own),
            Whose::Theirs(domain, reach) => (device.theirs(domain), reach),
        };
        let piece = |domain: &Arc<Pd>, number: u64| {
            let offset = if number == 0 { 0 } else { step * number };
            let range = (offset, device.piece_bytes(offset, self.bytes));
            Ok((offset, Mr::new(domain, region, range, reach, relaxed)?))
        };
        let pieces = domain.and_then(|domain| {
            let pieces = (0..count).map(|number| piece(&domain, number));
            pieces.collect::<io::Result<Vec<_>>>()
        });
        // Not before: it takes as long as it takes to pin pages, and others ask meanwhile how it stands.
        let mut held = lock(&slot.held);
        if matches!(*held, Held::Gone) {
            drop(held);
            return drop(pieces);
        }
        let state = match pieces {
            Ok(pieces) => {
                let keys = pieces.iter().map(|(_, mr)| mr.local_key()).collect();
                let _ = slot.keys.set((step, keys));
                *held = Held::Ready(pieces);
                READY
            }
            Err(error) => {
                let advice = limit::advice(&error, self.bytes);
                let (name, bytes) = (&device.name, self.bytes);
                complain!("verbs: {name} cannot register {bytes} bytes: {error}{advice}");
                *held = Held::Gone;
                let _ = slot.failed_at.set(Instant::now());
                FAILED
            }
        };
        slot.state.store(state, Release);
    }

    fn slot(&self, place: usize) -> Arc<Slot> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)[place].clone()
    }

    fn give_up(&self) {
        self.ended.store(true, SeqCst);
        // Deregisters, which takes long, and nobody waits for the lock.
        let slots = {
            let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
            slots.clone()
        };
        slots.iter().for_each(|slot| slot.give_up());
    }

    /// Registers it with a device that has been opened again, or has come, in a thread of its own.
    fn renew(self: &Arc<Self>, device: &Arc<Device>) {
        let Some(region) = self.region.upgrade() else {
            return;
        };
        let before = {
            let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
            let (new, places) = (Arc::new(Slot::new(device.opening)), slots.len());
            match slots.get_mut(device.number) {
                Some(slot) if slot.opening >= device.opening => return,
                Some(slot) => Some(std::mem::replace(slot, new)),
                // Devices come one after the other.
                None if places == device.number => {
                    slots.push(new);
                    None
                }
                None => return,
            }
        };
        // Deregisters with a device that has failed, which may take long.
        before.into_iter().for_each(let_go);
        // Whoever has ended it since then has ended this too.
        if self.ended.load(SeqCst) {
            return self.give_up();
        }
        let then = Arc::new(Registered::told);
        spawn(
            self,
            device.number,
            &region,
            device.clone(),
            Whose::Ours,
            then,
        );
    }

    /// Registers it once more with a device that could not, if that is some time ago: what was in the way, as too little room for
    /// locked memory, may be over.
    pub(crate) fn retry(self: &Arc<Self>, device: &Arc<Device>) {
        let Some(region) = self.region.upgrade() else {
            return;
        };
        let is_due = |slot: &Slot| {
            let failed_at = slot.failed_at.get();
            slot.opening == device.opening
                && failed_at.is_some_and(|at| at.elapsed() >= RETRY_AFTER)
        };
        {
            let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
            match slots.get_mut(device.number) {
                Some(slot) if is_due(slot) => *slot = Arc::new(Slot::new(device.opening)),
                _ => return,
            }
        }
        // Whoever has ended it since then has ended this too.
        if self.ended.load(SeqCst) {
            return self.give_up();
        }
        let then = Arc::new(Registered::told);
        let (place, device) = (device.number, device.clone());
        spawn(self, place, &region, device, Whose::Ours, then);
    }

    /// Lets a worker know when more of it is registered.
    fn tell(&self, mailbox: &Arc<Mailbox>) {
        lock(&self.waiting).push(Arc::downgrade(mailbox));
    }

    fn told(&self) {
        let waiting = lock(&self.waiting).clone();
        for mailbox in waiting.iter().filter_map(Weak::upgrade) {
            mailbox.say(Said::Registered);
        }
    }

    /// What a peer needs to reach it through the only device that it is registered with. `None`: it is being registered.
    pub(crate) fn grant(&self) -> Option<Granted> {
        let slot = self.slot(0);
        match (&*lock(&slot.held), slot.state.load(Acquire)) {
            (Held::Pending, _) => None,
            (Held::Ready(pieces), _) => {
                let grant = |(number, (offset, mr)): (usize, &(u64, Mr))| {
                    let next = pieces.get(number + 1).map(|(next, _)| next + OVERLAP);
                    Grant {
                        remote_key: mr.remote_key(),
                        address: mr.address(),
                        offset: *offset,
                        bytes: next.unwrap_or(self.bytes) - offset,
                    }
                };
                Some(Granted::Pieces(
                    pieces.iter().enumerate().map(grant).collect(),
                ))
            }
            (Held::Gone, FAILED) => Some(Granted::Failed),
            (Held::Gone, _) => Some(Granted::Nothing),
        }
    }

    /// It cannot be used any more, or never could.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.slot(0).state.load(Acquire), FAILED | GONE)
    }
}

impl Loan for Registered {
    fn end(&self, _deadline: Instant) -> bool {
        self.give_up();
        true
    }
}

/// What is registered for this engine's own works.
#[derive(Default)]
pub(crate) struct Registry {
    known: Mutex<Numbered<RegionKey, Weak<Registered>>>,
}

impl Registry {
    /// A region on all devices: registered with each by a thread of its own, unless it is already.
    pub(crate) fn register(
        &self,
        region: &Arc<Region>,
        services: &Services,
        mailbox: &Arc<Mailbox>,
    ) -> Arc<Registered> {
        let mut known = lock(&self.known);
        known.retain(|_, registered| registered.strong_count() > 0);
        if let Some(registered) = known.get(&region.key()).and_then(Weak::upgrade) {
            registered.tell(mailbox);
            return registered;
        }
        // While nobody renews: the devices are those that are open now, or are renewed afterwards.
        let services = services.all();
        let devices = services.iter().map(|service| service.site.device());
        let devices: Vec<_> = devices.collect();
        let registered = Registered::new(region, &devices);
        registered.tell(mailbox);
        known.insert(region.key(), Arc::downgrade(&registered));
        drop(known);
        start(&registered, region, devices, Whose::Ours, Registered::told);
        registered
    }
}

impl Registry {
    /// A device has been opened again: registers with it what was registered with it before.
    pub(crate) fn renew(&self, device: &Arc<Device>) {
        let known: Vec<_> = lock(&self.known)
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        for registered in known {
            registered.renew(device);
        }
    }
}

/// For whose works a region is registered.
#[derive(Clone, Copy)]
enum Whose {
    Ours,
    /// For peers of a trust domain, who may do so much.
    Theirs(TrustDomain, Reach),
}

/// Registers a region with one device for peers of a trust domain, and then does something.
pub(crate) fn register_for_peers(
    region: &Arc<Region>,
    domain: TrustDomain,
    device: &Arc<Device>,
    then: impl Fn(&Registered) + Send + Sync + 'static,
) -> Arc<Registered> {
    use polyrail_transport::memory::Access;
    let reach = match region.access() {
        Access::RemoteReadWrite => Reach::ReadWrite,
        Access::RemoteRead | Access::Local => Reach::Read,
    };
    let devices = vec![device.clone()];
    let registered = Registered::new(region, &devices);
    let whose = Whose::Theirs(domain, reach);
    start(&registered, region, devices, whose, then);
    registered
}

fn start(
    registered: &Arc<Registered>,
    region: &Arc<Region>,
    devices: Vec<Arc<Device>>,
    whose: Whose,
    then: impl Fn(&Registered) + Send + Sync + 'static,
) {
    let loan: Weak<Registered> = Arc::downgrade(registered);
    let then = Arc::new(then);
    if !region.lend(loan) {
        registered.give_up();
        return then(registered);
    }
    // Pinning pages of a large region takes long, so nobody waits for it.
    for (place, device) in devices.into_iter().enumerate() {
        spawn(registered, place, region, device, whose, then.clone());
    }
}

/// Drops what is registered in a thread of its own: it takes long.
pub(crate) fn let_go<T: Send + 'static>(registered: T) {
    let thread = thread::Builder::new().name("polyrail-verbs-r".into());
    if let Err(error) = thread.spawn(move || drop(registered)) {
        complain!("verbs: no thread to deregister memory: {error}");
    }
}

/// Registers a region with one device in a thread of its own.
fn spawn(
    registered: &Arc<Registered>,
    place: usize,
    region: &Arc<Region>,
    device: Arc<Device>,
    whose: Whose,
    then: Arc<impl Fn(&Registered) + Send + Sync + 'static>,
) {
    let (to, region, slot) = (registered.clone(), region.clone(), registered.slot(place));
    let thread = thread::Builder::new().name("polyrail-verbs-r".into());
    let spawned = thread.spawn(move || {
        // Else the device was opened again meanwhile, and a thread of its own registers the region with that.
        if slot.opening == device.opening {
            to.register(&slot, &device, &region, whose);
        }
        then(&to);
    });
    if let Err(error) = spawned {
        complain!("verbs: no thread to register memory: {error}");
        registered.give_up();
    }
}
