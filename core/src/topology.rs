//! Which local device faces which remote one, and how far a device is from the memory it serves.
//!
//! Source: TENT (arXiv:2604.00368v1) §3.1 and §4.2 for tiers. For now devices are addresses that the
//! operator lists; discovery and affinity come with the shells that have real devices.

use core::fmt;

/// How local and remote devices are joined into rails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RailMap {
    /// The i-th local with the i-th remote one.
    #[default]
    Paired,
    /// Every local with every remote one.
    All,
}

/// The two lists cannot be paired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LengthMismatch {
    /// Local devices listed.
    pub local: usize,
    /// Remote devices listed.
    pub remote: usize,
}

impl fmt::Display for LengthMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} local rails against {} remote ones: list as many on both sides, or map all to all",
            self.local, self.remote
        )
    }
}

impl RailMap {
    /// The rails as pairs of positions in the two lists, in the order in which they are numbered. No local
    /// device listed means one that can reach them all.
    pub fn pairs(
        self,
        local: usize,
        remote: usize,
    ) -> Result<impl Iterator<Item = (usize, usize)>, LengthMismatch> {
        let locals = local.max(1);
        if self == Self::Paired && local != 0 && local != remote {
            return Err(LengthMismatch { local, remote });
        }
        let all = self == Self::All || local == 0;
        Ok((0..locals).flat_map(move |l| {
            (0..remote)
                .filter(move |r| all || *r == l)
                .map(move |r| (l, r))
        }))
    }
}

/// The tier of a device for a memory: 0 on the same NUMA node or if either is unknown, else 1.
pub const fn tier(memory_node: Option<u16>, device_node: Option<u16>) -> u8 {
    match (memory_node, device_node) {
        (Some(memory), Some(device)) if memory != device => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn rails_are_paired_as_asked() {
        let mismatch = |local, remote| Err(LengthMismatch { local, remote });
        let cases = [
            ("pairs", RailMap::Paired, 2, 2, Ok(vec![(0, 0), (1, 1)])),
            ("unequal lists", RailMap::Paired, 2, 3, mismatch(2, 3)),
            (
                "no local list reaches all",
                RailMap::Paired,
                0,
                2,
                Ok(vec![(0, 0), (0, 1)]),
            ),
            (
                "all",
                RailMap::All,
                2,
                2,
                Ok(vec![(0, 0), (0, 1), (1, 0), (1, 1)]),
            ),
            ("nothing to reach", RailMap::All, 2, 0, Ok(vec![])),
        ];
        for (name, map, local, remote, pairs) in cases {
            assert_eq!(
                map.pairs(local, remote).map(Iterator::collect::<Vec<_>>),
                pairs,
                "{name}"
            );
        }
    }

    #[test]
    fn tiers_follow_numa_nodes() {
        assert_eq!(tier(Some(0), Some(0)), 0);
        assert_eq!(tier(Some(0), Some(1)), 1);
        assert_eq!(tier(None, Some(1)), 0);
    }
}
