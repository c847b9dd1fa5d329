//! Credits of one lane's send queue: the right to post works, taken before and given back on completion.
//!
//! [`Credits`] is shared: any thread may reserve, post and release through `&self`. What is held, what is
//! admitted, where the lane stands and its epoch are one word, so that no two of them are ever seen apart.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), phases 2 and 3. We differ: credits carry the
//! lane's epoch, because a release that comes after a rebuild would free what the new lane still holds; who
//! waits is served in turn, because a newcomer that fits could overtake for ever; a reservation is a value
//! that can be given back only once; reads hold a second credit.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use super::diagnostics::Counters;
pub use super::grant::{Amount, Grant};
use super::levels::{EPOCH_BITS, Levels};
pub use super::levels::{Revision, Snapshot, Standing};
use super::line::Line;
pub use super::line::{LINE_PLACES, Place};
pub use super::waiter::{Posting, Waiter};
use crate::time::Instant;
use crate::units::Epoch;

/// Why no credits were given. Nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It would not fit an empty lane. Ask for less.
    TooLarge {
        /// What was asked for.
        asked: Amount,
        /// What the lane can hold.
        max: Amount,
    },
    /// Not now, or others came first. Ask again when the revision differs.
    Full {
        /// Works that must be free.
        required_works: u16,
        /// What was found.
        at: Snapshot,
    },
    /// It was not to be had before the deadline.
    TimedOut {
        /// Works that should have been free.
        required_works: u16,
        /// What was found last.
        at: Snapshot,
    },
    /// The lane takes nothing for now. Use another, or ask again when the revision differs.
    Degraded(Revision),
    /// The lane is over until it is rebuilt. Use another.
    Terminal,
    /// The lane has been rebuilt since these credits were taken. Reserve anew.
    Rebuilt,
}

/// What a lane can hold, and how full it may be for those who wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreditLimits {
    /// Works, and reads among them, that may be posted and not completed. Works at least 1.
    pub max: Amount,
    /// Who once did not fit needs so many works free, or what it asked for if that is more. 0: only that.
    /// More than the lane can hold counts as all it can hold.
    pub resume_watermark_works: u16,
}

/// The credits of one lane, shared by all who post on it, complete its works or admit to it.
///
/// Not padded: a worker's own lanes may lie side by side. Where several workers' do, pad them.
#[derive(Debug)]
pub struct Credits {
    levels: AtomicU64,
    pub(super) revision: AtomicU32,
    /// Threads between [`Self::begin_post`] and the end of their [`Posting`].
    pub(super) posters: AtomicU32,
    /// The whole epoch; the word keeps part of it.
    epoch: AtomicU32,
    pub(super) limits: CreditLimits,
    pub(super) line: Line,
    pub(super) admission_line: Line,
    counters: Counters,
}

impl Credits {
    /// An open lane with all its credits.
    pub const fn new(limits: CreditLimits, epoch: Epoch) -> Self {
        Self {
            levels: AtomicU64::new(Levels::new(epoch).pack()),
            revision: AtomicU32::new(0),
            posters: AtomicU32::new(0),
            epoch: AtomicU32::new(epoch.0),
            limits,
            line: Line::new(),
            admission_line: Line::new(),
            counters: Counters::new(),
        }
    }

    /// What the lane can hold.
    pub const fn max(&self) -> Amount {
        self.limits.max
    }

    /// What happened on the lane, for people.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The lane's epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch_of(self.levels())
    }

    /// How it stands.
    pub fn snapshot(&self) -> Snapshot {
        let revision = self.revision();
        self.snapshot_of(self.levels(), revision)
    }

    /// Whether nobody holds any.
    pub fn is_free(&self) -> bool {
        self.levels().held.works == 0
    }

    /// The number that changes with every change.
    pub fn revision(&self) -> Revision {
        Revision(self.revision.load(SeqCst))
    }

    /// Those in line for credits. A shell that can wake them need not look for more.
    pub fn waiting(&self) -> usize {
        self.line.waiting()
    }

    /// Takes credits if they are free now and nobody waits.
    pub fn reserve(&self, amount: Amount) -> Result<Grant, Refused> {
        self.attempt(amount, amount.works, None)
    }

    /// Somebody who wants credits and can wait for them until `deadline`.
    pub const fn waiter(&self, amount: Amount, deadline: Instant) -> Waiter<'_> {
        Waiter {
            credits: self,
            amount,
            deadline,
            pressed: false,
            place: None,
        }
    }

    /// The last look before posting. From here to the end of the [`Posting`] the lane can be closed but not
    /// rebuilt, and its orphans are not collected. If the lane has been closed, the credits go back by themselves.
    pub fn begin_post(&self, grant: Grant) -> Result<(Posting<'_>, Grant), Refused> {
        // Counted before the look: who closes the lane sees this poster, or this poster sees it closed.
        self.posters.fetch_add(1, SeqCst);
        let posting = Posting { credits: self };
        let revision = self.revision();
        let levels = self.levels();
        let refused = match levels.standing {
            _ if !levels.is_of(grant.epoch) => Refused::Rebuilt,
            Standing::Open => return Ok((posting, grant)),
            Standing::Degraded => Refused::Degraded(revision),
            Standing::Terminal => Refused::Terminal,
        };
        self.release(grant);
        Err(refused)
    }

    /// Gives credits back. `false`: they were of an earlier epoch, and nothing changed.
    ///
    /// It does not open a lane that is closed. More than is held leaves none held.
    pub fn release(&self, grant: Grant) -> bool {
        if grant.amount == Amount::default() {
            return true;
        }
        self.change(|levels| {
            levels.is_of(grant.epoch).then_some(Levels {
                held: levels.held.minus(grant.amount),
                ..levels
            })
        })
    }

    /// Closes an open lane for now. `true` if this call did.
    pub fn degrade(&self) -> bool {
        self.change(|levels| {
            (levels.standing == Standing::Open).then_some(Levels {
                standing: Standing::Degraded,
                ..levels
            })
        })
    }

    /// Opens a lane that was closed for now. `true` if this call did.
    pub fn restore(&self) -> bool {
        self.change(|levels| {
            (levels.standing == Standing::Degraded).then_some(Levels {
                standing: Standing::Open,
                ..levels
            })
        })
    }

    /// Closes the lane until it is rebuilt. `true` if this call did. Credits stay with whoever holds them.
    pub fn terminate(&self) -> bool {
        self.change(|levels| {
            (levels.standing != Standing::Terminal).then_some(Levels {
                standing: Standing::Terminal,
                ..levels
            })
        })
    }

    /// Whether nobody is posting.
    pub fn is_drained(&self) -> bool {
        self.posters.load(SeqCst) == 0
    }

    /// The lane has been rebuilt: open, with all its credits, under another epoch. What was taken before is
    /// dropped when it comes back. `false`: it is not over yet, somebody is still posting, or the epoch is the
    /// same. One caller at a time: whoever owns the lane.
    pub fn reopen(&self, epoch: Epoch) -> bool {
        let is_over =
            |levels: Levels| levels.standing == Standing::Terminal && !levels.is_of(epoch);
        // Nobody begins to post, and nobody takes anything, on a lane that is over.
        if !is_over(self.levels()) || !self.is_drained() {
            return false;
        }
        self.epoch.store(epoch.0, SeqCst);
        self.change(|levels| is_over(levels).then_some(Levels::new(epoch)))
    }

    pub(super) fn attempt(
        &self,
        amount: Amount,
        required_works: u16,
        place: Option<&Place<'_>>,
    ) -> Result<Grant, Refused> {
        let required = Amount {
            works: required_works,
            ..amount
        };
        self.take(amount, required, &self.line, place, |levels| {
            let fits = required.fits(self.limits.max.minus(levels.held));
            fits.then_some(Levels {
                held: levels.held.plus(amount),
                ..levels
            })
        })
        .map(|levels| Grant {
            amount,
            epoch: self.epoch_of(levels),
        })
    }

    /// The one way in, for hard and soft credits: too large, closed, not its turn, no room, or `next`.
    pub(super) fn take(
        &self,
        asked: Amount,
        required: Amount,
        line: &Line,
        place: Option<&Place<'_>>,
        next: impl Fn(Levels) -> Option<Levels>,
    ) -> Result<Levels, Refused> {
        let max = self.limits.max;
        if !asked.fits(max) {
            return Err(Refused::TooLarge { asked, max });
        }
        let revision = self.revision();
        let mut levels = self.levels();
        loop {
            match levels.standing {
                Standing::Open => {}
                Standing::Degraded => return Err(Refused::Degraded(revision)),
                Standing::Terminal => return Err(Refused::Terminal),
            }
            let in_turn = line.admits(place) || asked == Amount::default();
            let Some(taken) = next(levels).filter(|_| in_turn) else {
                return Err(Refused::Full {
                    required_works: required.works,
                    at: self.snapshot_of(levels, revision),
                });
            };
            let (before, after) = (levels.pack(), taken.pack());
            match self
                .levels
                .compare_exchange_weak(before, after, SeqCst, SeqCst)
            {
                Ok(_) => {
                    self.changed();
                    return Ok(taken);
                }
                Err(now) => levels = Levels::unpack(now),
            }
        }
    }

    /// The only place that writes the word other than to take from it. `true` if it did.
    pub(super) fn change(&self, next: impl Fn(Levels) -> Option<Levels>) -> bool {
        let changed = self
            .levels
            .fetch_update(SeqCst, SeqCst, |word| {
                next(Levels::unpack(word)).map(Levels::pack)
            })
            .is_ok();
        if changed {
            self.changed();
        }
        changed
    }

    /// The whole epoch of what the word says.
    pub(super) fn epoch_of(&self, levels: Levels) -> Epoch {
        Epoch(self.epoch.load(SeqCst) & !((1 << EPOCH_BITS) - 1) | levels.epoch)
    }

    fn levels(&self) -> Levels {
        Levels::unpack(self.levels.load(SeqCst))
    }

    pub(super) fn changed(&self) {
        self.revision.fetch_add(1, SeqCst);
    }

    const fn snapshot_of(&self, levels: Levels, revision: Revision) -> Snapshot {
        Snapshot {
            held: levels.held,
            admitted_works: levels.admitted_works,
            max: self.limits.max,
            standing: levels.standing,
            revision,
        }
    }
}
