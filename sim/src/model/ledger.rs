//! What must hold whatever happens: no byte lost, none written after its report said that none would be,
//! every request reported once.

use std::collections::{BTreeMap, VecDeque};

use polyrail_core::report::{Local, Remote, Report, Status};
use polyrail_core::work::Op;

/// Where a request's number stands in the offsets of its bytes: above them.
const NUMBER_SHIFT: u32 = 36;
/// The longest request.
pub(crate) const REQUEST_BYTES_MAX: u64 = 1 << NUMBER_SHIFT;

/// What is known of one request.
#[derive(Debug)]
struct Entry {
    op: Op,
    length: u64,
    submitter: u32,
    /// Bytes that have arrived, as ranges in order, none touching the next.
    arrived: Vec<(u64, u64)>,
    reported: bool,
    /// Nobody reads or writes this side's memory for it any more.
    released: bool,
    /// Nothing of it may arrive any more.
    sealed: bool,
}

/// All requests of a run, and what went wrong with them.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The number of the first entry; all before it are sealed.
    first: u64,
    entries: VecDeque<Entry>,
    /// Requests that lie one behind the other: of the first one, their length and how many.
    rows: BTreeMap<u64, (u64, u64)>,
    violations: u64,
    first_violation: Option<String>,
    /// Core is told what is not so: what it says of bytes is not looked at.
    deceived: bool,
}

impl Ledger {
    /// Without requests. `truth`: nothing that could be true is a lie.
    pub(crate) fn new(truth: bool) -> Self {
        Self {
            deceived: !truth,
            ..Self::default()
        }
    }

    /// Enters a request: its number.
    pub(crate) fn submitted(&mut self, op: Op, length: u64, submitter: u32) -> u64 {
        self.entries.push_back(Entry {
            op,
            length,
            submitter,
            arrived: Vec::new(),
            reported: false,
            released: false,
            sealed: false,
        });
        self.first + self.entries.len() as u64 - 1
    }

    /// Where a request's bytes start, on both sides.
    pub(crate) const fn offset(number: u64) -> u64 {
        number << NUMBER_SHIFT
    }

    /// The next so many requests of `length` bytes each will lie one behind the other, from where the first starts.
    pub(crate) fn lay_in_a_row(&mut self, length: u64, count: u64) {
        let first = self.first + self.entries.len() as u64;
        self.rows.insert(first, (length, count));
    }

    /// Where the bytes of a request of a row start: that of `index`, if the first one starts at `offset`.
    pub(crate) const fn offset_in_row(offset: u64, length: u64, index: u64) -> u64 {
        offset + length * index
    }

    /// Bytes arrive at the side that is written.
    pub(crate) fn arrived(&mut self, now: u64, offset: u64, length: u64) {
        if self.deceived {
            return;
        }
        for (number, start, end) in self.owners(offset, length) {
            match self.entry(number) {
                Some(entry) if !entry.sealed => entry.add(start, end),
                _ => self.violation(
                    now,
                    format!("bytes {start} to {end} of request {number} arrived after its report"),
                ),
            }
        }
    }

    /// Bytes are read from this side's memory for a write.
    pub(crate) fn read_source(&mut self, now: u64, offset: u64, length: u64) {
        if self.deceived {
            return;
        }
        for (number, ..) in self.owners(offset, length) {
            if self.entry(number).is_none_or(|entry| entry.released) {
                let text = format!("the source of request {number} was read after its report");
                self.violation(now, text);
            }
        }
    }

    /// Whose bytes these are: numbers of requests, and from where to where in each.
    fn owners(&self, offset: u64, length: u64) -> Vec<(u64, u64, u64)> {
        let number = offset >> NUMBER_SHIFT;
        let start = offset & (REQUEST_BYTES_MAX - 1);
        let Some((each, _)) = self.rows.get(&number) else {
            return vec![(number, start, start + length)];
        };
        let end = start + length;
        let names = start / each..end.div_ceil(*each);
        let part = |index: u64| {
            let from = index * each;
            (
                number + index,
                start.max(from) - from,
                end.min(from + each) - from,
            )
        };
        names.map(part).collect()
    }

    /// A request was refused: it never was.
    pub(crate) fn refused(&mut self, number: u64) {
        if let Some(entry) = self.entry(number) {
            (entry.reported, entry.released, entry.sealed) = (true, true, true);
        }
        self.forget();
    }

    /// A request's report. Whose it was.
    pub(crate) fn reported(&mut self, now: u64, number: u64, report: &Report) -> Option<u32> {
        let deceived = self.deceived;
        let Some(entry) = self.entry(number).filter(|entry| !entry.reported) else {
            self.violation(now, format!("request {number} was reported twice"));
            return None;
        };
        entry.reported = true;
        entry.released = report.local == Local::Released;
        let submitter = entry.submitter;
        let arrived_bytes: u64 = entry.arrived.iter().map(|(from, to)| to - from).sum();
        let whole = entry.arrived == [(0, entry.length)];
        let open = match entry.op {
            Op::Write => report.remote == Remote::Unknown,
            Op::Read => report.local == Local::Held,
        };
        entry.sealed = !open;
        if deceived {
            self.forget();
            return Some(submitter);
        }
        if report.status == Status::Completed && !whole {
            let arrived = entry.arrived.clone();
            self.violation(
                now,
                format!("request {number} was reported complete with only {arrived:?} arrived"),
            );
        }
        let open = report.local == Local::Held || report.remote == Remote::Unknown;
        if report.delivered_bytes > arrived_bytes
            || open != (report.status == Status::Indeterminate)
            || report.status == Status::Pending
            || (report.status == Status::Completed) != report.cause.is_none()
        {
            let text =
                format!("request {number}, with {arrived_bytes} bytes arrived, got {report:?}");
            self.violation(now, text);
        }
        self.forget();
        Some(submitter)
    }

    /// A request that was reported with something open is settled after all.
    pub(crate) fn settled(&mut self, number: u64, local: Local, remote: Remote) {
        if let Some(entry) = self.entry(number) {
            entry.released = local == Local::Released;
            entry.sealed = remote == Remote::Settled;
        }
        self.forget();
    }

    /// Whose requests were reported with something open, and have not settled.
    pub(crate) fn open(&self) -> impl Iterator<Item = u32> {
        let is_open = |entry: &&Entry| entry.reported && !(entry.released && entry.sealed);
        self.entries
            .iter()
            .filter(is_open)
            .map(|entry| entry.submitter)
    }

    /// What core's own audit found.
    pub(crate) fn violation(&mut self, now: u64, text: String) {
        self.violations += 1;
        self.first_violation
            .get_or_insert_with(|| format!("at {now} ns: {text}"));
    }

    /// Counts requests that were never reported. The number of violations, and the first in words.
    pub(crate) fn close(&mut self, now: u64) -> (u64, Option<String>) {
        let missing = self.entries.iter().filter(|entry| !entry.reported).count();
        for _ in 0..missing {
            self.violation(now, format!("{missing} requests were not reported"));
        }
        (self.violations, self.first_violation.clone())
    }

    fn entry(&mut self, number: u64) -> Option<&mut Entry> {
        self.entries
            .get_mut(number.checked_sub(self.first)? as usize)
    }

    fn forget(&mut self) {
        while self.entries.front().is_some_and(|entry| entry.sealed) {
            self.entries.pop_front();
            self.first += 1;
            if let Some(row) = self.rows.first_entry()
                && row.key() + row.get().1 <= self.first
            {
                row.remove();
            }
        }
    }
}

impl Entry {
    fn add(&mut self, mut start: u64, mut end: u64) {
        let from = self.arrived.partition_point(|range| range.1 < start);
        let to = self.arrived.partition_point(|range| range.0 <= end);
        if let (Some(first), true) = (self.arrived.get(from), from < to) {
            start = start.min(first.0);
            end = end.max(self.arrived[to - 1].1);
        }
        self.arrived.splice(from..to, [(start, end)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_core::work::Cause;

    const DONE: Report = Report {
        status: Status::Completed,
        delivered_bytes: 100,
        cause: None,
        local: Local::Released,
        remote: Remote::Settled,
    };

    #[test]
    fn ranges_join() {
        // (name, ranges in order of arrival, what is there)
        let cases = [
            ("in order", vec![(0, 10), (10, 20)], vec![(0, 20)]),
            (
                "a hole filled",
                vec![(0, 10), (20, 30), (10, 20)],
                vec![(0, 30)],
            ),
            ("apart", vec![(20, 30), (0, 10)], vec![(0, 10), (20, 30)]),
            (
                "twice and over",
                vec![(5, 10), (5, 10), (0, 100)],
                vec![(0, 100)],
            ),
        ];
        for (name, ranges, there) in cases {
            let mut entry = Entry {
                op: Op::Write,
                length: 100,
                submitter: 0,
                arrived: Vec::new(),
                reported: false,
                released: false,
                sealed: false,
            };
            for (start, end) in ranges {
                entry.add(start, end);
            }
            assert_eq!(entry.arrived, there, "{name}");
        }
    }

    #[test]
    fn each_kind_of_violation_is_counted() {
        let mut ledger = Ledger::default();
        let whole = ledger.submitted(Op::Write, 100, 0);
        ledger.arrived(1, Ledger::offset(whole), 100);
        ledger.reported(2, whole, &DONE);
        assert_eq!(ledger.violations, 0);
        ledger.arrived(3, Ledger::offset(whole), 10);
        assert_eq!(ledger.violations, 1, "written after its report");
        ledger.reported(4, whole, &DONE);
        assert_eq!(ledger.violations, 2, "reported twice");
        ledger.read_source(5, Ledger::offset(whole), 100);
        assert_eq!(ledger.violations, 3, "source read after its report");
        let half = ledger.submitted(Op::Read, 100, 0);
        ledger.arrived(6, Ledger::offset(half), 50);
        let lies = Report {
            delivered_bytes: 50,
            ..DONE
        };
        ledger.reported(7, half, &lies);
        assert_eq!(ledger.violations, 4, "bytes lost");
        let half = ledger.submitted(Op::Write, 100, 0);
        let lies = Report {
            status: Status::Failed,
            delivered_bytes: 1,
            cause: Some(Cause::Reset),
            ..DONE
        };
        ledger.reported(8, half, &lies);
        assert_eq!(ledger.violations, 5, "more delivered than arrived");
        ledger.submitted(Op::Write, 1, 0);
        assert_eq!(ledger.close(9).0, 6, "never reported");
    }

    #[test]
    fn an_open_report_lets_late_bytes_in_until_it_is_settled() {
        let mut ledger = Ledger::default();
        let number = ledger.submitted(Op::Write, 100, 0);
        let open = Report {
            status: Status::Indeterminate,
            delivered_bytes: 0,
            cause: Some(Cause::Silent),
            remote: Remote::Unknown,
            ..DONE
        };
        ledger.reported(1, number, &open);
        ledger.arrived(2, Ledger::offset(number), 10);
        assert_eq!(ledger.violations, 0);
        ledger.settled(number, Local::Released, Remote::Settled);
        ledger.arrived(3, Ledger::offset(number), 10);
        assert_eq!(ledger.violations, 1);
    }
}
