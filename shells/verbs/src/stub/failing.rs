//! Calls that fail because a test wants them to.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::*};
use std::sync::{Mutex, PoisonError};

/// A call of the library that can be made to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// `ibv_get_device_list`
    GetDeviceList,
    /// `ibv_open_device`
    OpenDevice,
    /// `ibv_close_device`
    CloseDevice,
    /// `ibv_query_device`
    QueryDevice,
    /// `ibv_query_port`
    QueryPort,
    /// `ibv_alloc_pd`
    AllocPd,
    /// `ibv_dealloc_pd`
    DeallocPd,
    /// `ibv_reg_mr_iova2` and `ibv_reg_dmabuf_mr`
    RegMr,
    /// `ibv_dereg_mr`
    DeregMr,
    /// `ibv_create_comp_channel`
    CreateCompChannel,
    /// `ibv_destroy_comp_channel`
    DestroyCompChannel,
    /// `ibv_create_cq`
    CreateCq,
    /// `ibv_destroy_cq`
    DestroyCq,
    /// `ibv_req_notify_cq`
    ReqNotifyCq,
    /// `ibv_create_qp`
    CreateQp,
    /// `ibv_modify_qp`
    ModifyQp,
    /// `ibv_query_qp`
    QueryQp,
    /// `ibv_destroy_qp`
    DestroyQp,
    /// `ibv_post_send`
    PostSend,
    /// `ibv_post_recv`
    PostRecv,
}

impl Call {
    /// All of them.
    pub const ALL: [Self; 20] = [
        Self::GetDeviceList,
        Self::OpenDevice,
        Self::CloseDevice,
        Self::QueryDevice,
        Self::QueryPort,
        Self::AllocPd,
        Self::DeallocPd,
        Self::RegMr,
        Self::DeregMr,
        Self::CreateCompChannel,
        Self::DestroyCompChannel,
        Self::CreateCq,
        Self::DestroyCq,
        Self::ReqNotifyCq,
        Self::CreateQp,
        Self::ModifyQp,
        Self::QueryQp,
        Self::DestroyQp,
        Self::PostSend,
        Self::PostRecv,
    ];
}

/// Nothing is looked up while this says that nothing fails.
static ANY: AtomicBool = AtomicBool::new(false);
static NUMBERS: [AtomicI32; Call::ALL.len()] = [const { AtomicI32::new(0) }; Call::ALL.len()];
static CHANCE: Mutex<Option<Chance>> = Mutex::new(None);

/// Calls fail by chance.
pub(super) struct Chance {
    state: u64,
    /// Of so many calls one fails.
    one_in: u64,
}

impl Chance {
    pub(super) fn new(seed: u64, one_in: u64) -> Self {
        Self {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            one_in,
        }
    }

    /// Whether this time is the one in so many.
    pub(super) fn one_in(&mut self, many: u64) -> bool {
        self.draw().is_multiple_of(many)
    }

    /// xorshift64*, of which the upper half is used.
    pub(super) fn draw(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }
}

/// Makes a call fail with this error's number, each time; 0: not any more.
pub fn fail(call: Call, number: c_int) {
    NUMBERS[call as usize].store(number, SeqCst);
    look();
}

/// Makes one of so many calls fail, whichever it is, but for [`Call::CloseDevice`], after which nothing could ever be proved;
/// 0: none any more.
pub fn fail_by_chance(seed: u64, one_in: u64) {
    let chance = Chance::new(seed, one_in);
    *CHANCE.lock().unwrap_or_else(PoisonError::into_inner) = (one_in > 0).then_some(chance);
    look();
}

/// No call fails any more.
pub fn fail_nothing() {
    NUMBERS.iter().for_each(|number| number.store(0, SeqCst));
    fail_by_chance(0, 0);
}

fn look() {
    let chance = CHANCE.lock().unwrap_or_else(PoisonError::into_inner);
    let any = chance.is_some() || NUMBERS.iter().any(|number| number.load(SeqCst) != 0);
    ANY.store(any, SeqCst);
}

/// The number of the error that a call is to fail with now; 0: it is to succeed.
pub(super) fn refused(call: Call) -> c_int {
    if !ANY.load(Relaxed) {
        return 0;
    }
    let number = NUMBERS[call as usize].load(SeqCst);
    let mut chance = CHANCE.lock().unwrap_or_else(PoisonError::into_inner);
    let is_drawn = number == 0 && call != Call::CloseDevice;
    let Some(chance) = chance.as_mut().filter(|_| is_drawn) else {
        return number;
    };
    match chance.draw() % chance.one_in {
        0 => [libc::EIO, libc::ETIMEDOUT, libc::EBUSY, libc::ENOMEM][chance.draw() as usize % 4],
        _ => 0,
    }
}

/// The answer of a call that gives a pointer, and fails.
pub(super) fn null<T>(number: c_int) -> *mut T {
    // SAFETY: of this thread.
    unsafe { *libc::__errno_location() = number };
    std::ptr::null_mut()
}
