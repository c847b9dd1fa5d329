//! A peer behind a link that swallows everything, in both directions.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use polyrail::{
    Access, Cause, Config, Engine, Local, Op, Remote, Request, SegmentId, Status, UnsettledStats,
};
use polyrail_control::codec::{Greeting, Purpose};

use crate::fixture::*;

/// Passes bytes on until told to swallow them.
pub(crate) struct Link {
    address: SocketAddr,
    switch: Arc<Switch>,
}

#[derive(Default)]
struct Switch {
    swallow: AtomicBool,
    /// The same, of control connections only.
    swallow_control: AtomicBool,
    /// How many bytes of each connection go through per millisecond; 0: all.
    pace: AtomicU64,
    stop: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Link {
    pub(crate) fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let switch = Arc::<Switch>::default();
        let theirs = switch.clone();
        std::thread::spawn(move || theirs.serve(&listener, target));
        Self { address, switch }
    }

    /// Where it is entered.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets everything through as fast as it comes.
    pub(crate) fn restore_speed(&self) {
        self.switch.pace.store(0, SeqCst);
    }

    pub(crate) fn cut(&self) {
        self.switch.swallow.store(true, SeqCst);
    }

    /// From now on only lanes go through.
    fn cut_control(&self) {
        self.switch.swallow_control.store(true, SeqCst);
    }

    /// What was cut is lost: its connections end, and new ones go through.
    pub(crate) fn restore(&self) {
        self.switch.end_streams();
        self.switch.swallow.store(false, SeqCst);
        self.switch.swallow_control.store(false, SeqCst);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.switch.stop.store(true, SeqCst);
        let _ = TcpStream::connect(self.address);
        self.switch.end_streams();
    }
}

impl Switch {
    fn end_streams(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn serve(self: Arc<Self>, listener: &TcpListener, target: SocketAddr) {
        for stream in listener.incoming() {
            if self.stop.load(SeqCst) {
                return;
            }
            let (Ok(near), Ok(far)) = (stream, TcpStream::connect(target)) else {
                continue;
            };
            let copies = [near.try_clone().unwrap(), far.try_clone().unwrap()];
            self.streams.lock().unwrap().extend(copies);
            let is_control = Arc::<AtomicBool>::default();
            for (from, to) in [(&near, &far), (&far, &near)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let (switch, is_control) = (self.clone(), is_control.clone());
                std::thread::spawn(move || switch.pass(from, to, &is_control));
            }
        }
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream, is_control: &AtomicBool) {
        let mut is_greeting = true;
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let pace = self.pace.load(SeqCst) as usize;
            let most = if pace > 0 { pace } else { buffer.len() };
            let Ok(bytes @ 1..) = from.read(&mut buffer[..most]) else {
                break;
            };
            if pace > 0 {
                std::thread::park_timeout(Duration::from_millis(1));
            }
            if std::mem::take(&mut is_greeting) {
                let control = Greeting::ours(Purpose::Control).encode();
                let said = &buffer[..bytes];
                is_control.fetch_or(said.starts_with(&control), SeqCst);
            }
            if !self.swallows(is_control) && to.write_all(&buffer[..bytes]).is_err() {
                break;
            }
        }
        if !self.swallows(is_control) {
            let _ = to.shutdown(Shutdown::Write);
        }
    }

    fn swallows(&self, is_control: &AtomicBool) -> bool {
        let of_control = self.swallow_control.load(SeqCst) && is_control.load(SeqCst);
        of_control || self.swallow.load(SeqCst)
    }
}

/// An initiator that reaches its target over one link only.
pub(crate) struct Far {
    pub(crate) link: Link,
    pub(crate) target: Engine,
    pub(crate) initiator: Engine,
    pub(crate) there: SegmentId,
    pub(crate) write: Request,
}

pub(crate) const BYTES: u64 = 16 * MIB;

pub(crate) fn far() -> Far {
    far_with(|_| {})
}

/// One whose initiator is configured otherwise.
fn far_with(change: impl FnOnce(&mut Config)) -> Far {
    // A wildcard is no address that a peer could use, so it keeps to the link.
    let target = Engine::new(Config {
        listen: Some("0.0.0.0:0".parse().unwrap()),
        insecure: true,
        workers: 1,
        ..Config::named("target")
    });
    let target = target.unwrap();
    let port = target.listening().unwrap().port();
    let there = target
        .allocate("mem", BYTES, Access::RemoteReadWrite)
        .unwrap();
    let link = Link::to(SocketAddr::from(([127, 0, 0, 1], port)));
    let mut config = Config {
        workers: 1,
        ..Config::named("initiator").without("shm")
    };
    change(&mut config);
    let initiator = Engine::new(config).unwrap();
    let local = initiator.allocate("here", BYTES, Access::Local).unwrap();
    let remote = initiator
        .open_segment(&format!("{}/mem", link.address))
        .unwrap();
    let write = Request {
        op: Op::Write,
        local,
        local_offset: 0,
        remote,
        remote_offset: 0,
        length: BYTES,
    };
    Far {
        link,
        target,
        initiator,
        there,
        write,
    }
}

impl Far {
    /// Lets 4 MB a second through.
    pub(crate) fn slow_down(&self) {
        self.link.switch.pace.store(4096, SeqCst);
    }

    fn moved_bytes(&self) -> u64 {
        self.initiator.rails().iter().map(|rail| rail.bytes).sum()
    }

    /// A request in the middle of which the link is cut.
    pub(crate) fn cut_in_the_middle(&self, op: Op) -> polyrail::Batch {
        self.slow_down();
        let before = self.moved_bytes();
        let batch = self
            .initiator
            .submit(&[Request { op, ..self.write }])
            .unwrap();
        until("some has moved", || self.moved_bytes() > before);
        self.link.cut();
        self.link.restore_speed();
        batch
    }
}

#[test]
fn a_write_to_a_silent_peer_is_indeterminate_and_settled_when_it_is_back() {
    let far = far();
    for _ in 0..2 {
        let start = Instant::now();
        let batch = far.cut_in_the_middle(Op::Write);
        let status = ended(&batch);
        assert!(
            start.elapsed() < Duration::from_secs(6),
            "{:?}",
            start.elapsed()
        );
        assert_eq!(
            status.status,
            Status::Indeterminate,
            "{:?}",
            batch.report(0)
        );
        let report = batch.report(0).unwrap();
        assert_eq!(report.cause, Some(Cause::PeerSilent));
        // The source is this side's again; what is not known is whether more arrives there.
        assert_eq!(
            (report.local, report.remote),
            (Local::Released, Remote::Unknown)
        );
        assert!(report.delivered_bytes < BYTES);
        // Whoever watches the engine sees it: what is open, for how long, and what is waited for.
        let stats = far.initiator.stats();
        let open = stats.unsettled;
        assert_eq!(
            (open.requests, open.held_bytes, open.unknown_bytes),
            (1, 0, BYTES)
        );
        assert!(open.oldest.is_some(), "{open:?}");
        assert!(stats.fences.waiting > 0, "{:?}", stats.fences);
        let page = far.initiator.metrics();
        let line = format!("polyrail_unknown_bytes {BYTES}");
        assert!(page.contains(&line), "{page}");
        let late = far.initiator.submit(&[far.write]).unwrap();
        assert_eq!(ended(&late).status, Status::Failed);

        far.link.restore();
        until("it is settled", || {
            batch.report(0).unwrap().remote == Remote::Settled
        });
        assert_eq!(batch.status().status, Status::Indeterminate);
        let stats = far.initiator.stats();
        assert_eq!(stats.unsettled, UnsettledStats::default());
        let answered: u64 = stats.fences.counts.iter().sum();
        assert!(
            answered > 0 && stats.fences.sum_seconds > 1.0,
            "{:?}",
            stats.fences
        );
        until("requests work again", || {
            let again = far.initiator.submit(&[far.write]).unwrap();
            ended(&again).status == Status::Completed
        });
        let (from, to) = (
            far.initiator.region(far.write.local),
            far.target.region(far.there),
        );
        fill(&from.unwrap(), 4);
        completed(&far.initiator.submit(&[far.write]).unwrap());
        assert!(bytes(&to.unwrap()) == pattern(4, BYTES));
    }
    far.initiator.unregister(far.write.local).unwrap();
}

#[test]
fn a_read_from_a_silent_peer_fails_and_leaves_the_memory_alone() {
    let far = far();
    let batch = far.cut_in_the_middle(Op::Read);
    assert_eq!(
        ended(&batch).status,
        Status::Failed,
        "{:?}",
        batch.report(0)
    );
    let report = batch.report(0).unwrap();
    assert_eq!(report.cause, Some(Cause::PeerSilent));
    let here = far.initiator.region(far.write.local).unwrap();
    poison(&here, 0xee);
    far.link.restore();
    until("requests work again", || {
        let again = far
            .initiator
            .submit(&[Request {
                length: 1,
                ..far.write
            }])
            .unwrap();
        ended(&again).status == Status::Completed
    });
    assert!(bytes(&here).iter().all(|byte| *byte == 0xee));
}

#[test]
fn while_the_control_plane_is_gone_what_moves_goes_on_and_what_comes_after_a_pause_fails() {
    let far = far();
    let from = far.initiator.region(far.write.local).unwrap();
    let to = far.target.region(far.there).unwrap();
    completed(&far.initiator.submit(&[far.write]).unwrap());
    far.link.cut_control();
    // Far longer than a peer may be silent: completions are signs of life, too.
    let silence = Config::default().health.peer_silence;
    let start = Instant::now();
    let mut seed = 0;
    while start.elapsed() < 3 * silence {
        seed += 1;
        fill(&from, seed);
        completed(&far.initiator.submit(&[far.write]).unwrap());
        assert!(bytes(&to) == pattern(seed, BYTES), "{seed}");
    }
    // Nothing tells anybody of a peer that nothing moves to.
    let pause = Instant::now();
    let nobody = far.initiator.notifications();
    while pause.elapsed() < 2 * silence {
        let _ = nobody.wait(silence);
    }
    let start = Instant::now();
    let late = far.initiator.submit(&[far.write]).unwrap();
    assert_eq!(ended(&late).status, Status::Failed, "{:?}", late.report(0));
    assert_eq!(late.report(0).unwrap().cause, Some(Cause::PeerSilent));
    assert!(
        start.elapsed() < Duration::from_secs(6),
        "{:?}",
        start.elapsed()
    );

    far.link.restore();
    until("requests work again", || {
        let again = far.initiator.submit(&[far.write]).unwrap();
        ended(&again).status == Status::Completed
    });
    fill(&from, 0);
    completed(&far.initiator.submit(&[far.write]).unwrap());
    assert!(bytes(&to) == pattern(0, BYTES));
}

#[test]
fn a_shutdown_waits_as_long_for_proof_as_is_configured() {
    // It waited 2.5 s at most whatever was configured, and about 2.1 s whatever less was.
    for (fence_ms, cancel_ms) in [(300, 50), (3_500, 100)] {
        let far = far_with(|config| {
            config.health.fence_timeout = Duration::from_millis(fence_ms);
            config.health.cancel_grace = Duration::from_millis(cancel_ms);
            // It is still heard when it ends.
            config.health.peer_silence = Duration::from_secs(60);
        });
        let batch = far.cut_in_the_middle(Op::Write);
        let start = Instant::now();
        far.initiator.shutdown();
        let (least, most) = (fence_ms + cancel_ms / 2, fence_ms + cancel_ms + 1_500);
        let took = start.elapsed();
        assert!(
            took > Duration::from_millis(least) && took < Duration::from_millis(most),
            "{fence_ms} ms: {took:?}"
        );
        let report = batch.report(0).unwrap();
        assert_eq!(report.status, Status::Indeterminate);
        // Core has given the fence up, and says why the request ended; what the engine leaves behind says so by itself.
        assert_eq!(report.cause, Some(Cause::ShutDown));
    }
}

#[test]
fn an_engine_whose_peer_is_silent_ends_in_time_and_says_what_is_open() {
    for wait in [true, false] {
        let far = far();
        let batch = far.cut_in_the_middle(Op::Write);
        if wait {
            ended(&batch);
        }
        let start = Instant::now();
        far.initiator.shutdown();
        assert!(
            start.elapsed() < Duration::from_secs(6),
            "{:?}",
            start.elapsed()
        );
        let status = batch.wait(Duration::ZERO).unwrap();
        assert_eq!(status.status, Status::Indeterminate);
        assert_eq!(batch.report(0).unwrap().remote, Remote::Unknown);
        // The transports are gone, and with them whoever might have read the source.
        far.initiator.unregister(far.write.local).unwrap();
    }
}
