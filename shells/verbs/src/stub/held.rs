//! Works that are on their way for as long as a test wants them to be.

use std::ffi::c_int;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::ffi::raw::{self, SendWr, Wc};

use super::{
    COUNTERS, FAILED, FLUSHED, LOCAL_PROTECTION, OwnPair, Queue, State, arrive, count_packets, with,
};

/// How long a packet lives in a network.
const LIFE: Duration = Duration::from_secs(1);

static HELD: AtomicBool = AtomicBool::new(false);
/// Works that are held.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// One lets them arrive at a time.
static LANDING: Mutex<()> = Mutex::new(());

/// A work whose packets are on their way: what becomes of the queue pair that sent them does not stop them.
#[derive(Clone)]
pub(super) struct Flying {
    /// When it left.
    since: Instant,
    /// The numbers of the queue pair that it was posted to and of its peer.
    pub(super) own: u32,
    pub(super) peer: u32,
    pub(super) opcode: c_int,
    wr_id: u64,
    pub(super) says: bool,
    /// It is what comes behind a failure: nobody is told of it.
    pub(super) is_tail: bool,
    pub(super) immediate: u32,
    /// The status with which the peer has answered it; 0: it carries it out.
    pub(super) refused: c_int,
    pub(super) remote: u64,
    pub(super) key: u32,
    /// What it writes, or what it has read: then its answer is what is on its way.
    pub(super) bytes: Vec<u8>,
    /// Where it reads to: address, bytes and key of each range.
    pub(super) ranges: Vec<(u64, u64, u32)>,
}

impl Flying {
    /// One that is answered with this status, and moves nothing.
    pub(super) fn refused(own: u32, work: &SendWr, status: c_int) -> Self {
        Self {
            since: Instant::now(),
            own,
            peer: 0,
            opcode: work.opcode,
            wr_id: work.wr_id,
            says: true,
            is_tail: false,
            immediate: 0,
            refused: status,
            remote: 0,
            key: 0,
            bytes: Vec::new(),
            ranges: Vec::new(),
        }
    }

    /// A write in two parts, the second from this byte on; only that one is answered.
    pub(super) fn cut(mut self, at: usize) -> Vec<Self> {
        let mut first = self.clone();
        first.says = false;
        first.bytes.truncate(at);
        self.bytes.drain(..at);
        self.remote += at as u64;
        match self.bytes.is_empty() {
            true => vec![Self {
                says: self.says,
                ..first
            }],
            false => vec![first, self],
        }
    }
}

/// Holds works back that are posted from now on, or not any more; those that are held come with [`land`], and what is posted
/// to the same queue pair behind them does too.
pub fn hold(held: bool) {
    HELD.store(held, SeqCst);
}

/// Whether some works may have to wait.
pub(super) fn is_held() -> bool {
    HELD.load(Relaxed) || COUNT.load(Relaxed) > 0
}

/// Lets all works that are held arrive, in order, each answered before the next. How many of them did as they were to.
pub fn land() -> usize {
    let _alone = LANDING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut landed = 0;
    // If nothing is held any more, what is posted behind them meanwhile arrives, too: nobody would let it.
    let mut left = with(|state| state.flying.len());
    while left > 0 || !HELD.load(SeqCst) {
        left = left.saturating_sub(1);
        let front = with(|state| {
            let flying = state.flying.front()?.clone();
            // SAFETY: what is registered is mapped.
            let status = unsafe { state.land(&flying) };
            Some((flying, status))
        });
        let Some((flying, status)) = front else { break };
        landed += usize::from(status == 0);
        let is_told = flying.says || status != 0;
        // It is on its way until it has been answered, so that nothing passes it. Whoever posts locks in the other order.
        while !with(|state| {
            let is_over = !is_told || state.say(&flying, status);
            if is_over {
                state.flying.pop_front();
                COUNT.fetch_sub(1, Relaxed);
            }
            is_over
        }) {
            std::thread::yield_now();
        }
    }
    landed
}

impl State {
    /// A work leaves, if it is to be held. `false`: it is not, or is none that can be.
    ///
    /// # Safety
    ///
    /// The work has as many ranges as it says, and what is registered is mapped.
    pub(super) unsafe fn depart(&mut self, number: u32, work: &SendWr) -> bool {
        if !HELD.load(Relaxed) && !self.has_flying(number) {
            return false;
        }
        // SAFETY: the caller's promise.
        let flying = unsafe { self.launch(number, work) };
        flying.map(|flying| self.keep(flying)).is_some()
    }

    /// A number of a queue pair that has ended, to be given out again. Packets live for a second at most: one that something has been on
    /// its way to for longer is not.
    pub(super) fn spare_number(&mut self, device: usize) -> Option<u32> {
        let is_old = |flying: &&Flying| flying.since.elapsed() >= LIFE;
        let lies = self.lies.iter().flat_map(|lies| lies.flying());
        let old = self.flying.iter().chain(lies).filter(is_old);
        let old: Vec<u32> = old.flat_map(|flying| [flying.own, flying.peer]).collect();
        let spare = &mut self.spare_numbers[device];
        let place = spare.iter().rposition(|number| !old.contains(number))?;
        Some(spare.remove(place))
    }

    /// Whether something that was posted to a queue pair is on its way.
    pub(super) fn has_flying(&self, number: u32) -> bool {
        let lies = self.lies.as_ref();
        self.flying.iter().any(|flying| flying.own == number)
            || lies.is_some_and(|lies| lies.is_busy(number))
    }

    pub(super) fn keep(&mut self, flying: Flying) {
        self.flying.push_back(flying);
        COUNT.fetch_add(1, Relaxed);
    }

    /// A work as it is on its way. `None`: it would not get there.
    ///
    /// # Safety
    ///
    /// That of [`Self::depart`].
    pub(super) unsafe fn launch(&self, number: u32, work: &SendWr) -> Option<Flying> {
        let own = self.pairs.get(&number);
        let own = own.filter(|own| own.state == raw::QPS_RTS)?;
        let ranges = match work.num_sge {
            0 => &[],
            // SAFETY: the caller's promise.
            count => unsafe { slice::from_raw_parts(work.sg_list, count as usize) },
        };
        let is_inline = work.send_flags & raw::SEND_INLINE != 0;
        let place = |range: &raw::Sge| {
            let memory = self.memory.get(&range.lkey)?;
            let is_its = memory.domain == own.domain;
            let found = memory.find(range.addr, range.length.into());
            found.filter(|_| is_its)
        };
        let mut bytes = Vec::new();
        let mut refused = 0;
        for range in ranges {
            let from = match is_inline {
                true => range.addr,
                false => place(range)?,
            };
            // SAFETY: registered, or inline.
            bytes.extend_from_slice(unsafe {
                slice::from_raw_parts(from as *const u8, range.length as usize)
            });
        }
        if work.opcode == raw::WR_RDMA_READ {
            let length = bytes.len() as u64;
            let found = self.find(own.peer, work.opcode, work.rkey, work.remote_addr, length);
            match found {
                // SAFETY: registered.
                Ok(from) => unsafe { bytes.as_mut_ptr().copy_from(from as *const u8, bytes.len()) },
                Err(status) => refused = status,
            }
        }
        let range = |range: &raw::Sge| (range.addr, range.length.into(), range.lkey);
        Some(Flying {
            since: Instant::now(),
            own: number,
            peer: own.peer,
            opcode: work.opcode,
            wr_id: work.wr_id,
            says: work.send_flags & raw::SEND_SIGNALED != 0,
            is_tail: false,
            immediate: work.imm_data,
            refused,
            remote: work.remote_addr,
            key: work.rkey,
            bytes,
            ranges: ranges.iter().map(range).collect(),
        })
    }

    /// A work arrives. Its status.
    ///
    /// # Safety
    ///
    /// What is registered is mapped.
    unsafe fn land(&mut self, flying: &Flying) -> c_int {
        if flying.opcode == raw::WR_RDMA_WRITE_WITH_IMM {
            // SAFETY: queue pairs hold their queues.
            return unsafe { arrive(self, flying.own, flying.immediate) };
        }
        // SAFETY: the caller's promise.
        let status = unsafe { self.arrive_in_part(flying) };
        if status == 0 && flying.opcode == raw::WR_RDMA_WRITE {
            count_packets(self, flying.own, flying.bytes.len() as u64);
        }
        status
    }

    /// Bytes of a work arrive. Its status.
    ///
    /// # Safety
    ///
    /// What is registered is mapped.
    pub(super) unsafe fn arrive_in_part(&mut self, flying: &Flying) -> c_int {
        if flying.refused != 0 {
            return flying.refused;
        }
        if flying.opcode == raw::WR_RDMA_READ {
            // The answer comes to the queue pair that asked, unless that has failed; one that is not connected takes none.
            let own = self.pairs.get(&flying.own);
            return match own.is_some_and(|own| own.state == raw::QPS_RTS) {
                // SAFETY: the caller's promise.
                true => unsafe { self.bring(flying) },
                false => FLUSHED,
            };
        }
        let remote = match self.landing(flying) {
            Ok(remote) => remote,
            Err(status) => return status,
        };
        let (from, to) = (flying.bytes.as_ptr(), remote as *mut u8);
        // SAFETY: `landing` has found so many bytes of registered memory.
        unsafe { from.copy_to(to, flying.bytes.len()) };
        0
    }

    /// Where the bytes of a write go. An error is its status, and the queue pair that it comes to takes nothing behind it.
    pub(super) fn landing(&mut self, flying: &Flying) -> Result<u64, c_int> {
        let length = flying.bytes.len() as u64;
        let Flying {
            peer, opcode, key, ..
        } = *flying;
        let found = self.find(peer, opcode, key, flying.remote, length);
        if found.is_err()
            && let Some(peer) = self.pairs.get_mut(&peer)
        {
            peer.state = FAILED;
        }
        found
    }

    /// What was read arrives. The status.
    ///
    /// # Safety
    ///
    /// What is registered is mapped.
    unsafe fn bring(&self, flying: &Flying) -> c_int {
        let mut from = &flying.bytes[..];
        for (to, length, key) in &flying.ranges {
            let memory = self.memory.get(key);
            let Some(to) = memory.and_then(|memory| memory.find(*to, *length)) else {
                return LOCAL_PROTECTION;
            };
            // As far as they have come.
            let (now, rest) = from.split_at(from.len().min(*length as usize));
            // SAFETY: registered memory.
            unsafe { now.as_ptr().copy_to(to as *mut u8, now.len()) };
            from = rest;
        }
        0
    }

    /// Completes a work, if its queue pair has an object. `false`: not now.
    pub(super) fn say(&mut self, flying: &Flying, status: c_int) -> bool {
        let own = self.pairs.get_mut(&flying.own);
        let Some(own) = own.filter(|own| own.raw != 0) else {
            return true;
        };
        let status = match own.state {
            FAILED => FLUSHED,
            _ => status,
        };
        if status != 0 {
            own.state = FAILED;
        }
        // SAFETY: it has an object, which lives, and its queue with it.
        let (object, queue) = unsafe {
            let object = &*(own.raw as *const OwnPair);
            (object, &*(object.queue as *const Queue))
        };
        let Ok(mut done) = queue.done.try_lock() else {
            return false;
        };
        object.uncovered.store(0, Relaxed);
        COUNTERS.completions.fetch_add(1, SeqCst);
        let wc = Wc {
            wr_id: flying.wr_id,
            status,
            qp_num: flying.own,
            ..Wc::default()
        };
        queue.push(&mut done, wc);
        true
    }
}
