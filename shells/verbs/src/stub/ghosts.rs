//! What lives on although the library was told to end it, and what is left when a context is closed.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::atomic::Ordering::SeqCst;

use super::{COUNTERS, FAILED, NAMES, REUSING, State, with};

/// A device that somebody has opened.
pub(super) struct Opened {
    pub(super) device: usize,
    /// What has happened to it.
    pub(super) events: VecDeque<(c_int, usize)>,
    /// Whatever it is told to let go of, it says that it has, and goes on.
    pub(super) has_failed: bool,
}

/// An object of this module.
pub(super) struct Object {
    context: usize,
    /// What it is.
    kind: &'static str,
    free: unsafe fn(usize),
}

impl Object {
    pub(super) fn new<T>(context: usize, _: *mut T) -> Self {
        /// # Safety
        ///
        /// It is the address of such an object that a box gave away, and that is not used any more.
        unsafe fn free<T>(object: usize) {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(object as *mut T) });
        }
        Self {
            context,
            kind: std::any::type_name::<T>(),
            free: free::<T>,
        }
    }

    /// # Safety
    ///
    /// It is at that address, and is not used any more.
    pub(super) unsafe fn free(self, at: usize) {
        COUNTERS.live.fetch_sub(1, SeqCst);
        // SAFETY: the caller's promise.
        unsafe { (self.free)(at) };
    }
}

/// How many queue pairs and registrations devices go on with that they were told to let go of.
pub fn ghosts() -> usize {
    (0..NAMES.len()).map(ghosts_of).sum()
}

/// What programs have not let go of, in words: where something is, and should not be.
pub fn left() -> String {
    with(|state| {
        let of = |(context, opened): (&usize, &Opened)| {
            let objects = state.objects.values();
            let its = objects.filter(|object| object.context == *context);
            let mut kinds: Vec<_> = its.map(|object| object.kind).collect();
            kinds.sort_unstable();
            let failed = if opened.has_failed { ", failed" } else { "" };
            format!("device {}{failed}: {kinds:?}", opened.device)
        };
        let contexts: Vec<_> = state.contexts.iter().map(of).collect();
        format!("contexts {contexts:#?}")
    })
}

/// How many a device does.
pub(crate) fn ghosts_of(device: usize) -> usize {
    with(|state| {
        let pairs = state.pairs.values();
        let pairs = pairs.filter(|pair| pair.device == device && pair.raw == 0);
        let memory = state.memory.values();
        let memory = memory.filter(|memory| memory.device == device && memory.is_ghost);
        pairs.count() + memory.count()
    })
}

impl State {
    /// A device has been opened. If it had failed it has been reset before that.
    pub(super) fn opened(&mut self, context: usize, device: usize) {
        self.reset(device);
        let opened = Opened {
            device,
            events: VecDeque::new(),
            has_failed: false,
        };
        self.contexts.insert(context, opened);
    }

    /// Queue pairs of contexts that a device has failed in carry nothing any more, and nothing is registered in them.
    fn reset(&mut self, device: usize) {
        // What it has acknowledged it has not lost: see docs/rdma.md, "Not there yet".
        // SAFETY: what is registered is mapped.
        unsafe { self.place_at(device) };
        let contexts = &self.contexts;
        // Of a context that was closed, all that is there is what the device went on with.
        let has_failed =
            |context: &usize| contexts.get(context).is_none_or(|opened| opened.has_failed);
        let memory = &mut self.memory;
        memory.retain(|_, memory| memory.device != device || !has_failed(&memory.context));
        for pair in self.pairs.values_mut() {
            if pair.device == device && has_failed(&pair.context) {
                pair.state = FAILED;
            }
        }
        self.pairs
            .retain(|_, pair| pair.raw != 0 || pair.state != FAILED);
        let contexts = self.contexts.values_mut();
        for opened in contexts.filter(|opened| opened.device == device) {
            opened.has_failed = false;
        }
    }

    /// A context is closed. Objects that are left of it.
    pub(super) fn closed(&mut self, context: usize) -> Vec<(usize, Object)> {
        let opened = self.contexts.remove(&context);
        if opened.is_some_and(|opened| opened.has_failed) {
            for pair in self
                .pairs
                .values_mut()
                .filter(|pair| pair.context == context)
            {
                (pair.raw, pair.queue) = (0, 0);
            }
            let memory = self.memory.values_mut();
            for memory in memory.filter(|memory| memory.context == context) {
                memory.is_ghost = true;
            }
        } else {
            self.pairs.retain(|_, pair| pair.context != context);
            self.memory.retain(|_, memory| memory.context != context);
        }
        let left = |_: &usize, object: &mut Object| object.context == context;
        self.objects.extract_if(left).collect()
    }

    /// Whether a device does as it is told.
    fn is_sound(&self, context: usize) -> bool {
        let opened = self.contexts.get(&context);
        opened.is_some_and(|opened| !opened.has_failed)
    }

    /// A queue pair is destroyed.
    pub(super) fn destroy(&mut self, number: u32) {
        let context = self.pairs.get(&number).map_or(0, |pair| pair.context);
        if self.is_sound(context) {
            let ended = self.pairs.remove(&number);
            if let Some(ended) = ended.filter(|_| REUSING.load(SeqCst)) {
                self.spare_numbers[ended.device].push(number);
            }
        } else if let Some(pair) = self.pairs.get_mut(&number) {
            (pair.raw, pair.queue) = (0, 0);
        }
    }

    /// Memory is deregistered.
    pub(super) fn deregister(&mut self, key: u32) {
        let context = self.memory.get(&key).map_or(0, |memory| memory.context);
        if self.is_sound(context) {
            self.memory.remove(&key);
            if REUSING.load(SeqCst) {
                self.spare_keys.push(key);
            }
        } else if let Some(memory) = self.memory.get_mut(&key) {
            memory.is_ghost = true;
        }
    }
}
