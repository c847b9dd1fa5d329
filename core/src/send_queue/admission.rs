//! Admission: soft credits beside the hard ones, so that who submits waits and not the worker that posts.
//!
//! Works are admitted before they are handed to a worker, and reserved when it takes them. A [`Token`] is the
//! proof; it goes back exactly once, whether it is used, released or dropped with the task that carries it.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), phase 3. We differ: soft and hard credits are one
//! word, so an admission never counts on room that a reservation has just taken, and a token turns into a
//! reservation in one step, where the rework counts a chunk twice until its post returns. Who waits is served
//! in turn.

use super::credit::{Credits, Refused};
use super::grant::{Amount, Grant};
use super::levels::Levels;
use super::line::Place;
use crate::units::Epoch;

impl Credits {
    /// Admits `works` if that leaves no more than the lane can hold, `required_works` of which must have been
    /// open to admission, and if nobody came before. Holders of a [`Place`] are served in turn.
    pub fn admit(
        &self,
        works: u16,
        required_works: u16,
        place: Option<&Place<'_>>,
    ) -> Result<Token<'_>, Refused> {
        let required = Amount::writes(works.max(required_works).min(self.max().works.max(works)));
        let max_works = self.max().works;
        let line = &self.admission_line;
        let levels = self.take(Amount::writes(works), required, line, place, |levels| {
            let load = levels.held.works.saturating_add(levels.admitted_works);
            let fits = required.works <= max_works.saturating_sub(load);
            fits.then_some(Levels {
                admitted_works: levels.admitted_works.saturating_add(works),
                ..levels
            })
        })?;
        self.counters().handle_admitted(levels.admitted_works);
        Ok(Token {
            credits: self,
            works,
            epoch: self.epoch_of(levels),
        })
    }

    /// A place in the line for admission. `None`: the line is full.
    pub fn admission_place(&self) -> Option<Place<'_>> {
        self.admission_line.join(&self.revision)
    }

    /// Those in line for admission. A shell that can wake them need not look for more.
    pub fn waiting_for_admission(&self) -> usize {
        self.admission_line.waiting()
    }

    /// From admitted to held, unless others wait for credits already.
    fn convert(&self, amount: Amount, epoch: Epoch) -> Result<Grant, Refused> {
        let converted = self.take(amount, amount, &self.line, None, |levels| {
            let fits = amount.fits(self.max().minus(levels.held));
            (fits && levels.is_of(epoch)).then_some(Levels {
                held: levels.held.plus(amount),
                admitted_works: levels.admitted_works.saturating_sub(amount.works),
                ..levels
            })
        });
        match converted {
            Ok(_) => Ok(Grant { amount, epoch }),
            Err(_) if self.epoch() != epoch => Err(Refused::Rebuilt),
            Err(refused) => Err(refused),
        }
    }
}

/// The proof that works were admitted to a lane.
#[derive(Debug)]
#[must_use = "a token that is dropped gives its admission back"]
pub struct Token<'a> {
    credits: &'a Credits,
    /// 0 once it has been released.
    works: u16,
    epoch: Epoch,
}

impl<'a> Token<'a> {
    /// Works it stands for; none once released.
    pub const fn works(&self) -> u16 {
        self.works
    }

    /// The lane it was admitted to.
    pub const fn credits(&self) -> &'a Credits {
        self.credits
    }

    /// Gives the admission back. Again: nothing happens.
    pub fn release(&mut self) {
        let works = core::mem::take(&mut self.works);
        if works == 0 {
            return;
        }
        self.credits.change(|levels| {
            levels.is_of(self.epoch).then_some(Levels {
                admitted_works: levels.admitted_works.saturating_sub(works),
                ..levels
            })
        });
    }

    /// Turns it into credits, `reads` of them for reads: from admitted to held in one step. The token comes
    /// back when that is refused; its holder may wait with a [`Waiter`](super::credit::Waiter) and release it then.
    pub fn reserve(mut self, reads: u8) -> Result<Grant, (Self, Refused)> {
        let amount = Amount {
            works: self.works,
            reads,
        };
        match self.credits.convert(amount, self.epoch) {
            Ok(grant) => {
                self.works = 0;
                Ok(grant)
            }
            Err(refused) => Err((self, refused)),
        }
    }
}

impl Drop for Token<'_> {
    fn drop(&mut self) {
        self.release();
    }
}
