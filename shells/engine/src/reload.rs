//! What of a configuration can change while an engine runs.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};

use polyrail_control::security::ClusterKey;
use polyrail_core::plan::PLAN_RAILS_MAX;

use crate::config::{Config, IsolationMode};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::listen;
use crate::lock::lock;

/// Keys that [`Engine::reload`] heeds. All others count when an engine starts.
pub const RELOADED: [&str; 8] = [
    "rails",
    "limits/segments",
    "control/sessions_max",
    "control/connections_max",
    "security/key_file",
    "security/certificate",
    "security/key",
    "security/roots",
];

impl Engine {
    /// Takes from a configuration what can change while the engine runs ([`RELOADED`]):
    ///
    /// - `rails`: addresses that were not there before are used from now on, also by peers, if the engine was started with some.
    ///   None is taken away.
    /// - `limits/segments`, `control/sessions_max`, `control/connections_max`: what there can be from now on. What there is more
    ///   stays.
    /// - `security/key_file`, or `security/certificate`, `security/key` and `security/roots`: what is in them, read anew, is for all
    ///   connections that begin from now on. An engine that asks nobody who is a member does not begin to, and none stops.
    ///
    /// All of it or, where something is wrong, nothing.
    ///
    /// Example: [guide](crate::guide#changing-and-ending).
    pub fn reload(&self, config: &Config) -> Result<(), EngineError> {
        let inner = &self.inner;
        if !inner.is_ours() || self.is_closing() {
            return Ok(());
        }
        config.check().map_err(|error| EngineError::Config {
            text: error.to_string(),
        })?;
        let key = config.security.key()?;
        if key.is_some() != self.key().is_some() {
            let text = "security/key_file: whether there is a key cannot change while an engine runs, nor whether there is a certificate";
            return Err(EngineError::Config { text: text.into() });
        }
        self.use_more_rails(config)?;
        if let Some(key) = key {
            inner.sessions.plane.replace_key(key.clone());
            self.set_key(key);
        }
        inner.segments.set_most(config.limits.segments);
        let control = &config.control;
        let (sessions, connections) = (control.sessions_max, control.connections_max);
        inner.sessions.plane.limit(sessions, connections);
        Ok(())
    }

    fn set_key(&self, key: Arc<ClusterKey>) {
        key.remind();
        let mut own = self
            .inner
            .key
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *own = Some(key);
    }

    /// Takes addresses for rails that are none yet, and lets peers come in there.
    fn use_more_rails(&self, config: &Config) -> Result<(), EngineError> {
        let inner = &self.inner;
        let known = lock(&inner.sessions.peers).locals().to_vec();
        let new = config.rails.iter().copied();
        let new: Vec<_> = new.filter(|rail| !known.contains(rail)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let cannot = |why: &str| {
            let text = format!("rails: {} is not used before the next start: {why}", new[0]);
            Err(EngineError::Config { text })
        };
        if known.is_empty() {
            return cannot("the engine was started without rails of its own");
        }
        if inner.config.path.mode != IsolationMode::Off {
            return cannot("its paths are isolated");
        }
        if known.len() + new.len() > PLAN_RAILS_MAX {
            return cannot(&format!("{PLAN_RAILS_MAX} rails are possible"));
        }
        listen::check_rails(&new)?;
        let mut listeners = Vec::new();
        if let Some(own) = inner.sessions.listening {
            for rail in &new {
                let address = SocketAddr::new(*rail, own.port());
                if !rail.is_loopback() && !inner.config.may_be_reached() {
                    return Err(EngineError::Insecure { address });
                }
                if !own.ip().is_unspecified() {
                    listeners.push(listen::also(address)?);
                }
            }
        }
        for listener in listeners {
            inner.sessions.plane.listen(listener);
        }
        lock(&inner.sessions.peers).add_locals(&new);
        for rail in &new {
            log::info!("{rail} is a rail from now on");
        }
        self.tell_of_rails();
        Ok(())
    }
}
