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

/// `SIZE`: at least one byte, see [`bytes`].
pub(crate) fn size(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        0 => Err(format!("\"{text}\" is no size here; give at least 1 byte")),
        bytes => Ok(bytes),
    }
}

/// A number of bytes, with an optional suffix: `K` or `KiB` is 1024 and `KB` is 1000, and so are `M`, `G` and `T`. It may
/// have decimals, if that is a whole number of bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("\"{text}\" is not a size; write it like 4096, 64KiB, 4K, 1.5GiB or 8GB");
    let end = text
        .bytes()
        .take_while(|b| b.is_ascii_digit() || *b == b'.');
    let (number, suffix) = text.split_at(end.count());
    let suffix = suffix.to_ascii_lowercase();
    let (power, kind) = match suffix.split_at_checked(1) {
        Some((letter, kind)) => ("kmgt".find(letter).ok_or_else(wrong)? as u32 + 1, kind),
        None => (0, ""),
    };
    let unit = match kind {
        "" | "ib" => 1024_u64.pow(power),
        "b" => 1000_u64.pow(power),
        _ => return Err(wrong()),
    };
    let (whole, part) = match number.split_once('.') {
        Some((whole, part)) if !part.is_empty() => (whole, part),
        Some(_) => return Err(wrong()),
        None => (number, "0"),
    };
    let large = || format!("\"{text}\" is too large; sizes end below 2^64 bytes");
    if whole.is_empty() || part.contains('.') {
        return Err(wrong());
    }
    let whole: u64 = whole.parse().map_err(|_| large())?;
    let parts =
        fraction(part, unit).ok_or_else(|| format!("\"{text}\" is not a whole number of bytes"))?;
    let bytes = whole
        .checked_mul(unit)
        .and_then(|bytes| bytes.checked_add(parts));
    bytes.ok_or_else(large)
}

/// So much of a unit after the point; `None` if that is no whole number.
fn fraction(digits: &str, unit: u64) -> Option<u64> {
    let digits = digits.trim_end_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    let number: u128 = digits.parse().ok()?;
    let of = 10_u128.checked_pow(digits.len().try_into().ok()?)?;
    let parts = number.checked_mul(unit.into())?;
    (parts % of == 0).then(|| u64::try_from(parts / of).ok())?
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

/// A number of seconds, fractions allowed, from 0 to a day.
pub(crate) fn patience(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(0.0) => Ok(Duration::ZERO),
        _ => seconds(text).map_err(|wrong| format!("{wrong}; or 0")),
    }
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
        .find(|i| bytes > 0 && bytes.is_multiple_of(1 << (10 * i)))
        .unwrap_or(0);
    format!("{}{}", bytes >> (10 * fits), suffixes[fits])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_and_decimal_suffixes() {
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
            ("64KB", 64_000),
            ("8GB", 8_000_000_000),
            ("1.5GiB", 3 << 29),
            ("1.5M", 3 << 19),
            ("0.5k", 512),
            ("2.0", 2),
            ("0.001KB", 1),
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
            "1.5",
            "0.0001KB",
            "1.",
            ".5K",
            "1.2.3K",
            "64kbit",
            "64B",
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
        assert_eq!(patience("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(patience("0"), Ok(Duration::ZERO));
        assert!(patience("-1").is_err() && patience("NaN").is_err());
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
        assert_eq!((show_size(0), bytes("0")), ("0".to_owned(), Ok(0)));
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
