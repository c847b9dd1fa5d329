//! Whether to spin or to sleep at once while nothing is to be done.
//!
//! Which is better cannot be known beforehand. With cores to spare, spinning saves two wake-ups per round
//! trip. With none, or with both ends on one machine, who spins keeps the other end off the core on which its
//! bytes lie in the cache; there a transfer takes twice as long as with sleeping. So both are tried, a few
//! milliseconds each, and what gets more bytes on their way in its time is kept until the next trial: bytes, because
//! core makes slices longer when they pass faster. Spinning costs processor time, so it has to be clearly better.
//! Where sleeps are rare it is not tried at all: whoever is waited for is busy with others, or far away.

use polyrail_core::time::{Duration, Instant};
use polyrail_transport::Waits;

/// What counts as one look at a mode: so long at least.
const WINDOW: Duration = Duration::from_millis(2);
/// And so many works.
const WINDOW_WORKS: u64 = 16;
/// Looks at either mode in one trial.
const LOOKS: u32 = 3;
/// How long a look takes at least while the other mode settles; those do not count.
const WINDOW_SETTLE: Duration = Duration::from_micros(500);
/// And how many works it needs.
const WINDOW_SETTLE_WORKS: u64 = 8;
/// Looks after a change to spinning that do not count.
const SETTLE_SPIN: u32 = 4;
/// The same for sleeping: the kernel's scheduler takes its time to bring both ends to one core.
const SETTLE_SLEEP: u32 = 16;
/// A trial ends when so many looks in a row, while it settles, took [`FAR_PERCENT`] of the usual time.
const FAR: u32 = 2;
/// What settling does not make up for: a sleeping round trip over two cores took 2.3 to 6 times as long as a spinning
/// one, and over one core 1.5 times.
const FAR_PERCENT: u64 = 200;
/// Looks without a trial after the first one. Twice as many after each trial that changes nothing.
const HOLD_MIN: u32 = 8;
/// The most that this grows to.
const HOLD_MAX: u32 = 64;
/// Where a sleep takes so long, with all that is done until the next one, spinning is not tried. It saves a wake-up at either
/// end, 0.09 ms together on slow machines, and has to save [`GAIN_PERCENT`].
const SLEEP_LONG: Duration = Duration::from_micros(600);
/// How much faster spinning has to be.
const GAIN_PERCENT: u64 = 15;
/// Looks in a row that have to differ from what is usual until that counts as a change.
const CHANGED: u32 = 3;

/// How to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitMode {
    /// Sleep as soon as there is nothing to do.
    Sleep,
    /// Look again for a while first.
    Spin,
}

impl WaitMode {
    fn other(self) -> Self {
        match self {
            Self::Sleep => Self::Spin,
            Self::Spin => Self::Sleep,
        }
    }
}

/// For how long who spins looks again.
const SPIN: Duration = Duration::from_micros(50);
/// The same while a peer that is awake carries out what is waited for: as long as 2 MiB take at half the usual speed.
const SPIN_NEAR: Duration = Duration::from_micros(200);

/// The same while a device is at it, which says how long that is worth it: as the driver does for who waits for a stream.
const SPIN_DEVICE: Duration = Duration::from_millis(10);

/// What to do while there is nothing to do: for how long to look again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Idle {
    /// Not at all.
    Sleep,
    /// For so long.
    Spin(Duration),
    /// For so long, and let the peer run meanwhile, which needs this processor.
    Yield(Duration),
}

impl Idle {
    /// A worker's own thread, for works that nobody waits for: who submits and does something else does not gain by
    /// spinning for a peer.
    pub(crate) fn of_thread(waits: Waits, mode: WaitMode) -> Self {
        match (waits, mode) {
            (Waits::Long, _) | (_, WaitMode::Sleep) => Self::Sleep,
            (_, WaitMode::Spin) => Self::Spin(SPIN),
        }
    }

    /// Somebody who waits, and has nothing better to do. A peer that is awake needs no trial.
    pub(crate) fn of_waiter(
        waits: Waits,
        mode: WaitMode,
        has_processors: impl FnOnce() -> bool,
    ) -> Self {
        let spin = match waits {
            Waits::Near => SPIN_NEAR,
            Waits::Device => SPIN_DEVICE,
            Waits::Here => return Self::Yield(SPIN_NEAR),
            Waits::Nothing | Waits::Long | Waits::Short => return Self::of_thread(waits, mode),
        };
        match has_processors() {
            true => Self::Spin(spin),
            false => Self::Sleep,
        }
    }
}

/// What was posted so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Progress {
    pub(crate) works: u64,
    pub(crate) bytes: u64,
}

impl Progress {
    /// One more work was posted.
    pub(crate) fn add(&mut self, bytes: u32) {
        self.works += 1;
        self.bytes += u64::from(bytes);
    }
}

/// What was posted in a time.
#[derive(Clone, Copy, Default, Debug)]
struct Look {
    nanos: u64,
    done: Progress,
    sleeps: u64,
}

impl Look {
    fn add(&mut self, other: Self) {
        self.nanos += other.nanos;
        self.done.works += other.done.works;
        self.done.bytes += other.done.bytes;
        self.sleeps += other.sleeps;
    }

    /// Whether sleeps were so rare that the time would be hardly less without them.
    fn has_rare_sleeps(self) -> bool {
        self.sleeps > 0 && self.nanos >= self.sleeps * SLEEP_LONG.as_nanos()
    }

    /// Whether it took at most `percent` of the other's time for a byte.
    fn within(self, percent: u64, other: Self) -> bool {
        let mine = u128::from(self.nanos) * u128::from(other.done.bytes) * 100;
        mine <= u128::from(other.nanos) * u128::from(self.done.bytes) * u128::from(percent)
    }
}

/// What the current look is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// No trial.
    Hold,
    /// A trial: how well what is kept does.
    Kept,
    /// The other one has just begun.
    Settle,
    /// How well the other one does.
    Other,
}

/// Chooses a mode by what it gets done.
#[derive(Debug)]
pub(crate) struct SpinTuner {
    /// What is kept outside of trials.
    kept: WaitMode,
    phase: Phase,
    /// Looks that are left of the phase.
    left: u32,
    now: Look,
    /// In this trial: of what is kept, and of the other.
    sums: [Look; 2],
    hold: u32,
    /// What the last trial found for what is kept.
    usual: Look,
    /// Looks in a row that were far from what is kept.
    unusual: u32,
    since: Option<(Instant, Progress)>,
}

impl Default for SpinTuner {
    fn default() -> Self {
        Self {
            kept: WaitMode::Sleep,
            phase: Phase::Kept,
            left: LOOKS,
            now: Look::default(),
            sums: [Look::default(); 2],
            hold: HOLD_MIN,
            usual: Look::default(),
            unusual: 0,
            since: None,
        }
    }
}

impl SpinTuner {
    /// How to wait now.
    pub(crate) fn mode(&self) -> WaitMode {
        match self.phase {
            Phase::Hold | Phase::Kept => self.kept,
            Phase::Settle | Phase::Other => self.kept.other(),
        }
    }

    /// From here on it counts what is posted; so much was until now.
    pub(crate) fn begin(&mut self, now: Instant, done: Progress) {
        self.since = Some((now, done));
    }

    /// It stops to count.
    pub(crate) fn end(&mut self, now: Instant, done: Progress) {
        self.count(now, done);
        self.since = None;
    }

    /// Whoever counts goes to sleep.
    pub(crate) fn sleeps(&mut self) {
        self.now.sleeps += 1;
    }

    /// So much was posted until now. Call it as often as convenient.
    pub(crate) fn count(&mut self, now: Instant, done: Progress) {
        let Some((since, before)) = self.since else {
            return;
        };
        self.since = Some((now, done));
        self.now.add(Look {
            nanos: now.since(since).as_nanos(),
            done: Progress {
                works: done.works - before.works,
                bytes: done.bytes - before.bytes,
            },
            ..Look::default()
        });
        let (window, works) = match self.phase {
            Phase::Settle => (WINDOW_SETTLE, WINDOW_SETTLE_WORKS),
            Phase::Hold | Phase::Kept | Phase::Other => (WINDOW, WINDOW_WORKS),
        };
        if self.now.nanos >= window.as_nanos() && self.now.done.works >= works {
            let look = std::mem::take(&mut self.now);
            self.look(look);
        }
    }

    fn look(&mut self, look: Look) {
        self.left = self.left.saturating_sub(1);
        let over = self.left == 0;
        match self.phase {
            Phase::Hold => {
                // Other works than before, or another machine: what the last trial found holds no more.
                let far = !look.within(140, self.usual) || !self.usual.within(140, look);
                self.unusual = if far { self.unusual + 1 } else { 0 };
                let changed = self.unusual >= CHANGED;
                if changed {
                    self.hold = HOLD_MIN;
                }
                if changed || over {
                    self.sums = [Look::default(); 2];
                    self.enter(Phase::Kept, LOOKS);
                }
            }
            Phase::Kept => {
                self.sums[0].add(look);
                if over {
                    self.unusual = 0;
                    if self.kept == WaitMode::Sleep && self.sums[0].has_rare_sleeps() {
                        return self.keep(self.sums[0]);
                    }
                    let settle = match self.kept.other() {
                        WaitMode::Spin => SETTLE_SPIN,
                        WaitMode::Sleep => SETTLE_SLEEP,
                    };
                    self.enter(Phase::Settle, settle);
                }
            }
            Phase::Settle => {
                let far = !look.within(FAR_PERCENT, self.sums[0]);
                self.unusual = if far { self.unusual + 1 } else { 0 };
                if self.unusual >= FAR {
                    self.sums[1] = look;
                    self.judge();
                } else if over {
                    self.enter(Phase::Other, LOOKS);
                }
            }
            Phase::Other => {
                self.sums[1].add(look);
                let hopeless = !self.sums[1].within(150, self.sums[0]);
                if over || hopeless {
                    self.judge();
                }
            }
        }
    }

    fn enter(&mut self, phase: Phase, looks: u32) {
        (self.phase, self.left) = (phase, looks);
    }

    /// All stays as it was, for longer than before.
    fn keep(&mut self, usual: Look) {
        self.hold = (2 * self.hold).min(HOLD_MAX);
        self.enter_hold(usual);
    }

    fn enter_hold(&mut self, usual: Look) {
        self.usual = usual;
        self.unusual = 0;
        self.enter(Phase::Hold, self.hold);
    }

    fn judge(&mut self) {
        let [kept, other] = self.sums;
        let percent = match self.kept {
            WaitMode::Sleep => 100 - GAIN_PERCENT,
            WaitMode::Spin => 102,
        };
        match other.within(percent, kept) {
            true => {
                self.kept = self.kept.other();
                self.hold = HOLD_MIN;
                self.enter_hold(other);
            }
            false => self.keep(kept),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moves works for so long, each in a time that depends on the mode. Gives the share spent spinning.
    fn run(
        tuner: &mut SpinTuner,
        from: Instant,
        looks: u32,
        nanos: impl Fn(WaitMode) -> u64,
    ) -> f64 {
        run_sized(tuner, from, looks, |mode| (nanos(mode), 4096))
    }

    /// The same; of how many bytes each work is depends on the mode too.
    fn run_sized(
        tuner: &mut SpinTuner,
        from: Instant,
        looks: u32,
        work: impl Fn(WaitMode) -> (u64, u32),
    ) -> f64 {
        let (mut now, mut spun, mut done) = (from, 0, Progress::default());
        tuner.begin(now, done);
        let end = now + WINDOW.times(looks.into());
        while now < end {
            let (span, bytes) = work(tuner.mode());
            if tuner.mode() == WaitMode::Spin {
                spun += span;
            }
            now = now + Duration::from_nanos(span);
            done.add(bytes);
            tuner.count(now, done);
        }
        tuner.end(now, done);
        spun as f64 / now.since(from).as_nanos() as f64
    }

    #[test]
    fn it_keeps_what_is_faster_and_sleeps_if_both_are_alike() {
        // (name, sleeping, spinning, least and greatest share of spinning)
        let cases = [
            ("spinning is faster", 58_000, 15_000, 0.97, 0.999),
            ("sleeping is faster", 24_000, 53_000, 0.001, 0.1),
            ("much faster", 10_000, 90_000, 0.001, 0.03),
            ("both alike", 20_000, 20_000, 0.001, 0.15),
            ("hardly faster is not enough", 20_000, 19_000, 0.001, 0.15),
        ];
        for (name, sleep, spin, least, greatest) in cases {
            let mut tuner = SpinTuner::default();
            let share = run(&mut tuner, Instant::ZERO, 1_000, |mode| match mode {
                WaitMode::Sleep => sleep,
                WaitMode::Spin => spin,
            });
            assert!((least..greatest).contains(&share), "{name}: {share}");
        }
    }

    #[test]
    fn where_sleeps_are_rare_it_does_not_try_to_spin() {
        let share = |sleep: Duration| {
            let (mut tuner, mut now, mut done) =
                (SpinTuner::default(), Instant::ZERO, Progress::default());
            tuner.begin(now, done);
            let mut spun = 0;
            for _ in 0..10_000 {
                match tuner.mode() {
                    WaitMode::Sleep => tuner.sleeps(),
                    WaitMode::Spin => spun += 1,
                }
                now = now + sleep;
                done.add(4096);
                tuner.count(now, done);
            }
            f64::from(spun) / 10_000.0
        };
        assert_eq!(share(Duration::from_millis(2)), 0.0);
        assert!(share(Duration::from_micros(400)) > 0.01, "often");
    }

    #[test]
    fn longer_works_are_not_slower_ones() {
        // Core cut 1 MiB into pieces of 64 KiB while both ends slept and of 192 KiB while they spun; counted by
        // works, spinning took twice as long, and both ends slept for good at a third of the speed.
        let mut tuner = SpinTuner::default();
        let share = run_sized(&mut tuner, Instant::ZERO, 1_000, |mode| match mode {
            WaitMode::Sleep => (26_000, 64 << 10),
            WaitMode::Spin => (38_000, 192 << 10),
        });
        assert!(share > 0.9, "{share}");
    }

    #[test]
    fn a_trial_that_is_far_worse_is_short() {
        let mut tuner = SpinTuner::default();
        let fast_asleep = |mode| {
            if mode == WaitMode::Spin {
                100_000
            } else {
                10_000
            }
        };
        // Until the first trial, and a little of it.
        let share = run(&mut tuner, Instant::ZERO, LOOKS + 2, fast_asleep);
        assert!(tuner.mode() == WaitMode::Sleep, "it is over");
        assert!(share > 0.1, "it was one: {share}");
    }

    #[test]
    fn it_changes_its_mind_when_the_machine_does() {
        let mut tuner = SpinTuner::default();
        let quiet = |mode| {
            if mode == WaitMode::Spin {
                15_000
            } else {
                58_000
            }
        };
        let busy = |mode| {
            if mode == WaitMode::Spin {
                100_000
            } else {
                15_000
            }
        };
        assert!(run(&mut tuner, Instant::ZERO, 300, quiet) > 0.8);
        assert!(run(&mut tuner, Instant::ZERO, 300, busy) < 0.3);
        assert!(run(&mut tuner, Instant::ZERO, 300, quiet) > 0.7);
    }

    #[test]
    fn who_waits_for_a_peer_that_is_awake_does_not_sleep() {
        use Waits::*;
        let (spin, near) = (Idle::Spin(SPIN), Idle::Spin(SPIN_NEAR));
        let (here, device) = (Idle::Yield(SPIN_NEAR), Idle::Spin(SPIN_DEVICE));
        // (waits for, mode, there are processors, a waiter looks, a worker's thread looks)
        let cases = [
            (Nothing, WaitMode::Sleep, true, Idle::Sleep, Idle::Sleep),
            (Nothing, WaitMode::Spin, true, spin, spin),
            (Short, WaitMode::Sleep, true, Idle::Sleep, Idle::Sleep),
            (Short, WaitMode::Spin, false, spin, spin),
            (Long, WaitMode::Spin, true, Idle::Sleep, Idle::Sleep),
            (Near, WaitMode::Sleep, true, near, Idle::Sleep),
            (Near, WaitMode::Spin, true, near, spin),
            // It would keep another's peer from running.
            (Near, WaitMode::Spin, false, Idle::Sleep, spin),
            (Here, WaitMode::Sleep, false, here, Idle::Sleep),
            (Device, WaitMode::Sleep, true, device, Idle::Sleep),
            (Device, WaitMode::Spin, false, Idle::Sleep, spin),
        ];
        for (waits, mode, processors, waiter, thread) in cases {
            let name = format!("{waits:?} {mode:?} {processors}");
            let of_waiter = Idle::of_waiter(waits, mode, || processors);
            assert_eq!(of_waiter, waiter, "{name}");
            assert_eq!(Idle::of_thread(waits, mode), thread, "{name}");
        }
    }

    #[test]
    fn time_outside_does_not_count() {
        let mut tuner = SpinTuner::default();
        let (mut now, mut done) = (Instant::ZERO, Progress::default());
        for _ in 0..10 * WINDOW_WORKS {
            tuner.begin(now, done);
            now = now + Duration::from_micros(1);
            done.add(4096);
            tuner.end(now, done);
            now = now + Duration::from_secs(1);
        }
        assert_eq!(tuner.left, LOOKS, "no look was long enough");
    }
}
