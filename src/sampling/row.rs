//! Passes over a whole row of logits, written so that the compiler turns their inner loops into vector instructions.
//!
//! A row is looked at in blocks. One pass finds the largest logit of each block; all that follows visits only the
//! blocks that can matter. NaN compares as false everywhere and so is passed over.

use super::candidate::Candidate;

/// Logits of a block: small enough that a visit is cheap, large enough that there are few blocks.
const BLOCK: usize = 64;

/// Values worked on side by side: a multiple of the vector registers in use, so that several are in flight.
const LANES: usize = 16;

/// A row whose blocks have been measured.
pub(super) struct Row<'a> {
    logits: &'a [f32],
    /// The largest logit of each block; -inf where a block has none.
    maxima: &'a [f32],
    /// The largest logit.
    pub(super) max: f32,
}

impl<'a> Row<'a> {
    /// Measure a row, into a buffer that is reused from row to row. None where no token can be drawn.
    pub(super) fn measure(logits: &'a [f32], maxima: &'a mut Vec<f32>) -> Option<Self> {
        maxima.clear();
        maxima.extend(logits.chunks(BLOCK).map(largest));
        let max = largest(maxima);
        (max > f32::NEG_INFINITY).then_some(Self { logits, maxima, max })
    }

    /// The first token with the largest logit.
    pub(super) fn argmax(&self) -> usize {
        let is_max = |x: &f32| *x >= self.max;
        let block = self.maxima.iter().position(is_max).unwrap_or_default();
        let start = block * BLOCK;
        start + self.logits[start..].iter().position(is_max).unwrap_or_default()
    }

    /// Blocks that hold a logit of at least `floor`, each with its first token.
    fn blocks(&self, floor: f32) -> impl Iterator<Item = (usize, &'a [f32])> {
        let blocks = self.logits.chunks(BLOCK).enumerate().zip(self.maxima);
        blocks.filter(move |(_, max)| **max >= floor).map(|((i, block), _)| (i * BLOCK, block))
    }

    /// The `k` best candidates with logits of at least `floor`, in no order; all of those if there are fewer. Never
    /// those with a probability of zero.
    pub(super) fn best(&self, k: usize, floor: f32, scratch: &mut Vec<f32>, found: &mut Vec<Candidate>) {
        found.clear();
        // Each of the k best blocks holds a candidate at least as good as the k-th block's: nothing below is needed.
        let mut floor = floor.max(f32::MIN);
        if k <= self.maxima.len() {
            scratch.clear();
            scratch.extend_from_slice(self.maxima);
            let (_, kth, _) = scratch.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
            floor = floor.max(*kth);
        }
        let full = 2 * k + 4 * BLOCK;
        for (start, max) in self.maxima.iter().enumerate().map(|(i, max)| (i * BLOCK, *max)) {
            if max < floor {
                continue;
            }
            let block = &self.logits[start..self.logits.len().min(start + BLOCK)];
            let passing = block.iter().enumerate().filter(|(_, logit)| **logit >= floor);
            found.extend(passing.map(|(i, logit)| Candidate::new(*logit, start + i)));
            if found.len() > full {
                let (_, kth, _) = found.select_nth_unstable(k - 1);
                // Among equals the first wins, so that what comes later must be better.
                floor = kth.logit().next_up();
                found.truncate(k);
            }
        }
        if found.len() > k {
            found.select_nth_unstable(k - 1);
            found.truncate(k);
        }
    }

    /// Tokens of the row.
    pub(super) const fn len(&self) -> usize {
        self.logits.len()
    }

    /// The sum of the weights of logits of at least `floor`.
    pub(super) fn mass(&self, floor: f32, inverse_temp: f32) -> f64 {
        self.blocks(floor).map(|(_, block)| f64::from(block_mass(block, floor, self.max, inverse_temp))).sum()
    }

    /// How many logits are at least `floor`.
    pub(super) fn count(&self, floor: f32) -> usize {
        self.blocks(floor).map(|(_, block)| block.iter().filter(|logit| **logit >= floor).count()).sum()
    }

    /// A token's logit.
    pub(super) fn logit(&self, token: usize) -> f32 {
        self.logits[token]
    }

    /// How many tokens are at least as likely as one, itself included; of those that are as likely, the ones before it.
    pub(super) fn rank(&self, token: usize) -> u32 {
        let logit = self.logits[token];
        if logit.is_nan() {
            return u32::MAX;
        }
        let (before, after) = (&self.logits[..token], &self.logits[token + 1..]);
        let n_before = before.iter().filter(|other| **other >= logit).count();
        let n_after = after.iter().filter(|other| **other > logit).count();
        (n_before + n_after + 1) as u32
    }

    /// The standard deviation of the logits of at least `floor`, those that cannot be drawn excepted.
    pub(super) fn deviation(&self, floor: f32) -> f32 {
        deviation(self.logits.iter().copied().filter(|logit| *logit >= floor.max(f32::MIN)))
    }

    /// Draw from all tokens with logits of at least `floor`.
    pub(super) fn draw(&self, floor: f32, temp: f32, uniform: f64, sums: &mut Vec<f64>) -> usize {
        let mut total = 0.0;
        sums.clear();
        sums.extend(self.blocks(floor).map(|(_, block)| {
            total += f64::from(block_mass(block, floor, self.max, 1.0 / temp));
            total
        }));
        let target = uniform * total;
        let nth = sums.partition_point(|sum| *sum <= target);
        let before = nth.checked_sub(1).map_or(0.0, |i| sums[i]);
        let Some((start, block)) = self.blocks(floor).nth(nth) else { return self.argmax() };
        let weights = block.iter().map(|&logit| weight_from(logit, floor, self.max, 1.0 / temp));
        pick(weights, target - before).map_or_else(|| self.argmax(), |i| start + i)
    }
}

/// The standard deviation of some values.
pub(super) fn deviation(values: impl Iterator<Item = f32> + Clone) -> f32 {
    let n = values.clone().count().max(1) as f64;
    let mean = values.clone().map(f64::from).sum::<f64>() / n;
    (values.map(|value| (f64::from(value) - mean).powi(2)).sum::<f64>() / n).sqrt() as f32
}

/// The first index at which the sum of the weights exceeds `target`; the last one with a weight where rounding keeps
/// the sum below it; none where there is no weight at all.
pub(super) fn pick(weights: impl Iterator<Item = f32>, target: f64) -> Option<usize> {
    let (mut sum, mut last) = (0.0, None);
    for (i, weight) in weights.enumerate().filter(|(_, weight)| *weight > 0.0) {
        sum += f64::from(weight);
        last = Some(i);
        if sum > target {
            break;
        }
    }
    last
}

/// The probability of a logit as a share of the likeliest token's, at a temperature given by its inverse.
///
/// Written on the difference to the largest logit, so that neither a tiny temperature nor an infinite logit gives NaN.
pub(super) fn weight(logit: f32, max: f32, inverse_temp: f32) -> f32 {
    let below = (logit - max) * inverse_temp;
    exp(if logit >= max { 0.0 } else { below })
}

fn weight_from(logit: f32, floor: f32, max: f32, inverse_temp: f32) -> f32 {
    let weight = weight(logit, max, inverse_temp);
    if logit >= floor { weight } else { 0.0 }
}

fn block_mass(block: &[f32], floor: f32, max: f32, inverse_temp: f32) -> f32 {
    let (chunks, rest) = block.as_chunks::<LANES>();
    let mut lanes = [0.0_f32; LANES];
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane += weight_from(logit, floor, max, inverse_temp);
        }
    }
    let rest = rest.iter().map(|&logit| weight_from(logit, floor, max, inverse_temp));
    fold(lanes, |a, b| a + b) + rest.sum::<f32>()
}

fn larger(x: f32, than: f32) -> f32 {
    if x > than { x } else { than }
}

/// The largest of some values.
fn largest(values: &[f32]) -> f32 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = larger(x, *lane);
        }
    }
    rest.iter().fold(fold(lanes, larger), |max, &x| larger(x, max))
}

/// Joins lanes by halves: in a row they would wait for each other.
fn fold(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut n = LANES;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            lanes[i] = join(lanes[i], lanes[i + n]);
        }
    }
    lanes[0]
}

/// e to the power of `x`, for `x` not above 0, to within three units in the last place; 0 below -87.
///
/// The library's function takes one value at a time. This one is `2^n * e^r` with the whole number `n` found by adding
/// and subtracting 1.5 * 2^23, and a polynomial for `e^r` (Cephes' coefficients).
#[expect(clippy::excessive_precision, reason = "the coefficients as published")]
fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    const LOWEST: f32 = -87.0;
    let clamped = larger(x, LOWEST);
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = clamped - n * 0.693_359_375 + n * 2.121_944_4e-4;
    let mut poly: f32 = 1.987_569_15e-4;
    for coefficient in [1.398_199_95e-3, 8.333_451_9e-3, 4.166_579_6e-2, 1.666_666_55e-1, 0.5, 1.0, 1.0] {
        // One instruction where the machine has it; where it has not, `mul_add` would be a function call.
        poly = if cfg!(target_feature = "fma") { poly.mul_add(r, coefficient) } else { poly * r + coefficient };
    }
    let result = poly * f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0_f32.to_bits()));
    if x >= LOWEST { result } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn exp_agrees_with_the_library() {
        for i in 0..=87_000 {
            let x = -(i as f32) / 1000.0;
            let (ours, theirs) = (exp(x), x.exp());
            assert!((ours - theirs).abs() <= theirs * 4e-7, "exp({x}) = {theirs}, not {ours}");
        }
        let edges = [exp(0.0), exp(-87.5), exp(f32::NEG_INFINITY), exp(f32::NAN)];
        assert_eq!(edges.map(f32::to_bits), [1.0_f32, 0.0, 0.0, 0.0].map(f32::to_bits));
    }
}
