//! A library, loaded and looked at.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use polyrail_transport::Transport;
use polyrail_transport::memory::RegionTable;

use crate::abi::{Entry, POLYRAIL_TRANSPORT_ABI, polyrail_transport_table};
use crate::target::Loaded;

/// The function that every library has.
const ENTRY: &str = "polyrail_transport_entry";
/// Bytes of a transport's name.
const NAME_BYTES_MAX: usize = 32;

/// A transport in a shared library. Copies name the same one.
#[derive(Clone, Copy)]
pub struct Library {
    pub(crate) table: &'static polyrail_transport_table,
    name: &'static str,
}

// SAFETY: the table is the library's constant, which nobody writes.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// Why a library is no transport.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// The system could not load it.
    Open {
        /// Which.
        path: PathBuf,
        /// The system's word for it.
        source: libloading::Error,
    },
    /// It is not a transport: it lacks the function that every one has.
    NoEntry {
        /// Which.
        path: PathBuf,
    },
    /// Its table is null, of another version, or shorter than this one.
    Version {
        /// Which.
        path: PathBuf,
        /// What is different.
        text: String,
    },
    /// Its name cannot be one.
    Name {
        /// Which.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// A function is missing that has to be there.
    Missing {
        /// Which library.
        path: PathBuf,
        /// Which function.
        function: &'static str,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { path, source } => {
                write!(f, "cannot load {}: {}", path.display(), cause(source))
            }
            Self::NoEntry { path } => {
                write!(f, "{} is no transport: it has no {ENTRY}", path.display())
            }
            Self::Version { path, text } => write!(f, "{}: {text}", path.display()),
            Self::Name { path, name } => write!(
                f,
                "{}: \"{}\" cannot name a transport: 1 to {NAME_BYTES_MAX} of a-z, 0-9, - and _",
                path.display(),
                name.escape_debug()
            ),
            Self::Missing { path, function } => {
                write!(f, "{}: its table has no {function}", path.display())
            }
        }
    }
}

impl std::error::Error for LoadError {}

/// What the system said; libloading's own words only say what was tried.
fn cause(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}

/// Names of libraries, for ever: each is kept once.
static NAMES: Mutex<Option<HashMap<String, &'static str>>> = Mutex::new(None);

fn keep(name: &str) -> &'static str {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if let Some(kept) = names.get(name) {
        return kept;
    }
    let kept: &'static str = Box::leak(name.into());
    names.insert(name.to_owned(), kept);
    kept
}

impl Library {
    /// Loads a library and looks whether it is a transport. It stays loaded for good. Its initialisers run: only load what
    /// you trust.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        // SAFETY: what it does when it is loaded is the business of whoever names it.
        let opened = unsafe { libloading::Library::new(path) };
        let library = opened.map_err(|source| LoadError::Open {
            path: path.into(),
            source,
        })?;
        // SAFETY: a library that has a function of this name is a transport, with a table by the header.
        let entry = unsafe { library.get::<Entry>(ENTRY) };
        let Ok(entry) = entry else {
            return Err(LoadError::NoEntry { path: path.into() });
        };
        // SAFETY: as above.
        let table = unsafe { entry() };
        std::mem::forget(library);
        let version = |text| LoadError::Version {
            path: path.into(),
            text,
        };
        if table.is_null() {
            return Err(version(format!("{ENTRY} answered null")));
        }
        // SAFETY: every version of the table begins with its number.
        let abi = unsafe { (&raw const (*table).abi).read() };
        if abi != POLYRAIL_TRANSPORT_ABI {
            let text = format!(
                "made for version {abi} of the table; this program has {POLYRAIL_TRANSPORT_ABI}"
            );
            return Err(version(text));
        }
        // SAFETY: this version has a size.
        let size = unsafe { (&raw const (*table).size).read() };
        if size < size_of::<polyrail_transport_table>() {
            let text = format!(
                "its table says {size} bytes, and this version has {}",
                size_of::<polyrail_transport_table>()
            );
            return Err(version(text));
        }
        // SAFETY: it is long enough, and stays where it is.
        let table = unsafe { &*table };
        let name = check_name(path, table)?;
        check_functions(path, table)?;
        Ok(Self {
            table,
            name: keep(&name),
        })
    }

    /// What the transport is called.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Makes it a transport of an engine, over the memory that peers may touch.
    pub fn make(&self, regions: Arc<dyn RegionTable>) -> io::Result<Arc<dyn Transport>> {
        Ok(Arc::new(Loaded::new(*self, regions)?))
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Library({})", self.name)
    }
}

fn check_name(path: &Path, table: &polyrail_transport_table) -> Result<String, LoadError> {
    let wrong = |name: String| LoadError::Name {
        path: path.into(),
        name,
    };
    if table.name.is_null() {
        return Err(wrong(String::new()));
    }
    // SAFETY: a text of the library's, by the header.
    let name = unsafe { CStr::from_ptr(table.name) }.to_string_lossy();
    let good = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
    match (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(good) {
        true => Ok(name.into_owned()),
        false => Err(wrong(name.chars().take(2 * NAME_BYTES_MAX).collect())),
    }
}

fn check_functions(path: &Path, table: &polyrail_transport_table) -> Result<(), LoadError> {
    macro_rules! there {
        ($($function:ident),+) => {
            [$((stringify!($function), table.$function.is_some())),+]
        };
    }
    let functions = there!(
        create,
        destroy,
        address,
        begin_session,
        fence_inbound,
        retire_session,
        endpoint_create,
        endpoint_destroy,
        descriptor,
        attach_local,
        detach_local,
        attach_remote,
        attach_rail,
        open,
        post,
        poll,
        fence,
        close
    );
    match functions.into_iter().find(|(_, there)| !there) {
        Some((function, _)) => Err(LoadError::Missing {
            path: path.into(),
            function,
        }),
        None => Ok(()),
    }
}
