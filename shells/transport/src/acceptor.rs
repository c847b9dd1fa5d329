//! The thread that accepts connections of packets for a service thread. Processes of this user alone get past it.
//!
//! Anybody on the host can read an abstract name, and connect to it as often as it likes. So whoever serves lanes and
//! answers fences accepts nobody: it is handed connections of its own user, a few at a time. What strangers cost it is
//! this thread's share of the processors.
//!
//! A socket in a folder that only this user may enter would keep strangers out altogether. But two containers that share
//! a network and no files could not meet at it, and one of a process that was killed would stay.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::geteuid;

use crate::complain;
use crate::complaint::Lines;
use crate::mishap;
use crate::packets;
use crate::service::{Serve, ServiceThread};

/// How long a connection may take to become a lane, and one that is none may stay.
pub const GREETING_MAX: Duration = Duration::from_secs(2);

/// Connections that are accepted in a row, before it is looked whether the thread is to end.
const TURN: usize = 64;

/// Connections that were handed over and have not been taken. With so many none is accepted.
const HANDED_MAX: usize = 64;

/// How long none is then.
const HANDED_PAUSE: Duration = Duration::from_millis(1);

/// How long nobody is accepted after the system had no descriptor or memory for it: a listener that cannot accept would wake
/// its thread for ever.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection of a process of this user.
#[derive(Debug)]
pub struct Newcomer {
    socket: OwnedFd,
    /// As long as it is there, the connection counts as handed over.
    _handed: Arc<()>,
}

impl Newcomer {
    /// Takes it: the next one may be handed over.
    pub fn take(self) -> OwnedFd {
        self.socket
    }
}

/// Connections that are none of a lane, and until when they may be that.
#[derive(Debug, Default)]
pub struct Waiting(VecDeque<(Instant, u64)>);

impl Waiting {
    /// One has come, or is to be waited for once more.
    pub fn add(&mut self, token: u64) {
        self.0.push_back((Instant::now() + GREETING_MAX, token));
    }

    /// How long it takes until the next one has been none for too long; `None`: there is none.
    pub fn left(&self) -> Option<Duration> {
        let (until, _) = self.0.front()?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// Takes out the next one that has had its time. It may be a lane by now, or be gone.
    pub fn next_due(&mut self) -> Option<u64> {
        let (until, token) = *self.0.front()?;
        (until <= Instant::now()).then(|| self.0.pop_front())?;
        Some(token)
    }
}

/// The thread. Dropping it ends it.
pub type Acceptor = ServiceThread<Infallible>;

/// Starts the thread `name` of the transport `of`, which hands over who connects to `listener`.
pub fn start(
    name: &'static str,
    of: &'static str,
    listener: Arc<OwnedFd>,
    hand: impl Fn(Newcomer) + Send + 'static,
) -> io::Result<Acceptor> {
    ServiceThread::start(name, |wake, told| {
        Ok(Accepts {
            of,
            wake,
            told,
            listener,
            hand,
            handed: Arc::default(),
            strangers: Lines::default(),
        })
    })
}

struct Accepts<H> {
    /// The transport, for the log.
    of: &'static str,
    wake: Arc<OwnedFd>,
    told: Receiver<Infallible>,
    listener: Arc<OwnedFd>,
    hand: H,
    /// Shared by all connections that were handed over and not taken.
    handed: Arc<()>,
    /// What may be said of strangers, who are not to use up what others may say.
    strangers: Lines,
}

impl<H: Fn(Newcomer)> Accepts<H> {
    /// Accepts as many as are there, and not more than a turn has. How long nobody is to be accepted then.
    fn accept(&self) -> Option<Duration> {
        for _ in 0..TURN {
            if Arc::strong_count(&self.handed) > HANDED_MAX {
                return Some(HANDED_PAUSE);
            }
            let socket = match packets::accept(&self.listener) {
                Ok(socket) => socket,
                Err(error) if packets::is_passing(&error) => return None,
                Err(error) => {
                    complain!(
                        "{}: cannot accept connections, next try in {ACCEPT_PAUSE:?}: {error}",
                        self.of
                    );
                    return Some(ACCEPT_PAUSE);
                }
            };
            mishap::check();
            match packets::user(&socket) {
                Ok(user) if user == geteuid() => (self.hand)(Newcomer {
                    socket,
                    _handed: self.handed.clone(),
                }),
                Ok(user) => complain!(by self.strangers;
                    "{}: a connection is turned away: {}", self.of, packets::stranger(user)),
                Err(error) => {
                    complain!(by self.strangers; "{}: a connection is turned away: {error}", self.of);
                }
            }
        }
        None
    }
}

impl<H: Fn(Newcomer) + Send + 'static> Serve for Accepts<H> {
    fn serve(&mut self) -> io::Result<()> {
        let mut rest = None;
        loop {
            let listened = match rest {
                None => PollFlags::IN,
                Some(_) => PollFlags::empty(),
            };
            let mut ready = [
                PollFd::new(&*self.wake, PollFlags::IN),
                PollFd::new(&*self.listener, listened),
            ];
            let longest = rest.and_then(|rest: Duration| Timespec::try_from(rest).ok());
            match poll(&mut ready, longest.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if self.told.try_recv() == Err(TryRecvError::Disconnected) {
                return Ok(());
            }
            rest = self.accept();
        }
    }

    /// It serves no lanes.
    fn recover(&mut self) {}

    fn finish(self) {}
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::mpsc;
    use std::thread;

    use rustix::process::Uid;
    use rustix::thread::set_thread_res_uid;

    use super::*;

    /// Far beyond what anything here takes.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// Another user, where this one is root.
    const NOBODY: u32 = 65_534;

    /// Says that it is over when it is dropped.
    struct Ends<'a>(&'a AtomicBool);

    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }

    fn start(name: &str) -> (Vec<u8>, Acceptor, Receiver<Newcomer>) {
        let name = format!("polyrail-{name}-{}", std::process::id()).into_bytes();
        let listener = Arc::new(packets::listen_at(&name).unwrap());
        let (hand, handed) = mpsc::channel();
        let hand = move |newcomer| hand.send(newcomer).unwrap();
        let acceptor = super::start("accept", "test", listener, hand);
        (name, acceptor.unwrap(), handed)
    }

    /// What is heard of an own connection that has said this.
    fn says(name: &[u8], word: u8) -> OwnedFd {
        let socket = packets::connect_to(name).unwrap();
        packets::send(&socket, &word, None).unwrap();
        socket
    }

    fn heard(newcomer: Newcomer) -> Option<u8> {
        packets::receive(&newcomer.take())
            .unwrap()
            .map(|(word, _)| word)
    }

    #[test]
    fn whoever_is_of_another_user_is_never_handed_over() {
        if !geteuid().is_root() {
            let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
            assert!(!must, "only root can become another user");
            return eprintln!("not run, because only root can become another user");
        }
        let (name, acceptor, handed) = start("strangers");
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            // Also if it fails: else it would wait for them.
            let _ends = Ends(&over);
            for _ in 0..2 {
                scope.spawn(|| {
                    // This thread alone.
                    set_thread_res_uid(None, Uid::from_raw(NOBODY), None).unwrap();
                    while !over.load(SeqCst) {
                        // There may be no room.
                        drop(packets::connect_to(&name));
                    }
                });
            }
            for word in 0..100 {
                let until = std::time::Instant::now() + PATIENCE;
                let said = loop {
                    match packets::connect_to(&name) {
                        Ok(socket) => {
                            packets::send(&socket, &word, None).unwrap();
                            break socket;
                        }
                        Err(error) => {
                            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                            assert!(std::time::Instant::now() < until, "there is never room");
                        }
                    }
                };
                let newcomer = handed.recv_timeout(PATIENCE).unwrap();
                assert_eq!(heard(newcomer), Some(word));
                drop(said);
            }
        });
        drop(acceptor);
        assert!(handed.recv().is_err(), "a stranger was handed over");
    }

    #[test]
    fn no_more_are_accepted_than_are_taken() {
        let (name, _acceptor, handed) = start("crowd");
        let mut crowd = Vec::new();
        let refused = loop {
            match packets::connect_to(&name) {
                Ok(socket) => crowd.push(socket),
                Err(error) => break error,
            }
            assert!(crowd.len() < 1000, "all are accepted");
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        for _ in 0..crowd.len() {
            drop(handed.recv_timeout(PATIENCE).unwrap().take());
        }
        let last = says(&name, 7);
        assert_eq!(heard(handed.recv_timeout(PATIENCE).unwrap()), Some(7));
        drop(last);
    }
}
