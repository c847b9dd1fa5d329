//! What a program asks for: requests, their terms, and whether they can be.

use std::sync::Arc;
use std::time::Duration;

use polyrail_core::units::PlanId;
use polyrail_core::work::{Op, Priority};

use crate::engine::Engine;
use crate::error::SubmitError;
use crate::post::{BATCH_MAX, Submission};
use crate::segments::{Holds, KnownPair, Pairs, SegmentId};
use crate::staging::{Route, Stager};

/// One read or write between two segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Write: from local to remote. Read: from remote to local.
    pub op: Op,
    /// A segment of this engine: memory, or a file if the other one is a peer's.
    pub local: SegmentId,
    /// First byte in it.
    pub local_offset: u64,
    /// A segment of a peer, or a file of this host.
    pub remote: SegmentId,
    /// First byte in it.
    pub remote_offset: u64,
    /// Bytes, at least 1.
    pub length: u64,
}

/// How a batch is treated, beyond what it moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Terms<'a> {
    /// Who goes first where rails have no room for all.
    pub priority: Priority,
    /// From now on. Then nothing more of a request that has not ended is sent, and it ends as
    /// [`Status::DeadlineExceeded`](crate::Status::DeadlineExceeded) as soon as nothing of it can move any more. What is under way is waited for for
    /// `health/cancel_grace_ms`, and then for proof that it has stopped, for `health/fence_timeout_ms` at most: so the report comes
    /// 2.1 s after the deadline at the latest, by the defaults, and mostly at once. One whose bytes are all there by then is
    /// `Completed`. `None`: they may take for ever.
    pub deadline: Option<Duration>,
    /// What the peer's program is told once the batch has completed: see [`Engine::submit_notifying`].
    pub notification: Option<&'a [u8]>,
    /// Counted by the peer's engine under this number once the batch has completed, so that its program can wait until so many
    /// have: [`Engine::wait_arrivals`]. Like a notification in all else, and for less: nothing is queued there. Before the
    /// notification, if there is one too.
    pub arrival: Option<u64>,
    /// The batch has not ended before all that it has written can be seen by whatever looks there: the peer's program, however it is told,
    /// and requests over other rails. Without this, `Completed` says that the peer has the bytes, and over RDMA its device may put
    /// them into memory microseconds later. It costs a round trip behind the last byte. What has not been proved to be seen within
    /// `health/fence_timeout_ms` is [`Status::Indeterminate`](crate::Status::Indeterminate) then, and settled once it has been.
    pub visible: bool,
    /// How long to wait for room if there is none, before [`SubmitError::Full`]. `None`: as configured. Nobody waits
    /// in a callback or waker, because that would hold up the worker that makes room.
    pub room_within: Option<Duration>,
}

impl Terms<'_> {
    /// Whether the peer is to be told of the end.
    pub(crate) fn tells(&self) -> bool {
        self.notification.is_some() || self.arrival.is_some()
    }
}

/// What a submission needs.
pub(crate) struct Prepared {
    /// Its requests as workers take them; for whoever stages, with the two segments in the plan's place.
    pub(crate) submissions: Vec<Submission>,
    /// The segments that they hold.
    pub(crate) held: Holds,
    /// Who stages them; `None`: a worker carries them out.
    pub(crate) stager: Option<Arc<Stager>>,
}

impl Engine {
    /// Checks every request, finds its plan, and marks its local segment as in use.
    pub(crate) fn prepare(&self, requests: &[Request]) -> Result<Prepared, SubmitError> {
        let limit = self.inner.config.limits.pairs;
        // A batch with more pairs than there can be would make room for itself for ever.
        for _ in 0..=limit {
            match self.prepare_known(requests) {
                Ok(prepared) => return prepared,
                Err(index) => match self.route(index, &requests[index], false)? {
                    Route::Staged { .. } => return self.prepare_staged(requests, false),
                    // Two segments that never met before; the next look knows them, unless one has gone meanwhile.
                    Route::Direct => drop(self.pair(index, &requests[index])?),
                },
            }
        }
        Err(SubmitError::Plans { limit })
    }

    /// The same, for segments that have a plan: looks once at what all threads share. `Err`: the first
    /// request whose segments have none.
    fn prepare_known(&self, requests: &[Request]) -> Result<Result<Prepared, SubmitError>, usize> {
        let known = self.inner.segments.known();
        let mut pairs = Pairs::of(&known);
        let mut submissions = Vec::with_capacity(requests.len());
        for (index, request) in requests.iter().enumerate() {
            let found = pairs.find((request.local, request.remote)).ok_or(index)?;
            if let Err(error) = check_request(found, index, request) {
                return Ok(Err(error));
            }
            submissions.push(Submission {
                plan: found.plan,
                op: request.op,
                local_offset: request.local_offset,
                remote_offset: request.remote_offset,
                length: request.length,
                through_slots: false,
            });
        }
        let prepared = |held| Prepared {
            submissions,
            held,
            stager: None,
        };
        Ok(known.hold(requests).map(prepared))
    }

    /// The same for a batch with a request that is staged: all of it goes to whoever stages. `through_slots`: also what a
    /// transport could carry that reaches memory of GPUs.
    pub(crate) fn prepare_staged(
        &self,
        requests: &[Request],
        through_slots: bool,
    ) -> Result<Prepared, SubmitError> {
        let stager = self.stager().map_err(|error| {
            if self.is_closing() {
                return SubmitError::ShutDown;
            }
            log::error!("cannot stage through memory: {error}");
            SubmitError::Staging
        })?;
        let segments = &self.inner.segments;
        for (index, request) in requests.iter().enumerate() {
            self.check_route(index, request, through_slots)?;
        }
        // One may have gone since it was looked at.
        let held = segments.known().hold(requests)?;
        let submission = |request: &Request| Submission {
            plan: PlanId {
                index: request.local.0,
                generation: request.remote.0,
            },
            op: request.op,
            local_offset: request.local_offset,
            remote_offset: request.remote_offset,
            length: request.length,
            through_slots,
        };
        Ok(Prepared {
            submissions: requests.iter().map(submission).collect(),
            held,
            stager: Some(stager),
        })
    }
}

/// Whether so many requests can be a batch.
pub(crate) fn check_size(requests: &[Request]) -> Result<(), SubmitError> {
    match requests.is_empty() || requests.len() > BATCH_MAX {
        true => Err(SubmitError::BatchSize {
            requests: requests.len(),
            limit: BATCH_MAX,
        }),
        false => Ok(()),
    }
}

/// Whether a request may run between its segments.
pub(crate) fn check_request(
    pair: KnownPair<'_>,
    index: usize,
    request: &Request,
) -> Result<(), SubmitError> {
    let allowed = pair.remote.descriptor.access.allows(request.op);
    let bytes = [pair.local.region.bytes(), pair.remote.descriptor.bytes];
    check_ends(index, request, [true, allowed], bytes)
}

/// Whether a request may run between segments of these sizes, the local one first, and what it does to each is allowed.
pub(crate) fn check_ends(
    index: usize,
    request: &Request,
    allowed: [bool; 2],
    bytes: [u64; 2],
) -> Result<(), SubmitError> {
    let length = request.length;
    if length == 0 {
        return Err(SubmitError::Empty { index });
    }
    let segments = [request.local, request.remote];
    for (segment, allowed) in segments.into_iter().zip(allowed) {
        if !allowed {
            return Err(SubmitError::Forbidden { index, segment });
        }
    }
    let offsets = [request.local_offset, request.remote_offset];
    for ((segment, offset), segment_bytes) in segments.into_iter().zip(offsets).zip(bytes) {
        let end = offset.checked_add(length);
        if end.is_none_or(|end| end > segment_bytes) {
            return Err(SubmitError::OutOfRange {
                index,
                segment,
                offset,
                length,
                segment_bytes,
            });
        }
    }
    Ok(())
}
