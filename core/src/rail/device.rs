//! One local device as all rails on it share it.

use core::sync::atomic::Ordering::*;

use spin::Mutex;

use super::NIL;
use super::estimate::{Estimate, EstimateConfig, Observation, WINDOW_SLICES};
use super::speed::units_of;
use super::spray::Room;
use crate::sync::{AtomicU32, AtomicU64};
use crate::time::{Duration, Instant};
use crate::units::Rate;

/// Windows that what is not urgent may have in flight on one device, whatever the number of peers: one is served, one is ready.
pub(super) const DEVICE_WINDOWS: u64 = 2;

/// A large window is remembered for about so many completions.
pub(super) const WINDOW_MEMORY: u32 = 1 << 10;

/// One local device, shared by all rails on it. Rows are the caller's memory.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Device {
    pub(super) inflight_bytes: AtomicU64,
    /// As the shell has said last; beside what is read with it.
    pub(super) others_bytes: AtomicU64,
    /// How fast it is.
    pub(super) rate: AtomicU64,
    /// When it will have sent all that has been posted, if it is as fast as that. Of two workers that post at once one may be
    /// forgotten; [`Self::sent`] has a bound for that.
    pub(super) free_at: AtomicU64,
    /// Until when something urgent may come again, in nanoseconds.
    pub(super) kept_until: AtomicU64,
    /// The only rail on it, which knows all that there is to learn of it; [`NIL`]: there are several, or none.
    pub(super) only_rail: AtomicU32,
    /// The largest window of a rail on it lately, if there are several.
    pub(super) window_bytes: AtomicU32,
    pub(super) estimate: Mutex<Option<Estimate>>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Device>() <= 384);

impl Device {
    /// A row not in use, for the arrays that a caller hands in.
    #[allow(clippy::declare_interior_mutable_const)] // a pattern to repeat, not a shared value
    pub const EMPTY: Self = Self {
        inflight_bytes: AtomicU64::new(0),
        others_bytes: AtomicU64::new(0),
        rate: AtomicU64::new(u64::MAX),
        free_at: AtomicU64::new(0),
        kept_until: AtomicU64::new(0),
        only_rail: AtomicU32::new(NIL),
        window_bytes: AtomicU32::new(0),
        estimate: Mutex::new(None),
    };

    pub(super) fn install(&self, config: EstimateConfig) {
        let mut known = self.estimate.lock();
        self.publish(known.insert(Estimate::new(config)));
        self.only_rail.store(NIL, Relaxed);
        self.free_at.store(0, Relaxed);
    }

    /// Takes so many bytes more, for a rail of this rate.
    pub(super) fn push(&self, now: Instant, bytes: u64, rail: Rate) {
        let free_at = Instant::from_nanos(self.free_at.load(Relaxed)).max(now);
        let free_at = free_at + self.rate_for(rail).time_for(bytes);
        self.free_at.store(free_at.as_nanos(), Relaxed);
        self.inflight_bytes.fetch_add(bytes, AcqRel);
    }

    /// How long it took for what has left it and still counts as in flight, seen from a rail of this rate and base delay. No more
    /// can be on its way than leaves in that time: if more seems to be, the device is slower than is known.
    pub(super) fn sent(&self, now: Instant, (rail, delay_base): (Rate, Duration)) -> Duration {
        let busy = Instant::from_nanos(self.free_at.load(Relaxed)).since(now);
        let bytes = self.inflight_bytes.load(Relaxed);
        let all = self.rate_for(rail).time_for(bytes);
        all.minus(busy).min(delay_base)
    }

    /// How long a slice waits there for what has not left it.
    pub(super) fn wait(&self, now: Instant, speed: (Rate, Duration)) -> Duration {
        let all = self.rate_for(speed.0).time_for(self.all_bytes());
        all.minus(self.sent(now, speed))
    }

    /// How fast it is for a rail of this rate: at least as fast, whatever slow peers have made it look like.
    fn rate_for(&self, rail: Rate) -> Rate {
        self.rate().max(rail)
    }

    /// Gives room back.
    pub(super) fn release(&self, bytes: u64) {
        let before = self.inflight_bytes.fetch_sub(bytes, AcqRel);
        debug_assert!(before >= bytes, "{bytes} bytes given back of {before}");
    }

    /// Learns from slices that completed on one of several rails.
    #[inline(always)] // called in two places, of which one is rare, it would not be
    pub(super) fn learn(&self, seen: &Observation) {
        if let Some(estimate) = self.estimate.lock().as_mut() {
            estimate.learn_rate(seen);
            self.publish(estimate);
        }
    }

    /// A rail on it has such a window. Much larger ones of others are forgotten after some thousand of these.
    pub(super) fn note_window(&self, bytes: u32) {
        let largest = self.window_bytes.load(Relaxed);
        let largest = largest - largest / WINDOW_MEMORY;
        self.window_bytes.store(largest.max(bytes), Relaxed);
    }

    /// Has learned what its only rail has until now.
    pub(super) fn take_over(&self, learned: &Estimate) {
        if let Some(estimate) = self.estimate.lock().as_mut() {
            estimate.take_over(learned);
            self.publish(estimate);
        }
    }

    pub(super) fn publish(&self, estimate: &Estimate) {
        self.rate.store(estimate.rate().to_bits(), Relaxed);
    }

    pub(super) fn rate(&self) -> Rate {
        Rate::from_bits(self.rate.load(Relaxed))
    }

    /// Whether several rails are on it.
    pub(super) fn is_shared(&self) -> bool {
        self.only_rail.load(Relaxed) == NIL
    }

    /// Whether what is urgent has taken it lately.
    pub(super) fn is_kept(&self, now: Instant) -> bool {
        now.as_nanos() < self.kept_until.load(Relaxed)
    }

    /// How many bytes may be in flight on it, of what is not urgent: two windows of the rail that asks, as long as they would
    /// be if the rail were as fast as the device, or of the rail whose window is the largest: what is on its way to a far peer keeps
    /// nobody from a near one. While it is kept, what is on its way, and one slice.
    pub(super) fn limit(&self, room: &Room, rail_units: u64, slice_bytes: u32) -> u64 {
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
    pub(super) fn all_bytes(&self) -> u64 {
        let own = self.inflight_bytes.load(Relaxed);
        own.saturating_add(self.others_bytes.load(Relaxed))
    }
}
