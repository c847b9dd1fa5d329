//! An engine's numbers for a monitoring system: OpenMetrics over HTTP.
//!
//! Source: OpenMetrics 1.0 for the text; Prometheus' practice for names and units.

mod door;
mod families;
mod page;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde::Serialize;

use crate::engine::{Engine, Inner};
use crate::error::ExposeError;
use crate::lock::lock;
use crate::stats::Stats;
use crate::thread::Thread;

use door::{Answer, Door, Waker};

pub use families::metrics_reference;

/// The kind of text that `/metrics` answers with.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The kind of text that `/stats` answers with.
const JSON: &str = "application/json";
/// The kind of all other answers.
const TEXT: &str = "text/plain; charset=utf-8";

/// An engine's metrics can be asked for at an address for as long as this is there. See [`Engine::expose`].
pub struct Exposed {
    at: SocketAddr,
    waker: Waker,
    thread: Mutex<Option<Thread>>,
}

impl Exposed {
    /// Where, with the port that it got.
    ///
    /// Example: [guide](crate::guide#looking-at-an-engine).
    pub fn at(&self) -> SocketAddr {
        self.at
    }
}

impl Drop for Exposed {
    fn drop(&mut self) {
        match lock(&self.thread).take() {
            Some(thread) if self.waker.is_ours() => {
                self.waker.end();
                thread.join();
            }
            // In a forked child there is no such thread.
            thread => std::mem::forget(thread),
        }
    }
}

impl Engine {
    /// Answers HTTP at an address until what it gives is dropped: `/metrics` with [`Self::metrics`], `/stats` with
    /// [`Self::stats`] as JSON, beside the engine's name and where it listens, `/live` with 200 as long as the engine's process answers at all, `/ready` with 200 while it takes requests and else with 503.
    ///
    /// Nobody is asked who they are. What can be read there are names of rails and numbers, no bytes and no keys, but
    /// whoever can reach the address can read them: use a loopback address unless a monitoring system elsewhere asks.
    ///
    /// Takes a thread. Connections are bounded in number, bytes and time, so nobody can keep others out for long.
    ///
    /// Example: [guide](crate::guide#looking-at-an-engine).
    pub fn expose(&self, at: SocketAddr) -> Result<Exposed, ExposeError> {
        expose(&self.inner, at)
    }

    /// Where it answers because the key `metrics` of its configuration says so, with the port that it got. `None`: nowhere,
    /// or it could not, and has warned.
    ///
    /// Example: [guide](crate::guide#looking-at-an-engine).
    pub fn metrics_at(&self) -> Option<SocketAddr> {
        let exposed = self.program.as_ref()?.exposed.as_ref();
        exposed.map(Exposed::at)
    }

    /// What the engine has done and holds, as OpenMetrics text. [`metrics_reference`] lists the names. Asks the workers as
    /// [`Self::stats`] does.
    ///
    /// Example: [guide](crate::guide#looking-at-an-engine).
    pub fn metrics(&self) -> String {
        page::text(self.stats())
    }
}

/// Answers where the configuration says. An engine that cannot is of use all the same.
pub(crate) fn configured(inner: &Arc<Inner>) -> Option<Exposed> {
    match expose(inner, inner.config.metrics?) {
        Ok(exposed) => {
            log::info!("metrics are at http://{}/metrics", exposed.at);
            Some(exposed)
        }
        Err(error) => {
            log::warn!("{error}; the engine runs without");
            None
        }
    }
}

fn expose(inner: &Arc<Inner>, at: SocketAddr) -> Result<Exposed, ExposeError> {
    let door = Door::open(at).map_err(|source| ExposeError::Listen { at, source })?;
    let (at, waker) = (door.at(), door.waker());
    // It keeps no engine alive whose program has let go of it.
    let inner = Arc::downgrade(inner);
    let answer = move |path: &str| match inner.upgrade() {
        Some(inner) => answer(&Engine::from_inner(inner), path),
        None => Answer::new(503, TEXT, "the engine has ended\n"),
    };
    let thread = Thread::start("polyrail-metrics".to_owned(), move || door.serve(answer));
    let thread = thread.map_err(ExposeError::Thread)?;
    Ok(Exposed {
        at,
        waker,
        thread: Mutex::new(Some(thread)),
    })
}

fn answer(engine: &Engine, path: &str) -> Answer {
    match path {
        "/metrics" => Answer::new(200, OPEN_METRICS, engine.metrics()),
        "/stats" => Answer::new(200, JSON, snapshot(engine)),
        "/live" => Answer::new(200, TEXT, "live\n"),
        "/ready" if engine.takes_nothing() => Answer::new(503, TEXT, "the engine is ending\n"),
        "/ready" => Answer::new(200, TEXT, "ready\n"),
        _ => Answer::new(404, TEXT, "ask for /metrics, /stats, /live or /ready\n"),
    }
}

/// What `/stats` says.
#[derive(Serialize)]
struct Snapshot<'a> {
    name: &'a str,
    version: &'static str,
    listening: Option<SocketAddr>,
    #[serde(flatten)]
    stats: Stats,
}

fn snapshot(engine: &Engine) -> String {
    let snapshot = Snapshot {
        name: &engine.inner.config.name,
        version: env!("CARGO_PKG_VERSION"),
        listening: engine.listening(),
        stats: engine.stats(),
    };
    // Only maps whose keys are no text cannot be written, and there is none.
    serde_json::to_string(&snapshot).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::families::{FAMILIES, Kind};

    use std::collections::BTreeSet;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    use crate::config::Config;
    use crate::pair::Pair;
    use polyrail_core::work::Op;

    fn get(at: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(at).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The numbers of one name, with their labels.
    fn rows<'a>(text: &'a str, name: &str) -> Vec<(&'a str, f64)> {
        let lines = text.lines().filter(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        lines
            .map(|line| {
                let (labels, number) = line.rsplit_once(' ').unwrap();
                (labels, number.parse().unwrap())
            })
            .collect()
    }

    #[test]
    fn what_was_moved_is_to_be_seen_over_http() {
        const BYTES: u64 = 1 << 20;
        let pair = Pair::over_tcp(Config::default(), Config::default(), BYTES);
        let engine = &pair.engine;
        let exposed = engine.expose("127.0.0.1:0".parse().unwrap()).unwrap();
        let at = exposed.at();
        let batch = engine.submit(&[pair.request(Op::Write, BYTES)]).unwrap();
        batch.wait(Duration::from_secs(10)).unwrap();

        let answer = get(at, "/metrics");
        let (head, text) = answer.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.1 200 ") && head.contains(OPEN_METRICS),
            "{head}"
        );
        assert!(text.ends_with("# EOF\n"), "{text}");
        let carried: f64 = rows(text, "polyrail_rail_bytes_total")
            .iter()
            .map(|row| row.1)
            .sum();
        assert_eq!(carried, BYTES as f64, "{text}");
        let requests = rows(text, "polyrail_requests_total");
        let ended = r#"polyrail_requests_total{transport="tcp",op="write",outcome="Completed"}"#;
        assert_eq!(requests, [(ended, 1.0)], "{text}");
        let times = rows(text, "polyrail_request_duration_seconds_count");
        assert_eq!(times.iter().map(|row| row.1).sum::<f64>(), 1.0, "{text}");
        let segments = r#"polyrail_limit_used{of="segments"}"#;
        let used = rows(text, "polyrail_limit_used");
        assert!(
            used.iter()
                .any(|(name, used)| *name == segments && *used >= 2.0),
            "{used:?}"
        );
        assert!(get(at, "/ready").starts_with("HTTP/1.1 200 "));
        assert!(get(at, "/no").starts_with("HTTP/1.1 404 "));
        engine.shutdown();
        assert!(get(at, "/ready").starts_with("HTTP/1.1 503 "));
        assert!(get(at, "/live").starts_with("HTTP/1.1 200 "));
        drop(exposed);
        assert!(TcpStream::connect(at).is_err(), "nobody listens any more");
    }

    #[test]
    fn each_family_is_in_the_text_under_the_name_that_is_listed() {
        let engine = Engine::new(Config::named("e")).unwrap();
        let text = engine.metrics();
        let names: BTreeSet<_> = FAMILIES.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), FAMILIES.len(), "each has a name of its own");
        let reference = metrics_reference();
        for family in FAMILIES {
            let name = format!("polyrail_{}", family.name);
            assert!(reference.contains(&format!("| `{name}` | ")), "{name}");
            let stem = name.strip_suffix("_total").unwrap_or(&name);
            assert!(text.contains(&format!("# TYPE {stem} ")), "{name}:\n{text}");
            assert!(
                text.contains(&format!("# HELP {stem} {}\n", family.help)),
                "{name}:\n{text}"
            );
        }
    }

    #[test]
    fn a_configuration_can_ask_for_it_and_a_taken_port_keeps_no_engine_from_running() {
        let at = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap()
        };
        let config = || Config {
            metrics: Some(at),
            ..Config::named("e")
        };
        let first = Engine::new(config()).unwrap();
        assert!(get(at, "/ready").starts_with("HTTP/1.1 200 "));
        let second = Engine::new(config()).unwrap();
        assert!(get(at, "/stats").contains(r#""limits":[{"what":"peers","used":0,"most":1024}"#));
        drop(first);
        assert!(TcpStream::connect(at).is_err(), "it goes with its engine");
        drop(second);
        let beyond = Config {
            metrics: Some("0.0.0.0:0".parse().unwrap()),
            ..Config::named("e")
        };
        let Err(error) = Engine::new(beyond) else {
            panic!("anybody can ask");
        };
        assert!(
            error.is_usage() && error.to_string().contains("metrics: 0.0.0.0:0"),
            "{error}"
        );
    }

    #[test]
    fn an_address_that_is_taken_is_an_error_that_names_it() {
        let engine = Engine::new(Config::named("e")).unwrap();
        let first = engine.expose("127.0.0.1:0".parse().unwrap()).unwrap();
        let Err(error) = engine.expose(first.at()) else {
            panic!("two have one address");
        };
        assert!(
            error.to_string().contains(&first.at().to_string()),
            "{error}"
        );
    }

    /// Each metric that a query names, with the labels that it asks for there. Other words of a query are not looked at.
    fn asked(query: &str) -> Vec<(String, Vec<String>)> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut asked = Vec::new();
        let mut rest = query;
        while let Some(at) = rest.find("polyrail_") {
            rest = &rest[at..];
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let name = rest[..end].to_owned();
            rest = &rest[end..];
            let inside = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
            let matchers = inside.map_or("", |(inside, _)| inside).split("\",");
            let labels = matchers.filter_map(|one| one.split(['=', '!']).next());
            let labels = labels.filter(|label| !label.is_empty());
            asked.push((name, labels.map(str::to_owned).collect()));
        }
        asked
    }

    /// The labels of a metric that is in the text; `None`: there is no such metric.
    fn labels_of(name: &str) -> Option<&'static [&'static str]> {
        let name = name.strip_prefix("polyrail_")?;
        let family = FAMILIES.iter().find(|family| match family.kind {
            Kind::Histogram => ["_bucket", "_sum", "_count"]
                .iter()
                .any(|end| name.strip_suffix(end) == Some(family.name)),
            Kind::Counter | Kind::Gauge => name == family.name,
        });
        family.map(|family| family.labels)
    }

    /// Whether all that a query asks for is there; what is not.
    fn wrong(query: &str) -> Option<String> {
        let mut by = Vec::new();
        for after in query.split(" by (").skip(1) {
            let (list, _) = after.split_once(')').expect("a list that ends");
            by.extend(list.split(',').map(str::trim));
        }
        let asked = asked(query);
        let mut known = vec!["instance", "le"];
        for (name, labels) in &asked {
            let Some(own) = labels_of(name) else {
                return Some(format!("there is no {name}"));
            };
            let is_known = |label: &&String| own.contains(&label.as_str()) || *label == "instance";
            if let Some(label) = labels.iter().find(|label| !is_known(label)) {
                return Some(format!("{name} has no label {label}"));
            }
            known.extend(own);
        }
        let strange = by.into_iter().find(|label| !known.contains(label));
        match strange {
            Some(label) => Some(format!("nothing there has a label {label}")),
            None => asked.is_empty().then(|| "it asks for nothing".to_owned()),
        }
    }

    /// Words in `{{ }}` that are labels, in what people read.
    fn shown(text: &str) -> Vec<&str> {
        let parts = text.split("{{").skip(1);
        let words = parts.filter_map(|part| part.split("}}").next());
        words
            .map(|word| word.trim().trim_start_matches("$labels."))
            .collect()
    }

    #[test]
    fn the_dashboard_and_the_alerts_ask_for_what_there_is() {
        let dashboard: serde_json::Value =
            serde_json::from_str(include_str!("../../../cli/grafana.json")).unwrap();
        let alerts: serde_json::Value =
            serde_json::from_str(include_str!("../../../cli/alerts.json")).unwrap();
        let mut queries = Vec::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                queries.push((&panel["title"], &target["expr"], &target["legendFormat"]));
            }
        }
        for rule in alerts["groups"][0]["rules"].as_array().unwrap() {
            queries.push((
                &rule["alert"],
                &rule["expr"],
                &rule["annotations"]["summary"],
            ));
        }
        assert!(queries.len() > 20, "{}", queries.len());
        for (of, query, text) in queries {
            let (query, text) = (query.as_str().unwrap(), text.as_str().unwrap());
            assert_eq!(wrong(query), None, "{of}: {query}");
            let asked = asked(query);
            let own = asked.iter().filter_map(|(name, _)| labels_of(name));
            let own: Vec<_> = own.flatten().copied().chain(["instance"]).collect();
            let strange = shown(text).into_iter().find(|label| !own.contains(label));
            assert_eq!(strange, None, "{of}: {text}");
        }
        // What it is to find.
        for (query, text) in [
            ("rate(polyrail_rail_byte_total[5m])", "there is no"),
            ("polyrail_rails{rail=\"a\"}", "no label rail"),
            ("sum by (peer) (polyrail_rails)", "a label peer"),
            ("polyrail_request_duration_seconds", "there is no"),
            ("up", "asks for nothing"),
        ] {
            assert!(
                wrong(query).is_some_and(|wrong| wrong.contains(text)),
                "{query}"
            );
        }
    }
}
