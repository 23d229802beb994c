//! Locally typical sampling (Meister, Pimentel, Wiher and Cotterell, 2022).

use super::candidate::{self, Candidate};
use super::row::weight;

/// Keep the candidates whose information is closest to the entropy, until together they weigh more than `p`.
pub(super) fn keep_typical(candidates: &mut Vec<Candidate>, p: f32) {
    let entropy = entropy(candidates);
    let max = candidate::best_logit(candidates);
    let total = candidate::mass(candidates, max);
    let probability = |c: &Candidate| f64::from(weight(c.logit(), max, 1.0)) / total;
    candidates.sort_unstable();
    let off = |c: &Candidate| (-probability(c).ln() - entropy).abs();
    candidates.sort_by(|a, b| off(a).total_cmp(&off(b)));
    let mut kept = 0.0;
    let cut = candidates.iter().position(|candidate| {
        kept += probability(candidate);
        kept > f64::from(p)
    });
    candidates.truncate(cut.map_or(candidates.len(), |at| at + 1));
}

/// The entropy of the candidates' probabilities at temperature 1. Unit: nats.
pub(super) fn entropy(candidates: &[Candidate]) -> f64 {
    let max = candidate::best_logit(candidates);
    let weigh = |c: &Candidate| f64::from(weight(c.logit(), max, 1.0));
    let total = candidate::mass(candidates, max);
    candidates.iter().map(|c| weigh(c) / total).filter(|p| *p > 0.0).map(|p| -p * p.ln()).sum()
}
