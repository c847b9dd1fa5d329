//! The log: what goes to standard error, as lines for people or as JSON, and how much of it.

use std::io::{self, Write};
use std::sync::{OnceLock, PoisonError, RwLock};

use env_logger::fmt::Formatter;
use env_logger::{Builder, Logger};
use log::kv::{self, Key, VisitSource};
use log::{Level, Log, Metadata, Record};
use serde_json::{Map, Value};

/// What says how much is written, before any configuration.
const VARIABLE: &str = "RUST_LOG";

/// How a line of the log looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line: time, level, target and message, and what an event is about.
    Json,
}

/// The program's logger. How much it writes can change.
struct Switch {
    format: LogFormat,
    /// What was usual for the command.
    usual: &'static str,
    logger: RwLock<Logger>,
}

static SWITCH: OnceLock<Switch> = OnceLock::new();

impl Log for Switch {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.with(|logger| logger.enabled(metadata))
    }

    fn log(&self, record: &Record<'_>) {
        self.with(|logger| logger.log(record));
    }

    fn flush(&self) {
        self.with(Log::flush);
    }
}

impl Switch {
    fn with<T>(&self, look: impl FnOnce(&Logger) -> T) -> T {
        look(&self.logger.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, logger: Logger) {
        log::set_max_level(logger.filter());
        *self.logger.write().unwrap_or_else(PoisonError::into_inner) = logger;
    }
}

/// Starts the log: as much as `RUST_LOG` says, or else as is `usual` for the command.
pub(crate) fn start(format: LogFormat, usual: &'static str) {
    let filter = std::env::var(VARIABLE).unwrap_or_else(|_| usual.to_owned());
    let logger = logger(format, &filter);
    let switch = SWITCH.get_or_init(|| Switch {
        format,
        usual,
        logger: RwLock::new(logger),
    });
    log::set_max_level(switch.with(Logger::filter));
    // It fails only if the process has one already, which is then its program's.
    let _ = log::set_logger(switch);
}

/// Writes as much as a configuration says, or else as was usual, unless `RUST_LOG` says it.
pub(crate) fn set_level(level: Option<Level>) {
    let Some(switch) = SWITCH
        .get()
        .filter(|_| std::env::var_os(VARIABLE).is_none())
    else {
        return;
    };
    let filter = level.map_or(switch.usual, |level| level.as_str());
    switch.set(logger(switch.format, filter));
}

fn logger(format: LogFormat, filter: &str) -> Logger {
    let mut builder = Builder::new();
    builder.parse_filters(filter);
    if format == LogFormat::Json {
        builder.format(json);
    }
    builder.build()
}

/// A line as JSON.
fn json(to: &mut Formatter, record: &Record<'_>) -> io::Result<()> {
    let time = to.timestamp_millis().to_string();
    let mut fields = Fields::default();
    // Ours take whatever they get.
    let _ = record.key_values().visit(&mut fields);
    let own = [
        ("time", time.into()),
        ("level", record.level().as_str().to_lowercase().into()),
        ("target", record.target().into()),
        ("message", record.args().to_string().into()),
    ];
    let mut line = fields.0;
    for (key, value) in own {
        line.insert(key.to_owned(), value);
    }
    writeln!(to, "{}", Value::from(line))
}

/// What an event is about.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl<'kvs> VisitSource<'kvs> for Fields {
    fn visit_pair(&mut self, key: Key<'kvs>, value: kv::Value<'kvs>) -> Result<(), kv::Error> {
        let value = match (value.to_u64(), value.to_f64(), value.to_bool()) {
            (Some(number), _, _) => number.into(),
            (_, Some(number), _) => number.into(),
            (_, _, Some(yes)) => yes.into(),
            _ => value.to_string().into(),
        };
        self.0.insert(key.as_str().to_owned(), value);
        Ok(())
    }
}
