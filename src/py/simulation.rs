//! The scheduler over a simulated backend in virtual time, as Python's `Simulation` holds it.

use super::ticket::Registered;
use super::{convert, errors, events, loaders};
use crate::backend::sim::Fault;
use crate::core::{Event, Mode, Request, RequestId, SchedulerOptions, Time};
use crate::engine::panic_text;
use crate::error::Error;
use crate::options::{Options, RequestOptions, StartOptions, StrategyOption};
use crate::sim;
use pyo3::exceptions::PyAssertionError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// A simulation. A broken invariant is an `AssertionError`, and leaves it unusable.
#[pyclass(module = "llama_batch._core")]
pub(super) struct Simulation {
    inner: sim::Simulation,
    options: StartOptions,
    last_id: u64,
}

#[pymethods]
impl Simulation {
    /// At time 0; `settings` are those of a `sim:` URI, texts by name.
    #[new]
    fn new(py: Python<'_>, options: &Bound<'_, PyDict>, settings: &Bound<'_, PyDict>) -> PyResult<Self> {
        let raise = |error: Error| errors::raise(py, &error);
        let values = convert::options(options, &StartOptions::table())?;
        let options = StartOptions::default().apply(&values).map_err(raise)?;
        if let StrategyOption::Callable(_) = options.batch_strategy {
            return Err(raise(Error::Option("batch_strategy must be a word here: a simulation calls nobody".into())));
        }
        let config = loaders::sim_config(&options, &settings.extract::<BTreeMap<_, _>>()?).map_err(raise)?;
        let inner = sim::Simulation::new(config, SchedulerOptions::from(&options));
        Ok(Self { inner, options, last_id: 0 })
    }

    /// The virtual time, in seconds.
    #[getter]
    fn now(&self) -> f64 {
        self.inner.now().since(Time(0)).as_secs_f64()
    }

    /// Submit token ids; the request's number, or the first of several answers'.
    fn submit(&mut self, py: Python<'_>, prompt: &Bound<'_, PyAny>, options: &Bound<'_, PyDict>) -> PyResult<u64> {
        let raise = |error: Error| errors::raise(py, &error);
        let tokens = match convert::prompt(prompt)?.map_err(raise)? {
            convert::PromptInput::Tokens(tokens) => tokens,
            convert::PromptInput::Text(_) => return Err(raise(Error::Prompt("a simulation reads token ids".into()))),
        };
        let values = convert::options(options, &RequestOptions::table())?;
        let options = RequestOptions::default().apply(&values).map_err(raise)?;
        if Registered::of(&options).is_some() {
            return Err(raise(Error::Option("a simulation has no rows that a sampler could draw from".into())));
        }
        let (id, n) = (RequestId(self.last_id + 1), options.n);
        self.last_id += u64::from(n);
        let (draft, _) = Request::draft(options, Mode::Generate, &self.options, id.0);
        for request in (Request { id, prompt: tokens.into(), ..draft }).siblings(n) {
            guarded(|| self.inner.submit(request))?.map_err(raise)?;
        }
        Ok(id.0)
    }

    /// Cancel a request; unknown and ended ones are left alone.
    fn cancel(&mut self, request_id: u64) -> PyResult<()> {
        guarded(|| self.inner.cancel(RequestId(request_id)))
    }

    /// Let time go by.
    fn advance(&mut self, seconds: f64) -> PyResult<()> {
        let by = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        guarded(|| self.inner.advance(by))
    }

    /// Let the next thing fail that can fail in this way.
    fn inject(&mut self, py: Python<'_>, fault: &str, code: i32) -> PyResult<()> {
        let fault = match fault {
            "kv_full" => Fault::KvFull,
            "fail" => Fault::Fail(code),
            "refuse_copy" => Fault::RefuseCopy,
            "refuse_trim" => Fault::RefuseTrim,
            "refuse_save" => Fault::RefuseSave,
            "refuse_restore" => Fault::RefuseRestore,
            "refuse_store" => Fault::RefuseStore,
            "refuse_load" => Fault::RefuseLoad,
            "refuse_open" => Fault::RefuseOpen,
            "fail_draw" => Fault::FailDraw,
            other => return Err(errors::raise(py, &Error::Option(format!("unknown fault {other:?}")))),
        };
        self.inner.inject(fault);
        Ok(())
    }

    /// Plan the next work and have it done, without telling the scheduler yet; whether there was any.
    fn begin(&mut self) -> PyResult<bool> {
        guarded(|| self.inner.begin())
    }

    /// Tell the scheduler what came of the work under way; whether there was any.
    fn complete(&mut self) -> PyResult<bool> {
        guarded(|| self.inner.complete())
    }

    /// Step until nothing is left to do or `max_steps` are over; whether nothing is left.
    fn run(&mut self, py: Python<'_>, max_steps: u64) -> PyResult<bool> {
        py.detach(|| guarded(|| self.inner.run(max_steps)))
    }

    /// What the scheduler told since the last call, as name, measurements and metadata.
    fn events<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for event in self.inner.events() {
            // Of tokens the chunks tell.
            if matches!(event, Event::Token { .. }) {
                continue;
            }
            let (measured, meta) = (PyDict::new(py), PyDict::new(py));
            let name = events::describe(&event, &measured, &meta)?;
            list.append((name, measured, meta))?;
        }
        Ok(list)
    }

    /// Figures of this moment, by the names of `llama_batch.Stats`.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        super::stats_dict(py, &self.inner.stats())
    }

    /// When something times out next, in seconds.
    #[getter]
    fn next_timeout(&self) -> Option<f64> {
        self.inner.next_timeout().map(|at| at.since(Time(0)).as_secs_f64())
    }

    /// All invariants.
    fn check(&self) -> PyResult<()> {
        guarded(|| self.inner.check())
    }
}

/// Do something that asserts: a broken invariant is an exception that tests and users can catch.
fn guarded<T>(work: impl FnOnce() -> T) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| PyAssertionError::new_err(panic_text(&*panic)))
}
