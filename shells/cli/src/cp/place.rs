//! Where bytes come from or go to, as it is written on the command line.

use std::fmt;
use std::path::PathBuf;

use crate::address;
use crate::sizes;

/// One side of a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// A file here.
    File(PathBuf),
    /// Bytes of a target's segment.
    Segment(Segment),
    /// Standard input or output.
    Standard,
}

/// A target's segment, and where in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    /// `HOST:PORT`.
    pub(super) target: String,
    pub(super) name: String,
    /// First byte.
    pub(super) offset: u64,
}

impl Segment {
    /// `HOST:PORT/SEGMENT`, as the engine opens it.
    pub(super) fn address(&self) -> String {
        format!("{}/{}", self.target, self.name)
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of target {}", self.name, self.target)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Segment(segment) => segment.fmt(f),
            Self::Standard => f.write_str("-"),
        }
    }
}

/// `HOST:PORT/SEGMENT[+OFFSET]`, `-`, or else a path. A file that looks like one of the others can be written `./…`; a
/// segment whose own name ends like an offset takes `+0`.
pub(super) fn place(text: &str) -> Result<Place, String> {
    if text == "-" {
        return Ok(Place::Standard);
    }
    let segment = text
        .split_once('/')
        .filter(|(target, name)| !name.is_empty() && address::target(target).is_ok());
    match segment {
        None => Ok(Place::File(text.into())),
        Some((target, rest)) => {
            let (name, offset) = match rest.rsplit_once('+') {
                Some((name, offset)) if offset.starts_with(|c: char| c.is_ascii_digit()) => {
                    (name, sizes::bytes(offset)?)
                }
                _ => (rest, 0),
            };
            Ok(Place::Segment(Segment {
                target: target.to_owned(),
                name: name.to_owned(),
                offset,
            }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_told_from_files() {
        let segment = |target: &str, name: &str, offset| {
            Place::Segment(Segment {
                target: target.into(),
                name: name.into(),
                offset,
            })
        };
        // (written, what it is)
        let cases = [
            ("10.0.0.2:7000/mem", segment("10.0.0.2:7000", "mem", 0)),
            ("host:7000/mem+4K", segment("host:7000", "mem", 4096)),
            ("[::1]:7000/mem+0", segment("[::1]:7000", "mem", 0)),
            ("h:1/a+b", segment("h:1", "a+b", 0)),
            ("h:1/a+b+1GiB", segment("h:1", "a+b", 1 << 30)),
            ("h:1/a+7+0", segment("h:1", "a+7", 0)),
            ("weights.bin", Place::File("weights.bin".into())),
            ("./h:1/mem", Place::File("./h:1/mem".into())),
            ("/tmp/h:1/mem", Place::File("/tmp/h:1/mem".into())),
            ("h:0/mem", Place::File("h:0/mem".into())),
            ("h:1/", Place::File("h:1/".into())),
            ("h:1", Place::File("h:1".into())),
            ("-", Place::Standard),
            ("./-", Place::File("./-".into())),
        ];
        for (text, expected) in cases {
            assert_eq!(place(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn wrong_offsets_are_errors() {
        for text in [
            "h:1/mem+4KX",
            "h:1/mem+99999999999999999999",
            "h:1/mem+0x10",
        ] {
            assert!(place(text).unwrap_err().contains("size"), "{text}");
        }
    }
}
