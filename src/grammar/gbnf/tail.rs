//! Rules that end with themselves become repetitions: the parser's work for those does not grow with the text.

use super::ast::{Node, Rules};
use super::check::names_in;
use std::collections::BTreeSet;

/// Alternatives that a rule is taken apart into, at most.
const MAX_OPTIONS: usize = 64;

/// Turn each rule like `a ::= x a | y` into `a ::= x* y`.
pub(crate) fn rewrite(rules: &mut Rules) {
    for (index, rule) in rules.rules.iter_mut().enumerate() {
        if let Some(body) = rewritten(index, &rule.body) {
            rule.body = body;
        }
    }
}

fn names(node: &Node, rule: usize) -> bool {
    let mut found = BTreeSet::new();
    names_in(node, &mut found);
    found.contains(&rule)
}

fn rewritten(index: usize, body: &Node) -> Option<Node> {
    if !names(body, index) {
        return None;
    }
    let mut options = Vec::new();
    take_apart(body, index, &mut options)?;
    let (mut again, mut last) = (Vec::new(), Vec::new());
    for mut option in options {
        if option.last() == Some(&Node::Rule(index)) {
            option.pop();
            again.push(Node::seq(option));
        } else {
            last.push(Node::seq(option));
        }
    }
    if again.is_empty() || last.is_empty() || again.iter().chain(&last).any(|option| names(option, index)) {
        return None;
    }
    Some(Node::Seq(vec![Node::Repeat(Box::new(Node::alt(again)), 0, None), Node::alt(last)]))
}

/// The alternatives of a part, as far as they differ in how they name the rule at their end.
fn take_apart(node: &Node, rule: usize, options: &mut Vec<Vec<Node>>) -> Option<()> {
    if options.len() > MAX_OPTIONS {
        return None;
    }
    match node {
        Node::Alt(parts) => parts.iter().try_for_each(|part| take_apart(part, rule, options))?,
        Node::Repeat(part, 0, Some(1)) if names(part, rule) => {
            take_apart(part, rule, options)?;
            options.push(Vec::new());
        }
        Node::Seq(parts) => match parts.split_last() {
            Some((end, before)) if *end != Node::Rule(rule) && names(end, rule) => {
                let mut ends = Vec::new();
                take_apart(end, rule, &mut ends)?;
                options.extend(ends.into_iter().map(|end| [before, &end].concat()));
            }
            _ => options.push(parts.clone()),
        },
        Node::Class(_) | Node::Rule(_) | Node::Repeat(..) => options.push(vec![node.clone()]),
    }
    Some(())
}
