#![allow(missing_docs)]
use polyrail_sim::{Options, Policy, Setup, scenario::Scenario, simulate};
fn main() {
    let a: Vec<_> = std::env::args().collect();
    let text = std::fs::read_to_string(&a[1]).unwrap();
    let setup = Setup::new(&text, &Scenario::parse(&text).unwrap(), None).unwrap();
    let policy = polyrail_sim::policy(&a[2]).unwrap();
    let _ = Policy::Spray;
    let o = simulate(
        &setup,
        Options {
            audit: true,
            strict: true,
            events_max: 1_000_000,
            ..Options::new(policy)
        },
        &mut |_, _| {},
    );
    println!("{:?}", o.violation);
}
