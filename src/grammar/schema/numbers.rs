//! Numbers in schemas: llguidance counts in binary floating point, so only what that holds exactly is taken.

use serde_json::{Map, Number, Value};

const BOUNDS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// The largest integer up to which floating point holds all.
const EXACT: u64 = 1 << 53;

pub(super) fn check(schema: &Map<String, Value>) -> Result<(), String> {
    for key in BOUNDS {
        if let Some(Value::Number(number)) = schema.get(key) {
            check_one(number).map_err(|e| format!("`{key}`: {e}"))?;
        }
    }
    if let Some(step) = schema.get("multipleOf").and_then(Value::as_f64) {
        check_step(step)?;
    }
    let listed = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
    let mut todo: Vec<&Value> = schema.get("const").into_iter().chain(listed).collect();
    while let Some(value) = todo.pop() {
        match value {
            Value::Number(number) => check_one(number)?,
            Value::Array(items) => todo.extend(items),
            Value::Object(map) => todo.extend(map.values()),
            Value::Null | Value::Bool(_) | Value::String(_) => {}
        }
    }
    Ok(())
}

fn check_one(number: &Number) -> Result<(), String> {
    let integer = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
    match integer {
        Some(integer) if integer > EXACT => Err(format!("{number} is too large to be compared exactly")),
        _ => Ok(()),
    }
}

/// Validators divide: only where that is exact does a multiple pass for one.
fn check_step(step: f64) -> Result<(), String> {
    let exact = step > 0.0 && (0..=10).any(|power| (step * f64::from(1 << power)).fract() == 0.0);
    if exact {
        return Ok(());
    }
    Err(format!("`multipleOf`: multiples of {step} are not exact in floating point, where answers are validated"))
}
