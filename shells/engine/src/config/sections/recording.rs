//! Section `recording`: the last calls on core, kept for when something goes wrong.

/// What an engine keeps of its calls on core. A [`Hooks::recording`](crate::Hooks::recording) has all of them, and takes its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordingConfig {
    /// MiB of calls that are kept in memory; 0: none are.
    pub ring_mb: u32,
    /// The folder that they are written to.
    pub folder: String,
}
