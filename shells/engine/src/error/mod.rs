//! Why an operation of the engine did not happen. One enum for each operation.

mod call;
mod close;
mod expose;
mod file;
mod limit;
mod notify;
mod open;
mod register;
mod start;
mod submit;
mod wait;

pub use call::CallError;
pub use close::CloseError;
pub use expose::ExposeError;
pub use file::FileError;
pub use limit::Limit;
pub use notify::{DeliveryError, NotifyError, ReceiveError};
pub use open::OpenError;
pub use register::RegisterError;
pub use start::EngineError;
pub use submit::SubmitError;
pub use wait::{ReleaseError, WaitError};

/// What is said to a forked child.
const FORKED: &str =
    "it belongs to the process that this one was forked from; make an engine in this process";
/// What is said when a peer cannot be notified.
const UNSUPPORTED: &str = "the peer is of a build without notifications; upgrade it";
