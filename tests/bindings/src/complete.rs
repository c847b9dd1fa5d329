//! That nothing of ours was left out of the comparison.

use std::collections::BTreeSet;

const RAW: &str = include_str!("../../../shells/verbs/src/ffi/raw.rs");

/// The words behind `before` in the source, up to what ends a name.
fn named(source: &str, before: &str) -> BTreeSet<String> {
    let lines = source.lines().map(str::trim_start);
    let names = lines.filter_map(|line| line.strip_prefix(before));
    let end = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    names
        .filter_map(|rest| rest.split(end).next().map(str::to_owned))
        .collect()
}

fn compared(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn every_constant_structure_and_function_is_compared() {
    let mut constants = named(RAW, "pub(crate) const ");
    // The header has it in an enumeration without a name, of which ibverbs-sys makes nothing.
    assert!(constants.remove("PORT_GRH_REQUIRED"));
    assert!(constants.len() > 20, "{constants:?}");
    assert_eq!(constants, compared(crate::constants::COMPARED));
    let mut structures = named(RAW, "pub(crate) struct ");
    // Opaque, a test of its own, and what the functions are in.
    for other in ["Device", "Pd", "Wc", "Calls"] {
        assert!(structures.remove(other), "{other}");
    }
    assert_eq!(structures, compared(crate::layouts::COMPARED));
    let from = RAW.find("pub(crate) struct Calls").expect("the functions");
    let body = &RAW[from..][..RAW[from..].find("\n}").expect("their end")];
    let mut functions = named(body, "pub(crate) ");
    functions.extend(named(body, "pub "));
    assert!(functions.remove("struct"));
    assert_eq!(functions, compared(crate::calls::COMPARED));
}
