//! Sources that mean harm: each is refused or taken, and nothing hangs, aborts or panics. The runner's own limit is the
//! bound on time.

use super::*;
use std::fmt::Write;

/// Whatever comes of it, walk a little.
fn survive(source: &GrammarSource) -> Result<(), String> {
    let mut matcher = Matcher::new(&compile(source)?);
    for _ in 0..20 {
        let allowed = left(&mut matcher)?;
        matcher.accept(allowed[allowed.len() / 2])?;
        if matcher.is_over() {
            break;
        }
    }
    Ok(())
}

#[test]
fn a_source_that_is_too_large_is_refused() {
    let large = "a".repeat(1 << 20);
    for source in [
        GrammarSource::Regex(large.clone()),
        GrammarSource::JsonSchema(format!("{{\"const\":\"{large}\"}}")),
        gbnf(&format!("root ::= \"{large}\"")),
        GrammarSource::Choice(vec![large]),
    ] {
        assert!(compile(&source).err().unwrap().contains("the most are"));
    }
}

#[test]
fn deep_nesting_overflows_no_stack() {
    let n = 50_000;
    assert!(compile(&gbnf(&format!("root ::= {}\"a\"{}", "(".repeat(n), ")".repeat(n)))).is_err());
    assert!(compile(&GrammarSource::Regex(format!("{}a{}", "(".repeat(n), ")".repeat(n)))).is_err());
    assert!(compile(&GrammarSource::JsonSchema("[".repeat(n))).is_err());
    let nested = format!("{}true{}", "{\"items\":".repeat(120), "}".repeat(120));
    let _ = survive(&GrammarSource::JsonSchema(nested));
    let _ = survive(&gbnf(&format!("root ::= {}\"a\" root? \"b\"{}", "(".repeat(99), ")".repeat(99))));
    let _ = survive(&gbnf(&format!("root ::= \"a\"{}", "*".repeat(n))));
}

#[test]
fn long_chains_of_rules_and_references_overflow_no_stack() {
    for middle in ["", " \"x\"?", " root \"y\" |"] {
        let mut chain = String::from("root ::= \"(\" r0 \")\"\n");
        for i in 0..1990 {
            let _ = writeln!(chain, "r{i} ::= \"a\"{middle} r{}", i + 1);
        }
        chain.push_str("r1990 ::= \"b\"\n");
        let _ = survive(&gbnf(&chain));
    }
    let mut definitions = String::new();
    for i in 0..5000 {
        let _ = write!(definitions, "\"d{i}\":{{\"items\":{{\"$ref\":\"#/$defs/d{}\"}}}},", i + 1);
    }
    let schema = format!("{{\"$ref\":\"#/$defs/d0\",\"$defs\":{{{definitions}\"d5000\":true}}}}");
    assert!(compile(&GrammarSource::JsonSchema(schema)).err().unwrap().contains("nest"));
    let mut definitions = String::new();
    for i in 0..1900 {
        let _ = write!(definitions, "\"d{i}\":{{\"items\":{{\"$ref\":\"#/$defs/d{}\"}}}},", i + 1);
    }
    let schema = format!("{{\"$ref\":\"#/$defs/d0\",\"$defs\":{{{definitions}\"d1900\":true}}}}");
    survive(&GrammarSource::JsonSchema(schema)).unwrap();
}

#[test]
fn repetitions_of_repetitions_stay_within_bounds() {
    for text in [
        "root ::= ((\"a\"{2000}){2000}){2000}",
        "root ::= (([a-z]{0,2000}){0,2000}){0,2000} \"(\" root \")\" | \"z\"",
        "root ::= ((([a-b]* \"a\"){0,50} [a-b]*){0,50} \"b\"){0,50}",
    ] {
        let _ = survive(&gbnf(text));
    }
    for pattern in
        ["(a{1000}){1000}", "((a{1,100}){1,100}){1,100}", "(x+x+)+y", "(a|a)*(a|aa)*b", "[ab]*a[ab]{60}", "(.*a){30}"]
    {
        let _ = survive(&GrammarSource::Regex(pattern.into()));
    }
}

#[test]
fn doubling_rules_do_not_blow_up() {
    let mut text = String::from("root ::= r0\n");
    for i in 0..64 {
        let _ = writeln!(text, "r{i} ::= r{} r{}", i + 1, i + 1);
    }
    text.push_str("r64 ::= \"a\" | \"b\"\n");
    let _ = survive(&gbnf(&text));
}

#[test]
fn thousands_of_rules_and_texts_stay_within_bounds() {
    let n = 1990;
    let mut text = String::from("root ::= \"<\" root \">\" | ");
    for i in 0..n {
        let _ = write!(text, "{}r{i}", if i == 0 { "" } else { " | " });
    }
    for i in 0..n {
        let _ = write!(text, "\nr{i} ::= \"t{i}\" [a-z]* \"x\"");
    }
    let _ = survive(&gbnf(&text));
    for i in 0..3000 {
        let _ = write!(text, "\nq{i} ::= \"a\"");
    }
    assert!(compile(&gbnf(&text)).err().unwrap().contains("more than 2000 rules"));
    let texts: Vec<String> = (0..9000).map(|i| format!("text number {i} of many")).collect();
    let choice = compile(&GrammarSource::Choice(texts.clone()));
    assert!(choice.is_err() || takes(&choice.unwrap(), "text number 4711 of many"));
    let listed = serde_json::json!({ "enum": texts });
    let _ = survive(&GrammarSource::JsonSchema(listed.to_string()));
}

#[test]
fn circles_of_references_are_refused_or_end() {
    for schema in [
        r##"{"$ref":"#"}"##,
        r##"{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}"##,
        r##"{"allOf":[{"$ref":"#"}]}"##,
        r##"{"anyOf":[{"$ref":"#"},{"$ref":"#"}],"type":"object"}"##,
        r##"{"$ref":"#/$defs/missing"}"##,
        r#"{"$ref":"https://example.com/schema.json"}"#,
        r##"{"$ref":"#/$defs/a/%zz","$defs":{"a":1}}"##,
    ] {
        assert!(survive(&GrammarSource::JsonSchema(schema.into())).is_err(), "{schema}");
    }
}

#[test]
fn intersections_do_not_blow_up() {
    let union: Vec<_> =
        (0..40).map(|i| serde_json::json!({ "properties": { format!("p{i}"): { "const": i } } })).collect();
    let all: Vec<_> = (0..12).map(|_| serde_json::json!({ "anyOf": union })).collect();
    let _ = survive(&GrammarSource::JsonSchema(serde_json::json!({ "allOf": all }).to_string()));
    let wide: serde_json::Map<_, _> =
        (0..2000).map(|i| (format!("p{i}"), serde_json::json!({ "type": "string" }))).collect();
    let _ =
        survive(&GrammarSource::JsonSchema(serde_json::json!({ "type": "object", "properties": wide }).to_string()));
    let long = serde_json::json!({ "type": "array", "minItems": 1_000_000_000_u64 });
    let _ = survive(&GrammarSource::JsonSchema(long.to_string()));
    let long = serde_json::json!({ "type": "string", "minLength": 4_000_000_000_u64, "maxLength": 4_200_000_000_u64 });
    let _ = survive(&GrammarSource::JsonSchema(long.to_string()));
}
