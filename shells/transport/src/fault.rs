//! Faults on purpose: rails that are slow, cut or late, without a network that is.
//!
//! [`Faults`] says what is wrong with which rail; [`FaultProxy`] makes it so, between an engine and an
//! [`Endpoint`] that knows nothing of it. So the engine under test is the shipped one.

mod spoil;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{Epoch, LaneId, RailId, Rate, SegmentRef};
use polyrail_core::work::{
    Cause, Completion, LaneFact, Outcome, POST_MAX, PostBatch, Posted, Scope, Stop, Work,
};

use crate::clock::Clock;
use spoil::{Admission, Spoiler};

pub use spoil::{Counts, Predicate, Spoils};

use crate::memory::Region;
use crate::{Endpoint, LaneReport, Polled, RailAddress, RemoteRegion, SessionId, Waits};

/// Rails that can have faults.
pub const RAILS_MAX: usize = 1024;

/// Works that are held back on a lane before it says [`Stop::Full`].
const HELD_MAX: usize = 256;

/// How soon a cut rail is looked at again: nobody is told when it is restored.
const CUT_POLL: Duration = Duration::from_millis(1);

/// Faults in force, rail by rail; changed from any thread at any time. All proxies of an engine share one,
/// so that a rail's rate is shared by its workers. Rails from [`RAILS_MAX`] on do not exist.
pub struct Faults {
    rails: Box<[RailFaults]>,
    spoils: Arc<spoil::Shared>,
    fences_ignored: AtomicBool,
}

/// Each field is a value of its own and publishes nothing else, hence `Relaxed` throughout.
#[derive(Default)]
struct RailFaults {
    cut: AtomicBool,
    /// Bits of a [`Rate`]; 0: not slowed.
    rate: AtomicU64,
    /// Until when works that were paced occupy the rail, in nanoseconds.
    busy_until: AtomicU64,
    delay_nanos: AtomicU64,
}

impl Faults {
    /// No faults.
    pub fn new() -> Self {
        Self {
            rails: (0..RAILS_MAX).map(|_| RailFaults::default()).collect(),
            spoils: Arc::default(),
            fences_ignored: AtomicBool::new(false),
        }
    }

    /// Spoils posts and completions of the whole transport from now on, as told.
    pub fn spoil(&self, spoils: Spoils) {
        self.spoils.set(spoils);
    }

    /// How much has been spoilt, since anything is.
    pub fn counts(&self) -> Counts {
        self.spoils.counts()
    }

    /// Whether the transport cannot be installed.
    pub fn fails_install(&self) -> bool {
        self.spoils.get().fail_install
    }

    /// Paces the rail to so many bytes a second; `None` lifts it.
    ///
    /// A work is passed on when the rail at that rate would have carried it to its end, so its completion
    /// comes as late as on a slow link.
    pub fn slow(&self, rail: RailId, bytes_per_sec: Option<u64>) {
        let rate = bytes_per_sec.map_or(0, |rate| Rate::from_bytes_per_sec(rate).to_bits());
        let faults = self.rail(rail);
        faults.busy_until.store(0, Relaxed);
        faults.rate.store(rate, Relaxed);
    }

    /// Silently drops off the rail: nothing goes through, nothing comes back, nobody is told.
    ///
    /// Works are taken and kept, opens fail in their own time, completions and facts are held back. Only
    /// fences are answered, because they are about this side.
    pub fn cut(&self, rail: RailId) {
        self.rail(rail).cut.store(true, Relaxed);
    }

    /// Ends the cut. What was kept goes on in order, unless it was fenced or closed meanwhile.
    pub fn restore(&self, rail: RailId) {
        self.rail(rail).cut.store(false, Relaxed);
    }

    /// Delays every completion on the rail by so much; zero lifts it for those to come.
    pub fn delay(&self, rail: RailId, by: Duration) {
        self.rail(rail).delay_nanos.store(by.as_nanos(), Relaxed);
    }

    /// Breaks the promise that fences keep, for tests that show that others notice: this side answers them at
    /// once and lets the transport go on, and the peer is not asked for any. Memory is then written and read
    /// after it was reported free, so nothing but such a test may ever do this.
    #[doc(hidden)]
    pub fn ignore_fences(&self, ignore: bool) {
        self.fences_ignored.store(ignore, Relaxed);
    }

    /// Whether fences are ignored.
    #[doc(hidden)]
    pub fn fences_ignored(&self) -> bool {
        self.fences_ignored.load(Relaxed)
    }

    fn rail(&self, rail: RailId) -> &RailFaults {
        assert!(
            rail.index() < RAILS_MAX,
            "{rail:?}: only {RAILS_MAX} rails can have faults"
        );
        &self.rails[rail.index()]
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Faults {
    /// Only rails that have some.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (rail, faults) in self.rails.iter().enumerate() {
            let (rate, delay) = (faults.rate(), faults.delay());
            if faults.is_cut() || rate.is_some() || delay > Duration::ZERO {
                map.entry(&rail, &(faults.is_cut(), rate, delay));
            }
        }
        map.finish()
    }
}

impl RailFaults {
    fn is_cut(&self) -> bool {
        self.cut.load(Relaxed)
    }

    fn rate(&self) -> Option<Rate> {
        match self.rate.load(Relaxed) {
            0 => None,
            bits => Some(Rate::from_bits(bits)),
        }
    }

    fn delay(&self) -> Duration {
        Duration::from_nanos(self.delay_nanos.load(Relaxed))
    }

    /// Takes the rail's time for a work that came at `from`, and says when it is through.
    fn occupy(&self, from: Instant, rate: Rate, bytes: u32) -> Instant {
        let through = |busy_until| {
            let start = from.max(Instant::from_nanos(busy_until));
            start + rate.time_for(bytes.into())
        };
        let mut before = self.busy_until.load(Relaxed);
        loop {
            let until = through(before);
            let swap =
                self.busy_until
                    .compare_exchange_weak(before, until.as_nanos(), Relaxed, Relaxed);
            match swap {
                Ok(_) => return until,
                Err(other) => before = other,
            }
        }
    }
}

/// An [`Endpoint`] with faults.
///
/// Of each lane it holds three things back, each in order: an opening that was not passed on, works on
/// their way in, completions and facts on their way out. A lane without faults holds nothing, and then
/// calls go straight through.
pub struct FaultProxy {
    inner: Box<dyn Endpoint>,
    faults: Arc<Faults>,
    spoiler: Spoiler,
    clock: Clock,
    lanes: HashMap<LaneId, Lane>,
    /// What the inner endpoint said last; reused.
    polled: Polled,
    /// The batch that held works are passed on in; reused.
    batch: PostBatch,
    /// Answers to fences that were ignored.
    ignored: Vec<LaneReport>,
}

/// A lane's latest epoch.
#[derive(Debug)]
struct Lane {
    epoch: Epoch,
    stage: Stage,
    /// Whether the rail was cut when last seen.
    was_cut: bool,
    /// Whether the caller was told [`Stop::Full`] by this side.
    said_full: bool,
    works: VecDeque<HeldWork>,
    reports: VecDeque<(Instant, Report)>,
}

/// Where a lane stands, as far as the caller was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// To be open at `by` at the latest. `passed_on`: the inner endpoint knows of it.
    Opening { by: Instant, passed_on: bool },
    /// Takes works.
    Open,
    /// A work failed that was held: takes no more, and is to be fenced.
    Failed,
    /// Failed to open, broken, fenced or closed. What is still said of it goes nowhere.
    Over,
}

#[derive(Debug)]
struct HeldWork {
    work: Work,
    /// When it came.
    from: Instant,
    /// When it is through, once it has its time on a slowed rail.
    until: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
enum Report {
    Completion(Completion),
    Fact(LaneFact),
}

impl FaultProxy {
    /// Puts `faults` in front of `inner`. `clock` is the engine's.
    pub fn new(inner: Box<dyn Endpoint>, faults: Arc<Faults>, clock: Clock) -> Self {
        Self {
            inner,
            spoiler: Spoiler::new(faults.spoils.clone()),
            faults,
            clock,
            lanes: HashMap::new(),
            polled: Polled::default(),
            batch: PostBatch::default(),
            ignored: Vec::new(),
        }
    }

    /// Passes a post on, or holds it back.
    fn pass_post(&mut self, batch: &PostBatch) -> Posted {
        let faults = self.faults.rail(batch.lane.rail());
        let lane = self.lanes.get_mut(&batch.lane);
        let Some(lane) = lane.filter(|lane| lane.epoch == batch.epoch && lane.stage == Stage::Open)
        else {
            return Posted {
                accepted: 0,
                stop: Stop::Rejected(Cause::Flushed),
            };
        };
        lane.was_cut |= faults.is_cut();
        if !lane.was_cut && faults.rate().is_none() && lane.works.is_empty() {
            return self.inner.post(batch);
        }
        lane.hold(&batch.works, self.clock.now())
    }

    /// Passes on or holds back what the inner endpoint has to say.
    fn poll_inner(&mut self, now: Instant, out: &mut Polled) {
        self.inner.poll(now, &mut self.polled);
        for mut completion in self.polled.completions.drain(..) {
            if completion.outcome == Outcome::Success
                && let Some(cause) = self.spoiler.corrupt(completion.cookie)
            {
                completion.outcome = Outcome::Error(cause);
            }
            let lane = self.lanes.get_mut(&completion.lane);
            let Some(lane) = lane.filter(|lane| lane.epoch == completion.epoch) else {
                continue;
            };
            let delay = self.faults.rail(completion.lane.rail()).delay();
            let mut due = Instant::ZERO;
            if delay > Duration::ZERO {
                due = completion.at + delay;
                completion.at = due;
            }
            lane.withhold(due, Report::Completion(completion));
        }
        out.visible.append(&mut self.polled.visible);
        out.fences.append(&mut self.polled.fences);
        for report in self.polled.lanes.drain(..) {
            let lane = self.lanes.get_mut(&report.lane);
            match (report.fact, lane) {
                (LaneFact::Fenced { .. } | LaneFact::Unfenceable { .. }, _) => {
                    out.lanes.push(report);
                }
                (fact, Some(lane)) if lane.epoch == report.epoch => {
                    lane.withhold(Instant::ZERO, Report::Fact(fact));
                }
                _ => {}
            }
        }
    }
}

impl Endpoint for FaultProxy {
    fn attach_local(&mut self, segment: SegmentRef, region: Arc<Region>) {
        self.inner.attach_local(segment, region);
    }

    fn detach_local(&mut self, segment: SegmentRef) {
        self.inner.detach_local(segment);
    }

    fn attach_remote(&mut self, segment: SegmentRef, region: RemoteRegion) {
        self.inner.attach_remote(segment, region);
    }

    fn attach_rail(&mut self, rail: RailId, address: RailAddress) {
        self.inner.attach_rail(rail, address);
    }

    fn detach_remote(&mut self, segment: SegmentRef) {
        self.inner.detach_remote(segment);
    }

    fn forget_rail(&mut self, rail: RailId) {
        self.lanes.retain(|lane, _| lane.rail() != rail);
        self.inner.forget_rail(rail);
    }

    fn make_visible(&mut self, session: SessionId, ticket: u64) -> bool {
        self.inner.make_visible(session, ticket)
    }

    fn open(&mut self, lane: LaneId, epoch: Epoch, by: Instant) {
        let is_cut = self.faults.rail(lane.rail()).is_cut();
        self.lanes.insert(lane, Lane::new(epoch, by, is_cut));
        if !is_cut {
            self.inner.open(lane, epoch, by);
        }
    }

    fn post(&mut self, batch: &PostBatch) -> Posted {
        match self.spoiler.admit(&batch.works) {
            Admission::All => self.pass_post(batch),
            Admission::Part(count, cause) => {
                let mut part = batch.clone();
                part.works.truncate(count);
                let posted = match count {
                    0 => Posted {
                        accepted: 0,
                        stop: Stop::All,
                    },
                    _ => self.pass_post(&part),
                };
                let stop = match posted.stop {
                    Stop::All => Stop::Rejected(cause),
                    other => other,
                };
                Posted { stop, ..posted }
            }
        }
    }

    fn poll(&mut self, now: Instant, out: &mut Polled) {
        out.lanes.append(&mut self.ignored);
        self.poll_inner(now, out);
        for (&id, lane) in &mut self.lanes {
            let faults = self.faults.rail(id.rail());
            if faults.is_cut() {
                lane.was_cut = true;
                if let Stage::Opening { by, passed_on } = lane.stage
                    && by <= now
                {
                    if passed_on {
                        self.inner.close(id, lane.epoch);
                    }
                    lane.end();
                    let fact = LaneFact::OpenFailed(Cause::Refused);
                    out.lanes.push(lane.report(id, fact));
                }
                continue;
            }
            lane.handle_restored(now);
            if let Stage::Opening { by, passed_on } = &mut lane.stage
                && !std::mem::replace(passed_on, true)
            {
                self.inner.open(id, lane.epoch, *by);
            }
            lane.pass_reports(id, now, out);
            lane.pass_works(id, now, faults, &mut *self.inner, &mut self.batch, out);
        }
    }

    fn fence(&mut self, lane: LaneId, epoch: Epoch, scope: Scope) {
        if self.faults.fences_ignored() && scope == Scope::Local {
            let fact = LaneFact::Fenced {
                scope,
                delivered: None,
            };
            return self.ignored.push(LaneReport { lane, epoch, fact });
        }
        if let Some(held) = self.lanes.get_mut(&lane)
            && held.epoch == epoch
            && scope == Scope::Local
        {
            held.end();
        }
        self.inner.fence(lane, epoch, scope);
    }

    fn arrived(&mut self, lane: LaneId, epoch: Epoch, told: u32) -> u32 {
        self.inner.arrived(lane, epoch, told)
    }

    fn close(&mut self, lane: LaneId, epoch: Epoch) {
        let held = self.lanes.get_mut(&lane);
        if let Some(held) = held.filter(|held| held.epoch == epoch) {
            match held.stage {
                Stage::Over
                | Stage::Opening {
                    passed_on: false, ..
                } => {}
                Stage::Opening { .. } | Stage::Open | Stage::Failed => {
                    self.inner.close(lane, epoch);
                }
            }
            held.end();
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn waits(&self) -> Waits {
        self.inner.waits()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if !self.ignored.is_empty() {
            return Some(Instant::ZERO);
        }
        let lanes = self.lanes.iter().filter_map(|(id, lane)| {
            let faults = self.faults.rail(id.rail());
            lane.poll_timeout(faults.rate().is_some(), &self.clock)
        });
        lanes.chain(self.inner.poll_timeout()).min()
    }

    fn arm(&mut self) {
        self.inner.arm();
    }

    fn announce(&mut self, spinning: bool) {
        self.inner.announce(spinning);
    }

    fn sleep(&mut self, call: BorrowedFd<'_>, longest: Option<Duration>) -> io::Result<bool> {
        self.inner.sleep(call, longest)
    }
}

impl Lane {
    fn new(epoch: Epoch, by: Instant, is_cut: bool) -> Self {
        Self {
            epoch,
            stage: Stage::Opening {
                by,
                passed_on: !is_cut,
            },
            was_cut: is_cut,
            said_full: false,
            works: VecDeque::new(),
            reports: VecDeque::new(),
        }
    }

    /// Forgets everything held: the epoch is over.
    fn end(&mut self) {
        self.stage = Stage::Over;
        self.said_full = false;
        self.works.clear();
        self.reports.clear();
    }

    fn report(&self, lane: LaneId, fact: LaneFact) -> LaneReport {
        let epoch = self.epoch;
        LaneReport { lane, epoch, fact }
    }

    fn withhold(&mut self, due: Instant, report: Report) {
        if self.stage != Stage::Over {
            self.reports.push_back((due, report));
        }
    }

    fn hold(&mut self, works: &[Work], from: Instant) -> Posted {
        let accepted = works.len().min(HELD_MAX - self.works.len());
        let held = works[..accepted].iter().map(|work| HeldWork {
            work: *work,
            from,
            until: None,
        });
        self.works.extend(held);
        if accepted == works.len() {
            let stop = Stop::All;
            return Posted { accepted, stop };
        }
        self.said_full = true;
        let stop = Stop::Full;
        Posted { accepted, stop }
    }

    /// After a cut: what was held comes as if it had set out now, not as if it had arrived long ago.
    fn handle_restored(&mut self, now: Instant) {
        if !std::mem::take(&mut self.was_cut) {
            return;
        }
        for held in &mut self.works {
            (held.from, held.until) = (now, None);
        }
        for (due, report) in &mut self.reports {
            if let Report::Completion(completion) = report {
                *due = now.max(*due);
                completion.at = *due;
            }
        }
    }

    /// Hands out what is due, up to the first that is not.
    fn pass_reports(&mut self, id: LaneId, now: Instant, out: &mut Polled) {
        while let Some((_, report)) = self.reports.front().copied().filter(|(due, _)| *due <= now) {
            self.reports.pop_front();
            let fact = match report {
                Report::Completion(completion) => {
                    out.completions.push(completion);
                    continue;
                }
                Report::Fact(fact) => fact,
            };
            match fact {
                LaneFact::Opened { .. } => self.stage = Stage::Open,
                LaneFact::OpenFailed(_) | LaneFact::Broken(_) => self.end(),
                LaneFact::Writable
                | LaneFact::Fenced { .. }
                | LaneFact::Unfenceable { .. }
                | LaneFact::PortActive
                | LaneFact::Crowded => {}
            }
            out.lanes.push(self.report(id, fact));
        }
    }

    /// Passes on works that are through, as far as `inner` has room.
    fn pass_works(
        &mut self,
        id: LaneId,
        now: Instant,
        faults: &RailFaults,
        inner: &mut dyn Endpoint,
        batch: &mut PostBatch,
        out: &mut Polled,
    ) {
        (batch.lane, batch.epoch) = (id, self.epoch);
        loop {
            batch.works.clear();
            for held in self.works.iter_mut().take(POST_MAX) {
                if !held.is_through(now, faults) || batch.works.push(held.work).is_err() {
                    break;
                }
            }
            if batch.works.is_empty() {
                break;
            }
            let posted = inner.post(batch);
            self.works.drain(..posted.accepted.min(batch.works.len()));
            match posted.stop {
                Stop::All => {}
                Stop::Full => break,
                Stop::Rejected(cause) => self.handle_rejected(id, now, cause, out),
                // They are orphans: nobody can say more of them, and those behind them have no lane.
                Stop::Unknown => self.works.clear(),
            }
        }
        if self.said_full && self.works.len() < HELD_MAX {
            self.said_full = false;
            out.lanes.push(self.report(id, LaneFact::Writable));
        }
    }

    /// The first held work was refused, after the caller had been told that it was taken.
    fn handle_rejected(&mut self, id: LaneId, now: Instant, cause: Cause, out: &mut Polled) {
        if let Some(held) = self.works.pop_front() {
            out.completions.push(Completion {
                lane: id,
                epoch: self.epoch,
                cookie: held.work.cookie,
                at: now,
                outcome: Outcome::Error(cause),
            });
        }
        // A lane with a failed work takes no more until it is fenced; those behind stay without an answer.
        self.works.clear();
        self.stage = Stage::Failed;
    }

    /// When something held has its time.
    fn poll_timeout(&self, is_slow: bool, clock: &Clock) -> Option<Instant> {
        let holds = !self.works.is_empty() || !self.reports.is_empty();
        if self.was_cut && (holds || matches!(self.stage, Stage::Opening { .. })) {
            return Some(clock.now() + CUT_POLL);
        }
        let report = self.reports.front().map(|(due, _)| *due);
        let work = self.works.front().map(|held| match held.until {
            Some(until) if is_slow => until,
            // Not looked at yet, or the inner endpoint is full.
            _ => clock.now() + CUT_POLL,
        });
        report.into_iter().chain(work).min()
    }
}

impl HeldWork {
    /// Whether the rail would have carried it by now.
    fn is_through(&mut self, now: Instant, faults: &RailFaults) -> bool {
        let Some(rate) = faults.rate() else {
            return true;
        };
        let until = *self
            .until
            .get_or_insert_with(|| faults.occupy(self.from, rate, self.work.length));
        until <= now
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::sync::{Mutex, MutexGuard};

    use polyrail_core::work::{LaneLimits, Op};

    use super::*;

    const LANE: LaneId = LaneId::new(0, RAIL);
    const RAIL: RailId = RailId(3);
    const ONE: Epoch = Epoch(1);
    const OPENED: LaneFact = LaneFact::Opened {
        limits: LaneLimits::new(64, 1 << 20),
    };
    const FAILED: LaneFact = LaneFact::OpenFailed(Cause::Refused);
    const FENCED: LaneFact = LaneFact::Fenced {
        scope: Scope::Local,
        delivered: None,
    };

    /// An endpoint that notes what it is told and says what the test wants.
    #[derive(Default)]
    struct Notes {
        calls: Vec<String>,
        /// Cookies of works that were taken.
        works: Vec<u64>,
        /// Room for more.
        room: usize,
        rejects: Option<Cause>,
        says: Polled,
    }

    struct Fake(Arc<Mutex<Notes>>, File);

    impl Endpoint for Fake {
        fn attach_local(&mut self, _: SegmentRef, _: Arc<Region>) {}
        fn detach_local(&mut self, _: SegmentRef) {}
        fn attach_remote(&mut self, _: SegmentRef, _: RemoteRegion) {}
        fn attach_rail(&mut self, _: RailId, _: RailAddress) {}

        fn open(&mut self, _: LaneId, epoch: Epoch, _: Instant) {
            let mut notes = self.0.lock().unwrap();
            notes.calls.push(format!("open {}", epoch.0));
        }

        fn post(&mut self, batch: &PostBatch) -> Posted {
            let mut notes = self.0.lock().unwrap();
            if let Some(cause) = notes.rejects {
                let (accepted, stop) = (0, Stop::Rejected(cause));
                return Posted { accepted, stop };
            }
            let accepted = batch.works.len().min(notes.room);
            notes.room -= accepted;
            let taken = batch.works[..accepted].iter().map(|work| work.cookie);
            notes.works.extend(taken);
            let all = accepted == batch.works.len();
            let stop = if all { Stop::All } else { Stop::Full };
            Posted { accepted, stop }
        }

        fn poll(&mut self, _: Instant, out: &mut Polled) {
            let mut notes = self.0.lock().unwrap();
            out.completions.append(&mut notes.says.completions);
            out.lanes.append(&mut notes.says.lanes);
        }

        fn fence(&mut self, lane: LaneId, epoch: Epoch, _: Scope) {
            let mut notes = self.0.lock().unwrap();
            notes.calls.push(format!("fence {}", epoch.0));
            notes.says.lanes.push(LaneReport {
                lane,
                epoch,
                fact: FENCED,
            });
        }

        fn close(&mut self, _: LaneId, epoch: Epoch) {
            let mut notes = self.0.lock().unwrap();
            notes.calls.push(format!("close {}", epoch.0));
        }

        fn fd(&self) -> BorrowedFd<'_> {
            self.1.as_fd()
        }
    }

    /// A proxy in front of a fake. Its times are far apart, so that the real clock, which says when works
    /// come, makes no difference.
    struct Bench {
        proxy: FaultProxy,
        faults: Arc<Faults>,
        notes: Arc<Mutex<Notes>>,
    }

    impl Bench {
        fn new() -> Self {
            let notes = Arc::new(Mutex::new(Notes {
                room: 10_000,
                ..Notes::default()
            }));
            let faults = Arc::new(Faults::new());
            let fake = Fake(Arc::clone(&notes), File::open("/dev/null").unwrap());
            let proxy = FaultProxy::new(Box::new(fake), Arc::clone(&faults), Clock::start());
            Self {
                proxy,
                faults,
                notes,
            }
        }

        fn opened() -> Self {
            let mut bench = Self::new();
            bench.proxy.open(LANE, ONE, secs(1_000_000));
            bench.says(OPENED);
            assert_eq!(bench.facts(0), [OPENED]);
            bench
        }

        fn notes(&self) -> MutexGuard<'_, Notes> {
            self.notes.lock().unwrap()
        }

        fn says(&self, fact: LaneFact) {
            let (lane, epoch) = (LANE, ONE);
            let report = LaneReport { lane, epoch, fact };
            self.notes().says.lanes.push(report);
        }

        fn completes(&self, cookie: u64, at: u64) {
            self.notes().says.completions.push(Completion {
                lane: LANE,
                epoch: ONE,
                cookie,
                at: secs(at),
                outcome: Outcome::Success,
            });
        }

        fn post(&mut self, cookies: std::ops::Range<u64>) -> Posted {
            let works = cookies.map(|cookie| Work {
                cookie,
                op: Op::Write,
                local: Default::default(),
                remote: Default::default(),
                length: 1000,
                signal: true,
            });
            let (lane, epoch, works) = (LANE, ONE, works.collect());
            self.proxy.post(&PostBatch { lane, epoch, works })
        }

        fn poll(&mut self, at: u64) -> Polled {
            let mut out = Polled::default();
            self.proxy.poll(secs(at), &mut out);
            out
        }

        fn facts(&mut self, at: u64) -> Vec<LaneFact> {
            let polled = self.poll(at);
            polled.lanes.iter().map(|report| report.fact).collect()
        }

        /// Cookies of completions, and when they are said to have been seen.
        fn completed(&mut self, at: u64) -> Vec<(u64, u64)> {
            let polled = self.poll(at);
            let seen = polled.completions.iter();
            seen.map(|c| (c.cookie, c.at.as_nanos() / 1_000_000_000))
                .collect()
        }
    }

    fn secs(secs: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(secs)
    }

    #[test]
    fn without_faults_everything_goes_straight_through() {
        let mut bench = Bench::opened();
        bench.notes().room = 2;
        let posted = bench.post(0..3);
        assert_eq!((posted.accepted, posted.stop), (2, Stop::Full));
        // Seen later than the call that asked: handed out all the same.
        bench.completes(0, 9);
        bench.says(LaneFact::Writable);
        let polled = bench.poll(8);
        assert_eq!(polled.completions.len(), 1);
        assert_eq!(polled.completions[0].at, secs(9));
        assert_eq!(polled.lanes[0].fact, LaneFact::Writable);
        assert_eq!(bench.proxy.poll_timeout(), None);
        bench.proxy.close(LANE, ONE);
        assert_eq!(bench.post(3..4).stop, Stop::Rejected(Cause::Flushed));
        assert_eq!(bench.notes().calls, ["open 1", "close 1"]);
    }

    #[test]
    fn a_slow_rail_carries_one_work_after_the_other() {
        let mut bench = Bench::opened();
        // 1000 bytes take 100 s.
        bench.faults.slow(RAIL, Some(10));
        assert_eq!(bench.post(0..4).stop, Stop::All);
        // (time, works passed on by then)
        for (at, passed) in [(50, 0), (150, 1), (180, 1), (350, 3)] {
            bench.poll(at);
            assert_eq!(bench.notes().works.len(), passed, "at {at} s");
        }
        bench.poll(380);
        let due = bench.proxy.poll_timeout().unwrap();
        assert!(due > secs(399) && due < secs(410), "{due:?}");
        bench.faults.slow(RAIL, None);
        bench.poll(390);
        assert_eq!(bench.notes().works, [0, 1, 2, 3]);
    }

    #[test]
    fn a_rails_rate_is_shared_by_its_workers() {
        let faults = Faults::new();
        faults.slow(RAIL, Some(1000));
        let rail = faults.rail(RAIL);
        let rate = rail.rate().unwrap();
        // (set out, through)
        for (from, until) in [(10, 11), (10, 12), (20, 21)] {
            let got = rail.occupy(secs(from), rate, 1000).since(secs(until));
            assert!(got < Duration::from_millis(1), "{got:?}");
        }
    }

    #[test]
    fn a_cut_rail_keeps_everything_until_it_is_restored() {
        let mut bench = Bench::opened();
        assert_eq!(bench.post(0..1).stop, Stop::All);
        bench.faults.cut(RAIL);
        assert_eq!(bench.post(1..3).stop, Stop::All);
        bench.completes(0, 1);
        bench.says(LaneFact::Writable);
        let polled = bench.poll(10);
        assert!(polled.completions.is_empty() && polled.lanes.is_empty());
        assert_eq!(bench.notes().works, [0], "nothing goes through");
        assert!(bench.proxy.poll_timeout().is_some());
        bench.faults.restore(RAIL);
        // Between the restore and the next poll order still counts.
        assert_eq!(bench.post(3..4).stop, Stop::All);
        let polled = bench.poll(20);
        assert_eq!(polled.completions[0].at, secs(20), "seen late");
        assert_eq!(polled.lanes[0].fact, LaneFact::Writable);
        assert_eq!(bench.notes().works, [0, 1, 2, 3]);
        assert_eq!(bench.proxy.poll_timeout(), None);
    }

    #[test]
    fn a_lane_that_broke_behind_a_cut_forgets_what_it_kept() {
        let mut bench = Bench::opened();
        bench.faults.cut(RAIL);
        bench.post(0..3);
        bench.says(LaneFact::Broken(Cause::Reset));
        assert_eq!(bench.facts(1), []);
        bench.faults.restore(RAIL);
        assert_eq!(bench.facts(2), [LaneFact::Broken(Cause::Reset)]);
        assert!(bench.notes().works.is_empty());
        assert_eq!(bench.post(3..4).stop, Stop::Rejected(Cause::Flushed));
    }

    #[test]
    fn opens_on_a_cut_rail_fail_in_time_or_go_on() {
        // (name, cut before the open or after it, when restored, the fact at 200 s, calls)
        let cases = [
            ("never passed on", true, None, FAILED, vec![]),
            ("given up", false, None, FAILED, vec!["open 1", "close 1"]),
            ("passed on late", true, Some(50), OPENED, vec!["open 1"]),
            ("seen late", false, Some(50), OPENED, vec!["open 1"]),
        ];
        for (name, cut_first, restored, fact, calls) in cases {
            let mut bench = Bench::new();
            if cut_first {
                bench.faults.cut(RAIL);
            }
            bench.proxy.open(LANE, ONE, secs(100));
            bench.faults.cut(RAIL);
            if !cut_first {
                bench.says(OPENED);
            }
            assert_eq!(bench.facts(10), [], "{name}");
            assert!(bench.proxy.poll_timeout().is_some(), "{name}");
            if restored.is_some() {
                bench.faults.restore(RAIL);
                if cut_first {
                    assert_eq!(bench.facts(50), [], "{name}");
                    bench.says(OPENED);
                }
            }
            assert_eq!(bench.facts(200), [fact], "{name}");
            assert_eq!(bench.notes().calls, calls, "{name}");
            // Nothing comes afterwards.
            bench.faults.restore(RAIL);
            if restored.is_none() {
                bench.says(FAILED);
            }
            assert_eq!(bench.facts(300), [], "{name}");
            assert_eq!(bench.notes().calls, calls, "{name}");
        }
    }

    #[test]
    fn a_fence_drops_what_is_held_and_is_answered_through_a_cut() {
        let mut bench = Bench::opened();
        bench.faults.delay(RAIL, Duration::from_secs(100));
        bench.completes(7, 0);
        bench.poll(1);
        bench.faults.cut(RAIL);
        bench.post(0..3);
        bench.completes(8, 1);
        bench.poll(2);
        bench.proxy.fence(LANE, Epoch(0), Scope::Local);
        assert_eq!(bench.facts(3), [FENCED], "another epoch");
        bench.proxy.fence(LANE, ONE, Scope::Local);
        let polled = bench.poll(4);
        assert_eq!(polled.lanes[0].fact, FENCED);
        bench.faults.restore(RAIL);
        let polled = bench.poll(500);
        assert!(polled.completions.is_empty() && polled.lanes.is_empty());
        assert!(bench.notes().works.is_empty());
        assert_eq!(bench.proxy.poll_timeout(), None);
    }

    #[test]
    fn delayed_completions_stay_in_order_and_before_what_followed() {
        let mut bench = Bench::opened();
        bench.faults.delay(RAIL, Duration::from_secs(100));
        bench.completes(1, 0);
        assert_eq!(bench.completed(1), []);
        assert_eq!(bench.proxy.poll_timeout(), Some(secs(100)));
        bench.faults.delay(RAIL, Duration::ZERO);
        bench.completes(2, 2);
        bench.says(LaneFact::Broken(Cause::Reset));
        assert_eq!(bench.completed(99), []);
        let polled = bench.poll(100);
        let cookies: Vec<u64> = polled.completions.iter().map(|c| c.cookie).collect();
        assert_eq!(cookies, [1, 2]);
        assert_eq!(polled.completions[0].at, secs(100), "seen late");
        assert_eq!(polled.lanes[0].fact, LaneFact::Broken(Cause::Reset));
    }

    #[test]
    fn held_works_are_bounded_and_wait_for_room() {
        let mut bench = Bench::opened();
        bench.faults.cut(RAIL);
        for first in (0..240).step_by(24) {
            assert_eq!(bench.post(first..first + 24).stop, Stop::All);
        }
        let posted = bench.post(240..270);
        assert_eq!((posted.accepted, posted.stop), (16, Stop::Full));
        bench.notes().room = 100;
        bench.faults.restore(RAIL);
        assert_eq!(bench.facts(10), [LaneFact::Writable]);
        assert_eq!(bench.notes().works.len(), 100);
        assert!(bench.proxy.poll_timeout().is_some(), "looks again");
        bench.notes().room = 1000;
        assert_eq!(bench.facts(11), []);
        assert!((0..256).eq(bench.notes().works.iter().copied()));
        assert_eq!(bench.proxy.poll_timeout(), None);
    }

    #[test]
    fn a_work_that_is_refused_late_ends_in_a_completion() {
        let mut bench = Bench::opened();
        bench.faults.cut(RAIL);
        bench.post(0..2);
        bench.notes().rejects = Some(Cause::LocalProtection);
        bench.faults.restore(RAIL);
        let polled = bench.poll(5);
        assert_eq!(polled.completions.len(), 1, "one, as on any lane");
        let outcome = Outcome::Error(Cause::LocalProtection);
        assert_eq!(polled.completions[0].outcome, outcome);
        assert_eq!(bench.post(2..3).stop, Stop::Rejected(Cause::Flushed));
    }

    #[test]
    fn debug_names_rails_with_faults_only() {
        let faults = Faults::new();
        assert_eq!(format!("{faults:?}"), "{}");
        faults.cut(RailId(7));
        assert_eq!(format!("{faults:?}"), "{7: (true, None, 0ns)}");
    }

    #[test]
    #[should_panic(expected = "only 1024 rails can have faults")]
    fn a_rail_out_of_range_is_a_mistake() {
        Faults::new().cut(RailId(1024));
    }
}
