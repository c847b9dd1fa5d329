//! Works that were meant for memory as it was registered before, tried out on two devices: what it is registered anew as, they do not
//! change. A device gives out a key again when it likes, so here works name the present key by hand.

use std::ffi::c_int;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail_core::work::Op;
use polyrail_transport::memory::{Access, Region, TrustDomain};

use crate::Settings;
use crate::device::Device;
use crate::discover::Sysfs;
use crate::ffi::raw::{self, Calls, Wc};
use crate::ffi::{self, Cq, Extras, Mr, Qp, Reach, Source, Work};

/// Of the memory that is written to.
const BYTES: u64 = 4096;
/// Longer than a work takes; only one that goes wrong waits for it.
const PATIENCE: Duration = Duration::from_secs(60);
/// The status of a work that its peer's device refuses.
const REMOTE_ACCESS: c_int = 10;

/// What a work names memory by.
#[derive(Clone, Copy)]
struct Name {
    address: u64,
    key: u32,
}

/// One end.
struct End {
    device: Arc<Device>,
    address: IpAddr,
    queue: Arc<Cq>,
}

impl End {
    fn open(
        calls: &Calls,
        sysfs: &Sysfs,
        (name, address): (&str, IpAddr),
        number: usize,
    ) -> io::Result<Self> {
        let settings = Settings {
            // A packet that is lost is sent again each second or so, for ten seconds.
            ack_timeout: 18,
            retry_count: 6,
            ..Settings::default()
        };
        let found = sysfs.port(name, 1);
        let device = Arc::new(Device::open(calls, sysfs, &found, number, settings)?);
        Ok(Self {
            queue: Arc::new(Cq::new(&device.context, 16)?),
            device,
            address,
        })
    }
}

/// A queue pair and its peer.
struct Pair {
    near: Qp,
    _far: Qp,
}

struct Bench {
    near: End,
    far: End,
    from: Arc<Region>,
    own: Mr,
    to: Arc<Region>,
}

impl Bench {
    fn pair(&self) -> io::Result<Pair> {
        let theirs = self.far.device.theirs(TrustDomain::COMMON)?;
        let make = |end: &End, domain, serves| {
            let (path, mut side) = end.device.way(end.address)?;
            let (queue, extras) = (&end.queue, Extras::NONE);
            let qp = end.device.queue_pair(domain, queue, (8, 1), extras)?;
            qp.init(&path, serves)?;
            side.queue_pair = qp.number();
            Ok::<_, io::Error>((qp, path, side))
        };
        let (near, near_path, near_side) = make(&self.near, &self.near.device.ours, false)?;
        let (far, far_path, far_side) = make(&self.far, &theirs, true)?;
        far.connect(&far_side, &near_side, &far_path)?;
        near.connect(&near_side, &far_side, &near_path)?;
        Ok(Pair { near, _far: far })
    }

    fn register(&self) -> io::Result<Mr> {
        let theirs = self.far.device.theirs(TrustDomain::COMMON)?;
        Mr::new(&theirs, &self.to, (0, BYTES), Reach::ReadWrite, false)
    }

    /// Begins to write all of it, with this byte.
    fn write(&self, pair: &Pair, name: Name, byte: u8) -> io::Result<()> {
        self.from.store(&[byte; BYTES as usize], 0)?;
        let work = Work {
            id: 1,
            op: Op::Write,
            source: Source::Range(raw::Sge {
                addr: self.own.address(),
                length: BYTES as u32,
                lkey: self.own.local_key(),
            }),
            remote_address: name.address,
            remote_key: name.key,
            signal: true,
            joined: 1,
        };
        pair.near.post(&[work], &[], &[]).1
    }

    /// The status of the write that was begun, once it is over, or `None` after so long.
    fn status(&self, longest: Duration) -> io::Result<Option<c_int>> {
        let until = Instant::now() + longest;
        let mut taken = [Wc::default()];
        while self.near.queue.poll(&mut taken)? == 0 {
            if Instant::now() > until {
                return Ok(None);
            }
            std::thread::yield_now();
        }
        Ok(Some(taken[0].status))
    }

    /// That what was on its way did not do well, if it has ended at all: Soft-RoCE has been seen not to send it again. And that the
    /// memory holds this byte.
    fn expect_lost(&self, byte: u8) -> io::Result<()> {
        let is = self.status(Duration::from_secs(15))?;
        self.check(
            "one that was on its way",
            is,
            is.is_none_or(|is| is != 0),
            byte,
        )
    }

    /// That what was written has this status, and that the memory holds this byte.
    fn expect(&self, what: &str, status: c_int, byte: u8) -> io::Result<()> {
        let is = self.status(PATIENCE)?;
        self.check(what, is, is == Some(status), byte)
    }

    fn check(&self, what: &str, is: Option<c_int>, is_right: bool, byte: u8) -> io::Result<()> {
        let mut now = [0; BYTES as usize];
        self.to.load(0, &mut now)?;
        let other = now.iter().find(|now| **now != byte);
        match (is_right, other) {
            (true, None) => Ok(()),
            (_, other) => Err(io::Error::other(format!(
                "{what}: its status is {is:?}; a byte that is not {byte}: {other:?}"
            ))),
        }
    }
}

fn name(registered: &Mr) -> Name {
    Name {
        address: registered.address(),
        key: registered.remote_key(),
    }
}

/// Tries it between ports 1 of two devices of this machine, each with one of its addresses. `cut(true)` has to cut the wire between
/// them, and `cut(false)` to join it again.
///
/// # Errors
///
/// What is not as it has to be, or cannot be tried.
pub fn replay(devices: [(&str, IpAddr); 2], cut: impl FnMut(bool)) -> io::Result<()> {
    over(&ffi::load()?, &Sysfs::new("/sys"), devices, cut)
}

pub(crate) fn over(
    calls: &Calls,
    sysfs: &Sysfs,
    [near, far]: [(&str, IpAddr); 2],
    mut cut: impl FnMut(bool),
) -> io::Result<()> {
    let near = End::open(calls, sysfs, near, 0)?;
    let far = End::open(calls, sysfs, far, 1)?;
    let memory = |access| Region::allocate(BYTES, access).map(Arc::new);
    let (from, to) = (memory(Access::Local)?, memory(Access::RemoteReadWrite)?);
    let own = Mr::new(&near.device.ours, &from, (0, BYTES), Reach::Own, false)?;
    let bench = Bench {
        near,
        far,
        from,
        own,
        to,
    };
    let registered = bench.register()?;
    let before = name(&registered);
    let pair = bench.pair()?;
    bench.write(&pair, before, 1)?;
    bench.expect("a write", 0, 1)?;
    cut(true);
    bench.write(&pair, before, 2)?;
    drop(registered);
    let registered = bench.register()?;
    let now = name(&registered);
    cut(false);
    bench.expect_lost(1)?;
    // What is left of it goes with its queue pairs.
    drop(pair);
    let own_address = bench.to.base().as_ptr() as u64;
    let cases = [
        ("the key before, the address before", before),
        (
            "the key now, the address before",
            Name {
                key: now.key,
                ..before
            },
        ),
        (
            "the key before, the address now",
            Name {
                key: before.key,
                ..now
            },
        ),
        (
            "the key now, its own address",
            Name {
                address: own_address,
                key: now.key,
            },
        ),
    ];
    for (what, name) in cases {
        // A device that gives the key out again has one name for both.
        if (name.address, name.key) != (now.address, now.key) {
            let pair = bench.pair()?;
            bench.write(&pair, name, 3)?;
            bench.expect(what, REMOTE_ACCESS, 1)?;
        }
    }
    let pair = bench.pair()?;
    bench.write(&pair, now, 4)?;
    bench.expect("the key now, the address now", 0, 4)
}
