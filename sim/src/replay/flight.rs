//! A flight recording as a [trace](crate::trace).
//!
//! One process for the rails, with counters of each one's throughput and state and a track of when it was out of use; one for
//! each worker, with two tracks for each of its lanes, slices and what became of the lane, one for each row of its table of
//! requests, and one for requests that are carried out at once. A slice is drawn from when the one before it had ended; its arguments say when it was posted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use polyrail_core::message::Frame;
use polyrail_core::orchestrator::{AtOnce, Cancelled, Event, LaneAction};
use polyrail_core::rail::health::RailState;
use polyrail_core::report::Status;
use polyrail_core::time::Instant;
use polyrail_core::units::{Epoch, LaneId, RailId, RequestId};
use polyrail_core::work::{Completion, LaneFact, Op, Outcome, Scope, Stop};
use polyrail_record::{Answer, Call, Entry, Posts, Step};
use serde_json::{Value, json};

use super::Replay;
use super::story::Story;
use crate::trace::{Trace, Track, us};

/// Slices of a trace, the first ones, and requests as well: some tens of megabytes each.
const SPANS_MAX: usize = 200_000;
/// Values of counters of one trace.
const VALUES_MAX: u64 = 50_000;
/// The finest step of counters of throughput.
const BUCKET_NS: u64 = 1_000_000;
/// The process of the rails; workers are numbered from the next on.
const RAILS: usize = 1;
/// The first track of requests, above those of lanes.
const REQUESTS: usize = 1_000_000;
/// The track of requests that are carried out at once, and have no row.
const AT_ONCE: usize = REQUESTS - 1;

/// A work that a transport has.
struct Posted {
    cookie: u64,
    epoch: Epoch,
    at: u64,
    bytes: u32,
    is_probe: bool,
    /// It asked for a completion of its own.
    signal: bool,
}

/// A lane as it is being drawn.
#[derive(Default)]
struct Lane {
    works: VecDeque<Posted>,
    /// A completion covers the works before it that asked for none.
    covers: bool,
    /// What it is in, and since when.
    phase: Option<(String, u64)>,
}

/// A request that has not been reported.
struct Open {
    from: u64,
    op: Op,
    bytes: u64,
    /// The engine's word for it; `None`: it was over when core heard of it.
    tag: Option<u64>,
}

/// A trace of a recording, that grows as it is replayed.
#[derive(Default)]
pub struct Flight {
    trace: Trace,
    known: BTreeSet<Track>,
    lanes: BTreeMap<LaneId, Lane>,
    /// By worker: the lane of its last post, and how many works that had.
    out: BTreeMap<u16, (LaneId, usize)>,
    /// By worker and row.
    requests: BTreeMap<(u16, u32), Open>,
    /// By the engine's word for a request that may still be heard of: where it is drawn.
    tags: BTreeMap<u64, Track>,
    /// How rails stand, why, and since when.
    rails: BTreeMap<RailId, (RailState, String, u64)>,
    /// By rail and millisecond: bytes that arrived.
    arrived: BTreeMap<RailId, BTreeMap<u64, u64>>,
    slices: usize,
    requests_drawn: usize,
    left_out: u64,
    /// When the first slice or request was left out.
    cut_at: Option<u64>,
}

/// The track of a lane's slices, or of what becomes of the lane.
fn lane_track(lane: LaneId, of_slices: bool) -> Track {
    let pair = 2 * lane.rail().index() + 1;
    let track = if of_slices { pair } else { pair + 1 };
    (worker_process(lane.worker()), track)
}

fn worker_process(worker: u16) -> usize {
    RAILS + 1 + usize::from(worker)
}

fn request_track(worker: u16, row: u32) -> Track {
    (worker_process(worker), REQUESTS + row as usize)
}

impl Flight {
    /// Takes in one call that `story` has just taken in.
    pub(super) fn note(&mut self, entry: &Entry<'_>, at: Instant, story: &Story) {
        if let Step::Worker(worker, call) = &entry.step {
            self.called(*worker, call, at.as_nanos(), story);
            self.answered(*worker, call, &entry.answer, at.as_nanos(), story);
        }
    }

    /// What was handed in.
    fn called(&mut self, worker: u16, call: &Call<'_>, at: u64, story: &Story) {
        match call {
            Call::HandlePosted { accepted, stop, .. } => {
                let Some((lane, count)) = self.out.remove(&worker) else {
                    return;
                };
                // Those that the transport may have taken are on their way as far as anybody knows.
                if *stop != Stop::Unknown {
                    let works = &mut self.lanes.entry(lane).or_default().works;
                    works.truncate(works.len().saturating_sub(count.saturating_sub(*accepted)));
                }
            }
            Call::HandleCompletions { completions, .. } => {
                for completion in completions.iter() {
                    self.completed(completion, story);
                }
            }
            Call::HandleAtOnce { done, took, .. } => {
                let to = at + took.map_or(0, |took| took.as_nanos());
                self.at_once(worker, done, (at, to), story);
            }
            Call::HandleLane {
                lane, epoch, fact, ..
            } => self.fact(*lane, *epoch, fact, at, story),
            Call::HandleFrame {
                frame:
                    Frame::Fenced {
                        lane,
                        epoch,
                        delivered,
                    },
                ..
            } => {
                let what = format!(
                    "the peer has fenced epoch {}: {delivered} works arrived",
                    epoch.0
                );
                self.lane_instant(*lane, what, at, story);
            }
            Call::HandlePeerGone { peer, proof, .. } => {
                let what = format!("peer {} is gone: {proof:?}", peer.0);
                let here = ((worker_process(worker), 0), at);
                self.trace.instant("peer", what, here, "p", Value::Null);
            }
            Call::HandBack { id, how, .. } => {
                let what = format!("handed back as {}", how.status.name());
                let here = (request_track(worker, id.index), at);
                self.trace.instant("request", what, here, "t", Value::Null);
            }
            _ => {}
        }
    }

    /// What core wanted or said.
    fn answered(
        &mut self,
        worker: u16,
        call: &Call<'_>,
        answer: &Answer<'_>,
        at: u64,
        story: &Story,
    ) {
        match (call, answer) {
            (Call::Submit { request, .. }, Answer::Submitted(Ok(id))) => {
                self.tags
                    .insert(request.tag, request_track(worker, id.index));
                let open = Open {
                    from: at,
                    op: request.op,
                    bytes: request.length,
                    tag: Some(request.tag),
                };
                self.requests.insert((worker, id.index), open);
            }
            (Call::Cancel { id, .. }, Answer::Cancelled(Cancelled::Marked)) => {
                let here = (request_track(worker, id.index), at);
                let what = "cancelled by the program".to_owned();
                self.trace.instant("request", what, here, "t", Value::Null);
            }
            (Call::Take { id }, Answer::Report(Some(report)))
                if report.status != Status::Pending =>
            {
                let args = json!({
                    "delivered_bytes": report.delivered_bytes,
                    "cause": report.cause.map(|cause| cause.text()),
                });
                self.ended(worker, *id, Some(report.status), at, args);
            }
            (_, Answer::Posts(Some(posts))) => self.posted(worker, posts, at, story),
            (_, Answer::Lane(Some(action))) => self.action(action, at, story),
            (_, Answer::Event(Some(event))) => self.event(worker, event, at, story),
            _ => {}
        }
    }

    fn posted(&mut self, worker: u16, posts: &Posts<'_>, at: u64, story: &Story) {
        self.out.insert(worker, (posts.lane, posts.works.len()));
        let lane = self.lanes.entry(posts.lane).or_default();
        lane.works.extend(posts.works.iter().map(|work| Posted {
            cookie: work.cookie,
            epoch: posts.epoch,
            at,
            bytes: work.length,
            is_probe: story.is_probe(work),
            signal: work.signal,
        }));
    }

    /// A work has ended, and those before it that get no completion of their own.
    fn completed(&mut self, completion: &Completion, story: &Story) {
        let Some(lane) = self.lanes.get_mut(&completion.lane) else {
            return;
        };
        let is_it =
            |work: &Posted| work.cookie == completion.cookie && work.epoch == completion.epoch;
        let Some(place) = lane.works.iter().position(is_it) else {
            return;
        };
        let covers = lane.covers;
        let behind = lane.works.split_off(place + 1);
        let (ended, left) = std::mem::replace(&mut lane.works, behind)
            .into_iter()
            .partition::<Vec<_>, _>(|work| is_it(work) || (covers && !work.signal));
        left.into_iter()
            .rev()
            .for_each(|work| lane.works.push_front(work));
        let at = completion.at.as_nanos();
        for work in ended {
            let failed = match completion.outcome {
                Outcome::Error(cause) if is_it(&work) => Some(cause.text()),
                _ => None,
            };
            if failed.is_none() && !work.is_probe {
                self.arrived(completion.lane.rail(), at, work.bytes);
            }
            let how = if failed.is_some() { "failed " } else { "" };
            self.slice(completion.lane, &work, how, at, failed, story);
        }
    }

    fn arrived(&mut self, rail: RailId, at: u64, bytes: u32) {
        let arrived = self.arrived.entry(rail).or_default();
        *arrived.entry(at / BUCKET_NS).or_default() += u64::from(bytes);
    }

    /// A request was carried out in one call: one slice, and over.
    fn at_once(&mut self, worker: u16, done: &AtOnce, (from, to): (u64, u64), story: &Story) {
        let work = Posted {
            cookie: done.work.cookie,
            epoch: done.epoch,
            at: from,
            bytes: done.work.length,
            is_probe: false,
            signal: false,
        };
        self.arrived(done.lane.rail(), to, work.bytes);
        self.slice(done.lane, &work, "", to, None, story);
        let track = (worker_process(worker), AT_ONCE);
        self.name(track, || "requests at once".to_owned());
        let request = Open {
            from,
            op: done.work.op,
            bytes: done.work.length.into(),
            tag: None,
        };
        self.request(track, &request, Some(Status::Completed), to, json!({}));
    }

    fn slice(
        &mut self,
        lane: LaneId,
        work: &Posted,
        how: &str,
        to: u64,
        cause: Option<&'static str>,
        story: &Story,
    ) {
        self.slices += 1;
        if self.slices > SPANS_MAX {
            return self.leave_out(work.at);
        }
        let track = self.lane_track(lane, true, story);
        let what = if work.is_probe { "probe" } else { "slice" };
        let mut args =
            json!({ "bytes": work.bytes, "posted_us": us(work.at), "epoch": work.epoch.0 });
        if let Some(cause) = cause {
            args["cause"] = cause.into();
        }
        let name = format!("{how}{what}");
        self.trace.span("slice", &name, track, (work.at, to), args);
    }

    fn leave_out(&mut self, at: u64) {
        self.left_out += 1;
        self.cut_at.get_or_insert(at);
    }

    /// Works of an epoch of which nothing is heard any more.
    fn orphans(&mut self, lane: LaneId, up_to: Epoch, how: &str, at: u64, story: &Story) {
        let works = std::mem::take(&mut self.lanes.entry(lane).or_default().works);
        let (over, left) = works
            .into_iter()
            .partition::<VecDeque<_>, _>(|work| work.epoch <= up_to);
        self.lanes.entry(lane).or_default().works = left;
        for work in over {
            self.slice(lane, &work, how, at, None, story);
        }
    }

    fn fact(&mut self, lane: LaneId, epoch: Epoch, fact: &LaneFact, at: u64, story: &Story) {
        match fact {
            LaneFact::Opened { limits } => {
                self.lanes.entry(lane).or_default().covers = limits.covers;
                self.phase(lane, Some(format!("open, epoch {}", epoch.0)), at, story);
            }
            LaneFact::OpenFailed(cause) => {
                self.phase(lane, None, at, story);
                self.lane_instant(lane, format!("could not be opened: {cause}"), at, story);
            }
            LaneFact::Broken(cause) => {
                self.phase(lane, Some("broken".to_owned()), at, story);
                self.lane_instant(lane, format!("broken: {cause}"), at, story);
            }
            LaneFact::Fenced { scope, delivered } => {
                let arrived =
                    delivered.map_or(String::new(), |works| format!(": {works} works arrived"));
                let what = format!("fenced ({scope:?}), epoch {}{arrived}", epoch.0);
                self.lane_instant(lane, what, at, story);
                if *scope == Scope::Local {
                    self.orphans(lane, epoch, "fenced ", at, story);
                    self.phase(lane, None, at, story);
                }
            }
            LaneFact::Unfenceable { scope } => {
                self.lane_instant(lane, format!("cannot be fenced ({scope:?})"), at, story);
            }
            LaneFact::Writable | LaneFact::PortActive | LaneFact::Crowded => {}
        }
    }

    fn action(&mut self, action: &LaneAction, at: u64, story: &Story) {
        match *action {
            LaneAction::Open { lane, epoch, .. } => {
                self.phase(lane, Some(format!("opening, epoch {}", epoch.0)), at, story);
            }
            LaneAction::Fence { lane, epoch, scope } => {
                let what = format!("fence ({scope:?}), epoch {}", epoch.0);
                self.lane_instant(lane, what, at, story);
                self.phase(lane, Some(format!("fence of epoch {}", epoch.0)), at, story);
            }
            LaneAction::Close { lane, .. } => self.phase(lane, None, at, story),
        }
    }

    /// A lane comes into a phase, or into none.
    fn phase(&mut self, lane: LaneId, phase: Option<String>, at: u64, story: &Story) {
        let track = self.lane_track(lane, false, story);
        let row = self.lanes.entry(lane).or_default();
        if let Some((name, since)) = std::mem::replace(&mut row.phase, phase.map(|name| (name, at)))
        {
            self.trace
                .span("lane", &name, track, (since, at), Value::Null);
        }
    }

    fn event(&mut self, worker: u16, event: &Event, at: u64, story: &Story) {
        match event {
            Event::RailChanged {
                rail, state, cause, ..
            } => {
                let why = cause.map_or(String::new(), |cause| format!(": {cause}"));
                self.rail_changed(*rail, *state, why, at, story);
            }
            Event::Failover {
                tag,
                from,
                to,
                attempt,
            } => {
                let what = format!("failover from transport {} to {}", from.0, to.0);
                self.request_instant(*tag, what, at, json!({ "attempt": attempt }));
            }
            Event::Settled { tag, local, remote } => {
                let what = format!("settled: memory here is {local:?}, and there {remote:?}");
                self.request_instant(*tag, what, at, Value::Null);
            }
            Event::HandedOver { tag, .. } => {
                self.request_instant(*tag, "handed over".to_owned(), at, Value::Null);
            }
            Event::CalledBack { tag, .. } => {
                self.request_instant(*tag, "called back".to_owned(), at, Value::Null);
            }
            Event::PeerChanged { peer, silent } => {
                let how = if *silent { "silent" } else { "heard again" };
                let what = format!("peer {} is {how}", peer.0);
                let here = ((worker_process(worker), 0), at);
                self.trace.instant("peer", what, here, "p", Value::Null);
            }
            Event::RequestDone { .. } | Event::BatchDone { .. } | Event::WakeWorker { .. } => {}
        }
    }

    fn request_instant(&mut self, tag: u64, what: String, at: u64, args: Value) {
        if let Some(track) = self.tags.get(&tag) {
            self.trace.instant("request", what, (*track, at), "t", args);
        }
    }

    /// Each worker says so; what was said already is no news.
    fn rail_changed(
        &mut self,
        rail: RailId,
        state: RailState,
        why: String,
        at: u64,
        story: &Story,
    ) {
        let before = self
            .rails
            .get(&rail)
            .map_or(RailState::Healthy, |row| row.0);
        if before == state {
            return;
        }
        let row = self.rails.insert(rail, (state, why, at));
        self.rail_span(rail, row, at, story);
        self.trace
            .rail_state(story.rail_name(rail), (RAILS, 0), at, state);
    }

    /// Draws for how long a rail was out of use.
    fn rail_span(
        &mut self,
        rail: RailId,
        row: Option<(RailState, String, u64)>,
        at: u64,
        story: &Story,
    ) {
        let Some((state, why, since)) = row.filter(|row| row.0 != RailState::Healthy) else {
            return;
        };
        let track = (RAILS, rail.index() + 1);
        self.name(track, || format!("state of {}", story.rail_name(rail)));
        let name = format!("{}{why}", state.name());
        self.trace
            .span("rail", &name, track, (since, at), Value::Null);
    }

    /// A request has ended, or the recording has.
    fn ended(&mut self, worker: u16, id: RequestId, status: Option<Status>, at: u64, args: Value) {
        let Some(request) = self.requests.remove(&(worker, id.index)) else {
            return;
        };
        // Of one that ended without proof more may be said.
        if status != Some(Status::Indeterminate)
            && let Some(tag) = request.tag
        {
            self.tags.remove(&tag);
        }
        let track = request_track(worker, id.index);
        self.name(track, || format!("requests, row {}", id.index));
        self.request(track, &request, status, at, args);
    }

    /// Draws a request.
    fn request(
        &mut self,
        track: Track,
        request: &Open,
        status: Option<Status>,
        to: u64,
        mut args: Value,
    ) {
        self.requests_drawn += 1;
        if self.requests_drawn > SPANS_MAX {
            return self.leave_out(request.from);
        }
        let op = match request.op {
            Op::Write => "write",
            Op::Read => "read",
        };
        let name = match status {
            Some(Status::Completed) => op.to_owned(),
            Some(status) => format!("{op}: {}", status.name()),
            None => format!("{op}: open"),
        };
        args["bytes"] = request.bytes.into();
        if let Some(tag) = request.tag {
            args["tag"] = tag.into();
        }
        self.trace
            .span("request", &name, track, (request.from, to), args);
    }

    fn lane_instant(&mut self, lane: LaneId, what: String, at: u64, story: &Story) {
        let track = self.lane_track(lane, false, story);
        self.trace
            .instant("lane", what, (track, at), "t", Value::Null);
    }

    fn lane_track(&mut self, lane: LaneId, of_slices: bool, story: &Story) -> Track {
        let track = lane_track(lane, of_slices);
        let what = if of_slices { "slices" } else { "lane" };
        self.name(track, || {
            format!("{what} on {}", story.rail_name(lane.rail()))
        });
        track
    }

    fn name(&mut self, track: Track, name: impl FnOnce() -> String) {
        if self.known.insert(track) {
            self.trace.track(track, &name());
        }
    }

    /// The trace's text, of what was replayed.
    pub fn text(mut self, replay: &Replay) -> String {
        let story = &replay.story;
        let end = story.to_ns;
        self.trace.process(RAILS, "rails");
        for worker in 0..story.workers as u16 {
            self.trace
                .process(worker_process(worker), &format!("worker {worker}"));
        }
        let lanes: Vec<_> = self.lanes.keys().copied().collect();
        for lane in lanes {
            self.orphans(lane, Epoch(u32::MAX), "open ", end, story);
            self.phase(lane, None, end, story);
        }
        let open: Vec<_> = self.requests.keys().copied().collect();
        for (worker, index) in open {
            let id = RequestId {
                index,
                generation: 0,
            };
            self.ended(worker, id, None, end, json!({}));
        }
        for (rail, row) in std::mem::take(&mut self.rails) {
            self.rail_span(rail, Some(row), end, story);
        }
        self.throughput(story);
        self.trace.about("engine", story.engine.clone());
        self.trace.about("version", story.version.clone());
        self.trace.about("policy", story.policy.clone());
        self.trace.about("equal", replay.equal.to_string());
        self.trace.about("complete", replay.complete.to_string());
        if let Some(at) = self.cut_at {
            let what = "slices and requests";
            self.trace.cut((RAILS, 0), at, self.left_out, what);
        }
        self.trace.text()
    }

    /// Counters of the bytes that arrived over each rail.
    fn throughput(&mut self, story: &Story) {
        let first = story.from_ns / BUCKET_NS;
        let buckets = (story.to_ns / BUCKET_NS).saturating_sub(first) + 1;
        let each = (buckets * self.arrived.len() as u64)
            .div_ceil(VALUES_MAX)
            .max(1);
        for (rail, arrived) in std::mem::take(&mut self.arrived) {
            let name = format!("{} throughput", story.rail_name(rail));
            for from in (first..first + buckets).step_by(each as usize) {
                let bytes: u64 = arrived.range(from..from + each).map(|row| row.1).sum();
                let rate = bytes as f64 / (each * BUCKET_NS) as f64;
                let here = ((RAILS, 0), from * BUCKET_NS);
                self.trace.counter("rail", &name, here, ("GB/s", rate));
            }
        }
    }
}
