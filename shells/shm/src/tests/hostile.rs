//! Peers that want to do harm: with memory whose pages go away, with grants that they never leave, with addresses that
//! overflow. A signal would end the test.

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

use polyrail_transport::mapping::Mapping;
use polyrail_transport::memory::LOANS_MAX;

use super::*;

/// Bytes of one huge page or several, on all machines.
const HUGE: u64 = 1 << 30;

/// A file of memory that is sealed against shrinking, as a peer makes it.
fn memfd(flags: MemfdFlags, bytes: u64, more: SealFlags) -> OwnedFd {
    let file = rustix::fs::memfd_create("hostile", flags | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    let seals = SealFlags::SHRINK | SealFlags::GROW | more;
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

fn punch(file: &OwnedFd, bytes: u64) -> Result<(), Errno> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, 0, bytes)
}

/// Whether a target has hung up, with nothing more to say.
fn is_turned_away(socket: &OwnedFd) -> bool {
    let until = StdInstant::now() + PATIENCE;
    loop {
        match packets::receive::<Answer>(socket) {
            Ok(None) => {}
            Ok(Some(_)) => return false,
            Err(_) => return true,
        }
        assert!(StdInstant::now() < until, "neither let in nor turned away");
        thread::yield_now();
    }
}

/// Asks what is behind a key, and gives the answer with what came along.
pub(super) fn map(socket: &OwnedFd, key: RegionKey, grant: u16) -> (Answer, Option<OwnedFd>) {
    packets::send(socket, &Request::Map { key, grant }, None).unwrap();
    let until = StdInstant::now() + PATIENCE;
    loop {
        if let Some(answer) = packets::receive(socket).unwrap() {
            return answer;
        }
        assert!(StdInstant::now() < until, "no answer");
        thread::yield_now();
    }
}

/// That a target goes on: a fair initiator writes.
fn assert_serves(target: &Target, there: &Region) {
    let mut fair = Initiator::new(target.transport.address(), far(there), SESSION);
    assert!(matches!(fair.open(TWO), LaneFact::Opened { .. }));
    fair.post(TWO, &[write(9)]);
    fair.until("it is served", |seen| seen.completions.len() == 1);
}

#[test]
fn a_mailbox_whose_pages_could_go_away_is_not_taken() {
    let target = Target::start();
    let there = target.register(4096, Access::RemoteReadWrite, true);
    let none = MemfdFlags::empty();
    // (name, mailbox)
    let mailboxes = [
        (
            "huge pages that there are not",
            memfd(MemfdFlags::HUGETLB, HUGE, SealFlags::empty()),
        ),
        (
            "cannot be sealed against holes",
            memfd(none, 1 << 16, SealFlags::SEAL),
        ),
        ("too short", memfd(none, 4096, SealFlags::empty())),
        (
            "nobody can write to it",
            memfd(none, 1 << 16, SealFlags::WRITE),
        ),
    ];
    for (number, (name, mailbox)) in mailboxes.iter().enumerate() {
        let lane = LaneId::new(number as u16 + 1, RailId(0));
        assert!(is_turned_away(&raw_with(&target, lane, mailbox)), "{name}");
    }
    assert_serves(&target, &there);
}

#[test]
fn a_peer_takes_no_page_of_a_mailbox_that_is_in_use() {
    let target = Target::start();
    let there = target.register(4096, Access::RemoteReadWrite, true);
    let mailbox = memfd(MemfdFlags::empty(), 1 << 16, SealFlags::empty());
    punch(&mailbox, 1 << 16).unwrap();
    let socket = raw_with(&target, LaneId::new(1, RailId(0)), &mailbox);
    assert_eq!(punch(&mailbox, 1 << 16), Err(Errno::PERM));
    assert!(rustix::fs::ftruncate(&mailbox, 0).is_err());
    // It is written to by the target.
    let (answer, _) = map(&socket, there.key(), 5);
    assert!(matches!(answer, Answer::Shared { grant: 5, .. }));
    assert_serves(&target, &there);
    // The other way round: the target that an initiator has let in.
    let fake = Fake::new();
    let memory = region(4096, Access::RemoteReadWrite, false);
    let mut initiator = Initiator::new(fake.name.clone(), far(&memory), SESSION);
    let by = initiator.clock.now() + Duration::from_secs(20);
    initiator.endpoint.open(lane(), ONE, by);
    let socket = packets::accept(&fake.listener).unwrap();
    let (_, file) = Fake::receive(&socket);
    let file = file.unwrap();
    // It has not sealed it, as one that keeps to the rules has.
    punch(&file, 1 << 14).unwrap();
    let ready = Answer::Ready {
        cookie: fake.cookie.cookie(),
        no_pull: None,
    };
    packets::send(&socket, &ready, None).unwrap();
    assert!(matches!(initiator.fact(ONE), LaneFact::Opened { .. }));
    assert_eq!(punch(&file, 1 << 14), Err(Errno::PERM));
    assert!(Mapping::of_peer(file.as_fd(), 1 << 14, true).is_err());
}

/// What becomes of a write of an initiator's to memory that a target answers with.
fn written_to(answer: impl Fn(u16) -> Answer, file: Option<&OwnedFd>, op: Op) -> Vec<Outcome> {
    let fake = Fake::new();
    let memory = region(4096, Access::RemoteReadWrite, false);
    let mut initiator = Initiator::new(fake.name.clone(), far(&memory), SESSION);
    let by = initiator.clock.now() + Duration::from_secs(20);
    initiator.endpoint.open(lane(), ONE, by);
    let socket = packets::accept(&fake.listener).unwrap();
    let (_, mailbox) = Fake::receive(&socket);
    let mailbox = Mailbox::of_peer(&mailbox.unwrap()).unwrap();
    let ready = Answer::Ready {
        cookie: fake.cookie.cookie(),
        no_pull: None,
    };
    packets::send(&socket, &ready, None).unwrap();
    assert!(matches!(initiator.fact(ONE), LaneFact::Opened { .. }));
    initiator.post(ONE, &[work(op, 0, 0, 4096)]);
    initiator.poll();
    let (Request::Map { grant, .. }, None) = Fake::receive(&socket) else {
        panic!("it asks for something else");
    };
    mailbox.open_grant(grant);
    packets::send(&socket, &answer(grant), file.map(AsFd::as_fd)).unwrap();
    initiator.until("an outcome", |seen| {
        !seen.lanes.is_empty() || !seen.completions.is_empty()
    });
    let done = initiator.seen.completions.iter();
    done.map(|completion| completion.outcome).collect()
}

#[test]
fn memory_of_a_target_whose_pages_could_run_out_is_not_touched() {
    let answer = |writable| {
        move |grant| Answer::Shared {
            grant,
            bytes: 4096,
            writable,
        }
    };
    let huge = memfd(MemfdFlags::HUGETLB, HUGE, SealFlags::empty());
    let open = rustix::fs::memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&open, 4096).unwrap();
    for op in [Op::Write, Op::Read] {
        // The lane ends, and what was posted is open: it goes another way.
        for file in [&huge, &open] {
            assert_eq!(written_to(answer(true), Some(file), op), [], "{op:?}");
        }
        // Pages of the usual size may be taken away before and afterwards: they come back.
        let plain = memfd(MemfdFlags::empty(), 4096, SealFlags::empty());
        punch(&plain, 4096).unwrap();
        let done = written_to(answer(true), Some(&plain), op);
        assert_eq!(done, [Outcome::Success], "{op:?}");
    }
    // It says that it may be written, and it may not.
    let sealed = memfd(MemfdFlags::empty(), 4096, SealFlags::FUTURE_WRITE);
    assert_eq!(written_to(answer(true), Some(&sealed), Op::Write), []);
}

#[test]
fn an_address_that_overflows_is_the_kernels_to_refuse() {
    for address in [u64::MAX, u64::MAX - 4095, 1 << 63] {
        let answer = |grant| Answer::Private {
            grant,
            bytes: 4096,
            writable: true,
            address,
        };
        assert_eq!(written_to(answer, None, Op::Read), [], "{address:#x}");
    }
    // The other way round: an offer.
    let target = Target::start();
    let there = target.register(8192, Access::RemoteReadWrite, false);
    let (socket, mailbox) = raw(&target);
    for (row, source) in [u64::MAX, u64::MAX - 99, 1 << 63].into_iter().enumerate() {
        let offer = Offer {
            source,
            length: 4096,
            key: there.key(),
            offset: 0,
        };
        mailbox.offer(row, &offer);
        packets::send(&socket, &Request::Offered, None).unwrap();
        let until = StdInstant::now() + PATIENCE;
        let answer = loop {
            if let Some(answer) = mailbox.answer(row) {
                break answer;
            }
            assert!(StdInstant::now() < until, "no answer to {source:#x}");
            thread::yield_now();
        };
        assert_eq!(answer, Pulled::Failed, "{source:#x}");
    }
    assert_serves(&target, &there);
}

#[test]
fn what_the_kernel_does_not_write_is_the_targets_to_pull() {
    // As it is with memory of a device: the target itself can write to it. Short, and long, and where there is no mark.
    for (length, marked) in [(4096, true), (1 << 16, true), (1 << 16, false)] {
        let fake = Fake::new();
        let memory = region(1 << 20, Access::RemoteReadWrite, false);
        let mut initiator = Initiator::new(fake.name.clone(), far(&memory), SESSION);
        let by = initiator.clock.now() + Duration::from_secs(20);
        initiator.endpoint.open(lane(), ONE, by);
        let socket = packets::accept(&fake.listener).unwrap();
        let (_, mailbox) = Fake::receive(&socket);
        let mailbox = Mailbox::of_peer(&mailbox.unwrap()).unwrap();
        let cookie = if marked {
            fake.cookie.cookie()
        } else {
            fake.cookie()
        };
        let no_pull = None;
        packets::send(&socket, &Answer::Ready { cookie, no_pull }, None).unwrap();
        assert!(matches!(initiator.fact(ONE), LaneFact::Opened { .. }));
        let works = [write(length), write(length)];
        assert_eq!(initiator.post(ONE, &works).accepted, 2);
        initiator.poll();
        let (Request::Map { grant, .. }, None) = Fake::receive(&socket) else {
            panic!("it asks for something else");
        };
        mailbox.open_grant(grant);
        let answer = Answer::Private {
            grant,
            bytes: 1 << 20,
            writable: true,
            address: 4096,
        };
        packets::send(&socket, &answer, None).unwrap();
        let mut rows = 0;
        initiator.until("offers", |_| {
            rows += usize::from(
                mailbox
                    .take(rows)
                    .is_some_and(|offer| offer.length == length),
            );
            rows == 2
        });
        (0..2).for_each(|row| mailbox.tell(row, Pulled::Done));
        initiator.until("completions", |seen| seen.completions.len() == 2);
        assert!(mailbox.close_grant(grant), "it has left");
        assert!(!initiator.carries(ONE, write(length)));
    }
}

#[test]
fn a_target_that_may_not_pull_is_written_to_all_the_same() {
    // As where the kernel lets processes into the memory of their children only. (it has a mark, it is reached)
    for (marked, reached) in [(true, true), (false, false)] {
        let fake = Fake::new();
        let own = ShmTransport::new(Arc::new(Table::default()), 1).unwrap();
        let cookie = match marked {
            true => fake.cookie.cookie(),
            false => fake.cookie(),
        };
        let ready = Answer::Ready {
            cookie,
            no_pull: Some("it may not".into()),
        };
        let found = thread::scope(|scope| {
            let found = scope.spawn(|| own.reach(&fake.name, SESSION, None));
            let until = StdInstant::now() + PATIENCE;
            let socket = loop {
                assert!(StdInstant::now() < until, "nobody asks");
                if let Ok(socket) = packets::accept(&fake.listener) {
                    break socket;
                }
            };
            Fake::receive(&socket);
            packets::send(&socket, &ready, None).unwrap();
            found.join().unwrap()
        });
        assert_eq!(found == Ok(own.capabilities()), reached);
        let memory = region(1 << 20, Access::RemoteReadWrite, false);
        let mut initiator = Initiator::new(fake.name.clone(), far(&memory), SESSION);
        let by = initiator.clock.now() + Duration::from_secs(20);
        initiator.endpoint.open(lane(), ONE, by);
        let socket = packets::accept(&fake.listener).unwrap();
        let (_, mailbox) = Fake::receive(&socket);
        let mailbox = Mailbox::of_peer(&mailbox.unwrap()).unwrap();
        packets::send(&socket, &ready, None).unwrap();
        assert!(matches!(initiator.fact(ONE), LaneFact::Opened { .. }));
        put(&initiator.local, &pattern(1, 1 << 20));
        initiator.post(ONE, &[write(1 << 20)]);
        initiator.poll();
        let (Request::Map { grant, .. }, None) = Fake::receive(&socket) else {
            panic!("it asks for something else");
        };
        mailbox.open_grant(grant);
        let answer = Answer::Private {
            grant,
            bytes: 1 << 20,
            writable: true,
            address: memory.base().as_ptr().addr() as u64,
        };
        packets::send(&socket, &answer, None).unwrap();
        match reached {
            true => initiator.until("it", |seen| seen.completions.len() == 1),
            false => assert_eq!(initiator.fact(ONE), LaneFact::Broken(Cause::Reset)),
        }
        assert!(mailbox.take(0).is_none(), "it is not asked to pull");
        assert_eq!(bytes(&memory) == pattern(1, 1 << 20), reached);
    }
}

#[test]
fn what_peers_may_only_read_is_handed_out_so() {
    let target = Target::start();
    let there = target.register(4096, Access::RemoteRead, true);
    put(&there, b"owner");
    let (socket, _mailbox) = raw(&target);
    let (answer, file) = map(&socket, there.key(), 1);
    let Answer::Shared { writable, .. } = answer else {
        panic!("{answer:?}");
    };
    assert!(!writable);
    let file = file.unwrap();
    assert!(Mapping::of_peer(file.as_fd(), 4096, false).is_ok());
    let refused = |file: &OwnedFd, how| {
        let error = Mapping::of_peer(file.as_fd(), 4096, true).unwrap_err();
        let error = Errno::from_io_error(&error);
        assert_eq!(error, Some(Errno::PERM), "{how}");
        assert_eq!(rustix::io::pwrite(file, b"peer!", 0), Err(Errno::PERM));
        assert_eq!(punch(file, 4096), Err(Errno::PERM), "{how}");
    };
    refused(&file, "as it comes");
    let anew = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()));
    match anew {
        Ok(anew) => refused(&anew.into(), "opened anew"),
        Err(error) => assert_eq!(Errno::from_io_error(&error), Some(Errno::PERM)),
    }
    let mut content = [0; 5];
    there.load(0, &mut content).unwrap();
    assert_eq!(&content, b"owner");
}

#[test]
fn however_many_grants_are_kept_memory_is_taken_back_in_one_time() {
    const GRANTS: u16 = 12;
    let target = Target::start();
    let there = target.register(4096, Access::RemoteReadWrite, true);
    let (socket, mailbox) = raw(&target);
    for grant in 0..GRANTS {
        let (answer, _) = map(&socket, there.key(), grant);
        assert!(matches!(answer, Answer::Shared { .. }));
        assert!(mailbox.enter(grant));
    }
    let began = StdInstant::now();
    there.revoke();
    let took = began.elapsed();
    assert!(took >= LOANS_MAX && took < LOANS_MAX * 2, "{took:?}");
    // Whoever has been waited for is not waited for again when the transport ends.
    let began = StdInstant::now();
    drop(target);
    let took = began.elapsed();
    assert!(took < LOANS_MAX / 2, "{took:?}");
    assert!((0..GRANTS).all(|grant| !mailbox.leave(grant)));
}
