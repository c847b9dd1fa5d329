//! What both ends of a connection have to see alike, told to the peer and compared.
//!
//! The MPIB path isolation document lets each end compute its class and trusts that the answers are equal, because
//! they stem from the same two addresses. They are not, if an address is translated on the way or the ends are
//! configured differently; then one end has queue pairs that the other never connects. So we compare.

use core::fmt;
use core::net::IpAddr;

use super::class::RailClass;
use super::config::{PathConfig, PathMode};
use super::island::{IslandPrefix, PathClass};
use super::layout::QueuePairs;

/// How one end sees a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PathView {
    /// The mode that it is in.
    pub mode: PathMode,
    /// Where it sees the other end.
    pub class: PathClass,
    /// The queue pairs that it makes.
    pub queue_pairs: QueuePairs,
    /// What it told islands apart by.
    pub prefix: IslandPrefix,
    /// Its own address of the first primary rail, if it knows one.
    pub own: Option<IpAddr>,
    /// The other end's address of that rail.
    pub peer: Option<IpAddr>,
}

/// Two ends see their connection differently. Nothing may be sent on it: fix the configuration of one, or rails
/// whose addresses mean different things at the two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// How this end sees it.
    pub ours: PathView,
    /// How the peer does.
    pub theirs: PathView,
}

impl PathView {
    /// The view of an end that reaches the other over these primary rails: (own, peer's) addresses.
    pub fn new(
        config: &PathConfig,
        primary_rails: impl IntoIterator<Item = (IpAddr, IpAddr), IntoIter: Clone>,
    ) -> Self {
        let rails = primary_rails.into_iter();
        let class = config.island_prefix.classify(rails.clone());
        let first = rails.into_iter().next();
        Self {
            mode: config.mode,
            class,
            queue_pairs: QueuePairs::new(config, class),
            prefix: config.island_prefix,
            own: first.map(|(own, _)| own),
            peer: first.map(|(_, peer)| peer),
        }
    }

    /// Whether `theirs`, which the peer says is its view, is the same in all that matters: mode, class and queue
    /// pairs. The addresses need not be, and are there to be told.
    pub fn agree(&self, theirs: &Self) -> Result<(), Mismatch> {
        let same = self.mode == theirs.mode
            && self.class == theirs.class
            && self.queue_pairs == theirs.queue_pairs;
        if same {
            Ok(())
        } else {
            Err(Mismatch {
                ours: *self,
                theirs: *theirs,
            })
        }
    }
}

impl fmt::Display for PathView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.class.name(), self.mode.name())?;
        if let (Some(own), Some(peer)) = (self.own, self.peer) {
            write!(f, ", from {own} to {peer}")?;
        }
        let IslandPrefix { v4_bits, v6_bits } = self.prefix;
        write!(f, ", islands of /{v4_bits} and /{v6_bits}, queue pairs ")?;
        let last = self.queue_pairs.classes().iter().last().unwrap_or_default();
        for class in RailClass::all().take_while(|class| *class <= last) {
            let plus = if class > RailClass::PRIMARY { "+" } else { "" };
            let count = self.queue_pairs.count(class);
            write!(f, "{plus}{count}")?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the two ends see their connection differently: this one {}, the peer {}",
            self.ours, self.theirs
        )
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use quickcheck::quickcheck;
    use std::string::ToString;
    use std::vec::Vec;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn view(config: &PathConfig, own: &str, peer: &str) -> PathView {
        PathView::new(config, [(ip(own), ip(peer))])
    }

    #[test]
    fn a_mismatch_names_both_views() {
        let ours = PathConfig::DEFAULT;
        let other = |change: fn(&mut PathConfig)| {
            let mut config = ours;
            change(&mut config);
            config
        };
        // (name, what the peer's configuration is, its address to us, what the error names; nothing: they agree)
        let near: &[&str] = &["this one intra-island (vanilla, from 10.0.1.2 to 10.0.1.3"];
        let cases: [(_, _, _, &[&str]); 6] = [
            ("the same", ours, "10.0.1.3", &[]),
            (
                "a translated address in the same island",
                ours,
                "10.0.1.77",
                &[],
            ),
            (
                "a translated address",
                ours,
                "10.9.9.3",
                &[
                    near[0],
                    "the peer inter-island (vanilla, from 10.9.9.3 to 10.0.1.2",
                ],
            ),
            (
                "another prefix",
                other(|config| config.island_prefix.v4_bits = 32),
                "10.0.1.3",
                &[near[0], "the peer inter-island", "/24", "/32"],
            ),
            (
                "another mode",
                other(|config| config.mode = PathMode::Advanced),
                "10.0.1.3",
                &[near[0], "the peer intra-island (advanced"],
            ),
            (
                "other queue pairs",
                other(|config| config.queue_pairs[1] = 3),
                "10.0.1.3",
                &["queue pairs 2+4)", "queue pairs 2+3)"],
            ),
        ];
        for (name, config, own, parts) in cases {
            let here = view(&ours, "10.0.1.2", "10.0.1.3");
            let there = view(&config, own, "10.0.1.2");
            let error = here.agree(&there).err().map(|e| e.to_string());
            assert_eq!(error.is_none(), parts.is_empty(), "{name}: {error:?}");
            for part in parts {
                assert!(error.as_ref().unwrap().contains(part), "{name}: {error:?}");
            }
            assert_eq!(there.agree(&here).is_err(), error.is_some(), "{name}");
        }
    }

    #[test]
    fn a_class_that_changes_no_queue_pairs_is_compared_too() {
        let mut config = PathConfig::DEFAULT;
        config.mode = PathMode::Advanced;
        let here = view(&config, "10.0.1.2", "10.0.1.3");
        let there = view(&config, "10.9.9.3", "10.0.1.2");
        assert_eq!(here.queue_pairs, there.queue_pairs);
        let theirs = here.agree(&there).unwrap_err().theirs;
        assert_eq!(theirs.class, PathClass::InterIsland);
    }

    quickcheck! {
        fn ends_of_one_configuration_agree(rails: Vec<(IpAddr, IpAddr)>, advanced: bool, bits: u8) -> bool {
            let mut config = PathConfig::DEFAULT;
            config.island_prefix.v4_bits = bits % 33;
            if advanced {
                config.mode = PathMode::Advanced;
            }
            let turned: Vec<_> = rails.iter().map(|(own, peer)| (*peer, *own)).collect();
            PathView::new(&config, rails).agree(&PathView::new(&config, turned)).is_ok()
        }
    }
}
