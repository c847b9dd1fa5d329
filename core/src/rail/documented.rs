//! The smart mode of the TENT slice-spraying document, to the letter, to compare ours with.
//!
//! Source: TENT documentation, "TENT Slice Spraying": "Smart Mode", "EWMA Bandwidth Estimation", "Multi-Path
//! Allocation", "Configuration"; quoted below. Where it is silent:
//!
//! - It caps the number of slices but gives no number, and neither does TENT (arXiv:2604.00368v1) §4.2.
//!   TENT's source (Mooncake 3b5a594) has 64 (32 for writes and for device memory, which no document says).
//! - It asks for an allocation "only if num_slices >= max_slice_count/2", and says of smaller requests "All slices
//!   go to the single best device": so here. (In the source each of their slices asks for itself.)
//! - Its device is our rail: the remote end is chosen with it.
//! - Its in-flight bytes are those given to a device, whether it has posted them or not. So here.
//! - It has no windows: slices are posted as soon as a lane takes them, and transfer times are counted from then.
//!
//! Times are seconds, rates bytes per second, in `f64`: only `+ - * /` and comparisons, which are the same on
//! every platform and at every level of optimisation.

use super::select::Policy;
use crate::plan::{PLAN_RAILS_MAX, of_rails};
use crate::random::Random;
use crate::time::Duration;
use crate::units::Rate;

const BYTES_PER_SEC_IN_GBPS: f64 = 125e6;
const NANOS_PER_SEC: f64 = 1e9;
const PAGE_BYTES: u32 = 4096;
/// "Probe mode (1% of calls, every 100th call)".
const PROBE_CALLS: u32 = 100;

/// The document's parameters, under its names.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
pub struct DocumentedConfig {
    /// `false` stands for [`Policy::RoundRobin`].
    pub enable_smart_scheduling: bool,
    /// What predicted times are multiplied by, for each tier; the last one also for tiers beyond. Above 0.
    pub numa_penalties: [f64; 3],
    /// Weight of the *old* bandwidth at each completion, 0 to 1.
    pub bandwidth_learning_rate: f64,
    /// The learned bandwidth is at least this fraction of the theoretical one.
    pub ewma_min_bandwidth_multiplier: f64,
    /// The learned bandwidth is at most this multiple of the theoretical one.
    pub ewma_max_bandwidth_multiplier: f64,
    /// Scores are raised by up to this, at random. In seconds.
    pub score_jitter_range: f64,
    /// Keeps weights finite. In seconds.
    pub score_epsilon: f64,
    /// The theoretical bandwidth of a rail whose nominal one is not valid. In Gb/s, as the two bounds.
    pub default_bandwidth_gbps: f64,
    /// Least valid nominal bandwidth.
    pub min_bandwidth_gbps: f64,
    /// Largest valid nominal bandwidth.
    pub max_bandwidth_gbps: f64,
    /// A request is cut into at most this many slices. At least 1.
    pub max_slice_count: u16,
}

impl DocumentedConfig {
    /// The document's defaults.
    pub const DEFAULT: Self = Self {
        enable_smart_scheduling: true,
        numa_penalties: [1.0, 5.0, 10.0],
        bandwidth_learning_rate: 0.01,
        ewma_min_bandwidth_multiplier: 0.1,
        ewma_max_bandwidth_multiplier: 10.0,
        score_jitter_range: 1e-9,
        score_epsilon: 1e-12,
        default_bandwidth_gbps: 400.0,
        min_bandwidth_gbps: 10.0,
        max_bandwidth_gbps: 800.0,
        max_slice_count: 64,
    };

    /// The policy that this configuration stands for: its smart mode, or its baseline mode.
    pub const fn policy(&self) -> Policy {
        if self.enable_smart_scheduling {
            Policy::Documented
        } else {
            Policy::RoundRobin
        }
    }

    /// "If a device's reported bandwidth is outside [min, max], default_bandwidth is used."
    pub fn theoretical(&self, nominal: Rate) -> f64 {
        let nominal = nominal.bytes_per_sec() as f64 / BYTES_PER_SEC_IN_GBPS;
        let valid = nominal >= self.min_bandwidth_gbps && nominal <= self.max_bandwidth_gbps;
        let gbps = if valid {
            nominal
        } else {
            self.default_bandwidth_gbps
        };
        gbps * BYTES_PER_SEC_IN_GBPS
    }

    /// "`ewma_bandwidth = α × ewma_bandwidth + (1 - α) × observed_bandwidth`", clamped.
    pub fn learned(&self, old: f64, theoretical: f64, bytes: u64, took: Duration) -> f64 {
        let seconds = took.as_nanos().max(1) as f64 / NANOS_PER_SEC;
        let observed = bytes as f64 / seconds;
        let weight_old = self.bandwidth_learning_rate;
        let learned = weight_old * old + (1.0 - weight_old) * observed;
        let least = self.ewma_min_bandwidth_multiplier * theoretical;
        let most = self.ewma_max_bandwidth_multiplier * theoretical;
        if learned < least {
            least
        } else if learned > most {
            most
        } else {
            learned
        }
    }

    fn penalty(&self, tier: u8) -> f64 {
        let [.., last] = self.numa_penalties;
        let penalty = self.numa_penalties.get(usize::from(tier));
        penalty.copied().unwrap_or(last)
    }
}

impl Default for DocumentedConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A healthy rail, as it stands when a request asks for its share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Its position in the plan.
    pub position: usize,
    /// Distance from the memory, 0 nearest.
    pub tier: u8,
    /// Bytes given to it and not completed, of all workers.
    pub inflight_bytes: u64,
    /// Its learned bandwidth, in bytes per second.
    pub bandwidth: f64,
}

impl Target {
    /// A rail that nothing is known of.
    pub(crate) const fn unknown(position: usize, tier: u8) -> Self {
        Self {
            position,
            tier,
            inflight_bytes: 0,
            bandwidth: 1.0,
        }
    }

    /// "`predicted_time = (inflight_bytes + slice_bytes) / ewma_bandwidth`",
    /// "`score = predicted_time × numa_tier_weights[tier]`".
    pub fn score(&self, config: &DocumentedConfig, slice_bytes: u32) -> f64 {
        let bytes = self.inflight_bytes as f64 + f64::from(slice_bytes);
        bytes / self.bandwidth * config.penalty(self.tier)
    }
}

/// The healthy rails of a plan.
pub type Targets = heapless::Vec<Target, PLAN_RAILS_MAX>;

/// How many slices of a request each rail of its plan is still to carry, by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Shares {
    /// Length of every slice but the last one.
    pub slice_bytes: u32,
    counts: [u16; PLAN_RAILS_MAX],
}

impl Shares {
    /// Nothing for anyone.
    pub const NONE: Self = Self {
        slice_bytes: 0,
        counts: [0; PLAN_RAILS_MAX],
    };

    /// Slices for the rail at `position`.
    pub fn count(&self, position: usize) -> u16 {
        self.counts.get(position).copied().unwrap_or(0)
    }

    /// Bytes for the rail at `position`; a little more if it has the last slice.
    pub fn bytes(&self, position: usize) -> u64 {
        u64::from(self.count(position)) * u64::from(self.slice_bytes)
    }

    /// Slices of all rails.
    fn slices(&self) -> u32 {
        self.counts.iter().map(|count| u32::from(*count)).sum()
    }

    /// Whether no rail has any.
    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| *count == 0)
    }

    /// Gives slices to the rail at `position`.
    pub fn add(&mut self, position: usize, slices: u16) {
        if let Some(count) = self.counts.get_mut(position) {
            *count = count.saturating_add(slices);
        }
    }

    /// Takes one slice from the rail at `position`.
    pub fn take_one(&mut self, position: usize) {
        if let Some(count) = self.counts.get_mut(position) {
            debug_assert!(*count > 0, "rail {position} of the plan has no share");
            *count = count.saturating_sub(1);
        }
    }

    /// Takes all slices from the rail at `position`.
    pub fn take_all(&mut self, position: usize) -> u16 {
        self.counts.get_mut(position).map_or(0, core::mem::take)
    }

    /// Cuts the slices so that none is longer than a work can be. Shares keep their proportions.
    pub fn fit(&mut self, work_bytes_max: u32) {
        let unit = if work_bytes_max < PAGE_BYTES {
            1
        } else {
            PAGE_BYTES
        };
        let units = self.slice_bytes.div_ceil(unit);
        let parts = units.div_ceil((work_bytes_max / unit).max(1)).max(1);
        self.slice_bytes = units.div_ceil(parts).saturating_mul(unit);
        debug_assert!(
            self.slice_bytes <= work_bytes_max.max(1),
            "slices of {} bytes, and works of {work_bytes_max}",
            self.slice_bytes
        );
        let factor = u16::try_from(parts).unwrap_or(u16::MAX);
        for count in &mut self.counts {
            *count = count.saturating_mul(factor);
        }
    }
}

/// How many slices, and how long: 64 KiB ones, or longer ones of whole pages if those are too many. Neither
/// is ever 0.
pub fn cut(length: u64, slice_bytes: u32, count_max: u16) -> (u16, u32) {
    const SLICE_MAX: u64 = (u32::MAX - u32::MAX % PAGE_BYTES) as u64;
    let page = u64::from(PAGE_BYTES);
    let least = length.div_ceil(u64::from(count_max.max(1)));
    let slice = if least <= u64::from(slice_bytes) {
        u64::from(slice_bytes.max(1))
    } else {
        least.div_ceil(page).saturating_mul(page).min(SLICE_MAX)
    };
    let count = length.div_ceil(slice).max(1);
    (
        u16::try_from(count).unwrap_or(u16::MAX),
        u32::try_from(slice).unwrap_or(u32::MAX),
    )
}

/// The document's `DeviceSelector`: what it remembers beside the rails' bandwidths, of one worker.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Selector {
    /// Multi-path calls so far.
    calls: u32,
    random: Random,
}

type Scores = heapless::Vec<f64, PLAN_RAILS_MAX>;

impl Selector {
    /// No calls so far.
    pub const fn new(seed: u64) -> Self {
        Self {
            calls: 0,
            random: Random::new(seed),
        }
    }

    /// Shares out `length` bytes that are to be cut into slices of at least `slice_bytes`. Empty only if there
    /// are no rails.
    pub fn allocate(
        &mut self,
        config: &DocumentedConfig,
        targets: &Targets,
        length: u64,
        slice_bytes: u32,
    ) -> Shares {
        let (count, slice_bytes) = cut(length, slice_bytes, config.max_slice_count);
        let mut shares = Shares {
            slice_bytes,
            ..Shares::NONE
        };
        if count == 1 || count < config.max_slice_count / 2 {
            let best = self.best(config, targets, slice_bytes);
            if let Some(best) = best.and_then(|best| targets.get(best)) {
                shares.add(best.position, count);
            }
            return shares;
        }
        self.calls = self.calls.wrapping_add(1);
        if self.calls.is_multiple_of(PROBE_CALLS) {
            in_turn(targets, count, &mut shares);
        } else {
            let scores = self.scores(config, targets, slice_bytes);
            by_weight(config, targets, &scores, count, &mut shares);
        }
        debug_assert!(
            targets.is_empty() || shares.slices() == u32::from(count),
            "{} slices of {count} have a rail",
            shares.slices()
        );
        shares
    }

    /// The rail for a single slice: "best device only".
    pub fn best(
        &mut self,
        config: &DocumentedConfig,
        targets: &Targets,
        slice_bytes: u32,
    ) -> Option<usize> {
        least(&self.scores(config, targets, slice_bytes))
    }

    fn scores(&mut self, config: &DocumentedConfig, targets: &Targets, slice_bytes: u32) -> Scores {
        let mut jitter = || config.score_jitter_range * self.random.next_unit();
        let scores = targets
            .iter()
            .map(|target| target.score(config, slice_bytes) + jitter());
        of_rails(scores)
    }
}

/// "Each device gets: (device_weight / total_weight) × num_slices. Remaining slices assigned to best device."
fn by_weight(
    config: &DocumentedConfig,
    targets: &Targets,
    scores: &Scores,
    count: u16,
    shares: &mut Shares,
) {
    let weight = |score: &f64| 1.0 / (score + config.score_epsilon);
    let total: f64 = scores.iter().map(weight).sum();
    let mut rest = count;
    for (target, score) in targets.iter().zip(scores) {
        // Rounds down; what is no number gives 0.
        let share = ((weight(score) / total * f64::from(count)) as u16).min(rest);
        shares.add(target.position, share);
        rest -= share;
    }
    if let Some(best) = least(scores).and_then(|best| targets.get(best)) {
        shares.add(best.position, rest);
    }
}

/// "Probe mode: Slices distributed round-robin."
fn in_turn(targets: &Targets, count: u16, shares: &mut Shares) {
    for target in targets.iter().cycle().take(usize::from(count)) {
        shares.add(target.position, 1);
    }
}

/// The position of the least score, the first of equals.
fn least(scores: &Scores) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (index, score) in scores.iter().copied().enumerate() {
        if best.is_none_or(|(_, least)| score < least) {
            best = Some((index, score));
        }
    }
    best.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use quickcheck::quickcheck;
    use std::vec::Vec;

    const CONFIG: DocumentedConfig = DocumentedConfig::DEFAULT;
    const SLICE: u32 = 65_536;
    const KIB: u64 = 1024;
    /// Without chance, so that a table can say what comes out.
    const CERTAIN: DocumentedConfig = DocumentedConfig {
        score_jitter_range: 0.0,
        ..CONFIG
    };

    /// A rail of `gbps` with `queued` slices in flight.
    fn target(position: usize, tier: u8, gbps: u32, queued: u64) -> Target {
        Target {
            position,
            tier,
            inflight_bytes: queued * u64::from(SLICE),
            bandwidth: f64::from(gbps) * BYTES_PER_SEC_IN_GBPS,
        }
    }

    fn near(gbps: &[u32]) -> Targets {
        let rails = gbps.iter().enumerate();
        rails
            .map(|(position, gbps)| target(position, 0, *gbps, 0))
            .collect()
    }

    fn counts(shares: &Shares, rails: usize) -> Vec<u16> {
        (0..rails).map(|position| shares.count(position)).collect()
    }

    /// The document's "Example 1: Latency-Sensitive Workload".
    const LATENCY_SENSITIVE: DocumentedConfig = DocumentedConfig {
        enable_smart_scheduling: true,
        numa_penalties: [1.0, 100.0, 1000.0],
        bandwidth_learning_rate: 0.001,
        ..CERTAIN
    };
    /// "Example 2: Bulk Data Transfer".
    const BULK: DocumentedConfig = DocumentedConfig {
        enable_smart_scheduling: true,
        numa_penalties: [1.0, 2.0, 3.0],
        bandwidth_learning_rate: 0.1,
        ..CERTAIN
    };
    /// "Example 3: Baseline Mode".
    const BASELINE: DocumentedConfig = DocumentedConfig {
        enable_smart_scheduling: false,
        ..CERTAIN
    };

    #[test]
    fn the_three_examples_do_what_the_document_says() {
        // 100 slices over one local rail, one of each remote tier, all of 400 Gb/s.
        let tiers: Targets = (0..3)
            .map(|tier| target(tier, tier as u8, 400, 0))
            .collect();
        let config = |config| DocumentedConfig {
            max_slice_count: 100,
            ..config
        };
        // (name, configuration, shares, bandwidth after 400 Gb/s and a sample of 200)
        let cases = [
            ("defaults", CERTAIN, [78, 15, 7], 202.0),
            (
                "strongly prefers local devices",
                LATENCY_SENSITIVE,
                [100, 0, 0],
                200.2,
            ),
            ("allows cross-NUMA transfers", BULK, [55, 27, 18], 220.0),
        ];
        for (name, example, shares, gbps) in cases {
            let length = 100 * u64::from(SLICE);
            let mut selector = Selector::new(0);
            let allocated = selector.allocate(&config(example), &tiers, length, SLICE);
            assert_eq!(counts(&allocated, 3), shares, "{name}");
            let theoretical = 400.0 * BYTES_PER_SEC_IN_GBPS;
            let took = Duration::from_micros(1);
            let learned = example.learned(theoretical, theoretical, 25_000, took);
            let off = learned / BYTES_PER_SEC_IN_GBPS - gbps;
            assert!((-1e-6..1e-6).contains(&off), "{name}: {learned}");
            assert_eq!(example.policy(), Policy::Documented, "{name}");
        }
        // Which goes in turn within the local tier: see `select`.
        assert_eq!(BASELINE.policy(), Policy::RoundRobin);
    }

    #[test]
    fn bandwidth_is_the_nominal_one_if_it_is_valid() {
        // (name, nominal in Gb/s, theoretical in Gb/s)
        let cases = [
            ("valid", 200, 200),
            ("just valid", 10, 10),
            ("too slow to be true", 9, 400),
            ("too fast to be true", 801, 400),
            ("unknown", 0, 400),
        ];
        for (name, nominal, expected) in cases {
            let got = CONFIG.theoretical(Rate::from_bits_per_sec(nominal * 1_000_000_000));
            let gbps = got / BYTES_PER_SEC_IN_GBPS;
            assert!(
                (gbps - f64::from(expected)).abs() < 0.01,
                "{name}: {gbps} Gb/s"
            );
        }
    }

    #[test]
    fn the_last_sample_is_nearly_all_and_is_clamped() {
        let with_weight = |bandwidth_learning_rate| DocumentedConfig {
            bandwidth_learning_rate,
            ..CONFIG
        };
        // (name, weight of the old, bytes seen in 1 us, bytes per us after 50,000)
        let cases = [
            ("default", 0.01, 25_000, 25_250.0),
            ("0: always the new one", 0.0, 25_000, 25_000.0),
            ("1: no learning", 1.0, 25_000, 50_000.0),
            ("not below a tenth", 0.01, 1, 5_000.0),
            ("not above ten times", 0.01, 100_000_000, 500_000.0),
        ];
        for (name, weight, bytes, expected) in cases {
            let got = with_weight(weight).learned(50e9, 50e9, bytes, Duration::from_micros(1));
            assert!((got / 1e6 - expected).abs() < 1e-3, "{name}: {got}");
        }
        let at_once = CONFIG.learned(50e9, 50e9, 1 << 40, Duration::ZERO);
        assert_eq!(at_once, 500e9, "no time is some time");
    }

    #[test]
    fn scores_are_predicted_times_with_a_penalty() {
        // (name, rail, score in nanoseconds)
        let cases = [
            ("empty", target(0, 0, 400, 0), 1310.72),
            ("queued", target(0, 0, 400, 3), 5242.88),
            ("half as fast", target(0, 0, 200, 0), 2621.44),
            ("tier 1", target(0, 1, 400, 0), 6553.6),
            ("tier 2", target(0, 2, 400, 0), 13_107.2),
            ("beyond the tiers", target(0, 9, 400, 0), 13_107.2),
        ];
        for (name, target, nanos) in cases {
            let score = target.score(&CONFIG, SLICE) * NANOS_PER_SEC;
            assert!((score - nanos).abs() < 1e-6, "{name}: {score}");
        }
    }

    #[test]
    fn requests_are_cut_into_64_kib_or_a_capped_number() {
        // (name, length, count, slice)
        let cases = [
            ("a byte", 1, 1, 65_536),
            ("one slice", 64 * KIB, 1, 65_536),
            ("a byte more is a slice of its own", 64 * KIB + 1, 2, 65_536),
            ("as many as there may be", 4096 * KIB, 64, 65_536),
            ("longer ones, in pages", 4096 * KIB + 1, 61, 69_632),
            ("64 MiB", 65_536 * KIB, 64, 1 << 20),
            (
                "more than works can say",
                u64::MAX,
                u16::MAX,
                u32::MAX - 4095,
            ),
            ("nothing", 0, 1, 65_536),
        ];
        for (name, length, count, slice) in cases {
            assert_eq!(cut(length, SLICE, 64), (count, slice), "{name}");
        }
    }

    #[test]
    fn shares_follow_the_number_of_slices() {
        let rails = |rails: &[Target]| rails.iter().copied().collect::<Targets>();
        let two = near(&[400, 100]);
        // (name, rails, KiB, shares)
        let cases = [
            ("one slice: all to the best", &two, 64, [1, 0]),
            (
                "the best may be the farther one",
                &rails(&[target(0, 0, 400, 5), target(1, 1, 400, 0)]),
                64,
                [0, 1],
            ),
            (
                "fewer than half the cap: all to the best",
                &two,
                31 * 64,
                [31, 0],
            ),
            (
                "half the cap: by weight, the rest to the best",
                &two,
                32 * 64,
                [26, 6],
            ),
            ("at the cap", &two, 64 * 64, [52, 12]),
            ("beyond the cap", &two, 64 * 1024, [52, 12]),
            (
                "only one rail",
                &rails(&[target(1, 2, 10, 0)]),
                4096,
                [0, 64],
            ),
            ("no rail", &rails(&[]), 4096, [0, 0]),
        ];
        for (name, rails, kib, shares) in cases {
            let mut selector = Selector::new(0);
            let got = selector.allocate(&CERTAIN, rails, kib * KIB, SLICE);
            assert_eq!(counts(&got, 2), shares, "{name}");
        }
    }

    #[test]
    fn every_hundredth_multi_path_call_goes_round() {
        let rails = near(&[400, 100]);
        let mut selector = Selector::new(0);
        let mut even = Vec::new();
        for call in 1..=300 {
            // Calls for few slices are not counted.
            selector.allocate(&CERTAIN, &rails, 64 * KIB, SLICE);
            let shares = selector.allocate(&CERTAIN, &rails, 4096 * KIB, SLICE);
            if counts(&shares, 2) == [32, 32] {
                even.push(call);
            }
        }
        assert_eq!(even, [100, 200, 300]);
    }

    #[test]
    fn jitter_breaks_ties_and_one_seed_gives_one_history() {
        let rails = near(&[400; 8]);
        let history = |seed| {
            let mut selector = Selector::new(seed);
            let best = (0..64).filter_map(|_| selector.best(&CONFIG, &rails, SLICE));
            best.collect::<Vec<_>>()
        };
        assert_eq!(history(1), history(1));
        assert_ne!(history(1), history(2));
        assert!((0..8).all(|rail| history(1).contains(&rail)));
        // What the document calls proportional rounds down, and the rest is the best one's.
        let mut shares = counts(
            &Selector::new(1).allocate(&CONFIG, &rails, 4096 * KIB, SLICE),
            8,
        );
        shares.sort_unstable();
        assert_eq!(shares.iter().sum::<u16>(), 64);
        assert!(shares[7] > 8, "{shares:?}");
    }

    #[test]
    fn debug_and_release_builds_and_all_platforms_agree_to_the_bit() {
        let mut rails = near(&[400, 200, 100, 25, 400]);
        let mut selector = Selector::new(42);
        let mut random = Random::new(42);
        let mut hash = 0_u64;
        for _ in 0..1_000 {
            for rail in &mut rails {
                let took = Duration::from_nanos(random.next_u64() % 50_000);
                rail.bandwidth = CONFIG.learned(rail.bandwidth, 50e9, 65_536, took);
                rail.inflight_bytes = random.next_u64() >> 44;
                hash = hash.rotate_left(5) ^ rail.bandwidth.to_bits();
            }
            let shares = selector.allocate(&CONFIG, &rails, random.next_u64() >> 40, SLICE);
            for position in 0..5 {
                hash = hash.rotate_left(5) ^ u64::from(shares.count(position));
            }
        }
        assert_eq!(hash, 2_127_860_279_340_845_085);
    }

    #[test]
    fn slices_longer_than_works_are_cut_again() {
        // (name, slice, longest work, slices for one, slice then)
        let cases = [
            ("fits", 1 << 20, 1 << 20, 1, 1 << 20),
            ("half", 1 << 20, 1 << 19, 2, 1 << 19),
            ("a byte too long", 1 << 20, (1 << 20) - 1, 2, 1 << 19),
            ("in pages", 3 * 4096, 2 * 4096 + 1, 2, 2 * 4096),
            ("less than a page", 8192, 1000, 9, 911),
            ("no work at all", 3, 0, 3, 1),
        ];
        for (name, slice_bytes, work_bytes_max, count, after) in cases {
            let mut shares = Shares {
                slice_bytes,
                ..Shares::NONE
            };
            shares.add(2, 1);
            shares.fit(work_bytes_max);
            assert_eq!(
                (shares.count(2), shares.slice_bytes),
                (count, after),
                "{name}"
            );
        }
    }

    quickcheck! {
        fn each_slice_has_exactly_one_rail(seed: u64, rails: Vec<(u8, u16, u16)>, lengths: Vec<u32>) -> bool {
            let rails: Targets = rails.iter().take(PLAN_RAILS_MAX).enumerate()
                .map(|(i, (tier, gbps, queued))| target(i, *tier, u32::from(*gbps) + 1, u64::from(*queued)))
                .collect();
            let mut selector = Selector::new(seed);
            lengths.iter().all(|length| {
                let length = u64::from(*length) * 32 + 1;
                let shares = selector.allocate(&CONFIG, &rails, length, SLICE);
                let count: u64 = (0..PLAN_RAILS_MAX).map(|i| u64::from(shares.count(i))).sum();
                let bytes = count * u64::from(shares.slice_bytes);
                rails.is_empty() && shares.is_empty()
                    || count <= 64 && bytes >= length && bytes - length < u64::from(shares.slice_bytes)
            })
        }

        fn no_configuration_loses_a_slice(penalty: f64, jitter: f64, epsilon: f64, bandwidth: f64) -> bool {
            // Nonsense in, a share for somebody out.
            let config = DocumentedConfig {
                numa_penalties: [penalty; 3],
                score_jitter_range: jitter,
                score_epsilon: epsilon,
                ..CONFIG
            };
            let rails = (0..3).map(|i| Target { bandwidth, ..target(i, 0, 1, 1) }).collect();
            let shares = Selector::new(7).allocate(&config, &rails, 4096 * KIB, SLICE);
            counts(&shares, 3).iter().sum::<u16>() == 64
        }

        fn learned_bandwidth_stays_within_its_clamp(samples: Vec<(u64, u32)>) -> bool {
            samples.iter().scan(50e9, |old, (bytes, nanos)| {
                *old = CONFIG.learned(*old, 50e9, *bytes, Duration::from_nanos(u64::from(*nanos)));
                Some(*old)
            }).all(|bandwidth| (5e9..=500e9).contains(&bandwidth))
        }
    }
}
