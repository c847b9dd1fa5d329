//! `include/polyrail.h` is what cbindgen makes of the sources. To make it anew:
//!
//! ```text
//! POLYRAIL_BLESS=1 cargo test -p polyrail-ffi --test header
//! ```

mod generated;

use std::path::{Path, PathBuf};

/// The sources, in the order in which the header tells of them.
const SOURCES: [&str; 14] = [
    "words",
    "failure",
    "call",
    "engine",
    "segment",
    "notification",
    "batch",
    "transfer",
    "prepared",
    "paged",
    "queue",
    "stats",
    "peer",
    "log",
];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_header_is_what_the_sources_make() {
    generated::check(&folder(), "include/polyrail.h", &SOURCES);
}

#[test]
fn every_function_is_in_the_header_and_guards_its_body() {
    let header = generated::made(&folder(), &SOURCES);
    let mut functions = 0;
    for entry in std::fs::read_dir(folder().join("src")).unwrap() {
        let path = entry.unwrap().path();
        functions += check(&path, &header);
    }
    assert!(
        functions > 40,
        "{functions}: the sources look different from what this test knows"
    );
}

/// How many functions of a source C can call. Each is exported under its name, is in the header, and either cannot fail
/// (it is safe, and so neither dereferences nor calls the engine) or consists of a body and its guard.
fn check(path: &Path, header: &str) -> usize {
    let source = std::fs::read_to_string(path).unwrap();
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let mut functions = 0;
    for part in source.split("#[unsafe(no_mangle)]\npub ").skip(1) {
        let item = part.split("\n}\n").next().unwrap_or_default();
        let is_unsafe = item.starts_with("unsafe ");
        let name = item
            .split("fn ")
            .nth(1)
            .and_then(|rest| rest.split('(').next());
        let name = name.unwrap_or_else(|| panic!("{}: {item}", path.display()));
        assert!(name.starts_with("polyrail_"), "{name}");
        assert!(
            header.contains(&format!("{name}(")),
            "{name} is not in the header"
        );
        if is_unsafe {
            let guarded = item.trim_end().ends_with("unsafe { guard(error, body) }")
                || item.trim_end().ends_with("unsafe { guard(error, run) }");
            assert!(guarded, "{name} can unwind into C");
        }
        functions += 1;
    }
    let exports = source.matches("extern \"C\" fn polyrail_").count();
    assert_eq!(
        exports,
        functions,
        "{}: one that is not exported",
        path.display()
    );
    functions
}
