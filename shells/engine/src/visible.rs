//! Batches that have not ended before what they have written can be seen.

use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::PeerId;
use polyrail_core::work::Op;

use crate::engine::Engine;
use crate::request::{Request, Terms};
use crate::rows::RowId;

/// By whom what a batch has written has to be seen.
#[derive(Debug)]
pub(crate) struct Sight {
    pub(crate) peers: Vec<PeerId>,
    /// The ticket of the first peer; those of the others are the next ones.
    pub(crate) ticket: u64,
    /// Of each request, whether it writes.
    pub(crate) writes: Box<[bool]>,
    /// It has ended without proof, which may come later.
    pub(crate) is_doubted: bool,
    /// Requests that are settled once it does.
    pub(crate) doubted: Vec<usize>,
}

impl Engine {
    /// Who has to see a batch, if the terms say so and it writes anything. `firsts`: as for
    /// [`Self::submit_pieces`](Engine::submit_pieces).
    pub(crate) fn sight(
        &self,
        pieces: &[Request],
        firsts: Option<&[u32]>,
        terms: &Terms<'_>,
    ) -> Option<Box<Sight>> {
        if !terms.visible {
            return None;
        }
        let mut peers = Vec::new();
        let mut last = None;
        for piece in pieces.iter().filter(|piece| piece.op == Op::Write) {
            if last.replace(piece.remote) == Some(piece.remote) {
                continue;
            }
            // What is no peer's is seen at once.
            let peer = self.inner.segments.remote(piece.remote);
            let peer = peer.map(|segment| segment.peer);
            peers.extend(peer.filter(|peer| !peers.contains(peer)));
        }
        if peers.is_empty() {
            return None;
        }
        let is_write = |piece: &Request| piece.op == Op::Write;
        let writes = match firsts {
            None => pieces.iter().map(is_write).collect(),
            Some(firsts) => {
                let pieces = firsts.iter().map(|first| pieces.get(*first as usize));
                pieces.map(|piece| piece.is_some_and(is_write)).collect()
            }
        };
        Some(Box::new(Sight {
            ticket: self.inner.mail.outbox.draw(peers.len() as u64),
            peers,
            writes,
            is_doubted: false,
            doubted: Vec::new(),
        }))
    }
}

/// Batches of one worker whose requests have all been reported, and that wait to be seen.
#[derive(Default)]
pub(crate) struct Unseen {
    rows: Vec<Waiting>,
}

struct Waiting {
    row: RowId,
    tickets: Vec<u64>,
    /// Until when its end is held back.
    by: Instant,
    /// It has ended without proof.
    is_late: bool,
}

/// What is to be done with a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    /// It ends.
    InTime(RowId),
    /// It has ended, and all of it is known now.
    Late(RowId),
}

impl Unseen {
    /// A batch waits for these.
    pub(crate) fn add(&mut self, row: RowId, tickets: Vec<u64>, now: Instant, within: Duration) {
        self.rows.push(Waiting {
            row,
            tickets,
            by: now + within,
            is_late: false,
        });
    }

    /// A ticket has been answered. What comes of it; `None`: nothing yet, or it is none of these.
    pub(crate) fn seen(&mut self, ticket: u64) -> Option<Seen> {
        let has = |waiting: &Waiting| waiting.tickets.contains(&ticket);
        let place = self.rows.iter().position(has)?;
        let waiting = &mut self.rows[place];
        waiting.tickets.retain(|other| *other != ticket);
        if !waiting.tickets.is_empty() {
            return None;
        }
        let waiting = self.rows.swap_remove(place);
        Some(match waiting.is_late {
            true => Seen::Late(waiting.row),
            false => Seen::InTime(waiting.row),
        })
    }

    /// A batch that has waited for long enough. It goes on to wait, for what is said of it later.
    pub(crate) fn overdue(&mut self, now: Instant) -> Option<RowId> {
        let mut rows = self.rows.iter_mut();
        let waiting = rows.find(|waiting| !waiting.is_late && waiting.by <= now)?;
        waiting.is_late = true;
        Some(waiting.row)
    }

    /// When one has waited for long enough.
    pub(crate) fn due(&self) -> Option<Instant> {
        let waiting = self.rows.iter().filter(|waiting| !waiting.is_late);
        waiting.map(|waiting| waiting.by).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_ends_once_all_have_seen_it_or_when_its_time_is_up() {
        let row = |index| {
            let mut row = RowId::default();
            row.index = index;
            row
        };
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let within = Duration::from_millis(10);
        let mut unseen = Unseen::default();
        unseen.add(row(1), vec![1, 2], at(0), within);
        unseen.add(row(2), vec![3], at(5), within);
        assert_eq!((unseen.seen(1), unseen.seen(9)), (None, None));
        assert_eq!((unseen.due(), unseen.overdue(at(9))), (Some(at(10)), None));
        assert_eq!(unseen.seen(2), Some(Seen::InTime(row(1))));
        assert_eq!(unseen.overdue(at(15)), Some(row(2)));
        assert_eq!((unseen.overdue(at(99)), unseen.due()), (None, None));
        assert_eq!(unseen.seen(3), Some(Seen::Late(row(2))));
        assert_eq!(unseen.seen(3), None);
    }
}
