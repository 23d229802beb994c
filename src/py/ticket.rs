//! One request, as Python's `Generation` holds it.

use super::errors;
use super::hub::{Hub, wait_in_slices};
use crate::core::{FinishReason, Finished, Token};
use crate::engine::{self, Interest, Item};
use crate::error::Error;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::time::Duration;

/// A submitted request. Dropping it cancels the request.
#[pyclass(frozen, module = "llama_batch._core")]
pub(super) struct Ticket {
    inner: engine::Ticket,
}

impl Ticket {
    pub(super) const fn new(inner: engine::Ticket) -> Self {
        Self { inner }
    }

    fn is_over(&self) -> bool {
        self.inner.mailbox().end().is_some()
    }
}

/// The fields of a completion that say how a request went.
fn completion<'py>(
    py: Python<'py>,
    ticket: &engine::Ticket,
    finished: &Finished,
    reason: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let types = py.import("llama_batch.types")?;
    let (text, tokens) = ticket.mailbox().so_far();
    let usage = &finished.usage;
    let usage =
        types.getattr("Usage")?.call1((usage.prompt_tokens, usage.generated_tokens, usage.prefix_cache_tokens))?;
    let t = &finished.timings;
    let [queue, ttft, total, prefill, decode] = [t.queue, t.ttft, t.total, t.prefill, t.decode].map(crate::core::ms);
    let timings = types.getattr("Timings")?.call1((queue, ttft, total, prefill, decode))?;
    let fields = PyDict::new(py);
    fields.set_item("request_id", finished.request.0)?;
    fields.set_item("text", text)?;
    fields.set_item("token_ids", PyTuple::new(py, tokens)?)?;
    fields.set_item("finish_reason", reason)?;
    fields.set_item("stop_reason", py.None())?;
    fields.set_item("usage", usage)?;
    fields.set_item("timings", timings)?;
    fields.set_item("seed", ticket.seed())?;
    types.getattr("Completion")?.call((), Some(&fields))
}

#[pymethods]
impl Ticket {
    /// The request's number.
    #[getter]
    fn id(&self) -> u64 {
        self.inner.id().0
    }

    /// What came since the last call: text and its tokens; None if nothing did, False if nothing more will.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mailbox = self.inner.mailbox();
        // The end can be taken once, and may come between two looks: look twice before saying that it came.
        let mut was_over = false;
        loop {
            match mailbox.take() {
                Some(Item::Chunk(chunk)) => {
                    let tokens = PyTuple::new(py, chunk.tokens)?;
                    return Ok((chunk.text, tokens).into_pyobject(py)?.into_any());
                }
                Some(Item::End(_)) => return Ok(false.into_pyobject(py)?.to_owned().into_any()),
                None if was_over => return Ok(false.into_pyobject(py)?.to_owned().into_any()),
                None if self.is_over() => was_over = true,
                None => return Ok(py.None().into_bound(py)),
            }
        }
    }

    /// Whether the request has ended.
    fn done(&self) -> bool {
        self.is_over()
    }

    /// Wait until there is something to take; False if `timeout` seconds pass first.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        wait_in_slices(py, timeout, |slice: Duration| self.inner.mailbox().wait(Some(slice)))
    }

    /// Wait for the end; False if `timeout` seconds pass first.
    #[pyo3(signature = (timeout=None))]
    fn wait_end(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        wait_in_slices(py, timeout, |slice: Duration| self.inner.mailbox().wait_end(Some(slice)).is_some())
    }

    /// Have a key marked at a hub whenever something comes (or only at the end). True if something is there already.
    fn watch(&self, hub: &Hub, key: u64, end_only: bool) -> bool {
        let interest = if end_only { Interest::End } else { Interest::Items };
        self.inner.mailbox().subscribe(interest, hub.signal(key))
    }

    /// The completion, or the exception that the request ended with; None while it runs.
    fn outcome<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(finished) = self.inner.mailbox().end() else { return Ok(None) };
        match &finished.end {
            Ok(reason) => completion(py, &self.inner, &finished, reason.word()).map(Some),
            Err(error) => {
                let partial = matches!(error, Error::RequestTimeout { .. })
                    .then(|| completion(py, &self.inner, &finished, "timeout"))
                    .transpose()?;
                errors::to_exception(py, error, Some(finished.request.0), partial).map(Some)
            }
        }
    }

    /// Whether the request was cancelled.
    fn cancelled(&self) -> bool {
        self.inner.mailbox().end().is_some_and(|finished| finished.end == Ok(FinishReason::Cancelled))
    }

    /// Cancel the request; one that has ended stays as it is.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.inner.cancel());
    }

    /// Text and tokens so far, taken or not.
    fn so_far(&self) -> (String, Vec<Token>) {
        self.inner.mailbox().so_far()
    }
}
