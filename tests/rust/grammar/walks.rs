//! Random walks through random schemas: what comes of them satisfies the schema.

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

/// A plain validator of the keywords below.
fn validates(schema: &Value, value: &Value) -> bool {
    let number = |key: &str| schema.get(key).and_then(Value::as_f64);
    let count = |key: &str| schema.get(key).and_then(Value::as_u64).map(|n| n as usize);
    let within = |n: usize, least: &str, most: &str| {
        count(least).is_none_or(|least| n >= least) && count(most).is_none_or(|most| n <= most)
    };
    if let Some(options) = schema.get("anyOf").and_then(Value::as_array) {
        return options.iter().any(|option| validates(option, value));
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return values.contains(value);
    }
    match (schema.get("type").and_then(Value::as_str), value) {
        (Some("null"), Value::Null) | (Some("boolean"), Value::Bool(_)) => true,
        (Some(kind @ ("integer" | "number")), Value::Number(n)) => {
            let n = n.as_f64().unwrap();
            (kind == "number" || n.fract() == 0.0)
                && number("minimum").is_none_or(|min| n >= min)
                && number("exclusiveMaximum").is_none_or(|max| n < max)
                && number("multipleOf").is_none_or(|step| n % step == 0.0)
        }
        (Some("string"), Value::String(text)) => {
            within(text.chars().count(), "minLength", "maxLength")
                && (schema.get("pattern").is_none()
                    || !text.is_empty() && text.chars().all(|c| ('a'..='c').contains(&c) || c.is_ascii_digit()))
        }
        (Some("array"), Value::Array(items)) => {
            within(items.len(), "minItems", "maxItems") && items.iter().all(|item| validates(&schema["items"], item))
        }
        (Some("object"), Value::Object(map)) => {
            let required = schema["required"].as_array().unwrap();
            required.iter().all(|name| map.contains_key(name.as_str().unwrap()))
                && map.iter().all(|(name, value)| match schema["properties"].get(name) {
                    Some(of) => validates(of, value),
                    None => {
                        schema["additionalProperties"] != false && validates(&schema["additionalProperties"], value)
                    }
                })
        }
        _ => false,
    }
}

fn schemas() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({ "type": "null" })),
        Just(json!({ "type": "boolean" })),
        (-50..50_i64, 1..9_i64)
            .prop_map(|(min, n)| json!({ "type": "integer", "minimum": min, "exclusiveMaximum": min + n })),
        (-50..50_i64, 1..9_i64)
            .prop_map(|(min, n)| json!({ "type": "number", "minimum": min, "exclusiveMaximum": min + n })),
        (2..9_i64)
            .prop_map(|step| json!({ "type": "integer", "multipleOf": step, "minimum": 0, "exclusiveMaximum": 1000 })),
        (0..3_u64, 0..4_u64).prop_map(|(min, n)| json!({ "type": "string", "minLength": min, "maxLength": min + n })),
        Just(json!({ "type": "string", "pattern": "^[a-c\\d]+$", "maxLength": 6 })),
        Just(json!({ "enum": ["a", "ab", "\n\"", 1, 1.5, null, { "a": [] }, [true, "日本"]] })),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let name = || prop::sample::select(vec!["a", "ab", "name", "é", "a b"]);
        let properties = prop::collection::btree_map(name(), (inner.clone(), any::<bool>()), 0..4);
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(|options| json!({ "anyOf": options })),
            (inner.clone(), 0..3_u64, 0..3_u64).prop_map(
                |(items, min, n)| json!({ "type": "array", "items": items, "minItems": min, "maxItems": min + n })
            ),
            (properties, prop::option::of(inner)).prop_map(|(properties, more)| {
                let required: Vec<_> =
                    properties.iter().filter(|(_, (_, required))| *required).map(|(name, _)| *name).collect();
                let of: serde_json::Map<_, _> =
                    properties.iter().map(|(name, (of, _))| ((*name).into(), of.clone())).collect();
                let more = more.unwrap_or(Value::Bool(false));
                json!({ "type": "object", "properties": of, "required": required, "additionalProperties": more })
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn what_a_walk_says_satisfies_the_schema(schema in schemas(), seed in any::<[u8; 32]>()) {
        let grammar = compile(&GrammarSource::JsonSchema(schema.to_string())).unwrap();
        let mut rng = TestRng::from_seed(proptest::test_runner::RngAlgorithm::ChaCha, &seed);
        for _ in 0..3 {
            let Some(text) = walk(&grammar, &mut rng, 300) else { continue };
            let value: Value = serde_json::from_str(&text).unwrap();
            prop_assert!(validates(&schema, &value), "{} does not satisfy {}", text, schema);
        }
    }
}
