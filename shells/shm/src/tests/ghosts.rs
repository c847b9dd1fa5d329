//! Initiators that are stopped in the midst of a write to private memory: what the target is told while they are, and that
//! nothing comes later than it was told that it has its memory back.

use std::sync::mpsc::{Receiver, Sender};

use polyrail_transport::memory::LOANS_MAX;

use super::*;

/// As much goes by the descriptor of the target's memory, and as much by its mark.
const LENGTHS: [u32; 2] = [4096, 100_000];
const BYTES: u32 = LENGTHS[1];
const ALL: [Point; 4] = [Point::Outside, Point::Inside, Point::Written, Point::Left];

/// How a work is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Posted,
    AtOnce,
    /// As works that lie apart, all in one call.
    Apart,
}

/// The same bytes as of `write(length)`, the last ones first.
fn apart(length: u32) -> Vec<Work> {
    const WORKS: u32 = 8;
    let each = length / WORKS;
    let mut works: Vec<_> = (0..WORKS)
        .map(|number| {
            let at = u64::from(number * each);
            let last = if number + 1 == WORKS {
                length % WORKS
            } else {
                0
            };
            work(Op::Write, at, at, each + last)
        })
        .collect();
    works.reverse();
    works
}

/// An initiator that writes, and is stopped at a point of that until somebody lets it go on.
fn write_and_stop(
    target: &Target,
    there: &Region,
    length: u32,
    way: Way,
    point: Point,
    stopped: Sender<()>,
    go_on: Receiver<()>,
) -> Outcome {
    let mut initiator = Initiator::of(target, there);
    assert_eq!(initiator.outcomes(&[write(BYTES)]), [Outcome::Success]);
    put(&initiator.local, &[7; BYTES as usize]);
    let mut ends = Some((stopped, go_on));
    stop::on(move |at| {
        if at == point
            && let Some((stopped, go_on)) = ends.take()
        {
            stopped.send(()).unwrap();
            go_on.recv_timeout(PATIENCE).unwrap();
        }
    });
    match way {
        Way::AtOnce if initiator.carries(ONE, write(length)) => Outcome::Success,
        // What does not go at once is posted.
        Way::AtOnce | Way::Posted => initiator.outcomes(&[write(length)])[0],
        Way::Apart => initiator.outcomes(&apart(length))[0],
    }
}

/// Fills memory as its program does that has it back.
fn refill(there: &Region) {
    // SAFETY: the region is alive, and so is its memory.
    unsafe { there.base().write_bytes(0xaa, BYTES as usize) };
}

fn is_refilled(there: &Region) -> bool {
    // SAFETY: as above; nobody writes to it any more, or the test fails.
    let bytes = unsafe { std::slice::from_raw_parts(there.base().as_ptr(), BYTES as usize) };
    bytes.iter().all(|byte| *byte == 0xaa)
}

/// Stops an initiator at a point, takes its target's memory back, and lets it go on.
fn take_back_while_stopped(length: u32, way: Way, point: Point) {
    let name = format!("{length} {way:?} {point:?}");
    let target = Target::start();
    let there = target.register(BYTES.into(), Access::RemoteReadWrite, false);
    let (stopped, is_stopped) = mpsc::channel();
    let (go, go_on) = mpsc::channel();
    thread::scope(|scope| {
        let writes =
            scope.spawn(|| write_and_stop(&target, &there, length, way, point, stopped, go_on));
        is_stopped.recv_timeout(PATIENCE).unwrap();
        let began = StdInstant::now();
        there.revoke();
        let took = began.elapsed();
        let is_inside = matches!(point, Point::Inside | Point::Written);
        assert_eq!(there.is_lent(), is_inside, "{name}");
        assert_eq!(took >= LOANS_MAX, is_inside, "{name}: {took:?}");
        if !is_inside {
            refill(&there);
        }
        go.send(()).unwrap();
        let outcome = writes.join().unwrap();
        let expected = match point {
            Point::Outside => Outcome::Error(Cause::RemoteAccess),
            Point::Inside | Point::Written | Point::Left => Outcome::Success,
        };
        assert_eq!(outcome, expected, "{name}");
        if is_inside {
            assert!(!there.is_lent(), "{name}: it has left");
            assert!(
                bytes_of(&there)[..length as usize]
                    .iter()
                    .all(|byte| *byte == 7),
                "{name}"
            );
            refill(&there);
        }
        assert!(is_refilled(&there), "{name}");
    });
}

fn bytes_of(there: &Region) -> Vec<u8> {
    // SAFETY: as in `is_refilled`.
    unsafe { std::slice::from_raw_parts(there.base().as_ptr(), BYTES as usize) }.to_vec()
}

#[test]
fn no_byte_comes_after_memory_is_said_to_be_free_wherever_an_initiator_is_stopped() {
    thread::scope(|scope| {
        for length in LENGTHS {
            for way in [Way::Posted, Way::AtOnce, Way::Apart] {
                for point in ALL {
                    scope.spawn(move || take_back_while_stopped(length, way, point));
                }
            }
        }
    });
}

/// Private memory of a target, and a peer that says that it is inside, by its grant 3.
fn inside(target: &Target) -> (Arc<Region>, OwnedFd, Mailbox) {
    let there = target.register(BYTES.into(), Access::RemoteReadWrite, false);
    let (socket, mailbox) = raw(target);
    let (answer, _) = hostile::map(&socket, there.key(), 3);
    assert!(matches!(answer, Answer::Private { .. }));
    assert!(mailbox.enter(3));
    (there, socket, mailbox)
}

#[test]
fn memory_of_which_nobody_knows_whether_it_is_written_to_is_not_given_back() {
    // A peer that says that it is inside for ever; and one that hangs up, or lets go of the segment.
    type End = fn(OwnedFd, &Mailbox);
    let ends: [(&str, End); 3] = [
        ("leaves", |socket, mailbox| {
            mailbox.leave(3);
            // It keeps its lane.
            std::mem::forget(socket);
        }),
        ("hangs up", |socket, _mailbox| drop(socket)),
        ("lets go", |socket, _mailbox| {
            packets::send(&socket, &Request::Unmap { grant: 3 }, None).unwrap();
            std::mem::forget(socket);
        }),
    ];
    thread::scope(|scope| {
        for (name, end) in ends {
            scope.spawn(move || {
                let target = Target::start();
                let (there, socket, mailbox) = inside(&target);
                there.revoke();
                assert!(
                    there.is_lent() && !there.retire(StdInstant::now()),
                    "{name}"
                );
                end(socket, &mailbox);
                let until = StdInstant::now() + PATIENCE;
                while there.is_lent() {
                    assert!(StdInstant::now() < until, "{name}");
                    thread::yield_now();
                }
                assert!(there.retire(StdInstant::now()), "{name}");
            });
        }
    });
}

#[test]
fn memory_stays_lent_when_the_transport_has_ended() {
    let target = Target::start();
    let (there, _socket, mailbox) = inside(&target);
    there.revoke();
    drop(target);
    assert!(there.is_lent());
    mailbox.leave(3);
    assert!(!there.is_lent());
}
