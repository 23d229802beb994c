//! Where repetitions end for DRY: tokens in which a breaker's text begins.

use super::ids::Token;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Tokens of a breaker that are looked at, behind the first.
const MAX_TAIL: usize = 20;

/// The tokens that break a repetition: by the first, what may follow it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breakers {
    tails: BTreeMap<Token, Vec<Vec<Token>>>,
}

impl Breakers {
    /// The tokens in which `breaker` stands or begins. `pieces` gives each token's text; `tokenize` makes tokens of the
    /// part of it that a token leaves over.
    pub fn add(
        &mut self,
        breaker: &[u8],
        pieces: impl Iterator<Item = (Token, Vec<u8>)>,
        mut tokenize: impl FnMut(&[u8]) -> Vec<Token>,
    ) {
        for (token, piece) in pieces {
            let begins = |at: &usize| {
                let n = breaker.len().min(piece.len() - at);
                piece[*at..*at + n] == breaker[..n]
            };
            let whole = (0..piece.len()).any(|at| piece.len() - at >= breaker.len() && begins(&at));
            let tails: Vec<Vec<Token>> = if whole {
                vec![Vec::new()]
            } else {
                let begun = (0..piece.len()).filter(begins);
                begun.map(|at| tokenize(&breaker[piece.len() - at..])).collect()
            };
            for mut tail in tails {
                tail.truncate(MAX_TAIL);
                let known = self.tails.entry(token).or_default();
                if !known.contains(&tail) {
                    known.push(tail);
                }
            }
        }
    }

    /// Take in all that another one has.
    pub fn join(&mut self, other: &Self) {
        for (token, tails) in &other.tails {
            let known = self.tails.entry(*token).or_default();
            let new: Vec<_> = tails.iter().filter(|tail| !known.contains(tail)).cloned().collect();
            known.extend(new);
        }
    }

    /// How many tokens lie behind the last breaker in a sequence, newest first.
    pub fn limit(&self, newest_first: &[Token]) -> usize {
        let found = newest_first.iter().enumerate().find_map(|(i, token)| {
            let follows = |tail: &&Vec<Token>| {
                tail.len() <= i && tail.iter().zip(newest_first[..i].iter().rev()).all(|(a, b)| a == b)
            };
            self.tails.get(token)?.iter().filter(follows).map(Vec::len).max().map(|longest| i - longest)
        });
        found.unwrap_or(newest_first.len())
    }

    /// Whether the token is a breaker by itself.
    pub fn is_single(&self, token: Token) -> bool {
        self.tails.get(&token).is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }
}
