//! The session that all callers use: looked up for each call, and brought up to number when a queue pair has ended.

use polyrail_core::send_queue::credit::Standing;
use polyrail_core::send_queue::session::{Refill, RefillStep, SessionLane};
use polyrail_core::units::{Epoch, LaneId, SessionId};

use super::wait::Thread;
use super::{What, World};

/// The key of the one session.
const KEY: u8 = 0;

/// Queue pairs that are being built for a session.
#[derive(Debug, Default)]
pub(super) struct Building {
    refill: Option<Refill>,
    /// Of this round, those of which it is not known whether they open.
    left: usize,
    /// Callers that wait for it.
    waiting: Vec<usize>,
}

/// What a look for a session gave.
pub(super) enum Found {
    Session(SessionId),
    /// Queue pairs are being built. The caller is called when that is over.
    Wait,
    /// Queue pairs keep failing.
    Short,
}

impl World<'_> {
    /// The session for a call.
    pub(super) fn find_session(&mut self, caller: usize) -> Found {
        let credits = self.credits;
        let is_over = |lane: SessionLane| {
            let credits = &credits[lane.lane.0 as usize];
            credits.epoch() != lane.epoch || credits.snapshot().standing == Standing::Terminal
        };
        if let Some(id) = self.sessions.look_up(KEY, is_over) {
            return Found::Session(id);
        }
        if self.refill.left == 0 {
            let over: Vec<usize> = (0..credits.len())
                .filter(|pair| credits[*pair].snapshot().standing == Standing::Terminal)
                .collect();
            let healthy = (credits.len() - over.len()) as u16;
            let wanted = credits.len() as u16;
            let refill = self.refill.refill.get_or_insert(Refill::new(wanted));
            match refill.poll(healthy) {
                RefillStep::Enough => return self.make_session(),
                RefillStep::Short { .. } => {
                    self.refill.refill = None;
                    return Found::Short;
                }
                RefillStep::Build(count) => {
                    for pair in over.into_iter().take(usize::from(count)) {
                        self.refill.left += 1;
                        self.pairs[pair].ending.wanted = true;
                        if self.pairs[pair].ending.over {
                            self.build(pair);
                        }
                    }
                }
            }
        }
        self.refill.waiting.push(caller);
        self.wait_for_call(Thread::Caller(caller));
        Found::Wait
    }

    fn make_session(&mut self) -> Found {
        self.refill.refill = None;
        let lanes: Vec<SessionLane> = (self.credits.iter().enumerate())
            .map(|(pair, credits)| SessionLane {
                lane: LaneId(pair as u32),
                epoch: credits.epoch(),
            })
            .collect();
        match self.sessions.insert(KEY, &lanes) {
            Ok(id) => Found::Session(id),
            Err(error) => {
                self.violate(format!("a session is not taken: {error:?}"));
                Found::Short
            }
        }
    }

    /// A queue pair that is over is built anew.
    pub(super) fn build(&mut self, pair: usize) {
        let epoch = self.pairs[pair].epoch;
        let at = self.now + self.setup.engine.open_us * 1_000;
        self.agenda.enter(at, What::Opens { pair, epoch });
    }

    /// It has been built, or could not be.
    pub(super) fn opens(&mut self, pair: usize, epoch: Epoch) {
        self.refill.left -= 1;
        self.pairs[pair].ending.wanted = false;
        if !self.happens(self.setup.trouble.unopened_one_in) {
            let next = Epoch(epoch.0 + 1);
            if !self.credits[pair].reopen(next) {
                self.violate(format!("queue pair {pair} is over and does not reopen"));
            }
            self.pairs[pair].renew(next, self.config.signal_interval_works);
        }
        if self.refill.left == 0 {
            for caller in std::mem::take(&mut self.refill.waiting) {
                self.call_up(Thread::Caller(caller));
            }
        }
    }
}
