//! What polyrail's processes of one host share: memory, a clock, and the sight of who is alive.
//!
//! [`load`] is what each of them has in flight, [`hint`] the record in which an agent says which rails to use. Core
//! decides what is written there and what is believed of it; here are the files, the mapping, the clock and the
//! kernel's word about processes. All `unsafe` is in `mapping`.

mod clock;
pub mod hint;
pub mod load;
mod mapping;
mod process;

pub use clock::host_now;
pub use process::{began, is_exiting, is_gone, own_process};

/// Whose a file is, if it is another user's.
fn foreign_owner(path: &std::path::Path) -> Option<u32> {
    let owner = rustix::fs::lstat(path).ok()?.st_uid;
    (owner != rustix::process::geteuid().as_raw()).then_some(owner)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::thread;

    use rustix::process::{Uid, geteuid};

    /// Runs something on a thread that has become another user, who may look into a folder. Where nobody can become one it is
    /// not run.
    pub(crate) fn as_another_user(folder: &Path, run: impl FnOnce(u32) + Send) {
        if !geteuid().is_root() {
            let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
            assert!(!must, "only root can become another user");
            return eprintln!("not run, because only root can become another user");
        }
        fs::set_permissions(folder, fs::Permissions::from_mode(0o711)).unwrap();
        let nobody = Uid::from_raw(65_534);
        let run = move || {
            rustix::thread::set_thread_res_uid(None, nobody, None).unwrap();
            run(nobody.as_raw());
        };
        thread::scope(|scope| scope.spawn(run).join().unwrap());
    }
}
