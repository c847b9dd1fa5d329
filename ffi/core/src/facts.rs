//! Facts: what a device and a peer have to say.

use polyrail_core::contract::Rule;
use polyrail_core::message::Frame;
use polyrail_core::orchestrator::{Post, Proof};
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{Epoch, LaneId, PeerId};
use polyrail_core::work::{Cause, Completion, LaneFact, LaneLimits, Outcome, Scope, Stop};

use crate::memory::{
    ARGUMENT, Code, LIMIT, POLYRAIL_CORE_NONE, POLYRAIL_CORE_OK, STALE, change, code, look, several,
};
use crate::worker::polyrail_core_worker;

/// All works of a post were taken.
pub const POLYRAIL_CORE_STOP_ALL: u32 = 0;
/// The lane has no room for more.
pub const POLYRAIL_CORE_STOP_FULL: u32 = 1;
/// The first work not taken was refused, for the cause beside it.
pub const POLYRAIL_CORE_STOP_REJECTED: u32 = 2;
/// Nobody can say what became of the works from there on.
pub const POLYRAIL_CORE_STOP_UNKNOWN: u32 = 3;

/// The lane can take works: `works_max` and `work_bytes_max` count.
pub const POLYRAIL_CORE_LANE_OPENED: u32 = 0;
/// It could not be opened, for `cause`.
pub const POLYRAIL_CORE_LANE_OPEN_FAILED: u32 = 1;
/// It has room again.
pub const POLYRAIL_CORE_LANE_WRITABLE: u32 = 2;
/// It is of no use any more, for `cause`.
pub const POLYRAIL_CORE_LANE_BROKEN: u32 = 3;
/// The fence of `scope` holds.
pub const POLYRAIL_CORE_LANE_FENCED: u32 = 4;
/// The fence of `scope` cannot be given now.
pub const POLYRAIL_CORE_LANE_UNFENCEABLE: u32 = 5;

/// Nobody reads the source or writes the initiator's memory any more.
pub const POLYRAIL_CORE_SCOPE_LOCAL: u32 = 0;
/// No further write can reach the destination.
pub const POLYRAIL_CORE_SCOPE_REMOTE: u32 = 1;

/// The answer about one work. It also covers those posted before it on the lane that asked for none of their own.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_completion {
    /// The lane.
    pub lane: u32,
    /// The lane's epoch when the work was posted.
    pub epoch: u32,
    /// The work's.
    pub cookie: u64,
    /// When it was seen; not later than the `now` of the call.
    pub at: u64,
    /// 0: the bytes are where they should be, and nothing touches either side for it any more. Else why not, one of the
    /// causes that `polyrail_cause_text` of polyrail.h knows.
    pub cause: u32,
}

/// Something about a lane.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_lane_fact {
    /// Which.
    pub lane: u32,
    /// Its epoch.
    pub epoch: u32,
    /// One of `POLYRAIL_CORE_LANE_…`.
    pub fact: u32,
    /// Of one that says why.
    pub cause: u32,
    /// Of a fence.
    pub scope: u32,
    /// Of an opened one: works that may be posted and not completed, at least 1.
    pub works_max: u16,
    /// Of an opened one: 1 if a completion covers the works before it on the lane; else each completes by itself.
    pub covers: u8,
    /// Of an opened one: 1 if the peer counts the works that arrived whole, in order, and says how many with its fence
    /// (`delivered` of `polyrail_core_handle_fenced`). Then writes are not sent again before that is known, or only after a
    /// moment. Else such a count is not believed.
    pub counts: u8,
    /// Of an opened one: bytes of the largest work, at least 1.
    pub work_bytes_max: u32,
}

fn cause(number: u32) -> Result<Cause, Code> {
    Cause::from_number(number).ok_or(ARGUMENT)
}

fn fact(said: &polyrail_core_lane_fact) -> Result<LaneFact, Code> {
    let scope = match said.scope {
        POLYRAIL_CORE_SCOPE_LOCAL => Ok(Scope::Local),
        POLYRAIL_CORE_SCOPE_REMOTE => Ok(Scope::Remote),
        _ => Err(ARGUMENT),
    };
    Ok(match said.fact {
        POLYRAIL_CORE_LANE_OPENED => {
            if said.works_max == 0 || said.work_bytes_max == 0 || said.covers > 1 || said.counts > 1
            {
                return Err(ARGUMENT);
            }
            LaneFact::Opened {
                limits: LaneLimits {
                    covers: said.covers == 1,
                    counts: said.counts == 1,
                    ..LaneLimits::new(said.works_max, said.work_bytes_max)
                },
            }
        }
        POLYRAIL_CORE_LANE_OPEN_FAILED => LaneFact::OpenFailed(cause(said.cause)?),
        POLYRAIL_CORE_LANE_WRITABLE => LaneFact::Writable,
        POLYRAIL_CORE_LANE_BROKEN => LaneFact::Broken(cause(said.cause)?),
        POLYRAIL_CORE_LANE_FENCED => LaneFact::Fenced {
            scope: scope?,
            delivered: None,
        },
        POLYRAIL_CORE_LANE_UNFENCEABLE => LaneFact::Unfenceable { scope: scope? },
        _ => return Err(ARGUMENT),
    })
}

fn peer(core: &polyrail_core_worker, number: u16) -> Result<PeerId, Code> {
    match u32::from(number) < core.peers {
        true => Ok(PeerId(number)),
        false => Err(LIMIT),
    }
}

/// Hands completions in. If one of them makes no sense, none is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_handle_completions(
    core: *mut polyrail_core_worker,
    now: u64,
    first: *const polyrail_core_completion,
    count: usize,
) -> i32 {
    let hand_in = || {
        // SAFETY: the contract of the crate.
        let (core, said) = unsafe { (change(core)?, several(first, count)?) };
        let completion = |said: &polyrail_core_completion| {
            Ok(Completion {
                lane: LaneId(said.lane),
                epoch: Epoch(said.epoch),
                cookie: said.cookie,
                at: Instant::from_nanos(said.at.min(now)),
                outcome: match said.cause {
                    0 => Outcome::Success,
                    number => Outcome::Error(cause(number)?),
                },
            })
        };
        said.iter()
            .try_for_each(|said| completion(said).map(drop))?;
        let at = Instant::from_nanos(now);
        for said in said {
            let completion = completion(said)?;
            if said.at > now {
                let (lane, ahead) = (completion.lane, Duration::from_nanos(said.at - now));
                let rule = Rule::CompletedInFuture;
                core.core.tell(at, rule, lane, said.cookie, ahead);
            }
            core.core.handle_completions(at, &[completion]);
        }
        Ok(())
    };
    code(hand_in())
}

/// Hands in something about a lane. Completions that were seen before come first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_handle_lane(
    core: *mut polyrail_core_worker,
    now: u64,
    said: *const polyrail_core_lane_fact,
) -> i32 {
    let hand_in = || {
        // SAFETY: the contract of the crate.
        let (core, said) = unsafe { (change(core)?, look(said)?) };
        let (lane, epoch) = (LaneId(said.lane), Epoch(said.epoch));
        core.core
            .handle_lane(Instant::from_nanos(now), lane, epoch, fact(said)?);
        Ok(())
    };
    code(hand_in())
}

/// Answers the post of this `number`: how many works were taken, why no more, and the cause of a refusal.
/// `POLYRAIL_CORE_ERROR_STALE`: it is not the post that is out, because it was answered already, or was given up for want of an
/// answer; then nothing changes. After `POLYRAIL_CORE_ERROR_ARGUMENT` it is still out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_handle_posted(
    core: *mut polyrail_core_worker,
    now: u64,
    number: u32,
    accepted: usize,
    stop: u32,
    cause_of_refusal: u32,
) -> i32 {
    let hand_in = || {
        // SAFETY: the contract of the crate.
        let core = unsafe { change(core) }?;
        let is_this = |out: &&(Post, usize)| out.0.number() == number;
        let (post, posted) = core.post.as_ref().filter(is_this).ok_or(STALE)?;
        let (lane, posted) = (post.lane(), *posted);
        let is_all = stop == POLYRAIL_CORE_STOP_ALL;
        if accepted > posted || (is_all && accepted < posted) {
            let (at, count) = (Instant::from_nanos(now), accepted as u64);
            let rule = Rule::PostMiscounted;
            core.core.tell(at, rule, lane, count, Duration::ZERO);
            return Err(ARGUMENT);
        }
        let stop = match stop {
            POLYRAIL_CORE_STOP_ALL => Stop::All,
            POLYRAIL_CORE_STOP_FULL => Stop::Full,
            POLYRAIL_CORE_STOP_REJECTED => Stop::Rejected(cause(cause_of_refusal)?),
            POLYRAIL_CORE_STOP_UNKNOWN => Stop::Unknown,
            _ => return Err(ARGUMENT),
        };
        let (post, _) = core.post.take().ok_or(STALE)?;
        let now = Instant::from_nanos(now);
        match core.core.handle_posted(now, post, accepted, stop) {
            true => Ok(()),
            false => Err(STALE),
        }
    };
    code(hand_in())
}

/// A peer is alive: anything at all was heard of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_handle_alive(
    core: *mut polyrail_core_worker,
    now: u64,
    number: u16,
) -> i32 {
    let hand_in = || {
        // SAFETY: the contract of the crate.
        let core = unsafe { change(core) }?;
        let peer = peer(core, number)?;
        core.core
            .handle_frame(Instant::from_nanos(now), peer, &Frame::Alive);
        Ok(())
    };
    code(hand_in())
}

/// A peer has answered a fence: no write of that epoch can land any more, and so many works of it were delivered whole.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_handle_fenced(
    core: *mut polyrail_core_worker,
    now: u64,
    number: u16,
    lane: u32,
    epoch: u32,
    delivered: u32,
) -> i32 {
    let hand_in = || {
        // SAFETY: the contract of the crate.
        let core = unsafe { change(core) }?;
        let peer = peer(core, number)?;
        let frame = Frame::Fenced {
            lane: LaneId(lane),
            epoch: Epoch(epoch),
            delivered,
        };
        core.core
            .handle_frame(Instant::from_nanos(now), peer, &frame);
        Ok(())
    };
    code(hand_in())
}

/// A peer's process has ended, with proof: nothing moves there any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_handle_peer_gone(
    core: *mut polyrail_core_worker,
    now: u64,
    number: u16,
) -> i32 {
    let hand_in = || {
        // SAFETY: the contract of the crate.
        let core = unsafe { change(core) }?;
        let peer = peer(core, number)?;
        core.core
            .handle_peer_gone(Instant::from_nanos(now), peer, Proof::ProcessGone);
        Ok(())
    };
    code(hand_in())
}

/// Gives a peer up for good, so that its number can mean another. `POLYRAIL_CORE_NONE`: something is still open; do what
/// the polls say and call again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_forget_peer(
    core: *mut polyrail_core_worker,
    now: u64,
    number: u16,
) -> i32 {
    let forget = || {
        // SAFETY: the contract of the crate.
        let core = unsafe { change(core) }?;
        let peer = peer(core, number)?;
        Ok(core.core.forget_peer(Instant::from_nanos(now), peer))
    };
    match forget() {
        Ok(true) => POLYRAIL_CORE_OK,
        Ok(false) => POLYRAIL_CORE_NONE,
        Err(Code(code)) => code,
    }
}

/// Does what is due. Calling early or twice changes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_handle_timeout(
    core: *mut polyrail_core_worker,
    now: u64,
) -> i32 {
    // SAFETY: the contract of the crate.
    let core = unsafe { change(core) };
    code(core.map(|core| core.core.handle_timeout(Instant::from_nanos(now))))
}

/// Another worker has made room: `POLYRAIL_CORE_EVENT_WAKE_WORKER` said so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_handle_wake(core: *mut polyrail_core_worker) -> i32 {
    // SAFETY: the contract of the crate.
    let core = unsafe { change(core) };
    code(core.map(|core| core.core.handle_wake()))
}
