//! What workers do to rails at once.

extern crate std;
use super::health::{HealthMode, Incident};
use super::*;
use crate::time::{Duration, Instant};
use crate::units::{DeviceId, RailId};
use core::sync::atomic::Ordering::*;
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
            let claim = shared.claim_rate_probe(NOW, RAIL, (Duration::from_millis(5), false));
            claim.is_some()
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
