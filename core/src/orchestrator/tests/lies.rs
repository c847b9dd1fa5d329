//! A shell and a peer that lie: whatever they say, nothing panics, the audit holds, every call returns, and once the truth
//! is told (the peer is silent for good) every request is reported.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most.max(1)
    }
    fn one_in(&mut self, most: u64) -> bool {
        self.below(most) == 0
    }
}

/// How much of what is said is made up.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lies {
    /// Nothing: facts come in any order and number, but each is one that can be true; posts are answered at once.
    None,
    /// Old, repeated and invented completions, frames and facts; time goes back a little; posts are answered at once.
    Facts,
    /// And anything may be said while a post is out.
    Order,
}

fn cause(dice: &mut Dice) -> Cause {
    Cause::ALL[dice.below(16) as usize]
}

fn limits(dice: &mut Dice, lies: Lies) -> LaneLimits {
    let zero = u64::from(lies == Lies::None);
    LaneLimits {
        works_max: (dice.below(20) + zero) as u16,
        work_bytes_max: [1 << 20, SLICE, 5_000, zero as u32]
            [dice.below(3 + u64::from(lies != Lies::None)) as usize],
        reads_max: (dice.below(5) + zero) as u16,
        covers: dice.one_in(2),
        counts: dice.one_in(2),
        patience_ms: 0,
    }
}

/// This side has let go of a lane.
const LET_GO: LaneFact = LaneFact::Fenced {
    scope: Scope::Local,
    delivered: None,
};

/// Takes what has ended, and counts by tag how often each request was reported.
fn take_events(core: &mut Orchestrator<'_>, told: &mut BTreeMap<u64, u32>) {
    while let Some(event) = core.poll_event() {
        match event {
            Event::RequestDone { request, tag } if core.take(request).is_some() => {
                *told.entry(tag).or_default() += 1;
            }
            Event::BatchDone { batch, .. } => {
                core.take_batch(batch);
            }
            _ => {}
        }
    }
}

fn run_seed(seed: u64, lies: Lies) -> Result<(), std::string::String> {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..8 {
        dice.below(2);
    }
    let workers = 1 + dice.below(2) as usize;
    let rails = 1 + dice.below(4) as usize;
    let attempts = [4, 8, 40, 512][dice.below(4) as usize];
    let mut config = Config::new(
        0,
        [
            Policy::Spray,
            Policy::Spray,
            Policy::RoundRobin,
            Policy::Documented,
        ][dice.below(4) as usize],
    );
    config.failover_attempts_max = dice.below(4) as u8;
    let world = if rails >= 2 && dice.one_in(2) && attempts == 512 {
        World::ranked(config, &[1, rails - 1])
    } else {
        World::among(workers, config, &[0; RAILS][..rails], attempts)
    };
    let mut core = world.core;
    let mut now = Instant::ZERO;
    let mut epochs = [Epoch(0); RAILS];
    let mut opening: Vec<(LaneId, Epoch)> = Vec::new();
    let mut fences: Vec<(LaneId, Epoch)> = Vec::new();
    let mut out: Vec<(LaneId, Epoch, Work)> = Vec::new();
    let mut held: Option<(Post, PostBatch)> = None;
    let mut ids: Vec<RequestId> = Vec::new();
    let mut told = BTreeMap::new();
    let mut tag = 0;
    let steps = 60 + dice.below(240);
    let audit = |core: &Orchestrator<'_>, what: &str, step: u64| {
        core.audit()
            .map_err(|violation| format!("step {step} after {what}: {violation}"))
    };
    for step in 0..steps {
        let what;
        match dice.below(14) {
            0 | 1 => {
                what = "submit";
                if let Some(batch) = core.open_batch(tag) {
                    let lengths = [1, 4096, 65_536, 65_537, 300_000, 4 << 20, 1 << 30];
                    let request = Request {
                        tag,
                        plan: PLAN,
                        batch,
                        local_offset: tag << 32,
                        remote_offset: tag << 32,
                        length: lengths[dice.below(7) as usize],
                        deadline: if dice.one_in(3) {
                            now + Duration::from_millis(dice.below(50))
                        } else {
                            Instant::MAX
                        },
                        op: if dice.one_in(2) { Op::Read } else { Op::Write },
                        priority: Priority::ALL[dice.below(3) as usize],
                    };
                    if let Ok(id) = core.submit(now, &request) {
                        ids.push(id);
                        told.insert(tag, 0_u32);
                    }
                    core.seal_batch(batch);
                    tag += 1;
                }
            }
            2..=4 => {
                what = "post";
                if held.is_none() {
                    let mut batch = PostBatch::default();
                    if let Some(post) = core.poll_post(now, &mut batch) {
                        held = Some((post, batch));
                    }
                }
            }
            5 | 6 => {
                what = "completions";
                let mut some = Vec::new();
                for _ in 0..1 + dice.below(4) {
                    if out.is_empty() {
                        break;
                    }
                    let index = if dice.one_in(2) {
                        0
                    } else {
                        dice.below(out.len() as u64) as usize
                    };
                    let (lane, epoch, work) = out[index];
                    if lies == Lies::None || !dice.one_in(5) {
                        out.remove(index);
                    }
                    let outcome = if dice.one_in(6) {
                        Outcome::Error(cause(&mut dice))
                    } else {
                        Outcome::Success
                    };
                    some.push(Completion {
                        lane,
                        epoch,
                        cookie: work.cookie,
                        at: now,
                        outcome,
                    });
                }
                if lies != Lies::None && dice.one_in(3) {
                    let lane = LaneId::new(dice.below(3) as u16, RailId(dice.below(70_000) as u16));
                    some.push(Completion {
                        lane,
                        epoch: Epoch(dice.below(4) as u32),
                        cookie: dice.below(u64::MAX),
                        at: now + Duration::from_secs(9),
                        outcome: Outcome::Success,
                    });
                }
                core.handle_completions(now, &some);
            }
            7 => {
                what = "lanes";
                while let Some(action) = core.poll_lane() {
                    match action {
                        LaneAction::Open { lane, epoch, .. } => {
                            epochs[lane.rail().index()] = epoch;
                            opening.push((lane, epoch));
                        }
                        LaneAction::Fence { lane, epoch, .. } => fences.push((lane, epoch)),
                        LaneAction::Close { lane, epoch } => {
                            out.retain(|row| (row.0, row.1) != (lane, epoch))
                        }
                    }
                }
            }
            8 => {
                what = "opened";
                if !opening.is_empty() {
                    let (lane, epoch) = opening.remove(dice.below(opening.len() as u64) as usize);
                    let limits = limits(&mut dice, lies);
                    let fact = if dice.one_in(5) {
                        LaneFact::OpenFailed(cause(&mut dice))
                    } else {
                        LaneFact::Opened { limits }
                    };
                    core.handle_lane(now, lane, epoch, fact);
                }
            }
            9 => {
                what = "fenced";
                if !fences.is_empty() {
                    let (lane, epoch) = fences.remove(dice.below(fences.len() as u64) as usize);
                    core.handle_lane(now, lane, epoch, LET_GO);
                    out.retain(|row| (row.0, row.1) != (lane, epoch));
                }
            }
            10 => {
                what = "message";
                if let Some(Message::Fence { lane, epoch, .. }) = core.poll_message(now)
                    && dice.one_in(2)
                {
                    let delivered = if lies == Lies::None {
                        0
                    } else {
                        [0, 1, 3, u32::MAX][dice.below(4) as usize]
                    };
                    core.handle_frame(
                        now,
                        PEER,
                        &Frame::Fenced {
                            lane,
                            epoch,
                            delivered,
                        },
                    );
                } else if dice.one_in(2) {
                    core.handle_frame(
                        now,
                        PeerId(dice.below(if lies == Lies::None { 1 } else { 70_000 }) as u16),
                        &Frame::Alive,
                    );
                }
            }
            11 => {
                what = "time";
                let step =
                    [1_000, 100_000, 6_000_000, 300_000_000, 2_500_000_000][dice.below(5) as usize];
                now = now + Duration::from_nanos(dice.below(step));
                if lies != Lies::None && dice.one_in(4) {
                    now = Instant::from_nanos(now.as_nanos() / 2);
                }
                core.handle_timeout(now);
            }
            12 => {
                what = "events";
                take_events(&mut core, &mut told);
            }
            _ => match dice.below(8) {
                0..=2 if !ids.is_empty() => {
                    what = "cancel";
                    let id = ids[dice.below(ids.len() as u64) as usize];
                    core.cancel(now, id);
                }
                3 => {
                    what = "a fact";
                    let lies_here = lies != Lies::None;
                    let rail = dice.below(rails as u64) as u16;
                    let epoch = if lies_here && dice.one_in(3) {
                        Epoch(dice.below(5) as u32)
                    } else {
                        epochs[usize::from(rail)]
                    };
                    let fact = match dice.below(if lies_here { 6 } else { 2 }) {
                        0 => LaneFact::Broken(cause(&mut dice)),
                        1 => LaneFact::Writable,
                        2 => LaneFact::Fenced {
                            scope: Scope::Remote,
                            delivered: Some(dice.below(9) as u32),
                        },
                        3 => LaneFact::PortActive,
                        4 => LaneFact::Crowded,
                        _ => LaneFact::Opened {
                            limits: limits(&mut dice, lies),
                        },
                    };
                    core.handle_lane(now, LaneId::new(0, RailId(rail)), epoch, fact);
                }
                4 => {
                    what = "session ended";
                    core.handle_peer_gone(now, PEER, Proof::SessionEnded);
                }
                5 if dice.one_in(4) => {
                    what = "shut down";
                    core.shut_down(now);
                }
                _ => what = "nothing",
            },
        }
        let answer = held.is_some() && (lies != Lies::Order || dice.one_in(2));
        if answer && let Some((post, batch)) = held.take() {
            let lane = post.lane();
            let count = batch.works.len();
            let accepted = match lies {
                Lies::None if dice.one_in(3) => dice.below(count as u64 + 1) as usize,
                Lies::None => count,
                _ => [count, dice.below(count as u64 + 1) as usize, count + 3]
                    [dice.below(3) as usize],
            };
            let stop = match dice.below(6) {
                0 => Stop::Full,
                1 if accepted < count => Stop::Rejected(cause(&mut dice)),
                2 if accepted < count => Stop::Unknown,
                _ if accepted < count && lies == Lies::None => Stop::Full,
                _ => Stop::All,
            };
            let upto = if stop == Stop::Unknown {
                count
            } else {
                accepted.min(count)
            };
            out.extend(
                batch
                    .works
                    .iter()
                    .take(upto)
                    .map(|work| (lane, batch.epoch, *work)),
            );
            core.handle_posted(now, post, accepted, stop);
        }
        audit(&core, what, step)?;
    }
    if let Some((post, batch)) = held.take() {
        core.handle_posted(now, post, batch.works.len(), Stop::All);
    }
    // The truth from now on: the peer says nothing for good; this side lets go of what it is asked to.
    for _ in 0..1_200 {
        now = now + Duration::from_millis(20);
        core.handle_timeout(now);
        let mut batch = PostBatch::default();
        let mut posts = 0;
        while let Some(post) = core.poll_post(now, &mut batch) {
            core.handle_posted(now, post, batch.works.len(), Stop::All);
            posts += 1;
            if posts > 100_000 {
                return Err("at the end: posts without end".into());
            }
        }
        for (lane, epoch) in core::mem::take(&mut fences) {
            core.handle_lane(now, lane, epoch, LET_GO);
        }
        while let Some(action) = core.poll_lane() {
            if let LaneAction::Fence { lane, epoch, .. } = action {
                core.handle_lane(now, lane, epoch, LET_GO);
            }
        }
        while core.poll_message(now).is_some() {}
        take_events(&mut core, &mut told);
        core.audit()
            .map_err(|violation| format!("at the end: {violation}"))?;
    }
    for (tag, count) in &told {
        if *count != 1 {
            let rows: Vec<_> = core
                .requests
                .iter()
                .map(|(_, row)| {
                    (
                        row.held,
                        row.lost,
                        row.cursor == { row.length },
                        row.waiting.len(),
                        row.ending.is_some(),
                    )
                })
                .collect();
            let table = if core.attempts.capacity() < 512 {
                "small"
            } else {
                "large"
            };
            let several = if rails > 1 { "several rails" } else { "a rail" };
            return Err(format!(
                "24 s after the peer fell silent: a request reported {count} times, {table} table, {several}, {:?}; rows (held, lost, cut, waiting, ending): {rows:?} [tag {tag}]",
                core.config.policy
            ));
        }
    }
    Ok(())
}

/// Runs so many seeds, and names the first one that fails.
fn all_hold(lies: Lies, seeds: u64) {
    for seed in 0..seeds {
        let ran = catch_unwind(AssertUnwindSafe(|| run_seed(seed, lies)));
        let result = ran.unwrap_or_else(|_| Err("a panic, whose text is above".into()));
        if let Err(text) = result {
            panic!("{lies:?}, seed {seed}: {text}");
        }
    }
}

#[test]
fn true_facts_may_come_in_any_order() {
    all_hold(Lies::None, 5_000);
}

#[test]
fn false_facts_break_nothing() {
    all_hold(Lies::Facts, 1_000);
}

#[test]
fn anything_may_be_said_while_a_post_is_out() {
    all_hold(Lies::Order, 1_000);
}
