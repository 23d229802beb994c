//! Which tokens may be drawn at all, and what the caller adds to logits.

use crate::core::{SamplingParams, Token, TokenRules};
use std::sync::Arc;

/// The banned tokens of one request, and the biases that it gives.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bans {
    /// Each with the number of drawn tokens from which on it may be drawn.
    until: Vec<(Token, u32)>,
    n_drawn: u32,
    rules: Option<Arc<TokenRules>>,
    /// The last tokens, as many as banned sequences look back at.
    recent: Vec<Token>,
    /// How many tokens are looked back at.
    reach: usize,
}

impl Bans {
    /// What `params` says of single tokens, in a request that starts with `prompt`.
    pub(crate) fn new(params: &SamplingParams, prompt: &[Token]) -> Self {
        let rules = params.tokens.clone();
        let sequences = rules.iter().flat_map(|rules| &rules.banned_sequences);
        let reach = sequences.map(|sequence| sequence.len().saturating_sub(1)).max().unwrap_or(0);
        let recent = prompt[prompt.len().saturating_sub(reach)..].to_vec();
        Self { until: Vec::new(), n_drawn: 0, rules, recent, reach }
    }

    /// Ban what would end a generation before it may end: the vocabulary's own `eog` tokens, and those that the caller
    /// named.
    pub(crate) fn delay(&mut self, params: &SamplingParams, eog: &[Token], named: &[Token]) {
        let eog_until = if params.ignore_eos { u32::MAX } else { params.min_tokens };
        let named = named.iter().map(|token| (*token, params.min_tokens));
        let until = eog.iter().map(|token| (*token, eog_until)).chain(named).filter(|(_, until)| *until > 0);
        self.until.extend(until);
    }

    /// Ban more tokens for good.
    pub(crate) fn ban(&mut self, tokens: &[Token]) {
        self.until.extend(tokens.iter().map(|token| (*token, u32::MAX)));
    }

    /// Whether a token may not be drawn now.
    pub(crate) fn holds(&self, token: Token) -> bool {
        let is_refused = |rules: &Arc<TokenRules>| {
            rules.allowed.as_ref().is_some_and(|allowed| allowed.binary_search(&token).is_err())
                || rules.bias.iter().any(|(biased, bias)| *biased == token && *bias == f32::NEG_INFINITY)
        };
        self.banned().any(|banned| banned == token) || self.rules.as_ref().is_some_and(is_refused)
    }

    fn banned(&self) -> impl Iterator<Item = Token> {
        let by_count = self.until.iter().filter(|(_, until)| self.n_drawn < *until).map(|(token, _)| *token);
        let sequences = self.rules.iter().flat_map(|rules| &rules.banned_sequences);
        by_count.chain(sequences.filter_map(|sequence| {
            let (last, before) = sequence.split_last()?;
            self.recent.ends_with(before).then_some(*last)
        }))
    }

    /// Add the biases, and take the banned tokens out of a row of logits.
    pub(crate) fn apply(&self, logits: &mut [f32]) {
        let at = |token: Token| usize::try_from(token).ok();
        if let Some(rules) = &self.rules {
            for (token, bias) in &rules.bias {
                if let Some(logit) = at(*token).and_then(|token| logits.get_mut(token)) {
                    *logit += bias;
                }
            }
            if let Some(allowed) = &rules.allowed {
                let kept: Vec<_> = allowed.iter().filter_map(|t| Some((at(*t)?, *logits.get(at(*t)?)?))).collect();
                logits.fill(f32::NEG_INFINITY);
                for (token, logit) in kept {
                    logits[token] = logit;
                }
            }
        }
        for token in self.banned() {
            if let Some(logit) = at(token).and_then(|token| logits.get_mut(token)) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    /// A token was drawn.
    pub(crate) fn accept(&mut self, token: Token) {
        self.n_drawn = self.n_drawn.saturating_add(1);
        if self.reach > 0 {
            self.recent.push(token);
            let n_old = self.recent.len().saturating_sub(self.reach);
            self.recent.drain(..n_old);
        }
    }
}
