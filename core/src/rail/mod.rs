//! Rails and devices as the workers of one engine share them: what is in flight, how fast they are, and
//! whether they may be used.

pub mod diffusion;
pub mod documented;
pub mod estimate;
pub mod health;
pub mod select;
pub mod spray;

use core::sync::atomic::Ordering::*;

use spin::Mutex;

use crate::sync::{AtomicU32, AtomicU64};
use crate::time::{Duration, Instant};
use crate::units::{DeviceId, PeerId, RailId, Rate};
use documented::DocumentedConfig;
use estimate::{Delay, Estimate, EstimateConfig, Observation, Sample, WINDOW_SLICES};
use health::{HealthMode, Incident, RailHealth, RailState};
use spray::{Line, Load, Room};

const NIL: u32 = u32::MAX;
/// In place of the limit of a window.
const NO_CAP: u32 = u32::MAX;
/// "Not waiting", in the table of who waits since when.
const NOT_WAITING: u64 = u64::MAX;

/// What a shell says of a rail when it installs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RailConfig {
    /// Whom it reaches.
    pub peer: PeerId,
    /// The local device it runs on.
    pub device: DeviceId,
    /// What is known of its speed.
    pub estimate: EstimateConfig,
}

/// One rail, shared. Rows are the caller's memory; their content is [`Shared`]'s business.
///
/// Cache lines that no other rail is on: what slices count, what choosing reads, and, the rest, what is learned.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Rail {
    inflight_bytes: AtomicU64,
    used_at: AtomicU64,
    /// Bytes acknowledged since the rail was installed.
    done_bytes: AtomicU64,
    done_at: AtomicU64,
    probed_at: AtomicU64,
    /// Bytes of requests that only this rail is to carry and that are not in flight. `Documented` only.
    assigned_bytes: AtomicU64,
    /// Bytes per second as `Documented` learns them, the bits of an `f64`; 0: nothing learned.
    bandwidth: AtomicU64,
    /// Limit of the window while the rail comes back after an outage; the greatest number: none.
    window_cap: AtomicU32,
    /// Its peer and its device, 16 bits each.
    ends: AtomicU32,
    /// The rail that it stands in for; [`NIL`]: it is no spare.
    stands_in_for: AtomicU32,
    health: RailHealth,
    speed: Speed,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Rail>() <= 448);

impl Rail {
    /// A row not in use, for the arrays that a caller hands in.
    #[allow(clippy::declare_interior_mutable_const)] // a pattern to repeat, not a shared value
    pub const EMPTY: Self = Self {
        inflight_bytes: AtomicU64::new(0),
        done_bytes: AtomicU64::new(0),
        used_at: AtomicU64::new(0),
        done_at: AtomicU64::new(0),
        probed_at: AtomicU64::new(0),
        assigned_bytes: AtomicU64::new(0),
        bandwidth: AtomicU64::new(0),
        window_cap: AtomicU32::new(NO_CAP),
        ends: AtomicU32::new(NIL),
        stands_in_for: AtomicU32::new(NIL),
        health: RailHealth::new(),
        speed: Speed::EMPTY,
    };

    /// The window, smaller while the rail comes back after an outage.
    fn window_bytes(&self) -> u64 {
        let window = self.speed.window_bytes.load(Relaxed);
        u64::from(window.min(self.window_cap.load(Relaxed)))
    }

    /// All that predicting needs to know of it, in one look.
    fn load(&self, device: Option<&Device>) -> Load {
        let rate = self.speed.rate();
        Load {
            rate,
            delay_base: self.speed.delay_base(),
            inflight_bytes: self.inflight_bytes.load(Relaxed),
            device_bytes: device.map_or(0, Device::all_bytes),
            device_rate: device.map_or(rate, Device::rate),
        }
    }

    /// See [`Shared::reserve`].
    fn reserve(
        &self,
        device: Option<&Device>,
        now: Instant,
        bytes: u64,
        limit: u64,
    ) -> Option<u64> {
        let ahead = self.inflight_bytes.fetch_add(bytes, AcqRel);
        if ahead != 0 && ahead.saturating_add(bytes) > limit {
            self.inflight_bytes.fetch_sub(bytes, AcqRel);
            return None;
        }
        if let Some(device) = device {
            device.inflight_bytes.fetch_add(bytes, AcqRel);
        }
        self.used_at.store(now.as_nanos(), Relaxed);
        Some(ahead)
    }

    /// Doubles a returning rail's window per window completed, more slowly after flaps, until it is no limit.
    #[cold]
    fn widen(&self, now: Instant, bytes: u64) {
        let cap = self.window_cap.load(Relaxed);
        let flaps = u64::from(self.health.flaps(now)).max(1);
        let wider = u64::from(cap).saturating_add(bytes.div_ceil(flaps));
        let lifted = wider
            >= self
                .speed
                .rate()
                .bytes_in(RETURN_WINDOW_SPAN)
                .max(8 * u64::from(RETURN_WINDOW_BYTES));
        let wider = u32::try_from(wider).unwrap_or(NO_CAP);
        self.window_cap
            .store(if lifted { NO_CAP } else { wider }, Relaxed);
    }

    /// Whom it reaches; `None`: the row is not in use.
    fn peer(&self) -> Option<PeerId> {
        let ends = self.ends.load(Acquire);
        (ends != NIL).then_some(PeerId((ends >> 16) as u16))
    }

    /// The rail that it stands in for; `None`: it is no spare.
    fn stands_in_for(&self) -> Option<RailId> {
        let rail = self.stands_in_for.load(Relaxed);
        (rail != NIL).then_some(RailId(rail as u16))
    }

    /// The device that it runs on; the last number if the row is not in use.
    fn device(&self) -> DeviceId {
        DeviceId(self.ends.load(Relaxed) as u16)
    }
}

/// A rail, to tell it what has completed there.
pub(crate) struct Known<'a> {
    rail: RailId,
    row: &'a Rail,
    device: Option<&'a Device>,
    /// The usual slice.
    slice_bytes: u32,
}

impl Known<'_> {
    /// Whom it reaches; `None`: its row is not in use.
    pub(crate) fn peer(&self) -> Option<PeerId> {
        self.row.peer()
    }

    /// Gives room back.
    pub(crate) fn release(&self, bytes: u64) {
        self.row.inflight_bytes.fetch_sub(bytes, AcqRel);
        if let Some(device) = self.device {
            device.inflight_bytes.fetch_sub(bytes, AcqRel);
        }
    }

    /// So many bytes have been carried until `at`, and nothing is learned from that.
    pub(crate) fn carried(&self, at: Instant, bytes: u64) {
        self.row.done_bytes.fetch_add(bytes, Relaxed);
        self.row.done_at.store(at.as_nanos(), Relaxed);
    }

    /// Learns from slices that completed.
    #[inline(always)] // see `Speed::learn`
    pub(crate) fn handle_observation(&self, seen: &Observation) {
        let row = self.row;
        self.carried(seen.seen_at(), seen.bytes());
        row.speed.learn(self.slice_bytes, seen);
        if let Some(device) = self.device {
            if device.only_rail.load(Relaxed) == u32::from(self.rail.0) {
                device.rate.store(row.speed.rate.load(Relaxed), Relaxed);
            } else {
                device.learn(seen);
                device.note_window(row.speed.window_bytes.load(Relaxed));
            }
        }
        if row.window_cap.load(Relaxed) != NO_CAP {
            row.widen(seen.seen_at(), seen.bytes());
        }
    }
}

/// A healthy rail, to look at.
pub(crate) struct Healthy<'a> {
    row: &'a Rail,
    device: Option<&'a Device>,
}

impl Healthy<'_> {
    /// How full it is now, for a worker that has `own_bytes` in flight there.
    pub(crate) fn room(&self, now: Instant, own_bytes: u64) -> Room {
        let window_bytes = self.row.window_bytes();
        let mut room = Room {
            inflight_bytes: self.row.inflight_bytes.load(Relaxed),
            own_bytes,
            window_bytes,
            device_bytes: 0,
            device_limit: u64::MAX,
            is_kept: false,
        };
        if let Some(device) = self.device {
            room.is_kept = device.is_kept(now);
            if room.is_kept || device.is_shared() {
                room.device_bytes = device.inflight_bytes.load(Relaxed);
                room.device_limit = device.limit(&room, self.row.speed.units(), self.slice_bytes());
            }
        }
        room
    }

    /// All that predicting needs to know of it.
    pub(crate) fn load(&self) -> Load {
        self.row.load(self.device)
    }

    /// The device that it runs on.
    pub(crate) fn device(&self) -> DeviceId {
        self.row.device()
    }

    /// How long slices on it should be.
    pub(crate) fn slice_bytes(&self) -> u32 {
        self.row.speed.slice_bytes.load(Relaxed)
    }

    /// How short slices on it may be where few bytes are left.
    pub(crate) fn part_bytes(&self) -> u32 {
        self.row.speed.part_bytes.load(Relaxed)
    }

    /// When it last took a slice.
    pub(crate) fn used_at(&self) -> Instant {
        Instant::from_nanos(self.row.used_at.load(Relaxed))
    }
}

/// Windows that what is not urgent may have in flight on one device, whatever the number of peers: one is served, one is ready.
const DEVICE_WINDOWS: u64 = 2;

/// A large window is remembered for about so many completions.
const WINDOW_MEMORY: u32 = 1 << 10;

/// So long a device is kept for more of the kind after something urgent has taken it.
const KEPT_SPAN: Duration = Duration::from_millis(4);

/// Bytes a second in which rates are added up.
pub(crate) const RATE_UNIT: u64 = 1 << 16;

/// A rate in whole units, at least one.
pub(crate) fn units_of(rate: Rate) -> u64 {
    (rate.bytes_per_sec() / RATE_UNIT).max(1)
}

/// The same, as an atomic keeps it.
fn kept_units(rate: Rate) -> u32 {
    u32::try_from(units_of(rate)).unwrap_or(u32::MAX)
}

/// One local device, shared by all rails on it. Rows are the caller's memory.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Device {
    inflight_bytes: AtomicU64,
    /// As the shell has said last; beside what is read with it.
    others_bytes: AtomicU64,
    /// How fast it is.
    rate: AtomicU64,
    /// Until when something urgent may come again, in nanoseconds.
    kept_until: AtomicU64,
    /// The only rail on it, which knows all that there is to learn of it; [`NIL`]: there are several, or none.
    only_rail: AtomicU32,
    /// The largest window of a rail on it lately, if there are several.
    window_bytes: AtomicU32,
    estimate: Mutex<Option<Estimate>>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Device>() <= 320);

impl Device {
    /// A row not in use, for the arrays that a caller hands in.
    #[allow(clippy::declare_interior_mutable_const)] // a pattern to repeat, not a shared value
    pub const EMPTY: Self = Self {
        inflight_bytes: AtomicU64::new(0),
        others_bytes: AtomicU64::new(0),
        rate: AtomicU64::new(u64::MAX),
        kept_until: AtomicU64::new(0),
        only_rail: AtomicU32::new(NIL),
        window_bytes: AtomicU32::new(0),
        estimate: Mutex::new(None),
    };

    fn install(&self, config: EstimateConfig) {
        let mut known = self.estimate.lock();
        self.publish(known.insert(Estimate::new(config)));
        self.only_rail.store(NIL, Relaxed);
    }

    /// Learns from slices that completed on one of several rails.
    fn learn(&self, seen: &Observation) {
        if let Some(estimate) = self.estimate.lock().as_mut() {
            estimate.learn_rate(seen);
            self.publish(estimate);
        }
    }

    /// A rail on it has such a window. Much larger ones of others are forgotten after some thousand of these.
    fn note_window(&self, bytes: u32) {
        let largest = self.window_bytes.load(Relaxed);
        let largest = largest - largest / WINDOW_MEMORY;
        self.window_bytes.store(largest.max(bytes), Relaxed);
    }

    /// Has learned what its only rail has until now.
    fn take_over(&self, learned: &Estimate) {
        if let Some(estimate) = self.estimate.lock().as_mut() {
            estimate.take_over(learned);
            self.publish(estimate);
        }
    }

    fn publish(&self, estimate: &Estimate) {
        self.rate.store(estimate.rate().to_bits(), Relaxed);
    }

    fn rate(&self) -> Rate {
        Rate::from_bits(self.rate.load(Relaxed))
    }

    /// Whether several rails are on it.
    fn is_shared(&self) -> bool {
        self.only_rail.load(Relaxed) == NIL
    }

    /// Whether what is urgent has taken it lately.
    fn is_kept(&self, now: Instant) -> bool {
        now.as_nanos() < self.kept_until.load(Relaxed)
    }

    /// How many bytes may be in flight on it, of what is not urgent: two windows of the rail that asks, as long as they would
    /// be if the rail were as fast as the device, or of the rail whose window is the largest: what is on its way to a far peer keeps
    /// nobody from a near one. While it is kept, what is on its way, and one slice.
    fn limit(&self, room: &Room, rail_units: u64, slice_bytes: u32) -> u64 {
        let units = match self.is_shared() {
            true => units_of(self.rate()).max(rail_units),
            false => rail_units,
        };
        let slice = u64::from(slice_bytes);
        // So much a window has however slow the rail is.
        let queue = room.window_bytes.min(WINDOW_SLICES * slice);
        let on_way = (room.window_bytes - queue).saturating_mul(units) / rail_units.max(1);
        let largest = u64::from(self.window_bytes.load(Relaxed));
        let on_way = on_way.max(largest.saturating_sub(queue));
        match room.is_kept {
            true => on_way.saturating_add(slice),
            false => DEVICE_WINDOWS.saturating_mul(queue.saturating_add(on_way)),
        }
    }

    /// Bytes in flight on it, of this engine and, weighted, of the host's other processes.
    fn all_bytes(&self) -> u64 {
        let own = self.inflight_bytes.load(Relaxed);
        own.saturating_add(self.others_bytes.load(Relaxed))
    }
}

/// How fast a rail is: the estimate behind a lock, and what choosing needs of it in atomics.
#[derive(Debug)]
#[repr(C)]
struct Speed {
    rate: AtomicU64,
    delay_base: AtomicU32,
    /// Of all slices, not only of those that met an empty rail.
    delay_mean: AtomicU32,
    /// 4 GiB and more are the same.
    window_bytes: AtomicU32,
    slice_bytes: AtomicU32,
    part_bytes: AtomicU32,
    /// See [`RATE_UNIT`].
    units: AtomicU32,
    /// What slices have shown, or as long as there are none the last look.
    units_shown: AtomicU32,
    estimate: Mutex<Option<Estimate>>,
}

impl Speed {
    #[allow(clippy::declare_interior_mutable_const)]
    const EMPTY: Self = Self {
        rate: AtomicU64::new(u64::MAX),
        delay_base: AtomicU32::new(0),
        delay_mean: AtomicU32::new(0),
        window_bytes: AtomicU32::new(0),
        slice_bytes: AtomicU32::new(0),
        part_bytes: AtomicU32::new(0),
        units: AtomicU32::new(1),
        units_shown: AtomicU32::new(0),
        estimate: Mutex::new(None),
    };

    fn install(&self, config: EstimateConfig, slice_bytes: u32) {
        let mut estimate = self.estimate.lock();
        self.publish(estimate.insert(Estimate::new(config)), slice_bytes);
        self.units_shown.store(0, Relaxed);
    }

    #[inline(always)] // one stretch of arithmetic with little to keep
    fn learn(&self, slice_bytes: u32, seen: &Observation) {
        if let Some(estimate) = self.estimate.lock().as_mut() {
            estimate.handle_observation(seen);
            self.publish(estimate, slice_bytes);
            self.units_shown.store(self.units.load(Relaxed), Relaxed);
        }
    }

    fn update(&self, slice_bytes: u32, learn: impl FnOnce(&mut Estimate)) {
        if let Some(estimate) = self.estimate.lock().as_mut() {
            learn(estimate);
            self.publish(estimate, slice_bytes);
        }
    }

    #[inline(always)] // see `Self::learn`
    fn publish(&self, estimate: &mut Estimate, slice_bytes: u32) {
        self.rate.store(estimate.rate().to_bits(), Relaxed);
        self.delay_base
            .store(estimate.kept_delay_base().to_bits(), Relaxed);
        self.delay_mean
            .store(estimate.kept_delay_mean().to_bits(), Relaxed);
        let window = estimate.window_bytes(slice_bytes);
        estimate.handle_window(window);
        let window = u32::try_from(window).unwrap_or(u32::MAX);
        self.window_bytes.store(window, Relaxed);
        self.units.store(kept_units(estimate.rate()), Relaxed);
        self.slice_bytes
            .store(estimate.slice_bytes(slice_bytes), Relaxed);
        self.part_bytes
            .store(estimate.part_bytes(slice_bytes), Relaxed);
    }

    fn rate(&self) -> Rate {
        Rate::from_bits(self.rate.load(Relaxed))
    }

    /// See [`RATE_UNIT`].
    fn units(&self) -> u64 {
        self.units.load(Relaxed).into()
    }

    /// A look at an empty rail that has carried nothing yet: so many bytes pass in so long, the base delay apart. No more is shown
    /// by that than was told.
    fn show(&self, bytes: u64, took: Duration) {
        let passed = Rate::from_bytes_in(bytes, took.minus(self.delay_base()));
        let units = kept_units(passed).min(kept_units(self.rate_nominal()));
        self.units_shown.store(units, Relaxed);
    }

    fn delay_base(&self) -> Duration {
        Delay::span_of(self.delay_base.load(Relaxed))
    }

    fn delay_mean(&self) -> Duration {
        Delay::span_of(self.delay_mean.load(Relaxed))
    }

    /// What it may be able to pass.
    fn rate_most(&self) -> Rate {
        let estimate = self.estimate.lock();
        let rate = estimate.as_ref().map(Estimate::rate_most);
        rate.unwrap_or(Rate::SLOWEST)
    }

    /// All that has been learned; `None`: nothing yet.
    fn learned(&self) -> Option<Estimate> {
        let estimate = *self.estimate.lock();
        estimate.filter(Estimate::has_learned)
    }

    fn rate_nominal(&self) -> Rate {
        let estimate = self.estimate.lock();
        estimate.map_or(Rate::SLOWEST, |estimate| estimate.rate_nominal())
    }
}

/// The window of a rail that comes back starts here and doubles with each window completed.
const RETURN_WINDOW_BYTES: u32 = 128 * 1024;
/// It is lifted once it reaches this much of the rail's rate.
const RETURN_WINDOW_SPAN: Duration = Duration::from_millis(1);

/// A look at an idle rail's speed takes about this long, and four base delays, if the rail is as slow as known.
const RATE_PROBE_SPAN: Duration = Duration::from_micros(20);
/// And is at least so large.
const RATE_PROBE_BYTES_MIN: u64 = 4 * 1024;

/// A rail at a glance, for the program and for output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailView {
    /// It stands in for another one: see [`Shared::install_spare`].
    pub is_spare: bool,
    /// Where it stands.
    pub state: RailState,
    /// Bytes acknowledged since it was installed, both directions.
    pub done_bytes: u64,
    /// Bytes in flight.
    pub inflight_bytes: u64,
    /// Learned rate.
    pub rate: Rate,
}

/// Since when a worker has had bytes that no rail took. Rows are the caller's memory, one for each worker.
#[derive(Debug)]
pub struct Waiting(AtomicU64);

impl Waiting {
    /// Not waiting, for the arrays that a caller hands in.
    #[allow(clippy::declare_interior_mutable_const)] // a pattern to repeat, not a shared value
    pub const NO: Self = Self(AtomicU64::new(NOT_WAITING));
}

/// What the workers of an engine share, over tables that the caller owns. All methods take `&self`. It is
/// only a view: any number of them over the same tables are the same thing.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    rails: &'a [Rail],
    devices: &'a [Device],
    waiting: &'a [Waiting],
    slice_bytes: u32,
}

impl<'a> Shared<'a> {
    /// A view of the tables, whose rows start as `EMPTY` and `NO`. `waiting` has one row for each worker;
    /// `slice_bytes` is the usual slice.
    pub const fn new(
        rails: &'a [Rail],
        devices: &'a [Device],
        waiting: &'a [Waiting],
        slice_bytes: u32,
    ) -> Self {
        Self {
            rails,
            devices,
            waiting,
            slice_bytes,
        }
    }

    /// The usual slice, in bytes.
    pub fn slice_bytes(&self) -> u32 {
        self.slice_bytes
    }

    /// Whether nobody else learns of the rails.
    pub(crate) fn has_one_worker(&self) -> bool {
        self.waiting.len() == 1
    }

    /// Puts a device into its row. `false` if there is no such row.
    pub fn install_device(&self, device: DeviceId, config: EstimateConfig) -> bool {
        self.devices
            .get(device.index())
            .map(|row| row.install(config))
            .is_some()
    }

    /// Puts a rail into its row, which may have been that of another one that no worker refers to any more: see
    /// [`crate::orchestrator::Orchestrator::forget_peer`]. `false` if there is no such row, or none for its
    /// device.
    pub fn install_rail(&self, rail: RailId, config: RailConfig) -> bool {
        if let Some(device) = self.devices.get(config.device.index()) {
            self.count_rail(rail, config.device, device);
        }
        self.install(rail, None, config)
    }

    /// The same for a spare: it carries slices only while the rail that it stands in for is not healthy, or stands still. Both are on the same
    /// device and in the same plans, and that one is no spare. What the device learns, it learns as if the spare were not there.
    pub fn install_spare(&self, rail: RailId, stands_in_for: RailId, config: RailConfig) -> bool {
        self.install(rail, Some(stands_in_for), config)
    }

    fn install(&self, rail: RailId, stands_in_for: Option<RailId>, config: RailConfig) -> bool {
        let has_device = self.devices.get(config.device.index()).is_some();
        let Some(row) = self.rails.get(rail.index()).filter(|_| has_device) else {
            return false;
        };
        let of = stands_in_for.map_or(NIL, |of| of.0.into());
        row.stands_in_for.store(of, Relaxed);
        row.speed.install(config.estimate, self.slice_bytes);
        let counters = [
            &row.bandwidth,
            &row.done_bytes,
            &row.used_at,
            &row.done_at,
            &row.probed_at,
        ];
        for counter in counters {
            counter.store(0, Relaxed);
        }
        row.window_cap.store(NO_CAP, Relaxed);
        row.health.reset();
        let ends = u32::from(config.peer.0) << 16 | u32::from(config.device.0);
        row.ends.store(ends, Release);
        true
    }

    /// A rail comes to a device. What the one that was alone there has learned is the device's then.
    fn count_rail(&self, rail: RailId, id: DeviceId, device: &Device) {
        let used = |row: &&Rail| {
            row.peer().is_some() && row.device() == id && row.stands_in_for().is_none()
        };
        let mut others = (0..)
            .zip(self.rails)
            .filter(|(index, row)| *index != rail.index() && used(row));
        let only = match (others.next(), others.next()) {
            (None, _) => u32::from(rail.0),
            (Some((_, other)), None) => {
                if let Some(learned) = other.speed.learned() {
                    device.take_over(&learned);
                }
                NIL
            }
            _ => NIL,
        };
        device.only_rail.store(only, Relaxed);
    }

    /// Says how many bytes other processes of the host have in flight on a device, weighted: see [`diffusion`]. From
    /// then on a slice there is predicted to wait for them too. `false` if there is no such row.
    pub fn set_others(&self, device: DeviceId, bytes: u64) -> bool {
        self.devices
            .get(device.index())
            .map(|row| row.others_bytes.store(bytes, Relaxed))
            .is_some()
    }

    /// Bytes that this engine has in flight on a device, over all of its rails.
    pub fn device_inflight_bytes(&self, device: DeviceId) -> u64 {
        self.devices
            .get(device.index())
            .map_or(0, |row| row.inflight_bytes.load(Relaxed))
    }

    /// A rail at a glance; `None` if the row is not in use.
    pub fn view(&self, rail: RailId) -> Option<RailView> {
        let row = self.rails.get(rail.index())?;
        row.peer().map(|_| RailView {
            is_spare: row.stands_in_for().is_some(),
            state: row.health.state(),
            done_bytes: row.done_bytes.load(Relaxed),
            inflight_bytes: row.inflight_bytes.load(Relaxed),
            rate: row.speed.rate(),
        })
    }

    /// Whom a rail reaches.
    pub(crate) fn peer(&self, rail: RailId) -> Option<PeerId> {
        self.rails.get(rail.index())?.peer()
    }

    /// The rail that a spare stands in for; `None`: it is none.
    pub(crate) fn front_of(&self, rail: RailId) -> Option<RailId> {
        self.rails.get(rail.index())?.stands_in_for()
    }

    pub(crate) fn health(&self, rail: RailId) -> Option<&'a RailHealth> {
        self.rails.get(rail.index()).map(|row| &row.health)
    }

    pub(crate) fn rate(&self, rail: RailId) -> Rate {
        self.rails
            .get(rail.index())
            .map_or(Rate::SLOWEST, |row| row.speed.rate())
    }

    /// What it may be able to pass, for who gives up what that is too little for.
    pub(crate) fn rate_most(&self, rail: RailId) -> Rate {
        let row = self.rails.get(rail.index());
        row.map_or(Rate::SLOWEST, |row| row.speed.rate_most())
    }

    /// The same in units of [`RATE_UNIT`].
    pub(crate) fn rate_units(&self, rail: RailId) -> u64 {
        let row = self.rails.get(rail.index());
        row.map_or(0, |row| row.speed.units())
    }

    /// The rate that the rail has shown, in the same units: when it last carried slices, or, if it never has, in the last look.
    /// 0: of what was told nothing has been shown.
    pub(crate) fn units_shown(&self, rail: RailId) -> u64 {
        let row = self.rails.get(rail.index());
        row.map_or(0, |row| row.speed.units_shown.load(Relaxed).into())
    }

    /// The rate that the rail was installed with.
    pub(crate) fn rate_nominal(&self, rail: RailId) -> Rate {
        self.rails
            .get(rail.index())
            .map_or(Rate::SLOWEST, |row| row.speed.rate_nominal())
    }

    /// What has completed there since it was installed, in bytes, and when the last did.
    pub(crate) fn done(&self, rail: RailId) -> (u64, Instant) {
        let row = self.rails.get(rail.index());
        row.map_or((0, Instant::ZERO), |row| {
            let at = Instant::from_nanos(row.done_at.load(Relaxed));
            (row.done_bytes.load(Relaxed), at)
        })
    }

    /// Whether anything has.
    pub(crate) fn has_carried(&self, rail: RailId) -> bool {
        self.done(rail).1 != Instant::ZERO
    }

    /// The device that a rail runs on.
    pub(crate) fn device_of(&self, rail: RailId) -> Option<DeviceId> {
        Some(self.rails.get(rail.index())?.device())
    }

    /// The same in units of [`RATE_UNIT`].
    pub(crate) fn nominal_units(&self, rail: RailId) -> u64 {
        units_of(self.rate_nominal(rail))
    }

    pub(crate) fn delay_base(&self, rail: RailId) -> Duration {
        self.rails
            .get(rail.index())
            .map_or(Duration::ZERO, |row| row.speed.delay_base())
    }

    /// How long slices have taken lately beyond their own time and that of the bytes before them. It is longer than the base
    /// delay where that was told too short.
    pub(crate) fn delay_mean(&self, rail: RailId) -> Duration {
        self.rails
            .get(rail.index())
            .map_or(Duration::ZERO, |row| row.speed.delay_mean())
    }

    pub(crate) fn inflight_bytes(&self, rail: RailId) -> u64 {
        self.rails
            .get(rail.index())
            .map_or(0, |row| row.inflight_bytes.load(Relaxed))
    }

    /// Bytes that only this rail is to carry and that are not in flight.
    pub(crate) fn assigned_bytes(&self, rail: RailId) -> u64 {
        self.rails
            .get(rail.index())
            .map_or(0, |row| row.assigned_bytes.load(Relaxed))
    }

    /// Gives a rail bytes that only it is to carry.
    pub(crate) fn assign(&self, rail: RailId, bytes: u64) {
        if let Some(row) = self.rails.get(rail.index()) {
            row.assigned_bytes.fetch_add(bytes, Relaxed);
        }
    }

    /// Takes back such bytes: they are in flight now, or another's, or nobody wants them.
    pub(crate) fn unassign(&self, rail: RailId, bytes: u64) {
        if let Some(row) = self.rails.get(rail.index()) {
            row.assigned_bytes.fetch_sub(bytes, Relaxed);
        }
    }

    /// Bytes per second as `Documented` has learned them.
    pub(crate) fn bandwidth(&self, rail: RailId, config: &DocumentedConfig) -> f64 {
        let learned = self
            .rails
            .get(rail.index())
            .map_or(0, |row| row.bandwidth.load(Relaxed));
        match learned {
            0 => config.theoretical(self.rate_nominal(rail)),
            bits => f64::from_bits(bits),
        }
    }

    /// Lets `Documented` learn from a slice that completed. A sample lost to another worker's is no matter.
    pub(crate) fn learn_bandwidth(&self, rail: RailId, config: &DocumentedConfig, sample: Sample) {
        let old = self.bandwidth(rail, config);
        let theoretical = config.theoretical(self.rate_nominal(rail));
        let took = sample.seen_at.since(sample.posted_at);
        let learned = config.learned(old, theoretical, sample.bytes, took);
        if let Some(row) = self.rails.get(rail.index()) {
            row.bandwidth.store(learned.to_bits(), Relaxed);
        }
    }

    /// The rail's window, smaller while it comes back after an outage.
    pub(crate) fn window_bytes(&self, rail: RailId) -> u64 {
        self.rails.get(rail.index()).map_or(0, Rail::window_bytes)
    }

    /// A rail, to look at, if it is healthy.
    #[inline]
    pub(crate) fn healthy(&self, rail: RailId) -> Option<Healthy<'a>> {
        let row = self.rails.get(rail.index())?;
        row.health.is_healthy().then(|| Healthy {
            row,
            device: self.device(row),
        })
    }

    /// All that predicting needs to know of a rail.
    pub(crate) fn load(&self, rail: RailId) -> Option<Load> {
        let row = self.rails.get(rail.index())?;
        Some(row.load(self.device(row)))
    }

    /// Takes room for `bytes` on a rail if no more than `limit` are in flight with them, or nothing else is.
    /// The bytes in flight before, or `None`: no room.
    pub(crate) fn reserve(
        &self,
        now: Instant,
        rail: RailId,
        bytes: u64,
        limit: u64,
    ) -> Option<u64> {
        let row = self.rails.get(rail.index())?;
        row.reserve(self.device(row), now, bytes, limit)
    }

    /// Something urgent has taken a rail: its device is kept for what comes next.
    pub(crate) fn keep(&self, now: Instant, rail: RailId) {
        let device = self
            .rails
            .get(rail.index())
            .and_then(|row| self.device(row));
        if let Some(device) = device {
            let until = now + KEPT_SPAN;
            device.kept_until.fetch_max(until.as_nanos(), Relaxed);
        }
    }

    /// Gives room back.
    pub(crate) fn release(&self, rail: RailId, bytes: u64) {
        if let Some(row) = self.known(rail) {
            row.release(bytes);
        }
    }

    /// A rail, to tell it what has completed there.
    pub(crate) fn known(&self, rail: RailId) -> Option<Known<'a>> {
        let row = self.rails.get(rail.index())?;
        Some(Known {
            rail,
            row,
            device: self.device(row),
            slice_bytes: self.slice_bytes,
        })
    }

    /// Learns from slices that completed.
    #[inline(never)]
    pub(crate) fn handle_observation(&self, rail: RailId, seen: &Observation) {
        if let Some(row) = self.known(rail) {
            row.handle_observation(seen);
        }
    }

    /// Learns from a probe of `bytes` that met an idle rail, and was seen at `now`.
    pub(crate) fn handle_rate_probe(&self, now: Instant, rail: RailId, bytes: u64, took: Duration) {
        if let Some(row) = self.rails.get(rail.index()) {
            // It has been idle from now on: what waits meanwhile goes first.
            row.used_at.store(now.as_nanos(), Relaxed);
            if !self.has_carried(rail) {
                row.speed.show(bytes, took);
            }
            row.speed.update(self.slice_bytes, |estimate| {
                estimate.handle_probe(bytes, took)
            });
        }
    }

    /// Works on a rail share completions, so those that are seen together say nothing of delays.
    pub(crate) fn share_completions(&self, rail: RailId) {
        if let Some(row) = self.rails.get(rail.index()) {
            row.speed
                .update(self.slice_bytes, Estimate::share_completions);
        }
    }

    /// A rail came back: its old speed says nothing, and it starts with a small window.
    pub(crate) fn readmit(&self, rail: RailId) {
        if let Some(row) = self.rails.get(rail.index()) {
            row.speed.update(self.slice_bytes, Estimate::reset);
            row.window_cap.store(RETURN_WINDOW_BYTES, Relaxed);
        }
    }

    /// How much to send over an idle rail to see how fast it is: a slice, but less on a rail that seems slow, so
    /// that looking again soon costs it little. Still enough for the bytes to take longer than the delay.
    pub(crate) fn rate_probe_bytes(&self, rail: RailId) -> u32 {
        let span = RATE_PROBE_SPAN + self.delay_base(rail).times(4);
        let bytes = self.rate(rail).bytes_in(span).max(RATE_PROBE_BYTES_MIN);
        u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .min(self.slice_bytes)
    }

    /// Claims a look at an idle rail's speed, if it is due: `interval` after its last completion, and after the
    /// last look or longer, so that probes take at most one part in 200 of the rail's time. `true` for one
    /// worker only.
    pub(crate) fn claim_rate_probe(&self, now: Instant, rail: RailId, interval: Duration) -> bool {
        let Some(row) = self.rails.get(rail.index()) else {
            return false;
        };
        let bytes = u64::from(self.rate_probe_bytes(rail));
        let cost = row.speed.rate().time_for(bytes);
        let done = Instant::from_nanos(row.done_at.load(Relaxed));
        // Read once: who claims must have found due what it replaces.
        let before = row.probed_at.load(Relaxed);
        let probed = Instant::from_nanos(before);
        // The first look is not put off by what was only told.
        let rest = match before {
            0 => interval,
            _ => interval.max(cost.times(200)),
        };
        let due = (done + interval).max(probed + rest);
        due <= now
            && row
                .probed_at
                .compare_exchange(before, now.as_nanos(), AcqRel, Relaxed)
                .is_ok()
    }

    /// Says since when a worker has had bytes to post; `None`: it has none.
    pub(crate) fn set_waiting(&self, worker: u16, since: Option<Instant>) {
        if let Some(cell) = self.waiting.get(usize::from(worker)) {
            cell.0
                .store(since.map_or(NOT_WAITING, Instant::as_nanos), Release);
        }
    }

    /// Who waits for room, seen from `worker`.
    pub(crate) fn line(&self, worker: u16) -> Line {
        let own = self
            .waiting
            .get(usize::from(worker))
            .map_or(NOT_WAITING, |cell| cell.0.load(Acquire));
        let mut line = Line::ALONE;
        if self.has_one_worker() {
            return line;
        }
        for cell in self.waiting {
            let since = cell.0.load(Acquire);
            line.waiting += u64::from(since != NOT_WAITING);
            line.is_first &= since >= own;
        }
        line
    }

    /// The next worker after `last`, in turn, that waits: `last` itself at the end, but never `own`.
    pub(crate) fn next_waiting(&self, last: u16, own: u16) -> Option<u16> {
        let count = self.waiting.len();
        if count < 2 {
            return None;
        }
        (1..=count)
            .map(|step| (usize::from(last) + step) % count)
            .filter(|other| *other != usize::from(own))
            .find(|other| {
                self.waiting
                    .get(*other)
                    .is_some_and(|cell| cell.0.load(Acquire) != NOT_WAITING)
            })
            .map(|other| other as u16)
    }

    /// An incident on a rail, whoever noticed. `true` if it was healthy until now and is not any more.
    pub(crate) fn handle_incident(
        &self,
        now: Instant,
        rail: RailId,
        mode: HealthMode,
        incident: Incident,
    ) -> bool {
        self.health(rail).is_some_and(|health| match mode {
            HealthMode::Decay => health.handle_incident(now, incident),
            HealthMode::Reset(config) => health.handle_error(now, &config),
        })
    }

    fn device(&self, rail: &Rail) -> Option<&'a Device> {
        self.devices.get(rail.device().index())
    }
}

/// One of a peer, on a device of 1 GB/s.
#[cfg(test)]
const fn a_rail() -> RailConfig {
    RailConfig {
        peer: PeerId(0),
        device: DeviceId(0),
        estimate: EstimateConfig {
            rate_nominal: Rate::from_bytes_per_sec(1_000_000_000),
            delay_base: Duration::ZERO,
            tier: 0,
            slice_span: Duration::ZERO,
            batch_span: Duration::ZERO,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_waits_for_what_living_processes_have_in_flight() {
        use core::num::NonZeroU64;
        use diffusion::{Diffusion, DiffusionConfig, Geometry, ProcessId, Record, Weight};

        const SIZE: Geometry = Geometry {
            rows: 2,
            columns: 2,
        };
        const STALE_AFTER: Duration = Duration::from_millis(20);
        let (rails, devices) = ([const { Rail::EMPTY }; 2], [const { Device::EMPTY }; 2]);
        let shared = Shared::new(&rails, &devices, &[], 64);
        let [busy, idle] = [RailId(0), RailId(1)];
        for rail in [busy, idle] {
            let device = DeviceId(rail.0);
            let estimate = EstimateConfig {
                rate_nominal: Rate::from_bytes_per_sec(1_000_000_000),
                delay_base: Duration::ZERO,
                tier: 0,
                slice_span: Duration::ZERO,
                batch_span: Duration::ZERO,
            };
            let config = RailConfig {
                peer: PeerId(0),
                device,
                estimate,
            };
            assert!(shared.install_device(device, estimate) && shared.install_rail(rail, config));
        }
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let words: [_; SIZE.words()] = core::array::from_fn(|_| AtomicU64::new(0));
        let join = |pid, parts| {
            let config = DiffusionConfig {
                weight: Weight::new(parts).unwrap(),
                stale_after: STALE_AFTER,
            };
            let record = Record::new(&words, SIZE).unwrap();
            Diffusion::join(at(0), record, ProcessId::new(pid, 1).unwrap(), config).unwrap()
        };
        let (other, own) = (join(1, 1024), join(2, 512));
        let column = own.column(NonZeroU64::MIN).unwrap();
        assert!(other.publish(at(0), column, 2_000));
        let wait = |rail| shared.load(rail).unwrap().predicted(0).as_nanos();
        // Ours, on a rail that waits for its own queue anyway: what is ahead there is both.
        assert_eq!(shared.reserve(at(0), busy, 500, 1 << 20), Some(0));
        // (name, at ms, how long a slice waits where the other has bytes in flight)
        let cases = [
            ("the other's count half", 20, 1_500),
            ("it has died", 21, 500),
        ];
        for (name, millis, expected) in cases {
            let mut bytes = [0; 2];
            own.others(at(millis), &mut bytes);
            for (device, bytes) in (0..).zip(bytes) {
                assert!(shared.set_others(DeviceId(device), bytes));
            }
            assert_eq!((wait(busy), wait(idle)), (expected, 0), "{name}");
            let load = shared.load(busy).unwrap();
            assert_eq!(load.inflight_bytes, 500, "{name}: the window is ours alone");
        }
        assert_eq!(shared.device_inflight_bytes(DeviceId(0)), 500);
        assert!(!shared.set_others(DeviceId(2), 1));
    }

    #[test]
    fn a_device_knows_what_its_only_rail_has_learned_when_another_comes() {
        const NOMINAL: Rate = Rate::from_bytes_per_sec(1_000_000_000);
        let estimate = EstimateConfig {
            rate_nominal: NOMINAL,
            delay_base: Duration::from_micros(3),
            tier: 0,
            slice_span: Duration::ZERO,
            batch_span: Duration::ZERO,
        };
        let config = |device| RailConfig {
            peer: PeerId(0),
            device: DeviceId(device),
            estimate,
        };
        let (rails, devices) = ([const { Rail::EMPTY }; 4], [const { Device::EMPTY }; 2]);
        let shared = Shared::new(&rails, &devices, &[], 64);
        // The first device has one rail for now, the second one two from the start.
        for device in [0, 1] {
            assert!(shared.install_device(DeviceId(device), estimate));
        }
        for (rail, device) in [(0, 0), (1, 1), (2, 1)] {
            assert!(shared.install_rail(RailId(rail), config(device)));
        }
        let device_rate = |rail| shared.load(RailId(rail)).unwrap().device_rate;
        // A tenth of the nominal rate, each behind the one before.
        let learn = |rails: [u16; 2], first: u64| {
            for number in first..first + 50 {
                let at = |number| Instant::from_nanos(1_000_000 * number);
                let seen = Observation::new(Sample {
                    posted_at: at(number),
                    seen_at: at(number + 1),
                    ahead_bytes: 0,
                    bytes: 100_000,
                });
                for rail in rails {
                    shared.handle_observation(RailId(rail), &seen);
                }
            }
        };
        learn([0, 1], 1);
        assert!(device_rate(0).bytes_per_sec() < NOMINAL.bytes_per_sec() / 5);
        assert_eq!(device_rate(0), shared.rate(RailId(0)), "the only rail's");
        assert_eq!(device_rate(1), device_rate(0), "its own, of the same");
        assert!(shared.install_rail(RailId(3), config(0)));
        assert_eq!(device_rate(3), device_rate(1), "taken over");
        learn([3, 2], 60);
        assert_eq!(device_rate(0), device_rate(2), "its own from then on");
        assert_ne!(device_rate(0), shared.rate(RailId(3)));
    }

    #[test]
    fn what_is_on_its_way_to_a_far_peer_keeps_nobody_from_a_near_one() {
        // The near rail was held to one slice at a time for as long as the far one was busy, and never learned better.
        let (rails, devices) = ([const { Rail::EMPTY }; 2], [const { Device::EMPTY }; 1]);
        let shared = Shared::new(&rails, &devices, &[], 64);
        let config = a_rail();
        let [near, far] = [0, 1].map(RailId);
        assert!(shared.install_device(DeviceId(0), config.estimate));
        let micros = Duration::from_micros;
        for (rail, delay_base) in [(near, micros(3)), (far, micros(100_000))] {
            let estimate = EstimateConfig {
                delay_base,
                ..config.estimate
            };
            assert!(shared.install_rail(rail, RailConfig { estimate, ..config }));
        }
        let now = Instant::ZERO + micros(1_000_000);
        let posted_at = Instant::ZERO + micros(900_000);
        let seen = |rail: RailId| {
            let sample = Sample {
                posted_at,
                seen_at: now,
                ahead_bytes: 0,
                bytes: 64,
            };
            shared.handle_observation(rail, &Observation::new(sample));
        };
        let room = || shared.healthy(near).map(|near| near.room(now, 64));
        let limit = || room().map(|room| room.device_limit);
        let before = limit();
        seen(far);
        let window = shared.window_bytes(far);
        assert!(before < Some(window), "{before:?} beside {window}");
        assert!(limit() >= Some(2 * window), "{:?} beside {window}", limit());
    }

    #[test]
    fn a_spare_changes_nothing_for_its_device() {
        let config = a_rail();
        let (rails, devices) = ([const { Rail::EMPTY }; 3], [const { Device::EMPTY }; 1]);
        let shared = Shared::new(&rails, &devices, &[], 64);
        let [rail, spare, none] = [0, 1, 3].map(RailId);
        assert!(shared.install_device(DeviceId(0), config.estimate));
        assert!(shared.install_spare(spare, rail, config));
        assert!(shared.install_rail(rail, config));
        assert!(!shared.install_spare(none, rail, config), "no such row");
        let only = || devices[0].only_rail.load(Relaxed);
        assert_eq!((only(), devices[0].is_shared()), (0, false));
        let fronts = || [rail, spare, none].map(|rail| shared.front_of(rail));
        assert_eq!(fronts(), [None, Some(rail), None]);
        let is_spare = |rail| shared.view(rail).map(|view| view.is_spare);
        assert_eq!(
            [rail, spare, none].map(is_spare),
            [Some(false), Some(true), None]
        );
        // Their rows are another peer's.
        assert!(shared.install_rail(rail, config) && shared.install_rail(spare, config));
        assert_eq!((fronts(), devices[0].is_shared()), ([None; 3], true));
    }

    #[test]
    fn one_worker_looks_at_an_idle_rail() {
        let rows = [Rail::EMPTY];
        let shared = Shared::new(&rows, &[], &[], 1);
        let interval = Duration::from_millis(5);
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        rows[0].speed.rate.store(1, Relaxed);
        // (at ms, whether it may)
        for (millis, claimed) in [(4, false), (5, true), (5, false), (9, false), (10, true)] {
            let did = shared.claim_rate_probe(at(millis), RailId(0), interval);
            assert_eq!(did, claimed, "{millis}");
        }
    }

    #[test]
    fn looks_take_a_small_part_of_a_rails_time_but_the_first_one_is_not_put_off() {
        // A rail that was told to be slow was not looked at for as long as that would have made it.
        let rows = [Rail::EMPTY];
        let shared = Shared::new(&rows, &[], &[], 65_536);
        let rate = Rate::from_bytes_per_sec(1_000_000);
        rows[0].speed.rate.store(rate.to_bits(), Relaxed);
        let claims = |millis: u64| {
            let now = Instant::ZERO + Duration::from_millis(millis);
            shared.claim_rate_probe(now, RailId(0), Duration::from_millis(5))
        };
        let mut looks = (0..2_000).filter(|millis| claims(*millis));
        // 4 KiB take 4.1 ms.
        let looks: [_; 4] = core::array::from_fn(|_| looks.next());
        assert_eq!(looks, [Some(5), Some(825), Some(1_645), None]);
    }

    #[test]
    fn a_rail_that_has_just_been_looked_at_has_not_stood_idle() {
        // Where a look takes longer than a rail has to stand idle for one, the next followed at once, for ever, and no slice
        // that is longer than what a look leaves of the window had its turn.
        let rows = [Rail::EMPTY];
        let shared = Shared::new(&rows, &[], &[], 65_536);
        let now = Instant::ZERO + Duration::from_millis(30);
        shared.handle_rate_probe(now, RailId(0), 4_096, Duration::from_millis(20));
        let used_at = shared.healthy(RailId(0)).map(|row| row.used_at());
        assert_eq!(used_at, Some(now));
    }

    #[test]
    fn workers_that_wait_are_woken_in_turn() {
        // (name, worker woken last, those who wait, whom worker 0 wakes)
        let cases = [
            ("nobody waits", 0, [false; 3], None),
            ("only itself", 0, [true, false, false], None),
            ("the next one", 0, [true, true, true], Some(1)),
            ("and the next", 1, [true, true, true], Some(2)),
            ("round, past itself", 2, [true, true, true], Some(1)),
            // It was passed over, so with two workers each was woken once in its life.
            ("the same one again", 1, [true, true, false], Some(1)),
        ];
        for (name, last, waits, woken) in cases {
            let rows = [const { Waiting::NO }; 3];
            let shared = Shared::new(&[], &[], &rows, 1);
            for (worker, waits) in (0..).zip(waits) {
                shared.set_waiting(worker, waits.then_some(Instant::ZERO));
            }
            assert_eq!(shared.next_waiting(last, 0), woken, "{name}");
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    extern crate std;
    use super::*;
    use loom::thread;
    use std::sync::Arc;
    use std::vec::Vec;

    const NOW: Instant = Instant::from_nanos(5_000_000);
    const RAIL: RailId = RailId(0);

    /// The tables of one rail on one device.
    struct Rows {
        rails: [Rail; 1],
        devices: [Device; 1],
    }

    impl Rows {
        fn new() -> Arc<Self> {
            let rows = Self {
                rails: [Rail::EMPTY],
                devices: [Device::EMPTY],
            };
            let config = a_rail();
            let shared = rows.shared();
            assert!(shared.install_device(DeviceId(0), config.estimate));
            assert!(shared.install_rail(RAIL, config));
            assert_eq!(rows.inflight(), (0, 0));
            Arc::new(rows)
        }

        fn shared(&self) -> Shared<'_> {
            Shared::new(&self.rails, &self.devices, &[], 64)
        }

        /// Bytes in flight on the rail and on its device.
        fn inflight(&self) -> (u64, u64) {
            let device = self.devices[0].inflight_bytes.load(Relaxed);
            (self.shared().inflight_bytes(RAIL), device)
        }
    }

    /// What two workers answer that do so at once, this thread being one of them.
    fn both<T: 'static>(rows: &Arc<Rows>, call: fn(Shared<'_>) -> T) -> [T; 2] {
        let other = Arc::clone(rows);
        let thread = thread::spawn(move || call(other.shared()));
        let own = call(rows.shared());
        [own, thread.join().unwrap()]
    }

    #[test]
    fn together_workers_reserve_no_more_than_the_limit() {
        loom::model(|| {
            let rows = Rows::new();
            let took = both(&rows, |shared| {
                let fits = |bytes: &u64| shared.reserve(NOW, RAIL, *bytes, 100).is_some();
                [60, 30].into_iter().filter(fits).sum::<u64>()
            });
            let bytes = took.iter().sum();
            assert!((30..=100).contains(&bytes), "{took:?}");
            assert_eq!(rows.inflight(), (bytes, bytes));
        });
    }

    #[test]
    fn an_empty_rail_takes_one_slice_above_the_limit_and_no_second() {
        loom::model(|| {
            let rows = Rows::new();
            let took = both(&rows, |shared| shared.reserve(NOW, RAIL, 60, 10));
            let mut took = Vec::from(took);
            took.sort_unstable();
            assert_eq!(took, [None, Some(0)]);
            assert_eq!(rows.inflight(), (60, 60));
        });
    }

    #[test]
    fn what_is_given_back_is_what_was_taken() {
        loom::model(|| {
            let rows = Rows::new();
            both(&rows, |shared| {
                if shared.reserve(NOW, RAIL, 60, 100).is_some() {
                    assert!(shared.inflight_bytes(RAIL) >= 60);
                    shared.release(RAIL, 60);
                }
            });
            assert_eq!(rows.inflight(), (0, 0));
        });
    }

    #[test]
    fn one_of_two_workers_looks_at_an_idle_rail() {
        loom::model(|| {
            let rows = Rows::new();
            let claimed = both(&rows, |shared| {
                shared.claim_rate_probe(NOW, RAIL, Duration::from_millis(5))
            });
            assert_ne!(claimed[0], claimed[1]);
        });
    }

    #[test]
    fn an_incident_that_both_workers_notice_counts_once() {
        loom::model(|| {
            let rows = Rows::new();
            let first = both(&rows, |shared| {
                shared.handle_incident(NOW, RAIL, HealthMode::Decay, Incident::Silence)
            });
            assert_ne!(first[0], first[1]);
            assert!(rows.shared().healthy(RAIL).is_none());
        });
    }
}
