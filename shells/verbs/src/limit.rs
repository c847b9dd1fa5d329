//! The limit of memory that a process may lock, and what is told of it when a registration is refused.

use std::{fs, io};

use rustix::process::{Resource, getrlimit};

/// What the kernel says of locked memory of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Locked {
    /// Bytes that it may lock; `None`: any number.
    limit: Option<u64>,
    /// Bytes that devices have registered, each as often as it was.
    pinned: u64,
}

impl Locked {
    fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            limit: getrlimit(Resource::Memlock).current,
            pinned: pinned(&status),
        }
    }

    /// Why so many bytes more could not be registered, and what would do.
    fn advice(self, bytes: u64) -> String {
        let needed = self.pinned.saturating_add(bytes);
        match self.limit {
            Some(limit) if needed > limit => format!(
                "; {limit} bytes may be locked (RLIMIT_MEMLOCK), {} are, as each registration counts, with each device and for \
                 each trust domain: `ulimit -l {}` would do for this one, `ulimit -l unlimited` for all (LimitMEMLOCK of a service)",
                self.pinned,
                needed.div_ceil(1024)
            ),
            _ => format!(
                "; it is not the limit of locked memory (ulimit -l): {} bytes are pinned",
                self.pinned
            ),
        }
    }
}

/// Bytes that are pinned, by `/proc/self/status`.
fn pinned(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    let kib: Option<u64> = number.and_then(|number| number.parse().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// What to say behind an error of a registration of so many bytes: something, if there was no memory for it.
pub(crate) fn advice(error: &io::Error, bytes: u64) -> String {
    match error.kind() {
        io::ErrorKind::OutOfMemory => Locked::now().advice(bytes),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_which_limit_and_what_would_do() {
        const GIB: u64 = 1 << 30;
        // (limit, pinned, wanted, what is said)
        let cases = [
            (Some(GIB), 0, 2 * GIB, "`ulimit -l 2097152`"),
            (Some(3 * GIB), 2 * GIB, GIB + 1, "`ulimit -l 3145729`"),
            (Some(3 * GIB), 2 * GIB, GIB, "it is not the limit"),
            (None, 9 * GIB, GIB, "it is not the limit"),
        ];
        for (limit, pinned, wanted, text) in cases {
            let said = Locked { limit, pinned }.advice(wanted);
            assert!(said.contains(text), "{said}");
            assert!(said.contains(&pinned.to_string()), "{said}");
        }
    }

    #[test]
    fn only_a_registration_without_memory_is_told_of_the_limit() {
        // (error, whether it is)
        for (number, told) in [
            (libc::ENOMEM, true),
            (libc::EFAULT, false),
            (libc::EIO, false),
        ] {
            let said = advice(&io::Error::from_raw_os_error(number), 4096);
            assert_eq!(said.contains("ulimit -l"), told, "{number}: {said}");
        }
    }

    #[test]
    fn the_kernel_says_what_is_pinned() {
        let status = "VmLck:\t      64 kB\nVmPin:\t    2048 kB\nVmHWM:\t 1 kB\n";
        assert_eq!((pinned(status), pinned("VmLck: 1 kB")), (2 << 20, 0));
    }
}
