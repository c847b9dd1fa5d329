//! What keeps a page readable: short lines, short sentences, the glossary's words.

use crate::page::Page;

const COLUMNS_MAX: usize = 120;
/// Where [`wrapped`] begins a new line.
const WRAP_COLUMNS: usize = 118;
const WORDS_MAX: usize = 40;
/// Half of a page's sentences have no more words.
const WORDS_MEDIAN_MAX: usize = 17;

/// `avoid = better`, one on a line.
const WORDS: &str = include_str!("../words.txt");

/// What is wrong on a page, and where.
#[derive(Debug)]
pub struct Fault {
    /// The line; 0: the page as a whole.
    pub line: usize,
    /// What, and what would be right.
    pub what: String,
}

/// All that is wrong with a page's English.
pub fn faults(page: &Page) -> Vec<Fault> {
    let mut faults = long_lines(page);
    let mut counts = Vec::new();
    for (line, paragraph) in &page.paragraphs {
        for sentence in sentences(paragraph) {
            let words = words(sentence);
            counts.push(words);
            if words > WORDS_MAX {
                let what = format!("a sentence of {words} words, {WORDS_MAX} at most: {sentence}");
                faults.push(Fault { line: *line, what });
            }
        }
    }
    counts.sort_unstable();
    if let Some(median) = counts
        .get(counts.len() / 2)
        .filter(|median| **median > WORDS_MEDIAN_MAX)
    {
        let what = format!(
            "half of the sentences have {median} words or more, {WORDS_MEDIAN_MAX} at most"
        );
        faults.push(Fault { line: 0, what });
    }
    for (line, text) in page.paragraphs.iter().chain(&page.fragments) {
        for (avoid, better) in avoided() {
            if has_words(text, avoid) {
                let what = format!("\"{avoid}\": say {better}");
                faults.push(Fault { line: *line, what });
            }
        }
    }
    faults
}

/// The sentences of a paragraph.
pub fn sentences(paragraph: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let mut from = 0;
    let bytes = paragraph.as_bytes();
    for (at, c) in paragraph.char_indices() {
        let ends = matches!(c, '.' | '?' | '!' | ':')
            && bytes
                .get(at + 1)
                .is_none_or(|next| next.is_ascii_whitespace())
            && !paragraph[..at].ends_with("e.g")
            && !paragraph[..at].ends_with("i.e");
        if ends {
            sentences.push(paragraph[from..=at].trim());
            from = at + 1;
        }
    }
    sentences.push(paragraph[from..].trim());
    sentences.retain(|sentence| words(sentence) > 0);
    sentences
}

fn words(sentence: &str) -> usize {
    sentence
        .split_whitespace()
        .filter(|word| word.contains(char::is_alphanumeric))
        .count()
}

fn long_lines(page: &Page) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut in_code = false;
    for (index, line) in page.text.lines().enumerate() {
        let trimmed = line.trim_start();
        if trimmed.starts_with("```") {
            in_code = !in_code;
        }
        let columns = line.chars().count();
        // Tables and code cannot be broken, nor can a link.
        let is_whole = in_code || trimmed.starts_with('|') || !trimmed.contains(' ');
        if columns > COLUMNS_MAX && !is_whole {
            let what = format!("{columns} columns, {COLUMNS_MAX} at most");
            faults.push(Fault {
                line: index + 1,
                what,
            });
        }
    }
    faults
}

/// A page's text with paragraphs and list items in lines that are short enough. Code, tables, headings and pictures stay as they are.
pub fn wrapped(text: &str) -> String {
    let mut out = String::new();
    let mut block = Block::default();
    let mut in_code = false;
    for line in text.lines() {
        let trimmed = line.trim();
        let is_fence = trimmed.starts_with("```");
        let is_whole = in_code
            || is_fence
            || trimmed.is_empty()
            || ["|", "#", "![", "<"]
                .iter()
                .any(|begin| trimmed.starts_with(begin));
        in_code ^= is_fence;
        if is_whole {
            block.flush(&mut out);
            out.push_str(line);
            out.push('\n');
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        let marker = marker(trimmed);
        if marker > 0 {
            block.flush(&mut out);
        }
        if block.words.is_empty() {
            block.first = line[..indent + marker].to_owned();
            block.rest = " ".repeat(indent + marker);
        }
        block.add(&trimmed[marker..]);
    }
    block.flush(&mut out);
    out
}

/// Bytes of what makes a line a list item: `- `, `1. `.
fn marker(line: &str) -> usize {
    let bullet = line.find(['-', '*']).filter(|at| *at == 0).map(|_| 1);
    let digits = line.len() - line.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number = (digits > 0 && line[digits..].starts_with('.')).then_some(digits + 1);
    let Some(length) = bullet.or(number) else {
        return 0;
    };
    let spaces = line[length..].len() - line[length..].trim_start().len();
    if spaces == 0 { 0 } else { length + spaces }
}

/// A paragraph or a list item.
#[derive(Default)]
struct Block {
    /// What its first line begins with.
    first: String,
    /// And the others.
    rest: String,
    /// Code with spaces in it is one word.
    words: Vec<String>,
    is_code_open: bool,
}

impl Block {
    fn add(&mut self, text: &str) {
        for word in text.split_whitespace() {
            match self.words.last_mut().filter(|_| self.is_code_open) {
                Some(open) => *open = format!("{open} {word}"),
                None => self.words.push(word.to_owned()),
            }
            self.is_code_open ^= word.matches('`').count() % 2 == 1;
        }
    }

    fn flush(&mut self, out: &mut String) {
        let Self {
            first, rest, words, ..
        } = std::mem::take(self);
        let mut line = first;
        let mut is_empty = true;
        for word in words {
            let columns = line.chars().count() + usize::from(!is_empty) + word.chars().count();
            if !is_empty && columns > WRAP_COLUMNS {
                out.push_str(&line);
                out.push('\n');
                line.clone_from(&rest);
                is_empty = true;
            }
            if !is_empty {
                line.push(' ');
            }
            line.push_str(&word);
            is_empty = false;
        }
        if !is_empty {
            out.push_str(&line);
            out.push('\n');
        }
    }
}

fn avoided() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = WORDS
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        line.split_once(" = ")
            .unwrap_or_else(|| panic!("words.txt: {line:?}"))
    })
}

/// Whether these words are in the text, whole and in whatever case.
fn has_words(text: &str, words: &str) -> bool {
    let (text, words) = (text.to_lowercase(), words.to_lowercase());
    let is_end = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
    text.match_indices(&words).any(|(at, found)| {
        is_end(text[..at].chars().next_back()) && is_end(text[at + found.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_end_where_they_end() {
        let paragraph = "One, e.g. this 1.5 times. Two? \"Three.\" And four: 4 of them";
        let expected = [
            "One, e.g. this 1.5 times.",
            "Two?",
            "\"Three.\" And four:",
            "4 of them",
        ];
        assert_eq!(sentences(paragraph), expected);
        assert_eq!(words("a – b's c_d 1.5"), 4);
    }

    #[test]
    fn words_are_found_whole() {
        assert!(has_words("It is By Turns.", "by turns"));
        assert!(!has_words("nearby turnstile", "by turns"));
        assert!(!has_words("a flooring", "floor"));
    }

    #[test]
    fn pages_are_wrapped_where_they_may_be() {
        let long = "word ".repeat(30);
        let page = format!(
            "# T\n\n{long}\n- {long}`a b\nc` end\n  goes on\n1. x\n\n| {long} |\n\n```\n{long}\n```\n"
        );
        let wrapped = wrapped(&page);
        let expected = format!(
            "# T\n\n{a}\n{b}\n- {c}\n  {d} `a b c` end goes on\n1. x\n\n| {long} |\n\n```\n{long}\n```\n",
            a = "word ".repeat(22) + "word",
            b = "word ".repeat(6) + "word",
            c = "word ".repeat(22) + "word",
            d = "word ".repeat(6) + "word",
        );

        assert_eq!(wrapped.replace(" \n", "\n"), expected.replace(" \n", "\n"));
        assert_eq!(super::wrapped(&wrapped), wrapped);
    }
}
