//! What whoever moves bytes has a thread of its own do, because the driver takes its time: giving something back, for which it may
//! wait until a device has done all that it has to do, the program's kernels included; and pinning.

use std::cell::Cell;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use polyrail_transport::complain;

type Task = Box<dyn FnOnce() + Send>;

thread_local! {
    /// This thread moves bytes, and waits for no device.
    static HURRIES: Cell<u32> = const { Cell::new(0) };
}

/// This thread moves bytes until it is dropped.
pub(crate) struct Hurry(());

impl Hurry {
    pub(crate) fn begin() -> Self {
        HURRIES.set(HURRIES.get() + 1);
        Self(())
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        HURRIES.set(HURRIES.get() - 1);
    }
}

/// Carries tasks out in the order in which they are handed in, on a thread that is there from the first one on.
pub(crate) struct Background {
    /// The thread's.
    name: &'static str,
    sender: Mutex<Option<Sender<Task>>>,
}

impl Background {
    pub(crate) fn new(name: &'static str) -> Self {
        let sender = Mutex::new(None);
        Self { name, sender }
    }

    /// Does this: at once, or on that thread if this one moves bytes.
    pub(crate) fn add(&self, task: impl FnOnce() + Send + 'static) {
        if HURRIES.get() == 0 {
            return task();
        }
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let mut task: Task = Box::new(task);
        if let Some(known) = &*sender {
            match known.send(task) {
                Ok(()) => return,
                Err(back) => task = back.0,
            }
        }
        let (made, tasks) = channel::<Task>();
        let thread = thread::Builder::new().name(self.name.into());
        let spawned = thread.spawn(move || tasks.into_iter().for_each(|task| task()));
        match spawned {
            Ok(_) => {
                let _ = made.send(task);
                *sender = Some(made);
            }
            Err(error) => {
                let name = self.name;
                complain!("cuda: no thread {name}, so a worker may wait: {error}");
                drop(sender);
                task();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn whoever_moves_bytes_waits_for_no_task_and_they_are_in_order() {
        let tasks = Background::new("test");
        let (go_on, waits) = channel::<()>();
        let (tell, told) = channel();
        let hurry = Hurry::begin();
        let inner = Hurry::begin();
        let first = tell.clone();
        tasks.add(move || {
            waits.recv().unwrap();
            first.send(1).unwrap();
        });
        drop(inner);
        let second = tell.clone();
        tasks.add(move || second.send(2).unwrap());
        assert!(told.try_recv().is_err());
        drop(hurry);
        tasks.add(move || tell.send(3).unwrap());
        assert_eq!(told.try_recv(), Ok(3), "others do it themselves");
        go_on.send(()).unwrap();
        assert_eq!([told.recv(), told.recv()], [Ok(1), Ok(2)]);
    }
}
