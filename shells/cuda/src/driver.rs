//! The narrow interface: all that this shell ever asks of a CUDA driver.
//!
//! `binding` is CUDA itself; `stub` is a driver in this process, for tests. Addresses are those of one
//! space for all devices and the host, as CUDA has it on 64-bit systems; only the driver may follow those of a device.

use std::fmt;
use std::os::fd::OwnedFd;

/// The oldest driver that will do: CUDA 11.7, by its own count.
pub const VERSION_MIN: i32 = 11_070;

/// Bytes of what opens memory in another process.
pub const HANDLE_BYTES: usize = 64;

/// A queue of copies of one device, carried out in order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stream(pub u64);

/// A point in a stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Event(pub u64);

/// A GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gpu {
    /// Its number, as in `cuda:0`.
    pub ordinal: u32,
    /// What its maker calls it.
    pub name: String,
    /// Its number in all the world. Instances of one GPU (MIG) have one PCI address, and each a number of its own.
    pub uuid: [u8; 16],
    /// Where it is: `0000:17:00.0`, in small letters.
    pub pci: String,
    /// Its memory.
    pub bytes: u64,
    /// A server carries out what this process puts into streams (MPS), and may go on with it when the process has ended.
    pub is_served: bool,
}

impl Gpu {
    /// Its number as `nvidia-smi -L` has it.
    pub fn uuid_text(&self) -> String {
        let digits = format!("{:032x}", u128::from_be_bytes(self.uuid));
        let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
        let kind = if self.is_instance() { "MIG" } else { "GPU" };
        format!("{kind}-{}", parts.join("-"))
    }

    /// Whether it is an instance of a GPU (MIG): CUDA shows a process one, as a device by itself.
    pub fn is_instance(&self) -> bool {
        self.name.split_whitespace().any(|word| word == "MIG")
    }
}

/// What an address leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// The device that the memory is on.
    pub ordinal: u32,
    /// Where its allocation begins.
    pub base: u64,
    /// How large the allocation is, in bytes.
    pub bytes: u64,
    /// It moves between host and device by itself.
    pub is_managed: bool,
}

/// One end of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    /// The first byte.
    pub address: u64,
    /// The device that it is on; `None`: the host.
    pub ordinal: Option<u32>,
}

/// How memory is opened in another process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Another process of this host.
    Process,
    /// Another host as well, over NVLink.
    Fabric,
}

/// What opens an allocation in another process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle {
    /// How far it reaches.
    pub sharing: Sharing,
    /// The driver's own words.
    pub bytes: [u8; HANDLE_BYTES],
}

/// Why the driver did not do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CudaError {
    /// This build has no CUDA: build with feature `cuda`.
    NotBuiltIn,
    /// The configuration says `transports/cuda/enable: false`.
    SwitchedOff,
    /// No driver is installed.
    NoLibrary,
    /// The driver lacks a function that is needed: install a newer one.
    MissingSymbol {
        /// Which.
        name: &'static str,
    },
    /// The driver is too old: install a newer one.
    OldDriver {
        /// Its version, as 1000 × major + 10 × minor.
        found: i32,
        /// The oldest that will do.
        needed: i32,
    },
    /// There is no such device.
    NoDevice {
        /// The number that was asked for.
        ordinal: u32,
        /// How many there are.
        devices: u32,
    },
    /// A context has failed, and stays so until the process ends. What was on its way has no known end: the device may
    /// still write.
    ContextLost {
        /// The device.
        ordinal: u32,
        /// What the driver said.
        code: u32,
    },
    /// The device, or the host for pinned memory, has no room for so many bytes.
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// An address that is not in memory of a device.
    ForeignPointer {
        /// It.
        address: u64,
    },
    /// Neither driver nor device can do this.
    Unsupported {
        /// What.
        what: &'static str,
    },
    /// Not now: the program is capturing a graph. Nothing has begun, and nothing is wrong: ask again.
    Busy {
        /// The function that was called.
        call: &'static str,
        /// What it said: 900 to 907.
        code: u32,
    },
    /// The stream is being captured into a graph, so nothing is in it that could be waited for.
    Capturing,
    /// A transport carries bytes of GPUs straight, whatever is in streams: nothing would wait.
    Unordered {
        /// Its name.
        transport: &'static str,
    },
    /// Anything else.
    Driver {
        /// The function that was called.
        call: &'static str,
        /// What it said: see `cudaError_enum` in CUDA's documentation.
        code: u32,
    },
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBuiltIn => f.write_str("this build has no CUDA: build with feature cuda"),
            Self::SwitchedOff => f.write_str("transports/cuda/enable says false"),
            Self::NoLibrary => f.write_str("no CUDA driver: libcuda.so.1 is not to be found"),
            Self::MissingSymbol { name } => {
                write!(f, "the CUDA driver lacks {name}: install a newer one")
            }
            Self::OldDriver { found, needed } => write!(
                f,
                "the CUDA driver is of version {}, at least {} is needed",
                version(*found),
                version(*needed)
            ),
            Self::NoDevice { ordinal, devices } => match devices {
                0 => write!(f, "no GPU: cuda:{ordinal} is not there"),
                _ => write!(
                    f,
                    "cuda:{ordinal} is not there: {devices} GPUs, from cuda:0 on"
                ),
            },
            Self::ContextLost { ordinal, code } => {
                write!(f, "cuda:{ordinal} has failed for this process (CUDA error {code}")?;
                if let Some(why) = of_mps(*code) {
                    write!(f, ": {why}")?;
                }
                f.write_str("): what was on its way may still write")
            }
            Self::OutOfMemory { bytes } => write!(f, "no room for {bytes} bytes"),
            Self::ForeignPointer { address } => {
                write!(f, "{address:#x} is not in memory of a GPU")
            }
            Self::Unsupported { what } => write!(f, "driver or device cannot {what}"),
            Self::Busy { call, code } => write!(
                f,
                "{call}: not while a graph is being captured (CUDA error {code}): ask again"
            ),
            Self::Capturing => f.write_str(
                "the stream is being captured into a graph, and what is captured runs later: order after it once the graph has been launched",
            ),
            Self::Unordered { transport } => write!(
                f,
                "{transport} carries memory of GPUs here and waits for no stream: synchronise the stream before each submission, or \
                 leave that transport out"
            ),
            Self::Driver { call, code } => match of_mps(*code) {
                Some(why) => write!(f, "{call}: CUDA error {code}: {why}"),
                None => write!(f, "{call}: CUDA error {code}"),
            },
        }
    }
}

impl std::error::Error for CudaError {}

impl From<CudaError> for std::io::Error {
    fn from(error: CudaError) -> Self {
        Self::other(error)
    }
}

/// What an error says of the server that processes share a GPU by (MPS), if it does: see `cudaError_enum`.
const fn of_mps(code: u32) -> Option<&'static str> {
    Some(match code {
        805 => "the control daemon of MPS does not answer",
        806 => "the server of MPS cannot be reached",
        807 => "the server of MPS is not ready: try again",
        808 => "the server of MPS has as many processes as it takes",
        809 => "the server of MPS has as many connections as the GPU takes",
        810 => "the server of MPS has ended this process",
        _ => return None,
    })
}

/// `12.4`.
fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// What a call answers.
pub type Answer<T> = Result<T, CudaError>;

/// A CUDA driver. Calls are made from any thread, leave the thread's own context alone, and disturb no capture of the
/// program's; each may answer [`CudaError::ContextLost`] or [`CudaError::Busy`].
pub trait Driver: Send + Sync {
    /// The devices. Starts CUDA, if nobody in this process has; so do calls that name a device.
    fn gpus(&self) -> Answer<Vec<Gpu>>;

    /// Takes the device's primary context, which the program's other users of CUDA share. Again: does nothing.
    fn attach(&self, ordinal: u32) -> Answer<()>;

    /// The devices whose primary context somebody in this process has taken.
    fn contexts(&self) -> Answer<Vec<u32>>;

    /// Whether one device could reach another one's memory without a detour. Takes no context.
    fn can_reach(&self, ordinal: u32, other: u32) -> Answer<bool>;

    /// What an address leads to; `None`: not to memory of a device. Starts nothing.
    fn locate(&self, address: u64) -> Answer<Option<Location>>;

    /// Allocates memory of a device, which others can open as `sharing` says.
    fn allocate(&self, ordinal: u32, bytes: u64, sharing: Sharing) -> Answer<u64>;

    /// Frees it.
    fn free(&self, ordinal: u32, address: u64) -> Answer<()>;

    /// Locks pages of the host, which must be mapped until [`Self::unpin`]. No device may write to what is mapped for reading only.
    /// `false`: somebody else has done so, for all of them. [`CudaError::Unsupported`] if that is so for a part.
    fn pin(&self, ordinal: u32, address: u64, bytes: u64) -> Answer<bool>;

    /// Lets them go.
    fn unpin(&self, ordinal: u32, address: u64) -> Answer<()>;

    /// A stream that waits for no other one.
    fn stream(&self, ordinal: u32) -> Answer<Stream>;

    /// Gives it back. What is in it goes on.
    fn end_stream(&self, ordinal: u32, stream: Stream);

    /// An event that has not been recorded.
    fn event(&self, ordinal: u32) -> Answer<Event>;

    /// Gives it back.
    fn end_event(&self, ordinal: u32, event: Event);

    /// Puts a copy into a stream. Both ends hold so many bytes until it is over. Waits until then if an end is memory of the host
    /// that is not pinned; an error if it is pinned in part only.
    ///
    /// # Safety
    ///
    /// The range of an end on the host is mapped, and may be read or written, until the copy is over.
    unsafe fn copy(
        &self,
        ordinal: u32,
        stream: Stream,
        to: End,
        from: End,
        bytes: u64,
    ) -> Answer<()>;

    /// Marks the end of what is in a stream now. A stream of the program's own is one too.
    fn record(&self, ordinal: u32, event: Event, stream: Stream) -> Answer<()>;

    /// Whether what was before the event when it was recorded is over. One that never was, is.
    fn is_over(&self, ordinal: u32, event: Event) -> Answer<bool>;

    /// Lets a stream wait for an event of any device.
    fn wait(&self, ordinal: u32, stream: Stream, event: Event) -> Answer<()>;

    /// Waits until a stream is empty.
    fn finish(&self, ordinal: u32, stream: Stream) -> Answer<()>;

    /// Whether a stream of the program's, or what the default one would wait for, is being captured into a graph. Asking
    /// spoils no capture.
    fn is_capturing(&self, ordinal: u32, stream: Stream) -> Answer<bool>;

    /// Lets `ordinal` reach memory of `other` without a detour, if it can. Whether it does. Again: does nothing.
    fn reach(&self, ordinal: u32, other: u32) -> Answer<bool>;

    /// What opens the allocation that begins at an address in another process.
    fn export(&self, ordinal: u32, base: u64) -> Answer<Handle>;

    /// Opens another process's allocation, `bytes` long: the address that it begins at here.
    fn import(&self, ordinal: u32, handle: &Handle, bytes: u64) -> Answer<u64>;

    /// Closes it.
    fn close(&self, ordinal: u32, address: u64, sharing: Sharing) -> Answer<()>;

    /// A DMA-BUF of whole pages, each of [`Self::page_bytes`], of one allocation of a device.
    fn dma_buf(&self, ordinal: u32, address: u64, bytes: u64) -> Answer<OwnedFd>;

    /// Bytes of the pages that a DMA-BUF is made of: the host's. A power of two.
    fn page_bytes(&self) -> u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_what_was_found_and_what_would_do() {
        use CudaError::*;
        // (error, parts of the text)
        let cases = [
            (NotBuiltIn, vec!["feature cuda"]),
            (SwitchedOff, vec!["transports/cuda/enable"]),
            (NoLibrary, vec!["libcuda.so.1"]),
            (MissingSymbol { name: "cuInit" }, vec!["cuInit", "newer"]),
            (
                OldDriver {
                    found: 11_040,
                    needed: 12_030,
                },
                vec!["11.4", "12.3"],
            ),
            (
                NoDevice {
                    ordinal: 4,
                    devices: 2,
                },
                vec!["cuda:4", "2 GPUs"],
            ),
            (
                NoDevice {
                    ordinal: 0,
                    devices: 0,
                },
                vec!["no GPU", "cuda:0"],
            ),
            (
                ContextLost {
                    ordinal: 1,
                    code: 700,
                },
                vec!["cuda:1", "700", "may still write"],
            ),
            (OutOfMemory { bytes: 5 }, vec!["5 bytes"]),
            (ForeignPointer { address: 4096 }, vec!["0x1000"]),
            (Unsupported { what: "fly" }, vec!["cannot fly"]),
            (
                Busy {
                    call: "cuMemcpyAsync",
                    code: 900,
                },
                vec!["cuMemcpyAsync", "900", "ask again"],
            ),
            (
                Capturing,
                vec!["captured", "once the graph has been launched"],
            ),
            (
                Unordered { transport: "verbs" },
                vec!["verbs", "synchronise"],
            ),
            (
                Driver {
                    call: "cuMemAlloc",
                    code: 1,
                },
                vec!["cuMemAlloc", "error 1"],
            ),
            (
                Driver {
                    call: "cuDevicePrimaryCtxRetain",
                    code: 805,
                },
                vec![
                    "cuDevicePrimaryCtxRetain",
                    "error 805",
                    "MPS",
                    "does not answer",
                ],
            ),
            (
                ContextLost {
                    ordinal: 0,
                    code: 810,
                },
                vec!["810", "MPS", "may still write"],
            ),
        ];
        for (error, parts) in cases {
            let text = error.to_string();
            for part in parts {
                assert!(text.contains(part), "{text}");
            }
        }
    }
}
