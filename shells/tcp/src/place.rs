//! Which processor the service thread is on.
//!
//! Two that spin for each other cannot share a processor: each keeps the other off it for as long as it looks, 110 µs a round
//! trip where there were 9. They come to share one when both sleep, because the kernel brings who wakes to who is woken; and
//! neither ever waits long enough to be moved, because it stays where its cache is warm. So the target moves, unless others
//! want the processors: then it is good that both sleep on one.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use polyrail_transport::complain;
use polyrail_transport::processor;
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use socket2::SockRef;

use crate::tune;

/// After so long it looks again whether to move: that takes a few system calls.
const INTERVAL: Duration = Duration::from_millis(10);

/// When the thread last looked whether to move.
#[derive(Debug)]
pub(crate) struct Place {
    looked: Option<Instant>,
    /// How many threads of this host run, or could if there were a processor for them.
    runnable: fn() -> Option<u32>,
}

impl Default for Place {
    fn default() -> Self {
        Self {
            looked: None,
            runnable: runnable_now,
        }
    }
}

impl Place {
    /// Moves this thread to another processor, if this is that of its initiator, who spins, and another one is idle. Whether it
    /// did.
    pub(crate) fn leave_to(&mut self, initiator: SocketAddr, stream: &TcpStream) -> bool {
        if self.looked.is_some_and(|at| at.elapsed() < INTERVAL) {
            return false;
        }
        // Inside of a host it is the sender who receives for the other end; a device's interrupts harm nobody.
        let Some(here) = processor::here() else {
            return false;
        };
        let theirs = SockRef::from(stream).cpu_affinity();
        if !theirs.is_ok_and(|theirs| theirs == here) {
            return false;
        }
        self.looked = Some(Instant::now());
        if !tune::is_of_this_host(initiator.ip()) {
            return false;
        }
        let Ok(allowed) = sched_getaffinity(None) else {
            return false;
        };
        let mut others = allowed;
        others.unset(here);
        let busy =
            others.count() == 0 || (self.runnable)().is_none_or(|count| count > allowed.count());
        if busy || sched_setaffinity(None, &others).is_err() {
            return false;
        }
        if let Err(error) = sched_setaffinity(None, &allowed) {
            complain!("tcp: the service thread stays off processor {here}: {error}");
        }
        true
    }
}

/// What the kernel says.
fn runnable_now() -> Option<u32> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    let (count, _of_all) = load.split(' ').nth(3)?.split_once('/')?;
    count.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use rustix::thread::CpuSet;

    use super::*;

    /// Runs on one processor only from here on.
    fn stay_on(processor: usize) {
        let mut only = CpuSet::new();
        only.set(processor);
        sched_setaffinity(None, &only).unwrap();
    }

    #[test]
    fn it_leaves_the_processor_of_its_initiator_and_no_other() {
        let allowed = sched_getaffinity(None).unwrap();
        let mut processors = (0..CpuSet::MAX_CPU).filter(|at| allowed.is_set(*at));
        let (Some(first), Some(second)) = (processors.next(), processors.next()) else {
            println!("one processor: there is nowhere to go");
            return;
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut initiator = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, peer) = listener.accept().unwrap();
        let mut send_from = |processor| {
            stay_on(processor);
            initiator.write_all(b"?").unwrap();
            stream.read_exact(&mut [0]).unwrap();
            stream.try_clone().unwrap()
        };

        let place = |runnable| Place {
            looked: None,
            runnable,
        };
        let idle = || Some(1);

        let from_second = send_from(second);
        stay_on(first);
        assert!(!place(idle).leave_to(peer, &from_second), "it is not there");

        let from_first = send_from(first);
        assert!(
            !place(idle).leave_to(peer, &from_first),
            "it may run nowhere else"
        );

        // The kernel may move this thread in between.
        let moves = |place: &mut Place| {
            (0..100).any(|_| {
                stay_on(first);
                sched_setaffinity(None, &allowed).unwrap();
                place.leave_to(peer, &from_first)
            })
        };
        let many = || Some(u32::MAX);
        assert!(!moves(&mut place(many)), "others want all processors");
        assert!(!moves(&mut place(|| None)), "who knows");
        let mut place = place(idle);
        assert!(moves(&mut place));
        let after = sched_getaffinity(None).unwrap();
        assert!((0..CpuSet::MAX_CPU).all(|at| after.is_set(at) == allowed.is_set(at)));
        place.looked = Some(Instant::now() + Duration::from_secs(3600));
        assert!(!moves(&mut place), "not so soon again");
    }

    #[test]
    fn the_kernel_says_that_this_thread_runs() {
        assert!(runnable_now().unwrap() >= 1);
    }
}
