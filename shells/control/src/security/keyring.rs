//! The cluster's key as it is now, which can be replaced.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use super::ClusterKey;

/// The cluster's key, as it is now. Clones are of the same.
#[derive(Clone, Default)]
pub struct Keyring(Arc<RwLock<Option<Arc<ClusterKey>>>>);

impl Keyring {
    /// One with a key, or with none for ever.
    pub fn new(key: Option<Arc<ClusterKey>>) -> Self {
        Self(Arc::new(RwLock::new(key)))
    }

    /// The key, if there is one.
    pub fn get(&self) -> Option<Arc<ClusterKey>> {
        let own = self.0.read().unwrap_or_else(PoisonError::into_inner);
        own.clone()
    }

    /// Takes another key in the place of the one that there is: that one. `None`: there is none, and that stays so.
    pub fn replace(&self, key: Arc<ClusterKey>) -> Option<Arc<ClusterKey>> {
        let mut own = self.0.write().unwrap_or_else(PoisonError::into_inner);
        own.as_mut().map(|own| std::mem::replace(own, key))
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyring")
    }
}
