//! Who is told whether what was written is on the disk.
//!
//! The kernel tells each open file description once of an error that lost bytes: one `fsync` hears of it, and the next one is
//! answered as if nothing had happened. Here that error stays: whoever waits for an `fsync` that failed, and whoever asks
//! later, is told, for as long as the range lives. Nobody here knows whose bytes are gone, and a later success would be about
//! other bytes. Some errors, of a disk that cannot empty its own cache, are not even told to other descriptors of the file, so
//! its ranges share them ([`Losses`]); a range that is made later starts afresh.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

/// What a file has lost, as far as calls of `fsync` have said so. All ranges of the file share it.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// Held by whoever makes a call: otherwise one could answer that all is well after another has heard that it is not, and
    /// before that is known.
    calling: Mutex<()>,
    told: Mutex<Told>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Told {
    count: u64,
    last: Option<Errno>,
}

impl Losses {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call, unless another one has failed since there were `known` losses: then this fails as well. Its descriptor may
    /// be told of the same loss, and that would count as another one.
    fn call(&self, known: u64, fsync: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
        let calling = self.calling.lock();
        let _calling = calling.unwrap_or_else(PoisonError::into_inner);
        let told = *self.told();
        if let Some(error) = told.last.filter(|_| told.count > known) {
            return Err(error);
        }
        let answer = fsync();
        if let Err(error) = answer {
            *self.told() = Told {
                count: told.count + 1,
                last: Some(error),
            };
        }
        answer
    }
}

/// Calls of `fsync` for one range, one at a time.
#[derive(Debug, Default)]
pub(crate) struct Durable {
    /// What the file had lost before the range was made.
    known: u64,
    calls: Mutex<Calls>,
    ended: Condvar,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Calls {
    begun: u64,
    ended: u64,
    /// What the first one that failed has said.
    lost: Option<Errno>,
}

/// What somebody who asks is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// Make a call.
    Call,
    /// Wait for the call of somebody else.
    Wait,
    /// Go on with this answer.
    Told(Result<(), Errno>),
}

impl Calls {
    /// The number of the first call that is about all that has been written by now: one that is under way may have missed it.
    fn wanted(&self) -> u64 {
        self.begun + 1
    }

    fn next(&mut self, wanted: u64) -> Next {
        if let Some(error) = self.lost {
            return Next::Told(Err(error));
        }
        if self.ended >= wanted {
            return Next::Told(Ok(()));
        }
        if self.begun > self.ended {
            return Next::Wait;
        }
        self.begun += 1;
        Next::Call
    }

    fn end(&mut self, answer: Result<(), Errno>) {
        self.ended = self.begun;
        self.lost = self.lost.or(answer.err());
    }
}

impl Durable {
    /// Of a range that is being made.
    pub(crate) fn new(losses: &Losses) -> Self {
        Self {
            known: losses.told().count,
            ..Self::default()
        }
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a call of `fsync` has ended that began after this did; makes it, unless somebody else does. All that wait
    /// for the same call share it.
    pub(crate) fn sync(
        &self,
        losses: &Losses,
        fsync: impl Fn() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut calls = self.lock();
        let wanted = calls.wanted();
        loop {
            match calls.next(wanted) {
                Next::Told(answer) => return answer,
                Next::Wait => {
                    let woken = self.ended.wait(calls);
                    calls = woken.unwrap_or_else(PoisonError::into_inner);
                }
                Next::Call => {
                    drop(calls);
                    let answer = losses.call(self.known, &fsync);
                    calls = self.lock();
                    calls.end(answer);
                    self.ended.notify_all();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::thread::scope;

    use super::*;

    const THREADS: usize = 3;

    /// Where a thread is that writes something and then asks for it to be on the disk.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    enum At {
        Start,
        Asks(u64),
        /// It has made a call, which is about what these threads had written as it began.
        Calls(u64, [bool; THREADS]),
        Told(Result<(), Errno>),
    }

    /// Where somebody's bytes are.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    enum Bytes {
        Unwritten,
        InMemory,
        OnDisk,
        Lost,
    }

    /// Threads, a disk, and a kernel that tells an error to one call.
    #[derive(Clone, PartialEq, Eq, Hash, Debug)]
    struct World {
        calls: Calls,
        threads: [At; THREADS],
        bytes: [Bytes; THREADS],
        untold: Option<Errno>,
    }

    impl World {
        /// The bytes of these threads go to the disk, or are lost for this reason.
        fn write_back(&mut self, whose: [bool; THREADS], error: Option<Errno>) {
            for (bytes, is_one) in self.bytes.iter_mut().zip(whose) {
                if is_one && *bytes == Bytes::InMemory {
                    *bytes = error.map_or(Bytes::OnDisk, |_| Bytes::Lost);
                    self.untold = error.or(self.untold);
                }
            }
        }

        /// What can come next.
        fn successors(&self) -> Vec<Self> {
            let errors = [None, Some(Errno::IO), Some(Errno::NOSPC)];
            let mut all = Vec::new();
            let mut then = |change: &dyn Fn(&mut Self)| {
                let mut world = self.clone();
                change(&mut world);
                all.push(world);
            };
            for number in 0..THREADS {
                // The kernel writes by itself too.
                for error in errors {
                    let mut whose = [false; THREADS];
                    whose[number] = true;
                    then(&|world| world.write_back(whose, error));
                }
                match self.threads[number] {
                    At::Start => then(&|world| {
                        world.bytes[number] = Bytes::InMemory;
                        world.threads[number] = At::Asks(world.calls.wanted());
                    }),
                    At::Asks(wanted) => then(&|world| match world.calls.next(wanted) {
                        Next::Wait => {}
                        Next::Told(answer) => world.threads[number] = At::Told(answer),
                        Next::Call => {
                            let whose = world.bytes.map(|bytes| bytes == Bytes::InMemory);
                            world.threads[number] = At::Calls(wanted, whose);
                        }
                    }),
                    At::Calls(wanted, whose) => {
                        for error in errors {
                            then(&|world| {
                                world.write_back(whose, error);
                                let told = world.untold.take();
                                world.calls.end(told.map_or(Ok(()), Err));
                                world.threads[number] = At::Asks(wanted);
                            });
                        }
                    }
                    At::Told(_) => {}
                }
            }
            all
        }

        fn check(&self) {
            for (thread, bytes) in self.threads.iter().zip(&self.bytes) {
                if *thread == At::Told(Ok(())) {
                    assert_eq!(*bytes, Bytes::OnDisk, "{self:?}");
                }
            }
        }
    }

    #[test]
    fn in_no_order_of_events_is_anybody_told_that_bytes_are_there_that_are_gone() {
        let start = World {
            calls: Calls::default(),
            threads: [At::Start; THREADS],
            bytes: [Bytes::Unwritten; THREADS],
            untold: None,
        };
        let mut known = HashSet::from([start.clone()]);
        let mut left = vec![start];
        let mut ends = HashSet::new();
        while let Some(world) = left.pop() {
            world.check();
            let is_over = world.threads.iter().all(|at| matches!(at, At::Told(_)));
            if is_over {
                ends.insert(world.threads);
                // Whoever asks later, and nobody's bytes have come since, is told of what is gone.
                let mut calls = world.calls.clone();
                let wanted = calls.wanted();
                let is_known = world
                    .threads
                    .iter()
                    .any(|at| matches!(at, At::Told(Err(_))));
                let later = calls.next(wanted);
                assert_eq!(matches!(later, Next::Told(Err(_))), is_known, "{world:?}");
            }
            for next in world.successors() {
                if known.insert(next.clone()) {
                    left.push(next);
                }
            }
        }
        assert!(ends.contains(&[At::Told(Ok(())); THREADS]));
        assert!(ends.contains(&[At::Told(Err(Errno::IO)); THREADS]));
        assert!(known.len() > 1_000, "{}", known.len());
    }

    #[test]
    fn what_one_range_of_a_file_is_told_all_that_there_are_are_told() {
        let losses = Losses::default();
        let ranges = [(); 2].map(|()| Durable::new(&losses));
        let sync = |range: &Durable, says| range.sync(&losses, || says);
        assert_eq!(sync(&ranges[1], Ok(())), Ok(()));
        assert_eq!(sync(&ranges[0], Err(Errno::IO)), Err(Errno::IO));
        let later = Durable::new(&losses);
        assert_eq!(sync(&ranges[1], Ok(())), Err(Errno::IO));
        assert_eq!(sync(&later, Ok(())), Ok(()));
        assert_eq!(sync(&later, Err(Errno::NOSPC)), Err(Errno::NOSPC));
        assert_eq!(sync(&ranges[0], Ok(())), Err(Errno::IO), "the first one");
    }

    /// Nobody waits for ever, and each call of `sync` sees one of `fsync` begin.
    #[test]
    fn threads_share_calls_and_all_of_them_end() {
        let losses = Losses::default();
        let durable = Durable::new(&losses);
        let (written, durable_to) = (AtomicU32::new(0), AtomicU32::new(0));
        let fsync = || {
            let seen = written.load(SeqCst);
            std::thread::yield_now();
            durable_to.fetch_max(seen, SeqCst);
            Ok(())
        };
        scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let mine = written.fetch_add(1, SeqCst) + 1;
                        durable.sync(&losses, fsync).unwrap();
                        assert!(durable_to.load(SeqCst) >= mine);
                    }
                });
            }
        });
    }
}
