//! What a worker's thread sleeps on: until somebody calls or the endpoint has something.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use polyrail_core::time::Duration;
use polyrail_transport::{timespec, until_ready};
use rustix::event::epoll;

/// Something to sleep on: until somebody calls or the endpoint has something.
pub(super) struct Sleeper {
    poller: OwnedFd,
    moved: OwnedFd,
    /// Whether the endpoint wakes.
    heeds: bool,
    call: Arc<OwnedFd>,
}

const CALLED: u64 = 0;
const MOVED: u64 = 1;

impl Sleeper {
    pub(super) fn new(call: &Arc<OwnedFd>, moved: OwnedFd) -> io::Result<Self> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        epoll::add(&poller, call, epoll::EventData::new_u64(CALLED), readable)?;
        epoll::add(&poller, &moved, epoll::EventData::new_u64(MOVED), readable)?;
        Ok(Self {
            poller,
            moved,
            heeds: true,
            call: call.clone(),
        })
    }

    /// Whether what the endpoint has is to end the sleep.
    pub(super) fn heed_endpoint(&mut self, heed: bool) {
        if self.heeds == heed {
            return;
        }
        let flags = match heed {
            true => epoll::EventFlags::IN,
            false => epoll::EventFlags::empty(),
        };
        let data = epoll::EventData::new_u64(MOVED);
        match epoll::modify(&self.poller, &self.moved, data, flags) {
            Ok(()) => self.heeds = heed,
            Err(error) => log::error!("worker cannot choose what wakes it: {error}"),
        }
    }

    /// Sleeps for so long at most. Whether somebody called.
    pub(super) fn sleep(&self, longest: Option<Duration>) -> bool {
        let timeout = until_ready(self.poller.as_fd(), longest.map(timespec));
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 2];
        let called = match epoll::wait(&self.poller, &mut events, timeout.as_ref()) {
            Ok((events, _)) => events.iter().any(|event| event.data.u64() == CALLED),
            Err(rustix::io::Errno::INTR) => false,
            Err(error) => {
                log::error!("worker cannot sleep: {error}");
                std::thread::yield_now();
                false
            }
        };
        if called {
            let _ = rustix::io::read(self.call.as_fd(), &mut [0; 8]);
        }
        called
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn a_sleep_is_not_rounded_up_to_milliseconds() {
        let never = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let call = Arc::new(never());
        let sleeper = Sleeper::new(&call, never()).unwrap();
        let sleep = || {
            let start = std::time::Instant::now();
            assert!(!sleeper.sleep(Some(Duration::from_micros(50))));
            start.elapsed()
        };
        // On a busy machine some take longer; rounded up, all do.
        let shortest = (0..100).map(|_| sleep()).min().unwrap();
        assert!(
            shortest < std::time::Duration::from_millis(1),
            "{shortest:?}"
        );

        rustix::io::write(&call, &1_u64.to_ne_bytes()).unwrap();
        assert!(
            sleeper.sleep(Some(Duration::from_micros(50))),
            "a call was not heard"
        );
    }
}
