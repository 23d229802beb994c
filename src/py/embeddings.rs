//! Texts in, vectors out: what Python's `EmbeddingJob` asks for and gets.

use super::convert::{self, PromptInput};
use super::errors;
use crate::core::{Embedded, Finished, ms};
use crate::engine::Prompt;
use crate::error::Error;
use crate::options::{EmbedOptions, Options, Pooling};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

/// Texts of one request: an object that gives texts for ever is an error, and not the end of the memory.
const MAX_TEXTS: usize = 1 << 22;

/// Read the options of a request for embeddings.
pub(super) fn options(given: &Bound<'_, PyDict>) -> PyResult<EmbedOptions> {
    let values = convert::options(given, &EmbedOptions::table())?;
    EmbedOptions::default().apply(&values).map_err(|error| errors::raise(given.py(), &error))
}

/// One text or several, each as text or as token ids. What is wrong with them is for the request, not for the call.
pub(super) fn texts(input: &Bound<'_, PyAny>) -> PyResult<Vec<Prompt>> {
    let one = |input: &Bound<'_, PyAny>| convert::prompt(input).map(prompt);
    if input.cast::<PyString>().is_ok() || !(input.hasattr("__len__")? && input.hasattr("__getitem__")?) {
        return Ok(vec![one(input)?]);
    }
    // What a list holds is told by its first item: token ids make one text.
    let is_dict = input.is_instance_of::<PyDict>() || input.is_instance_of::<PyBytes>();
    let first = if is_dict { None } else { input.try_iter()?.next().transpose()? };
    let has_texts = match &first {
        Some(first) => first.cast::<PyString>().is_ok() || first.hasattr("__len__")?,
        None => false,
    };
    if !has_texts {
        return Ok(vec![one(input)?]);
    }
    let mut texts = Vec::new();
    for item in input.try_iter()? {
        if texts.len() >= MAX_TEXTS {
            let error = Error::Prompt(format!("the input has more than {MAX_TEXTS} texts"));
            return Ok(vec![prompt(Err(error))]);
        }
        texts.push(one(&item?)?);
    }
    Ok(texts)
}

fn prompt(read: Result<PromptInput, Error>) -> Prompt {
    match read {
        Ok(PromptInput::Text(text)) => Prompt::Text(text),
        Ok(PromptInput::Tokens(tokens)) => Prompt::Tokens(tokens),
        Err(error) => Prompt::Chat(Box::new(move |_| Err(error))),
    }
}

/// A `llama_batch.Embeddings`.
pub(super) fn object<'py>(py: Python<'py>, embedded: &Embedded, finished: &Finished) -> PyResult<Bound<'py, PyAny>> {
    let types = py.import("llama_batch.types")?;
    let Embedded { vectors, n_tokens, pooling } = embedded;
    let n_rows = if *pooling == Pooling::None { n_tokens.first().copied().unwrap_or(1) } else { 1 };
    let n_embd = vectors.first().map_or(0, Vec::len) / n_rows.max(1) as usize;
    let usage = types.getattr("Usage")?.call1((finished.usage.prompt_tokens,))?;
    let t = &finished.timings;
    let [queue, ttft, total, prefill, decode] = [t.queue, t.ttft, t.total, t.prefill, t.decode].map(ms);
    let timings = types.getattr("Timings")?.call1((queue, ttft, total, prefill, decode))?;
    let fields = PyDict::new(py);
    fields.set_item("request_id", finished.request.0)?;
    fields.set_item("vectors", arrays(py, vectors)?)?;
    fields.set_item("n_tokens", PyTuple::new(py, n_tokens)?)?;
    fields.set_item("n_embd", n_embd)?;
    fields.set_item("pooling", pooling.word())?;
    fields.set_item("usage", usage)?;
    fields.set_item("timings", timings)?;
    py.import("llama_batch.embedding")?.getattr("Embeddings")?.call((), Some(&fields))
}

/// Vectors as arrays of C floats.
fn arrays<'py>(py: Python<'py>, vectors: &[Vec<f32>]) -> PyResult<Bound<'py, PyTuple>> {
    let array = py.import("array")?.getattr("array")?;
    let list = PyList::empty(py);
    for vector in vectors {
        let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_ne_bytes()).collect();
        list.append(array.call1(("f", PyBytes::new(py, &bytes)))?)?;
    }
    Ok(list.to_tuple())
}
