//! A target that ends and comes back.

use std::time::{Duration, Instant};

use polyrail::{Access, Config, Engine, Request, Status};

use crate::fixture::*;

#[test]
fn a_target_that_was_started_anew_is_another_one() {
    let mut pair = Pair::new(MIB);
    let at = pair.target.listening().unwrap();
    for round in 0..2 {
        pair.exchange(round);
        pair.target.shutdown();
        let config = Config {
            listen: Some(at),
            ..target_config("target")
        };
        pair.target = Engine::new(config).unwrap();
        pair.there = pair
            .target
            .allocate("mem", MIB, Access::RemoteReadWrite)
            .unwrap();
        let start = Instant::now();
        let old = pair.submit(pair.write_all());
        // At once, whether the loss of the old one has been noticed or not.
        let remote = pair.initiator.open_segment(&format!("{at}/mem")).unwrap();
        assert_ne!(remote, pair.remote);
        completed(&pair.submit(Request {
            remote,
            ..pair.write_all()
        }));
        assert!(bytes(&pair.destination()) == pattern(round, MIB));
        assert_ne!(ended(&old).status, Status::Completed);
        assert!(old.report(0).unwrap().cause.is_some());
        assert!(
            start.elapsed() < Duration::from_secs(8),
            "{:?}",
            start.elapsed()
        );
        // And once it has been noticed, the old segment's requests still end.
        let late = pair.submit(pair.write_all());
        assert_eq!(ended(&late).status, Status::Failed, "{:?}", late.report(0));
        pair.remote = remote;
    }
}
