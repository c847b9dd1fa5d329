//! All links to a target go dark for ever while small and large reads and writes are on their way to it; another
//! target stays. Every request is reported in time and truly, memory that is held stays held, and what is moved to the
//! other target does not suffer.
//!
//! The processes are in network namespaces of their own, so no kernel proves the end of any: there is only silence.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use polyrail::Op;
use serde_json::Value;

use crate::case::{Case, Transports};
use crate::fabric::{End, Fabric, address};
use crate::marks::{self, STREAMS, Stream};
use crate::party::Party;

const RATE_MBIT: u32 = 200;

/// How long after the cut a request may be reported.
const REPORTED: Duration = Duration::from_millis(2500);

/// The least part of the rate to the other target, in each second from the cut on.
const OTHER_MIN: f64 = 0.5;

/// How long a single step may take, those included that give up.
const STEP: Duration = Duration::from_secs(40);

/// How a request ended, as the initiator tells it.
#[derive(Debug)]
struct Ended {
    stream: usize,
    slot: usize,
    version: u64,
    /// Before the links were touched.
    before: bool,
    /// Milliseconds after the cut; `None`: never.
    ms: Option<u64>,
    status: String,
    delivered: u64,
    held: bool,
    unknown: bool,
    /// Of a read that completed: whether its bytes are the target's.
    intact: Option<bool>,
}

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// What is not as promised.
    pub(crate) wrong: Vec<String>,
    /// Requests that held memory when they were reported.
    pub(crate) held: usize,
    /// Requests under way at the cut, by stream, and how they ended.
    pub(crate) ended: BTreeMap<String, usize>,
    /// Milliseconds from the cut to the reports of those.
    pub(crate) reported_ms: Vec<u64>,
    /// The rate to the other target before the cut, in bytes a second.
    pub(crate) other_mean: f64,
    /// Parts of it, in windows of 250 ms from the cut on.
    pub(crate) other_parts: Vec<f64>,
    /// Milliseconds from the restoration until a request completed again.
    pub(crate) back_ms: Option<u64>,
}

impl fmt::Display for Outcome {
    /// One line, and one more for each thing that is wrong.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ms: Option<u64>| ms.map_or("never".into(), |ms| format!("after {ms} ms"));
        let ended: Vec<String> = self
            .ended
            .iter()
            .map(|(how, count)| format!("{how} {count}"))
            .collect();
        let parts: Vec<String> = self
            .other_parts
            .iter()
            .map(|part| format!("{part:.2}"))
            .collect();
        write!(
            f,
            "{}; the last one {}; to the other {:.1} MB/s, then {}; back {}",
            ended.join(", "),
            ms(self.reported_ms.iter().max().copied()),
            self.other_mean / 1e6,
            parts.join(" "),
            ms(self.back_ms)
        )?;
        for wrong in &self.wrong {
            write!(f, "\n  NOT SO: {wrong}")?;
        }
        Ok(())
    }
}

/// Runs a case with this program's `target` and `initiator`. `None`, with the reason printed, where that is not
/// allowed.
#[track_caller]
pub(crate) fn run(program: &Path, case: Case) -> Option<Outcome> {
    let Case {
        rails,
        fault,
        transports,
        load,
    } = case;
    let fabric = Fabric::new(&vec![RATE_MBIT; rails + 1])?;
    let target = |rails: std::ops::Range<usize>, transports: Transports| {
        let rails: Vec<String> = rails.map(|rail| address(rail, End::Target)).collect();
        let mut command = fabric.on(End::Target, program);
        command.args(["target", "--transports", transports.name()]);
        command.args(["--rails", &rails.join(",")]);
        Party::start(command, STEP)
    };
    let mut dying = target(0..rails, transports);
    let mut other = target(rails..rails + 1, Transports::One);
    let mut command = fabric.on(End::Initiator, program);
    command.args(["initiator", "--transports", transports.name()]);
    command.args(["--load", load.name()]);
    command.args(["--dying", &dying.hear_text("listening")]);
    command.args(["--other", &other.hear_text("listening")]);
    let mut initiator = Party::start(command, STEP);
    initiator.hear("under way");
    initiator.tell("soon");
    initiator.hear("ready");
    for rail in 0..rails {
        fabric.cut(rail, fault);
    }
    initiator.tell("dark");
    let said = initiator.hear("reports");
    let while_dark = memory(&mut dying);
    for rail in 0..rails {
        fabric.restore(rail, fault);
    }
    let mut judged = Judged::new(&said);
    judged.check_reports();
    judged.check_memory(&while_dark);
    judged.check_late(&said["late"]);
    let mut back_ms = None;
    if judged.all_reported() {
        initiator.tell("light");
        let back = initiator.hear("back");
        judged.check_back(&back, transports);
        back_ms = back["ms"].as_u64();
        let settled = memory(&mut dying);
        initiator.finish();
        judged.check_settled(&settled, &memory(&mut dying));
    }
    Some(Outcome {
        back_ms,
        ..judged.conclude(&said["rates"])
    })
}

/// How many of these runs were with a transport that keeps memory, and how many had a request that held some. In a run of
/// that kind there is none if all bytes went over the other transport when the links were cut: it is as fast.
pub(crate) fn clinging(runs: &[(Case, Outcome)]) -> (usize, usize) {
    let clinging = |(case, _): &&(Case, Outcome)| case.transports == Transports::Clinging;
    let held = runs
        .iter()
        .filter(clinging)
        .map(|(_, outcome)| outcome.held);
    held.fold((0, 0), |(runs, holding), held| {
        (runs + 1, holding + usize::from(held > 0))
    })
}

/// The reports, and what was found wrong with them.
struct Judged {
    requests: Vec<Ended>,
    wrong: Vec<String>,
}

impl Judged {
    fn new(said: &Value) -> Self {
        let requests = said["requests"].as_array().expect("a list of requests");
        let number = |value: &Value| value.as_u64().expect("a number");
        let truth = |value: &Value| value.as_bool().expect("true or false");
        let ended = |told: &Value| Ended {
            stream: number(&told["stream"]) as usize,
            slot: number(&told["slot"]) as usize,
            version: number(&told["version"]),
            before: truth(&told["before"]),
            ms: told["ms"].as_u64(),
            status: told["status"].as_str().unwrap_or_default().to_owned(),
            delivered: number(&told["delivered"]),
            held: truth(&told["held"]),
            unknown: truth(&told["unknown"]),
            intact: told["intact"].as_bool(),
        };
        Self {
            requests: requests.iter().map(ended).collect(),
            wrong: Vec::new(),
        }
    }

    fn all_reported(&self) -> bool {
        self.requests.iter().all(|ended| ended.ms.is_some())
    }

    /// Notes of which requests something does not hold.
    fn expect(&mut self, what: &str, holds: impl Fn(&Ended, &Stream) -> bool) {
        let wrong = |ended: &&Ended| !holds(ended, &STREAMS[ended.stream]);
        let wrong: Vec<&Ended> = self.requests.iter().filter(wrong).collect();
        if let Some(first) = wrong.first() {
            let name = STREAMS[first.stream].name;
            let text = format!(
                "{what}: {} requests, such as a {name}: {first:?}",
                wrong.len()
            );
            self.wrong.push(text);
        }
    }

    fn check_reports(&mut self) {
        let bound = REPORTED.as_millis() as u64;
        self.expect("reported in time", |ended, _| {
            ended.ms.is_some_and(|ms| ms <= bound)
        });
        // What follows is about reports that there are.
        self.expect("before the cut all is well", |ended, _| {
            !ended.before || ended.status == "Completed"
        });
        self.expect(
            "Indeterminate if and only if something is open",
            |ended, _| {
                let is_open = ended.held || ended.unknown;
                ended.ms.is_none() || (ended.status == "Indeterminate") == is_open
            },
        );
        self.expect("Completed, Indeterminate or Failed", |ended, _| {
            let known = ["Completed", "Indeterminate", "Failed"];
            ended.ms.is_none() || known.contains(&ended.status.as_str())
        });
        self.expect("a read leaves the peer's memory alone", |ended, stream| {
            ended.ms.is_none() || stream.op == Op::Write || !ended.unknown
        });
        self.expect("a read that completed is the peer's bytes", |ended, _| {
            ended.intact != Some(false)
        });
        self.expect("as much delivered as completed", |ended, stream| {
            let all = stream.bytes as u64;
            match ended.status.as_str() {
                "Completed" => ended.delivered == all,
                _ => ended.delivered <= all,
            }
        });
    }

    /// What is said to have arrived is there.
    fn check_memory(&mut self, memory: &[u8]) {
        self.expect("delivered bytes are there", |ended, stream| {
            let there = marks::alike(
                slot(memory, ended),
                &marks::pattern(ended.stream, ended.slot, ended.version),
            );
            stream.op == Op::Read || there >= ended.delivered
        });
    }

    /// What is submitted to a peer that is known to be silent fails soon.
    fn check_late(&mut self, late: &Value) {
        let bound = REPORTED.as_millis() as u64;
        for late in late.as_array().into_iter().flatten() {
            if late["status"] != "Failed" || late["ms"].as_u64() > Some(bound) {
                self.wrong.push(format!("late: {late}"));
            }
        }
    }

    fn check_back(&mut self, back: &Value, transports: Transports) {
        let held = self.requests.iter().filter(|ended| ended.held).count() as u64;
        let kept = &back["kept"];
        if kept["held"] != held || kept["kept"] != held {
            self.wrong.push(format!(
                "{held} were held when they were reported, then: {kept}"
            ));
        }
        if held > 0 && transports != Transports::Clinging {
            self.wrong
                .push(format!("{held} requests hold memory with {transports:?}"));
        }
        if back["open"] != 0 || back["touched"] != 0 {
            self.wrong.push(format!("after the return: {back}"));
        }
    }

    /// What is settled does not change, and what has completed is still there.
    fn check_settled(&mut self, settled: &[u8], later: &[u8]) {
        self.check_memory(later);
        self.expect("what is settled stays as it is", |ended, _| {
            slot(settled, ended) == slot(later, ended)
        });
    }

    /// What is moved to the other target does not suffer.
    fn check_other(&mut self, parts: &[f64]) {
        // Windows are quarters of a second: in one alone a busy machine may do something else.
        for (number, second) in parts.windows(4).enumerate() {
            if second.iter().sum::<f64>() < 4.0 * OTHER_MIN {
                let text = format!("the other target, from window {number} on: {second:.2?}");
                self.wrong.push(text);
            }
        }
    }

    fn conclude(mut self, rates: &Value) -> Outcome {
        let parts = rates["parts"].as_array().into_iter().flatten();
        let other_parts: Vec<f64> = parts.filter_map(Value::as_f64).collect();
        self.check_other(&other_parts);
        let mut ended = BTreeMap::new();
        let mut reported_ms = Vec::new();
        for request in self.requests.iter().filter(|request| !request.before) {
            let name = STREAMS[request.stream].name;
            *ended
                .entry(format!("{name} {}", request.status))
                .or_default() += 1;
            reported_ms.extend(request.ms);
        }
        Outcome {
            held: self.requests.iter().filter(|ended| ended.held).count(),
            wrong: self.wrong,
            ended,
            reported_ms,
            other_mean: rates["mean"].as_f64().unwrap_or_default(),
            other_parts,
            back_ms: None,
        }
    }
}

/// The bytes of a request's slot in the target's memory.
fn slot<'a>(memory: &'a [u8], ended: &Ended) -> &'a [u8] {
    let stream = &STREAMS[ended.stream];
    let from = marks::offset(ended.stream) + stream.slot_offset(ended.slot);
    &memory[from..from + stream.bytes]
}

/// What is in a target's memory.
#[track_caller]
fn memory(target: &mut Party) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().expect("a file can be made");
    target.tell(file.path().to_str().expect("a name that is text"));
    target.hear("written");
    fs::read(file.path()).expect("it has been written")
}
