//! A libibverbs in this process, behind the same table of calls: two devices that copy memory at once.
//!
//! It does what tests and benches need: domains and keys are checked, works are carried out in order while they are
//! posted, an error ends a queue pair and flushes what follows, and doorbells, completions and objects are counted. A
//! cut wire loses works without a word, and one that is held carries them out when a test says so.
//!
//! Calls fail [when they are to](fail). What the library was told to let go of and has not, for that or because the device
//! has failed, lives on, until its context is closed, or, if its device has failed, that is opened again.

mod failing;
mod ghosts;
mod held;
mod lies;
mod spoiled;
mod transport;

pub use failing::{Call, fail, fail_by_chance, fail_nothing};
#[cfg(test)]
pub(crate) use ghosts::ghosts_of;
pub use ghosts::{ghosts, left};
pub use held::{hold, land};
pub use lies::{be_honest, dawdle, lie};
pub use spoiled::spoil;
#[cfg(test)]
pub(crate) use spoiled::spoil_immediate;
pub use transport::{StubTransport, appear};

use failing::{null, refused};
use ghosts::{Object, Opened};
use held::Flying;
#[cfg(test)]
pub(crate) use transport::machine;

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{IntoRawFd, OwnedFd};

use crate::ffi::raw::{
    self, AsyncEvent, Calls, CompChannel, Context, ContextOps, Device, DeviceAttr, Mr, Pd,
    PortAttr, QpAttr, QpInitAttr, SendWr, Wc,
};

/// What was called so far.
#[derive(Debug)]
pub struct Counters {
    /// Lists of works that were posted.
    pub doorbells: AtomicU64,
    /// Works in them.
    pub works: AtomicU64,
    /// Ranges of this side that they name.
    pub ranges: AtomicU64,
    /// Works that carry their bytes themselves.
    pub inline: AtomicU64,
    /// Completions that were made.
    pub completions: AtomicU64,
    /// Immediates that arrived.
    pub immediates: AtomicU64,
    /// Queue pairs that were made.
    pub queue_pairs: AtomicU64,
    /// Completion queues that were made.
    pub queues: AtomicU64,
    /// Objects that live.
    pub live: AtomicI64,
    /// Completion queues that were asked to wake somebody.
    pub arms: AtomicU64,
}

/// Of all devices.
pub static COUNTERS: Counters = Counters {
    doorbells: AtomicU64::new(0),
    works: AtomicU64::new(0),
    ranges: AtomicU64::new(0),
    inline: AtomicU64::new(0),
    completions: AtomicU64::new(0),
    immediates: AtomicU64::new(0),
    queue_pairs: AtomicU64::new(0),
    queues: AtomicU64::new(0),
    live: AtomicI64::new(0),
    arms: AtomicU64::new(0),
};

/// Names of the devices.
pub(crate) const NAMES: [&std::ffi::CStr; 2] = [c"stub0", c"stub1"];

static REGISTRATION_MAX: AtomicU64 = AtomicU64::new(0);
static REFUSING: AtomicU32 = AtomicU32::new(u32::MAX);
static UNPLUGGED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
static REGISTRATIONS: Gate = Gate::new();
static DEREGISTRATIONS: Gate = Gate::new();
static DESTRUCTIONS: Gate = Gate::new();
static COMPLETIONS_MAX: AtomicU32 = AtomicU32::new(ALL_COMPLETIONS);
/// Places of a completion queue, if nothing else is said.
const ALL_COMPLETIONS: u32 = 1 << 16;
static PLAIN: AtomicBool = AtomicBool::new(false);
static REUSING: AtomicBool = AtomicBool::new(false);
static CUT: AtomicBool = AtomicBool::new(false);
static PORT_FLAGS: AtomicU8 = AtomicU8::new(0);
static LOSING: AtomicBool = AtomicBool::new(false);
static FAST: AtomicBool = AtomicBool::new(false);
static BELIEVING: AtomicBool = AtomicBool::new(false);
static EXPECTS: Mutex<Expects> = Mutex::new(Expects::Next);
static NUMBER: AtomicU32 = AtomicU32::new(100);
static STATE: Mutex<Option<State>> = Mutex::new(None);

/// What a device says unasked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Happening {
    /// Its port carries no packets any more.
    PortDown,
    /// A port of it does not that nobody uses.
    OtherPortDown,
    /// Its port does again.
    PortActive,
    /// Its table of GIDs is another.
    GidChange,
    /// It is of no use any more.
    DeviceFatal,
    /// A completion queue of it is.
    QueueFatal,
    /// The queue pair that was made last on it is.
    PairFatal,
}

/// What devices say of the packet that a queue pair expects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expects {
    /// That it is the next one.
    Next,
    /// That it is the first one, for ever.
    First,
    /// That it is number 0.
    Zero,
    /// They cannot be asked.
    Nothing,
}

#[derive(Default)]
struct State {
    /// Open devices, by the addresses of their contexts.
    contexts: HashMap<usize, Opened>,
    /// Objects of this module that live, by their addresses.
    objects: HashMap<usize, Object>,
    /// Works that are on their way while the wire is held.
    flying: VecDeque<Flying>,
    lies: Option<lies::Lies>,
    /// DMA-BUFs that were registered: see [`take_dma_bufs`].
    dma_bufs: Vec<(u64, u64, c_int)>,
    /// Keys that nothing has any more, while they are to be given out again.
    spare_keys: Vec<u32>,
    /// The same of numbers of queue pairs, by device.
    spare_numbers: [Vec<u32>; 2],
    /// By remote key.
    memory: HashMap<u32, Memory>,
    /// By number.
    pairs: HashMap<u32, Pair>,
}

#[derive(Clone, Copy)]
struct Memory {
    device: usize,
    context: usize,
    domain: usize,
    /// Where it is, and which address works name it by.
    address: u64,
    named: u64,
    bytes: u64,
    access: u32,
    /// The device was told to let go of it, and has not.
    is_ghost: bool,
}

impl Memory {
    /// Where so many bytes are that a work names by this address, if they lie inside.
    fn find(&self, from: u64, length: u64) -> Option<u64> {
        let offset = from.checked_sub(self.named)?;
        (offset <= self.bytes && length <= self.bytes - offset).then(|| self.address + offset)
    }
}

struct Pair {
    device: usize,
    context: usize,
    domain: usize,
    /// Its object; 0: it has none any more.
    raw: usize,
    peer: u32,
    access: u32,
    state: c_int,
    /// Of packets that it sends, and the number of the one that it expects.
    mtu: c_int,
    first: u32,
    expected: u32,
    /// Where what comes completes, and how much there is room for.
    queue: usize,
    receives: u32,
}

fn state() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with<T>(look: impl FnOnce(&mut State) -> T) -> T {
    look(state().get_or_insert_default())
}

/// How often devices are open now, all together.
#[cfg(test)]
pub(crate) fn contexts() -> usize {
    with(|state| state.contexts.len())
}

/// Cuts the wire between the devices, or joins it again: what is posted meanwhile is lost, and nobody is told.
pub fn cut(cut: bool) {
    CUT.store(cut, SeqCst);
}

/// Loses immediates, and tells nobody, or does not.
pub fn lose_immediates(lose: bool) {
    LOSING.store(lose, SeqCst);
}

/// Takes a device away, or puts it back: while it is away it cannot be opened. Those that have it open are told by
/// [`Happening::DeviceFatal`] only.
pub fn unplug(number: usize, away: bool) {
    UNPLUGGED[number].store(away, SeqCst);
}

/// Makes devices refuse queue pairs for works of several ranges or with bytes in them, or not.
pub fn be_plain(plain: bool) {
    PLAIN.store(plain, SeqCst);
}

/// Makes registrations of so many bytes and more wait until this is called again; `u64::MAX`: none.
pub fn hold_registrations(bytes: u64) {
    REGISTRATIONS.hold(bytes);
}

/// How many registrations wait.
#[cfg(test)]
pub(crate) fn registrations_held() -> u32 {
    REGISTRATIONS.waiting()
}

/// Makes calls that deregister memory wait, or not any more.
#[cfg(test)]
pub(crate) fn hold_deregistrations(held: bool) {
    DEREGISTRATIONS.hold(if held { 0 } else { u64::MAX });
}

/// How many of them wait.
#[cfg(test)]
pub(crate) fn deregistrations_held() -> u32 {
    DEREGISTRATIONS.waiting()
}

/// Makes calls that destroy queue pairs wait, or not any more.
#[cfg(test)]
pub(crate) fn hold_destructions(held: bool) {
    DESTRUCTIONS.hold(if held { 0 } else { u64::MAX });
}

/// How many of them wait.
#[cfg(test)]
pub(crate) fn destructions_held() -> u32 {
    DESTRUCTIONS.waiting()
}

/// Where calls wait while it is held.
struct Gate {
    /// For so many bytes and more it is, and so many calls wait.
    state: Mutex<(u64, u32)>,
    opened: Condvar,
}

impl Gate {
    const fn new() -> Self {
        Self {
            state: Mutex::new((u64::MAX, 0)),
            opened: Condvar::new(),
        }
    }

    fn hold(&self, bytes: u64) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = bytes;
        self.opened.notify_all();
    }

    #[cfg(test)]
    fn waiting(&self) -> u32 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    fn pass(&self, bytes: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 += 1;
        let waits = |(from, _): &mut (u64, u32)| bytes >= *from;
        let opened = self.opened.wait_while(state, waits);
        opened.unwrap_or_else(PoisonError::into_inner).1 -= 1;
    }
}

/// Lets completion queues of devices that are opened from now on have so many places at most; `None`: many.
#[cfg(test)]
pub(crate) fn set_completions_max(places: Option<u32>) {
    COMPLETIONS_MAX.store(places.unwrap_or(ALL_COMPLETIONS), SeqCst);
}

/// Makes devices give the key of what was deregistered last to what is registered next, and the number of the queue pair that was
/// destroyed last to the next one, as some do, or not.
pub fn reuse_keys(reuse: bool) {
    REUSING.store(reuse, SeqCst);
    with(|state| {
        state.spare_keys.clear();
        state.spare_numbers.iter_mut().for_each(Vec::clear);
    });
}

/// Makes ports say this of themselves in `flags`.
#[cfg(test)]
pub(crate) fn set_port_flags(flags: u8) {
    PORT_FLAGS.store(flags, SeqCst);
}

/// Makes devices say this of the packets that queue pairs expect.
pub fn expect(expects: Expects) {
    *EXPECTS.lock().unwrap_or_else(PoisonError::into_inner) = expects;
}

/// Lets devices that are opened from now on register so many bytes at once; 0: any number.
pub fn set_registration_max(bytes: u64) {
    REGISTRATION_MAX.store(bytes, SeqCst);
}

/// Makes a device refuse to register memory; `None`: all do it.
pub fn refuse_registrations(device: Option<u32>) {
    REFUSING.store(device.unwrap_or(u32::MAX), SeqCst);
}

/// Makes the wire faster than any processor, or what it was: everything is checked, and no byte is moved.
pub fn skip_bytes(skip: bool) {
    FAST.store(skip, SeqCst);
}

/// Makes devices believe that all works are good, or not: nothing is looked up and no byte is moved.
pub fn believe(believe: bool) {
    BELIEVING.store(believe, SeqCst);
}

/// The table of calls.
pub(crate) fn calls() -> Calls {
    Calls {
        get_device_list,
        free_device_list,
        get_device_name,
        open_device,
        close_device,
        query_device,
        query_port,
        get_async_event,
        ack_async_event,
        alloc_pd,
        dealloc_pd,
        reg_mr_iova2,
        reg_dmabuf_mr: Some(reg_dmabuf_mr),
        dereg_mr,
        create_comp_channel,
        destroy_comp_channel,
        create_cq,
        destroy_cq,
        get_cq_event,
        ack_cq_events,
        create_qp,
        modify_qp,
        query_qp,
        destroy_qp,
        fork_init,
        is_fork_initialized: Some(is_fork_initialized),
    }
}

/// What `ibv_is_fork_initialized` says, and how often it was put right.
static FORKS: AtomicU32 = AtomicU32::new(FORK_UNNEEDED);
static FORK_INITS: AtomicU32 = AtomicU32::new(0);
const FORK_UNNEEDED: u32 = 2;

unsafe extern "C" fn is_fork_initialized() -> u32 {
    FORKS.load(SeqCst)
}

unsafe extern "C" fn fork_init() -> c_int {
    FORK_INITS.fetch_add(1, SeqCst);
    FORKS.store(1, SeqCst);
    0
}

/// Makes the kernel one that keeps no registered memory over a fork, or not. How often the library was told to do so since the last
/// time.
#[cfg(test)]
pub(crate) fn forget_forks(forgets: bool) -> u32 {
    let status = if forgets {
        raw::FORK_DISABLED
    } else {
        FORK_UNNEEDED
    };
    FORKS.store(status, SeqCst);
    FORK_INITS.swap(0, SeqCst)
}

/// Devices are told apart by their addresses.
static DEVICES: [u8; 2] = [0; 2];

fn device(number: usize) -> *mut Device {
    (&raw const DEVICES[number]).cast_mut().cast()
}

/// Memory of an object of this module.
fn give<T>(object: T) -> *mut T {
    COUNTERS.live.fetch_add(1, SeqCst);
    Box::into_raw(Box::new(object))
}

/// The same of one that ends with a context at the latest.
fn give_in<T>(context: *mut Context, object: T) -> *mut T {
    let object = give(object);
    let known = Object::new(context as usize, object);
    with(|state| state.objects.insert(object as usize, known));
    object
}

/// # Safety
///
/// It came from [`give`] or [`give_in`], with this type, and is not used any more.
unsafe fn take<T>(object: *mut T) {
    with(|state| state.objects.remove(&(object as usize)));
    COUNTERS.live.fetch_sub(1, SeqCst);
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(object) });
}

fn descriptor() -> c_int {
    let fd: std::io::Result<OwnedFd> =
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(Into::into);
    fd.map_or(-1, IntoRawFd::into_raw_fd)
}

/// # Safety
///
/// It came from [`descriptor`], and is not used any more.
unsafe fn close(fd: c_int) {
    // SAFETY: the caller's promise.
    unsafe { libc::close(fd) };
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut Device {
    let number = refused(Call::GetDeviceList);
    if number != 0 {
        return null(number);
    }
    let list = Box::new([device(0), device(1), ptr::null_mut()]);
    // SAFETY: the caller gives room for a number.
    unsafe { *count = 2 };
    Box::into_raw(list).cast()
}

unsafe extern "C" fn free_device_list(list: *mut *mut Device) {
    // SAFETY: made above.
    drop(unsafe { Box::from_raw(list.cast::<[*mut Device; 3]>()) });
}

unsafe extern "C" fn get_device_name(device: *mut Device) -> *const c_char {
    NAMES[usize::from(ptr::eq(device, self::device(1)))].as_ptr()
}

/// Something happens to a device, and everybody who has opened it is told.
pub fn happen(number: usize, what: Happening) {
    let kind = match what {
        Happening::PortDown | Happening::OtherPortDown => raw::EVENT_PORT_ERR,
        Happening::PortActive => raw::EVENT_PORT_ACTIVE,
        Happening::GidChange => raw::EVENT_GID_CHANGE,
        Happening::DeviceFatal => raw::EVENT_DEVICE_FATAL,
        Happening::QueueFatal => raw::EVENT_CQ_ERR,
        Happening::PairFatal => raw::EVENT_QP_FATAL,
    };
    with(|state| {
        let contexts = &state.contexts;
        let is_its = |context: &usize| contexts.get(context).is_some_and(|c| c.device == number);
        let pairs = state.pairs.iter();
        let last = pairs
            .filter(|(_, pair)| pair.raw != 0 && is_its(&pair.context))
            .max_by_key(|(number, _)| **number)
            .map(|(_, pair)| (pair.raw, pair.context));
        for (context, opened) in &mut state.contexts {
            let is_its = opened.device == number;
            opened.has_failed |= is_its && what == Happening::DeviceFatal;
            let element = match what {
                Happening::PairFatal => last.filter(|last| last.1 == *context).map(|last| last.0),
                Happening::OtherPortDown => is_its.then_some(2),
                _ => is_its.then_some(1),
            };
            if let Some(element) = element {
                opened.events.push_back((kind, element));
                // SAFETY: the descriptor is open as long as the context.
                unsafe {
                    let fd = (*(*context as *const Context)).async_fd;
                    libc::write(fd, (&raw const ONE).cast(), 8);
                }
            }
        }
    });
}

unsafe extern "C" fn open_device(device: *mut Device) -> *mut Context {
    let nothing = ptr::null_mut();
    let number = usize::from(ptr::eq(device, self::device(1)));
    if UNPLUGGED[number].load(SeqCst) {
        return null(libc::ENODEV);
    }
    let error = refused(Call::OpenDevice);
    if error != 0 {
        return null(error);
    }
    let context = give(Context {
        _device: device,
        ops: ContextOps {
            _before: [nothing; 11],
            poll_cq,
            req_notify_cq,
            _between: [nothing; 12],
            post_send,
            post_recv,
            _behind: [nothing; 5],
        },
        _cmd_fd: -1,
        async_fd: descriptor(),
        num_comp_vectors: 1,
    });
    with(|state| state.opened(context as usize, number));
    context
}

unsafe extern "C" fn close_device(context: *mut Context) -> c_int {
    let number = refused(Call::CloseDevice);
    if number != 0 {
        return number;
    }
    let left = with(|state| state.closed(context as usize));
    // SAFETY: made by `open_device`; nobody uses what was made from a context after that.
    unsafe {
        for (at, object) in left {
            object.free(at);
        }
        close((*context).async_fd);
        take(context);
    }
    0
}

/// Ranges of one read.
pub(crate) const READ_RANGES_MAX: c_int = 3;
/// Bytes that a work carries, however many it is asked to.
pub(crate) const INLINE_MAX: u32 = 96;

unsafe extern "C" fn query_device(_: *mut Context, attributes: *mut DeviceAttr) -> c_int {
    let number = refused(Call::QueryDevice);
    if number != 0 {
        return number;
    }
    // SAFETY: the caller gives room for them, of zeroes.
    let attributes = unsafe { &mut *attributes };
    attributes.max_mr_size = REGISTRATION_MAX.load(SeqCst);
    attributes.max_qp_wr = 1024;
    attributes.max_cqe = COMPLETIONS_MAX.load(SeqCst) as c_int;
    (attributes.max_sge, attributes.max_sge_rd) = (16, READ_RANGES_MAX);
    (attributes.max_qp_rd_atom, attributes.max_qp_init_rd_atom) = (64, 64);
    0
}

unsafe extern "C" fn query_port(_: *mut Context, _: u8, attributes: *mut PortAttr) -> c_int {
    let number = refused(Call::QueryPort);
    if number != 0 {
        return number;
    }
    // SAFETY: the caller gives room for them, of zeroes.
    let attributes = unsafe { &mut *attributes };
    (
        attributes.state,
        attributes.active_mtu,
        attributes.max_msg_sz,
    ) = (4, 5, 1 << 30);
    attributes.flags = PORT_FLAGS.load(SeqCst);
    0
}

unsafe extern "C" fn get_async_event(context: *mut Context, event: *mut AsyncEvent) -> c_int {
    with(|state| {
        let opened = state.contexts.get_mut(&(context as usize));
        let happened = opened.and_then(|opened| opened.events.pop_front());
        let Some((kind, element)) = happened else {
            let mut number = 0_u64;
            // SAFETY: the descriptor is open as long as the context, and the number has eight bytes. The error's number is of
            // this thread.
            unsafe {
                libc::read((*context).async_fd, (&raw mut number).cast(), 8);
                *libc::__errno_location() = libc::EAGAIN;
            }
            return -1;
        };
        // SAFETY: the caller gives room for it.
        unsafe {
            (*event).event_type = kind;
            (*event).element = element as *mut c_void;
        }
        0
    })
}

unsafe extern "C" fn ack_async_event(_: *mut AsyncEvent) {}

/// A protection domain.
#[derive(Clone, Copy)]
struct Domain {
    context: *mut Context,
    /// The number of its device.
    device: u32,
}

unsafe extern "C" fn alloc_pd(context: *mut Context) -> *mut Pd {
    let number = refused(Call::AllocPd);
    if number != 0 {
        return null(number);
    }
    // SAFETY: made by `open_device`.
    let device = unsafe { (*context)._device };
    let device = u32::from(ptr::eq(device, self::device(1)));
    give_in(context, Domain { context, device }).cast()
}

unsafe extern "C" fn dealloc_pd(pd: *mut Pd) -> c_int {
    let at = pd as usize;
    let is_used = with(|state| {
        let pairs = state.pairs.values().any(|pair| pair.domain == at);
        pairs || state.memory.values().any(|memory| memory.domain == at)
    });
    let number = match is_used {
        true => libc::EBUSY,
        false => refused(Call::DeallocPd),
    };
    if number == 0 {
        // SAFETY: made above.
        unsafe { take(pd.cast::<Domain>()) };
    }
    number
}

unsafe extern "C" fn reg_mr_iova2(
    pd: *mut Pd,
    address: *mut c_void,
    length: usize,
    named: u64,
    access: u32,
) -> *mut Mr {
    let most = REGISTRATION_MAX.load(SeqCst);
    // SAFETY: made by `alloc_pd`.
    let Domain { context, device } = unsafe { *pd.cast::<Domain>() };
    if REFUSING.load(SeqCst) == device || most > 0 && length as u64 > most {
        return null(libc::EINVAL);
    }
    REGISTRATIONS.pass(length as u64);
    let error = refused(Call::RegMr);
    if error != 0 {
        return null(error);
    }
    let spare = with(|state| state.spare_keys.pop());
    let key = spare.unwrap_or_else(|| NUMBER.fetch_add(1, SeqCst));
    let memory = Memory {
        device: device as usize,
        context: context as usize,
        domain: pd as usize,
        address: address as u64,
        named,
        bytes: length as u64,
        access,
        is_ghost: false,
    };
    with(|state| state.memory.insert(key, memory));
    give_in(
        context,
        Mr {
            _context: ptr::null_mut(),
            _pd: pd,
            addr: address,
            length,
            _handle: 0,
            lkey: key,
            rkey: key,
        },
    )
}

/// Memory of a device that is in truth this process's: what matters is what was asked for.
unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut Pd,
    offset: u64,
    length: usize,
    address: u64,
    fd: c_int,
    access: c_int,
) -> *mut Mr {
    let known = (offset, length as u64, fd);
    with(|state| state.dma_bufs.push(known));
    // SAFETY: the caller's domain.
    unsafe { reg_mr_iova2(pd, address as *mut c_void, length, address, access as u32) }
}

/// What of DMA-BUFs was registered since the last time: from where on, how many bytes, of which descriptor.
pub fn take_dma_bufs() -> Vec<(u64, u64, c_int)> {
    with(|state| std::mem::take(&mut state.dma_bufs))
}

unsafe extern "C" fn dereg_mr(mr: *mut Mr) -> c_int {
    let number = refused(Call::DeregMr);
    if number != 0 {
        return number;
    }
    lies::hang();
    DEREGISTRATIONS.pass(0);
    // SAFETY: made above.
    unsafe {
        with(|state| {
            state.place_in((*mr).lkey);
            state.deregister((*mr).lkey);
        });
        take(mr);
    }
    0
}

unsafe extern "C" fn create_comp_channel(context: *mut Context) -> *mut CompChannel {
    let number = refused(Call::CreateCompChannel);
    if number != 0 {
        return null(number);
    }
    give_in(
        context,
        CompChannel {
            _context: ptr::null_mut(),
            fd: descriptor(),
            _refcnt: 0,
        },
    )
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    let number = refused(Call::DestroyCompChannel);
    if number != 0 {
        return number;
    }
    // SAFETY: made above.
    unsafe {
        close((*channel).fd);
        take(channel);
    }
    0
}

/// A completion queue; begins as the library's does.
#[repr(C)]
struct Queue {
    public: raw::Cq,
    done: Mutex<VecDeque<Wc>>,
    depth: usize,
    armed: AtomicBool,
    fd: c_int,
}

impl Queue {
    fn push(&self, done: &mut VecDeque<Wc>, wc: Wc) {
        done.push_back(wc);
        if self.armed.swap(false, SeqCst) {
            // SAFETY: the descriptor is open as long as the queue.
            unsafe { libc::write(self.fd, (&raw const ONE).cast(), 8) };
        }
    }
}

unsafe extern "C" fn post_recv(
    qp: *mut raw::Qp,
    _: *mut raw::RecvWr,
    _: *mut *mut raw::RecvWr,
) -> c_int {
    let error = refused(Call::PostRecv);
    if error != 0 {
        return error;
    }
    // SAFETY: made by `create_qp`.
    let number = unsafe { (*qp).qp_num };
    with(|state| match state.pairs.get_mut(&number) {
        Some(pair) => {
            pair.receives += 1;
            0
        }
        None => libc::EINVAL,
    })
}

/// An immediate arrives.
///
/// # Safety
///
/// The completion queues of queue pairs live.
unsafe fn arrive(state: &mut State, number: u32, immediate: u32) -> c_int {
    let Some(own) = state
        .pairs
        .get(&number)
        .filter(|own| own.state == raw::QPS_RTS)
    else {
        return FLUSHED;
    };
    let peer_number = own.peer;
    let Some(peer) = state.pairs.get_mut(&peer_number) else {
        return RETRY_EXCEEDED;
    };
    if peer.receives == 0 {
        return NOT_READY;
    }
    peer.receives -= 1;
    COUNTERS.immediates.fetch_add(1, SeqCst);
    count_packets(state, number, 0);
    let peer = state.pairs.get(&peer_number).filter(|peer| peer.raw != 0);
    let Some(peer) = peer else {
        return RETRY_EXCEEDED;
    };
    // SAFETY: the caller's promise; what comes to a queue does not send.
    let queue = unsafe { &*(peer.queue as *const Queue) };
    let mut done = queue.done.lock().unwrap_or_else(PoisonError::into_inner);
    let wc = Wc {
        status: spoiled::of_immediate(),
        opcode: raw::WC_RECV_RDMA_WITH_IMM,
        imm_data: immediate,
        qp_num: peer_number,
        ..Wc::default()
    };
    queue.push(&mut done, wc);
    0
}

unsafe extern "C" fn create_cq(
    context: *mut Context,
    depth: c_int,
    _: *mut c_void,
    channel: *mut CompChannel,
    _: c_int,
) -> *mut raw::Cq {
    let number = refused(Call::CreateCq);
    if number != 0 {
        return null(number);
    }
    COUNTERS.queues.fetch_add(1, SeqCst);
    give_in(
        context,
        Queue {
            public: raw::Cq {
                context,
                _channel: channel,
            },
            done: Mutex::default(),
            depth: depth as usize,
            armed: AtomicBool::new(false),
            // SAFETY: the channel lives.
            fd: unsafe { (*channel).fd },
        },
    )
    .cast()
}

unsafe extern "C" fn destroy_cq(cq: *mut raw::Cq) -> c_int {
    let at = cq as usize;
    let sends_to = |pair: &Pair| {
        // SAFETY: queue pairs that have an object live.
        pair.raw != 0 && unsafe { (*(pair.raw as *const OwnPair)).queue as usize } == at
    };
    let is_used = |pair: &Pair| sends_to(pair) || pair.queue == at;
    let number = match with(|state| state.pairs.values().any(is_used)) {
        true => libc::EBUSY,
        false => refused(Call::DestroyCq),
    };
    if number == 0 {
        // SAFETY: made above.
        unsafe { take(cq.cast::<Queue>()) };
    }
    number
}

unsafe extern "C" fn get_cq_event(
    channel: *mut CompChannel,
    _: *mut *mut raw::Cq,
    _: *mut *mut c_void,
) -> c_int {
    let mut number = 0_u64;
    // SAFETY: the channel's descriptor is open, and the number has eight bytes.
    let answer = unsafe { libc::read((*channel).fd, (&raw mut number).cast(), 8) };
    if answer == 8 { 0 } else { -1 }
}

unsafe extern "C" fn ack_cq_events(_: *mut raw::Cq, _: u32) {}

unsafe extern "C" fn poll_cq(cq: *mut raw::Cq, room: c_int, out: *mut Wc) -> c_int {
    // SAFETY: made by `create_cq`.
    let queue = unsafe { &*cq.cast::<Queue>() };
    let mut done = queue.done.lock().unwrap_or_else(PoisonError::into_inner);
    let count = done.len().min(room as usize);
    for (index, wc) in done.drain(..count).enumerate() {
        // SAFETY: the caller has room for so many.
        unsafe { *out.add(index) = wc };
    }
    count as c_int
}

unsafe extern "C" fn req_notify_cq(cq: *mut raw::Cq, _: c_int) -> c_int {
    let number = refused(Call::ReqNotifyCq);
    if number != 0 {
        return number;
    }
    COUNTERS.arms.fetch_add(1, SeqCst);
    // SAFETY: made by `create_cq`.
    unsafe { (*cq.cast::<Queue>()).armed.store(true, SeqCst) };
    0
}

/// A queue pair; begins as the library's does.
#[repr(C)]
struct OwnPair {
    public: raw::Qp,
    queue: *mut Queue,
    works_max: u32,
    /// Works that have no completion yet.
    uncovered: AtomicU32,
}

unsafe extern "C" fn create_qp(pd: *mut Pd, attributes: *mut QpInitAttr) -> *mut raw::Qp {
    // SAFETY: the caller gives attributes.
    let can = unsafe { &mut (*attributes).cap };
    if PLAIN.load(SeqCst) && (can.max_send_sge > 1 || can.max_inline_data > 0) {
        return null(libc::EINVAL);
    }
    let error = refused(Call::CreateQp);
    if error != 0 {
        return null(error);
    }
    can.max_inline_data = can.max_inline_data.min(INLINE_MAX);
    // SAFETY: made by `alloc_pd`.
    let Domain { context, device } = unsafe { *pd.cast::<Domain>() };
    let spare = with(|state| state.spare_number(device as usize));
    let number = spare.unwrap_or_else(|| NUMBER.fetch_add(1, SeqCst));
    COUNTERS.queue_pairs.fetch_add(1, SeqCst);
    let pair = Pair {
        device: device as usize,
        context: context as usize,
        domain: pd as usize,
        raw: 0,
        peer: 0,
        access: 0,
        state: 0,
        mtu: 0,
        first: 0,
        expected: 0,
        // SAFETY: the caller gives attributes.
        queue: unsafe { (*attributes).recv_cq } as usize,
        receives: 0,
    };
    with(|state| {
        state.begin_number(number);
        state.pairs.insert(number, pair)
    });
    // SAFETY: the caller gives attributes whose queue lives.
    unsafe {
        let queue = (*attributes).send_cq.cast::<Queue>();
        let raw = give_in(
            context,
            OwnPair {
                public: raw::Qp {
                    context: (*queue).public.context,
                    _before: [ptr::null_mut(); 5],
                    _handle: 0,
                    qp_num: number,
                },
                queue,
                works_max: (*attributes).cap.max_send_wr,
                uncovered: AtomicU32::new(0),
            },
        );
        with(|state| {
            if let Some(pair) = state.pairs.get_mut(&number) {
                pair.raw = raw as usize;
            }
        });
        raw.cast()
    }
}

unsafe extern "C" fn modify_qp(qp: *mut raw::Qp, to: *mut QpAttr, mask: c_int) -> c_int {
    let error = refused(Call::ModifyQp);
    if error != 0 {
        return error;
    }
    // SAFETY: made by `create_qp`; the caller gives attributes.
    let (number, to) = unsafe { ((*qp).qp_num, &*to) };
    with(|state| {
        let Some(pair) = state.pairs.get_mut(&number) else {
            return libc::EINVAL;
        };
        if to.qp_state != pair.state + 1 {
            return libc::EINVAL;
        }
        pair.state = to.qp_state;
        match mask {
            raw::QP_TO_INIT => pair.access = to.qp_access_flags,
            raw::QP_TO_RTR => {
                (pair.peer, pair.mtu) = (to.dest_qp_num, to.path_mtu);
                (pair.first, pair.expected) = (to.rq_psn, to.rq_psn);
            }
            _ => {}
        }
        0
    })
}

unsafe extern "C" fn query_qp(
    qp: *mut raw::Qp,
    now: *mut QpAttr,
    mask: c_int,
    _: *mut QpInitAttr,
) -> c_int {
    let error = refused(Call::QueryQp);
    if error != 0 {
        return error;
    }
    let says = *EXPECTS.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: made by `create_qp`; the caller gives room for attributes.
    let (number, now) = unsafe { ((*qp).qp_num, &mut *now) };
    with(|state| match state.pairs.get(&number) {
        Some(pair) if mask == raw::QP_EXPECTED => {
            now.rq_psn = match says {
                Expects::Next => pair.expected,
                Expects::First => pair.first,
                Expects::Zero => 0,
                Expects::Nothing => return libc::EOPNOTSUPP,
            };
            0
        }
        _ => libc::EINVAL,
    })
}

impl State {
    /// Where so many bytes are that a work names which comes to this queue pair, or the status that says why it may not.
    fn find(
        &self,
        peer: u32,
        opcode: c_int,
        key: u32,
        from: u64,
        length: u64,
    ) -> Result<u64, c_int> {
        let peer = self.pairs.get(&peer);
        let peer = peer.filter(|peer| peer.state >= raw::QPS_RTR && peer.state < FAILED);
        let peer = peer.ok_or(RETRY_EXCEEDED)?;
        let needed = match opcode {
            raw::WR_RDMA_WRITE => raw::ACCESS_REMOTE_WRITE,
            _ => raw::ACCESS_REMOTE_READ,
        };
        let memory = self.memory.get(&key).filter(|memory| {
            memory.access & peer.access & needed != 0 && memory.domain == peer.domain
        });
        let found = memory.and_then(|memory| memory.find(from, length));
        found.ok_or(REMOTE_ACCESS)
    }
}

/// A queue pair has carried out a work of so many bytes.
fn count_packets(state: &mut State, number: u32, bytes: u64) {
    let own = state.pairs.get(&number).map(|own| (own.peer, own.mtu));
    let Some((peer, mtu)) = own else { return };
    if let Some(peer) = state.pairs.get_mut(&peer) {
        let packets = bytes.div_ceil(128 << mtu).max(1) as u32;
        peer.expected = peer.expected.wrapping_add(packets) & 0xff_ffff;
    }
}

unsafe extern "C" fn destroy_qp(qp: *mut raw::Qp) -> c_int {
    let number = refused(Call::DestroyQp);
    if number != 0 {
        return number;
    }
    lies::hang();
    DESTRUCTIONS.pass(0);
    // SAFETY: made by `create_qp`.
    unsafe {
        with(|state| {
            state.place_of((*qp).qp_num);
            state.destroy((*qp).qp_num);
        });
        take(qp.cast::<OwnPair>());
    }
    0
}

const LOCAL_PROTECTION: c_int = 4;
const FLUSHED: c_int = 5;
const REMOTE_ACCESS: c_int = 10;
const RETRY_EXCEEDED: c_int = 12;
const NOT_READY: c_int = 13;
/// A queue pair that has met an error.
const FAILED: c_int = 6;

unsafe extern "C" fn post_send(
    qp: *mut raw::Qp,
    first: *mut SendWr,
    bad: *mut *mut SendWr,
) -> c_int {
    COUNTERS.doorbells.fetch_add(1, SeqCst);
    // SAFETY: made by `create_qp`, and used by one thread at a time; its queue lives.
    let (own, queue) = unsafe { (&*qp.cast::<OwnPair>(), &*(*qp.cast::<OwnPair>()).queue) };
    let error = refused(Call::PostSend);
    if error != 0 {
        // SAFETY: the caller gives room for it.
        unsafe { *bad = first };
        return error;
    }
    let mut next = first;
    let believing = BELIEVING.load(SeqCst);
    let is_lying = lies::is_lying();
    let is_disturbed = is_lying || held::is_held() || spoiled::is_due();
    // SAFETY: the caller gives a list of works.
    while let Some(work) = unsafe { next.as_ref() } {
        let mut done = queue.done.lock().unwrap_or_else(PoisonError::into_inner);
        if own.uncovered.load(Relaxed) >= own.works_max || done.len() >= queue.depth {
            // SAFETY: the caller gives room for it.
            unsafe { *bad = next };
            return libc::ENOMEM;
        }
        COUNTERS.works.fetch_add(1, SeqCst);
        COUNTERS.ranges.fetch_add(work.num_sge as u64, SeqCst);
        let inline = u64::from(work.send_flags & raw::SEND_INLINE != 0);
        COUNTERS.inline.fetch_add(inline, SeqCst);
        let is_immediate = work.opcode == raw::WR_RDMA_WRITE_WITH_IMM;
        let spoiled = match is_disturbed {
            true => spoiled::taken(own.public.qp_num, work),
            false => None,
        };
        let is_held = is_disturbed && spoiled.is_none() && held::is_held();
        let flies = is_lying && spoiled.is_none();
        // SAFETY: as for `carry_out`.
        if flies && with(|state| unsafe { state.take_off(own.public.qp_num, work) }) {
            own.uncovered.fetch_add(1, Relaxed);
        // SAFETY: as for `carry_out`.
        } else if is_held && with(|state| unsafe { state.depart(own.public.qp_num, work) }) {
            own.uncovered.fetch_add(1, Relaxed);
        } else if !(CUT.load(SeqCst) || is_immediate && LOSING.load(SeqCst)) {
            let status = match (spoiled, believing) {
                _ if is_immediate => {
                    // SAFETY: queue pairs hold their queues.
                    with(|state| unsafe { arrive(state, own.public.qp_num, work.imm_data) })
                }
                (Some(status), _) => {
                    // SAFETY: as below.
                    with(|state| unsafe { state.spoil(own.public.qp_num, work, status) })
                }
                (None, true) => 0,
                (None, false) => {
                    // SAFETY: memory that is registered is mapped; the engine's contract allows copies of it.
                    with(|state| unsafe { carry_out(state, own.public.qp_num, work) })
                }
            };
            let says = status != 0 || work.send_flags & raw::SEND_SIGNALED != 0;
            match says {
                true => own.uncovered.store(0, Relaxed),
                false => drop(own.uncovered.fetch_add(1, Relaxed)),
            }
            if says {
                COUNTERS.completions.fetch_add(1, SeqCst);
                let wc = Wc {
                    wr_id: work.wr_id,
                    status,
                    qp_num: own.public.qp_num,
                    ..Wc::default()
                };
                queue.push(&mut done, wc);
            }
        } else {
            own.uncovered.fetch_add(1, Relaxed);
        }
        next = work.next;
    }
    0
}

static ONE: u64 = 1;

/// # Safety
///
/// What is registered is mapped.
unsafe fn carry_out(state: &mut State, number: u32, work: &SendWr) -> c_int {
    // SAFETY: the caller of `post_send` gives so many ranges with each work.
    let ranges = unsafe { std::slice::from_raw_parts(work.sg_list, work.num_sge as usize) };
    let length: u64 = ranges.iter().map(|range| u64::from(range.length)).sum();
    let Some(own) = state.pairs.get(&number) else {
        return FLUSHED;
    };
    if own.state != raw::QPS_RTS {
        return FLUSHED;
    }
    let is_inline = work.send_flags & raw::SEND_INLINE != 0;
    let most = match (is_inline, work.opcode) {
        (true, _) => length <= u64::from(INLINE_MAX),
        (false, raw::WR_RDMA_READ) => work.num_sge <= READ_RANGES_MAX,
        (false, _) => work.num_sge <= 16,
    };
    let is_ours = |range: &raw::Sge| {
        let memory = state.memory.get(&range.lkey);
        let memory = memory.filter(|memory| memory.domain == own.domain);
        memory.is_some_and(|memory| memory.find(range.addr, range.length.into()).is_some())
    };
    let here = (most && (is_inline || ranges.iter().all(is_ours))).then_some(());
    let there = match here {
        None => Err(LOCAL_PROTECTION),
        Some(()) => state.find(own.peer, work.opcode, work.rkey, work.remote_addr, length),
    };
    let remote = match there {
        Ok(remote) => remote,
        Err(status) => {
            if let Some(own) = state.pairs.get_mut(&number) {
                own.state = FAILED;
            }
            return status;
        }
    };
    count_packets(state, number, length);
    if FAST.load(SeqCst) {
        return 0;
    }
    let mut remote = remote as *mut u8;
    for range in ranges {
        let (local, length) = (range.addr, range.length as usize);
        let local = match is_inline {
            true => Some(local),
            false => state
                .memory
                .get(&range.lkey)
                .and_then(|memory| memory.find(local, length as u64)),
        };
        let Some(local) = local.map(|local| local as *mut u8) else {
            return LOCAL_PROTECTION;
        };
        // SAFETY: both ranges lie in registered memory, which is pinned, or the local one is inline; they may overlap.
        unsafe {
            match work.opcode {
                raw::WR_RDMA_WRITE => ptr::copy(local, remote, length),
                _ => ptr::copy(remote, local, length),
            }
        }
        remote = remote.wrapping_add(length);
    }
    0
}
