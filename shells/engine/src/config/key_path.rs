//! Keys by their paths: which one a path names, and which one was probably meant.

use std::collections::BTreeSet;

use super::keys::{DOMAIN, DOMAINS, ENGINE, Key, TRANSPORT, TRANSPORTS};
use super::nearest::{distance, nearest};
use super::{Config, DomainConfig, TransportConfig};
use crate::known;

/// A word this near to a key is probably meant to be it.
const NEAR: usize = 2;

/// What a path stands for.
pub(super) enum Known<'a> {
    Engine(&'static Key<Config>),
    Transport(&'a str, &'static Key<TransportConfig>),
    Domain(&'a str, &'static Key<DomainConfig>),
}

pub(super) fn domain_path(name: &str, path: &str) -> String {
    format!("{DOMAINS}/{name}/{path}")
}

pub(super) fn transport_path(name: &str, path: &str) -> String {
    format!("{TRANSPORTS}/{name}/{path}")
}

/// The key at a path.
pub(super) fn find(path: &str) -> Option<Known<'_>> {
    if let Some(key) = ENGINE.iter().find(|key| key.path == path) {
        return Some(Known::Engine(key));
    }
    if let Some((name, rest)) = of_domain(path) {
        let key = DOMAIN.iter().find(|key| key.path == rest)?;
        return is_name(name).then_some(Known::Domain(name, key));
    }
    let (name, rest) = of_transport(path)?;
    let key = TRANSPORT.iter().find(|key| key.path == rest)?;
    known::names()
        .any(|known| known == name)
        .then_some(Known::Transport(name, key))
}

/// A path below a transport, taken apart.
pub(super) fn of_transport(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix(TRANSPORTS)?
        .strip_prefix('/')?
        .split_once('/')
}

/// A path below a trust domain, taken apart.
fn of_domain(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix(DOMAINS)?
        .strip_prefix('/')?
        .split_once('/')
}

/// What [`is_name`] asks for.
pub(super) const NAMES: &str = "1 to 32 of a-z, 0-9, - and _";

/// Whether a program may call something of its own so.
pub(super) fn is_name(name: &str) -> bool {
    let good = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
    (1..=32).contains(&name.len()) && name.bytes().all(good)
}

/// Whether a transport of this name can come from a library.
pub(super) fn can_be_loaded(name: &str) -> bool {
    is_name(name) && !known::is_built_in(name)
}

/// All paths that stand for a value.
fn paths() -> Vec<String> {
    let engine = ENGINE.iter().map(|key| key.path.to_owned());
    let transport = known::names().flat_map(|name| {
        TRANSPORT
            .iter()
            .map(move |key| transport_path(name, key.path))
    });
    let domain = DOMAIN.iter().map(|key| domain_path("NAME", key.path));
    engine.chain(transport).chain(domain).collect()
}

pub(super) fn is_section(path: &str) -> bool {
    let domain = path
        .strip_prefix(DOMAINS)
        .and_then(|rest| rest.strip_prefix('/'));
    !children(path).is_empty() || domain.is_some_and(is_name)
}

/// The words that can follow a section; an empty one is the whole.
pub(super) fn children(section: &str) -> BTreeSet<String> {
    let paths = paths();
    let below = paths.iter().filter_map(|path| match section {
        "" => Some(path.as_str()),
        section => path.strip_prefix(section)?.strip_prefix('/'),
    });
    below
        .filter_map(|rest| rest.split('/').next())
        .map(str::to_owned)
        .collect()
}

/// What to say about a path that is neither key nor section.
pub(super) fn unknown(path: &str) -> String {
    let (section, word) = path.rsplit_once('/').unwrap_or(("", path));
    let siblings = children(section);
    let sibling = nearest(word, siblings.iter().map(String::as_str));
    // The same word elsewhere is a better guess than another word here; of several, the one in the most similar place.
    let paths = paths();
    let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let elsewhere = paths
        .iter()
        .min_by_key(|known| (distance(word, &last(known)), distance(path, known)))
        .filter(|path| distance(word, &last(path)) <= NEAR);
    // What a domain is called is up to whoever has it, and near to nothing.
    let is_own = section == DOMAINS;
    let near =
        sibling.filter(|sibling| is_own || distance(word, sibling) <= NEAR || elsewhere.is_none());
    let nearest = match (near, elsewhere, section) {
        (Some(word), _, "") => word.to_owned(),
        (Some(word), _, section) => format!("{section}/{word}"),
        (None, Some(path), _) => path.clone(),
        (None, None, _) => nearest(path, paths.iter().map(String::as_str))
            .unwrap_or_default()
            .to_owned(),
    };
    format!("unknown key; the nearest known one is {nearest}")
}
