#![allow(missing_docs)]
use polyrail_sim::exhaustive::{Bounds, explore};
fn main() {
    let f: u8 = std::env::args().nth(1).unwrap().parse().unwrap();
    let t = std::time::Instant::now();
    let e = explore(
        polyrail_sim::Policy::Spray,
        Bounds {
            faults: f,
            timers: 1,
        },
        |_| {},
    );
    println!(
        "{} {} {} {:?} {:?}",
        e.states,
        e.steps,
        e.depth,
        e.violation,
        t.elapsed()
    );
}
