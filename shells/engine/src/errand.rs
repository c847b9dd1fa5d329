//! Work that may block, off the control thread: peers' calls to the program, and sessions to be made anew.

use std::sync::Weak;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use polyrail_control::plane::CallAnswer;
use polyrail_core::units::PeerId;

use crate::engine::{Engine, Inner};

/// Time between tries to reach a peer again.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) enum Errand {
    /// A peer's program asks ours to do something.
    Call {
        method: u16,
        body: Vec<u8>,
        answer: CallAnswer,
    },
    /// A peer has forgotten our session: make a new one.
    Reconnect { peer: PeerId },
    /// Another process answers where a peer was.
    Lost { peer: PeerId },
    /// The engine is ending.
    Stop,
}

/// Runs errands until the engine ends.
pub(crate) fn run(errands: &Receiver<Errand>, engine: &Weak<Inner>) {
    while let Ok(errand) = errands.recv() {
        if matches!(errand, Errand::Stop) {
            return;
        }
        let Some(engine) = engine.upgrade().map(Engine::from_inner) else {
            return;
        };
        match errand {
            Errand::Call {
                method,
                body,
                answer,
            } => answer(engine.carry_out(method, &body)),
            Errand::Reconnect { peer } => reconnect(&engine, peer),
            Errand::Lost { peer } => engine.forget_peer(peer),
            Errand::Stop => return,
        }
    }
}

/// Tries to reach a peer again until it answers, without holding up other errands, or the engine's end.
fn reconnect(engine: &Engine, peer: PeerId) {
    let weak = engine.downgrade();
    let spawned = std::thread::Builder::new()
        .name("polyrail-dial".into())
        .spawn(move || {
            while let Some(engine) = weak.upgrade().map(Engine::from_inner) {
                if engine.is_closing() || engine.reconnect(peer) {
                    return;
                }
                drop(engine);
                std::thread::sleep(RECONNECT_INTERVAL);
            }
        });
    if let Err(error) = spawned {
        log::error!(
            "cannot start a thread to reach peer {} again: {error}",
            peer.0
        );
    }
}
