//! Telemetry out: the core's events under the names and fields that `python/llama_batch/telemetry.py` documents.

use super::hub::{Hub, duration};
use super::{errors, key};
use crate::core::{BackendEvent, Event, Finished, PrefixReason, PrefixSource, Tier, ms};
use crate::engine::{self, Received, TelemetryEvent};
use crate::error::Error;
use crate::options::Key;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::time::Duration;

/// A subscription: a bounded queue of one engine's events.
#[pyclass(frozen, module = "llama_batch._core")]
pub(super) struct EventReceiver {
    inner: engine::EventReceiver,
}

impl EventReceiver {
    pub(super) const fn new(inner: engine::EventReceiver) -> Self {
        Self { inner }
    }
}

#[pymethods]
impl EventReceiver {
    /// The next event; None if `timeout` seconds pass first, False once nothing more comes and all is received.
    #[pyo3(signature = (timeout=None))]
    fn recv<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        match py.detach(|| self.inner.recv(duration(timeout))) {
            Received::Event(event) => to_python(py, &event),
            Received::Timeout => Ok(py.None().into_bound(py)),
            Received::Forked => Err(errors::raise(py, &Error::Forked)),
            Received::Closed => Ok(false.into_pyobject(py)?.to_owned().into_any()),
        }
    }

    /// Have a key marked at a hub whenever an event comes. True if something is there already.
    fn watch(&self, hub: &Hub, key: u64) -> bool {
        self.inner.subscribe(hub.signal(key))
    }

    /// Nothing more comes; what came before is still received.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inner.close());
    }

    /// Events that came while the queue was full.
    #[getter]
    fn n_dropped(&self) -> u64 {
        self.inner.n_dropped()
    }
}

/// A `llama_batch.telemetry.Event`.
pub(super) fn to_python<'py>(py: Python<'py>, told: &TelemetryEvent) -> PyResult<Bound<'py, PyAny>> {
    let module = py.import("llama_batch.telemetry")?;
    let engine = module.getattr("EngineRef")?.call1((&*told.engine, told.engine_id))?;
    let metadata = PyDict::new(py);
    metadata.set_item("engine", engine)?;
    let measurements = PyDict::new(py);
    let name = describe(&told.event, &measurements, &metadata)?;
    let at_s = told.at.since(crate::core::Time(0)).as_secs_f64();
    module.getattr("Event")?.call1((name, measurements, metadata, at_s))
}

/// Fill in the figures of a forward pass.
fn ticked(event: &Event, measured: &Bound<'_, PyDict>) -> PyResult<&'static str> {
    if let Event::Tick {
        batch_size,
        decode_tokens,
        draft_tokens,
        prefill_tokens,
        active_slots,
        queue_depth,
        eval,
        sample,
        forecast,
    } = event
    {
        measured.set_item("batch_size", batch_size)?;
        measured.set_item("decode_tokens", decode_tokens)?;
        measured.set_item("draft_tokens", draft_tokens)?;
        measured.set_item("prefill_tokens", prefill_tokens)?;
        measured.set_item("active_slots", active_slots)?;
        measured.set_item("queue_depth", queue_depth)?;
        measured.set_item("eval_ms", ms(*eval))?;
        measured.set_item("sample_ms", ms(*sample))?;
        measured.set_item("forecast_ms", forecast.map(ms))?;
    }
    Ok("tick")
}

/// Fill in the fields of an event, and give its name.
pub(super) fn describe<'py>(
    event: &Event,
    measured: &Bound<'py, PyDict>,
    meta: &Bound<'py, PyDict>,
) -> PyResult<&'static str> {
    let py = measured.py();
    match event {
        Event::Chunk { request, text, tokens, .. } => {
            meta.set_item("request_id", request.0)?;
            meta.set_item("text", text)?;
            meta.set_item("token_ids", PyTuple::new(py, tokens)?)?;
            Ok("chunk")
        }
        Event::Finished(finished) => ended(finished, measured, meta),
        Event::Tick { .. } => ticked(event, measured),
        Event::Queued { request, prompt_tokens, queue_depth, mode, session } => {
            measured.set_item("prompt_tokens", prompt_tokens)?;
            measured.set_item("queue_depth", queue_depth)?;
            meta.set_item("request_id", request.0)?;
            meta.set_item("mode", mode.word())?;
            set_session(meta, session.as_ref())?;
            Ok("request.queued")
        }
        Event::Started {
            request,
            seq,
            prompt_tokens,
            prefix_cache_tokens,
            prefix_source,
            prefix_reason,
            queue,
            mode,
            session,
        } => {
            measured.set_item("prompt_tokens", prompt_tokens)?;
            measured.set_item("prefix_cache_tokens", prefix_cache_tokens)?;
            measured.set_item("queue_ms", ms(*queue))?;
            meta.set_item("request_id", request.0)?;
            meta.set_item("seq_id", seq.map(|s| s.0))?;
            meta.set_item("mode", mode.word())?;
            set_session(meta, session.as_ref())?;
            set_source(meta, *prefix_source, *prefix_reason)?;
            Ok("request.start")
        }
        Event::Parked { .. }
        | Event::Resumed { .. }
        | Event::KvPressure { .. }
        | Event::TierChanged { .. }
        | Event::PrefixInstability { .. }
        | Event::Token { .. }
        | Event::SessionSaved { .. }
        | Event::SessionLoaded { .. }
        | Event::Embedded { .. }
        | Event::TransferFailed { .. }
        | Event::Backend(_)
        | Event::StrategyFailed { .. } => rare(event, measured, meta),
    }
}

/// The events of trouble, which a calm engine never sends.
fn rare<'py>(event: &Event, measured: &Bound<'py, PyDict>, meta: &Bound<'py, PyDict>) -> PyResult<&'static str> {
    match event {
        Event::Parked { request, seq, n_tokens } => {
            measured.set_item("n_tokens", n_tokens)?;
            meta.set_item("request_id", request.0)?;
            meta.set_item("seq_id", seq.0)?;
            Ok("request.parked")
        }
        Event::Resumed { request, seq, prefix_cache_tokens, parked } => {
            measured.set_item("prefix_cache_tokens", prefix_cache_tokens)?;
            measured.set_item("parked_ms", ms(*parked))?;
            meta.set_item("request_id", request.0)?;
            meta.set_item("seq_id", seq.0)?;
            Ok("request.resumed")
        }
        Event::TierChanged { tier, op, n_bytes, n_tokens, total_bytes, n_entries, reason } => {
            measured.set_item("bytes", n_bytes)?;
            measured.set_item("tokens", n_tokens)?;
            measured.set_item("total_bytes", total_bytes)?;
            measured.set_item("entries", n_entries)?;
            meta.set_item("op", op.word())?;
            if *tier == Tier::Disk {
                meta.set_item("reason", reason.as_deref())?;
            }
            Ok(tier.word())
        }
        Event::KvPressure { reason, purged_seq_ids, batch_splits, n_parked } => {
            meta.set_item("reason", reason.word())?;
            measured.set_item("n_parked", n_parked)?;
            measured.set_item("purged_slots", purged_seq_ids.len())?;
            measured.set_item("batch_splits", batch_splits)?;
            meta.set_item("purged_seq_ids", PyTuple::new(measured.py(), purged_seq_ids.iter().map(|s| s.0))?)?;
            Ok("kv_pressure")
        }
        Event::PrefixInstability { seq, matched_tokens, cached_tokens } => {
            measured.set_item("matched_tokens", matched_tokens)?;
            measured.set_item("cached_tokens", cached_tokens)?;
            meta.set_item("seq_id", seq.0)?;
            Ok("prefix_instability")
        }
        Event::StrategyFailed { reason } => {
            meta.set_item("reason", reason)?;
            Ok("strategy_failed")
        }
        Event::Backend(event) => backend(event, measured, meta),
        Event::Embedded { request, embedded } => {
            measured.set_item("texts", embedded.vectors.len())?;
            meta.set_item("request_id", request.0)?;
            Ok("embedded")
        }
        Event::Chunk { .. }
        | Event::Token { .. }
        | Event::Finished(_)
        | Event::Tick { .. }
        | Event::SessionSaved { .. }
        | Event::SessionLoaded { .. }
        | Event::TransferFailed { .. }
        | Event::Queued { .. }
        | Event::Started { .. } => unreachable!("described before"),
    }
}

/// `request.done`, time-outs included, or `request.exception`.
fn ended<'py>(finished: &Finished, measured: &Bound<'py, PyDict>, meta: &Bound<'py, PyDict>) -> PyResult<&'static str> {
    let Finished {
        request, end, usage, timings, seq, mode, session, prefix_source, prefix_reason, n_prefilled, ..
    } = finished;
    measured.set_item("prompt_tokens", usage.prompt_tokens)?;
    measured.set_item("generated_tokens", usage.generated_tokens)?;
    measured.set_item("draft_tokens", usage.draft_tokens)?;
    measured.set_item("accepted_tokens", usage.accepted_tokens)?;
    measured.set_item("duration_ms", ms(timings.total))?;
    measured.set_item("ttft_ms", ms(timings.ttft))?;
    measured.set_item("queue_ms", ms(timings.queue))?;
    measured.set_item("prompt_eval_rate", rate(*n_prefilled, timings.prefill))?;
    // The first token ends the prefill: what follows it is the generation.
    measured.set_item("generation_rate", rate(usage.generated_tokens.saturating_sub(1), timings.decode))?;
    measured.set_item("prefix_cache_tokens", usage.prefix_cache_tokens)?;
    let ratio = f64::from(usage.prefix_cache_tokens) / f64::from(usage.prompt_tokens.max(1));
    measured.set_item("prefix_cache_ratio", ratio)?;
    meta.set_item("request_id", request.0)?;
    meta.set_item("seq_id", seq.map(|s| s.0))?;
    meta.set_item("mode", mode.word())?;
    set_session(meta, session.as_ref())?;
    set_source(meta, *prefix_source, *prefix_reason)?;
    match end {
        Ok(reason) => meta.set_item("stop_reason", reason.word())?,
        Err(Error::RequestTimeout { .. }) => meta.set_item("stop_reason", "timeout")?,
        Err(error) => {
            meta.set_item("stop_reason", "error")?;
            meta.set_item("reason", error.to_string())?;
            meta.set_item("code", error.code())?;
            return Ok("request.exception");
        }
    }
    Ok("request.done")
}

/// `backend.*`.
fn backend<'py>(
    event: &BackendEvent,
    measured: &Bound<'py, PyDict>,
    meta: &Bound<'py, PyDict>,
) -> PyResult<&'static str> {
    match event {
        BackendEvent::Lost { reason, endpoint } => {
            meta.set_item("reason", reason)?;
            meta.set_item("endpoint", endpoint)?;
            Ok("backend.lost")
        }
        BackendEvent::Retry { attempt, delay, reason } => {
            meta.set_item("reason", reason)?;
            measured.set_item("attempt", attempt)?;
            measured.set_item("delay_ms", ms(*delay))?;
            Ok("backend.retry")
        }
        BackendEvent::Restored { attempts, took } => {
            measured.set_item("attempts", attempts)?;
            measured.set_item("lost_ms", ms(*took))?;
            Ok("backend.restored")
        }
        BackendEvent::Slow { elapsed, endpoint, reason } => {
            meta.set_item("endpoint", endpoint)?;
            meta.set_item("reason", reason)?;
            measured.set_item("elapsed_ms", ms(*elapsed))?;
            Ok("backend.slow")
        }
    }
}

/// Tokens per second; 0 where no time passed.
fn rate(n_tokens: u32, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { f64::from(n_tokens) / time.as_secs_f64() }
}

fn set_session(meta: &Bound<'_, PyDict>, session: Option<&Key>) -> PyResult<()> {
    let session = session.map(|key| key::decode(meta.py(), &key.0)).transpose()?;
    meta.set_item("session", session)
}

fn set_source(meta: &Bound<'_, PyDict>, source: PrefixSource, reason: PrefixReason) -> PyResult<()> {
    meta.set_item("prefix_source", source.word())?;
    meta.set_item("prefix_reason", reason.word())
}
