//! `docs/statuses.md` has every status and cause, and says of each cause what the engine says.

use std::collections::BTreeMap;

use polyrail::{Cause, Status, advice};
use polyrail_tests_book::Page;

#[test]
fn each_status_has_a_row() {
    let page = Page::read("docs/statuses.md").text;
    for status in Status::ALL {
        assert!(page.contains(&format!("\n| `{status:?}` |")), "{status:?}");
    }
}

#[test]
fn causes_may_be_repeated_as_the_engine_says() {
    let page = Page::read("docs/statuses.md").text;
    let (_, table) = page.split_once("| what you see | repeat? |\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    // The first row that names a cause is about it alone; a later one has a condition.
    let mut said: BTreeMap<String, bool> = BTreeMap::new();
    for row in rows.filter(|row| !row.contains("restarted")) {
        let (what, repeat) = row.trim_matches('|').split_once('|').unwrap();
        for word in what.split('`').skip(1).step_by(2) {
            said.entry(word.to_owned())
                .or_insert(repeat.trim_start().starts_with("yes"));
        }
    }
    for cause in Cause::ALL {
        let told = match cause {
            // They are statuses, or come with one.
            Cause::PeerGone | Cause::Cancelled | Cause::ShutDown => continue,
            cause => said.get(&format!("{cause:?}")),
        };
        assert_eq!(told, Some(&advice(cause).is_retryable), "{cause:?}");
    }
}
