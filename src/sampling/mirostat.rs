//! Mirostat (Basu, Ramachandran, Keskar and Varshney, 2021): draws whose surprise stays near a target, both of
//! llama.cpp's versions.

use super::Scratch;
use super::candidate::{self, Candidate};
use super::chain::Left;
use super::row::Row;
use crate::core::SamplingParams;

/// Candidates from which version 1 estimates how fast probabilities fall.
const N_ESTIMATE: usize = 100;

/// What is so much less likely than the likeliest is not likely at all, in 32 bits. Unit: nats.
const NO_PROBABILITY: f32 = 103.97;

/// The state of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mirostat {
    is_second: bool,
    /// The target. Unit: bits.
    tau: f32,
    eta: f32,
    /// The surprise up to which tokens are drawn. Unit: bits.
    mu: f32,
    n_vocab: usize,
}

impl Mirostat {
    /// None where the request does not want it.
    pub(super) fn new(params: &SamplingParams, n_vocab: usize) -> Option<Self> {
        let (tau, eta) = (params.mirostat_tau, params.mirostat_eta);
        (params.mirostat > 0).then_some(Self { is_second: params.mirostat == 2, tau, eta, mu: 2.0 * tau, n_vocab })
    }

    /// Narrow what the temperature left of a row.
    pub(super) fn narrow(&self, row: &Row<'_>, left: Left, scratch: &mut Scratch) -> Left {
        let Left::Row { floor, temp } = left else {
            if left == Left::Few {
                self.narrow_few(&mut scratch.candidates);
            }
            return left;
        };
        if self.is_second {
            let nats = row.mass(floor, 1.0 / temp).ln() as f32 - self.mu * std::f32::consts::LN_2;
            // At least the likeliest token is left, and only one of several that are as likely.
            return if nats > 0.0 { Left::One(row.argmax()) } else { Left::Row { floor: row.max + temp * nats, temp } };
        }
        row.best(N_ESTIMATE, floor, &mut scratch.selection, &mut scratch.candidates);
        scratch.candidates.sort_unstable();
        let k = self.estimate(&scratch.candidates, 1.0 / temp);
        row.best(k, floor, &mut scratch.selection, &mut scratch.candidates);
        candidate::edit(
            &mut scratch.candidates,
            |_, logit| {
                if logit >= row.max { 0.0 } else { (logit - row.max) / temp }
            },
        );
        scratch.candidates.sort_unstable();
        Left::Few
    }

    /// The same, of candidates that are warm already, best first.
    fn narrow_few(&self, candidates: &mut Vec<Candidate>) {
        if self.is_second {
            let max = candidate::best_logit(candidates);
            let total = candidate::mass(candidates, max);
            let floor = max + total.ln() as f32 - self.mu * std::f32::consts::LN_2;
            let n_left = candidates.partition_point(|candidate| candidate.logit() >= floor);
            candidates.truncate(n_left.max(1));
        } else {
            let k = self.estimate(candidates, 1.0);
            candidates.truncate(k);
        }
    }

    /// How many of the likeliest tokens version 1 draws from: probabilities fall as Zipf's law has it, with an exponent
    /// that is fitted to the likeliest ones.
    fn estimate(&self, best: &[Candidate], inverse_temp: f32) -> usize {
        let best = &best[..best.len().min(N_ESTIMATE)];
        let fall = |pair: &[Candidate]| (pair[0].logit() - pair[1].logit()) * inverse_temp;
        // Where one of them has no probability that a number can hold, they fall as fast as can be.
        if best.windows(2).map(fall).sum::<f32>() > NO_PROBABILITY {
            return 1;
        }
        let (mut products, mut squares) = (0.0_f32, 0.0_f32);
        for (i, pair) in best.windows(2).enumerate() {
            let rank = ((i + 2) as f32 / (i + 1) as f32).ln();
            products += rank * fall(pair);
            squares += rank * rank;
        }
        let exponent = products / squares;
        let epsilon = exponent - 1.0;
        let k = ((epsilon * self.mu.exp2()) / (1.0 - (self.n_vocab as f32).powf(-epsilon))).powf(1.0 / exponent);
        if k.is_finite() { (k as usize).clamp(1, self.n_vocab) } else { 1 }
    }

    /// A token was drawn that was so likely among those that were left.
    pub(super) fn accept(&mut self, logprob: f32) {
        let surprise = -logprob / std::f32::consts::LN_2;
        if surprise.is_finite() {
            self.mu -= self.eta * (surprise - self.tau);
        }
    }
}
