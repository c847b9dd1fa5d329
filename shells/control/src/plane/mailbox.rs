//! How other threads reach the control thread.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard};

use polyrail_core::path::view::PathView;
use polyrail_core::stage::StageMessage;
use polyrail_core::units::{Epoch, LaneId, PeerId};
use polyrail_transport::SessionId;
use rustix::event::{EventfdFlags, eventfd};

use super::notification::Notification;
use super::{AskError, ConnectError, Introduction, Party, Rails};
use crate::codec::SegmentDescriptor;
use crate::security::Fingerprint;

/// Commands that may wait before those that are repeated anyway are dropped.
const WAITING_MAX: usize = 16 * 1024;

/// Commands taken per wake-up.
const TAKEN_MAX: usize = 1024;

/// A thread that waits for the answer to a question.
pub(super) struct Asker<T> {
    /// How long it waits.
    pub(super) timeout: std::time::Duration,
    /// It may have given up.
    pub(super) reply: SyncSender<Result<T, AskError>>,
}

impl<T> Asker<T> {
    pub(super) fn answer(&self, result: Result<T, AskError>) {
        // That nobody waits any more is no error.
        let _ = self.reply.send(result);
    }
}

/// What another thread wants of the control thread.
pub(super) enum Command {
    Connect {
        peer: PeerId,
        local: Option<IpAddr>,
        remote: SocketAddr,
        timeout: std::time::Duration,
        reply: SyncSender<Result<Introduction, ConnectError>>,
    },
    Maintain {
        peer: PeerId,
        rails: Vec<(Option<IpAddr>, SocketAddr)>,
    },
    Announce {
        rails: Rails,
    },
    /// Peers may come in here too.
    Listen(TcpListener),
    /// This engine is about to end.
    Leave,
    /// Sessions that began with a key that was replaced are to end after this time.
    LeaveKey {
        key: Fingerprint,
        within: std::time::Duration,
    },
    Limit {
        sessions: usize,
        connections: usize,
    },
    Moved {
        peer: PeerId,
        bytes: u64,
    },
    Disconnect {
        peer: PeerId,
    },
    Describe {
        peer: PeerId,
        name: String,
        asker: Asker<Option<SegmentDescriptor>>,
    },
    SeePath {
        peer: PeerId,
        rails: Vec<(IpAddr, IpAddr)>,
        asker: Asker<Option<PathView>>,
    },
    Call {
        peer: PeerId,
        method: u16,
        body: Vec<u8>,
        asker: Asker<Vec<u8>>,
    },
    Fence {
        peer: PeerId,
        lane: LaneId,
        epoch: Epoch,
    },
    Stage {
        to: Party,
        message: StageMessage,
    },
    Notify {
        peer: PeerId,
        notifications: Vec<Notification>,
    },
    /// The program has taken notifications, and this session was told to wait.
    NotificationRoom {
        session: SessionId,
    },
    /// The engine's answer to a peer's fence; `None`: it will not come.
    FenceAnswered {
        session: SessionId,
        lane: LaneId,
        epoch: Epoch,
        delivered: Option<u32>,
    },
    /// The program's answer to a peer's call.
    CallAnswered {
        session: SessionId,
        number: u64,
        result: Result<Vec<u8>, String>,
    },
    /// Everything of an ended session has ended; `false`: that will never be known.
    Retired {
        session: SessionId,
        proven: bool,
    },
    /// Hand in what has come on all connections, then say so.
    Hear {
        told: Box<dyn FnOnce() + Send>,
    },
    Shutdown,
}

/// The commands, and the descriptor that wakes the control thread for them.
#[derive(Debug)]
pub(super) struct Mailbox {
    queue: Mutex<Queue>,
    wake: OwnedFd,
}

#[derive(Default)]
struct Queue {
    commands: VecDeque<Command>,
    closed: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Queue({} commands, closed: {})",
            self.commands.len(),
            self.closed
        )
    }
}

impl Mailbox {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            queue: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Leaves a command. Once the plane is shut down it is dropped, and with it the way to answer it.
    pub(super) fn post(&self, command: Command) {
        let mut queue = self.lock();
        let droppable = matches!(command, Command::Fence { .. } | Command::Stage { .. });
        if queue.closed || (droppable && queue.commands.len() >= WAITING_MAX) {
            // Not under the lock: what is dropped may post in turn.
            drop(queue);
            drop(command);
            return;
        }
        queue.commands.push_back(command);
        drop(queue);
        self.wake();
    }

    /// Takes some commands; wakes again if there are more.
    pub(super) fn take(&self) -> VecDeque<Command> {
        let mut count = [0; 8];
        // Reading resets it. Nothing to read is fine: somebody else's wake-up was read before.
        let _ = rustix::io::read(&self.wake, &mut count);
        let mut queue = self.lock();
        let rest = queue.commands.len().min(TAKEN_MAX);
        let rest = queue.commands.split_off(rest);
        let taken = std::mem::replace(&mut queue.commands, rest);
        let more = !queue.commands.is_empty();
        drop(queue);
        if more {
            self.wake();
        }
        taken
    }

    /// Takes no commands from now on and drops those that wait.
    pub(super) fn close(&self) {
        let mut queue = self.lock();
        queue.closed = true;
        let dropped = std::mem::take(&mut queue.commands);
        drop(queue);
        drop(dropped);
    }

    /// Readable while commands wait.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Wakes the control thread.
    pub(super) fn wake(&self) {
        // It can only fail when the counter is full, and then the thread is woken anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A question that the control thread has handed out. It is answered exactly once: by
/// [`Self::answer`], or with `None` when it is dropped.
pub(super) struct Pending<T> {
    mailbox: Arc<Mailbox>,
    command: Option<Box<dyn FnOnce(Option<T>) -> Command + Send>>,
}

impl<T> Pending<T> {
    pub(super) fn new(
        mailbox: &Arc<Mailbox>,
        command: impl FnOnce(Option<T>) -> Command + Send + 'static,
    ) -> Self {
        Self {
            mailbox: mailbox.clone(),
            command: Some(Box::new(command)),
        }
    }

    pub(super) fn answer(mut self, value: T) {
        self.post(Some(value));
    }

    fn post(&mut self, value: Option<T>) {
        if let Some(command) = self.command.take() {
            self.mailbox.post(command(value));
        }
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.post(None);
    }
}
