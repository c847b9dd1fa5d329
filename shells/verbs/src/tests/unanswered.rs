//! Files of the kernel's whose reader waits for ever. The kernel asks a device for some of them, and firmware that hangs does not
//! answer for a minute.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time;

use super::*;
use crate::stub::Happening;

/// Only a failing test waits for it.
const PATIENCE: time::Duration = time::Duration::from_secs(20);

/// A file whose reader waits until this is dropped, and reads what was there before from then on.
struct Unanswered {
    path: PathBuf,
    content: Vec<u8>,
}

impl Unanswered {
    /// The port's file of this name, of a device.
    fn new(pair: &Pair, device: usize, name: &str) -> Self {
        let path = format!("class/infiniband/stub{device}/ports/1/{name}");
        let path = pair._root.path().join(path);
        let content = fs::read(&path).unwrap_or_default();
        let _ = fs::remove_file(&path);
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        let mode = mode | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        Self { path, content }
    }

    /// Whoever writes to it, if somebody reads it.
    fn writer(&self) -> Option<File> {
        let flags = libc::O_NONBLOCK;
        let mut opened = OpenOptions::new();
        opened.write(true).custom_flags(flags).open(&self.path).ok()
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        // Those that wait to open it go on, and read that it is empty.
        let both = OpenOptions::new().read(true).write(true).open(&self.path);
        let new = self.path.with_extension("new");
        fs::write(&new, &self.content).unwrap();
        fs::rename(new, &self.path).unwrap();
        drop(both);
    }
}

/// The answer of a transport to a fence of a lane that it never had, once all of its devices' threads have got to it.
fn fence_of_another(transport: &VerbsTransport) {
    let (told, tells) = mpsc::channel();
    let told = move |_| told.send(()).unwrap();
    transport.fence_inbound(OTHER, LANE, Epoch(9), Box::new(told));
    tells.recv_timeout(PATIENCE).unwrap();
}

/// Whoever opened a lane read how its port is, and all lanes of the device waited.
#[test]
fn a_port_whose_state_nobody_tells_holds_up_nothing() {
    let _turn = turn();
    let mut pair = Pair::new();
    pair.opened(1);
    let files = [(0, "state"), (1, "state"), (0, "rate"), (1, "rate")];
    let _files = files.map(|(device, name)| Unanswered::new(&pair, device, name));
    let mut epoch = 1;
    let what = [
        Happening::PortDown,
        Happening::PortActive,
        Happening::GidChange,
        Happening::QueueFatal,
        Happening::DeviceFatal,
    ];
    for (device, what) in what.into_iter().flat_map(|what| [(0, what), (1, what)]) {
        pair.post(epoch, &[work(1, Op::Write, 0, 8, true)]);
        assert_eq!(pair.completed(1), [(1, SUCCESS)], "{what:?}");
        stub::spoil(2);
        pair.post(epoch, &[work(2, Op::Write, 0, 8, true)]);
        stub::happen(device, what);
        pair.initiator.look_for_devices(false);
        fence_of_another(&pair.initiator);
        fence_of_another(&pair.target);
        pair.endpoint.close(LANE, Epoch(epoch));
        let by = pair.clock.now() + Duration::from_secs(20);
        // A device that has failed is not looked for at each try.
        let mut opened = false;
        while !opened {
            assert!(pair.clock.now() < by, "{what:?}");
            epoch += 1;
            pair.endpoint.open(LANE, Epoch(epoch), by);
            let is_said =
                |fact: &LaneReport| fact.epoch == Epoch(epoch) && fact.fact != LaneFact::PortActive;
            pair.until(|pair| pair.facts.iter().any(is_said));
            let said = pair.facts.drain(..).rfind(is_said).unwrap().fact;
            opened = matches!(said, LaneFact::Opened { .. });
            assert!(
                opened || what == Happening::DeviceFatal,
                "{what:?}: {said:?}"
            );
        }
        pair.completions.clear();
    }
}

/// A worker looked through the names of all ports when an address might have come to one, with all of its lanes.
#[test]
fn workers_read_no_file() {
    let _turn = turn();
    let mut pair = Pair::new();
    pair.opened(1);
    pair.post(1, &[work(1, Op::Write, 0, 8, true)]);
    pair.completed(1);
    let names = Unanswered::new(&pair, 0, "gids/0");
    stub::happen(0, Happening::GidChange);
    let active = |pair: &mut Pair| assert_eq!(pair.fact().fact, LaneFact::PortActive);
    active(&mut pair);
    let (says, said) = mpsc::channel::<()>();
    let initiator = pair.initiator.clone();
    let is_late = thread::scope(|scope| {
        let looks = scope.spawn(move || initiator.look_for_devices(false));
        // Whoever looks waits, from here on.
        let mut writer = None;
        while writer.is_none() && !looks.is_finished() {
            writer = names.writer();
            thread::yield_now();
        }
        let late = scope.spawn(move || {
            let is_late = said.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout);
            drop(writer);
            drop(names);
            is_late
        });
        stub::happen(0, Happening::PortActive);
        active(&mut pair);
        pair.post(1, &[work(2, Op::Write, 0, 8, true)]);
        assert_eq!(pair.completed(1), [(2, SUCCESS)]);
        assert!(!looks.is_finished(), "whoever looks has the time");
        drop(says);
        late.join().unwrap()
    });
    assert!(!is_late, "the worker waited for the kernel");
}
