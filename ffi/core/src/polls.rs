//! Polls: what is to be done, and what happened.

use polyrail_core::message::Message;
use polyrail_core::orchestrator::{Event, LaneAction};
use polyrail_core::report::{Local, Remote};
use polyrail_core::time::Instant;
use polyrail_core::work::{Cause, POST_MAX, PostBatch, Scope, Work};

use crate::facts::{POLYRAIL_CORE_SCOPE_LOCAL, POLYRAIL_CORE_SCOPE_REMOTE};
use crate::memory::{change, code, look, polled};
use crate::plan::polyrail_core_place;
use crate::requests::{POLYRAIL_CORE_READ, POLYRAIL_CORE_WRITE};
use crate::worker::polyrail_core_worker;

/// Works of one post.
pub const POLYRAIL_CORE_POST_MAX: usize = 32;

const _: () = assert!(POLYRAIL_CORE_POST_MAX == POST_MAX);

/// Open the lane; answer with opened or open failed, at `by` at the latest.
pub const POLYRAIL_CORE_LANE_OPEN: u32 = 0;
/// Fence it; answer with fenced or unfenceable of that scope.
pub const POLYRAIL_CORE_LANE_FENCE: u32 = 1;
/// Close it: nothing is posted on it. Needs no answer.
pub const POLYRAIL_CORE_LANE_CLOSE: u32 = 2;

/// A request has ended: take it. `number` is the request's.
pub const POLYRAIL_CORE_EVENT_REQUEST_DONE: u32 = 0;
/// All requests of a sealed batch have ended: take it. `number` is the batch's.
pub const POLYRAIL_CORE_EVENT_BATCH_DONE: u32 = 1;
/// More is known of a request that was reported indeterminate: it has ended after all (`state` 0), or `state` has 1 as long as
/// somebody may still touch the memory on this side, and 2 as long as a write may still reach the peer's.
pub const POLYRAIL_CORE_EVENT_SETTLED: u32 = 2;
/// A request goes on with another transport: from `number` to `state`.
pub const POLYRAIL_CORE_EVENT_FAILOVER: u32 = 3;
/// A rail changed its state. `number` is the rail's.
pub const POLYRAIL_CORE_EVENT_RAIL_CHANGED: u32 = 4;
/// A peer went silent (`state` 1) or was heard again (0). `number` is the peer's.
pub const POLYRAIL_CORE_EVENT_PEER_CHANGED: u32 = 5;
/// Worker `number` waits for room that there is now: call its `polyrail_core_handle_wake`.
pub const POLYRAIL_CORE_EVENT_WAKE_WORKER: u32 = 6;

/// One thing for a device to move.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_work {
    /// Comes back in its completion.
    pub cookie: u64,
    /// Where the bytes are, or will be, on this side.
    pub local: polyrail_core_place,
    /// Where they will be, or are, on the peer.
    pub remote: polyrail_core_place,
    /// Bytes; never 0.
    pub length: u32,
    /// `POLYRAIL_CORE_WRITE` or `_READ`.
    pub op: u8,
    /// 1: it must produce a completion of its own.
    pub signal: u8,
}

/// Works of one lane, to be posted in this order.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_post {
    /// The lane. Its lower 16 bits are the rail.
    pub lane: u32,
    /// The epoch that it has. A device refuses any other.
    pub epoch: u32,
    /// Which post this is: what `polyrail_core_handle_posted` is to be told.
    pub number: u32,
    /// How many works.
    pub count: usize,
    /// The works.
    pub works: [polyrail_core_work; POLYRAIL_CORE_POST_MAX],
}

/// What is to be done with a lane.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_action {
    /// `POLYRAIL_CORE_LANE_OPEN`, `_FENCE` or `_CLOSE`.
    pub action: u32,
    /// Which. The lower 16 bits are the rail.
    pub lane: u32,
    /// Its epoch.
    pub epoch: u32,
    /// Of a fence: `POLYRAIL_CORE_SCOPE_LOCAL` or `_REMOTE`.
    pub scope: u32,
    /// Of an opening: by when.
    pub by: u64,
}

/// What a peer is to be asked: to let no further write of this lane up to this epoch reach memory, and to say so.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_fence {
    /// Whom.
    pub peer: u16,
    /// Which lane.
    pub lane: u32,
    /// Up to which epoch.
    pub epoch: u32,
}

/// What happened.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_event {
    /// One of `POLYRAIL_CORE_EVENT_…`.
    pub event: u32,
    /// What else there is to say of it: of a rail its state, as `polyrail_core_rail_view` has it.
    pub state: u32,
    /// Why a rail was paused, if that is known; 0: nothing.
    pub cause: u32,
    /// What it is about.
    pub number: u64,
    /// The caller's word for the request or batch.
    pub tag: u64,
}

/// How much of what was handed in was ignored, by reason.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_ignored_counts {
    /// Completions and facts about lanes of another worker, or of rails that this one has no row for.
    pub lanes: u64,
    /// Completions and facts of an epoch that their lane does not have now.
    pub epochs: u64,
    /// Completions of works that are not out on their lane: completed before, never posted, or another lane's.
    pub works: u64,
    /// Facts that do not fit where their lane stands.
    pub facts: u64,
    /// Counts of delivered works that are no part of what was posted.
    pub counts: u64,
    /// Answers to posts that had been given up.
    pub posts: u64,
}

impl From<&Work> for polyrail_core_work {
    fn from(work: &Work) -> Self {
        Self {
            cookie: work.cookie,
            local: work.local.into(),
            remote: work.remote.into(),
            length: work.length,
            op: match work.op {
                polyrail_core::work::Op::Write => POLYRAIL_CORE_WRITE,
                polyrail_core::work::Op::Read => POLYRAIL_CORE_READ,
            },
            signal: u8::from(work.signal),
        }
    }
}

/// `None`: C has no transports that hand over, so nothing is.
fn event(said: Event) -> Option<polyrail_core_event> {
    let nothing = polyrail_core_event {
        event: 0,
        state: 0,
        cause: 0,
        number: 0,
        tag: 0,
    };
    Some(match said {
        Event::RequestDone { request, tag } => polyrail_core_event {
            event: POLYRAIL_CORE_EVENT_REQUEST_DONE,
            number: request.to_bits(),
            tag,
            ..nothing
        },
        Event::BatchDone { batch, tag } => polyrail_core_event {
            event: POLYRAIL_CORE_EVENT_BATCH_DONE,
            number: batch.to_bits(),
            tag,
            ..nothing
        },
        Event::Settled { tag, local, remote } => polyrail_core_event {
            event: POLYRAIL_CORE_EVENT_SETTLED,
            state: u32::from(local == Local::Held) | u32::from(remote == Remote::Unknown) << 1,
            tag,
            ..nothing
        },
        Event::Failover { tag, from, to, .. } => polyrail_core_event {
            event: POLYRAIL_CORE_EVENT_FAILOVER,
            number: from.0.into(),
            state: to.0.into(),
            tag,
            ..nothing
        },
        Event::RailChanged {
            rail, state, cause, ..
        } => polyrail_core_event {
            event: POLYRAIL_CORE_EVENT_RAIL_CHANGED,
            number: rail.0.into(),
            state: state as u32,
            cause: cause.map_or(0, Cause::number),
            ..nothing
        },
        Event::PeerChanged { peer, silent } => polyrail_core_event {
            event: POLYRAIL_CORE_EVENT_PEER_CHANGED,
            number: peer.0.into(),
            state: silent.into(),
            ..nothing
        },
        Event::WakeWorker { worker } => polyrail_core_event {
            event: POLYRAIL_CORE_EVENT_WAKE_WORKER,
            number: worker.into(),
            ..nothing
        },
        Event::HandedOver { .. } | Event::CalledBack { .. } => return None,
    })
}

fn action(said: LaneAction) -> polyrail_core_action {
    let nothing = polyrail_core_action {
        action: POLYRAIL_CORE_LANE_CLOSE,
        lane: 0,
        epoch: 0,
        scope: POLYRAIL_CORE_SCOPE_LOCAL,
        by: 0,
    };
    match said {
        LaneAction::Open { lane, epoch, by } => polyrail_core_action {
            action: POLYRAIL_CORE_LANE_OPEN,
            lane: lane.0,
            epoch: epoch.0,
            by: by.as_nanos(),
            ..nothing
        },
        LaneAction::Fence { lane, epoch, scope } => polyrail_core_action {
            action: POLYRAIL_CORE_LANE_FENCE,
            lane: lane.0,
            epoch: epoch.0,
            scope: match scope {
                Scope::Local => POLYRAIL_CORE_SCOPE_LOCAL,
                Scope::Remote => POLYRAIL_CORE_SCOPE_REMOTE,
            },
            ..nothing
        },
        LaneAction::Close { lane, epoch } => polyrail_core_action {
            lane: lane.0,
            epoch: epoch.0,
            ..nothing
        },
    }
}

/// Works to be posted. Answer with `polyrail_core_handle_posted` before the next one: there is none until then. A post that is
/// not answered within the fence timeout is given up: its lane has failed, and what became of its works is unknown.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_poll_post(
    core: *mut polyrail_core_worker,
    now: u64,
    post: *mut polyrail_core_post,
) -> i32 {
    let poll = || {
        // SAFETY: the contract of the crate.
        let (core, to) = unsafe { (change(core)?, change(post)?) };
        let polyrail_core_worker { core, post, .. } = core;
        let mut batch = PostBatch::default();
        let Some(next) = core.poll_post(Instant::from_nanos(now), &mut batch) else {
            return Ok(None);
        };
        to.lane = next.lane().0;
        to.epoch = batch.epoch.0;
        to.number = next.number();
        to.count = batch.works.len();
        *post = Some((next, batch.works.len()));
        let works = to.works.iter_mut().zip(&batch.works);
        works.for_each(|(to, work)| *to = work.into());
        Ok(Some(()))
    };
    polled(poll())
}

/// What is to be done with a lane.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_poll_lane(
    core: *mut polyrail_core_worker,
    to: *mut polyrail_core_action,
) -> i32 {
    let poll = || {
        // SAFETY: the contract of the crate.
        let (core, to) = unsafe { (change(core)?, change(to)?) };
        Ok(core.core.poll_lane().map(|said| *to = action(said)))
    };
    polled(poll())
}

/// What to ask a peer. It is repeated by itself until answered, so it may be lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_poll_message(
    core: *mut polyrail_core_worker,
    now: u64,
    to: *mut polyrail_core_fence,
) -> i32 {
    let poll = || {
        // SAFETY: the contract of the crate.
        let (core, to) = unsafe { (change(core)?, change(to)?) };
        let said = core.core.poll_message(Instant::from_nanos(now));
        Ok(said.map(|Message::Fence { peer, lane, epoch }| {
            *to = polyrail_core_fence {
                peer: peer.0,
                lane: lane.0,
                epoch: epoch.0,
            };
        }))
    };
    polled(poll())
}

/// What happened. Read last: what is taken then frees rows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_poll_event(
    core: *mut polyrail_core_worker,
    to: *mut polyrail_core_event,
) -> i32 {
    let poll = || {
        // SAFETY: the contract of the crate.
        let (core, to) = unsafe { (change(core)?, change(to)?) };
        Ok(core
            .core
            .poll_event()
            .and_then(event)
            .map(|said| *to = said))
    };
    polled(poll())
}

/// How much of what was handed in changed nothing, by reason, since the core was made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_ignored(
    core: *const polyrail_core_worker,
    to: *mut polyrail_core_ignored_counts,
) -> i32 {
    let read = || {
        // SAFETY: the contract of the crate.
        let (core, to) = unsafe { (look(core)?, change(to)?) };
        let ignored = core.core.ignored();
        *to = polyrail_core_ignored_counts {
            lanes: ignored.lanes,
            epochs: ignored.epochs,
            works: ignored.works,
            facts: ignored.facts,
            counts: ignored.counts,
            posts: ignored.posts,
        };
        Ok(())
    };
    code(read())
}

/// When `polyrail_core_handle_timeout` should next be called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_poll_timeout(
    core: *mut polyrail_core_worker,
    at: *mut u64,
) -> i32 {
    let poll = || {
        // SAFETY: the contract of the crate.
        let (core, to) = unsafe { (change(core)?, change(at)?) };
        Ok(core.core.poll_timeout().map(|(at, _)| *to = at.as_nanos()))
    };
    polled(poll())
}
