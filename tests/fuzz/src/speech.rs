//! What is spoken at the port: frames of the control plane, and requests of TCP lanes.

use polyrail_control::codec::{
    self, Decoder, Frame, Greeting, Purpose, Refusal, SegmentDescriptor, SegmentKind,
    TransportOffer,
};
use polyrail_control::process::Process;
use polyrail_core::stage::StageMessage;
use polyrail_core::transport::MemoryKind;
use polyrail_core::units::{PoolId, SegmentRef, Ticket};
use polyrail_core::work::Place;
use polyrail_transport::memory::{Access, RegionKey};

use crate::VICTIM;
use crate::mutate::Chance;

/// Calls that would write to the memory that good peers check: to poison and to fill.
const WRITING_CALLS: [u16; 2] = [1, 2];

/// The names of what can be asked for, or not.
const NAMES: [&str; 4] = [VICTIM, "nothing", "", "../../etc/passwd"];

/// As bytes; a frame that is too large is not said.
pub(crate) fn encoded(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Then it is empty.
    let _ = codec::encode(frame, &mut bytes);
    bytes
}

pub(crate) fn greeting(purpose: Purpose) -> Vec<u8> {
    Greeting::ours(purpose).encode().to_vec()
}

pub(crate) fn hello(chance: &mut Chance, session: Option<[u8; 16]>) -> Frame {
    Frame::Hello {
        name: "fuzz".into(),
        incarnation: chance.number(),
        session,
        token: Vec::new(),
    }
}

pub(crate) fn join(chance: &mut Chance, session: [u8; 16]) -> Frame {
    Frame::JoinLane {
        session,
        lane: chance.awkward() as u32,
        epoch: chance.awkward() as u32,
    }
}

/// Any frame, also of those that only targets say.
pub(crate) fn frame(chance: &mut Chance) -> Frame {
    match chance.below(19) {
        0 => Frame::Heartbeat,
        18 => Frame::Alive,
        1 => Frame::Describe {
            question: chance.awkward(),
            name: name(chance),
        },
        2 | 3 => Frame::Fence {
            lane: chance.awkward() as u32,
            epoch: chance.awkward() as u32,
        },
        4 => Frame::Fenced {
            lane: chance.awkward() as u32,
            epoch: chance.awkward() as u32,
            delivered: chance.awkward() as u32,
        },
        5 | 6 => Frame::Call {
            number: chance.awkward(),
            method: 3 + chance.below(40) as u16,
            body: body(chance),
        },
        7 => Frame::Notify {
            number: 1 + chance.below(3) as u64,
            body: body(chance),
        },
        8 => Frame::Notified {
            number: chance.awkward(),
            room: chance.one_in(2),
        },
        9 => Frame::Process(process(chance)),
        10 => Frame::Refused {
            reason: Refusal::Full,
            text: name(chance),
        },
        11 => welcome(chance),
        12 => Frame::SessionUnknown {
            name: name(chance),
            incarnation: chance.awkward(),
        },
        13 => {
            let session = chance.key();
            join(chance, session)
        }
        14 => Frame::LaneReady {
            works_max: chance.awkward() as u16,
            work_bytes_max: chance.awkward() as u32,
        },
        15 | 16 => Frame::Stage(about_slots(chance)),
        _ => hello(chance, None),
    }
}

/// A word about a staging slot: few tickets, so that some words belong together, and any number for a file.
fn about_slots(chance: &mut Chance) -> StageMessage {
    let few = |chance: &mut Chance| match chance.one_in(4) {
        true => chance.awkward() as u32,
        false => chance.below(4) as u32,
    };
    let ticket = Ticket {
        index: few(chance),
        generation: few(chance),
    };
    match chance.below(6) {
        0 | 1 => StageMessage::Reserve {
            ticket,
            pool: PoolId(few(chance) as u8),
        },
        2 | 3 => StageMessage::Go {
            ticket,
            attempt: few(chance),
            place: Place {
                segment: SegmentRef(chance.below(12) as u32),
                offset: chance.awkward(),
            },
            length: chance.awkward() as u32,
        },
        4 => StageMessage::Free {
            ticket,
            fenced: chance.one_in(2),
        },
        _ => StageMessage::Reserved {
            ticket,
            slot: few(chance),
        },
    }
}

fn name(chance: &mut Chance) -> String {
    if chance.one_in(4) {
        return "\u{1b}[2Jé".repeat(chance.below(200));
    }
    (*chance.choose(&NAMES)).to_owned()
}

fn body(chance: &mut Chance) -> Vec<u8> {
    let length = match chance.below(8) {
        0 => chance.below(codec::FRAME_BYTES_MAX),
        1 => chance.below(codec::NOTIFICATION_BYTES_MAX + 2),
        _ => chance.below(40),
    };
    chance.bytes(length)
}

fn process(chance: &mut Chance) -> Process {
    Process {
        boot: u128::from_le_bytes(chance.key()),
        pid_namespace: chance.awkward(),
        net_namespace: chance.awkward(),
        pid: chance.awkward() as u32,
        started: chance.awkward(),
    }
}

fn welcome(chance: &mut Chance) -> Frame {
    let offers = (0..chance.below(80)).map(|_| TransportOffer {
        name: name(chance),
        capabilities: chance.awkward() as u16,
        address: chance.key()[..chance.below(17)].to_vec(),
    });
    let transports = offers.collect();
    Frame::Welcome {
        name: name(chance),
        incarnation: chance.number(),
        session: chance.key(),
        rails: Vec::new(),
        transports,
        rail_facts: Vec::new(),
        scratch: SegmentDescriptor {
            name: name(chance),
            generation: chance.awkward(),
            bytes: chance.awkward(),
            key: RegionKey(chance.key()),
            access: Access::RemoteReadWrite,
            memory: MemoryKind::Host,
            kind: SegmentKind::Memory,
            numa_node: None,
        },
        heartbeat_ms: chance.awkward() as u32,
    }
}

/// Whether what a target would understand of these bytes, greeting first, leaves good peers' memory alone.
pub(crate) fn is_fair(bytes: &[u8]) -> bool {
    let mut decoder = Decoder::default();
    decoder.push(bytes);
    if !matches!(decoder.next_greeting(), Ok(Some(_))) {
        return true;
    }
    while let Ok(Some(frame)) = decoder.next_frame() {
        if matches!(frame, Frame::Call { method, .. } if WRITING_CALLS.contains(&method)) {
            return false;
        }
    }
    true
}

/// A request of a TCP lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) read: bool,
    pub(crate) length: u32,
    pub(crate) sequence: u32,
    pub(crate) key: RegionKey,
    pub(crate) offset: u64,
}

impl Request {
    /// Its 64 bytes, as `shells/tcp/src/wire.rs` has them.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[0] = if self.read { 2 } else { 1 };
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[12..28].copy_from_slice(&self.key.0);
        bytes[28..36].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }
}
