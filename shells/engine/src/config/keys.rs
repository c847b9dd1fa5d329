//! All keys: where each is, what it may be, what it steers and who named it. Parsing, checking and
//! `docs/config.md` come from here.

use std::net::SocketAddr;
use std::time::Duration;

use polyrail_core::plan::PLAN_RAILS_MAX;
use polyrail_core::rail::select::Policy;
use polyrail_core::topology::RailMap;

use super::field::{Field, Span};
use super::{Config, DomainConfig, HealthMode, IsolationMode, Payload, TransportConfig};
use crate::post::REQUESTS_MAX;
use crate::workers::WORKERS_MAX;

/// One key of a `T`.
pub(super) struct Key<T: 'static> {
    /// Its path below where a `T` is.
    pub(super) path: &'static str,
    pub(super) field: Field<T>,
    /// What it steers.
    pub(super) meaning: &'static str,
    /// The title of what it comes from, as `docs/sources.md` has it.
    pub(super) source: &'static str,
}

const OURS: &str = "polyrail";
const PAPER: &str = "TENT (arXiv:2604.00368v1)";
const FAILOVER: &str = "TENT failover document";
pub(super) const MPIB: &str = "MPIB path isolation document";
const SPRAYING: &str = "TENT slice-spraying document";
pub(super) const MORI: &str = "MORI-IO SQ flow control rework";

/// The policies that can be configured. Others are the simulator's.
const POLICIES: [Policy; 3] = [Policy::Spray, Policy::RoundRobin, Policy::Documented];
/// Words for `log_level`, in the order of [`log::Level::iter`].
const LOG_LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];
const POLICY_NAMES: [&str; 3] = [POLICIES[0].name(), POLICIES[1].name(), POLICIES[2].name()];
const RAIL_MAPS: [RailMap; 3] = [RailMap::Paired, RailMap::All, RailMap::Nearest];
const ISOLATION_MODES: [IsolationMode; 3] = [
    IsolationMode::Off,
    IsolationMode::Vanilla,
    IsolationMode::Advanced,
];
const HEALTH_MODES: [HealthMode; 2] = [HealthMode::Decay, HealthMode::Reset];

/// The longest time in milliseconds that something can be waited for.
const HOUR_MS: u64 = 3_600_000;

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Keys of the engine.
pub(super) const ENGINE: &[Key<Config>] = &[
    Key {
        path: "name",
        field: Field::Word {
            get: |config| config.name.clone(),
            set: |config, name| config.name = name,
        },
        meaning: "The engine's name, for peers' logs and errors.",
        source: OURS,
    },
    Key {
        path: "listen",
        field: Field::Address {
            get: |config| config.listen,
            set: |config, listen| config.listen = listen,
        },
        meaning: "Where to listen. Initiators need none; `serve` takes `127.0.0.1:0`.",
        source: OURS,
    },
    Key {
        path: "rails",
        field: Field::Addresses {
            most: PLAN_RAILS_MAX,
            get: |config| config.rails.clone(),
            set: |config, rails| config.rails = rails,
        },
        meaning: "Addresses of this host that rails use; a target listens there too. One has to be there when the \
                  engine starts; others may come later, and any may go and come back. None: one rail for each \
                  address of a peer.",
        source: OURS,
    },
    Key {
        path: "rails_within",
        field: Field::Prefixes {
            get: |config| config.rails_within.clone(),
            set: |config, prefixes| config.rails_within = prefixes,
        },
        meaning: "All addresses of this host that begin so are rails too, behind those of `rails`, up to 16 in all: those \
                  that are there when the engine starts, in order, and those that come later, which peers hear of. \
                  `listen` is then at 0.0.0.0 or [::]. Not with `path/mode`. `rail_map` `nearest` or `all` suit it best: \
                  `paired` waits until both ends have as many.",
        source: OURS,
    },
    Key {
        path: "rail_map",
        field: Field::Choice {
            words: &["paired", "all", "nearest"],
            get: |config| RAIL_MAPS.iter().position(|map| *map == config.rail_map),
            set: |config, choice| config.rail_map = RAIL_MAPS[choice],
        },
        meaning: "Joins the i-th local with the i-th remote address (`paired`), every one with every one (`all`), or \
                  each with the one that faces it (`nearest`): on a device of the same name, else on the same NUMA \
                  node, else on the one with the fewest rails; the lists may then differ in length. With `paired` and \
                  `nearest` a local address has a spare besides, to the remote one that faces it second best, which it \
                  uses while its own is out; more than 16 rails to a peer there are not, and spares are left out first.",
        source: OURS,
    },
    Key {
        path: "policy",
        field: Field::Choice {
            words: &POLICY_NAMES,
            get: |config| POLICIES.iter().position(|policy| *policy == config.policy),
            set: |config, choice| config.policy = POLICIES[choice],
        },
        meaning: "How rails are chosen for slices. Where a transport has `enable_smart_scheduling` false, its own are \
                  chosen by `round-robin`, unless a later source says this key.",
        source: OURS,
    },
    Key {
        path: "slice_bytes",
        field: Field::Whole {
            unit: "bytes",
            least: 64 << 10,
            most: 256 << 10,
            get: |config| config.slice_bytes.into(),
            set: |config, bytes| config.slice_bytes = bytes as u32,
        },
        meaning: "Bytes of the usual slice, which goes over one rail. Over `tcp`, `shm` and to disks slices are longer, where \
                  those pass too fast to be worth their CPU time.",
        source: PAPER,
    },
    Key {
        path: "workers",
        field: Field::Whole {
            unit: "threads",
            least: 0,
            most: WORKERS_MAX as u64,
            get: |config| config.workers as u64,
            set: |config, workers| config.workers = workers as usize,
        },
        meaning: "Threads that move bytes. 0: one for every two cores. `shm` cuts large copies over as many, and with 0 over two at \
                  least, if they have a processor each.",
        source: OURS,
    },
    Key {
        path: "at_once_bytes",
        field: Field::Whole {
            unit: "bytes",
            least: 0,
            most: 1 << 30,
            get: |config| config.at_once_bytes,
            set: |config, bytes| config.at_once_bytes = bytes,
        },
        meaning: "A batch of so many bytes at most is moved within `submit`, by the thread that calls it, if that can copy it \
                  by itself (transport `shm`) and nothing else is in flight with the \
                  worker. Each request counts for 4 KiB at least. 0: none is.",
        source: OURS,
    },
    Key {
        path: "check_overlap",
        field: Field::Flag {
            get: |config| config.check_overlap,
            set: |config, check| config.check_overlap = check,
        },
        meaning: "Refuses a batch with requests that write to the same bytes of a segment, or to bytes that others on their way \
                  write to, and names both. To find mistakes: each range that is written costs a place in one table then.",
        source: OURS,
    },
    Key {
        path: "insecure",
        field: Field::Flag {
            get: |config| config.insecure,
            set: |config, insecure| config.insecure = insecure,
        },
        meaning: "Lets a target listen beyond loopback although nobody is asked for a key, or, where `security/key_file` names \
                  one, although lanes are in clear. Not needed where `security/payload` is `encrypt`.",
        source: OURS,
    },
    Key {
        path: "metrics",
        field: Field::Address {
            get: |config| config.metrics,
            set: |config, metrics| config.metrics = metrics,
        },
        meaning: "Where the engine answers HTTP about itself: `/metrics` in OpenMetrics, `/stats` in JSON, `/live`, `/ready`. \
                  Port 0 lets the kernel choose one, and the log says which (`info`). If another process has the port, the \
                  engine runs without and warns. Beyond loopback it needs `insecure`.",
        source: OURS,
    },
    Key {
        path: "log_level",
        field: Field::Choice {
            words: &LOG_LEVELS,
            get: |config| config.log_level.map(|level| level as usize - 1),
            set: |config, choice| config.log_level = log::Level::iter().nth(choice),
        },
        meaning: "What the program `polyrail` writes to its log, unless `RUST_LOG` says it; without either, `warn`, and `error` \
                  where a command is for people. A program with this engine in it has a logger of its own.",
        source: OURS,
    },
    Key {
        path: "max_failover_attempts",
        field: Field::Whole {
            unit: "switches",
            least: 0,
            most: u8::MAX as u64,
            get: |config| config.max_failover_attempts.into(),
            set: |config, attempts| config.max_failover_attempts = attempts as u8,
        },
        meaning: "How often a request may move to another transport; 0: never.",
        source: FAILOVER,
    },
    Key {
        path: "health/mode",
        field: Field::Choice {
            words: &["decay", "reset"],
            get: |config| {
                HEALTH_MODES
                    .iter()
                    .position(|mode| *mode == config.health.mode)
            },
            set: |config, choice| config.health.mode = HEALTH_MODES[choice],
        },
        meaning: "How a rail that failed comes back. `decay`: it pauses when it falls silent or a look after an error is \
                  bad, probes of scratch memory re-admit it, and outages are forgotten slowly. `reset`: it pauses after several errors \
                  (`rail_error_threshold` of its transport, and the keys beside it), and a success or the end of \
                  its cooldown re-admits it and forgets them all.",
        source: OURS,
    },
    Key {
        path: "health/progress_floor_ms",
        field: Field::Whole {
            unit: "ms",
            least: 1,
            most: HOUR_MS,
            get: |config| millis(config.health.progress_floor),
            set: |config, ms| config.health.progress_floor = Duration::from_millis(ms),
        },
        meaning: "Least time without a completion before a lane is suspected. Less notices silence sooner, and \
                  takes a busy host's delays for outages more often.",
        source: OURS,
    },
    Key {
        path: "health/open_timeout_ms",
        field: Field::Whole {
            unit: "ms",
            least: 1,
            most: HOUR_MS,
            get: |config| millis(config.health.open_timeout),
            set: |config, ms| config.health.open_timeout = Duration::from_millis(ms),
        },
        meaning: "How long a lane may take to open.",
        source: OURS,
    },
    Key {
        path: "health/heartbeat_ms",
        field: Field::Whole {
            unit: "ms",
            least: 10,
            most: HOUR_MS,
            get: |config| millis(config.health.heartbeat),
            set: |config, ms| config.health.heartbeat = Duration::from_millis(ms),
        },
        meaning: "How often a peer is asked for a sign of life; half as often while nothing is in flight with it. A \
                  connection on which nothing comes within five of them counts as dead.",
        source: OURS,
    },
    Key {
        path: "control/sessions_max",
        field: Field::Whole {
            unit: "",
            least: 1,
            most: 1 << 20,
            get: |config| config.control.sessions_max as u64,
            set: |config, count| config.control.sessions_max = count as usize,
        },
        meaning: "Sessions that peers may have with an engine that listens; one address may have half of them. Those that \
                  have said nothing yet, then those without a connection, make room.",
        source: OURS,
    },
    Key {
        path: "control/connections_max",
        field: Field::Whole {
            unit: "",
            least: 1,
            most: 1 << 20,
            get: |config| config.control.connections_max as u64,
            set: |config, count| config.control.connections_max = count as usize,
        },
        meaning: "Control connections that peers may have with an engine that listens: one for each rail of each peer.",
        source: OURS,
    },
    Key {
        path: "control/handshakes_max",
        field: Field::Whole {
            unit: "",
            least: 2,
            most: 1 << 20,
            get: |config| config.control.handshakes_max as u64,
            set: |config, count| config.control.handshakes_max = count as usize,
        },
        meaning: "Connections that may wait for a handshake, but no more than a quarter of the process's descriptors; one \
                  address may have half of them, and the oldest make room.",
        source: OURS,
    },
    Key {
        path: "health/peer_silence_ms",
        field: Field::Whole {
            unit: "ms",
            least: 20,
            most: HOUR_MS,
            get: |config| millis(config.health.peer_silence),
            set: |config, ms| config.health.peer_silence = Duration::from_millis(ms),
        },
        meaning: "A peer that nothing is heard from for so long is silent; later while nothing goes to it, by half of \
                  `health/fence_timeout_ms` at most. At least twice `health/heartbeat_ms`.",
        source: OURS,
    },
    Key {
        path: "health/fence_timeout_ms",
        field: Field::Whole {
            unit: "ms",
            least: 1,
            most: HOUR_MS,
            get: |config| millis(config.health.fence_timeout),
            set: |config, ms| config.health.fence_timeout = Duration::from_millis(ms),
        },
        meaning: "How long proof is waited for before a report says `Indeterminate`.",
        source: OURS,
    },
    Key {
        path: "health/cancel_grace_ms",
        field: Field::Whole {
            unit: "ms",
            least: 0,
            most: HOUR_MS,
            get: |config| millis(config.health.cancel_grace),
            set: |config, ms| config.health.cancel_grace = Duration::from_millis(ms),
        },
        meaning: "How long posted bytes of a cancelled request may go on before their lanes are fenced.",
        source: OURS,
    },
    Key {
        path: "spray/nominal_bandwidth_gbps",
        field: Field::Number {
            unit: "Gbit/s",
            range: Span::Above(0.0, 1e6),
            get: |config| config.spray.nominal_bandwidth_gbps,
            set: |config, gbps| config.spray.nominal_bandwidth_gbps = gbps,
        },
        meaning: "What a rail is assumed to carry before its first completions, which correct it. Left at its \
                  default, the local device's own word counts instead, if it is hardware that tells its speed. For `documented`, the bandwidth that a device reports.",
        source: OURS,
    },
    Key {
        path: "spray/base_delay_us",
        field: Field::Whole {
            unit: "µs",
            least: 0,
            most: 10_000_000,
            get: |config| u64::try_from(config.spray.base_delay.as_micros()).unwrap_or(u64::MAX),
            set: |config, us| config.spray.base_delay = Duration::from_micros(us),
        },
        meaning: "The delay that a rail is assumed to have before its first completions.",
        source: OURS,
    },
    Key {
        path: "spray/priority_promotion_ms",
        field: Field::Whole {
            unit: "ms",
            least: 1,
            most: HOUR_MS,
            get: |config| millis(config.spray.priority_promotion),
            set: |config, ms| config.spray.priority_promotion = Duration::from_millis(ms),
        },
        meaning: "A request that has waited so long behind others of higher priority moves up by one step, for a turn \
                  of 16 slices, so nothing starves.",
        source: OURS,
    },
    Key {
        path: "spray/idle_look_us",
        field: Field::Whole {
            unit: "µs",
            least: 1_250,
            most: 20_000,
            get: |config| u64::try_from(config.spray.idle_look.as_micros()).unwrap_or(u64::MAX),
            set: |config, us| config.spray.idle_look = Duration::from_micros(us),
        },
        meaning: "A rail that has stood idle for so long while there was work is sent scratch bytes, to see how fast it is now. \
                  Of `spray` only.",
        source: OURS,
    },
    Key {
        path: "spray/merge_requests",
        field: Field::Flag {
            get: |config| config.spray.merge_requests,
            set: |config, merge| config.spray.merge_requests = merge,
        },
        meaning: "Requests that are still in line, lie together on both sides, make up to one slice, or a longer one \
                  where lanes take few works, and are alike in direction, priority and deadline go as one; each is \
                  reported by itself. Of all policies but `documented`.",
        source: OURS,
    },
    Key {
        path: "spray/diffusion_weight",
        field: Field::Number {
            unit: "",
            range: Span::Closed(0.0, 1.0),
            get: |config| config.spray.diffusion_weight,
            set: |config, weight| config.spray.diffusion_weight = weight,
        },
        meaning: "What bytes count that other engines of this user on this host have in flight on a device, against \
                  our own. 0: nothing, and ours are not told either; the others need a weight too, or nothing is \
                  known of them. Of `spray` only.",
        source: PAPER,
    },
    Key {
        path: "spray/diffusion_stale_ms",
        field: Field::Whole {
            unit: "ms",
            least: 1,
            most: HOUR_MS,
            get: |config| millis(config.spray.diffusion_stale),
            set: |config, ms| config.spray.diffusion_stale = Duration::from_millis(ms),
        },
        meaning: "A process that has not been heard of for so long counts nothing. Those with bytes in flight are \
                  heard of four times in this, so all should agree.",
        source: OURS,
    },
    Key {
        path: "send_queue/admission",
        field: Field::Flag {
            get: |config| config.send_queue.admission,
            set: |config, waits| config.send_queue.admission = waits,
        },
        meaning: "A submission that its worker has no room for waits in line. Else it is refused at once.",
        source: MORI,
    },
    Key {
        path: "send_queue/admission_timeout_us",
        field: Field::Whole {
            unit: "µs",
            least: 1,
            most: HOUR_MS * 1_000,
            get: |config| {
                u64::try_from(config.send_queue.admission_timeout.as_micros()).unwrap_or(u64::MAX)
            },
            set: |config, us| config.send_queue.admission_timeout = Duration::from_micros(us),
        },
        meaning: "How long it waits for room, the batch as a whole.",
        source: MORI,
    },
    Key {
        path: "send_queue/admission_resume_watermark_works",
        field: Field::Whole {
            unit: "requests",
            least: 0,
            most: 16_384,
            get: |config| u64::from(config.send_queue.admission_resume_watermark_works),
            set: |config, works| {
                config.send_queue.admission_resume_watermark_works =
                    u16::try_from(works).unwrap_or(u16::MAX);
            },
        },
        meaning: "Who has once not fit goes on when so much room is free, so that a full worker drains before many are \
                  woken for one place each. It is of 16,384 requests: where `limits/requests` is another number, as large \
                  a part of that.",
        source: MORI,
    },
    Key {
        path: "send_queue/signal_interval_works",
        field: Field::Whole {
            unit: "works",
            least: 0,
            most: 65_535,
            get: |config| u64::from(config.send_queue.signal_interval_works),
            set: |config, works| {
                config.send_queue.signal_interval_works = u16::try_from(works).unwrap_or(u16::MAX);
            },
        },
        meaning: "So many works at most go without a completion of their own, where one completion covers others. 0: \
                  as many as room allows. The lanes of `tcp` complete each work by itself.",
        source: MORI,
    },
    Key {
        path: "staging/slots",
        field: Field::Whole {
            unit: "slots",
            least: 1,
            most: 1_024,
            get: |config| config.staging.slots.into(),
            set: |config, slots| config.staging.slots = slots as u32,
        },
        meaning: "Slots for what comes in, and as many for what goes out, that chunks of staged requests pass \
                  through: those between a file and another host. All peers share them: one has half of them at \
                  most, for its chunks and for ours to it each, and 32 chunks on their way. Of a single slot that one \
                  is all.",
        source: OURS,
    },
    Key {
        path: "staging/slot_bytes",
        field: Field::Whole {
            unit: "bytes",
            least: 4_096,
            most: 64 << 20,
            get: |config| config.staging.slot_bytes.into(),
            set: |config, bytes| config.staging.slot_bytes = bytes as u32,
        },
        meaning: "Bytes of a slot. Chunks are as long as the smaller slots of the two ends. Only of multiples of 4096 do \
                  whole chunks of a file pass the page cache by.",
        source: OURS,
    },
    Key {
        path: "recording/ring_mb",
        field: Field::Whole {
            unit: "MiB",
            least: 0,
            most: 4_096,
            get: |config| config.recording.ring_mb.into(),
            set: |config, mb| config.recording.ring_mb = mb as u32,
        },
        meaning: "So much of the last calls on the workers' cores is kept in memory, and written to a file when a rail is paused for \
                  a fault, a request ends as `Indeterminate` or `PeerLost`, or a peer is lost; by these once a minute at most. \
                  [operations.md](operations.md) has more. 0: nothing is kept.",
        source: OURS,
    },
    Key {
        path: "recording/folder",
        field: Field::Word {
            get: |config| config.recording.folder.clone(),
            set: |config, folder| config.recording.folder = folder,
        },
        meaning: "The folder of those files, made when the first one is written. The last 10 of an engine's name are kept.",
        source: OURS,
    },
    Key {
        path: "limits/peers",
        field: Field::Whole {
            unit: "peers",
            least: 1,
            most: 32_768,
            get: |config| config.limits.peers as u64,
            set: |config, peers| config.limits.peers = peers as usize,
        },
        meaning: "Peers whose segments are open here at a time; disks and GPUs of this host count as such. Each \
                  takes 1.2 KiB of each worker.",
        source: OURS,
    },
    Key {
        path: "limits/rails",
        field: Field::Whole {
            unit: "rails",
            least: 1,
            most: 65_000,
            get: |config| config.limits.rails as u64,
            set: |config, rails| config.limits.rails = rails as usize,
        },
        meaning: "Rails to all peers together. Each takes 0.5 KiB, and 0.2 KiB of each worker. Rails have spares \
                  only while less than an eighth of these are in use.",
        source: OURS,
    },
    Key {
        path: "limits/pairs",
        field: Field::Whole {
            unit: "pairs",
            least: 16,
            most: 1_048_576,
            get: |config| config.limits.pairs as u64,
            set: |config, pairs| config.limits.pairs = pairs as usize,
        },
        meaning: "Pairs of a local and a remote segment that are kept ready. Each takes 0.5 KiB of each worker. \
                  Where there are more, those that no request uses make room, and are made anew when they are needed.",
        source: OURS,
    },
    Key {
        path: "limits/segments",
        field: Field::Whole {
            unit: "segments",
            least: 16,
            most: 16_777_216,
            get: |config| config.limits.segments as u64,
            set: |config, segments| config.limits.segments = segments as usize,
        },
        meaning: "Segments, the engine's own and those of peers. They take memory only when they are there.",
        source: OURS,
    },
    Key {
        path: "limits/requests",
        field: Field::Whole {
            unit: "requests",
            least: 64,
            most: REQUESTS_MAX as u64,
            get: |config| config.limits.requests as u64,
            set: |config, requests| config.limits.requests = requests as usize,
        },
        meaning: "Requests that one worker has in flight, from submission to report. Each takes 0.3 KiB of each worker, \
                  from its start on: a process with many engines may want fewer. Of a batch of more a quarter of that is \
                  in flight at a time.",
        source: OURS,
    },
    Key {
        path: "limits/descriptors",
        field: Field::Whole {
            unit: "descriptors",
            least: 0,
            most: 1 << 30,
            get: |config| config.limits.descriptors as u64,
            set: |config, descriptors| config.limits.descriptors = descriptors as usize,
        },
        meaning: "What the soft limit of the process's descriptors is raised to when the engine starts, as far as the hard \
                  one allows; it is never lowered. An eighth of them, 1,024 at most, is kept for connections: what finds \
                  no descriptor first is a new segment.",
        source: OURS,
    },
    Key {
        path: "path/mode",
        field: Field::Choice {
            words: &["off", "vanilla", "advanced"],
            get: |config| {
                ISOLATION_MODES
                    .iter()
                    .position(|mode| *mode == config.path.mode)
            },
            set: |config, choice| config.path.mode = ISOLATION_MODES[choice],
        },
        meaning: "Who says which class of rails carries what: nobody; the topology; an agent. Both ends need the \
                  same.",
        source: MPIB,
    },
    Key {
        path: "path/island_prefix_ipv4",
        field: Field::Whole {
            unit: "bits",
            least: 0,
            most: 32,
            get: |config| config.path.island_prefix.v4_bits.into(),
            set: |config, bits| config.path.island_prefix.v4_bits = bits as u8,
        },
        meaning: "Hosts are in one island if the addresses of a primary rail's ends begin with so many equal bits.",
        source: MPIB,
    },
    Key {
        path: "path/island_prefix_ipv6",
        field: Field::Whole {
            unit: "bits",
            least: 0,
            most: 128,
            get: |config| config.path.island_prefix.v6_bits.into(),
            set: |config, bits| config.path.island_prefix.v6_bits = bits as u8,
        },
        meaning: "The same for IPv6.",
        source: OURS,
    },
    Key {
        path: "path/supplementary",
        field: Field::Addresses {
            most: PLAN_RAILS_MAX,
            get: |config| config.path.supplementary.clone(),
            set: |config, rails| config.path.supplementary = rails,
        },
        meaning: "Those of `rails` that are of the fabric which ends at the island's border. All others are primary.",
        source: MPIB,
    },
    Key {
        path: "path/small_bytes_max",
        field: Field::Whole {
            unit: "bytes",
            least: 0,
            most: 1 << 40,
            get: |config| config.path.small_bytes_max,
            set: |config, bytes| config.path.small_bytes_max = bytes,
        },
        meaning: "Transfers to another island of up to so many bytes stay on primary rails. Of mode `advanced` only.",
        source: MPIB,
    },
    Key {
        path: "path/hint_file",
        field: Field::Word {
            get: |config| config.path.hint_file.clone(),
            set: |config, file| config.path.hint_file = file,
        },
        meaning: "The file of `polyrail agent`; `auto`: where that puts it if nobody says otherwise. Of mode \
                  `advanced` only.",
        source: OURS,
    },
    Key {
        path: "path/hint_strict",
        field: Field::Flag {
            get: |config| config.path.hint_strict,
            set: |config, strict| config.path.hint_strict = strict,
        },
        meaning: "Waits for the class that a hint names while it has no room, so that the hint is kept while bytes queue. \
                  `false` gives that share to the others: more passes, and shares follow capacity, not the hint, where \
                  more is sent than rails carry. Of mode `advanced` only.",
        source: OURS,
    },
    Key {
        path: "path/hint_age_max_ms",
        field: Field::Whole {
            unit: "ms",
            least: 1,
            most: HOUR_MS,
            get: |config| millis(config.path.hint_age_max),
            set: |config, ms| config.path.hint_age_max = Duration::from_millis(ms),
        },
        meaning: "An agent that has been silent for longer counts for nothing. Of mode `advanced` only.",
        source: OURS,
    },
    Key {
        path: "verbs/queue_depth",
        field: Field::Whole {
            unit: "works",
            least: 1,
            most: 4096,
            get: |config| config.verbs.queue_depth.into(),
            set: |config, value| config.verbs.queue_depth = value as u16,
        },
        meaning: "Works that one queue pair may hold. Devices that can hold fewer have fewer.",
        source: OURS,
    },
    Key {
        path: "verbs/queue_pairs",
        field: Field::Whole {
            unit: "queue pairs",
            least: 1,
            most: 4096,
            get: |config| config.verbs.queue_pairs.into(),
            set: |config, value| config.verbs.queue_pairs = value as u16,
        },
        meaning: "Queue pairs that one worker may have on one device before the one that has been idle for longest \
                  makes room for another. Those with works on their way stay.",
        source: OURS,
    },
    Key {
        path: "verbs/batch_us",
        field: Field::Whole {
            unit: "µs",
            least: 0,
            most: 1_000_000,
            get: |config| u64::try_from(config.verbs.batch.as_micros()).unwrap_or(u64::MAX),
            set: |config, us| config.verbs.batch = Duration::from_micros(us),
        },
        meaning: "In bulk, works queue on a rail for up to so long, so that 20 share a doorbell and a completion, where \
                  40 pass in that time; others wait behind them. 0: no more than keeps the rail busy.",
        source: OURS,
    },
    Key {
        path: "verbs/ack_timeout",
        field: Field::Whole {
            unit: "exponent",
            least: 1,
            most: 31,
            get: |config| config.verbs.ack_timeout.into(),
            set: |config, value| config.verbs.ack_timeout = value as u8,
        },
        meaning: "A packet is waited for so long before it is sent again: 4.096 µs × 2^this.",
        source: OURS,
    },
    Key {
        path: "verbs/retry_count",
        field: Field::Whole {
            unit: "times",
            least: 0,
            most: 7,
            get: |config| config.verbs.retry_count.into(),
            set: |config, value| config.verbs.retry_count = value as u8,
        },
        meaning: "So often it is sent again before the queue pair gives up. Some devices take 7 for \"for ever\".",
        source: OURS,
    },
    Key {
        path: "verbs/gid_row",
        field: Field::Whole {
            unit: "row",
            least: 0,
            most: 256,
            get: |config| config.verbs.gid_row.into(),
            set: |config, value| config.verbs.gid_row = value as u16,
        },
        meaning: "The row of a port's table of GIDs. 256: the one whose GID is the rail's address, RoCE v2 before v1.",
        source: OURS,
    },
    Key {
        path: "verbs/pkey",
        field: Field::Whole {
            unit: "key",
            least: 0,
            most: 0xffff,
            get: |config| config.verbs.pkey.into(),
            set: |config, value| config.verbs.pkey = value as u16,
        },
        meaning: "The key of the partition that queue pairs are in, on InfiniBand; 15 bits count. 0: the first that the port is \
                  a full member of.",
        source: OURS,
    },
    Key {
        path: "verbs/traffic_class",
        field: Field::Whole {
            unit: "class",
            least: 0,
            most: 255,
            get: |config| config.verbs.traffic_class.into(),
            set: |config, value| config.verbs.traffic_class = value as u8,
        },
        meaning: "The traffic class of packets, which switches choose their queue by.",
        source: OURS,
    },
    Key {
        path: "verbs/service_level",
        field: Field::Whole {
            unit: "level",
            least: 0,
            most: 15,
            get: |config| config.verbs.service_level.into(),
            set: |config, value| config.verbs.service_level = value as u8,
        },
        meaning: "The service level of packets.",
        source: OURS,
    },
    Key {
        path: "verbs/inline_bytes",
        field: Field::Whole {
            unit: "bytes",
            least: 0,
            most: 256,
            get: |config| config.verbs.inline_bytes.into(),
            set: |config, bytes| config.verbs.inline_bytes = bytes as u16,
        },
        meaning: "Writes of up to so many bytes carry them themselves, which spares the device from reading memory. \
                  Devices that can do less do less. 0: none does.",
        source: OURS,
    },
    Key {
        path: "verbs/gpu_memory",
        field: Field::Flag {
            get: |config| config.verbs.gpu_memory,
            set: |config, moves| config.verbs.gpu_memory = moves,
        },
        meaning: "Moves bytes of GPUs' memory too, registered through its DMA-BUF or by nvidia-peermem. Off until it has \
                  been tried on hardware.",
        source: OURS,
    },
    Key {
        path: "verbs/relaxed_ordering",
        field: Field::Flag {
            get: |config| config.verbs.relaxed_ordering,
            set: |config, relaxed| config.verbs.relaxed_ordering = relaxed,
        },
        meaning: "Lets devices write memory in another order than packets came in, where they can.",
        source: OURS,
    },
    Key {
        path: "security/key_file",
        field: Field::Word {
            get: |config| config.security.key_file.clone(),
            set: |config, file| config.security.key_file = file,
        },
        meaning: "The file of the cluster's key, as `polyrail keygen` makes one: mode 0600, the same on all hosts. With it \
                  control connections are within TLS, each end proves to the other that it holds the key, and engines with \
                  another one or none are refused. None, and no `security/certificate`: nobody is asked. \
                  [security.md](security.md) says what is promised.",
        source: OURS,
    },
    Key {
        path: "security/certificate",
        field: Field::Word {
            get: |config| config.security.certificate.clone(),
            set: |config, file| config.security.certificate = file,
        },
        meaning: "Certificates in the place of a cluster's key: the file of this engine's certificate with its chain, as PEM, with one \
                  URI `spiffe://...` or a DNS name among its alternative names. Control connections are within TLS, and \
                  an engine that shows a certificate under `security/roots` is a member. It is read anew by a reload; that it ends \
                  is said in the log from 7 days before on, and by the metric `certificate_ends_seconds`.",
        source: OURS,
    },
    Key {
        path: "security/key",
        field: Field::Word {
            get: |config| config.security.key.clone(),
            set: |config, file| config.security.key = file,
        },
        meaning: "The file of the private key of `security/certificate`, as PEM: of its user or root, mode 0600.",
        source: OURS,
    },
    Key {
        path: "security/roots",
        field: Field::Word {
            get: |config| config.security.roots.clone(),
            set: |config, file| config.security.roots = file,
        },
        meaning: "The file of the certificates of the authorities that peers' certificates have to be under, as PEM.",
        source: OURS,
    },
    Key {
        path: "security/targets",
        field: Field::Patterns {
            get: |config| config.security.targets.clone(),
            set: |config, targets| config.security.targets = targets,
        },
        meaning: "Whose segments this engine opens, by the names in certificates. A target that shows a certificate with another \
                  name is refused before it hears anything. Empty: every member may be a target, so one that is on the \
                  way to another can take its place.",
        source: OURS,
    },
    Key {
        path: "security/old_key_s",
        field: Field::Whole {
            unit: "s",
            least: 0,
            most: 1 << 30,
            get: |config| config.security.old_key.as_secs(),
            set: |config, seconds| config.security.old_key = Duration::from_secs(seconds),
        },
        meaning: "After so many seconds sessions of peers end that began with a key, or with a certificate of this engine, which a \
                  reload has replaced. Peers that have the new key make new sessions, and no request fails; a former \
                  member is out. 0: they go on until they end by themselves.",
        source: OURS,
    },
    Key {
        path: "security/payload",
        field: Field::Choice {
            words: &["off", "encrypt"],
            get: |config| Some(config.security.payload as usize),
            set: |config, choice| {
                config.security.payload = match choice {
                    0 => Payload::Off,
                    _ => Payload::Encrypt,
                };
            },
        },
        meaning: "Whether bytes of requests are encrypted from host to host (`encrypt`): by the kernel, on lanes of `tcp`. Transports \
                  that cannot (`verbs`, libraries) are not used then; what passes no wire goes as it is. One end of a \
                  session is enough. It needs `security/key_file` or `security/certificate`, and a kernel with TLS for \
                  connections (module `tls`).",
        source: OURS,
    },
    Key {
        path: "security/encrypted_segments",
        field: Field::Patterns {
            get: |config| config.security.encrypted_segments.clone(),
            set: |config, names| config.security.encrypted_segments = names,
        },
        meaning: "Segments of this engine, by their names, whose bytes go to other hosts encrypted or not at all: only \
                  peers may open them whose sessions encrypt, because `security/payload` is `encrypt` at either end. \
                  Memory of the host only. It needs `security/key_file` or `security/certificate`.",
        source: OURS,
    },
];

/// Where the keys of [`DOMAIN`] are, below the name of a trust domain.
pub(super) const DOMAINS: &str = "security/domains";

/// Keys of each trust domain.
pub(super) const DOMAIN: &[Key<DomainConfig>] = &[
    Key {
        path: "peers",
        field: Field::Prefixes {
            get: |domain| domain.peers.clone(),
            set: |domain, peers| domain.peers = peers,
        },
        meaning: "Whose address begins so is in the domain; where several fit, in the one that says more bits. Peers of a domain \
                  hear of its segments and of no others; those of none, of what is registered for none. All addresses \
                  that a peer comes from have to be of one domain.",
        source: OURS,
    },
    Key {
        path: "names",
        field: Field::Patterns {
            get: |domain| domain.names.clone(),
            set: |domain, names| domain.names = names,
        },
        meaning: "Whose certificate (`security/certificate`) has such a name is in the domain, whatever it calls itself; where there \
                  are `peers` too, only from such an address. Where several fit, the one whose name says more. With a \
                  cluster's key nobody has a name.",
        source: OURS,
    },
];

/// Where the keys of [`TRANSPORT`] are, below the name of a transport.
pub(super) const TRANSPORTS: &str = "transports";

/// Keys of each transport.
pub(super) const TRANSPORT: &[Key<TransportConfig>] = &[
    Key {
        path: "enable",
        field: Field::Flag {
            get: |transport| transport.enable,
            set: |transport, enable| transport.enable = enable,
        },
        meaning: "Whether it is used where both ends have it. `shm` is not where `path/mode` says which rails carry \
                  what, nor where a command's `--rails` does, unless this is said.",
        source: OURS,
    },
    Key {
        path: "library",
        field: Field::Word {
            get: |transport| transport.library.clone(),
            set: |transport, library| transport.library = library,
        },
        meaning: "The shared library of a transport that is not built in, which then has the name that the library says. \
                  Preferred to those that are. Its code runs in this process: name only what you trust. \
                  [transports.md](transports.md) is how to write one.",
        source: OURS,
    },
    Key {
        path: "rail_error_threshold",
        field: Field::Whole {
            unit: "failures",
            least: 1,
            most: 1000,
            get: |transport| transport.rail_error_threshold.into(),
            set: |transport, failures| transport.rail_error_threshold = failures as u32,
        },
        meaning: "Failures within the window that pause a rail. Of health mode `reset` only.",
        source: FAILOVER,
    },
    Key {
        path: "rail_error_window_secs",
        field: Field::Whole {
            unit: "s",
            least: 1,
            most: 86_400,
            get: |transport| transport.rail_error_window.as_secs(),
            set: |transport, secs| transport.rail_error_window = Duration::from_secs(secs),
        },
        meaning: "A failure older than this counts no more. Of health mode `reset` only.",
        source: FAILOVER,
    },
    Key {
        path: "rail_cooldown_secs",
        field: Field::Whole {
            unit: "s",
            least: 1,
            most: 300,
            get: |transport| transport.rail_cooldown.as_secs(),
            set: |transport, secs| transport.rail_cooldown = Duration::from_secs(secs),
        },
        meaning: "First pause of a rail; doubles with each further one, up to 300 s. Of health mode `reset` only.",
        source: FAILOVER,
    },
    Key {
        path: "enable_smart_scheduling",
        field: Field::Flag {
            get: |transport| transport.documented.enable_smart_scheduling,
            set: |transport, smart| transport.documented.enable_smart_scheduling = smart,
        },
        meaning: "`false`: this transport's rails are chosen by `round-robin`, whatever `policy` is.",
        source: SPRAYING,
    },
    Key {
        path: "numa_penalties",
        field: Field::Numbers {
            range: Span::Above(0.0, 1e9),
            get: |transport| transport.documented.numa_penalties,
            set: |transport, penalties| transport.documented.numa_penalties = penalties,
        },
        meaning: "What predicted times are multiplied by in each tier; the last one holds for all farther ones. \
                  Of `documented` only.",
        source: SPRAYING,
    },
    Key {
        path: "bandwidth_learning_rate",
        field: Field::Number {
            unit: "",
            range: Span::Closed(0.0, 1.0),
            get: |transport| transport.documented.bandwidth_learning_rate,
            set: |transport, rate| transport.documented.bandwidth_learning_rate = rate,
        },
        meaning: "Weight of the old bandwidth at each completion. Of `documented` only.",
        source: SPRAYING,
    },
    Key {
        path: "ewma_min_bandwidth_multiplier",
        field: Field::Number {
            unit: "",
            range: Span::Above(0.0, 1.0),
            get: |transport| transport.documented.ewma_min_bandwidth_multiplier,
            set: |transport, least| transport.documented.ewma_min_bandwidth_multiplier = least,
        },
        meaning: "The learned bandwidth is at least this fraction of the theoretical one. Of `documented` only.",
        source: SPRAYING,
    },
    Key {
        path: "ewma_max_bandwidth_multiplier",
        field: Field::Number {
            unit: "",
            range: Span::Closed(1.0, 1e6),
            get: |transport| transport.documented.ewma_max_bandwidth_multiplier,
            set: |transport, most| transport.documented.ewma_max_bandwidth_multiplier = most,
        },
        meaning: "The learned bandwidth is at most this multiple of the theoretical one. Of `documented` only.",
        source: SPRAYING,
    },
    Key {
        path: "score_jitter_range",
        field: Field::Number {
            unit: "s",
            range: Span::Closed(0.0, 1.0),
            get: |transport| transport.documented.score_jitter_range,
            set: |transport, range| transport.documented.score_jitter_range = range,
        },
        meaning: "Scores are raised by up to this, at random. Of `documented` only.",
        source: SPRAYING,
    },
    Key {
        path: "score_epsilon",
        field: Field::Number {
            unit: "s",
            range: Span::Above(0.0, 1.0),
            get: |transport| transport.documented.score_epsilon,
            set: |transport, epsilon| transport.documented.score_epsilon = epsilon,
        },
        meaning: "Keeps weights finite. Of `documented` only.",
        source: SPRAYING,
    },
    Key {
        path: "default_bandwidth_gbps",
        field: Field::Number {
            unit: "Gbit/s",
            range: GBPS,
            get: |transport| transport.documented.default_bandwidth_gbps,
            set: |transport, gbps| transport.documented.default_bandwidth_gbps = gbps,
        },
        meaning: "The theoretical bandwidth of a rail that reports none between the two bounds. Of `documented` only.",
        source: SPRAYING,
    },
    Key {
        path: "min_bandwidth_gbps",
        field: Field::Number {
            unit: "Gbit/s",
            range: GBPS,
            get: |transport| transport.documented.min_bandwidth_gbps,
            set: |transport, gbps| transport.documented.min_bandwidth_gbps = gbps,
        },
        meaning: "Least bandwidth that is believed. At most `max_bandwidth_gbps`. Of `documented` only.",
        source: SPRAYING,
    },
    Key {
        path: "max_bandwidth_gbps",
        field: Field::Number {
            unit: "Gbit/s",
            range: GBPS,
            get: |transport| transport.documented.max_bandwidth_gbps,
            set: |transport, gbps| transport.documented.max_bandwidth_gbps = gbps,
        },
        meaning: "Largest bandwidth that is believed. Of `documented` only.",
        source: SPRAYING,
    },
    Key {
        path: "max_slice_count",
        field: Field::Whole {
            unit: "slices",
            least: 1,
            most: 4096,
            get: |transport| transport.documented.max_slice_count.into(),
            set: |transport, count| transport.documented.max_slice_count = count as u16,
        },
        meaning: "A request is cut into at most so many; the document names the cap and gives no number. Of \
                  `documented` only.",
        source: OURS,
    },
];

const GBPS: Span = Span::Above(0.0, 1e6);

/// What two values must be to each other.
pub(super) struct Relation<T: 'static> {
    /// The key that is at fault, and the other one.
    pub(super) paths: [&'static str; 2],
    pub(super) holds: fn(&T) -> bool,
    /// What would be right.
    pub(super) text: &'static str,
}

/// Relations within the engine's values.
pub(super) const ENGINE_RELATIONS: &[Relation<Config>] = &[
    Relation {
        paths: ["health/peer_silence_ms", "health/heartbeat_ms"],
        holds: |config| config.health.peer_silence >= config.health.heartbeat * 2,
        text: "is less than twice health/heartbeat_ms, so that a peer would be silent between two signs of life",
    },
    Relation {
        paths: ["listen", "rails_within"],
        holds: |config| {
            let is_everywhere = |listen: SocketAddr| listen.ip().is_unspecified();
            config.rails_within.is_empty() || config.listen.is_none_or(is_everywhere)
        },
        text: "is one address, so that nobody could reach those of rails_within that come later: 0.0.0.0 or [::] would be right",
    },
    Relation {
        paths: ["path/mode", "rails_within"],
        holds: |config| config.rails_within.is_empty() || config.path.mode == IsolationMode::Off,
        text: "needs both ends to see the same rails from the start, so that none can come later: `rails` would be right",
    },
    Relation {
        paths: ["path/supplementary", "rails"],
        holds: |config| {
            let is_rail = |address| config.rails.contains(address);
            config.rails.is_empty() || config.path.supplementary.iter().all(is_rail)
        },
        text: "has an address that `rails` has not: it says which of these are of the fabric that ends at the island's border",
    },
    Relation {
        paths: ["recording/ring_mb", "recording/folder"],
        holds: |config| config.recording.ring_mb == 0 || !config.recording.folder.is_empty(),
        text: "needs recording/folder, which says where the files go",
    },
    Relation {
        paths: ["security/certificate", "security/key"],
        holds: |config| config.security.certificate.is_empty() == config.security.key.is_empty(),
        text: "needs security/key, and that needs it: both have to be there, or none",
    },
    Relation {
        paths: ["security/certificate", "security/roots"],
        holds: |config| config.security.certificate.is_empty() == config.security.roots.is_empty(),
        text: "needs security/roots, which says whose certificates are accepted, and that needs it",
    },
    Relation {
        paths: ["security/targets", "security/certificate"],
        holds: |config| {
            config.security.targets.is_empty() || !config.security.certificate.is_empty()
        },
        text: "are names of certificates, and security/certificate names none",
    },
    Relation {
        paths: ["security/payload", "security/key_file"],
        holds: |config| {
            let security = &config.security;
            let has_key = !security.key_file.is_empty() || !security.certificate.is_empty();
            has_key || security.payload == Payload::Off
        },
        text: "is encrypt, which needs a key of the cluster to make keys of: security/key_file, or security/certificate",
    },
    Relation {
        paths: ["security/encrypted_segments", "security/key_file"],
        holds: |config| {
            let security = &config.security;
            let has_key = !security.key_file.is_empty() || !security.certificate.is_empty();
            has_key || security.encrypted_segments.is_empty()
        },
        text: "are there, and no session can encrypt without a key of the cluster: security/key_file, or security/certificate",
    },
    Relation {
        paths: ["security/key_file", "security/certificate"],
        holds: |config| {
            config.security.key_file.is_empty() || config.security.certificate.is_empty()
        },
        text: "is there beside security/certificate: members prove themselves by one of them",
    },
];

/// Relations within a transport's values.
pub(super) const TRANSPORT_RELATIONS: &[Relation<TransportConfig>] = &[Relation {
    paths: ["min_bandwidth_gbps", "max_bandwidth_gbps"],
    holds: |transport| {
        transport.documented.min_bandwidth_gbps <= transport.documented.max_bandwidth_gbps
    },
    text: "is more than max_bandwidth_gbps, so that no bandwidth would be believed",
}];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_unique_and_every_default_can_be_set() {
        let mut paths: Vec<&str> = ENGINE.iter().map(|key| key.path).collect();
        paths.extend(TRANSPORT.iter().map(|key| key.path));
        paths.extend(DOMAIN.iter().map(|key| key.path));
        let count = paths.len();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), count);
        for key in ENGINE {
            assert_eq!(key.field.check(&Config::default()), Ok(()), "{}", key.path);
        }
        for key in TRANSPORT {
            let default = TransportConfig::default();
            assert_eq!(key.field.check(&default), Ok(()), "{}", key.path);
        }
    }

    #[test]
    fn what_is_set_is_what_is_read() {
        // One other value for each key: a setter that writes to another field would not read back.
        let others = |kind: &str| -> Vec<serde_json::Value> {
            match kind {
                "bool" => vec![true.into(), false.into()],
                "word" => vec![
                    "x".into(),
                    "all".into(),
                    "documented".into(),
                    "decay".into(),
                    "info".into(),
                    "vanilla".into(),
                    "encrypt".into(),
                ],
                "`ADDRESS:PORT`" => vec!["127.0.0.1:7".into()],
                "list of addresses" => vec![vec!["127.0.0.9"].into()],
                "list of prefixes" => vec![vec!["127.0.0.0/8"].into()],
                "list of words" => vec![vec!["spiffe://x/*"].into()],
                "list of numbers" => vec![vec![7.0, 8.0, 9.0].into()],
                _ => vec![
                    1.into(),
                    0.5.into(),
                    20.into(),
                    8_192.into(),
                    20_000.into(),
                    131_072.into(),
                ],
            }
        };
        for key in ENGINE {
            let mut set = 0;
            for value in others(&key.field.kind()) {
                let mut config = Config::default();
                if key.field.apply(&mut config, &value).is_ok() {
                    let read = key.field.value(&config);
                    assert!(
                        read == value || read.as_f64() == value.as_f64(),
                        "{}",
                        key.path
                    );
                    set += 1;
                }
            }
            assert!(set > 0, "{}", key.path);
        }
        for key in TRANSPORT {
            let mut set = 0;
            for value in others(&key.field.kind()) {
                let mut transport = TransportConfig::default();
                if key.field.apply(&mut transport, &value).is_ok() {
                    let read = key.field.value(&transport);
                    assert!(
                        read == value || read.as_f64() == value.as_f64(),
                        "{}",
                        key.path
                    );
                    set += 1;
                }
            }
            assert!(set > 0, "{}", key.path);
        }
    }
}
