//! What of a configuration can change while an engine runs.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError};

use polyrail_control::security::ClusterKey;
use polyrail_core::plan::PLAN_RAILS_MAX;

use crate::config::{Config, IsolationMode};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::listen;
use crate::lock::lock;

/// Keys that [`Engine::reload`] heeds. All others count when an engine starts.
pub const RELOADED: [&str; 10] = [
    "rails",
    "limits/segments",
    "control/sessions_max",
    "control/connections_max",
    "security/key_file",
    "security/certificate",
    "security/key",
    "security/roots",
    "security/targets",
    "security/old_key_s",
];

impl Engine {
    /// Takes from a configuration what can change while the engine runs ([`RELOADED`]):
    ///
    /// - `rails`: if the engine was started with some, those that are named now are used from now on, also by peers, and no
    ///   others. What was under way on one that is taken out goes on over the rest.
    /// - `limits/segments`, `control/sessions_max`, `control/connections_max`: what there can be from now on. What there is more
    ///   stays.
    /// - `security/key_file`, or `security/certificate`, `security/key` and `security/roots`: what is in them, read anew, is for all
    ///   connections that begin from now on, and so are `security/targets`. With `security/old_key_s`, sessions of peers that began
    ///   with what was before end that much later. An engine that asks nobody who is a member does not begin to, and none stops.
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
        self.change_rails(config)?;
        if let Some(key) = key {
            let old = config.security.old_key;
            let ends_old = (!old.is_zero()).then_some(old);
            inner.sessions.plane.replace_key(key.clone(), ends_old);
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

    /// Takes these addresses for rails and no others, besides those that are found: peers come in there, and leave those that
    /// are taken out.
    fn change_rails(&self, config: &Config) -> Result<(), EngineError> {
        let inner = &self.inner;
        let known = lock(&inner.sessions.peers).locals().to_vec();
        let named = &config.rails;
        let (mut new, mut old) = (named.clone(), known.clone());
        new.retain(|rail| !known.contains(rail));
        old.retain(|rail| !named.contains(rail) && !inner.config.finds_rail(rail));
        let Some(first) = new.first().or(old.first()) else {
            return Ok(());
        };
        let cannot = |why: &str| {
            let text = format!("rails: {first} does not change before the next start: {why}");
            Err(EngineError::Config { text })
        };
        if known.is_empty() {
            return cannot("the engine was started without rails of its own");
        }
        if inner.config.path.mode != IsolationMode::Off {
            return cannot("its paths are isolated");
        }
        let count = known.len() + new.len() - old.len();
        if count == 0 {
            return cannot("no rail would be left");
        }
        if count > PLAN_RAILS_MAX {
            return cannot(&format!("{PLAN_RAILS_MAX} rails are possible"));
        }
        if !new.is_empty() {
            self.let_in_at(&new)?;
        }
        let mut peers = lock(&inner.sessions.peers);
        peers.remove_locals(&old);
        peers.add_locals(&new);
        drop(peers);
        for rail in &old {
            log::info!("{rail} is no rail from now on");
        }
        for rail in &new {
            log::info!("{rail} is a rail from now on");
        }
        self.tell_of_rails();
        Ok(())
    }

    /// Lets peers come in at addresses that become rails.
    fn let_in_at(&self, new: &[IpAddr]) -> Result<(), EngineError> {
        let inner = &self.inner;
        listen::check_rails(new)?;
        let Some(own) = inner.sessions.listening else {
            return Ok(());
        };
        let mut entrances = lock(&inner.entrances);
        let mut listeners = Vec::new();
        for rail in new {
            let address = SocketAddr::new(*rail, own.port());
            if !rail.is_loopback() && !inner.config.may_be_reached() {
                return Err(EngineError::Insecure { address });
            }
            // One that was a rail before is listened at still.
            if !own.ip().is_unspecified() && !entrances.contains(rail) {
                listeners.push(listen::also(address)?);
            }
        }
        entrances.extend(new);
        for listener in listeners {
            inner.sessions.plane.listen(listener);
        }
        Ok(())
    }
}
