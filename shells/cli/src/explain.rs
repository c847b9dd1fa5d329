//! `polyrail explain`: which way a transfer would take, and why not the others.

use std::fmt::Write as _;
use std::io::{self, Write};

use polyrail::{
    Access, Config, Engine, Explanation, RailChoice, TransportChoice, transports_without,
};
use serde::Serialize;

use crate::address::{self, Rails};
use crate::exit::Failure;
use crate::kind::{MemoryKind, memory_kind};
use crate::settings::ConfigArgs;
use crate::sizes;

/// Says which transports and rails a transfer would take, and why not the others. Moves nothing.
///
/// It asks the target, and learns no rates: what it says of a rail's rate is what is assumed before anything has moved. What a
/// running engine has learned is to be seen with `polyrail top`. Without --to it says only what this end has.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  polyrail explain --to 10.0.0.2:7000/mem --length 1GiB\n  \
    polyrail explain --from 10.0.0.1,10.0.1.1 --to 10.0.0.2:7000/mem --length 64KiB --json\n  polyrail explain"
)]
pub(crate) struct ExplainArgs {
    /// Addresses of this host that it would start from, one rail each [default: as configured].
    #[arg(long, value_name = "A,B,…", value_parser = address::rails)]
    from: Option<Rails>,
    /// The target's segment, HOST:PORT/SEGMENT.
    #[arg(long, value_name = "B/SEGMENT", value_parser = segment)]
    to: Option<String>,
    /// How many bytes.
    #[arg(long, value_name = "SIZE", default_value = "1MiB", allow_negative_numbers = true, value_parser = sizes::size)]
    length: u64,
    /// Where they would come from; `cuda:N` is memory of a GPU, in builds that have it.
    #[arg(long, value_name = "cpu|cuda:N", default_value = "cpu", value_parser = memory_kind)]
    memory_kind: MemoryKind,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: ConfigArgs,
}

/// `HOST:PORT/SEGMENT`.
fn segment(text: &str) -> Result<String, String> {
    let parts = text.split_once('/').filter(|(_, name)| !name.is_empty());
    match parts.map(|(target, _)| address::target(target)) {
        Some(Ok(_)) => Ok(text.to_owned()),
        Some(Err(wrong)) => Err(wrong),
        None => Err(format!(
            "\"{text}\" is not HOST:PORT/SEGMENT; write it like 10.0.0.2:7000/mem"
        )),
    }
}

/// What is known without a target.
#[derive(Serialize)]
struct Here {
    transports: Vec<TransportChoice>,
}

/// Runs the command.
pub(crate) fn run(args: &ExplainArgs) -> Result<(), Failure> {
    let mut config = args.settings.load_initiator("explain")?;
    if let Some(rails) = &args.from {
        config.use_rails(&rails.0);
    }
    let text = match &args.to {
        None => of_here(args, config)?,
        Some(to) => of_transfer(args, config, to)?,
    };
    writeln!(io::stdout(), "{}", text.trim_end()).map_err(Failure::output)
}

fn start(config: Config) -> Result<Engine, Failure> {
    Engine::new(config)
        .map_err(|e| Failure::from_engine(e.is_usage(), format!("cannot start an engine: {e}")))
}

fn of_here(args: &ExplainArgs, config: Config) -> Result<String, Failure> {
    let all = start(config)?.transports();
    let choice = |name: &str, why: String| TransportChoice {
        transport: name.to_owned(),
        turn: None,
        why,
        rails: Vec::new(),
    };
    let names: Vec<_> = all.iter().map(|status| status.name).collect();
    let own = all.iter().map(|status| match &status.missing {
        None => choice(status.name, "to be had here".into()),
        Some(missing) => choice(status.name, format!("not there: {missing}")),
    });
    let others = transports_without(&names).into_iter();
    let others = others.map(|(name, why)| choice(name, why));
    let here = Here {
        transports: own.chain(others).collect(),
    };
    if args.json {
        return json(&here);
    }
    let mut text =
        "in the order in which they would be used, where a target has them too\n".to_owned();
    for choice in &here.transports {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {:<10} {}", choice.transport, choice.why);
    }
    Ok(text)
}

fn of_transfer(args: &ExplainArgs, config: Config, to: &str) -> Result<String, Failure> {
    let engine = start(config)?;
    let remote = engine
        .open_segment(to)
        .map_err(|e| Failure::from_engine(e.is_usage(), format!("cannot open {to}: {e}")))?;
    let has = engine.segment_bytes(remote).unwrap_or(0);
    if args.length > has {
        return Err(Failure::Usage(format!(
            "--length {} is more than the {has} bytes that {to} has",
            args.length
        )));
    }
    // Only what it is and where counts.
    let local = args
        .memory_kind
        .allocate(&engine, "from", 4096, Access::Local);
    let local = local.map_err(|e| Failure::Environment(format!("cannot allocate memory: {e}")))?;
    let explained = engine.explain(local, remote, args.length);
    let explained = explained.map_err(|e| Failure::Usage(format!("it would be refused: {e}")))?;
    match args.json {
        true => json(&explained),
        false => Ok(shown(to, &explained)),
    }
}

fn json(what: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(what).map_err(|e| Failure::Environment(format!("cannot write JSON: {e}")))
}

fn shown(to: &str, explained: &Explanation) -> String {
    let Explanation {
        peer,
        length,
        slices,
        local,
        remote,
        staged,
        transports,
        ..
    } = explained;
    let mut text = String::new();
    let slices = match slices {
        1 => "1 slice".to_owned(),
        slices => format!("{slices} slices"),
    };
    let length = sizes::show_size(*length);
    // Writing to a string does not fail.
    let _ = writeln!(text, "{length} to {to} of \"{peer}\", in {slices}");
    let _ = writeln!(text, "from {local}, to {remote}");
    if *staged {
        let _ = writeln!(text, "through slots in memory, chunk by chunk");
    }
    for choice in transports {
        let turn = match choice.turn {
            Some(0) => "used".to_owned(),
            Some(turn) => format!("next {turn}"),
            None => "unused".to_owned(),
        };
        let _ = writeln!(text, "  {turn:<7} {:<10} {}", choice.transport, choice.why);
        for rail in &choice.rails {
            let RailChoice {
                rail,
                tier,
                bytes_per_sec,
                why,
                state,
                ..
            } = rail;
            let rate = *bytes_per_sec as f64 / 1e9;
            let state = state.name();
            let _ = writeln!(
                text,
                "            {rail}, tier {tier}, {state}, {rate:.3} GB/s assumed: {why}"
            );
        }
    }
    text
}
