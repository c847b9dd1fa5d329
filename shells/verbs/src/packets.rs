//! Packets of a queue pair: which works have arrived whole, by the number of the packet that its peer expects next.
//!
//! Each side of a reliable connection numbers its packets, from a number that it has told the other, in 24 bits. A write
//! of *n* bytes takes as many numbers as it takes packets, and so does a read: those of its answers. The responder takes
//! them in order, and each once. So a work whose last packet is before the one that is expected has been carried out.

use std::collections::VecDeque;
use std::fmt;

/// Of the numbers.
const BITS: u32 = 24;
const MASK: u32 = (1 << BITS) - 1;

/// How far packets have come at a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Reached(u32);

impl Reached {
    /// The target cannot tell.
    pub(crate) const UNKNOWN: Self = Self(0);

    /// All those before this number.
    pub(crate) fn before(number: u32) -> Self {
        Self(1 << BITS | number & MASK)
    }

    /// As the answer to a fence carries it.
    pub(crate) fn to_word(self) -> u32 {
        self.0
    }

    pub(crate) fn of_word(word: u32) -> Self {
        match word >> BITS {
            1 => Self(word),
            _ => Self::UNKNOWN,
        }
    }

    fn number(self) -> Option<u32> {
        (self != Self::UNKNOWN).then_some(self.0 & MASK)
    }
}

/// Works of a lane, and the numbers of their packets.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Bytes of a packet are two to the power of this.
    packet_bits: u32,
    first_packet: u32,
    /// Works that have completed well, and packets of all until then.
    completed: Mark,
    /// Packets of all that were posted.
    packets: u64,
    /// After each work that is posted and has not completed well, and each immediate: packets of all until then.
    ends: VecDeque<u64>,
    /// Immediates among them.
    immediates: usize,
    /// Something has failed: nothing completes well behind it.
    has_failed: bool,
}

/// So many of core's works, and packets of them and of immediates, since the lane opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Mark {
    works: u32,
    packets: u64,
}

/// An immediate ends there, no work.
const IMMEDIATE: u64 = 1 << 63;

impl Tally {
    /// Of a queue pair whose packets begin at this number, with an MTU as verbs number it.
    pub(crate) fn new(first_packet: u32, mtu: u8) -> Self {
        Self {
            packet_bits: 7 + u32::from(mtu.clamp(1, 5)),
            first_packet,
            completed: Mark::default(),
            packets: 0,
            ends: VecDeque::new(),
            immediates: 0,
            has_failed: false,
        }
    }

    /// Works of so many bytes have been posted, one after the other.
    pub(crate) fn posted(&mut self, bytes: impl Iterator<Item = u64>) {
        let (bits, packets) = (self.packet_bits, &mut self.packets);
        self.ends.extend(bytes.map(|bytes| {
            *packets += packets_of(bytes, bits);
            *packets
        }));
    }

    /// So many works have been posted as one.
    pub(crate) fn posted_as_one(&mut self, works: u8, bytes: u64) {
        self.packets += packets_of(bytes, self.packet_bits);
        let end = std::iter::repeat_n(self.packets, works.into());
        self.ends.extend(end);
    }

    /// An immediate has been posted.
    pub(crate) fn posted_immediate(&mut self) {
        self.packets += 1;
        self.ends.push_back(self.packets | IMMEDIATE);
        self.immediates += 1;
    }

    /// So many of the first, works and immediates, have completed well.
    pub(crate) fn completed(&mut self, count: usize) {
        let last = count.checked_sub(1).and_then(|last| self.ends.get(last));
        let Some(last) = last.filter(|_| !self.has_failed) else {
            return;
        };
        self.completed.packets = last & !IMMEDIATE;
        let mut works = count;
        if self.immediates > 0 {
            let first = self.ends.range(..count);
            let immediates = first.filter(|end| **end & IMMEDIATE != 0).count();
            works -= immediates;
            self.immediates -= immediates;
        }
        self.completed.works = self.completed.works.wrapping_add(works as u32);
        self.ends.drain(..count);
    }

    /// Something has failed, or was flushed.
    pub(crate) fn failed(&mut self) {
        self.has_failed = true;
    }

    /// So many of core's works have arrived whole, in order from the first.
    pub(crate) fn arrived(&self, reached: Reached) -> u32 {
        let Mark { works, packets } = self.completed;
        let Some(number) = reached.number() else {
            return works;
        };
        let on_their_way = self.packets - packets;
        let next = u64::from(self.first_packet) + packets;
        let come = u64::from(number.wrapping_sub(next as u32) & MASK);
        // Otherwise a number means two packets, or none that was sent.
        if on_their_way > u64::from(MASK) || come > on_their_way {
            return works;
        }
        let ends = self.ends.iter();
        let whole = ends.take_while(|end| (**end & !IMMEDIATE) - packets <= come);
        let more = whole.filter(|end| **end & IMMEDIATE == 0).count();
        works.wrapping_add(more as u32)
    }
}

/// Packets that so many bytes take.
fn packets_of(bytes: u64, packet_bits: u32) -> u64 {
    (bytes + (1 << packet_bits) - 1) >> packet_bits
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on_their_way = self.packets - self.completed.packets;
        let works = self.completed.works;
        write!(
            f,
            "{works} that have completed, and those of {on_their_way} packets on their way"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MTU 1024; one packet, three, an immediate, two works in two packets.
    fn tally(first_packet: u32) -> Tally {
        let mut tally = Tally::new(first_packet, 3);
        tally.posted([1, 2049].into_iter());
        tally.posted_immediate();
        tally.posted_as_one(2, 2048);
        tally
    }

    #[test]
    fn works_have_arrived_whose_last_packet_has() {
        // (packets, works)
        let cases = [
            (0, 0),
            (1, 1),
            (2, 1),
            (3, 1),
            (4, 2),
            (5, 2),
            (6, 2),
            (7, 4),
            // More than were sent: that is no number of this queue pair's.
            (8, 0),
            (MASK, 0),
        ];
        for first in [0, 1000, MASK - 2, MASK] {
            let tally = tally(first);
            for (packets, works) in cases {
                let reached = Reached::before(first.wrapping_add(packets));
                assert_eq!(tally.arrived(reached), works, "{packets} from {first}");
                assert_eq!(Reached::of_word(reached.to_word()), reached);
            }
            assert_eq!(tally.arrived(Reached::UNKNOWN), 0);
            assert_eq!(tally.arrived(Reached::of_word(12)), 0);
        }
    }

    #[test]
    fn what_has_completed_has_arrived_whatever_the_target_says() {
        let before = |packets: u32| Reached::before(MASK.wrapping_add(packets));
        for count in [2, 3] {
            let mut tally = tally(MASK);
            tally.completed(count);
            assert_eq!(tally.arrived(Reached::UNKNOWN), 2);
            for packets in [0, 3, 4, 5, 6] {
                assert_eq!(tally.arrived(before(packets)), 2, "{packets}");
            }
            assert_eq!(tally.arrived(before(7)), 4);
            tally.completed(5 - count);
            assert_eq!(tally.arrived(Reached::UNKNOWN), 4);
        }
    }

    #[test]
    fn what_has_failed_may_have_arrived() {
        let mut tally = tally(7);
        tally.completed(1);
        tally.failed();
        tally.completed(1);
        assert_eq!(tally.arrived(Reached::UNKNOWN), 1);
        assert_eq!(tally.arrived(Reached::before(7 + 4)), 2);
    }

    #[test]
    fn numbers_that_could_mean_two_packets_mean_none() {
        let mut tally = Tally::new(5, 1);
        tally.posted([1 << 31; 3].into_iter());
        assert_eq!(tally.arrived(Reached::before(6)), 0);
    }
}
