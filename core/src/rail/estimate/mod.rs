//! How fast a rail is, learned from its completions.
//!
//! Source: TENT (arXiv:2604.00368v1) eq. 1 for prediction as β0 + queue / rate. We differ in how the rate is
//! learned: a ratio of decayed sums of bytes and *busy* time. A mean of rates reads too high when completions
//! come in bursts, and bytes / latency reads our own queueing as slowness.

mod growth;
mod jitter;
#[cfg(test)]
mod model;
mod observation;

use crate::time::{Duration, Instant};
use crate::units::Rate;
use growth::Growth;
pub use observation::{Observation, Sample};

/// What is known of a rail or device before the first completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EstimateConfig {
    /// The rate to start from. While another transport is slow, one that has carried nothing yet counts as so fast, if looks come
    /// back and no [`Self::slice_span`] is set.
    pub rate_nominal: Rate,
    /// The delay of an empty rail to start from: post to completion of an empty slice.
    pub delay_base: Duration,
    /// Tier of the rail; a farther one starts from a milder guess, and nothing after that.
    pub tier: u8,
    /// Where moving bytes costs processor time, a slice is as long as takes this; zero: the usual slice does.
    pub slice_span: Duration,
    /// Where several works share a doorbell and a completion: for how long they may queue on the rail so that
    /// [`BATCH_WORKS`] do; zero: not for that.
    pub batch_span: Duration,
}

/// Works that are to share a doorbell and a completion: more than the 16 that are aimed at, because the last ones of a
/// request, and those after a change of the window, are fewer.
pub const BATCH_WORKS: u64 = 20;
/// One lot is on its way while the one before completes.
const BATCHES: u64 = 2;

/// The sums keep 9/10 of themselves at each observation.
const DECAY_KEEP: u64 = 92;
const DECAY_OF: u64 = 100;
/// The first guess weighs as much as this much busy time.
const PRIOR_BUSY: Duration = Duration::from_micros(10);
/// No rate above so many times the nominal one is believed: it would be that of a clock that stands.
const RATE_FACTOR_MAX: u64 = 100;
/// Busy time of one sample is at most that of a rail 20,000 times slower than nominal.
const BUSY_FACTOR_MAX: u64 = 20_000;
/// Delay mean and deviation move by a twentieth per completion.
const DELAY_WEIGHT: u64 = 20;
/// A window makes room for the mean delay and so many deviations.
const DELAY_DEVIATIONS: u64 = 12;
/// But for no more than this above eight base delays.
const DELAY_EXTRA_MAX: Duration = Duration::from_micros(50);
/// And so many times the mean jitter, if that is more: slices arrive in order, so that many wait for the latest one.
const JITTER_FACTOR: u64 = 3;
/// The base delay is the least one seen in one or two spans of this, each with so many unqueued slices: one alone may have waited
/// for what nobody here knows of.
const BASE_SPAN: Duration = Duration::from_secs(10);
const BASE_SLICES: u8 = 8;
/// What a probe measures beyond its bytes in all the time it took is believed up to so many times the known rate: the base delay
/// may be nearly all of that time.
const PROBE_FACTOR_MAX: u64 = 3;
/// A window is planned to hold this time's worth of bytes, or three slices, beyond the base delay.
const WINDOW_QUEUE: Duration = Duration::from_micros(17);
pub(crate) const WINDOW_SLICES: u64 = 3;
/// The shortest part of a request that is cut for several rails, though it is no longer than a slice: what a work costs a
/// device beside its bytes is less than what these take.
const PART_BYTES_MIN: u32 = 8 * 1024;
/// The longest slice, in usual ones.
pub const SLICES_MAX: u64 = 16;

/// A delay, as it is kept: 4 s and more are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Delay(u32);

impl Delay {
    const ZERO: Self = Self(0);
    const MAX: Self = Self(u32::MAX);

    pub(crate) fn of(span: Duration) -> Self {
        Self(u32::try_from(span.as_nanos()).unwrap_or(u32::MAX))
    }

    const fn span(self) -> Duration {
        Duration::from_nanos(self.0 as u64)
    }

    /// As an atomic keeps it.
    pub(crate) const fn to_bits(self) -> u32 {
        self.0
    }

    /// What an atomic keeps.
    pub(crate) const fn span_of(bits: u32) -> Duration {
        Self(bits).span()
    }
}

/// The learned state of one rail or device.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Estimate {
    rate_nominal: Rate,
    bytes_sum: u64,
    busy_sum: Duration,
    rate: Rate,
    base_since: Instant,
    last_seen: Instant,
    delay_mean: Delay,
    delay_deviation: Delay,
    delay_base: Delay,
    /// Least delay of an unqueued slice in the span that started at `base_since`.
    base_candidate: Delay,
    /// The base delay to start from.
    delay_first: Delay,
    slice_span: Delay,
    batch_span: Delay,
    tier: u8,
    /// Unqueued slices of that span.
    base_slices: u8,
    growth: Growth,
}

impl Estimate {
    /// Nothing learned yet.
    pub fn new(config: EstimateConfig) -> Self {
        // Prior 1, 1.25, 2, … by tier.
        let rate = match config.tier {
            0 => config.rate_nominal,
            1 => config.rate_nominal.scaled(4, 5),
            _ => config.rate_nominal.scaled(1, 2),
        };
        Self {
            rate_nominal: config.rate_nominal,
            bytes_sum: rate.bytes_in(PRIOR_BUSY).max(1),
            busy_sum: PRIOR_BUSY,
            rate,
            delay_mean: Delay::of(config.delay_base),
            delay_deviation: Delay::ZERO,
            delay_base: Delay::of(config.delay_base),
            base_candidate: Delay::MAX,
            delay_first: Delay::of(config.delay_base),
            slice_span: Delay::of(config.slice_span),
            batch_span: Delay::of(config.batch_span),
            tier: config.tier,
            base_slices: 0,
            growth: Growth::new(config.batch_span != Duration::ZERO),
            base_since: Instant::ZERO,
            last_seen: Instant::ZERO,
        }
    }

    /// Learns from completions.
    #[inline(always)]
    pub fn handle_observation(&mut self, seen: &Observation) {
        self.growth
            .handle_observation(seen, self.last_seen, self.rate_nominal);
        self.correct_base(&seen.first);
        self.learn_sums(seen);
        let longest = self.delay(&seen.first);
        self.learn_base(&seen.first, longest);
        self.learn_delay(seen, longest);
    }

    /// Learns what is asked of a device, which has no window: the rate and the base delay.
    #[inline]
    pub(crate) fn learn_rate(&mut self, seen: &Observation) {
        self.correct_base(&seen.first);
        self.learn_sums(seen);
        let delay = match seen.first.ahead_bytes {
            0 => self.delay(&seen.first),
            // Nobody asks.
            _ => Duration::ZERO,
        };
        self.learn_base(&seen.first, delay);
    }

    /// Whether it has seen a completion since it was new.
    pub(crate) fn has_learned(&self) -> bool {
        self.last_seen != Instant::ZERO
    }

    /// What is asked of a device is as another one has learned it.
    pub(crate) fn take_over(&mut self, learned: &Self) {
        self.bytes_sum = learned.bytes_sum;
        self.busy_sum = learned.busy_sum;
        self.last_seen = learned.last_seen;
        self.delay_base = learned.delay_base;
        self.base_candidate = learned.base_candidate;
        self.base_slices = learned.base_slices;
        self.base_since = learned.base_since;
        self.set_rate(learned.rate);
    }

    /// Before the rate is learned: where the base delay is too long, no time of a slice that met an empty rail counts as busy, and
    /// the rate seems to be without bounds.
    #[inline(always)] // see `Growth::handle_observation`
    fn correct_base(&mut self, first: &Sample) {
        if first.ahead_bytes == 0 {
            self.lower_base(first.bytes, first.seen_at.since(first.posted_at));
        }
    }

    /// What took no longer than the base delay says that this is too long. It is what the bytes leave of that time, by the rate
    /// known so far.
    fn lower_base(&mut self, bytes: u64, took: Duration) {
        if took <= self.delay_base() {
            self.delay_base = Delay::of(took.minus(self.rate.time_for(bytes)));
            self.delay_mean = self.delay_mean.min(self.delay_base);
        }
    }

    #[inline(always)]
    fn learn_sums(&mut self, seen: &Observation) {
        let Observation { first, bytes, .. } = *seen;
        let started = (first.posted_at + self.delay_base()).max(self.last_seen);
        let busy = first.seen_at.since(started);
        let busy_max = self.rate_nominal.time_for(bytes).times(BUSY_FACTOR_MAX);
        let busy = busy.min(busy_max);
        // What is seen at the same instant but of another run must not push the busy time out of the sums.
        if first.seen_at > self.last_seen {
            self.bytes_sum = decay(self.bytes_sum);
            self.busy_sum = Duration::from_nanos(decay(self.busy_sum.as_nanos()));
            self.last_seen = first.seen_at;
        }
        self.bytes_sum = self.bytes_sum.saturating_add(bytes);
        self.busy_sum += busy;
        self.set_rate(Rate::from_bytes_in(self.bytes_sum, self.busy_sum));
    }

    /// Learns from a probe of some bytes that met an idle rail: halfway up to what it measured. A probe that reads slow may
    /// just have been seen late; user slices find out soon enough. One that took no longer than the base delay tells of that too.
    pub fn handle_probe(&mut self, bytes: u64, took: Duration) {
        self.growth.handle_probe(took);
        self.lower_base(bytes, took);
        let in_time = |span: Duration| {
            Rate::from_bytes_in(bytes, span.max(Duration::from_nanos(1))).bytes_per_sec()
        };
        let known = self.rate.bytes_per_sec();
        let measured = in_time(took.minus(self.delay_base()))
            .min(known.saturating_mul(PROBE_FACTOR_MAX))
            // So fast it was even if nothing of that was delay.
            .max(in_time(took));
        if measured > known {
            self.set_rate(Rate::from_bytes_per_sec(known / 2 + measured / 2));
            // As many bytes as before, at the new rate, so that the next completions weigh as usual.
            self.busy_sum = self
                .rate
                .time_for(self.bytes_sum)
                .max(Duration::from_nanos(1));
        }
    }

    /// Forgets the rate but keeps what it knows of delays: after an outage the old rate says nothing.
    pub fn reset(&mut self) {
        let base = self.delay_base;
        let config = EstimateConfig {
            rate_nominal: self.rate_nominal,
            delay_base: self.delay_first.span(),
            tier: self.tier,
            slice_span: self.slice_span.span(),
            batch_span: self.batch_span.span(),
        };
        *self = Self {
            delay_base: base,
            delay_mean: self.delay_mean,
            growth: self.growth.restarted(),
            ..Self::new(config)
        };
    }

    /// The learned rate.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// What the rail may be able to pass: the most that has passed lately, and twice as much if its window was not full then.
    pub(crate) fn rate_most(&self) -> Rate {
        let known = self.rate.max(self.growth.jitter.rate_most());
        match self.growth.is_limited() {
            true => known,
            false => known.scaled(2, 1),
        }
    }

    /// β0: post to completion of an empty slice on an empty rail.
    pub fn delay_base(&self) -> Duration {
        self.delay_base.span()
    }

    /// The rate it started from.
    pub fn rate_nominal(&self) -> Rate {
        self.rate_nominal
    }

    /// The same as [`Self::delay_base`], for an atomic.
    pub(crate) fn kept_delay_base(&self) -> Delay {
        self.delay_base
    }

    /// How long slices are on their way beside the bytes before them, for an atomic: in the mean, and at least as long as one took
    /// that met an empty rail.
    pub(crate) fn kept_delay_mean(&self) -> Delay {
        self.delay_mean.max(Delay::of(self.growth.empty_took()))
    }

    /// Whether moving bytes costs no processor time.
    pub(crate) fn carries_itself(&self) -> bool {
        self.slice_span == Delay::ZERO
    }

    /// How long slices on this rail should be: what passes in [`EstimateConfig::slice_span`], in whole usual
    /// slices, from one to [`SLICES_MAX`] of them.
    pub fn slice_bytes(&self, usual_bytes: u32) -> u32 {
        if self.carries_itself() {
            return usual_bytes.max(1);
        }
        let usual = u64::from(usual_bytes.max(1));
        let slices = self.rate.bytes_in(self.slice_span.span()) / usual;
        let bytes = slices.clamp(1, SLICES_MAX) * usual;
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// From now on works share completions.
    pub(crate) fn share_completions(&mut self) {
        self.growth.shares = true;
    }

    /// How short slices may be where a request of few is cut for several rails: not shorter than usual where each costs
    /// processor time.
    pub(crate) fn part_bytes(&self, usual_bytes: u32) -> u32 {
        match self.carries_itself() {
            true => PART_BYTES_MIN.min(usual_bytes.max(1)),
            false => usual_bytes.max(1),
        }
    }

    /// Bytes that keep the rail busy without queueing more than needed: the rate times the delay, plus a little, and so many
    /// times that as trying has shown to bring more; more where works share completions, and then in whole lots of them, so
    /// that each that completes makes room for another. The delay is the base delay at least, and that of a slice that met
    /// an empty rail: with a shorter one a full window looks like a slow rail, and is planned smaller still.
    pub fn window_bytes(&self, slice_bytes: u32) -> u64 {
        let slice = u64::from(self.slice_bytes(slice_bytes));
        let queue = self.rate.bytes_in(WINDOW_QUEUE).max(WINDOW_SLICES * slice);
        let delay_max = DELAY_EXTRA_MAX + self.delay_base().times(8);
        let spread = self.delay_deviation.span().times(DELAY_DEVIATIONS);
        let delay = (self.delay_mean.span() + spread)
            .min(delay_max)
            .max(self.delay_base())
            .max(self.growth.empty_took().minus(self.rate.time_for(slice)));
        let planned = self.rate.bytes_in(delay).saturating_add(queue);
        let window = self
            .growth
            .grown(planned)
            .max(self.jittery_bytes(slice) + queue);
        debug_assert!(
            window >= WINDOW_SLICES * slice,
            "a window of {window} bytes for slices of {slice}"
        );
        if self.batch_span == Delay::ZERO {
            return window;
        }
        self.shared_window(window, slice)
    }

    /// What is on its way on a rail whose delay varies: as much as passes lately at most, in the time that a slice took on an
    /// empty rail and so many times the jitter.
    fn jittery_bytes(&self, slice: u64) -> u64 {
        let rate = self.growth.jitter.rate_most();
        let delay = self.growth.empty_took().minus(rate.time_for(slice));
        rate.bytes_in(delay + self.growth.jitter.mean().times(JITTER_FACTOR))
    }

    /// A window in which so many works share a completion as `batch_span` allows.
    fn shared_window(&self, window: u64, slice: u64) -> u64 {
        let lot = (BATCH_WORKS * slice).max(1);
        let shared = self.rate.bytes_in(self.batch_span.span());
        if shared < BATCHES * lot {
            return window.max(shared);
        }
        (window / lot).max(BATCHES) * lot
    }

    /// Learns that slices are posted into a window of so many bytes from now on.
    pub(crate) fn handle_window(&mut self, window_bytes: u64) {
        self.growth.handle_window(window_bytes);
    }

    fn set_rate(&mut self, rate: Rate) {
        // No higher one than that is believed; the bits are a cost.
        let rate_max = Rate::from_bits(self.rate_nominal.to_bits() / RATE_FACTOR_MAX);
        self.rate = rate.min(rate_max);
    }

    /// What a slice took beyond its own time and that of the bytes before it.
    fn delay(&self, sample: &Sample) -> Duration {
        let latency = sample.seen_at.since(sample.posted_at);
        let bytes = sample.ahead_bytes.saturating_add(sample.bytes);
        latency.minus(self.rate.time_for(bytes))
    }

    /// Those seen together were done one after the other: the first one has waited longest to be seen, the last one
    /// least, and the others evenly between.
    #[inline(always)]
    fn learn_delay(&mut self, seen: &Observation, longest: Duration) {
        let longest = longest.as_nanos();
        let (mean, spread) = if seen.count == 1 {
            (longest, 0)
        } else {
            let shortest = self.delay(&seen.last).as_nanos();
            (longest.midpoint(shortest), longest.abs_diff(shortest) / 4)
        };
        let error = mean.abs_diff(self.delay_mean.span().as_nanos());
        let weight = seen.count.min(DELAY_WEIGHT);
        self.delay_mean = towards(self.delay_mean, mean, weight);
        self.delay_deviation = towards(self.delay_deviation, error.saturating_add(spread), weight);
    }

    /// Of those seen together only the first can have met an empty rail.
    #[inline(always)]
    fn learn_base(&mut self, first: &Sample, delay: Duration) {
        let seen_at = first.seen_at;
        if first.ahead_bytes == 0 {
            let delay = Delay::of(delay);
            self.base_candidate = self.base_candidate.min(delay);
            self.base_slices = self.base_slices.saturating_add(1);
            self.delay_base = self.delay_base.min(delay);
        }
        if seen_at.since(self.base_since) >= BASE_SPAN && self.base_slices >= BASE_SLICES {
            self.delay_base = self.base_candidate;
            self.base_candidate = Delay::MAX;
            self.base_slices = 0;
            self.base_since = seen_at;
        }
    }
}

fn decay(sum: u64) -> u64 {
    match sum.checked_mul(DECAY_KEEP) {
        Some(product) => product / DECAY_OF,
        None => decay_large(sum),
    }
}

/// Where the product would overflow, divides first; precision is no matter there.
#[cold]
fn decay_large(sum: u64) -> u64 {
    sum / DECAY_OF * DECAY_KEEP
}

/// A mean after `weight` more samples, at most [`DELAY_WEIGHT`].
fn towards(mean: Delay, sample: u64, weight: u64) -> Delay {
    debug_assert!(weight <= DELAY_WEIGHT, "{weight} samples of {DELAY_WEIGHT}");
    let mean = mean.span().as_nanos();
    let step = mean.abs_diff(sample).saturating_mul(weight) / DELAY_WEIGHT;
    let moved = if sample > mean {
        mean.saturating_add(step)
    } else {
        mean - step
    };
    Delay::of(Duration::from_nanos(moved))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use quickcheck::quickcheck;
    use std::vec::Vec;

    const SLICE: u64 = 65_536;
    const CONFIG: EstimateConfig = EstimateConfig {
        rate_nominal: Rate::from_bytes_per_sec(25_000_000_000),
        delay_base: Duration::from_micros(3),
        tier: 0,
        slice_span: Duration::ZERO,
        batch_span: Duration::ZERO,
    };

    /// Feeds `count` slices that queue behind each other on a rail of this rate, seen every `poll`.
    fn saturate(
        estimate: &mut Estimate,
        start: Instant,
        rate: Rate,
        poll: Duration,
        count: u64,
    ) -> Instant {
        let ahead = 4;
        let service = rate.time_for(SLICE);
        let mut served = start + CONFIG.delay_base;
        for _ in 0..count {
            let posted = Instant::from_nanos(
                served
                    .as_nanos()
                    .saturating_sub(CONFIG.delay_base.as_nanos() + ahead * service.as_nanos()),
            );
            served = served + service;
            let seen = Instant::from_nanos(
                served.as_nanos().div_ceil(poll.as_nanos().max(1)) * poll.as_nanos().max(1),
            );
            let sample = Sample {
                posted_at: posted,
                seen_at: seen,
                ahead_bytes: ahead * SLICE,
                bytes: SLICE,
            };
            estimate.handle_observation(&Observation::new(sample));
        }
        served
    }

    fn within(rate: Rate, bytes_per_sec: u64, percent: u64) -> bool {
        rate.bytes_per_sec().abs_diff(bytes_per_sec) <= bytes_per_sec * percent / 100
    }

    #[test]
    fn the_rate_of_a_busy_rail_is_learned_whatever_it_was_before() {
        // (name, true rate in B/s, poll interval in ns, tolerance in %)
        let cases = [
            ("as nominal", 25_000_000_000, 1, 2),
            ("a fifth", 5_000_000_000, 1, 2),
            ("a thousandth", 25_000_000, 1, 2),
            ("seen in bursts", 25_000_000_000, 20_000, 25),
        ];
        for (name, rate, poll, percent) in cases {
            let mut estimate = Estimate::new(CONFIG);
            let start = Instant::from_nanos(1_000_000_000);
            saturate(
                &mut estimate,
                start,
                Rate::from_bytes_per_sec(rate),
                Duration::from_nanos(poll),
                100,
            );
            assert!(
                within(estimate.rate(), rate, percent),
                "{name}: {:?}",
                estimate.rate()
            );
        }
    }

    #[test]
    fn a_slowed_rail_is_noticed_within_a_few_slices_and_recovers() {
        let mut estimate = Estimate::new(CONFIG);
        let (fast, slow) = (
            Rate::from_bytes_per_sec(25_000_000_000),
            Rate::from_bytes_per_sec(5_000_000_000),
        );
        let none = Duration::from_nanos(1);
        let t = saturate(
            &mut estimate,
            Instant::from_nanos(1_000_000_000),
            fast,
            none,
            50,
        );
        let t = saturate(&mut estimate, t, slow, none, 10);
        assert!(
            estimate.rate().bytes_per_sec() < 9_000_000_000,
            "{:?}",
            estimate.rate()
        );
        saturate(&mut estimate, t, fast, none, 60);
        assert!(
            within(estimate.rate(), 25_000_000_000, 10),
            "{:?}",
            estimate.rate()
        );
    }

    #[test]
    fn late_sight_widens_the_window_instead_of_shrinking_it() {
        // Pitfall "window collapse": completions seen late must not make the window too short for the delay.
        let mut estimate = Estimate::new(CONFIG);
        let before = estimate.window_bytes(SLICE as u32);
        for i in 0..200 {
            let posted_at = Instant::from_nanos(1_000_000_000 + i * 60_000);
            let seen_at = posted_at + Duration::from_micros(50);
            estimate.handle_observation(&Observation::new(Sample {
                posted_at,
                seen_at,
                ahead_bytes: 0,
                bytes: SLICE,
            }));
        }
        let rate = estimate.rate();
        let window = estimate.window_bytes(SLICE as u32);
        assert!(
            window >= rate.bytes_in(CONFIG.delay_base) + 3 * SLICE,
            "{window} from {before}"
        );
    }

    #[test]
    fn a_probe_moves_the_rate_halfway_up_and_never_down() {
        let took = |rate| CONFIG.delay_base + Rate::from_bytes_per_sec(rate).time_for(SLICE);
        let mut estimate = Estimate::new(CONFIG);
        // Slow, or just seen late: nobody knows.
        estimate.handle_probe(SLICE, took(5_000_000_000));
        assert!(
            within(estimate.rate(), 25_000_000_000, 1),
            "{:?}",
            estimate.rate()
        );
        estimate.handle_probe(SLICE, took(75_000_000_000));
        assert!(
            within(estimate.rate(), 50_000_000_000, 1),
            "{:?}",
            estimate.rate()
        );
    }

    #[test]
    fn a_probe_that_took_less_than_the_base_delay_tells_of_that() {
        // Told to be far away, a rail was never tried while another one had room.
        let mut estimate = Estimate::new(EstimateConfig {
            delay_base: Duration::from_millis(1),
            ..CONFIG
        });
        estimate.handle_probe(SLICE, Duration::from_micros(5));
        let delay = estimate.delay_base();
        assert!(delay < Duration::from_micros(5), "{delay:?}");
        assert!(within(estimate.rate(), 25_000_000_000, 1));
    }

    quickcheck! {
        /// None of the first slice's time counted as busy where the delay was told longer than that: the rate seemed to be a
        /// hundred times what it is, and of a long slice all time was delay. With that the rail looked endlessly fast whenever
        /// it had been idle, and had most of what there was to send.
        fn the_first_slice_of_a_rail_told_too_far_says_how_far_it_is(told_times: u16, delay_us: u16, slices: u8) -> bool {
            let delay = Duration::from_micros(10 + u64::from(delay_us));
            let bytes = SLICE * (1 + u64::from(slices % 16));
            let took = delay + CONFIG.rate_nominal.time_for(bytes);
            let mut estimate = Estimate::new(EstimateConfig {
                delay_base: took.times(1 + u64::from(told_times % 1_000)),
                ..CONFIG
            });
            let nominal = CONFIG.rate_nominal.bytes_per_sec();
            let mut posted_at = Instant::from_nanos(1_000_000);
            // It is idle before each.
            (0..4).all(|_| {
                let seen_at = posted_at + took;
                let sample = Sample { posted_at, seen_at, ahead_bytes: 0, bytes };
                estimate.handle_observation(&Observation::new(sample));
                posted_at = seen_at + Duration::from_millis(1);
                let known = estimate.delay_base().as_nanos();
                known.abs_diff(delay.as_nanos()) <= 100 && within(estimate.rate(), nominal, 1)
            })
        }
    }

    #[test]
    fn one_slice_that_waited_does_not_make_a_rail_look_far_or_fast() {
        // With a slice every 15 s, one in 100 met a neighbour's burst: that was the base delay for the next span, a probe that
        // took no longer had an endless rate, and all slices went there.
        let mut estimate = Estimate::new(CONFIG);
        let took = CONFIG.delay_base + estimate.rate().time_for(SLICE);
        let mut most = (Duration::ZERO, estimate.rate());
        for number in 1..1_000 {
            let posted_at = Instant::from_nanos(number * 15_000_000_000);
            let waited = match number % 100 {
                0 => Duration::from_micros(40),
                _ => Duration::ZERO,
            };
            estimate.handle_probe(SLICE, took);
            estimate.handle_observation(&Observation::new(Sample {
                posted_at,
                seen_at: posted_at + took + waited,
                ahead_bytes: 0,
                bytes: SLICE,
            }));
            let is_faster = estimate.rate().to_bits() < most.1.to_bits();
            most.0 = most.0.max(estimate.delay_base());
            most.1 = if is_faster { estimate.rate() } else { most.1 };
        }
        assert!(most.0 < Duration::from_micros(6), "{most:?}");
        assert!(most.1.bytes_per_sec() < 75_000_000_000, "{most:?}");
    }

    #[test]
    fn a_far_rail_is_not_near_because_its_window_is_full() {
        // What a window that is shorter than the delay passes reads as a slow rail without a delay. Then a slice that met an empty
        // rail was overdue before it could arrive.
        let mut estimate = Estimate::new(CONFIG);
        let far = Duration::from_millis(22);
        let mut now = Instant::from_nanos(1_000_000_000);
        for _ in 0..200 {
            for ahead in 0..4 {
                estimate.handle_observation(&Observation::new(Sample {
                    posted_at: now,
                    seen_at: now + far + Duration::from_micros(3 * ahead),
                    ahead_bytes: ahead * SLICE,
                    bytes: SLICE,
                }));
            }
            now = now + far + Duration::from_micros(9);
        }
        assert!(estimate.delay_base() < far.divided_by(4), "as was told");
        let kept = estimate.kept_delay_mean().span();
        assert!(kept >= far, "{kept:?} {estimate:?}");
    }

    #[test]
    fn completions_seen_together_do_not_read_as_speed() {
        // 19 slices in every look, 50 us apart: the first carries all the busy time, and the others pushed it
        // out of the sums, so that the rate read three times too high at the end of each look.
        let mut estimate = Estimate::new(CONFIG);
        let look = Duration::from_micros(50);
        let mut now = Instant::from_nanos(1_000_000_000);
        for _ in 0..20 {
            let posted_at = now;
            now = now + look;
            for _ in 0..19 {
                let ahead_bytes = 19 * SLICE;
                estimate.handle_observation(&Observation::new(Sample {
                    posted_at,
                    seen_at: now,
                    ahead_bytes,
                    bytes: SLICE,
                }));
            }
        }
        assert!(
            within(estimate.rate(), 24_903_000_000, 10),
            "{:?}",
            estimate.rate()
        );
    }

    #[test]
    fn slices_are_as_long_as_the_span_asks() {
        // (name, GB/s, span in µs, usual slices)
        let cases = [
            ("no span", 25, 0, 1),
            ("less than one fits", 1, 50, 1),
            ("whole ones only", 5, 50, 3),
            ("as many as there may be", 100, 50, SLICES_MAX),
        ];
        for (name, rate, span, slices) in cases {
            let estimate = Estimate::new(EstimateConfig {
                rate_nominal: Rate::from_bytes_per_sec(rate * 1_000_000_000),
                slice_span: Duration::from_micros(span),
                ..CONFIG
            });
            let bytes = estimate.slice_bytes(SLICE as u32);
            assert_eq!(u64::from(bytes), slices * SLICE, "{name}");
            let window = estimate.window_bytes(SLICE as u32);
            assert!(window >= WINDOW_SLICES * slices * SLICE, "{name}");
        }
    }

    #[test]
    fn a_window_holds_whole_lots_of_works_that_share_completions() {
        // (name, GB/s, µs, slices)
        let cases = [
            ("not for that", 25, 0, None),
            ("two lots", 25, 500, Some(40)),
            ("more by itself, in whole lots", 200, 500, Some(80)),
            ("as long as may be waited for", 1, 500, Some(7)),
        ];
        for (name, rate, span, slices) in cases {
            let rate = Rate::from_bytes_per_sec(rate * 1_000_000_000);
            let window = |batch_span, delay_base| {
                let estimate = Estimate::new(EstimateConfig {
                    rate_nominal: rate,
                    batch_span,
                    delay_base,
                    ..CONFIG
                });
                estimate.window_bytes(SLICE as u32)
            };
            let delay = Duration::from_micros(10);
            let seen = window(Duration::from_micros(span), delay);
            let alone = window(Duration::ZERO, delay);
            match slices {
                Some(slices) => assert_eq!(seen / SLICE, slices, "{name}"),
                None => assert_eq!(seen, alone, "{name}"),
            }
            assert!(seen + BATCH_WORKS * SLICE > alone, "{name}");
        }
    }

    #[test]
    fn a_reset_forgets_the_rate() {
        let mut estimate = Estimate::new(CONFIG);
        let slow = Rate::from_bytes_per_sec(1_000_000);
        saturate(
            &mut estimate,
            Instant::from_nanos(1_000_000_000),
            slow,
            Duration::from_nanos(1),
            50,
        );
        estimate.reset();
        assert_eq!(estimate.rate(), CONFIG.rate_nominal);
    }

    quickcheck! {
        fn any_samples_leave_a_usable_estimate(samples: Vec<(u64, u32, u32, u32)>) -> bool {
            let mut estimate = Estimate::new(CONFIG);
            for (posted, took, ahead, bytes) in samples {
                let posted_at = Instant::from_nanos(posted);
                let seen_at = posted_at + Duration::from_nanos(u64::from(took));
                let bytes = u64::from(bytes).max(1);
                estimate.handle_observation(&Observation::new(Sample { posted_at, seen_at, ahead_bytes: u64::from(ahead), bytes }));
            }
            estimate.window_bytes(SLICE as u32) >= 3 * SLICE
                && estimate.rate().bytes_per_sec() <= 5 * RATE_FACTOR_MAX / 4 * 25_000_000_000
        }
    }
}
