//! What the engine does for a library.
//!
//! # Safety
//!
//! A library calls these with what it was given: the context of its host, regions that it was lent, permissions that it
//! has not given back. Each says which.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut};
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use polyrail_core::units::{Epoch, LaneId, RailId};
use polyrail_transport::SessionId;
use polyrail_transport::complain;
use polyrail_transport::complaint::Lines;
use polyrail_transport::memory::{
    Access, Entered, Pinned, Region, RegionKey, RegionTable, TrustDomain,
};
use polyrail_transport::ticket::{
    self, Denied, Entry, NONCE_BYTES, Nonce, PROOF_BYTES, Proof, SessionSecret, TICKET_BYTES,
    Ticket,
};

use crate::abi::*;

/// Who waits for an answer of the library's.
type Answer = Box<dyn FnOnce(u32) + Send>;

/// The engine, as a library sees it.
pub(crate) struct Host {
    name: &'static str,
    regions: Arc<dyn RegionTable>,
    questions: Mutex<Questions>,
    secrets: Mutex<Secrets>,
    /// What the library may still write to the log.
    lines: Lines,
}

/// Sessions, each with the secret that its lanes prove themselves with; `None`: its engines have no key. Whose a session is
/// decides, not its number: a peer may say any. Who asks for a session or lane that is not here is told no.
#[derive(Default)]
struct Secrets {
    /// Those that peers have with this engine.
    inbound: HashMap<SessionId, Option<SessionSecret>>,
    /// Those that this engine's rails are of, by the worker, and those that `reach` asks in.
    rails: HashMap<(u16, RailId), Joined>,
    asking: Vec<Joined>,
    /// Those that its lanes were of when they were opened, with the epoch: a rail can be of another session by now.
    lanes: HashMap<LaneId, (Epoch, Joined)>,
}

/// A session that this engine joins.
#[derive(Clone)]
pub(crate) struct Joined {
    pub(crate) session: SessionId,
    pub(crate) secret: Option<SessionSecret>,
}

#[derive(Default)]
struct Questions {
    last: u64,
    open: HashMap<u64, Answer>,
}

impl Host {
    pub(crate) fn new(name: &'static str, regions: Arc<dyn RegionTable>) -> Self {
        Self {
            name,
            regions,
            questions: Mutex::default(),
            secrets: Mutex::default(),
            lines: Lines::default(),
        }
    }

    /// The table that the library is given. The host stays where it is as long as that is used.
    pub(crate) fn table(self: &Arc<Self>) -> polyrail_transport_host {
        polyrail_transport_host {
            size: size_of::<polyrail_transport_host>(),
            context: Arc::as_ptr(self).cast_mut().cast(),
            find_region,
            release_region,
            look_region,
            enter,
            leave,
            pin,
            unpin,
            answer,
            log: write_log,
            draw_nonce,
            make_ticket,
            check_ticket,
            check_proof,
        }
    }

    fn secrets(&self) -> MutexGuard<'_, Secrets> {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A peer's session begins.
    pub(crate) fn begin_inbound(&self, session: SessionId, secret: Option<SessionSecret>) {
        self.secrets().inbound.insert(session, secret);
    }

    /// A peer's session is over.
    pub(crate) fn end_inbound(&self, session: SessionId) {
        self.secrets().inbound.remove(&session);
    }

    /// Says which session a worker's rail is of now.
    pub(crate) fn set_rail(&self, worker: u16, rail: RailId, joined: Joined) {
        self.secrets().rails.insert((worker, rail), joined);
    }

    /// Forgets a rail of a worker, and its lane.
    pub(crate) fn forget_rail(&self, worker: u16, rail: RailId) {
        let mut secrets = self.secrets();
        secrets.rails.remove(&(worker, rail));
        secrets.lanes.remove(&LaneId::new(worker, rail));
    }

    /// Forgets all rails of a worker, and its lanes.
    pub(crate) fn forget_rails(&self, worker: u16) {
        let mut secrets = self.secrets();
        secrets.rails.retain(|(of, _), _| *of != worker);
        secrets.lanes.retain(|lane, _| lane.worker() != worker);
    }

    /// A lane is to be opened: until it is opened again it is of the session that its rail is of now.
    pub(crate) fn open_lane(&self, lane: LaneId, epoch: Epoch) {
        let mut secrets = self.secrets();
        match secrets.rails.get(&(lane.worker(), lane.rail())).cloned() {
            Some(joined) => secrets.lanes.insert(lane, (epoch, joined)),
            None => secrets.lanes.remove(&lane),
        };
    }

    /// Calls something that may ask a peer in a session.
    pub(crate) fn while_asking<T>(
        &self,
        session: SessionId,
        secret: Option<&SessionSecret>,
        call: impl FnOnce() -> T,
    ) -> T {
        let secret = secret.cloned();
        self.secrets().asking.push(Joined { session, secret });
        let said = call();
        let mut secrets = self.secrets();
        if let Some(at) = secrets.asking.iter().position(|of| of.session == session) {
            secrets.asking.swap_remove(at);
        }
        said
    }

    /// What a lane of this engine's is to prove itself with. `None`: it is none of that session.
    fn outbound(&self, session: SessionId, lane: u32, epoch: u32) -> Option<Option<SessionSecret>> {
        let secrets = self.secrets();
        let is_it = |joined: &&Joined| joined.session == session;
        let found = match epoch {
            0 => secrets.asking.iter().find(is_it),
            _ => {
                let opened = secrets.lanes.get(&LaneId(lane));
                let opened = opened.filter(|(of, _)| *of == Epoch(epoch));
                opened.map(|(_, joined)| joined).filter(is_it)
            }
        };
        found.map(|joined| joined.secret.clone())
    }

    /// What a lane of a peer's is to prove itself with. `None`: there is no such session.
    fn inbound(&self, session: SessionId) -> Option<Option<SessionSecret>> {
        self.secrets().inbound.get(&session).cloned()
    }

    fn entry(&self, session: SessionId, lane: u32, epoch: u32) -> Entry<'static> {
        Entry {
            transport: self.name,
            session,
            lane: (epoch > 0).then_some((LaneId(lane), Epoch(epoch))),
        }
    }

    /// A number for a question whose answer is waited for.
    pub(crate) fn ask(&self, answer: Answer) -> u64 {
        let mut questions = self
            .questions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        questions.last += 1;
        let number = questions.last;
        questions.open.insert(number, answer);
        number
    }

    fn answer(&self, number: u64, delivered: u32) {
        let mut questions = self
            .questions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let answer = questions.open.remove(&number);
        drop(questions);
        match answer {
            Some(answer) => answer(delivered),
            None => complain!(
                "transport {} answers question {number}, which is none or has its answer",
                self.name
            ),
        }
    }
}

/// A region as a library holds it.
pub(crate) fn lent(region: &Arc<Region>) -> *const polyrail_transport_region {
    Arc::as_ptr(region).cast()
}

/// # Safety
///
/// `context` is a host's.
unsafe fn host<'a>(context: *mut c_void) -> &'a Host {
    // SAFETY: the caller's promise.
    unsafe { &*context.cast::<Host>() }
}

/// # Safety
///
/// The region is lent to the library.
unsafe fn region<'a>(region: *const polyrail_transport_region) -> &'a Region {
    // SAFETY: the caller's promise.
    unsafe { &*region.cast::<Region>() }
}

/// The key leads to as many bytes as one has.
unsafe extern "C" fn find_region(
    context: *mut c_void,
    key: *const u8,
) -> *const polyrail_transport_region {
    // SAFETY: the library's promises.
    let (host, key) = unsafe {
        let key = slice::from_raw_parts(key, POLYRAIL_TRANSPORT_KEY_BYTES);
        (host(context), key)
    };
    let mut bytes = [0; POLYRAIL_TRANSPORT_KEY_BYTES];
    bytes.copy_from_slice(key);
    // Libraries know no trust domains, so what is of one is not for them.
    match host.regions.find(&RegionKey(bytes), TrustDomain::COMMON) {
        Some(region) => Arc::into_raw(region).cast(),
        None => null(),
    }
}

/// The region came from [`find_region`], and is not used any more.
unsafe extern "C" fn release_region(region: *const polyrail_transport_region) {
    // SAFETY: the library's promise.
    drop(unsafe { Arc::from_raw(region.cast::<Region>()) });
}

/// The region is lent, and the info can be written.
unsafe extern "C" fn look_region(
    lent: *const polyrail_transport_region,
    info: *mut polyrail_transport_region_info,
) {
    // SAFETY: the library's promise.
    let region = unsafe { region(lent) };
    let known = polyrail_transport_region_info {
        base: region.base().as_ptr().cast(),
        bytes: region.bytes(),
        access: match region.access() {
            Access::Local => POLYRAIL_TRANSPORT_ACCESS_LOCAL,
            Access::RemoteRead => POLYRAIL_TRANSPORT_ACCESS_READ,
            Access::RemoteReadWrite => POLYRAIL_TRANSPORT_ACCESS_READ_WRITE,
        },
        descriptor: region.file().map_or(-1, |file| file.as_raw_fd() as c_int),
        key: region.key().0,
    };
    // SAFETY: the library's promise.
    unsafe { info.write(known) };
}

/// Where a permission is kept while the library has it.
type Kept = MaybeUninit<[u64; 4]>;

const _: () = assert!(size_of::<Entered<'static>>() <= size_of::<Kept>());
const _: () = assert!(align_of::<Entered<'static>>() <= align_of::<Kept>());

/// The region is lent until the permission has been given back; `entered` can be written.
unsafe extern "C" fn enter(
    lent: *const polyrail_transport_region,
    offset: u64,
    length: u64,
    entered: *mut polyrail_transport_entered,
) -> i32 {
    // SAFETY: the library's promise.
    let region = unsafe { region(lent) };
    let Some(permission) = region.enter() else {
        return -1;
    };
    let Some(address) = permission.pointer(offset, length) else {
        return -1;
    };
    // SAFETY: there is room for it, as is looked at above, and `leave` takes it out again.
    unsafe {
        (*entered).address = address.cast();
        let kept = (&raw mut (*entered).opaque).cast::<ManuallyDrop<Entered<'_>>>();
        kept.write(ManuallyDrop::new(permission));
    }
    0
}

/// What [`enter`] filled on this thread, once.
unsafe extern "C" fn leave(entered: *mut polyrail_transport_entered) {
    // SAFETY: the library's promise.
    unsafe {
        let kept = (&raw mut (*entered).opaque).cast::<Entered<'_>>();
        drop(kept.read());
    }
}

/// The region is lent, and the address can be written.
unsafe extern "C" fn pin(
    lent: *const polyrail_transport_region,
    offset: u64,
    length: u64,
    address: *mut *mut c_void,
) -> *mut polyrail_transport_pinned {
    let held = lent.cast::<Region>();
    // SAFETY: a region that is lent is in an `Arc`, of which this is one more share.
    let region = unsafe {
        Arc::increment_strong_count(held);
        Arc::from_raw(held)
    };
    let Some(pinned) = region.pin(offset, length) else {
        return null_mut();
    };
    // SAFETY: the library's promise.
    unsafe { address.write(pinned.address().as_ptr().cast()) };
    Box::into_raw(Box::new(pinned)).cast()
}

/// What [`pin`] gave, once.
unsafe extern "C" fn unpin(pinned: *mut polyrail_transport_pinned) {
    // SAFETY: the library's promise.
    drop(unsafe { Box::from_raw(pinned.cast::<Pinned>()) });
}

unsafe extern "C" fn answer(context: *mut c_void, question: u64, delivered: u32) {
    // SAFETY: the library's promise.
    unsafe { host(context) }.answer(question, delivered);
}

/// The text ends with a zero.
unsafe extern "C" fn write_log(context: *mut c_void, level: u32, text: *const c_char) {
    // SAFETY: the library's promise.
    let (host, text) = unsafe { (host(context), CStr::from_ptr(text)) };
    let level = match level {
        1 => log::Level::Error,
        2 => log::Level::Warn,
        3 => log::Level::Info,
        _ => log::Level::Debug,
    };
    let text = text.to_string_lossy();
    if level == log::Level::Debug {
        return log::debug!("{}: {text}", host.name);
    }
    // Peers may bring any of them about.
    if log::log_enabled!(level)
        && let Some(left_out) = host.lines.take()
    {
        if left_out > 0 {
            log::warn!(
                "{}: {left_out} lines like the next were left out",
                host.name
            );
        }
        log::log!(level, "{}: {text}", host.name);
    }
}

/// What a function of the host's answers when all is well, when there is nothing to prove, and when it is not.
const GOOD: i32 = 0;
const NOT_NEEDED: i32 = 1;
const BAD: i32 = -1;

const _: () = assert!(POLYRAIL_TRANSPORT_NONCE_BYTES == NONCE_BYTES);
const _: () = assert!(POLYRAIL_TRANSPORT_TICKET_BYTES == TICKET_BYTES);
const _: () = assert!(POLYRAIL_TRANSPORT_PROOF_BYTES == PROOF_BYTES);

/// As many bytes as there have to be. `None`: null.
///
/// # Safety
///
/// So many bytes can be read there, or it is null.
unsafe fn bytes<const N: usize>(from: *const u8) -> Option<[u8; N]> {
    // SAFETY: the caller's promise; bytes lie anywhere.
    unsafe { from.cast::<[u8; N]>().as_ref().copied() }
}

/// The nonce can be written.
unsafe extern "C" fn draw_nonce(context: *mut c_void, nonce: *mut u8) -> i32 {
    // SAFETY: the library's promise.
    let host = unsafe { host(context) };
    match Nonce::draw() {
        Ok(drawn) => {
            // SAFETY: the library's promise.
            unsafe { nonce.cast::<[u8; NONCE_BYTES]>().write(drawn.0) };
            GOOD
        }
        Err(error) => {
            complain!("transport {}: no random numbers: {error}", host.name);
            BAD
        }
    }
}

/// The session and the nonce can be read, the ticket can be written.
unsafe extern "C" fn make_ticket(
    context: *mut c_void,
    session: *const u8,
    lane: u32,
    epoch: u32,
    nonce: *const u8,
    ticket: *mut u8,
) -> i32 {
    // SAFETY: the library's promises.
    let (host, session, nonce) = unsafe { (host(context), bytes(session), bytes(nonce)) };
    let (Some(session), Some(nonce)) = (session.map(SessionId), nonce.map(Nonce)) else {
        return BAD;
    };
    let secret = match host.outbound(session, lane, epoch) {
        Some(Some(secret)) => secret,
        Some(None) => return NOT_NEEDED,
        None => return BAD,
    };
    match secret.ticket(&host.entry(session, lane, epoch), nonce) {
        Ok(made) => {
            // SAFETY: the library's promise.
            unsafe { ticket.cast::<[u8; TICKET_BYTES]>().write(made.to_bytes()) };
            GOOD
        }
        Err(error) => {
            complain!("transport {}: no ticket: {error}", host.name);
            BAD
        }
    }
}

/// The session can be read, the nonce and the ticket too or they are null, and the proof can be written.
unsafe extern "C" fn check_ticket(
    context: *mut c_void,
    session: *const u8,
    lane: u32,
    epoch: u32,
    nonce: *const u8,
    ticket: *const u8,
    proof: *mut u8,
) -> i32 {
    // SAFETY: the library's promises.
    let (host, session, nonce, ticket) =
        unsafe { (host(context), bytes(session), bytes(nonce), bytes(ticket)) };
    let Some(session) = session.map(SessionId) else {
        return BAD;
    };
    let Some(secret) = host.inbound(session) else {
        return BAD;
    };
    let entry = host.entry(session, lane, epoch);
    let ticket = ticket.map(|bytes| Ticket::from_bytes(&bytes));
    let said = nonce.map(Nonce).zip(ticket.as_ref());
    match ticket::admit(secret.as_ref(), &entry, said) {
        Ok(None) => NOT_NEEDED,
        Ok(Some(answer)) => {
            // SAFETY: the library's promise.
            unsafe { proof.cast::<[u8; PROOF_BYTES]>().write(answer.0) };
            GOOD
        }
        Err(denied) => {
            complain!("{}: a lane is turned away: {denied}", host.name);
            BAD
        }
    }
}

/// The session can be read, and the others too or they are null.
unsafe extern "C" fn check_proof(
    context: *mut c_void,
    session: *const u8,
    lane: u32,
    epoch: u32,
    nonce: *const u8,
    ticket: *const u8,
    proof: *const u8,
) -> i32 {
    // SAFETY: the library's promises.
    let (host, session, nonce) = unsafe { (host(context), bytes(session), bytes(nonce)) };
    // SAFETY: as above.
    let (ticket, proof) = unsafe { (bytes(ticket), bytes(proof)) };
    let Some(session) = session.map(SessionId) else {
        return BAD;
    };
    let secret = match host.outbound(session, lane, epoch) {
        Some(Some(secret)) => secret,
        Some(None) => return NOT_NEEDED,
        None => return BAD,
    };
    let entry = host.entry(session, lane, epoch);
    let ticket = ticket.map(|bytes| Ticket::from_bytes(&bytes));
    let checked = match (nonce.map(Nonce), ticket, proof.map(Proof)) {
        (Some(nonce), Some(ticket), Some(proof)) => secret.check(&entry, nonce, &ticket, &proof),
        _ => Err(secret.deny(Denied::Missing)),
    };
    match checked {
        Ok(()) => GOOD,
        Err(denied) => {
            complain!("{}: a target is not believed: {denied}", host.name);
            BAD
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl RegionTable for Nothing {
        fn find(&self, _: &RegionKey, _: TrustDomain) -> Option<Arc<Region>> {
            None
        }
    }

    const ONE: SessionId = SessionId([1; 16]);
    const TWO: SessionId = SessionId([2; 16]);
    const LANE: LaneId = LaneId(0);
    const NONCE: [u8; NONCE_BYTES] = [9; NONCE_BYTES];
    const WRONG: [u8; PROOF_BYTES] = [0; PROOF_BYTES];

    fn new_host() -> Arc<Host> {
        Arc::new(Host::new("library", Arc::new(Nothing)))
    }

    fn joined(session: SessionId, has_secret: bool) -> Joined {
        let secret = || SessionSecret::new(&[7; 32], session, 1, 2, Arc::default()).unwrap();
        Joined {
            session,
            secret: has_secret.then(secret),
        }
    }

    fn make(host: &Arc<Host>, session: SessionId, epoch: u32) -> (i32, [u8; TICKET_BYTES]) {
        let (context, mut ticket) = (host.table().context, [0; TICKET_BYTES]);
        let (of, nonce, to) = (session.0.as_ptr(), NONCE.as_ptr(), ticket.as_mut_ptr());
        // SAFETY: the host is there, and everything is as long as it has to be.
        let made = unsafe { make_ticket(context, of, LANE.0, epoch, nonce, to) };
        (made, ticket)
    }

    fn believes(
        host: &Arc<Host>,
        session: SessionId,
        epoch: u32,
        ticket: &[u8; TICKET_BYTES],
        proof: &[u8; PROOF_BYTES],
    ) -> i32 {
        let (context, of, nonce) = (host.table().context, session.0.as_ptr(), NONCE.as_ptr());
        // SAFETY: as above.
        unsafe {
            check_proof(
                context,
                of,
                LANE.0,
                epoch,
                nonce,
                ticket.as_ptr(),
                proof.as_ptr(),
            )
        }
    }

    fn lets_in(
        host: &Arc<Host>,
        session: SessionId,
        ticket: Option<&[u8; TICKET_BYTES]>,
    ) -> (i32, [u8; PROOF_BYTES]) {
        let (context, of, mut proof) = (host.table().context, session.0.as_ptr(), WRONG);
        let nonce = ticket.map_or(null(), |_| NONCE.as_ptr());
        let ticket = ticket.map_or(null(), |ticket| ticket.as_ptr());
        // SAFETY: as above.
        let said =
            unsafe { check_ticket(context, of, LANE.0, 1, nonce, ticket, proof.as_mut_ptr()) };
        (said, proof)
    }

    #[test]
    fn a_lane_is_of_the_session_that_its_rail_was_of_when_it_was_opened() {
        let (host, target) = (new_host(), new_host());
        target.begin_inbound(ONE, joined(ONE, true).secret);
        host.set_rail(LANE.worker(), LANE.rail(), joined(ONE, true));
        assert_eq!(make(&host, ONE, 1).0, BAD, "nobody has opened it");
        host.open_lane(LANE, Epoch(1));
        let (made, ticket) = make(&host, ONE, 1);
        assert_eq!(made, GOOD);
        let (admitted, proof) = lets_in(&target, ONE, Some(&ticket));
        assert_eq!(admitted, GOOD);
        // Whether the rail's session is made anew meanwhile, with a secret or without.
        for new in [joined(ONE, true), joined(TWO, true), joined(TWO, false)] {
            host.set_rail(LANE.worker(), LANE.rail(), new);
            assert_eq!(believes(&host, ONE, 1, &ticket, &WRONG), BAD);
            assert_eq!(believes(&host, ONE, 1, &ticket, &proof), GOOD);
            assert_eq!(make(&host, ONE, 1).0, GOOD);
            // Another session, and another epoch of the lane.
            assert_eq!(make(&host, TWO, 1).0, BAD);
            assert_eq!(believes(&host, TWO, 1, &ticket, &proof), BAD);
            assert_eq!(make(&host, ONE, 2).0, BAD);
            assert_eq!(believes(&host, ONE, 2, &ticket, &proof), BAD);
        }
        host.open_lane(LANE, Epoch(2));
        assert_eq!(make(&host, TWO, 2).0, NOT_NEEDED, "it has no secret");
        assert_eq!(believes(&host, ONE, 1, &ticket, &proof), BAD);
        host.forget_rail(LANE.worker(), LANE.rail());
        assert_eq!(make(&host, TWO, 2).0, BAD);
    }

    #[test]
    fn nobody_is_let_in_who_is_of_no_session_or_does_not_prove_it() {
        let host = new_host();
        assert_eq!(lets_in(&host, ONE, None).0, BAD, "no session");
        host.begin_inbound(ONE, joined(ONE, true).secret);
        host.begin_inbound(TWO, None);
        assert_eq!(lets_in(&host, ONE, None).0, BAD);
        assert_eq!(lets_in(&host, ONE, Some(&[1; TICKET_BYTES])).0, BAD);
        assert_eq!(lets_in(&host, TWO, None).0, NOT_NEEDED);
        host.end_inbound(TWO);
        assert_eq!(lets_in(&host, TWO, None).0, BAD, "it is over");
    }

    #[test]
    fn who_is_asked_proves_it_in_the_session_of_the_question() {
        let host = new_host();
        assert_eq!(make(&host, ONE, 0).0, BAD);
        let secret = joined(ONE, true).secret;
        host.while_asking(ONE, secret.as_ref(), || {
            let (made, ticket) = make(&host, ONE, 0);
            assert_eq!(made, GOOD);
            assert_eq!(believes(&host, ONE, 0, &ticket, &WRONG), BAD);
            assert_eq!(make(&host, TWO, 0).0, BAD);
        });
        host.while_asking(TWO, None, || assert_eq!(make(&host, TWO, 0).0, NOT_NEEDED));
        assert_eq!(make(&host, TWO, 0).0, BAD);
    }
}
