//! What has to hold of a configuration: each value by itself, and values together.

use super::Config;
use super::key_path::{
    NAMES, can_be_loaded, domain_path, is_name, is_section, transport_path, unknown,
};
use super::keys::{
    DOMAIN, DOMAINS, ENGINE, ENGINE_RELATIONS, Key, Relation, TRANSPORT, TRANSPORT_RELATIONS,
    TRANSPORTS,
};
use super::problem::{ConfigError, Place, Problem};
use crate::domains::DOMAINS_MAX;
use crate::known;

/// Checks every value and relation of a configuration that a program has made itself.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let mut problems = Vec::new();
    let mut note = |key: String, text: String| {
        problems.push(Problem {
            place: Place::Program,
            key,
            text,
        });
    };
    for Key { path, field, .. } in ENGINE {
        if let Err(text) = field.check(config) {
            note((*path).to_owned(), text);
        }
    }
    for (name, transport) in &config.transports {
        let section = format!("{TRANSPORTS}/{name}");
        if !is_section(&section) && transport.library.is_empty() {
            note(section.clone(), unknown(&section));
        }
        for Key { path, field, .. } in TRANSPORT {
            if let Err(text) = field.check(transport) {
                note(transport_path(name, path), text);
            }
        }
    }
    for (name, domain) in &config.security.domains {
        if !is_name(name) {
            let text = format!("\"{name}\" cannot name a trust domain: {NAMES}");
            note(DOMAINS.to_owned(), text);
        }
        for Key { path, field, .. } in DOMAIN {
            if let Err(text) = field.check(domain) {
                note(domain_path(name, path), text);
            }
        }
    }
    relations(config, &mut |(key, _), text| note(key, text));
    match problems.is_empty() {
        true => Ok(()),
        false => Err(ConfigError { problems }),
    }
}

/// Names the relations that do not hold: the two keys, and what is wrong.
pub(super) fn relations(config: &Config, wrong: &mut dyn FnMut((String, String), String)) {
    for Relation { paths, holds, text } in ENGINE_RELATIONS {
        if !holds(config) {
            wrong(
                (paths[0].to_owned(), paths[1].to_owned()),
                (*text).to_owned(),
            );
        }
    }
    let domains = &config.security.domains;
    if domains.len() > DOMAINS_MAX {
        let text = format!(
            "{} trust domains; {DOMAINS_MAX} are possible",
            domains.len()
        );
        wrong((DOMAINS.to_owned(), DOMAINS.to_owned()), text);
    }
    for (index, (name, domain)) in domains.iter().enumerate() {
        for (other, before) in domains.iter().take(index) {
            if let Some(both) = both(&domain.names, &before.names)
                && (domain.peers.is_empty() && before.peers.is_empty()
                    || domain
                        .peers
                        .iter()
                        .any(|peers| before.peers.contains(peers)))
            {
                let text = format!(
                    "{both} is said of domain {other} too, so nobody could say whose it is"
                );
                wrong(
                    (domain_path(name, "names"), domain_path(other, "names")),
                    text,
                );
            }
            let both = both(&domain.peers, &before.peers);
            let are_nameless = domain.names.is_empty() && before.names.is_empty();
            if let Some(both) = both.filter(|_| are_nameless) {
                let text = format!(
                    "{both} is said of domain {other} too, so nobody could say whose it is"
                );
                wrong(
                    (domain_path(name, "peers"), domain_path(other, "peers")),
                    text,
                );
            }
        }
    }
    for (name, domain) in domains {
        if !domain.names.is_empty() && config.security.certificate.is_empty() {
            let text = "are those of certificates, and security/certificate names none".to_owned();
            let key = domain_path(name, "names");
            wrong((key.clone(), key), text);
        }
    }
    for (name, transport) in &config.transports {
        if !transport.library.is_empty() && !can_be_loaded(name) {
            let text = match known::is_built_in(name) {
                true => "is built in: a library's transport has another name",
                false => &format!("cannot name a library's transport: {NAMES}"),
            };
            let key = transport_path(name, "library");
            wrong((key.clone(), key), format!("{name} {text}"));
        }
        for Relation { paths, holds, text } in TRANSPORT_RELATIONS {
            if !holds(transport) {
                let [key, other] = paths.map(|path| transport_path(name, path));
                wrong((key, other), (*text).to_owned());
            }
        }
    }
}

/// What two lists have both.
fn both<'a, T: PartialEq>(these: &'a [T], those: &[T]) -> Option<&'a T> {
    these.iter().find(|this| those.contains(this))
}
