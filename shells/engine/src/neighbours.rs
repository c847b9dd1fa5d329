//! The load that this engine shares with other processes of the host: it says what it has in flight on each device,
//! and tells its workers what the others have. Without a weight there is none of this.
//!
//! Whichever worker comes first does it for all. One that finds another at it goes on: what it would have said is
//! said with the next heartbeat at the latest.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::mpsc::Sender;

use polyrail_core::rail::diffusion::{Column, Diffusion, DiffusionConfig};
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::DeviceId;
use polyrail_shared::host_now;
use polyrail_shared::load::{self, COLUMNS, FOLDER, JoinError};

use crate::fabric::Fabric;
use crate::lock::lock;
use crate::task::Task;

/// How long a look at the others is believed.
const LOOK_INTERVAL: Duration = Duration::from_micros(50);
/// Heartbeats within the time after which others take what was said for old.
const BEATS: u64 = 4;
/// How often the rows of processes that have ended are looked for.
const BURY_INTERVAL: Duration = Duration::from_secs(1);

/// One engine's part in the load record of this host. Instants are of the engine's clock.
pub(crate) struct Neighbours {
    config: DiffusionConfig,
    tasks: Sender<Task>,
    /// When to beat, in nanoseconds; the greatest number: nothing is in flight.
    beat_at: AtomicU64,
    state: Mutex<State>,
}

struct State {
    /// `None`: the record has no place for us, or the engine has ended.
    part: Option<Diffusion<'static>>,
    devices: Vec<Known>,
    /// By column, as read last.
    others: [u64; COLUMNS as usize],
    /// By column, as published last.
    own: [u64; COLUMNS as usize],
    look_at: Instant,
    bury_at: Instant,
}

/// A device that is shared with others. Several of them can be one interface, and then have one column.
struct Known {
    device: DeviceId,
    column: Column,
    /// As the workers have been told.
    others_bytes: u64,
}

impl Neighbours {
    /// Takes part in the host's record.
    pub(crate) fn join(config: DiffusionConfig, tasks: Sender<Task>) -> Result<Self, JoinError> {
        let state = State {
            part: Some(load::join(Path::new(FOLDER), config)?),
            devices: Vec::new(),
            others: [0; COLUMNS as usize],
            own: [0; COLUMNS as usize],
            look_at: Instant::ZERO,
            bury_at: Instant::ZERO,
        };
        Ok(Self {
            config,
            tasks,
            beat_at: AtomicU64::new(u64::MAX),
            state: Mutex::new(state),
        })
    }

    /// Shares a device, under the name that all processes of the host know it by.
    pub(crate) fn add(&self, device: DeviceId, name: &str) {
        let mut state = lock(&self.state);
        let part = state.part.as_ref();
        let column = part.and_then(|part| part.column(load::device_name(name)));
        let Some(column) = column else {
            return log::warn!("the load of {name} is not shared: {COLUMNS} devices are already");
        };
        state.devices.push(Known {
            device,
            column,
            others_bytes: 0,
        });
    }

    /// Looks what the others have in flight, if that was not done just now. Before slices are bound.
    pub(crate) fn look(&self, now: Instant, fabric: &Fabric) {
        let Ok(mut state) = self.state.try_lock() else {
            return;
        };
        let State {
            part: Some(part),
            devices,
            others,
            look_at,
            bury_at,
            ..
        } = &mut *state
        else {
            return;
        };
        if now < *look_at {
            return;
        }
        *look_at = now + LOOK_INTERVAL;
        part.others(host_now(), others);
        tell(fabric, devices, others);
        if now >= *bury_at {
            *bury_at = now + BURY_INTERVAL;
            // It reads files. Whoever would do it may have ended.
            let _ = self.tasks.send(Task::Bury);
        }
    }

    /// Says what is in flight now, if that has changed or a heartbeat is due. After slices were bound; `moved`:
    /// something may have changed.
    pub(crate) fn publish(&self, now: Instant, moved: bool, fabric: &Fabric) {
        let beat_due = now.as_nanos() >= self.beat_at.load(Relaxed);
        if !moved && !beat_due {
            return;
        }
        let Ok(mut state) = self.state.try_lock() else {
            return;
        };
        if !state.say(fabric, beat_due) {
            state.join_anew(self.config, fabric);
        }
        let is_busy = state.own.iter().any(|bytes| *bytes > 0);
        if !is_busy {
            self.beat_at.store(u64::MAX, Relaxed);
        } else if beat_due || self.beat_at.load(Relaxed) == u64::MAX {
            let interval = self.config.stale_after.as_nanos() / BEATS;
            let next = now + Duration::from_nanos(interval);
            self.beat_at.store(next.as_nanos(), Relaxed);
        }
    }

    /// When [`Self::publish`] has to be called again, if nothing moves.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let at = self.beat_at.load(Relaxed);
        (at != u64::MAX).then_some(Instant::from_nanos(at))
    }

    /// Frees the rows of processes that have ended.
    pub(crate) fn bury(&self) {
        let record = lock(&self.state).part.as_ref().map(|part| *part.record());
        if let Some(record) = record {
            load::bury(&record);
        }
    }

    /// Gives our row back. Nothing is shared after that.
    pub(crate) fn leave(&self) {
        if let Some(part) = lock(&self.state).part.take() {
            part.leave();
        }
    }
}

impl State {
    /// Publishes what has changed. `false`: the row is not ours any more.
    fn say(&mut self, fabric: &Fabric, beat_due: bool) -> bool {
        let Some(part) = &self.part else {
            return true;
        };
        let mut sums = [0_u64; COLUMNS as usize];
        for known in &self.devices {
            let bytes = fabric.shared().device_inflight_bytes(known.device);
            if let Some(sum) = sums.get_mut(usize::from(known.column.0)) {
                *sum = sum.saturating_add(bytes);
            }
        }
        let (now, mut is_ours) = (host_now(), true);
        let columns = (0..COLUMNS).zip(sums.iter().zip(&mut self.own));
        for (column, (bytes, said)) in columns {
            if bytes != said {
                is_ours &= part.publish(now, Column(column), *bytes);
                *said = *bytes;
            }
        }
        if beat_due {
            is_ours &= part.beat(now);
        }
        is_ours
    }

    /// Somebody took this process for dead.
    fn join_anew(&mut self, config: DiffusionConfig, fabric: &Fabric) {
        // The row is another's; there is nothing to give back.
        self.part = match load::join(Path::new(FOLDER), config) {
            Ok(part) => Some(part),
            Err(error) => {
                log::warn!("load is not shared any more: {error}");
                self.others.fill(0);
                tell(fabric, &mut self.devices, &self.others);
                None
            }
        };
        self.own.fill(0);
        self.say(fabric, true);
    }
}

/// Tells the workers what has changed with the others.
fn tell(fabric: &Fabric, devices: &mut [Known], others: &[u64]) {
    for known in devices {
        let bytes = others.get(usize::from(known.column.0)).copied();
        let bytes = bytes.unwrap_or(0);
        if bytes != known.others_bytes {
            known.others_bytes = bytes;
            fabric.set_others(known.device, bytes);
        }
    }
}
