//! What is said of an engine's flight recording.

use polyrail::Engine;

/// Where the recording of an engine that has ended is, and whether all is in it. `None`: there is none.
pub(crate) fn recorded(engine: &Engine) -> Option<String> {
    let file = engine.recording()?.display();
    Some(match engine.recording_cut() {
        None => format!("recorded in {file}"),
        Some(cut) => format!("recorded in {file}, but not to the end: {cut}"),
    })
}
