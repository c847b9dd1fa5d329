//! The tables that all workers share, and how an engine numbers its rails and devices.

use std::io;
use std::path::{Path, PathBuf};

use polyrail_core::rail::estimate::EstimateConfig;
use polyrail_core::rail::policies::Given;
use polyrail_core::rail::{Device, Rail, RailConfig, Shared, Waiting};
use polyrail_core::topology::RailMap;
use polyrail_core::units::{DeviceId, RailId};
use polyrail_record::{Cut, Install, Journal, Ring};

use crate::neighbours::Neighbours;
use crate::stats::RailTimes;
use crate::table_memory::{Rows, TableMemory, bytes_of};

/// Local devices that one engine can have.
pub(crate) const DEVICES_MAX: usize = 64;

/// Rows of devices: the local ones, and, where rails from several of those may end at one device of a peer, one for each rail.
pub(crate) fn device_rows(rails: usize, map: RailMap) -> usize {
    match map {
        RailMap::Paired => DEVICES_MAX,
        RailMap::All | RailMap::Nearest => DEVICES_MAX + rails,
    }
}

/// The memory behind [`Shared`].
pub(crate) struct Fabric {
    rails: Rows<Rail>,
    /// See [`device_rows`].
    devices: Rows<Device>,
    waiting: Box<[Waiting]>,
    /// For policies that share requests out; none, if no transport has such a one.
    given: Box<[Given]>,
    /// The usual slice.
    slice_bytes: u32,
    /// Where it is written down what becomes of the tables, if that is asked for.
    journal: Option<Journal>,
    /// Other processes of this host, if load is shared with them.
    neighbours: Option<Neighbours>,
    /// How rails have stood.
    pub(crate) times: RailTimes,
}

impl Fabric {
    pub(crate) fn new(
        workers: usize,
        rails: usize,
        devices: usize,
        shares_out: bool,
        slice_bytes: u32,
        journal: Option<Journal>,
        neighbours: Option<Neighbours>,
    ) -> io::Result<Self> {
        let bytes = bytes_of::<Rail>(rails) + bytes_of::<Device>(devices);
        let mut memory = TableMemory::new(bytes)?;
        Ok(Self {
            rails: memory.rows(rails, || Rail::EMPTY),
            devices: memory.rows(devices, || Device::EMPTY),
            waiting: (0..workers).map(|_| Waiting::NO).collect(),
            given: (0..if shares_out { rails } else { 0 })
                .map(|_| Given::NOTHING)
                .collect(),
            slice_bytes,
            journal,
            neighbours,
            times: RailTimes::default(),
        })
    }

    pub(crate) fn shared(&self) -> Shared<'_> {
        Shared::new(&self.rails, &self.devices, &self.waiting, self.slice_bytes)
    }

    /// What is remembered of rails besides, for policies that share requests out.
    pub(crate) fn given(&self) -> &[Given] {
        &self.given
    }

    /// Whoever calls core does it through this one, if there is one.
    pub(crate) fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }

    fn ring(&self) -> Option<&Ring> {
        match self.journal.as_ref()? {
            Journal::Ring(ring) => Some(ring),
            Journal::Whole(_) => None,
        }
    }

    /// Something has gone wrong: what led to it is written down, if it is kept.
    pub(crate) fn incident(&self, why: impl FnOnce() -> String) {
        if let Some(ring) = self.ring() {
            ring.incident(why);
        }
    }

    /// Writes the last calls to a file; `None`: none are kept.
    pub(crate) fn write_ring(&self) -> Option<io::Result<PathBuf>> {
        self.ring().map(Ring::write)
    }

    /// Where the recording is, if there is one.
    pub(crate) fn recording(&self) -> Option<&Path> {
        match self.journal.as_ref()? {
            Journal::Whole(recorder) => Some(recorder.path()),
            Journal::Ring(_) => None,
        }
    }

    /// Why the recording does not have all that happened, if so.
    pub(crate) fn recording_cut(&self) -> Option<Cut> {
        match self.journal.as_ref()? {
            Journal::Whole(recorder) => recorder.cut(),
            Journal::Ring(_) => None,
        }
    }

    /// Ends the recording, if there is one.
    pub(crate) fn end_recording(&self) {
        if let Some(journal) = &self.journal {
            journal.close();
        }
    }

    /// Other processes of this host, if load is shared with them.
    pub(crate) fn neighbours(&self) -> Option<&Neighbours> {
        self.neighbours.as_ref()
    }

    /// Puts a device into its row. Its load is shared under `name`, if it has one.
    pub(crate) fn install_device(
        &self,
        device: DeviceId,
        config: EstimateConfig,
        name: Option<&str>,
    ) {
        self.install(Install::Device(device, config));
        if let (Some(neighbours), Some(name)) = (&self.neighbours, name) {
            neighbours.add(device, name);
        }
    }

    /// The row of a peer's device that rails from several local ones end at, this one first; `None`: there are none for such.
    pub(crate) fn far_device(&self, first: RailId) -> Option<DeviceId> {
        let row = Some(DEVICES_MAX + first.index()).filter(|row| *row < self.devices.len());
        u16::try_from(row?).ok().map(DeviceId)
    }

    /// Says how many bytes others have in flight on a device.
    pub(crate) fn set_others(&self, device: DeviceId, bytes: u64) {
        self.install(Install::Others(device, bytes));
    }

    /// Puts a rail into its row.
    pub(crate) fn install_rail(&self, rail: RailId, config: RailConfig, name: &str) {
        self.times.begin(rail);
        self.install(Install::Rail(rail, config, name.into()));
    }

    /// Puts a spare into its row, for a rail that is in its own.
    pub(crate) fn install_spare(&self, rail: RailId, of: RailId, config: RailConfig, name: &str) {
        self.times.begin(rail);
        self.install(Install::Spare(rail, of, config, name.into()));
    }

    fn install(&self, install: Install<'_>) {
        match &self.journal {
            Some(journal) => journal.install(&self.shared(), install),
            None => install.apply(&self.shared()),
        };
    }
}
