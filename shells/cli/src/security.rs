//! `polyrail keygen`, and what people are told of who comes in.

use std::fmt::Display;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use polyrail::{Config, Payload};

use crate::exit::Failure;

/// Makes a cluster's key: who has it is a member.
///
/// It goes into a new file that only its owner may read; one that is there is not overwritten. Give each host a copy with
/// mode 0600, and name it in each engine's configuration as security/key_file. The line on standard output says by what
/// people tell the key from others; it is no secret.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  polyrail keygen cluster.key\n  \
    POLYRAIL_SECURITY__KEY_FILE=cluster.key polyrail serve")]
pub(crate) struct KeygenArgs {
    /// The file to make.
    file: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &KeygenArgs) -> Result<(), Failure> {
    let key = polyrail::keygen(&args.file)
        .map_err(|error| Failure::from_engine(error.is_usage(), error.to_string()))?;
    let mut out = io::stdout().lock();
    writeln!(out, "key {key} {}", args.file.display())
        .and_then(|()| out.flush())
        .map_err(Failure::output)
}

/// What keeps an engine from listening where this configuration says. The engine checks it as well, but it cannot name our
/// flags.
pub(crate) fn out_of_reach(config: &Config) -> Option<String> {
    if config.insecure {
        return None;
    }
    let listen = config.listen.iter().map(SocketAddr::ip);
    let rails = config.listen.iter().flat_map(|_| &config.rails);
    let lanes_are_encrypted = config.security.payload == Payload::Encrypt;
    let ports = listen.chain(rails.copied());
    let beyond = |address: &IpAddr| !address.is_loopback();
    if let Some(address) = ports.filter(|_| !lanes_are_encrypted).find(beyond) {
        return Some(format!(
            "{address} is beyond loopback, where anybody on the way could use this memory; give --insecure on a network that you \
             trust, listen on 127.0.0.1, or set security/key_file and security/payload encrypt"
        ));
    }
    let metrics = config.metrics.map(|metrics| metrics.ip()).filter(beyond);
    metrics.map(|address| {
        format!(
            "{address} is beyond loopback, where anybody could read metrics; give --insecure to accept that, or 127.0.0.1 for \
             --metrics"
        )
    })
}

/// Who comes in and what is in clear, in one line.
pub(crate) fn line(key: Option<impl Display>, config: &Config) -> String {
    let (key, control) = match key {
        Some(key) => (key.to_string(), "tls"),
        None => ("none".to_owned(), "clear"),
    };
    let what = match config.security.certificate.is_empty() {
        true => "key",
        false => "certificate",
    };
    let lanes = match config.security.payload {
        Payload::Off => "clear",
        Payload::Encrypt => "encrypted",
    };
    let reach = match (config.insecure, control, config.security.payload) {
        (_, "tls", Payload::Encrypt) => "members only, beyond loopback too",
        (false, ..) => "loopback only",
        (true, "tls", Payload::Off) => "insecure: beyond loopback too, with lanes in clear",
        (true, ..) => "insecure: anyone who reaches the port comes in",
    };
    format!("security {what}={key} control={control} lanes={lanes}, {reach}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_listen_where_is_said_with_what_would_be_right() {
        // (listen, metrics, insecure, encrypted, parts of what is said)
        let at = "10.0.0.2:7000";
        let cases: [(_, _, _, _, &[&str]); 7] = [
            (Some("127.0.0.1:7000"), Some("[::1]:9"), false, false, &[]),
            (
                Some(at),
                None,
                false,
                false,
                &["10.0.0.2", "--insecure", "security/payload encrypt"],
            ),
            (Some(at), None, false, true, &[]),
            (Some(at), Some("10.0.0.2:9"), true, false, &[]),
            (
                Some(at),
                Some("10.0.0.3:9"),
                false,
                true,
                &["10.0.0.3", "--metrics"],
            ),
            (
                Some("127.0.0.1:7000"),
                Some("10.0.0.3:9"),
                false,
                false,
                &["10.0.0.3", "--metrics"],
            ),
            // Who does not listen lets nobody in over its rails.
            (None, None, false, false, &[]),
        ];
        for (listen, metrics, insecure, encrypted, parts) in cases {
            let address = |text: &str| text.parse().unwrap();
            let mut config = Config {
                listen: listen.map(address),
                metrics: metrics.map(address),
                rails: listen.map_or_else(|| vec!["10.0.0.1".parse().unwrap()], |_| Vec::new()),
                insecure,
                ..Config::default()
            };
            if encrypted {
                config.security.payload = Payload::Encrypt;
            }
            let said = out_of_reach(&config);
            assert_eq!(
                said.is_none(),
                parts.is_empty(),
                "{listen:?} {metrics:?}: {said:?}"
            );
            let said = said.unwrap_or_default();
            assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        }
    }

    #[test]
    fn the_line_says_what_is_kept_out() {
        let config = |insecure| Config {
            insecure,
            ..Config::default()
        };
        // (key, whether insecure, the line's parts)
        let cases = [
            (
                None,
                false,
                ["key=none control=clear lanes=clear", "loopback only"],
            ),
            (
                None,
                true,
                [
                    "key=none control=clear lanes=clear",
                    "anyone who reaches the port",
                ],
            ),
            (
                Some("12ab"),
                false,
                ["key=12ab control=tls lanes=clear", "loopback only"],
            ),
            (
                Some("12ab"),
                true,
                ["key=12ab control=tls lanes=clear", "lanes in clear"],
            ),
        ];
        for (key, insecure, parts) in cases {
            let line = line(key, &config(insecure));
            assert!(parts.iter().all(|part| line.contains(part)), "{line}");
        }
        let mut encrypting = config(false);
        encrypting.security.payload = Payload::Encrypt;
        let line = line(Some("12ab"), &encrypting);
        let expected =
            "security key=12ab control=tls lanes=encrypted, members only, beyond loopback too";
        assert_eq!(line, expected);
    }
}
