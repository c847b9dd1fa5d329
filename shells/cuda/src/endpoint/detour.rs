//! Works that pass through slots: on their way, part by part.

use polyrail_core::time::Instant;
use polyrail_core::units::LaneId;
use polyrail_core::work::{Completion, Outcome};

use super::{CudaEndpoint, Failed, Flight, INTO, Queues, Run, fenced};
use polyrail_transport::complain;

use crate::driver::{CudaError, Driver, End};
use crate::slots::{Detour, Landing, SLOT_BYTES, Slots};

impl CudaEndpoint {
    /// Takes a work for the detour through slots.
    pub(super) fn divert(&mut self, lane: LaneId, run: Run, at: Instant) -> Result<(), Failed> {
        let (position, event) = self.make_ready(&run).map_err(Failed::Before)?;
        let queues = &mut self.devices[position];
        if queues.slots.is_none() {
            match Slots::new(&self.gpus, run.ordinal) {
                Ok(slots) => queues.slots = Some(slots),
                Err(error) => {
                    queues.spare.push(event);
                    return Err(Failed::Before(error));
                }
            }
        }
        let (near, far, gate) = match run.stream {
            // The stream waits for the program's; the processor has to as well, before it reads.
            INTO => {
                let stream = queues.streams[run.stream];
                if let Err(error) = self.driver.record(run.ordinal, event, stream) {
                    queues.spare.push(event);
                    return Err(Failed::Before(error));
                }
                (run.from, run.to, Some(event))
            }
            _ => {
                queues.spare.push(event);
                (run.to, run.from, None)
            }
        };
        queues
            .detours
            .extend(run.cookies.first().map(|&cookie| Detour {
                lane,
                cookie,
                stream: run.stream,
                near: near.address,
                far,
                bytes: run.bytes,
                put: 0,
                kept: run.kept,
                gate,
                posted_at: at,
            }));
        Ok(())
    }

    /// Puts as much of what takes the detour into the streams as there are slots for.
    pub(super) fn feed(&mut self, at: Instant) {
        for position in 0..self.devices.len() {
            while let Some(mut detour) = self.devices[position].detours.pop_front() {
                let ordinal = self.devices[position].ordinal;
                match self.go_further(position, &mut detour, at) {
                    Ok(()) if detour.put == detour.bytes => {}
                    Ok(()) | Err(CudaError::Busy { .. }) => {
                        self.devices[position].detours.push_front(detour);
                        break;
                    }
                    Err(error @ CudaError::ContextLost { .. }) => {
                        self.devices[position].detours.push_front(detour);
                        self.lose(ordinal, &error);
                        break;
                    }
                    Err(error) => {
                        complain!("a copy was not begun: {error}");
                        self.give_up(position, detour, at);
                    }
                }
            }
        }
    }

    /// The next parts of one work, until it waits for something.
    fn go_further(
        &mut self,
        position: usize,
        detour: &mut Detour,
        at: Instant,
    ) -> Result<(), CudaError> {
        let queues = &mut self.devices[position];
        if let Some(gate) = detour.gate {
            if !self.driver.is_over(queues.ordinal, gate)? {
                return Ok(());
            }
            detour.gate = None;
            queues.spare.push(gate);
        }
        while detour.put < detour.bytes {
            let Some(slot) = queues.slots.as_mut().and_then(Slots::take) else {
                return Ok(());
            };
            put_part(&*self.driver, queues, detour, slot, at)?;
        }
        Ok(())
    }

    /// Ends a work of which no more can be copied, as soon as what is on its way is over.
    fn give_up(&mut self, position: usize, detour: Detour, at: Instant) {
        let end = (detour.cookie, Outcome::Error(self.far.refusal()));
        let queues = &mut self.devices[position];
        queues.spare.extend(detour.gate);
        if let Some(last) = queues.flights[detour.stream].back_mut() {
            last.ends.push(end);
            last.kept.extend(detour.kept);
            return;
        }
        let lane = detour.lane;
        let Some(slot) = self.lanes.get_mut(&lane) else {
            return;
        };
        let epoch = slot.epoch;
        // One that is just being posted is counted afterwards.
        slot.posted = slot.posted.wrapping_sub(1);
        self.done.push(Completion {
            lane,
            epoch,
            cookie: end.0,
            at,
            outcome: end.1,
        });
        if slot.posted == 0 && std::mem::take(&mut slot.fencing) {
            self.far.end(lane);
            self.facts.extend(fenced(lane, epoch));
        }
    }
}

/// Puts the next part of a work into its stream, by way of a slot. An error leaves it as it was, but that the slot is kept if
/// the context is lost: the copy may be under way.
fn put_part(
    driver: &dyn Driver,
    queues: &mut Queues,
    detour: &mut Detour,
    slot: usize,
    at: Instant,
) -> Result<(), CudaError> {
    let Some(slots) = &mut queues.slots else {
        return Ok(());
    };
    let (ordinal, stream) = (queues.ordinal, queues.streams[detour.stream]);
    let bytes = (detour.bytes - detour.put).min(SLOT_BYTES);
    let near = detour.near + detour.put;
    let here = End {
        address: slots.address(slot),
        ordinal: None,
    };
    let there = End {
        address: detour.far.address + detour.put,
        ordinal: detour.far.ordinal,
    };
    let is_into = detour.stream == INTO;
    let event = queues.spare.pop().map_or_else(|| driver.event(ordinal), Ok);
    let event = event.inspect_err(|_| slots.give(slot))?;
    let (to, from) = match is_into {
        true => (there, here),
        false => (here, there),
    };
    // SAFETY: `detour.kept` pins the work's range and keeps its far end until the last part is over, the flight of the last part
    // does so then; the slot was taken for this part, and stays where it is until it is given back.
    let copied = unsafe {
        if is_into {
            slots.fill(slot, near, bytes);
        }
        driver.copy(ordinal, stream, to, from, bytes)
    };
    if let Err(error) = copied {
        if !matches!(error, CudaError::ContextLost { .. }) {
            slots.give(slot);
        }
        queues.spare.push(event);
        return Err(error);
    }
    // If it is refused, it is asked for again.
    let is_marked = driver.record(ordinal, event, stream).is_ok();
    detour.put += bytes;
    let is_last = detour.put == detour.bytes;
    let end = is_last.then_some((detour.cookie, Outcome::Success));
    let kept = match is_last {
        true => std::mem::take(&mut detour.kept),
        false => Vec::new(),
    };
    queues.flights[detour.stream].push_back(Flight {
        lane: detour.lane,
        event,
        ends: end.into_iter().collect(),
        kept,
        landing: Some(Landing {
            slot,
            to: (!is_into).then_some(near),
            bytes,
        }),
        posted_at: at,
        is_marked,
    });
    Ok(())
}
