//! `docs/wire.md` has each frame of the control protocol, each feature and the version.

use std::collections::BTreeSet;
use std::fs;

use polyrail_tests_book::{Page, root};

#[test]
fn frames_features_and_version_are_those_of_the_codec() {
    let page = Page::read("docs/wire.md").text;
    let codec = fs::read_to_string(root().join("shells/control/src/codec.rs")).unwrap();

    let (_, frames) = codec.split_once("pub enum Frame {\n").unwrap();
    let (frames, _) = frames.split_once("\n}\n").unwrap();
    let variants = frames.lines().filter_map(|line| {
        line.strip_prefix("    ")
            .filter(|rest| rest.starts_with(char::is_uppercase))
    });
    let variants: BTreeSet<&str> = variants
        .filter_map(|line| line.split([' ', '(', ',']).next())
        .collect();
    assert!(variants.len() > 20, "{variants:?}");
    let (_, table) = page.split_once("| frame | from | says |\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let rows: BTreeSet<&str> = rows
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    assert_eq!(rows, variants);

    let (_, features) = page
        .split_once("| feature bit | what it allows |\n|---|---|\n")
        .unwrap();
    let bits = features.lines().take_while(|line| line.starts_with('|'));
    let bits: u64 = bits
        .map(|line| line[2..].split(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    let value = |name: &str| {
        let (_, after) = codec
            .split_once(&format!("pub const {name}: u64 ="))
            .unwrap_or_else(|| panic!("{name}"));
        after.split(';').next().unwrap().trim()
    };
    let known: u64 = value("FEATURES")
        .split('|')
        .map(|name| value(name.trim()).parse::<u64>().unwrap())
        .sum();
    assert_eq!(bits, known);
    let (_, version) = codec
        .split_once("pub const PROTOCOL_VERSION: u16 = ")
        .unwrap();
    assert!(page.contains(&format!(
        "protocol version {}",
        version.split(';').next().unwrap()
    )));
}
