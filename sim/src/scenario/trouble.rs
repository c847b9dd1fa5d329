//! What goes wrong by chance, and limits of core that are not the usual ones.

use polyrail_core::rail::documented::DocumentedConfig;
use polyrail_core::send_queue::SendQueueConfig;
use serde::Deserialize;

/// What goes wrong by chance until `until_ms`. One in so many of each; 0: never.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Trouble {
    /// From then on nothing does any more.
    pub until_ms: f64,
    /// `host/device>host/device`: rails on which nothing goes wrong by chance.
    pub spared: Vec<toml::Spanned<String>>,
    /// Works that fail for a reason that speaks against the lane or the rail. Whether they have landed, and
    /// whether they land later, is drawn too.
    pub error_one_in: u32,
    /// Works that are refused for a reason of their own, which fails their request.
    pub refuse_one_in: u32,
    /// Completions that never come.
    pub lost_one_in: u32,
    /// Completions that come late, also when the lane's epoch is over.
    pub late_one_in: u32,
    /// Completions that come twice.
    pub twice_one_in: u32,
    /// Posts of which some works are not taken for want of room; it is not always said when there is some.
    pub full_one_in: u32,
    /// Posts of which a work is refused.
    pub rejected_one_in: u32,
    /// Posts of whose works nobody knows whether they were taken.
    pub unknown_one_in: u32,
    /// Posts after which the lane breaks.
    pub broken_one_in: u32,
    /// Posts during which everything that has come is handed in, before they are answered. Of these, every other one finds
    /// its lane broken.
    pub facts_one_in: u32,
    /// Rounds of a worker in which it is told what cannot be: of lanes, peers and requests that are not there, of epochs
    /// that are over or have not begun, of works that have ended or never were, of lanes that are in another state; and
    /// posts of which more is taken than was given.
    pub lie_one_in: u32,
    /// Rounds of a worker in which it is told what could be, and is not: that works have ended, lanes have opened, broken
    /// or been fenced, with whatever has arrived. What bytes arrive is not checked then.
    pub false_one_in: u32,
    /// Lanes that do not open: refused, unanswered, or too late.
    pub unopened_one_in: u32,
    /// Lanes that this side takes long to let go of: up to 16 times `late_us`.
    pub held_one_in: u32,
    /// Facts of lanes that are said twice.
    pub repeated_one_in: u32,
    /// Control messages that are lost.
    pub frame_lost_one_in: u32,
    /// Control messages that come late, so that later ones overtake them.
    pub frame_late_one_in: u32,
    /// Control messages that come twice.
    pub frame_twice_one_in: u32,
    /// Rounds of a worker before which it stands still.
    pub stall_one_in: u32,
    /// Heartbeats of an agent before which it is killed; another one is started some time after.
    pub agent_crash_one_in: u32,
    /// The longest of these delays.
    pub late_us: u64,
}

/// Core's limits. Those that are not given are as an engine has them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Least time without a completion before a lane is suspected.
    pub progress_floor_us: u64,
    /// How long a lane may take to open.
    pub open_timeout_us: u64,
    /// A peer that nothing is heard from for so long is silent; later while nothing goes to it.
    pub peer_silence_us: u64,
    /// How long proof is waited for.
    pub fence_timeout_us: u64,
    /// How long attempts of a cancelled request may go on.
    pub cancel_grace_us: u64,
    /// Between repetitions of a message.
    pub message_interval_us: u64,
    /// Switches of transport that a request may cause.
    pub failover_attempts: u8,
    /// Health mode `reset` with this first cooldown; 0: mode `decay`.
    pub reset_cooldown_us: u64,
    /// The usual slice.
    pub slice_bytes: u32,
    /// On lanes whose completions cover others, so many works at most go without one; 0: as many as room allows.
    pub signal_interval_works: u16,
    /// Rows for attempts, in each worker; at least two.
    pub attempts: u32,
    /// Rows for requests beyond those that are submitted at a time.
    pub spare_rows: u32,
    /// What policy `documented` multiplies predicted times by, for each tier.
    pub numa_penalties: [f64; 3],
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            progress_floor_us: 5_000,
            open_timeout_us: 1_000_000,
            peer_silence_us: 1_200_000,
            fence_timeout_us: 2_000_000,
            cancel_grace_us: 100_000,
            message_interval_us: 20_000,
            failover_attempts: 3,
            reset_cooldown_us: 0,
            slice_bytes: polyrail_core::slice::SLICE_BYTES,
            signal_interval_works: SendQueueConfig::DEFAULT.signal_interval_works,
            attempts: 8_192,
            spare_rows: 64,
            numa_penalties: DocumentedConfig::DEFAULT.numa_penalties,
        }
    }
}
