//! Faults by chance or by choice: posts that are refused, in whole or in part, and completions that are spoilt.
//!
//! Source: TENT failover document, "FaultProxyTransport", for the four policies and their names; we add partial
//! posts, and the document's predicate for single requests.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use polyrail_core::random::Random;
use polyrail_core::work::{Cause, Work};

/// Which works are poisoned.
pub type Predicate = Arc<dyn Fn(&Work) -> bool + Send + Sync>;

/// What is spoilt on a whole transport. [`Spoils::default`] spoils nothing.
#[derive(Clone, Default)]
pub struct Spoils {
    /// Probability that a post is refused.
    pub submit_fail_rate: f64,
    /// Probability that a post takes only a part of its works and refuses the next one.
    pub submit_partial_rate: f64,
    /// Probability that a work that went well is said to have failed.
    pub status_corrupt_rate: f64,
    /// After so many posts all are refused.
    pub fail_after_n_submits: Option<u64>,
    /// The transport cannot be installed. Looked at when the engine starts.
    pub fail_install: bool,
    /// Works that are said to have failed, although they went well.
    pub poisons: Option<Predicate>,
    /// Why refused posts and spoilt works are said to have failed; `None`: [`Cause::Reset`].
    pub cause: Option<Cause>,
    /// Of the random numbers.
    pub seed: u64,
}

impl fmt::Debug for Spoils {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spoils")
            .field("submit_fail_rate", &self.submit_fail_rate)
            .field("submit_partial_rate", &self.submit_partial_rate)
            .field("status_corrupt_rate", &self.status_corrupt_rate)
            .field("fail_after_n_submits", &self.fail_after_n_submits)
            .field("fail_install", &self.fail_install)
            .field("poisons", &self.poisons.is_some())
            .field("cause", &self.cause)
            .field("seed", &self.seed)
            .finish()
    }
}

impl Spoils {
    fn cause(&self) -> Cause {
        self.cause.unwrap_or(Cause::Reset)
    }
}

/// What was done to a transport since it has had faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Posts that came.
    pub submits: u64,
    /// Of them, those that were refused in whole or in part.
    pub submits_failed: u64,
    /// Works that went well and were said to have failed.
    pub statuses_corrupted: u64,
}

/// What is in force, shared by the proxies of an engine.
#[derive(Default)]
pub(super) struct Shared {
    spoils: RwLock<Spoils>,
    in_force: AtomicBool,
    submits: AtomicU64,
    submits_failed: AtomicU64,
    statuses_corrupted: AtomicU64,
    proxies: AtomicU64,
}

impl Shared {
    pub(super) fn set(&self, spoils: Spoils) {
        *self.spoils.write().unwrap_or_else(PoisonError::into_inner) = spoils;
        self.in_force.store(true, Relaxed);
    }

    pub(super) fn get(&self) -> Spoils {
        let spoils = self.spoils.read();
        spoils.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            submits: self.submits.load(Relaxed),
            submits_failed: self.submits_failed.load(Relaxed),
            statuses_corrupted: self.statuses_corrupted.load(Relaxed),
        }
    }
}

/// How much of a post is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    All,
    /// So many works; the next one is refused.
    Part(usize, Cause),
}

/// One proxy's share: its random numbers, and the works that it is to spoil.
pub(super) struct Spoiler {
    shared: Arc<Shared>,
    random: Option<Random>,
    poisoned: HashSet<u64>,
    number: u64,
}

impl Spoiler {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let number = shared.proxies.fetch_add(1, Relaxed);
        Self {
            shared,
            random: None,
            poisoned: HashSet::new(),
            number,
        }
    }

    fn happens(&mut self, spoils: &Spoils, rate: f64) -> bool {
        let seed = spoils.seed ^ self.number << 32;
        let random = self.random.get_or_insert_with(|| Random::new(seed));
        rate > 0.0 && random.next_unit() < rate
    }

    /// Decides about a post, and which of its works are to be spoilt.
    pub(super) fn admit(&mut self, works: &[Work]) -> Admission {
        if !self.shared.in_force.load(Relaxed) {
            return Admission::All;
        }
        let spoils = self.shared.get();
        let before = self.shared.submits.fetch_add(1, Relaxed);
        let worn_out = spoils.fail_after_n_submits.is_some_and(|n| before >= n);
        let admission = if worn_out || self.happens(&spoils, spoils.submit_fail_rate) {
            Admission::Part(0, spoils.cause())
        } else if self.happens(&spoils, spoils.submit_partial_rate) {
            Admission::Part(works.len() / 2, spoils.cause())
        } else {
            Admission::All
        };
        let mut passed = works;
        if let Admission::Part(count, _) = admission {
            self.shared.submits_failed.fetch_add(1, Relaxed);
            passed = &works[..count];
        }
        let poisons = |work: &&Work| spoils.poisons.as_ref().is_some_and(|poisons| poisons(work));
        self.poisoned
            .extend(passed.iter().filter(poisons).map(|work| work.cookie));
        admission
    }

    /// Whether a work that went well is to be said to have failed, and why.
    pub(super) fn corrupt(&mut self, cookie: u64) -> Option<Cause> {
        if !self.shared.in_force.load(Relaxed) {
            return None;
        }
        let spoils = self.shared.get();
        let poisoned = self.poisoned.remove(&cookie);
        let corrupts = poisoned || self.happens(&spoils, spoils.status_corrupt_rate);
        corrupts.then(|| {
            self.shared.statuses_corrupted.fetch_add(1, Relaxed);
            spoils.cause()
        })
    }
}

#[cfg(test)]
mod tests {
    use polyrail_core::work::{Op, Place};

    use super::*;

    fn works(count: u64) -> Vec<Work> {
        let place = Place::default();
        (0..count)
            .map(|cookie| Work {
                cookie,
                op: Op::Write,
                local: place,
                remote: place,
                length: 1,
                signal: true,
            })
            .collect()
    }

    fn spoiler(spoils: Option<Spoils>) -> (Arc<Shared>, Spoiler) {
        let shared = Arc::new(Shared::default());
        if let Some(spoils) = spoils {
            shared.set(spoils);
        }
        (shared.clone(), Spoiler::new(shared))
    }

    #[test]
    fn posts_are_refused_as_the_policy_says() {
        let part = |count| Admission::Part(count, Cause::Reset);
        let base = Spoils::default;
        // (name, policy, what becomes of four posts of six works each)
        let cases = [
            ("nothing", None, [Admission::All; 4]),
            (
                "all",
                Some(Spoils {
                    submit_fail_rate: 1.0,
                    ..base()
                }),
                [part(0); 4],
            ),
            (
                "half of each",
                Some(Spoils {
                    submit_partial_rate: 1.0,
                    ..base()
                }),
                [part(3); 4],
            ),
            (
                "after two",
                Some(Spoils {
                    fail_after_n_submits: Some(2),
                    ..base()
                }),
                [Admission::All, Admission::All, part(0), part(0)],
            ),
        ];
        for (name, spoils, expected) in cases {
            let (shared, mut spoiler) = spoiler(spoils);
            let got = [(); 4].map(|()| spoiler.admit(&works(6)));
            assert_eq!(got, expected, "{name}");
            let failed = expected
                .iter()
                .filter(|row| **row != Admission::All)
                .count();
            assert_eq!(shared.counts().submits_failed, failed as u64, "{name}");
        }
    }

    #[test]
    fn poisoned_works_fail_once_and_no_others() {
        let spoils = Spoils {
            poisons: Some(Arc::new(|work| work.cookie == 2)),
            cause: Some(Cause::Fatal),
            ..Spoils::default()
        };
        let (shared, mut spoiler) = spoiler(Some(spoils));
        assert_eq!(spoiler.admit(&works(4)), Admission::All);
        let got: Vec<_> = (0..4).map(|cookie| spoiler.corrupt(cookie)).collect();
        assert_eq!(got, [None, None, Some(Cause::Fatal), None]);
        assert_eq!(spoiler.corrupt(2), None, "the next work of that cookie");
        assert_eq!(shared.counts().statuses_corrupted, 1);
    }

    #[test]
    fn rates_are_kept_and_one_seed_gives_one_history() {
        let history = |seed| {
            let (_, mut spoiler) = spoiler(Some(Spoils {
                status_corrupt_rate: 0.3,
                seed,
                ..Spoils::default()
            }));
            (0..1000)
                .map(|cookie| spoiler.corrupt(cookie).is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!(history(1), history(1));
        assert_ne!(history(1), history(2));
        let corrupted = history(1).iter().filter(|row| **row).count();
        assert!((250..350).contains(&corrupted), "{corrupted}");
    }
}
