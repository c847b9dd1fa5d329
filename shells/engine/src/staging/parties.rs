//! The numbers of those who use slots: our peers have theirs already, and peers' sessions with us get some.

use polyrail_control::plane::Party;
use polyrail_core::units::PeerId;
use polyrail_transport::SessionId;

/// Sessions that may use our slots at the same time.
const SESSIONS_MAX: usize = 64;

/// Who has which number.
#[derive(Debug)]
pub(super) struct Parties {
    /// Numbers below this one are peers'.
    peers: usize,
    sessions: Vec<Option<SessionId>>,
}

impl Parties {
    /// With so many peers.
    pub(super) fn new(peers: usize) -> Self {
        Self {
            peers,
            sessions: Vec::new(),
        }
    }

    /// How many peers there can be.
    pub(super) fn peers(&self) -> usize {
        self.peers
    }

    /// All who can have a number.
    pub(super) fn most(&self) -> usize {
        self.peers + SESSIONS_MAX
    }

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
        Some(self.numbered(row))
    }

    fn find(&self, session: SessionId) -> Option<PeerId> {
        let row = self.sessions.iter().position(|row| *row == Some(session));
        row.map(|row| self.numbered(row))
    }

    /// A session needs its number no more.
    pub(super) fn forget(&mut self, session: SessionId) -> Option<PeerId> {
        let number = self.find(session)?;
        self.sessions[usize::from(number.0) - self.peers] = None;
        Some(number)
    }

    /// Whose number it is.
    pub(super) fn party(&self, number: PeerId) -> Option<Party> {
        match usize::from(number.0).checked_sub(self.peers) {
            None => Some(Party::Peer(number)),
            Some(row) => self.sessions.get(row)?.map(Party::Session),
        }
    }

    fn numbered(&self, row: usize) -> PeerId {
        PeerId((self.peers + row) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_keep_their_number_until_they_are_forgotten() {
        let session = |number: u8| Party::Session(SessionId([number; 16]));
        let mut parties = Parties::new(64);
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
        assert_eq!(last, Some(parties.most() - 1));
    }
}
