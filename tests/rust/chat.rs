//! Conversations without llama.cpp: what callers spell, and tools on templates that know none.

use llama_batch::backend::Tokenizer;
use llama_batch::chat::{Asked, Control, Controls, Conversation, Made, Template, render};
use llama_batch::core::{Begin, Token};
use llama_batch::error::Error;
use llama_batch::options::GrammarSource;
use proptest::prelude::*;
use serde_json::{Value, json};

const CONTROLS: [(&str, Token); 3] = [("<|a|>", 1000), ("<|a|>b", 1001), ("<end>", 1002)];

/// Bytes, and control tokens where they are parsed.
struct Bytes;

impl Tokenizer for Bytes {
    fn n_vocab(&self) -> u32 {
        1003
    }

    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<Token>, Error> {
        let (mut tokens, mut rest) = (if add_special { vec![999] } else { Vec::new() }, text.as_bytes());
        while !rest.is_empty() {
            let spelt = CONTROLS.iter().filter(|(text, _)| parse_special && rest.starts_with(text.as_bytes()));
            let longest = spelt.max_by_key(|(text, _)| text.len());
            let (token, length) = longest.map_or((Token::from(rest[0]), 1), |(text, token)| (*token, text.len()));
            tokens.push(token);
            rest = &rest[length..];
        }
        Ok(tokens)
    }

    fn piece(&self, token: Token, special: bool) -> Vec<u8> {
        match CONTROLS.iter().find(|(_, control)| *control == token) {
            Some((text, _)) if special => text.as_bytes().to_vec(),
            Some(_) => Vec::new(),
            None => vec![token as u8],
        }
    }

    fn is_eog(&self, token: Token) -> bool {
        token == 1002
    }
}

/// Turns between marks, white space around contents cut, as many templates do it.
struct Marks {
    tools: bool,
}

impl Template for Marks {
    fn knows_tools(&self) -> bool {
        self.tools
    }

    fn knows_parallel_calls(&self) -> bool {
        false
    }

    fn thinks(&self) -> bool {
        false
    }

    fn apply(&self, asked: &str) -> Result<Made, Error> {
        let asked: Value = serde_json::from_str(asked).unwrap();
        let turn = |message: &Value| {
            let content = match &message["content"] {
                Value::String(text) => text.clone(),
                Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
                other => panic!("{other}"),
            };
            format!("<|a|>{}:{}<end>", message["role"].as_str().unwrap(), content.trim())
        };
        let prompt = asked["messages"].as_array().unwrap().iter().map(turn).collect();
        Ok(Made { prompt, ..Made::default() })
    }
}

fn conversation(asked: &Value, tools: bool) -> Result<Conversation, Error> {
    let control =
        |(text, token): (&str, Token)| Control { token, text: text.into(), takes_left: false, takes_right: false };
    let controls = Controls::new(CONTROLS.map(control));
    render(&Asked::parse(&asked.to_string()).unwrap(), &Marks { tools }, &controls, &Bytes)
}

fn said() -> impl Strategy<Value = String> {
    let bits = ["<|a|>", "<|a|", "<end>", "<", "|", "a", ">", "b", " ", "é", "end>", "<|"];
    prop::collection::vec(prop::sample::select(bits.to_vec()), 0..8).prop_map(|bits| bits.concat())
}

proptest! {
    /// Whatever messages spell, and however a template joins their parts: the control tokens are the template's own, and the
    /// model reads what was said.
    #[test]
    fn no_message_spells_a_control_token(turns in prop::collection::vec(prop::collection::vec(said(), 1..4), 1..4)) {
        let content = |parts: &Vec<String>| match &parts[..] {
            [one] => json!(one),
            parts => parts.iter().map(|text| json!({"type": "text", "text": text})).collect(),
        };
        let messages: Vec<Value> = turns.iter().map(|parts| json!({"role": "user", "content": content(parts)})).collect();
        let done = conversation(&json!({"messages": messages}), false).unwrap();
        let turn = |parts: &Vec<String>| format!("<|a|>user:{}<end>", parts.concat().trim());
        let expected = turns.iter().map(turn).collect::<Vec<_>>().concat();
        prop_assert_eq!(&done.prompt, &expected);
        let read: Vec<u8> = done.tokens[1..].iter().flat_map(|token| Bytes.piece(*token, true)).collect();
        prop_assert_eq!(String::from_utf8(read).unwrap(), expected);
        let controls: Vec<Token> = done.tokens.iter().copied().filter(|token| *token >= 1000).collect();
        prop_assert_eq!(controls, [1000, 1002].repeat(turns.len()));
        prop_assert_eq!(done.tokens[0], 999);
    }
}

fn weather() -> Value {
    json!({"type": "function", "function": {"name": "weather", "description": "It <end>s well",
        "parameters": {"type": "object", "properties": {"city": {"$ref": "#/$defs/City"}}, "required": ["city"],
                       "$defs": {"City": {"enum": ["Rome", "Oslo"]}}}}})
}

#[test]
fn a_template_that_knows_no_tools_is_told_of_them_in_words() {
    let asked = json!({"tools": [weather()], "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Rome?"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "2", "content": "warm"},
    ]});
    let Conversation { prompt, tokens, shape, syntax } = conversation(&asked, false).unwrap();
    assert!(prompt.starts_with("<|a|>system:Be brief.\n\nYou can call"), "{prompt}");
    assert!(prompt.contains(
        "<|a|>assistant:<tool_call>\n{\"name\":\"weather\",\"arguments\":{\"city\":\"Rome\"}}\n</tool_call>"
    ));
    assert!(prompt.contains("<tool_response>\nsunny\n</tool_response>\n<tool_response>\nwarm\n</tool_response>"));
    assert_eq!(tokens.iter().filter(|token| **token == 1002).count(), 4, "a description spells none");
    let (source, begin) = shape.grammar.unwrap();
    assert_eq!(begin, Begin::Behind(vec!["<tool_call>".into()]));
    let GrammarSource::JsonSchema(schema) = source else { panic!("{source:?}") };
    assert!(schema.contains("#/properties/arguments/$defs/City"), "{schema}");
    assert!(syntax.contains("by_hand"));
}

#[test]
fn a_required_call_is_all_that_an_answer_can_be() {
    let named = json!({"type": "function", "function": {"name": "weather"}});
    for choice in [json!("required"), named] {
        let asked =
            json!({"messages": [{"role": "user", "content": "x"}], "tools": [weather()], "tool_choice": choice});
        let shape = conversation(&asked, false).unwrap().shape;
        assert_eq!(shape.grammar.unwrap().1, Begin::default());
    }
    let none = json!({"messages": [{"role": "user", "content": "x"}], "tools": [weather()], "tool_choice": "none"});
    let done = conversation(&none, false).unwrap();
    assert_eq!((done.shape.grammar, done.prompt.as_str()), (None, "<|a|>user:x<end>"));
}

#[test]
fn tools_that_are_none_are_refused() {
    let function = |name: &str| json!({"type": "function", "function": {"name": name}});
    for (tools, choice, reason) in [
        (json!([{"type": "retrieval"}]), json!("auto"), "function"),
        (json!([{"type": "function", "function": {}}]), json!("auto"), "name"),
        (json!([function("a b")]), json!("auto"), "letters"),
        (json!([function("a"), function("a")]), json!("auto"), "two tools"),
        (json!([function("a")]), json!("sometimes"), "tool_choice"),
        (json!([function("a")]), json!({"type": "function", "function": {"name": "b"}}), "no tool"),
        (json!([]), json!("required"), "no tools"),
    ] {
        let asked = json!({"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": choice});
        let refused = conversation(&asked, false);
        assert!(matches!(&refused, Err(Error::Template(text)) if text.contains(reason)), "{reason}: {refused:?}");
    }
    let spells = json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {"<end>": {}}}}});
    let asked = json!({"messages": [{"role": "user", "content": "x"}], "tools": [spells]});
    assert!(matches!(conversation(&asked, true), Err(Error::Template(text)) if text.contains("control token")));
    let both = json!({"messages": [{"role": "user", "content": "x"}], "tools": [function("a")], "json_schema": "{}"});
    assert!(matches!(conversation(&both, false), Err(Error::Template(text)) if text.contains("together")));
}
