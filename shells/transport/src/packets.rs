//! Sockets of packets under abstract names, between processes of one host. Each packet is one message, which can bring a descriptor
//! along.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with,
};
use serde::{Serialize, de::DeserializeOwned};

/// The largest message.
pub const MESSAGE_BYTES_MAX: usize = 256;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 256;

/// How long nobody is accepted after the system had no descriptor or memory for it: a listener that cannot accept would wake
/// its thread for ever.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

fn packets() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(socket_with(family, kind, FLAGS, None)?)
}

/// A socket that listens under an abstract name.
pub fn listen_at(name: &[u8]) -> io::Result<OwnedFd> {
    let socket = packets()?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// The next connection, if there is one.
pub fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(accept_with(listener, FLAGS)?)
}

/// Whether an error of [`accept`] says nothing of the next try: nobody waits, or who waited has gone.
pub fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(
        error.kind(),
        WouldBlock | Interrupted | ConnectionAborted | ConnectionReset
    )
}

/// A connection to who listens under an abstract name. Does not wait for it to be accepted.
pub fn connect_to(name: &[u8]) -> io::Result<OwnedFd> {
    let socket = packets()?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(socket)
}

/// Sends a message, and a descriptor with it.
pub fn send(
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
pub fn receive<T: DeserializeOwned>(socket: &OwnedFd) -> io::Result<Option<(T, Option<OwnedFd>)>> {
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
pub fn nonsense(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
