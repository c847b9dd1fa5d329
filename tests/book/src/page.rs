//! A page: its headings, its links, and what it says outside of code.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// A link or an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// Where to, as it is written.
    pub to: String,
    /// The line that it begins on.
    pub line: usize,
}

/// A page in Markdown.
pub struct Page {
    /// Its path from the repository's root, with `/`.
    pub path: String,
    /// Its text.
    pub text: String,
    /// What a link can lead to on it.
    pub anchors: Vec<String>,
    /// The links on it.
    pub links: Vec<Link>,
    /// Running text, paragraph by paragraph and list item by list item, with the line that it begins on. Code within a line is
    /// one word.
    pub paragraphs: Vec<(usize, String)>,
    /// The same of cells of tables and of headings.
    pub fragments: Vec<(usize, String)>,
}

impl Page {
    /// Reads one.
    pub fn read(path: &str) -> Self {
        let text =
            fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        Self::parse(path, text)
    }

    fn parse(path: &str, text: String) -> Self {
        let mut page = Self {
            path: path.to_owned(),
            text: text.clone(),
            anchors: Vec::new(),
            links: Vec::new(),
            paragraphs: Vec::new(),
            fragments: Vec::new(),
        };
        let starts: Vec<usize> = std::iter::once(0)
            .chain(text.match_indices('\n').map(|(at, _)| at + 1))
            .collect();
        let line = |at: usize| starts.partition_point(|start| *start <= at);
        let mut seen: HashMap<String, usize> = HashMap::new();
        let (mut said, mut heading) = (String::new(), String::new());
        let (mut in_heading, mut in_code, mut in_table) = (false, false, false);
        let mut began = 1;
        let options = Options::ENABLE_TABLES | Options::ENABLE_HEADING_ATTRIBUTES;
        for (event, range) in Parser::new_ext(&text, options).into_offset_iter() {
            let is_block = matches!(
                event,
                Event::Start(
                    Tag::Paragraph
                        | Tag::Item
                        | Tag::List(_)
                        | Tag::CodeBlock(_)
                        | Tag::Table(_)
                        | Tag::TableCell
                        | Tag::Heading { .. }
                ) | Event::End(
                    TagEnd::Paragraph | TagEnd::Item | TagEnd::TableCell | TagEnd::Heading(_)
                )
            );
            if is_block {
                let words = std::mem::take(&mut said);
                if !words.trim().is_empty() {
                    match in_heading || in_table {
                        true => page.fragments.push((began, words)),
                        false => page.paragraphs.push((began, words)),
                    }
                }
                began = line(range.start);
            }
            match event {
                Event::Start(Tag::Heading { .. }) => in_heading = true,
                Event::End(TagEnd::Heading(_)) => {
                    in_heading = false;
                    let slug = slug(&std::mem::take(&mut heading));
                    let count = seen.entry(slug.clone()).or_insert(0);
                    let anchor = match *count {
                        0 => slug.clone(),
                        n => format!("{slug}-{n}"),
                    };
                    *count += 1;
                    page.anchors.push(anchor);
                }
                Event::Start(Tag::CodeBlock(_)) => in_code = true,
                Event::End(TagEnd::CodeBlock) => in_code = false,
                Event::Start(Tag::Table(_)) => in_table = true,
                Event::End(TagEnd::Table) => in_table = false,
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(Link {
                        to: dest_url.into_string(),
                        line: line(range.start),
                    });
                }
                Event::Text(text) if !in_code => {
                    said.push_str(&text);
                    if in_heading {
                        heading.push_str(&text);
                    }
                }
                Event::Code(code) => {
                    said.push_str("code");
                    if in_heading {
                        heading.push_str(&code);
                    }
                }
                Event::SoftBreak | Event::HardBreak => said.push(' '),
                _ => {}
            }
        }
        page
    }

    /// The file that a link leads to, from the repository's root, and the anchor in it; `None`: it leads out.
    pub fn target(&self, link: &Link) -> Option<(PathBuf, Option<String>)> {
        if link.to.contains("://") || link.to.starts_with("mailto:") {
            return None;
        }
        let (file, anchor) = match link.to.split_once('#') {
            Some((file, anchor)) => (file, Some(anchor.to_owned())),
            None => (link.to.as_str(), None),
        };
        let path = match file {
            "" => PathBuf::from(&self.path),
            file => {
                let folder = Path::new(&self.path).parent().unwrap_or(Path::new(""));
                normal(&folder.join(file))
            }
        };
        Some((path, anchor))
    }
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All pages that readers come to: those of the book, and those beside code that it leads to.
pub fn all() -> BTreeMap<String, Page> {
    let mut paths = vec![
        "README.md".to_owned(),
        "benches/README.md".to_owned(),
        "benches/LOG.md".to_owned(),
    ];
    let folder = fs::read_dir(root().join("docs")).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    paths.extend(
        names
            .filter(|name| name.ends_with(".md"))
            .map(|name| format!("docs/{name}")),
    );
    let page = |path: String| (path.clone(), Page::read(&path));
    paths.into_iter().map(page).collect()
}

/// What renderers of Markdown make of a heading.
fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c.to_lowercase().to_string()),
        c if c.is_whitespace() => Some("-".to_owned()),
        _ => None,
    });
    kept.collect()
}

/// Without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                normal.pop();
            }
            std::path::Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_page_has_is_found() {
        let text = "# A `b`, c\n\nOne [link](x.md#a)\nand `code here`. Two.\n\n```\n[no](y)\n```\n\n| t |\n|---|\n| *x* |\n\n## A b c\n\
                    \n- item\n  goes on\n- ![i](i.svg)\n";
        let page = Page::parse("docs/p.md", text.to_owned());
        assert_eq!(page.anchors, ["a-b-c", "a-b-c-1"]);
        let links: Vec<_> = page
            .links
            .iter()
            .map(|link| (link.to.as_str(), link.line))
            .collect();
        assert_eq!(links, [("x.md#a", 3), ("i.svg", 18)]);
        assert_eq!(
            page.target(&page.links[0]),
            Some(("docs/x.md".into(), Some("a".to_owned())))
        );
        let said: Vec<_> = page
            .paragraphs
            .iter()
            .map(|(line, text)| (*line, text.as_str()))
            .collect();
        assert_eq!(
            said,
            [
                (3, "One link and code. Two."),
                (16, "item goes on"),
                (18, "i")
            ]
        );
    }
}
