//! A connection's life, by the cases of the MPIB path isolation document.

extern crate std;
use super::PathClass::{InterIsland, IntraIsland};
use super::PathMode::{Advanced, Vanilla};
use super::Preference::{Apportioned, Within};
use super::*;
use quickcheck::quickcheck;
use std::vec::Vec;

const KIB64: u32 = 64 << 10;
const MIB: u64 = 1 << 20;
const PRIMARY: ClassSet = ClassSet::PRIMARY;
const SECOND: ClassSet = ClassSet::only(RailClass(1));
const BOTH: ClassSet = PRIMARY.with(RailClass(1));
const NONE: ClassSet = ClassSet::NONE;

fn config(mode: PathMode) -> PathConfig {
    PathConfig {
        mode,
        ..PathConfig::DEFAULT
    }
}

fn path(mode: PathMode, class: PathClass) -> Path {
    Path::new(&config(mode), class)
}

#[test]
fn a_transfer_prefers_what_mode_and_class_say() {
    let half = Some(Shares::pair(512));
    let hinted = Apportioned(Shares::pair(512));
    // (name, mode, class, bytes, hint, preference, hints read)
    let cases = [
        (
            "vanilla inside",
            Vanilla,
            IntraIsland,
            MIB,
            half,
            Within(SECOND),
            0,
        ),
        (
            "vanilla between",
            Vanilla,
            InterIsland,
            MIB,
            half,
            Within(PRIMARY),
            0,
        ),
        (
            "vanilla, little",
            Vanilla,
            IntraIsland,
            1,
            half,
            Within(SECOND),
            0,
        ),
        ("hint inside", Advanced, IntraIsland, MIB, half, hinted, 1),
        ("hint between", Advanced, InterIsland, MIB, half, hinted, 1),
        ("little inside", Advanced, IntraIsland, 1, half, hinted, 1),
        (
            "little between",
            Advanced,
            InterIsland,
            65_536,
            half,
            Within(PRIMARY),
            0,
        ),
        ("just more", Advanced, InterIsland, 65_537, half, hinted, 1),
        (
            "no agent inside",
            Advanced,
            IntraIsland,
            MIB,
            None,
            Within(SECOND),
            1,
        ),
        (
            "no agent between",
            Advanced,
            InterIsland,
            MIB,
            None,
            Within(PRIMARY),
            1,
        ),
    ];
    for (name, mode, class, bytes, hint, preference, reads) in cases {
        let mut path = path(mode, class);
        let mut asked = 0;
        let answer = path.preference(bytes, || {
            asked += 1;
            hint
        });
        assert_eq!(
            (answer, path.hint_reads(), asked),
            (preference, reads, reads),
            "{name}"
        );
    }
}

#[test]
fn small_transfers_follow_the_hint_if_none_count_as_small() {
    let config = PathConfig {
        small_bytes_max: 0,
        ..config(Advanced)
    };
    let mut path = Path::new(&config, InterIsland);
    let hint = Shares::pair(512);
    assert_eq!(path.preference(1, || Some(hint)), Apportioned(hint));
}

#[test]
fn without_supplementary_queue_pairs_all_is_primary() {
    let config = PathConfig {
        queue_pairs: [2, 0, 0, 0, 0, 0, 0, 0],
        ..PathConfig::DEFAULT
    };
    let mut path = Path::new(&config, IntraIsland);
    let preference = path.preference(MIB, || None);
    assert_eq!(preference, Within(PRIMARY));
    assert_eq!(path.classes(&preference, KIB64, BOTH, BOTH), PRIMARY);
}

#[test]
fn a_slice_takes_what_is_preferred_reachable_and_has_room() {
    let only = |share| Apportioned(Shares::pair(share));
    // (name, preference, strict, reachable, room, classes)
    let cases = [
        ("as preferred", Within(SECOND), false, BOTH, BOTH, SECOND),
        (
            "no room: it waits",
            Within(SECOND),
            false,
            BOTH,
            PRIMARY,
            NONE,
        ),
        (
            "unreachable: the other",
            Within(SECOND),
            false,
            PRIMARY,
            BOTH,
            PRIMARY,
        ),
        (
            "the other way round",
            Within(PRIMARY),
            false,
            SECOND,
            BOTH,
            SECOND,
        ),
        ("nothing reachable", Within(SECOND), false, NONE, BOTH, NONE),
        ("hint: all of one", only(1024), false, BOTH, BOTH, SECOND),
        ("hint: none of it", only(0), false, BOTH, BOTH, PRIMARY),
        (
            "none while others live, full or not",
            only(0),
            false,
            BOTH,
            SECOND,
            NONE,
        ),
        (
            "all of one, unreachable",
            only(1024),
            false,
            PRIMARY,
            BOTH,
            PRIMARY,
        ),
        (
            "none, and the other gone",
            only(0),
            false,
            SECOND,
            BOTH,
            SECOND,
        ),
        (
            "due has no room: yields",
            only(768),
            false,
            BOTH,
            PRIMARY,
            PRIMARY,
        ),
        ("strict: waits", only(768), true, BOTH, PRIMARY, NONE),
        ("strict, with room", only(768), true, BOTH, BOTH, SECOND),
        (
            "strict, unreachable: the other",
            only(768),
            true,
            PRIMARY,
            BOTH,
            PRIMARY,
        ),
        (
            "strict, all of it gone: the other",
            only(1024),
            true,
            PRIMARY,
            BOTH,
            PRIMARY,
        ),
    ];
    for (name, preference, strict, reachable, room, classes) in cases {
        let config = PathConfig {
            hint_strict: strict,
            ..config(Advanced)
        };
        let path = Path::new(&config, InterIsland);
        let answer = path.classes(&preference, KIB64, reachable, room);
        assert_eq!(answer, classes, "{name}");
    }
}

#[test]
fn a_suppressed_class_is_never_answered() {
    let path = path(Vanilla, InterIsland);
    for preference in [Within(SECOND), Apportioned(Shares::pair(1024))] {
        // A lane that does not exist cannot be reachable, whatever a caller believes.
        assert_eq!(path.classes(&preference, KIB64, BOTH, BOTH), PRIMARY);
        assert_eq!(path.classes(&preference, KIB64, SECOND, SECOND), NONE);
    }
    assert_eq!(path.queue_pairs().count(RailClass(1)), 0);
}

/// Sends what is wanted and gives the bytes of each class.
fn send(path: &mut Path, hint: Shares, slices: u64, reachable: ClassSet) -> [u64; 8] {
    let mut bytes = [0; 8];
    for _ in 0..slices {
        let preference = path.preference(MIB, || Some(hint));
        let classes = path.classes(&preference, KIB64, reachable, reachable);
        let class = classes.iter().next().expect("somebody takes it");
        path.handle_bound(&preference, KIB64, reachable, class);
        bytes[class.index()] += u64::from(KIB64);
    }
    bytes
}

#[test]
fn shares_hold_while_a_class_is_gone_and_after_its_return() {
    let mut config = config(Advanced);
    config.queue_pairs[2] = 1;
    let mut path = Path::new(&config, InterIsland);
    let mut parts = [0; 8];
    parts[..3].copy_from_slice(&[512, 384, 128]);
    let hint = Shares::new(parts).unwrap();
    let three = BOTH.with(RailClass(2));
    // (reachable, shares of each class then)
    let phases = [
        (three, [512, 384, 128]),
        (PRIMARY.with(RailClass(2)), [512, 0, 128]),
        (three, [512, 384, 128]),
    ];
    for (reachable, parts) in phases {
        const SLICES: u64 = if cfg!(miri) { 64 } else { 1024 };
        let bytes = send(&mut path, hint, SLICES, reachable);
        for (class, part) in parts.into_iter().enumerate() {
            let seen = bytes[class] / u64::from(KIB64);
            let expected = SLICES * part / parts.iter().sum::<u64>();
            assert!(
                seen.abs_diff(expected) <= 2,
                "{class}: {seen}, not {expected}"
            );
        }
    }
}

quickcheck! {
    /// Whatever is asked for: an answer is reachable, has room and has queue pairs, and there is one whenever
    /// nothing that the preference names can be reached but something else has room.
    fn preferences_never_win_over_what_is_possible(
        kind: (bool, bool, bool), shares: Shares, reachable: Vec<u8>, room: Vec<u8>
    ) -> bool {
        let (advanced, intra, strict) = kind;
        let config = PathConfig {
            hint_strict: strict,
            queue_pairs: [1; 8],
            ..config(if advanced { Advanced } else { Vanilla })
        };
        let mut path = Path::new(&config, if intra { IntraIsland } else { InterIsland });
        let set = |numbers: Vec<u8>| -> ClassSet { numbers.into_iter().map(|n| RailClass(n % 8)).collect() };
        let (reachable, room) = (set(reachable), set(room));
        let preference = path.preference(MIB, || Some(shares));
        let classes = path.classes(&preference, KIB64, reachable, room);
        let usable = reachable.and(room).and(path.queue_pairs().classes());
        let stranded = preference.classes().and(reachable).is_empty();
        classes.and(usable) == classes && (!stranded || classes.is_empty() == usable.is_empty())
    }
}
