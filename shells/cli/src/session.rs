//! What an initiator holds while it moves bytes: an engine, a buffer, and the target's memory.

use std::sync::Arc;

use polyrail::{Access, Config, Engine, Hooks, RailStatus, Region, SegmentId};

use crate::calls::ask::Owner;
use crate::exit::Failure;
use crate::kind::MemoryKind;
use crate::serve::SEGMENT;
use crate::sizes;

/// The name of the local segment. No peer may touch it.
const BUFFER: &str = "buffer";

/// An open connection to a target's memory.
pub(crate) struct Session {
    /// The engine.
    pub(crate) engine: Engine,
    /// `HOST:PORT` of the target.
    pub(crate) target: String,
    /// The target's memory.
    pub(crate) remote: SegmentId,
    /// Our own, of [`Self::bytes`].
    pub(crate) local: SegmentId,
    /// Our own, to fill and check.
    pub(crate) region: Arc<Region>,
    /// What the engine was started with.
    pub(crate) config: Config,
    /// How much of either memory is used: what was asked for, or all that the target has.
    pub(crate) bytes: u64,
}

impl Session {
    /// Opens the target's memory and allocates a buffer of the same size, at most `bytes_max`, in memory of `kind`.
    pub(crate) fn open(
        config: Config,
        hooks: Hooks,
        target: &str,
        (bytes_max, kind): (u64, MemoryKind),
    ) -> Result<Self, Failure> {
        let here = here(&config);
        let engine = Engine::with_hooks(config.clone(), hooks).map_err(|e| {
            Failure::from_engine(
                e.is_usage(),
                format!("cannot start an engine on {here}: {e}"),
            )
        })?;
        let remote = engine
            .open_segment(&format!("{target}/{SEGMENT}"))
            .map_err(|e| {
                let text = format!("cannot open {SEGMENT} of target {target} from {here}: {e}");
                Failure::from_engine(e.is_usage(), text)
            })?;
        let offered = engine.segment_bytes(remote).unwrap_or(0);
        let bytes = offered.min(bytes_max);
        let (local, region) = buffer(&engine, bytes, kind)?;
        Ok(Self {
            engine,
            target: target.to_owned(),
            remote,
            local,
            region,
            config,
            bytes,
        })
    }

    /// The program that owns the target's memory.
    pub(crate) fn owner(&self) -> Owner<'_> {
        Owner {
            engine: &self.engine,
            remote: self.remote,
            target: &self.target,
        }
    }

    /// The engine's rails. Spares stand behind all others, and are left out as long as they have carried nothing.
    pub(crate) fn rails(&self) -> Vec<RailStatus> {
        let mut rails = self.engine.rails();
        let is_idle = |rail: &RailStatus| rail.is_spare && rail.bytes == 0;
        while rails.pop_if(|rail| is_idle(rail)).is_some() {}
        rails
    }

    /// Bytes acknowledged on each of them since the engine started.
    pub(crate) fn rail_bytes(&self) -> Vec<u64> {
        self.rails().iter().map(|rail| rail.bytes).collect()
    }
}

fn buffer(
    engine: &Engine,
    bytes: u64,
    kind: MemoryKind,
) -> Result<(SegmentId, Arc<Region>), Failure> {
    let failed = |e: &dyn std::fmt::Display| {
        let size = sizes::show_size(bytes);
        Failure::Environment(format!("cannot allocate a buffer of {size}: {e}"))
    };
    let local = kind
        .allocate(engine, BUFFER, bytes, Access::Local)
        .map_err(|e| failed(&e))?;
    let region = engine
        .region(local)
        .ok_or_else(|| failed(&"the engine does not know it"))?;
    Ok((local, region))
}

/// The transports that have carried something, of rails by name, `TRANSPORT:LOCAL>REMOTE`, with their bytes; all of
/// them if none has.
pub(crate) fn carriers<'a>(rails: impl Iterator<Item = (&'a str, u64)> + Clone) -> String {
    let has_carried = rails.clone().any(|(_, bytes)| bytes > 0);
    let mut names: Vec<&str> = rails
        .filter(|(_, bytes)| *bytes > 0 || !has_carried)
        .filter_map(|(name, _)| name.split(':').next())
        .collect();
    names.sort_unstable();
    names.dedup();
    names.join("+")
}

/// This end, for errors.
fn here(config: &Config) -> String {
    match config.rails.as_slice() {
        [] => "this host, any address".to_owned(),
        rails => {
            let texts: Vec<String> = rails.iter().map(ToString::to_string).collect();
            texts.join(",")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::carriers;

    #[test]
    fn transports_that_carried_nothing_are_not_named() {
        let (shm, one, two) = ("shm:*>a", "tcp:a>b", "tcp:c>d");
        let cases = [
            ([(shm, 9), (one, 0), (two, 0)], "shm"),
            ([(shm, 0), (one, 1), (two, 2)], "tcp"),
            ([(shm, 1), (one, 0), (two, 2)], "shm+tcp"),
            ([(shm, 0), (one, 0), (two, 0)], "shm+tcp"),
        ];
        for (rails, expected) in cases {
            assert_eq!(carriers(rails.into_iter()), expected);
        }
    }
}
