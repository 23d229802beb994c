//! Reads llama.cpp's grammar language. What is valid there is what its parser takes
//! (<https://github.com/ggml-org/llama.cpp/tree/master/grammars>), but for what `mod.rs` names.

use super::ast::{Node, Rule, Rules};
use super::class::Class;
use std::collections::BTreeMap;

/// Groups within groups, at most: the reader calls itself for each.
const MAX_DEPTH: usize = 100;

/// Repetitions directly of a repetition, at most.
const MAX_STACKED: usize = 3;

/// Times that a part may be repeated, at most; llama.cpp's bound.
const MAX_TIMES: u32 = 2000;

/// Rules, at most: what they cost to compile grows with their number, to some tenths of a second here.
const MAX_RULES: usize = 2000;

/// Read a grammar. An error begins with the line and the column.
pub(crate) fn parse(text: &str, root: &str) -> Result<Rules, String> {
    let mut reader = Reader { text, at: 0, names: BTreeMap::new(), rules: Vec::new(), depth: 0 };
    reader.space(true);
    while reader.peek().is_some() {
        reader.rule()?;
    }
    reader.finish(root)
}

struct Reader<'a> {
    text: &'a str,
    /// Bytes read.
    at: usize,
    names: BTreeMap<&'a str, usize>,
    /// Each with where it was first named, and its body once it is defined.
    rules: Vec<(&'a str, usize, Option<Node>)>,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, expected: &str) -> bool {
        let is = self.text[self.at..].starts_with(expected);
        self.at += if is { expected.len() } else { 0 };
        is
    }

    fn fail<T>(&self, at: usize, reason: &str) -> Result<T, String> {
        let before = &self.text[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Err(format!("line {line}, column {column}: {reason}"))
    }

    fn expect(&mut self, expected: &str) -> Result<(), String> {
        if self.take(expected) {
            return Ok(());
        }
        let found = self.peek().map_or("the end".to_string(), |c| format!("{c:?}"));
        self.fail(self.at, &format!("expected `{expected}`, found {found}"))
    }

    /// Skip white space and comments; those over lines only where a rule cannot end.
    fn space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if lines => self.at += 1,
                '#' => self.at += self.text[self.at..].find(['\r', '\n']).unwrap_or(self.text.len() - self.at),
                _ => break,
            }
        }
    }

    fn name(&mut self) -> Option<&'a str> {
        let rest = &self.text[self.at..];
        let len = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).unwrap_or(rest.len());
        self.at += len;
        (len > 0).then(|| &rest[..len])
    }

    fn named(&mut self, name: &'a str, at: usize) -> Result<usize, String> {
        if let Some(index) = self.names.get(name) {
            return Ok(*index);
        }
        if self.rules.len() >= MAX_RULES {
            return self.fail(at, &format!("more than {MAX_RULES} rules"));
        }
        self.names.insert(name, self.rules.len());
        self.rules.push((name, at, None));
        Ok(self.rules.len() - 1)
    }

    fn rule(&mut self) -> Result<(), String> {
        let start = self.at;
        let Some(name) = self.name() else { return self.fail(start, "expected the name of a rule") };
        let index = self.named(name, start)?;
        if self.rules[index].2.is_some() {
            return self.fail(start, &format!("rule `{name}` is defined twice"));
        }
        self.space(false);
        self.expect("::=")?;
        self.space(true);
        let body = self.alternatives(false)?;
        self.rules[index].2 = Some(body);
        if self.peek().is_some_and(|c| c != '\r' && c != '\n') {
            return self.fail(self.at, "expected the end of the rule");
        }
        self.space(true);
        Ok(())
    }

    fn alternatives(&mut self, nested: bool) -> Result<Node, String> {
        let mut options = vec![self.sequence(nested)?];
        while self.take("|") {
            self.space(true);
            options.push(self.sequence(nested)?);
        }
        Ok(Node::alt(options))
    }

    fn sequence(&mut self, nested: bool) -> Result<Node, String> {
        let mut parts = Vec::new();
        loop {
            let start = self.at;
            match self.peek() {
                Some('*' | '+' | '?' | '{') => {
                    let (min, max) = self.times(nested)?;
                    let Some(part) = parts.pop() else {
                        return self.fail(start, "there is nothing before it to repeat");
                    };
                    parts.push(Node::Repeat(Box::new(part), min, max));
                    if parts.last().is_some_and(|part| stacked(part) > MAX_STACKED) {
                        return self.fail(start, "too many repetitions of repetitions");
                    }
                }
                _ => match self.part()? {
                    Some(part) => parts.push(part),
                    None => return Ok(Node::seq(parts)),
                },
            }
            self.space(nested);
        }
    }

    fn part(&mut self) -> Result<Option<Node>, String> {
        let start = self.at;
        Ok(Some(match self.peek() {
            Some('"') => self.literal()?,
            Some('[') => self.class()?,
            Some('.') => {
                self.at += 1;
                Node::Class(Class::any())
            }
            Some('(') => self.group()?,
            Some('<' | '!') => {
                return self.fail(start, "a reference to a token is not supported: write the text of the token");
            }
            _ => match self.name() {
                Some(name) => Node::Rule(self.named(name, start)?),
                None => return Ok(None),
            },
        }))
    }

    fn group(&mut self) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.fail(self.at, &format!("groups nested more than {MAX_DEPTH} deep"));
        }
        self.at += 1;
        self.space(true);
        let inner = self.alternatives(true)?;
        self.expect(")")?;
        self.depth -= 1;
        Ok(inner)
    }

    fn literal(&mut self) -> Result<Node, String> {
        let start = self.at;
        self.at += 1;
        let mut parts = Vec::new();
        loop {
            let at = self.at;
            match self.peek() {
                None => return self.fail(start, "a text in quotes that does not end"),
                Some('"') => break,
                Some(_) => {
                    let class = Class::one(self.character()?);
                    if class.is_empty() {
                        return self.fail(at, "a character that no text can have");
                    }
                    parts.push(Node::Class(class));
                }
            }
        }
        self.at += 1;
        Ok(Node::seq(parts))
    }

    fn class(&mut self) -> Result<Node, String> {
        let start = self.at;
        self.at += 1;
        let negated = self.take("^");
        let mut ranges = Vec::new();
        while !self.take("]") {
            if self.peek().is_none() {
                return self.fail(start, "a class of characters that does not end");
            }
            let at = self.at;
            let from = self.character()?;
            let mut to = from;
            // A dash before the end is one of the characters.
            if self.text[self.at..].starts_with('-') && !self.text[self.at..].starts_with("-]") {
                self.at += 1;
                to = self.character()?;
            }
            if from > to {
                return self.fail(at, "a range of characters that runs backwards");
            }
            ranges.push((from, to));
        }
        if ranges.is_empty() {
            return self.fail(start, "an empty class of characters");
        }
        let class = if negated { Class::not(ranges) } else { Class::of(ranges) };
        if class.is_empty() {
            return self.fail(start, "a class of no character that a text can have");
        }
        Ok(Node::Class(class))
    }

    fn character(&mut self) -> Result<u32, String> {
        let start = self.at;
        let Some(c) = self.next() else { return self.fail(start, "unexpected end") };
        if c != '\\' {
            return Ok(c as u32);
        }
        match self.next() {
            Some('x') => self.hex(2),
            Some('u') => self.hex(4),
            Some('U') => self.hex(8),
            Some('t') => Ok(u32::from(b'\t')),
            Some('r') => Ok(u32::from(b'\r')),
            Some('n') => Ok(u32::from(b'\n')),
            Some(c @ ('\\' | '"' | '[' | ']' | '-')) => Ok(c as u32),
            _ => self.fail(start, "unknown escape"),
        }
    }

    fn hex(&mut self, n_digits: usize) -> Result<u32, String> {
        let digits = self.text.get(self.at..self.at + n_digits);
        let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let Some(digits) = digits else {
            return self.fail(self.at, &format!("expected {n_digits} hexadecimal digits"));
        };
        let value = u32::from_str_radix(digits, 16).unwrap_or(u32::MAX);
        if value > char::MAX as u32 {
            return self.fail(self.at, "no such character in Unicode");
        }
        self.at += n_digits;
        Ok(value)
    }

    fn times(&mut self, nested: bool) -> Result<(u32, Option<u32>), String> {
        let start = self.at;
        match self.next() {
            Some('*') => return Ok((0, None)),
            Some('+') => return Ok((1, None)),
            Some('?') => return Ok((0, Some(1))),
            _ => {}
        }
        self.space(nested);
        let min = self.number()?;
        self.space(nested);
        let mut max = Some(min);
        if self.take(",") {
            self.space(nested);
            max = self.peek().filter(char::is_ascii_digit).map(|_| self.number()).transpose()?;
            self.space(nested);
        }
        self.expect("}")?;
        if max.is_some_and(|max| max < min) {
            return self.fail(start, "the most times are fewer than the least");
        }
        Ok((min, max))
    }

    fn number(&mut self) -> Result<u32, String> {
        let rest = &self.text[self.at..];
        let len = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        if len == 0 {
            return self.fail(self.at, "expected a number");
        }
        match rest[..len].parse::<u32>().ok().filter(|times| *times <= MAX_TIMES) {
            Some(times) => {
                self.at += len;
                Ok(times)
            }
            None => self.fail(self.at, &format!("more than {MAX_TIMES} repetitions")),
        }
    }

    fn finish(self, root: &str) -> Result<Rules, String> {
        let Some(&index) = self.names.get(root) else { return Err(format!("there is no rule `{root}` to start with")) };
        if let Some((name, at, _)) = self.rules.iter().find(|(.., body)| body.is_none()) {
            return self.fail(*at, &format!("rule `{name}` is not defined"));
        }
        let defined = self
            .rules
            .into_iter()
            .map(|(name, _, body)| Rule { name: name.to_string(), body: body.unwrap_or(Node::EMPTY) });
        Ok(Rules { rules: defined.collect(), root: index })
    }
}

/// Repetitions directly within each other.
fn stacked(node: &Node) -> usize {
    let (mut node, mut n) = (node, 0);
    while let Node::Repeat(inner, ..) = node {
        (node, n) = (inner, n + 1);
    }
    n
}
