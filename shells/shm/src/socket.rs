//! Sockets of packets, which can bring a descriptor along.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::wire::MESSAGE_BYTES_MAX;

/// Sends a message, and a descriptor with it.
pub(crate) fn send(
    socket: &OwnedFd,
    message: &impl Serialize,
    file: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let bytes = postcard::to_slice(message, &mut bytes).map_err(io::Error::other)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files: &[_] = file.as_slice();
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(files));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// Receives a message, and the descriptor that came with it. `None`: there is none now.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: &OwnedFd,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let received = match recvmsg(socket, &mut slices, &mut ancillary, flags) {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let file = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(nonsense("a message is too long"));
    }
    match received.bytes {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        length => postcard::from_bytes(&bytes[..length])
            .map(|message| Some((message, file)))
            .map_err(|_| nonsense("a message is none")),
    }
}

/// What came makes no sense.
pub(crate) fn nonsense(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
