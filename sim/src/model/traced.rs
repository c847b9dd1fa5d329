//! What is kept one by one for a trace: slices and batches, up to a bound.

/// Something with a start and an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    /// Its worker, of all; of a batch its submitter.
    pub(crate) row: u32,
    /// Its lane, of all; of a batch 0.
    pub(crate) lane: u32,
    pub(crate) began_at: u64,
    pub(crate) ended_at: u64,
    pub(crate) bytes: u64,
    /// It went well.
    pub(crate) good: bool,
}

/// Slices and batches in the order in which they ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traced {
    slices_max: usize,
    /// And whether each was a probe.
    pub(crate) slices: Vec<(Span, bool)>,
    pub(crate) batches: Vec<Span>,
    /// Slices and batches that came when there was no more room.
    pub(crate) left_out: u64,
}

impl Traced {
    pub(crate) fn new(slices_max: usize) -> Self {
        Self {
            slices_max,
            ..Self::default()
        }
    }

    pub(crate) fn slice(&mut self, span: Span, probe: bool) {
        if self.slices.len() < self.slices_max {
            self.slices.push((span, probe));
        } else {
            self.left_out += 1;
        }
    }

    pub(crate) fn batch(&mut self, span: Span) {
        if self.batches.len() < self.slices_max && self.left_out == 0 {
            self.batches.push(span);
        } else {
            self.left_out += 1;
        }
    }
}
