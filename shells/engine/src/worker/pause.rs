//! A worker that may not have heard all that was said to it: what has come goes before deadlines.

use std::sync::Arc;

use polyrail_core::time::{Duration, Instant};

use super::Loop;
use crate::post::Command;

/// A worker that is so late for what is due has stood still, as in a process that was stopped.
const LATE: Duration = Duration::from_millis(20);

/// How long the control thread may take to hand in what was said meanwhile: as long as this thread was late, which the other
/// is as likely to be where processors are short, and within these bounds.
const CATCH_UP: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(1));

/// How long it may take to look before a peer counts as silent. A thread that had no processor for so long was seen where a
/// thousand engines shared two.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// What the control thread was asked: to look for what peers have said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum CatchUp {
    #[default]
    Unasked,
    /// Until it has looked, or to this instant, deadlines do not count.
    Asked(Instant),
    /// It has looked, and a peer that nothing was heard from is silent.
    Looked,
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
    /// When deadlines count again, while the control thread is waited for.
    pub(super) fn due(&self) -> Option<Instant> {
        match *self {
            Self::Asked(until) => Some(until),
            Self::Unasked | Self::Looked => None,
        }
    }

    /// The control thread has looked since it was asked.
    pub(super) fn has_looked(&mut self) {
        if let Self::Asked(_) = self {
            *self = Self::Looked;
        }
    }

    /// What may be done at `now` by a worker that is so `late` for what is due. `finds_silence`: a peer would count as silent.
    fn verdict(
        &mut self,
        now: Instant,
        late: Duration,
        finds_silence: impl FnOnce() -> bool,
    ) -> Verdict {
        let longest = match *self {
            Self::Asked(until) if until > now => return Verdict::Wait,
            Self::Unasked | Self::Looked if late > LATE => {
                Some(late.max(CATCH_UP.0).min(CATCH_UP.1))
            }
            // It is the other thread that may not have had a processor.
            Self::Unasked if finds_silence() => Some(LOOK_MAX),
            Self::Unasked | Self::Asked(_) | Self::Looked => None,
        };
        *self = longest.map_or(Self::Unasked, |longest| Self::Asked(now + longest));
        match longest {
            Some(_) => Verdict::Ask,
            None => Verdict::Yes,
        }
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
        let mut catch_up = CatchUp::default();
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
    fn a_control_thread_that_takes_long_to_look_is_asked_once() {
        // It was asked again and again, and as often as it took longer than 20 ms no peer ever counted as silent.
        for took in [1, 19, 21, 500, 1_999] {
            let mut catch_up = CatchUp::default();
            assert_eq!(catch_up.verdict(at(2000), ms(0), || true), Verdict::Ask);
            catch_up.has_looked();
            let verdict = catch_up.verdict(at(2000 + took), ms(0), || true);
            assert_eq!(verdict, Verdict::Yes, "{took} ms");
        }
        // It stood still behind that, and what was said meanwhile goes first.
        let mut catch_up = CatchUp::Looked;
        assert_eq!(catch_up.verdict(at(9000), ms(21), || true), Verdict::Ask);
    }

    #[test]
    fn a_control_thread_that_does_not_look_is_not_waited_for_without_end() {
        let mut catch_up = CatchUp::default();
        let silent = || true;
        assert_eq!(catch_up.verdict(at(2000), ms(0), silent), Verdict::Ask);
        assert_eq!(catch_up.verdict(at(3999), ms(0), silent), Verdict::Wait);
        assert_eq!(catch_up.verdict(at(4000), ms(0), silent), Verdict::Yes);
        catch_up.has_looked();
        assert_eq!(catch_up.verdict(at(4001), ms(0), silent), Verdict::Ask);
    }

    #[test]
    fn after_a_pause_what_was_said_in_it_goes_first() {
        let mut catch_up = CatchUp::default();
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
