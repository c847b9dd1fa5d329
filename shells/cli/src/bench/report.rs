//! What is said about a cell. The fields and their names are fixed: others read them.

use std::time::Duration;

use polyrail::{Config, RailState};
use serde::Serialize;

use super::cell::Cell;
use super::measure::{Measured, RailShare};
use super::{BenchArgs, name_of};
use crate::sample::Absence;
use crate::session::carriers;
use crate::timeline::Bucket;

/// One object of `--json`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Report {
    pub(super) op: String,
    pub(super) transport: String,
    pub(super) policy: String,
    pub(super) block_bytes: u64,
    pub(super) batch: u64,
    pub(super) threads: u64,
    /// How long it was measured, verification included.
    pub(super) seconds: f64,
    /// Of all threads, verification excluded.
    pub(super) gbytes_per_sec: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    /// Single requests.
    pub(super) requests: u64,
    pub(super) failed_requests: u64,
    /// Whether every byte was checked and right.
    pub(super) verified: bool,
    pub(super) cpu_seconds_initiator: f64,
    /// Null if the target could not be asked.
    pub(super) cpu_seconds_target: Option<f64>,
    pub(super) rails: Vec<Rail>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeline: Option<Vec<Moment>>,
}

/// One rail of a report.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Rail {
    pub(super) rail: String,
    /// One of three words that are fixed. Where the target is absent it is that of a rail that takes nothing.
    pub(super) state: &'static str,
    /// The same for people, who are told of that.
    #[serde(skip)]
    pub(super) standing: &'static str,
    pub(super) bytes: u64,
    pub(super) share: f64,
    pub(super) gbytes_per_sec: f64,
}

/// One bucket of a timeline.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Moment {
    /// When it starts.
    pub(super) ms: u64,
    pub(super) gbytes_per_sec: f64,
    /// GB/s of each rail, in the order of the report's rails.
    pub(super) rails: Vec<f64>,
}

impl Report {
    /// About a measured cell.
    pub(super) fn new(cell: Cell, args: &BenchArgs, config: &Config, measured: Measured) -> Self {
        let Measured { tally, .. } = &measured;
        let gbytes_per_sec = tally.bytes_per_sec / 1e9;
        let quantile_us = |q| tally.latencies.value_at_quantile(q) as f64 / 1e3;
        let transport = carriers(measured.rails.iter().map(|rail| (&*rail.name, rail.bytes)));
        Self {
            op: name_of(&cell.mode),
            policy: policies(config, &transport),
            transport,
            block_bytes: cell.block,
            batch: cell.batch,
            threads: cell.threads,
            seconds: measured.elapsed.as_secs_f64(),
            gbytes_per_sec,
            p50_us: quantile_us(0.5),
            p99_us: quantile_us(0.99),
            p999_us: quantile_us(0.999),
            requests: tally.requests,
            failed_requests: tally.failed,
            verified: args.verify && tally.samples > 0 && tally.verified == tally.samples,
            cpu_seconds_initiator: measured.cpu_seconds_initiator,
            cpu_seconds_target: measured.cpu_seconds_target,
            rails: rails(&measured.rails, measured.absence, gbytes_per_sec),
            timeline: measured.timeline.as_deref().map(timeline),
        }
    }
}

/// How the rails of these transports were chosen.
fn policies(config: &Config, transports: &str) -> String {
    let each = transports.split('+');
    let mut names: Vec<_> = each.map(|name| config.policy_of(name).name()).collect();
    names.dedup();
    names.join("+")
}

fn rails(shares: &[RailShare], absence: Option<Absence>, gbytes_per_sec: f64) -> Vec<Rail> {
    let total: u64 = shares.iter().map(|rail| rail.bytes).sum();
    let rail = |rail: &RailShare| {
        let share = rail.bytes as f64 / total.max(1) as f64;
        let last = match absence {
            None => rail.state,
            Some(_) => RailState::Paused,
        };
        Rail {
            rail: rail.name.clone(),
            state: state(last),
            standing: absence.map_or(state(last), Absence::name),
            bytes: rail.bytes,
            share,
            gbytes_per_sec: share * gbytes_per_sec,
        }
    };
    shares.iter().map(rail).collect()
}

fn state(state: RailState) -> &'static str {
    match state {
        RailState::Healthy => "healthy",
        RailState::Paused => "paused",
        RailState::Probing => "probing",
    }
}

fn timeline(buckets: &[Bucket]) -> Vec<Moment> {
    let moment = |bucket: &Bucket| Moment {
        ms: whole_ms(bucket.start),
        gbytes_per_sec: bucket.total(),
        rails: bucket.rates(),
    };
    buckets.iter().map(moment).collect()
}

fn whole_ms(time: Duration) -> u64 {
    time.as_millis() as u64
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::Mode;
    use super::super::measure::Tally;
    use super::super::tests::parse;
    use super::*;

    /// Four requests in two samples of 10 µs, three quarters of the bytes on the first of two rails.
    pub(in super::super) fn report(flags: &str) -> Report {
        let mut tally = Tally::new();
        tally.latencies.record_n(10_000, 2).unwrap();
        (tally.requests, tally.samples, tally.verified) = (4, 2, 2);
        tally.bytes_per_sec = 2e9;
        let rail = |name: &str, bytes| RailShare {
            name: name.to_owned(),
            state: RailState::Healthy,
            bytes,
        };
        let measured = Measured {
            tally,
            elapsed: Duration::from_secs(5),
            cpu_seconds_initiator: 1.5,
            cpu_seconds_target: Some(0.5),
            rails: vec![
                rail("tcp:10.0.0.1>10.0.0.2", 3000),
                rail("tcp:10.0.1.1>10.0.1.2", 1000),
            ],
            absence: None,
            timeline: Some(vec![Bucket {
                start: Duration::from_millis(100),
                length: Duration::from_millis(100),
                bytes: vec![300_000_000, 100_000_000],
            }]),
        };
        let cell = Cell {
            mode: Mode::Mix,
            block: 4096,
            batch: 2,
            threads: 1,
        };
        let config = Config {
            policy: polyrail::Policy::RoundRobin,
            ..Config::default()
        };
        Report::new(cell, &parse(flags).unwrap(), &config, measured)
    }

    #[test]
    fn every_field_is_there_under_its_fixed_name() {
        let json = serde_json::to_value(report("--verify")).unwrap();
        let mut keys: Vec<&str> = json
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let mut fixed: Vec<&str> = "op transport policy block_bytes batch threads seconds \
            gbytes_per_sec p50_us p99_us p999_us requests failed_requests verified \
            cpu_seconds_initiator cpu_seconds_target rails timeline"
            .split_whitespace()
            .collect();
        keys.sort_unstable();
        fixed.sort_unstable();
        assert_eq!(keys, fixed);
        assert_eq!(json["op"], "mix");
        assert_eq!(json["transport"], "tcp");
        assert_eq!(json["policy"], "round-robin");
        assert_eq!(json["verified"], true);
        assert_eq!(json["requests"], 4);
        let rail = &json["rails"][0];
        assert_eq!(rail["rail"], "tcp:10.0.0.1>10.0.0.2");
        assert_eq!(rail["state"], "healthy");
        assert_eq!(rail["bytes"], 3000);
        assert_eq!(rail["share"], 0.75);
        assert_eq!(rail["gbytes_per_sec"], 1.5);
        let moment = &json["timeline"][0];
        assert_eq!(moment["ms"], 100);
        assert_eq!(moment["gbytes_per_sec"], 4.0);
        assert_eq!(moment["rails"][1], 1.0);
    }

    #[test]
    fn nothing_is_verified_unless_asked() {
        assert!(!report("").verified);
    }

    #[test]
    fn a_timeline_is_absent_unless_measured() {
        let report = Report {
            timeline: None,
            ..report("")
        };
        let json = serde_json::to_value(report).unwrap();
        assert!(json.get("timeline").is_none());
    }

    #[test]
    fn shares_of_nothing_are_numbers() {
        let shares = [RailShare {
            name: "tcp:a>b".to_owned(),
            state: RailState::Paused,
            bytes: 0,
        }];
        let rails = rails(&shares, None, 0.0);
        assert_eq!((rails[0].share, rails[0].state), (0.0, "paused"));
    }

    #[test]
    fn no_rail_to_a_target_that_is_absent_is_healthy() {
        let shares = [RailShare {
            name: "tcp:a>b".to_owned(),
            state: RailState::Healthy,
            bytes: 1,
        }];
        // (absence, for programs, for people)
        let cases = [
            (None, "healthy", "healthy"),
            (Some(Absence::Lost), "paused", "lost"),
            (Some(Absence::Silent), "paused", "silent"),
        ];
        for (absence, state, standing) in cases {
            let rails = rails(&shares, absence, 1.0);
            assert_eq!((rails[0].state, rails[0].standing), (state, standing));
        }
    }
}
