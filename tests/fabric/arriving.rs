//! A second link comes up while one carries data, goes away in several ways, and comes back: it is used without a restart,
//! and nobody who moves data notices.

use std::time::{Duration, Instant};

use crate::fabric::{End, Fabric, address};
use crate::program::{Bench, Rails, Target};
use crate::waiting::until;

const RATES_MBIT: [u32; 2] = [400; 2];

/// The one that comes and goes.
const RAIL: usize = 1;

/// How soon a link that is there has to carry a fair part. Far above what it takes: figures are printed.
const FAIR_MAX: Duration = Duration::from_secs(3);

/// How long a single step may take.
const STEP: Duration = Duration::from_secs(8);

/// Bytes that are traffic: about a tenth of a second's. And bytes that are not.
const MUCH: u64 = 4_000_000;
const LITTLE: u64 = 250_000;

/// A benchmark over a link that is there all the time and one that is not.
struct Play<'a> {
    fabric: &'a Fabric,
    bench: Bench,
}

impl Play<'_> {
    /// Waits until the second link carries as much of a stretch as two equal links can be told apart by.
    fn wait_for_share(&mut self, what: &str) {
        let (start, mut from) = (Instant::now(), self.fabric.carried());
        until(what, STEP, || {
            self.bench.expect_running();
            let now = self.fabric.carried();
            let moved = [0, RAIL].map(|rail| now[rail].saturating_sub(from[rail]));
            if moved[0] + moved[1] < 2 * MUCH {
                return None;
            }
            // Of two equal ones a third is fair, half is even.
            let is_fair = moved[1] * 3 >= moved[0] + moved[1];
            from = now;
            is_fair.then_some(())
        });
        let took = start.elapsed();
        println!("{what}: after {} ms", took.as_millis());
        assert!(took <= FAIR_MAX, "{what}: after {took:?}");
    }

    /// Waits until the first link has carried what takes it half a second, and the second nothing to speak of meanwhile.
    fn wait_for_the_other(&mut self, what: &str) {
        let mut from = self.fabric.carried();
        until(what, STEP, || {
            self.bench.expect_running();
            let now = self.fabric.carried();
            if now[RAIL].saturating_sub(from[RAIL]) > LITTLE {
                // It was still under way; look at a new stretch.
                from = now;
                return None;
            }
            (now[0].saturating_sub(from[0]) >= 6 * MUCH).then_some(())
        });
    }

    /// Takes the link away, and gives it back.
    fn interrupt(&mut self, what: &str, gone: &[(End, &str)], there: &[(End, &str)]) {
        for (end, words) in gone {
            self.fabric.ip(*end, words);
        }
        self.wait_for_the_other(&format!("{what}: the other carries on"));
        for (end, words) in there {
            self.fabric.ip(*end, words);
        }
        self.wait_for_share(&format!("{what}: it is used again"));
    }
}

#[track_caller]
fn come_go_and_come_back(rails: Rails) {
    use End::{Initiator, Target as Far};

    let Some(fabric) = Fabric::without(&RATES_MBIT, RAIL) else {
        return;
    };
    let target = Target::start_with(&fabric, rails);
    let flags = "--op write --block 1MiB --batch 8 --threads 2 --seconds 14 --verify";
    let bench = Bench::start_with(&fabric, &target, flags, rails);
    let mut play = Play {
        fabric: &fabric,
        bench,
    };
    play.bench.until_measuring();
    play.wait_for_the_other("one link carries");
    fabric.lay(RAIL, RATES_MBIT[RAIL]);
    play.wait_for_share("a link that comes later");

    for (what, end) in [("this end", Initiator), ("the other end", Far)] {
        let words = |verb| format!("address {verb} {}/24 dev rail1", address(RAIL, end));
        let what = format!("the address of {what}");
        play.interrupt(&what, &[(end, &words("del"))], &[(end, &words("add"))]);
    }
    play.interrupt(
        "this end's device",
        &[(Initiator, "link set rail1 down")],
        &[(Initiator, "link set rail1 up")],
    );
    fabric.ip(Initiator, "link del rail1");
    play.wait_for_the_other("the link itself: the other carries on");
    fabric.lay(RAIL, RATES_MBIT[RAIL]);
    play.wait_for_share("the link itself: it is used again");

    let ended = play.bench.finish(Duration::from_secs(30));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let cell = ended.cell();
    assert_eq!(cell["failed_requests"], 0);
    assert_eq!(cell["verified"], true);
    for said in ["is there", "is not there"] {
        let line = format!("{} {said}", address(RAIL, Initiator));
        assert!(ended.stderr.contains(&line), "{line}: {}", ended.stderr);
    }
}

#[test]
fn a_link_with_a_named_address_comes_later_goes_and_comes_back() {
    come_go_and_come_back(Rails::Named);
}

#[test]
fn a_link_that_nobody_named_comes_later_goes_and_comes_back() {
    come_go_and_come_back(Rails::Within("10.77.0.0/16"));
}
