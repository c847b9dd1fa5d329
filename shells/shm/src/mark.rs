//! A page by which a call of the kernel finds out itself whether it is at the right process.
//!
//! `process_vm_writev` takes a process by its number, which another one may have by then, finds its memory once, and writes to
//! places in the order in which they are named, until one of them is not there. So whoever writes names first a place that only
//! the right process has: a page at an address drawn at random, where neither the kernel puts anything unless it is told to, nor
//! the sanitizers' runtimes do, and which is not copied to forks. A stranger has nothing there, and so nothing is written. One
//! that has must be an engine's process too, and have drawn the same of 2,952,790,016 pages (of 4 KiB).
//! Whoever reads reads the process's cookie by the same call, which is on that page.
//!
//! # Safety
//!
//! Pages are new ones, where nothing was mapped. This process writes to one once, before anybody knows of it, and never looks at
//! it again.

use std::io;
use std::ops::Range;

use crate::wire::Cookie;

/// Where they are: far below what the kernel places from the top of the address space on, and far above programs and their
/// heaps.
const RANGE: Range<u64> = 0x6500_0000_0000..0x7000_0000_0000;

/// How often another address is drawn, if something is there.
const DRAWS_MAX: u32 = 4;

/// Where on a page the mark is, which others write to: behind a cookie, and what they try themselves on.
const MARK_AT: u64 = 64;

/// The mark of a process, if its cookie is on such a page.
pub(crate) fn mark_of(cookie: &Cookie) -> Option<u64> {
    let is_there = RANGE.contains(&cookie.address);
    is_there.then_some(cookie.address + MARK_AT)
}

/// A page that is a mark, for others to write to.
#[derive(Debug)]
pub(crate) struct Page {
    address: u64,
    bytes: usize,
}

impl Page {
    /// A new one that begins with that; an error where addresses are not so large, or cannot be chosen.
    pub(crate) fn new(content: &[u8; 16]) -> io::Result<Self> {
        let mut drawn = Self::draw();
        for _ in 1..DRAWS_MAX {
            drawn = drawn.or_else(|_| Self::draw());
        }
        let page = drawn?;
        let to = std::ptr::with_exposed_provenance_mut::<[u8; 16]>(page.address as usize);
        // SAFETY: the page is ours, and longer.
        unsafe { to.write(*content) };
        Ok(page)
    }

    fn draw() -> io::Result<Self> {
        // SAFETY: it only answers.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as usize;
        let mut number = [0; 8];
        getrandom::fill(&mut number).map_err(|e| io::Error::other(e.to_string()))?;
        let pages = (RANGE.end - RANGE.start) / bytes as u64;
        let address = RANGE.start + u64::from_ne_bytes(number) % pages * bytes as u64;
        let wanted = std::ptr::without_provenance_mut(address as usize);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a new page, where nothing is.
        let got = unsafe { libc::mmap(wanted, bytes, access, flags, -1, 0) };
        if got == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = got.expose_provenance() as u64;
        let page = Self { address, bytes };
        // Kernels that do not know the flag take the address for a wish.
        if got != wanted {
            return Err(io::ErrorKind::Unsupported.into());
        }
        // SAFETY: the page is ours.
        match unsafe { libc::madvise(got, bytes, libc::MADV_DONTFORK) } {
            0 => Ok(page),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let at = std::ptr::without_provenance_mut(self.address as usize);
        // SAFETY: the page is ours, and nobody's who looks at it.
        unsafe { libc::munmap(at, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_where_nothing_else_is() {
        // (name, where the cookie is, its mark)
        let cases = [
            ("first", RANGE.start, Some(RANGE.start + 64)),
            ("last", RANGE.end - 4096, Some(RANGE.end - 4032)),
            ("too high", RANGE.end, None),
            ("too low", RANGE.start - 4096, None),
            ("a cookie that forks have", 4096, None),
        ];
        for (name, address, mark) in cases {
            let content = [0; 16];
            assert_eq!(mark_of(&Cookie { address, content }), mark, "{name}");
        }
        let content = [7; 16];
        let page = Page::new(&content).unwrap();
        let address = page.address();
        assert!(mark_of(&Cookie { address, content }).is_some());
    }
}
