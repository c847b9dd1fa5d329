//! The reference of all keys, as `docs/config.md` has it.

use std::fmt::Write;

use super::field::Field;
use super::keys::{DOMAIN, DOMAINS, ENGINE, Key, TRANSPORT, TRANSPORTS};
use super::variables::{VARIABLES, Variable};
use super::{Config, DomainConfig, SendQueueConfig, TransportConfig};
use crate::known;

const INTRODUCTION: &str = "\
# Configuration

Printed by `polyrail check-config --reference`; do not edit. A test compares.

An engine is configured by a file in JSON (`--config FILE`), by the environment and by flags. Flags win over the
environment, that over the file, and what nobody says has its default.

In a file, `/` in a key stands for nesting. In the environment a key is `POLYRAIL_` and its name in any case, with `/`
written `__`; lists may be written with commas:

```
{ \"transports\": { \"tcp\": { \"rail_cooldown_secs\": 10 } } }
POLYRAIL_TRANSPORTS__TCP__RAIL_COOLDOWN_SECS=10
POLYRAIL_RAILS=10.0.0.1,10.0.1.1
```

`polyrail check-config FILE` says everything that is wrong with a file and the environment, each with its place and
the nearest known key, or which values differ from their defaults. Rust programs load the same with
`Config::from_file`, `Config::from_json`, `Config::from_env` and `Sources`.

";

/// All keys, as a page in Markdown.
///
/// Example: [guide](crate::guide#configuration).
pub fn reference() -> String {
    let mut page = INTRODUCTION.to_owned();
    let names: Vec<_> = known::names()
        // The page is the same whatever this build has.
        .map(|name| match known::feature(name) {
            Some(feature) => format!("`{name}` (feature `{feature}`)"),
            None if known::is_built_in(name) => format!("`{name}`"),
            None => format!(
                "`{name}` (`{}` under its other name)",
                known::real_name(name)
            ),
        })
        .collect();
    page.push_str("## The engine\n\n");
    table(&mut page, "", ENGINE, &Config::default());
    page.push_str("\n## Each transport\n\n");
    page.push_str(&format!(
        "`NAME` is that of a transport with a `library`, or one of these:\n\n- {}\n\n",
        names.join("\n- ")
    ));
    let below = format!("{TRANSPORTS}/NAME/");
    table(&mut page, &below, TRANSPORT, &TransportConfig::default());
    page.push_str(
        "\n## Each trust domain\n\nNames are the program's: 1 to 32 of a-z, 0-9, - and _.\n\n",
    );
    let below = format!("{DOMAINS}/NAME/");
    table(&mut page, &below, DOMAIN, &DomainConfig::default());
    variables(&mut page);
    profile(&mut page, &SendQueueConfig::mori());
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

fn variables(page: &mut String) {
    page.push_str("\n## Variables of other systems\n\n| variable | default there | here | source |\n|---|---|---|---|\n");
    for Variable {
        name,
        default,
        here,
        source,
    } in VARIABLES
    {
        let _ = writeln!(page, "| `{name}` | {default} | {here} | {source} |");
    }
}

/// What an engine would be told to wait and signal like the flow-control rework. Not what it does anyway: of that some
/// steers nothing where who finds no room is refused.
fn profile(page: &mut String, queue: &SendQueueConfig) {
    let usual = Config::default();
    let config = Config {
        send_queue: *queue,
        ..Config::default()
    };
    let keys = ENGINE.iter().filter_map(|key| {
        let name = key.path.strip_prefix("send_queue/")?;
        let value = key.field.value(&config);
        (value != key.field.value(&usual)).then(|| format!("\"{name}\": {value}"))
    });
    let keys: Vec<_> = keys.collect();
    let _ = write!(
        page,
        "\nThe profile `mori`, the defaults of that rework (`SendQueueConfig::mori()`), where ours are others:\n\n\
         ```\n{{ \"send_queue\": {{ {} }} }}\n```\n",
        keys.join(", ")
    );
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

    #[test]
    fn the_profile_is_what_it_says() {
        let page = super::reference();
        let from = page.find("{ \"send_queue\"").unwrap();
        let text = page[from..].lines().next().unwrap();
        let loaded = crate::Sources::new().json("profile", text).load().unwrap();
        assert_eq!(loaded.config.send_queue, super::SendQueueConfig::mori());
        assert_eq!(loaded.notes, [""; 0], "all of it steers something");
    }
}
