//! What `top` shows of an engine.

use std::fmt::Write as _;

use super::{HISTORY, Rail, Seen, Snapshot};
use crate::chart;
use crate::sizes::show_size;

/// Rails that are shown; those that carry most now come first.
const RAILS_MAX: usize = 24;
/// Sessions that are shown; those that have moved most come first.
const SESSIONS_MAX: usize = 12;

/// One screen.
pub(super) fn draw(at: &str, snapshot: &Snapshot, seen: &Seen) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = head(&mut text, at, snapshot, seen);
    let _ = rails(&mut text, snapshot, seen);
    let _ = workers(&mut text, snapshot);
    let _ = sessions(&mut text, snapshot);
    let _ = rest(&mut text, snapshot);
    text
}

fn now(seen: &Seen, name: &str) -> f64 {
    let rates = seen.rates.get(name);
    rates.and_then(|rates| rates.back().copied()).unwrap_or(0.0)
}

fn total(seen: &Seen) -> f64 {
    // The sum of nothing would be -0.
    seen.rates
        .keys()
        .fold(0.0, |sum, name| sum + now(seen, name))
}

fn head(text: &mut String, at: &str, snapshot: &Snapshot, seen: &Seen) -> std::fmt::Result {
    let Snapshot {
        name,
        version,
        listening,
        ..
    } = snapshot;
    let total = total(seen);
    let listening = listening.as_deref().unwrap_or("nowhere");
    writeln!(
        text,
        "{} (polyrail {version}, metrics at {at}) listens at {listening}; {:.3} GB/s now",
        name.escape_debug(),
        total / 1e9
    )
}

fn rails(text: &mut String, snapshot: &Snapshot, seen: &Seen) -> std::fmt::Result {
    let is_idle = |rail: &&Rail| rail.is_spare && rail.bytes == 0;
    let mut rails: Vec<_> = snapshot.rails.iter().filter(|r| !is_idle(r)).collect();
    if rails.is_empty() {
        return writeln!(text, "\nno rails: it has opened no peer's segments");
    }
    rails.sort_by(|a, b| now(seen, &b.name).total_cmp(&now(seen, &a.name)));
    let total = total(seen);
    writeln!(
        text,
        "\n{:<36} {:<9} {:>7} {:>6} {:>9} {:>9}  last {HISTORY} looks",
        "rail", "state", "GB/s", "share", "learned", "in flight"
    )?;
    for rail in rails.iter().take(RAILS_MAX) {
        let rate = now(seen, &rail.name);
        let share = if total > 0.0 {
            rate / total * 100.0
        } else {
            0.0
        };
        let rates = seen.rates.get(&rail.name);
        let rates: Vec<f64> = rates.into_iter().flatten().copied().collect();
        let most = rates.iter().copied().fold(0.0, f64::max);
        writeln!(
            text,
            "{:<36} {:<9} {:>7.3} {:>4.0} % {:>9.3} {:>9}  {}",
            rail.name,
            match rail.is_withdrawn {
                true => "withdrawn",
                false => rail.state.as_str(),
            },
            rate / 1e9,
            share,
            rail.bytes_per_sec as f64 / 1e9,
            show_size(rail.inflight_bytes),
            chart::bars(&rates, most, HISTORY),
        )?;
    }
    match rails.len().saturating_sub(RAILS_MAX) {
        0 => Ok(()),
        others => writeln!(text, "and {others} rails that carry less"),
    }
}

fn workers(text: &mut String, snapshot: &Snapshot) -> std::fmt::Result {
    writeln!(
        text,
        "\n{:<10} {:>9} {:>9} {:>9} {:>14} {:>9}",
        "worker", "requests", "room for", "waiting", "slices so far", "refused"
    )?;
    for worker in &snapshot.workers {
        let name = worker.worker.map(|worker| worker.to_string());
        writeln!(
            text,
            "{:<10} {:>9} {:>9} {:>9} {:>14} {:>9}",
            name.as_deref().unwrap_or("staging"),
            worker.held,
            worker.limit,
            worker.waiting,
            worker.completions,
            worker.admission_timeouts,
        )?;
    }
    Ok(())
}

fn sessions(text: &mut String, snapshot: &Snapshot) -> std::fmt::Result {
    let mut sessions: Vec<_> = snapshot.sessions.iter().collect();
    if sessions.is_empty() {
        return writeln!(text, "\nno sessions: no peer has opened a segment of it");
    }
    sessions.sort_by_key(|session| std::cmp::Reverse(session.bytes));
    writeln!(
        text,
        "\n{:<24} {:<24} {:>10} {:>12}",
        "session of", "from", "seconds", "GB moved"
    )?;
    for session in sessions.iter().take(SESSIONS_MAX) {
        writeln!(
            text,
            "{:<24} {:<24} {:>10.1} {:>12.3}",
            session.peer,
            session.address,
            session.seconds,
            session.bytes as f64 / 1e9,
        )?;
    }
    match sessions.len().saturating_sub(SESSIONS_MAX) {
        0 => Ok(()),
        others => writeln!(text, "and {others} sessions that have moved less"),
    }
}

fn rest(text: &mut String, snapshot: &Snapshot) -> std::fmt::Result {
    let unsettled = &snapshot.unsettled;
    if unsettled.requests > 0 {
        writeln!(
            text,
            "\n{} requests wait for proof, the first for {:.1} s: {} held here, {} may still change at peers",
            unsettled.requests,
            unsettled.oldest.unwrap_or(0.0),
            show_size(unsettled.held_bytes),
            show_size(unsettled.unknown_bytes),
        )?;
    }
    if snapshot.fences.waiting > 0 {
        writeln!(
            text,
            "{} fences are not answered, the first for {:.1} s",
            snapshot.fences.waiting,
            snapshot.fences.oldest.unwrap_or(0.0),
        )?;
    }
    let limits = snapshot.limits.iter();
    let limits: Vec<_> = limits
        .map(|limit| format!("{} {} of {}", limit.what, limit.used, limit.most))
        .collect();
    writeln!(text, "\n{}", limits.join(", "))?;
    for row in &snapshot.failovers {
        writeln!(
            text,
            "{} requests went from {} to {}",
            row.count, row.from, row.to
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::time::{Duration, Instant};

    use super::super::tests::snapshot;

    #[test]
    fn the_busiest_rail_comes_first_and_idle_spares_are_left_out() {
        let mut seen = Seen::default();
        let begin = Instant::now();
        seen.look(begin, &snapshot([0, 0]));
        let now = snapshot([1_000_000_000, 3_000_000_000]);
        seen.look(begin + Duration::from_secs(1), &now);
        let screen = draw("127.0.0.1:9090", &now, &seen);
        let place = |part: &str| {
            screen
                .find(part)
                .unwrap_or_else(|| panic!("no {part} in {screen}"))
        };
        assert!(place("tcp:c>d") < place("tcp:a>b"));
        assert!(!screen.contains("tcp:a>d"), "{screen}");
        assert!(place("decode-3") < place("idle"));
        for part in [
            "4.000 GB/s now",
            "75 %",
            "25 %",
            "paused",
            "withdrawn",
            "64KiB",
            "peers 2 of 1024",
            "shm to tcp",
            "2 requests wait for proof, the first for 3.5 s: 1MiB held here, 2MiB may still change",
            "1 fences are not answered, the first for 0.5 s",
            "3.000",
        ] {
            place(part);
        }
    }
}
