//! What an engine has done, in numbers.

use std::ffi::c_char;

use crate::engine::{self, polyrail_engine};
use crate::failure::{guard, polyrail_error, write};
use crate::sized::{self, Structure};
use crate::words::{POLYRAIL_RAIL_HEALTHY, rail_state};

/// Bytes of the name of a rail, device or transport, the zero at the end included.
pub const POLYRAIL_LABEL_BYTES: usize = 128;
/// Bytes of a reason, the zero at the end included.
pub const POLYRAIL_REASON_BYTES: usize = 256;

/// A rail as the program sees it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_rail {
    /// `sizeof(polyrail_rail)`.
    pub size: u32,
    /// `POLYRAIL_RAIL_HEALTHY`, `_PAUSED` or `_PROBING`.
    pub state: u32,
    /// Bytes acknowledged since the engine started, both directions.
    pub bytes: u64,
    /// `tcp:LOCAL>REMOTE`.
    pub name: [c_char; POLYRAIL_LABEL_BYTES],
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_rail {
    const DEFAULT: Self = Self {
        size: 0,
        state: POLYRAIL_RAIL_HEALTHY,
        bytes: 0,
        name: [0; POLYRAIL_LABEL_BYTES],
    };
}

/// Traffic of one local device over all its rails.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_device {
    /// `sizeof(polyrail_device)`.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes acknowledged, both directions.
    pub bytes: u64,
    /// Bytes in flight now.
    pub inflight_bytes: u64,
    /// How fast its rails are together, as learned.
    pub bytes_per_sec: u64,
    /// Its part of the bytes of all devices, 0 to 1.
    pub share: f64,
    /// Its address; `*`: whichever the kernel chooses.
    pub name: [c_char; POLYRAIL_LABEL_BYTES],
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_device {
    const DEFAULT: Self = Self {
        size: 0,
        reserved: 0,
        bytes: 0,
        inflight_bytes: 0,
        bytes_per_sec: 0,
        share: 0.0,
        name: [0; POLYRAIL_LABEL_BYTES],
    };
}

/// Requests that went on with another transport: `tent_transport_failover_total{from,to}`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_failover {
    /// `sizeof(polyrail_failover)`.
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// How often.
    pub count: u64,
    /// The transport that was left.
    pub from: [c_char; POLYRAIL_LABEL_BYTES],
    /// The one that was taken.
    pub to: [c_char; POLYRAIL_LABEL_BYTES],
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_failover {
    const DEFAULT: Self = Self {
        size: 0,
        reserved: 0,
        count: 0,
        from: [0; POLYRAIL_LABEL_BYTES],
        to: [0; POLYRAIL_LABEL_BYTES],
    };
}

/// A transport that the engine knows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_transport_info {
    /// `sizeof(polyrail_transport_info)`.
    pub size: u32,
    /// 1: it is there; 0: the engine runs without it.
    pub available: u32,
    /// What it is called.
    pub name: [c_char; POLYRAIL_LABEL_BYTES],
    /// Why the engine runs without it; empty if it is there.
    pub missing: [c_char; POLYRAIL_REASON_BYTES],
}

// SAFETY: `repr(C)`, begins with its size, numbers.
unsafe impl Structure for polyrail_transport_info {
    const DEFAULT: Self = Self {
        size: 0,
        available: 0,
        name: [0; POLYRAIL_LABEL_BYTES],
        missing: [0; POLYRAIL_REASON_BYTES],
    };
}

/// All rails, in the order in which they were made. Fills up to `capacity` rows, the first of which says how long each
/// is; `count` takes how many there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_rails(
    engine: polyrail_engine,
    rows: *mut polyrail_rail,
    capacity: usize,
    count: *mut usize,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let rails = engine::get(engine)?.rails();
        let values = rails.iter().map(|rail| {
            let mut row = polyrail_rail {
                state: rail_state(rail.state),
                bytes: rail.bytes,
                ..polyrail_rail::DEFAULT
            };
            write(&mut row.name, &rail.name);
            row
        });
        // SAFETY: the contract of the crate.
        unsafe { sized::write_all(rows, capacity, count, values) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Traffic of each local device, in the order in which they were first used. Fills rows like `polyrail_engine_rails`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_devices(
    engine: polyrail_engine,
    rows: *mut polyrail_device,
    capacity: usize,
    count: *mut usize,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let devices = engine::get(engine)?.stats().devices;
        let values = devices.iter().map(|device| {
            let mut row = polyrail_device {
                bytes: device.bytes,
                inflight_bytes: device.inflight_bytes,
                bytes_per_sec: device.bytes_per_sec,
                share: device.share,
                ..polyrail_device::DEFAULT
            };
            write(&mut row.name, &device.device);
            row
        });
        // SAFETY: the contract of the crate.
        unsafe { sized::write_all(rows, capacity, count, values) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Switches of transports, for each pair that occurred. Fills rows like `polyrail_engine_rails`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_failovers(
    engine: polyrail_engine,
    rows: *mut polyrail_failover,
    capacity: usize,
    count: *mut usize,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let failovers = engine::get(engine)?.stats().failovers;
        let values = failovers.iter().map(|failover| {
            let mut row = polyrail_failover {
                count: failover.count,
                ..polyrail_failover::DEFAULT
            };
            write(&mut row.from, failover.from);
            write(&mut row.to, failover.to);
            row
        });
        // SAFETY: the contract of the crate.
        unsafe { sized::write_all(rows, capacity, count, values) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Its transports in order of preference, those too that it runs without. Fills rows like `polyrail_engine_rails`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_transports(
    engine: polyrail_engine,
    rows: *mut polyrail_transport_info,
    capacity: usize,
    count: *mut usize,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let transports = engine::get(engine)?.transports();
        let values = transports.iter().map(|transport| {
            let mut row = polyrail_transport_info {
                available: u32::from(transport.missing.is_none()),
                ..polyrail_transport_info::DEFAULT
            };
            write(&mut row.name, transport.name);
            write(&mut row.missing, transport.missing.as_deref().unwrap_or(""));
            row
        });
        // SAFETY: the contract of the crate.
        unsafe { sized::write_all(rows, capacity, count, values) }
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}
