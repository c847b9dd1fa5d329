//! The owner's side of the calls.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use polyrail::{Access, Caller, Calls, Engine, Region};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{CALL_BYTES_MAX, Listed, Method, Painted, Poison, Summed, cpu_seconds};
use crate::pattern::Pattern;
use crate::pattern::memory::{self, MemoryError, Span};
use crate::serve::SEGMENT;
use crate::source::Source;

/// Bytes of a file read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Answers calls about what `serve` offers.
pub(crate) struct ServedCalls {
    files: BTreeMap<String, Arc<Source>>,
}

impl ServedCalls {
    /// About the memory, and these files.
    pub(crate) fn new(files: impl IntoIterator<Item = (String, Arc<Source>)>) -> Self {
        Self {
            files: files.into_iter().collect(),
        }
    }
}

/// Bytes of names and sizes that one answer has.
const LIST_BYTES_MAX: usize = 32 << 10;

impl ServedCalls {
    /// Names and sizes of files, of those that the asker `may` know of.
    fn list(&self, asked: &Listed, may: impl Fn(&str, &Source) -> bool) -> Vec<(&str, u64)> {
        let Listed { prefix, after } = asked;
        let from = match after < prefix {
            true => Bound::Included(prefix),
            false => Bound::Excluded(after),
        };
        let files = self.files.range::<String, _>((from, Bound::Unbounded));
        let files = files.take_while(|(name, _)| name.starts_with(prefix));
        let files = files.filter(|(name, file)| may(name, file));
        let mut bytes = 0;
        let files = files.take_while(|(name, _)| {
            bytes += name.len() + 16;
            bytes <= LIST_BYTES_MAX
        });
        files.map(|(name, file)| (&**name, file.bytes)).collect()
    }
}

impl Calls for ServedCalls {
    fn call(
        &self,
        engine: &Engine,
        caller: &Caller,
        method: u16,
        body: &[u8],
    ) -> Result<Vec<u8>, String> {
        let method = method_of(method)?;
        if method == Method::List {
            let may = |name: &str, file: &Source| match file.bytes {
                // It is no segment. Files are for the common domain.
                0 => caller.domain.is_none(),
                _ => engine.access_of(caller, name).is_some(),
            };
            return encode(&self.list(&decode(body)?, may));
        }
        let name = match method {
            Method::Checksum => decode::<Summed>(body)?.segment,
            _ => SEGMENT.to_owned(),
        };
        // What a peer could not open it is told nothing about either.
        let missing = || format!("there is no segment {} here", name.escape_debug());
        let access = engine.access_of(caller, &name).ok_or_else(missing)?;
        check_access(&name, access, method)?;
        if method == Method::Checksum
            && let Some(file) = self.files.get(&name)
        {
            let summed = decode::<Summed>(body)?;
            return encode(&checksum(file, summed.span, summed.crc)?);
        }
        let region = region(engine, &name).ok_or_else(missing)?;
        answer(&region, method, body)
    }
}

/// Whether a peer that may do so much with a segment may have this done to it.
fn check_access(name: &str, access: Access, method: Method) -> Result<(), String> {
    let (is_allowed, what) = match method {
        Method::Poison | Method::Fill => (access.allows_remote_write(), "write"),
        _ => (access.allows_remote_read(), "read"),
    };
    match is_allowed {
        true => Ok(()),
        false => Err(format!("peers may not {what} segment {name}")),
    }
}

fn region(engine: &Engine, segment: &str) -> Option<Arc<Region>> {
    engine.region(engine.local_segment(segment)?)
}

/// The CRC32C of bytes that have `crc` and of these behind them.
fn checksum(file: &Source, span: Span, crc: u32) -> Result<u32, String> {
    check_length(span)?;
    let end = span.offset.checked_add(span.bytes);
    if end.is_none_or(|end| end > file.bytes) {
        let region_bytes = file.bytes;
        return Err(MemoryError::OutOfRange { span, region_bytes }.to_string());
    }
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut crc = crc;
    for at in (0..span.bytes).step_by(CHUNK_BYTES) {
        let chunk = &mut chunk[..(span.bytes - at).min(CHUNK_BYTES as u64) as usize];
        let read = file.read(span.offset + at, chunk);
        read.map_err(|failure| failure.to_string())?;
        crc = crc32c::crc32c_append(crc, chunk);
    }
    Ok(crc)
}

fn answer(region: &Region, method: Method, body: &[u8]) -> Result<Vec<u8>, String> {
    match method {
        Method::Poison => {
            let Poison { span, value } = decode(body)?;
            check_length(span)?;
            encode(&memory::poison(region, span, value).map_err(|e| e.to_string())?)
        }
        Method::Fill => {
            let (span, pattern) = painted(body)?;
            let filled = memory::fill(region, span, span.offset, pattern);
            encode(&filled.map_err(|e| e.to_string())?)
        }
        Method::Check => {
            let (span, pattern) = painted(body)?;
            let found = memory::check(region, span, span.offset, pattern);
            encode(&found.map_err(|e| e.to_string())?)
        }
        Method::CpuTime => {
            decode::<()>(body)?;
            encode(&cpu_seconds())
        }
        Method::Checksum => {
            let Summed { span, crc, .. } = decode(body)?;
            check_length(span)?;
            encode(&memory::checksum(region, span, crc).map_err(|e| e.to_string())?)
        }
        Method::List => Err("files are not in memory".into()),
    }
}

fn method_of(number: u16) -> Result<Method, String> {
    const ALL: [Method; 6] = [
        Method::Poison,
        Method::Fill,
        Method::Check,
        Method::CpuTime,
        Method::Checksum,
        Method::List,
    ];
    ALL.into_iter()
        .find(|method| *method as u16 == number)
        .ok_or_else(|| format!("there is no method {number} here; they are 1 to 6"))
}

fn painted(body: &[u8]) -> Result<(Span, Pattern), String> {
    let Painted { span, seed, sample } = decode(body)?;
    check_length(span)?;
    Ok((span, Pattern::new(seed, sample)))
}

fn check_length(span: Span) -> Result<(), String> {
    if span.bytes > CALL_BYTES_MAX {
        return Err(format!(
            "{} bytes are too many for one call; ask for up to {CALL_BYTES_MAX}",
            span.bytes
        ));
    }
    Ok(())
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(format!("{} bytes too many in the call's body", rest.len())),
        Err(e) => Err(format!(
            "the call's body of {} bytes makes no sense: {e}",
            body.len()
        )),
    }
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, String> {
    postcard::to_allocvec(value).map_err(|e| format!("cannot encode the answer: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::time::Duration;

    use crate::pattern::memory::Mismatch;
    use polyrail::{Config, FileTerms, Hooks, SegmentId};

    const BYTES: u64 = 64 * 1024;

    fn region() -> Region {
        Region::allocate(BYTES, Access::RemoteReadWrite).unwrap()
    }

    fn ask<T: DeserializeOwned>(region: &Region, method: Method, body: impl Serialize) -> T {
        let body = postcard::to_allocvec(&body).unwrap();
        let answer = answer(region, method, &body).unwrap();
        postcard::from_bytes(&answer).unwrap()
    }

    #[test]
    fn a_filled_span_checks_until_it_is_poisoned() {
        let region = region();
        let span = Span {
            offset: 100,
            bytes: 5000,
        };
        let painted = Painted {
            span,
            seed: 1,
            sample: 9,
        };
        ask::<()>(&region, Method::Fill, painted);
        assert_eq!(
            ask::<Option<Mismatch>>(&region, Method::Check, painted),
            None
        );
        let one = Span {
            offset: 200,
            bytes: 1,
        };
        let value = !Pattern::new(1, 9).byte(200);
        ask::<()>(&region, Method::Poison, Poison { span: one, value });
        let found: Option<Mismatch> = ask(&region, Method::Check, painted);
        assert_eq!(found.map(|f| (f.offset, f.got)), Some((200, value)));
    }

    #[test]
    fn a_checksum_is_that_of_the_bytes_piece_by_piece() {
        let region = region();
        let value = 0x5a;
        let span = Span {
            offset: 10,
            bytes: 50_000,
        };
        ask::<()>(&region, Method::Poison, Poison { span, value });
        let sum = |span, crc| {
            let segment = SEGMENT.to_owned();
            ask::<u32>(&region, Method::Checksum, Summed { segment, span, crc })
        };
        let (first, second) = (
            Span {
                bytes: 20_000,
                ..span
            },
            Span {
                offset: 20_010,
                bytes: 30_000,
            },
        );
        assert_eq!(sum(second, sum(first, 0)), crc32c::crc32c(&[value; 50_000]));
    }

    #[test]
    fn files_are_listed_in_order_and_in_as_many_answers_as_it_takes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 5]).unwrap();
        let source = Arc::new(Source::open(&path).unwrap());
        let names = (0..3000).map(|number| format!("tree/{number:04}-{}", "x".repeat(40)));
        let others = ["tree", "tree/0001-hidden", "tree0", "tref/1"].map(str::to_owned);
        let files = names.clone().chain(others);
        let served = ServedCalls::new(files.map(|name| (name, source.clone())));
        let mut found: Vec<String> = Vec::new();
        let mut answers = 0;
        loop {
            let listed = Listed {
                prefix: "tree/".into(),
                after: found.last().cloned().unwrap_or_default(),
            };
            let more = served.list(&listed, |name, _| !name.ends_with("hidden"));
            assert!(encode(&more).unwrap().len() < 48 << 10, "a call holds it");
            assert!(more.iter().all(|(_, bytes)| *bytes == 5));
            if more.is_empty() {
                break;
            }
            answers += 1;
            found.extend(more.into_iter().map(|(name, _)| name.to_owned()));
        }
        assert!(answers > 1);
        assert!(found.into_iter().eq(names));
    }

    #[test]
    fn processor_time_is_more_than_nothing() {
        assert!(ask::<f64>(&region(), Method::CpuTime, ()) > 0.0);
    }

    /// An engine that serves memory and two files, of which one is empty. 127.0.0.5 is of domain red there, which has
    /// memory of its own.
    fn served() -> (Engine, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            (name.to_owned(), Arc::new(Source::open(&path).unwrap()))
        };
        let files = [file("empty", &[]), file("secret", &[7; 8])];
        let json = r#"{ "listen": "127.0.0.1:0", "rails": ["127.0.0.1"], "workers": 1,
            "security": { "domains": { "red": { "peers": ["127.0.0.5"] } } } }"#;
        let hooks = Hooks {
            calls: Some(Arc::new(ServedCalls::new(files))),
            ..Hooks::default()
        };
        let target = Engine::with_hooks(Config::from_json(json).unwrap(), hooks).unwrap();
        let both = Access::RemoteReadWrite;
        target.allocate(SEGMENT, BYTES, both).unwrap();
        target.allocate("private", BYTES, Access::Local).unwrap();
        let red = target.domain("red").unwrap();
        red.allocate("red", BYTES, both).unwrap();
        let terms = FileTerms::default();
        let file = target.open_file(&folder.path().join("secret"), &terms);
        target.offer_file(file.unwrap(), "secret", both).unwrap();
        (target, folder)
    }

    /// A peer from 127.0.0.`last` that has opened a segment.
    fn peer(target: &Engine, last: u8, segment: &str) -> (Engine, SegmentId) {
        let json = format!(r#"{{ "rails": ["127.0.0.{last}"], "workers": 1 }}"#);
        let engine = Engine::new(Config::from_json(&json).unwrap()).unwrap();
        let address = format!("{}/{segment}", target.listening().unwrap());
        let remote = engine.open_segment(&address).unwrap();
        (engine, remote)
    }

    #[test]
    fn a_peer_of_another_domain_neither_hears_of_what_is_served_nor_changes_it() {
        let (target, _folder) = served();
        let (red, common) = (peer(&target, 5, "red"), peer(&target, 4, SEGMENT));
        let call = |(engine, remote): &(Engine, SegmentId), method: Method, body: Vec<u8>| {
            let answer = engine.call(*remote, method as u16, &body, Duration::from_secs(30));
            answer.map_err(|error| error.to_string())
        };
        let span = Span {
            offset: 0,
            bytes: 4,
        };
        let sum = |segment: &str| {
            let segment = segment.to_owned();
            encode(&Summed {
                segment,
                span,
                crc: 0,
            })
            .unwrap()
        };
        let (poison, painted) = (
            encode(&Poison { span, value: 9 }).unwrap(),
            encode(&Painted {
                span,
                seed: 1,
                sample: 1,
            })
            .unwrap(),
        );
        let region = target.region(target.local_segment(SEGMENT).unwrap());
        let region = region.unwrap();
        let bytes = || {
            let mut bytes = [0; 4];
            region.load(0, &mut bytes).unwrap();
            bytes
        };
        let missing = |method, body| {
            let error = call(&red, method, body).unwrap_err();
            assert!(error.contains("there is no segment"), "{method:?}: {error}");
        };
        missing(Method::Poison, poison.clone());
        missing(Method::Fill, painted.clone());
        missing(Method::Check, painted.clone());
        missing(Method::CpuTime, Vec::new());
        missing(Method::Checksum, sum(SEGMENT));
        missing(Method::Checksum, sum("secret"));
        assert_eq!(bytes(), [0; 4]);
        let all = encode(&Listed {
            prefix: String::new(),
            after: String::new(),
        })
        .unwrap();
        let list = |of| postcard::from_bytes(&call(of, Method::List, all.clone()).unwrap());
        let listed: Vec<(String, u64)> = list(&red).unwrap();
        assert_eq!(listed, []);
        // Its own it may ask about.
        call(&red, Method::Checksum, sum("red")).unwrap();

        let listed: Vec<(String, u64)> = list(&common).unwrap();
        assert_eq!(listed, [("empty".to_owned(), 0), ("secret".to_owned(), 8)]);
        call(&common, Method::Poison, poison).unwrap();
        assert_eq!(bytes(), [9; 4]);
        let answer = call(&common, Method::Checksum, sum("secret")).unwrap();
        assert_eq!(answer, encode(&crc32c::crc32c(&[7; 4])).unwrap());
        // What is not for peers, and what the engine has for itself.
        for name in ["private", "red", "\u{1}scratch", "\u{1}slots-out"] {
            let error = call(&common, Method::Checksum, sum(name)).unwrap_err();
            assert!(error.contains("there is no segment"), "{name:?}: {error}");
        }
    }

    #[test]
    fn only_who_may_write_has_memory_overwritten() {
        let may = |access, method| check_access("mem", access, method).is_ok();
        for method in [Method::Check, Method::CpuTime, Method::Checksum] {
            assert!(may(Access::RemoteRead, method) && !may(Access::Local, method));
        }
        for method in [Method::Poison, Method::Fill] {
            assert!(may(Access::RemoteReadWrite, method) && !may(Access::RemoteRead, method));
        }
    }

    #[test]
    fn bad_calls_are_errors_that_name_value_and_limit() {
        let region = region();
        let body = |offset, bytes| {
            let span = Span { offset, bytes };
            postcard::to_allocvec(&Painted {
                span,
                seed: 0,
                sample: 0,
            })
            .unwrap()
        };
        let long = [body(0, 1), vec![0]].concat();
        // (name, method, body, what the error names)
        let cases: [(&str, u16, Vec<u8>, &str); 6] = [
            ("unknown method", 7, vec![], "7"),
            ("no body", 2, vec![], "0 bytes"),
            ("bytes left over", 3, long, "1 bytes too many"),
            ("past the end", 2, body(BYTES, 1), "65536"),
            ("overflow", 3, body(u64::MAX, 2), "18446744073709551615"),
            ("too long", 3, body(0, CALL_BYTES_MAX + 1), "16777217"),
        ];
        for (name, method, body, part) in cases {
            let error = method_of(method).and_then(|method| answer(&region, method, &body));
            let error = error.unwrap_err();
            assert!(error.contains(part), "{name}: {error}");
        }
    }
}
