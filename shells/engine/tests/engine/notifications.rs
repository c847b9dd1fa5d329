//! Notifications: after the data, once, in order, and never for what did not arrive.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail::{
    Access, Config, Delivery, DeliveryError, DeliveryStatus, Engine, Faults,
    NOTIFICATION_BYTES_MAX, Notification, Notifications, NotifyError, Op, ReceiveError, Request,
    Status, SubmitError, Terms,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::fixture::*;
use crate::silence::far;

/// Notifications to one peer that may wait here.
const OUT: usize = 16_384;
/// And there, for each session.
const IN: usize = 1_024;

fn is_readable(fd: &impl AsFd) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)).unwrap() == 1
}

fn told(notifications: &Notifications) -> Vec<u8> {
    notifications.wait(PATIENCE).unwrap().bytes
}

fn delivered(delivery: &Delivery) {
    assert_eq!(delivery.wait(PATIENCE), Ok(DeliveryStatus::Delivered));
}

impl Pair {
    /// Writes everything and says so.
    fn write_and_tell(&self, bytes: &[u8]) -> polyrail::Batch {
        let requests = [self.write_all()];
        self.initiator.submit_notifying(&requests, bytes).unwrap()
    }
}

#[test]
fn whoever_is_told_sees_the_data() {
    let pair = Pair::new(4 * MIB);
    pair.warm_up();
    let notifications = pair.target.notifications();
    let (source, destination) = (pair.source(), pair.destination());
    for seed in 0..40_u64 {
        fill(&source, seed);
        poison(&destination, 0xee);
        // What is under way moves to other rails, so that there are late attempts to wait for.
        let rail = polyrail::RailId((seed % RAILS as u64) as u16);
        match seed % 3 {
            0 => pair.faults.slow(rail, Some(4_000_000)),
            1 => pair.faults.cut(rail),
            _ => {}
        }
        let batch = pair.write_and_tell(&seed.to_le_bytes());
        let Notification {
            from,
            incarnation,
            bytes: said,
        } = notifications.wait(PATIENCE).unwrap();
        assert!(bytes(&destination) == pattern(seed, pair.bytes), "{seed}");
        assert_eq!(
            (from.as_str(), said),
            ("initiator", seed.to_le_bytes().into())
        );
        assert_ne!(incarnation, 0);
        completed(&batch);
        delivered(&batch.delivery().unwrap());
        pair.faults.slow(rail, None);
        pair.faults.restore(rail);
    }
    assert_eq!(notifications.poll(), None);
}

#[test]
fn a_batch_of_reads_tells_when_the_memory_may_be_used_again() {
    let pair = Pair::new(MIB);
    let notifications = pair.target.notifications();
    fill(&pair.destination(), 5);
    let read = Request {
        op: Op::Read,
        ..pair.write_all()
    };
    let batch = pair.initiator.submit_notifying(&[read], b"taken").unwrap();
    assert_eq!(told(&notifications), b"taken");
    poison(&pair.destination(), 0);
    completed(&batch);
    assert!(bytes(&pair.source()) == pattern(5, MIB));
}

#[test]
fn nobody_is_told_of_what_did_not_arrive() {
    let pair = Pair::new(16 * MIB);
    pair.warm_up();
    let notifications = pair.target.notifications();
    pair.each_rail(|faults, rail| faults.slow(rail, Some(2_000_000)));
    let cancelled = pair.write_and_tell(b"cancelled");
    let delivery = cancelled.delivery().unwrap();
    assert_eq!(delivery.status(), DeliveryStatus::Pending);
    assert!(delivery.wait(Duration::ZERO).is_err());
    cancelled.cancel();
    assert_eq!(ended(&cancelled).status, Status::Cancelled);
    assert_eq!(delivery.wait(PATIENCE), Ok(DeliveryStatus::Withheld));
    pair.each_rail(|faults, rail| faults.slow(rail, None));
    // One request of it is for memory that is gone: it fails.
    let bystander = pair.bystander();
    let other = pair.target.local_segment("other").unwrap();
    completed(&pair.submit(bystander));
    pair.target.unregister(other).unwrap();
    let requests = [pair.write_all(), bystander];
    let failed = pair.initiator.submit_notifying(&requests, b"failed");
    let failed = failed.unwrap();
    assert_eq!(ended(&failed).status, Status::Failed);
    let delivery = failed.delivery().unwrap();
    assert_eq!(delivery.wait(PATIENCE), Ok(DeliveryStatus::Withheld));
    // What is said later comes first, because nothing was said before.
    let batch = pair.write_and_tell(b"completed");
    assert_eq!(told(&notifications), b"completed");
    completed(&batch);
    assert_eq!(notifications.poll(), None);
    let silent = pair.submit(pair.write_all());
    assert!(silent.delivery().is_none());
}

#[test]
fn a_batch_that_shutdown_ends_tells_nobody() {
    let pair = Pair::new(MIB);
    pair.warm_up();
    pair.each_rail(|faults, rail| faults.cut(rail));
    let batch = pair.write_and_tell(b"never");
    pair.initiator.shutdown();
    let delivery = batch.delivery().unwrap();
    assert_eq!(delivery.wait(PATIENCE), Ok(DeliveryStatus::Withheld));
    assert_eq!(
        pair.initiator.notify(pair.remote, b"").unwrap_err(),
        NotifyError::ShutDown
    );
    pair.target.shutdown();
    let notifications = pair.target.notifications();
    assert_eq!(notifications.wait(PATIENCE), Err(ReceiveError::ShutDown));
}

#[test]
fn each_comes_once_and_in_order_while_connections_are_lost_and_made_again() {
    const ROUNDS: u32 = 12;
    const EACH: u32 = 200;
    let far = far();
    let notifications = far.target.notifications();
    let mut deliveries = Vec::new();
    for round in 0..ROUNDS {
        for number in 0..EACH {
            let number = round * EACH + number;
            let delivery = far
                .initiator
                .notify(far.write.remote, &number.to_le_bytes());
            deliveries.push(delivery.unwrap());
            if number % EACH == EACH / 2 {
                // All connections end in the middle of it, some with what was on them swallowed.
                if round % 3 == 0 {
                    far.link.cut();
                }
                far.link.restore();
            }
        }
        for number in 0..EACH {
            let number = round * EACH + number;
            assert_eq!(told(&notifications), number.to_le_bytes());
        }
    }
    deliveries.iter().for_each(delivered);
    assert_eq!(notifications.poll(), None, "told twice");
}

#[test]
fn a_program_that_takes_nothing_holds_up_senders_who_are_told_full() {
    let pair = Pair::new(MIB);
    let notifications = pair.target.notifications();
    let mut deliveries = Vec::new();
    let mut number = 0_u32;
    let deadline = Instant::now() + PATIENCE;
    let refused = loop {
        assert!(
            Instant::now() < deadline,
            "{number} were all there was room for"
        );
        match pair.initiator.notify(pair.remote, &number.to_le_bytes()) {
            Ok(delivery) => deliveries.push(delivery),
            Err(error) if deliveries.len() >= IN + OUT => break error,
            // What the target takes at first makes room here.
            Err(NotifyError::Full) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
        number = deliveries.len() as u32;
    };
    assert_eq!(
        (refused, deliveries.len()),
        (NotifyError::Full, IN + OUT),
        "no more than that is held anywhere"
    );
    let write = [pair.write_all()];
    let full = pair.initiator.submit_notifying(&write, b"").unwrap_err();
    assert_eq!(full, SubmitError::Full(None));
    // What carries none is not held up, and neither are questions.
    pair.exchange(1);
    pair.bystander();
    assert_eq!(deliveries[IN].status(), DeliveryStatus::Pending);
    for number in 0..number {
        assert_eq!(told(&notifications), number.to_le_bytes());
    }
    deliveries.iter().for_each(delivered);
    let batch = pair.write_and_tell(b"again");
    assert_eq!(told(&notifications), b"again");
    completed(&batch);
}

#[test]
fn the_descriptor_is_readable_exactly_while_something_waits() {
    let pair = Pair::new(MIB);
    let notifications = pair.target.notifications();
    for _ in 0..3 {
        assert!(!is_readable(&notifications));
        let long = vec![7; NOTIFICATION_BYTES_MAX];
        for bytes in [&long[..], b""] {
            delivered(&pair.initiator.notify(pair.remote, bytes).unwrap());
        }
        // Another handle is of the same queue.
        let same = pair.target.notifications();
        assert!(is_readable(&notifications) && is_readable(&same));
        assert_eq!(notifications.poll().unwrap().bytes, long);
        assert!(is_readable(&notifications));
        assert_eq!(same.poll().unwrap().bytes, b"");
        assert!(!is_readable(&notifications) && !is_readable(&same));
        let short = Duration::from_millis(5);
        assert_eq!(
            notifications.wait(short),
            Err(ReceiveError::TimedOut { after: short })
        );
    }
}

#[test]
fn what_came_before_the_end_can_be_taken_after_it() {
    let pair = Pair::new(MIB);
    let notifications = pair.target.notifications();
    for number in 0..10 {
        delivered(&pair.initiator.notify(pair.remote, &[number]).unwrap());
    }
    // Nor does the end of the sender take it back.
    pair.initiator.shutdown();
    let waiter = std::thread::spawn({
        let notifications = notifications.clone();
        move || std::iter::from_fn(|| notifications.wait(PATIENCE).ok()).count()
    });
    until("all are taken", || !is_readable(&notifications));
    pair.target.shutdown();
    assert_eq!(waiter.join().unwrap(), 10);
    drop(pair);
    assert_eq!(notifications.wait(PATIENCE), Err(ReceiveError::ShutDown));
}

#[test]
fn another_process_at_the_address_is_not_told_what_the_old_one_was_to_be() {
    let pair = Pair::new(MIB);
    delivered(&pair.initiator.notify(pair.remote, b"old").unwrap());
    let at = pair.target.listening().unwrap();
    pair.target.shutdown();
    let config = Config {
        listen: Some(at),
        ..target_config("target")
    };
    let anew = Engine::new(config).unwrap();
    anew.allocate("mem", MIB, Access::RemoteReadWrite).unwrap();
    let remote = pair.remote;
    let is_lost = |error| matches!(error, NotifyError::PeerLost { segment, peer } if (segment, peer) == (remote, at));
    // Who tells it may have heard of the end already, and has at the latest when it opens the segment anew.
    match pair.initiator.notify(remote, b"lost") {
        Ok(lost) => {
            let status = lost.wait(PATIENCE).unwrap();
            assert!(
                matches!(
                    status,
                    DeliveryStatus::Undelivered | DeliveryStatus::Unknown
                ),
                "{status:?}"
            );
        }
        Err(error) => assert!(is_lost(error), "{error}"),
    }
    let remote = pair.initiator.open_segment(&format!("{at}/mem")).unwrap();
    let error = pair.initiator.notify(pair.remote, b"old").unwrap_err();
    assert!(is_lost(error), "{error}");
    let text = error.to_string();
    assert!(text.contains(&at.to_string()), "{text}");
    delivered(&pair.initiator.notify(remote, b"new").unwrap());
    let notifications = anew.notifications();
    assert_eq!(told(&notifications), b"new");
    assert_eq!(notifications.poll(), None);
    // The old one can still take what it was told.
    assert_eq!(told(&pair.target.notifications()), b"old");
}

#[test]
fn a_peer_that_is_gone_is_waited_for_and_its_notification_then_accounted_for() {
    let far = far();
    far.link.cut();
    let delivery = far.initiator.notify(far.write.remote, b"hello").unwrap();
    let start = Instant::now();
    let short = Duration::from_millis(300);
    assert_eq!(
        delivery.wait(short),
        Err(DeliveryError::TimedOut { after: short })
    );
    assert!(start.elapsed() >= short);
    far.initiator.shutdown();
    assert_eq!(delivery.wait(PATIENCE), Ok(DeliveryStatus::Unknown));
}

#[test]
fn many_threads_and_peers_at_once() {
    const EACH: u32 = 400;
    let pair = Pair::new(MIB);
    let second = target("second");
    second
        .allocate("mem", MIB, Access::RemoteReadWrite)
        .unwrap();
    let remote = pair.initiator.open_segment(&address(&second, "mem"));
    let other = Request {
        remote: remote.unwrap(),
        ..pair.write(0, 4096)
    };
    let mixed = [pair.write(0, 1), pair.write(1, 1), other];
    assert_eq!(
        pair.initiator.submit_notifying(&mixed, b"").unwrap_err(),
        SubmitError::NotificationPeers { index: 2 }
    );
    std::thread::scope(|scope| {
        for (thread, request) in [pair.write(0, 4096), pair.write(8192, 4096), other]
            .into_iter()
            .enumerate()
        {
            let initiator = &pair.initiator;
            scope.spawn(move || {
                for number in 0..EACH {
                    let said = [&[thread as u8][..], &number.to_le_bytes()].concat();
                    let batch = initiator.submit_notifying(&[request], &said).unwrap();
                    // Every other is told although nobody holds its handle.
                    if number % 2 == 0 {
                        delivered(&batch.delivery().unwrap());
                    }
                }
            });
        }
        let takers = [(&pair.target, 2 * EACH), (&second, EACH)].map(|(engine, count)| {
            let notifications = engine.notifications();
            scope.spawn(move || (0..count).map(|_| told(&notifications)).collect::<Vec<_>>())
        });
        let [mut first, mut second] = takers.map(|taker| taker.join().unwrap());
        let all = |threads: &[u8]| -> Vec<Vec<u8>> {
            let of = |thread| (0..EACH).map(move |n| (thread, n.to_le_bytes()));
            let mut all: Vec<_> = threads.iter().flat_map(|thread| of(*thread)).collect();
            all.sort_unstable();
            all.into_iter()
                .map(|(thread, number)| [&[thread][..], &number].concat())
                .collect()
        };
        first.sort_unstable();
        second.sort_unstable();
        assert!(first == all(&[0, 1]) && second == all(&[2]));
    });
}

#[test]
fn long_ones_come_whole_and_in_order_with_the_others() {
    let pair = Pair::new(MIB);
    let notifications = pair.target.notifications();
    let lengths = [
        1023,
        1024,
        1025,
        5,
        100_000,
        NOTIFICATION_BYTES_MAX,
        0,
        NOTIFICATION_BYTES_MAX,
    ];
    let bodies: Vec<Vec<u8>> = (0..)
        .zip(lengths)
        .map(|(seed, length)| pattern(seed, length as u64))
        .collect();
    for round in 0..3 {
        let deliveries: Vec<_> = bodies
            .iter()
            .map(|body| pair.initiator.notify(pair.remote, body).unwrap())
            .collect();
        let batch = pair.write_and_tell(&bodies[4]);
        for body in bodies.iter().chain([&bodies[4]]) {
            assert!(told(&notifications) == *body, "{round}");
        }
        deliveries.iter().for_each(delivered);
        delivered(&batch.delivery().unwrap());
    }
}

#[test]
fn long_ones_that_nobody_takes_hold_up_their_sender_and_come_in_the_end() {
    let pair = Pair::new(MIB);
    let notifications = pair.target.notifications();
    let body = |seed| pattern(seed, NOTIFICATION_BYTES_MAX as u64);
    // More than have room there: four of a session.
    let deliveries: Vec<_> = (0..20)
        .map(|seed| pair.initiator.notify(pair.remote, &body(seed)).unwrap())
        .collect();
    delivered(&deliveries[3]);
    assert_eq!(deliveries[19].status(), DeliveryStatus::Pending);
    for seed in 0..20 {
        assert!(told(&notifications) == body(seed), "{seed}");
    }
    deliveries.iter().for_each(delivered);
}

#[test]
fn long_ones_come_once_while_connections_are_lost() {
    let far = far();
    let notifications = far.target.notifications();
    let bodies: Vec<_> = (0..6).map(|seed| pattern(seed, 300_000)).collect();
    let mut deliveries = Vec::new();
    for (round, body) in bodies.iter().enumerate() {
        let delivery = far.initiator.notify(far.write.remote, body);
        deliveries.push(delivery.unwrap());
        if round % 3 == 0 {
            far.link.cut();
        }
        far.link.restore();
    }
    for body in &bodies {
        assert!(told(&notifications) == *body);
    }
    deliveries.iter().for_each(delivered);
    assert_eq!(notifications.poll(), None, "told twice");
}

#[test]
fn arrivals_are_counted_by_tag_and_waited_for() {
    let pair = Pair::new(MIB);
    let other = initiator(&Arc::new(Faults::new()));
    let there = other.open_segment(&address(&pair.target, "mem")).unwrap();
    let here = other.allocate("here", MIB, Access::Local).unwrap();
    let tagged = |tag| Terms {
        arrival: Some(tag),
        ..Terms::default()
    };
    let short = Duration::from_millis(5);
    let none = pair.target.wait_arrivals(7, 1, short);
    assert_eq!(none, Err(ReceiveError::TimedOut { after: short }));
    fill(&pair.source(), 3);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let seen = pair.target.wait_arrivals(7, 30, PATIENCE);
            assert!(
                bytes(&pair.destination()) == pattern(3, MIB),
                "all can be seen"
            );
            seen
        });
        for _ in 0..10 {
            let requests = [pair.write_all()];
            pair.initiator.submit_with(&requests, &tagged(7)).unwrap();
            pair.initiator.submit_with(&requests, &tagged(8)).unwrap();
        }
        until("those have arrived", || pair.target.arrivals(7) == 10);
        other
            .region(here)
            .unwrap()
            .store(&pattern(3, MIB), 0)
            .unwrap();
        let request = Request {
            local: here,
            remote: there,
            ..pair.write_all()
        };
        let mut transfer = other.prepare_transfer(&[request]).unwrap();
        for _ in 0..20 {
            let batch = transfer.post_with(&tagged(7)).unwrap();
            completed(&batch);
            delivered(&batch.delivery().unwrap());
        }
        assert_eq!(waits.join().unwrap(), Ok(30));
    });
    assert_eq!(pair.target.wait_arrivals(8, 10, PATIENCE), Ok(10));
    assert_eq!(
        (pair.target.forget_arrivals(7), pair.target.arrivals(7)),
        (30, 0)
    );
    // Beside a notification it is counted before that is told; nothing else is queued.
    let terms = Terms {
        notification: Some(b"both"),
        ..tagged(9)
    };
    pair.initiator
        .submit_with(&[pair.write_all()], &terms)
        .unwrap();
    let notifications = pair.target.notifications();
    assert_eq!(told(&notifications), b"both");
    assert_eq!((pair.target.arrivals(9), notifications.poll()), (1, None));
    // What does not complete does not arrive.
    pair.each_rail(|faults, rail| faults.cut(rail));
    let batch = pair
        .initiator
        .submit_with(&[pair.write_all()], &tagged(9))
        .unwrap();
    batch.cancel();
    assert_eq!(ended(&batch).status, Status::Cancelled);
    let delivery = batch.delivery().unwrap();
    assert_eq!(delivery.wait(PATIENCE), Ok(DeliveryStatus::Withheld));
    pair.each_rail(|faults, rail| faults.restore(rail));
    pair.target.shutdown();
    assert_eq!(
        pair.target.wait_arrivals(9, 2, PATIENCE),
        Err(ReceiveError::ShutDown)
    );
}

#[test]
fn notifications_that_cannot_be() {
    let pair = Pair::new(MIB);
    let long = vec![0; NOTIFICATION_BYTES_MAX + 1];
    let bytes = long.len();
    let write = [pair.write_all()];
    let submit = |requests: &[Request], said: &[u8]| {
        pair.initiator
            .submit_notifying(requests, said)
            .unwrap_err()
            .to_string()
    };
    let notify = |segment, said: &[u8]| {
        pair.initiator
            .notify(segment, said)
            .unwrap_err()
            .to_string()
    };
    let stale = Request {
        remote: pair.local,
        ..pair.write_all()
    };
    // (name, error, what it names)
    let cases = [
        ("too long", notify(pair.remote, &long), "1048577"),
        ("too long with a batch", submit(&write, &long), "1048577"),
        (
            "to this engine",
            notify(pair.local, b""),
            "no segment of a peer",
        ),
        ("with a stale request", submit(&[stale], b""), "request 0"),
        ("with nothing", submit(&[], b""), "0 requests"),
    ];
    for (name, error, part) in cases {
        assert!(error.contains(part), "{name}: {error}");
    }
    assert_eq!(
        pair.initiator.notify(pair.remote, &long).unwrap_err(),
        NotifyError::TooLong { bytes }
    );
    // Nothing of them has taken room or was told.
    let batch = pair.write_and_tell(b"good");
    assert_eq!(told(&pair.target.notifications()), b"good");
    completed(&batch);
}
