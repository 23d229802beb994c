//! Python values in: options and prompts.

use super::{key, strategy};
use crate::core::Token;
use crate::error::Error;
use crate::options::{OptionSpec, Value};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PySequence, PyString, PyTuple};

/// Read keyword arguments against a table. What they mean is checked later, by [`crate::options::Options::apply`].
pub(super) fn options(given: &Bound<'_, PyDict>, table: &[OptionSpec]) -> PyResult<Vec<(String, Value)>> {
    let mut values = Vec::with_capacity(given.len());
    for (name, value) in given.iter() {
        let name = name.extract::<String>()?;
        let spec = table.iter().find(|s| s.name == name || s.aliases.contains(&name.as_str()));
        let value = match spec.map(|s| s.python_type) {
            Some("Key") if !value.is_none() => match key::encode(&value)? {
                Some(encoded) => Value::Key(encoded),
                None if value.is_instance_of::<PyTuple>() => Value::Other("a tuple that holds something else".into()),
                None => scalar(&value)?,
            },
            Some("str | PathLike[str]") if value.hasattr("__fspath__")? => scalar(&value.call_method0("__fspath__")?)?,
            Some("str | BatchStrategy" | "Sampler") if value.is_callable() => {
                Value::Callable(strategy::register(&value))
            }
            Some(_) | None => scalar(&value)?,
        };
        values.push((name, value));
    }
    Ok(values)
}

/// Lists in lists that are looked into; no option has more. A list can hold itself.
const MAX_DEPTH: u32 = 4;
/// Tokens of the longest prompt that is read at all: the largest `n_ctx` that there is.
const MAX_TOKENS: usize = 16_777_216;

/// A value whose option is not looked at.
fn scalar(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    scalar_at(value, 0)
}

fn scalar_at(value: &Bound<'_, PyAny>, depth: u32) -> PyResult<Value> {
    if depth > MAX_DEPTH {
        return Ok(Value::Other("a list in lists in lists".into()));
    }
    if value.is_none() {
        return Ok(Value::None);
    }
    if let Ok(truth) = value.cast::<PyBool>() {
        return Ok(Value::Bool(truth.is_true()));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(match text.to_cow() {
            Ok(text) => Value::Str(text.into_owned()),
            Err(_) => Value::Other("text with lone surrogates".into()),
        });
    }
    if let Ok(number) = value.cast::<PyFloat>() {
        return Ok(Value::Float(number.value()));
    }
    if let Ok(items) = value.cast::<PyList>() {
        return Ok(Value::List(items.iter().map(|item| scalar_at(&item, depth + 1)).collect::<PyResult<_>>()?));
    }
    if let Ok(items) = value.cast::<PyTuple>() {
        return Ok(Value::List(items.iter().map(|item| scalar_at(&item, depth + 1)).collect::<PyResult<_>>()?));
    }
    if let Ok(pairs) = value.cast::<PyDict>() {
        let pairs = pairs.iter().map(|(key, value)| Ok((scalar_at(&key, depth + 1)?, scalar_at(&value, depth + 1)?)));
        return Ok(Value::Map(pairs.collect::<PyResult<_>>()?));
    }
    number(value)
}

/// Numbers of other libraries: `__index__` makes an integer, `__float__` a float; numpy's truth values are neither.
fn number(value: &Bound<'_, PyAny>) -> PyResult<Value> {
    let type_name = value.get_type().name()?.to_string();
    if type_name == "bool" || type_name == "bool_" {
        return Ok(Value::Bool(value.is_truthy()?));
    }
    if let Some(integer) = index(value)? {
        // Beyond i128 the exact value no longer matters: no option reaches that far.
        let saturated = || if integer.lt(0).unwrap_or(false) { i128::MIN } else { i128::MAX };
        return Ok(Value::Int(integer.extract::<i128>().unwrap_or_else(|_| saturated())));
    }
    if value.hasattr("__float__")?
        && let Ok(number) = value.call_method0("__float__").and_then(|x| x.extract::<f64>())
    {
        return Ok(Value::Float(number));
    }
    Ok(Value::Other(type_name))
}

/// The value as a Python `int`, if it is an integer of any library, and not a truth value.
pub(super) fn index<'py>(value: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    if value.is_instance_of::<PyBool>() {
        return Ok(None);
    }
    if value.is_instance_of::<PyInt>() {
        return Ok(Some(value.clone()));
    }
    if !value.hasattr("__index__")? {
        return Ok(None);
    }
    match value.call_method0("__index__") {
        Ok(integer) => Ok(Some(integer)),
        Err(e) if e.is_instance_of::<PyTypeError>(value.py()) => Ok(None),
        Err(e) => Err(e),
    }
}

/// A prompt as Python gave it.
pub(super) enum PromptInput {
    /// Text, to be tokenised.
    Text(String),
    /// Token ids; whether the vocabulary has them is checked when it is known.
    Tokens(Vec<Token>),
}

/// Read a prompt.
///
/// # Errors
/// [`Error::Prompt`] where it can be no prompt of any model. It is for the request, not for the call.
pub(super) fn prompt(value: &Bound<'_, PyAny>) -> PyResult<Result<PromptInput, Error>> {
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(match text.to_cow() {
            Ok(text) => Ok(PromptInput::Text(text.into_owned())),
            Err(_) => Err(Error::Prompt("the prompt holds a lone surrogate, which no encoding of text has".into())),
        });
    }
    let is_array = value.hasattr("__len__")? && value.hasattr("__getitem__")? && value.hasattr("__iter__")?;
    let is_bytes = value.is_instance_of::<pyo3::types::PyBytes>() || value.is_instance_of::<pyo3::types::PyByteArray>();
    let is_mapping = value.is_instance_of::<PyDict>();
    if is_bytes || is_mapping || !(is_array || value.cast::<PySequence>().is_ok()) {
        let type_name = value.get_type().name()?;
        return Ok(Err(Error::Prompt(format!("a prompt is text or a list of token ids, not {type_name}"))));
    }
    let too_many =
        || Error::Prompt(format!("the prompt has more than {MAX_TOKENS} tokens, as many as any context holds"));
    // A length is what an object says of itself: `range(10**15)` is one.
    let n_tokens = match value.len() {
        Ok(n_tokens @ 0..=MAX_TOKENS) => n_tokens,
        Err(error) if !error.is_instance_of::<PyOverflowError>(value.py()) => return Err(error),
        Ok(_) | Err(_) => return Ok(Err(too_many())),
    };
    let mut tokens = Vec::with_capacity(n_tokens);
    for (place, item) in value.try_iter()?.enumerate() {
        if place >= MAX_TOKENS {
            return Ok(Err(too_many()));
        }
        match token(&item?, place)? {
            Ok(token) => tokens.push(token),
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(PromptInput::Tokens(tokens)))
}

fn token(item: &Bound<'_, PyAny>, place: usize) -> PyResult<Result<Token, Error>> {
    let Some(integer) = index(item)? else {
        let type_name = item.get_type().name()?;
        return Ok(Err(Error::Prompt(format!("a token id is an integer; item {place} of the prompt is {type_name}"))));
    };
    Ok(integer.extract::<Token>().map_err(|_| {
        let shown = integer.repr().map_or_else(|_| "it".into(), |r| r.to_string());
        Error::Prompt(format!("token id {shown} (item {place} of the prompt) is not in the vocabulary"))
    }))
}
