//! Loads a model, with every reason to fail in the error.

use super::machine::{available_memory, gib};
use super::model::Model;
use super::params::model_params;
use super::rpc::{self, Servers};
use super::{devices, ffi, gguf, init, logs};
use crate::error::Error;
use crate::options::StartOptions;
use llama_cpp_sys_2 as sys;
use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

/// All files of a model that is split over several, in the order of their numbers; the one file of any other.
pub fn shards(first: &Path) -> Vec<PathBuf> {
    let name = first.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let split = name.strip_suffix(".gguf").and_then(|stem| {
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (stem, at) = rest.rsplit_once('-')?;
        (at.len() == 5 && count.len() == 5).then_some(())?;
        Some((stem.to_owned(), count.parse::<u32>().ok()?))
    });
    match split {
        Some((stem, count)) => {
            (1..=count).map(|at| first.with_file_name(format!("{stem}-{at:05}-of-{count:05}.gguf"))).collect()
        }
        None => vec![first.to_owned()],
    }
}

/// What llama.cpp's progress callback is given.
struct Progress<'a> {
    report: &'a dyn Fn(f32) -> bool,
    stopped: Cell<bool>,
}

unsafe extern "C" fn on_progress(done: f32, progress: *mut c_void) -> bool {
    // SAFETY: `load` passes a `Progress` that outlives the loading, and llama.cpp calls from the same thread.
    let progress = unsafe { &*progress.cast::<Progress<'_>>() };
    // A panic must not unwind into C++: it stops the loading.
    let go_on = catch_unwind(AssertUnwindSafe(|| (progress.report)(done))).unwrap_or(false);
    progress.stopped.set(!go_on);
    go_on
}

/// Load a model from a GGUF file, or from the first of several.
///
/// `progress` is given the part that is done, from 0 to 1; loading stops when it returns false.
///
/// # Errors
/// [`Error::ModelNotFound`]; [`Error::ModelLoad`] with the reason, llama.cpp's own where it has one; [`Error::Option`]
/// where a load option does not fit this machine; [`Error::Rpc`] where a server of `rpc_servers` is of no use.
pub fn load(options: &StartOptions, path: &Path, progress: &dyn Fn(f32) -> bool) -> Result<Arc<Model>, Error> {
    let servers = rpc::connect(options)?;
    let file_bytes = gguf::check(path)?;
    let file = path_for_c(path)?;
    init();
    let mut params = model_params(options);
    let devices = devices::placed(options, &servers)?;
    if let Some(devices) = &devices {
        params.devices = devices.as_ptr().cast_mut();
    }
    let split = tensor_split(options)?;
    if let Some(split) = &split {
        params.tensor_split = split.as_ptr();
    }
    if !options.use_mmap || options.use_direct_io {
        need_memory(path, file_bytes)?;
    }
    read(path, &file, params, servers, progress)
}

/// Load what a model's file says of itself, and its vocabulary: nothing that computes, and no device is touched.
///
/// # Errors
/// As [`load`].
pub fn load_vocabulary(path: &Path, progress: &dyn Fn(f32) -> bool) -> Result<Arc<Model>, Error> {
    gguf::check(path)?;
    let file = path_for_c(path)?;
    init();
    let no_devices: [sys::ggml_backend_dev_t; 1] = [std::ptr::null_mut()];
    let mut params = model_params(&StartOptions::default());
    params.vocab_only = true;
    params.devices = no_devices.as_ptr().cast_mut();
    read(path, &file, params, Vec::new(), progress)
}

/// Have llama.cpp read a file. What the parameters point to outlives the call, which keeps none of it.
fn read(
    path: &Path,
    file: &CString,
    mut params: sys::llama_model_params,
    servers: Servers,
    progress: &dyn Fn(f32) -> bool,
) -> Result<Arc<Model>, Error> {
    let progress = Progress { report: progress, stopped: Cell::new(false) };
    params.progress_callback = Some(on_progress);
    params.progress_callback_user_data = (&raw const progress).cast_mut().cast();
    logs::forget_errors();
    let mut model = std::ptr::null_mut();
    // SAFETY: path, devices, split and progress outlive the call, which keeps none of them.
    let done = ffi::guarded(|err, err_cap| unsafe {
        ffi::lb_model_load(file.as_ptr(), &raw const params, &raw mut model, err, err_cap)
    });
    let why = |reason: &str| Error::ModelLoad(format!("{} could not be loaded: {reason}", path.display()));
    done.map_err(|thrown| why(&thrown))?;
    if progress.stopped.get() {
        // SAFETY: a model that was made all the same is ours to free; null is freed to no effect.
        unsafe { sys::llama_model_free(model) };
        return Err(why("it was stopped"));
    }
    let model = NonNull::new(model).ok_or_else(|| why(&logs::reason("llama.cpp gave no reason")))?;
    // SAFETY: llama.cpp has just loaded it, and nobody else has the pointer.
    Ok(Arc::new(unsafe { Model::own(model, servers, params.vocab_only) }))
}

/// Without a file mapping the whole model is read into memory.
fn need_memory(path: &Path, bytes: u64) -> Result<(), Error> {
    match available_memory() {
        Some(available) if available < bytes => Err(Error::ModelLoad(format!(
            "{} has {} to be read into memory, and {} are available; use_mmap=True maps it instead",
            path.display(),
            gib(bytes),
            gib(available)
        ))),
        Some(_) | None => Ok(()),
    }
}

/// The shares of the devices, in an array of the length that llama.cpp reads.
fn tensor_split(options: &StartOptions) -> Result<Option<Vec<f32>>, Error> {
    let Some(given) = &options.tensor_split else { return Ok(None) };
    // SAFETY: returns a number.
    let n_devices = unsafe { sys::llama_max_devices() };
    if given.len() > n_devices {
        return Err(Error::Option(format!(
            "tensor_split has {} shares; llama.cpp takes {n_devices} at most",
            given.len()
        )));
    }
    let mut split = given.clone();
    split.resize(n_devices.max(given.len()), 0.0);
    Ok(Some(split))
}

/// The path as llama.cpp opens it: bytes on Unix, UTF-8 on Windows.
pub(super) fn path_for_c(path: &Path) -> Result<CString, Error> {
    #[cfg(unix)]
    let bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).to_vec();
    #[cfg(not(unix))]
    let bytes = path
        .to_str()
        .ok_or_else(|| Error::ModelNotFound(format!("{} is no valid path", path.display())))?
        .as_bytes()
        .to_vec();
    CString::new(bytes).map_err(|_| Error::ModelNotFound("a path cannot hold a NUL".into()))
}
