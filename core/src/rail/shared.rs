//! The tables that all workers of an engine share, and what each asks of them.

use core::sync::atomic::Ordering::*;

use super::NIL;
use super::device::Device;
use super::estimate::{Estimate, EstimateConfig, Observation};
use super::health::{HealthMode, Incident, RailHealth};
use super::row::{Healthy, Known, NO_CAP, RETURN_WINDOW_BYTES, Rail, RailConfig, RailView};
use super::speed::units_of;
use super::spray::{Line, Load};
use crate::sync::AtomicU64;
use crate::time::{Duration, Instant};
use crate::units::{DeviceId, PeerId, RailId, Rate};

/// "Not waiting", in the table of who waits since when.
const NOT_WAITING: u64 = u64::MAX;

/// So long a device is kept for more of the kind after something urgent has taken it.
const KEPT_SPAN: Duration = Duration::from_millis(4);

/// A look at an idle rail's speed takes about this long, and four base delays, if the rail is as slow as known.
const RATE_PROBE_SPAN: Duration = Duration::from_micros(20);

/// Or, if that is longer, one part in so many of the time for which the rail has carried nothing, up to
/// [`RATE_PROBE_SPAN_MAX`]: bytes that pass sooner than looks are seen do not tell a fast rail from a slow one. Looks that are
/// seen later than that still do not.
const RATE_PROBE_IDLE: u64 = 400;

/// See [`RATE_PROBE_IDLE`].
const RATE_PROBE_SPAN_MAX: Duration = Duration::from_millis(2);

/// In when a rail was looked at last: it was not, somebody has only asked. No look is at an odd nanosecond.
const ONLY_ASKED: u64 = 1;

/// In any case it is of at least so many bytes.
const RATE_PROBE_BYTES_MIN: u64 = 4 * 1024;

/// Looks take at most one part in so many of a rail's time.
const RATE_PROBE_REST: u64 = 200;

/// Since when a worker has had bytes that no rail took. Rows are the caller's memory, one for each worker.
#[derive(Debug)]
pub struct Waiting(AtomicU64);

impl Waiting {
    /// Not waiting, for the arrays that a caller hands in.
    #[allow(clippy::declare_interior_mutable_const)] // a pattern to repeat, not a shared value
    pub const NO: Self = Self(AtomicU64::new(NOT_WAITING));

    /// The cell.
    #[cfg(feature = "serde")]
    pub(super) fn since(&self) -> &AtomicU64 {
        &self.0
    }
}

/// What the workers of an engine share, over tables that the caller owns. All methods take `&self`. It is
/// only a view: any number of them over the same tables are the same thing.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    pub(super) rails: &'a [Rail],
    pub(super) devices: &'a [Device],
    pub(super) waiting: &'a [Waiting],
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
    /// [`crate::orchestrator::Orchestrator::forget_peer`]. `false` if there is no such row, or none for a
    /// device at one of its ends, or one for both.
    pub fn install_rail(&self, rail: RailId, config: RailConfig) -> bool {
        if let Some(device) = self.devices.get(config.device.index()) {
            self.count_rail(rail, config.device, device);
        }
        self.install(rail, None, config)
    }

    /// The same for a spare: it carries slices only while the rail that it stands in for is not healthy, or stands still. Both are on the same
    /// device and in the same plans, and that one is no spare. What the device learns, it learns as if the spare were not there.
    pub fn install_spare(&self, rail: RailId, stands_in_for: RailId, config: RailConfig) -> bool {
        debug_assert!(
            self.front_of(stands_in_for).is_none() && rail != stands_in_for,
            "rail {} stands in for a spare",
            rail.0
        );
        debug_assert!(
            self.peer(stands_in_for) != Some(config.peer)
                || self.device_of(stands_in_for) == Some(config.device),
            "rail {} stands in for one on another device",
            rail.0
        );
        self.install(rail, Some(stands_in_for), config)
    }

    fn install(&self, rail: RailId, stands_in_for: Option<RailId>, config: RailConfig) -> bool {
        let has_row = |device: DeviceId| self.devices.get(device.index()).is_some();
        let has_devices = has_row(config.device)
            && config.far.is_none_or(has_row)
            && config.far != Some(config.device);
        let Some(row) = self.rails.get(rail.index()).filter(|_| has_devices) else {
            return false;
        };
        debug_assert!(
            row.inflight_bytes.load(Relaxed) == 0,
            "rail {} is installed with {} bytes in flight",
            rail.0,
            row.inflight_bytes.load(Relaxed)
        );
        let of = stands_in_for.map_or(NIL, |of| of.0.into());
        row.stands_in_for.store(of, Relaxed);
        row.speed.install(config.estimate, self.slice_bytes);
        let counters = [&row.done_bytes, &row.used_at, &row.done_at, &row.probed_at];
        for counter in counters {
            counter.store(0, Relaxed);
        }
        row.window_cap.store(NO_CAP, Relaxed);
        row.sent_again.store(0, Relaxed);
        row.health.reset();
        let far = config.far.map_or(NIL, |far| far.0.into());
        row.far.store(far, Relaxed);
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

    /// Says how many bytes other processes of the host have in flight on a device, weighted: see [`diffusion`](super::diffusion). From
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
            sent_again: row.sent_again.load(Relaxed),
            rate: row.speed.rate(),
        })
    }

    /// A slice goes over a rail that has been sent before.
    pub(crate) fn count_again(&self, rail: RailId) {
        if let Some(row) = self.rails.get(rail.index()) {
            row.sent_again.fetch_add(1, Relaxed);
        }
    }

    /// Whom a rail reaches.
    pub fn peer(&self, rail: RailId) -> Option<PeerId> {
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

    /// The same of a rail and those that share its device, together.
    pub(crate) fn units_together(&self, rail: RailId) -> u64 {
        let device = self.device_of(rail);
        let device = device.and_then(|device| self.devices.get(device.index()));
        let shared = device.filter(|device| device.is_shared());
        let together = shared.map_or(0, |device| units_of(device.rate()));
        together.max(self.rate_units(rail))
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

    /// Whether no processor carries its bytes.
    pub(crate) fn carries_itself(&self, rail: RailId) -> bool {
        let row = self.rails.get(rail.index());
        row.is_some_and(|row| row.speed.carries_itself())
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

    /// How long slices have taken lately beyond their own time and that of the bytes before them, and at least what one took
    /// that met an empty rail. It is longer than the base delay where that was told too short.
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
            devices: self.devices,
        })
    }

    /// All that predicting needs to know of a rail.
    pub(crate) fn load(&self, now: Instant, rail: RailId) -> Option<Load> {
        let row = self.rails.get(rail.index())?;
        Some(row.load(now, self.device(row), self.devices))
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
        row.reserve(self.device(row), self.devices, now, bytes, limit)
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
            devices: self.devices,
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

    /// How much to send over a rail that has carried nothing for so long, to see how fast it is: a slice, but less on one that
    /// seems slow, so that looking again soon costs it little. Still enough for the bytes to take longer than the delay.
    fn rate_probe_bytes(&self, row: &Rail, idle: Duration) -> u32 {
        let span_idle = idle.divided_by(RATE_PROBE_IDLE).min(RATE_PROBE_SPAN_MAX);
        let span = (RATE_PROBE_SPAN + row.speed.delay_base().times(4)).max(span_idle);
        let bytes = row.speed.rate().bytes_in(span).max(RATE_PROBE_BYTES_MIN);
        u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .min(self.slice_bytes)
    }

    /// Claims a look at an idle rail's speed, if it is due: `interval` after its last completion, and after the
    /// last look or longer, so that probes take at most one part in 200 of the rail's time. How much to send, for one
    /// worker only.
    ///
    /// One that was never used is looked at when this is asked first, or, if it is one of those `in_use`, `interval` after that:
    /// then all of them are about to be used, and a look would show what no slice gets.
    pub(crate) fn claim_rate_probe(
        &self,
        now: Instant,
        rail: RailId,
        (interval, in_use): (Duration, bool),
    ) -> Option<u32> {
        let row = self.rails.get(rail.index())?;
        let done = Instant::from_nanos(row.done_at.load(Relaxed));
        let bytes = self.rate_probe_bytes(row, now.since(done));
        let cost = row.speed.rate().time_for(bytes.into());
        // Read once: who claims must have found due what it replaces.
        let before = row.probed_at.load(Relaxed);
        let probed = Instant::from_nanos(before & !ONLY_ASKED);
        // The first look is not put off by what was only told.
        let rest = match before == 0 || before & ONLY_ASKED != 0 {
            true => interval,
            false => interval.max(cost.times(RATE_PROBE_REST)),
        };
        let is_new = before == 0 && done == Instant::ZERO;
        let is_due = match is_new {
            true => !in_use,
            false => (done + interval).max(probed + rest) <= now,
        };
        let at = match is_due {
            true => (now.as_nanos() & !ONLY_ASKED).max(ONLY_ASKED + 1),
            false if is_new => now.as_nanos() | ONLY_ASKED,
            false => return None,
        };
        let replaced = row.probed_at.compare_exchange(before, at, AcqRel, Relaxed);
        (is_due && replaced.is_ok()).then_some(bytes)
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
    #[inline(always)] // most policies have one mode, and no code for the other
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
