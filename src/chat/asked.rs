//! What a caller asks of a conversation.

use crate::error::Error;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A conversation to be answered, with the names that OpenAI's API and llama-server have.
#[derive(Clone, Debug, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "a caller's switches")]
pub struct Asked {
    /// Messages, each an object with a role.
    pub messages: Vec<Map<String, Value>>,
    /// Functions that the answer may call, as OpenAI's API has them.
    #[serde(default)]
    pub tools: Vec<Value>,
    /// Whether it calls them: "auto", "none", "required", or an object that names one.
    #[serde(default)]
    pub tool_choice: Value,
    /// Whether it may call several; none means as the template can.
    #[serde(default)]
    pub parallel_tool_calls: Option<bool>,
    /// Whether a model that can think aloud before it answers does so.
    #[serde(default)]
    pub enable_thinking: Option<bool>,
    /// Whether what it thinks is told apart from the answer.
    #[serde(default = "yes")]
    pub separate_reasoning: bool,
    /// What else the template is told.
    #[serde(default)]
    pub chat_template_kwargs: Map<String, Value>,
    /// Whether the last message is an answer to be gone on with.
    #[serde(default)]
    pub continue_final_message: bool,
    /// Whether the prompt ends with what begins an answer.
    #[serde(default = "yes")]
    pub add_generation_prompt: bool,
    /// A template in the place of the model's own.
    #[serde(default)]
    pub chat_template: Option<String>,
    /// The JSON schema that the answer keeps to.
    #[serde(default)]
    pub json_schema: Option<String>,
    /// Whether it keeps to a grammar of another kind.
    #[serde(default)]
    pub is_constrained: bool,
}

const fn yes() -> bool {
    true
}

/// Whether an answer calls functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// If it wants to.
    Auto,
    /// It does not.
    None,
    /// It does nothing else.
    Required,
}

impl ToolChoice {
    /// llama.cpp's word for it.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::None => "none",
            Self::Required => "required",
        }
    }
}

impl Asked {
    /// Read it from JSON.
    ///
    /// # Errors
    /// [`Error::Template`] with the reason.
    pub fn parse(json: &str) -> Result<Self, Error> {
        serde_json::from_str(json).map_err(|error| Error::Template(format!("the messages do not read: {error}")))
    }

    /// Whether and which functions are called: a choice that names one leaves only that one, required.
    pub(super) fn settled(&self) -> Result<(Vec<Value>, ToolChoice), Error> {
        let names = self.tools.iter().enumerate().map(|(place, tool)| name_of(place, tool));
        let names = names.collect::<Result<Vec<_>, Error>>()?;
        if let Some(name) = names.iter().enumerate().find_map(|(i, name)| names[..i].contains(name).then_some(name)) {
            return Err(Error::Template(format!("two tools are named {name:?}")));
        }
        let wanted_of = |choice: &Value| choice.pointer("/function/name").and_then(Value::as_str).map(str::to_owned);
        let choice = match &self.tool_choice {
            Value::Null => ToolChoice::Auto,
            Value::String(word) if word == "auto" => ToolChoice::Auto,
            Value::String(word) if word == "none" => ToolChoice::None,
            Value::String(word) if word == "required" || word == "any" => ToolChoice::Required,
            Value::Object(_) if wanted_of(&self.tool_choice).is_some() => {
                let wanted = wanted_of(&self.tool_choice).unwrap_or_default();
                let place = names.iter().position(|name| *name == wanted);
                let place =
                    place.ok_or_else(|| Error::Template(format!("tool_choice names {wanted:?}, which is no tool")))?;
                return Ok((vec![self.tools[place].clone()], ToolChoice::Required));
            }
            other @ (Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_)) => {
                return Err(Error::Template(format!(
                    "tool_choice must be \"auto\", \"none\", \"required\" or {{\"type\": \"function\", \"function\": \
                     {{\"name\": ...}}}}, not {other}"
                )));
            }
        };
        if self.tools.is_empty() && choice == ToolChoice::Required {
            return Err(Error::Template("tool_choice is \"required\", and there are no tools".into()));
        }
        Ok((self.tools.clone(), choice))
    }
}

/// The name of a tool, which has to be a function with one.
fn name_of(place: usize, tool: &Value) -> Result<String, Error> {
    let wrong = |reason: String| Error::Template(format!("tool {place} {reason}"));
    if tool.get("type").and_then(Value::as_str) != Some("function") {
        return Err(wrong("is not of the type \"function\"".into()));
    }
    let name = tool.pointer("/function/name").and_then(Value::as_str);
    let name = name.ok_or_else(|| wrong("has no name".into()))?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > 128 || !name.chars().all(is_plain) {
        return Err(wrong(format!(
            "has the name {name:?}; letters, digits, \"_\", \"-\" and \".\" are allowed, 128 at most"
        )));
    }
    match tool.pointer("/function/parameters") {
        None | Some(Value::Null | Value::Object(_)) => Ok(name.to_owned()),
        Some(_) => Err(wrong(format!("({name}) has parameters that are no JSON schema"))),
    }
}
