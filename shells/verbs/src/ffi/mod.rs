//! libibverbs, and everything that is unsafe about it.
//!
//! The library is loaded when the first transport is made, never linked: a program that has this shell starts where
//! it is absent. All of it goes through [`raw::Calls`], so that tests put a library of their own in its place.
//!
//! # Safety
//!
//! Each handle owns one object of the library and keeps alive what that was made from, so nothing is used after it
//! was destroyed, and nothing is destroyed before what depends on it. The library's objects may be used by several
//! threads at once. What a device does by itself to memory is bounded by [`Mr`]: it holds the memory pinned, and where it is
//! not known that the device has let go, its [`Context`] does until it has been closed.

mod handle;
mod pair;
pub(crate) mod raw;

pub(crate) use handle::{Context, Cq, Event, Mr, Pd, Reach};
pub(crate) use pair::{Extras, Path, Qp, Source, Work};

use std::io;
use std::sync::OnceLock;

use raw::Calls;

/// Where the library is looked for: its name is that of its binary interface.
const NAME: &str = "libibverbs.so.1";

/// The machine's own library, loaded once and never unloaded; why not, if it cannot be.
pub(crate) fn load() -> io::Result<Calls> {
    static LOADED: OnceLock<Result<Calls, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        // SAFETY: the library's start-up code is made to run in any program.
        let library = unsafe { libloading::Library::new(NAME) }.map_err(|error| text(&error))?;
        let calls = resolve(&library).map_err(|error| text(&error))?;
        // Handles may live as long as the process.
        std::mem::forget(library);
        Ok(calls)
    });
    loaded.clone().map_err(io::Error::other)
}

/// Keeps what devices have registered this process's when it forks, where the kernel does not by itself (before 5.12). Without
/// that the first store to such a page after a fork goes to a copy, and devices go on with the page that was there before. A
/// child does not have those pages then. To be called before anything is registered; again, it does nothing.
pub(crate) fn survive_forks(calls: &Calls) {
    // SAFETY: it asks.
    let is_to_do = |ask: unsafe extern "C" fn() -> _| unsafe { ask() } == raw::FORK_DISABLED;
    if calls.is_fork_initialized.is_none_or(is_to_do) {
        // SAFETY: it may be called at any time.
        let answer = unsafe { (calls.fork_init)() };
        if let Err(error) = handle::checked("ibv_fork_init", answer) {
            log::warn!(
                "verbs: {error}; if this process forks, devices may go on with memory that is not its own any more"
            );
        }
    }
}

/// What the loader says, which is the error behind the one that it is told with.
fn text(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(why) => why.to_string(),
        None => format!("{NAME}: {error}"),
    }
}

fn resolve(library: &libloading::Library) -> Result<Calls, libloading::Error> {
    macro_rules! calls {
        ($($name:ident)*; optional $($optional:ident)*) => {
            Calls {
                // SAFETY: as below.
                $($optional: unsafe { library.get(concat!("ibv_", stringify!($optional))) }
                    .ok()
                    .map(|found| *found),)*
                // SAFETY: the library's header declares the function with this type.
                $($name: unsafe { *library.get(concat!("ibv_", stringify!($name)))? },)*
            }
        };
    }
    Ok(calls! {
        get_device_list free_device_list get_device_name open_device close_device query_device query_port
        get_async_event ack_async_event alloc_pd dealloc_pd reg_mr_iova2 dereg_mr create_comp_channel
        destroy_comp_channel create_cq destroy_cq get_cq_event ack_cq_events create_qp modify_qp query_qp destroy_qp fork_init;
        optional reg_dmabuf_mr is_fork_initialized
    })
}
