//! The rails of a worker: which transport each is of, where it starts, whether it is used, and what is known of its lane.

use std::collections::BTreeSet;
use std::net::IpAddr;

use polyrail_core::units::{Epoch, LaneId, RailId, TransportId};
use polyrail_core::work::{Cause, LaneFact};
use polyrail_transport::{LaneReport, RailAddress};

/// The rails of a worker, and which addresses of this host are gone.
#[derive(Default)]
pub(super) struct Ways {
    /// Those that were attached.
    rows: Vec<Option<Way>>,
    gone: BTreeSet<IpAddr>,
}

struct Way {
    transport: TransportId,
    /// The address of this host that it starts at; `None`: the kernel chooses, or it is not on the network.
    local: Option<IpAddr>,
    /// An operator has taken it out of use, here or at its peer.
    is_withdrawn: bool,
    /// The last epoch of its lane.
    last: Option<(LaneId, Epoch, Stage)>,
}

impl Way {
    /// What it is for its lane that the rail can be used from now on, or cannot.
    fn set_usable(&mut self, is_usable: bool) -> Option<LaneReport> {
        let (lane, epoch, stage) = self.last.as_mut()?;
        let fact = match (is_usable, *stage) {
            (true, _) => LaneFact::PortActive,
            (false, Stage::Opening) => LaneFact::OpenFailed(Cause::DeviceDown),
            (false, Stage::Open) => LaneFact::Broken(Cause::DeviceDown),
            (false, Stage::Over) => return None,
        };
        if !is_usable {
            *stage = Stage::Over;
        }
        Some(LaneReport {
            lane: *lane,
            epoch: *epoch,
            fact,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Opening,
    Open,
    Over,
}

impl Ways {
    pub(super) fn attach(&mut self, rail: RailId, address: &RailAddress) {
        if self.rows.len() <= rail.index() {
            self.rows.resize_with(rail.index() + 1, || None);
        }
        let before = self.rows[rail.index()].take();
        self.rows[rail.index()] = Some(Way {
            transport: address.transport,
            local: address.local.filter(|_| address.own.is_empty()),
            is_withdrawn: before.as_ref().is_some_and(|way| way.is_withdrawn),
            last: before.and_then(|way| way.last),
        });
    }

    pub(super) fn forget(&mut self, rail: RailId) {
        if let Some(row) = self.rows.get_mut(rail.index()) {
            *row = None;
        }
    }

    pub(super) fn transport(&self, rail: RailId) -> Option<TransportId> {
        self.rows
            .get(rail.index())?
            .as_ref()
            .map(|way| way.transport)
    }

    /// A lane is to be opened. `false`: the address where its rail starts is gone, or the rail is withdrawn, so it cannot be.
    pub(super) fn open(&mut self, lane: LaneId, epoch: Epoch) -> bool {
        let Some(way) = self.row(lane) else {
            return true;
        };
        let is_gone = way.is_withdrawn || way.local.is_some_and(|local| self.gone.contains(&local));
        let stage = match is_gone {
            true => Stage::Over,
            false => Stage::Opening,
        };
        if let Some(way) = self.row_mut(lane) {
            way.last = Some((lane, epoch, stage));
        }
        !is_gone
    }

    /// A lane's epoch is ended by whoever has it.
    pub(super) fn end(&mut self, lane: LaneId, epoch: Epoch) {
        self.set(lane, epoch, Stage::Over);
    }

    /// Something is said of a lane.
    pub(super) fn hear(&mut self, report: &LaneReport) {
        match report.fact {
            LaneFact::Opened { .. } => self.set(report.lane, report.epoch, Stage::Open),
            LaneFact::OpenFailed(_) | LaneFact::Broken(_) => {
                self.set(report.lane, report.epoch, Stage::Over);
            }
            _ => {}
        }
    }

    /// An address of this host is gone, or there again: what that is for the lanes over it.
    pub(super) fn set_there(&mut self, address: IpAddr, is_there: bool) -> Vec<LaneReport> {
        match is_there {
            true => self.gone.remove(&address),
            false => self.gone.insert(address),
        };
        let ways = self.rows.iter_mut().flatten();
        let over = ways.filter(|way| way.local == Some(address));
        over.filter_map(|way| way.set_usable(is_there)).collect()
    }

    /// A rail is withdrawn, or used again: what that is for its lane.
    pub(super) fn set_used(&mut self, rail: RailId, is_used: bool) -> Option<LaneReport> {
        let way = self.rows.get_mut(rail.index())?.as_mut()?;
        way.is_withdrawn = !is_used;
        way.set_usable(is_used)
    }

    fn set(&mut self, lane: LaneId, epoch: Epoch, stage: Stage) {
        let last = self.row_mut(lane).and_then(|way| way.last.as_mut());
        if let Some(last) = last.filter(|last| (last.0, last.1) == (lane, epoch)) {
            last.2 = stage;
        }
    }

    fn row(&self, lane: LaneId) -> Option<&Way> {
        self.rows.get(lane.rail().index())?.as_ref()
    }

    fn row_mut(&mut self, lane: LaneId) -> Option<&mut Way> {
        self.rows.get_mut(lane.rail().index())?.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use polyrail_core::work::LaneLimits;
    use polyrail_transport::SessionId;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn ways() -> Ways {
        let mut ways = Ways::default();
        for (rail, local, own) in [
            (0, Some(HERE), &b""[..]),
            (1, Some([10, 0, 1, 1].into()), b""),
            (2, None, b""),
            (3, Some(HERE), b"somewhere"),
        ] {
            let address = RailAddress {
                transport: TransportId(0),
                local,
                remote: ([10, 0, 0, 2], 7).into(),
                session: SessionId([0; 16]),
                secret: None,
                own: own.into(),
            };
            ways.attach(RailId(rail), &address);
        }
        ways
    }

    fn lane(rail: u16) -> LaneId {
        LaneId::new(0, RailId(rail))
    }

    fn report(rail: u16, epoch: u32, fact: LaneFact) -> LaneReport {
        LaneReport {
            lane: lane(rail),
            epoch: Epoch(epoch),
            fact,
        }
    }

    #[test]
    fn an_address_that_goes_takes_its_own_lanes_with_it_as_far_as_they_are_open() {
        use LaneFact::{Broken, OpenFailed, PortActive};
        let limits = LaneLimits::new(1, 1);
        // (what has been heard of the lane, what the loss of its address means to it)
        let cases = [
            ("opening", None, Some(OpenFailed(Cause::DeviceDown))),
            (
                "open",
                Some(LaneFact::Opened { limits }),
                Some(Broken(Cause::DeviceDown)),
            ),
            ("not opened", Some(OpenFailed(Cause::Refused)), None),
            ("broken", Some(Broken(Cause::Reset)), None),
        ];
        for (name, heard, lost) in cases {
            let mut ways = ways();
            for rail in 0..4 {
                assert!(ways.open(lane(rail), Epoch(1)), "{name}");
                if let Some(fact) = heard {
                    ways.hear(&report(rail, 1, fact));
                    // Of an older epoch: nothing.
                    ways.hear(&report(rail, 0, Broken(Cause::Reset)));
                }
            }
            let expected: Vec<_> = lost.iter().map(|fact| report(0, 1, *fact)).collect();
            assert_eq!(ways.set_there(HERE, false), expected, "{name}");
            assert_eq!(ways.set_there(HERE, false), [], "{name}: told twice");
            assert!(!ways.open(lane(0), Epoch(2)) && ways.open(lane(1), Epoch(2)));
            assert_eq!(ways.set_there(HERE, true), [report(0, 2, PortActive)]);
            assert!(ways.open(lane(0), Epoch(3)), "{name}");
        }
    }

    #[test]
    fn a_rail_that_is_withdrawn_is_not_opened_until_it_is_used_again() {
        use LaneFact::{Broken, PortActive};
        let limits = LaneLimits::new(1, 1);
        let mut ways = ways();
        // One whose address is there, one where the kernel chooses, one that is not on the network.
        for rail in [1, 2, 3] {
            assert!(ways.open(lane(rail), Epoch(1)));
            ways.hear(&report(rail, 1, LaneFact::Opened { limits }));
            let broken = report(rail, 1, Broken(Cause::DeviceDown));
            assert_eq!(ways.set_used(RailId(rail), false), Some(broken));
            assert_eq!(ways.set_used(RailId(rail), false), None, "told twice");
            assert!(!ways.open(lane(rail), Epoch(2)));
            // The session was made anew: the operator's word holds.
            let address = RailAddress {
                transport: TransportId(0),
                local: None,
                remote: ([10, 0, 0, 2], 7).into(),
                session: SessionId([1; 16]),
                secret: None,
                own: b""[..].into(),
            };
            ways.attach(RailId(rail), &address);
            assert!(!ways.open(lane(rail), Epoch(3)));
            let active = report(rail, 3, PortActive);
            assert_eq!(ways.set_used(RailId(rail), true), Some(active));
            assert!(ways.open(lane(rail), Epoch(4)));
        }
        assert!(ways.open(lane(0), Epoch(1)), "the other one is as it was");
        assert_eq!(ways.set_used(RailId(9), false), None, "there is none");
    }

    #[test]
    fn a_lane_that_was_closed_is_not_lost_once_more() {
        let mut ways = ways();
        assert!(ways.open(lane(0), Epoch(1)));
        ways.end(lane(0), Epoch(1));
        assert_eq!(ways.set_there(HERE, false), []);
        // The rail is another's from now on, which has no lane yet.
        ways.forget(RailId(0));
        assert_eq!(ways.set_there(HERE, true), []);
        assert_eq!(ways.transport(RailId(0)), None);
    }
}
