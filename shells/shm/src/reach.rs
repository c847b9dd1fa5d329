//! Greetings: how an initiator asks to come in.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use polyrail_core::transport::{Capabilities, MemoryKind};
use polyrail_core::units::{Epoch, LaneId};
use polyrail_transport::SessionId;
use polyrail_transport::complain;
use polyrail_transport::packets::{self, nonsense};
use polyrail_transport::ticket::{Entry, Proving, Said, SessionSecret};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::NAME;
use crate::process::{OwnCookie, Process};
use crate::wire::{Answer, Cookie, LaneName, Request, VERSION};

/// How long a target on the same host may take to answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// What this transport moves between processes of one host at best: anything in host memory.
pub(crate) const ALL: Capabilities = Capabilities::HOST;

/// The same where the kernel does not let this process read the target's memory, or neither write for the other: only what the
/// target shares.
const SHARED: Capabilities = Capabilities::NONE
    .with_local(MemoryKind::Host)
    .with_local(MemoryKind::Shared)
    .with_remote(MemoryKind::Shared);

/// Somebody who asks to come in at a target, with the mailbox of a lane or without.
#[derive(Debug)]
pub(crate) struct Asking<B> {
    pub(crate) socket: OwnedFd,
    session: SessionId,
    lane: Option<(LaneName, B)>,
    proving: Proving,
}

impl<B: AsFd> Asking<B> {
    /// Connects to a target and asks to come in. The answer is [`Self::hear`]'s business.
    pub(crate) fn greet(
        name: &[u8],
        session: SessionId,
        secret: Option<&SessionSecret>,
        cookie: &OwnCookie,
        lane: Option<(LaneName, B)>,
    ) -> io::Result<Self> {
        let socket = packets::connect_to(name)?;
        packets::check_user(&socket)?;
        let asking = Self {
            socket,
            session,
            lane,
            proving: Proving::new(secret),
        };
        match asking.proving.is_over() {
            false => packets::send(&asking.socket, &Request::Challenge, None)?,
            true => asking.say(&Request::Hello {
                version: VERSION,
                session: session.0,
                cookie: cookie.cookie(),
                lane: asking.lane_name(),
            })?,
        }
        Ok(asking)
    }

    /// Whose lane it asks for.
    fn lane_name(&self) -> Option<LaneName> {
        self.lane.as_ref().map(|(name, _)| *name)
    }

    fn say(&self, hello: &Request) -> io::Result<()> {
        let mailbox = self.lane.as_ref().map(|(_, mailbox)| mailbox.as_fd());
        packets::send(&self.socket, hello, mailbox)
    }

    /// What the target says to the greeting: its cookie, and why it cannot pull from here. `None`: nothing yet.
    pub(crate) fn hear(
        &mut self,
        cookie: &OwnCookie,
    ) -> io::Result<Option<(Cookie, Option<String>)>> {
        let entry = entry(self.session, self.lane_name());
        while let Some((answer, _)) = packets::receive(&self.socket)? {
            let said = match answer {
                Answer::Refused { text } => {
                    return Err(io::Error::other(format!("refused: {text}")));
                }
                Answer::Ready { cookie, no_pull } if self.proving.is_over() => {
                    return Ok(Some((cookie, no_pull)));
                }
                _ if self.proving.is_over() => {
                    return Err(nonsense("its answer is not one to a greeting"));
                }
                Answer::Challenge { nonce } => Said::Challenge(nonce),
                Answer::Proved { proof } => Said::Proof(proof),
                _ => Said::Other,
            };
            if let Some(ticket) = self.proving.hear(&entry, said)? {
                self.say(&Request::HelloProved {
                    version: VERSION,
                    session: self.session.0,
                    cookie: cookie.cookie(),
                    lane: self.lane_name(),
                    ticket,
                })?;
            }
        }
        Ok(None)
    }
}

/// What a ticket is for.
pub(crate) fn entry(session: SessionId, lane: Option<LaneName>) -> Entry<'static> {
    Entry {
        transport: NAME,
        session,
        lane: lane.map(|name| (LaneId(name.lane), Epoch(name.epoch))),
    }
}

/// What moves between this process and a target, tried out.
pub(crate) fn reach(
    name: &[u8],
    session: SessionId,
    secret: Option<&SessionSecret>,
    cookie: &OwnCookie,
) -> io::Result<Capabilities> {
    let mut asking = Asking::<OwnedFd>::greet(name, session, secret, cookie, None)?;
    let until = Instant::now() + PATIENCE;
    let (theirs, no_pull) = loop {
        if let Some(answer) = asking.hear(cookie)? {
            break answer;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = Timespec::try_from(left).ok();
        let mut ready = [PollFd::new(&asking.socket, PollFlags::IN)];
        let _ = poll(&mut ready, left.as_ref());
    };
    let forbidden = match (Process::of(&asking.socket, theirs), no_pull) {
        (Ok(_), None) => return Ok(ALL),
        // It need not.
        (Ok(process), Some(_)) if process.is_pushed_to() => return Ok(ALL),
        (Err(why), _) => format!("this process cannot read the peer's: {why}"),
        (Ok(_), Some(why)) => format!("the peer cannot read this process's: {why}"),
    };
    complain!("shm: memory that a program registers goes over another transport: {forbidden}");
    Ok(SHARED)
}
