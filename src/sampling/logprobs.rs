//! How likely a token was, and which ones were likelier.

use super::Scratch;
use super::candidate::{self, Candidate};
use super::chain::Left;
use super::row::Row;
use crate::core::Token;

/// What is told of one token.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// The token.
    pub token: Token,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// How many tokens were at least as likely, from 1; equal ones by token.
    pub rank: u32,
    /// The likeliest tokens, likeliest first.
    pub top: Vec<(Token, f32)>,
}

/// Of a token among all of a row, as the model gave it.
pub(super) fn tell(row: &Row<'_>, token: usize, n_top: u32, scratch: &mut Scratch) -> Told {
    tell_from(row, Left::Row { floor: f32::NEG_INFINITY, temp: 1.0 }, token, n_top, scratch)
}

/// Of a token among those that a chain left of a row.
pub(super) fn tell_from(row: &Row<'_>, left: Left, token: usize, n_top: u32, scratch: &mut Scratch) -> Told {
    let Scratch { selection, candidates, .. } = scratch;
    let n_top = n_top as usize;
    match left {
        Left::One(token) => {
            let top = if n_top > 0 { vec![(token as Token, 0.0)] } else { Vec::new() };
            Told { token: token as Token, logprob: 0.0, rank: 1, top }
        }
        Left::Few => {
            let max = candidate::best_logit(candidates);
            let total = candidate::mass(candidates, max);
            let logprob = |c: &Candidate| (f64::from(c.logit() - max) - total.ln()) as f32;
            let place = candidates.iter().position(|c| c.token() == token);
            let top = candidates.iter().take(n_top).map(|c| (c.token() as Token, logprob(c))).collect();
            let own = place.map_or(f32::NEG_INFINITY, |at| logprob(&candidates[at]));
            Told { token: token as Token, logprob: own, rank: place.map_or(u32::MAX, |at| at as u32 + 1), top }
        }
        Left::Row { floor, temp } => {
            let total = row.mass(floor, 1.0 / temp).ln();
            let logprob = |logit: f32| {
                // An infinite logit is certain.
                let below = if logit >= row.max { 0.0 } else { f64::from((logit - row.max) / temp) };
                (below - total) as f32
            };
            if n_top > 0 {
                row.best(n_top, floor, selection, candidates);
                candidates.sort_unstable();
            } else {
                candidates.clear();
            }
            let top = candidates.iter().map(|c| (c.token() as Token, logprob(c.logit()))).collect();
            let logit = row.logit(token);
            let own = if logit >= floor { logprob(logit) } else { f32::NEG_INFINITY };
            Told { token: token as Token, logprob: own, rank: row.rank(token), top }
        }
    }
}
