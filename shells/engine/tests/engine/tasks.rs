//! Tasks of one runtime thread: what they await holds that thread up for nobody.

use std::future::Future;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use polyrail::{
    Batch, DeliveryStatus, Engine, OpenError, OpenTerms, PeerEvent, Request, Status, SubmitError,
    Terms,
};

use crate::fixture::*;

/// What a call that blocks here would block for, at least.
const BLOCKS: Duration = Duration::from_secs(1);
/// A runtime's thread may be kept so long by others of a busy machine.
const DELAY_MAX: Duration = Duration::from_millis(400);

/// Runs a future on one thread, beside a task that comes again and again and is never late.
fn on_one_thread<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let ticker = {
        let over = over.clone();
        async move {
            let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
            while !over.load(Relaxed) {
                // Seldom, so that tests beside this one have the processor.
                tokio::time::sleep(Duration::from_millis(5)).await;
                let now = Instant::now();
                longest = longest.max(now - last);
                last = now;
            }
            longest
        }
    };
    runtime.block_on(async {
        let ticker = tokio::spawn(ticker);
        let value = future.await;
        over.store(true, Relaxed);
        let longest = ticker.await.unwrap();
        assert!(
            longest < DELAY_MAX,
            "the thread was held up for {longest:?}"
        );
        value
    })
}

/// Polls a future once, with a waker that tells nobody.
fn is_pending(future: impl Future) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    pin!(future).as_mut().poll(&mut context).is_pending()
}

async fn submit(engine: &Engine, requests: &[Request]) -> Result<Batch, SubmitError> {
    let terms = Terms {
        room_within: Some(Duration::ZERO),
        ..Terms::default()
    };
    loop {
        let room = engine.room();
        match engine.submit_with(requests, &terms) {
            Err(SubmitError::Full(_)) => room.await,
            submitted => return submitted,
        }
    }
}

#[test]
fn opening_holds_nobody_up() {
    let pair = Pair::new(MIB);
    let engine = &pair.initiator;
    // Whoever connects to it is let in by the kernel, and hears nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    let start = Instant::now();
    on_one_thread(async {
        let terms = OpenTerms {
            within: Some(BLOCKS),
            ..OpenTerms::default()
        };
        let nobody = engine.open_segment_async(&format!("{at}/mem"), &terms);
        let known = engine.open_segment_async(&address(&pair.target, "mem"), &terms);
        assert_eq!(known.await.unwrap(), pair.remote);
        let error = nobody.await.unwrap_err();
        assert!(matches!(error, OpenError::NotInTime { .. }), "{error}");
        // What nobody awaits is closed when it is open.
        drop(engine.open_segment_async(&address(&pair.target, "mem"), &terms));
    });
    assert!(start.elapsed() >= BLOCKS * 9 / 10, "{:?}", start.elapsed());
    engine.close_segment(pair.remote).unwrap();
    engine.close_segment(pair.remote).unwrap();
    until("the third is closed too", || {
        matches!(
            engine.submit(&[pair.write_all()]),
            Err(SubmitError::Stale { .. })
        )
    });
}

#[test]
fn who_waits_for_room_or_proof_or_an_end_holds_nobody_up() {
    let pair = Pair::new(MIB);
    pair.warm_up();
    let engine = &pair.initiator;
    pair.each_rail(|faults, rail| faults.cut(rail));
    // All of the worker's room.
    let full = engine.submit(&vec![pair.write(0, 1); 16_384]).unwrap();
    let one = [pair.write(0, 4096)];
    assert!(is_pending(submit(engine, &one)));
    on_one_thread(async {
        let released = full.released();
        let waits = submit(engine, &one);
        let frees = async {
            tokio::time::sleep(BLOCKS).await;
            full.cancel();
            pair.each_rail(|faults, rail| faults.restore(rail));
        };
        let (batch, _, released) = join3(waits, frees, released).await;
        assert!(released.is_ok(), "{released:?}");
        assert_eq!(batch.unwrap().await.status, Status::Completed);
    });
    // What had room at once and is dropped leaves nobody behind.
    drop(engine.room());
    assert!(is_pending(engine.room()));
    // An end takes its time while a callback of the program does.
    pair.each_rail(|faults, rail| faults.cut(rail));
    let batch = engine.submit(&one).unwrap();
    batch.on_done(|_| std::thread::sleep(BLOCKS));
    let start = Instant::now();
    on_one_thread(async {
        let (room, released) = (engine.room(), batch.released());
        let (_, released, _) = join3(engine.shutdown_async(), released, room).await;
        let status = batch.clone().await.status;
        assert_ne!(status, Status::Completed);
        assert!(released.is_ok() || status == Status::Indeterminate);
        assert!(matches!(
            submit(engine, &one).await,
            Err(SubmitError::ShutDown)
        ));
    });
    assert!(start.elapsed() >= BLOCKS, "{:?}", start.elapsed());
}

#[test]
fn what_is_told_is_heard_without_a_thread_for_it() {
    let pair = Pair::new(MIB);
    let (told, events) = (pair.target.notifications(), pair.initiator.peer_events());
    let at = pair.target.listening().unwrap().to_string();
    on_one_thread(async {
        // Taken by nobody: a future that is dropped loses nothing.
        assert!(is_pending(told.next()));
        let says = async {
            let delivery = pair.initiator.notify(pair.remote, b"first").unwrap();
            assert_eq!(delivery.clone().await, DeliveryStatus::Delivered);
            assert_eq!(delivery.await, DeliveryStatus::Delivered);
            pair.initiator.declare_lost(&at).unwrap();
        };
        let (first, _, event) = join3(told.next(), says, events.next()).await;
        assert_eq!(first.unwrap().bytes, b"first");
        assert!(matches!(event, Some(PeerEvent::Lost(_))), "{event:?}");
        let ends = async {
            pair.target.shutdown_async().await;
            pair.initiator.shutdown_async().await;
        };
        let (told, _, event) = join3(told.next(), ends, events.next()).await;
        assert!(told.is_none() && event.is_none());
    });
}

#[test]
fn a_waker_that_blocks_or_ends_the_engine_holds_up_nothing_of_it() {
    /// Says on which thread it is called, and does not come back before it may.
    struct Blocks {
        engine: Engine,
        called: mpsc::SyncSender<String>,
        may: Arc<AtomicU64>,
    }
    impl Wake for Blocks {
        fn wake(self: Arc<Self>) {
            let name = std::thread::current().name().unwrap_or("").to_owned();
            self.called.send(name).unwrap();
            while self.may.load(SeqCst) == 0 {
                std::thread::park_timeout(Duration::from_millis(1));
            }
            self.engine.shutdown();
            self.may.store(2, SeqCst);
        }
    }
    let pair = Pair::new(MIB);
    let (called, calls) = mpsc::sync_channel(1);
    let may = Arc::new(AtomicU64::new(0));
    let waker = Waker::from(Arc::new(Blocks {
        engine: pair.target.clone(),
        called,
        may: may.clone(),
    }));
    let told = pair.target.notifications();
    let mut next = pin!(told.next());
    let mut context = Context::from_waker(&waker);
    assert!(next.as_mut().poll(&mut context).is_pending());
    let delivery = pair.initiator.notify(pair.remote, b"first").unwrap();
    assert_eq!(calls.recv_timeout(PATIENCE).unwrap(), "polyrail-wake");
    // The control thread goes on meanwhile: it confirms what has come, and describes a segment.
    delivery.wait(PATIENCE).unwrap();
    pair.initiator
        .open_segment(&address(&pair.target, "mem"))
        .unwrap();
    may.store(1, SeqCst);
    until("the engine has ended", || may.load(SeqCst) == 2);
    let Poll::Ready(Some(first)) = next.as_mut().poll(&mut context) else {
        panic!("it was there");
    };
    assert_eq!(first.bytes, b"first");
}

/// All three, at once.
async fn join3<A, B, C>(
    a: impl Future<Output = A>,
    b: impl Future<Output = B>,
    c: impl Future<Output = C>,
) -> (A, B, C) {
    let (mut a, mut b, mut c) = (pin!(a), pin!(b), pin!(c));
    let (mut x, mut y, mut z) = (None, None, None);
    std::future::poll_fn(move |context| {
        fn go<F: Future>(
            future: std::pin::Pin<&mut F>,
            value: &mut Option<F::Output>,
            context: &mut Context<'_>,
        ) {
            if value.is_none()
                && let Poll::Ready(ready) = future.poll(context)
            {
                *value = Some(ready);
            }
        }
        go(a.as_mut(), &mut x, context);
        go(b.as_mut(), &mut y, context);
        go(c.as_mut(), &mut z, context);
        match (x.is_some(), y.is_some(), z.is_some()) {
            (true, true, true) => {
                let all = (x.take(), y.take(), z.take());
                Poll::Ready((all.0.unwrap(), all.1.unwrap(), all.2.unwrap()))
            }
            _ => Poll::Pending,
        }
    })
    .await
}
