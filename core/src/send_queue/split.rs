//! How a batch of requests is divided among the lanes of a session.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), phases 1A (rotating start) and 3 (policies and
//! chunk rules).

use core::ops::Range;

use super::config::SendQueueConfig;
use super::levels::{Snapshot, Standing};

/// Which lane takes the next chunk of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum SplitPolicy {
    /// Every lane has its share before anything is admitted; see [`shares`].
    Static,
    /// The lane with the least held and admitted.
    #[default]
    LeastLoaded,
    /// The lane with the most room, and no more than that room. An experiment.
    Capacity,
}

impl SplitPolicy {
    /// As the configuration says it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::LeastLoaded => "least_loaded",
            Self::Capacity => "capacity",
        }
    }
}

/// One lane's share of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Share {
    /// Its position among the session's lanes.
    pub lane: u16,
    /// Which requests.
    pub requests: Range<u32>,
}

/// Equal shares of `requests` requests for `lanes` lanes, in order; the last one may be shorter.
///
/// Fewer requests than lanes begin at lane `start` modulo `lanes`, such as the batch's number, so that small
/// batches do not all go to the first lane.
pub fn shares(requests: u32, lanes: u16, start: u64) -> impl Iterator<Item = Share> {
    let count = u64::from(lanes.max(1));
    let each = u64::from(requests).div_ceil(count).max(1);
    let first = if u64::from(requests) < count {
        start % count
    } else {
        0
    };
    (0..count)
        .map(move |share| Share {
            lane: ((first + share) % count) as u16,
            requests: bounded(share * each, requests)..bounded((share + 1) * each, requests),
        })
        .filter(move |share| lanes > 0 && !share.requests.is_empty())
}

const fn bounded(position: u64, requests: u32) -> u32 {
    if position < requests as u64 {
        position as u32
    } else {
        requests
    }
}

/// The lane that comes after `tried` ones in the policy's order: least load, or most room, first; then the
/// first in the table. Lanes that are not open, and lanes beyond 64, are left out.
pub fn next_lane(
    policy: SplitPolicy,
    lanes: impl Iterator<Item = Snapshot>,
    tried: u64,
) -> Option<usize> {
    lanes
        .take(u64::BITS as usize)
        .enumerate()
        .filter(|(index, lane)| lane.standing == Standing::Open && tried >> index & 1 == 0)
        .min_by_key(|(index, lane)| {
            let filled = match policy {
                SplitPolicy::Capacity => u16::MAX - lane.admissible_works(),
                SplitPolicy::Static | SplitPolicy::LeastLoaded => 0,
            };
            (filled, lane.load(), *index)
        })
        .map(|(index, _)| index)
}

/// Works that one admission to a lane of `works_max` covers at most, if one call to the transport takes
/// `post_works_max` (0: any number). At least 1.
pub fn chunk_works(config: &SendQueueConfig, works_max: u16, post_works_max: u16) -> u16 {
    let limits = [
        post_works_max,
        config.signal_interval_works,
        config.admission_chunk_works,
    ];
    let set = limits.into_iter().filter(|limit| *limit > 0);
    set.fold(works_max, u16::min).max(1)
}

/// Works that must be admissible before `works` are. Who was refused once (`pressed`) needs the watermark,
/// though no more than a chunk, and never more than an empty lane has.
pub fn required_works(
    config: &SendQueueConfig,
    works: u16,
    pressed: bool,
    works_max: u16,
    chunk_works: u16,
) -> u16 {
    let watermark = if pressed {
        let watermark = config.admission_resume_watermark_works;
        watermark.min(works_max).min(chunk_works)
    } else {
        0
    };
    works.max(watermark).min(works_max).max(1)
}

/// Admissions of one batch that may be with workers at once: as configured, or one for each lane; at most
/// two for each, at least one.
pub fn outstanding_max(config: &SendQueueConfig, lanes: u16) -> u16 {
    let wanted = if config.admission_chunks_max > 0 {
        config.admission_chunks_max
    } else {
        lanes
    };
    wanted.min(lanes.saturating_mul(2)).max(1)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::send_queue::grant::Amount;
    use crate::send_queue::levels::Revision;
    use quickcheck::quickcheck;
    use std::vec;
    use std::vec::Vec;

    fn lane(held: u16, admitted_works: u16, max: u16, standing: Standing) -> Snapshot {
        Snapshot {
            held: Amount::writes(held),
            admitted_works,
            max: Amount::writes(max),
            standing,
            revision: Revision(0),
        }
    }

    #[test]
    fn small_batches_begin_at_rotating_lanes() {
        // (name, requests, lanes, start, (lane, first request, end) of each share)
        let cases = [
            ("none", 0, 4, 1, vec![]),
            ("no lane", 5, 0, 1, vec![]),
            ("one, first batch", 1, 4, 0, vec![(0, 0, 1)]),
            ("one, second batch", 1, 4, 1, vec![(1, 0, 1)]),
            ("one, sixth batch", 1, 4, 5, vec![(1, 0, 1)]),
            ("two wrap around", 2, 3, 2, vec![(2, 0, 1), (0, 1, 2)]),
            (
                "as many as lanes begin at the first",
                2,
                2,
                1,
                vec![(0, 0, 1), (1, 1, 2)],
            ),
            (
                "a short last share",
                7,
                3,
                1,
                vec![(0, 0, 3), (1, 3, 6), (2, 6, 7)],
            ),
            (
                "a lane too many",
                5,
                4,
                0,
                vec![(0, 0, 2), (1, 2, 4), (2, 4, 5)],
            ),
        ];
        for (name, requests, lanes, start, expected) in cases {
            let got: Vec<_> = shares(requests, lanes, start)
                .map(|share| (share.lane, share.requests.start, share.requests.end))
                .collect();
            assert_eq!(got, expected, "{name}");
        }
    }

    #[test]
    fn lanes_come_in_the_order_of_the_policy() {
        use SplitPolicy::{Capacity, LeastLoaded};
        use Standing::{Degraded, Open, Terminal};
        let uneven = [
            lane(10, 0, 100, Open),
            lane(4, 4, 10, Open),
            lane(0, 8, 100, Open),
            lane(0, 0, 100, Degraded),
            lane(0, 0, 100, Terminal),
        ];
        let cases = [
            (
                "least held and admitted, first of equals",
                LeastLoaded,
                0,
                Some(1),
            ),
            ("then the next", LeastLoaded, 0b010, Some(2)),
            ("then the last open one", LeastLoaded, 0b110, Some(0)),
            ("closed ones never", LeastLoaded, 0b111, None),
            ("most room", Capacity, 0, Some(2)),
            ("then less", Capacity, 0b100, Some(0)),
        ];
        for (name, policy, tried, expected) in cases {
            let got = next_lane(policy, uneven.into_iter(), tried);
            assert_eq!(got, expected, "{name}");
        }
    }

    #[test]
    fn chunks_are_as_large_as_all_limits_allow() {
        let config = |interval, chunk| SendQueueConfig {
            signal_interval_works: interval,
            admission_chunk_works: chunk,
            ..SendQueueConfig::MORI
        };
        // (name, interval, chunk, lane, post, works)
        let cases = [
            ("only the lane", 0, 0, 128, 0, 128),
            ("what one post takes", 0, 0, 128, 32, 32),
            ("the interval", 16, 0, 128, 32, 16),
            ("the setting", 16, 8, 128, 32, 8),
            ("never none", 0, 0, 0, 0, 1),
        ];
        for (name, interval, chunk, lane, post, works) in cases {
            let got = chunk_works(&config(interval, chunk), lane, post);
            assert_eq!(got, works, "{name}");
        }
    }

    #[test]
    fn who_was_refused_needs_the_watermark() {
        let config = SendQueueConfig::MORI;
        // (name, works, pressed, lane, chunk, required)
        let cases = [
            ("a newcomer", 4, false, 128, 64, 4),
            ("the watermark, up to a chunk", 4, true, 128, 64, 64),
            ("up to the lane", 4, true, 32, 64, 32),
            ("what it asks for, if more", 80, true, 128, 64, 80),
            ("at least one", 0, false, 128, 64, 1),
            ("the whole watermark", 4, true, 4096, 4096, 2048),
        ];
        for (name, works, pressed, lane, chunk, required) in cases {
            let got = required_works(&config, works, pressed, lane, chunk);
            assert_eq!(got, required, "{name}");
        }
    }

    #[test]
    fn outstanding_chunks_are_bounded() {
        let config = |admission_chunks_max| SendQueueConfig {
            admission_chunks_max,
            ..SendQueueConfig::DEFAULT
        };
        // (name, setting, lanes, chunks)
        let cases = [
            ("one for each lane", 0, 4, 4),
            ("as set", 3, 4, 3),
            ("two for each lane at most", 100, 4, 8),
            ("at least one", 0, 0, 1),
        ];
        for (name, setting, lanes, chunks) in cases {
            assert_eq!(outstanding_max(&config(setting), lanes), chunks, "{name}");
        }
    }

    quickcheck! {
        fn shares_cover_every_request_once(requests: u16, lanes: u8, start: u64) -> bool {
            // Under Miri the property of many lanes takes long, and is the same.
            let lanes = u16::from(if cfg!(miri) { lanes % 16 } else { lanes }).max(1);
            let mut all: Vec<Share> = shares(u32::from(requests), lanes, start).collect();
            let distinct: std::collections::BTreeSet<u16> = all.iter().map(|share| share.lane).collect();
            all.sort_by_key(|share| share.requests.start);
            let mut next = 0;
            distinct.len() == all.len()
                && distinct.iter().all(|lane| *lane < lanes)
                && all.iter().all(|share| {
                    let follows = share.requests.start == next;
                    next = share.requests.end;
                    follows
                })
                && next == u32::from(requests)
        }
    }
}
