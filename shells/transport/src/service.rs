//! The thread that serves a transport's inbound lanes, and how others tell it what to do.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};

/// A running service thread that takes commands `C`. Dropping it waits until the thread has ended, unless this is it.
///
/// The thread ends when it finds that nobody is left to send commands.
#[derive(Debug)]
pub struct ServiceThread<C> {
    /// Of whom it is, in logs.
    name: &'static str,
    commands: Option<Sender<C>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl<C: Send + 'static> ServiceThread<C> {
    /// Starts the thread of the transport `name`. `make` gets the descriptor that polls readable when a command has come,
    /// and the commands; `serve` runs on the thread.
    pub fn start<S: Send + 'static>(
        name: &'static str,
        make: impl FnOnce(Arc<OwnedFd>, Receiver<C>) -> io::Result<S>,
        serve: impl FnOnce(S) + Send + 'static,
    ) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (commands, queue) = mpsc::channel();
        let service = make(wake.clone(), queue)?;
        let thread = thread::Builder::new()
            .name(format!("polyrail-{name}"))
            .spawn(move || serve(service))?;
        Ok(Self {
            name,
            commands: Some(commands),
            wake,
            thread: Some(thread),
        })
    }
}

impl<C> ServiceThread<C> {
    /// Hands it a command. If the thread is gone, the command is dropped with its answer: nothing was proved.
    pub fn tell(&self, command: C) {
        let told = self
            .commands
            .as_ref()
            .is_some_and(|to| to.send(command).is_ok());
        if !told {
            log::error!("{}: the service thread is gone", self.name);
        }
        self.wake();
    }

    fn wake(&self) {
        // It fails only if the counter is full, and then the thread is awake anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl<C> Drop for ServiceThread<C> {
    fn drop(&mut self) {
        drop(self.commands.take());
        self.wake();
        let Some(thread) = self.thread.take() else {
            return;
        };
        // An answer may hold the last reference to the transport, and then this is that thread.
        if thread.thread().id() != thread::current().id() && thread.join().is_err() {
            log::error!("{}: the service thread panicked", self.name);
        }
    }
}
