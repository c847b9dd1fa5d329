//! Which processor a thread is on.

/// The number of the processor that this thread is on, until the kernel moves it; `None`: the system does not say.
///
/// By the C library, which asks the kernel where there is no vDSO: under valgrind there is none, and who reads that by itself
/// ends there.
#[must_use]
pub fn here() -> Option<usize> {
    // SAFETY: it has no arguments and touches nothing.
    let number = unsafe { libc::sched_getcpu() };
    usize::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_that_this_thread_may_be_on() {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        assert!(allowed.is_set(here().unwrap()));
    }
}
