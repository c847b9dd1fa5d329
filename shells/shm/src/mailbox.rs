//! Memory that both sides of a lane map: what the initiator offers to be pulled, and which memory of the target it
//! is about to touch.
//!
//! # Safety
//!
//! A mailbox is made of atomics only. The other side may write anything to them at any time, so that what is read is
//! checked like what comes over a socket. It is touched once it is fixed: the other side cannot take its pages away.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};

use polyrail_transport::mapping::Mapping;
use polyrail_transport::memory::RegionKey;
use polyrail_transport::processor;

/// Offers that a mailbox has room for.
pub(crate) const OFFERS_MAX: usize = 64;

/// Segments of the target that one lane can use at a time.
pub(crate) const GRANTS_MAX: usize = 4096;

#[repr(C, align(64))]
struct OfferRow {
    state: AtomicU32,
    length: AtomicU32,
    source: AtomicU64,
    offset: AtomicU64,
    key: [AtomicU64; 2],
}

#[repr(C)]
struct Layout {
    offers: [OfferRow; OFFERS_MAX],
    /// Where the target looks at offers by itself. [`NOWHERE`]: it has to be called.
    looks: AtomicU32,
    /// Where the initiator looks for answers by itself. [`NOWHERE`]: it has to be called.
    awaits: AtomicU32,
    /// Whether the target has closed grants that the initiator could not be told of.
    untold: AtomicU32,
    grants: [AtomicU32; GRANTS_MAX],
}

/// Bytes of a mailbox.
const BYTES: u64 = size_of::<Layout>() as u64;

/// Where an offer stands. Only the initiator leaves `FREE` and withdraws; only the target takes and answers.
const FREE: u32 = 0;
const OFFERED: u32 = 1;
const TAKEN: u32 = 2;
const WITHDRAWN: u32 = 3;
const DONE: u32 = 4;
const REFUSED: u32 = 5;
const FAILED: u32 = 6;

/// The initiator is touching the memory.
const BUSY: u32 = 1;
/// The target does not allow it any more.
const CLOSED: u32 = 2;

/// Nobody looks. A processor's number is one less than what stands for it.
const NOWHERE: u32 = 0;

/// A processor of this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Processor(u32);

impl Processor {
    /// One that nobody runs on.
    #[cfg(test)]
    pub(crate) const NONE: Self = Self(u32::MAX - 1);

    /// The one that the calling thread runs on now; `None`: the system does not say.
    pub(crate) fn here() -> Option<Self> {
        processor::here().map(|number| Self(number as u32))
    }

    fn of_word(word: u32) -> Option<Self> {
        word.checked_sub(1).map(Self)
    }

    fn word(at: Option<Self>) -> u32 {
        at.map_or(NOWHERE, |at| at.0.wrapping_add(1))
    }
}

/// What is to be pulled, and where to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Offer {
    /// The initiator's address.
    pub(crate) source: u64,
    pub(crate) length: u32,
    pub(crate) key: RegionKey,
    pub(crate) offset: u64,
}

/// What became of an offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pulled {
    Done,
    /// Key, range or permission.
    Refused,
    /// The source could not be read.
    Failed,
}

/// What withdrawing offers came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Withdrawn {
    /// None is or will be pulled.
    All,
    /// The target has taken one and not answered.
    TakenMeanwhile,
}

/// A mailbox, as either side maps it.
#[derive(Debug)]
pub(crate) struct Mailbox {
    mapping: Mapping,
}

impl Mailbox {
    /// A new one, and what the other side maps. Not to be touched before it is [fixed](Self::fix).
    pub(crate) fn new() -> io::Result<(Self, OwnedFd)> {
        let (mapping, file) = Mapping::in_file(BYTES)?;
        Ok((Self { mapping }, file))
    }

    /// The peer's, fixed.
    pub(crate) fn of_peer(file: &OwnedFd) -> io::Result<Self> {
        let mapping = Mapping::of_peer_fixed(file.as_fd(), BYTES)?;
        Ok(Self { mapping })
    }

    /// The other side maps it by now: from here on it can take nothing of it away.
    pub(crate) fn fix(&self, file: &OwnedFd) -> io::Result<()> {
        self.mapping.fix(file.as_fd())
    }

    fn layout(&self) -> &Layout {
        // SAFETY: the mapping is as large as the layout, page-aligned, readable and writable, lives as long as
        // `self`, and any bytes are valid atomics.
        unsafe { self.mapping.base().cast::<Layout>().as_ref() }
    }

    fn row(&self, index: usize) -> &OfferRow {
        &self.layout().offers[index % OFFERS_MAX]
    }

    fn grant(&self, grant: u16) -> &AtomicU32 {
        &self.layout().grants[usize::from(grant) % GRANTS_MAX]
    }

    /// Initiator: puts an offer into a row that is free. Whether the target has to be called.
    pub(crate) fn offer(&self, index: usize, offer: &Offer) -> bool {
        let row = self.row(index);
        row.source.store(offer.source, Relaxed);
        row.length.store(offer.length, Relaxed);
        row.offset.store(offer.offset, Relaxed);
        let (halves, _) = offer.key.0.as_chunks::<8>();
        for (word, half) in row.key.iter().zip(halves) {
            word.store(u64::from_le_bytes(*half), Relaxed);
        }
        row.state.store(OFFERED, SeqCst);
        self.layout().looks.load(SeqCst) == NOWHERE
    }

    /// Initiator: what became of the offer in a row, which is free then. `None`: nothing yet.
    pub(crate) fn answer(&self, index: usize) -> Option<Pulled> {
        let row = self.row(index);
        let pulled = match row.state.load(Acquire) {
            DONE => Pulled::Done,
            REFUSED => Pulled::Refused,
            FAILED => Pulled::Failed,
            _ => return None,
        };
        row.state.store(FREE, Relaxed);
        Some(pulled)
    }

    /// Initiator: takes every offer back that the target has not taken.
    pub(crate) fn withdraw(&self) -> Withdrawn {
        let mut withdrawn = Withdrawn::All;
        for row in &self.layout().offers {
            let before = row
                .state
                .compare_exchange(OFFERED, WITHDRAWN, AcqRel, Acquire);
            if before == Err(TAKEN) {
                withdrawn = Withdrawn::TakenMeanwhile;
            }
        }
        withdrawn
    }

    /// Target: says where it looks at offers by itself from now on; `None`: nowhere. One that has said that it does not
    /// looks once more: what was offered before calls nobody.
    pub(crate) fn set_looks(&self, at: Option<Processor>) {
        self.layout().looks.store(Processor::word(at), SeqCst);
    }

    /// Initiator: where the target looks at offers by itself; `None`: nowhere.
    pub(crate) fn looked_at(&self) -> Option<Processor> {
        Processor::of_word(self.layout().looks.load(Relaxed))
    }

    /// Initiator: says where it looks for answers by itself from now on; `None`: nowhere. One that has said that it does
    /// not looks once more: what was answered before calls nobody.
    pub(crate) fn set_awaits(&self, at: Option<Processor>) {
        self.layout().awaits.store(Processor::word(at), SeqCst);
        fence(SeqCst);
    }

    /// Target: where the initiator looks for answers by itself; `None`: nowhere.
    pub(crate) fn awaited_at(&self) -> Option<Processor> {
        Processor::of_word(self.layout().awaits.load(Relaxed))
    }

    /// Target: whether the initiator has to be called to what was answered until now.
    pub(crate) fn calls(&self) -> bool {
        fence(SeqCst);
        self.layout().awaits.load(SeqCst) == NOWHERE
    }

    /// Initiator: whether the offer in a row has been answered.
    pub(crate) fn is_answered(&self, index: usize) -> bool {
        matches!(self.row(index).state.load(Acquire), DONE | REFUSED | FAILED)
    }

    /// Target: takes the offer in a row, if there is one.
    pub(crate) fn take(&self, index: usize) -> Option<Offer> {
        let row = self.row(index);
        // Who looks again and again leaves the row where the initiator writes it.
        if row.state.load(SeqCst) != OFFERED {
            return None;
        }
        row.state
            .compare_exchange(OFFERED, TAKEN, SeqCst, SeqCst)
            .ok()?;
        let mut key = [0; 16];
        for (half, word) in key.chunks_mut(8).zip(&row.key) {
            half.copy_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        Some(Offer {
            source: row.source.load(Relaxed),
            length: row.length.load(Relaxed),
            key: RegionKey(key),
            offset: row.offset.load(Relaxed),
        })
    }

    /// Target: says what became of an offer that it took.
    pub(crate) fn tell(&self, index: usize, pulled: Pulled) {
        let state = match pulled {
            Pulled::Done => DONE,
            Pulled::Refused => REFUSED,
            Pulled::Failed => FAILED,
        };
        self.row(index).state.store(state, Release);
    }

    /// Initiator: announces that it touches what is behind a grant. `false`: it must not.
    pub(crate) fn enter(&self, grant: u16) -> bool {
        let word = self.grant(grant);
        let allowed = word.fetch_or(BUSY, SeqCst) & CLOSED == 0;
        if !allowed {
            word.fetch_and(!BUSY, Release);
        }
        allowed
    }

    /// Initiator: it does not touch it any more. Whether it was allowed until now.
    pub(crate) fn leave(&self, grant: u16) -> bool {
        self.grant(grant).fetch_and(!BUSY, SeqCst) & CLOSED == 0
    }

    /// Target: allows a grant to be used.
    pub(crate) fn open_grant(&self, grant: u16) {
        self.grant(grant).store(0, SeqCst);
    }

    /// Target: there are closed grants that the initiator could not be told of. It looks once it has heard all that was said.
    pub(crate) fn set_untold(&self) {
        self.layout().untold.store(1, SeqCst);
    }

    /// Initiator: whether there are, since this was last asked.
    pub(crate) fn take_untold(&self) -> bool {
        self.layout().untold.swap(0, SeqCst) != 0
    }

    /// Initiator: whether the target allows a grant no more.
    pub(crate) fn is_closed(&self, grant: u16) -> bool {
        self.grant(grant).load(Acquire) & CLOSED != 0
    }

    /// Target: allows it no more. Whether nothing is touched under it now.
    pub(crate) fn close_grant(&self, grant: u16) -> bool {
        self.grant(grant).fetch_or(CLOSED, SeqCst) & BUSY == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: Offer = Offer {
        source: 7,
        length: 8,
        key: RegionKey([9; 16]),
        offset: 10,
    };

    fn sides() -> (Mailbox, Mailbox) {
        let (ours, file) = Mailbox::new().unwrap();
        (ours, Mailbox::of_peer(&file).unwrap())
    }

    #[test]
    fn an_offer_is_taken_or_withdrawn_but_not_both() {
        let (initiator, target) = sides();
        assert_eq!(target.take(0), None);
        assert!(initiator.offer(0, &OFFER), "nobody looks");
        target.set_looks(Some(Processor(0)));
        assert!(!initiator.offer(1, &OFFER));
        assert_eq!(target.take(0), Some(OFFER));
        assert_eq!(target.take(0), None, "once");
        assert_eq!(initiator.answer(0), None, "not yet");
        assert_eq!(initiator.withdraw(), Withdrawn::TakenMeanwhile);
        assert_eq!(target.take(1), None, "withdrawn");
        target.tell(0, Pulled::Done);
        assert_eq!(initiator.withdraw(), Withdrawn::All);
        assert_eq!(initiator.answer(0), Some(Pulled::Done));
        assert_eq!(initiator.answer(0), None, "told once");
    }

    #[test]
    fn who_looks_is_not_called_and_who_does_not_looks_once_more() {
        let (initiator, target) = sides();
        assert!(target.calls(), "nobody has said that they look");
        initiator.set_awaits(Some(Processor(0)));
        initiator.offer(0, &OFFER);
        target.take(0).unwrap();
        assert!(!initiator.is_answered(0));
        target.tell(0, Pulled::Refused);
        assert!(!target.calls());
        initiator.set_awaits(None);
        assert!(initiator.is_answered(0) && target.calls());
        assert_eq!(initiator.answer(0), Some(Pulled::Refused));
        assert!(!initiator.is_answered(0));
    }

    #[test]
    fn either_side_says_where_it_looks() {
        let (initiator, target) = sides();
        let both = || (initiator.looked_at(), target.awaited_at());
        assert_eq!(both(), (None, None), "each has to be called");
        let (first, second) = (Some(Processor(0)), Some(Processor(7)));
        target.set_looks(first);
        initiator.set_awaits(second);
        assert_eq!(both(), (first, second));
        target.set_looks(None);
        initiator.set_awaits(None);
        assert_eq!(both(), (None, None));
    }

    #[test]
    fn a_closed_grant_is_not_entered_and_who_is_inside_is_seen() {
        let (initiator, target) = sides();
        target.open_grant(5);
        assert!(initiator.enter(5) && initiator.leave(5));
        assert!(initiator.enter(5));
        assert!(!target.close_grant(5), "somebody is inside");
        assert!(
            !initiator.leave(5),
            "what was read meanwhile does not count"
        );
        assert!(target.close_grant(5));
        assert!(!initiator.enter(5));
        assert!(target.close_grant(5), "who was turned away is not inside");
    }
}
