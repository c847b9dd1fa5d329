//! Sockets of packets under abstract names, between processes of one host.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};

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
