//! The last of several answers.

use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};

use crate::lock::lock;

/// Something to do once several others have said that they are done. If one of them never does, it is not done.
pub(super) struct Last {
    left: AtomicUsize,
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Last {
    pub(super) fn of(count: usize, then: impl FnOnce() + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicUsize::new(count),
            then: Mutex::new(Some(Box::new(then))),
        })
    }

    pub(super) fn done(&self) {
        if self.left.fetch_sub(1, AcqRel) == 1
            && let Some(then) = lock(&self.then).take()
        {
            then();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn the_last_of_several_answers_is_the_one_that_counts() {
        for count in 1..4 {
            let told = Arc::new(AtomicU32::new(0));
            let last = Last::of(count, {
                let told = told.clone();
                move || {
                    told.fetch_add(1, AcqRel);
                }
            });
            for done in 1..=count {
                last.done();
                assert_eq!(
                    told.load(Acquire),
                    u32::from(done == count),
                    "{done} of {count}"
                );
            }
        }
    }
}
