//! The transports of an engine, in its order of preference, and what became of each when it was installed.

mod catalog;
mod last;
mod libraries;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::*};

use polyrail_core::units::{Epoch, LaneId};
use polyrail_cuda::{CudaError, Gpus};
use polyrail_transport::clock::Clock;
use polyrail_transport::fault::{FaultProxy, Faults};
use polyrail_transport::memory::{RegionTable, TrustDomain};
use polyrail_transport::ticket::SessionSecret;
use polyrail_transport::{Endpoint, FenceAnswer, InboundLane, RetireAnswer, SessionId, Transport};
use polyrail_uring::FileTable;

use crate::config::{Config, IsolationMode, Payload};
use crate::endpoints::Joined;
use crate::error::EngineError;
use crate::known::{self, CUDA, CUDA_IPC, PREAD, SHM, STAGED, TCP, URING, VERBS, is_built_in};

pub(crate) use catalog::Catalog;
pub use catalog::TransportStatus;

use catalog::Row;
use last::Last;
use libraries::libraries;

/// A transport beside those that the engine has, preferred to them.
#[derive(Clone)]
pub struct Plugin {
    /// Makes it, over the memory that peers may touch.
    pub make: fn(Arc<dyn RegionTable>) -> Arc<dyn Transport>,
    /// Faults to inject into it.
    pub faults: Option<Arc<Faults>>,
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
                // Most machines have no such hardware. Who has asked for it by name is warned.
                VERBS | CUDA if !config.transports.contains_key(name) => log::Level::Info,
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
        let encrypts = config.security.payload == Payload::Encrypt;
        let all = [SHM, CUDA_IPC, VERBS, STAGED, TCP, CUDA, URING, PREAD].into_iter();
        // A driver may have been plugged in.
        let over_gpus = |name: &str| matches!(name, CUDA | CUDA_IPC | STAGED);
        let is_there = |name: &str| is_built_in(name) || over_gpus(name) && gpus.is_ok();
        let own = all.filter(|name| is_there(name) && is_wanted(name, config));
        let own = own.map(|name| (name, faults.clone().filter(|_| name == TCP)));
        let own = own.filter_map(|(name, faults)| {
            let copiers = config.copier_count();
            let made = known::make(name, regions.clone(), files, copiers, &config.verbs, gpus);
            let made = made.inspect_err(|error| missing(name, error));
            Some((made.ok()?, faults, matches!(name, CUDA | URING | PREAD)))
        });
        let (catalog, rows) = plugged
            .map(|(transport, faults)| (transport, faults, false))
            .chain(loaded)
            .chain(own)
            .map(|(transport, faults, own)| install(transport, faults, own, encrypts))
            .unzip::<_, _, Vec<_>, Vec<Installed>>();
        let tcp = rows.iter().find(|row| row.transport.name() == TCP);
        if encrypts && let Some(Err(source)) = tcp.map(|row| row.transport.can_encrypt()) {
            let what = "encrypt bytes of requests (security/payload)";
            return Err(EngineError::System { what, source });
        }
        Ok(Self {
            catalog: Arc::new(Catalog::new(catalog)),
            rows,
        })
    }

    /// The endpoint of one worker, over all transports.
    pub(crate) fn endpoint(&self, worker: u16, clock: Clock) -> io::Result<Box<dyn Endpoint>> {
        let endpoint = |row: &Installed| row.endpoint(worker, clock);
        let rows = self.rows.iter().map(endpoint);
        let rows = rows.collect::<io::Result<Vec<_>>>()?;
        Ok(Box::new(Joined::new(rows)?))
    }

    /// Hands an inbound lane to the transport that it names; one that names none is of plain TCP.
    pub(crate) fn admit(&self, lane: InboundLane) {
        let name = lane.transport.as_deref().unwrap_or(TCP);
        let serves = |row: &&Installed| !row.is_missing && !row.own && row.transport.name() == name;
        match self.rows.iter().find(serves) {
            Some(row) => match lane.keys.as_ref().map(|_| row.transport.can_encrypt()) {
                Some(Err(why)) => polyrail_transport::complain!(
                    "{:?} of a peer, which is to be encrypted, is of transport {name}: {why}",
                    lane.lane,
                ),
                Some(Ok(())) | None => row.transport.admit(lane),
            },
            None => polyrail_transport::complain!(
                "{:?} of a peer is of transport {name}, which is not here",
                lane.lane,
            ),
        }
    }

    /// Lets lanes of a session in.
    pub(crate) fn begin_session(
        &self,
        session: SessionId,
        domain: TrustDomain,
        secret: Option<SessionSecret>,
    ) {
        let encrypts = secret.as_ref().is_some_and(SessionSecret::encrypts);
        // No lane of it is let in where its bytes would go in clear, whatever a peer asks for.
        let serves = |row: &&Installed| {
            let is_exposed = || encrypts && catalog::why_exposed(&*row.transport).is_some();
            !row.is_missing && !is_exposed()
        };
        for row in self.rows.iter().filter(serves) {
            let secret = secret
                .clone()
                .map(|secret| catalog::suited(secret, &*row.transport));
            row.transport.begin_session(session, domain, secret);
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

/// Whether a configuration lets an engine have a transport. Those within one host have no rails that path isolation
/// could tell apart.
pub(crate) fn is_wanted(name: &str, config: &Config) -> bool {
    let said = config.said_of(name);
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
    encrypts: bool,
) -> (Row, Installed) {
    let exposed = encrypts.then(|| catalog::why_exposed(&*transport));
    let missing = match exposed.flatten() {
        Some(why) => Some(format!("security/payload is encrypt: {why}")),
        None => try_out(&*transport, faults.as_deref()),
    };
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use polyrail_control::codec::TransportOffer;
    use polyrail_core::transport::Capabilities;
    use polyrail_tcp::TcpTransport;

    use super::*;
    use crate::segments::Segments;

    /// A transport that says whether a wire carries its bytes, and whether it can encrypt them.
    struct Said {
        name: &'static str,
        within_host: bool,
        encrypts: bool,
        inner: TcpTransport,
        begun: Mutex<Vec<SessionId>>,
    }

    impl Said {
        fn new(name: &'static str, within_host: bool, encrypts: bool) -> Arc<Self> {
            Arc::new(Self {
                name,
                within_host,
                encrypts,
                inner: TcpTransport::named(name, Arc::new(Segments::new(1))),
                begun: Mutex::default(),
            })
        }
    }

    impl Transport for Said {
        fn name(&self) -> &'static str {
            self.name
        }

        fn capabilities(&self) -> Capabilities {
            self.inner.capabilities()
        }

        fn is_within_host(&self) -> bool {
            self.within_host
        }

        fn can_encrypt(&self) -> io::Result<()> {
            match self.encrypts {
                true => Ok(()),
                false => Err(io::ErrorKind::Unsupported.into()),
            }
        }

        fn begin_session(&self, session: SessionId, _: TrustDomain, _: Option<SessionSecret>) {
            self.begun.lock().unwrap().push(session);
        }

        fn endpoint(&self, worker: u16, clock: Clock) -> io::Result<Box<dyn Endpoint>> {
            self.inner.endpoint(worker, clock)
        }

        fn admit(&self, _: InboundLane) {}

        fn fence_inbound(&self, _: SessionId, _: LaneId, _: Epoch, _: FenceAnswer) {}

        fn retire_session(&self, _: SessionId, _: RetireAnswer) {}
    }

    #[test]
    fn bytes_that_are_to_be_encrypted_go_by_no_transport_that_cannot() {
        let all = [
            Said::new("wire", false, false),
            Said::new("encrypts", false, true),
            Said::new("within", true, false),
        ];
        let installed = all
            .iter()
            .map(|said| install(said.clone(), None, false, false));
        let (rows, installed): (Vec<_>, Vec<_>) = installed.unzip();
        let transports = Transports {
            catalog: Arc::new(Catalog::new(rows)),
            rows: installed,
        };
        let [clear, encrypted] = [1, 2].map(|number| SessionId([number; 16]));
        let secret = |session| SessionSecret::new(&[7; 32], session, 1, 2, Arc::default()).unwrap();
        let begin = |session, secret| {
            transports.begin_session(session, TrustDomain::COMMON, Some(secret));
        };
        begin(clear, secret(clear));
        begin(encrypted, secret(encrypted).encrypting());
        // Its lanes are let in, and what a peer offers is used, by the others only.
        for (said, serves) in all.iter().zip([false, true, true]) {
            let both = [clear, encrypted];
            let begun = if serves { &both[..] } else { &both[..1] };
            assert_eq!(*said.begun.lock().unwrap(), begun, "{}", said.name);
            let offer = TransportOffer {
                name: said.name.into(),
                capabilities: said.capabilities().to_bits(),
                address: Vec::new(),
            };
            let left = transports.catalog.unencrypted(&offer);
            let left = left.map(|offer| offer.capabilities);
            assert_eq!(left, (!serves).then_some(0), "{}", said.name);
        }
    }
}
