//! Lanes of this engine, beside their queue pairs: how they are opened, and what they ask.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::{Arc, Weak};

use polyrail_control::codec::{Decoder, GREETING_BYTES};
use polyrail_control::security::Joining;
use polyrail_core::units::{Epoch, LaneId};
use polyrail_core::work::Cause;
use polyrail_transport::RailAddress;
use polyrail_transport::memory::RegionKey;
use polyrail_transport::numbered::Numbered;
use socket2::{Domain, Protocol, Socket, Type};

use crate::NAME;
use crate::completion::{QueueRoom, SharedQueue};
use crate::device::{Device, local_address};
use crate::ffi::{Path, Qp};
use crate::mailbox::{Made, Mailbox, Said};
use crate::packets::Tally;
use crate::service::Connections;
use crate::talk::{Talk, nonsense};
use crate::wire::{Message, Side};

/// A lane that is to be opened.
pub(crate) struct Opening {
    pub(crate) lane: LaneId,
    pub(crate) epoch: Epoch,
    pub(crate) address: RailAddress,
    pub(crate) mailbox: Arc<Mailbox>,
}

/// The initiator's half of a device's thread.
pub(crate) struct Outbound {
    device: Arc<Device>,
    lanes: Numbered<u64, Talking>,
    tokens: HashMap<(LaneId, Epoch), u64>,
    /// Completion queues, by worker.
    queues: HashMap<u16, Vec<Arc<SharedQueue>>>,
    /// Of workers that have asked for lanes.
    mailboxes: HashMap<u16, Weak<Mailbox>>,
}

/// A lane's connection.
struct Talking {
    lane: LaneId,
    epoch: Epoch,
    peer: SocketAddr,
    local: IpAddr,
    talk: Talk,
    joining: Joining,
    mailbox: Arc<Mailbox>,
    own: Side,
    writes: bool,
    stage: Stage,
}

enum Stage {
    /// The peer has not proved itself yet, if it has to, or not greeted.
    Greeting(Path, Qp, QueueRoom),
    /// It has, and its queue pair is awaited.
    Joining(Path, Qp, QueueRoom),
    /// The worker has the queue pair.
    Open,
}

impl Outbound {
    pub(crate) fn new(device: Arc<Device>) -> Self {
        Self {
            device,
            lanes: Numbered::default(),
            tokens: HashMap::new(),
            queues: HashMap::new(),
            mailboxes: HashMap::new(),
        }
    }

    pub(crate) fn open(&mut self, connections: &mut Connections, opening: Opening) {
        let Opening {
            lane,
            epoch,
            address,
            mailbox,
        } = opening;
        self.mailboxes
            .insert(lane.worker(), Arc::downgrade(&mailbox));
        match self.try_open(connections, lane, epoch, &address, mailbox.clone()) {
            Ok(()) => {}
            Err(error) => {
                let (name, peer) = (&self.device.name, address.remote.ip());
                log::debug!("verbs: {lane:?} {epoch:?} from {name} to {peer} not opened: {error}");
                mailbox.say(Said::OpenFailed(lane, epoch));
            }
        }
    }

    fn try_open(
        &mut self,
        connections: &mut Connections,
        lane: LaneId,
        epoch: Epoch,
        address: &RailAddress,
        mailbox: Arc<Mailbox>,
    ) -> io::Result<()> {
        let local = local_address(address.local, address.remote)?;
        let (path, mut own) = self.device.way(local)?;
        let room = self.room(lane.worker(), &mailbox)?;
        // With room for an immediate behind all that core posts.
        let works = u32::from(self.device.limits.works_max) + 1;
        let device = &self.device;
        let queue = &room.queue().cq;
        let qp = device.queue_pair(&device.ours, queue, (works, 0), device.extras)?;
        qp.init(&path, false)?;
        own.queue_pair = qp.number();
        let mut talk = Talk::new(connect(local, address.remote)?);
        let (joining, hello) = Joining::start(NAME, address, lane, epoch)?;
        talk.send(&hello)?;
        let token = connections.add(&talk.stream, true)?;
        self.tokens.insert((lane, epoch), token);
        let talking = Talking {
            lane,
            epoch,
            peer: address.remote,
            local,
            talk,
            joining,
            mailbox,
            own,
            writes: true,
            stage: Stage::Greeting(path, qp, room),
        };
        self.lanes.insert(token, talking);
        Ok(())
    }

    /// Room in a completion queue of a worker, which is made if there is none.
    fn room(&mut self, worker: u16, mailbox: &Arc<Mailbox>) -> io::Result<QueueRoom> {
        let queues = self.queues.entry(worker).or_default();
        // A worker that ended may have had the number before.
        queues.retain(|queue| queue.is_of(mailbox));
        if let Some(room) = queues.iter().find_map(SharedQueue::room) {
            return Ok(room);
        }
        let queue = SharedQueue::new(&self.device, mailbox)?;
        queues.push(queue.clone());
        queue
            .room()
            .ok_or_else(|| io::Error::other("a completion queue without room"))
    }

    /// Goes on with what came on a connection. `false`: it is none of these.
    pub(crate) fn hear(&mut self, connections: &mut Connections, token: u64) -> bool {
        let Some(talking) = self.lanes.get_mut(&token) else {
            return false;
        };
        match talking.advance(&self.device) {
            Ok(()) => talking.listen(connections, token),
            Err(error) => self.fail(token, &error),
        }
        true
    }

    fn fail(&mut self, token: u64, error: &io::Error) {
        let Some(talking) = self.lanes.remove(&token) else {
            return;
        };
        let (lane, epoch) = (talking.lane, talking.epoch);
        self.tokens.remove(&(lane, epoch));
        let own = self.device.describe(talking.own.gid);
        log::debug!(
            "verbs: {lane:?} {epoch:?} from {own} to {}: {error}",
            talking.peer
        );
        talking.mailbox.say(match talking.stage {
            Stage::Open => Said::Broken(lane, epoch, Cause::Reset),
            Stage::Greeting(..) | Stage::Joining(..) => Said::OpenFailed(lane, epoch),
        });
    }

    pub(crate) fn ask(
        &mut self,
        connections: &mut Connections,
        lane: LaneId,
        epoch: Epoch,
        key: RegionKey,
    ) {
        let Some(&token) = self.tokens.get(&(lane, epoch)) else {
            return;
        };
        let Some(talking) = self.lanes.get_mut(&token) else {
            return;
        };
        match talking.talk.say(&Message::Ask(key)) {
            Ok(()) => talking.listen(connections, token),
            Err(error) => self.fail(token, &error),
        }
    }

    /// Ends a lane: the peer is hung up on, and its queue pair is destroyed when this returns, or its worker is told that it may
    /// not be.
    pub(crate) fn end(
        &mut self,
        lane: LaneId,
        epoch: Epoch,
        open: Option<(Box<Qp>, Arc<Mailbox>)>,
    ) {
        if let Some(token) = self.tokens.remove(&(lane, epoch)) {
            self.lanes.remove(&token);
        }
        if let Some((qp, mailbox)) = open {
            end_pair(lane, epoch, *qp, &mailbox);
        }
    }

    /// The device, or its port, carries nothing any more.
    pub(crate) fn break_all(&mut self, cause: Cause) {
        for talking in self.lanes.values() {
            if let Stage::Open = talking.stage {
                let said = Said::Broken(talking.lane, talking.epoch, cause);
                talking.mailbox.say(said);
            }
        }
    }

    /// The port carries packets again.
    pub(crate) fn port_active(&self) {
        for mailbox in self.mailboxes.values().filter_map(Weak::upgrade) {
            mailbox.say(Said::PortActive(self.device.number));
        }
    }

    /// The device is of no use any more: lanes that are being opened on it are given up, too.
    pub(crate) fn device_failed(&mut self) {
        self.break_all(Cause::Fatal);
        let is_opening = |(_, talking): &(&u64, &Talking)| !matches!(talking.stage, Stage::Open);
        let opening: Vec<u64> = self
            .lanes
            .iter()
            .filter(is_opening)
            .map(|(token, _)| *token)
            .collect();
        for token in opening {
            self.fail(token, &io::Error::other("the device has failed"));
        }
        self.forget_queues();
    }

    /// The device has been opened again: lanes are opened on this one from now on.
    pub(crate) fn renew(&mut self, device: Arc<Device>) {
        self.device = device;
    }

    /// One of the completion queues has failed: lanes that are opened from now on get others.
    pub(crate) fn forget_queues(&mut self) {
        for queue in self.queues.drain().flat_map(|(_, queues)| queues) {
            queue.forget();
        }
    }

    /// One queue pair is in error, without a work that could say so.
    pub(crate) fn break_one(&mut self, number: u32) {
        let mut lanes = self.lanes.values();
        let is_it = |talking: &&Talking| {
            matches!(talking.stage, Stage::Open) && talking.own.queue_pair == number
        };
        if let Some(talking) = lanes.find(is_it) {
            let said = Said::Broken(talking.lane, talking.epoch, Cause::Fatal);
            talking.mailbox.say(said);
        }
    }
}

/// Destroys a lane's queue pair, and tells its worker what is known of that.
pub(crate) fn end_pair(lane: LaneId, epoch: Epoch, qp: Qp, mailbox: &Arc<Mailbox>) {
    // The device's opening keeps this until it is closed, and a mailbox that nobody empties may have a queue pair of it.
    let later = Arc::downgrade(mailbox);
    let then = move || {
        if let Some(later) = later.upgrade() {
            later.say(Said::Ended(lane, epoch));
        }
    };
    let is_over = qp.end(then);
    mailbox.say(match is_over {
        true => Said::Ended(lane, epoch),
        false => Said::Unproven(lane, epoch),
    });
}

impl Talking {
    /// Asks to be told of room in the socket only while something waits for it.
    fn listen(&mut self, connections: &Connections, token: u64) {
        let writes = self.talk.is_unsent();
        if writes != self.writes {
            self.writes = writes;
            connections.change(&self.talk.stream, token, writes);
        }
    }

    fn advance(&mut self, device: &Arc<Device>) -> io::Result<()> {
        if let Some(error) = self.talk.stream.take_error()? {
            return Err(error);
        }
        self.talk.flush()?;
        while let wants @ 1.. = self.joining.wants() {
            let Some(bytes) = self.talk.hear_some(wants)? else {
                return Ok(());
            };
            let says = self.joining.handle(bytes)?;
            self.talk.send(&says)?;
        }
        if let Stage::Greeting(..) = self.stage {
            let Some(bytes) = self.talk.hear_bytes::<GREETING_BYTES>()? else {
                return Ok(());
            };
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            let greeting = decoder.next_greeting().map_err(nonsense)?;
            let greeting = greeting.ok_or_else(|| nonsense("half a greeting"))?;
            greeting.check_version().map_err(nonsense)?;
            self.talk.say(&Message::Side(self.own))?;
            self.stage = match std::mem::replace(&mut self.stage, Stage::Open) {
                Stage::Greeting(path, qp, room) => Stage::Joining(path, qp, room),
                other => other,
            };
        }
        while let Some(message) = self.talk.hear()? {
            match (message, std::mem::replace(&mut self.stage, Stage::Open)) {
                (Message::Side(peer), Stage::Joining(path, qp, room)) => {
                    self.join(device, &peer, &path, &qp)?;
                    let device = device.clone();
                    let mtu = self.own.mtu.min(peer.mtu);
                    let made = Box::new(Made {
                        qp,
                        room,
                        device,
                        tally: Tally::new(self.own.first_packet, mtu),
                    });
                    self.mailbox.say(Said::Opened(self.lane, self.epoch, made));
                }
                (Message::Told(key, answer), Stage::Open) => {
                    self.mailbox
                        .say(Said::Told(self.lane, self.epoch, key, answer));
                }
                (Message::Seen(number), Stage::Open) => {
                    self.mailbox.say(Said::Seen(self.lane, self.epoch, number));
                }
                (Message::Refused(refusal), stage) => {
                    self.stage = stage;
                    return Err(io::Error::other(refusal.text()));
                }
                (_, stage) => {
                    self.stage = stage;
                    return Err(nonsense("the peer says something that nobody asked for"));
                }
            }
        }
        Ok(())
    }

    fn join(&self, device: &Device, peer: &Side, path: &Path, qp: &Qp) -> io::Result<()> {
        qp.connect(&self.own, peer, path).map_err(|error| {
            let (own, gid) = (device.describe(self.own.gid), peer.gid);
            let text = format!(
                "{own} at {} to {} ({gid}): {error}",
                self.local, peer.device
            );
            io::Error::new(error.kind(), text)
        })
    }
}

/// Starts to connect, from the rail's own address.
fn connect(local: IpAddr, remote: SocketAddr) -> io::Result<TcpStream> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(remote), kind, Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    socket.bind(&SocketAddr::new(local, 0).into())?;
    match socket.connect(&remote.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}
