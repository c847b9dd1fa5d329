//! Which of our types stand for which of the header's.

use std::ffi::{c_char, c_void};

use ibverbs_sys as sys;

use crate::raw;

/// A type of ours that a `Theirs` is, wherever it stands in a signature.
pub(crate) trait Is<Theirs> {}

macro_rules! are {
    ($($ours:ty => $theirs:ty),* $(,)?) => {
        $(impl Is<$theirs> for $ours {})*
    };
}

are! {
    () => (),
    u8 => u8,
    u32 => u32,
    u64 => u64,
    usize => usize,
    i32 => i32,
    c_char => c_char,
    c_void => c_void,
    raw::Device => sys::ibv_device,
    raw::Context => sys::ibv_context,
    raw::Pd => sys::ibv_pd,
    raw::Mr => sys::ibv_mr,
    raw::Cq => sys::ibv_cq,
    raw::CompChannel => sys::ibv_comp_channel,
    raw::Qp => sys::ibv_qp,
    raw::Wc => sys::ibv_wc,
    raw::SendWr => sys::ibv_send_wr,
    raw::RecvWr => sys::ibv_recv_wr,
    raw::QpInitAttr => sys::ibv_qp_init_attr,
    raw::QpAttr => sys::ibv_qp_attr,
    raw::DeviceAttr => sys::ibv_device_attr,
    raw::AsyncEvent => sys::ibv_async_event,
    // The exported function's, which the header keeps to itself: the beginning of `ibv_port_attr`.
    raw::PortAttr => sys::_compat_ibv_port_attr,
}

impl<Ours: Is<Theirs>, Theirs> Is<*mut Theirs> for *mut Ours {}
impl<Ours: Is<Theirs>, Theirs> Is<*const Theirs> for *const Ours {}
/// Functions that may be missing from a table are there for every device that can be opened.
impl<Ours: Is<Theirs>, Theirs> Is<Option<Theirs>> for Ours {}

macro_rules! functions {
    ($(($($ours:ident $theirs:ident)*))*) => {
        $(impl<$($ours: Is<$theirs>, $theirs,)* O: Is<T>, T>
            Is<unsafe extern "C" fn($($theirs),*) -> T> for unsafe extern "C" fn($($ours),*) -> O {})*
    };
}

functions! {
    ()
    (A Z)
    (A Z B Y)
    (A Z B Y C X)
    (A Z B Y C X D W)
    (A Z B Y C X D W E V)
    (A Z B Y C X D W E V F U)
}

/// Compiles if what `ours` reads of a structure of ours is a `Theirs`.
pub(crate) fn is<Structure, Ours: Is<Theirs>, Theirs>(_: fn(&Structure) -> Ours, _: Theirs) {}
