//! The cluster's key: who has it is a member, and proves it in TLS 1.3 to whoever proves it too.
//!
//! A key `file` holds 32 random bytes. From them comes one Ed25519 key pair, the same at every member; the `identity` is
//! that pair as both sides of TLS use it, or a `certificate` of an operator's authority, whose `expiry` is told of. A [`channel`] is a control
//! connection with or without TLS around it, without I/O. What can be replaced while an engine runs is on a `keyring`. A lane that is [`Joining`] proves itself with a ticket
//! ([`polyrail_transport::ticket`]).
//! `docs/security.md` has the threat model and what is promised.

mod certificate;
pub mod channel;
mod distrust;
mod expiry;
pub mod file;
mod identity;
mod joining;
mod keyring;

pub use certificate::{BadPem, fits};
pub use distrust::Distrust;
pub use file::{KeyFileError, Secret};
pub use identity::{ClusterKey, Fingerprint, Membership};
pub use joining::Joining;
pub use keyring::Keyring;
