//! The answer that one caller waits for, whatever lanes its requests went to.
//!
//! Source: MORI-IO SQ flow control rework (ROCm/mori#305), for root causes before cascades. We differ: it
//! answers at the first failure, while other chunks may still move; ours answers when all have ended, so the
//! memory is free by then, and a root cause that is seen after its cascade is still the one that counts.

use crate::work::Cause;

/// What one caller has asked for: so many requests, and how they went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promise {
    requests: u32,
    ended: u32,
    failure: Option<Cause>,
    answered: bool,
}

/// How it went, all in all.
pub type Answer = Result<(), Cause>;

impl Promise {
    /// Nothing of `requests` has ended. Without requests there is nothing to wait for, and no answer.
    pub const fn new(requests: u32) -> Self {
        Self {
            requests,
            ended: 0,
            failure: None,
            answered: requests == 0,
        }
    }

    /// Some requests have ended. Gives the answer when these were the last, once.
    pub fn handle_end(&mut self, requests: u32, answer: Answer) -> Option<Answer> {
        if let Err(cause) = answer {
            self.handle_failure(cause);
        }
        self.ended = self.ended.saturating_add(requests);
        if self.ended < self.requests || self.answered {
            return None;
        }
        self.answered = true;
        Some(self.failure.map_or(Ok(()), Err))
    }

    /// Something failed, although nothing has ended by that. The first root cause stays; a cascade counts
    /// only while nothing else is known.
    pub fn handle_failure(&mut self, cause: Cause) {
        match self.failure {
            None => self.failure = Some(cause),
            Some(Cause::Flushed) if cause != Cause::Flushed => self.failure = Some(cause),
            Some(_) => {}
        }
    }

    /// What has failed so far.
    pub const fn failure(&self) -> Option<Cause> {
        self.failure
    }

    /// Whether the answer has been given.
    pub const fn is_answered(&self) -> bool {
        self.answered
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use quickcheck::quickcheck;
    use std::vec::Vec;

    const ROOT: Cause = Cause::RetryExceeded;
    const OTHER: Cause = Cause::RemoteAccess;
    const CASCADE: Cause = Cause::Flushed;

    #[test]
    fn root_causes_come_before_cascades() {
        // (name, ends in order, answer)
        let cases: [(_, &[Answer], _); 6] = [
            ("all is well", &[Ok(()), Ok(())], Ok(())),
            (
                "a late success saves nothing",
                &[Err(ROOT), Ok(())],
                Err(ROOT),
            ),
            ("root first", &[Err(ROOT), Err(CASCADE)], Err(ROOT)),
            ("root last", &[Err(CASCADE), Err(ROOT)], Err(ROOT)),
            ("the first root stays", &[Err(ROOT), Err(OTHER)], Err(ROOT)),
            ("only a cascade", &[Ok(()), Err(CASCADE)], Err(CASCADE)),
        ];
        for (name, ends, answer) in cases {
            let mut promise = Promise::new(2);
            assert_eq!(promise.handle_end(1, ends[0]), None, "{name}");
            assert_eq!(promise.handle_end(1, ends[1]), Some(answer), "{name}");
            assert_eq!(promise.handle_end(1, Err(OTHER)), None, "{name}: once");
        }
    }

    quickcheck! {
        fn it_is_answered_once_when_all_has_ended(requests: u8, ends: Vec<(u8, bool)>) -> bool {
            let total = u32::from(requests).max(1);
            let (mut promise, mut ended, mut answers) = (Promise::new(total), 0, 0);
            for (requests, good) in ends {
                let answer = promise.handle_end(u32::from(requests), if good { Ok(()) } else { Err(ROOT) });
                ended += u32::from(requests);
                answers += u32::from(answer.is_some());
                if answers != u32::from(ended >= total) {
                    return false;
                }
            }
            true
        }
    }
}
