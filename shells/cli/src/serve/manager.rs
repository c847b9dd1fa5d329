//! What a service manager is told: datagrams to the socket that `NOTIFY_SOCKET` names, as `sd_notify(3)` has it.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::time::{ClockId, clock_gettime};

/// Peers can come now.
pub(super) fn ready(status: &str) {
    tell(&format!("READY=1\nSTATUS={status}"));
}

/// The configuration is read anew; [`ready`] comes after it.
pub(super) fn reloading() {
    let now = clock_gettime(ClockId::Monotonic);
    let micros = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000;
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
}

/// Nothing new is taken any more.
pub(super) fn stopping() {
    tell("STOPPING=1\nSTATUS=ending");
}

/// Tells whoever is there. A service that nobody manages runs all the same.
fn tell(what: &str) {
    if let Err(error) = send(what) {
        log::warn!("cannot tell the service manager (NOTIFY_SOCKET): {error}");
    }
}

fn send(what: &str) -> io::Result<()> {
    let Some(path) = env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else {
        return Ok(());
    };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(&path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.send_to_addr(what.as_bytes(), &address)?;
    Ok(())
}
