//! The simulated draw: a function of what the sequence holds, of the seed, and of how many tokens were drawn.

use super::{SimConfig, tokenizer};
use crate::core::{SamplingParams, Token, mix};
use crate::sampling::Bans;

/// Draws that are tried before a banned token is given up on.
const TRIES: u64 = 64;

#[derive(Debug)]
pub(super) struct Sampler {
    seed: u64,
    n_drawn: u64,
    bans: Bans,
}

impl Sampler {
    pub(super) fn new(sampling: &SamplingParams, stop_tokens: &[Token]) -> Self {
        let seed = if sampling.temp > 0.0 { sampling.seed } else { 0 };
        Self { seed, n_drawn: 0, bans: Bans::new(sampling, &[tokenizer::EOG], stop_tokens) }
    }

    /// The next token, behind `last`, of a sequence with this hash.
    pub(super) fn draw(&mut self, context: u64, last: Token, config: &SimConfig) -> Token {
        self.n_drawn += 1;
        let hash = mix(context ^ mix(self.seed.wrapping_add(self.n_drawn)));
        let mut tokens = (0..TRIES).map(|n| tokenizer::next_token(hash.wrapping_add(n << 40), last, config));
        let token = tokens.find(|token| !self.bans.holds(*token)).unwrap_or(tokenizer::EOG);
        self.bans.accept();
        token
    }
}
