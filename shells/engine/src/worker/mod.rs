//! One worker: a thread that drives one `Orchestrator` by its contract, or lets those who wait drive it.

mod command;
mod drive;
mod ending;
mod events;
mod intake;
mod lost;
mod pause;
mod round;
mod serve;
mod sleeper;
mod surroundings;
mod wait_policy;

use std::io;
use std::sync::{Arc, Mutex};

use polyrail_control::plane::Plane;
use polyrail_core::orchestrator::rows::{Attempt, BatchRow, Lane, Peer, PlanRow, RequestRow};
use polyrail_core::orchestrator::{Orchestrator, Tables};
use polyrail_core::rail::documented::Shares;
use polyrail_core::rail::policies::{Policies, PolicyTables, TransportConfig};
use polyrail_core::rail::select::Policy;
use polyrail_core::table::Row;
use polyrail_core::time::Duration;
use polyrail_core::work::PostBatch;
use polyrail_record::{Capacities, Recorded};
use polyrail_transport::clock::Clock;
use polyrail_transport::complaint::Lines;
use polyrail_transport::fault::Faults;
use polyrail_transport::{Endpoint, Polled};

use self::ending::Ending;
use self::intake::Intake;
use self::lost::LostPeers;
use self::pause::CatchUp;
use self::sleeper::Sleeper;
use self::surroundings::{Steering, Surroundings};
use self::wait_policy::WaitPolicy;
use crate::afterwards::Afterwards;
use crate::config::{CoreConfig, LimitsConfig, SendQueueConfig};
use crate::delivery::Ticket;
use crate::fabric::{DEVICES_MAX, Fabric};
use crate::files::AttachedDisks;
use crate::hints::Hints;
use crate::peers::Peers;
use crate::post::{self, Post, Pulse};
use crate::staging::{EngineCell, Handover};
use crate::stats::Failovers;
use crate::table_memory::{TableMemory, bytes_of};
use crate::thread::Thread;
use crate::transports::Catalog;
use crate::visible::Unseen;
use crate::wakers::WakerThread;

/// Attempts of a worker with few requests: slices in flight, waiting to be sent again, or not yet proved to have ended. A lane
/// holds 256 works, so that four full ones fit, or sixteen that are filled to a quarter. In bytes that is 64 MiB, in slices of
/// 64 KiB: what eight rails of 400 Gbit/s carry in 160 µs.
const ATTEMPTS_LEAST: usize = 1_024;

/// The tables of a worker, and those it shares, as a recording has to know them.
pub(crate) fn capacities(limits: &LimitsConfig) -> Capacities {
    let rows = post::rows(limits.requests) as u32;
    Capacities {
        rails: limits.rails as u32,
        devices: DEVICES_MAX as u32,
        peers: limits.peers as u32,
        plans: limits.pairs as u32,
        requests: rows,
        // Many short requests are a slice each.
        attempts: limits.requests.max(ATTEMPTS_LEAST) as u32,
        batches: rows,
    }
}

/// What a worker needs to start.
pub(crate) struct Start {
    pub(crate) config: CoreConfig,
    pub(crate) limits: LimitsConfig,
    /// What transports have of their own, by number.
    pub(crate) settings: Arc<[TransportConfig]>,
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) endpoint: Box<dyn Endpoint>,
    pub(crate) plane: Plane,
    pub(crate) clock: Clock,
    /// For their names, in logs.
    pub(crate) peers: Arc<Mutex<Peers>>,
    pub(crate) transports: Arc<Catalog>,
    pub(crate) failovers: Arc<Failovers>,
    /// What the program has plugged in, for tests.
    pub(crate) faults: Option<Arc<Faults>>,
    /// What an agent says, if one is asked.
    pub(crate) hints: Option<Arc<Hints>>,
    /// The engine itself, once it is there.
    pub(crate) engine: Arc<EngineCell>,
}

/// The post boxes of all workers.
pub(crate) fn posts(
    count: usize,
    requests: usize,
    config: &SendQueueConfig,
    clock: Clock,
    waker_thread: &Arc<WakerThread>,
) -> io::Result<Vec<Arc<Post>>> {
    (0..count)
        .map(|number| {
            let pulse = Pulse::new(Some(number as u16), clock);
            Post::new(requests, config, pulse, waker_thread.clone()).map(Arc::new)
        })
        .collect()
}

/// Starts the thread of the worker behind `posts[config.worker]`.
pub(crate) fn start(start: Start, posts: &[Arc<Post>]) -> io::Result<Thread> {
    let number = usize::from(start.config.worker);
    let post = posts[number].clone();
    // A descriptor of its own: the thread tells the kernel about it while others use the endpoint.
    let moved = start.endpoint.fd().try_clone_to_owned()?;
    let sleeper = Sleeper::new(&post.alarm.wake, moved)?;
    let memory = TableMemory::new(start.table_bytes())?;
    let all = posts.to_vec();
    let name = format!("polyrail-work-{number}");
    Thread::start(name, move || work(start, memory, &post, &all, sleeper))
}

/// The tables of a worker, and what it does with them: whoever has its drive lock drives it.
pub(crate) struct Loop<'a> {
    core: Recorded<'a>,
    endpoint: Box<dyn Endpoint>,
    post: &'a Post,
    around: Surroundings<'a>,
    hints: Steering,
    polled: Polled,
    postings: PostBatch,
    intake: Intake,
    lost: LostPeers,
    wait_policy: WaitPolicy,
    catch_up: CatchUp,
    disks: AttachedDisks,
    /// What goes on through slots.
    handover: Handover,
    ending: Ending,
    /// Notifications that wait for what they tell of to be seen.
    unseen: Vec<Ticket>,
    /// Batches that wait for what they have written to be seen, so long each.
    unseen_batches: Unseen,
    fence_timeout: Duration,
    /// What the program is to be told once the drive lock is free.
    afterwards: Afterwards,
}

/// Whether some transport's policy shares requests out when they are submitted.
pub(crate) fn shares_out(cores: &[CoreConfig], settings: &[TransportConfig]) -> bool {
    let usual = cores.iter().map(|core| &core.policy.usual);
    let mut all = settings.iter().chain(usual);
    all.any(|own| own.policy == Policy::Documented)
}

impl Start {
    /// How many rows it has of what requests are shared out by.
    fn shares_max(&self) -> usize {
        match shares_out(&[self.config], &self.settings) {
            true => capacities(&self.limits).requests as usize,
            false => 0,
        }
    }

    /// What the tables take.
    fn table_bytes(&self) -> usize {
        let most = capacities(&self.limits);
        bytes_of::<PlanRow>(most.plans as usize)
            + bytes_of::<Peer>(most.peers as usize)
            + bytes_of::<Lane>(most.rails as usize)
            + bytes_of::<Row<RequestRow>>(most.requests as usize)
            + bytes_of::<Shares>(self.shares_max())
            + bytes_of::<Attempt>(most.attempts as usize)
            + bytes_of::<Row<BatchRow>>(most.batches as usize)
    }
}

/// The thread: the tables, and the loop over them.
fn work(start: Start, mut memory: TableMemory, post: &Post, posts: &[Arc<Post>], sleeper: Sleeper) {
    let most = capacities(&start.limits);
    let mut plans = memory.rows(most.plans as usize, || PlanRow::EMPTY);
    let mut peer_rows = memory.rows(most.peers as usize, || Peer::EMPTY);
    let mut lanes = memory.rows(most.rails as usize, || Lane::EMPTY);
    let mut requests = memory.rows::<Row<RequestRow>>(most.requests as usize, || Row::EMPTY);
    let mut shares = memory.rows(start.shares_max(), || Shares::NONE);
    let mut attempts = memory.rows(most.attempts as usize, || Attempt::EMPTY);
    let mut batches = memory.rows::<Row<BatchRow>>(most.batches as usize, || Row::EMPTY);
    let tables = Tables {
        plans: &mut plans,
        peers: &mut peer_rows,
        lanes: &mut lanes,
        requests: &mut requests,
        attempts: &mut attempts,
        batches: &mut batches,
    };
    let fabric = &start.fabric;
    let shared = fabric.shared();
    let rows = PolicyTables {
        rails: fabric.given(),
        shares: &mut shares,
    };
    let policies = |policy| Policies::new(policy, &shared, rows).with_transports(&start.settings);
    let core = Orchestrator::new(start.config.map_policy(policies), &shared, tables);
    let peer_silence = start.config.peer_silence;
    let fence_timeout = start.config.fence_timeout;
    let failover_attempts_max = start.config.failover_attempts_max;
    let journal = fabric.journal().cloned();
    let core = Recorded::new(core, start.config.worker, journal);
    let Start {
        peers,
        transports,
        failovers,
        endpoint,
        plane,
        clock,
        faults,
        hints,
        engine,
        ..
    } = start;
    let handover = Handover::new(engine, posts[usize::from(start.config.worker)].clone());
    let mut driven = Loop {
        core,
        endpoint,
        post,
        around: Surroundings {
            clock,
            fabric,
            plane,
            posts,
            peers,
            transports,
            failovers,
            failover_attempts_max,
            faults,
            lines: Lines::default(),
        },
        hints: Steering::new(hints),
        // Lanes are bounded, so that this is enough for four full ones; with more it grows once.
        polled: Polled {
            completions: Vec::with_capacity(4 * usize::from(polyrail_tcp::WORKS_MAX)),
            lanes: Vec::new(),
            visible: Vec::new(),
            fences: Vec::new(),
        },
        postings: PostBatch::default(),
        intake: Intake::default(),
        lost: LostPeers::default(),
        wait_policy: WaitPolicy::new(clock.now()),
        catch_up: CatchUp::default(),
        disks: AttachedDisks::new(peer_silence),
        handover,
        ending: Ending::default(),
        unseen: Vec::new(),
        unseen_batches: Unseen::default(),
        fence_timeout,
        afterwards: Afterwards::default(),
    };
    let published = post.drive_lock.publish(&mut driven);
    serve::serve(post, sleeper, clock);
    // Nobody drives it from here on, and what it borrows can go.
    drop(published);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_as_long_as_there_are_requests_but_for_attempts_of_which_there_are_some() {
        // (requests, rows of them and of batches, attempts)
        let cases = [
            (16_384, 16_448, 16_384),
            (64, 128, 1_024),
            (2_000, 2_064, 2_000),
            (32_704, 32_768, 32_704),
        ];
        for (requests, rows, attempts) in cases {
            let limits = LimitsConfig {
                requests,
                ..LimitsConfig::default()
            };
            let most = capacities(&limits);
            let seen = (most.requests, most.batches, most.attempts);
            assert_eq!(seen, (rows, rows, attempts), "{requests}");
        }
    }
}
