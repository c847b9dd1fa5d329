//! An open port of a device.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use polyrail_core::work::LaneLimits;
use polyrail_transport::memory::TrustDomain;

use crate::discover::{GidRow, LinkLayer, Port, Sysfs, gid_for, gid_of, partition};
use crate::ffi::raw::{Calls, PORT_ACTIVE, PORT_GRH_REQUIRED};
use crate::ffi::{Context, Cq, Extras, Path, Pd, Qp};
use crate::gid::Gid;
use crate::wire::{DeviceName, Side, first_packet};
use crate::{LANES_PER_QUEUE, Settings};

/// Bytes of the largest work, where a port does not say less.
const WORK_BYTES_MAX: u32 = 16 << 20;
/// Ranges of one work: each makes every place in a send queue longer.
const RANGES_MAX: u32 = 8;
/// Pieces that a region is registered in overlap by as much, so that each work lies in one.
pub(crate) const OVERLAP: u64 = WORK_BYTES_MAX as u64;

/// For so long the number of a queue pair that has ended names no other one: packets for it may still be on their way.
const NUMBER_REST: Duration = Duration::from_secs(1);

/// One port of one device, with its protection domains.
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) port: u8,
    link: LinkLayer,
    /// Its place among those of the transport.
    pub(crate) number: usize,
    /// Which opening of the device at that place this is, from 0.
    pub(crate) opening: u32,
    sysfs: Sysfs,
    pub(crate) context: Arc<Context>,
    /// For this engine's own works.
    pub(crate) ours: Arc<Pd>,
    /// For those of peers, by their trust domains; each is made when it is first asked for.
    theirs: Mutex<HashMap<TrustDomain, Arc<Pd>>>,
    pub(crate) limits: LaneLimits,
    /// What its queue pairs that post are to be able to do.
    pub(crate) extras: Extras,
    /// Ranges of one read; of a write as many as its queue pair can take.
    pub(crate) read_ranges: u32,
    /// Lanes that one completion queue has room for.
    pub(crate) lanes_per_queue: u32,
    completions_max: i32,
    /// Queue pairs that it has; `None`: it does not say.
    pub(crate) pairs_max: Option<u64>,
    /// Bytes of the largest registration; 0: any.
    registration_max: u64,
    pub(crate) settings: Settings,
    /// As its events say; what the kernel's files say may take a while to read.
    port_down: AtomicBool,
    /// Queue pairs with numbers that rest, and since when: while they have them, no other one gets them.
    resting: Mutex<Vec<(Instant, Qp)>>,
}

impl Device {
    pub(crate) fn open(
        calls: &Calls,
        sysfs: &Sysfs,
        found: &Port,
        number: usize,
        settings: Settings,
    ) -> io::Result<Self> {
        let which = (found.device.clone(), found.port, found.link);
        Self::open_again(calls, sysfs, which, (number, 0), settings)
    }

    fn open_again(
        calls: &Calls,
        sysfs: &Sysfs,
        (name, number_of_port, link): (String, u8, LinkLayer),
        (number, opening): (usize, u32),
        settings: Settings,
    ) -> io::Result<Self> {
        let context = Arc::new(Context::open(calls, &name, sysfs.has_peer_memory())?);
        let can = context.attributes()?;
        // What becomes of it after this is heard.
        let port = context.port(number_of_port)?;
        // One more goes behind those of core.
        let works = at_most(
            can.max_cqe,
            at_most(can.max_qp_wr, u32::from(settings.queue_depth) + 1),
        )
        .max(2);
        let rooms = works;
        let works = rooms - 1;
        let reads = at_most(
            can.max_qp_rd_atom,
            at_most(can.max_qp_init_rd_atom, settings.reads_max.into()),
        );
        let bytes = match port.max_msg_sz {
            0 => WORK_BYTES_MAX,
            bytes => bytes.min(WORK_BYTES_MAX),
        };
        if (1..2 * OVERLAP).contains(&can.max_mr_size) {
            return Err(io::Error::other(format!(
                "it registers {} bytes at once; {} are needed",
                can.max_mr_size,
                2 * OVERLAP
            )));
        }
        let works_max = u16::try_from(works).unwrap_or(u16::MAX);
        let ours = Arc::new(Pd::new(&context)?);
        try_reliable(&context, &ours)?;
        Ok(Self {
            name,
            port: number_of_port,
            link,
            number,
            opening,
            sysfs: sysfs.clone(),
            ours,
            theirs: Mutex::default(),
            context,
            limits: LaneLimits {
                reads_max: (reads.max(1) as u16).min(works_max),
                covers: true,
                counts: true,
                ..LaneLimits::new(works_max, bytes)
            },
            extras: Extras {
                ranges: at_most(can.max_sge, RANGES_MAX),
                inline_bytes: settings.inline_bytes.into(),
            },
            read_ranges: at_most(can.max_sge_rd, RANGES_MAX),
            lanes_per_queue: at_most(can.max_cqe, LANES_PER_QUEUE * rooms) / rooms,
            completions_max: can.max_cqe,
            pairs_max: u64::try_from(can.max_qp).ok().filter(|pairs| *pairs > 0),
            registration_max: can.max_mr_size,
            settings,
            port_down: AtomicBool::new(port.state != PORT_ACTIVE),
            resting: Mutex::default(),
        })
    }

    /// The pieces that it registers so many bytes in: how far each begins after the one before, and how many. They overlap
    /// by [`OVERLAP`].
    pub(crate) fn pieces(&self, bytes: u64) -> (u64, u64) {
        if self.registration_max == 0 || bytes <= self.registration_max {
            return (u64::MAX, 1);
        }
        let step = self.registration_max - OVERLAP;
        (step, (bytes - OVERLAP).div_ceil(step))
    }

    /// Bytes of the piece that begins there.
    pub(crate) fn piece_bytes(&self, offset: u64, bytes: u64) -> u64 {
        match self.registration_max {
            0 => bytes - offset,
            most => most.min(bytes - offset),
        }
    }

    /// The protection domain of peers of a trust domain, and of the memory that they may touch: what a key opens in one
    /// means nothing in another.
    pub(crate) fn theirs(&self, domain: TrustDomain) -> io::Result<Arc<Pd>> {
        let mut theirs = self.theirs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = theirs.get(&domain) {
            return Ok(known.clone());
        }
        let made = Arc::new(Pd::new(&self.context)?);
        theirs.insert(domain, made.clone());
        Ok(made)
    }

    /// A queue pair, with a number that none has had that ended lately.
    pub(crate) fn queue_pair(
        &self,
        domain: &Arc<Pd>,
        queue: &Arc<Cq>,
        (works, receives): (u32, u32),
        extras: Extras,
    ) -> io::Result<Qp> {
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        resting.retain(|(since, _)| since.elapsed() < NUMBER_REST);
        // Each that is put aside takes a number out of the device's hands, so that those who come later find others at once.
        loop {
            let made = Qp::new(domain, queue, (works, receives), extras)?;
            if !self.context.has_ended_within(made.number(), NUMBER_REST) {
                return Ok(made);
            }
            resting.push((Instant::now(), made));
        }
    }

    /// So many places in a completion queue, or as many as there can be.
    pub(crate) fn queue_depth(&self, wanted: u32) -> u32 {
        at_most(self.completions_max, wanted)
    }

    /// The names of its port, as they are now. Nothing else is read, because the kernel asks the device for that, which may not
    /// answer.
    fn gids(&self) -> Vec<GidRow> {
        self.sysfs.gids(&self.name, self.port, self.link)
    }

    /// Whether its port carries no packets now, or it is of no use any more, as far as its thread has heard. Never waits.
    pub(crate) fn is_down(&self) -> bool {
        self.has_failed() || self.port_down.load(Relaxed)
    }

    /// Its port carries packets, or does not.
    pub(crate) fn set_port_down(&self, down: bool) {
        self.port_down.store(down, Relaxed);
    }

    /// How fast its port says it is.
    pub(crate) fn speed_bits_per_sec(&self) -> Option<u64> {
        self.sysfs.speed_bits_per_sec(&self.name, self.port)
    }

    /// It is of no use any more.
    pub(crate) fn fail(&self) {
        self.context.fail();
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.context.has_failed()
    }

    /// Whether an address of this host is its.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        match self.link {
            LinkLayer::Ethernet => gid_of(&self.gids(), address).is_some(),
            LinkLayer::InfiniBand => self
                .sysfs
                .interface_of(address)
                .is_some_and(|interface| self.sysfs.is_of(&interface, &self.name, self.port)),
        }
    }

    /// How a queue pair at this address is connected, and what the peer is told of it but its number. Everything is
    /// read anew: names change when a link comes back.
    pub(crate) fn way(&self, address: IpAddr) -> io::Result<(Path, Side)> {
        if self.has_failed() {
            return Err(io::Error::other(format!(
                "{}: the device has failed",
                self.name
            )));
        }
        let wrong = |why: String| {
            let down = if self.is_down() { "; it is down" } else { "" };
            io::Error::other(format!("{} port {}: {why}{down}", self.name, self.port))
        };
        let gids = self.gids();
        let row = gid_for(&gids, self.link, address, self.settings.gid_index).map_err(wrong)?;
        let attributes = self.context.port(self.port)?;
        let is_ethernet = self.link == LinkLayer::Ethernet;
        let pkey_index = match is_ethernet {
            true => 0,
            false => {
                let keys = self.sysfs.partition_keys(&self.name, self.port);
                partition(&keys, self.settings.pkey).map_err(wrong)?
            }
        };
        let path = Path {
            port: self.port,
            gid_index: row.index,
            pkey_index,
            is_global: is_ethernet || attributes.flags & PORT_GRH_REQUIRED != 0,
            reads_max: self.limits.reads_max as u8,
            settings: self.settings,
        };
        let side = Side {
            device: DeviceName::new(&self.name),
            queue_pair: 0,
            gid: row.gid,
            lid: attributes.lid,
            mtu: u8::try_from(attributes.active_mtu).unwrap_or(1).clamp(1, 5),
            reads_max: self.limits.reads_max as u8,
            first_packet: first_packet()?,
        };
        Ok((path, side))
    }

    /// `rxe0 port 1 (::ffff:10.0.0.1)`, for errors.
    pub(crate) fn describe(&self, gid: Gid) -> String {
        format!("{} port {} ({gid})", self.name, self.port)
    }
}

/// A place of the transport for a device: the device that is open there, or has failed until it can be opened again.
pub(crate) struct Site {
    calls: Calls,
    now: RwLock<Arc<Device>>,
    /// Addresses may have come to it that nobody has looked for.
    has_changed: AtomicBool,
}

impl Site {
    pub(crate) fn new(calls: &Calls, device: Device) -> Self {
        Self {
            calls: *calls,
            now: RwLock::new(Arc::new(device)),
            has_changed: AtomicBool::new(false),
        }
    }

    /// Addresses may have come to it.
    pub(crate) fn change(&self) {
        self.has_changed.store(true, Release);
    }

    /// Whether some may have since this was asked last.
    pub(crate) fn take_changes(&self) -> bool {
        self.has_changed.swap(false, AcqRel)
    }

    pub(crate) fn device(&self) -> Arc<Device> {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        now.clone()
    }

    /// Opens the device of this name anew.
    pub(crate) fn reopen(&self) -> io::Result<Arc<Device>> {
        let before = self.device();
        let which = (before.name.clone(), before.port, before.link);
        let place = (before.number, before.opening + 1);
        let (calls, sysfs, settings) = (&self.calls, &before.sysfs, before.settings);
        let opened = Arc::new(Device::open_again(calls, sysfs, which, place, settings)?);
        before.context.renew();
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = opened.clone();
        Ok(opened)
    }
}

/// Whether a device makes reliable connected queue pairs: some carry datagrams only.
fn try_reliable(context: &Arc<Context>, domain: &Arc<Pd>) -> io::Result<()> {
    let queue = Arc::new(Cq::new(context, 1)?);
    let made = Qp::new(domain, &queue, (1, 0), Extras::NONE);
    let not_so = |error| {
        let text = format!("it makes no reliable connected queue pairs: {error}");
        io::Error::other(text)
    };
    made.map(drop).map_err(not_so)
}

/// A limit of a device holds where it says one.
fn at_most(limit: i32, wanted: u32) -> u32 {
    match u32::try_from(limit) {
        Ok(limit @ 1..) => limit.min(wanted),
        _ => wanted,
    }
}

/// The address of this host from which packets to a peer go out.
pub(crate) fn local_address(
    local: Option<IpAddr>,
    remote: std::net::SocketAddr,
) -> io::Result<IpAddr> {
    if let Some(local) = local {
        return Ok(local);
    }
    let any: std::net::SocketAddr = match remote.is_ipv4() {
        true => ([0, 0, 0, 0], 0).into(),
        false => ([0; 8], 0).into(),
    };
    // Nothing is sent.
    let socket = UdpSocket::bind(any)?;
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}
