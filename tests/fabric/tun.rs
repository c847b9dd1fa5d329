//! TUN devices, made by two calls that only the kernel can check.
//!
//! # Safety
//!
//! Both calls are `ioctl`s on a descriptor that this module opened. The one that names the device reads and writes an
//! `ifreq` of the caller's, which lives through the call; the other takes a number.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// `TUNSETIFF` of `linux/if_tun.h`.
const SET_NAME: libc::c_ulong = 0x4004_54ca;

/// `TUNSETOFFLOAD` of the same.
const SET_OFFLOAD: libc::c_ulong = 0x4004_54d0;

/// Makes a TUN device in this network namespace; gone when the file is closed. Packets are read and written with a
/// `virtio_net_hdr` in front, and TCP may hand over many segments as one packet, as it does to network cards.
///
/// Reading and writing do not block. `name`: at most 15 bytes.
pub(crate) fn open(name: &str) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    // SAFETY: an `ifreq` of zeros is one without a name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
    // SAFETY: the descriptor is open, and the request lives through the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), SET_NAME as _, &raw mut request) })?;
    let offload = libc::TUN_F_CSUM | libc::TUN_F_TSO4;
    // SAFETY: the descriptor is open, and the argument is a number.
    check(unsafe { libc::ioctl(file.as_raw_fd(), SET_OFFLOAD as _, offload as libc::c_ulong) })?;
    Ok(file)
}

fn check(answer: libc::c_int) -> io::Result<()> {
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
