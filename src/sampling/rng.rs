//! A request's random stream: xoshiro256++ (Blackman and Vigna, <https://prng.di.unimi.it>), seeded through SplitMix64
//! as its authors advise. It depends on the seed alone.

use crate::core::{GOLDEN, mix};

/// The state of one stream.
#[derive(Clone, Debug)]
pub(super) struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The stream of a seed.
    pub(super) fn new(seed: u64) -> Self {
        let mut counter = seed;
        let state = std::array::from_fn(|_| {
            counter = counter.wrapping_add(GOLDEN);
            mix(counter)
        });
        Self { state }
    }

    /// The next 64 bits.
    fn next(&mut self) -> u64 {
        let [s0, s1, s2, s3] = self.state;
        let result = s0.wrapping_add(s3).rotate_left(23).wrapping_add(s0);
        let (s2, s3) = (s2 ^ s0, s3 ^ s1);
        self.state = [s0 ^ s3, s1 ^ s2, s2 ^ (s1 << 17), s3.rotate_left(45)];
        result
    }

    /// A number in `0.0..1.0`, of 53 random bits.
    pub(super) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn the_stream_is_that_of_the_published_reference() {
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let drawn: Vec<u64> = (0..6).map(|_| rng.next()).collect();
        let reference = [
            41_943_041,
            58_720_359,
            3_588_806_011_781_223,
            3_591_011_842_654_386,
            9_228_616_714_210_784_205,
            9_973_669_472_204_895_162,
        ];
        assert_eq!(drawn, reference);
    }

    #[test]
    fn seeds_are_spread_as_splitmix64_does() {
        assert_eq!(Rng::new(0).state[..2], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
    }

    #[test]
    fn uniform_numbers_lie_in_the_half_open_unit_interval() {
        let mut rng = Rng::new(7);
        let mean = (0..10_000).map(|_| rng.uniform()).inspect(|u| assert!((0.0..1.0).contains(u))).sum::<f64>() / 1e4;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }
}
