//! How the sockets under lanes are set.

use std::io;
use std::net::{IpAddr, UdpSocket};

use socket2::SockRef;

/// Congestion control without pacing, which every kernel has and lets everybody choose.
const UNPACED: &[u8] = b"reno";

/// Makes a socket to `peer` ready for a lane.
///
/// Between two addresses of one host there is no queue to be considerate of. There the pacing of BBR, which many hosts
/// have as their default, only makes the kernel wait for timers: a read of 1 MiB took 350 µs with it, 120 without.
/// Elsewhere the host's choice stands.
pub(crate) fn prepare(socket: SockRef<'_>, peer: IpAddr) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    if is_of_this_host(peer)
        && let Err(error) = socket.set_tcp_congestion(UNPACED)
    {
        log::debug!("tcp: the lane to {peer} keeps its congestion control: {error}");
    }
    Ok(())
}

/// Only addresses of this host can be bound.
pub(crate) fn is_of_this_host(address: IpAddr) -> bool {
    UdpSocket::bind((address.to_canonical(), 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, Socket, Type};

    use super::*;

    #[test]
    fn only_lanes_inside_of_a_host_are_not_paced() {
        let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let usual = socket().tcp_congestion().unwrap();
        // (name, peer, what it has then)
        let cases = [
            ("loopback", [127, 0, 0, 3], &b"reno\0"[..]),
            ("another host", [192, 0, 2, 1], &usual[..]),
        ];
        for (name, peer, expected) in cases {
            let socket = socket();
            prepare(SockRef::from(&socket), peer.into()).unwrap();
            let chosen = socket.tcp_congestion().unwrap();
            assert!(chosen.starts_with(expected), "{name}: {chosen:?}");
            assert!(socket.tcp_nodelay().unwrap(), "{name}");
        }
    }
}
