//! The hint record of `polyrail-core` in a file that an agent and its clients map.
//!
//! The agent makes the file and owns it: [`AgentFile`], which goes into a
//! [`HintWriter`](polyrail_core::path::hint::HintWriter). A client opens it: [`ClientFile`], for a
//! [`HintReader`](polyrail_core::path::hint::HintReader) per connection. Both read the time from [`host_now`](crate::host_now), and
//! must see the same processes: a container with numbers of its own needs an agent of its own.
//!
//! ```
//! use polyrail_core::path::hint::{Connection, HintReader};
//! use polyrail_core::time::Duration;
//! use polyrail_shared::hint::{ClientFile, default_path};
//! use polyrail_shared::{host_now, own_process};
//!
//! let connection = Connection { own: [10, 0, 1, 2].into(), peer: [10, 0, 1, 3].into() };
//! let age_max = Duration::from_millis(500);
//! // No agent, no hint. Try again now and then.
//! if let (Ok(file), Some(process)) = (ClientFile::open(&default_path()), own_process()) {
//!     if let Ok(reader) = HintReader::attach(file, process, connection, age_max) {
//!         let shares = reader.read(host_now());
//!         println!("{shares:?}");
//!     }
//! }
//! ```

mod error;
mod file;

pub use error::HintFileError;
pub use file::{AgentFile, ClientFile, default_path};
