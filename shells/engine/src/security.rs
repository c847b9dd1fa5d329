//! The cluster's key, or certificates: where they come from, and what people are told of them. `polyrail_control::security` is what it does.

use std::path::Path;
use std::sync::Arc;

use polyrail_control::security::file::{read_private, read_trusted};
use polyrail_control::security::{ClusterKey, Fingerprint, KeyFileError, Secret};

use crate::config::SecurityConfig;
use crate::error::EngineError;

/// Makes a new cluster key, and leaves it in a new file that only its owner may read. What people tell the key by.
///
/// Every engine whose configuration names a copy of the file (`security/key_file`) is a member of the cluster.
///
/// Example: [guide](crate::guide#trust).
pub fn keygen(path: &Path) -> Result<Fingerprint, EngineError> {
    let secret = Secret::draw().map_err(|source| EngineError::System {
        what: "draw a random key",
        source,
    })?;
    // First, so that no file is left of a key that is of no use.
    let key = cluster_key(&secret)?;
    secret.create(path).map_err(EngineError::Key)?;
    Ok(key.fingerprint())
}

impl SecurityConfig {
    /// What people tell the cluster's key, or this engine's certificate, by, read from its file; `None`: the configuration names none.
    ///
    /// Example: [guide](crate::guide#trust).
    pub fn fingerprint(&self) -> Result<Option<Fingerprint>, EngineError> {
        Ok(self.key()?.map(|key| key.fingerprint()))
    }

    /// What proves that this engine is a member, from the files that the configuration names, if it names some.
    pub(crate) fn key(&self) -> Result<Option<Arc<ClusterKey>>, EngineError> {
        if !self.certificate.is_empty() {
            return self.certified().map(Some);
        }
        if self.key_file.is_empty() {
            return Ok(None);
        }
        let secret = Secret::read(Path::new(&self.key_file)).map_err(EngineError::Key)?;
        Ok(Some(Arc::new(cluster_key(&secret)?)))
    }

    fn certified(&self) -> Result<Arc<ClusterKey>, EngineError> {
        let read = |key: &str, file: &str| {
            read_trusted(Path::new(file)).map_err(|error| EngineError::Config {
                text: format!("{key}: {error}"),
            })
        };
        let certificate = read("security/certificate", &self.certificate)?;
        let roots = read("security/roots", &self.roots)?;
        let key = read_private(Path::new(&self.key)).map_err(EngineError::Key)?;
        let certified = ClusterKey::certified(&certificate, &key, &roots, &self.targets);
        let certified = certified.map_err(|why| {
            let file = match why.what {
                "certificate" => &self.certificate,
                "roots" => &self.roots,
                _ => &self.key,
            };
            let text = format!("{why} ({file})");
            EngineError::Config { text }
        })?;
        Ok(Arc::new(certified))
    }
}

fn cluster_key(secret: &Secret) -> Result<ClusterKey, EngineError> {
    ClusterKey::new(secret).map_err(|error| EngineError::System {
        what: "make an identity of the cluster's key",
        source: std::io::Error::other(error.to_string()),
    })
}

/// Whether a key file is at fault rather than the machine.
pub(crate) fn is_usage(error: &KeyFileError) -> bool {
    !matches!(error, KeyFileError::System { .. })
}
