//! What passes a wire, as anybody who has it can read it.

use std::io::Read;
use std::os::fd::OwnedFd;

use socket2::{Domain, Protocol, Socket, Type};

/// What requests are filled with.
pub(crate) const MARK: &[u8; 32] = b"polyrail: nobody is to read this";

/// All protocols, in the byte order of networks: `ETH_P_ALL`.
const ALL: i32 = 0x0300;

/// Room for frames that have come and were not looked at, so that few are lost.
const ROOM: usize = 64 << 20;

/// A socket that gets a copy of each frame.
pub(crate) struct Wire(std::fs::File);

impl Wire {
    /// Listens from now on.
    pub(crate) fn listen() -> Self {
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(ALL)));
        let socket = socket.expect("root may listen");
        socket.set_recv_buffer_size(ROOM).expect("a number");
        socket.set_nonblocking(true).expect("a socket can be");
        Self(OwnedFd::from(socket).into())
    }

    /// How many frames came, and how many of them have the [mark](MARK) in them.
    pub(crate) fn heard(mut self) -> (usize, usize) {
        let (mut frames, mut with_mark) = (0, 0);
        let mut frame = [0; 1 << 16];
        while let Ok(bytes @ 1..) = self.0.read(&mut frame) {
            frames += 1;
            with_mark += usize::from(frame[..bytes].windows(MARK.len()).any(|part| part == MARK));
        }
        (frames, with_mark)
    }
}
