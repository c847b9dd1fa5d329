//! Commands in a network namespace of their own, in which further ones are hosts: nothing of it is left on the machine.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Where commands run, with `polyrail` among the programs. What was started in the background ends with it.
pub(crate) struct Namespaces {
    folder: TempDir,
    path: String,
    processes: Vec<Child>,
}

impl Namespaces {
    /// `None` without the rights, where that is allowed.
    pub(crate) fn new() -> Option<Self> {
        if !is_root() {
            assert!(
                std::env::var_os("CI").is_none(),
                "network namespaces need root"
            );
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        symlink(
            env!("CARGO_BIN_EXE_polyrail-of-the-book"),
            bin.join("polyrail"),
        )
        .unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        // One namespace for networks, and one for mounts, in which `ip netns` keeps its names.
        const KEEP: &str = "mkdir -p /run/netns && mount -t tmpfs none /run/netns && ip link set lo up && echo ready && exec sleep 600";
        let mut keeper = Command::new("unshare")
            .args(["--net", "--mount", "sh", "-c", KEEP])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        keeper
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut ready)
            .unwrap();
        let processes = vec![keeper];
        Some(Self {
            folder,
            path,
            processes,
        })
    }

    /// Runs a script to its end and gives what it prints; fails with it.
    pub(crate) fn run(&self, script: &str) -> String {
        let done = self.command(script).output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success(),
            "{script}\n{}\n{said}{errors}",
            done.status
        );
        said
    }

    /// Starts a script in the background, and waits until it has printed this.
    pub(crate) fn start(&mut self, name: &str, script: &str, until: &str) {
        let out = self.folder.path().join(format!("{name}.out"));
        let file = fs::File::create(&out).unwrap();
        let child = self.command(script).stdout(file).spawn().unwrap();
        self.processes.push(child);
        let began = Instant::now();
        while !self.said(name).contains(until) {
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "{name} has not said {until:?}"
            );
            std::thread::yield_now();
        }
    }

    /// What a script in the background has printed.
    pub(crate) fn said(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(format!("{name}.out"))).unwrap()
    }

    fn command(&self, script: &str) -> Command {
        let inside = self.processes[0].id().to_string();
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &inside, "--net", "--mount", "bash", "-c"])
            .arg(format!("set -eu -o pipefail\n{script}"))
            .current_dir(self.folder.path())
            .env("PATH", &self.path)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null());
        command
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for child in self.processes.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let owner = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .unwrap();
    owner.split_whitespace().nth(1) == Some("0")
}
