//! Registered memory: what transports may touch, and for how long.
//!
//! # Safety
//!
//! A [`Region`] is a raw range that the program, the peer's operations and this process's transports all
//! use at once. Therefore nobody here ever makes a `&[u8]` or `&mut [u8]` of it: bytes move by system calls
//! or raw copies, between [`Region::enter`] and the drop of the [`Entered`] it returns. [`Region::revoke`]
//! waits for those, so once it has returned nothing in this process touches the range any more. Who made
//! the region with [`Region::new`] keeps the range mapped until then. What goes on by itself, as the kernel does
//! with a read from a file, holds a [`Pinned`] range until it has ended, and is waited for in the same way.

use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, TryLockError, Weak,
};
use std::time::{Duration, Instant};

use polyrail_core::transport::MemoryKind;
use polyrail_core::work::Op;
use serde::{Deserialize, Serialize};

use crate::mapping::Mapping;

/// What a peer may do to a segment. Checked by the segment's owner for every operation, but for memory that a process of the
/// same host or a device has been given: there the kernel or the device keeps to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Access {
    /// Nothing: only this process uses it, as source or destination.
    Local,
    /// Read it.
    RemoteRead,
    /// Read and write it.
    #[default]
    RemoteReadWrite,
}

impl Access {
    /// Whether a peer may write.
    pub const fn allows_remote_write(self) -> bool {
        matches!(self, Self::RemoteReadWrite)
    }

    /// Whether a peer may read.
    pub const fn allows_remote_read(self) -> bool {
        matches!(self, Self::RemoteReadWrite | Self::RemoteRead)
    }

    /// Whether a peer may do this.
    pub const fn allows(self, op: Op) -> bool {
        match op {
            Op::Read => self.allows_remote_read(),
            Op::Write => self.allows_remote_write(),
        }
    }
}

/// Names a registration to peers: random, drawn anew for each one, so it cannot be guessed and does not
/// outlive what it names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RegionKey(pub [u8; 16]);

impl RegionKey {
    /// A fresh key from the operating system.
    pub fn random() -> io::Result<Self> {
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(|e| io::Error::other(e.to_string()))?;
        Ok(Self(key))
    }
}

impl fmt::Debug for RegionKey {
    /// Two bytes tell keys apart in a log and open nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {:02x}{:02x}…", self.0[0], self.0[1])
    }
}

/// Which of an engine's trust domains a peer or a segment is in: peers may use segments of their own domain, and know of
/// no other. The engine that owns the segments numbers them, and says which peer is where; peers are not asked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TrustDomain(pub u16);

impl TrustDomain {
    /// That of peers and segments that nobody has put into another one.
    pub const COMMON: Self = Self(0);

    /// Of the number: that bytes go encrypted.
    const ENCRYPTED: u16 = 1 << 15;

    /// The part of the domain where bytes go encrypted: of peers whose sessions encrypt, and of segments that are for
    /// such sessions only.
    pub const fn encrypted(self) -> Self {
        Self(self.0 | Self::ENCRYPTED)
    }

    /// The domain, whether bytes go encrypted or not.
    pub const fn whole(self) -> Self {
        Self(self.0 & !Self::ENCRYPTED)
    }

    /// Whether a peer who is here may use a segment that is there.
    pub fn may_use(self, segment: Self) -> bool {
        self == segment || self == segment.encrypted()
    }
}

/// A range of this process's memory that transports may touch until it is revoked.
pub struct Region {
    base: NonNull<u8>,
    bytes: u64,
    access: Access,
    key: RegionKey,
    /// Who may touch the range. Held for reading while somebody does.
    open: RwLock<Open>,
    /// What the range is a mapping of, if other processes can map it too.
    file: Option<OwnedFd>,
    /// Uses of the range that do not go through [`Self::enter`].
    loans: Mutex<Vec<Weak<dyn Loan>>>,
    /// Those that were ended, and of which nothing has proved that they are over.
    unproved: Mutex<Vec<Weak<dyn Loan>>>,
    /// Ranges that are pinned.
    pinned: Mutex<Pins>,
    /// None that is waited for is pinned any more.
    unpinned: Condvar,
    /// Some range was given up while it was pinned.
    forsaken: AtomicBool,
    /// The device that it is on; `None`: the host.
    device: Option<Arc<dyn DeviceMemory>>,
    /// [`Self::allocate`] made it.
    allocated: bool,
    /// What keeps the memory there, if it is not the program's own.
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

/// Ranges of a region that are pinned.
#[derive(Clone, Copy, Debug, Default)]
struct Pins {
    /// What uses them ends by itself, or when it is told to.
    waited_for: usize,
    /// What uses them has been told to end, and nobody knows whether it has: see [`Pinned::hold`].
    held: usize,
}

/// Who may touch a region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Open {
    No,
    /// Whoever has the region, by [`Region::load`] and [`Region::store`].
    ToOwner,
    Yes,
}

/// How long memory that is taken back waits for other processes that are in the midst of touching it: in all, however many
/// there are. One that is stopped there may go on later.
pub const LOANS_MAX: Duration = Duration::from_secs(2);

/// A use of a region by another process, which cannot hold [`Region::enter`]'s permission.
pub trait Loan: Send + Sync {
    /// Asks for its end, and waits for nobody. [`Self::end`] comes later.
    fn recall(&self) {}

    /// Ends it, and waits for the other process until `deadline` at most. Whether that does not touch the range any more.
    fn end(&self, deadline: Instant) -> bool;

    /// Whether it is over after all, of one that [`Self::end`] has left. One that does not know is not asked for longer.
    fn is_over(&self) -> bool {
        true
    }
}

/// What a region on a device needs of whoever drives the device.
pub trait DeviceMemory: Send + Sync {
    /// The device's number among those of its kind.
    fn ordinal(&self) -> u32;

    /// The NUMA node that the device is attached to, if it says so.
    fn numa_node(&self) -> Option<u16>;

    /// Copies from that address of the device to memory of this process, and waits for it.
    fn load(&self, from: u64, to: &mut [u8]) -> io::Result<()>;

    /// Copies to that address of the device, and waits for it.
    fn store(&self, from: &[u8], to: u64) -> io::Result<()>;

    /// Whether other processes of this host can open it.
    fn is_shared(&self) -> bool {
        false
    }

    /// The region as a DMA-BUF, for devices that move its bytes without the host. `None`: there is none.
    fn dma_buf(&self) -> Option<DmaBuf<'_>>;
}

/// Bytes that devices can share: the region's first is `offset` bytes behind the file's first one.
#[derive(Clone, Copy, Debug)]
pub struct DmaBuf<'a> {
    /// The kernel's file for them.
    pub fd: BorrowedFd<'a>,
    /// Where the region begins in it, in bytes.
    pub offset: u64,
    /// How large the region is, in bytes.
    pub len: u64,
}

// SAFETY: `Region` hands out its range only as raw pointers, see the module's contract; everything else in
// it is immutable or a lock.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Registers `bytes` from `base` on. `owner`, if any, is dropped with the region.
    ///
    /// # Safety
    ///
    /// The range is mapped, readable and writable (only readable suffices for a segment that is never a
    /// destination), and stays so until [`Self::revoke`] has returned or the region is dropped. The program
    /// accepts that transports read and write it meanwhile.
    pub unsafe fn new(
        base: NonNull<u8>,
        bytes: u64,
        access: Access,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> io::Result<Self> {
        let key = RegionKey::random()?;
        Ok(Self {
            base,
            bytes,
            access,
            key,
            open: RwLock::new(Open::Yes),
            file: None,
            loans: Mutex::default(),
            unproved: Mutex::default(),
            pinned: Mutex::default(),
            unpinned: Condvar::new(),
            forsaken: AtomicBool::new(false),
            device: None,
            allocated: false,
            owner,
        })
    }

    /// Registers `bytes` from `base` on in a device's memory. `owner`, if any, is dropped with the region.
    ///
    /// # Safety
    ///
    /// The range is allocated on that device until [`Self::revoke`] has returned or the region is dropped, and the
    /// program accepts that transports read and write it meanwhile.
    pub unsafe fn of_device(
        base: NonNull<u8>,
        bytes: u64,
        access: Access,
        device: Arc<dyn DeviceMemory>,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> io::Result<Self> {
        // SAFETY: nothing dereferences an address of a region that has a device.
        let mut region = unsafe { Self::new(base, bytes, access, owner) }?;
        region.device = Some(device);
        Ok(region)
    }

    /// The device that it is on; `None`: it is in the host's memory.
    pub fn device(&self) -> Option<&Arc<dyn DeviceMemory>> {
        self.device.as_ref()
    }

    /// It as a DMA-BUF, if it is on a device whose driver gives one. Who uses it holds [`Self::pin_any`] meanwhile.
    pub fn dma_buf(&self) -> Option<DmaBuf<'_>> {
        self.device.as_ref()?.dma_buf()
    }

    /// Allocates `bytes` of zeroed, page-aligned memory and registers it. If peers may use it, those on the same
    /// host can map it, where the kernel makes that safe. Its pages are not to be given back to the kernel (`madvise`) as long as it lives: devices may go
    /// on with the old ones.
    pub fn allocate(bytes: u64, access: Access) -> io::Result<Self> {
        let (mapping, file) = match access {
            Access::Local => (Mapping::private(bytes)?, None),
            Access::RemoteRead | Access::RemoteReadWrite => {
                Mapping::shared(bytes, access.allows_remote_write())?
            }
        };
        let base = mapping.base();
        // SAFETY: the mapping is readable and writable and lives as long as the region, which owns it.
        let mut region = unsafe { Self::new(base, bytes, access, Some(Arc::new(mapping))) }?;
        region.file = file;
        region.allocated = true;
        Ok(region)
    }

    /// Whether [`Self::allocate`] made it, so that its pages are there as long as it is, and nobody but us maps others
    /// in their place.
    pub fn is_allocated(&self) -> bool {
        self.allocated
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What peers may do.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Its name to peers.
    pub fn key(&self) -> RegionKey {
        self.key
    }

    /// Where it is.
    pub fn memory(&self) -> MemoryKind {
        match (&self.device, &self.file) {
            (Some(device), _) if device.is_shared() => MemoryKind::DeviceShared,
            (Some(_), _) => MemoryKind::Device,
            (None, Some(_)) => MemoryKind::Shared,
            (None, None) => MemoryKind::Host,
        }
    }

    /// What other processes can map to share it, from its first byte on.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Notes a use of the range that [`Self::revoke`] has to end. `false`: it is revoked already.
    pub fn lend(&self, loan: Weak<dyn Loan>) -> bool {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        let mut loans = self.loans.lock().unwrap_or_else(PoisonError::into_inner);
        loans.retain(|loan| loan.strong_count() > 0);
        let is_open = *open == Open::Yes;
        if is_open {
            loans.push(loan);
        }
        is_open
    }

    /// The first byte. Only to be dereferenced under the module's contract.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The NUMA node that its pages are on now, of which some are asked after. `None`: on several, on none
    /// because nobody has touched them yet, or the kernel does not say. Of a device's memory: the device's.
    /// Touches nothing.
    pub fn numa_node(&self) -> Option<u16> {
        if let Some(device) = &self.device {
            return device.numa_node();
        }
        let last = u128::from(self.bytes.saturating_sub(1));
        // From the first byte to the last one.
        let page = |number| {
            let offset = last * number as u128 / (PAGES_ASKED - 1) as u128;
            self.base.as_ptr().wrapping_add(offset as usize)
        };
        common_node(&page_nodes(std::array::from_fn(page))?)
    }

    /// Whether all of its pages are in memory now, so that to touch them is quick. `false` for a device's memory, and where
    /// the kernel does not say. Touches nothing.
    pub fn is_resident(&self) -> bool {
        let Some(_entered) = self.enter() else {
            return false;
        };
        are_resident(self.base.as_ptr(), self.bytes as usize)
    }

    /// Whether `length` bytes from `offset` on lie inside.
    pub fn contains(&self, offset: u64, length: u64) -> bool {
        offset
            .checked_add(length)
            .is_some_and(|end| end <= self.bytes)
    }

    /// Permission to touch the range while the answer lives; `None` once it is revoked, or about to be, and for memory
    /// of a device. Keep it short: one system call or one copy. Never waits, so several regions may be entered in any
    /// order.
    pub fn enter(&self) -> Option<Entered<'_>> {
        self.enter_any(Open::Yes).filter(|_| self.device.is_none())
    }

    /// The same, wherever it is, for whom it has to be open to.
    fn enter_any(&self, to: Open) -> Option<Entered<'_>> {
        let open = match self.open.try_read() {
            Ok(open) => open,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Only who closes it writes, and asks for nothing meanwhile that the owner has.
            Err(TryLockError::WouldBlock) if to == Open::ToOwner => {
                self.open.read().unwrap_or_else(PoisonError::into_inner)
            }
            Err(TryLockError::WouldBlock) => return None,
        };
        (*open >= to).then_some(Entered {
            region: self,
            _open: open,
        })
    }

    /// Permission to touch `length` bytes from `offset` on while the answer lives, for what goes on by itself:
    /// [`Self::revoke`] waits for it. `None`: they do not lie inside, or the region is revoked, or about to be, or
    /// on a device.
    pub fn pin(self: &Arc<Self>, offset: u64, length: u64) -> Option<Pinned> {
        match self.device {
            Some(_) => None,
            None => self.pin_any(offset, length),
        }
    }

    /// The same, wherever it is: for those that ask [`Self::device`] what the address means.
    pub fn pin_any(self: &Arc<Self>, offset: u64, length: u64) -> Option<Pinned> {
        let entered = self.enter_any(Open::Yes)?;
        let address = NonNull::new(entered.pointer(offset, length)?)?;
        self.pins().waited_for += 1;
        drop(entered);
        Some(Pinned {
            region: self.clone(),
            address,
            is_held: false,
        })
    }

    /// Whether something that goes on by itself may touch the range: a part of it is [pinned](Self::pin), as it is while the
    /// kernel reads or writes it for a file, while a device has it registered and while it is [held](Pinned::hold), or was
    /// [forsaken](Pinned::forsake), and then for good; or it is [lent](Self::is_lent) still. It says nothing about who may
    /// [enter](Self::enter) it. Cheap, and never waits for an operation.
    pub fn is_touched(&self) -> bool {
        let Pins { waited_for, held } = *self.pins();
        waited_for + held > 0 || self.forsaken.load(Relaxed) || self.is_lent()
    }

    fn pins(&self) -> MutexGuard<'_, Pins> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another process may still write to the range although it was [revoked](Self::revoke): it was waited for, and
    /// has neither left nor ended. Never so of memory with a [file](Self::file): who maps that keeps pages that are nobody
    /// else's.
    pub fn is_lent(&self) -> bool {
        let mut unproved = self.unproved.lock().unwrap_or_else(PoisonError::into_inner);
        unproved.retain(|loan| loan.upgrade().is_some_and(|loan| !loan.is_over()));
        !unproved.is_empty()
    }

    /// Copies bytes from `offset` on to `to`, wherever they are. What others write there meanwhile comes as it comes.
    pub fn load(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        let (entered, from) = self.span(offset, to.len())?;
        match &self.device {
            Some(device) => device.load(from as u64, to)?,
            // SAFETY: `span` checked that so many bytes lie in the region, which stays mapped while `entered` lives;
            // `to` is the caller's alone.
            None => unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) },
        }
        drop(entered);
        Ok(())
    }

    /// Copies `from` to where `offset` is, wherever that is.
    pub fn store(&self, from: &[u8], offset: u64) -> io::Result<()> {
        let (entered, to) = self.span(offset, from.len())?;
        match &self.device {
            Some(device) => device.store(from, to as u64)?,
            // SAFETY: as in `load`, the other way round.
            None => unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) },
        }
        drop(entered);
        Ok(())
    }

    fn span(&self, offset: u64, length: usize) -> io::Result<(Entered<'_>, *mut u8)> {
        let revoked = || io::Error::other("the memory is no longer registered");
        let entered = self.enter_any(Open::ToOwner).ok_or_else(revoked)?;
        let address = entered.pointer(offset, length as u64);
        let outside = || {
            let bytes = self.bytes;
            let text = format!("{length} bytes from offset {offset} on do not lie in {bytes}");
            io::Error::new(io::ErrorKind::InvalidInput, text)
        };
        let address = address.ok_or_else(outside)?;
        Ok((entered, address))
    }

    /// Ends all use of the range by this process's transports and waits for what is going on. A slow or
    /// silent peer cannot hold it up: permission is asked for anew for every system call. What was lent to
    /// other processes is waited for [`LOANS_MAX`] at most. What is [held](Pinned::hold) or [forsaken](Pinned::forsake) is
    /// not waited for. `false`: a device or another process may go on; [`Self::is_touched`] says when that has ended.
    pub fn revoke(&self) -> bool {
        self.close(Open::No);
        self.end_loans(Instant::now() + LOANS_MAX);
        let waited = self
            .unpinned
            .wait_while(self.pins(), |pins| pins.waited_for > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        let is_free = !self.is_touched();
        // Of what is lent the log has a line already.
        if !is_free && !self.is_lent() {
            let until = match self.forsaken.load(Relaxed) {
                true => "until the process ends",
                false => "until it can be taken back",
            };
            crate::complain!(
                "{self:?} may still be used by a device that has failed: keep it {until}"
            );
        }
        is_free
    }

    /// Begins to [retire](Self::retire) it: transports are not let in any more and have left, and what was lent to other
    /// processes is recalled. Waits for none of these, so that all regions of an engine can begin before any is waited for.
    pub fn recall(&self) {
        self.close(match self.owner {
            Some(_) => Open::ToOwner,
            None => Open::No,
        });
    }

    /// [Revokes](Self::revoke) it when the transports end: what goes on by itself, and what was lent, is waited for until
    /// `deadline` at most, and memory that the region owns can still be [loaded](Self::load) and stored. `false`: something
    /// of this process goes on; [`Self::is_touched`] says when it has ended.
    pub fn retire(&self, deadline: Instant) -> bool {
        self.recall();
        self.end_loans(deadline);
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self
            .unpinned
            .wait_timeout_while(self.pins(), left, |pins| pins.waited_for > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        !self.is_touched()
    }

    /// Transports are not let in any more, and have left; what was lent is recalled.
    fn close(&self, to: Open) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        *open = (*open).min(to);
        drop(open);
        let loans = self.loans.lock().unwrap_or_else(PoisonError::into_inner);
        let lent: Vec<_> = loans.iter().filter_map(Weak::upgrade).collect();
        drop(loans);
        lent.iter().for_each(|loan| loan.recall());
    }

    /// Ends what was lent, and was recalled. Waits for all of it until `deadline` at most.
    pub fn end_loans(&self, deadline: Instant) {
        let mut loans = self.loans.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left = std::mem::take(&mut *loans);
        drop(loans);
        left.retain(|loan| loan.upgrade().is_some_and(|loan| !loan.end(deadline)));
        if left.is_empty() {
            return;
        }
        crate::complain!(
            "{self:?} is taken back, and other processes may still touch it: {} uses have not ended, as when a peer is stopped",
            left.len()
        );
        if self.file.is_none() {
            let mut unproved = self.unproved.lock().unwrap_or_else(PoisonError::into_inner);
            unproved.append(&mut left);
        }
    }
}

impl Drop for Region {
    /// Memory that another process may still write to stays where it is, so that nothing else comes to be there.
    fn drop(&mut self) {
        if self.owner.is_some() && self.is_lent() {
            std::mem::forget(self.owner.take());
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Region({} bytes, {:?}, {:?})",
            self.bytes, self.access, self.key
        )
    }
}

/// Proof that a region may be touched now.
pub struct Entered<'a> {
    region: &'a Region,
    _open: RwLockReadGuard<'a, Open>,
}

impl Entered<'_> {
    /// The address of `length` bytes from `offset` on; `None` if they do not lie inside. Valid until `self`
    /// is dropped.
    pub fn pointer(&self, offset: u64, length: u64) -> Option<*mut u8> {
        if !self.region.contains(offset, length) {
            return None;
        }
        Some(self.region.base.as_ptr().wrapping_add(offset as usize))
    }
}

/// Bytes of a region that may be touched until this is dropped, from any thread.
pub struct Pinned {
    region: Arc<Region>,
    address: NonNull<u8>,
    is_held: bool,
}

// SAFETY: an address that is only dereferenced under the module's contract, and a region, which is `Send`.
unsafe impl Send for Pinned {}

impl Pinned {
    /// The first of them. Only to be dereferenced under the module's contract.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Who uses them has been told to end, and may not have: nobody waits for them any more. They count as touched, and the
    /// region and memory that it owns stay, until this is dropped because it is known that they are used no longer.
    #[must_use]
    pub fn hold(mut self) -> Self {
        if !self.is_held {
            self.is_held = true;
            let mut pins = self.region.pins();
            pins.held += 1;
            pins.waited_for -= 1;
            drop(pins);
            self.region.unpinned.notify_all();
        }
        self
    }

    /// Gives them up: who uses them will never say that it has ended. The region, and memory that it owns, stay until the
    /// process ends.
    pub fn forsake(self) {
        self.region.forsaken.store(true, Relaxed);
        std::mem::forget(self.region.clone());
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let region = &self.region;
        let mut pins = region.pins();
        match self.is_held {
            true => pins.held -= 1,
            false => pins.waited_for -= 1,
        }
        if pins.waited_for == 0 {
            region.unpinned.notify_all();
        }
    }
}

/// How many pages of a region are asked after.
const PAGES_ASKED: usize = 64;

/// The node that each page is on; negative where there is no page. `None`: the kernel does not say, as in many
/// containers. Not `get_mempolicy`, which makes a page of each address that has none yet, on a node of its choice.
fn page_nodes(mut pages: [*mut u8; PAGES_ASKED]) -> Option<[libc::c_int; PAGES_ASKED]> {
    let mut nodes = [-libc::ENOENT; PAGES_ASKED];
    // SAFETY: without a list of nodes to move to, nothing is moved: the kernel reads the addresses from `pages`,
    // looks them up without touching what they lead to, and writes as many numbers to `nodes`, which has as many.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0 as libc::pid_t,
            PAGES_ASKED as libc::c_ulong,
            pages.as_mut_ptr(),
            std::ptr::null::<libc::c_int>(),
            nodes.as_mut_ptr(),
            0 as libc::c_int,
        )
    };
    (answer == 0).then_some(nodes)
}

/// The node of all pages that there are.
fn common_node(nodes: &[libc::c_int]) -> Option<u16> {
    let mut there = nodes.iter().filter_map(|node| u16::try_from(*node).ok());
    let first = there.next()?;
    there.all(|node| node == first).then_some(first)
}

/// Whether all pages of mapped memory are there.
fn are_resident(base: *mut u8, bytes: usize) -> bool {
    const PAGES: usize = 4096;
    // SAFETY: it asks for a number.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as usize;
    let before = base as usize % page_bytes;
    let first = base.wrapping_sub(before);
    let end = before + bytes;
    let mut there = [0_u8; PAGES];
    (0..end).step_by(PAGES * page_bytes).all(|offset| {
        let length = (end - offset).min(PAGES * page_bytes);
        let from = first.wrapping_add(offset).cast();
        // SAFETY: the kernel looks the pages up without touching them, and writes a byte for each to `there`, which has as
        // many.
        let answer = unsafe { libc::mincore(from, length, there.as_mut_ptr()) };
        let pages = length.div_ceil(page_bytes);
        answer == 0 && there[..pages].iter().all(|page| page & 1 == 1)
    })
}

/// Where the target finds what peers may touch. Asked for every work, from the service thread.
pub trait RegionTable: Send + Sync {
    /// The region that this key opens to peers of this trust domain. `None` if it is another one's, and once it is no
    /// longer registered.
    fn find(&self, key: &RegionKey, domain: TrustDomain) -> Option<Arc<Region>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_past_the_end_have_no_address() {
        let region = Region::allocate(4096, Access::RemoteReadWrite).unwrap();
        let entered = region.enter().unwrap();
        // (name, offset, length, inside)
        let cases = [
            ("all of it", 0, 4096, true),
            ("nothing at the end", 4096, 0, true),
            ("one byte past", 4096, 1, false),
            ("overflow", u64::MAX, 2, false),
            ("end overflows to inside", u64::MAX - 1, 4, false),
        ];
        for (name, offset, length, inside) in cases {
            assert_eq!(entered.pointer(offset, length).is_some(), inside, "{name}");
        }
    }

    #[test]
    fn memory_is_on_a_node_if_all_of_its_pages_are() {
        // (name, what the kernel says of some pages, node)
        let cases = [
            ("one node", &[1, 1, 1][..], Some(1)),
            ("two nodes", &[1, 0], None),
            (
                "not all touched",
                &[-libc::ENOENT, 2, -libc::EFAULT],
                Some(2),
            ),
            ("none touched", &[-libc::ENOENT; 3], None),
            ("nothing asked", &[], None),
        ];
        for (name, nodes, node) in cases {
            assert_eq!(common_node(nodes), node, "{name}");
        }
    }

    #[test]
    fn only_memory_that_was_touched_is_on_a_node() {
        for bytes in [1, 4097, 1 << 20] {
            let region = Region::allocate(bytes, Access::Local).unwrap();
            // Twice: to ask does not make pages.
            assert_eq!((region.numa_node(), region.numa_node()), (None, None));
            let last = region.enter().unwrap().pointer(bytes - 1, 1).unwrap();
            // SAFETY: inside the region, which is mapped and nobody else's.
            unsafe { last.write(1) };
            let nodes = page_nodes([last; PAGES_ASKED]);
            // Some containers forbid the question.
            assert_eq!(
                nodes.and(region.numa_node()),
                nodes.map(|nodes| nodes[0] as u16),
                "{bytes}"
            );
        }
    }

    #[test]
    fn only_memory_of_which_every_page_was_touched_is_resident() {
        for access in [Access::Local, Access::RemoteReadWrite] {
            // The last has more pages than are asked after at once.
            for bytes in [1, 4097, 1 << 20, (24 << 20) + 1] {
                let region = Region::allocate(bytes, access).unwrap();
                assert!(!region.is_resident(), "{bytes}");
                for offset in (0..bytes).step_by(4096) {
                    region.store(&[1], offset).unwrap();
                }
                assert!(region.is_resident(), "{bytes}");
                region.revoke();
                assert!(!region.is_resident(), "{bytes}");
            }
        }
        let mut bytes = [1_u8; 3];
        let base = NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: they outlive the region.
        let odd = unsafe { Region::new(base, 3, Access::Local, None) }.unwrap();
        assert!(odd.is_resident() && !odd.is_allocated());
    }

    #[test]
    fn a_revoked_region_cannot_be_entered() {
        let region = Region::allocate(1, Access::Local).unwrap();
        assert!(region.enter().is_some());
        region.revoke();
        assert!(region.enter().is_none());
    }

    #[test]
    fn a_region_that_is_being_revoked_cannot_be_entered_and_nobody_waits() {
        // Two threads that each held one of two regions and wanted the other waited for ever, if both regions
        // were being revoked: a lock that somebody wants to write is not given to readers.
        let region = Region::allocate(1, Access::Local).unwrap();
        let entered = region.enter();
        std::thread::scope(|scope| {
            let revoked = scope.spawn(|| region.revoke());
            while region.enter().is_some() {
                assert!(!revoked.is_finished(), "revoked while somebody was inside");
                std::thread::yield_now();
            }
            assert!(!revoked.is_finished(), "revoked while somebody was inside");
            drop(entered);
        });
        assert!(region.enter().is_none());
    }

    /// A loan to somebody who never leaves.
    #[derive(Default)]
    struct Kept(AtomicBool);

    impl Loan for Kept {
        fn recall(&self) {
            self.0.store(true, Relaxed);
        }

        fn end(&self, deadline: Instant) -> bool {
            assert!(self.0.load(Relaxed), "it was not asked to leave");
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
            false
        }
    }

    #[test]
    fn all_that_was_lent_is_waited_for_at_once() {
        let region = Region::allocate(4096, Access::RemoteRead).unwrap();
        let kept: Vec<_> = (0..100).map(|_| Arc::new(Kept::default())).collect();
        for kept in &kept {
            let weak: Weak<Kept> = Arc::downgrade(kept);
            assert!(region.lend(weak));
        }
        // Whoever has left long ago is not asked.
        let gone: Weak<Kept> = Arc::downgrade(&Arc::new(Kept::default()));
        assert!(region.lend(gone));
        let began = Instant::now();
        region.recall();
        assert!(kept.iter().all(|kept| kept.0.load(Relaxed)));
        assert!(region.enter().is_none());
        region.revoke();
        let took = began.elapsed();
        assert!(took >= LOANS_MAX && took < LOANS_MAX * 2, "{took:?}");
        let late: Weak<Kept> = Arc::downgrade(&kept[0]);
        assert!(!region.lend(late));
    }

    /// A loan of which nothing is known until it is over.
    #[derive(Default)]
    struct Unproved(AtomicBool);

    impl Loan for Unproved {
        fn end(&self, _deadline: Instant) -> bool {
            self.is_over()
        }

        fn is_over(&self) -> bool {
            self.0.load(Relaxed)
        }
    }

    #[test]
    fn memory_that_others_may_still_write_to_is_lent_and_stays_until_that_is_over() {
        // (the memory is shared, it is proved that it is over, it is lent, its memory stays)
        let cases = [
            (false, false, true, true),
            (false, true, false, false),
            (true, false, false, false),
        ];
        for (shared, over, lent, stays) in cases {
            let memory = Arc::new(Region::allocate(4096, Access::RemoteReadWrite).unwrap());
            let owner = Arc::downgrade(&memory);
            // SAFETY: its owner keeps the memory.
            let mut region =
                unsafe { Region::new(memory.base(), 4096, Access::Local, Some(memory)) }.unwrap();
            if shared {
                let memory = owner.upgrade().unwrap();
                region.file = Some(memory.file().unwrap().try_clone_to_owned().unwrap());
            }
            let loan = Arc::new(Unproved::default());
            let weak: Weak<Unproved> = Arc::downgrade(&loan);
            assert!(region.lend(weak));
            assert!(!region.is_lent(), "it is not taken back");
            region.revoke();
            assert_eq!(region.is_lent(), !shared);
            assert_eq!(region.retire(Instant::now()), shared);
            loan.0.store(over, Relaxed);
            assert_eq!((region.is_lent(), region.is_touched()), (lent, lent));
            drop(region);
            assert_eq!(owner.upgrade().is_some(), stays, "{shared} {over}");
        }
    }

    #[test]
    fn a_retired_region_is_its_owners_alone() {
        let deadline = || Instant::now() + std::time::Duration::from_secs(30);
        let region = Arc::new(Region::allocate(4096, Access::Local).unwrap());
        let pinned = region.pin(0, 1).unwrap();
        assert!(!region.retire(Instant::now()), "somebody is at it still");
        assert!(region.is_touched() && region.enter().is_none() && region.pin(0, 1).is_none());
        region.store(&[7], 4095).unwrap();
        let mut byte = [0];
        region.load(4095, &mut byte).unwrap();
        assert_eq!(byte, [7]);
        std::thread::scope(|scope| {
            let retired = scope.spawn(|| region.retire(deadline()));
            drop(pinned);
            assert!(retired.join().unwrap());
        });
        region.revoke();
        assert!(region.retire(deadline()));
        assert!(
            region.load(0, &mut byte).is_err(),
            "what is revoked stays so"
        );
        // Memory of the program's may be gone.
        let mut memory = [0_u8; 64];
        let base = NonNull::from(&mut memory).cast();
        // SAFETY: it outlives the region.
        let region = unsafe { Region::new(base, 64, Access::Local, None) }.unwrap();
        assert!(region.retire(deadline()));
        assert!(region.load(0, &mut byte).is_err());
    }

    #[test]
    fn a_revoked_region_waits_for_what_is_pinned() {
        let region = Arc::new(Region::allocate(4096, Access::Local).unwrap());
        assert!(region.pin(4096, 1).is_none());
        assert!(!region.is_touched());
        let pinned = [region.pin(0, 4096), region.pin(4000, 96)].map(Option::unwrap);
        assert_eq!(
            pinned[1].address().as_ptr(),
            region.base().as_ptr().wrapping_add(4000)
        );
        std::thread::scope(|scope| {
            let revoked = scope.spawn(|| region.revoke());
            while region.pin(0, 1).is_some() {
                assert!(!revoked.is_finished(), "revoked while a range was pinned");
                std::thread::yield_now();
            }
            for pinned in pinned {
                assert!(!revoked.is_finished(), "revoked while a range was pinned");
                assert!(region.is_touched());
                drop(pinned);
            }
        });
        assert!(!region.is_touched());
        assert!(region.pin(0, 1).is_none());
    }

    /// A device whose memory is a vector, at addresses from 1 MiB on.
    struct Vector(Mutex<Vec<u8>>);

    impl DeviceMemory for Vector {
        fn ordinal(&self) -> u32 {
            3
        }

        fn numa_node(&self) -> Option<u16> {
            Some(1)
        }

        fn load(&self, from: u64, to: &mut [u8]) -> io::Result<()> {
            let from = from as usize - (1 << 20);
            to.copy_from_slice(&self.0.lock().unwrap()[from..][..to.len()]);
            Ok(())
        }

        fn store(&self, from: &[u8], to: u64) -> io::Result<()> {
            let to = to as usize - (1 << 20);
            self.0.lock().unwrap()[to..][..from.len()].copy_from_slice(from);
            Ok(())
        }

        fn dma_buf(&self) -> Option<DmaBuf<'_>> {
            None
        }
    }

    #[test]
    fn memory_of_a_device_is_out_of_reach_for_those_who_do_not_know_of_it() {
        let device = Arc::new(Vector(Mutex::new(vec![7; 4096])));
        let base = NonNull::new((1_usize << 20) as *mut u8).unwrap();
        // SAFETY: nothing is at that address, and nothing but `Vector` is ever asked for it.
        let region = unsafe { Region::of_device(base, 4096, Access::default(), device, None) };
        let region = Arc::new(region.unwrap());
        assert!(region.enter().is_none() && region.pin(0, 1).is_none());
        assert_eq!(region.memory(), MemoryKind::Device);
        assert_eq!(region.numa_node(), Some(1));
        let pinned = region.pin_any(96, 4000).unwrap();
        assert_eq!(pinned.address().as_ptr() as usize, (1 << 20) + 96);
        drop(pinned);
        let mut bytes = [0; 3];
        region.store(&[1, 2], 4094).unwrap();
        region.load(4093, &mut bytes).unwrap();
        assert_eq!(bytes, [7, 1, 2]);
        let error = region.load(4094, &mut bytes).unwrap_err().to_string();
        assert!(error.contains("4094") && error.contains("4096"), "{error}");
        region.revoke();
        assert!(region.pin_any(0, 1).is_none() && region.store(&[1], 0).is_err());
    }

    #[test]
    fn what_was_given_up_stays_and_holds_up_nobody() {
        let region = Arc::new(Region::allocate(4096, Access::Local).unwrap());
        let pinned = region.pin(0, 4096).unwrap();
        let address = pinned.address();
        let weak = Arc::downgrade(&region);
        pinned.forsake();
        assert!(!region.revoke());
        assert!(region.is_touched());
        drop(region);
        assert!(weak.upgrade().is_some());
        // SAFETY: it is mapped for as long as the process lives.
        unsafe { address.write(1) };
    }

    #[test]
    fn what_is_held_holds_up_nobody_and_is_free_once_it_is_let_go() {
        let region = Arc::new(Region::allocate(4096, Access::Local).unwrap());
        let [first, second] = [0, 0].map(|offset| region.pin(offset, 4096).unwrap());
        let held = first.hold().hold();
        std::thread::scope(|scope| {
            let revoked = scope.spawn(|| region.revoke());
            while region.pin(0, 1).is_some() {
                std::thread::yield_now();
            }
            // The other one is waited for.
            assert!(!revoked.is_finished());
            drop(second);
            assert!(!revoked.join().unwrap());
        });
        assert!(region.is_touched() && !region.revoke());
        drop(held);
        assert!(!region.is_touched() && region.revoke());
    }

    #[test]
    fn impossible_sizes_are_errors() {
        for bytes in [0, u64::MAX, 1 << 62] {
            assert!(Region::allocate(bytes, Access::Local).is_err(), "{bytes}");
        }
    }
}
