//! Greetings: how an initiator asks to come in.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use polyrail_core::transport::{Capabilities, MemoryKind};
use polyrail_transport::SessionId;
use polyrail_transport::packets;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::process::{OwnCookie, Process, check_user};
use crate::socket::{self, nonsense};
use crate::wire::{Answer, Cookie, LaneName, Request, VERSION};

/// How long a target on the same host may take to answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// What this transport moves between processes of one host at best: anything in host memory.
pub(crate) const ALL: Capabilities = Capabilities::HOST;

/// The same where the kernel lets neither process read the other's memory: only what the target shares.
const SHARED: Capabilities = Capabilities::NONE
    .with_local(MemoryKind::Host)
    .with_local(MemoryKind::Shared)
    .with_remote(MemoryKind::Shared);

/// Connects to a target and asks to come in. The answer is [`answer`]'s business.
pub(crate) fn greet(
    name: &[u8],
    session: SessionId,
    cookie: &OwnCookie,
    lane: Option<(LaneName, &OwnedFd)>,
) -> io::Result<OwnedFd> {
    let socket = packets::connect_to(name)?;
    check_user(&socket)?;
    let hello = Request::Hello {
        version: VERSION,
        session: session.0,
        cookie: cookie.cookie(),
        lane: lane.map(|(lane, _)| lane),
    };
    let board = lane.map(|(_, board)| board.as_fd());
    socket::send(&socket, &hello, board)?;
    Ok(socket)
}

/// What a target says to a greeting: its cookie, and why it cannot pull from here. `None`: nothing yet.
pub(crate) fn answer(socket: &OwnedFd) -> io::Result<Option<(Cookie, Option<String>)>> {
    match socket::receive(socket)? {
        None => Ok(None),
        Some((Answer::Ready { cookie, no_pull }, _)) => Ok(Some((cookie, no_pull))),
        Some((Answer::Refused { text }, _)) => Err(io::Error::other(format!("refused: {text}"))),
        Some(_) => Err(nonsense("its answer is not one to a greeting")),
    }
}

/// What moves between this process and a target, tried out.
pub(crate) fn reach(
    name: &[u8],
    session: SessionId,
    cookie: &OwnCookie,
) -> io::Result<Capabilities> {
    let socket = greet(name, session, cookie, None)?;
    let until = Instant::now() + PATIENCE;
    let (theirs, no_pull) = loop {
        if let Some(answer) = answer(&socket)? {
            break answer;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = Timespec::try_from(left).ok();
        let mut ready = [PollFd::new(&socket, PollFlags::IN)];
        let _ = poll(&mut ready, left.as_ref());
    };
    let forbidden = match (Process::of(&socket, theirs), no_pull) {
        (Ok(_), None) => return Ok(ALL),
        (Err(why), _) => format!("this process cannot read the peer's: {why}"),
        (Ok(_), Some(why)) => format!("the peer cannot read this process's: {why}"),
    };
    log::warn!("shm: memory that a program registers goes over another transport: {forbidden}");
    Ok(SHARED)
}
