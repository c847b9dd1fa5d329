//! What was handed in and changed nothing.

/// How much of what was handed in was ignored, by reason, since the worker began.
///
/// Some of it is as it should be: a transport may say what it knows of a lane that has failed meanwhile. Much of it says that
/// a shell or a device is wrong: work that completes under a cookie or an epoch that it never had looks like silence
/// otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Ignored {
    /// Completions and facts about lanes of another worker, or of rails that this one has no row for.
    pub lanes: u64,
    /// Completions and facts of an epoch that their lane does not have now.
    pub epochs: u64,
    /// Completions of works that are not out on their lane: completed before, never posted, or another lane's.
    pub works: u64,
    /// Facts that do not fit where their lane stands: opened twice, fenced while nobody asked, broken while it is being fenced.
    pub facts: u64,
    /// Counts of delivered works that are no part of what was posted.
    pub counts: u64,
    /// Answers to posts that had been given up, or were another worker's.
    pub posts: u64,
}

impl Ignored {
    pub(super) const NONE: Self = Self {
        lanes: 0,
        epochs: 0,
        works: 0,
        facts: 0,
        counts: 0,
        posts: 0,
    };

    /// All of it.
    pub const fn total(&self) -> u64 {
        self.lanes + self.epochs + self.works + self.facts + self.counts + self.posts
    }
}
