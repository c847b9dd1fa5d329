//! How a program that does without late binding shares its requests among queue pairs by itself.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), phases 1A (rotating start) and 3 (policies and chunks). There an
//! executor on the program's thread does this; here it is a way to submit: each chunk takes credits of the one lane that it is
//! for, and its requests name that lane's rail alone. It is kept for comparison; core knows nothing of it.

/// Which lane the next chunk of a batch goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SplitPolicy {
    /// Each lane has an equal share of the batch before anything is handed over.
    Static,
    /// That with the fewest works held.
    LeastLoaded,
    /// That with the most room, and no more than that room.
    Capacity,
}

impl SplitPolicy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Static, Self::LeastLoaded, Self::Capacity];

    /// The policy's name on command lines and in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::LeastLoaded => "least-loaded",
            Self::Capacity => "capacity",
        }
    }

    /// The one of this name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// The place of the lane that comes first, of those that are open: how many works each holds, and how many it can hold.
    pub(crate) fn choose(self, lanes: impl Iterator<Item = (usize, u16, u16)>) -> Option<usize> {
        let filled = |held: u16, max: u16| match self {
            Self::Capacity => u16::MAX - max.saturating_sub(held),
            Self::Static | Self::LeastLoaded => 0,
        };
        lanes
            .min_by_key(|(place, held, max)| (filled(*held, *max), *held, *place))
            .map(|(place, ..)| place)
    }
}

/// Equal shares of so many requests for so many lanes, in order; the last one may be shorter. Which lane, and how many.
///
/// Fewer requests than lanes begin at lane `start` modulo `lanes`, so that small batches do not all go to the first.
pub(crate) fn shares(requests: u32, lanes: u32, start: u64) -> impl Iterator<Item = (usize, u32)> {
    let each = requests.div_ceil(lanes.max(1)).max(1);
    let first = match requests < lanes {
        true => start % u64::from(lanes.max(1)),
        false => 0,
    };
    (0..lanes)
        .map(move |share| {
            let lane = (first + u64::from(share)) % u64::from(lanes.max(1));
            let left = requests.saturating_sub(share * each);
            (lane as usize, left.min(each))
        })
        .filter(|(_, requests)| *requests > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_batches_begin_at_rotating_lanes() {
        // (name, requests, lanes, start, lane and requests of each share)
        type Shares<'a> = &'a [(usize, u32)];
        let cases: [(_, u32, u32, u64, Shares<'_>); 9] = [
            ("none", 0, 4, 1, &[]),
            ("no lane", 5, 0, 1, &[]),
            ("one, first batch", 1, 4, 0, &[(0, 1)]),
            ("one, second batch", 1, 4, 1, &[(1, 1)]),
            ("one, sixth batch", 1, 4, 5, &[(1, 1)]),
            ("two wrap around", 2, 3, 2, &[(2, 1), (0, 1)]),
            (
                "as many as lanes begin at the first",
                2,
                2,
                1,
                &[(0, 1), (1, 1)],
            ),
            ("a short last share", 7, 3, 1, &[(0, 3), (1, 3), (2, 1)]),
            ("a lane too many", 5, 4, 0, &[(0, 2), (1, 2), (2, 1)]),
        ];
        for (name, requests, lanes, start, expected) in cases {
            let got: Vec<_> = shares(requests, lanes, start).collect();
            assert_eq!(got, expected, "{name}");
        }
    }

    #[test]
    fn lanes_come_in_the_order_of_the_policy() {
        use SplitPolicy::{Capacity, LeastLoaded};
        // (place, works held, works it can hold)
        let uneven = [(0, 10, 100), (1, 8, 10), (2, 8, 100)];
        let cases = [
            ("fewest held, first of equals", LeastLoaded, 0, Some(1)),
            ("then the next", LeastLoaded, 0b010, Some(2)),
            ("then the last one", LeastLoaded, 0b110, Some(0)),
            ("there is none", LeastLoaded, 0b111, None),
            ("most room", Capacity, 0, Some(2)),
            ("then less", Capacity, 0b100, Some(0)),
        ];
        for (name, policy, tried, expected) in cases {
            let left = uneven
                .into_iter()
                .filter(|(place, ..)| tried >> place & 1 == 0);
            assert_eq!(policy.choose(left), expected, "{name}");
        }
    }

    #[test]
    fn shares_cover_every_request_once() {
        for requests in 0..40 {
            for lanes in 1..10 {
                let all: Vec<_> = shares(requests, lanes, 7).collect();
                let sum: u32 = all.iter().map(|(_, count)| count).sum();
                let mut distinct: Vec<_> = all.iter().map(|(lane, _)| *lane).collect();
                distinct.sort_unstable();
                distinct.dedup();
                assert_eq!((sum, distinct.len()), (requests, all.len()));
                assert!(distinct.iter().all(|lane| *lane < lanes as usize));
            }
        }
    }
}
