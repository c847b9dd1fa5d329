//! `polyrail extras`: manual pages and completions that say what the program says.

use std::path::Path;
use std::process::Command;

use crate::harness::run;

#[test]
fn every_command_has_a_page_with_its_flags() {
    let folder = tempfile::tempdir().expect("a folder");
    run(&format!("extras {}", folder.path().display())).expect(0);
    let help = run("--help").expect(0).stdout;
    let (_, commands) = help.split_once("\nCommands:\n").expect("it lists them");
    let names = commands.lines().take_while(|line| !line.is_empty());
    let names: Vec<_> = names
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(names.len() > 10, "{help}");
    for name in names.into_iter().chain(["sim-run"]) {
        let page = page(folder.path(), name);
        let help = run(&format!("{} --help", name.replace("sim-", "sim "))).expect(0);
        for flag in flags(&help.stdout) {
            // As roff writes it.
            let written = flag.replace('-', "\\-");
            assert!(page.contains(&written), "{name}: {flag}");
        }
    }
}

#[test]
fn bash_completes_commands_and_flags() {
    let folder = tempfile::tempdir().expect("a folder");
    run(&format!("extras {}", folder.path().display())).expect(0);
    let script = folder.path().join("bash-completion/completions/polyrail");
    for (words, expected) in [
        ("polyrail key", "keygen"),
        ("polyrail sim run --tra", "--trace"),
    ] {
        let line = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _polyrail polyrail ${{COMP_WORDS[-1]}} ${{COMP_WORDS[-2]}}; echo ${{COMPREPLY[@]}}",
            script.display()
        );
        let said = Command::new("bash").args(["-c", &line]).output();
        let said = said.expect("bash is there");
        let completed = String::from_utf8_lossy(&said.stdout);
        assert_eq!(completed.trim_end(), expected, "{words}: {said:?}");
    }
    for (place, part) in [
        ("zsh/site-functions/_polyrail", "#compdef polyrail"),
        ("fish/vendor_completions.d/polyrail.fish", "keygen"),
    ] {
        assert!(read(&folder.path().join(place)).contains(part), "{place}");
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    run("extras /proc/nowhere")
        .expect(3)
        .names(&["/proc/nowhere/man/man1"]);
}

fn page(folder: &Path, command: &str) -> String {
    read(&folder.join(format!("man/man1/polyrail-{command}.1")))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The flags that a help text explains: each begins a line.
fn flags(help: &str) -> impl Iterator<Item = &str> {
    let words = help.lines().filter_map(|line| {
        let line = line.trim_start();
        let line = line.strip_prefix("-h, ").unwrap_or(line);
        line.split_whitespace().next()
    });
    words.filter(|word| word.starts_with("--") && word.len() > 2)
}
