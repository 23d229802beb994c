//! JSON schemas: which answers they take. Python validates walks through many in `tests/python`.

use super::*;
use serde_json::{Value, json};

fn schema(value: &Value) -> Result<Grammar, String> {
    compile(&GrammarSource::JsonSchema(value.to_string()))
}

fn check(value: &Value, takes_all: &[&str], takes_none: &[&str]) {
    let grammar = schema(value).unwrap_or_else(|e| panic!("{value}: {e}"));
    for answer in takes_all {
        assert!(takes(&grammar, answer), "{value} takes {answer}");
    }
    for answer in takes_none {
        assert!(!takes(&grammar, answer), "{value} does not take {answer}");
    }
}

fn refused(value: &Value, reason: &str) {
    let error = schema(value).err().unwrap_or_else(|| panic!("{value} was taken"));
    assert!(error.contains(reason), "{value}: {error}");
}

#[test]
fn a_schema_without_constraints_takes_any_json() {
    for any in [json!({}), json!(true), json!({ "title": "anything", "x-more": 1 })] {
        check(&any, &["1", "null", "{}", "[1, {\"a\": \"b\"}]", "\"日本\"", "-1.5e3"], &["", "{", "tru", "01"]);
    }
}

#[test]
fn what_is_no_schema_is_refused() {
    assert!(compile(&GrammarSource::JsonSchema("{".into())).err().unwrap().contains("line 1"));
    for bad in [json!(1), json!("a"), json!([]), json!(null), json!(false)] {
        assert!(schema(&bad).is_err());
    }
    refused(&json!({ "properties": { "a": { "items": 3 } } }), "#/properties/a/items");
    refused(&json!({ "type": "text" }), "text");
    refused(&json!({ "$ref": "#" }), "no answer can satisfy it");
}

#[test]
fn objects_keep_their_properties_and_allow_more_unless_told() {
    let object = json!({ "type": "object", "properties": { "a": { "type": "integer" }, "b": { "type": "string" } },
        "required": ["a"] });
    check(
        &object,
        &["{\"a\":1}", "{\"a\": 1, \"b\": \"x\"}", "{\"a\":1,\"c\":[]}"],
        &["{}", "{\"b\":\"x\"}", "{\"a\":\"x\"}"],
    );
    // Under another spelling a key would stand twice, and the second one count.
    check(&object, &[], &["{\"a\":1,\"a\":\"x\"}", "{\"a\":1,\"\\u0061\":\"x\"}"]);
    let mut closed = object.clone();
    closed["additionalProperties"] = json!(false);
    check(&closed, &["{\"a\":1,\"b\":\"\"}"], &["{\"a\":1,\"c\":1}"]);
}

#[test]
fn white_space_does_not_run_on() {
    let object = json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"] });
    check(
        &object,
        &["{ \"a\" : 1 }", "{\n  \"a\": 1\n}"],
        &["{  \"a\":1}", "{\n\n\"a\":1}", " {\"a\":1}", "{\"a\":\n \n1}"],
    );
}

#[test]
fn keywords_are_enforced() {
    check(&json!({ "type": "integer", "minimum": 3, "maximum": 12 }), &["3", "12"], &["2", "13", "3.5", "-3"]);
    check(&json!({ "type": "integer", "multipleOf": 5 }), &["0", "-15"], &["3"]);
    check(
        &json!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1.5 }),
        &["0.1", "1.5", "1"],
        &["0", "1.51", "2"],
    );
    check(&json!({ "enum": ["x", 1, null, [1]] }), &["\"x\"", "1", "null", "[1]"], &["2", "\"y\"", "[]"]);
    check(&json!({ "const": { "a": [true] } }), &["{\"a\":[true]}"], &["{}", "{\"a\":[false]}"]);
    check(
        &json!({ "type": "array", "items": { "type": "boolean" }, "minItems": 1, "maxItems": 2 }),
        &["[true]", "[true, false]"],
        &["[]", "[true,true,true]", "[1]"],
    );
    check(
        &json!({ "type": "string", "minLength": 2, "maxLength": 3 }),
        &["\"ab\"", "\"日本é\"", "\"\\n\\\\\""],
        &["\"a\"", "\"abcd\""],
    );
    check(&json!({ "type": "string", "pattern": "^[a-c]+\\d$" }), &["\"ab1\""], &["\"1\"", "\"ab\"", "\"xab1\""]);
    check(&json!({ "anyOf": [{ "type": "integer" }, { "type": "null" }] }), &["1", "null"], &["\"a\""]);
    check(&json!({ "oneOf": [{ "const": "a" }, { "type": "integer" }] }), &["\"a\"", "7"], &["\"b\""]);
    check(&json!({ "allOf": [{ "type": "integer" }, { "minimum": 5 }] }), &["5"], &["4"]);
    check(
        &json!({ "prefixItems": [{ "const": 1 }], "items": false, "type": "array", "minItems": 1 }),
        &["[1]"],
        &["[2]", "[1,2]"],
    );
    check(
        &json!({ "type": "object", "patternProperties": { "^a": { "type": "integer" } }, "additionalProperties": false }),
        &["{}", "{\"ab\":1}"],
        &["{\"b\":1}", "{\"ab\":\"x\"}"],
    );
    check(&json!({ "type": ["string", "null"] }), &["null", "\"\""], &["1"]);
}

#[test]
fn references_may_recurse() {
    let tree = json!({ "$ref": "#/$defs/node", "$defs": { "node": { "type": "object", "required": ["v"],
        "properties": { "v": { "type": "integer" }, "next": { "$ref": "#/$defs/node" } }, "additionalProperties": false } } });
    check(&tree, &["{\"v\":1}", "{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3}}}"], &["{}", "{\"v\":1,\"next\":1}"]);
    let elsewhere =
        json!({ "$ref": "#/components/schemas/a~1%20b", "components": { "schemas": { "a/ b": { "type": "null" } } } });
    check(&elsewhere, &["null"], &["1"]);
    refused(&json!({ "$ref": "#/x", "x": { "not": {} } }), "#/x: `not`");
}

#[test]
fn formats_hold() {
    let format = |name: &str| json!({ "type": "string", "format": name });
    check(
        &format("date"),
        &["\"2024-02-29\"", "\"2023-12-31\"", "\"2000-02-29\""],
        &["\"2023-02-29\"", "\"1900-02-29\"", "\"0000-01-01\"", "\"2023-13-01\"", "\"2023-04-31\""],
    );
    check(
        &format("date-time"),
        &["\"2024-02-29T23:59:59Z\"", "\"2024-01-01T00:00:00.123+02:00\""],
        &["\"2023-02-29T00:00:00Z\"", "\"2024-01-01\""],
    );
    check(&format("time"), &["\"12:30:00Z\""], &["\"25:00:00Z\"", "\"12:30\""]);
    check(&format("uuid"), &["\"123e4567-e89b-12d3-a456-426614174000\""], &["\"123\""]);
    check(&format("email"), &["\"a@b.cd\""], &["\"a\"", "\"a@\""]);
    check(&format("ipv4"), &["\"127.0.0.1\""], &["\"256.0.0.1\""]);
    check(&format("ipv6"), &["\"::1\""], &["\"1\""]);
    check(&format("uri"), &["\"https://a.b/c?d#e\""], &["\"a b\""]);
    check(&format("hostname"), &["\"a-b.c\""], &["\"-a\""]);
    check(&json!({ "type": "integer", "format": "int32" }), &["1"], &[]);
    check(
        &json!({ "type": "string", "format": "date", "pattern": "^2024" }),
        &["\"2024-02-29\""],
        &["\"2023-01-01\"", "\"2024-02-30\""],
    );
    refused(&format("color"), "`format`");
}

#[test]
fn what_cannot_be_enforced_is_refused_with_its_path() {
    for (key, value) in [
        ("not", json!({})),
        ("if", json!({})),
        ("uniqueItems", json!(true)),
        ("contains", json!({})),
        ("dependentRequired", json!({})),
        ("propertyNames", json!({})),
        ("unevaluatedProperties", json!(false)),
        ("$dynamicRef", json!("#a")),
        ("multipleOf", json!(0.01)),
        ("minProperties", json!(3)),
        ("minimum", json!(u64::MAX)),
    ] {
        refused(&json!({ "properties": { "p": { key: value } } }), "#/properties/p: ");
    }
    refused(&json!({ "oneOf": [{ "type": "integer" }, { "type": "number" }] }), "oneOf");
    refused(&json!({ "$ref": "other.json" }), "leads out");
    refused(&json!({ "const": "a\u{1}" }), "control character");
    check(&json!({ "uniqueItems": false, "type": "array", "maxItems": 0 }), &["[]"], &["[1]"]);
    // What is named like a keyword is none where names of properties stand.
    check(
        &json!({ "type": "object", "properties": { "not": { "type": "null" }, "$ref": { "type": "null" } }, "required": ["not", "$ref"], "additionalProperties": false }),
        &["{\"not\":null,\"$ref\":null}"],
        &[],
    );
    // What another program would read as an order to be lenient is none.
    refused(&json!({ "x-guidance": { "lenient": true }, "properties": { "p": { "not": {} } } }), "`not`");
}

#[test]
fn an_array_s_and_an_object_s_end_is_the_answer_s() {
    let grammar = schema(&json!({ "type": "array", "items": { "type": "null" } })).unwrap();
    let mut matcher = Matcher::new(&grammar);
    for byte in b"[null]" {
        matcher.accept(Token::from(*byte)).unwrap();
    }
    assert!(matcher.allows(EOG[0]).unwrap());
}
