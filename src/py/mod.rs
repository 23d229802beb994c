//! The Python extension module `llama_batch._core`: translation, and nothing else.
//!
//! The public classes are written in Python over these; see `python/llama_batch/`.

mod chat;
mod convert;
mod embeddings;
mod engine;
mod errors;
mod events;
#[cfg(feature = "llama")]
mod file;
mod hub;
mod isolated;
mod key;
mod loaders;
mod logprobs;
mod metrics;
mod model;
mod next_chunk;
mod rpc;
mod sampler;
mod simulation;
mod strategy;
mod tables;
mod ticket;

use crate::core::Stats;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The core's figures, by the names of `llama_batch.Stats`.
fn stats_dict<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    macro_rules! fields {
        ($($name:ident),*) => {{
            let Stats { $($name),* } = stats;
            $(dict.set_item(stringify!($name), $name)?;)*
        }};
    }
    fields!(
        active_slots,
        idle_slots,
        prefilling_slots,
        queue_depth,
        parked_requests,
        n_parallel,
        n_batch,
        cached_sequences,
        ram_cache_entries,
        ram_cache_bytes,
        disk_cache_entries,
        disk_cache_bytes,
        kv_cells_used,
        kv_cells_running,
        kv_cells_total,
        n_ticks,
        n_submitted,
        n_finished,
        n_failed,
        n_cancelled,
        n_prefill_tokens,
        n_prefix_cache_tokens,
        n_generated_tokens,
        n_draft_tokens,
        n_accepted_tokens,
        n_parked,
        n_evicted,
        embedding_requests,
        n_embedded_texts,
        n_embedded_tokens,
        pass_cost_ns,
        decode_row_cost_ns,
        prefill_row_cost_ns,
        context_cost_ns,
        n_threads,
        n_threads_batch
    );
    Ok(dict)
}

/// Have the engine told in each process that is forked off from now on; systems without forks need nothing.
fn watch_forks(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let Some(register) = py.import("os")?.getattr_opt("register_at_fork")? else { return Ok(()) };
    let options = PyDict::new(py);
    options.set_item("after_in_child", wrap_pyfunction!(in_forked_child, module)?)?;
    register.call((), Some(&options)).map(drop)
}

#[pyfunction]
fn in_forked_child() {
    crate::engine::forked();
}

#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use super::chat::{ChatParser, try_template};
    #[pymodule_export]
    use super::engine::Engine;
    #[pymodule_export]
    use super::errors::error_samples;
    #[pymodule_export]
    use super::events::EventReceiver;
    #[pymodule_export]
    use super::hub::{Hub, new_key};
    #[cfg(unix)]
    #[pymodule_export]
    use super::isolated::serve_isolated;
    #[pymodule_export]
    use super::model::{Model, build, drain_logs, has_llama};
    #[pymodule_export]
    use super::next_chunk::NextChunk;
    #[pymodule_export]
    use super::rpc::{die_with_parent, rpc_is_whole, rpc_prove, rpc_resolve, rpc_serve, rpc_supported};
    #[pymodule_export]
    use super::simulation::Simulation;
    #[pymodule_export]
    use super::strategy::{interrupt_strategies, wait_for_strategies};
    #[pymodule_export]
    use super::tables::option_tables;
    #[pymodule_export]
    use super::ticket::Ticket;

    #[pymodule_init]
    fn init(m: &super::Bound<'_, super::PyModule>) -> super::PyResult<()> {
        use super::PyModuleMethods;
        super::watch_forks(m)?;
        m.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
