//! Splits a grammar into terminals, each as large as may be, and the rules over them.

use super::ast::{Node, Rules};
use super::check::{is_nullable, names_in, nullable};
use std::collections::{BTreeMap, BTreeSet};

/// Positions of the automaton of one terminal, at most.
const MAX_SIZE: u64 = 4000;

/// Parts within parts of one terminal, at most: what reads it calls itself for each.
const MAX_DEPTH: u64 = 150;

/// A part of a rule over terminals.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    Term(usize),
    Rule(usize),
    Seq(Vec<Part>),
    Alt(Vec<Part>),
    Repeat(Box<Part>, u32, Option<u32>),
}

/// A grammar over terminals. No terminal matches the empty text, though its node may.
#[derive(Debug)]
pub(crate) struct Skeleton {
    /// The rules that are used, by their indices in the grammar.
    pub(crate) rules: BTreeMap<usize, Part>,
    pub(crate) terms: Vec<Node>,
    pub(crate) root: usize,
}

/// Which parts may not be a terminal.
#[derive(Debug, Default)]
pub(crate) struct Broken {
    pub(crate) nodes: BTreeSet<Node>,
    /// Nothing but single characters.
    pub(crate) all: bool,
}

/// Size and depth of a part; none where it is recursive.
type Measure = Option<(u64, u64)>;

pub(crate) struct Lowering<'a> {
    rules: &'a Rules,
    measures: Vec<Measure>,
    nullable: Vec<bool>,
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(rules: &'a Rules) -> Self {
        Self { rules, measures: measures(rules), nullable: nullable(rules) }
    }

    /// The grammar over terminals, none of which is broken.
    pub(crate) fn skeleton(&self, broken: &Broken) -> Skeleton {
        let mut terms = Terms { of: BTreeMap::new() };
        let (mut done, mut todo) = (BTreeMap::new(), vec![self.rules.root]);
        while let Some(rule) = todo.pop() {
            if done.contains_key(&rule) {
                continue;
            }
            let part = self.lower(&self.rules.rules[rule].body, broken, &mut terms);
            rules_in(&part, &mut todo);
            done.insert(rule, part);
        }
        let mut nodes: Vec<(Node, usize)> = terms.of.into_iter().collect();
        nodes.sort_unstable_by_key(|(_, index)| *index);
        Skeleton { rules: done, terms: nodes.into_iter().map(|(node, _)| node).collect(), root: self.rules.root }
    }

    fn fits(&self, node: &Node, broken: &Broken) -> bool {
        if matches!(node, Node::Class(_)) {
            return true;
        }
        let measure = measure(node, &self.measures);
        let small = measure.is_some_and(|(size, depth)| size <= MAX_SIZE && depth <= MAX_DEPTH);
        small && !broken.all && !broken.nodes.contains(node)
    }

    fn lower(&self, node: &Node, broken: &Broken, terms: &mut Terms) -> Part {
        if measure(node, &self.measures).is_some_and(|(size, _)| size == 0) {
            return Part::Seq(Vec::new());
        }
        if self.fits(node, broken) {
            return self.term(node, terms);
        }
        match node {
            Node::Class(_) => self.term(node, terms),
            Node::Rule(rule) => {
                // What it stands for is the terminal, wherever it is named.
                let body = &self.rules.rules[*rule].body;
                if self.fits(body, broken) { self.term(body, terms) } else { Part::Rule(*rule) }
            }
            Node::Seq(parts) => Part::Seq(self.runs(parts, Node::Seq, broken, terms)),
            Node::Alt(parts) => {
                let (fit, rest): (Vec<&Node>, Vec<&Node>) = parts.iter().partition(|part| self.fits(part, broken));
                let fit: Vec<Node> = fit.into_iter().cloned().collect();
                let mut options = self.runs(&fit, Node::Alt, broken, terms);
                options.extend(rest.into_iter().map(|part| self.lower(part, broken, terms)));
                Part::Alt(options)
            }
            Node::Repeat(part, min, max) => Part::Repeat(Box::new(self.lower(part, broken, terms)), *min, *max),
        }
    }

    /// Runs of parts that can be one terminal, as such.
    fn runs(&self, parts: &[Node], join: fn(Vec<Node>) -> Node, broken: &Broken, terms: &mut Terms) -> Vec<Part> {
        let mut lowered = Vec::new();
        for run in parts.chunk_by(|a, b| self.fits(a, broken) && self.fits(b, broken)) {
            let whole = join(run.to_vec());
            if run.len() > 1 && self.fits(&whole, broken) {
                lowered.push(self.term(&whole, terms));
            } else {
                lowered.extend(run.iter().map(|part| self.lower(part, broken, terms)));
            }
        }
        lowered
    }

    fn term(&self, node: &Node, terms: &mut Terms) -> Part {
        let body = match node {
            Node::Rule(rule) => &self.rules.rules[*rule].body,
            Node::Class(_) | Node::Seq(_) | Node::Alt(_) | Node::Repeat(..) => node,
        };
        let next = terms.of.len();
        let term = Part::Term(*terms.of.entry(body.clone()).or_insert(next));
        if is_nullable(node, &self.nullable) { Part::Repeat(Box::new(term), 0, Some(1)) } else { term }
    }
}

struct Terms {
    of: BTreeMap<Node, usize>,
}

fn rules_in(part: &Part, found: &mut Vec<usize>) {
    match part {
        Part::Term(_) => {}
        Part::Rule(rule) => found.push(*rule),
        Part::Seq(parts) | Part::Alt(parts) => parts.iter().for_each(|part| rules_in(part, found)),
        Part::Repeat(part, ..) => rules_in(part, found),
    }
}

fn measure(node: &Node, rules: &[Measure]) -> Measure {
    let over = |nodes: &[Node]| {
        nodes.iter().try_fold((0_u64, 0), |(size, depth), node| {
            let (more, deep) = measure(node, rules)?;
            Some((size.saturating_add(more), deep.max(depth)))
        })
    };
    let (size, depth) = match node {
        Node::Class(class) => (class.ranges().len() as u64, 0),
        Node::Rule(rule) => rules[*rule]?,
        Node::Seq(parts) | Node::Alt(parts) => over(parts)?,
        Node::Repeat(part, min, max) => {
            let (size, depth) = measure(part, rules)?;
            (size.saturating_mul(u64::from(max.unwrap_or((*min).max(1)))), depth)
        }
    };
    Some((size, depth + 1))
}

/// The measures of all rules: those that name none first, then those that name these.
fn measures(rules: &Rules) -> Vec<Measure> {
    let mut named_by = vec![Vec::new(); rules.rules.len()];
    let mut n_unknown = Vec::new();
    for (index, rule) in rules.rules.iter().enumerate() {
        let mut names = BTreeSet::new();
        names_in(&rule.body, &mut names);
        for name in &names {
            named_by[*name].push(index);
        }
        n_unknown.push(names.len());
    }
    let mut measures = vec![None; rules.rules.len()];
    let mut todo: Vec<usize> = (0..n_unknown.len()).filter(|rule| n_unknown[*rule] == 0).collect();
    while let Some(rule) = todo.pop() {
        measures[rule] = measure(&rules.rules[rule].body, &measures);
        for &by in &named_by[rule] {
            n_unknown[by] -= 1;
            if n_unknown[by] == 0 {
                todo.push(by);
            }
        }
    }
    measures
}
