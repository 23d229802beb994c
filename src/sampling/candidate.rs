//! A token that may be drawn, as one number, so that selecting and sorting compare integers.

use super::row::{self, weight};

/// Ordered best first: by logit, and among equal logits by token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate(u64);

const SIGN: u32 = 1 << 31;

impl Candidate {
    /// A token with its logit, which is not NaN.
    pub(super) fn new(logit: f32, token: usize) -> Self {
        // Adding zero turns -0 into 0, which are equal. The bits of a float, with the sign bit flipped if it is
        // positive and all of them if not, ascend as floats do; here they descend.
        let bits = (logit + 0.0).to_bits();
        let ascending = if bits & SIGN == 0 { bits ^ SIGN } else { !bits };
        Self((u64::from(!ascending) << 32) | token as u64)
    }

    /// Its logit.
    pub(super) fn logit(self) -> f32 {
        let ascending = !((self.0 >> 32) as u32);
        f32::from_bits(if ascending & SIGN == 0 { !ascending } else { ascending ^ SIGN })
    }

    /// Its token.
    pub(super) fn token(self) -> usize {
        self.0 as u32 as usize
    }
}

/// The largest logit; -inf where there is none.
pub(super) fn best_logit(candidates: &[Candidate]) -> f32 {
    candidates.iter().min().map_or(f32::NEG_INFINITY, |best| best.logit())
}

/// What they weigh together, as shares of a logit of `max`, at temperature 1.
pub(super) fn mass(candidates: &[Candidate], max: f32) -> f64 {
    candidates.iter().map(|c| f64::from(weight(c.logit(), max, 1.0))).sum()
}

/// The standard deviation of the logits.
pub(super) fn deviation(candidates: &[Candidate]) -> f32 {
    row::deviation(candidates.iter().map(|candidate| candidate.logit()))
}

/// Give candidates other logits; those with none any more go.
pub(super) fn edit(candidates: &mut Vec<Candidate>, logit: impl Fn(usize, f32) -> f32) {
    for candidate in candidates.iter_mut() {
        *candidate = Candidate::new(logit(candidate.token(), candidate.logit()), candidate.token());
    }
    candidates.retain(|candidate| candidate.logit() > f32::NEG_INFINITY);
}

/// Keep the `k` best.
pub(super) fn keep_best(candidates: &mut Vec<Candidate>, k: usize) {
    if candidates.len() > k && k > 0 {
        candidates.select_nth_unstable(k - 1);
        candidates.truncate(k);
    }
}

/// Keep the fewest best candidates that together weigh at least `target` at temperature 1.
///
/// Halves the part in which the cut lies until it is small enough to be sorted: linear in the number of candidates.
pub(super) fn keep_mass(candidates: &mut Vec<Candidate>, max: f32, target: f64) {
    const FEW: usize = 64;
    // What lies before `low` is kept and weighs `kept`; what lies behind `high` is not.
    let (mut low, mut high, mut kept) = (0, candidates.len(), 0.0);
    while high - low > FEW {
        let half = (high - low) / 2;
        candidates[low..high].select_nth_unstable(half);
        let with_half = kept + mass(&candidates[low..low + half], max);
        if with_half >= target {
            high = low + half;
        } else {
            (low, kept) = (low + half, with_half);
        }
    }
    candidates[low..high].sort_unstable();
    let mut rest = candidates[low..high].iter();
    let cut = rest.position(|candidate| {
        kept += f64::from(weight(candidate.logit(), max, 1.0));
        kept >= target
    });
    candidates.truncate(cut.map_or(high, |i| low + i + 1));
}

#[cfg(test)]
mod tests {
    use super::Candidate;

    #[test]
    fn candidates_are_ordered_by_logit_then_token() {
        let best_first = [(f32::INFINITY, 9), (2.5, 1), (2.5, 7), (0.0, 3), (-0.0, 4), (-1.0, 0), (f32::MIN, 2)];
        let mut candidates: Vec<_> =
            best_first.iter().rev().map(|&(logit, token)| Candidate::new(logit, token)).collect();
        candidates.sort_unstable();
        let sorted: Vec<_> = candidates.iter().map(|c| (c.logit(), c.token())).collect();
        assert_eq!(sorted, best_first);
    }
}
