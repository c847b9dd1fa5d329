//! The lines that control an agent.

use polyrail_core::path::class::{CLASSES_MAX, RailClass};
use polyrail_core::path::hint::ConnectionId;
use polyrail_core::path::share::{SHARE_ALL, Shares};

/// What a line asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Command {
    /// What the classes carry: of one connection, or of all. No shares: what they do without an agent, or of one
    /// connection what all do.
    Set {
        shares: Option<Shares>,
        connection: Option<ConnectionId>,
    },
    /// Tell what is set.
    Show,
    /// End.
    Quit,
}

const COMMANDS: &str = "set CLASS=SHARE … [on SLOT.USE], set none [on SLOT.USE], show, quit";
const LAST_CLASS: u8 = CLASSES_MAX as u8 - 1;

impl Command {
    /// Reads a line; `None` for one that is empty or a comment (`# …`). An error names the word and what would be
    /// right.
    pub(super) fn parse(line: &str) -> Result<Option<Self>, String> {
        let line = line.split_once('#').map_or(line, |(before, _)| before);
        let mut words = line.split_whitespace();
        let command = match words.next() {
            None => return Ok(None),
            Some("set") => return set(words).map(Some),
            Some("show") => Self::Show,
            Some("quit") => Self::Quit,
            Some(other) => {
                return Err(format!("\"{other}\" is no command; there are: {COMMANDS}"));
            }
        };
        match words.next() {
            None => Ok(Some(command)),
            Some(extra) => Err(format!("\"{extra}\" is too much; the command stands alone")),
        }
    }
}

fn set<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<Command, String> {
    let mut parts = [None; CLASSES_MAX];
    let mut none = false;
    let mut connection = None;
    while let Some(word) = words.next() {
        match word {
            "on" => {
                connection = Some(id(words.next())?);
                if let Some(extra) = words.next() {
                    return Err(format!(
                        "\"{extra}\" is too much; the connection comes last"
                    ));
                }
            }
            "none" => none = true,
            part => add(&mut parts, part)?,
        }
    }
    let shares = match (none, parts.iter().any(Option::is_some)) {
        (true, false) => None,
        (true, true) => {
            return Err("\"none\" goes with no shares; say one or the other".to_owned());
        }
        (false, true) => Some(complete(parts)?),
        (false, false) => {
            return Err("\"set\" needs shares, such as set supplementary=512, or none".to_owned());
        }
    };
    Ok(Command::Set { shares, connection })
}

fn id(word: Option<&str>) -> Result<ConnectionId, String> {
    const RIGHT: &str = "SLOT.USE as `show` says it, such as 3.1";
    let word = word.ok_or_else(|| format!("\"on\" needs a connection: {RIGHT}"))?;
    word.parse()
        .map_err(|_| format!("\"{word}\" is no connection; that is {RIGHT}"))
}

fn add(parts: &mut [Option<u16>; CLASSES_MAX], word: &str) -> Result<(), String> {
    let (class, share) = word.split_once('=').ok_or_else(|| {
        format!("\"{word}\" is no share; that is CLASS=SHARE, such as supplementary=512")
    })?;
    let class = class_of(class).ok_or_else(|| {
        format!(
            "\"{class}\" in \"{word}\" is no class; that is primary, supplementary, or 0 to {LAST_CLASS}"
        )
    })?;
    let share: u32 = share.parse().map_err(|_| {
        format!(
            "\"{share}\" in \"{word}\" is no share; that is a whole number of parts per {SHARE_ALL}"
        )
    })?;
    match parts.get_mut(class.index()) {
        Some(part @ None) => *part = Some(share.min(u32::from(SHARE_ALL)) as u16),
        _ => {
            return Err(format!(
                "\"{word}\" is the second share of class {class}; give one"
            ));
        }
    }
    Ok(())
}

fn class_of(word: &str) -> Option<RailClass> {
    match word {
        "primary" => Some(RailClass::PRIMARY),
        "supplementary" => Some(RailClass::SUPPLEMENTARY),
        number => number
            .parse()
            .ok()
            .filter(|n| *n <= LAST_CLASS)
            .map(RailClass),
    }
}

/// The primary class carries what is left, unless its share is said too.
fn complete(mut parts: [Option<u16>; CLASSES_MAX]) -> Result<Shares, String> {
    let sum: u32 = parts.iter().flatten().map(|part| u32::from(*part)).sum();
    let rest = u32::from(SHARE_ALL).checked_sub(sum);
    let [primary, ..] = &mut parts;
    if primary.is_none() {
        let rest = rest.ok_or_else(|| {
            format!("the shares sum to {sum}; that is at most {SHARE_ALL}, and the primary class has the rest")
        })?;
        *primary = Some(rest as u16);
    }
    Shares::new(parts.map(Option::unwrap_or_default)).map_err(|_| {
        format!("the shares sum to {sum}; with the primary class among them that is {SHARE_ALL}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(first: [u16; 3]) -> Option<Shares> {
        let mut parts = [0; CLASSES_MAX];
        parts[..3].copy_from_slice(&first);
        Some(Shares::new(parts).unwrap())
    }

    #[test]
    fn good_lines_say_what_they_mean() {
        let all = |shares| Command::Set {
            shares,
            connection: None,
        };
        let on = |shares, slot, uses| Command::Set {
            shares,
            connection: Some(ConnectionId { slot, uses }),
        };
        // (line, command)
        let cases = [
            ("", None),
            ("  # nothing", None),
            ("show", Some(Command::Show)),
            (" quit # now", Some(Command::Quit)),
            ("set supplementary=512", Some(all(parts([512, 512, 0])))),
            ("set 1=256 2=128", Some(all(parts([640, 256, 128])))),
            ("set 0=512 1=256 2=256", Some(all(parts([512, 256, 256])))),
            ("set primary=1024", Some(all(parts([1024, 0, 0])))),
            ("set 1=0", Some(all(parts([1024, 0, 0])))),
            ("set 1=4294967295", Some(all(parts([0, 1024, 0])))),
            ("set none", Some(all(None))),
            ("set 1=512 on 3.17", Some(on(parts([512, 512, 0]), 3, 17))),
            ("set none on 0.1", Some(on(None, 0, 1))),
        ];
        for (line, command) in cases {
            assert_eq!(Command::parse(line), Ok(command), "{line}");
        }
    }

    #[test]
    fn bad_lines_are_answered_with_the_word_and_what_would_be_right() {
        // (line, what the error names)
        let cases: [(&str, &[&str]); 17] = [
            ("fly", &["\"fly\"", "set", "show", "quit"]),
            ("show me", &["\"me\"", "alone"]),
            ("set", &["\"set\"", "supplementary=512"]),
            ("set half", &["\"half\"", "CLASS=SHARE"]),
            ("set 8=1", &["\"8\"", "0 to 7"]),
            ("set sup=1", &["\"sup\"", "supplementary"]),
            ("set 1=half", &["\"half\"", "\"1=half\"", "1024"]),
            ("set 1=-1", &["\"-1\"", "whole number"]),
            ("set 1=", &["\"\"", "\"1=\""]),
            ("set 1=1 1=2", &["\"1=2\"", "supplementary", "second"]),
            ("set 1=600 2=600", &["1200", "at most 1024"]),
            ("set 0=600 1=600", &["1200", "is 1024"]),
            ("set 0=500", &["500", "is 1024"]),
            ("set none 1=1", &["\"none\""]),
            ("set 1=1 on", &["\"on\"", "SLOT.USE"]),
            ("set 1=1 on 3", &["\"3\"", "3.1"]),
            ("set 1=1 on 3.1 2=1", &["\"2=1\"", "last"]),
        ];
        for (line, parts) in cases {
            let error = Command::parse(line).unwrap_err();
            for part in parts {
                assert!(error.contains(part), "{line}: {error}");
            }
        }
    }
}
