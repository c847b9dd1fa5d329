//! Each public function of the engine has an example, or a link to one in its guide.

use std::fs;
use std::path::Path;

use polyrail_tests_book::root;

const LINK: &str = "crate::guide#";

#[test]
fn each_public_function_has_an_example() {
    let sources = root().join("shells/engine/src");
    let guide = fs::read_to_string(sources.join("guide.rs")).unwrap();
    let headings: Vec<_> = guide
        .lines()
        .filter_map(|line| line.strip_prefix("//! # "))
        .map(|heading| {
            let letters = heading.to_lowercase();
            letters.replace(' ', "-").replace('\'', "")
        })
        .collect();
    let mut functions = 0;
    let mut faults = Vec::new();
    look(&sources, &mut |path, name, text| {
        functions += 1;
        let section = text.split_once(LINK).map(|(_, rest)| {
            let end = rest.find(')').unwrap_or(rest.len());
            &rest[..end]
        });
        match section {
            Some(section) if headings.iter().any(|heading| heading == section) => {}
            Some(section) => {
                faults.push(format!("{}: {name}: no section {section}", path.display()))
            }
            None if text.contains("```") => {}
            None => faults.push(format!("{}: {name}: no example", path.display())),
        }
    });
    assert!(functions > 100, "{functions}");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Calls `see` for each public function with its file, its name, and what is said of it.
fn look(folder: &Path, see: &mut impl FnMut(&Path, &str, &str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            look(&path, see);
            continue;
        }
        let source = fs::read_to_string(&path).unwrap();
        let mut said = String::new();
        for line in source.lines().map(str::trim) {
            if let Some(text) = line.strip_prefix("///") {
                said.push_str(text);
                said.push('\n');
            } else if !line.starts_with("#[") {
                if let Some(name) = function(line) {
                    see(&path, name, &said);
                }
                said.clear();
            }
        }
    }
}

/// The name of the public function that begins in this line.
fn function(line: &str) -> Option<&str> {
    let mut rest = line.strip_prefix("pub ")?;
    for word in ["const ", "async ", "unsafe "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let rest = rest.strip_prefix("fn ")?;
    Some(&rest[..rest.find(['(', '<'])?])
}
