//! Runs that have nothing to do with each other, on all cores.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Does `run` for each number below `count`: what comes of them, in order. `progress` is told how many have been done.
pub fn on_all_cores<T: Send>(
    count: u64,
    run: impl Fn(u64) -> T + Sync,
    progress: impl Fn(u64) + Sync,
) -> Vec<T> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let rows = Mutex::new(Vec::new());
    let work = || {
        loop {
            let number = next.fetch_add(1, Relaxed);
            if number >= count {
                return;
            }
            let row = run(number);
            let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
            rows.push((number, row));
            drop(rows);
            progress(done.fetch_add(1, Relaxed) + 1);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    rows.sort_by_key(|(number, _)| *number);
    rows.into_iter().map(|(_, row)| row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_done_once_and_in_its_place() {
        let told = Mutex::new(Vec::new());
        let squares = on_all_cores(
            100,
            |number| number * number,
            |done| told.lock().unwrap().push(done),
        );
        assert_eq!(squares, (0..100).map(|n| n * n).collect::<Vec<_>>());
        let mut told = told.into_inner().unwrap();
        told.sort_unstable();
        assert_eq!(told, (1..=100).collect::<Vec<_>>());
        assert!(on_all_cores(0, |number| number, |_| {}).is_empty());
    }
}
