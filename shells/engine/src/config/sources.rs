//! Puts a configuration together from files and the environment, and says everything that is wrong with it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use super::check::relations;
use super::effect::idle;
use super::entry::{Member, Text};
use super::key_path::{
    Known, can_be_loaded, children, domain_path, find, is_section, of_transport, transport_path,
    unknown,
};
use super::keys::{DOMAIN, ENGINE, Key, TRANSPORT, TRANSPORTS};
use super::problem::{ConfigError, Place, Problem};
use super::{Config, DomainConfig, TransportConfig};
use crate::known;

/// What environment variables begin with.
const PREFIX: &str = "POLYRAIL_";
/// Variables that begin so and are no keys: what the package for Python reads at its start.
const NO_KEYS: [&str; 1] = ["AS_MOONCAKE"];
/// The largest file that is taken for a configuration.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Sources of a configuration. What is added later wins, so files come before the environment; a program's own
/// flags are set in the result.
///
/// ```no_run
/// let loaded = polyrail::Sources::new().file("polyrail.json").environment().load()?;
/// let config = polyrail::Config { insecure: true, ..loaded.config };
/// # Ok::<(), polyrail::ConfigError>(())
/// ```
#[derive(Debug, Default)]
pub struct Sources {
    config: Config,
    /// Where each key was last said.
    said: BTreeMap<String, Said>,
    /// How many sources were read.
    count: usize,
    problems: Vec<Problem>,
    notes: Vec<String>,
    /// Transports that come from libraries, by name.
    loaded: BTreeSet<String>,
}

/// How a key was last said.
#[derive(Clone, Debug)]
struct Said {
    place: Place,
    /// In which source.
    source: usize,
    /// Under which name.
    as_key: String,
}

/// What came of the sources.
#[derive(Clone, PartialEq, Debug)]
pub struct Loaded {
    /// The configuration. Nothing is wrong with it.
    pub config: Config,
    /// What is not wrong but worth knowing: a section for a transport that this build does not have, a
    /// variable that looks like a key and is none.
    pub notes: Vec<String>,
    /// Values that differ from their defaults, in the order of the reference.
    pub effective: Vec<Effective>,
}

/// A value that differs from its default.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Effective {
    /// The key as a path.
    pub key: String,
    /// The value, in JSON.
    pub value: String,
    /// What it would be, in JSON.
    pub default: String,
    /// Where it was said.
    pub place: Place,
}

impl Sources {
    /// No sources yet: every key has its default.
    ///
    /// Example: [guide](crate::guide#configuration).
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file in JSON.
    ///
    /// Example: [guide](crate::guide#configuration).
    pub fn file(mut self, path: impl AsRef<Path>) -> Self {
        let name = path.as_ref().display().to_string();
        match read(path.as_ref()) {
            Ok(text) => self.json(&name, &text),
            Err(text) => {
                self.problem(Place::Text { name, at: None }, "", text);
                self
            }
        }
    }

    /// Adds a text in JSON, which `name` stands for in errors.
    ///
    /// Example: [guide](crate::guide#configuration).
    pub fn json(mut self, name: &str, text: &str) -> Self {
        self.count += 1;
        let text = Text { name, text };
        match text.root() {
            Err((place, what)) => self.problem(place, "", format!("no JSON: {what}")),
            Ok(root) => match text.members(root) {
                Some(members) => self.members(&text, "", &members),
                None => self.problem(
                    text.place_of(root),
                    "",
                    "a configuration is an object, such as { \"policy\": \"spray\" }",
                ),
            },
        }
        self
    }

    /// Adds the environment of this process.
    ///
    /// Example: [guide](crate::guide#configuration).
    pub fn environment(self) -> Self {
        self.variables(std::env::vars_os())
    }

    /// Adds environment variables. Those that do not begin with `POLYRAIL_` are nobody's business here.
    ///
    /// Example: [guide](crate::guide#configuration).
    pub fn variables(mut self, variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        self.count += 1;
        let ours = |(name, value): (OsString, OsString)| {
            let name = name.into_string().ok()?;
            let key = name
                .strip_prefix(PREFIX)
                .filter(|key| !NO_KEYS.contains(key))?;
            let path = key.to_lowercase().replace("__", "/");
            Some((name, path, value))
        };
        let mut variables: Vec<_> = variables.into_iter().filter_map(ours).collect();
        variables.sort();
        for (_, path, _) in &variables {
            self.note_library_at(path);
        }
        for (name, path, value) in variables {
            self.variable(name, &path, value);
        }
        self
    }

    /// Adds keys as paths, such as `transports/tcp/enable`, with values as environment variables have them: words as
    /// they are, lists with commas. `name` stands for them in errors. A key that is said twice has its last value.
    ///
    /// Example: [guide](crate::guide#configuration).
    pub fn pairs<'a>(
        mut self,
        name: &str,
        pairs: impl IntoIterator<Item = (&'a str, &'a str), IntoIter: Clone>,
    ) -> Self {
        self.count += 1;
        let pairs = pairs.into_iter();
        for (path, _) in pairs.clone() {
            self.note_library_at(path);
        }
        for (path, value) in pairs {
            let place = Place::Text {
                name: name.to_owned(),
                at: None,
            };
            match self.find(path) {
                Some(known) => self.set_text(&known, path, place, value),
                None => self.problem(place, path, unknown(path)),
            }
        }
        self
    }

    /// Checks how the values go together, and gives the configuration or everything that is wrong.
    ///
    /// Example: [guide](crate::guide#configuration).
    pub fn load(mut self) -> Result<Loaded, ConfigError> {
        self.choose_policy();
        let mut problems = Vec::new();
        relations(&self.config, &mut |key, text| problems.push((key, text)));
        for ((key, other), text) in problems {
            let place = [&key, &other]
                .into_iter()
                .filter_map(|key| self.said.get(key))
                .max_by_key(|said| said.source)
                .map_or(Place::Program, |said| said.place.clone());
            self.problem(place, &key, text);
        }
        if !self.problems.is_empty() {
            return Err(ConfigError {
                problems: self.problems,
            });
        }
        self.note_idle();
        let effective = self.effective();
        Ok(Loaded {
            config: self.config,
            notes: self.notes,
            effective,
        })
    }

    fn problem(&mut self, place: Place, key: &str, text: impl Into<String>) {
        self.problems.push(Problem {
            place,
            key: key.to_owned(),
            text: text.into(),
        });
    }

    /// A transport of this name comes from a library.
    fn note_library(&mut self, name: &str) {
        if can_be_loaded(name) {
            self.loaded.insert(name.to_owned());
        }
    }

    /// The same where this path of a key says so.
    fn note_library_at(&mut self, path: &str) {
        let name = path
            .strip_suffix("/library")
            .and_then(|path| path.strip_prefix(TRANSPORTS));
        if let Some(name) = name.and_then(|name| name.strip_prefix('/')) {
            self.note_library(name);
        }
    }

    /// The key at a path.
    fn find<'a>(&self, path: &'a str) -> Option<Known<'a>> {
        find(path).or_else(|| {
            let (name, rest) = of_transport(path)?;
            let key = TRANSPORT.iter().find(|key| key.path == rest)?;
            self.loaded
                .contains(name)
                .then_some(Known::Transport(name, key))
        })
    }

    fn is_section(&self, path: &str) -> bool {
        let name = path
            .strip_prefix(TRANSPORTS)
            .and_then(|rest| rest.strip_prefix('/'));
        is_section(path) || name.is_some_and(|name| self.loaded.contains(name))
    }

    fn members(&mut self, text: &Text<'_>, section: &str, members: &[Member<'_>]) {
        if section == TRANSPORTS {
            for member in members {
                let inner = text.members(member.value).unwrap_or_default();
                if inner.iter().any(|inner| inner.key == "library") {
                    self.note_library(&member.key);
                }
            }
        }
        let mut seen = BTreeSet::new();
        for member in members {
            let path = match section {
                "" => member.key.to_string(),
                section => format!("{section}/{}", member.key),
            };
            let place = text.place(member);
            if !seen.insert(member.key.as_ref()) {
                self.problem(place, &path, "said twice in the same object");
            } else if member.key.contains('/') {
                self.problem(place, &path, "a key with '/'; nest objects instead");
            } else if let Some(known) = self.find(&path) {
                match serde_json::from_str(member.value) {
                    Ok(value) => self.set(&known, &path, place, &value),
                    Err(error) => self.problem(place, &path, format!("no value: {error}")),
                }
            } else if !self.is_section(&path) {
                self.problem(place, &path, unknown(&path));
            } else if let Some(inner) = text.members(member.value) {
                self.members(text, &path, &inner);
            } else {
                let keys: Vec<_> = children(&path).into_iter().collect();
                let text = format!("is a section; give an object with {}", keys.join(", "));
                self.problem(place, &path, text);
            }
        }
    }

    fn variable(&mut self, name: String, path: &str, value: OsString) {
        let place = Place::Variable(name);
        let Some(known) = self.find(path) else {
            // A section is surely meant for us; a single word may be anybody's, such as what Kubernetes
            // sets for a service named polyrail.
            if path.contains('/') {
                self.problem(place, path, unknown(path));
            } else {
                self.notes
                    .push(format!("{place} is no key: {}", unknown(path)));
            }
            return;
        };
        match value.into_string() {
            Ok(text) => self.set_text(&known, path, place, &text),
            Err(value) => {
                let text = format!("{value:?} is not UTF-8");
                self.problem(place, path, text);
            }
        }
    }

    fn set_text(&mut self, known: &Known<'_>, path: &str, place: Place, text: &str) {
        let value = match known {
            Known::Engine(key) => key.field.parse_text(text),
            Known::Transport(_, key) => key.field.parse_text(text),
            Known::Domain(_, key) => key.field.parse_text(text),
        };
        self.set(known, path, place, &value);
    }

    fn set(&mut self, known: &Known<'_>, path: &str, place: Place, value: &Value) {
        let (known, real) = match *known {
            Known::Transport(name, key) if self.is_other_name(name) => {
                let real = known::real_name(name);
                self.note_other_name(name, real);
                (Known::Transport(real, key), transport_path(real, key.path))
            }
            Known::Transport(name, key) => (Known::Transport(name, key), path.to_owned()),
            Known::Engine(key) => (Known::Engine(key), path.to_owned()),
            Known::Domain(name, key) => (Known::Domain(name, key), path.to_owned()),
        };
        if let Some(other) = self.said_under_two_names(&real, path) {
            let text = format!("says the same as {other}: two names of one key");
            return self.problem(place, path, text);
        }
        match self.apply(&known, value) {
            Ok(()) => {
                let said = Said {
                    place,
                    source: self.count,
                    as_key: path.to_owned(),
                };
                self.said.insert(real, said);
            }
            Err(text) => self.problem(place, path, text),
        }
    }

    fn apply(&mut self, known: &Known<'_>, value: &Value) -> Result<(), String> {
        match known {
            Known::Engine(key) => key.field.apply(&mut self.config, value),
            Known::Transport(name, key) => {
                let transports = &mut self.config.transports;
                key.field
                    .apply(transports.entry((*name).to_owned()).or_default(), value)
            }
            Known::Domain(name, key) => {
                let domains = &mut self.config.security.domains;
                key.field
                    .apply(domains.entry((*name).to_owned()).or_default(), value)
            }
        }
    }

    /// Whether a transport is meant that has another name, and not one from a library.
    fn is_other_name(&self, name: &str) -> bool {
        known::real_name(name) != name && !self.loaded.contains(name)
    }

    fn note_other_name(&mut self, name: &str, real: &str) {
        let note = format!("{TRANSPORTS}/{name} is {TRANSPORTS}/{real} under its other name");
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// The other name under which this source has said a key already.
    fn said_under_two_names(&self, real: &str, path: &str) -> Option<&str> {
        let said = self.said.get(real)?;
        (said.source == self.count && said.as_key != path).then_some(&*said.as_key)
    }

    /// A policy that a later source names is that of all transports, whatever an earlier one says of smart scheduling.
    fn choose_policy(&mut self) {
        let Some(policy) = self.said.get("policy") else {
            return;
        };
        for (name, transport) in &mut self.config.transports {
            let smart = transport_path(name, "enable_smart_scheduling");
            let earlier = self.said.get(&smart);
            let earlier = earlier.filter(|smart| smart.source < policy.source);
            let is_smart = &mut transport.documented.enable_smart_scheduling;
            if let (false, Some(Said { place, .. })) = (*is_smart, earlier) {
                self.notes.push(format!(
                    "{place}: {smart} gives way to the policy that {} says later",
                    policy.place
                ));
                *is_smart = true;
            }
        }
    }

    /// What was said and steers nothing.
    fn note_idle(&mut self) {
        for (name, transport) in &self.config.transports {
            if !known::is_built_in(name) && transport.library.is_empty() {
                self.notes.push(format!(
                    "transport {name} is not built into this program: what is said under {TRANSPORTS}/{name} \
                     steers nothing"
                ));
            } else if !transport.enable && self.says_more_of(name) {
                self.notes.push(format!(
                    "transport {name} is off: what else is said under {TRANSPORTS}/{name} steers nothing"
                ));
            }
        }
        for (key, why) in idle(&self.config) {
            if let Some(Said { place, as_key, .. }) = self.said.get(&key) {
                self.notes
                    .push(format!("{place}: {as_key} steers nothing: {why}"));
            }
        }
    }

    /// Whether something is said of a transport beside that it is off.
    fn says_more_of(&self, name: &str) -> bool {
        let mut others = TRANSPORT.iter().filter(|key| key.path != "enable");
        others.any(|key| self.said.contains_key(&transport_path(name, key.path)))
    }

    fn effective(&self) -> Vec<Effective> {
        let place = |key: &str| {
            self.said
                .get(key)
                .map_or(Place::Program, |said| said.place.clone())
        };
        let mut effective = Vec::new();
        let mut compare = |key: String, value: Value, default: Value| {
            if value != default {
                effective.push(Effective {
                    place: place(&key),
                    value: value.to_string(),
                    default: default.to_string(),
                    key,
                });
            }
        };
        let default = Config::default();
        for Key { path, field, .. } in ENGINE {
            compare(
                (*path).to_owned(),
                field.value(&self.config),
                field.value(&default),
            );
        }
        let default = TransportConfig::default();
        for (name, transport) in &self.config.transports {
            for Key { path, field, .. } in TRANSPORT {
                compare(
                    transport_path(name, path),
                    field.value(transport),
                    field.value(&default),
                );
            }
        }
        let default = DomainConfig::default();
        for (name, domain) in &self.config.security.domains {
            for Key { path, field, .. } in DOMAIN {
                compare(
                    domain_path(name, path),
                    field.value(domain),
                    field.value(&default),
                );
            }
        }
        effective
    }
}

fn read(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|error| format!("cannot be opened: {error}"))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!(
            "is no configuration: it has more than {FILE_BYTES_MAX} bytes"
        ));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        format!("is not UTF-8 from byte {at} on")
    })
}
