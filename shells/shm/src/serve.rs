//! A lane, seen from the target: what its initiator was given, and what it offers.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use polyrail_transport::SessionId;
use polyrail_transport::complain;
use polyrail_transport::memory::{Loan, Region, RegionKey, TrustDomain};
use polyrail_transport::packets::{self, nonsense};
use polyrail_transport::peek::Peek;
use polyrail_transport::ticket::{self, Denied, Nonce, Proof, SessionSecret, Ticket};
use rustix::net::{Shutdown, shutdown};

use crate::copy_threads::Member;
use crate::mailbox::{GRANTS_MAX, Mailbox, OFFERS_MAX, Offer, Processor, Pulled};
use crate::process::{OwnCookie, Process, is_hung_up};
use crate::server::Common;
use crate::wire::{Answer, Cookie, LaneName, Request, VERSION};
use crate::{TELL_BYTES, TURN_BYTES, WORK_BYTES_MAX, reach};

/// Messages of one lane that are taken in a row.
const MESSAGES_MAX: usize = 64;

/// How long it looks for the next offer. Longer than it takes to wake an initiator that was called to answers.
const SPIN: Duration = Duration::from_micros(50);

/// A process that was seen so shortly ago is not looked for before something is pulled from it, only afterwards:
/// numbers of processes do not come around so fast.
const RECENT: Duration = Duration::from_micros(100);

/// Characters of the longest reason that is told. It is English, and fits into a message.
const TEXT_CHARS_MAX: usize = 128;

/// What is to be done next for a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum More {
    /// It calls when there is something.
    Nothing,
    /// There was nothing; it is looked for again.
    Awaited,
    /// There was something, and may be more.
    Perhaps,
}

/// Offers that are carried out at once: each goes on where the one before ends, at both ends.
struct Run {
    /// All of them as one.
    offer: Offer,
    lengths: heapless::Vec<u32, OFFERS_MAX>,
}

/// Bytes of the longest run, if it has more than one offer.
const RUN_BYTES_MAX: u64 = TELL_BYTES * 3 / 2;

impl Run {
    fn new(offer: Offer) -> Self {
        let lengths = [offer.length].into_iter().collect();
        Self { offer, lengths }
    }

    /// Takes another one, if it goes on.
    fn takes(&mut self, next: &Offer) -> bool {
        let length = u64::from(self.offer.length);
        let goes_on = next.key == self.offer.key
            && self.offer.offset.checked_add(length) == Some(next.offset)
            && self.offer.source.checked_add(length) == Some(next.source)
            && length + u64::from(next.length) <= RUN_BYTES_MAX
            && self.lengths.push(next.length).is_ok();
        if goes_on {
            self.offer.length += next.length;
        }
        goes_on
    }
}

/// What an initiator says before it is in.
pub(crate) enum Said {
    /// It asks what to prove itself with.
    Challenge,
    Hello(Hello),
}

/// What it comes in with. Nothing is made of it before it has proved itself.
pub(crate) struct Hello {
    pub(crate) session: SessionId,
    cookie: Cookie,
    lane: Option<LaneName>,
    ticket: Option<Ticket>,
    mailbox: Option<OwnedFd>,
}

impl Said {
    /// Takes it off a connection. `None`: it has not come yet.
    pub(crate) fn receive(socket: &OwnedFd) -> io::Result<Option<Self>> {
        let Some((request, mailbox)) = packets::receive(socket)? else {
            return Ok(None);
        };
        let (version, session, cookie, lane, ticket) = match request {
            Request::Challenge => return Ok(Some(Self::Challenge)),
            Request::Hello {
                version,
                session,
                cookie,
                lane,
            } => (version, session, cookie, lane, None),
            Request::HelloProved {
                version,
                session,
                cookie,
                lane,
                ticket,
            } => (version, session, cookie, lane, Some(ticket)),
            _ => return Err(nonsense("it does not greet")),
        };
        if version != VERSION {
            return Err(nonsense("it speaks another version"));
        }
        Ok(Some(Self::Hello(Hello {
            session: SessionId(session),
            cookie,
            lane,
            ticket,
            mailbox,
        })))
    }
}

impl Hello {
    /// What its proof is answered with; `None`: its session needs none.
    pub(crate) fn admit(
        &self,
        secret: Option<&SessionSecret>,
        challenge: Option<Nonce>,
    ) -> Result<Option<Proof>, Denied> {
        let entry = reach::entry(self.session, self.lane);
        ticket::admit(secret, &entry, challenge.zip(self.ticket.as_ref()))
    }

    /// Goes on with it.
    pub(crate) fn greeting(self, proof: Option<Proof>) -> io::Result<Greeting> {
        let lane = match (self.lane, self.mailbox) {
            (None, _) => None,
            (Some(name), Some(mailbox)) => Some((name, Arc::new(Mailbox::of_peer(&mailbox)?))),
            (Some(_), None) => return Err(nonsense("it brings no mailbox")),
        };
        Ok(Greeting {
            session: self.session,
            cookie: self.cookie,
            lane,
            proof,
        })
    }
}

/// An initiator that may come in.
pub(crate) struct Greeting {
    pub(crate) session: SessionId,
    cookie: Cookie,
    pub(crate) lane: Option<(LaneName, Arc<Mailbox>)>,
    /// That this end is of the session as well, if it has a secret.
    pub(crate) proof: Option<Proof>,
}

impl Greeting {
    /// Who has greeted, if its memory can be read, and what it is told.
    pub(crate) fn answer(&self, socket: &OwnedFd, own: &OwnCookie) -> (Option<Process>, Answer) {
        let (process, no_pull) = match Process::of(socket, self.cookie) {
            Ok(process) => (Some(process), None),
            Err(why) => (None, Some(shortened(why.to_string()))),
        };
        let cookie = own.cookie();
        (process, Answer::Ready { cookie, no_pull })
    }
}

/// As much of a text as is told.
fn shortened(text: String) -> String {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => text[..end].to_owned(),
        None => text,
    }
}

/// A segment that an initiator may touch. Whoever is inside has begun a copy, or is about to: it ends by itself, but the
/// initiator may be stopped before that.
pub(crate) struct Grant {
    key: RegionKey,
    mailbox: Arc<Mailbox>,
    number: u16,
    socket: Arc<OwnedFd>,
    /// The initiator's, if it is known.
    process: Option<Arc<Process>>,
    /// The initiator has let go of it, and its number may mean another one.
    is_over: Mutex<bool>,
    /// The initiator was waited for as long as anybody is.
    was_awaited: AtomicBool,
}

impl Grant {
    /// Takes it back. Whether the initiator touches nothing under it: it says so, or has hung up, which it does
    /// between two copies or when it ends, or it has ended, whoever else has its socket.
    pub(crate) fn is_left(&self) -> bool {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let has_ended = || self.process.as_ref().is_some_and(|it| it.has_ended());
        *is_over || self.mailbox.close_grant(self.number) || is_hung_up(&self.socket) || has_ended()
    }

    /// The initiator has let go of it.
    fn let_go(&self) {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Tells the initiator to let go of it, so that its memory comes back: also one that sleeps. One that does not hear
    /// what it was told already sees it behind that.
    fn tell(&self) {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let (key, grant) = (self.key, self.number);
        let told = || packets::send(&self.socket, &Answer::Gone { key, grant }, None).is_ok();
        if *is_over || told() {
            return;
        }
        self.mailbox.set_untold();
        // It may have heard all before it could see that. If this does not fit either, it has not.
        told();
    }

    /// Waits until the initiator touches nothing under it. `false`: not before `deadline`.
    fn wait(&self, deadline: Instant) -> bool {
        while !self.is_left() {
            if Instant::now() >= deadline || self.was_awaited.load(Relaxed) {
                self.was_awaited.store(true, Relaxed);
                return false;
            }
            thread::sleep(Duration::from_micros(20));
        }
        true
    }
}

impl Loan for Grant {
    fn recall(&self) {
        self.is_left();
    }

    /// Waits for an initiator that is in the midst of a copy, if nobody has done so before, and tells it to let go.
    fn end(&self, deadline: Instant) -> bool {
        let is_left = self.wait(deadline);
        self.tell();
        is_left
    }

    fn is_over(&self) -> bool {
        self.is_left()
    }
}

/// An admitted lane.
pub(crate) struct Served {
    socket: Arc<OwnedFd>,
    mailbox: Arc<Mailbox>,
    /// Whose regions it reaches.
    domain: TrustDomain,
    /// The initiator's, if it can be read.
    process: Option<Arc<Process>>,
    copy_threads: Member,
    grants: HashMap<u16, Arc<Grant>>,
    /// When the process was last seen, after something was pulled from it.
    seen: Option<Instant>,
    /// The row of the next offer.
    row: usize,
    /// Where the initiator was told that this side looks for offers by itself.
    looks: Option<Processor>,
    /// Until when it looks for that without being called.
    spins_until: Option<Instant>,
    /// Whether that pays.
    peek: Peek,
    /// Something was told that the initiator has to be called to, if it does not look by itself.
    uncalled: bool,
}

impl Served {
    pub(crate) fn new(
        socket: OwnedFd,
        mailbox: Arc<Mailbox>,
        domain: TrustDomain,
        process: Option<Process>,
        copy_threads: Member,
    ) -> Self {
        Self {
            socket: Arc::new(socket),
            mailbox,
            domain,
            process: process.map(Arc::new),
            copy_threads,
            grants: HashMap::new(),
            seen: None,
            row: 0,
            looks: None,
            spins_until: None,
            peek: Peek::default(),
            uncalled: false,
        }
    }

    /// Takes what the initiator says. Whether it has offered something.
    pub(crate) fn hear(&mut self, common: &Common) -> io::Result<bool> {
        let mut offered = false;
        for _ in 0..MESSAGES_MAX {
            let Some((request, _)) = packets::receive(&self.socket)? else {
                break;
            };
            match request {
                Request::Offered => offered = true,
                Request::Unmap { grant } => {
                    if let Some(grant) = self.grants.remove(&grant) {
                        grant.let_go();
                    }
                }
                Request::Map { key, grant } => self.map(common, key, grant)?,
                Request::Hello { .. } | Request::Challenge | Request::HelloProved { .. } => {
                    return Err(nonsense("it greets again"));
                }
            }
        }
        Ok(offered)
    }

    /// Gives the initiator what is behind a key.
    fn map(&mut self, common: &Common, key: RegionKey, grant: u16) -> io::Result<()> {
        if usize::from(grant) >= GRANTS_MAX || self.grants.contains_key(&grant) {
            return Err(nonsense("it uses a grant twice"));
        }
        let region = common.regions.find(&key, self.domain);
        let region = region.filter(|region| region.access().allows_remote_read());
        // An address on a device means nothing to another process.
        let region = region.filter(|region| region.device().is_none());
        let Some(region) = region.filter(|region| self.lend(region, grant)) else {
            return packets::send(&self.socket, &Answer::Nothing { grant }, None);
        };
        let (bytes, writable) = (region.bytes(), region.access().allows_remote_write());
        match region.file() {
            None => {
                let answer = Answer::Private {
                    grant,
                    bytes,
                    writable,
                    address: region.base().as_ptr().addr() as u64,
                };
                packets::send(&self.socket, &answer, None)
            }
            Some(file) => {
                let answer = Answer::Shared {
                    grant,
                    bytes,
                    writable,
                };
                // The kernel lets nobody write who may not: `Mapping::shared` has sealed it.
                packets::send(&self.socket, &answer, Some(file))
            }
        }
    }

    /// Opens a grant that ends with the region. `false`: that has been revoked.
    fn lend(&mut self, region: &Region, number: u16) -> bool {
        self.mailbox.open_grant(number);
        let grant = Arc::new(Grant {
            key: region.key(),
            is_over: Mutex::new(false),
            mailbox: self.mailbox.clone(),
            number,
            socket: self.socket.clone(),
            process: self.process.clone(),
            was_awaited: AtomicBool::new(false),
        });
        let weak: Weak<Grant> = Arc::downgrade(&grant);
        let lent = region.lend(weak);
        if lent {
            self.grants.insert(number, grant);
        }
        lent
    }

    /// Carries out offers, in order, until so much was pulled.
    pub(crate) fn pull(&mut self, common: &Common) -> More {
        self.look();
        let (mut bytes, mut told) = (0, 0);
        let mut is_there = self.seen.is_some_and(|seen| seen.elapsed() < RECENT);
        let mut pulled: heapless::Vec<Pulled, OFFERS_MAX> = heapless::Vec::new();
        let mut held = None;
        while (bytes < TURN_BYTES && !pulled.is_full()) || held.is_some() {
            let Some(run) = self.take_run(common, pulled.len(), &mut held) else {
                break;
            };
            bytes += u64::from(run.offer.length);
            is_there = is_there || self.is_there();
            match is_there {
                true => self.carry_out_run(common, &run, &mut pulled),
                // There is room: so many were taken.
                false => pulled.extend(run.lengths.iter().map(|_| Pulled::Failed)),
            }
            if bytes - told >= TELL_BYTES {
                is_there = self.tell(&pulled);
                pulled.clear();
                told = bytes;
            }
        }
        let full = bytes >= TURN_BYTES || pulled.is_full();
        self.tell(&pulled);
        self.call();
        match (full, self.spins_until.is_some()) {
            (true, _) => More::Perhaps,
            (false, true) if bytes > 0 => More::Perhaps,
            (false, true) => More::Awaited,
            (false, false) => More::Nothing,
        }
    }

    /// From here on it looks for offers by itself, where it runs now.
    fn look(&mut self) {
        let here = Processor::here();
        if self.looks != here {
            self.looks = here;
            self.mailbox.set_looks(here);
        }
    }

    /// From here on it has to be called to them.
    fn look_no_more(&mut self) {
        self.looks = None;
        self.mailbox.set_looks(None);
    }

    /// Takes offers that go on where the one before ends, the first of them `after` so many. `held` is one that was taken
    /// and does not.
    fn take_run(&mut self, common: &Common, after: usize, held: &mut Option<Offer>) -> Option<Run> {
        let first = held.take();
        let first = first.or_else(|| self.take(common, self.row + after))?;
        let mut run = Run::new(first);
        while u64::from(run.offer.length) < TELL_BYTES
            && after + run.lengths.len() < OFFERS_MAX
            && let Some(next) = self.mailbox.take(self.row + after + run.lengths.len())
        {
            if !run.takes(&next) {
                *held = Some(next);
                break;
            }
        }
        Some(run)
    }

    /// Takes the offer in a row. If there is none, the next one has to call, or it is looked for again for a while.
    fn take(&mut self, common: &Common, row: usize) -> Option<Offer> {
        if let Some(offer) = self.mailbox.take(row) {
            if self.spins_until.take().is_some() {
                self.peek.tell(true);
            }
            return Some(offer);
        }
        match self.spins_until {
            None if self.may_look(common) && self.peek.is_due() => {
                self.spins_until = Some(Instant::now() + SPIN);
            }
            None => {}
            Some(until) if Instant::now() >= until => {
                self.spins_until = None;
                self.peek.tell(false);
            }
            Some(_) => {}
        }
        if self.spins_until.is_some() {
            if self.is_awaited_here() {
                thread::yield_now();
            }
            return None;
        }
        self.look_no_more();
        let late = self.mailbox.take(row)?;
        self.look();
        Some(late)
    }

    /// Whether the initiator looks for answers on this processor, and can offer nothing before it runs.
    fn is_awaited_here(&self) -> bool {
        self.looks.is_some() && self.mailbox.awaited_at() == self.looks
    }

    /// Whether nobody is kept from running by looking on.
    fn may_look(&self, common: &Common) -> bool {
        self.is_awaited_here() || common.has_processors()
    }

    /// Says what became of offers. What was pulled counts if the initiator was there until now; whether it was.
    fn tell(&mut self, pulled: &[Pulled]) -> bool {
        if pulled.is_empty() {
            return true;
        }
        let is_there = self.is_there();
        for outcome in pulled {
            let counts = is_there || *outcome != Pulled::Done;
            let outcome = if counts { *outcome } else { Pulled::Failed };
            self.mailbox.tell(self.row, outcome);
            self.row += 1;
        }
        self.seen = is_there.then(Instant::now);
        self.uncalled = true;
        is_there
    }

    /// Calls an initiator that sleeps to what it was told: after a turn, not whenever it is told something. To wake
    /// somebody takes longer than to pull 128 KiB.
    fn call(&mut self) {
        if std::mem::take(&mut self.uncalled) && self.mailbox.calls() {
            // If it does not fit, there are messages that wake the initiator.
            let _ = packets::send(&self.socket, &Answer::Pulled, None);
        }
    }

    fn is_there(&self) -> bool {
        let process = self.process.as_ref();
        process.is_some_and(|process| process.is_there(&self.socket))
    }

    /// Carries out a run at once, or one by one what cannot be.
    fn carry_out_run(
        &self,
        common: &Common,
        run: &Run,
        pulled: &mut heapless::Vec<Pulled, OFFERS_MAX>,
    ) {
        let mut offer = run.offer;
        let together = self.carry_out(common, &offer);
        let alone = together != Pulled::Done && run.lengths.len() > 1;
        for length in &run.lengths {
            offer.length = *length;
            let outcome = match alone {
                true => self.carry_out(common, &offer),
                false => together,
            };
            // There is room: so many were taken.
            let _ = pulled.push(outcome);
            offer.source = offer.source.wrapping_add(u64::from(*length));
            offer.offset = offer.offset.wrapping_add(u64::from(*length));
        }
    }

    fn carry_out(&self, common: &Common, offer: &Offer) -> Pulled {
        let length = offer.length;
        let region = common.regions.find(&offer.key, self.domain);
        let region = region.filter(|region| region.access().allows_remote_write());
        let Some(region) = region.filter(|_| length <= WORK_BYTES_MAX) else {
            return Pulled::Refused;
        };
        let entered = region.enter();
        let to = entered
            .as_ref()
            .and_then(|entered| entered.pointer(offer.offset, length.into()));
        let (Some(to), Some(process)) = (to, &self.process) else {
            return Pulled::Refused;
        };
        let transfer = process.pull(offer.source, to);
        let spare = || common.spare_processors(self.mailbox.awaited_at().is_some());
        // SAFETY: the region is entered.
        match unsafe {
            self.copy_threads
                .make(&transfer, length.into(), u64::MAX, spare)
        } {
            Ok(_) => Pulled::Done,
            Err(error) => {
                complain!("shm: the kernel does not read the peer's memory: {error}");
                Pulled::Failed
            }
        }
    }

    /// Ends it. What the initiator may still be touching comes back.
    pub(crate) fn end(self) -> Vec<Arc<Grant>> {
        let left = self.grants.into_values().filter(|grant| !grant.is_left());
        let left = left.collect();
        // The initiator hears of it; this end stays open while it is in a grant.
        let _ = shutdown(&*self.socket, Shutdown::Write);
        left
    }
}
