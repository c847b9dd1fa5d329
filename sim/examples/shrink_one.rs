#![allow(missing_docs)]
use polyrail_sim::swarm::{self, Case, Kind};
fn main() {
    let args: Vec<_> = std::env::args().collect();
    let seed: u64 = args[1].parse().unwrap();
    let kind = if args[2] == "endings" {
        Kind::Endings
    } else {
        Kind::Healing
    };
    let within = args.get(3).and_then(|t| t.parse().ok()).unwrap_or(20);
    if args.len() > 3 && args[3] == "show" {
        let c = Case::draw(kind, seed);
        println!("# policy {}\n{}", c.policy.name(), swarm::file(&c).unwrap());
        return;
    }
    std::panic::set_hook(Box::new(|_| {}));
    let case = Case::draw(kind, seed);
    match swarm::run(&case) {
        Ok(t) => println!("ok {t:?}"),
        Err(v) => {
            println!("# {v}");
            let (case, v) = swarm::shrink(&case, &v, std::time::Duration::from_secs(within));
            println!("# made smaller: {v}\n# policy {}", case.policy.name());
            println!("{}", swarm::file(&case).unwrap());
        }
    }
}
