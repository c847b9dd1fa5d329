//! Path isolation between this engine and its peers: which class each rail is of, and how both ends see where the
//! other one is.

use std::net::IpAddr;

use polyrail_core::path::class::{CLASSES_MAX, RailClass};
use polyrail_core::path::config::{PathConfig as CorePathConfig, PathConfigError, PathMode};
use polyrail_core::path::hint::Connection;
use polyrail_core::path::view::PathView;
use polyrail_core::plan::PlanPath;

use crate::config::{IsolationMode, PathConfig};

/// How what goes to one peer is steered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerPath {
    /// What core is to know.
    pub(crate) plan: PlanPath,
    /// What the other end has to see too.
    pub(crate) view: PathView,
}

impl PathConfig {
    /// The class of a rail from this local address.
    pub(crate) fn class(&self, local: Option<IpAddr>) -> RailClass {
        match local {
            Some(local) if self.supplementary.contains(&local) => RailClass::SUPPLEMENTARY,
            _ => RailClass::PRIMARY,
        }
    }

    /// How this end sees a connection with these rails: (own, peer's) addresses. `None`: there is no path isolation.
    pub(crate) fn see(
        &self,
        rails: &[(IpAddr, IpAddr)],
    ) -> Result<Option<PeerPath>, PathConfigError> {
        let mode = match self.mode {
            IsolationMode::Off => return Ok(None),
            IsolationMode::Vanilla => PathMode::Vanilla,
            IsolationMode::Advanced => PathMode::Advanced,
        };
        // A lane of each worker on each rail is what queue pairs are elsewhere.
        let mut queue_pairs = [0_u16; CLASSES_MAX];
        for (own, _) in rails {
            queue_pairs[self.class(Some(*own)).index()] += 1;
        }
        let config = CorePathConfig {
            mode,
            island_prefix: self.island_prefix,
            queue_pairs,
            small_bytes_max: self.small_bytes_max,
            hint_strict: self.hint_strict,
            hint_age_max: super::config::core_duration(self.hint_age_max),
        };
        config.check()?;
        let is_primary = |own| self.class(Some(own)) == RailClass::PRIMARY;
        let primary: Vec<_> = rails
            .iter()
            .copied()
            .filter(|(own, _)| is_primary(*own))
            .collect();
        let view = PathView::new(&config, primary);
        let class = view.class;
        let plan = PlanPath { config, class };
        Ok(Some(PeerPath { plan, view }))
    }
}

impl PeerPath {
    /// Whether rails of a class are used at all.
    pub(crate) fn has(&self, class: RailClass) -> bool {
        self.view.queue_pairs.classes().contains(class)
    }

    /// What an agent calls the connection, if one may steer it.
    pub(crate) fn connection(&self) -> Option<Connection> {
        let (own, peer) = (self.view.own?, self.view.peer?);
        (self.plan.config.mode == PathMode::Advanced).then_some(Connection { own, peer })
    }
}
