//! What the control plane asks and tells, passed on to whoever it is for. Runs on the control thread, so
//! nothing here blocks.

use std::net::IpAddr;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use polyrail_control::codec::SegmentDescriptor;
use polyrail_control::plane::{
    CallAnswer, Guest, Handler, Notifier, Party, Rails, SessionEnd, SessionLoss,
};
use polyrail_core::message::Frame;
use polyrail_core::orchestrator::Proof;
use polyrail_core::path::view::PathView;
use polyrail_core::stage::StageMessage;
use polyrail_core::units::{Epoch, LaneId, PeerId};
use polyrail_transport::memory::{Region, TrustDomain};
use polyrail_transport::{FenceAnswer, InboundLane, RetireAnswer, SessionId};

use crate::answering::{Asked, Waiting};
use crate::config::PathConfig;
use crate::domains::Domains;
use crate::fabric::Fabric;
use crate::guests::Guests;
use crate::lock::lock;
use crate::machine::Machine;
use crate::notification::Inbox;
use crate::peers::Peers;
use crate::post::{Command, Post};
use crate::segments::Segments;
use crate::sessions::Said;
use crate::staging::{StagerCell, Word};
use crate::task::Task;
use crate::transports::Transports;

pub(crate) struct Reception {
    pub(crate) segments: Arc<Segments>,
    pub(crate) domains: Arc<Domains>,
    pub(crate) transports: Arc<Transports>,
    pub(crate) posts: Vec<Arc<Post>>,
    pub(crate) tasks: Sender<Task>,
    /// Where peers' calls wait; without it they are refused.
    pub(crate) calls: Option<Arc<Waiting>>,
    /// What the engine is called.
    pub(crate) name: String,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) path: PathConfig,
    pub(crate) machine: Arc<Machine>,
    pub(crate) stager: Arc<StagerCell>,
    pub(crate) said: Arc<Said>,
    pub(crate) guests: Arc<Guests>,
    pub(crate) peers: Arc<Mutex<Peers>>,
    pub(crate) fabric: Arc<Fabric>,
}

impl Reception {
    fn tell_all(&self, command: impl Fn() -> Command) {
        for post in &self.posts {
            post.send(command());
        }
    }
}

impl Handler for Reception {
    fn domain_of(&self, address: IpAddr, member: Option<&str>) -> TrustDomain {
        self.domains.of(address, member)
    }

    fn describe(&self, name: &str, domain: TrustDomain) -> Option<SegmentDescriptor> {
        let node = |region: &Region| self.machine.memory_node(region);
        let seen = self.segments.describe(name, domain, node);
        if seen.is_none() && (self.segments.describe(name, domain.encrypted(), |_| None)).is_some()
        {
            polyrail_transport::complain!(
                "a peer asks for segment \"{}\", which is for peers that encrypt only (security/encrypted_segments), and its \
                 session does not: security/payload encrypt at either end would do",
                name.escape_debug()
            );
        }
        seen
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

    fn session_began(&self, guest: &Guest<'_>) {
        self.guests.begin(guest, self.domains.name(guest.domain));
        self.transports
            .begin_session(guest.session, guest.domain, guest.secret.clone());
    }

    fn moved(&self, session: SessionId, bytes: u64) {
        self.guests.moved(session, bytes);
    }

    fn lane(&self, lane: InboundLane) {
        self.transports.admit(lane);
    }

    fn fence(&self, session: SessionId, lane: LaneId, epoch: Epoch, answer: FenceAnswer) {
        self.transports.fence_inbound(session, lane, epoch, answer);
    }

    fn call(&self, session: SessionId, method: u16, body: Vec<u8>, answer: CallAnswer) {
        let Some(caller) = self.guests.who(session) else {
            return answer(Err("the session is over".into()));
        };
        let Some(calls) = &self.calls else {
            let name = &self.name;
            let text = format!("the program of engine \"{name}\" takes no calls");
            return answer(Err(text));
        };
        calls.add(Asked {
            session,
            caller,
            method,
            body,
            answer,
        });
    }

    fn notify(&self, from: &Notifier<'_>, body: Vec<u8>) -> bool {
        self.inbox.put(from, body)
    }

    fn session_ended(&self, session: SessionId, why: SessionEnd, retired: RetireAnswer) {
        self.guests.end(session, why);
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

    fn moved_with(&self, peer: PeerId) -> Option<u64> {
        let peers = lock(&self.peers);
        Some(peers.get(peer)?.moved_bytes(&self.fabric.shared()))
    }

    fn is_idle(&self, peer: PeerId) -> bool {
        let peers = lock(&self.peers);
        let shared = self.fabric.shared();
        peers.get(peer).is_none_or(|peer| peer.is_idle(&shared))
    }

    fn leaves(&self, peer: PeerId) {
        let _ = self.tasks.send(Task::Leaves(peer));
    }

    fn has_rails(&self, peer: PeerId, rails: Rails) {
        // One that says much at once is looked at once.
        if lock(&self.said).insert(peer, rails).is_none() {
            let _ = self.tasks.send(Task::Rails(peer));
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
        let task = match why {
            SessionLoss::Forgotten { .. } => {
                self.tell_all(|| Command::PeerGone(peer, Proof::SessionEnded));
                Task::Reconnect { peer, incarnation }
            }
            SessionLoss::Exited { .. } => {
                self.tell_all(|| Command::PeerGone(peer, Proof::ProcessGone));
                Task::Lost { peer, incarnation }
            }
            // No proof: what is in flight there ends by its fences, or without proof.
            _ => Task::Lost { peer, incarnation },
        };
        let _ = self.tasks.send(task);
    }
}
