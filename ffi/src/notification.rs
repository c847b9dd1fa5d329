//! Notifications: what programs tell each other, and what becomes of it.

use std::cell::RefCell;
use std::ffi::{c_char, c_int};
use std::os::fd::AsRawFd;

use polyrail::{Delivery, DeliveryError, NOTIFICATION_BYTES_MAX, NotifyError, ReceiveError};

use crate::engine::{self, polyrail_engine};
use crate::failure::{self, Failure, guard, polyrail_error};
use crate::handle::{Kind, Table};
use crate::segment::{self, polyrail_segment};
use crate::sized::{self, Structure};
use crate::text;
use crate::words::*;

/// What becomes of a notification.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_delivery {
    /// Its name; 0: none. Means nothing to programs.
    pub bits: u64,
}

/// Bytes of a notification that its structure has; `polyrail_notification_bytes` gives all.
pub const POLYRAIL_NOTIFICATION_BYTES: usize = 1024;
/// Bytes that a notification can have.
pub const POLYRAIL_NOTIFICATION_BYTES_MAX: usize = 1_048_576;
/// Bytes of an engine's name, the zero at the end included.
pub const POLYRAIL_NAME_BYTES: usize = 256;

const _: () = assert!(POLYRAIL_NOTIFICATION_BYTES_MAX == NOTIFICATION_BYTES_MAX);

thread_local! {
    /// What the notification said that this thread took last.
    static LAST: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What a peer's program told this one.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_notification {
    /// `sizeof(polyrail_notification)`.
    pub size: u32,
    /// How many bytes it said: those of `bytes` that count, unless they are more.
    pub length: u32,
    /// Tells engines of one name apart.
    pub incarnation: u64,
    /// What the sender's engine calls itself. Its own word, not proof of who it is.
    pub from: [c_char; POLYRAIL_NAME_BYTES],
    /// What it said, or the beginning of it.
    pub bytes: [u8; POLYRAIL_NOTIFICATION_BYTES],
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_notification {
    const DEFAULT: Self = Self {
        size: 0,
        length: 0,
        incarnation: 0,
        from: [0; POLYRAIL_NAME_BYTES],
        bytes: [0; POLYRAIL_NOTIFICATION_BYTES],
    };
}

pub(crate) static DELIVERIES: Table<Delivery> = Table::new(Kind::Delivery);

/// Gives a delivery its handle.
pub(crate) fn add(delivery: Delivery, to: &mut polyrail_delivery) -> Result<(), Failure> {
    to.bits = DELIVERIES.add(delivery)?;
    Ok(())
}

impl From<NotifyError> for Failure {
    fn from(error: NotifyError) -> Self {
        let code = match error {
            NotifyError::Stale { .. } => POLYRAIL_ERROR_HANDLE,
            NotifyError::PeerLost { .. } => POLYRAIL_ERROR_PEER_LOST,
            NotifyError::TooLong { .. } => POLYRAIL_ERROR_ARGUMENT,
            NotifyError::Full => POLYRAIL_ERROR_FULL,
            NotifyError::Unsupported => POLYRAIL_ERROR_INCOMPATIBLE,
            NotifyError::ShutDown => POLYRAIL_ERROR_SHUT_DOWN,
            NotifyError::Forked => POLYRAIL_ERROR_FORKED,
            _ => POLYRAIL_ERROR_SYSTEM,
        };
        Self::new(code, error.to_string())
    }
}

/// Why nothing was received; `in_time`: what to answer if nothing came in time.
pub(crate) fn not_received(error: &ReceiveError, in_time: i32) -> Failure {
    let code = match error {
        ReceiveError::ShutDown => POLYRAIL_ERROR_SHUT_DOWN,
        ReceiveError::Forked => POLYRAIL_ERROR_FORKED,
        _ => in_time,
    };
    Failure::new(code, error.to_string())
}

/// Tells the program of the peer that owns `remote` something, by itself. It gets it once and after what was told it
/// before. `delivery` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_notify(
    remote: polyrail_segment,
    bytes: *const u8,
    length: usize,
    delivery: *mut polyrail_delivery,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let (engine, remote) = segment::get(remote)?;
        // SAFETY: the contract of the crate.
        let bytes = unsafe { text::slice("the notification", bytes, length) }?;
        let sent = engine.notify(remote, bytes)?;
        // SAFETY: the contract of the crate.
        match unsafe { delivery.as_mut() } {
            Some(delivery) => add(sent, delivery),
            None => Ok(()),
        }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Waits so long until it is known what became of a notification; 0: it only looks. `status` takes one of
/// `POLYRAIL_DELIVERY_…`, also if the answer is `POLYRAIL_ERROR_TIMED_OUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_delivery_wait(
    delivery: polyrail_delivery,
    timeout_ns: u64,
    status: *mut u32,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        // SAFETY: the contract of the crate.
        let status = unsafe { text::out("status", status) }?;
        let delivery = DELIVERIES.get(delivery.bits)?;
        let waited = delivery.wait(text::span(timeout_ns));
        *status = crate::words::delivery(delivery.status());
        match waited {
            Ok(_) => Ok(()),
            Err(error @ DeliveryError::Forked) => {
                Err(Failure::new(POLYRAIL_ERROR_FORKED, error.to_string()))
            }
            Err(error) => Err(Failure::new(POLYRAIL_ERROR_TIMED_OUT, error.to_string())),
        }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Frees a delivery's handle. The notification goes its way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_delivery_free(
    delivery: polyrail_delivery,
    error: *mut polyrail_error,
) -> i32 {
    let body = || DELIVERIES.take(delivery.bits).map(drop);
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Takes what a peer's program told this one, and waits so long for it; 0: it only looks. `POLYRAIL_ERROR_EMPTY`: nothing
/// came. The structure has to have its whole size: what did not fit would be lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_notification_take(
    engine: polyrail_engine,
    timeout_ns: u64,
    notification: *mut polyrail_notification,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let notifications = engine::get(engine)?.notifications();
        // SAFETY: the contract of the crate.
        let size = unsafe { sized::stride(notification.cast_const()) }?;
        if size < size_of::<polyrail_notification>() {
            let text = format!(
                "a notification of {size} bytes: it takes {}",
                size_of::<polyrail_notification>()
            );
            return Err(Failure::new(POLYRAIL_ERROR_BUFFER, text));
        }
        let taken = match timeout_ns {
            0 => notifications.poll().ok_or(ReceiveError::TimedOut {
                after: text::span(0),
            }),
            nanos => notifications.wait(text::span(nanos)),
        };
        let taken = taken.map_err(|error| not_received(&error, POLYRAIL_ERROR_EMPTY))?;
        let mut value = polyrail_notification {
            length: taken.bytes.len() as u32,
            incarnation: taken.incarnation,
            ..polyrail_notification::DEFAULT
        };
        failure::write(&mut value.from, &taken.from);
        let bytes = value.bytes.iter_mut().zip(&taken.bytes);
        bytes.for_each(|(to, byte)| *to = *byte);
        LAST.with_borrow_mut(|last| *last = taken.bytes);
        // SAFETY: the contract of the crate.
        unsafe { sized::write(notification, value) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// All bytes of the notification that this thread took last, until it takes another. `length` takes how many they are, also
/// if the answer is `POLYRAIL_ERROR_BUFFER`, because `capacity` is less; it may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_notification_bytes(
    buffer: *mut u8,
    capacity: usize,
    length: *mut usize,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        // SAFETY: the contract of the crate.
        LAST.with_borrow(|last| unsafe { text::fill(last, buffer, capacity, length) })
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Waits so long until so many batches of peers have arrived with this tag (`arrival` of their terms), since it was last
/// forgotten; 0: it only looks. All that they wrote can be seen then. `seen` takes how many have, also if the answer is
/// `POLYRAIL_ERROR_TIMED_OUT`; it may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_arrivals_wait(
    engine: polyrail_engine,
    tag: u64,
    count: u64,
    timeout_ns: u64,
    seen: *mut u64,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let engine = engine::get(engine)?;
        let waited = engine.wait_arrivals(tag, count, text::span(timeout_ns));
        // SAFETY: the contract of the crate.
        if let Some(seen) = unsafe { seen.as_mut() } {
            *seen = engine.arrivals(tag);
        }
        let waited = waited.map(drop);
        waited.map_err(|error| not_received(&error, POLYRAIL_ERROR_TIMED_OUT))
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Forgets a tag, so that it is counted from 0 on. `seen` takes how many batches had arrived with it; it may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_arrivals_forget(
    engine: polyrail_engine,
    tag: u64,
    seen: *mut u64,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let forgotten = engine::get(engine)?.forget_arrivals(tag);
        // SAFETY: the contract of the crate.
        if let Some(seen) = unsafe { seen.as_mut() } {
            *seen = forgotten;
        }
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// A descriptor that polls readable exactly while a notification waits to be taken. Only to be looked at, and only until
/// the engine is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_notification_descriptor(
    engine: polyrail_engine,
    descriptor: *mut c_int,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        // SAFETY: the contract of the crate.
        let descriptor = unsafe { text::out("descriptor", descriptor) }?;
        *descriptor = engine::get(engine)?.notifications().as_raw_fd();
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}
