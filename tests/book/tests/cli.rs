//! `docs/cli.md` is what the program says of itself. `WRITE=1 cargo test -p polyrail-tests-book --test cli` writes it anew.

use std::fs;
use std::process::Command;

use polyrail_tests_book::root;

const HEAD: &str = "\
# The command line

This page is for people who run `polyrail`. A test prints it from `polyrail help` and compares; do not edit.

All commands that start an engine read `--config FILE` and the environment; [config.md](config.md) has the keys.
`RUST_LOG=info` shows more on standard error, `RUST_LOG=debug` all.

| exit code | meaning |
|---|---|
| 0 | All is well. |
| 1 | It ran, and the verdict is bad: a wrong byte, a failed request, a violated invariant. |
| 2 | It was asked for something that makes no sense: a flag, a key, an address. |
| 3 | The environment failed it: an address in use, a peer that is not there or was lost, no GPU. |
| 128 + N | Signal N ended it. SIGINT and SIGTERM end `serve` and `agent` with 0: this is how they end. |
";

#[test]
fn the_page_says_what_the_program_says() {
    let mut page = HEAD.to_owned();
    describe(&[], &mut page);
    let path = root().join("docs/cli.md");
    if std::env::var_os("WRITE").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    let differs = there.lines().zip(page.lines()).position(|(a, b)| a != b);
    assert!(
        there == page,
        "docs/cli.md differs from line {:?} on: WRITE=1 cargo test -p polyrail-tests-book --test cli",
        differs.map(|index| index + 1)
    );
}

/// A command with its help, then those below it.
fn describe(command: &[&str], page: &mut String) {
    let help = help(command);
    let name = ["polyrail"]
        .iter()
        .chain(command)
        .copied()
        .collect::<Vec<_>>()
        .join(" ");
    let level = "#".repeat(2.max(command.len() + 1));
    page.push_str(&format!(
        "\n{level} {name}\n\n```text\n{}\n```\n",
        help.trim_end()
    ));
    let commands = help
        .split_once("\nCommands:\n")
        .map_or("", |(_, after)| after);
    let commands = commands.lines().take_while(|line| !line.is_empty());
    // A line of its own begins with two spaces; what goes on has more.
    let names = commands.filter_map(|line| {
        line.strip_prefix("  ")
            .filter(|rest| !rest.starts_with(' '))
    });
    for name in names
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
    {
        describe(&[command, &[name]].concat(), page);
    }
}

fn help(command: &[&str]) -> String {
    let said = Command::new(env!("CARGO_BIN_EXE_polyrail-of-the-book"))
        .args(command)
        .arg("--help")
        .env_clear()
        .env("COLUMNS", "100")
        .output()
        .unwrap();
    assert!(said.status.success(), "{command:?}");
    let said = String::from_utf8(said.stdout)
        .unwrap()
        .replace("polyrail-of-the-book", "polyrail");
    said.lines()
        .map(|line| line.trim_end())
        .collect::<Vec<_>>()
        .join("\n")
}
