//! The engine as a program holds it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use polyrail_control::security::{ClusterKey, Fingerprint};
use polyrail_core::orchestrator::LaneLoad;
use polyrail_core::rail::health::RailState;
use polyrail_core::units::RailId;
use polyrail_record::Cut as RecordingCut;
use polyrail_transport::clock::Clock;
use serde::{Serialize, Serializer};

use crate::answering::Answering;
use crate::config::Config;
use crate::delivery::Mail;
use crate::descriptors;
use crate::domains::Domains;
use crate::ending::Ending;
use crate::fabric::Fabric;
use crate::files::Files;
use crate::fork::Owned;
use crate::gpus::Hardware;
use crate::guests::Guests;
use crate::lanes;
use crate::lock::lock;
use crate::metrics::{self, Exposed};
use crate::overlap::Written;
use crate::plans::Plans;
use crate::segments::Segments;
use crate::sessions::Sessions;
use crate::staging::Staging;
use crate::stats::{self, FenceStats, LimitUse, Stats, UnsettledStats};
use crate::task::Tasks;
use crate::transports::{Catalog, TransportStatus};
use crate::wakers::WakerThread;
use crate::watch::Watch;
use crate::workers::Workers;

/// An engine. Clones are handles of the same one; the last one dropped shuts it down, and its segments are gone for peers.
///
/// What to call for what is in the [table on the front page](crate#where-to-begin). Everything takes `&self`, from any thread.
///
/// # Fork
///
/// An engine belongs to the process that made it. The parent of a `fork` notices nothing. In the child there
/// are copies of its handles and none of its threads: operations answer `Forked`, what has no error says
/// nothing, and dropping handles, or ending the process, leaves the parent's connections and waiters alone.
/// The child can make an engine of its own. Descriptors are close-on-exec, so `fork` and `exec` leave nothing
/// behind. A child that does not exec keeps the parent's sockets open as long as it lives, so should the
/// parent die without a word, its peers notice that by silence, not at once. Memory that the program
/// registered stays what it was for the parent, whose pages the engine goes on using; the child sees its own
/// copy from the moment of the fork.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Owned<Inner>,
    /// Makes it one of the program's handles. Those that the engine's own threads have for a while do not keep it.
    pub(crate) program: Option<Owned<Program>>,
}

/// What the handles of a program share: with the last one the engine ends.
pub(crate) struct Program {
    inner: Arc<Inner>,
    /// What answers about metrics, if the configuration asks for it.
    pub(crate) exposed: Option<Exposed>,
}

impl Drop for Program {
    fn drop(&mut self) {
        self.inner.shut_down();
    }
}

pub(crate) struct Inner {
    pub(crate) config: Config,
    /// What people tell the cluster's key by.
    pub(crate) key: RwLock<Option<Arc<ClusterKey>>>,
    pub(crate) clock: Clock,
    pub(crate) transports: Arc<Catalog>,
    pub(crate) hardware: Hardware,
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) domains: Arc<Domains>,
    pub(crate) files: Arc<Files>,
    pub(crate) staging: Staging,
    pub(crate) sessions: Sessions,
    pub(crate) plans: Plans,
    pub(crate) workers: Workers,
    /// What is written on its way, if that is looked at.
    pub(crate) written: Option<Arc<Written>>,
    pub(crate) mail: Mail,
    /// What wakes tasks of the program.
    pub(crate) waker_thread: Owned<WakerThread>,
    /// Those that have sessions with this engine.
    pub(crate) guests: Arc<Guests>,
    /// Where peers wait to be let in.
    pub(crate) outside: Mutex<Vec<TcpListener>>,
    /// The addresses that peers can come in at.
    pub(crate) entrances: Mutex<BTreeSet<IpAddr>>,
    pub(crate) tasks: Tasks,
    /// What carries peers' calls out, if the program takes any.
    pub(crate) answering: Option<Answering>,
    pub(crate) watch: Watch,
    pub(crate) ending: Ending,
}

/// A rail as the program sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RailStatus {
    /// `tcp:LOCAL>REMOTE`; `*` for a local address that the kernel chooses, or that there is none.
    #[serde(rename = "rail")]
    pub name: String,
    /// It is a local address's second way to the peer, which carries bytes only while its first one is out.
    pub is_spare: bool,
    /// It carries nothing, because an end of it is offered no more: [`Engine::reload`] has taken it out there.
    pub is_withdrawn: bool,
    /// Where it stands.
    #[serde(serialize_with = "rail_state")]
    pub state: RailState,
    /// Bytes acknowledged since the engine started, both directions.
    pub bytes: u64,
    /// Bytes on their way on it.
    pub inflight_bytes: u64,
    /// How fast it is taken to be, learned from what went over it, in bytes per second.
    pub bytes_per_sec: u64,
    /// Slices that went over it after they had been sent before, over this or another rail.
    pub sent_again: u64,
    /// How long it has been in its state.
    #[serde(serialize_with = "stats::seconds")]
    pub state_for: Duration,
    /// How long it has been in each state, with this time; of states that it was never in nothing.
    #[serde(serialize_with = "stats::all_seconds")]
    pub in_states: BTreeMap<&'static str, Duration>,
    /// How often it was paused, by cause.
    pub pauses: BTreeMap<&'static str, u64>,
}

fn rail_state<S: Serializer>(state: &RailState, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(state.name())
}

impl Engine {
    /// Where it listens, with the port that it got.
    ///
    /// Example: [guide](crate::guide#starting).
    pub fn listening(&self) -> Option<SocketAddr> {
        self.inner.sessions.listening
    }

    /// Whether this process made it. In a forked child it is a copy that can do nothing.
    ///
    /// Example: [guide](crate::guide#starting).
    pub fn is_ours(&self) -> bool {
        self.inner.is_ours()
    }

    /// Lets peers in, where [`Hooks::lets_in_later`](crate::Hooks::lets_in_later) has kept them out.
    ///
    /// Example: [guide](crate::guide#starting).
    pub fn let_in(&self) {
        if self.is_ours() {
            for listener in lock(&self.inner.outside).drain(..) {
                self.inner.sessions.plane.listen(listener);
            }
        }
    }

    /// What people tell the cluster's key, or its certificate, by that it has now; `None`: there is none, and nobody is asked for one.
    ///
    /// Example: [guide](crate::guide#starting).
    pub fn key(&self) -> Option<Fingerprint> {
        self.membership().map(|key| key.fingerprint())
    }

    /// What it proves with that it is a member.
    pub(crate) fn membership(&self) -> Option<Arc<ClusterKey>> {
        let key = self.inner.key.read();
        key.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All rails, in the order in which they were made: for the first peer that of [`Config::rails`], then their spares. Those of a
    /// lost peer stay until a new peer needs their place.
    ///
    /// Example: [guide](crate::guide#looking-at-an-engine).
    pub fn rails(&self) -> Vec<RailStatus> {
        if !self.is_ours() {
            return Vec::new();
        }
        let shared = self.inner.fabric.shared();
        let peers = lock(&self.inner.sessions.peers);
        let withdrawn = peers.withdrawn_rails();
        let status = |(number, name): (usize, &String)| {
            let rail = RailId(number as u16);
            let view = shared.view(rail)?;
            let history = self.inner.fabric.times.of(rail);
            Some(RailStatus {
                name: name.clone(),
                is_spare: view.is_spare,
                is_withdrawn: withdrawn.contains(&rail),
                state: view.state,
                bytes: view.done_bytes,
                inflight_bytes: view.inflight_bytes,
                bytes_per_sec: view.rate.bytes_per_sec(),
                sent_again: view.sent_again.into(),
                state_for: history.state_for,
                in_states: history.in_states,
                pauses: history.pauses,
            })
        };
        peers
            .rail_names()
            .iter()
            .enumerate()
            .filter_map(status)
            .collect()
    }

    /// Its transports in order of preference, those too that it runs without.
    ///
    /// Example: [guide](crate::guide#looking-at-an-engine).
    pub fn transports(&self) -> Vec<TransportStatus> {
        self.inner.transports.status()
    }

    /// What it has done so far, and what is held. Asks its workers, for 50 ms at most.
    ///
    /// Example: [guide](crate::guide#looking-at-an-engine).
    pub fn stats(&self) -> Stats {
        let inner = &self.inner;
        let name = |transport| inner.transports.name(transport);
        let posts = &inner.workers.posts;
        let rail = |lane: &LaneLoad| lock(&inner.sessions.peers).rail_name(lane.rail).to_owned();
        let lanes = lanes::all(posts, inner.clock.now(), rail);
        // Each lock is let go before the next one is taken.
        let devices = lock(&inner.sessions.peers).traffic(inner.fabric.shared(), &inner.transports);
        let (rails, limits) = (self.rails(), self.limits());
        let mut requests = Vec::new();
        for post in posts.iter().chain(inner.staging.post()) {
            post.requests.add_to(&mut requests, name);
        }
        let now = inner.clock.now();
        let (mut unsettled, mut fences) = (UnsettledStats::default(), FenceStats::default());
        for post in posts.iter().chain(inner.staging.post()) {
            unsettled.add(post.unsettled(now));
            fences.add(&post.fences.stats(now));
        }
        Stats {
            requests,
            unsettled,
            fences,
            failovers: inner.workers.failovers.list(name),
            devices,
            workers: posts.iter().map(|post| post.room.load()).collect(),
            lanes,
            lanes_denied: inner.sessions.plane.lanes_denied(),
            certificate_ends: self.membership().and_then(|key| key.ends_at()),
            rails,
            limits,
            sessions: inner.guests.list(),
            transports: self.transports(),
            slots: inner.staging.slots(),
            hint: inner.workers.hints.as_ref().and_then(|hints| hints.stats()),
        }
    }

    /// How much is used of what there can only be so much of.
    fn limits(&self) -> Vec<LimitUse> {
        let inner = &self.inner;
        let (peers, rails) = lock(&inner.sessions.peers).used();
        let pairs = lock(&inner.plans.ids).used();
        let (segments, segments_most) = inner.segments.used();
        let limits = &inner.config.limits;
        let mut used = vec![
            LimitUse::new("peers", peers, limits.peers),
            LimitUse::new("rails", rails, limits.rails),
            LimitUse::new("pairs", pairs, limits.pairs),
            LimitUse::new("segments", segments, segments_most),
        ];
        if let Some((open, most)) = descriptors::used() {
            used.push(LimitUse::new("descriptors", open, most));
        }
        used
    }

    /// The flight recording, if [`crate::Hooks::recording`] asked for one: every call on core, and what it answered.
    /// `polyrail sim replay` makes the calls again. It is whole when [`Self::shutdown`] has returned, unless
    /// [`Self::recording_cut`] says otherwise.
    ///
    /// Example: [guide](crate::guide#looking-at-an-engine).
    pub fn recording(&self) -> Option<&Path> {
        self.inner.fabric.recording()
    }

    /// Why the flight recording does not have all that happened, if so: its disk was full, or did not follow. The engine does
    /// not wait for it.
    ///
    /// Example: [guide](crate::guide#looking-at-an-engine).
    pub fn recording_cut(&self) -> Option<RecordingCut> {
        self.inner.fabric.recording_cut()
    }

    /// Writes the last calls on core, which [`crate::RecordingConfig::ring_mb`] keeps, to a new file: its name. `polyrail sim replay`
    /// makes them again. Waits for the disk. `None`: none are kept.
    ///
    /// Example: [guide](crate::guide#looking-at-an-engine).
    pub fn write_ring(&self) -> Option<std::io::Result<PathBuf>> {
        if !self.inner.is_ours() {
            return None;
        }
        self.inner.fabric.write_ring()
    }

    /// A handle for a thread of the engine: it ends nothing.
    pub(crate) fn from_inner(inner: Arc<Inner>) -> Self {
        let inner = Owned::new(inner);
        Self {
            inner,
            program: None,
        }
    }

    /// The same, of this engine.
    pub(crate) fn aside(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            program: None,
        }
    }

    /// The first handle of the program.
    pub(crate) fn whole(inner: Arc<Inner>) -> Self {
        let program = Arc::new(Program {
            inner: inner.clone(),
            exposed: metrics::configured(&inner),
        });
        let _ = inner.ending.program.set(Arc::downgrade(&program));
        Self {
            program: Some(Owned::new(program)),
            ..Self::from_inner(inner)
        }
    }

    /// A handle of the program, for its code that the engine calls. `None`: it has dropped all.
    pub(crate) fn for_program(&self) -> Option<Self> {
        let program = self.inner.ending.program.get()?.upgrade()?;
        Some(Self {
            inner: self.inner.clone(),
            program: Some(Owned::new(program)),
        })
    }

    pub(crate) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.inner)
    }

    /// Frees what processes that have ended left in the host's load record.
    pub(crate) fn bury(&self) {
        if let Some(neighbours) = self.inner.fabric.neighbours() {
            neighbours.bury();
        }
    }
}
