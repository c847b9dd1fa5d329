//! A worker that may not have heard all that was said to it: what has come goes before deadlines.

use std::sync::Arc;

use polyrail_core::time::{Duration, Instant};

use super::Loop;
use crate::post::Command;

/// A worker that is so late for what is due has stood still, as in a process that was stopped. A control thread that has looked
/// for what peers have said no longer ago than that has looked now.
const LATE: Duration = Duration::from_millis(20);

/// How long the control thread may take to hand in what was said meanwhile: as long as this thread was late, which the other
/// is as likely to be where processors are short, and within these bounds.
const CATCH_UP: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(1));

/// How long it may take to look before a peer counts as silent. A thread that had no processor for so long was seen where a
/// thousand engines shared two.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// What is known of the control thread's last look for what peers have said.
#[derive(Debug)]
pub(super) struct CatchUp {
    /// When deadlines count again, if it has been asked to look and has not said so before.
    asked: Option<Asked>,
    /// It has looked at this instant or later.
    looked_at: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Instant,
    until: Instant,
}

/// Whether what is due may be done now.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Yes,
    /// Not before the control thread has looked, which it is to be asked for.
    Ask,
    /// Not before it has looked, as it was asked.
    Wait,
}

impl CatchUp {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            asked: None,
            looked_at: now,
        }
    }

    /// When deadlines count again, while the control thread is waited for.
    pub(super) fn due(&self) -> Option<Instant> {
        self.asked.map(|asked| asked.until)
    }

    /// The control thread has looked since it was asked.
    pub(super) fn has_looked(&mut self) {
        if let Some(asked) = self.asked.take() {
            self.looked_at = asked.at;
        }
    }

    /// What may be done at `now` by a worker that is so `late` for what is due. `finds_silence`: a peer would count as silent.
    fn verdict(
        &mut self,
        now: Instant,
        late: Duration,
        finds_silence: impl FnOnce() -> bool,
    ) -> Verdict {
        if let Some(asked) = self.asked {
            if asked.until > now {
                return Verdict::Wait;
            }
            self.asked = None;
            return Verdict::Yes;
        }
        let longest = match late > LATE {
            true => late.max(CATCH_UP.0).min(CATCH_UP.1),
            // It is the other thread that may not have had a processor, for as long as nothing was heard.
            false if now.since(self.looked_at) > LATE && finds_silence() => LOOK_MAX,
            false => return Verdict::Yes,
        };
        let until = now + longest;
        self.asked = Some(Asked { at: now, until });
        Verdict::Ask
    }
}

impl Loop<'_> {
    /// Whether what is due may be done now, if the last look was at `before`. After a pause, and before a peer counts as
    /// silent, that has to wait until the control thread has handed in what peers have said.
    pub(super) fn may_time_out(&mut self, before: Instant, now: Instant) -> bool {
        let due = self.core.poll_timeout().map(|(due, _)| due);
        let late = due.map_or(Duration::ZERO, |due| now.since(due.max(before)));
        let Self { catch_up, core, .. } = self;
        let is_due = due.is_some_and(|due| due <= now);
        let verdict = catch_up.verdict(now, late, || is_due && core.finds_silence(now));
        if verdict == Verdict::Ask {
            let is_own = |post: &&Arc<_>| std::ptr::eq(Arc::as_ptr(post), self.post);
            if let Some(post) = self.around.posts.iter().find(is_own).cloned() {
                let told = move || post.send(Command::CaughtUp);
                self.around.plane.hear(told);
            }
        }
        verdict == Verdict::Yes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(since_start: u64) -> Instant {
        Instant::ZERO + ms(since_start)
    }

    #[test]
    fn a_peer_counts_as_silent_only_when_the_control_thread_has_looked() {
        let mut catch_up = CatchUp::new(at(0));
        let punctual = Duration::ZERO;
        assert_eq!(catch_up.verdict(at(500), punctual, || false), Verdict::Yes);
        assert_eq!(catch_up.verdict(at(2000), punctual, || true), Verdict::Ask);
        assert_eq!(catch_up.due(), Some(at(4000)));
        assert_eq!(catch_up.verdict(at(2001), punctual, || true), Verdict::Wait);
        catch_up.has_looked();
        assert_eq!(catch_up.due(), None);
        // It has said something meanwhile, or it has not, and is silent.
        assert_eq!(catch_up.verdict(at(2002), punctual, || true), Verdict::Yes);
        // What was looked at then says nothing of now.
        assert_eq!(catch_up.verdict(at(2021), punctual, || true), Verdict::Ask);
    }

    #[test]
    fn a_control_thread_that_does_not_look_is_not_waited_for_without_end() {
        let mut catch_up = CatchUp::new(at(0));
        let silent = || true;
        assert_eq!(catch_up.verdict(at(2000), ms(0), silent), Verdict::Ask);
        assert_eq!(catch_up.verdict(at(3999), ms(0), silent), Verdict::Wait);
        assert_eq!(catch_up.verdict(at(4000), ms(0), silent), Verdict::Yes);
        catch_up.has_looked();
        assert_eq!(catch_up.verdict(at(4001), ms(0), silent), Verdict::Ask);
    }

    #[test]
    fn after_a_pause_what_was_said_in_it_goes_first() {
        let mut catch_up = CatchUp::new(at(0));
        // (late for so long, waits so long at most)
        for (late, longest) in [(21, 200), (300, 300), (5000, 1000)] {
            let verdict = catch_up.verdict(at(9000), ms(late), || false);
            assert_eq!(
                (verdict, catch_up.due()),
                (Verdict::Ask, Some(at(9000 + longest)))
            );
            catch_up.has_looked();
            assert_eq!(catch_up.verdict(at(9001), ms(0), || true), Verdict::Yes);
        }
        assert_eq!(catch_up.verdict(at(9010), ms(20), || false), Verdict::Yes);
    }
}
