//! What workers share: rails and devices, with what is learned of them.

use core::ptr::NonNull;

use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::rail::{Device, Rail, RailConfig, Shared, Waiting};
use polyrail_core::time::Duration;
use polyrail_core::units::{DeviceId, PeerId, RailId, Rate};

use crate::memory::{ARGUMENT, Code, LIMIT, Layouter, change, code, enough, fill, look};

/// How much of everything there can be.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_limits {
    /// Workers that share a fabric, at least 1.
    pub workers: u32,
    /// Rails, numbered from 0 on: at most 65,536.
    pub rails: u32,
    /// Devices: local ones, and the peers' that several of their rails end at.
    pub devices: u32,
    /// Peers.
    pub peers: u32,
    /// Plans: pairs of segments.
    pub plans: u32,
    /// Requests that are not taken, for each worker.
    pub requests: u32,
    /// Slices in flight or waiting to be sent again, for each worker: at least 2.
    pub attempts: u32,
    /// Batches that are not taken, for each worker.
    pub batches: u32,
    /// Bytes of a usual slice.
    pub slice_bytes: u32,
}

/// What workers share. Its memory is the caller's.
pub struct polyrail_core_fabric {
    pub(crate) shared: Shared<'static>,
    pub(crate) limits: polyrail_core_limits,
}

/// A rail or a device, before anything is known of it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_estimate {
    /// How fast it is said to be. While another transport is slow, one that has carried nothing yet counts as so fast.
    pub bytes_per_sec: u64,
    /// From posting to completion of an empty slice.
    pub delay_ns: u64,
    /// How far it is from the memory: 0, 1 or 2.
    pub tier: u8,
}

/// How a rail stands.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_rail_view {
    /// 0: healthy; 1: paused; 2: being probed.
    pub state: u32,
    /// Bytes acknowledged, both directions.
    pub done_bytes: u64,
    /// Bytes in flight.
    pub inflight_bytes: u64,
    /// As learned.
    pub bytes_per_sec: u64,
}

impl polyrail_core_estimate {
    fn config(self) -> EstimateConfig {
        EstimateConfig {
            rate_nominal: Rate::from_bytes_per_sec(self.bytes_per_sec),
            delay_base: Duration::from_nanos(self.delay_ns),
            tier: self.tier,
            slice_span: Duration::ZERO,
            batch_span: Duration::ZERO,
        }
    }
}

/// Where the parts of a fabric are.
struct Places {
    fabric: Option<NonNull<polyrail_core_fabric>>,
    rails: Option<NonNull<Rail>>,
    devices: Option<NonNull<Device>>,
    waiting: Option<NonNull<Waiting>>,
}

impl Places {
    fn lay_out(limits: &polyrail_core_limits, layouter: &mut Layouter) -> Option<Self> {
        Some(Self {
            fabric: layouter.rows(1)?,
            rails: layouter.rows(limits.rails as usize)?,
            devices: layouter.rows(limits.devices as usize)?,
            waiting: layouter.rows(limits.workers as usize)?,
        })
    }
}

/// Limits that can be.
pub(crate) fn check(limits: &polyrail_core_limits) -> Result<(), Code> {
    let numbers = 1..=1 << 16;
    let counted = [limits.workers, limits.rails, limits.devices, limits.peers];
    let others = [
        limits.plans,
        limits.requests,
        limits.batches,
        limits.slice_bytes,
    ];
    let good = counted.iter().all(|count| numbers.contains(count))
        && others.iter().all(|count| *count > 0)
        && limits.attempts >= 2;
    if good { Ok(()) } else { Err(ARGUMENT) }
}

/// How many bytes of memory a fabric takes; 0: the limits are out of range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_fabric_size(limits: *const polyrail_core_limits) -> usize {
    // SAFETY: the contract of the crate.
    let limits = unsafe { look(limits) };
    let Some(limits) = limits.ok().filter(|limits| check(limits).is_ok()) else {
        return 0;
    };
    let mut layouter = Layouter::counting();
    Places::lay_out(limits, &mut layouter).map_or(0, |_| layouter.bytes())
}

/// Makes a fabric in memory that begins at a multiple of `POLYRAIL_CORE_ALIGNMENT`. There is nothing to free: the memory
/// is the caller's again when nobody uses the fabric and its cores any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_fabric_create(
    memory: *mut u8,
    bytes: usize,
    limits: *const polyrail_core_limits,
    fabric: *mut *mut polyrail_core_fabric,
) -> i32 {
    let create = || {
        // SAFETY: the contract of the crate.
        let (limits, answer) = unsafe { (look(limits)?, change(fabric)?) };
        check(limits)?;
        // SAFETY: as above.
        let needed = unsafe { polyrail_core_fabric_size(limits) };
        let mut layouter = enough(memory, bytes, needed)?;
        let places = Places::lay_out(limits, &mut layouter).ok_or(ARGUMENT)?;
        let Places {
            fabric: Some(at),
            rails: Some(rails),
            devices: Some(devices),
            waiting: Some(waiting),
        } = places
        else {
            return Err(ARGUMENT);
        };
        // SAFETY: the memory is the fabric's from now on, and has room for all of them.
        let shared = unsafe {
            Shared::new(
                fill(rails, limits.rails as usize, || Rail::EMPTY),
                fill(devices, limits.devices as usize, || Device::EMPTY),
                fill(waiting, limits.workers as usize, || Waiting::NO),
                limits.slice_bytes,
            )
        };
        let limits = *limits;
        // SAFETY: as above.
        unsafe { at.write(polyrail_core_fabric { shared, limits }) };
        *answer = at.as_ptr();
        Ok(())
    };
    code(create())
}

/// Puts a device into its row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_fabric_install_device(
    fabric: *const polyrail_core_fabric,
    device: u16,
    estimate: *const polyrail_core_estimate,
) -> i32 {
    let install = || {
        // SAFETY: the contract of the crate.
        let (fabric, estimate) = unsafe { (look(fabric)?, look(estimate)?) };
        let installed = fabric
            .shared
            .install_device(DeviceId(device), estimate.config());
        if installed { Ok(()) } else { Err(LIMIT) }
    };
    code(install())
}

/// Puts a rail into its row: one that reaches `peer` over `device`, which has been installed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_fabric_install_rail(
    fabric: *const polyrail_core_fabric,
    rail: u16,
    peer: u16,
    device: u16,
    estimate: *const polyrail_core_estimate,
) -> i32 {
    // SAFETY: the contract of the crate.
    code(unsafe { install_rail(fabric, rail, peer, (device, None), estimate) })
}

/// The same for one of several rails from different local devices that end at one device of the peer: `far`, which has been
/// installed, too, under a number that no local device has. A slice then waits for what all of them have in flight there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_fabric_install_rail_between(
    fabric: *const polyrail_core_fabric,
    rail: u16,
    peer: u16,
    device: u16,
    far: u16,
    estimate: *const polyrail_core_estimate,
) -> i32 {
    // SAFETY: the contract of the crate.
    code(unsafe { install_rail(fabric, rail, peer, (device, Some(far)), estimate) })
}

unsafe fn install_rail(
    fabric: *const polyrail_core_fabric,
    rail: u16,
    peer: u16,
    (device, far): (u16, Option<u16>),
    estimate: *const polyrail_core_estimate,
) -> Result<(), Code> {
    // SAFETY: the caller's.
    let (fabric, estimate) = unsafe { (look(fabric)?, look(estimate)?) };
    let config = RailConfig {
        peer: PeerId(peer),
        device: DeviceId(device),
        far: far.map(DeviceId),
        estimate: estimate.config(),
    };
    let installed =
        u32::from(peer) < fabric.limits.peers && fabric.shared.install_rail(RailId(rail), config);
    if installed { Ok(()) } else { Err(LIMIT) }
}

/// How a rail stands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_fabric_look(
    fabric: *const polyrail_core_fabric,
    rail: u16,
    view: *mut polyrail_core_rail_view,
) -> i32 {
    let tell = || {
        // SAFETY: the contract of the crate.
        let (fabric, to) = unsafe { (look(fabric)?, change(view)?) };
        let view = fabric.shared.view(RailId(rail)).ok_or(LIMIT)?;
        *to = polyrail_core_rail_view {
            state: view.state as u32,
            done_bytes: view.done_bytes,
            inflight_bytes: view.inflight_bytes,
            bytes_per_sec: view.rate.bytes_per_sec(),
        };
        Ok(())
    };
    code(tell())
}
