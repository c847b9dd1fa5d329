//! Section `limits`: how much of everything there can be.

/// How much of everything there can be at a time. What is full says so, with the key of its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitsConfig {
    /// Peers whose segments are open here. Disks and GPUs of this host count as such. Each takes 1.2 KiB of each worker.
    pub peers: usize,
    /// Rails to all of them. Each takes 0.5 KiB, and 0.2 KiB of each worker. Rails have spares only while less than an
    /// eighth of these are in use.
    pub rails: usize,
    /// Pairs of a local and a remote segment that requests go between without being looked at anew. Each takes 0.5 KiB
    /// of each worker. Where there are more, those that no request uses make room.
    pub pairs: usize,
    /// Segments, the engine's own and its peers'. They take memory when they are there.
    pub segments: usize,
    /// Requests that one worker has under way, from submission to report. Each takes 0.3 KiB of each worker, which are written
    /// when the engine starts: a process with many engines may want fewer. Of a batch of more a quarter of that is under way at
    /// a time.
    pub requests: usize,
    /// What the soft limit of the process's descriptors is raised to when the engine starts, if the hard one allows that; it
    /// is never lowered.
    pub descriptors: usize,
}

impl LimitsConfig {
    /// Requests, if nothing else is said.
    pub(crate) const REQUESTS: usize = 16_384;
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            peers: 1_024,
            // Eight to each peer over the network, one inside the host, and an eighth more where there are spares.
            rails: 10_240,
            pairs: 4_096,
            segments: 131_072,
            requests: Self::REQUESTS,
            descriptors: 1 << 20,
        }
    }
}
