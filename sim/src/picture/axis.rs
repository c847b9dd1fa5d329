//! Axes: from values to pixels, and which values get a label.

/// From values to pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    from: f64,
    to: f64,
    pixels: (f64, f64),
    logarithmic: bool,
}

impl Axis {
    /// From these values to these pixels.
    pub(super) fn linear(from: f64, to: f64, pixels: (f64, f64)) -> Self {
        let to = if to > from { to } else { from + 1.0 };
        Self {
            from,
            to,
            pixels,
            logarithmic: false,
        }
    }

    /// The same by logarithm; values are above 0.
    pub(super) fn logarithmic(from: f64, to: f64, pixels: (f64, f64)) -> Self {
        let from = from.max(1e-9);
        let to = if to > from { to } else { from * 10.0 };
        Self {
            from,
            to,
            pixels,
            logarithmic: true,
        }
    }

    /// The pixel of a value; values outside are at the edge.
    pub(super) fn at(&self, value: f64) -> f64 {
        let value = value.clamp(self.from, self.to);
        let part = match self.logarithmic {
            true => libm::log10(value / self.from) / libm::log10(self.to / self.from),
            false => (value - self.from) / (self.to - self.from),
        };
        self.pixels.0 + part * (self.pixels.1 - self.pixels.0)
    }

    /// Whether all of it is below a value.
    pub(super) fn is_below(&self, value: f64) -> bool {
        value > self.to
    }

    /// Round values, about so many.
    pub(super) fn ticks(&self, about: usize) -> Vec<f64> {
        if self.logarithmic {
            return self.decades();
        }
        let step = round_step((self.to - self.from) / about.max(1) as f64);
        let first = libm::ceil(self.from / step - 1e-9) as i64;
        (first..)
            .map(|index| index as f64 * step)
            .take_while(|value| *value <= self.to * (1.0 + 1e-9))
            .collect()
    }

    /// 1, 2 and 5 of each power of ten; with more than four powers the powers only.
    fn decades(&self) -> Vec<f64> {
        let (low, high) = (libm::log10(self.from), libm::log10(self.to));
        let factors: &[f64] = if high - low > 3.0 {
            &[1.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        (libm::floor(low) as i32..=libm::ceil(high) as i32)
            .flat_map(|power| {
                factors
                    .iter()
                    .map(move |factor| factor * libm::pow(10.0, f64::from(power)))
            })
            .filter(|value| (self.from * 0.999..=self.to * 1.001).contains(value))
            .collect()
    }
}

/// A limit is part of a chart up to so many times what was seen.
const FAR: f64 = 2.0;

/// The highest value of a chart: of what was seen, and of the limit unless it is so far above that little could be seen
/// below it.
pub(super) fn highest_shown(seen: f64, limit: f64) -> f64 {
    if limit <= FAR * seen {
        seen.max(limit)
    } else {
        seen
    }
}

/// What is written beside the line of a limit, which is at the edge if the limit is above it.
pub(super) fn limit_words(axis: &Axis, limit: f64, unit: &str) -> String {
    let above = if limit > axis.to {
        ", above the chart"
    } else {
        ""
    };
    format!("limit {} {unit}{above}", number(limit))
}

/// The next of 1, 2 and 5 times a power of ten.
fn round_step(least: f64) -> f64 {
    let power = libm::pow(10.0, libm::floor(libm::log10(least.max(1e-12))));
    let factor = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|factor| factor * power >= least * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

/// A number with as many places as it needs.
pub(super) fn number(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value.abs() >= 100.0 => format!("{value:.0}"),
        value if value.abs() >= 10.0 => trimmed(format!("{value:.1}")),
        value if value.abs() >= 1.0 => trimmed(format!("{value:.2}")),
        value => trimmed(format!("{value:.4}")),
    }
}

fn trimmed(text: String) -> String {
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A time in microseconds with its unit.
pub(super) fn time_us(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{} s", number(us / 1e6)),
        us if us >= 1e3 => format!("{} ms", number(us / 1e3)),
        us => format!("{} µs", number(us)),
    }
}

/// The unit in which a span of time reads well: its name, and its nanoseconds.
pub(super) fn time_unit(span_ns: u64) -> (&'static str, f64) {
    match span_ns {
        0..5_000_000_000 => ("ms", 1e6),
        5_000_000_000..600_000_000_000 => ("s", 1e9),
        600_000_000_000..18_000_000_000_000 => ("min", 60e9),
        _ => ("h", 3_600e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        // (from, to, about, ticks)
        let cases = [
            (0.0, 100.0, 5, vec![0.0, 20.0, 40.0, 60.0, 80.0, 100.0]),
            (0.0, 0.7, 4, vec![0.0, 0.2, 0.4, 0.6]),
            (30.0, 47.0, 4, vec![30.0, 35.0, 40.0, 45.0]),
        ];
        for (from, to, about, ticks) in cases {
            let got = Axis::linear(from, to, (0.0, 1.0)).ticks(about);
            let close = got
                .iter()
                .zip(&ticks)
                .all(|(got, tick)| (got - tick).abs() < 1e-9);
            assert!(close && got.len() == ticks.len(), "{from} to {to}: {got:?}");
        }
        let decades = Axis::logarithmic(3.0, 60.0, (0.0, 1.0)).ticks(0);
        assert_eq!(decades, [5.0, 10.0, 20.0, 50.0]);
    }

    #[test]
    fn values_are_placed_between_the_pixels() {
        let axis = Axis::linear(10.0, 20.0, (100.0, 0.0));
        assert_eq!(
            [5.0, 10.0, 15.0, 99.0].map(|value| axis.at(value)),
            [100.0, 100.0, 50.0, 0.0]
        );
        let axis = Axis::logarithmic(1.0, 100.0, (0.0, 200.0));
        assert_eq!(
            [0.1, 10.0, 1e9].map(|value| axis.at(value)),
            [0.0, 100.0, 200.0]
        );
    }

    #[test]
    fn a_limit_far_above_what_was_seen_does_not_flatten_it() {
        // (seen, limit, the highest value, what is written)
        let cases = [
            (40.0, 50.0, 50.0, "limit 50 GB/s"),
            (25.0, 50.0, 50.0, "limit 50 GB/s"),
            (2.0, 50.0, 2.0, "limit 50 GB/s, above the chart"),
            (60.0, 50.0, 60.0, "limit 50 GB/s"),
            (3.0, 0.0, 3.0, "limit 0 GB/s"),
        ];
        for (seen, limit, highest, words) in cases {
            assert_eq!(highest_shown(seen, limit), highest, "{seen} of {limit}");
            let axis = Axis::linear(0.0, highest, (1.0, 0.0));
            assert_eq!(limit_words(&axis, limit, "GB/s"), words);
        }
    }

    #[test]
    fn numbers_have_the_places_they_need() {
        let texts = [0.0, 0.2, 1.25, 12.0, 12.34, 1234.5].map(number);
        assert_eq!(texts, ["0", "0.2", "1.25", "12", "12.3", "1234"]);
        assert_eq!(
            [950.0, 1_500.0, 2e6].map(time_us),
            ["950 µs", "1.5 ms", "2 s"]
        );
    }
}
