//! The door: a thread that accepts connections and hears who is there. Only who has introduced himself comes to the control
//! thread; whoever says nothing, nonsense or half of something keeps this one busy and no other.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use polyrail_transport::clock::Clock;
use polyrail_transport::service::{Serve, supervise};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, getrlimit};

use super::mailbox::Mailbox;
use super::timers::Timer;
use super::wires::{Key, WireEvent, Wires, Woken};
use crate::connection::{Connection, ConnectionConfig, Event};

/// Those who have introduced themselves and wait for the control thread. While there are so many, the door stays shut.
const WAITING_MAX: usize = 256;

/// Bytes of greetings and introductions that are not whole.
const HELD_MAX: usize = 8 << 20;

/// Somebody who has introduced himself.
pub(super) struct Arrival {
    pub(super) stream: TcpStream,
    pub(super) remote: SocketAddr,
    pub(super) connection: Connection,
    /// How: [`Event::Hello`] or [`Event::Join`].
    pub(super) said: Event,
}

/// The thread, from the control thread. Dropping it closes the listeners.
pub(super) struct Door {
    arrivals: Option<Receiver<Arrival>>,
    stop: Arc<AtomicBool>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    /// Opens it. `mailbox` is woken when somebody has come.
    pub(super) fn open(
        clock: Clock,
        config: ConnectionConfig,
        listeners: Vec<TcpListener>,
        handshakes_max: usize,
        mailbox: Arc<Mailbox>,
    ) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        // Descriptors are for those who are in.
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 4;
        let most = handshakes_max.min(usize::try_from(limit).unwrap_or(usize::MAX));
        let room = (most, HELD_MAX);
        let wires = Wires::new(clock, config, listeners, wake.as_fd(), room)?;
        let stop = Arc::<AtomicBool>::default();
        let (inside, arrivals) = sync_channel(WAITING_MAX);
        let doorman = Doorman {
            wires,
            wake: wake.clone(),
            stop: stop.clone(),
            inside,
            mailbox,
        };
        let thread = thread::Builder::new()
            .name("polyrail-door".into())
            .spawn(move || supervise("control: the door", doorman))?;
        Ok(Self {
            arrivals: Some(arrivals),
            stop,
            wake,
            thread: Some(thread),
        })
    }

    /// The next who has come.
    pub(super) fn next(&self) -> Option<Arrival> {
        self.arrivals.as_ref()?.try_recv().ok()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.stop.store(true, Release);
        // Who waits to hand somebody in finds nobody.
        self.arrivals = None;
        // It fails only if the counter is full, and then the thread is awake anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("control: the thread at the door panicked");
        }
    }
}

/// What the thread has.
struct Doorman {
    wires: Wires,
    wake: Arc<OwnedFd>,
    stop: Arc<AtomicBool>,
    inside: SyncSender<Arrival>,
    mailbox: Arc<Mailbox>,
}

impl Serve for Doorman {
    fn serve(&mut self) -> io::Result<()> {
        while !self.stop.load(Acquire) {
            for woken in self.wires.wait(false)? {
                match woken {
                    Woken::Mail => drop(rustix::io::read(&*self.wake, &mut [0; 8])),
                    Woken::Listener(index) => self.wires.accept(index),
                    Woken::Wire(key) => self.hear(key),
                    Woken::Exited(_) => {}
                }
            }
            self.settle();
            let now = self.wires.now();
            while let Some(timer) = self.wires.timers.pop_due(now) {
                match timer {
                    Timer::Wire(key) => {
                        self.hear(key);
                        self.wires.handle_timeout(key);
                    }
                    Timer::Listeners => self.wires.resume_listeners(),
                    _ => {}
                }
            }
            self.settle();
        }
        Ok(())
    }

    fn recover(&mut self) {
        for key in self.wires.keys() {
            self.wires.remove(key);
        }
    }

    fn finish(self) {}
}

impl Doorman {
    /// Hears what somebody says, and lets him in if that was who he is.
    fn hear(&mut self, key: Key) {
        self.wires.handle_ready(key);
        self.attend(key);
    }

    fn attend(&mut self, key: Key) {
        while let Some((_, event)) = self.wires.poll_event(key) {
            match event {
                WireEvent::Said(said @ (Event::Hello(_) | Event::Join(_))) => {
                    return self.let_in(key, said);
                }
                WireEvent::Said(Event::Ended(why)) => {
                    let remote = self.wires.remote(key);
                    log::debug!("control: stranger at {remote}: {why}");
                }
                _ => {}
            }
        }
    }

    fn let_in(&mut self, key: Key, said: Event) {
        let Some((stream, remote, connection)) = self.wires.take_whole(key) else {
            return;
        };
        let arrival = Arrival {
            stream,
            remote,
            connection,
            said,
        };
        // An error: the plane is ending.
        if self.inside.send(arrival).is_ok() {
            self.mailbox.wake();
        }
    }

    fn settle(&mut self) {
        while let Some(key) = self.wires.pop_dirty() {
            self.wires.flush(key);
            self.attend(key);
            self.wires.settle(key);
        }
    }
}
