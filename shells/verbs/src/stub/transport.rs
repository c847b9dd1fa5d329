//! A transport over the devices of the stub.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use polyrail_core::transport::Capabilities;
use polyrail_core::units::{Epoch, LaneId};
use polyrail_transport::clock::Clock;
use polyrail_transport::memory::RegionTable;
use polyrail_transport::{
    Endpoint, FenceAnswer, InboundLane, Prior, RetireAnswer, SessionId, Transport,
};

use super::{NAMES, calls};
use crate::discover::Sysfs;
use crate::{Settings, VerbsTransport};

/// A folder in which the kernel would say that device `stubN` has the address 127.0.0.N+1.
pub(crate) fn machine() -> io::Result<(tempfile::TempDir, Sysfs)> {
    let root = tempfile::tempdir()?;
    for number in 0..NAMES.len() {
        appear(root.path(), number)?;
    }
    let sysfs = Sysfs::new(root.path());
    Ok((root, sysfs))
}

/// Has such a folder say so of one device more: of a port that is active, and has the name of its address.
pub fn appear(root: &Path, number: usize) -> io::Result<()> {
    let name = NAMES[number].to_string_lossy();
    // It comes all at once.
    let (new, infiniband) = (root.join("coming"), root.join("class/infiniband"));
    let port = new.join("ports/1");
    for folder in ["gids", "gid_attrs/types"] {
        fs::create_dir_all(port.join(folder))?;
    }
    let gid = format!("0000:0000:0000:0000:0000:ffff:7f00:000{}\n", number + 1);
    fs::write(port.join("state"), "4: ACTIVE\n")?;
    fs::write(port.join("gids/0"), gid)?;
    fs::write(port.join("gid_attrs/types/0"), "RoCE v2\n")?;
    fs::create_dir_all(&infiniband)?;
    fs::rename(new, infiniband.join(&*name))
}

/// A transport over the devices of this module.
pub struct StubTransport {
    transport: VerbsTransport,
    _root: Option<tempfile::TempDir>,
}

impl StubTransport {
    /// One that gives peers what `regions` names.
    pub fn new(regions: Arc<dyn RegionTable>) -> io::Result<Self> {
        Self::with(regions, Settings::default())
    }

    /// The same with other settings.
    pub fn with(regions: Arc<dyn RegionTable>, settings: Settings) -> io::Result<Self> {
        let (root, _) = machine()?;
        Ok(Self {
            transport: Self::at(root.path(), regions, settings)?.transport,
            _root: Some(root),
        })
    }

    /// The same over the devices that a folder names; see [`appear`].
    pub fn at(root: &Path, regions: Arc<dyn RegionTable>, settings: Settings) -> io::Result<Self> {
        let sysfs = Sysfs::new(root);
        Ok(Self {
            transport: VerbsTransport::over(&calls(), &sysfs, regions, settings)?,
            _root: None,
        })
    }
}

impl Transport for StubTransport {
    fn name(&self) -> &'static str {
        self.transport.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.transport.capabilities()
    }

    fn runs_at(&self, local: Option<IpAddr>, remote: SocketAddr) -> bool {
        self.transport.runs_at(local, remote)
    }

    fn has_devices(&self) -> bool {
        self.transport.has_devices()
    }

    fn look_for_devices(&self, again: bool) -> bool {
        self.transport.look_for_devices(again)
    }

    fn places(&self, rails: &[IpAddr]) -> Vec<u8> {
        self.transport.places(rails)
    }

    fn serves(&self, places: &[u8], rail: usize) -> bool {
        self.transport.serves(places, rail)
    }

    fn prior(&self, local: Option<IpAddr>, remote: SocketAddr) -> Prior {
        self.transport.prior(local, remote)
    }

    fn endpoint(&self, worker: u16, clock: Clock) -> io::Result<Box<dyn Endpoint>> {
        self.transport.endpoint(worker, clock)
    }

    fn admit(&self, lane: InboundLane) {
        self.transport.admit(lane);
    }

    fn fence_inbound(&self, session: SessionId, lane: LaneId, epoch: Epoch, answer: FenceAnswer) {
        self.transport.fence_inbound(session, lane, epoch, answer);
    }

    fn retire_session(&self, session: SessionId, answer: RetireAnswer) {
        self.transport.retire_session(session, answer);
    }
}
