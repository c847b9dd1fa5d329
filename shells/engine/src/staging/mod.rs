//! Requests that no transport carries in one piece: between a file and another host, for instance. They pass through slots in memory
//! on the way, chunk by chunk, as core's `stage` decides; each hop is a request of its own, which the workers carry out
//! like all others.
//!
//! One thread per engine, started when the first file meets the network. Workers hand it what a transport has failed to
//! do that reaches memory of GPUs: see `handover`.

mod handover;
mod hops;
mod parties;
mod requests;
mod route;
mod work;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use polyrail_control::codec::SegmentKind;
use polyrail_control::plane::Party;
use polyrail_core::orchestrator::Proof;
use polyrail_core::report::Report;
use polyrail_core::stage::{Direction, PoolConfig, StageMessage};
use polyrail_core::time::Instant;
use polyrail_core::units::{PeerId, PoolId, StageId};
use polyrail_core::work::Place;
use polyrail_transport::SessionId;
use polyrail_transport::memory::{Access, Region, TrustDomain};

pub(crate) use self::handover::{EngineCell, Handover, StagedTransport};
pub(crate) use self::route::Route;
use self::work::Work;
use crate::batch::Batch;
use crate::config::StagingConfig;
use crate::engine::{Engine, Inner};
use crate::lock::lock;
use crate::post::{Command, Post, Pulse, THREAD};
use crate::segments::SegmentId;
use crate::stats::SlotStats;
use crate::thread::Thread;

/// The slots for what comes in, and for what goes out.
pub(crate) const IN: PoolId = PoolId(0);
pub(crate) const OUT: PoolId = PoolId(1);
/// The names of their memory. Cannot be registered: they have a control character.
const NAMES: [&str; 2] = ["\u{1}slots-in", "\u{1}slots-out"];

/// The name of the memory of a pool.
pub(crate) fn pool_name(pool: PoolId) -> &'static str {
    NAMES[usize::from(pool.0 == OUT.0)]
}

/// What the thread is told besides submissions.
pub(crate) enum Word {
    /// A peer says something about a slot.
    Said(Party, StageMessage),
    /// A hop has ended so; its batch tells what becomes of memory that is held.
    HopEnded(StageId, Report, Batch),
    /// A request of a staged batch that needs no staging has ended so.
    Ended { tag: u64, report: Report },
    /// A session with a peer is over, and what is proved by that.
    PeerGone(PeerId, Option<Proof>),
    /// Somebody waits until no hop of a session with this peer that is over is out.
    UntilClear(PeerId, Sender<()>),
    /// A peer's session with us is over, and all that it did.
    SessionGone(SessionId),
}

/// What others hold of the thread.
pub(crate) struct Stager {
    pub(crate) post: Arc<Post>,
    words: Arc<Words>,
    thread: Mutex<Option<Thread>>,
    /// It is in the program's code.
    tells: Arc<AtomicBool>,
    slots: Arc<Mutex<Vec<SlotStats>>>,
}

/// The way to the thread for those that come before it: there may be none yet.
pub(crate) type StagerCell = OnceLock<Arc<Stager>>;

/// The staging of an engine.
pub(crate) struct Staging {
    pub(crate) cell: Arc<StagerCell>,
    /// Whether the thread may be started. Held while it is, so that this does not happen twice.
    may_start: Mutex<bool>,
}

impl Staging {
    pub(crate) fn new(cell: Arc<StagerCell>) -> Self {
        Self {
            cell,
            may_start: Mutex::new(true),
        }
    }

    /// Starts nothing any more, and ends all that is staged until then, unless the thread is in the program's code: that may be
    /// waiting for us, or is not done after the longest time.
    pub(crate) fn stop(&self, until: Instant, longest: Duration) {
        *lock(&self.may_start) = false;
        if let Some(stager) = self.cell.get() {
            stager.stop(until, longest);
        }
    }

    /// How slots stand; none as long as nothing was staged.
    pub(crate) fn slots(&self) -> Vec<SlotStats> {
        let stager = self.cell.get();
        stager.map_or_else(Vec::new, |stager| lock(&stager.slots).clone())
    }

    /// The post box of the thread, if there is one.
    pub(crate) fn post(&self) -> Option<&Arc<Post>> {
        self.cell.get().map(|stager| &stager.post)
    }

    /// Waits until no hop of a session with this peer that is over can move anything: they have been called back, and end
    /// within the bounds of a fence. `false`: not in time, as if a callback of the program asks, which they have to wait for.
    pub(crate) fn wait_until_clear(&self, peer: PeerId, within: Duration) -> bool {
        let Some(stager) = self.cell.get() else {
            return true;
        };
        let (clear, waits) = channel();
        stager.say(Word::UntilClear(peer, clear));
        waits.recv_timeout(within).is_ok()
    }

    /// Waits for the thread.
    pub(crate) fn join(&self) {
        if let Some(stager) = self.cell.get()
            && let Some(thread) = lock(&stager.thread).take()
        {
            thread.join();
        }
    }
}

/// What peers may have said that has not been heard yet. Of what is beyond that nothing is lost: peers say again what nobody
/// has answered.
const SAID_MAX: usize = 16_384;

/// Words on their way.
pub(crate) struct Words {
    queue: Mutex<Vec<Word>>,
    post: Arc<Post>,
}

impl Words {
    pub(crate) fn put(&self, word: Word) {
        if add(&mut lock(&self.queue), word) {
            self.post.rouse();
        }
    }

    fn take(&self) -> Vec<Word> {
        std::mem::take(&mut *lock(&self.queue))
    }
}

/// Adds a word to those that have not been heard. `false`: it is a peer's, and there are too many.
fn add(queue: &mut Vec<Word>, word: Word) -> bool {
    if matches!(word, Word::Said(..)) && queue.len() >= SAID_MAX {
        polyrail_transport::complain!(
            "staging: {SAID_MAX} words about slots have not been heard; a peer has to say one again"
        );
        return false;
    }
    queue.push(word);
    true
}

impl Stager {
    pub(crate) fn say(&self, word: Word) {
        self.words.put(word);
    }

    fn start(engine: &Engine) -> io::Result<Self> {
        let inner = &engine.inner;
        let post = Arc::new(Post::new(
            inner.config.limits.requests,
            &inner.config.send_queue,
            Pulse::new(None, inner.clock),
            (*inner.waker_thread).clone(),
        )?);
        // Nobody else ever drives: whoever submits or says something wakes the thread.
        post.alarm.asleep.store(THREAD, Relaxed);
        let words = Arc::new(Words {
            queue: Mutex::default(),
            post: post.clone(),
        });
        let pools = [
            engine.add_pool(IN, Direction::In)?,
            engine.add_pool(OUT, Direction::Out)?,
        ];
        let work = Work::new(engine.downgrade(), post.clone(), words.clone(), inner);
        let (tells, slots) = (work.tells.clone(), work.slots.clone());
        let thread = Thread::start("polyrail-stage".into(), move || work.run(&pools))?;
        Ok(Self {
            post,
            words,
            thread: Mutex::new(Some(thread)),
            tells,
            slots,
        })
    }

    /// Ends all that is staged. Returns when the thread has ended, or is in the program's code.
    fn stop(&self, until: Instant, longest: Duration) {
        self.post.close_room();
        self.post.send(Command::ShutDown(until));
        let start = std::time::Instant::now();
        let has_ended = || {
            let thread = lock(&self.thread);
            thread.as_ref().is_none_or(Thread::has_ended)
        };
        while !has_ended() && !self.tells.load(Acquire) {
            if start.elapsed() > longest {
                return log::warn!("the staging thread is stuck and left behind");
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}

impl Engine {
    /// What stages; started if it is not.
    pub(crate) fn stager(&self) -> io::Result<Arc<Stager>> {
        let cell = &self.inner.staging.cell;
        if let Some(stager) = cell.get() {
            return Ok(stager.clone());
        }
        let may_start = lock(&self.inner.staging.may_start);
        if let Some(stager) = cell.get() {
            return Ok(stager.clone());
        }
        if !*may_start {
            return Err(io::Error::other("the engine is ending"));
        }
        let started = Arc::new(Stager::start(self)?);
        Ok(cell.get_or_init(|| started).clone())
    }

    /// Memory for the slots of one direction, which peers may use.
    fn add_pool(&self, pool: PoolId, direction: Direction) -> io::Result<PoolConfig> {
        let StagingConfig { slots, slot_bytes } = self.inner.config.staging;
        let bytes = u64::from(slots) * u64::from(slot_bytes);
        let region = Region::allocate(bytes, Access::RemoteReadWrite)?;
        let kind = SegmentKind::Slots { bytes: slot_bytes };
        let segment = self
            .add_memory(pool_name(pool), region, kind, TrustDomain::COMMON)
            .map_err(io::Error::other)?;
        Ok(PoolConfig {
            direction,
            first: place(segment, 0),
            slot_bytes,
            slots,
        })
    }
}

/// A place of a segment as core names it.
fn place(segment: SegmentId, offset: u64) -> Place {
    Place {
        segment: segment.segment_ref(),
        offset,
    }
}

/// Upgrades for as long as it takes to do one thing: the engine may end meanwhile.
fn alive(engine: &Weak<Inner>) -> Option<Engine> {
    engine.upgrade().map(Engine::from_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use polyrail_core::units::Ticket;

    #[test]
    fn nothing_is_staged_after_the_end() {
        // The thread was started all the same, with its slots, and nobody ended it.
        let engine = Engine::new(Config::named("ends")).unwrap();
        engine.shutdown();
        assert!(engine.stager().is_err());
        assert!(engine.inner.staging.post().is_none());
        assert!(engine.inner.segments.by_name(pool_name(IN)).is_none());
    }

    #[test]
    fn peers_cannot_fill_the_queue_and_what_is_our_own_always_fits() {
        let mut queue = Vec::new();
        let said = |index: usize| {
            let ticket = Ticket {
                index: index as u32,
                generation: 1,
            };
            let fenced = false;
            Word::Said(
                Party::Peer(PeerId(0)),
                StageMessage::Free { ticket, fenced },
            )
        };
        assert!((0..SAID_MAX).all(|index| add(&mut queue, said(index))));
        assert!(!add(&mut queue, said(SAID_MAX)));
        assert!(add(&mut queue, Word::PeerGone(PeerId(0), None)));
        queue.clear();
        assert!(add(&mut queue, said(0)));
    }
}
