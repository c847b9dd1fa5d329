//! Which local device faces which remote one, and how far a device is from the memory it serves.
//!
//! Source: TENT (arXiv:2604.00368v1) §3.1 and §4.2 for tiers and the order in which a partner is looked for. We
//! differ in that every device gets a partner, whatever is known of it: shells find out what they can.

use core::fmt;

use crate::plan::PLAN_RAILS_MAX;

/// What one end knows, or has been told, of a device. Nothing of it is promised to be true.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceFacts<'a> {
    /// What its host calls it.
    pub name: Option<&'a str>,
    /// The NUMA node that it is attached to.
    pub node: Option<u16>,
}

/// Pairs of positions: in a list of local, and in one of remote devices.
pub type Pairs = heapless::Vec<(usize, usize), PLAN_RAILS_MAX>;

/// How local and remote devices are joined into rails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RailMap {
    /// The i-th local with the i-th remote one.
    #[default]
    Paired,
    /// Every local with every remote one.
    All,
    /// Each with the one that faces it: see [`nearest`].
    Nearest,
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
        local: &[DeviceFacts<'_>],
        remote: &[DeviceFacts<'_>],
    ) -> Result<impl Iterator<Item = (usize, usize)> + use<>, LengthMismatch> {
        let (locals, remotes) = (local.len(), remote.len());
        let map = if locals == 0 { Self::All } else { self };
        if map == Self::Paired && locals != remotes {
            return Err(LengthMismatch {
                local: locals,
                remote: remotes,
            });
        }
        let (faced, listed) = match map {
            Self::Nearest => (nearest(local, remote), 0),
            Self::Paired | Self::All => (Pairs::new(), locals.max(1)),
        };
        let listed = (0..listed).flat_map(move |l| {
            (0..remotes)
                .filter(move |r| map == Self::All || *r == l)
                .map(move |r| (l, r))
        });
        Ok(faced.into_iter().chain(listed))
    }
}

/// How two devices face each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Facing {
    /// Their hosts call them the same, as hosts that are built alike do with devices on the same switch.
    Name,
    /// They are on the NUMA node of the same number.
    Node,
    /// Nothing is known that would join them.
    Anyhow,
}

impl Facing {
    /// The best first.
    const ALL: [Self; 3] = [Self::Name, Self::Node, Self::Anyhow];

    fn of(here: &DeviceFacts<'_>, there: &DeviceFacts<'_>) -> Self {
        if here.name.is_some() && here.name == there.name {
            Self::Name
        } else if here.node.is_some() && here.node == there.node {
            Self::Node
        } else {
            Self::Anyhow
        }
    }
}

/// Which local device faces which remote one: the one of the same name, else one on the same NUMA node, else
/// any, and among equals the one with the fewest partners, the first one of those.
///
/// On the shorter side nobody gets a second partner before all have one, so each device of both is in a pair. There
/// are as many pairs as the longer list has devices, none twice. If that is more than a plan can name, those of
/// the longer list that would have come last go without. The pairs that give everybody on the shorter side a
/// partner come first, then the others, both from the nearest to the farthest.
pub fn nearest(local: &[DeviceFacts<'_>], remote: &[DeviceFacts<'_>]) -> Pairs {
    if local.len() < remote.len() {
        let pairs = Facings::new(remote, local).join();
        return pairs.into_iter().map(|(r, l)| (l, r)).collect();
    }
    Facings::new(local, remote).join()
}

/// Two lists on their way to being joined.
struct Facings<'a> {
    longer: &'a [DeviceFacts<'a>],
    shorter: &'a [DeviceFacts<'a>],
    /// Positions in the longer list and in the shorter one.
    pairs: Pairs,
}

impl<'a> Facings<'a> {
    fn new(longer: &'a [DeviceFacts<'a>], shorter: &'a [DeviceFacts<'a>]) -> Self {
        Self {
            longer,
            shorter,
            pairs: Pairs::new(),
        }
    }

    fn join(mut self) -> Pairs {
        for facing in Facing::ALL {
            self.join_each(facing, Self::free_partner);
        }
        for facing in Facing::ALL {
            self.join_each(facing, Self::idlest_partner);
        }
        debug_assert!(
            self.pairs.len() == self.longer.len().min(self.pairs.capacity())
                || self.shorter.is_empty(),
            "{} of {} devices face one",
            self.pairs.len(),
            self.longer.len()
        );
        debug_assert!(
            self.pairs.is_full() || (0..self.shorter.len()).all(|there| self.partners(there) > 0),
            "a device faces none"
        );
        self.pairs
    }

    /// Gives those of the longer list that have none a partner, if there is one for them.
    fn join_each(
        &mut self,
        facing: Facing,
        partner: fn(&Self, &DeviceFacts<'_>, Facing) -> Option<usize>,
    ) {
        for (position, device) in self.longer.iter().enumerate() {
            if self.pairs.is_full() {
                return;
            }
            if self.pairs.iter().any(|(taken, _)| *taken == position) {
                continue;
            }
            if let Some(found) = partner(self, device, facing) {
                let _ = self.pairs.push((position, found));
            }
        }
    }

    /// Those of the shorter list that a device faces so.
    fn faced(&self, device: &DeviceFacts<'_>, facing: Facing) -> impl Iterator<Item = usize> {
        let all = self.shorter.iter().enumerate();
        all.filter(move |(_, other)| Facing::of(device, other) == facing)
            .map(|(position, _)| position)
    }

    fn free_partner(&self, device: &DeviceFacts<'_>, facing: Facing) -> Option<usize> {
        self.faced(device, facing)
            .find(|position| self.partners(*position) == 0)
    }

    fn idlest_partner(&self, device: &DeviceFacts<'_>, facing: Facing) -> Option<usize> {
        self.faced(device, facing)
            .min_by_key(|position| self.partners(*position))
    }

    fn partners(&self, shorter: usize) -> usize {
        let taken = self.pairs.iter().filter(|(_, other)| *other == shorter);
        taken.count()
    }
}

/// A local device's second remote one, for when the first one cannot be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spare {
    /// The position of the pair that it stands in for.
    pub of: usize,
    /// The position of the remote device.
    pub remote: usize,
}

/// At most one for each pair.
pub type Spares = heapless::Vec<Spare, PLAN_RAILS_MAX>;

/// Spares for these pairs: one for each local device that is in one pair only, as far as a plan can name them beside all pairs.
/// Who is in several goes on with the others.
///
/// It leads to another remote device that is in a pair: the one that faces the local one best, of equals one with the fewest
/// spares, of those the next one behind its partner in the list of remote devices, round. So where nothing is known of the
/// devices, each remote one is second to one local one.
///
/// Both ends need not agree: a rail is its initiator's.
pub fn spares(
    pairs: &[(usize, usize)],
    local: &[DeviceFacts<'_>],
    remote: &[DeviceFacts<'_>],
) -> Spares {
    let room = PLAN_RAILS_MAX.saturating_sub(pairs.len());
    let mut spares = Spares::new();
    for (of, (here, partner)) in pairs.iter().copied().enumerate() {
        let is_only = pairs.iter().filter(|pair| pair.0 == here).count() == 1;
        if spares.len() == room {
            break;
        }
        let taken = |there| spares.iter().filter(|spare| spare.remote == there).count();
        let rank = |there: &usize| {
            let facing = facing_of(local.get(here), remote.get(*there));
            let behind = (there + remote.len()).saturating_sub(partner + 1);
            (facing, taken(*there), behind % remote.len().max(1))
        };
        let others = pairs.iter().map(|pair| pair.1);
        let second = others.filter(|there| *there != partner).min_by_key(rank);
        if let Some(remote) = second.filter(|_| is_only) {
            let _ = spares.push(Spare { of, remote });
        }
    }
    debug_assert!(
        spares.len() <= room,
        "{} spares beside {} pairs",
        spares.len(),
        pairs.len()
    );
    spares
}

fn facing_of(here: Option<&DeviceFacts<'_>>, there: Option<&DeviceFacts<'_>>) -> Facing {
    let both = here.zip(there);
    both.map_or(Facing::Anyhow, |(here, there)| Facing::of(here, there))
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
    use quickcheck::quickcheck;
    use std::vec;
    use std::vec::Vec;

    const UNKNOWN: DeviceFacts<'static> = facts("", None);

    const fn facts(name: &str, node: Option<u16>) -> DeviceFacts<'_> {
        let name = if name.is_empty() { None } else { Some(name) };
        DeviceFacts { name, node }
    }

    fn on(node: u16) -> DeviceFacts<'static> {
        facts("", Some(node))
    }

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
            (
                "the nearest of unequal lists",
                RailMap::Nearest,
                3,
                2,
                Ok(vec![(0, 0), (1, 1), (2, 0)]),
            ),
            (
                "the nearest for no local list",
                RailMap::Nearest,
                0,
                2,
                Ok(vec![(0, 0), (0, 1)]),
            ),
            ("nothing near", RailMap::Nearest, 2, 0, Ok(vec![])),
        ];
        for (name, map, local, remote, pairs) in cases {
            let (local, remote) = (vec![UNKNOWN; local], vec![UNKNOWN; remote]);
            assert_eq!(
                map.pairs(&local, &remote).map(Iterator::collect::<Vec<_>>),
                pairs,
                "{name}"
            );
        }
    }

    #[test]
    fn devices_face_their_namesakes_then_their_node_then_the_idlest() {
        let (a0, b1, c1) = (
            facts("a", Some(0)),
            facts("b", Some(1)),
            facts("c", Some(1)),
        );
        let (a1, b0) = (facts("a", Some(1)), facts("b", Some(0)));
        // (name, local, remote, pairs)
        let cases = [
            (
                "names in another order",
                vec![a0, b1],
                vec![b1, a0],
                vec![(0, 1), (1, 0)],
            ),
            (
                "a name counts more than a node",
                vec![a0, b1],
                vec![a1, b0],
                vec![(0, 0), (1, 1)],
            ),
            (
                "no name in common",
                vec![on(0), on(1)],
                vec![on(1), on(0)],
                vec![(0, 1), (1, 0)],
            ),
            (
                "names first, though they are listed last",
                vec![c1, b1],
                vec![a1, b0],
                vec![(1, 1), (0, 0)],
            ),
            (
                "nobody is left out for a nearer one",
                vec![on(0), on(1)],
                vec![on(0), on(0)],
                vec![(0, 0), (1, 1)],
            ),
            (
                "two join a namesake",
                vec![a0, b1],
                vec![b1, b1, a0],
                vec![(1, 0), (0, 2), (1, 1)],
            ),
            (
                "the rest goes to its node",
                vec![on(0), on(1), on(1), on(1)],
                vec![on(0), on(1)],
                vec![(0, 0), (1, 1), (2, 1), (3, 1)],
            ),
            (
                "the rest goes to the idlest on its node",
                vec![on(0), on(0), on(0), on(0), on(0)],
                vec![on(0), on(1), on(0)],
                vec![(0, 0), (1, 2), (2, 1), (3, 0), (4, 2)],
            ),
            (
                "nothing is known of one side",
                vec![UNKNOWN],
                vec![a0, b1],
                vec![(0, 0), (0, 1)],
            ),
            (
                "what is unknown is not the same",
                vec![UNKNOWN, a0],
                vec![a0, UNKNOWN],
                vec![(1, 0), (0, 1)],
            ),
        ];
        for (name, local, remote, pairs) in cases {
            assert_eq!(nearest(&local, &remote).as_slice(), pairs, "{name}");
        }
    }

    #[test]
    fn a_list_too_long_is_cut_and_the_other_side_still_reached() {
        let long = [[on(0); 3 * PLAN_RAILS_MAX].as_slice(), &[on(1)]].concat();
        let pairs = nearest(&[on(0), on(2)], &long);
        assert_eq!(pairs.len(), PLAN_RAILS_MAX);
        let first_two = [(0, 0), (1, 1)];
        assert_eq!(pairs[..2], first_two);
    }

    type Listed = Vec<(u8, Option<bool>)>;

    const NAMES: [&str; 4] = ["", "a", "b", "c"];

    fn devices(listed: &Listed) -> Vec<DeviceFacts<'static>> {
        let device = |(name, node): &(u8, Option<bool>)| {
            facts(NAMES[usize::from(name % 4)], node.map(u16::from))
        };
        listed.iter().map(device).collect()
    }

    quickcheck! {
        fn every_device_is_in_a_pair(local: Listed, remote: Listed) -> bool {
            let (local, remote) = (devices(&local), devices(&remote));
            let local = &local[..local.len().min(PLAN_RAILS_MAX)];
            let remote = &remote[..remote.len().min(PLAN_RAILS_MAX)];
            let pairs = nearest(local, remote);
            if local.is_empty() || remote.is_empty() {
                return pairs.is_empty();
            }
            let mut once = pairs.clone();
            once.sort_unstable();
            let is_once = once.windows(2).all(|two| two[0] != two[1]);
            let covers = (0..local.len()).all(|l| pairs.iter().any(|pair| pair.0 == l))
                && (0..remote.len()).all(|r| pairs.iter().any(|pair| pair.1 == r));
            is_once && covers && pairs.len() == local.len().max(remote.len())
        }

        fn any_lists_fit_a_plan_and_reach_whoever_is_on_the_shorter_one(local: Listed, remote: Listed) -> bool {
            let (local, remote) = (devices(&local), devices(&remote));
            let pairs = nearest(&local, &remote);
            let wanted = match local.len().min(remote.len()) {
                0 => 0,
                _ => local.len().max(remote.len()).min(PLAN_RAILS_MAX),
            };
            let faced = match local.len() < remote.len() {
                true => (0..local.len()).filter(|l| pairs.iter().any(|pair| pair.0 == *l)).count(),
                false => (0..remote.len()).filter(|r| pairs.iter().any(|pair| pair.1 == *r)).count(),
            };
            pairs.len() == wanted && faced == local.len().min(remote.len()).min(PLAN_RAILS_MAX)
        }

        fn whoever_has_one_partner_has_a_spare_if_there_is_another_device(local: Listed, remote: Listed) -> bool {
            let (local, remote) = (devices(&local), devices(&remote));
            let pairs = nearest(&local, &remote);
            let spares = spares(&pairs, &local, &remote);
            let partners = |l| pairs.iter().filter(|pair| pair.0 == l).count();
            let others = |r| pairs.iter().any(|pair| pair.1 != r);
            let wanted = pairs.iter().filter(|(l, r)| partners(*l) == 1 && others(*r)).count();
            let as_pair = |spare: &Spare| (pairs[spare.of].0, spare.remote);
            let mut all: Vec<_> = pairs.iter().copied().chain(spares.iter().map(as_pair)).collect();
            all.sort_unstable();
            all.len() <= PLAN_RAILS_MAX
                && spares.len() == wanted.min(PLAN_RAILS_MAX - pairs.len())
                && all.windows(2).all(|two| two[0] != two[1])
                && spares.windows(2).all(|two| two[0].of < two[1].of)
                && spares.iter().all(|spare| partners(pairs[spare.of].0) == 1)
        }

        fn no_spare_is_worse_than_another_device(local: Listed, remote: Listed) -> bool {
            let (local, remote) = (devices(&local), devices(&remote));
            let pairs = nearest(&local, &remote);
            spares(&pairs, &local, &remote).iter().all(|spare| {
                let (here, partner) = pairs[spare.of];
                let facing = |r: usize| Facing::of(&local[here], &remote[r]);
                let mut others = pairs.iter().filter(|pair| pair.1 != partner);
                others.all(|pair| facing(pair.1) >= facing(spare.remote))
            })
        }

        fn where_every_one_meets_every_one_there_are_no_spares(local: u8, remote: u8) -> bool {
            let (local, remote) = (vec![UNKNOWN; usize::from(local % 5)], vec![UNKNOWN; usize::from(remote % 5)]);
            let pairs: Vec<_> = RailMap::All.pairs(&local, &remote).unwrap().collect();
            spares(&pairs, &local, &remote).is_empty()
        }

        fn the_two_ends_agree(local: Listed, remote: Listed) -> bool {
            // Only where the lists differ in length does it matter from which end one looks.
            let (local, remote) = (devices(&local), devices(&remote));
            let there: Pairs = nearest(&remote, &local).into_iter().map(|(r, l)| (l, r)).collect();
            local.len() == remote.len() || nearest(&local, &remote) == there
        }

        fn a_longer_list_without_facts_is_spread_evenly(longer: u8, shorter: u8) -> bool {
            let shorter = usize::from(shorter) % 4 + 1;
            let longer = shorter + usize::from(longer) % (PLAN_RAILS_MAX - shorter);
            let (longer, shorter) = (vec![UNKNOWN; longer], vec![UNKNOWN; shorter]);
            let pairs = nearest(&longer, &shorter);
            let load = |position| pairs.iter().filter(|pair| pair.1 == position).count();
            let loads: Vec<_> = (0..shorter.len()).map(load).collect();
            loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1
        }

        fn who_has_a_partner_of_its_own_kind_gets_no_worse_one_but_for_cover(local: Listed, remote: Listed) -> bool {
            // Beyond the pairs that cover the shorter side, everybody has the best that there is for it.
            let (local, remote) = (devices(&local), devices(&remote));
            let cover = local.len().min(remote.len());
            nearest(&local, &remote).iter().skip(cover).all(|(l, r)| {
                let best = match local.len() < remote.len() {
                    true => local.iter().map(|other| Facing::of(other, &remote[*r])).min(),
                    false => remote.iter().map(|other| Facing::of(&local[*l], other)).min(),
                };
                Some(Facing::of(&local[*l], &remote[*r])) == best
            })
        }
    }

    #[test]
    fn spares_lead_to_the_second_best_and_are_spread() {
        let [a0, b0, c1, d1] =
            [("a", 0), ("b", 0), ("c", 1), ("d", 1)].map(|(name, node)| facts(name, Some(node)));
        let unknown = |count| vec![UNKNOWN; count];
        let paired = |count| (0..count).map(|l| (l, l)).collect::<Vec<_>>();
        // (name, local, remote, pairs, the second one of each pair)
        let cases = [
            (
                "two",
                unknown(2),
                unknown(2),
                paired(2),
                vec![(0, 1), (1, 0)],
            ),
            (
                "round",
                unknown(3),
                unknown(3),
                paired(3),
                vec![(0, 1), (1, 2), (2, 0)],
            ),
            (
                "on the same node",
                vec![a0, b0, c1, d1],
                vec![a0, b0, c1, d1],
                paired(4),
                vec![(0, 1), (1, 0), (2, 3), (3, 2)],
            ),
            (
                "the node counts, whoever is behind",
                vec![a0, c1, b0, d1],
                vec![a0, c1, b0, d1],
                paired(4),
                vec![(0, 2), (1, 3), (2, 0), (3, 1)],
            ),
            (
                "a namesake that is not its partner",
                vec![a0, b0],
                vec![b0, a0],
                paired(2),
                vec![(0, 1), (1, 0)],
            ),
            (
                "more here than there",
                unknown(3),
                unknown(2),
                vec![(0, 0), (1, 1), (2, 0)],
                vec![(0, 1), (1, 0), (2, 1)],
            ),
            (
                "who has two needs none",
                unknown(2),
                unknown(3),
                vec![(0, 0), (1, 1), (0, 2)],
                vec![(1, 2)],
            ),
            (
                "one there",
                unknown(2),
                unknown(1),
                vec![(0, 0), (1, 0)],
                vec![],
            ),
            ("nothing", vec![], vec![], vec![], vec![]),
            // Thirteen rails leave room for three more.
            (
                "no room for all",
                unknown(13),
                unknown(13),
                paired(13),
                vec![(0, 1), (1, 2), (2, 3)],
            ),
            ("no room", unknown(16), unknown(16), paired(16), vec![]),
        ];
        for (name, local, remote, pairs, seconds) in cases {
            let spares = spares(&pairs, &local, &remote);
            let spares: Vec<_> = spares
                .iter()
                .map(|spare| (spare.of, spare.remote))
                .collect();
            assert_eq!(spares, seconds, "{name}");
        }
    }

    #[test]
    fn eight_devices_on_either_side_fill_a_plan() {
        let eight: Vec<_> = (0..8).map(|number| on(number / 4)).collect();
        for (map, local) in [
            (RailMap::Paired, vec![UNKNOWN; 8]),
            (RailMap::Nearest, eight.clone()),
        ] {
            let pairs: Vec<_> = map.pairs(&local, &eight).unwrap().collect();
            let spares = spares(&pairs, &local, &eight);
            assert_eq!((pairs.len(), spares.len()), (8, 8), "{map:?}");
            assert_eq!(pairs.len() + spares.len(), PLAN_RAILS_MAX);
            let second_to = |remote| spares.iter().filter(|spare| spare.remote == remote).count();
            assert!((0..8).all(|remote| second_to(remote) == 1), "{map:?}");
        }
    }

    #[test]
    fn tiers_follow_numa_nodes() {
        assert_eq!(tier(Some(0), Some(0)), 0);
        assert_eq!(tier(Some(0), Some(1)), 1);
        assert_eq!(tier(None, Some(1)), 0);
    }
}
