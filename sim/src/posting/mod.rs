//! Scenarios that are about send queues: the same fabric, engines and core as all others, run under settings that are compared.
//!
//! Told from other files by `[[setting]]` beside `[[workload]]`. A setting names how rails are chosen, by core or by a split
//! policy, and how room is given. What is counted besides: who waited for room or was refused, how full lanes were, what
//! completions there were.

mod expect;
mod figures;

use crate::Options;
use crate::model::{self, History};
use crate::report::Outcome;
use crate::scenario::{Scenario, ScenarioError, Setting, SettingExpect};

pub use expect::misses;
pub(crate) use figures::COLUMNS;
pub use figures::{Figures, row};

/// A scenario with its settings, checked.
#[derive(Clone, Debug)]
pub struct Setup {
    fabric: crate::Setup,
    settings: Vec<Case>,
}

/// A setting of it.
#[derive(Clone, Debug)]
struct Case {
    name: String,
    options: Options,
    /// The scenario as the setting has it.
    setup: crate::Setup,
    expect: SettingExpect,
}

/// A run under one setting: its numbers, and how it went.
#[derive(Clone, Debug)]
pub struct Run {
    /// The numbers.
    pub outcome: Outcome,
    pub(crate) history: History,
}

impl Setup {
    /// Reads a scenario's file; `seed` instead of its own.
    pub fn new(text: &str, seed: Option<u64>) -> Result<Self, ScenarioError> {
        let scenario = Scenario::parse(text)?;
        let fabric = crate::Setup::new(text, &scenario, seed)?;
        let mut settings: Vec<Case> = Vec::new();
        for row in &scenario.setting {
            let setting = row.get_ref();
            if settings.iter().any(|other| other.name == setting.name) {
                let message = format!("there are two settings {}", setting.name);
                return Err(ScenarioError::at(text, row.span(), message));
            }
            let options = match &setting.policy {
                None => Options::new(Default::default()),
                Some(name) => Options::named(name.get_ref()).ok_or_else(|| {
                    let message = format!("no policy is named {}", name.get_ref());
                    ScenarioError::at(text, name.span(), message)
                })?,
            };
            settings.push(Case {
                name: setting.name.clone(),
                options: Options {
                    watches_queues: true,
                    ..options
                },
                setup: with(&fabric, setting),
                expect: setting.expect.clone(),
            });
        }
        for row in &scenario.setting {
            let expect = &row.get_ref().expect;
            let mut others = (expect.gbytes_per_sec_min_ratio_to.keys())
                .chain(expect.depth_spread_max_ratio_to.keys())
                .chain(expect.completions_max_ratio_to.keys());
            let is_unknown = |name: &&String| settings.iter().all(|row| row.name != **name);
            if let Some(name) = others.find(is_unknown) {
                let message = format!("no setting is named {name}");
                return Err(ScenarioError::at(text, row.span(), message));
            }
        }
        Ok(Self { fabric, settings })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.fabric.name
    }

    /// What it shows, in one line.
    pub fn shows(&self) -> &str {
        &self.fabric.shows
    }

    /// What its chance starts from.
    pub fn seed(&self) -> u64 {
        self.fabric.seed
    }

    /// The settings that are compared, in order; the first is what runs unless another is asked for.
    pub fn settings(&self) -> impl Iterator<Item = &str> {
        self.settings.iter().map(|row| row.name.as_str())
    }

    /// The names of its rails, in order.
    pub(crate) fn rail_names(&self) -> impl Iterator<Item = String> {
        (0..self.fabric.rails.len()).map(|rail| self.fabric.rail_name(rail))
    }

    /// Works that the deepest lane holds.
    pub(crate) fn depth_max(&self) -> u16 {
        let depths = self.fabric.devices.iter().map(|device| device.queue_depth);
        depths.max().unwrap_or(0)
    }
}

/// The scenario as a setting has it.
fn with(fabric: &crate::Setup, setting: &Setting) -> crate::Setup {
    let mut setup = fabric.clone();
    let room = &mut setup.room;
    room.admission = setting.admission.unwrap_or(room.admission);
    let timeout = setting.admission_timeout_us;
    room.admission_timeout_us = timeout.unwrap_or(room.admission_timeout_us);
    let watermark = setting.admission_resume_watermark_works;
    room.admission_resume_watermark_works =
        watermark.unwrap_or(room.admission_resume_watermark_works);
    let interval = setting.signal_interval_works;
    setup.limits.signal_interval_works = interval.unwrap_or(setup.limits.signal_interval_works);
    setup
}

/// Runs one history under the setting of this number.
pub fn run(setup: &Setup, setting: usize) -> Run {
    let case = &setup.settings[setting.min(setup.settings.len() - 1)];
    let history = model::run(&case.setup, case.options, None, &mut |_, _| {});
    let mut outcome = Outcome::new(&case.setup, &case.name, &history);
    outcome.report.send_queue = Some(Figures::of(&history));
    outcome.notes.extend(history.queues.diagnosis.clone());
    Run { outcome, history }
}
