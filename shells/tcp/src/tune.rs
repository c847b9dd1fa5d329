//! How the sockets under lanes are set.

use std::io;
use std::net::{IpAddr, UdpSocket};

use rustix::net::sockopt::set_socket_send_buffer_size_force;
use socket2::SockRef;

/// Congestion control without pacing, which every kernel has and lets everybody choose.
const UNPACED: &[u8] = b"reno";

/// What a lane to another host may have sent that is not acknowledged: a gigabyte a second over 100 ms there and back, of
/// which the kernel counts half for what it adds.
///
/// By itself the kernel stops at `tcp_wmem`, mostly 4 MiB. That is 0.14 GB/s at 10 ms each way, where 0.6 passed with this,
/// and 0.027 at 50 ms, where 0.15 did.
const SEND_BUFFER_BYTES: usize = 64 << 20;

/// What it may hold that is not sent: as much as the kernel's own limit. So a peer that takes nothing keeps no more of
/// the kernel's memory than without [`SEND_BUFFER_BYTES`].
const UNSENT_BYTES_MAX: u32 = 4 << 20;

/// Makes a socket to `peer` ready for a lane.
///
/// Between two addresses of one host there is no queue to be considerate of. There the pacing of BBR, which many hosts
/// have as their default, only makes the kernel wait for timers: a read of 1 MiB took 350 µs with it, 120 without.
/// Elsewhere the host's choice stands, but the send buffer is made larger than it allows, where this process may do so.
/// How much of it is used, core's window says. The receive buffer grows by itself, and up to eight times as far: one that was
/// forced would let any peer keep so much of the kernel's memory.
pub(crate) fn prepare(socket: SockRef<'_>, peer: IpAddr) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    if is_of_this_host(peer) {
        if let Err(error) = socket.set_tcp_congestion(UNPACED) {
            log::debug!("tcp: the lane to {peer} keeps its congestion control: {error}");
        }
        return Ok(());
    }
    // Only an administrator may. For all others the host's `tcp_wmem` counts.
    match set_socket_send_buffer_size_force(&*socket, SEND_BUFFER_BYTES) {
        Ok(()) => socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX),
        Err(error) => {
            log::debug!("tcp: the lane to {peer} keeps its send buffer: {error}");
            Ok(())
        }
    }
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
    fn lanes_inside_of_a_host_are_not_paced_and_others_may_have_much_under_way() {
        let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let usual = socket().tcp_congestion().unwrap();
        let room = socket().send_buffer_size().unwrap();
        let forced = set_socket_send_buffer_size_force(socket(), SEND_BUFFER_BYTES).is_ok();
        let far = if forced { 2 * SEND_BUFFER_BYTES } else { room };
        // (name, peer, its congestion control, and the room of its send buffer)
        let cases = [
            ("loopback", [127, 0, 0, 3], &b"reno\0"[..], room),
            ("another host", [192, 0, 2, 1], &usual[..], far),
        ];
        for (name, peer, expected, room) in cases {
            let socket = socket();
            prepare(SockRef::from(&socket), peer.into()).unwrap();
            let chosen = socket.tcp_congestion().unwrap();
            assert!(chosen.starts_with(expected), "{name}: {chosen:?}");
            assert!(socket.tcp_nodelay().unwrap(), "{name}");
            assert_eq!(socket.send_buffer_size().unwrap(), room, "{name}");
        }
    }
}
