//! What is measured, by the names of `llama_batch.metrics.Metrics`: durations in seconds, histograms as tuples.

use crate::core::{PrefixSource, Tier};
use crate::engine::{EngineMetrics, Histogram};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

const NANOS: f64 = 1e9;

/// Everything but the figures of the moment.
pub(super) fn to_dict<'py>(py: Python<'py>, metrics: &EngineMetrics) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    macro_rules! fields {
        ($($name:ident in $unit:expr),*) => {
            $(dict.set_item(stringify!($name), histogram(py, &metrics.$name, $unit)?)?;)*
        };
    }
    fields!(
        time_to_first_token in NANOS,
        inter_token_latency in NANOS,
        e2e_request_latency in NANOS,
        request_queue_time in NANOS,
        request_inference_time in NANOS,
        request_prefill_time in NANOS,
        request_decode_time in NANOS,
        request_prompt_tokens in 1.0,
        request_generation_tokens in 1.0,
        iteration_tokens in 1.0
    );
    dict.set_item("finished", counts(py, metrics.finished.iter().copied())?)?;
    dict.set_item("failures", counts(py, metrics.failures.iter().copied())?)?;
    dict.set_item("n_prompt_tokens", metrics.n_prompt_tokens)?;
    dict.set_item("n_prefix_cache_queries", metrics.n_prefix_cache_queries)?;
    let hits = metrics.prefix_cache_hits.iter().map(|(source, n)| (source.word(), *n));
    dict.set_item("prefix_cache_hits", counts(py, hits)?)?;
    let tiers = PyDict::new(py);
    for (tier, name) in [(Tier::Ram, PrefixSource::Ram.word()), (Tier::Disk, PrefixSource::Disk.word())] {
        let flows = || metrics.tiers.iter().filter(move |flow| flow.tier == tier);
        let tokens = counts(py, flows().map(|flow| (flow.op.word(), flow.n_tokens)))?;
        let bytes = counts(py, flows().map(|flow| (flow.op.word(), flow.n_bytes)))?;
        tiers.set_item(name, (tokens, bytes))?;
    }
    dict.set_item("tiers", tiers)?;
    dict.set_item("n_busy_slots", metrics.n_busy_slots)?;
    dict.set_item("n_tokens_max", metrics.n_tokens_max)?;
    dict.set_item("eval_s", metrics.eval_time.as_secs_f64())?;
    dict.set_item("sample_s", metrics.sample_time.as_secs_f64())?;
    Ok(dict)
}

/// Upper bounds, counts, and the sum, in so many parts of a unit.
fn histogram<'py>(py: Python<'py>, histogram: &Histogram, parts: f64) -> PyResult<Bound<'py, PyTuple>> {
    let Histogram { bounds, counts, sum } = histogram;
    let bounds = PyTuple::new(py, bounds.iter().map(|bound| *bound as f64 / parts))?;
    (bounds, PyTuple::new(py, counts)?, *sum as f64 / parts).into_pyobject(py)
}

fn counts(py: Python<'_>, counts: impl Iterator<Item = (&'static str, u64)>) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    for (name, n) in counts {
        dict.set_item(name, n)?;
    }
    Ok(dict)
}
