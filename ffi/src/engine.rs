//! Engines: starting and stopping them.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use polyrail::{Config, Engine, EngineError, Hooks, Sources};

use crate::call::{Answerer, polyrail_answer};
use crate::failure::{Failure, guard, polyrail_error};
use crate::handle::{Kind, Table};
use crate::segment;
use crate::sized::{self, Structure};
use crate::text;
use crate::words::{
    POLYRAIL_ERROR_CONFIG, POLYRAIL_ERROR_NOT_FOUND, POLYRAIL_ERROR_SYSTEM, choose,
};

/// An engine.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_engine {
    /// Its name; 0: none. Means nothing to programs.
    pub bits: u64,
}

/// A key of the configuration and its value, as texts.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_parameter {
    /// The key as a path, such as `transports/tcp/enable`.
    pub key: *const c_char,
    /// Its value as a variable of the environment would have it: words as they are, lists with commas.
    pub value: *const c_char,
}

/// What an engine is started with. Later sources win over earlier ones, in the order of the fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct polyrail_options {
    /// `sizeof(polyrail_options)`.
    pub size: u32,
    /// 1: variables of the environment (`POLYRAIL_<KEY>`) count; 0: they do not.
    pub environment: u32,
    /// A file in JSON, or null.
    pub config_file: *const c_char,
    /// A configuration in JSON, or null: what the program itself wants.
    pub config: *const c_char,
    /// A folder for a flight recording, or null: see `polyrail sim replay`.
    pub recording: *const c_char,
    /// Answers calls of peers' programs, or null: they are refused.
    pub answer: polyrail_answer,
    /// What `answer` is called with.
    pub context: *mut c_void,
    /// 1: peers wait until `polyrail_engine_let_in`, for who wants to offer segments first; 0: they are let in at once.
    pub lets_in_later: u32,
    /// 0.
    pub reserved: u32,
    /// The first of `parameter_count` keys with values, or null: of two with one key the later wins.
    pub parameters: *const polyrail_parameter,
    /// How many parameters there are.
    pub parameter_count: usize,
}

// SAFETY: `repr(C)`, begins with its size; a null function is none. That another one is a function is the program's
// promise, as for every pointer.
unsafe impl Structure for polyrail_options {
    const DEFAULT: Self = Self {
        size: 0,
        environment: 0,
        config_file: std::ptr::null(),
        config: std::ptr::null(),
        recording: std::ptr::null(),
        answer: None,
        context: std::ptr::null_mut(),
        lets_in_later: 0,
        reserved: 0,
        parameters: std::ptr::null(),
        parameter_count: 0,
    };
}

pub(crate) static ENGINES: Table<Engine> = Table::new(Kind::Engine);

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let code = match error.is_usage() {
            true => POLYRAIL_ERROR_CONFIG,
            false => POLYRAIL_ERROR_SYSTEM,
        };
        Self::new(code, error.to_string())
    }
}

pub(crate) fn get(engine: polyrail_engine) -> Result<Engine, Failure> {
    ENGINES.get(engine.bits)
}

/// The parameters of a program.
///
/// # Safety
///
/// The contract of the crate.
unsafe fn pairs<'a>(options: &polyrail_options) -> Result<Vec<(&'a str, &'a str)>, Failure> {
    let (first, count) = (options.parameters, options.parameter_count);
    // SAFETY: the caller's promise.
    let parameters = unsafe { text::slice("parameters", first, count) }?;
    let pair = |one: &polyrail_parameter| {
        // SAFETY: the caller's promise.
        let key = unsafe { text::required("the key of a parameter", one.key) }?;
        // SAFETY: the caller's promise.
        let value = unsafe { text::required(key, one.value) }?;
        Ok((key, value))
    };
    parameters.iter().map(pair).collect()
}

/// What the options say, with the order of sources that they say.
///
/// # Safety
///
/// The contract of the crate.
unsafe fn load(options: &polyrail_options) -> Result<(Config, Hooks), Failure> {
    let mut sources = Sources::new();
    // SAFETY: the caller's promise.
    if let Some(path) = unsafe { text::optional("config_file", options.config_file) }? {
        sources = sources.file(path);
    }
    if choose("environment", options.environment, &[(0, false), (1, true)])? {
        sources = sources.environment();
    }
    // SAFETY: the caller's promise.
    if let Some(json) = unsafe { text::optional("config", options.config) }? {
        sources = sources.json("config", json);
    }
    // SAFETY: the caller's promise.
    let pairs = unsafe { pairs(options) }?;
    if !pairs.is_empty() {
        sources = sources.pairs("parameters", pairs);
    }
    let loaded = sources.load();
    let loaded = loaded.map_err(|error| Failure::new(POLYRAIL_ERROR_CONFIG, error.to_string()))?;
    for note in &loaded.notes {
        ::log::warn!("{note}");
    }
    // SAFETY: the caller's promise.
    let recording = unsafe { text::optional("recording", options.recording) }?;
    let hooks = Hooks {
        recording: recording.map(Into::into),
        calls: options
            .answer
            .map(|answer| Arc::new(Answerer::new(answer, options.context)) as _),
        lets_in_later: choose(
            "lets_in_later",
            options.lets_in_later,
            &[(0, false), (1, true)],
        )?,
        ..Hooks::default()
    };
    Ok((loaded.config, hooks))
}

/// Starts an engine. `options` may be null: every key has its default then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_start(
    options: *const polyrail_options,
    engine: *mut polyrail_engine,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        // SAFETY: the contract of the crate.
        let engine = unsafe { text::out("engine", engine) }?;
        // SAFETY: the contract of the crate.
        let options = unsafe { sized::read_or_default(options) }?;
        // SAFETY: the contract of the crate.
        let (config, hooks) = unsafe { load(&options) }?;
        let started = Engine::with_hooks(config, hooks)?;
        engine.bits = ENGINES.add(started)?;
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Lets peers in, where `lets_in_later` of the options has kept them out. Again, or without that: does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_let_in(
    engine: polyrail_engine,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        get(engine)?.let_in();
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Ends everything within a bound: what has not ended is reported `POLYRAIL_STATUS_SHUT_DOWN`, or
/// `POLYRAIL_STATUS_INDETERMINATE` where it cannot be ended for sure. What is known of batches stays known. Again: does
/// nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_stop(
    engine: polyrail_engine,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        get(engine)?.shutdown();
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Stops an engine, frees it and all segments of it: their handles are errors from now on. When it has returned, nothing
/// of the engine touches registered memory any more. Handles of batches, queues and deliveries stay good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_free(
    engine: polyrail_engine,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let taken = ENGINES.take(engine.bits)?;
        taken.shutdown();
        segment::free_all_of(engine, &taken);
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Where it listens, as `HOST:PORT` with a zero at the end. `length`, unless null, takes the bytes without that zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_listening(
    engine: polyrail_engine,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let Some(address) = get(engine)?.listening() else {
            let text = "the engine does not listen: say where with the key \"listen\"";
            return Err(Failure::new(POLYRAIL_ERROR_NOT_FOUND, text));
        };
        let mut text = address.to_string();
        text.push('\0');
        // SAFETY: the contract of the crate.
        let filled = unsafe { text::fill(text.as_bytes(), buffer.cast(), capacity, length) };
        if !length.is_null() {
            // SAFETY: the contract of the crate.
            unsafe { length.write(text.len() - 1) };
        }
        filled
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}

/// Takes the operator's word that the engine at `HOST:PORT` is gone and will write no more: requests to it end as
/// `POLYRAIL_STATUS_PEER_LOST`. Only right if it is true. `was_known`, unless null, takes whether there was a session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_declare_lost(
    engine: polyrail_engine,
    address: *const c_char,
    was_known: *mut bool,
    error: *mut polyrail_error,
) -> i32 {
    let body = || {
        let engine = get(engine)?;
        // SAFETY: the contract of the crate.
        let address = unsafe { text::required("address", address) }?;
        let known = engine.declare_lost(address)?;
        if !was_known.is_null() {
            // SAFETY: the contract of the crate.
            unsafe { was_known.write(known) };
        }
        Ok(())
    };
    // SAFETY: the contract of the crate.
    unsafe { guard(error, body) }
}
