//! A target, or initiators, in a process of their own.

use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{self, ChildStdin, ChildStdout, Command, Stdio};

/// This program again. It ends when its input does, or when it is dropped here.
pub(crate) struct Child {
    process: process::Child,
    /// Held open: its end is the child's sign to end.
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Where it listens, if it does.
    pub(crate) address: String,
}

impl Child {
    /// Starts a target and waits until it listens.
    pub(crate) fn start(words: &[String]) -> io::Result<Self> {
        let mut child = Self::spawn(words)?;
        child.address = child.line()?;
        Ok(child)
    }

    /// Starts it.
    pub(crate) fn spawn(words: &[String]) -> io::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::Error::other("no pipes"));
        };
        Ok(Self {
            process,
            input,
            output: BufReader::new(output),
            address: String::new(),
        })
    }

    /// The next line that it says.
    pub(crate) fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        match line.trim() {
            "" => Err(io::Error::other("the process on the other end has ended")),
            line => Ok(line.to_owned()),
        }
    }

    /// Tells it something.
    pub(crate) fn tell(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.input, "{line}")
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
