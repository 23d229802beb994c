//! How an event loop hears that something is there for it: one wake-up for each tick, without the GIL.
//!
//! The engine thread marks keys and writes one byte to a socket that the loop watches. Loops that watch no sockets
//! (Windows' proactor) are woken by a helper thread that waits in [`Hub::wait`].

use crate::engine::{Signal, Waker};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[cfg(unix)]
use std::os::{fd::AsRawFd, unix::net::UnixStream};

/// What the engine's threads hold of a hub. Owns no Python object.
struct Bell {
    state: Mutex<BellState>,
    rung: Condvar,
}

#[derive(Default)]
struct BellState {
    marked: BTreeSet<u64>,
    rings: bool,
    closed: bool,
    /// The far end is watched by the loop. Gone once the hub is closed, though requests may still know the bell.
    #[cfg(unix)]
    line: Option<(UnixStream, UnixStream)>,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, BellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waker for Bell {
    fn mark(&self, key: u64) {
        self.lock().marked.insert(key);
    }

    fn wake(&self) {
        let mut state = self.lock();
        if state.rings || state.closed {
            return;
        }
        state.rings = true;
        #[cfg(unix)]
        if let Some((_, near)) = &state.line {
            // A full socket rings already; a closed one has nobody left to wake.
            let _ = std::io::Write::write(&mut &*near, &[1]);
        }
        drop(state);
        self.rung.notify_all();
    }

    fn is_gone(&self) -> bool {
        self.lock().closed
    }
}

/// One event loop's bell, and the futures of those who wait for it.
#[pyclass(frozen, module = "llama_batch._core")]
pub(super) struct Hub {
    bell: Arc<Bell>,
    waiters: Mutex<BTreeMap<u64, Vec<Py<PyAny>>>>,
}

impl Hub {
    /// The signal that marks a key of this hub.
    pub(super) fn signal(&self, key: u64) -> Signal {
        Signal::new(Arc::clone(&self.bell) as Arc<dyn Waker>, key)
    }

    fn waiters(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<Py<PyAny>>>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Hub {
    /// A hub; `socket` says whether the loop can watch one.
    #[new]
    fn new(socket: bool) -> PyResult<Self> {
        #[cfg(unix)]
        let line = if socket {
            let (far, near) = UnixStream::pair()?;
            far.set_nonblocking(true)?;
            near.set_nonblocking(true)?;
            Some((far, near))
        } else {
            None
        };
        #[cfg(not(unix))]
        let _ = socket;
        let state = BellState {
            #[cfg(unix)]
            line,
            ..BellState::default()
        };
        let bell = Arc::new(Bell { state: Mutex::new(state), rung: Condvar::new() });
        Ok(Self { bell, waiters: Mutex::default() })
    }

    /// The file descriptor to watch; None where there is none.
    fn fileno(&self) -> Option<i32> {
        #[cfg(unix)]
        return self.bell.lock().line.as_ref().map(|(far, _)| far.as_raw_fd());
        #[cfg(not(unix))]
        None
    }

    /// Have a future of the hub's loop done when a key is marked.
    pub(super) fn add(&self, key: u64, future: Py<PyAny>) {
        self.waiters().entry(key).or_default().push(future);
    }

    /// Take such a future back.
    pub(super) fn remove(&self, key: u64, future: &Bound<'_, PyAny>) {
        let mut waiters = self.waiters();
        let Some(futures) = waiters.get_mut(&key) else { return };
        let place = futures.iter().position(|f| f.is(future));
        // Dropped after the lock is: dropping a Python object can run anything.
        let removed = place.map(|place| futures.swap_remove(place));
        if futures.is_empty() {
            waiters.remove(&key);
        }
        drop(waiters);
        drop(removed);
    }

    /// Mark a key, as an engine does.
    fn mark(&self, key: u64) {
        self.bell.mark(key);
        self.bell.wake();
    }

    /// Do what was rung for: the futures of all marked keys are done. The loop calls it.
    fn ring(&self, py: Python<'_>) -> PyResult<()> {
        for key in self.drain() {
            let futures = self.waiters().remove(&key);
            for future in futures.into_iter().flatten() {
                let future = future.bind(py);
                if let Err(error) = future.call_method1(intern!(py, "set_result"), (py.None(),))
                    && !future.call_method0(intern!(py, "done"))?.is_truthy()?
                {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The keys that were marked since the last call.
    fn drain(&self) -> Vec<u64> {
        let mut state = self.bell.lock();
        #[cfg(unix)]
        if let Some((far, _)) = &state.line {
            let mut bytes = [0; 64];
            while matches!(std::io::Read::read(&mut &*far, &mut bytes), Ok(n) if n == bytes.len()) {}
        }
        state.rings = false;
        std::mem::take(&mut state.marked).into_iter().collect()
    }

    /// Wait until it rings; false if `timeout` seconds pass first, or once it is closed. Looks at no signals.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> bool {
        py.detach(|| {
            let wait = |state: &mut BellState| !state.rings && !state.closed;
            let (state, rung) = (self.bell.lock(), &self.bell.rung);
            let state = match duration(timeout) {
                Some(limit) => rung.wait_timeout_while(state, limit, wait).unwrap_or_else(PoisonError::into_inner).0,
                None => rung.wait_while(state, wait).unwrap_or_else(PoisonError::into_inner),
            };
            state.rings && !state.closed
        })
    }

    /// Ring it no more, and forget who waits.
    fn close(&self) {
        let mut state = self.bell.lock();
        state.closed = true;
        #[cfg(unix)]
        drop(state.line.take());
        drop(state);
        self.bell.rung.notify_all();
        let waiters = std::mem::take(&mut *self.waiters());
        drop(waiters);
    }

    /// A loop that was closed under its tasks is part of a cycle through the futures of those.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Who holds the lock now is no garbage.
        let Ok(waiters) = self.waiters.try_lock() else { return Ok(()) };
        waiters.values().flatten().try_for_each(|future| visit.call(future))
    }

    fn __clear__(&self) {
        let waiters = std::mem::take(&mut *self.waiters());
        drop(waiters);
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let mut state = self.bell.lock();
        state.closed = true;
        #[cfg(unix)]
        drop(state.line.take());
    }
}

/// A key that nobody else has.
#[pyfunction]
pub(super) fn new_key() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Seconds from Python as a duration; none means for ever.
pub(super) fn duration(seconds: Option<f64>) -> Option<Duration> {
    seconds.map(|s| Duration::try_from_secs_f64(s.max(0.0)).unwrap_or(Duration::MAX))
}

/// The longest wait without a look at signals, so that Ctrl-C works. Only the main thread gets them; the others may
/// sleep on.
const SLICE: Duration = Duration::from_millis(50);
const LONG_SLICE: Duration = Duration::from_secs(3600);

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import(intern!(py, "threading"))?;
    let main = threading.call_method0(intern!(py, "main_thread"))?.getattr(intern!(py, "ident"))?;
    main.eq(threading.call_method0(intern!(py, "get_ident"))?)
}

/// Wait in slices: `wait` gets how long, and says whether it is over. False if `timeout` (in seconds) runs out first.
pub(super) fn wait_in_slices(
    py: Python<'_>,
    timeout: Option<f64>,
    wait: impl Fn(Duration) -> bool + Send + Sync,
) -> PyResult<bool> {
    let mut left = duration(timeout);
    let longest = if is_main_thread(py)? { SLICE } else { LONG_SLICE };
    loop {
        let slice = left.map_or(longest, |left| left.min(longest));
        if py.detach(|| wait(slice)) {
            return Ok(true);
        }
        py.check_signals()?;
        if let Some(rest) = left.as_mut() {
            *rest = rest.saturating_sub(slice);
            if rest.is_zero() {
                return Ok(false);
            }
        }
    }
}
