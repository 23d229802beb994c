//! What a forward pass costs, learned from those that were done.
//!
//! The length of a pass is taken to be linear in what it computes: so much for any pass, for each decode row, for each row
//! of a prompt, and for the context that rows attend to. The four costs are the state of a Kalman filter (Kalman, 1960),
//! which a pass corrects. Between passes all costs together may have become dearer or cheaper, because a machine changes
//! its speed far more than its proportions. A length that cannot be believed is left out, unless several in a row agree:
//! then the speed has changed. No cost is ever negative: what would be is projected onto zero (Simon & Chia, 2002).

use std::time::Duration;

const N: usize = 4;
type Vector = [f64; N];
type Matrix = [Vector; N];

/// Tokens of context that one unit of cost stands for.
const CONTEXT: f64 = 1000.0;
/// How far the costs may be off after the first pass, as multiples of what a row of it took: of a pass, a decode row, a
/// prompt's row, a unit of context.
const FIRST_SPREAD: Vector = [64.0, 8.0, 1.0, 4.0];
/// Variance by which all costs together drift from pass to pass, and each one that is at work. Relative.
const SPEED_DRIFT: f64 = 2e-4;
const COST_DRIFT: f64 = 1e-4;
/// Variance of the lengths of equal passes, at first, and its bounds. Relative.
const NOISE: f64 = 2.5e-3;
const LEAST_NOISE: f64 = 9e-4;
const MOST_NOISE: f64 = 9e-2;
/// Part of each pass in what is known of the noise.
const NOISE_MEMORY: f64 = 1.0 / 16.0;
/// Standard deviations beyond which a length is not believed, and how many in a row are.
const SURPRISE: f64 = 4.0;
const N_SURPRISES: i32 = 3;
/// Standard deviations above the forecast that a pass is allowed for, where it must not be longer than a bound.
const CARE: f64 = 2.0;

/// What a pass computes, as far as it matters for its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    /// Rows of requests that generate.
    pub(super) n_decode: u32,
    /// Rows of prompts.
    pub(super) n_prefill: u32,
    /// Tokens that rows attend to, over all rows.
    pub(super) context: u64,
}

impl Load {
    /// One more request that generates, behind so many tokens.
    pub(super) fn decode(&mut self, n_computed: u32) {
        self.n_decode += 1;
        self.context += u64::from(n_computed) + 1;
    }

    /// So many rows of a prompt, behind so many tokens.
    pub(super) fn prefill(&mut self, n_computed: u32, n_rows: u32) {
        let (before, n) = (u64::from(n_computed), u64::from(n_rows));
        self.n_prefill += n_rows;
        self.context += before * n + n * (n + 1) / 2;
    }

    fn units(&self) -> Vector {
        [1.0, f64::from(self.n_decode), f64::from(self.n_prefill), self.context as f64 / CONTEXT]
    }
}

/// What passes cost: the mean and the covariance of the four. Unit: ns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Costs {
    mean: Vector,
    covariance: Matrix,
    /// Variances that are never exceeded, so that a cost which is not seen for long is not forgotten altogether.
    widest: Vector,
    /// Relative variance of the lengths of equal passes.
    noise: f64,
    /// Lengths in a row that were not believed: above the forecast, or below where negative.
    n_surprises: i32,
    /// Rows of requests that generate, in the widest pass that was learned from.
    most_decode: u32,
    is_known: bool,
}

impl Costs {
    /// Of a pass, a decode row, a prompt's row, and 1,000 tokens of context.
    pub(super) fn whole_ns(&self) -> [u64; N] {
        self.mean.map(|cost| cost.round() as u64)
    }

    /// Rows of requests that generate, up to which lengths are known rather than guessed.
    pub(super) fn most_decode(&self) -> u32 {
        self.most_decode
    }

    /// How long such a pass will take; None until one pass was seen.
    pub(super) fn forecast(&self, load: &Load) -> Option<Duration> {
        self.is_known.then(|| duration(dot(&self.mean, &load.units())))
    }

    /// How long such a pass will take at most, with what is not known and what varies counted in.
    pub(super) fn at_most(&self, load: &Load) -> Option<Duration> {
        let x = load.units();
        let likely = dot(&self.mean, &x);
        let variance = quadratic(&self.covariance, &x) + self.noise * likely * likely;
        self.is_known.then(|| duration(likely + CARE * variance.sqrt()))
    }

    /// A pass was done. One that took no time at all says nothing.
    pub(super) fn learn(&mut self, load: &Load, took: Duration) {
        let (x, took) = (load.units(), took.as_nanos() as f64);
        if took <= 0.0 {
            return;
        }
        if !self.is_known {
            self.begin(took / f64::from((load.n_decode + load.n_prefill).max(1)));
        }
        self.drift(&x);
        let error = took - dot(&self.mean, &x);
        let uncertainty = quadratic(&self.covariance, &x);
        let believable = SURPRISE * SURPRISE * (uncertainty + self.noise * took * took);
        let unexplained = ((error * error).min(believable) - uncertainty).max(0.0) / (took * took);
        self.noise += (unexplained - self.noise) * NOISE_MEMORY;
        self.noise = self.noise.clamp(LEAST_NOISE, MOST_NOISE);
        if error * error > believable {
            let side = if error > 0.0 { 1 } else { -1 };
            self.n_surprises = if self.n_surprises * side > 0 { self.n_surprises + side } else { side };
            if self.n_surprises.abs() < N_SURPRISES {
                return;
            }
            self.doubt_speed();
        }
        self.n_surprises = 0;
        self.correct(&x, error, self.noise * took * took);
        self.keep_positive();
        self.most_decode = self.most_decode.max(load.n_decode);
    }

    /// Nothing is known but the scale: what a row of the first pass took.
    fn begin(&mut self, per_row: f64) {
        self.is_known = true;
        self.noise = NOISE;
        self.widest = FIRST_SPREAD.map(|spread| (spread * per_row).powi(2));
        for i in 0..N {
            self.covariance[i][i] = self.widest[i];
        }
    }

    /// Time has passed since the last pass.
    fn drift(&mut self, x: &Vector) {
        self.add_speed_variance(SPEED_DRIFT);
        for (i, at_work) in x.iter().map(|units| *units > 0.0).enumerate() {
            if at_work {
                self.covariance[i][i] += COST_DRIFT * self.mean[i] * self.mean[i];
            }
            let most = self.widest[i].max(self.mean[i] * self.mean[i]);
            let variance = self.covariance[i][i];
            if variance > most {
                let shrink = (most / variance).sqrt();
                for j in 0..N {
                    self.covariance[i][j] *= shrink;
                    self.covariance[j][i] *= shrink;
                }
            }
        }
    }

    /// Passes are computed in another way from now on: all costs may have become others.
    pub(super) fn doubt_speed(&mut self) {
        self.add_speed_variance(1.0);
    }

    fn add_speed_variance(&mut self, variance: f64) {
        for i in 0..N {
            for j in 0..N {
                self.covariance[i][j] += variance * self.mean[i] * self.mean[j];
            }
        }
    }

    /// The Kalman filter's update, in Joseph's form: the covariance stays one whatever is rounded.
    fn correct(&mut self, x: &Vector, error: f64, noise: f64) {
        let p = &self.covariance;
        let spread: Vector = std::array::from_fn(|i| dot(&p[i], x));
        let variance = dot(&spread, x) + noise;
        let gain = spread.map(|s| s / variance);
        let keep: Matrix = std::array::from_fn(|i| std::array::from_fn(|j| f64::from(i == j) - gain[i] * x[j]));
        let half: Matrix = std::array::from_fn(|i| std::array::from_fn(|j| (0..N).map(|k| keep[i][k] * p[k][j]).sum()));
        let whole: Matrix =
            std::array::from_fn(|i| std::array::from_fn(|j| dot(&half[i], &keep[j]) + noise * gain[i] * gain[j]));
        self.covariance = std::array::from_fn(|i| std::array::from_fn(|j| f64::midpoint(whole[i][j], whole[j][i])));
        for (cost, gain) in self.mean.iter_mut().zip(gain) {
            *cost += gain * error;
        }
    }

    /// Set what is negative to zero, and let the others take over what it stood for.
    fn keep_positive(&mut self) {
        for _ in 0..N {
            let Some(i) = (0..N).find(|i| self.mean[*i] < 0.0 && self.covariance[*i][*i] > 0.0) else { break };
            let excess = self.mean[i] / self.covariance[i][i];
            for j in 0..N {
                self.mean[j] -= self.covariance[j][i] * excess;
            }
            self.mean[i] = 0.0;
        }
        self.mean = self.mean.map(|cost| cost.max(0.0));
        assert!(self.mean.iter().all(|cost| cost.is_finite()), "costs are numbers");
    }
}

fn duration(ns: f64) -> Duration {
    Duration::from_nanos(ns as u64)
}

fn dot(a: &Vector, b: &Vector) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn quadratic(p: &Matrix, x: &Vector) -> f64 {
    p.iter().zip(x).map(|(row, x_i)| dot(row, x) * x_i).sum::<f64>().max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::mix;
    use proptest::prelude::*;

    /// A machine: its costs as above, and by how much its lengths vary. Unit: ns.
    struct Machine {
        costs: Vector,
        noise: f64,
    }

    const CPU: Machine = Machine { costs: [5e6, 8e6, 3.7e6, 11e6], noise: 0.0 };

    impl Machine {
        fn takes(&self, load: &Load, n: u64) -> Duration {
            let by_chance = (mix(n) % 2001) as f64 / 1000.0 - 1.0;
            duration(dot(&self.costs, &load.units()) * (1.0 + self.noise * by_chance))
        }
    }

    /// What passes are like that read prompts beside streams, or have streams alone.
    fn load(n: u64) -> Load {
        let mut load = Load::default();
        for i in 0..mix(n + 7000) % 6 {
            load.decode(100 * i as u32 + (n % 500) as u32);
        }
        if n.is_multiple_of(3) || load.n_decode == 0 {
            load.prefill((mix(n) % 2000) as u32, 1 + (mix(n + 5000) % 200) as u32);
        }
        load
    }

    fn alike(a: Duration, b: Duration, share: f64) -> bool {
        (a.as_secs_f64() - b.as_secs_f64()).abs() <= share * b.as_secs_f64()
    }

    fn taught(machine: &Machine, passes: std::ops::Range<u64>, mut costs: Costs) -> Costs {
        for n in passes {
            costs.learn(&load(n), machine.takes(&load(n), n));
        }
        costs
    }

    fn knows(costs: &Costs, machine: &Machine, share: f64) {
        let exact = Machine { noise: 0.0, ..*machine };
        for n in 1000..1200 {
            let (told, truth) = (costs.forecast(&load(n)).expect("known"), exact.takes(&load(n), n));
            assert!(alike(told, truth, share), "{:?}: {told:?}, not {truth:?}; {costs:?}", load(n));
        }
    }

    #[test]
    fn what_a_context_is_is_counted_row_by_row() {
        let mut load = Load::default();
        load.decode(9);
        load.prefill(100, 3);
        assert_eq!(load, Load { n_decode: 1, n_prefill: 3, context: 10 + 101 + 102 + 103 });
    }

    #[test]
    fn nothing_is_forecast_before_the_first_pass_nor_learned_of_one_that_took_no_time() {
        let mut costs = Costs::default();
        costs.learn(&load(0), Duration::ZERO);
        assert_eq!((costs.forecast(&load(0)), costs.at_most(&load(0))), (None, None));
    }

    #[test]
    fn costs_are_learned_within_some_passes() {
        let costs = taught(&CPU, 0..60, Costs::default());
        knows(&costs, &CPU, 0.01);
        for (told, truth) in costs.whole_ns().into_iter().zip(CPU.costs) {
            assert!((told as f64 - truth).abs() < 0.25 * truth, "{:?}", costs.whole_ns());
        }
    }

    #[test]
    fn lengths_that_vary_are_averaged_and_what_varies_is_counted_in() {
        let noisy = Machine { noise: 0.2, ..CPU };
        let costs = taught(&noisy, 0..300, Costs::default());
        knows(&costs, &noisy, 0.15);
        let n_longer = (2000..3000).filter(|n| Some(noisy.takes(&load(*n), *n)) > costs.at_most(&load(*n))).count();
        assert!(n_longer < 50, "{n_longer} of 1,000 passes took longer than they were allowed for");
    }

    #[test]
    fn a_large_pass_is_not_trusted_to_a_small_one() {
        let mut small = Load::default();
        small.prefill(0, 5);
        let mut costs = Costs::default();
        costs.learn(&small, CPU.takes(&small, 0));
        let mut large = small;
        large.prefill(5, 500);
        assert!(costs.at_most(&large) >= Some(CPU.takes(&large, 0)), "{:?}", costs.at_most(&large));
    }

    #[test]
    fn a_pass_that_takes_ten_times_as_long_is_left_out() {
        let mut costs = taught(&CPU, 0..60, Costs::default());
        let before = costs.whole_ns();
        for n in [60, 71, 82] {
            costs.learn(&load(n), CPU.takes(&load(n), n) * 10);
            costs = taught(&CPU, n + 1..n + 9, costs);
        }
        knows(&costs, &CPU, 0.1);
        assert!(costs.whole_ns().into_iter().zip(before).all(|(after, before)| after < before * 2 + 1000));
    }

    #[test]
    fn another_speed_of_the_machine_is_believed_after_three_passes_and_for_all_costs_at_once() {
        for factor in [3.0, 1.0 / 3.0] {
            let changed = Machine { costs: CPU.costs.map(|cost| cost * factor), ..CPU };
            let mut costs = taught(&CPU, 0..100, Costs::default());
            // Streams alone: what they take says what prompts will.
            let mut streams = Load::default();
            (0..4).for_each(|i| streams.decode(200 + i));
            for n in 0..5 {
                costs.learn(&streams, changed.takes(&streams, n));
            }
            knows(&costs, &changed, 0.25);
        }
    }

    proptest! {
        #[test]
        fn costs_are_never_negative_and_always_numbers(
            passes in prop::collection::vec((0u32..300, 0u32..4096, 0u32..100_000, 0u64..u64::MAX / 1000), 1..200),
        ) {
            let mut costs = Costs::default();
            for (n_decode, n_prefill, context, nanos) in passes {
                let mut load = Load { n_decode, ..Load::default() };
                load.prefill(context, n_prefill);
                // Of any order of magnitude, down to nothing at all.
                costs.learn(&load, Duration::from_nanos(nanos >> (nanos % 60)));
                prop_assert!(costs.mean.iter().all(|cost| *cost >= 0.0 && cost.is_finite()));
                prop_assert!(costs.covariance.iter().flatten().all(|value| value.is_finite()));
                prop_assert!(costs.at_most(&load) >= costs.forecast(&load));
            }
        }
    }
}
