//! The target's half: sessions that peers have with us, and what they ask in them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use polyrail_core::stage::StageMessage;
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{Epoch, LaneId};
use polyrail_transport::complain;
use polyrail_transport::memory::TrustDomain;
use polyrail_transport::place::Place;
use polyrail_transport::tally::Tally;
use polyrail_transport::ticket::{self, Denied, Entry, LaneKeys, Proof, SessionSecret};
use polyrail_transport::{InboundLane, RetireAnswer, SessionId};

use super::mailbox::{Command, Mailbox, Pending};
use super::question::{send, send_by_turns};
use super::reactor::Context;
use super::timers::{Timer, on_grid};
use super::watches::Watched;
use super::wires::{Key, Wires};
use super::{Guest, Notifier, Party, SessionEnd};
use crate::codec::{
    Frame, LEAVING, NAME_BYTES_MAX, NODES, PATH_RAILS_MAX, RAILS, Refusal, SegmentDescriptor,
};
use crate::connection::{Ended, Event, Hello, Join, Welcome};
use crate::security::Fingerprint;

/// Control connections of one session.
const CONNECTIONS_MAX: usize = 64;

/// Fences of one session that wait for the engine. More are not taken; the peer repeats them.
const FENCES_MAX: usize = 256;

/// Bytes of answers to calls that are kept for who asks again. Of more the oldest go.
const ANSWERS_BYTES_MAX: usize = 8 << 20;

/// How long after the end of an initiator's process its connections may go on to bring what it had said. The
/// kernel has closed them already, unless somebody else holds them too.
const LAST_WORDS_MAX: Duration = Duration::from_millis(500);

/// Sessions are looked at for silence at so many instants of the longest one, up to so much later than each would be: else a
/// thousand peers that only beat cost half as many wake-ups again.
const SILENCE_PARTS: u64 = 32;

/// A peer's session.
struct Session {
    /// Counts sessions: an older one has a smaller number.
    number: u64,
    /// Where it came from first.
    place: Place,
    /// Whether it has said anything after it was let in. Before that it has proved nothing.
    works: bool,
    /// Who has it, and whom its certificate names, if one was shown: all its connections show one with that name.
    name: String,
    member: Option<String>,
    incarnation: u64,
    /// The trust domain that it is in: that of the address it came from first. All others have to be of the same.
    domain: TrustDomain,
    /// What its lanes prove themselves with, if there is a cluster key.
    secret: Option<SessionSecret>,
    /// The key of this end that it began with.
    key: Option<Fingerprint>,
    /// Its open connections.
    connections: BTreeSet<Key>,
    /// When something last came on any of them.
    heard_at: Instant,
    /// Fences that the engine works on, with the connections that wait for the answer.
    fences: HashMap<(LaneId, Epoch), BTreeSet<Key>>,
    call: Call,
    /// Whether it has said which process it is, and the watch on that, if it can be watched.
    process_said: bool,
    watch: Option<Key>,
    /// That has ended.
    exited: bool,
    /// The last notification that was taken.
    notified: u64,
    /// Counts what was said about staging slots.
    stage_turn: usize,
}

/// The last call of a session, so that each is carried out once.
enum Call {
    /// None yet.
    None,
    /// It is being carried out; these connections wait for the answer.
    Running { number: u64, askers: BTreeSet<Key> },
    /// It has been carried out.
    Done { number: u64, answer: Frame },
}

/// What sessions a target has room for.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// How long one without a connection is kept.
    pub(super) linger: Duration,
    pub(super) sessions: usize,
    pub(super) connections: usize,
}

/// All sessions that peers have with us.
pub(super) struct Target {
    limits: Limits,
    sessions: HashMap<SessionId, Session>,
    /// How many there have been.
    count: u64,
    /// Those that make room when there is none, in this order: first those that have said nothing since they were let in,
    /// then those without a connection, the oldest of each first.
    spare: BTreeMap<(Spare, u64), SessionId>,
    /// How many each address has.
    places: Tally<Place>,
    /// Answers to calls that are kept, the oldest first: whose, of which number, and how long.
    answers: VecDeque<(SessionId, u64, usize)>,
    answers_bytes: usize,
    /// Sessions that are over while the engine still ends what belongs to them. Not yet unknown: to say so
    /// would be proof that nothing of them can write any more.
    ending: HashSet<SessionId>,
    /// Keys that were replaced, and when sessions that began with them end.
    left_keys: Vec<(Instant, Fingerprint)>,
    /// The session of each open inbound connection.
    members: HashMap<Key, SessionId>,
}

/// Why a session can make room for another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Spare {
    Unproved,
    Deserted,
}

impl Target {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            sessions: HashMap::new(),
            count: 0,
            spare: BTreeMap::new(),
            places: Tally::default(),
            answers: VecDeque::new(),
            answers_bytes: 0,
            ending: HashSet::new(),
            members: HashMap::new(),
            left_keys: Vec::new(),
        }
    }

    /// What came on an inbound connection.
    pub(super) fn handle_event(
        &mut self,
        ctx: &Context,
        wires: &mut Wires,
        key: Key,
        event: Event,
    ) {
        match event {
            Event::Hello(hello) => self.handle_hello(ctx, wires, key, hello),
            Event::Join(join) => self.handle_join(ctx, wires, key, join),
            Event::Frame(frame) => self.handle_frame(ctx, wires, key, frame),
            Event::Ended(why) => self.handle_ended(ctx, wires, key, &why),
            // Only said to initiators.
            Event::Welcome(_) => {}
        }
    }

    fn handle_hello(&mut self, ctx: &Context, wires: &mut Wires, key: Key, hello: Hello) {
        let most = self.limits.connections;
        if wires.members() > most {
            let text = format!(
                "\"{}\" has {most} control connections, the limit (control/connections_max)",
                ctx.name
            );
            complain!(
                "control: {text}; \"{}\" is turned away",
                printable(&hello.name)
            );
            return wires.refuse(key, Refusal::Full, text);
        }
        match hello.session {
            None if ctx.leaving => {
                let text = format!(
                    "\"{}\" is about to end, and takes no new sessions",
                    ctx.name
                );
                wires.refuse(key, Refusal::ShuttingDown, text);
            }
            None => self.open_session(ctx, wires, key, hello),
            Some(session) => self.rejoin_session(ctx, wires, key, session, &hello),
        }
    }

    fn open_session(&mut self, ctx: &Context, wires: &mut Wires, key: Key, hello: Hello) {
        let place = wires.place(key);
        if let Some(text) = self.make_room(ctx, wires, place) {
            complain!(
                "control: {text}; \"{}\" is turned away",
                printable(&hello.name)
            );
            return wires.refuse(key, Refusal::Full, text);
        }
        let mut id = [0; 16];
        if let Err(error) = getrandom::fill(&mut id) {
            let text = format!("\"{}\" has no random numbers: {error}", ctx.name);
            complain!("control: {text}");
            return wires.refuse(key, Refusal::Full, text);
        }
        let id = SessionId(id);
        let secret = match wires.secret(ctx, key, id, (hello.incarnation, ctx.incarnation)) {
            Ok(secret) => secret,
            Err(error) => {
                let text = format!("\"{}\" has no secret for the session: {error}", ctx.name);
                complain!("control: {text}");
                return wires.refuse(key, Refusal::Key, text);
            }
        };
        let member = wires.member(key);
        let domain = wires.domain(ctx, key, member.as_deref());
        let remote = wires.remote(key);
        log::debug!(
            "control: {id:?} of \"{}\" at {remote} begins",
            printable(&hello.name)
        );
        ctx.handler.session_began(&Guest {
            session: id,
            domain: scope(domain, secret.as_ref()),
            name: &hello.name,
            member: member.as_deref(),
            address: &remote,
            secret: secret.clone(),
        });
        self.count += 1;
        let number = self.count;
        self.spare.insert((Spare::Unproved, number), id);
        self.places.add(place, 1);
        let session = Session {
            number,
            place,
            works: false,
            name: hello.name,
            member,
            incarnation: hello.incarnation,
            domain,
            secret: secret.clone(),
            key: wires.fingerprint(key),
            connections: BTreeSet::from([key]),
            heard_at: wires.now(),
            fences: HashMap::new(),
            call: Call::None,
            process_said: false,
            watch: None,
            exited: false,
            notified: 0,
            stage_turn: 0,
        };
        self.sessions.insert(id, session);
        self.admit(ctx, wires, key, id);
    }

    /// Ends a session that can be spared, if there is no room for one more from there. What is wrong, if there is none.
    fn make_room(&mut self, ctx: &Context, wires: &mut Wires, place: Place) -> Option<String> {
        let most = self.limits.sessions;
        let (name, key) = (&ctx.name, "control/sessions_max");
        if self.ending.len() >= most {
            let text = format!("\"{name}\" is ending {most} sessions, the limit ({key})");
            return Some(text);
        }
        let share = most.div_ceil(2);
        let own = self.places.of(&place);
        let is_full = self.sessions.len() >= most;
        if !is_full && own < share {
            return None;
        }
        // Whoever has his share has to make room himself.
        let of_place = |id: &SessionId| self.sessions.get(id).is_some_and(|of| of.place == place);
        let mut spare = self.spare.values();
        let oldest = match own < share {
            true => spare.next(),
            false => spare.find(|id| of_place(id)),
        };
        match oldest.copied() {
            Some(oldest) => {
                log::debug!("control: {oldest:?} makes room for a newcomer");
                self.end_session(ctx, wires, oldest, SessionEnd::MadeRoom);
                None
            }
            None if is_full => Some(format!("\"{name}\" has {most} sessions, the limit ({key})")),
            None => Some(format!(
                "\"{name}\" has {own} sessions of this address, half of the limit ({key})"
            )),
        }
    }

    fn rejoin_session(
        &mut self,
        ctx: &Context,
        wires: &mut Wires,
        key: Key,
        id: SessionId,
        hello: &Hello,
    ) {
        let exited = self.sessions.get(&id).is_some_and(|session| session.exited);
        if exited || self.ending.contains(&id) {
            let text = format!("\"{}\" is ending the session", ctx.name);
            return wires.refuse(key, Refusal::ShuttingDown, text);
        }
        let Some(session) = self.sessions.get_mut(&id) else {
            return wires.refuse_session(key, ctx.name.clone(), ctx.incarnation);
        };
        if (&session.name, session.incarnation) != (&hello.name, hello.incarnation) {
            let text = format!(
                "the session at \"{}\" belongs to incarnation {:016x}, not {:016x}",
                ctx.name, session.incarnation, hello.incarnation
            );
            complain!("control: {text}");
            return wires.refuse(key, Refusal::Protocol, text);
        }
        let member = wires.member(key);
        if member != session.member {
            let text = format!(
                "the session at \"{}\" belongs to a member of another name than {}",
                ctx.name,
                printable(member.as_deref().unwrap_or("none"))
            );
            complain!("control: {text}");
            return wires.refuse(key, Refusal::Key, text);
        }
        if let Some(text) = session.is_foreign(ctx, wires, key) {
            complain!("control: {text}");
            return wires.refuse(key, Refusal::Protocol, text);
        }
        if session.connections.len() >= CONNECTIONS_MAX {
            let text = format!(
                "\"{}\" has {CONNECTIONS_MAX} connections of the session, the limit",
                ctx.name
            );
            return wires.refuse(key, Refusal::Full, text);
        }
        session.connections.insert(key);
        self.spare.remove(&(Spare::Deserted, session.number));
        self.admit(ctx, wires, key, id);
    }

    fn admit(&mut self, ctx: &Context, wires: &mut Wires, key: Key, session: SessionId) {
        self.members.insert(key, session);
        self.watch_silence(wires, session);
        wires.welcome(
            key,
            Welcome {
                name: ctx.name.clone(),
                incarnation: ctx.incarnation,
                session,
                rails: ctx.rails.clone(),
                rail_facts: ctx.rail_facts.clone(),
                transports: ctx.transports.clone(),
                scratch: ctx.scratch.clone(),
            },
        );
        ctx.say_process(wires, key);
        if ctx.leaving {
            say_leaving(wires, key);
        }
    }

    /// Tells all who are in that this engine is about to end, over every connection: one may be of no use.
    pub(super) fn say_leaving(&self, wires: &mut Wires) {
        self.members.keys().for_each(|key| say_leaving(wires, *key));
    }

    /// There is room for so many from now on.
    pub(super) fn limit(&mut self, sessions: usize, connections: usize) {
        self.limits.sessions = sessions;
        self.limits.connections = connections;
    }

    /// Tells all who are in what our rails are now, over every connection: one may be of no use.
    pub(super) fn announce(&self, ctx: &Context, wires: &mut Wires) {
        let frame = Frame::Rails {
            rails: ctx.rails.clone(),
            rail_facts: ctx.rail_facts.clone(),
            transports: ctx.transports.clone(),
        };
        for key in self.members.keys() {
            if wires.features(*key) & RAILS != 0 {
                send(wires, *key, &frame);
            }
        }
    }

    /// Looks again when a session with connections has been silent for too long, from now on.
    fn watch_silence(&mut self, wires: &mut Wires, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.heard_at = wires.now();
            let at = session.silent_at(wires);
            wires.timers.set(Timer::session(id), Some(at));
        }
    }

    fn handle_join(&mut self, ctx: &Context, wires: &mut Wires, key: Key, join: Join) {
        let session = join.session;
        // Who has a ticket speaks to an engine with a key. He is told nothing of it before he has proved himself, and sessions
        // that there are, that end and that there never were are alike to him.
        let unproved = join.ticket.is_some().then_some(Denied::Proof);
        let deny = |wires: &mut Wires, denied: Denied| {
            let remote = wires.remote(key);
            complain!("control: a lane from {remote} is turned away: {denied}");
            wires.refuse(key, Refusal::Key, denied.to_string());
        };
        let known = match self.sessions.get(&session) {
            Some(known) => known,
            None => match unproved {
                Some(denied) => {
                    ctx.lanes_denied.fetch_add(1, Relaxed);
                    return deny(wires, denied);
                }
                None if self.ending.contains(&session) => {
                    let text = format!("\"{}\" is ending the session", ctx.name);
                    return wires.refuse(key, Refusal::ShuttingDown, text);
                }
                None => {
                    let text = format!("\"{}\" does not know the session", ctx.name);
                    return wires.refuse(key, Refusal::SessionUnknown, text);
                }
            },
        };
        let (proof, keys) = match known.admit(&join) {
            Ok(admitted) => admitted,
            Err(denied) => return deny(wires, denied),
        };
        if let Some(text) = known.is_foreign(ctx, wires, key) {
            complain!("control: {text}");
            return wires.refuse(key, Refusal::Protocol, text);
        }
        let domain = scope(known.domain, known.secret.as_ref());
        if let Some(stream) = wires.take_stream(key, proof) {
            ctx.handler.lane(InboundLane {
                transport: join.transport,
                session,
                domain,
                lane: join.lane,
                epoch: join.epoch,
                stream,
                keys,
            });
        }
    }

    fn handle_frame(&mut self, ctx: &Context, wires: &mut Wires, key: Key, frame: Frame) {
        let Some(&id) = self.members.get(&key) else {
            return;
        };
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if !std::mem::replace(&mut session.works, true) {
            self.spare.remove(&(Spare::Unproved, session.number));
        }
        session.heard_at = wires.now();
        match frame {
            Frame::Describe { question, name } => {
                let segment = (name.len() <= NAME_BYTES_MAX)
                    .then(|| {
                        ctx.handler
                            .describe(&name, scope(session.domain, session.secret.as_ref()))
                    })
                    .flatten();
                let says_nodes = wires.features(key) & NODES != 0;
                send(wires, key, &description(question, segment, says_nodes));
            }
            Frame::SeePath { question, rails } => {
                // The other end's first, in the frame.
                let rails: Vec<_> = rails.into_iter().map(|(peer, own)| (own, peer)).collect();
                let view = (rails.len() <= PATH_RAILS_MAX)
                    .then(|| ctx.handler.see_path(&rails))
                    .flatten();
                send(wires, key, &Frame::PathSeen { question, view });
            }
            Frame::Fence { lane, epoch } => {
                session.fence(ctx, id, key, LaneId(lane), Epoch(epoch));
            }
            Frame::Call {
                number,
                method,
                body,
            } => {
                let is_new = session.is_new_call(wires, key, number);
                if is_new {
                    session.call(ctx, id, key, number, method, body);
                }
            }
            Frame::Process(process) if !session.process_said => {
                session.process_said = true;
                session.watch = wires.watch(key, process, ctx.process, Watched::Session(id));
                if session.watch.is_some() {
                    log::debug!(
                        "control: {id:?}: the process of \"{}\" is watched",
                        printable(&session.name)
                    );
                }
            }
            Frame::Notify { number, body } => session.notify(ctx, wires, id, key, number, body),
            Frame::Moved { bytes } => ctx.handler.moved(id, bytes),
            // Slots are shared by all who may know of them, so they are for the common domain only.
            Frame::Stage(message) if session.domain == TrustDomain::COMMON => {
                ctx.handler.staged(Party::Session(id), message);
            }
            // A heartbeat has done its work by arriving; nothing else is let through.
            _ => {}
        }
    }

    /// The kernel says that an initiator's process has ended: nobody will come back for its session. What it said
    /// before its end still counts, so the session ends with its connections.
    pub(super) fn handle_exited(&mut self, ctx: &Context, wires: &mut Wires, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        complain!(
            "control: {id:?} ends: the process of \"{}\" has ended",
            printable(&session.name)
        );
        if let Some(watch) = session.watch.take() {
            wires.unwatch(watch, Watched::Session(id));
        }
        session.exited = true;
        if session.connections.is_empty() {
            return self.end_session(ctx, wires, id, SessionEnd::Exited);
        }
        let at = wires.now() + LAST_WORDS_MAX;
        wires.timers.set(Timer::session(id), Some(at));
    }

    /// Says something about a staging slot over one connection of a session; the next goes over another.
    pub(super) fn stage(&mut self, wires: &mut Wires, id: SessionId, message: StageMessage) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let turn = session.stage_turn;
        session.stage_turn = turn.wrapping_add(1);
        let open: Vec<_> = session.connections.iter().copied().collect();
        send_by_turns(wires, &open, turn, message);
    }

    /// The program has taken notifications: a session that had to wait may go on. It is told over all its
    /// connections, and asks again by itself if none of them gets through.
    pub(super) fn handle_notification_room(&mut self, wires: &mut Wires, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let frame = Frame::Notified {
            number: session.notified,
            room: true,
        };
        for key in &session.connections {
            send(wires, *key, &frame);
        }
    }

    /// The engine has carried out a fence, or (`None`) will not.
    pub(super) fn handle_fence_answer(
        &mut self,
        wires: &mut Wires,
        id: SessionId,
        lane: LaneId,
        epoch: Epoch,
        delivered: Option<u32>,
    ) {
        let askers = self
            .sessions
            .get_mut(&id)
            .and_then(|session| session.fences.remove(&(lane, epoch)));
        let (Some(askers), Some(delivered)) = (askers, delivered) else {
            return;
        };
        let frame = Frame::Fenced {
            lane: lane.0,
            epoch: epoch.0,
            delivered,
        };
        for key in askers {
            send(wires, key, &frame);
        }
    }

    /// The program has carried out a call.
    pub(super) fn handle_call_answer(
        &mut self,
        wires: &mut Wires,
        id: SessionId,
        number: u64,
        result: Result<Vec<u8>, String>,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Call::Running {
            number: running,
            askers,
        } = &session.call
        else {
            return;
        };
        if *running != number {
            return;
        }
        let result = bounded(result);
        let bytes = result.as_ref().map_or_else(String::len, Vec::len);
        let answer = Frame::Answer { number, result };
        for key in askers {
            send(wires, *key, &answer);
        }
        session.call = Call::Done { number, answer };
        self.answers.push_back((id, number, bytes));
        self.answers_bytes += bytes;
        self.forget_answers();
    }

    /// Keeps no more answers than there is room for. Who asks again for one that has gone is told so.
    fn forget_answers(&mut self) {
        while self.answers_bytes > ANSWERS_BYTES_MAX
            && let Some((id, number, bytes)) = self.answers.pop_front()
        {
            self.answers_bytes -= bytes;
            if let Some(session) = self.sessions.get_mut(&id)
                && let Call::Done {
                    number: done,
                    answer,
                } = &mut session.call
                && *done == number
            {
                let result = Err("it was carried out, and its answer is not kept any more".into());
                *answer = Frame::Answer { number, result };
            }
        }
    }

    /// Everything of a session that was over has ended too.
    pub(super) fn handle_retired(&mut self, id: SessionId, proven: bool) {
        if proven {
            self.ending.remove(&id);
            log::debug!("control: {id:?} is forgotten");
        } else {
            complain!(
                "control: nobody can say whether everything of {id:?} has ended; it stays unsaid"
            );
        }
    }

    fn handle_ended(&mut self, ctx: &Context, wires: &mut Wires, key: Key, why: &Ended) {
        let remote = wires.remote(key);
        let Some(id) = self.members.remove(&key) else {
            log::debug!("control: stranger at {remote}: {why}");
            return;
        };
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.forget_connection(key);
        if *why == Ended::Goodbye {
            log::debug!(
                "control: {id:?}: \"{}\" said goodbye",
                printable(&session.name)
            );
            return self.end_session(ctx, wires, id, SessionEnd::Goodbye);
        }
        complain!(
            "control: connection of \"{}\" from \"{}\" at {remote} is gone: {why}",
            ctx.name,
            printable(&session.name)
        );
        if session.connections.is_empty() {
            if session.exited {
                return self.end_session(ctx, wires, id, SessionEnd::Exited);
            }
            if session.works {
                self.spare.insert((Spare::Deserted, session.number), id);
            }
            let at = wires.now() + self.limits.linger;
            wires.timers.set(Timer::session(id), Some(at));
        }
    }

    /// A session has had no connection, or none with a process behind it, for long enough; or it may be silent.
    pub(super) fn handle_timeout(&mut self, ctx: &Context, wires: &mut Wires, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let deserted = session.connections.is_empty();
        if !deserted && !session.exited {
            return session.look_for_silence(ctx, wires, id);
        }
        if deserted && !session.exited {
            complain!(
                "control: {id:?} had no connection for {:?}: it ends",
                self.limits.linger
            );
        }
        if deserted || session.exited {
            let why = match session.exited {
                true => SessionEnd::Exited,
                false => SessionEnd::Deserted,
            };
            self.end_session(ctx, wires, id, why);
        }
    }

    /// Sessions that began with this key end within this time, unless it is the key again by then.
    pub(super) fn leave_key(&mut self, wires: &mut Wires, key: Fingerprint, within: Duration) {
        self.left_keys.push((wires.now() + within, key));
        self.watch_left_keys(wires);
    }

    /// Ends sessions that began with a key that was left so long ago.
    pub(super) fn end_left_keys(&mut self, ctx: &Context, wires: &mut Wires) {
        let now = wires.now();
        let due = |(at, _): &mut (Instant, Fingerprint)| *at <= now;
        let due: Vec<_> = self.left_keys.extract_if(.., due).collect();
        let current = wires.current_key();
        for (_, key) in due.into_iter().filter(|(_, key)| Some(*key) != current) {
            let began_with =
                |(id, session): (&SessionId, &Session)| (session.key == Some(key)).then_some(*id);
            let old: Vec<_> = self.sessions.iter().filter_map(began_with).collect();
            if !old.is_empty() {
                log::info!(
                    "control: {} sessions that began with key {key} end",
                    old.len()
                );
            }
            for id in old {
                self.end_session(ctx, wires, id, SessionEnd::OldKey);
            }
        }
        self.watch_left_keys(wires);
    }

    fn watch_left_keys(&self, wires: &mut Wires) {
        let next = self.left_keys.iter().map(|(at, _)| *at).min();
        wires.timers.set(Timer::LeftKeys, next);
    }

    fn end_session(&mut self, ctx: &Context, wires: &mut Wires, id: SessionId, why: SessionEnd) {
        let Some(session) = self.sessions.remove(&id) else {
            return;
        };
        wires.timers.set(Timer::session(id), None);
        self.spare.remove(&(Spare::Unproved, session.number));
        self.spare.remove(&(Spare::Deserted, session.number));
        self.places.take(&session.place, 1);
        if let Some(watch) = session.watch {
            wires.unwatch(watch, Watched::Session(id));
        }
        for key in session.connections {
            self.members.remove(&key);
            wires.goodbye(key);
        }
        self.ending.insert(id);
        ctx.handler
            .session_ended(id, why, retire_answer(&ctx.mailbox, id));
    }
}

impl Session {
    /// Its initiator beats; who hears nothing until then asks.
    fn silent_at(&self, wires: &Wires) -> Instant {
        let silence_max = wires.times().silence_max;
        let at = self.heard_at + silence_max.divided_by(2);
        on_grid(at, silence_max.divided_by(SILENCE_PARTS))
    }

    /// Asks for a sign of life on all connections, if nothing has come on any of them for too long. An initiator may have
    /// stopped just before it would have beaten, and beats the less often while nothing is in flight: that is no part of the
    /// time that it may be silent.
    fn look_for_silence(&self, ctx: &Context, wires: &mut Wires, id: SessionId) {
        let now = wires.now();
        let mut again = self.silent_at(wires);
        if again <= now {
            let silence_max = wires.times().silence_max;
            again = now + silence_max.divided_by(2);
            let by = again.max(self.heard_at + silence_max + ctx.idle_heartbeat);
            self.connections.iter().for_each(|key| wires.ask(*key, by));
        }
        wires.timers.set(Timer::session(id), Some(again));
    }

    /// What a lane's ticket is answered with, if it needs one, and what its bytes are encrypted with, if they are.
    fn admit(&self, join: &Join) -> Result<(Option<Proof>, Option<LaneKeys>), Denied> {
        let entry = Entry {
            // Who says a ticket names it.
            transport: join.transport.as_deref().unwrap_or_default(),
            session: join.session,
            lane: Some((join.lane, join.epoch)),
        };
        let said = join.ticket.as_ref();
        let said = said.map(|(challenge, ticket)| (*challenge, ticket));
        let secret = self.secret.as_ref();
        let proof = ticket::admit(secret, &entry, said)?;
        let keys = match (secret, said) {
            (Some(secret), Some((challenge, ticket))) => secret.keys(&entry, challenge, ticket)?,
            _ => None,
        };
        Ok((proof, keys))
    }

    /// What is wrong with a connection that comes from an address of another trust domain than the session's: whoever
    /// got hold of a session's name is not let in with it.
    fn is_foreign(&self, ctx: &Context, wires: &Wires, key: Key) -> Option<String> {
        // What a lane proves is that it is of the session, whose member has said who he is.
        let domain = wires.domain(ctx, key, self.member.as_deref());
        (domain != self.domain).then(|| {
            format!(
                "{} is of another trust domain at \"{}\" than the session is that it asks for; all addresses of a peer \
                 have to be of one",
                wires.remote(key),
                ctx.name
            )
        })
    }

    /// A peer wants a lane fenced. Asked again while the engine works on it, it only waits with the others.
    fn fence(&mut self, ctx: &Context, id: SessionId, key: Key, lane: LaneId, epoch: Epoch) {
        let waiting = self.fences.len();
        if let Some(askers) = self.fences.get_mut(&(lane, epoch)) {
            askers.insert(key);
            return;
        }
        if waiting >= FENCES_MAX {
            return;
        }
        self.fences.insert((lane, epoch), BTreeSet::from([key]));
        let pending = Pending::new(&ctx.mailbox, move |delivered| Command::FenceAnswered {
            session: id,
            lane,
            epoch,
            delivered,
        });
        ctx.handler.fence(
            id,
            lane,
            epoch,
            Box::new(move |delivered| pending.answer(delivered)),
        );
    }

    /// Whether a call is to be carried out. One that was is answered again; one that is being carried out
    /// makes `key` wait with the others; one that comes while another is carried out is the peer's next
    /// after a timeout, and is repeated.
    fn is_new_call(&mut self, wires: &mut Wires, key: Key, number: u64) -> bool {
        match &mut self.call {
            Call::None => true,
            Call::Running {
                number: running,
                askers,
            } => {
                if *running == number {
                    askers.insert(key);
                }
                false
            }
            Call::Done {
                number: done,
                answer,
            } => {
                if *done == number {
                    send(wires, key, answer);
                }
                number > *done
            }
        }
    }

    fn call(
        &mut self,
        ctx: &Context,
        id: SessionId,
        key: Key,
        number: u64,
        method: u16,
        body: Vec<u8>,
    ) {
        self.call = Call::Running {
            number,
            askers: BTreeSet::from([key]),
        };
        let pending = Pending::new(&ctx.mailbox, move |result: Option<_>| {
            Command::CallAnswered {
                session: id,
                number,
                result: result.unwrap_or_else(|| Err("the call was dropped unanswered".into())),
            }
        });
        ctx.handler.call(
            id,
            method,
            body,
            Box::new(move |result| pending.answer(result)),
        );
    }

    /// A notification. One that was taken before is confirmed again; one that does not follow the last comes
    /// again, after those that are missing.
    fn notify(
        &mut self,
        ctx: &Context,
        wires: &mut Wires,
        id: SessionId,
        key: Key,
        number: u64,
        body: Vec<u8>,
    ) {
        if number > self.notified + 1 {
            return;
        }
        let from = Notifier {
            session: id,
            name: &self.name,
            incarnation: self.incarnation,
            features: wires.features(key),
        };
        let is_new = number > self.notified;
        let room = !is_new || ctx.handler.notify(&from, body);
        self.notified += u64::from(is_new && room);
        let frame = Frame::Notified {
            number: self.notified,
            room,
        };
        send(wires, key, &frame);
    }

    fn forget_connection(&mut self, key: Key) {
        self.connections.remove(&key);
        for askers in self.fences.values_mut() {
            askers.remove(&key);
        }
        if let Call::Running { askers, .. } = &mut self.call {
            askers.remove(&key);
        }
    }
}

/// What a session may use: of its trust domain all, if its lanes encrypt.
fn scope(domain: TrustDomain, secret: Option<&SessionSecret>) -> TrustDomain {
    match secret.is_some_and(SessionSecret::encrypts) {
        true => domain.encrypted(),
        false => domain,
    }
}

/// What a segment is, and where, for a peer that understands that.
fn description(question: u64, segment: Option<SegmentDescriptor>, says_nodes: bool) -> Frame {
    let node = segment.as_ref().and_then(|segment| segment.numa_node);
    match (segment, node.filter(|_| says_nodes)) {
        (Some(segment), Some(numa_node)) => Frame::DescriptionAt {
            question,
            segment,
            numa_node,
        },
        (segment, _) => Frame::Description { question, segment },
    }
}

fn say_leaving(wires: &mut Wires, key: Key) {
    if wires.features(key) & LEAVING != 0 {
        send(wires, key, &Frame::Leaving);
    }
}

fn retire_answer(mailbox: &Arc<Mailbox>, session: SessionId) -> RetireAnswer {
    let pending = Pending::new(mailbox, move |proven: Option<()>| Command::Retired {
        session,
        proven: proven.is_some(),
    });
    Box::new(move || pending.answer(()))
}

/// An answer that fits a frame.
fn bounded(result: Result<Vec<u8>, String>) -> Result<Vec<u8>, String> {
    let limit = super::CALL_BYTES_MAX;
    match result {
        Ok(body) if body.len() > limit => Err(format!(
            "the call's answer has {} bytes; {limit} is the limit",
            body.len()
        )),
        Err(mut text) => {
            let end = (0..=limit.min(text.len()))
                .rfind(|end| text.is_char_boundary(*end))
                .unwrap_or(0);
            text.truncate(end);
            Err(text)
        }
        ok => ok,
    }
}

/// A peer's name for the log.
pub(super) fn printable(name: &str) -> std::str::EscapeDebug<'_> {
    name.escape_debug()
}
