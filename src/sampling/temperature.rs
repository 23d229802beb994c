//! The temperature, fixed or following the entropy.

use super::candidate::{self, Candidate};
use super::typical::entropy;
use crate::core::SamplingParams;

/// How warm a request's draws are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Temperature {
    pub(super) temp: f32,
    /// How far it goes up and down; 0 is fixed.
    range: f32,
    exponent: f32,
}

impl Temperature {
    pub(super) fn new(params: &SamplingParams) -> Self {
        Self { temp: params.temp, range: params.dynatemp_range, exponent: params.dynatemp_exponent }
    }

    /// Whether the likeliest token is always drawn.
    pub(super) fn is_greedy(self) -> bool {
        self.temp <= 0.0 && self.range <= 0.0
    }

    /// Whether it is the same for all rows, and not 0.
    pub(super) fn is_fixed(self) -> bool {
        self.range <= 0.0 && self.temp > 0.0
    }

    /// Divide the logits of candidates, of which there are `n` with those that are masked; at 0, leave the best one alone.
    pub(super) fn apply(self, candidates: &mut Vec<Candidate>, n: usize) {
        if self.is_greedy() {
            candidates.sort_unstable();
            candidates.truncate(1);
            return;
        }
        let (max, inverse) = (candidate::best_logit(candidates), self.inverse(candidates, n));
        if (max * inverse).is_finite() {
            candidate::edit(candidates, |_, logit| logit * inverse);
        } else {
            // A tiny temperature: what counts is the difference to the largest logit.
            candidate::edit(candidates, |_, logit| if logit >= max { 0.0 } else { (logit - max) * inverse });
        }
    }

    /// One over the temperature for these candidates: where many are as likely it is high, where one is likeliest low
    /// (dynamic temperature, as llama.cpp has it).
    fn inverse(self, candidates: &[Candidate], n: usize) -> f32 {
        if self.range <= 0.0 {
            return 1.0 / self.temp;
        }
        if n < 2 {
            return 1.0;
        }
        let (lowest, highest) = ((self.temp - self.range).max(0.0), self.temp + self.range);
        let normalized = entropy(candidates) / (n as f64).ln();
        let temp = lowest + (highest - lowest) * (normalized as f32).powf(self.exponent);
        1.0 / temp.max(f32::MIN_POSITIVE)
    }
}
