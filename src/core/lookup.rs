//! What followed the last tokens of a text where they stood before: prompt lookup (Saxena, "Prompt Lookup Decoding", 2023).
//!
//! An index over the text's own tokens, which grows with it: for each run of two to four tokens, where it ended last. A run
//! has a few places in a table, by its hash; where all are taken, it takes one over. Which run it is is seen in the text. So
//! a token costs three writes, memory has a bound, and what is lost by that is a draft.

use super::ids::Token;
use super::mix::{GOLDEN, mix};

/// Runs of so many tokens are looked for, the longest first.
pub(super) const LONGEST: usize = 4;
pub(super) const SHORTEST: usize = 2;
/// Places of the table for each token: three runs end there.
const PLACES: usize = 4;
/// Places that a run may have.
const CHOICES: usize = 4;
const LEAST_PLACES: usize = 1 << 8;
/// Unit: places of four bytes.
const MOST_PLACES: usize = 1 << 17;
/// Tokens that are taken in at once: a long prompt is taken in beside several passes.
const MOST_AT_ONCE: usize = 2048;

/// Where a text goes on that stood there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The place behind what was found.
    pub(super) from: u32,
    /// Tokens of it that are the last ones now.
    pub(super) n_alike: u32,
}

/// The index of one text. Empty until it is asked for the first time.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    /// Behind which token each run ended last; 0 where there was none.
    table: Vec<u32>,
    /// Runs are in the table that end with one of the first so many tokens.
    n_taken: usize,
}

impl Lookup {
    /// Take in what is new of a text that will have `n_most` tokens, and find where its last ones stood before; nothing
    /// while there is more to take in.
    pub(super) fn find(&mut self, tokens: &[Token], n_most: u32) -> Option<Found> {
        if self.table.is_empty() {
            let n_places = (n_most as usize).saturating_mul(PLACES).clamp(LEAST_PLACES, MOST_PLACES);
            self.table = vec![0; n_places.next_power_of_two()];
        }
        // The last run is what is looked for.
        let n_before = tokens.len().saturating_sub(1);
        let until = n_before.min(self.n_taken + MOST_AT_ONCE);
        for end in self.n_taken + 1..=until {
            self.take_in(&tokens[..end]);
        }
        self.n_taken = self.n_taken.max(until);
        if self.n_taken < n_before {
            return None;
        }
        runs(tokens).rev().find_map(|(hash, n)| {
            let from = self.places(hash).map(|at| self.table[at]).find(|from| ends_alike(tokens, *from, n))?;
            Some(Found { from, n_alike: n as u32 })
        })
    }

    /// The runs that a text ends with end there now.
    fn take_in(&mut self, text: &[Token]) {
        for (hash, n) in runs(text) {
            let is_its = |at: &usize| self.table[*at] == 0 || ends_alike(text, self.table[*at], n);
            let at = self.places(hash).find(is_its).or(self.places(hash).next());
            if let Some(at) = at {
                self.table[at] = text.len() as u32;
            }
        }
    }

    /// Tokens that were taken in.
    pub(super) fn n_taken(&self) -> usize {
        self.n_taken
    }

    fn places(&self, hash: u64) -> impl Iterator<Item = usize> + use<> {
        let mask = self.table.len() - 1;
        (0..CHOICES).map(move |i| (hash as usize).wrapping_add(i) & mask)
    }
}

/// The hashes of the runs that a text ends with, each with its length, the shortest first.
fn runs(text: &[Token]) -> impl DoubleEndedIterator<Item = (u64, usize)> + use<> {
    let mut hash = 0;
    let mut hashes = [0; LONGEST];
    for (token, slot) in text.iter().rev().zip(&mut hashes) {
        hash = mix(hash ^ u64::from(token.unsigned_abs()).wrapping_add(GOLDEN));
        *slot = hash;
    }
    (SHORTEST..=LONGEST.min(text.len())).map(move |n| (hashes[n - 1], n))
}

/// Whether a text's first `end` tokens end with the `n` that it ends with itself.
fn ends_alike(text: &[Token], end: u32, n: usize) -> bool {
    let end = end as usize;
    end >= n && text[end - n..end] == text[text.len() - n..]
}

impl Found {
    /// What came behind it, again and again where it goes on up to the text's end.
    pub(super) fn draft(self, tokens: &[Token]) -> impl Iterator<Item = Token> + '_ {
        tokens[self.from as usize..].iter().copied().cycle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn draft(text: &[Token], n: usize) -> Vec<Token> {
        let found = Lookup::default().find(text, text.len() as u32);
        found.map(|found| found.draft(text).take(n).collect()).unwrap_or_default()
    }

    #[test]
    fn what_followed_the_last_tokens_before_is_found_by_the_longest_run_and_where_that_was_last() {
        assert_eq!(draft(&[1, 2, 3, 4, 9, 1, 2, 3], 3), [4, 9, 1]);
        // 2 3 came later than 1 2 3.
        assert_eq!(draft(&[1, 2, 3, 4, 7, 2, 3, 5, 1, 2, 3], 1), [4]);
        assert_eq!(draft(&[2, 3, 4, 7, 2, 3, 5, 1, 2, 3], 1), [5]);
        for none in [&[1, 2, 3][..], &[3, 1, 2, 3], &[]] {
            assert!(draft(none, 1).is_empty(), "{none:?}");
        }
    }

    #[test]
    fn a_period_goes_on() {
        assert_eq!(draft(&[8, 1, 2, 3, 1, 2, 3], 5), [1, 2, 3, 1, 2]);
        assert_eq!(draft(&[5, 5, 5], 4), [5, 5, 5, 5]);
    }

    #[test]
    fn a_long_prompt_is_taken_in_beside_several_passes() {
        let text: Vec<Token> = (0..5000).map(|i| i % 4990).collect();
        let mut lookup = Lookup::default();
        assert_eq!(lookup.find(&text, 5000), None);
        assert_eq!(lookup.find(&text, 5000), None);
        assert_eq!(lookup.find(&text, 5000), Some(Found { from: 10, n_alike: 4 }));
    }

    #[test]
    fn memory_has_a_bound() {
        let mut lookup = Lookup::default();
        lookup.find(&[1], u32::MAX);
        assert_eq!(lookup.table.len(), MOST_PLACES);
    }

    proptest! {
        /// Whatever is found is there, and token by token it is what is found at once.
        #[test]
        fn a_text_that_grows_is_indexed_as_one_that_is_there(
            text in prop::collection::vec(0 as Token..6, 1..200),
        ) {
            let mut lookup = Lookup::default();
            for n in 1..=text.len() {
                let found = lookup.find(&text[..n], 200);
                prop_assert_eq!(found, Lookup::default().find(&text[..n], 200));
                let Some(Found { from, n_alike }) = found else { continue };
                let (from, n_alike) = (from as usize, n_alike as usize);
                prop_assert!(from < n);
                prop_assert_eq!(&text[from - n_alike..from], &text[n - n_alike..n]);
            }
        }
    }
}
