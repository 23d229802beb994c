//! The simulated draw: a function of what the sequence holds, of the seed, and of how many tokens were drawn.

use super::{SimConfig, tokenizer};
use crate::core::{SamplingParams, Token, mix};

/// Draws that are tried before a banned token is given up on.
const TRIES: u64 = 64;

#[derive(Debug)]
pub(super) struct Sampler {
    seed: u64,
    n_drawn: u64,
    /// Tokens that may not be drawn, each with the number of drawn ones until which that holds.
    banned: Vec<(Token, u64)>,
}

impl Sampler {
    pub(super) fn new(sampling: &SamplingParams, stop_tokens: &[Token]) -> Self {
        let until = u64::from(sampling.min_tokens);
        let eog = (tokenizer::EOG, if sampling.ignore_eos { u64::MAX } else { until });
        let banned = stop_tokens.iter().map(|token| (*token, until)).chain([eog]).collect();
        let seed = if sampling.temp > 0.0 { sampling.seed } else { 0 };
        Self { seed, n_drawn: 0, banned }
    }

    /// The next token, behind `last`, of a sequence with this hash.
    pub(super) fn draw(&mut self, context: u64, last: Token, config: &SimConfig) -> Token {
        self.n_drawn += 1;
        let hash = mix(context ^ mix(self.seed.wrapping_add(self.n_drawn)));
        let is_banned = |token| self.banned.iter().any(|(other, until)| *other == token && self.n_drawn <= *until);
        let mut tokens = (0..TRIES).map(|n| tokenizer::next_token(hash.wrapping_add(n << 40), last, config));
        tokens.find(|token| !is_banned(*token)).unwrap_or(tokenizer::EOG)
    }
}
