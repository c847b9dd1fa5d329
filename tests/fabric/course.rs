//! A course over links with delay: what the links are like, and the processes at their ends.

use std::fmt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::fabric::{End, Fabric};
use crate::link::Shape;
use crate::load::Load;
use crate::party::Party;
use crate::sides::{BARE, POLYRAIL};

/// How long a step may take: one that collapses moves 64 MiB at a few MB/s.
const STEP: Duration = Duration::from_secs(150);

/// A link between hosts of these times is paced by what passes in so many round trips.
const ROUND_TRIPS: u32 = 8;

/// The least time that is measured.
const TIME_MIN: Duration = Duration::from_millis(250);

/// The common size of packets where nothing else is said, and the usual one.
const MTU_LARGE: u32 = 9000;
const MTU_USUAL: u32 = 1500;

/// One packet in so many is lost, where some are.
const LOSS_ONE_IN: u32 = 1000;

/// The rate of a link that says so, in Mbit/s.
const RATE_MBIT: u32 = 3200;

/// Rates of four unequal links in Mbit/s, and their delays in hundredths of the first one's.
const UNEQUAL: [(u32, u32); 4] = [(1600, 100), (800, 150), (400, 200), (200, 300)];

/// What is unlike a link of steady delay and large packets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Nothing.
    Plain,
    /// Up to twice the delay is added.
    Jitter,
    /// One packet in 1,000 is lost.
    Loss,
    /// Packets are of 1500 bytes.
    Mtu,
    /// It carries less than the machine can send.
    Rate,
    /// Jitter, loss and small packets.
    All,
}

/// Links of a kind: one as fast as the machine, or four of unequal delay and rate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Links {
    pub(crate) rails: usize,
    /// Each way.
    pub(crate) delay: Duration,
    pub(crate) kind: Kind,
}

impl fmt::Display for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Plain => "",
            Kind::Jitter => ", jitter",
            Kind::Loss => ", loss",
            Kind::Mtu => ", MTU 1500",
            Kind::Rate => ", 3.2 Gbit/s",
            Kind::All => ", jitter, loss, MTU 1500",
        };
        write!(f, "{} × {:?}{kind}", self.rails, self.delay)
    }
}

impl Links {
    /// What each is like.
    pub(crate) fn shapes(self) -> Vec<Shape> {
        let shape = |delay: Duration, rate_mbit: Option<u32>| {
            let has = |kind| self.kind == kind || self.kind == Kind::All;
            let own_rate = (self.kind == Kind::Rate).then_some(RATE_MBIT);
            Shape {
                delay,
                jitter: if has(Kind::Jitter) {
                    delay * 2
                } else {
                    Duration::ZERO
                },
                loss_one_in: if has(Kind::Loss) { LOSS_ONE_IN } else { 0 },
                mtu: if has(Kind::Mtu) { MTU_USUAL } else { MTU_LARGE },
                rate_mbit: rate_mbit.or(own_rate),
            }
        };
        if self.rails == 1 {
            return vec![shape(self.delay, None)];
        }
        let unequal = UNEQUAL.iter().cycle().take(self.rails);
        unequal
            .map(|(rate, delay)| shape(self.delay * *delay / 100, Some(*rate)))
            .collect()
    }

    /// How long a load is measured.
    pub(crate) fn time(self) -> Duration {
        TIME_MIN.max(self.delay * 2 * ROUND_TRIPS)
    }
}

/// What was measured of one load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) gbytes_per_sec: f64,
    pub(crate) p50_us: f64,
}

/// Links, and the two processes at their ends.
pub(crate) struct Course {
    // Goes first: its links have nobody at their ends then.
    initiator: Party,
    _target: Party,
    pub(crate) fabric: Fabric,
}

impl Course {
    /// Lays links and starts this program at both ends. `None`, with the reason printed, where that is not allowed.
    #[track_caller]
    pub(crate) fn start(program: &Path, links: Links, seed: u64) -> Option<Self> {
        let shapes = links.shapes();
        let fabric = Fabric::distant(&shapes, seed)?;
        let mut command = fabric.on(End::Target, program);
        command.args(["target", "--rails", &fabric.addresses(End::Target)]);
        let mut target = Party::start(command, STEP);
        let listening = target.hear("listening");
        let engine = listening["engine"].as_str().expect("an address");
        let bare = listening["bare"].as_array().expect("addresses");
        let route = |(bare, shape): (&Value, &Shape)| {
            let bare = bare.as_str().expect("an address");
            let rate = f64::from(shape.rate_mbit.unwrap_or(10_000)) * 1e6 / 8.0;
            let round_trip = (shape.delay * 2 + shape.jitter).as_secs_f64();
            format!("{bare}/{rate}/{round_trip}")
        };
        let routes: Vec<String> = bare.iter().zip(&shapes).map(route).collect();
        let mut command = fabric.on(End::Initiator, program);
        command.args(["initiator", "--target", engine]);
        command.args(["--rails", &fabric.addresses(End::Initiator)]);
        command.args(["--routes", &routes.join(",")]);
        let mut initiator = Party::start(command, STEP);
        initiator.hear("ready");
        Some(Self {
            initiator,
            _target: target,
            fabric,
        })
    }

    /// Moves a load, by one side or the other, for a time, or a single batch of it.
    #[track_caller]
    pub(crate) fn carry(&mut self, side: &str, load: Load, time: Option<Duration>) -> Measured {
        self.begin(side, load, time);
        self.end()
    }

    /// The same over the engine, while each `interval` the connection that carries most over the first link is reset.
    #[track_caller]
    pub(crate) fn carry_reset(
        &mut self,
        load: Load,
        time: Duration,
        interval: Duration,
    ) -> Measured {
        self.begin(POLYRAIL, load, Some(time));
        let start = Instant::now();
        // Half of the time goes by before anything is measured.
        while start.elapsed() + interval < time * 3 / 2 {
            thread::sleep(interval);
            self.fabric.link(0).reset_next();
        }
        self.end()
    }

    #[track_caller]
    fn begin(&mut self, side: &str, load: Load, time: Option<Duration>) {
        let span = time.map_or("once".to_owned(), |time| time.as_millis().to_string());
        self.initiator.tell(&format!("{side} {load} {span}"));
    }

    #[track_caller]
    fn end(&mut self) -> Measured {
        let said = self.initiator.hear("measured");
        let number = |key: &str| said[key].as_f64().expect("a number");
        Measured {
            gbytes_per_sec: number("gbytes_per_sec"),
            p50_us: number("p50_us"),
        }
    }

    /// The same load over both sides, and the ratio of their rates. `swapped`: the engine goes first.
    #[track_caller]
    pub(crate) fn compare(&mut self, load: Load, time: Option<Duration>, swapped: bool) -> Pair {
        if swapped {
            let polyrail = self.carry(POLYRAIL, load, time);
            let bare = self.carry(BARE, load, time);
            return Pair { bare, polyrail };
        }
        let bare = self.carry(BARE, load, time);
        let polyrail = self.carry(POLYRAIL, load, time);
        Pair { bare, polyrail }
    }

    /// Whether what the engine writes is what it reads.
    #[track_caller]
    pub(crate) fn verify(&mut self) -> bool {
        self.initiator.tell("verify");
        self.initiator.hear("verified") == true
    }
}

/// Both sides, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) bare: Measured,
    pub(crate) polyrail: Measured,
}

impl Pair {
    pub(crate) fn ratio(&self) -> f64 {
        self.polyrail.gbytes_per_sec / self.bare.gbytes_per_sec
    }
}
