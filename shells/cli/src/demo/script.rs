//! What is done to the rails, and when.

use std::time::Duration;

use polyrail::Faults;
use polyrail_core::units::RailId;

use super::story;
use crate::timeline::Bucket;

/// The rail that is cut and restored.
pub(super) const CUT: RailId = RailId(2);

/// What each rail is paced at, in bytes a second. The second is the slow one.
const PACES: [u64; 4] = [160_000_000, 60_000_000, 160_000_000, 160_000_000];

/// Everything that leaves by the device of a rail: that, and its spare, which stands behind all rails.
fn by_device_of(rail: RailId) -> [RailId; 2] {
    [rail, RailId(rail.0 + PACES.len() as u16)]
}

/// How long to wait for the cut rail after the end.
const GRACE: Duration = Duration::from_secs(10);

/// The paces in words.
pub(super) fn paces_text() -> String {
    let texts: Vec<String> = PACES
        .iter()
        .map(|pace| (pace / 1_000_000).to_string())
        .collect();
    format!("{} MB/s", texts.join(", "))
}

/// The course of the demonstration.
pub(super) struct Script<'a> {
    faults: &'a Faults,
    length: Duration,
    cut_at: Option<Duration>,
    restored_at: Option<Duration>,
}

impl<'a> Script<'a> {
    /// Paces the rails. The rest follows in [`Self::play`].
    pub(super) fn new(length: Duration, faults: &'a Faults) -> Self {
        for (rail, pace) in (0..).zip(PACES) {
            for rail in by_device_of(RailId(rail)) {
                faults.slow(rail, Some(pace));
            }
        }
        Self {
            faults,
            length,
            cut_at: None,
            restored_at: None,
        }
    }

    /// Does what is due.
    pub(super) fn play(&mut self, elapsed: Duration) {
        if self.cut_at.is_none() && elapsed >= self.length / 3 {
            by_device_of(CUT)
                .into_iter()
                .for_each(|rail| self.faults.cut(rail));
            self.cut_at = Some(elapsed);
        }
        if self.restored_at.is_none() && elapsed >= self.length * 2 / 3 {
            by_device_of(CUT)
                .into_iter()
                .for_each(|rail| self.faults.restore(rail));
            self.restored_at = Some(elapsed);
        }
    }

    /// Whether everything has been shown.
    pub(super) fn is_over(&self, elapsed: Duration, buckets: &[Bucket]) -> bool {
        let shown = || story::used_again(buckets, self.restored_at()).is_some();
        elapsed >= self.length && (elapsed >= self.length + GRACE || shown())
    }

    /// Whether the rail is cut now.
    pub(super) fn is_cut(&self) -> bool {
        self.cut_at.is_some() && self.restored_at.is_none()
    }

    /// When it was cut, or never.
    pub(super) fn cut_at(&self) -> Duration {
        self.cut_at.unwrap_or(Duration::MAX)
    }

    /// When it was restored, or never.
    pub(super) fn restored_at(&self) -> Duration {
        self.restored_at.unwrap_or(Duration::MAX)
    }
}
