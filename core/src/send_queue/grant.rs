//! Credits as a value: the proof of having taken them.

/// Credits taken; none by default. It is not copied, so it goes back at most once.
#[derive(PartialEq, Eq, Debug, Default)]
#[must_use = "credits that are not released are lost"]
pub struct Grant {
    pub(super) works: u16,
}

impl Grant {
    /// How many.
    pub const fn works(&self) -> u16 {
        self.works
    }

    /// Keeps up to `works`; gives the rest.
    pub fn split_off(&mut self, works: u16) -> Self {
        let kept = self.works.min(works);
        let rest = self.works - kept;
        self.works = kept;
        Self { works: rest }
    }
}
