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
}

/// Secrets of sessions that have one. Whose a session is decides, not its number: a peer may say any.
#[derive(Default)]
struct Secrets {
    /// Those that peers have with this engine.
    inbound: HashMap<SessionId, SessionSecret>,
    /// Those that this engine's rails are of, by the worker, and those that `reach` asks in.
    rails: HashMap<(u16, RailId), (SessionId, SessionSecret)>,
    asking: Vec<(SessionId, SessionSecret)>,
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

    /// A peer's session begins or (`None`) is over, or has no secret.
    pub(crate) fn set_inbound(&self, session: SessionId, secret: Option<SessionSecret>) {
        let mut secrets = self.secrets();
        match secret {
            Some(secret) => secrets.inbound.insert(session, secret),
            None => secrets.inbound.remove(&session),
        };
    }

    /// Says which session a worker's rail is of now, if that has a secret.
    pub(crate) fn set_rail(
        &self,
        worker: u16,
        rail: RailId,
        session: Option<(SessionId, SessionSecret)>,
    ) {
        let mut secrets = self.secrets();
        match session {
            Some(session) => secrets.rails.insert((worker, rail), session),
            None => secrets.rails.remove(&(worker, rail)),
        };
    }

    /// Forgets all rails of a worker.
    pub(crate) fn forget_rails(&self, worker: u16) {
        self.secrets().rails.retain(|(of, _), _| *of != worker);
    }

    /// Calls something that may ask a peer in a session.
    pub(crate) fn while_asking<T>(
        &self,
        session: SessionId,
        secret: Option<&SessionSecret>,
        call: impl FnOnce() -> T,
    ) -> T {
        let asks = secret.map(|secret| (session, secret.clone()));
        self.secrets().asking.extend(asks);
        let said = call();
        let mut secrets = self.secrets();
        if let Some(at) = secrets.asking.iter().position(|(of, _)| *of == session) {
            secrets.asking.swap_remove(at);
        }
        said
    }

    /// What a lane of this engine's is to prove itself with, if its rail is of that session.
    fn outbound(&self, session: SessionId, lane: u32, epoch: u32) -> Option<SessionSecret> {
        let secrets = self.secrets();
        let lane = LaneId(lane);
        let is_it = |(of, _): &&(SessionId, SessionSecret)| *of == session;
        let found = match epoch {
            0 => secrets.asking.iter().find(is_it),
            _ => secrets
                .rails
                .get(&(lane.worker(), lane.rail()))
                .filter(is_it),
        };
        found.map(|(_, secret)| secret.clone())
    }

    fn inbound(&self, session: SessionId) -> Option<SessionSecret> {
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
            None => log::error!(
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
    log::log!(level, "{}: {}", host.name, text.to_string_lossy());
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
            log::error!("transport {}: no random numbers: {error}", host.name);
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
    let Some(secret) = host.outbound(session, lane, epoch) else {
        return NOT_NEEDED;
    };
    match secret.ticket(&host.entry(session, lane, epoch), nonce) {
        Ok(made) => {
            // SAFETY: the library's promise.
            unsafe { ticket.cast::<[u8; TICKET_BYTES]>().write(made.to_bytes()) };
            GOOD
        }
        Err(error) => {
            log::error!("transport {}: no ticket: {error}", host.name);
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
    let (secret, entry) = (host.inbound(session), host.entry(session, lane, epoch));
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
    let Some(secret) = host.outbound(session, lane, epoch) else {
        return NOT_NEEDED;
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
