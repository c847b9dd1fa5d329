//! The target's half: a [`Transport`] over the table of a library.

use std::ffi::{CStr, c_char, c_void};
use std::io;
use std::ptr::null_mut;
use std::sync::Arc;

use polyrail_core::transport::Capabilities;
use polyrail_core::units::{Epoch, LaneId};
use polyrail_transport::clock::Clock;
use polyrail_transport::complain;
use polyrail_transport::memory::{RegionTable, TrustDomain};
use polyrail_transport::ticket::SessionSecret;
use polyrail_transport::{Endpoint, FenceAnswer, InboundLane, RetireAnswer, SessionId, Transport};

use crate::abi::*;
use crate::endpoint::LoadedEndpoint;
use crate::host::Host;
use crate::library::Library;

/// Why a library moves nothing where engines have a cluster key.
const NO_TICKETS: &str = "the engines have a cluster key, and lanes of this library do not prove themselves (its table's tickets)";

/// Bytes for a reason of the library's.
const WHY_BYTES: usize = 256;

/// What a library made, until the last of its users has gone.
pub(crate) struct Instance {
    pub(crate) library: Library,
    pub(crate) at: *mut c_void,
    /// What the library calls.
    _host: Arc<Host>,
    _table: Box<polyrail_transport_host>,
}

// SAFETY: the library's functions for it can be called by any thread.
unsafe impl Send for Instance {}
// SAFETY: as above.
unsafe impl Sync for Instance {}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(destroy) = self.library.table.destroy {
            // SAFETY: it was made by the same library, and its endpoints, which have a share of this, are gone.
            unsafe { destroy(self.at) };
        }
    }
}

/// A transport of a library's.
pub(crate) struct Loaded {
    instance: Arc<Instance>,
    host: Arc<Host>,
}

/// Calls a function that may say why it does not want to.
pub(crate) fn explained(call: impl FnOnce(*mut c_char, usize) -> i32) -> Result<(), String> {
    let mut why: [c_char; WHY_BYTES] = [0; WHY_BYTES];
    let code = call(why.as_mut_ptr(), WHY_BYTES);
    // Whatever the library did: it ends.
    why[WHY_BYTES - 1] = 0;
    if code == 0 {
        return Ok(());
    }
    // SAFETY: it has a zero at its end.
    let why = unsafe { CStr::from_ptr(why.as_ptr()) }.to_string_lossy();
    match why.is_empty() {
        true => Err(format!("code {code}")),
        false => Err(why.into_owned()),
    }
}

/// A function that the library was found to have.
macro_rules! function {
    ($library:expr, $name:ident) => {
        $library
            .table
            .$name
            .unwrap_or_else(|| unreachable!("looked at when it was loaded"))
    };
}
pub(crate) use function;

/// The bits that mean something here. Files are not moved by libraries.
const CAPABILITIES: u32 = POLYRAIL_TRANSPORT_LOCAL_HOST
    | POLYRAIL_TRANSPORT_LOCAL_DEVICE
    | POLYRAIL_TRANSPORT_LOCAL_SHARED
    | POLYRAIL_TRANSPORT_REMOTE_HOST
    | POLYRAIL_TRANSPORT_REMOTE_DEVICE
    | POLYRAIL_TRANSPORT_REMOTE_SHARED;

fn capabilities(bits: u32) -> Capabilities {
    Capabilities::from_bits((bits & CAPABILITIES) as u16)
}

impl Loaded {
    pub(crate) fn new(library: Library, regions: Arc<dyn RegionTable>) -> io::Result<Self> {
        let host = Arc::new(Host::new(library.name(), regions));
        let table = Box::new(host.table());
        let mut at = null_mut();
        let create = function!(library, create);
        // SAFETY: the table stays where it is as long as the instance.
        let created = explained(|why, bytes| unsafe { create(&*table, &mut at, why, bytes) });
        created.map_err(io::Error::other)?;
        let instance = Instance {
            library,
            at,
            _host: host.clone(),
            _table: table,
        };
        Ok(Self {
            instance: Arc::new(instance),
            host,
        })
    }

    /// Whether its lanes prove themselves.
    fn has_tickets(&self) -> bool {
        self.instance.library.table.tickets == 1
    }
}

impl Transport for Loaded {
    fn name(&self) -> &'static str {
        self.instance.library.name()
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(self.instance.library.table.capabilities)
    }

    fn address(&self) -> Vec<u8> {
        let mut address = [0; POLYRAIL_TRANSPORT_ADDRESS_BYTES];
        let ask = function!(self.instance.library, address);
        // SAFETY: there is room for the longest one.
        let length = unsafe { ask(self.instance.at, address.as_mut_ptr()) };
        match address.get(..length) {
            Some(address) if !address.is_empty() => address.to_vec(),
            _ => {
                complain!(
                    "transport {} says an address of {length} bytes: 1 to {POLYRAIL_TRANSPORT_ADDRESS_BYTES} are \
                     possible",
                    self.name()
                );
                // Nobody is there.
                vec![0]
            }
        }
    }

    fn reach(
        &self,
        address: &[u8],
        session: SessionId,
        secret: Option<&SessionSecret>,
    ) -> Result<Capabilities, String> {
        if secret.is_some() && !self.has_tickets() {
            return Err(NO_TICKETS.to_owned());
        }
        let Some(reach) = self.instance.library.table.reach else {
            return Ok(self.capabilities());
        };
        let mut reached = 0;
        let ask = |why, bytes| {
            let (from, length, session) = (address.as_ptr(), address.len(), session.0.as_ptr());
            // SAFETY: everything is as long as it is told.
            unsafe {
                reach(
                    self.instance.at,
                    from,
                    length,
                    session,
                    &mut reached,
                    why,
                    bytes,
                )
            }
        };
        let host = &self.host;
        host.while_asking(session, secret, || explained(ask))?;
        Ok(capabilities(reached))
    }

    /// Libraries know no trust domains: only sessions of the common one begin, and reach what is of it.
    fn begin_session(
        &self,
        session: SessionId,
        domain: TrustDomain,
        secret: Option<SessionSecret>,
    ) {
        if domain.whole() != TrustDomain::COMMON {
            return;
        }
        if secret.is_some() && !self.has_tickets() {
            return complain!("transport {} lets nobody in: {NO_TICKETS}", self.name());
        }
        // First: from then on lanes come.
        self.host.begin_inbound(session, secret);
        let begin = function!(self.instance.library, begin_session);
        // SAFETY: a session has as many bytes.
        unsafe { begin(self.instance.at, session.0.as_ptr()) };
    }

    fn endpoint(&self, worker: u16, clock: Clock) -> io::Result<Box<dyn Endpoint>> {
        let endpoint =
            LoadedEndpoint::new(self.instance.clone(), self.host.clone(), worker, clock)?;
        Ok(Box::new(endpoint))
    }

    /// Lanes of the control port are connections of the engine's own protocol.
    fn admit(&self, lane: InboundLane) {
        log::debug!("transport {} takes no {:?}", self.name(), lane.lane);
    }

    fn fence_inbound(&self, session: SessionId, lane: LaneId, epoch: Epoch, answer: FenceAnswer) {
        let question = self.host.ask(answer);
        let fence = function!(self.instance.library, fence_inbound);
        // SAFETY: a session has as many bytes.
        unsafe {
            fence(
                self.instance.at,
                session.0.as_ptr(),
                lane.0,
                epoch.0,
                question,
            );
        }
    }

    fn retire_session(&self, session: SessionId, answer: RetireAnswer) {
        let host = self.host.clone();
        let over = move |_| {
            host.end_inbound(session);
            answer();
        };
        let question = self.host.ask(Box::new(over));
        let retire = function!(self.instance.library, retire_session);
        // SAFETY: a session has as many bytes.
        unsafe { retire(self.instance.at, session.0.as_ptr(), question) };
    }
}
