//! Whether a runtime keeps its contract with core: every call looked at, and a script that drives the runtime.

use core::ffi::{CStr, c_char, c_void};
use core::fmt::Write;
use core::ptr::NonNull;
use core::{ptr, slice};

use polyrail_core::contract::script::{Runtime, Script, Side};
use polyrail_core::contract::{Breach, Checked, Row, Rule};
use polyrail_core::rail::policies::Policies;
use polyrail_core::time::{Duration, Instant};
use polyrail_core::units::{Epoch, LaneId, PlanId, RailId};

use crate::memory::{
    ARGUMENT, Code, POLYRAIL_CORE_ERROR_MEMORY, POLYRAIL_CORE_ERROR_PENDING, change, code, enough,
    fill, look, polled, several,
};
use crate::worker::polyrail_core_worker;

/// In place of a lane: the breach is not on one.
pub const POLYRAIL_CORE_NO_LANE: u32 = u32::MAX;

/// A clause of the contract that was broken, the first time that it was.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_breach {
    /// Which: `polyrail_core_breach_name` has its name. docs/embedding.md tells what it means, and `number` and `span_ns`.
    pub rule: u32,
    /// How often it has been broken by now.
    pub times: u32,
    /// On which lane, or `POLYRAIL_CORE_NO_LANE`.
    pub lane: u32,
    /// That lane's epoch.
    pub epoch: u32,
    /// Which one: a work's cookie, a post's number, ...
    pub number: u64,
    /// When that was noticed.
    pub at: u64,
    /// How late, how far back, ...
    pub span_ns: u64,
}

/// A runtime, as the script needs it. It has the first `bytes` of both segments of a plan for itself, with nothing else under way.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_runtime {
    /// Handed to the functions below.
    pub context: *mut c_void,
    /// One turn of the loop: hands in what has happened, drains core, and sleeps until there is something to hand in, core has a
    /// timer, or it is `until`. Takes every request and batch that has ended. Gives the time after that.
    pub turn: Option<unsafe extern "C" fn(context: *mut c_void, until: u64) -> u64>,
    /// Makes the link of a rail fail, as if its cable were pulled; 0: it cannot. Null: no link can.
    pub cut: Option<unsafe extern "C" fn(context: *mut c_void, rail: u16) -> i32>,
    /// Lets a link that was cut work again. Null: none can.
    pub mend: Option<unsafe extern "C" fn(context: *mut c_void, rail: u16)>,
    /// Ends the peer for good: the runtime finds that out; 0: it cannot. Null: the same.
    pub end_peer: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
    /// The local segment of the plan, and its remote one.
    pub ours: *mut u8,
    /// See there.
    pub theirs: *mut u8,
    /// Bytes of either.
    pub bytes: u64,
    /// The plan.
    pub plan: u64,
    /// Its rails.
    pub rails: *const u16,
    /// How many: 16 at most.
    pub rail_count: usize,
}

/// How far a script came.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_core_ran {
    /// The time at its end.
    pub now: u64,
    /// Links were cut while something was on them.
    pub cuts: u32,
    /// 1: the peer was ended.
    pub peer_ended: u8,
}

const RAILS_MAX: usize = 16;

impl From<&Breach> for polyrail_core_breach {
    fn from(breach: &Breach) -> Self {
        Self {
            rule: breach.rule as u32,
            times: breach.times,
            lane: breach.lane.map_or(POLYRAIL_CORE_NO_LANE, |lane| lane.0),
            epoch: breach.epoch.0,
            number: breach.number,
            at: breach.at.as_nanos(),
            span_ns: breach.span.as_nanos(),
        }
    }
}

fn rule(number: u32) -> Option<Rule> {
    Rule::ALL.get(number as usize).copied()
}

fn breach(said: &polyrail_core_breach) -> Option<Breach> {
    Some(Breach {
        rule: rule(said.rule)?,
        at: Instant::from_nanos(said.at),
        lane: Some(LaneId(said.lane)).filter(|lane| lane.0 != POLYRAIL_CORE_NO_LANE),
        epoch: Epoch(said.epoch),
        number: said.number,
        span: Duration::from_nanos(said.span_ns),
        times: said.times,
    })
}

/// Looks at every call on a core from now on, while nothing is under way: for tests. `memory` begins at a multiple of
/// `POLYRAIL_CORE_ALIGNMENT`, and is the core's from then on. 64 KiB are enough for most tests; a breach says if they are not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_check(
    core: *mut polyrail_core_worker,
    memory: *mut u8,
    bytes: usize,
) -> i32 {
    let check = || {
        // SAFETY: the contract of the crate.
        let core = unsafe { change(core) }?;
        let count = bytes / size_of::<Row>();
        let mut layouter = enough(memory, bytes, size_of::<Row>())?;
        let rows: NonNull<Row> = (layouter.rows(count).flatten())
            .filter(|_| count > 0)
            .ok_or(Code(POLYRAIL_CORE_ERROR_MEMORY))?;
        // SAFETY: the memory is the core's from now on, and has room for so many.
        core.core.watch(unsafe { fill(rows, count, || Row::EMPTY) });
        Ok(())
    };
    code(check())
}

/// Ends the look at a core's calls: what the runtime still owes by now counts as not done. How many clauses were broken; below 0:
/// an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_check_end(core: *mut polyrail_core_worker) -> i32 {
    // SAFETY: the contract of the crate.
    let Ok(core) = (unsafe { change(core) }) else {
        return ARGUMENT.0;
    };
    match core.core.is_watched() {
        true => core.core.end().breaches.len() as i32,
        false => ARGUMENT.0,
    }
}

/// The clause that was broken as number `index`, counted from 0. `POLYRAIL_CORE_NONE`: not so many were.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_look_breach(
    core: *const polyrail_core_worker,
    index: usize,
    to: *mut polyrail_core_breach,
) -> i32 {
    let tell = || {
        // SAFETY: the contract of the crate.
        let (core, to) = unsafe { (look(core)?, change(to)?) };
        let breach = core.core.verdict().breaches.get(index);
        Ok(breach.map(|breach| *to = breach.into()))
    };
    polled(tell())
}

/// The name of a rule, for ever; "?": there is no such rule.
#[unsafe(no_mangle)]
pub extern "C" fn polyrail_core_breach_name(number: u32) -> *const c_char {
    const UNKNOWN: &CStr = c"?";
    rule(number).map_or(UNKNOWN, Rule::name_in_c).as_ptr()
}

/// Room for a text that ends with a 0.
struct Text<'a> {
    room: &'a mut [u8],
    length: usize,
}

impl Write for Text<'_> {
    fn write_str(&mut self, more: &str) -> core::fmt::Result {
        let free = self.room.iter_mut().skip(self.length);
        free.zip(more.bytes()).for_each(|(to, from)| *to = from);
        self.length += more.len();
        Ok(())
    }
}

/// Says in one line what was broken, as far as `bytes` of text go, with the 0 at its end. The length of the whole text, without
/// that 0; 0: there is no such breach.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_breach_text(
    said: *const polyrail_core_breach,
    to: *mut c_char,
    bytes: usize,
) -> usize {
    // SAFETY: the contract of the crate.
    let Some(breach) = unsafe { look(said) }.ok().and_then(breach) else {
        return 0;
    };
    let room = match to.is_null() || bytes == 0 {
        true => &mut [],
        // SAFETY: as above.
        false => unsafe { slice::from_raw_parts_mut(to.cast::<u8>(), bytes) },
    };
    let mut text = Text { room, length: 0 };
    let _ = write!(text, "{breach}");
    let Text { room, length } = text;
    let last = room.len().saturating_sub(1).min(length);
    if let Some(end) = room.get_mut(last) {
        *end = 0;
    }
    length
}

/// The caller's runtime.
struct Rig<'r> {
    core: *mut polyrail_core_worker,
    runtime: &'r polyrail_core_runtime,
}

impl Rig<'_> {
    fn memory(&self, side: Side, offset: u64) -> *mut u8 {
        let base = match side {
            Side::Ours => self.runtime.ours,
            Side::Theirs => self.runtime.theirs,
        };
        base.wrapping_add(offset as usize)
    }
}

impl Runtime<'static, Policies<'static>> for Rig<'_> {
    fn core(&mut self) -> &mut Checked<'static, Policies<'static>> {
        // SAFETY: it is no null pointer, and nobody else uses it before the next call here.
        unsafe { &mut (*self.core).core }
    }

    fn turn(&mut self, until: Instant) -> Instant {
        let context = self.runtime.context;
        let turned = self.runtime.turn.map(|turn| {
            // SAFETY: the caller's function, with what it has said to hand to it.
            unsafe { turn(context, until.as_nanos()) }
        });
        turned.map_or(until, Instant::from_nanos)
    }

    fn store(&mut self, side: Side, offset: u64, bytes: &[u8]) {
        // SAFETY: the script stays within the memory that the caller has said.
        unsafe { ptr::copy(bytes.as_ptr(), self.memory(side, offset), bytes.len()) };
    }

    fn load(&mut self, side: Side, offset: u64, bytes: &mut [u8]) {
        // SAFETY: as above.
        unsafe { ptr::copy(self.memory(side, offset), bytes.as_mut_ptr(), bytes.len()) };
    }

    fn cut(&mut self, rail: RailId) -> bool {
        let context = self.runtime.context;
        // SAFETY: as in `turn`.
        let cut = self.runtime.cut.map(|cut| unsafe { cut(context, rail.0) });
        cut.is_some_and(|cut| cut != 0)
    }

    fn mend(&mut self, rail: RailId) {
        if let Some(mend) = self.runtime.mend {
            // SAFETY: as in `turn`.
            unsafe { mend(self.runtime.context, rail.0) };
        }
    }

    fn end_peer(&mut self) -> bool {
        let context = self.runtime.context;
        // SAFETY: as in `turn`.
        let ended = self.runtime.end_peer.map(|end| unsafe { end(context) });
        ended.is_some_and(|ended| ended != 0)
    }
}

/// Drives a runtime through transfers either way, many at a time, over links that fail, cancelled, too late, and to a peer that
/// ends. Its core is checked by then; `polyrail_core_check_end` says afterwards what was wrong. The runtime's functions call the
/// core as they always do. `POLYRAIL_CORE_ERROR_PENDING`: a request could not be made or has not ended, so the script did
/// not go on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_core_run_script(
    core: *mut polyrail_core_worker,
    now: u64,
    runtime: *const polyrail_core_runtime,
    ran: *mut polyrail_core_ran,
) -> i32 {
    let run = || {
        // SAFETY: the contract of the crate.
        let (runtime, to) = unsafe { (look(runtime)?, change(ran)?) };
        // SAFETY: as above.
        let numbers = unsafe { several(runtime.rails, runtime.rail_count) }?;
        // SAFETY: as above.
        let is_watched = unsafe { look(core) }?.core.is_watched();
        let is_whole = runtime.turn.is_some() && !runtime.ours.is_null();
        if !is_watched || !is_whole || runtime.theirs.is_null() || numbers.len() > RAILS_MAX {
            return Err(ARGUMENT);
        }
        let rails = numbers.iter().map(|number| RailId(*number));
        let rails = rails.collect::<heapless::Vec<RailId, RAILS_MAX>>();
        let script = Script {
            plan: PlanId::from_bits(runtime.plan),
            rails: &rails,
            bytes: runtime.bytes,
        };
        let mut rig = Rig { core, runtime };
        let ran = script.run(Instant::from_nanos(now), &mut rig);
        *to = polyrail_core_ran {
            now: ran.now.as_nanos(),
            cuts: ran.cuts,
            peer_ended: ran.peer_ended.into(),
        };
        match ran.is_whole {
            true => Ok(()),
            false => Err(Code(POLYRAIL_CORE_ERROR_PENDING)),
        }
    };
    code(run())
}
