//! One worker's engine: requests in, works out, facts in, reports out.
//!
//! The parts: [`bind`](self) gives slices their rails (`assign` does so when a request arrives, for the policy
//! that wants it; `open_rails` is how they stand meanwhile, `cut` what happens to slices that are too long), `denied` ends what far memory is not given to any more, `post` hands them
//! out (`at_once` finds what need not be handed out), `lane` opens and suspects, `load` is what people are told of lanes, `fence` proves that nothing moves any more, `handover` gives requests to the caller that no lane is to carry, `flight` is what is on a lane, `attempt`
//! follows one posting of one slice, `attempts` has rows for them, `sequence` is the order of a lane's works, `settings` what the policy says of single transports, `request` counts
//! until a report can be given, `ignored` what was handed in for nothing, `line`
//! says which goes first, `merge` makes one of several, `peer` watches who is silent, `path` chooses classes of rails,
//! `timer` finds what is due, `audit` checks every invariant.

mod assign;
mod at_once;
mod attempt;
mod attempts;
mod audit;
mod bind;
mod cut;
mod denied;
mod failover;
mod fence;
mod flight;
mod handover;
mod ignored;
mod lane;
mod line;
mod load;
mod merge;
mod open_rails;
mod path;
mod peer;
mod post;
mod request;
mod sequence;
mod settings;
#[cfg(feature = "serde")]
mod snapshot;
#[cfg(all(test, not(loom)))]
mod tests;
mod timer;

use core::num::NonZeroU32;

use crate::batch::{Batch, BatchReport};
use crate::message::{Frame, Message};
use crate::plan::{PLAN_TRANSPORTS_MAX, Plan};
use crate::queue::{Link, Linked, Queue};
use crate::rail::Shared;
use crate::rail::chooser::{Chooser, Spray};
use crate::rail::health::RailState;
use crate::rail::spray::Line;
use crate::report::{Local, Remote, Report, Status};
use crate::send_queue::SendQueueConfig;
use crate::table::{NIL, Row, Table};
use crate::time::{Duration, Instant};
use crate::units::{BatchId, Epoch, LaneId, PeerId, PlanId, RailId, RequestId, TransportId};
use crate::work::{Cause, Completion, LaneFact, Op, PostBatch, Priority, Scope, Stop};

use attempt::Attempt;
use attempts::Attempts;
use denied::Denials;
use lane::Lane;
use open_rails::OpenRails;
use peer::Peer;
use request::{Ending, RequestRow};

pub use at_once::AtOnce;
pub use audit::Violation;
pub use handover::Handed;
pub use ignored::Ignored;
pub use load::{LaneLoad, LaneState};
pub use peer::Proof;
pub use request::{About, Cancelled, SubmitError};

/// Limits of one [`Orchestrator`]. Every field is required: the shell knows the fabric, we do not.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Config<P = Spray> {
    /// This worker's number: its row among those who wait, and part of its lanes' names.
    pub worker: u16,
    /// How rails are chosen, and whatever that remembers.
    pub policy: P,
    /// Least time without a completion before a lane is suspected. Decides how fast silence is noticed and
    /// how often wrongly.
    pub progress_floor: Duration,
    /// How long a lane may take to open.
    pub open_timeout: Duration,
    /// A peer that nothing is heard from for so long is silent. While nothing goes to it or waits for it that takes as
    /// long again, or half of `fence_timeout` if that is less.
    pub peer_silence: Duration,
    /// How long proof is waited for before a report says `Indeterminate`, and how long requests wait for a
    /// peer without a usable rail. From the last sign of life if the peer is silent.
    pub fence_timeout: Duration,
    /// How long posted attempts of a cancelled request may go on before their lanes are fenced.
    pub cancel_grace: Duration,
    /// Time between repetitions of a message that is not answered.
    pub message_interval: Duration,
    /// Switches of transport that one request may cause; 0: none ever.
    pub failover_attempts_max: u8,
    /// A request that has waited so long behind others of higher priority moves up by one step, for one turn.
    pub priority_promotion: Duration,
    /// On lanes whose completions cover others, so many works at most go without one. 0: as many as their room allows.
    pub signal_interval_works: u16,
    /// A rail that has stood idle for so long while there was work is looked at, to see how fast it is now. Of [`Spray`].
    pub idle_look: Duration,
    /// Whether small requests that lie together on both sides go as one.
    pub merge_requests: bool,
    /// This transport has no lanes: the caller carries out what comes to it, see [`Event::HandedOver`]. It is the last one of a
    /// plan, and never preferred to another one for being faster.
    pub hands_over: Option<TransportId>,
}

impl<P> Config<P> {
    /// Limits that suit a network of microseconds to milliseconds.
    pub const fn new(worker: u16, policy: P) -> Self {
        Self {
            worker,
            policy,
            progress_floor: Duration::from_millis(5),
            open_timeout: Duration::from_secs(1),
            peer_silence: Duration::from_millis(1_200),
            fence_timeout: Duration::from_secs(2),
            cancel_grace: Duration::from_millis(100),
            message_interval: Duration::from_millis(20),
            failover_attempts_max: 3,
            priority_promotion: Duration::from_millis(10),
            signal_interval_works: SendQueueConfig::DEFAULT.signal_interval_works,
            idle_look: Duration::from_millis(5),
            merge_requests: true,
            hands_over: None,
        }
    }

    /// The same limits with another policy, which may be made of the one before.
    pub fn map_policy<Q>(self, policy: impl FnOnce(P) -> Q) -> Config<Q> {
        Config {
            worker: self.worker,
            policy: policy(self.policy),
            progress_floor: self.progress_floor,
            open_timeout: self.open_timeout,
            peer_silence: self.peer_silence,
            fence_timeout: self.fence_timeout,
            cancel_grace: self.cancel_grace,
            message_interval: self.message_interval,
            failover_attempts_max: self.failover_attempts_max,
            priority_promotion: self.priority_promotion,
            signal_interval_works: self.signal_interval_works,
            idle_look: self.idle_look,
            merge_requests: self.merge_requests,
            hands_over: self.hands_over,
        }
    }
}

/// What a program asks for. 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Request {
    /// The caller's word for it; comes back in [`Event::RequestDone`].
    pub tag: u64,
    /// Which segments, which peer, which rails.
    pub plan: PlanId,
    /// The batch it belongs to, open.
    pub batch: BatchId,
    /// First byte in the local segment.
    pub local_offset: u64,
    /// First byte in the remote segment.
    pub remote_offset: u64,
    /// Bytes, at least 1.
    pub length: u64,
    /// From then on nothing more of it is sent; [`Instant::MAX`]: never. One that waits behind others, and cannot end by then any
    /// more as fast as its rails are, fails without being begun. It is reported as soon as what was sent has ended, which
    /// is waited for until `cancel_grace` later; then the lanes that still have something of it are fenced, and the report waits
    /// for that until `fence_timeout` later at most: deadline + `cancel_grace` + `fence_timeout` is the bound.
    pub deadline: Instant,
    /// Which way.
    pub op: Op,
    /// Who goes first.
    pub priority: Priority,
}

const _: () = assert!(size_of::<Request>() <= 64);

/// What a shell is to do with a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum LaneAction {
    /// Open it. Answer with `Opened` or `OpenFailed`; at `by` core gives it up by itself.
    Open {
        /// The lane.
        lane: LaneId,
        /// Its new epoch.
        epoch: Epoch,
        /// By when.
        by: Instant,
    },
    /// Fence it. Answer with `Fenced` or `Unfenceable`.
    Fence {
        /// The lane.
        lane: LaneId,
        /// The epoch to end.
        epoch: Epoch,
        /// Which of the two facts to establish; the other one is asked for by [`Message::Fence`].
        scope: Scope,
    },
    /// Close it. Nothing is posted on it.
    Close {
        /// The lane.
        lane: LaneId,
        /// The epoch to end.
        epoch: Epoch,
    },
}

/// What a shell is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Event {
    /// A request has ended: [`Orchestrator::take`] it.
    RequestDone {
        /// Which.
        request: RequestId,
        /// The caller's word for it.
        tag: u64,
    },
    /// All requests of a sealed batch have ended: [`Orchestrator::take_batch`] it.
    BatchDone {
        /// Which.
        batch: BatchId,
        /// The caller's word for it.
        tag: u64,
    },
    /// More is known of a request that was reported `Indeterminate`. Mostly it has ended after all: this side's memory is
    /// released and the peer's is settled. One side may be known before the other.
    Settled {
        /// The caller's word for it; once both sides are known the id is stale.
        tag: u64,
        /// What is known of this side's memory.
        local: Local,
        /// What is known of the peer's memory.
        remote: Remote,
    },
    /// A request has come to a transport that [hands over](Config::hands_over), and nothing of it is under way: the
    /// caller is to carry all of it out, and to say how that ended with [`Orchestrator::hand_back`]. It stays open until then.
    HandedOver {
        /// Which.
        request: RequestId,
        /// The caller's word for it.
        tag: u64,
    },
    /// A request that was handed over is to end: it was cancelled, its deadline has passed, its peer is gone or core shuts down.
    /// The caller is to stop, and to say with [`Orchestrator::hand_back`] what became of it.
    CalledBack {
        /// Which.
        request: RequestId,
        /// The caller's word for it.
        tag: u64,
    },
    /// A request goes on with another transport.
    Failover {
        /// The caller's word for it.
        tag: u64,
        /// What it leaves.
        from: TransportId,
        /// What it goes on with.
        to: TransportId,
        /// Which of its own switches this is; 0: nothing of its own failed, but a neighbour's, or the one that it leaves is slow.
        attempt: u8,
    },
    /// A rail changed its state.
    RailChanged {
        /// Which.
        rail: RailId,
        /// To what.
        state: RailState,
        /// Why, if this worker noticed an incident that paused it.
        cause: Option<Cause>,
        /// It came back because its cooldown is over (mode `reset`), not because it carried something.
        expired: bool,
    },
    /// A peer went silent or was heard again.
    PeerChanged {
        /// Which.
        peer: PeerId,
        /// Whether it is silent now.
        silent: bool,
    },
    /// Another worker waits for room that there is now: wake it.
    WakeWorker {
        /// Which.
        worker: u16,
    },
}

/// Why the next timeout is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Reason {
    /// A lane has been opening for too long.
    Opening,
    /// A lane may have stopped making progress.
    Progress,
    /// A fence is to be asked for again, or given up.
    Fence,
    /// A paused rail is to be probed.
    Probe,
    /// A peer may be silent, or its requests have waited too long.
    Peer,
    /// A request's deadline or grace time.
    Request,
    /// Room may have appeared.
    Bind,
    /// The answer to a post has not come.
    Post,
}

/// Row types of the borrowed tables; opaque.
pub mod rows {
    pub use super::attempt::Attempt;
    pub use super::lane::Lane;
    pub use super::peer::Peer;
    pub use super::request::RequestRow;
    pub use super::{BatchRow, PlanRow};
}

/// A batch in its table.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BatchRow {
    batch: Batch,
    link: Link,
}

impl Linked<0> for BatchRow {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// A plan in its table, whose ids the caller draws.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PlanRow {
    generation: u32,
    plan: Option<Plan>,
    /// Refused to new requests.
    retired: bool,
    /// Of the rails of each transport: plans with the same ones have the same number.
    routes: [u32; PLAN_TRANSPORTS_MAX],
    ranking: failover::Ranking,
    /// The last plan here whose peer has been forgotten, by its generation, and how requests for it end.
    lost: Option<(u32, Status)>,
}

impl PlanRow {
    /// For the arrays that a caller hands in.
    pub const EMPTY: Self = Self {
        generation: 0,
        plan: None,
        retired: false,
        routes: [0; PLAN_TRANSPORTS_MAX],
        ranking: failover::Ranking::NEW,
        lost: None,
    };

    /// Whether there has been a plan in it.
    #[cfg(feature = "serde")]
    fn is_used(&self) -> bool {
        self.plan.is_some() || self.lost.is_some() || self.generation != 0
    }
}

/// The memory of an [`Orchestrator`], owned by the caller. Lanes are indexed by rail, so there should be as
/// many as [`Shared`] has rails.
#[derive(Debug)]
pub struct Tables<'a> {
    /// Plans, by the index of their id.
    pub plans: &'a mut [PlanRow],
    /// Peers, by id.
    pub peers: &'a mut [Peer],
    /// Lanes, by rail.
    pub lanes: &'a mut [Lane],
    /// Requests not yet taken, and those whose attempts outlive their report.
    pub requests: &'a mut [Row<RequestRow>],
    /// Slices in flight or waiting to be sent again. At least two: the last free row is kept for those that are cut again.
    pub attempts: &'a mut [Attempt],
    /// Batches not yet taken.
    pub batches: &'a mut [Row<BatchRow>],
}

/// Memory for [`Tables`], in one piece.
#[derive(Debug)]
pub struct Store<
    const PLANS: usize,
    const PEERS: usize,
    const RAILS: usize,
    const REQUESTS: usize,
    const ATTEMPTS: usize,
    const BATCHES: usize,
> {
    plans: [PlanRow; PLANS],
    peers: [Peer; PEERS],
    lanes: [Lane; RAILS],
    requests: [Row<RequestRow>; REQUESTS],
    attempts: [Attempt; ATTEMPTS],
    batches: [Row<BatchRow>; BATCHES],
}

impl<
    const PLANS: usize,
    const PEERS: usize,
    const RAILS: usize,
    const REQUESTS: usize,
    const ATTEMPTS: usize,
    const BATCHES: usize,
> Store<PLANS, PEERS, RAILS, REQUESTS, ATTEMPTS, BATCHES>
{
    /// Empty tables.
    pub const fn new() -> Self {
        Self {
            plans: [const { PlanRow::EMPTY }; PLANS],
            peers: [const { Peer::EMPTY }; PEERS],
            lanes: [const { Lane::EMPTY }; RAILS],
            requests: [const { Row::EMPTY }; REQUESTS],
            attempts: [Attempt::EMPTY; ATTEMPTS],
            batches: [const { Row::EMPTY }; BATCHES],
        }
    }

    /// Lends them.
    pub fn tables(&mut self) -> Tables<'_> {
        Tables {
            plans: &mut self.plans,
            peers: &mut self.peers,
            lanes: &mut self.lanes,
            requests: &mut self.requests,
            attempts: &mut self.attempts,
            batches: &mut self.batches,
        }
    }
}

impl<
    const PLANS: usize,
    const PEERS: usize,
    const RAILS: usize,
    const REQUESTS: usize,
    const ATTEMPTS: usize,
    const BATCHES: usize,
> Default for Store<PLANS, PEERS, RAILS, REQUESTS, ATTEMPTS, BATCHES>
{
    fn default() -> Self {
        Self::new()
    }
}

/// What a worker needs of its own for 64 peers over eight rails each.
const _: () = assert!(size_of::<Store<64, 64, 512, 1024, 4096, 16>>() <= 600 * 1024);

/// Works that were handed out by [`Orchestrator::poll_post`] and have not been answered: what
/// [`Orchestrator::handle_posted`] takes.
///
/// There is one at a time. It can neither be copied nor made, so no answer can be given twice or for another post. One that is
/// dropped is a post that is never answered.
#[must_use = "a post is to be answered with `handle_posted`; nothing else is posted until then"]
#[derive(Debug, PartialEq, Eq)]
pub struct Post {
    lane: LaneId,
    number: NonZeroU32,
}

impl Post {
    /// The lane of the works.
    pub fn lane(&self) -> LaneId {
        self.lane
    }

    /// Its number among the posts of this worker, never 0, which begin anew after 2^31: for callers that cannot keep the
    /// value, and have to find out which one an answer is for.
    pub fn number(&self) -> u32 {
        self.number.get()
    }
}

/// The post that is out.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Posting {
    lane: LaneId,
    epoch: Epoch,
    count: usize,
    /// When it was handed out.
    since: Instant,
}

/// What is counted and decides nothing.
#[derive(Clone, Copy)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Counted {
    /// Posts handed out.
    posts: u32,
    ignored: Ignored,
}

impl Counted {
    /// The number of the last post.
    fn last(&self) -> NonZeroU32 {
        const BASE: NonZeroU32 = NonZeroU32::new(1 << 31).expect("a bit");
        BASE | self.posts
    }
}

impl core::fmt::Debug for Counted {
    /// Nothing: engines that differ by nothing else do the same from now on, and look alike.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("..")
    }
}

/// One worker's engine: a state machine over borrowed tables.
///
/// # Order of calls
///
/// Hand in facts, each with the time: completions first, then what else is known of lanes, then frames,
/// then [`Self::handle_timeout`]. Then drain [`Self::poll_post`], [`Self::poll_lane`], [`Self::poll_message`]
/// and [`Self::poll_event`] until each gives `None`, answering every `poll_post` with [`Self::handle_posted`]
/// before the next one (it gives `None` until then). Then sleep until [`Self::poll_timeout`], unless there is
/// something to hand in. Time never goes back. `poll_lane` and `poll_event` take no time, because nothing that they do
/// depends on it. A fact about a lane goes to the worker that owns it
/// ([`LaneId::worker`]); plans, peers being heard or gone go to all workers.
///
/// Facts may come at any moment, also while a post is out, and from inside the call that posts. What a shell forgets to
/// hand in is not lost but late: a lane without completions, a lane that stays full, a fence, an opening and a post without an
/// answer have timers. What it hands in twice, or for an epoch that is over, changes nothing but [`Self::ignored`].
#[derive(Debug)]
pub struct Orchestrator<'a, P = Spray> {
    config: Config<P>,
    shared: &'a Shared<'a>,
    plans: &'a mut [PlanRow],
    /// Some have had several transports, and slow ones are left.
    compares: bool,
    /// Some have a transport whose requests are the caller's.
    may_hand_over: bool,
    peers: &'a mut [Peer],
    lanes: &'a mut [Lane],
    requests: Table<'a, RequestRow, RequestId>,
    attempts: Attempts<'a>,
    batches: Table<'a, BatchRow, BatchId>,
    denials: Denials,
    is_shut_down: bool,
    /// Peers with bytes to bind that may find room.
    ready: Queue<{ peer::READY }>,
    /// Peers with bytes to bind that wait for room.
    waiting: Queue<{ peer::READY }>,
    /// Peers whose silence changed.
    changed_peers: Queue<{ peer::CHANGED }>,
    /// Lanes with works to post.
    posts: Queue<{ lane::POST }>,
    /// Lanes with something to open, fence or close.
    actions: Queue<{ lane::ACTION }>,
    /// Lanes with a fence to ask the peer for.
    messages: Queue<{ lane::MESSAGE }>,
    /// Lanes whose rail changed its state.
    changed_rails: Queue<{ lane::CHANGED }>,
    /// Requests with bytes to bind, of all peers, those first that were submitted first.
    unbound: Queue<2>,
    /// Those of them with the highest priority.
    urgent: u32,
    /// Requests that have ended, or whose last attempt has.
    ended: Queue<3>,
    /// Requests that have switched transports.
    switched: Queue<1>,
    ended_batches: Queue<0>,
    posting: Option<Posting>,
    counted: Counted,
    /// Where this worker stood among those who wait for room when it last began to bind; for what is not urgent.
    line: Line,
    /// How rails stand while slices are bound.
    open_rails: OpenRails,
    /// Some of those that wait do so for room on a device that others have filled.
    crowded: bool,
    /// Something happened since the last binding that may let a slice go.
    bindable: bool,
    /// And it may be a slice of any peer, also of one that waits for room.
    bindable_all: bool,
    /// A completion made room that another worker may wait for; with one worker it never does.
    made_room: bool,
    last_woken: u16,
    /// When a lane last moved something, and on which rail.
    last_progress: (Instant, RailId),
    /// Requests with a deadline or a grace time.
    timed_requests: u32,
    /// Attempts whose fence has been given up.
    lost_attempts: u32,
    /// Works carried out at once since one was measured.
    carried_at_once: u8,
    /// Rows of lanes and of peers behind these have never been used: tables may be far larger than what is in them.
    lanes_used: usize,
    peers_used: usize,
    /// No timer is due earlier. May be early, never late.
    next_timeout: Instant,
    next_reason: Reason,
}

impl<'a, P: Chooser> Orchestrator<'a, P> {
    /// An engine without peers, over tables whose content does not matter.
    pub fn new(config: Config<P>, shared: &'a Shared<'a>, tables: Tables<'a>) -> Self {
        tables.plans.fill_with(|| PlanRow::EMPTY);
        tables.peers.fill_with(|| Peer::EMPTY);
        tables.lanes.fill_with(|| Lane::EMPTY);
        let worker = config.worker;
        Self {
            config,
            shared,
            plans: tables.plans,
            compares: false,
            may_hand_over: false,
            peers: tables.peers,
            lanes: tables.lanes,
            requests: Table::new(tables.requests),
            attempts: Attempts::new(tables.attempts),
            batches: Table::new(tables.batches),
            denials: Denials::NONE,
            is_shut_down: false,
            ready: Queue::EMPTY,
            waiting: Queue::EMPTY,
            unbound: Queue::EMPTY,
            urgent: 0,
            changed_peers: Queue::EMPTY,
            posts: Queue::EMPTY,
            actions: Queue::EMPTY,
            messages: Queue::EMPTY,
            changed_rails: Queue::EMPTY,
            ended: Queue::EMPTY,
            switched: Queue::EMPTY,
            ended_batches: Queue::EMPTY,
            posting: None,
            counted: Counted {
                posts: 0,
                ignored: Ignored::NONE,
            },
            line: Line::ALONE,
            open_rails: OpenRails::EMPTY,
            crowded: false,
            bindable: false,
            bindable_all: false,
            made_room: false,
            last_woken: worker,
            last_progress: (Instant::ZERO, RailId(0)),
            timed_requests: 0,
            lost_attempts: 0,
            carried_at_once: 0,
            lanes_used: 0,
            peers_used: 0,
            next_timeout: Instant::MAX,
            next_reason: Reason::Bind,
        }
    }

    /// Makes a plan known under an id that the caller drew, and with it its peer and rails. `false`: the
    /// tables have no row for the plan, its peer or one of its rails.
    pub fn install_plan(&mut self, now: Instant, id: PlanId, plan: &Plan) -> bool {
        let fits = plan.peer.index() < self.peers.len()
            && plan
                .all_rails()
                .all(|rail| rail.rail.index() < self.lanes.len());
        if !fits || id.index as usize >= self.plans.len() {
            return false;
        }
        self.unassign_plan(id.index);
        let mut plan = plan.clone();
        plan.suppress();
        let routes = core::array::from_fn(|rank| plan.rails_number(rank as u8));
        self.know_transports(&plan);
        self.compares |= plan.transports.len() > 1 && self.all_spray(&plan);
        let mut ranks = 0..plan.transports.len() as u8;
        self.may_hand_over |= ranks.any(|rank| self.hands_over(&plan, rank));
        self.know_peer(now, &plan);
        debug_assert!(
            self.lanes_used <= self.lanes.len() && self.peers_used <= self.peers.len(),
            "{} lanes and {} peers are in use",
            self.lanes_used,
            self.peers_used
        );
        let Some(row) = self.plans.get_mut(id.index as usize) else {
            return false;
        };
        *row = PlanRow {
            generation: id.generation,
            plan: Some(plan),
            routes,
            lost: row.lost,
            ..PlanRow::EMPTY
        };
        true
    }

    /// Retires a plan. Requests that have it end as they would have, until its row is used anew; new ones are
    /// refused.
    pub fn retire_plan(&mut self, id: PlanId) {
        if let Some(row) = self.plans.get_mut(id.index as usize)
            && row.generation == id.generation
        {
            row.retired = true;
        }
    }

    /// Opens a batch; `None`: no row is free.
    pub fn open_batch(&mut self, tag: u64) -> Option<BatchId> {
        self.batches
            .insert(BatchRow {
                batch: Batch::new(tag),
                link: Link::NONE,
            })
            .ok()
    }

    /// Says that no more requests will come for a batch. It may end by that.
    pub fn seal_batch(&mut self, id: BatchId) {
        if self.batches.get_mut(id).is_some_and(|row| row.batch.seal()) {
            self.ended_batches.push_back(&mut self.batches, id.index);
        }
    }

    /// How a batch stands; `None`: taken, or never was.
    pub fn batch(&self, id: BatchId) -> Option<BatchReport> {
        self.batches.get(id).map(|row| row.batch.report())
    }

    /// Takes the report of a batch that has ended, and frees its row. `None`: not ended, or taken.
    pub fn take_batch(&mut self, id: BatchId) -> Option<BatchReport> {
        let report = self.batch(id)?;
        if report.status == Status::Pending {
            return None;
        }
        self.ended_batches.remove(&mut self.batches, id.index);
        self.batches.remove(id);
        self.denials.forget(id);
        Some(report)
    }

    /// The answer to a [`Self::poll_post`]: so many works were taken, and why no more. Works from `accepted` on are
    /// untouched, unless `stop` is `Unknown`.
    ///
    /// Between the two anything else may be handed in, in any order, also of the works' own lane: that it broke, that it was
    /// fenced, completions of the works. `false`: the post had been given up, because its answer did not come within
    /// `fence_timeout`, or it is another worker's; then this changes nothing.
    pub fn handle_posted(&mut self, now: Instant, post: Post, accepted: usize, stop: Stop) -> bool {
        // The one that is out is the last one.
        let is_last = self.counted.last() == post.number;
        let answered = self
            .posting
            .take_if(|posting| is_last && posting.lane == post.lane);
        let Some(posting) = answered else {
            self.counted.ignored.posts += 1;
            return false;
        };
        // What most say leaves nothing to do.
        if stop != Stop::All || accepted < posting.count {
            self.posted(now, posting, accepted, stop);
        }
        true
    }

    /// Works that ended. Those of another epoch than their lane has now are ignored.
    pub fn handle_completions(&mut self, now: Instant, completions: &[Completion]) {
        self.completed(now, completions);
    }

    /// Something about a lane.
    pub fn handle_lane(&mut self, now: Instant, lane: LaneId, epoch: Epoch, fact: LaneFact) {
        if self.is_current(lane, epoch) {
            self.lane_fact(now, lane.rail(), fact);
        }
    }

    /// Whether something is said of the present epoch of a lane of this worker; counts it if it is not.
    #[inline]
    fn is_current(&mut self, lane: LaneId, epoch: Epoch) -> bool {
        let row = self.lanes.get(lane.rail().index());
        match row.filter(|_| lane.worker() == self.config.worker) {
            Some(row) if row.epoch() == epoch => true,
            row => {
                let is_ours = row.is_some();
                self.ignore_lane(is_ours);
                false
            }
        }
    }

    #[cold]
    fn ignore_lane(&mut self, is_ours: bool) {
        let ignored = &mut self.counted.ignored;
        match is_ours {
            true => ignored.epochs += 1,
            false => ignored.lanes += 1,
        }
    }

    /// What chooses rails, to look at.
    pub fn policy(&self) -> &P {
        &self.config.policy
    }

    /// How much of what was handed in changed nothing, by reason.
    pub fn ignored(&self) -> Ignored {
        self.counted.ignored
    }

    /// Something a peer said.
    pub fn handle_frame(&mut self, now: Instant, peer: PeerId, frame: &Frame) {
        self.heard(now, peer);
        if *frame == Frame::Alive {
            self.repeat_fences(now, peer);
        }
        if let Frame::Fenced {
            lane,
            epoch,
            delivered,
        } = *frame
        {
            if self.shared.peer(lane.rail()) != Some(peer) {
                self.counted.ignored.lanes += 1;
                return;
            }
            let fact = LaneFact::Fenced {
                scope: Scope::Remote,
                delivered: Some(delivered),
            };
            self.handle_lane(now, lane, epoch, fact);
        }
    }

    /// A peer, or what we had with it, is gone, with proof. See [`Proof`].
    pub fn handle_peer_gone(&mut self, now: Instant, peer: PeerId, proof: Proof) {
        self.peer_gone(now, peer, proof);
    }

    /// Gives a peer up for good, so that its number and those of its rails can mean others: nobody will come
    /// back, or nobody wants it. What requests it still has end as failed, lanes are fenced, and proof that has
    /// not come when reports stop waiting for it is waited for no more. `false`: something is still open here;
    /// do what the polls say and call again. `true`: nothing here refers to it or its plans any more. The caller
    /// makes no more plans for it, and gives the numbers away only once all workers have said `true`.
    pub fn forget_peer(&mut self, now: Instant, peer: PeerId) -> bool {
        self.give_up_peer(now, peer)
    }

    /// Does what is due. Calling early or twice changes nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.post_due().is_some_and(|due| due <= now) {
            self.give_up_post(now);
        }
        if now >= self.next_timeout {
            self.timers(now);
        }
    }

    /// When [`Self::handle_timeout`] should next be called, and why.
    pub fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        match self.post_due() {
            Some(due) if due < self.next_timeout => Some((due, Reason::Post)),
            _ => {
                (self.next_timeout != Instant::MAX).then_some((self.next_timeout, self.next_reason))
            }
        }
    }

    /// When the post that is out is given up.
    fn post_due(&self) -> Option<Instant> {
        let posting = self.posting.as_ref()?;
        Some(posting.since + self.config.fence_timeout)
    }

    /// Whether every poll would give `None` and change nothing: a shell may leave out the drain, and a
    /// recorder what it would have said of it. O(1); looks at nothing that other workers change.
    pub fn is_quiet(&self) -> bool {
        let nothing_to_do =
            self.posts.is_empty() && self.actions.is_empty() && self.messages.is_empty();
        nothing_to_do && self.has_nothing_to_say() && !self.bindable && !self.made_room
    }

    /// What each poll may have to say now: works, lanes, messages, events. For [`crate::contract`], as those below.
    pub(crate) fn unsaid(&self) -> [bool; 4] {
        let posts = !self.posts.is_empty() || self.bindable;
        let (lanes, messages) = (!self.actions.is_empty(), !self.messages.is_empty());
        [posts, lanes, messages, !self.has_nothing_to_say()]
    }

    pub(crate) fn worker(&self) -> u16 {
        self.config.worker
    }

    pub(crate) fn lanes_max(&self) -> usize {
        self.lanes.len()
    }

    pub(crate) fn fence_timeout(&self) -> Duration {
        self.config.fence_timeout
    }

    fn has_nothing_to_say(&self) -> bool {
        self.changed_rails.is_empty()
            && self.changed_peers.is_empty()
            && self.switched.is_empty()
            && self.ended.is_empty()
            && self.ended_batches.is_empty()
    }

    /// What to tell peers. Each is repeated by itself until answered.
    pub fn poll_message(&mut self, now: Instant) -> Option<Message> {
        loop {
            let index = self.messages.pop_front(self.lanes)?;
            if let Some(message) = self.fence_message(now, index) {
                return Some(message);
            }
        }
    }

    /// What happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.has_nothing_to_say() {
            return self.wake_worker();
        }
        self.some_event()
    }

    /// Another worker waits for room that there is now.
    #[inline]
    fn wake_worker(&mut self) -> Option<Event> {
        if !core::mem::take(&mut self.made_room) {
            return None;
        }
        self.next_to_wake()
    }

    #[inline(never)]
    fn next_to_wake(&mut self) -> Option<Event> {
        let worker = self
            .shared
            .next_waiting(self.last_woken, self.config.worker)?;
        debug_assert!(worker != self.config.worker, "worker {worker} wakes itself");
        self.last_woken = worker;
        Some(Event::WakeWorker { worker })
    }

    #[inline(never)]
    fn some_event(&mut self) -> Option<Event> {
        self.next_event().or_else(|| self.wake_worker())
    }

    fn next_event(&mut self) -> Option<Event> {
        if let Some(index) = self.changed_rails.pop_front(self.lanes) {
            let rail = RailId(index as u16);
            let state = self
                .shared
                .health(rail)
                .map_or(RailState::Healthy, |health| health.state());
            let lane = self.lanes.get_mut(rail.index());
            let (cause, expired) = lane.map_or((None, false), |lane| {
                (lane.blamed.take(), core::mem::take(&mut lane.expired))
            });
            return Some(Event::RailChanged {
                rail,
                state,
                cause,
                expired,
            });
        }
        if let Some(index) = self.changed_peers.pop_front(self.peers) {
            let silent = self.peers.get(index as usize).is_some_and(Peer::is_silent);
            return Some(Event::PeerChanged {
                peer: PeerId(index as u16),
                silent,
            });
        }
        if let Some(index) = self.switched.pop_front(&mut self.requests)
            && let Some(event) = self.failover_event(index)
        {
            return Some(event);
        }
        if let Some(index) = self.ended.pop_front(&mut self.requests) {
            return self.request_event(index);
        }
        if let Some(index) = self.ended_batches.pop_front(&mut self.batches) {
            let batch = self.batches.id_at(index)?;
            let tag = self.batches.get(batch)?.batch.tag;
            return Some(Event::BatchDone { batch, tag });
        }
        None
    }

    /// Another worker says that there is room now.
    pub fn handle_wake(&mut self) {
        self.bind_all();
    }

    /// Bytes of its requests that are not on any lane yet: what keeps a worker from new ones. Linear in the peers that have some.
    pub fn backlog_bytes(&mut self) -> u64 {
        self.bytes_in_line()
    }

    /// Requests that are not taken, or have attempts left.
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// The transport that a request went over last.
    pub fn transport_of(&self, id: RequestId) -> Option<TransportId> {
        let row = self.requests.get(id)?;
        self.transport_at(row.plan, row.failover.rank())
    }

    /// What a request is, for whoever counts; `None`: it was taken, or never was.
    pub fn about(&self, id: RequestId) -> Option<About> {
        let row = self.requests.get(id)?;
        Some(About {
            transport: self.transport_of(id),
            op: row.op,
            length: row.length,
            submitted_at: row.submitted_at,
        })
    }

    /// How a request ended, freeing its row; `None`: not ended, taken, or never was. Attempts of an
    /// `Indeterminate` one live on, and [`Event::Settled`] tells when they have ended.
    pub fn take(&mut self, id: RequestId) -> Option<Report> {
        self.take_request(id)
    }

    fn transport_at(&self, plan: PlanId, rank: u8) -> Option<TransportId> {
        let transports = &self.plan(plan)?.transports;
        Some(transports.get(usize::from(rank))?.transport)
    }

    /// The lane of this worker on a rail.
    fn lane_id(&self, rail: RailId) -> LaneId {
        LaneId::new(self.config.worker, rail)
    }

    /// A plan, for the requests that have it.
    fn plan(&self, id: PlanId) -> Option<&Plan> {
        let row = self.plans.get(id.index as usize)?;
        row.plan
            .as_ref()
            .filter(|_| row.generation == id.generation)
    }

    /// A plan, for a new request.
    fn plan_to_submit(&self, id: PlanId) -> Option<&Plan> {
        let retired = self.plans.get(id.index as usize)?.retired;
        self.plan(id).filter(|_| !retired)
    }

    /// How requests for a plan end whose peer is lost.
    #[cold]
    fn lost_plan(&self, id: PlanId) -> Result<Ending, SubmitError> {
        let row = self.plans.get(id.index as usize);
        let forgotten = row.and_then(|row| row.lost);
        let forgotten = forgotten.filter(|(lost, _)| *lost == id.generation);
        let retired = || {
            let peer = self.plan(id)?.peer;
            self.peers.get(peer.index()).and_then(Peer::is_lost_as)
        };
        let status = forgotten.map(|(_, status)| status).or_else(retired);
        let cause = Cause::PeerGone;
        status
            .map(|status| Ending { status, cause })
            .ok_or(SubmitError::PlanMissing)
    }

    /// Makes sure that [`Self::handle_timeout`] is called at `at`.
    fn arm(&mut self, at: Instant, reason: Reason) {
        if at < self.next_timeout {
            self.next_timeout = at;
            self.next_reason = reason;
        }
    }

    fn rail_changed(&mut self, rail: RailId) {
        self.changed_rails.push_back(self.lanes, u32::from(rail.0));
    }
}

/// Whether a link's index means "none".
const fn is_nil(index: u32) -> bool {
    index == NIL
}

/// Fills `out` for [`Orchestrator::poll_post`]; here so that the type's methods stay in one place.
impl<P: Chooser> Orchestrator<'_, P> {
    /// Works to post, of one lane, in order. Answer with [`Self::handle_posted`], which takes what this gives; until then
    /// this gives `None`. A post that is not answered within `fence_timeout` is given up: its lane has failed, and what became of
    /// its works is unknown.
    pub fn poll_post(&mut self, now: Instant, out: &mut PostBatch) -> Option<Post> {
        out.works.clear();
        let has_nothing = self.posts.is_empty() && !self.bindable;
        if has_nothing || self.posting.is_some() {
            return None;
        }
        self.next_post(now, out)
    }

    #[inline(never)]
    fn next_post(&mut self, now: Instant, out: &mut PostBatch) -> Option<Post> {
        if self.posts.is_empty() {
            self.bind(now, out);
        }
        if out.works.is_empty() {
            self.bound_post(now, out)?;
        } else {
            self.arm_progress(now, out.lane.rail());
        }
        let count = out.works.len();
        self.counted.posts = self.counted.posts.wrapping_add(1);
        let (lane, epoch, number) = (out.lane, out.epoch, self.counted.last());
        debug_assert!(
            self.lanes
                .get(lane.rail().index())
                .is_some_and(|row| row.phase.is_open() && row.epoch == epoch),
            "works for a lane that does not take them"
        );
        debug_assert!(self.posting.is_none() && count > 0);
        debug_assert!(
            (self.lanes.get(lane.rail().index())).is_some_and(|row| row.fits(&out.works)),
            "works that their lane does not take"
        );
        self.posting = Some(Posting {
            lane,
            epoch,
            count,
            since: now,
        });
        Some(Post { lane, number })
    }

    /// Fills `out`, which is empty, with what lanes have to post. `None`: nothing.
    #[inline(never)]
    fn bound_post(&mut self, now: Instant, out: &mut PostBatch) -> Option<()> {
        loop {
            if self.bindable && out.works.is_empty() {
                self.gather(now, out);
            }
            if out.works.is_empty() {
                let index = self.posts.pop_front(self.lanes)?;
                self.fill(now, index, out);
            } else {
                self.arm_progress(now, out.lane.rail());
            }
            if !out.works.is_empty() {
                return Some(());
            }
            if self.posts.is_empty() {
                self.bind(now, out);
            }
        }
    }

    /// What to do with lanes.
    pub fn poll_lane(&mut self) -> Option<LaneAction> {
        if self.actions.is_empty() {
            return None;
        }
        self.next_action()
    }

    #[inline(never)]
    fn next_action(&mut self) -> Option<LaneAction> {
        loop {
            let index = self.actions.front()?;
            match self.lane_action(index) {
                Some(action) => return Some(action),
                None => self.actions.remove(self.lanes, index),
            }
        }
    }
}
