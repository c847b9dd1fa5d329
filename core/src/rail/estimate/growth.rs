//! By how much a rail's window is larger than planned, because trying has shown that it brings more.
//!
//! A window that is shorter than the delay looks from inside like a slow rail: what passes is the window by the delay, and
//! the latency is the window by what passes. Only another window tells the two apart. So it is made larger now and then
//! while slices fill it, and stays so if more passes; otherwise it goes back, and the next try is later.
//!
//! Senders that share a bottleneck gain by larger windows too, each at the cost of the others. So a try needs a sign that
//! the rail waits for delays rather than for a queue: slices take hardly longer than one did that met an empty rail, or
//! most are seen at the instant at which another one is, which no queue does. Without a sign tries are rare, and have to
//! bring nearly what they add; but not on a rail that is new and passes far less than was told, until a try fails.

use super::jitter::{Jitter, took};
use super::{Delay, Observation};
use crate::time::{Duration, Instant};
use crate::units::Rate;

/// The unit of a gain.
const UNIT: u32 = 16;
/// Far above what 100 ms need where three slices take 10 us.
const GAIN_MAX: u32 = UNIT << 16;
/// Spans between tries: after one that brought more, and at most.
const WAIT_MIN: u16 = 2;
const WAIT_MAX: u16 = 64;
/// The same for tries without a sign.
const RARE_MIN: u16 = 8;
const RARE_MAX: u16 = 512;
/// Windows that are seen at once are made larger so often in a row though nothing is gained.
const VAIN_MAX: u8 = 2;
/// A span is at least so many slices.
const SPAN_SLICES: u64 = 8;
/// More passes, in parts of sixteen: with a sign, in a first try without one, and in a later one.
const MORE: u64 = 20;
const MORE_FIRST: u64 = 26;
const MORE_RARE: u64 = 31;
/// What passes is far below what was told if it is less than one part in so many.
const FAR_BELOW: u64 = 4;
/// Slices that are seen together are a sign in windows of up to so many times what came at once: of several workers each
/// sees a part.
const TRAINS: u64 = 16;

/// What the current span is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
enum Step {
    /// Not yet begun.
    New,
    /// To know what passes without a try.
    Rest,
    /// What is seen was posted before the window grew.
    Settle,
    /// What passes with the try.
    Measure,
}

/// How much larger than planned the window is, and the try under way.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Growth {
    /// Works share completions, so that those seen together say nothing.
    pub(super) shares: bool,
    gain: u32,
    /// The gain to go back to.
    kept: u32,
    step: Step,
    /// No try has failed yet.
    is_new: bool,
    /// The try under way had a sign.
    has_sign: bool,
    /// By how much it made the window larger.
    factor: u32,
    /// Spans until the next try.
    left: u16,
    wait: u16,
    /// Spans since the last rare try, and how many there are to be.
    spans: u16,
    rare: u16,
    /// What passed without the try.
    reference: Rate,
    /// What passed when a window that was seen at once was last made larger with success, the gain then, and how often in a
    /// row it was without. Spans until the next time, and after the next failure.
    at_once_rate: Rate,
    useful: u32,
    vain: u8,
    tried_bytes: u32,
    paused: u16,
    pause: u16,
    window_bytes: u32,
    /// Slices before which so much was in flight had a full window.
    full_bytes: u32,
    /// The span under way: since when, and how many bytes it is to see.
    since: Instant,
    goal_bytes: u32,
    /// Since when slices are of the round trip under way, and how many the span is still to have.
    round_since: Instant,
    rounds: u8,
    /// Of the last instant: all, its first slice, and whether one of them had a full window.
    now_bytes: u32,
    first_bytes: u32,
    now_is_full: bool,
    /// Of the span: all, those that had a full window, those seen behind another at the same instant, and the most seen
    /// at one instant.
    seen_bytes: u32,
    limited_bytes: u32,
    hidden_bytes: u32,
    train_bytes: u32,
    at_once_bytes: u32,
    /// Half a window.
    large_bytes: u32,
    /// The least time that a slice took which met an empty rail; the longest there is: none did.
    empty_took: Delay,
    pub(super) jitter: Jitter,
    /// In the last span the window was full, so that it shows how fast the rail is.
    is_limited: bool,
}

impl Growth {
    const NONE: Self = Self {
        shares: false,
        gain: UNIT,
        kept: UNIT,
        step: Step::New,
        is_new: true,
        has_sign: false,
        factor: 2,
        left: 1,
        wait: WAIT_MIN,
        spans: 0,
        rare: RARE_MIN,
        reference: Rate::SLOWEST,
        at_once_rate: Rate::SLOWEST,
        useful: UNIT,
        vain: 0,
        tried_bytes: 0,
        paused: 0,
        pause: WAIT_MIN,
        window_bytes: 0,
        full_bytes: 0,
        since: Instant::ZERO,
        goal_bytes: 0,
        round_since: Instant::ZERO,
        rounds: 0,
        now_bytes: 0,
        first_bytes: 0,
        now_is_full: false,
        seen_bytes: 0,
        limited_bytes: 0,
        hidden_bytes: 0,
        train_bytes: 0,
        at_once_bytes: 0,
        large_bytes: 0,
        empty_took: Delay::MAX,
        jitter: Jitter::NONE,
        is_limited: false,
    };

    /// None yet. `shares`: several works share a completion.
    pub(super) fn new(shares: bool) -> Self {
        Self {
            shares,
            ..Self::NONE
        }
    }

    /// After an outage: the delay is what it was.
    pub(super) fn restarted(&self) -> Self {
        Self {
            gain: self.kept,
            kept: self.kept,
            ..Self::new(self.shares)
        }
    }

    /// How large a window of so many bytes as planned is.
    pub(super) fn grown(&self, planned_bytes: u64) -> u64 {
        planned_bytes.saturating_mul(u64::from(self.gain)) / u64::from(UNIT)
    }

    /// The least time that a slice took which met an empty rail; none if none did.
    pub(super) fn empty_took(&self) -> Duration {
        match self.empty_took {
            Delay::MAX => Duration::ZERO,
            took => took.span(),
        }
    }

    /// Whether the window was full lately.
    pub(super) fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// From now on slices are posted into such a window.
    pub(super) fn handle_window(&mut self, bytes: u64) {
        self.window_bytes = small(bytes);
    }

    /// Learns from completions; the ones before were seen at `last_seen`. The rail was told to be so fast.
    #[inline(always)] // part of `Estimate::handle_observation`
    pub(super) fn handle_observation(
        &mut self,
        seen: &Observation,
        last_seen: Instant,
        told: Rate,
    ) {
        let (first, last) = (&seen.first, &seen.last);
        if first.seen_at > last_seen {
            let gap = first.seen_at.since(last_seen);
            self.jitter.handle_gap(seen.bytes, gap);
            self.end_instant(last_seen, last.bytes, told);
            self.first_bytes = small(first.bytes);
        }
        if first.ahead_bytes == 0 {
            // It was idle for so long, and no window is to blame.
            self.since = self.since + first.posted_at.since(last_seen);
            self.empty_took = self.empty_took.min(took(first));
        }
        if first.posted_at >= self.round_since {
            self.round_since = first.seen_at;
            self.rounds = self.rounds.saturating_sub(1);
        }
        self.now_bytes = self.now_bytes.saturating_add(small(seen.bytes));
        // With the next slice behind it, would it be more than the window?
        let reach = last.ahead_bytes.saturating_add(2 * last.bytes);
        let is_full = reach >= u64::from(self.full_bytes);
        self.now_is_full |= is_full;
        if is_full {
            // Works that share a completion wait for the last of them.
            let longest = if self.shares { last } else { first };
            self.jitter.handle_full(longest, last, seen.count);
        }
    }

    /// A look at an empty rail took so long. It may have been shorter than a slice, so it only counts as long as none has met one.
    pub(super) fn handle_probe(&mut self, took: Duration) {
        if self.empty_took == Delay::MAX {
            self.empty_took = Delay::of(took);
        }
    }

    /// All that was seen at one instant has been counted.
    #[inline(always)] // see `Self::handle_observation`
    fn end_instant(&mut self, now: Instant, slice: u64, told: Rate) {
        let bytes = self.now_bytes;
        self.now_bytes = 0;
        self.seen_bytes = self.seen_bytes.saturating_add(bytes);
        if self.now_is_full {
            self.limited_bytes = self.limited_bytes.saturating_add(bytes);
        }
        self.now_is_full = false;
        if bytes > self.first_bytes && !self.shares {
            let hidden = bytes - self.first_bytes;
            self.hidden_bytes = self.hidden_bytes.saturating_add(hidden);
            self.train_bytes = self.train_bytes.max(bytes);
            if bytes >= self.large_bytes {
                self.at_once_bytes = self.at_once_bytes.saturating_add(bytes);
            }
        }
        if self.rounds == 0 && self.seen_bytes >= self.goal_bytes {
            self.end_span(now, slice, told);
        }
    }

    /// Enough has been seen to tell how much passes.
    #[cold]
    fn end_span(&mut self, now: Instant, slice: u64, told: Rate) {
        debug_assert!(
            self.limited_bytes
                .max(self.hidden_bytes)
                .max(self.at_once_bytes)
                <= self.seen_bytes,
            "of {} bytes {} had a full window, {} came behind others and {} at once",
            self.seen_bytes,
            self.limited_bytes,
            self.hidden_bytes,
            self.at_once_bytes
        );
        let before = self.gain;
        let rate = Rate::from_bytes_in(self.seen_bytes.into(), now.since(self.since));
        let is_limited = self.limited_bytes >= self.seen_bytes / 4;
        let widens = self.comes_at_once() && self.may_widen();
        self.is_limited = is_limited;
        // A lower number is a faster rail.
        let is_far = self.is_new && rate.scaled(FAR_BELOW, 1).to_bits() > told.to_bits();
        self.jitter.handle_span(rate);
        match self.step {
            Step::New => self.step = Step::Rest,
            // The load is to blame for what passed.
            _ if !is_limited => self.go_back(self.kept),
            _ if widens => self.widen_at_once(rate, slice),
            Step::Rest => self.rested(rate, slice, is_far),
            Step::Settle => self.step = Step::Measure,
            Step::Measure => self.measured(rate, slice, is_far),
        }
        self.begin_span(now, slice, before);
    }

    fn begin_span(&mut self, now: Instant, slice: u64, before: u32) {
        debug_assert!(
            self.kept >= UNIT && self.kept <= self.gain && self.gain <= GAIN_MAX,
            "gains of {} and {}",
            self.kept,
            self.gain
        );
        debug_assert!(
            self.wait.max(self.pause) <= WAIT_MAX && self.rare <= RARE_MAX && self.vain <= VAIN_MAX,
            "the next try is {} spans away, the next rare one {}",
            self.wait.max(self.pause),
            self.rare
        );
        let in_force = u64::from(self.window_bytes);
        let window = in_force * u64::from(self.gain) / u64::from(before.max(1));
        self.full_bytes = small(in_force.min(window) / 4 * 3);
        self.rounds = match self.step {
            Step::Rest | Step::Measure if !self.is_new => 2,
            _ => 1,
        };
        self.goal_bytes = small(SPAN_SLICES.saturating_mul(slice));
        self.round_since = now;
        self.spans = self.spans.saturating_add(1);
        self.since = now;
        self.seen_bytes = 0;
        self.limited_bytes = 0;
        self.hidden_bytes = 0;
        self.train_bytes = 0;
        self.at_once_bytes = 0;
        self.large_bytes = small(window / 2);
    }

    /// Whether nearly all is seen half a window and more at one instant, so that the rail has run dry.
    fn comes_at_once(&self) -> bool {
        self.at_once_bytes >= self.seen_bytes / 4 * 3
    }

    /// Such a window is too small, unless completions are seen together for another reason: then a larger one brings nothing,
    /// more than twice in a row, and the next time is later.
    fn widen_at_once(&mut self, rate: Rate, slice: u64) {
        if rate.scaled(8, 9).to_bits() < self.at_once_rate.to_bits() {
            (self.at_once_rate, self.useful, self.vain) = (rate, self.gain, 0);
            (self.pause, self.tried_bytes) = (WAIT_MIN, self.window_bytes);
        } else if self.window_bytes / 3 * 2 > self.tried_bytes {
            // What is planned has not become smaller meanwhile.
            (self.vain, self.tried_bytes) = (self.vain + 1, self.window_bytes);
        }
        if self.vain > VAIN_MAX {
            (self.at_once_rate, self.vain) = (rate, 0);
            self.pause = (self.pause * 2).min(WAIT_MAX);
            self.paused = self.pause;
            return self.go_back(self.useful);
        }
        let all = u64::from(self.train_bytes) + slice >= u64::from(self.window_bytes);
        self.gain = self.raised(if all && self.vain == 0 { 4 } else { 2 });
        self.wait = WAIT_MIN;
        self.go_back(self.gain);
    }

    /// Whether a window that is seen at once may be made larger for that now.
    fn may_widen(&mut self) -> bool {
        self.paused = self.paused.saturating_sub(1);
        self.paused == 0
    }

    fn rested(&mut self, rate: Rate, slice: u64, is_far: bool) {
        self.reference = rate;
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return;
        }
        self.has_sign = self.sees_sign(rate, slice);
        if self.has_sign || is_far || self.spans >= self.rare {
            self.spans = 0;
            self.begin_try(2);
        } else {
            self.go_back(self.given_back());
        }
    }

    fn begin_try(&mut self, factor: u32) {
        self.factor = factor;
        self.kept = self.gain;
        self.gain = self.raised(factor);
        self.step = Step::Settle;
    }

    fn measured(&mut self, rate: Rate, slice: u64, is_far: bool) {
        let more = match (self.has_sign, self.is_new) {
            (true, _) => MORE,
            (false, true) => MORE_FIRST,
            (false, false) => MORE_RARE,
        };
        // A lower number is a faster rail.
        if rate.scaled(16, more).to_bits() < self.reference.to_bits() {
            if !self.has_sign {
                self.rare = RARE_MIN;
            }
            self.wait = WAIT_MIN;
            let is_most =
                rate.scaled(4, 3 * u64::from(self.factor)).to_bits() < self.reference.to_bits();
            self.reference = rate;
            self.has_sign = self.sees_sign(rate, slice);
            if self.has_sign || is_far {
                self.begin_try(if is_most && self.has_sign { 4 } else { 2 });
            } else {
                self.go_back(self.gain);
            }
            return;
        }
        self.is_new = false;
        self.wait = (self.wait * 2).min(WAIT_MAX);
        if !self.has_sign {
            self.rare = (self.rare * 2).min(RARE_MAX);
        }
        self.gain = self.kept;
        let gain = if self.has_sign {
            // There was no queue before, so what it did bring was lacking.
            self.kept_by(rate)
        } else if self.wait > 4 * WAIT_MIN {
            self.given_back()
        } else {
            self.kept
        };
        self.go_back(gain);
    }

    /// The gain of before the try, by as much larger as passed more.
    fn kept_by(&self, rate: Rate) -> u32 {
        let (before, after) = (self.reference.to_bits(), rate.to_bits());
        let more = u64::from(self.kept).saturating_mul(before) / after.max(1);
        small(more).max(self.kept).min(GAIN_MAX)
    }

    fn go_back(&mut self, gain: u32) {
        debug_assert!((UNIT..=GAIN_MAX).contains(&gain), "a gain of {gain}");
        self.gain = gain;
        self.kept = gain;
        self.left = self.wait;
        self.step = Step::Rest;
    }

    /// The gain that is left where nothing says that it is needed: a sixteenth less than whole windows as planned, or half of
    /// what is more than one where that is less than another.
    fn given_back(&self) -> u32 {
        match self.gain - UNIT {
            little @ ..UNIT => self.gain - little.div_ceil(2),
            _ => self.gain / 16 * 15,
        }
    }

    fn raised(&self, factor: u32) -> u32 {
        self.gain.saturating_mul(factor).min(GAIN_MAX)
    }

    /// Whether nearly all slices are seen at the instant at which another one is.
    fn is_blind(&self) -> bool {
        self.hidden_bytes >= self.seen_bytes / 4 * 3
    }

    fn sees_sign(&self, rate: Rate, slice: u64) -> bool {
        let window = u64::from(self.window_bytes);
        let took = rate.time_for(window.saturating_sub(slice));
        let at_once = self.is_blind() && window < TRAINS * u64::from(self.train_bytes);
        let least = self.empty_took.span();
        at_once || self.empty_took != Delay::MAX && took < least + least.divided_by(4)
    }
}

/// 4 GiB and more are the same.
fn small(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_given_back_at_a_time() {
        // From 31 down it had been all of it at once.
        for (gain, left) in [
            (UNIT, 16),
            (17, 16),
            (20, 18),
            (31, 23),
            (32, 30),
            (160, 150),
        ] {
            let growth = Growth {
                gain,
                ..Growth::NONE
            };
            assert_eq!(growth.given_back(), left, "of {gain}");
        }
    }
}
