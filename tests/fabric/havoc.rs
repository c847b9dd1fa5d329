//! The leader of chaos: it starts all processes, lets things fail at random, and listens to what the initiators have found.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use oorandom::Rand64;
use rustix::process::Signal;

use crate::fabric::{End, Fabric, Fault, address};
use crate::hoard::SEGMENTS;
use crate::ledger::AREAS;
use crate::party::Party;

const RAILS: usize = 3;
const RATE_MBIT: u32 = 400;
const SLOW_MBIT: u32 = 5;

/// Where the targets listen.
const PORTS: [u16; 2] = [7001, 7002];

/// The initiators: one beside the targets, which shares memory with them, and one elsewhere.
const HOSTS: [End; 2] = [End::Target, End::Initiator];

/// Lives of an initiator before an area is used again.
const LIVES: usize = AREAS / HOSTS.len();

/// How long things fail in a row, before it is looked whether all is well.
const STORM: Duration = Duration::from_secs(6);

/// How long a process may take to say something: longer than it takes to give up.
const PATIENCE: Duration = Duration::from_secs(90);

/// The longest that a process is stopped.
const STOP_MAX_MS: u64 = 3000;

/// Runs for so long. Whether nothing was wrong.
pub(crate) fn run(seconds: u64, seed: Option<u64>) -> bool {
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = seed.unwrap_or_else(|| clock().map_or(0, |since| since.as_secs()));
    println!("seed {seed}");
    let Some(fabric) = Fabric::new(&[RATE_MBIT; RAILS]) else {
        return true;
    };
    let mut havoc = Havoc::new(&fabric, seed);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut rounds = 0;
    while Instant::now() < until && havoc.wrong == 0 {
        havoc.storm(Instant::now() + STORM);
        havoc.calm();
        rounds += 1;
    }
    println!(
        "{rounds} rounds; {:?}; faults {:?}",
        havoc.counts, havoc.faults
    );
    if havoc.wrong > 0 {
        println!("{} things are not so, with seed {seed}", havoc.wrong);
    }
    havoc.wrong == 0
}

/// What a rail suffers from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rail {
    Whole,
    Cut(Fault),
    Slow,
}

/// A process of the experiment.
struct Actor {
    party: Party,
    /// Lives before this one.
    lives: usize,
    /// It was stopped, until then.
    stopped: Option<Instant>,
    /// Things that it has still to say.
    owes: Vec<&'static str>,
}

struct Havoc<'a> {
    fabric: &'a Fabric,
    program: PathBuf,
    random: Rand64,
    rails: [Rail; RAILS],
    targets: Vec<Actor>,
    initiators: Vec<Actor>,
    life: u64,
    counts: BTreeMap<String, u64>,
    faults: BTreeMap<&'static str, u64>,
    wrong: usize,
}

impl<'a> Havoc<'a> {
    fn new(fabric: &'a Fabric, seed: u64) -> Self {
        let mut havoc = Self {
            fabric,
            program: env::current_exe().expect("a program knows where it is"),
            random: Rand64::new(seed.into()),
            rails: [Rail::Whole; RAILS],
            targets: Vec::new(),
            initiators: Vec::new(),
            life: 0,
            counts: BTreeMap::new(),
            faults: BTreeMap::new(),
            wrong: 0,
        };
        for place in 0..PORTS.len() {
            let target = havoc.target(place);
            havoc.targets.push(target);
        }
        havoc.targets.iter_mut().for_each(Actor::settle);
        for place in 0..HOSTS.len() {
            let initiator = havoc.initiator(place, 0);
            havoc.initiators.push(initiator);
        }
        havoc
    }

    fn target(&self, place: usize) -> Actor {
        let mut command = self.fabric.on(End::Target, &self.program);
        command.args(["target", "--port", &PORTS[place].to_string()]);
        command.args(["--rails", &self.fabric.addresses(End::Target)]);
        Actor::new(Party::start(command, PATIENCE), 0, "serves")
    }

    fn initiator(&mut self, place: usize, lives: usize) -> Actor {
        self.life += 1;
        let area = place * LIVES + lives % LIVES;
        let targets = PORTS.map(|port| format!("{}:{port}", address(0, End::Target)));
        let mut command = self.fabric.on(HOSTS[place], &self.program);
        command.args(["initiator", "--area", &area.to_string()]);
        command.args(["--life", &self.life.to_string()]);
        command.args(["--targets", &targets.join(",")]);
        Actor::new(Party::start(command, PATIENCE), lives, "probes")
    }

    fn below(&mut self, count: usize) -> usize {
        self.random.rand_range(0..count as u64) as usize
    }

    /// Lets things fail until then.
    fn storm(&mut self, until: Instant) {
        while Instant::now() < until {
            let pause = Duration::from_millis(self.random.rand_range(10..300));
            thread::sleep(pause);
            for actor in self.targets.iter_mut().chain(&mut self.initiators) {
                actor.wake(Instant::now());
            }
            let what = match self.below(20) {
                0..=4 => self.break_rail(),
                5..=8 => self.mend_rail(),
                9..=12 => self.stop(),
                13..=16 => self.renew(),
                17 | 18 => self.kill_target(),
                _ => self.kill_initiator(),
            };
            *self.faults.entry(what).or_default() += 1;
        }
    }

    fn break_rail(&mut self) -> &'static str {
        let rail = self.below(RAILS);
        let faults = [
            Rail::Cut(Fault::CarrierDown),
            Rail::Cut(Fault::Silent),
            Rail::Slow,
        ];
        let fault = faults[self.below(faults.len())];
        self.mend(rail);
        self.rails[rail] = fault;
        match fault {
            Rail::Whole => {}
            Rail::Cut(fault) => self.fabric.cut(rail, fault),
            Rail::Slow => self.fabric.set_rate(rail, SLOW_MBIT),
        }
        match fault {
            Rail::Cut(Fault::CarrierDown) => "rails down",
            Rail::Cut(Fault::Silent) => "rails silent",
            Rail::Slow | Rail::Whole => "rails slow",
        }
    }

    fn mend_rail(&mut self) -> &'static str {
        let rail = self.below(RAILS);
        self.mend(rail);
        "rails mended"
    }

    fn mend(&mut self, rail: usize) {
        match std::mem::replace(&mut self.rails[rail], Rail::Whole) {
            Rail::Whole => {}
            Rail::Cut(fault) => self.fabric.restore(rail, fault),
            Rail::Slow => self.fabric.set_rate(rail, RATE_MBIT),
        }
    }

    fn stop(&mut self) -> &'static str {
        let place = self.below(PORTS.len() + HOSTS.len());
        let ms = self.random.rand_range(20..STOP_MAX_MS);
        let mut actors = self.targets.iter_mut().chain(&mut self.initiators);
        let actor = actors.nth(place).expect("there are so many");
        actor.party.signal(Signal::STOP);
        actor.stopped = Some(Instant::now() + Duration::from_millis(ms));
        "processes stopped"
    }

    fn renew(&mut self) -> &'static str {
        let (place, segment) = (self.below(PORTS.len()), self.below(SEGMENTS));
        let target = &mut self.targets[place];
        target.party.tell(&segment.to_string());
        target.owes.push("anew");
        "segments made anew"
    }

    fn kill_target(&mut self) -> &'static str {
        let place = self.below(PORTS.len());
        // It binds to addresses that are not there while their carrier is gone.
        for rail in 0..RAILS {
            if self.rails[rail] == Rail::Cut(Fault::CarrierDown) {
                self.mend(rail);
            }
        }
        // First its end, since the next one has its port.
        self.targets.remove(place);
        let target = self.target(place);
        self.targets.insert(place, target);
        "targets killed"
    }

    fn kill_initiator(&mut self) -> &'static str {
        let place = self.below(HOSTS.len());
        let lives = self.initiators.remove(place).lives;
        let initiator = self.initiator(place, lives + 1);
        self.initiators.insert(place, initiator);
        "initiators killed"
    }

    /// Nothing fails any more, and all has to be well.
    fn calm(&mut self) {
        (0..RAILS).for_each(|rail| self.mend(rail));
        for actor in self.targets.iter_mut().chain(&mut self.initiators) {
            actor.wake(Instant::now() + Duration::from_millis(STOP_MAX_MS));
            actor.settle();
        }
        for initiator in &mut self.initiators {
            initiator.party.tell("calm");
        }
        for initiator in &mut self.initiators {
            let said = initiator.party.hear("calm");
            for (key, value) in said.as_object().into_iter().flatten() {
                match value.as_array() {
                    Some(wrong) => {
                        wrong.iter().for_each(|wrong| println!("NOT SO: {wrong}"));
                        self.wrong += wrong.len();
                    }
                    None => {
                        let count = self.counts.entry(key.clone()).or_default();
                        *count += value.as_u64().unwrap_or_default();
                    }
                }
            }
        }
        for initiator in &mut self.initiators {
            initiator.party.tell("storm");
        }
    }
}

impl Actor {
    fn new(party: Party, lives: usize, owes: &'static str) -> Self {
        Self {
            party,
            lives,
            stopped: None,
            owes: vec![owes],
        }
    }

    /// It goes on if its time has come.
    fn wake(&mut self, now: Instant) {
        if self.stopped.is_some_and(|until| until <= now) {
            self.stopped = None;
            self.party.signal(Signal::CONT);
        }
    }

    /// Listens to what it owes.
    fn settle(&mut self) {
        for key in self.owes.drain(..) {
            self.party.hear(key);
        }
    }
}
