//! The numbers of those who use slots: our peers have theirs already, and peers' sessions with us get some.

use polyrail_control::plane::Party;
use polyrail_core::units::PeerId;
use polyrail_transport::SessionId;

use crate::fabric::PEERS_MAX;

/// Sessions that may use our slots at the same time.
const SESSIONS_MAX: usize = 64;
/// All who can have a number.
pub(super) const PARTIES_MAX: usize = PEERS_MAX + SESSIONS_MAX;

/// Who has which number. Those below [`PEERS_MAX`] are peers'.
#[derive(Debug, Default)]
pub(super) struct Parties {
    sessions: Vec<Option<SessionId>>,
}

impl Parties {
    /// The number of a party, given to it if it has none; `None`: all are taken.
    pub(super) fn number(&mut self, party: Party) -> Option<PeerId> {
        let session = match party {
            Party::Peer(peer) => return Some(peer),
            Party::Session(session) => session,
        };
        if let Some(number) = self.find(session) {
            return Some(number);
        }
        let free = self.sessions.iter().position(Option::is_none);
        let row = match free {
            Some(row) => row,
            None if self.sessions.len() < SESSIONS_MAX => {
                self.sessions.push(None);
                self.sessions.len() - 1
            }
            None => return None,
        };
        self.sessions[row] = Some(session);
        Some(numbered(row))
    }

    fn find(&self, session: SessionId) -> Option<PeerId> {
        let row = self.sessions.iter().position(|row| *row == Some(session));
        row.map(numbered)
    }

    /// A session needs its number no more.
    pub(super) fn forget(&mut self, session: SessionId) -> Option<PeerId> {
        let number = self.find(session)?;
        self.sessions[usize::from(number.0) - PEERS_MAX] = None;
        Some(number)
    }

    /// Whose number it is.
    pub(super) fn party(&self, number: PeerId) -> Option<Party> {
        match usize::from(number.0).checked_sub(PEERS_MAX) {
            None => Some(Party::Peer(number)),
            Some(row) => self.sessions.get(row)?.map(Party::Session),
        }
    }
}

fn numbered(row: usize) -> PeerId {
    PeerId((PEERS_MAX + row) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_keep_their_number_until_they_are_forgotten() {
        let session = |number: u8| Party::Session(SessionId([number; 16]));
        let mut parties = Parties::default();
        let peer = Party::Peer(PeerId(3));
        assert_eq!(parties.number(peer), Some(PeerId(3)));
        assert_eq!(parties.party(PeerId(3)), Some(peer));
        let all: Vec<_> = (0..SESSIONS_MAX as u8)
            .map(|number| parties.number(session(number)).unwrap())
            .collect();
        assert_eq!(parties.number(session(200)), None);
        assert_eq!(parties.number(session(7)), Some(all[7]));
        assert_eq!(parties.party(all[7]), Some(session(7)));
        assert_eq!(parties.forget(SessionId([7; 16])), Some(all[7]));
        assert_eq!(parties.party(all[7]), None);
        assert_eq!(parties.forget(SessionId([7; 16])), None);
        assert_eq!(parties.number(session(200)), Some(all[7]));
        let last = all.iter().map(|number| usize::from(number.0)).max();
        assert_eq!(last, Some(PARTIES_MAX - 1));
    }
}
