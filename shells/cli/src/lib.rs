//! The program `polyrail`: a target ([`serve`]), a benchmark ([`mod@bench`]), a copy to and from targets
//! ([`cp`]), a look at a running one ([`top`]), the way that a transfer
//! would take ([`mod@explain`]), a demonstration ([`demo`]) and a simulator ([`sim`]) of the engine; what this machine has
//! ([`topo`]) and what a configuration says ([`check_config`]); whether
//! somebody's transport keeps its promises ([`check_transport`]); an agent that says which class of rails carries how
//! much ([`agent`]); a cluster's key ([`security`]); manual pages and completions ([`extras`]).
//!
//! Results go to standard output, logs to standard error. It ends with 0 when all is good, 1 when it ran
//! and the verdict is bad, 2 when it was asked for something that makes no sense, 3 when the environment
//! (an address, a peer) failed it: see [`exit`].
//!
//! It is a library, so that a process of another program can be it: [`run`].

// They panic when whoever reads has left, as `head` does.
#![deny(clippy::print_stdout)]

mod address;
mod agent;
mod bench;
mod calls;
mod chart;
mod check_config;
mod check_transport;
mod cp;
mod demo;
mod exit;
mod explain;
mod extras;
mod kind;
mod logging;
mod pattern;
mod recorded;
mod sample;
mod security;
mod serve;
mod session;
mod settings;
mod sim;
mod sizes;
mod source;
mod target;
mod timeline;
mod top;
mod topo;

use std::ffi::OsString;
use std::io::Write;
use std::sync::OnceLock;

use clap::{CommandFactory, Parser, Subcommand};

use logging::LogFormat;

/// Moves bytes between the memories of machines that are joined by many unequal links.
#[derive(Parser)]
#[command(
    name = "polyrail",
    version,
    after_help = "Exit codes: 0 good, 1 the verdict is bad, 2 wrong usage, 3 the environment failed, 130 interrupted\n\
                  (serve and agent: 0, as this is how they end).\n\
                  RUST_LOG=info shows more on standard error.\n\n\
                  Example:\n  polyrail demo"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// How lines of the log look, on standard error.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORMAT"
    )]
    log_format: LogFormat,
}

#[derive(Subcommand)]
enum Command {
    /// Shows four unequal rails, one of which is cut and comes back, and that no byte is lost.
    Demo(demo::DemoArgs),
    /// Runs a target: offers memory to peers until it is told to end.
    Serve(serve::ServeArgs),
    /// Measures writes or reads of a target's memory.
    Bench(bench::BenchArgs),
    /// Copies a file to or from a target's segment.
    Cp(cp::CpArgs),
    /// Watches a running engine: its rails and their rates, its queues and limits.
    Top(top::TopArgs),
    /// Says which transports and rails a transfer would take, and why not the others.
    Explain(explain::ExplainArgs),
    /// Shows devices, NUMA nodes, tiers and transports of this machine.
    Topo(topo::TopoArgs),
    /// Makes a cluster's key, which keeps strangers out.
    Keygen(security::KeygenArgs),
    /// Checks a configuration: what is wrong with it, or what it changes.
    CheckConfig(check_config::CheckConfigArgs),
    /// Tries out whether a transport from a library keeps its promises.
    CheckTransport(check_transport::CheckTransportArgs),
    /// Runs an agent: says by hints which class of rails carries how much.
    Agent(agent::AgentArgs),
    /// Simulates fabrics under the shipped core: how good a policy is, and whether it is correct.
    Sim(sim::SimArgs),
    /// Writes manual pages, and completions for shells.
    Extras(extras::ExtrasArgs),
}

/// What starts this program once more, where that is not its own file.
static PROGRAM: OnceLock<Vec<OsString>> = OnceLock::new();

/// Runs the program with these arguments, the first of which is its name, and gives its exit code. Once in a process.
///
/// `program`: what starts it once more, as some commands do; empty: the file that this process runs.
pub fn run(arguments: Vec<OsString>, program: Vec<OsString>) -> u8 {
    let Arguments {
        command,
        log_format,
    } = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Nobody is left to be told if that fails.
            let _ = error.print();
            return error.exit_code() as u8;
        }
    };
    if !program.is_empty() {
        let _ = PROGRAM.set(program);
    }
    logging::start(log_format, usual_level(&command));
    let verdict = match command {
        Command::Demo(args) => demo::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Cp(args) => cp::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Topo(args) => topo::run(&args),
        Command::Keygen(args) => security::run(&args),
        Command::CheckConfig(args) => check_config::run(&args),
        Command::CheckTransport(args) => check_transport::run(&args),
        Command::Agent(args) => agent::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Extras(args) => extras::run(&args, Arguments::command()),
    };
    // What is left of the last line; there is none after a failure that is worth another one.
    let _ = std::io::stdout().flush();
    match verdict {
        Ok(()) => 0,
        Err(failure) => {
            // Nobody is left to be told if standard error is gone too.
            let _ = writeln!(std::io::stderr(), "error: {failure}");
            failure.code()
        }
    }
}

/// Warnings and worse go to standard error, unless a command is for people who want its result: what fails is said in one
/// line then, and the demonstration and the simulator break rails on purpose.
const fn usual_level(command: &Command) -> &'static str {
    match command {
        // Where a recording is that somebody asked for is said in any case.
        Command::Demo(_) | Command::Sim(_) => "error,polyrail_record=warn",
        // What the program itself has to say is for whoever called it.
        Command::Cp(_) | Command::Bench(_) | Command::Top(_) | Command::Explain(_) => {
            "error,polyrail_cli=warn,polyrail_record=warn"
        }
        _ => "warn",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_shows_an_example() {
        for command in Arguments::command().get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Example"), "{}", command.get_name());
        }
    }
}
