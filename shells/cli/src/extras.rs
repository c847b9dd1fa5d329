//! `polyrail extras`: what `cargo install` does not bring along, made from the command line itself.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;

use crate::exit::Failure;

/// Writes manual pages, and completions for bash, zsh and fish.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  polyrail extras ~/.local/share")]
pub(crate) struct ExtrasArgs {
    /// They go below this folder to where `man` and the shells look: `man/man1`, `bash-completion/completions`,
    /// `zsh/site-functions` and `fish/vendor_completions.d`. What an earlier build wrote is overwritten.
    folder: PathBuf,
}

/// Runs the command: writes what describes this command line.
pub(crate) fn run(args: &ExtrasArgs, command: Command) -> Result<(), Failure> {
    // Of a command that only prints help, there is nothing to read.
    let described = command.clone().disable_help_subcommand(true);
    let pages = made(args.folder.join("man/man1"))?;
    clap_mangen::generate_to(described, &pages).map_err(|error| cannot(&pages, error))?;
    for (shell, place) in [
        (Shell::Bash, "bash-completion/completions"),
        (Shell::Zsh, "zsh/site-functions"),
        (Shell::Fish, "fish/vendor_completions.d"),
    ] {
        let folder = made(args.folder.join(place))?;
        let mut command = command.clone();
        let file = clap_complete::generate_to(shell, &mut command, "polyrail", &folder)
            .map_err(|error| cannot(&folder, error))?;
        if shell == Shell::Bash {
            // The name under which it is loaded when it is needed.
            let name = folder.join("polyrail");
            fs::rename(&file, &name).map_err(|error| cannot(&name, error))?;
        }
    }
    Ok(())
}

fn made(folder: PathBuf) -> Result<PathBuf, Failure> {
    fs::create_dir_all(&folder).map_err(|error| cannot(&folder, error))?;
    Ok(folder)
}

fn cannot(path: &Path, error: impl Display) -> Failure {
    Failure::Environment(format!("cannot write {}: {error}", path.display()))
}
