//! Formats of strings.

use serde_json::{Map, Value};

/// The formats that answers keep to.
const KNOWN: [&str; 10] = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// A day that there is: llguidance has each year be a leap year, and one that is 0000.
const DATE: &str = concat!(
    "(?:(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-",
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    "|(?:(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26]))|(?:(?:0[48]|[2468][048]|[13579][26])00))-02-29)"
);

/// A time without leap seconds, which not all libraries take.
const TIME: &str =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

/// Refuse a format that is not known, and narrow those of dates and times.
pub(super) fn narrow(schema: &mut Map<String, Value>) -> Result<(), String> {
    let Some(format) = schema.get("format") else { return Ok(()) };
    let of_strings = match schema.get("type") {
        None => true,
        Some(Value::Array(types)) => types.iter().any(|one| one == "string"),
        Some(one) => one == "string",
    };
    if !of_strings {
        // As OpenAPI has them for numbers: annotations.
        schema.remove("format");
        return Ok(());
    }
    let Some(format) = format.as_str().filter(|format| KNOWN.contains(format)) else {
        return Err(format!("`format`: {format} is not supported; those that are: {}", KNOWN.join(", ")));
    };
    let pattern = match format {
        "date" => format!("^{DATE}$"),
        "time" => format!("^{TIME}$"),
        "date-time" => format!("^{DATE}T{TIME}$"),
        _ => return Ok(()),
    };
    if !schema.contains_key("pattern") {
        schema.insert("pattern".into(), Value::String(pattern));
        return Ok(());
    }
    let narrower = serde_json::json!({ "pattern": pattern, "type": "string" });
    let narrower =
        serde_json::json!({ "anyOf": [narrower, { "type": ["null", "boolean", "number", "array", "object"] }] });
    let all = schema.entry("allOf").or_insert_with(|| Value::Array(Vec::new()));
    all.as_array_mut().ok_or("`allOf` is no list")?.push(narrower);
    Ok(())
}
