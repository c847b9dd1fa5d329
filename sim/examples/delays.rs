//! `spray` beside the best other policy over four rails of any delay: told rightly, wrongly or not at all, with extra delay by
//! chance, and looked at often or seldom.
//!
//! `delays [TRIPS [MEDIAN WORST]]` runs each case for so many round trips (1,000). It prints the worst cases and how all are
//! distributed, and ends with 1 if the median or the worst is below what is asked.

use std::process::ExitCode;

use polyrail_sim::scenario::Scenario;
use polyrail_sim::{Options, POLICIES, Policy, Setup, on_all_cores, simulate};

const BASES_US: [f64; 6] = [1.0, 10.0, 100.0, 1_000.0, 10_000.0, 50_000.0];
/// What engines are told of it, as a multiple; 0: nothing.
const TOLD: [f64; 4] = [1.0, 0.01, 100.0, 0.0];
/// What an engine believes that was told nothing.
const UNTOLD_US: f64 = 50.0;
/// Extra delay in the mean, as a multiple, up to a limit.
const EXTRA: [f64; 4] = [0.0, 1.0, 10.0, 100.0];
const EXTRA_US_MAX: f64 = 100_000.0;
const LOOKS_US: [f64; 4] = [1.0, 50.0, 500.0, 5_000.0];
/// Half of what the submitters have under way fills the rails.
const RAIL_BYTES: f64 = 4.0 * 1024.0 * 1024.0;
const GBITS_MAX: f64 = 100.0;
const SHOWN: usize = 10;

struct Case {
    base_us: f64,
    told: f64,
    extra_us: f64,
    look_us: f64,
}

impl Case {
    fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for base_us in BASES_US {
            for told in TOLD {
                for extra in EXTRA {
                    let extra_us = (base_us * extra).min(EXTRA_US_MAX);
                    cases.extend(LOOKS_US.map(|look_us| Self {
                        base_us,
                        told,
                        extra_us,
                        look_us,
                    }));
                }
            }
        }
        cases
    }

    fn text(&self, trips: f64) -> String {
        let trip_us = self.base_us + self.extra_us + self.look_us;
        let gbits = (RAIL_BYTES * 8.0 / trip_us / 1_000.0).min(GBITS_MAX);
        let told = match self.told {
            0.0 => format!("told_delay_us = {UNTOLD_US:?}"),
            told => format!("believed_delay_factor = {told:?}"),
        };
        let host = |name: &str| {
            format!(
                "[[host]]\nname = \"{name}\"\n[[device]]\nhost = \"{name}\"\nname = \"n\"\ncount = 4\n\
                 rate_gbits_per_sec = {gbits:?}\ndelay_us = {:?}\n",
                self.base_us / 2.0
            )
        };
        format!(
            "name = \"delays\"\nduration_ms = {}\n[engine]\npoll_us = {}\n{told}\n[jitter]\ndelay_percent = {}\n{}{}\
             [[rail]]\nfrom = \"a/n*\"\nto = \"b/n*\"\n\
             [[workload]]\nfrom = \"a\"\nto = \"b\"\nop = \"write\"\nblock = \"4MiB\"\nthreads = 8\n",
            (trip_us * trips / 1_000.0).max(1.0) as u64,
            self.look_us as u64,
            (self.extra_us / self.base_us * 100.0) as u64,
            host("a"),
            host("b"),
        )
    }

    /// `spray`'s goodput as a part of the best of the others'.
    fn ratio(&self, trips: f64) -> Result<f64, String> {
        let text = self.text(trips);
        let scenario = Scenario::parse(&text).map_err(|error| format!("{error}\n{text}"))?;
        let setup = Setup::new(&text, &scenario, None).map_err(|error| format!("{error}"))?;
        let goodput = |policy: &Policy| {
            let outcome = simulate(&setup, Options::new(*policy), &mut |_, _| {});
            outcome.report.goodput_gbytes_per_sec
        };
        let others = POLICIES.iter().filter(|policy| **policy != Policy::Spray);
        let best = others.map(goodput).fold(f64::MIN_POSITIVE, f64::max);
        Ok(goodput(&Policy::Spray) / best)
    }
}

fn main() -> ExitCode {
    let args: Vec<f64> = std::env::args()
        .skip(1)
        .filter_map(|text| text.parse().ok())
        .collect();
    let trips = args.first().copied().unwrap_or(1_000.0);
    let (median_min, worst_min) = match args.as_slice() {
        [_, median, worst] => (*median, *worst),
        _ => (0.0, 0.0),
    };
    let cases = Case::all();
    let count = cases.len() as u64;
    let progress = |done| eprint!("\r{done} of {count} cases");
    let ratios = on_all_cores(
        count,
        |number| cases[number as usize].ratio(trips),
        progress,
    );
    eprintln!();
    let ratios: Result<Vec<f64>, String> = ratios.into_iter().collect();
    let ratios = match ratios {
        Ok(ratios) => ratios,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let mut rows: Vec<_> = ratios.into_iter().zip(&cases).collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    println!("   of best    base µs    told ×   extra µs    look µs");
    for (ratio, case) in rows.iter().take(SHOWN) {
        println!(
            "{ratio:10.3} {:10} {:>9} {:10} {:10}",
            case.base_us, case.told, case.extra_us, case.look_us
        );
    }
    let (worst, p5) = (rows[0].0, rows[rows.len() / 20].0);
    let median = rows[rows.len() / 2].0;
    println!(
        "{count} cases of {trips} round trips: median {median:.3}, p5 {p5:.3}, worst {worst:.3}"
    );
    if median < median_min || worst < worst_min {
        eprintln!("error: less than a median of {median_min} and a worst of {worst_min}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
