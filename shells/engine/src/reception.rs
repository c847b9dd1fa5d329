//! What the control plane asks and tells, passed on to whoever it is for. Runs on the control thread, so
//! nothing here blocks.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use polyrail_control::codec::SegmentDescriptor;
use polyrail_control::plane::{CallAnswer, Handler, Notifier, Party, SessionLoss};
use polyrail_core::message::Frame;
use polyrail_core::orchestrator::Proof;
use polyrail_core::path::view::PathView;
use polyrail_core::stage::StageMessage;
use polyrail_core::units::{Epoch, LaneId, PeerId};
use polyrail_transport::memory::{Region, TrustDomain};
use polyrail_transport::{FenceAnswer, InboundLane, RetireAnswer, SessionId};

use crate::config::PathConfig;
use crate::domains::Domains;
use crate::errand::{Errand, Waiting};
use crate::machine::Machine;
use crate::notification::Inbox;
use crate::post::{Command, Post};
use crate::segments::Segments;
use crate::staging::{StagerCell, Word};
use crate::transports::Transports;

pub(crate) struct Reception {
    pub(crate) segments: Arc<Segments>,
    pub(crate) domains: Arc<Domains>,
    pub(crate) transports: Arc<Transports>,
    pub(crate) posts: Vec<Arc<Post>>,
    pub(crate) errands: Sender<Errand>,
    /// Calls among them.
    pub(crate) calls: Waiting,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) path: PathConfig,
    pub(crate) machine: Arc<Machine>,
    pub(crate) stager: Arc<StagerCell>,
}

impl Reception {
    fn tell_all(&self, command: impl Fn() -> Command) {
        for post in &self.posts {
            post.send(command());
        }
    }
}

impl Handler for Reception {
    fn domain_of(&self, address: IpAddr) -> TrustDomain {
        self.domains.of(address)
    }

    fn describe(&self, name: &str, domain: TrustDomain) -> Option<SegmentDescriptor> {
        let node = |region: &Region| self.machine.memory_node(region);
        self.segments.describe(name, domain, node)
    }

    fn see_path(&self, rails: &[(IpAddr, IpAddr)]) -> Option<PathView> {
        let seen = self.path.see(rails).unwrap_or_else(|error| {
            polyrail_transport::complain!(
                "a peer's rails are none that this engine could use: {error}"
            );
            None
        });
        seen.map(|path| path.view)
    }

    fn session_began(&self, session: SessionId, domain: TrustDomain) {
        self.transports.begin_session(session, domain);
    }

    fn lane(&self, lane: InboundLane) {
        self.transports.admit(lane);
    }

    fn fence(&self, session: SessionId, lane: LaneId, epoch: Epoch, answer: FenceAnswer) {
        self.transports.fence_inbound(session, lane, epoch, answer);
    }

    fn call(&self, _session: SessionId, method: u16, body: Vec<u8>, answer: CallAnswer) {
        let Some(room) = self.calls.take(body.len()) else {
            return answer(Err("too many calls wait to be carried out".into()));
        };
        // Dropped unanswered if the engine is ending; the caller has a timeout.
        let _ = self.errands.send(Errand::Call {
            method,
            body,
            answer,
            room,
        });
    }

    fn notify(&self, from: &Notifier<'_>, body: Vec<u8>) -> bool {
        self.inbox.put(from, body)
    }

    fn session_ended(&self, session: SessionId, retired: RetireAnswer) {
        self.inbox.forget(session);
        let Some(stager) = self.stager.get().cloned() else {
            return self.transports.retire_session(session, retired);
        };
        // What it still writes to slots is over only then.
        let ended = move || {
            stager.say(Word::SessionGone(session));
            retired();
        };
        self.transports.retire_session(session, Box::new(ended));
    }

    fn heard(&self, peer: PeerId) {
        self.tell_all(|| Command::Frame(peer, Frame::Alive));
    }

    fn fenced(&self, peer: PeerId, lane: LaneId, epoch: Epoch, delivered: u32) {
        if let Some(post) = self.posts.get(usize::from(lane.worker())) {
            post.send(Command::Frame(
                peer,
                Frame::Fenced {
                    lane,
                    epoch,
                    delivered,
                },
            ));
        }
    }

    fn staged(&self, from: Party, message: StageMessage) {
        // Without it there are no slots that anybody could speak of.
        if let Some(stager) = self.stager.get() {
            stager.say(Word::Said(from, message));
        }
    }

    fn session_lost(&self, peer: PeerId, why: SessionLoss) {
        let incarnation = why.incarnation();
        let proof = match why {
            SessionLoss::Forgotten { .. } => Some(Proof::SessionEnded),
            SessionLoss::Exited { .. } => Some(Proof::ProcessGone),
            _ => None,
        };
        if let (Some(stager), Some(proof)) = (self.stager.get(), proof) {
            stager.say(Word::PeerGone(peer, Some(proof)));
        }
        let errand = match why {
            SessionLoss::Forgotten { .. } => {
                self.tell_all(|| Command::PeerGone(peer, Proof::SessionEnded));
                Errand::Reconnect { peer, incarnation }
            }
            SessionLoss::Exited { .. } => {
                self.tell_all(|| Command::PeerGone(peer, Proof::ProcessGone));
                Errand::Lost { peer, incarnation }
            }
            // No proof: what is in flight there ends by its fences, or without proof.
            _ => Errand::Lost { peer, incarnation },
        };
        let _ = self.errands.send(errand);
    }
}
