//! DRY (don't repeat yourself; p-e-w's sampler as llama.cpp has it): a token that would prolong a repetition is the less
//! likely the longer that is already.

use crate::core::{Breakers, SamplingParams, Token};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The state of one request.
#[derive(Clone, Debug)]
pub(super) struct Dry {
    multiplier: f32,
    base: f32,
    allowed_length: usize,
    /// Tokens looked at.
    last_n: usize,
    breakers: Option<Arc<Breakers>>,
    /// Oldest first; at least the last ones that are looked at.
    history: Vec<Token>,
    /// What each token would cost, after the last one that was taken.
    penalties: BTreeMap<Token, f32>,
}

impl Dry {
    /// None where it would change nothing.
    pub(super) fn new(params: &SamplingParams, prompt: &[Token]) -> Option<Self> {
        let last_n = usize::try_from(params.dry_penalty_last_n).unwrap_or(usize::MAX);
        if params.dry_multiplier == 0.0 || params.dry_base < 1.0 || last_n == 0 {
            return None;
        }
        let mut dry = Self {
            multiplier: params.dry_multiplier,
            base: params.dry_base,
            allowed_length: params.dry_allowed_length as usize,
            last_n,
            breakers: params.dry_breakers.clone(),
            history: prompt[prompt.len().saturating_sub(last_n)..].to_vec(),
            penalties: BTreeMap::new(),
        };
        dry.weigh();
        Some(dry)
    }

    /// A token joins the history.
    pub(super) fn accept(&mut self, token: Token) {
        self.history.push(token);
        if self.history.len() > self.last_n.saturating_mul(2) {
            self.history.drain(..self.history.len() - self.last_n);
        }
        self.weigh();
    }

    /// What a token costs.
    pub(super) fn penalty(&self, token: usize) -> f32 {
        self.penalties.get(&(token as Token)).copied().unwrap_or(0.0)
    }

    /// Edit the logits of the tokens that would prolong a repetition.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        for (token, penalty) in &self.penalties {
            if let Some(logit) = usize::try_from(*token).ok().and_then(|token| logits.get_mut(token)) {
                *logit -= penalty;
            }
        }
    }

    /// Find the repetitions that the history ends with.
    fn weigh(&mut self) {
        self.penalties.clear();
        // Newest first from here on.
        let window: Vec<Token> = self.history.iter().rev().take(self.last_n).copied().collect();
        if window.len() <= self.allowed_length {
            return;
        }
        let limit = self.breakers.as_ref().map_or(window.len(), |breakers| breakers.limit(&window));
        if limit < self.allowed_length {
            return;
        }
        // The window's end stands again `k` tokens before it, `lengths[k]` tokens long; the token after that place is
        // the one that would prolong the repetition.
        let lengths = common_beginnings(&window);
        let mut longest: BTreeMap<Token, usize> = BTreeMap::new();
        for k in 1..window.len() {
            let length = lengths[k].min(limit);
            if length >= self.allowed_length {
                let known = longest.entry(window[k - 1]).or_insert(length);
                *known = (*known).max(length);
            }
        }
        let is_breaker = |token: &Token| self.breakers.as_ref().is_some_and(|breakers| breakers.is_single(*token));
        longest.retain(|token, _| !is_breaker(token));
        // No power may become infinite.
        let most = if self.base > 1.000_001 { (f32::MAX.ln() / self.base.ln()) as i32 } else { i32::MAX };
        let cost = |length: usize| {
            let beyond = i32::try_from(length - self.allowed_length).unwrap_or(i32::MAX);
            (f64::from(self.multiplier) * f64::from(self.base).powi(beyond.min(most))) as f32
        };
        self.penalties = longest.into_iter().map(|(token, length)| (token, cost(length))).collect();
    }
}

/// For each place of a sequence, how long what follows there is equal to the sequence's own beginning: the Z-algorithm
/// (Gusfield, 1997), linear in its length. The first entry means nothing.
fn common_beginnings(sequence: &[Token]) -> Vec<usize> {
    let n = sequence.len();
    let mut lengths = vec![0; n];
    // A stretch that is known to be equal to a beginning: from `start` up to `end`.
    let (mut start, mut end) = (0, 0);
    for k in 1..n {
        let mut length = if k < end { lengths[k - start].min(end - k) } else { 0 };
        while k + length < n && sequence[length] == sequence[k + length] {
            length += 1;
        }
        lengths[k] = length;
        if k + length > end {
            (start, end) = (k, k + length);
        }
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::common_beginnings;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn common_beginnings_are_what_comparing_finds(sequence in prop::collection::vec(0..3, 0..40)) {
            let lengths = common_beginnings(&sequence);
            for k in 1..sequence.len() {
                let equal = sequence.iter().zip(&sequence[k..]).take_while(|(a, b)| a == b).count();
                prop_assert_eq!(lengths[k], equal);
            }
        }
    }
}
