//! Lanes of peers: their queue pairs at this end, and what opens regions to them.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use polyrail_control::codec::{Greeting, Purpose};
use polyrail_core::units::{Epoch, LaneId};
use polyrail_transport::complain;
use polyrail_transport::lanes::Lanes;
use polyrail_transport::memory::{Access, RegionKey, RegionTable, TrustDomain};
use polyrail_transport::numbered::Numbered;
use polyrail_transport::shares::Shares;
use polyrail_transport::{FenceAnswer, InboundLane, RetireAnswer, SessionId};

use crate::LANES_PER_SESSION_MAX;
use crate::device::Device;
use crate::ffi::raw::{self, Wc};
use crate::ffi::{Cq, Extras, Pd, Qp};
use crate::lock::lock;
use crate::packets::Reached;
use crate::registry::{Registered, let_go, register_for_peers};
use crate::service::{Connections, Desk, Order};
use crate::talk::{Talk, nonsense};
use crate::wire::{Answer, Granted, Message, Refusal, Side};

/// Immediates that there is room for at each queue pair: its peer sends one, and the next after the answer.
const IMMEDIATES: u32 = 2;
/// Places in a completion queue for each queue pair: as many again, of one that is gone and was not heard of yet.
const PLACES: u32 = 2 * IMMEDIATES;
/// Queue pairs whose immediates come to one completion queue, at most.
const PAIRS_PER_QUEUE: u32 = 1024;
/// Completions that are taken at once.
const TAKE: usize = 16;

/// How often those that asked after a region hear that it is still being registered.
pub(crate) const REMIND_INTERVAL: Duration = Duration::from_secs(1);

/// Messages of one lane that are taken before others have their turn.
const TURN_MAX: usize = 64;

/// What one lane may ask and have no answer to.
const ASKED_MAX: usize = 4096;

/// The target's half of a device's thread.
pub(crate) struct Inbound {
    device: Arc<Device>,
    regions: Arc<dyn RegionTable>,
    desk: Desk,
    /// Lanes of peers, over all devices.
    shares: Arc<Mutex<Shares>>,
    /// Where immediates come, with the numbers that they are listened to under.
    queues: Vec<(u64, Arc<Cq>)>,
    /// The lanes' connections, by the numbers of their queue pairs.
    pairs: HashMap<u32, u64>,
    records: HashMap<SessionId, Lanes<Record>>,
    lanes: Numbered<u64, Served>,
    /// What peers asked after, by their trust domains.
    registered: HashMap<Opened, Arc<Registered>>,
    /// When those that wait for a region hear that they have to, if any do.
    remind_at: Option<Instant>,
    /// Lanes that have ended here, and that the device may go on with.
    ghosts: Vec<Ghost>,
    /// Who waits for their end.
    waiting: Vec<Waiting>,
}

/// A lane's queue pair that the device was told to destroy and may go on with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ghost {
    /// The connection that it was served on.
    token: u64,
    session: SessionId,
    lane: LaneId,
    epoch: Epoch,
}

/// An answer that proves the end of a session's lanes, or of one of them up to an epoch.
struct Waiting {
    session: SessionId,
    lane: Option<(LaneId, Epoch)>,
    answer: Box<dyn FnOnce() + Send>,
}

impl Waiting {
    fn is_for(&self, ghost: &Ghost) -> bool {
        let is_its = |(lane, epoch)| ghost.lane == lane && ghost.epoch <= epoch;
        ghost.session == self.session && self.lane.is_none_or(is_its)
    }
}

/// What is remembered of a lane.
#[derive(Debug, Default)]
struct Record {
    /// The newest epoch that was admitted, and the newest that was fenced.
    admitted: Epoch,
    fenced: Epoch,
    /// The connection that is served, of epoch `admitted`.
    token: Option<u64>,
    /// The newest epoch that has ended, and how far packets had come.
    ended: (Epoch, Reached),
}

/// A region as peers of a trust domain know it.
pub(crate) type Opened = (TrustDomain, RegionKey);

/// A lane that is served.
struct Served {
    session: SessionId,
    domain: TrustDomain,
    lane: LaneId,
    epoch: Epoch,
    /// Where it comes from.
    address: IpAddr,
    talk: Talk,
    writes: bool,
    /// `None` until the peer has said what its queue pair is.
    qp: Option<Qp>,
    /// The number of the peer's first packet, if the device has been seen to say which one comes next.
    first_packet: Option<u32>,
    /// Regions that it has asked after and that are being registered.
    asked: Vec<RegionKey>,
}

impl Inbound {
    pub(crate) fn new(
        device: Arc<Device>,
        regions: Arc<dyn RegionTable>,
        desk: Desk,
        shares: Arc<Mutex<Shares>>,
    ) -> Self {
        Self {
            device,
            regions,
            desk,
            shares,
            queues: Vec::new(),
            pairs: HashMap::new(),
            records: HashMap::new(),
            lanes: Numbered::default(),
            registered: HashMap::new(),
            remind_at: None,
            ghosts: Vec::new(),
            waiting: Vec::new(),
        }
    }

    pub(crate) fn admit(&mut self, connections: &mut Connections, lane: InboundLane) {
        let (session, number, epoch) = (lane.session, lane.lane, lane.epoch);
        if let Err(error) = self.try_admit(connections, lane) {
            let name = &self.device.name;
            log::debug!("verbs: {name}: {number:?} {epoch:?} of {session:?} not admitted: {error}");
        }
    }

    fn try_admit(&mut self, connections: &mut Connections, lane: InboundLane) -> io::Result<()> {
        let InboundLane {
            session,
            domain,
            lane,
            epoch,
            stream,
            ..
        } = lane;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let address = stream.peer_addr()?.ip();
        let refusal = self.begin(session, lane, epoch);
        let refusal = refusal.or_else(|| self.has_its_share(session, address));
        let mut talk = Talk::new(stream);
        talk.send(&Greeting::ours(Purpose::Lane).encode())?;
        if let Some(refusal) = refusal {
            talk.say(&Message::Refused(refusal))?;
            return Err(io::Error::other(refusal.text()));
        }
        let writes = talk.is_unsent();
        let token = connections.add(&talk.stream, writes)?;
        if let Some(record) = self.record(session, lane) {
            record.token = Some(token);
        }
        let served = Served {
            session,
            domain,
            lane,
            epoch,
            address,
            talk,
            writes,
            qp: None,
            first_packet: None,
            asked: Vec::new(),
        };
        self.lanes.insert(token, served);
        lock(&self.shares).add(session, address);
        Ok(())
    }

    /// Whether its session, or where it comes from, may have no more lanes.
    fn has_its_share(&self, session: SessionId, address: IpAddr) -> Option<Refusal> {
        let text = lock(&self.shares).refusal(session, address, self.device.pairs_max)?;
        complain!("verbs: a lane from {address} is refused: {text}");
        Some(Refusal::Full)
    }

    /// What is remembered of a lane. `None`: there is no room, so it was never and will never be admitted.
    fn record(&mut self, session: SessionId, lane: LaneId) -> Option<&mut Record> {
        let lanes = self.records.entry(session).or_default();
        lanes.admit(lane, LANES_PER_SESSION_MAX, |fenced| Record {
            fenced,
            ..Record::default()
        })
    }

    /// Whether a lane may not begin. If it may, its epoch counts as admitted and older ones are over.
    fn begin(&mut self, session: SessionId, lane: LaneId, epoch: Epoch) -> Option<Refusal> {
        let lanes = self.records.get(&session);
        if lanes.is_some_and(|lanes| epoch <= lanes.fenced(lane)) {
            return Some(Refusal::Over);
        }
        let Some(record) = self.record(session, lane) else {
            return Some(Refusal::Full);
        };
        if epoch <= record.fenced.max(record.admitted) {
            return Some(Refusal::Over);
        }
        record.admitted = epoch;
        if let Some(token) = record.token {
            self.end(token);
        }
        None
    }

    /// Takes what came on a connection.
    pub(crate) fn hear(&mut self, connections: &mut Connections, token: u64) {
        if let Some((_, queue)) = self.queues.iter().find(|(number, _)| *number == token) {
            return self.take(connections, &queue.clone());
        }
        for _ in 0..TURN_MAX {
            let Some(served) = self.lanes.get_mut(&token) else {
                return;
            };
            let heard = served.talk.flush().and_then(|()| served.talk.hear());
            let done = match heard {
                Ok(None) => return served.listen(connections, token),
                Ok(Some(message)) => self.handle(connections, token, message),
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                return self.hang_up(token, &error);
            }
        }
    }

    /// Takes immediates that have come, and says so to those that sent them.
    fn take(&mut self, connections: &mut Connections, queue: &Cq) {
        queue.hear();
        if let Err(error) = queue.arm() {
            complain!("verbs: {}: {error}", self.device.name);
        }
        let mut taken = [Wc::default(); TAKE];
        loop {
            let count = queue.poll(&mut taken).unwrap_or_else(|error| {
                complain!("verbs: {}: {error}", self.device.name);
                0
            });
            for wc in &taken[..count] {
                // Of a queue pair that is no more, otherwise.
                let Some(&token) = self.pairs.get(&wc.qp_num) else {
                    continue;
                };
                let heard = match (wc.status, wc.opcode) {
                    (0, raw::WC_RECV_RDMA_WITH_IMM) => {
                        self.seen(connections, token, u32::from_be(wc.imm_data))
                    }
                    (0, _) => Ok(()),
                    // Nothing comes to that queue pair any more, whatever its peer sends.
                    (status, _) => Err(io::Error::other(format!(
                        "a place for an immediate has failed (status {status})"
                    ))),
                };
                if let Err(error) = heard {
                    self.hang_up(token, &error);
                }
            }
            if count < TAKE {
                return;
            }
        }
    }

    fn seen(&mut self, connections: &Connections, token: u64, number: u32) -> io::Result<()> {
        let Some(served) = self.lanes.get_mut(&token) else {
            return Ok(());
        };
        if let Some(qp) = &served.qp {
            qp.expect_immediate()?;
        }
        served.talk.say(&Message::Seen(number))?;
        served.listen(connections, token);
        Ok(())
    }

    /// A completion queue with room for one more queue pair's immediates.
    fn queue(&mut self, connections: &mut Connections) -> io::Result<Arc<Cq>> {
        let depth = self.device.queue_depth(PLACES * PAIRS_PER_QUEUE);
        let pairs = (depth / PLACES).max(1) as usize;
        let has_room = |(_, queue): &&(u64, Arc<Cq>)| Arc::strong_count(queue) <= pairs;
        if let Some((_, queue)) = self.queues.iter().find(has_room) {
            return Ok(queue.clone());
        }
        let queue = Arc::new(Cq::new(&self.device.context, depth)?);
        queue.arm()?;
        let number = connections.add_queue(&queue)?;
        self.queues.push((number, queue.clone()));
        Ok(queue)
    }

    fn hang_up(&mut self, token: u64, error: &io::Error) {
        if let Some(served) = self.lanes.get(&token) {
            let (name, lane, session) = (&self.device.name, served.lane, served.session);
            log::debug!("verbs: {name}: {lane:?} of {session:?} ends: {error}");
            self.end(token);
        }
    }

    /// Destroys a lane's queue pair, and remembers how far packets had come before that, and whether it is known to have ended.
    fn end(&mut self, token: u64) {
        let Some(served) = self.lanes.remove(&token) else {
            return;
        };
        let (session, lane, epoch) = (served.session, served.lane, served.epoch);
        lock(&self.shares).remove(session, served.address);
        let mut reached = served.reached();
        if let Some(qp) = served.qp {
            let ghost = Ghost {
                token,
                session,
                lane,
                epoch,
            };
            let desk = self.desk.clone();
            if !qp.end(move || desk.order(Order::Proven(ghost))) {
                // Nor does it prove what it has done.
                reached = Reached::UNKNOWN;
                self.desk.ghosts.fetch_add(1, AcqRel);
                self.ghosts.push(ghost);
            }
        }
        if let Some(record) = self.record(session, lane) {
            record.token = record.token.filter(|other| *other != token);
            record.ended = (epoch, reached);
        }
    }

    fn handle(
        &mut self,
        connections: &mut Connections,
        token: u64,
        message: Message,
    ) -> io::Result<()> {
        let Some(served) = self.lanes.get(&token) else {
            return Ok(());
        };
        let has_pair = served.qp.is_some();
        match (message, has_pair) {
            (Message::Side(peer), false) => {
                let address = served.talk.stream.local_addr()?.ip();
                let domain = served.domain;
                let lanes = &self.lanes;
                self.pairs.retain(|_, token| lanes.contains_key(token));
                let queue = self.queue(connections);
                let joined = queue.and_then(|queue| {
                    let domain = self.device.theirs(domain)?;
                    join(&self.device, &domain, &queue, address.to_canonical(), &peer)
                });
                let Some(served) = self.lanes.get_mut(&token) else {
                    return Ok(());
                };
                let (qp, own) = joined.inspect_err(|error| {
                    let (device, gid) = (peer.device, peer.gid);
                    polyrail_transport::complain!(
                        "verbs: no lane at {address} for {device} ({gid}): {error}"
                    );
                    let _ = served.talk.say(&Message::Refused(Refusal::Failed));
                })?;
                self.pairs.insert(qp.number(), token);
                let first = Some(peer.first_packet);
                served.first_packet = first.filter(|_| qp.expected() == first);
                served.qp = Some(qp);
                served.talk.say(&Message::Side(own))
            }
            (Message::Ask(key), true) => self.grant(token, key),
            _ => Err(nonsense("it says what does not belong there")),
        }
    }

    /// Answers what opens a region: at once if it is registered or there is none, else when it is.
    fn grant(&mut self, token: u64, key: RegionKey) -> io::Result<()> {
        self.registered
            .retain(|_, registered| !registered.is_gone());
        let Some(served) = self.lanes.get_mut(&token) else {
            return Ok(());
        };
        let domain = served.domain;
        let region = self.regions.find(&key, domain);
        let region = region.filter(|region| region.access() != Access::Local);
        let Some(region) = region else {
            return served.talk.say(&Message::Told(key, Answer::Nothing));
        };
        let opened = (domain, key);
        let known = self.registered.get(&opened);
        if let Some(granted) = known.and_then(|known| known.grant()) {
            return served.tell(key, &granted);
        }
        if served.asked.len() >= ASKED_MAX {
            return Err(io::Error::other("it asks after too many regions at once"));
        }
        served.asked.push(key);
        self.remind_at
            .get_or_insert_with(|| Instant::now() + REMIND_INTERVAL);
        if !self.registered.contains_key(&opened) {
            let desk = self.desk.clone();
            let then = move |_: &Registered| desk.order(Order::Registered(opened));
            let registered = register_for_peers(&region, domain, &self.device, then);
            self.registered.insert(opened, registered);
        }
        Ok(())
    }

    /// Tells those that wait for a region that they have to, if that is due. When it is next.
    pub(crate) fn remind(&mut self, connections: &Connections) -> Option<Instant> {
        let now = Instant::now();
        if self.remind_at.is_none_or(|at| at > now) {
            return self.remind_at;
        }
        let mut broken = Vec::new();
        let mut waits = false;
        for (token, served) in &mut self.lanes {
            waits |= !served.asked.is_empty();
            let mut asked = served.asked.iter();
            let told = asked.try_for_each(|key| {
                let not_yet = Message::Told(*key, Answer::NotYet);
                served.talk.say(&not_yet)
            });
            match told {
                Ok(()) => served.listen(connections, *token),
                Err(error) => broken.push((*token, error)),
            }
        }
        for (token, error) in broken {
            self.hang_up(token, &error);
        }
        self.remind_at = waits.then(|| now + REMIND_INTERVAL);
        self.remind_at
    }

    /// A region has been registered, or could not be: answers all who asked after it.
    pub(crate) fn registered(&mut self, connections: &mut Connections, opened: Opened) {
        let (domain, key) = opened;
        let granted = match self.registered.get(&opened) {
            Some(known) => match known.grant() {
                Some(granted) => granted,
                // It is being registered once more, since the device has been opened again or somebody has asked anew: that says
                // so itself when it is done.
                None => return,
            },
            // It could not be, and somebody has asked after another one since.
            None if self.regions.find(&key, domain).is_some() => Granted::Failed,
            None => Granted::Nothing,
        };
        let mut broken = Vec::new();
        let of_domain = |(_, served): &(&u64, &mut Served)| served.domain == domain;
        for (token, served) in self.lanes.iter_mut().filter(of_domain) {
            let before = served.asked.len();
            served.asked.retain(|asked| *asked != key);
            if served.asked.len() == before {
                continue;
            }
            match served.tell(key, &granted) {
                Ok(()) => served.listen(connections, *token),
                Err(error) => broken.push((*token, error)),
            }
        }
        for (token, error) in broken {
            self.hang_up(token, &error);
        }
    }

    /// Ends a lane up to an epoch, for good. It is answered with how far packets had come by then, once it is proved that the
    /// lane's queue pair has ended.
    pub(crate) fn fence(
        &mut self,
        session: SessionId,
        lane: LaneId,
        epoch: Epoch,
        answer: FenceAnswer,
    ) {
        let reached = self.end_up_to(session, lane, epoch);
        self.answer(Waiting {
            session,
            lane: Some((lane, epoch)),
            answer: Box::new(move || answer(reached.to_word())),
        });
    }

    /// Answers now, or once all that it is about has ended.
    fn answer(&mut self, waiting: Waiting) {
        match self.ghosts.iter().any(|ghost| waiting.is_for(ghost)) {
            true => self.waiting.push(waiting),
            false => (waiting.answer)(),
        }
    }

    /// A queue pair has ended after all.
    pub(crate) fn proven(&mut self, ghost: Ghost) {
        self.desk.ghosts.fetch_sub(1, AcqRel);
        self.ghosts.retain(|other| *other != ghost);
        for waiting in std::mem::take(&mut self.waiting) {
            self.answer(waiting);
        }
    }

    fn end_up_to(&mut self, session: SessionId, lane: LaneId, epoch: Epoch) -> Reached {
        let lanes = self.records.entry(session).or_default();
        let Some(record) = lanes.fence(lane, epoch) else {
            return Reached::UNKNOWN;
        };
        record.fenced = record.fenced.max(epoch);
        let served = record.token.filter(|_| record.admitted <= epoch);
        if let Some(token) = served {
            self.end(token);
        }
        let lanes = self.records.get_mut(&session);
        match lanes.and_then(|lanes| lanes.get_mut(lane)) {
            Some(record) if record.ended.0 == epoch => record.ended.1,
            _ => Reached::UNKNOWN,
        }
    }

    /// One queue pair is in error. Its peer is hung up on, and asks for another.
    pub(crate) fn break_one(&mut self, number: u32) {
        if let Some(&token) = self.pairs.get(&number) {
            self.hang_up(token, &io::Error::other("the queue pair is in error"));
        }
    }

    /// The device is of no use any more, or nothing is heard of its queue pairs.
    pub(crate) fn break_all(&mut self, connections: &Connections) {
        let tokens: Vec<u64> = self.lanes.keys().copied().collect();
        for token in tokens {
            self.hang_up(token, &io::Error::other("the device has failed"));
        }
        self.forget_queues(connections);
    }

    fn forget_queues(&mut self, connections: &Connections) {
        for (_, queue) in self.queues.drain(..) {
            connections.forget_queue(&queue);
        }
    }

    /// Ends all lanes.
    pub(crate) fn end_all(&mut self) {
        let tokens: Vec<u64> = self.lanes.keys().copied().collect();
        tokens.into_iter().for_each(|token| self.end(token));
    }

    /// The device has been opened again: lanes are served on this one from now on, and regions registered with it when
    /// somebody asks after them.
    pub(crate) fn renew(&mut self, connections: &Connections, device: Arc<Device>) {
        let_go(std::mem::take(&mut self.registered));
        // Whoever came meanwhile may have had one made on the device that had failed.
        self.forget_queues(connections);
        self.device = device;
    }

    /// Ends all lanes of a session, and answers once that is proved.
    pub(crate) fn retire(&mut self, session: SessionId, answer: RetireAnswer) {
        let lanes = self.lanes.iter();
        let of_it = lanes.filter(|(_, served)| served.session == session);
        let tokens: Vec<u64> = of_it.map(|(token, _)| *token).collect();
        tokens.into_iter().for_each(|token| self.end(token));
        self.records.remove(&session);
        self.answer(Waiting {
            session,
            lane: None,
            answer,
        });
    }
}

impl Served {
    /// How far packets have come.
    ///
    /// Where a device says the number that it was given at the start, or 0, it may just not know: devices that do not
    /// keep count say one of these.
    fn reached(&self) -> Reached {
        let expected = self.qp.as_ref().and_then(Qp::expected);
        match (self.first_packet, expected) {
            (Some(first), Some(next)) if next != first && next != 0 => Reached::before(next),
            _ => Reached::UNKNOWN,
        }
    }

    /// Says what opens a region.
    fn tell(&mut self, key: RegionKey, granted: &Granted) -> io::Result<()> {
        let mut answers = granted.answers();
        answers.try_for_each(|answer| self.talk.say(&Message::Told(key, answer)))
    }

    fn listen(&mut self, connections: &Connections, token: u64) {
        let writes = self.talk.is_unsent();
        if writes != self.writes {
            self.writes = writes;
            connections.change(&self.talk.stream, token, writes);
        }
    }
}

/// A queue pair for a peer's, and what the peer is told of it.
fn join(
    device: &Device,
    domain: &Arc<Pd>,
    queue: &Arc<Cq>,
    address: std::net::IpAddr,
    peer: &Side,
) -> io::Result<(Qp, Side)> {
    let (path, mut own) = device.way(address)?;
    let qp = device.queue_pair(domain, queue, (1, IMMEDIATES), Extras::NONE)?;
    qp.init(&path, true)?;
    for _ in 0..IMMEDIATES {
        qp.expect_immediate()?;
    }
    own.queue_pair = qp.number();
    qp.connect(&own, peer, &path)?;
    Ok((qp, own))
}
