//! A device's thread: makes, joins and destroys its queue pairs, and hears what happens to it.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use polyrail_core::units::{Epoch, LaneId};
use polyrail_core::work::Cause;
use polyrail_transport::complain;
use polyrail_transport::memory::{RegionKey, RegionTable};
use polyrail_transport::service::{Serve, supervise};
use polyrail_transport::shares::Shares;
use polyrail_transport::{FenceAnswer, InboundLane, RetireAnswer, SessionId};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::NAME;
use crate::completion::SharedQueue;
use crate::device::{Device, Site};
use crate::ffi::{Cq, Event, Qp};
use crate::inbound::{Ghost, Inbound, Opened};
use crate::mailbox::{Made, Mailbox};
use crate::outbound::{Opening, Outbound, end_pair};
use crate::registry::Registry;

const EVENTS_MAX: usize = 64;

/// How often it is tried whether a device that has failed is there again, at most.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

const WAKE: u64 = 0;
const ASYNC: u64 = 1;
/// Connections count from here.
const FIRST: u64 = 2;

/// What a device's thread is asked for.
pub(crate) enum Order {
    /// Worker: open a lane.
    Open(Box<Opening>),
    /// Worker: what opens this region at the far end?
    Ask(LaneId, Epoch, RegionKey),
    /// Worker: end a lane, and say so if it was open.
    End(LaneId, Epoch, Option<(Box<Qp>, Arc<Mailbox>)>),
    /// Worker: this queue is of no use any more. To destroy it takes a device's time, not a worker's.
    LetGo(Arc<SharedQueue>),
    /// Worker: nor is this queue pair, whose lane was given up before it was there.
    LetGoPair(Box<Made>),
    Admit(Box<InboundLane>),
    Fence(SessionId, LaneId, Epoch, FenceAnswer),
    Retire(SessionId, RetireAnswer),
    /// A region that a peer asked after has been registered, or could not be.
    Registered(Opened),
    /// A queue pair of a peer's lane, of which that could not be proved before, has ended.
    Proven(Ghost),
    Stop,
}

/// How orders reach a device's thread.
#[derive(Clone)]
pub(crate) struct Desk {
    orders: Sender<Order>,
    wake: Arc<OwnedFd>,
    /// Queue pairs of peers' lanes that the device may go on with, although they were to end.
    pub(crate) ghosts: Arc<AtomicUsize>,
}

impl Desk {
    pub(crate) fn order(&self, order: Order) {
        if let Err(mpsc::SendError(order)) = self.orders.send(order) {
            // The thread has ended, and every queue pair that it had with it.
            let is_proven = self.ghosts.load(Acquire) == 0;
            match order {
                Order::End(lane, epoch, Some((qp, mailbox))) => {
                    end_pair(lane, epoch, *qp, &mailbox);
                }
                Order::Proven(_) => drop(self.ghosts.fetch_sub(1, AcqRel)),
                // Dropped, they say that it will never be known.
                Order::Fence(.., answer) if is_proven => answer(0),
                Order::Retire(_, answer) if is_proven => answer(),
                _ => {}
            }
            return;
        }
        // It fails only if the counter is full, and then the thread is awake anyway.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

/// A device and its thread. Dropping it ends all lanes over the device and waits for the thread.
pub(crate) struct Service {
    pub(crate) site: Arc<Site>,
    pub(crate) desk: Desk,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Service {
    pub(crate) fn start(
        site: Arc<Site>,
        regions: Arc<dyn RegionTable>,
        registry: Arc<Registry>,
        shares: Arc<Mutex<Shares>>,
    ) -> io::Result<Self> {
        let device = site.device();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let fd = device.context.async_fd();
        epoll::add(&epoll, fd, EventData::new_u64(ASYNC), EventFlags::IN)?;
        let (sender, orders) = mpsc::channel();
        device.context.wake_with(&wake);
        let desk = Desk {
            orders: sender,
            wake: wake.clone(),
            ghosts: Arc::default(),
        };
        let room = Loop {
            inbound: Inbound::new(device.clone(), regions, desk.clone(), shares),
            outbound: Outbound::new(device.clone()),
            site: site.clone(),
            device: device.clone(),
            registry,
            has_failed: false,
            retry_at: Instant::now(),
            connections: Connections { epoll, last: FIRST },
            wake,
            orders,
        };
        let thread = thread::Builder::new()
            .name(format!("polyrail-verbs-{}", device.name))
            .spawn(move || supervise(NAME, room))?;
        Ok(Self {
            site,
            desk,
            thread: Mutex::new(Some(thread)),
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.desk.order(Order::Stop);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(thread) = thread.take() else { return };
        // An answer may hold the last reference to the transport, and then this is that thread.
        if thread.thread().id() != thread::current().id() && thread.join().is_err() {
            let name = &self.site.device().name;
            log::error!("verbs: the thread of {name} panicked");
        }
    }
}

/// Connections that the thread listens to.
pub(crate) struct Connections {
    epoll: OwnedFd,
    last: u64,
}

impl Connections {
    /// Listens to one more; `writes`: also for room to write. The answer is its number.
    pub(crate) fn add(&mut self, stream: &std::net::TcpStream, writes: bool) -> io::Result<u64> {
        self.last += 1;
        let data = EventData::new_u64(self.last);
        epoll::add(&self.epoll, stream, data, interest(writes))?;
        Ok(self.last)
    }

    /// Listens to a completion queue. The answer is its number.
    pub(crate) fn add_queue(&mut self, queue: &Cq) -> io::Result<u64> {
        self.last += 1;
        let data = EventData::new_u64(self.last);
        epoll::add(&self.epoll, queue.fd(), data, EventFlags::IN)?;
        Ok(self.last)
    }

    /// Listens to a completion queue no more, whether or not its descriptor is closed with it.
    pub(crate) fn forget_queue(&self, queue: &Cq) {
        if let Err(error) = epoll::delete(&self.epoll, queue.fd()) {
            complain!("verbs: epoll_ctl: {error}");
        }
    }

    pub(crate) fn change(&self, stream: &std::net::TcpStream, token: u64, writes: bool) {
        let data = EventData::new_u64(token);
        if let Err(error) = epoll::modify(&self.epoll, stream, data, interest(writes)) {
            complain!("verbs: epoll_ctl: {error}");
        }
    }
}

fn interest(writes: bool) -> EventFlags {
    match writes {
        true => EventFlags::IN | EventFlags::OUT,
        false => EventFlags::IN,
    }
}

struct Loop {
    site: Arc<Site>,
    /// What is open there.
    device: Arc<Device>,
    registry: Arc<Registry>,
    /// It is known to have failed, and was not opened again since.
    has_failed: bool,
    /// When it is tried next whether a device that has failed is there again.
    retry_at: Instant,
    connections: Connections,
    wake: Arc<OwnedFd>,
    orders: Receiver<Order>,
    inbound: Inbound,
    outbound: Outbound,
}

impl Serve for Loop {
    fn serve(&mut self) -> io::Result<()> {
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        while self.take_orders() {
            let patience = self.patience();
            let ready = match epoll::wait(&self.connections.epoll, &mut events, patience.as_ref()) {
                Ok((events, _)) => events,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for event in ready {
                match event.data.u64() {
                    WAKE => drop(rustix::io::read(&*self.wake, &mut [0; 8])),
                    ASYNC => self.happened(event.flags),
                    token => {
                        if !self.outbound.hear(&mut self.connections, token) {
                            self.inbound.hear(&mut self.connections, token);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// As if the device had failed: it is opened anew when somebody wants a lane.
    fn recover(&mut self) {
        self.device_failed();
    }

    fn finish(mut self) {
        self.inbound.end_all();
        // Nobody does it after this.
        if self.device.context.has_to_be_renewed()
            && let Err(error) = self.site.reopen()
        {
            let name = &self.device.name;
            complain!("verbs: {name} is not there again, and keeps what it may touch: {error}");
        }
    }
}

impl Loop {
    /// Does what was asked for. `false`: it is to end.
    fn take_orders(&mut self) -> bool {
        while let Ok(order) = self.orders.try_recv() {
            let connections = &mut self.connections;
            match order {
                Order::Open(opening) => {
                    self.revive();
                    self.outbound.open(&mut self.connections, *opening);
                }
                Order::Ask(lane, epoch, key) => self.outbound.ask(connections, lane, epoch, key),
                Order::End(lane, epoch, open) => self.outbound.end(lane, epoch, open),
                Order::LetGo(queue) => drop(queue),
                Order::LetGoPair(made) => drop(made),
                Order::Admit(lane) => {
                    self.revive();
                    self.inbound.admit(&mut self.connections, *lane);
                }
                Order::Fence(session, lane, epoch, answer) => {
                    self.inbound.fence(session, lane, epoch, answer);
                }
                Order::Retire(session, answer) => self.inbound.retire(session, answer),
                Order::Proven(ghost) => self.inbound.proven(ghost),
                Order::Registered(opened) => self.inbound.registered(connections, opened),
                Order::Stop => return false,
            }
        }
        true
    }

    /// For how long nothing is due.
    fn patience(&mut self) -> Option<Timespec> {
        let due = self.heal();
        let due = due
            .into_iter()
            .chain(self.inbound.remind(&self.connections));
        let left = due.min()?.saturating_duration_since(Instant::now());
        // Not a moment too early.
        Timespec::try_from(left + Duration::from_millis(1)).ok()
    }

    /// Acts on what others have found of the device. One that may go on with what it was to let go of is as one that has
    /// failed: what it does for a context ends with that, so it is opened anew, without being asked to. When the next
    /// try is.
    fn heal(&mut self) -> Option<Instant> {
        if self.device.context.has_heard() {
            self.happened(EventFlags::empty());
        }
        let context = self.device.context.clone();
        if !self.has_failed && context.has_to_be_renewed() {
            self.device_failed();
        }
        if self.has_failed && context.has_left() {
            self.revive();
        }
        let waits = self.has_failed && context.has_left();
        waits.then_some(self.retry_at)
    }

    /// Acts on what no work asked for.
    fn happened(&mut self, flags: EventFlags) {
        while let Some(event) = self.device.context.event() {
            let (name, port) = (&self.device.name, self.device.port);
            match event {
                Event::PortDown(which) if which == port => {
                    log::warn!("verbs: {name}: the port is down");
                    self.device.set_port_down(true);
                    self.outbound.break_all(Cause::DeviceDown);
                }
                Event::PortActive(which) if which == port => {
                    log::info!("verbs: {name}: the port is active");
                    self.device.set_port_down(false);
                    self.site.change();
                    self.outbound.port_active();
                }
                // The name that a lane is opened with may be there again.
                Event::NamesChanged(which) if which == port => {
                    log::info!("verbs: {name}: the port's table of GIDs is another");
                    self.site.change();
                    self.outbound.port_active();
                }
                Event::DeviceFatal => return self.device_failed(),
                Event::QueuePair(None) => {
                    complain!("verbs: {name}: a completion queue has failed");
                    self.outbound.break_all(Cause::Fatal);
                    self.outbound.forget_queues();
                    self.inbound.break_all(&self.connections);
                }
                Event::QueuePair(Some(number)) => {
                    complain!("verbs: {name}: queue pair {number} has failed");
                    self.outbound.break_one(number);
                    self.inbound.break_one(number);
                }
                // Another port of the device has a thread of its own.
                Event::PortDown(_) | Event::PortActive(_) | Event::NamesChanged(_) => {}
                Event::Other => {}
            }
        }
        // The kernel has taken it away, and says nothing of it any more.
        if flags.intersects(EventFlags::ERR | EventFlags::HUP) {
            self.device_failed();
        }
    }

    /// The device is of no use any more. It is tried again when somebody wants a lane over it.
    fn device_failed(&mut self) {
        self.device.fail();
        if !std::mem::replace(&mut self.has_failed, true) {
            log::error!("verbs: {}: the device has failed", self.device.name);
            // Readable for ever, perhaps.
            let fd = self.device.context.async_fd();
            if let Err(error) = epoll::delete(&self.connections.epoll, fd) {
                complain!("verbs: epoll_ctl: {error}");
            }
        }
        self.outbound.device_failed();
        self.inbound.break_all(&self.connections);
    }

    /// Opens a device that has failed anew, if it can be now.
    fn revive(&mut self) {
        let now = Instant::now();
        if !self.has_failed || now < self.retry_at {
            return;
        }
        self.retry_at = now + RETRY_INTERVAL;
        let listened = self.site.reopen().and_then(|device| {
            let data = EventData::new_u64(ASYNC);
            let fd = device.context.async_fd();
            epoll::add(&self.connections.epoll, fd, data, EventFlags::IN)?;
            Ok(device)
        });
        let name = &self.device.name;
        match listened {
            Ok(device) => {
                log::warn!("verbs: {name}: the device is there again");
                device.context.wake_with(&self.wake);
                self.registry.renew(&device);
                self.inbound.renew(&self.connections, device.clone());
                self.outbound.renew(device.clone());
                self.device = device;
                self.has_failed = false;
            }
            Err(error) => log::debug!("verbs: {name} is not there again: {error}"),
        }
    }
}
