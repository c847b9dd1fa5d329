//! The asker's side of the calls.

use std::time::Duration;

use polyrail::{Engine, SegmentId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{CALL_BYTES_MAX, Listed, Method, Painted, Poison, Summed};
use crate::exit::Failure;
use crate::pattern::memory::{Mismatch, Span};

/// How long an answer may take. A call is about little enough for the slowest machine.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The program that owns a remote segment.
#[derive(Clone, Copy)]
pub(crate) struct Owner<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) remote: SegmentId,
    /// `HOST:PORT`, for errors.
    pub(crate) target: &'a str,
}

impl Owner<'_> {
    /// Has `span` overwritten with `value`.
    pub(crate) fn poison(self, span: Span, value: u8) -> Result<(), Failure> {
        pieces(span).try_for_each(|span| self.ask(Method::Poison, &Poison { span, value }))
    }

    /// Has the pattern of a sample written into `span`.
    pub(crate) fn fill(self, span: Span, seed: u64, sample: u64) -> Result<(), Failure> {
        pieces(span).try_for_each(|span| self.ask(Method::Fill, &Painted { span, seed, sample }))
    }

    /// Has `span` compared with the pattern of a sample. Counts wrong bytes up to the end of the piece
    /// that holds the first one.
    pub(crate) fn check(
        self,
        span: Span,
        seed: u64,
        sample: u64,
    ) -> Result<Option<Mismatch>, Failure> {
        for span in pieces(span) {
            let found: Option<Mismatch> =
                self.ask(Method::Check, &Painted { span, seed, sample })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Has `span` of the segment of this name summed up.
    pub(crate) fn checksum(self, segment: &str, span: Span) -> Result<u32, Failure> {
        pieces(span).try_fold(0, |crc, span| {
            let segment = segment.to_owned();
            self.ask(Method::Checksum, &Summed { segment, span, crc })
        })
    }

    /// The files whose names begin so, with their sizes.
    pub(crate) fn list(self, prefix: &str) -> Result<Vec<(String, u64)>, Failure> {
        let mut all: Vec<(String, u64)> = Vec::new();
        loop {
            let after = all
                .last()
                .map_or_else(String::new, |(name, _)| name.clone());
            let prefix = prefix.to_owned();
            let more: Vec<(String, u64)> = self.ask(Method::List, &Listed { prefix, after })?;
            // They are in order, so that this ends.
            let begins = more.first().zip(all.last());
            if more.is_empty() || begins.is_some_and(|(first, last)| first.0 <= last.0) {
                return Ok(all);
            }
            all.extend(more);
        }
    }

    /// Processor time that the owner has used.
    pub(crate) fn cpu_seconds(self) -> Result<f64, Failure> {
        self.ask(Method::CpuTime, &())
    }

    fn ask<T: DeserializeOwned>(self, method: Method, body: &impl Serialize) -> Result<T, Failure> {
        let failed = |e: &dyn std::fmt::Display| {
            let target = self.target;
            Failure::Environment(format!("target {target} did not answer {method:?}: {e}"))
        };
        let body = postcard::to_allocvec(body).map_err(|e| failed(&e))?;
        let answer = self
            .engine
            .call(self.remote, method as u16, &body, TIMEOUT)
            .map_err(|e| failed(&e))?;
        postcard::from_bytes(&answer).map_err(|e| failed(&e))
    }
}

/// Cuts a span into what single calls may be about.
fn pieces(span: Span) -> impl Iterator<Item = Span> {
    let end = span.offset + span.bytes;
    (span.offset..end)
        .step_by(CALL_BYTES_MAX as usize)
        .map(move |offset| Span {
            offset,
            bytes: (end - offset).min(CALL_BYTES_MAX),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_span_once() {
        for bytes in [
            0,
            1,
            CALL_BYTES_MAX,
            CALL_BYTES_MAX + 1,
            3 * CALL_BYTES_MAX - 1,
        ] {
            let mut end = 77;
            for piece in pieces(Span { offset: 77, bytes }) {
                assert_eq!(piece.offset, end);
                assert!((1..=CALL_BYTES_MAX).contains(&piece.bytes));
                end += piece.bytes;
            }
            assert_eq!(end, 77 + bytes);
        }
    }
}
