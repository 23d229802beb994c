//! What a grammar must not be: left recursive, or without an end.
//!
//! Nothing here calls itself along rules: a chain of rules may be long.

use super::ast::{Node, Rules};
use std::collections::BTreeSet;

/// For each rule, the rules that name it.
fn named_by(rules: &Rules) -> Vec<Vec<usize>> {
    let mut named_by = vec![Vec::new(); rules.rules.len()];
    for (index, rule) in rules.rules.iter().enumerate() {
        let mut names = BTreeSet::new();
        names_in(&rule.body, &mut names);
        for name in names {
            named_by[name].push(index);
        }
    }
    named_by
}

/// The rules that a part names.
pub(crate) fn names_in(node: &Node, names: &mut BTreeSet<usize>) {
    if let Node::Rule(rule) = node {
        names.insert(*rule);
    }
    node.children().iter().for_each(|child| names_in(child, names));
}

/// The rules for which something holds that depends on the rules they name, all but the fewest of which it does not.
fn fixpoint(rules: &Rules, holds: impl Fn(&Node, &[bool]) -> bool) -> Vec<bool> {
    let named_by = named_by(rules);
    let mut known = vec![false; rules.rules.len()];
    let mut todo: Vec<usize> = (0..rules.rules.len()).collect();
    while let Some(index) = todo.pop() {
        if !known[index] && holds(&rules.rules[index].body, &known) {
            known[index] = true;
            todo.extend(&named_by[index]);
        }
    }
    known
}

/// The rules that match the empty text.
pub(crate) fn nullable(rules: &Rules) -> Vec<bool> {
    fixpoint(rules, is_nullable)
}

/// Whether a part matches the empty text, as far as is known of the rules.
pub(crate) fn is_nullable(node: &Node, known: &[bool]) -> bool {
    match node {
        Node::Class(_) => false,
        Node::Rule(rule) => known[*rule],
        Node::Seq(parts) => parts.iter().all(|part| is_nullable(part, known)),
        Node::Alt(options) => options.iter().any(|option| is_nullable(option, known)),
        Node::Repeat(part, min, _) => *min == 0 || is_nullable(part, known),
    }
}

fn ends(node: &Node, known: &[bool]) -> bool {
    match node {
        Node::Class(_) => true,
        Node::Rule(rule) => known[*rule],
        Node::Seq(parts) => parts.iter().all(|part| ends(part, known)),
        Node::Alt(options) => options.iter().any(|option| ends(option, known)),
        Node::Repeat(part, min, _) => *min == 0 || ends(part, known),
    }
}

/// The rules that the answer may use.
pub(crate) fn reachable(rules: &Rules) -> BTreeSet<usize> {
    let (mut seen, mut todo) = (BTreeSet::from([rules.root]), vec![rules.root]);
    while let Some(index) = todo.pop() {
        let mut names = BTreeSet::new();
        names_in(&rules.rules[index].body, &mut names);
        todo.extend(names.into_iter().filter(|name| seen.insert(*name)));
    }
    seen
}

/// The rules that may stand first in a part. Whether the part may be empty.
fn leading(node: &Node, nullable: &[bool], found: &mut BTreeSet<usize>) -> bool {
    match node {
        Node::Class(_) => false,
        Node::Rule(rule) => {
            found.insert(*rule);
            nullable[*rule]
        }
        Node::Seq(parts) => parts.iter().all(|part| leading(part, nullable, found)),
        Node::Alt(options) => {
            // Each is looked at, whatever the others are.
            let empty: Vec<bool> = options.iter().map(|option| leading(option, nullable, found)).collect();
            empty.contains(&true)
        }
        Node::Repeat(part, min, max) => {
            // What is repeated no times stands nowhere.
            let empty = *max == Some(0) || leading(part, nullable, found);
            *min == 0 || empty
        }
    }
}

/// Refuse what llama.cpp refuses, and what could never end.
pub(crate) fn check(rules: &Rules) -> Result<(), String> {
    if let Some(cycle) = left_recursion(rules) {
        let names: Vec<&str> = cycle.iter().map(|rule| rules.rules[*rule].name.as_str()).collect();
        return Err(format!("left recursion: {} -> {}", names.join(" -> "), names[0]));
    }
    let ends = fixpoint(rules, ends);
    match reachable(rules).into_iter().find(|rule| !ends[*rule]) {
        Some(rule) => {
            Err(format!("rule `{}` never ends: each alternative needs another round", rules.rules[rule].name))
        }
        None => Ok(()),
    }
}

/// Rules each of which begins with the next one, and the last with the first.
fn left_recursion(rules: &Rules) -> Option<Vec<usize>> {
    let nullable = nullable(rules);
    let mut begins_with: Vec<BTreeSet<usize>> = Vec::new();
    let mut begins = vec![Vec::new(); rules.rules.len()];
    for (index, rule) in rules.rules.iter().enumerate() {
        let mut found = BTreeSet::new();
        leading(&rule.body, &nullable, &mut found);
        for first in &found {
            begins[*first].push(index);
        }
        begins_with.push(found);
    }
    // Take away rules that begin with none that is left. Those that stay lead into a circle.
    let mut n_left: Vec<usize> = begins_with.iter().map(BTreeSet::len).collect();
    let mut todo: Vec<usize> = (0..n_left.len()).filter(|rule| n_left[*rule] == 0).collect();
    while let Some(rule) = todo.pop() {
        for &with in &begins[rule] {
            n_left[with] -= 1;
            if n_left[with] == 0 {
                todo.push(with);
            }
        }
    }
    let mut at = n_left.iter().position(|n| *n > 0)?;
    let mut path: Vec<usize> = Vec::new();
    let mut step_of = vec![None; n_left.len()];
    while step_of[at].is_none() {
        step_of[at] = Some(path.len());
        path.push(at);
        at = *begins_with[at].iter().find(|next| n_left[**next] > 0)?;
    }
    Some(path.split_off(step_of[at].unwrap_or(0)))
}
