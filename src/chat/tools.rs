//! Tools on models whose template knows none: told in words, called in the way that most models have seen.
//!
//! The way is that of Hermes and Qwen: a call is JSON between tags. The tag is what triggers the grammar, so that a call
//! that is begun is a call of one of the tools, with arguments that keep to its schema.

use super::asked::ToolChoice;
use crate::core::{Begin, Shape};
use crate::options::GrammarSource;
use serde_json::{Map, Value, json};

/// What begins and ends a call.
const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

type Message = Map<String, Value>;

/// Whether messages tell of calls or of what came of them.
pub(super) fn mentioned(messages: &[Message]) -> bool {
    let calls = |message: &Message| message.get("tool_calls").is_some_and(|calls| !calls.is_null());
    messages.iter().any(|message| calls(message) || role(message) == "tool")
}

fn role(message: &Message) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

/// The messages with tools, calls and results as plain text.
pub(super) fn by_hand(messages: Vec<Message>, tools: &[Value], choice: ToolChoice) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    for mut message in messages {
        if let Some(Value::Array(calls)) = message.remove("tool_calls") {
            let said = text(message.get("content"));
            let calls = calls.iter().map(call_text);
            let parts: Vec<String> = [said].into_iter().filter(|said| !said.is_empty()).chain(calls).collect();
            message.insert("content".into(), parts.join("\n").into());
        }
        if role(&message) == "tool" {
            let result = format!("<tool_response>\n{}\n</tool_response>", text(message.get("content")));
            // Results of several calls are one message: templates want users and assistants in turn.
            if let Some(last) = out.last_mut().filter(|last| last.contains_key("of_tools")) {
                let joined = format!("{}\n{result}", text(last.get("content")));
                last.insert("content".into(), joined.into());
                continue;
            }
            message = Message::new();
            message.insert("role".into(), "user".into());
            message.insert("content".into(), result.into());
            message.insert("of_tools".into(), true.into());
        }
        out.push(message);
    }
    for message in &mut out {
        message.remove("of_tools");
    }
    if !tools.is_empty() {
        instruct(&mut out, &instructions(tools, choice));
    }
    out
}

/// A call as it is written.
fn call_text(call: &Value) -> String {
    let name = call.pointer("/function/name").cloned().unwrap_or_default();
    let arguments = match call.pointer("/function/arguments") {
        Some(Value::String(text)) => serde_json::from_str(text).unwrap_or_else(|_| text.clone().into()),
        Some(other) => other.clone(),
        None => json!({}),
    };
    format!("{OPEN}\n{}\n{CLOSE}", json!({"name": name, "arguments": arguments}))
}

/// The text of a message's content: a text, or the texts among its parts.
fn text(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str));
            texts.collect::<Vec<_>>().join("\n")
        }
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

/// What the model is told of its tools.
fn instructions(tools: &[Value], choice: ToolChoice) -> String {
    let functions = tools.iter().filter_map(|tool| tool.get("function")).map(Value::to_string);
    let listed = functions.collect::<Vec<_>>().join("\n");
    let when = if choice == ToolChoice::Required {
        "Answer with a call of one of them:"
    } else {
        "To call one of them, answer with:"
    };
    format!(
        "You can call these functions, each given with a JSON schema of its parameters:\n{listed}\n\n{when}\n\
         {OPEN}\n{{\"name\": <function's name>, \"arguments\": <object of its arguments>}}\n{CLOSE}"
    )
}

/// Put instructions into the system message, or before all others where there is none.
fn instruct(messages: &mut Vec<Message>, instructions: &str) {
    if let Some(first) = messages.first_mut().filter(|first| matches!(role(first), "system" | "developer")) {
        let said = text(first.get("content"));
        first.insert("content".into(), format!("{said}\n\n{instructions}").into());
        return;
    }
    let mut system = Message::new();
    system.insert("role".into(), "system".into());
    system.insert("content".into(), instructions.into());
    messages.insert(0, system);
}

/// What the answer looks like.
pub(super) fn shape(tools: &[Value], choice: ToolChoice) -> Shape {
    let source = GrammarSource::JsonSchema(schema(tools).to_string());
    let begin = match choice {
        ToolChoice::Required => Begin::default(),
        ToolChoice::Auto | ToolChoice::None => Begin::Behind(vec![OPEN.into()]),
    };
    Shape { grammar: Some((source, begin)), ..Shape::default() }
}

/// The schema of a call.
fn schema(tools: &[Value]) -> Value {
    let is_one = tools.len() == 1;
    let call = |(place, tool): (usize, &Value)| {
        let name = tool.pointer("/function/name").cloned().unwrap_or_default();
        let base =
            if is_one { "#/properties/arguments".into() } else { format!("#/anyOf/{place}/properties/arguments") };
        let parameters = match tool.pointer("/function/parameters") {
            Some(Value::Object(schema)) if !schema.is_empty() => moved(schema.clone().into(), &base),
            Some(_) | None => json!({"type": "object", "properties": {}, "additionalProperties": false}),
        };
        json!({
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": parameters},
            "required": ["name", "arguments"],
            "additionalProperties": false,
        })
    };
    let mut calls: Vec<Value> = tools.iter().enumerate().map(call).collect();
    if is_one { calls.remove(0) } else { json!({ "anyOf": calls }) }
}

/// A schema that stands within another one: its references to itself lead there.
fn moved(mut schema: Value, base: &str) -> Value {
    match &mut schema {
        Value::Object(map) => {
            for (key, value) in map {
                let to = value.as_str().filter(|to| key == "$ref" && (*to == "#" || to.starts_with("#/")));
                *value = match to {
                    Some(to) => format!("{base}{}", &to[1..]).into(),
                    None => moved(value.take(), base),
                };
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = moved(item.take(), base)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    schema
}
