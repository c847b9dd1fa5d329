//! CUDA's driver API, by `cudarc`: its types, and the library that it loads at run time.
//!
//! # Safety
//!
//! `cudarc`'s own functions look a symbol up when they are first called, and panic if the library or the symbol is not
//! there; and they answer an enumeration, which a newer driver's number would not be one of. So all functions are looked
//! up here, once, in the library that `cudarc` has loaded, and answer a plain number. `Functions` holds none that was
//! not found, and each has the type that CUDA's header gives it (checked against `cudarc`'s, see `types`).
//!
//! A call is made with the device's primary context pushed, and pops it, so the calling thread's own stays what it was.
//! So does how the thread stands to captures of graphs: the calls are made in relaxed mode, because in any other the driver
//! refuses many of them while some thread of the program captures, and spoils what that captures. What is called concerns
//! our own streams and events only, and those are in no graph.
//! Addresses are handed to the driver and never followed here, except by the driver within [`Driver::copy`], whose
//! contract is its caller's.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUipcMemHandle,
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType, CUmemFabricHandle,
    CUmemGenericAllocationHandle, CUmemLocationType, CUmemRangeHandleType, CUmemorytype,
    CUpointer_attribute, CUstream, CUuuid, culib, is_culib_present,
};

use crate::driver::{
    Answer, CudaError, Driver, End, Event, Gpu, HANDLE_BYTES, Handle, Location, Sharing, Stream,
    VERSION_MIN,
};

/// What a function answers.
type Code = u32;

const SUCCESS: Code = 0;
const OUT_OF_MEMORY: Code = 2;
const NOT_INITIALIZED: Code = 3;
const NO_DEVICE: Code = 100;
const NOT_READY: Code = 600;
const NOT_PERMITTED: Code = 800;
const PEER_ACCESS_ALREADY_ENABLED: Code = 704;
const HOST_MEMORY_ALREADY_REGISTERED: Code = 712;
const INVALID_VALUE: Code = 1;
const INVALID_CONTEXT: Code = 201;
const NOT_SUPPORTED: Code = 801;
const PEER_ACCESS_UNSUPPORTED: Code = 217;
const DEVICE_UNAVAILABLE: Code = 46;
const MPS_SERVER_NOT_READY: Code = 807;

/// After one of these a context answers nothing else: the driver is shutting down; the device taken away; memory or
/// NVLink failed; illegal address, launch timeout, assertion, hardware stack, illegal instruction, misaligned address, address space,
/// program counter, launch failed; the context destroyed; tensor memory leaked; the server of MPS not to be reached, failed,
/// or no longer serving this process; a device outside of CUDA failed; unknown.
const LOST: [Code; 21] = [
    4,
    DEVICE_UNAVAILABLE,
    214,
    220,
    226,
    700,
    702,
    709,
    710,
    714,
    715,
    716,
    717,
    718,
    719,
    721,
    806,
    MPS_SERVER_NOT_READY,
    810,
    909,
    999,
];

/// All that captures of graphs make the driver say. Nothing has begun then, and nothing is wrong with the device.
const CAPTURE: std::ops::RangeInclusive<Code> = 900..=907;
/// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`: what the default stream waits for is being captured.
const CAPTURE_IMPLICIT: Code = 906;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const CAPTURE_RELAXED: c_uint = 2;
/// `CU_STREAM_CAPTURE_STATUS_NONE`.
const CAPTURE_NONE: c_uint = 0;

/// `CU_MEMHOSTREGISTER_PORTABLE`: pinned for all contexts.
const REGISTER_PORTABLE: c_uint = 1;
/// `CU_MEMHOSTREGISTER_READ_ONLY`: mapped for reading only.
const REGISTER_READ_ONLY: c_uint = 8;
/// `CU_STREAM_NON_BLOCKING`.
const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const IPC_LAZY_PEER_ACCESS: c_uint = 1;

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*);)*) => {
        /// The functions of the driver that are called.
        #[derive(Clone, Copy)]
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl Functions {
            /// All that there are.
            #[cfg(test)]
            const NAMES: &[&str] = &[$($symbol),*];

            /// Looks each up.
            ///
            /// # Safety
            ///
            /// What `find` answers for a name is CUDA's function of that name, for as long as the process lives.
            unsafe fn load(find: impl Fn(&'static str) -> Option<*const c_void>) -> Answer<Self> {
                Ok(Self {
                    $($field: {
                        let found = find($symbol).filter(|found| !found.is_null());
                        let found = found.ok_or(CudaError::MissingSymbol { name: $symbol })?;
                        // SAFETY: not null, and the function of that name, whose type this is (module's contract).
                        unsafe {
                            std::mem::transmute::<
                                *const c_void,
                                unsafe extern "C" fn($($argument),*) -> Code,
                            >(found)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    init = "cuInit": fn(c_uint);
    driver_version = "cuDriverGetVersion": fn(*mut c_int);
    device_count = "cuDeviceGetCount": fn(*mut c_int);
    device = "cuDeviceGet": fn(*mut CUdevice, c_int);
    device_name = "cuDeviceGetName": fn(*mut c_char, c_int, CUdevice);
    device_bytes = "cuDeviceTotalMem_v2": fn(*mut usize, CUdevice);
    device_pci = "cuDeviceGetPCIBusId": fn(*mut c_char, c_int, CUdevice);
    device_uuid = "cuDeviceGetUuid_v2": fn(*mut CUuuid, CUdevice);
    device_attribute = "cuDeviceGetAttribute": fn(*mut c_int, CUdevice_attribute, CUdevice);
    context = "cuDevicePrimaryCtxRetain": fn(*mut CUcontext, CUdevice);
    context_state = "cuDevicePrimaryCtxGetState": fn(CUdevice, *mut c_uint, *mut c_int);
    push = "cuCtxPushCurrent_v2": fn(CUcontext);
    pop = "cuCtxPopCurrent_v2": fn(*mut CUcontext);
    attributes = "cuPointerGetAttributes": fn(c_uint, *mut CUpointer_attribute, *mut *mut c_void, CUdeviceptr);
    allocate = "cuMemAlloc_v2": fn(*mut CUdeviceptr, usize);
    free = "cuMemFree_v2": fn(CUdeviceptr);
    register = "cuMemHostRegister_v2": fn(*mut c_void, usize, c_uint);
    unregister = "cuMemHostUnregister": fn(*mut c_void);
    stream = "cuStreamCreate": fn(*mut CUstream, c_uint);
    stream_end = "cuStreamDestroy_v2": fn(CUstream);
    stream_wait = "cuStreamWaitEvent": fn(CUstream, CUevent, c_uint);
    stream_finish = "cuStreamSynchronize": fn(CUstream);
    stream_capture = "cuStreamIsCapturing": fn(CUstream, *mut c_uint);
    capture_mode = "cuThreadExchangeStreamCaptureMode": fn(*mut c_uint);
    event = "cuEventCreate": fn(*mut CUevent, c_uint);
    event_end = "cuEventDestroy_v2": fn(CUevent);
    event_record = "cuEventRecord": fn(CUevent, CUstream);
    event_query = "cuEventQuery": fn(CUevent);
    copy = "cuMemcpyAsync": fn(CUdeviceptr, CUdeviceptr, usize, CUstream);
    copy_peer = "cuMemcpyPeerAsync": fn(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream);
    can_reach = "cuDeviceCanAccessPeer": fn(*mut c_int, CUdevice, CUdevice);
    reach = "cuCtxEnablePeerAccess": fn(CUcontext, c_uint);
    ipc_export = "cuIpcGetMemHandle": fn(*mut CUipcMemHandle, CUdeviceptr);
    ipc_import = "cuIpcOpenMemHandle_v2": fn(*mut CUdeviceptr, CUipcMemHandle, c_uint);
    ipc_close = "cuIpcCloseMemHandle": fn(CUdeviceptr);
    range_handle = "cuMemGetHandleForAddressRange": fn(*mut c_void, CUdeviceptr, usize, CUmemRangeHandleType, c_ulonglong);
    granularity = "cuMemGetAllocationGranularity": fn(*mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags);
    create = "cuMemCreate": fn(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong);
    release = "cuMemRelease": fn(CUmemGenericAllocationHandle);
    retain = "cuMemRetainAllocationHandle": fn(*mut CUmemGenericAllocationHandle, *mut c_void);
    share = "cuMemExportToShareableHandle": fn(*mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, c_ulonglong);
    take = "cuMemImportFromShareableHandle": fn(*mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType);
    reserve = "cuMemAddressReserve": fn(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
    unreserve = "cuMemAddressFree": fn(CUdeviceptr, usize);
    map = "cuMemMap": fn(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
    unmap = "cuMemUnmap": fn(CUdeviceptr, usize);
    allow = "cuMemSetAccess": fn(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
}

/// The calling thread makes calls in relaxed mode, whoever captures, until this is dropped.
struct Relaxed<'a> {
    call: &'a Functions,
    /// The thread's own mode; `None`: the driver has not changed it.
    before: Option<c_uint>,
}

impl<'a> Relaxed<'a> {
    fn begin(call: &'a Functions) -> Self {
        let mut mode = CAPTURE_RELAXED;
        // SAFETY: the mode is read from and written to a local of that type.
        let code = unsafe { (call.capture_mode)(&mut mode) };
        let before = (code == SUCCESS).then_some(mode);
        Self { call, before }
    }
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            // SAFETY: as in `begin`.
            let code = unsafe { (self.call.capture_mode)(&mut mode) };
            note(check("cuThreadExchangeStreamCaptureMode", code));
        }
    }
}

/// CUDA's driver.
pub struct Cuda {
    call: Functions,
    /// `cuInit` has been called.
    begun: OnceLock<()>,
    contexts: Mutex<HashMap<u32, Primary>>,
    /// Ranges that were mapped here, by where they begin.
    mapped: Mutex<HashMap<u64, Mapped>>,
}

/// A device with its primary context, which is kept as long as the process lives.
#[derive(Clone, Copy)]
struct Primary {
    device: CUdevice,
    context: CUcontext,
}

// SAFETY: a context is a handle that CUDA lets any thread push.
unsafe impl Send for Primary {}

struct Mapped {
    bytes: usize,
    handle: CUmemGenericAllocationHandle,
}

impl Cuda {
    /// Loads the driver. It is started by the first call that names a device. A process looks for it once: it has
    /// many names, each in several folders.
    pub fn load() -> Answer<Self> {
        static IS_THERE: OnceLock<bool> = OnceLock::new();
        // SAFETY: loading runs the library's own initialisers, as for any program that is linked against it.
        if !IS_THERE.get_or_init(|| unsafe { is_culib_present() }) {
            return Err(CudaError::NoLibrary);
        }
        // SAFETY: as above; it is there, so nothing panics, and `cudarc` never unloads it.
        let library = unsafe { culib() };
        let find = |name: &'static str| {
            // SAFETY: only the address is taken.
            let symbol = unsafe { library.get::<*const c_void>(name.as_bytes()) };
            symbol.ok().map(|symbol| *symbol)
        };
        // SAFETY: the library is CUDA's driver, and stays loaded.
        let call = unsafe { Functions::load(find) }?;
        Self::over(call)
    }

    fn over(call: Functions) -> Answer<Self> {
        let mut found = 0;
        // SAFETY: the answer is written to a local of that type; the one call that is allowed before `cuInit`.
        check("cuDriverGetVersion", unsafe {
            (call.driver_version)(&mut found)
        })?;
        if found < VERSION_MIN {
            let needed = VERSION_MIN;
            return Err(CudaError::OldDriver { found, needed });
        }
        Ok(Self {
            call,
            begun: OnceLock::new(),
            contexts: Mutex::default(),
            mapped: Mutex::default(),
        })
    }

    /// Starts CUDA. Again, or if the program has: does nothing.
    fn begin(&self) -> Answer<()> {
        if self.begun.get().is_some() {
            return Ok(());
        }
        // SAFETY: takes no memory of ours.
        match unsafe { (self.call.init)(0) } {
            NO_DEVICE => Err(CudaError::NoDevice {
                ordinal: 0,
                devices: 0,
            }),
            NOT_INITIALIZED => Err(CudaError::Unsupported {
                what: "start in a process whose parent had started CUDA before it forked",
            }),
            code => check("cuInit", code),
        }?;
        let _ = self.begun.set(());
        Ok(())
    }

    fn count(&self) -> Answer<u32> {
        self.begin()?;
        let mut count = 0;
        // SAFETY: the answer is written to a local of that type.
        check("cuDeviceGetCount", unsafe {
            (self.call.device_count)(&mut count)
        })?;
        Ok(count.max(0) as u32)
    }

    fn device(&self, ordinal: u32) -> Answer<CUdevice> {
        let devices = self.count()?;
        if ordinal >= devices {
            return Err(CudaError::NoDevice { ordinal, devices });
        }
        let mut device = 0;
        // SAFETY: the answer is written to a local of that type.
        check("cuDeviceGet", unsafe {
            (self.call.device)(&mut device, ordinal as c_int)
        })?;
        Ok(device)
    }

    /// Whether MPS serves this process's contexts on a device. A driver that knows no such question (before 12.3) is asked by
    /// what CUDA itself looks for when it starts: the pipe of the control daemon.
    fn is_served(&self, device: CUdevice) -> bool {
        let mut served = 0;
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED;
        // SAFETY: the answer is written to a local of that type.
        match unsafe { (self.call.device_attribute)(&mut served, attribute, device) } {
            SUCCESS => served != 0,
            _ => {
                let pipes = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY");
                let pipes = pipes.unwrap_or_else(|| "/tmp/nvidia-mps".into());
                Path::new(&pipes).join("control").exists()
            }
        }
    }

    fn primary(&self, ordinal: u32) -> Answer<Primary> {
        let mut contexts = lock(&self.contexts);
        if let Some(known) = contexts.get(&ordinal) {
            return Ok(*known);
        }
        let device = self.device(ordinal)?;
        let mut context = std::ptr::null_mut();
        let relaxed = Relaxed::begin(&self.call);
        // SAFETY: the answer is written to a local of that type. It is never released: the program shares it.
        let code = unsafe { (self.call.context)(&mut context, device) };
        drop(relaxed);
        match code {
            // Somebody else has the device, or MPS is starting: there is no context that could be lost.
            DEVICE_UNAVAILABLE | MPS_SERVER_NOT_READY => {
                let call = "cuDevicePrimaryCtxRetain";
                return Err(CudaError::Driver { call, code });
            }
            code => answer("cuDevicePrimaryCtxRetain", ordinal, code)?,
        }
        let primary = Primary { device, context };
        contexts.insert(ordinal, primary);
        Ok(primary)
    }

    /// Makes calls with a device's context current.
    fn within<T>(&self, ordinal: u32, calls: impl FnOnce(&Functions) -> Answer<T>) -> Answer<T> {
        let context = self.primary(ordinal)?.context;
        // SAFETY: the context is retained for as long as the process lives.
        let code = unsafe { (self.call.push)(context) };
        answer("cuCtxPushCurrent", ordinal, code)?;
        let relaxed = Relaxed::begin(&self.call);
        let said = calls(&self.call);
        drop(relaxed);
        let mut popped = std::ptr::null_mut();
        // SAFETY: the answer is written to a local of that type; ours is on top.
        let code = unsafe { (self.call.pop)(&mut popped) };
        said.and_then(|said| answer("cuCtxPopCurrent", ordinal, code).map(|()| said))
    }

    /// What memory for other hosts is made of.
    fn fabric_memory(device: CUdevice) -> CUmemAllocationProp {
        // SAFETY: a plain structure of numbers and a pointer, for all of which zero is a value: the enumerations' are
        // overwritten below.
        let mut memory: CUmemAllocationProp = unsafe { std::mem::zeroed() };
        memory.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        memory.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
        memory.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        memory.location.id = device;
        memory
    }

    /// Maps an allocation that is not mapped anywhere yet, and takes it over.
    fn map(
        &self,
        ordinal: u32,
        handle: CUmemGenericAllocationHandle,
        bytes: usize,
    ) -> Answer<CUdeviceptr> {
        let device = self.primary(ordinal)?.device;
        let mapped = self.within(ordinal, |call| {
            let mut address = 0;
            // SAFETY: the answer is written to a local of that type; an address range of our own.
            let code = unsafe { (call.reserve)(&mut address, bytes, 0, 0, 0) };
            answer("cuMemAddressReserve", ordinal, code)?;
            let mut access = CUmemAccessDesc {
                location: Self::fabric_memory(device).location,
                flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            };
            // SAFETY: the range was reserved for this, and the handle is of as many bytes.
            let code = unsafe { (call.map)(address, bytes, 0, handle, 0) };
            let said = answer("cuMemMap", ordinal, code).and_then(|()| {
                // SAFETY: the range is mapped; one description is read.
                let code = unsafe { (call.allow)(address, bytes, &raw mut access, 1) };
                answer("cuMemSetAccess", ordinal, code).inspect_err(|_| {
                    // SAFETY: mapped just now, and used by nobody.
                    unsafe { (call.unmap)(address, bytes) };
                })
            });
            said.map(|()| address).inspect_err(|_| {
                // SAFETY: reserved just now, and nothing is mapped there.
                unsafe { (call.unreserve)(address, bytes) };
            })
        });
        match mapped {
            Ok(address) => {
                lock(&self.mapped).insert(address, Mapped { bytes, handle });
                Ok(address)
            }
            Err(error) => {
                let _relaxed = Relaxed::begin(&self.call);
                // SAFETY: the handle is ours, and mapped nowhere.
                unsafe { (self.call.release)(handle) };
                Err(error)
            }
        }
    }

    /// Takes back what [`Self::map`] did. `false`: it did not map this.
    fn unmap(&self, ordinal: u32, address: u64) -> Answer<bool> {
        let Some(Mapped { bytes, handle }) = lock(&self.mapped).remove(&address) else {
            return Ok(false);
        };
        self.within(ordinal, |call| {
            // SAFETY: `map` made all three, and whoever used the range has said that it is over.
            let codes = unsafe {
                [
                    (call.unmap)(address, bytes),
                    (call.unreserve)(address, bytes),
                    (call.release)(handle),
                ]
            };
            let calls = ["cuMemUnmap", "cuMemAddressFree", "cuMemRelease"];
            for (name, code) in calls.into_iter().zip(codes) {
                answer(name, ordinal, code)?;
            }
            Ok(true)
        })
    }

    fn allocate_fabric(&self, ordinal: u32, bytes: u64) -> Answer<u64> {
        let Primary { device, .. } = self.primary(ordinal)?;
        let mut supported = 0;
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED;
        // SAFETY: the answer is written to a local of that type.
        let code = unsafe { (self.call.device_attribute)(&mut supported, attribute, device) };
        if code != SUCCESS || supported == 0 {
            return Err(CudaError::Unsupported {
                what: "share memory over NVLink",
            });
        }
        let memory = Self::fabric_memory(device);
        let mut unit = 0;
        let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: one description is read, and the answer written to a local of that type.
        let code = unsafe { (self.call.granularity)(&mut unit, &memory, least) };
        answer("cuMemGetAllocationGranularity", ordinal, code)?;
        let whole = (bytes as usize).checked_next_multiple_of(unit.max(1));
        let whole = whole.ok_or(CudaError::OutOfMemory { bytes })?;
        let mut handle = 0;
        let relaxed = Relaxed::begin(&self.call);
        // SAFETY: as above.
        let code = unsafe { (self.call.create)(&mut handle, whole, &memory, 0) };
        drop(relaxed);
        match code {
            OUT_OF_MEMORY => return Err(CudaError::OutOfMemory { bytes }),
            // The device can, and this process has no channel (`/dev/nvidia-caps-imex-channels`): seen on an H100 alone in its host.
            NOT_PERMITTED => {
                return Err(CudaError::Unsupported {
                    what: "share memory over NVLink in this process: it has no IMEX channel",
                });
            }
            code => answer("cuMemCreate", ordinal, code)?,
        }
        self.map(ordinal, handle, whole)
    }
}

impl Driver for Cuda {
    fn gpus(&self) -> Answer<Vec<Gpu>> {
        let gpu = |ordinal| {
            let device = self.device(ordinal)?;
            let (mut name, mut pci) = ([0; 256], [0; 32]);
            let mut uuid = CUuuid { bytes: [0; 16] };
            let mut bytes = 0;
            // SAFETY: each answer is written to a local of that type, or to an array of the length that is told.
            unsafe {
                let code = (self.call.device_name)(name.as_mut_ptr(), 256, device);
                check("cuDeviceGetName", code)?;
                let code = (self.call.device_pci)(pci.as_mut_ptr(), 32, device);
                check("cuDeviceGetPCIBusId", code)?;
                let code = (self.call.device_uuid)(&mut uuid, device);
                check("cuDeviceGetUuid", code)?;
                check(
                    "cuDeviceTotalMem",
                    (self.call.device_bytes)(&mut bytes, device),
                )?;
            }
            Ok(Gpu {
                ordinal,
                name: text(&name),
                uuid: uuid.bytes.map(|byte| byte as u8),
                pci: text(&pci).to_ascii_lowercase(),
                bytes: bytes as u64,
                is_served: self.is_served(device),
            })
        };
        (0..self.count()?).map(gpu).collect()
    }

    fn attach(&self, ordinal: u32) -> Answer<()> {
        self.primary(ordinal).map(drop)
    }

    fn contexts(&self) -> Answer<Vec<u32>> {
        let mut taken = Vec::new();
        for ordinal in 0..self.count()? {
            let device = self.device(ordinal)?;
            let (mut flags, mut active) = (0, 0);
            // SAFETY: both answers are written to locals of their types.
            let code = unsafe { (self.call.context_state)(device, &mut flags, &mut active) };
            check("cuDevicePrimaryCtxGetState", code)?;
            taken.extend((active != 0).then_some(ordinal));
        }
        Ok(taken)
    }

    fn can_reach(&self, ordinal: u32, other: u32) -> Answer<bool> {
        let (near, far) = (self.device(ordinal)?, self.device(other)?);
        let mut can = 0;
        // SAFETY: the answer is written to a local of that type.
        let code = unsafe { (self.call.can_reach)(&mut can, near, far) };
        check("cuDeviceCanAccessPeer", code).map(|()| can != 0)
    }

    fn locate(&self, address: u64) -> Answer<Option<Location>> {
        let relaxed = Relaxed::begin(&self.call);
        let mut looked = look_up(&self.call, address);
        drop(relaxed);
        if matches!(looked, Err(INVALID_CONTEXT)) {
            // The calling thread has none, and the driver wants any. Where no device has one, nobody has memory there.
            let Some(&ordinal) = self.contexts()?.first() else {
                return Ok(None);
            };
            looked = self.within(ordinal, |call| Ok(look_up(call, address)))?;
        }
        let found = match looked {
            Ok(found) => found,
            Err(INVALID_VALUE | NOT_INITIALIZED) => return Ok(None),
            Err(code) => return check("cuPointerGetAttributes", code).map(|()| None),
        };
        let is_device = found.kind == CUmemorytype::CU_MEMORYTYPE_DEVICE as c_uint;
        Ok(is_device.then_some(Location {
            ordinal: found.ordinal.max(0) as u32,
            base: found.base,
            bytes: found.bytes as u64,
            is_managed: found.managed & 0xff != 0,
        }))
    }

    fn allocate(&self, ordinal: u32, bytes: u64, sharing: Sharing) -> Answer<u64> {
        if sharing == Sharing::Fabric {
            return self.allocate_fabric(ordinal, bytes);
        }
        self.within(ordinal, |call| {
            let mut address = 0;
            // SAFETY: the answer is written to a local of that type.
            match unsafe { (call.allocate)(&mut address, bytes as usize) } {
                OUT_OF_MEMORY => Err(CudaError::OutOfMemory { bytes }),
                code => answer("cuMemAlloc", ordinal, code).map(|()| address),
            }
        })
    }

    fn free(&self, ordinal: u32, address: u64) -> Answer<()> {
        if self.unmap(ordinal, address)? {
            return Ok(());
        }
        self.within(ordinal, |call| {
            // SAFETY: what `allocate` gave, and whoever used it has said that it is over.
            answer("cuMemFree", ordinal, unsafe { (call.free)(address) })
        })
    }

    fn pin(&self, ordinal: u32, address: u64, bytes: u64) -> Answer<bool> {
        self.within(ordinal, |call| {
            let place = address as *mut c_void;
            // SAFETY: mapped until `unpin`, by this method's contract; pages are locked, not touched.
            let register = |flags| unsafe { (call.register)(place, bytes as usize, flags) };
            let code = match register(REGISTER_PORTABLE) {
                // Seen on an H200 of memory that is mapped for reading only, which it takes when it is told so.
                INVALID_VALUE => register(REGISTER_PORTABLE | REGISTER_READ_ONLY),
                code => code,
            };
            match code {
                HOST_MEMORY_ALREADY_REGISTERED => match look_up(call, address) {
                    Ok(found) if found.has_pinned(address, bytes) => Ok(false),
                    _ => Err(CudaError::Unsupported {
                        what: "pin memory of which a part is pinned already",
                    }),
                },
                OUT_OF_MEMORY => Err(CudaError::OutOfMemory { bytes }),
                code => answer("cuMemHostRegister", ordinal, code).map(|()| true),
            }
        })
    }

    fn unpin(&self, ordinal: u32, address: u64) -> Answer<()> {
        self.within(ordinal, |call| {
            // SAFETY: what `pin` locked; the driver refuses anything else.
            let code = unsafe { (call.unregister)(address as *mut c_void) };
            answer("cuMemHostUnregister", ordinal, code)
        })
    }

    fn stream(&self, ordinal: u32) -> Answer<Stream> {
        self.within(ordinal, |call| {
            let mut stream = std::ptr::null_mut();
            // SAFETY: the answer is written to a local of that type.
            let code = unsafe { (call.stream)(&mut stream, STREAM_NON_BLOCKING) };
            answer("cuStreamCreate", ordinal, code).map(|()| Stream(stream as u64))
        })
    }

    fn end_stream(&self, ordinal: u32, stream: Stream) {
        let ended = self.within(ordinal, |call| {
            // SAFETY: what `stream` gave, once.
            let code = unsafe { (call.stream_end)(stream.0 as CUstream) };
            answer("cuStreamDestroy", ordinal, code)
        });
        note(ended);
    }

    fn event(&self, ordinal: u32) -> Answer<Event> {
        self.within(ordinal, |call| {
            let mut event = std::ptr::null_mut();
            // SAFETY: the answer is written to a local of that type.
            let code = unsafe { (call.event)(&mut event, EVENT_DISABLE_TIMING) };
            answer("cuEventCreate", ordinal, code).map(|()| Event(event as u64))
        })
    }

    fn end_event(&self, ordinal: u32, event: Event) {
        let ended = self.within(ordinal, |call| {
            // SAFETY: what `event` gave, once.
            let code = unsafe { (call.event_end)(event.0 as CUevent) };
            answer("cuEventDestroy", ordinal, code)
        });
        note(ended);
    }

    unsafe fn copy(
        &self,
        ordinal: u32,
        stream: Stream,
        to: End,
        from: End,
        bytes: u64,
    ) -> Answer<()> {
        let (stream, bytes) = (stream.0 as CUstream, bytes as usize);
        let between = match (to.ordinal, from.ordinal) {
            (Some(to), Some(from)) if to != from => Some((self.primary(to)?, self.primary(from)?)),
            _ => None,
        };
        self.within(ordinal, |call| match between {
            // SAFETY: the caller's promise about both ends; the driver checks what is on devices.
            Some((into, out_of)) => answer("cuMemcpyPeerAsync", ordinal, unsafe {
                let (into, out_of) = (into.context, out_of.context);
                (call.copy_peer)(to.address, into, from.address, out_of, bytes, stream)
            }),
            // SAFETY: as above.
            None => answer("cuMemcpyAsync", ordinal, unsafe {
                (call.copy)(to.address, from.address, bytes, stream)
            }),
        })
    }

    fn record(&self, ordinal: u32, event: Event, stream: Stream) -> Answer<()> {
        self.within(ordinal, |call| {
            // SAFETY: handles that the driver gave, to us or to the program.
            let code = unsafe { (call.event_record)(event.0 as CUevent, stream.0 as CUstream) };
            answer("cuEventRecord", ordinal, code)
        })
    }

    fn is_over(&self, ordinal: u32, event: Event) -> Answer<bool> {
        self.within(ordinal, |call| {
            // SAFETY: a handle that the driver gave.
            match unsafe { (call.event_query)(event.0 as CUevent) } {
                NOT_READY => Ok(false),
                code => answer("cuEventQuery", ordinal, code).map(|()| true),
            }
        })
    }

    fn wait(&self, ordinal: u32, stream: Stream, event: Event) -> Answer<()> {
        self.within(ordinal, |call| {
            // SAFETY: handles that the driver gave.
            let code = unsafe { (call.stream_wait)(stream.0 as CUstream, event.0 as CUevent, 0) };
            answer("cuStreamWaitEvent", ordinal, code)
        })
    }

    fn finish(&self, ordinal: u32, stream: Stream) -> Answer<()> {
        self.within(ordinal, |call| {
            // SAFETY: a handle that the driver gave.
            let code = unsafe { (call.stream_finish)(stream.0 as CUstream) };
            answer("cuStreamSynchronize", ordinal, code)
        })
    }

    fn is_capturing(&self, ordinal: u32, stream: Stream) -> Answer<bool> {
        self.within(ordinal, |call| {
            let mut status = CAPTURE_NONE;
            // SAFETY: a handle that the driver gave, or one of its default streams; the answer is written to a local of that
            // type.
            match unsafe { (call.stream_capture)(stream.0 as CUstream, &mut status) } {
                CAPTURE_IMPLICIT => Ok(true),
                code => {
                    answer("cuStreamIsCapturing", ordinal, code).map(|()| status != CAPTURE_NONE)
                }
            }
        })
    }

    fn reach(&self, ordinal: u32, other: u32) -> Answer<bool> {
        if ordinal == other {
            return Ok(true);
        }
        if !self.can_reach(ordinal, other)? {
            return Ok(false);
        }
        let far = self.primary(other)?;
        self.within(ordinal, |call| {
            // SAFETY: a context that is retained for as long as the process lives.
            match unsafe { (call.reach)(far.context, 0) } {
                PEER_ACCESS_ALREADY_ENABLED => Ok(true),
                PEER_ACCESS_UNSUPPORTED => Ok(false),
                code => answer("cuCtxEnablePeerAccess", ordinal, code).map(|()| true),
            }
        })
    }

    fn export(&self, ordinal: u32, base: u64) -> Answer<Handle> {
        let mut bytes = [0; HANDLE_BYTES];
        if !lock(&self.mapped).contains_key(&base) {
            return self.within(ordinal, |call| {
                let mut handle = CUipcMemHandle { reserved: [0; 64] };
                // SAFETY: the answer is written to a local of that type; the address is looked up.
                match unsafe { (call.ipc_export)(&mut handle, base) } {
                    INVALID_VALUE | NOT_SUPPORTED => Err(CudaError::Unsupported {
                        what: "share this allocation with another process",
                    }),
                    code => answer("cuIpcGetMemHandle", ordinal, code),
                }?;
                bytes = handle.reserved.map(|byte| byte as u8);
                let sharing = Sharing::Process;
                Ok(Handle { sharing, bytes })
            });
        }
        self.within(ordinal, |call| {
            let mut memory = 0;
            // SAFETY: the answer is written to a local of that type; the address is looked up.
            let code = unsafe { (call.retain)(&mut memory, base as *mut c_void) };
            answer("cuMemRetainAllocationHandle", ordinal, code)?;
            let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
            let mut handle = CUmemFabricHandle { data: [0; 64] };
            // SAFETY: a handle of this kind is written to a local of its type; the memory is then let go once.
            let code = unsafe {
                let code = (call.share)((&raw mut handle).cast(), memory, kind, 0);
                (call.release)(memory);
                code
            };
            answer("cuMemExportToShareableHandle", ordinal, code)?;
            bytes = handle.data;
            let sharing = Sharing::Fabric;
            Ok(Handle { sharing, bytes })
        })
    }

    fn import(&self, ordinal: u32, handle: &Handle, bytes: u64) -> Answer<u64> {
        match handle.sharing {
            Sharing::Process => self.within(ordinal, |call| {
                let reserved = handle.bytes.map(|byte| byte as c_char);
                let handle = CUipcMemHandle { reserved };
                let mut address = 0;
                // SAFETY: the answer is written to a local of that type; the driver checks the handle.
                let code = unsafe { (call.ipc_import)(&mut address, handle, IPC_LAZY_PEER_ACCESS) };
                answer("cuIpcOpenMemHandle", ordinal, code).map(|()| address)
            }),
            Sharing::Fabric => {
                let mut handle = CUmemFabricHandle { data: handle.bytes };
                let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
                let mut memory = 0;
                self.within(ordinal, |call| {
                    // SAFETY: as above.
                    let code = unsafe { (call.take)(&mut memory, (&raw mut handle).cast(), kind) };
                    answer("cuMemImportFromShareableHandle", ordinal, code)
                })?;
                self.map(ordinal, memory, bytes as usize)
            }
        }
    }

    fn close(&self, ordinal: u32, address: u64, sharing: Sharing) -> Answer<()> {
        match sharing {
            Sharing::Fabric => self.unmap(ordinal, address).map(drop),
            Sharing::Process => self.within(ordinal, |call| {
                // SAFETY: what `import` gave, and whoever used it has said that it is over.
                let code = unsafe { (call.ipc_close)(address) };
                answer("cuIpcCloseMemHandle", ordinal, code)
            }),
        }
    }

    fn dma_buf(&self, ordinal: u32, address: u64, bytes: u64) -> Answer<OwnedFd> {
        self.within(ordinal, |call| {
            let mut fd: c_int = -1;
            let kind = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
            let to = (&raw mut fd).cast();
            // SAFETY: a handle of this kind is a descriptor, written to a local of that type.
            match unsafe { (call.range_handle)(to, address, bytes as usize, kind, 0) } {
                NOT_SUPPORTED | INVALID_VALUE => Err(CudaError::Unsupported {
                    what: "give a DMA-BUF of this memory",
                }),
                code => answer("cuMemGetHandleForAddressRange", ordinal, code),
            }?;
            // SAFETY: a descriptor that was made for us just now.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        })
    }

    fn page_bytes(&self) -> u64 {
        // SAFETY: takes and gives numbers.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        u64::try_from(bytes).map_or(4096, |bytes| bytes.max(1))
    }
}

/// What the driver says of an address.
#[derive(Default)]
struct Found {
    kind: c_uint,
    ordinal: c_int,
    managed: c_uint,
    base: CUdeviceptr,
    bytes: usize,
}

impl Found {
    /// Whether a range of the host's memory that begins at the address is pinned, all of it by one call.
    fn has_pinned(&self, address: u64, bytes: u64) -> bool {
        let end = address.checked_add(bytes);
        let end_there = self.base.checked_add(self.bytes as u64);
        self.kind == CUmemorytype::CU_MEMORYTYPE_HOST as c_uint
            && self.base <= address
            && end.is_some_and(|end| end_there.is_some_and(|there| end <= there))
    }
}

fn look_up(call: &Functions, address: u64) -> Result<Found, Code> {
    use CUpointer_attribute::*;
    let mut found = Found::default();
    let mut asked = [
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    ];
    let mut to: [*mut c_void; 5] = [
        (&raw mut found.kind).cast(),
        (&raw mut found.ordinal).cast(),
        (&raw mut found.managed).cast(),
        (&raw mut found.base).cast(),
        (&raw mut found.bytes).cast(),
    ];
    // SAFETY: five attributes are asked for, each written to a local of its type; the address is looked up, not followed.
    match unsafe { (call.attributes)(5, asked.as_mut_ptr(), to.as_mut_ptr(), address) } {
        SUCCESS => Ok(found),
        code => Err(code),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check(call: &'static str, code: Code) -> Answer<()> {
    match code {
        SUCCESS => Ok(()),
        NOT_SUPPORTED => Err(CudaError::Unsupported { what: call }),
        code if CAPTURE.contains(&code) => Err(CudaError::Busy { call, code }),
        code => Err(CudaError::Driver { call, code }),
    }
}

/// The same for a call in a device's context.
fn answer(call: &'static str, ordinal: u32, code: Code) -> Answer<()> {
    match LOST.contains(&code) {
        true => Err(CudaError::ContextLost { ordinal, code }),
        false => check(call, code),
    }
}

/// Says what went wrong where nothing can be done about it.
fn note(ended: Answer<()>) {
    if let Err(error) = ended {
        log::debug!("cuda: {error}");
    }
}

/// A text of the driver's.
fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|byte| *byte as u8).collect();
    let text = CStr::from_bytes_until_nul(&bytes).map(CStr::to_string_lossy);
    text.unwrap_or_default().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_driver_is_an_error_and_no_panic() {
        match Cuda::load() {
            Ok(_) => {}
            Err(error) => assert!(
                matches!(error, CudaError::NoLibrary | CudaError::NoDevice { .. }),
                "{error}"
            ),
        }
    }

    extern "C" fn refuses() -> Code {
        304
    }

    extern "C" fn is_in_a_child(_: c_uint) -> Code {
        NOT_INITIALIZED
    }

    extern "C" fn says_11_4(version: *mut c_int) -> Code {
        // SAFETY: the one caller is `over`, which hands in a local.
        unsafe { *version = 11_040 };
        SUCCESS
    }

    extern "C" fn says_12_4(version: *mut c_int) -> Code {
        // SAFETY: as above.
        unsafe { *version = 12_040 };
        SUCCESS
    }

    extern "C" fn has_no_device(_: c_uint) -> Code {
        NO_DEVICE
    }

    /// What comes of a driver whose functions are these; all others refuse.
    fn start(of: impl Fn(&str) -> Option<*const c_void>) -> Option<CudaError> {
        // SAFETY: `over` and `begin` call the first two functions only, which have their types if they are not `refuses`; that
        // takes no arguments, which a caller in C may hand in all the same.
        let functions = unsafe { Functions::load(of) };
        let begun = functions.and_then(Cuda::over);
        begun.and_then(|cuda| cuda.begin()).err()
    }

    #[test]
    fn each_function_that_is_missing_is_named() {
        for missing in Functions::NAMES {
            let find = |name: &str| (name != *missing).then_some(refuses as *const c_void);
            let error = start(find);
            assert_eq!(error, Some(CudaError::MissingSymbol { name: missing }));
        }
        let null = start(|_| Some(std::ptr::null()));
        assert_eq!(null, Some(CudaError::MissingSymbol { name: "cuInit" }));
    }

    #[test]
    fn a_driver_that_will_not_do_says_why() {
        let driver = |version: *const c_void, init: *const c_void| {
            start(move |name| {
                Some(match name {
                    "cuDriverGetVersion" => version,
                    "cuInit" => init,
                    _ => refuses as *const c_void,
                })
            })
        };
        let refuses = refuses as *const c_void;
        // (name, its version, its start, error)
        let cases = [
            (
                "does not say its version",
                refuses,
                refuses,
                CudaError::Driver {
                    call: "cuDriverGetVersion",
                    code: 304,
                },
            ),
            (
                "is too old",
                says_11_4 as *const c_void,
                refuses,
                CudaError::OldDriver {
                    found: 11_040,
                    needed: VERSION_MIN,
                },
            ),
            (
                "does not start",
                says_12_4 as *const c_void,
                refuses,
                CudaError::Driver {
                    call: "cuInit",
                    code: 304,
                },
            ),
            (
                "was started by a parent",
                says_12_4 as *const c_void,
                is_in_a_child as *const c_void,
                CudaError::Unsupported {
                    what: "start in a process whose parent had started CUDA before it forked",
                },
            ),
            (
                "has no device",
                says_12_4 as *const c_void,
                has_no_device as *const c_void,
                CudaError::NoDevice {
                    ordinal: 0,
                    devices: 0,
                },
            ),
        ];
        for (name, version, init, error) in cases {
            assert_eq!(driver(version, init), Some(error), "{name}");
        }
    }

    #[test]
    fn what_ends_a_context_is_told_from_what_does_not() {
        for code in [700, 719, 214, 806, 807, 810, 999] {
            let lost = CudaError::ContextLost { ordinal: 2, code };
            assert_eq!(answer("cuEventQuery", 2, code), Err(lost));
        }
        for code in [1, 2, 304, 600, 801] {
            let said = answer("cuEventQuery", 2, code).unwrap_err();
            assert!(!matches!(said, CudaError::ContextLost { .. }), "{said}");
        }
        for code in 900..=907 {
            let call = "cuEventQuery";
            assert_eq!(answer(call, 2, code), Err(CudaError::Busy { call, code }));
        }
        assert_eq!(answer("cuEventQuery", 2, 0), Ok(()));
    }
}
