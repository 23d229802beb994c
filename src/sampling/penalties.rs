//! Repetition, frequency and presence penalties over the last tokens, with llama.cpp's arithmetic.

use crate::core::{SamplingParams, Token};
use std::collections::{BTreeMap, VecDeque};

/// The tokens that penalties look at, and how often each of them occurs.
#[derive(Clone, Debug)]
pub(super) struct Penalties {
    repeat: f32,
    freq: f32,
    present: f32,
    /// Tokens looked at; none means all.
    last_n: Option<usize>,
    /// The last tokens, oldest first; stays empty where all tokens count, because then none ever leaves.
    window: VecDeque<Token>,
    counts: BTreeMap<Token, u32>,
}

impl Penalties {
    /// The penalties of a request that starts with `prompt`; none where they would change nothing.
    pub(super) fn new(params: &SamplingParams, prompt: &[Token]) -> Option<Self> {
        #[expect(clippy::float_cmp, reason = "exactly these values turn penalties off")]
        let off = params.penalty_repeat == 1.0 && params.penalty_freq == 0.0 && params.penalty_present == 0.0;
        let last_n = usize::try_from(params.penalty_last_n).ok();
        if off || last_n == Some(0) {
            return None;
        }
        let mut penalties = Self {
            repeat: params.penalty_repeat,
            freq: params.penalty_freq,
            present: params.penalty_present,
            last_n,
            window: VecDeque::new(),
            counts: BTreeMap::new(),
        };
        let start = last_n.map_or(0, |n| prompt.len().saturating_sub(n));
        prompt[start..].iter().for_each(|&token| penalties.accept(token));
        Some(penalties)
    }

    /// A token joins the window, and the oldest leaves it once it is full.
    pub(super) fn accept(&mut self, token: Token) {
        *self.counts.entry(token).or_insert(0) += 1;
        let Some(last_n) = self.last_n else { return };
        self.window.push_back(token);
        if self.window.len() <= last_n {
            return;
        }
        let Some(oldest) = self.window.pop_front() else { return };
        if let Some(count) = self.counts.get_mut(&oldest) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
    }

    /// Edit the logits of the tokens in the window, and no others.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        for (&token, &count) in &self.counts {
            let Some(logit) = usize::try_from(token).ok().and_then(|id| logits.get_mut(id)) else { continue };
            *logit = self.penalised(*logit, count);
        }
    }

    /// The logit of a token, edited where it is in the window.
    pub(super) fn edited(&self, token: usize, logit: f32) -> f32 {
        self.counts.get(&(token as Token)).map_or(logit, |count| self.penalised(logit, *count))
    }

    fn penalised(&self, logit: f32, count: u32) -> f32 {
        // Dividing a negative logit would make the token likelier.
        let scaled = if logit <= 0.0 { logit * self.repeat } else { logit / self.repeat };
        scaled - (count as f32 * self.freq + self.present)
    }
}
