//! How to use an engine, by what a program wants to do. Each section has an example that runs as it stands, apart from
//! two engines and two segments that most of them begin with:
//!
//! ```
//! use polyrail::{Access, Config, Engine};
//!
//! let target = Engine::new(Config { listen: Some("127.0.0.1:0".parse()?), ..Config::named("target") })?;
//! target.allocate("mem", 1 << 20, Access::RemoteReadWrite)?;
//!
//! let engine = Engine::new(Config::named("initiator"))?;
//! let local = engine.allocate("here", 1 << 20, Access::Local)?;
//! let remote = engine.open_segment(&format!("{}/mem", target.listening().unwrap()))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Configuration
//!
//! [`Config`](crate::Config) has a field for each key, and a default for each. [`Sources`](crate::Sources) reads a file
//! in JSON and the environment, and reports all mistakes at once:
//!
//! ```
//! use polyrail::{Config, Policy, Sources};
//!
//! let file = r#"{ "name": "decode-0", "health": { "fence_timeout_ms": 500 } }"#;
//! let variables = [("POLYRAIL_POLICY".into(), "round-robin".into())];
//! let loaded = Sources::new().json("the text", file).variables(variables).load()?;
//! assert_eq!(loaded.config.policy, Policy::RoundRobin);
//! assert_eq!(loaded.config.health.fence_timeout.as_millis(), 500);
//!
//! // Keys with their values as texts, such as flags of a program.
//! let loaded = Sources::new().pairs("the flags", [("workers", "2"), ("health/mode", "reset")]).load()?;
//! assert_eq!(loaded.config.workers, 2);
//!
//! // What a program sets itself is checked when an engine starts, or here.
//! let mut config = Config::named("initiator").without("shm");
//! config.use_policy(Policy::Spray);
//! config.use_rails(&["127.0.0.1".parse()?]);
//! config.check()?;
//! assert!(!config.transport("shm").enable);
//! assert!(Config::from_json(r#"{ "polcy": "spray" }"#).unwrap_err().to_string().contains("nearest known one is policy"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Starting
//!
//! ```
//! use polyrail::{Config, Engine, Hooks};
//!
//! // Peers are let in once the segments that they ask for are there.
//! let hooks = Hooks { lets_in_later: true, ..Hooks::default() };
//! let config = Config { listen: Some("127.0.0.1:0".parse()?), ..Config::named("target") };
//! let target = Engine::with_hooks(config, hooks)?;
//! target.allocate("mem", 1 << 20, polyrail::Access::RemoteReadWrite)?;
//! target.let_in();
//! assert!(target.listening().is_some() && target.is_ours());
//! assert!(target.key().is_none(), "the configuration names no cluster key");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Memory
//!
//! Memory that the engine allocates is the fastest between processes of one host. Memory of the program can be
//! registered too. [`Engine::unregister`](crate::Engine::unregister) waits until no peer can touch it any more.
//!
//! ```
//! # use polyrail::{Access, Config, Engine};
//! # let engine = Engine::new(Config::named("initiator"))?;
//! use polyrail::Region;
//! use std::ptr::NonNull;
//!
//! let allocated = engine.allocate("weights", 1 << 20, Access::RemoteRead)?;
//! let region = engine.region(allocated).expect("it is there");
//! region.store(b"hello", 4096)?;
//! let mut back = [0; 5];
//! region.load(4096, &mut back)?;
//! assert_eq!(&back, b"hello");
//! assert_eq!(engine.local_segment("weights"), Some(allocated));
//! assert_eq!(engine.segment_bytes(allocated), Some(1 << 20));
//!
//! // A page stands behind each address before anybody knows of it.
//! engine.allocate_touched("touched", 1 << 20, Access::Local)?;
//!
//! // What peers find there is in it before they can open it.
//! let prepared = Region::allocate(4096, Access::RemoteRead)?;
//! prepared.store(b"ready", 0)?;
//! engine.register_region("prepared", prepared)?;
//!
//! let mut own = vec![0_u8; 65_536];
//! let base = NonNull::new(own.as_mut_ptr()).expect("a vector is somewhere");
//! // SAFETY: the vector lives, and nobody else uses it, until `unregister` has returned.
//! let registered = unsafe { engine.register("own", base, 65_536, Access::RemoteReadWrite)? };
//! engine.unregister(registered)?;
//! drop(own);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Segments of peers
//!
//! ```
//! # use polyrail::{Access, Config, Engine};
//! # let target = Engine::new(Config { listen: Some("127.0.0.1:0".parse()?), ..Config::named("target") })?;
//! # target.allocate("mem", 1 << 20, Access::RemoteReadWrite)?;
//! # let engine = Engine::new(Config::named("initiator"))?;
//! use polyrail::OpenError;
//!
//! let at = target.listening().unwrap();
//! let remote = engine.open_segment(&format!("{at}/mem"))?;
//! assert_eq!(engine.segment_bytes(remote), Some(1 << 20));
//! match engine.open_segment(&format!("{at}/men")) {
//!     Err(OpenError::NoSuchSegment { .. }) => {}
//!     other => panic!("{other:?}"),
//! }
//! // Requests that are under way use it: it is closed once they have ended.
//! engine.close_segment_later(remote)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Peers that come and go
//!
//! A segment that *stands* follows its name to the next process that serves it. Requests that are under way end
//! truthfully; those that are submitted while nobody is there are refused as `PeerLost`.
//!
//! ```
//! # use polyrail::{Access, Config, Engine};
//! # use std::time::Duration;
//! # let target = Engine::new(Config { listen: Some("127.0.0.1:0".parse()?), ..Config::named("target") })?;
//! # target.allocate("mem", 1 << 20, Access::RemoteReadWrite)?;
//! # let engine = Engine::new(Config::named("initiator"))?;
//! # let at = target.listening().unwrap();
//! use polyrail::{OpenTerms, PeerEvent};
//!
//! let terms = OpenTerms { within: Some(Duration::from_secs(5)), standing: true };
//! engine.open_segment_with(&format!("{at}/mem"), &terms)?; // It may come up to five seconds later.
//! for peer in engine.peers() {
//!     println!("{} at {}: {}", peer.name, peer.address, peer.state.name());
//! }
//! let events = engine.peer_events();
//! assert!(events.poll().is_none(), "nobody was lost");
//! // An end is noticed. That of a host is only if somebody says so, or another process answers there.
//! engine.declare_lost(&at.to_string())?;
//! assert!(matches!(events.wait(Duration::from_secs(5))?, PeerEvent::Lost(_)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Tasks
//!
//! What a task waits for is a future of no runtime, and blocks no thread of it:
//!
//! ```
//! use polyrail::{Engine, OpenTerms, Request, SubmitError, Terms};
//! use std::time::Duration;
//!
//! async fn send(engine: &Engine, to: &str, requests: &[Request]) -> Result<(), Box<dyn std::error::Error>> {
//!     engine.open_segment_async(to, &OpenTerms::default()).await?;
//!     let terms = Terms { room_within: Some(Duration::ZERO), ..Terms::default() };
//!     let batch = loop {
//!         let room = engine.room();
//!         match engine.submit_with(requests, &terms) {
//!             Err(SubmitError::Full(_)) => room.await,
//!             submitted => break submitted?,
//!         }
//!     };
//!     println!("{:?}", batch.clone().await.status);
//!     batch.released().await?; // Memory may be used again, whatever became of it.
//!     engine.notifications().next().await;
//!     engine.shutdown_async().await;
//!     Ok(())
//! }
//! ```
//!
//! # Batches
//!
//! A [`Request`](crate::Request) is one read or write. A batch is what is submitted together and waited for. Requests
//! of a batch run in any order.
//!
//! ```
//! # use polyrail::{Access, Config, Engine, Op, Request};
//! # let target = Engine::new(Config { listen: Some("127.0.0.1:0".parse()?), ..Config::named("target") })?;
//! # target.allocate("mem", 1 << 20, Access::RemoteReadWrite)?;
//! # let engine = Engine::new(Config::named("initiator"))?;
//! # let local = engine.allocate("here", 1 << 20, Access::Local)?;
//! # let remote = engine.open_segment(&format!("{}/mem", target.listening().unwrap()))?;
//! use polyrail::{Priority, Status, SubmitError, Terms, WaitError};
//! use std::time::Duration;
//!
//! let block = |n: u64| Request {
//!     op: Op::Write, local, local_offset: n * 65_536, remote, remote_offset: n * 65_536, length: 65_536,
//! };
//! let blocks: Vec<Request> = (0..16).map(block).collect();
//! let terms = Terms { deadline: Some(Duration::from_secs(2)), priority: Priority::High, ..Terms::default() };
//! let batch = engine.submit_with(&blocks, &terms)?;
//! match batch.wait(Duration::from_secs(5)) {
//!     Ok(report) if report.status == Status::Completed => {}
//!     // It ended otherwise: which request was the first, and why.
//!     Ok(report) => panic!("{report:?}: {:?}", batch.first_failure()),
//!     // It has not ended, and goes on.
//!     Err(WaitError::TimedOut { .. }) => batch.cancel(),
//!     Err(error) => return Err(error.into()),
//! }
//! assert_eq!((batch.status().ended, batch.status().failed), (16, 0));
//! assert_eq!(batch.report(3).unwrap().delivered_bytes, 65_536);
//!
//! // All or nothing: one request that cannot be is named, and none of the batch begins.
//! let beyond = Request { remote_offset: 1 << 20, ..block(0) };
//! let refused = engine.submit(&[block(0), beyond]).unwrap_err();
//! assert!(matches!(refused, SubmitError::OutOfRange { index: 1, .. }), "{refused}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Ends of batches
//!
//! A thread that waits for one batch calls [`Batch::wait`](crate::Batch::wait). A task awaits it. A callback, or one
//! queue for many batches, serves a program that does neither.
//!
//! ```
//! # use polyrail::{Access, Config, Engine, Op, Request, Status};
//! # use std::time::Duration;
//! # let target = Engine::new(Config { listen: Some("127.0.0.1:0".parse()?), ..Config::named("target") })?;
//! # target.allocate("mem", 1 << 20, Access::RemoteReadWrite)?;
//! # let engine = Engine::new(Config::named("initiator"))?;
//! # let local = engine.allocate("here", 1 << 20, Access::Local)?;
//! # let remote = engine.open_segment(&format!("{}/mem", target.listening().unwrap()))?;
//! # let request = Request { op: Op::Write, local, local_offset: 0, remote, remote_offset: 0, length: 65_536 };
//! use polyrail::CompletionQueue;
//! use std::sync::mpsc;
//!
//! let (said, hears) = mpsc::channel();
//! engine.submit(&[request])?.on_done(move |report| drop(said.send(report.status)));
//! assert_eq!(hears.recv_timeout(Duration::from_secs(5))?, Status::Completed);
//!
//! let queue = CompletionQueue::new()?;
//! queue.add(&engine.submit(&[request])?, 7);
//! let first = queue.wait(Duration::from_secs(5)).expect("in time");
//! assert_eq!((first.tag, first.status.status), (7, Status::Completed));
//! assert!(queue.poll().is_none());
//!
//! // Memory of a batch that ended without proof is not to be used before this returns.
//! engine.submit(&[request])?.wait_released(Duration::from_secs(5))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The same transfer again and again
//!
//! ```
//! # use polyrail::{Access, Config, Engine, Op, Request, Status};
//! # use std::time::Duration;
//! # let target = Engine::new(Config { listen: Some("127.0.0.1:0".parse()?), ..Config::named("target") })?;
//! # target.allocate("mem", 1 << 20, Access::RemoteReadWrite)?;
//! # let engine = Engine::new(Config::named("initiator"))?;
//! # let local = engine.allocate("here", 1 << 20, Access::Local)?;
//! # let remote = engine.open_segment(&format!("{}/mem", target.listening().unwrap()))?;
//! use polyrail::{Blocks, PagedRequest, Places, Posted, Terms};
//!
//! // Pages 3, 1 and 2 of 4 KiB here to rows 0, 1 and 2 there, which lie 64 KiB apart.
//! let pages = PagedRequest {
//!     op: Op::Write,
//!     local: Blocks { segment: local, base: 0, stride: 4096, places: Places::Pages(&[3, 1, 2]) },
//!     remote: Blocks { segment: remote, base: 0, stride: 65_536, places: Places::Rows(3) },
//!     length: 4096,
//! };
//! let mut prepared = engine.prepare_paged(&[pages])?;
//! assert_eq!(prepared.requests().len(), 3);
//! for _ in 0..10 {
//!     assert_eq!(prepared.post()?.wait(Duration::from_secs(5))?.status, Status::Completed);
//! }
//! let terms = Terms { deadline: Some(Duration::from_secs(1)), ..Terms::default() };
//! prepared.post_with(&terms)?.wait(Duration::from_secs(5))?;
//! // Where a block is small, what has been moved by the time that this returns needs no batch.
//! let ended = match prepared.post_or_finish(&Terms::default())? {
//!     Posted::Finished(status) => status,
//!     Posted::Going(batch) => batch.wait(Duration::from_secs(5))?,
//! };
//! assert_eq!(ended.delivered_bytes, 3 * 4096);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Telling the peer's program
//!
//! Three ways, from the cheapest: a count of batches that have arrived, a notification behind a batch, a call that is
//! answered.
//!
//! ```
//! # use polyrail::{Access, Config, Engine, Op, Request, Status};
//! # use std::time::Duration;
//! use polyrail::{Caller, Calls, DeliveryStatus, Hooks, Terms};
//! use std::sync::Arc;
//!
//! struct Sum;
//! impl Calls for Sum {
//!     fn call(&self, engine: &Engine, caller: &Caller, method: u16, body: &[u8]) -> Result<Vec<u8>, String> {
//!         match method {
//!             1 => Ok(vec![body.iter().sum()]),
//!             // Calls come from all trust domains: what this peer could open itself it is told.
//!             2 if engine.access_of(caller, "mem").is_some() => Ok(b"mem".to_vec()),
//!             _ => Err(format!("there is no method {method}")),
//!         }
//!     }
//! }
//!
//! let hooks = Hooks { calls: Some(Arc::new(Sum)), ..Hooks::default() };
//! let config = Config { listen: Some("127.0.0.1:0".parse()?), ..Config::named("target") };
//! let target = Engine::with_hooks(config, hooks)?;
//! # target.allocate("mem", 1 << 20, Access::RemoteReadWrite)?;
//! # let engine = Engine::new(Config::named("initiator"))?;
//! # let local = engine.allocate("here", 1 << 20, Access::Local)?;
//! # let remote = engine.open_segment(&format!("{}/mem", target.listening().unwrap()))?;
//! # let request = Request { op: Op::Write, local, local_offset: 0, remote, remote_offset: 0, length: 65_536 };
//!
//! let watch = target.watch_arrivals(42, 1)?; // For an event loop: readable once one has arrived.
//! engine.submit_with(&[request], &Terms { arrival: Some(42), ..Terms::default() })?;
//! assert!(target.wait_arrivals(42, 1, Duration::from_secs(5))? >= 1);
//! assert_eq!(target.arrivals(42), target.forget_arrivals(42));
//! # drop(watch);
//!
//! let batch = engine.submit_notifying(&[request], b"layer 0")?;
//! let told = target.notifications().wait(Duration::from_secs(5))?;
//! assert_eq!(&told.bytes[..], b"layer 0");
//! let delivery = batch.delivery().expect("it carries one");
//! assert_eq!(delivery.wait(Duration::from_secs(5))?, DeliveryStatus::Delivered);
//!
//! engine.notify(remote, b"by itself")?;
//! assert_eq!(engine.call(remote, 1, &[1, 2, 3], Duration::from_secs(5))?, [6]);
//! assert_eq!(engine.call(remote, 2, &[], Duration::from_secs(5))?, b"mem");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Files
//!
//! ```
//! # use polyrail::{Access, Config, Engine, Op, Request, Status};
//! # use std::time::Duration;
//! # let engine = Engine::new(Config::named("initiator"))?;
//! # let local = engine.allocate("here", 1 << 20, Access::Local)?;
//! use polyrail::FileTerms;
//!
//! let file = tempfile::NamedTempFile::new()?;
//! file.as_file().set_len(1 << 20)?;
//! let disk = engine.open_file(file.path(), &FileTerms::default())?;
//! let request = Request { op: Op::Write, local, local_offset: 0, remote: disk, remote_offset: 0, length: 1 << 20 };
//! assert_eq!(engine.submit(&[request])?.wait(Duration::from_secs(5))?.status, Status::Completed);
//! engine.sync_file(disk)?; // It survives a loss of power now.
//! engine.offer_file(disk, "checkpoint", Access::RemoteRead)?; // Peers may open it.
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # GPUs
//!
//! ```no_run
//! # use polyrail::{Access, Config, Engine};
//! # let engine = Engine::new(Config::named("initiator"))?;
//! for gpu in polyrail::gpus()? {
//!     let near = polyrail::devices().into_iter().filter(|device| gpu.tier(device) == 0);
//!     println!("{}: {}", gpu.gpu.name, near.map(|device| device.name).collect::<Vec<_>>().join(", "));
//! }
//! let cache = engine.allocate_on_gpu("kv", 0, 1 << 30, Access::RemoteReadWrite)?;
//! let stream = 0; // The program's `cudaStream_t`, as a number.
//! engine.order_after(cache, stream)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Trust
//!
//! ```
//! use polyrail::{Access, Config, DomainConfig, Engine};
//!
//! # let folder = tempfile::tempdir()?;
//! let key_file = folder.path().join("cluster.key");
//! println!("the key of the cluster is {}", polyrail::keygen(&key_file)?);
//! let mut config = Config::named("target");
//! config.security.key_file = key_file.to_string_lossy().into();
//! config.security.domains =
//!     [("red".to_owned(), DomainConfig { peers: vec!["10.1.0.0/16".parse()?], names: vec![] })].into();
//! assert!(config.security.fingerprint()?.is_some());
//! let engine = Engine::new(config)?;
//! let red = engine.domain("red")?;
//! red.allocate("theirs", 1 << 20, Access::RemoteReadWrite)?; // No other peers hear of it.
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Looking at an engine
//!
//! ```
//! # use polyrail::{Access, Config, Engine, Op, Request};
//! # use std::time::Duration;
//! # let target = Engine::new(Config { listen: Some("127.0.0.1:0".parse()?), ..Config::named("target") })?;
//! # target.allocate("mem", 1 << 20, Access::RemoteReadWrite)?;
//! # let engine = Engine::new(Config::named("initiator"))?;
//! # let local = engine.allocate("here", 1 << 20, Access::Local)?;
//! # let remote = engine.open_segment(&format!("{}/mem", target.listening().unwrap()))?;
//! # let request = Request { op: Op::Write, local, local_offset: 0, remote, remote_offset: 0, length: 65_536 };
//! # engine.submit(&[request])?.wait(Duration::from_secs(5))?;
//! for rail in engine.rails() {
//!     println!("{}: {} bytes, {}", rail.name, rail.bytes, rail.state.name());
//! }
//! let stats = engine.stats();
//! println!("{} switches of transports, {} kinds of requests", stats.failovers_total(), stats.requests.len());
//! for worker in &stats.workers {
//!     println!("{worker}");
//! }
//! for way in engine.explain(local, remote, 1 << 20)?.transports {
//!     println!("{way:?}");
//! }
//! let exposed = engine.expose("127.0.0.1:0".parse()?)?; // OpenMetrics over HTTP, until it is dropped.
//! println!("http://{}/metrics answers {} bytes", exposed.at(), engine.metrics().len());
//! assert_eq!(engine.metrics_at(), None); // Of the key `metrics`, which this one's configuration does not have.
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A flight recording has every call on core and its answer:
//!
//! ```
//! # use polyrail::{Config, Engine, Hooks};
//! # let folder = tempfile::tempdir()?;
//! let hooks = Hooks { recording: Some(folder.path().into()), ..Hooks::default() };
//! let engine = Engine::with_hooks(Config::named("recorded"), hooks)?;
//! let file = engine.recording().expect("it was asked for").to_owned();
//! engine.shutdown();
//! assert!(engine.recording_cut().is_none(), "it is whole");
//! assert!(file.exists()); // `polyrail sim replay` makes the calls again.
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Changing and ending
//!
//! ```
//! # use polyrail::{Access, Config, Engine};
//! # use std::time::Duration;
//! # let target = Engine::new(Config { listen: Some("127.0.0.1:0".parse()?), ..Config::named("target") })?;
//! # target.allocate("mem", 1 << 20, Access::RemoteReadWrite)?;
//! # let config = Config::named("initiator");
//! # let engine = Engine::new(config.clone())?;
//! # let at = target.listening().unwrap();
//! # engine.open_segment(&format!("{at}/mem"))?;
//! let mut changed = config.clone();
//! changed.limits.segments *= 2;
//! engine.reload(&changed)?; // `RELOADED` names the keys that can change.
//!
//! // Only if it is known that the process there writes no more: its host has been powered off.
//! assert!(engine.declare_lost(&at.to_string())?);
//!
//! let left = engine.drain(Duration::from_secs(10)); // What is under way ends; nothing new begins.
//! assert!(left.is_nothing(), "{left}");
//! engine.shutdown();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
