//! The simulated draw: a function of what the sequence holds, of the seed, and of how many tokens were drawn.

use super::{SimConfig, tokenizer};
use crate::core::{Logprob, SamplingParams, Telling, Token, TokenLogprobs, mix};
use crate::sampling::Bans;
use std::sync::Arc;

/// Draws that are tried before a banned token is given up on.
const TRIES: u64 = 64;

#[derive(Debug)]
pub(super) struct Sampler {
    seed: u64,
    n_drawn: u64,
    bans: Bans,
    telling: Telling,
    prompt: Arc<[Token]>,
}

impl Sampler {
    pub(super) fn new(sampling: &SamplingParams, prompt: &Arc<[Token]>, stop_tokens: &[Token]) -> Self {
        let seed = if sampling.temp > 0.0 { sampling.seed } else { 0 };
        let bans = Bans::new(sampling, prompt, &[tokenizer::EOG], stop_tokens);
        Self { seed, n_drawn: 0, bans, telling: sampling.telling, prompt: Arc::clone(prompt) }
    }

    /// The next token, behind `last`, of a sequence with this hash.
    pub(super) fn draw(&mut self, context: u64, last: Token, config: &SimConfig) -> Token {
        self.n_drawn += 1;
        let hash = mix(context ^ mix(self.seed.wrapping_add(self.n_drawn)));
        let mut tokens = (0..TRIES).map(|n| tokenizer::next_token(hash.wrapping_add(n << 40), last, config));
        let first = (hash % u64::from(config.n_vocab)) as Token;
        let mut all = (first..config.n_vocab as Token).chain(0..first);
        let token =
            tokens.find(|token| !self.bans.holds(*token)).or_else(|| all.find(|token| !self.bans.holds(*token)));
        let token = token.unwrap_or(tokenizer::EOG);
        self.bans.accept(token);
        token
    }

    /// What is told of a drawn token, where the request wants to know: made up, but the same each time.
    pub(super) fn told(&self, token: Token) -> Option<Box<TokenLogprobs>> {
        self.telling.drawn.map(|n_top| Box::new(make_up(token, n_top)))
    }

    /// What is told of a token of the prompt.
    pub(super) fn score(&self, pos: u32) -> Option<TokenLogprobs> {
        let n_top = self.telling.prompt?;
        self.prompt.get(pos as usize).map(|token| make_up(*token, n_top))
    }
}

/// A token is half as likely as the one before it, by their numbers.
fn make_up(token: Token, n_top: u32) -> TokenLogprobs {
    let one = |token: Token| {
        let logprob = -(token.max(0) as f32 + 1.0) * std::f32::consts::LN_2;
        Logprob { token, logprob, piece: tokenizer::piece(token) }
    };
    let top = (0..n_top as Token).map(one).collect();
    TokenLogprobs { own: one(token), rank: token.max(0) as u32 + 1, top }
}
