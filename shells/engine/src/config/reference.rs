//! The reference of all keys, as `docs/config.md` has it.

use std::fmt::Write;

use super::field::Field;
use super::keys::{ENGINE, Key, TRANSPORT, TRANSPORTS};
use super::{Config, TransportConfig};
use crate::known;

const INTRODUCTION: &str = "\
# Configuration

Printed by `polyrail check-config --reference`; do not edit. A test compares.

An engine is configured by a file in JSON (`--config FILE`), by the environment and by flags. Flags win over the
environment, that over the file, and what nobody says has its default.

In a file, `/` in a key stands for nesting. In the environment a key is `POLYRAIL_` and its name in any case,
with `/` written `__`; lists may be written with commas:

```
{ \"transports\": { \"tcp\": { \"rail_cooldown_secs\": 10 } } }
POLYRAIL_TRANSPORTS__TCP__RAIL_COOLDOWN_SECS=10
POLYRAIL_RAILS=10.0.0.1,10.0.1.1
```

`polyrail check-config FILE` says everything that is wrong with a file and the environment, each with its place
and the nearest known key, or which values differ from their defaults. Rust programs load the same with
`Config::from_file`, `Config::from_json`, `Config::from_env` and `Sources`.

";

/// All keys, as a page in Markdown.
pub fn reference() -> String {
    let mut page = INTRODUCTION.to_owned();
    let names: Vec<_> = known::names()
        .map(|name| match known::is_built_in(name) {
            true => format!("`{name}`"),
            false => format!("`{name}` (not built in)"),
        })
        .collect();
    page.push_str("## The engine\n\n");
    table(&mut page, "", ENGINE, &Config::default());
    page.push_str("\n## Each transport\n\n");
    page.push_str(&format!("`NAME` is one of {}.\n\n", names.join(", ")));
    let below = format!("{TRANSPORTS}/NAME/");
    table(&mut page, &below, TRANSPORT, &TransportConfig::default());
    page
}

fn table<T>(page: &mut String, below: &str, keys: &[Key<T>], default: &T) {
    page.push_str(
        "| key | type | default | range | meaning | source |\n|---|---|---|---|---|---|\n",
    );
    for Key {
        path,
        field,
        meaning,
        source,
    } in keys
    {
        let (kind, range) = (field.kind(), field.range());
        let default = default_text(field, default);
        // Writing to a string does not fail.
        let _ = writeln!(
            page,
            "| `{below}{path}` | {kind} | {default} | {range} | {meaning} | {source} |"
        );
    }
}

fn default_text<T>(field: &Field<T>, of: &T) -> String {
    match field.value(of) {
        serde_json::Value::Null => "none".into(),
        serde_json::Value::Array(list) if list.is_empty() => "none".into(),
        value => format!("`{value}`"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_committed_page_is_what_is_printed() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == super::reference(),
            "docs/config.md is out of date: polyrail check-config --reference > docs/config.md"
        );
    }
}
