//! What the kernel says of addresses that come and go.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::listen::try_rail;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

/// Links, and addresses of IPv4 and IPv6, as `linux/rtnetlink.h` numbers what it tells (`RTMGRP_LINK`,
/// `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV6_IFADDR`).
const TOLD_OF: u32 = 0x1 | 0x10 | 0x100;

/// Lists addresses that can be used; see [`Changes`].
pub(crate) type Usable = dyn FnMut(&[IpAddr]) -> io::Result<BTreeSet<IpAddr>> + Send;

/// The addresses of this machine that can be used, and what tells when these are others.
pub(crate) struct Changes {
    /// Readable when there may be others. What it says is thrown away: it can say too little when much happens at once, and
    /// looking at all of them cannot.
    pub(crate) told: OwnedFd,
    /// Those of interfaces that are up and have a carrier, and of those that it is asked for the ones that are of this machine
    /// although no interface has them, such as 127.0.0.2.
    pub(crate) usable: Box<Usable>,
}

/// What a wait for changes has ended with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    /// Addresses may be others.
    Changes,
    /// Nothing has happened for as long as it was to wait.
    Nothing,
    /// It is to end.
    Stop,
}

impl Changes {
    /// Those that the kernel tells of, in this network namespace.
    pub(crate) fn of_kernel() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // `NETLINK_ROUTE` is protocol 0.
        let told = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&told, &SocketAddrNetlink::new(0, TOLD_OF))?;
        let usable = |asked: &[IpAddr]| {
            let interfaces = if_addrs::get_if_addrs()?;
            let has = |address: &&IpAddr| interfaces.iter().any(|of| of.ip() == **address);
            let others = asked.iter().filter(|address| !has(address));
            let others = others.filter(|address| try_rail(**address).is_ok());
            let up = interfaces.iter().filter(|of| of.is_oper_up());
            let up = up.map(|of| of.ip());
            Ok(up.chain(others.copied()).collect())
        };
        Ok(Self {
            told,
            usable: Box::new(usable),
        })
    }

    /// Waits until there may be others, or for so long.
    pub(crate) fn wait(&self, stop: BorrowedFd<'_>, longest: Option<Duration>) -> io::Result<Seen> {
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut ready = [readable(self.told.as_fd()), readable(stop)];
        let longest = longest.and_then(|longest| Timespec::try_from(longest).ok());
        loop {
            match poll(&mut ready, longest.as_ref()) {
                Ok(_) if !ready[1].revents().is_empty() => return Ok(Seen::Stop),
                Ok(_) if !ready[0].revents().is_empty() => break,
                Ok(0) => return Ok(Seen::Nothing),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut told = [0; 16 * 1024];
        loop {
            match rustix::io::read(&self.told, &mut told) {
                // It had more to say than it could keep.
                Ok(1..) | Err(Errno::INTR | Errno::NOBUFS) => {}
                Ok(0) | Err(Errno::AGAIN) => return Ok(Seen::Changes),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn loopback_is_there_and_whoever_is_to_stop_does() {
        let mut changes = Changes::of_kernel().unwrap();
        // Tests, and whoever routes whole networks to a host, use addresses that no interface has: all their rails were paused.
        let [first, second, foreign] =
            [[127, 0, 0, 1], [127, 0, 0, 2], [192, 0, 2, 1]].map(IpAddr::from);
        let usable = (changes.usable)(&[first, second, foreign]).unwrap();
        let is_usable = [first, second, foreign].map(|address| usable.contains(&address));
        assert_eq!(is_usable, [true, true, false], "{usable:?}");
        let stop = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        assert_eq!(changes.wait(stop.as_fd(), None).unwrap(), Seen::Stop);
    }
}
