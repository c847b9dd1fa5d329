//! For tests: a target and an initiator of this process, with memory at either end.

use polyrail_core::work::Op;
use polyrail_transport::memory::Access;

use crate::config::Config;
use crate::engine::Engine;
use crate::request::Request;
use crate::segments::SegmentId;

pub(crate) struct Pair {
    /// It lives as long as anybody may write to it.
    _target: Engine,
    pub(crate) engine: Engine,
    local: SegmentId,
    remote: SegmentId,
}

impl Pair {
    /// So many bytes each, over TCP; what the configurations say of their names and of listening is not looked at.
    pub(crate) fn over_tcp(target: Config, initiator: Config, bytes: u64) -> Self {
        let start = |name: &str, config: Config, listen| {
            let config = Config {
                name: name.into(),
                listen,
                ..config.without("shm")
            };
            Engine::new(config).unwrap()
        };
        let target = start("target", target, Some("127.0.0.1:0".parse().unwrap()));
        let access = Access::RemoteReadWrite;
        target.allocate("mem", bytes, access).unwrap();
        let engine = start("initiator", initiator, None);
        let address = target.listening().unwrap();
        Self {
            local: engine.allocate("here", bytes, Access::Local).unwrap(),
            remote: engine.open_segment(&format!("{address}/mem")).unwrap(),
            _target: target,
            engine,
        }
    }

    pub(crate) fn request(&self, op: Op, length: u64) -> Request {
        Request {
            op,
            local: self.local,
            local_offset: 0,
            remote: self.remote,
            remote_offset: 0,
            length,
        }
    }
}
