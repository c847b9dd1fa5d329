//! Against what is computed by hand.

use super::*;
use crate::model::Done;
use crate::scenario::Scenario;

const GB: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// Three hosts, without jitter; nothing costs a worker time, and lanes open at once.
fn setup(rest: &str) -> Setup {
    let engine = match rest.contains("[engine]") {
        true => "",
        false => "[engine]\npost_ns = 0\ncompletion_ns = 0\n",
    };
    let timing = match rest.contains("[timing]") {
        true => "",
        false => "[timing]\nopen_us = 0\n",
    };
    let text = format!(
        "name = \"x\"\nduration_ms = 10\n{engine}{timing}[jitter]\nservice_percent = 0\noutlier_one_in = 0\n\
         [[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n[[host]]\nname = \"c\"\n{rest}"
    );
    Setup::new(&text, &Scenario::parse(&text).unwrap(), None).unwrap()
}

fn nic(host: &str, name: &str, gbytes: u32, delay_us: u32) -> String {
    let gbits = 8 * gbytes;
    format!(
        "[[device]]\nhost = \"{host}\"\nname = \"{name}\"\nrate_gbits_per_sec = {gbits}\ndelay_us = {delay_us}\n"
    )
}

fn rail(from: &str, to: &str) -> String {
    format!("[[rail]]\nfrom = \"{from}\"\nto = \"{to}\"\n")
}

fn work(from: &str, to: &str, block: u64, threads: u32) -> String {
    format!(
        "[[workload]]\nfrom = \"{from}\"\nto = \"{to}\"\nop = \"write\"\nblock = {block}\nthreads = {threads}\n"
    )
}

/// A rail of its own from `a` to `b`, of this rate and delay.
fn own_rail(name: &str, gbytes: u32, delay_us: u32) -> String {
    let (from, to) = (format!("a/{name}"), format!("b/{name}"));
    nic("a", name, gbytes, delay_us) + &nic("b", name, gbytes, 0) + &rail(&from, &to)
}

/// A run in which each submitter got so much through in so many batches.
fn moved(bytes: &[(u64, u64)]) -> History {
    let done = bytes.iter().map(|(batches, bytes)| Done {
        batches: *batches,
        bytes: *bytes,
        good_bytes: *bytes,
        ..Done::default()
    });
    History {
        done: done.collect(),
        began_at: 0,
        ..History::default()
    }
}

/// Two rails of 10 and 5 GB/s.
fn two_rails() -> String {
    let devices = [
        nic("a", "x", 10, 1),
        nic("a", "y", 20, 1),
        nic("b", "x", 10, 1),
        nic("b", "y", 5, 1),
    ];
    devices.concat() + &rail("a/x", "b/x") + &rail("a/y", "b/y")
}

/// What closed loops get through over what is there from the start, in megabytes a second.
fn loops(rest: &str) -> u64 {
    loops_of(&setup(rest))
}

fn loops_of(setup: &Setup) -> u64 {
    let class = &Class::all(setup)[0];
    let flow = Flow::all(setup)[0];
    let turns = Turns::new(setup, class, flow, flow.routes(class));
    turns.bytes_per_sec(class.count(), 0) / 1_000_000
}

#[test]
fn rails_add_up_and_the_slower_end_counts() {
    let one = setup(&(two_rails() + &work("a", "b", 15_000_000, 1)));
    assert_eq!(Capacity::of_all(&one).rates(), [15 * GB]);
    // 15 MB at 15 GB/s and one delay of 2 µs, and at most as long as one part of 8 KiB takes on the slower one.
    let least = least_time(&one, &moved(&[(1, 15_000_000)])).unwrap();
    assert!((MS + 1_998..MS + 3_700).contains(&least), "{least}");
    // The same in ten dependent batches.
    let ten = setup(&(two_rails() + &work("a", "b", 1_500_000, 1)));
    let least = least_time(&ten, &moved(&[(10, 15_000_000)])).unwrap();
    assert!((MS + 19_980..MS + 37_000).contains(&least), "{least}");
}

#[test]
fn requests_are_cut_into_whole_parts() {
    let four: String = ["w", "x", "y", "z"]
        .map(|name| own_rail(name, 10, 2))
        .concat();
    // One part on one rail: 8 kB / (2 + 0.8 µs), of 40 GB/s that there are.
    assert_eq!(loops(&(four.clone() + &work("a", "b", 8_000, 1))), 2_857);
    // Three parts of 8 kB on three rails.
    assert_eq!(loops(&(four.clone() + &work("a", "b", 24_000, 1))), 8_571);
    // Five: one rail has two of them. 40 kB / (2 + 1.6 µs)
    assert_eq!(loops(&(four + &work("a", "b", 40_000, 1))), 11_111);
}

#[test]
fn where_delays_vary_a_request_waits_for_the_last_of_its_parts() {
    let four: String = ["w", "x", "y", "z"]
        .map(|name| own_rail(name, 1, 2))
        .concat();
    let text = "name = \"x\"\nduration_ms = 10\n[engine]\npost_ns = 0\ncompletion_ns = 0\n\
                [jitter]\nservice_percent = 0\noutlier_one_in = 0\ndelay_percent = 1000\n\
                [[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n"
        .to_owned()
        + &four;
    let of = |block| {
        let text = text.clone() + &work("a", "b", block, 1);
        loops_of(&Setup::new(&text, &Scenario::parse(&text).unwrap(), None).unwrap())
    };
    // On one, two or four rails 87.5, 64.8 or 60.1 µs: the last of four parts is 20 × (1 + 1/2 + 1/3 + 1/4) µs late in the mean.
    let long = of(65_536);
    assert!((1_090..=1_092).contains(&long), "{long}");
    // 38.4, 40.2 or 45.8 µs.
    let short = of(16_384);
    assert!((426..=427).contains(&short), "{short}");
}

#[test]
fn a_worker_posts_one_part_after_the_other() {
    let engine = "[engine]\npost_ns = 1000\ncompletion_ns = 0\n".to_owned();
    let four: String = ["w", "x", "y", "z"]
        .map(|name| own_rail(name, 10, 2))
        .concat();
    // Three parts of 8 kB on one, two or four rails: 5.4, 1.5 + 2 + 1.6 or 2.5 + 2 + 0.8 µs.
    let of = loops(&(engine + &four + &work("a", "b", 24_000, 1)));
    assert!((4_704..=4_706).contains(&of), "{of}");
}

#[test]
fn a_slow_rail_takes_no_part_that_lasts_longer_than_the_batch() {
    let rails = own_rail("x", 10, 2) + &own_rail("y", 1, 2);
    // A part takes 0.8 µs or 8: 16 kB / (2 + 1.6 µs).
    assert_eq!(loops(&(rails.clone() + &work("a", "b", 16_000, 1))), 4_444);
    // Of twenty at a time it takes four of 40 parts: 36 on the other one take 28.8 µs, so the next one of its own fits not yet.
    let twenty = loops(&(rails + &work("a", "b", 16_000, 20)));
    assert!((10_700..11_000).contains(&twenty), "{twenty}");
}

#[test]
fn workloads_that_are_alike_share_the_near_rails() {
    let of = |host: &str| {
        nic(host, "n", 10, 1)
            + &nic(host, "f", 10, 500)
            + &rail(&format!("{host}/n"), "c/n")
            + &rail(&format!("{host}/f"), "c/f")
            + &work(host, "c", 1_000_000, 1)
    };
    let setup = setup(&(nic("c", "n", 10, 1) + &nic("c", "f", 10, 500) + &of("a") + &of("b")));
    // Two requests at a time over the near rail: 200 µs and its delay, and the far one is 1 ms away.
    let least = least_time(&setup, &moved(&[(10, 10_000_000); 2])).unwrap();
    assert!((2 * MS..2 * MS + 50_000).contains(&least), "{least}");
}

#[test]
fn workloads_that_differ_share_the_near_rails() {
    let rails = own_rail("near", 10, 2) + &own_rail("far", 10, 1_000);
    let works = work("a", "b", 1_000_000, 1) + &work("a", "b", 500_000, 1);
    let least = |bytes: &[(u64, u64)]| {
        let setup = setup(&(rails.clone() + &works));
        least_time(&setup, &moved(bytes)).unwrap()
    };
    // By itself each would take 1 ms and a delay for each batch over the near rail; the far one is 1 ms away.
    let both = least(&[(10, 10_000_000), (20, 10_000_000)]);
    assert!((2 * MS..2 * MS + 50_000).contains(&both), "{both}");
    let one = least(&[(10, 10_000_000), (0, 0)]);
    assert!((MS..MS + 50_000).contains(&one), "{one}");
    // Those that last longer than the far rail's delay use it, too: 20 GB/s, but for that delay in each turn.
    let works = work("a", "b", 64_000_000, 2) + &work("a", "b", 32_000_000, 2);
    let setup = setup(&(rails.clone() + &works));
    let long = least_time(&setup, &moved(&[(5, 320_000_000); 4])).unwrap();
    assert!((64 * MS..65 * MS).contains(&long), "{long}");
}

#[test]
fn a_far_rail_counts_as_far_as_batches_last_longer_than_its_delay() {
    let near: String = ["x", "y", "z"].map(|name| own_rail(name, 10, 2)).concat();
    let rails = near + &own_rail("far", 10, 1_000);
    let of = |block: u64, threads| loops(&(rails.clone() + &work("a", "b", block, threads)));
    // Four of 4 MB last 533 µs over the near ones: the far one would make them longer.
    assert!((29_900..=30_000).contains(&of(4_000_000, 4)));
    // Four of 64 MB last 6.4 ms.
    assert!((39_900..=40_000).contains(&of(64_000_000, 4)));
    // One of 64 MB: 10 GB/s × (3 × (T − 2 µs) + T − 1 ms) = 64 MB, so T is 1.8515 ms.
    assert!((34_500..=34_567).contains(&of(64_000_000, 1)));
}

#[test]
fn lanes_hold_so_many_slices_of_a_megabyte() {
    let shallow =
        own_rail("x", 10, 400).replacen("delay_us", "queue_depth = 4\nreads_max = 2\ndelay_us", 1);
    let write = work("a", "b", 100 << 20, 8);
    // 4 MiB / (400 + 104.9 µs), and half of that for reads.
    assert_eq!(loops(&(shallow.clone() + &write)), 8_307);
    let read = write.replace("write", "read");
    assert_eq!(loops(&(shallow + &read)), 4_153);
}

#[test]
fn what_is_seen_at_looks_only_lasts_until_the_next_one() {
    let looks = "[engine]\npost_ns = 0\ncompletion_ns = 0\npoll_us = 100\n";
    // 1 MB takes 102 µs, seen after 200; of ten such at a time the rail is full.
    let of = |threads| {
        loops(&(looks.to_owned() + &own_rail("x", 10, 2) + &work("a", "b", 1_000_000, threads)))
    };
    assert_eq!(of(1), 5_000);
    assert!((9_990..=10_000).contains(&of(10)), "{}", of(10));
}

#[test]
fn the_busiest_worker_limits() {
    let engine = "[engine]\npost_ns = 600\ncompletion_ns = 400\n";
    let small = setup(&(engine.to_owned() + &own_rail("x", 10, 2) + &work("a", "b", 4_000, 64)));
    let history = moved(&[(1_000, 4_000_000); 64]);
    // 64,000 requests of 1 µs each, where the rail would take 25.6 ms.
    assert_eq!(least_time(&small, &history), Some(64 * MS));
}

#[test]
fn lanes_open_first() {
    let timing = "[timing]\nopen_us = 50\n";
    let setup = setup(&(timing.to_owned() + &own_rail("x", 10, 2) + &work("a", "b", 8_000, 1)));
    // 50 µs, 2 µs and 8 kB at 10 GB/s; rates are whole bytes a second.
    let least = least_time(&setup, &moved(&[(1, 8_000)])).unwrap();
    assert!(least.abs_diff(52_800) <= 1, "{least}");
}

#[test]
fn one_transport_counts_at_a_time() {
    let second = |gbytes| own_rail("y", gbytes, 2) + "rank = 1\n";
    let rates = |gbytes, fault: &str| {
        let text = own_rail("x", 10, 2) + &second(gbytes) + &work("a", "b", 1_000_000, 2) + fault;
        Capacity::of_all(&setup(&text)).rates().to_vec()
    };
    assert_eq!(rates(4, ""), [10 * GB]);
    assert_eq!(rates(16, ""), [10 * GB]);
    let cut = "[[fault]]\nat_ms = 1\nkind = \"error\"\ntarget = \"a/x\"\n";
    assert_eq!(rates(4, cut), [10 * GB, 4 * GB]);
    // Slow, but not cut: left at less than half.
    let slow = "[[fault]]\nat_ms = 1\nkind = \"slow\"\nfactor = 0.1\ntarget = \"a/x\"\n";
    assert_eq!(rates(4, slow), [10 * GB, 4 * GB]);
}

#[test]
fn a_near_transport_counts_where_there_is_little_to_move() {
    // 8 kB take 2 + 8 µs over the first one, and 1,000 µs over the second, which passes sixteen times as much.
    let text = own_rail("x", 1, 2) + &own_rail("y", 16, 1_000) + "rank = 1\n";
    let small = setup(&(text.clone() + &work("a", "b", 8_000, 1)));
    let least = least_time(&small, &moved(&[(1_000, 8_000_000)])).unwrap();
    assert!(least.abs_diff(10 * MS) <= MS / 100, "{least}");
    // 80 MB take 80 ms over the first one, and 6 ms over the second.
    let large = setup(&(text + &work("a", "b", 80_000_000, 1)));
    let least = least_time(&large, &moved(&[(10, 800_000_000)])).unwrap();
    assert!(least.abs_diff(60 * MS) <= MS, "{least}");
}

#[test]
fn errors_by_chance_take_their_time_off() {
    let text = "[trouble]\nerror_one_in = 1000\nuntil_ms = 10\n".to_owned()
        + "[timing]\nopen_us = 50\nfence_us = 500\ncontrol_us = 20\n"
        + &own_rail("x", 3, 10)
        + &work("a", "b", 1_000_000, 2);
    // One in 21.845 ms, and 600 µs each.
    let rate = Capacity::of_all(&setup(&text)).rates()[0];
    assert!(
        rate.abs_diff(3 * GB * 21_845 / 22_445) < GB / 1_000,
        "{rate}"
    );
}

#[test]
fn only_what_completed_counts_and_pauses_are_no_time() {
    let text = own_rail("x", 10, 2) + &work("a", "b", 8_000, 1);
    let setup = setup(&text);
    let mut history = moved(&[(2, 16_000)]);
    (history.ended_at, history.done[0].bytes) = (105_600, 20_000);
    let least = |history: &History| least_time(&setup, history).unwrap();
    assert!(least(&history).abs_diff(5_600) <= 1);
    // 100 µs between the two batches.
    history.idle = vec![(2_800, 102_800)];
    history.done[0].paused_ns = 100_000;
    assert!(least(&history).abs_diff(5_600) <= 1);
    assert_eq!(busy_time(&history), 5_600);
}

#[test]
fn a_bottleneck_limits_its_members_together() {
    let shared = "[[bottleneck]]\nname = \"switch\"\nrate_gbits_per_sec = 64\nmembers = [\"a/x\", \"a/y\"]\n";
    let setup = setup(&(two_rails() + &work("a", "b", 1, 1) + shared));
    assert_eq!(Capacity::of_all(&setup).rates(), [8 * GB]);
}

#[test]
fn capacities_change_with_faults() {
    let faults = "[[fault]]\nat_ms = 1\nfor_ms = 1\nkind = \"silent\"\ntarget = \"a/x>b/x\"\n\
                  [[fault]]\nat_ms = 3\nkind = \"slow\"\nfactor = 0.5\ntarget = \"b/y\"\n";
    let setup = setup(&(two_rails() + &work("a", "b", 1, 1) + faults));
    let capacity = Capacity::of_all(&setup);
    assert_eq!(capacity.rates(), [15 * GB, 5 * GB, 15 * GB, 12_500_000_000]);
    // 15 MB in the first millisecond, 5 in the second, 15 in the third, and half a millisecond more.
    assert_eq!(capacity.passed_at(0, 41_250_000), 3 * MS + MS / 2);
    assert_eq!(capacity.bytes_between(MS / 2, 2 * MS), 12_500_000);
}

#[test]
fn two_senders_into_one_receiver_share_it() {
    let devices = [
        nic("a", "x", 10, 1),
        nic("b", "x", 10, 1),
        nic("c", "x", 12, 1),
    ];
    let works = work("a", "c", 1 << 30, 1) + &work("b", "c", 1 << 30, 1);
    let setup = setup(&(devices.concat() + &rail("a/x", "c/x") + &rail("b/x", "c/x") + &works));
    // Both at a time are limited by the receiver, one alone by itself.
    let both = least_time(&setup, &moved(&[(1, 6_000_000), (1, 6_000_000)]));
    assert_eq!(both, Some(MS + 2_000));
    let one = least_time(&setup, &moved(&[(1, 11_000_000), (1, 1_000_000)]));
    assert_eq!(one, Some(MS + MS / 10 + 2_000));
}

#[test]
fn the_mean_of_outliers_is_taken_off() {
    let jitter =
        "name = \"x\"\nduration_ms = 10\n[jitter]\noutlier_one_in = 10\noutlier_factor = 11\n";
    let hosts = "[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n";
    let text = jitter.to_owned() + hosts + &two_rails() + &work("a", "b", 1, 1);
    let setup = Setup::new(&text, &Scenario::parse(&text).unwrap(), None).unwrap();
    assert_eq!(Capacity::of_all(&setup).rates(), [15 * GB / 2]);
}
