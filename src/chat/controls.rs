//! Text of callers never becomes a control token, whatever it spells.
//!
//! A template joins what a caller wrote and what marks turns into one text, in which the two cannot be told apart. So what
//! spells a control token in a message is replaced before the template sees it, by digits that nobody can guess, and put
//! back behind it; the prompt is then cut at the control tokens that are the template's own, and what lies between is
//! tokenised as plain text.

use crate::backend::Tokenizer;
use crate::core::Token;
use crate::error::Error;
use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::{Map, Value};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

/// Digits of a stand-in: of the nonce, and of its number.
const NONCE: usize = 20;
const NUMBER: usize = 7;

/// A control token of a vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// The token.
    pub token: Token,
    /// What spells it.
    pub text: String,
    /// Whether white space before it is part of it.
    pub takes_left: bool,
    /// Whether white space behind it is.
    pub takes_right: bool,
}

/// The control tokens of a vocabulary, and what spells them.
#[derive(Debug)]
pub struct Controls {
    tokens: Vec<Control>,
    /// None where there are no control tokens.
    spelling: Option<AhoCorasick>,
}

/// What was replaced in messages.
#[derive(Debug)]
pub(super) struct Replaced {
    nonce: String,
    originals: Vec<String>,
}

impl Controls {
    /// Those of a vocabulary; without a text they spell nothing.
    pub fn new(tokens: impl IntoIterator<Item = Control>) -> Self {
        let tokens: Vec<Control> = tokens.into_iter().filter(|control| !control.text.is_empty()).collect();
        let texts = tokens.iter().map(|control| &control.text);
        // More than it can hold is no vocabulary that there is.
        let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts);
        let spelling = built.ok().filter(|_| !tokens.is_empty());
        Self { tokens, spelling }
    }

    /// Replace what spells control tokens, or the beginning of one at a text's end, in all texts of messages, and in the
    /// descriptions of tools. None where there is nothing of the kind, as is the rule.
    ///
    /// # Errors
    /// [`Error::Template`] where a role, a key, or another part of a tool spells one: these go into prompts as they are.
    pub(super) fn replace(
        &self,
        messages: &mut [Map<String, Value>],
        tools: &mut [Value],
    ) -> Result<Option<Replaced>, Error> {
        let in_messages = messages.iter().flatten().any(|(key, value)| self.next(key).is_some() || self.spells(value));
        if !in_messages && !tools.iter().any(|tool| self.spells(tool)) {
            return Ok(None);
        }
        let seed = RandomState::new().hash_one(0_u8);
        let mut replaced = Replaced { nonce: format!("{seed:0NONCE$}"), originals: Vec::new() };
        for (key, value) in messages.iter_mut().flat_map(Map::iter_mut) {
            self.check(key, "a message")?;
            if let (Value::String(role), "role") = (&*value, key.as_str()) {
                self.check(role, "a role")?;
            } else {
                self.replace_within(value, &mut replaced)?;
            }
        }
        for tool in tools {
            self.replace_descriptions(tool, &mut replaced)?;
        }
        Ok(Some(replaced))
    }

    /// Refuse a text that spells a control token.
    ///
    /// # Errors
    /// [`Error::Template`].
    fn check(&self, text: &str, of: &str) -> Result<(), Error> {
        match self.next(text) {
            Some(_) => Err(Error::Template(format!("{text:?} in {of} spells a control token, or begins to"))),
            None => Ok(()),
        }
    }

    /// Refuse values that spell a control token.
    ///
    /// # Errors
    /// [`Error::Template`].
    pub(super) fn check_all(&self, values: &Map<String, Value>, of: &str) -> Result<(), Error> {
        values.iter().try_for_each(|(key, value)| {
            if self.spells(value) {
                return Err(Error::Template(format!("{key:?} in {of} spells a control token, or begins to")));
            }
            self.check(key, of)
        })
    }

    fn spells(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.next(text).is_some(),
            Value::Array(items) => items.iter().any(|item| self.spells(item)),
            Value::Object(map) => map.iter().any(|(key, value)| self.next(key).is_some() || self.spells(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }

    fn replace_within(&self, value: &mut Value, replaced: &mut Replaced) -> Result<(), Error> {
        match value {
            Value::String(text) => {
                *text = self.replace_text(text, replaced);
                Ok(())
            }
            Value::Array(items) => items.iter_mut().try_for_each(|item| self.replace_within(item, replaced)),
            Value::Object(map) => map.iter_mut().try_for_each(|(key, value)| {
                self.check(key, "a message")?;
                self.replace_within(value, replaced)
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
        }
    }

    /// In a tool only descriptions are prose; the rest is what calls are read by.
    fn replace_descriptions(&self, value: &mut Value, replaced: &mut Replaced) -> Result<(), Error> {
        match value {
            Value::String(text) => self.check(text, "a tool"),
            Value::Array(items) => items.iter_mut().try_for_each(|item| self.replace_descriptions(item, replaced)),
            Value::Object(map) => map.iter_mut().try_for_each(|(key, value)| {
                self.check(key, "a tool")?;
                if let (Value::String(text), "description") = (&mut *value, key.as_str()) {
                    *text = self.replace_text(text, replaced);
                    return Ok(());
                }
                self.replace_descriptions(value, replaced)
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
        }
    }

    fn replace_text(&self, text: &str, replaced: &mut Replaced) -> String {
        let (mut out, mut rest) = (String::with_capacity(text.len()), text);
        while let Some(range) = self.next(rest) {
            out.push_str(&rest[..range.start]);
            let number = replaced.originals.len();
            out.extend([&*replaced.nonce, &*format!("{number:0NUMBER$}")]);
            replaced.originals.push(rest[range.clone()].to_owned());
            rest = &rest[range.end..];
        }
        out + rest
    }

    /// The first place of a text that spells a control token, or the beginning of one at its end (but for white space,
    /// which templates may cut): what follows in the prompt might complete it.
    fn next(&self, text: &str) -> Option<Range<usize>> {
        if let Some(found) = self.spelling.as_ref()?.find(text) {
            return Some(found.range());
        }
        let end = text.trim_end();
        let longest = self.tokens.iter().map(|control| control.text.len()).max().unwrap_or(0);
        let from = end.len().saturating_sub(longest);
        let begins = |start: &usize| {
            let part = &end[*start..];
            self.tokens.iter().any(|control| control.text.len() > part.len() && control.text.starts_with(part))
        };
        let start = (from..end.len()).filter(|start| end.is_char_boundary(*start)).find(begins)?;
        Some(start..end.len())
    }

    /// The tokens of a prompt, in which the texts at `plain` are plain whatever they spell.
    ///
    /// # Errors
    /// [`Error::Prompt`] where a text cannot be tokenised.
    pub(super) fn tokens(
        &self,
        prompt: &str,
        plain: &[Range<usize>],
        tokenizer: &dyn Tokenizer,
    ) -> Result<Vec<Token>, Error> {
        if plain.is_empty() {
            return tokenizer.tokenize(prompt, true, true);
        }
        // What the vocabulary puts around every text: BOS before it, EOS behind it.
        let around = tokenizer.tokenize("", true, false)?;
        let mut tokens: Vec<Token> = around.first().copied().into_iter().collect();
        let mut from = 0;
        for (range, control) in self.own(prompt, plain) {
            let (mut before, mut until) = (&prompt[from..range.start.max(from)], range.end);
            if control.takes_left {
                before = before.trim_end();
            }
            if control.takes_right {
                until += prompt[until..].len() - prompt[until..].trim_start().len();
            }
            tokens.extend(tokenizer.tokenize(before, false, false)?);
            tokens.push(control.token);
            from = until;
        }
        tokens.extend(tokenizer.tokenize(&prompt[from..], false, false)?);
        tokens.extend(around.get(1..).unwrap_or_default());
        Ok(tokens)
    }

    /// The control tokens that the template itself spelt.
    fn own<'a>(
        &'a self,
        prompt: &'a str,
        plain: &'a [Range<usize>],
    ) -> impl Iterator<Item = (Range<usize>, &'a Control)> {
        let found = self.spelling.as_ref().into_iter().flat_map(move |spelling| spelling.find_iter(prompt));
        let is_own = |range: &Range<usize>| !plain.iter().any(|part| part.start < range.end && range.start < part.end);
        found
            .map(|found| (found.range(), &self.tokens[found.pattern().as_usize()]))
            .filter(move |(range, _)| is_own(range))
    }
}

impl Replaced {
    /// Put back what was replaced; where that is.
    pub(super) fn restore(&self, prompt: &str) -> (String, Vec<Range<usize>>) {
        let (mut out, mut plain, mut rest) = (String::with_capacity(prompt.len()), Vec::new(), prompt);
        while let Some(at) = rest.find(&self.nonce) {
            out.push_str(&rest[..at]);
            let behind = &rest[at + NONCE..];
            let number = behind.get(..NUMBER).and_then(|digits| digits.parse::<usize>().ok());
            let Some(original) = number.and_then(|number| self.originals.get(number)) else {
                out.push_str(&self.nonce);
                rest = behind;
                continue;
            };
            plain.push(out.len()..out.len() + original.len());
            out.push_str(original);
            rest = &behind[NUMBER..];
        }
        out.push_str(rest);
        (out, plain)
    }
}
