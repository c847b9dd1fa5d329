//! Whatever is lost, doubled, overtaken or fails: nothing wrong happens, and everything ends.

use super::*;
use quickcheck::{Arbitrary, Gen, quickcheck};

/// Long enough for everything to end, silence included.
const END: Instant = Instant::from_nanos(60_000_000_000);
/// How many requests there are at most, and how many chunks of each, less than one. Under Miri every step takes
/// thousands of times as long, and what it looks for is in each of them.
const REQUESTS_MAX: u64 = if cfg!(miri) { 2 } else { 5 };
const CHUNKS_MAX: u64 = if cfg!(miri) { 3 } else { 12 };

#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    slots: [u32; 2],
    tickets: usize,
    faults: Faults,
    /// Host, route, chunks, odd bytes, cancelled at.
    requests: Vec<(usize, Route, u64, u64, Option<u64>)>,
}

impl Arbitrary for Plan {
    fn arbitrary(g: &mut Gen) -> Self {
        let of = |g: &mut Gen, below: u64| u64::arbitrary(g) % below;
        let requests = (0..1 + of(g, REQUESTS_MAX)).map(|_| {
            let both = of(g, 3);
            let route = Route {
                op: if bool::arbitrary(g) {
                    Op::Write
                } else {
                    Op::Read
                },
                local: both != 1,
                remote: both != 2,
            };
            let cancelled = (of(g, 4) == 0).then(|| of(g, 2_000));
            (
                of(g, 2) as usize,
                route,
                of(g, CHUNKS_MAX),
                1 + of(g, 100),
                cancelled,
            )
        });
        let requests = requests.collect();
        Self {
            seed: u64::arbitrary(g),
            slots: [1 + of(g, 4) as u32, 1 + of(g, 4) as u32],
            tickets: 1 + of(g, 6) as usize,
            faults: Faults {
                lost: of(g, 100) as u8,
                doubled: of(g, 100) as u8,
                delay_max_us: 1 << of(g, 15),
                failed: of(g, 60) as u8,
                unfenced: 0,
            },
            requests,
        }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Self>> {
        let plan = self.clone();
        let fewer = (0..plan.requests.len()).map(move |left_out| {
            let mut plan = plan.clone();
            plan.requests.remove(left_out);
            plan
        });
        Box::new(fewer)
    }
}

/// Runs it to its end and gives the world with the requests that were made.
fn carry_out(plan: &Plan, attempts_max: u8) -> (World, Vec<(usize, StagedId, StagedRequest)>) {
    let config = StagedConfig {
        stage_attempts_max: attempts_max,
        ..StagedConfig::DEFAULT
    };
    let hosts = [0, 1].map(|_| staged(1, plan.tickets, 16, plan.slots, config));
    let mut world = World::new(hosts, plan.seed);
    world.faults = plan.faults;
    let mut made = Vec::new();
    for (number, (host, route, chunks, odd, _)) in (0_u64..).zip(&plan.requests) {
        let length = chunks * u64::from(SLOT_BYTES) + odd;
        let slots = plan.slots[usize::from(route.op == Op::Read)];
        let request = request(*route, 0, number << 20, length, slots);
        let id = world.hosts[*host].submit(world.now, &request).unwrap();
        world.owners.push((*host, id));
        made.push((*host, id, request));
    }
    let mut cancels: Vec<_> = (made.iter().zip(&plan.requests))
        .filter_map(|((host, id, _), plan)| Some((plan.4?, *host, *id)))
        .collect();
    cancels.sort();
    for (at_us, host, id) in cancels {
        let at = Instant::ZERO + Duration::from_micros(at_us);
        world.run(at);
        world.now = world.now.max(at);
        world.hosts[host].cancel(at, id);
    }
    world.run(END);
    (world, made)
}

quickcheck! {
    fn two_hosts_never_wait_for_each_other_and_lose_nothing(plan: Plan) -> bool {
        let (world, made) = carry_out(&plan, u8::MAX);
        world.assert_idle();
        made.iter().zip(&plan.requests).all(|((host, id, request), (.., cancelled))| {
            let report = world.reports[*host][id];
            match report.status {
                Status::Completed => {
                    report.delivered_bytes == request.length && world.is_right(*host, request)
                }
                Status::Cancelled => {
                    cancelled.is_some() && report.delivered_bytes <= request.length
                }
                _ => false,
            }
        })
    }

    /// Attempts end without proof, and move their bytes when nobody expects it any more.
    fn what_cannot_be_fenced_never_spoils_another_chunk(plan: Plan, unfenced: u8) -> bool {
        let mut plan = plan;
        plan.faults.unfenced = unfenced / 8;
        let (world, made) = carry_out(&plan, 4);
        world.assert_idle();
        made.iter().all(|(host, id, request)| {
            let report = world.reports[*host][id];
            let open = report.local == Local::Held || report.remote == Remote::Unknown;
            open == (report.status == Status::Indeterminate)
                && (report.status != Status::Completed
                    || report.delivered_bytes == request.length && world.is_right(*host, request))
        })
    }

    /// Whatever a peer says, what it does not have stays with whoever has it.
    fn a_peer_that_says_anything_at_all_harms_only_itself(words: Vec<(u8, u8, u32, u32)>) -> bool {
        let mut staged = staged(2, 3, 8, [2, 2], StagedConfig::DEFAULT);
        let id = staged.submit(ms(0), &request(WRITE, 0, 0, 150, 2)).unwrap();
        for (kind, index, generation, number) in words {
            let ticket = Ticket { index: u32::from(index % 4), generation: generation % 4 };
            let (number, attempt) = (number % 5, generation % 3);
            let place = Place { segment: USER, offset: DESTINATION };
            let end = [CopyEnd::Done, CopyEnd::Failed(Cause::Reset), CopyEnd::Unfenced(Cause::Reset)]
                [number as usize % 3];
            let message = match kind % 9 {
                0 => StageMessage::Reserve { ticket, pool: PoolId(number as u8) },
                1 => StageMessage::Go { ticket, attempt, place, length: number * 40 },
                2 => StageMessage::Free { ticket, fenced: number % 2 == 0 },
                3 => StageMessage::Waiting { ticket },
                4 => StageMessage::Reserved { ticket, slot: number },
                5 => StageMessage::Going { ticket, attempt },
                6 => StageMessage::Went { ticket, attempt, end },
                7 => StageMessage::Freed { ticket },
                _ => StageMessage::Lost { ticket },
            };
            let peer = PeerId(u16::from(kind / 9 % 3));
            let _ = staged.handle_message(ms(1), peer, &message);
            staged.audit().unwrap();
            if kind > 200 {
                while staged.poll_message(ms(1)).is_some() {}
                while let Some(stage) = staged.poll_stage() {
                    staged.handle_stage(ms(1), stage.id, &good()).unwrap();
                    staged.audit().unwrap();
                }
            }
        }
        // And when it is gone, nothing is left of it.
        while let Some(stage) = staged.poll_stage() {
            staged.handle_stage(ms(1), stage.id, &good()).unwrap();
        }
        staged.handle_peer_gone(ms(2), PeerId(0), Some(Proof::ProcessGone));
        staged.handle_peer_gone(ms(2), PeerId(1), Some(Proof::ProcessGone));
        staged.audit().unwrap();
        matches!(staged.poll_event(), Some(Event::Ended { request, .. }) if request == id) && [IN, OUT].iter().all(|pool| staged.pool(*pool).unwrap().used == 0)
    }
}
