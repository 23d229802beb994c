//! llama.cpp's RPC, for `llama_batch.rpc`: what `crate::rpc` and the backend do, and being a worker's child process.

use super::errors;
use crate::error::Error;
use crate::options::Endpoint;
use crate::rpc;
use pyo3::prelude::*;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[cfg(feature = "llama")]
use crate::backend::llama;

/// Name, description, free and total memory in bytes.
type Device = (String, String, u64, u64);

fn endpoint(text: &str) -> Result<Endpoint, Error> {
    Endpoint::parse(text).map_err(|why| Error::Option(format!("endpoint {why}")))
}

/// Whether RPC was built in.
#[pyfunction]
pub(super) fn rpc_supported() -> bool {
    #[cfg(feature = "llama")]
    return llama::supports_rpc();
    #[cfg(not(feature = "llama"))]
    false
}

/// The address of an endpoint, as text.
#[pyfunction]
pub(super) fn rpc_resolve(py: Python<'_>, text: &str) -> PyResult<(String, u16)> {
    let found = py.detach(|| endpoint(text).and_then(|endpoint| rpc::resolve(&endpoint)));
    found.map(|address| (address.ip().to_string(), address.port())).map_err(|e| errors::raise(py, &e))
}

/// A server's version of the protocol, and the memory of its devices: free and total, in bytes.
#[pyfunction]
pub(super) fn rpc_prove(py: Python<'_>, text: &str, timeout: f64) -> PyResult<(String, Vec<(u64, u64)>)> {
    let limit = Duration::try_from_secs_f64(timeout).ok().filter(|limit| !limit.is_zero());
    let prove = || {
        let limit = limit.ok_or_else(|| Error::Option(format!("timeout must be above 0 seconds, not {timeout}")))?;
        let endpoint = endpoint(text)?;
        rpc::prove(&endpoint, rpc::resolve(&endpoint)?, limit)
    };
    let server = py.detach(prove).map_err(|e| errors::raise(py, &e))?;
    let [major, minor, patch] = server.version;
    let devices = server.devices.iter().map(|memory| (memory.free, memory.total)).collect();
    Ok((format!("{major}.{minor}.{patch}"), devices))
}

/// Whether a file of a worker's cache holds what its name says.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "pyo3 makes the path")]
pub(super) fn rpc_is_whole(py: Python<'_>, path: PathBuf) -> PyResult<bool> {
    Ok(py.detach(|| rpc::is_whole(&path))?)
}

/// Serve devices of this machine until the process ends. `tell` is called with them first.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "pyo3 makes path and list")]
pub(super) fn rpc_serve(
    py: Python<'_>,
    text: &str,
    cache: Option<PathBuf>,
    n_threads: u32,
    devices: Vec<String>,
    tell: Py<PyAny>,
) -> PyResult<()> {
    let serve = || {
        let endpoint = endpoint(text)?;
        serve(&endpoint, cache.as_deref(), n_threads, &devices, |served| {
            Python::attach(|py| match tell.call1(py, (served,)) {
                Ok(_) => {}
                Err(error) => error.write_unraisable(py, None),
            });
        })
    };
    py.detach(serve).map_err(|e| errors::raise(py, &e))
}

#[cfg(feature = "llama")]
fn serve(
    endpoint: &Endpoint,
    cache: Option<&Path>,
    n_threads: u32,
    devices: &[String],
    tell: impl FnOnce(Vec<Device>),
) -> Result<(), Error> {
    let tell = |served: &[llama::Served]| {
        let device = |d: &llama::Served| (d.name.clone(), d.description.clone(), d.memory.free, d.memory.total);
        tell(served.iter().map(device).collect());
    };
    llama::serve(endpoint, cache, n_threads, devices, tell).map(|never| match never {})
}

#[cfg(not(feature = "llama"))]
fn serve(
    endpoint: &Endpoint,
    _cache: Option<&Path>,
    _n_threads: u32,
    _devices: &[String],
    _tell: impl FnOnce(Vec<Device>),
) -> Result<(), Error> {
    Err(rpc::failure(crate::error::RpcReason::Unsupported, endpoint, "this build has no llama.cpp"))
}

/// Have this process killed when its parent ends; systems other than Linux need what else there is.
#[pyfunction]
pub(super) fn die_with_parent() {
    #[cfg(target_os = "linux")]
    // SAFETY: only sets what this process is sent.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
}
