//! A configuration that changes while the engine runs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use polyrail::{Config, Engine, EngineError, RailState};

use crate::fixture::*;
use crate::notes::{listen, times_logged};

#[test]
fn rails_that_are_taken_out_carry_nothing_until_they_are_named_again() {
    let pair = Pair::new(16 * MIB);
    let (all, fewer) = (rails(), rails()[..RAILS - 1].to_vec());
    let initiator = || initiator_config();
    let target = || target_config("target");
    let engine = &pair.initiator;
    let last = || engine.rails()[RAILS - 1].clone();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Acquire) {
                completed(&pair.submit(pair.write_all()));
                done.fetch_add(1, AcqRel);
            }
        });
        let carries_on = || {
            let before = (last().bytes, done.load(Acquire));
            until("it goes on", || done.load(Acquire) > before.1 + 4);
            last().bytes > before.0
        };
        until("the last one is used", carries_on);
        let ends: [(&Engine, &dyn Fn() -> Config); 2] =
            [(engine, &initiator), (&pair.target, &target)];
        for (end, config) in ends.into_iter().chain(ends) {
            let reload = |rails: &[_]| {
                end.reload(&Config {
                    rails: rails.to_vec(),
                    ..config()
                })
            };
            reload(&fewer).unwrap();
            until("it is out", || last().state != RailState::Healthy);
            assert!(!carries_on(), "{:?}", engine.rails());
            assert_ne!(last().state, RailState::Healthy);
            // Who comes now is told of the others only, and who is one of them has as many.
            let late = Engine::new(Config {
                rails: fewer.clone(),
                ..initiator()
            });
            let late = late.unwrap();
            if end.listening().is_some() {
                late.open_segment(&address(end, "mem")).unwrap();
                let names: Vec<_> = late.rails().into_iter().map(|rail| rail.name).collect();
                assert!(
                    names.iter().all(|name| !name.ends_with(">127.0.0.4")),
                    "{names:?}"
                );
            }
            let error = reload(&[]).unwrap_err();
            assert!(matches!(error, EngineError::Config { .. }));
            assert!(
                error.to_string().contains("no rail would be left"),
                "{error}"
            );
            reload(&all).unwrap();
            until("it is used again", carries_on);
        }
    });
}

#[test]
fn rails_that_a_peer_has_fewer_of_are_told_of_once() {
    listen();
    let target = || target_config("fewer");
    let pair = Pair::at(Engine::new(target()).unwrap(), MIB, initiator);
    let reload = |rails: &[_]| {
        let rails = rails.to_vec();
        pair.target.reload(&Config { rails, ..target() }).unwrap();
    };
    let last = || pair.initiator.rails()[RAILS - 1].is_withdrawn;
    let fewer = |turn: usize| {
        reload(&rails()[..RAILS - 1]);
        until("it is out", last);
        until("it is said", || {
            times_logged("peer \"fewer\"", "rails") >= turn
        });
    };
    fewer(1);
    // Each of its connections has said so meanwhile.
    (0..20).for_each(|round| pair.exchange(round));
    assert_eq!(times_logged("peer \"fewer\"", "rails"), 1);
    reload(&rails());
    until("it is back", || !last());
    // What was said before may still come on other connections, so now it may be more than once.
    fewer(2);
}

/// Stops what goes on without end, also when a check fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Release);
    }
}
