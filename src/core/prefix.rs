//! Which prefix of a prompt is there already: an index over the tokens of many sequences.
//!
//! The sequences of a scope stand in the order of their tokens, each with the length of what it shares with the one
//! before it. A prompt's place among them is found by bisection; those that share most with it are its neighbours there,
//! and what any other shares is the least of the lengths in between. It is a suffix array with its table of common
//! prefixes (Manber and Myers, 1990), of whole sequences instead of suffixes; as there, a comparison begins where both
//! bounds of the bisection are known to agree, so that a long prefix is read about once.

use super::ids::Token;
use crate::options::Key;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An index of sequences by their tokens, apart for each scope.
#[derive(Debug)]
pub struct PrefixIndex<I> {
    scopes: BTreeMap<Option<Key>, Vec<Entry<I>>>,
}

#[derive(Debug)]
struct Entry<I> {
    id: I,
    tokens: Arc<[Token]>,
    /// Tokens that it has in common with the entry before it.
    shared: usize,
}

/// A sequence's place in the order, and what it shares with both neighbours.
struct Place {
    at: usize,
    before: usize,
    after: usize,
}

impl<I> Default for PrefixIndex<I> {
    fn default() -> Self {
        Self { scopes: BTreeMap::new() }
    }
}

impl<I: Copy + Eq> PrefixIndex<I> {
    /// Take a sequence in.
    pub fn insert(&mut self, scope: Option<&Key>, id: I, tokens: Arc<[Token]>) {
        let entries = self.scopes.entry(scope.cloned()).or_default();
        let Place { at, before, after } = place(entries, &tokens);
        if let Some(next) = entries.get_mut(at) {
            next.shared = after;
        }
        entries.insert(at, Entry { id, tokens, shared: before });
    }

    /// Take a sequence out, if it is there.
    pub fn remove(&mut self, scope: Option<&Key>, id: I) {
        let key = scope.cloned();
        let Some(entries) = self.scopes.get_mut(&key) else { return };
        let Some(at) = entries.iter().position(|entry| entry.id == id) else { return };
        let gone = entries.remove(at);
        if let Some(next) = entries.get_mut(at) {
            next.shared = next.shared.min(gone.shared);
        }
        if entries.is_empty() {
            self.scopes.remove(&key);
        }
    }

    /// Every sequence of the scope with how many tokens it shares with these from the beginning, most first.
    pub fn matches(&self, scope: Option<&Key>, tokens: &[Token]) -> Matches<'_, I> {
        let entries = self.scopes.get(&scope.cloned()).map_or(&[][..], Vec::as_slice);
        let Place { at, before, after } = place(entries, tokens);
        Matches { entries, left: at, right: at, before, after }
    }

    /// The order and the shared lengths, against their definitions.
    pub(super) fn check(&self) {
        for entries in self.scopes.values() {
            assert!(!entries.is_empty(), "a scope without a sequence");
            for pair in entries.windows(2) {
                assert!(pair[0].tokens <= pair[1].tokens, "sequences in the order of their tokens");
                assert_eq!(pair[1].shared, common_prefix(&pair[0].tokens, &pair[1].tokens), "what neighbours share");
            }
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.scopes.values().map(Vec::len).sum()
    }
}

/// See [`PrefixIndex::matches`].
pub struct Matches<'a, I> {
    entries: &'a [Entry<I>],
    /// Entries `left..right` were given.
    left: usize,
    right: usize,
    /// What entries `left - 1` and `right` share with the tokens.
    before: usize,
    after: usize,
}

impl<I: Copy> Iterator for Matches<'_, I> {
    type Item = (I, usize);

    fn next(&mut self) -> Option<(I, usize)> {
        let has_left = self.left > 0;
        let has_right = self.right < self.entries.len();
        if has_left && (!has_right || self.before >= self.after) {
            self.left -= 1;
            let (entry, shared) = (&self.entries[self.left], self.before);
            self.before = shared.min(entry.shared);
            return Some((entry.id, shared));
        }
        let (entry, shared) = (self.entries.get(self.right)?, self.after);
        self.right += 1;
        self.after = self.entries.get(self.right).map_or(0, |next| shared.min(next.shared));
        Some((entry.id, shared))
    }
}

/// Where tokens stand in the order: behind all that are not greater.
fn place<I>(entries: &[Entry<I>], tokens: &[Token]) -> Place {
    let (mut low, mut high) = (0, entries.len());
    let (mut before, mut after) = (0, 0);
    while low < high {
        let middle = usize::midpoint(low, high);
        let other = &entries[middle].tokens;
        let known = before.min(after);
        let shared = known + common_prefix(&other[known..], &tokens[known..]);
        if other[shared..] <= tokens[shared..] {
            (low, before) = (middle + 1, shared);
        } else {
            (high, after) = (middle, shared);
        }
    }
    Place { at: low, before, after }
}

/// Tokens that two lists have in common from their beginning.
pub(super) fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    const BLOCK: usize = 64;
    let blocks = a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK)).take_while(|(x, y)| x == y).count();
    let at = blocks * BLOCK;
    at + a[at..].iter().zip(&b[at..]).take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(scope: u8) -> Option<Key> {
        (scope > 0).then(|| Key(format!("i{scope}")))
    }

    #[test]
    fn an_empty_index_matches_nothing() {
        let index = PrefixIndex::<u32>::default();
        assert_eq!(index.matches(None, &[1, 2, 3]).count(), 0);
    }

    #[test]
    fn most_is_given_first_and_a_longer_sequence_counts_as_far_as_it_agrees() {
        let mut index = PrefixIndex::default();
        for (id, tokens) in [(1, vec![1, 2, 3]), (2, vec![1, 2, 3, 4, 5]), (3, vec![1, 9]), (4, vec![7])] {
            index.insert(None, id, tokens.into());
        }
        let matches: Vec<_> = index.matches(None, &[1, 2, 3, 4, 6]).collect();
        assert_eq!(matches, [(2, 4), (1, 3), (3, 1), (4, 0)]);
        assert_eq!(index.matches(key(1).as_ref(), &[1, 2, 3]).count(), 0, "another scope sees nothing");
    }

    proptest! {
        /// Against the plain way: compare with each.
        #[test]
        fn it_says_what_comparing_with_each_says(
            steps in prop::collection::vec((0u8..3, 0u32..12, prop::collection::vec(0i32..3, 0..9), any::<bool>()), 1..60),
            asked in prop::collection::vec(0i32..3, 0..9),
        ) {
            let mut index = PrefixIndex::default();
            let mut plain: BTreeMap<u32, (u8, Vec<Token>)> = BTreeMap::new();
            for (scope, id, tokens, removes) in steps {
                if let Some((scope, _)) = plain.remove(&id) {
                    index.remove(key(scope).as_ref(), id);
                }
                if !removes {
                    index.insert(key(scope).as_ref(), id, tokens.clone().into());
                    plain.insert(id, (scope, tokens));
                }
                index.check();
                prop_assert_eq!(index.len(), plain.len());
            }
            for scope in 0..3 {
                let found: Vec<(u32, usize)> = index.matches(key(scope).as_ref(), &asked).collect();
                prop_assert!(found.is_sorted_by(|a, b| a.1 >= b.1));
                let expected: BTreeMap<u32, usize> = plain
                    .iter()
                    .filter(|(_, (of, _))| *of == scope)
                    .map(|(id, (_, tokens))| (*id, common_prefix(tokens, &asked)))
                    .collect();
                prop_assert_eq!(found.into_iter().collect::<BTreeMap<_, _>>(), expected);
            }
        }

        #[test]
        fn blocks_change_nothing(shared in 0usize..200, a in 0usize..100, b in 0usize..100) {
            let list = |tail: usize, token| [vec![5; shared], vec![token; tail]].concat();
            prop_assert_eq!(common_prefix(&list(a, 1), &list(b, 2)), shared);
        }
    }
}
