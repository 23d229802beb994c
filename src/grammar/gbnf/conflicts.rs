//! Finds terminals whose longest match is not the only one.
//!
//! llguidance ends a terminal where no terminal that is possible at its start goes on. The language stays the same only
//! where that decides nothing: a text that matches one terminal, and the first byte of a character that may come after that
//! terminal, must not be the beginning of another one that could start at the same place. The byte, since llguidance reads
//! bytes and has no way back into a character. Which terminals could is taken for larger than it is, never for smaller.

use super::ast::{Node, Rules};
use super::automaton::Automaton;
use super::lower::{Part, Skeleton};
use std::collections::{BTreeMap, BTreeSet};

type Set = BTreeSet<usize>;

/// What terminals a part can start and end with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Edges {
    nullable: bool,
    first: Set,
    last: Set,
}

/// The terminals to break, one of each pair that is in conflict. None where that took too much work to find out.
pub(crate) fn conflicts(skeleton: &Skeleton, rules: &Rules, work: &mut u64) -> Option<BTreeSet<usize>> {
    let is_class = |term: &usize| matches!(skeleton.terms[*term], Node::Class(_));
    if (0..skeleton.terms.len()).all(|term| is_class(&term)) {
        return Some(BTreeSet::new());
    }
    let automata: Vec<Automaton> = skeleton.terms.iter().map(|term| Automaton::of(term, rules)).collect();
    let (start, follow) = follow(skeleton, work)?;
    let mut pairs = Pairs { seen: BTreeSet::new(), todo: Vec::new() };
    pairs.add(&start, &start, work)?;
    let mut to_break = BTreeSet::new();
    while let Some((a, b)) = pairs.todo.pop() {
        let meeting = automata[a].meet(&automata[b], work)?;
        if meeting.common {
            pairs.add(&follow[a], &follow[b], work)?;
        }
        let goes_on = [(a, b, &meeting.other_goes_on), (b, a, &meeting.this_goes_on)];
        for (short, long, positions) in goes_on {
            if !positions.is_empty() && clashes(&follow[short], &automata, &automata[long], positions, work)? {
                to_break.insert(if is_class(&long) { short } else { long });
            }
        }
    }
    Some(to_break)
}

/// Whether what may come after a terminal begins with a byte with which another one goes on.
fn clashes(after: &Set, automata: &[Automaton], long: &Automaton, positions: &Set, work: &mut u64) -> Option<bool> {
    for &next in after {
        for &first in &automata[next].first {
            for &position in positions {
                *work = work.checked_sub(1)?;
                if automata[next].classes[first].begins_like(&long.classes[position]) {
                    return Some(true);
                }
            }
        }
    }
    Some(false)
}

struct Pairs {
    seen: BTreeSet<(usize, usize)>,
    todo: Vec<(usize, usize)>,
}

impl Pairs {
    /// Each of these can start where each of the others can.
    fn add(&mut self, these: &Set, others: &Set, work: &mut u64) -> Option<()> {
        for &a in these {
            for &b in others {
                *work = work.checked_sub(1)?;
                let pair = (a.min(b), a.max(b));
                if self.seen.insert(pair) {
                    self.todo.push(pair);
                }
            }
        }
        Some(())
    }
}

/// The terminals that an answer can start with, and those that may come after each one.
fn follow(skeleton: &Skeleton, work: &mut u64) -> Option<(Set, Vec<Set>)> {
    let mut rules: BTreeMap<usize, Edges> = skeleton.rules.keys().map(|rule| (*rule, Edges::default())).collect();
    let mut nothing = Vec::new();
    loop {
        let mut changed = false;
        for (rule, part) in &skeleton.rules {
            let edges = edges(part, &rules, &mut nothing, work)?;
            if rules[rule] != edges {
                rules.insert(*rule, edges);
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    let mut follow = vec![Set::new(); skeleton.terms.len()];
    for part in skeleton.rules.values() {
        edges(part, &rules, &mut follow, work)?;
    }
    Some((rules[&skeleton.root].first.clone(), follow))
}

/// The edges of a part. Notes what comes after what, where there is room for it.
fn edges(part: &Part, rules: &BTreeMap<usize, Edges>, follow: &mut Vec<Set>, work: &mut u64) -> Option<Edges> {
    let found = match part {
        Part::Term(term) => Edges { nullable: false, first: Set::from([*term]), last: Set::from([*term]) },
        Part::Rule(rule) => rules[rule].clone(),
        Part::Seq(parts) => {
            let mut all = Edges { nullable: true, ..Edges::default() };
            for part in parts {
                let next = edges(part, rules, follow, work)?;
                note(&all.last, &next.first, follow, work)?;
                if all.nullable {
                    all.first.extend(&next.first);
                }
                if !next.nullable {
                    all.last.clear();
                }
                all.last.extend(&next.last);
                all.nullable &= next.nullable;
            }
            all
        }
        Part::Alt(options) => {
            let mut all = Edges::default();
            for option in options {
                let option = edges(option, rules, follow, work)?;
                all.nullable |= option.nullable;
                all.first.extend(option.first);
                all.last.extend(option.last);
            }
            all
        }
        Part::Repeat(_, _, Some(0)) => Edges { nullable: true, ..Edges::default() },
        Part::Repeat(part, min, max) => {
            let mut all = edges(part, rules, follow, work)?;
            if *max != Some(1) {
                note(&all.last, &all.first, follow, work)?;
            }
            all.nullable |= *min == 0;
            all
        }
    };
    let cost = 1 + found.first.len() as u64 + found.last.len() as u64;
    *work = work.checked_sub(cost)?;
    Some(found)
}

fn note(before: &Set, after: &Set, follow: &mut [Set], work: &mut u64) -> Option<()> {
    if follow.is_empty() {
        return Some(());
    }
    for &term in before {
        *work = work.checked_sub(after.len() as u64)?;
        follow[term].extend(after);
    }
    Some(())
}
