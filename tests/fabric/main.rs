//! The program over shaped links between two network namespaces, and what it does when they break.
//!
//! Needs the program (`cargo build --release`, or `POLYRAIL_BIN=PATH`), `ip` and `tc`, for the shares also
//! `iperf3`, and the right to make network namespaces: root, or a user namespace of one's own:
//!
//! ```text
//! cargo test --release -p polyrail-tests-fabric -- --nocapture
//! unshare -Urnm cargo test --release -p polyrail-tests-fabric -- --nocapture
//! ```
//!
//! Where it cannot run it says why and passes, unless `CI=true`: then it fails. Fabrics are laid one at a
//! time, whatever the number of test threads, or they would take each other's processor.

mod arriving;
mod bare;
mod case;
mod chaotic;
mod course;
mod cut;
mod dark;
mod death;
mod distant;
mod experiment;
mod fabric;
mod iperf;
mod link;
mod load;
#[expect(dead_code, reason = "the program `blackout` uses more of it")]
mod marks;
#[expect(dead_code, reason = "the program `recovery` uses it")]
mod moments;
mod packet;
#[expect(dead_code, reason = "the program `chaos` uses more of it")]
mod party;
mod program;
mod shares;
#[expect(dead_code, reason = "the program `distance` uses more of it")]
mod sides;
mod tun;
mod voice;
mod waiting;
