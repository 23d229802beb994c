//! Numbers in schemas: llguidance counts in binary floating point, so only what that holds exactly is taken.

use serde_json::{Map, Number, Value};

const BOUNDS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// The largest integer up to which floating point holds all.
const EXACT: u64 = 1 << 53;

/// Larger steps make automata that take seconds: as many states as the step is large.
const MAX_STEP: f64 = 4096.0;

/// By what part of a bound an answer stays away from one that is excluded: many decimals round to the bound itself.
const MARGIN: f64 = 1e-9;

/// Make excluded bounds of numbers ones that may be reached, a little further in.
pub(super) fn narrow(schema: &mut Map<String, Value>) {
    if schema.get("type").is_some_and(|kind| kind == "integer") {
        return;
    }
    for (excluded, reached, inwards) in [("exclusiveMinimum", "minimum", 1.0), ("exclusiveMaximum", "maximum", -1.0)] {
        let Some(bound) = schema.get(excluded).and_then(Value::as_f64) else { continue };
        let moved = bound + inwards * (bound.abs() * MARGIN).max(MARGIN);
        let known = schema.get(reached).and_then(Value::as_f64);
        let tighter = known.filter(|known| (known - moved) * inwards > 0.0).unwrap_or(moved);
        if let Some(number) = Number::from_f64(tighter) {
            schema.remove(excluded);
            schema.insert(reached.into(), Value::Number(number));
        }
    }
}

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
    if exact && step > MAX_STEP {
        return Err(format!("`multipleOf`: {step} is more than {MAX_STEP}, and takes too long to compile"));
    }
    if exact {
        return Ok(());
    }
    Err(format!("`multipleOf`: multiples of {step} are not exact in floating point, where answers are validated"))
}
