//! How notifications and arrivals pass through the control plane, whose frames are short: in parcels, in order, each once.

use polyrail_control::codec::NOTIFICATION_BYTES_MAX as FRAME_BYTES_MAX;

/// Bytes that a notification can have, if the peer's build knows parcels; else 1,024.
pub const NOTIFICATION_BYTES_MAX: usize = 1 << 20;

const WHOLE: u8 = 0;
const BEGINS: u8 = 1;
const GOES_ON: u8 = 2;
const ARRIVED: u8 = 3;

/// Bytes of a notification that the parcel takes which begins it, and each that goes on.
const BEGINS_BYTES: usize = FRAME_BYTES_MAX - 5;
const GOES_ON_BYTES: usize = FRAME_BYTES_MAX - 1;

/// What a parcel says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parcel<'a> {
    /// A notification.
    Whole(&'a [u8]),
    /// One of so many bytes begins.
    Begins { bytes: usize, first: &'a [u8] },
    /// The one that has begun goes on.
    GoesOn(&'a [u8]),
    /// A batch with this tag has arrived.
    Arrived(u64),
}

impl<'a> Parcel<'a> {
    /// What a frame carries. `None`: nothing that this build knows, or that could be.
    pub(crate) fn read(frame: &'a [u8]) -> Option<Self> {
        let (kind, rest) = frame.split_first()?;
        match *kind {
            WHOLE => Some(Self::Whole(rest)),
            BEGINS => {
                let (bytes, first) = rest.split_first_chunk::<4>()?;
                let bytes = u32::from_le_bytes(*bytes) as usize;
                let is_long = bytes > first.len() && bytes <= NOTIFICATION_BYTES_MAX;
                is_long.then_some(Self::Begins { bytes, first })
            }
            GOES_ON => Some(Self::GoesOn(rest)),
            ARRIVED => {
                let tag = rest.try_into().ok()?;
                Some(Self::Arrived(u64::from_le_bytes(tag)))
            }
            _ => None,
        }
    }

    fn frame(self) -> Vec<u8> {
        let (kind, head, rest): (u8, &[u8], &[u8]) = match &self {
            Self::Whole(bytes) => (WHOLE, &[], bytes),
            Self::Begins { bytes, first } => (BEGINS, &(*bytes as u32).to_le_bytes(), first),
            Self::GoesOn(bytes) => (GOES_ON, &[], bytes),
            Self::Arrived(tag) => (ARRIVED, &tag.to_le_bytes(), &[]),
        };
        [&[kind], head, rest].concat()
    }
}

/// The frames of a notification.
pub(crate) fn notification(bytes: &[u8]) -> Vec<Vec<u8>> {
    if bytes.len() <= GOES_ON_BYTES {
        return vec![Parcel::Whole(bytes).frame()];
    }
    let (first, rest) = bytes.split_at(BEGINS_BYTES);
    let begins = Parcel::Begins {
        bytes: bytes.len(),
        first,
    };
    let more = rest.chunks(GOES_ON_BYTES).map(Parcel::GoesOn);
    [begins]
        .into_iter()
        .chain(more)
        .map(Parcel::frame)
        .collect()
}

/// The frame that tells of a batch that has arrived.
pub(crate) fn arrival(tag: u64) -> Vec<u8> {
    Parcel::Arrived(tag).frame()
}

/// The room that a notification takes: a place for each 4 KiB.
pub(crate) fn places(bytes: usize) -> usize {
    bytes.div_ceil(4096).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_fit_and_say_what_went_in() {
        let lengths = [
            0,
            1,
            1018,
            1019,
            1022,
            1023,
            1024,
            2042,
            2043,
            100_000,
            1 << 20,
        ];
        for length in lengths {
            let bytes: Vec<u8> = (0..length).map(|index: usize| index as u8).collect();
            let frames = notification(&bytes);
            assert!(frames.iter().all(|frame| frame.len() <= FRAME_BYTES_MAX));
            let mut got: Vec<u8> = Vec::new();
            for (at, frame) in frames.iter().enumerate() {
                match Parcel::read(frame).unwrap() {
                    Parcel::Whole(all) if frames.len() == 1 => got.extend(all),
                    Parcel::Begins { bytes, first } if at == 0 => {
                        assert_eq!(bytes, length);
                        got.extend(first);
                    }
                    Parcel::GoesOn(more) if at > 0 => got.extend(more),
                    parcel => panic!("{length}: {parcel:?}"),
                }
            }
            assert!(got == bytes, "{length}");
        }
        assert_eq!(Parcel::read(&arrival(7)), Some(Parcel::Arrived(7)));
    }

    #[test]
    fn what_cannot_be_is_nothing() {
        let begins = |bytes: u32, first: usize| {
            [&[BEGINS], &bytes.to_le_bytes()[..], &vec![0; first]].concat()
        };
        let frames = [
            vec![],
            vec![4],
            vec![ARRIVED, 1, 2],
            vec![BEGINS, 1],
            begins(10, 10),
            begins((1 << 20) + 1, 10),
            begins(u32::MAX, 10),
        ];
        for frame in frames {
            assert_eq!(Parcel::read(&frame), None, "{frame:?}");
        }
    }
}
