//! Faults: from when to when what has which rate, or is cut.

use std::ops::Range;

use toml::Spanned;

use super::{Builder, Checked, Cut, DURATION_MS_MAX, Incident, MS, PPM, Rail, WINDOWS_MAX};
use crate::model::chance::Chance;
use crate::scenario::{Fault, FaultKind};

const REPEATS_MAX: u32 = 10_000;

/// What a fault does to one thing.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effect {
    /// A resource has this many millionths of its nominal rate.
    Rate { resource: usize, ppm: u64 },
    /// A rail is cut.
    Cut { rail: usize, cut: Cut },
}

/// From when to when a fault does it.
pub(super) struct Window {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) effect: Effect,
}

/// How long someone else's bursts last, and the pauses between them.
const BURST_NS_MIN: u64 = 2_000_000;
const BURST_NS_MAX: u64 = 6_000_000;
/// What the mildest of them leaves.
const BURST_LEFT_MAX_PPM: u64 = 600_000;
/// The stream of the first fault's luck.
const BURST_STREAM: u64 = 1 << 48;

impl Builder<'_> {
    /// What faults do and when, those that repeat or come in bursts written out.
    pub(super) fn windows(&self, ends_at: u64, seed: u64) -> Checked<Vec<Window>> {
        let mut windows: Vec<Window> = Vec::new();
        for (number, fault) in self.scenario.fault.iter().enumerate() {
            let effects = self.effects(fault)?;
            let mut chance = Chance::new(seed, BURST_STREAM + number as u64);
            for span in self.spans(fault)? {
                // Two resources, the directions of one device, share their fate.
                for pair in effects.chunks(2) {
                    if *fault.kind.get_ref() == FaultKind::Bursts {
                        let span = span.start..span.end.min(ends_at);
                        windows.extend(bursts(&mut chance, span, pair));
                    } else {
                        windows.extend(pair.iter().map(|effect| Window {
                            from: span.start,
                            to: span.end,
                            effect: *effect,
                        }));
                    }
                    if windows.len() > WINDOWS_MAX {
                        let text = format!("faults make more than {WINDOWS_MAX} spans");
                        return self.error(&fault.kind, text);
                    }
                }
            }
        }
        Ok(windows)
    }

    /// What happens to hosts, in order of time.
    pub(super) fn incidents(&self) -> Checked<Vec<(u64, usize, Incident)>> {
        let mut incidents = Vec::new();
        for fault in &self.scenario.fault {
            let pair: fn(u64) -> [Option<Incident>; 2] = match *fault.kind.get_ref() {
                FaultKind::Stall => |until| [Some(Incident::Stalls { until }), None],
                FaultKind::Mute => |_| [true, false].map(|mute| Some(Incident::Muted(mute))),
                FaultKind::Restart => |_| {
                    [
                        Some(Incident::Down),
                        Some(Incident::Back { restarted: true }),
                    ]
                },
                FaultKind::Reset => |_| {
                    [
                        Some(Incident::Down),
                        Some(Incident::Back { restarted: false }),
                    ]
                },
                FaultKind::Death => |_| [Some(Incident::Dies), None],
                FaultKind::AgentCrash => {
                    |_| [Some(Incident::AgentDies), Some(Incident::AgentStarts)]
                }
                FaultKind::Slow | FaultKind::Silent | FaultKind::Error | FaultKind::Bursts => {
                    continue;
                }
            };
            let (may_end, must_end) = match fault.kind.get_ref() {
                FaultKind::Death => (false, false),
                FaultKind::Mute => (true, false),
                _ => (true, true),
            };
            let ends = fault.for_ms.is_some();
            if fault.factor.is_some() || ends && !may_end || !ends && must_end {
                let for_ms = if may_end { "for_ms" } else { "no for_ms" };
                let text = format!("this kind of fault needs {for_ms}, and no factor");
                return self.error(&fault.kind, text);
            }
            let host = self.host(&fault.target)?;
            for span in self.spans(fault)? {
                let times = [span.start, span.end];
                let at = times.into_iter().zip(pair(span.end));
                // What has no end ends never.
                let at = at.filter(|(at, _)| *at != u64::MAX);
                incidents.extend(at.filter_map(|(at, what)| Some((at, host, what?))));
            }
        }
        incidents.sort_by_key(|(at, ..)| *at);
        Ok(incidents)
    }

    /// By rail: whether chance does nothing to it.
    pub(super) fn spared(&self) -> Checked<Vec<bool>> {
        let mut spared = vec![false; self.rails.len()];
        for target in &self.scenario.trouble.spared {
            for rail in self.cut(target)? {
                spared[rail] = true;
            }
        }
        Ok(spared)
    }

    /// When a fault is there.
    fn spans(&self, fault: &Fault) -> Checked<Vec<Range<u64>>> {
        let times = match &fault.times {
            Some(times) => self.within(times, 1, REPEATS_MAX, "times")?,
            None => 1,
        };
        let given = [Some(fault.at_ms), fault.for_ms, fault.every_ms];
        if !given
            .into_iter()
            .flatten()
            .all(|ms| (0.0..=DURATION_MS_MAX as f64).contains(&ms))
        {
            return self.error(
                &fault.kind,
                format!("at_ms, for_ms and every_ms are 0 to {DURATION_MS_MAX}"),
            );
        }
        if times > 1 && (fault.every_ms.is_none() || fault.for_ms.is_none()) {
            return self.error(
                &fault.kind,
                "a fault that repeats needs for_ms and every_ms",
            );
        }
        let every = (fault.every_ms.unwrap_or(0.0) * MS) as u64;
        let span = |time: u64| {
            let from = (fault.at_ms * MS) as u64 + time * every;
            from..fault
                .for_ms
                .map_or(u64::MAX, |length| from + (length * MS) as u64)
        };
        Ok((0..u64::from(times)).map(span).collect())
    }

    /// What a fault does while it is there.
    fn effects(&self, fault: &Fault) -> Checked<Vec<Effect>> {
        let kind = *fault.kind.get_ref();
        let cut = match kind {
            FaultKind::Silent => Cut::Silent,
            FaultKind::Error => Cut::Error,
            FaultKind::Stall | FaultKind::Mute | FaultKind::AgentCrash => return Ok(Vec::new()),
            FaultKind::Restart | FaultKind::Reset | FaultKind::Death => {
                let host = self.host(&fault.target)?;
                let leads_there = |index: &usize| self.devices[self.rails[*index].to].host == host;
                let rails = (0..self.rails.len()).filter(leads_there);
                let cut = Cut::Error;
                return Ok(rails.map(|rail| Effect::Cut { rail, cut }).collect());
            }
            FaultKind::Slow | FaultKind::Bursts => {
                let Some(factor) = &fault.factor else {
                    return self.error(&fault.kind, "this kind of fault needs a factor");
                };
                let ppm = (self.within(factor, 0.000_1, 100.0, "factor")? * PPM as f64) as u64;
                let resources = self.slowed(&fault.target)?;
                return Ok(resources
                    .into_iter()
                    .map(|resource| Effect::Rate { resource, ppm })
                    .collect());
            }
        };
        if let Some(factor) = &fault.factor {
            return self.error(factor, "a cut has no factor");
        }
        let rails = self.cut(&fault.target)?;
        Ok(rails
            .into_iter()
            .map(|rail| Effect::Cut { rail, cut })
            .collect())
    }

    /// Resources that a fault's target means, in pairs of directions.
    fn slowed(&self, target: &Spanned<String>) -> Checked<Vec<usize>> {
        let name = target.get_ref();
        if name.contains('>') {
            return self.error(target, "one rail cannot be slowed; slow its device");
        }
        let bottleneck = self
            .scenario
            .bottleneck
            .iter()
            .position(|row| row.name.get_ref() == name);
        let found = match bottleneck {
            Some(index) => vec![self.devices.len() + index],
            None => self.some_named(target)?,
        };
        Ok(found
            .into_iter()
            .flat_map(|index| [2 * index, 2 * index + 1])
            .collect())
    }

    /// Rails that a fault's target means.
    pub(super) fn cut(&self, target: &Spanned<String>) -> Checked<Vec<usize>> {
        let name = target.get_ref();
        let found: Vec<usize> = match name.split_once('>') {
            Some((from, to)) => {
                let (from, to) = (self.named(from), self.named(to));
                let joins = |rail: &&Rail| from.contains(&rail.from) && to.contains(&rail.to);
                (0..self.rails.len())
                    .filter(|index| joins(&&self.rails[*index]))
                    .collect()
            }
            None => {
                let devices = self.some_named(target)?;
                let touches =
                    |rail: &Rail| devices.contains(&rail.from) || devices.contains(&rail.to);
                (0..self.rails.len())
                    .filter(|index| touches(&self.rails[*index]))
                    .collect()
            }
        };
        if found.is_empty() {
            return self.error(
                target,
                format!("no rail is {name:?}; write host/device or host/device>host/device"),
            );
        }
        Ok(found)
    }
}

/// Someone else's traffic on one device: on for 2 to 6 ms, off for as long, leaving a share drawn each time.
fn bursts(chance: &mut Chance, span: Range<u64>, directions: &[Effect]) -> Vec<Window> {
    let mut windows = Vec::new();
    let mut from = span.start + chance.below(BURST_NS_MAX);
    while from < span.end {
        let to = (from + BURST_NS_MIN + chance.below(BURST_NS_MAX - BURST_NS_MIN)).min(span.end);
        let draw = chance.below(PPM);
        for effect in directions {
            if let Effect::Rate { resource, ppm } = *effect {
                let left = ppm + BURST_LEFT_MAX_PPM.saturating_sub(ppm) * draw / PPM;
                let effect = Effect::Rate {
                    resource,
                    ppm: left,
                };
                windows.push(Window { from, to, effect });
            }
        }
        from = to + BURST_NS_MIN + chance.below(BURST_NS_MAX - BURST_NS_MIN);
    }
    windows
}
