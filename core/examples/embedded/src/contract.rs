//! Whether this runtime keeps its contract with core.

use std::string::String;

use polyrail_core::contract::Row;
use polyrail_core::contract::script::{Runtime, Script, Side};
use polyrail_core::report::Status;
use polyrail_core::time::Instant;
use polyrail_core::units::RailId;

use super::device::{Device, LINKS};
use super::{Core, PLAN, RATES, TOTAL_BYTES, Tables, boot, install, run, turn};

/// The runtime, as the script drives it.
struct Driven<'a> {
    core: Core<'a>,
    device: Device<'a>,
    now: Instant,
}

impl<'a> Runtime<'a> for Driven<'a> {
    fn core(&mut self) -> &mut Core<'a> {
        &mut self.core
    }

    fn turn(&mut self, until: Instant) -> Instant {
        let console = &mut String::new();
        (self.now, _) = turn(self.now, until, &mut self.core, &mut self.device, console);
        self.now
    }

    fn store(&mut self, side: Side, offset: u64, bytes: &[u8]) {
        let start = offset as usize;
        self.device.memory()[side as usize][start..start + bytes.len()].copy_from_slice(bytes);
    }

    fn load(&mut self, side: Side, offset: u64, bytes: &mut [u8]) {
        let start = offset as usize;
        bytes.copy_from_slice(&self.device.memory()[side as usize][start..start + bytes.len()]);
    }

    fn cut(&mut self, rail: RailId) -> bool {
        self.device.cut(rail.index());
        true
    }

    fn mend(&mut self, rail: RailId) {
        self.device.mend(rail.index());
    }

    fn end_peer(&mut self) -> bool {
        self.device.end_peer();
        true
    }
}

#[test]
fn the_script_finds_nothing_broken() {
    let (mut ours, mut theirs) = ([0; TOTAL_BYTES], [0; TOTAL_BYTES]);
    boot(&mut Tables::new(), |shared, core| {
        let mut rows = [Row::EMPTY; 512];
        let mut driven = Driven {
            core: Core::new(core, &mut rows),
            device: Device::new(&mut ours, &mut theirs, RATES),
            now: Instant::ZERO,
        };
        install(shared, &mut driven.core).expect("the tables are large enough");
        let script = Script {
            plan: PLAN,
            rails: &[RailId(0), RailId(1)],
            bytes: TOTAL_BYTES as u64,
        };
        let ran = script.run(Instant::ZERO, &mut driven);
        let verdict = driven.core.end();
        assert!(verdict.is_good(), "{verdict}");
        assert!(ran.is_whole && ran.peer_ended, "{ran:?}");
        assert_eq!(
            ran.cuts as usize,
            2 * LINKS,
            "while it writes, and while it reads"
        );
    });
}

#[test]
fn nothing_is_broken_while_it_does_its_own_work() {
    let (mut ours, mut theirs) = ([7; TOTAL_BYTES], [0; TOTAL_BYTES]);
    let mut device = Device::new(&mut ours, &mut theirs, RATES);
    boot(&mut Tables::new(), |shared, core| {
        let mut rows = [Row::EMPTY; 512];
        let mut core = Core::new(core, &mut rows);
        let status = run(shared, &mut core, &mut device, &mut String::new());
        assert_eq!(status, Some(Status::Completed));
        let verdict = core.end();
        assert!(verdict.is_good(), "{verdict}");
    });
}
