//! Where an engine's configuration comes from: `--config`, the environment, and then a command's own flags.

use std::path::PathBuf;

use polyrail::{Config, ConfigError, Loaded, Sources};

use crate::exit::Failure;
use crate::logging;

/// The flag that all commands share that start an engine.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct ConfigArgs {
    /// A configuration file in JSON. The environment (POLYRAIL_…) wins over it, and flags win over both.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

impl ConfigArgs {
    /// What the file and the environment say. Flags are the caller's business.
    pub(crate) fn load(&self) -> Result<Config, Failure> {
        Ok(self.load_whole()?.config)
    }

    /// The same, with what of it differs from the default.
    pub(crate) fn load_whole(&self) -> Result<Loaded, Failure> {
        let loaded = self.load_quietly()?;
        logging::set_level(loaded.config.log_level);
        for note in &loaded.notes {
            log::warn!("{note}");
        }
        Ok(loaded)
    }

    /// The same, with what is worth knowing for the caller to tell.
    pub(crate) fn load_quietly(&self) -> Result<Loaded, Failure> {
        let mut sources = Sources::new();
        if let Some(path) = &self.config {
            sources = sources.file(path);
        }
        sources.environment().load().map_err(|e| usage(&e))
    }

    /// The same for an initiator, which does not listen; `name` is what it calls itself unless that is
    /// configured.
    pub(crate) fn load_initiator(&self, name: &str) -> Result<Config, Failure> {
        let mut config = self.load()?;
        config.listen = None;
        if config.name == Config::default().name {
            config.name = name.to_owned();
        }
        Ok(config)
    }
}

/// All problems in one error.
fn usage(error: &ConfigError) -> Failure {
    let count = match error.problems.len() {
        1 => "the configuration has a problem".to_owned(),
        count => format!("the configuration has {count} problems"),
    };
    Failure::Usage(format!("{count}\n{error}"))
}
