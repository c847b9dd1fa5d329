//! What happened in a recording, in numbers.

use std::collections::BTreeMap;
use std::fmt::Write;

use polyrail_core::orchestrator::{Cancelled, Event, LaneAction};
use polyrail_core::rail::Shared;
use polyrail_core::rail::health::RailState;
use polyrail_core::report::Status;
use polyrail_core::time::Instant;
use polyrail_core::units::RailId;
use polyrail_core::work::{Completion, Outcome, Work};
use polyrail_record::{Answer, Call, Entry, Header, Install, Posts, Step};
use serde::Serialize;

/// Changes of rails that the text shows.
const CHANGES_SHOWN: usize = 24;

/// What happened, in numbers; times are nanoseconds since the engine's start.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Story {
    /// The engine's name.
    pub engine: String,
    /// The version that recorded it.
    pub version: String,
    /// When the engine was started, in milliseconds since 1970.
    pub started_ms: u64,
    /// How many workers it had.
    pub workers: usize,
    /// How rails were chosen.
    pub policy: String,
    /// Calls before the first one that was recorded; 0: it begins with the engine.
    pub before: u64,
    /// Calls on core.
    pub calls: u64,
    /// When the first was made.
    pub from_ns: u64,
    /// And the last.
    pub to_ns: u64,
    /// Requests that core took.
    pub requests: u64,
    /// Their bytes.
    pub request_bytes: u64,
    /// Reports taken, by status.
    pub reports: BTreeMap<&'static str, u64>,
    /// Requests that the program cancelled.
    pub cancels: u64,
    /// Works handed to transports that carry bytes of requests.
    pub slices: u64,
    /// Their bytes. More than arrived if some were sent again.
    pub slice_bytes: u64,
    /// Works that only test a rail.
    pub probes: u64,
    /// Works that transports said had failed.
    pub errors: u64,
    /// Lanes that core asked to be opened.
    pub opens: u64,
    /// Lanes that core asked to be fenced.
    pub fences: u64,
    /// The longest time without a completion while requests waited.
    pub longest_silence: Option<Silence>,
    /// Rails, by number.
    pub rails: Vec<RailStory>,
    /// When rails came out of use and into it again.
    pub changes: Vec<Change>,
    #[serde(skip)]
    state: State,
}

/// What is needed to go on.
#[derive(Clone, PartialEq, Debug, Default)]
struct State {
    /// The last time each worker told core.
    now: Vec<Instant>,
    began: bool,
    /// Segments that probes write to.
    scratch: Vec<u32>,
    /// Requests taken and not reported.
    waiting: u64,
    /// Since when nothing has completed.
    quiet_since: u64,
}

/// What went over one rail.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct RailStory {
    /// What it is called.
    pub rail: String,
    /// Works that carry bytes of requests.
    pub slices: u64,
    /// Their bytes.
    pub slice_bytes: u64,
    /// Works that only test it.
    pub probes: u64,
    /// Bytes acknowledged.
    pub done_bytes: u64,
    /// How it stands at the end.
    pub state: String,
}

/// A rail came out of use, or into it again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Change {
    /// When a worker said so.
    pub at_ns: u64,
    /// The rail's number.
    pub rail: usize,
    /// To what.
    pub state: &'static str,
    /// Why, if a worker knew.
    pub cause: Option<&'static str>,
}

/// A time without completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Silence {
    /// When it began.
    pub from_ns: u64,
    /// How long it lasted.
    pub length_ns: u64,
}

impl Story {
    /// Nothing has happened yet.
    pub(super) fn new(header: &Header) -> Self {
        let policy = header
            .workers
            .first()
            .map(|config| config.policy.usual.policy().name());
        Self {
            engine: header.engine.clone(),
            version: header.version.clone(),
            started_ms: header.started_ms,
            before: header.before,
            workers: header.workers.len(),
            policy: policy.unwrap_or_default().to_owned(),
            state: State {
                now: vec![Instant::ZERO; header.workers.len()],
                ..State::default()
            },
            ..Self::default()
        }
    }

    /// What a rail is called.
    pub(super) fn rail_name(&self, rail: RailId) -> &str {
        match self.rails.get(rail.index()) {
            Some(story) if !story.rail.is_empty() => &story.rail,
            _ => "?",
        }
    }

    /// Takes in one call, and says when it was made.
    pub(super) fn note(&mut self, entry: &Entry<'_>) -> Instant {
        self.calls = entry.number + 1 - self.before;
        match &entry.step {
            Step::Shared(install) => {
                self.install(install);
                Instant::from_nanos(self.to_ns)
            }
            Step::Worker(worker, call) => {
                let now = self.tell_time(usize::from(*worker), call);
                self.call(now, call);
                self.answer(now, call, &entry.answer);
                now
            }
        }
    }

    /// The last call has been made.
    pub(super) fn finish(&mut self, shared: &Shared<'_>) {
        self.silence_until(self.to_ns);
        for (number, rail) in (0..).zip(&mut self.rails) {
            if let Some(view) = shared.view(RailId(number)) {
                rail.done_bytes = view.done_bytes;
                rail.state = view.state.name().to_owned();
            }
        }
    }

    fn tell_time(&mut self, worker: usize, call: &Call<'_>) -> Instant {
        let Some(last) = self.state.now.get_mut(worker) else {
            return Instant::ZERO;
        };
        if let Some(now) = call.now() {
            *last = now;
            if !self.state.began {
                self.state.began = true;
                self.from_ns = now.as_nanos();
            }
            self.to_ns = self.to_ns.max(now.as_nanos());
        }
        *last
    }

    fn install(&mut self, install: &Install<'_>) {
        if let Install::Rail(rail, _, name) | Install::Spare(rail, _, _, name) = install {
            self.rail(*rail).rail = name.clone().into_owned();
        }
    }

    fn rail(&mut self, rail: RailId) -> &mut RailStory {
        if self.rails.len() <= rail.index() {
            self.rails.resize_with(rail.index() + 1, RailStory::default);
        }
        &mut self.rails[rail.index()]
    }

    fn call(&mut self, now: Instant, call: &Call<'_>) {
        match call {
            Call::InstallPlan { plan, .. } => {
                let scratch = plan.scratch_remote.segment.0;
                if !self.state.scratch.contains(&scratch) {
                    self.state.scratch.push(scratch);
                }
            }
            Call::RestoreShared { names, scratch, .. } => {
                for (number, name) in (0..).zip(names.iter()).filter(|(_, name)| !name.is_empty()) {
                    self.rail(RailId(number)).rail.clone_from(name);
                }
                self.state.scratch.extend_from_slice(scratch);
            }
            Call::HandleCompletions { completions, .. } => {
                completions.iter().for_each(|one| self.completed(now, one))
            }
            // Submitted, posted and completed in one; the answer is its report.
            Call::HandleAtOnce { done, .. } => {
                self.submitted(now, done.work.length.into());
                self.sent(done.lane.rail(), done.work.length);
                self.heard(now);
            }
            _ => {}
        }
    }

    fn submitted(&mut self, now: Instant, bytes: u64) {
        self.requests += 1;
        self.request_bytes = self.request_bytes.saturating_add(bytes);
        if self.state.waiting == 0 {
            self.state.quiet_since = now.as_nanos();
        }
        self.state.waiting += 1;
    }

    fn completed(&mut self, now: Instant, completion: &Completion) {
        match completion.outcome {
            Outcome::Success => self.heard(now),
            Outcome::Error(_) => self.errors += 1,
        }
    }

    /// A work has succeeded.
    fn heard(&mut self, now: Instant) {
        self.silence_until(now.as_nanos());
        self.state.quiet_since = now.as_nanos();
    }

    fn answer(&mut self, now: Instant, call: &Call<'_>, answer: &Answer<'_>) {
        match answer {
            Answer::Submitted(Ok(_)) => {
                if let Call::Submit { request, .. } = call {
                    self.submitted(now, request.length);
                }
            }
            Answer::Cancelled(Cancelled::Marked) => self.cancels += 1,
            Answer::Report(Some(report)) if report.status != Status::Pending => {
                *self.reports.entry(report.status.name()).or_default() += 1;
                self.silence_until(now.as_nanos());
                self.state.waiting = self.state.waiting.saturating_sub(1);
            }
            Answer::Posts(Some(batch)) => self.posted(batch),
            Answer::Lane(Some(LaneAction::Open { .. })) => self.opens += 1,
            Answer::Lane(Some(LaneAction::Fence { .. })) => self.fences += 1,
            Answer::Event(Some(Event::RailChanged {
                rail, state, cause, ..
            })) => {
                let cause = cause.map(|cause| cause.text());
                self.changed(now, *rail, *state, cause);
            }
            _ => {}
        }
    }

    fn posted(&mut self, batch: &Posts<'_>) {
        for work in batch.works.iter() {
            let rail = batch.lane.rail();
            if self.is_probe(work) {
                self.rail(rail).probes += 1;
                self.probes += 1;
            } else {
                self.sent(rail, work.length);
            }
        }
    }

    /// A work that carries bytes of a request.
    fn sent(&mut self, rail: RailId, bytes: u32) {
        let bytes = u64::from(bytes);
        let rail = self.rail(rail);
        rail.slices += 1;
        rail.slice_bytes += bytes;
        self.slices += 1;
        self.slice_bytes += bytes;
    }

    pub(super) fn is_probe(&self, work: &Work) -> bool {
        self.state.scratch.contains(&work.remote.segment.0)
    }

    /// Notes that a rail came out of use or into it again: each worker says so, and of every probe too.
    fn changed(
        &mut self,
        now: Instant,
        rail: RailId,
        state: RailState,
        cause: Option<&'static str>,
    ) {
        let healthy = |name: &str| name == RailState::Healthy.name();
        let last = self.changes.iter().rev().find(|c| c.rail == rail.index());
        let was_healthy = last.is_none_or(|change| healthy(change.state));
        if was_healthy != (state == RailState::Healthy) {
            self.changes.push(Change {
                at_ns: now.as_nanos(),
                rail: rail.index(),
                state: state.name(),
                cause,
            });
        }
    }

    fn silence_until(&mut self, now: u64) {
        if self.state.waiting == 0 {
            return;
        }
        let from_ns = self.state.quiet_since;
        let length_ns = now.saturating_sub(from_ns);
        if self
            .longest_silence
            .is_none_or(|so_far| so_far.length_ns < length_ns)
        {
            self.longest_silence = Some(Silence { from_ns, length_ns });
        }
    }

    /// In words, over several lines.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text).unwrap_or_default(); // a string takes everything
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        if self.before > 0 {
            writeln!(
                out,
                "It begins after {} calls, with what core had in mind then.",
                self.before
            )?;
        }
        let reports: Vec<_> = self
            .reports
            .iter()
            .map(|(status, count)| format!("{count} {status}"))
            .collect();
        writeln!(
            out,
            "requests         {} of {} together; reported: {}; cancelled: {}",
            self.requests,
            bytes(self.request_bytes),
            if reports.is_empty() {
                "none".to_owned()
            } else {
                reports.join(", ")
            },
            self.cancels
        )?;
        writeln!(
            out,
            "works            {} slices of {} together, {} probes; {} came back as errors",
            self.slices,
            bytes(self.slice_bytes),
            self.probes,
            self.errors
        )?;
        writeln!(
            out,
            "lanes            opened {} times, fenced {} times",
            self.opens, self.fences
        )?;
        if let Some(Silence { from_ns, length_ns }) = self.longest_silence {
            writeln!(
                out,
                "longest silence  {:.3} ms from {} on: requests waited, and nothing completed",
                length_ns as f64 / 1e6,
                time(from_ns).trim_start()
            )?;
        }
        if !self.rails.is_empty() {
            writeln!(
                out,
                "{:<40} {:>8} {:>12} {:>12} {:>7}  at the end",
                "rail", "slices", "posted", "arrived", "probes"
            )?;
        }
        for rail in &self.rails {
            writeln!(
                out,
                "{:<40} {:>8} {:>12} {:>12} {:>7}  {}",
                rail.rail,
                rail.slices,
                bytes(rail.slice_bytes),
                bytes(rail.done_bytes),
                rail.probes,
                rail.state
            )?;
        }
        for change in self.changes.iter().take(CHANGES_SHOWN) {
            let name = self.rail_name(RailId(change.rail as u16));
            let because = change.cause.map(|cause| format!(": {cause}"));
            writeln!(
                out,
                "{}  {name} is {}{}",
                time(change.at_ns),
                change.state,
                because.unwrap_or_default()
            )?;
        }
        if self.changes.len() > CHANGES_SHOWN {
            let more = self.changes.len() - CHANGES_SHOWN;
            writeln!(out, "… and {more} more changes: --events shows all")?;
        }
        Ok(())
    }
}

/// A time since the engine's start.
pub(super) fn time(nanos: u64) -> String {
    format!("{:>11.6} s", nanos as f64 / 1e9)
}

fn bytes(count: u64) -> String {
    match count {
        0..10_000 => format!("{count} B"),
        10_000..10_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.2} GB", count as f64 / 1e9),
    }
}
