//! Commands, flags, keys and variables that pages name exist.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use polyrail_tests_book::{Page, all};

fn program() -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_polyrail-of-the-book"));
    program.env_clear().env("RUST_LOG", "warn");
    program
}

/// The code of a page: of blocks, each line by itself once `\` has put them together, and of spans.
fn code_lines(page: &Page) -> Vec<String> {
    let mut lines = Vec::new();
    let text = page.text.replace("\\\n", " ");
    let mut in_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            lines.push(line.to_owned());
        } else {
            lines.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    lines
}

/// Flags by command, as the page that is printed from the program has them.
fn flags() -> BTreeMap<String, BTreeSet<String>> {
    let page = Page::read("docs/cli.md");
    let mut flags: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut command = String::new();
    for line in page.text.lines() {
        if let Some(name) = line
            .trim_start_matches('#')
            .strip_prefix(" polyrail")
            .filter(|_| line.starts_with("##"))
        {
            command = name.trim().to_owned();
            flags.entry(command.clone()).or_default();
        }
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '-');
        let named = words
            .filter(|word| word.starts_with("--"))
            .map(str::to_owned);
        flags.entry(command.clone()).or_default().extend(named);
    }
    flags
}

#[test]
fn commands_and_flags_exist() {
    let known = flags();
    let mut unknown = Vec::new();
    let mut looked_at = 0;
    for page in all().values().filter(|page| page.path != "docs/cli.md") {
        for line in code_lines(page) {
            let Some(at) = line.find("polyrail ") else {
                continue;
            };
            let before = line[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '.')) {
                continue;
            }
            let said = line[at..]
                .split(['|', ';', '&', '#', ')', '<', '>', '\''])
                .next()
                .unwrap_or_default();
            let words: Vec<&str> = said.split_whitespace().skip(1).collect();
            let command = match words.as_slice() {
                [one, two, ..] if known.contains_key(&format!("{one} {two}")) => {
                    format!("{one} {two}")
                }
                [one, ..] if known.contains_key(*one) => (*one).to_owned(),
                _ => continue,
            };
            looked_at += 1;
            let named = words.iter().filter(|word| word.starts_with("--"));
            for flag in named.map(|word| word.split('=').next().unwrap_or(word)) {
                if !known[&command].contains(flag) {
                    unknown.push(format!("{}: polyrail {command} has no {flag}", page.path));
                }
            }
        }
    }
    assert!(looked_at > 60, "{looked_at}");
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
}

#[test]
fn configurations_are_right() {
    let mut tried = 0;
    for page in all().values() {
        for block in page.text.split("```json\n").skip(1) {
            let text = block.split("```").next().unwrap_or_default();
            check(page, &[], text);
            tried += 1;
        }
        // A container's environment, as its manifest has it.
        let variables: Vec<(&str, &str)> = page
            .text
            .lines()
            .filter_map(|line| {
                line.trim()
                    .strip_prefix("- { name: ")?
                    .strip_suffix(" }")?
                    .split_once(", value: ")
            })
            .filter(|(name, _)| name.starts_with("POLYRAIL_"))
            .map(|(name, value)| (name, value.trim_matches('"')))
            .collect();
        if !variables.is_empty() {
            check(page, &variables, "{}");
            tried += 1;
        }
    }
    assert!(tried >= 3, "{tried}");
}

/// Asserts that nothing is wrong with a configuration, and that nothing of it was left out.
fn check(page: &Page, variables: &[(&str, &str)], text: &str) {
    let mut program = program();
    let child = program
        .args(["check-config", "-"])
        .envs(variables.iter().copied());
    let mut child = child
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    let said = [done.stdout, done.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(
        done.status.success() && !said.contains("is no key"),
        "{}: {text}{variables:?}\n{said}",
        page.path
    );
}

#[test]
fn metrics_in_alerts_exist() {
    let reference = Page::read("docs/metrics.md").text;
    let page = Page::read("docs/deployment.md").text;
    let words: BTreeSet<&str> = page
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        // A package has a version behind its name, and no metric.
        .filter(|word| {
            let rest = word.strip_prefix("polyrail_");
            rest.is_some_and(|rest| rest.starts_with(char::is_alphabetic))
        })
        .collect();
    assert!(words.len() >= 6, "{words:?}");
    for word in words {
        assert!(
            reference.contains(&format!("| `{word}` |")),
            "docs/metrics.md has no {word}"
        );
    }
}
