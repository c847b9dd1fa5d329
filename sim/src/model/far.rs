//! The peer's side of lanes: what has landed, which epochs are fenced, and the control codec in between.

use std::collections::BTreeSet;

use polyrail_control::codec::{self, Decoder, Frame};
use polyrail_core::message;
use polyrail_core::units::{Epoch, LaneId};

use super::agenda::LaneIndex;

/// One lane, as its peer knows it.
#[derive(Clone, Debug, Default)]
struct FarLane {
    /// The newest epoch that something landed of, and how much of it in the order of posting.
    epoch: u32,
    landed: u32,
    /// What landed before something that was posted earlier.
    early: BTreeSet<u32>,
    /// Nothing of this epoch or an older one lands any more.
    fenced: u32,
    /// It was another process's: nobody can say anything of this epoch or an older one.
    ended: u32,
}

/// All lanes, as the peers know them.
pub(crate) struct Far {
    lanes: Vec<FarLane>,
    /// A test's switch: fences are answered and not kept.
    ignores_fences: bool,
}

impl Far {
    /// Peers that know of nothing yet.
    pub(crate) fn new(lanes: usize, ignores_fences: bool) -> Self {
        Self {
            lanes: vec![FarLane::default(); lanes],
            ignores_fences,
        }
    }

    /// Whether the write of this place in its epoch may land; it has, then.
    pub(crate) fn lands(&mut self, lane: LaneIndex, epoch: u32, sequence: u32) -> bool {
        let row = &mut self.lanes[lane as usize];
        if epoch <= row.fenced && !self.ignores_fences {
            return false;
        }
        if epoch > row.epoch {
            row.epoch = epoch;
            row.landed = 0;
            row.early.clear();
        }
        if epoch == row.epoch {
            row.early.insert(sequence);
            while row.early.remove(&row.landed) {
                row.landed += 1;
            }
        }
        true
    }

    /// The process at the far end is gone: nothing of this epoch lands any more, and nobody says how much has.
    pub(crate) fn end(&mut self, lane: LaneIndex, epoch: u32) {
        let row = &mut self.lanes[lane as usize];
        row.fenced = row.fenced.max(epoch);
        row.ended = row.ended.max(epoch);
    }

    /// Whether something of this epoch can land still.
    pub(crate) fn is_open(&self, lane: LaneIndex, epoch: u32) -> bool {
        epoch > self.lanes[lane as usize].fenced
    }

    /// Lets nothing of this epoch land any more: how much has. `None`: it was another process's.
    pub(crate) fn fence(&mut self, lane: LaneIndex, epoch: u32) -> Option<u32> {
        let row = &mut self.lanes[lane as usize];
        row.fenced = row.fenced.max(epoch);
        let landed = if row.epoch == epoch { row.landed } else { 0 };
        (epoch > row.ended).then_some(landed)
    }
}

/// A frame as bytes. The few that the simulator sends always fit.
pub(crate) fn encode(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    // One that cannot be encoded is as good as lost, and core asks again.
    let _ = codec::encode(frame, &mut bytes);
    bytes
}

/// The frames in bytes that came.
pub(crate) fn decode(bytes: &[u8]) -> Vec<Frame> {
    let mut decoder = Decoder::default();
    decoder.push(bytes);
    let mut frames = Vec::new();
    while let Ok(Some(frame)) = decoder.next_frame() {
        frames.push(frame);
    }
    frames
}

/// A frame as core takes it; `None`: it is not core's business.
pub(crate) fn to_core(frame: &Frame) -> Option<message::Frame> {
    match *frame {
        Frame::Heartbeat => Some(message::Frame::Alive),
        Frame::Fenced {
            lane,
            epoch,
            delivered,
        } => Some(message::Frame::Fenced {
            lane: LaneId(lane),
            epoch: Epoch(epoch),
            delivered,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_ends_its_epoch_and_counts_what_landed() {
        let mut far = Far::new(1, false);
        assert!(far.lands(0, 1, 0) && far.lands(0, 1, 1) && far.lands(0, 1, 3));
        assert_eq!(far.fence(0, 1), Some(2), "the third has not landed");
        assert_eq!(far.fence(0, 1), Some(2), "asked again");
        assert!(!far.lands(0, 1, 2) && far.lands(0, 2, 0));
        assert_eq!(far.fence(0, 3), Some(0), "nothing of it landed");
        assert!(!far.lands(0, 2, 1), "older than the fenced one");
        assert!(far.lands(0, 4, 0));
        far.end(0, 4);
        assert_eq!((far.lands(0, 4, 1), far.fence(0, 4)), (false, None));
    }

    #[test]
    fn frames_pass_the_codec() {
        let frames = decode(&encode(&Frame::Fenced {
            lane: 1,
            epoch: 2,
            delivered: 3,
        }));
        let core = frames.first().and_then(to_core);
        let expected = message::Frame::Fenced {
            lane: LaneId(1),
            epoch: Epoch(2),
            delivered: 3,
        };
        assert_eq!(core, Some(expected));
    }
}
