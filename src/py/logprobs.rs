//! How likely tokens were, as Python objects.

use crate::core::{Logprob, TokenLogprobs};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyTuple};

/// `llama_batch.logprobs.TokenLogprobs`, one for each token.
pub(super) fn told<'py>(py: Python<'py>, told: &[TokenLogprobs]) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, told.iter().map(|told| one(py, told)).collect::<PyResult<Vec<_>>>()?)
}

/// The same for a prompt: None of its first token.
pub(super) fn prompt_told<'py>(py: Python<'py>, told: &[Option<TokenLogprobs>]) -> PyResult<Bound<'py, PyTuple>> {
    let one = |told: &Option<TokenLogprobs>| match told {
        Some(told) => one(py, told),
        None => Ok(py.None().into_bound(py)),
    };
    PyTuple::new(py, told.iter().map(one).collect::<PyResult<Vec<_>>>()?)
}

fn one<'py>(py: Python<'py>, told: &TokenLogprobs) -> PyResult<Bound<'py, PyAny>> {
    static CLASSES: PyOnceLock<(Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();
    let (own, top) = CLASSES.get_or_try_init(py, || {
        let module = py.import("llama_batch.logprobs")?;
        Ok::<_, PyErr>((module.getattr("TokenLogprobs")?.unbind(), module.getattr("Logprob")?.unbind()))
    })?;
    let fields = |item: &Logprob, rank: u32| (item.token, item.logprob, rank, PyBytes::new(py, &item.piece).unbind());
    let ranked = told.top.iter().zip(1..);
    let likeliest = ranked.map(|(item, rank)| top.bind(py).call1(fields(item, rank))).collect::<PyResult<Vec<_>>>()?;
    let (token, logprob, rank, piece) = fields(&told.own, told.rank);
    own.bind(py).call1((token, logprob, rank, piece, PyTuple::new(py, likeliest)?))
}
