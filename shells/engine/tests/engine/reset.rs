//! Health mode `reset` of the TENT failover document on real engines, by the keys of the transports that it is said of.

use std::time::{Duration, Instant};

use polyrail::{Config, RailState, Spoils};

use crate::failover::{Two, every_read};
use crate::fixture::*;
use crate::notes::{listen, logged};

/// Two engines in mode `reset`. What is said of `rdma` is said of the plugin, and by its own name of tcp.
fn two(rdma: &str, tcp: &str) -> Two {
    let json = format!(
        r#"{{ "health": {{ "mode": "reset" }}, "max_failover_attempts": 200,
             "transports": {{ "rdma": {{ {rdma} }}, "tcp": {{ {tcp} }} }} }}"#
    );
    let config = Config::from_json(&json).unwrap();
    Two::configured(config, crate::failover::rdma, Spoils::default())
}

/// Where the rails of both transports stand.
fn states(two: &Two) -> [RailState; 2] {
    let rails = two.initiator.rails();
    [0, 1].map(|rail: usize| rails[rail].state)
}

#[test]
fn a_rail_pauses_at_its_transports_threshold_and_returns_after_its_cooldown() {
    listen();
    let two = two(
        r#""rail_error_threshold": 2, "rail_cooldown_secs": 1"#,
        r#""rail_error_threshold": 1000, "rail_cooldown_secs": 300"#,
    );
    two.rdma.spoil(every_read());
    let began = Instant::now();
    completed(&two.read(0, 1000));
    two.arrived(0, 1000);
    until("rdma is paused", || {
        completed(&two.read(0, 1000));
        states(&two)[0] == RailState::Paused
    });
    assert!(!two.failovers().is_empty());
    two.rdma.spoil(Spoils::default());
    until("its cooldown is over", || {
        states(&two)[0] == RailState::Healthy
    });
    assert!(began.elapsed() >= Duration::from_secs(1));
    let recovered = "Rail recovered: local_nic=rdma:* remote_nic=127.0.0.1 (cooldown expired)";
    until("that is logged", || logged(recovered));
    let before = two.initiator.rails()[0].bytes;
    until("it carries bytes again", || {
        completed(&two.read(0, 1000));
        two.initiator.rails()[0].bytes > before
    });
}
