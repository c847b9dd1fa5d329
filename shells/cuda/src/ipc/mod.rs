//! Memory of GPUs between processes of one host: transport `cuda-ipc`.
//!
//! A target listens under an abstract name, told in the session's welcome. A lane is a socket of packets to it: over it
//! the initiator asks what opens a region, opens it with CUDA's driver, and copies by itself, as `endpoint` does. So works
//! end, and fences hold, by events of the initiator's streams.
//!
//! The target takes memory back by asking each lane that has it open to leave it, and is told when the last copy is over
//! and the memory closed. A peer that hangs up without a word has left when the kernel says that its process has ended,
//! which is after its devices have stopped: a closed socket proves nothing. Nor does the end of a process whose copies a server
//! carries out (MPS), as it says before it makes any.
//!
//! What completes counts if the target's socket was still open behind the last copy: so nothing is reported into memory
//! of a process that was killed.
//!
//! A device here also copies to and from memory of the host's that the target has in a file of memory: it is mapped here, and
//! pinned for devices by a thread of its own. Until that is done, or where it cannot be, such copies pass through slots.
//!
//! A probe's scratch is in the host's memory at both ends, and nothing is moved then; that the target says so is the probe's
//! answer. So where a driver has refused to open something, a lane on that rail counts as open only once that opens: else a probe would
//! say that all is well.
//!
//! **Invariant:** a fence is answered by the target only when nothing is open to that lane any more.

mod far;
mod process;
mod server;
mod wire;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use polyrail_core::transport::{Capabilities, MemoryKind};
use polyrail_core::units::{Epoch, LaneId};
use polyrail_transport::acceptor::{self, Acceptor};
use polyrail_transport::clock::Clock;
use polyrail_transport::complain;
use polyrail_transport::memory::{RegionTable, TrustDomain};
use polyrail_transport::packets;
use polyrail_transport::service::ServiceThread;
use polyrail_transport::ticket::SessionSecret;
use polyrail_transport::{Endpoint, FenceAnswer, InboundLane, RetireAnswer, SessionId, Transport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::far::{Imports, Theirs};
use self::server::{Command, Common, Service, Session};
use self::wire::Answer;
use crate::endpoint::CudaEndpoint;
use crate::gpus::Gpus;

pub(crate) use far::Use;

/// What the transport is called.
pub const NAME: &str = "cuda-ipc";

/// Lanes that one session may have at a target, over its whole life.
const LANES_PER_SESSION_MAX: usize = 4096;

/// Connections, of all peers.
const CONNECTIONS_MAX: usize = 4096;

/// How long a target on the same host may take to answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// Copies to and from device memory of other processes of this host. Dropping it asks peers to leave what they have
/// open, and waits for the service thread.
pub struct CudaIpcTransport {
    common: Arc<Common>,
    imports: Arc<Imports>,
    /// What it is reached by.
    name: Vec<u8>,
    listener: Arc<OwnedFd>,
    /// The threads, once a peer could come.
    service: Mutex<Option<Services>>,
}

/// The threads of a target.
struct Services {
    /// Before the other: it hands that connections.
    _acceptor: Acceptor,
    serves: ServiceThread<Command>,
}

impl CudaIpcTransport {
    /// Over these GPUs and this memory.
    pub fn new(gpus: Arc<Gpus>, regions: Arc<dyn RegionTable>) -> io::Result<Self> {
        // Nobody can guess it.
        let number = polyrail_transport::memory::RegionKey::random()?;
        let name = format!("polyrail-cuda-{:032x}", u128::from_ne_bytes(number.0)).into_bytes();
        let listener = Arc::new(packets::listen_at(&name)?);
        Ok(Self {
            common: Arc::new(Common::new(gpus, regions)),
            imports: Arc::default(),
            name,
            listener,
            service: Mutex::new(None),
        })
    }

    /// The threads, started if need be. Without both nobody is let in.
    fn service(&self) -> MutexGuard<'_, Option<Services>> {
        let mut service = self.service.lock().unwrap_or_else(PoisonError::into_inner);
        if service.is_none() {
            match self.start() {
                Ok(started) => *service = Some(started),
                Err(error) => complain!("cuda-ipc: cannot start the service thread: {error}"),
            }
        }
        service
    }

    fn start(&self) -> io::Result<Services> {
        let common = self.common.clone();
        let make = |wake, commands| Service::new(common, wake, commands);
        let serves = ServiceThread::start(NAME, make)?;
        let caller = serves.caller();
        let hand = move |newcomer| caller.tell(Command::Accepted(newcomer));
        let _acceptor = acceptor::start("cuda-accept", NAME, self.listener.clone(), hand)?;
        Ok(Services { _acceptor, serves })
    }

    /// Hands a command to the service thread. If there is none, it is dropped with its answer: nothing was proved. Only a
    /// session that is to end has ended then: nothing was ever served.
    fn tell(&self, command: Command) {
        let service = self.service();
        match &*service {
            Some(service) => service.serves.tell(command),
            None => {
                drop(service);
                if let Command::Retire(_, answer) = command {
                    answer();
                }
            }
        }
    }
}

impl fmt::Debug for CudaIpcTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CudaIpcTransport")
    }
}

impl Transport for CudaIpcTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn is_within_host(&self) -> bool {
        true
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::NONE
            .with_local(MemoryKind::Host)
            .with_local(MemoryKind::Shared)
            .with_local(MemoryKind::Device)
            .with_remote(MemoryKind::DeviceShared)
            .with_remote(MemoryKind::Shared)
            .for_devices()
    }

    fn address(&self) -> Vec<u8> {
        self.name.clone()
    }

    fn reach(
        &self,
        address: &[u8],
        session: SessionId,
        secret: Option<&SessionSecret>,
    ) -> Result<Capabilities, String> {
        let asked = ask(address, session, secret).map_err(|error| error.to_string());
        asked.map(|()| self.capabilities())
    }

    fn begin_session(
        &self,
        session: SessionId,
        domain: TrustDomain,
        secret: Option<SessionSecret>,
    ) {
        let known = Session { domain, secret };
        self.common.sessions().insert(session, known);
        drop(self.service());
    }

    fn endpoint(&self, _: u16, clock: Clock) -> io::Result<Box<dyn Endpoint>> {
        let gpus = self.common.gpus.clone();
        let far = Theirs::new(gpus.clone(), self.imports.clone())?;
        Ok(Box::new(CudaEndpoint::new(gpus, Box::new(far), clock)?))
    }

    /// Its lanes come over sockets of its own.
    fn admit(&self, lane: InboundLane) {
        complain!("cuda-ipc: {:?} came over the network; dropped", lane.lane);
    }

    fn fence_inbound(&self, session: SessionId, lane: LaneId, epoch: Epoch, answer: FenceAnswer) {
        self.tell(Command::Fence(session, lane, epoch, answer));
    }

    fn retire_session(&self, session: SessionId, answer: RetireAnswer) {
        self.common.sessions().remove(&session);
        self.tell(Command::Retire(session, answer));
    }
}

/// Asks a target whether it lets this process in.
fn ask(name: &[u8], session: SessionId, secret: Option<&SessionSecret>) -> io::Result<()> {
    let (socket, mut asking) = far::greet(name, session, secret, None)?;
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = wire::receive(&socket)? {
            match asking.hear(&socket, answer)? {
                Some(Answer::Ready) => return Ok(()),
                Some(_) => return Err(io::Error::other("refused")),
                None => continue,
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = Timespec::try_from(left).ok();
        let mut ready = [PollFd::new(&socket, PollFlags::IN)];
        let _ = poll(&mut ready, left.as_ref());
    }
}

#[cfg(test)]
mod tests;
