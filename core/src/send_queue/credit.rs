//! Credits: the right to have so much under way, taken before and given back when it has ended.
//!
//! [`Credits`] is shared: any thread may reserve, wait and release through `&self`. What is held and whether anything is given at
//! all are one word, so that no two of them are ever seen apart. What a credit is for is its owner's: a worker of an engine gives
//! one for each request, from its submission to its report.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), phases 2 and 3. There a queue pair has credits for works that are
//! posted (hard) and for works that are admitted (soft). Here a lane's works are counted by the orchestrator, which binds late, and what is
//! left is one kind: room from submission to report. We differ: who waits is served in turn, because a newcomer that fits could
//! overtake for ever; a reservation is a value that can be given back only once.

use core::sync::atomic::{AtomicU32, Ordering::*};

use super::diagnostics::Counters;
pub use super::grant::Grant;
pub use super::line::LINE_PLACES;
use super::line::{Line, Place};
pub use super::waiter::Waiter;
use crate::time::{Duration, Instant};

/// Why no credits were given. Nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It would not fit if nothing were held. Ask for less.
    TooLarge {
        /// What was asked for.
        asked_works: u16,
        /// What there is.
        max_works: u16,
    },
    /// Not now, or others came first. Ask again when the revision differs.
    Full {
        /// Credits that must be free.
        required_works: u16,
        /// What was found.
        at: Snapshot,
    },
    /// They were not to be had before the deadline.
    TimedOut {
        /// Credits that should have been free.
        required_works: u16,
        /// How long it was waited.
        waited: Duration,
        /// What was found last.
        at: Snapshot,
    },
    /// Nothing is given any more.
    Closed,
}

/// How much may be under way, and how full it may be for those who wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CreditLimits {
    /// Credits there are, at least 1.
    pub max_works: u16,
    /// Who once did not fit needs so many to be free, or what it asked for if that is more. 0: only that.
    /// More than there are counts as all.
    pub resume_watermark_works: u16,
}

/// A number that changes with every change, and when somebody leaves the line.
///
/// Who was refused waits until it differs from the one in the refusal: it was read before anything was
/// looked at, so a change in between is seen and no wake-up is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Revision(pub u32);

/// How credits stand at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Held, from reservation to release.
    pub held_works: u16,
    /// What there is.
    pub max_works: u16,
    /// Nothing is given any more.
    pub is_closed: bool,
    /// Not later than the rest of it.
    pub revision: Revision,
}

impl Snapshot {
    /// Credits that nobody holds.
    pub const fn free_works(&self) -> u16 {
        self.max_works.saturating_sub(self.held_works)
    }
}

/// Above what is held, in one word with it.
const CLOSED: u32 = 1 << 16;

/// Credits for what may be under way at one place, shared by all who take them or give them back.
///
/// Not padded. Where several workers' lie side by side, pad them.
#[derive(Debug)]
pub struct Credits {
    word: AtomicU32,
    pub(super) revision: AtomicU32,
    pub(super) limits: CreditLimits,
    pub(super) line: Line,
    counters: Counters,
}

impl Credits {
    /// All of them free.
    pub const fn new(limits: CreditLimits) -> Self {
        Self {
            word: AtomicU32::new(0),
            revision: AtomicU32::new(0),
            limits,
            line: Line::new(),
            counters: Counters::new(),
        }
    }

    /// What happened here, for people.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How they stand.
    pub fn snapshot(&self) -> Snapshot {
        let revision = self.revision();
        self.snapshot_of(self.word.load(SeqCst), revision)
    }

    /// Whether nobody holds any.
    pub fn is_free(&self) -> bool {
        self.word.load(SeqCst) as u16 == 0
    }

    /// The number that changes with every change.
    pub fn revision(&self) -> Revision {
        Revision(self.revision.load(SeqCst))
    }

    /// Those in line. A shell that can wake them need not look for more.
    pub fn waiting(&self) -> usize {
        self.line.waiting()
    }

    /// Takes credits if they are free now and nobody waits.
    pub fn reserve(&self, works: u16) -> Result<Grant, Refused> {
        self.attempt(works, works, None)
    }

    /// Somebody who wants credits and can wait for them until `deadline`.
    pub const fn waiter(&self, works: u16, deadline: Instant) -> Waiter<'_> {
        Waiter {
            credits: self,
            works,
            deadline,
            since: None,
            place: None,
        }
    }

    /// Gives credits back. More than is held leaves none held; what is closed stays so.
    pub fn release(&self, grant: Grant) {
        if grant.works == 0 {
            return;
        }
        if self.waiting() > 0 {
            self.counters.handle_release(grant.works);
        }
        self.change(|word| {
            debug_assert!(word as u16 >= grant.works, "nobody had these credits");
            let held = (word as u16).saturating_sub(grant.works);
            Some(word & CLOSED | u32::from(held))
        });
    }

    /// Gives nothing any more. `true` if this call ended it. What is held stays with whoever holds it.
    pub fn close(&self) -> bool {
        self.change(|word| (word & CLOSED == 0).then_some(word | CLOSED))
    }

    /// Whoever gives them back has looked for what has ended. Noted while somebody waits.
    pub fn polled(&self, now: Instant) {
        if self.waiting() > 0 {
            self.counters.handle_poll(now);
        }
    }

    pub(super) fn attempt(
        &self,
        works: u16,
        required_works: u16,
        place: Option<&Place<'_>>,
    ) -> Result<Grant, Refused> {
        let max_works = self.limits.max_works;
        debug_assert!(
            required_works >= works && (required_works <= max_works || works > max_works)
        );
        if works > max_works {
            return Err(Refused::TooLarge {
                asked_works: works,
                max_works,
            });
        }
        let revision = self.revision();
        let mut word = self.word.load(SeqCst);
        loop {
            if word & CLOSED != 0 {
                return Err(Refused::Closed);
            }
            let at = self.snapshot_of(word, revision);
            let in_turn = self.line.admits(place) || works == 0;
            if !in_turn || required_works > at.free_works() {
                return Err(Refused::Full { required_works, at });
            }
            let taken = word + u32::from(works);
            debug_assert!(
                taken <= u32::from(max_works),
                "{taken} credits are held of {max_works}"
            );
            match self.word.compare_exchange_weak(word, taken, SeqCst, SeqCst) {
                Ok(_) => {
                    self.changed();
                    self.counters.handle_held(taken as u16);
                    return Ok(Grant { works });
                }
                Err(now) => word = now,
            }
        }
    }

    /// The only place that writes the word other than to take from it. `true` if it did.
    fn change(&self, next: impl Fn(u32) -> Option<u32>) -> bool {
        let changed = self.word.fetch_update(SeqCst, SeqCst, next).is_ok();
        if changed {
            self.changed();
        }
        changed
    }

    fn changed(&self) {
        self.revision.fetch_add(1, SeqCst);
    }

    const fn snapshot_of(&self, word: u32, revision: Revision) -> Snapshot {
        Snapshot {
            held_works: word as u16,
            max_works: self.limits.max_works,
            is_closed: word & CLOSED != 0,
            revision,
        }
    }
}
