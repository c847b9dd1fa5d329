//! Several workers at once.

extern crate std;
use super::*;
use loom::thread;
use std::sync::Arc;
use std::vec::Vec;

const RESET: ResetConfig = ResetConfig {
    rail_error_threshold: 1,
    ..ResetConfig::DEFAULT
};

fn ms(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

/// What three workers answer that do so at once, this thread being one of them.
fn three(health: RailHealth, call: fn(&RailHealth, u16) -> bool) -> (Arc<RailHealth>, Vec<bool>) {
    let health = Arc::new(health);
    let start = |worker| {
        let health = Arc::clone(&health);
        thread::spawn(move || call(&health, worker))
    };
    let others = [start(1), start(2)];
    let own = call(&health, 0);
    let mut answers: Vec<bool> = others.map(|other| other.join().unwrap()).into();
    answers.push(own);
    (health, answers)
}

fn healthy() -> RailHealth {
    let health = RailHealth::new();
    health.reset();
    health
}

fn paused() -> RailHealth {
    let health = healthy();
    assert!(health.handle_incident(ms(0), Incident::Silence));
    health
}

fn count(answers: &[bool]) -> usize {
    answers.iter().filter(|answer| **answer).count()
}

#[test]
fn an_incident_that_all_workers_report_counts_once() {
    loom::model(|| {
        let (health, answers) = three(healthy(), |health, _| {
            health.handle_incident(ms(5), Incident::Silence)
        });
        assert_eq!(count(&answers), 1);
        assert_eq!(
            (health.state(), health.flaps(ms(5))),
            (RailState::Paused, 1)
        );
    });
}

#[test]
fn one_worker_claims_a_probe_and_only_it_decides() {
    loom::model(|| {
        let (health, answers) = three(paused(), |health, worker| {
            let claimed = health.claim_probe(ms(10), worker);
            assert!(claimed || !health.handle_probe_good(ms(11), worker));
            claimed
        });
        assert_eq!(count(&answers), 1);
        assert_eq!(health.state(), RailState::Probing);
    });
}

#[test]
fn no_error_of_several_workers_is_lost() {
    loom::model(|| {
        let (health, answers) = three(healthy(), |health, _| {
            health.handle_error(ms(5), &ResetConfig::DEFAULT)
        });
        assert_eq!(count(&answers), 1, "the third one trips");
        assert_eq!(health.state(), RailState::Paused);
    });
}

#[test]
fn nobody_probes_before_it_is_due() {
    loom::model(|| {
        let health = Arc::new(healthy());
        let other = Arc::clone(&health);
        let prober = thread::spawn(move || other.claim_probe(ms(6), 1));
        assert!(health.handle_incident(ms(5), Incident::Silence));
        assert!(!prober.join().unwrap());
    });
}

#[test]
fn a_trip_is_not_over_before_its_cooldown() {
    loom::model(|| {
        let health = Arc::new(healthy());
        let other = Arc::clone(&health);
        let timer = thread::spawn(move || other.handle_expiry(ms(6)));
        assert!(health.handle_error(ms(5), &RESET));
        assert!(!timer.join().unwrap());
    });
}
