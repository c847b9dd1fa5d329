//! Which transports there are, and which of them this build has.

use std::io;
use std::sync::Arc;

use polyrail_cuda::{CudaError, CudaIpcTransport, CudaTransport, Gpus};
use polyrail_shm::ShmTransport;
use polyrail_tcp::TcpTransport;
use polyrail_transport::Transport;
use polyrail_transport::memory::{Region, RegionKey, RegionTable, TrustDomain};
use polyrail_uring::{FileTable, FileTransport, Way};

use crate::config::VerbsConfig;
use crate::files::Files;
use crate::staging::StagedTransport;
use crate::transports::try_out;

/// The name of the transport that works everywhere.
pub(crate) const TCP: &str = "tcp";
/// The name of the transport between processes of one host.
pub(crate) const SHM: &str = "shm";
/// The name of the transport over RDMA.
pub(crate) const VERBS: &str = "verbs";
/// The name of the one that copies to and from memory of GPUs.
pub(crate) const CUDA: &str = polyrail_cuda::NAME;
/// The name of the one that copies between memory of GPUs of several processes.
pub(crate) const CUDA_IPC: &str = polyrail_cuda::ipc::NAME;
/// The name of what goes on through slots in the host's memory where those that reach memory of GPUs fail.
pub(crate) const STAGED: &str = "staged";
/// The names of those that move bytes of files.
pub(crate) const URING: &str = "uring";
pub(crate) const PREAD: &str = "pread";

/// A transport that can be named, and what it moves bytes between.
struct Known {
    name: &'static str,
    moves: &'static str,
    built_in: bool,
}

/// All of them. Configurations may name each, so that one file serves different builds.
const KNOWN: [Known; 8] = [
    Known {
        name: TCP,
        moves: "memory of any two hosts, over connections",
        built_in: true,
    },
    Known {
        name: SHM,
        moves: "memory of processes on one host",
        built_in: true,
    },
    Known {
        name: URING,
        moves: "files and block devices",
        built_in: true,
    },
    Known {
        name: PREAD,
        moves: "files and block devices, where io_uring is forbidden",
        built_in: true,
    },
    Known {
        name: VERBS,
        moves: "memory of hosts with RDMA devices",
        built_in: cfg!(feature = "verbs"),
    },
    Known {
        name: CUDA,
        moves: "memory of this process and of its GPUs",
        built_in: cfg!(feature = "cuda"),
    },
    Known {
        name: CUDA_IPC,
        moves: "memory of GPUs between processes on one host",
        built_in: cfg!(feature = "cuda"),
    },
    Known {
        name: STAGED,
        moves: "memory of GPUs through that of hosts, where others fail",
        built_in: cfg!(feature = "cuda"),
    },
];

/// What configurations may call a transport besides: the TENT documents say `rdma`.
const OTHER_NAMES: [(&str, &str); 1] = [("rdma", VERBS)];

/// The name of a transport that has another one too; else the same.
pub(crate) fn real_name(name: &str) -> &str {
    let other = OTHER_NAMES.iter().find(|(other, _)| *other == name);
    other.map_or(name, |(_, real)| real)
}

/// The other of a transport's two names, if it has two.
pub(crate) fn other_name(name: &str) -> Option<&'static str> {
    OTHER_NAMES.iter().find_map(|(other, real)| match name {
        _ if name == *other => Some(*real),
        _ if name == *real => Some(*other),
        _ => None,
    })
}

/// One transport, as this build and this machine have it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransportInfo {
    /// Its name in rail names, configuration and output.
    pub name: &'static str,
    /// What it moves bytes between.
    pub moves: &'static str,
    /// Whether it can be used here.
    pub availability: Availability,
}

/// Whether a transport can be used.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Availability {
    /// It can.
    Available,
    /// This build does not have it.
    NotBuiltIn,
    /// It is built in, but the machine refused what it needs.
    Failed {
        /// Why.
        why: String,
    },
}

/// All transports, those of this build tried out on this machine.
///
/// Example: [guide](crate::guide#looking-at-an-engine).
pub fn transports() -> Vec<TransportInfo> {
    let info = |known: &Known| TransportInfo {
        name: known.name,
        moves: known.moves,
        availability: match known.built_in {
            true => install(known.name),
            false => Availability::NotBuiltIn,
        },
    };
    KNOWN.iter().map(info).collect()
}

/// Transports that an engine which has these runs without, and why.
///
/// Example: [guide](crate::guide#looking-at-an-engine).
pub fn transports_without(names: &[&str]) -> Vec<(&'static str, String)> {
    let others = transports().into_iter();
    let others = others.filter(|other| !names.contains(&other.name));
    let why = |other: TransportInfo| match other.availability {
        Availability::Available => "switched off in this engine's configuration".to_owned(),
        Availability::NotBuiltIn => "not in this build".to_owned(),
        Availability::Failed { why } => format!("not there: {why}"),
    };
    others.map(|other| (other.name, why(other))).collect()
}

/// The names of all transports that can be configured, and their other names.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let others = OTHER_NAMES.iter().map(|(other, _)| *other);
    KNOWN.iter().map(|known| known.name).chain(others)
}

/// Whether this build has a transport of this name.
pub(crate) fn is_built_in(name: &str) -> bool {
    KNOWN
        .iter()
        .any(|known| known.built_in && known.name == name)
}

/// The feature that a build needs for a transport, if not all builds have it or none.
pub(crate) fn feature(name: &str) -> Option<&'static str> {
    match name {
        VERBS => Some(VERBS),
        CUDA | CUDA_IPC | STAGED => Some(CUDA),
        _ => None,
    }
}

/// Does what an engine does with a transport when it starts, for one worker.
fn install(name: &str) -> Availability {
    let files: Arc<dyn FileTable> = Arc::new(Files::default());
    let gpus = match name {
        CUDA | CUDA_IPC | STAGED => Gpus::load().and_then(|gpus| {
            gpus.gpus()?;
            Ok(gpus)
        }),
        _ => Err(CudaError::SwitchedOff),
    };
    let verbs = VerbsConfig::default();
    let transport = make(name, Arc::new(NoRegions), &files, 1, &verbs, &gpus);
    let why = match transport {
        Ok(transport) => try_out(&*transport, None),
        Err(error) => Some(error.to_string()),
    };
    match why {
        None => Availability::Available,
        Some(why) => Availability::Failed { why },
    }
}

/// A transport that is built in, over the memory that peers may touch, or files of this engine. Large copies between processes
/// of one host are cut over so many threads.
pub(crate) fn make(
    name: &str,
    regions: Arc<dyn RegionTable>,
    files: &Arc<dyn FileTable>,
    copiers: usize,
    verbs: &VerbsConfig,
    gpus: &Result<Arc<Gpus>, CudaError>,
) -> io::Result<Arc<dyn Transport>> {
    let of_files = |way| Arc::new(FileTransport::new(way, files.clone()));
    match name {
        SHM => Ok(Arc::new(ShmTransport::new(regions, copiers)?)),
        URING => Ok(of_files(Way::Uring)),
        PREAD => Ok(of_files(Way::Pread)),
        VERBS => over_rdma(regions, verbs),
        CUDA => {
            let gpus = gpus.as_ref().map_err(|error| error.clone())?;
            Ok(Arc::new(CudaTransport::new(gpus.clone(), regions)))
        }
        CUDA_IPC => {
            let gpus = gpus.as_ref().map_err(|error| error.clone())?;
            Ok(Arc::new(CudaIpcTransport::new(gpus.clone(), regions)?))
        }
        STAGED => match gpus {
            Ok(_) => Ok(Arc::new(StagedTransport)),
            Err(error) => Err(error.clone().into()),
        },
        _ => Ok(Arc::new(TcpTransport::new(regions))),
    }
}

#[cfg(feature = "verbs")]
fn over_rdma(
    regions: Arc<dyn RegionTable>,
    config: &VerbsConfig,
) -> io::Result<Arc<dyn Transport>> {
    let settings = polyrail_verbs::Settings {
        queue_depth: config.queue_depth,
        lanes_max: config.queue_pairs,
        batch_span: config.batch.into(),
        ack_timeout: config.ack_timeout,
        retry_count: config.retry_count,
        gid_index: config.gid_index(),
        pkey: config.partition(),
        traffic_class: config.traffic_class,
        service_level: config.service_level,
        inline_bytes: config.inline_bytes,
        gpu_memory: config.gpu_memory,
        relaxed_ordering: config.relaxed_ordering,
        ..Default::default()
    };
    let transport = polyrail_verbs::VerbsTransport::new(regions, settings)?;
    Ok(Arc::new(transport))
}

#[cfg(not(feature = "verbs"))]
fn over_rdma(_: Arc<dyn RegionTable>, _: &VerbsConfig) -> io::Result<Arc<dyn Transport>> {
    Err(io::Error::other("this build does not have it"))
}

/// Memory that nobody offers.
#[derive(Debug)]
struct NoRegions;

impl RegionTable for NoRegions {
    fn find(&self, _: &RegionKey, _: TrustDomain) -> Option<Arc<Region>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_is_there_and_each_name_is_there_once() {
        let found = transports();
        assert_eq!(
            (found[0].name, &found[0].availability),
            (TCP, &Availability::Available)
        );
        let mut names: Vec<_> = names().collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), found.len() + OTHER_NAMES.len());
    }

    #[test]
    fn their_names_are_the_transports_own() {
        for name in [TCP, SHM, URING, PREAD] {
            let files: Arc<dyn FileTable> = Arc::new(Files::default());
            let config = VerbsConfig::default();
            let gpus = Err(CudaError::NotBuiltIn);
            let transport = make(name, Arc::new(NoRegions), &files, 1, &config, &gpus).unwrap();
            assert_eq!(transport.name(), name);
        }
    }
}
