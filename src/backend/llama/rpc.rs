//! llama.cpp's RPC: servers whose devices a model may be spread over, and being such a server.
//!
//! ggml ends the process where a server cannot be reached, speaks another protocol, or goes away. So each is proved
//! over a socket of our own first. What it has is never put into ggml's registry: no model gets it that did not ask.

use super::{ffi, init};
use crate::error::{Error, RpcReason};
use crate::options::{Endpoint, StartOptions};
use crate::rpc;
use llama_cpp_sys_2 as sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::FromRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

type AddServer = unsafe extern "C" fn(*const c_char) -> sys::ggml_backend_reg_t;
type StartServer = unsafe extern "C" fn(*const c_char, *const c_char, usize, usize, *mut sys::ggml_backend_dev_t);

/// Whether this llama.cpp was built with RPC.
pub fn supported() -> bool {
    init();
    // SAFETY: only looks into the registry.
    unsafe { sys::llama_supports_rpc() }
}

/// A function of the RPC backend, by its name.
fn function(name: &std::ffi::CStr) -> Option<NonNull<c_void>> {
    init();
    // SAFETY: the registry lasts as long as the process; both names are NUL-terminated.
    unsafe {
        let registry = NonNull::new(sys::ggml_backend_reg_by_name(c"RPC".as_ptr()))?;
        NonNull::new(sys::ggml_backend_reg_get_proc_address(registry.as_ptr(), name.as_ptr()))
    }
}

fn unsupported(endpoint: &Endpoint) -> Error {
    rpc::failure(RpcReason::Unsupported, endpoint, "this build of llama.cpp has no RPC (GGML_RPC=ON builds it in)")
}

/// A server that a model of this process uses. As long as it lives, so does ggml's connection to it.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) devices: Vec<sys::ggml_backend_dev_t>,
    backend: NonNull<sys::ggml_backend>,
    /// ggml's own socket, so that its end can be seen; none where it was not found.
    line: Option<TcpStream>,
}

/// The servers of a model, under the names that its options have for them.
pub(super) type Servers = Vec<(Endpoint, Arc<Connection>)>;

/// A server that has closed its connection, as an error. For between two works: nothing but its end can come then.
pub(super) fn gone(servers: &Servers) -> Option<Error> {
    let is_over = |line: &TcpStream| {
        let now = Timespec::default();
        poll(&mut [PollFd::new(line, PollFlags::IN)], Some(&now)).is_ok_and(|n| n > 0)
    };
    let (endpoint, _) = servers.iter().find(|(_, server)| server.line.as_ref().is_some_and(is_over))?;
    Some(rpc::failure(RpcReason::Lost, endpoint, "it closed the connection: its process ended, or cut it off"))
}

/// Another handle to the socket of this process that is connected with a server: ggml gives none out.
fn line_to(address: SocketAddrV4) -> Option<TcpStream> {
    let names = std::fs::read_dir("/dev/fd").ok()?.flatten().map(|entry| entry.file_name());
    let numbers: Vec<i32> = names.filter_map(|name| name.to_str()?.parse().ok()).collect();
    numbers.into_iter().find_map(|number| {
        // SAFETY: it is only asked who is at its other end, which fails where it is no socket or closed, and is left open.
        let stream = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(number) });
        let is_its = stream.peer_addr().is_ok_and(|peer| peer == SocketAddr::V4(address));
        is_its.then(|| stream.try_clone().ok()).flatten()
    })
}

// SAFETY: ggml keeps devices for the life of the process, and what is sent to a server goes through a queue with a lock.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: made by `open`, and freed once.
        unsafe { sys::ggml_backend_free(self.backend.as_ptr()) };
    }
}

/// The connections of this process, by address: a server has one client, which models share.
static OPEN: Mutex<BTreeMap<SocketAddrV4, Weak<Connection>>> = Mutex::new(BTreeMap::new());

/// Prove the servers of the options, all of them before ggml connects to the first, and connect. Each under the name that
/// the options have for it: a connection may have been made under another.
///
/// # Errors
/// [`Error::Rpc`] names the server that is of no use, and why; [`Error::Option`] where two names are one server's.
pub(super) fn connect(options: &StartOptions) -> Result<Servers, Error> {
    let endpoints = options.rpc_servers.iter().flat_map(|servers| &servers.0);
    let limit = Duration::from_secs_f64(options.rpc_timeout);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.retain(|_, connection| connection.strong_count() > 0);
    let mut found: Vec<(&Endpoint, _, SocketAddrV4, _, _)> = Vec::new();
    for endpoint in endpoints {
        let add = function(c"ggml_backend_rpc_add_server").ok_or_else(|| unsupported(endpoint))?;
        let address = rpc::resolve(endpoint)?;
        if let Some((other, ..)) = found.iter().find(|(_, _, known, _, _)| *known == address) {
            return Err(Error::Option(format!("rpc_servers: {other} and {endpoint} are one server, at {address}")));
        }
        let known = open.get(&address).and_then(Weak::upgrade);
        let server = known.is_none().then(|| rpc::prove(endpoint, address, limit)).transpose()?;
        found.push((endpoint, add, address, known, server.map_or(0, |server| server.devices.len())));
    }
    found
        .into_iter()
        .map(|(endpoint, add, address, known, n_devices)| {
            let connection = known.map_or_else(|| self::open(endpoint, add, address, n_devices).map(Arc::new), Ok)?;
            open.insert(address, Arc::downgrade(&connection));
            Ok((endpoint.clone(), connection))
        })
        .collect()
}

/// Have ggml connect to a server that was proved to have so many devices.
fn open(
    endpoint: &Endpoint,
    add: NonNull<c_void>,
    address: SocketAddrV4,
    n_devices: usize,
) -> Result<Connection, Error> {
    let failed = |reason, what: &str| rpc::failure(reason, endpoint, what);
    // The address, so that ggml meets whom we met, under whatever name.
    let name = CString::new(address.to_string()).expect("an address has no NUL");
    // SAFETY: the function has this type (`ggml-rpc.h`), copies the name, and returns a registry that lasts.
    let (devices, backend) = unsafe {
        let add = std::mem::transmute::<*mut c_void, AddServer>(add.as_ptr());
        let registry = NonNull::new(add(name.as_ptr()));
        let registry = registry.ok_or_else(|| failed(RpcReason::NoDevices, "it has no devices"))?.as_ptr();
        let count = sys::ggml_backend_reg_dev_count(registry);
        if count > n_devices {
            let what = format!("it had {count} devices when this process met it first, and has {n_devices}");
            return Err(failed(RpcReason::NoDevices, &(what + "; start a new process")));
        }
        let devices: Vec<_> = (0..count).map(|at| sys::ggml_backend_reg_dev_get(registry, at)).collect();
        (devices.clone(), NonNull::new(sys::ggml_backend_dev_init(devices[0], std::ptr::null())))
    };
    let backend = backend.ok_or_else(|| failed(RpcReason::Unreachable, "ggml could not connect"))?;
    Ok(Connection { devices, backend, line: line_to(address) })
}

/// What a worker serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The device's name.
    pub name: String,
    /// The hardware's name.
    pub description: String,
    /// Its memory.
    pub memory: rpc::Memory,
}

/// The devices that a worker serves: those that are named, or else all but the processor, or else the processor.
///
/// # Errors
/// [`Error::Rpc`]: `unknown_device`, with those there are, or `no_devices`.
fn chosen(endpoint: &Endpoint, names: &[String]) -> Result<Vec<sys::ggml_backend_dev_t>, Error> {
    let known = super::devices::local();
    let mut list = Vec::new();
    for name in names {
        let Some((_, handle)) = known.iter().find(|(device, _)| device.name.eq_ignore_ascii_case(name)) else {
            let there: Vec<&str> = known.iter().map(|(device, _)| device.name.as_str()).collect();
            let what = format!("there is no device {name:?} here; there are {}", there.join(", "));
            return Err(rpc::failure(RpcReason::UnknownDevice, endpoint, &what));
        };
        if !list.contains(handle) {
            list.push(*handle);
        }
    }
    if names.is_empty() {
        let of = |is_processor| known.iter().filter(move |(d, _)| (d.kind == rpc::Kind::Processor) == is_processor);
        list.extend(of(false).map(|(_, handle)| *handle));
        if list.is_empty() {
            list.extend(of(true).take(1).map(|(_, handle)| *handle));
        }
    }
    if list.is_empty() {
        return Err(rpc::failure(RpcReason::NoDevices, endpoint, "there is no device here to serve"));
    }
    Ok(list)
}

/// Serve devices of this machine until the process ends. `tell` is called once, with what is served, before.
///
/// What llama.cpp says goes to standard error from then on: the process is there for this alone.
///
/// # Errors
/// [`Error::Rpc`] where it cannot serve: `rpc_unsupported`, `unknown_device`, `no_devices`, `bind`.
pub fn serve(
    endpoint: &Endpoint,
    cache: Option<&Path>,
    n_threads: u32,
    names: &[String],
    tell: impl FnOnce(&[Served]),
) -> Result<std::convert::Infallible, Error> {
    let start = function(c"ggml_backend_rpc_start_server").ok_or_else(|| unsupported(endpoint))?;
    let mut devices = chosen(endpoint, names)?;
    let cache = cache.map(super::load::path_for_c).transpose()?;
    let name = CString::new(endpoint.to_string()).expect("an endpoint has no NUL");
    // SAFETY: devices last as long as the process; a null callback gives ggml its own, which writes to standard error.
    let served: Vec<Served> = unsafe {
        sys::ggml_log_set(None, std::ptr::null_mut());
        devices.iter().map(|device| describe(*device)).collect()
    };
    tell(&served);
    let cache = cache.as_ref().map_or(std::ptr::null(), |path| path.as_ptr());
    // SAFETY: the function has this type (`ggml-rpc.h`); its arguments outlive the call, which returns on failure only.
    unsafe {
        let start = std::mem::transmute::<*mut c_void, StartServer>(start.as_ptr());
        start(name.as_ptr(), cache, n_threads as usize, devices.len(), devices.as_mut_ptr());
    }
    let why = std::io::Error::last_os_error();
    Err(rpc::failure(RpcReason::Bind, endpoint, &format!("the server ended; the system's last word was: {why}")))
}

/// # Safety
/// The device is one of ggml's.
unsafe fn describe(device: sys::ggml_backend_dev_t) -> Served {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the caller says that it is a device, and its texts last as long.
    unsafe {
        sys::ggml_backend_dev_memory(device, &raw mut free, &raw mut total);
        Served {
            name: ffi::text(sys::ggml_backend_dev_name(device)).unwrap_or_default(),
            description: ffi::text(sys::ggml_backend_dev_description(device)).unwrap_or_default(),
            memory: rpc::Memory { free: free as u64, total: total as u64 },
        }
    }
}
