//! A link with delay: two TUN devices, and between them a queue each way.
//!
//! Kernels are built without the delay of `tc`, so the tests bring their own. What comes out of one device goes into the
//! other after the delay, in order. TCP hands over up to 64 KiB as one packet, whatever the size of packets on the
//! wire, so the queue costs two copies a byte and no more.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use oorandom::Rand64;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::setpriority_process;
use rustix::thread::{gettid, set_current_timer_slack};

use crate::packet::{self, PACKET_BYTES_MAX};

/// Packets taken from a device before what is due goes out.
const BURST: usize = 16;

/// Packets that may be on their way; what comes on top is lost.
const PACKETS_MAX: usize = 32_768;

/// A link of a rate holds what passes in this time beyond a round trip, as the shaped ones do; what comes on top is lost.
const QUEUE_MIN: Duration = Duration::from_millis(50);

/// What is due so soon is not slept for.
const SOON: Duration = Duration::from_micros(10);

/// How long a link sleeps that has nothing to carry, before it looks whether it is over.
const IDLE: Duration = Duration::from_millis(100);

/// The link's threads stand in for hardware, which nobody's program keeps waiting.
const NICE: i32 = -10;

/// What a link is like, each way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) delay: Duration,
    /// The most that is added to the delay. It grows and falls; packets keep their order.
    pub(crate) jitter: Duration,
    /// One packet in so many is lost; 0: none.
    pub(crate) loss_one_in: u32,
    /// The longest packet on the wire, in bytes.
    pub(crate) mtu: u32,
    /// `None`: as fast as the machine can.
    pub(crate) rate_mbit: Option<u32>,
}

/// A link that carries; gone when dropped.
#[derive(Debug)]
pub(crate) struct Link {
    stop: Arc<AtomicBool>,
    reset: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Link {
    /// Carries between two devices.
    pub(crate) fn start(ends: [File; 2], shape: Shape, seed: u64) -> io::Result<Self> {
        let [initiator, target] = ends.map(Arc::new);
        let stop = Arc::new(AtomicBool::new(false));
        let reset = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for (number, from, to) in [(0, &initiator, &target), (1, &target, &initiator)] {
            let way = Way::new(from, to, shape, u128::from(seed * 2 + number));
            let (stop, reset) = (stop.clone(), reset.clone());
            let name = format!("link-{number}");
            let run = move || way.run(&stop, &reset);
            threads.push(thread::Builder::new().name(name).spawn(run)?);
        }
        Ok(Self {
            stop,
            reset,
            threads,
        })
    }

    /// Ends the connection that the next large packet belongs to.
    pub(crate) fn reset_next(&self) {
        self.reset.store(true, Relaxed);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // A link that panicked has carried nothing more, which its test has noticed.
            let _ = thread.join();
        }
    }
}

/// A packet on its way.
struct Packet {
    due: Instant,
    bytes: Vec<u8>,
    length: usize,
}

/// One direction.
struct Way {
    from: Arc<File>,
    to: Arc<File>,
    shape: Shape,
    random: Rand64,
    drift: Drift,
    /// Packets until the next one is lost.
    until_loss: u64,
    /// When the last packet has left a link of a rate.
    free_at: Instant,
    queue: VecDeque<Packet>,
    /// Buffers that nobody uses, the one that was used last on top.
    spare: Vec<Vec<u8>>,
}

impl Way {
    fn new(from: &Arc<File>, to: &Arc<File>, shape: Shape, seed: u128) -> Self {
        let mut random = Rand64::new(seed);
        Self {
            from: from.clone(),
            to: to.clone(),
            shape,
            drift: Drift::new(shape, Instant::now()),
            until_loss: next_loss(shape.loss_one_in, &mut random),
            random,
            free_at: Instant::now(),
            queue: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    fn run(mut self, stop: &AtomicBool, reset: &AtomicBool) {
        // Both only make the delay truer.
        let _ = setpriority_process(Some(gettid()), NICE);
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        while !stop.load(Relaxed) {
            let took = self.take(reset);
            self.give();
            if !took {
                self.rest();
            }
        }
    }

    /// Takes what the device has, and says whether that was anything.
    fn take(&mut self, reset: &AtomicBool) -> bool {
        for taken in 0..BURST {
            let spare = self.spare.pop();
            let mut bytes = spare.unwrap_or_else(|| vec![0; PACKET_BYTES_MAX]);
            match (&*self.from).read(&mut bytes) {
                Ok(length) => self.admit(bytes, length, reset),
                Err(error) => {
                    self.spare.push(bytes);
                    // A device that is down says so to each read.
                    if error.kind() != ErrorKind::WouldBlock {
                        thread::sleep(IDLE);
                    }
                    return taken > 0;
                }
            }
        }
        true
    }

    /// Queues a packet, or what is left of it after losses.
    fn admit(&mut self, bytes: Vec<u8>, length: usize, reset: &AtomicBool) {
        let segments = packet::segments(&bytes[..length]) as u64;
        if reset.load(Relaxed)
            && let Some(last) = packet::reset(&bytes[..length])
        {
            reset.store(false, Relaxed);
            self.spare.push(bytes);
            let length = last.len();
            return self.push(last, length);
        }
        if segments < self.until_loss {
            self.until_loss -= segments;
            return self.push(bytes, length);
        }
        let mut from = 0;
        while segments - from >= self.until_loss {
            let lost = from + self.until_loss - 1;
            self.push_part(&bytes[..length], from, lost);
            from = lost + 1;
            self.until_loss = next_loss(self.shape.loss_one_in, &mut self.random);
        }
        self.until_loss -= segments - from;
        self.push_part(&bytes[..length], from, segments);
        self.spare.push(bytes);
    }

    fn push_part(&mut self, packet: &[u8], from: u64, to: u64) {
        if let Some(part) = packet::part(packet, from as usize..to as usize) {
            let length = part.len();
            self.push(part, length);
        }
    }

    fn push(&mut self, bytes: Vec<u8>, length: usize) {
        let now = Instant::now();
        let mut left = now;
        if let Some(rate) = self.shape.rate_mbit {
            let bits = packet::wire_bytes(length) as u64 * 8;
            left = self.free_at.max(now) + Duration::from_nanos(bits * 1000 / u64::from(rate));
            if left - now > self.shape.delay * 2 + QUEUE_MIN {
                return self.spare.push(bytes);
            }
            self.free_at = left;
        }
        if self.queue.len() >= PACKETS_MAX {
            return self.spare.push(bytes);
        }
        let extra = self.drift.at(now, &mut self.random);
        let last = self.queue.back().map_or(left, |packet| packet.due);
        let due = (left + self.shape.delay + extra).max(last);
        self.queue.push_back(Packet { due, bytes, length });
    }

    /// Hands over what is due.
    fn give(&mut self) {
        let is_due = |packet: &Packet| packet.due <= Instant::now();
        while self.queue.front().is_some_and(is_due)
            && let Some(packet) = self.queue.pop_front()
        {
            // What a device does not take is lost.
            let _ = (&*self.to).write(&packet.bytes[..packet.length]);
            if packet.bytes.len() == PACKET_BYTES_MAX {
                self.spare.push(packet.bytes);
            }
        }
    }

    /// Sleeps until a packet comes, or one is due.
    fn rest(&self) {
        let left = match self.queue.front() {
            Some(packet) => packet.due.saturating_duration_since(Instant::now()),
            None => IDLE,
        };
        if left <= SOON {
            return;
        }
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut device = [PollFd::new(&*self.from, PollFlags::IN)];
        // After an error the next look is the same, only sooner.
        let _ = poll(&mut device, Some(&timeout));
    }
}

fn next_loss(one_in: u32, random: &mut Rand64) -> u64 {
    match u64::from(one_in) {
        0 => u64::MAX,
        mean => random.rand_range(1..mean * 2),
    }
}

/// The delay's addition: it goes from one random value to the next, each a few delays later.
struct Drift {
    jitter: Duration,
    step: Duration,
    from: f64,
    to: f64,
    since: Instant,
}

impl Drift {
    /// Delays from one value to the next.
    const STEPS: u32 = 4;

    /// The least time from one to the next.
    const STEP_MIN: Duration = Duration::from_micros(200);

    fn new(shape: Shape, now: Instant) -> Self {
        Self {
            jitter: shape.jitter,
            step: (shape.delay * Self::STEPS).max(Self::STEP_MIN),
            from: 0.0,
            to: 0.0,
            since: now,
        }
    }

    fn at(&mut self, now: Instant, random: &mut Rand64) -> Duration {
        if self.jitter.is_zero() {
            return Duration::ZERO;
        }
        let mut passed = now.saturating_duration_since(self.since);
        if passed >= self.step {
            (self.from, self.to) = (self.to, random.rand_float());
            self.since = now;
            passed = Duration::ZERO;
        }
        let part = passed.as_secs_f64() / self.step.as_secs_f64();
        self.jitter
            .mul_f64(self.from + (self.to - self.from) * part)
    }
}
