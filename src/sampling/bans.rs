//! Tokens that may not be drawn: what would end a generation before it may end.

use crate::core::{SamplingParams, Token};

/// The banned tokens of one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bans {
    /// Each with the number of drawn tokens from which on it may be drawn.
    until: Vec<(Token, u32)>,
    n_drawn: u32,
}

impl Bans {
    /// What `params` bans of the vocabulary's own `eog` tokens, and of those that the caller named.
    pub(crate) fn new(params: &SamplingParams, eog: &[Token], named: &[Token]) -> Self {
        let eog_until = if params.ignore_eos { u32::MAX } else { params.min_tokens };
        let named = named.iter().map(|token| (*token, params.min_tokens));
        let until = eog.iter().map(|token| (*token, eog_until)).chain(named).filter(|(_, until)| *until > 0);
        Self { until: until.collect(), n_drawn: 0 }
    }

    /// Whether a token may not be drawn now.
    pub(crate) fn holds(&self, token: Token) -> bool {
        self.banned().any(|banned| banned == token)
    }

    fn banned(&self) -> impl Iterator<Item = Token> {
        self.until.iter().filter(|(_, until)| self.n_drawn < *until).map(|(token, _)| *token)
    }

    /// Take the banned tokens out of a row of logits.
    pub(crate) fn apply(&self, logits: &mut [f32]) {
        for token in self.banned() {
            if let Some(logit) = usize::try_from(token).ok().and_then(|token| logits.get_mut(token)) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    /// A token was drawn.
    pub(crate) fn accept(&mut self) {
        self.n_drawn = self.n_drawn.saturating_add(1);
    }
}
