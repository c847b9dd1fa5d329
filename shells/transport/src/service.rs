//! The thread that serves a transport's inbound lanes, and how others tell it what to do.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};

/// A running service thread that takes commands `C`. Dropping it waits until the thread has ended, unless this is it.
///
/// The thread ends when it finds that nobody is left to send commands, or when one of them says so.
#[derive(Debug)]
pub struct ServiceThread<C> {
    caller: Caller<C>,
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
            .spawn(move || {
                let served = catch_unwind(AssertUnwindSafe(|| serve(service)));
                if let Err(panic) = served {
                    log::error!(
                        "{name}: the service thread has panicked: peers reach nothing here by {name} any more, until the process is started anew"
                    );
                    resume_unwind(panic);
                }
            })?;
        let caller = Caller {
            name,
            commands,
            wake,
        };
        Ok(Self {
            caller,
            thread: Some(thread),
        })
    }
}

impl<C> ServiceThread<C> {
    /// Hands it a command. If the thread is gone, the command is dropped with its answer: nothing was proved.
    pub fn tell(&self, command: C) {
        self.caller.tell(command);
    }

    /// A further way to hand it commands, which does not wait for its end.
    pub fn caller(&self) -> Caller<C> {
        self.caller.clone()
    }
}

/// A way to hand a service thread commands `C`.
#[derive(Debug)]
pub struct Caller<C> {
    /// Of whom it is, in logs.
    name: &'static str,
    commands: Sender<C>,
    wake: Arc<OwnedFd>,
}

impl<C> Clone for Caller<C> {
    fn clone(&self) -> Self {
        Self {
            name: self.name,
            commands: self.commands.clone(),
            wake: self.wake.clone(),
        }
    }
}

impl<C> Caller<C> {
    /// Hands the thread a command. If it is gone, the command is dropped with its answer: nothing was proved.
    pub fn tell(&self, command: C) {
        if self.commands.send(command).is_err() {
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
        // A channel that nobody listens to, in place of the one that the thread looks at.
        drop(std::mem::replace(
            &mut self.caller.commands,
            mpsc::channel().0,
        ));
        self.caller.wake();
        let Some(thread) = self.thread.take() else {
            return;
        };
        // An answer may hold the last reference to the transport, and then this is that thread.
        if thread.thread().id() != thread::current().id() && thread.join().is_err() {
            log::error!("{}: the service thread panicked", self.caller.name);
        }
    }
}
