//! Registrations, and ends of them, that take long, and what goes on meanwhile.

use std::time;

use super::*;
use crate::service::Order;

/// Of the region whose registration takes long, and of no other.
const LARGE: u64 = 2 * BYTES;
const LARGE_ONE: SegmentRef = SegmentRef(9);

/// Longer than anything here takes; only a failing test waits for it.
const PATIENCE: time::Duration = time::Duration::from_secs(20);

const OTHER_LANE: LaneId = LaneId::new(0, RailId(1));

fn batch(lane: LaneId, work: Work) -> PostBatch {
    PostBatch {
        lane,
        epoch: Epoch(1),
        works: [work].into_iter().collect(),
    }
}

fn write(cookie: u64, remote: SegmentRef) -> Work {
    let mut write = work(cookie, Op::Write, 0, 8, true);
    write.remote.segment = remote;
    write
}

impl Pair {
    /// Posts again whenever a lane can be written to, until something else is said of it.
    fn posted_in_time(&mut self, batch: &PostBatch) -> Stop {
        loop {
            match self.endpoint.post(batch) {
                WAITS => assert_eq!(self.fact().fact, LaneFact::Writable),
                posted => return posted.stop,
            }
        }
    }
}

/// Opens a lane on each of two rails, and asks over both after a region whose registration does not end.
fn that_ask() -> (Pair, Arc<Region>, Released) {
    let mut pair = Pair::new();
    let large = Arc::new(Region::allocate(LARGE, Access::RemoteReadWrite).unwrap());
    let described = RemoteRegion {
        key: large.key(),
        bytes: LARGE,
    };
    pair.regions.0.lock().unwrap().push(large.clone());
    pair.endpoint.attach_remote(LARGE_ONE, described);
    pair.opened(1);
    // Memory of this side is registered now, and it is the peer's that is waited for.
    pair.post(1, &[work(9, Op::Read, 0, 8, true)]);
    pair.completed(1);
    stub::hold_registrations(LARGE);
    pair.endpoint.attach_rail(RailId(1), pair.address.clone());
    let by = pair.clock.now() + Duration::from_secs(20);
    pair.endpoint.open(OTHER_LANE, Epoch(1), by);
    assert!(matches!(pair.fact().fact, LaneFact::Opened { .. }));
    for (lane, cookie) in [(LANE, 1), (OTHER_LANE, 2)] {
        let posted = pair.endpoint.post(&batch(lane, write(cookie, LARGE_ONE)));
        assert_eq!(posted, WAITS);
    }
    while stub::registrations_held() == 0 {
        thread::yield_now();
    }
    (pair, large, Released)
}

/// Whatever waits goes on when a test ends, however it does.
pub(super) struct Released;

impl Drop for Released {
    fn drop(&mut self) {
        stub::hold_registrations(u64::MAX);
        stub::hold_deregistrations(false);
        stub::hold_destructions(false);
    }
}

const WAITS: Posted = Posted {
    accepted: 0,
    stop: Stop::Full,
};

/// The answer of the target to a fence of a lane that it never had, once it has got to it.
fn fence_of_another(pair: &Pair) {
    let (told, tells) = mpsc::channel();
    pair.target.fence_inbound(
        OTHER,
        LANE,
        Epoch(9),
        Box::new(move |_| told.send(()).unwrap()),
    );
    tells.recv_timeout(PATIENCE).unwrap();
}

/// The second lane that asked after a region used to stop its device's thread until the region was registered.
#[test]
fn fences_lanes_and_other_memory_go_on_while_memory_is_registered() {
    let _turn = turn();
    let (mut pair, large, _released) = that_ask();
    // Smaller memory, on lanes that wait for the large one.
    for (lane, cookie) in [(LANE, 3), (OTHER_LANE, 4)] {
        assert_eq!(
            pair.posted_in_time(&batch(lane, write(cookie, REMOTE))),
            Stop::All
        );
        assert_eq!(pair.completed(1), [(cookie, SUCCESS)]);
    }
    fence_of_another(&pair);
    // And another lane.
    let third = LaneId::new(0, RailId(2));
    pair.endpoint.attach_rail(RailId(2), pair.address.clone());
    let by = pair.clock.now() + Duration::from_secs(20);
    pair.endpoint.open(third, Epoch(1), by);
    pair.until(|pair| pair.facts.iter().any(|fact| fact.lane == third));
    pair.facts.clear();
    stub::hold_registrations(u64::MAX);
    for (lane, cookie) in [(LANE, 5), (OTHER_LANE, 6)] {
        assert_eq!(
            pair.posted_in_time(&batch(lane, write(cookie, LARGE_ONE))),
            Stop::All
        );
        assert_eq!(pair.completed(1), [(cookie, SUCCESS)]);
    }
    assert!(large.revoke());
}

/// What takes its time with one device held up the thread of another one, and workers behind that.
#[test]
fn a_device_comes_back_while_another_one_takes_long_to_let_go_of_memory() {
    let _turn = turn();
    let mut pair = Pair::new();
    let local = pair.local.clone();
    pair.opened(1);
    pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
    pair.completed(1);
    let _released = Released;
    stub::hold_deregistrations(true);
    let revoked = thread::spawn(move || local.revoke());
    while stub::deregistrations_held() == 0 {
        thread::yield_now();
    }
    stub::happen(1, stub::Happening::DeviceFatal);
    let by = pair.clock.now() + Duration::from_secs(20);
    let address = RailAddress {
        local: Some([127, 0, 0, 2].into()),
        ..pair.address.clone()
    };
    pair.endpoint.attach_rail(RailId(1), address);
    // It is not looked for at each try.
    for epoch in 1.. {
        assert!(pair.clock.now() < by, "its thread waits");
        pair.endpoint.open(OTHER_LANE, Epoch(epoch), by);
        let is_said = |fact: &LaneReport| (fact.lane, fact.epoch) == (OTHER_LANE, Epoch(epoch));
        pair.until(|pair| pair.facts.iter().any(is_said));
        let said = pair.facts.drain(..).find(is_said).unwrap().fact;
        if matches!(said, LaneFact::Opened { .. }) {
            break;
        }
    }
    stub::hold_deregistrations(false);
    assert!(revoked.join().unwrap());
}

/// A lane used to be broken after five seconds, again and again, however long the registration took.
#[test]
fn those_that_wait_for_memory_hear_that_they_have_to() {
    let _turn = turn();
    let (mut pair, _large, _released) = that_ask();
    let due = pair.endpoint.poll_timeout().unwrap();
    pair.until(|pair| pair.endpoint.poll_timeout().is_some_and(|now| now > due));
    stub::hold_registrations(u64::MAX);
    // A lane may be told to try once more as often as it likes, and is not broken.
    for (lane, cookie) in [(LANE, 3), (OTHER_LANE, 4)] {
        assert_eq!(
            pair.posted_in_time(&batch(lane, write(cookie, LARGE_ONE))),
            Stop::All
        );
        assert_eq!(pair.completed(1), [(cookie, SUCCESS)]);
    }
}

#[test]
fn memory_that_is_taken_back_while_it_is_registered_is_free_when_that_has_ended() {
    let _turn = turn();
    let (mut pair, large, _released) = that_ask();
    let (says, said) = mpsc::channel();
    let revoked = thread::spawn({
        let large = large.clone();
        move || {
            let is_free = large.revoke();
            says.send(()).unwrap();
            is_free
        }
    });
    while large.enter().is_some() {
        thread::yield_now();
    }
    // Neither the device's thread nor anybody else waits with it.
    fence_of_another(&pair);
    assert!(large.is_touched());
    assert_eq!(said.try_recv(), Err(mpsc::TryRecvError::Empty));
    stub::hold_registrations(u64::MAX);
    assert!(revoked.join().unwrap());
    assert!(!large.is_touched());
    let nothing = Stop::Rejected(Cause::RemoteAccess);
    assert_eq!(
        pair.posted_in_time(&batch(LANE, write(7, LARGE_ONE))),
        nothing
    );
}

/// A region is registered once more when its device has been opened again, or when somebody asks after it who could not have it before.
/// That the first time is over was taken for the end of the second: those that waited were told that there is no such region, and
/// so were refused for as long as their lanes lived.
#[test]
fn those_that_wait_for_memory_are_not_told_how_an_earlier_registration_ended() {
    let _turn = turn();
    let (mut pair, large, _released) = that_ask();
    let address = pair.address.remote.ip();
    let service = pair.target.common.services.of(address).unwrap();
    let earlier = (TrustDomain::COMMON, large.key());
    service.desk.order(Order::Registered(earlier));
    fence_of_another(&pair);
    stub::hold_registrations(u64::MAX);
    for (lane, cookie) in [(LANE, 3), (OTHER_LANE, 4)] {
        let again = batch(lane, write(cookie, LARGE_ONE));
        assert_eq!(pair.posted_in_time(&again), Stop::All);
        assert_eq!(pair.completed(1), [(cookie, SUCCESS)]);
    }
}
