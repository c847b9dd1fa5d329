//! Wrong values: exit 2, and an error that names flag, value and what would be right.

use crate::harness::run;

#[test]
fn wrong_values_are_usage_errors_that_name_flag_and_value() {
    // (line, what the error names)
    let cases: [(&str, &[&str]); 20] = [
        ("", &["Usage"]),
        ("fly", &["fly"]),
        ("bench --block 64KX", &["--block", "64KX", "64KiB"]),
        ("bench --block 0", &["--block", "0", "at least 1"]),
        ("bench --block 8K..4K", &["--block", "8K..4K", "4K..8K"]),
        ("bench --batch 0..4", &["--batch", "0", "from 1 to"]),
        ("bench --threads 9999", &["--threads", "9999", "from 1 to"]),
        ("bench --seconds -3", &["--seconds", "-3", "above 0"]),
        ("bench --timeline 0", &["--timeline", "0", "from 1 to"]),
        ("bench --op copy", &["--op", "copy", "write"]),
        ("bench --policy best", &["--policy", "best", "round-robin"]),
        ("bench --memory cuda:x", &["--memory", "cuda:x", "cpu"]),
        (
            "bench --target nowhere",
            &["--target", "nowhere", "HOST:PORT"],
        ),
        ("bench --rails eth0", &["--rails", "eth0", "IP address"]),
        ("serve --memory much", &["--memory", "much", "64KiB"]),
        ("sim run nowhere", &["nowhere", "sim list"]),
        (
            "sim run incast --policy best",
            &["--policy", "best", "round-robin"],
        ),
        ("agent --slots 0", &["--slots", "0", "1..="]),
        ("agent --slots many", &["--slots", "many"]),
        ("demo --seconds 1", &["--seconds", "1", "at least 2"]),
    ];
    for (line, parts) in cases {
        run(line).expect(2).names(parts);
    }
}

#[test]
fn listening_beyond_loopback_has_to_be_said_twice() {
    run("serve --listen 0.0.0.0:0")
        .expect(2)
        .names(&["0.0.0.0", "--insecure"]);
    run("serve --rails 192.0.2.1")
        .expect(2)
        .names(&["192.0.2.1", "--insecure"]);
}

#[test]
fn a_benchmark_without_a_cell_that_fits_is_a_usage_error() {
    run("bench --block 1M --batch 2 --buffer 1M")
        .expect(2)
        .names(&["--block", "--buffer", "1MiB"]);
}

#[test]
fn help_goes_to_standard_output() {
    for command in [
        "",
        "agent ",
        "demo ",
        "serve ",
        "bench ",
        "check-config ",
        "cp ",
        "topo ",
        "sim ",
        "sim run ",
    ] {
        let ended = run(&format!("{command}--help")).expect(0);
        assert!(ended.stdout.contains("Example"), "{ended:?}");
    }
}
