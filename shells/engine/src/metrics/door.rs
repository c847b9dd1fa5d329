//! HTTP for a few short questions: one thread, a bounded number of connections, each with a bound on bytes and time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::fork::Owned;

/// Connections at a time. One more takes the place of the oldest.
const CONNECTIONS_MAX: usize = 32;
/// Bytes of a question, its headers with it.
const QUESTION_BYTES_MAX: usize = 8 * 1024;
/// Headers of a question.
const HEADERS_MAX: usize = 64;
/// How long a connection may take from its begin until its answer has been taken.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a listener rests that cannot accept.
const REST: Duration = Duration::from_millis(100);

/// What is said to whoever asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Answer {
    status: u16,
    kind: &'static str,
    body: String,
}

impl Answer {
    pub(super) fn new(status: u16, kind: &'static str, body: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            body: body.into(),
        }
    }

    /// As it goes out; without its body if only its head was asked for.
    fn bytes(&self, has_body: bool) -> Vec<u8> {
        let reason = match self.status {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            431 => "Request Header Fields Too Large",
            _ => "Service Unavailable",
        };
        let Self { status, kind, body } = self;
        let head = format!(
            "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        let body = if has_body { body.as_bytes() } else { &[] };
        [head.as_bytes(), body].concat()
    }
}

/// Ends a door's thread.
pub(super) struct Waker(Owned<OwnedFd>);

impl Waker {
    /// Whether the thread is one of this process.
    pub(super) fn is_ours(&self) -> bool {
        self.0.is_ours()
    }

    pub(super) fn end(&self) {
        // It is full only if it has been told so 2^64 times.
        let _ = rustix::io::write(&**self.0, &1_u64.to_ne_bytes());
    }
}

/// A listener for questions.
pub(super) struct Door {
    listener: TcpListener,
    at: SocketAddr,
    ends: Arc<OwnedFd>,
}

impl Door {
    pub(super) fn open(at: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            at: listener.local_addr()?,
            listener,
            ends: Arc::new(eventfd(0, flags)?),
        })
    }

    pub(super) fn at(&self) -> SocketAddr {
        self.at
    }

    pub(super) fn waker(&self) -> Waker {
        Waker(Owned::new(self.ends.clone()))
    }

    /// Answers until it is told to end.
    pub(super) fn serve(self, answer: impl Fn(&str) -> Answer) {
        let mut connections: Vec<Connection> = Vec::new();
        let mut rests_until: Option<Instant> = None;
        loop {
            let now = Instant::now();
            rests_until = rests_until.filter(|until| now < *until);
            connections.retain(|connection| now < connection.until);
            let Ok(ready) = self.wait(&connections, rests_until, now) else {
                // Only a lack of memory is left as a reason.
                std::thread::sleep(REST);
                continue;
            };
            if ready.ends {
                return;
            }
            let mut number = 0;
            connections.retain_mut(|connection| {
                number += 1;
                !ready.connections[number - 1] || connection.goes_on(&answer)
            });
            if ready.listener {
                rests_until = self.accept(&mut connections);
            }
        }
    }

    /// Until something can go on, or a time has come.
    fn wait(
        &self,
        connections: &[Connection],
        rests_until: Option<Instant>,
        now: Instant,
    ) -> rustix::io::Result<Ready> {
        let of_listener = match rests_until {
            Some(_) => PollFlags::empty(),
            None => PollFlags::IN,
        };
        let mut fds = vec![
            PollFd::new(&*self.ends, PollFlags::IN),
            PollFd::new(&self.listener, of_listener),
        ];
        let of_connections = connections.iter();
        fds.extend(of_connections.map(|c| PollFd::new(&c.stream, c.waits_for())));
        let times = connections.iter().map(|connection| connection.until);
        let next = times.chain(rests_until).min();
        let left = next.map(|next| next.saturating_duration_since(now));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        Ok(Ready {
            ends: ready.next() == Some(true),
            listener: ready.next() == Some(true),
            connections: ready.collect(),
        })
    }

    /// Takes in whoever waits. Until when it rests, if it cannot.
    fn accept(&self, connections: &mut Vec<Connection>) -> Option<Instant> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if connections.len() == CONNECTIONS_MAX {
                        connections.remove(0);
                    }
                    connections.extend(Connection::begin(stream));
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return None,
                // Whoever waited has left.
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Some(Instant::now() + REST),
            }
        }
    }
}

/// Who can go on.
struct Ready {
    ends: bool,
    listener: bool,
    connections: Vec<bool>,
}

/// Whoever asks: first its question comes, then its answer goes.
struct Connection {
    stream: TcpStream,
    until: Instant,
    question: Vec<u8>,
    /// What is left of the answer.
    answer: Option<(Vec<u8>, usize)>,
}

impl Connection {
    fn begin(stream: TcpStream) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        Some(Self {
            stream,
            until: Instant::now() + PATIENCE,
            question: Vec::new(),
            answer: None,
        })
    }

    fn waits_for(&self) -> PollFlags {
        match self.answer {
            None => PollFlags::IN,
            Some(_) => PollFlags::OUT,
        }
    }

    /// As far as it can. `false`: it is over.
    fn goes_on(&mut self, answer: &impl Fn(&str) -> Answer) -> bool {
        let result = match self.answer.is_none() {
            true => self.read(answer),
            false => Ok(true),
        };
        match result.and_then(|goes_on| Ok(goes_on && self.write()?)) {
            Ok(goes_on) => goes_on,
            Err(e) => matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    fn read(&mut self, answer: &impl Fn(&str) -> Answer) -> io::Result<bool> {
        loop {
            let mut bytes = [0; 1024];
            let count = self.stream.read(&mut bytes)?;
            if count == 0 {
                return Ok(false);
            }
            self.question.extend_from_slice(&bytes[..count]);
            if let Some(answer) = answered(&self.question, answer) {
                self.answer = Some((answer, 0));
                return Ok(true);
            }
        }
    }

    fn write(&mut self) -> io::Result<bool> {
        let Some((bytes, gone)) = &mut self.answer else {
            return Ok(true);
        };
        while *gone < bytes.len() {
            *gone += self.stream.write(&bytes[*gone..])?;
        }
        // What it sent beside its question would turn the answer into a reset.
        self.stream.shutdown(std::net::Shutdown::Write)?;
        let mut rest = [0; 1024];
        while self.stream.read(&mut rest)? > 0 {}
        Ok(false)
    }
}

/// The answer to a question, once it is whole.
fn answered(question: &[u8], answer: &impl Fn(&str) -> Answer) -> Option<Vec<u8>> {
    let refuse = |status, text: &str| Some(Answer::new(status, super::TEXT, text).bytes(true));
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(question) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if question.len() < QUESTION_BYTES_MAX => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return refuse(431, "a question has 8 KiB and 64 headers at most\n");
        }
        Err(error) => return refuse(400, &format!("that is no HTTP: {error}\n")),
    }
    let path = request.path.unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    match request.method {
        Some("GET") => Some(answer(path).bytes(true)),
        Some("HEAD") => Some(answer(path).bytes(false)),
        _ => refuse(405, "only GET and HEAD are answered\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::thread;

    /// A door that answers with the path, and what ends it.
    fn open() -> (SocketAddr, Waker, thread::JoinHandle<()>) {
        let door = Door::open("127.0.0.1:0".parse().unwrap()).unwrap();
        let (at, waker) = (door.at(), door.waker());
        let serve = move || door.serve(|path| Answer::new(200, super::super::TEXT, path));
        (at, waker, thread::spawn(serve))
    }

    fn ask(at: SocketAddr, question: &[u8]) -> String {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(question).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn questions_are_answered_whatever_they_are() {
        let (at, waker, thread) = open();
        let long = [b"GET / HTTP/1.1\r\nX: ", &[b'x'; 9000][..]].concat();
        let many = "GET / HTTP/1.1\r\n".to_owned() + &"a: b\r\n".repeat(65) + "\r\n";
        // (question, the first line's number, the body)
        let cases: [(&[u8], &str, &str); 7] = [
            (
                b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
                "200",
                "/metrics",
            ),
            (b"GET /a?b=c HTTP/1.0\r\n\r\n", "200", "/a"),
            (b"HEAD /a HTTP/1.1\r\n\r\n", "200", ""),
            (b"POST /a HTTP/1.1\r\n\r\n", "405", "only GET"),
            (b"\x16\x03\x01\x02\x00\x01", "400", "that is no HTTP"),
            (&long, "431", "a question has"),
            (many.as_bytes(), "431", "a question has"),
        ];
        for (question, status, body) in cases {
            let answer = ask(at, question);
            let (head, rest) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
            assert!(
                rest.starts_with(body) && rest.is_empty() == body.is_empty(),
                "{answer}"
            );
        }
        waker.end();
        thread.join().unwrap();
    }

    #[test]
    fn a_question_may_come_in_pieces() {
        let (at, waker, thread) = open();
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_nodelay(true).unwrap();
        for byte in b"GET /slow HTTP/1.1\r\n\r\n" {
            stream.write_all(&[*byte]).unwrap();
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("\r\n\r\n/slow"), "{answer}");
        waker.end();
        thread.join().unwrap();
    }

    #[test]
    fn who_says_nothing_keeps_nobody_out() {
        let (at, waker, thread) = open();
        let silent: Vec<_> = (0..3 * CONNECTIONS_MAX)
            .map(|_| TcpStream::connect(at).unwrap())
            .collect();
        assert!(ask(at, b"GET /a HTTP/1.1\r\n\r\n").ends_with("/a"));
        // The first ones have made room.
        let mut byte = [0];
        assert_eq!((&silent[0]).read(&mut byte).unwrap_or(0), 0);
        waker.end();
        thread.join().unwrap();
    }
}
