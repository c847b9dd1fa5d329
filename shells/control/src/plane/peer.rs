//! One peer: the routes to it, and what it has been asked.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc::SyncSender;

use polyrail_core::path::view::PathView;
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::PeerId;
use polyrail_transport::SessionId;
use polyrail_transport::ticket::SessionSecret;

use super::notification::Outbox;
use super::question::Question;
use super::reactor::Context;
use super::wires::{Key, Wires};
use super::{AskError, ConnectError, Ends, Introduction, SessionLoss};
use crate::codec::SegmentDescriptor;
use crate::connection::Welcome;
use crate::process::Process;

/// The first pause after a connection was lost or could not be made; doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// The longest pause between attempts.
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// How long one attempt may take. The kernel repeats a lost SYN after 1, 3, 7… seconds; a fresh attempt
/// finds a link that is back sooner.
const DIAL_MAX: Duration = Duration::from_millis(500);

/// After this part of the time between heartbeats, or after two round trips, one that was not answered is taken for lost, and
/// all connections are asked.
const UNANSWERED_PART: u64 = 4;

/// Stands for an address that is not known.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

pub(super) type ConnectReply = SyncSender<Result<Introduction, ConnectError>>;

/// Who the peer is, once it has welcomed us.
pub(super) struct Known {
    pub(super) name: String,
    /// Whom the certificate named that it showed first.
    member: Option<String>,
    pub(super) incarnation: u64,
    pub(super) session: SessionId,
    /// Feature bits in force.
    pub(super) features: u64,
}

/// The first connection of a session, while it is being made.
pub(super) struct First {
    pub(super) reply: ConnectReply,
    pub(super) timeout: std::time::Duration,
    pub(super) deadline: Instant,
}

/// One way to a peer, and the connection on it.
pub(super) struct Route {
    pub(super) local: Option<IpAddr>,
    pub(super) remote: SocketAddr,
    /// Whether it is rebuilt when it is lost.
    pub(super) kept: bool,
    pub(super) backoff: Duration,
    pub(super) link: Link,
    /// When something last came on the connection.
    heard_at: Instant,
    /// A question on it was not answered in time, and nothing has come on it since.
    doubted: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// Down; the next attempt is due then.
    Idle { at: Instant },
    /// Being made: by the kernel, or between Hello and Welcome.
    Dialling(Key),
    /// Open.
    Up(Key),
}

/// A peer that we have, or make, a session with.
pub(super) struct Peer {
    pub(super) known: Option<Known>,
    pub(super) first: Option<First>,
    /// The process that it first said it is, and the watch on it, if it can be watched.
    pub(super) process: Option<(Process, Option<Key>)>,
    pub(super) routes: Vec<Route>,
    /// The last number given to a question and to a call.
    pub(super) questions: u64,
    /// When a heartbeat last went out, and whether anything has come since.
    beaten_at: Instant,
    is_answered: bool,
    /// Counts what was said about staging slots.
    pub(super) stage_turn: usize,
    pub(super) calls: u64,
    /// Bytes that were moved with it, as it was told last, and as it was told last over every connection.
    pub(super) moved: u64,
    pub(super) moved_everywhere: u64,
    pub(super) describing: Vec<Question<Option<SegmentDescriptor>>>,
    pub(super) seeing: Vec<Question<Option<PathView>>>,
    /// Only the first is out; the others wait for their turn.
    pub(super) calling: VecDeque<Question<Vec<u8>>>,
    pub(super) outbox: Outbox,
}

impl Peer {
    pub(super) fn new(first: First, route: Route) -> Self {
        Self {
            known: None,
            first: Some(first),
            process: None,
            routes: vec![route],
            questions: 0,
            beaten_at: Instant::ZERO,
            is_answered: true,
            stage_turn: 0,
            calls: 0,
            moved: 0,
            moved_everywhere: 0,
            describing: Vec::new(),
            seeing: Vec::new(),
            calling: VecDeque::new(),
            outbox: Outbox::new(),
        }
    }

    pub(super) fn name(&self) -> Option<String> {
        self.known.as_ref().map(|known| known.name.clone())
    }

    /// Whether somebody whose certificate names him so may be it.
    pub(super) fn is_of(&self, member: Option<&str>) -> bool {
        let known = self.known.as_ref();
        known.is_none_or(|known| known.member.as_deref() == member)
    }

    /// Whether it is known and has a feature.
    pub(super) fn understands(&self, feature: u64) -> bool {
        let known = self.known.as_ref();
        known.is_some_and(|known| known.features & feature != 0)
    }

    /// Both ends, by the first route.
    pub(super) fn ends(&self, ctx: &Context) -> Box<Ends> {
        let (local, remote) = self
            .routes
            .first()
            .map_or((None, NOWHERE), |route| (route.local, route.remote));
        ctx.ends(local, self.name(), remote)
    }

    pub(super) fn route_mut(&mut self, key: Key) -> Option<&mut Route> {
        self.routes.iter_mut().find(|route| route.is_on(key))
    }

    /// The connections that are open or being made.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        self.routes.iter().filter_map(|route| match route.link {
            Link::Up(key) | Link::Dialling(key) => Some(key),
            Link::Idle { .. } => None,
        })
    }

    /// The open connections.
    pub(super) fn open(&self) -> impl Iterator<Item = Key> {
        self.routes.iter().filter_map(|route| match route.link {
            Link::Up(key) => Some(key),
            Link::Idle { .. } | Link::Dialling(_) => None,
        })
    }

    /// Gives each rail a route: the one to its address that is there, or a new one. Routes that no rail
    /// claims are not rebuilt once they are lost, but not closed either: one may be the only one that works.
    pub(super) fn set_routes(&mut self, now: Instant, rails: &[(Option<IpAddr>, SocketAddr)]) {
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
    pub(super) fn introduce(
        &mut self,
        welcome: Welcome,
        member: Option<String>,
        secret: Option<SessionSecret>,
        features: u64,
        round_trip: Duration,
    ) {
        if self.known.is_some() {
            return;
        }
        let known_member = member.clone();
        self.known = Some(Known {
            name: welcome.name.clone(),
            member,
            incarnation: welcome.incarnation,
            session: welcome.session,
            features,
        });
        if let Some(first) = self.first.take() {
            let _ = first.reply.send(Ok(Introduction {
                name: welcome.name,
                member: known_member,
                incarnation: welcome.incarnation,
                session: welcome.session,
                secret,
                rails: welcome.rails,
                rail_facts: welcome.rail_facts,
                transports: welcome.transports,
                scratch: welcome.scratch,
                features,
                round_trip,
            }));
        }
    }

    /// A connection is gone: build it anew in a while, and ask what was asked on it elsewhere at once.
    pub(super) fn lose(&mut self, now: Instant, key: Key) {
        if let Some(route) = self.route_mut(key) {
            route.back_off(now);
        }
        self.routes
            .retain(|route| route.kept || !matches!(route.link, Link::Idle { .. }));
        for question in &mut self.describing {
            question.forget_connection(now, key);
        }
        for question in &mut self.seeing {
            question.forget_connection(now, key);
        }
        for question in &mut self.calling {
            question.forget_connection(now, key);
        }
        self.outbox.forget_connection(key);
    }

    /// What it means that somebody there does not know our session.
    pub(super) fn judge(
        &self,
        mut ends: Box<Ends>,
        name: String,
        incarnation: u64,
    ) -> Option<SessionLoss> {
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
            let level = if self.is_long_down(ends.remote) {
                log::Level::Debug
            } else {
                log::Level::Warn
            };
            log::log!(
                level,
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

    /// Whether failures on the way to this address are no news.
    fn is_long_down(&self, remote: SocketAddr) -> bool {
        let mut routes = self.routes.iter().filter(|route| route.remote == remote);
        routes.all(Route::is_long_down)
    }

    /// Starts the attempts to connect that are due.
    pub(super) fn dial(&mut self, ctx: &Context, wires: &mut Wires, id: PeerId, now: Instant) {
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
                    route.back_off(now);
                }
            }
        }
    }

    /// Gives up the questions whose time is over.
    pub(super) fn expire(&mut self, ctx: &Context, now: Instant) {
        let ends = self.ends(ctx);
        let connections = self.open().count();
        self.describing
            .retain(|question| !question.expire(now, &ends, connections));
        self.seeing
            .retain(|question| !question.expire(now, &ends, connections));
        self.calling
            .retain(|question| !question.expire(now, &ends, connections));
    }

    /// Something came on a connection: there is no doubt about it any more.
    pub(super) fn handle_heard(&mut self, now: Instant, key: Key) {
        if let Some(route) = self.route_mut(key) {
            route.heard_at = now;
            route.doubted = false;
        }
    }

    /// Asks for a sign of life: on the connection that has been quiet for longest; on all of them, if nothing has come on any
    /// since the last time. When to ask again, if nothing comes until then.
    pub(super) fn beat(&mut self, wires: &mut Wires) -> Instant {
        let (now, times) = (wires.now(), wires.times());
        let mut open = self.open_by_trust();
        self.beaten_at = now;
        if std::mem::replace(&mut self.is_answered, false) {
            open.retain(|key| !wires.is_asking(*key));
            let mut patience = times.heartbeat.divided_by(UNANSWERED_PART);
            if let Some(key) = open.last() {
                wires.ask(*key, now + times.silence_max);
                patience = patience.max(wires.round_trip(*key).times(2));
            }
            return now + patience;
        }
        let heard_at = self.routes.iter().map(|route| route.heard_at).max();
        // As long as it may be silent in all, and never so short that it could not answer.
        let by = heard_at.map_or(now, |heard_at| heard_at + times.silence_max);
        let by = by.max(now + times.silence_max.divided_by(2));
        open.iter().for_each(|key| wires.ask(*key, by));
        now + times.heartbeat
    }

    /// Something has come. When to ask for the next sign of life, if it is the first since the last question.
    /// `idle`: what the interval is if nothing is in flight; `None` while something is.
    pub(super) fn next_beat(
        &mut self,
        wires: &Wires,
        idle: impl FnOnce() -> Option<Duration>,
    ) -> Option<Instant> {
        let was_answered = std::mem::replace(&mut self.is_answered, true);
        (!was_answered).then(|| {
            let heartbeat = wires.times().heartbeat;
            let slowest = self.open().map(|key| wires.round_trip(key)).max();
            let interval = idle().map_or(heartbeat, |idle| {
                idle_interval(idle, heartbeat, slowest.unwrap_or(Duration::ZERO))
            });
            self.beaten_at + interval
        })
    }

    /// The open connections, those first that can be relied on most: a silent one costs every question that
    /// starts on it its patience.
    fn open_by_trust(&self) -> Vec<Key> {
        let mut open: Vec<_> = self
            .routes
            .iter()
            .filter_map(|route| match route.link {
                Link::Up(key) => Some((route.doubted, Reverse(route.heard_at), key)),
                Link::Idle { .. } | Link::Dialling(_) => None,
            })
            .collect();
        open.sort_unstable();
        open.into_iter().map(|(.., key)| key).collect()
    }

    /// Doubts the connections that owe an answer.
    fn doubt_overdue(&mut self, now: Instant) {
        let describing = self.describing.iter().filter_map(|q| q.overdue(now));
        let seeing = self.seeing.iter().filter_map(|q| q.overdue(now));
        let calling = self.calling.front().and_then(|q| q.overdue(now));
        let notifying = self.outbox.overdue(now);
        let overdue: Vec<Key> = describing
            .chain(seeing)
            .chain(calling)
            .chain(notifying)
            .collect();
        for key in overdue {
            if let Some(route) = self.route_mut(key) {
                route.doubted = true;
            }
        }
    }

    /// Asks what is due: every description, and the first call. Sends notifications.
    pub(super) fn ask(&mut self, wires: &mut Wires, now: Instant) {
        self.doubt_overdue(now);
        let open = self.open_by_trust();
        for question in &mut self.describing {
            question.ask(wires, now, &open);
        }
        for question in &mut self.seeing {
            question.ask(wires, now, &open);
        }
        if let Some(question) = self.calling.front_mut() {
            question.ask(wires, now, &open);
        }
        self.outbox.send(wires, now, &open);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let has_open = self.open().next().is_some();
        let first = self.first.iter().map(|first| first.deadline);
        let dials = self.routes.iter().filter_map(|route| match route.link {
            Link::Idle { at } if self.known.is_some() => Some(at),
            _ => None,
        });
        let describing = self.describing.iter().map(|q| q.due(has_open));
        let seeing = self.seeing.iter().map(|q| q.due(has_open));
        let calling = self.calling.iter().enumerate();
        let calling = calling.map(|(place, q)| q.due(has_open && place == 0));
        let notifying = self.outbox.due().filter(|_| has_open);
        let asking = describing.chain(seeing).chain(calling).chain(notifying);
        first.chain(dials).chain(asking).min()
    }

    pub(super) fn handle_description(&mut self, question: u64, segment: Option<SegmentDescriptor>) {
        // Asked twice, it is answered twice: the second finds nothing.
        if let Some(index) = self.describing.iter().position(|q| q.number == question) {
            let question = self.describing.swap_remove(index);
            question.asker.answer(Ok(segment));
        }
    }

    pub(super) fn handle_path_seen(&mut self, question: u64, view: Option<PathView>) {
        if let Some(index) = self.seeing.iter().position(|q| q.number == question) {
            let question = self.seeing.swap_remove(index);
            question.asker.answer(Ok(view));
        }
    }

    pub(super) fn handle_answer(
        &mut self,
        ctx: &Context,
        number: u64,
        result: Result<Vec<u8>, String>,
    ) {
        // Asked twice, it is answered twice: the second is about none that waits.
        if self.calling.front().is_none_or(|q| q.number != number) {
            return;
        }
        let Some(question) = self.calling.pop_front() else {
            return;
        };
        let ends = self.ends(ctx);
        question
            .asker
            .answer(result.map_err(|text| AskError::Failed { ends, text }));
    }

    pub(super) fn fail_questions(self, error: &AskError) {
        for question in self.describing {
            question.asker.answer(Err(error.clone()));
        }
        for question in self.seeing {
            question.asker.answer(Err(error.clone()));
        }
        for question in self.calling {
            question.asker.answer(Err(error.clone()));
        }
    }
}

impl Route {
    pub(super) fn new(local: Option<IpAddr>, remote: SocketAddr, link: Link) -> Self {
        Self {
            local,
            remote,
            kept: true,
            backoff: BACKOFF_MIN,
            link,
            heard_at: Instant::ZERO,
            doubted: false,
        }
    }

    /// The connection is open.
    pub(super) fn open(&mut self, now: Instant, key: Key) {
        self.link = Link::Up(key);
        self.heard_at = now;
        self.doubted = false;
        self.backoff = BACKOFF_MIN;
    }

    /// The connection is gone, or could not be made: try again in a while.
    fn back_off(&mut self, now: Instant) {
        let at = now + self.backoff;
        self.link = Link::Idle { at };
        self.backoff = self.backoff.times(2).min(BACKOFF_MAX);
    }

    /// Whether the last few attempts have failed as well, so that another failure is no news.
    fn is_long_down(&self) -> bool {
        self.backoff >= BACKOFF_MAX
    }

    pub(super) fn is_on(&self, key: Key) -> bool {
        self.link == Link::Dialling(key) || self.link == Link::Up(key)
    }
}

/// How long to leave a peer alone with which nothing is in flight. The connection that is asked may be dark; the peer must not
/// count as silent before the others have been asked too: two round trips later, and with one for the answer.
fn idle_interval(longest: Duration, heartbeat: Duration, round_trip: Duration) -> Duration {
    longest.minus(round_trip.times(3)).max(heartbeat)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_peer_far_away_is_asked_sooner() {
        let interval = |round_trip_ms| {
            let round_trip = Duration::from_millis(round_trip_ms);
            let interval = idle_interval(
                Duration::from_secs(1),
                Duration::from_millis(500),
                round_trip,
            );
            interval.as_nanos() / 1_000_000
        };
        assert_eq!(
            [0, 1, 100, 300, 5_000].map(interval),
            [1_000, 997, 700, 500, 500]
        );
    }
}
