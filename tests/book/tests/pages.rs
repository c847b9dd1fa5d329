//! All pages: they are in the book, their links lead somewhere, and their English is readable.

use std::collections::BTreeSet;

use polyrail_tests_book::{Page, all, faults, root, wrapped};

#[test]
fn links_lead_somewhere() {
    let pages = all();
    let mut broken = Vec::new();
    for page in pages.values() {
        for link in &page.links {
            let Some((path, anchor)) = page.target(link) else {
                continue;
            };
            let at = format!("{}:{}: {}", page.path, link.line, link.to);
            if !root().join(&path).exists() {
                broken.push(format!("{at}: there is no {}", path.display()));
                continue;
            }
            let Some(anchor) = anchor else { continue };
            match pages.get(path.to_str().unwrap()) {
                None => broken.push(format!("{at}: only pages have anchors")),
                Some(there) if !there.anchors.contains(&anchor) => {
                    broken.push(format!(
                        "{at}: it has no such heading; there are {}",
                        there.anchors.join(", ")
                    ));
                }
                Some(_) => {}
            }
        }
    }
    assert!(
        broken.is_empty(),
        "{} broken links:\n{}",
        broken.len(),
        broken.join("\n")
    );
}

#[test]
fn each_page_is_in_the_book_once() {
    let summary = Page::read("docs/SUMMARY.md");
    let mut listed = BTreeSet::new();
    for link in &summary.links {
        let (path, _) = summary.target(link).expect("a page of ours");
        let path = path.to_str().unwrap().to_owned();
        assert!(
            listed.insert(path.clone()),
            "SUMMARY.md:{}: {path} is listed twice",
            link.line
        );
    }
    let is_page = |path: &String| path.starts_with("docs/") && path != "docs/SUMMARY.md";
    let there: BTreeSet<String> = all().into_keys().filter(is_page).collect();
    let missing: Vec<_> = there.difference(&listed).collect();
    assert!(missing.is_empty(), "not in SUMMARY.md: {missing:?}");
    let made_up: Vec<_> = listed.difference(&there).collect();
    assert!(
        made_up.is_empty(),
        "in SUMMARY.md, but there is no such page: {made_up:?}"
    );
}

#[test]
fn the_readme_is_short() {
    let lines = Page::read("README.md").text.lines().count();
    assert!(
        lines <= 150,
        "README.md has {lines} lines, 150 at most: the rest is for pages"
    );
}

#[test]
fn pictures_are_on_a_page() {
    let pages = all();
    let shown: BTreeSet<_> = pages
        .values()
        .flat_map(|page| page.links.iter().filter_map(|link| page.target(link)))
        .map(|(path, _)| path)
        .collect();
    for entry in std::fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_shown = shown.contains(std::path::Path::new(&format!("docs/{name}")));
        assert!(
            !name.ends_with(".svg") || is_shown,
            "docs/{name} is on no page"
        );
    }
}

/// `WRITE=1 cargo test -p polyrail-tests-book --test pages english` breaks lines that are too long; the rest is for people to mend.
#[test]
fn english_is_readable() {
    if std::env::var_os("WRITE").is_some() {
        for page in all().values().filter(|page| !faults(page).is_empty()) {
            std::fs::write(root().join(&page.path), wrapped(&page.text)).unwrap();
        }
    }
    let mut said = Vec::new();
    for page in all().values() {
        let faults = faults(page);
        let faults = faults
            .iter()
            .map(|fault| format!("{}:{}: {}", page.path, fault.line, fault.what));
        said.extend(faults);
    }
    assert!(said.is_empty(), "{}", said.join("\n"));
}
