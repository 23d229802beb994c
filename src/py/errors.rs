//! Errors out: one Python exception for each variant, matched exhaustively.

use crate::error::{Error, QueueBound, RpcReason, TextBound, TimeoutKind};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The exception that stands for an error of a request.
pub(super) fn to_exception<'py>(
    py: Python<'py>,
    error: &Error,
    request_id: Option<u64>,
    completion: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    fields.set_item("request_id", request_id)?;
    let class = match error {
        Error::Option(_) => "OptionError",
        Error::ModelNotFound(_) => "ModelNotFoundError",
        Error::ModelLoad(_) => "ModelLoadError",
        Error::EngineNotReady => "EngineNotReadyError",
        Error::EngineClosed => "EngineClosedError",
        Error::EngineCrashed(_) => "EngineCrashedError",
        Error::Forked => "EngineForkedError",
        Error::QueueFull { bound, limit } => {
            fields.set_item("option", bound.option())?;
            fields.set_item("limit", limit)?;
            "QueueFullError"
        }
        Error::RequestTimeout { kind, limit_s } => {
            fields.set_item("option", kind.option())?;
            fields.set_item("limit_s", limit_s)?;
            fields.set_item("completion", completion)?;
            "RequestTimeoutError"
        }
        Error::EmptyPrompt => "EmptyPromptError",
        Error::ContextFull { n_prompt_tokens, n_ctx } => {
            fields.set_item("n_prompt_tokens", n_prompt_tokens)?;
            fields.set_item("n_ctx", n_ctx)?;
            "ContextFullError"
        }
        Error::TextTooLong { index, n_tokens, n_max, bound: _ } => {
            fields.set_item("n_prompt_tokens", n_tokens)?;
            fields.set_item("n_ctx", n_max)?;
            fields.set_item("index", index)?;
            "TextTooLongError"
        }
        Error::Unsupported(_) => "UnsupportedError",
        Error::Cancelled => "RequestCancelledError",
        Error::Prompt(_) => "PromptError",
        Error::Template(_) => "ChatTemplateError",
        Error::Grammar(_) => "GrammarError",
        Error::Session(_) => "SessionError",
        Error::SessionNotFound(_) => "SessionNotFoundError",
        Error::Inference(_) => "InferenceError",
        Error::Rpc { reason, endpoint, text: _ } => {
            fields.set_item("reason", reason.word())?;
            fields.set_item("endpoint", endpoint)?;
            if error.is_loss() {
                "RpcLostError"
            } else if error.retryable() {
                "RpcUnavailableError"
            } else {
                "RpcError"
            }
        }
        Error::BackendLost(_) => "BackendLostError",
    };
    py.import("llama_batch.errors")?.getattr(class)?.call((error.to_string(),), Some(&fields))
}

/// The same, to be raised.
pub(super) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    match to_exception(py, error, None, None) {
        Ok(exception) => PyErr::from_value(exception),
        Err(e) => e,
    }
}

/// An error that Python made (a download that failed), as one of ours, so that every waiting request can end with it.
pub(super) fn from_exception(exception: &Bound<'_, PyAny>) -> Error {
    let text = exception.str().map_or_else(|_| "unknown".into(), |s| s.to_string());
    match exception.getattr("code").and_then(|code| code.extract::<String>()).as_deref() {
        Ok("model_not_found") => Error::ModelNotFound(text),
        Ok("closed") => Error::EngineClosed,
        Ok("invalid_option") => Error::Option(text),
        Ok(_) | Err(_) => Error::ModelLoad(text),
    }
}

/// One error of each kind, with its code and whether it may be retried: what Python's tree is compared with.
#[pyfunction]
pub(super) fn error_samples(py: Python<'_>) -> PyResult<Vec<(String, bool, Bound<'_, PyAny>)>> {
    let text = || "text".to_owned();
    [
        Error::Option(text()),
        Error::ModelNotFound(text()),
        Error::ModelLoad(text()),
        Error::EngineNotReady,
        Error::EngineClosed,
        Error::EngineCrashed(text()),
        Error::Forked,
        Error::QueueFull { bound: QueueBound::Scope, limit: 3 },
        Error::RequestTimeout { kind: TimeoutKind::Queue, limit_s: 1.5 },
        Error::EmptyPrompt,
        Error::ContextFull { n_prompt_tokens: 9, n_ctx: 8 },
        Error::TextTooLong { index: 1, n_tokens: 9, n_max: 8, bound: TextBound::Pass },
        Error::Unsupported(text()),
        Error::Cancelled,
        Error::Prompt(text()),
        Error::Template(text()),
        Error::Grammar(text()),
        Error::Inference(text()),
        Error::Rpc { reason: RpcReason::ProtocolMismatch, endpoint: text(), text: text() },
        Error::Rpc { reason: RpcReason::Busy, endpoint: text(), text: text() },
        Error::Rpc { reason: RpcReason::Lost, endpoint: text(), text: text() },
        Error::BackendLost(text()),
    ]
    .iter()
    .map(|e| Ok((e.code().to_owned(), e.retryable(), to_exception(py, e, Some(7), None)?)))
    .collect()
}
