//! What a request can say about the form of its answer.

use super::{MAX_SOURCE_BYTES, gbnf, schema};
use crate::options::GrammarSource;
use llguidance::JsonCompileOptions;
use llguidance::api::TopLevelGrammar;
use serde_json::Value;
use std::fmt::Write;

/// The most texts of a choice.
const MAX_CHOICES: usize = 10_000;

impl GrammarSource {
    /// Bytes that it takes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Gbnf { text, root } => text.len() + root.len(),
            Self::JsonSchema(text) | Self::Regex(text) => text.len(),
            Self::Choice(texts) => texts.iter().map(String::len).sum::<usize>() + texts.len(),
        }
    }

    /// What llguidance is to parse.
    pub(super) fn translate(&self) -> Result<TopLevelGrammar, String> {
        if self.len() > MAX_SOURCE_BYTES {
            return Err(format!("a grammar of {} bytes; the most are {MAX_SOURCE_BYTES}", self.len()));
        }
        match self {
            Self::Gbnf { text, root } => Ok(TopLevelGrammar::from_lark(gbnf::to_lark(text, root)?)),
            Self::JsonSchema(text) => json(text),
            Self::Regex(pattern) => regex(pattern),
            Self::Choice(texts) => choice(texts),
        }
    }
}

fn json(text: &str) -> Result<TopLevelGrammar, String> {
    let mut value = schema::checked(text)?;
    // At most one space, or one line break with its indentation, between two parts: a small model would else go on with
    // white space for ever.
    let whitespace = r"\x20|\x0A\x20{0,32}|\x0A\x09{0,8}".to_string();
    let options = JsonCompileOptions {
        whitespace_pattern: Some(whitespace),
        json_allowed_escapes: Some(schema::ESCAPES.into()),
        ..JsonCompileOptions::default()
    };
    if value == Value::Bool(true) {
        value = Value::Object(serde_json::Map::new());
    }
    if value.is_object() {
        options.apply_to(&mut value);
    }
    Ok(TopLevelGrammar::from_json_schema(value))
}

fn regex(pattern: &str) -> Result<TopLevelGrammar, String> {
    let pattern = unanchored(pattern);
    if pattern.is_empty() {
        return Err("an empty regular expression matches the empty answer alone".into());
    }
    // In a group: an alternation must not swallow what stands beside it.
    Ok(TopLevelGrammar::from_regex(&format!("(?:{pattern})")))
}

/// The whole answer has to match: anchors at the ends change nothing, and llguidance knows none.
fn unanchored(pattern: &str) -> &str {
    let pattern = pattern.strip_prefix('^').or_else(|| pattern.strip_prefix("\\A")).unwrap_or(pattern);
    let escaped = |text: &str| text.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1;
    if let Some(rest) = pattern.strip_suffix('$').filter(|rest| !escaped(rest)) {
        return rest;
    }
    // `\\z` ends in an escaped backslash and a letter.
    pattern.strip_suffix("\\z").filter(|rest| !escaped(rest)).unwrap_or(pattern)
}

fn choice(texts: &[String]) -> Result<TopLevelGrammar, String> {
    if texts.is_empty() {
        return Err("a choice of no texts".into());
    }
    if texts.len() > MAX_CHOICES {
        return Err(format!("a choice of {} texts; the most are {MAX_CHOICES}", texts.len()));
    }
    if let Some(i) = texts.iter().position(String::is_empty) {
        return Err(format!("text {i} of the choice is empty"));
    }
    let mut pattern = String::new();
    for text in texts {
        if !pattern.is_empty() {
            pattern.push('|');
        }
        for c in text.chars() {
            let _ = write!(pattern, "\\x{{{:x}}}", c as u32);
        }
    }
    Ok(TopLevelGrammar::from_regex(&pattern))
}
