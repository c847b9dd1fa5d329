//! One rail as workers share it.

use core::sync::atomic::Ordering::*;

use super::NIL;
use super::device::Device;
use super::estimate::{EstimateConfig, Observation};
use super::health::{RailHealth, RailState};
use super::speed::Speed;
use super::spray::{Load, Room};
use crate::sync::{AtomicU32, AtomicU64};
use crate::time::{Duration, Instant};
use crate::units::{DeviceId, PeerId, RailId, Rate};

/// In place of the limit of a window.
pub(super) const NO_CAP: u32 = u32::MAX;

/// What a shell says of a rail when it installs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RailConfig {
    /// Whom it reaches.
    pub peer: PeerId,
    /// The local device it runs on.
    pub device: DeviceId,
    /// The peer's device that it ends at, if rails from several local devices do: a row of the same table that is no local device's.
    /// A slice then waits for what they all have in flight there, too. `None`: no other rail of this engine ends there, or it is
    /// not known.
    pub far: Option<DeviceId>,
    /// What is known of its speed.
    pub estimate: EstimateConfig,
}

/// One rail, shared. Rows are the caller's memory; their content is [`Shared`](super::Shared)'s business.
///
/// Cache lines that no other rail is on: what slices count, what choosing reads, and, the rest, what is learned.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Rail {
    pub(super) inflight_bytes: AtomicU64,
    pub(super) used_at: AtomicU64,
    /// Bytes acknowledged since the rail was installed.
    pub(super) done_bytes: AtomicU64,
    pub(super) done_at: AtomicU64,
    pub(super) probed_at: AtomicU64,
    /// Limit of the window while the rail comes back after an outage; the greatest number: none.
    pub(super) window_cap: AtomicU32,
    /// Its peer and its device, 16 bits each.
    pub(super) ends: AtomicU32,
    /// The peer's device that it ends at, if others do as well; [`NIL`]: none do.
    pub(super) far: AtomicU32,
    /// The rail that it stands in for; [`NIL`]: it is no spare.
    pub(super) stands_in_for: AtomicU32,
    /// Slices that were sent over it after they had been sent before.
    pub(super) sent_again: AtomicU32,
    pub(super) health: RailHealth,
    pub(super) speed: Speed,
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
        window_cap: AtomicU32::new(NO_CAP),
        ends: AtomicU32::new(NIL),
        far: AtomicU32::new(NIL),
        stands_in_for: AtomicU32::new(NIL),
        sent_again: AtomicU32::new(0),
        health: RailHealth::new(),
        speed: Speed::EMPTY,
    };

    /// The window, smaller while the rail comes back after an outage.
    pub(super) fn window_bytes(&self) -> u64 {
        let window = self.speed.window_bytes.load(Relaxed);
        u64::from(window.min(self.window_cap.load(Relaxed)))
    }

    /// All that predicting needs to know of it, in one look.
    pub(super) fn load(&self, now: Instant, device: Option<&Device>, devices: &[Device]) -> Load {
        let speed = (self.speed.rate(), self.speed.delay_base());
        let (rate, delay_base) = speed;
        let far = self.far(devices);
        Load {
            rate,
            delay_base,
            sent: device.map_or(Duration::ZERO, |device| device.sent(now, speed)),
            inflight_bytes: self.inflight_bytes.load(Relaxed),
            device_bytes: device.map_or(0, Device::all_bytes),
            device_rate: device.map_or(rate, Device::rate),
            far_wait: far.map_or(Duration::ZERO, |far| wait_at(far, now, speed)),
        }
    }

    /// See [`Shared::reserve`](super::Shared::reserve).
    pub(super) fn reserve(
        &self,
        device: Option<&Device>,
        devices: &[Device],
        now: Instant,
        bytes: u64,
        limit: u64,
    ) -> Option<u64> {
        debug_assert!(bytes > 0, "room for nothing");
        let ahead = self.inflight_bytes.fetch_add(bytes, AcqRel);
        debug_assert!(
            ahead.checked_add(bytes).is_some(),
            "{ahead} bytes in flight: more was given back than taken"
        );
        if ahead != 0 && ahead.saturating_add(bytes) > limit {
            self.inflight_bytes.fetch_sub(bytes, AcqRel);
            return None;
        }
        if let Some(device) = device {
            device.push(now, bytes, self.speed.rate());
        }
        if let Some(far) = self.far(devices) {
            push_at(far, now, bytes, self.speed.rate());
        }
        self.used_at.store(now.as_nanos(), Relaxed);
        Some(ahead)
    }

    /// Doubles a returning rail's window per window completed, more slowly after flaps, until it is no limit.
    #[cold]
    pub(super) fn widen(&self, now: Instant, bytes: u64) {
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
    pub(super) fn peer(&self) -> Option<PeerId> {
        let ends = self.ends.load(Acquire);
        (ends != NIL).then_some(PeerId((ends >> 16) as u16))
    }

    /// The rail that it stands in for; `None`: it is no spare.
    pub(super) fn stands_in_for(&self) -> Option<RailId> {
        let rail = self.stands_in_for.load(Relaxed);
        (rail != NIL).then_some(RailId(rail as u16))
    }

    /// The device that it runs on; the last number if the row is not in use.
    pub(super) fn device(&self) -> DeviceId {
        DeviceId(self.ends.load(Relaxed) as u16)
    }

    /// The peer's device that it ends at, if others do as well.
    #[inline(always)] // a comparison in front of what is rare
    pub(super) fn far<'a>(&self, devices: &'a [Device]) -> Option<&'a Device> {
        let far = self.far.load(Relaxed);
        if far == NIL {
            return None;
        }
        devices.get(far as usize)
    }
}

/// How long a slice waits at a device of the peer.
#[cold]
fn wait_at(far: &Device, now: Instant, speed: (Rate, Duration)) -> Duration {
    far.wait(now, speed)
}

#[cold]
fn push_at(far: &Device, now: Instant, bytes: u64, rail: Rate) {
    far.push(now, bytes, rail);
}

#[cold]
fn learn_at(far: &Device, seen: &Observation) {
    far.learn(seen);
}

/// A rail, to tell it what has completed there.
pub(crate) struct Known<'a> {
    pub(super) rail: RailId,
    pub(super) row: &'a Rail,
    pub(super) device: Option<&'a Device>,
    /// All of them.
    pub(super) devices: &'a [Device],
    /// The usual slice.
    pub(super) slice_bytes: u32,
}

impl Known<'_> {
    /// Whom it reaches; `None`: its row is not in use.
    pub(crate) fn peer(&self) -> Option<PeerId> {
        self.row.peer()
    }

    /// Gives room back.
    pub(crate) fn release(&self, bytes: u64) {
        let before = self.row.inflight_bytes.fetch_sub(bytes, AcqRel);
        debug_assert!(before >= bytes, "{bytes} bytes given back of {before}");
        if let Some(device) = self.device {
            device.release(bytes);
        }
        if let Some(far) = self.row.far(self.devices) {
            far.release(bytes);
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
        let (row, device) = (self.row, self.device);
        self.carried(seen.seen_at(), seen.bytes());
        let is_kept = device.is_some_and(|device| device.is_kept(seen.seen_at()));
        row.speed.learn(self.slice_bytes, seen, is_kept);
        if let Some(device) = device {
            if device.only_rail.load(Relaxed) == u32::from(self.rail.0) {
                device.rate.store(row.speed.rate.load(Relaxed), Relaxed);
            } else {
                device.learn(seen);
                device.note_window(row.speed.window_bytes.load(Relaxed));
            }
        }
        if let Some(far) = row.far(self.devices) {
            learn_at(far, seen);
        }
        if row.window_cap.load(Relaxed) != NO_CAP {
            row.widen(seen.seen_at(), seen.bytes());
        }
    }
}

/// A healthy rail, to look at.
pub(crate) struct Healthy<'a> {
    pub(super) row: &'a Rail,
    pub(super) device: Option<&'a Device>,
    /// All of them.
    pub(super) devices: &'a [Device],
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
    pub(crate) fn load(&self, now: Instant) -> Load {
        self.row.load(now, self.device, self.devices)
    }

    /// The device that it runs on.
    pub(crate) fn device(&self) -> DeviceId {
        self.row.device()
    }

    /// The peer's device that it ends at, as its row has it.
    pub(crate) fn far(&self) -> u32 {
        self.row.far.load(Relaxed)
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

/// The window of a rail that comes back starts here and doubles with each window completed.
pub(super) const RETURN_WINDOW_BYTES: u32 = 128 * 1024;

/// It is lifted once it reaches this much of the rail's rate.
pub(super) const RETURN_WINDOW_SPAN: Duration = Duration::from_millis(1);

/// A rail at a glance, for the program and for output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailView {
    /// It stands in for another one: see [`Shared::install_spare`](super::Shared::install_spare).
    pub is_spare: bool,
    /// Where it stands.
    pub state: RailState,
    /// Bytes acknowledged since it was installed, both directions.
    pub done_bytes: u64,
    /// Bytes in flight.
    pub inflight_bytes: u64,
    /// Slices that were sent over it after they had been sent before, over this or another rail, since it was installed. Wraps.
    pub sent_again: u32,
    /// Learned rate.
    pub rate: Rate,
}

/// One of a peer, on a device of 1 GB/s.
#[cfg(test)]
pub(super) const fn a_rail() -> RailConfig {
    RailConfig {
        peer: PeerId(0),
        device: DeviceId(0),
        far: None,
        estimate: EstimateConfig {
            rate_nominal: Rate::from_bytes_per_sec(1_000_000_000),
            delay_base: Duration::ZERO,
            tier: 0,
            slice_span: Duration::ZERO,
            batch_span: Duration::ZERO,
        },
    }
}
