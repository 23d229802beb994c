//! Custom batch strategies: Python callables, called on a helper thread, so that the engine thread never takes the GIL
//! and never waits longer than the deadline.

use crate::core::{Grant, RequestId, StrategyView};
use crate::engine::{Callables, Reply, n_forks};
use pyo3::exceptions::PySystemExit;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_long, c_ulong};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);
/// The threads that are calling callables: in which process, and Python's numbers for them.
static BUSY: Mutex<BTreeSet<(u32, c_ulong)>> = Mutex::new(BTreeSet::new());
static REGISTRY: Mutex<BTreeMap<u64, Py<PyAny>>> = Mutex::new(BTreeMap::new());

/// Keep a callable under a number, as options are plain data.
pub(super) fn register(callable: &Bound<'_, PyAny>) -> u64 {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner).insert(id, callable.clone().unbind());
    id
}

/// Let go of a callable.
pub(super) fn unregister(id: u64) {
    let callable = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    drop(callable);
}

type Answer = Result<Vec<Grant>, String>;

/// The callables of one engine: its batch strategy, if it has one of its own, with its helper thread.
#[derive(Default)]
pub(super) struct PyCallables {
    strategist: Mutex<Option<Strategist>>,
}

impl Callables for PyCallables {
    fn strategy(&self, id: u64, view: StrategyView, deadline: Duration) -> Answer {
        let mut strategist = self.strategist.lock().unwrap_or_else(PoisonError::into_inner);
        if strategist.is_none() {
            *strategist = Some(Strategist::start(id).map_err(|e| e.to_string())?);
        }
        strategist.as_mut().map_or_else(|| Err("there is no batch strategy".into()), |s| s.grants(view, deadline))
    }

    fn sample(&self, id: u64, logits: Vec<f32>, reply: Reply) {
        super::sampler::sample(id, logits, reply);
    }
}

/// The helper thread of one callable.
struct Strategist {
    ask: SyncSender<StrategyView>,
    answers: Receiver<Answer>,
    /// A late answer is still on its way, and belongs to no question any more.
    is_late: bool,
}

impl Strategist {
    /// Start the thread. It ends when the strategist is dropped.
    fn start(id: u64) -> std::io::Result<Self> {
        let (ask, questions) = sync_channel::<StrategyView>(1);
        let (answer, answers) = sync_channel::<Answer>(1);
        let process = n_forks();
        std::thread::Builder::new().name("llama-batch-strategy".into()).spawn(move || {
            while let Ok(view) = questions.recv() {
                let Some(answered) = Python::try_attach(|py| while_busy(|| call(py, id, &view))) else { return };
                // In a child that the callable forked off, nobody asks any more.
                if n_forks() != process || answer.send(answered).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { ask, answers, is_late: false })
    }

    /// Ask the callable, within the deadline.
    fn grants(&mut self, view: StrategyView, deadline: Duration) -> Answer {
        if self.is_late {
            if self.answers.try_recv().is_err() {
                return Err("the batch strategy still works on an earlier tick".into());
            }
            self.is_late = false;
        }
        if self.ask.try_send(view).is_err() {
            return Err("the batch strategy's thread is gone".into());
        }
        self.answers.recv_timeout(deadline).unwrap_or_else(|_| {
            self.is_late = true;
            Err(format!("the batch strategy took longer than {} ms", deadline.as_millis()))
        })
    }
}

fn busy() -> MutexGuard<'static, BTreeSet<(u32, c_ulong)>> {
    BUSY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether callables are being called in this process.
fn is_busy() -> bool {
    // Where the lock cannot be had, a thread of another process may hold it for ever.
    BUSY.try_lock().is_ok_and(|busy| busy.iter().any(|(process, _)| *process == n_forks()))
}

pub(super) fn while_busy<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: it only asks for the number of this thread.
    let thread = (n_forks(), unsafe { pyo3::ffi::PyThread_get_thread_ident() });
    busy().insert(thread);
    let answer = call();
    busy().remove(&thread);
    answer
}

/// Wait until no callable is being called; False if `timeout` seconds passed first. The interpreter must not end before:
/// it would end the thread under Rust's feet.
#[pyfunction]
pub(super) fn wait_for_strategies(py: Python<'_>, timeout: f64) -> bool {
    const SLICE: Duration = Duration::from_millis(5);
    py.detach(|| {
        let mut left = Duration::try_from_secs_f64(timeout).unwrap_or_default();
        while is_busy() && !left.is_zero() {
            std::thread::sleep(SLICE);
            left = left.saturating_sub(SLICE);
        }
    });
    !is_busy()
}

/// Raise `SystemExit` in the callables that are being called: nobody waits for their answers any more.
#[pyfunction]
pub(super) fn interrupt_strategies(py: Python<'_>) {
    let exit = py.get_type::<PySystemExit>();
    for (_, thread) in busy().iter().filter(|(process, _)| *process == n_forks()) {
        // SAFETY: the interpreter is attached, and it ignores numbers of threads that it does not know.
        unsafe { pyo3::ffi::PyThreadState_SetAsyncExc(*thread as c_long, exit.as_ptr()) };
    }
}

/// A callable that is kept.
pub(super) fn callable(py: Python<'_>, id: u64) -> Option<Py<PyAny>> {
    let registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    registry.get(&id).map(|callable| callable.clone_ref(py))
}

fn call(py: Python<'_>, id: u64, view: &StrategyView) -> Answer {
    let Some(callable) = callable(py, id) else { return Err("the batch strategy is gone".into()) };
    ask(callable.bind(py), view).map_err(|e| format!("the batch strategy raised {e}"))
}

fn ask(callable: &Bound<'_, PyAny>, view: &StrategyView) -> PyResult<Vec<Grant>> {
    let py = callable.py();
    let types = py.import("llama_batch.types")?;
    let row_class = types.getattr("StrategyRow")?;
    let rows = view
        .requests
        .iter()
        .map(|r| {
            let told = (r.request.0, r.seq.0, r.decoding, r.n_remaining, r.n_computed, r.priority, r.n_left_out);
            row_class.call1(told)
        })
        .collect::<PyResult<Vec<_>>>()?;
    let seen = types.getattr("StrategyView")?.call1((
        PyTuple::new(py, rows)?,
        view.budget,
        view.chunk_size,
        view.queue_depth,
    ))?;
    let answer = PyDict::new(py);
    answer.update(callable.call1((seen,))?.cast()?)?;
    answer.iter().map(|(id, n)| Ok(Grant { request: RequestId(id.extract()?), n_rows: n.extract()? })).collect()
}
