//! A backend in a process of its own: how Python starts that process, and what the process runs.

use crate::error::Error;
use crate::options::StartOptions;
use pyo3::prelude::*;

#[cfg(unix)]
pub(super) use crate::backend::remote::Launch;
/// Nothing is started on other systems.
#[cfg(not(unix))]
pub(super) type Launch = std::convert::Infallible;

/// How the process of an engine's backend is started, where it is to have one.
///
/// # Errors
/// [`Error::Option`] where there can be none.
#[cfg(unix)]
pub(super) fn launch(py: Python<'_>, options: &StartOptions) -> Result<Option<Launch>, Error> {
    use std::ffi::OsString;
    if !options.is_isolated() {
        return Ok(None);
    }
    let command = || {
        let command = py.import("llama_batch._isolated")?.getattr("command")?.call0()?;
        command.extract::<(OsString, Vec<OsString>, Vec<(OsString, OsString)>)>()
    };
    let (program, args, env) = command().map_err(|error| Error::Option(format!("isolate: {}", error.value(py))))?;
    Ok(Some(Launch { program, args, env, on_log }))
}

/// As above, for systems where no process can be given its ends.
///
/// # Errors
/// [`Error::Option`] where the options ask for one.
#[cfg(not(unix))]
pub(super) fn launch(_: Python<'_>, options: &StartOptions) -> Result<Option<Launch>, Error> {
    if options.is_isolated() { Err(Error::Option("isolate needs a Unix system".into())) } else { Ok(None) }
}

#[cfg(unix)]
fn on_log(level: u32, line: &str) {
    #[cfg(feature = "llama")]
    crate::backend::llama::take_over_log(level, line);
    #[cfg(not(feature = "llama"))]
    let _ = (level, line);
}

/// What the process of an isolated backend does, until the one that started it is gone. `work` and `alarm` are
/// descriptors of the sockets that it was given; they are this call's from then on.
#[cfg(unix)]
#[pyfunction]
pub(super) fn serve_isolated(py: Python<'_>, work: i32, alarm: i32) -> PyResult<()> {
    use crate::backend::remote::{Recipe, serve};
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    /// ggml builds graphs on the stack of who calls it.
    const STACK_BYTES: usize = 16 << 20;

    if work < 3 || alarm < 3 || work == alarm {
        return Err(pyo3::exceptions::PyValueError::new_err("two descriptors above the standard ones are needed"));
    }
    // SAFETY: the caller hands both over; a number that is no open descriptor makes every use of it fail.
    let (work, alarm) = unsafe { (OwnedFd::from_raw_fd(work), OwnedFd::from_raw_fd(alarm)) };
    #[cfg(feature = "llama")]
    crate::backend::llama::send_logs_to(write_log);
    let body = || serve(UnixStream::from(work), UnixStream::from(alarm), Recipe::make);
    let served = py.detach(|| {
        let thread = std::thread::Builder::new().name("backend".into()).stack_size(STACK_BYTES).spawn(body);
        let joined = thread.map_err(|error| error.to_string())?.join();
        joined.unwrap_or_else(|panic| Err(crate::engine::panic_text(&*panic)))
    });
    served.map_err(pyo3::exceptions::PyRuntimeError::new_err)
}

/// A line of llama.cpp's, for who started this process.
#[cfg(all(unix, feature = "llama"))]
fn write_log(line: &crate::backend::llama::Line) {
    use crate::backend::llama::Level;
    use std::io::Write;
    let level = match line.level {
        Level::Debug => b'0',
        Level::Info => b'1',
        Level::Warn => b'2',
        Level::Error => b'3',
    };
    let written = [&[crate::backend::remote::LOG_MARK, level], line.text.as_bytes(), b"\n"].concat();
    // There is nobody else to tell.
    let _ = std::io::stderr().write_all(&written);
}
