//! The devices there are, and those that a model is spread over.

use super::rpc::Servers;
use super::{ffi, init};
use crate::error::Error;
use crate::options::StartOptions;
use crate::rpc::{Candidate, Kind, place};
use llama_cpp_sys_2 as sys;

/// The devices of this machine, in llama.cpp's order. Those of servers are never registered, and not among them.
pub(super) fn local() -> Vec<(Candidate, sys::ggml_backend_dev_t)> {
    init();
    // SAFETY: the registry keeps devices and their names for the life of the process.
    unsafe {
        (0..sys::ggml_backend_dev_count())
            .map(|i| {
                let handle = sys::ggml_backend_dev_get(i);
                let kind = match sys::ggml_backend_dev_type(handle) {
                    sys::GGML_BACKEND_DEVICE_TYPE_CPU | sys::GGML_BACKEND_DEVICE_TYPE_ACCEL => Kind::Processor,
                    sys::GGML_BACKEND_DEVICE_TYPE_IGPU => Kind::Integrated,
                    _ => Kind::Accelerator,
                };
                let mut props = std::mem::zeroed::<sys::ggml_backend_dev_props>();
                sys::ggml_backend_dev_get_props(handle, &raw mut props);
                let name = ffi::text(props.name).unwrap_or_default();
                (Candidate { name, alias: None, kind, hardware: ffi::text(props.device_id) }, handle)
            })
            .collect()
    }
}

/// The devices that a model is spread over, ended by a null; none where llama.cpp may choose.
///
/// # Errors
/// Those of [`place`].
pub(super) fn placed(options: &StartOptions, servers: &Servers) -> Result<Option<Vec<sys::ggml_backend_dev_t>>, Error> {
    if options.devices.is_none() && servers.is_empty() {
        return Ok(None);
    }
    let of_servers = servers.iter().flat_map(|(endpoint, server)| {
        server.devices.iter().enumerate().map(move |(index, handle)| (format!("{endpoint}/{index}"), endpoint, *handle))
    });
    let remote = of_servers.enumerate().map(|(at, (alias, endpoint, handle))| {
        let name = format!("RPC{at}[{endpoint}]");
        (Candidate { name, alias: Some(alias), kind: Kind::Remote, hardware: None }, handle)
    });
    let (candidates, handles): (Vec<_>, Vec<_>) = remote.chain(local()).unzip();
    let mut list: Vec<_> = place(&candidates, options)?.into_iter().map(|at| handles[at]).collect();
    // SAFETY: returns a number.
    let most = unsafe { sys::llama_max_devices() };
    if list.len() > most {
        let count = list.len();
        return Err(Error::Option(format!("the model would be on {count} devices; llama.cpp takes {most} at most")));
    }
    list.push(std::ptr::null_mut());
    Ok(Some(list))
}
