//! A target in a process of its own.

use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{self, ChildStdin, Command, Stdio};

/// This program again, as a target. It ends when its input does, or when it is dropped here.
pub(crate) struct Child {
    process: process::Child,
    /// Held open: its end is the target's sign to end.
    _input: Option<ChildStdin>,
    /// Where it listens.
    pub(crate) address: String,
}

impl Child {
    /// Starts it and waits until it listens.
    pub(crate) fn start(words: &[String]) -> io::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().map(BufReader::new);
        let mut address = String::new();
        if let Some(mut output) = output {
            output.read_line(&mut address)?;
        }
        let input = process.stdin.take();
        let address = address.trim().to_owned();
        let child = Self {
            process,
            _input: input,
            address,
        };
        if child.address.is_empty() {
            return Err(io::Error::other("the target ended before it listened"));
        }
        Ok(child)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a target says first.
pub(crate) fn say_address(address: SocketAddr) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{address}")?;
    out.flush()
}

/// Waits until nobody needs this target any more.
pub(crate) fn wait_for_end() -> io::Result<()> {
    io::copy(&mut io::stdin().lock(), &mut io::sink()).map(drop)
}
