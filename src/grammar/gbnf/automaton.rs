//! The positions of a regular part (V. M. Glushkov, "The abstract theory of automata", 1961): which class of characters
//! each has, which may be first and last, and which may follow each other.

use super::ast::{Node, Rules};
use super::class::Class;
use std::collections::BTreeSet;

/// An automaton without empty steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Automaton {
    pub(crate) classes: Vec<Class>,
    pub(crate) first: Vec<usize>,
    pub(crate) is_last: Vec<bool>,
    pub(crate) follow: Vec<Vec<usize>>,
}

struct Part {
    nullable: bool,
    first: Vec<usize>,
    last: Vec<usize>,
}

impl Automaton {
    /// The automaton of a part that names no rule that names itself.
    pub(crate) fn of(node: &Node, rules: &Rules) -> Self {
        let mut automaton = Self::default();
        let part = automaton.add(node, rules);
        automaton.first = part.first;
        automaton.is_last = vec![false; automaton.classes.len()];
        part.last.iter().for_each(|last| automaton.is_last[*last] = true);
        for follow in &mut automaton.follow {
            follow.sort_unstable();
            follow.dedup();
        }
        automaton
    }

    fn add(&mut self, node: &Node, rules: &Rules) -> Part {
        match node {
            Node::Class(class) => {
                let position = self.classes.len();
                self.classes.push(class.clone());
                self.follow.push(Vec::new());
                Part { nullable: false, first: vec![position], last: vec![position] }
            }
            Node::Rule(rule) => self.add(&rules.rules[*rule].body, rules),
            Node::Seq(parts) => {
                let empty = Part { nullable: true, first: Vec::new(), last: Vec::new() };
                parts.iter().fold(empty, |before, part| {
                    let part = self.add(part, rules);
                    self.join(before, part)
                })
            }
            Node::Alt(options) => {
                let mut all = Part { nullable: false, first: Vec::new(), last: Vec::new() };
                for option in options {
                    let part = self.add(option, rules);
                    all.nullable |= part.nullable;
                    all.first.extend(part.first);
                    all.last.extend(part.last);
                }
                all
            }
            Node::Repeat(part, min, max) => self.repeat(part, *min, *max, rules),
        }
    }

    fn join(&mut self, before: Part, mut after: Part) -> Part {
        for last in &before.last {
            self.follow[*last].extend(&after.first);
        }
        let mut first = before.first;
        if before.nullable {
            first.extend(&after.first);
        }
        if after.nullable {
            after.last.extend(before.last);
        }
        Part { nullable: before.nullable && after.nullable, first, last: after.last }
    }

    fn repeat(&mut self, node: &Node, min: u32, max: Option<u32>, rules: &Rules) -> Part {
        let mut all = Part { nullable: true, first: Vec::new(), last: Vec::new() };
        for i in 0..min {
            let mut part = self.add(node, rules);
            if max.is_none() && i + 1 == min {
                self.again(&part);
            }
            part.nullable |= false;
            all = self.join(all, part);
        }
        match max {
            None if min == 0 => {
                let mut part = self.add(node, rules);
                self.again(&part);
                part.nullable = true;
                part
            }
            None => all,
            Some(max) => {
                // From the last one on: each optional one holds all that come after it, which keeps the number of steps
                // linear.
                let mut rest: Option<Part> = None;
                for _ in min..max {
                    let part = self.add(node, rules);
                    let mut chain = match rest {
                        Some(rest) => self.join(part, rest),
                        None => part,
                    };
                    chain.nullable = true;
                    rest = Some(chain);
                }
                match rest {
                    Some(rest) => self.join(all, rest),
                    None => all,
                }
            }
        }
    }

    /// The part may follow itself.
    fn again(&mut self, part: &Part) {
        for last in &part.last {
            self.follow[*last].extend(&part.first);
        }
    }

    /// Where two automata may stand after the same text.
    ///
    /// Gives up after so much work.
    pub(crate) fn meet(&self, other: &Self, work: &mut u64) -> Option<Meeting> {
        let mut meeting = Meeting::default();
        let mut seen = BTreeSet::new();
        let mut todo = Vec::new();
        let mut reach = |a: usize, b: usize, todo: &mut Vec<(usize, usize)>, work: &mut u64| {
            *work = work.checked_sub(1)?;
            if self.classes[a].meets(&other.classes[b]) && seen.insert((a, b)) {
                todo.push((a, b));
            }
            Some(())
        };
        for &a in &self.first {
            for &b in &other.first {
                reach(a, b, &mut todo, work)?;
            }
        }
        while let Some((a, b)) = todo.pop() {
            meeting.common |= self.is_last[a] && other.is_last[b];
            if self.is_last[a] {
                meeting.other_goes_on.extend(&other.follow[b]);
            }
            if other.is_last[b] {
                meeting.this_goes_on.extend(&self.follow[a]);
            }
            for &next_a in &self.follow[a] {
                for &next_b in &other.follow[b] {
                    reach(next_a, next_b, &mut todo, work)?;
                }
            }
        }
        Some(meeting)
    }
}

/// What two automata have in common.
#[derive(Debug, Default)]
pub(crate) struct Meeting {
    /// Whether a text matches both.
    pub(crate) common: bool,
    /// Positions of this one that may come after a text that matches the other.
    pub(crate) this_goes_on: BTreeSet<usize>,
    /// Positions of the other one that may come after a text that matches this.
    pub(crate) other_goes_on: BTreeSet<usize>,
}
