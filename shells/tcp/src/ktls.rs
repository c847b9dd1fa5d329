//! Lanes whose bytes the kernel encrypts: its TLS (`tls(7)`, module `tls`), of which only the records are used. Keys come
//! of the lane's ticket, so there is no handshake.
//!
//! # Safety
//!
//! Each call hands the kernel a structure or a text of this module's own with its length, which it copies before it
//! returns.

use std::ffi::{c_int, c_void};
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use polyrail_transport::ticket::{Direction, IV_BYTES, KEY_BYTES};
use zeroize::Zeroize;

/// Of TLS 1.3, as the kernel and records have it.
const TLS_1_3: u16 = 0x0304;

/// What the kernel calls TLS.
const NAME: &[u8] = b"tls";

/// So many bytes one key of AES-GCM may encrypt: 2^24 records of 16 KiB (RFC 8446, 5.5).
pub(crate) const BYTES_MAX: u64 = 1 << 38;

/// How many of the nonce's bytes come first, as the kernel has them.
const SALT_BYTES: usize = 4;

/// Has the kernel encrypt what is sent from now on, and decrypt what is received, until the connection ends. What was sent
/// before is as it was; what the peer encrypts may not have been received yet.
pub fn encrypt(stream: &TcpStream, ours: Direction<'_>, theirs: Direction<'_>) -> io::Result<()> {
    attach(stream)?;
    direct(stream, libc::TLS_TX, ours)?;
    // Without `TLS_RX_EXPECT_NO_PAD`, which saves a copy: with it the kernel decrypts a record to where it belongs before it knows
    // whether that is what was sent, and bytes that somebody has changed on the way would be in memory.
    direct(stream, libc::TLS_RX, theirs)
}

/// Whether this kernel can do so; an error says what is missing. That may be there later: a module can be loaded.
pub(crate) fn try_out() -> io::Result<()> {
    static CAN: AtomicBool = AtomicBool::new(false);
    if CAN.load(Relaxed) {
        return Ok(());
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let nothing: Direction<'_> = (&[0; KEY_BYTES], &[0; IV_BYTES]);
    encrypt(&stream, nothing, nothing)?;
    CAN.store(true, Relaxed);
    Ok(())
}

fn attach(stream: &TcpStream) -> io::Result<()> {
    let bytes = NAME.len() as libc::socklen_t;
    let at = NAME.as_ptr().cast::<c_void>();
    // SAFETY: the kernel reads `bytes` bytes of a constant.
    let done =
        unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_TCP, libc::TCP_ULP, at, bytes) };
    answer(done).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOPROTOOPT) => io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel has no TLS for connections: `modprobe tls`, or one that is built with CONFIG_TLS",
        ),
        _ => error,
    })
}

fn direct(stream: &TcpStream, which: c_int, (key, iv): Direction<'_>) -> io::Result<()> {
    let mut info = libc::tls12_crypto_info_aes_gcm_128 {
        info: libc::tls_crypto_info {
            version: TLS_1_3,
            cipher_type: libc::TLS_CIPHER_AES_GCM_128,
        },
        iv: [0; IV_BYTES - SALT_BYTES],
        key: [0; KEY_BYTES],
        salt: [0; SALT_BYTES],
        rec_seq: [0; 8],
    };
    info.key.copy_from_slice(key);
    info.salt.copy_from_slice(&iv[..SALT_BYTES]);
    info.iv.copy_from_slice(&iv[SALT_BYTES..]);
    let done = set(stream, libc::SOL_TLS, which, &info);
    info.key.zeroize();
    info.salt.zeroize();
    info.iv.zeroize();
    done
}

fn set<T: Copy>(stream: &TcpStream, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads a value of this size, a plain structure without pointers.
    let done = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            level,
            name,
            (&raw const *value).cast(),
            bytes,
        )
    };
    answer(done)
}

fn answer(done: c_int) -> io::Result<()> {
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
