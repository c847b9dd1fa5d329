//! Disks that are full, slow or broken.

use std::sync::Condvar;

use super::*;
use crate::Cut;
use crate::recorder::{BLOCK_BYTES, BLOCKS_MAX};

/// A disk with room for so many bytes.
struct Disk(usize);

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self
            .0
            .checked_sub(bytes.len())
            .ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_ends_the_recording_and_nothing_else() {
    assert!(Recorder::start(Disk(10), PathBuf::from("full"), &header()).is_err());
    let recorder = Recorder::start(Disk(200_000), PathBuf::from("full"), &header()).unwrap();
    for (step, answer) in some_calls(900_000) {
        recorder.note(&step, &answer);
    }
    recorder.close();
    match recorder.cut() {
        Some(Cut::Failed(error)) => assert_eq!(error.kind(), io::ErrorKind::StorageFull),
        other => panic!("{other:?}"),
    }
}

/// A disk that answers once somebody says so.
#[derive(Clone, Default)]
struct Slow {
    memory: Memory,
    /// Whether it answers, and whether somebody waits for that.
    gate: Arc<(Mutex<(bool, bool)>, Condvar)>,
}

impl Slow {
    fn set(&self, answers: bool) {
        self.gate.0.lock().unwrap().0 = answers;
        self.gate.1.notify_all();
    }

    /// Until somebody waits for it.
    fn wait(&self) {
        let gate = self.gate.0.lock().unwrap();
        drop(self.gate.1.wait_while(gate, |(_, waits)| !*waits).unwrap());
    }
}

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut gate = self.gate.0.lock().unwrap();
        gate.1 = !gate.0;
        self.gate.1.notify_all();
        drop(
            self.gate
                .1
                .wait_while(gate, |(answers, _)| !*answers)
                .unwrap(),
        );
        self.memory.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Slow {
    /// A recording with some calls whose disk has just stopped to answer.
    fn recorder(&self, calls: &[Told]) -> Recorder {
        self.set(true);
        let recorder = Recorder::start(self.clone(), PathBuf::from("slow"), &header()).unwrap();
        self.set(false);
        for (step, answer) in calls {
            recorder.note(step, answer);
        }
        self.wait();
        recorder
    }

    fn file(&self) -> Vec<u8> {
        self.memory.0.lock().unwrap().clone()
    }
}

/// Whoever called core once waited for the disk when four megabytes were on their way, with the lock that all workers need.
#[test]
fn nobody_waits_for_a_disk_that_hangs_and_the_file_says_where_it_was_cut() {
    let slow = Slow::default();
    let mut told = some_calls(10);
    let recorder = slow.recorder(&told);
    // Each is most of a block.
    let name = "x".repeat(BLOCK_BYTES * 3 / 4);
    let config = RailConfig {
        peer: PeerId(0),
        device: DeviceId(0),
        far: None,
        estimate: estimate(&mut Gen::new(1)),
    };
    for number in 0..4 * BLOCKS_MAX as u16 {
        let install = Install::Rail(RailId(number), config, name.clone().into());
        told.push((Step::Shared(install), Answer::Bool(true)));
        let (step, answer) = told.last().unwrap();
        // The first one to wait would wait for ever.
        recorder.note(step, answer);
    }
    assert!(matches!(recorder.cut(), Some(Cut::Behind)));
    slow.set(true);
    recorder.close();
    assert!(matches!(recorder.cut(), Some(Cut::Behind)));
    let file = slow.file();
    let most = (BLOCKS_MAX + 3) * 2 * BLOCK_BYTES;
    assert!(
        (BLOCKS_MAX * BLOCK_BYTES..most).contains(&file.len()),
        "{}",
        file.len()
    );
    let (found, error) = read(&file);
    let error = error.unwrap_err();
    assert!(matches!(error, RecordingError::Cut { .. }), "{error:?}");
    assert!(error.is_truncation());
    assert!(
        found.len() > BLOCKS_MAX && found.len() < told.len(),
        "{}",
        found.len()
    );
    let same = |(one, other): (&Told, &Told)| in_bytes(one) == in_bytes(other);
    assert!(found.iter().zip(&told).all(same));
}

#[test]
fn to_close_takes_so_long_and_no_longer() {
    let slow = Slow::default();
    let told = some_calls(10);
    let recorder = slow.recorder(&told);
    assert!(recorder.cut().is_none());
    recorder.close_within(std::time::Duration::from_millis(1));
    assert!(
        matches!(recorder.cut(), Some(Cut::Behind)),
        "not all of it is there"
    );
    // Who closes it again does not wait again.
    recorder.close_within(std::time::Duration::MAX);
    slow.set(true);
    while recorder.cut().is_some() {
        std::thread::yield_now();
    }
    let (found, error) = read(&slow.file());
    assert!(
        error.is_ok() && found.len() == told.len(),
        "the disk has followed"
    );
}

/// A disk whose driver panics.
struct Broken(usize);

impl Write for Broken {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        assert!(self.0 > bytes.len(), "on purpose");
        self.0 -= bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_writer_that_panics_holds_up_nobody() {
    let recorder = Recorder::start(Broken(1_000), PathBuf::from("broken"), &header()).unwrap();
    for (step, answer) in some_calls(900_000) {
        recorder.note(&step, &answer);
    }
    recorder.close();
    assert!(matches!(recorder.cut(), Some(Cut::Failed(_))));
}
