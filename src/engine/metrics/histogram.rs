//! A histogram over buckets that were chosen beforehand: recording is two additions, and who reads makes nobody wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of durations, each included. Unit: nanoseconds.
pub(super) const TTFT: &[u64] = &millis([
    1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750, 1_000, 2_500, 5_000, 7_500, 10_000, 20_000, 40_000, 80_000, 160_000,
    640_000, 2_560_000,
]);
pub(super) const ITL: &[u64] = &millis([
    10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1_000, 2_500, 5_000, 7_500, 10_000, 20_000, 40_000, 80_000,
]);
pub(super) const REQUEST: &[u64] = &millis([
    300, 500, 800, 1_000, 1_500, 2_000, 2_500, 5_000, 10_000, 15_000, 20_000, 30_000, 40_000, 50_000, 60_000, 120_000,
    240_000, 480_000, 960_000, 1_920_000, 7_680_000,
]);
/// Upper bounds of the rows of a pass.
pub(super) const ROWS: &[u64] = &[1, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384];
/// Upper bounds of the tokens of a request, in the largest context that there is.
const TOKENS: &[u64] = &[
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000,
];

/// The bounds of the tokens of a request in a context of so many; all of them where that is left to the model (0).
pub(super) fn tokens_within(n_ctx: u32) -> &'static [u64] {
    match n_ctx {
        0 => TOKENS,
        _ => &TOKENS[..TOKENS.partition_point(|bound| *bound <= u64::from(n_ctx))],
    }
}

const fn millis<const N: usize>(mut bounds: [u64; N]) -> [u64; N] {
    let mut at = 0;
    while at < N {
        bounds[at] *= 1_000_000;
        at += 1;
    }
    bounds
}

/// What was recorded, as it stood when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// Upper bounds, ascending, each included. Unit: nanoseconds of durations, else what is counted.
    pub bounds: &'static [u64],
    /// How often a value was above the bound before and not above this one; one more for what is above them all.
    pub counts: Vec<u64>,
    /// All values together; of at least those that are counted.
    pub sum: u64,
}

impl Histogram {
    /// Values recorded.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// The same while it is recorded, by any number of threads. It counts each value once, in its bucket: how many there are
/// is their sum, so that the two cannot differ.
pub(super) struct Recorder {
    bounds: &'static [u64],
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Recorder {
    pub(super) fn new(bounds: &'static [u64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0) }
    }

    pub(super) fn record(&self, value: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        // The sum first: who sees a value counted finds it in the sum.
        self.sum.fetch_add(value, Ordering::Relaxed);
        self.counts[bucket].fetch_add(1, Ordering::Release);
    }

    pub(super) fn record_time(&self, time: Duration) {
        self.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(super) fn read(&self) -> Histogram {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Acquire)).collect();
        Histogram { bounds: self.bounds, counts, sum: self.sum.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Values around the bounds, and far beyond them.
    fn value() -> impl Strategy<Value = u64> {
        let near = (0..TTFT.len(), 0..3u64).prop_map(|(at, off)| TTFT[at] + off - 1);
        prop_oneof![near, 0..1_000_000_000u64, 0..=1_u64 << 50]
    }

    proptest! {
        #[test]
        fn counts_and_sum_are_those_of_a_naive_computation(values in prop::collection::vec(value(), 0..200)) {
            let recorder = Recorder::new(TTFT);
            for value in &values {
                recorder.record(*value);
            }
            let read = recorder.read();
            for (at, count) in read.counts.iter().enumerate() {
                let above = if at == 0 { None } else { Some(TTFT[at - 1]) };
                let belongs = |v: &u64| above.is_none_or(|b| *v > b) && TTFT.get(at).is_none_or(|b| v <= b);
                prop_assert_eq!(*count, values.iter().filter(|v| belongs(v)).count() as u64);
            }
            prop_assert_eq!(read.count(), values.len() as u64);
            prop_assert_eq!(read.sum, values.iter().sum::<u64>());
        }

        #[test]
        fn a_context_has_the_bounds_up_to_its_size(n_ctx in 1..20_000_000u32) {
            let bounds = tokens_within(n_ctx);
            prop_assert!(bounds.iter().all(|bound| *bound <= u64::from(n_ctx)));
            prop_assert!(TOKENS.get(bounds.len()).is_none_or(|next| *next > u64::from(n_ctx)));
        }
    }

    #[test]
    fn bounds_ascend_and_are_what_they_say() {
        for bounds in [TTFT, ITL, REQUEST, ROWS, TOKENS] {
            assert!(bounds.is_sorted_by(|a, b| a < b));
        }
        assert_eq!((TTFT[0], TTFT[21]), (1_000_000, 2_560_000_000_000));
        assert_eq!(tokens_within(0), TOKENS);
        assert_eq!(tokens_within(100), [1, 2, 5, 10, 20, 50, 100]);
    }

    #[test]
    fn who_reads_meanwhile_sees_nothing_lost_and_nothing_half_done() {
        const N_WRITERS: u64 = 3;
        const N_VALUES: u64 = 20_000;
        let recorder = Recorder::new(ROWS);
        std::thread::scope(|scope| {
            for _ in 0..N_WRITERS {
                scope.spawn(|| (0..N_VALUES).for_each(|_| recorder.record(7)));
            }
            let mut before = 0;
            while before < N_WRITERS * N_VALUES {
                let read = recorder.read();
                assert!(read.count() >= before, "nothing is taken back");
                assert!(read.sum >= 7 * read.count(), "what is counted is in the sum");
                before = read.count();
            }
        });
        assert_eq!(recorder.read().sum, 7 * N_WRITERS * N_VALUES);
    }
}
