//! `polyrail keygen`, and what people are told of who comes in.

use std::fmt::Display;
use std::io::{self, Write};
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
        (true, ..) => "insecure: whoever reaches the port comes in",
    };
    format!("security {what}={key} control={control} lanes={lanes}, {reach}")
}

#[cfg(test)]
mod tests {
    use super::*;

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
                    "whoever reaches the port",
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
