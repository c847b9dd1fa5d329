//! Transports that come from libraries.

use polyrail_load::Library;

use crate::config::{Config, TransportConfig};
use crate::error::EngineError;

/// Transports from libraries that one engine can have: with its own, as many as are told apart in its counters.
const LIBRARIES_MAX: usize = 4;

/// The libraries that a configuration names, in the order of their names. What is wrong with one is wrong with the
/// configuration.
pub(super) fn libraries(config: &Config) -> Result<Vec<Library>, EngineError> {
    let named = config.transports.iter();
    let named = named.filter(|(_, said)| said.enable && !said.library.is_empty());
    let wrong = |name: &str, text: String| EngineError::Config {
        text: format!("transports/{name}/library: {text}"),
    };
    let open = |(name, said): (&String, &TransportConfig)| {
        let library = Library::open(said.library.as_ref());
        let library = library.map_err(|error| wrong(name, error.to_string()))?;
        match library.name() == name {
            true => Ok(library),
            false => Err(wrong(
                name,
                format!(
                    "the transport in {} is called {}",
                    said.library,
                    library.name()
                ),
            )),
        }
    };
    let libraries = named.map(open).collect::<Result<Vec<_>, _>>()?;
    match libraries.get(LIBRARIES_MAX) {
        None => Ok(libraries),
        Some(surplus) => Err(wrong(
            surplus.name(),
            format!(
                "{} libraries: {LIBRARIES_MAX} are possible",
                libraries.len()
            ),
        )),
    }
}
