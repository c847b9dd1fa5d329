//! The end of an engine, in a table: how it is let go of, where, and what it is at. In each cell it ends, and when whoever
//! let go of it goes on, nothing of it touches the program's memory any more. Threads and descriptors go as well.
//!
//! A test program of its own, because it counts both.

use std::any::Any;
use std::fs::{self, File};
use std::future::Future;
use std::panic::catch_unwind;
use std::pin::{Pin, pin};
use std::ptr::NonNull;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake};
use std::thread;
use std::time::{Duration, Instant};

use polyrail::{
    Access, Batch, Caller, Calls, Cause, CompletionQueue, Config, DomainConfig, Engine, Faults,
    FileTerms, Hooks, Op, RailId, Region, Request, SecurityConfig, SegmentId, Status,
};

/// Longer than any end takes; only a failing test waits for it.
const PATIENCE: Duration = Duration::from_secs(30);
const MIB: u64 = 1 << 20;
const POISON: u8 = 0xee;
const PART: [u8; 4096] = [POISON; 4096];
const RAILS: u16 = 2;

/// How an engine is let go of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Go {
    Shutdown,
    /// The last handle.
    Drop,
    /// `shutdown`, then the last handle.
    Both,
    /// `shutdown` here, and on another thread at the same time.
    TwiceAtOnce,
    /// The last handle, which is in a prepared transfer, and one in a domain.
    DropOthers,
}

/// Where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// A thread of the program that does nothing else.
    Program,
    /// The same, while another one waits for a batch.
    BesideWait,
    /// A callback, while nobody waits: on a worker's thread.
    Callback,
    /// A callback of a batch that a thread waits for: on that one.
    CallbackOfWaiter,
    /// Callbacks of several batches, each with a handle.
    ManyCallbacks,
    /// A waker.
    Waker,
    /// A peer's call.
    Call,
    /// A callback of a batch that passes through slots.
    CallbackOfStaged,
}

/// What the engine is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Idle,
    /// It reads into the program's memory, and a peer writes there.
    Moving,
    /// The same, and then all rails go dark.
    Dark,
    /// A file passes through slots.
    Staging,
}

const GOES: [Go; 5] = [
    Go::Shutdown,
    Go::Drop,
    Go::Both,
    Go::TwiceAtOnce,
    Go::DropOthers,
];
const PLACES: [Place; 8] = [
    Place::Program,
    Place::BesideWait,
    Place::Callback,
    Place::CallbackOfWaiter,
    Place::ManyCallbacks,
    Place::Waker,
    Place::Call,
    Place::CallbackOfStaged,
];
const STATES: [State; 4] = [State::Idle, State::Moving, State::Dark, State::Staging];

/// The program's memory that the engine under test has registered.
struct Mine {
    bytes: Box<[u8]>,
}

impl Mine {
    fn new() -> Self {
        Self {
            bytes: vec![0; 8 << 20].into(),
        }
    }

    fn address(&self) -> NonNull<u8> {
        NonNull::from(&*self.bytes).cast()
    }

    /// Nothing of the engine may touch it from now on.
    fn poison(&self) {
        // SAFETY: all of it; only looked at through addresses while engines live.
        unsafe { self.address().write_bytes(POISON, self.bytes.len()) };
    }

    fn is_poisoned(&self) -> bool {
        // Unoptimised, one byte after the other would be most of what this program does.
        (self.bytes.chunks(PART.len())).all(|part| part == &PART[..part.len()])
    }
}

/// The handles that are let go of, and what has to be so when that is done.
struct Grip {
    engine: Mutex<Option<Engine>>,
    /// Of all other kinds, which go first, but for those that have an engine in them.
    others: Mutex<Vec<Box<dyn Any + Send>>>,
    region: Arc<Region>,
    mine: Arc<Mine>,
    go: Go,
    /// Nobody else has a handle. (Whoever calls has one, and others may have.)
    is_last: bool,
    said: Sender<()>,
}

impl Grip {
    /// Lets go. Only the first one does.
    fn let_go(&self) {
        let Some(engine) = self.engine.lock().unwrap().take() else {
            return;
        };
        let others = std::mem::take(&mut *self.others.lock().unwrap());
        match self.go {
            Go::Shutdown | Go::Both => engine.shutdown(),
            Go::Drop | Go::DropOthers => {}
            Go::TwiceAtOnce => thread::scope(|scope| {
                let other = scope.spawn(|| {
                    engine.shutdown();
                    assert!(self.region.enter().is_none(), "the other one came back");
                });
                engine.shutdown();
                other.join().unwrap();
            }),
        }
        let last = (self.go == Go::Shutdown).then_some(engine);
        drop(others);
        if self.is_last || !matches!(self.go, Go::Drop | Go::DropOthers) {
            assert!(self.region.enter().is_none(), "it may still be touched");
            self.mine.poison();
        }
        let _ = self.said.send(());
        drop(last);
    }
}

impl Wake for Grip {
    fn wake(self: Arc<Self>) {
        self.let_go();
    }
}

/// Lets go when a peer calls.
#[derive(Default)]
struct Called(Mutex<Option<Arc<Grip>>>);

impl Calls for Called {
    fn call(&self, _: &Engine, _: &Caller, _: u16, _: &[u8]) -> Result<Vec<u8>, String> {
        let grip = self.0.lock().unwrap().take();
        grip.unwrap().let_go();
        Ok(Vec::new())
    }
}

fn config(name: &str) -> Config {
    let tenant = DomainConfig {
        peers: vec!["127.0.0.250/32".parse().unwrap()],
        ..DomainConfig::default()
    };
    Config {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        rails: (1..=RAILS as u8)
            .map(|host| [127, 0, 0, host].into())
            .collect(),
        workers: 2,
        security: SecurityConfig {
            domains: [("tenant".to_owned(), tenant)].into(),
            ..SecurityConfig::default()
        },
        ..Config::named(name).without("shm")
    }
}

fn until(what: &str, mut seen: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !seen() {
        assert!(Instant::now() < deadline, "not seen in time: {what}");
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// Threads of engines.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.starts_with("polyrail")).collect()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The engine under test, a peer, and what is under way between them.
struct Scene {
    peer: Engine,
    faults: [Arc<Faults>; 2],
    called: Arc<Called>,
    local: SegmentId,
    remote: SegmentId,
    file: SegmentId,
    far_file: SegmentId,
    /// The peer's own memory, and the engine's as the peer knows it.
    theirs: [SegmentId; 2],
    _folder: tempfile::TempDir,
    batches: Vec<Batch>,
}

impl Scene {
    fn new(mine: &Mine) -> (Self, Engine) {
        let folder = tempfile::tempdir().unwrap();
        let faults = [(); 2].map(|()| Arc::new(Faults::new()));
        let called = Arc::new(Called::default());
        let hooks = |at: usize| Hooks {
            faults: Some(faults[at].clone()),
            calls: (at == 0).then(|| called.clone() as Arc<dyn Calls>),
            ..Hooks::default()
        };
        let engine = Engine::with_hooks(config("ends"), hooks(0)).unwrap();
        let peer = Engine::with_hooks(config("stays"), hooks(1)).unwrap();
        let bytes = mine.bytes.len() as u64;
        // SAFETY: it is freed after both engines have ended.
        let local =
            unsafe { engine.register("mine", mine.address(), bytes, Access::RemoteReadWrite) };
        let access = Access::RemoteReadWrite;
        let theirs = peer.allocate("theirs", bytes, access).unwrap();
        let file = |engine: &Engine, name: &str| {
            let file = File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(folder.path().join(name))
                .unwrap();
            file.set_len(bytes).unwrap();
            engine.register_file(file, &FileTerms::default()).unwrap()
        };
        let near_file = file(&engine, "near");
        let there = file(&peer, "far");
        peer.offer_file(there, "file", access).unwrap();
        let at = peer.listening().unwrap();
        let remote = opened(&engine, &format!("{at}/theirs"));
        let far_file = opened(&engine, &format!("{at}/file"));
        let back = engine.listening().unwrap();
        let mine_there = opened(&peer, &format!("{back}/mine"));
        let scene = Self {
            peer,
            faults,
            called,
            local: local.unwrap(),
            remote,
            file: near_file,
            far_file,
            theirs: [theirs, mine_there],
            _folder: folder,
            batches: Vec::new(),
        };
        (scene, engine)
    }

    fn request(&self, op: Op, offset: u64, length: u64) -> Request {
        Request {
            op,
            local: self.local,
            local_offset: offset,
            remote: self.remote,
            remote_offset: offset,
            length,
        }
    }

    fn staged(&self, length: u64) -> Request {
        Request {
            local: self.file,
            remote: self.far_file,
            ..self.request(Op::Write, 0, length)
        }
    }

    fn each_rail(&self, change: impl Fn(&Faults, RailId)) {
        for faults in &self.faults {
            (0..2 * RAILS).for_each(|rail| change(faults, RailId(rail)));
        }
    }

    /// Brings it into that state.
    fn begin(&mut self, engine: &Engine, state: State) {
        completes(engine, self.request(Op::Read, 0, MIB));
        if state == State::Idle {
            return;
        }
        completes(engine, self.staged(4096));
        self.each_rail(|faults, rail| faults.slow(rail, Some(2_000_000)));
        let moved = |engine: &Engine| engine.rails().iter().map(|rail| rail.bytes).sum::<u64>();
        let before = [moved(engine), moved(&self.peer)];
        let half = 4 * MIB;
        match state {
            State::Staging => {
                let batch = engine.submit(&[self.staged(8 * MIB)]);
                self.batches.push(batch.unwrap());
                until("some is staged", || moved(engine) > before[0] + 10_000);
            }
            _ => {
                let batch = engine.submit(&[self.request(Op::Read, 0, half)]);
                self.batches.push(batch.unwrap());
                let write = Request {
                    op: Op::Write,
                    local: self.theirs[0],
                    local_offset: half,
                    remote: self.theirs[1],
                    remote_offset: half,
                    length: half,
                };
                self.batches.push(self.peer.submit(&[write]).unwrap());
                until("some is read", || moved(engine) > before[0] + 10_000);
                until("some is written", || moved(&self.peer) > before[1] + 10_000);
            }
        }
        if state == State::Dark {
            self.each_rail(Faults::cut);
        }
    }

    /// A handle of each other kind.
    fn others(&self, engine: &Engine) -> Vec<Box<dyn Any + Send>> {
        let queue = CompletionQueue::new().unwrap();
        let request = self.request(Op::Write, 0, 4096);
        let told = engine.submit_notifying(&[request], b"told").unwrap();
        queue.add(&told, 1);
        let prepared = engine.prepare_transfer(&[request]).unwrap();
        vec![
            Box::new(told.delivery()),
            Box::new(told),
            Box::new(queue),
            Box::new(engine.notifications()),
            Box::new(engine.region(self.local)),
            Box::new(engine.domain("tenant").unwrap()),
            Box::new(prepared),
        ]
    }

    /// Requests short enough to end although rails are slow, and long enough to be waited for. Nothing moves in the dark, so
    /// they end by a cancellation there.
    fn ends_soon(&self, engine: &Engine, state: State, staged: bool) -> Batch {
        let request = match staged {
            true => self.staged(64 << 10),
            false => self.request(Op::Read, 6 * MIB, 64 << 10),
        };
        let batch = engine.submit(&[request]).unwrap();
        if state == State::Dark {
            batch.cancel();
        }
        batch
    }
}

/// Lets go of an engine in one way, and looks whether all is well.
fn cell(go: Go, place: Place, state: State) {
    let mine = Arc::new(Mine::new());
    let (mut scene, engine) = Scene::new(&mine);
    scene.begin(&engine, state);
    let (said, hears) = channel();
    let region = engine.region(scene.local).unwrap();
    let grip = |engine: Engine| {
        Arc::new(Grip {
            others: Mutex::new(scene.others(&engine)),
            engine: Mutex::new(Some(engine)),
            region: region.clone(),
            mine: mine.clone(),
            go,
            is_last: !matches!(place, Place::Call | Place::ManyCallbacks),
            said: said.clone(),
        })
    };
    let soon = |staged| scene.ends_soon(&engine, state, staged);
    let mut told = Vec::new();
    match place {
        Place::Program => grip(engine).let_go(),
        Place::BesideWait => {
            let batch = engine.submit(&[scene.request(Op::Read, 4 * MIB, MIB)]);
            let batch = batch.unwrap();
            let grip = grip(engine);
            thread::scope(|scope| {
                scope.spawn(|| batch.wait(PATIENCE).unwrap());
                grip.let_go();
            });
        }
        Place::Callback | Place::CallbackOfWaiter | Place::CallbackOfStaged => {
            let batch = soon(place == Place::CallbackOfStaged);
            let grip = grip(engine);
            batch.on_done(move |_| grip.let_go());
            if place == Place::CallbackOfWaiter {
                batch.wait(PATIENCE).unwrap();
            }
            told.push(batch);
        }
        Place::ManyCallbacks => {
            told = (0..6).map(|_| soon(false)).collect();
            let grips: Vec<_> = told.iter().map(|_| grip(engine.clone())).collect();
            for (batch, grip) in told.iter().zip(grips) {
                batch.on_done(move |_| grip.let_go());
            }
            drop(engine);
        }
        Place::Waker => {
            let batch = soon(false);
            let waker = grip(engine);
            let waker = waker.into();
            if pin!(batch.clone())
                .poll(&mut Context::from_waker(&waker))
                .is_ready()
            {
                waker.wake_by_ref();
            }
            // The handle that was polled is gone; one that is kept has its waker kept.
            let mut kept = batch.clone();
            if Pin::new(&mut kept)
                .poll(&mut Context::from_waker(&waker))
                .is_ready()
            {
                // It has ended since the first look, which nobody is told of any more.
                waker.wake_by_ref();
            }
            drop(waker);
            told.push(kept);
        }
        Place::Call => {
            *scene.called.0.lock().unwrap() = Some(grip(engine));
            // Who ends in the middle of a call need not answer it.
            let timeout = Duration::from_secs(10);
            let _ = scene.peer.call(scene.theirs[1], 1, &[], timeout);
        }
    }
    drop(said);
    let first = hears.recv_timeout(PATIENCE);
    assert_eq!(first, Ok(()), "nobody has let go of it");
    while hears.recv_timeout(PATIENCE) == Ok(()) {}
    for batch in scene.batches.iter().chain(&told) {
        let status = batch.wait(PATIENCE).unwrap();
        assert_eq!(status.ended, status.requests);
    }
    until("nothing may touch it", || region.enter().is_none());
    mine.poison();
    scene.peer.shutdown();
    drop((scene, told));
    assert!(mine.is_poisoned(), "it was touched after the end");
}

/// Moves something. All cells do so at the same time, which may take this machine longer than an engine waits for an answer.
fn completes(engine: &Engine, request: Request) {
    let start = Instant::now();
    loop {
        let batch = engine.submit(&[request]).unwrap();
        if batch.wait(PATIENCE).unwrap().status == Status::Completed {
            return;
        }
        let report = batch.report(0).unwrap();
        let is_late = matches!(report.cause, Some(Cause::NoRail | Cause::PeerSilent));
        assert!(is_late && start.elapsed() < PATIENCE, "{report:?}");
    }
}

/// Opens a segment, which may take as long.
fn opened(engine: &Engine, address: &str) -> SegmentId {
    let start = Instant::now();
    loop {
        match engine.open_segment(address) {
            Ok(segment) => return segment,
            Err(error) => {
                let text = error.to_string();
                let is_late = text.contains("within") || text.contains("timed out");
                assert!(is_late && start.elapsed() < PATIENCE, "{text}");
            }
        }
    }
}

/// Runs cells beside each other, and fails if one does not come to its end.
fn run(cells: &[(Go, Place, State)]) {
    let (ended, ends) = channel();
    let running: Vec<_> = cells
        .iter()
        .map(|&(go, place, state)| {
            let ended = ended.clone();
            let name = format!("{go:?} {place:?} {state:?}");
            let thread = thread::Builder::new().name(name);
            thread.spawn(move || {
                let result = catch_unwind(|| cell(go, place, state));
                let _ = ended.send(((go, place, state), result.is_ok()));
            })
        })
        .collect();
    let mut left = cells.to_vec();
    while !left.is_empty() {
        let one = ends.recv_timeout(PATIENCE);
        let (cell, good) = one.unwrap_or_else(|_| panic!("without an end: {left:?}"));
        assert!(good, "{cell:?}");
        left.retain(|other| *other != cell);
    }
    running
        .into_iter()
        .for_each(|thread| thread.unwrap().join().unwrap());
}

#[test]
fn an_engine_ends_however_it_is_let_go_of() {
    let goes = GOES.into_iter();
    let cells = goes.flat_map(|go| {
        let places = PLACES.into_iter();
        places.flat_map(move |place| STATES.map(|state| (go, place, state)))
    });
    let only = std::env::var("POLYRAIL_ENDING").unwrap_or_default();
    let is_wanted = |cell: &(Go, Place, State)| format!("{cell:?}").contains(&only);
    let cells: Vec<_> = cells.filter(is_wanted).collect();
    // What a process opens once for all of them.
    run(&cells[..1]);
    let before = descriptors();
    for cells in cells.chunks(32) {
        run(cells);
        until("all threads have gone", || threads().is_empty());
        assert_eq!(descriptors(), before, "after {cells:?}");
    }
}
