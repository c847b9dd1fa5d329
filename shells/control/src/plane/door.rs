//! The door: a thread that accepts connections and hears who is there. Only who has introduced himself comes to the control
//! thread; whoever says nothing, nonsense or half of something keeps this one busy and no other.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

use polyrail_transport::clock::Clock;
use polyrail_transport::complain;
use polyrail_transport::service::{Serve, supervise};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, getrlimit};

use super::mailbox::Mailbox;
use super::timers::Timer;
use super::wires::{Key, Talk, WireEvent, Wires, Woken};
use crate::connection::{Ended, Event};
use crate::security::Distrust;
use crate::security::channel::Channel;

/// Those who have introduced themselves and wait for the control thread. While there are so many, the door stays shut.
const WAITING_MAX: usize = 256;

/// Bytes of greetings and introductions that are not whole.
const HELD_MAX: usize = 8 << 20;

/// The same where there is a key, with handshakes that are under way: about 1,800.
const HELD_WITH_KEY_MAX: usize = 16 << 20;

/// Handshakes that are begun before others are heard.
const BEGINS_MAX: usize = 8;

/// Somebody who has introduced himself.
pub(super) struct Arrival {
    pub(super) stream: TcpStream,
    pub(super) remote: SocketAddr,
    pub(super) channel: Channel,
    /// How: [`Event::Hello`] or [`Event::Join`].
    pub(super) said: Event,
}

/// The thread, from the control thread. Dropping it closes the listeners.
pub(super) struct Door {
    arrivals: Option<Receiver<Arrival>>,
    stop: Arc<AtomicBool>,
    wake: Arc<OwnedFd>,
    /// Listeners that come later.
    listeners: Sender<TcpListener>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    /// Opens it. `mailbox` is woken when somebody has come.
    pub(super) fn open(
        clock: Clock,
        talk: Talk,
        listeners: Vec<TcpListener>,
        handshakes_max: usize,
        mailbox: Arc<Mailbox>,
        lanes_denied: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        // Descriptors are for those who are in.
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 4;
        let most = handshakes_max.min(usize::try_from(limit).unwrap_or(usize::MAX));
        let held = match talk.keyring.get() {
            None => HELD_MAX,
            Some(_) => HELD_WITH_KEY_MAX,
        };
        let room = (most, held);
        let wires = Wires::new(clock, talk, listeners, wake.as_fd(), room)?;
        let stop = Arc::<AtomicBool>::default();
        let (inside, arrivals) = sync_channel(WAITING_MAX);
        let (listeners, later) = channel();
        let doorman = Doorman {
            wires,
            wake: wake.clone(),
            stop: stop.clone(),
            inside,
            later,
            mailbox,
            lanes_denied,
        };
        let thread = thread::Builder::new()
            .name("polyrail-door".into())
            .spawn(move || supervise("control: the door", doorman))?;
        Ok(Self {
            arrivals: Some(arrivals),
            stop,
            wake,
            listeners,
            thread: Some(thread),
        })
    }

    /// Peers may come in here too.
    pub(super) fn listen(&self, listener: TcpListener) {
        // It fails only if the thread has ended.
        let _ = self.listeners.send(listener);
        self.wake();
    }

    fn wake(&self) {
        // It fails only if the counter is full, and then the thread is awake anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
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
        self.wake();
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
    later: Receiver<TcpListener>,
    mailbox: Arc<Mailbox>,
    /// Counts lanes that did not prove themselves.
    lanes_denied: Arc<AtomicU64>,
}

impl Serve for Doorman {
    fn serve(&mut self) -> io::Result<()> {
        while !self.stop.load(Acquire) {
            for woken in self.wires.wait(self.wires.has_a_line())? {
                match woken {
                    Woken::Mail => {
                        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
                        while let Ok(listener) = self.later.try_recv() {
                            self.wires.add_listener(listener);
                        }
                    }
                    Woken::Listener(index) => self.wires.accept(index),
                    Woken::Wire(key) => self.hear(key),
                    Woken::Exited(_) => {}
                }
            }
            for key in self.wires.begin_handshakes(BEGINS_MAX) {
                self.attend(key);
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
                    if why == Ended::Distrusted(Distrust::NoTicket) {
                        self.lanes_denied.fetch_add(1, Relaxed);
                    }
                    let remote = self.wires.remote(key);
                    match why.is_about_keys() {
                        true => complain!("control: {remote} is turned away: {why}"),
                        false => log::debug!("control: stranger at {remote}: {why}"),
                    }
                }
                _ => {}
            }
        }
    }

    fn let_in(&mut self, key: Key, said: Event) {
        if self.wires.fingerprint(key).is_some() {
            self.wires.note_proved(key);
        }
        let Some((stream, remote, channel)) = self.wires.take_whole(key) else {
            return;
        };
        let arrival = Arrival {
            stream,
            remote,
            channel,
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
