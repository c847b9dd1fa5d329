//! Each public function of the engine has an example, or a link to one in its guide.

use std::fs;

use polyrail_tests_book::{root, sources};

const LINK: &str = "crate::guide#";

#[test]
fn each_public_function_has_an_example() {
    let folder = root().join("shells/engine/src");
    let guide = fs::read_to_string(folder.join("guide.rs")).unwrap();
    let headings: Vec<_> = guide
        .lines()
        .filter_map(|line| line.strip_prefix("//! # "))
        .map(|heading| {
            let letters = heading.to_lowercase();
            letters.replace(' ', "-").replace('\'', "")
        })
        .collect();
    let mut count = 0;
    let mut faults = Vec::new();
    for (path, source) in sources(&folder) {
        for (name, said) in functions(&source) {
            count += 1;
            let section = said.split_once(LINK).map(|(_, rest)| {
                let end = rest.find(')').unwrap_or(rest.len());
                &rest[..end]
            });
            let fault = match section {
                Some(section) if headings.iter().any(|heading| heading == section) => continue,
                Some(section) => format!("no section {section}"),
                None if said.contains("```") => continue,
                None => "no example".to_owned(),
            };
            faults.push(format!("{}: {name}: {fault}", path.display()));
        }
    }
    assert!(count > 100, "{count}");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The public functions in a source: the name of each, and what is said of it.
fn functions(source: &str) -> Vec<(&str, String)> {
    let mut all = Vec::new();
    let mut said = String::new();
    for line in source.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            said.push_str(text);
            said.push('\n');
        } else if !line.starts_with("#[") {
            let said = std::mem::take(&mut said);
            all.extend(function(line).map(|name| (name, said)));
        }
    }
    all
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
