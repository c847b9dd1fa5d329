//! Every command of `docs/quickstart.md`, in the order of the page.

mod namespaces;

use std::collections::HashMap;

use namespaces::Namespaces;
use polyrail_tests_book::Page;

/// A block of code: its words after the language, such as `terminal=target`, and its text.
#[derive(Default)]
struct Block {
    words: HashMap<String, String>,
    text: String,
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_open = false;
    for line in text.lines() {
        match line.strip_prefix("```") {
            Some(_) if is_open => is_open = false,
            Some(info) => {
                is_open = true;
                let words = info
                    .split_whitespace()
                    .filter_map(|word| word.split_once('='));
                let words = words
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .collect();
                blocks.push(Block {
                    words,
                    ..Block::default()
                });
            }
            None if is_open => {
                let block = blocks.last_mut().expect("one is open");
                block.text.push_str(line);
                block.text.push('\n');
            }
            None => {}
        }
    }
    blocks
}

/// A line with all numbers alike.
fn shape(line: &str) -> String {
    let mut shape: String = line
        .chars()
        .map(|c| if c.is_ascii_digit() { '#' } else { c })
        .collect();
    while shape.contains("##") {
        shape = shape.replace("##", "#");
    }
    shape.trim_end().to_owned()
}

#[test]
fn every_command_of_the_quickstart_works() {
    let Some(mut hosts) = Namespaces::new() else {
        return;
    };
    let page = Page::read("docs/quickstart.md");
    let mut said = String::new();
    let mut ran = 0;
    for block in blocks(&page.text) {
        if let Some(name) = block.words.get("expect") {
            let said: Vec<_> = hosts.said(name).lines().map(shape).collect();
            for line in block.text.lines() {
                assert!(
                    said.contains(&shape(line)),
                    "the page says {line:?}, the program {said:#?}"
                );
            }
        }
        let Some(terminal) = block.words.get("terminal") else {
            continue;
        };
        ran += 1;
        match terminal.as_str() {
            // They go on until they are ended.
            "target" | "right" => {
                hosts.start(terminal, &format!("exec {}", block.text), "security ")
            }
            _ => said.push_str(&hosts.run(&block.text)),
        }
    }
    println!("{said}");
    assert_eq!(ran, 8, "blocks with commands");
    assert!(
        said.contains("over shm") && said.contains("equal"),
        "{said}"
    );
}
