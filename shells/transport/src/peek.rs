//! Whether it pays to look once more.

/// The most times in a row that [`Peek`] says no.
const PEEK_SKIPS_MAX: u8 = 31;

/// Whether to look on before sleeping: as long as something is found, and now and then.
#[derive(Clone, Copy, Default, Debug)]
pub struct Peek {
    /// Times to say no after the last look in vain.
    skips: u8,
    left: u8,
}

impl Peek {
    /// Whether to look now. Asked before every sleep.
    pub fn is_due(&mut self) -> bool {
        let due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        due
    }

    /// Whether such a look found anything.
    pub fn tell(&mut self, found: bool) {
        self.skips = match found {
            true => 0,
            false => (2 * self.skips + 1).min(PEEK_SKIPS_MAX),
        };
        self.left = self.skips;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_vain_become_rare() {
        let mut peek = Peek::default();
        let looks = |peek: &mut Peek, found: bool| {
            let look = |_: &u32| {
                let due = peek.is_due();
                if due {
                    peek.tell(found);
                }
                due
            };
            (0..320).filter(look).count()
        };
        assert_eq!(looks(&mut peek, true), 320);
        assert!((10..20).contains(&looks(&mut peek, false)));
        assert!(looks(&mut peek, true) >= 288, "it is back soon");
    }
}
