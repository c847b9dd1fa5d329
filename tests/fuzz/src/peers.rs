//! Good peers: they use the target while it is attacked, and check every byte.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::program::{RAILS, Target, polyrail};
use crate::{KNOWN, VICTIM};

const KNOWN_BYTES: usize = 4 << 20;
const VICTIM_BYTES: usize = 8 << 20;

/// How long a copy may take, on a busy machine and under attack.
const COPY_MAX: Duration = Duration::from_secs(30);

/// Between two copies.
const PAUSE: Duration = Duration::from_millis(200);

/// The files that the target will offer; answers what is in the known one.
pub(crate) fn write_files(folder: &Path) -> Result<Vec<u8>, String> {
    let mut rng = oorandom::Rand32::new(0x706f_6c79);
    let known: Vec<u8> = (0..KNOWN_BYTES).map(|_| rng.rand_u32() as u8).collect();
    let write = |name, bytes: &[u8]| {
        fs::write(folder.join(name), bytes).map_err(|e| format!("cannot write {name}: {e}"))
    };
    write(KNOWN, &known)?;
    write(VICTIM, &vec![0; VICTIM_BYTES])?;
    Ok(known)
}

/// Has all of the target's memory touched once, so that later growth is growth.
pub(crate) fn touch_all(target: &Target, folder: &Path) -> Result<(), String> {
    let place = |segment| format!("{}/{segment}", target.address());
    for segment in ["mem", VICTIM, KNOWN] {
        let copy = folder.join("touched");
        let copy = copy.display().to_string();
        finish(cp(&place(segment), &copy), COPY_MAX)?;
        if segment != KNOWN {
            finish(cp(&copy, &place(segment)), COPY_MAX)?;
        }
    }
    Ok(())
}

/// Copies the known file from the target and compares.
pub(crate) fn read_known(target: &Target, folder: &Path, known: &[u8]) -> Result<(), String> {
    let copy = folder.join("copy");
    let from = format!("{}/{KNOWN}", target.address());
    finish(cp(&from, &copy.display().to_string()), COPY_MAX)?;
    let got = fs::read(&copy).map_err(|e| format!("no copy: {e}"))?;
    if got != known {
        return Err(format!("the copy of {KNOWN} differs from it"));
    }
    Ok(())
}

/// Copies it again and again, each time in a new session; answers how often.
pub(crate) fn read_until(
    target: &Target,
    folder: &Path,
    known: &[u8],
    stop: &AtomicBool,
) -> Result<u64, String> {
    let mut times = 0;
    while !stop.load(Ordering::Relaxed) {
        read_known(target, folder, known).map_err(|why| format!("copy {times}: {why}"))?;
        times += 1;
        thread::sleep(PAUSE);
    }
    Ok(times)
}

/// Writes and reads the target's memory in small pieces, all in one session; answers what was moved.
pub(crate) fn move_for(target: &Target, seconds: u64) -> Result<String, String> {
    let mut bench = polyrail(["bench", "--json", "--verify", "--op", "mix"]);
    bench
        .args(["--block", "16KiB", "--batch", "4", "--buffer", "8MiB"])
        .args(["--seconds", &seconds.to_string()])
        .args(["--target", &target.address().to_string()])
        .args(["--rails", &RAILS.join(",")]);
    let output = finish(bench, Duration::from_secs(seconds) + COPY_MAX)?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let cell: Value = serde_json::from_str(stdout.trim())
        .map_err(|e| format!("bench printed no cell ({e}): {stdout}"))?;
    if cell["failed_requests"] != 0 || cell["verified"] != true {
        return Err(format!("bench: {cell}"));
    }
    Ok(format!(
        "{} requests of 16 KiB, verified, p99 {} µs",
        cell["requests"], cell["p99_us"]
    ))
}

fn cp(from: &str, to: &str) -> Command {
    polyrail(["cp", from, to, "--rails", &RAILS.join(",")])
}

/// Runs it to its end; an error unless that is 0, and in time.
fn finish(mut command: Command, bound: Duration) -> Result<Output, String> {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|e| format!("{command:?}: {e}"))?;
    let until = Instant::now() + bound;
    while let Ok(None) = child.try_wait() {
        if Instant::now() > until {
            // It may have ended just now.
            let _ = child.kill();
            return Err(format!("{command:?} did not end within {bound:?}"));
        }
        thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?}: {}: {stderr}", output.status));
    }
    Ok(output)
}
