//! What a program, or whoever runs it, can do about a request that ended other than well.

use polyrail_core::work::Cause;

/// What can be done about a [`Cause`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Advice {
    /// The same request may well succeed if it is submitted once more, now or a little later, without anything else being
    /// changed. Whether it may be repeated is the program's to know: one that is [`Indeterminate`](crate::Status::Indeterminate)
    /// may have been carried out.
    pub is_retryable: bool,
    /// What to do, in words.
    pub what: &'static str,
}

/// What can be done about a cause.
///
/// ```
/// use polyrail::{Cause, advice};
/// assert!(advice(Cause::NoRail).is_retryable);
/// assert!(!advice(Cause::RemoteAccess).is_retryable);
/// ```
pub fn advice(cause: Cause) -> Advice {
    let again = |what| Advice {
        is_retryable: true,
        what,
    };
    let changed = |what| Advice {
        is_retryable: false,
        what,
    };
    match cause {
        Cause::Reset | Cause::RetryExceeded | Cause::RnrRetryExceeded | Cause::Flushed => {
            again("submit it again; if that repeats, look at the links and at the peer's log")
        }
        Cause::Silent => again("submit it again"),
        Cause::PeerSilent => again(
            "submit it again once the peer is heard; if its machine is known to be gone, say so with `declare_lost`",
        ),
        Cause::PeerGone => changed("open the peer's segments again once it has been started anew"),
        Cause::Fatal | Cause::DeviceDown => {
            again("submit it again; if that repeats, look at the device with `polyrail topo`")
        }
        Cause::Refused => again(
            "submit it again; if that repeats, see that the peer runs and that its port can be reached",
        ),
        Cause::NoRail => again(
            "submit it again once a link is up; `polyrail top` or `Engine::rails` says which are paused",
        ),
        Cause::FailoverLimit => again(
            "submit it again once a transport works; the log says why each was left (`max_failover_attempts` bounds how many)",
        ),
        Cause::LocalProtection | Cause::LocalLength => {
            changed("name a range that is registered here, and still is")
        }
        Cause::LocalOperation => changed(
            "use memory and an operation that some transport here can carry; `polyrail topo` lists them",
        ),
        Cause::RemoteAccess => changed(
            "name a range that the peer's segment has and allows; if the peer has made it anew, open it again",
        ),
        Cause::RemoteInvalidRequest | Cause::BadResponse => changed(
            "see that both ends are of versions that know each other; if they are, report it as a bug",
        ),
        Cause::RemoteOperation => {
            changed("look at the peer's log: it failed while it carried this out")
        }
        Cause::Cancelled => changed("nothing: the program wanted it so"),
        Cause::DeadlineExceeded => again(
            "submit it again with more time, or send less: `polyrail top` says what the rails carry",
        ),
        Cause::ShutDown => changed("nothing: the engine was shut down first"),
        Cause::StagingLost => changed(
            "raise `staging/slots`, or start the engine anew: its slots are held by peers that were never heard again",
        ),
        Cause::EndOfFile => changed("open the file again: it is shorter than the range"),
        Cause::NoSpace => {
            changed("make room on the disk, in the quota, or in the limit on the size of files")
        }
        Cause::MediaError => {
            changed("look at the disk: the kernel's log says what it could not do")
        }
        // Causes are told by core, and there are no others yet.
        _ => again("submit it again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_line_in_the_page_about_failures() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/failures.md");
        let page = std::fs::read_to_string(path).unwrap();
        for cause in Cause::ALL {
            let Advice { is_retryable, what } = advice(cause);
            let again = if is_retryable { "yes" } else { "no" };
            let line = format!("| `{cause:?}`: {} | {again} | {what} |", cause.text());
            assert!(page.contains(&line), "{line}");
        }
    }
}
