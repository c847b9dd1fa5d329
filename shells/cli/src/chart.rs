//! Small charts of one line each, for terminals.

const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// One bar per column: the mean of the values that fall into it, relative to `max`. A value above zero is
/// never drawn as nothing.
pub(crate) fn bars(values: &[f64], max: f64, width: usize) -> String {
    columns(values.len(), width)
        .map(|range| {
            let mean = values[range.clone()].iter().sum::<f64>() / range.len() as f64;
            bar(mean, max)
        })
        .collect()
}

fn bar(value: f64, max: f64) -> char {
    if value <= 0.0 || max <= 0.0 {
        return LEVELS[0];
    }
    let top = LEVELS.len() - 1;
    let level = (value / max * top as f64).round() as usize;
    LEVELS[level.clamp(1, top)]
}

/// The column that the value at `index` of `values` falls into.
pub(crate) fn column(index: usize, values: usize, width: usize) -> usize {
    columns(values, width)
        .position(|range| range.contains(&index))
        .unwrap_or(0)
}

/// Which values fall into which column: at most `width` columns, none of them empty.
fn columns(values: usize, width: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let count = values.min(width);
    (0..count).map(move |i| (i * values / count)..((i + 1) * values / count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_relative_to_the_maximum() {
        assert_eq!(bars(&[0.0, 0.001, 0.5, 1.0, 7.0], 1.0, 10), " ▁▄██");
        assert_eq!(bars(&[], 1.0, 10), "");
        assert_eq!(bars(&[0.0, 0.0], 0.0, 10), "  ");
    }

    #[test]
    fn many_values_share_columns() {
        assert_eq!(bars(&[1.0, 0.0, 1.0, 1.0], 1.0, 2), "▄█");
        assert_eq!(column(0, 100, 10), 0);
        assert_eq!(column(99, 100, 10), 9);
        assert_eq!(column(50, 100, 10), 5);
        assert_eq!(column(3, 4, 10), 3);
    }
}
