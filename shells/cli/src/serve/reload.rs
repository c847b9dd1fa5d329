//! SIGHUP: the configuration is read anew, and what can change does.

use std::collections::BTreeMap;

use polyrail::{Config, Effective, Engine, RELOADED};

use super::{ServeArgs, config};
use crate::logging;

/// A key that the program heeds by itself.
const LOG_LEVEL: &str = "log_level";

/// What file and environment said last.
pub(super) struct Said(BTreeMap<String, String>);

impl Said {
    pub(super) fn new(effective: &[Effective]) -> Self {
        let pairs = effective.iter();
        Self(pairs.map(|e| (e.key.clone(), e.value.clone())).collect())
    }

    /// Keys whose values differ.
    fn changes(&self, now: &Self) -> Vec<String> {
        let keys = self.0.keys().chain(now.0.keys());
        let mut keys: Vec<_> = keys
            .filter(|key| self.0.get(*key) != now.0.get(*key))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        keys.into_iter().cloned().collect()
    }
}

/// Reads the configuration anew, takes what can change, and says what cannot. A target that it makes no sense to goes on with
/// what it has.
pub(super) fn reload(args: &ServeArgs, engine: &Engine, said: &mut Said) {
    let loaded = match args.settings.load_quietly() {
        Ok(loaded) => loaded,
        Err(failure) => {
            return log::error!("SIGHUP: {failure}; this target goes on with what it had");
        }
    };
    let now = Said::new(&loaded.effective);
    let changes = said.changes(&now);
    let config: Config = config(args, loaded.config);
    let key = engine.key();
    if let Err(error) = engine.reload(&config) {
        return log::error!("SIGHUP: {error}; this target goes on with what it had");
    }
    logging::set_level(config.log_level);
    *said = now;
    let is_another = engine.key() != key;
    if let Some(key) = engine.key().filter(|_| is_another) {
        log::warn!("SIGHUP: the cluster's key is {key} from now on, for connections that begin");
    }
    let counts = |key: &String| RELOADED.contains(&&**key) || key == LOG_LEVEL;
    let (at_once, later): (Vec<_>, Vec<_>) = changes.into_iter().partition(counts);
    match (at_once.is_empty(), later.is_empty()) {
        (true, true) if is_another => {}
        (true, true) => log::warn!("SIGHUP: the configuration is as it was"),
        _ => {}
    }
    if !at_once.is_empty() {
        log::warn!("SIGHUP: {} as configured from now on", at_once.join(", "));
    }
    if !later.is_empty() {
        log::warn!(
            "SIGHUP: {} only counts from the next start on",
            later.join(", ")
        );
    }
}
