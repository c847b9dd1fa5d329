//! `demo`: it shows what it promises.

use crate::harness::run;

#[test]
fn it_ends_well_and_says_so_in_its_last_line() {
    let ended = run("demo --seconds 3").expect(0);
    let last = ended.stdout.lines().last().unwrap_or_default();
    assert!(last.starts_with("ok: "), "{ended:?}");
    for part in [
        "tcp:127.0.0.3>127.0.0.3",
        "▼cut",
        "▼restored",
        "wrong bytes: 0",
    ] {
        assert!(
            ended.stdout.contains(part),
            "\"{part}\" is not in {ended:?}"
        );
    }
}
