//! Samplers of the callers' own: Python callables, each call on a thread of its own, so that a slow one keeps nobody
//! waiting but its request.

use super::strategy::{callable, while_busy};
use crate::backend::Pick;
use crate::core::Token;
use crate::engine::{Reply, n_forks};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict};
use std::sync::{Arc, Mutex, PoisonError};

/// Have callable number `id` draw from these logits.
pub(super) fn sample(id: u64, logits: Vec<f32>, reply: Reply) {
    // Shared with the thread, so that it can still be used where there is no thread.
    let reply = Arc::new(Mutex::new(Some(reply)));
    let (answer, process) = (Arc::clone(&reply), n_forks());
    let spawned = std::thread::Builder::new().name("llama-batch-sampler".into()).spawn(move || {
        let picked = Python::try_attach(|py| while_busy(|| call(py, id, &logits)));
        // In a child that the callable forked off, nobody asked.
        if n_forks() == process {
            send(&answer, picked.unwrap_or_else(|| Err("the interpreter is gone".into())));
        }
    });
    if let Err(error) = spawned {
        send(&reply, Err(format!("there is no thread for the sampler: {error}")));
    }
}

fn send(reply: &Mutex<Option<Reply>>, picked: Result<Pick, String>) {
    let reply = reply.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(reply) = reply {
        reply(picked);
    }
}

fn call(py: Python<'_>, id: u64, logits: &[f32]) -> Result<Pick, String> {
    let callable = callable(py, id).ok_or("the sampler is gone")?;
    ask(callable.bind(py), logits).map_err(|error| format!("the sampler raised {error}"))
}

fn ask(callable: &Bound<'_, PyAny>, logits: &[f32]) -> PyResult<Pick> {
    let py = callable.py();
    let bytes: Vec<u8> = logits.iter().flat_map(|logit| logit.to_ne_bytes()).collect();
    let buffer = PyByteArray::new(py, &bytes);
    let kind = PyDict::new(py);
    kind.set_item("dtype", "float32")?;
    let row = py.import("numpy")?.call_method("frombuffer", (&buffer,), Some(&kind))?;
    let answer = callable.call1((row,))?;
    if !answer.is_none() {
        let token = super::convert::index(&answer)?;
        let wrong = || pyo3::exceptions::PyTypeError::new_err("it must return a token or None");
        return Ok(Pick::Token(token.ok_or_else(wrong)?.extract::<Token>()?));
    }
    let left = buffer.to_vec();
    let (chunks, _) = left.as_chunks::<4>();
    Ok(Pick::Logits(chunks.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()))
}
