//! What `async for` waits on in an asyncio loop: the cheapest thing that a task can drive.
//!
//! It follows the protocol of `asyncio.Task`: yield a future that is marked as blocking, and be stepped again when that
//! is done. A coroutine of Python would do the same at several times the cost, which every token would pay.

use super::hub::Hub;
use super::ticket::{Next, Ticket};
use pyo3::exceptions::{PyStopAsyncIteration, PyStopIteration};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;

/// An awaitable of the next chunk.
#[pyclass(module = "llama_batch._core")]
pub(super) struct NextChunk {
    ticket: Py<Ticket>,
    hub: Py<Hub>,
    /// None once the garbage collector has broken a cycle here.
    event_loop: Option<Py<PyAny>>,
    /// While it waits.
    future: Option<Py<PyAny>>,
}

impl NextChunk {
    pub(super) const fn new(ticket: Py<Ticket>, hub: Py<Hub>, event_loop: Py<PyAny>) -> Self {
        Self { ticket, hub, event_loop: Some(event_loop), future: None }
    }

    /// Stop waiting; `gives_up`: because the task was cancelled.
    fn leave(&mut self, py: Python<'_>, gives_up: bool) {
        if let Some(future) = self.future.take() {
            let ticket = self.ticket.get();
            self.hub.get().remove(ticket.key(), future.bind(py));
            ticket.leave(gives_up);
        }
    }
}

#[pymethods]
impl NextChunk {
    /// A loop that was closed under its reader is part of a cycle through here.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.ticket)?;
        visit.call(&self.hub)?;
        visit.call(&self.event_loop)?;
        visit.call(&self.future)
    }

    fn __clear__(&mut self) {
        self.event_loop = None;
        self.future = None;
    }

    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// A future to wait for; the chunk by `StopIteration`.
    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.leave(py, false);
        let (ticket, hub) = (self.ticket.get(), self.hub.get());
        // The hub rings in this thread's loop: not before the future below is there.
        while ticket.subscribe(hub) {
            match ticket.next(py)? {
                Next::Chunk(chunk) => return Err(PyStopIteration::new_err((chunk.unbind(),))),
                Next::End => return Err(PyStopAsyncIteration::new_err(())),
                Next::NotYet => {}
            }
        }
        let Some(event_loop) = self.event_loop.as_ref() else { return Err(PyStopAsyncIteration::new_err(())) };
        let future = event_loop.bind(py).call_method0(intern!(py, "create_future"))?;
        future.setattr(intern!(py, "_asyncio_future_blocking"), true)?;
        hub.add(ticket.key(), future.clone().unbind());
        ticket.enter();
        self.future = Some(future.clone().unbind());
        Ok(future)
    }

    fn send<'py>(&mut self, py: Python<'py>, _value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.__next__(py)
    }

    /// The task that waits is cancelled.
    #[pyo3(signature = (typ, val=None, tb=None))]
    fn throw<'py>(
        &mut self,
        py: Python<'py>,
        typ: Bound<'py, PyAny>,
        val: Option<Bound<'py, PyAny>>,
        tb: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = tb;
        self.leave(py, true);
        let exception = match val {
            Some(val) if !val.is_none() => val,
            Some(_) | None if typ.is_callable() => typ.call0()?,
            Some(_) | None => typ,
        };
        Err(PyErr::from_value(exception))
    }

    /// The coroutine that waits is thrown away.
    fn close(&mut self, py: Python<'_>) {
        self.leave(py, true);
    }
}
