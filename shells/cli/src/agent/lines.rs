//! Where an agent's lines come from, and where its answers go: standard input, or connections of a socket.
//!
//! Each source has a thread of its own that hands lines in one by one and waits for the answer, so a client that says
//! nothing, or does not read, holds up nobody but itself.

use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use crate::exit::Failure;

/// Longer than any line that makes sense.
const LINE_BYTES_MAX: u64 = 4096;
/// Connections of the socket at a time.
const CONNECTIONS_MAX: usize = 64;

/// What the agent is told.
pub(super) enum Event {
    /// A line.
    Line { text: String, reply: Sender<Reply> },
    /// It is to end; the answer to who asked for it has been given.
    End(&'static str),
}

/// The answer to a line.
pub(super) struct Reply {
    /// What to say, or what was wrong with the line.
    pub(super) text: Result<String, String>,
    /// That was the last one.
    pub(super) quit: bool,
}

/// Reads standard input to its end.
pub(super) fn serve_stdin(events: Sender<Event>) {
    thread::spawn(move || {
        // It may not come to that: then nobody asks any more.
        let _ = serve(&mut io::stdin().lock(), &events, |number, reply| {
            let mut out = io::stdout().lock();
            match reply {
                Ok(text) => out.write_all(text.as_bytes()),
                Err(error) => writeln!(io::stderr(), "error: line {number}: {error}"),
            }
            .and_then(|()| out.flush())
        });
    });
}

/// A socket that is there as long as this is.
pub(super) struct Socket {
    path: PathBuf,
}

impl Socket {
    /// Listens. A socket that nobody answers any more is replaced.
    pub(super) fn listen(path: &Path, events: Sender<Event>) -> Result<Self, Failure> {
        let failure = |what: &str| Failure::Environment(format!("{}: {what}", path.display()));
        let is_socket = fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
        if is_socket {
            match UnixStream::connect(path) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    fs::remove_file(path).map_err(|e| failure(&e.to_string()))?;
                }
                _ => return Err(failure("another agent listens there")),
            }
        }
        let listener =
            UnixListener::bind(path).map_err(|e| failure(&format!("cannot listen there: {e}")))?;
        let socket = Self {
            path: path.to_owned(),
        };
        // Who may write to it may say what goes where.
        fs::set_permissions(path, Permissions::from_mode(0o600))
            .map_err(|e| failure(&e.to_string()))?;
        thread::spawn(move || accept(&listener, &events));
        Ok(socket)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Somebody may have been quicker.
        let _ = fs::remove_file(&self.path);
    }
}

fn accept(listener: &UnixListener, events: &Sender<Event>) {
    let places = Arc::new(());
    for stream in listener.incoming() {
        let mut stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                log::warn!("a client could not connect: {error}");
                continue;
            }
        };
        if Arc::strong_count(&places) > CONNECTIONS_MAX {
            // It is free not to listen.
            let _ = writeln!(
                stream,
                "error: {CONNECTIONS_MAX} clients are connected already"
            );
            continue;
        }
        let (place, events) = (places.clone(), events.clone());
        thread::spawn(move || {
            if let Err(error) = converse(&stream, &events) {
                log::info!("a client is gone: {error}");
            }
            drop(place);
        });
    }
}

fn converse(stream: &UnixStream, events: &Sender<Event>) -> io::Result<()> {
    let mut out = stream;
    serve(
        &mut BufReader::new(stream),
        events,
        |number, reply| match reply {
            Ok(text) => out.write_all(text.as_bytes()),
            Err(error) => writeln!(out, "error: line {number}: {error}"),
        },
    )
}

/// Hands lines in until there are no more, and the answers with the lines' numbers out.
fn serve(
    source: &mut impl BufRead,
    events: &Sender<Event>,
    mut answer: impl FnMut(u64, &Result<String, String>) -> io::Result<()>,
) -> io::Result<()> {
    for number in 1.. {
        let mut line = Vec::new();
        source.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            break;
        }
        if line.len() as u64 == LINE_BYTES_MAX && !line.ends_with(b"\n") {
            let error = format!("it is longer than {LINE_BYTES_MAX} bytes");
            answer(number, &Err(error))?;
            break;
        }
        let text = String::from_utf8_lossy(&line).into_owned();
        let (reply, replies) = channel();
        let asked = events.send(Event::Line { text, reply });
        // The agent ends.
        let Some(reply) = asked.ok().and_then(|()| replies.recv().ok()) else {
            break;
        };
        let answered = answer(number, &reply.text);
        if reply.quit {
            let _ = events.send(Event::End("quit"));
            break;
        }
        answered?;
    }
    Ok(())
}
