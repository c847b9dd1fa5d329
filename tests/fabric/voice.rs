//! What the processes of the dark experiment tell the one that started them: lines of JSON with one key.

use std::io::{Write, stdout};

use serde_json::{Value, json};

/// Says it.
pub(crate) fn say(key: &str, value: impl Into<Value>) {
    let line = json!({ key: value.into() });
    // Whoever no longer listens has given up.
    let _ = writeln!(stdout().lock(), "{line}");
}
