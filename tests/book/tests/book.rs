//! mdBook makes a book of the pages, every one of them, and links within it lead somewhere.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use mdbook_driver::MDBook;
use polyrail_tests_book::{Page, root};

#[test]
fn the_book_is_built() {
    let out = tempfile::tempdir().unwrap();
    let mut book = MDBook::load(root().join("docs")).unwrap_or_else(|error| panic!("{error:?}"));
    book.config.build.build_dir = out.path().to_owned();
    book.build().unwrap_or_else(|error| panic!("{error:?}"));
    let names: BTreeSet<String> = Page::read("docs/SUMMARY.md")
        .links
        .iter()
        .map(|link| link.to.replace(".md", ".html"))
        .collect();
    let made: HashMap<&str, String> = names
        .iter()
        .map(|name| (name.as_str(), read(&out.path().join(name))))
        .collect();
    let mut broken = Vec::new();
    let mut looked_at = 0;
    for (name, html) in &made {
        // A page that is missing is made empty by some versions.
        assert!(html.contains("<h1"), "{name} has no heading");
        for to in attributes(html, "href") {
            let (file, anchor) = to.split_once('#').unwrap_or((to, ""));
            let file = if file.is_empty() { name } else { file };
            // What leads out of the book is looked at in the pages' sources.
            let Some(there) = made.get(file) else {
                continue;
            };
            looked_at += 1;
            if !anchor.is_empty() && !attributes(there, "id").any(|id| id == anchor) {
                broken.push(format!("{name}: {to}"));
            }
        }
    }
    assert!(looked_at > 300, "{looked_at}");
    assert!(broken.is_empty(), "{broken:#?}");
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            !name.ends_with(".svg") || out.path().join(&name).exists(),
            "{name} is not in the book"
        );
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The values of an attribute.
fn attributes<'a>(html: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!(" {name}=\"");
    let length = begin.len();
    let mut rest = html;
    std::iter::from_fn(move || {
        let at = rest.find(&begin)?;
        let (value, after) = rest[at + length..].split_once('"')?;
        rest = after;
        Some(value)
    })
}
