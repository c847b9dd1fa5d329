//! What is said where the device may go on with what it was told to let go of, and what it then does.

use std::sync::Weak;
use std::time;

use polyrail_transport::memory::Region;

use super::slow::Released;
use super::*;
use crate::stub::{Call, Happening, ghosts, ghosts_of};

/// Longer than anything here takes; only a failing test waits for it.
const PATIENCE: time::Duration = time::Duration::from_secs(30);

/// Why the end of something is not proved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doubt {
    /// The calls that end things fail with this.
    Fails(i32),
    /// They succeed, and the device has failed.
    Failed,
}

const DOUBTS: [Doubt; 4] = [
    Doubt::Fails(libc::EIO),
    Doubt::Fails(libc::ETIMEDOUT),
    Doubt::Fails(libc::EBUSY),
    Doubt::Failed,
];

impl Doubt {
    /// From now on, until the device is there again, it is so at this device.
    fn begin(self, device: usize) {
        stub::unplug(device, true);
        match self {
            Self::Fails(number) => {
                stub::fail(Call::DestroyQp, number);
                stub::fail(Call::DeregMr, number);
            }
            Self::Failed => stub::happen(device, Happening::DeviceFatal),
        }
    }

    fn end(self, device: usize) {
        stub::fail_nothing();
        stub::unplug(device, false);
    }
}

impl Pair {
    /// With a read and a write on their way that have not arrived: to 8 bytes at 200, and of 8 bytes at 100.
    fn with_works_on_their_way() -> Self {
        let mut pair = Self::new();
        pair.opened(1);
        pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
        pair.completed(1);
        fill(&pair.local, 7);
        fill(&pair.remote, 9);
        stub::hold(true);
        let works = [
            work(2, Op::Read, 200, 8, false),
            work(3, Op::Write, 100, 8, true),
        ];
        assert_eq!(pair.post(1, &works).accepted, 2);
        stub::hold(false);
        pair
    }

    /// Opens another lane, and waits until the worker would hear of that, which it does not: nothing else rouses it.
    fn opened_unheard(&mut self) -> LaneId {
        let lane = LaneId::new(0, RailId(1));
        self.endpoint.attach_rail(lane.rail(), self.address.clone());
        let patience = Duration::from_secs(30);
        let by = self.clock.now() + patience;
        self.endpoint.open(lane, Epoch(1), by);
        let (wakes, _keep) = std::os::unix::net::UnixStream::pair().unwrap();
        self.endpoint.sleep(wakes.as_fd(), Some(patience)).unwrap();
        lane
    }

    /// Waits for what is said of a fence, with nothing else in between but that the lane is broken.
    fn said_of_fence(&mut self) -> LaneFact {
        loop {
            match self.fact().fact {
                LaneFact::Broken(_) => {}
                fact => return fact,
            }
        }
    }

    /// Tries again and again, while devices' threads open them anew by themselves.
    fn until_free(&mut self, region: &Region) {
        in_time(region, || {
            self.poll();
            region.revoke()
        });
    }
}

/// What threads do by themselves, in their own time.
fn in_time(what: impl std::fmt::Debug, mut is_so: impl FnMut() -> bool) {
    let patience = time::Instant::now() + PATIENCE;
    while !is_so() {
        assert!(time::Instant::now() < patience, "{what:?}");
        thread::yield_now();
    }
}

const UNFENCEABLE: LaneFact = LaneFact::Unfenceable {
    scope: Scope::Local,
};
const FENCED: LaneFact = LaneFact::Fenced {
    scope: Scope::Local,
    delivered: None,
};

#[test]
fn a_queue_pair_that_may_live_is_not_fenced_until_its_device_has_been_opened_anew() {
    let _turn = turn();
    for doubt in DOUBTS {
        let mut pair = Pair::with_works_on_their_way();
        doubt.begin(0);
        pair.endpoint.fence(LANE, Epoch(1), Scope::Local);
        assert_eq!(pair.said_of_fence(), UNFENCEABLE, "{doubt:?}");
        // Asked again, and whether or not another epoch begins meanwhile.
        pair.endpoint.fence(LANE, Epoch(1), Scope::Local);
        assert_eq!(pair.said_of_fence(), UNFENCEABLE, "{doubt:?}");
        let refused = LaneFact::OpenFailed(Cause::Refused);
        assert_eq!(pair.open(2), refused, "{doubt:?}");
        pair.endpoint.fence(LANE, Epoch(1), Scope::Local);
        assert_eq!(pair.said_of_fence(), UNFENCEABLE, "{doubt:?}");
        pair.endpoint.fence(LANE, Epoch(2), Scope::Local);
        assert_eq!(pair.said_of_fence(), FENCED, "{doubt:?}");
        // It was right not to say so: the answer of a read was on its way.
        assert!(stub::land() > 0, "{doubt:?}");
        assert_eq!(byte(&pair.local, 200), 9, "{doubt:?}");
        doubt.end(0);
        assert_eq!(pair.said_of_fence(), FENCED, "{doubt:?}");
        fill(&pair.local, 7);
        stub::land();
        assert_eq!(byte(&pair.local, 200), 7, "{doubt:?}");
        // The target's device may have been in doubt too, and still be.
        assert_eq!(ghosts_of(0), 0, "{doubt:?}");
        let epoch = pair.opened_in_time(3);
        pair.post(epoch, &[work(4, Op::Write, 300, 8, true)]);
        assert_eq!(pair.completed(1), [(4, SUCCESS)], "{doubt:?}");
    }
}

#[test]
fn a_target_does_not_answer_a_fence_that_it_cannot_prove() {
    let _turn = turn();
    for doubt in DOUBTS {
        let pair = Pair::with_works_on_their_way();
        doubt.begin(1);
        let (answer, answers) = mpsc::channel();
        let fence = |lane: LaneId, epoch| {
            let answer = answer.clone();
            let told = move |_| answer.send(Some((lane, epoch))).unwrap();
            pair.target
                .fence_inbound(SESSION, lane, Epoch(epoch), Box::new(told));
        };
        fence(LANE, 1);
        fence(LANE, 2);
        let answered = answer.clone();
        pair.target
            .retire_session(SESSION, Box::new(move || answered.send(None).unwrap()));
        // What nothing was on is answered at once, and orders are taken in turn.
        let other = LaneId::new(0, RailId(7));
        let (told, tells) = mpsc::channel();
        pair.target.fence_inbound(
            OTHER,
            other,
            Epoch(9),
            Box::new(move |_| told.send(()).unwrap()),
        );
        tells.recv().unwrap();
        assert_eq!(answers.try_recv(), Err(mpsc::TryRecvError::Empty));
        assert!(stub::land() > 0, "{doubt:?}");
        assert_eq!(byte(&pair.remote, 100), 7, "{doubt:?}");
        doubt.end(1);
        let mut said: Vec<_> = (0..3).map(|_| answers.recv().unwrap()).collect();
        said.sort();
        assert_eq!(said, [None, Some((LANE, 1)), Some((LANE, 2))], "{doubt:?}");
        assert_eq!(ghosts_of(1), 0, "{doubt:?}");
    }
}

#[test]
fn memory_that_a_device_may_go_on_with_is_kept_until_that_has_been_opened_anew() {
    let _turn = turn();
    for doubt in DOUBTS {
        // (whose device, where the works that are on their way change memory)
        for (device, offset) in [(0, 200), (1, 100)] {
            let mut pair = Pair::with_works_on_their_way();
            let region = [&pair.local, &pair.remote][device].clone();
            let before = byte(&region, offset);
            doubt.begin(device);
            assert!(!region.revoke(), "{doubt:?} {device}");
            assert!(region.is_touched(), "{doubt:?} {device}");
            // Nobody waits for it again and again.
            assert!(!region.revoke(), "{doubt:?} {device}");
            stub::land();
            assert_ne!(byte(&region, offset), before, "{doubt:?} {device}");
            doubt.end(device);
            if device == 0 {
                pair.endpoint.fence(LANE, Epoch(1), Scope::Local);
                while pair.said_of_fence() != FENCED {}
            }
            pair.until_free(&region);
            assert_eq!(
                (region.is_touched(), ghosts_of(device)),
                (false, 0),
                "{doubt:?} {device}"
            );
        }
    }
}

/// Freed memory would be written to: the test would fail, or end by a signal.
#[test]
fn memory_of_a_device_that_failed_and_never_came_back_stays_for_ever() {
    let _turn = turn();
    let pair = Pair::with_works_on_their_way();
    let weak: [Weak<Region>; 2] = [&pair.local, &pair.remote].map(Arc::downgrade);
    let (answer, answers) = mpsc::channel();
    (0..2).for_each(|device| Doubt::Failed.begin(device));
    pair.target.fence_inbound(
        SESSION,
        LANE,
        Epoch(1),
        Box::new(move |told| answer.send(told).unwrap()),
    );
    drop(pair);
    assert!(stub::land() > 0);
    for (region, at) in weak.iter().zip([200, 100]) {
        let region = region.upgrade().expect("a device may touch it");
        assert!(!region.revoke());
        assert_ne!(byte(&region, at), byte(&region, 0));
    }
    assert_eq!(answers.recv(), Err(mpsc::RecvError), "nothing was proved");
    (0..2).for_each(|device| Doubt::Failed.end(device));
}

/// A device that has failed is not always heard of before it is told to let go of something.
#[test]
fn a_failure_that_nobody_has_heard_of_yet_spoils_the_proof() {
    use crate::device::Device;
    use crate::ffi::{Mr, Reach};
    let _turn = turn();
    let (_root, sysfs) = stub::machine().unwrap();
    let port = &sysfs.ports()[0];
    let device = Device::open(&stub::calls(), &sysfs, port, 0, Settings::default()).unwrap();
    let region = Arc::new(Region::allocate(4096, Access::Local).unwrap());
    let register = || Mr::new(&device.ours, &region, (0, 4096), Reach::Own, false).unwrap();
    drop(register());
    assert!(!region.is_touched());
    let registered = register();
    stub::happen(0, Happening::DeviceFatal);
    drop(registered);
    assert!(region.is_touched() && device.has_failed());
    assert_eq!(ghosts(), 1);
    // Reset, as it has to be to be opened again.
    let again = Device::open(&stub::calls(), &sysfs, port, 0, Settings::default()).unwrap();
    assert_eq!(ghosts(), 0);
    device.context.renew();
    drop(device);
    assert!(!region.is_touched());
    drop(again);
}

#[test]
fn what_cannot_be_ended_leaves_nothing_behind_once_it_can_be() {
    let _turn = turn();
    let before = COUNTERS.live.load(SeqCst);
    let all = [
        Call::DestroyQp,
        Call::DeregMr,
        Call::DestroyCq,
        Call::DestroyCompChannel,
        Call::DeallocPd,
    ];
    for call in all {
        let pair = Pair::with_works_on_their_way();
        stub::fail(call, libc::EIO);
        let regions = [pair.local.clone(), pair.remote.clone()];
        for region in &regions {
            region.revoke();
        }
        drop(pair);
        stub::fail_nothing();
        assert_eq!(stub::land(), 0, "{call:?}");
        for region in regions {
            in_time(call, || region.revoke());
        }
        in_time(call, || COUNTERS.live.load(SeqCst) == before);
    }
}

/// What is to be told of the end of a queue pair, once that is proved, names the worker, and what the worker was told last may have
/// another queue pair in it: of the same opening of the device, which would never be closed.
#[test]
fn a_worker_that_ends_with_a_lane_that_it_has_not_heard_of_keeps_no_device() {
    let _turn = turn();
    let before = COUNTERS.live.load(SeqCst);
    let mut pair = Pair::new();
    pair.opened(1);
    pair.opened_unheard();
    Doubt::Failed.begin(0);
    let other = pair.initiator.endpoint(0, pair.clock).unwrap();
    drop(std::mem::replace(&mut pair.endpoint, other));
    in_time("it may live", || ghosts() > 0);
    Doubt::Failed.end(0);
    drop(pair);
    in_time("all is let go of", || COUNTERS.live.load(SeqCst) == before);
}

/// A lane that was given up while it was opened keeps its completion queue, and with it the device's opening, until the device's
/// thread has let go of it: after the worker has heard that the queue is of no use any more. It used not to hear of that.
#[test]
fn a_lane_that_was_given_up_keeps_no_device_when_its_queue_pair_is_gone() {
    let _turn = turn();
    let mut pair = Pair::with_works_on_their_way();
    let unheard = pair.opened_unheard();
    let open = stub::contexts();
    stub::happen(0, Happening::DeviceFatal);
    pair.endpoint.fence(LANE, Epoch(1), Scope::Local);
    in_time("opened anew", || stub::contexts() > open);

    let _released = Released;
    stub::hold_destructions(true);
    pair.endpoint.close(unheard, Epoch(1));
    pair.poll();
    in_time("let go of", || stub::destructions_held() > 0);
    pair.poll();
    stub::hold_destructions(false);
    while pair.said_of_fence() != FENCED {}
    assert!(!pair.facts.iter().any(|fact| fact.lane == unheard));
}

/// A device that is there again is not always opened anew before the engine ends: that was tried a moment ago.
#[test]
fn memory_is_free_when_a_transport_ends_whose_device_has_just_come_back() {
    let _turn = turn();
    for doubt in DOUBTS {
        let mut pair = Pair::with_works_on_their_way();
        let regions = [pair.local.clone(), pair.remote.clone()];
        (0..2).for_each(|device| doubt.begin(device));
        pair.endpoint.fence(LANE, Epoch(1), Scope::Local);
        assert_eq!(pair.said_of_fence(), UNFENCEABLE, "{doubt:?}");
        assert!(regions.iter().all(|region| !region.revoke()), "{doubt:?}");
        (0..2).for_each(|device| doubt.end(device));
        drop(pair);
        for region in regions {
            in_time(doubt, || region.revoke());
        }
        stub::land();
        assert_eq!(ghosts(), 0, "{doubt:?}");
    }
}
