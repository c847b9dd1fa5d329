//! Throughput over time, of all rails together and of each, with what is wrong with it and what core thinks.

use polyrail_core::rail::health::RailState;

use super::axis::{Axis, highest_shown, limit_words, number, time_unit};
use super::svg::{Anchor, Svg, stairs};
use super::{Fault, Run, Wrong, faults};
use crate::columns::Columns;
use crate::fluid::Capacity;
use crate::setup::{Incident, Setup};

/// Rails that get a row of their own.
const ROWS_MAX: usize = 64;
/// Rails that are stacked one by one; more are too thin to be told apart.
const STACKED_MAX: usize = 64;
const WIDTH: f64 = 1080.0;
const LEFT: f64 = 196.0;
const RIGHT: f64 = 1004.0;
const TOP: f64 = 26.0;
const STACK_HEIGHT: f64 = 240.0;
/// A character of a row's label is about so wide.
const CHARACTER: f64 = 6.2;
/// A layer that is less high has no number written in it.
const NUMBER_HEIGHT: f64 = 11.0;
/// What a rail's number takes of its row's label.
const NUMBER_CHARACTERS: usize = 3;
/// Multiples of it are spread evenly over the unit interval, however many there are.
const GOLDEN: f64 = 0.618_034;
/// Bands of states that are drawn for one rail; a rail that changes more often is drawn as it begins.
const BANDS_MAX: usize = 2_000;

/// A drawing of one run.
pub(super) fn draw(setup: &Setup, run: &Run) -> String {
    let rows = chosen_rows(setup, run);
    let columns_max = if setup.rails.len() > 16 { 200 } else { 400 };
    let columns = Columns::new(setup, &run.history, columns_max);
    let row_height = if rows.len() > 16 { 16.0 } else { 32.0 };
    let rows_top = TOP + STACK_HEIGHT + 44.0;
    let hosts = hosts_in_trouble(setup);
    let rows_bottom = rows_top + row_height * rows.len() as f64 + 18.0 * hosts.len() as f64;
    let (unit, unit_ns) = time_unit(columns.ended_at);
    let chart = Chart {
        setup,
        run,
        faults: faults(setup),
        time: Axis::linear(
            (columns.began_at / columns.bucket_ns * columns.bucket_ns) as f64 / unit_ns,
            columns.ended_at as f64 / unit_ns,
            (LEFT, RIGHT),
        ),
        unit,
        unit_ns,
        columns,
    };
    let label = format!("throughput over time of {} rails", setup.rails.len());
    let mut svg = Svg::new(WIDTH, rows_bottom + 40.0, &label);
    chart.stack(&mut svg);
    chart.rows(&mut svg, &rows, rows_top, row_height);
    let hosts_top = rows_top + row_height * rows.len() as f64;
    for (index, host) in hosts.iter().enumerate() {
        chart.host(&mut svg, *host, hosts_top + 18.0 * index as f64);
    }
    chart.time_axis(&mut svg, rows_bottom, true);
    svg.close()
}

/// Rails that have a row: all, or those with something to see and the first others.
fn chosen_rows(setup: &Setup, run: &Run) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..setup.rails.len()).collect();
    if rows.len() > ROWS_MAX {
        let faults = faults(setup);
        let quiet = |rail: &usize| {
            let fault = faults.iter().any(|fault| fault.rail == *rail);
            !fault && !run.history.rail_states.iter().any(|row| row.1 == *rail)
        };
        rows.sort_by_key(|rail| (quiet(rail), run.history.rail_bytes[*rail] == 0, *rail));
        rows.truncate(ROWS_MAX);
        rows.sort_unstable();
    }
    rows
}

/// How many rails have no row.
pub(super) fn rows_left_out(setup: &Setup) -> usize {
    setup.rails.len().saturating_sub(ROWS_MAX)
}

fn hosts_in_trouble(setup: &Setup) -> Vec<usize> {
    let mut hosts: Vec<usize> = setup.incidents.iter().map(|row| row.1).collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts.truncate(16);
    hosts
}

struct Chart<'a> {
    setup: &'a Setup,
    run: &'a Run,
    faults: Vec<Fault>,
    time: Axis,
    unit: &'static str,
    unit_ns: f64,
    columns: Columns,
}

impl Chart<'_> {
    fn x(&self, at: u64) -> f64 {
        self.time.at(at as f64 / self.unit_ns)
    }

    /// Where spans that follow each other begin, and where the last one ends.
    fn edges(&self, spans: &[(u64, u64)]) -> Vec<f64> {
        let begins = spans.iter().map(|span| span.0);
        let edges = begins.chain(spans.last().map(|span| span.1));
        edges.map(|at| self.x(at)).collect()
    }

    /// All rails on top of each other, below what the fabric allows.
    fn stack(&self, svg: &mut Svg) {
        let history = &self.run.history;
        let spans: Vec<_> = self.columns.spans().collect();
        let xs = self.edges(&spans);
        let mut sum = vec![0.0; spans.len()];
        let mut layers = Vec::new();
        for rail in 0..self.setup.rails.len() {
            for (sum, rate) in sum.iter_mut().zip(self.columns.rates(history, rail)) {
                *sum += rate;
            }
            if self.setup.rails.len() <= STACKED_MAX || rail + 1 == self.setup.rails.len() {
                layers.push((rail, sum.clone()));
            }
        }
        let limits = self.limits();
        let seen = highest(&sum);
        let limit = limits.iter().fold(0.0_f64, |most, row| most.max(row.1));
        let bottom = TOP + STACK_HEIGHT;
        let rates = Axis::linear(0.0, highest_shown(seen, limit) * 1.08, (bottom, TOP));
        for tick in rates.ticks(5) {
            let y = rates.at(tick);
            svg.line("grid", (LEFT, y), (RIGHT, y));
            svg.text("tick", (LEFT - 8.0, y + 3.5), Anchor::End, &number(tick));
        }
        svg.text("axis", (LEFT - 8.0, TOP - 12.0), Anchor::End, "GB/s");
        self.fault_bands(svg, TOP, bottom);
        // The whole first, lower layers over it.
        for (rail, tops) in layers.iter().rev() {
            let ys: Vec<f64> = tops.iter().map(|top| rates.at(*top)).collect();
            let title = self.setup.rail_name(*rail);
            svg.path(
                "layer",
                &stairs(&xs, &ys, bottom),
                &self.fill(*rail),
                &title,
            );
        }
        self.numbers(svg, &layers, &xs, &rates);
        let mut commands = String::new();
        for (index, (from, rate)) in limits.iter().enumerate() {
            let (x, y) = (self.x(*from), rates.at(*rate));
            let to = limits
                .get(index + 1)
                .map_or(self.columns.ended_at, |next| next.0);
            let before = if index == 0 {
                format!("M{x:.1} {y:.1}")
            } else {
                format!("V{y:.1}")
            };
            commands += &format!("{before}H{:.1}", self.x(to));
        }
        svg.path("limit", &commands, "", "what the fabric allows");
        if rates.is_below(limit) {
            let words = limit_words(&rates, limit, "GB/s");
            svg.text("axis", (RIGHT, TOP - 12.0), Anchor::End, &words);
        }
        self.time_axis(svg, bottom, false);
    }

    /// Writes each rail's number where its layer is thickest, if it has room there.
    fn numbers(&self, svg: &mut Svg, layers: &[(usize, Vec<f64>)], xs: &[f64], rates: &Axis) {
        if self.setup.rails.len() > STACKED_MAX {
            return;
        }
        let nothing = vec![0.0; xs.len()];
        let bottoms = std::iter::once(&nothing).chain(layers.iter().map(|layer| &layer.1));
        for ((rail, tops), bottoms) in layers.iter().zip(bottoms) {
            let thick = |column: &usize| rates.at(bottoms[*column]) - rates.at(tops[*column]);
            let columns = 0..tops.len();
            let Some(column) = columns.max_by(|a, b| thick(a).total_cmp(&thick(b))) else {
                continue;
            };
            if thick(&column) >= NUMBER_HEIGHT {
                let x = f64::midpoint(xs[column], xs[column + 1]);
                let y = f64::midpoint(rates.at(bottoms[column]), rates.at(tops[column])) + 3.5;
                svg.text("number", (x, y), Anchor::Middle, &(rail + 1).to_string());
            }
        }
    }

    /// What the fabric allows from when on, in gigabytes a second.
    fn limits(&self) -> Vec<(u64, f64)> {
        let capacity = Capacity::of_all(self.setup);
        let steps = capacity.steps();
        steps
            .map(|(from, rate)| (from, rate as f64 / 1e9))
            .take_while(|(from, _)| *from < self.columns.ended_at)
            .collect()
    }

    /// Where something is wrong anywhere.
    fn fault_bands(&self, svg: &mut Svg, top: f64, bottom: f64) {
        let mut spans: Vec<_> = self
            .faults
            .iter()
            .map(|fault| (fault.from, fault.to))
            .collect();
        spans.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (from, to) in spans {
            match joined.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => joined.push((from, to)),
            }
        }
        for (from, to) in joined {
            let (left, right) = (self.x(from), self.x(to));
            if right > left {
                svg.rect(
                    "wrong",
                    (left, top),
                    ((right - left).max(1.0), bottom - top),
                    "",
                    "a rail is cut or slowed",
                );
            }
        }
    }

    /// One row for each rail: its name, its throughput, its states, its share.
    fn rows(&self, svg: &mut Svg, rows: &[usize], top: f64, height: f64) {
        let rates_of = |rail: &usize| self.columns.rates(&self.run.history, *rail);
        let fastest = rows.iter().map(|rail| highest(&rates_of(rail)));
        let fastest = fastest.fold(0.0_f64, f64::max);
        let strip = if height > 20.0 { 6.0 } else { 3.5 };
        svg.text("axis", (LEFT - 8.0, top - 8.0), Anchor::End, "rail");
        let words = format!("a row is {} GB/s high", number(fastest));
        svg.text("axis", (LEFT, top - 8.0), Anchor::Start, &words);
        svg.text("axis", (RIGHT + 8.0, top - 8.0), Anchor::Start, "share");
        for (index, rail) in rows.iter().enumerate() {
            let y = top + index as f64 * height;
            let base = y + height - strip - 3.0;
            let middle = y + height / 2.0 + 3.0;
            let name = self.setup.rail_name(*rail);
            let small = if height > 20.0 { "name" } else { "name small" };
            let numbered = format!("{} {}", rail + 1, shortened(&name));
            svg.text(small, (LEFT - 8.0, middle), Anchor::End, &numbered);
            let share = &self.run.outcome.report.rails[*rail];
            let class = if height > 20.0 {
                "share"
            } else {
                "share small"
            };
            svg.text(
                class,
                (RIGHT + 8.0, middle),
                Anchor::Start,
                &format!("{:.1} %", share.share * 100.0),
            );
            self.faults_of(svg, *rail, y + 1.0, base);
            let axis = Axis::linear(0.0, fastest, (base, y + 2.0));
            let spans: Vec<_> = self.columns.spans().collect();
            let xs = self.edges(&spans);
            let ys: Vec<f64> = self
                .columns
                .rates(&self.run.history, *rail)
                .iter()
                .map(|rate| axis.at(*rate))
                .collect();
            svg.path("layer", &stairs(&xs, &ys, base), &self.fill(*rail), &name);
            self.states(svg, *rail, base + 1.0, strip);
        }
    }

    /// What is wrong with a rail.
    fn faults_of(&self, svg: &mut Svg, rail: usize, top: f64, bottom: f64) {
        for fault in self.faults.iter().filter(|fault| fault.rail == rail) {
            let (left, right) = (self.x(fault.from), self.x(fault.to));
            if right <= left {
                continue;
            }
            let class = match fault.what {
                Wrong::Slow(_) => "slowed",
                Wrong::Silent | Wrong::Error => "cut",
            };
            let words = fault.what.text();
            svg.rect(
                class,
                (left, top),
                ((right - left).max(1.0), bottom - top),
                "",
                &words,
            );
            let room = right - left > CHARACTER * words.chars().count() as f64 + 12.0;
            if room && bottom - top > 14.0 {
                svg.text("said", (left + 5.0, top + 11.0), Anchor::Start, &words);
            }
        }
    }

    /// What core thought of a rail, when.
    fn states(&self, svg: &mut Svg, rail: usize, top: f64, height: f64) {
        let own = self
            .run
            .history
            .rail_states
            .iter()
            .filter(|row| row.1 == rail);
        let changes: Vec<_> = [(0, RailState::Healthy)]
            .into_iter()
            .chain(own.map(|row| (row.0, row.2)))
            .take(BANDS_MAX)
            .collect();
        svg.rect(
            "healthy",
            (LEFT, top),
            (RIGHT - LEFT, height),
            "",
            "healthy",
        );
        for (index, (from, state)) in changes.iter().enumerate() {
            let to = changes
                .get(index + 1)
                .map_or(self.columns.ended_at, |next| next.0);
            let (left, right) = (self.x(*from), self.x(to));
            let class = match state {
                RailState::Healthy => continue,
                RailState::Paused => "paused",
                RailState::Probing => "probing",
            };
            svg.rect(
                class,
                (left, top),
                ((right - left).max(1.0), height),
                "",
                state.name(),
            );
        }
    }

    /// What happens to a host.
    fn host(&self, svg: &mut Svg, host: usize, y: f64) {
        let device = self.setup.devices.iter().find(|device| device.host == host);
        let name = device
            .and_then(|device| device.name.split('/').next())
            .unwrap_or("");
        svg.text(
            "name small",
            (LEFT - 8.0, y + 13.0),
            Anchor::End,
            &format!("host {name}"),
        );
        let own: Vec<_> = self
            .setup
            .incidents
            .iter()
            .filter(|row| row.1 == host)
            .collect();
        for (index, (at, _, incident)) in own.iter().enumerate() {
            let next = own
                .get(index + 1)
                .map_or(self.columns.ended_at, |row| row.0);
            let (to, words) = match incident {
                Incident::Stalls { until } => (*until, "stands still"),
                Incident::Muted(true) => (next, "unheard"),
                Incident::Down => (next, "down"),
                Incident::Dies => (self.columns.ended_at, "gone"),
                Incident::AgentDies => (next, "no agent"),
                Incident::Muted(false) | Incident::Back { .. } | Incident::AgentStarts => continue,
            };
            let (left, right) = (self.x(*at), self.x(to));
            svg.rect(
                "cut",
                (left, y + 4.0),
                ((right - left).max(1.0), 12.0),
                "",
                words,
            );
            if right - left > CHARACTER * words.len() as f64 + 12.0 {
                svg.text("said", (left + 5.0, y + 13.5), Anchor::Start, words);
            }
        }
    }

    fn time_axis(&self, svg: &mut Svg, y: f64, named: bool) {
        svg.line("frame", (LEFT, y), (RIGHT, y));
        for tick in self.time.ticks(8) {
            let x = self.time.at(tick);
            svg.line("frame", (x, y), (x, y + 4.0));
            svg.text("tick", (x, y + 16.0), Anchor::Middle, &number(tick));
        }
        if named {
            let words = format!("time, {}", self.unit);
            svg.text(
                "axis",
                ((LEFT + RIGHT) / 2.0, y + 33.0),
                Anchor::Middle,
                &words,
            );
        }
    }

    /// A rail's colour, between green and pink, which no fault has. Neighbours are far apart in hue, and of three
    /// lightnesses by turns.
    fn fill(&self, rail: usize) -> String {
        if self.setup.rails.len() > STACKED_MAX {
            return "style=\"fill:hsl(210 55% 55%)\"".to_owned();
        }
        let hue = 130.0 + 200.0 * (rail as f64 * GOLDEN).fract();
        let light = [40, 54, 68][rail % 3];
        format!("style=\"fill:hsl({hue:.0} 52% {light}%)\"")
    }
}

fn highest(rates: &[f64]) -> f64 {
    rates.iter().copied().fold(0.0, f64::max)
}

/// A name that fits left of its row.
fn shortened(name: &str) -> String {
    let most = ((LEFT - 12.0) / CHARACTER) as usize - NUMBER_CHARACTERS;
    let length = name.chars().count();
    if length <= most {
        return name.to_owned();
    }
    let kept = (most - 1) / 2;
    let start: String = name.chars().take(kept).collect();
    let end: String = name.chars().skip(length - kept).collect();
    format!("{start}…{end}")
}
