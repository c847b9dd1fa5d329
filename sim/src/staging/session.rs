//! Sessions: each host has one with the other, in which it uses the other's slots. Who does not hear a host for too long
//! ends that host's session and everything in it; the host finds out when it goes on, and makes a new one.

use polyrail_core::orchestrator::Proof;
use polyrail_core::stage::StageMessage;
use polyrail_core::time::Duration;
use polyrail_core::units::StageId;

use super::scenario::FaultKind;
use super::{GUEST, PEER, What, World};

/// A session's number.
pub(super) type Session = u32;

/// A host hears within this that its session is over, and makes the next one within it.
const NEWS_MAX: Duration = Duration::from_millis(1);
/// What went out in a session that is over goes on within this in the next one.
const RESUMES_MAX: Duration = Duration::from_micros(500);

/// A host's session with the other one, as both see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sides {
    /// The one that the host itself has.
    pub(super) here: Session,
    /// The one that the other host has for it, if any.
    pub(super) there: Option<Session>,
}

impl Default for Sides {
    fn default() -> Self {
        Self {
            here: 1,
            there: Some(1),
        }
    }
}

impl World<'_> {
    /// Enters when sessions end, as far as the scenario says it.
    pub(super) fn plan_sessions(&mut self) {
        for of in 0..2 {
            for stop in self.setup.stops(of) {
                let at = stop.start + self.setup.session_ns;
                if at < stop.end {
                    self.agenda.enter(at, What::SessionOver { of });
                }
            }
        }
        let faults = self.setup.faults.iter();
        for fault in faults.filter(|fault| fault.kind == FaultKind::Forget) {
            let of = fault.host;
            self.agenda.enter(fault.from, What::SessionOver { of });
        }
    }

    /// Whose process something needs; `None`: nobody's.
    pub(super) fn host_of(&self, what: &What) -> Option<usize> {
        match *what {
            What::Begins { thread } => Some(self.setup.threads[thread].host),
            What::Message { to, .. } => Some(to),
            What::SessionOver { of } => Some(1 - of),
            What::Ends { host, .. }
            | What::Cancels { host, .. }
            | What::Timer { host }
            | What::Forgotten { host }
            | What::Renews { host } => Some(host),
            What::Late { .. } | What::Proof { .. } => None,
        }
    }

    /// The session that a message to a host is said in, as its sender has it.
    pub(super) fn session_of(&self, to: usize, message: &StageMessage) -> Session {
        if message.is_question() {
            self.sessions[1 - to].here
        } else {
            // Nobody listens to what is said in none.
            self.sessions[to].there.unwrap_or(0)
        }
    }

    /// A message arrives, if its session is both sides'.
    pub(super) fn hear(&mut self, to: usize, message: &StageMessage, session: Session) {
        let (asks, as_whom) = if message.is_question() {
            (1 - to, GUEST)
        } else {
            (to, PEER)
        };
        let sides = self.sessions[asks];
        if (sides.here, sides.there) == (session, Some(session)) {
            let now = self.instant(to);
            // Late and repeated ones may be refused; nothing else may follow from them.
            let _ = self.hosts[to].handle_message(now, as_whom, message);
        }
    }

    /// The other host ends a host's session: nothing that was begun in it moves anything any more.
    pub(super) fn end_session(&mut self, of: usize) {
        if self.sessions[of].there.take().is_none() {
            return;
        }
        self.history.forgotten += 1;
        let now = self.instant(1 - of);
        self.hosts[1 - of].handle_peer_gone(now, GUEST, Some(Proof::SessionEnded));
        let at = self.soon(NEWS_MAX);
        self.agenda.enter(at, What::Forgotten { host: of });
    }

    pub(super) fn hear_of_end(&mut self, host: usize) {
        let now = self.instant(host);
        self.hosts[host].handle_peer_gone(now, PEER, Some(Proof::SessionEnded));
        let at = self.soon(NEWS_MAX);
        self.agenda.enter(at, What::Renews { host });
    }

    /// A host makes a new session, if core lets it. Hops that are still out go on in it, as requests do.
    pub(super) fn renew_session(&mut self, host: usize) {
        if self.hosts[host].is_held_off(PEER) {
            let at = self.soon(NEWS_MAX);
            return self.agenda.enter(at, What::Renews { host });
        }
        let session = self.sessions[host].here + 1;
        self.sessions[host] = Sides {
            here: session,
            there: Some(session),
        };
        let mut waiting = Vec::new();
        for (_, out) in self.hops.out.range_mut((host, FIRST)..(host + 1, FIRST)) {
            out.session = session;
            waiting.extend(out.waits.take().map(|fate| (out.stage, fate)));
        }
        for (stage, fate) in waiting {
            let at = self.soon(RESUMES_MAX);
            self.agenda.enter(at, What::Ends { host, stage, fate });
        }
        self.moved_at = self.now;
    }
}

/// No hop's comes before it.
const FIRST: StageId = StageId {
    index: 0,
    generation: 0,
};
