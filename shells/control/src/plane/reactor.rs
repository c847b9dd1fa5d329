//! The loop of the control thread.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::SyncSender;

use polyrail_core::time::Duration;
use polyrail_core::units::PeerId;
use polyrail_transport::{SessionId, mishap};

use super::door::Door;
use super::initiator::Initiator;
use super::mailbox::{Command, Mailbox};
use super::question::send;
use super::target::{Limits, Target};
use super::timers::Timer;
use super::watches::Watched;
use super::wires::{Key, Owner, Talk, WireEvent, Wires, Woken};
use super::{AskError, Ends, Handler, Party, PlaneConfig};
use crate::codec::{Frame, RailFact, SegmentDescriptor, TransportOffer};
use crate::connection::{ConnectionConfig, Hello};
use crate::process::Process;
use crate::security::Keyring;
use polyrail_transport::complain;

/// Reads from one wire per wake-up, so that one peer cannot keep the thread from the others.
const READS_MAX: usize = 4;

/// Frames of one wire per turn, so that one peer's questions cannot keep the thread from the others' either.
const FRAMES_MAX: usize = 64;

/// Connections that were refused and take their time to leave.
const LEAVING_MAX: usize = 512;

/// Bytes that inbound connections may hold together: of frames that are not whole, and of answers that are not read.
const HELD_MAX: usize = 32 << 20;

/// Newcomers that are taken in before others have their turn.
const ARRIVALS_MAX: usize = 64;

/// How long goodbyes may take to go out at shutdown.
const GOODBYE_MAX: Duration = Duration::from_millis(200);

/// What both roles need to know.
pub(super) struct Context {
    pub(super) name: String,
    pub(super) incarnation: u64,
    pub(super) rails: Vec<SocketAddr>,
    pub(super) rail_facts: Vec<RailFact>,
    pub(super) transports: Vec<TransportOffer>,
    pub(super) scratch: SegmentDescriptor,
    pub(super) token: Vec<u8>,
    pub(super) process: Option<Process>,
    /// Counts lanes that did not prove themselves.
    pub(super) lanes_denied: Arc<AtomicU64>,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) mailbox: Arc<Mailbox>,
    /// Between heartbeats to a peer with which nothing is in flight.
    pub(super) idle_heartbeat: Duration,
    /// It is about to end.
    pub(super) leaving: bool,
}

impl Context {
    pub(super) fn hello(&self, session: Option<SessionId>) -> Hello {
        Hello {
            name: self.name.clone(),
            incarnation: self.incarnation,
            session,
            token: self.token.clone(),
        }
    }

    /// Says on a connection that has just opened which process this is.
    pub(super) fn say_process(&self, wires: &mut Wires, key: Key) {
        if let Some(process) = self.process {
            send(wires, key, &Frame::Process(process));
        }
    }

    pub(super) fn ends(
        &self,
        local: Option<IpAddr>,
        theirs: Option<String>,
        remote: SocketAddr,
    ) -> Box<Ends> {
        Box::new(Ends {
            ours: self.name.clone(),
            local,
            theirs,
            remote,
        })
    }

    pub(super) fn no_peer(&self, peer: PeerId) -> AskError {
        AskError::NoPeer {
            ours: self.name.clone(),
            peer,
        }
    }
}

/// The control thread.
pub(super) struct Reactor {
    ctx: Context,
    wires: Wires,
    /// Where peers come in, if they can.
    door: Option<Door>,
    open_door: Box<dyn Fn(Vec<TcpListener>) -> io::Result<Door> + Send>,
    target: Target,
    initiator: Initiator,
    /// Wires with frames that have come and have not had their turn.
    behind: BTreeSet<Key>,
    /// Goodbyes are going out; the loop ends when they have.
    stopping: bool,
    /// Their time is over.
    stopped: bool,
}

impl Reactor {
    pub(super) fn new(
        config: PlaneConfig,
        keyring: Keyring,
        handler: Arc<dyn Handler>,
        mailbox: Arc<Mailbox>,
        lanes_denied: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let connection = ConnectionConfig {
            heartbeat: config.heartbeat.into(),
            silence_max: config.silence_max.into(),
            handshake_max: config.handshake_max.into(),
            encrypts: config.encrypts,
        };
        let (clock, listeners) = (config.clock, config.listeners);
        let talk = Talk {
            times: connection,
            keyring,
        };
        let wires = Wires::new(
            clock,
            talk.clone(),
            Vec::new(),
            mailbox.fd(),
            (LEAVING_MAX, HELD_MAX),
        )?;
        let handshakes_max = config.handshakes_max;
        let (door_mailbox, denied) = (mailbox.clone(), lanes_denied.clone());
        let open_door = move |listeners| {
            let (mailbox, denied) = (door_mailbox.clone(), denied.clone());
            Door::open(
                clock,
                talk.clone(),
                listeners,
                handshakes_max,
                mailbox,
                denied,
            )
        };
        let door = match listeners.is_empty() {
            true => None,
            false => Some(open_door(listeners)?),
        };
        let limits = Limits {
            linger: config.session_linger.into(),
            sessions: config.sessions_max,
            connections: config.connections_max,
        };
        let ctx = Context {
            name: config.name,
            incarnation: config.incarnation,
            rails: config.rails,
            rail_facts: config.rail_facts,
            transports: config.transports,
            scratch: config.scratch,
            token: config.token,
            process: config.process,
            lanes_denied,
            handler,
            mailbox,
            idle_heartbeat: config.idle_heartbeat.max(config.heartbeat).into(),
            leaving: false,
        };
        Ok(Self {
            ctx,
            wires,
            door,
            open_door: Box::new(open_door),
            target: Target::new(limits),
            initiator: Initiator::default(),
            behind: BTreeSet::new(),
            stopping: false,
            stopped: false,
        })
    }

    /// The loop. `_alive` is dropped when it ends.
    pub(super) fn run(mut self, _alive: SyncSender<()>) {
        while !self.is_done() {
            mishap::check();
            match self.wires.wait(!self.behind.is_empty()) {
                Ok(woken) => self.turn(woken),
                Err(error) => {
                    log::error!("control: waiting for sockets failed, the plane ends: {error}");
                    return;
                }
            }
        }
    }

    fn is_done(&self) -> bool {
        self.stopping && (self.stopped || self.wires.is_empty())
    }

    /// One round. Bytes go before timers: see [`crate::connection`]. But nobody's bytes hold up another's heartbeat.
    fn turn(&mut self, woken: Vec<Woken>) {
        let behind = self.behind.clone();
        for woken in woken {
            match woken {
                Woken::Mail => self.handle_mail(),
                // Nobody listens here.
                Woken::Listener(_) => {}
                // Its turn is the next.
                Woken::Wire(key) if behind.contains(&key) => {}
                Woken::Wire(key) => self.handle_ready(key),
                Woken::Exited(watch) => self.handle_exited(watch),
            }
            self.handle_timers();
        }
        for key in behind {
            self.handle_ready(key);
            self.handle_timers();
        }
        self.settle();
        self.handle_timers();
    }

    /// Does what is due.
    fn handle_timers(&mut self) {
        let now = self.wires.now();
        if self.wires.timers.next().is_none_or(|at| at > now) {
            return;
        }
        while let Some(timer) = self.wires.timers.pop_due(now) {
            self.handle_timer(timer);
        }
        self.settle();
    }

    /// Reads a wire and acts on what was said, if all that was said before has had its turn.
    fn handle_ready(&mut self, key: Key) {
        let mut budget = FRAMES_MAX;
        if self.behind.contains(&key) {
            self.handle_events(key, &mut budget);
        }
        for _ in 0..READS_MAX {
            if self.behind.contains(&key) {
                return;
            }
            let more = self.wires.handle_ready(key);
            self.handle_events(key, &mut budget);
            if !more {
                return;
            }
        }
    }

    /// Takes in who has come by the door.
    fn handle_arrivals(&mut self) {
        for _ in 0..ARRIVALS_MAX {
            let Some(arrival) = self.door.as_ref().and_then(Door::next) else {
                return;
            };
            match self.wires.take_over(arrival) {
                Ok((key, said)) => {
                    let (ctx, wires) = (&self.ctx, &mut self.wires);
                    self.target.handle_event(ctx, wires, key, said);
                }
                Err(error) => complain!("control: a connection is turned away: {error}"),
            }
        }
        // There may be more.
        self.ctx.mailbox.wake();
    }

    /// Hands in what has come on these sockets.
    fn hear(&mut self, keys: Vec<Key>) {
        keys.into_iter().for_each(|key| self.handle_ready(key));
    }

    /// A process that is watched may have ended.
    fn handle_exited(&mut self, watch: Key) {
        let (ctx, wires) = (&self.ctx, &mut self.wires);
        // None, if it was let go of in this very round.
        for whose in wires.exited(watch) {
            match whose {
                Watched::Peer(peer) => self.initiator.handle_exited(ctx, wires, peer),
                Watched::Session(session) => self.target.handle_exited(ctx, wires, session),
            }
        }
    }

    /// Acts on what was said on a wire, of so many frames at most.
    fn handle_events(&mut self, key: Key, budget: &mut usize) {
        loop {
            if *budget == 0 {
                self.behind.insert(key);
                return;
            }
            let Some((owner, event)) = self.wires.poll_event(key) else {
                self.behind.remove(&key);
                return;
            };
            *budget -= 1;
            let (ctx, wires) = (&self.ctx, &mut self.wires);
            match (owner, event) {
                (Owner::Outbound(peer), event) => {
                    self.initiator.handle_event(ctx, wires, peer, key, event);
                }
                (Owner::Inbound, WireEvent::Said(event)) => {
                    self.target.handle_event(ctx, wires, key, event);
                }
                // Nobody dialled it.
                (Owner::Inbound, WireEvent::DialFailed(_)) => {}
            }
        }
    }

    /// Writes what is to be written, until nothing is left that something was done to.
    fn settle(&mut self) {
        while let Some(key) = self.wires.pop_dirty() {
            self.wires.flush(key);
            if !self.behind.contains(&key) {
                self.handle_events(key, &mut FRAMES_MAX.clone());
            }
            self.wires.settle(key);
        }
    }

    /// Whatever is late because this process stood still finds what has come meanwhile handed in.
    fn handle_timer(&mut self, timer: Timer) {
        match timer {
            // There may be more ready sockets than one wait tells of.
            Timer::Wire(key) => self.handle_ready(key),
            Timer::Peer(peer) => self.hear(self.initiator.keys(peer)),
            _ => {}
        }
        let (ctx, wires) = (&self.ctx, &mut self.wires);
        match timer {
            Timer::Wire(key) => wires.handle_timeout(key),
            Timer::Peer(peer) => self.initiator.handle_timeout(ctx, wires, peer),
            Timer::Beat(peer) => self.initiator.beat(wires, peer),
            Timer::Session(id) => self.target.handle_timeout(ctx, wires, SessionId(id)),
            Timer::Exited(watch) => self.handle_exited(watch),
            // The door has its own.
            Timer::LeftKeys => self.target.end_left_keys(ctx, wires),
            Timer::Listeners => {}
            Timer::Shutdown => self.stopped = true,
        }
    }

    fn handle_mail(&mut self) {
        let commands = self.ctx.mailbox.take();
        self.handle_arrivals();
        for command in commands {
            self.handle_command(command);
        }
    }

    fn handle_command(&mut self, command: Command) {
        let (ctx, wires) = (&self.ctx, &mut self.wires);
        match command {
            Command::Connect {
                peer,
                local,
                remote,
                timeout,
                reply,
            } => {
                let route = (local, remote);
                self.initiator
                    .connect(ctx, wires, peer, route, timeout, reply);
            }
            Command::Maintain { peer, rails } => self.initiator.maintain(ctx, wires, peer, &rails),
            Command::Announce { rails } => {
                self.ctx.rails = rails.addresses;
                self.ctx.rail_facts = rails.facts;
                self.ctx.transports = rails.transports;
                self.target.announce(&self.ctx, &mut self.wires);
            }
            Command::Listen(listener) => match &self.door {
                _ if self.stopping => {}
                Some(door) => door.listen(listener),
                None => match (self.open_door)(vec![listener]) {
                    Ok(door) => self.door = Some(door),
                    Err(error) => log::error!("control: nobody can come in: {error}"),
                },
            },
            Command::Leave => {
                self.ctx.leaving = true;
                self.target.say_leaving(&mut self.wires);
            }
            Command::Limit {
                sessions,
                connections,
            } => self.target.limit(sessions, connections),
            Command::LeaveKey { key, within } => {
                self.target.leave_key(wires, key, within.into());
            }
            Command::Moved { peer, bytes } => self.initiator.say_moved(wires, peer, bytes),
            Command::Disconnect { peer } => self.initiator.disconnect(ctx, wires, peer),
            Command::SeePath { peer, rails, asker } => {
                self.initiator.see_path(ctx, wires, peer, rails, asker);
            }
            Command::Describe { peer, name, asker } => {
                self.initiator.describe(ctx, wires, peer, name, asker);
            }
            Command::Call {
                peer,
                method,
                body,
                asker,
            } => {
                self.initiator.call(ctx, wires, peer, method, body, asker);
            }
            Command::Fence { peer, lane, epoch } => self.initiator.fence(wires, peer, lane, epoch),
            Command::Stage {
                to: Party::Peer(peer),
                message,
            } => self.initiator.stage(wires, peer, message),
            Command::Stage {
                to: Party::Session(session),
                message,
            } => self.target.stage(wires, session, message),
            Command::Notify {
                peer,
                notifications,
            } => self.initiator.notify(ctx, wires, peer, notifications),
            Command::NotificationRoom { session } => {
                self.target.handle_notification_room(wires, session);
            }
            Command::FenceAnswered {
                session,
                lane,
                epoch,
                delivered,
            } => self
                .target
                .handle_fence_answer(wires, session, lane, epoch, delivered),
            Command::CallAnswered {
                session,
                number,
                result,
            } => self
                .target
                .handle_call_answer(wires, session, number, result),
            Command::Hear { told } => {
                self.hear(self.wires.keys());
                told();
            }
            Command::Retired { session, proven } => self.target.handle_retired(session, proven),
            Command::Shutdown => self.begin_shutdown(),
        }
    }

    /// Drops all questions, which tells their askers, and says goodbye.
    fn begin_shutdown(&mut self) {
        self.stopping = true;
        self.initiator.say_all_moved(&self.ctx, &mut self.wires);
        self.initiator = Initiator::default();
        self.wires.unwatch_all();
        self.ctx.mailbox.close();
        self.door = None;
        self.wires.goodbye_to_all();
        let at = self.wires.now() + GOODBYE_MAX;
        self.wires.timers.set(Timer::Shutdown, Some(at));
    }
}

impl Drop for Reactor {
    /// However the thread ends: nobody waits for it any more.
    fn drop(&mut self) {
        if std::thread::panicking() {
            log::error!(
                "control: the thread of \"{}\" has panicked: no peer is reached or served any more, and the engine has to be \
                 started anew",
                self.ctx.name
            );
        }
        self.ctx.mailbox.close();
    }
}
