//! Messages that `docs/troubleshooting.md` explains are messages of ours.

use polyrail_tests_book::{Page, root, sources};

#[test]
fn each_message_is_in_a_source() {
    let page = Page::read("docs/troubleshooting.md");
    let (_, by_message) = page.text.split_once("\n## By message\n").unwrap();
    let (by_message, _) = by_message.split_once("\n## By symptom\n").unwrap();
    let folders = ["shells", "core"].map(|folder| sources(&root().join(folder)));
    let files = folders.iter().flatten();
    let sources: String = files.map(|(_, text)| joined(text)).collect();
    let mut unknown = Vec::new();
    let mut looked_for = 0;
    for row in by_message.lines().filter(|line| line.starts_with("| `")) {
        let first = row[2..].split(" | ").next().unwrap();
        for message in first.split('`').skip(1).step_by(2) {
            for part in fixed_parts(message) {
                looked_for += 1;
                if !sources.contains(part) {
                    unknown.push(format!("{message:?}: no source says {part:?}"));
                }
            }
        }
    }
    assert!(looked_for > 30, "{looked_for}");
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
}

/// What of a message is the same each time: not `…`, words in capitals, nor numbers.
fn fixed_parts(message: &str) -> impl Iterator<Item = &str> {
    let is_filled_in = |word: &str| {
        word.contains('…')
            || word.contains(|c: char| c.is_ascii_digit())
            || word
                .trim_matches(|c: char| !c.is_alphanumeric())
                .chars()
                .all(|c| c.is_ascii_uppercase())
            || word.starts_with("\"")
    };
    let mut parts = Vec::new();
    let mut from = None;
    let mut at = 0;
    for word in message.split(' ') {
        match (is_filled_in(word), from) {
            (false, None) => from = Some(at),
            (true, Some(start)) => {
                parts.push(message[start..at].trim());
                from = None;
            }
            _ => {}
        }
        at += word.len() + 1;
    }
    parts.extend(from.map(|start| message[start..].trim()));
    // Behind a colon comes what something else says: a cause, or the system. Short ones say nothing.
    let parts = parts.into_iter().flat_map(|part| part.split(": "));
    let parts = parts.map(|part| part.trim_matches([':', ';', ',', '(']));
    parts.filter(|part| part.len() > 5 && *part != "Connection refused")
}

/// A source's text, with strings that go on in the next line put together.
fn joined(text: &str) -> String {
    let mut joined = String::new();
    let mut lines = text.lines();
    while let Some(mut line) = lines.next() {
        while let Some(head) = line.strip_suffix('\\') {
            joined.push_str(head);
            line = lines.next().unwrap_or_default().trim_start();
        }
        joined.push_str(line);
        joined.push('\n');
    }
    joined
}
