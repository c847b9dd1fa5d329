//! Sockets of packets under abstract names, between processes of one host. Each packet is one message, which can bring a descriptor
//! along.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with,
    sockopt::{Timeout, set_socket_timeout, socket_peercred},
};
use rustix::process::{Uid, geteuid};
use serde::{Serialize, de::DeserializeOwned};

/// The largest message.
pub const MESSAGE_BYTES_MAX: usize = 256;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 256;

/// How long somebody who connects waits for room among them: longer than the thread that makes it waits for a processor on a
/// machine that is busy.
const ROOM_WAIT: Duration = Duration::from_millis(20);

/// What is said of a process in another pid namespace that is not below this one's.
const FOREIGN: &str = "it is a process of another pid namespace, whose end nobody here could see";

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

/// A connection to who listens under an abstract name. Does not wait for it to be accepted, but a little for room among those
/// who do: strangers may keep all of it.
pub fn connect_to(name: &[u8]) -> io::Result<OwnedFd> {
    let (socket, name) = (packets()?, SocketAddrUnix::new_abstract_name(name)?);
    let connected = connect(&socket, &name).or_else(|error| match error {
        // The kernel gives room to those who wait in the order in which they came.
        Errno::AGAIN => {
            ioctl_fionbio(&socket, false)?;
            set_socket_timeout(&socket, Timeout::Send, Some(ROOM_WAIT))?;
            connect(&socket, &name)?;
            ioctl_fionbio(&socket, true)
        }
        error => Err(error),
    });
    connected?;
    Ok(socket)
}

/// Whose process is at the other end of a socket.
pub fn user(socket: &OwnedFd) -> io::Result<Uid> {
    let peer = socket_peercred(socket).map_err(|error| match error.raw_os_error() {
        // Its process has no number here.
        0 => io::Error::other(FOREIGN),
        _ => error.into(),
    });
    Ok(peer?.uid)
}

/// Whether the process at the other end of a socket is of this process's user.
pub fn check_user(socket: &OwnedFd) -> io::Result<()> {
    let theirs = user(socket)?;
    match theirs == geteuid() {
        true => Ok(()),
        false => Err(io::Error::other(stranger(theirs))),
    }
}

/// What is said of a process of another user.
pub fn stranger(user: Uid) -> String {
    let (theirs, ours) = (user.as_raw(), geteuid().as_raw());
    format!("it is a process of user {theirs}, not {ours}")
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// In a child: the name that it is to listen under.
    const NAME: &str = "POLYRAIL_TEST_FOREIGN";

    #[test]
    fn a_process_of_another_pid_namespace_is_told_apart() {
        if let Ok(name) = std::env::var(NAME) {
            let listener = listen_at(name.as_bytes()).unwrap();
            let socket = loop {
                match accept(&listener) {
                    Err(error) if is_passing(&error) => std::thread::yield_now(),
                    accepted => break accepted.unwrap(),
                }
            };
            return assert_eq!(user(&socket).unwrap_err().to_string(), FOREIGN);
        }
        let own = Command::new("unshare")
            .args(["--pid", "--fork", "true"])
            .output();
        if !own.is_ok_and(|own| own.status.success()) {
            let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
            assert!(!must, "no pid namespace can be made");
            return eprintln!("not run, because no pid namespace can be made");
        }
        let name = format!("polyrail-test-{}", std::process::id());
        let itself = std::env::current_exe().unwrap();
        let mut child = Command::new("unshare");
        child.args(["--pid", "--fork", "--mount-proc"]).arg(itself);
        child.args([
            "--exact",
            "packets::tests::a_process_of_another_pid_namespace_is_told_apart",
        ]);
        let mut child = child.env(NAME, &name).spawn().expect("util-linux");
        let ended = loop {
            let _socket = connect_to(name.as_bytes());
            if let Some(ended) = child.try_wait().unwrap() {
                break ended;
            }
            std::thread::yield_now();
        };
        assert!(ended.success(), "{ended}");
    }
}
