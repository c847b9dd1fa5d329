//! The transports of an engine, in its order of preference, and what became of each when it was installed.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};

use polyrail_control::codec::TransportOffer;
use polyrail_core::transport::{Capabilities, MemoryKind, Offer, rank};
use polyrail_core::units::{Epoch, LaneId, TransportId};
use polyrail_tcp::TcpTransport;
use polyrail_transport::clock::Clock;
use polyrail_transport::fault::{FaultProxy, Faults};
use polyrail_transport::memory::RegionTable;
use polyrail_transport::{Endpoint, FenceAnswer, InboundLane, RetireAnswer, SessionId, Transport};

use crate::endpoints::Joined;
use crate::engine::lock;

/// A transport beside those that the engine has, preferred to them.
#[derive(Clone)]
pub struct Plugin {
    /// Makes it, over the memory that peers may touch.
    pub make: fn(Arc<dyn RegionTable>) -> Arc<dyn Transport>,
    /// Faults to inject into it.
    pub faults: Option<Arc<Faults>>,
}

/// One transport, for whoever wants to know what an engine can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportStatus {
    /// What it is called.
    pub name: &'static str,
    /// Why the engine runs without it; `None`: it is there.
    pub missing: Option<String>,
}

/// What is known of an engine's transports, by number.
pub(crate) struct Catalog {
    rows: Vec<Row>,
}

struct Row {
    name: &'static str,
    capabilities: Capabilities,
    missing: Option<String>,
}

/// The transports themselves. Dropping the last handle ends what they serve.
pub(crate) struct Transports {
    pub(crate) catalog: Arc<Catalog>,
    rows: Vec<Installed>,
}

struct Installed {
    transport: Arc<dyn Transport>,
    faults: Option<Arc<Faults>>,
    is_missing: bool,
}

impl Transports {
    /// Installs plugins, in order, and TCP. One that cannot be installed is noted, and done without.
    pub(crate) fn install(
        regions: Arc<dyn RegionTable>,
        plugins: &[Plugin],
        faults: Option<Arc<Faults>>,
    ) -> Self {
        let plugged = plugins
            .iter()
            .map(|plugin| ((plugin.make)(regions.clone()), plugin.faults.clone()));
        let tcp: Arc<dyn Transport> = Arc::new(TcpTransport::new(regions.clone()));
        let (catalog, rows) = plugged
            .chain([(tcp, faults)])
            .map(|(transport, faults)| install(transport, faults))
            .unzip();
        Self {
            catalog: Arc::new(Catalog { rows: catalog }),
            rows,
        }
    }

    /// The endpoint of one worker, over all transports.
    pub(crate) fn endpoint(&self, worker: u16, clock: Clock) -> io::Result<Box<dyn Endpoint>> {
        let endpoint = |row: &Installed| row.endpoint(worker, clock);
        let mut rows = self
            .rows
            .iter()
            .map(endpoint)
            .collect::<io::Result<Vec<_>>>()?;
        // What is missing never has rails, so the only one that is there has them all.
        if rows.iter().flatten().count() == 1
            && let Some(only) = rows.iter_mut().find_map(Option::take)
        {
            return Ok(only);
        }
        Ok(Box::new(Joined::new(rows)?))
    }

    /// Hands an inbound lane to the transport that serves lanes of the control port.
    pub(crate) fn admit(&self, lane: InboundLane) {
        if let Some(row) = self.rows.iter().rev().find(|row| !row.is_missing) {
            row.transport.admit(lane);
        }
    }

    /// Fences an inbound lane wherever it is, and answers once all transports have.
    pub(crate) fn fence_inbound(
        &self,
        session: SessionId,
        lane: LaneId,
        epoch: Epoch,
        answer: FenceAnswer,
    ) {
        let delivered = Arc::new(AtomicU32::new(0));
        let all = Last::of(self.rows.len(), {
            let delivered = delivered.clone();
            move || answer(delivered.load(Acquire))
        });
        for row in &self.rows {
            let (delivered, all) = (delivered.clone(), all.clone());
            let answer = move |count| {
                delivered.fetch_max(count, AcqRel);
                all.done();
            };
            row.transport
                .fence_inbound(session, lane, epoch, Box::new(answer));
        }
    }

    /// Ends a session on all transports.
    pub(crate) fn retire_session(&self, session: SessionId, answer: RetireAnswer) {
        let all = Last::of(self.rows.len(), answer);
        for row in &self.rows {
            let all = all.clone();
            row.transport
                .retire_session(session, Box::new(move || all.done()));
        }
    }
}

impl Catalog {
    /// What a transport is called.
    pub(crate) fn name(&self, transport: TransportId) -> &'static str {
        self.rows.get(transport.index()).map_or("?", |row| row.name)
    }

    /// All names, for errors.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.rows.iter().map(|row| row.name).collect()
    }

    pub(crate) fn status(&self) -> Vec<TransportStatus> {
        let status = |row: &Row| TransportStatus {
            name: row.name,
            missing: row.missing.clone(),
        };
        self.rows.iter().map(status).collect()
    }

    /// What peers are told.
    pub(crate) fn offers(&self) -> Vec<TransportOffer> {
        let offer = |row: &Row| TransportOffer {
            name: row.name.into(),
            capabilities: row.offered().to_bits(),
        };
        self.rows.iter().map(offer).collect()
    }

    /// Those that join memory here with memory of a peer that offers `theirs`, the best first.
    pub(crate) fn rank(
        &self,
        theirs: &[TransportOffer],
        local: MemoryKind,
        remote: MemoryKind,
    ) -> Vec<TransportId> {
        let ours = self.rows.iter().map(|row| Offer {
            name: row.name,
            capabilities: row.offered(),
        });
        let theirs: Vec<_> = theirs
            .iter()
            .map(|offer| Offer {
                name: &offer.name,
                capabilities: Capabilities::from_bits(offer.capabilities),
            })
            .collect();
        rank(ours, &theirs, local, remote)
            .into_iter()
            .map(|position| TransportId(position as u8))
            .collect()
    }
}

impl Row {
    /// Nothing, if it is not there.
    fn offered(&self) -> Capabilities {
        match self.missing {
            None => self.capabilities,
            Some(_) => Capabilities::NONE,
        }
    }
}

/// Why an engine has to do without a transport on this machine, if so.
pub(crate) fn try_out(transport: &dyn Transport, faults: Option<&Faults>) -> Option<String> {
    if faults.is_some_and(Faults::fails_install) {
        return Some("its installation was made to fail".to_owned());
    }
    let endpoint = transport.endpoint(0, Clock::start());
    endpoint.err().map(|error| error.to_string())
}

fn install(transport: Arc<dyn Transport>, faults: Option<Arc<Faults>>) -> (Row, Installed) {
    let missing = try_out(&*transport, faults.as_deref());
    let name = transport.name();
    if let Some(why) = &missing {
        log::warn!("transport {name} is not there: {why}");
    }
    let installed = Installed {
        is_missing: missing.is_some(),
        faults,
        transport: transport.clone(),
    };
    let row = Row {
        name,
        capabilities: transport.capabilities(),
        missing,
    };
    (row, installed)
}

impl Installed {
    fn endpoint(&self, worker: u16, clock: Clock) -> io::Result<Option<Box<dyn Endpoint>>> {
        if self.is_missing {
            return Ok(None);
        }
        let endpoint = self.transport.endpoint(worker, clock)?;
        Ok(Some(match &self.faults {
            Some(faults) => Box::new(FaultProxy::new(endpoint, faults.clone(), clock)),
            None => endpoint,
        }))
    }
}

/// Something to do once several others have said that they are done. If one of them never does, it is not done.
struct Last {
    left: AtomicUsize,
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Last {
    fn of(count: usize, then: impl FnOnce() + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicUsize::new(count),
            then: Mutex::new(Some(Box::new(then))),
        })
    }

    fn done(&self) {
        if self.left.fetch_sub(1, AcqRel) == 1
            && let Some(then) = lock(&self.then).take()
        {
            then();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_several_answers_is_the_one_that_counts() {
        for count in 1..4 {
            let told = Arc::new(AtomicU32::new(0));
            let last = Last::of(count, {
                let told = told.clone();
                move || {
                    told.fetch_add(1, AcqRel);
                }
            });
            for done in 1..=count {
                last.done();
                assert_eq!(
                    told.load(Acquire),
                    u32::from(done == count),
                    "{done} of {count}"
                );
            }
        }
    }
}
