//! One request, as Python's `Generation` holds it.

use super::chat::Syntax;
use super::hub::{Hub, new_key, wait_in_slices};
use super::logprobs;
use super::next_chunk::NextChunk;
use super::{embeddings, errors};
use crate::core::{FinishReason, Finished, Mode, StopCause, Telling, sibling_seed};
use crate::engine::{self, Interest, Item, SoFar};
use crate::error::Error;
use crate::options::RequestOptions;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyString, PyTuple};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A submitted request. Dropping it cancels the request.
#[pyclass(frozen, module = "llama_batch._core")]
pub(super) struct Ticket {
    inner: engine::Ticket,
    /// Under which hubs know what is waited for.
    key: u64,
    n_chunks: AtomicU64,
    n_waiting: AtomicU64,
    /// Iteration raises the error of a failed request once.
    has_raised: AtomicBool,
    /// Somebody took the end.
    is_read: AtomicBool,
    /// The loop that read last, and its hub.
    reader: Mutex<Option<Reader>>,
    /// How the answer to a conversation is read.
    syntax: Option<Syntax>,
    /// Kept for as long as somebody may ask it.
    _sampler: Option<Registered>,
}

/// A callable of a request's options, which is let go of with this.
pub(super) struct Registered(u64);

impl Registered {
    /// The one of these options, if they have one.
    pub(super) fn of(options: &RequestOptions) -> Option<Self> {
        options.sampler.map(|callable| Self(callable.0))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        super::strategy::unregister(self.0);
    }
}

type Reader = (Py<PyAny>, Py<Hub>);

/// What [`Ticket::next`] gives.
pub(super) enum Next<'py> {
    /// A `llama_batch.Chunk`.
    Chunk(Bound<'py, PyAny>),
    /// Nothing came since the last call.
    NotYet,
    /// Nothing more will come.
    End,
}

impl Ticket {
    pub(super) fn new(inner: engine::Ticket, sampler: Option<Registered>, syntax: Option<Syntax>) -> Self {
        Self {
            inner,
            key: new_key(),
            n_chunks: AtomicU64::new(0),
            n_waiting: AtomicU64::new(0),
            has_raised: AtomicBool::new(false),
            is_read: AtomicBool::new(false),
            reader: Mutex::new(None),
            syntax,
            _sampler: sampler,
        }
    }

    /// The next chunk, or the end; the error of a failed request, once.
    pub(super) fn next<'py>(&self, py: Python<'py>) -> PyResult<Next<'py>> {
        match self.inner.mailbox().take() {
            Some(Item::Chunk(chunk)) => {
                let index = self.n_chunks.fetch_add(1, Ordering::Relaxed);
                let tells = self.inner.mailbox().telling().drawn.is_some();
                return new_chunk(py, chunk, index, tells).map(Next::Chunk);
            }
            Some(Item::End(_)) => self.is_read.store(true, Ordering::Release),
            None if self.is_read.load(Ordering::Acquire) => {}
            None => return Ok(Next::NotYet),
        }
        match self.outcome(py)? {
            Some(Outcome::Error(error)) if !self.has_raised.swap(true, Ordering::Relaxed) => {
                Err(PyErr::from_value(error))
            }
            Some(Outcome::Error(_) | Outcome::Result(_)) | None => Ok(Next::End),
        }
    }

    /// Have this ticket's key marked when something comes. True if something is there already.
    pub(super) fn subscribe(&self, hub: &Hub) -> bool {
        self.inner.mailbox().subscribe(Interest::Items, hub.signal(self.key))
    }

    /// The hub of a loop, which Python knows; the last one is kept.
    fn hub_of<'py>(&self, event_loop: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Hub>> {
        let py = event_loop.py();
        if let Some((known, hub)) = self.reader().as_ref()
            && known.is(event_loop)
        {
            return Ok(hub.bind(py).clone());
        }
        // Not under the lock: Python may let another thread go on, which may want the lock before the GIL.
        let hub = py.import("llama_batch._hub")?.call_method1("asyncio_hub", (event_loop,))?.getattr("core")?;
        let hub = hub.cast_into::<Hub>()?;
        let last = self.reader().replace((event_loop.clone().unbind(), hub.clone().unbind()));
        drop(last);
        Ok(hub)
    }

    fn reader(&self) -> MutexGuard<'_, Option<Reader>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.inner.mailbox().end().is_some()
    }

    fn outcome<'py>(&self, py: Python<'py>) -> PyResult<Option<Outcome<'py>>> {
        let Some(finished) = self.inner.mailbox().end() else { return Ok(None) };
        let embeds = finished.mode == Mode::Embed;
        let end = match &finished.end {
            Ok(FinishReason::Cancelled) if embeds => &Err(Error::Cancelled),
            end => end,
        };
        match end {
            Ok(_) => {
                let made = match self.inner.mailbox().embedded() {
                    Some(embedded) => embeddings::object(py, &embedded, &finished)?,
                    None => completions(py, &self.inner, &finished, self.syntax())?,
                };
                Ok(Some(Outcome::Result(made)))
            }
            Err(error) => {
                let partial = (matches!(error, Error::RequestTimeout { .. }) && !embeds)
                    .then(|| completions(py, &self.inner, &finished, self.syntax()))
                    .transpose()?;
                let exception = errors::to_exception(py, error, Some(finished.request.0), partial)?;
                Ok(Some(Outcome::Error(exception)))
            }
        }
    }
}

/// How a request ended, as Python objects.
enum Outcome<'py> {
    Result(Bound<'py, PyAny>),
    Error(Bound<'py, PyAny>),
}

/// A `llama_batch.Chunk`, made as its `__new__` makes it, at half the cost: it is made for every token.
fn new_chunk(py: Python<'_>, chunk: engine::Chunk, index: u64, tells: bool) -> PyResult<Bound<'_, PyAny>> {
    static NEW: PyOnceLock<(Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();
    let (new, class) = NEW.get_or_try_init(py, || {
        let class = py.import("llama_batch.types")?.getattr("Chunk")?;
        Ok::<_, PyErr>((py.get_type::<PyString>().getattr("__new__")?.unbind(), class.unbind()))
    })?;
    let made = new.bind(py).call1((class, chunk.text))?;
    made.setattr(intern!(py, "index"), index)?;
    made.setattr(intern!(py, "token_ids"), PyTuple::new(py, chunk.tokens)?)?;
    made.setattr(intern!(py, "choice"), chunk.choice)?;
    if tells {
        made.setattr(intern!(py, "logprobs"), logprobs::told(py, &chunk.told)?)?;
    } else {
        made.setattr(intern!(py, "logprobs"), py.None())?;
    }
    Ok(made)
}

/// The loop that runs in this thread.
fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static GET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let get =
        GET.get_or_try_init(py, || Ok::<_, PyErr>(py.import("asyncio.events")?.getattr("get_running_loop")?.unbind()))?;
    get.bind(py).call0()
}

/// The completion, with all answers in it. One that has no end of its own yet has that of the whole.
fn completions<'py>(
    py: Python<'py>,
    ticket: &engine::Ticket,
    end: &Finished,
    syntax: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    let (mailbox, class) = (ticket.mailbox(), py.import("llama_batch.types")?.getattr("Completion")?);
    let made = |(i, answer): (usize, &SoFar), others: Bound<'py, PyTuple>| {
        let fields = completion(py, mailbox.telling(), answer, answer.end.as_deref().unwrap_or(end))?;
        fields.set_item("seed", sibling_seed(ticket.seed(), i as u64))?;
        fields.set_item("index", i)?;
        fields.set_item("others", others)?;
        fields.set_item("syntax", syntax)?;
        class.call((), Some(&fields))
    };
    let answers = mailbox.so_far();
    let others = answers.iter().enumerate().skip(1).map(|other| made(other, PyTuple::empty(py)));
    let others = PyTuple::new(py, others.collect::<PyResult<Vec<_>>>()?)?;
    made((0, &answers[0]), others)
}

/// The fields of a completion that say how one answer went.
fn completion<'py>(
    py: Python<'py>,
    telling: Telling,
    answer: &SoFar,
    finished: &Finished,
) -> PyResult<Bound<'py, PyDict>> {
    let types = py.import("llama_batch.types")?;
    let usage = &finished.usage;
    let (n_draft, n_accepted) = (usage.draft_tokens, usage.accepted_tokens);
    let usage = (usage.prompt_tokens, usage.generated_tokens, usage.prefix_cache_tokens, n_draft, n_accepted);
    let usage = types.getattr("Usage")?.call1(usage)?;
    let t = &finished.timings;
    let [queue, ttft, total, prefill, decode] = [t.queue, t.ttft, t.total, t.prefill, t.decode].map(crate::core::ms);
    let timings = types.getattr("Timings")?.call1((queue, ttft, total, prefill, decode))?;
    let fields = PyDict::new(py);
    fields.set_item("request_id", finished.request.0)?;
    fields.set_item("text", &answer.text)?;
    fields.set_item("token_ids", PyTuple::new(py, &answer.tokens)?)?;
    fields.set_item("finish_reason", finished.end.as_ref().map_or("timeout", |reason| reason.word()))?;
    match &finished.stopped_by {
        Some(StopCause::Text(text)) => fields.set_item("stop_reason", text)?,
        Some(StopCause::Token(token)) => fields.set_item("stop_reason", token)?,
        None => fields.set_item("stop_reason", py.None())?,
    }
    fields.set_item("usage", usage)?;
    fields.set_item("timings", timings)?;
    if telling.drawn.is_some() {
        fields.set_item("logprobs", logprobs::told(py, &answer.told)?)?;
    }
    if telling.prompt.is_some() {
        fields.set_item("prompt_logprobs", logprobs::prompt_told(py, &finished.prompt_told)?)?;
    }
    Ok(fields)
}

#[pymethods]
impl Ticket {
    /// A loop that was closed under its reader is part of a cycle through here.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Who holds the lock now is no garbage.
        let Ok(reader) = self.reader.try_lock() else { return Ok(()) };
        let Some((event_loop, hub)) = reader.as_ref() else { return Ok(()) };
        visit.call(event_loop)?;
        visit.call(hub)
    }

    fn __clear__(&self) {
        let last = self.reader().take();
        drop(last);
    }

    /// The request's number.
    #[getter]
    fn id(&self) -> u64 {
        self.inner.id().0
    }

    /// The key that hubs know it by.
    #[getter]
    pub(super) const fn key(&self) -> u64 {
        self.key
    }

    /// The next chunk; None if it is not there yet, False at the end.
    ///
    /// # Errors
    /// The request's, once.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.next(py)? {
            Next::Chunk(chunk) => Ok(chunk),
            Next::NotYet => Ok(py.None().into_bound(py)),
            Next::End => Ok(PyBool::new(py, false).to_owned().into_any()),
        }
    }

    /// An awaitable of the next chunk, for a task of the running asyncio loop.
    fn next_chunk(slf: &Bound<'_, Self>) -> PyResult<NextChunk> {
        let event_loop = running_loop(slf.py())?;
        let hub = slf.get().hub_of(&event_loop)?;
        Ok(NextChunk::new(slf.clone().unbind(), hub.unbind(), event_loop.unbind()))
    }

    /// How the answer to a conversation is read, as JSON; None before its prompt is made, and of other requests.
    #[getter]
    fn syntax(&self) -> Option<&str> {
        self.syntax.as_ref()?.get().map(String::as_str)
    }

    /// Somebody begins to wait.
    pub(super) fn enter(&self) {
        self.n_waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Somebody waits no more; `gives_up`: and cancels the request, unless somebody else waits.
    pub(super) fn leave(&self, gives_up: bool) {
        if self.n_waiting.fetch_sub(1, Ordering::Relaxed) == 1 && gives_up {
            self.inner.cancel();
        }
    }

    /// Whether somebody waits.
    fn is_waited_for(&self) -> bool {
        self.n_waiting.load(Ordering::Relaxed) > 0
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

    /// Have a key marked at a hub when something comes (or only at the end). True if something is there already.
    fn watch(&self, hub: &Hub, key: u64, end_only: bool) -> bool {
        let interest = if end_only { Interest::End } else { Interest::Items };
        self.inner.mailbox().subscribe(interest, hub.signal(key))
    }

    /// The completion or the embeddings, or the exception that the request ended with; None while it runs.
    #[pyo3(name = "outcome")]
    fn outcome_object<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.outcome(py)?.map(|outcome| match outcome {
            Outcome::Result(object) | Outcome::Error(object) => object,
        }))
    }

    /// Whether the request was cancelled.
    fn cancelled(&self) -> bool {
        self.inner.mailbox().end().is_some_and(|finished| finished.end == Ok(FinishReason::Cancelled))
    }

    /// Cancel the request; one that has ended stays as it is.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.inner.cancel());
    }
}
