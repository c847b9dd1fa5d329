//! How a figure is spread over many runs: what one seed's luck is, and what is not.

use serde::Serialize;

/// How some figure is spread over runs.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Spread {
    /// How many have it.
    pub count: usize,
    /// Half of them are not above this.
    pub median: f64,
    /// One in twenty is not above this.
    pub p5: f64,
    /// One in twenty is above this.
    pub p95: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

impl Spread {
    /// Of these values.
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_unstable_by(f64::total_cmp);
        let at = |per_cent: usize| {
            let rank = (values.len() * per_cent).div_ceil(100);
            values.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
        };
        Self {
            count: values.len(),
            median: at(50),
            p5: at(5),
            p95: at(95),
            least: at(0),
            most: at(100),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_of_values_that_occurred() {
        let spread = Spread::of((1..=100).rev().map(f64::from));
        let parts = [
            spread.least,
            spread.p5,
            spread.median,
            spread.p95,
            spread.most,
        ];
        assert_eq!((spread.count, parts), (100, [1.0, 5.0, 50.0, 95.0, 100.0]));
        assert_eq!(Spread::of(std::iter::empty()), Spread::default());
    }
}
