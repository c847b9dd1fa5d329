//! Sizes, counts, durations and doubling ranges, as they are written on the command line.

use std::time::Duration;

/// Values from a first to a last one, each twice the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Doubling {
    first: u64,
    last: u64,
}

impl Doubling {
    /// The values. The last one only if doubling meets it.
    pub(crate) fn values(self) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(self.first), |value| value.checked_mul(2))
            .take_while(move |value| *value <= self.last)
    }
}

/// `SIZE`: at least one byte, with an optional suffix; all suffixes are powers of 1024.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let wrong = || format!("\"{text}\" is not a size; write it like 4096, 64KiB, 4K, 8M or 1GiB");
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err(wrong()),
    };
    let bytes = number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("\"{text}\" is too large; sizes end below 2^64 bytes"))?;
    if bytes == 0 {
        return Err(format!("\"{text}\" is no byte at all; give at least 1"));
    }
    Ok(bytes)
}

/// `SIZE` or `SIZE..SIZE`.
pub(crate) fn size_range(text: &str) -> Result<Doubling, String> {
    range(text, size)
}

/// `N` or `N..N`: how many requests make a batch.
pub(crate) fn count_range(text: &str) -> Result<Doubling, String> {
    range(text, |text| count(text, COUNT_MAX))
}

/// Requests of one batch, at most: far above what any engine takes at once.
const COUNT_MAX: u64 = 1 << 20;

fn range(text: &str, parse: impl Fn(&str) -> Result<u64, String>) -> Result<Doubling, String> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    let (first, last) = (parse(from)?, parse(to)?);
    if first > last {
        return Err(format!(
            "\"{text}\" runs backwards; write the smaller one first, {to}..{from}"
        ));
    }
    Ok(Doubling { first, last })
}

/// A whole number from 1 to `max`.
pub(crate) fn count(text: &str, max: u64) -> Result<u64, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=max).contains(count))
        .ok_or_else(|| format!("\"{text}\" is not a whole number from 1 to {max}"))
}

/// A number of seconds, fractions allowed, above 0 and at most a day.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    const DAY: f64 = 86_400.0;
    text.parse()
        .ok()
        .filter(|seconds| *seconds > 0.0 && *seconds <= DAY)
        .map(Duration::from_secs_f64)
        .ok_or_else(|| {
            format!(
                "\"{text}\" is not a number of seconds above 0 and up to {DAY}, such as 5 or 0.5"
            )
        })
}

/// A whole number of milliseconds, from 1 to an hour.
pub(crate) fn milliseconds(text: &str) -> Result<Duration, String> {
    count(text, 3_600_000).map(Duration::from_millis)
}

/// A size for people: exact, with the largest suffix that leaves a whole number.
pub(crate) fn show_size(bytes: u64) -> String {
    let suffixes = ["", "KiB", "MiB", "GiB", "TiB"];
    let fits = (0..suffixes.len())
        .rev()
        .find(|i| bytes.is_multiple_of(1 << (10 * i)))
        .unwrap_or(0);
    format!("{}{}", bytes >> (10 * fits), suffixes[fits])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        // (written, bytes)
        let cases = [
            ("1", 1),
            ("4096", 4096),
            ("64KiB", 65536),
            ("4K", 4096),
            ("4k", 4096),
            ("8M", 8 << 20),
            ("1GiB", 1 << 30),
            ("2T", 2 << 40),
        ];
        for (text, bytes) in cases {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn wrong_sizes_are_named_with_what_would_be_right() {
        let wrong = [
            "",
            "K",
            "0",
            "0K",
            "-1",
            "+1",
            "1.5M",
            "64KB",
            "64 KiB",
            "1e6",
            "x",
            "4096Q",
            "99999999999999999999",
            "99999999999T",
            "４K",
        ];
        for text in wrong {
            let error = size(text).unwrap_err();
            assert!(error.contains(&format!("\"{text}\"")), "{error}");
        }
    }

    #[test]
    fn ranges_double() {
        // (written, values)
        let cases: [(&str, &[u64]); 5] = [
            ("4K", &[4096]),
            ("4K..4K", &[4096]),
            ("1K..8K", &[1024, 2048, 4096, 8192]),
            ("1..5", &[1, 2, 4]),
            ("8388608T..9388608T", &[1 << 63]),
        ];
        for (text, values) in cases {
            let got: Vec<u64> = size_range(text).unwrap().values().collect();
            assert_eq!(got, values, "{text}");
        }
    }

    #[test]
    fn wrong_ranges_are_errors() {
        for text in ["8K..4K", "..", "4K..", "..4K", "4K...8K", "1..2..4"] {
            assert!(size_range(text).is_err(), "{text}");
        }
        for text in ["0", "0..4", "4..1", "1K", "-1", "2000000", "1..2000000"] {
            assert!(count_range(text).is_err(), "{text}");
        }
    }

    #[test]
    fn spans_of_time_are_bounded() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "nan", "inf", "1e30", "", "5s"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        assert_eq!(milliseconds("100"), Ok(Duration::from_millis(100)));
        for text in ["0", "-1", "1.5", "3600001", "100ms"] {
            assert!(milliseconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_exactly() {
        // (bytes, shown)
        let cases = [
            (1, "1"),
            (1000, "1000"),
            (4096, "4KiB"),
            (4097, "4097"),
            (1 << 30, "1GiB"),
            (3 << 40, "3TiB"),
        ];
        for (bytes, shown) in cases {
            assert_eq!(show_size(bytes), shown);
            assert_eq!(size(shown), Ok(bytes));
        }
    }
}
