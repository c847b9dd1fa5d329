//! Faults on purpose: SKELETON, being written on another branch.
#![allow(missing_docs, unused_variables)]
use polyrail_core::time::Duration;
use polyrail_core::units::RailId;

/// Faults in force, rail by rail; changed from any thread at any time.
#[derive(Debug, Default)]
pub struct Faults(());
impl Faults {
    pub fn new() -> Self {
        Self(())
    }
    /// Paces the rail to so many bytes a second; `None` lifts it.
    pub fn slow(&self, rail: RailId, bytes_per_sec: Option<u64>) {
        unimplemented!()
    }
    /// Silently drops off the rail: nothing goes through, nothing comes back, nobody is told.
    pub fn cut(&self, rail: RailId) {
        unimplemented!()
    }
    /// Ends the cut.
    pub fn restore(&self, rail: RailId) {
        unimplemented!()
    }
    /// Delays every completion on the rail by so much.
    pub fn delay(&self, rail: RailId, by: Duration) {
        unimplemented!()
    }
}
