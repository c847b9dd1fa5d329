//! `polyrail demo`: unequal rails, one of which is cut and comes back, and no byte is lost.
//!
//! The target is a second process. The rails are four loopback addresses, paced so that their shares can be
//! seen; the faults are put in under the engine, which is the shipped one and is told nothing.

mod live;
mod script;
mod story;
mod traffic;

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use polyrail::{Config, Engine, Faults, Hooks, RailMap};

use crate::exit::Failure;
use crate::kind::MemoryKind;
use crate::recorded::recorded;
use crate::sample::Run;
use crate::session::Session;
use crate::settings::ConfigArgs;
use crate::sizes;
use crate::target::OwnTarget;
use crate::timeline::{Bucket, Recorder};
use live::Live;
use script::Script;
use story::Story;
use traffic::Totals;

/// How often the rails' counters are read.
const TICK: Duration = Duration::from_millis(50);

/// Shows four unequal rails, one of which is cut and comes back, and that no byte is lost.
///
/// A target and an initiator run as two processes over four loopback addresses. One rail is paced slower
/// than the others; another is cut at a third of the run and restored at two thirds. Every byte that is
/// moved is verified. Needs no privileges. The last line says `ok: …` or `FAILED: …`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  polyrail demo --seconds 10")]
pub(crate) struct DemoArgs {
    /// How long to move data.
    #[arg(long, value_name = "S", default_value = "6", allow_negative_numbers = true, value_parser = seconds)]
    seconds: Duration,
    #[command(flatten)]
    settings: ConfigArgs,
    /// Leave a flight recording of the initiator in this folder, for `polyrail sim replay`.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
}

/// Long enough that a cut rail can be missed and can come back.
fn seconds(text: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_secs(2);
    let seconds = sizes::seconds(text)?;
    if seconds < LEAST {
        return Err(format!(
            "\"{text}\" is too short to cut and restore a rail; give at least {} s",
            LEAST.as_secs()
        ));
    }
    Ok(seconds)
}

/// Runs the command. The last line on standard output is the verdict.
pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    let verdict = show(args);
    let line = match &verdict {
        Ok(line) => format!("ok: {line}"),
        Err(failure) => format!("FAILED: {failure}"),
    };
    say(&line)?;
    verdict.map(drop)
}

fn show(args: &DemoArgs) -> Result<String, Failure> {
    let config = args.settings.load_initiator("demo")?;
    // The script is about these four rails, whatever is configured.
    let rails: Vec<IpAddr> = (1..=4).map(|i| IpAddr::from([127, 0, 0, i])).collect();
    let memory = (traffic::BUFFER_BYTES, MemoryKind::Cpu);
    let (_own, target) = OwnTarget::start(&rails, memory, &args.settings)?;
    let faults = Arc::new(Faults::new());
    let hooks = Hooks {
        faults: Some(Arc::clone(&faults)),
        recording: args.record.clone(),
        ..Hooks::default()
    };
    let config = Config {
        rails,
        rail_map: RailMap::Paired,
        ..config.without("shm")
    };
    let session = Session::open(config, hooks, &target, memory)?;
    say(&format!(
        "target {target}, four loopback rails paced at {}; every byte is verified",
        script::paces_text()
    ))?;
    let script = Script::new(args.seconds, &faults);
    let run = Run::new(&session);
    let totals = Totals::default();
    let history = watch(&run, script, &totals)?;
    let verdict = conclude(&run, &totals, &history);
    end(&session.engine)?;
    verdict
}

/// Ends the engine, and says where its recording is if there is one.
fn end(engine: &Engine) -> Result<(), Failure> {
    engine.shutdown();
    recorded(engine).map_or(Ok(()), |recorded| say(&recorded))
}

/// What happened, and when the script stepped in; times count from the start.
#[derive(Debug)]
struct History {
    buckets: Vec<Bucket>,
    cut_at: Duration,
    restored_at: Duration,
}

/// Moves data and follows the script until its end. Should the cut rail not be back by then, waits a
/// little longer for it: on a busy machine everything takes longer.
fn watch(run: &Run<'_>, mut script: Script<'_>, totals: &Totals) -> Result<History, Failure> {
    let session = run.session;
    let started = Instant::now();
    let mut recorder = Recorder::new(TICK, started, session.rail_bytes());
    let mut live = Live::new();
    thread::scope(|scope| {
        traffic::start(scope, run, totals);
        let watched = loop {
            thread::sleep(recorder.due_in(Instant::now()));
            let now = Instant::now();
            recorder.tick(now, session.rail_bytes());
            let elapsed = now - started;
            script.play(elapsed);
            if let Err(e) = live.show(elapsed, &session.rails(), recorder.buckets(), &script) {
                break Err(Failure::output(e));
            }
            if run.stopped() || script.is_over(elapsed, recorder.buckets()) {
                break Ok(());
            }
        };
        totals.end();
        watched
    })?;
    Ok(History {
        buckets: recorder.buckets().to_vec(),
        cut_at: script.cut_at(),
        restored_at: script.restored_at(),
    })
}

/// Prints what happened and comes to a verdict.
fn conclude(run: &Run<'_>, totals: &Totals, history: &History) -> Result<String, Failure> {
    let names: Vec<String> = run
        .session
        .rails()
        .into_iter()
        .map(|rail| rail.name)
        .collect();
    let story = Story::new(history);
    say(&story::chart(&names, history))?;
    say(&story::shares(&names, &history.buckets))?;
    say(&story.text(
        names
            .get(script::CUT.index())
            .map_or("the cut rail", String::as_str),
    ))?;
    say(&run.session.engine.stats().to_string())?;
    say(&totals.text())?;
    if let Some(failure) = run.first_failure() {
        return Err(failure);
    }
    if story.used_again.is_none() {
        return Err(Failure::Verdict(
            "the restored rail was not used again".to_owned(),
        ));
    }
    totals.verdict()
}

fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(Failure::output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_too_short_for_the_script_are_refused() {
        assert_eq!(seconds("3"), Ok(Duration::from_secs(3)));
        for text in ["1.9", "0", "x"] {
            assert!(seconds(text).unwrap_err().contains(text));
        }
    }
}
