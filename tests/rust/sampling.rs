//! The sampler against a reference that sorts everything and filters it exactly.

use llama_batch::core::{SamplingParams, Token};
use llama_batch::error::Error;
use llama_batch::sampling::{Pool, Sampler};
use proptest::prelude::*;

/// Everything off, drawing from the whole vocabulary as it is.
const PLAIN: SamplingParams = SamplingParams { seed: 1, ..SamplingParams::OFF };
const GREEDY: SamplingParams = SamplingParams { temp: 0.0, ..PLAIN };
const DEFAULTS: SamplingParams = SamplingParams { temp: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..PLAIN };

fn sampler(params: &SamplingParams, prompt: &[Token], logits: &[f32]) -> Sampler {
    Sampler::new(params, prompt, logits.len() as u32)
}

/// One draw by a fresh sampler from a copy of the row.
fn draw_once(params: &SamplingParams, prompt: &[Token], logits: &[f32]) -> Result<Token, Error> {
    sampler(params, prompt, logits).draw(&mut logits.to_vec())
}

/// The logits after penalties, counted anew from the whole history.
fn penalised(params: &SamplingParams, history: &[Token], logits: &[f32]) -> Vec<f32> {
    let last_n = usize::try_from(params.penalty_last_n).unwrap_or(history.len());
    let window = &history[history.len().saturating_sub(last_n)..];
    let penalise = |(token, &logit): (usize, &f32)| {
        let count = window.iter().filter(|t| **t == token as Token).count();
        if count == 0 {
            return logit;
        }
        let scaled = if logit <= 0.0 { logit * params.penalty_repeat } else { logit / params.penalty_repeat };
        scaled - (count as f32 * params.penalty_freq + params.penalty_present)
    };
    logits.iter().enumerate().map(penalise).collect()
}

/// The distribution that the chain leaves, best token first. `slack` moves the cuts of top-p and min-p: a cut that falls
/// within rounding of a token may take it or leave it.
fn reference(params: &SamplingParams, logits: &[f32], slack: f64) -> Vec<(Token, f64)> {
    let tokens = logits.iter().enumerate().filter(|(_, logit)| !logit.is_nan());
    let mut tokens: Vec<(Token, f64)> = tokens.map(|(i, logit)| (i as Token, f64::from(*logit))).collect();
    // As numbers: -0.0 and 0.0 are a tie, which the lower token wins.
    tokens.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
    if params.top_k > 0 {
        tokens.truncate(params.top_k as usize);
    }
    let max = tokens[0].1;
    let weights = |tokens: &[(Token, f64)], temp: f64| -> Vec<f64> {
        tokens.iter().map(|(_, logit)| if *logit == max { 1.0 } else { ((logit - max) / temp).exp() }).collect()
    };
    if params.top_p < 1.0 {
        let weights = weights(&tokens, 1.0);
        let target = f64::from(params.top_p) * weights.iter().sum::<f64>() * (1.0 + slack);
        let mut sum = 0.0;
        let cut = weights.iter().position(|weight| {
            sum += weight;
            sum >= target
        });
        tokens.truncate(cut.map_or(tokens.len(), |i| i + 1));
    }
    if params.min_p > 0.0 {
        let floor = max + f64::from(params.min_p).ln() - slack;
        tokens.retain(|(_, logit)| *logit >= floor || *logit == max);
    }
    let weights = weights(&tokens, f64::from(params.temp));
    let total: f64 = weights.iter().sum();
    let tokens = tokens.iter().zip(&weights).map(|((token, _), weight)| (*token, weight / total));
    tokens.filter(|(_, probability)| *probability > 0.0).collect()
}

/// Whether so many draws fit a distribution: the chi-square statistic, as a normal deviate (Wilson and Hilferty).
fn deviate(expected: &[(Token, f64)], drawn: &[Token]) -> f64 {
    let n = drawn.len() as f64;
    let (mut statistic, mut cells, mut rest) = (0.0, 0, (0.0, 0.0));
    for (token, probability) in expected {
        let count = drawn.iter().filter(|t| *t == token).count() as f64;
        if probability * n < 5.0 {
            rest = (rest.0 + probability * n, rest.1 + count);
            continue;
        }
        statistic += (count - probability * n).powi(2) / (probability * n);
        cells += 1;
    }
    if rest.0 > 0.0 {
        statistic += (rest.1 - rest.0).powi(2) / rest.0;
        cells += 1;
    }
    let freedom = f64::from(cells - 1).max(1.0);
    let spread = 2.0 / (9.0 * freedom);
    ((statistic / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
}

/// Logits that look like a language model's: a few far above a long tail. Reproducible.
fn row(n_vocab: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 24) as f32
    };
    (0..n_vocab).map(|_| (0..4).map(|_| uniform()).sum::<f32>() * 6.0 - 12.0 - uniform().max(1e-6).ln()).collect()
}

fn any_logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        6 => -12.0_f32..12.0,
        3 => (-4_i8..4).prop_map(f32::from), // ties
        1 => prop::sample::select(vec![f32::NAN, f32::NEG_INFINITY, -0.0, 0.0, 1e30, -1e30, f32::MIN, f32::MAX]),
    ]
}

fn any_row() -> impl Strategy<Value = Vec<f32>> {
    let any_length = prop_oneof![1..4_usize, 1..130_usize, 500..2500_usize];
    any_length.prop_flat_map(|n| prop::collection::vec(any_logit(), n))
}

fn any_params() -> impl Strategy<Value = SamplingParams> {
    let temp = prop_oneof![4 => 0.05_f32..3.0, 1 => prop::sample::select(vec![1e-40, 1e-6, 1000.0])];
    let top_k = prop_oneof![Just(0), Just(1), Just(u32::MAX), 1..60_u32, 1..3000_u32];
    let top_p = prop_oneof![Just(1.0), Just(0.0), Just(0.95), 0.0..1.0_f32];
    let min_p = prop_oneof![Just(0.0), Just(1.0), Just(0.05), 0.0..1.0_f32];
    let any = (temp, top_k, top_p, min_p, any::<u64>());
    any.prop_map(|(temp, top_k, top_p, min_p, seed)| SamplingParams { temp, top_k, top_p, min_p, seed, ..PLAIN })
}

fn any_penalties() -> impl Strategy<Value = SamplingParams> {
    let last_n = prop_oneof![Just(-1), Just(0), 1..12, Just(i32::MAX)];
    let any = (0.2..4.0_f32, -2.0..2.0_f32, -2.0..2.0_f32, last_n, prop::bool::ANY);
    any.prop_map(|(penalty_repeat, penalty_freq, penalty_present, penalty_last_n, greedy)| {
        let base = if greedy { GREEDY } else { DEFAULTS };
        SamplingParams { penalty_repeat, penalty_freq, penalty_present, penalty_last_n, ..base }
    })
}

fn can_be_drawn(logits: &[f32]) -> bool {
    logits.iter().any(|logit| *logit > f32::NEG_INFINITY)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn greedy_takes_the_first_of_the_largest_logits(logits in any_row()) {
        let drawn = draw_once(&GREEDY, &[], &logits);
        if !can_be_drawn(&logits) {
            return Ok(prop_assert!(drawn.is_err()));
        }
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let first = logits.iter().position(|logit| *logit == max).unwrap();
        prop_assert_eq!(drawn, Ok(first as Token));
    }

    #[test]
    fn what_is_drawn_is_what_the_chain_leaves(params in any_params(), logits in any_row()) {
        let mut sampler = sampler(&params, &[], &logits);
        let drawn: Vec<_> = (0..40).map(|_| sampler.draw(&mut logits.clone())).collect();
        if !can_be_drawn(&logits) {
            return Ok(prop_assert!(drawn.iter().all(Result::is_err)));
        }
        let left = reference(&params, &logits, 1e-5);
        for token in drawn {
            let token = token.unwrap();
            prop_assert!(left.iter().any(|(t, _)| *t == token), "{} is not among {:?}", token, left);
        }
    }

    #[test]
    fn penalties_edit_the_tokens_in_the_window_as_llama_cpp_does(
        params in any_penalties(),
        prompt in prop::collection::vec(-1..40_i32, 0..30),
        logits in prop::collection::vec(-8.0..8.0_f32, 32),
    ) {
        let mut sampler = sampler(&params, &prompt, &logits);
        let mut history = prompt;
        for _ in 0..20 {
            let mut edited = logits.clone();
            let token = sampler.draw(&mut edited).unwrap();
            prop_assert_eq!(&edited, &penalised(&params, &history, &logits));
            prop_assert!(params.temp > 0.0 || edited.iter().all(|logit| *logit <= edited[token as usize]));
            history.push(token);
        }
    }

    #[test]
    fn equal_seeds_draw_equal_tokens_alone_and_among_any_mates(
        requests in prop::collection::vec((any_params(), 0..9_u64), 1..9),
        n_threads in 1..4_usize,
    ) {
        const N_VOCAB: usize = 20_000;
        let mut mates: Vec<Sampler> =
            requests.iter().map(|(params, _)| Sampler::new(params, &[], N_VOCAB as u32)).collect();
        let mut alone = mates.clone();
        let pool = Pool::new(n_threads);
        for _ in 0..2 {
            let mut rows: Vec<Vec<f32>> = requests.iter().map(|(_, seed)| row(N_VOCAB, *seed)).collect();
            let mut batch: Vec<(&mut Sampler, &mut [f32])> =
                mates.iter_mut().zip(rows.iter_mut().map(Vec::as_mut_slice)).collect();
            let together = pool.draw(&mut batch);
            let singly: Vec<_> =
                alone.iter_mut().zip(&requests).map(|(s, (_, seed))| s.draw(&mut row(N_VOCAB, *seed))).collect();
            prop_assert_eq!(together, singly);
        }
    }
}

/// Draws from one row with one sampler, and how far they are from the reference.
fn fit(params: &SamplingParams, logits: &[f32]) -> f64 {
    let mut sampler = sampler(params, &[], logits);
    let drawn: Vec<Token> = (0..20_000).map(|_| sampler.draw(&mut logits.to_vec()).unwrap()).collect();
    deviate(&reference(params, logits, 0.0), &drawn)
}

#[test]
fn draws_follow_the_reference_distribution() {
    let cases = [
        ("plain", PLAIN),
        ("hot", SamplingParams { temp: 2.5, ..PLAIN }),
        ("cold", SamplingParams { temp: 0.3, ..PLAIN }),
        ("defaults", DEFAULTS),
        ("top_k", SamplingParams { top_k: 7, ..PLAIN }),
        ("top_p", SamplingParams { top_p: 0.8, ..PLAIN }),
        ("min_p", SamplingParams { min_p: 0.2, temp: 1.5, ..PLAIN }),
        ("top_p and min_p", SamplingParams { top_p: 0.9, min_p: 0.02, temp: 1.2, ..PLAIN }),
        ("top_k and top_p", SamplingParams { top_k: 100, top_p: 0.5, ..PLAIN }),
    ];
    for (name, params) in cases {
        for (n_vocab, seed) in [(9, 1), (300, 2), (1500, 3)] {
            let deviate = fit(&SamplingParams { seed, ..params.clone() }, &row(n_vocab, seed));
            assert!(deviate < 4.0, "{name} over {n_vocab} tokens is {deviate:.1} sigma away");
        }
    }
}

#[test]
fn the_test_of_fit_tells_a_wrong_distribution() {
    let logits = row(300, 2);
    let mut sampler = sampler(&PLAIN, &[], &logits);
    let drawn: Vec<Token> = (0..20_000).map(|_| sampler.draw(&mut logits.clone()).unwrap()).collect();
    let warmer = SamplingParams { temp: 1.05, ..PLAIN };
    assert!(deviate(&reference(&warmer, &logits, 0.0), &drawn) > 4.0);
}

#[test]
fn draws_under_penalties_follow_the_reference_distribution() {
    let prompt: Vec<Token> = (0..50).map(|i| i % 17).collect();
    let params =
        SamplingParams { penalty_repeat: 1.3, penalty_freq: 0.2, penalty_present: 0.4, penalty_last_n: 20, ..DEFAULTS };
    let logits = row(200, 5);
    let drawn: Vec<Token> = (0..20_000)
        .map(|seed| draw_once(&SamplingParams { seed, ..params.clone() }, &prompt, &logits).unwrap())
        .collect();
    let expected = reference(&params, &penalised(&params, &prompt, &logits), 0.0);
    assert!(deviate(&expected, &drawn) < 4.0);
}

#[test]
fn what_would_end_a_generation_is_not_drawn_before_it_may_end() {
    let (eog, named) = ([3, 7], [11, -1, 999]);
    let mut logits = row(200, 5);
    for (token, logit) in [(3, 40.0), (7, 39.9), (11, 39.8)] {
        logits[token] = logit;
    }
    let ends = |token: &Token| [3, 7, 11].contains(token);
    for params in [GREEDY, DEFAULTS, PLAIN] {
        let late = SamplingParams { min_tokens: 20, ..params.clone() };
        let mut sampler = sampler(&late, &[], &logits).banning(&late, &eog, &named, &[]);
        let drawn: Vec<Token> = (0..200).map(|_| sampler.draw(&mut logits.clone()).unwrap()).collect();
        assert!(!drawn[..20].iter().any(ends), "{params:?}: {drawn:?}");
        assert!(drawn[20..].iter().filter(|token| ends(token)).count() > 100, "{params:?}: {drawn:?}");
        // Those of the vocabulary's own are ignored for ever, those that the caller named are not.
        let never = SamplingParams { ignore_eos: true, ..params };
        let mut sampler = self::sampler(&never, &[], &logits).banning(&never, &eog, &named, &[]);
        let drawn: Vec<Token> = (0..200).map(|_| sampler.draw(&mut logits.clone()).unwrap()).collect();
        assert!(!drawn.iter().any(|token| eog.contains(token)));
        assert!(drawn.contains(&11));
    }
}

#[test]
fn a_flat_row_is_drawn_from_as_a_whole() {
    let logits = vec![1.0; 10_000];
    for params in [PLAIN, SamplingParams { top_p: 0.9, ..PLAIN }, SamplingParams { top_k: 9000, ..PLAIN }] {
        let mut sampler = sampler(&params, &[], &logits);
        let drawn: Vec<Token> = (0..2000).map(|_| sampler.draw(&mut logits.clone()).unwrap()).collect();
        let mean = drawn.iter().map(|t| f64::from(*t)).sum::<f64>() / 2000.0;
        let left = reference(&params, &logits, 0.0).len() as f64;
        assert!((mean / left - 0.5).abs() < 0.03, "{params:?}: mean {mean} of {left}");
    }
}

#[test]
fn equal_logits_go_to_the_lowest_tokens() {
    let logits = vec![2.0; 5000];
    let params = SamplingParams { top_k: 3, ..PLAIN };
    let mut sampler = sampler(&params, &[], &logits);
    let mut drawn: Vec<Token> = (0..200).map(|_| sampler.draw(&mut logits.clone()).unwrap()).collect();
    drawn.sort_unstable();
    drawn.dedup();
    assert_eq!(drawn, [0, 1, 2]);
}

#[test]
fn the_stream_does_not_depend_on_what_was_drawn_before() {
    let (certain, open) = ([9.0, f32::NEG_INFINITY, f32::NEG_INFINITY], row(3, 1));
    let mut first = Sampler::new(&DEFAULTS, &[], 3);
    let mut second = first.clone();
    first.draw(&mut certain.clone()).unwrap();
    second.draw(&mut open.clone()).unwrap();
    let draws = |sampler: &mut Sampler| (0..50).map(|_| sampler.draw(&mut open.clone()).unwrap()).collect::<Vec<_>>();
    assert_eq!(draws(&mut first), draws(&mut second));
}

#[test]
fn different_seeds_draw_differently() {
    let logits = row(1000, 1);
    let draws = |seed| {
        let mut sampler = sampler(&SamplingParams { seed, ..PLAIN }, &[], &logits);
        (0..20).map(|_| sampler.draw(&mut logits.clone()).unwrap()).collect::<Vec<_>>()
    };
    assert_ne!(draws(1), draws(2));
}

#[test]
fn a_row_without_a_token_to_draw_is_an_error_and_the_sampler_goes_on() {
    for params in [GREEDY, DEFAULTS, PLAIN, SamplingParams { top_p: 0.9, ..PLAIN }] {
        let mut sampler = Sampler::new(&params, &[], 100);
        assert!(sampler.draw(&mut [f32::NAN; 100]).is_err());
        assert!(sampler.draw(&mut [f32::NEG_INFINITY; 100]).is_err());
        assert!(sampler.draw(&mut [0.0; 99]).is_err());
        let mut logits = [f32::NAN; 100];
        logits[77] = -3.0;
        assert_eq!(sampler.draw(&mut logits), Ok(77));
    }
    assert!(Sampler::new(&DEFAULTS, &[], 0).draw(&mut []).is_err());
}

#[test]
fn an_infinite_logit_is_certain() {
    let mut logits = row(1000, 1);
    logits[700] = f32::INFINITY;
    for params in [GREEDY, DEFAULTS, PLAIN, SamplingParams { top_p: 0.9, min_p: 0.1, ..PLAIN }] {
        assert_eq!(draw_once(&params, &[], &logits), Ok(700), "{params:?}");
    }
}

#[test]
fn a_bad_row_fails_alone() {
    let mut samplers: Vec<Sampler> = (0..4).map(|_| Sampler::new(&GREEDY, &[], 50_000)).collect();
    let mut rows: Vec<Vec<f32>> = (0..4).map(|seed| row(50_000, seed)).collect();
    rows[2].fill(f32::NAN);
    let mut batch: Vec<(&mut Sampler, &mut [f32])> =
        samplers.iter_mut().zip(rows.iter_mut().map(Vec::as_mut_slice)).collect();
    let drawn = Pool::new(2).draw(&mut batch);
    assert_eq!(drawn.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false, true]);
}

#[test]
fn a_pool_draws_from_no_rows_at_all() {
    assert_eq!(Pool::new(2).draw(&mut []), []);
    assert_eq!(Pool::new(0).draw(&mut []), []);
}
