//! One question to an engine's metrics port.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::exit::Failure;

/// How long the engine may take with each step.
const PATIENCE: Duration = Duration::from_secs(3);
/// More than any engine says.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// What is at `/stats`.
pub(super) fn fetch(at: &str) -> Result<String, Failure> {
    let answer = ask(at).map_err(|e| {
        Failure::Environment(format!(
            "no engine tells its metrics at {at}: {e}; start one with `serve --metrics {at}`"
        ))
    })?;
    let other = |what: &str| {
        Failure::Environment(format!(
            "{at} is no metrics port of an engine: it answers {what:?}"
        ))
    };
    let first = answer.lines().next().unwrap_or_default();
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| other(first))?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    match status {
        "200" => Ok(body.to_owned()),
        "503" => Err(Failure::Environment(format!("{at}: {}", body.trim_end()))),
        _ => Err(other(first)),
    }
}

fn ask(at: &str) -> io::Result<String> {
    let mut last = io::Error::other("the name has no address");
    for address in at.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return converse(stream, at),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn converse(mut stream: TcpStream, at: &str) -> io::Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "GET /stats HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
