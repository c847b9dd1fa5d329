//! A made-up device, in the place of hardware: links to one peer, whose memory is next to ours. It keeps what every
//! transport has to keep: it takes works in order, refuses those of another epoch, says what became of them, and
//! gives a fence only when nothing can move any more.
//!
//! To be replaced: all of it. The loop calls `post`, `act` and `tell` with what core wants done, and `poll_completion`,
//! `poll_fact`, `poll_frame`, `poll_gone`, `has_news` and `next_at` for what has happened. `cut`, `mend`, `end_peer` and
//! `memory` are for the script in `contract.rs`, which leaves out what a device cannot do.

use heapless::Deque;
use polyrail_core::message::{Frame, Message};
use polyrail_core::orchestrator::LaneAction;
use polyrail_core::time::Instant;
use polyrail_core::units::{Epoch, LaneId, Rate, SegmentRef};
use polyrail_core::work::{
    Cause, Completion, LaneFact, LaneLimits, Op, Outcome, PostBatch, Posted, Stop, Work,
};

/// Links of the device; each is a rail.
pub const LINKS: usize = 2;
/// Works that one link can queue.
const QUEUE: u16 = 4;
/// The segment that programs use, on either side. Every other one is scratch, whose content means nothing.
pub const MEMORY: SegmentRef = SegmentRef(0);

/// One link, and the lane on it.
#[derive(Debug)]
struct Link {
    rate: Rate,
    is_cut: bool,
    lane: LaneId,
    epoch: Epoch,
    is_open: bool,
    queue: Deque<Work, { QUEUE as usize }>,
    /// When the first work of the queue is done.
    done_at: Instant,
    /// Works of this epoch that the peer has whole.
    delivered: u32,
}

impl Link {
    const fn new(rate: Rate) -> Self {
        Self {
            rate,
            is_cut: false,
            lane: LaneId(0),
            epoch: Epoch(0),
            is_open: false,
            queue: Deque::new(),
            done_at: Instant::ZERO,
            delivered: 0,
        }
    }

    fn start_next(&mut self, now: Instant) {
        if let Some(work) = self.queue.front() {
            self.done_at = now + self.rate.time_for(u64::from(work.length));
        }
    }
}

/// What `device` reports that is not a completion.
type Fact = (LaneId, Epoch, LaneFact);

/// The device, with the memory that it reaches on both sides.
#[derive(Debug)]
pub struct Device<'a> {
    ours: &'a mut [u8],
    theirs: &'a mut [u8],
    links: [Link; LINKS],
    facts: Deque<Fact, 8>,
    frames: Deque<Frame, 8>,
    /// The peer has ended, and whether that was said.
    is_gone: bool,
    is_told: bool,
}

impl<'a> Device<'a> {
    /// A device whose links have these rates.
    pub const fn new(ours: &'a mut [u8], theirs: &'a mut [u8], rates: [Rate; LINKS]) -> Self {
        let [first, second] = rates;
        Self {
            ours,
            theirs,
            links: [Link::new(first), Link::new(second)],
            facts: Deque::new(),
            frames: Deque::new(),
            is_gone: false,
            is_told: false,
        }
    }

    /// A cable is pulled. What the link had queued is lost, and nobody knows yet how far it came.
    pub fn cut(&mut self, number: usize) {
        if let Some(link) = self.links.get_mut(number) {
            link.is_cut = true;
            let broken = LaneFact::Broken(Cause::Reset);
            let _ = self.facts.push_back((link.lane, link.epoch, broken));
        }
    }

    /// The cable is put in again.
    pub fn mend(&mut self, number: usize) {
        if let Some(link) = self.links.get_mut(number) {
            link.is_cut = false;
        }
    }

    /// The peer ends, for good.
    pub fn end_peer(&mut self) {
        self.is_gone = true;
    }

    /// The memory on our side, and on the peer's.
    pub fn memory(&mut self) -> [&mut [u8]; 2] {
        [self.ours, self.theirs]
    }

    /// Takes works for a lane, as many as there is room for.
    pub fn post(&mut self, now: Instant, batch: &PostBatch) -> Posted {
        let rejected = Posted {
            accepted: 0,
            stop: Stop::Rejected(Cause::Reset),
        };
        let Some(link) = self.links.get_mut(batch.lane.rail().index()) else {
            return rejected;
        };
        if !link.is_open || link.is_cut || link.epoch != batch.epoch {
            return rejected;
        }
        let was_idle = link.queue.is_empty();
        let mut accepted = 0;
        for work in &batch.works {
            if link.queue.push_back(*work).is_err() {
                break;
            }
            accepted += 1;
        }
        if was_idle {
            link.start_next(now);
        }
        let stop = if accepted == batch.works.len() {
            Stop::All
        } else {
            Stop::Full
        };
        Posted { accepted, stop }
    }

    /// A work that has ended by now.
    pub fn poll_completion(&mut self, now: Instant) -> Option<Completion> {
        let done = |link: &&mut Link| !link.is_cut && !link.queue.is_empty() && link.done_at <= now;
        let link = self.links.iter_mut().find(done)?;
        let work = link.queue.pop_front()?;
        let at = link.done_at;
        link.delivered += 1;
        link.start_next(at);
        let completion = Completion {
            lane: link.lane,
            epoch: link.epoch,
            cookie: work.cookie,
            at,
            outcome: Outcome::Success,
        };
        self.copy(&work);
        Some(completion)
    }

    /// Something else that happened to a lane.
    pub fn poll_fact(&mut self) -> Option<Fact> {
        self.facts.pop_front()
    }

    /// Something that the peer said.
    pub fn poll_frame(&mut self) -> Option<Frame> {
        self.frames.pop_front()
    }

    /// Whether the peer has been found to have ended since this was last asked.
    pub fn poll_gone(&mut self) -> bool {
        self.is_gone && !core::mem::replace(&mut self.is_told, true)
    }

    /// Whether something waits to be handed in.
    pub fn has_news(&self) -> bool {
        !self.facts.is_empty() || !self.frames.is_empty() || self.is_gone != self.is_told
    }

    /// When a work will have ended: the next interrupt.
    pub fn next_at(&self) -> Option<Instant> {
        let busy = self
            .links
            .iter()
            .filter(|link| !link.is_cut && !link.queue.is_empty());
        busy.map(|link| link.done_at).min()
    }

    /// Opens, fences or closes a lane, and says how that went.
    pub fn act(&mut self, action: LaneAction) {
        let (LaneAction::Open { lane, epoch, .. }
        | LaneAction::Fence { lane, epoch, .. }
        | LaneAction::Close { lane, epoch }) = action;
        let Some(link) = self.links.get_mut(lane.rail().index()) else {
            return;
        };
        let fact = match action {
            LaneAction::Open { .. } if link.is_cut => LaneFact::OpenFailed(Cause::Refused),
            LaneAction::Open { .. } => {
                *link = Link {
                    lane,
                    epoch,
                    is_open: true,
                    ..Link::new(link.rate)
                };
                let limits = LaneLimits {
                    // `delivered` below.
                    counts: true,
                    ..LaneLimits::new(QUEUE, u32::MAX)
                };
                LaneFact::Opened { limits }
            }
            LaneAction::Fence { scope, .. } => {
                // The queue is gone and the engine that read it has stopped: nobody reads our memory for it.
                link.queue.clear();
                link.is_open = false;
                LaneFact::Fenced {
                    scope,
                    delivered: None,
                }
            }
            LaneAction::Close { .. } => {
                link.is_open = false;
                return;
            }
        };
        let _ = self.facts.push_back((lane, epoch, fact));
    }

    /// Carries a message to the peer, who answers at once. It would go over any link that is left.
    pub fn tell(&mut self, message: Message) {
        let Message::Fence { lane, epoch, .. } = message;
        if self.is_gone {
            return;
        }
        if let Some(link) = self.links.get(lane.rail().index()) {
            let frame = Frame::Fenced {
                lane,
                epoch,
                delivered: link.delivered,
            };
            let _ = self.frames.push_back(frame);
        }
    }

    fn copy(&mut self, work: &Work) {
        let length = work.length as usize;
        let ours = part(self.ours, work.local.offset, length);
        let theirs = part(self.theirs, work.remote.offset, length);
        if work.local.segment != MEMORY {
            return;
        }
        match work.op {
            Op::Write => ours.iter().zip(theirs).for_each(|(from, to)| *to = *from),
            Op::Read => theirs.iter().zip(ours).for_each(|(from, to)| *to = *from),
        }
    }
}

/// The bytes of a work, none if it leaves the memory.
fn part(memory: &mut [u8], offset: u64, length: usize) -> &mut [u8] {
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    let end = offset.saturating_add(length);
    memory.get_mut(offset..end).unwrap_or(&mut [])
}
