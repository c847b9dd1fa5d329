//! Memory that is registered with devices, each in its own time and all at once.

use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::{io, thread};

use polyrail_transport::memory::{Loan, Region, RegionKey};
use polyrail_transport::numbered::Numbered;

use crate::device::Device;
use crate::ffi::{Mr, Reach};
use crate::mailbox::{Mailbox, Said};
use crate::wire::Grant;

/// A region as devices know it. Devices let go of it when it is revoked or this is dropped.
pub(crate) struct Registered {
    base: u64,
    pub(crate) bytes: u64,
    /// By device: its local key in the upper half, one of [`PENDING`], [`READY`], [`GONE`] in the lower.
    keys: Vec<AtomicU64>,
    held: Vec<Mutex<Held>>,
    /// Workers that wait for it.
    waiting: Mutex<Vec<Weak<Mailbox>>>,
}

const PENDING: u64 = 0;
const READY: u64 = 1;
const GONE: u64 = 2;

enum Held {
    Pending,
    Ready(Mr),
    /// It could not be, or it is no more.
    Gone,
}

/// What a worker may do with a region on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Key {
    /// Wait.
    Pending,
    /// Name it by this.
    Ready(u32),
    /// Nothing.
    Gone,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registered {
    fn new(region: &Region, devices: usize) -> Arc<Self> {
        Arc::new(Self {
            base: region.base().as_ptr() as u64,
            bytes: region.bytes(),
            keys: (0..devices).map(|_| AtomicU64::new(PENDING)).collect(),
            held: (0..devices).map(|_| Mutex::new(Held::Pending)).collect(),
            waiting: Mutex::default(),
        })
    }

    /// The address of one of its bytes.
    pub(crate) fn address(&self, offset: u64) -> u64 {
        self.base.wrapping_add(offset)
    }

    pub(crate) fn key(&self, device: usize) -> Key {
        let key = self.keys.get(device).map_or(GONE, |key| key.load(Acquire));
        match key & 0xffff_ffff {
            PENDING => Key::Pending,
            READY => Key::Ready((key >> 32) as u32),
            _ => Key::Gone,
        }
    }

    fn register(&self, slot: usize, device: &Device, region: &Arc<Region>, reach: Reach) {
        let domain = match reach {
            Reach::Own => &device.ours,
            Reach::Read | Reach::ReadWrite => &device.theirs,
        };
        let mut held = lock(&self.held[slot]);
        if matches!(*held, Held::Gone) {
            return;
        }
        let relaxed = device.settings.relaxed_ordering;
        let key = match Mr::new(domain, region, reach, relaxed) {
            Ok(mr) => {
                let key = u64::from(mr.local_key()) << 32 | READY;
                *held = Held::Ready(mr);
                key
            }
            Err(error) => {
                let advice = match error.kind() {
                    io::ErrorKind::OutOfMemory => {
                        "; is the limit of locked memory (ulimit -l) too low?"
                    }
                    _ => "",
                };
                let (name, bytes) = (&device.name, self.bytes);
                log::error!("verbs: {name} cannot register {bytes} bytes: {error}{advice}");
                *held = Held::Gone;
                GONE
            }
        };
        self.keys[slot].store(key, Release);
    }

    fn give_up(&self) {
        for (held, key) in self.held.iter().zip(&self.keys) {
            key.store(GONE, Release);
            *lock(held) = Held::Gone;
        }
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

    /// What a peer needs to reach it through the only device that it is registered with.
    pub(crate) fn grant(&self) -> Option<Grant> {
        match &*lock(&self.held[0]) {
            Held::Ready(mr) => Some(Grant {
                remote_key: mr.remote_key(),
                address: self.base,
                bytes: self.bytes,
            }),
            Held::Pending | Held::Gone => None,
        }
    }

    /// It cannot be used any more, or never could.
    pub(crate) fn is_gone(&self) -> bool {
        self.key(0) == Key::Gone
    }
}

impl Loan for Registered {
    fn end(&self) {
        self.give_up();
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
        devices: &[Arc<Device>],
        mailbox: &Arc<Mailbox>,
    ) -> Arc<Registered> {
        let mut known = lock(&self.known);
        known.retain(|_, registered| registered.strong_count() > 0);
        if let Some(registered) = known.get(&region.key()).and_then(Weak::upgrade) {
            registered.tell(mailbox);
            return registered;
        }
        let registered = Registered::new(region, devices.len());
        registered.tell(mailbox);
        known.insert(region.key(), Arc::downgrade(&registered));
        drop(known);
        start(
            &registered,
            region,
            devices.to_vec(),
            Reach::Own,
            Registered::told,
        );
        registered
    }
}

/// Registers a region for peers with one device, and then does something.
pub(crate) fn register_for_peers(
    region: &Arc<Region>,
    device: &Arc<Device>,
    then: impl Fn(&Registered) + Send + Sync + 'static,
) -> Arc<Registered> {
    use polyrail_transport::memory::Access;
    let reach = match region.access() {
        Access::RemoteReadWrite => Reach::ReadWrite,
        Access::RemoteRead | Access::Local => Reach::Read,
    };
    let registered = Registered::new(region, 1);
    start(&registered, region, vec![device.clone()], reach, then);
    registered
}

fn start(
    registered: &Arc<Registered>,
    region: &Arc<Region>,
    devices: Vec<Arc<Device>>,
    reach: Reach,
    then: impl Fn(&Registered) + Send + Sync + 'static,
) {
    let loan: Weak<Registered> = Arc::downgrade(registered);
    let then = Arc::new(then);
    if !region.lend(loan) {
        registered.give_up();
        return then(registered);
    }
    // Pinning pages of a large region takes long, so nobody waits for it.
    for (slot, device) in devices.into_iter().enumerate() {
        let (to, region, then) = (registered.clone(), region.clone(), then.clone());
        let thread = thread::Builder::new().name("polyrail-verbs-r".into());
        let spawned = thread.spawn(move || {
            to.register(slot, &device, &region, reach);
            then(&to);
        });
        if let Err(error) = spawned {
            log::error!("verbs: no thread to register memory: {error}");
            registered.give_up();
        }
    }
}
