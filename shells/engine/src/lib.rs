//! SKELETON: signatures only; bodies are being written on another branch. Do not edit here.
#![allow(missing_docs, unused_variables)]
use std::net::{IpAddr, SocketAddr};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

pub use polyrail_core::work::{Cause, Op};
pub use polyrail_transport::fault::Faults;
pub use polyrail_transport::memory::{Access, Region};

/// Which policy chooses rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Policy {
    #[default]
    Spray,
    RoundRobin,
}
/// Which local rail address is paired with which remote one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RailMap {
    /// the i-th with the i-th; lists of different length are an error
    #[default]
    Paired,
    /// every local with every remote
    All,
}

#[derive(Clone, Debug)]
pub struct Config {
    pub name: String,
    /// None: does not listen (pure initiator). Port 0: the kernel chooses one for all rails.
    pub listen: Option<SocketAddr>,
    /// Local rail addresses. Target: also listens there, same port. Initiator: binds lanes there.
    /// Empty: one rail per remote address; the kernel chooses the local address.
    pub rails: Vec<IpAddr>,
    pub rail_map: RailMap,
    pub policy: Policy,
    /// 0: max(1, cores/2)
    pub workers: usize,
    /// Allow listening beyond loopback without cluster key.
    pub insecure: bool,
}
impl Default for Config {
    fn default() -> Self {
        unimplemented!()
    }
}

/// What a program can plug in.
#[derive(Default, Clone)]
pub struct Hooks {
    /// Faults to inject into every transport's endpoints, rail by rail (rail index = order in Engine::rails()).
    pub faults: Option<Arc<Faults>>,
    /// Carries out peers' calls.
    pub calls: Option<Arc<dyn Calls>>,
}
/// A program's own requests to a peer's program (used by bench to poison, fill, check the target's memory).
pub trait Calls: Send + Sync {
    fn call(&self, engine: &Engine, method: u16, body: &[u8]) -> Result<Vec<u8>, String>;
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SegmentId(u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub op: Op,
    pub local: SegmentId,
    pub local_offset: u64,
    pub remote: SegmentId,
    pub remote_offset: u64,
    pub length: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    Pending,
    Completed,
    Failed,
    Cancelled,
    DeadlineExceeded,
    PeerLost,
    Indeterminate,
    ShutDown,
}
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Local {
    Released,
    Held,
}
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remote {
    Settled,
    Unknown,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    pub status: Status,
    pub delivered_bytes: u64,
    pub cause: Option<Cause>,
    pub local: Local,
    pub remote: Remote,
}

/// A batch at a glance, O(1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchStatus {
    /// Pending until all requests have ended; then Completed if all did, else the status of the first that did not
    pub status: Status,
    pub requests: u32,
    pub ended: u32,
    pub failed: u32,
    pub delivered_bytes: u64,
}

#[derive(Debug)]
pub struct WaitTimeout;

/// Handle of submitted requests. Clone-able, dropping it detaches.
#[derive(Clone)]
pub struct Batch(());
impl Batch {
    pub fn status(&self) -> BatchStatus {
        unimplemented!()
    }
    pub fn wait(&self, timeout: Duration) -> Result<BatchStatus, WaitTimeout> {
        unimplemented!()
    }
    pub fn cancel(&self) {
        unimplemented!()
    }
    /// Report of the i-th request; status Pending while it lasts. None: no such request
    pub fn report(&self, index: usize) -> Option<Report> {
        unimplemented!()
    }
}

macro_rules! error { ($($n:ident),*) => {$(
#[derive(Debug)] pub struct $n;
impl std::fmt::Display for $n { fn fmt(&self, f:&mut std::fmt::Formatter<'_>)->std::fmt::Result { Ok(()) } }
impl std::error::Error for $n {}
)*}}
// In reality enums with Display texts that name place, value and what would be right.
error!(RegisterError, CallError);
/// Engine::new failed. `is_usage()`: a config mistake (exit 2); otherwise the environment (exit 3)
#[derive(Debug)]
pub struct EngineError;
impl EngineError {
    pub fn is_usage(&self) -> bool {
        unimplemented!()
    }
}
impl std::fmt::Display for EngineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Ok(())
    }
}
/// open_segment failed. `is_usage()` as above.
#[derive(Debug)]
pub struct OpenError;
impl OpenError {
    pub fn is_usage(&self) -> bool {
        unimplemented!()
    }
}
impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Ok(())
    }
}
/// Why submit took nothing.
#[derive(Debug)]
#[non_exhaustive]
pub enum SubmitError {
    /// back-pressure: retry when a batch has ended
    Full,
    Other,
}
impl std::fmt::Display for SubmitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RailState {
    Healthy,
    Paused,
    Probing,
}
#[derive(Clone, Debug)]
pub struct RailStatus {
    /// `tcp:LOCAL>REMOTE`
    pub name: String,
    pub state: RailState,
    /// acknowledged bytes since the engine started, both directions
    pub bytes: u64,
}

/// Clone-able handle; the last one dropped shuts the engine down.
#[derive(Clone)]
pub struct Engine(());
impl Engine {
    pub fn new(config: Config) -> Result<Self, EngineError> {
        unimplemented!()
    }
    pub fn with_hooks(config: Config, hooks: Hooks) -> Result<Self, EngineError> {
        unimplemented!()
    }
    /// Where it listens.
    pub fn listening(&self) -> Option<SocketAddr> {
        unimplemented!()
    }
    pub fn allocate(
        &self,
        name: &str,
        bytes: u64,
        access: Access,
    ) -> Result<SegmentId, RegisterError> {
        unimplemented!()
    }
    /// # Safety
    /// range stays mapped until unregister returned
    pub unsafe fn register(
        &self,
        name: &str,
        base: NonNull<u8>,
        bytes: u64,
        access: Access,
    ) -> Result<SegmentId, RegisterError> {
        unimplemented!()
    }
    pub fn unregister(&self, segment: SegmentId) -> Result<(), RegisterError> {
        unimplemented!()
    }
    /// The memory of a local segment.
    pub fn region(&self, segment: SegmentId) -> Option<Arc<Region>> {
        unimplemented!()
    }
    /// local segment by name
    pub fn local_segment(&self, name: &str) -> Option<SegmentId> {
        unimplemented!()
    }
    /// "host:port/name"
    pub fn open_segment(&self, address: &str) -> Result<SegmentId, OpenError> {
        unimplemented!()
    }
    pub fn segment_bytes(&self, segment: SegmentId) -> Option<u64> {
        unimplemented!()
    }
    pub fn submit(&self, requests: &[Request]) -> Result<Batch, SubmitError> {
        unimplemented!()
    }
    /// Asks the program of the peer that owns `remote`.
    pub fn call(
        &self,
        remote: SegmentId,
        method: u16,
        body: &[u8],
        timeout: Duration,
    ) -> Result<Vec<u8>, CallError> {
        unimplemented!()
    }
    /// All rails, in the order in which they were made (paired: order of Config::rails).
    pub fn rails(&self) -> Vec<RailStatus> {
        unimplemented!()
    }
    /// Ends everything within a bound; further submits fail.
    pub fn shutdown(&self) {
        unimplemented!()
    }
}
