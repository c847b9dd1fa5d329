//! The initiator's half: peers that we have sessions with, the connections to them, and what we ask.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use polyrail_core::path::view::PathView;
use polyrail_core::stage::StageMessage;
use polyrail_core::units::{Epoch, LaneId, PeerId};
use polyrail_transport::complain;

use super::mailbox::Asker;
use super::notification::Notification;
use super::peer::{ConnectReply, First, Link, Peer, Route};
use super::question::{CALL_AGAIN_MAX, DESCRIBE_AGAIN_MAX, Question, send, send_by_turns};
use super::reactor::Context;
use super::target::printable;
use super::timers::Timer;
use super::watches::Watched;
use super::wires::{Key, WireEvent, Wires};
use super::{AskError, ConnectError, Party, Rails, SessionLoss};
use crate::codec::{Frame, MOVED, NOTIFICATIONS, Refusal, SegmentDescriptor};
use crate::connection::{Ended, Event, Welcome};

/// Questions of one kind that may wait for one peer.
const QUESTIONS_MAX: usize = 1024;

/// What is said of a member who answers in another one's place.
fn other_member(member: Option<&str>) -> String {
    format!(
        "its certificate names \"{}\", and the session is with a member of another name",
        printable(member.unwrap_or("nobody"))
    )
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

    /// The connections to a peer that are open or being made.
    pub(super) fn keys(&self, id: PeerId) -> Vec<Key> {
        self.peers
            .get(&id)
            .map_or(Vec::new(), |peer| peer.keys().collect())
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
        if let Some(mut peer) = self.remove(wires, id) {
            let ends = peer.ends(ctx);
            if let Some(first) = peer.first.take() {
                let ends = ends.clone();
                let _ = first.reply.send(Err(ConnectError::Disconnected { ends }));
            }
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
        asker: Asker<Option<SegmentDescriptor>>,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return asker.answer(Err(ctx.no_peer(id)));
        };
        let waiting = peer.describing.len();
        if waiting >= QUESTIONS_MAX {
            return asker.answer(Err(AskError::Full { waiting }));
        }
        peer.questions += 1;
        let number = peer.questions;
        let frame = Frame::Describe {
            question: number,
            name,
        };
        let question = Question::new(wires.now(), number, frame, DESCRIBE_AGAIN_MAX, asker);
        peer.describing.push(question);
        self.handle_timeout(ctx, wires, id);
    }

    /// Asks how the peer sees the connection.
    pub(super) fn see_path(
        &mut self,
        ctx: &Context,
        wires: &mut Wires,
        id: PeerId,
        rails: Vec<(IpAddr, IpAddr)>,
        asker: Asker<Option<PathView>>,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return asker.answer(Err(ctx.no_peer(id)));
        };
        let waiting = peer.seeing.len();
        if waiting >= QUESTIONS_MAX {
            return asker.answer(Err(AskError::Full { waiting }));
        }
        peer.questions += 1;
        let number = peer.questions;
        let frame = Frame::SeePath {
            question: number,
            rails,
        };
        let question = Question::new(wires.now(), number, frame, DESCRIBE_AGAIN_MAX, asker);
        peer.seeing.push(question);
        self.handle_timeout(ctx, wires, id);
    }

    /// Asks the peer's program to do something.
    pub(super) fn call(
        &mut self,
        ctx: &Context,
        wires: &mut Wires,
        id: PeerId,
        method: u16,
        body: Vec<u8>,
        asker: Asker<Vec<u8>>,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return asker.answer(Err(ctx.no_peer(id)));
        };
        let waiting = peer.calling.len();
        if waiting >= QUESTIONS_MAX {
            return asker.answer(Err(AskError::Full { waiting }));
        }
        peer.calls += 1;
        let number = peer.calls;
        let frame = Frame::Call {
            number,
            method,
            body,
        };
        let question = Question::new(wires.now(), number, frame, CALL_AGAIN_MAX, asker);
        peer.calling.push_back(question);
        self.handle_timeout(ctx, wires, id);
    }

    /// Tells the peer's program something. One that cannot be told is dropped, and says so itself.
    pub(super) fn notify(
        &mut self,
        ctx: &Context,
        wires: &mut Wires,
        id: PeerId,
        notifications: Vec<Notification>,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        if peer.understands(NOTIFICATIONS) {
            for notification in notifications {
                peer.outbox.push(notification);
            }
            self.handle_timeout(ctx, wires, id);
        }
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

    /// Says something about a staging slot over one connection; the next goes over another.
    pub(super) fn stage(&mut self, wires: &mut Wires, id: PeerId, message: StageMessage) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let turn = peer.stage_turn;
        peer.stage_turn = turn.wrapping_add(1);
        send_by_turns(wires, &peer.open().collect::<Vec<_>>(), turn, message);
    }

    /// Tells a peer how many bytes have been moved with it, if that is news to it.
    pub(super) fn say_moved(&mut self, wires: &mut Wires, id: PeerId, bytes: u64) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        if peer.moved_everywhere < bytes && peer.understands(MOVED) {
            peer.moved = bytes;
            peer.moved_everywhere = bytes;
            // Whichever connection says goodbye first has said it.
            for key in peer.open() {
                send(wires, key, &Frame::Moved { bytes });
            }
        }
    }

    /// The same for all peers.
    pub(super) fn say_all_moved(&mut self, ctx: &Context, wires: &mut Wires) {
        let ids: Vec<_> = self.peers.keys().copied().collect();
        for id in ids {
            if let Some(bytes) = ctx.handler.moved_with(id) {
                self.say_moved(wires, id, bytes);
            }
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
            WireEvent::Said(Event::Frame(frame)) => {
                self.handle_frame(ctx, wires, id, key, frame);
            }
            WireEvent::Said(Event::Ended(why)) => self.handle_ended(ctx, wires, id, key, why),
            WireEvent::DialFailed(error) => self.handle_dial_failed(ctx, wires, id, key, error),
            // Only said to targets.
            WireEvent::Said(Event::Hello(_) | Event::Join(_)) => {}
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
        let member = wires.member(key);
        let wrong = match &peer.known {
            Some(_) if !peer.is_of(member.as_deref()) => Some((
                Refusal::Key,
                "somebody else",
                other_member(member.as_deref()),
            )),
            Some(known)
                if (known.session, known.incarnation) != (welcome.session, welcome.incarnation) =>
            {
                let why = "welcomed to another session than asked for".into();
                Some((Refusal::Protocol, "another session", why))
            }
            _ => None,
        };
        if let Some((reason, asked_for, why)) = wrong {
            complain!("control: {}: {why}", peer.ends(ctx));
            let text = format!("\"{}\" asked for {asked_for}", ctx.name);
            wires.refuse(key, reason, text);
            peer.lose(wires.now(), key);
            return self.rearm(wires, id);
        }
        // The connection that a session begins on is the one that gives both ends its secret.
        let incarnations = (ctx.incarnation, welcome.incarnation);
        let is_first = peer.known.is_none();
        let secret = match is_first {
            false => Ok(None),
            true => wires.secret(ctx, key, welcome.session, incarnations),
        };
        let Some(route) = peer.route_mut(key) else {
            return;
        };
        route.open(wires.now(), key);
        log::debug!(
            "control: connected {}",
            ctx.ends(route.local, Some(welcome.name.clone()), route.remote)
        );
        match secret {
            Ok(secret) => {
                let features = wires.features(key);
                peer.introduce(welcome, member, secret, features, wires.round_trip(key));
            }
            Err(error) => {
                let ends = peer.ends(ctx);
                if let Some(first) = peer.first.take() {
                    let error = ConnectError::Unreachable { ends, error };
                    self.give_up(wires, id, first, error);
                }
                return;
            }
        }
        if is_first {
            let at = wires.now() + wires.times().heartbeat;
            wires.timers.set(Timer::Beat(id), Some(at));
        }
        ctx.say_process(wires, key);
        ctx.handler.heard(id);
        self.handle_timeout(ctx, wires, id);
    }

    fn handle_frame(
        &mut self,
        ctx: &Context,
        wires: &mut Wires,
        id: PeerId,
        key: Key,
        frame: Frame,
    ) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        ctx.handler.heard(id);
        peer.handle_heard(wires.now(), key);
        let idle = || ctx.handler.is_idle(id).then_some(ctx.idle_heartbeat);
        if let Some(next) = peer.next_beat(wires, idle) {
            wires.timers.set(Timer::Beat(id), Some(next));
        }
        match frame {
            Frame::Description { question, segment } => peer.handle_description(question, segment),
            Frame::DescriptionAt {
                question,
                mut segment,
                numa_node,
            } => {
                segment.numa_node = Some(numa_node);
                peer.handle_description(question, Some(segment));
            }
            Frame::PathSeen { question, view } => peer.handle_path_seen(question, view),
            Frame::Answer { number, result } => peer.handle_answer(ctx, number, result),
            Frame::Notified { number, room } => {
                peer.outbox.handle_notified(wires.now(), number, room);
            }
            Frame::Fenced {
                lane,
                epoch,
                delivered,
            } => {
                return ctx
                    .handler
                    .fenced(id, LaneId(lane), Epoch(epoch), delivered);
            }
            Frame::Process(process) if peer.process.is_none() => {
                let watch = wires.watch(key, process, ctx.process, Watched::Peer(id));
                peer.process = Some((process, watch));
                return;
            }
            Frame::Rails {
                rails,
                rail_facts,
                transports,
            } => {
                let rails = Rails {
                    addresses: rails,
                    facts: rail_facts,
                    transports,
                };
                return ctx.handler.has_rails(id, rails);
            }
            Frame::Stage(message) => return ctx.handler.staged(Party::Peer(id), message),
            Frame::Leaving => return ctx.handler.leaves(id),
            // It comes now and then.
            Frame::Heartbeat | Frame::Alive => {
                if let Some(bytes) = ctx.handler.moved_with(id)
                    && peer.moved < bytes
                    && peer.understands(MOVED)
                {
                    peer.moved = bytes;
                    send(wires, key, &Frame::Moved { bytes });
                }
                return;
            }
            // Nothing else is let through.
            _ => return,
        }
        self.handle_timeout(ctx, wires, id);
    }

    /// The kernel says that a peer's process has ended.
    pub(super) fn handle_exited(&mut self, ctx: &Context, wires: &mut Wires, id: PeerId) {
        let Some(peer) = self.peers.get(&id) else {
            return;
        };
        let (Some(known), Some((process, _))) = (&peer.known, &peer.process) else {
            return;
        };
        let loss = SessionLoss::Exited {
            ends: peer.ends(ctx),
            session: known.session,
            incarnation: known.incarnation,
            pid: process.pid,
        };
        self.lose_session(ctx, wires, id, loss);
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
                let error = ConnectError::TimedOut {
                    ends,
                    after,
                    connected: false,
                };
                self.give_up(wires, id, first, error);
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
        let member = wires.member(key);
        if let Some(first) = peer.first.take() {
            let error = ConnectError::from_ended(ends, why);
            return self.give_up(wires, id, first, error);
        }
        peer.lose(wires.now(), key);
        match was_up {
            true => complain!("control: connection of {ends} is gone: {why}"),
            // It is tried again for ever, and in vain until somebody sets it right.
            false if why.is_about_keys() => complain!("control: connecting {ends}: {why}"),
            false => log::debug!("control: connecting {ends}: {why}"),
        }
        let is_unknown = matches!(why, Ended::SessionUnknown { .. });
        if is_unknown && !peer.is_of(member.as_deref()) {
            complain!("control: {ends}: {}", other_member(member.as_deref()));
        } else if let Ended::SessionUnknown { name, incarnation } = why
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
        let peer = self.remove(wires, id);
        // First, so that whoever asked finds everything told that has to be, and may make the next session.
        ctx.handler.session_lost(id, loss.clone());
        if let Some(peer) = peer {
            peer.fail_questions(&AskError::SessionLost(loss));
        }
    }

    /// Does what is due with a peer: connections to make, questions to ask (again) or to give up.
    pub(super) fn handle_timeout(&mut self, ctx: &Context, wires: &mut Wires, id: PeerId) {
        let now = wires.now();
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        if let Some(first) = peer.first.take_if(|first| first.deadline <= now) {
            let error = ConnectError::TimedOut {
                ends: peer.ends(ctx),
                after: first.timeout,
                connected: peer.keys().any(|key| wires.is_connected(key)),
            };
            return self.give_up(wires, id, first, error);
        }
        peer.dial(ctx, wires, id, now);
        peer.expire(ctx, now);
        peer.ask(wires, now);
        self.rearm(wires, id);
    }

    /// The next heartbeat to a peer is due.
    pub(super) fn beat(&mut self, wires: &mut Wires, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(&id) {
            let again = peer.beat(wires);
            wires.timers.set(Timer::Beat(id), Some(again));
        }
    }

    fn rearm(&self, wires: &mut Wires, id: PeerId) {
        let at = self.peers.get(&id).and_then(Peer::poll_timeout);
        wires.timers.set(Timer::Peer(id), at);
    }

    /// Takes a peer away and leaves its connections in good order.
    fn remove(&mut self, wires: &mut Wires, id: PeerId) -> Option<Peer> {
        wires.timers.set(Timer::Peer(id), None);
        wires.timers.set(Timer::Beat(id), None);
        let peer = self.peers.remove(&id)?;
        if let Some((_, Some(watch))) = peer.process {
            wires.unwatch(watch, Watched::Peer(id));
        }
        for route in &peer.routes {
            if let Link::Dialling(key) | Link::Up(key) = route.link {
                wires.goodbye(key);
            }
        }
        Some(peer)
    }
}
