//! How fast a rail is: what is learned, and what choosing needs of it.

use core::sync::atomic::Ordering::*;

use spin::Mutex;

use super::estimate::{Delay, Estimate, EstimateConfig, Observation, WINDOW_SLICES};
use crate::sync::{AtomicU32, AtomicU64};
use crate::time::Duration;
use crate::units::Rate;

/// Bytes a second in which rates are added up.
pub(crate) const RATE_UNIT: u64 = 1 << 16;

/// A rate in whole units, at least one.
pub(crate) fn units_of(rate: Rate) -> u64 {
    (rate.bytes_per_sec() / RATE_UNIT).max(1)
}

/// The same, as an atomic keeps it.
pub(super) fn kept_units(rate: Rate) -> u32 {
    u32::try_from(units_of(rate)).unwrap_or(u32::MAX)
}

/// How fast a rail is: the estimate behind a lock, and what choosing needs of it in atomics.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Speed {
    pub(super) rate: AtomicU64,
    pub(super) delay_base: AtomicU32,
    /// Of all slices, and at least what one took that met an empty rail.
    pub(super) delay_mean: AtomicU32,
    /// 4 GiB and more are the same.
    pub(super) window_bytes: AtomicU32,
    pub(super) slice_bytes: AtomicU32,
    pub(super) part_bytes: AtomicU32,
    /// See [`RATE_UNIT`].
    pub(super) units: AtomicU32,
    /// What slices have shown, or as long as there are none the last look.
    pub(super) units_shown: AtomicU32,
    pub(super) estimate: Mutex<Option<Estimate>>,
}

impl Speed {
    #[allow(clippy::declare_interior_mutable_const)]
    pub(super) const EMPTY: Self = Self {
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

    pub(super) fn install(&self, config: EstimateConfig, slice_bytes: u32) {
        let mut estimate = self.estimate.lock();
        self.publish(estimate.insert(Estimate::new(config)), slice_bytes, false);
        self.units_shown.store(0, Relaxed);
    }

    #[inline(always)] // one stretch of arithmetic with little to keep
    pub(super) fn learn(&self, slice_bytes: u32, seen: &Observation, is_kept: bool) {
        if let Some(estimate) = self.estimate.lock().as_mut() {
            estimate.handle_observation(seen);
            self.publish(estimate, slice_bytes, is_kept);
            self.units_shown.store(self.units.load(Relaxed), Relaxed);
        }
    }

    pub(super) fn update(&self, slice_bytes: u32, learn: impl FnOnce(&mut Estimate)) {
        if let Some(estimate) = self.estimate.lock().as_mut() {
            learn(estimate);
            self.publish(estimate, slice_bytes, false);
        }
    }

    /// While its device `is_kept`, what is not urgent fills the window but for its queue, and one slice: see [`Device::limit`].
    ///
    /// [`Device::limit`]: super::Device::limit
    #[inline(always)] // see `Self::learn`
    pub(super) fn publish(&self, estimate: &mut Estimate, slice_bytes: u32, is_kept: bool) {
        self.rate.store(estimate.rate().to_bits(), Relaxed);
        self.delay_base
            .store(estimate.kept_delay_base().to_bits(), Relaxed);
        self.delay_mean
            .store(estimate.kept_delay_mean().to_bits(), Relaxed);
        let window = estimate.window_bytes(slice_bytes);
        let (whole, part) = (
            estimate.slice_bytes(slice_bytes),
            estimate.part_bytes(slice_bytes),
        );
        let slice = u64::from(whole);
        estimate.handle_window(match is_kept {
            true => window.saturating_sub(WINDOW_SLICES * slice) + slice,
            false => window,
        });
        let window = u32::try_from(window).unwrap_or(u32::MAX);
        self.window_bytes.store(window, Relaxed);
        self.units.store(kept_units(estimate.rate()), Relaxed);
        debug_assert!(
            0 < part && part <= whole,
            "parts of {part} bytes of slices of {whole}"
        );
        self.slice_bytes.store(whole, Relaxed);
        self.part_bytes.store(part, Relaxed);
    }

    pub(super) fn rate(&self) -> Rate {
        Rate::from_bits(self.rate.load(Relaxed))
    }

    /// See [`RATE_UNIT`].
    pub(super) fn units(&self) -> u64 {
        self.units.load(Relaxed).into()
    }

    /// A look at an empty rail that has carried nothing yet: so many bytes pass in so long, the base delay apart.
    pub(super) fn show(&self, bytes: u64, took: Duration) {
        let passed = Rate::from_bytes_in(bytes, took.minus(self.delay_base()));
        self.units_shown.store(kept_units(passed), Relaxed);
    }

    pub(super) fn delay_base(&self) -> Duration {
        Delay::span_of(self.delay_base.load(Relaxed))
    }

    pub(super) fn delay_mean(&self) -> Duration {
        Delay::span_of(self.delay_mean.load(Relaxed))
    }

    /// Whether no processor carries its bytes.
    pub(super) fn carries_itself(&self) -> bool {
        let estimate = self.estimate.lock();
        estimate.as_ref().is_some_and(Estimate::carries_itself)
    }

    /// What it may be able to pass.
    pub(super) fn rate_most(&self) -> Rate {
        let estimate = self.estimate.lock();
        let rate = estimate.as_ref().map(Estimate::rate_most);
        rate.unwrap_or(Rate::SLOWEST)
    }

    /// All that has been learned; `None`: nothing yet.
    pub(super) fn learned(&self) -> Option<Estimate> {
        let estimate = *self.estimate.lock();
        estimate.filter(Estimate::has_learned)
    }

    pub(super) fn rate_nominal(&self) -> Rate {
        let estimate = self.estimate.lock();
        estimate.map_or(Rate::SLOWEST, |estimate| estimate.rate_nominal())
    }
}
