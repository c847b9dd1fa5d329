//! The initiator's half: an [`Endpoint`] over the table of a library.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use polyrail_core::time::Instant;
use polyrail_core::units::{Epoch, LaneId, RailId, SegmentRef};
use polyrail_core::work::{
    Cause, Completion, LaneFact, LaneLimits, Op, Outcome, POST_MAX, PostBatch, Posted, Scope, Stop,
    Work,
};
use polyrail_transport::clock::Clock;
use polyrail_transport::complain;
use polyrail_transport::memory::Region;
use polyrail_transport::{Endpoint, LaneReport, Polled, RailAddress, RemoteRegion};

use crate::abi::*;
use crate::host::{Host, Joined, lent};
use crate::target::{Instance, explained, function};

/// Events that are asked for at a time.
const EVENTS: usize = 64;
/// Times that one poll asks.
const TURNS: usize = 16;

const NO_EVENT: polyrail_transport_event = polyrail_transport_event {
    kind: POLYRAIL_TRANSPORT_COMPLETION,
    lane: 0,
    epoch: 0,
    cause: 0,
    cookie: 0,
    at: 0,
    scope: 0,
    delivered: 0,
    work_bytes_max: 0,
    works_max: 0,
    reads_max: 0,
    covers: 0,
};

const NO_WORK: polyrail_transport_work = polyrail_transport_work {
    cookie: 0,
    local_offset: 0,
    remote_offset: 0,
    local: 0,
    remote: 0,
    length: 0,
    op: 0,
    signal: 0,
};

/// An endpoint of a library's.
pub(crate) struct LoadedEndpoint {
    instance: Arc<Instance>,
    host: Arc<Host>,
    worker: u16,
    at: *mut c_void,
    descriptor: RawFd,
    clock: Clock,
    /// What the library has been lent.
    locals: HashMap<SegmentRef, Arc<Region>>,
    events: Box<[polyrail_transport_event; EVENTS]>,
    works: Box<[polyrail_transport_work; POST_MAX]>,
}

// SAFETY: the library's functions for it are called by one thread at a time, whichever it is.
unsafe impl Send for LoadedEndpoint {}

impl LoadedEndpoint {
    pub(crate) fn new(
        instance: Arc<Instance>,
        host: Arc<Host>,
        worker: u16,
        clock: Clock,
    ) -> io::Result<Self> {
        let mut at = null_mut();
        let create = function!(instance.library, endpoint_create);
        // SAFETY: there is room for what it answers.
        let created =
            explained(|why, bytes| unsafe { create(instance.at, worker, &mut at, why, bytes) });
        created.map_err(io::Error::other)?;
        let ask = function!(instance.library, descriptor);
        // SAFETY: it was made just now.
        let descriptor = unsafe { ask(at) };
        let endpoint = Self {
            instance,
            host,
            worker,
            at,
            descriptor,
            clock,
            locals: HashMap::new(),
            events: Box::new([NO_EVENT; EVENTS]),
            works: Box::new([NO_WORK; POST_MAX]),
        };
        match descriptor < 0 {
            true => Err(io::Error::other("its endpoint has no descriptor")),
            false => Ok(endpoint),
        }
    }

    fn complain(&self, what: impl std::fmt::Display) {
        complain!("transport {}: {what}", self.instance.library.name());
    }

    /// What an event says. One that makes no sense breaks its lane, which is all that is known then.
    fn take(&self, now: Instant, event: &polyrail_transport_event, out: &mut Polled) {
        let (lane, epoch) = (LaneId(event.lane), Epoch(event.epoch));
        if event.kind == POLYRAIL_TRANSPORT_COMPLETION {
            let at = match event.at {
                0 => now,
                nanos => Instant::from_nanos(nanos).min(now),
            };
            let outcome = match event.cause {
                POLYRAIL_TRANSPORT_CAUSE_NONE => Outcome::Success,
                number => Outcome::Error(self.cause(number)),
            };
            return out.completions.push(Completion {
                lane,
                epoch,
                cookie: event.cookie,
                at,
                outcome,
            });
        }
        let fact = self.fact(event).unwrap_or_else(|| {
            self.complain(format_args!(
                "an event of kind {} for {lane:?} that makes no sense",
                event.kind
            ));
            LaneFact::Broken(Cause::Fatal)
        });
        out.lanes.push(LaneReport { lane, epoch, fact });
    }

    fn cause(&self, number: u32) -> Cause {
        Cause::from_number(number).unwrap_or_else(|| {
            self.complain(format_args!("a cause {number}, which is none"));
            Cause::Fatal
        })
    }

    fn fact(&self, event: &polyrail_transport_event) -> Option<LaneFact> {
        let scope = match event.scope {
            POLYRAIL_TRANSPORT_SCOPE_LOCAL => Some(Scope::Local),
            POLYRAIL_TRANSPORT_SCOPE_REMOTE => Some(Scope::Remote),
            _ => None,
        };
        Some(match event.kind {
            POLYRAIL_TRANSPORT_OPENED => {
                if event.works_max == 0 || event.work_bytes_max == 0 || event.covers > 1 {
                    return None;
                }
                let limits = LaneLimits::new(event.works_max, event.work_bytes_max);
                LaneFact::Opened {
                    limits: LaneLimits {
                        reads_max: match event.reads_max {
                            0 => limits.reads_max,
                            reads => reads.min(event.works_max),
                        },
                        covers: event.covers == 1,
                        ..limits
                    },
                }
            }
            POLYRAIL_TRANSPORT_OPEN_FAILED => LaneFact::OpenFailed(self.cause(event.cause)),
            POLYRAIL_TRANSPORT_WRITABLE => LaneFact::Writable,
            POLYRAIL_TRANSPORT_BROKEN => LaneFact::Broken(self.cause(event.cause)),
            POLYRAIL_TRANSPORT_FENCED => LaneFact::Fenced {
                scope: scope?,
                delivered: (event.delivered != POLYRAIL_TRANSPORT_UNKNOWN)
                    .then_some(event.delivered),
            },
            POLYRAIL_TRANSPORT_UNFENCEABLE => LaneFact::Unfenceable { scope: scope? },
            _ => return None,
        })
    }

    /// What the library said of a post. What cannot be is the worst that it could mean: nobody knows.
    fn posted(&self, said: polyrail_transport_posted, count: usize) -> Posted {
        let stop = match said.stop {
            POLYRAIL_TRANSPORT_STOP_ALL if said.accepted == count => Some(Stop::All),
            POLYRAIL_TRANSPORT_STOP_FULL if said.accepted < count => Some(Stop::Full),
            POLYRAIL_TRANSPORT_STOP_REJECTED if said.accepted < count => {
                Some(Stop::Rejected(self.cause(said.cause)))
            }
            POLYRAIL_TRANSPORT_STOP_UNKNOWN if said.accepted <= count => Some(Stop::Unknown),
            _ => None,
        };
        let accepted = said.accepted;
        match stop {
            Some(stop) => Posted { accepted, stop },
            None => {
                self.complain(format_args!(
                    "{accepted} of {count} works taken, and stopped for {}: that cannot be",
                    said.stop
                ));
                Posted {
                    accepted: 0,
                    stop: Stop::Unknown,
                }
            }
        }
    }
}

fn work(work: &Work) -> polyrail_transport_work {
    polyrail_transport_work {
        cookie: work.cookie,
        local_offset: work.local.offset,
        remote_offset: work.remote.offset,
        local: work.local.segment.0,
        remote: work.remote.segment.0,
        length: work.length,
        op: match work.op {
            Op::Write => POLYRAIL_TRANSPORT_WRITE,
            Op::Read => POLYRAIL_TRANSPORT_READ,
        },
        signal: u8::from(work.signal),
    }
}

impl Endpoint for LoadedEndpoint {
    fn attach_local(&mut self, segment: SegmentRef, region: Arc<Region>) {
        let attach = function!(self.instance.library, attach_local);
        // SAFETY: the region is kept until it has been detached.
        unsafe { attach(self.at, segment.0, lent(&region)) };
        self.locals.insert(segment, region);
    }

    fn detach_local(&mut self, segment: SegmentRef) {
        let detach = function!(self.instance.library, detach_local);
        // SAFETY: numbers only.
        unsafe { detach(self.at, segment.0) };
        self.locals.remove(&segment);
    }

    fn attach_remote(&mut self, segment: SegmentRef, region: RemoteRegion) {
        let attach = function!(self.instance.library, attach_remote);
        // SAFETY: a key has as many bytes.
        unsafe { attach(self.at, segment.0, region.key.0.as_ptr(), region.bytes) };
    }

    fn detach_remote(&mut self, segment: SegmentRef) {
        if let Some(detach) = self.instance.library.table.detach_remote {
            // SAFETY: numbers only.
            unsafe { detach(self.at, segment.0) };
        }
    }

    fn attach_rail(&mut self, rail: RailId, address: RailAddress) {
        let attach = function!(self.instance.library, attach_rail);
        let local = address.local.map(|local| local.to_string());
        let local = local.and_then(|local| CString::new(local).ok());
        let remote = CString::new(address.remote.to_string()).unwrap_or_default();
        let told = polyrail_transport_rail {
            session: address.session.0,
            address: address.own.as_ptr(),
            address_length: address.own.len(),
            local: local.as_ref().map_or(null(), |local| local.as_ptr()),
            remote: remote.as_ptr(),
        };
        let joined = Joined {
            session: address.session,
            secret: address.secret.clone(),
        };
        self.host.set_rail(self.worker, rail, joined);
        // SAFETY: everything it points to lives during the call.
        unsafe { attach(self.at, rail.0, &told) };
    }

    fn forget_rail(&mut self, rail: RailId) {
        self.host.forget_rail(self.worker, rail);
        if let Some(forget) = self.instance.library.table.forget_rail {
            // SAFETY: numbers only.
            unsafe { forget(self.at, rail.0) };
        }
    }

    fn open(&mut self, lane: LaneId, epoch: Epoch, by: Instant) {
        self.host.open_lane(lane, epoch);
        let open = function!(self.instance.library, open);
        let now = self.clock.now().as_nanos();
        // SAFETY: numbers only.
        unsafe { open(self.at, lane.0, epoch.0, now, by.as_nanos()) };
    }

    fn post(&mut self, batch: &PostBatch) -> Posted {
        let count = batch.works.len();
        let works = self.works.iter_mut().zip(&batch.works);
        works.for_each(|(to, from)| *to = work(from));
        let post = function!(self.instance.library, post);
        // What a library that says nothing has said.
        let mut said = polyrail_transport_posted {
            accepted: 0,
            stop: POLYRAIL_TRANSPORT_STOP_UNKNOWN,
            cause: POLYRAIL_TRANSPORT_CAUSE_NONE,
        };
        let (lane, epoch, first) = (batch.lane.0, batch.epoch.0, self.works.as_ptr());
        let now = self.clock.now().as_nanos();
        // SAFETY: there are as many works.
        unsafe { post(self.at, lane, epoch, first, count, now, &mut said) };
        self.posted(said, count)
    }

    fn poll(&mut self, now: Instant, out: &mut Polled) {
        let poll = function!(self.instance.library, poll);
        for _ in 0..TURNS {
            let events = self.events.as_mut_ptr();
            // SAFETY: there is room for as many events.
            let count = unsafe { poll(self.at, now.as_nanos(), events, EVENTS) };
            if count > EVENTS {
                self.complain(format_args!("{count} events where {EVENTS} had room"));
            }
            for event in self.events.iter().take(count) {
                self.take(now, event, out);
            }
            if count < EVENTS {
                return;
            }
        }
    }

    fn fence(&mut self, lane: LaneId, epoch: Epoch, scope: Scope) {
        let fence = function!(self.instance.library, fence);
        let scope = match scope {
            Scope::Local => POLYRAIL_TRANSPORT_SCOPE_LOCAL,
            Scope::Remote => POLYRAIL_TRANSPORT_SCOPE_REMOTE,
        };
        // SAFETY: numbers only.
        unsafe { fence(self.at, lane.0, epoch.0, scope) };
    }

    fn close(&mut self, lane: LaneId, epoch: Epoch) {
        let close = function!(self.instance.library, close);
        // SAFETY: numbers only.
        unsafe { close(self.at, lane.0, epoch.0) };
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library's, which keeps it open as long as the endpoint is there; it was looked at.
        unsafe { BorrowedFd::borrow_raw(self.descriptor) }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let ask = self.instance.library.table.poll_timeout?;
        // SAFETY: it is there until it is dropped.
        match unsafe { ask(self.at) } {
            POLYRAIL_TRANSPORT_NEVER => None,
            nanos => Some(Instant::from_nanos(nanos)),
        }
    }
}

impl Drop for LoadedEndpoint {
    fn drop(&mut self) {
        let destroy = function!(self.instance.library, endpoint_destroy);
        // SAFETY: it was made by the same library, and is not used any more. What it was lent goes after it.
        unsafe { destroy(self.at) };
        self.host.forget_rails(self.worker);
    }
}
