//! Chance, and what it does to bytes.

use oorandom::Rand64;

/// Seeded chance.
pub(crate) struct Chance(Rand64);

impl Chance {
    pub(crate) fn new(seed: u64, index: u64) -> Self {
        Self(Rand64::new(u128::from(seed) << 64 | u128::from(index)))
    }

    /// Less than `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0.rand_range(0..end.max(1) as u64) as usize
    }

    /// True one time in `times`.
    pub(crate) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0.rand_u64()
    }

    /// A number that programs get wrong, or any.
    pub(crate) fn awkward(&mut self) -> u64 {
        const EDGES: [u64; 12] = [
            0,
            1,
            63,
            255,
            65_535,
            65_536,
            i32::MAX as u64,
            u32::MAX as u64,
            u32::MAX as u64 + 1,
            i64::MAX as u64,
            u64::MAX - 1,
            u64::MAX,
        ];
        match self.below(3) {
            0 => self.number(),
            1 => self.number() >> self.below(64),
            _ => EDGES[self.below(EDGES.len())],
        }
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.number() as u8).collect()
    }

    pub(crate) fn key(&mut self) -> [u8; 16] {
        (u128::from(self.number()) << 64 | u128::from(self.number())).to_le_bytes()
    }

    pub(crate) fn choose<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Pieces that make sense, put on the wire so that they make less.
pub(crate) fn broken(chance: &mut Chance, mut pieces: Vec<Vec<u8>>) -> Vec<u8> {
    if pieces.len() > 1 && chance.one_in(2) {
        let (a, b) = (chance.below(pieces.len()), chance.below(pieces.len()));
        match chance.below(3) {
            0 => pieces.swap(a, b),
            1 => pieces.insert(a, pieces[b].clone()),
            _ => drop(pieces.remove(a)),
        }
    }
    let mut bytes = pieces.concat();
    for _ in 0..chance.below(4) {
        spoil(chance, &mut bytes);
    }
    bytes
}

fn spoil(chance: &mut Chance, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let at = chance.below(bytes.len());
    match chance.below(5) {
        0 | 1 => bytes[at] ^= 1 << chance.below(8),
        2 => bytes[at] = chance.number() as u8,
        3 => bytes.truncate(at),
        _ => {
            let length = chance.below(64);
            let noise = chance.bytes(length);
            bytes.splice(at..at, noise);
        }
    }
}
