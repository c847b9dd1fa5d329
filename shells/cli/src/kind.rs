//! Kinds of memory, as the command line names them.

use std::fmt;

use polyrail::{Access, Engine, RegisterError, SegmentId, cuda};

use crate::exit::Failure;
use crate::serve::SEGMENT;

/// Where a segment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum MemoryKind {
    /// Host memory.
    #[default]
    Cpu,
    /// Memory of a GPU, by its number.
    Cuda(u32),
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// `cpu` or `cuda:N`.
pub(crate) fn memory_kind(text: &str) -> Result<MemoryKind, String> {
    if text == "cpu" {
        return Ok(MemoryKind::Cpu);
    }
    let kinds = match cfg!(feature = "cuda") {
        true => "give cpu or cuda:N",
        false => "give cpu",
    };
    let Some(ordinal) = text.strip_prefix("cuda:") else {
        return Err(format!("\"{text}\" is no kind of memory; {kinds}"));
    };
    if !cfg!(feature = "cuda") {
        return Err(format!("\"{text}\": this build has no cuda; {kinds}"));
    }
    match ordinal.parse() {
        Ok(ordinal) => Ok(MemoryKind::Cuda(ordinal)),
        Err(_) => Err(format!("\"{text}\" names no GPU; {kinds}, from cuda:0 on")),
    }
}

impl MemoryKind {
    /// Whether this machine has it, before anything is started that would need it.
    pub(crate) fn check(self) -> Result<(), Failure> {
        let Self::Cuda(ordinal) = self else {
            return Ok(());
        };
        let there = cuda::Gpus::load().and_then(|gpus| gpus.attach(ordinal));
        there.map_err(|error| Failure::Environment(format!("cannot use {self}: {error}")))
    }

    /// Allocates memory of this kind for peers, as a target's segment; touched before they can know of it, if that is asked for and
    /// it is not there anyway.
    pub(crate) fn offer(
        self,
        engine: &Engine,
        bytes: u64,
        touched: bool,
    ) -> Result<SegmentId, RegisterError> {
        let access = Access::RemoteReadWrite;
        match self {
            Self::Cpu if touched => engine.allocate_touched(SEGMENT, bytes, access),
            _ => self.allocate(engine, SEGMENT, bytes, access),
        }
    }

    /// Allocates memory of this kind.
    pub(crate) fn allocate(
        self,
        engine: &Engine,
        name: &str,
        bytes: u64,
        access: Access,
    ) -> Result<SegmentId, RegisterError> {
        match self {
            Self::Cpu => engine.allocate(name, bytes, access),
            Self::Cuda(ordinal) => engine.allocate_on_gpu(name, ordinal, bytes, access),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_written_as_they_are_read() {
        assert_eq!(memory_kind("cpu"), Ok(MemoryKind::Cpu));
        for text in ["disk", "cuda", "cuda:", "cuda:x", "cuda:-1", "CPU"] {
            let error = memory_kind(text).unwrap_err();
            assert!(error.contains(text) && error.contains("cpu"), "{error}");
        }
        let found = memory_kind("cuda:3");
        match cfg!(feature = "cuda") {
            true => {
                assert_eq!(found, Ok(MemoryKind::Cuda(3)));
                assert_eq!(MemoryKind::Cuda(3).to_string(), "cuda:3");
            }
            false => assert!(found.unwrap_err().contains("no cuda")),
        }
    }
}
