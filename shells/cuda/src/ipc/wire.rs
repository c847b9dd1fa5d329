//! What is said over a lane's socket. Each packet is one message.

use std::io;
use std::os::fd::OwnedFd;

use polyrail_core::units::{Epoch, LaneId};
use polyrail_transport::SessionId;
use polyrail_transport::memory::RegionKey;
use polyrail_transport::packets;
use polyrail_transport::ticket::{Entry, Nonce, Proof, Ticket};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::NAME;
use crate::driver::{HANDLE_BYTES, Handle, Sharing};
use crate::gpus::Export;

/// The version of these messages. Others are refused.
pub(crate) const VERSION: u16 = 2;

/// From the initiator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// The first message. Without a lane and its epoch it only asks whether the target can be reached.
    Hello {
        version: u16,
        session: [u8; 16],
        lane: Option<(u32, u32)>,
    },
    /// What opens what is behind this key?
    Open { key: RegionKey },
    /// Nothing of this end uses what is behind the key any more, nor will.
    Left { key: RegionKey },
    /// The same of all keys of the lane; it is over.
    Over,
    /// The first message where the session has a secret: what is to be proved?
    Challenge,
    /// The answer to [`Answer::Challenge`]: as [`Request::Hello`], with the proof that this end is of the session.
    HelloProved {
        version: u16,
        session: [u8; 16],
        lane: Option<(u32, u32)>,
        ticket: Ticket,
    },
    /// What is behind this key, which is in the host's memory, is to be mapped here: a device here copies to or from it.
    Map { key: RegionKey },
    /// A server carries out this end's copies (MPS): that its process has ended does not mean that they have.
    Served,
}

/// From the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// To [`Request::Hello`]: come in.
    Ready,
    /// To [`Request::Hello`]: no, and the target hangs up.
    Refused,
    /// To [`Request::Open`]: this.
    Opens { key: RegionKey, memory: Memory },
    /// To [`Request::Open`]: it is in the host's memory.
    IsOnHost { key: RegionKey },
    /// To [`Request::Open`]: there is nothing behind it, or nothing that can be opened.
    Nothing { key: RegionKey },
    /// Leave it: say so when nothing uses it any more.
    Leave { key: RegionKey },
    /// To [`Request::Open`]: it is there, and the target's driver does not let others open it.
    Locked { key: RegionKey },
    /// To [`Request::Challenge`]: this.
    Challenge { nonce: Nonce },
    /// To [`Request::HelloProved`], before anything else: this end is of the session as well.
    Proved { proof: Proof },
    /// To [`Request::Map`]: the file that comes with it, so many bytes from its first one on.
    Maps {
        key: RegionKey,
        bytes: u64,
        /// Whether this end may write to it.
        writable: bool,
    },
}

/// What opens a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Memory {
    fabric: bool,
    /// The device's number, see [`Gpu::uuid`](crate::driver::Gpu).
    uuid: [u8; 16],
    handle: [[u8; HANDLE_BYTES / 2]; 2],
    /// The allocation's size, and where the region begins in it.
    pub(crate) allocation_bytes: u64,
    pub(crate) offset: u64,
    /// The region's size.
    pub(crate) bytes: u64,
    /// Whether this end may write to it.
    pub(crate) writable: bool,
}

impl Memory {
    pub(crate) fn new(export: &Export, uuid: [u8; 16], bytes: u64, writable: bool) -> Self {
        let mut handle = [[0; HANDLE_BYTES / 2]; 2];
        let (first, second) = export.handle.bytes.split_at(HANDLE_BYTES / 2);
        handle[0].copy_from_slice(first);
        handle[1].copy_from_slice(second);
        Self {
            fabric: export.handle.sharing == Sharing::Fabric,
            uuid,
            handle,
            allocation_bytes: export.bytes,
            offset: export.offset,
            bytes,
            writable,
        }
    }

    pub(crate) fn handle(&self) -> Handle {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..HANDLE_BYTES / 2].copy_from_slice(&self.handle[0]);
        bytes[HANDLE_BYTES / 2..].copy_from_slice(&self.handle[1]);
        let sharing = match self.fabric {
            true => Sharing::Fabric,
            false => Sharing::Process,
        };
        Handle { sharing, bytes }
    }

    /// Whether it is on the device with this number.
    pub(crate) fn is_on(&self, uuid: [u8; 16]) -> bool {
        self.uuid == uuid
    }

    /// Whether what it says can be: a peer may say anything.
    pub(crate) fn is_sound(&self) -> bool {
        let end = self.offset.checked_add(self.bytes);
        end.is_some_and(|end| end <= self.allocation_bytes)
            && usize::try_from(self.allocation_bytes).is_ok()
    }
}

/// What a ticket is for.
pub(crate) fn entry(session: SessionId, lane: Option<(u32, u32)>) -> Entry<'static> {
    Entry {
        transport: NAME,
        session,
        lane: lane.map(|(lane, epoch)| (LaneId(lane), Epoch(epoch))),
    }
}

/// Sends a message that no descriptor belongs to.
pub(crate) fn send(socket: &OwnedFd, message: &impl Serialize) -> io::Result<()> {
    packets::send(socket, message, None)
}

/// Receives a message; a descriptor that came with it is closed. `None`: there is none now.
pub(crate) fn receive<T: DeserializeOwned>(socket: &OwnedFd) -> io::Result<Option<T>> {
    Ok(packets::receive(socket)?.map(|(message, _)| message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendFlags, send as send_to};
    use std::os::fd::AsFd;

    #[test]
    fn every_message_fits_and_comes_as_it_went() {
        let name = b"polyrail-cuda-wire-test";
        let name = [&name[..], &std::process::id().to_le_bytes()].concat();
        let listener = packets::listen_at(&name).unwrap();
        let near = packets::connect_to(&name).unwrap();
        let far = packets::accept(&listener).unwrap();
        assert!(receive::<Answer>(&near).unwrap().is_none());
        let key = RegionKey([0xff; 16]);
        let export = Export {
            ordinal: 0,
            handle: Handle {
                sharing: Sharing::Fabric,
                bytes: std::array::from_fn(|n| n as u8 + 190),
            },
            offset: u64::MAX,
            bytes: u64::MAX,
        };
        let memory = Memory::new(&export, [0xff; 16], u64::MAX, true);
        assert!(memory.is_on([0xff; 16]) && !memory.is_on([0xfe; 16]));
        let answer = Answer::Opens { key, memory };
        let file = near.as_fd();
        packets::send(&far, &answer, Some(file)).unwrap();
        let (heard, file) = packets::receive::<Answer>(&near).unwrap().unwrap();
        assert!(heard == answer && file.is_some());
        drop(file);
        assert_eq!(memory.handle(), export.handle);
        assert!(!memory.is_sound(), "it ends past its allocation");
        let hello = Request::Hello {
            version: u16::MAX,
            session: [0xff; 16],
            lane: Some((u32::MAX, u32::MAX)),
        };
        send(&near, &hello).unwrap();
        assert_eq!(receive(&far).unwrap(), Some(hello));
        send_to(&near, &[0xee; 300], SendFlags::empty()).unwrap();
        assert!(receive::<Request>(&far).is_err(), "too long");
        send_to(&near, &[0xee; 3], SendFlags::empty()).unwrap();
        assert!(receive::<Request>(&far).is_err(), "none");
        drop(near);
        assert!(receive::<Request>(&far).is_err(), "hung up");
    }
}
