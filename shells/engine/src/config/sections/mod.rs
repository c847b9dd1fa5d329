//! The sections of a configuration, one file each.

mod control;
mod health;
mod limits;
mod path;
mod recording;
mod security;
mod send_queue;
mod spray;
mod staging;
mod transport;
mod verbs;

pub use control::ControlConfig;
pub use health::{HealthConfig, HealthMode};
pub use limits::LimitsConfig;
pub use path::{IsolationMode, PathConfig};
pub use recording::RecordingConfig;
pub use security::{DomainConfig, Payload, SecurityConfig};
pub use send_queue::SendQueueConfig;
pub use spray::SprayConfig;
pub use staging::StagingConfig;
pub use transport::TransportConfig;
pub use verbs::VerbsConfig;
