//! The program under attack, and what the kernel says of it.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{KNOWN, VICTIM};

/// Where it listens, and from where good peers come.
pub(crate) const RAILS: [&str; 3] = ["127.0.0.1", "127.0.0.2", "127.0.0.3"];

const MEMORY_BYTES: u64 = 16 << 20;

/// How long it may take to end.
const END_MAX: Duration = Duration::from_secs(20);

const LOOK: Duration = Duration::from_millis(50);

/// The program: `POLYRAIL_BIN`, or what was built beside this one.
pub(crate) fn polyrail(words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let path = env::var_os("POLYRAIL_BIN").map_or_else(beside_this, PathBuf::from);
    let mut command = Command::new(path);
    command.args(words).stdin(Stdio::null());
    command
}

fn beside_this() -> PathBuf {
    let this = env::current_exe().unwrap_or_default();
    this.with_file_name("polyrail")
}

/// A target; killed when dropped.
pub(crate) struct Target {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl Target {
    /// Starts one on [`RAILS`] that offers the two files.
    pub(crate) fn start(folder: &Path) -> Result<Self, String> {
        let log = folder.join("serve.log");
        let file = File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let known = format!("{}:ro", folder.join(KNOWN).display());
        let mut child = polyrail(["serve", "--rails", &RAILS.join(",")])
            .args(["--memory", &MEMORY_BYTES.to_string(), "--file", &known])
            .arg("--file")
            .arg(folder.join(VICTIM))
            // With rails it would stay out, and nobody could attack from inside the host.
            .env("POLYRAIL_TRANSPORTS__SHM__ENABLE", "true")
            .env("RUST_LOG", "error")
            .env("RUST_BACKTRACE", "1")
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .map_err(|e| format!("polyrail serve: {e}; has it been built?"))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.as_mut() {
            // An empty line is an error below.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        let address = line.split(' ').nth(1).and_then(|word| word.parse().ok());
        let address = address.ok_or_else(|| format!("polyrail serve said \"{}\"", line.trim()))?;
        Ok(Self {
            child,
            address,
            log,
        })
    }

    /// Where it listens first.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Everywhere it listens.
    pub(crate) fn ports(&self) -> Vec<SocketAddr> {
        let addresses = RAILS.iter().filter_map(|rail| rail.parse::<IpAddr>().ok());
        addresses
            .map(|address| SocketAddr::new(address, self.address.port()))
            .collect()
    }

    /// How many descriptors it has open.
    pub(crate) fn descriptors(&self) -> Result<usize, String> {
        let folder = format!("/proc/{}/fd", self.child.id());
        let entries = fs::read_dir(&folder).map_err(|e| format!("{folder}: {e}"))?;
        Ok(entries.count())
    }

    /// How many bytes of memory it has.
    pub(crate) fn memory(&self) -> Result<u64, String> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.map(|kib| kib * 1024)
            .ok_or_else(|| format!("{path} names no VmRSS: it has ended"))
    }

    /// Descriptors and memory once whoever came before has left.
    pub(crate) fn at_rest(&self) -> Result<(usize, u64), String> {
        let until = Instant::now() + Duration::from_secs(2);
        let mut least = usize::MAX;
        while Instant::now() < until {
            least = least.min(self.descriptors()?);
            thread::sleep(LOOK);
        }
        Ok((least, self.memory()?))
    }

    /// Sees that it lives until then.
    pub(crate) fn watch_until(&self, until: Instant) -> Result<(), String> {
        while Instant::now() < until {
            self.memory()?;
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Waits until it has no more descriptors than that.
    pub(crate) fn settle(&self, descriptors: usize, bound: Duration) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let now = self.descriptors()?;
            if now <= descriptors {
                println!("settled after {:.1} s", start.elapsed().as_secs_f64());
                return Ok(());
            }
            if start.elapsed() > bound {
                return Err(format!(
                    "{now} descriptors are open {bound:?} after the attack, {descriptors} before it"
                ));
            }
            thread::sleep(LOOK);
        }
    }

    /// Ends it as an operator would; an error unless it does so well and has not complained.
    pub(crate) fn end(mut self) -> Result<(), String> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)
            .map_err(|e| format!("the target cannot be signalled: {e}"))?;
        let until = Instant::now() + END_MAX;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < until => thread::sleep(LOOK),
                other => return Err(format!("no end within {END_MAX:?} of SIGTERM: {other:?}")),
            }
        };
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let first: Vec<&str> = log.lines().take(40).collect();
        if !status.success() || log.contains("panicked") {
            return Err(format!("it ended with {status}:\n{}", first.join("\n")));
        }
        println!(
            "ended with 0, {} lines of errors in its log",
            log.lines().count()
        );
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
