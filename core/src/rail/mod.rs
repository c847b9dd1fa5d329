//! Rails and devices as the workers of one engine share them: what is in flight, how fast they are, and
//! whether they may be used.

pub mod chooser;
mod device;
pub mod diffusion;
pub mod documented;
pub mod estimate;
pub mod health;
pub mod policies;
mod row;
pub mod select;
mod shared;
#[cfg(feature = "serde")]
mod snapshot;
mod speed;
pub mod spray;

pub use device::Device;
pub(crate) use row::{Healthy, Known};
pub use row::{Rail, RailConfig, RailView};
pub use shared::{Shared, Waiting};
pub(crate) use speed::{RATE_UNIT, units_of};

#[cfg(test)]
use row::a_rail;

/// In place of a number of a rail or a device.
const NIL: u32 = u32::MAX;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(test)]
mod tests;
