//! What is said over a lane's socket. Each packet is one message, and may bring one descriptor.

use polyrail_transport::memory::RegionKey;
use polyrail_transport::ticket::{Nonce, Proof, Ticket};
use serde::{Deserialize, Serialize};

/// The version of these messages and of the mailbox. Others are refused.
pub(crate) const VERSION: u16 = 7;

/// Random bytes somewhere in a process: whoever reads them there reads the process that said so. Where they are on a page of
/// their own, that [marks](crate::mark) the process as well.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Cookie {
    pub(crate) address: u64,
    pub(crate) content: [u8; 16],
}

/// A lane, as its initiator names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct LaneName {
    pub(crate) lane: u32,
    pub(crate) epoch: u32,
}

/// From the initiator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// The first message. With a lane it brings the mailbox's descriptor; without one it only asks whether the
    /// target can be reached.
    Hello {
        version: u16,
        session: [u8; 16],
        cookie: Cookie,
        lane: Option<LaneName>,
    },
    /// What is behind this key? From now on the grant of this number is about it.
    Map { key: RegionKey, grant: u16 },
    /// The grant is not used any more.
    Unmap { grant: u16 },
    /// There are offers on the mailbox.
    Offered,
    /// The first message where the session has a secret: what is to be proved?
    Challenge,
    /// The answer to [`Answer::Challenge`]: as [`Request::Hello`], with the proof that this end is of the session.
    HelloProved {
        version: u16,
        session: [u8; 16],
        cookie: Cookie,
        lane: Option<LaneName>,
        ticket: Ticket,
    },
}

/// From the target.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// To [`Request::Hello`]: come in.
    Ready {
        cookie: Cookie,
        /// Why the target cannot pull from the initiator; `None`: it can.
        no_pull: Option<String>,
    },
    /// To [`Request::Hello`]: no, and the target hangs up.
    Refused { text: String },
    /// To [`Request::Map`]: its descriptor comes along.
    Shared {
        grant: u16,
        bytes: u64,
        writable: bool,
    },
    /// To [`Request::Map`]: it starts at this address of the target.
    Private {
        grant: u16,
        bytes: u64,
        writable: bool,
        address: u64,
    },
    /// To [`Request::Map`]: there is nothing behind the key.
    Nothing { grant: u16 },
    /// What was behind the key, under this grant, was taken back: let go of it.
    Gone { key: RegionKey, grant: u16 },
    /// Offers were carried out. Not said to an initiator that looks for itself.
    Pulled,
    /// To [`Request::Challenge`]: this.
    Challenge { nonce: Nonce },
    /// To [`Request::HelloProved`], before anything else: this end is of the session as well.
    Proved { proof: Proof },
}
