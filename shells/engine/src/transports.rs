//! The transports of an engine, in its order of preference, and what became of each when it was installed.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, Weak};

use polyrail_control::codec::{TRANSPORT_ADDRESS_BYTES_MAX, TransportOffer};
use polyrail_core::transport::{Capabilities, MemoryKind, Offer, rank};
use polyrail_core::units::{Epoch, LaneId, TransportId};
use polyrail_cuda::{CudaError, Gpus};
use polyrail_load::Library;
use polyrail_transport::clock::Clock;
use polyrail_transport::fault::{FaultProxy, Faults};
use polyrail_transport::memory::{RegionTable, TrustDomain};
use polyrail_transport::{
    Endpoint, FenceAnswer, InboundLane, Prior, RetireAnswer, SessionId, Transport,
};
use polyrail_uring::FileTable;

use crate::config::{Config, IsolationMode, TransportConfig};
use crate::endpoints::Joined;
use crate::error::EngineError;
use crate::known::{self, CUDA, CUDA_IPC, PREAD, SHM, STAGED, TCP, URING, VERBS, is_built_in};
use crate::lock::lock;
use crate::peers::RailPair;

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
    /// Where peers reach it itself, if that is not at the rails' addresses.
    address: Vec<u8>,
    transport: Weak<dyn Transport>,
    /// It reaches what is this engine's own, and no peer.
    own: bool,
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
    own: bool,
}

/// Transports from libraries that one engine can have: with its own, as many as are told apart in its counters.
const LIBRARIES_MAX: usize = 4;

/// The libraries that a configuration names, in the order of their names. What is wrong with one is wrong with the
/// configuration.
fn libraries(config: &Config) -> Result<Vec<Library>, EngineError> {
    let named = config.transports.iter();
    let named = named.filter(|(_, said)| said.enable && !said.library.is_empty());
    let wrong = |name: &str, text: String| EngineError::Config {
        text: format!("transports/{name}/library: {text}"),
    };
    let open = |(name, said): (&String, &TransportConfig)| {
        let library = Library::open(said.library.as_ref());
        let library = library.map_err(|error| wrong(name, error.to_string()))?;
        match library.name() == name {
            true => Ok(library),
            false => Err(wrong(
                name,
                format!(
                    "the transport in {} is called {}",
                    said.library,
                    library.name()
                ),
            )),
        }
    };
    let libraries = named.map(open).collect::<Result<Vec<_>, _>>()?;
    match libraries.get(LIBRARIES_MAX) {
        None => Ok(libraries),
        Some(surplus) => Err(wrong(
            surplus.name(),
            format!(
                "{} libraries: {LIBRARIES_MAX} are possible",
                libraries.len()
            ),
        )),
    }
}

impl Transports {
    /// Installs plugins, in order, then libraries, then those that the engine has itself. One that cannot be installed
    /// is noted, and done without.
    pub(crate) fn install(
        config: &Config,
        regions: Arc<dyn RegionTable>,
        files: &Arc<dyn FileTable>,
        gpus: &Result<Arc<Gpus>, CudaError>,
        plugins: &[Plugin],
        faults: Option<Arc<Faults>>,
    ) -> Result<Self, EngineError> {
        let missing = |name: &str, error: &io::Error| {
            // What keeps one of those over GPUs away is said of the first.
            let level = match name {
                CUDA_IPC | STAGED => log::Level::Debug,
                _ => log::Level::Warn,
            };
            log::log!(level, "transport {name} is not there: {error}");
        };
        let loaded = libraries(config)?;
        let loaded = loaded.iter().filter_map(|library| {
            let made = library.make(regions.clone());
            let made = made.inspect_err(|error| missing(library.name(), error));
            Some((made.ok()?, None, false))
        });
        let plugged = plugins
            .iter()
            .map(|plugin| ((plugin.make)(regions.clone()), plugin.faults.clone()));
        let all = [SHM, CUDA_IPC, VERBS, STAGED, TCP, CUDA, URING, PREAD].into_iter();
        // A driver may have been plugged in.
        let over_gpus = |name: &str| matches!(name, CUDA | CUDA_IPC | STAGED);
        let is_there = |name: &str| is_built_in(name) || over_gpus(name) && gpus.is_ok();
        let own = all.filter(|name| is_there(name) && is_wanted(name, config));
        let own = own.map(|name| (name, faults.clone().filter(|_| name == TCP)));
        let own = own.filter_map(|(name, faults)| {
            let workers = config.worker_count();
            let made = known::make(name, regions.clone(), files, workers, &config.verbs, gpus);
            let made = made.inspect_err(|error| missing(name, error));
            Some((made.ok()?, faults, matches!(name, CUDA | URING | PREAD)))
        });
        let (catalog, rows) = plugged
            .map(|(transport, faults)| (transport, faults, false))
            .chain(loaded)
            .chain(own)
            .map(|(transport, faults, own)| install(transport, faults, own))
            .unzip();
        Ok(Self {
            catalog: Arc::new(Catalog { rows: catalog }),
            rows,
        })
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

    /// Hands an inbound lane to the transport that it names; one that names none is of the last one.
    pub(crate) fn admit(&self, lane: InboundLane) {
        let serves = |row: &&Installed| {
            let names = |name: &String| row.transport.name() == name;
            !row.is_missing && !row.own && lane.transport.as_ref().is_none_or(names)
        };
        match self.rows.iter().rev().find(serves) {
            Some(row) => row.transport.admit(lane),
            None => log::warn!(
                "{:?} of a peer is of transport {:?}, which is not here",
                lane.lane,
                lane.transport
            ),
        }
    }

    /// Lets lanes of a session in.
    pub(crate) fn begin_session(&self, session: SessionId, domain: TrustDomain) {
        for row in &self.rows {
            row.transport.begin_session(session, domain);
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

    /// What peers are told, by an engine with these rails.
    pub(crate) fn offers(&self, rails: &[IpAddr]) -> Vec<TransportOffer> {
        let places = |row: &Row| {
            let transport = row.transport.upgrade();
            let places = transport.map(|transport| transport.places(rails));
            let places = places.filter(|places| places.len() <= TRANSPORT_ADDRESS_BYTES_MAX);
            places.unwrap_or_default()
        };
        let offer = |row: &Row| TransportOffer {
            name: row.name.into(),
            capabilities: row.offered().to_bits(),
            address: match row.address.is_empty() {
                true => places(row),
                false => row.address.clone(),
            },
        };
        let others = self.rows.iter().filter(|row| !row.own);
        others.map(offer).collect()
    }

    /// Those that move bytes of files of this host, the best first.
    pub(crate) fn of_files(&self) -> Vec<TransportId> {
        self.own_of(MemoryKind::File)
    }

    /// Those that copy to and from memory of this host's GPUs.
    pub(crate) fn of_gpus(&self) -> Vec<TransportId> {
        self.own_of(MemoryKind::Device)
    }

    fn own_of(&self, kind: MemoryKind) -> Vec<TransportId> {
        let here = |(_, row): &(usize, &Row)| row.own && row.offered().allows_remote(kind);
        let rows = self.rows.iter().enumerate().filter(here);
        rows.map(|(position, _)| TransportId(position as u8))
            .collect()
    }

    /// What of a peer's offers holds between it and this engine, which it has let into a session. Those that are
    /// reached at addresses of their own are tried out, which may take a moment.
    pub(crate) fn tried(
        &self,
        offers: &[TransportOffer],
        session: SessionId,
    ) -> Vec<TransportOffer> {
        let tried = |offer: &TransportOffer| {
            let row = self.rows.iter().find(|row| row.name == offer.name);
            let row = row.filter(|row| !row.address.is_empty() && !offer.address.is_empty());
            let Some(transport) = row.and_then(|row| row.transport.upgrade()) else {
                return offer.clone();
            };
            let reached = transport.reach(&offer.address, session);
            let reached = reached.inspect_err(|why| {
                log::debug!("{} does not reach the peer: {why}", offer.name);
            });
            let offered = Capabilities::from_bits(offer.capabilities);
            let holds = offered.intersected(reached.unwrap_or(Capabilities::NONE));
            TransportOffer {
                capabilities: holds.to_bits(),
                ..offer.clone()
            }
        };
        offers.iter().map(tried).collect()
    }

    /// Whether a rail's transport has a device where it starts.
    pub(crate) fn runs_at(&self, rail: &RailPair) -> bool {
        let transport = self.transport(rail.transport);
        transport.is_some_and(|transport| transport.runs_at(rail.local, rail.remote))
    }

    /// Whether a peer's transport can be reached at its rail in this position, by what the peer offers.
    pub(crate) fn serves(
        &self,
        transport: TransportId,
        theirs: &[TransportOffer],
        rail: usize,
    ) -> bool {
        let offer = theirs
            .iter()
            .find(|offer| offer.name == self.name(transport));
        let transport = self.transport(transport);
        transport
            .zip(offer)
            .is_none_or(|(transport, offer)| transport.serves(&offer.address, rail))
    }

    /// What is known of a rail before anything has moved on it.
    pub(crate) fn prior(&self, rail: &RailPair) -> Prior {
        let transport = self.transport(rail.transport);
        transport.map_or(Prior::default(), |transport| {
            transport.prior(rail.local, rail.remote)
        })
    }

    fn transport(&self, transport: TransportId) -> Option<Arc<dyn Transport>> {
        self.rows.get(transport.index())?.transport.upgrade()
    }

    /// Whether a transport has rails of its own, not those of the network: one to each peer.
    pub(crate) fn has_own_rail(&self, transport: TransportId) -> bool {
        let row = self.rows.get(transport.index());
        row.is_some_and(|row| !row.address.is_empty())
    }

    /// Whether a transport only goes on with what others have failed to do.
    pub(crate) fn stages(&self, transport: TransportId) -> bool {
        self.name(transport) == STAGED
    }

    /// Whether a transport's endpoints carry works out at once.
    pub(crate) fn carries_at_once(&self, transport: TransportId) -> bool {
        self.name(transport) == SHM
    }

    /// Those that join memory of the host's, or of its GPUs, with such memory of a peer, the best first.
    pub(crate) fn common(&self, theirs: &[TransportOffer]) -> Vec<TransportId> {
        let mut common = Vec::new();
        for remote in [
            MemoryKind::Host,
            MemoryKind::Shared,
            MemoryKind::DeviceShared,
        ] {
            common.extend(self.rank(theirs, MemoryKind::Host, remote));
        }
        common.extend(self.rank(theirs, MemoryKind::Device, MemoryKind::Host));
        common.sort_unstable();
        common.dedup();
        common
    }

    /// Those that join memory here with memory of a peer that offers `theirs`, the best first. What stages is there if
    /// one of the two is a GPU's, and only behind another one.
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
        let mut ranked: Vec<_> = rank(ours, &theirs, local, remote)
            .into_iter()
            .map(|position| TransportId(position as u8))
            .collect();
        let is_gpu = |kind| matches!(kind, MemoryKind::Device | MemoryKind::DeviceShared);
        if ranked.len() < 2 || !(is_gpu(local) || is_gpu(remote)) {
            ranked.retain(|transport| !self.stages(*transport));
        }
        ranked
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

/// Whether a configuration lets an engine have a transport. Those within one host have no rails that path isolation
/// could tell apart.
pub(crate) fn is_wanted(name: &str, config: &Config) -> bool {
    let said = config.transports.get(name);
    let by_itself =
        !matches!(name, SHM | CUDA_IPC | STAGED) || config.path.mode == IsolationMode::Off;
    said.map_or(by_itself, |transport| transport.enable)
}

/// Why an engine has to do without a transport on this machine, if so.
pub(crate) fn try_out(transport: &dyn Transport, faults: Option<&Faults>) -> Option<String> {
    if faults.is_some_and(Faults::fails_install) {
        return Some("its installation was made to fail".to_owned());
    }
    let endpoint = transport.endpoint(0, Clock::start());
    endpoint.err().map(|error| error.to_string())
}

fn install(
    transport: Arc<dyn Transport>,
    faults: Option<Arc<Faults>>,
    own: bool,
) -> (Row, Installed) {
    let missing = try_out(&*transport, faults.as_deref());
    let name = transport.name();
    if let Some(why) = &missing {
        // Most programs have no files that they would miss it for.
        let level = match own {
            true => log::Level::Debug,
            false => log::Level::Warn,
        };
        log::log!(level, "transport {name} is not there: {why}");
    }
    let installed = Installed {
        is_missing: missing.is_some(),
        own,
        faults,
        transport: transport.clone(),
    };
    let row = Row {
        name,
        capabilities: transport.capabilities(),
        address: transport.address(),
        transport: Arc::downgrade(&transport),
        missing,
        own,
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
