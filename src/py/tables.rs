//! The option tables, for `tools/gen_options.py`.

use crate::options::{EmbedOptions, OptionSpec, Options, RequestOptions, StartOptions};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// The tables, `start`, `request` and `embed`, as lists of rows in the order of declaration.
#[pyfunction]
pub(super) fn option_tables(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let tables = PyDict::new(py);
    tables.set_item("start", rows(py, &StartOptions::table())?)?;
    tables.set_item("request", rows(py, &RequestOptions::table())?)?;
    tables.set_item("embed", rows(py, &EmbedOptions::table())?)?;
    Ok(tables)
}

fn rows<'py>(py: Python<'py>, table: &[OptionSpec]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for spec in table {
        let row = PyDict::new(py);
        row.set_item("name", spec.name)?;
        row.set_item("type", spec.python_type)?;
        row.set_item("optional", spec.optional)?;
        row.set_item("default", &spec.default)?;
        row.set_item("minimum", spec.range.map(|r| r.min))?;
        row.set_item("maximum", spec.range.map(|r| r.max))?;
        row.set_item("choices", spec.choices)?;
        row.set_item("unit", spec.unit)?;
        row.set_item("aliases", spec.aliases)?;
        row.set_item("doc", spec.doc)?;
        list.append(row)?;
    }
    Ok(list)
}
