//! What is given back to the driver, which may wait for all that a device does meanwhile, the program's kernels included: whoever moves
//! bytes has a thread of its own do it.

use std::cell::Cell;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

type Release = Box<dyn FnOnce() + Send>;

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

/// Carries releases out in the order in which they are handed in, on a thread that is there from the first one on.
#[derive(Default)]
pub(crate) struct Releases(Mutex<Option<Sender<Release>>>);

impl Releases {
    /// Does this: at once, or on that thread if this one moves bytes.
    pub(crate) fn add(&self, release: impl FnOnce() + Send + 'static) {
        if HURRIES.get() == 0 {
            return release();
        }
        let mut sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut release: Release = Box::new(release);
        if let Some(known) = &*sender {
            match known.send(release) {
                Ok(()) => return,
                Err(back) => release = back.0,
            }
        }
        let (made, releases) = channel::<Release>();
        let thread = thread::Builder::new().name("polyrail-cuda-end".into());
        let spawned = thread.spawn(move || releases.into_iter().for_each(|release| release()));
        match spawned {
            Ok(_) => {
                let _ = made.send(release);
                *sender = Some(made);
            }
            Err(error) => {
                log::error!(
                    "cuda: no thread to give memory back on, so a worker may wait: {error}"
                );
                drop(sender);
                release();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn whoever_moves_bytes_waits_for_no_release_and_they_are_in_order() {
        let releases = Releases::default();
        let (go_on, waits) = channel::<()>();
        let (tell, told) = channel();
        let hurry = Hurry::begin();
        let inner = Hurry::begin();
        let first = tell.clone();
        releases.add(move || {
            waits.recv().unwrap();
            first.send(1).unwrap();
        });
        drop(inner);
        let second = tell.clone();
        releases.add(move || second.send(2).unwrap());
        assert!(told.try_recv().is_err());
        drop(hurry);
        releases.add(move || tell.send(3).unwrap());
        assert_eq!(told.try_recv(), Ok(3), "others do it themselves");
        go_on.send(()).unwrap();
        assert_eq!([told.recv(), told.recv()], [Ok(1), Ok(2)]);
    }
}
