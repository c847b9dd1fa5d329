//! What transports can do at either end, and which of them join two memories: a ranked plan.
//!
//! Source: TENT (arXiv:2604.00368v1) §4.1, and the TENT failover document for the ranked list.

use crate::plan::PLAN_TRANSPORTS_MAX;

/// Where memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum MemoryKind {
    /// In the host's memory.
    #[default]
    Host,
    /// On a GPU or another accelerator.
    Device,
    /// In a file or on a block device.
    File,
    /// In the host's memory, where other processes of the host can map it.
    Shared,
    /// On such a device, where other processes of the host can open it.
    DeviceShared,
}

impl MemoryKind {
    const fn bit(self) -> u16 {
        match self {
            Self::Host => 1,
            Self::Device => 2,
            Self::File => 4,
            Self::Shared => 8,
            Self::DeviceShared => 16,
        }
    }

    /// Whether it is on a GPU or another accelerator.
    pub const fn is_on_device(self) -> bool {
        matches!(self, Self::Device | Self::DeviceShared)
    }

    /// The bits of those kinds that whoever serves one of serves this one too: that others can open memory of a device
    /// changes nothing for who reaches the device itself.
    const fn served_by(self) -> u16 {
        match self {
            Self::DeviceShared => Self::DeviceShared.bit() | Self::Device.bit(),
            kind => kind.bit(),
        }
    }
}

/// Kinds of memory that a transport serves, as initiator and as target. One small word, because peers tell
/// each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities(u16);

/// Bits of one end.
const END_BITS: u32 = 8;

/// One end has to be on a device. No kind has this bit.
const FOR_DEVICES: u16 = 32;

impl Capabilities {
    /// None.
    pub const NONE: Self = Self(0);
    /// Host memory at both ends, whether it can be mapped by others or not.
    pub const HOST: Self = Self::NONE
        .with_local(MemoryKind::Host)
        .with_local(MemoryKind::Shared)
        .with_remote(MemoryKind::Host)
        .with_remote(MemoryKind::Shared);

    /// Also moves bytes to and from such memory of the initiator.
    pub const fn with_local(self, kind: MemoryKind) -> Self {
        Self(self.0 | kind.bit())
    }

    /// Also serves such memory of the target.
    pub const fn with_remote(self, kind: MemoryKind) -> Self {
        Self(self.0 | kind.bit() << END_BITS)
    }

    /// The same, but that it joins no two memories of which neither is a device's.
    pub const fn for_devices(self) -> Self {
        Self(self.0 | FOR_DEVICES)
    }

    /// Whether it moves bytes between these memories at all, as far as the one end goes that says so.
    pub const fn allows_pair(self, local: MemoryKind, remote: MemoryKind) -> bool {
        self.0 & FOR_DEVICES == 0 || local.is_on_device() || remote.is_on_device()
    }

    /// What both allow.
    pub const fn intersected(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether it moves bytes to and from such memory of the initiator.
    pub const fn allows_local(self, kind: MemoryKind) -> bool {
        self.0 & kind.served_by() != 0
    }

    /// Whether it serves such memory of the target.
    pub const fn allows_remote(self, kind: MemoryKind) -> bool {
        self.0 & kind.served_by() << END_BITS != 0
    }

    /// As a word, for the wire.
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// The inverse of [`Self::to_bits`]. Bits that mean nothing here mean nothing.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }
}

/// A transport as one engine offers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer<'a> {
    /// What it is called; transports of one name understand each other.
    pub name: &'a str,
    /// What it can do at that engine.
    pub capabilities: Capabilities,
}

/// The transports that join `local` memory of the engine that offers `ours` with `remote` memory of the one that
/// offers `theirs`: positions in `ours`, in that order, which is the order of preference. More than a plan can
/// rank are left out.
pub fn rank<'a>(
    ours: impl IntoIterator<Item = Offer<'a>>,
    theirs: &[Offer<'_>],
    local: MemoryKind,
    remote: MemoryKind,
) -> heapless::Vec<usize, PLAN_TRANSPORTS_MAX> {
    let joins = |ours: &Offer<'_>| {
        ours.capabilities.allows_local(local)
            && ours.capabilities.allows_pair(local, remote)
            && theirs
                .iter()
                .any(|other| other.name == ours.name && other.capabilities.allows_remote(remote))
    };
    ours.into_iter()
        .enumerate()
        .filter(|(_, offer)| joins(offer))
        .map(|(position, _)| position)
        .take(PLAN_TRANSPORTS_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::MemoryKind::{Device, DeviceShared, File, Host, Shared};
    use super::*;
    use quickcheck::quickcheck;
    use std::vec::Vec;

    const GPU: Capabilities = Capabilities::HOST.with_local(Device).with_remote(Device);

    fn offer(name: &str, capabilities: Capabilities) -> Offer<'_> {
        Offer { name, capabilities }
    }

    #[test]
    fn what_both_ends_can_do_is_ranked_as_the_initiator_prefers() {
        let tcp = offer("tcp", Capabilities::HOST);
        let rdma = offer("rdma", GPU);
        let deaf = offer(
            "rdma",
            Capabilities::NONE.with_local(Host).with_local(Device),
        );
        let files = offer(
            "uring",
            Capabilities::NONE.with_local(Host).with_remote(File),
        );
        // (name, ours, theirs, local, remote, positions)
        let cases = [
            (
                "both",
                &[rdma, tcp][..],
                &[tcp, rdma][..],
                Host,
                Host,
                &[0, 1][..],
            ),
            (
                "the initiator's order",
                &[tcp, rdma],
                &[rdma, tcp],
                Host,
                Host,
                &[0, 1],
            ),
            ("the peer lacks one", &[rdma, tcp], &[tcp], Host, Host, &[1]),
            ("nothing in common", &[rdma], &[tcp], Host, Host, &[]),
            (
                "only one takes GPUs",
                &[tcp, rdma],
                &[tcp, rdma],
                Device,
                Host,
                &[1],
            ),
            (
                "its far end does not",
                &[rdma, tcp],
                &[deaf, tcp],
                Host,
                Device,
                &[],
            ),
            (
                "files are served there",
                &[files, tcp],
                &[files, tcp],
                Host,
                File,
                &[0],
            ),
            (
                "and not read here",
                &[files, tcp],
                &[files, tcp],
                File,
                Host,
                &[],
            ),
            ("a peer that offers nothing", &[tcp], &[], Host, Host, &[]),
        ];
        for (name, ours, theirs, local, remote, expected) in cases {
            let ranked = rank(ours.iter().copied(), theirs, local, remote);
            assert_eq!(ranked, expected, "{name}");
        }
        let many = [tcp; PLAN_TRANSPORTS_MAX + 1];
        assert_eq!(rank(many, &many, Host, Host).len(), PLAN_TRANSPORTS_MAX);
    }

    #[test]
    fn capabilities_travel_as_a_word() {
        let known = Capabilities::from_bits(GPU.to_bits());
        assert_eq!(known, GPU);
        assert!(known.allows_local(Device) && known.allows_remote(Host));
        assert!(!known.allows_local(File) && !known.allows_remote(File));
    }

    #[test]
    fn who_serves_memory_of_devices_serves_what_others_can_open_too() {
        let opens = Capabilities::NONE.with_remote(DeviceShared);
        // (capabilities, kind, served)
        let cases = [
            (GPU, Device, true),
            (GPU, DeviceShared, true),
            (opens, DeviceShared, true),
            (opens, Device, false),
            (Capabilities::HOST, DeviceShared, false),
        ];
        for (capabilities, kind, served) in cases {
            assert_eq!(capabilities.allows_remote(kind), served, "{kind:?}");
        }
    }

    #[test]
    fn who_is_for_devices_joins_no_two_memories_of_the_host() {
        let all = Capabilities::HOST.with_local(Device).with_remote(Device);
        let offers = [offer("devices", all.for_devices()), offer("all", all)];
        // (local, remote, ranked)
        let cases: [(_, _, &[usize]); 5] = [
            (Host, Host, &[1]),
            (Host, Shared, &[1]),
            (Device, Shared, &[0, 1]),
            (Host, DeviceShared, &[0, 1]),
            (Device, Device, &[0, 1]),
        ];
        for (local, remote, ranked) in cases {
            assert_eq!(
                rank(offers, &offers, local, remote)[..],
                *ranked,
                "{local:?} {remote:?}"
            );
        }
        // It is for whoever offers it to say; a peer's word changes nothing.
        let plain = [offer("devices", all)];
        assert_eq!(rank(plain, &offers, Host, Host)[..], [0]);
    }

    quickcheck! {
        fn only_what_joins_is_ranked_and_nothing_better_left_out(ours: Vec<(u8, u16)>, theirs: Vec<(u8, u16)>) -> bool {
            let names = ["tcp", "rdma", "shm"];
            let offers = |list: Vec<(u8, u16)>| -> Vec<Offer<'_>> {
                let one = |(name, bits)| offer(names[usize::from(name % 3_u8)], Capabilities::from_bits(bits));
                list.into_iter().map(one).collect()
            };
            let (ours, theirs) = (offers(ours), offers(theirs));
            [Host, Device, File].into_iter().all(|local| [Host, Device, File].into_iter().all(|remote| {
                let joins = |own: &Offer<'_>| {
                    let mut same = theirs.iter().filter(|other| other.name == own.name);
                    let may = own.capabilities.allows_local(local) && own.capabilities.allows_pair(local, remote);
                    may && same.any(|other| other.capabilities.allows_remote(remote))
                };
                let all = ours.iter().enumerate().filter(|(_, own)| joins(own)).map(|(position, _)| position);
                let best: Vec<usize> = all.take(PLAN_TRANSPORTS_MAX).collect();
                rank(ours.iter().copied(), &theirs, local, remote) == best[..]
            }))
        }
    }
}
