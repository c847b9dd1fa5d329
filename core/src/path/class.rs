//! Classes of rails: what share one fabric, and so one answer to "can it reach that peer?".

use core::fmt;

/// Classes that an engine can tell apart.
pub const CLASSES_MAX: usize = 8;

/// A class of rails, by its number. The primary fabric reaches every peer; each other class may only reach the
/// peers of its island.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RailClass(pub u8);

impl RailClass {
    /// The fabric that is routed between islands (scale-out).
    pub const PRIMARY: Self = Self(0);
    /// The first of those that may end at the island's border (scale-up).
    pub const SUPPLEMENTARY: Self = Self(1);

    /// All that there can be, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..CLASSES_MAX as u8).map(Self)
    }

    /// The position in tables of classes.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for RailClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::PRIMARY => f.write_str("primary"),
            Self::SUPPLEMENTARY => f.write_str("supplementary"),
            Self(number) => write!(f, "{number}"),
        }
    }
}

/// Some of the classes. Numbers from [`CLASSES_MAX`] on are in no set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ClassSet(u8);

impl ClassSet {
    /// None.
    pub const NONE: Self = Self(0);
    /// The primary class alone.
    pub const PRIMARY: Self = Self::NONE.with(RailClass::PRIMARY);
    /// All but the primary.
    pub const SUPPLEMENTARY: Self = Self(!Self::PRIMARY.0);

    /// This one alone.
    pub const fn only(class: RailClass) -> Self {
        Self::NONE.with(class)
    }

    /// With this one too.
    pub const fn with(self, class: RailClass) -> Self {
        if class.index() < CLASSES_MAX {
            Self(self.0 | 1 << class.0)
        } else {
            self
        }
    }

    /// What is in both.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// This set, or `other` if this one is empty.
    pub const fn or_else(self, other: Self) -> Self {
        if self.is_empty() { other } else { self }
    }

    /// Whether a class is in it.
    pub const fn contains(self, class: RailClass) -> bool {
        class.index() < CLASSES_MAX && self.0 & 1 << class.0 != 0
    }

    /// Whether there is nothing in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its members, in order.
    pub fn iter(self) -> impl Iterator<Item = RailClass> {
        RailClass::all().filter(move |class| self.contains(*class))
    }
}

impl FromIterator<RailClass> for ClassSet {
    fn from_iter<I: IntoIterator<Item = RailClass>>(classes: I) -> Self {
        classes.into_iter().fold(Self::NONE, Self::with)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use quickcheck::quickcheck;
    use std::string::ToString;
    use std::vec::Vec;

    #[test]
    fn every_class_is_primary_or_supplementary() {
        assert!(ClassSet::PRIMARY.and(ClassSet::SUPPLEMENTARY).is_empty());
        let members: Vec<_> = ClassSet::SUPPLEMENTARY.iter().collect();
        assert_eq!(members, (1..8).map(RailClass).collect::<Vec<_>>());
        assert_eq!(
            [0, 1, 2].map(|n| RailClass(n).to_string()),
            ["primary", "supplementary", "2"]
        );
    }

    quickcheck! {
        fn a_set_holds_what_was_put_in(numbers: Vec<u8>) -> bool {
            let set: ClassSet = numbers.iter().map(|n| RailClass(*n)).collect();
            (0..=u8::MAX).all(|n| {
                let in_it = numbers.contains(&n) && usize::from(n) < CLASSES_MAX;
                set.contains(RailClass(n)) == in_it
            })
        }
    }
}
