//! Conversations: prompts through a model's template, and what reads the answers.

use super::errors;
use crate::chat::{Asked, Conversation, plain};
use crate::engine;
use crate::error::Error;
use pyo3::prelude::*;
use std::sync::{Arc, OnceLock};

/// How the answer to a conversation is read, once that is rendered.
pub(super) type Syntax = Arc<OnceLock<String>>;

/// Render a conversation through the model's template, or plainly where a simulated model has none.
///
/// # Errors
/// [`Error::Template`] and [`Error::Prompt`].
pub(super) fn render(model: &engine::Model, asked: &Asked) -> Result<Conversation, Error> {
    #[cfg(feature = "llama")]
    if let Some(model) = model.handle.as_ref().and_then(|handle| handle.downcast_ref::<crate::backend::llama::Model>())
    {
        return model.render(asked);
    }
    if asked.chat_template.is_some() {
        return Err(Error::Template("a simulated model has no chat templates".into()));
    }
    plain(asked, &*model.tokenizer)
}

/// Why a template must not be rendered in this process, as a trial in another one showed; none in a dying interpreter.
#[cfg(feature = "llama")]
pub(super) fn refusal(source: &str) -> Option<String> {
    let tried = Python::try_attach(|py| {
        let refusal = py.import("llama_batch._proof")?.call_method1("refusal", (source,))?;
        refusal.extract::<Option<String>>()
    })?;
    tried.unwrap_or_else(|error| Some(format!("it could not be tried: {error}")))
}

/// Render a few conversations with a template. It may end the process: for one that is there for that.
#[pyfunction]
pub(super) fn try_template(py: Python<'_>, source: &str) -> PyResult<()> {
    #[cfg(feature = "llama")]
    return py.detach(|| crate::backend::llama::try_template(source)).map_err(pyo3::exceptions::PyMemoryError::new_err);
    #[cfg(not(feature = "llama"))]
    {
        let _ = (py, source);
        Ok(())
    }
}

/// Reads answers as a model's template writes them.
#[pyclass(frozen, module = "llama_batch._core")]
pub(super) struct ChatParser {
    #[cfg(feature = "llama")]
    inner: crate::backend::llama::ChatParser,
}

#[pymethods]
impl ChatParser {
    /// A parser from a syntax that came with a conversation.
    #[new]
    fn new(py: Python<'_>, syntax: &str) -> PyResult<Self> {
        #[cfg(feature = "llama")]
        let made = crate::backend::llama::ChatParser::new(syntax).map(|inner| Self { inner });
        #[cfg(not(feature = "llama"))]
        let made = Err(format!("this build has no llama.cpp, which {} bytes of syntax are for", syntax.len()));
        made.map_err(|reason| errors::raise(py, &Error::Template(reason)))
    }

    /// Read an answer, or its beginning: JSON; None where the text is no such answer.
    fn parse(&self, py: Python<'_>, text: &str, is_partial: bool) -> Option<String> {
        #[cfg(feature = "llama")]
        return py.detach(|| self.inner.parse(text, is_partial)).ok();
        #[cfg(not(feature = "llama"))]
        {
            let _ = (py, text, is_partial);
            None
        }
    }
}
