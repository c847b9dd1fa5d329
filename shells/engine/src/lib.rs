//! polyrail: moves bytes between the memories of machines that are joined by many unequal links.
//!
//! A program says *what* to move: these bytes of this segment, to there. The engine decides *how*: it cuts
//! each request into slices, sprays them over every healthy rail by measured speed, routes around rails
//! that fail, and reports a request only when no byte of it can move any more, or says that it cannot know.
//!
//! ```
//! use std::time::Duration;
//! use polyrail::{Access, Config, Engine, Op, Request, Status};
//!
//! let target = Engine::new(Config { listen: Some("127.0.0.1:0".parse()?), ..Config::named("target") })?;
//! target.allocate("mem", 1 << 20, Access::RemoteReadWrite)?;
//!
//! let engine = Engine::new(Config::named("initiator"))?;
//! let local = engine.allocate("here", 1 << 20, Access::Local)?;
//! let remote = engine.open_segment(&format!("{}/mem", target.listening().unwrap()))?;
//! let batch = engine.submit(&[Request {
//!     op: Op::Write, local, local_offset: 0, remote, remote_offset: 4096, length: 65_536,
//! }])?;
//! assert_eq!(batch.wait(Duration::from_secs(5))?.status, Status::Completed);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Two hosts
//!
//! The target says where it listens, by an address that the other host can reach. Beyond loopback it needs encrypted lanes
//! ([`SecurityConfig`]), or [`Config::insecure`], on a network where nobody but members is on the way: without a cluster's key
//! anyone who reaches the port may read and write what is offered. The initiator opens `HOST:PORT/NAME`; no service keeps a
//! list of engines, so the program brings that address there. If the hosts share several networks, both name their own
//! addresses in [`Config::rails`]:
//!
//! ```
//! use polyrail::{Config, Engine};
//!
//! fn target() -> Result<Engine, Box<dyn std::error::Error>> {
//!     let rails = vec!["10.1.0.1".parse()?, "10.2.0.1".parse()?];
//!     let listen = Some("10.1.0.1:7000".parse()?);
//!     Ok(Engine::new(Config { listen, rails, insecure: true, ..Config::named("target") })?)
//! }
//! ```
//!
//! # Words
//!
//! | word | what it is |
//! |---|---|
//! | segment | memory, a file, or memory of a GPU, with a name: [`SegmentId`] |
//! | request, batch | one read or write between two segments; those that are submitted together: [`Request`], [`Batch`] |
//! | rail | one local address and one remote address, over one transport: [`RailStatus`] |
//! | slice | the piece of a request that goes over one rail at a time |
//! | peer, target, initiator | the engine at the other end; one that offers segments; one that submits |
//!
//! # Where to begin
//!
//! | to | use | example |
//! |---|---|---|
//! | configure and start an engine | [`Config`], [`Sources`], [`Engine::new`] | [guide](guide#configuration) |
//! | offer memory, or use it | [`Engine::allocate`], [`Engine::register`], [`Region`] | [guide](guide#memory) |
//! | find memory of a peer | [`Engine::open_segment`] | [guide](guide#segments-of-peers) |
//! | live through a peer's restart | [`Engine::open_segment_with`], [`Engine::peer_events`] | [guide](guide#peers-that-come-and-go) |
//! | wait in tasks | [`Engine::room`], [`Engine::open_segment_async`], [`Batch::released`] | [guide](guide#tasks) |
//! | move bytes | [`Engine::submit`], [`Engine::submit_with`], [`Engine::submit_paged`] | [guide](guide#batches) |
//! | wait | [`Batch::wait`], `batch.await`, [`Batch::on_done`], [`CompletionQueue`] | [guide](guide#ends-of-batches) |
//! | move the same again | [`Engine::prepare_transfer`] | [guide](guide#the-same-transfer-again-and-again) |
//! | tell the peer's program | [`Terms`], [`Engine::notify`], [`Engine::call`] | [guide](guide#telling-the-peers-program) |
//! | use files, GPUs | [`Engine::open_file`], [`Engine::allocate_on_gpu`] | [guide](guide#files) |
//! | keep strangers out | [`keygen`], [`SecurityConfig`], [`Engine::domain`] | [guide](guide#trust) |
//! | see what happens | [`Engine::stats`], [`Engine::expose`], [`Engine::explain`] | [guide](guide#looking-at-an-engine) |
//! | stop | [`Batch::cancel`], [`Engine::drain`], [`Engine::shutdown`] | [guide](guide#changing-and-ending) |
//!
//! # What goes wrong, and how it is said
//!
//! - A call that is refused returns an error at once, and nothing of it has begun. The error names the request, the value
//!   and the limit.
//! - A wait that runs out is no end: the batch goes on until it ends or is [cancelled](Batch::cancel).
//! - A batch ends with a [`Status`]. [`Status::Indeterminate`] says that bytes may still arrive, and
//!   [`Report::local`] whether memory here may be used. [`Batch::first_failure`] gives the [`Cause`], and [`advice`] what to
//!   do about it.
//! - A peer that ends: its requests end as [`Status::PeerLost`], or [`Status::Indeterminate`] where nothing proves the end.
//!   Its segments have to be opened again, unless they [stand](OpenTerms::standing).
//! - A peer that falls silent: requests that need it end 2 s after its last sign of life, by the defaults. When it is heard
//!   again, its segments are as they were.
//!
//! # Threads
//!
//! [`Engine`], [`Batch`] and the rest are `Send` and `Sync`; a clone is a handle of the same thing. One engine serves a
//! whole program. It has threads of its own and needs no runtime. [`Batch::wait`] does the worker's work on the thread
//! that waits. A callback runs on a thread of the engine, is short, and waits for no batch. In a forked child all
//! handles answer `Forked`.
//!
//! # What it logs
//!
//! Peers that come and go, rails that change and what limits it go to the crate `log`: the program brings a logger, such as
//! `env_logger`. Nothing of an engine writes to standard output or error by itself.
//!
//! # Limits
//!
//! A batch has up to 1,000,000 requests or blocks, and a worker 16,384 requests under way by default. A notification has
//! up to [`NOTIFICATION_BYTES_MAX`] bytes. [`LimitsConfig`] has what can be configured.
//!
//! # Features
//!
//! Both are on by default, and neither needs anything to build, because libraries are loaded when an engine starts:
//! `verbs` for RDMA, `cuda` for memory of GPUs. TCP, shared memory and files are always in. Linux only.

mod advice;
mod afterwards;
mod answering;
mod arrivals;
mod at_once;
mod batch;
mod blocking;
mod calls;
mod completion;
mod config;
mod delivery;
mod departure;
mod descriptors;
mod domains;
mod drive_lock;
mod ending;
mod endpoints;
mod engine;
mod error;
mod explain;
mod fabric;
mod files;
mod followers;
mod fork;
mod gpus;
mod guests;
pub mod guide;
mod hints;
mod intake;
mod known;
mod lanes;
mod leaving;
mod listen;
mod lock;
mod machine;
mod memory;
mod metrics;
mod neighbours;
mod notification;
mod once;
mod opening;
mod overlap;
mod paged;
#[cfg(test)]
mod pair;
mod parcel;
mod path;
mod peers;
mod plans;
mod post;
mod prepared;
mod queue;
mod reception;
mod refusal;
mod reload;
mod request;
mod room;
mod rows;
mod security;
mod segments;
mod sessions;
mod spin;
mod staging;
mod standing;
mod start;
mod stats;
mod submit;
mod sync;
mod table_memory;
mod task;
mod thread;
mod transports;
mod visible;
mod wakers;
mod watch;
mod worker;
mod workers;

// Whatever an operation returns can be named.
pub use polyrail_control::plane::{AskError, ConnectError, Ends};
pub use polyrail_control::security::{Distrust, Fingerprint, KeyFileError, Membership};
pub use polyrail_core::batch::{BatchReport, BatchReport as BatchStatus};
pub use polyrail_core::path::config::PathConfigError;
pub use polyrail_core::path::view::{Mismatch, PathView};
pub use polyrail_core::rail::documented::DocumentedConfig;
pub use polyrail_core::rail::health::RailState;
pub use polyrail_core::rail::select::Policy;
pub use polyrail_core::report::{Local, Remote, Report, Status};
pub use polyrail_core::topology::{LengthMismatch, RailMap, tier};
pub use polyrail_core::units::RailId;
pub use polyrail_core::work::{Cause, Op, Priority};
pub use polyrail_cuda as cuda;
pub use polyrail_record::Cut as RecordingCut;
pub use polyrail_transport::fault::{Counts, Faults, Spoils};
pub use polyrail_transport::memory::{Access, Region};
pub use polyrail_uring::FileTerms;

pub use advice::{Advice, advice};
pub use arrivals::ArrivalWatch;
pub use batch::{Batch, Released};
pub use calls::{Caller, Calls};
pub use completion::{Completion, CompletionQueue};
pub use config::{
    Config, ConfigError, ControlConfig, DomainConfig, Effective, HealthConfig, HealthMode,
    IsolationMode, LimitsConfig, Loaded, PathConfig, Payload, Place, Problem, RecordingConfig,
    SecurityConfig, SendQueueConfig, Sources, SprayConfig, StagingConfig, TransportConfig,
    VerbsConfig, reference,
};
pub use delivery::{Delivery, DeliveryStatus};
pub use departure::Undrained;
pub use domains::Domain;
pub use engine::{Engine, RailStatus};
pub use error::{
    CallError, CloseError, DeliveryError, EngineError, ExposeError, FileError, Limit, NotifyError,
    OpenError, ReceiveError, RegisterError, ReleaseError, SubmitError, WaitError,
};
pub use explain::{Explanation, RailChoice, TransportChoice};
pub use gpus::{GpuInfo, gpus};
pub use guests::SessionStatus;
pub use known::{Availability, TransportInfo, transports, transports_without};
pub use machine::{
    Device, DeviceState, NearGpu, NumaNode, PortGid, RdmaPort, devices, numa_nodes, rdma_ports,
};
pub use metrics::{Exposed, metrics_reference};
pub use notification::{Notification, Notifications};
pub use opening::OpenTerms;
pub use paged::{Blocks, PagedRequest, Places};
pub use parcel::NOTIFICATION_BYTES_MAX;
pub use peers::{PeerEvent, PeerEvents, PeerState, PeerStatus};
pub use polyrail_core::orchestrator::LaneState;
pub use prepared::{Posted, PreparedTransfer};
pub use reload::RELOADED;
pub use request::{Request, Terms};
pub use security::keygen;
pub use segments::SegmentId;
pub use start::Hooks;
pub use stats::{
    Backlog, DeviceTraffic, FailoverCount, FenceStats, HintStats, LaneStatus, Latencies, LimitUse,
    Pressure, RequestStats, SlotStats, Stats, UnsettledStats, WorkerLoad,
};
pub use transports::{Plugin, TransportStatus};
pub use wakers::RoomAgain;
