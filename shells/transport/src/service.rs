//! The thread that serves a transport's inbound lanes, and how others tell it what to do.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

/// How long a service that has failed rests before it goes on: what failed once may fail again at once.
const REST: Duration = Duration::from_millis(100);

/// What a service thread does.
pub trait Serve: Send + 'static {
    /// Serves until nobody is left to ask for anything, or until it has been told to end.
    ///
    /// # Errors
    ///
    /// If it cannot go on as it is, like a panic: [`Self::recover`] is next.
    fn serve(&mut self) -> io::Result<()>;

    /// Ends whatever is being served, since it may be what made [`Self::serve`] fail. What was promised to peers, as which
    /// epochs of lanes are over, still holds.
    fn recover(&mut self);

    /// Leaves in good order.
    fn finish(self);
}

/// Serves to the end. A service that fails ends its lanes and goes on; nothing else is served by anybody otherwise, and
/// sessions could not end.
pub fn supervise(name: &str, mut service: impl Serve) {
    loop {
        let why = match catch_unwind(AssertUnwindSafe(|| service.serve())) {
            Ok(Ok(())) => return service.finish(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it panicked".to_owned(),
        };
        crate::complain!(
            "{name}: the service thread has failed: {why}; its lanes end, and it goes on"
        );
        if catch_unwind(AssertUnwindSafe(|| service.recover())).is_err() {
            log::error!(
                "{name}: the service thread cannot end its lanes; no inbound lane is served any more"
            );
            return;
        }
        thread::sleep(REST);
    }
}

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
    /// and the commands; what it makes serves on the thread.
    pub fn start<S: Serve>(
        name: &'static str,
        make: impl FnOnce(Arc<OwnedFd>, Receiver<C>) -> io::Result<S>,
    ) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (commands, queue) = mpsc::channel();
        let service = make(wake.clone(), queue)?;
        let thread = thread::Builder::new()
            .name(format!("polyrail-{name}"))
            .spawn(move || supervise(name, service))?;
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
            crate::complain!("{}: the service thread is gone", self.name);
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
