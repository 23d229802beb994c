//! Keys (`session`, `cache_scope`) as text, such that equal text means equal in Python, and back again for events.
//!
//! `s3:abc` is text with its length in bytes, `i-5;` an integer, `b6162;` bytes, `u…;` a UUID, `t2(…)` a tuple. Text
//! with lone surrogates is `x…;`, by its bytes. A top-level integer and text look as [`crate::options::Key`] writes them.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyInt, PyString, PyTuple};
use std::fmt::Write;

/// Deeper tuples are refused: a bound on recursion.
const MAX_DEPTH: usize = 16;

/// Encode a key; `None` where its type has no encoding.
pub(super) fn encode(value: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let mut out = String::new();
    let known = write_key(value, &mut out, 0)?;
    if out.starts_with('i') {
        out.pop();
    }
    Ok(known.then_some(out))
}

fn write_key(value: &Bound<'_, PyAny>, out: &mut String, depth: usize) -> PyResult<bool> {
    if value.is_instance_of::<PyBool>() || depth > MAX_DEPTH {
        return Ok(false);
    }
    if let Ok(text) = value.cast::<PyString>() {
        if let Ok(text) = text.to_cow() {
            let _ = write!(out, "s{}:{text}", text.len());
        } else {
            let bytes = text.call_method1("encode", ("utf-8", "surrogatepass"))?;
            write_hex('x', bytes.extract::<&[u8]>()?, out);
        }
        return Ok(true);
    }
    if let Ok(bytes) = value.cast::<PyBytes>() {
        write_hex('b', bytes.as_bytes(), out);
        return Ok(true);
    }
    if let Ok(tuple) = value.cast::<PyTuple>() {
        let _ = write!(out, "t{}(", tuple.len());
        for item in tuple.iter() {
            if !write_key(&item, out, depth + 1)? {
                return Ok(false);
            }
        }
        out.push(')');
        return Ok(true);
    }
    if let Some(number) = super::convert::index(value)? {
        if let Ok(n) = number.extract::<i128>() {
            let _ = write!(out, "i{n};");
        } else {
            // Hexadecimal, because Python limits the digits of decimal ones.
            let _ = write!(out, "h{};", number.call_method1("__format__", ("x",))?.extract::<String>()?);
        }
        return Ok(true);
    }
    if is_uuid(value)? {
        write_hex('u', value.getattr("bytes")?.extract::<&[u8]>()?, out);
        return Ok(true);
    }
    Ok(false)
}

fn write_hex(tag: char, bytes: &[u8], out: &mut String) {
    out.push(tag);
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
    out.push(';');
}

/// Whether it is a `uuid.UUID`; the module is looked at only if somebody imported it.
fn is_uuid(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let modules = value.py().import("sys")?.getattr("modules")?;
    match modules.get_item("uuid") {
        Ok(module) => value.is_instance(&module.getattr("UUID")?),
        Err(_) => Ok(false),
    }
}

/// The Python object that a key was made from (or an equal one).
pub(super) fn decode<'py>(py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyAny>> {
    let mut rest = key;
    read_key(py, &mut rest)
}

fn read_key<'py>(py: Python<'py>, rest: &mut &str) -> PyResult<Bound<'py, PyAny>> {
    let Some(tag) = rest.chars().next() else { return Ok(PyString::new(py, "").into_any()) };
    *rest = &rest[1..];
    match tag {
        's' => {
            let length = until(rest, ':').parse::<usize>().unwrap_or(0).min(rest.len());
            let (text, tail) = rest.split_at(length);
            *rest = tail;
            Ok(PyString::new(py, text).into_any())
        }
        'i' => Ok(until(rest, ';').parse::<i128>().unwrap_or(0).into_pyobject(py)?.into_any()),
        'h' => py.get_type::<PyInt>().call1((until(rest, ';'), 16)),
        't' => {
            let count = until(rest, '(').parse::<usize>().unwrap_or(0);
            let items = (0..count).map(|_| read_key(py, rest)).collect::<PyResult<Vec<_>>>()?;
            *rest = rest.strip_prefix(')').unwrap_or(rest);
            Ok(PyTuple::new(py, items)?.into_any())
        }
        other => {
            let bytes = py.get_type::<PyBytes>().call_method1("fromhex", (until(rest, ';'),))?;
            match other {
                'x' => bytes.call_method1("decode", ("utf-8", "surrogatepass")),
                'u' => py.import("uuid")?.getattr("UUID")?.call1((py.None(), bytes)),
                _ => Ok(bytes),
            }
        }
    }
}

/// What stands before the mark; the mark is skipped.
fn until<'a>(rest: &mut &'a str, mark: char) -> &'a str {
    let (head, tail) = rest.split_once(mark).unwrap_or((rest, ""));
    *rest = tail;
    head
}
