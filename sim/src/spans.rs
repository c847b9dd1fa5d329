//! Sums over equal spans of time, as wide as it takes for them to be few.

/// Never more spans than this.
const SPANS_MAX: usize = 800;
/// The width of the first ones.
const WIDTH_MIN_NS: u64 = 1_000;

/// Sums of several columns in each span, from the start of time on.
#[derive(Clone, Debug)]
pub(crate) struct Spans {
    width_ns: u64,
    columns: usize,
    rows: Vec<Vec<u64>>,
}

impl Default for Spans {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Spans {
    pub(crate) fn new(columns: usize) -> Self {
        Self {
            width_ns: WIDTH_MIN_NS,
            columns,
            rows: Vec::new(),
        }
    }

    /// How wide they are by now.
    pub(crate) fn width_ns(&self) -> u64 {
        self.width_ns
    }

    /// The spans from the one on that holds `from_ns`.
    pub(crate) fn rows(&self, from_ns: u64) -> &[Vec<u64>] {
        let first = (from_ns / self.width_ns) as usize;
        self.rows.get(first..).unwrap_or_default()
    }

    /// Levels, one for each column, that were so all the time from `from_ns` to `to_ns`: each adds its integral.
    pub(crate) fn hold(&mut self, from_ns: u64, to_ns: u64, levels: &[u64]) {
        // So that spans are as wide as they will be.
        self.row(to_ns);
        let mut at = from_ns;
        while at < to_ns {
            let end = to_ns.min((at / self.width_ns + 1) * self.width_ns);
            for (sum, level) in self.row(at).iter_mut().zip(levels) {
                *sum += level * (end - at);
            }
            at = end;
        }
    }

    /// The span that holds a moment.
    fn row(&mut self, at_ns: u64) -> &mut [u64] {
        while at_ns / self.width_ns >= SPANS_MAX as u64 {
            self.width_ns *= 2;
            let pairs = self.rows.chunks(2).map(|pair| {
                let sum = |column: usize| pair.iter().filter_map(|row| row.get(column)).sum();
                (0..self.columns).map(sum).collect()
            });
            self.rows = pairs.collect();
        }
        let index = (at_ns / self.width_ns) as usize;
        if self.rows.len() <= index {
            self.rows.resize(index + 1, vec![0; self.columns]);
        }
        &mut self.rows[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_stay_the_same_while_spans_become_wider() {
        let mut spans = Spans::new(2);
        spans.hold(500, 2_500, &[3, 1]);
        assert_eq!(spans.rows(0), [[1_500, 500], [3_000, 1_000], [1_500, 500]]);
        spans.hold(0, 10_000_000, &[1, 0]);
        assert!(spans.rows(0).len() <= SPANS_MAX && spans.width_ns() == 16_000);
        let sum = |column: usize| spans.rows(0).iter().map(|row| row[column]).sum::<u64>();
        assert_eq!((sum(0), sum(1)), (10_006_000, 2_000));
        assert_eq!(spans.rows(160_000).len(), spans.rows(0).len() - 10);
    }
}
