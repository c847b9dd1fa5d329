//! The initiator's half: peers that we have sessions with, the connections to them, and what we ask.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::SyncSender;

use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{Epoch, LaneId, PeerId};
use polyrail_transport::SessionId;

use super::timers::Timer;
use super::wires::{Key, WireEvent, Wires};
use super::{AskError, ConnectError, Context, Ends, Introduction, SessionLoss};
use crate::codec::{Frame, Refusal, SegmentDescriptor};
use crate::connection::{Ended, Event, Welcome};

/// The first pause after a connection was lost or could not be made; doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// The longest pause between attempts.
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// How long one attempt may take. The kernel repeats a lost SYN after 1, 3, 7… seconds; a fresh attempt
/// finds a link that is back sooner.
const DIAL_MAX: Duration = Duration::from_millis(500);

/// After how long a question is asked again over another connection.
const DESCRIBE_AGAIN: Duration = Duration::from_millis(100);
/// The same for calls, which take longer.
const CALL_AGAIN: Duration = Duration::from_millis(200);

/// Questions of one kind that may wait for one peer.
const QUESTIONS_MAX: usize = 1024;

type ConnectReply = SyncSender<Result<Introduction, ConnectError>>;

/// A thread that waits for an answer. That it has given up is no error.
type Reply<T> = SyncSender<Result<T, AskError>>;

/// Who the peer is, once it has welcomed us.
struct Known {
    name: String,
    incarnation: u64,
    session: SessionId,
}

/// The first connection of a session, while it is being made.
struct First {
    reply: ConnectReply,
    timeout: std::time::Duration,
    deadline: Instant,
}

/// One way to a peer, and the connection on it.
struct Route {
    local: Option<IpAddr>,
    remote: SocketAddr,
    /// Whether it is rebuilt when it is lost.
    kept: bool,
    backoff: Duration,
    link: Link,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Link {
    /// Down; the next attempt is due then.
    Idle { at: Instant },
    /// Being made: by the kernel, or between Hello and Welcome.
    Dialling(Key),
    /// Open.
    Up(Key),
}

/// Something asked and not answered.
struct Question<T> {
    /// What its answer carries.
    number: u64,
    frame: Frame,
    reply: Reply<T>,
    timeout: std::time::Duration,
    deadline: Instant,
    /// How long to wait before it is asked again.
    patience: Duration,
    again: Instant,
    /// The connection that it went out on last.
    sent_on: Option<Key>,
}

struct Peer {
    known: Option<Known>,
    first: Option<First>,
    routes: Vec<Route>,
    /// The last number given to a question and to a call.
    questions: u64,
    calls: u64,
    describing: Vec<Question<Option<SegmentDescriptor>>>,
    /// Only the first is out; the others wait for their turn.
    calling: VecDeque<Question<Vec<u8>>>,
}

/// All peers that we have connected to.
#[derive(Default)]
pub(super) struct Initiator {
    peers: HashMap<PeerId, Peer>,
}

impl Initiator {
    /// Makes the first connection of a session.
    pub(super) fn connect(
        &mut self,
        ctx: &Context,
        wires: &mut Wires,
        id: PeerId,
        route: (Option<IpAddr>, SocketAddr),
        timeout: std::time::Duration,
        reply: ConnectReply,
    ) {
        let (local, remote) = route;
        let ends = ctx.ends(local, None, remote);
        if self.peers.contains_key(&id) {
            let _ = reply.send(Err(ConnectError::Busy { ends, peer: id }));
            return;
        }
        let deadline = wires.now() + timeout.into();
        match wires.dial(id, local, remote, deadline, ctx.hello(None)) {
            Ok(key) => {
                let first = First {
                    reply,
                    timeout,
                    deadline,
                };
                let route = Route::new(local, remote, Link::Dialling(key));
                self.peers.insert(id, Peer::new(first, route));
                self.rearm(wires, id);
            }
            Err(error) => {
                let _ = reply.send(Err(ConnectError::Unreachable { ends, error }));
            }
        }
    }

    /// Keeps one connection per rail from now on.
    pub(super) fn maintain(
        &mut self,
        ctx: &Context,
        wires: &mut Wires,
        id: PeerId,
        rails: &[(Option<IpAddr>, SocketAddr)],
    ) {
        let Some(peer) = self.peers.get_mut(&id) else {
            log::warn!(
                "control: \"{}\" has no peer {} to keep connected",
                ctx.name,
                id.0
            );
            return;
        };
        peer.set_routes(wires.now(), rails);
        self.handle_timeout(ctx, wires, id);
    }

    /// Leaves a peer in good order.
    pub(super) fn disconnect(&mut self, ctx: &Context, wires: &mut Wires, id: PeerId) {
        if let Some(peer) = self.remove(wires, id) {
            let ends = peer.ends(ctx);
            peer.fail_questions(&AskError::Disconnected { ends });
        }
    }

    /// Asks what a segment is.
    pub(super) fn describe(
        &mut self,
        ctx: &Context,
        wires: &mut Wires,
        id: PeerId,
        name: String,
        timeout: std::time::Duration,
        reply: Reply<Option<SegmentDescriptor>>,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return refuse(&reply, ctx.no_peer(id));
        };
        let waiting = peer.describing.len();
        if waiting >= QUESTIONS_MAX {
            return refuse(&reply, AskError::Full { waiting });
        }
        peer.questions += 1;
        let number = peer.questions;
        let frame = Frame::Describe {
            question: number,
            name,
        };
        let question = Question::new(wires.now(), number, frame, DESCRIBE_AGAIN, timeout, reply);
        peer.describing.push(question);
        self.handle_timeout(ctx, wires, id);
    }

    /// Asks the peer's program to do something.
    #[allow(clippy::too_many_arguments)] // the fields of the command
    pub(super) fn call(
        &mut self,
        ctx: &Context,
        wires: &mut Wires,
        id: PeerId,
        method: u16,
        body: Vec<u8>,
        timeout: std::time::Duration,
        reply: Reply<Vec<u8>>,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return refuse(&reply, ctx.no_peer(id));
        };
        let waiting = peer.calling.len();
        if waiting >= QUESTIONS_MAX {
            return refuse(&reply, AskError::Full { waiting });
        }
        peer.calls += 1;
        let number = peer.calls;
        let frame = Frame::Call {
            number,
            method,
            body,
        };
        let question = Question::new(wires.now(), number, frame, CALL_AGAIN, timeout, reply);
        peer.calling.push_back(question);
        self.handle_timeout(ctx, wires, id);
    }

    /// Sends a fence over every open connection. Core repeats it until it is answered.
    pub(super) fn fence(&mut self, wires: &mut Wires, id: PeerId, lane: LaneId, epoch: Epoch) {
        let Some(peer) = self.peers.get(&id) else {
            return;
        };
        let frame = Frame::Fence {
            lane: lane.0,
            epoch: epoch.0,
        };
        for key in peer.open() {
            send(wires, key, &frame);
        }
    }

    /// What happened on a connection to a peer.
    pub(super) fn handle_event(
        &mut self,
        ctx: &Context,
        wires: &mut Wires,
        id: PeerId,
        key: Key,
        event: WireEvent,
    ) {
        match event {
            WireEvent::Said(Event::Welcome(welcome)) => {
                self.handle_welcome(ctx, wires, id, key, welcome);
            }
            WireEvent::Said(Event::Frame(frame)) => self.handle_frame(ctx, wires, id, frame),
            WireEvent::Said(Event::Ended(why)) => self.handle_ended(ctx, wires, id, key, why),
            WireEvent::DialFailed(error) => self.handle_dial_failed(ctx, wires, id, key, error),
            // Only said to targets.
            WireEvent::Said(Event::Hello(_) | Event::Join { .. }) => {}
        }
    }

    fn handle_welcome(
        &mut self,
        ctx: &Context,
        wires: &mut Wires,
        id: PeerId,
        key: Key,
        welcome: Welcome,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return wires.goodbye(key);
        };
        if let Some(known) = &peer.known
            && (known.session, known.incarnation) != (welcome.session, welcome.incarnation)
        {
            log::warn!(
                "control: {}: welcomed to another session than asked for",
                peer.ends(ctx)
            );
            let text = format!("\"{}\" asked for another session", ctx.name);
            wires.refuse(key, Refusal::Protocol, text);
            peer.lose(wires.now(), key);
            return self.rearm(wires, id);
        }
        let Some(route) = peer.route_mut(key) else {
            return;
        };
        route.link = Link::Up(key);
        route.backoff = BACKOFF_MIN;
        log::debug!(
            "control: connected {}",
            ctx.ends(route.local, Some(welcome.name.clone()), route.remote)
        );
        peer.introduce(welcome);
        ctx.handler.heard(id);
        self.handle_timeout(ctx, wires, id);
    }

    fn handle_frame(&mut self, ctx: &Context, wires: &mut Wires, id: PeerId, frame: Frame) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        ctx.handler.heard(id);
        match frame {
            Frame::Description { question, segment } => peer.handle_description(question, segment),
            Frame::Answer { number, result } => peer.handle_answer(ctx, number, result),
            Frame::Fenced {
                lane,
                epoch,
                delivered,
            } => {
                return ctx
                    .handler
                    .fenced(id, LaneId(lane), Epoch(epoch), delivered);
            }
            // A heartbeat has done its work by arriving; nothing else is let through.
            _ => return,
        }
        self.handle_timeout(ctx, wires, id);
    }

    fn handle_dial_failed(
        &mut self,
        ctx: &Context,
        wires: &mut Wires,
        id: PeerId,
        key: Key,
        error: std::io::Error,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let Some(route) = peer.route_mut(key) else {
            return;
        };
        let ends = ctx.ends(route.local, None, route.remote);
        log::debug!("control: connecting {ends}: {error}");
        match peer.first.take() {
            Some(first) if error.kind() == std::io::ErrorKind::TimedOut => {
                let after = first.timeout;
                self.give_up(wires, id, first, ConnectError::TimedOut { ends, after });
            }
            Some(first) => {
                self.give_up(wires, id, first, ConnectError::Unreachable { ends, error });
            }
            None => {
                peer.lose(wires.now(), key);
                self.rearm(wires, id);
            }
        }
    }

    fn handle_ended(&mut self, ctx: &Context, wires: &mut Wires, id: PeerId, key: Key, why: Ended) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let name = peer.name();
        let Some(route) = peer.route_mut(key) else {
            return;
        };
        let was_up = route.link == Link::Up(key);
        let ends = ctx.ends(route.local, name, route.remote);
        if let Some(first) = peer.first.take() {
            let error = ConnectError::from_ended(ends, why);
            return self.give_up(wires, id, first, error);
        }
        peer.lose(wires.now(), key);
        if was_up {
            log::warn!("control: connection of {ends} is gone: {why}");
        } else {
            log::debug!("control: connecting {ends}: {why}");
        }
        if let Ended::SessionUnknown { name, incarnation } = why
            && let Some(loss) = peer.judge(ends, name, incarnation)
        {
            return self.lose_session(ctx, wires, id, loss);
        }
        self.handle_timeout(ctx, wires, id);
    }

    /// The first connection cannot be made.
    fn give_up(&mut self, wires: &mut Wires, id: PeerId, first: First, error: ConnectError) {
        self.remove(wires, id);
        let _ = first.reply.send(Err(error));
    }

    fn lose_session(&mut self, ctx: &Context, wires: &mut Wires, id: PeerId, loss: SessionLoss) {
        log::warn!("control: {loss}");
        if let Some(peer) = self.remove(wires, id) {
            peer.fail_questions(&AskError::SessionLost(loss.clone()));
        }
        ctx.handler.session_lost(id, loss);
    }

    /// Does what is due with a peer: connections to make, questions to ask (again) or to give up.
    pub(super) fn handle_timeout(&mut self, ctx: &Context, wires: &mut Wires, id: PeerId) {
        let now = wires.now();
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        if let Some(first) = peer.first.take_if(|first| first.deadline <= now) {
            let ends = peer.ends(ctx);
            let after = first.timeout;
            return self.give_up(wires, id, first, ConnectError::TimedOut { ends, after });
        }
        peer.dial(ctx, wires, id, now);
        peer.expire(ctx, now);
        peer.ask(wires, now);
        self.rearm(wires, id);
    }

    fn rearm(&self, wires: &mut Wires, id: PeerId) {
        let at = self.peers.get(&id).and_then(Peer::poll_timeout);
        wires.timers.set(Timer::Peer(id), at);
    }

    /// Takes a peer away and leaves its connections in good order.
    fn remove(&mut self, wires: &mut Wires, id: PeerId) -> Option<Peer> {
        wires.timers.set(Timer::Peer(id), None);
        let peer = self.peers.remove(&id)?;
        for route in &peer.routes {
            if let Link::Dialling(key) | Link::Up(key) = route.link {
                wires.goodbye(key);
            }
        }
        Some(peer)
    }
}

impl Peer {
    fn new(first: First, route: Route) -> Self {
        Self {
            known: None,
            first: Some(first),
            routes: vec![route],
            questions: 0,
            calls: 0,
            describing: Vec::new(),
            calling: VecDeque::new(),
        }
    }

    fn name(&self) -> Option<String> {
        self.known.as_ref().map(|known| known.name.clone())
    }

    /// Both ends, by the first route.
    fn ends(&self, ctx: &Context) -> Box<Ends> {
        let (local, remote) = self
            .routes
            .first()
            .map_or((None, super::NOWHERE), |route| (route.local, route.remote));
        ctx.ends(local, self.name(), remote)
    }

    fn route_mut(&mut self, key: Key) -> Option<&mut Route> {
        self.routes.iter_mut().find(|route| route.is_on(key))
    }

    /// The open connections.
    fn open(&self) -> impl Iterator<Item = Key> {
        self.routes.iter().filter_map(|route| match route.link {
            Link::Up(key) => Some(key),
            Link::Idle { .. } | Link::Dialling(_) => None,
        })
    }

    /// Gives each rail a route: the one to its address that is there, or a new one. Routes that no rail
    /// claims are not rebuilt once they are lost, but not closed either: one may be the only one that works.
    fn set_routes(&mut self, now: Instant, rails: &[(Option<IpAddr>, SocketAddr)]) {
        let mut spare = std::mem::take(&mut self.routes);
        for &(local, remote) in rails {
            let same_ends = |route: &Route| (route.local, route.remote) == (local, remote);
            let found = spare
                .iter()
                .position(same_ends)
                .or_else(|| spare.iter().position(|route| route.remote == remote));
            let mut route = match found {
                Some(index) => spare.swap_remove(index),
                None => Route::new(local, remote, Link::Idle { at: now }),
            };
            route.local = local;
            route.kept = true;
            self.routes.push(route);
        }
        for mut route in spare {
            route.kept = false;
            if !matches!(route.link, Link::Idle { .. }) {
                self.routes.push(route);
            }
        }
    }

    /// The first welcome says who the peer is.
    fn introduce(&mut self, welcome: Welcome) {
        if self.known.is_some() {
            return;
        }
        self.known = Some(Known {
            name: welcome.name.clone(),
            incarnation: welcome.incarnation,
            session: welcome.session,
        });
        if let Some(first) = self.first.take() {
            let _ = first.reply.send(Ok(Introduction {
                name: welcome.name,
                incarnation: welcome.incarnation,
                session: welcome.session,
                rails: welcome.rails,
                scratch: welcome.scratch,
            }));
        }
    }

    /// A connection is gone: build it anew in a while, and ask what was asked on it elsewhere at once.
    fn lose(&mut self, now: Instant, key: Key) {
        if let Some(route) = self.route_mut(key) {
            let at = now + route.backoff;
            route.link = Link::Idle { at };
            route.backoff = route.backoff.times(2).min(BACKOFF_MAX);
        }
        self.routes
            .retain(|route| route.kept || !matches!(route.link, Link::Idle { .. }));
        for question in &mut self.describing {
            question.forget_connection(now, key);
        }
        for question in &mut self.calling {
            question.forget_connection(now, key);
        }
    }

    /// What it means that somebody there does not know our session.
    fn judge(&self, mut ends: Box<Ends>, name: String, incarnation: u64) -> Option<SessionLoss> {
        let known = self.known.as_ref()?;
        if incarnation == known.incarnation {
            return Some(SessionLoss::Forgotten {
                ends,
                session: known.session,
                incarnation,
            });
        }
        if self.open().next().is_some() {
            // The session lives on other rails: this address leads to somebody else.
            log::warn!(
                "control: {ends}: \"{}\", incarnation {incarnation:016x}, answers there; the peer is \
                 incarnation {:016x}",
                name.escape_debug(),
                known.incarnation
            );
            return None;
        }
        ends.theirs = Some(name);
        Some(SessionLoss::OtherIncarnation {
            ends,
            session: known.session,
            old_name: known.name.clone(),
            old: known.incarnation,
            new: incarnation,
        })
    }

    /// Starts the attempts to connect that are due.
    fn dial(&mut self, ctx: &Context, wires: &mut Wires, id: PeerId, now: Instant) {
        let Some(session) = self.known.as_ref().map(|known| known.session) else {
            return;
        };
        for route in &mut self.routes {
            let Link::Idle { at } = route.link else {
                continue;
            };
            if at > now {
                continue;
            }
            let by = now + DIAL_MAX;
            match wires.dial(id, route.local, route.remote, by, ctx.hello(Some(session))) {
                Ok(key) => route.link = Link::Dialling(key),
                Err(error) => {
                    let ends = ctx.ends(route.local, None, route.remote);
                    log::debug!("control: connecting {ends}: {error}");
                    let at = now + route.backoff;
                    route.link = Link::Idle { at };
                    route.backoff = route.backoff.times(2).min(BACKOFF_MAX);
                }
            }
        }
    }

    /// Gives up the questions whose time is over.
    fn expire(&mut self, ctx: &Context, now: Instant) {
        let ends = self.ends(ctx);
        let connections = self.open().count();
        self.describing
            .retain(|question| !question.expire(now, &ends, connections));
        self.calling
            .retain(|question| !question.expire(now, &ends, connections));
    }

    /// Asks what is due: every description, and the first call.
    fn ask(&mut self, wires: &mut Wires, now: Instant) {
        let mut open: Vec<Key> = self.open().collect();
        open.sort_unstable();
        for question in &mut self.describing {
            question.ask(wires, now, &open);
        }
        if let Some(question) = self.calling.front_mut() {
            question.ask(wires, now, &open);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let has_open = self.open().next().is_some();
        let first = self.first.iter().map(|first| first.deadline);
        let dials = self.routes.iter().filter_map(|route| match route.link {
            Link::Idle { at } if self.known.is_some() => Some(at),
            _ => None,
        });
        let describing = self.describing.iter().map(|q| q.due(has_open));
        let calling = self.calling.iter().enumerate();
        let calling = calling.map(|(place, q)| q.due(has_open && place == 0));
        first.chain(dials).chain(describing).chain(calling).min()
    }

    fn handle_description(&mut self, question: u64, segment: Option<SegmentDescriptor>) {
        // Asked twice, it is answered twice: the second finds nothing.
        if let Some(index) = self.describing.iter().position(|q| q.number == question) {
            let question = self.describing.swap_remove(index);
            let _ = question.reply.send(Ok(segment));
        }
    }

    fn handle_answer(&mut self, ctx: &Context, number: u64, result: Result<Vec<u8>, String>) {
        // Asked twice, it is answered twice: the second is about none that waits.
        if self.calling.front().is_none_or(|q| q.number != number) {
            return;
        }
        let Some(question) = self.calling.pop_front() else {
            return;
        };
        let ends = self.ends(ctx);
        let _ = question
            .reply
            .send(result.map_err(|text| AskError::Failed { ends, text }));
    }

    fn fail_questions(self, error: &AskError) {
        for question in self.describing {
            refuse(&question.reply, error.clone());
        }
        for question in self.calling {
            refuse(&question.reply, error.clone());
        }
    }
}

impl Route {
    fn new(local: Option<IpAddr>, remote: SocketAddr, link: Link) -> Self {
        Self {
            local,
            remote,
            kept: true,
            backoff: BACKOFF_MIN,
            link,
        }
    }

    fn is_on(&self, key: Key) -> bool {
        self.link == Link::Dialling(key) || self.link == Link::Up(key)
    }
}

impl<T> Question<T> {
    fn new(
        now: Instant,
        number: u64,
        frame: Frame,
        patience: Duration,
        timeout: std::time::Duration,
        reply: Reply<T>,
    ) -> Self {
        Self {
            number,
            frame,
            reply,
            timeout,
            deadline: now + timeout.into(),
            patience,
            again: now,
            sent_on: None,
        }
    }

    /// When something is to be done about it.
    fn due(&self, can_ask: bool) -> Instant {
        if can_ask {
            self.again.min(self.deadline)
        } else {
            self.deadline
        }
    }

    /// Whether its time was over, and its asker told so.
    fn expire(&self, now: Instant, ends: &Ends, connections: usize) -> bool {
        let over = self.deadline <= now;
        if over {
            let error = AskError::TimedOut {
                ends: Box::new(ends.clone()),
                after: self.timeout,
                connections,
            };
            refuse(&self.reply, error);
        }
        over
    }

    /// Asks, if that is due: on the next open connection after the last one, so that all get their turn.
    fn ask(&mut self, wires: &mut Wires, now: Instant, open: &[Key]) {
        if self.again > now {
            return;
        }
        let next = open.iter().find(|key| Some(**key) > self.sent_on);
        let Some(&key) = next.or(open.first()) else {
            return;
        };
        send(wires, key, &self.frame);
        self.sent_on = Some(key);
        self.again = now + self.patience;
    }

    fn forget_connection(&mut self, now: Instant, key: Key) {
        if self.sent_on == Some(key) {
            self.again = now;
        }
    }
}

fn refuse<T>(reply: &Reply<T>, error: AskError) {
    let _ = reply.send(Err(error));
}

/// Questions fit a frame: names and bodies were measured when they were asked.
fn send(wires: &mut Wires, key: Key, frame: &Frame) {
    if let Err(error) = wires.send(key, frame) {
        log::warn!("control: {} cannot be sent: {error}", frame.kind());
    }
}
