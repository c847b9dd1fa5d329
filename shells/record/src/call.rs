//! What is written down: the calls that are made on core, and what it answers.

use std::borrow::Cow;

use polyrail_core::batch::BatchReport;
use polyrail_core::message::{Frame, Message};
use polyrail_core::orchestrator::{
    AtOnce, Cancelled, Event, LaneAction, Orchestrator, Post, Proof, Reason, Request, SubmitError,
};
use polyrail_core::path::share::Shares;
use polyrail_core::plan::Plan;
use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::rail::policies::Policies;
use polyrail_core::rail::{RailConfig, Shared};
use polyrail_core::report::{Report, Unbegun};
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{BatchId, DeviceId, Epoch, LaneId, PeerId, PlanId, RailId, RequestId};
use polyrail_core::work::{Completion, LaneFact, PostBatch, Stop, Work};
use serde::{Deserialize, Serialize};

/// One call on what the engine's workers share or on one worker's core, in the order in which they were made.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant)] // lives on the stack, one at a time
pub enum Step<'a> {
    /// On what all workers share.
    Shared(Install<'a>),
    /// On the core of one worker.
    Worker(u16, Call<'a>),
}

/// What the engine puts into the tables that its workers share, without asking a core. The answer is a [`Answer::Bool`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Install<'a> {
    /// [`Shared::install_device`].
    Device(DeviceId, EstimateConfig),
    /// [`Shared::install_rail`], and what people call the rail.
    Rail(RailId, RailConfig, Cow<'a, str>),
    /// [`Shared::set_others`].
    Others(DeviceId, u64),
    /// [`Shared::install_spare`]: the spare, the rail that it stands in for, and what people call the spare.
    Spare(RailId, RailId, RailConfig, Cow<'a, str>),
}

impl Install<'_> {
    /// Does it.
    pub fn apply(&self, shared: &Shared<'_>) -> bool {
        match *self {
            Self::Device(device, config) => shared.install_device(device, config),
            Self::Rail(rail, config, _) => shared.install_rail(rail, config),
            Self::Others(device, bytes) => shared.set_others(device, bytes),
            Self::Spare(rail, of, config, _) => shared.install_spare(rail, of, config),
        }
    }
}

/// A call on an [`Orchestrator`]: its method of the like name. Those that only look are not here, and
/// [`Self::PollTimeout`] is, because a shell acts on it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // the methods of `Orchestrator` say it
#[allow(clippy::large_enum_variant)] // a plan, when it is read; one at a time
pub enum Call<'a> {
    InstallPlan {
        now: Instant,
        id: PlanId,
        plan: Cow<'a, Plan>,
    },
    RetirePlan {
        id: PlanId,
    },
    OpenBatch {
        tag: u64,
    },
    Submit {
        now: Instant,
        request: Request,
    },
    SealBatch {
        id: BatchId,
    },
    Cancel {
        now: Instant,
        id: RequestId,
    },
    ShutDown {
        now: Instant,
    },
    Take {
        id: RequestId,
    },
    TakeBatch {
        id: BatchId,
    },
    HandlePosted {
        now: Instant,
        lane: LaneId,
        number: u32,
        accepted: usize,
        stop: Stop,
    },
    HandleCompletions {
        now: Instant,
        completions: Cow<'a, [Completion]>,
    },
    HandleLane {
        now: Instant,
        lane: LaneId,
        epoch: Epoch,
        fact: LaneFact,
    },
    HandleFrame {
        now: Instant,
        peer: PeerId,
        frame: Frame,
    },
    HandlePeerGone {
        now: Instant,
        peer: PeerId,
        proof: Proof,
    },
    ForgetPeer {
        now: Instant,
        peer: PeerId,
    },
    HandleHint {
        now: Instant,
        peer: PeerId,
        hint: Option<Shares>,
    },
    HandleTimeout {
        now: Instant,
    },
    HandleWake,
    PollPost {
        now: Instant,
    },
    PollLane,
    PollMessage {
        now: Instant,
    },
    PollEvent,
    PollTimeout,
    HandBack {
        id: RequestId,
        how: Report,
    },
    Withdraw {
        batch: BatchId,
        count: u32,
        why: Unbegun,
    },
    HandleAtOnce {
        now: Instant,
        done: AtOnce,
        took: Option<Duration>,
    },
    /// How what workers share stood: a recording with calls [before](crate::Header::before) it begins with this.
    RestoreShared {
        state: Cow<'a, [u8]>,
        /// What rails are called, by number.
        names: Cow<'a, [String]>,
        /// Segments that probes write to.
        scratch: Cow<'a, [u32]>,
    },
    /// How this worker's core stood before its next call.
    Restore {
        state: Cow<'a, [u8]>,
    },
}

impl Call<'_> {
    /// Makes the call. `posts` is where works are put on the way, and `out` the post of this worker that is out.
    #[allow(clippy::unit_arg)] // nothing is an answer, too
    pub fn apply(
        &self,
        core: &mut Orchestrator<'_, Policies<'_>>,
        posts: &mut PostBatch,
        out: &mut Option<Post>,
    ) -> Answer<'static> {
        match self {
            Self::InstallPlan { now, id, plan } => core.install_plan(*now, *id, plan).into(),
            Self::RetirePlan { id } => core.retire_plan(*id).into(),
            Self::OpenBatch { tag } => core.open_batch(*tag).into(),
            Self::Submit { now, request } => core.submit(*now, request).into(),
            Self::SealBatch { id } => core.seal_batch(*id).into(),
            Self::Cancel { now, id } => core.cancel(*now, *id).into(),
            Self::ShutDown { now } => core.shut_down(*now).into(),
            Self::Take { id } => core.take(*id).into(),
            Self::TakeBatch { id } => core.take_batch(*id).into(),
            Self::HandlePosted {
                now,
                number,
                accepted,
                stop,
                ..
            } => {
                let post = out.take_if(|post| post.number() == *number);
                let answered = post.map(|post| core.handle_posted(*now, post, *accepted, *stop));
                answered.unwrap_or_default().into()
            }
            Self::HandleCompletions { now, completions } => {
                core.handle_completions(*now, completions).into()
            }
            Self::HandleLane {
                now,
                lane,
                epoch,
                fact,
            } => core.handle_lane(*now, *lane, *epoch, *fact).into(),
            Self::HandleFrame { now, peer, frame } => core.handle_frame(*now, *peer, frame).into(),
            Self::HandlePeerGone { now, peer, proof } => {
                core.handle_peer_gone(*now, *peer, *proof).into()
            }
            Self::ForgetPeer { now, peer } => core.forget_peer(*now, *peer).into(),
            Self::HandleHint { now, peer, hint } => core.handle_hint(*now, *peer, *hint).into(),
            Self::HandleTimeout { now } => core.handle_timeout(*now).into(),
            Self::HandleWake => core.handle_wake().into(),
            Self::PollPost { now } => {
                let post = core.poll_post(*now, posts);
                let answer = post.as_ref().map(|_| Posts::of(posts).into_owned());
                // A poll that finds nothing leaves the one that is out.
                *out = post.or(out.take());
                Answer::Posts(answer)
            }
            Self::PollLane => core.poll_lane().into(),
            Self::PollMessage { now } => core.poll_message(*now).into(),
            Self::PollEvent => core.poll_event().into(),
            Self::PollTimeout => core.poll_timeout().into(),
            Self::HandBack { id, how } => core.hand_back(*id, how).into(),
            Self::Withdraw { batch, count, why } => {
                Some(core.withdraw(*batch, *count, *why)).into()
            }
            Self::HandleAtOnce { now, done, took } => {
                Some(core.handle_at_once(*now, done, *took)).into()
            }
            Self::RestoreShared { state, .. } => {
                let mut state = postcard::Deserializer::from_bytes(state);
                core.restore_shared(&mut state).is_ok().into()
            }
            Self::Restore { state } => {
                let mut state = postcard::Deserializer::from_bytes(state);
                let restored = core.restore(&mut state);
                let is_restored = restored.is_ok();
                *out = restored.unwrap_or_default();
                is_restored.into()
            }
        }
    }

    /// The time it was made with, if it takes one.
    pub fn now(&self) -> Option<Instant> {
        match *self {
            Self::InstallPlan { now, .. }
            | Self::Submit { now, .. }
            | Self::Cancel { now, .. }
            | Self::ShutDown { now }
            | Self::HandlePosted { now, .. }
            | Self::HandleCompletions { now, .. }
            | Self::HandleLane { now, .. }
            | Self::HandleFrame { now, .. }
            | Self::HandlePeerGone { now, .. }
            | Self::ForgetPeer { now, .. }
            | Self::HandleHint { now, .. }
            | Self::HandleTimeout { now }
            | Self::PollPost { now }
            | Self::PollMessage { now }
            | Self::HandleAtOnce { now, .. } => Some(now),
            Self::RetirePlan { .. }
            | Self::OpenBatch { .. }
            | Self::SealBatch { .. }
            | Self::Take { .. }
            | Self::TakeBatch { .. }
            | Self::HandleWake
            | Self::PollLane
            | Self::PollEvent
            | Self::PollTimeout
            | Self::HandBack { .. }
            | Self::Withdraw { .. }
            | Self::RestoreShared { .. }
            | Self::Restore { .. } => None,
        }
    }
}

/// What a [`Step`] gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // one for each type that a call can give
pub enum Answer<'a> {
    Nothing,
    Bool(bool),
    BatchId(Option<BatchId>),
    Submitted(Result<RequestId, SubmitError>),
    Cancelled(Cancelled),
    Report(Option<Report>),
    BatchReport(Option<BatchReport>),
    Posts(Option<Posts<'a>>),
    Lane(Option<LaneAction>),
    Message(Option<Message>),
    Event(Option<Event>),
    Timeout(Option<(Instant, Reason)>),
}

/// A [`PostBatch`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Posts<'a> {
    /// The lane.
    pub lane: LaneId,
    /// The epoch that core believes it has.
    pub epoch: Epoch,
    /// The works.
    pub works: Cow<'a, [Work]>,
}

impl<'a> Posts<'a> {
    /// What is in a batch.
    pub fn of(batch: &'a PostBatch) -> Self {
        Self {
            lane: batch.lane,
            epoch: batch.epoch,
            works: Cow::Borrowed(&batch.works),
        }
    }

    fn into_owned(self) -> Posts<'static> {
        Posts {
            lane: self.lane,
            epoch: self.epoch,
            works: Cow::Owned(self.works.into_owned()),
        }
    }
}

macro_rules! answers {
    ($($variant:ident: $type:ty,)*) => {
        $(impl From<$type> for Answer<'_> {
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        })*
    };
}

answers! {
    Bool: bool,
    BatchId: Option<BatchId>,
    Submitted: Result<RequestId, SubmitError>,
    Cancelled: Cancelled,
    Report: Option<Report>,
    BatchReport: Option<BatchReport>,
    Lane: Option<LaneAction>,
    Message: Option<Message>,
    Event: Option<Event>,
    Timeout: Option<(Instant, Reason)>,
}

impl From<()> for Answer<'_> {
    fn from((): ()) -> Self {
        Self::Nothing
    }
}
