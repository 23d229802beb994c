//! A loaded model, as Python's `Model` holds it: text to tokens and back, metadata, the chat template.

use super::{chat, errors};
use crate::chat::{Asked, Conversation};
use crate::core::Token;
use crate::engine;
use crate::error::Error;
use crate::options::StartOptions;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

#[cfg(feature = "llama")]
use crate::backend::llama;

/// A model. Its calls run beside a forward pass, from any thread.
#[pyclass(frozen, module = "llama_batch._core")]
pub(super) struct Model {
    inner: engine::Model,
    options: StartOptions,
}

impl Model {
    /// `options`: of its engine.
    pub(super) const fn new(inner: engine::Model, options: StartOptions) -> Self {
        Self { inner, options }
    }
}

/// What llama.cpp knows of a model, and a simulated one does not.
#[cfg(feature = "llama")]
mod known {
    use super::{Error, PyDict, PyResult, StartOptions, Token, engine, llama};
    use pyo3::prelude::*;
    use std::sync::Arc;

    fn handle(model: &engine::Model) -> Option<&llama::Model> {
        model.handle.as_ref()?.downcast_ref()
    }

    pub(super) fn score(
        model: &engine::Model,
        options: &StartOptions,
        tokens: &[Token],
        n_prompt: usize,
        chunk: usize,
    ) -> Option<Result<Vec<f32>, Error>> {
        let model = Arc::clone(model.handle.as_ref()?).downcast::<llama::Model>().ok()?;
        Some(llama::score(&model, options, tokens, n_prompt, chunk))
    }

    pub(super) fn facts(model: &engine::Model, facts: &Bound<'_, PyDict>) -> PyResult<()> {
        let Some(model) = handle(model) else { return Ok(()) };
        facts.set_item("metadata", model.metadata())?;
        facts.set_item("description", model.description())?;
        facts.set_item("architecture", model.architecture())?;
        facts.set_item("chat_template", model.chat_template())?;
        facts.set_item("n_ctx_train", model.n_ctx_train())?;
        facts.set_item("n_params", model.n_params())?;
        facts.set_item("n_embd", model.n_embd())?;
        facts.set_item("n_layer", model.n_layer())?;
        facts.set_item("size_bytes", model.size_bytes())?;
        facts.set_item("bos", model.bos())?;
        facts.set_item("eos", model.eos())
    }
}

/// All models are simulated in a build without llama.cpp.
#[cfg(not(feature = "llama"))]
mod known {
    use super::{Error, PyDict, PyResult, StartOptions, Token, engine};
    use pyo3::prelude::*;

    pub(super) const fn score(
        _: &engine::Model,
        _: &StartOptions,
        _: &[Token],
        _: usize,
        _: usize,
    ) -> Option<Result<Vec<f32>, Error>> {
        None
    }

    #[expect(clippy::unnecessary_wraps, reason = "the signature of the build with llama.cpp")]
    pub(super) const fn facts(_: &engine::Model, _: &Bound<'_, PyDict>) -> PyResult<()> {
        Ok(())
    }
}

#[pymethods]
impl Model {
    /// Tokens of the vocabulary.
    #[getter]
    fn n_vocab(&self) -> u32 {
        self.inner.tokenizer.n_vocab()
    }

    /// Text to tokens.
    fn tokenize(&self, py: Python<'_>, text: &str, add_special: bool, parse_special: bool) -> PyResult<Vec<Token>> {
        let tokens = py.detach(|| self.inner.tokenizer.tokenize(text, add_special, parse_special));
        tokens.map_err(|e| errors::raise(py, &e))
    }

    /// The bytes of tokens, one after the other.
    #[expect(clippy::needless_pass_by_value, reason = "pyo3 makes the list")]
    fn pieces<'py>(&self, py: Python<'py>, tokens: Vec<Token>, special: bool) -> PyResult<Bound<'py, PyBytes>> {
        let n_vocab = self.inner.tokenizer.n_vocab();
        if let Some(wrong) = tokens.iter().find(|t| !u32::try_from(**t).is_ok_and(|t| t < n_vocab)) {
            let error = Error::Prompt(format!("token id {wrong} is not in the vocabulary (0 to {})", n_vocab - 1));
            return Err(errors::raise(py, &error));
        }
        let bytes: Vec<u8> =
            py.detach(|| tokens.iter().flat_map(|token| self.inner.tokenizer.piece(*token, special)).collect());
        Ok(PyBytes::new(py, &bytes))
    }

    /// Whether a token ends a generation.
    fn is_eog(&self, token: Token) -> bool {
        self.inner.tokenizer.is_eog(token)
    }

    /// The prompt that a conversation makes, its tokens, and the syntax of its answer.
    fn render_chat(&self, py: Python<'_>, asked: &str) -> PyResult<(String, Vec<Token>, String)> {
        let rendered = py.detach(|| Asked::parse(asked).and_then(|asked| chat::render(&self.inner, &asked)));
        let Conversation { prompt, tokens, shape: _, syntax } = rendered.map_err(|e| errors::raise(py, &e))?;
        Ok((prompt, tokens, syntax))
    }

    /// How far each token after the first `n_prompt` was from the likeliest, computed alone, `chunk` tokens at a time.
    #[expect(clippy::needless_pass_by_value, reason = "pyo3 makes the list")]
    fn score(&self, py: Python<'_>, tokens: Vec<Token>, n_prompt: usize, chunk: usize) -> PyResult<Vec<f32>> {
        let gaps = py.detach(|| known::score(&self.inner, &self.options, &tokens, n_prompt, chunk));
        gaps.unwrap_or_else(|| Err(Error::Inference("a simulated model has no logits".into())))
            .map_err(|e| errors::raise(py, &e))
    }

    /// What is known of it, by the names of `llama_batch.Model`.
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let facts = PyDict::new(py);
        known::facts(&self.inner, &facts)?;
        Ok(facts)
    }
}

/// Which llama.cpp is inside, and what its kernels use of the processor.
#[pyfunction]
pub(super) fn build() -> String {
    #[cfg(feature = "llama")]
    return llama::build();
    #[cfg(not(feature = "llama"))]
    "none".to_owned()
}

/// Whether llama.cpp is inside.
#[pyfunction]
pub(super) const fn has_llama() -> bool {
    cfg!(feature = "llama")
}

/// What llama.cpp logged since the last call, as levels of `logging` and lines, and how many lines were lost.
#[pyfunction]
pub(super) fn drain_logs() -> (Vec<(u32, String)>, u64) {
    #[cfg(feature = "llama")]
    {
        let drained = llama::drain_logs();
        let level = |level| match level {
            llama::Level::Debug => 10,
            llama::Level::Info => 20,
            llama::Level::Warn => 30,
            llama::Level::Error => 40,
        };
        (drained.lines.into_iter().map(|line| (level(line.level), line.text)).collect(), drained.n_dropped)
    }
    #[cfg(not(feature = "llama"))]
    (Vec::new(), 0)
}
