//! What JSON schemas mean to those who validate the answer.
//!
//! llguidance compiles a schema; here it is walked first, so that each answer also satisfies the `jsonschema` library of
//! Python. What cannot be enforced is refused with its path: llguidance refuses most of that itself, but says not where.
//! Where the two read a keyword differently (patterns, dates), the schema is narrowed to what both take.
//!
//! Words that no draft of JSON schema gives a meaning are annotations, as the standard has it. A `format` of strings that
//! is not known is refused: nobody should believe that it holds.

mod formats;
mod numbers;
mod patterns;

use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Schemas within each other, references followed, at most: llguidance calls itself for each.
const MAX_DEPTH: usize = 4000;

/// Subschemas, at most.
const MAX_SCHEMAS: usize = 20_000;

/// Keywords that constrain and that no grammar here enforces.
const UNSUPPORTED: [&str; 19] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependentSchemas",
    "dependentRequired",
    "dependencies",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    "extends",
    "disallow",
    "divisibleBy",
];

/// Keywords that constrain nothing.
const ANNOTATIONS: [&str; 13] = [
    "title",
    "description",
    "default",
    "examples",
    "$comment",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentMediaType",
    "contentEncoding",
    "contentSchema",
    "$vocabulary",
    "x-guidance",
];

const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];
const OF_SCHEMAS: [&str; 2] = ["properties", "patternProperties"];
const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
const SINGLE: [&str; 3] = ["items", "additionalItems", "additionalProperties"];

/// Read a schema, and make it one whose every answer validates.
pub(super) fn checked(text: &str) -> Result<Value, String> {
    let mut root: Value = serde_json::from_str(text).map_err(|e| format!("the schema is no JSON: {e}"))?;
    if root == Value::Bool(false) {
        return Err("the schema `false` allows no answer".into());
    }
    let mut walk = Walk::default();
    walk.part(String::new());
    while let Some(place) = walk.todo.pop() {
        let path = &place.path;
        let Some(schema) = root.pointer_mut(path) else {
            return Err(format!("{}: the reference leads nowhere", shown(path)));
        };
        if let Some(schema) = schema.as_object_mut() {
            walk.visit(schema, &place).map_err(|e| format!("{}: {e}", shown(path)))?;
        } else if !schema.is_boolean() {
            return Err(format!("{}: a schema is a JSON object or a boolean", shown(path)));
        }
    }
    let depth = walk.depth();
    if depth > MAX_DEPTH {
        return Err(format!("the schema may nest {depth} deep, its references followed; the most is {MAX_DEPTH}"));
    }
    Ok(root)
}

/// A path as people write it.
fn shown(path: &str) -> String {
    format!("#{path}")
}

/// A schema to look at.
struct Place {
    path: String,
    part: usize,
    /// How deep it is in its part.
    level: usize,
}

#[derive(Default)]
struct Walk {
    todo: Vec<Place>,
    /// The part that each schema belongs to.
    part_of: BTreeMap<String, usize>,
    /// How deep each part nests: the root, each definition, and other targets of references.
    depths: Vec<usize>,
    /// The schemas that references lead to.
    targets: BTreeSet<String>,
}

impl Walk {
    fn visit(&mut self, schema: &mut Map<String, Value>, place: &Place) -> Result<(), String> {
        if self.part_of.len() > MAX_SCHEMAS {
            return Err(format!("more than {MAX_SCHEMAS} subschemas"));
        }
        if let Some(key) = UNSUPPORTED.iter().find(|key| !is_idle(schema, key)) {
            return Err(format!("`{key}` is not supported"));
        }
        schema.retain(|key, _| !ANNOTATIONS.contains(&key.as_str()) && !UNSUPPORTED.contains(&key.as_str()));
        if !place.path.is_empty() && schema.contains_key("$id") {
            return Err("`$id` within a schema is not supported".into());
        }
        numbers::check(schema)?;
        numbers::narrow(schema);
        check_texts(schema)?;
        check_counts(schema)?;
        patterns::narrow(schema)?;
        formats::narrow(schema)?;
        self.children(schema, place);
        self.reference(schema)
    }

    /// A schema that is compiled on its own.
    fn part(&mut self, path: String) {
        if !self.part_of.contains_key(&path) {
            let part = self.depths.len();
            self.depths.push(1);
            self.part_of.insert(path.clone(), part);
            self.todo.push(Place { path, part, level: 1 });
        }
    }

    /// A schema within another one.
    fn child(&mut self, path: String, of: &Place) {
        if !self.part_of.contains_key(&path) {
            let (part, level) = (of.part, of.level + 1);
            self.depths[part] = self.depths[part].max(level);
            self.part_of.insert(path.clone(), part);
            self.todo.push(Place { path, part, level });
        }
    }

    fn children(&mut self, schema: &Map<String, Value>, place: &Place) {
        let path = &place.path;
        for (key, value) in schema {
            let key = key.as_str();
            let names = value.as_object().into_iter().flat_map(Map::keys);
            let n_listed = value.as_array().map_or(0, Vec::len);
            if DEFINITIONS.contains(&key) {
                names.for_each(|name| self.part(format!("{path}/{key}/{}", escaped(name))));
            } else if OF_SCHEMAS.contains(&key) {
                names.for_each(|name| self.child(format!("{path}/{key}/{}", escaped(name)), place));
            } else if LISTS.contains(&key) || (key == "items" && value.is_array()) {
                (0..n_listed).for_each(|i| self.child(format!("{path}/{key}/{i}"), place));
            } else if SINGLE.contains(&key) {
                self.child(format!("{path}/{key}"), place);
            }
        }
    }

    fn reference(&mut self, schema: &Map<String, Value>) -> Result<(), String> {
        let Some(reference) = schema.get("$ref") else { return Ok(()) };
        let Some(reference) = reference.as_str() else { return Err("`$ref` is no text".into()) };
        let Some(fragment) = reference.strip_prefix('#') else {
            return Err(format!("`$ref`: {reference:?} leads out of the schema; only what begins with # does not"));
        };
        let path = decoded(fragment);
        if path.is_empty() || path.starts_with('/') {
            self.targets.insert(path.clone());
            self.part(path);
        }
        Ok(())
    }

    /// How deep a compiler may call itself: it follows each reference once, from wherever it meets it.
    fn depth(&self) -> usize {
        let targets = self.targets.iter().filter_map(|path| self.part_of.get(path));
        self.depths[0] + targets.map(|part| self.depths[*part]).sum::<usize>()
    }
}

/// Whether a keyword says nothing here.
fn is_idle(schema: &Map<String, Value>, key: &str) -> bool {
    match schema.get(key) {
        None => true,
        Some(Value::Bool(value)) => match key {
            "uniqueItems" => !value,
            "unevaluatedItems" | "unevaluatedProperties" | "propertyNames" => *value,
            _ => false,
        },
        Some(_) => false,
    }
}

/// A key as a step of a JSON pointer.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Take the percent signs out of a fragment of a URI.
fn decoded(fragment: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), fragment.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A text that is given must be one that the grammar can write.
fn check_texts(schema: &Map<String, Value>) -> Result<(), String> {
    let given =
        schema.get("const").into_iter().chain(schema.get("enum").and_then(Value::as_array).into_iter().flatten());
    let mut todo: Vec<&Value> = given.collect();
    while let Some(value) = todo.pop() {
        match value {
            Value::String(text) if !writable(text) => {
                return Err(format!("{text:?} has a control character that answers cannot have"));
            }
            Value::Array(items) => todo.extend(items),
            Value::Object(map) => todo.extend(map.values()),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    Ok(())
}

/// Answers escape what has a short escape and nothing else: each text is then written in one way alone, and a key cannot
/// stand twice in an object under another spelling.
pub(super) const ESCAPES: &str = "nrbtf\\\"";

fn writable(text: &str) -> bool {
    !text.chars().any(|c| c == '\u{7f}' || (c < ' ' && !matches!(c, '\n' | '\r' | '\u{8}' | '\t' | '\u{c}')))
}

/// Keys that are not listed may stand twice in an answer, and then count once.
fn check_counts(schema: &Map<String, Value>) -> Result<(), String> {
    let Some(min) = schema.get("minProperties").and_then(Value::as_u64) else { return Ok(()) };
    let required = schema.get("required").and_then(Value::as_array).map_or(0, |names| names.len() as u64);
    if min > required + 1 {
        return Err("`minProperties` beyond the required properties and one more is not supported".into());
    }
    Ok(())
}
