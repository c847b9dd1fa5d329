//! The timing loop that all initiators of this crate share, and processor time.

use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cell::Cell;

/// Batches run for so long before they count.
const WARM_UP: Duration = Duration::from_millis(60);

/// At least so many batches count.
const SAMPLES_MIN: usize = 3;

/// Something that moves batches to and from a target in another process.
pub(crate) trait Initiator {
    /// Moves one batch, from submission to observed completion.
    fn once(&mut self, cell: Cell) -> io::Result<()>;

    /// The process of the target.
    fn target_pid(&self) -> u32;
}

/// Answers `write|read BYTES COUNT MILLISECONDS` with a row, until the input ends.
pub(crate) fn answer_cells(initiator: &mut dyn Initiator) -> io::Result<()> {
    say(&json!({ "ready": true }))?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let answer = match parse(&line) {
            Ok((cell, length)) => measure(initiator, cell, length)
                .unwrap_or_else(|error| json!({ "error": error.to_string() })),
            Err(error) => json!({ "error": error }),
        };
        say(&answer)?;
    }
    Ok(())
}

fn parse(line: &str) -> Result<(Cell, Duration), String> {
    let (cell, length) = line.rsplit_once(' ').unwrap_or((line, ""));
    let millis = length
        .parse()
        .map_err(|_| format!("\"{line}\" ends with no number of milliseconds"))?;
    Ok((cell.parse()?, Duration::from_millis(millis)))
}

/// A line that [`crate::compare`] takes for an answer.
pub(crate) fn say(value: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "@@ {value}")?;
    out.flush()
}

fn measure(initiator: &mut dyn Initiator, cell: Cell, length: Duration) -> io::Result<Value> {
    let begin = Instant::now();
    while begin.elapsed() < WARM_UP {
        initiator.once(cell)?;
    }
    let target = initiator.target_pid();
    let mut samples: Vec<u64> = Vec::with_capacity(1 << 16);
    let (own_cpu, target_cpu, busy) = (cpu_of(0)?, cpu_of(target)?, busy_seconds());
    let start = Instant::now();
    let mut last = start;
    loop {
        initiator.once(cell)?;
        let now = Instant::now();
        samples.push((now - last).as_nanos() as u64);
        last = now;
        if now - start >= length && samples.len() >= SAMPLES_MIN {
            break;
        }
    }
    let seconds = (last - start).as_secs_f64();
    let own_cpu = cpu_of(0)? - own_cpu;
    let target_cpu = cpu_of(target)? - target_cpu;
    let others = busy_seconds() - busy - own_cpu - target_cpu;
    let gbytes = cell.bytes() as f64 * samples.len() as f64 / 1e9;
    samples.sort_unstable();
    let percentile = |part: f64| {
        let index = (samples.len() as f64 * part) as usize;
        samples[index.min(samples.len() - 1)] as f64 / 1e3
    };
    Ok(json!({
        "seconds": seconds,
        "batches": samples.len(),
        "gbytes_per_sec": gbytes / seconds,
        "p50_us": percentile(0.5),
        "p99_us": percentile(0.99),
        "cpu_seconds_per_gbyte": (own_cpu + target_cpu) / gbytes,
        "others": (others / (seconds * cores())).max(0.0),
    }))
}

fn cores() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64)
}

/// Processor seconds that a process has used; 0 is this one.
pub(crate) fn cpu_of(pid: u32) -> io::Result<f64> {
    let mut clock = 0;
    // SAFETY: the call writes one clock id to a place that lives here.
    let code = unsafe { libc::clock_getcpuclockid(pid as i32, &mut clock) };
    if code != 0 {
        return Err(io::Error::from_raw_os_error(code));
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one `timespec` to a place that lives here.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

/// Seconds that the machine's processors were busy since it started; 0 if it does not say.
fn busy_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = text
        .split_whitespace()
        .skip(1)
        .take(8)
        .map(|word| word.parse());
    let ticks: Vec<u64> = ticks.map(Result::unwrap_or_default).collect();
    // user, nice, system, idle, waiting, interrupts, soft interrupts
    let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|i| ticks.get(*i)).sum();
    busy as f64 / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cells_and_a_time() {
        let (cell, length) = parse("read 4096 16 300").unwrap();
        assert_eq!(cell.words(), "read 4096 16");
        assert_eq!(length, Duration::from_millis(300));
        assert!(parse("read 4096 16").is_err());
        assert!(parse("").is_err());
    }

    #[test]
    fn own_processor_time_goes_on() {
        let before = cpu_of(0).unwrap();
        let mut sum = 0_u64;
        while cpu_of(0).unwrap() == before {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(cpu_of(std::process::id()).unwrap() > before);
    }
}
