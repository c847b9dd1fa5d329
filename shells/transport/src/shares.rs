//! How many lanes each session, and each address, has open here: nobody takes all descriptors of the process, or all that a
//! device has.

use std::net::IpAddr;

use rustix::process::{Resource, getrlimit};

use crate::SessionId;
use crate::place::Place;
use crate::tally::Tally;

/// What part of them the lanes of one session may take, and those from one address.
const SESSION_PART: u64 = 8;
const ADDRESS_PART: u64 = 2;

const DESCRIPTORS: &str =
    "descriptors that there are (limits/descriptors, up to the hard limit of the process)";
const PAIRS: &str = "queue pairs that the device has";

/// Open lanes.
#[derive(Debug, Default)]
pub struct Shares {
    sessions: Tally<SessionId>,
    places: Tally<Place>,
}

impl Shares {
    /// Why there can be no further lane of this session from this address. `None`: there can. `pairs`: queue pairs that the
    /// device has, of which each lane takes one; a descriptor of the process's each takes anyway.
    pub fn refusal(
        &self,
        session: SessionId,
        address: IpAddr,
        pairs: Option<u64>,
    ) -> Option<String> {
        let descriptors = getrlimit(Resource::Nofile).current;
        let descriptors = descriptors.and_then(|of| self.full(session, address, of, DESCRIPTORS));
        descriptors.or_else(|| self.full(session, address, pairs?, PAIRS))
    }

    fn full(
        &self,
        session: SessionId,
        address: IpAddr,
        of: u64,
        what: &'static str,
    ) -> Option<String> {
        let text = |who: String, lanes: u64| {
            format!("{who} has {lanes} lanes, its share of the {of} {what}")
        };
        let own = self.sessions.of(&session) as u64;
        if own >= of / SESSION_PART {
            return Some(text("this session".into(), own));
        }
        let own = self.places.of(&Place::of(address)) as u64;
        (own >= of / ADDRESS_PART).then(|| text(address.to_string(), own))
    }

    /// Whether no lane is open.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.places.is_empty()
    }

    /// A lane is open.
    pub fn add(&mut self, session: SessionId, address: IpAddr) {
        self.sessions.add(session, 1);
        self.places.add(Place::of(address), 1);
    }

    /// A lane is closed.
    pub fn remove(&mut self, session: SessionId, address: IpAddr) {
        self.sessions.take(&session, 1);
        self.places.take(&Place::of(address), 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_and_an_address_have_their_share_and_what_is_full_is_named() {
        let mut shares = Shares::default();
        let [one, other]: [IpAddr; 2] = [1, 2].map(|host| [10, 0, 0, host].into());
        let session = |number: u8| SessionId([number; 16]);
        (0..8).for_each(|_| shares.add(session(0), one));
        let text = shares.full(session(0), other, 64, DESCRIPTORS).unwrap();
        let expected = "this session has 8 lanes, its share of the 64 descriptors";
        assert!(
            text.contains(expected) && text.contains("limits/descriptors"),
            "{text}"
        );
        for number in 1..4 {
            assert_eq!(shares.full(session(number), one, 64, DESCRIPTORS), None);
            (0..8).for_each(|_| shares.add(session(number), one));
        }
        let text = shares.full(session(4), one, 64, DESCRIPTORS).unwrap();
        assert!(text.contains("10.0.0.1 has 32 lanes"), "{text}");
        assert_eq!(shares.full(session(4), other, 64, DESCRIPTORS), None);
        shares.remove(session(0), one);
        assert_eq!(shares.full(session(0), one, 64, DESCRIPTORS), None);
        let text = shares.refusal(session(0), one, Some(56)).unwrap();
        assert!(
            text.contains("7 lanes, its share of the 56 queue pairs"),
            "{text}"
        );
        assert_eq!(shares.refusal(session(5), other, Some(56)), None);
        (1..8).for_each(|_| shares.remove(session(0), one));
        (1..4).for_each(|number| (0..8).for_each(|_| shares.remove(session(number), one)));
        assert!(shares.is_empty());
    }
}
