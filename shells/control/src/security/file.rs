//! The file that a cluster's key is in: one line, for its owner only.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

/// Bytes of a cluster's secret.
pub const SECRET_BYTES: usize = 32;

/// What the line begins with. The number is that of the format.
const PREFIX: &str = "polyrail-cluster-key-1 ";

/// Nothing longer is read: not even keys of RSA are.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Reading and writing for the owner, nothing for others.
const MODE: u32 = 0o600;

/// Bits of a mode that let others than the owner do something.
const OTHERS: u32 = 0o077;
/// Bits of others' writing.
const OTHERS_WRITE: u32 = 0o022;
/// The longest file of certificates.
const TRUSTED_BYTES_MAX: u64 = 4 << 20;

/// The secret that makes engines members of one cluster. It is overwritten when it is dropped, and never shown.
pub struct Secret(Zeroizing<[u8; SECRET_BYTES]>);

impl Secret {
    /// A new one from the kernel's random numbers.
    pub fn draw() -> io::Result<Self> {
        let mut bytes = Zeroizing::new([0; SECRET_BYTES]);
        getrandom::fill(&mut *bytes).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self(bytes))
    }

    /// Reads it from a file that belongs to this user or to root, and that nobody else may read.
    pub fn read(path: &Path) -> Result<Self, KeyFileError> {
        let bytes = read_private(path)?;
        Self::parse(&bytes).ok_or_else(|| KeyFileError::Content {
            path: path.to_owned(),
            bytes: bytes.len(),
        })
    }

    /// Writes it to a new file with mode 0600. What is there already is left as it is.
    pub fn create(&self, path: &Path) -> Result<(), KeyFileError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AlreadyExists => KeyFileError::Exists {
                path: path.to_owned(),
            },
            _ => KeyFileError::System {
                path: path.to_owned(),
                what: "write",
                source,
            },
        };
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(MODE);
        let mut file = options.open(path).map_err(failed)?;
        let written = file.write_all(&self.line()).and_then(|()| file.sync_all());
        written.map_err(|error| {
            // Half a key is none. If it cannot be removed, reading it says so.
            let _ = std::fs::remove_file(path);
            failed(error)
        })
    }

    /// The bytes themselves.
    pub(super) fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    fn line(&self) -> Zeroizing<Vec<u8>> {
        let mut line = Vec::with_capacity(PREFIX.len() + 2 * SECRET_BYTES + 1);
        line.extend_from_slice(PREFIX.as_bytes());
        for byte in self.0.iter() {
            line.extend([byte >> 4, byte & 15].map(digit));
        }
        line.push(b'\n');
        Zeroizing::new(line)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let digits = line.strip_prefix(PREFIX.as_bytes())?;
        if digits.len() != 2 * SECRET_BYTES {
            return None;
        }
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        for (byte, pair) in secret.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = value(pair[0])? << 4 | value(pair[1])?;
        }
        Some(Self(secret))
    }
}

/// What is in a file that belongs to this user or to root, and that nobody else may read. It is overwritten when it is dropped.
pub fn read_private(path: &Path) -> Result<Zeroizing<Vec<u8>>, KeyFileError> {
    let failed = |what| {
        let path = path.to_owned();
        move |source| KeyFileError::System { path, what, source }
    };
    let file = open(path).map_err(failed("read"))?;
    let path = || path.to_owned();
    match wrong_with(&file, OTHERS).map_err(failed("look at"))? {
        None => {}
        Some(Wrong::NotAFile) => return Err(KeyFileError::NotAFile { path: path() }),
        Some(Wrong::Mode(mode)) => return Err(KeyFileError::Mode { path: path(), mode }),
        Some(Wrong::Owner { owner, user }) => {
            let path = path();
            return Err(KeyFileError::Owner { path, owner, user });
        }
    }
    // As long as it can become: growing would leave copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX as usize + 1));
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(failed("read"))?;
    Ok(bytes)
}

/// What is in a file that only this user or root may write: nothing secret, but who writes it says whom to trust.
pub fn read_trusted(path: &Path) -> Result<Vec<u8>, TrustedFileError> {
    let wrong = |why: Untrusted| TrustedFileError {
        path: path.to_owned(),
        why,
    };
    let failed = |error| wrong(Untrusted::System(error));
    let file = open(path).map_err(failed)?;
    if let Some(why) = wrong_with(&file, OTHERS_WRITE).map_err(failed)? {
        return Err(wrong(Untrusted::Wrong(why)));
    }
    let mut bytes = Vec::new();
    let read = file.take(TRUSTED_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(failed)?;
    match bytes.len() as u64 > TRUSTED_BYTES_MAX {
        true => Err(wrong(Untrusted::TooLong)),
        false => Ok(bytes),
    }
}

/// Why a file that says whom to trust was not read.
#[derive(Debug)]
pub struct TrustedFileError {
    path: PathBuf,
    why: Untrusted,
}

#[derive(Debug)]
enum Untrusted {
    System(io::Error),
    Wrong(Wrong),
    TooLong,
}

impl fmt::Display for TrustedFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.why {
            Untrusted::System(error) => write!(f, "cannot read {path}: {error}"),
            Untrusted::Wrong(Wrong::NotAFile) => write!(f, "{path} is not a regular file"),
            Untrusted::Wrong(Wrong::Mode(mode)) => write!(
                f,
                "{path} has mode {mode:04o}, so others than its owner can write it and say whom to trust: chmod go-w {path}"
            ),
            Untrusted::Wrong(Wrong::Owner { owner, user }) => write!(
                f,
                "{path} belongs to user {owner}, who can write it and say whom to trust; it is to belong to user {user} or to root"
            ),
            Untrusted::TooLong => {
                write!(
                    f,
                    "{path} has more than {TRUSTED_BYTES_MAX} bytes, the limit"
                )
            }
        }
    }
}

impl std::error::Error for TrustedFileError {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

const fn digit(value: u8) -> u8 {
    match value {
        0..=9 => b'0' + value,
        _ => b'a' + value - 10,
    }
}

const fn value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Opens a file to read it. A pipe is not waited for.
fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Why a file is not to be believed.
#[derive(Debug)]
enum Wrong {
    /// It is a directory, a pipe or a device.
    NotAFile,
    /// Its mode, which lets others than its owner do what they may not.
    Mode(u32),
    /// It belongs to another user, who can change it.
    Owner { owner: u32, user: u32 },
}

/// Why a file is not to be believed, if so, that lets others than its owner do any of this. It is looked at once it is open,
/// so that nobody can put another in its place.
fn wrong_with(file: &File, others: u32) -> io::Result<Option<Wrong>> {
    let metadata = file.metadata()?;
    let mode = metadata.mode() & 0o7777;
    let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
    Ok(match metadata.is_file() {
        false => Some(Wrong::NotAFile),
        true if mode & others != 0 => Some(Wrong::Mode(mode)),
        true if owner != user && owner != 0 => Some(Wrong::Owner { owner, user }),
        true => None,
    })
}

/// Why a key file was not read or written. Nothing of its content is in it.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeyFileError {
    /// The system refused.
    System {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// In its words.
        source: io::Error,
    },
    /// There is a file of this name.
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// It is a directory, a pipe or a device.
    NotAFile {
        /// What it is called.
        path: PathBuf,
    },
    /// Others than its owner may read or write it.
    Mode {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It belongs to another user, who can change it.
    Owner {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who this process is.
        user: u32,
    },
    /// It does not hold a key.
    Content {
        /// The file.
        path: PathBuf,
        /// Its length, as far as it was read.
        bytes: usize,
    },
}

impl fmt::Display for KeyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System { path, what, source } => {
                write!(f, "cannot {what} the key file {}: {source}", path.display())
            }
            Self::Exists { path } => write!(
                f,
                "{} exists and is not overwritten: engines that have its key would be shut out; take another name, or \
                 remove it first",
                path.display()
            ),
            Self::NotAFile { path } => {
                write!(f, "the key file {} is not a regular file", path.display())
            }
            Self::Mode { path, mode } => write!(
                f,
                "the key file {0} has mode {mode:04o}, so others than its owner have it too; {MODE:04o} is right: \
                 chmod {MODE:o} {0}",
                path.display()
            ),
            Self::Owner { path, owner, user } => write!(
                f,
                "the key file {} belongs to user {owner}, who could change it; it is to belong to user {user} or to root",
                path.display()
            ),
            Self::Content { path, bytes } => write!(
                f,
                "the key file {} ({bytes} bytes) holds no key: one line is right, \"{PREFIX}\" and {} digits, as \
                 `polyrail keygen` writes it",
                path.display(),
                2 * SECRET_BYTES
            ),
        }
    }
}

impl std::error::Error for KeyFileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System { source, .. } => Some(source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A folder of its own for a test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("polyrail-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_is_written_is_read_for_the_owner_only_and_not_overwritten() {
        let folder = Folder::new("written");
        let path = folder.0.join("cluster.key");
        let secret = Secret::draw().unwrap();
        secret.create(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o600);
        assert_eq!(Secret::read(&path).unwrap().bytes(), secret.bytes());
        let again = Secret::draw().unwrap();
        assert_ne!(again.bytes(), secret.bytes());
        let error = again.create(&path).unwrap_err().to_string();
        assert!(error.contains("is not overwritten"), "{error}");
        assert_eq!(Secret::read(&path).unwrap().bytes(), secret.bytes());
    }

    #[test]
    fn files_that_others_can_read_are_refused_with_the_mode_that_is_right() {
        let folder = Folder::new("modes");
        let path = folder.0.join("cluster.key");
        Secret::draw().unwrap().create(&path).unwrap();
        // (mode, what is said of it)
        let cases = [
            (0o600, None),
            (0o400, None),
            (0o640, Some("0640")),
            (0o604, Some("0604")),
            (0o620, Some("0620")),
            (0o644, Some("0644")),
        ];
        for (mode, said) in cases {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            match (Secret::read(&path), said) {
                (Ok(_), None) => {}
                (Err(error), Some(said)) => {
                    let error = error.to_string();
                    assert!(error.contains(said), "{error}");
                    assert!(error.contains("chmod 600"), "{error}");
                }
                (read, _) => panic!("{mode:o}: {read:?}"),
            }
        }
    }

    #[test]
    fn what_is_no_key_is_refused_and_not_shown() {
        let folder = Folder::new("content");
        let digits = "0123456789abcdef".repeat(4);
        // (name, content)
        let cases = [
            ("empty", String::new()),
            (
                "of another format",
                format!("polyrail-cluster-key-2 {digits}\n"),
            ),
            ("too short", format!("{PREFIX}{}\n", &digits[1..])),
            ("too long", format!("{PREFIX}{digits}0\n")),
            (
                "no digits",
                format!("{PREFIX}{}\n", digits.replace('a', "g")),
            ),
            ("two lines", format!("{PREFIX}{digits}\n\n")),
            ("much too long", "0123456789abcdef".repeat(1000)),
        ];
        for (name, content) in cases {
            let path = folder.0.join(name);
            let options = || {
                OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(MODE)
                    .open(&path)
            };
            options().unwrap().write_all(content.as_bytes()).unwrap();
            let error = Secret::read(&path).unwrap_err();
            assert!(
                matches!(error, KeyFileError::Content { .. }),
                "{name}: {error}"
            );
            assert!(!format!("{error} {error:?}").contains("456789ab"), "{name}");
        }
        let error = Secret::read(&folder.0).unwrap_err();
        assert!(matches!(error, KeyFileError::NotAFile { .. }), "{error}");
        let error = Secret::read(&folder.0.join("none"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("none") && error.contains("No such file"),
            "{error}"
        );
    }

    #[test]
    fn what_says_whom_to_trust_is_read_unless_others_may_write_it() {
        let folder = Folder::new("trusted");
        let path = folder.0.join("roots.pem");
        std::fs::write(&path, "roots").unwrap();
        // (mode, whether it is refused)
        for (mode, refused) in [
            (0o600, false),
            (0o644, false),
            (0o444, false),
            (0o620, true),
            (0o602, true),
            (0o666, true),
        ] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            match (read_trusted(&path), refused) {
                (Ok(bytes), false) => assert_eq!(bytes, b"roots"),
                (Err(error), true) => {
                    let text = error.to_string();
                    let right = format!("has mode {mode:04o}");
                    assert!(
                        text.contains(&right) && text.contains("chmod go-w"),
                        "{text}"
                    );
                }
                (read, _) => panic!("{mode:o}: {read:?}"),
            }
        }
        let error = read_trusted(&folder.0).unwrap_err().to_string();
        assert!(error.contains("is not a regular file"), "{error}");
        let error = read_trusted(&folder.0.join("none"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("No such file"), "{error}");
        let long = std::fs::File::create(&path).unwrap();
        long.set_len(TRUSTED_BYTES_MAX + 1).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let error = read_trusted(&path).unwrap_err().to_string();
        assert!(error.contains("the limit"), "{error}");
    }

    #[test]
    fn a_secret_does_not_show_itself() {
        let secret = Secret(Zeroizing::new([0xab; SECRET_BYTES]));
        let shown = format!("{secret:?} {secret:#?}");
        assert!(!shown.contains("ab") && !shown.contains("171"), "{shown}");
    }
}
